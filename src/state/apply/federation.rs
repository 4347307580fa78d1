//! What follows from commands about other homeservers.

use super::{Applied, Apply, ApplyError, At, Effect};
use crate::{Membership, State, rooms::graph::Change};
use logcabin_record::command::{
    Outcome, PeerDevices, PeerKeys, PeerReached, RoomGap, RoomPdu, RoomState, ServerKey,
    ServerOldKey,
};

impl Apply for ServerKey {
    fn apply(self, state: &State, at: At) -> Applied {
        state.federation_keys.sign_with(state.server().as_deref(), self, at.time_ms);
        Ok(Vec::new())
    }
}

impl Apply for ServerOldKey {
    fn apply(self, state: &State, _: At) -> Applied {
        state.federation_keys.retire(self);
        Ok(Vec::new())
    }
}

impl Apply for PeerKeys {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.federation_keys.learn(at.offset, self));
        Ok(Vec::new())
    }
}

impl Apply for PeerReached {
    fn apply(self, state: &State, at: At) -> Applied {
        for reached in &self.servers {
            let told = state.to_device.reached(&reached.server_name, reached.up_to);
            state.erasures.supersede(told);
        }
        state.erasures.supersede(state.destinations.reach(at.offset, self));
        Ok(Vec::new())
    }
}

impl Apply for PeerDevices {
    fn apply(self, state: &State, at: At) -> Applied {
        let effects = if self.changed { state.device_list(&self.user_id) } else { Vec::new() };
        state.erasures.supersede(state.device_lists.note(at.offset, self));
        Ok(effects)
    }
}

impl Apply for RoomState {
    fn apply(self, state: &State, at: At) -> Applied {
        // The state that the room has elsewhere, or that another branch of it has.
        let changes: Vec<_> = self.changes.into_iter().map(Change::of).collect();
        let mut effects = vec![Effect::WakeRoom(self.room_id.clone())];
        let members = changes.iter().filter_map(|change| change.membership.as_ref());
        for (user_id, membership) in members {
            if *membership == Membership::Join {
                state.device_lists.suspect(user_id);
            }
            if state.is_own(user_id) {
                effects.push(Effect::WakeUser(user_id.clone()));
            }
            state.memberships.set(at.offset, user_id, &self.room_id, *membership);
            let sender = user_id.as_str();
            state.usage.set_membership(at.offset, user_id, &self.room_id, *membership, sender);
        }
        state.rooms.reassign(at.offset, &self.room_id, changes);
        if let Some(joins) = self.unverified {
            state.rooms.claim(at.offset, &self.room_id, self.from, joins);
        }
        Ok(effects)
    }
}

impl Apply for RoomGap {
    fn apply(self, state: &State, at: At) -> Applied {
        for redacted in state.rooms.fill(at.offset, self) {
            state.note_redacted(redacted, at);
        }
        Ok(Vec::new())
    }
}

impl Apply for RoomPdu {
    fn apply(self, state: &State, at: At) -> Applied {
        if let Some(version) = self.room_version {
            let name = version.to_string();
            if !state.rooms.begin(at.offset, self.room_id.clone(), version) {
                return Err(ApplyError::RoomVersion { offset: at.offset, version: name });
            }
        }
        state.events.insert(at.offset, &self.event_id);
        state.note_imported(at);
        state.rooms.add_aside(at.offset, &self.room_id, &self.outcome);
        if self.outcome == Outcome::Outlier
            && let Some(waiting) = state.waiting(&self.pdu)
        {
            state.rooms.await_gap(at.offset, &self.room_id, waiting);
        }
        Ok(Vec::new())
    }
}
