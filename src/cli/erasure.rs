//! `logcabin erasure`, and the commands that erase: `logcabin room purge`, `logcabin user erase`.

use std::{fmt::Write as _, process::ExitCode};

use super::{
    act::{ActOptions, Common},
    columns,
};
use logcabin_ops::{
    admin::{
        erasures::{ErasureReceipt, ListErasures, ReceiptRow, ShowErasure},
        rooms::{self, RoomPurged},
        users::{self, UserErased},
    },
    history::{
        moment::Time,
        terminal::{bytes, clean, grouped},
    },
};
use logcabin_record::Offset;

/// Show what was erased: when, by whom, why, and where copies remain
#[derive(Debug, clap::Args)]
pub(super) struct Erasure {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(List),
    Show(Show),
}

/// List what caused erasures, newest first
#[derive(Debug, clap::Args)]
struct List {
    /// List at most COUNT of them
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    last: usize,

    #[command(flatten)]
    common: Common,
}

/// Show what was erased because of one record, or by one `log.erase` record
#[derive(Debug, clap::Args)]
struct Show {
    /// The record: a redaction, the purge of a room, …
    #[arg(value_name = "OFFSET")]
    offset: u64,

    #[command(flatten)]
    common: Common,
}

/// Purge a room with its whole history
///
/// The room becomes unreadable at once. The server's next sweep erases its payloads from the log
/// and the archive, and the files to which nothing else refers. This cannot be undone.
#[derive(Debug, clap::Args)]
pub(super) struct PurgeRoom {
    /// The room's id, or an alias of it
    #[arg(value_name = "ROOM")]
    room: String,

    /// Make joined users leave first
    #[arg(long)]
    force: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    options: ActOptions,
}

/// Close an account permanently and erase the user's data
///
/// Removes profile, account data, key backups, addresses, pushers, uploaded files, and the user's
/// name in rooms; with --messages also the messages. The server's next sweep erases the payloads
/// from the log and the archive. This cannot be undone.
#[derive(Debug, clap::Args)]
pub(super) struct EraseUser {
    /// The user
    #[arg(value_name = "USER")]
    user: String,

    /// Also erase the user's messages
    #[arg(long)]
    messages: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    options: ActOptions,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Erasure {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            Command::List(List { last, common }) => {
                common.run(ListErasures { last }, |all| list(&all.rows))
            }
            Command::Show(Show { offset, common }) => {
                common.run(ShowErasure { because: Offset::new(offset) }, |receipt| show(receipt))
            }
        }
    }
}

impl PurgeRoom {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let Self { room, force, yes, options } = self;
        let act = rooms::PurgeRoom { room: room.clone(), force };
        options.run_if_meant(act, yes, &room, purged)
    }
}

impl EraseUser {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let Self { user, messages, yes, options } = self;
        let act = users::EraseUser { user: user.clone(), messages };
        options.run_if_meant(act, yes, &user, erased)
    }
}

fn purged(purged: &RoomPurged) -> String {
    let RoomPurged { room_id, events, left, files, file_bytes, aliases, .. } = purged;
    let mut text =
        format!("Purged {room_id}: {} events, {}.\n", grouped(*events), bytes(purged.bytes));
    if *left > 0 {
        let _ = writeln!(text, "{} user(s) left it.", grouped(*left));
    }
    if !aliases.is_empty() {
        let _ = writeln!(text, "Its aliases were {}.", aliases.join(", "));
    }
    if *files > 0 {
        let files = grouped(*files);
        let _ =
            writeln!(text, "Files that nothing else refers to: {files}, {}.", bytes(*file_bytes));
    }
    text
}

fn erased(erased: &UserErased) -> String {
    let UserErased { user_id, messages, rooms, devices, files, file_bytes, .. } = erased;
    let mut text = format!(
        "Erased {user_id}: {} room(s), {} device(s), {} file(s) of {}{}.\n",
        grouped(*rooms),
        grouped(*devices),
        grouped(*files),
        bytes(*file_bytes),
        if *messages { ", and all that they sent" } else { "" },
    );
    for bound in &erased.still_bound {
        let _ = writeln!(text, "It could not be unbound: {bound}.");
    }
    text
}

fn list(rows: &[ReceiptRow]) -> String {
    if rows.is_empty() {
        return "Nothing has been erased so far.\n".to_owned();
    }
    let rows: Vec<[String; 4]> = rows
        .iter()
        .map(|row| match row.because {
            Offset::ZERO => {
                let count = format!("{} record(s)", grouped(row.records));
                ["-".to_owned(), String::new(), count, "superseded".to_owned()]
            }
            because => [
                because.to_string(),
                Time(row.time_ms).to_second(),
                format!("{} record(s)", grouped(row.records)),
                clean(&format!("{} {}", row.who, row.what)),
            ],
        })
        .collect();
    columns(&rows)
}

fn show(receipt: &ErasureReceipt) -> String {
    let ErasureReceipt { because, time_ms, who, what, kinds, records, waiting, files, .. } =
        receipt;
    let mut text = clean(&format!("{who} {what}"));
    let _ = writeln!(text, "\nrecord {because}, {}", Time(*time_ms));
    for (kind, count) in kinds {
        let _ = writeln!(text, "  {kind}: {}", grouped(*count));
    }
    if *files > 0 {
        let _ = writeln!(text, "  files: {}", grouped(*files));
    }
    let run = |(first, last): &(Offset, Offset)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let runs: Vec<_> = records.iter().map(run).collect();
    let _ = writeln!(
        text,
        "erased: {}",
        if runs.is_empty() { "-".to_owned() } else { runs.join(", ") }
    );
    let carried: Vec<_> = receipt.carried_out.iter().map(ToString::to_string).collect();
    if !carried.is_empty() {
        let _ = writeln!(text, "by: {}", carried.join(", "));
    }
    if *waiting > 0 {
        let _ = writeln!(text, "{} record(s) are not erased yet", grouped(*waiting));
    }
    let gone = |is: bool| if is { "gone" } else { "not yet gone" };
    let _ = writeln!(text, "from the log's files: {}", gone(receipt.off_the_log && *waiting == 0));
    if let Some(off) = receipt.off_the_archive {
        let _ = writeln!(text, "from the archive: {}", gone(off && *waiting == 0));
    }
    for backup in &receipt.backups {
        let _ = writeln!(text, "still in the backup {backup}");
    }
    text
}
