//! `logcabin room purge-history`.

use std::process::ExitCode;

use super::{act::ActOptions, redaction::time};
use logcabin_ops::admin::rooms::{self, HistoryPurgeStatus};

/// Purge a room's history up to an event or a time
///
/// Removes messages from the room and erases them from the log, the archive and, in time, the disk.
/// State stays: names, members and power levels. Other homeservers keep what they have. If it is
/// interrupted, it continues when the server starts. This cannot be undone.
#[derive(Debug, clap::Args)]
#[group(id = "until", required = true, multiple = false, args = ["event", "before", "days"])]
pub(super) struct PurgeHistory {
    /// The room
    #[arg(value_name = "ROOM")]
    room: String,

    /// What was sent before this event
    #[arg(long, value_name = "EVENT")]
    event: Option<String>,

    /// What was sent until this time (2026-03-01 14:00, or -30d for thirty days ago)
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    before: Option<u64>,

    /// What is older than this many days
    #[arg(long, value_name = "NUMBER")]
    days: Option<u64>,

    /// Keep what users of this server sent
    #[arg(long)]
    keep_local: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    options: ActOptions,
}

impl PurgeHistory {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let Self { room, event, before, days, keep_local, yes, options } = self;
        let act = rooms::PurgeHistory {
            room: room.clone(),
            event,
            before_ms: before,
            days,
            keep_local,
            wait: true,
        };
        options.run_if_meant(act, yes, &room, |status| {
            let HistoryPurgeStatus { room_id, removed, .. } = status;
            format!("Removed {removed} message(s) from {room_id}.\n")
        })
    }
}
