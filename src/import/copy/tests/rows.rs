//! A Synapse's database, made row by row from a seed: rooms with branches, gaps, and events that
//! were not accepted, and users with what belongs to them.
//!
//! Rows are made in the order in which a Synapse writes them, so that a database of more steps
//! begins as one of fewer steps with the same seed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use ruma::{RoomVersionId, room_version_rules::RoomVersionRules};
use rusqlite::{Connection, params};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Model, OWN};
use crate::synapse::Settings;
use logcabin_record::{event_format::has_chosen_ids, lax_object::LaxObject};

mod people;
mod wanted;

use self::wanted::{Random, Wanted, create, member, state};

const TABLES: &str = include_str!("../../synapse/tests/tables.sql");

/// When the first event came, in milliseconds since the Unix epoch.
const BEGIN_MS: i64 = 1_600_000_000_000;

const VERSIONS: [&str; 8] = ["1", "2", "3", "6", "9", "10", "11", "12"];

/// How Synapse has an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Timeline,
    SoftFailed,
    Rejected,
    /// Fetched from the past, with a place there.
    Backfilled,
    /// Fetched for others, without a place.
    Outlier,
    /// Only other servers have it.
    Missing,
}

struct Made {
    event_id: String,
    sender: String,
    depth: i64,
    prev: Vec<usize>,
    json: Value,
    key: Option<(String, String)>,
    kept: Kept,
    /// The states before and after it, and the number of the latter, 0 if it has none.
    before: Model,
    after: Model,
    group: i64,
}

struct Room {
    room_id: String,
    version: RoomVersionId,
    rules: RoomVersionRules,
    events: Vec<Made>,
    tips: BTreeSet<usize>,
    current: Model,
    /// Events that came as outliers, and will come again in their place.
    pending: Vec<usize>,
}

/// A Synapse, in a directory of its own.
pub(super) struct Rows {
    pub(super) directory: TempDir,
    pub(super) database: Connection,
    random: Random,
    rooms: Vec<Room>,
    /// The newest place of an event, and the lowest of one that was fetched.
    stream: i64,
    past: i64,
    groups: i64,
    /// A number for whatever must differ.
    number: i64,
}

fn own(name: &str) -> String {
    format!("@{name}:{OWN}")
}

impl Rows {
    pub(super) fn new(seed: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            fs::write(directory.path().join(name), text).unwrap();
        };
        let settings = format!(
            "server_name: {OWN}\nsigning_key_path: signing.key\nmedia_store_path: media\n\
             database: {{name: sqlite3, args: {{database: homeserver.db}}}}\n"
        );
        write("homeserver.yaml", &settings);
        write("signing.key", "ed25519 a_1 YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE\n");
        let database = Connection::open(directory.path().join("homeserver.db")).unwrap();
        database.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF").unwrap();
        database.execute_batch(TABLES).unwrap();
        let random = Random(seed);
        let rooms = Vec::new();
        let mut rows =
            Self { directory, database, random, rooms, stream: 0, past: 0, groups: 0, number: 0 };
        rows.people();
        rows.create_room();
        rows
    }

    pub(super) fn settings(&self) -> Settings {
        Settings::read(&self.directory.path().join("homeserver.yaml")).unwrap()
    }

    /// Does so many things that a Synapse does, in one transaction.
    pub(super) fn go_on(&mut self, steps: usize) {
        self.database.execute_batch("BEGIN").unwrap();
        for _ in 0..steps {
            self.step();
        }
        self.say_what_is();
        self.database.execute_batch("COMMIT").unwrap();
    }

    fn run(&self, sql: &str, values: impl rusqlite::Params) {
        self.database.execute(sql, values).unwrap();
    }

    fn next_number(&mut self) -> i64 {
        self.number += 1;
        self.number
    }

    fn step(&mut self) {
        let room = self.random.below(self.rooms.len());
        match self.random.below(40) {
            0 if self.rooms.len() < 4 => self.create_room(),
            1 if self.rooms.len() < 4 => self.enter_room(),
            2 => self.invite(),
            3..5 => self.gap(room),
            5..8 => self.backfill(room),
            8 => self.fetch(room),
            9..11 => self.place(room),
            11..15 => self.redact(room),
            15..19 => self.something_personal(),
            _ => self.send(room),
        }
    }

    /// A room of this server.
    fn create_room(&mut self) {
        let version = self.new_room();
        let room = self.rooms.len() - 1;
        let ann = own("ann");
        self.make(room, create(&ann, &version), &[], Kept::Timeline);
        self.name_room(room, &ann);
        let join = member(&ann, &ann, "join");
        self.make(room, join, &[0], Kept::Timeline);
        let shared = state(&ann, "m.room.history_visibility", "", "history_visibility", "shared");
        self.make(room, shared, &[1], Kept::Timeline);
        if self.random.one_in(2) {
            let alias = format!("#room{}:{OWN}", self.next_number());
            let room_id = self.rooms[room].room_id.clone();
            self.run("INSERT INTO room_aliases VALUES (?, ?, ?)", params![alias, room_id, ann]);
        }
    }

    fn new_room(&mut self) -> String {
        let version = (*self.random.of(&VERSIONS)).to_owned();
        let id = RoomVersionId::try_from(version.as_str()).unwrap();
        let rules = id.rules().unwrap();
        let room_id = format!("!room{}:{OWN}", self.next_number());
        self.rooms.push(Room {
            room_id,
            version: id,
            rules,
            events: Vec::new(),
            tips: BTreeSet::new(),
            current: Model::new(),
            pending: Vec::new(),
        });
        version
    }

    fn name_room(&mut self, room: usize, creator: &str) {
        let of = &self.rooms[room];
        let values = params![of.room_id, self.number % 2, creator, of.version.as_str()];
        self.run("INSERT INTO rooms VALUES (?, ?, ?, ?)", values);
    }

    /// A room of another server, which a user enters: its state comes first, and the join follows
    /// an event that is missing.
    fn enter_room(&mut self) {
        let version = self.new_room();
        let room = self.rooms.len() - 1;
        let eve = "@eve:e.example".to_owned();
        self.make(room, create(&eve, &version), &[], Kept::Missing);
        self.name_room(room, &eve);
        self.make(room, member(&eve, &eve, "join"), &[0], Kept::Missing);
        for _ in 0..2 + self.random.below(6) {
            let wanted = self.wanted(&eve);
            let last = self.rooms[room].events.len() - 1;
            self.make(room, wanted, &[last], Kept::Missing);
        }
        let last = self.rooms[room].events.len() - 1;
        self.fetch_state_of(room, last);
        let ann = own("ann");
        self.make(room, member(&ann, &ann, "join"), &[last], Kept::Timeline);
    }

    /// An invite into a room that nobody here is in, which may be declined.
    fn invite(&mut self) {
        let version = self.new_room();
        let mut room = self.rooms.pop().unwrap();
        let (frank, bob) = ("@frank:f.example", own("bob"));
        room.room_id = format!("!elsewhere{}:f.example", self.next_number());
        let values = params![room.room_id, version];
        self.run("INSERT INTO rooms VALUES (?, 0, NULL, ?)", values);
        self.rooms.push(room);
        let at = self.rooms.len() - 1;
        let invite = self.raw(at, member(frank, &bob, "invite"), &[], 7);
        let mut memberships = vec![("invite", invite)];
        if self.random.one_in(2) {
            memberships.push(("leave", self.raw(at, member(&bob, &bob, "leave"), &[], 8)));
        }
        let room = self.rooms.pop().unwrap();
        for (membership, mut made) in memberships {
            if membership == "invite" {
                let name = json!([{ "type": "m.room.name", "state_key": "", "sender": frank,
                    "content": { "name": "Elsewhere" } }]);
                made.json["unsigned"] = json!({ "invite_room_state": name });
            }
            self.stream += 1;
            let marks = r#"{"outlier":true,"out_of_band_membership":true}"#;
            self.write(&room, &made, self.stream, true, marks);
            self.run(
                "DELETE FROM local_current_membership WHERE room_id = ? AND user_id = ?",
                params![room.room_id, bob],
            );
            let values = params![room.room_id, bob, made.event_id, membership];
            self.run("INSERT INTO local_current_membership VALUES (?, ?, ?, ?)", values);
        }
    }

    /// A message, or something about the room.
    fn wanted(&mut self, sender: &str) -> Wanted {
        let number = self.next_number();
        let text = format!("text {number}");
        match self.random.below(8) {
            0 | 1 => state(sender, "m.room.name", "", "name", &text),
            2 => state(sender, "m.room.topic", "", "topic", &text),
            3 => {
                let key = format!("key {}", self.random.below(3));
                state(sender, "org.example.state", &key, "value", &text)
            }
            4 => {
                let mut join = member(sender, sender, "join");
                join.content["displayname"] = json!(text);
                join
            }
            _ => Wanted {
                sender: sender.to_owned(),
                event_type: "m.room.message",
                state_key: None,
                content: json!({ "msgtype": "m.text", "body": text }),
                redacts: None,
            },
        }
    }

    /// An event that comes as it happens: after all others, on a branch of its own, or where two
    /// branches meet.
    fn send(&mut self, room: usize) {
        let senders = [own("ann"), own("bob"), "@cy:c.example".into(), "@eve:e.example".into()];
        let sender = self.random.of(&senders).clone();
        let of = &self.rooms[room];
        let placed: Vec<usize> = (0..of.events.len())
            .filter(|at| !matches!(of.events[*at].kept, Kept::Missing | Kept::Outlier))
            .filter(|at| of.events[*at].kept != Kept::Backfilled)
            .collect();
        let tips: Vec<usize> = of.tips.iter().copied().collect();
        let prev = match self.random.below(8) {
            0 if placed.len() > 1 => vec![*self.random.of(&placed[1..])],
            1 if placed.len() > 1 => {
                let both = [*self.random.of(&placed[1..]), *self.random.of(&placed[1..])];
                BTreeSet::from(both).into_iter().collect()
            }
            _ => tips,
        };
        let is_outside = !sender.ends_with(OWN);
        let kept = match self.random.below(12) {
            0 if is_outside => Kept::SoftFailed,
            1 if is_outside => Kept::Rejected,
            _ => Kept::Timeline,
        };
        let wanted = match self.random.below(10) {
            0 if kept == Kept::Timeline && sender != own("ann") => {
                let joined = *self.random.of(&["join", "leave", "invite"]);
                member(&own("ann"), &sender, joined)
            }
            _ => self.wanted(&sender),
        };
        self.make(room, wanted, &prev, kept);
    }

    /// Others go on without this server, and then it gets their last event.
    fn gap(&mut self, room: usize) {
        let of = &self.rooms[room];
        let Some(deepest) = of.tips.iter().copied().max_by_key(|at| of.events[*at].depth) else {
            return;
        };
        let mut last = deepest;
        for _ in 0..1 + self.random.below(5) {
            let wanted = self.wanted("@eve:e.example");
            last = self.make(room, wanted, &[last], Kept::Missing);
        }
        self.fetch_state_of(room, last);
        let wanted = self.wanted("@eve:e.example");
        self.make(room, wanted, &[last], Kept::Timeline);
    }

    /// Takes what is missing of a state as outliers.
    fn fetch_state_of(&mut self, room: usize, at: usize) {
        let of = &self.rooms[room];
        let after = of.events[at].after.values().collect::<BTreeSet<_>>();
        let missing: Vec<usize> = (0..of.events.len())
            .filter(|at| of.events[*at].kept == Kept::Missing)
            .filter(|at| after.contains(&of.events[*at].event_id))
            .collect();
        for at in missing {
            self.past -= 1;
            let place = self.past;
            self.rooms[room].events[at].kept = Kept::Outlier;
            self.write_at(room, at, place);
        }
    }

    /// Fetches the newest of what is missing: the oldest of a batch has the place nearest to zero.
    fn backfill(&mut self, room: usize) {
        let of = &self.rooms[room];
        let lacks = |at: &usize| {
            let of = &of.events[*at];
            matches!(of.kept, Kept::Missing | Kept::Outlier)
        };
        let placed = |at: &usize| matches!(of.events[*at].kept, Kept::Timeline | Kept::Backfilled);
        let ends: Vec<usize> = (0..of.events.len())
            .filter(placed)
            .flat_map(|at| of.events[at].prev.iter().copied())
            .filter(|at| lacks(at) && !of.pending.contains(at))
            .collect();
        if ends.is_empty() {
            return;
        }
        let mut next = *self.random.of(&ends);
        let mut batch = Vec::new();
        for _ in 0..1 + self.random.below(6) {
            batch.push(next);
            let of = &self.rooms[room].events;
            match of[next].prev.first() {
                Some(before) if matches!(of[*before].kept, Kept::Missing | Kept::Outlier) => {
                    next = *before;
                }
                _ => break,
            }
        }
        for at in batch.into_iter().rev() {
            self.past -= 1;
            let place = self.past;
            let was = self.rooms[room].events[at].kept;
            self.rooms[room].events[at].kept = Kept::Backfilled;
            self.give_group(room, at);
            match was {
                Kept::Outlier => self.find_place(room, at, place),
                _ => self.write_at(room, at, place),
            }
        }
    }

    /// An event of another server is needed before it comes.
    fn fetch(&mut self, room: usize) {
        let cy = "@cy:c.example";
        let wanted = member(cy, cy, "join");
        let tips: Vec<usize> = self.rooms[room].tips.iter().copied().collect();
        let at = self.make(room, wanted, &tips, Kept::Missing);
        self.rooms[room].events[at].kept = Kept::Outlier;
        self.rooms[room].pending.push(at);
        let place = if self.random.one_in(2) {
            self.stream += 1;
            self.stream
        } else {
            self.past -= 1;
            self.past
        };
        self.write_at(room, at, place);
    }

    /// It comes.
    fn place(&mut self, room: usize) {
        let Some(at) = self.rooms[room].pending.pop() else { return };
        self.stream += 1;
        let place = self.stream;
        self.rooms[room].events[at].kept = Kept::Timeline;
        self.give_group(room, at);
        self.find_place(room, at, place);
        self.advance(room, at);
    }

    fn find_place(&self, room: usize, at: usize, place: i64) {
        let made = &self.rooms[room].events[at];
        let values = params![place, made.event_id, made.group];
        self.run("INSERT INTO ex_outlier_stream VALUES (?, ?, ?)", values);
        self.run("UPDATE events SET outlier = 0 WHERE event_id = ?", [&made.event_id]);
        let sql = "UPDATE event_json SET internal_metadata = '{}' WHERE event_id = ?";
        self.run(sql, [&made.event_id]);
        self.write_edges(room, at);
    }

    /// Redacts an event of the timeline. Much later, Synapse removes the content of the event. No
    /// redaction is redacted: without its content it does not say what it was about.
    fn redact(&mut self, room: usize) {
        let of = &self.rooms[room];
        let some: Vec<usize> = (2..of.events.len())
            .filter(|at| of.events[*at].kept == Kept::Timeline)
            .filter(|at| of.events[*at].json["type"] == "m.room.message")
            .collect();
        if some.is_empty() {
            return;
        }
        let target = *self.random.of(&some);
        let made = &self.rooms[room].events[target];
        let redacts = made.event_id.clone();
        let sender = match self.random.below(3) {
            0 => own("ann"),
            _ => made.sender.clone(),
        };
        let wanted = Wanted {
            sender,
            event_type: "m.room.redaction",
            state_key: None,
            content: json!({ "reason": "no" }),
            redacts: Some(redacts.clone()),
        };
        let tips: Vec<usize> = self.rooms[room].tips.iter().copied().collect();
        let at = self.make(room, wanted, &tips, Kept::Timeline);
        let is_censored = self.random.one_in(2);
        let event_id = &self.rooms[room].events[at].event_id;
        let values = params![event_id, &redacts, is_censored, BEGIN_MS + self.stream];
        self.run("INSERT INTO redactions VALUES (?, ?, ?, ?)", values);
        if is_censored {
            let of = &mut self.rooms[room];
            let made = &mut of.events[target];
            let object = LaxObject::parse(&made.json.to_string()).unwrap();
            let pruned = object.redacted(&of.rules.redaction).unwrap().to_raw().unwrap();
            made.json = serde_json::from_str(pruned.get()).unwrap();
            let values = params![pruned.get(), redacts];
            self.run("UPDATE event_json SET json = ? WHERE event_id = ?", values);
        }
    }

    /// The text of an event, and its id.
    fn raw(&mut self, room: usize, wanted: Wanted, prev: &[usize], depth: i64) -> Made {
        let number = self.next_number();
        let of = &mut self.rooms[room];
        let Wanted { sender, event_type, state_key, mut content, redacts } = wanted;
        let chosen = has_chosen_ids(&of.rules);
        let ids = prev.iter().map(|at| &of.events[*at].event_id);
        let prev_events: Vec<Value> = match chosen {
            true => ids.map(|id| json!([id, { "sha256": "x" }])).collect(),
            false => ids.map(|id| json!(id)).collect(),
        };
        let mut json = json!({
            "sender": sender, "type": event_type, "depth": depth, "auth_events": [],
            "origin_server_ts": BEGIN_MS + number, "prev_events": prev_events,
            "signatures": { "x.example": { "ed25519:k": format!("s{number}") } },
        });
        let later = matches!(of.version.as_str(), "11" | "12");
        if let Some(redacts) = redacts {
            match later {
                true => content["redacts"] = json!(redacts),
                false => json["redacts"] = json!(redacts),
            }
        }
        json["content"] = content;
        if let Some(state_key) = &state_key {
            json["state_key"] = json!(state_key);
        }
        if chosen {
            json["event_id"] = json!(format!("$event{number}:x.example"));
        }
        // In rooms of version 12, the event that creates it gives a room its id.
        let names_room = event_type == "m.room.create" && of.version.as_str() == "12";
        if !names_room {
            json["room_id"] = json!(of.room_id);
        }
        let mut object = LaxObject::parse(&json.to_string()).unwrap();
        object.add_content_hash().unwrap();
        json["hashes"] = serde_json::to_value(object.get("hashes").unwrap()).unwrap();
        let event_id = object.event_id(&of.rules).unwrap().to_string();
        if names_room {
            of.room_id = event_id.replacen('$', "!", 1);
        }
        let key = state_key.map(|state_key| (event_type.to_owned(), state_key));
        let (before, after, prev) = (Model::new(), Model::new(), prev.to_vec());
        let kept = Kept::Missing;
        Made { event_id, sender, depth, prev, json, key, kept, before, after, group: 0 }
    }

    /// Of several events for a key, the one that was made last: a resolution as good as any here.
    fn resolve(&self, room: usize, states: &[&Model]) -> Model {
        let events = &self.rooms[room].events;
        let place = |id: &str| events.iter().position(|event| event.event_id == id);
        let mut all = Model::new();
        for (key, event_id) in states.iter().flat_map(|state| state.iter()) {
            match all.get(key) {
                Some(other) if place(other) >= place(event_id) => {}
                _ => {
                    all.insert(key.clone(), event_id.clone());
                }
            }
        }
        all
    }

    /// Makes an event, and writes it as it is kept.
    fn make(&mut self, room: usize, wanted: Wanted, prev: &[usize], kept: Kept) -> usize {
        let events = &self.rooms[room].events;
        let depth = prev.iter().map(|at| events[*at].depth).max().unwrap_or(0) + 1;
        let mut made = self.raw(room, wanted, prev, depth);
        let events = &self.rooms[room].events;
        let states: Vec<&Model> = prev.iter().map(|at| &events[*at].after).collect();
        made.before = self.resolve(room, &states);
        if prev.len() > 1 && self.random.one_in(4) {
            self.reset(room, &mut made.before);
        }
        made.after = made.before.clone();
        if let Some(key) = made.key.clone().filter(|_| kept != Kept::Rejected) {
            made.after.insert(key, made.event_id.clone());
        }
        made.kept = kept;
        let at = self.rooms[room].events.len();
        self.rooms[room].events.push(made);
        if kept == Kept::Missing {
            return at;
        }
        self.give_group(room, at);
        self.stream += 1;
        self.write_at(room, at, self.stream);
        if kept == Kept::Timeline {
            self.advance(room, at);
        }
        at
    }

    /// Where branches meet, an older event may win, or none.
    fn reset(&mut self, room: usize, state: &mut Model) {
        let keys: Vec<_> = state
            .keys()
            .filter(|(event_type, _)| {
                matches!(&**event_type, "m.room.name" | "m.room.topic" | "org.example.state")
            })
            .cloned()
            .collect();
        if keys.is_empty() {
            return;
        }
        let key = self.random.of(&keys).clone();
        let older: Vec<String> = self.rooms[room]
            .events
            .iter()
            .filter(|event| event.kept == Kept::Timeline && event.key.as_ref() == Some(&key))
            .map(|event| event.event_id.clone())
            .collect();
        match self.random.below(3) {
            0 => drop(state.remove(&key)),
            _ if older.is_empty() => {}
            _ => drop(state.insert(key, self.random.of(&older).clone())),
        }
    }

    /// Numbers the states of an event as Synapse does: the state before it has the number of that
    /// after one of its predecessors, if it is the same.
    fn give_group(&mut self, room: usize, at: usize) {
        let events = &self.rooms[room].events;
        let made = &events[at];
        let known = made.prev.iter().map(|at| &events[*at]);
        let mut known = known.filter(|of| of.group != 0 && of.after == made.before);
        let before = known.next().map(|of| of.group);
        let before = before.unwrap_or_else(|| self.number(room, at, false, None));
        let made = &self.rooms[room].events[at];
        let group = match made.before == made.after {
            true => before,
            false => self.number(room, at, true, Some(before)),
        };
        self.rooms[room].events[at].group = group;
        let made = &self.rooms[room].events[at];
        let values = params![made.event_id, made.group];
        self.run("INSERT INTO event_to_state_groups VALUES (?, ?)", values);
    }

    /// Writes the state after or before an event: what its key adds to `from`, or as a whole.
    fn number(&mut self, room: usize, at: usize, after: bool, from: Option<i64>) -> i64 {
        self.groups += 1;
        let group = self.groups;
        let of = &self.rooms[room];
        let made = &of.events[at];
        let values = params![group, of.room_id, made.event_id];
        self.run("INSERT INTO state_groups VALUES (?, ?, ?)", values);
        let whole = if after { &made.after } else { &made.before };
        let mut added: Vec<_> = whole.iter().collect();
        if let Some(from) = from {
            self.run("INSERT INTO state_group_edges VALUES (?, ?)", params![group, from]);
            added.retain(|(key, id)| made.before.get(*key) != Some(*id));
        }
        for ((event_type, state_key), id) in added {
            let values = params![group, of.room_id, event_type, state_key, id];
            self.run("INSERT INTO state_groups_state VALUES (?, ?, ?, ?, ?)", values);
        }
        group
    }

    fn write_at(&self, room: usize, at: usize, place: i64) {
        let of = &self.rooms[room];
        let made = &of.events[at];
        let marks = match made.kept {
            Kept::Outlier => r#"{"outlier":true}"#,
            Kept::SoftFailed => r#"{"soft_failed":true}"#,
            // Synapse marks redactions that only their servers vouch for.
            _ if made.json["type"] == "m.room.redaction" && !has_chosen_ids(&of.rules) => {
                r#"{"recheck_redaction":true}"#
            }
            _ => "{}",
        };
        self.write(of, made, place, made.kept == Kept::Outlier, marks);
        if made.kept == Kept::Rejected {
            let values = params![made.event_id];
            self.run("INSERT INTO rejections VALUES (?, 'auth_error', '1')", values);
        }
        if made.kept != Kept::Outlier {
            self.write_edges(room, at);
        }
    }

    fn write(&self, room: &Room, made: &Made, place: i64, outlier: bool, marks: &str) {
        let rejected = (made.kept == Kept::Rejected).then_some("auth_error");
        let state_key = made.key.as_ref().map(|(_, state_key)| state_key);
        let (event_type, ts) = (made.json["type"].as_str(), made.json["origin_server_ts"].as_i64());
        let values = params![
            place,
            made.depth,
            made.event_id,
            event_type,
            room.room_id,
            outlier,
            made.depth,
            ts,
            BEGIN_MS + self.stream,
            made.sender,
            state_key,
            rejected
        ];
        self.run("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values);
        let format = match room.version.as_str() {
            "1" | "2" => 1,
            "3" => 2,
            _ => 3,
        };
        let text = made.json.to_string();
        let values = params![made.event_id, room.room_id, marks, text, format];
        self.run("INSERT INTO event_json VALUES (?, ?, ?, ?, ?)", values);
    }

    fn write_edges(&self, room: usize, at: usize) {
        let events = &self.rooms[room].events;
        for prev in &events[at].prev {
            let values = params![events[at].event_id, events[*prev].event_id];
            self.run("INSERT INTO event_edges VALUES (?, ?, NULL, 0)", values);
        }
    }

    /// Moves the room on after an event of the timeline. Synapse would also forget an end that only
    /// an event from the past follows; it is then an end more in the log.
    fn advance(&mut self, room: usize, at: usize) {
        let of = &self.rooms[room];
        // What an event follows is no end any more, also by way of events that were not accepted.
        let mut followed: BTreeSet<usize> = BTreeSet::new();
        let mut next = of.events[at].prev.clone();
        while let Some(prev) = next.pop() {
            if followed.insert(prev)
                && matches!(of.events[prev].kept, Kept::SoftFailed | Kept::Rejected)
            {
                next.extend(&of.events[prev].prev);
            }
        }
        let of = &mut self.rooms[room];
        of.tips.retain(|tip| !followed.contains(tip));
        of.tips.insert(at);
        let of = &self.rooms[room];
        let states: Vec<&Model> = of.tips.iter().map(|at| &of.events[*at].after).collect();
        let now = self.resolve(room, &states);
        let keys: BTreeSet<_> = of.current.keys().chain(now.keys()).cloned().collect();
        for key in keys {
            let (was, is) = (of.current.get(&key), now.get(&key));
            if was != is {
                let values = params![self.stream, of.room_id, key.0, key.1, is, was];
                let sql = "INSERT INTO current_state_delta_stream VALUES (?, ?, ?, ?, ?, ?)";
                self.run(sql, values);
            }
        }
        self.rooms[room].current = now;
    }

    /// Writes the tables that say how things are now.
    fn say_what_is(&self) {
        for room in &self.rooms {
            for table in
                ["current_state_events", "event_forward_extremities", "event_backward_extremities"]
            {
                self.run(&format!("DELETE FROM {table} WHERE room_id = ?"), [&room.room_id]);
            }
            let of: BTreeMap<&str, &Made> =
                room.events.iter().map(|made| (&*made.event_id, made)).collect();
            for ((event_type, state_key), id) in &room.current {
                let membership = match &**event_type {
                    "m.room.member" => of[&**id].json["content"]["membership"].as_str(),
                    _ => None,
                };
                let values = params![id, room.room_id, event_type, state_key, membership];
                self.run("INSERT INTO current_state_events VALUES (?, ?, ?, ?, ?)", values);
                if membership.is_some() && state_key.ends_with(OWN) {
                    let values = params![room.room_id, state_key];
                    let sql =
                        "DELETE FROM local_current_membership WHERE room_id = ? AND user_id = ?";
                    self.run(sql, values);
                    let values = params![room.room_id, state_key, id, membership];
                    self.run("INSERT INTO local_current_membership VALUES (?, ?, ?, ?)", values);
                }
            }
            for tip in &room.tips {
                let values = params![room.events[*tip].event_id, room.room_id];
                self.run("INSERT INTO event_forward_extremities VALUES (?, ?)", values);
            }
            let mut ends: BTreeSet<usize> = BTreeSet::new();
            for made in &room.events {
                if !matches!(made.kept, Kept::Missing | Kept::Outlier) {
                    ends.extend(made.prev.iter().copied().filter(|at| {
                        matches!(room.events[*at].kept, Kept::Missing | Kept::Outlier)
                    }));
                }
            }
            for end in ends {
                let values = params![room.events[end].event_id, room.room_id];
                self.run("INSERT INTO event_backward_extremities VALUES (?, ?)", values);
            }
        }
    }
}
