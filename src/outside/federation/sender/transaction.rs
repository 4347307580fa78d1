//! Transactions: their delivery to a homeserver.
//!
//! A homeserver that refuses a transaction because of its contents (400 or 413) is sent parts of
//! it, down to single items. An item that it refuses alone is set aside, if it then accepts an
//! empty transaction: otherwise it refuses everything (it denies this homeserver, or a proxy in
//! front of it does), and nothing that waits for it is dropped.
//!
//! A homeserver that fails (500) may do so because of an item, too: some do at every attempt. After
//! a while, that counts as a refusal, but an item is set aside for it only if the homeserver
//! accepts another one.

use std::{collections::BTreeMap, fmt, sync::Arc};

use ruma::ServerName;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::{Duration, Instant, sleep};
use tracing::{debug, warn};

use super::{
    Sender,
    bisect::Bisection,
    edus::Edu,
    items::{Item, Load},
};
use crate::federation::{FederationRequest, FederationResponse, Unreachable};
use logcabin_base::{
    clock::{millis, random_letters},
    limits,
    metrics::{Tried, Withheld, metrics},
    text::beginning,
};
use logcabin_record::{Offset, command::SetAsideItem};

/// The body of a transaction. Its items are written as they are.
#[derive(Serialize)]
struct Transaction<'a> {
    origin: &'a ServerName,
    origin_server_ts: u64,
    pdus: Vec<&'a RawValue>,
    edus: Vec<&'a RawValue>,
}

/// For how long a homeserver has failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fails {
    /// Not at all, or lately only, or the last time for another reason: it may be over soon.
    Lately,
    /// For long: it may be because of what it is sent.
    Long,
}

/// The outcome of a transaction that was answered.
enum TransactionResult {
    Accepted,
    /// Because of its contents.
    Refused(RefusedTransaction),
    /// It has taken enough for now, and says when it takes more.
    Later(Duration),
}

/// The answer of a homeserver that refuses a transaction.
#[derive(Clone, Debug)]
pub(super) struct RefusedTransaction {
    status: u16,
    /// What it says about it.
    said: String,
}

impl RefusedTransaction {
    /// Whether it is not clear that the contents are the cause.
    const fn is_fault(&self) -> bool {
        self.status == FAULT
    }
}

/// Why a delivery cannot continue now.
#[derive(Debug)]
pub(super) enum Failure {
    Unreachable(Unreachable),
    /// It does not even accept an empty transaction.
    Everything(RefusedTransaction),
    /// It accepts no more for some time.
    Later(Duration),
}

impl Failure {
    /// Whether there is a homeserver, which refuses.
    pub(super) const fn is_refusal(&self) -> bool {
        // 408 and 429 ask to retry later.
        match self {
            Self::Unreachable(Unreachable::Status(status)) => {
                matches!(*status, 400..=407 | 409..=428 | 430..=499)
            }
            Self::Unreachable(_) | Self::Later(_) => false,
            Self::Everything(_) => true,
        }
    }

    /// Whether the homeserver fails itself.
    fn is_fault(&self) -> bool {
        matches!(self, Self::Everything(refusal) if refusal.is_fault())
    }

    /// The pause that the homeserver asks for.
    pub(super) const fn pause(&self) -> Option<Duration> {
        match self {
            Self::Later(pause) => Some(*pause),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(unreachable) => unreachable.fmt(f),
            Self::Everything(RefusedTransaction { status, said }) => {
                write!(f, "it refuses every transaction with status {status}: {said}")
            }
            Self::Later(pause) => write!(f, "it takes no more for {} s", pause.as_secs()),
        }
    }
}

/// The delivery of a load.
struct Delivery<'a> {
    server: &'a ServerName,
    load: Load,
    parts: Bisection,
    /// The records of the load that are not done with.
    left: &'a [Offset],
    /// How many of its records are.
    done: usize,
    /// Items that are to be set aside once their records are done with.
    aside: Vec<(Option<usize>, SetAsideItem)>,
    /// The homeserver has taken a transaction, and one with items.
    is_taking: bool,
    has_taken: bool,
    /// It has failed itself.
    has_failed: bool,
    /// Items with which the homeserver fails, while it is not known whether it does with others.
    suspects: Vec<(usize, RefusedTransaction)>,
    fails: Fails,
    /// The id of the next transaction.
    id: String,
    /// A transaction of this delivery was answered: the next one has other contents than the one
    /// that the delivery began with.
    is_answered: bool,
}

impl Sender {
    /// Sends these records to a homeserver, as many as fit into a transaction, and retries until
    /// they have arrived or are set aside. Transient EDUs are sent at the first attempt only.
    pub(super) async fn deliver(&self, server: &ServerName, offsets: &[Offset]) {
        if !offsets.is_empty() {
            self.until_due(server).await;
        }
        let mut transient = match self.destinations.lock().get_mut(server) {
            Some(destination) => destination.take_transient(),
            None => return,
        };
        // All that waits may be held back by its pace.
        if offsets.is_empty() && transient.is_empty() {
            return;
        }
        let (mut id, mut left, mut sent) = (random_letters(20), offsets, None);
        loop {
            if !left.is_empty() && self.is_reset(server, left) {
                return;
            }
            let delivered = match self.reach(server).await {
                Ok(()) => {
                    let load = match self.load(&self.engine.state(), server, left) {
                        Ok(load) => load,
                        Err(error) => {
                            warn!(%server, %error, "the records for a homeserver cannot be read");
                            sleep(limits::DELIVERY_RETRY.1).await;
                            continue;
                        }
                    };
                    // The same id stands for the same records.
                    left = &left[..load.records()];
                    sent.get_or_insert(left);
                    let mut delivery = self.delivery(server, (load, left), id, &mut transient);
                    let delivered = self.send(&mut delivery).await;
                    // The same id stands for the same contents: a homeserver may have taken what it
                    // did not answer, and repeats its answer for the id.
                    id = if delivery.is_answered { random_letters(20) } else { delivery.id };
                    left = delivery.left;
                    delivered
                }
                Err(unreachable) => {
                    transient.clear();
                    Err(Failure::Unreachable(unreachable))
                }
            };
            let failure = match delivered {
                Ok(()) => {
                    self.in_flight(server, sent.unwrap_or_default());
                    return;
                }
                // One of the two servers will never federate with the other.
                Err(Failure::Unreachable(
                    Unreachable::Denied | Unreachable::Own | Unreachable::Name,
                )) => {
                    if let Some(destination) = self.destinations.lock().get_mut(server) {
                        destination.told(left);
                        destination.is_reached();
                    }
                    return;
                }
                Err(failure) => failure,
            };
            if !left.is_empty() && self.is_reset(server, left) {
                return;
            }
            let (pause, back) = self.note_failure(server, &failure);
            // With what came since, it shows whether the homeserver fails at these records only.
            if left.is_empty() || failure.is_fault() {
                return;
            }
            if self.is_lost(server) {
                if let Some(destination) = self.destinations.lock().get_mut(server) {
                    destination.told(left);
                }
                return;
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = back.notified() => sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// Opens a connection to a homeserver that has failed for long, before anything is prepared for
    /// it: there may be thousands that are gone.
    async fn reach(&self, server: &ServerName) -> Result<(), Unreachable> {
        let (attempts, _, time) = limits::DESTINATION_PROBES;
        let is_gone = self.destinations.lock().get(server).is_some_and(|destination| {
            destination.failing.as_ref().is_some_and(|failing| failing.attempts >= attempts)
        });
        if !is_gone {
            return Ok(());
        }
        let Ok(_place) = self.probe_places.acquire().await else { return Err(Unreachable::Late) };
        self.client.reach(server, time).await
    }

    /// Waits until the retry of an unreachable homeserver is due, perhaps one from before a
    /// restart.
    async fn until_due(&self, server: &ServerName) {
        let due = {
            let all = self.destinations.lock();
            let now_ms = self.engine.clock().now_ms();
            all.get(server).and_then(|destination| {
                let left = destination.failing.as_ref()?.again_ms.checked_sub(now_ms)?;
                Some((Duration::from_millis(left), Arc::clone(&destination.back)))
            })
        };
        if let Some((left, back)) = due {
            tokio::select! {
                () = sleep(left) => {}
                () = back.notified() => {}
            }
        }
    }

    /// Whether what waits for an unreachable homeserver is dropped: users wrote to it, it shares no
    /// room with this one, and perhaps it never existed.
    fn is_lost(&self, server: &ServerName) -> bool {
        let now_ms = self.engine.clock().now_ms();
        self.destinations.lock().get(server).is_some_and(|destination| {
            let since_ms = destination.failing.as_ref().map(|failing| failing.since_ms);
            let longest = millis(limits::STRANGER_TIME);
            destination.rooms.is_empty()
                && since_ms.is_some_and(|since_ms| now_ms.saturating_sub(since_ms) > longest)
        })
    }

    /// The delivery of a load from these records.
    fn delivery<'a>(
        &self,
        server: &'a ServerName,
        (mut load, left): (Load, &'a [Offset]),
        id: String,
        transient: &mut Vec<Edu>,
    ) -> Delivery<'a> {
        load.add_transient(std::mem::take(transient));
        let at_ms = self.engine.clock().now_ms();
        let aside = std::mem::take(&mut load.unsendable).into_iter().map(|unsendable| {
            let item = SetAsideItem {
                record: unsendable.of.map(|index| left[index]),
                item: unsendable.name,
                at_ms,
                status: None,
                reason: said(&unsendable.reason),
            };
            (unsendable.of, item)
        });
        let aside = aside.collect();
        let parts = Bisection::new(load.items.len(), |first| load.fits(first));
        Delivery {
            server,
            load,
            parts,
            left,
            done: 0,
            aside,
            is_taking: false,
            has_taken: false,
            has_failed: false,
            suspects: Vec::new(),
            fails: self.fails(server),
            id,
            is_answered: false,
        }
    }

    fn fails(&self, server: &ServerName) -> Fails {
        let now_ms = self.engine.clock().now_ms();
        let all = self.destinations.lock();
        let failing = all.get(server).and_then(|destination| destination.failing.as_ref());
        let is_long = failing.is_some_and(|failing| {
            let is_fault = failing.error.contains(&format!("status {FAULT}"));
            is_fault
                && now_ms.saturating_sub(failing.since_ms) >= millis(limits::DESTINATION_FAULTS)
        });
        if is_long { Fails::Long } else { Fails::Lately }
    }

    /// Sends a load in one transaction, or in several if the homeserver refuses some items.
    async fn send(&self, delivery: &mut Delivery<'_>) -> Result<(), Failure> {
        self.pass(delivery);
        let server = delivery.server;
        while let Some(part) = delivery.parts.next() {
            let items = &delivery.load.items[part.clone()];
            let answered = self.transmit(server, &delivery.id, items, delivery.fails).await;
            let answered = answered.map_err(Failure::Unreachable)?;
            let refusal = match answered {
                TransactionResult::Later(pause) => return Err(Failure::Later(pause)),
                TransactionResult::Accepted => None,
                TransactionResult::Refused(answer) => Some(answer),
            };
            // A homeserver may remember its answer for an id.
            delivery.id = random_letters(20);
            delivery.is_answered = true;
            match refusal {
                None => {
                    (delivery.is_taking, delivery.has_taken) = (true, true);
                    for (index, refusal) in std::mem::take(&mut delivery.suspects) {
                        delivery.set_aside(index, refusal, self.engine.clock().now_ms());
                    }
                    delivery.parts.pass();
                }
                Some(refusal) => {
                    let is_alone = part.len() == 1;
                    delivery.has_failed |= refusal.is_fault();
                    if is_alone || !delivery.is_taking {
                        self.probe(server, &refusal, delivery.fails).await?;
                        delivery.is_taking = true;
                    }
                    if is_alone && refusal.is_fault() && !delivery.has_taken {
                        delivery.suspects.push((part.start, refusal));
                        delivery.parts.pass();
                        continue;
                    }
                    if is_alone {
                        delivery.set_aside(part.start, refusal, self.engine.clock().now_ms());
                        delivery.parts.pass();
                    } else {
                        delivery.parts.halve();
                    }
                }
            }
            if delivery.suspects.is_empty() {
                self.pass(delivery);
            }
            if !delivery.left.is_empty() && self.is_reset(server, delivery.left) {
                return Ok(());
            }
        }
        match delivery.suspects.pop() {
            Some((_, refusal)) => Err(Failure::Everything(refusal)),
            None => Ok(()),
        }
    }

    /// Notes which records of a load are done with.
    fn pass(&self, delivery: &mut Delivery<'_>) {
        let (told, aside) = delivery.pass();
        for item in &aside {
            let SetAsideItem { record, item, status, reason, .. } = item;
            let (server, record) = (delivery.server, record.map(Offset::get));
            let metrics = metrics();
            match status {
                Some(status) => {
                    warn!(
                        %server, record, item, status, reason,
                        "a homeserver refuses an item, which is set aside"
                    );
                    metrics.federation_set_aside.of_value(Withheld::Refused).inc();
                }
                None => {
                    warn!(
                        %server, record, item, reason,
                        "an item cannot be sent to a homeserver and is set aside"
                    );
                    metrics.federation_set_aside.of_value(Withheld::Unsendable).inc();
                }
            }
        }
        if let Some(destination) = self.destinations.lock().get_mut(delivery.server) {
            destination.told(told);
            destination.set_aside(aside);
            // A homeserver that fails may accept an empty transaction nevertheless; that says
            // nothing.
            if delivery.has_taken || (delivery.is_taking && !delivery.has_failed) {
                destination.is_reached();
            }
        }
    }

    /// Whether a homeserver that refused a transaction takes an empty one.
    async fn probe(
        &self,
        server: &ServerName,
        refusal: &RefusedTransaction,
        fails: Fails,
    ) -> Result<(), Failure> {
        let id = random_letters(20);
        match self.transmit(server, &id, &[], fails).await.map_err(Failure::Unreachable)? {
            TransactionResult::Accepted => Ok(()),
            TransactionResult::Later(pause) => Err(Failure::Later(pause)),
            TransactionResult::Refused(_) => Err(Failure::Everything(refusal.clone())),
        }
    }

    /// Sends items in a transaction.
    async fn transmit(
        &self,
        server: &ServerName,
        id: &str,
        items: &[Item],
        fails: Fails,
    ) -> Result<TransactionResult, Unreachable> {
        let of_kind = |is_pdu| {
            let of_kind = items.iter().filter(move |item| item.is_pdu == is_pdu);
            of_kind.map(|item| &*item.json).collect::<Vec<_>>()
        };
        let (pdus, edus) = (of_kind(true), of_kind(false));
        let (pdu_count, edu_count) = (pdus.len(), edus.len());
        let origin_server_ts = self.engine.clock().now_ms();
        let body = Transaction { origin: self.client.own_name(), origin_server_ts, pdus, edus };
        let mut question =
            FederationRequest::put(format!("/_matrix/federation/v1/send/{id}"), &body);
        question.timeout = limits::DESTINATION_TIMEOUT;
        let asked = {
            // Tasks get a slot in the order in which they asked.
            let is_slow = self.destinations.lock().get(server).is_some_and(|of| of.is_slow);
            let places = if is_slow { &self.slow_places } else { &self.places };
            let Ok(_place) = places.acquire().await else { return Err(Unreachable::Late) };
            let began = Instant::now();
            let asked = self.client.send(server, question).await;
            if let Some(destination) = self.destinations.lock().get_mut(server) {
                destination.is_slow = began.elapsed() > limits::DESTINATION_SLOW.0;
            }
            asked
        };
        let answered = asked.and_then(|answer| read(server, &answer, fails));
        count(&answered, pdu_count, edu_count);
        answered
    }
}

impl<'a> Delivery<'a> {
    /// Sets an item aside that the homeserver refuses alone.
    fn set_aside(&mut self, index: usize, refusal: RefusedTransaction, at_ms: u64) {
        let item = &self.load.items[index];
        let record = item.of.and_then(|of| self.left.get(of.checked_sub(self.done)?).copied());
        let RefusedTransaction { status, said } = refusal;
        let (item, of) = (item.name(), item.of);
        let aside = SetAsideItem { record, item, at_ms, status: Some(status), reason: said };
        self.aside.push((of, aside));
    }

    /// The records that are newly done with, and what was set aside of them.
    fn pass(&mut self) -> (&'a [Offset], Vec<SetAsideItem>) {
        let done = self.load.records_done(self.parts.done());
        let (told, left) = self.left.split_at(done.saturating_sub(self.done));
        (self.left, self.done) = (left, done.max(self.done));
        let is_over = self.parts.next().is_none();
        let is_done = |of: &Option<usize>| of.map_or(is_over, |of| of < self.done);
        let (now, later) =
            std::mem::take(&mut self.aside).into_iter().partition(|(of, _)| is_done(of));
        self.aside = later;
        let now: Vec<(Option<usize>, SetAsideItem)> = now;
        (told, now.into_iter().map(|(_, item)| item).collect())
    }
}

/// What an answer to a transaction means.
fn read(
    server: &ServerName,
    answer: &FederationResponse,
    fails: Fails,
) -> Result<TransactionResult, Unreachable> {
    let status = answer.status.as_u16();
    if REFUSING.contains(&status) || (status == FAULT && fails == Fails::Long) {
        return Ok(TransactionResult::Refused(RefusedTransaction {
            status,
            said: errors(&answer.body),
        }));
    }
    if let Some(pause) = answer.refused().and_then(|refused| refused.retry_after) {
        return Ok(TransactionResult::Later(pause));
    }
    let outcomes: BTreeMap<String, Box<RawValue>> = answer.json()?;
    // It has taken the transaction, whatever it says of the events in it.
    let pdus = outcomes.get("pdus").map(|pdus| pdus.get());
    let pdus = pdus.and_then(|pdus| serde_json::from_str::<BTreeMap<String, Outcome>>(pdus).ok());
    for (event_id, outcome) in pdus.unwrap_or_default() {
        if let Some(error) = outcome.error {
            debug!(%server, event_id, error, "a homeserver refused an event");
        }
    }
    Ok(TransactionResult::Accepted)
}

/// The statuses with which a homeserver refuses the contents of a transaction.
const REFUSING: [u16; 2] = [400, 413];

/// The status of a homeserver that fails itself. Others of its kind are about load, or those of a
/// proxy.
const FAULT: u16 = 500;

#[derive(Deserialize)]
struct Outcome {
    #[serde(default)]
    error: Option<String>,
}

/// A reason of bounded length.
fn said(reason: &str) -> String {
    beginning(reason, limits::SET_ASIDE_REASON_BYTES).to_owned()
}

/// What a homeserver says about a transaction that it refuses.
fn errors(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Errors {
        errcode: String,
        #[serde(default)]
        error: String,
    }
    match serde_json::from_slice(body) {
        Ok(Errors { errcode, error }) => said(&format!("{errcode}: {error}")),
        Err(_) => said(&String::from_utf8_lossy(body)),
    }
}

/// Counts a transaction, and if it arrived, its contents. A transaction that was not to be sent is
/// not counted.
fn count(answered: &Result<TransactionResult, Unreachable>, pdus: usize, edus: usize) {
    let metrics = metrics();
    let outcome = match answered {
        Ok(TransactionResult::Accepted) => Tried::Done,
        Err(Unreachable::Denied | Unreachable::Own | Unreachable::Name) => return,
        Ok(TransactionResult::Refused(_) | TransactionResult::Later(_)) | Err(_) => Tried::Failed,
    };
    metrics.federation_transactions_sent.of_value(outcome).inc();
    if outcome == Tried::Done {
        metrics.federation_pdus_sent.inc_by(pdus as u64);
        metrics.federation_edus_sent.inc_by(edus as u64);
    }
}
