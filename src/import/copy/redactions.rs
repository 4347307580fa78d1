//! What the source shows as redacted, and no redaction in the log would redact.
//!
//! A record of a redaction names the event before it that it redacts. Where the redaction was there
//! first, or is no event of its own, the event comes along as the source shows it: without what a
//! redaction removes, which leaves its id as it was.

use ruma::OwnedEventId;
use serde_json::value::RawValue;

use super::{
    prepare::{EventFacts, ReadyEvent},
    writer::Writer,
};
use crate::{
    ImportError,
    facts::{BanRedaction, Cursor, Event, Fact, Section},
};
use logcabin_read::events::StoredEvent;
use logcabin_record::{Offset, command::RoomEvent, division::bare};

/// The type of redactions.
const REDACTION: &str = "m.room.redaction";

impl Writer<'_> {
    /// Keeps that a ban redacts what a user has sent.
    pub(super) fn know_ban(&mut self, ban: BanRedaction) -> Result<(), ImportError> {
        let BanRedaction { room_id, user_id, event_id, until } = ban;
        let is_new = self.known.events.get(&event_id).is_none();
        let is_copied = self.known.room(&room_id).is_some();
        if is_new && is_copied && !self.banned.contains_key(&(room_id.clone(), user_id.clone())) {
            let line = format!(
                "room {room_id}: {event_id} bans {user_id} and redacts what they sent; what was \
                 copied before that is shown here"
            );
            self.list.note(&mut self.progress.counts, &line)?;
        }
        self.banned.insert((room_id, user_id), until);
        Ok(())
    }

    /// An event that gets a place in its room, as the source shows it.
    pub(super) fn as_shown(
        &mut self,
        event: &Event,
        ready: ReadyEvent,
    ) -> Result<ReadyEvent, ImportError> {
        // The source never redacts the first. Of a redaction, it keeps what it redacts.
        if ["m.room.create", REDACTION].contains(&&*ready.facts.event_type) {
            return Ok(ready);
        }
        if self.is_of_banned(event) || self.was_redacted(&ready)? {
            return Ok(without_content(ready));
        }
        Ok(ready)
    }

    /// Whether a ban redacts an event. Those from the past are redacted, however old they are.
    fn is_of_banned(&self, event: &Event) -> bool {
        if self.banned.is_empty() {
            return false;
        }
        let of = (event.room_id.clone(), event.sender.clone());
        let place = event.first_stream.unwrap_or(event.stream);
        self.banned.get(&of).is_some_and(|until| until.is_none_or(|until| place < until))
    }

    /// Whether a redaction that takes effect on an event came before it.
    fn was_redacted(&mut self, ready: &ReadyEvent) -> Result<bool, ImportError> {
        let unmet = self.known.room(ready.room_id.as_str()).map(|room| &room.unmet);
        let before = unmet.and_then(|unmet| unmet.get(ready.event_id.as_str())).cloned();
        for redaction in before.into_iter().flatten() {
            if self.progress.moderated.contains(&redaction) {
                return Ok(true);
            }
            let by = self.event_at(redaction)?;
            if by.is_some_and(|by| by.sender.server_name() == ready.sender.server_name()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What a redaction is about. One that was redacted itself may not say it any more.
    pub(super) fn redacted_by(
        &mut self,
        ready: &ReadyEvent,
    ) -> Result<Option<OwnedEventId>, ImportError> {
        let facts = &ready.facts;
        if facts.redacts.is_some() || facts.event_type != REDACTION {
            return Ok(facts.redacts.clone());
        }
        let owners = [ready.event_id.to_string()];
        let slice = self.feeder.slice_of(Section::Redactions, &owners, &Cursor::START)?;
        let target = slice.facts.into_iter().find_map(|ready| match ready.told.fact {
            Fact::Redaction(redaction) => OwnedEventId::try_from(redaction.redacts).ok(),
            _ => None,
        });
        Ok(target)
    }
}

/// An event as it is once it was redacted.
fn without_content(ready: ReadyEvent) -> ReadyEvent {
    let bare = |pdu: &RawValue| bare(pdu, &ready.rules);
    let (pdu, unsigned) = (bare(&ready.pdu), ready.unsigned.as_deref().map(bare));
    let body = RoomEvent::new(ready.room_id.clone(), ready.event_id.clone(), pdu.clone());
    let facts = StoredEvent::new(Offset::ZERO, body).ok();
    match facts.and_then(|event| EventFacts::of(&event).ok()) {
        Some(facts) => ReadyEvent { pdu, unsigned, facts, ..ready },
        None => ready,
    }
}
