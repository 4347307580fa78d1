//! `logcabin du`: storage use.

use std::process::ExitCode;

use logcabin_ops::history::{Directories, Layout, Output, Question, Source, run};

/// Show what uses how much space: by kind, room, user and day, and on disk
///
/// Reads every record of a stopped server, or of a running one through its admin socket.
#[derive(Debug, clap::Args)]
pub(super) struct Du {
    #[command(flatten)]
    pub(super) at: super::DataDirOrDir,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

impl Du {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let config = self.at.load()?;
        let source = Source::open(&config.server.data_dir.to_string_lossy())?;
        let mut text = Vec::new();
        let mut out = if self.json {
            Output::for_programs(&mut text)
        } else {
            Output::for_people(&mut text, Layout::of_stdout())
        };
        let directories = Some(Directories::configured(&config));
        run(&source, &Question::Usage { directories }, &mut out)?;
        super::print(&String::from_utf8_lossy(&text))?;
        Ok(ExitCode::SUCCESS)
    }
}
