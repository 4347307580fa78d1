//! `logcabin user approve` and `refuse`, and the list of waiting registrations.

use std::{fmt::Write as _, process::ExitCode};

use super::{
    act::{ActOptions, Common},
    columns,
};
use logcabin_ops::{
    admin::users::{ApproveUsers, Decided, ListWaiting, RefuseUsers, Waiting},
    history::{moment::Time, terminal::clean},
};

/// Approve accounts that wait for it: their users can log in from then on
///
/// They are told by a mail, if they have confirmed an address, and by a server notice. With
/// `registration.approval`, accounts that people register for themselves wait.
#[derive(Debug, clap::Args)]
pub(super) struct Approve {
    /// The users
    #[arg(value_name = "USER", required = true)]
    users: Vec<String>,

    #[command(flatten)]
    options: ActOptions,
}

/// Refuse accounts that wait for approval
///
/// They are closed, and what is kept of them is erased. Nobody can ever register their names again.
/// The users are told by a mail, if they have confirmed an address. This cannot be undone.
#[derive(Debug, clap::Args)]
pub(super) struct Refuse {
    /// The users
    #[arg(value_name = "USER", required = true)]
    users: Vec<String>,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    options: ActOptions,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Approve {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let Self { users, options } = self;
        options.run(ApproveUsers { users }, |done| decided("Approved", done))
    }
}

impl Refuse {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let Self { users, yes, options } = self;
        let names = users.join(" ");
        options.run_if_meant(RefuseUsers { users }, yes, &names, |done| decided("Refused", done))
    }
}

fn decided(what: &str, done: &Decided) -> String {
    let Decided { users, not_waiting, mails, notices, failed } = done;
    let mut text = format!("{what} {} registration(s).\n", users.len());
    for user_id in not_waiting {
        let _ = writeln!(text, "{user_id} does not wait for approval.");
    }
    for (user_id, why) in failed {
        let _ = writeln!(text, "{user_id}: {}", clean(why));
    }
    if *mails > 0 {
        let _ = writeln!(text, "{mails} mail(s) are on their way.");
    }
    if *notices > 0 {
        let _ = writeln!(text, "{notices} notice(s) were sent.");
    }
    text
}

/// Prints the waiting registrations, oldest first.
pub(super) fn list(common: &Common) -> Result<ExitCode, Failure> {
    let all: Waiting = common.perform(ListWaiting {})?;
    common.print::<ListWaiting>(&all, |Waiting { waiting }| {
        let rows: Vec<[String; 4]> = waiting
            .iter()
            .map(|one| {
                [
                    one.user_id.to_string(),
                    Time(one.since_ms).to_second() + " UTC",
                    clean(one.address.as_deref().unwrap_or("-")),
                    clean(one.answer.as_deref().unwrap_or("-")),
                ]
            })
            .collect();
        let mut text = columns(&rows);
        let _ = writeln!(text, "{} user(s)", waiting.len());
        text
    })
}
