//! `logcabin user kick`, `ban` and `unban`, `reject-invites`, and `clean-up`.

use std::{fmt::Write as _, process::ExitCode};

use super::act::ActOptions;
use logcabin_ops::{
    admin::users::{self, AccountStep, ChangeOf, CleanedUp, InvitesRejected, MemberChanged},
    history::terminal::clean,
};

/// The arguments of `kick`, `ban` and `unban`.
#[derive(Debug, clap::Args)]
pub(super) struct ChangeMember {
    /// The user, of this homeserver or another
    #[arg(value_name = "USER")]
    user: String,

    /// Only in this room; may be repeated
    #[arg(long, value_name = "ROOM")]
    room: Vec<String>,

    /// Do it in the name of this user of the server where they may
    #[arg(long, value_name = "USER")]
    by: Option<String>,

    /// The reason that the rooms are told
    #[arg(long, value_name = "TEXT")]
    say: Option<String>,

    /// With a kick or a ban: redact what they sent since they joined
    #[arg(long)]
    redact: bool,

    #[command(flatten)]
    options: ActOptions,
}

/// Reject invites that wait for users of this server
///
/// Rejects those to one user, from one user, or from one homeserver, in the name of those who are
/// invited. With several of the options, all have to fit.
#[derive(Debug, clap::Args)]
#[group(id = "which", required = true, multiple = true, args = ["to", "from", "from_server"])]
pub(super) struct RejectInvites {
    /// Invites to this user
    #[arg(long, value_name = "USER")]
    to: Option<String>,

    /// Invites from this user
    #[arg(long, value_name = "USER")]
    from: Option<String>,

    /// Invites from users of this homeserver
    #[arg(long, value_name = "NAME")]
    from_server: Option<String>,

    #[command(flatten)]
    options: ActOptions,
}

/// Stop a user and clean up after them
///
/// Suspends the account, bans the user from the rooms that they are in, rejects the invites that
/// they sent, redacts what they sent, quarantines what they uploaded, and closes the reports about
/// them. The user may be of any homeserver. Redacting cannot be undone.
#[derive(Debug, clap::Args)]
pub(super) struct CleanUp {
    /// The user
    #[arg(value_name = "USER")]
    user: String,

    /// Lock the account instead of suspending it
    #[arg(long)]
    lock: bool,

    /// Leave the account as it is
    #[arg(long, conflicts_with = "lock")]
    keep_account: bool,

    /// Leave these steps out: ban, invites, redact, files, reports
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    without: Vec<WithoutStep>,

    /// The reason that rooms are told
    #[arg(long, value_name = "TEXT")]
    say: Option<String>,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    options: ActOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WithoutStep {
    Ban,
    Invites,
    Redact,
    Files,
    Reports,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl ChangeMember {
    pub(super) fn run(self, change: ChangeOf) -> Result<ExitCode, Failure> {
        let Self { user, room: rooms, by, say, redact, options } = self;
        let act = users::ChangeMember { user, change, rooms, by, say, redact };
        options.run(act, |done| changed(change, done))
    }
}

impl RejectInvites {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let Self { to, from, from_server, options } = self;
        let act = users::RejectInvites { to, from, from_server };
        options.run(act, |InvitesRejected { rejected, failures }| {
            let mut text = format!("Rejected {rejected} invite(s).\n");
            if *failures > 0 {
                let _ = writeln!(text, "{failures} could not be rejected: see the server's log.");
            }
            text
        })
    }
}

impl CleanUp {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let with = |step| !self.without.contains(&step);
        let account = match (self.lock, self.keep_account) {
            (true, _) => AccountStep::Lock,
            (false, true) => AccountStep::Keep,
            (false, false) => AccountStep::Suspend,
        };
        let act = users::CleanUp {
            user: self.user.clone(),
            account,
            ban: with(WithoutStep::Ban),
            reject_invites: with(WithoutStep::Invites),
            redact: with(WithoutStep::Redact),
            quarantine: with(WithoutStep::Files),
            close_reports: with(WithoutStep::Reports),
            say: self.say,
        };
        self.options.run_if_meant(act, self.yes, &self.user, cleaned_up)
    }
}

fn cleaned_up(CleanedUp { user_id, done, failed }: &CleanedUp) -> String {
    let mut text = format!("Cleaned up after {user_id}:\n");
    for done in done {
        let _ = writeln!(text, "- {}", clean(done));
    }
    if !failed.is_empty() {
        text += "This could not be done:\n";
        for why in failed {
            let _ = writeln!(text, "- {}", clean(why));
        }
    }
    text
}

fn changed(change: ChangeOf, done: &MemberChanged) -> String {
    let MemberChanged { user_id, rooms, failures, failed } = done;
    let what = match change {
        ChangeOf::Kick => "Kicked",
        ChangeOf::Ban => "Banned",
        ChangeOf::Unban => "Ended the bans of",
    };
    let mut text = format!("{what} {user_id} in {} room(s).\n", rooms.len());
    for (room_id, by) in rooms {
        let _ = writeln!(text, "  {room_id} in the name of {by}");
    }
    if *failures > 0 {
        let _ = writeln!(text, "It could not be done in {failures} room(s):");
        for (room_id, why) in failed {
            let _ = writeln!(text, "  {room_id}: {}", clean(why));
        }
    }
    text
}
