//! What push rules cost: the judgement of one event for one user, beside ruma's own, and the first
//! count of a room with more unread events than are counted.

use std::{hint::black_box, sync::Arc};

use criterion::{Criterion, criterion_group, criterion_main};
use futures_util::FutureExt as _;
use logcabin::{
    clock::Clock,
    decide::{
        account::{Met, Register},
        create_room::{CreateRoom, Preset},
        membership::{Change, ChangeMembership},
        send::SendEvent,
    },
    engine::{Engine, Options},
    events::StoredEvent,
    limits,
    log::{Log, memory::MemoryLog},
    push::{Circumstances, Glob, Levels, Rules, Subject, Unread, ruleset},
    record::{Command, Offset, Origin, command::AccountKind},
};
use ruma::{
    CanonicalJsonObject, MilliSecondsSinceUnixEpoch, OwnedRoomId, OwnedUserId, RoomVersionId, UInt,
    events::TimelineEventType,
    push::{FlattenedJson, PushConditionRoomCtx},
    serde::Raw,
};
use serde_json::json;

fn user_id(name: &str) -> OwnedUserId {
    format!("@{name}:test").try_into().expect("a user id")
}

fn ts() -> MilliSecondsSinceUnixEpoch {
    MilliSecondsSinceUnixEpoch(UInt::from(1_700_000_000_u32))
}

/// A server in memory with a room of two, in which one has sent `messages` messages.
async fn server(messages: usize) -> (Engine, OwnedRoomId) {
    let clock = Clock::manual(1_700_000_000_000);
    let log = Arc::new(MemoryLog::with_records(clock.clone(), Vec::new()));
    let server_name = "test".try_into().expect("a server name");
    let gather = logcabin::decide::ephemeral::Gather::default();
    let options = Options {
        server_name,
        event_cache_bytes: 64 << 20,
        gather,
        accounts: Default::default(),
        clock,
    };
    let engine = Engine::open(log as Arc<dyn Log>, options).await.expect("an engine");
    for name in ["ann", "bob"] {
        let register = Register {
            user_id: user_id(name),
            kind: AccountKind::User,
            password: None,
            display_name: Some(name.to_owned()),
            login: None,
            met: Met::default(),
        };
        engine.propose(Origin::server(), register).await.expect("a new user").into_inner();
    }
    let create = CreateRoom {
        room_id: "!room:test".try_into().expect("a room id"),
        creator: user_id("ann"),
        version: RoomVersionId::V10,
        preset: Preset::PublicChat,
        creation_content: CanonicalJsonObject::new(),
        power_levels: CanonicalJsonObject::new(),
        initial_state: Vec::new(),
        name: None,
        topic: None,
        alias: None,
        invite: Vec::new(),
        is_direct: false,
        public: false,
        ts: ts(),
    };
    let room_id = engine.propose(Origin::server(), create).await.expect("a room").into_inner();
    let join = ChangeMembership {
        room_id: room_id.clone(),
        sender: user_id("bob"),
        target: user_id("bob"),
        change: Change::Join,
        reason: None,
        is_direct: false,
        third_party_signed: None,
        ts: ts(),
    };
    drop(engine.propose(Origin::server(), join).await.expect("a join").into_inner());
    for number in 0..messages {
        let body = format!("message {number}, of the length that messages have, more or less");
        let content = json!({ "msgtype": "m.text", "body": body, "m.mentions": {} });
        let send = SendEvent {
            room_id: room_id.clone(),
            sender: user_id("ann"),
            event_type: TimelineEventType::RoomMessage,
            state_key: None,
            content: serde_json::from_value(content).expect("canonical JSON"),
            redacts: None,
            transaction: None,
            ts: ts(),
        };
        engine.propose(Origin::server(), send).await.expect("a message").into_inner();
    }
    (engine, room_id)
}

fn judge(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (engine, room_id) = runtime.block_on(server(1));
    let last = engine.state().applied();
    let Ok(Some(Command::RoomEvent(body))) = engine.events().command(last) else {
        panic!("the last record is the message")
    };
    let event = StoredEvent::new(last, body).expect("an event");
    let (ann, bob) = (user_id("ann"), user_id("bob"));
    let set = ruleset::defaults(&bob);
    let rules = Rules::new(&set, &bob);
    let name = Glob::literal("bob");
    let levels = Levels::default();
    let circumstances =
        Circumstances { user_id: &bob, members: 3, display_name: name.as_ref(), levels: &levels };
    let subject = Subject::new(&event);
    c.bench_function("prepare the event", |b| b.iter(|| Subject::new(black_box(&event))));
    c.bench_function("prepare the rules", |b| b.iter(|| Rules::new(black_box(&set), &bob)));
    c.bench_function("judge", |b| {
        b.iter(|| rules.judge(black_box(&subject), &ann, &room_id, &circumstances).is_ok());
    });
    let raw: Raw<()> = Raw::from_json(event.pdu.clone());
    let context =
        PushConditionRoomCtx::new(room_id.clone(), UInt::from(3_u8), bob.clone(), "bob".to_owned());
    let flat = FlattenedJson::from_raw(&raw);
    c.bench_function("ruma: prepare the event", |b| {
        b.iter(|| FlattenedJson::from_raw(black_box(&raw)));
    });
    c.bench_function("ruma: judge", |b| {
        b.iter(|| {
            let applies = |rule: &ruma::push::AnyPushRuleRef<'_>| {
                rule.applies(black_box(&flat), &context).now_or_never() == Some(true)
            };
            set.iter().find(applies).is_some()
        });
    });
}

fn count(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let (engine, room_id) = runtime.block_on(server(limits::UNREAD_EVENTS + 1));
    let room = engine.state().rooms.get(&room_id).expect("the room");
    let (state, events, bob) = (engine.state(), engine.events(), user_id("bob"));
    let at = engine.state().applied();
    let counts = |unread: &Unread, at: Offset| {
        unread.counts(&state, events, &bob, &room, at).expect("counts").total().notifications
    };
    c.bench_function("first count of a room", |b| b.iter(|| counts(&Unread::default(), at)));
    let unread = Unread::default();
    counts(&unread, at);
    c.bench_function("the same count again", |b| b.iter(|| counts(&unread, at)));
}

criterion_group!(benches, judge, count);
criterion_main!(benches);
