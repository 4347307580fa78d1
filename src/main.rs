//! The logcabin program: reads the command line and does what it says.

use std::process::ExitCode;

use clap::Parser as _;
use logcabin::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run().unwrap_or_else(|error| {
        eprintln!("logcabin: {error}");
        ExitCode::FAILURE
    })
}
