//! Creating a room: all of its initial events in one batch.

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, MilliSecondsSinceUnixEpoch, OwnedRoomAliasId,
    OwnedRoomId, OwnedUserId, RoomVersionId, UserId,
    events::{TimelineEventType, room::member::MembershipState},
    room_version_rules::RoomVersionRules,
};
use serde_json::json;

use super::{
    Commit, NewEvent, Proposal, Refusal, RoomDraft,
    canonical_alias::aliases,
    member_event::{member_content, must_take_invites, vet_content},
    object,
    powers::raise_tombstone,
};
pub use logcabin_record::room_version::{DEFAULT_ROOM_VERSION, ROOM_VERSIONS};
use logcabin_record::{
    Offset, Stream,
    command::{AliasSet, RoomVisibility},
};

/// The initial state of a room (client-server API, `POST /createRoom`, `preset`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Invited users may join.
    PrivateChat,
    /// Like private, and invited users have the creator's power.
    TrustedPrivateChat,
    /// Everyone may join.
    PublicChat,
}

/// A state event given in a request.
#[derive(Clone, Debug)]
pub struct InitialState {
    pub event_type: TimelineEventType,
    pub state_key: String,
    pub content: CanonicalJsonObject,
}

/// Create a room.
#[derive(Clone, Debug)]
pub struct CreateRoom {
    /// Its id, unless its version derives the id from the create event.
    pub room_id: OwnedRoomId,
    pub creator: OwnedUserId,
    pub version: RoomVersionId,
    /// The preset of its initial state.
    pub preset: Preset,
    /// Further content of the create event.
    pub creation_content: CanonicalJsonObject,
    /// Keys that override those of its default power levels.
    pub power_levels: CanonicalJsonObject,
    /// Further state.
    pub initial_state: Vec<InitialState>,
    pub name: Option<String>,
    pub topic: Option<String>,
    /// An alias for it, which becomes its canonical one.
    pub alias: Option<OwnedRoomAliasId>,
    /// The invited users.
    pub invite: Vec<OwnedUserId>,
    /// Whether the invites are to a direct chat.
    pub is_direct: bool,
    /// Whether the public directory lists it.
    pub public: bool,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

impl Proposal for CreateRoom {
    type Outcome = OwnedRoomId;

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<OwnedRoomId, Refusal> {
        let rules = rules_of(&self.version)?;
        let (state, quotas) = (&commit.env.state, &commit.env.quotas);
        quotas.room(state, &self.creator)?;
        if let Some(alias) = &self.alias {
            commit.rests_on(Stream::alias(alias));
            if state.aliases.get(alias, Offset::MAX).is_some() {
                return Err(Refusal::RoomInUse(alias.to_string()));
            }
            quotas.alias(state, &self.creator, &self.room_id)?;
        }
        let id_from_create = rules.authorization.room_create_event_id_as_room_id;
        // The order is that of the specification.
        let create = self.event("m.room.create", "", self.create_content(&rules)?);
        let room_id = (!id_from_create).then(|| self.room_id.clone());
        let room_id = begin(commit, room_id, &self.version, &rules, create).map_err(in_state)?;
        self.fill(commit, &rules, &room_id).map_err(in_state)?;
        Ok(room_id)
    }
}

impl CreateRoom {
    /// A room with what its preset says and nothing else.
    pub const fn new(
        room_id: OwnedRoomId,
        creator: OwnedUserId,
        version: RoomVersionId,
        preset: Preset,
        ts: MilliSecondsSinceUnixEpoch,
    ) -> Self {
        Self {
            room_id,
            creator,
            version,
            preset,
            creation_content: CanonicalJsonObject::new(),
            power_levels: CanonicalJsonObject::new(),
            initial_state: Vec::new(),
            name: None,
            topic: None,
            alias: None,
            invite: Vec::new(),
            is_direct: false,
            public: false,
            ts,
        }
    }

    /// Adds everything after the create event.
    fn fill(
        &self,
        commit: &mut Commit<'_>,
        rules: &RoomVersionRules,
        room_id: &OwnedRoomId,
    ) -> Result<(), Refusal> {
        let join = member_content(commit.env, &self.creator, MembershipState::Join, None);
        commit.add_event(self.event("m.room.member", self.creator.as_str(), join))?;
        let levels = self.power_level_content(rules);
        commit.add_event(self.event("m.room.power_levels", "", levels))?;
        if let Some(alias) = &self.alias {
            let set = AliasSet {
                alias: alias.clone(),
                room_id: room_id.clone(),
                creator: self.creator.clone(),
            };
            commit.append(Stream::alias(alias), set);
            commit.add_event(self.event(
                "m.room.canonical_alias",
                "",
                object(json!({ "alias": alias })),
            ))?;
        }
        for (event_type, content) in self.preset_state() {
            let given = |state: &InitialState| {
                state.event_type.to_string() == event_type && state.state_key.is_empty()
            };
            if !self.initial_state.iter().any(given) {
                commit.add_event(self.event(event_type, "", content))?;
            }
        }
        for state in &self.initial_state {
            self.add_state(commit, state)?;
        }
        if let Some(name) = &self.name {
            commit.add_event(self.event("m.room.name", "", object(json!({ "name": name }))))?;
        }
        if let Some(topic) = &self.topic {
            let content = object(json!({
                "topic": topic,
                "m.topic": { "m.text": [{ "body": topic, "mimetype": "text/plain" }] },
            }));
            commit.add_event(self.event("m.room.topic", "", content))?;
        }
        for invitee in self.invite.iter().filter(|invitee| **invitee != self.creator) {
            must_take_invites(commit.env, None, invitee, &self.creator, None)?;
            let mut content = member_content(commit.env, invitee, MembershipState::Invite, None);
            if self.is_direct {
                content.insert("is_direct".to_owned(), CanonicalJsonValue::Bool(true));
            }
            commit.settle(self.event("m.room.member", invitee.as_str(), content))?;
        }
        if self.public {
            let visibility = RoomVisibility { room_id: room_id.clone(), public: true };
            commit.append(Stream::room(room_id), visibility);
        }
        Ok(())
    }

    /// Adds an event of `initial_state`, under the conditions under which it could be sent later.
    fn add_state(&self, commit: &mut Commit<'_>, state: &InitialState) -> Result<(), Refusal> {
        let mut content = state.content.clone();
        if state.event_type == TimelineEventType::RoomCanonicalAlias {
            // The room's only alias is the one that it is created with.
            let own = self.alias.as_ref().map(|alias| alias.as_str());
            if let Some(alias) = aliases(&content)?.into_iter().find(|alias| Some(&**alias) != own)
            {
                return Err(Refusal::BadAlias(format!("`{alias}` does not point at this room.")));
            }
        }
        if state.event_type == TimelineEventType::RoomMember
            && let Ok(target) = UserId::parse(&state.state_key)
        {
            let env = commit.env;
            vet_content(env, commit.draft()?, &self.creator, &target, &mut content)?;
            let membership = content.get("membership").and_then(CanonicalJsonValue::as_str);
            if membership == Some("invite") {
                let now = commit.draft()?.membership(env, &target)?;
                must_take_invites(env, None, &target, &self.creator, now)?;
            }
        }
        let event_type = state.event_type.to_string();
        commit.add_event(self.event(&event_type, &state.state_key, content))?;
        Ok(())
    }

    fn event(&self, event_type: &str, state_key: &str, content: CanonicalJsonObject) -> NewEvent {
        NewEvent::state(event_type.into(), state_key, content, &self.creator, self.ts)
    }

    fn create_content(&self, rules: &RoomVersionRules) -> Result<CanonicalJsonObject, Refusal> {
        let mut content = self.creation_content.clone();
        if !rules.authorization.use_room_create_sender {
            let creator = CanonicalJsonValue::String(self.creator.to_string());
            content.insert("creator".to_owned(), creator);
        }
        let version = CanonicalJsonValue::String(self.version.to_string());
        content.insert("room_version".to_owned(), version);
        let trusted = self.preset == Preset::TrustedPrivateChat && !self.invite.is_empty();
        if rules.authorization.additional_room_creators && trusted {
            let creators = content
                .entry("additional_creators".to_owned())
                .or_insert_with(|| CanonicalJsonValue::Array(Vec::new()));
            let CanonicalJsonValue::Array(creators) = creators else {
                return Err(Refusal::BadJson("`additional_creators` is a list.".to_owned()));
            };
            for invitee in self.invite.iter().filter(|invitee| **invitee != self.creator) {
                let invitee = CanonicalJsonValue::String(invitee.to_string());
                if !creators.contains(&invitee) {
                    creators.push(invitee);
                }
            }
        }
        Ok(content)
    }

    fn power_level_content(&self, rules: &RoomVersionRules) -> CanonicalJsonObject {
        let creators_above = rules.authorization.explicitly_privilege_room_creators;
        let mut users = serde_json::Map::new();
        if !creators_above {
            users.insert(self.creator.to_string(), 100.into());
            if self.preset == Preset::TrustedPrivateChat {
                users.extend(self.invite.iter().map(|user| (user.to_string(), 100.into())));
            }
        }
        let mut content = object(json!({
            "users": users,
            "users_default": 0,
            "events": {
                "m.room.name": 50,
                "m.room.avatar": 50,
                "m.room.canonical_alias": 50,
                "m.room.power_levels": 100,
                "m.room.history_visibility": 100,
                "m.room.encryption": 100,
                "m.room.server_acl": 100,
                "m.room.tombstone": 100,
            },
            "events_default": 0,
            "state_default": 50,
            "ban": 50,
            "kick": 50,
            "redact": 50,
            "invite": 0,
            "notifications": { "room": 50 },
        }));
        content.extend(self.power_levels.clone());
        if creators_above {
            raise_tombstone(&mut content);
        }
        content
    }

    fn preset_state(&self) -> Vec<(&'static str, CanonicalJsonObject)> {
        let public = self.preset == Preset::PublicChat;
        let mut state = vec![
            (
                "m.room.join_rules",
                object(json!({ "join_rule": if public { "public" } else { "invite" } })),
            ),
            ("m.room.history_visibility", object(json!({ "history_visibility": "shared" }))),
        ];
        if !public {
            state.push(("m.room.guest_access", object(json!({ "guest_access": "can_join" }))));
        }
        state
    }
}

/// The rules of a room version, if it is supported.
pub(super) fn rules_of(version: &RoomVersionId) -> Result<RoomVersionRules, Refusal> {
    let offered = ROOM_VERSIONS.contains(version).then(|| version.rules()).flatten();
    offered.ok_or_else(|| Refusal::UnsupportedRoomVersion(version.to_string()))
}

/// Begins a room as the commit's, with its create event. Without `room_id`, the id is that event's
/// hash: two rooms that one user makes in the same millisecond would be one, so the later one's
/// event is dated on.
pub(super) fn begin(
    commit: &mut Commit<'_>,
    room_id: Option<OwnedRoomId>,
    version: &RoomVersionId,
    rules: &RoomVersionRules,
    mut create: NewEvent,
) -> Result<OwnedRoomId, Refusal> {
    let env = commit.env;
    loop {
        let mut draft = RoomDraft::new(room_id.clone(), version.clone(), rules.clone());
        let body = draft.add(env, create.clone())?;
        let (made, stream) = (body.room_id.clone(), Stream::room(&body.room_id));
        if room_id.is_none() && env.state.rooms.get(&made).is_some() {
            create.ts.0 = create.ts.0.saturating_add(ruma::uint!(1));
            continue;
        }
        commit.must_be_new(stream.clone());
        commit.begin_room(draft);
        commit.append(stream, body);
        return Ok(made);
    }
}

/// Reports errors in the client's initial state as such.
fn in_state(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Forbidden(reason) | Refusal::BadJson(reason) => Refusal::InvalidRoomState(reason),
        other => other,
    }
}
