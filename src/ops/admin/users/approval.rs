//! Approve or refuse accounts that wait for it, and list them.

use std::{collections::BTreeMap, sync::Arc};

use ruma::{OwnedUserId, UserId};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing::warn;

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
    notices::SendNotice,
};
use logcabin_base::limits;
use logcabin_decide::status::{Approve, Refuse};
use logcabin_log::ReadError;
use logcabin_outside::mail::Topic;
use logcabin_record::{
    Command, Offset,
    threepid::{Medium, Threepid},
};
use logcabin_service::accounts::closing;

/// List the accounts that wait for approval, the first first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListWaiting {}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Waiting {
    pub waiting: Vec<WaitingUser>,
}

/// What an administrator is told of a waiting registration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WaitingUser {
    pub user_id: OwnedUserId,
    /// The record since which they wait, and when that was, in milliseconds since the Unix epoch.
    pub record: Offset,
    pub since_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Their answer to the question of `registration.question`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// From where they registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Their e-mail address, if they confirmed one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
}

impl Act for ListWaiting {
    const NAME: &'static str = "list-waiting";
    const DONE: &'static str = "waiting";
    type Done = Waiting;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Waiting, ActError> {
        let (waiting, _) = waiting(context, 0, usize::MAX)?;
        Ok(Waiting { waiting })
    }
}

/// A page of the waiting registrations, oldest first, and how many there are in all.
pub fn waiting(
    context: &ActContext,
    from: usize,
    limit: usize,
) -> Result<(Vec<WaitingUser>, usize), ReadError> {
    let state = context.engine.state();
    let all = state.accounts.waiting();
    let mut found = Vec::new();
    for (record, user_id) in all.iter().skip(from).take(limit) {
        let said = match context.engine.events().command(*record)? {
            Some(Command::UserWait(said)) => Some(said),
            _ => None,
        };
        let account = state.accounts.get(user_id);
        let name = account.and_then(|account| account.read().profile_field("displayname").cloned());
        found.push(WaitingUser {
            user_id: user_id.clone(),
            record: *record,
            since_ms: context.time_of(*record)?,
            display_name: name.and_then(|name| name.as_str().map(ToOwned::to_owned)),
            address: said.as_ref().and_then(|said| said.address).map(|of| of.to_string()),
            answer: said.and_then(|said| said.answer),
            email: email(context, user_id).map(|email| email.address),
        });
    }
    Ok((found, all.len()))
}

/// The address to which somebody is told what was decided.
fn email(context: &ActContext, user_id: &UserId) -> Option<Threepid> {
    let of_user = context.engine.state().threepids.of_user(user_id).into_iter();
    of_user.map(|(threepid, _)| threepid).find(|threepid| threepid.medium == Medium::Email)
}

/// Approve accounts: their users can log in from now on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ApproveUsers {
    #[serde(default)]
    pub users: Vec<String>,
}

/// Refuse accounts: they are closed and erased, and their names stay taken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RefuseUsers {
    #[serde(default)]
    pub users: Vec<String>,
}

/// What was decided about accounts that waited.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Decided {
    /// Those who waited until now.
    pub users: Vec<OwnedUserId>,
    /// Those who did not wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_waiting: Vec<OwnedUserId>,
    /// How many are told by a mail, and by a notice.
    pub mails: usize,
    pub notices: usize,
    /// Those about whom nothing could be decided, each with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<OwnedUserId, String>,
}

impl Act for ApproveUsers {
    const NAME: &'static str = "approve-users";
    const DONE: &'static str = "approved";
    type Done = Decided;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Approve registrations",
        fields: &[Field::new("users", "Users, with spaces between them", Kind::Words)],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Decided, ActError> {
        let mut done = decide_each(context, &by, &self.users, Verdict::Approve).await?;
        for user_id in &done.users {
            done.notices += usize::from(greet(context, &by, user_id).await);
        }
        Ok(done)
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        foretold(context, &self.users, "is approved, and can log in")
    }
}

impl Act for RefuseUsers {
    const NAME: &'static str = "refuse-users";
    const DONE: &'static str = "refused";
    type Done = Decided;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Refuse registrations",
        fields: &[Field::new("users", "Users, with spaces between them", Kind::Words)],
        is_final: true,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Decided, ActError> {
        decide_each(context, &by, &self.users, Verdict::Refuse).await
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let what = "is refused: the account is closed and erased, and nobody gets its name";
        foretold(context, &self.users, what)
    }
}

#[derive(Clone, Copy)]
enum Verdict {
    Approve,
    Refuse,
}

/// Decides about the accounts that an order names, and sends their users mails.
async fn decide_each(
    context: &ActContext,
    by: &Attribution,
    users: &[String],
    verdict: Verdict,
) -> Result<Decided, ActError> {
    let (mut done, mut mails) = (Decided::default(), Vec::new());
    let engine = &context.engine;
    for user_id in named(context, users)? {
        let Attribution { origin, reason } = by.clone();
        // A refusal removes it with the account.
        let email = email(context, &user_id);
        let (decided, topic) = match verdict {
            Verdict::Approve => {
                let approve = Approve { user_id: user_id.clone(), reason };
                let approved = engine.propose(origin, approve).await;
                let topic = Topic::Approved { user_id: user_id.clone() };
                (approved.map(logcabin_engine::Durable::into_inner), topic)
            }
            Verdict::Refuse => {
                let ts = engine.clock().now_ms();
                let refuse = Refuse { user_id: user_id.clone(), reason, ts };
                let topic = Topic::Refused { user_id: user_id.clone() };
                (closing::refuse(engine, origin, refuse).await, topic)
            }
        };
        match decided {
            Ok(true) => {
                mails.extend(email.map(|email| (email, topic)));
                done.users.push(user_id);
            }
            Ok(false) => done.not_waiting.push(user_id),
            Err(error) => {
                let error = ActError::of_user(&user_id)(error);
                done.failed.insert(user_id, error.to_string());
            }
        }
    }
    done.mails = tell(context, mails);
    Ok(done)
}

/// The accounts that an order names, each once.
fn named(context: &ActContext, users: &[String]) -> Result<Vec<OwnedUserId>, ActError> {
    if users.is_empty() || users.len() > limits::WAITING_ACCOUNTS {
        let most = limits::WAITING_ACCOUNTS;
        return Err(ActError::Invalid(format!("Name one to {most} users.")));
    }
    let mut named = Vec::new();
    for user in users {
        let user_id = context.user_id(user)?;
        if !named.contains(&user_id) {
            named.push(user_id);
        }
    }
    Ok(named)
}

fn foretold(context: &ActContext, users: &[String], what: &str) -> Result<Vec<String>, ActError> {
    let state = context.engine.state();
    let waits = |user_id: &OwnedUserId| {
        state.accounts.standing(user_id).is_some_and(|standing| standing.waiting.is_some())
    };
    let waiting = named(context, users)?.into_iter().filter(waits);
    let effect = waiting.map(|user_id| match email(context, &user_id) {
        Some(email) if context.messages.is_some() => {
            format!("{user_id} {what}; {} gets a mail", email.address)
        }
        _ => format!("{user_id} {what}"),
    });
    Ok(effect.collect())
}

/// Greets somebody who was approved in the room of the server's notices, if there are any. Returns
/// whether that was possible; that it was not does not keep them out.
async fn greet(context: &ActContext, by: &Attribution, user_id: &UserId) -> bool {
    let server = &context.engine.env().server.name;
    if context.notices.sender(server).is_none() {
        return false;
    }
    let body = format!("Welcome to {server}. Your registration was approved.");
    let notice = SendNotice {
        user: user_id.to_string(),
        event_type: "m.room.message".to_owned(),
        state_key: None,
        content: json!({ "msgtype": "m.text", "body": body }),
        transaction: None,
    };
    let by = Attribution { origin: by.origin.clone(), reason: None };
    match notice.perform(context, by).await {
        Ok(_) => true,
        Err(error) => {
            warn!(%user_id, %error, "somebody who was approved was not told so by a notice");
            false
        }
    }
}

/// Sends the mails, one after the other, while the administrator goes on. Returns how many. Each is
/// tried once: what was decided stands, and a login tells it, too.
fn tell(context: &ActContext, mails: Vec<(Threepid, Topic)>) -> usize {
    let Some(messages) = context.messages.as_ref().filter(|_| !mails.is_empty()) else { return 0 };
    let (messages, count) = (Arc::clone(messages), mails.len());
    tokio::spawn(async move {
        for (to, topic) in mails {
            if let Err(error) = messages.send(&to, &topic).await {
                warn!(%error, "somebody was not told what was decided about their registration");
            }
        }
    });
    count
}
