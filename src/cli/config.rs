//! `logcabin config`: the effective configuration.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

/// Print the effective configuration, with every setting documented
///
/// The output is a TOML file for `--config`: keep what you change and delete the rest. Values that
/// are not the default are marked with their source.
#[derive(Debug, clap::Args)]
pub(super) struct Print {
    #[command(flatten)]
    settings: super::Settings,
}

impl Print {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let text = self.settings.load()?.to_toml();
        match io::stdout().lock().write_all(text.as_bytes()) {
            // The reader has seen enough (`logcabin config | head`).
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            other => other?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
