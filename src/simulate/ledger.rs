//! What users did and saw, and the claims that it is held to.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use super::story::Story;

/// How long it takes until others know of a join.
const KNOWN: Duration = Duration::from_secs(5);

/// How long the world has existed.
pub(crate) fn now() -> Duration {
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
    /// Who has left or was removed.
    out: BTreeSet<String>,
}

/// An event as a user gets it.
pub(crate) struct Saw<'a> {
    pub(crate) event_id: &'a str,
    /// What it says, if that is said once only.
    pub(crate) body: Option<&'a str>,
    pub(crate) sender: &'a str,
    /// For a membership: whose, and which.
    pub(crate) member: Option<(&'a str, &'a str)>,
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Rc<RefCell<Inner>>);

#[derive(Default)]
struct Inner {
    /// Each with who made it, and where.
    rooms: Vec<(String, usize, String)>,
    /// The users in each room, and since when.
    members: BTreeMap<String, BTreeMap<usize, Duration>>,
    /// Those who were ever removed from a room: they need not get all.
    gone: BTreeSet<(usize, String)>,
    sent: Vec<Sent>,
    /// Messages by room, each with who sent it.
    said: BTreeMap<String, Vec<(usize, String)>>,
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
    /// A room was made by a user on this homeserver.
    pub(crate) fn add_room(&self, room: String, by: usize, server: String) {
        self.0.borrow_mut().rooms.push((room, by, server));
    }

    /// Who made a room.
    pub(crate) fn maker(&self, room: &str) -> Option<usize> {
        let inner = self.0.borrow();
        inner.rooms.iter().find(|(of, ..)| of == room).map(|(_, by, _)| *by)
    }

    pub(crate) fn rooms(&self) -> Vec<String> {
        self.0.borrow().rooms.iter().map(|(room, ..)| room.clone()).collect()
    }

    /// The rooms, each with the homeserver where it was made.
    pub(crate) fn places(&self) -> Vec<(String, String)> {
        let inner = self.0.borrow();
        inner.rooms.iter().map(|(room, _, server)| (room.clone(), server.clone())).collect()
    }

    pub(crate) fn joined(&self, user: usize, room: &str) {
        self.0.borrow_mut().members.entry(room.to_owned()).or_default().insert(user, now());
    }

    /// Those who get a message that is sent to a room now. Who has just joined may not be known yet
    /// where it is sent from, and nobody tells them of it if nobody speaks after it.
    pub(crate) fn audience(&self, room: &str) -> BTreeSet<usize> {
        let since = now().saturating_sub(KNOWN);
        let inner = self.0.borrow();
        let members = inner.members.get(room).into_iter().flatten();
        members.filter(|(_, joined)| **joined <= since).map(|(user, _)| *user).collect()
    }

    /// Those who are in a room, known to all or not.
    pub(crate) fn members(&self, room: &str) -> BTreeSet<usize> {
        let inner = self.0.borrow();
        inner.members.get(room).into_iter().flatten().map(|(user, _)| *user).collect()
    }

    pub(crate) fn sent(&self, room: &str, event_id: &str, body: String, audience: BTreeSet<usize>) {
        let (room, event_id) = (room.to_owned(), event_id.to_owned());
        let mut inner = self.0.borrow_mut();
        inner.sent.push(Sent { room, event_id, body, audience, at: now() });
    }

    /// A user is removed from a room.
    pub(crate) fn leaves(&self, user: usize, room: &str) {
        let mut inner = self.0.borrow_mut();
        inner.members.entry(room.to_owned()).or_default().remove(&user);
        inner.gone.insert((user, room.to_owned()));
    }

    /// A user has learned that they are no longer in a room.
    pub(crate) fn forgets(&self, user: usize, room: &str) {
        self.0.borrow_mut().seen.remove(&(user, room.to_owned()));
    }

    /// A user has sent a message.
    pub(crate) fn said(&self, room: &str, event_id: &str, by: usize) {
        let mut inner = self.0.borrow_mut();
        inner.said.entry(room.to_owned()).or_default().push((by, event_id.to_owned()));
    }

    /// The messages of a room, each with who sent it.
    pub(crate) fn sent_in(&self, room: &str) -> Vec<(usize, String)> {
        self.0.borrow().said.get(room).cloned().unwrap_or_default()
    }

    /// The events of a room that a user has seen, in order.
    pub(crate) fn seen(&self, user: usize, room: &str) -> Vec<String> {
        let inner = self.0.borrow();
        inner.seen.get(&(user, room.to_owned())).map_or_else(Vec::new, |seen| seen.events.clone())
    }

    /// The place of an event among those that a user has seen.
    pub(crate) fn place(&self, user: usize, room: &str, event_id: &str) -> Option<usize> {
        let inner = self.0.borrow();
        let seen = inner.seen.get(&(user, room.to_owned()))?;
        seen.events.iter().rposition(|known| known == event_id)
    }

    /// A user has got an event by `/sync`.
    pub(crate) fn saw(&self, story: &Story, user: usize, room: &str, saw: &Saw<'_>) {
        let &Saw { event_id, body, sender, member } = saw;
        let mut inner = self.0.borrow_mut();
        let seen = inner.seen.entry((user, room.to_owned())).or_default();
        if !seen.known.insert(event_id.to_owned()) {
            story.broken("each event is seen once", &format!("user {user} got {event_id} twice"));
        }
        seen.events.push(event_id.to_owned());
        match member {
            Some((of, "join" | "invite")) => drop(seen.out.remove(of)),
            Some((of, _)) => drop(seen.out.insert(of.to_owned())),
            None if seen.out.contains(sender) => {
                let how = format!("user {user} got {event_id} of {sender} in {room}");
                story.broken("who is not in a room is not heard there", &how);
            }
            None => {}
        }
        if let Some(body) = body
            && !seen.bodies.insert(body.to_owned())
        {
            story.broken(
                "a transaction id makes one event",
                &format!("user {user} got {body:?} in two events"),
            );
        }
    }

    /// A user has got an event by `/sync`, which may have taken so long.
    pub(crate) fn saw_in_time(&self, story: &Story, user: usize, event_id: &str, most: Duration) {
        let inner = self.0.borrow();
        let Some(Sent { audience, at, .. }) =
            inner.sent.iter().rev().find(|sent| sent.event_id == event_id)
        else {
            return;
        };
        let waited = now().saturating_sub(*at);
        if waited > most && audience.contains(&user) {
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
                if inner.gone.contains(&(*user, room.clone())) {
                    continue;
                }
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
        for (room, ..) in &inner.rooms {
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
        for (room, ..) in &inner.rooms {
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
