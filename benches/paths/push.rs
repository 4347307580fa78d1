//! What push rules cost: judging an event for one member, with cached rules and step by step, as
//! compared with ruma; judging it for all members of a room; and unread counts.

use std::{cell::LazyCell, hint::black_box};

use criterion::{BenchmarkId, Criterion, Throughput};
use futures_util::FutureExt as _;
use logcabin::{
    events::EventRef,
    limits,
    notifications::{Circumstances, Glob, Judge, Levels, Rules, Subject, Unread, ruleset},
    record::Offset,
    state::Membership,
};
use ruma::{
    UInt,
    push::{FlattenedJson, PushConditionRoomCtx},
    serde::Raw,
};

use crate::{
    common::{Server, room_id, user_id},
    size, sizes,
};

fn last_event(server: &Server) -> EventRef {
    let event = server.engine.events().get(server.head()).expect("the log is read");
    event.expect("the last record is a message")
}

pub(crate) fn benches(criterion: &mut Criterion) {
    for &members in sizes(&[10, 100, 1_000, 10_000]) {
        let server = LazyCell::new(|| Server::with_rooms(1, members));
        rooms(criterion, &server, members);
    }
    steps(criterion);
    counts(criterion);
}

/// Judges an event for everyone in its room. What earlier events prepared is cached; the event
/// itself is prepared once.
fn rooms(
    criterion: &mut Criterion,
    server: &LazyCell<Server, impl FnOnce() -> Server>,
    members: u64,
) {
    let mut group = criterion.benchmark_group("push");
    group.throughput(Throughput::Elements(members));
    group.bench_function(BenchmarkId::new("for all of a room of", members), |bencher| {
        let (room, event, state) = (server.room(0), last_event(server), server.engine.state());
        let joined = room.members(Membership::Join, server.head());
        let events = server.engine.events();
        bencher.iter(|| {
            let notifies = |user_id| {
                let judge = Judge { state: &state, events, user_id, room: &room };
                judge.outcome(&event).expect("the log is read").is_some()
            };
            joined.iter().filter(|(user_id, _)| notifies(user_id)).count()
        });
    });
    group.finish();
}

fn steps(criterion: &mut Criterion) {
    let server = Server::with_rooms(1, 3);
    let (room, event, state) = (server.room(0), last_event(&server), server.engine.state());
    let (sender, member, room_id) = (user_id(0), user_id(1), room_id(0));
    let set = ruleset::defaults(&member);
    let rules = Rules::new(&set, &member);
    let name = Glob::literal("user1");
    let levels = Levels::default();
    let circumstances = Circumstances {
        user_id: &member,
        members: 3,
        display_name: name.as_ref(),
        levels: &levels,
    };
    let subject = Subject::new(&event);
    let mut group = criterion.benchmark_group("push");
    group.bench_function("for one member", |bencher| {
        let judge =
            Judge { state: &state, events: server.engine.events(), user_id: &member, room: &room };
        bencher.iter(|| judge.outcome(black_box(&event)).expect("the log is read"));
    });
    group.bench_function("make the event ready", |b| b.iter(|| Subject::new(black_box(&event))));
    group.bench_function("make the rules ready", |b| {
        b.iter(|| Rules::new(black_box(&set), &member))
    });
    group.bench_function("judge what is ready", |bencher| {
        bencher
            .iter(|| rules.judge(black_box(&subject), &sender, &room_id, &circumstances).is_ok());
    });
    let raw: Raw<()> = Raw::from_json(event.pdu.clone());
    let context = PushConditionRoomCtx::new(
        room_id.clone(),
        UInt::from(3_u8),
        member.clone(),
        "user1".to_owned(),
    );
    let flat = FlattenedJson::from_raw(&raw);
    group.bench_function("ruma: make the event ready", |bencher| {
        bencher.iter(|| FlattenedJson::from_raw(black_box(&raw)));
    });
    group.bench_function("ruma: judge what is ready", |bencher| {
        bencher.iter(|| {
            let applies = |rule: &ruma::push::AnyPushRuleRef<'_>| {
                rule.applies(black_box(&flat), &context).now_or_never() == Some(true)
            };
            set.iter().find(applies).is_some()
        });
    });
    group.finish();
}

fn counts(criterion: &mut Criterion) {
    let server = LazyCell::new(|| {
        let server = Server::with_rooms(1, 2);
        for _ in 0..size(limits::UNREAD_EVENTS as u64, 10) {
            server.say(0);
        }
        server
    });
    let mut group = criterion.benchmark_group("push");
    let count = |server: &Server, unread: &Unread, at: Offset| {
        let (state, room, member) = (server.engine.state(), server.room(0), user_id(1));
        let counts = unread.counts(&state, server.engine.events(), &member, &room, at);
        counts.expect("the log is read").total().notifications
    };
    group.bench_function("first count of a room, 5,000 unread", |bencher| {
        let server = &*server;
        bencher.iter(|| count(server, &Unread::default(), server.head()));
    });
    group.bench_function("the same count again", |bencher| {
        let server = &*server;
        let unread = Unread::default();
        count(server, &unread, server.head());
        bencher.iter(|| count(server, &unread, server.head()));
    });
    group.finish();
}
