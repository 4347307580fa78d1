//! The names of users of other homeservers, by which the user directory finds them.
//!
//! A user can have another name in each room, so each room has an index of its own, and nobody
//! finds a name that only a room tells that they may not see. The indexes are not projections: they
//! are made when somebody searches, follow the changes of the rooms' members, and are bounded
//! together.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use ruma::{OwnedMxcUri, OwnedRoomId, OwnedUserId, UserId, events::StateEventType};
use serde::Deserialize;

use logcabin_base::limits;
use logcabin_decide::is_local;
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_read::events::as_shown;
use logcabin_record::Offset;
use logcabin_state::{
    Room,
    names::{MatchQuality, Names},
};

/// How many names more than there are users may have been removed before an index is made again.
const REMOVED: usize = 500;

/// A user of another homeserver, as the rooms show them in which they were found.
#[derive(Clone, Debug)]
pub struct RemoteUser {
    pub fit: MatchQuality,
    pub display_name: Option<String>,
    pub avatar_url: Option<OwnedMxcUri>,
}

/// The indexes of the rooms that were searched lately.
#[derive(Default)]
pub struct RemoteNames(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    rooms: HashMap<OwnedRoomId, CachedRoom>,
    /// Counts the searches.
    now: u64,
}

struct CachedRoom {
    room: Arc<Mutex<RoomNames>>,
    /// The last search that looked at it.
    used: u64,
    /// How many users it had then.
    users: usize,
}

/// The users of other homeservers in a room.
#[derive(Default)]
struct RoomNames {
    /// As of this change of the room's state.
    at: Offset,
    names: Names,
    avatars: HashMap<OwnedUserId, Option<OwnedMxcUri>>,
    /// How many were removed from `names`, which keeps a place for each.
    removed: usize,
}

#[derive(Deserialize)]
struct Profile {
    #[serde(default)]
    displayname: Option<String>,
    #[serde(default)]
    avatar_url: Option<OwnedMxcUri>,
}

impl RemoteNames {
    /// The users in these rooms whose names match, as [`Names::find`] says.
    pub fn find(
        &self,
        engine: &Engine,
        rooms: impl IntoIterator<Item = Arc<Room>>,
        term: &str,
    ) -> Result<BTreeMap<OwnedUserId, RemoteUser>, ReadError> {
        let mut found = BTreeMap::<OwnedUserId, RemoteUser>::new();
        let now = {
            let mut inner = self.0.lock();
            inner.now += 1;
            inner.now
        };
        for room in rooms {
            let index = self.index(&room, now);
            let mut index = index.lock();
            index.follow(engine, &room)?;
            let matches = index.names.find(term);
            self.note(&room, index.avatars.len());
            for user in matches {
                let avatar_url = index.avatars.get(&user.user_id).cloned().flatten();
                let (fit, display_name) = (user.fit, user.display_name);
                let here = RemoteUser { fit, display_name, avatar_url };
                let best = found.entry(user.user_id).or_insert_with(|| here.clone());
                if here.fit < best.fit {
                    *best = here;
                }
            }
        }
        self.shrink();
        Ok(found)
    }

    fn index(&self, room: &Room, now: u64) -> Arc<Mutex<RoomNames>> {
        let mut inner = self.0.lock();
        let known = inner.rooms.entry(room.id.clone());
        let known =
            known.or_insert_with(|| CachedRoom { room: Arc::default(), used: now, users: 0 });
        known.used = now;
        Arc::clone(&known.room)
    }

    fn note(&self, room: &Room, users: usize) {
        if let Some(known) = self.0.lock().rooms.get_mut(&room.id) {
            known.users = users;
        }
    }

    /// Drops the indexes that were not searched for longest, until the rest are within the limit.
    fn shrink(&self) {
        let mut inner = self.0.lock();
        // A room without such users takes something, too.
        let mut all: usize = inner.rooms.values().map(|known| known.users + 1).sum();
        if all <= limits::REMOTE_NAMES {
            return;
        }
        let by_use = inner.rooms.iter().map(|(id, of)| (of.used, id.clone(), of.users + 1));
        let mut by_use: Vec<_> = by_use.collect();
        by_use.sort_unstable();
        for (_, room_id, users) in by_use {
            if all <= limits::REMOTE_NAMES {
                break;
            }
            inner.rooms.remove(&room_id);
            all -= users;
        }
    }
}

impl RoomNames {
    /// Brings it up to date. The cost is proportional to the changes of the room's state since.
    fn follow(&mut self, engine: &Engine, room: &Room) -> Result<(), ReadError> {
        let to = room.last_state_change(Offset::MAX);
        if to == self.at {
            return Ok(());
        }
        if self.removed > self.avatars.len() + REMOVED {
            *self = Self::default();
        }
        let changed = room.changed_keys(self.at, to, usize::MAX).into_iter();
        let members = changed.filter_map(|(event_type, key)| {
            let user_id = OwnedUserId::try_from(key).ok()?;
            let is_remote = !is_local(&engine.env().server, &user_id);
            (event_type == StateEventType::RoomMember && is_remote).then_some(user_id)
        });
        let (mut joined, mut left) = (Vec::new(), Vec::new());
        for user_id in members {
            let event =
                room.state_event(&StateEventType::RoomMember, user_id.as_str(), Offset::MAX);
            match event.filter(|_| room.is_joined(&user_id, Offset::MAX)) {
                Some(event) => joined.push((user_id, event)),
                None => left.push(user_id),
            }
        }
        for (user_id, offset) in joined {
            let event = engine.events().get(offset)?;
            let event = event.map(|event| as_shown(room, event, Offset::MAX));
            self.set(&user_id, event.and_then(|event| event.content_as().ok()));
        }
        for user_id in left {
            if self.avatars.remove(&user_id).is_some() {
                self.names.remove(&user_id);
                self.removed += 1;
            }
        }
        self.at = to;
        Ok(())
    }

    fn set(&mut self, user_id: &UserId, profile: Option<Profile>) {
        let (name, avatar) = profile.map_or((None, None), |of| (of.displayname, of.avatar_url));
        let fits = |text: &str| text.len() <= limits::REMOTE_NAME_BYTES;
        self.names.add(user_id);
        self.names.set_display_name(user_id, name.as_deref().filter(|name| fits(name)));
        let avatar = avatar.filter(|url| !url.as_str().is_empty() && fits(url.as_str()));
        self.avatars.insert(user_id.to_owned(), avatar);
    }
}
