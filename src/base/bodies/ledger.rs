//! Who holds how much, what the bounds are, and who makes room.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::{Payer, Shares};
use crate::{
    limits,
    metrics::{Transfer, metrics},
};

/// The bound that a body has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    OfPayer,
    /// Of one server or host that was asked for answers.
    OfAnswers,
    /// Of all payers of the kind.
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

/// Payers that nothing is known about, so there may be very many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Addresses,
    Strangers,
}

impl Payer {
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

    /// The same for a kind of payers.
    const fn of_kind(&self, kind: Kind) -> (u64, u64) {
        match kind {
            Kind::Addresses => (self.requests / 4 * 3, self.requests / 8),
            Kind::Strangers => (self.requests / 4, 0),
        }
    }

    const fn of_payer(&self, payer: &Payer) -> u64 {
        match payer {
            Payer::Stranger(_) => self.requests / 16,
            Payer::Asked(_) => self.answers / 4,
            _ => self.requests / 4,
        }
    }

    const fn of(&self, bound: Bound, payer: &Payer) -> u64 {
        match (bound, payer.kind()) {
            (Bound::OfKind, Some(kind)) => self.of_kind(kind).0,
            (Bound::OfPool, _) => self.of_pool(payer.pool()).0,
            _ => self.of_payer(payer),
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
    payer: Payer,
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
struct Account {
    bytes: u64,
    bodies: BTreeSet<u64>,
    looked: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    entries: BTreeMap<u64, Entry>,
    next: u64,
    accounts: HashMap<Payer, Account>,
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

impl Ledger {
    pub(super) fn begin(&mut self, payer: Payer, drop: watch::Sender<bool>, now: Instant) -> u64 {
        let id = self.next;
        self.next += 1;
        self.accounts.entry(payer.clone()).or_default().bodies.insert(id);
        let entry = Entry {
            payer,
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

    pub(super) fn payer(&self, id: u64) -> Option<Payer> {
        self.entries.get(&id).map(|entry| entry.payer.clone())
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

    fn of_payer(&self, payer: &Payer) -> u64 {
        self.accounts.get(payer).map_or(0, |account| account.bytes)
    }

    const fn sum(&mut self, pool: Pool) -> (&mut u64, Transfer) {
        match pool {
            Pool::Requests => (&mut self.requests, Transfer::Requests),
            Pool::Answers => (&mut self.answers, Transfer::Answers),
        }
    }

    fn add(&mut self, payer: &Payer, bytes: u64) {
        let (sum, transfer) = self.sum(payer.pool());
        *sum += bytes;
        metrics().body_bytes.of_value(transfer).set(i64::try_from(*sum).unwrap_or(i64::MAX));
        match payer.kind() {
            Some(Kind::Addresses) => self.addresses += bytes,
            Some(Kind::Strangers) => self.strangers += bytes,
            None => {}
        }
        if let Some(account) = self.accounts.get_mut(payer) {
            account.bytes += bytes;
        }
    }

    fn subtract(&mut self, payer: &Payer, bytes: u64) {
        let (sum, transfer) = self.sum(payer.pool());
        *sum = sum.saturating_sub(bytes);
        metrics().body_bytes.of_value(transfer).set(i64::try_from(*sum).unwrap_or(i64::MAX));
        match payer.kind() {
            Some(Kind::Addresses) => self.addresses = self.addresses.saturating_sub(bytes),
            Some(Kind::Strangers) => self.strangers = self.strangers.saturating_sub(bytes),
            None => {}
        }
        if let Some(account) = self.accounts.get_mut(payer) {
            account.bytes = account.bytes.saturating_sub(bytes);
        }
    }

    /// The bound that a body of this payer exceeds if it grows from `own` bytes by `more`.
    fn bound(&self, shares: &Shares, payer: &Payer, own: u64, more: u64) -> Option<Bound> {
        let most = for_body(shares.of_pool(payer.pool()), own + more);
        if self.in_pool(payer.pool()) + more > most {
            return Some(Bound::OfPool);
        }
        self.bound_of_payer(shares, payer, own, more)
    }

    /// The same for the bounds below that of the pool.
    ///
    /// A payer's only request may exceed the payer's share, and the only one of a kind may exceed
    /// the kind's: any request within the size limit can be made, but not beside others.
    fn bound_of_payer(&self, shares: &Shares, payer: &Payer, own: u64, more: u64) -> Option<Bound> {
        let of_payer = self.of_payer(payer);
        let exceeds = of_payer + more > shares.of_payer(payer);
        if payer.pool() == Pool::Answers {
            return exceeds.then_some(Bound::OfAnswers);
        }
        if exceeds && of_payer > own {
            return Some(Bound::OfPayer);
        }
        let kind = payer.kind()?;
        let of_kind = self.of_kind(kind);
        let most = for_body(shares.of_kind(kind), own + more);
        let exceeds = of_kind + more > most && of_kind > own;
        exceeds.then_some(Bound::OfKind)
    }

    /// Reserves `to` bytes in total for a body. One that has its turn may exceed its payer's share.
    pub(super) fn reserve(
        &mut self,
        shares: &Shares,
        id: u64,
        to: u64,
        has_turn: bool,
        now: Instant,
    ) -> Result<(), Bound> {
        let Some(entry) = self.entries.get(&id) else { return Ok(()) };
        let more = to.saturating_sub(entry.bytes);
        match self.bound(shares, &entry.payer, entry.bytes, more) {
            Some(Bound::OfAnswers) if has_turn => {}
            Some(bound) => return Err(bound),
            None if self.gives_way(shares, id, entry, to, now) => return Err(Bound::OfPool),
            None => {}
        }
        let payer = entry.payer.clone();
        self.add(&payer, more);
        self.goes_on(id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.bytes = to;
            entry.grew = now;
        }
        Ok(())
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
            let in_kind = other.payer.kind().filter(|kind| own.payer.kind() == Some(*kind));
            let fits_both = in_kind.is_none_or(|kind| {
                fits(self.of_kind(kind), for_body(shares.of_kind(kind), other.wants))
            }) && fits(
                self.in_pool(own.payer.pool()),
                for_body(shares.of_pool(own.payer.pool()), other.wants),
            );
            other.payer.pool() == own.payer.pool()
                && !other.is_leaving
                && !fits_both
                && self.rank(other, other.wants, now) < mine
        })
    }

    /// Makes a body wait for room for `to` bytes in total. If too many wait, the one of the highest
    /// rank is dropped.
    pub(super) fn waits(&mut self, id: u64, to: u64, now: Instant) -> Result<(), Bound> {
        let Some(entry) = self.entries.get_mut(&id) else { return Err(Bound::Waiting) };
        entry.wants = to;
        if entry.stage == Stage::Waiting {
            return Ok(());
        }
        let is_request = entry.payer.pool() == Pool::Requests;
        if is_request && self.waiting_requests >= limits::BODIES_WAITING {
            let mine = self.entries.get(&id).map(|entry| self.rank(entry, to, now));
            let others = self.waiting.iter().filter_map(|other| {
                let entry = self.entries.get(other)?;
                let stays = entry.is_leaving || entry.payer.pool() != Pool::Requests;
                (!stays).then(|| (self.rank(entry, entry.wants, now), *other))
            });
            match others.max() {
                Some((rank, other)) if Some(rank) > mine => self.drop_one(other),
                _ => return Err(Bound::Waiting),
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
            if entry.payer.pool() == Pool::Requests {
                self.waiting_requests = self.waiting_requests.saturating_sub(1);
            }
        }
    }

    /// How soon a body makes room for others, the highest rank first. It compares what the payers
    /// hold, in powers of two, and then size times age. A body that has its turn comes last,
    /// however large it is.
    fn rank(&self, entry: &Entry, own: u64, now: Instant) -> (u32, u128) {
        if entry.turn.is_some() {
            return (0, 0);
        }
        let of_payer = self.of_payer(&entry.payer) - entry.bytes + own;
        let age = now.saturating_duration_since(entry.began).as_millis() + 1;
        (of_payer.checked_ilog2().unwrap_or(0), u128::from(own) * age)
    }

    /// Drops bodies so that one that has waited for `waited` can have `to` bytes: idle ones,
    /// waiting ones of a higher rank, and after [`limits::BODY_YIELDS`] all of a higher rank.
    pub(super) fn make_room(
        &mut self,
        shares: &Shares,
        id: u64,
        to: u64,
        bound: Bound,
        waited: Duration,
        now: Instant,
    ) {
        let Some(own) = self.entries.get(&id) else { return };
        let payer = own.payer.clone();
        let is_of_payer = matches!(bound, Bound::OfPayer | Bound::OfAnswers);
        let looked = if is_of_payer {
            self.accounts.get(&payer).and_then(|account| account.looked)
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
        let wanted = more.max(shares.of(bound, &payer) / 8);
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
        if is_of_payer {
            let of_payer = self.accounts.get(&payer).map(|account| &account.bodies);
            for other in of_payer.into_iter().flatten() {
                if let Some(entry) = self.entries.get(other) {
                    look(*other, entry);
                }
            }
        } else {
            for (other, entry) in &self.entries {
                let is_of_kind = bound != Bound::OfKind || entry.payer.kind() == payer.kind();
                if is_of_kind && entry.payer.pool() == payer.pool() {
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
        if !is_of_payer {
            self.looked = Some(now);
        } else if let Some(account) = self.accounts.get_mut(&payer) {
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

    /// Charges a body to another payer.
    pub(super) fn move_to(&mut self, shares: &Shares, id: u64, to: Payer) -> Result<(), Bound> {
        let Some(entry) = self.entries.get(&id) else { return Ok(()) };
        let (from, bytes) = (entry.payer.clone(), entry.bytes);
        self.subtract(&from, bytes);
        if let Some(bound) = self.bound_of_payer(shares, &to, 0, bytes) {
            self.add(&from, bytes);
            return Err(bound);
        }
        self.leave(&from, id);
        self.accounts.entry(to.clone()).or_default().bodies.insert(id);
        self.add(&to, bytes);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.payer = to;
        }
        Ok(())
    }

    pub(super) fn arrived(&mut self, id: u64, may_be_dropped: bool, now: Instant) {
        self.goes_on(id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.stage = Stage::Handled(now, may_be_dropped);
        }
    }

    fn leave(&mut self, payer: &Payer, id: u64) {
        if let Some(account) = self.accounts.get_mut(payer) {
            account.bodies.remove(&id);
            if account.bodies.is_empty() {
                self.accounts.remove(payer);
            }
        }
    }

    pub(super) fn end(&mut self, id: u64) {
        self.goes_on(id);
        let Some(entry) = self.entries.remove(&id) else { return };
        self.subtract(&entry.payer, entry.bytes);
        self.leave(&entry.payer, id);
    }
}
