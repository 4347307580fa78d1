//! Checks of messages that need no service. They see what is not encrypted, in the memory of this
//! node.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use ruma::{OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde_json::Value;

use logcabin_base::limits;
use logcabin_config::Antispam;

/// An hour, in milliseconds.
const HOUR_MS: u64 = 3_600_000;

pub(super) struct Checks {
    duplicate_rooms: u64,
    duplicate_ms: u64,
    mentions: u64,
    links: u64,
    new_ms: u64,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// The rooms to which a user sent a text lately.
    texts: HashMap<(OwnedUserId, blake3::Hash), Sent>,
    /// The links that a new user sent in an hour.
    links: HashMap<OwnedUserId, Links>,
}

struct Sent {
    since_ms: u64,
    rooms: HashSet<OwnedRoomId>,
}

struct Links {
    since_ms: u64,
    count: u64,
    /// The text that was counted last: a message that is sent again counts once.
    last: blake3::Hash,
}

impl Checks {
    pub(super) fn new(config: &Antispam) -> Self {
        Self {
            duplicate_rooms: config.duplicate_rooms,
            duplicate_ms: config.duplicate_seconds * 1000,
            mentions: config.mentions,
            links: config.new_account_links,
            new_ms: config.new_account_seconds * 1000,
            memory: Mutex::default(),
        }
    }

    pub(super) const fn are_on(&self) -> bool {
        self.duplicate_rooms > 0 || self.mentions > 0 || self.links > 0
    }

    /// The setting by which this message of a user is spam.
    pub(super) fn against(
        &self,
        user_id: &UserId,
        room_id: Option<&RoomId>,
        content: &Value,
        age_ms: u64,
        now_ms: u64,
    ) -> Option<&'static str> {
        let text = content["body"].as_str().unwrap_or_default();
        if self.mentions > 0 && mentions(content, text) > self.mentions {
            return Some("antispam.mentions");
        }
        if text.is_empty() {
            return None;
        }
        let mut memory = self.memory.lock();
        if self.links > 0 && age_ms < self.new_ms {
            let links = text.matches("://").count() as u64;
            if links > 0 && memory.links(user_id, text, links, now_ms) > self.links {
                return Some("antispam.new_account_links");
            }
        }
        if self.duplicate_rooms > 0
            && let Some(room_id) = room_id
        {
            let rooms = memory.rooms(user_id, room_id, text, self.duplicate_ms, now_ms);
            if rooms > self.duplicate_rooms {
                return Some("antispam.duplicate_rooms");
            }
        }
        None
    }
}

impl Memory {
    /// How many links the user has sent in the last hour, with these.
    fn links(&mut self, user_id: &UserId, text: &str, links: u64, now_ms: u64) -> u64 {
        make_room(&mut self.links, |links| now_ms.saturating_sub(links.since_ms) < HOUR_MS);
        let text = blake3::hash(text.as_bytes());
        let new = || Links { since_ms: now_ms, count: 0, last: blake3::hash(b"") };
        let sent = self.links.entry(user_id.to_owned()).or_insert_with(new);
        if now_ms.saturating_sub(sent.since_ms) >= HOUR_MS {
            *sent = new();
        }
        if sent.last != text {
            sent.last = text;
            sent.count += links;
        }
        sent.count
    }

    /// To how many rooms the user has sent a text lately, with this one.
    fn rooms(
        &mut self,
        user_id: &UserId,
        room_id: &RoomId,
        text: &str,
        within_ms: u64,
        now_ms: u64,
    ) -> u64 {
        make_room(&mut self.texts, |sent| now_ms.saturating_sub(sent.since_ms) < within_ms);
        let hash = blake3::hash(text.trim().to_lowercase().as_bytes());
        let new = || Sent { since_ms: now_ms, rooms: HashSet::new() };
        let sent = self.texts.entry((user_id.to_owned(), hash)).or_insert_with(new);
        if now_ms.saturating_sub(sent.since_ms) >= within_ms {
            *sent = new();
        }
        if sent.rooms.len() < limits::SCREENED_ROOMS {
            sent.rooms.insert(room_id.to_owned());
        }
        sent.rooms.len() as u64
    }
}

/// Forgets what is over once there is too much; if nothing is, all of it.
fn make_room<K: std::hash::Hash + Eq, V>(of: &mut HashMap<K, V>, lasts: impl Fn(&V) -> bool) {
    if of.len() >= limits::SCREENED {
        of.retain(|_, value| lasts(value));
        if of.len() >= limits::SCREENED {
            of.clear();
        }
    }
}

/// How many users a message mentions: as it says, or in its text.
fn mentions(content: &Value, text: &str) -> u64 {
    let said = content["m.mentions"]["user_ids"]
        .as_array()
        .map_or(0, |users| users.iter().filter_map(Value::as_str).collect::<HashSet<_>>().len());
    let words = text.split_whitespace();
    let ids: HashSet<_> =
        words.filter(|word| word.starts_with('@') && word.contains(':')).collect();
    let html = content["formatted_body"].as_str().unwrap_or_default();
    let links = html.matches("matrix.to/#/@").count() + html.matches("matrix.to/#/%40").count();
    said.max(ids.len()).max(links) as u64
}

#[cfg(test)]
mod tests {
    use ruma::{room_id, user_id};
    use serde_json::json;

    use super::*;

    fn checks() -> Checks {
        Checks {
            duplicate_rooms: 2,
            duplicate_ms: 1000,
            mentions: 3,
            links: 2,
            new_ms: 10_000,
            memory: Mutex::default(),
        }
    }

    #[test]
    fn the_same_text_in_many_rooms_is_spam_for_a_while() {
        let (checks, eve, ann) = (checks(), user_id!("@eve:x.example"), user_id!("@ann:x.example"));
        let rooms = [room_id!("!a:x.example"), room_id!("!b:x.example"), room_id!("!c:x.example")];
        let send = |user: &UserId, room: &RoomId, text: &str, now_ms| {
            checks.against(user, Some(room), &json!({ "body": text }), u64::MAX, now_ms)
        };
        for room in [rooms[0], rooms[1], rooms[1]] {
            assert_eq!(send(eve, room, "Buy this", 1), None);
        }
        assert_eq!(send(eve, rooms[2], " buy THIS", 2), Some("antispam.duplicate_rooms"));
        assert_eq!(send(eve, rooms[2], "something else", 3), None);
        assert_eq!(send(ann, rooms[2], "buy this", 3), None);
        assert_eq!(send(eve, rooms[2], "buy this", 1002), None);
    }

    #[test]
    fn links_of_new_accounts_and_mentions_are_counted() {
        let (checks, eve) = (checks(), user_id!("@eve:x.example"));
        let send =
            |content: Value, age_ms, now_ms| checks.against(eve, None, &content, age_ms, now_ms);
        let link = json!({ "body": "see https://x.example" });
        assert_eq!(send(link.clone(), 5000, 1), None);
        let two = json!({ "body": "http://a.example ftp://b.example" });
        assert_eq!(send(two.clone(), 20_000, 2), None, "the account is old");
        assert_eq!(send(two, 5000, 2), Some("antispam.new_account_links"));
        assert_eq!(send(link, 5000, 2 + HOUR_MS), None);
        let users = json!({ "m.mentions": { "user_ids": ["@a:x", "@b:x", "@c:x", "@c:x"] } });
        assert_eq!(send(users, 0, 3), None);
        let users = json!({ "m.mentions": { "user_ids": ["@a:x", "@b:x", "@c:x", "@d:x"] } });
        assert_eq!(send(users, 0, 3), Some("antispam.mentions"));
        let text = json!({ "body": "@a:x @b:x, @c:x @d:x" });
        assert_eq!(send(text, 0, 3), Some("antispam.mentions"));
        // What has another form is no reason to fail.
        for odd in [json!({}), json!({ "body": 3, "m.mentions": [] }), json!(null)] {
            assert_eq!(send(odd, 0, 4), None);
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (checks, room) = (checks(), room_id!("!a:x.example"));
        for number in 0..limits::SCREENED + 10 {
            let user = UserId::parse(format!("@u{number}:x.example")).unwrap();
            let content = json!({ "body": format!("https://x.example/{number}") });
            checks.against(&user, Some(room), &content, 0, 1);
        }
        let memory = checks.memory.lock();
        assert!(memory.texts.len() <= limits::SCREENED && memory.links.len() <= limits::SCREENED);
    }
}
