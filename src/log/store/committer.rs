//! The committer: takes queued batches group by group, makes them durable, and then visible.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::{Current, Shared, Store, decode, full_disk::ROOM_TO_OPEN, recover};
use crate::{
    AppendError, Appended, Batch, Follower, StreamHeads, check_expected, erased_by,
    tip_file::DurableTip,
};
use logcabin_base::{
    clock::Clock,
    metrics::{WriteStage, metrics},
    traces::{self, Traced, traces},
};
use logcabin_record::{
    Offset, Record,
    codec::{self, Frame, Tip},
    command::{Body as _, LogErase},
};

pub(super) enum Message {
    Append(Request),
    /// Continue in another database.
    Swap(Swap),
    /// Wakes the committer so that it sees `closing`.
    Close,
}

pub(super) struct Request {
    pub(super) work: Work,
    /// When it was queued.
    pub(super) queued: Instant,
    pub(super) reply: oneshot::Sender<Result<Appended, AppendError>>,
}

/// What a request appends.
pub(super) enum Work {
    Proposed(Batch),
    /// A batch whose place in the log and time, in milliseconds since the Unix epoch, were decided
    /// elsewhere.
    Ordered(Batch, u64),
    /// Records of another copy of this log, each with its frame: whole batches.
    Copied(Vec<(Frame, Bytes)>),
}

impl Work {
    /// Whether it was decided elsewhere: the log must not lack it, so it is never refused here.
    const fn is_decided(&self) -> bool {
        matches!(self, Self::Ordered(..) | Self::Copied(_))
    }

    /// The ids of the requests that it comes from.
    fn requests(&self) -> impl Iterator<Item = &str> {
        let (new, copied) = match self {
            Self::Proposed(batch) | Self::Ordered(batch, _) => (&batch.records[..], &[][..]),
            Self::Copied(frames) => (&[][..], &frames[..]),
        };
        let new = new.iter().map(|new| &*new.origin.request);
        new.chain(copied.iter().map(|(frame, _)| &*frame.record.header.origin.request))
    }

    /// About how many bytes it writes.
    fn bytes(&self) -> usize {
        // An erasure rewrites other records.
        let of = |kind: &str, bytes: usize| {
            if kind == LogErase::KIND.name { MAX_GROUP_BYTES } else { bytes }
        };
        match self {
            Self::Proposed(batch) | Self::Ordered(batch, _) => {
                batch.records.iter().map(|new| of(new.kind, new.payload.len())).sum()
            }
            Self::Copied(frames) => {
                frames.iter().map(|(frame, bytes)| of(&frame.record.header.kind, bytes.len())).sum()
            }
        }
    }
}

/// An empty database to continue in. The reply says whether the committer does.
pub(super) struct Swap {
    pub(super) number: u64,
    pub(super) store: Arc<Store>,
    pub(super) reply: oneshot::Sender<bool>,
}

/// How many batches may wait for the committer; further appends wait outside the queue. A multiple
/// of what the busiest measured load has in flight.
pub(super) const QUEUE_BATCHES: usize = 1024;

/// How many batches share one sync.
const MAX_GROUP_BATCHES: usize = QUEUE_BATCHES;

/// After a group of more records than this, the next one begins no sooner than [`PACE`] after it
/// began. A sync wakes all of sled's threads and costs as much as several messages. The pause is
/// about twice as long as a sync on a good disk. With four times as much, 40 senders waited a
/// fifth longer and used as much CPU time for each message.
const CROWD: usize = 4;
const PACE: Duration = Duration::from_micros(400);

/// How often a committer that must not refuse checks whether the disk has space again.
const ROOM_AGAIN: Duration = Duration::from_millis(500);

/// A group is closed once its payloads reach this. With the largest batch on top (4 MiB) and sled
/// writing each record up to about twice, a group stays below one segment (16 MiB).
const MAX_GROUP_BYTES: usize = 2 * 1024 * 1024;

/// The one thread that writes.
pub(super) struct Committer {
    layers: Current,
    shared: Arc<Shared>,
    log_dir: PathBuf,
    clock: Clock,
    tip: Tip,
    heads: StreamHeads,
    follower: Follower,
    /// When the last group began.
    began: Instant,
    /// Whether it was a large one.
    crowded: bool,
}

/// The records of a group, on their way to the disk.
#[derive(Default)]
struct Group {
    frames: Vec<(Offset, Vec<u8>)>,
    records: Vec<Arc<Record>>,
    /// What remains of the records that it erases.
    remains: Vec<(Offset, Vec<u8>)>,
    /// The requests in it that are traced.
    traced: Vec<Traced>,
}

impl Group {
    /// Takes note of traced requests whose records have waited for the group until now.
    fn trace<'a>(&mut self, requests: impl Iterator<Item = &'a str>, queued: Instant) {
        for traced in requests.filter_map(traces::traced) {
            if !self.traced.contains(&traced) {
                traces::stage(traced, "group", queued);
                self.traced.push(traced);
            }
        }
    }
}

impl Committer {
    /// A committer that continues after `tip`, with these stream heads.
    pub(super) fn new(
        layers: Current,
        shared: Arc<Shared>,
        log_dir: PathBuf,
        clock: Clock,
        tip: Tip,
        heads: StreamHeads,
        follower: Follower,
    ) -> Self {
        Self {
            layers,
            shared,
            log_dir,
            clock,
            tip,
            heads,
            follower,
            began: Instant::now(),
            crowded: false,
        }
    }

    /// Commits everything from `queue` until the log closes.
    pub(super) fn run(mut self, mut queue: mpsc::Receiver<Message>) {
        let mut requests = Vec::new();
        while let Some(message) = queue.blocking_recv() {
            self.pace();
            self.take(message, &mut queue, &mut requests);
            if self.shared.closing.load(Ordering::SeqCst) {
                queue.close();
                while let Ok(message) = queue.try_recv() {
                    self.take(message, &mut queue, &mut requests);
                }
                return;
            }
        }
    }

    /// Waits for more batches to share the next group, if more are likely.
    fn pace(&mut self) {
        if self.crowded
            && let Some(left) = PACE.checked_sub(self.began.elapsed())
        {
            std::thread::sleep(left);
        }
        self.began = Instant::now();
    }

    /// Commits the group that begins with `message`, and whatever ended it.
    fn take(
        &mut self,
        message: Message,
        queue: &mut mpsc::Receiver<Message>,
        requests: &mut Vec<Request>,
    ) {
        let swap = gather(message, queue, requests);
        self.commit(requests);
        if let Some(Swap { number, store, reply }) = swap {
            // After a failure nothing may look sealed or durable.
            let goes_on = self.shared.failure.borrow().is_none();
            if goes_on {
                let mut layers = self.layers.write();
                *layers = Arc::new(layers.with_tail(number, store, self.tip.offset));
            }
            let _ = reply.send(goes_on);
        }
    }

    /// Commits one group and answers all of its requests.
    fn commit(&mut self, requests: &mut Vec<Request>) {
        if requests.is_empty() {
            return;
        }
        if let Err(error) = self.may_write_soon(requests) {
            for request in requests.drain(..) {
                let _ = request.reply.send(Err(error.clone()));
            }
            return;
        }
        let now_ms = self.clock.now_ms();
        let mut group = Group::default();
        let mut answers = Vec::with_capacity(requests.len());
        for Request { work, queued, reply } in requests.drain(..) {
            metrics().write_stage.since(WriteStage::Group, queued);
            if traces().is_some() {
                group.trace(work.requests(), queued);
            }
            let answer = match work {
                Work::Proposed(batch) => self.accept(batch, now_ms, &mut group),
                Work::Ordered(batch, time_ms) => self.accept(batch, time_ms, &mut group),
                Work::Copied(frames) => self.copy(frames, &mut group),
            };
            answers.push((reply, answer));
        }
        if let Err(error) = self.publish(group) {
            // Nothing in the group is known to be on disk, including what its refusals depended on.
            for (reply, _) in answers {
                let _ = reply.send(Err(error.clone()));
            }
            return;
        }
        for (reply, answer) in answers {
            // The caller may be gone; the append stands.
            let _ = reply.send(answer);
        }
    }

    /// Whether the requests can be written. Batches that were ordered elsewhere wait until the disk
    /// has space: the log must not lack one of them.
    fn may_write_soon(&mut self, requests: &[Request]) -> Result<(), AppendError> {
        loop {
            let refused = match self.may_write() {
                Err(AppendError::Full(reason)) => reason,
                other => {
                    if self.shared.full.lock().take().is_some() {
                        tracing::info!("the disk has space again; the log continues");
                    }
                    return other;
                }
            };
            if !requests.iter().any(|request| request.work.is_decided()) {
                return Err(AppendError::Full(refused));
            }
            if self.shared.closing.load(Ordering::SeqCst) {
                return Err(AppendError::Closed);
            }
            if self.shared.full.lock().replace(refused.clone()).is_none() {
                tracing::error!(reason = %refused, "no room for the log; it waits for space");
            }
            std::thread::sleep(ROOM_AGAIN);
        }
    }

    fn may_write(&mut self) -> Result<(), AppendError> {
        if let Some(reason) = self.shared.failure.borrow().clone() {
            return Err(AppendError::Failed(reason));
        }
        let dir = match self.layers.read().tail() {
            Ok(tail) => tail.dir.clone(),
            Err(error) => return Err(AppendError::Full(error.to_string())),
        };
        let free = self.shared.room_at(&dir)?;
        if self.layers.read().are_aside() { self.open_in_place(free) } else { Ok(()) }
    }

    /// Switches to the databases themselves once their disk has space again.
    fn open_in_place(&self, free: u64) -> Result<(), AppendError> {
        if free < ROOM_TO_OPEN {
            return Err(AppendError::Full(format!("only {free} bytes are free")));
        }
        let copies = Arc::clone(&self.layers.read());
        let opened = copies.in_place().and_then(|layers| {
            let tip = recover(&layers, &self.log_dir, 0)?;
            Ok((layers, tip))
        });
        let (layers, tip) = opened.map_err(|error| AppendError::Full(error.to_string()))?;
        if (tip.offset, tip.chain) != (self.tip.offset, self.tip.chain) {
            return Err(self.shared.fail("the log is not the one that was copied at the start"));
        }
        *self.layers.write() = Arc::new(layers);
        tracing::info!("the disk has space again; accepting writes");
        Ok(())
    }

    /// Adds `batch` to the group, atomically.
    fn accept(
        &mut self,
        batch: Batch,
        now_ms: u64,
        group: &mut Group,
    ) -> Result<Appended, AppendError> {
        check_expected(&self.heads, self.tip.offset, &batch)?;
        let mut tip = self.tip.clone();
        let first = tip.offset.next();
        let mut accepted = Vec::with_capacity(batch.records.len());
        let mut remaining = u32::try_from(batch.records.len())
            .map_err(|_| AppendError::TooLarge("too many records".to_owned()))?;
        for new in batch.records {
            remaining -= 1;
            accepted.push(
                tip.extend(new, remaining, now_ms)
                    .map_err(|error| AppendError::TooLarge(error.to_string()))?,
            );
        }
        self.add(accepted, tip, group)?;
        Ok(Appended { first, last: self.tip.offset })
    }

    /// Adds records of another copy of this log to the group, if they are what follows here.
    fn copy(
        &mut self,
        frames: Vec<(Frame, Bytes)>,
        group: &mut Group,
    ) -> Result<Appended, AppendError> {
        let mut tip = self.tip.clone();
        let first = tip.offset.next();
        let mut copied = Vec::with_capacity(frames.len());
        for (frame, bytes) in frames {
            let offset = frame.record.offset();
            let damaged = |what: &dyn std::fmt::Display| {
                AppendError::Foreign(format!("record {offset} does not follow: {what}"))
            };
            if offset != tip.offset.next() {
                return Err(damaged(&format!("this log ends at record {}", tip.offset)));
            }
            frame.verify(&tip.chain).map_err(|error| damaged(&error))?;
            tip = Tip::after(&frame.record);
            copied.push((frame.record, bytes.into()));
        }
        if copied.last().is_some_and(|(record, _)| record.header.batch_remaining != 0) {
            return Err(AppendError::Foreign("the last batch is not whole".to_owned()));
        }
        self.add(copied, tip, group)?;
        Ok(Appended { first, last: self.tip.offset })
    }

    /// Adds records that follow the last one of the group.
    fn add(
        &mut self,
        records: Vec<(Record, Vec<u8>)>,
        tip: Tip,
        group: &mut Group,
    ) -> Result<(), AppendError> {
        let (layers, durable) = (Arc::clone(&self.layers.read()), *self.shared.durable.borrow());
        let get = |offset: Offset| match layers.get(offset)? {
            Some(frame) if offset <= durable => decode(offset, &frame).map(Some),
            _ => Ok(None),
        };
        for left in erased_by(records.iter().map(|(record, _)| record), get)? {
            let frame = codec::encode_frame(&left)
                .map_err(|error| AppendError::Erase(error.to_string()))?;
            group.remains.push((left.offset(), frame));
        }
        for (record, frame) in records {
            self.heads.insert(record.header.stream.clone(), record.offset());
            group.frames.push((record.offset(), frame));
            group.records.push(Arc::new(record));
        }
        self.tip = tip;
        Ok(())
    }

    /// Makes the group durable, then visible.
    fn publish(&mut self, mut group: Group) -> Result<(), AppendError> {
        self.crowded = group.records.len() >= CROWD;
        if group.records.is_empty() {
            return Ok(());
        }
        let layers = Arc::clone(&self.layers.read());
        let remains = std::mem::take(&mut group.remains);
        let erases = !remains.is_empty();
        let began = Instant::now();
        let written = layers.tail().and_then(|tail| tail.put(&group.frames, remains));
        written.map_err(|error| self.shared.fail(&error.to_string()))?;
        metrics().write_stage.since(WriteStage::Sync, began);
        group.traced.iter().for_each(|of| traces::stage(*of, "sync", began));
        metrics().log_group.observe(group.records.len() as f64);
        if erases {
            self.shared.recent.clear();
        }
        self.shared.recent.add(&group.records);
        *self.shared.tip.lock() = DurableTip { offset: self.tip.offset, chain: self.tip.chain };
        self.shared.durable.send_replace(self.tip.offset);
        let began = Instant::now();
        (self.follower)(&group.records);
        metrics().write_stage.since(WriteStage::Apply, began);
        group.traced.iter().for_each(|of| traces::stage(*of, "apply", began));
        Ok(())
    }
}

/// Collects queued batches after `message`, up to the size of a group or a change of database.
fn gather(
    message: Message,
    queue: &mut mpsc::Receiver<Message>,
    requests: &mut Vec<Request>,
) -> Option<Swap> {
    let mut bytes = 0;
    let mut next = Some(message);
    while let Some(message) = next {
        match message {
            Message::Append(request) => {
                bytes += request.work.bytes();
                requests.push(request);
            }
            Message::Swap(swap) => return Some(swap),
            Message::Close => {}
        }
        if bytes >= MAX_GROUP_BYTES || requests.len() >= MAX_GROUP_BATCHES {
            return None;
        }
        next = queue.try_recv().ok();
    }
    None
}
