//! Power levels, for what the authorisation rules leave to the server: who may redact others' events,
//! remove aliases, let people into restricted rooms.

use std::collections::HashSet;

use ruma::{
    Int, OwnedUserId, UserId,
    events::{StateEventType, TimelineEventType},
    room_version_rules::AuthorizationRules,
    state_res::events::{RoomCreateEvent, RoomPowerLevelsEvent, RoomPowerLevelsIntField},
};

use crate::events::EventRef;

/// Who may do what in a room.
pub struct Powers<'a> {
    rules: &'a AuthorizationRules,
    creators: HashSet<OwnedUserId>,
    levels: Option<RoomPowerLevelsEvent<EventRef>>,
}

impl<'a> Powers<'a> {
    pub(super) fn new(
        rules: &'a AuthorizationRules,
        create: Option<EventRef>,
        levels: Option<EventRef>,
    ) -> Self {
        let creators = create.and_then(|create| RoomCreateEvent::new(create).creators(rules).ok());
        Self {
            rules,
            creators: creators.unwrap_or_default(),
            levels: levels.map(RoomPowerLevelsEvent::new),
        }
    }

    /// Whether `user_id` may do what needs the level `field`.
    #[must_use]
    pub fn has_level(&self, user_id: &UserId, field: RoomPowerLevelsIntField) -> bool {
        self.reaches(user_id, || match &self.levels {
            Some(levels) => levels.get_as_int_or_default(field, self.rules),
            None => Ok(field.default_value()),
        })
    }

    /// Whether `user_id` may send state of this type with an empty key.
    #[must_use]
    pub fn may_send_state(&self, user_id: &UserId, event_type: StateEventType) -> bool {
        let event_type = TimelineEventType::from(event_type.to_string());
        self.reaches(user_id, || match &self.levels {
            Some(levels) => levels.event_power_level(&event_type, Some(""), self.rules),
            // Without power levels, any member may send state.
            None => Ok(Int::from(0)),
        })
    }

    fn reaches(&self, user_id: &UserId, needed: impl FnOnce() -> Result<Int, String>) -> bool {
        // Creators are above all levels in the versions that say so, and in rooms without levels.
        let above = self.rules.explicitly_privilege_room_creators || self.levels.is_none();
        if above && self.creators.contains(user_id) {
            return true;
        }
        let level = match &self.levels {
            Some(levels) => levels.user_power_level(user_id, self.rules),
            None => Ok(Int::from(0)),
        };
        // Levels that cannot be read give nobody any power.
        matches!((level, needed()), (Ok(level), Ok(needed)) if level >= needed)
    }
}
