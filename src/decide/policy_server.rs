//! Has the policy servers of rooms sign this homeserver's events (server-server API, "Policy
//! Servers").

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use ruma::{
    OwnedEventId, RoomId, events::room::member::MembershipState, room_version_rules::RedactionRules,
};

use super::{Commit, Env, Proposal, Refusal};
use logcabin_base::limits;
use logcabin_read::{
    events::StoredEvent,
    policy_server::{PolicyServer, needs_policy_signature, policy_server},
};
use logcabin_record::{
    Command, NewRecord, Offset, Origin, Stream,
    command::RoomEvent,
    lax_object::{LaxError, LaxObject},
};

/// An event that is about to be recorded, in federation format, and the policy server that has to
/// sign it.
#[derive(Clone, Debug)]
pub struct EventToSign {
    pub event_id: OwnedEventId,
    pub policy_server: PolicyServer,
    pub rules: RedactionRules,
    pub pdu: LaxObject,
    /// Whether a user leaves by it. It is then recorded even without the signature, because a
    /// policy server cannot keep a user in a room.
    pub is_leave: bool,
}

/// A proposal that is decided more than once: to find its events, then to record them.
pub(crate) type Repeatable<P> = Arc<Mutex<P>>;

/// The events of this homeserver that a proposal would now add to rooms with a policy server.
///
/// # Errors
/// When the proposal would be refused.
pub fn to_be_signed<P: Proposal>(
    env: &Env,
    proposal: &Repeatable<P>,
    origin: &Origin,
) -> Result<Vec<EventToSign>, Refusal> {
    let proposal = proposal.lock();
    let mut commit = Commit::new(env, &proposal.stream());
    commit.take(&*proposal, origin)?;
    events_to_sign(env, &commit.into_batch().records)
}

/// [`to_be_signed`], as far as it does not depend on the type of the proposal.
fn events_to_sign(env: &Env, records: &[NewRecord]) -> Result<Vec<EventToSign>, Refusal> {
    let mut found = Vec::new();
    for body in records.iter().filter_map(own_event) {
        let Some((policy_server, rules)) = policy_server_of(env, &body.room_id)? else { continue };
        let bad = |error: serde_json::Error| Refusal::BadJson(error.to_string());
        let event = StoredEvent::new(Offset::ZERO, body.clone()).map_err(bad)?;
        if needs_policy_signature(&event) {
            let unusable = |error: LaxError| Refusal::BadJson(error.to_string());
            let mut pdu = LaxObject::parse(body.pdu.get()).map_err(unusable)?;
            env.server.sign_event(&mut pdu, &rules).map_err(unusable)?;
            let is_leave = is_leave(&event);
            found.push(EventToSign {
                event_id: body.event_id,
                policy_server,
                rules,
                pdu,
                is_leave,
            });
        }
    }
    Ok(found)
}

/// Whether a user leaves a room by this event.
fn is_leave(event: &StoredEvent) -> bool {
    event.membership() == Some((&event.sender, MembershipState::Leave))
}

fn policy_server_of(
    env: &Env,
    room_id: &RoomId,
) -> Result<Option<(PolicyServer, RedactionRules)>, Refusal> {
    let Some(room) = env.state.rooms.get(room_id) else { return Ok(None) };
    let policy = policy_server(&env.events, &room)?;
    Ok(policy.map(|policy| (policy, room.rules.redaction.clone())))
}

/// The event of a record, if it is one that this homeserver has made.
fn own_event(record: &NewRecord) -> Option<RoomEvent> {
    match Command::decode(record.kind, record.version, &record.payload) {
        Ok(Command::RoomEvent(body)) => Some(body).filter(|body| body.received.is_none()),
        _ => None,
    }
}

/// A proposal whose events policy servers have signed. It is refused as
/// [`Refusal::SignatureMissing`] if by now it adds an event that is not among them, unless a user
/// leaves by it.
pub struct Signed<P> {
    pub of: Repeatable<P>,
    /// The stream of the proposal.
    pub stream: Stream,
    pub signatures: HashMap<OwnedEventId, String>,
}

impl<P: Proposal> Proposal for Signed<P> {
    type Outcome = P::Outcome;

    fn stream(&self) -> Stream {
        self.stream.clone()
    }

    fn is_exclusive(&self) -> bool {
        self.of.lock().is_exclusive()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<P::Outcome, Refusal> {
        let before = commit.batch.records.len();
        let outcome = self.of.lock().decide(commit)?;
        sign_records(commit, before, &self.signatures)?;
        Ok(outcome)
    }
}

/// Adds the signatures of policy servers to the events among a commit's records, from index `from`
/// on.
fn sign_records(
    commit: &mut Commit<'_>,
    from: usize,
    signatures: &HashMap<OwnedEventId, String>,
) -> Result<(), Refusal> {
    let env = commit.env;
    for record in &mut commit.batch.records[from..] {
        let Some(mut body) = own_event(record) else { continue };
        let Some((policy_server, _)) = policy_server_of(env, &body.room_id)? else { continue };
        let bad = |error: serde_json::Error| Refusal::BadJson(error.to_string());
        let event = StoredEvent::new(Offset::ZERO, body.clone()).map_err(bad)?;
        if !needs_policy_signature(&event) {
            continue;
        }
        let signature = match signatures.get(&body.event_id) {
            Some(signature) => signature,
            None if is_leave(&event) => continue,
            None => return Err(Refusal::SignatureMissing),
        };
        let pdu = LaxObject::parse(body.pdu.get());
        let mut pdu = pdu.map_err(|error| Refusal::BadJson(error.to_string()))?;
        policy_server.add(&mut pdu, signature.clone());
        body.pdu = pdu.to_raw().map_err(bad)?;
        let length = body.pdu.get().len() + env.server.signature_bytes();
        if length > limits::EVENT_BYTES {
            return Err(Refusal::TooLarge(
                "The event is too large with the signature of the room's policy server.".to_owned(),
            ));
        }
        let (stream, origin) = (record.stream.clone(), record.origin.clone());
        *record = NewRecord::new(stream, origin, &body.into());
    }
    Ok(())
}
