//! The logcabin program: reads the command line and does what it says.

use std::process::ExitCode;

use logcabin::cli::Cli;
use tikv_jemallocator::Jemalloc;

/// Cheaper than the C library's allocator: `docs/decisions/allocator.md` has the figures. Programs
/// that embed the library choose their own.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    Cli::of_process().run().unwrap_or_else(|error| {
        eprintln!("logcabin: {error}");
        ExitCode::FAILURE
    })
}
