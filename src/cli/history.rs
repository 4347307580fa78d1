//! `logcabin history`: the command line of [`ops::history`](logcabin_ops::history).

use std::{
    ffi::OsString,
    io::{self, BufWriter},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, Subcommand};

use logcabin_ops::history::{
    HistoryError, Layout, Moment, Output, Question, Source, TailFilter, Target,
    audit::{AuditOptions, SyncParameters},
    diff::Scope,
    run,
    select::Kinds,
    why::{FORMS, Subject},
};
use logcabin_read::view::token::Token;
use logcabin_record::Offset;

/// Turns the `--data-dir DIR` of a history command into its first argument, SOURCE.
pub(super) fn with_source(mut line: Vec<OsString>) -> Vec<OsString> {
    const FLAG: &str = "--data-dir";
    if line.get(1).is_none_or(|command| command != "history") {
        return line;
    }
    let joined = |argument: &OsString| {
        argument.to_str()?.strip_prefix(FLAG)?.strip_prefix('=').map(OsString::from)
    };
    let source = match line.iter().position(|argument| argument == FLAG) {
        Some(at) if at + 1 < line.len() => line.drain(at..at + 2).next_back(),
        Some(_) => None,
        None => line.iter().position(|argument| joined(argument).is_some()).and_then(|at| {
            let argument = line.remove(at);
            joined(&argument)
        }),
    };
    let is_command = |argument: &OsString| !argument.to_string_lossy().starts_with('-');
    let command = line.iter().skip(2).position(is_command);
    if let (Some(source), Some(command)) = (source, command) {
        line.insert(2 + command + 1, source);
    }
    line
}

/// Inspect a log, now or as of any moment
///
/// SOURCE is a data directory (of a stopped or a running server), a directory of archive segments,
/// or `unix:PATH`, the admin socket of a running server. `--data-dir SOURCE` is the same.
///
/// ROOM is a room id, an alias, a prefix of one, or a room's name.
///
/// A TIME is 2026-03-01T14:00:00+01:00, or "2026-03-01 14:00:30" in UTC, or -10m (s, m, h, d, w)
/// for ten minutes ago.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
pub struct History {
    /// Print JSON: one object per line for lists, otherwise a single object
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct At {
    /// Answer as of this moment instead of now
    #[arg(long, value_name = "OFFSET|TIME", allow_hyphen_values = true)]
    at: Option<Moment>,
}

impl At {
    fn of(self, what: Target) -> Question {
        Question::AsOf { what, at: self.at }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Follow the records as they are written
    Tail {
        source: String,
        /// Start with the last N records
        #[arg(short, value_name = "N", default_value_t = 10)]
        n: usize,
        /// Keep following new records (the default)
        #[arg(long, overrides_with = "no_follow")]
        follow: bool,
        /// Stop at the end of the log
        #[arg(long)]
        no_follow: bool,
        /// Only the records of this room
        #[arg(long)]
        room: Option<String>,
        /// Only the records that this user caused or that concern the user
        #[arg(long)]
        user: Option<String>,
        /// Only records of these kinds, for example `room.event,user.*`
        #[arg(long, value_name = "KINDS", default_value = "", hide_default_value = true)]
        kind: Kinds,
    },
    /// Show one record: header, origin, chain, payload
    Show { source: String, offset: u64 },
    /// List rooms
    Rooms {
        source: String,
        #[command(flatten)]
        at: At,
    },
    /// Show the events of a room
    Room {
        source: String,
        room: String,
        /// Only the last N events
        #[arg(short, value_name = "N")]
        n: Option<usize>,
        #[command(flatten)]
        at: At,
    },
    /// Show the state of a room
    State {
        source: String,
        room: String,
        #[command(flatten)]
        at: At,
    },
    /// List the current and former members of a room
    Members {
        source: String,
        room: String,
        #[command(flatten)]
        at: At,
    },
    /// List users
    Users {
        source: String,
        #[command(flatten)]
        at: At,
    },
    /// Show an account: rights, profile, devices, rooms, addresses, pushers
    User {
        source: String,
        user: String,
        #[command(flatten)]
        at: At,
    },
    /// List the devices of a user, or of all
    Devices {
        source: String,
        user: Option<String>,
        #[command(flatten)]
        at: At,
    },
    /// List the aliases of a room, or of all
    Aliases {
        source: String,
        room: Option<String>,
        #[command(flatten)]
        at: At,
    },
    /// List the pushers of a user, or of all
    Pushers {
        source: String,
        user: Option<String>,
        #[command(flatten)]
        at: At,
    },
    /// List the files that a user uploaded, or all
    Media {
        source: String,
        user: Option<String>,
        #[command(flatten)]
        at: At,
    },
    /// List registration tokens
    RegistrationTokens {
        source: String,
        #[command(flatten)]
        at: At,
    },
    /// List reports of events, rooms and users
    Reports {
        source: String,
        #[command(flatten)]
        at: At,
    },
    /// Count what the log contains
    Stats {
        source: String,
        #[command(flatten)]
        at: At,
    },
    /// Summarize what happened between two moments: how much was written, and which facts changed
    Diff {
        source: String,
        /// The first moment
        #[arg(value_name = "OFFSET|TIME", allow_hyphen_values = true)]
        a: Moment,
        /// The second moment
        #[arg(value_name = "OFFSET|TIME", allow_hyphen_values = true)]
        b: Moment,
        /// Only in this room
        #[arg(long, conflicts_with = "user")]
        room: Option<String>,
        /// Only for this user
        #[arg(long)]
        user: Option<String>,
    },
    /// Explain a value: the records that set it, who wrote them and when
    #[command(after_help = format!("WHAT is one of\n{FORMS}"))]
    Why {
        source: String,
        #[arg(value_name = "WHAT", required = true)]
        what: Vec<String>,
        #[command(flatten)]
        at: At,
    },
    /// Show what uses how much space: by kind, room, user and day, in memory and on disk
    Du { source: String },
    /// Verify chain, payloads, commands and replay; exits with 1 on a fault
    Verify { source: String },
    /// Check sync responses against the log; exits with 1 if anything is wrong
    ///
    /// A client is followed through the whole log, in steps: each answer that this version of the
    /// server gives is compared with what the records alone say the user should have been told.
    /// With `--answer`, the answer that a client received is checked instead.
    AuditSync {
        source: String,
        /// User id, or its part before the colon
        user: String,
        /// The client's first position: a `since` token
        #[arg(long, value_name = "TOKEN")]
        since: Option<Token>,
        /// A file with the JSON of a /sync response that a client received, to audit only that
        #[arg(long, value_name = "FILE")]
        answer: Option<PathBuf>,
        /// How many times the client syncs on its way through the log
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
            Self::Tail { source, n, follow: _, no_follow, room, user, kind } => {
                let only = Box::new(TailFilter { room, user, kinds: kind });
                (source, Question::Tail { last: Some(n), follow: !no_follow, only })
            }
            Self::Show { source, offset } => (source, Question::Show(Offset::new(offset))),
            Self::Rooms { source, at } => (source, at.of(Target::Rooms)),
            Self::Room { source, room, n, at } => (source, at.of(Target::Room { room, last: n })),
            Self::State { source, room, at } => (source, at.of(Target::State { room })),
            Self::Members { source, room, at } => (source, at.of(Target::Members { room })),
            Self::Users { source, at } => (source, at.of(Target::Users)),
            Self::User { source, user, at } => (source, at.of(Target::User { user })),
            Self::Devices { source, user, at } => (source, at.of(Target::Devices { user })),
            Self::Aliases { source, room, at } => (source, at.of(Target::Aliases { room })),
            Self::Pushers { source, user, at } => (source, at.of(Target::Pushers { user })),
            Self::Media { source, user, at } => (source, at.of(Target::Media { user })),
            Self::RegistrationTokens { source, at } => (source, at.of(Target::RegistrationTokens)),
            Self::Reports { source, at } => (source, at.of(Target::Reports)),
            Self::Stats { source, at } => (source, at.of(Target::Stats)),
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
            Self::Du { source } => (source, Question::Usage { directories: None }),
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
                let asked = SyncParameters {
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

impl History {
    /// Answers the question. The exit status is 0, or 1 if a check finds a fault, or 2 if the
    /// question cannot be answered.
    #[must_use]
    pub fn run(self) -> ExitCode {
        match answer(self.json, self.command) {
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
        Output::for_people(&mut stdout, Layout::of_stdout())
    };
    run(&source, &question, &mut out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_dir_becomes_the_source() {
        for (line, meant) in [
            ("history stats d", "history stats d"),
            ("history stats --data-dir d", "history stats d"),
            ("history --json --data-dir=d room !r --at 5", "history --json room d !r --at 5"),
            ("history --data-dir d room !r", "history room d !r"),
            ("history stats --data-dir", "history stats --data-dir"),
            ("verify --data-dir d", "verify --data-dir d"),
        ] {
            let words = |line: &str| -> Vec<OsString> {
                std::iter::once("logcabin").chain(line.split(' ')).map(OsString::from).collect()
            };
            assert_eq!(with_source(words(line)), words(meant), "{line}");
        }
    }
}
