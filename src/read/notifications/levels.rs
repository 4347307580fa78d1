//! Whether the sender of an event may notify a whole room (client-server API,
//! `m.room.power_levels`, `notifications`).

use std::collections::{BTreeMap, HashSet};

use ruma::{
    Int, OwnedUserId,
    room_version_rules::AuthorizationRules,
    state_res::events::{RoomCreateEvent, RoomPowerLevelsEvent, RoomPowerLevelsIntField},
};

use crate::events::{Derived, EventRef};

/// The default level for a kind of notification.
const NOTIFICATION_LEVEL: i32 = 50;

/// The power levels of a room for notifications.
#[derive(Debug, Default)]
pub struct Levels {
    /// The users who are above all levels.
    above: HashSet<OwnedUserId>,
    users: BTreeMap<OwnedUserId, Int>,
    users_default: Int,
    notifications: BTreeMap<String, Int>,
}

impl Levels {
    /// The levels of a room of a version with these rules. Invalid levels give nobody any power.
    pub fn new(
        rules: &AuthorizationRules,
        create: Option<EventRef>,
        levels: Option<EventRef>,
    ) -> Self {
        let creators = create.and_then(|create| RoomCreateEvent::new(create).creators(rules).ok());
        let mut new = Self::default();
        // Creators are above all levels in the versions that say so, and in rooms without levels.
        if rules.explicitly_privilege_room_creators || levels.is_none() {
            new.above = creators.unwrap_or_default();
        }
        if let Some(levels) = levels.map(RoomPowerLevelsEvent::new) {
            let users_default = RoomPowerLevelsIntField::UsersDefault;
            let Ok(users) = levels.users(rules) else { return new };
            let Ok(users_default) = levels.get_as_int_or_default(users_default, rules) else {
                return new;
            };
            new.users = users.cloned().unwrap_or_default();
            new.users_default = users_default;
            new.notifications = levels.notifications(rules).ok().flatten().unwrap_or_default();
        }
        new
    }

    /// Whether `user_id` may send notifications of the kind `key`.
    pub(crate) fn may_notify(&self, user_id: &str, key: &str) -> bool {
        let Ok(user_id) = <&ruma::UserId>::try_from(user_id) else { return false };
        let needed = self.notifications.get(key).copied();
        let level = self.users.get(user_id).unwrap_or(&self.users_default);
        self.above.contains(user_id)
            || *level >= needed.unwrap_or_else(|| NOTIFICATION_LEVEL.into())
    }
}

impl Derived for Levels {
    fn weight(&self) -> u64 {
        128 * (1 + self.above.len() + self.users.len() + self.notifications.len()) as u64
    }
}
