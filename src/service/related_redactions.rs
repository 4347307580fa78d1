//! Redacts what relates to an event that is redacted (MSC3912).

use futures_util::future::join_all;
use ruma::{
    CanonicalJsonObject, OwnedEventId, OwnedRoomId, OwnedUserId, events::TimelineEventType,
};

use logcabin_base::{background::at_length, limits};
use logcabin_decide::{
    Refusal,
    redaction::{RedactOnce, may_redact_others},
    send::SendEvent,
};
use logcabin_engine::{Engine, ProposeError};
use logcabin_record::{Offset, Origin};
use logcabin_state::RelatesTo;

/// Redact events by their relation to one that was redacted.
#[derive(Clone, Debug)]
pub struct RedactRelated {
    pub room_id: OwnedRoomId,
    pub parent: OwnedEventId,
    /// The relation types; `*` stands for all.
    pub rel_types: Vec<String>,
    pub by: OwnedUserId,
    /// The content of the redactions.
    pub content: CanonicalJsonObject,
}

impl RedactRelated {
    /// Redacts the related events, each by an event of its own, the newest first. Those that the
    /// user may not redact stay. A request that is repeated redacts what is left.
    ///
    /// # Errors
    /// When the log takes no writes, for example; some of the events may have been redacted.
    pub async fn redact(&self, engine: &Engine, origin: &Origin) -> Result<(), ProposeError> {
        if self.rel_types.is_empty() {
            return Ok(());
        }
        let related = at_length(|| self.related(engine))?;
        for related in related.chunks(limits::REDACTED_AT_ONCE) {
            let redactions = related.iter().map(|event_id| self.redaction(engine, event_id));
            let redacting = redactions.map(|redaction| engine.propose(origin.clone(), redaction));
            for redacted in join_all(redacting).await {
                match redacted {
                    Ok(_) | Err(ProposeError::Refused(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn redaction(&self, engine: &Engine, event_id: &OwnedEventId) -> RedactOnce {
        RedactOnce(SendEvent {
            room_id: self.room_id.clone(),
            sender: self.by.clone(),
            event_type: TimelineEventType::RoomRedaction,
            state_key: None,
            content: self.content.clone().into(),
            redacts: Some(event_id.clone()),
            transaction: None,
            ts: engine.clock().timestamp(),
        })
    }

    /// The newest related events that are not redacted and that the user may redact. State is not
    /// among them: whoever sets it could have a room's foundations redacted by somebody else.
    fn related(&self, engine: &Engine) -> Result<Vec<OwnedEventId>, Refusal> {
        let (state, events) = (engine.state(), engine.events());
        let mut related = Vec::new();
        let Some(room) = state.rooms.get(&self.room_id) else { return Ok(related) };
        let Some(parent) = events.find(&state, &self.parent)? else { return Ok(related) };
        let may_all = may_redact_others(events, &room, &self.by)?;
        let is_wanted =
            |rel_type: &str| self.rel_types.iter().any(|of| of == "*" || of == rel_type);
        let (most, now) = (limits::RELATED_REDACTED, Offset::MAX);
        let (mut to, mut looked) = (now, 0);
        while looked < limits::RELATED_LOOKED_AT {
            let stretch = (Offset::ZERO, to);
            let page = room.page_of_children(parent.offset, None, now, stretch, true, most);
            let Some(last) = page.last() else { break };
            (to, looked) = (last.prev(), looked + page.len());
            let there = page.into_iter().filter(|child| room.redaction_of(*child, now).is_none());
            for child in there {
                let Some(event) = events.get(child)? else { continue };
                let relation = RelatesTo::of(&event.content);
                let is_wanted = relation.is_some_and(|relation| is_wanted(&relation.rel_type));
                let is_state = event.state_key.is_some();
                if is_wanted && !is_state && (may_all || event.sender == self.by) {
                    related.push(event.event_id.clone());
                }
                if related.len() >= most {
                    return Ok(related);
                }
            }
        }
        Ok(related)
    }
}
