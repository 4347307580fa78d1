//! Turns for long work that others cause, such as state resolution for other homeservers. The
//! asker that used least lately comes first, so nobody waits behind the one that uses most.
//!
//! Work has two parties: its asker (a homeserver), and its subject (a room). Somebody may have many
//! server names, or use many rooms; neither helps while the other is the same.
//!
//! Work that has begun holds memory while it pauses, so only a little may have begun at a time. If
//! the first in the queue cannot begin for that reason, the last of the work that has begun is
//! given up for it, and has to be asked for again.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tracing::warn;

use super::{background::stand_back, clock::processor_time, limits, metrics::metrics, threads};

/// The work that is in progress, and that which waits.
#[derive(Debug)]
pub struct FairQueue {
    inner: Mutex<Inner>,
    /// How much waits, readable without the lock.
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct Inner {
    /// How much may be in progress at a time, and how much is.
    places: usize,
    running: usize,
    /// How much has begun: it is in progress, or paused.
    begun: usize,
    /// The subjects of the work that has begun.
    busy: HashSet<Arc<str>>,
    waiting: Vec<Waiting>,
    last: u64,
    used: HashMap<ChargedParty, Used>,
}

#[derive(Clone, Debug)]
struct Work {
    asker: Arc<str>,
    subject: Arc<str>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    work: Work,
    /// Whether it has begun already.
    paused: bool,
    /// Tells it to go on, or to give up.
    wake: oneshot::Sender<bool>,
}

/// What happens next to the entry at a position in the queue.
enum Next {
    Begins(usize),
    GoesOn(usize),
    GivesUp(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ChargedParty {
    Asker(Arc<str>),
    Subject(Arc<str>),
}

/// Processor time that was used lately: old use decays.
#[derive(Clone, Copy, Debug)]
struct Used {
    seconds: f64,
    at: Instant,
}

impl Used {
    fn now(&self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.seconds * (-since / limits::TURNS_WINDOW.as_secs_f64()).exp()
    }
}

type Rank = (bool, u128, u128);

/// Whether work that has begun is given up for work of a better rank. The ranks must be far apart,
/// or each would begin again for the other, and none would ever end.
const fn is_far_behind(worse: Rank, better: Rank) -> bool {
    (worse.0 && !better.0) || worse.1 > FAR_BEHIND + 2 * better.1
}

/// In slices: a second.
const FAR_BEHIND: u128 = 1000 / limits::TURNS_SLICE.as_millis();

/// Payers that use more than this part of a processor come last.
const SHARE: f64 = 0.25;

/// Payers that are remembered before those that have used next to nothing lately are forgotten.
const PARTIES: usize = 10_000;

impl FairQueue {
    pub(crate) fn new(places: usize) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                places: places.max(1),
                running: 0,
                begun: 0,
                busy: HashSet::new(),
                waiting: Vec::new(),
                last: 0,
                used: HashMap::new(),
            }),
            waiting: AtomicUsize::new(0),
        })
    }

    /// For half of the processors.
    pub fn on_half() -> Arc<Self> {
        Self::new(thread::available_parallelism().map_or(1, usize::from) / 2)
    }

    /// Waits for a turn. Two turns are never about the same subject at the same time.
    pub async fn turn(self: &Arc<Self>, asker: &str, subject: &str) -> WorkTurn {
        let work = Work { asker: asker.into(), subject: subject.into() };
        let (number, woken) = self.queue(&work, false, &mut self.inner.lock());
        let mut ticket = Ticket { turns: Arc::clone(self), work, number, is_used: false };
        // A waiting one is woken before it is removed.
        let _ = woken.await;
        ticket.is_used = true;
        let (turns, work) = (Arc::clone(self), ticket.work.clone());
        WorkTurn { turns, work, meter: Cell::default(), goes_on: Cell::new(true) }
    }

    /// The processor time that was used for an asker lately: old use decays.
    pub fn used(&self, asker: &str) -> Duration {
        let used = self.inner.lock().used.get(&ChargedParty::Asker(asker.into())).copied();
        let seconds = used.map_or(0.0, |used| used.now(Instant::now()));
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    /// How much is in progress and waits.
    #[cfg(test)]
    pub(crate) fn load(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.running, inner.waiting.len())
    }

    fn queue(
        &self,
        work: &Work,
        paused: bool,
        inner: &mut Inner,
    ) -> (u64, oneshot::Receiver<bool>) {
        let (wake, woken) = oneshot::channel();
        inner.last += 1;
        let number = inner.last;
        inner.waiting.push(Waiting { number, work: work.clone(), paused, wake });
        self.wake(inner);
        (number, woken)
    }

    /// Gives free places to the first of the queue.
    fn wake(&self, inner: &mut Inner) {
        while inner.running < inner.places {
            let Some(next) = inner.next() else { break };
            let (Next::Begins(place) | Next::GoesOn(place) | Next::GivesUp(place)) = next;
            let Waiting { work, wake, .. } = inner.waiting.remove(place);
            inner.running += 1;
            if matches!(next, Next::Begins(_)) {
                inner.begun += 1;
                inner.busy.insert(work.subject);
            }
            // If nobody waits for it any more, its ticket gives the place back.
            let _ = wake.send(!matches!(next, Next::GivesUp(_)));
        }
        self.waiting.store(inner.waiting.len(), Ordering::Relaxed);
        metrics().federation_preparing.set(i64::try_from(inner.waiting.len()).unwrap_or(i64::MAX));
    }
}

impl Inner {
    /// The first of the queue, or the one that gives up for it.
    fn next(&self) -> Option<Next> {
        let now = Instant::now();
        let may = |waiting: &Waiting| waiting.paused || !self.busy.contains(&waiting.work.subject);
        let ready = self.waiting.iter().enumerate().filter(|(_, waiting)| may(waiting));
        let ranked = ready.map(|(place, waiting)| {
            (self.rank(&waiting.work, now), waiting.number, waiting.paused, place)
        });
        let ranked: Vec<_> = ranked.collect();
        let (rank, _, paused, place) = *ranked.iter().min()?;
        let pausing = || ranked.iter().filter(|(_, _, paused, _)| *paused);
        if paused {
            Some(Next::GoesOn(place))
        } else if self.begun < self.places + limits::TURNS_PAUSED {
            Some(Next::Begins(place))
        } else if let Some(worst) = pausing().max().filter(|worst| is_far_behind(worst.0, rank)) {
            Some(Next::GivesUp(worst.3))
        } else {
            pausing().min().map(|(.., place)| Next::GoesOn(*place))
        }
    }

    /// Whether it is over its share, how many slices were used for its asker or its subject,
    /// whichever is more, and how many for its asker. The lowest comes first.
    fn rank(&self, work: &Work, now: Instant) -> Rank {
        let of = |party: ChargedParty| self.used.get(&party).map_or(0.0, |used| used.now(now));
        let asker = of(ChargedParty::Asker(Arc::clone(&work.asker)));
        let seconds = asker.max(of(ChargedParty::Subject(Arc::clone(&work.subject))));
        let share = seconds / limits::TURNS_WINDOW.as_secs_f64();
        let slices = |seconds| {
            let used = Duration::try_from_secs_f64(seconds).unwrap_or_default();
            used.as_millis() / limits::TURNS_SLICE.as_millis()
        };
        (share > SHARE, slices(seconds), slices(asker))
    }

    fn end(&mut self, work: &Work) {
        self.running -= 1;
        self.begun -= 1;
        self.busy.remove(&work.subject);
    }

    fn charge(&mut self, work: &Work, time: Duration) {
        let now = Instant::now();
        if self.used.len() >= PARTIES {
            self.used.retain(|_, used| used.now(now) > 0.01);
        }
        let parties = [
            ChargedParty::Asker(Arc::clone(&work.asker)),
            ChargedParty::Subject(Arc::clone(&work.subject)),
        ];
        for party in parties {
            let used = self.used.entry(party).or_insert(Used { seconds: 0.0, at: now });
            *used = Used { seconds: used.now(now) + time.as_secs_f64(), at: now };
        }
        metrics().federation_preparation.inc_by(time.as_secs_f64());
    }
}

/// A place in the queue.
struct Ticket {
    turns: Arc<FairQueue>,
    work: Work,
    number: u64,
    is_used: bool,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_used {
            return;
        }
        let mut inner = self.turns.inner.lock();
        let place = inner.waiting.iter().position(|waiting| waiting.number == self.number);
        match place {
            Some(place) => drop(inner.waiting.remove(place)),
            None => inner.end(&self.work),
        }
        self.turns.wake(&mut inner);
    }
}

/// The right to work. Others may come in between: see [`WorkTurn::run`].
#[derive(Debug)]
pub struct WorkTurn {
    turns: Arc<FairQueue>,
    work: Work,
    /// The processor time of its thread at the last charge, while it works.
    meter: Cell<Option<Duration>>,
    /// Cleared when it is given up.
    goes_on: Cell<bool>,
}

impl WorkTurn {
    /// Does the work on a thread of its own, at low priority. `work` gets a function to call about
    /// every millisecond, which lets others work if it is their turn. When that returns `false`,
    /// `work` must give up. Returns whether it did not.
    pub async fn run(self, work: impl FnOnce(&dyn Fn() -> bool) + Send + 'static) -> bool {
        let (done, finished) = oneshot::channel();
        let run = move || {
            stand_back();
            self.meter.set(Some(processor_time()));
            work(&|| self.pause());
            let goes_on = self.goes_on.get();
            drop(self);
            // The waiting task may be gone.
            let _ = done.send(goes_on);
        };
        match threads::spawn("resolution", run) {
            // A panic drops the sender, which ends the wait.
            Ok(()) => finished.await.unwrap_or(true),
            Err(error) => {
                warn!(%error, "cannot start a thread to resolve a state in advance");
                true
            }
        }
    }

    /// Charges for work that other threads did in this turn.
    pub fn took(&self, time: Duration) {
        self.turns.inner.lock().charge(&self.work, time);
    }

    /// Charges the use since the last charge, if it is at least `at_least`.
    fn charge(&self, at_least: Duration, inner: &mut Inner) -> bool {
        let Some(before) = self.meter.get() else { return false };
        let now = processor_time();
        let time = now.saturating_sub(before);
        if time < at_least {
            return false;
        }
        self.meter.set(Some(now));
        inner.charge(&self.work, time);
        true
    }

    /// Lets others work if they come first. Returns whether to go on.
    fn pause(&self) -> bool {
        if self.turns.waiting.load(Ordering::Relaxed) == 0 || !self.goes_on.get() {
            return self.goes_on.get();
        }
        let woken = {
            let mut inner = self.turns.inner.lock();
            if !self.charge(limits::TURNS_SLICE, &mut inner) {
                return true;
            }
            inner.running -= 1;
            self.turns.queue(&self.work, true, &mut inner).1
        };
        self.goes_on.set(woken.blocking_recv().unwrap_or(true));
        self.goes_on.get()
    }
}

impl Drop for WorkTurn {
    fn drop(&mut self) {
        let mut inner = self.turns.inner.lock();
        self.charge(Duration::ZERO, &mut inner);
        inner.end(&self.work);
        self.turns.wake(&mut inner);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{atomic::AtomicBool, mpsc};

    use super::*;

    fn charge(turns: &FairQueue, asker: &str, subject: &str, millis: u64) {
        let work = Work { asker: asker.into(), subject: subject.into() };
        turns.inner.lock().charge(&work, Duration::from_millis(millis));
    }

    /// The askers that wait, in the order in which they get their turns.
    async fn order(turns: &Arc<FairQueue>, waiting: &[(&str, &str)]) -> Vec<String> {
        let first = turns.turn("first", "first").await;
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        for (number, (asker, subject)) in waiting.iter().enumerate() {
            let (turns, tell) = (Arc::clone(turns), tell.clone());
            let (asker, subject) = ((*asker).to_owned(), (*subject).to_owned());
            let waits = number + 1;
            tokio::spawn({
                let turns = Arc::clone(&turns);
                async move {
                    let turn = turns.turn(&asker, &subject).await;
                    tell.send(asker).unwrap();
                    drop(turn);
                }
            });
            while turns.load().1 < waits {
                tokio::task::yield_now().await;
            }
        }
        drop((first, tell));
        let mut order = Vec::new();
        while let Some(asker) = told.recv().await {
            order.push(asker);
        }
        order
    }

    #[tokio::test]
    async fn the_asker_that_used_least_comes_first_and_all_get_a_turn() {
        let turns = FairQueue::new(1);
        charge(&turns, "greedy", "!a", 4000);
        charge(&turns, "some", "!b", 500);
        let waiting = [("greedy", "!c"), ("greedy", "!d"), ("some", "!e"), ("new", "!f")];
        assert_eq!(order(&turns, &waiting).await, ["new", "some", "greedy", "greedy"]);
        assert_eq!(turns.load(), (0, 0));
    }

    #[tokio::test]
    async fn a_new_name_does_not_help_in_the_same_room() {
        let turns = FairQueue::new(1);
        charge(&turns, "greedy", "!a", 4000);
        let waiting = [("another", "!a"), ("new", "!b")];
        assert_eq!(order(&turns, &waiting).await, ["new", "another"]);
    }

    #[tokio::test]
    async fn a_cancelled_wait_holds_nobody_up() {
        let turns = FairQueue::new(1);
        let first = turns.turn("a", "!a").await;
        {
            let gone = turns.turn("b", "!b");
            tokio::pin!(gone);
            assert!(futures_util::poll!(&mut gone).is_pending());
            assert_eq!(turns.load(), (1, 1));
        }
        assert_eq!(turns.load(), (1, 0));
        let mut late = Box::pin(turns.turn("c", "!c"));
        assert!(futures_util::poll!(&mut late).is_pending());
        drop(first);
        // It has the place, and nobody takes it.
        assert_eq!(turns.load(), (1, 0));
        drop(late);
        assert_eq!(turns.load(), (0, 0));
    }

    #[tokio::test]
    async fn long_work_lets_others_in_between() {
        let turns = FairQueue::new(1);
        let long = turns.turn("long", "!long").await;
        let (began, begun) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let of_long = tell.clone();
        let long = tokio::spawn(long.run(move |pause| {
            let _ = began.send(());
            let (until, mut sum) = (Instant::now() + Duration::from_secs(60), 0_u64);
            // Works until the other one was in between.
            while of_long.send("long").is_ok() && Instant::now() < until {
                let paused = Instant::now();
                assert!(pause(), "there is room for both");
                if paused.elapsed() > limits::TURNS_SLICE {
                    return;
                }
                sum = std::hint::black_box(sum + 1);
            }
            panic!("nobody came in between");
        }));
        begun.await.unwrap();
        let short = turns.turn("short", "!short").await;
        let blocked = move |_: &dyn Fn() -> bool| {
            thread::sleep(2 * limits::TURNS_SLICE);
            tell.send("short").unwrap();
        };
        short.run(blocked).await;
        long.await.unwrap();
        assert!(told.iter().any(|which| which == "short"));
        assert_eq!(turns.load(), (0, 0));
    }

    #[test]
    fn an_asker_over_a_quarter_of_a_processor_gives_up_for_one_below_it() {
        let turns = FairQueue::new(1);
        let quarter = u64::try_from(limits::TURNS_WINDOW.as_millis() / 4).unwrap();
        let slice = u64::try_from(limits::TURNS_SLICE.as_millis()).unwrap();
        charge(&turns, "over", "!a", quarter + 2 * slice);
        charge(&turns, "below", "!b", quarter - 2 * slice);
        charge(&turns, "quiet", "!c", quarter - 8 * slice);
        let rank = |asker: &str| {
            let work = Work { asker: asker.into(), subject: "!new".into() };
            turns.inner.lock().rank(&work, Instant::now())
        };
        assert!(rank("quiet") < rank("below") && rank("below") < rank("over"));
        assert!(is_far_behind(rank("over"), rank("below")), "it has used little more");
        assert!(!is_far_behind(rank("below"), rank("quiet")), "both are within their share");
        assert!(!is_far_behind(rank("below"), rank("over")));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn little_work_is_begun_and_the_last_is_given_up_for_the_first() {
        let turns = FairQueue::new(1);
        let is_over = Arc::new(AtomicBool::new(false));
        let endless = |turn: WorkTurn| {
            let is_over = Arc::clone(&is_over);
            tokio::spawn(turn.run(
                move |pause| {
                    while pause() && !is_over.load(Ordering::Relaxed) {}
                },
            ))
        };
        let mut begun = Vec::new();
        for number in (0..1 + limits::TURNS_PAUSED).rev() {
            let (asker, subject) = (format!("greedy{number}"), format!("!{number}"));
            charge(&turns, &asker, &subject, 4000 + 2000 * number as u64);
            begun.push(endless(turns.turn(&asker, &subject).await));
        }
        let new = turns.turn("new", "!new").await;
        assert!(!begun.remove(0).await.unwrap(), "the asker that used most gives up");
        assert!(new.run(|pause| assert!(pause())).await);
        is_over.store(true, Ordering::Relaxed);
        for left in begun {
            assert!(left.await.unwrap());
        }
    }
}
