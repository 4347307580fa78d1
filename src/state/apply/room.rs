//! What follows from commands of rooms.

use ruma::{EventId, RoomId};

use super::{Applied, Apply, At, Effect};
use crate::{
    State, erasures,
    reads::{Covers, Thread},
};
use logcabin_record::{
    Offset,
    command::{
        AliasRemove, AliasSet, DelayedFinish, DelayedRestart, DelayedSchedule, EventsEnd,
        NoticeRoom, Receipt, ReportCreate, ReportRemove, ReportReopen, RoomBlock, RoomErase,
        RoomForget, RoomNetwork, RoomPurge, RoomPurgeHistory, RoomPurgeHistoryFinish, RoomReceipt,
        RoomRedactSender, RoomShutdown, RoomShutdownFinish, RoomTyping, RoomUndo, RoomVisibility,
    },
};

impl Apply for RoomErase {
    fn apply(self, state: &State, at: At) -> Applied {
        let gone = state.rooms.erase(at.offset, &self.room_id, &self.events);
        if let EventsEnd::Purge { id } = &self.why {
            state.history_purges.count(id, self.events.len());
        }
        // What scheduled an event has the same content.
        let scheduled: Vec<_> =
            gone.iter().filter_map(|event| state.delayed.sent_as(*event)).collect();
        state.erasures.condemn(at.offset, gone.into_iter().chain(scheduled));
        Ok(Vec::new())
    }
}

impl Apply for RoomPurge {
    fn apply(self, state: &State, at: At) -> Applied {
        let room_id = self.room_id;
        let named = erasures::named(&self.records, at.offset);
        state.aliases.forget(&room_id, |record| named.contains(&record));
        state.erasures.condemn(at.offset, named);
        if self.more {
            return Ok(Vec::new());
        }
        let Some(room) = state.rooms.purge(&room_id) else { return Ok(Vec::new()) };
        state.memberships.end_room(at.offset, &room_id, &room.members);
        state.usage.end_room(&room_id);
        state.aliases.end_room(at.offset, &room_id);
        state.reads.forget_room(&room_id);
        state.sender_redactions.end_room(&room_id);
        state.erasures.supersede(room.ephemeral);
        let mut records = state.accounts.forget_room(at.offset, &room_id);
        records.extend(state.delayed.of_room(&room_id));
        records.extend(room.events.iter().filter_map(|event| state.delayed.sent_as(*event)));
        records.extend(room.events);
        state.erasures.condemn(at.offset, records);
        let purged =
            erasures::Purged { because: at.offset, version: room.version, created: room.created };
        state.erasures.purge(room_id, purged);
        Ok(room.members.into_iter().map(Effect::WakeUser).collect())
    }
}

impl Apply for RoomPurgeHistory {
    fn apply(self, state: &State, at: At) -> Applied {
        state.history_purges.begin(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for RoomPurgeHistoryFinish {
    fn apply(self, state: &State, at: At) -> Applied {
        state.history_purges.finish(at.offset, &self);
        Ok(Vec::new())
    }
}

impl Apply for RoomRedactSender {
    fn apply(self, state: &State, at: At) -> Applied {
        if self.events.is_empty() && !self.complete {
            state.sender_redactions.begin(at.offset, self);
            return Ok(vec![Effect::RedactSender]);
        }
        let room = state.rooms.get(&self.room_id);
        let redacted = room.map(|room| room.redact(at.offset, self.events)).unwrap_or_default();
        for event in &redacted {
            state.note_redacted(*event, at);
        }
        if self.complete {
            state.sender_redactions.end(&self.room_id, &self.because);
        }
        let wakes = (!redacted.is_empty()).then_some(Effect::WakeRoom(self.room_id));
        Ok(wakes.into_iter().collect())
    }
}

impl Apply for RoomForget {
    fn apply(self, state: &State, at: At) -> Applied {
        state.memberships.forget(at.offset, &self.user_id, &self.room_id);
        Ok(Vec::new())
    }
}

impl Apply for RoomUndo {
    fn apply(self, state: &State, at: At) -> Applied {
        state.undone.add(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for RoomVisibility {
    fn apply(self, state: &State, at: At) -> Applied {
        state.rooms.set_visibility(at.offset, &self);
        Ok(Vec::new())
    }
}

impl Apply for RoomNetwork {
    fn apply(self, state: &State, _: At) -> Applied {
        state.rooms.set_network(self);
        Ok(Vec::new())
    }
}

impl Apply for RoomReceipt {
    fn apply(self, state: &State, at: At) -> Applied {
        let mut effects: Vec<_> = self
            .receipts
            .iter()
            .map(|receipt| match receipt.receipt_type.as_str() {
                "m.read.private" => Effect::WakeUser(receipt.user_id.clone()),
                _ => Effect::WakeRoom(self.room_id.clone()),
            })
            .collect();
        effects.dedup();
        for receipt in &self.receipts {
            state.apply_read(at.offset, &self.room_id, receipt);
        }
        state.erasures.supersede(state.rooms.set_receipts(at.offset, self));
        Ok(effects)
    }
}

impl Apply for RoomTyping {
    fn apply(self, state: &State, at: At) -> Applied {
        // Continued typing is not a change.
        let effect = self.since.is_none().then(|| Effect::WakeRoom(self.room_id.clone()));
        state.erasures.supersede(state.rooms.set_typing(at.offset, self));
        Ok(effect.into_iter().collect())
    }
}

impl Apply for RoomBlock {
    fn apply(self, state: &State, at: At) -> Applied {
        state.closures.block(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for RoomShutdown {
    fn apply(self, state: &State, at: At) -> Applied {
        state.closures.begin(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for RoomShutdownFinish {
    fn apply(self, state: &State, at: At) -> Applied {
        state.closures.finish(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for NoticeRoom {
    fn apply(self, state: &State, _: At) -> Applied {
        state.notices.set(self);
        Ok(Vec::new())
    }
}

impl Apply for ReportCreate {
    fn apply(self, state: &State, at: At) -> Applied {
        state.reports.add(at.offset, at.happened_ms, self);
        Ok(Vec::new())
    }
}

impl Apply for ReportRemove {
    fn apply(self, state: &State, at: At) -> Applied {
        state.reports.remove(at.offset, &self);
        Ok(Vec::new())
    }
}

impl Apply for ReportReopen {
    fn apply(self, state: &State, _: At) -> Applied {
        state.reports.reopen(self);
        Ok(Vec::new())
    }
}

impl Apply for DelayedSchedule {
    fn apply(self, state: &State, at: At) -> Applied {
        state.transactions.note(at.offset, self.transaction.as_ref());
        state.delayed.schedule(at.offset, self);
        Ok(vec![Effect::Delayed])
    }
}

impl Apply for DelayedRestart {
    fn apply(self, state: &State, _: At) -> Applied {
        state.delayed.restart(&self);
        Ok(vec![Effect::Delayed])
    }
}

impl Apply for DelayedFinish {
    fn apply(self, state: &State, _: At) -> Applied {
        state.delayed.finish(self);
        Ok(vec![Effect::Delayed])
    }
}

impl Apply for AliasSet {
    fn apply(self, state: &State, at: At) -> Applied {
        state.aliases.set(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for AliasRemove {
    fn apply(self, state: &State, at: At) -> Applied {
        state.aliases.remove(at.offset, self);
        Ok(Vec::new())
    }
}

impl State {
    /// A receipt for an event or in a thread that the room does not have is ignored.
    fn apply_read(&self, offset: Offset, room_id: &RoomId, receipt: &Receipt) {
        let thread = match receipt.thread_id.as_deref() {
            None => Some(Covers::All),
            Some("main") => Some(Covers::Only(Thread::Main)),
            Some(root) => <&EventId>::try_from(root)
                .ok()
                .and_then(|root| self.event_in_room(room_id, root))
                .map(|root| Covers::Only(Thread::Root(root))),
        };
        if let Some(covers) = thread
            && let Some(up_to) = self.event_in_room(room_id, &receipt.event_id)
        {
            // Read positions of users of other homeservers are not needed here.
            let server = self.server();
            if server.is_some_and(|own| receipt.user_id.server_name() != &*own.server_name) {
                return;
            }
            self.pushers.note_read(&receipt.user_id);
            let (user_id, room_id) = (receipt.user_id.clone(), room_id.to_owned());
            self.reads.advance(offset, user_id, room_id, covers, up_to);
        }
    }
}
