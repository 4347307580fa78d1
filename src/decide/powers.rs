//! Power levels, where the authorisation rules leave checks to the server: redacting others'
//! events, removing aliases, admitting users to restricted rooms.

use std::collections::HashSet;

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, Int, OwnedUserId, UserId,
    events::{StateEventType, TimelineEventType},
    int,
    room_version_rules::AuthorizationRules,
    state_res::events::{RoomCreateEvent, RoomPowerLevelsEvent, RoomPowerLevelsIntField},
};

use logcabin_log::ReadError;
use logcabin_read::events::{EventRef, EventStore, as_shown};
use logcabin_record::Offset;
use logcabin_state::Room;

/// The powers of users in a room.
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

    /// The present powers in a room.
    pub fn of_room(room: &'a Room, events: &EventStore) -> Result<Self, ReadError> {
        let find = |kind: StateEventType| {
            let offset = room.state_event(&kind, "", Offset::MAX);
            let event = offset.map(|offset| events.get(offset)).transpose()?.flatten();
            Ok::<_, ReadError>(event.map(|event| as_shown(room, event, Offset::MAX)))
        };
        let create = find(StateEventType::RoomCreate)?;
        let levels = find(StateEventType::RoomPowerLevels)?;
        Ok(Self::new(&room.rules.authorization, create, levels))
    }

    /// The creators, if they are above all levels, and the users with levels of their own.
    pub fn named(&self) -> Vec<OwnedUserId> {
        let levels =
            self.levels.as_ref().and_then(|levels| levels.users(self.rules).ok().flatten());
        let creators = self.creators.iter().filter(|_| self.creators_above());
        creators.chain(levels.into_iter().flat_map(|users| users.keys())).cloned().collect()
    }

    /// The room's creators.
    pub fn creators(&self) -> &HashSet<OwnedUserId> {
        &self.creators
    }

    /// Creators are above all levels in versions that say so, and in rooms without levels.
    fn creators_above(&self) -> bool {
        self.rules.explicitly_privilege_room_creators || self.levels.is_none()
    }

    pub(crate) fn has_level(&self, user_id: &UserId, field: RoomPowerLevelsIntField) -> bool {
        self.reaches(user_id, || match &self.levels {
            Some(levels) => levels.get_as_int_or_default(field, self.rules),
            None => Ok(field.default_value()),
        })
    }

    /// The user's level. None, which is less than any, if the levels are not valid.
    pub fn level(&self, user_id: &UserId) -> Option<Int> {
        if self.creators_above() && self.creators.contains(user_id) {
            return Some(Int::MAX);
        }
        match &self.levels {
            Some(levels) => levels.user_power_level(user_id, self.rules).ok(),
            None => Some(Int::from(0)),
        }
    }

    /// Whether `user_id` may send state of this type with an empty key.
    pub(crate) fn may_send_state(&self, user_id: &UserId, event_type: StateEventType) -> bool {
        let event_type = TimelineEventType::from(event_type.to_string());
        self.reaches(user_id, || match &self.levels {
            Some(levels) => levels.event_power_level(&event_type, Some(""), self.rules),
            // Without power levels, any member may send state.
            None => Ok(Int::from(0)),
        })
    }

    /// Whether `user_id` may redact events of others, and send redactions.
    pub(crate) fn may_redact_others(&self, user_id: &UserId) -> bool {
        self.has_level(user_id, RoomPowerLevelsIntField::Redact)
            && self.reaches(user_id, || match &self.levels {
                Some(levels) => {
                    let redaction = TimelineEventType::RoomRedaction;
                    levels.event_power_level(&redaction, None, self.rules)
                }
                None => Ok(Int::from(0)),
            })
    }

    fn reaches(&self, user_id: &UserId, needed: impl FnOnce() -> Result<Int, String>) -> bool {
        if self.creators_above() && self.creators.contains(user_id) {
            return true;
        }
        // Invalid levels give nobody any power.
        matches!((self.level(user_id), needed()), (Some(level), Ok(needed)) if level >= needed)
    }
}

/// For versions whose creators are above all levels: only they may end the room. So the level for a
/// tombstone is above any level likely to be granted, and in any case above `state_default`
/// (client-server API, `POST /createRoom`).
pub(super) fn raise_tombstone(levels: &mut CanonicalJsonObject) {
    let level = |value: Option<&CanonicalJsonValue>| value.and_then(CanonicalJsonValue::as_integer);
    let state_default = level(levels.get("state_default")).unwrap_or_else(|| int!(50));
    let events = levels
        .entry("events".to_owned())
        .or_insert_with(|| CanonicalJsonValue::Object(CanonicalJsonObject::new()));
    // The room's rules refuse anything but an object.
    if let CanonicalJsonValue::Object(events) = events
        && level(events.get("m.room.tombstone"))
            .is_none_or(|level| level <= state_default.max(int!(100)))
    {
        let raised = state_default.saturating_add(int!(1)).max(int!(150));
        events.insert("m.room.tombstone".to_owned(), CanonicalJsonValue::Integer(raised));
    }
}

#[cfg(test)]
mod tests {
    use ruma::RoomVersionId;
    use serde_json::{Value, json};

    use super::*;
    use logcabin_read::events::StoredEvent;
    use logcabin_record::command::RoomEvent;

    fn event(event_type: &str, content: Value) -> EventRef {
        let pdu = json!({
            "type": event_type, "state_key": "", "sender": "@creator:test", "depth": 1,
            "origin_server_ts": 1, "room_id": "!room:test", "content": content,
        });
        let body = RoomEvent::new(
            "!room:test".try_into().unwrap(),
            "$event".try_into().unwrap(),
            serde_json::value::to_raw_value(&pdu).unwrap(),
        );
        EventRef::new(StoredEvent::new(Offset::ZERO, body).unwrap())
    }

    /// Whether the creator, a user with level 50 (where there are levels), and an unlisted user
    /// may.
    fn who(
        version: &RoomVersionId,
        levels: Option<Value>,
        may: impl Fn(&Powers<'_>, &UserId) -> bool,
    ) -> [bool; 3] {
        let rules = version.rules().unwrap().authorization;
        let create = event("m.room.create", json!({ "creator": "@creator:test" }));
        let levels = levels.map(|levels| event("m.room.power_levels", levels));
        let powers = Powers::new(&rules, Some(create), levels);
        ["@creator:test", "@half:test", "@none:test"]
            .map(|user_id| may(&powers, <&UserId>::try_from(user_id).unwrap()))
    }

    #[test]
    fn without_power_levels_the_creator_has_100_everyone_else_0_and_defaults_apply() {
        use RoomPowerLevelsIntField::{Ban, Invite, Kick, Redact};
        for version in [RoomVersionId::V3, RoomVersionId::V10, RoomVersionId::V12] {
            for (field, to_all) in [(Ban, false), (Kick, false), (Redact, false), (Invite, true)] {
                let may = who(&version, None, |powers, user_id| powers.has_level(user_id, field));
                assert_eq!(may, [true, to_all, to_all], "version {version}: {field}");
            }
            let name = StateEventType::RoomName;
            let may = who(&version, None, |powers, id| powers.may_send_state(id, name.clone()));
            assert_eq!(may, [true; 3], "version {version}: state");
        }
    }

    #[test]
    fn power_levels_apply_to_a_creator_unless_the_version_puts_creators_above_all() {
        let levels = json!({ "users": { "@half:test": 50 }, "redact": 51, "kick": 50 });
        for (version, above) in [(RoomVersionId::V11, false), (RoomVersionId::V12, true)] {
            for (field, half) in
                [(RoomPowerLevelsIntField::Redact, false), (RoomPowerLevelsIntField::Kick, true)]
            {
                let levels = Some(levels.clone());
                let may = who(&version, levels, |powers, user_id| powers.has_level(user_id, field));
                assert_eq!(may, [above, half, false], "version {version}: {field}");
            }
            let alias = StateEventType::RoomCanonicalAlias;
            let may = who(&version, Some(levels.clone()), |powers, user_id| {
                powers.may_send_state(user_id, alias.clone())
            });
            assert_eq!(may, [above, true, false], "version {version}: state");
        }
    }

    #[test]
    fn invalid_levels_give_nobody_power() {
        let levels = json!({ "users": "nonsense" });
        let may = |powers: &Powers<'_>, user_id: &UserId| {
            powers.has_level(user_id, RoomPowerLevelsIntField::Invite)
        };
        assert_eq!(who(&RoomVersionId::V11, Some(levels), may), [false; 3]);
    }
}
