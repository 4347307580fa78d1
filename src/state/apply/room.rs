//! What follows from commands of rooms.

use super::{Applied, Apply, At};
use crate::{
    record::command::{
        AliasRemove, AliasSet, DelayedFinish, DelayedRestart, DelayedSchedule, NoticeRoom,
        ReportCreate, ReportRemove, RoomBlock, RoomErase, RoomEvent, RoomForget, RoomNetwork,
        RoomPurge, RoomReceipt, RoomShutdown, RoomShutdownFinish, RoomTyping, RoomUndo,
        RoomVisibility,
    },
    state::{Effect, State},
};

impl Apply for RoomEvent {
    fn apply(self, state: &State, at: At) -> Applied {
        state.apply_event(at.offset, at.time_ms, self)
    }
}

impl Apply for RoomErase {
    fn apply(self, state: &State, at: At) -> Applied {
        let gone = state.rooms.erase(at.offset, &self.room_id, &self.events);
        // What scheduled an event has the same content.
        let scheduled: Vec<_> =
            gone.iter().filter_map(|event| state.delayed.sent_as(*event)).collect();
        state.erasures.condemn(at.offset, gone.into_iter().chain(scheduled));
        Ok(Vec::new())
    }
}

impl Apply for RoomPurge {
    fn apply(self, state: &State, at: At) -> Applied {
        Ok(state.purge(at.offset, self))
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
        // One who goes on typing is no news.
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
        state.reports.add(at.offset, at.time_ms, self);
        Ok(Vec::new())
    }
}

impl Apply for ReportRemove {
    fn apply(self, state: &State, _: At) -> Applied {
        state.reports.remove(&self);
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
