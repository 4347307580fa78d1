//! Writers and watchers: the load under which the server is killed, and the account of what it
//! acknowledged and showed.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Direction, Random, TestServer, Unreachable, User};

/// Small on purpose: a watcher that falls behind gets `limited` timelines and must fill the gap.
const WATCHER_FILTER: &str = r#"{"room":{"timeline":{"limit":20}},"presence":{"not_types":["*"]}}"#;

/// A message as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) event_id: String,
    pub(crate) body: String,
}

impl Message {
    /// The messages among `events`, in the order given; other events are left out.
    fn among(events: &Value) -> Vec<Self> {
        let events = events.as_array().expect("a list of events");
        events
            .iter()
            .filter(|event| event["type"] == "m.room.message")
            .map(|event| Self {
                event_id: event["event_id"].as_str().expect("an event id").to_owned(),
                body: event["content"]["body"].as_str().expect("a text").to_owned(),
            })
            .collect()
    }
}

/// One user who writes numbered messages into one room, one after another.
pub(crate) struct Writer {
    user: User,
    pub(crate) room_id: String,
    pub(crate) label: String,
    /// The event ids in the order of the numbers: the next number is the length.
    pub(crate) acknowledged: Vec<String>,
    /// When each was acknowledged.
    pub(crate) acknowledged_at: Vec<Instant>,
}

impl Writer {
    /// The text of the message with `number`.
    pub(crate) fn text(&self, number: usize) -> String {
        format!("{} {number}", self.label)
    }

    /// Sends the next message. What was not acknowledged is the next message again, under the same
    /// transaction id.
    pub(crate) async fn send_next(&mut self) -> Result<(), Unreachable> {
        let number = self.acknowledged.len();
        let txn_id = format!("{}-{number}", self.label);
        let answer = self.user.try_send_text(&self.room_id, &txn_id, &self.text(number)).await?;
        self.acknowledged.push(answer.ok_string("event_id"));
        self.acknowledged_at.push(Instant::now());
        Ok(())
    }

    /// Writes until the server is gone.
    pub(crate) async fn run(mut self, mut random: Random) -> Self {
        while self.send_next().await.is_ok() {
            tokio::time::sleep(Duration::from_micros(random.between(0, 4_000))).await;
        }
        self
    }
}

/// One user who follows all rooms through `/sync`, as a careful client does: a limited timeline is
/// completed by paging back from `prev_batch` to the token before.
pub(crate) struct Watcher {
    user: User,
    since: String,
    pub(crate) seen: HashMap<String, Vec<Message>>,
}

impl Watcher {
    /// Starts to follow; what was written before is not seen.
    pub(crate) async fn start(user: User) -> Self {
        let first = user.sync(None, 0, Some(WATCHER_FILTER)).await;
        let since = first["next_batch"].as_str().expect("a next_batch").to_owned();
        Self { user, since, seen: HashMap::new() }
    }

    /// One sync. Nothing is taken over unless all of it was received. Tells whether there was news.
    pub(crate) async fn step(&mut self, timeout_ms: u64) -> Result<bool, Unreachable> {
        let answer =
            self.user.try_sync(Some(&self.since), timeout_ms, Some(WATCHER_FILTER)).await?;
        let body = answer.ok();
        let none = serde_json::Map::new();
        let joined = body["rooms"]["join"].as_object().unwrap_or(&none);
        let mut news = Vec::new();
        for (room_id, room) in joined {
            let timeline = &room["timeline"];
            if !timeline["events"].is_array() {
                continue;
            }
            let mut messages = Vec::new();
            if timeline["limited"] == true {
                let from = timeline["prev_batch"].as_str().expect("limited means a prev_batch");
                messages = page_back(&self.user, room_id, Some(from), Some(&self.since)).await?;
            }
            messages.extend(Message::among(&timeline["events"]));
            news.push((room_id.clone(), messages));
        }
        self.since = body["next_batch"].as_str().expect("a next_batch").to_owned();
        let mut any = false;
        for (room_id, messages) in news {
            any |= !messages.is_empty();
            self.seen.entry(room_id).or_default().extend(messages);
        }
        Ok(any)
    }

    /// Watches until the server is gone.
    pub(crate) async fn run(mut self) -> Self {
        while self.step(30_000).await.is_ok() {}
        self
    }

    /// Syncs until there is no news.
    pub(crate) async fn catch_up(&mut self) {
        loop {
            match self.step(0).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }
}

/// Rooms with their members, a writer for each user in each room, a watcher for each user.
pub(crate) struct Load {
    pub(crate) users: Vec<User>,
    pub(crate) rooms: Vec<String>,
    pub(crate) writers: Vec<Writer>,
    pub(crate) watchers: Vec<Watcher>,
}

impl Load {
    /// Registers `users` users who all join `rooms` rooms.
    pub(crate) async fn prepare(server: &TestServer, users: usize, rooms: usize) -> Self {
        let mut load = Self {
            users: Vec::new(),
            rooms: Vec::new(),
            writers: Vec::new(),
            watchers: Vec::new(),
        };
        for number in 0..users {
            load.users.push(server.register(&format!("writer{number}")).await);
        }
        for number in 0..rooms {
            let creator = &load.users[number % users];
            let options = json!({ "preset": "public_chat", "name": format!("Room {number}") });
            let room_id = creator.create_room(options).await;
            for user in &load.users {
                user.join(&room_id).await.ok();
            }
            for (of, user) in load.users.iter().enumerate() {
                load.writers.push(Writer {
                    user: user.clone(),
                    room_id: room_id.clone(),
                    label: format!("user{of}room{number}"),
                    acknowledged: Vec::new(),
                    acknowledged_at: Vec::new(),
                });
            }
            load.rooms.push(room_id);
        }
        for user in &load.users {
            load.watchers.push(Watcher::start(user.clone()).await);
        }
        load
    }

    /// Writes and watches for a while, then kills the server in the middle of it; gives the moment.
    pub(crate) async fn run_until_killed(
        &mut self,
        server: &mut TestServer,
        random: &mut Random,
        after: Duration,
    ) -> Instant {
        let writers: Vec<_> =
            self.writers.drain(..).map(|writer| tokio::spawn(writer.run(random.split()))).collect();
        let watchers: Vec<_> =
            self.watchers.drain(..).map(|watcher| tokio::spawn(watcher.run())).collect();
        tokio::time::sleep(after).await;
        let killed = Instant::now();
        server.kill9();
        for writer in writers {
            self.writers.push(writer.await.expect("the writer did not fail"));
        }
        for watcher in watchers {
            self.watchers.push(watcher.await.expect("the watcher did not fail"));
        }
        killed
    }
}

/// The messages of a room from `from` (the end) back to `to` (the beginning), oldest first.
async fn page_back(
    user: &User,
    room_id: &str,
    from: Option<&str>,
    to: Option<&str>,
) -> Result<Vec<Message>, Unreachable> {
    let mut from = from.map(ToOwned::to_owned);
    let mut newest_first = Vec::new();
    loop {
        let page =
            user.try_messages(room_id, from.as_deref(), to, Direction::Back, 100).await?.ok();
        newest_first.extend(Message::among(&page["chunk"]));
        match page["end"].as_str() {
            Some(end) if from.as_deref() != Some(end) => from = Some(end.to_owned()),
            _ => break,
        }
    }
    newest_first.reverse();
    Ok(newest_first)
}

/// A room's history as it is known so far; grows by reading back from the end to what is known.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) messages: Vec<Message>,
}

impl History {
    /// All of a room's messages, oldest first.
    pub(crate) async fn read(user: &User, room_id: &str) -> Self {
        match page_back(user, room_id, None, None).await {
            Ok(messages) => Self { messages },
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// Reads what is new, back to the newest message known, which must still be there.
    pub(crate) async fn extend(&mut self, user: &User, room_id: &str) {
        let Some(newest) = self.messages.last().cloned() else {
            *self = Self::read(user, room_id).await;
            return;
        };
        let mut newest_first = Vec::new();
        let mut from: Option<String> = None;
        loop {
            let page = user.messages(room_id, from.as_deref(), None, Direction::Back, 100).await;
            let messages = Message::among(&page["chunk"]);
            if let Some(at) = messages.iter().position(|message| *message == newest) {
                newest_first.extend_from_slice(&messages[..at]);
                break;
            }
            newest_first.extend(messages);
            match page["end"].as_str() {
                Some(end) if from.as_deref() != Some(end) => from = Some(end.to_owned()),
                _ => panic!("{room_id}: {newest:?} was in the history and is no more"),
            }
        }
        self.messages.extend(newest_first.into_iter().rev());
    }

    /// Checks that no event and no text is there twice.
    pub(crate) fn assert_no_repeat(&self, room_id: &str) {
        let mut ids = HashSet::new();
        let mut texts = HashSet::new();
        for message in &self.messages {
            assert!(ids.insert(&message.event_id), "{room_id}: {message:?} is there twice");
            assert!(texts.insert(&message.body), "{room_id}: {message:?} was stored twice");
        }
    }

    /// The messages of one writer, in the room's order.
    pub(crate) fn of(&self, writer: &Writer) -> Vec<&Message> {
        self.messages
            .iter()
            .filter(|message| {
                message.body.split_once(' ').is_some_and(|(label, _)| label == writer.label)
            })
            .collect()
    }
}
