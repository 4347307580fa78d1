//! Power levels, for what the authorisation rules leave to the server: who may redact others' events,
//! remove aliases, let people into restricted rooms.

use std::collections::HashSet;

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, Int, OwnedUserId, UserId,
    events::{StateEventType, TimelineEventType},
    int,
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

    /// The creators, where they stand above all, and those who have a level of their own.
    #[must_use]
    pub fn named(&self) -> Vec<OwnedUserId> {
        let levels =
            self.levels.as_ref().and_then(|levels| levels.users(self.rules).ok().flatten());
        let creators = self.creators.iter().filter(|_| self.creators_above());
        creators.chain(levels.into_iter().flat_map(|users| users.keys())).cloned().collect()
    }

    /// The room's creators.
    #[must_use]
    pub fn creators(&self) -> &HashSet<OwnedUserId> {
        &self.creators
    }

    /// Creators are above all levels in the versions that say so, and in rooms without levels.
    fn creators_above(&self) -> bool {
        self.rules.explicitly_privilege_room_creators || self.levels.is_none()
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
        if self.creators_above() && self.creators.contains(user_id) {
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

/// For rooms whose creators stand above all levels: only they may end the room, so the level for that is
/// above what can be expected to be given away, and above `state_default` in any case (client-server
/// API, `POST /createRoom`).
pub(super) fn raise_tombstone(levels: &mut CanonicalJsonObject) {
    let level = |value: Option<&CanonicalJsonValue>| value.and_then(CanonicalJsonValue::as_integer);
    let state_default = level(levels.get("state_default")).unwrap_or_else(|| int!(50));
    let events = levels
        .entry("events".to_owned())
        .or_insert_with(|| CanonicalJsonValue::Object(CanonicalJsonObject::new()));
    // What is not an object is refused by the room's rules.
    if let CanonicalJsonValue::Object(events) = events
        && level(events.get("m.room.tombstone"))
            .is_none_or(|level| level <= state_default.max(int!(100)))
    {
        let raised = state_default.saturating_add(int!(1)).max(int!(150));
        events.insert("m.room.tombstone".to_owned(), CanonicalJsonValue::Integer(raised));
    }
}
