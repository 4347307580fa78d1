//! `logcabin user redact`.

use std::{fmt::Write as _, process::ExitCode};

use super::act::ActOptions;
use logcabin_base::clock::Clock;
use logcabin_ops::{
    admin::users::{self, RedactionStatus},
    history::moment::{Moment, NoMoment},
};

/// Redact what a user sent
///
/// Removes the content of the user's messages and joins, the latest first, here and on the
/// homeservers that follow redactions. The user may be of any homeserver. It happens in the user's
/// name if they are in the room, or else in the name of the most powerful local member who may. If
/// it is interrupted, it continues when the server starts. This cannot be undone.
#[derive(Debug, clap::Args)]
pub(super) struct RedactUser {
    /// The user
    #[arg(value_name = "USER")]
    user: String,

    /// Only in this room; may be repeated
    #[arg(long, value_name = "ROOM")]
    room: Vec<String>,

    /// Only the latest NUMBER events in each room
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u64>,

    /// Only what was sent from this time on (2026-03-01 14:00, or -2h for two hours ago)
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    since: Option<u64>,

    /// Only what was sent up to this time
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    until: Option<u64>,

    /// Do it in the name of this user of the server where they may
    #[arg(long, value_name = "USER")]
    by: Option<String>,

    /// The reason that the rooms are told
    #[arg(long, value_name = "TEXT")]
    say: Option<String>,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    options: ActOptions,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl RedactUser {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let Self { user, room, limit, since, until, by, say, yes, options } = self;
        let act = users::RedactUser {
            user: user.clone(),
            rooms: room,
            limit,
            after_ms: since,
            before_ms: until,
            by,
            say,
            wait: true,
        };
        options.run_if_meant(act, yes, &user, redacted)
    }
}

/// A time, in milliseconds since the Unix epoch.
pub(super) fn time(text: &str) -> Result<u64, String> {
    match text.parse().map_err(|error: NoMoment| error.to_string())? {
        Moment::Time(ms) => Ok(ms),
        Moment::Ago(ms) => Ok(Clock::system().now_ms().saturating_sub(ms)),
        Moment::At(_) => Err("an offset is not a time".to_owned()),
    }
}

fn redacted(status: &RedactionStatus) -> String {
    let RedactionStatus { user_id, redacted, failures, failed, .. } = status;
    let mut text = format!("Redacted {redacted} event(s) of {user_id}.\n");
    if *failures > 0 {
        let _ = writeln!(text, "{failures} event(s) could not be redacted:");
        for (event_id, why) in failed {
            let _ = writeln!(text, "  {event_id}: {why}");
        }
    }
    text
}
