//! `logcabin console`: a link to the console.

use std::process::ExitCode;

use super::act::Common;
use logcabin_ops::{
    admin::console::MakeConsoleLink,
    history::{moment::Time, terminal::clean},
};

/// Print a link that logs an administrator in to the console, once
///
/// The link is valid for ten minutes, if `console.enabled` is set. Anyone who has it can
/// administer the server.
#[derive(Debug, clap::Args)]
pub(super) struct Console {
    #[command(flatten)]
    common: Common,

    /// The administrator [default: the only one]
    user: Option<String>,
}

/// The JSON output.
#[derive(serde::Serialize)]
struct Printed {
    user_id: String,
    url: String,
    expires_ms: u64,
}

impl Console {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let link = self.common.perform(MakeConsoleLink { user: self.user.clone() })?;
        let server = link.server.unwrap_or_else(|| {
            eprintln!("the console of this server is off: set `console.enabled`");
            "http://SERVER".to_owned()
        });
        let secret = link.secret.expose();
        let url = format!("{server}/_logcabin/console/login?link={secret}");
        let text = match self.common.json {
            true => {
                let user_id = link.user_id.to_string();
                let printed = Printed { user_id, url, expires_ms: link.expires_ms };
                serde_json::to_string(&printed)? + "\n"
            }
            false => {
                let until = Time(link.expires_ms).to_second();
                format!(
                    "{url}\n\nIt logs in {} once, and expires at {until}Z.\n",
                    clean(link.user_id.as_str())
                )
            }
        };
        super::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
