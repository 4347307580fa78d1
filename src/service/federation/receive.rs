//! Handles events that another homeserver sends, up to the records of their outcomes.

use std::{borrow::Cow, sync::Arc, time::Instant};

use ruma::{EventId, OwnedEventId, OwnedRoomId, RoomId, ServerName, signatures::PublicKeyMap};
use serde_json::value::RawValue;
use tokio::time::{timeout, timeout_at};
use tracing::debug;

use super::{
    fetch::Budget,
    memory::{Federation, Site},
    pdu::{Pdu, PduError},
};
use crate::typing::Typing;
use logcabin_base::{fair_queue::WorkTurn, limits};
use logcabin_decide::{
    Env, Refusal,
    federation::{ReceiveOutcome, ReceivePdu, ReceivePduAtLength},
    is_local,
};
use logcabin_engine::Engine;
use logcabin_read::{events::EventRef, policy_server::policy_server, servers::admits};
use logcabin_record::{
    Offset, Origin,
    command::Outcome,
    event_format::{Pair, has_chosen_ids},
};
use logcabin_state::Room;

/// Handles events of other homeservers.
pub struct PduReceiver<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) federation: &'a Federation,
    pub(super) typing: &'a Arc<Typing>,
}

/// An event whose signatures are valid.
#[derive(Clone, Debug)]
pub struct Verified {
    pub(crate) room_id: OwnedRoomId,
    pub(crate) event_id: OwnedEventId,
    pub(crate) depth: u64,
    /// Whether this homeserver sends it to the others in the room.
    pub relayed: bool,
    /// Why the room's policy server does not recommend it, if it does not.
    pub(crate) not_recommended: Option<String>,
    pub(crate) pdu: Box<RawValue>,
}

#[derive(serde::Deserialize)]
struct Depth {
    #[serde(default)]
    depth: u64,
}

#[derive(Default, serde::Deserialize)]
struct EventReferences<'a> {
    #[serde(borrow, default)]
    auth_events: Vec<Cow<'a, str>>,
    #[serde(borrow, default)]
    prev_events: Vec<Cow<'a, str>>,
}

/// The same in event format 1.
#[derive(serde::Deserialize)]
struct EventReferencePairs<'a> {
    #[serde(borrow, default)]
    auth_events: Vec<Pair<Cow<'a, str>>>,
    #[serde(borrow, default)]
    prev_events: Vec<Pair<Cow<'a, str>>>,
}

impl<'a> From<EventReferencePairs<'a>> for EventReferences<'a> {
    fn from(EventReferencePairs { auth_events, prev_events }: EventReferencePairs<'a>) -> Self {
        let ids = |pairs: Vec<Pair<Cow<'a, str>>>| pairs.into_iter().map(|pair| pair.0).collect();
        Self { auth_events: ids(auth_events), prev_events: ids(prev_events) }
    }
}

impl Verified {
    /// An event, with valid signatures.
    pub(super) fn new(
        room_id: OwnedRoomId,
        event_id: OwnedEventId,
        pdu: Box<RawValue>,
    ) -> Result<Self, PduError> {
        let place: Depth =
            serde_json::from_str(pdu.get()).map_err(|error| PduError::Form(error.to_string()))?;
        let (depth, relayed, not_recommended) = (place.depth, false, None);
        Ok(Self { room_id, event_id, depth, relayed, not_recommended, pdu })
    }

    /// The ids of the events that authorise it. Of very many events, they take too much memory to
    /// be kept.
    pub(super) fn auth_events(&self) -> Vec<Cow<'_, str>> {
        self.references().auth_events
    }

    /// The ids of the events that it comes after.
    pub(super) fn prev_events(&self) -> Vec<Cow<'_, str>> {
        self.references().prev_events
    }

    fn references(&self) -> EventReferences<'_> {
        serde_json::from_str(self.pdu.get()).unwrap_or_else(|_| {
            let pairs = serde_json::from_str::<EventReferencePairs<'_>>(self.pdu.get());
            pairs.map(EventReferences::from).unwrap_or_default()
        })
    }

    /// It without its content.
    pub(super) fn redacted(self, room: &Room) -> Result<Self, PduError> {
        let redacted = Pdu::object(&self.pdu)?.redacted(&room.rules.redaction)?;
        let pdu = redacted.to_raw().map_err(|error| PduError::Form(error.to_string()))?;
        Ok(Self { pdu, ..self })
    }
}

impl<'a> PduReceiver<'a> {
    pub const fn new(
        engine: &'a Arc<Engine>,
        federation: &'a Federation,
        typing: &'a Arc<Typing>,
    ) -> Self {
        Self { engine, federation, typing }
    }

    pub(super) fn room(&self, room_id: &RoomId) -> Result<Arc<Room>, PduError> {
        self.engine.state().rooms.get(room_id).ok_or(PduError::NoRoom)
    }

    /// Whether an event of the room is known, in the timeline or not.
    pub(super) fn knows(&self, room: &Room, event_id: &EventId) -> Result<bool, PduError> {
        let (state, events) = (self.engine.state(), self.engine.events());
        Ok(events.find_known(&state, room, event_id).map_err(read)?.is_some())
    }

    /// Whether an event is known with its place in the room. It is before this homeserver's history
    /// of the room, if it was needed when this homeserver entered. What became known as an outlier
    /// later may be new to the room: a join that others saw at the same time, and that authorises
    /// the event with which it came.
    pub(super) fn has_place(&self, room: &Room, event_id: &EventId) -> Result<bool, PduError> {
        let (state, events) = (self.engine.state(), self.engine.events());
        let known = events.find_known(&state, room, event_id).map_err(read)?;
        let entered = room.last_gap(Offset::ZERO, Offset::MAX).or_else(|| room.nth_event(0));
        let lacks_place = |event: EventRef| {
            entered.is_some_and(|entered| event.offset > entered)
                && matches!(event.aside.as_deref(), Some((Outcome::Outlier, None)))
        };
        Ok(known.is_some_and(|event| !lacks_place(event)))
    }

    /// Handles an event from a transaction of `origin`. Returns its id and outcome. If others do
    /// not answer what has to be known first, it is tried again later.
    pub async fn take(
        &self,
        origin: &ServerName,
        raw: &RawValue,
        budget: &mut Budget,
    ) -> Result<(OwnedEventId, Result<ReceiveOutcome, PduError>), PduError> {
        let (event_id, outcome) = self.take_once(origin, raw, budget).await?;
        if let Err(error) = &outcome {
            self.keep_for_later(origin, &event_id, raw, error);
        }
        Ok((event_id, outcome))
    }

    pub(super) async fn take_once(
        &self,
        origin: &ServerName,
        raw: &RawValue,
        budget: &mut Budget,
    ) -> Result<(OwnedEventId, Result<ReceiveOutcome, PduError>), PduError> {
        let object = Pdu::object(raw)?;
        let room_id = Pdu::room_of(&object)?;
        let own = self.federation.client.own_name();
        if !self.room(&room_id).is_ok_and(|room| room.has_server(own)) {
            // Afterwards, it is one that this homeserver cannot use yet.
            let ended = self.federation.entries.ended(&room_id);
            let _ = timeout_at(budget.entries_until.into(), ended).await;
        }
        let room = self.room(&room_id)?;
        let pdu = Pdu::in_room(&room, object)?;
        let event_id = pdu.event_id.clone();
        if self.is_withdrawal(&room, &pdu) {
            return Ok((event_id, self.withdraw(origin, &room, pdu).await));
        }
        Ok((event_id, self.take_pdu(origin, &room, pdu, budget).await))
    }

    async fn take_pdu(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        pdu: Pdu,
        budget: &mut Budget,
    ) -> Result<ReceiveOutcome, PduError> {
        let state = self.engine.state();
        if !admits(self.engine.events(), room, origin).map_err(read)? {
            return Err(PduError::AccessControl);
        }
        if !room.knows_server(origin) {
            return Err(PduError::NotInRoom);
        }
        // In room versions where servers choose the ids, another event may have it.
        let is_known = state.event_in_room(&room.id, &pdu.event_id).is_some();
        if is_known && !has_chosen_ids(&room.rules) {
            return Ok(ReceiveOutcome::Known);
        }
        // Otherwise it would be known without its content before its sender's homeserver sends it.
        if !pdu.is_whole_from(origin) {
            return Err(PduError::Altered);
        }
        let began = Instant::now();
        let verified = timeout(budget.keys, self.verify(room, pdu)).await;
        budget.keys = budget.keys.saturating_sub(began.elapsed());
        let verified = verified.map_err(|_| PduError::Late)??;
        self.receive(origin, room, verified, budget).await
    }

    /// Verifies the signatures of an event.
    pub async fn verify(&self, room: &Room, pdu: Pdu) -> Result<Verified, PduError> {
        let keys = pdu.keys(&self.federation.keys, &room.rules).await?;
        self.verify_by(room, pdu, &keys)
    }

    /// Like [`Self::verify`], with the keys of the homeservers whose signatures it needs. The
    /// messages of a user of this homeserver that were erased do not come back.
    pub(super) fn verify_by(
        &self,
        room: &Room,
        pdu: Pdu,
        keys: &PublicKeyMap,
    ) -> Result<Verified, PduError> {
        let (room_id, event_id) = (pdu.room_id.clone(), pdu.event_id.clone());
        let is_erased = pdu.message_sender().is_some_and(|sender| {
            let env = self.engine.env();
            is_local(&env.server, sender) && env.state.accounts.erased(sender).is_some()
        });
        let event = Verified::new(room_id, event_id, pdu.verified_by(keys, &room.rules)?)?;
        if is_erased { event.redacted(room) } else { Ok(event) }
    }

    /// Records an event, after those that it needs.
    async fn receive(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        mut event: Verified,
        budget: &mut Budget,
    ) -> Result<ReceiveOutcome, PduError> {
        self.ask_policy_server(room, &mut event, budget).await?;
        match self.propose(origin, &event, false).await? {
            ReceiveOutcome::Missing { .. }
            | ReceiveOutcome::Unresolved
            | ReceiveOutcome::Disputed => {
                let gives_way = budget.begin(self.federation.client.kept_for(origin));
                let received = tokio::select! {
                    biased;
                    () = gives_way => Err(PduError::Missing),
                    received = self.with_ancestors(origin, room, event, budget) => received,
                };
                budget.end();
                received
            }
            outcome => Ok(outcome),
        }
    }

    /// Asks the room's policy server, if there is one, whether it recommends an event.
    pub(super) async fn ask_policy_server(
        &self,
        room: &Room,
        event: &mut Verified,
        budget: &mut Budget,
    ) -> Result<(), PduError> {
        let policy = policy_server(self.engine.events(), room).map_err(read)?;
        let Some(policy) = policy else { return Ok(()) };
        let mut object = Pdu::object(&event.pdu)?;
        let (servers, rules) = (&self.federation.policy, &room.rules.redaction);
        let bound = (&mut budget.policy, budget.policy_until);
        match servers.recommends(&policy, &mut object, rules, bound).await {
            Ok(false) => {}
            Ok(true) => {
                let pdu = object.to_raw().map_err(|error| PduError::Form(error.to_string()))?;
                // If there is no space for the signature, others ask for it themselves.
                if pdu.get().len() <= limits::EVENT_BYTES {
                    event.pdu = pdu;
                }
            }
            Err(reason) => event.not_recommended = Some(reason),
        }
        Ok(())
    }

    /// Like [`receive`](Self::receive), for an event that is of no use unless it is in the
    /// timeline.
    pub async fn accept(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event: Verified,
    ) -> Result<(), PduError> {
        match self.receive(origin, room, event, &mut Budget::full()).await? {
            ReceiveOutcome::Accepted | ReceiveOutcome::Known => Ok(()),
            ReceiveOutcome::SoftFailed(reason) | ReceiveOutcome::Rejected(reason) => {
                Err(PduError::NotRecorded(Refusal::Forbidden(reason).into()))
            }
            ReceiveOutcome::Outlier
            | ReceiveOutcome::Missing { .. }
            | ReceiveOutcome::Unresolved
            | ReceiveOutcome::Disputed
            | ReceiveOutcome::Unprepared => Err(PduError::Missing),
        }
    }

    pub(super) async fn propose(
        &self,
        origin: &ServerName,
        event: &Verified,
        as_outlier: bool,
    ) -> Result<ReceiveOutcome, PduError> {
        self.propose_with(origin, event, as_outlier, false).await
    }

    /// Records an event by the recorded state before it.
    pub(super) async fn propose_placed(
        &self,
        origin: &ServerName,
        event: &Verified,
    ) -> Result<ReceiveOutcome, PduError> {
        self.propose_with(origin, event, false, true).await
    }

    async fn propose_with(
        &self,
        origin: &ServerName,
        event: &Verified,
        as_outlier: bool,
        is_placed: bool,
    ) -> Result<ReceiveOutcome, PduError> {
        let receive = ReceivePdu {
            room_id: event.room_id.clone(),
            event_id: event.event_id.clone(),
            from: origin.to_owned(),
            pdu: event.pdu.clone(),
            as_outlier,
            is_placed,
            relayed: event.relayed,
            not_recommended: event.not_recommended.clone(),
        };
        let outcome = self.decide(origin, receive).await?;
        match &outcome {
            ReceiveOutcome::SoftFailed(reason) | ReceiveOutcome::Rejected(reason) => {
                debug!(%origin, event_id = %event.event_id, reason, "an event is not accepted");
            }
            _ => {}
        }
        Ok(outcome)
    }
}

/// This many abandoned resolutions count as one.
const GIVEN_UP: usize = 8;

/// Decides on events of other homeservers. Long computations are done before, while the room's
/// other events go ahead; homeservers and rooms take turns by how much they have used.
impl PduReceiver<'_> {
    async fn decide(
        &self,
        origin: &ServerName,
        receive: ReceivePdu,
    ) -> Result<ReceiveOutcome, PduError> {
        let mut tries = 0;
        while tries < limits::RESOLUTION_TRIES * GIVEN_UP {
            let outcome = self.engine.propose(Origin::server(), receive.clone()).await?;
            let outcome = self.charged(origin, outcome);
            if outcome != ReceiveOutcome::Unprepared {
                return Ok(outcome);
            }
            let turn = self.turn(origin, &receive.room_id).await;
            let (env, receive) = (Env::clone(&self.engine.env()), receive.clone());
            // A resolution that was abandoned for others is started again, but not forever.
            let is_done = turn.run(move |pause| receive.prepare(&env, pause)).await;
            tries += if is_done { GIVEN_UP } else { 1 };
        }
        // The room changes faster than its branches can be resolved.
        let turn = self.turn(origin, &receive.room_id).await;
        let (at_length, began) = (ReceivePduAtLength(receive), Instant::now());
        let outcome = self.engine.propose(Origin::server(), at_length).await;
        turn.took(began.elapsed());
        let outcome = outcome?;
        match self.charged(origin, outcome) {
            ReceiveOutcome::Unprepared => Err(PduError::Missing),
            outcome => Ok(outcome),
        }
    }

    async fn turn(&self, origin: &ServerName, room_id: &RoomId) -> WorkTurn {
        self.federation.resolving.turn(Site::of(origin).as_str(), room_id.as_str()).await
    }
}

pub(super) fn read(error: logcabin_log::ReadError) -> PduError {
    PduError::NotRecorded(Refusal::from(error).into())
}
