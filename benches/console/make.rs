//! A data directory as a server has it after a year: many accounts, many rooms, and messages with
//! reactions, edits, threads and redactions.
//!
//! Accounts and the first rooms are made by the commands themselves. The other rooms are copies of
//! one with other ids, and messages are copies of their room's first message: that is quicker.

use std::{path::Path, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::future::join_all;
use logcabin::{
    clock::Clock,
    engine::Engine,
    log::{
        Batch, Log,
        store::{SledLog, SledOptions},
    },
    record::{
        Command, NewRecord, Offset, Origin, Stream,
        command::{Kind, RoomEvent},
    },
};
use ruma::{OwnedRoomId, OwnedUserId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::to_raw_value};

use crate::common::{create_room, join, options, register, room_id, say, user_id};

/// How much there is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) records: u64,
    pub(crate) users: u64,
    pub(crate) rooms: u64,
}

/// What was made.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Made {
    pub(crate) records: u64,
    pub(crate) users: u64,
    pub(crate) rooms: u64,
    /// A message with very many relations.
    pub(crate) popular: u64,
}

/// The rooms in which people talk.
const BUSY: u64 = 200;
/// Members of each of them, at most.
const MEMBERS: u64 = 50;
/// Records that are written at once.
const AT_ONCE: usize = 500;
/// Accounts that are made at once.
const ACCOUNTS: u64 = 64;
/// The time over which the records are spread.
const YEAR_MS: u64 = 365 * 86_400_000;

/// Makes the log of a server in `dir`.
pub(crate) async fn make(dir: &Path, sizes: Sizes) -> Made {
    let clock = Clock::manual(Clock::system().now_ms() - YEAR_MS);
    let mut of_log = SledOptions::new(dir);
    of_log.clock = clock.clone();
    let log: Arc<dyn Log> = Arc::new(SledLog::open(of_log).expect("the log opens"));
    let engine = Engine::open(Arc::clone(&log), options(clock.clone())).await.expect("an engine");
    // Accounts and rooms alone may be more records.
    let records = sizes.records.max(4 * sizes.users + 10 * sizes.rooms);
    let mut maker = Maker { log, each_ms: YEAR_MS / records, clock, waiting: Vec::new() };

    let users: Vec<_> = (0..sizes.users.max(1)).map(user_id).collect();
    for (number, users) in (0..).zip(users.chunks(ACCOUNTS as usize)) {
        join_all(users.iter().map(|user_id| register(&engine, user_id))).await;
        maker.clock.advance(maker.each_ms * ACCOUNTS);
        if number % 100 == 0 {
            eprintln!("{} of {} accounts", number * ACCOUNTS, sizes.users);
        }
    }
    let (mut talks, mut left) = (Vec::new(), sizes.rooms);
    for number in 0..BUSY.min(sizes.rooms.div_ceil(2)) {
        talks.push(Talk::begin(&engine, &users, number).await);
        maker.clock.advance(maker.each_ms * 60);
        left -= 1;
    }
    let template = talks.first().expect("a room").clone();
    for number in 0..left {
        maker.add_all(template.copy(sizes.rooms + number)).await;
    }
    maker.flush().await;
    for number in 0..sizes.records / 100 {
        maker.add(upload(&users[(number * 7) as usize % users.len()], number)).await;
    }
    for number in 0..sizes.records / 1000 {
        let about = &talks[number as usize % talks.len()];
        maker.add(report(&users[(number * 3) as usize % users.len()], about, number)).await;
    }
    maker.flush().await;
    let mut number = 0;
    while engine.head().offset().get() + (maker.waiting.len() as u64) < sizes.records {
        number += 1;
        // A few rooms have most of the messages.
        let squared = number * number % (talks.len() * talks.len()) as u64;
        let talk = &talks[squared.isqrt() as usize % talks.len()];
        maker.add(talk.event(number, number % 50 == 0)).await;
    }
    maker.flush().await;
    let made = Made {
        records: engine.head().offset().get(),
        users: sizes.users,
        rooms: sizes.rooms,
        popular: template.said.get(),
    };
    maker.log.close();
    made
}

/// Writes records, some at once.
struct Maker {
    log: Arc<dyn Log>,
    clock: Clock,
    /// The time from one record to the next.
    each_ms: u64,
    waiting: Vec<NewRecord>,
}

impl Maker {
    async fn add(&mut self, record: NewRecord) {
        self.add_all(vec![record]).await;
    }

    async fn add_all(&mut self, records: Vec<NewRecord>) {
        self.waiting.extend(records);
        if self.waiting.len() >= AT_ONCE {
            self.flush().await;
        }
    }

    async fn flush(&mut self) {
        let records = std::mem::take(&mut self.waiting);
        if records.is_empty() {
            return;
        }
        self.clock.advance(self.each_ms * records.len() as u64);
        self.log.append(Batch { expect: Vec::new(), records }).await.expect("an append");
    }
}

/// A room in which users talk.
#[derive(Clone)]
struct Talk {
    room_id: OwnedRoomId,
    members: Vec<OwnedUserId>,
    /// The commands that made it, up to the first message.
    made: Vec<RoomEvent>,
    /// The first message.
    first: RoomEvent,
    said: Offset,
}

fn made_up(what: &str, number: u64) -> String {
    let hash = blake3::hash(format!("{what} {number}").as_bytes());
    format!("${}", URL_SAFE_NO_PAD.encode(hash.as_bytes()))
}

impl Talk {
    async fn begin(engine: &Engine, users: &[OwnedUserId], number: u64) -> Self {
        let before = engine.head().offset();
        let creator = &users[number as usize % users.len()];
        let room_id = create_room(engine, room_id(number), creator).await;
        let made = engine.head().offset();
        let others = users.iter().cycle().skip(number as usize + 1);
        let others = others.take(users.len().min(MEMBERS as usize) - 1);
        let members: Vec<_> = [creator].into_iter().chain(others).cloned().collect();
        for user_id in &members[1..] {
            join(engine, &room_id, user_id).await;
        }
        let event_id = say(engine, &room_id, creator, number).await;
        let state = engine.state();
        let event = engine.events().find(&state, &event_id).expect("a log").expect("a message");
        let read = |offset: Offset| {
            let record = engine.log().get(offset).expect("a log").expect("a record");
            match record.command() {
                Ok(Some(Command::RoomEvent(event))) => Some(event),
                _ => None,
            }
        };
        Self {
            room_id,
            members,
            made: (before.get() + 1..=made.get()).filter_map(|n| read(Offset::new(n))).collect(),
            first: read(event.offset).expect("a message"),
            said: event.offset,
        }
    }

    /// The records of another room like this one.
    fn copy(&self, number: u64) -> Vec<NewRecord> {
        let room_id = room_id(number);
        let mut names = vec![(self.room_id.to_string(), room_id.to_string())];
        names.extend(
            self.made.iter().map(|event| {
                (event.event_id.to_string(), made_up(event.event_id.as_str(), number))
            }),
        );
        let renamed = |text: &str| {
            names.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
        };
        let copies = self.made.iter().map(|event| {
            let event = RoomEvent {
                room_id: room_id.clone(),
                event_id: renamed(event.event_id.as_str()).try_into().expect("an event id"),
                pdu: serde_json::from_str(&renamed(event.pdu.get())).expect("JSON"),
                ..event.clone()
            };
            self.record(&room_id, event, self.members.first())
        });
        copies.collect()
    }

    /// A message after the first, or one that relates to it.
    fn event(&self, number: u64, about_the_first: bool) -> NewRecord {
        let first = self.first.event_id.as_str();
        let body = format!(
            "This is message {number} of those that are said here, and about as long as most."
        );
        let text = json!({ "msgtype": "m.text", "body": body, "m.mentions": {} });
        let about = |relates_to: Value| {
            let mut content = text.clone();
            content["m.relates_to"] = relates_to;
            content
        };
        let (kind, content) = match number / 50 % 4 {
            _ if !about_the_first => ("m.room.message", text),
            0 => (
                "m.reaction",
                json!({ "m.relates_to": {
                    "rel_type": "m.annotation", "event_id": first, "key": number.to_string(),
                } }),
            ),
            1 => ("m.room.message", about(json!({ "rel_type": "m.thread", "event_id": first }))),
            2 => ("m.room.message", about(json!({ "rel_type": "m.replace", "event_id": first }))),
            _ => ("m.room.message", about(json!({ "m.in_reply_to": { "event_id": first } }))),
        };
        let sender = &self.members[(number / 7) as usize % self.members.len()];
        let mut pdu: Value = serde_json::from_str(self.first.pdu.get()).expect("an event");
        pdu["content"] = content;
        pdu["depth"] = (20 + number).into();
        pdu["sender"] = sender.as_str().into();
        pdu["type"] = kind.into();
        let event = RoomEvent {
            event_id: made_up("message", number).try_into().expect("an event id"),
            pdu: to_raw_value(&pdu).expect("JSON"),
            ..self.first.clone()
        };
        self.record(&self.room_id, event, Some(sender))
    }

    fn record(
        &self,
        room_id: &OwnedRoomId,
        event: RoomEvent,
        user: Option<&OwnedUserId>,
    ) -> NewRecord {
        let user = user.map_or("", |user| user.as_str()).into();
        let origin = Origin { user, device: "DEVICE".into(), ..Origin::default() };
        NewRecord::new(Stream::room(room_id), origin, &Command::RoomEvent(event))
    }
}

fn record(stream: Stream, kind: &str, user: &OwnedUserId, payload: &Value) -> NewRecord {
    let version = Kind::named(kind).map_or(1, |of| of.version);
    let payload = payload.to_string();
    let command = Command::decode(kind, version, payload.as_bytes()).expect("a command");
    let origin = Origin { user: user.as_str().into(), ..Origin::default() };
    NewRecord::new(stream, origin, &command)
}

fn upload(user: &OwnedUserId, number: u64) -> NewRecord {
    let upload = json!({
        "media_id": format!("file{number}"), "user_id": user, "size": 1_000 + number % 900_000,
        "hash": blake3::hash(&number.to_be_bytes()).to_hex().as_str(),
        "content_type": "image/png", "name": format!("picture {number}.png"),
    });
    record(Stream::media(Some(user)), "media.upload", user, &upload)
}

fn report(user: &OwnedUserId, about: &Talk, number: u64) -> NewRecord {
    let report = json!({
        "reporter": user, "room_id": about.room_id, "event_id": about.first.event_id,
        "reason": format!("reason {number}"),
    });
    record(Stream::reports(), "report.create", user, &report)
}
