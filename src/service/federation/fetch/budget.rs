//! How much is fetched for one transaction: requests, events, bytes and time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use logcabin_base::{bodies::Body, limits};
use logcabin_outside::federation::FederationResponse;

/// The limits on fetches for one transaction of a homeserver, or for one event that is sent alone.
pub struct Budget {
    /// For ancestors and auth events.
    pub(super) missing: Allowance,
    /// For the room's state at events whose past is not fetched.
    pub(super) state: Allowance,
    /// The number and the time of requests for events that other homeservers passed on with altered
    /// content.
    pub(super) senders: (usize, Duration),
    /// The time for keys with which events are signed.
    pub(in crate::federation) keys: Duration,
    /// The number of requests to policy servers.
    pub(in crate::federation) policy: usize,
    /// The deadline of those requests.
    pub(in crate::federation) policy_until: Instant,
    /// Until when events wait for the rooms that are being entered.
    pub(in crate::federation) entries_until: Instant,
}

pub(in crate::federation) struct Allowance {
    pub(in crate::federation) requests: usize,
    pub(in crate::federation) events: usize,
    pub(in crate::federation) bytes: usize,
    pub(in crate::federation) until: Instant,
    account: Option<Account>,
    /// What was fetched and may still be in use.
    pub(super) in_use: Vec<Charge>,
}

/// What is kept of answers is charged to it while one event is handled.
type Account = Arc<Mutex<(Body, usize)>>;

/// A part of what is kept of answers. It is charged until this is dropped.
#[derive(Debug)]
pub(in crate::federation) struct Charge {
    account: Account,
    bytes: usize,
}

impl Charge {
    /// Charges so much of what an answer was charged.
    fn to(account: &Account, charged: Body, bytes: usize) -> Self {
        let mut of_event = account.lock();
        let (body, held) = &mut *of_event;
        body.take_over(charged, bytes);
        *held = held.saturating_add(bytes);
        drop(of_event);
        Self { account: Arc::clone(account), bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut of_event = self.account.lock();
        let (body, held) = &mut *of_event;
        *held = held.saturating_sub(self.bytes);
        body.shrink(*held);
    }
}

impl Budget {
    pub fn full() -> Self {
        let (requests, events, bytes, time) = limits::MISSING_EVENTS;
        let now = Instant::now();
        Self {
            missing: Allowance::new(requests, events, bytes, now + time),
            state: Allowance::of_state(now + limits::FEDERATION_STATE_TIMEOUT),
            senders: limits::SENDERS_ASKED,
            keys: limits::TRANSACTION_KEYS_TIME,
            policy: limits::TRANSACTION_PDUS,
            policy_until: now + limits::POLICY_TIME,
            entries_until: now + limits::ENTRY_WAIT,
        }
    }

    /// Charges what is kept of answers to this account from now on, for one event. The event is to
    /// be given up when the result resolves.
    pub(in crate::federation) fn begin(
        &mut self,
        account: Body,
    ) -> impl Future<Output = ()> + Send + use<> {
        let dropped = account.watch();
        let account = Arc::new(Mutex::new((account, 0)));
        self.missing.account = Some(Arc::clone(&account));
        self.state.account = Some(account);
        dropped
    }

    /// The event was handled: nothing is kept any more.
    pub(in crate::federation) fn end(&mut self) {
        for allowance in [&mut self.missing, &mut self.state] {
            allowance.in_use.clear();
            allowance.account = None;
        }
    }
}

impl Allowance {
    pub(in crate::federation) const fn new(
        requests: usize,
        events: usize,
        bytes: usize,
        until: Instant,
    ) -> Self {
        Self { requests, events, bytes, until, account: None, in_use: Vec::new() }
    }

    /// For a room's state, and no more than that.
    pub(in crate::federation) const fn of_state(until: Instant) -> Self {
        Self::new(3 * limits::EVENTS_ONE_BY_ONE, usize::MAX, limits::FEDERATION_STATE_BYTES, until)
    }

    /// The same for one event, whose charge is to the same account.
    pub(super) fn for_one(&self, until: Instant) -> Self {
        Self { account: self.account.clone(), ..Self::new(1, 1, limits::ONE_EVENT_BYTES, until) }
    }

    /// Ends the charge of an answer of which so much is kept.
    pub(super) fn charge(&self, charged: Option<Body>, bytes: usize) -> Option<Charge> {
        Some(Charge::to(self.account.as_ref()?, charged?, bytes))
    }

    /// The same, until the event was handled.
    pub(super) fn keep(&mut self, answer: FederationResponse, bytes: usize) {
        let charge = self.charge(answer.into_charge(), bytes);
        self.in_use.extend(charge);
    }

    pub(super) fn left(&self) -> Option<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        (self.requests > 0 && self.events > 0 && self.bytes > 0 && !left.is_zero()).then_some(left)
    }
}
