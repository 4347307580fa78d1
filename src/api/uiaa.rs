//! User-interactive authentication (client-server API, "User-Interactive Authentication API").
//!
//! One mechanism for every endpoint that asks for it. A session remembers which stages were
//! completed for which request; it is kept in memory, bounded in number and time: a client whose
//! session is gone is asked to begin again.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
};

use bytes::Bytes;
use parking_lot::Mutex;
use ruma::api::client::uiaa::{AuthData, AuthFlow, AuthType, Password};
use serde_json::Value;

use crate::{
    clock::random_token,
    http::{ApiError, AuthRequired, ErrorCode},
};

/// Sessions at once: beyond this the oldest is dropped.
const SESSIONS: usize = 10_000;
/// How long a session lasts, in milliseconds: time enough to read a mail or solve a captcha.
const LIFETIME_MS: u64 = 30 * 60 * 1000;

/// The sessions under way.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    sessions: HashMap<String, Session>,
    /// Oldest first.
    order: VecDeque<String>,
}

#[derive(Clone, Debug)]
struct Session {
    /// What the session was opened for: endpoint, user and body without `auth`.
    purpose: blake3::Hash,
    completed: Vec<AuthType>,
    begun_ms: u64,
}

/// What is to be authenticated.
pub(super) struct Purpose<'a> {
    /// The endpoint's name, with what its path holds.
    pub(super) endpoint: &'a str,
    /// The caller, where there is one.
    pub(super) user: &'a str,
    /// The request's body.
    pub(super) body: &'a Bytes,
}

impl Purpose<'_> {
    fn hash(&self) -> blake3::Hash {
        // Without `auth`, which differs from one attempt to the next, and in a form in which the
        // order of keys does not matter.
        let mut body: Value = serde_json::from_slice(self.body).unwrap_or_default();
        if let Some(body) = body.as_object_mut() {
            body.remove("auth");
        }
        let mut hasher = blake3::Hasher::new();
        for part in [self.endpoint, self.user, &body.to_string()] {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(part.as_bytes());
        }
        hasher.finalize()
    }
}

impl Sessions {
    /// Authenticates one attempt at a request. Ok means that a flow is complete and the request
    /// may be carried out.
    ///
    /// `check_password` decides the stage `m.login.password`.
    ///
    /// # Errors
    /// 401 with what is still to be done, or with why the attempt failed.
    pub(super) async fn authenticate<F>(
        &self,
        purpose: Purpose<'_>,
        stages: &[AuthType],
        auth: Option<&AuthData>,
        now_ms: u64,
        check_password: impl FnOnce(Password) -> F,
    ) -> Result<(), ApiError>
    where
        F: Future<Output = Result<(), ApiError>>,
    {
        let hash = purpose.hash();
        let Some(auth) = auth else {
            let id = self.begin(hash, now_ms);
            return Err(required(stages, &[], Some(id), None));
        };
        let mut completed = Vec::new();
        let id = auth.session();
        if let Some(id) = id {
            match self.find(id, hash, now_ms) {
                Some(session) => completed = session.completed,
                None => {
                    let id = self.begin(hash, now_ms);
                    let failure = (ErrorCode::Unknown, "This session is over; begin again.".into());
                    return Err(required(stages, &[], Some(id), Some(failure)));
                }
            }
        }
        if let Some(stage) = auth.auth_type() {
            let next = stages.get(completed.len());
            if !completed.contains(&stage) {
                if next != Some(&stage) {
                    let failure = (ErrorCode::Unknown, "This is not the next stage.".into());
                    let id = id.map(ToOwned::to_owned).unwrap_or_else(|| self.begin(hash, now_ms));
                    return Err(required(stages, &completed, Some(id), Some(failure)));
                }
                if let AuthData::Password(password) = auth
                    && let Err(error) = check_password(password.clone()).await
                {
                    // Not wrong, but not looked at: there were too many.
                    if *error.code() != ErrorCode::Forbidden {
                        return Err(error);
                    }
                    let failure = (error.code().clone(), "Wrong user name or password.".into());
                    let id = id.map(ToOwned::to_owned).unwrap_or_else(|| self.begin(hash, now_ms));
                    return Err(required(stages, &completed, Some(id), Some(failure)));
                }
                completed.push(stage);
            }
        }
        if completed.len() == stages.len() {
            id.into_iter().for_each(|id| self.end(id));
            return Ok(());
        }
        let id = id.map(ToOwned::to_owned).unwrap_or_else(|| self.begin(hash, now_ms));
        if let Some(session) = self.0.lock().sessions.get_mut(&id) {
            session.completed.clone_from(&completed);
        }
        Err(required(stages, &completed, Some(id), None))
    }

    fn begin(&self, purpose: blake3::Hash, now_ms: u64) -> String {
        let id = random_token();
        let mut inner = self.0.lock();
        let inner = &mut *inner;
        while let Some(oldest) = inner.order.front() {
            let over = inner
                .sessions
                .get(oldest)
                .is_none_or(|session| now_ms.saturating_sub(session.begun_ms) > LIFETIME_MS);
            if !over && inner.order.len() < SESSIONS {
                break;
            }
            inner.sessions.remove(oldest);
            inner.order.pop_front();
        }
        let session = Session { purpose, completed: Vec::new(), begun_ms: now_ms };
        inner.sessions.insert(id.clone(), session);
        inner.order.push_back(id.clone());
        id
    }

    fn find(&self, id: &str, purpose: blake3::Hash, now_ms: u64) -> Option<Session> {
        let inner = self.0.lock();
        let session = inner.sessions.get(id)?;
        let fresh = now_ms.saturating_sub(session.begun_ms) <= LIFETIME_MS;
        (fresh && session.purpose == purpose).then(|| session.clone())
    }

    fn end(&self, id: &str) {
        self.0.lock().sessions.remove(id);
    }
}

fn required(
    stages: &[AuthType],
    completed: &[AuthType],
    session: Option<String>,
    failure: Option<(ErrorCode, std::borrow::Cow<'static, str>)>,
) -> ApiError {
    ApiError::auth_required(AuthRequired {
        flows: vec![AuthFlow::new(stages.to_vec())],
        completed: completed.to_vec(),
        session,
        failure,
        ..AuthRequired::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    static BODY: Bytes = Bytes::from_static(br#"{"username":"ann","auth":{"session":"x"}}"#);
    static OTHER: Bytes = Bytes::from_static(br#"{"username":"bob"}"#);

    async fn attempt(
        sessions: &Sessions,
        body: &Bytes,
        stages: &[AuthType],
        auth: Option<Value>,
        now_ms: u64,
    ) -> Result<(), Value> {
        let auth = auth.map(|auth| serde_json::from_value::<AuthData>(auth).unwrap());
        let purpose = Purpose { endpoint: "register", user: "", body };
        let check = |password: Password| async move {
            if password.password == "right" { Ok(()) } else { Err(ApiError::forbidden("no")) }
        };
        sessions
            .authenticate(purpose, stages, auth.as_ref(), now_ms, check)
            .await
            .map_err(|error| error.body())
    }

    fn dummy(session: &Value) -> Option<Value> {
        Some(serde_json::json!({ "type": "m.login.dummy", "session": session }))
    }

    #[tokio::test]
    async fn a_dummy_stage_completes_with_and_without_a_session() {
        let (sessions, stages) = (Sessions::default(), [AuthType::Dummy]);
        let asked = attempt(&sessions, &BODY, &stages, None, 0).await.unwrap_err();
        assert_eq!(asked["flows"][0]["stages"][0], "m.login.dummy");
        let session = dummy(&asked["session"]);
        attempt(&sessions, &BODY, &stages, session.clone(), 1).await.unwrap();
        // A session serves once.
        let again = attempt(&sessions, &BODY, &stages, session, 2).await.unwrap_err();
        assert_eq!(again["errcode"], "M_UNKNOWN");
        let at_once = Some(serde_json::json!({ "type": "m.login.dummy" }));
        attempt(&sessions, &BODY, &stages, at_once, 3).await.unwrap();
    }

    #[tokio::test]
    async fn a_session_is_good_for_its_own_request_and_time_alone() {
        let (sessions, stages) = (Sessions::default(), [AuthType::Dummy]);
        let asked = attempt(&sessions, &BODY, &stages, None, 0).await.unwrap_err();
        let session = dummy(&asked["session"]);
        assert!(attempt(&sessions, &OTHER, &stages, session.clone(), 1).await.is_err());
        assert!(attempt(&sessions, &BODY, &stages, session, LIFETIME_MS + 1).await.is_err());
    }

    #[tokio::test]
    async fn stages_go_in_order_and_a_failed_one_can_be_tried_again() {
        let (sessions, stages) = (Sessions::default(), [AuthType::Password, AuthType::Dummy]);
        let asked = attempt(&sessions, &BODY, &stages, None, 0).await.unwrap_err();
        let session = &asked["session"];
        let early = attempt(&sessions, &BODY, &stages, dummy(session), 1).await.unwrap_err();
        assert_eq!(early["completed"], serde_json::json!([]));
        let password = |password: &str| {
            Some(serde_json::json!({
                "type": "m.login.password", "session": session, "password": password,
                "identifier": { "type": "m.id.user", "user": "ann" },
            }))
        };
        let wrong = attempt(&sessions, &BODY, &stages, password("wrong"), 2).await.unwrap_err();
        assert_eq!(wrong["errcode"], "M_FORBIDDEN");
        assert_eq!(&wrong["session"], session);
        let half = attempt(&sessions, &BODY, &stages, password("right"), 3).await.unwrap_err();
        assert_eq!(half["completed"], serde_json::json!(["m.login.password"]));
        assert!(half.get("errcode").is_none());
        attempt(&sessions, &BODY, &stages, dummy(session), 4).await.unwrap();
    }
}
