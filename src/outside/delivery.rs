//! Deliveries: an external receiver is told, in order and without gaps, what the log contains for
//! it.
//!
//! There is no queue. A [`Receiver`] reads the log from a durable position on. What it finds is
//! handed over until it has arrived; then the position advances. So the memory for a delivery does
//! not grow with its lag, a slow or absent receiver affects nobody else, and a restart continues at
//! the last position.
//!
//! ```text
//! read records after `done` → something found → note `under_way` (durable) → hand it over
//!   ↑                                                                             │
//!   └──────────────── note `done` (with the next `under_way`, if there is one) ←──┘
//! ```
//!
//! A delivery is recorded *before* it is sent. Whatever happens then, it is repeated under the same
//! id, with the same content, so the receiver can recognise repetitions. If the server is killed
//! before it records the arrival, something may arrive twice; nothing is lost or reordered.
//!
//! Nothing blocks what comes after it. If a receiver refuses the content of a delivery, it is sent
//! the records in parts, each under another id, until the refused record is alone. That one is set
//! aside, and recorded with the reason, but only if the receiver then takes an empty delivery: one
//! that refuses everything is retried until it does not.
//!
//! These notes are records, too, and advance the head that deliveries follow. They concern no
//! receiver, so skipping them is not recorded.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use thiserror::Error;
use tokio::{sync::Notify, task::coop::consume_budget, time::sleep};
use tracing::{error, info, warn};

use logcabin_base::{
    clock::random_bytes,
    limits,
    metrics::{IntCounter, IntGauge, Metrics, metrics},
    shutdown::Shutdown,
    traces::traces,
};
use logcabin_decide::delivery::Advance;
use logcabin_engine::{Engine, ProposeError};
use logcabin_log::{ReadError, follow::Follow};
use logcabin_record::{
    Epoch, Offset, Origin, Record,
    command::{SetAsideItem, UnderWay},
};
use logcabin_state::deliveries::Position;

/// An external service that is told what the log contains for it.
pub trait Receiver: Send + 'static {
    /// What was found in records and is delivered together.
    type Content: Default + Send;
    /// The form in which it is sent.
    type Parcel: Send + Sync;

    /// The name of a delivery in the traces of the records that caused it.
    const TRACED_AS: &'static str;

    /// The receiver's name in the log, for example `appservice/irc`. It never changes.
    fn name(&self) -> &str;

    /// Adds what this record means to the receiver, as of the record. Called once for each record,
    /// in order; after [`Receiver::restart`], from any record on. Returns whether it means
    /// anything.
    fn read(&mut self, record: &Record, found: &mut Self::Content) -> Result<bool, ReadError>;

    /// Whether nothing was found.
    fn is_empty(found: &Self::Content) -> bool;

    /// Whether enough was found for one delivery.
    fn is_full(found: &Self::Content) -> bool;

    /// Forgets what was learned from earlier records: the next one may be any record.
    fn restart(&mut self);

    /// The content of a delivery, as of `up_to`, so that it is the same at each attempt.
    fn pack(&self, found: Self::Content, up_to: Offset) -> Result<Self::Parcel, ReadError>;

    /// Sends it. If that fails, it is sent again; if it is refused, in parts.
    fn hand_over(
        &self,
        id: &str,
        parcel: &Self::Parcel,
    ) -> impl Future<Output = Result<(), DeliveryFailure>> + Send;

    /// Notified when a new attempt is likely to succeed.
    fn is_back(&self) -> &Notify;
}

/// Why a delivery was not taken. The texts go to the server's log output.
#[derive(Clone, Debug)]
pub enum DeliveryFailure {
    /// It may be taken at the next attempt.
    Failed(String),
    /// Its content is refused, with this status.
    Refused(u16, String),
}

/// What became of a delivery.
enum DeliveryOutcome {
    Taken,
    /// The receiver, which takes other deliveries, refuses the content with this status; without
    /// one, it cannot be sent.
    Never(Option<u16>, String),
}

/// Why a delivery cannot continue now.
#[derive(Debug, Error)]
enum DeliveryStopped {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Log(#[from] ProposeError),
}

/// Delivers to `receiver` until the server shuts down. A new receiver starts with the records from
/// now on.
pub async fn keep<R: Receiver>(receiver: R, engine: Arc<Engine>, shutdown: Shutdown) {
    let told = DeliveryMetrics::new(receiver.name());
    let mut delivery = Delivery { receiver, engine, told };
    let mut retry = Retry::default();
    loop {
        let began = Instant::now();
        // A panic delays the delivery in progress, but does not end later ones.
        let run = AssertUnwindSafe(delivery.run()).catch_unwind();
        let ended = tokio::select! {
            ended = run => ended,
            // It can be dropped at any point: what was recorded is in the log.
            () = shutdown.given() => return,
        };
        let to = delivery.receiver.name();
        match ended {
            Ok(Ok(never)) => match never {},
            Ok(Err(error)) => warn!(to, %error, "a delivery is blocked; retrying later"),
            Err(_) => error!(to, "a delivery panicked"),
        }
        if began.elapsed() > limits::DELIVERY_RETRY.1 {
            retry = Retry::default();
        }
        tokio::select! {
            () = sleep(retry.next()) => {}
            () = shutdown.given() => return,
        }
    }
}

/// Has no value.
enum Never {}

struct Delivery<R> {
    receiver: R,
    engine: Arc<Engine>,
    told: DeliveryMetrics,
}

/// What was found in records.
struct Collected<F> {
    found: F,
    /// The records in which it was found.
    causes: Vec<Offset>,
    /// The records that could not be read for the receiver.
    unreadable: Vec<Offset>,
    /// The last record that was read.
    at: Offset,
}

/// The metrics of a receiver, while this process delivers to it.
struct DeliveryMetrics {
    name: String,
    position: IntGauge,
    arrived: IntCounter,
    failed: IntCounter,
    set_aside: IntCounter,
}

impl DeliveryMetrics {
    fn new(name: &str) -> Self {
        let Metrics { delivery_position, delivery_attempts, delivery_set_aside, .. } = metrics();
        Self {
            name: name.to_owned(),
            position: delivery_position.with_label_values(&[name]),
            arrived: delivery_attempts.with_label_values(&[name, "arrived"]),
            failed: delivery_attempts.with_label_values(&[name, "failed"]),
            set_aside: delivery_set_aside.with_label_values(&[name]),
        }
    }

    fn of(&self, position: Offset) {
        self.position.set(i64::try_from(position.get()).unwrap_or(i64::MAX));
    }
}

impl Drop for DeliveryMetrics {
    fn drop(&mut self) {
        // Another node may deliver now.
        let _ = metrics().delivery_position.remove_label_values(&[&self.name]);
    }
}

impl<R: Receiver> Delivery<R> {
    async fn run(&mut self) -> Result<Never, DeliveryStopped> {
        let engine = Arc::clone(&self.engine);
        self.receiver.restart();
        let noted = engine.state().deliveries.position(self.receiver.name());
        let mut position = match noted {
            Some(position) => position,
            None => {
                let position = Position { done: engine.head().offset(), ..Position::default() };
                self.note(&position).await?;
                position
            }
        };
        let mut noted = position.done;
        // Whether an arrival has not been recorded yet.
        let mut arrived = false;
        let mut records =
            engine.follow(position.done.next()).in_chunks_of(limits::DELIVERY_RECORDS);
        // The one before a restart, which is the same now.
        let mut again = position.under_way.clone();
        // Where the parts of a refused delivery end, the next part last.
        let mut ends = Vec::new();
        loop {
            self.told.of(position.done);
            let last = again.as_ref().map(|under_way| under_way.up_to);
            let harvest = match last {
                Some(last) => self.find(&mut records, last, |_| false).await?,
                None => {
                    let last = ends.last().copied().unwrap_or_else(|| engine.head().offset());
                    self.find(&mut records, last, R::is_full).await?
                }
            };
            let Collected { found, causes, unreadable, at } = harvest;
            arrived |= !unreadable.is_empty();
            for record in unreadable {
                self.set_aside(&mut position, record, None, "reading it panicked".to_owned());
            }
            if R::is_empty(&found) && again.is_none() {
                ends.retain(|end| *end > at);
                position.done = at;
                if arrived || at.get().saturating_sub(noted.get()) >= limits::DELIVERY_PASSED {
                    self.note(&position).await?;
                    (noted, arrived) = (at, false);
                }
                self.told.of(at);
                if ends.is_empty() {
                    records.wait().await;
                }
                continue;
            }
            let under_way = match again.take() {
                Some(under_way) => under_way,
                None => {
                    let id = transaction_id(engine.state().epoch(), at, !ends.is_empty());
                    let under_way = UnderWay { id, up_to: at };
                    position.under_way = Some(under_way.clone());
                    self.note(&position).await?;
                    noted = position.done;
                    under_way
                }
            };
            match self.deliver(&under_way, found, &causes).await? {
                DeliveryOutcome::Never(..) if causes.len() > 1 => {
                    ends.retain(|end| *end > at);
                    ends.extend([at, causes[causes.len() / 2 - 1]]);
                    records.skip_to(position.done.next());
                    self.receiver.restart();
                    position.under_way = None;
                    continue;
                }
                DeliveryOutcome::Never(status, reason) => {
                    let record = causes.first().copied().unwrap_or(at);
                    self.set_aside(&mut position, record, status, reason);
                }
                DeliveryOutcome::Taken => {}
            }
            ends.retain(|end| *end > at);
            (position.done, position.under_way) = (at, None);
            arrived = true;
        }
    }

    /// Reads records up to `to`, until enough was found.
    async fn find(
        &mut self,
        records: &mut Follow,
        to: Offset,
        enough: impl Fn(&R::Content) -> bool,
    ) -> Result<Collected<R::Content>, ReadError> {
        let (mut found, mut causes, mut unreadable) =
            (R::Content::default(), Vec::new(), Vec::new());
        let mut at = records.next_offset().prev();
        while at < to
            && let Some(record) = records.ready()?
        {
            at = record.offset();
            // Whatever panics does so again, and would end the delivery each time.
            let read = AssertUnwindSafe(|| self.receiver.read(&record, &mut found));
            match catch_unwind(read) {
                Ok(concerns) => causes.extend(concerns?.then_some(at)),
                Err(_) => {
                    error!(to = self.receiver.name(), record = %at, "reading a record panicked");
                    self.receiver.restart();
                    unreadable.push(at);
                }
            }
            if enough(&found) {
                break;
            }
            // A receiver that lags far behind does not keep others from the processor.
            consume_budget().await;
        }
        Ok(Collected { found, causes, unreadable, at })
    }

    async fn note(&self, position: &Position) -> Result<(), ProposeError> {
        let advance = Advance { to: self.receiver.name().to_owned(), position: position.clone() };
        self.engine.propose(Origin::server(), advance).await?.into_inner();
        Ok(())
    }

    fn set_aside(
        &self,
        position: &mut Position,
        record: Offset,
        status: Option<u16>,
        reason: String,
    ) {
        let to = self.receiver.name();
        warn!(to, %record, status, reason, "a record is never delivered and is set aside");
        self.told.set_aside.inc();
        let (item, at_ms) = ("record".to_owned(), self.engine.clock().now_ms());
        position.set_aside.add(SetAsideItem { record: Some(record), item, at_ms, status, reason });
    }

    /// Sends until it has arrived, or is known never to arrive.
    async fn deliver(
        &self,
        under_way: &UnderWay,
        found: R::Content,
        causes: &[Offset],
    ) -> Result<DeliveryOutcome, ReadError> {
        let to = self.receiver.name();
        let pack = AssertUnwindSafe(|| self.receiver.pack(found, under_way.up_to));
        let Ok(parcel) = catch_unwind(pack) else {
            error!(to, up_to = %under_way.up_to, "building a delivery panicked");
            return Ok(DeliveryOutcome::Never(None, "building it panicked".to_owned()));
        };
        let parcel = parcel?;
        let mut retry = Retry::default();
        let mut failed = 0_u64;
        loop {
            let began = Instant::now();
            let handed_over = self.receiver.hand_over(&under_way.id, &parcel).await;
            if traces().is_some() {
                let records = self.engine.head().traced();
                records.tell(causes.iter().copied(), R::TRACED_AS, began);
            }
            let reason = match handed_over {
                Ok(()) => break,
                Err(DeliveryFailure::Failed(reason)) => reason,
                Err(DeliveryFailure::Refused(status, said)) => match self.probe(under_way).await? {
                    Ok(()) => {
                        self.told.failed.inc();
                        return Ok(DeliveryOutcome::Never(Some(status), said));
                    }
                    Err(_) => format!("it refuses everything, with status {status}: {said}"),
                },
            };
            failed += 1;
            self.told.failed.inc();
            let wait = retry.next();
            warn!(to, failed, again_in_ms = wait.as_millis(), reason, "delivery failed");
            tokio::select! {
                () = sleep(wait) => {}
                () = self.receiver.is_back().notified() => retry = Retry::default(),
            }
        }
        self.told.arrived.inc();
        if failed > 0 {
            info!(to, failed, "delivery succeeded after a failure");
        }
        Ok(DeliveryOutcome::Taken)
    }

    /// Whether the receiver takes an empty delivery.
    async fn probe(&self, under_way: &UnderWay) -> Result<Result<(), DeliveryFailure>, ReadError> {
        let parcel = self.receiver.pack(R::Content::default(), under_way.up_to)?;
        let id = transaction_id(self.engine.state().epoch(), under_way.up_to, true);
        Ok(self.receiver.hand_over(&id, &parcel).await)
    }
}

/// The pause between attempts: longer each time, up to a limit, and random, so that clients of one
/// service do not retry at the same time.
#[derive(Debug, Default)]
pub struct Retry(u32);

impl Retry {
    /// The next pause.
    pub(crate) fn next(&mut self) -> Duration {
        self.next_within(limits::DELIVERY_RETRY)
    }

    /// As [`next`](Self::next), with another first pause and another limit.
    pub(crate) fn next_within(&mut self, (first, longest): (Duration, Duration)) -> Duration {
        let whole = first.saturating_mul(1 << self.0.min(16)).min(longest);
        self.0 = self.0.saturating_add(1);
        let [random] = random_bytes::<1>();
        // Between half of it and all of it.
        whole.mul_f64(0.5 + f64::from(random) / 510.0)
    }
}

/// The id of the delivery up to `at`: the same at each attempt, and different after a restore. A
/// part of one that was refused gets another. It consists of digits, because some application
/// services parse it as a number.
fn transaction_id(epoch: Epoch, at: Offset, is_part: bool) -> String {
    let id = format!("{}{:020}", epoch.0, at.get());
    if !is_part {
        return id;
    }
    format!("{id}{:010}", u32::from_le_bytes(random_bytes()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use parking_lot::Mutex;
    use tokio::{sync::oneshot, task::yield_now};

    use super::*;
    use logcabin_base::clock::Clock;
    use logcabin_decide::account::Register;
    use logcabin_engine::Options;
    use logcabin_log::{Log, memory::MemoryLog};

    /// Is told of registrations, two at a time, and accepts each delivery at the second attempt.
    #[derive(Clone, Default)]
    struct Stubborn(Arc<Got>);

    #[derive(Default)]
    struct Got {
        tries: Mutex<Vec<(String, Vec<u64>)>>,
        back: Notify,
        arrived: Notify,
    }

    impl Receiver for Stubborn {
        type Content = Vec<u64>;
        type Parcel = Vec<u64>;

        const TRACED_AS: &'static str = "test";

        fn name(&self) -> &str {
            "test/stubborn"
        }

        fn read(&mut self, record: &Record, found: &mut Vec<u64>) -> Result<bool, ReadError> {
            let is_one = &*record.header.kind == "user.register";
            if is_one {
                found.push(record.offset().get());
            }
            Ok(is_one)
        }

        fn is_empty(found: &Vec<u64>) -> bool {
            found.is_empty()
        }

        fn is_full(found: &Vec<u64>) -> bool {
            found.len() >= 2
        }

        fn restart(&mut self) {}

        fn pack(&self, found: Vec<u64>, up_to: Offset) -> Result<Vec<u64>, ReadError> {
            assert!(found.iter().all(|offset| *offset <= up_to.get()));
            Ok(found)
        }

        async fn hand_over(&self, id: &str, parcel: &Vec<u64>) -> Result<(), DeliveryFailure> {
            let mut tries = self.0.tries.lock();
            let again = tries.last().is_some_and(|(last, _)| last == id);
            tries.push((id.to_owned(), parcel.clone()));
            self.0.back.notify_one();
            if again {
                self.0.arrived.notify_one();
                Ok(())
            } else {
                Err(DeliveryFailure::Failed("not the first time".to_owned()))
            }
        }

        fn is_back(&self) -> &Notify {
            &self.0.back
        }
    }

    async fn open(log: &Arc<dyn Log>) -> Arc<Engine> {
        let options = Options::small(Clock::manual(1));
        Arc::new(Engine::open(Arc::clone(log), options).await.unwrap())
    }

    async fn register(engine: &Engine, number: usize) -> u64 {
        let user_id = ruma::UserId::parse(format!("@u{number}:test")).unwrap();
        let register = Register::user(user_id.clone());
        engine.propose(Origin::server(), register).await.unwrap().into_inner();
        engine.state().accounts.get(&user_id).unwrap().read().registered.get()
    }

    #[tokio::test]
    async fn everything_arrives_in_order_and_the_position_rests() {
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new(Clock::manual(1)));
        let engine = open(&log).await;
        register(&engine, 0).await;
        let receiver = Stubborn::default();
        let got = Arc::clone(&receiver.0);
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = Shutdown::when(async move {
            let _ = stopped.await;
        });
        let keeping = tokio::spawn(keep(receiver, Arc::clone(&engine), shutdown));
        while engine.state().deliveries.position("test/stubborn").is_none() {
            yield_now().await;
        }
        let mut registered = Vec::new();
        for number in 1..8 {
            registered.push(register(&engine, number).await);
        }
        let told = |got: &Got| -> Vec<u64> {
            let tries = got.tries.lock();
            let arrived = tries.windows(2).filter(|pair| pair[0].0 == pair[1].0);
            arrived.flat_map(|pair| pair[1].1.clone()).collect()
        };
        while told(&got).len() < registered.len() {
            got.arrived.notified().await;
        }
        assert_eq!(told(&got), registered, "what came before the first time is not told");
        let tries = got.tries.lock().clone();
        assert!(tries.chunks(2).all(|pair| pair[0] == pair[1]), "{tries:?}");
        // The notes of a delivery cause no further notes.
        let position = || engine.state().deliveries.position("test/stubborn").unwrap();
        while position().under_way.is_some() {
            yield_now().await;
        }
        let head = engine.head().offset();
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!((engine.head().offset(), position().done), (head, head.prev()));
        drop(stop);
        keeping.await.unwrap();
    }

    #[tokio::test]
    async fn what_was_under_way_is_the_same_after_a_restart() {
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new(Clock::manual(1)));
        let engine = open(&log).await;
        let done = engine.head().offset();
        let first = register(&engine, 1).await;
        let up_to = engine.head().offset();
        let under_way = Some(UnderWay { id: "as before".to_owned(), up_to });
        let position = Position { done, under_way, ..Position::default() };
        let advance = Advance { to: "test/stubborn".to_owned(), position };
        engine.propose(Origin::server(), advance).await.unwrap().into_inner();
        let second = register(&engine, 2).await;
        let receiver = Stubborn::default();
        let got = Arc::clone(&receiver.0);
        let shutdown = Shutdown::when(std::future::pending());
        let keeping = tokio::spawn(keep(receiver, Arc::clone(&engine), shutdown));
        got.arrived.notified().await;
        while got.tries.lock().len() < 4 {
            got.arrived.notified().await;
        }
        let tries = got.tries.lock().clone();
        let before = ("as before".to_owned(), vec![first]);
        assert_eq!(tries[..2], [before.clone(), before]);
        assert_eq!(tries[2].1, [second]);
        keeping.abort();
    }

    /// Is told of registrations, four at a time, refuses some of them, and panics at one.
    #[derive(Clone, Default)]
    struct Picky(Arc<Taken>);

    #[derive(Default)]
    struct Taken {
        refused: Mutex<Vec<u64>>,
        panics_at: Mutex<Option<u64>>,
        refuses_all: AtomicBool,
        told: Mutex<Vec<u64>>,
        ids: Mutex<Vec<String>>,
        asked: Notify,
        back: Notify,
    }

    impl Receiver for Picky {
        type Content = Vec<u64>;
        type Parcel = Vec<u64>;

        const TRACED_AS: &'static str = "test";

        fn name(&self) -> &str {
            "test/picky"
        }

        fn read(&mut self, record: &Record, found: &mut Vec<u64>) -> Result<bool, ReadError> {
            let is_one = &*record.header.kind == "user.register";
            found.extend(is_one.then_some(record.offset().get()));
            Ok(is_one)
        }

        fn is_empty(found: &Vec<u64>) -> bool {
            found.is_empty()
        }

        fn is_full(found: &Vec<u64>) -> bool {
            found.len() >= 4
        }

        fn restart(&mut self) {}

        fn pack(&self, found: Vec<u64>, _: Offset) -> Result<Vec<u64>, ReadError> {
            let panics = self.0.panics_at.lock().is_some_and(|at| found.contains(&at));
            assert!(!panics, "as the test wants it");
            Ok(found)
        }

        async fn hand_over(&self, id: &str, parcel: &Vec<u64>) -> Result<(), DeliveryFailure> {
            let Taken { refused, refuses_all, told, ids, asked, .. } = &*self.0;
            asked.notify_one();
            if refuses_all.load(Ordering::SeqCst) {
                return Err(DeliveryFailure::Refused(400, "nothing".to_owned()));
            }
            ids.lock().push(id.to_owned());
            if parcel.iter().any(|offset| refused.lock().contains(offset)) {
                return Err(DeliveryFailure::Refused(413, "not that".to_owned()));
            }
            told.lock().extend(parcel);
            Ok(())
        }

        fn is_back(&self) -> &Notify {
            &self.0.back
        }
    }

    #[tokio::test]
    async fn what_is_refused_alone_is_set_aside_and_everything_else_arrives_in_order() {
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new(Clock::manual(1)));
        let engine = open(&log).await;
        let done = engine.head().offset();
        let position = Position { done, ..Position::default() };
        let advance = Advance { to: "test/picky".to_owned(), position };
        engine.propose(Origin::server(), advance).await.unwrap().into_inner();
        let mut registered = Vec::new();
        for number in 0..11 {
            registered.push(register(&engine, number).await);
        }
        let receiver = Picky::default();
        let taken = Arc::clone(&receiver.0);
        *taken.refused.lock() = vec![registered[1], registered[2], registered[9]];
        *taken.panics_at.lock() = Some(registered[6]);
        taken.refuses_all.store(true, Ordering::SeqCst);
        let shutdown = Shutdown::when(std::future::pending());
        let keeping = tokio::spawn(keep(receiver, Arc::clone(&engine), shutdown));
        let position = || engine.state().deliveries.position("test/picky").unwrap();
        for _ in 0..4 {
            taken.asked.notified().await;
            taken.back.notify_one();
        }
        assert_eq!((position().done, position().set_aside.count), (done, 0), "nothing is lost");
        taken.refuses_all.store(false, Ordering::SeqCst);
        let last = *registered.last().unwrap();
        while position().done.get() < last {
            taken.back.notify_one();
            yield_now().await;
        }
        let never = [1, 2, 6, 9].map(|index| registered[index]);
        registered.retain(|offset| !never.contains(offset));
        assert_eq!(*taken.told.lock(), registered);
        let aside = position().set_aside;
        let records = aside.newest.iter().map(|item| item.record.unwrap().get());
        assert_eq!(records.collect::<Vec<_>>(), never);
        let statuses: Vec<_> = aside.newest.iter().map(|item| item.status).collect();
        assert_eq!(statuses, [Some(413), Some(413), None, Some(413)]);
        let ids = taken.ids.lock().clone();
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len(), "each part has an id of its own: {ids:?}");
        keeping.abort();
    }

    #[tokio::test]
    async fn a_position_never_goes_back() {
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new(Clock::manual(1)));
        let engine = open(&log).await;
        for (done, fine) in [(5, true), (5, true), (4, false), (6, true)] {
            let position = Position { done: Offset::new(done), ..Position::default() };
            let advance = Advance { to: "x".to_owned(), position };
            let told = engine.propose(Origin::server(), advance).await;
            assert_eq!(told.is_ok(), fine, "{done}");
        }
        let position = engine.state().deliveries.position("x").map(|position| position.done);
        assert_eq!(position, Some(Offset::new(6)));
    }

    #[test]
    fn tries_come_further_and_further_apart_up_to_a_bound() {
        let mut retry = Retry::default();
        let waits: Vec<_> = (0..40).map(|_| retry.next()).collect();
        let (first, longest) = limits::DELIVERY_RETRY;
        assert!(waits[0] >= first / 2 && waits[0] <= first, "{waits:?}");
        assert!(waits[20..].iter().all(|wait| *wait >= longest / 2 && *wait <= longest));
    }
}
