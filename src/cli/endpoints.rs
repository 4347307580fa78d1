//! `logcabin endpoints`: what the server would serve.

use std::{fmt::Write as _, process::ExitCode};

use crate::edge::{api, http::Access};

/// List every endpoint: method and path
///
/// One on a line, for what a proxy in front lets through, and what it counts: the method, the path,
/// whether an access token is needed ("none" is looked at, is "optional", "required", or an
/// "appservice"'s is), and whether the endpoint is "limited" in rate or "unlimited".
#[derive(Debug, clap::Args)]
pub(super) struct Endpoints {
    #[command(flatten)]
    settings: super::Settings,
}

impl Endpoints {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let mut text = String::new();
        for served in api::endpoints(&self.settings.load()?.config).list() {
            let access = match served.access {
                Access::None | Access::AsOf => "none",
                Access::Optional => "optional",
                Access::Required => "required",
                Access::Appservice => "appservice",
                Access::AppserviceOptional => "appservice-optional",
            };
            let limited = if served.class.is_some() { "limited" } else { "unlimited" };
            let _ = writeln!(text, "{} {} {access} {limited}", served.method, served.path);
        }
        super::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
