//! Looks into a log: `cargo run --example history -- COMMAND SOURCE`, for example `stats ./data`.
//!
//! This is only the command line; the work is done in [`logcabin::history`].

use std::{
    io::{self, BufWriter},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};
use logcabin::{
    history::{
        HistoryError, Look, Moment, Output, Question, Source, What,
        audit::{Asked, AuditOptions},
        diff::Scope,
        run,
        why::{FORMS, Subject},
    },
    record::Offset,
    view::token::Token,
};

/// Look into a Logcabin log.
///
/// SOURCE is a data directory (of a stopped or a running server), a directory of archive segments,
/// or `unix:PATH`, the admin socket of a running server.
///
/// ROOM is a room id, an alias, the beginning of one, or a room's name.
///
/// A TIME is 2026-03-01T14:00:00+01:00, or "2026-03-01 14:00[:30]" in UTC, or -10m (s, m, h, d, w)
/// for ten minutes ago.
#[derive(Debug, Parser)]
#[command(name = "history", disable_help_subcommand = true)]
struct Cli {
    /// Write JSON: one object on a line for each item of a list, or one object as the whole answer
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct At {
    /// As of this moment, and not as of now
    #[arg(long, value_name = "OFFSET|TIME", allow_hyphen_values = true)]
    at: Option<Moment>,
}

impl At {
    fn of(self, what: What) -> Question {
        Question::AsOf { what, at: self.at }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The records as they come
    Tail {
        source: String,
        /// Begin with the last N records
        #[arg(short, value_name = "N", default_value_t = 10)]
        n: usize,
        /// Stop after those that are there
        #[arg(long)]
        no_follow: bool,
    },
    /// One record: header, origin, chain, payload
    Show { source: String, offset: u64 },
    /// All rooms
    Rooms {
        source: String,
        #[command(flatten)]
        at: At,
    },
    /// The events of a room
    Room {
        source: String,
        room: String,
        /// Only the last N events
        #[arg(short, value_name = "N")]
        n: Option<usize>,
        #[command(flatten)]
        at: At,
    },
    /// The state of a room
    State {
        source: String,
        room: String,
        #[command(flatten)]
        at: At,
    },
    /// Who is and was in a room
    Members {
        source: String,
        room: String,
        #[command(flatten)]
        at: At,
    },
    /// All users
    Users {
        source: String,
        #[command(flatten)]
        at: At,
    },
    /// An account: what it may do, profile, devices, rooms, addresses, pushers
    User {
        source: String,
        user: String,
        #[command(flatten)]
        at: At,
    },
    /// The devices of a user, or of all
    Devices {
        source: String,
        user: Option<String>,
        #[command(flatten)]
        at: At,
    },
    /// The aliases of a room, or of all
    Aliases {
        source: String,
        room: Option<String>,
        #[command(flatten)]
        at: At,
    },
    /// The pushers of a user, or of all
    Pushers {
        source: String,
        user: Option<String>,
        #[command(flatten)]
        at: At,
    },
    /// The files that a user uploaded, or anybody did
    Media {
        source: String,
        user: Option<String>,
        #[command(flatten)]
        at: At,
    },
    /// The registration tokens
    RegistrationTokens {
        source: String,
        #[command(flatten)]
        at: At,
    },
    /// What users have reported: events, rooms, users
    Reports {
        source: String,
        #[command(flatten)]
        at: At,
    },
    /// How much of what the log holds
    Stats {
        source: String,
        #[command(flatten)]
        at: At,
    },
    /// What happened between two moments, summed up: how much was written, and what is another than
    /// before
    Diff {
        source: String,
        /// The one moment
        #[arg(value_name = "OFFSET|TIME", allow_hyphen_values = true)]
        a: Moment,
        /// The other
        #[arg(value_name = "OFFSET|TIME", allow_hyphen_values = true)]
        b: Moment,
        /// In this room alone
        #[arg(long, conflicts_with = "user")]
        room: Option<String>,
        /// For this user alone
        #[arg(long)]
        user: Option<String>,
    },
    /// Why a value is what it is: the records that made it so, who wrote them and when
    #[command(after_help = format!("WHAT is one of\n{FORMS}"))]
    Why {
        source: String,
        #[arg(value_name = "WHAT", required = true)]
        what: Vec<String>,
        #[command(flatten)]
        at: At,
    },
    /// What takes how much: by kind, room, user and day, the projections, the files on the disk
    Du { source: String },
    /// Check chain, payloads, commands and replay; exits with 1 on a fault
    Verify { source: String },
    /// Check what sync tells a user against the log; exits with 1 if anything is wrong
    ///
    /// A client is followed through the whole log, in steps: each answer that this version of the
    /// server gives is compared with what the records alone say the user was to be told. Or one
    /// answer that a client got is (`--answer`).
    AuditSync {
        source: String,
        /// User id, or the part of it before the colon
        user: String,
        /// Where the client begins: a `since` token
        #[arg(long, value_name = "TOKEN")]
        since: Option<Token>,
        /// A file with the JSON that /sync gave a client, to audit that alone
        #[arg(long, value_name = "FILE")]
        answer: Option<PathBuf>,
        /// How many times the client asks on its way through the log
        #[arg(long, value_name = "N", default_value_t = 50)]
        steps: u64,
        /// The client loads members lazily
        #[arg(long)]
        lazy: bool,
        /// The client asks with `use_state_after`
        #[arg(long)]
        state_after: bool,
        /// The client asks with `full_state`
        #[arg(long)]
        full_state: bool,
        /// The client's filter has `include_leave`
        #[arg(long)]
        include_leave: bool,
    },
}

impl Command {
    fn into_question(self) -> Result<(String, Question), HistoryError> {
        Ok(match self {
            Self::Tail { source, n, no_follow } => {
                (source, Question::Tail { last: Some(n), follow: !no_follow })
            }
            Self::Show { source, offset } => (source, Question::Show(Offset::new(offset))),
            Self::Rooms { source, at } => (source, at.of(What::Rooms)),
            Self::Room { source, room, n, at } => (source, at.of(What::Room { room, last: n })),
            Self::State { source, room, at } => (source, at.of(What::State { room })),
            Self::Members { source, room, at } => (source, at.of(What::Members { room })),
            Self::Users { source, at } => (source, at.of(What::Users)),
            Self::User { source, user, at } => (source, at.of(What::User { user })),
            Self::Devices { source, user, at } => (source, at.of(What::Devices { user })),
            Self::Aliases { source, room, at } => (source, at.of(What::Aliases { room })),
            Self::Pushers { source, user, at } => (source, at.of(What::Pushers { user })),
            Self::Media { source, user, at } => (source, at.of(What::Media { user })),
            Self::RegistrationTokens { source, at } => (source, at.of(What::RegistrationTokens)),
            Self::Reports { source, at } => (source, at.of(What::Reports)),
            Self::Stats { source, at } => (source, at.of(What::Stats)),
            Self::Diff { source, a, b, room, user } => {
                let of = match (room, user) {
                    (Some(room), _) => Scope::Room(room),
                    (None, Some(user)) => Scope::User(user),
                    (None, None) => Scope::Server,
                };
                (source, Question::Diff { of, from: a, to: b })
            }
            Self::Why { source, what, at: At { at } } => {
                (source, Question::Why { subject: Subject::of_words(&what)?, at })
            }
            Self::Du { source } => (source, Question::Usage),
            Self::Verify { source } => (source, Question::Verify),
            Self::AuditSync {
                source,
                user,
                since,
                answer,
                steps,
                lazy,
                state_after,
                full_state,
                include_leave,
            } => {
                let answer = answer.map(read_json).transpose()?;
                let asked = Asked {
                    since: since.map(|token| token.offset),
                    to: Offset::ZERO,
                    full_state,
                    use_state_after: state_after,
                    lazy_load_members: lazy,
                    include_leave,
                };
                let options = AuditOptions { user, asked, answer, steps };
                (source, Question::AuditSync(Box::new(options)))
            }
        })
    }
}

fn read_json(path: PathBuf) -> Result<serde_json::Value, HistoryError> {
    let read = std::fs::read(&path);
    let parsed = read.and_then(|text| serde_json::from_slice(&text).map_err(io::Error::from));
    parsed.map_err(|source| HistoryError::Input { path, source })
}

fn main() -> ExitCode {
    let Cli { json, command } = Cli::parse();
    match answer(json, command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The reader has seen enough (`history room … | head`).
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("history: {error}");
            ExitCode::from(2)
        }
    }
}

fn answer(json: bool, command: Command) -> Result<bool, HistoryError> {
    let (place, question) = command.into_question()?;
    let source = Source::open(&place)?;
    if let Some(note) = source.note() {
        eprintln!("history: {note}");
    }
    let mut stdout = BufWriter::new(io::stdout().lock());
    let mut out = if json {
        Output::for_programs(&mut stdout)
    } else {
        Output::for_people(&mut stdout, Look::of_stdout())
    };
    run(&source, &question, &mut out)
}
