//! Redacts what relates to an event that is redacted (MSC3912).

use std::collections::BTreeSet;

use futures_util::future::join_all;
use ruma::{
    CanonicalJsonObject, OwnedEventId, OwnedRoomId, OwnedUserId, events::TimelineEventType,
};

use super::orders::{OrderError, recorded};
use logcabin_base::limits;
use logcabin_decide::send::SendEvent;
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_record::{Offset, Origin};
use logcabin_state::Room;

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
    pub async fn redact(&self, engine: &Engine, origin: &Origin) -> Result<(), OrderError> {
        if self.rel_types.is_empty() {
            return Ok(());
        }
        let related = self.related(engine)?;
        for related in related.chunks(limits::REDACTED_AT_ONCE) {
            let redacting = related.iter().map(|event_id| {
                let redaction = SendEvent {
                    room_id: self.room_id.clone(),
                    sender: self.by.clone(),
                    event_type: TimelineEventType::RoomRedaction,
                    state_key: None,
                    content: self.content.clone().into(),
                    redacts: Some(event_id.clone()),
                    transaction: None,
                    ts: engine.clock().timestamp(),
                };
                recorded(engine, origin, redaction)
            });
            for redacted in join_all(redacting).await {
                // Refused: it stays.
                drop(redacted?);
            }
        }
        Ok(())
    }

    fn related(&self, engine: &Engine) -> Result<Vec<OwnedEventId>, ReadError> {
        let (state, events) = (engine.state(), engine.events());
        let Some(room) = state.rooms.get(&self.room_id) else { return Ok(Vec::new()) };
        let Some(parent) = events.find(&state, &self.parent)? else { return Ok(Vec::new()) };
        let mut related = Vec::new();
        for offset in self.children(&room, parent.offset) {
            related.extend(events.get(offset)?.map(|event| event.event_id.clone()));
        }
        Ok(related)
    }

    /// The newest events that relate to the one at `parent` and are not redacted.
    fn children(&self, room: &Room, parent: Offset) -> Vec<Offset> {
        let (at, all) = (Offset::MAX, (Offset::ZERO, Offset::MAX));
        let page = |rel_type: Option<&str>| {
            room.page_of_children(parent, rel_type, at, all, true, limits::RELATED_REDACTED)
        };
        let children: BTreeSet<_> = match self.rel_types.iter().any(|rel_type| rel_type == "*") {
            true => page(None).into_iter().collect(),
            false => self.rel_types.iter().flat_map(|rel_type| page(Some(rel_type))).collect(),
        };
        let children = children.into_iter().rev();
        let children = children.filter(|child| room.redaction_of(*child, at).is_none());
        children.take(limits::RELATED_REDACTED).collect()
    }
}
