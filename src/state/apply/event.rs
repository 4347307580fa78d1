//! What follows from an event of a room.

use std::borrow::Cow;

use ruma::{
    EventId, OwnedEventId, OwnedUserId, RoomId, UserId,
    events::{StateEventType, room::member::MembershipState},
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Applied, Apply, ApplyError, At, Effect};
use crate::{
    Membership, RETENTION, RelatesTo, State,
    erasures::Redacted,
    lifetime,
    lifetimes::RoomRetention,
    relations::NewRelation,
    rooms::{EventFacts, Tip, gaps::UntimedEvent, graph::Change, is_activity},
};
use logcabin_base::limits;
use logcabin_record::{CommandError, Offset, command::RoomEvent};

impl Apply for RoomEvent {
    fn apply(self, state: &State, at: At) -> Applied {
        let unreadable = |source| ApplyError::Command {
            offset: at.offset,
            source: CommandError::Payload { kind: "room.event", source },
        };
        let pdu: PduFacts<'_> = serde_json::from_str(self.pdu.get()).map_err(unreadable)?;
        let state_key = pdu.key();
        // A user's own message counts as reading the conversation, as in `push::Unread`.
        if state_key.is_none()
            && let Ok(sender) = <&UserId>::try_from(pdu.sender.as_ref())
        {
            state.pushers.note_read(sender);
        }
        let membership = pdu.membership(state_key.as_ref()).map_err(unreadable)?;
        if let Some(version) = self.room_version {
            let name = version.to_string();
            if !state.rooms.create(at.offset, self.room_id.clone(), version) {
                return Err(ApplyError::RoomVersion { offset: at.offset, version: name });
            }
        }
        let mut effects = vec![Effect::WakeRoom(self.room_id.clone())];
        let (mut others, mut changes, mut takes_effect) = (Vec::new(), Vec::new(), true);
        let (is_foreign, mut missing) = (self.received.is_some(), Vec::new());
        let mut beside = false;
        if let Some(received) = self.received {
            (missing, beside) = (received.missing, received.beside);
            others.extend(received.extremities.into_iter().map(Tip::from));
            if let Some(resolved) = received.resolved {
                takes_effect = resolved.takes_effect;
                changes.extend(resolved.changes.into_iter().map(Change::of));
            }
        }
        let own = membership.as_ref().filter(|_| takes_effect).into_iter();
        let more = changes.iter().filter_map(|change| change.membership.as_ref());
        for (user_id, membership) in own.chain(more) {
            if is_foreign && *membership == Membership::Join {
                state.suspect_devices(user_id, &self.room_id);
            }
            state.memberships.set(at.offset, user_id, &self.room_id, *membership);
            state.usage.set_membership(at.offset, user_id, &self.room_id, *membership, &pdu.sender);
            // The room's members are woken with it; a user who leaves is no longer one of them.
            effects.push(Effect::WakeUser(user_id.clone()));
        }
        let guest_access = &StateEventType::RoomGuestAccess;
        let is_redacted = |event| {
            let room = state.rooms.get(&self.room_id);
            room.and_then(|room| room.state_event(guest_access, "", at.offset)) == Some(event)
        };
        if matches!(&state_key, Some((kind, key)) if kind == guest_access && key.is_empty())
            || self.redacts.is_some_and(is_redacted)
        {
            effects.push(Effect::GuestAccess(self.room_id.clone()));
        }
        state.transactions.note(at.offset, self.transaction.as_ref());
        if let Some(delay_id) = &self.delay_id {
            state.delayed.send(at.offset, delay_id);
        }
        state.events.insert(at.offset, &self.event_id);
        state.note_imported(at);
        let relation = state.relation(&pdu.event_type, pdu.content, &self.pdu);
        let relates_to_unknown = relation
            .as_ref()
            .filter(|relation| relation.parents.is_empty())
            .and_then(|_| RelatesTo::of(pdu.content)?.event_id.parse().ok());
        let facts = EventFacts {
            event_id: self.event_id,
            event_type: (*pdu.event_type).into(),
            lifetime: pdu.lifetime(state_key.as_ref()),
            depth: pdu.depth,
            horizon: if is_foreign {
                at.happened_ms.saturating_add(limits::EVENT_AHEAD_MS)
            } else {
                u64::MAX
            },
            takes_effect,
            changes,
            others,
            beside,
            ts: pdu.origin_server_ts,
            state_key,
            membership,
            redacts: self.redacts,
            relation,
            activity: is_activity(&pdu.event_type),
            missing,
            relates_to_unknown,
            redacts_unknown: (is_foreign && self.redacts.is_none())
                .then(|| redacts(&pdu.event_type, pdu.content, &self.pdu))
                .flatten(),
        };
        if let Some(event) = state.rooms.add_event(at.offset, &self.room_id, facts) {
            state.note_redacted(event, at);
        }
        Ok(effects)
    }
}

impl State {
    /// The event was redacted by the record at `at`: its content is to be erased.
    pub(super) fn note_redacted(&self, event: Offset, at: At) {
        // What scheduled the event has the same content.
        for event in [Some(event), self.delayed.sent_as(event)].into_iter().flatten() {
            let (because, time_ms) = (at.offset, at.happened_ms);
            self.erasures.redact(Redacted { event, because, time_ms });
        }
    }

    /// A user is about to join a room: changes of their devices may have been missed while they
    /// shared no room with users of this server.
    fn suspect_devices(&self, user_id: &UserId, room_id: &RoomId) {
        if self.device_lists.is_empty() {
            return;
        }
        let before = self.memberships.in_room(user_id, room_id, Offset::MAX);
        if before.is_some_and(|before| before.membership == Membership::Join) {
            return;
        }
        self.device_lists.suspect(user_id);
        if !self.is_own(user_id) {
            return;
        }
        let Some(room) = self.rooms.get(room_id) else { return };
        let (mut others, mut is_first) = (Vec::new(), true);
        room.each_joined_now(|user_id| match self.is_own(user_id) {
            true => is_first = false,
            false => others.push(user_id.clone()),
        });
        if is_first {
            others.iter().for_each(|user_id| self.device_lists.suspect(user_id));
        }
    }

    /// Notes when an imported event happened.
    pub(super) fn note_imported(&self, at: At) {
        if at.is_imported {
            self.imports.note_event(at.offset, at.happened_ms);
        }
    }

    /// The facts about an event of another homeserver that apply once its position is known; for a
    /// state event, nothing more.
    pub(super) fn waiting(&self, pdu: &RawValue) -> Option<UntimedEvent> {
        let facts: PduFacts<'_> = serde_json::from_str(pdu.get()).ok()?;
        if facts.state_key.is_some() {
            return None;
        }
        let relation = self.relation(&facts.event_type, facts.content, pdu);
        let to = RelatesTo::of(facts.content).and_then(|to| to.event_id.parse().ok());
        Some(UntimedEvent {
            event_type: (*facts.event_type).into(),
            relation: to.zip(relation),
            redacts: redacts(&facts.event_type, facts.content, pdu),
        })
    }

    /// What the event relates to, if to anything.
    fn relation(
        &self,
        event_type: &str,
        content: &RawValue,
        pdu: &RawValue,
    ) -> Option<NewRelation> {
        let relates_to = RelatesTo::of(content)?;
        let parent = <&EventId>::try_from(&*relates_to.event_id).ok()?;
        let facts: RelationFacts<'_> = serde_json::from_str(pdu.get()).ok()?;
        Some(NewRelation {
            parents: self.events.candidates(parent),
            rel_type: relates_to.rel_type.into_owned(),
            event_type: event_type.to_owned(),
            sender: facts.sender.into_owned(),
            ts: facts.origin_server_ts,
        })
    }
}

/// The event that a redaction names, wherever the room version has it.
fn redacts(event_type: &str, content: &RawValue, pdu: &RawValue) -> Option<OwnedEventId> {
    #[derive(Deserialize)]
    struct Redacts {
        redacts: OwnedEventId,
    }
    if event_type != "m.room.redaction" {
        return None;
    }
    let of = |json: &RawValue| serde_json::from_str::<Redacts>(json.get()).ok();
    of(pdu).or_else(|| of(content)).map(|of| of.redacts)
}

/// What is kept of an event that relates to another.
#[derive(Deserialize)]
struct RelationFacts<'a> {
    #[serde(borrow)]
    sender: Cow<'a, str>,
    origin_server_ts: u64,
}

/// What a room keeps of an event.
#[derive(Deserialize)]
struct PduFacts<'a> {
    #[serde(rename = "type", borrow)]
    event_type: Cow<'a, str>,
    #[serde(borrow, default)]
    sender: Cow<'a, str>,
    #[serde(borrow, default)]
    state_key: Option<Cow<'a, str>>,
    depth: u64,
    #[serde(default)]
    origin_server_ts: u64,
    #[serde(borrow)]
    content: &'a RawValue,
}

type Key = (StateEventType, Box<str>);

impl PduFacts<'_> {
    fn key(&self) -> Option<Key> {
        let state_key = self.state_key.as_ref()?;
        Some((StateEventType::from(self.event_type.as_ref()), state_key.as_ref().into()))
    }

    /// The user and their new membership, if it is a member event.
    fn membership(
        &self,
        key: Option<&Key>,
    ) -> Result<Option<(OwnedUserId, Membership)>, serde_json::Error> {
        #[derive(Deserialize)]
        struct Member {
            membership: MembershipState,
        }
        let Some((StateEventType::RoomMember, user_id)) = key else { return Ok(None) };
        let content: Member = serde_json::from_str(self.content.get())?;
        let membership = Membership::from_ruma(&content.membership);
        Ok(OwnedUserId::try_from(user_id.as_ref()).ok().zip(membership))
    }

    /// If it is a state event with lifetimes: the index of its name ([`RETENTION`]), and the
    /// lifetimes.
    fn lifetime(&self, key: Option<&Key>) -> Option<(usize, Option<RoomRetention>)> {
        let (kind, _) = key.filter(|(_, state_key)| state_key.is_empty())?;
        let kind = kind.to_string();
        let name = RETENTION.iter().position(|name| *name == kind)?;
        Some((name, lifetime(self.content)))
    }
}
