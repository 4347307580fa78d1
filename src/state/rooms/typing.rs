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
    /// All typing users, each with the expiry.
    pub fn typing(&self) -> Vec<(OwnedUserId, u64)> {
        let user = |(user_id, typist): (&OwnedUserId, &Typist)| (user_id.clone(), typist.until_ms);
        self.inner.read().typing.iter().map(user).collect()
    }

    /// The offset at which someone last began or stopped.
    pub fn typing_moved(&self) -> Offset {
        self.inner.read().typing_changed
    }

    /// The users who type at `now_ms` without these, at most `most`, and the offset at which
    /// someone last began or stopped. They are those who began first: who is among them stays until
    /// they stop, whoever else begins.
    pub fn typists(
        &self,
        now_ms: u64,
        most: usize,
        except: &BTreeSet<OwnedUserId>,
    ) -> (Vec<OwnedUserId>, Offset) {
        let inner = self.inner.read();
        let typing = inner.typing.iter().filter(|(user_id, typist)| {
            typist.until_ms > now_ms && (except.is_empty() || !except.contains(*user_id))
        });
        let mut typists: Vec<_> = typing.map(|(user_id, typist)| (typist.since, user_id)).collect();
        if typists.len() > most {
            typists.select_nth_unstable(most);
            typists.truncate(most);
            typists.sort_unstable_by_key(|(_, user_id)| *user_id);
        }
        let users = typists.into_iter().map(|(_, user_id)| user_id.clone()).collect();
        (users, inner.typing_changed)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_began_first_are_listed_until_they_stop() {
        let rooms = Rooms::default();
        let room_id = ruma::owned_room_id!("!room:test");
        assert!(rooms.create(Offset::new(1), room_id.clone(), ruma::RoomVersionId::V11));
        let room = rooms.get(&room_id).unwrap();
        let user = |name: char| -> OwnedUserId { format!("@u{name}:test").try_into().unwrap() };
        let mut offset = Offset::new(1);
        let mut set = |name: char, until_ms| {
            offset = offset.next();
            let since = room.typist(&user(name)).map(|typist| typist.since);
            let since = since.filter(|_| until_ms > 0);
            let room_id = room_id.clone();
            rooms.set_typing(offset, RoomTyping { room_id, user_id: user(name), until_ms, since });
        };
        let shown = |now_ms, except: &[char]| {
            let except = except.iter().copied().map(user).collect();
            let (users, changed) = room.typists(now_ms, 3, &except);
            assert_eq!(changed, room.typing_moved());
            users.iter().map(|user| user.localpart().replace('u', "")).collect::<String>()
        };
        "4321".chars().for_each(|name| set(name, 100));
        assert_eq!(shown(0, &[]), "234", "1 began last");
        set('4', 200);
        assert_eq!(shown(0, &[]), "234", "4 goes on");
        assert_eq!(shown(0, &['3']), "124");
        set('3', 0);
        assert_eq!(shown(0, &[]), "124");
        set('3', 100);
        assert_eq!(shown(0, &[]), "124", "3 began again");
        assert_eq!(shown(100, &[]), "4", "the others' time is over");
    }
}
