//! Who holds how much, what the bounds are, and who makes room.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::{Principal, Shares};
use crate::{
    limits,
    metrics::{Transfer, metrics},
};

/// The bound that a body has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReachedBound {
    OfPrincipal,
    /// Of one server or host that was asked for answers.
    OfAnswers,
    /// Of all principals of the kind.
    OfKind,
    /// Of all requests, or all answers.
    OfPool,
    /// Of bodies that wait for room.
    Waiting,
}

/// What is counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pool {
    Requests,
    Answers,
}

/// Principals that nothing is known about, so there may be very many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Addresses,
    Strangers,
}

impl Principal {
    const fn pool(&self) -> Pool {
        match self {
            Self::Asked(_) => Pool::Answers,
            _ => Pool::Requests,
        }
    }

    const fn kind(&self) -> Option<Kind> {
        match self {
            Self::Address(_) => Some(Kind::Addresses),
            Self::Stranger(_) => Some(Kind::Strangers),
            _ => None,
        }
    }
}

impl Shares {
    /// The size of a pool, and the part of it that is reserved for small bodies.
    const fn of_pool(&self, pool: Pool) -> (u64, u64) {
        match pool {
            Pool::Requests => (self.requests, self.requests / 8),
            Pool::Answers => (self.answers, self.answers / 9),
        }
    }

    /// The same for a kind of principals.
    const fn of_kind(&self, kind: Kind) -> (u64, u64) {
        match kind {
            Kind::Addresses => (self.requests / 4 * 3, self.requests / 8),
            Kind::Strangers => (self.requests / 4, 0),
        }
    }

    const fn of_principal(&self, principal: &Principal) -> u64 {
        match principal {
            Principal::Stranger(_) => self.requests / 16,
            Principal::Asked(_) => self.answers / 4,
            _ => self.requests / 4,
        }
    }

    const fn of(&self, bound: ReachedBound, principal: &Principal) -> u64 {
        match (bound, principal.kind()) {
            (ReachedBound::OfKind, Some(kind)) => self.of_kind(kind).0,
            (ReachedBound::OfPool, _) => self.of_pool(principal.pool()).0,
            _ => self.of_principal(principal),
        }
    }
}

/// What a body of this size may use of `most`, of which `for_small` is reserved for small ones.
const fn for_body((most, for_small): (u64, u64), bytes: u64) -> u64 {
    if bytes <= limits::BODY_SMALL_SHARE { most } else { most - for_small }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Bytes arrive, or should.
    Arriving,
    /// It waits for room.
    Waiting,
    /// All of it arrived at this time; whether it may still be dropped.
    Handled(Instant, bool),
}

#[derive(Debug)]
struct Entry {
    principal: Principal,
    bytes: u64,
    began: Instant,
    /// When it last grew.
    grew: Instant,
    stage: Stage,
    /// Tells its holder to drop it.
    drop: watch::Sender<bool>,
    is_leaving: bool,
    /// How many bytes it waits for, if it does.
    wants: u64,
    /// Since when it has its turn to exceed the share of the server that was asked, and whether no
    /// user waits for it.
    turn: Option<(Instant, bool)>,
}

impl Entry {
    /// Whether it holds memory without making progress.
    fn is_idle(&self, now: Instant) -> bool {
        match self.stage {
            Stage::Arriving => now.saturating_duration_since(self.grew) >= limits::BODY_IDLE,
            Stage::Waiting => false,
            Stage::Handled(since, _) => {
                now.saturating_duration_since(since) >= limits::BODY_HANDLED
            }
        }
    }

    fn may_be_dropped(&self) -> bool {
        let is_spared = matches!(self.stage, Stage::Handled(_, false));
        self.bytes > 0 && !self.is_leaving && !is_spared && self.turn.is_none()
    }
}

#[derive(Debug, Default)]
struct PrincipalUsage {
    bytes: u64,
    bodies: BTreeSet<u64>,
    looked: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct UsageTable {
    entries: BTreeMap<u64, Entry>,
    next: u64,
    accounts: HashMap<Principal, PrincipalUsage>,
    requests: u64,
    answers: u64,
    addresses: u64,
    strangers: u64,
    /// The bodies that wait for room, and how many of them are requests.
    waiting: BTreeSet<u64>,
    waiting_requests: usize,
    /// The last search for bodies that could make room in a pool, which takes a while.
    looked: Option<Instant>,
}

impl UsageTable {
    pub(super) fn begin(
        &mut self,
        principal: Principal,
        drop: watch::Sender<bool>,
        now: Instant,
    ) -> u64 {
        let id = self.next;
        self.next += 1;
        self.accounts.entry(principal.clone()).or_default().bodies.insert(id);
        let entry = Entry {
            principal,
            bytes: 0,
            began: now,
            grew: now,
            stage: Stage::Arriving,
            drop,
            is_leaving: false,
            wants: 0,
            turn: None,
        };
        self.entries.insert(id, entry);
        id
    }

    pub(super) fn principal(&self, id: u64) -> Option<Principal> {
        self.entries.get(&id).map(|entry| entry.principal.clone())
    }

    #[cfg(test)]
    pub(super) const fn held(&self) -> (u64, u64) {
        (self.requests, self.answers)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let sums = [self.requests, self.answers, self.addresses, self.strangers];
        self.entries.is_empty()
            && self.accounts.is_empty()
            && sums == [0; 4]
            && self.waiting.is_empty()
    }

    const fn in_pool(&self, pool: Pool) -> u64 {
        match pool {
            Pool::Requests => self.requests,
            Pool::Answers => self.answers,
        }
    }

    const fn of_kind(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Addresses => self.addresses,
            Kind::Strangers => self.strangers,
        }
    }

    fn of_principal(&self, principal: &Principal) -> u64 {
        self.accounts.get(principal).map_or(0, |account| account.bytes)
    }

    const fn sum(&mut self, pool: Pool) -> (&mut u64, Transfer) {
        match pool {
            Pool::Requests => (&mut self.requests, Transfer::Requests),
            Pool::Answers => (&mut self.answers, Transfer::Answers),
        }
    }

    fn add(&mut self, principal: &Principal, bytes: u64) {
        let (sum, transfer) = self.sum(principal.pool());
        *sum += bytes;
        metrics().body_bytes.of_value(transfer).set(i64::try_from(*sum).unwrap_or(i64::MAX));
        match principal.kind() {
            Some(Kind::Addresses) => self.addresses += bytes,
            Some(Kind::Strangers) => self.strangers += bytes,
            None => {}
        }
        if let Some(account) = self.accounts.get_mut(principal) {
            account.bytes += bytes;
        }
    }

    fn subtract(&mut self, principal: &Principal, bytes: u64) {
        let (sum, transfer) = self.sum(principal.pool());
        *sum = sum.saturating_sub(bytes);
        metrics().body_bytes.of_value(transfer).set(i64::try_from(*sum).unwrap_or(i64::MAX));
        match principal.kind() {
            Some(Kind::Addresses) => self.addresses = self.addresses.saturating_sub(bytes),
            Some(Kind::Strangers) => self.strangers = self.strangers.saturating_sub(bytes),
            None => {}
        }
        if let Some(account) = self.accounts.get_mut(principal) {
            account.bytes = account.bytes.saturating_sub(bytes);
        }
    }

    /// The bound that a body of this principal exceeds if it grows from `own` bytes by `more`.
    fn bound(
        &self,
        shares: &Shares,
        principal: &Principal,
        own: u64,
        more: u64,
    ) -> Option<ReachedBound> {
        let most = for_body(shares.of_pool(principal.pool()), own + more);
        if self.in_pool(principal.pool()) + more > most {
            return Some(ReachedBound::OfPool);
        }
        self.bound_of_principal(shares, principal, own, more)
    }

    /// The same for the bounds below that of the pool.
    ///
    /// A principal's only request may exceed the principal's share, and the only one of a kind may
    /// exceed the kind's: any request within the size limit can be made, but not beside others.
    fn bound_of_principal(
        &self,
        shares: &Shares,
        principal: &Principal,
        own: u64,
        more: u64,
    ) -> Option<ReachedBound> {
        let of_principal = self.of_principal(principal);
        let exceeds = of_principal + more > shares.of_principal(principal);
        if principal.pool() == Pool::Answers {
            return exceeds.then_some(ReachedBound::OfAnswers);
        }
        if exceeds && of_principal > own {
            return Some(ReachedBound::OfPrincipal);
        }
        let kind = principal.kind()?;
        let of_kind = self.of_kind(kind);
        let most = for_body(shares.of_kind(kind), own + more);
        let exceeds = of_kind + more > most && of_kind > own;
        exceeds.then_some(ReachedBound::OfKind)
    }

    /// Reserves `to` bytes in total for a body. One that has its turn may exceed its principal's
    /// share.
    pub(super) fn reserve(
        &mut self,
        shares: &Shares,
        id: u64,
        to: u64,
        has_turn: bool,
        now: Instant,
    ) -> Result<(), ReachedBound> {
        let Some(entry) = self.entries.get(&id) else { return Ok(()) };
        let more = to.saturating_sub(entry.bytes);
        match self.bound(shares, &entry.principal, entry.bytes, more) {
            Some(ReachedBound::OfAnswers) if has_turn => {}
            Some(bound) => return Err(bound),
            None if self.gives_way(shares, id, entry, to, now) => return Err(ReachedBound::OfPool),
            None => {}
        }
        let principal = entry.principal.clone();
        self.add(&principal, more);
        self.goes_on(id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.bytes = to;
            entry.grew = now;
        }
        Ok(())
    }

    /// Gives back what a body has beyond `to` bytes. Returns whether its principal is within the
    /// share then: so its turn ends.
    pub(super) fn shrink(&mut self, shares: &Shares, id: u64, to: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return true };
        let less = entry.bytes.saturating_sub(to);
        entry.bytes -= less;
        let principal = entry.principal.clone();
        self.subtract(&principal, less);
        let is_within = self.of_principal(&principal) <= shares.of_principal(&principal);
        if is_within && let Some(entry) = self.entries.get_mut(&id) {
            entry.turn = None;
        }
        is_within
    }

    /// Whether what is left is for another waiting body of a lower rank. Small ones have a reserve.
    fn gives_way(&self, shares: &Shares, id: u64, own: &Entry, to: u64, now: Instant) -> bool {
        if self.waiting.is_empty() || to <= limits::BODY_SMALL_SHARE || own.turn.is_some() {
            return false;
        }
        let (mine, more) = (self.rank(own, to, now), to.saturating_sub(own.bytes));
        let waiting = self.waiting.iter().filter(|other| **other != id);
        let mut waiting = waiting.filter_map(|other| self.entries.get(other));
        waiting.any(|other| {
            let wants = other.wants.saturating_sub(other.bytes);
            let fits = |held: u64, most: u64| held + more + wants <= most;
            let in_kind = other.principal.kind().filter(|kind| own.principal.kind() == Some(*kind));
            let fits_both = in_kind.is_none_or(|kind| {
                fits(self.of_kind(kind), for_body(shares.of_kind(kind), other.wants))
            }) && fits(
                self.in_pool(own.principal.pool()),
                for_body(shares.of_pool(own.principal.pool()), other.wants),
            );
            other.principal.pool() == own.principal.pool()
                && !other.is_leaving
                && !fits_both
                && self.rank(other, other.wants, now) < mine
        })
    }

    /// Makes a body wait for room for `to` bytes in total. If too many wait, the one of the highest
    /// rank is dropped.
    pub(super) fn waits(&mut self, id: u64, to: u64, now: Instant) -> Result<(), ReachedBound> {
        let Some(entry) = self.entries.get_mut(&id) else { return Err(ReachedBound::Waiting) };
        entry.wants = to;
        if entry.stage == Stage::Waiting {
            return Ok(());
        }
        let is_request = entry.principal.pool() == Pool::Requests;
        if is_request && self.waiting_requests >= limits::BODIES_WAITING {
            let mine = self.entries.get(&id).map(|entry| self.rank(entry, to, now));
            let others = self.waiting.iter().filter_map(|other| {
                let entry = self.entries.get(other)?;
                let stays = entry.is_leaving || entry.principal.pool() != Pool::Requests;
                (!stays).then(|| (self.rank(entry, entry.wants, now), *other))
            });
            match others.max() {
                Some((rank, other)) if Some(rank) > mine => self.drop_one(other),
                _ => return Err(ReachedBound::Waiting),
            }
        }
        self.waiting_requests += usize::from(is_request);
        self.waiting.insert(id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.stage = Stage::Waiting;
        }
        Ok(())
    }

    fn goes_on(&mut self, id: u64) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if entry.stage == Stage::Waiting {
            entry.stage = Stage::Arriving;
            self.waiting.remove(&id);
            if entry.principal.pool() == Pool::Requests {
                self.waiting_requests = self.waiting_requests.saturating_sub(1);
            }
        }
    }

    /// How soon a body makes room for others, the highest rank first. It compares what the
    /// principals hold, in powers of two, and then size times age. A body that has its turn comes
    /// last, however large it is.
    fn rank(&self, entry: &Entry, own: u64, now: Instant) -> (u32, u128) {
        if entry.turn.is_some() {
            return (0, 0);
        }
        let of_principal = self.of_principal(&entry.principal) - entry.bytes + own;
        let age = now.saturating_duration_since(entry.began).as_millis() + 1;
        (of_principal.checked_ilog2().unwrap_or(0), u128::from(own) * age)
    }

    /// Drops bodies so that one that has waited for `waited` can have `to` bytes: idle ones,
    /// waiting ones of a higher rank, and after [`limits::BODY_YIELDS`] all of a higher rank.
    pub(super) fn make_room(
        &mut self,
        shares: &Shares,
        id: u64,
        to: u64,
        bound: ReachedBound,
        waited: Duration,
        now: Instant,
    ) {
        let Some(own) = self.entries.get(&id) else { return };
        let principal = own.principal.clone();
        let is_of_principal = matches!(bound, ReachedBound::OfPrincipal | ReachedBound::OfAnswers);
        let looked = if is_of_principal {
            self.accounts.get(&principal).and_then(|account| account.looked)
        } else {
            self.looked
        };
        // One search serves all: what becomes free is for the lowest rank.
        let lately = |looked| now.saturating_duration_since(looked) < limits::BODY_LOOK / 2;
        if looked.is_some_and(lately) {
            return;
        }
        let mine = self.rank(own, to, now);
        let more = to.saturating_sub(own.bytes);
        // Somewhat more than is needed, so that the next search is not due at once.
        let wanted = more.max(shares.of(bound, &principal) / 8);
        let yields = waited >= limits::BODY_YIELDS;
        let mut leaving = 0;
        let mut found = Vec::new();
        let mut look = |other: u64, entry: &Entry| {
            if entry.is_leaving {
                leaving += entry.bytes;
            } else if other != id && entry.may_be_dropped() {
                let rank = self.rank(entry, entry.bytes, now);
                let is_idle = entry.is_idle(now);
                let yields = yields || entry.stage == Stage::Waiting;
                if is_idle || (yields && rank > mine) {
                    found.push((is_idle, rank, other, entry.bytes));
                }
            }
        };
        if is_of_principal {
            let of_principal = self.accounts.get(&principal).map(|account| &account.bodies);
            for other in of_principal.into_iter().flatten() {
                if let Some(entry) = self.entries.get(other) {
                    look(*other, entry);
                }
            }
        } else {
            for (other, entry) in &self.entries {
                let is_of_kind =
                    bound != ReachedBound::OfKind || entry.principal.kind() == principal.kind();
                if is_of_kind && entry.principal.pool() == principal.pool() {
                    look(*other, entry);
                }
            }
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        for (_, _, other, bytes) in found {
            if leaving >= wanted {
                break;
            }
            leaving += bytes;
            self.drop_one(other);
        }
        if !is_of_principal {
            self.looked = Some(now);
        } else if let Some(account) = self.accounts.get_mut(&principal) {
            account.looked = Some(now);
        }
    }

    fn drop_one(&mut self, id: u64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.is_leaving = true;
            entry.drop.send_replace(true);
            metrics().bodies_dropped.inc();
        }
    }

    /// Gives a body its turn: it may exceed the share of the server that was asked.
    pub(super) fn has_turn(&mut self, id: u64, was_caused: bool, now: Instant) {
        self.goes_on(id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.turn = Some((now, was_caused));
            entry.grew = now;
        }
    }

    /// A user waits for a turn: drops an answer that no user waits for and that has had its turn
    /// for long.
    pub(super) fn hurry(&mut self, now: Instant) {
        let is_long = |since| now.saturating_duration_since(since) >= limits::LARGE_ANSWER_YIELDS;
        let found = self.entries.iter().find(|(_, entry)| {
            let has = matches!(entry.turn, Some((since, true)) if is_long(since));
            has && !entry.is_leaving && !matches!(entry.stage, Stage::Handled(..))
        });
        if let Some(id) = found.map(|(id, _)| *id) {
            self.drop_one(id);
        }
    }

    /// Charges a body to another principal.
    pub(super) fn move_to(
        &mut self,
        shares: &Shares,
        id: u64,
        to: Principal,
    ) -> Result<(), ReachedBound> {
        let Some(entry) = self.entries.get(&id) else { return Ok(()) };
        let (from, bytes) = (entry.principal.clone(), entry.bytes);
        self.subtract(&from, bytes);
        if let Some(bound) = self.bound_of_principal(shares, &to, 0, bytes) {
            self.add(&from, bytes);
            return Err(bound);
        }
        self.leave(&from, id);
        self.accounts.entry(to.clone()).or_default().bodies.insert(id);
        self.add(&to, bytes);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.principal = to;
        }
        Ok(())
    }

    /// Whether answers wait for room.
    pub(super) fn answers_wait(&self) -> bool {
        self.waiting.len() > self.waiting_requests
    }

    /// Charges a part of one body to another one, whatever bound that exceeds. Returns how much it
    /// is.
    pub(super) fn hand_over(&mut self, from: u64, to: u64, bytes: u64) -> u64 {
        let Some(giver) = self.entries.get_mut(&from) else { return 0 };
        let bytes = bytes.min(giver.bytes);
        giver.bytes -= bytes;
        let principal = giver.principal.clone();
        self.subtract(&principal, bytes);
        let Some(taker) = self.entries.get_mut(&to) else { return 0 };
        taker.bytes += bytes;
        let principal = taker.principal.clone();
        self.add(&principal, bytes);
        bytes
    }

    pub(super) fn arrived(&mut self, id: u64, may_be_dropped: bool, now: Instant) {
        self.goes_on(id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.stage = Stage::Handled(now, may_be_dropped);
        }
    }

    fn leave(&mut self, principal: &Principal, id: u64) {
        if let Some(account) = self.accounts.get_mut(principal) {
            account.bodies.remove(&id);
            if account.bodies.is_empty() {
                self.accounts.remove(principal);
            }
        }
    }

    pub(super) fn end(&mut self, id: u64) {
        self.goes_on(id);
        let Some(entry) = self.entries.remove(&id) else { return };
        self.subtract(&entry.principal, entry.bytes);
        self.leave(&entry.principal, id);
    }
}
