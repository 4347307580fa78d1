//! `logcabin media`: the uploaded files of a server, running or not.

use std::{fmt::Write as _, process::ExitCode};

use super::{
    act::{ActOptions, Common},
    columns,
};
use logcabin_base::clock::Clock;
use logcabin_ops::{
    admin::media::{
        DeleteMedia, ListMedia, MediaDeleted, MediaOf, MediaStatistics, MediaSummary, MediaUsage,
        ProtectMedia, Protected, PurgeRemoteMedia, QuarantineMedia, Quarantined, RemoteMediaPurged,
    },
    history::{moment::Time, terminal::clean},
};

/// Manage uploaded files: list, quarantine, delete
#[derive(Debug, clap::Args)]
pub(super) struct Media {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List files
    List(List),
    /// Quarantine files: nobody can download them, under any present or later address
    Quarantine(Change),
    /// Release files from quarantine
    Unquarantine(Change),
    /// Delete files permanently
    Delete(Delete),
    /// Delete copies of files of other homeservers, which are fetched again on request
    PurgeRemote(PurgeRemote),
    /// Exempt a file from quarantine
    Protect(One),
    /// End an exemption
    Unprotect(One),
    /// Show how much each user has uploaded
    Users(Users),
}

/// A selection of files.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// The file with this id or mxc:// address, which may be one of another homeserver
    #[arg(value_name = "FILE")]
    file: Option<String>,

    /// All uploads of this user
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// All files to which the events of this room refer, except encrypted ones
    #[arg(long, value_name = "ROOM")]
    room: Option<String>,

    /// All uploads older than this that are not the avatar of a user or a room
    #[arg(long, value_name = "DAYS")]
    older_than: Option<u64>,
}

impl Which {
    /// The selection as it was given.
    fn name(&self) -> String {
        let named = self.file.as_ref().or(self.user.as_ref()).or(self.room.as_ref());
        let days = || self.older_than.map(|days| days.to_string());
        named.cloned().or_else(days).unwrap_or_default()
    }

    fn of(self) -> Result<MediaOf, Failure> {
        let file = self.file.map(MediaOf::Id);
        let old = self.older_than.map(|days| {
            let before_ms = days_ago(days);
            MediaOf::Before { before_ms, larger_than: 0, pictures: false }
        });
        let of = file
            .or_else(|| self.user.map(MediaOf::User))
            .or_else(|| self.room.map(MediaOf::Room))
            .or(old);
        of.ok_or_else(|| "which files?".into())
    }
}

fn days_ago(days: u64) -> u64 {
    Clock::system().now_ms().saturating_sub(days.saturating_mul(24 * 60 * 60 * 1000))
}

#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Change {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    options: ActOptions,
}

/// Delete files permanently: from the store, with their addresses
#[derive(Debug, clap::Args)]
struct Delete {
    #[command(flatten)]
    which: Which,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    options: ActOptions,
}

#[derive(Debug, clap::Args)]
struct PurgeRemote {
    /// Only copies that were not used for more than DAYS
    #[arg(long, value_name = "DAYS", default_value_t = 0)]
    unused_for: u64,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct One {
    /// The file's id or mxc:// address
    #[arg(value_name = "FILE")]
    file: String,

    #[command(flatten)]
    options: ActOptions,
}

#[derive(Debug, clap::Args)]
struct Users {
    #[command(flatten)]
    common: Common,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Media {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let quarantine = |change: Change, quarantined| {
            let of = change.which.of()?;
            change.options.run(QuarantineMedia { of, quarantined }, quarantined_text)
        };
        let protect = |one: One, protected| {
            one.options.run(ProtectMedia { media: one.file, protected }, protected_text)
        };
        match self.command {
            Command::List(List { which, common }) => {
                common.run(ListMedia { of: which.of()? }, |found| list(&found.media))
            }
            Command::Delete(Delete { which, yes, options }) => {
                let name = which.name();
                let of = which.of()?;
                options.run_if_meant(
                    DeleteMedia { of },
                    yes,
                    &name,
                    |MediaDeleted { media_ids, remote }| {
                        format!("{} file(s) were removed.\n", media_ids.len() + remote.len())
                    },
                )
            }
            Command::PurgeRemote(PurgeRemote { unused_for, common }) => {
                let before_ms = days_ago(unused_for);
                common.run(PurgeRemoteMedia { before_ms }, |RemoteMediaPurged { deleted }| {
                    format!("Copies of {deleted} file(s) were deleted.\n")
                })
            }
            Command::Quarantine(change) => quarantine(change, true),
            Command::Unquarantine(change) => quarantine(change, false),
            Command::Protect(one) => protect(one, true),
            Command::Unprotect(one) => protect(one, false),
            Command::Users(Users { common }) => {
                common.run(MediaStatistics {}, |all| usage(&all.users))
            }
        }
    }
}

fn quarantined_text(Quarantined { media_ids, remote, quarantined }: &Quarantined) -> String {
    let can = if *quarantined { "cannot be downloaded any more" } else { "can be downloaded" };
    format!("{} file(s) {can}.\n", media_ids.len() + remote.len())
}

fn protected_text(Protected { media_id, protected, changed }: &Protected) -> String {
    let is = if *protected { "is exempt" } else { "is not exempt" };
    let when = if *changed { "now" } else { "already" };
    format!("{media_id} {is} from quarantine {when}.\n")
}

fn list(media: &[MediaSummary]) -> String {
    let row = |file: &MediaSummary| {
        let status = match (&file.quarantined_by, file.safe_from_quarantine) {
            (Some(by), _) => format!("in quarantine, by {by}"),
            (None, true) => "exempt from quarantine".to_owned(),
            (None, false) => String::new(),
        };
        [
            file.address.as_ref().map_or_else(|| file.media_id.clone(), ToString::to_string),
            file.user_id.as_ref().map_or_else(|| "server".to_owned(), ToString::to_string),
            format!("{} bytes", file.media_length),
            clean(file.media_type.as_deref().unwrap_or("-")),
            clean(file.upload_name.as_deref().unwrap_or("-")),
            Time(file.created_ts).to_second() + " UTC",
            clean(&status),
        ]
    };
    let mut text = columns(&media.iter().map(row).collect::<Vec<_>>());
    let _ = writeln!(text, "{} file(s)", media.len());
    text
}

fn usage(users: &[MediaUsage]) -> String {
    let row = |of: &MediaUsage| {
        let count = format!("{} file(s)", of.media_count);
        [of.user_id.to_string(), count, format!("{} bytes", of.media_length)]
    };
    columns(&users.iter().map(row).collect::<Vec<_>>())
}
