//! What this homeserver accepts from others, in accounts by homeserver: how much of each kind they
//! may still send now.
//!
//! A request is admitted before any part of it is accepted, or refused as a whole with a time after
//! which the same request is admitted. What cannot be known before, such as how much is recorded,
//! is charged afterwards: it delays the next request.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use ruma::{OwnedServerName, ServerName};
use serde::{Deserialize, Serialize};
use tracing::debug;

use super::site::Site;
use logcabin_base::{
    clock::millis,
    limits::{self, Shares},
    metrics::metrics,
    rate::Rate,
};
use logcabin_engine::Engine;
use logcabin_record::{Offset, Record};
use logcabin_state::Room;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// KiB of request bodies.
    Body,
    /// Events in transactions.
    Event,
    /// Messages to devices of users who share no room with the sender.
    Letter,
    /// Users who were not known.
    NewUser,
    /// EDUs about devices.
    DeviceList,
    /// EDUs of other kinds.
    Edu,
    Invite,
    Knock,
    /// Requests other than transactions.
    Question,
    /// KiB of answers, in hindsight.
    Answer,
    /// KiB of records, in hindsight.
    Recorded,
}

const KINDS: usize = 11;

impl Kind {
    const ALL: [Self; KINDS] = [
        Self::Body,
        Self::Event,
        Self::Letter,
        Self::NewUser,
        Self::DeviceList,
        Self::Edu,
        Self::Invite,
        Self::Knock,
        Self::Question,
        Self::Answer,
        Self::Recorded,
    ];

    /// What counts before a request is read: the kinds that every request adds to.
    const BEFORE_READING: [Self; 2] = [Self::Body, Self::Recorded];

    const fn shares(self) -> Shares {
        match self {
            Self::Body => limits::ORIGIN_KIB,
            Self::Event => limits::ORIGIN_EVENTS,
            Self::Letter => limits::ORIGIN_TO_DEVICE,
            Self::NewUser => limits::ORIGIN_NEW_USERS,
            Self::DeviceList => limits::ORIGIN_DEVICE_LISTS,
            Self::Edu => limits::ORIGIN_EDUS,
            Self::Invite => limits::ORIGIN_INVITES,
            Self::Knock => limits::ORIGIN_KNOCKS,
            Self::Question => limits::ORIGIN_QUESTIONS,
            Self::Answer => limits::ORIGIN_ANSWERS_KIB,
            Self::Recorded => limits::ORIGIN_RECORDED_KIB,
        }
    }

    /// Its name in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::Event => "event",
            Self::Letter => "letter",
            Self::NewUser => "new_user",
            Self::DeviceList => "device_list",
            Self::Edu => "edu",
            Self::Invite => "invite",
            Self::Knock => "knock",
            Self::Question => "question",
            Self::Answer => "answer",
            Self::Recorded => "recorded",
        }
    }
}

/// Amounts of some kinds. An amount of zero asks that the share is not used up.
pub type Amounts = Vec<(Kind, u64)>;

/// The relation of a homeserver to this one: see [`Shares`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OriginClass {
    Stranger,
    Newcomer,
    Neighbour,
}

impl OriginClass {
    /// Its name for people.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stranger => "stranger",
            Self::Newcomer => "newcomer",
            Self::Neighbour => "neighbour",
        }
    }

    const fn rate(self, kind: Kind) -> Rate {
        let shares = kind.shares();
        match self {
            Self::Stranger => shares.stranger,
            Self::Newcomer => shares.newcomer,
            Self::Neighbour => shares.neighbour,
        }
    }

    /// The share of all of them together, or of all neighbours of one site.
    const fn rate_of_all(self, kind: Kind) -> Rate {
        let shares = kind.shares();
        match self {
            Self::Stranger => shares.strangers,
            Self::Newcomer => shares.newcomers,
            Self::Neighbour => shares.neighbour.times(limits::SITE_NEIGHBOURS),
        }
    }
}

/// When the whole share of each kind is free again, in nanoseconds of the table's time.
#[derive(Clone, Copy, Debug, Default)]
struct Buckets([u64; KINDS]);

/// What something costs at a rate, in nanoseconds.
fn cost(rate: Rate, amount: u64) -> u64 {
    nanos(rate.interval()).saturating_mul(amount)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn depth(rate: Rate) -> u64 {
    cost(rate, rate.burst().get().into())
}

impl Buckets {
    /// How long to wait for an amount. One that is larger than the whole share is let through when
    /// that is free: otherwise it never could be.
    fn wait(&self, kind: Kind, rate: Rate, amount: u64, now: u64) -> u64 {
        let ahead = self.0[kind as usize].saturating_sub(now);
        let wanted = cost(rate, amount).clamp(1, depth(rate));
        ahead.saturating_add(wanted).saturating_sub(depth(rate))
    }

    fn spend(&mut self, kind: Kind, rate: Rate, amount: u64, now: u64) {
        if amount == 0 {
            return;
        }
        let full_at = &mut self.0[kind as usize];
        let after = (*full_at).max(now).saturating_add(cost(rate, amount));
        *full_at =
            after.min(now.saturating_add(depth(rate)).saturating_add(nanos(limits::ORIGIN_DEBT)));
    }

    /// How much of the share of a kind is used up, in percent: more than all of it is a debt.
    fn used(&self, kind: Kind, rate: Rate, now: u64) -> u64 {
        let ahead = u128::from(self.0[kind as usize].saturating_sub(now));
        let percent = (ahead * 100).div_ceil(u128::from(depth(rate).max(1)));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }

    fn is_full(&self, now: u64) -> bool {
        self.0.iter().all(|full_at| *full_at <= now)
    }

    /// At most half of each share is used up.
    fn ease(&mut self, standing: OriginClass, now: u64) {
        for kind in Kind::ALL {
            let full_at = &mut self.0[kind as usize];
            *full_at = (*full_at).min(now.saturating_add(depth(standing.rate(kind)) / 2));
        }
    }
}

/// The account of a homeserver.
#[derive(Debug)]
struct OriginAccount {
    standing: OriginClass,
    /// When that was found out, whether that still counts, and when the homeserver was first heard
    /// of, as far as this account goes back.
    assessed: u64,
    is_assessed: bool,
    first: u64,
    buckets: Buckets,
    site: Site,
}

/// The accounts without the engine: time and standing are given.
#[derive(Debug, Default)]
struct OriginTable {
    accounts: HashMap<OwnedServerName, OriginAccount>,
    strangers: Buckets,
    newcomers: Buckets,
    /// Of neighbours.
    sites: HashMap<Site, Buckets>,
    swept: u64,
}

impl OriginTable {
    /// The relation of a homeserver, if it was determined recently.
    fn standing(&mut self, server: &ServerName, now: u64) -> Option<OriginClass> {
        self.sweep(now);
        let account = self.accounts.get(server)?;
        let (strange, known) = limits::STANDING_TIME;
        let lasts = if account.standing == OriginClass::Stranger { strange } else { known };
        let is_recent = now.saturating_sub(account.assessed) < nanos(lasts);
        (account.is_assessed && is_recent).then_some(account.standing)
    }

    /// Notes the relation of a homeserver, and opens its account. One for which there is no space
    /// is treated as a stranger.
    fn assessed(&mut self, server: &ServerName, found: OriginClass, now: u64) -> OriginClass {
        if let Some(account) = self.accounts.get_mut(server) {
            let is_old = now.saturating_sub(account.first) >= nanos(limits::NEWCOMER_TIME);
            let standing = match found {
                OriginClass::Newcomer if is_old => OriginClass::Neighbour,
                found => found,
            };
            if account.standing == OriginClass::Stranger && standing != OriginClass::Stranger {
                account.buckets.ease(standing, now);
            }
            (account.standing, account.assessed, account.is_assessed) = (standing, now, true);
            return standing;
        }
        if self.accounts.len() >= limits::ORIGINS_REMEMBERED {
            return OriginClass::Stranger;
        }
        let (standing, buckets) = (found, Buckets::default());
        let site = Site::of(server);
        let account =
            OriginAccount { standing, assessed: now, is_assessed: true, first: now, buckets, site };
        self.accounts.insert(server.to_owned(), account);
        found
    }

    /// Forgets those who have their whole share again. Of those who share a room it is remembered
    /// for some time when they were first heard of.
    fn sweep(&mut self, now: u64) {
        let is_full = self.accounts.len() >= limits::ORIGINS_REMEMBERED;
        let every = if is_full { Duration::from_secs(1) } else { limits::RATE_LIMIT_SWEEP };
        if now.saturating_sub(self.swept) < nanos(every) {
            return;
        }
        self.swept = now;
        self.accounts.retain(|_, account| {
            let is_remembered = account.standing == OriginClass::Newcomer
                && now.saturating_sub(account.first) < 2 * nanos(limits::NEWCOMER_TIME);
            is_remembered || !account.buckets.is_full(now)
        });
        self.accounts.shrink_to_fit();
        self.sites.retain(|_, buckets| !buckets.is_full(now));
        self.sites.shrink_to_fit();
    }

    /// The buckets that a homeserver shares with others.
    fn of_all(&self, server: &ServerName, standing: OriginClass) -> Buckets {
        match standing {
            OriginClass::Stranger => self.strangers,
            OriginClass::Newcomer => self.newcomers,
            OriginClass::Neighbour => self.of_site(server, standing),
        }
    }

    /// The buckets that a neighbour shares with the others of its site. Those of others are full.
    fn of_site(&self, server: &ServerName, standing: OriginClass) -> Buckets {
        let account = self.accounts.get(server).filter(|_| standing == OriginClass::Neighbour);
        let buckets = account.and_then(|account| self.sites.get(&account.site));
        buckets.copied().unwrap_or_default()
    }

    /// The kind for which there is the longest wait, and that wait.
    fn wait(
        &self,
        server: &ServerName,
        standing: OriginClass,
        amounts: &[(Kind, u64)],
        now: u64,
    ) -> Option<(Kind, u64)> {
        let own = self.accounts.get(server).map(|account| account.buckets);
        let all = self.of_all(server, standing);
        let wait = |(kind, amount): &(Kind, u64)| {
            let own = own.map_or(0, |own| own.wait(*kind, standing.rate(*kind), *amount, now));
            let all = all.wait(*kind, standing.rate_of_all(*kind), *amount, now);
            (*kind, own.max(all))
        };
        amounts.iter().map(wait).max_by_key(|(_, wait)| *wait).filter(|(_, wait)| *wait > 0)
    }

    fn spend(
        &mut self,
        server: &ServerName,
        standing: OriginClass,
        amounts: &[(Kind, u64)],
        now: u64,
    ) {
        let mut account = self.accounts.get_mut(server);
        let mut all = match (standing, &account) {
            (OriginClass::Stranger, _) => Some(&mut self.strangers),
            (OriginClass::Newcomer, _) => Some(&mut self.newcomers),
            (OriginClass::Neighbour, Some(account)) => {
                Some(self.sites.entry(account.site.clone()).or_default())
            }
            (OriginClass::Neighbour, None) => None,
        };
        for (kind, amount) in amounts {
            if let Some(account) = &mut account {
                account.buckets.spend(*kind, standing.rate(*kind), *amount, now);
            }
            if let Some(all) = &mut all {
                all.spend(*kind, standing.rate_of_all(*kind), *amount, now);
            }
        }
    }
}

/// How much of its shares a homeserver has used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginUsage {
    pub(crate) standing: OriginClass,
    /// Of the shares that are partly used up: how much, in percent. More than 100 is a debt, with
    /// which the homeserver waits.
    pub(crate) percent: Vec<(Kind, u64)>,
}

impl fmt::Display for OriginUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "as a {}: ", self.standing.name())?;
        if self.percent.is_empty() {
            return f.write_str("nothing");
        }
        for (number, (kind, percent)) in self.percent.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{} {percent} %", kind.name().replace('_', " "))?;
        }
        Ok(())
    }
}

type Tell = dyn Fn(&ServerName, &[(Kind, u64)]) + Send + Sync;

/// The accounts of other homeservers.
pub struct OriginLimits {
    engine: Arc<Engine>,
    is_enabled: bool,
    began: Instant,
    table: Mutex<OriginTable>,
    /// Tells the other nodes of a cluster what was spent.
    tell: OnceLock<Box<Tell>>,
}

impl fmt::Debug for OriginLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OriginLimits")
    }
}

impl OriginLimits {
    /// Accounts that bound nothing unless they are enabled.
    pub(crate) fn new(engine: &Arc<Engine>, is_enabled: bool) -> Self {
        Self {
            engine: Arc::clone(engine),
            is_enabled,
            began: Instant::now(),
            table: Mutex::default(),
            tell: OnceLock::new(),
        }
    }

    /// Whether they bound anything.
    pub(crate) const fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// From now on, has the other nodes told what was spent here. To be called once.
    pub fn tell_others_with(
        &self,
        tell: impl Fn(&ServerName, &[(Kind, u64)]) + Send + Sync + 'static,
    ) {
        let _ = self.tell.set(Box::new(tell));
    }

    fn now(&self) -> u64 {
        nanos(self.began.elapsed())
    }

    /// Takes these amounts, all or none.
    ///
    /// # Errors
    /// How long to wait until all of them are free.
    pub fn admit(&self, server: &ServerName, amounts: &[(Kind, u64)]) -> Result<(), Duration> {
        if !self.is_enabled {
            return Ok(());
        }
        let now = self.now();
        let standing = self.standing(server, now);
        let mut table = self.table.lock();
        if let Some((kind, wait)) = table.wait(server, standing, amounts, now) {
            drop(table);
            return Err(refused(server, standing, kind, wait));
        }
        table.spend(server, standing, amounts, now);
        drop(table);
        self.tell(server, amounts);
        Ok(())
    }

    /// Charges what has become of a request.
    pub(crate) fn charge(&self, server: &ServerName, kind: Kind, amount: u64) {
        if !self.is_enabled || amount == 0 {
            return;
        }
        self.note(server, &[(kind, amount)]);
        // Most are small, and not worth a message to each node.
        if amount > limits::ORIGIN_TOLD {
            self.tell(server, &[(kind, amount)]);
        }
    }

    /// Charges bytes, in units of a KiB.
    pub fn charge_bytes(&self, server: &ServerName, kind: Kind, bytes: u64) {
        self.charge(server, kind, bytes.div_ceil(1024));
    }

    /// Charges what was spent at another node.
    pub fn note(&self, server: &ServerName, amounts: &[(Kind, u64)]) {
        if !self.is_enabled {
            return;
        }
        let now = self.now();
        let standing = self.standing(server, now);
        let mut table = self.table.lock();
        table.spend(server, standing, amounts, now);
    }

    /// How long a homeserver that has overdrawn its account has to wait with any request. Nothing
    /// is charged, so it may be asked of one that a request only claims to be from: whoever it is
    /// from, it would be refused.
    pub fn overdrawn(&self, server: &ServerName) -> Option<Duration> {
        if !self.is_enabled {
            return None;
        }
        let now = self.now();
        let table = self.table.lock();
        let account = table.accounts.get(server)?;
        // A stranger may have entered a room since, and share nothing with the others any more.
        let site = table.of_site(server, account.standing);
        let wait = |kind| {
            let own = account.buckets.wait(kind, account.standing.rate(kind), 0, now);
            own.max(site.wait(kind, account.standing.rate_of_all(kind), 0, now))
        };
        let (kind, wait) = Kind::BEFORE_READING
            .map(|kind| (kind, wait(kind)))
            .into_iter()
            .max_by_key(|of| of.1)?;
        let standing = account.standing;
        drop(table);
        (wait > 0).then(|| refused(server, standing, kind, wait))
    }

    /// What a homeserver has used up, by itself or with the other neighbours of its site; nothing,
    /// if that is not bounded.
    pub fn used(&self, server: &ServerName) -> Option<OriginUsage> {
        if !self.is_enabled {
            return None;
        }
        let now = self.now();
        let standing = self.standing(server, now);
        let (own, site) = {
            let table = self.table.lock();
            let own = table.accounts.get(server).map(|account| account.buckets);
            (own.unwrap_or_default(), table.of_site(server, standing))
        };
        let used = Kind::ALL.map(|kind| {
            let own = own.used(kind, standing.rate(kind), now);
            (kind, own.max(site.used(kind, standing.rate_of_all(kind), now)))
        });
        let percent = used.into_iter().filter(|(_, percent)| *percent > 0).collect();
        Some(OriginUsage { standing, percent })
    }

    /// Whether a homeserver shares a room, and has done so for some time.
    pub(crate) fn is_neighbour(&self, server: &ServerName) -> bool {
        self.standing(server, self.now()) == OriginClass::Neighbour
    }

    /// Whether a homeserver shares no room.
    pub fn is_stranger(&self, server: &ServerName) -> bool {
        self.standing(server, self.now()) == OriginClass::Stranger
    }

    /// The relation of a homeserver has changed.
    pub(crate) fn reassess(&self, server: &ServerName) {
        if let Some(account) = self.table.lock().accounts.get_mut(server) {
            account.is_assessed = false;
        }
    }

    fn tell(&self, server: &ServerName, amounts: &[(Kind, u64)]) {
        if let Some(tell) = self.tell.get()
            && amounts.iter().any(|(_, amount)| *amount > 0)
        {
            tell(server, amounts);
        }
    }

    /// The relation of a homeserver to this one. Determining it requires a look at every room,
    /// which runs in the background.
    fn standing(&self, server: &ServerName, now: u64) -> OriginClass {
        let known = self.table.lock().standing(server, now);
        known.unwrap_or_else(|| {
            let found = self.assess(server);
            self.table.lock().assessed(server, found, now)
        })
    }

    fn assess(&self, server: &ServerName) -> OriginClass {
        let (state, own) = (self.engine.state(), &self.engine.env().server.name);
        let shares = |room: &Arc<Room>| room.has_server(server) && room.has_server(own);
        if !state.rooms.all().iter().any(shares) {
            return OriginClass::Stranger;
        }
        // Its keys are renewed now and then, and after an outage at once; what it was last told of
        // is then older.
        let keys = state.federation_keys.get(server).map(|peer| peer.record);
        let told = state.destinations.get(server).map(|destination| destination.up_to);
        let known = keys.into_iter().chain(told.filter(|up_to| *up_to > Offset::ZERO));
        let since = known.filter_map(|record| self.time_of(record)).min();
        let age = since.map(|since| self.engine.clock().now_ms().saturating_sub(since));
        if age.is_some_and(|age| age >= millis(limits::NEWCOMER_TIME)) {
            OriginClass::Neighbour
        } else {
            OriginClass::Newcomer
        }
    }

    fn time_of(&self, record: Offset) -> Option<u64> {
        let read = self.engine.log().read(record, 1).ok()?;
        read.first().map(heard_ms)
    }
}

/// When this server heard of another by a record, in milliseconds since the Unix epoch. One that
/// the imported server knew is no newcomer, although its record is new: after a move, all others
/// have something to catch up with.
fn heard_ms(record: &Record) -> u64 {
    match record.header.origin.import() {
        Some(_) => record.original_ms().unwrap_or(0),
        None => record.header.time_ms,
    }
}

fn refused(server: &ServerName, standing: OriginClass, kind: Kind, wait: u64) -> Duration {
    let wait = Duration::from_nanos(wait).max(Duration::from_millis(1));
    debug!(%server, ?standing, kind = kind.name(), ?wait, "a homeserver is over its share");
    metrics().federation_refused.with_label_values(&[kind.name()]).inc();
    wait
}

#[cfg(test)]
mod tests {
    use ruma::server_name;

    use super::*;
    use logcabin_base::clock::Clock;
    use logcabin_log::{Batch, Log, StreamHeads, memory::MemoryLog};
    use logcabin_record::{
        NewRecord, Origin, Stream,
        command::{ImportSource, KeysDrop},
    };

    const SECOND: u64 = 1_000_000_000;

    fn ask(
        table: &mut OriginTable,
        server: &ServerName,
        standing: OriginClass,
        amounts: &[(Kind, u64)],
        now: u64,
    ) -> Result<(), (Kind, u64)> {
        let standing =
            table.standing(server, now).unwrap_or_else(|| table.assessed(server, standing, now));
        match table.wait(server, standing, amounts, now) {
            Some(refused) => Err(refused),
            None => {
                table.spend(server, standing, amounts, now);
                Ok(())
            }
        }
    }

    fn name(number: usize) -> OwnedServerName {
        format!("s{number}.example").try_into().unwrap()
    }

    #[tokio::test]
    async fn a_homeserver_that_an_imported_server_knew_is_no_newcomer() {
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new(Clock::manual(1_000_000)));
        log.start(StreamHeads::default(), Box::new(|_| {}));
        let command = KeysDrop {}.into();
        let own = NewRecord::new(Stream::server(), Origin::server(), &command);
        let imported = |original_ms| {
            let (stream, source) = (Stream::server(), ImportSource::Synapse);
            NewRecord::imported(stream, source, "destinations", original_ms, &command)
        };
        let records = vec![own, imported(None), imported(Some(5))];
        log.append(Batch { expect: Vec::new(), records }).await.unwrap();
        let records = log.read(Offset::new(1), 3).unwrap();
        let heard: Vec<u64> = records.iter().map(heard_ms).collect();
        assert_eq!(heard, [1_000_000, 0, 5]);
    }

    #[test]
    fn kinds_have_their_places() {
        for (place, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
        }
    }

    #[test]
    fn all_amounts_are_taken_or_none_and_the_same_are_taken_after_the_wait() {
        let (mut table, of) = (OriginTable::default(), server_name!("a.example"));
        let letters = limits::ORIGIN_TO_DEVICE.stranger.burst().get().into();
        let mut ask =
            |amounts: &[(Kind, u64)], now| ask(&mut table, of, OriginClass::Stranger, amounts, now);
        ask(&[(Kind::Letter, letters)], 0).unwrap();
        let both = [(Kind::Body, 4096), (Kind::Letter, 2)];
        let (kind, wait) = ask(&both, 0).unwrap_err();
        assert_eq!((kind, wait), (Kind::Letter, 2 * SECOND));
        // What was refused has taken nothing of the other kind.
        ask(&[(Kind::Body, 4096)], 0).unwrap();
        let (kind, wait) = ask(&both, 0).unwrap_err();
        assert_eq!(kind, Kind::Body);
        ask(&both, wait - 1).unwrap_err();
        ask(&both, wait).unwrap();
    }

    #[test]
    fn what_is_larger_than_the_share_passes_when_that_is_free_and_is_owed() {
        let (mut table, of) = (OriginTable::default(), server_name!("a.example"));
        let mut ask =
            |amount, now| ask(&mut table, of, OriginClass::Stranger, &[(Kind::Body, amount)], now);
        ask(8 * 1024, 0).unwrap();
        // Twice the share was taken: the rest of it is owed, too.
        let (_, wait) = ask(0, 0).unwrap_err();
        assert!(wait > 127 * SECOND, "{wait}");
        ask(8 * 1024, wait).unwrap_err();
        ask(8 * 1024, 256 * SECOND).unwrap();
    }

    #[test]
    fn a_newcomer_catches_up_with_ten_thousand_events_without_waiting() {
        let (mut table, of) = (OriginTable::default(), server_name!("a.example"));
        for number in 0..200 {
            let now = number * SECOND / 10;
            let body = [(Kind::Body, 100), (Kind::Recorded, 0)];
            ask(&mut table, of, OriginClass::Newcomer, &body, now).unwrap();
            let events = [(Kind::Event, 50), (Kind::Edu, 10)];
            ask(&mut table, of, OriginClass::Newcomer, &events, now).unwrap();
            table.spend(of, OriginClass::Newcomer, &[(Kind::Recorded, 100)], now);
        }
    }

    #[test]
    fn debts_in_hindsight_are_bounded_in_time() {
        let (mut table, of) = (OriginTable::default(), server_name!("a.example"));
        table.assessed(of, OriginClass::Stranger, 0);
        table.spend(of, OriginClass::Stranger, &[(Kind::Recorded, u64::MAX)], 0);
        let asked = [(Kind::Recorded, 0)];
        let (_, wait) = table.wait(of, OriginClass::Stranger, &asked, 0).unwrap();
        assert!(wait <= nanos(limits::ORIGIN_DEBT) + 1, "{wait}");
        assert_eq!(table.wait(of, OriginClass::Stranger, &asked, wait), None);
    }

    #[test]
    fn strangers_share_what_a_neighbour_need_not_wait_for() {
        let mut table = OriginTable::default();
        let invites = [(Kind::Invite, 1)];
        let mut taken = 0;
        for number in 0..1000 {
            for _ in 0..10 {
                taken += u32::from(
                    ask(&mut table, &name(number), OriginClass::Stranger, &invites, 0).is_ok(),
                );
            }
        }
        assert_eq!(taken, limits::ORIGIN_INVITES.strangers.burst().get());
        let others = [(5000, OriginClass::Newcomer), (5001, OriginClass::Neighbour)];
        for (number, standing) in others {
            ask(&mut table, &name(number), standing, &invites, 0).unwrap();
        }
    }

    #[test]
    fn neighbours_of_one_site_share_what_those_of_another_need_not_wait_for() {
        let (mut table, amounts) = (OriginTable::default(), [(Kind::Event, 1000)]);
        let mut taken = 0;
        for number in 0..100 {
            let name = format!("n{number}.matrix.evil.example:{}", 1000 + number);
            let name = OwnedServerName::try_from(name).unwrap();
            while ask(&mut table, &name, OriginClass::Neighbour, &amounts, 0).is_ok() {
                taken += 1000;
            }
        }
        let own = limits::ORIGIN_EVENTS.neighbour.burst().get();
        assert_eq!(taken, limits::SITE_NEIGHBOURS * own);
        let other = server_name!("good.example");
        ask(&mut table, other, OriginClass::Neighbour, &amounts, 0).unwrap();
        // Nothing is kept of a site that has its whole share again.
        table.sweep(24 * 3600 * SECOND);
        assert_eq!(table.sites.len(), 0);
    }

    #[test]
    fn made_up_names_take_a_bounded_memory_and_share_one_account() {
        let mut table = OriginTable::default();
        for number in 0..limits::ORIGINS_REMEMBERED + 100 {
            let _ = ask(&mut table, &name(number), OriginClass::Neighbour, &[(Kind::Event, 1)], 0);
        }
        assert_eq!(table.accounts.len(), limits::ORIGINS_REMEMBERED);
        let left = limits::ORIGIN_EVENTS.strangers.burst().get() - 100;
        let amounts = [(Kind::Event, u64::from(left) + 1)];
        let last = name(limits::ORIGINS_REMEMBERED + 200);
        ask(&mut table, &last, OriginClass::Neighbour, &amounts, 0).unwrap_err();
        // Those that owe nothing are forgotten.
        ask(&mut table, &last, OriginClass::Neighbour, &[(Kind::Event, 1)], 3600 * SECOND).unwrap();
        assert_eq!(table.accounts.len(), 1);
    }

    #[test]
    fn a_stranger_that_enters_a_room_has_the_share_of_a_newcomer_and_later_that_of_a_neighbour() {
        let (mut table, of) = (OriginTable::default(), server_name!("a.example"));
        let questions = |count| [(Kind::Question, count)];
        ask(&mut table, of, OriginClass::Stranger, &questions(200), 0).unwrap();
        ask(&mut table, of, OriginClass::Stranger, &questions(1), 0).unwrap_err();
        table.assessed(of, OriginClass::Newcomer, SECOND);
        ask(&mut table, of, OriginClass::Newcomer, &questions(1000), SECOND).unwrap();
        let later = SECOND + nanos(limits::NEWCOMER_TIME);
        assert_eq!(table.assessed(of, OriginClass::Newcomer, later), OriginClass::Neighbour);
    }
}
