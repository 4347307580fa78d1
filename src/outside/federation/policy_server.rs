//! Policy servers, which are asked to sign events (server-server API, "Policy Servers").

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Instant,
};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use ruma::{
    CanonicalJsonValue, OwnedServerName, events::StateEventType, room_version_rules::RedactionRules,
};
use serde::Deserialize;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};
use tracing::debug;

use super::{FederationClient, FederationRequest, Unreachable};
use logcabin_base::limits;
use logcabin_decide::{Env, Refusal, policy_server::EventToSign};
use logcabin_engine::EventSigner;
use logcabin_read::policy_server::{PolicyServer, object_needs_policy_signature};
use logcabin_record::{Offset, Stream, lax_object::LaxObject};

/// Asks policy servers.
pub struct PolicyServers {
    client: Arc<FederationClient>,
    /// The streams of rooms in which an event is being signed.
    turns: Mutex<HashMap<Stream, Weak<Turn<()>>>>,
    /// The policy servers that did not answer, and when.
    silent: Mutex<HashMap<OwnedServerName, Instant>>,
}

impl std::fmt::Debug for PolicyServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PolicyServers")
    }
}

/// Why a policy server does not sign an event.
#[derive(Debug)]
pub enum NotSigned {
    /// It refuses.
    Refused { status: u16, errcode: String, error: String },
    /// It cannot be asked, or its answer is not a signature.
    Unreachable(Unreachable),
}

impl From<NotSigned> for Refusal {
    fn from(why: NotSigned) -> Self {
        match why {
            NotSigned::Refused { status, errcode, error } => {
                Self::NotRecommended { status, errcode, error }
            }
            NotSigned::Unreachable(error) => Self::PolicyServer(error.to_string()),
        }
    }
}

#[derive(Deserialize)]
struct ErrorBody {
    #[serde(default)]
    errcode: String,
    #[serde(default)]
    error: String,
}

impl PolicyServers {
    pub fn new(client: &Arc<FederationClient>) -> Self {
        Self { client: Arc::clone(client), turns: Mutex::default(), silent: Mutex::default() }
    }

    /// Asks for a signature of an event. The signature is not verified.
    async fn signature(&self, policy: &PolicyServer, pdu: &LaxObject) -> Result<String, NotSigned> {
        let mut question = FederationRequest::post("/_matrix/policy/v1/sign", pdu);
        question.timeout = limits::POLICY_TIMEOUT;
        question.max_bytes = limits::POLICY_ANSWER_BYTES;
        let answer = self.client.send(&policy.via, question).await;
        let answer = answer.map_err(NotSigned::Unreachable)?;
        let unexpected =
            || NotSigned::Unreachable(Unreachable::Unexpected("it is not a signature".to_owned()));
        if !answer.status.is_success() {
            let status = answer.status.as_u16();
            return Err(match serde_json::from_slice::<ErrorBody>(&answer.body) {
                Ok(ErrorBody { errcode, error }) if !errcode.is_empty() && status < 500 => {
                    NotSigned::Refused { status, errcode, error }
                }
                _ => NotSigned::Unreachable(Unreachable::Status(status)),
            });
        }
        let signatures: CanonicalJsonValue =
            serde_json::from_slice(&answer.body).map_err(|_| unexpected())?;
        policy.signature(&signatures).ok_or_else(unexpected)
    }

    /// Whether a policy server has just failed to answer. Requests queued for it fail at once then,
    /// instead of timing out one after the other.
    fn is_silent(&self, policy: &PolicyServer) -> bool {
        let mut silent = self.silent.lock();
        silent.retain(|_, since| since.elapsed() < limits::POLICY_PAUSE);
        silent.contains_key(&policy.via)
    }

    /// A valid signature of the policy server for an event.
    pub async fn signed(
        &self,
        policy: &PolicyServer,
        pdu: &LaxObject,
        rules: &RedactionRules,
    ) -> Result<String, NotSigned> {
        let signature = self.signature(policy, pdu).await?;
        let mut signed = pdu.clone();
        policy.add(&mut signed, signature.clone());
        if policy.has_signed(&signed, rules) {
            return Ok(signature);
        }
        let why = "its signature is not valid".to_owned();
        Err(NotSigned::Unreachable(Unreachable::Unexpected(why)))
    }

    /// Checks that an event of another homeserver has the policy server's signature, or asks for
    /// it; `Ok` means that the signature is new. An error gives the reason. The policy server is
    /// asked at most `left` times and until `until`, and not again after it fails to answer.
    pub async fn recommends(
        &self,
        policy: &PolicyServer,
        pdu: &mut LaxObject,
        rules: &RedactionRules,
        (left, until): (&mut usize, Instant),
    ) -> Result<bool, String> {
        if !object_needs_policy_signature(pdu) || policy.has_signed(pdu, rules) {
            return Ok(false);
        }
        if self.is_silent(policy) || until <= Instant::now() {
            *left = 0;
        }
        let Some(rest) = left.checked_sub(1) else {
            return Err("the room's policy server has not signed it".to_owned());
        };
        *left = rest;
        match self.signed(policy, pdu, rules).await {
            Ok(signature) => {
                policy.add(pdu, signature);
                Ok(true)
            }
            Err(NotSigned::Refused { errcode, error, .. }) => {
                let error: String = error.chars().take(limits::POLICY_REASON).collect();
                Err(format!("the room's policy server does not sign it: {errcode} {error}"))
            }
            Err(NotSigned::Unreachable(error)) => {
                *left = 0;
                self.silent.lock().insert(policy.via.clone(), Instant::now());
                debug!(via = %policy.via, %error, "a policy server does not sign an event");
                Err(format!("the room's policy server does not sign it: {error}"))
            }
        }
    }
}

impl EventSigner for PolicyServers {
    fn concerns(&self, env: &Env, stream: &Stream) -> bool {
        let room = stream.room_id().and_then(|room_id| env.state.rooms.get(room_id));
        let policy = StateEventType::from("m.room.policy");
        let room = room.filter(|room| room.state_event(&policy, "", Offset::MAX).is_some());
        // Receipts and the like have a stream of their own.
        room.is_some_and(|room| *stream == Stream::room(&room.id))
    }

    fn turn(&self, stream: &Stream) -> BoxFuture<'static, OwnedMutexGuard<()>> {
        let mut turns = self.turns.lock();
        let turn = turns.get(stream).and_then(Weak::upgrade);
        let turn = turn.unwrap_or_else(|| {
            turns.retain(|_, turn| turn.strong_count() > 0);
            let turn = Arc::new(Turn::new(()));
            turns.insert(stream.clone(), Arc::downgrade(&turn));
            turn
        });
        Box::pin(turn.lock_owned())
    }

    fn sign<'a>(&'a self, event: &'a EventToSign) -> BoxFuture<'a, Result<String, Refusal>> {
        Box::pin(async move {
            let EventToSign { policy_server, pdu, rules, .. } = event;
            if self.is_silent(policy_server) {
                return Err(NotSigned::Unreachable(Unreachable::Late).into());
            }
            let signed = self.signed(policy_server, pdu, rules).await;
            if matches!(signed, Err(NotSigned::Unreachable(_))) {
                self.silent.lock().insert(policy_server.via.clone(), Instant::now());
            }
            signed.map_err(Refusal::from)
        })
    }
}
