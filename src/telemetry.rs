//! The server's own log: what it looks like and where it goes. Only the program installs it; a
//! library user brings a subscriber of their own.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people, in colour on a terminal.
    Human,
    /// One JSON object on each line, for programs.
    Json,
}

/// What is logged unless `LOGCABIN_LOG` says otherwise. The library of the authorisation rules tells
/// of every event that it lets pass, at level `info`.
const DEFAULT_FILTER: &str = "info,ruma_state_res=warn";

/// Begins to write log lines to standard error: those that the variable `LOGCABIN_LOG` asks for (in
/// the syntax of `RUST_LOG`), or else what matters
/// to an operator.
///
/// # Errors
/// When `LOGCABIN_LOG` cannot be read, or the process has a log already.
pub fn install(format: LogFormat) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let filter = match std::env::var("LOGCABIN_LOG") {
        Ok(directives) => EnvFilter::try_new(&directives)
            .map_err(|error| format!("environment variable LOGCABIN_LOG: {error}"))?,
        Err(_) => EnvFilter::new(DEFAULT_FILTER),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Human => {
            builder.with_ansi(io::stderr().is_terminal()).with_target(false).try_init()
        }
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .try_init(),
    }
}
