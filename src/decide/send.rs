//! Sending: messages, state, redactions.

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, EventId, MilliSecondsSinceUnixEpoch, OwnedEventId,
    OwnedRoomId, OwnedUserId, UserId, events::TimelineEventType,
    state_res::events::RoomPowerLevelsIntField,
};
use serde_json::value::RawValue;

use super::{
    Commit, Membership, NewEvent, Proposal, Refusal,
    canonical_alias::aliases,
    member_event::{must_take_invites, vet_content},
    upgrade::bring_along,
};
use logcabin_base::{
    limits,
    planted::{self, Fault},
};
use logcabin_read::events::StoredEvent;
use logcabin_record::{Offset, Stream, command::Transaction, lax_object::LaxObject};
use logcabin_state::{
    ChildQuery, RelatesTo,
    relations::{ANNOTATION, THREAD},
};

/// Send an event into a room.
#[derive(Clone, Debug)]
pub struct SendEvent {
    pub room_id: OwnedRoomId,
    pub sender: OwnedUserId,
    pub event_type: TimelineEventType,
    /// Its state key, for a state event.
    pub state_key: Option<String>,
    pub content: LaxObject,
    /// For a redaction: the redacted event.
    pub redacts: Option<OwnedEventId>,
    /// The client's transaction, if the endpoint has one.
    pub transaction: Option<Transaction>,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

impl Proposal for SendEvent {
    type Outcome = OwnedEventId;

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn shares_commit(&self) -> bool {
        // A redaction looks up its target in the state, where it is only once it is durable.
        // A member event may rest on other rooms, and a canonical alias on the alias.
        self.redacts.is_none()
            && !self.is_membership()
            && self.event_type != TimelineEventType::RoomCanonicalAlias
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<OwnedEventId, Refusal> {
        if let Some(transaction) = &self.transaction
            && let Some(event_id) = commit.sent_by(transaction)?
            && !planted::has(Fault::TransactionForgotten)
        {
            return Ok(event_id);
        }
        let env = commit.env;
        let room = commit.room(&self.room_id)?;
        if room.membership(env, &self.sender)? != Some(Membership::Join) && !self.is_membership() {
            return Err(Refusal::Forbidden("You are not in this room.".to_owned()));
        }
        let redacts = match &self.redacts {
            Some(target) => Some(self.redaction_target(commit, target)?),
            None => None,
        };
        if self.event_type == TimelineEventType::RoomCanonicalAlias {
            self.check_canonical_alias(commit)?;
        }
        self.check_relation(commit)?;
        let mut content = self.content.clone();
        if self.is_membership()
            && let Some(target) = self.state_key.as_deref().and_then(|k| UserId::parse(k).ok())
        {
            let room = commit.room(&self.room_id)?;
            vet_content(env, room, &self.sender, &target, &mut content)?;
            let event = NewEvent::state(
                self.event_type.clone(),
                target.as_str(),
                content,
                &self.sender,
                self.ts,
            );
            return self.add_membership(commit, event, &target);
        }
        if let Some((target, _)) = &redacts
            && commit.room(&self.room_id)?.rules().redaction.content_field_redacts
        {
            content.insert("redacts".to_owned(), CanonicalJsonValue::String(target.to_string()));
        }
        let event = NewEvent {
            event_type: self.event_type.clone(),
            state_key: self.state_key.clone(),
            content,
            sender: self.sender.clone(),
            ts: self.ts,
            redacts,
            transaction: self.transaction.clone(),
        };
        // State that is set already is not set again.
        let event_id = match event.state_key {
            Some(_) => commit.settle(event)?.0,
            None => commit.add_event(event)?,
        };
        if let Some(transaction) = &self.transaction {
            commit.note_sent(transaction, &event_id);
        }
        Ok(event_id)
    }
}

impl SendEvent {
    fn add_membership(
        &self,
        commit: &mut Commit<'_>,
        event: NewEvent,
        target: &UserId,
    ) -> Result<OwnedEventId, Refusal> {
        let membership = event.content.get("membership").and_then(CanonicalJsonValue::as_str);
        let (invites, joins) = (membership == Some("invite"), membership == Some("join"));
        let env = commit.env;
        let before = commit.room(&self.room_id)?.membership(env, target)?;
        let (event_id, _) = commit.settle(event)?;
        if invites {
            must_take_invites(env, Some(&self.room_id), target, &self.sender, before)?;
        }
        if joins && before != Some(Membership::Join) {
            bring_along(commit, target, &self.room_id)?;
        }
        Ok(event_id)
    }

    /// A user who is not joined may send a member event (to join); the rules decide.
    fn is_membership(&self) -> bool {
        self.event_type == TimelineEventType::RoomMember && self.state_key.is_some()
    }

    /// The event to redact, if the sender may redact it: their own, or any with the power level for
    /// it.
    fn redaction_target(
        &self,
        commit: &mut Commit<'_>,
        target: &OwnedEventId,
    ) -> Result<(OwnedEventId, Offset), Refusal> {
        let env = commit.env;
        let gone = || Refusal::NotFound("There is no such event in this room.".to_owned());
        let event = env.events.find_shown(&env.state, target)?.ok_or_else(gone)?;
        if event.room_id != self.room_id {
            return Err(gone());
        }
        let own = event.sender == self.sender;
        let room = commit.room(&self.room_id)?;
        if !own && !room.powers(env)?.has_level(&self.sender, RoomPowerLevelsIntField::Redact) {
            return Err(Refusal::Forbidden(
                "You may redact only your own events in this room.".to_owned(),
            ));
        }
        Ok((target.clone(), event.offset))
    }

    /// A thread does not begin with an event that relates to another one, and nobody sends the same
    /// annotation twice (client-server API, "Validation of m.thread relationships" and "Avoiding
    /// duplicate annotations"). What relates to nothing here is not judged.
    fn check_relation(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        if !self.content.contains_key("m.relates_to") {
            return Ok(());
        }
        let content = logcabin_read::events::to_raw(&self.content);
        let Some(relation) = RelatesTo::of(&content) else { return Ok(()) };
        if relation.rel_type != THREAD && relation.rel_type != ANNOTATION {
            return Ok(());
        }
        let Ok(parent) = <&EventId>::try_from(&*relation.event_id) else { return Ok(()) };
        let env = commit.env;
        let parent = env.events.find_shown(&env.state, parent)?;
        let Some(parent) = parent.filter(|parent| parent.room_id == self.room_id) else {
            return Ok(());
        };
        if relation.rel_type == THREAD {
            return match RelatesTo::of(&parent.content) {
                Some(_) => Err(Refusal::BadRelation(
                    "A thread cannot begin with an event that relates to another.".to_owned(),
                )),
                None => Ok(()),
            };
        }
        let is_same = |event: &StoredEvent| {
            event.sender == self.sender
                && event.event_type == self.event_type
                && RelatesTo::of(&event.content).is_some_and(|other| {
                    other.rel_type == ANNOTATION
                        && other.event_id == relation.event_id
                        && other.key.map(RawValue::get) == relation.key.map(RawValue::get)
                })
        };
        let Some(room) = env.state.rooms.get(&self.room_id) else { return Ok(()) };
        let event_type = self.event_type.to_string();
        let (all, most) = (&ChildQuery::EVERYTHING, limits::SCANNED_ANNOTATIONS);
        let own = room.newest_children_of(parent.offset, ANNOTATION, &self.sender, all, most);
        for child in own {
            if *child.event_type == *event_type
                && env.events.get(child.offset)?.is_some_and(|event| is_same(&event))
            {
                return Err(Refusal::DuplicateAnnotation);
            }
        }
        if commit.room(&self.room_id)?.added().any(|event| is_same(event)) {
            return Err(Refusal::DuplicateAnnotation);
        }
        Ok(())
    }

    /// New aliases in a canonical alias event must point at the room (client-server API,
    /// "m.room.canonical_alias").
    fn check_canonical_alias(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let env = commit.env;
        let room = commit.room(&self.room_id)?;
        let kind = ruma::events::StateEventType::RoomCanonicalAlias;
        let before = room.state_event(env, &kind, "")?;
        let before: CanonicalJsonObject =
            before.and_then(|event| event.content_as().ok()).unwrap_or_default();
        let known = aliases(&before)?;
        for alias in aliases(&self.content)? {
            if known.contains(&alias) {
                continue;
            }
            let parsed = <&ruma::RoomAliasId>::try_from(alias.as_str())
                .map_err(|_| Refusal::InvalidParam(format!("`{alias}` is not a room alias.")))?;
            commit.rests_on(Stream::alias(parsed));
            let target = env.state.aliases.get(parsed, Offset::MAX);
            if target.is_none_or(|target| target.room_id != self.room_id) {
                return Err(Refusal::BadAlias(format!("`{alias}` does not point at this room.")));
            }
        }
        Ok(())
    }
}
