//! Who is typing in a room.

use std::collections::BTreeSet;

use ruma::{OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::{Room, Rooms};
use logcabin_record::{Offset, command::RoomTyping};

/// A typing user.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Typist {
    /// When it expires, in milliseconds since the Unix epoch.
    pub until_ms: u64,
    /// The record that began it.
    pub since: Offset,
}

impl Rooms {
    /// Sets the typing of a user; returns the superseded record.
    pub(crate) fn set_typing(&self, offset: Offset, body: RoomTyping) -> Option<Offset> {
        let room = self.get(&body.room_id)?;
        let mut inner = room.inner.write();
        // The record that began it may have been erased.
        let since = body.since.map_or(offset, |since| since.min(offset));
        if body.until_ms == 0 {
            inner.typing.remove(&body.user_id);
        } else {
            let typist = Typist { until_ms: body.until_ms, since };
            inner.typing.insert(body.user_id.clone(), typist);
        }
        inner.typing_changed = inner.typing_changed.max(since);
        inner.changed = inner.changed.max(since);
        inner.typing_records.insert(body.user_id, offset)
    }
}

impl Room {
    /// The typing users, each with the expiry, and the offset at which someone last began or
    /// stopped.
    pub fn typing(&self) -> (Vec<(OwnedUserId, u64)>, Offset) {
        let inner = self.inner.read();
        let user = |(user_id, typist): (&OwnedUserId, &Typist)| (user_id.clone(), typist.until_ms);
        (inner.typing.iter().map(user).collect(), inner.typing_changed)
    }

    /// The typing of this user, if they are typing.
    pub fn typist(&self, user_id: &UserId) -> Option<Typist> {
        self.inner.read().typing.get(user_id).copied()
    }

    /// Whether anything but that these users began to type happened after `since`. Clients may
    /// still show one of them who stops: they may have begun before they were left out.
    pub fn typing_changed(&self, since: Offset, except: &BTreeSet<OwnedUserId>) -> bool {
        let has_typed = {
            let inner = self.inner.read();
            let mut typed = inner.typing_records.iter().filter(|(_, last)| **last > since);
            typed.any(|(user_id, _)| {
                !except.contains(user_id) || !inner.typing.contains_key(user_id)
            })
        };
        has_typed || !self.members_changed(since, Offset::MAX).is_empty()
    }
}
