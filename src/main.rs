//! The logcabin program: reads the command line and does what it says.

use std::process::ExitCode;

use clap::Parser as _;
use logcabin::cli::Cli;

/// Many small pieces of memory that live for one request, taken by one thread and given back by another: the
/// system's allocator spends more on that than on anything else it is asked for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Cli::parse().run().unwrap_or_else(|error| {
        eprintln!("logcabin: {error}");
        ExitCode::FAILURE
    })
}
