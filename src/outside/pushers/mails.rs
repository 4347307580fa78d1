//! Mail about missed messages: when it is due, and how it is sent.
//!
//! For each mail pusher with unread events, the oldest of these is remembered, and when a mail is
//! due: after some time in which the user may read them, and not too soon after the last mail. When
//! it is due, the mail lists everything that is unread at that moment. If the oldest event was read
//! meanwhile, the mail is put off until the next one is due, or dropped.
//!
//! Only sent mail is in the log: `pusher.mail` records how far, as soon as the mail server has
//! accepted the mail. So nothing is sent twice, except for mail that was accepted just before the
//! server was killed. After a start, pending mail is found without reading events: the first event
//! in the user's rooms after the last mail may be unread, and is examined when the mail is due.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use ruma::UserId;
use tokio::{
    sync::{Notify, Semaphore},
    task::yield_now,
    time::timeout,
};
use tracing::{error, info, warn};

use super::{missed::MissedSince, unsubscribe};
use crate::{
    delivery::Retry,
    mail::{Digest, Messages, cut},
};
use logcabin_base::{
    clock::millis,
    limits,
    metrics::metrics,
    shutdown::Shutdown,
    signed::Signer,
    threads,
    timers::{self, Timed},
    traces::traces,
};
use logcabin_config::{Email, Push};
use logcabin_decide::pusher::NoteMailed;
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_read::notifications::Unread;
use logcabin_record::{Offset, Origin, pusher::PusherMail, threepid::Medium};
use logcabin_state::State;
use logcabin_state::{Mailed, Pusher};

/// Sends mail about missed messages.
pub struct Mails {
    engine: Arc<Engine>,
    unread: Arc<Unread>,
    messages: Arc<Messages>,
    signer: Signer,
    /// The address of links that end such mail, without the token.
    unsubscribe_url: String,
    schedule: Schedule,
    waiting: Mutex<Waiting>,
    /// Notified when a mail may be due earlier than before.
    changed: Notify,
    /// Half of the mail server's concurrency: users wait for the other mail.
    turns: Arc<Semaphore>,
    turn_count: u32,
    /// The timeout of handing over a mail.
    patience: Duration,
    shutdown: Shutdown,
}

/// The pauses before mail, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    delay_ms: u64,
    interval_ms: u64,
    longest_ms: u64,
}

impl Schedule {
    /// When a mail about something that came at `came_ms` is due, given the last mail.
    fn due_ms(&self, oldest_ms: u64, mailed: Option<&Mailed>) -> u64 {
        let unread_for_a_while = oldest_ms.saturating_add(self.delay_ms);
        let not_too_soon = mailed.map_or(0, |mailed| {
            let doubled = if mailed.read { 0 } else { mailed.in_a_row.saturating_sub(1).min(32) };
            let interval_ms = self.interval_ms.saturating_mul(1 << doubled);
            mailed.at_ms.saturating_add(interval_ms.min(self.longest_ms.max(self.interval_ms)))
        });
        unread_for_a_while.max(not_too_soon)
    }
}

/// The number of the next mail, from 1, since the user read anything.
fn next_in_a_row(mailed: Option<&Mailed>) -> u32 {
    match mailed {
        Some(mailed) if !mailed.read => mailed.in_a_row.saturating_add(1),
        _ => 1,
    }
}

/// The pushers with unread events, by the records that they were first set with.
#[derive(Debug, Default)]
struct Waiting {
    all: BTreeMap<Offset, PendingMail>,
    due: BTreeSet<(u64, Offset)>,
}

#[derive(Debug)]
struct PendingMail {
    oldest: UnreadRecord,
    newest: UnreadRecord,
    /// The first records that the mail is about, if requests are traced.
    causes: Vec<Offset>,
    /// `None` while a mail is being built.
    due_ms: Option<u64>,
    retry: Retry,
    failed: u64,
    /// A mail that was handed over and is not recorded yet.
    unnoted: Option<PusherMail>,
}

/// A record that may be unread, and its time in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UnreadRecord {
    offset: Offset,
    time_ms: u64,
}

impl PendingMail {
    fn is_about(&mut self, record: Offset) {
        if traces().is_some() && self.causes.len() < limits::TRACE_FOLLOWERS {
            self.causes.push(record);
        }
    }
}

impl Waiting {
    /// Adds something unread. If there was something before, its time counts, because the oldest
    /// decides. Returns whether there was nothing before.
    fn add(&mut self, pusher: Offset, news: UnreadRecord, due_ms: u64) -> bool {
        if let Some(wait) = self.all.get_mut(&pusher) {
            if news.offset > wait.newest.offset {
                wait.newest = news;
                wait.is_about(news.offset);
            }
            return false;
        }
        let mut wait = PendingMail {
            oldest: news,
            newest: news,
            causes: Vec::new(),
            due_ms: None,
            retry: Retry::default(),
            failed: 0,
            unnoted: None,
        };
        wait.is_about(news.offset);
        self.all.insert(pusher, wait);
        self.put(pusher, due_ms);
        true
    }

    fn put(&mut self, pusher: Offset, due_ms: u64) {
        if let Some(wait) = self.all.get_mut(&pusher) {
            if let Some(before) = wait.due_ms.replace(due_ms) {
                self.due.remove(&(before, pusher));
            }
            self.due.insert((due_ms, pusher));
        }
    }

    /// Takes one that is due, until its result is reported.
    fn begin(&mut self, now_ms: u64) -> Option<Offset> {
        let (due_ms, pusher) = *self.due.first()?;
        if due_ms > now_ms {
            return None;
        }
        self.due.remove(&(due_ms, pusher));
        if let Some(wait) = self.all.get_mut(&pusher) {
            wait.due_ms = None;
        }
        Some(pusher)
    }

    /// Everything up to `at` was sent, or need not be.
    fn settle(&mut self, pusher: Offset, at: Offset, due_ms: impl Fn(u64) -> u64) {
        let Some(wait) = self.all.get_mut(&pusher) else { return };
        if wait.newest.offset <= at {
            self.forget(pusher);
            return;
        }
        // More arrived meanwhile.
        (wait.oldest, wait.retry, wait.failed, wait.unnoted) =
            (wait.newest, Retry::default(), 0, None);
        wait.causes.retain(|cause| *cause > at);
        let due_ms = due_ms(wait.oldest.time_ms);
        self.put(pusher, due_ms);
    }

    fn forget(&mut self, pusher: Offset) {
        if let Some(due_ms) = self.all.remove(&pusher).and_then(|wait| wait.due_ms) {
            self.due.remove(&(due_ms, pusher));
        }
    }
}

/// The result of a mail that was due.
enum MailOutcome {
    /// Everything up to here was sent, or need not be.
    Done(Offset),
    /// The oldest was read; this is the oldest now.
    Later(UnreadRecord),
    /// The pusher is gone.
    Gone,
    /// The server shuts down.
    Stopping,
    Failed {
        reason: String,
        permanent: bool,
    },
}

impl From<ReadError> for MailOutcome {
    fn from(error: ReadError) -> Self {
        Self::Failed { reason: error.to_string(), permanent: false }
    }
}

impl Mails {
    /// `None` if no mail can be sent.
    pub fn new(
        (push, email): (&Push, &Email),
        engine: &Arc<Engine>,
        unread: &Arc<Unread>,
        messages: &Arc<Messages>,
        (signer, unsubscribe_url): (Signer, String),
        shutdown: &Shutdown,
    ) -> Option<Arc<Self>> {
        if !messages.reach(Medium::Email) {
            return None;
        }
        let turn_count = u32::try_from(email.concurrent / 2).unwrap_or(u32::MAX).max(1);
        let ms = |seconds: u64| seconds.saturating_mul(1000);
        Some(Arc::new(Self {
            engine: Arc::clone(engine),
            unread: Arc::clone(unread),
            messages: Arc::clone(messages),
            signer,
            unsubscribe_url,
            schedule: Schedule {
                delay_ms: ms(push.email_delay_seconds),
                interval_ms: ms(push.email_interval_seconds),
                longest_ms: ms(push.email_max_interval_seconds),
            },
            waiting: Mutex::default(),
            changed: Notify::new(),
            turns: Arc::new(Semaphore::new(turn_count as usize)),
            turn_count,
            patience: Duration::from_secs(email.timeout_seconds),
            shutdown: shutdown.clone(),
        }))
    }

    /// Finds mail that was pending when the server ended, and sends what is due until it shuts
    /// down.
    pub(super) async fn run(self: Arc<Self>) {
        for pusher in self.engine.state().pushers.all().iter().filter(|pusher| pusher.is_mail()) {
            let at = self.engine.head().offset();
            if let Some(offset) = self.look(&self.engine.state(), pusher, at).candidate() {
                match self.engine.events().time_of(offset) {
                    Ok(time_ms) => self.add(pusher, offset, time_ms.unwrap_or_default()),
                    // It is examined when it is due.
                    Err(_) => self.add(pusher, offset, 0),
                }
            }
            if self.shutdown.is_given() {
                return;
            }
            yield_now().await;
        }
        let (clock, shutdown) = (self.engine.clock().clone(), self.shutdown.clone());
        timers::keep(DueMails(self), clock, shutdown).await;
    }

    /// Waits until mail in progress is accepted and recorded, and starts no more.
    pub(super) async fn finish(&self) {
        let _ = timeout(self.patience, self.turns.acquire_many(self.turn_count)).await;
    }

    /// The record at `offset`, of this time, may be unread.
    pub(super) fn add(&self, pusher: &Pusher, offset: Offset, time_ms: u64) {
        if offset <= pusher.mailed_up_to() {
            return;
        }
        let due_ms = self.schedule.due_ms(time_ms, pusher.mailed.as_ref());
        if self.waiting.lock().add(pusher.since, UnreadRecord { offset, time_ms }, due_ms) {
            self.changed.notify_one();
        }
    }

    /// How many mails are to be sent, and for how many milliseconds the first has been due.
    pub(super) fn backlog(&self) -> (usize, u64) {
        let waiting = self.waiting.lock();
        let now_ms = self.engine.clock().now_ms();
        let late_ms = waiting.due.first().map_or(0, |(due_ms, _)| now_ms.saturating_sub(*due_ms));
        (waiting.all.len(), late_ms)
    }

    /// The user has read something: the next mail need not wait as long.
    pub(super) fn was_read(&self, user_id: &UserId) {
        for pusher in self.engine.state().pushers.of_user(user_id) {
            let mut waiting = self.waiting.lock();
            let Some(wait) = waiting.all.get(&pusher.since) else { continue };
            if wait.due_ms.is_some() && wait.failed == 0 {
                let due_ms = self.schedule.due_ms(wait.oldest.time_ms, pusher.mailed.as_ref());
                waiting.put(pusher.since, due_ms);
                self.changed.notify_one();
            }
        }
    }

    fn look<'a>(&'a self, state: &'a State, pusher: &'a Pusher, at: Offset) -> MissedSince<'a> {
        MissedSince {
            state,
            events: self.engine.events(),
            unread: &self.unread,
            user_id: &pusher.body.user_id,
            after: pusher.mailed_up_to(),
            at,
        }
    }

    /// Builds and sends the mail of a pusher for which one is due.
    async fn work(self: &Arc<Self>, since: Offset) {
        let made = AssertUnwindSafe(self.make(since)).catch_unwind().await;
        let made = made.unwrap_or_else(|_| {
            error!("making a mail about what was missed panicked");
            MailOutcome::Failed { reason: "it panicked".to_owned(), permanent: true }
        });
        let pusher = self.engine.state().pushers.get(since);
        let mailed = pusher.as_ref().and_then(|pusher| pusher.mailed);
        let due_ms = |time_ms| self.schedule.due_ms(time_ms, mailed.as_ref());
        let mut waiting = self.waiting.lock();
        match made {
            MailOutcome::Done(at) => waiting.settle(since, at, due_ms),
            MailOutcome::Later(oldest) => {
                if let Some(wait) = waiting.all.get_mut(&since) {
                    wait.oldest = oldest;
                    wait.causes.retain(|cause| *cause >= oldest.offset);
                }
                waiting.put(since, due_ms(oldest.time_ms));
            }
            MailOutcome::Gone => waiting.forget(since),
            MailOutcome::Stopping => {}
            MailOutcome::Failed { reason, permanent } => {
                let Some(wait) = waiting.all.get_mut(&since) else { return };
                wait.failed += 1;
                let again = wait.retry.next_within(limits::MAIL_RETRY);
                let again = if permanent { limits::MAIL_RETRY.1 } else { again };
                let again_in_ms = millis(again);
                let user_id = pusher.as_ref().map(|pusher| pusher.body.user_id.as_str());
                let failed = wait.failed;
                warn!(user_id, failed, again_in_ms, reason, "a mail could not be sent");
                waiting.put(since, self.engine.clock().now_ms().saturating_add(again_in_ms));
            }
        }
        drop(waiting);
        self.changed.notify_one();
    }

    async fn make(self: &Arc<Self>, since: Offset) -> MailOutcome {
        if self.shutdown.is_given() {
            return MailOutcome::Stopping;
        }
        let unnoted = self.waiting.lock().all.get(&since).and_then(|wait| wait.unnoted.clone());
        if let Some(mail) = unnoted {
            return self.note(mail).await;
        }
        let state = self.engine.state();
        let Some(pusher) = state.pushers.get(since) else { return MailOutcome::Gone };
        let at = self.engine.head().offset();
        let user_id = &pusher.body.user_id;
        if state.accounts.standing(user_id).is_none_or(|standing| standing.locked)
            || pusher.body.disabled
        {
            return MailOutcome::Done(at);
        }
        let (this, looking) = (Arc::clone(self), Arc::clone(&pusher));
        // Rooms without cached counts are read through.
        let written = threads::spawn_blocking(move || this.write(&looking, at)).await;
        let digest = match written {
            Ok(Ok(Some(written))) => written,
            Ok(Ok(None)) => return MailOutcome::Done(at),
            Ok(Err(made)) => return made,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        let began = Instant::now();
        let sent = self.messages.send_digest(&pusher.body.ids.pushkey, &digest).await;
        let causes = self.waiting.lock().all.get(&since).map(|wait| wait.causes.clone());
        self.engine.head().traced().tell(causes.unwrap_or_default(), "mail", began);
        let outcome = if sent.is_ok() { "arrived" } else { "failed" };
        metrics().delivery_attempts.with_label_values(&[super::MAIL, outcome]).inc();
        if let Err(error) = sent {
            return MailOutcome::Failed {
                permanent: error.is_permanent(),
                reason: error.to_string(),
            };
        }
        let mail = PusherMail {
            user_id: user_id.clone(),
            pusher: since,
            up_to: at,
            in_a_row: next_in_a_row(pusher.mailed.as_ref()),
        };
        self.note(mail).await
    }

    async fn note(&self, mail: PusherMail) -> MailOutcome {
        let (user_id, since, at) = (mail.user_id.clone(), mail.pusher, mail.up_to);
        match self.engine.propose(Origin::server(), NoteMailed(mail.clone())).await {
            Ok(noted) => {
                let is_there = noted.into_inner();
                info!(%user_id, "sent a mail about what was missed");
                if is_there { MailOutcome::Done(at) } else { MailOutcome::Gone }
            }
            Err(error) => {
                // The mail is sent: only this is tried again.
                if let Some(wait) = self.waiting.lock().all.get_mut(&since) {
                    wait.unnoted = Some(mail);
                }
                MailOutcome::Failed { reason: error.to_string(), permanent: false }
            }
        }
    }

    /// The mail that is due now; `None` if nothing is unread.
    fn write(&self, pusher: &Pusher, at: Offset) -> Result<Option<Digest>, MailOutcome> {
        let state = self.engine.state();
        let look = self.look(&state, pusher, at);
        let missed = look.missed()?;
        let Some(offset) = missed.first() else { return Ok(None) };
        let time_ms = self.engine.events().time_of(offset)?.unwrap_or_default();
        let due_ms = self.schedule.due_ms(time_ms, pusher.mailed.as_ref());
        if due_ms > self.engine.clock().now_ms() {
            return Err(MailOutcome::Later(UnreadRecord { offset, time_ms }));
        }
        let data = &pusher.body.data;
        let brand = data.get("brand").and_then(serde_json::Value::as_str);
        let app = brand.unwrap_or(&pusher.body.app_display_name);
        let token = unsubscribe::token(&self.signer, pusher)
            .map_err(|error| MailOutcome::Failed { reason: error.to_string(), permanent: true })?;
        let digest = Digest {
            rooms: look.rooms(&missed)?,
            more_rooms: missed.more_rooms(),
            messages: missed.messages(),
            invites: look.invites(&missed)?,
            more_invites: missed.more_invites(),
            app: cut(app, limits::MAIL_NAME_CHARS),
            unsubscribe: format!("{}?token={token}", self.unsubscribe_url),
        };
        Ok(Some(digest))
    }
}

/// The mails that are due.
struct DueMails(Arc<Mails>);

impl Timed for DueMails {
    fn next_ms(&self) -> Option<u64> {
        self.0.waiting.lock().due.first().map(|(due_ms, _)| *due_ms)
    }

    async fn changed(&mut self) {
        self.0.changed.notified().await;
    }

    async fn fire(&self, now_ms: u64) {
        // The semaphore is never closed.
        while let Ok(turn) = Arc::clone(&self.0.turns).acquire_owned().await {
            let Some(since) = self.0.waiting.lock().begin(now_ms) else { return };
            let mails = Arc::clone(&self.0);
            tokio::spawn(async move {
                mails.work(since).await;
                drop(turn);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    const SCHEDULE: Schedule =
        Schedule { delay_ms: 10 * MINUTE, interval_ms: 20 * MINUTE, longest_ms: 60 * MINUTE };

    fn mailed(in_a_row: u32, read: bool) -> Mailed {
        let (record, up_to) = (Offset::new(9), Offset::new(8));
        Mailed { record, at_ms: 100 * MINUTE, up_to, in_a_row, read }
    }

    #[test]
    fn mail_waits_for_the_reader_and_longer_the_longer_they_read_nothing() {
        let due = |oldest: u64, mailed: Option<Mailed>| {
            SCHEDULE.due_ms(oldest * MINUTE, mailed.as_ref()) / MINUTE
        };
        assert_eq!(due(50, None), 60);
        for (in_a_row, read, expected) in [
            (1, false, 120),
            (2, false, 140),
            (3, false, 160),
            (4, false, 160),
            (u32::MAX, false, 160),
            (3, true, 120),
        ] {
            assert_eq!(due(101, Some(mailed(in_a_row, read))), expected, "{in_a_row} {read}");
        }
        // An event long after the last mail only waits for its reader.
        assert_eq!(due(900, Some(mailed(4, false))), 910);
        let longest_ms = 0;
        let schedule = Schedule { longest_ms, ..SCHEDULE };
        let interval_ms = schedule.due_ms(0, Some(&mailed(3, false))) - 100 * MINUTE;
        assert_eq!(interval_ms, SCHEDULE.interval_ms, "no bound makes it shorter");
    }

    #[test]
    fn mails_are_counted_until_something_is_read() {
        assert_eq!(next_in_a_row(None), 1);
        assert_eq!(next_in_a_row(Some(&mailed(1, false))), 2);
        assert_eq!(next_in_a_row(Some(&mailed(5, true))), 1);
    }

    fn something(offset: u64) -> UnreadRecord {
        UnreadRecord { offset: Offset::new(offset), time_ms: offset }
    }

    #[test]
    fn what_came_while_a_mail_was_made_is_due_after_it() {
        let (mut waiting, one, two) = (Waiting::default(), Offset::new(1), Offset::new(2));
        assert!(waiting.add(one, something(10), 110));
        assert!(waiting.add(two, something(11), 105));
        assert!(!waiting.add(one, something(12), 1));
        assert_eq!(waiting.begin(104), None);
        assert_eq!(waiting.begin(200), Some(two));
        assert_eq!(waiting.begin(200), Some(one));
        assert_eq!(waiting.begin(200), None);
        // The second has nothing unread; the first only what mail does not list.
        waiting.settle(two, Offset::new(11), |time_ms| time_ms + 100);
        waiting.add(one, something(30), 1);
        waiting.settle(one, Offset::new(20), |time_ms| time_ms + 100);
        assert_eq!(waiting.due.iter().copied().collect::<Vec<_>>(), [(130, one)]);
        assert_eq!(waiting.all.len(), 1);
        waiting.forget(one);
        assert!(waiting.all.is_empty() && waiting.due.is_empty());
    }
}
