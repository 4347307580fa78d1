use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::{
    usage::{ReachedBound, UsageTable},
    *,
};

const MIB: usize = 1 << 20;

/// The default budget: 24 MiB for requests, 72 MiB for answers.
fn bodies() -> Arc<BodyBudget> {
    BodyBudget::new(Shares::new(96 << 20, 8 * MIB))
}

fn address(number: u8) -> Principal {
    Principal::Address(Ipv4Addr::new(10, 0, 0, number).into())
}

fn asked(name: &str) -> Principal {
    Principal::Asked(name.into())
}

fn soon() -> Instant {
    Instant::now() + limits::BODY_PATIENCE
}

fn is_empty(bodies: &BodyBudget) -> bool {
    bodies.usage.lock().is_empty()
}

/// A body with this many bytes.
async fn with(bodies: &Arc<BodyBudget>, principal: Principal, bytes: usize) -> Result<Body, Full> {
    let mut body = bodies.begin(principal, 1);
    body.grow(bytes, soon()).await.map(|()| body)
}

/// Lets other tasks go as far as they can.
async fn let_others_run() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn was_dropped(body: &Body) -> bool {
    *body.dropped.borrow()
}

#[tokio::test]
async fn half_sent_bodies_of_one_address_leave_room_for_all_others() {
    let bodies = bodies();
    let attack = (0..900).map(|_| {
        let mut body = bodies.begin(address(1), limits::BODY_WEIGHT);
        tokio::spawn(async move {
            let mut bytes = 0;
            while bytes < 7 * MIB {
                if body.grow(bytes + MIB, soon()).await.is_err() {
                    return;
                }
                bytes += MIB;
            }
            // It is held for as long as the server likes.
            body.watch().await;
        })
    });
    let attack: Vec<_> = attack.collect();
    while bodies.held().0 == 0 {
        tokio::task::yield_now().await;
    }
    for number in 2..20 {
        let began = Instant::now();
        let other = with(&bodies, address(number), 2 * MIB).await.expect("there is room");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert!(bodies.held().0 <= 24 << 20, "{:?}", bodies.held());
        drop(other);
    }
    for task in attack {
        task.abort();
        let _ = task.await;
    }
    assert!(is_empty(&bodies));
}

#[tokio::test]
async fn idle_bodies_make_room_the_largest_first() {
    let bodies = bodies();
    let mut large = with(&bodies, address(1), 6 * MIB).await.expect("the first");
    let small = with(&bodies, address(2), MIB).await.expect("there is room");
    let mut rest = Vec::new();
    for number in 3..7 {
        rest.push(with(&bodies, address(number), 2 * MIB).await.expect("there is room"));
    }
    // Of 18 MiB, 15 are held, and all stop.
    let mut new = bodies.begin(address(9), 1);
    let making = tokio::spawn(async move { new.grow(4 * MIB, soon()).await.map(|()| new) });
    large.watch().await;
    assert!(!was_dropped(&small) && !rest.iter().any(was_dropped));
    assert_eq!(large.grow(7 * MIB, soon()).await, Err(Full::Dropped));
    drop(large);
    making.await.expect("no panic").expect("room was made");
}

/// A ledger, and the bodies that it dropped.
#[derive(Default)]
struct ReservedUsage {
    usage: UsageTable,
    watches: Vec<(u64, watch::Receiver<bool>)>,
}

impl ReservedUsage {
    fn begin(&mut self, principal: Principal, now: Instant) -> u64 {
        let (drop, dropped) = watch::channel(false);
        let id = self.usage.begin(principal, drop, now);
        self.watches.push((id, dropped));
        id
    }

    fn dropped(&self) -> Vec<u64> {
        self.watches.iter().filter(|(_, dropped)| *dropped.borrow()).map(|(id, _)| *id).collect()
    }
}

#[test]
fn the_largest_and_oldest_active_body_makes_room_for_a_smaller_one() {
    let (shares, now) = (Shares::new(96 << 20, 8 * MIB), Instant::now());
    let (mut kept, mib) = (ReservedUsage::default(), 1 << 20);
    let some = 9 * mib / 2;
    let sizes = [some, some + 2 * limits::BODY_QUANTUM, some];
    let ids = [1, 2, 3].map(|number| kept.begin(address(number), now));
    for (id, size) in ids.iter().zip(sizes) {
        kept.usage.reserve(&shares, *id, size, false, now).expect("there is room");
    }
    let later = now + Duration::from_secs(3);
    for (id, size) in ids.iter().zip(sizes) {
        let to = size + limits::BODY_QUANTUM;
        kept.usage.reserve(&shares, *id, to, false, later).expect("there is room");
    }
    let new = kept.begin(address(9), later);
    let want = 4 * mib;
    let mut ask = |waited: Duration| {
        let bound = kept.usage.reserve(&shares, new, want, false, later + waited);
        let bound = bound.expect_err("there is no room");
        assert_eq!(bound, ReachedBound::OfKind);
        kept.usage.waits(new, want, later + waited).expect("few wait");
        kept.usage.make_room(&shares, new, want, bound, waited, later + waited);
        kept.dropped()
    };
    assert!(ask(Duration::ZERO).is_empty(), "nobody is idle");
    assert!(ask(limits::BODY_IDLE / 2).is_empty(), "nobody is idle yet");
    assert_eq!(ask(limits::BODY_YIELDS), [ids[1]]);
}

#[test]
fn freed_memory_goes_to_the_body_that_others_made_room_for() {
    let (shares, now) = (Shares::new(96 << 20, 8 * MIB), Instant::now());
    let (mut kept, mib) = (ReservedUsage::default(), 1 << 20);
    let all = [1, 2, 3].map(|number| kept.begin(address(number), now));
    for id in all {
        kept.usage.reserve(&shares, id, 5 * mib, false, now).expect("there is room");
    }
    // Each wants more than there is, and waits.
    for id in all {
        kept.usage.reserve(&shares, id, 6 * mib, false, now).expect_err("it is full");
        kept.usage.waits(id, 6 * mib, now).expect("few wait");
    }
    let honest = kept.begin(address(9), now);
    let bound = kept.usage.reserve(&shares, honest, mib, false, now).expect_err("it is full");
    kept.usage.waits(honest, mib, now).expect("few wait");
    kept.usage.make_room(&shares, honest, mib, bound, Duration::ZERO, now);
    let [dropped] = kept.dropped()[..] else { panic!("{:?}", kept.dropped()) };
    assert!(all.contains(&dropped));
    kept.usage.end(dropped);
    // Nobody else takes the room that was made.
    let other = all.into_iter().find(|id| *id != dropped).expect("one of them");
    let much = kept.usage.reserve(&shares, other, 10 * mib, false, now);
    assert!(much.is_err(), "{much:?}");
    kept.usage.reserve(&shares, honest, mib, false, now).expect("room was made for it");
}

#[test]
fn the_largest_body_does_not_drop_active_ones() {
    let (shares, now) = (Shares::new(96 << 20, 8 * MIB), Instant::now());
    let (mut kept, mib) = (ReservedUsage::default(), 1 << 20);
    let large = kept.begin(address(0), now);
    kept.usage.reserve(&shares, large, 12 * mib, false, now).expect("it is alone");
    for number in 1..4 {
        let id = kept.begin(address(number), now);
        kept.usage.reserve(&shares, id, mib, false, now).expect("there is room");
    }
    let at = now + limits::BODY_IDLE / 2;
    let bound = kept.usage.reserve(&shares, large, 16 * mib, false, at).expect_err("it is full");
    kept.usage.make_room(&shares, large, 16 * mib, bound, limits::BODY_YIELDS, at);
    assert!(kept.dropped().is_empty());
}

#[tokio::test]
async fn a_body_larger_than_a_share_is_taken_alone() {
    let bodies = bodies();
    let mut alone = bodies.begin(address(1), limits::BODY_WEIGHT);
    alone.grow(8 * MIB, soon()).await.expect("it is alone");
    alone.becomes(Principal::Stranger("peer.example".try_into().expect("a name"))).expect("alone");
    let mut other =
        bodies.begin(Principal::Stranger("peer.example".try_into().expect("a name")), 2);
    assert_eq!(other.grow(MIB, Instant::now()).await, Err(Full::NoRoom));
    let bytes = alone.keep(vec![1; 8 * MIB].into());
    let part = bytes.slice(..10);
    drop((bytes, other));
    assert_eq!(bodies.held().0, 16 << 20, "a part is kept");
    drop(part);
    assert!(is_empty(&bodies));
}

fn of_user(user_id: &str) -> Urgency {
    Urgency::Asked(user_id.try_into().expect("a user"))
}

#[tokio::test]
async fn large_answers_go_one_after_the_other_and_small_ones_beside_them() {
    let bodies = bodies();
    let large = limits::FEDERATION_STATE_BYTES;
    let until = Instant::now() + limits::FEDERATION_STATE_TIMEOUT;
    let mut first = bodies.begin(asked("a"), 1).urgent(of_user("@ann:here"));
    first.grow(large, until).await.expect("it is alone");
    let small = with(&bodies, asked("b"), MIB / 8).await.expect("there is room");
    let second = tokio::spawn({
        let mut second = bodies.begin(asked("b"), 1);
        async move { second.grow(large, until).await.map(|()| second) }
    });
    let_others_run().await;
    assert!(!second.is_finished());
    drop((first, small));
    drop(second.await.expect("no panic").expect("its turn"));
    assert!(is_empty(&bodies));
}

#[tokio::test]
async fn a_large_answer_gives_back_what_is_done_with_and_then_its_turn() {
    let bodies = bodies();
    let until = Instant::now() + limits::FEDERATION_STATE_TIMEOUT;
    let mut first = bodies.begin(asked("a"), 1);
    first.grow(60 * MIB, until).await.expect("it is alone");
    let second = tokio::spawn({
        let mut second = bodies.begin(asked("b"), 1);
        async move { second.grow(30 * MIB, until).await.map(|()| second) }
    });
    first.shrink(19 * MIB);
    assert_eq!(bodies.held().1, 19 << 20);
    let_others_run().await;
    assert!(first.turn.is_some() && !second.is_finished());
    first.shrink(17 * MIB);
    assert!(first.turn.is_none());
    let second = second.await.expect("no panic").expect("its turn");
    assert_eq!(bodies.held().1, 47 << 20);
    first.shrink(64 * MIB);
    assert_eq!(bodies.held().1, 47 << 20, "it does not grow so");
    drop((first, second));
    assert!(is_empty(&bodies));
}

/// A slow homeserver may take its time if nobody else wants the turn.
#[tokio::test]
async fn a_large_answer_has_to_hurry_only_while_another_waits() {
    let bodies = bodies();
    let until = Instant::now() + limits::FEDERATION_STATE_TIMEOUT;
    let mut first = bodies.begin(asked("a"), 1);
    first.grow(40 * MIB, until).await.expect("it is alone");
    // One that waits for the turn, and one that waits for memory.
    for size in [20 * MIB, 30 * MIB] {
        assert!(!first.has_to_hurry());
        let second = tokio::spawn({
            let mut second = bodies.begin(asked("b"), 1);
            async move { second.grow(size, until).await }
        });
        let_others_run().await;
        assert!(first.has_to_hurry(), "{size}");
        second.abort();
        assert!(second.await.is_err_and(|error| error.is_cancelled()));
    }
    assert!(!first.has_to_hurry());
}

#[tokio::test]
async fn what_is_kept_of_an_answer_always_has_its_room() {
    let bodies = bodies();
    let mut kept = bodies.begin(asked("a"), 1);
    // Four answers take the whole share of their homeserver.
    for number in 1..=4 {
        let answer = with(&bodies, asked("b"), 2 * MIB).await.expect("there is room");
        kept.take_over(answer, MIB);
        assert_eq!(bodies.held().1, number << 20);
    }
    let small = with(&bodies, asked("b"), MIB).await.expect("there is room");
    // No more than the answer had.
    kept.take_over(small, 9 * MIB);
    kept.shrink(2 * MIB);
    assert_eq!(bodies.held().1, 2 << 20);
    drop(kept);
    assert!(is_empty(&bodies));
}

#[test]
fn an_answer_for_a_user_ends_the_turns_of_others() {
    let (mut kept, now) = (ReservedUsage::default(), Instant::now());
    let caused = kept.begin(asked("peer"), now);
    kept.usage.has_turn(caused, true, now);
    kept.usage.hurry(now + limits::LARGE_ANSWER_YIELDS / 2);
    assert!(kept.dropped().is_empty());
    kept.usage.hurry(now + limits::LARGE_ANSWER_YIELDS);
    assert_eq!(kept.dropped(), [caused]);
    let asked_for = kept.begin(asked("peer"), now);
    kept.usage.has_turn(asked_for, false, now);
    kept.usage.hurry(now + 2 * limits::LARGE_ANSWER_YIELDS);
    assert_eq!(kept.dropped(), [caused]);
}

#[tokio::test]
async fn each_homeserver_and_each_user_has_one_large_answer_in_the_queue() {
    one_is_in_line(Urgency::Caused, Urgency::Caused, |_| "flood".to_owned()).await;
    let many = |number| format!("flood{number}");
    one_is_in_line(of_user("@eve:here"), of_user("@ann:here"), many).await;
}

async fn one_is_in_line(flood: Urgency, other: Urgency, server: impl Fn(usize) -> String) {
    let bodies = bodies();
    let large = limits::FEDERATION_STATE_BYTES / 2;
    let until = Instant::now() + limits::FEDERATION_STATE_TIMEOUT;
    let mut waiting = Vec::new();
    for number in 0..40 {
        let mut body = bodies.begin(asked(&server(number)), 1).urgent(flood.clone());
        waiting.push(tokio::spawn(async move { body.grow(large, until).await.map(|()| body) }));
    }
    // The first has its turn.
    while bodies.held().1 == 0 {
        tokio::task::yield_now().await;
    }
    let mut other = bodies.begin(asked("other"), 1).urgent(other);
    let other = tokio::spawn(async move { other.grow(large, until).await.map(|()| other) });
    let_others_run().await;
    let first = waiting.remove(0).await.expect("no panic").expect("its turn");
    // The other body's turn comes before those of the flood.
    drop(first);
    drop(other.await.expect("no panic").expect("its turn"));
    for task in waiting {
        task.abort();
        let _ = task.await;
    }
    assert!(is_empty(&bodies));
}

proptest! {
    #[test]
    fn no_bound_is_ever_exceeded_and_all_is_given_back(
        steps in prop::collection::vec((0..40_usize, 0..6_u8, 0..12_u64, 0..5_u8), 1..300),
    ) {
        let shares = Shares::new(96 << 20, 8 * MIB);
        let (mut usage, mut now) = (UsageTable::default(), Instant::now());
        let mut ids: Vec<Option<(u64, watch::Receiver<bool>, u64)>> = Vec::new();
        ids.resize_with(40, || None);
        for (slot, principal, mib, act) in steps {
            now += Duration::from_millis(u64::from(principal) * 200);
            let of = |principal| match principal {
                0..=2 => address(principal),
                3 => Principal::Stranger("new.example".try_into().expect("a name")),
                4 => Principal::Server("old.example".try_into().expect("a name")),
                _ => asked("peer"),
            };
            match (act, &mut ids[slot]) {
                (0, held) => {
                    if let Some((id, ..)) = held.take() {
                        usage.end(id);
                    }
                }
                (1, Some((id, ..))) => usage.arrived(*id, principal % 2 == 0, now),
                (2, Some((id, _, bytes))) => {
                    usage.shrink(&shares, *id, mib << 20);
                    *bytes = (*bytes).min(mib << 20);
                }
                (_, Some((id, dropped, bytes))) => {
                    if *dropped.borrow() {
                        usage.end(*id);
                        ids[slot] = None;
                        continue;
                    }
                    let to = *bytes + (mib << 20);
                    match usage.reserve(&shares, *id, to, false, now) {
                        Ok(()) => *bytes = to,
                        Err(bound) => {
                            let _ = usage.waits(*id, to, now);
                            let waited = Duration::from_millis(u64::from(principal) * 400);
                            usage.make_room(&shares, *id, to, bound, waited, now);
                        }
                    }
                }
                (_, empty) => {
                    let (drop, dropped) = watch::channel(false);
                    *empty = Some((usage.begin(of(principal), drop, now), dropped, 0));
                }
            }
            let (requests, answers) = usage.held();
            prop_assert!(requests <= 24 << 20 && answers <= 72 << 20);
            let sum: u64 = ids.iter().flatten().map(|(.., bytes)| *bytes).sum();
            prop_assert_eq!(sum, requests + answers);
        }
        for (id, ..) in ids.into_iter().flatten() {
            usage.end(id);
        }
        prop_assert!(usage.is_empty());
    }
}

#[test]
fn room_is_made_for_what_is_announced_once_a_part_of_it_is_there() {
    let (believed, whole) = (limits::BODY_BELIEVED, 8 * MIB);
    assert_eq!(room_for(whole / believed - 1, whole), 2 * (whole / believed - 1));
    assert_eq!(room_for(whole / believed + 1, whole), whole);
    assert_eq!(room_for(whole, whole), whole);
    // Nothing is announced, or less than comes.
    assert_eq!((room_for(MIB, 0), room_for(whole + 1, whole)), (2 * MIB, 2 * whole + 2));
    assert_eq!(room_for(0, 0), 0);
}

/// Otherwise a homeserver would hold the memory of an answer for as long as it likes.
#[test]
fn what_arrives_too_slowly_is_late_however_long_it_goes_on() {
    let pace = limits::ANSWER_PACE;
    let late_after = |bytes_each_second: usize| {
        let (mut deadline, mut read) = (ArrivalDeadline::begin(), 0);
        for second in 0..1000 {
            if deadline.deadline(read, pace) <= Instant::now() {
                return Some(second);
            }
            // A second passes.
            deadline.began -= Duration::from_secs(1);
            read += bytes_each_second;
        }
        None
    };
    let enough = pace.0.div_ceil(usize::try_from(pace.1.as_secs()).unwrap());
    assert_eq!(late_after(1), Some(pace.1.as_secs()));
    assert_eq!(late_after(enough / 2), Some(pace.1.as_secs()));
    assert_eq!(late_after(2 * enough), None);
}

#[tokio::test]
async fn a_homeserver_that_answers_too_much_is_not_asked_for_a_while() {
    let bodies = bodies();
    let burst = limits::ANSWER_RATE.burst().get() as usize;
    let is_asked = async |name: &str| {
        let asked = bodies.answers_in_rate(name);
        tokio::time::timeout(Duration::from_millis(50), asked).await.is_ok()
    };
    for _ in 0..burst / (16 * MIB) {
        assert!(is_asked("large.example").await);
        drop(with(&bodies, asked("large.example"), 16 * MIB).await.expect("there is room"));
    }
    drop(with(&bodies, asked("large.example"), 16 * MIB).await.expect("there is room"));
    assert!(!is_asked("large.example").await, "two seconds are to pass");
    assert!(is_asked("other.example").await);
    // Requests of the same homeserver do not count.
    let server = "requests.example".try_into().expect("a name");
    drop(with(&bodies, Principal::Server(server), MIB).await.expect("there is room"));
    assert!(bodies.answered.ahead(&"requests.example".into(), std::time::Instant::now()).is_zero());
}
