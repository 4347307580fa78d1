//! What is asked, and checked, before users do something: an HTTP hook of the operator's, and
//! checks of messages that need no service.

mod checks;
mod hook;

use std::sync::Arc;

use ruma::{MilliSecondsSinceUnixEpoch, OwnedRoomId, UserId};
use serde::Serialize;
use serde_json::Value;
use tracing::warn;

use self::{
    checks::Checks,
    hook::{Hook, Verdict},
};
use logcabin_base::clock::random_letters;
use logcabin_config::{Antispam, CheckOutcome, HookFailure, HookPoint};
use logcabin_decide::status::SetStatus;
use logcabin_engine::{Engine, ProposeError};
use logcabin_outside::outbound::Outbound;
use logcabin_read::policy_lists::KeptBy;
use logcabin_record::Origin;

/// The hook and the checks that are configured.
pub struct Screening {
    engine: Arc<Engine>,
    hook: Option<Hook>,
    fails: HookFailure,
    checks: Checks,
    outcome: CheckOutcome,
}

/// What somebody is about to do, as the hook is asked. `docs/moderation.md` describes it.
#[derive(Clone, Debug, Serialize)]
pub struct Question {
    /// A name for logs, new for each question.
    pub id: String,
    pub hook: &'static str,
    /// Milliseconds since the Unix epoch.
    pub ts: MilliSecondsSinceUnixEpoch,
    /// The user of this server, or of the homeserver that asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
    /// How old the account of a user of this server is, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account_age_ms: Option<u64>,
    /// The homeserver whose request it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
    pub request: AskedRequest,
}

/// The request that waits for the answer.
#[derive(Clone, Debug, Serialize)]
pub struct AskedRequest {
    pub method: String,
    /// With the names of its parameters in braces.
    pub path: &'static str,
    /// Those of the path and of the query.
    pub parameters: Value,
    /// The body, without secrets.
    pub content: Value,
}

/// What becomes of something that may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    Done,
    /// It only seems to be done: the user has been shadow-banned.
    Seemingly,
}

/// What the user is told where the hook gives no message.
const NOT_ALLOWED: &str = "This server does not allow this.";

/// Why somebody may not do something.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// For the user.
    #[error("{0}")]
    Because(String),
    #[error("This cannot be checked right now. Try again later.")]
    Unavailable,
}

impl Screening {
    /// # Errors
    /// When the file of the secret cannot be read, or there is none.
    pub fn new(
        config: &Antispam,
        engine: &Arc<Engine>,
        outbound: &Outbound,
    ) -> Result<Self, String> {
        let hook = config.hook_url.as_ref().map(|url| Hook::new(url, config, outbound));
        Ok(Self {
            engine: Arc::clone(engine),
            hook: hook.transpose()?,
            fails: config.hook_fails,
            checks: Checks::new(config),
            outcome: config.checks,
        })
    }

    /// Whether anything is asked or checked at all.
    pub const fn is_on(&self) -> bool {
        self.hook.is_some() || self.checks.are_on()
    }

    /// Whether anything is asked or checked at this point.
    pub fn concerns(&self, point: HookPoint) -> bool {
        self.hook.as_ref().is_some_and(|hook| hook.is_about(point))
            || (point == HookPoint::Message && self.checks.are_on())
    }

    /// A name for a question.
    pub fn new_id() -> String {
        random_letters(16)
    }

    /// Asks the hook, after the checks.
    ///
    /// # Errors
    /// When it may not be done.
    pub async fn admit(
        &self,
        point: HookPoint,
        user_id: Option<&UserId>,
        question: Question,
    ) -> Result<Admitted, Refused> {
        if point == HookPoint::Message
            && let Some(user_id) = user_id
        {
            self.check(user_id, &question)?;
        }
        let Some(hook) = self.hook.as_ref().filter(|hook| hook.is_about(point)) else {
            return Ok(Admitted::Done);
        };
        let subject = question.user_id.clone().or_else(|| question.origin.clone());
        let subject = subject.or_else(|| question.ip.clone()).unwrap_or_default();
        match hook.ask(point, question).await {
            Some(Verdict::Allow) => Ok(Admitted::Done),
            Some(Verdict::Mark) => {
                self.note(point, &subject, "antispam.hook_url", false);
                Ok(Admitted::Done)
            }
            Some(Verdict::Refuse(message)) => {
                self.note(point, &subject, "antispam.hook_url", true);
                Err(Refused::Because(message.unwrap_or_else(|| NOT_ALLOWED.to_owned())))
            }
            Some(Verdict::Shadow) => {
                self.note(point, &subject, "antispam.hook_url", true);
                self.shadow_ban(user_id).await
            }
            None if self.fails == HookFailure::Open => Ok(Admitted::Done),
            None => Err(Refused::Unavailable),
        }
    }

    /// Shadow-bans a user of this server. Nobody else can be: they are refused.
    async fn shadow_ban(&self, user_id: Option<&UserId>) -> Result<Admitted, Refused> {
        let refused = || Refused::Because(NOT_ALLOWED.to_owned());
        let ban = SetStatus {
            user_id: user_id.ok_or_else(refused)?.to_owned(),
            admin: None,
            locked: None,
            suspended: None,
            shadow_banned: Some(true),
            reason: Some("an answer of the antispam hook".to_owned()),
        };
        match self.engine.propose(Origin::server(), ban).await {
            Ok(banned) => {
                banned.into_inner();
                Ok(Admitted::Seemingly)
            }
            Err(ProposeError::Refused(_)) => Err(refused()),
            Err(error) => {
                warn!(%error, "the antispam hook could not have a user shadow-banned");
                Err(Refused::Unavailable)
            }
        }
    }

    fn check(&self, user_id: &UserId, question: &Question) -> Result<(), Refused> {
        let room_id = question.request.parameters["roomId"].as_str();
        let room_id = room_id.and_then(|room_id| OwnedRoomId::try_from(room_id).ok());
        let age_ms = question.account_age_ms.unwrap_or(u64::MAX);
        let now_ms = u64::from(question.ts.get());
        let content = &question.request.content;
        let found = self.checks.against(user_id, room_id.as_deref(), content, age_ms, now_ms);
        let Some(setting) = found else { return Ok(()) };
        let refuses = self.outcome == CheckOutcome::Refuse;
        self.note(HookPoint::Message, user_id.as_str(), setting, refuses);
        if refuses {
            let why = "This looks like spam. Ask the administrator if it is not.";
            return Err(Refused::Because(why.to_owned()));
        }
        Ok(())
    }

    fn note(&self, point: HookPoint, subject: &str, setting: &'static str, is_refused: bool) {
        let (kept_away, state) =
            (&self.engine.events().policy_lists().kept_away, self.engine.state());
        let by = KeptBy::Setting(setting);
        kept_away.note(point.name(), subject, &by, is_refused, state.applied());
    }
}
