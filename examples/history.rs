//! Looks into a log: `cargo run --example history -- COMMAND SOURCE`, for example `stats ./data`.
//!
//! `logcabin history` is the same as a subcommand. The module behind both is public:
//! [`logcabin::history`].

use std::process::ExitCode;

use clap::Parser;
use logcabin::cli::History;

/// Look into a Logcabin log
#[derive(Debug, Parser)]
#[command(name = "history")]
struct Cli {
    #[command(flatten)]
    history: History,
}

fn main() -> ExitCode {
    Cli::parse().history.run()
}
