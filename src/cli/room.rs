//! `logcabin room`: the rooms of a running or stopped server.

use std::{fmt::Write as _, process::ExitCode};

use super::{
    act::{ActOptions, Common},
    columns,
    erasure::PurgeRoom,
};
use logcabin_ops::{
    admin::rooms::{
        BlockRoom, Blocked, Empowered, EventRedacted, JoinRoom, Joined, ListRooms, MakeRoomAdmin,
        NewRoom, RedactEvent, RoomDetails, RoomOrder, RoomSearch, RoomSummary, Rooms, ShowRoom,
        ShutDownRoom, ShutdownStatus, UpgradeRoom, Upgraded,
    },
    history::terminal::clean,
};

/// Manage rooms
///
/// A running server applies changes at once, through the socket in its data directory; if none
/// runs, they are made in the data directory itself. Rooms are named by id or alias. Changes are
/// recorded with your name on this machine.
#[derive(Debug, clap::Args)]
pub(super) struct Room {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(List),
    Show(Show),
    /// Block a room: nobody can join it, knock or be invited until it is unblocked
    Block(Change),
    /// Unblock a room
    Unblock(Change),
    Shutdown(Shutdown),
    Purge(PurgeRoom),
    PurgeHistory(super::history_purge::PurgeHistory),
    /// Give a user the highest power level that a member of the room can grant
    MakeAdmin(OfUser),
    /// Join a user to a room
    Join(OfUser),
    Redact(Redact),
    Upgrade(Upgrade),
}

/// List rooms
#[derive(Debug, clap::Args)]
struct List {
    /// Only rooms with this text in their name, alias or id
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,

    /// Only rooms that the public directory lists (true) or does not list (false)
    #[arg(long, value_name = "BOOL")]
    public: Option<bool>,

    /// Only rooms without members (true) or with members (false)
    #[arg(long, value_name = "BOOL")]
    empty: Option<bool>,

    /// Sort by this
    #[arg(long, value_name = "ORDER", default_value = "name")]
    order: RoomOrder,

    /// Reverse the order
    #[arg(long)]
    reverse: bool,

    /// List at most NUMBER rooms
    #[arg(long, value_name = "NUMBER")]
    limit: Option<usize>,

    #[command(flatten)]
    common: Common,
}

/// Show one room
#[derive(Debug, clap::Args)]
struct Show {
    /// The room
    #[arg(value_name = "ROOM")]
    room: String,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Change {
    /// The room
    #[arg(value_name = "ROOM")]
    room: String,

    #[command(flatten)]
    options: ActOptions,
}

/// Shut a room down: all members leave
///
/// The room leaves the public directory, its aliases are removed, and all members leave. With
/// --new-room-by, members and aliases move to a new room, in which only its creator can send
/// messages. The room's history stays in the log.
#[derive(Debug, clap::Args)]
struct Shutdown {
    /// The room
    #[arg(value_name = "ROOM")]
    room: String,

    /// Also block it, so that nobody can return
    #[arg(long)]
    block: bool,

    /// Purge it at the end, which cannot be undone
    #[arg(long)]
    purge: bool,

    /// Let this user create a new room, which the members join
    #[arg(long, value_name = "USER")]
    new_room_by: Option<String>,

    /// The name of the new room
    #[arg(long, value_name = "TEXT", default_value = "This room was shut down")]
    new_room_name: String,

    /// The message in the new room
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "The room that you were in was shut down by the server's administrators."
    )]
    message: String,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    options: ActOptions,
}

/// Redact an event: its content is removed
///
/// The redaction is sent in the name of the event's sender, if that is a user of this server who is
/// still in the room, or else in the name of a member who may redact it.
#[derive(Debug, clap::Args)]
struct Redact {
    /// The room
    #[arg(value_name = "ROOM")]
    room: String,

    /// The id of the event
    #[arg(value_name = "EVENT")]
    event: String,

    /// Tell the room this reason
    #[arg(long, value_name = "TEXT")]
    say: Option<String>,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    options: ActOptions,
}

/// Replace a room by one of another version, as a member who may do that
#[derive(Debug, clap::Args)]
struct Upgrade {
    #[command(flatten)]
    of: OfUser,

    /// The version of the new room [default: 10]
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
}

#[derive(Debug, clap::Args)]
struct OfUser {
    /// The room
    #[arg(value_name = "ROOM")]
    room: String,

    /// The user
    #[arg(value_name = "USER")]
    user: String,

    #[command(flatten)]
    options: ActOptions,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Room {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            Command::List(list) => list.run(),
            Command::Show(Show { room, common }) => {
                common.run(ShowRoom { room }, |room| details(room))
            }
            Command::Block(Change { room, options }) => {
                options.run(BlockRoom { room, blocked: true }, blocked_text)
            }
            Command::Unblock(Change { room, options }) => {
                options.run(BlockRoom { room, blocked: false }, blocked_text)
            }
            Command::Shutdown(shutdown) => shutdown.run(),
            Command::Purge(purge) => purge.run(),
            Command::PurgeHistory(purge) => purge.run(),
            Command::MakeAdmin(OfUser { room, user, options }) => {
                options.run(MakeRoomAdmin { room, user }, empowered)
            }
            Command::Join(OfUser { room, user, options }) => options
                .run(JoinRoom { user, room }, |Joined { user_id, room_id }| {
                    format!("{user_id} is in {room_id}.\n")
                }),
            Command::Redact(Redact { room, event, say, yes, options }) => {
                let act = RedactEvent { room, event: event.clone(), say };
                options.run_if_meant(act, yes, &event, redacted)
            }
            Command::Upgrade(Upgrade { of: OfUser { room, user, options }, version }) => options
                .run(UpgradeRoom { room, user, version }, |upgraded: &Upgraded| {
                    let Upgraded { room_id, replacement, version, user_id } = upgraded;
                    format!(
                        "{user_id} replaced {room_id} by {replacement}, of version {version}.\n"
                    )
                }),
        }
    }
}

impl List {
    fn run(self) -> Result<ExitCode, Failure> {
        let Self { search, public, empty, order, reverse, limit, common } = self;
        let wanted = RoomSearch { search, public, empty, order, reverse, from: 0, limit };
        let (mut all, mut of) = (Vec::new(), 0);
        loop {
            let from = all.len();
            let left = limit.map(|limit| limit.saturating_sub(from));
            let wanted = RoomSearch { from, limit: left, ..wanted.clone() };
            let Rooms { rooms, total } = common.perform(ListRooms { wanted })?;
            of = total.max(of);
            let is_last = rooms.is_empty();
            all.extend(rooms);
            if is_last || all.len() >= limit.unwrap_or(total).min(total) {
                break;
            }
        }
        let all = Rooms { rooms: all, total: of };
        common.print::<ListRooms>(&all, |Rooms { rooms, total }| list(rooms, *total))
    }
}

impl Shutdown {
    fn run(self) -> Result<ExitCode, Failure> {
        let Self { room, block, purge, new_room_by, new_room_name, message, yes, options } = self;
        let new_room = new_room_by.map(|user| NewRoom { user, name: new_room_name, message });
        let act = ShutDownRoom { room: room.clone(), block, new_room, purge, wait: true };
        options.run_if_meant(act, yes, &room, shut_down)
    }
}

fn blocked_text(Blocked { room_id, blocked, changed }: &Blocked) -> String {
    let is = if *blocked { "is blocked" } else { "is not blocked" };
    format!("{room_id} {is} {}.\n", if *changed { "now" } else { "already" })
}

fn empowered(Empowered { room_id, user_id, by, invited }: &Empowered) -> String {
    let mut text = match by {
        Some(by) => format!("{user_id} now has the power level of {by} in {room_id}.\n"),
        None => format!("{user_id} already has that power level in {room_id}.\n"),
    };
    if *invited {
        let _ = writeln!(text, "{user_id} was invited.");
    }
    text
}

fn redacted(EventRedacted { room_id, event_id, by }: &EventRedacted) -> String {
    match by {
        Some(by) => format!("{by} redacted {event_id} in {room_id}.\n"),
        None => format!("{event_id} in {room_id} is redacted already.\n"),
    }
}

fn shut_down(status: &ShutdownStatus) -> String {
    let ShutdownStatus { room_id, kicked_users, failed_to_kick_users, new_room_id, .. } = status;
    let mut text = format!("Shut down {room_id}, which {} user(s) left.\n", kicked_users.len());
    for alias in &status.local_aliases {
        let _ = writeln!(text, "{alias} no longer points to it.");
    }
    if let Some(new_room_id) = new_room_id {
        let _ = writeln!(text, "The new room is {new_room_id}.");
    }
    for user_id in failed_to_kick_users {
        let _ = writeln!(text, "{user_id} could not be made to leave.");
    }
    text
}

fn list(rooms: &[RoomSummary], total: usize) -> String {
    let rows: Vec<[String; 5]> = rooms
        .iter()
        .map(|room| {
            let name = room.name.as_deref().or(room.canonical_alias.as_deref()).unwrap_or("-");
            [
                room.room_id.to_string(),
                clean(name),
                format!("{} member(s)", room.joined_members),
                format!("{} event(s)", room.events),
                status(room),
            ]
        })
        .collect();
    let mut text = columns(&rows);
    let _ = writeln!(text, "{} of {total} room(s)", rooms.len());
    text
}

fn status(room: &RoomSummary) -> String {
    let words = [
        (room.public, "public"),
        (room.encryption.is_some(), "encrypted"),
        (room.room_type.as_deref() == Some("m.space"), "space"),
        (room.blocked, "blocked"),
    ];
    let words: Vec<_> = words.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
    words.join(", ")
}

fn details(room: &RoomDetails) -> String {
    let summary = &room.summary;
    let text = |text: Option<&str>| clean(text.unwrap_or("-"));
    let aliases: Vec<_> = room.aliases.iter().map(|alias| alias.as_str()).collect();
    let mut said = format!(
        "Room      {}\nName      {}\nTopic     {}\nAliases   {}\nMade by   {}\nVersion   {}\n\
         Members   {}, {} invited\nJoining   {}\nHistory   {}\nEvents    {}, {} of state\nStatus    {}\n",
        summary.room_id,
        text(summary.name.as_deref()),
        text(room.topic.as_deref()),
        if aliases.is_empty() { "-".to_owned() } else { clean(&aliases.join(", ")) },
        text(summary.creator.as_deref()),
        summary.version,
        summary.joined_members,
        room.invited_members,
        text(summary.join_rules.as_deref()),
        text(summary.history_visibility.as_deref()),
        summary.events,
        summary.state_events,
        status(summary),
    );
    for shutdown in &room.shutdowns {
        let is = if shutdown.complete { "was shut down" } else { "is being shut down" };
        let _ = writeln!(said, "It {is}: {} user(s) left.", shutdown.kicked_users.len());
    }
    said
}
