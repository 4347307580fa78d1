//! Whole imports from a source in memory: rooms with branches, interruptions, and tails.

mod accounts;
mod bad;
mod changes;
mod late;
mod peers;
pub(super) mod property;
mod redactions;
mod resume;
mod rows;
mod rules;
mod since;
mod states;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::prelude::*;
use ruma::{RoomVersionId, events::StateEventType};
use serde_json::{Value, json};

use super::{prepare::tests::event as stored, *};
use crate::facts::{
    self, About, CurrentState, Event, ForwardExtremity, Judged, Key, Origin, Room, SeedBytes,
    Slice, SourceError, StateDelta, StateEntry, StateGroup, StateStep, Told,
};
use logcabin_log::{
    Log,
    samples::start,
    store::{SledLog, SledOptions},
    verify,
};
use logcabin_read::{branches::Branches, events::EventStore};
use logcabin_record::{Offset, Record};
use logcabin_state::State;

const OWN: &str = "a.example";
const ROOM: &str = "!room:a.example";

/// A state: the event of each key.
type Model = BTreeMap<(String, String), String>;

/// A source in memory.
#[derive(Default)]
struct Memory {
    sections: BTreeMap<Section, Vec<Told>>,
    states: BTreeMap<i64, Model>,
    /// How those are stored that an event made.
    steps: BTreeMap<i64, StateStep>,
    newest: i64,
    /// After so many calls, every one fails: the import is interrupted there.
    calls: Option<usize>,
    slice: usize,
    /// Which events are there already.
    up_to: Option<i64>,
    /// Work that it has not done.
    unready: Vec<String>,
    /// Rooms that it knows in part.
    partial: Option<Vec<String>>,
    /// What was read.
    read: BTreeSet<Section>,
    /// Rows that cannot be read.
    bad: Vec<(Section, facts::Bad)>,
    /// What was asked of single users and rooms.
    asked: Vec<(Section, Vec<String>)>,
    /// What is unread in the room.
    unread: Option<facts::UnreadCount>,
}

impl Memory {
    fn tell(&mut self, section: Section, fact: Fact) {
        let facts = self.sections.entry(section).or_default();
        let key = Key::Number(facts.len() as i64);
        facts.push(Told { origin: Origin { table: "rows", key }, fact });
    }

    fn call(&mut self) -> Result<(), SourceError> {
        match &mut self.calls {
            Some(0) => {
                Err(SourceError::Damaged { what: "it".to_owned(), why: "it ended".to_owned() })
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn is_there(&self, told: &Told) -> bool {
        let stream = match &told.fact {
            Fact::Event(event) => event.stream,
            Fact::StateDelta(delta) => delta.stream,
            _ => return true,
        };
        self.up_to.is_none_or(|up_to| stream <= up_to)
    }
}

impl Source for Memory {
    fn about(&mut self) -> Result<About, SourceError> {
        Ok(About {
            program: "Synapse".to_owned(),
            version: "1".to_owned(),
            schema: 94,
            database: "sqlite".to_owned(),
            server_name: OWN.to_owned(),
            place: "memory".to_owned(),
        })
    }

    fn count(&mut self, _: Section) -> Result<u64, SourceError> {
        Ok(0)
    }

    fn read(&mut self, section: Section, after: &Cursor) -> Result<Slice, SourceError> {
        self.call()?;
        self.read.insert(section);
        let from = after.0.parse().unwrap_or(0_usize);
        let all = self.sections.get(&section).map_or(&[][..], Vec::as_slice);
        let there: Vec<&Told> = all.iter().filter(|told| self.is_there(told)).collect();
        let end = (from + self.slice.max(1)).min(there.len());
        let facts = there.get(from..end).unwrap_or_default().iter().map(|told| (*told).clone());
        let cursor = Cursor(end.to_string());
        Ok(Slice {
            facts: facts.collect(),
            bad: self
                .bad
                .iter()
                .filter(|(of, _)| *of == section)
                .map(|(_, bad)| bad.clone())
                .collect(),
            next: (end < there.len()).then(|| cursor.clone()),
            end: cursor,
            partial: self.partial.clone().filter(|_| section == Section::Events),
        })
    }

    fn read_of(
        &mut self,
        section: Section,
        owners: &[String],
        after: &Cursor,
    ) -> Result<Slice, SourceError> {
        self.asked.push((section, owners.to_vec()));
        let mut slice = self.read(section, after)?;
        slice.facts.retain(|told| match &told.fact {
            Fact::Room(room) => owners.contains(&room.room_id),
            Fact::BanRedaction(ban) => owners.contains(&ban.room_id),
            Fact::Redaction(redaction) => owners.contains(&redaction.event_id),
            Fact::CurrentState(entry) => owners.contains(&entry.room_id),
            Fact::BackedUpKey(key) => owners.contains(&key.user_id),
            Fact::PeerDevices(device) => owners.contains(&device.user_id),
            Fact::PeerCrossSigningKey(key) => owners.contains(&key.user_id),
            Fact::PeerDeviceList(list) => owners.contains(&list.user_id),
            other => panic!("{other:?} is of nobody"),
        });
        Ok(slice)
    }

    fn state(&mut self, group: StateGroup) -> Result<Vec<StateEntry>, SourceError> {
        self.call()?;
        let state = self.states.get(&group.0).cloned().unwrap_or_default();
        Ok(state
            .into_iter()
            .map(|((event_type, state_key), event_id)| StateEntry {
                event_type,
                state_key,
                event_id,
            })
            .collect())
    }

    fn state_step(&mut self, group: StateGroup) -> Result<StateStep, SourceError> {
        self.call()?;
        Ok(self.steps.get(&group.0).cloned().unwrap_or_default())
    }

    fn events(&mut self, _: &[String]) -> Result<Slice, SourceError> {
        Ok(Slice::default())
    }

    fn newest(&mut self, _: &str, _: usize) -> Result<Vec<String>, SourceError> {
        self.read.insert(Section::Events);
        Ok(Vec::new())
    }

    fn head(&mut self) -> Result<i64, SourceError> {
        Ok(self.up_to.unwrap_or(self.newest).min(self.newest))
    }

    fn unread(
        &mut self,
        _: &str,
    ) -> Result<Option<BTreeMap<String, facts::UnreadCount>>, SourceError> {
        Ok(self.unread.map(|count| BTreeMap::from([(ROOM.to_owned(), count)])))
    }

    fn unready(&mut self) -> Result<Vec<String>, SourceError> {
        Ok(self.unready.clone())
    }

    fn changed_rooms(&mut self, after: i64) -> Result<Vec<String>, SourceError> {
        self.call()?;
        let events = self.sections.get(&Section::Events).into_iter().flatten();
        let changed = events.filter_map(|told| match &told.fact {
            Fact::StateDelta(delta) if delta.stream > after => Some(delta.room_id.clone()),
            _ => None,
        });
        Ok(changed.collect())
    }

    fn stopped(&mut self) {}
}

/// What the generator knows of an event.
#[derive(Clone)]
struct Made {
    event_id: String,
    depth: u64,
    before: Model,
    after: Model,
    group: i64,
}

/// Makes a room as Synapse would have kept it.
struct Maker {
    source: Memory,
    events: Vec<Made>,
    tips: BTreeSet<usize>,
    current: Model,
    stream: i64,
    groups: i64,
}

impl Maker {
    fn new() -> Self {
        let mut source = Memory { slice: 7, ..Memory::default() };
        let key = ServerKey {
            key_id: "ed25519:k".to_owned(),
            seed: Some(SeedBytes([5; 32])),
            public: None,
            expired_ms: None,
        };
        source.tell(Section::Server, Fact::ServerKey(key));
        source.tell(
            Section::Rooms,
            Fact::Room(Room {
                room_id: ROOM.to_owned(),
                version: Some("10".to_owned()),
                creator: None,
                partial: false,
                joined: true,
                began: Some(1),
            }),
        );
        let (events, tips, current) = (Vec::new(), BTreeSet::new(), Model::new());
        let mut maker = Self { source, events, tips, current, stream: 0, groups: 0 };
        let ann = format!("@ann:{OWN}");
        let create = json!({ "room_version": "10", "creator": ann });
        maker.send(&ann, ("m.room.create", Some("")), create, &[], Judged::Timeline);
        let join = json!({ "membership": "join" });
        maker.send(&ann, ("m.room.member", Some(&ann)), join, &[0], Judged::Timeline);
        maker
    }

    /// Of several events for a key, the one that came last: a resolution as good as any here.
    fn resolve(&self, states: &[&Model]) -> Model {
        let place = |id: &str| self.events.iter().position(|event| event.event_id == id);
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

    fn send(
        &mut self,
        sender: &str,
        (event_type, state_key): (&str, Option<&str>),
        content: Value,
        prev: &[usize],
        judged: Judged,
    ) -> usize {
        let number = self.events.len();
        self.stream += 1;
        let depth = prev.iter().map(|at| self.events[*at].depth).max().unwrap_or(0) + 1;
        let mut json = json!({
            "room_id": ROOM, "sender": sender, "type": event_type, "content": content,
            "depth": depth, "origin_server_ts": 1_000 + self.stream, "auth_events": [],
            "prev_events": prev.iter().map(|at| &*self.events[*at].event_id).collect::<Vec<_>>(),
            "signatures": { "x.example": { "ed25519:k": format!("s{number}") } },
        });
        if let Some(state_key) = state_key {
            json["state_key"] = json!(state_key);
        }
        let mut event = stored(&RoomVersionId::V10, json, judged.clone(), self.stream);
        let states: Vec<&Model> = prev.iter().map(|at| &self.events[*at].after).collect();
        let before = self.resolve(&states);
        // A state has one number for each way to it, as in Synapse.
        let known = prev.iter().map(|at| &self.events[*at]).find(|event| event.after == before);
        let group_before = match known {
            Some(known) => known.group,
            None => self.number(&before),
        };
        let mut after = before.clone();
        let mut group = group_before;
        if let Some(state_key) = state_key {
            after.insert((event_type.to_owned(), state_key.to_owned()), event.event_id.clone());
            group = self.number(&after);
            event.group_from = Some(StateGroup(group_before));
            let entry = StateEntry {
                event_type: event_type.to_owned(),
                state_key: state_key.to_owned(),
                event_id: event.event_id.clone(),
            };
            let step = StateStep { from: event.group_from, entries: vec![entry] };
            self.source.steps.insert(group, step);
        }
        event.group = Some(StateGroup(group));
        let event_id = event.event_id.clone();
        self.events.push(Made { event_id, depth, before, after, group });
        if judged == Judged::Timeline {
            self.tips.retain(|tip| !prev.contains(tip));
            self.tips.insert(number);
            let tips: Vec<&Model> = self.tips.iter().map(|at| &self.events[*at].after).collect();
            let now = self.resolve(&tips);
            let keys: BTreeSet<_> = self.current.keys().chain(now.keys()).cloned().collect();
            for key in keys {
                let (was, is) = (self.current.get(&key).cloned(), now.get(&key).cloned());
                if was != is {
                    let delta = StateDelta {
                        stream: self.stream,
                        room_id: ROOM.to_owned(),
                        event_type: key.0,
                        state_key: key.1,
                        event_id: is,
                        previous: was,
                    };
                    self.source.tell(Section::Events, Fact::StateDelta(delta));
                }
            }
            self.current = now;
        }
        self.source.tell(Section::Events, Fact::Event(Box::new(event)));
        self.source.newest = self.stream;
        number
    }

    fn number(&mut self, state: &Model) -> i64 {
        self.groups += 1;
        self.source.states.insert(self.groups, state.clone());
        self.groups
    }

    /// One more event, as these numbers say.
    fn step(&mut self, (kind, user, from, to): (u8, u8, usize, usize)) {
        let users =
            [format!("@ann:{OWN}"), "@bob:b.example".to_owned(), "@cy:c.example".to_owned()];
        let sender = users[usize::from(user) % users.len()].clone();
        let tips: Vec<usize> = self.tips.iter().copied().collect();
        let some = |number: usize| number % self.events.len();
        let prev = match kind % 4 {
            // After everything, as this server does.
            0 | 1 => tips,
            // After an earlier event: another branch.
            2 => vec![some(from).max(1)],
            // Where two branches meet.
            _ => {
                let (one, other) = (some(from).max(1), some(to).max(1));
                if one == other { vec![one] } else { vec![one, other] }
            }
        };
        let judged = match kind {
            200.. => Judged::SoftFailed,
            190..200 => Judged::Rejected { reason: "no".to_owned(), outlier: false },
            _ => Judged::Timeline,
        };
        match kind / 4 % 4 {
            0 if judged == Judged::Timeline => {
                let name = json!({ "name": format!("name {}", self.stream) });
                self.send(&sender, ("m.room.name", Some("")), name, &prev, judged);
            }
            1 if judged == Judged::Timeline => {
                let join = json!({ "membership": "join", "displayname": self.stream.to_string() });
                let member = ("m.room.member", Some(&*sender));
                self.send(&sender, member, join, &prev, judged);
            }
            _ => {
                let body = json!({ "body": format!("message {}", self.stream) });
                self.send(&sender, ("m.room.message", None), body, &prev, judged);
            }
        }
    }

    /// Says how the room is at the end.
    fn ended(mut self) -> (Memory, Vec<Made>, Model) {
        for ((event_type, state_key), event_id) in self.current.clone() {
            let (room_id, membership) = (ROOM.to_owned(), None);
            let entry = CurrentState { room_id, event_type, state_key, event_id, membership };
            self.source.tell(Section::CurrentState, Fact::CurrentState(entry));
        }
        for tip in self.tips.clone() {
            let event_id = self.events[tip].event_id.clone();
            let tip = ForwardExtremity { room_id: ROOM.to_owned(), event_id };
            self.source.tell(Section::ForwardExtremities, Fact::ForwardExtremity(tip));
        }
        (self.source, self.events, self.current)
    }
}

fn options(dir: &Path) -> Options {
    Options {
        data_dir: dir.to_owned(),
        server_name: OWN.to_owned(),
        follow: false,
        rehearsal: false,
    }
}

fn finish_in(dir: &Path, source: &mut Memory) -> Result<Finished, ImportError> {
    finish(source, None, &options(dir), &AtomicBool::new(false), &mut |_| ())
}

fn copy_in(dir: &Path, source: &mut Memory) -> Result<Copied, ImportError> {
    copy(source, None, &options(dir), &AtomicBool::new(false), &mut |_| ())
}

fn records(dir: &Path) -> (Arc<SledLog>, Vec<Record>) {
    let log = SledLog::open(SledOptions::new(dir)).unwrap();
    start(&log);
    verify(&log, |_| ()).unwrap();
    let all = log.read(Offset::new(1), usize::MAX).unwrap();
    (Arc::new(log), all)
}

/// Asserts that the log has the states that the maker knows, before each event and at the end.
fn assert_states(dir: &Path, events: &[Made], current: &Model) {
    let (log, records) = records(dir);
    let state = State::default();
    for record in &records {
        state.apply(record).unwrap();
    }
    let store = EventStore::new(Arc::clone(&log) as Arc<dyn Log>, 1 << 20);
    let room_id = <&ruma::RoomId>::try_from(ROOM).unwrap();
    let room = state.rooms.get(room_id).unwrap();
    let branches = Branches::new(&state, &store, &room);
    let offset = |id: &str| {
        let id = <&ruma::EventId>::try_from(id).unwrap();
        branches.find(id).unwrap().map(|event| event.offset)
    };
    let expected = |model: &Model| -> BTreeMap<(StateEventType, Box<str>), Offset> {
        let of = model.iter().map(|((event_type, state_key), id)| {
            let key = (StateEventType::from(event_type.as_str()), state_key.as_str().into());
            (key, offset(id).unwrap())
        });
        of.collect()
    };
    for made in events {
        let id = <&ruma::EventId>::try_from(&*made.event_id).unwrap();
        let event = branches.find(id).unwrap().expect("every event is in the log");
        let view = branches.before(&event).unwrap().expect("its state is known");
        assert_eq!(branches.keys(&view).unwrap(), expected(&made.before), "before {id}");
    }
    let now = branches.keys(&branches.current()).unwrap();
    assert_eq!(now, expected(current), "at the end");
}

/// The frames of all records, without the time at which they were made.
fn volumes(dir: &Path) -> Vec<Vec<u8>> {
    let mut paths = logcabin_base::disk::entries(&log_dir(dir).join("volumes")).unwrap();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn steps(most: usize) -> impl Strategy<Value = Vec<(u8, u8, usize, usize)>> {
    prop::collection::vec((any::<u8>(), any::<u8>(), 0..1000_usize, 0..1000_usize), 0..most)
}

fn made(steps: &[(u8, u8, usize, usize)]) -> (Memory, Vec<Made>, Model) {
    let mut maker = Maker::new();
    steps.iter().for_each(|step| maker.step(*step));
    maker.ended()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn the_log_has_the_states_that_the_source_had(steps in steps(60)) {
        let dir = tempfile::tempdir().unwrap();
        let (mut source, events, current) = made(&steps);
        let finished = finish_in(dir.path(), &mut source).unwrap();
        prop_assert_eq!(finished.compared, 1);
        prop_assert_eq!(&finished.differing_rooms, &Vec::<DifferingRoom>::new());
        assert_states(dir.path(), &events, &current);
    }

    #[test]
    fn an_import_that_was_interrupted_ends_the_same(
        steps in steps(60),
        breaks in prop::collection::vec(1..40_usize, 1..4),
    ) {
        let (whole, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (mut source, ..) = made(&steps);
        // Both are made at the same time, by the clock of the records: no pass begins before it.
        let begun = Clock::system().now_ms() + 1_000_000;
        for dir in [whole.path(), broken.path()] {
            let files = Files::of(dir);
            files.make().unwrap();
            let progress = progress::Progress::begin(OWN, begun);
            files.write_progress(&progress).unwrap();
        }
        let expected = finish_in(whole.path(), &mut source).unwrap();
        for calls in breaks {
            source.calls = Some(calls);
            if finish_in(broken.path(), &mut source).is_ok() {
                break;
            }
        }
        source.calls = None;
        if !log_dir(broken.path()).exists() {
            let finished = finish_in(broken.path(), &mut source).unwrap();
            prop_assert_eq!(&finished.digest, &expected.digest);
            prop_assert_eq!(finished.copied.chain, expected.copied.chain);
        }
        prop_assert!(volumes(whole.path()) == volumes(broken.path()), "the volumes differ");
    }

    #[test]
    fn a_copy_and_a_tail_have_the_same_states_as_a_single_pass(
        steps in steps(60),
        copied in prop::collection::vec(1..70_i64, 1..4),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (mut source, events, current) = made(&steps);
        let mut before = 0;
        for up_to in copied {
            source.up_to = Some(up_to);
            let copy = copy_in(dir.path(), &mut source).unwrap();
            prop_assert!(copy.records >= before);
            before = copy.records;
        }
        source.up_to = None;
        let finished = finish_in(dir.path(), &mut source).unwrap();
        prop_assert_eq!(&finished.differing_rooms, &Vec::<DifferingRoom>::new());
        assert_states(dir.path(), &events, &current);
        let (_, records) = records(dir.path());
        prop_assert_eq!(records.last().map(|record| &*record.header.kind), Some("import.end"));
        prop_assert_eq!(records.len() as u64, finished.last);
        let events = records.iter().filter(|record| &*record.header.kind == "room.event");
        let mut ids: Vec<i64> = events
            .filter_map(|record| record.header.origin.import()?.event())
            .collect();
        let count = ids.len();
        ids.dedup();
        prop_assert_eq!(ids.len(), count, "an event is there twice");
    }
}

#[test]
fn what_does_not_fit_is_left_with_its_reason_and_the_rest_comes_along() {
    let dir = tempfile::tempdir().unwrap();
    let mut maker = Maker::new();
    let ann = format!("@ann:{OWN}");
    for _ in 0..3 {
        maker.step((8, 0, 1, 1));
    }
    let good = maker.events.len();
    let json = json!({
        "room_id": ROOM, "sender": ann, "type": "m.room.message", "content": {}, "depth": 2,
        "origin_server_ts": 5, "prev_events": [], "auth_events": [], "signatures": {},
    });
    let mut bad: Event = stored(&RoomVersionId::V10, json, Judged::Timeline, 99);
    bad.event_id = "$another".to_owned();
    maker.source.tell(Section::Events, Fact::Event(Box::new(bad)));
    let (mut source, ..) = maker.ended();
    let finished = finish_in(dir.path(), &mut source).unwrap();
    let left: Vec<_> =
        finished.copied.left.iter().map(|left| (&*left.reason, left.count)).collect();
    assert_eq!(left, [("it cannot be an event", 1)]);
    assert_eq!(finished.copied.written["room.event"], good as u64);
    let report = fs::read_to_string(&finished.report).unwrap();
    assert!(report.contains("its id is not the one"), "{report}");
    assert!(!importing_dir(dir.path()).exists());
    // Whoever was killed before it was noted asks again.
    assert_eq!(finish_in(dir.path(), &mut source).unwrap(), finished);
    forget(dir.path()).unwrap();
    assert!(!Files::of(dir.path()).dir.exists());
    let again = finish_in(dir.path(), &mut source).unwrap_err();
    assert!(again.to_string().contains("has a log already"), "{again}");
}

fn raw(json: &Value) -> Box<serde_json::value::RawValue> {
    serde_json::value::to_raw_value(json).unwrap()
}

fn account(user_id: &str) -> Fact {
    Fact::Account(facts::Account {
        user_id: user_id.to_owned(),
        password: None,
        created_ms: 1,
        admin: false,
        guest: false,
        deactivated: false,
        erased: false,
        locked: false,
        suspended: false,
        shadow_banned: false,
        approved: true,
        user_type: None,
        consent_version: None,
        consent_ms: None,
        app_service: None,
    })
}

/// A device with a token, and a one-time key.
fn log_in(source: &mut Memory, user_id: &str, device_id: &str) {
    let device = facts::Device {
        user_id: user_id.to_owned(),
        device_id: device_id.to_owned(),
        display_name: None,
        seen_ms: None,
        address: None,
        agent: None,
    };
    let token = facts::AccessToken {
        user_id: user_id.to_owned(),
        device_id: Some(device_id.to_owned()),
        grant_id: None,
        token: facts::Token::Plain(facts::Secret(format!("token of {device_id}"))),
        valid_until_ms: None,
        puppet_of: None,
        used_ms: None,
        seen_ms: None,
        used: true,
        refresh: None,
    };
    let key = facts::OneTimeKey {
        user_id: user_id.to_owned(),
        device_id: device_id.to_owned(),
        key_id: "signed_curve25519:AAAA".to_owned(),
        key: raw(&json!({ "key": "x" })),
        uploaded_ms: None,
    };
    source.tell(Section::Devices, Fact::Device(device));
    source.tell(Section::AccessTokens, Fact::AccessToken(token));
    source.tell(Section::OneTimeKeys, Fact::OneTimeKey(key));
}

/// The payloads of all records of a kind.
fn payloads(dir: &Path, kind: &str) -> Vec<Value> {
    let (_, records) = records(dir);
    let of_kind = records.iter().filter(|record| &*record.header.kind == kind);
    of_kind.map(|record| serde_json::from_slice(record.payload.bytes().unwrap()).unwrap()).collect()
}

#[test]
fn what_is_revoked_while_a_finish_is_interrupted_does_not_come_along() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, ..) = made(&[]);
    let ann = format!("@ann:{OWN}");
    source.tell(Section::Accounts, account(&ann));
    log_in(&mut source, &ann, "KEPT");
    log_in(&mut source, &ann, "LOST");
    copy_in(dir.path(), &mut source).unwrap();
    // The sessions and keys have been written by then.
    source.calls = Some(30);
    assert!(finish_in(dir.path(), &mut source).is_err());
    source.calls = None;
    for section in [Section::Devices, Section::AccessTokens, Section::OneTimeKeys] {
        source.sections.get_mut(&section).unwrap().pop();
    }
    finish_in(dir.path(), &mut source).unwrap();
    for kind in ["device.login", "keys.upload"] {
        let ids: Vec<_> = payloads(dir.path(), kind)
            .iter()
            .map(|payload| payload["device_id"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(ids, ["KEPT"], "{kind}");
    }
}

#[test]
fn a_receipt_comes_after_its_event_and_a_profile_after_its_account() {
    let dir = tempfile::tempdir().unwrap();
    let steps: Vec<_> = (0..5).map(|number| (8, 0, number, number)).collect();
    let (mut source, events, _) = made(&steps);
    let (ann, event_id) = (format!("@ann:{OWN}"), &events.last().unwrap().event_id);
    let receipt = facts::Receipt {
        room_id: ROOM.to_owned(),
        user_id: ann.clone(),
        receipt_type: "m.read".to_owned(),
        event_id: event_id.clone(),
        thread_id: None,
        ts_ms: 5,
        stream: 1,
    };
    source.tell(Section::Receipts, Fact::Receipt(receipt));
    let (field, value) = ("displayname".to_owned(), json!("Ann"));
    let profile = facts::Profile { user_id: ann.clone(), field, value };
    source.tell(Section::Profiles, Fact::Profile(profile));
    source.up_to = Some(3);
    copy_in(dir.path(), &mut source).unwrap();
    source.up_to = None;
    source.tell(Section::Accounts, account(&ann));
    finish_in(dir.path(), &mut source).unwrap();
    let (_, records) = records(dir.path());
    let places = |kind: &str, text: &str| -> Vec<usize> {
        let all = records.iter().enumerate().filter(|(_, record)| {
            let payload = String::from_utf8_lossy(record.payload.bytes().unwrap());
            &*record.header.kind == kind && payload.contains(text)
        });
        all.map(|(place, _)| place).collect()
    };
    for (first, then, text) in
        [("room.event", "room.receipt", event_id), ("user.register", "profile.set", &ann)]
    {
        let (first, then) = (places(first, text), places(then, text));
        assert_eq!((first.len(), then.len()), (1, 1), "{text}");
        assert!(first < then, "{text}");
    }
}

#[test]
fn an_outlier_that_is_fetched_from_the_past_holds_its_key_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut maker = Maker::new();
    let (ann, topic) = (format!("@ann:{OWN}"), ("m.room.topic".to_owned(), String::new()));
    let json = json!({
        "room_id": ROOM, "sender": "@cy:c.example", "type": topic.0, "state_key": topic.1,
        "content": { "topic": "x" }, "depth": 1, "origin_server_ts": 5, "prev_events": [],
        "auth_events": [], "signatures": { "c.example": { "ed25519:k": "s" } },
    });
    let outlier = Judged::Outlier { out_of_band: false };
    for (section, judged, stream) in
        [(Section::Outliers, outlier, -1), (Section::Backfilled, Judged::Backfilled, -2)]
    {
        let event = stored(&RoomVersionId::V10, json.clone(), judged, stream);
        maker.current.insert(topic.clone(), event.event_id.clone());
        maker.source.tell(section, Fact::Event(Box::new(event)));
    }
    let delta = StateDelta {
        stream: maker.stream + 1,
        room_id: ROOM.to_owned(),
        event_type: topic.0.clone(),
        state_key: topic.1.clone(),
        event_id: maker.current.get(&topic).cloned(),
        previous: None,
    };
    maker.source.tell(Section::Events, Fact::StateDelta(delta));
    let after: Model = maker.current.clone();
    maker.events[1].after = after;
    maker.send(&ann, ("m.room.message", None), json!({ "body": "x" }), &[1], Judged::Timeline);
    let (mut source, ..) = maker.ended();
    let finished = finish_in(dir.path(), &mut source).unwrap();
    assert_eq!(finished.copied.written["room.pdu"], 2);
    assert_eq!((finished.compared, finished.differing_rooms), (1, Vec::new()));
}

#[test]
fn a_source_of_another_server_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, ..) = made(&[]);
    let options = Options { server_name: "b.example".to_owned(), ..options(dir.path()) };
    let stop = AtomicBool::new(false);
    let refused = copy(&mut source, None, &options, &stop, &mut |_| ()).unwrap_err();
    assert!(refused.to_string().contains("and not of `b.example`"), "{refused}");
}

#[test]
fn a_copy_that_is_stopped_goes_on_later() {
    let dir = tempfile::tempdir().unwrap();
    let steps: Vec<_> = (0..50).map(|number| (8, 0, number, number)).collect();
    let (mut source, events, current) = made(&steps);
    let stop = AtomicBool::new(true);
    let stopped = copy(&mut source, None, &options(dir.path()), &stop, &mut |_| ()).unwrap();
    assert!(stopped.stopped);
    let copied = copy_in(dir.path(), &mut source).unwrap();
    assert!(!copied.stopped && copied.records > stopped.records);
    finish_in(dir.path(), &mut source).unwrap();
    assert_states(dir.path(), &events, &current);
}
