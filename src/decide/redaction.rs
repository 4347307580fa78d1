//! Redactions by administrators: of one event, and of what a user sent.

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, MilliSecondsSinceUnixEpoch, OwnedEventId, OwnedRoomId,
    OwnedUserId, UserId, events::TimelineEventType, state_res::events::RoomPowerLevelsIntField,
};

use super::{Commit, Proposal, Refusal, moderation::in_the_name_of, send::SendEvent};
use logcabin_record::{
    Offset, Stream,
    command::{UserRedact, UserRedactFinish},
};

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
