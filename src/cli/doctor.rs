//! `logcabin doctor` and `logcabin status`.

use std::process::ExitCode;

use super::{act::Common, ready};
use logcabin_base::clock::Clock;
use logcabin_ops::{
    admin::doctor::{Examine, ShowStatus},
    doctor::{Report, examine_without_log, render, render_status},
    history::Layout,
};

/// Find out what is wrong, why it matters, and what mends it
///
/// The running server examines itself with its own configuration; of a stopped server, this command
/// examines what can be. It looks at the configuration, files, disks, backups, the log and its
/// archive, and asks DNS, the server's own name, other homeservers, and the mail and TURN servers,
/// for 10 seconds each. Whether other homeservers reach this one is asked of `federation.notaries`.
///
/// Exits with 0 if all is well, 1 with warnings or something that could not be checked, 2 with
/// errors or if nothing could be checked.
#[derive(Debug, clap::Args)]
pub(super) struct Doctor {
    /// Exit with 0 if nothing is wrong but something could not be checked
    #[arg(long)]
    allow_unknown: bool,

    #[command(flatten)]
    common: Common,
}

impl Doctor {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let report = match self.report() {
            Ok(report) => report,
            Err(error) => {
                eprintln!("logcabin: nothing was checked: {error}");
                return Ok(ExitCode::from(2));
            }
        };
        self.common
            .print::<Examine>(&report, |report| render(report, &Layout::of_stdout()))
            .map(|_| ExitCode::from(report.exit_code(self.allow_unknown)))
    }

    fn report(&self) -> Result<Report, Box<dyn std::error::Error + Send + Sync>> {
        let config = self.common.config()?;
        self.common.perform(Examine {}).or_else(|error| {
            // What does not depend on the log can be examined without it.
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            Ok(runtime.block_on(examine_without_log(&config, &error.to_string())))
        })
    }
}

/// Show how the server is, running or stopped, on one screen
#[derive(Debug, clap::Args)]
pub(super) struct Status {
    /// Only ask the running server whether it is ready for requests, at its own `server.bind`:
    /// exits with 0 if it is, else with 1 and the reason
    #[arg(long, conflicts_with = "json")]
    ready: bool,

    #[command(flatten)]
    common: Common,
}

impl Status {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        if self.ready {
            ready::ask(&self.common.config()?)?;
            super::print("The server is ready.\n")?;
            return Ok(ExitCode::SUCCESS);
        }
        let now_ms = Clock::system().now_ms();
        self.common.run(ShowStatus {}, |of| render_status(of, now_ms, &Layout::of_stdout()))
    }
}
