//! `logcabin completions` and `logcabin man`: what packages install beside the program.

use std::{fs, path::PathBuf, process::ExitCode};

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Cli;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Print the completions of all commands for a shell
///
/// For example: logcabin completions bash > ~/.local/share/bash-completion/completions/logcabin
#[derive(Debug, clap::Args)]
pub(super) struct Completions {
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        super::print(&self.text())?;
        Ok(ExitCode::SUCCESS)
    }

    fn text(&self) -> String {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "logcabin", &mut script);
        String::from_utf8_lossy(&script).into_owned()
    }
}

/// Write the manual pages of all commands
///
/// The page of `logcabin user create` is logcabin-user-create.1.
#[derive(Debug, clap::Args)]
pub(super) struct Man {
    /// The directory of the pages; created if it is missing
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

impl Man {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        fs::create_dir_all(&self.dir)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), &self.dir))
            .map_err(|error| format!("{}: {error}", self.dir.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_know_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = Completions { shell }.text();
            assert!(script.contains("verify-backup"), "{shell}: {script}");
        }
    }

    #[test]
    fn each_command_has_a_manual_page() {
        let directory = tempfile::TempDir::new().unwrap();
        let dir = directory.path().join("new");
        Man { dir: dir.clone() }.run().unwrap();
        for name in ["logcabin", "logcabin-serve", "logcabin-user-create"] {
            let page = fs::read_to_string(dir.join(name).with_extension("1")).unwrap();
            assert!(page.contains(".SH NAME"), "{name}: {page}");
        }
    }
}
