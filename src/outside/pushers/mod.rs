//! Notifications for sleeping devices and absent users: events that match a user's push rules go to
//! the push gateway of the app (client-server API, "Push notifications"; push gateway API). What
//! the user does not read goes to the user's e-mail address: see [`mails`].
//!
//! ```text
//! log → one follower: whom does this record notify? → a queue for each pusher → its gateway
//!          ↑                                                     │
//!          └── `pusher.advance`: how far all have told ←─────────┘
//! ```
//!
//! A queue contains positions in the log. A notification is built when it is sent, as of its
//! record; only the unread count is current. So a notification is neither written when an event is
//! sent nor stored, and an idle pusher costs nothing.
//!
//! Each pusher sends one notification after the other, in the order of the log. What its gateway
//! does not accept is retried, with growing pauses, until it is too old. The position of all
//! pushers is recorded some time after a notification arrived, and when the server stops. After
//! that, nothing is sent twice. If the server was killed, what arrived since the last note is sent
//! again, with the same event ids. Nothing is lost. While there are no pushers, nothing is
//! recorded.
//!
//! When a user has read something, only the count is sent. It is not recorded: a restart at that
//! moment leaves it to the next notification.

mod failing;
mod mails;
mod missed;
mod notification;
mod queues;
mod unsubscribe;

use std::{
    collections::HashMap,
    iter,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use http::{Method, StatusCode};
use parking_lot::Mutex;
use ruma::{
    OwnedUserId, UserId,
    events::{StateEventType, TimelineEventType},
};
use serde::Deserialize;
use tokio::{
    sync::{Notify, Semaphore},
    task::{JoinSet, yield_now},
    time::{sleep, timeout},
};
use tracing::{debug, error, warn};
use url::Url;

use crate::{
    delivery::Retry,
    outbound::{Outbound, OutboundRequest},
};
use failing::FailingGateways;
use logcabin_base::{background::at_length, limits, metrics::metrics, shutdown::Shutdown};
use logcabin_config::Push as Settings;
use logcabin_decide::pusher::{NoteTold, RemovePusher};
use logcabin_engine::Engine;
use logcabin_log::{ReadError, follow::Follow};
use logcabin_read::{
    events::{EventRef, EventStore},
    invites::is_shown,
    notifications::{Judge, Unread},
};
use logcabin_record::{Command, Offset, Origin, Record, pusher::PusherEnd};
use logcabin_state::{Membership, Pusher, Room, State};
use notification::NotifiedEvent;
use queues::{Item, Queues, Subject};

pub use failing::FailingGateway;
pub use mails::Mails;
pub use notification::EVENT_ID_ONLY;
pub use unsubscribe::unsubscription;

/// The path of every push gateway.
pub const NOTIFY_PATH: &str = "/_matrix/push/v1/notify";

/// The names under which the metrics know push gateways and mail about what was missed.
pub const PUSHERS: &str = "pushers";
pub const MAIL: &str = "mail";

/// Sends notifications to push gateways.
pub struct Pushers {
    engine: Arc<Engine>,
    unread: Arc<Unread>,
    /// The mail pushers, if mail can be sent.
    mails: Option<Arc<Mails>>,
    /// Reaches only public addresses, and those configured in addition.
    outbound: Outbound,
    give_up: Duration,
    shutdown: Shutdown,
    queues: Mutex<Queues>,
    /// For each gateway, the limit on concurrent requests.
    gateways: Mutex<HashMap<String, Arc<Semaphore>>>,
    at_once: Semaphore,
    /// Notified when a position is to be recorded.
    progress: Notify,
    /// What sends notifications at the moment.
    senders: Mutex<JoinSet<()>>,
    /// The last record that was examined; 0 while none is.
    at: AtomicU64,
    failing: FailingGateways,
}

/// What still has to be sent.
pub struct Backlog {
    /// Everything up to here was sent.
    pub told: Offset,
    /// How many notifications are queued.
    pub notifications: usize,
    /// How many mails are to be sent, and for how many milliseconds the first has been due.
    pub mails: Option<(usize, u64)>,
}

/// Ends what sends notifications when [`Pushers::run`] is dropped: another node sends them then.
/// What is queued is known from the log.
struct EndsSenders<'a>(&'a Pushers);

impl Drop for EndsSenders<'_> {
    fn drop(&mut self) {
        self.0.senders.lock().abort_all();
        self.0.at.store(0, Ordering::Relaxed);
        *self.0.queues.lock() = Queues::default();
    }
}

/// The position of the follower.
struct Follower {
    records: Follow,
    /// Everything up to here was examined.
    at: Offset,
    /// Up to here, only the pushers that lag have notifications left.
    told: Offset,
    /// The positions of those.
    behind: HashMap<Offset, Offset>,
    /// The last recorded position, or one that need not be recorded.
    noted: Offset,
    /// When the position is to be recorded.
    note_due: Option<Instant>,
    /// The users whose count is to be examined, and when.
    counts_due: HashMap<OwnedUserId, (Instant, Item)>,
}

impl Pushers {
    pub fn new(
        engine: &Arc<Engine>,
        unread: &Arc<Unread>,
        mails: Option<Arc<Mails>>,
        outbound: Outbound,
        settings: &Settings,
        shutdown: &Shutdown,
    ) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(engine),
            unread: Arc::clone(unread),
            mails,
            outbound,
            give_up: Duration::from_secs(settings.give_up_seconds),
            shutdown: shutdown.clone(),
            queues: Mutex::default(),
            gateways: Mutex::default(),
            at_once: Semaphore::new(limits::PUSHES_AT_ONCE as usize),
            progress: Notify::new(),
            senders: Mutex::default(),
            at: AtomicU64::new(0),
            failing: FailingGateways::default(),
        })
    }

    /// The gateways that could not be reached at the last attempt, the longest failing first.
    pub fn failing(&self) -> Vec<FailingGateway> {
        self.failing.all()
    }

    /// What still has to be sent; `None` if this process does not send anything.
    pub fn backlog(&self) -> Option<Backlog> {
        let at = Some(self.at.load(Ordering::Relaxed)).filter(|at| *at > 0)?;
        let (notifications, first) = self.queues.lock().waiting();
        let at = Offset::new(at);
        Some(Backlog {
            told: first.map_or(at, |first| first.prev().min(at)),
            notifications,
            mails: self.mails.as_ref().map(|mails| mails.backlog()),
        })
    }

    /// Follows the log and sends notifications until the server shuts down, and those in progress
    /// have arrived.
    pub async fn run(self: Arc<Self>) {
        let _ends = EndsSenders(&self);
        let mut follower = self.begin();
        // After that: the mail that it finds pending is up to the position from which the follower
        // starts, or beyond. In a set, which ends it if this is dropped.
        let mut mailing = JoinSet::new();
        if let Some(mails) = self.mails.clone() {
            mailing.spawn(mails.run());
        }
        while !self.shutdown.is_given() {
            self.at.store(follower.at.get(), Ordering::Relaxed);
            let read = AssertUnwindSafe(self.read_on(&mut follower)).catch_unwind().await;
            let failed = match read {
                Ok(Ok(())) => false,
                Ok(Err(error)) => {
                    warn!(%error, "notifications are blocked; retrying later");
                    true
                }
                Err(_) => {
                    // A record that cannot be notified of does not block later ones.
                    follower.at = follower.at.next();
                    error!(record = %follower.at, "notifying of a record panicked");
                    true
                }
            };
            self.at.store(follower.at.get(), Ordering::Relaxed);
            self.queue_counts(&mut follower);
            if follower.note_due.is_some_and(|due| due <= Instant::now()) {
                self.note(&mut follower).await;
            }
            let counts_due = follower.counts_due.values().map(|(due, _)| *due);
            let due = counts_due.chain(follower.note_due).min();
            tokio::select! {
                () = self.shutdown.given() => {}
                () = sleep(limits::TIMER_RETRY), if failed => {}
                _ = follower.records.reach(follower.at.next()), if !failed => {}
                () = sleep_until(due), if due.is_some() => {}
                () = self.progress.notified() => {
                    follower.note_due.get_or_insert_with(|| Instant::now() + limits::PUSH_NOTE);
                }
            }
        }
        // No new notifications start; those in progress get some time to arrive.
        let under_way = self.at_once.acquire_many(limits::PUSHES_AT_ONCE);
        let _ = timeout(limits::OUTBOUND_TIMEOUT, under_way).await;
        let is_news = self.progress.notified().now_or_never().is_some();
        if is_news || follower.note_due.is_some() {
            self.note(&mut follower).await;
        }
        if let Some(mails) = &self.mails {
            // It ends with the shutdown signal; a panic in it was logged, and affects nothing else.
            let _ = mailing.join_next().await;
            mails.finish().await;
        }
    }

    fn begin(&self) -> Follower {
        let state = self.engine.state();
        let told = state.pushers.told().unwrap_or_default();
        let behind: HashMap<_, _> = told.behind.into_iter().collect();
        let all = state.pushers.all().into_iter();
        let first = all.filter(|pusher| pusher.is_at_gateway()).map(|pusher| {
            let told = behind.get(&pusher.since).copied().unwrap_or(told.done);
            told.max(pusher.since)
        });
        let at = first.min().unwrap_or_else(|| self.engine.head().offset());
        Follower {
            records: self.engine.follow(at.next()).in_chunks_of(limits::DELIVERY_RECORDS),
            at,
            told: told.done,
            behind,
            noted: told.done,
            note_due: None,
            counts_due: HashMap::new(),
        }
    }

    /// Reads up to the head, and queues notifications.
    async fn read_on(self: &Arc<Self>, follower: &mut Follower) -> Result<(), ReadError> {
        let head = self.engine.head().offset();
        while follower.at < head && !self.shutdown.is_given() {
            if self.engine.state().pushers.is_empty() {
                // New pushers start with later records, so this need not be recorded either.
                (follower.at, follower.noted) = (head, head);
                break;
            }
            if follower.records.next_offset() != follower.at.next() {
                follower.records.skip_to(follower.at.next());
            }
            let some: Vec<_> = iter::from_fn(|| follower.records.ready().transpose())
                .take(limits::DELIVERY_RECORDS)
                .collect::<Result<_, _>>()?;
            // Each event is judged for every user in its room who has a pusher.
            at_length(|| {
                for record in &some {
                    self.read(record, follower)?;
                    follower.at = record.offset();
                }
                Ok::<_, ReadError>(())
            })?;
            if follower.at >= follower.told {
                follower.behind.clear();
            }
            // A follower that lags far behind does not keep others from the processor.
            yield_now().await;
        }
        if follower.at.get().saturating_sub(follower.noted.get()) >= limits::DELIVERY_PASSED {
            follower.note_due.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    fn read(self: &Arc<Self>, record: &Record, follower: &mut Follower) -> Result<(), ReadError> {
        let item = |what| Item { offset: record.offset(), time_ms: record.header.time_ms, what };
        match &*record.header.kind {
            "room.event" => {
                let Some(event) = self.engine.events().get(record.offset())? else { return Ok(()) };
                self.event(&event, item(Subject::Event), follower)?;
                // A user's own message marks earlier ones as read.
                if event.state_key.is_none() {
                    self.was_read(&event.sender, item(Subject::Count), follower);
                }
            }
            "room.receipt" => {
                if let Some(Command::RoomReceipt(body)) = record.command().ok().flatten() {
                    for receipt in &body.receipts {
                        self.was_read(&receipt.user_id, item(Subject::Count), follower);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Queues an event for the users whom it notifies.
    fn event(
        self: &Arc<Self>,
        event: &EventRef,
        item: Item,
        follower: &Follower,
    ) -> Result<(), ReadError> {
        let state = self.engine.state();
        let Some(room) = state.rooms.get(&event.room_id) else { return Ok(()) };
        for user_id in recipients(&state, &room, event) {
            if self
                .judge(&state, &user_id, &room)
                .outcome(event)?
                .is_some_and(|outcome| outcome.notify)
            {
                for pusher in state.pushers.of_user(&user_id) {
                    if pusher.is_at_gateway() {
                        if follower.has_to_tell(&pusher, item.offset) {
                            self.queue(&pusher, item);
                        }
                    } else if pusher.is_mail()
                        && let Some(mails) = &self.mails
                    {
                        mails.add(&pusher, item.offset, item.time_ms);
                    }
                }
            }
        }
        Ok(())
    }

    /// The user has read something: after a while, the user's devices are told the new count.
    fn was_read(&self, user_id: &UserId, item: Item, follower: &mut Follower) {
        let state = self.engine.state();
        if !state.pushers.has_any(user_id) {
            return;
        }
        if let Some(mails) = &self.mails {
            mails.was_read(user_id);
        }
        if follower.counts_due.contains_key(user_id) {
            return;
        }
        let mut pushers = state.pushers.of_user(user_id);
        pushers.retain(|pusher| pusher.is_at_gateway());
        let news = {
            let queues = self.queues.lock();
            // It cannot be less than zero.
            let has_more = |pusher: &Arc<Pusher>| queues.unread(pusher.since) != Some(0);
            pushers
                .iter()
                .any(|pusher| follower.has_to_tell(pusher, item.offset) && has_more(pusher))
        };
        if news {
            let due = Instant::now() + limits::PUSH_BADGE;
            follower.counts_due.insert(user_id.to_owned(), (due, item));
        }
    }

    fn queue_counts(self: &Arc<Self>, follower: &mut Follower) {
        let now = Instant::now();
        let due = follower.counts_due.extract_if(|_, (due, _)| *due <= now).collect::<Vec<_>>();
        for (user_id, (_, item)) in due {
            let pushers = self.engine.state().pushers.of_user(&user_id).into_iter();
            for pusher in pushers.filter(|pusher| pusher.is_at_gateway()) {
                self.queue(&pusher, item);
            }
        }
    }

    fn queue(self: &Arc<Self>, pusher: &Pusher, item: Item) {
        let added = self.queues.lock().add(pusher.since, item);
        if added.full {
            let app_id = &*pusher.body.ids.app_id;
            warn!(user_id = %pusher.body.user_id, app_id, "too many notifications are queued; dropping one");
        }
        if added.begin {
            let mut senders = self.senders.lock();
            while senders.try_join_next().is_some() {}
            senders.spawn(Arc::clone(self).work(pusher.since));
        }
    }

    /// Sends the notifications of a pusher, one after the other, until there are none.
    async fn work(self: Arc<Self>, since: Offset) {
        let mut retry = Retry::default();
        // How often the gateway refused this notification.
        let mut refused = 0;
        loop {
            let Some(item) = self.queues.lock().next(since) else { return };
            let Some(pusher) = self.engine.state().pushers.get(since) else {
                self.queues.lock().forget(since);
                return;
            };
            if self.shutdown.is_given() {
                return;
            }
            let began = Instant::now();
            let told = AssertUnwindSafe(self.tell(&pusher, item)).catch_unwind().await;
            count_attempt(&told);
            if let Ok(Notified::Arrived | Notified::Failed(_) | Notified::Refused(_)) = &told {
                self.engine.head().traced().tell([item.offset], "push", began);
            }
            let reason = match told {
                Ok(Notified::Arrived) => {
                    (retry, refused) = (Retry::default(), 0);
                    continue;
                }
                Ok(Notified::Needless) => {
                    refused = 0;
                    continue;
                }
                Ok(Notified::Stopping) => return,
                Ok(Notified::Failed(reason)) => reason,
                Ok(Notified::Refused(reason)) => {
                    refused += 1;
                    reason
                }
                Err(_) => {
                    error!(record = %item.offset, "notifying a push gateway panicked");
                    self.done(since, item);
                    continue;
                }
            };
            let user_id = &pusher.body.user_id;
            let app_id = &*pusher.body.ids.app_id;
            let left = self.time_left(item);
            if refused >= limits::PUSH_REFUSALS {
                // It would keep those after it from being sent until it is too old.
                warn!(%user_id, app_id, reason, "dropping a notification that a gateway refuses");
                (retry, refused) = (Retry::default(), 0);
                self.done(since, item);
                continue;
            }
            if !left.is_zero() {
                let wait = retry.next().min(left);
                let again_in_ms = wait.as_millis();
                debug!(%user_id, app_id, again_in_ms, reason, "a push gateway takes nothing");
                tokio::select! {
                    () = sleep(wait) => {}
                    () = self.shutdown.given() => return,
                }
                if !self.time_left(item).is_zero() {
                    continue;
                }
            }
            warn!(%user_id, app_id, reason, "dropping a notification that is too old to retry");
            refused = 0;
            self.done(since, item);
        }
    }

    /// Drops a notification.
    fn done(&self, since: Offset, item: Item) {
        self.queues.lock().done(since, item);
        self.progress.notify_one();
    }

    /// How long a notification is worth sending.
    fn time_left(&self, item: Item) -> Duration {
        let age = self.engine.clock().now_ms().saturating_sub(item.time_ms);
        self.give_up.saturating_sub(Duration::from_millis(age))
    }

    /// Sends `item` when the gateway has a free slot. Records what was sent before it releases the
    /// slot, so that whoever waits for all slots knows of it.
    async fn tell(&self, pusher: &Pusher, item: Item) -> Notified {
        let url = pusher.body.data.get("url").and_then(serde_json::Value::as_str);
        let Some(url) = url.and_then(|url| url.parse::<Url>().ok()) else {
            self.done(pusher.since, item);
            return Notified::Needless;
        };
        let gateway = self.gateway(&url);
        // Neither semaphore is ever closed.
        let Ok(_turn) = gateway.acquire().await else { return Notified::Stopping };
        let Ok(_turn) = self.at_once.acquire().await else { return Notified::Stopping };
        if self.shutdown.is_given() {
            return Notified::Stopping;
        }
        let origin = url.origin().ascii_serialization();
        let told = self.ask(pusher, item, url).await;
        match &told {
            Notified::Failed(error) => {
                self.failing.failed(origin, self.engine.clock().now_ms(), error);
            }
            Notified::Arrived | Notified::Refused(_) => self.failing.answered(&origin),
            Notified::Needless | Notified::Stopping => {}
        }
        if matches!(told, Notified::Arrived | Notified::Needless) {
            self.done(pusher.since, item);
        }
        told
    }

    async fn ask(&self, pusher: &Pusher, item: Item, url: Url) -> Notified {
        let (body, unread) = match at_length(|| self.body(pusher, item)) {
            Ok(Some(body)) => body,
            Ok(None) => return Notified::Needless,
            Err(error) => return Notified::Failed(error.to_string()),
        };
        let ask = OutboundRequest::new(Method::POST, url).json(&body);
        let answer = match self.outbound.send(ask).await {
            Ok(answer) => answer,
            Err(error) => return Notified::Failed(error.to_string()),
        };
        if matches!(answer.status, StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE) {
            return Notified::Refused(format!("it answers {}", answer.status));
        }
        if !answer.status.is_success() {
            return Notified::Failed(format!("it answers {}", answer.status));
        }
        self.queues.lock().set_unread(pusher.since, unread);
        #[derive(Deserialize)]
        struct Answer {
            rejected: Vec<String>,
        }
        let rejected = answer.json::<Answer>().map(|answer| answer.rejected).unwrap_or_default();
        // Rejections of other keys do not concern this pusher.
        if rejected.contains(&pusher.body.ids.pushkey) {
            let (user_id, ids) = (pusher.body.user_id.clone(), pusher.body.ids.clone());
            let remove = RemovePusher { user_id, ids, because: PusherEnd::Rejected };
            if let Err(error) = self.engine.propose(Origin::server(), remove).await {
                return Notified::Failed(error.to_string());
            }
        }
        Notified::Arrived
    }

    /// The slots of a gateway.
    fn gateway(&self, url: &Url) -> Arc<Semaphore> {
        let mut gateways = self.gateways.lock();
        if gateways.len() >= limits::PUSHES_AT_ONCE as usize {
            gateways.retain(|_, gateway| Arc::strong_count(gateway) > 1);
        }
        let gateway = || Arc::new(Semaphore::new(limits::PUSHES_TO_GATEWAY));
        let origin = url.origin().ascii_serialization();
        Arc::clone(gateways.entry(origin).or_insert_with(gateway))
    }

    /// The body to send, with the count; `None` if it is no longer necessary.
    fn body(
        &self,
        pusher: &Pusher,
        item: Item,
    ) -> Result<Option<(serde_json::Value, u64)>, ReadError> {
        let (state, events) = (self.engine.state(), self.engine.events());
        let user_id = &*pusher.body.user_id;
        if state.accounts.standing(user_id).is_none_or(|standing| standing.locked)
            || pusher.body.disabled
        {
            return Ok(None);
        }
        let now = self.engine.head().offset().min(state.applied());
        let is_uncounted = notification::is_without_counts(pusher);
        if is_uncounted && item.what == Subject::Count {
            return Ok(None);
        }
        let unread = || match is_uncounted {
            true => Ok(0),
            false => self.unread.of_user(&state, events, user_id, now),
        };
        if item.what == Subject::Count {
            let unread = unread()?;
            let before = self.queues.lock().unread(pusher.since);
            let is_news = before.is_none_or(|before| unread < before);
            return Ok(is_news.then(|| (notification::body(pusher, None, unread), unread)));
        }
        let Some(event) = events.get(item.offset)? else { return Ok(None) };
        let Some(room) = state.rooms.get(&event.room_id) else { return Ok(None) };
        let judge = self.judge(&state, user_id, &room);
        // The user may have left, or read it elsewhere, while the gateway was down.
        let is_there = matches!(
            room.membership(user_id, now),
            Some((_, Membership::Join | Membership::Invite))
        );
        if !is_there
            || room.redaction_of(event.offset, now).is_some()
            || self.unread.has_read(judge, &event, now)?
        {
            return Ok(None);
        }
        let is_target = is_target(&event, user_id);
        let membership = room.membership(user_id, event.offset);
        let is_invite = matches!(membership, Some((_, Membership::Invite)));
        if is_target && is_invite && !is_shown(events, &state, user_id, &event)? {
            return Ok(None);
        }
        let Some(outcome) = judge.outcome(&event)?.filter(|outcome| outcome.notify) else {
            return Ok(None);
        };
        let unread = unread()?;
        let state_text = |event_type: StateEventType, key: &str, field: &str| {
            state_text(events, &room, event.offset, &event_type, key, field)
        };
        let about = NotifiedEvent {
            sender_name: state_text(
                StateEventType::RoomMember,
                event.sender.as_str(),
                "displayname",
            )?,
            room_name: state_text(StateEventType::RoomName, "", "name")?,
            room_alias: state_text(StateEventType::RoomCanonicalAlias, "", "alias")?,
            is_target,
            event: &event,
            outcome: &outcome,
        };
        Ok(Some((notification::body(pusher, Some(&about), unread), unread)))
    }

    fn judge<'a>(&'a self, state: &'a State, user_id: &'a UserId, room: &'a Room) -> Judge<'a> {
        Judge { state, events: self.engine.events(), user_id, room }
    }

    /// Records the position of all pushers.
    async fn note(&self, follower: &mut Follower) {
        follower.note_due = None;
        let pushers = &self.engine.state().pushers;
        // Earlier, the pushers that lag are not all queued again.
        if pushers.is_empty() || follower.at < follower.told {
            return;
        }
        let told = {
            let mut queues = self.queues.lock();
            queues.keep(|pusher| pushers.get(pusher).is_some());
            queues.told(follower.at)
        };
        // The position only advances. Until it can, the last recorded one holds.
        if told.done < follower.noted {
            return;
        }
        let done = told.done;
        match self.engine.propose(Origin::server(), NoteTold(told)).await {
            Ok(noted) => {
                noted.into_inner();
                follower.noted = done;
            }
            Err(error) => {
                warn!(%error, "the position of notifications could not be recorded");
                follower.note_due = Some(Instant::now() + limits::PUSH_NOTE);
            }
        }
    }
}

impl Follower {
    /// Whether a pusher still has to notify of this record.
    fn has_to_tell(&self, pusher: &Pusher, record: Offset) -> bool {
        let told = self.behind.get(&pusher.since).copied().unwrap_or(self.told);
        record > told && record > pusher.since
    }
}

/// Counts an attempt to reach a gateway.
fn count_attempt<E>(told: &Result<Notified, E>) {
    let outcome = match told {
        Ok(Notified::Arrived) => "arrived",
        Ok(Notified::Needless | Notified::Stopping) => return,
        Ok(Notified::Failed(_) | Notified::Refused(_)) | Err(_) => "failed",
    };
    metrics().delivery_attempts.with_label_values(&[PUSHERS, outcome]).inc();
}

/// The result of sending.
enum Notified {
    Arrived,
    /// It is no longer necessary.
    Needless,
    /// The server shuts down.
    Stopping,
    Failed(String),
    /// The gateway refuses what is in it.
    Refused(String),
}

/// The users with pushers who were in the room when an event came, or are invited by it, except the
/// sender.
fn recipients(state: &State, room: &Room, event: &EventRef) -> Vec<OwnedUserId> {
    let at = event.offset;
    let is_other = |user_id: &UserId| *user_id != *event.sender;
    let joined = room.counts(at).joined;
    // Iterates over the smaller set.
    let mut found = if state.pushers.user_count() as u64 <= joined {
        state.pushers.users(|user_id| is_other(user_id) && room.is_joined(user_id, at))
    } else {
        let members = room.members(Membership::Join, at).into_iter().map(|(user_id, _)| user_id);
        members.filter(|user_id| is_other(user_id) && state.pushers.has_any(user_id)).collect()
    };
    if event.event_type == TimelineEventType::RoomMember
        && let Some(target) = event.state_key.as_deref()
        && let Ok(target) = <&UserId>::try_from(target)
        && matches!(room.membership(target, at), Some((_, Membership::Invite)))
        && is_other(target)
        && state.pushers.has_any(target)
    {
        found.push(target.to_owned());
    }
    found
}

fn is_target(event: &EventRef, user_id: &UserId) -> bool {
    event.event_type == TimelineEventType::RoomMember
        && event.state_key.as_deref() == Some(user_id.as_str())
}

/// A text in the content of a state event, as of a record.
fn state_text(
    events: &EventStore,
    room: &Room,
    at: Offset,
    event_type: &StateEventType,
    key: &str,
    field: &str,
) -> Result<Option<String>, ReadError> {
    let Some(offset) = room.state_event(event_type, key, at) else { return Ok(None) };
    let Some(event) = events.get(offset)? else { return Ok(None) };
    if room.redaction_of(offset, at).is_some() {
        return Ok(None);
    }
    let content = event.content_as::<serde_json::Value>().unwrap_or_default();
    let text = content.get(field).and_then(serde_json::Value::as_str);
    Ok(text.filter(|text| !text.is_empty()).map(str::to_owned))
}

async fn sleep_until(due: Option<Instant>) {
    if let Some(due) = due {
        tokio::time::sleep_until(due.into()).await;
    }
}
