//! Is anything wrong? The checks of `logcabin doctor`, which the console shows too.
//!
//! Each subject has a file: it gathers facts, and judges them in a function without I/O. A check
//! that cannot be made says so and why ([`Level::Unknown`]): what only a running server knows, on a
//! stopped one, and whether others reach this server, without another one that was asked. Nothing
//! is ever well merely because nobody looked.

mod backups;
mod calls;
mod clock;
mod configuration;
mod descriptors;
mod destinations;
mod disk;
mod files;
mod finding;
mod https;
mod log;
mod names;
mod outsiders;
mod reach;
mod render;
mod services;
mod status;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::timeout;

use crate::{admin::context::ActContext, former};
pub use finding::{Finding, Level, Report};
pub use render::{render, render_status};
pub use status::{ArchiveState, FederationState, LastBackup, ServerStatus, status};

use finding::{failing, unknown};
use logcabin_base::{
    background::at_length,
    bodies::BodyBudget,
    clock::{Clock, millis},
    limits,
};
use logcabin_config::Config;
use logcabin_log::LocalLog;
use logcabin_outside::{outbound::Outbound, pushers::Pushers};
use logcabin_service::observe::Archive;

/// What only a running server knows.
pub struct Running {
    /// Since when it runs, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// The log on this machine.
    pub log: Arc<dyn LocalLog>,
    /// How far the archive is, if there is one.
    pub archive: Option<Archive>,
    pub pushers: Arc<Pushers>,
}

/// Examines the server, once at a time.
pub struct Doctor {
    config: Config,
    running: Option<Running>,
    /// What was found last.
    last: Mutex<Option<Report>>,
    /// What was found last without asking others.
    glance: Mutex<Option<Report>>,
    /// Held while it is examined.
    turn: tokio::sync::Mutex<()>,
}

impl Doctor {
    /// For a server with this configuration; one that is stopped if `running` is none.
    pub fn new(config: Config, running: Option<Running>) -> Self {
        let (last, glance) = (Mutex::default(), Mutex::default());
        Self { config, running, last, glance, turn: tokio::sync::Mutex::default() }
    }

    /// Since when the server runs, in milliseconds since the Unix epoch; none if it is stopped.
    pub fn since_ms(&self) -> Option<u64> {
        self.running.as_ref().map(|running| running.since_ms)
    }

    /// What was found last; none if the server has not been examined since its start.
    pub fn last_report(&self) -> Option<Report> {
        self.last.lock().clone()
    }

    /// Whether the server is being examined.
    pub fn is_at_work(&self) -> bool {
        self.turn.try_lock().is_err()
    }
}

/// What the checks look at.
struct Subject<'a> {
    config: &'a Config,
    /// The log and its projections, or why they cannot be looked at.
    context: Result<&'a ActContext, &'a str>,
    running: Option<&'a Running>,
    now_ms: u64,
}

/// Why something is not known of a stopped server.
const STOPPED: &str = "the server does not run";

impl<'a> Subject<'a> {
    /// The server of this context, at this time in milliseconds since the Unix epoch.
    fn of(context: &'a ActContext, now_ms: u64) -> Self {
        let Doctor { config, running, .. } = &context.doctor;
        Self { config, context: Ok(context), running: running.as_ref(), now_ms }
    }

    fn running(&self) -> Result<&'a Running, &'static str> {
        self.running.ok_or(STOPPED)
    }
}

/// Examines the server: asks other servers, and takes some seconds. Two examinations do not run at
/// the same time: with `again_after`, what another one found within this time is good enough.
pub async fn examine(context: &ActContext, again_after: Option<Duration>) -> Report {
    let doctor = &context.doctor;
    let _turn = doctor.turn.lock().await;
    let now_ms = context.engine.clock().now_ms();
    if let Some(again) = again_after
        && let Some(last) = doctor.last_report()
        && last.is_newer(now_ms, millis(again))
    {
        return last;
    }
    let subject = Subject::of(context, now_ms);
    let report = Box::pin(run(&subject)).await;
    *doctor.last.lock() = Some(report.clone());
    report
}

/// What can be examined without asking others. It is at most a minute old, but for the log, which
/// is looked at each time. Checks that a whole examination makes as well have the same names.
pub fn glance(context: &ActContext) -> Report {
    let doctor = &context.doctor;
    let now_ms = context.engine.clock().now_ms();
    let subject = Subject::of(context, now_ms);
    let mut last = doctor.glance.lock();
    let recent = last.take().filter(|last| last.is_newer(now_ms, millis(limits::DOCTOR_AGAIN)));
    let recent =
        recent.unwrap_or_else(|| Report::of(here(&subject), now_ms, subject.running.is_some()));
    *last = Some(recent.clone());
    drop(last);
    let findings = recent.findings.into_iter().chain(log::findings(&subject)).collect();
    Report::of(findings, recent.checked_ms, recent.running)
}

/// Examines what can be examined without the log.
pub async fn examine_without_log(config: &Config, reason: &str) -> Report {
    let now_ms = Clock::system().now_ms();
    let config = &match former::is_for_rehearsals(&config.server.data_dir) {
        true => config.clone().for_rehearsal(),
        false => config.clone(),
    };
    Box::pin(run(&Subject { config, context: Err(reason), running: None, now_ms })).await
}

async fn run(of: &Subject<'_>) -> Report {
    let mut findings = vec![server(of)];
    at_length(|| {
        findings.extend(here(of));
        findings.extend(log::findings(of));
    });
    if of.config.outbound.rehearsal {
        findings.push(rehearsal());
        return Report::of(findings, of.now_ms, of.running.is_some());
    }
    let (outside, https, services) = tokio::join!(
        Box::pin(reach::findings(of)),
        Box::pin(https::findings(of)),
        Box::pin(services::findings(of)),
    );
    findings.extend(outside);
    findings.extend(https);
    findings.extend(services);
    Report::of(findings, of.now_ms, of.running.is_some())
}

/// What is found on this machine, but for the state of the log.
fn here(of: &Subject<'_>) -> Vec<Finding> {
    let checks = [
        configuration::findings,
        files::findings,
        descriptors::findings,
        disk::findings,
        backups::findings,
        destinations::findings,
    ];
    checks.iter().flat_map(|findings| findings(of)).collect()
}

/// Whether the server runs, and can be asked.
fn server(of: &Subject<'_>) -> Finding {
    let data_dir = of.config.server.data_dir.display();
    match (of.running, of.context) {
        (Some(_), _) => {
            let what = format!("The server runs, as process {}.", std::process::id());
            Finding::ok("server", what)
        }
        (None, Ok(_)) => Finding::new(
            "server",
            Level::Warning,
            format!("No server runs on {data_dir}."),
            "Nobody can use it, and most of what may be wrong shows only while it runs.",
            "logcabin serve, or systemctl start logcabin",
        ),
        (None, Err(reason)) => Finding::new(
            "server",
            Level::Error,
            format!("The log in {data_dir} cannot be looked at: {reason}"),
            "What is in the log, and how the server does, is not known.",
            "Give the configuration of the server with --config or its directory with --data-dir, \
             and run this as the user of the server.",
        ),
    }
}

/// In a rehearsal, nobody is asked.
fn rehearsal() -> Finding {
    Finding::new(
        "rehearsal",
        Level::Warning,
        "This is a rehearsal: nothing leaves the server.",
        "No notification, mail or message to another server is sent, and what depends on others was \
         not checked.",
        "Start the server that is meant to be used, without --rehearsal, on its own data directory.",
    )
}

/// Limits the time of something that waits for others.
async fn in_time<T, E: ToString>(work: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match timeout(limits::DOCTOR_TIME, work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} s", limits::DOCTOR_TIME.as_secs())),
    }
}

/// A client for the examination. For addresses of the internet alone, unless `anywhere`: only the
/// configuration, and no document from outside, may lead to addresses of this network.
fn outbound(config: &Config, anywhere: bool) -> Result<Outbound, String> {
    let bodies = BodyBudget::new(config.body_shares());
    let client = match anywhere {
        true => Outbound::new(&config.outbound, &bodies),
        false => {
            let allowed = &config.federation.allowed_networks;
            Outbound::public_only(&config.outbound, &bodies, allowed)
        }
    };
    client.map_err(|error| error.to_string())
}
