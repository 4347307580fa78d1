//! What users are owed besides messages, and the claims about it: invites and removals, account
//! data, lists of devices, receipts, typing, redactions.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use super::{ledger::now, story::Story};

/// How a user stands in a private room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    #[default]
    Out,
    /// Invited or being removed: nobody does anything about them.
    Pending,
    In,
    Banned,
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Promises(Rc<RefCell<Inner>>);

#[derive(Default)]
struct Inner {
    /// The private rooms, each with the user who made it.
    private: BTreeMap<String, usize>,
    /// Users who are to speak in a private room, because they are about to be removed from it.
    shouts: BTreeMap<usize, String>,
    standings: BTreeMap<(String, usize), Standing>,
    /// When a user was invited to a room or removed from it, and when they last learned of it.
    news: BTreeMap<(usize, String, News), (Duration, Duration)>,
    /// The account data of users: as acknowledged, and as seen.
    notes: BTreeMap<usize, (u64, u64)>,
    /// The devices with keys of users, and as others know them.
    devices: BTreeMap<usize, BTreeSet<String>>,
    devices_seen: BTreeMap<(usize, usize), BTreeSet<String>>,
    /// Events that are to be redacted, and those that are, with their rooms.
    redacting: BTreeSet<String>,
    redacted: Vec<(String, String)>,
    /// The places of others' receipts as a user knows them, by room and by whose they are.
    reads: BTreeMap<(usize, String, String), usize>,
    /// Who types, as a user knows it.
    typing: BTreeMap<(usize, String), Vec<String>>,
}

/// What a user is to learn of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum News {
    Invite,
    Removal,
}

impl Promises {
    pub(crate) fn made_private(&self, room: &str, by: usize) {
        let mut inner = self.0.borrow_mut();
        inner.private.insert(room.to_owned(), by);
        inner.standings.insert((room.to_owned(), by), Standing::In);
    }

    /// The private room that a user made.
    pub(crate) fn private_of(&self, user: usize) -> Option<String> {
        let inner = self.0.borrow();
        let mut rooms = inner.private.iter();
        rooms.find(|(_, by)| **by == user).map(|(room, _)| room.clone())
    }

    /// The private rooms that a user is in.
    pub(crate) fn private_with(&self, user: usize) -> Vec<String> {
        let inner = self.0.borrow();
        let is_in =
            |room: &&String| inner.standings.get(&((*room).clone(), user)) == Some(&Standing::In);
        inner.private.keys().filter(is_in).cloned().collect()
    }

    pub(crate) fn standing(&self, room: &str, user: usize) -> Standing {
        let inner = self.0.borrow();
        inner.standings.get(&(room.to_owned(), user)).copied().unwrap_or_default()
    }

    pub(crate) fn set_standing(&self, room: &str, user: usize, standing: Standing) {
        self.0.borrow_mut().standings.insert((room.to_owned(), user), standing);
    }

    /// A user is about to be removed from a room.
    pub(crate) fn will_go(&self, user: usize, room: &str) {
        self.0.borrow_mut().shouts.insert(user, room.to_owned());
    }

    /// The room that a user is about to be removed from.
    pub(crate) fn is_to_shout(&self, user: usize) -> Option<String> {
        self.0.borrow_mut().shouts.remove(&user)
    }

    /// Somebody was told at `asked` that a user is invited or removed.
    pub(crate) fn is_to_learn(&self, user: usize, room: &str, news: News, asked: Duration) {
        let mut inner = self.0.borrow_mut();
        inner.news.entry((user, room.to_owned(), news)).or_default().0 = asked;
    }

    pub(crate) fn learns(&self, user: usize, room: &str, news: News) {
        self.0.borrow_mut().news.entry((user, room.to_owned(), news)).or_default().1 = now();
    }

    pub(crate) fn noted(&self, user: usize, number: u64) {
        self.0.borrow_mut().notes.entry(user).or_default().0 = number;
    }

    pub(crate) fn saw_note(&self, user: usize, number: u64) {
        self.0.borrow_mut().notes.entry(user).or_default().1 = number;
    }

    pub(crate) fn has_device(&self, user: usize, device: &str) {
        self.0.borrow_mut().devices.entry(user).or_default().insert(device.to_owned());
    }

    pub(crate) fn has_no_device(&self, user: usize, device: &str) {
        self.0.borrow_mut().devices.entry(user).or_default().remove(device);
    }

    pub(crate) fn saw_devices(&self, user: usize, of: usize, devices: BTreeSet<String>) {
        self.0.borrow_mut().devices_seen.insert((user, of), devices);
    }

    /// An event may be redacted from now on.
    pub(crate) fn redacting(&self, event_id: &str) {
        self.0.borrow_mut().redacting.insert(event_id.to_owned());
    }

    pub(crate) fn is_redacting(&self, event_id: &str) -> bool {
        self.0.borrow().redacting.contains(event_id)
    }

    pub(crate) fn redacted(&self, room: &str, event_id: &str) {
        self.0.borrow_mut().redacted.push((room.to_owned(), event_id.to_owned()));
    }

    /// The redacted events, each with its room.
    pub(crate) fn all_redacted(&self) -> Vec<(String, String)> {
        self.0.borrow().redacted.clone()
    }

    /// A user has got the receipt of somebody for the event at this place of the room.
    pub(crate) fn saw_read(&self, story: &Story, user: usize, room: &str, of: &str, place: usize) {
        let mut inner = self.0.borrow_mut();
        let known = inner.reads.entry((user, room.to_owned(), of.to_owned())).or_insert(place);
        if *known > place {
            let how = format!("that of {of} in {room}, as user {user} sees it");
            story.broken("a receipt does not go back", &how);
        }
        *known = place;
    }

    /// The place of somebody's receipt as a user knows it.
    pub(crate) fn read(&self, user: usize, room: &str, of: &str) -> Option<usize> {
        self.0.borrow().reads.get(&(user, room.to_owned(), of.to_owned())).copied()
    }

    pub(crate) fn saw_typing(&self, user: usize, room: &str, who: Vec<String>) {
        self.0.borrow_mut().typing.insert((user, room.to_owned()), who);
    }

    /// What somebody was promised and has not got, if there is something.
    pub(crate) fn missing(&self) -> Option<String> {
        let inner = self.0.borrow();
        for ((user, room, news), (asked, learned)) in &inner.news {
            if asked > learned {
                return Some(format!("user {user} does not know of the {news:?} in {room}"));
            }
        }
        for (user, (noted, seen)) in &inner.notes {
            if noted != seen {
                return Some(format!("user {user} has {seen} as account data, not {noted}"));
            }
        }
        for ((user, of), seen) in &inner.devices_seen {
            let devices = inner.devices.get(of);
            if devices != Some(seen) {
                return Some(format!("user {user} knows {seen:?} of user {of}, not {devices:?}"));
            }
        }
        None
    }

    /// Checks what must be so at the end.
    pub(crate) fn check(&self, story: &Story) {
        for ((user, room), who) in &self.0.borrow().typing {
            if !who.is_empty() {
                let how = format!("{who:?} in {room}, as user {user} sees it");
                story.broken("typing ends", &how);
            }
        }
    }
}
