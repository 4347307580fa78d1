//! The user directory, and mutual rooms.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use ruma::api::auth_scheme::AccessToken;
use ruma::{
    OwnedMxcUri, OwnedRoomId, OwnedUserId, RoomId, UserId,
    api::client::user_directory::search_users::v3::{self as search_users, User},
    events::StateEventType,
};
use serde::{Deserialize, Serialize};

use crate::{
    api::{answer::json, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_base::limits;
use logcabin_read::view::View;
use logcabin_service::remote_names::RemoteUser;
use logcabin_state::{
    Membership, RoomMembership,
    names::{MatchQuality, NameMatch},
};

pub(super) async fn search(
    cx: Cx<Server>,
    request: search_users::Request,
) -> Result<search_users::Response, ApiError> {
    let limit = usize::try_from(u64::from(request.limit)).unwrap_or(usize::MAX);
    let limit = limit.min(limits::DIRECTORY_USERS);
    cx.at_length(|| {
        let view = cx.view();
        let found = view.state.names.find(&request.search_term).into_iter();
        let mut found: Vec<_> = found.map(|found| (shown(&view, &found), found.fit)).collect();
        found.extend(of_others(&cx, &view, &request.search_term)?);
        // The best first; among equals, users with a profile first.
        found.sort_by_cached_key(|(user, fit)| {
            let has_profile = user.display_name.is_some() || user.avatar_url.is_some();
            (*fit, Reverse(has_profile), user.user_id.clone())
        });
        let mut acquaintance = UserInDirectory::new(&view, cx.app.config.user_directory.all_users);
        let mut known = Vec::new();
        for (user, _) in found {
            if acquaintance.knows(&user.user_id)? {
                if known.len() == limit {
                    return Ok(search_users::Response::new(known, true));
                }
                known.push(user);
            }
        }
        Ok(search_users::Response::new(known, false))
    })
    .await
}

/// Users of other homeservers in the user's rooms and in those of the directory.
fn of_others(
    cx: &Cx<Server>,
    view: &View<'_>,
    term: &str,
) -> Result<Vec<(User, MatchQuality)>, ApiError> {
    if cx.app.outside.federation.is_none() {
        return Ok(Vec::new());
    }
    let own = joined(view, view.user_id()).filter_map(|part| view.state.rooms.get(&part.room_id));
    let public = view.state.rooms.public().into_iter();
    let rooms: BTreeMap<_, _> = own.chain(public).map(|room| (room.id.clone(), room)).collect();
    let found = cx.app.listing.remote_names.find(&cx.app.engine, rooms.into_values(), term)?;
    let shown = |(user_id, of): (OwnedUserId, RemoteUser)| {
        let mut user = User::new(user_id);
        (user.display_name, user.avatar_url) = (of.display_name, of.avatar_url);
        (user, of.fit)
    };
    Ok(found.into_iter().map(shown).collect())
}

fn shown(view: &View<'_>, found: &NameMatch) -> User {
    let mut user = User::new(found.user_id.clone());
    user.display_name.clone_from(&found.display_name);
    if let Some(account) = view.state.accounts.get(&found.user_id) {
        let avatar = account
            .read()
            .profile_field("avatar_url")
            .and_then(|v| v.as_str().map(OwnedMxcUri::from));
        user.avatar_url = avatar.filter(|url| !url.as_str().is_empty());
    }
    user
}

/// The users that a user may find: users who share a room with them, and members of public rooms.
struct UserInDirectory<'a> {
    view: &'a View<'a>,
    everyone: bool,
    /// Whether the members of each checked room may be found.
    rooms: HashMap<OwnedRoomId, bool>,
}

impl<'a> UserInDirectory<'a> {
    fn new(view: &'a View<'a>, everyone: bool) -> Self {
        let rooms = joined(view, view.user_id()).map(|part| (part.room_id, true)).collect();
        Self { view, everyone, rooms }
    }

    fn knows(&mut self, user_id: &UserId) -> Result<bool, ApiError> {
        if self.everyone || user_id == self.view.user_id() {
            return Ok(true);
        }
        for part in joined(self.view, user_id) {
            let known = match self.rooms.get(&part.room_id) {
                Some(known) => *known,
                None => {
                    let public = self.is_public(&part.room_id)?;
                    self.rooms.insert(part.room_id, public);
                    public
                }
            };
            if known {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the room is public: listed, or anyone may join.
    fn is_public(&self, room_id: &RoomId) -> Result<bool, ApiError> {
        let Some(room) = self.view.state.rooms.get(room_id) else { return Ok(false) };
        let rules = StateEventType::RoomJoinRules;
        let rule = self.view.events.state_text(&room, &rules, "join_rule", self.view.at())?;
        Ok(room.is_public() || rule.as_deref() == Some("public"))
    }
}

/// The rooms that a user is in, ordered by id.
fn joined(view: &View<'_>, user_id: &UserId) -> impl Iterator<Item = RoomMembership> + use<> {
    let parts = view.state.memberships.of(user_id, view.at()).into_iter();
    parts.filter(|part| part.membership == Membership::Join)
}

endpoint! {
    /// The path of the proposal, which clients still use, and the stable one.
    pub(super) struct MutualRooms = GET
        "/_matrix/client/unstable/uk.half-shot.msc2666/user/mutual_rooms"
        "/_matrix/client/v1/mutual_rooms";
    for AccessToken;
    { query: With = query }
}

/// The other user, and the end of the last page.
#[derive(Deserialize)]
pub(super) struct With {
    user_id: OwnedUserId,
    from: Option<String>,
}

/// `GET /mutual_rooms`: the rooms that the caller shares with another user.
pub(super) async fn mutual_rooms(cx: Cx<Server>, request: MutualRooms) -> Result<Json, ApiError> {
    cx.at_length(|| shared(&cx, request.query)).await
}

fn shared(cx: &Cx<Server>, with: With) -> Result<Json, ApiError> {
    #[derive(Serialize)]
    struct Response<'a> {
        joined: &'a [OwnedRoomId],
        count: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        next_batch: Option<&'a RoomId>,
    }
    let With { user_id, from } = with;
    if user_id.validate_strict().is_err() {
        return Err(ApiError::invalid_param("This is not a user id that a user can have."));
    }
    let view = cx.view();
    let rooms: Vec<OwnedRoomId> = joined(&view, view.user_id())
        .filter(|part| {
            let room = view.state.rooms.get(&part.room_id);
            room.is_some_and(|room| room.is_joined(&user_id, view.at()))
        })
        .map(|part| part.room_id)
        .collect();
    // A page continues after the last room of the previous one.
    let start = match &from {
        Some(from) if <&RoomId>::try_from(from.as_str()).is_err() => {
            return Err(ApiError::invalid_param("`from` is not of this list."));
        }
        Some(from) => rooms.partition_point(|room_id| room_id.as_str() <= from.as_str()),
        None => 0,
    };
    let end = start.saturating_add(limits::MUTUAL_ROOMS).min(rooms.len());
    let page = rooms.get(start..end).unwrap_or_default();
    let next_batch = page.last().filter(|_| end < rooms.len()).map(AsRef::as_ref);
    json(&Response { joined: page, count: rooms.len(), next_batch })
}
