//! A memory budget for bodies in progress: those of requests, from the first byte until the handler
//! is done with them, and the answers of other homeservers and services, from the first byte until
//! what was made of them is dropped.
//!
//! Anyone may send half a body and wait. So each body has a [`Principal`], memory is reserved as
//! bytes arrive and not when a length is announced, and three bounds hold at any time: on the
//! principal, on all unknown principals of the same kind, and on the pool. There is one pool for
//! requests and one for answers ([`Shares`]), so that no request waits for an answer that waits for
//! requests.
//!
//! When a bound is reached, the body that asks for more waits (its sender is not read from
//! meanwhile), and others make room ([`usage`]): slow ones, and after a second those that are
//! larger or older than it. The alternative, a minimum rate that rises as memory runs out, would
//! have to guess how fast an honest client is, and would drop every slow one where dropping one is
//! enough. A dropped body is answered with 429.
//!
//! Small bodies do not come here: see [`limits::SMALL_BODY_BYTES`].

mod large_answers;
#[cfg(test)]
mod tests;
mod usage;

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use ruma::{OwnedServerName, OwnedUserId};
use thiserror::Error;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

pub use self::large_answers::Urgency;
use self::{
    large_answers::{LargeAnswerLimit, LargeAnswerPermit},
    usage::{ReachedBound, UsageTable},
};
use crate::{limits, rate::Refundable};

/// Whose account a body is charged to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Principal {
    /// A client address: all that is known of a request before its access token or signature is
    /// checked. The address is a [`network_prefix`](crate::rate::network_prefix).
    Address(IpAddr),
    /// A user of this homeserver.
    User(OwnedUserId),
    /// A homeserver that has signed the request.
    Server(OwnedServerName),
    /// The same, but it shares no room with this one. Names cost nothing.
    Stranger(OwnedServerName),
    /// The homeserver or host that was asked for an answer.
    Asked(Box<str>),
}

/// How the memory is divided.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    requests: u64,
    answers: u64,
    large_answers: usize,
}

impl Shares {
    /// Divides `most` bytes, or more if requests of `largest` bytes need it.
    pub fn new(most: u64, largest: usize) -> Self {
        let largest = u64::try_from(largest).unwrap_or(u64::MAX);
        // A quarter is for requests: one and a half of the largest fit into it.
        let most = most.max(largest.saturating_mul(limits::BODY_WEIGHT).saturating_mul(6));
        let (requests, answers) = (most / 4, most / 4 * 3);
        let of_large = limits::FEDERATION_STATE_BYTES as u64;
        let large_answers = usize::try_from((answers - most / 12) / of_large).unwrap_or(1).max(1);
        Self { requests, answers, large_answers }
    }
}

/// The memory is used up.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Full {
    #[error("too much is being sent at a time")]
    NoRoom,
    /// This body had to make room for others.
    #[error("it was dropped because it was too large or too slow while too much was being sent")]
    Dropped,
}

#[derive(Debug)]
pub struct BodyBudget {
    shares: Shares,
    usage: Mutex<UsageTable>,
    turns: LargeAnswerLimit,
    /// The bytes of answers, by whoever was asked for them.
    answered: Refundable<Box<str>>,
}

impl BodyBudget {
    pub fn new(shares: Shares) -> Arc<Self> {
        let turns = LargeAnswerLimit::new(shares.large_answers);
        let answered = Refundable::new(limits::ANSWER_RATE);
        Arc::new(Self { shares, usage: Mutex::default(), turns, answered })
    }

    /// Waits until answers of this homeserver or host are again within their rate. Whoever waits
    /// should have no place or turn that others need.
    pub async fn answers_in_rate(&self, asked: &str) {
        let asked = asked.into();
        loop {
            let ahead = self.answered.ahead(&asked, Instant::now().into_std());
            if ahead.is_zero() {
                return;
            }
            sleep(ahead).await;
        }
    }

    /// A body that begins to arrive. Each of its bytes counts as `weight` bytes, which include what
    /// will be made of it.
    pub fn begin(self: &Arc<Self>, principal: Principal, weight: u64) -> Body {
        let (drop, dropped) = watch::channel(false);
        let asked = match &principal {
            Principal::Asked(asked) => Some(asked.clone()),
            _ => None,
        };
        let id = self.usage.lock().begin(principal, drop, Instant::now());
        let (bodies, urgency) = (Arc::clone(self), Urgency::Caused);
        Body { bodies, id, weight, reserved: 0, asked, dropped, urgency, turn: None }
    }

    /// The bytes held for requests, and for answers.
    #[cfg(test)]
    pub(crate) fn held(&self) -> (u64, u64) {
        self.usage.lock().held()
    }
}

/// A body that is charged to its principal until this is dropped.
#[derive(Debug)]
pub struct Body {
    bodies: Arc<BodyBudget>,
    id: u64,
    weight: u64,
    reserved: u64,
    /// Who was asked for this answer.
    asked: Option<Box<str>>,
    dropped: watch::Receiver<bool>,
    urgency: Urgency,
    turn: Option<LargeAnswerPermit>,
}

impl Body {
    /// Sets how urgent this answer is.
    #[must_use]
    pub fn urgent(mut self, urgency: Urgency) -> Self {
        self.urgency = urgency;
        self
    }

    /// Reserves memory for `bytes` bytes in total, before they are kept. If there is none, waits
    /// for it until `until`.
    ///
    /// # Errors
    /// When there is none in time, or this body had to make room.
    pub async fn grow(&mut self, bytes: usize, until: Instant) -> Result<(), Full> {
        let to = self.charge_of(bytes);
        if to <= self.reserved {
            return Ok(());
        }
        if *self.dropped.borrow() {
            return Err(Full::Dropped);
        }
        let began = Instant::now();
        loop {
            let now = Instant::now();
            let waited = now.saturating_duration_since(began);
            let reserved = self.reserve(to, waited, now);
            match reserved {
                Ok(()) => {
                    if let Some(asked) = &self.asked {
                        let bytes = (to - self.reserved) / self.weight.max(1);
                        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                        self.bodies.answered.charge(asked, bytes, now.into_std());
                    }
                    self.reserved = to;
                    return Ok(());
                }
                Err(ReachedBound::Waiting) => return Err(Full::NoRoom),
                Err(bound) if self.may_borrow(bound) => self.take_turn(until).await?,
                Err(_) if now >= until => return Err(Full::NoRoom),
                Err(_) => {
                    let next = until.min(now + limits::BODY_LOOK);
                    tokio::select! {
                        () = dropped(&mut self.dropped) => return Err(Full::Dropped),
                        () = sleep_until(next) => {}
                    }
                }
            }
        }
    }

    /// Ends another body, of which this many bytes are kept: from now on they are charged to this
    /// one. They have their room already, so this cannot fail.
    pub fn take_over(&mut self, other: Self, bytes: usize) {
        let bytes = self.charge_of(bytes);
        self.reserved += self.bodies.usage.lock().hand_over(other.id, self.id, bytes);
        drop(other);
    }

    /// What so many bytes count for, in whole steps.
    fn charge_of(&self, bytes: usize) -> u64 {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).saturating_mul(self.weight);
        bytes.div_ceil(limits::BODY_QUANTUM).saturating_mul(limits::BODY_QUANTUM)
    }

    /// Gives back the memory beyond `bytes` bytes in total, and the turn once it needs none.
    pub fn shrink(&mut self, bytes: usize) {
        let to = self.charge_of(bytes).min(self.reserved);
        if self.bodies.usage.lock().shrink(&self.bodies.shares, self.id, to) {
            self.turn = None;
        }
        self.reserved = to;
    }

    /// Reserves memory, or makes others give some up.
    fn reserve(&self, to: u64, waited: Duration, now: Instant) -> Result<(), ReachedBound> {
        let (shares, has_turn) = (&self.bodies.shares, self.turn.is_some());
        let mut usage = self.bodies.usage.lock();
        let reserved = usage.reserve(shares, self.id, to, has_turn, now);
        if let Err(bound) = reserved {
            usage.waits(self.id, to, now)?;
            if !self.may_borrow(bound) {
                usage.make_room(shares, self.id, to, bound, waited, now);
            }
        }
        reserved
    }

    /// Whether the bound is the share of the server that was asked. Answers above it take turns.
    fn may_borrow(&self, bound: ReachedBound) -> bool {
        bound == ReachedBound::OfAnswers && self.turn.is_none()
    }

    async fn take_turn(&mut self, until: Instant) -> Result<(), Full> {
        let (bodies, id, urgency) = (Arc::clone(&self.bodies), self.id, self.urgency.clone());
        let principal = bodies.usage.lock().principal(id);
        let ask = || {
            bodies.usage.lock().hurry(Instant::now());
        };
        let turn = tokio::select! {
            () = dropped(&mut self.dropped) => return Err(Full::Dropped),
            () = sleep_until(until) => return Err(Full::NoRoom),
            turn = bodies.turns.take(principal, urgency, ask) => turn,
        };
        let mut usage = bodies.usage.lock();
        usage.has_turn(id, self.urgency == Urgency::Caused, Instant::now());
        drop(usage);
        self.turn = Some(turn);
        Ok(())
    }

    /// Whether it has a turn to exceed the share of the server that was asked while others wait for
    /// that turn, or for its memory.
    pub fn has_to_hurry(&self) -> bool {
        let bodies = &self.bodies;
        self.turn.is_some() && (bodies.turns.is_awaited() || bodies.usage.lock().answers_wait())
    }

    /// Charges it to another principal, once its sender is known.
    ///
    /// # Errors
    /// When that account is full.
    pub fn becomes(&mut self, principal: Principal) -> Result<(), Full> {
        let moved = self.bodies.usage.lock().move_to(&self.bodies.shares, self.id, principal);
        moved.map_err(|_| Full::NoRoom)
    }

    /// Notes that all of it has arrived. If it `may_be_dropped`, that happens only after it was
    /// held for long, and its holder must await [`Body::watch`].
    pub fn arrived(&self, may_be_dropped: bool) {
        self.bodies.usage.lock().arrived(self.id, may_be_dropped, Instant::now());
    }

    /// Resolves when the body has to make room.
    pub fn watch(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut receiver = self.dropped.clone();
        async move { dropped(&mut receiver).await }
    }

    /// Its bytes, which stay charged to the principal as long as any part of them is kept.
    pub fn keep(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(ReservedBytes { bytes, _body: self })
    }
}

/// For how many bytes there is to be room, so that `length` bytes of a body can be kept of which
/// `expected` are announced. It doubles, and each time what is there is copied; what is announced
/// is believed once a part of it is there. Until bytes come, it is only a range of addresses.
pub fn room_for(length: usize, expected: usize) -> usize {
    if expected >= length && expected / length.max(1) < limits::BODY_BELIEVED {
        expected
    } else {
        length.saturating_mul(2)
    }
}

async fn dropped(receiver: &mut watch::Receiver<bool>) {
    if receiver.wait_for(|dropped| *dropped).await.is_err() {
        // The ledger no longer has it.
        std::future::pending::<()>().await;
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.bodies.usage.lock().end(self.id);
    }
}

/// Bytes that are charged to a principal.
struct ReservedBytes {
    bytes: Bytes,
    _body: Body,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The deadline of a transfer that must bring a minimum of bytes in each stride of time.
#[derive(Clone, Copy, Debug)]
pub struct ArrivalDeadline {
    /// When the current stride began, and how much was there then.
    began: Instant,
    from: usize,
}

impl ArrivalDeadline {
    pub fn begin() -> Self {
        Self { began: Instant::now(), from: 0 }
    }

    /// When the transfer is late if nothing more arrives after `read` bytes. Each stride of `time`
    /// must bring at least `bytes` bytes.
    pub fn deadline(&mut self, read: usize, (bytes, time): (usize, Duration)) -> Instant {
        if read.saturating_sub(self.from) >= bytes {
            self.again(read);
        }
        self.began + time
    }

    /// Begins a new stride now, after `read` bytes.
    pub fn again(&mut self, read: usize) {
        *self = Self { began: Instant::now(), from: read };
    }

    /// Extends the deadline by a time in which this server itself did not read.
    pub fn pause(&mut self, time: Duration) {
        self.began += time;
    }
}
