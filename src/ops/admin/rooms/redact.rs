//! Redact an event, in the name of a member who may.

use ruma::{EventId, OwnedEventId, OwnedRoomId, OwnedUserId};
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::redaction::Redact;
use logcabin_read::events::EventRef;
use logcabin_record::Offset;

/// The longest reason that a room is told, in bytes: a paragraph.
pub(in crate::admin) const SAY_BYTES: usize = 2048;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RedactEvent {
    pub room: String,
    /// The event's id.
    pub event: String,
    /// The reason that the room is told.
    #[serde(default)]
    pub say: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRedacted {
    pub room_id: OwnedRoomId,
    pub event_id: OwnedEventId,
    /// The member in whose name; none if it was redacted before.
    pub by: Option<OwnedUserId>,
}

impl Act for RedactEvent {
    const NAME: &'static str = "redact-event";
    const DONE: &'static str = "event-redacted";
    type Done = EventRedacted;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Redact an event",
        fields: &[
            Field::new("room", "Room", Kind::Text),
            Field::new("event", "Event", Kind::Text),
            Field::new("say", "Reason that the room is told", Kind::TextIfAny),
        ],
        is_final: true,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Self::Done, ActError> {
        let event = self.find(context)?;
        let (room_id, event_id) = (event.room_id.clone(), event.event_id.clone());
        let redact = Redact {
            room_id: room_id.clone(),
            event_id: event_id.clone(),
            by: None,
            say: self.say,
            ts: context.engine.clock().timestamp(),
        };
        let by = context.propose(by, redact).await.map_err(ActError::of_room)?;
        Ok(EventRedacted { room_id, event_id, by })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let event = self.find(context)?;
        let room = context.room(event.room_id.as_str())?;
        if room.redaction_of(event.offset, Offset::MAX).is_some() {
            return Ok(Vec::new());
        }
        let (event_type, sender) = (&event.event_type, &event.sender);
        let is_own = context.engine.state().accounts.contains(sender);
        let by = match is_own && room.is_joined(sender, Offset::MAX) {
            true => format!("in the name of {sender}"),
            false => {
                "in the name of a user of this server who may, if one is in the room".to_owned()
            }
        };
        Ok(vec![format!(
            "the content of the event of type {event_type} that {sender} sent is removed, {by}, here \
             and on the homeservers that follow"
        )])
    }
}

impl RedactEvent {
    /// The event, if it is in the room.
    fn find(&self, context: &ActContext) -> Result<EventRef, ActError> {
        if self.say.as_ref().is_some_and(|say| say.len() > SAY_BYTES) {
            let why = format!("What the room is told has at most {SAY_BYTES} bytes.");
            return Err(ActError::Invalid(why));
        }
        let room_id = context.room(&self.room)?.id.clone();
        let no_event = || {
            let Self { event, room, .. } = self;
            ActError::Invalid(format!("There is no event `{event}` in {room}."))
        };
        let event_id = <&EventId>::try_from(&*self.event).map_err(|_| no_event())?;
        let found = context.engine.events().find_shown(&context.engine.state(), event_id)?;
        found.filter(|event| event.room_id == room_id).ok_or_else(no_event)
    }
}
