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
    /// Print nothing, and exit with 0 if a setting names the server, 1 if none does, or 255 if the
    /// configuration is invalid
    ///
    /// For ExecCondition= of systemd: a server that was started without a name is `localhost` for
    /// ever.
    #[arg(long)]
    require_name: bool,

    #[command(flatten)]
    settings: super::Settings,
}

impl Print {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        if self.require_name {
            return Ok(self.named());
        }
        let text = self.settings.load()?.to_toml();
        match io::stdout().lock().write_all(text.as_bytes()) {
            // The reader has seen enough (`logcabin config | head`).
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            other => other?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn named(&self) -> ExitCode {
        let (code, complaint) = match self.settings.load() {
            Ok(effective) if effective.is_set("server", "name") => return ExitCode::SUCCESS,
            Ok(_) => (1, UNNAMED.to_owned()),
            // systemd takes smaller numbers for reasons to wait, not for failures.
            Err(error) => (255, error.to_string()),
        };
        eprintln!("logcabin: {complaint}");
        ExitCode::from(code)
    }
}

const UNNAMED: &str = "the server has no name yet, and can never change it after its first start: \
                       run `logcabin setup`, or set server.name";

#[cfg(test)]
mod tests {
    use logcabin_config::Effective;

    #[test]
    fn a_name_is_given_even_if_it_is_the_default() {
        let is_named = |text: &str| {
            let effective = Effective::load(Some(("a.toml".into(), text.to_owned())), [], &[]);
            effective.unwrap().is_set("server", "name")
        };
        assert!(is_named("[server]\nname = \"localhost\""));
        assert!(!is_named("[server]\ndata_dir = \"/srv\""));
    }
}
