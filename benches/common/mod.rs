//! What the benchmarks share: a server without HTTP, made with the library, and users who act in
//! it.

#![allow(dead_code, reason = "each benchmark uses its part")]

use std::{
    cell::Cell,
    hint::black_box,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use logcabin::{
    clock::Clock,
    decide::{
        account::{Login, Register},
        canonical,
        create_room::{CreateRoom, Preset},
        membership::{Change, ChangeMembership},
        send::SendEvent,
    },
    engine::{Engine, Options},
    events::{EventForm, Viewer},
    log::{Appended, Appending, Batch, Log, memory::MemoryLog},
    notifications::Unread,
    record::{
        Epoch, Offset, Origin, Record,
        command::{TokenHash, Tokens},
    },
    state::Room,
    sync::{
        Effort, KnownMembers, LookError,
        v3::{self, SyncFilter},
    },
    view::{
        View,
        filter::{EventFilter, Filter},
    },
};
use ruma::{
    CanonicalJsonObject, MilliSecondsSinceUnixEpoch, OwnedDeviceId, OwnedEventId, OwnedRoomId,
    OwnedUserId, RoomId, RoomVersionId, UInt, UserId,
    api::{IncomingRequestExt as _, client::message::send_message_event::v3 as send_message_event},
    events::{StateEventType, TimelineEventType},
};
use tokio::runtime::Runtime;

/// Messages in each room that is made with its people.
const MESSAGES: u64 = 5;

/// Whether this is `cargo bench` and not `cargo test`, which only shows that benchmarks work.
pub(crate) fn is_measuring() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// The value of this environment variable.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The options of an engine.
pub(crate) fn options(clock: Clock) -> Options {
    Options { event_cache_bytes: 64 << 20, ..Options::small(clock) }
}

/// The size of everything in a folder, in bytes.
pub(crate) fn size_of(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let size = |path: &Path| path.metadata().map_or(0, |metadata| metadata.len());
    entries
        .map(|entry| entry.path())
        .map(|path| if path.is_dir() { size_of(&path) } else { size(&path) })
        .sum()
}

/// The user of this number.
pub(crate) fn user_id(number: u64) -> OwnedUserId {
    format!("@user{number}:test").try_into().expect("a user id")
}

/// The room of this number.
pub(crate) fn room_id(number: u64) -> OwnedRoomId {
    format!("!room{number}:test").try_into().expect("a room id")
}

fn now(engine: &Engine) -> MilliSecondsSinceUnixEpoch {
    MilliSecondsSinceUnixEpoch(UInt::try_from(engine.clock().now_ms()).expect("a time"))
}

/// Makes an account with a name and one device.
pub(crate) async fn register(engine: &Engine, user_id: &UserId) {
    let login = Login {
        user_id: user_id.to_owned(),
        device_id: "DEVICE".into(),
        display_name: None,
        tokens: Tokens { access: TokenHash::of(user_id.as_str()), expires_ms: None, refresh: None },
        verified: None,
    };
    let register = Register {
        display_name: Some(user_id.localpart().to_owned()),
        login: Some(login),
        ..Register::user(user_id.to_owned())
    };
    engine.propose(Origin::server(), register).await.expect("a user").into_inner();
}

/// Makes a room that anyone may join.
pub(crate) async fn create_room(
    engine: &Engine,
    room_id: OwnedRoomId,
    creator: &UserId,
) -> OwnedRoomId {
    let create = CreateRoom {
        name: Some(format!("The room {room_id}")),
        ..CreateRoom::new(
            room_id,
            creator.to_owned(),
            RoomVersionId::V10,
            Preset::PublicChat,
            now(engine),
        )
    };
    engine.propose(Origin::server(), create).await.expect("a room").into_inner()
}

pub(crate) async fn join(engine: &Engine, room_id: &RoomId, user_id: &UserId) {
    let join = ChangeMembership::new(
        room_id.to_owned(),
        user_id.to_owned(),
        user_id.to_owned(),
        Change::Join,
        now(engine),
    );
    drop(engine.propose(Origin::server(), join).await.expect("a member").into_inner());
}

/// A message of typical length.
pub(crate) fn text(number: u64) -> serde_json::Value {
    let body =
        format!("This is message {number} of those that are said here, and about as long as most.");
    serde_json::json!({ "msgtype": "m.text", "body": body, "m.mentions": {} })
}

/// A proposal to send such a message.
pub(crate) fn message(
    engine: &Engine,
    room_id: &RoomId,
    sender: &UserId,
    number: u64,
) -> SendEvent {
    SendEvent {
        room_id: room_id.to_owned(),
        sender: sender.to_owned(),
        event_type: TimelineEventType::RoomMessage,
        state_key: None,
        content: serde_json::from_value(text(number)).expect("canonical JSON"),
        redacts: None,
        transaction: None,
        ts: now(engine),
    }
}

/// Sends such a message.
pub(crate) async fn say(
    engine: &Engine,
    room_id: &RoomId,
    sender: &UserId,
    number: u64,
) -> OwnedEventId {
    let message = message(engine, room_id, sender, number);
    engine.propose(Origin::server(), message).await.expect("a message").into_inner()
}

/// A log in memory that, from some moment on, acknowledges records and forgets them, so that
/// decisions can be repeated on the same state.
#[derive(Debug)]
struct Forgetful {
    log: MemoryLog,
    forgets: AtomicBool,
}

impl logcabin::log::samples::Wrapper for Forgetful {
    fn inner(&self) -> &dyn Log {
        &self.log
    }

    fn append(&self, batch: Batch) -> Appending<'_> {
        if !self.forgets.load(Ordering::Relaxed) {
            return self.log.append(batch);
        }
        black_box(batch);
        let last = *self.log.durable().borrow();
        Box::pin(std::future::ready(Ok(Appended { first: last, last })))
    }
}

/// A user with a device.
pub(crate) struct Person {
    pub(crate) user_id: OwnedUserId,
    device_id: OwnedDeviceId,
    session: Offset,
}

/// A server in memory, on one thread.
pub(crate) struct Server {
    runtime: Runtime,
    pub(crate) engine: Engine,
    log: Arc<Forgetful>,
    known: KnownMembers,
    unread: Unread,
    said: Cell<u64>,
}

impl Server {
    /// An empty server.
    pub(crate) fn new() -> Self {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().build().expect("a runtime");
        let clock = Clock::manual(1_700_000_000_000);
        let log = MemoryLog::new(clock.clone());
        let log = Arc::new(Forgetful { log, forgets: AtomicBool::new(false) });
        let opening = Engine::open(Arc::clone(&log) as Arc<dyn Log>, options(clock));
        let engine = runtime.block_on(opening).expect("an engine");
        Self {
            runtime,
            engine,
            log,
            known: KnownMembers::new(1 << 20),
            unread: Unread::default(),
            said: Cell::new(0),
        }
    }

    /// A server with `rooms` rooms, in which the same `members` users are and have said something.
    /// The first of them created the rooms.
    pub(crate) fn with_rooms(rooms: u64, members: u64) -> Self {
        let server = Self::new();
        let engine = &server.engine;
        server.wait(async {
            let people: Vec<_> = (0..members).map(user_id).collect();
            for user_id in &people {
                register(engine, user_id).await;
            }
            for number in 0..rooms {
                let room_id = create_room(engine, room_id(number), &people[0]).await;
                for user_id in &people[1..] {
                    join(engine, &room_id, user_id).await;
                }
            }
        });
        for _ in 0..MESSAGES {
            for number in 0..rooms {
                server.say(number);
            }
        }
        server
    }

    /// Runs a future on this server.
    pub(crate) fn wait<T>(&self, doing: impl Future<Output = T>) -> T {
        self.runtime.block_on(doing)
    }

    /// The message that the first user says next in the room of this number.
    pub(crate) fn next_message(&self, room: u64) -> SendEvent {
        let number = self.said.get() + 1;
        self.said.set(number);
        message(&self.engine, &room_id(room), &user_id(0), number)
    }

    /// Sends a message: decides it, appends it, applies it.
    pub(crate) fn send(&self, message: SendEvent) {
        let sending = self.engine.propose(Origin::server(), message);
        self.wait(sending).expect("a message").into_inner();
    }

    /// Has the first user say something in the room of this number. Returns its offset.
    pub(crate) fn say(&self, room: u64) -> Offset {
        self.send(self.next_message(room));
        self.head()
    }

    /// From now on, records are acknowledged and forgotten.
    pub(crate) fn forget_from_now_on(&self) {
        self.log.forgets.store(true, Ordering::Relaxed);
    }

    pub(crate) fn head(&self) -> Offset {
        self.engine.head().offset()
    }

    pub(crate) fn room(&self, number: u64) -> Arc<Room> {
        self.engine.state().rooms.get(&room_id(number)).expect("a room")
    }

    /// The user of this number, on their device.
    pub(crate) fn person(&self, number: u64) -> Person {
        let user_id = user_id(number);
        let device_id = OwnedDeviceId::from("DEVICE");
        let account = self.engine.state().accounts.get(&user_id).expect("an account");
        let session = account.read().device(&device_id).expect("a device").session;
        Person { user_id, device_id, session }
    }

    /// Their view now.
    pub(crate) fn view<'a>(&'a self, person: &'a Person) -> View<'a> {
        View {
            state: self.engine.state().share(),
            events: self.engine.events(),
            viewer: Viewer {
                user_id: &person.user_id,
                device_id: &person.device_id,
                session: person.session,
                at: self.head(),
                now_ms: 1_800_000_000_000,
            },
        }
    }

    /// The answer to their `/sync` now.
    pub(crate) fn sync(&self, person: &Person, request: &v3::Request) -> v3::Response {
        let look = |effort| {
            let memory = v3::Memory { members: &self.known, unread: &self.unread, effort };
            v3::respond(&self.view(person), request, memory)
        };
        // As the server does.
        let first = if request.since.is_some() { Effort::Short } else { Effort::Any };
        let found = match look(first) {
            Err(LookError::TooLong(_)) => look(Effort::Any),
            found => found,
        };
        found.expect("the log is read")
    }

    /// A log of `messages` messages in a room of ten, from its beginning, and how many of its
    /// records come before the first of the messages.
    pub(crate) fn log_of_messages(messages: u64) -> (Vec<Arc<Record>>, usize) {
        let server = Self::with_rooms(1, 10);
        let before = server.head();
        for _ in 0..messages {
            server.say(0);
        }
        let records = server.log.read(Offset::new(1), usize::MAX).expect("the log is read");
        let before = usize::try_from(before.get()).expect("a small log");
        (records.into_iter().map(Arc::new).collect(), before)
    }
}

/// A sync as clients ask for it: initial, or of what came after `since`.
pub(crate) fn sync_since(since: Option<Offset>) -> v3::Request {
    v3::Request {
        since,
        came_from: None,
        full_state: false,
        use_state_after: false,
        filter: SyncFilter::new(Filter::default(), 10, 1000).into(),
        epoch: Epoch::default(),
    }
}

/// Has the user set state under this key.
pub(crate) async fn set_state(
    engine: &Engine,
    room_id: &RoomId,
    sender: &UserId,
    key: String,
    number: u64,
) {
    let content = serde_json::json!({ "number": number, "what": "what holds under this key" });
    let send = SendEvent {
        event_type: STATE.into(),
        state_key: Some(key),
        content: serde_json::from_value(content).expect("canonical JSON"),
        ..message(engine, room_id, sender, number)
    };
    engine.propose(Origin::server(), send).await.expect("a change").into_inner();
}

const STATE: &str = "org.example.state";

/// The type of what [`set_state`] sets.
pub(crate) fn state_type() -> StateEventType {
    STATE.into()
}

/// Reads a request to send a message, as the server does once its body has been found to be JSON.
pub(crate) fn read_send(body: &[u8]) -> CanonicalJsonObject {
    let path = "/_matrix/client/v3/rooms/!room0:test/send/m.room.message/1";
    let request = http::Request::put(path).body(body).expect("a request");
    let args = ["!room0:test", "m.room.message", "1"];
    let request = send_message_event::Request::try_from_http_request(request, &args);
    canonical(request.expect("a request to send").body.json()).expect("canonical JSON")
}

/// The newest `limit` events of the first room, as `/messages` answers.
pub(crate) fn page(server: &Server, person: &Person, limit: usize) -> Vec<u8> {
    let (room, view) = (server.room(0), server.view(person));
    let filter = EventFilter::default();
    let page = view.page_backward(&room, view.at(), Offset::ZERO, limit, &filter);
    let events = page.expect("the log is read").events;
    assert_eq!(events.len(), limit, "the page is full");
    let chunk = view.client_events(&room, &events, &EventForm::FULL).expect("the log is read");
    serde_json::to_vec(&chunk).expect("JSON")
}
