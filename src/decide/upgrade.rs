//! Room upgrades: a new room replaces an old one (client-server API, "Room upgrades").

use std::{collections::HashSet, sync::Arc};

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, Int, MilliSecondsSinceUnixEpoch, OwnedRoomId,
    OwnedUserId, RoomId, RoomVersionId, UserId,
    events::{StateEventType, room::member::MembershipState},
    int,
    room_version_rules::{AuthorizationRules, RoomVersionRules},
};
use serde_json::{json, value::RawValue};

use super::{
    Commit, Membership, NewEvent, Proposal, Refusal,
    canonical_alias::aliases,
    create_room::{begin, rules_of},
    directory::disclaim,
    member_event::member_content,
    not_in_it, object,
    powers::raise_tombstone,
};
use logcabin_base::limits;
use logcabin_read::{
    events::{StoredEvent, as_shown, to_raw},
    notifications::ruleset,
};
use logcabin_record::{
    Offset, Stream,
    command::{AccountDataSet, AliasSet, RoomVisibility},
};
use logcabin_state::Room;

/// State with an empty key that is copied to the new room, in addition to the power levels.
const CARRIED: [StateEventType; 8] = [
    StateEventType::RoomJoinRules,
    StateEventType::RoomHistoryVisibility,
    StateEventType::RoomGuestAccess,
    StateEventType::RoomEncryption,
    StateEventType::RoomServerAcl,
    StateEventType::RoomName,
    StateEventType::RoomTopic,
    StateEventType::RoomAvatar,
];

/// Replace a room by a new one of another version.
#[derive(Clone, Debug)]
pub struct UpgradeRoom {
    pub room_id: OwnedRoomId,
    /// The id of the new one, unless its version derives the id from the create event.
    pub replacement: OwnedRoomId,
    /// The version of the new one.
    pub version: RoomVersionId,
    /// Creators of the new room in addition to the sender, in versions that allow more than one.
    pub additional_creators: Vec<OwnedUserId>,
    pub sender: OwnedUserId,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

impl Proposal for UpgradeRoom {
    type Outcome = OwnedRoomId;

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    /// One batch, which is never half there. Even so, the old room's tombstone comes after all of
    /// the new room, because a log that is rebuilt from an archive may end in between.
    fn decide(&self, commit: &mut Commit<'_>) -> Result<OwnedRoomId, Refusal> {
        let env = commit.env;
        let rules = rules_of(&self.version)?;
        let draft = commit.room(&self.room_id)?;
        if draft.membership(env, &self.sender)? != Some(Membership::Join) {
            return Err(Refusal::Forbidden("You are not in this room.".to_owned()));
        }
        let powers = draft.powers(env)?;
        if !powers.may_send_state(&self.sender, StateEventType::RoomTombstone) {
            return Err(Refusal::Forbidden("You may not upgrade this room.".to_owned()));
        }
        env.quotas.room(&env.state, &self.sender)?;
        let old_creators = powers.creators().clone();
        let old = env.state.rooms.get(&self.room_id);
        let old = old.ok_or_else(not_in_it)?;

        let replacement = self.make_room(commit, &old, &old_creators, &rules)?;
        self.move_aliases(commit, &old, &replacement)?;
        self.close(commit, &old, &replacement)?;
        carry_settings(commit, &self.sender, &self.room_id, &replacement)?;
        Ok(replacement)
    }
}

impl UpgradeRoom {
    fn event(&self, event_type: &str, state_key: &str, content: CanonicalJsonObject) -> NewEvent {
        NewEvent::state(event_type.into(), state_key, content, &self.sender, self.ts)
    }

    /// Creates the new room. Its power levels come last: until then its creator may set everything,
    /// whatever the old levels say.
    fn make_room(
        &self,
        commit: &mut Commit<'_>,
        old: &Arc<Room>,
        old_creators: &HashSet<OwnedUserId>,
        rules: &RoomVersionRules,
    ) -> Result<OwnedRoomId, Refusal> {
        let env = commit.env;
        let shown = |offset| -> Result<Option<CanonicalJsonObject>, Refusal> {
            let event = env.events.get(offset)?.map(|event| as_shown(old, event, Offset::MAX));
            Ok(event.and_then(|event| event.content_as().ok()))
        };
        let state = |event_type: &StateEventType| match old.state_event(event_type, "", Offset::MAX)
        {
            Some(offset) => shown(offset),
            None => Ok(None),
        };
        let create = self.create_content(old, state(&StateEventType::RoomCreate)?, rules);
        let room_id = (!rules.authorization.room_create_event_id_as_room_id)
            .then(|| self.replacement.clone());
        let create = self.event("m.room.create", "", create);
        let room_id = begin(commit, room_id, &self.version, rules, create)?;
        let join = member_content(env, &self.sender, MembershipState::Join, None);
        commit.add_event(self.event("m.room.member", self.sender.as_str(), join))?;

        for event_type in &CARRIED {
            let Some(mut content) = state(event_type)? else { continue };
            if *event_type == StateEventType::RoomJoinRules {
                fit_join_rule(&mut content, &rules.authorization);
            }
            commit.add_event(self.event(&event_type.to_string(), "", content))?;
        }
        let banned = old.members(Membership::Ban, Offset::MAX);
        let children = old.state_of_type(&StateEventType::SpaceChild, Offset::MAX);
        if banned.len() + children.len() > limits::UPGRADE_EVENTS {
            return Err(Refusal::TooLarge(format!(
                "The room has more than {} bans and children: too many to carry over.",
                limits::UPGRADE_EVENTS
            )));
        }
        for (state_key, offset) in children {
            // A child without servers was removed from the space.
            if let Some(content) = shown(offset)?.filter(|content| content.contains_key("via")) {
                commit.add_event(self.event("m.space.child", &state_key, content))?;
            }
        }
        let mut new_creators = HashSet::from([self.sender.clone()]);
        new_creators.extend(self.additional_creators.iter().cloned());
        for (user_id, offset) in banned.into_iter().filter(|(id, _)| !new_creators.contains(id)) {
            let reason = shown(offset)?.and_then(|mut content| content.remove("reason"));
            let reason = reason.as_ref().and_then(CanonicalJsonValue::as_str);
            let ban = member_content(env, &user_id, MembershipState::Ban, reason);
            commit.add_event(self.event("m.room.member", user_id.as_str(), ban))?;
        }
        let levels = Levels {
            content: state(&StateEventType::RoomPowerLevels)?.unwrap_or_default(),
            from: &old.rules.authorization,
            to: &rules.authorization,
        };
        let levels = levels.carried(old_creators, &new_creators);
        commit.add_event(self.event("m.room.power_levels", "", levels))?;
        if old.is_public() {
            for (room_id, public) in [(&room_id, true), (&self.room_id, false)] {
                let visibility = RoomVisibility { room_id: room_id.clone(), public };
                commit.append(Stream::room(room_id), visibility);
            }
        }
        Ok(room_id)
    }

    fn create_content(
        &self,
        old: &Room,
        old_content: Option<CanonicalJsonObject>,
        rules: &RoomVersionRules,
    ) -> CanonicalJsonObject {
        let rules = &rules.authorization;
        let mut content = old_content.unwrap_or_default();
        // The rest of its content was about the old room.
        content.retain(|key, _| matches!(key.as_str(), "type" | "m.federate"));
        let mut predecessor = json!({ "room_id": self.room_id });
        if !rules.room_create_event_id_as_room_id
            && let Some(tip) = old.tip()
        {
            predecessor["event_id"] = tip.event_id.to_string().into();
        }
        let mut own = json!({ "room_version": self.version, "predecessor": predecessor });
        if !rules.use_room_create_sender {
            own["creator"] = self.sender.to_string().into();
        }
        if rules.additional_room_creators {
            let mut creators = self.additional_creators.clone();
            creators.retain(|creator| *creator != self.sender);
            creators.sort_unstable();
            creators.dedup();
            if !creators.is_empty() {
                own["additional_creators"] = json!(creators);
            }
        }
        content.extend(object(own));
        content
    }

    /// Points the old room's aliases at the new one, keeps their creators, and makes them its
    /// canonical aliases as in the old one.
    fn move_aliases(
        &self,
        commit: &mut Commit<'_>,
        old: &Room,
        replacement: &RoomId,
    ) -> Result<(), Refusal> {
        let env = commit.env;
        let mut moved = HashSet::new();
        for alias in env.state.aliases.of_room(&old.id, Offset::MAX) {
            commit.rests_on(Stream::alias(&alias));
            // Looked up again, now that the decision rests on it.
            let target = env.state.aliases.get(&alias, Offset::MAX);
            let Some(target) = target.filter(|target| target.room_id == old.id) else { continue };
            let room_id = replacement.to_owned();
            moved.insert(alias.to_string());
            let set = AliasSet { alias: alias.clone(), room_id, creator: target.creator };
            commit.append(Stream::alias(&alias), set);
        }
        let kind = StateEventType::RoomCanonicalAlias;
        let named = match old.state_event(&kind, "", Offset::MAX) {
            Some(offset) => env.events.get(offset)?.map(|event| {
                let event = as_shown(old, event, Offset::MAX);
                event.content_as::<CanonicalJsonObject>().unwrap_or_default()
            }),
            None => None,
        };
        let Some(mut content) = named else { return Ok(()) };
        let is_moved =
            |alias: &CanonicalJsonValue| alias.as_str().is_some_and(|alias| moved.contains(alias));
        if !content.get("alias").is_some_and(is_moved) {
            content.remove("alias");
        }
        if let Some(CanonicalJsonValue::Array(aliases)) = content.get_mut("alt_aliases") {
            aliases.retain(is_moved);
        }
        if !aliases(&content)?.is_empty() {
            // The draft of the commit is still the new room's.
            allowed(commit.add_event(self.event("m.room.canonical_alias", "", content)))?;
        }
        let gone = |alias: &str| moved.contains(alias);
        allowed(disclaim(commit, &old.id, gone, &self.sender, self.ts))?;
        Ok(())
    }

    /// Ends the old room: adds the tombstone and, if the sender has the power, forbids further
    /// messages.
    fn close(
        &self,
        commit: &mut Commit<'_>,
        old: &Room,
        replacement: &RoomId,
    ) -> Result<(), Refusal> {
        let env = commit.env;
        let tombstone = object(json!({
            "body": "This room has been replaced",
            "replacement_room": replacement,
        }));
        commit.room(&old.id)?;
        commit.add_event(self.event("m.room.tombstone", "", tombstone))?;
        let kind = StateEventType::RoomPowerLevels;
        let Some(mut levels) = commit.room(&old.id)?.shown_content(env, &kind, "")? else {
            return Ok(());
        };
        let level = |levels: &CanonicalJsonObject, key: &str| {
            levels.get(key).and_then(integer).unwrap_or_default()
        };
        let closed = level(&levels, "users_default").saturating_add(int!(1)).max(int!(50));
        for key in ["events_default", "invite"] {
            let raised = level(&levels, key).max(closed);
            levels.insert(key.to_owned(), CanonicalJsonValue::Integer(raised));
        }
        allowed(commit.add_event(self.event("m.room.power_levels", "", levels)).map(drop))
    }
}

/// Skips what the sender lacks the power for.
fn allowed<T>(done: Result<T, Refusal>) -> Result<(), Refusal> {
    match done {
        Ok(_) | Err(Refusal::Forbidden(_)) => Ok(()),
        Err(other) => Err(other),
    }
}

/// Nobody could ever join by a join rule that the new version does not know.
fn fit_join_rule(content: &mut CanonicalJsonObject, rules: &AuthorizationRules) {
    let rule = content.get("join_rule").and_then(CanonicalJsonValue::as_str);
    let fit = match rule {
        Some("knock_restricted") if !rules.knock_restricted_join_rule => {
            if rules.restricted_join_rule { "restricted" } else { "invite" }
        }
        Some("restricted") if !rules.restricted_join_rule => "invite",
        Some("knock") if !rules.knocking => "invite",
        _ => return,
    };
    content.insert("join_rule".to_owned(), CanonicalJsonValue::String(fit.to_owned()));
}

/// An integer, or one in a string, which versions before 10 accept.
fn integer(value: &CanonicalJsonValue) -> Option<Int> {
    match value {
        CanonicalJsonValue::Integer(int) => Some(*int),
        CanonicalJsonValue::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Power levels that are converted from one room version to another.
struct Levels<'a> {
    content: CanonicalJsonObject,
    from: &'a AuthorizationRules,
    to: &'a AuthorizationRules,
}

impl Levels<'_> {
    /// The levels for the new room: all of them integers, without its creators if its version
    /// requires that, and users who were above all levels get the highest level.
    fn carried(
        mut self,
        old_creators: &HashSet<OwnedUserId>,
        new_creators: &HashSet<OwnedUserId>,
    ) -> CanonicalJsonObject {
        const LEVELS: [&str; 7] =
            ["users_default", "events_default", "state_default", "ban", "kick", "redact", "invite"];
        // Above all levels, or in a room without levels.
        let creators_had_none =
            self.from.explicitly_privilege_room_creators || self.content.is_empty();
        for key in LEVELS {
            if let Some(value) = self.content.remove(key)
                && let Some(level) = integer(&value)
            {
                self.content.insert(key.to_owned(), CanonicalJsonValue::Integer(level));
            }
        }
        for key in ["users", "events", "notifications"] {
            let Some(value) = self.content.remove(key) else { continue };
            let CanonicalJsonValue::Object(map) = value else { continue };
            let levels = map.into_iter().filter_map(|(of, value)| {
                Some((of, CanonicalJsonValue::Integer(integer(&value)?)))
            });
            self.content.insert(key.to_owned(), CanonicalJsonValue::Object(levels.collect()));
        }
        let needed = self.highest();
        let mut users = match self.content.remove("users") {
            Some(CanonicalJsonValue::Object(users)) => users,
            _ => CanonicalJsonObject::new(),
        };
        if self.to.explicitly_privilege_room_creators {
            users.retain(|user_id, _| new_creators.iter().all(|creator| creator != user_id));
            raise_tombstone(&mut self.content);
        } else if creators_had_none {
            let creators = old_creators.iter().map(ToString::to_string);
            users.extend(creators.map(|creator| (creator, CanonicalJsonValue::Integer(needed))));
        }
        self.content.insert("users".to_owned(), CanonicalJsonValue::Object(users));
        self.content
    }

    /// The highest level that any action needs, at least 100.
    fn highest(&self) -> Int {
        let single = self.content.values().filter_map(CanonicalJsonValue::as_integer);
        let events = self.content.get("events").and_then(CanonicalJsonValue::as_object);
        let events = events.into_iter().flat_map(|events| events.values());
        let events = events.filter_map(CanonicalJsonValue::as_integer);
        single.chain(events).max().unwrap_or_default().max(int!(100))
    }
}

/// For a user who joins a room that replaces one of theirs: copies their settings of the old room.
pub(super) fn bring_along(
    commit: &mut Commit<'_>,
    user_id: &UserId,
    room_id: &RoomId,
) -> Result<(), Refusal> {
    let env = commit.env;
    let create = commit.room(room_id)?.state_event(env, &StateEventType::RoomCreate, "")?;
    let Some(before) = create.and_then(|create| named_room(&create, "/predecessor/room_id")) else {
        return Ok(());
    };
    let part = env.state.memberships.part(user_id, &before);
    let Some(old) = part.and_then(|_| env.state.rooms.get(&before)) else { return Ok(()) };
    // Any room can claim to replace another: the old one must say so, too.
    let Some(offset) = old.state_event(&StateEventType::RoomTombstone, "", Offset::MAX) else {
        return Ok(());
    };
    let tombstone = env.events.get(offset)?.map(|event| as_shown(&old, event, Offset::MAX));
    if tombstone.and_then(|event| named_room(&event, "/replacement_room")).as_deref()
        == Some(room_id)
    {
        carry_settings(commit, user_id, &before, room_id)?;
    }
    Ok(())
}

fn named_room(event: &StoredEvent, pointer: &str) -> Option<OwnedRoomId> {
    let content: serde_json::Value = event.content_as().ok()?;
    content.pointer(pointer)?.as_str()?.try_into().ok()
}

/// Copies a user's settings of `old` to `new`: tags, their entry among the direct chats, and push
/// rules.
fn carry_settings(
    commit: &mut Commit<'_>,
    user_id: &UserId,
    old: &RoomId,
    new: &RoomId,
) -> Result<(), Refusal> {
    let env = commit.env;
    commit.rests_on(Stream::user(user_id));
    let set = |room_id: Option<&RoomId>, event_type: &str| {
        env.events.account_data(&env.state, user_id, room_id, event_type, Offset::MAX)
    };
    let mut append = |room_id: Option<&RoomId>, event_type: &str, content: Box<RawValue>| {
        let data = AccountDataSet {
            user_id: user_id.to_owned(),
            room_id: room_id.map(ToOwned::to_owned),
            event_type: event_type.to_owned(),
            content,
        };
        commit.append(Stream::user(user_id), data);
    };
    if let Some(tags) = set(Some(old), "m.tag")?
        && set(Some(new), "m.tag")?.is_none()
    {
        append(Some(new), "m.tag", tags);
    }
    let direct = set(None, "m.direct")?;
    let direct = direct.and_then(|raw| serde_json::from_str::<serde_json::Value>(raw.get()).ok());
    if let Some(mut direct) = direct
        && add_beside(&mut direct, old, new)
    {
        append(None, "m.direct", to_raw(&direct));
    }
    if let Some(rules) = set(None, ruleset::EVENT_TYPE)?
        && let Some(rules) = ruleset::carried(&rules, old, new)
    {
        append(None, ruleset::EVENT_TYPE, rules);
    }
    Ok(())
}

/// In `m.direct`, the lists of rooms by user: adds `new` wherever `old` is. Returns whether that
/// changed anything.
fn add_beside(direct: &mut serde_json::Value, old: &RoomId, new: &RoomId) -> bool {
    let mut changed = false;
    let lists = direct.as_object_mut().into_iter().flat_map(|direct| direct.values_mut());
    for rooms in lists.filter_map(serde_json::Value::as_array_mut) {
        let has = |room_id: &RoomId| rooms.iter().any(|room| *room == room_id.as_str());
        if has(old) && !has(new) {
            rooms.push(new.as_str().into());
            changed = true;
        }
    }
    changed
}
