//! Redactions by administrators: of one event, and of what a user sent.

use std::sync::Arc;

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, MilliSecondsSinceUnixEpoch, OwnedEventId, OwnedRoomId,
    OwnedUserId, UserId, events::TimelineEventType, state_res::events::RoomPowerLevelsIntField,
};
use serde_json::Value;

use super::{
    Commit, Env, Membership, NewEvent, Powers, Proposal, Refusal, RoomDraft,
    moderation::in_the_name_of, send::SendEvent,
};
use logcabin_log::ReadError;
use logcabin_read::events::{EventStore, StoredEvent};
use logcabin_record::{
    Offset, Stream,
    command::{RoomRedactSender, UserRedact, UserRedactFinish},
};
use logcabin_state::{Room, SenderRedaction};

/// Redact an event in the name of a joined local user who may: the one who is named, or else its
/// sender, or else one who has the power level for it by name, the most powerful first.
#[derive(Clone, Debug)]
pub struct Redact {
    pub room_id: OwnedRoomId,
    pub event_id: OwnedEventId,
    /// In whose name, if they may.
    pub by: Option<OwnedUserId>,
    /// The reason that the room is told.
    pub say: Option<String>,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

impl Proposal for Redact {
    /// In whose name; `None` if it was redacted before.
    type Outcome = Option<OwnedUserId>;

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Option<OwnedUserId>, Refusal> {
        let env = commit.env;
        let event = env.events.find_shown(&env.state, &self.event_id)?;
        let event = event
            .filter(|event| event.room_id == self.room_id)
            .ok_or_else(|| Refusal::NotFound("There is no such event in this room.".to_owned()))?;
        let room = env.state.rooms.get(&self.room_id);
        if room.is_some_and(|room| room.redaction_of(event.offset, Offset::MAX).is_some()) {
            return Ok(None);
        }
        if [TimelineEventType::RoomCreate, TimelineEventType::RoomServerAcl]
            .contains(&event.event_type)
        {
            let why = "An event of this type cannot be redacted: the room rests on it.";
            return Err(Refusal::InvalidParam(why.to_owned()));
        }
        let first: Vec<_> = self.by.as_deref().into_iter().chain([&*event.sender]).collect();
        let field = RoomPowerLevelsIntField::Redact;
        in_the_name_of(commit, &self.room_id, &first, field, |sender| self.sent_by(sender))
            .map(Some)
    }
}

impl Redact {
    fn sent_by(&self, sender: &UserId) -> SendEvent {
        let mut content = CanonicalJsonObject::new();
        if let Some(say) = &self.say {
            content.insert("reason".to_owned(), CanonicalJsonValue::String(say.clone()));
        }
        SendEvent {
            room_id: self.room_id.clone(),
            sender: sender.to_owned(),
            event_type: TimelineEventType::RoomRedaction,
            state_key: None,
            content: content.into(),
            redacts: Some(self.event_id.clone()),
            transaction: None,
            ts: self.ts,
        }
    }
}

/// Redact an event as a user does, unless it was redacted before.
#[derive(Clone, Debug)]
pub struct RedactOnce(pub SendEvent);

impl Proposal for RedactOnce {
    type Outcome = ();

    fn stream(&self) -> Stream {
        self.0.stream()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Self(redaction) = self;
        let env = commit.env;
        let room = env.state.rooms.get(&redaction.room_id);
        let Some((room, redacts)) = room.zip(redaction.redacts.as_ref()) else { return Ok(()) };
        let event = env.events.find_shown(&env.state, redacts)?;
        match event.and_then(|event| room.redaction_of(event.offset, Offset::MAX)) {
            Some(_) => Ok(()),
            None => redaction.decide(commit).map(|_| ()),
        }
    }
}

/// Whether a user is in a room, and may redact events of others there.
pub fn may_redact_others(
    events: &EventStore,
    room: &Room,
    user_id: &UserId,
) -> Result<bool, ReadError> {
    Ok(room.is_joined(user_id, Offset::MAX)
        && Powers::of_room(room, events)?.may_redact_others(user_id))
}

/// What says in a kick or a ban that the user's events are redacted, by the present name of
/// MSC4293.
pub(crate) const REDACT_EVENTS: &str = "org.matrix.msc4293.redact_events";

/// The stay of a user in a room: what they sent during it is redacted because of the kick or ban
/// that ends it (MSC4293).
pub(crate) struct RedactedStay {
    room_id: OwnedRoomId,
    user_id: OwnedUserId,
    since: Offset,
    by: OwnedUserId,
}

impl RedactedStay {
    /// The stay that an event of another homeserver ends, if it is a kick or a ban that redacts.
    pub(crate) fn ended_by(
        env: &Env,
        room: &Arc<Room>,
        event: &StoredEvent,
    ) -> Result<Option<Self>, Refusal> {
        if event.event_type != TimelineEventType::RoomMember {
            return Ok(None);
        }
        // Other members may have numbers that canonical JSON does not have.
        let content: Value = event.content_as().unwrap_or_default();
        let (membership, redacts) = (content["membership"].as_str(), &content[REDACT_EVENTS]);
        let key = event.state_key.as_deref();
        match target(key, &event.sender, membership, *redacts == Value::Bool(true)) {
            Some(user_id) => {
                Self::of(env, &RoomDraft::of(Arc::clone(room)), user_id, &event.sender)
            }
            None => Ok(None),
        }
    }

    /// The present stay of a user whom `sender` kicks or bans, if they have the power to redact.
    fn of(
        env: &Env,
        draft: &RoomDraft,
        user_id: &UserId,
        sender: &UserId,
    ) -> Result<Option<Self>, Refusal> {
        let room = draft.room_id().and_then(|room_id| env.state.rooms.get(room_id));
        let since =
            room.and_then(|room| Some((room.id.clone(), room.joined_since(user_id, Offset::MAX)?)));
        // What others in the same commit did counts, too.
        let Some((room_id, since)) = since else { return Ok(None) };
        let may = draft.membership(env, user_id)? == Some(Membership::Join)
            && draft.powers(env)?.may_redact_others(sender);
        let (user_id, by) = (user_id.to_owned(), sender.to_owned());
        Ok(may.then_some(Self { room_id, user_id, since, by }))
    }
}

/// Who is kicked or banned by a member event, if it redacts. Each value is that of the event.
fn target<'k>(
    state_key: Option<&'k str>,
    sender: &UserId,
    membership: Option<&str>,
    redacts: bool,
) -> Option<&'k UserId> {
    let user_id = <&UserId>::try_from(state_key?).ok()?;
    let is_removal = user_id != sender && matches!(membership, Some("leave" | "ban"));
    (is_removal && redacts).then_some(user_id)
}

impl Commit<'_> {
    /// What a new event redacts, if it is a kick or a ban.
    pub(crate) fn stay_redacted_by(
        &mut self,
        new: &NewEvent,
    ) -> Result<Option<RedactedStay>, Refusal> {
        if new.event_type != TimelineEventType::RoomMember {
            return Ok(None);
        }
        let membership = new.content.get("membership").and_then(CanonicalJsonValue::as_str);
        let redacts = new.content.get(REDACT_EVENTS) == Some(&CanonicalJsonValue::Bool(true));
        let user_id = target(new.state_key.as_deref(), &new.sender, membership, redacts);
        let Some(user_id) = user_id else { return Ok(None) };
        let env = self.env;
        RedactedStay::of(env, self.draft()?, user_id, &new.sender)
    }

    /// Begins to redact what was sent during a stay, because of the event with this id.
    pub(crate) fn redact_stay(&mut self, stay: RedactedStay, because: OwnedEventId) {
        let RedactedStay { room_id, user_id, since, by } = stay;
        let (stream, events, complete) = (Stream::room(&room_id), Vec::new(), false);
        self.append(
            stream,
            RoomRedactSender { room_id, because, by, user_id, since, events, complete },
        );
    }
}

/// Redact more of what a user sent, because of a kick or a ban.
#[derive(Clone, Debug)]
pub struct RedactSender {
    pub room_id: OwnedRoomId,
    /// The kick or the ban.
    pub because: OwnedEventId,
    /// What its user sent.
    pub events: Vec<Offset>,
    /// Whether that is all.
    pub complete: bool,
}

impl Proposal for RedactSender {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Self { room_id, because, mut events, complete } = self.clone();
        let state = &commit.env.state;
        let pending = state.sender_redactions.get(&room_id, &because);
        let Some((pending, room)) = pending.zip(state.rooms.get(&room_id)) else { return Ok(()) };
        events.retain(|event| {
            room.shows_event(*event) && room.redaction_of(*event, Offset::MAX).is_none()
        });
        if !events.is_empty() || complete {
            let SenderRedaction { by, user_id, since, .. } = pending;
            commit.append(
                self.stream(),
                RoomRedactSender { room_id, because, by, user_id, since, events, complete },
            );
        }
        Ok(())
    }
}

/// Begin to redact messages and joins that a user sent. The caller does the rest.
#[derive(Clone, Debug)]
pub struct BeginRedaction(pub UserRedact);

impl Proposal for BeginRedaction {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::server()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Self(redact) = self;
        if commit.env.state.redactions.is_under_way(&redact.user_id) {
            let why = format!("What {} sent is being redacted already.", redact.user_id);
            return Err(Refusal::InvalidParam(why));
        }
        commit.append(self.stream(), redact.clone());
        Ok(())
    }
}

/// Record the end of such a redaction.
#[derive(Clone, Debug)]
pub struct FinishRedaction(pub UserRedactFinish);

impl Proposal for FinishRedaction {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::server()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Self(finish) = self;
        let redaction = commit.env.state.redactions.get(&finish.id);
        if redaction.is_some_and(|redaction| redaction.ended.is_none()) {
            commit.append(self.stream(), finish.clone());
        }
        Ok(())
    }
}
