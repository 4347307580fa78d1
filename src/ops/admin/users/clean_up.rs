//! Stop a user and clean up after them: what a moderator does about spam, in one order. Each step
//! is an act of its own, with records of its own.

use ruma::{OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::{ChangeMember, ChangeOf, Changed, RedactUser, RejectInvites, SetStatus};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
    media::{MediaOf, QuarantineMedia},
    reports::{RemoveReport, about},
};
use logcabin_base::background::at_length;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CleanUp {
    /// A user of this homeserver or another.
    pub user: String,
    /// Of a user of this homeserver.
    pub account: AccountStep,
    /// Whether to ban them from the rooms that they are in.
    pub ban: bool,
    /// Whether to reject the invites that they sent.
    pub reject_invites: bool,
    /// Whether to redact what they sent.
    pub redact: bool,
    /// Whether to quarantine what they uploaded here.
    pub quarantine: bool,
    /// Whether to close the reports about them.
    pub close_reports: bool,
    /// The reason that rooms are told.
    #[serde(default)]
    pub say: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccountStep {
    Suspend,
    Lock,
    Keep,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanedUp {
    pub user_id: OwnedUserId,
    /// What was done, in sentences.
    pub done: Vec<String>,
    /// What could not be done, in sentences. The rest was done all the same.
    pub failed: Vec<String>,
}

impl Act for CleanUp {
    const NAME: &'static str = "clean-up";
    const DONE: &'static str = "cleaned-up";
    type Done = CleanedUp;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Stop a user and clean up",
        fields: &[
            Field::new("user", "User", Kind::Text),
            Field::new("account", "Account", Kind::OneOf(&["suspend", "lock", "keep"])),
            Field::new("ban", "Ban from their rooms", Kind::Flag),
            Field::new("reject_invites", "Reject the invites that they sent", Kind::Flag),
            Field::new("redact", "Redact what they sent", Kind::Flag),
            Field::new("quarantine", "Quarantine what they uploaded", Kind::Flag),
            Field::new("close_reports", "Close the reports about them", Kind::Flag),
            Field::new("say", "Reason that rooms are told", Kind::TextIfAny),
        ],
        is_final: true,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<CleanedUp, ActError> {
        let user_id = context.user_anywhere(&self.user)?;
        let steps = self.steps(context, &user_id)?;
        let mut cleaned = CleanedUp { user_id, done: Vec::new(), failed: Vec::new() };
        for step in steps {
            match step.perform(context, by.clone()).await {
                Ok((done, failed)) => {
                    cleaned.done.push(done);
                    cleaned.failed.extend(failed);
                }
                Err(error) => cleaned.failed.push(error.to_string()),
            }
        }
        Ok(cleaned)
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let user_id = context.user_anywhere(&self.user)?;
        let mut effect = Vec::new();
        for step in self.steps(context, &user_id)? {
            match step.effect(context).await {
                Ok(sentences) => effect.extend(sentences),
                // The other steps are done all the same.
                Err(error) => effect.push(format!("one step is left out: {error}")),
            }
        }
        Ok(effect)
    }
}

/// One of the acts.
enum CleanUpStep {
    Account(SetStatus),
    Ban(ChangeMember),
    Reject(RejectInvites),
    Redact(RedactUser),
    Quarantine(QuarantineMedia),
    Close(RemoveReport),
}

impl CleanUp {
    /// The acts, in the order in which each makes the next one last.
    fn steps(&self, context: &ActContext, user_id: &UserId) -> Result<Vec<CleanUpStep>, ActError> {
        if context.notices.is_sender(user_id) {
            return Err(ActError::Invalid(format!("{user_id} sends the notices of the server.")));
        }
        let (user, say) = (user_id.to_string(), self.say.clone());
        let is_local = context.engine.state().accounts.contains(user_id);
        let mut steps = Vec::new();
        if is_local && self.account != AccountStep::Keep {
            let step = |of| (self.account == of).then_some(true);
            steps.push(CleanUpStep::Account(SetStatus {
                user: user.clone(),
                admin: None,
                locked: step(AccountStep::Lock),
                suspended: step(AccountStep::Suspend),
                shadow_banned: None,
            }));
        }
        if self.ban {
            let (user, say, change) = (user.clone(), say.clone(), ChangeOf::Ban);
            let ban =
                ChangeMember { user, change, rooms: Vec::new(), by: None, say, redact: false };
            steps.push(CleanUpStep::Ban(ban));
        }
        if self.reject_invites {
            let from = Some(user.clone());
            steps.push(CleanUpStep::Reject(RejectInvites { to: None, from, from_server: None }));
        }
        if self.redact {
            steps.push(CleanUpStep::Redact(RedactUser {
                user: user.clone(),
                rooms: Vec::new(),
                limit: None,
                after_ms: None,
                before_ms: None,
                by: None,
                say,
                wait: false,
            }));
        }
        if self.quarantine && is_local {
            let of = MediaOf::User(user);
            steps.push(CleanUpStep::Quarantine(QuarantineMedia { of, quarantined: true }));
        }
        if self.close_reports {
            let reports = at_length(|| about(context, user_id))?.into_iter();
            steps.extend(reports.map(|id| CleanUpStep::Close(RemoveReport { id, tell: None })));
        }
        Ok(steps)
    }
}

impl CleanUpStep {
    /// Returns what was done, and what could not be done, in sentences.
    async fn perform(
        self,
        context: &ActContext,
        by: Attribution,
    ) -> Result<(String, Option<String>), ActError> {
        let mut failed = None;
        let done = match self {
            Self::Account(act) => {
                let word = if act.locked.is_some() { "locked" } else { "suspended" };
                let Changed { user_id, changed } = act.perform(context, by).await?;
                let already = if changed { "" } else { " already" };
                format!("{user_id} is {word}{already}")
            }
            Self::Ban(act) => {
                let done = act.perform(context, by).await?;
                failed = done.failed.iter().next().map(|(room_id, why)| {
                    format!("not banned from {} room(s), such as {room_id}: {why}", done.failures)
                });
                format!("banned from {} room(s)", done.rooms.len())
            }
            Self::Reject(act) => {
                let done = act.perform(context, by).await?;
                failed = (done.failures > 0)
                    .then(|| format!("{} invite(s) could not be rejected", done.failures));
                format!("{} invite(s) rejected", done.rejected)
            }
            Self::Redact(act) => {
                let id = act.perform(context, by).await?.id;
                format!("what they sent is being redacted, as work {id}")
            }
            Self::Quarantine(act) => {
                let files = act.perform(context, by).await?.media_ids.len();
                format!("{files} file(s) quarantined")
            }
            Self::Close(act) => format!("report {} closed", act.perform(context, by).await?.id),
        };
        Ok((done, failed))
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        match self {
            Self::Account(act) => act.effect(context).await,
            Self::Ban(act) => act.effect(context).await,
            Self::Reject(act) => act.effect(context).await,
            Self::Redact(act) => act.effect(context).await,
            Self::Quarantine(act) => act.effect(context).await,
            Self::Close(act) => act.effect(context).await,
        }
    }
}
