//! What users did and saw, and the claims that it is held to.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use super::story::Story;

/// How long news may take where nothing goes wrong. Syncs last longer.
const PROMPT: Duration = Duration::from_secs(10);

/// How long the world has existed.
fn now() -> Duration {
    turmoil::sim_elapsed().unwrap_or_default()
}

/// A message that a server acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) room: String,
    pub(crate) event_id: String,
    /// What nobody else says.
    pub(crate) body: String,
    /// The users who were in the room when it was sent.
    audience: BTreeSet<usize>,
    /// When it was acknowledged.
    at: Duration,
}

/// What one user saw of one room.
#[derive(Debug, Default)]
struct Seen {
    /// In the order of `/sync`.
    events: Vec<String>,
    known: BTreeSet<String>,
    /// The messages, by what they say.
    bodies: BTreeSet<String>,
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Rc<RefCell<Inner>>);

#[derive(Default)]
struct Inner {
    rooms: Vec<String>,
    members: BTreeMap<String, BTreeSet<usize>>,
    sent: Vec<Sent>,
    seen: BTreeMap<(usize, String), Seen>,
    /// To-device messages that were acknowledged: their text and the user they are for.
    told: Vec<(String, usize)>,
    heard: BTreeMap<usize, BTreeMap<String, usize>>,
    /// One-time keys, and who was given each.
    claimed: BTreeMap<String, Vec<usize>>,
    /// The state of each room, as users got it at the end.
    states: BTreeMap<String, Vec<(usize, BTreeSet<String>)>>,
    done: usize,
    requests: u64,
}

impl Ledger {
    pub(crate) fn add_room(&self, room: String) {
        self.0.borrow_mut().rooms.push(room);
    }

    pub(crate) fn rooms(&self) -> Vec<String> {
        self.0.borrow().rooms.clone()
    }

    pub(crate) fn joined(&self, user: usize, room: &str) {
        self.0.borrow_mut().members.entry(room.to_owned()).or_default().insert(user);
    }

    /// Those who were in a room before a message is sent.
    pub(crate) fn audience(&self, room: &str) -> BTreeSet<usize> {
        self.0.borrow().members.get(room).cloned().unwrap_or_default()
    }

    pub(crate) fn sent(&self, room: &str, event_id: &str, body: String, audience: BTreeSet<usize>) {
        let (room, event_id) = (room.to_owned(), event_id.to_owned());
        let mut inner = self.0.borrow_mut();
        inner.sent.push(Sent { room, event_id, body, audience, at: now() });
    }

    /// A user has got an event by `/sync`.
    pub(crate) fn saw(
        &self,
        story: &Story,
        user: usize,
        room: &str,
        event_id: &str,
        body: Option<&str>,
    ) {
        let mut inner = self.0.borrow_mut();
        let seen = inner.seen.entry((user, room.to_owned())).or_default();
        if !seen.known.insert(event_id.to_owned()) {
            story.broken("each event is seen once", &format!("user {user} got {event_id} twice"));
        }
        seen.events.push(event_id.to_owned());
        if let Some(body) = body
            && !seen.bodies.insert(body.to_owned())
        {
            story.broken(
                "a transaction id makes one event",
                &format!("user {user} got {body:?} in two events"),
            );
        }
    }

    /// A user has got an event by `/sync`, and nothing kept it from them.
    pub(crate) fn saw_in_time(&self, story: &Story, user: usize, event_id: &str) {
        let inner = self.0.borrow();
        let Some(Sent { audience, at, .. }) =
            inner.sent.iter().rev().find(|sent| sent.event_id == event_id)
        else {
            return;
        };
        let waited = now().saturating_sub(*at);
        if waited > PROMPT && audience.contains(&user) {
            let how = format!("user {user} waited {} ms for {event_id}", waited.as_millis());
            story.broken("news arrive promptly", &how);
        }
    }

    /// Whether a user has got an event already.
    pub(crate) fn has_seen(&self, user: usize, room: &str, event_id: &str) -> bool {
        let inner = self.0.borrow();
        let seen = inner.seen.get(&(user, room.to_owned()));
        seen.is_some_and(|seen| seen.known.contains(event_id))
    }

    pub(crate) fn told(&self, text: String, to: usize) {
        self.0.borrow_mut().told.push((text, to));
    }

    pub(crate) fn heard(&self, story: &Story, user: usize, text: &str) {
        let mut inner = self.0.borrow_mut();
        let times = inner.heard.entry(user).or_default().entry(text.to_owned()).or_default();
        *times += 1;
        if *times > 1 {
            let how = format!("user {user} got {text:?} twice");
            story.broken("each to-device message arrives once", &how);
        }
    }

    pub(crate) fn claimed(&self, story: &Story, key: &str, by: usize) {
        let mut inner = self.0.borrow_mut();
        let claimed = inner.claimed.entry(key.to_owned()).or_default();
        claimed.push(by);
        if claimed.len() > 1 {
            let how = format!("{key} was given to {claimed:?}");
            story.broken("each one-time key is given once", &how);
        }
    }

    pub(crate) fn state(&self, room: &str, user: usize, state: BTreeSet<String>) {
        self.0.borrow_mut().states.entry(room.to_owned()).or_default().push((user, state));
    }

    pub(crate) fn done(&self) {
        self.0.borrow_mut().done += 1;
    }

    /// How many users have done all that they wanted.
    pub(crate) fn how_many_done(&self) -> usize {
        self.0.borrow().done
    }

    pub(crate) fn requested(&self) {
        self.0.borrow_mut().requests += 1;
    }

    pub(crate) fn requests(&self) -> u64 {
        self.0.borrow().requests
    }

    /// What was acknowledged and somebody has not got, if there is something.
    pub(crate) fn missing(&self) -> Option<String> {
        let inner = self.0.borrow();
        for Sent { room, event_id, body, audience, .. } in &inner.sent {
            for user in audience {
                let seen = inner.seen.get(&(*user, room.clone()));
                if !seen.is_some_and(|seen| seen.known.contains(event_id)) {
                    return Some(format!("user {user} lacks {body:?}, {event_id} of {room}"));
                }
            }
        }
        for (text, user) in &inner.told {
            if !inner.heard.get(user).is_some_and(|heard| heard.contains_key(text)) {
                return Some(format!("user {user} lacks the to-device message {text:?}"));
            }
        }
        None
    }

    /// Checks what can only be checked at the end. `server` says which server a user is on.
    pub(crate) fn check(&self, story: &Story, users: usize, server: impl Fn(usize) -> usize) {
        let inner = self.0.borrow();
        for room in &inner.rooms {
            // All users of a server see the events of a room in one order.
            let mut orders: BTreeMap<usize, (usize, &Seen)> = BTreeMap::new();
            for ((user, of), seen) in &inner.seen {
                if of != room {
                    continue;
                }
                let Some((other, order)) = orders.get(&server(*user)) else {
                    orders.insert(server(*user), (*user, seen));
                    continue;
                };
                let both = |events: &Seen, other: &Seen| -> Vec<String> {
                    let common = events.events.iter().filter(|id| other.known.contains(*id));
                    common.cloned().collect()
                };
                if both(seen, order) != both(order, seen) {
                    let how = format!("users {user} and {other} in {room}");
                    story.broken("a server shows a room in one order", &how);
                }
            }
        }
        for room in &inner.rooms {
            let states = inner.states.get(room).map_or(&[][..], Vec::as_slice);
            if states.len() < users {
                let how = format!("{} of {users} users know that of {room}", states.len());
                story.broken("a member gets the state", &how);
            }
            let Some((first, state)) = states.first() else { continue };
            for (user, other) in states {
                if other != state {
                    let differ: Vec<_> = state.symmetric_difference(other).collect();
                    let how = format!("{room} of users {first} and {user}: {differ:?}");
                    story.broken("all servers come to the same state", &how);
                }
            }
        }
    }
}
