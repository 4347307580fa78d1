//! `logcabin endpoints`: the endpoints of the server.

use std::{fmt::Write as _, process::ExitCode};

use serde_json::json;

use logcabin_edge::{api, http::Access};

/// List every endpoint, for the rules of a reverse proxy
///
/// Each line has the method, the path, the access token ("none", "optional", "required", or that of
/// an "appservice", or "server" for requests that homeservers sign), and whether rate limits apply
/// ("limited" or "unlimited").
#[derive(Debug, clap::Args)]
pub(super) struct Endpoints {
    /// Print one JSON object on each line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    settings: super::Settings,
}

impl Endpoints {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let mut text = String::new();
        for served in api::endpoints(&self.settings.load()?.config.server.prefixes).list() {
            let access = match served.access {
                Access::None | Access::Login | Access::AsOf => "none",
                Access::Optional => "optional",
                Access::Required => "required",
                Access::Appservice => "appservice",
                Access::AppserviceOptional => "appservice-optional",
                Access::Server => "server",
            };
            if self.json {
                let line = json!({
                    "method": served.method.as_str(),
                    "path": served.path,
                    "access": access,
                    "limited": served.class.is_some(),
                });
                let _ = writeln!(text, "{line}");
                continue;
            }
            let limited = if served.class.is_some() { "limited" } else { "unlimited" };
            let _ = writeln!(text, "{} {} {access} {limited}", served.method, served.path);
        }
        super::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
