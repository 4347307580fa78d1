//! Proposals whose events need the agreement of a room's policy server before they are recorded.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::Arc,
};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use super::{Durable, Engine, ProposeError};
use logcabin_base::limits;
use logcabin_decide::{
    Env, Proposal, Refusal,
    policy_server::{EventToSign, Signed, to_be_signed},
};
use logcabin_record::{Origin, Stream};

/// Has policy servers sign events.
pub trait EventSigner: fmt::Debug + Send + Sync {
    /// Whether the room of this stream may have a policy server. This is asked of each proposal.
    fn concerns(&self, env: &Env, stream: &Stream) -> bool;

    /// Waits until no other event of the stream's room is being signed.
    fn turn(&self, stream: &Stream) -> BoxFuture<'static, OwnedMutexGuard<()>>;

    /// The policy server's signature of an event.
    fn sign<'a>(&'a self, event: &'a EventToSign) -> BoxFuture<'a, Result<String, Refusal>>;
}

impl Engine {
    /// Has policy servers sign events before they are recorded. To be called once.
    pub fn set_event_signer(&self, event_signer: Arc<dyn EventSigner>) {
        // A second call has no effect.
        let _ = self.event_signer.set(event_signer);
    }

    /// As [`Engine::propose`], in a room with a policy server.
    pub(super) async fn propose_signed<P: Proposal>(
        &self,
        event_signer: &Arc<dyn EventSigner>,
        origin: Origin,
        proposal: P,
    ) -> Result<Durable<P::Outcome>, ProposeError> {
        let stream = proposal.stream();
        let proposal = Arc::new(Mutex::new(proposal));
        let mut signatures = HashMap::new();
        let _turn = event_signer.turn(&stream).await;
        for _ in 0..limits::POLICY_ATTEMPTS {
            // A refusal comes from the proposal below, on durable grounds.
            let events = to_be_signed(&self.env(), &proposal, &origin).unwrap_or_default();
            for event in events {
                if let Entry::Vacant(missing) = signatures.entry(event.event_id.clone()) {
                    match event_signer.sign(&event).await {
                        Ok(signature) => drop(missing.insert(signature)),
                        Err(_) if event.is_leave => {}
                        Err(refusal) => return Err(refusal.into()),
                    }
                }
            }
            let signed = Signed {
                of: Arc::clone(&proposal),
                stream: stream.clone(),
                signatures: signatures.clone(),
            };
            match self.commits.propose(origin.clone(), signed).await {
                // The room has moved on: the event comes after others now.
                Err(ProposeError::Refused(Refusal::SignatureMissing)) => {}
                other => return other,
            }
        }
        Err(Refusal::SignatureMissing.into())
    }
}
