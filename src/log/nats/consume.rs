//! Messages on their way from the stream into the local log.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::jetstream::{
    self, Context,
    consumer::{AckPolicy, DeliverPolicy, ReplayPolicy, pull},
    stream::{self, RawMessageErrorKind},
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

use super::{
    NatsError, Position, Shared, lost_since,
    peer::{self, Answer},
    subject,
    wire::{Message, Proposed},
};
use crate::{AppendError, Appended, Batch, Log as _, store::SledLog};
use logcabin_record::{
    Offset, Record,
    command::{Body as _, LogErase},
};

/// How many messages a request asks for at once.
const MESSAGES_AT_ONCE: usize = 512;

/// How often JetStream sends a consumer a heartbeat. After twice as long without one, the node
/// makes another consumer.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// The pause before a node makes another consumer after a failure.
pub(super) const PAUSE: Duration = Duration::from_millis(200);

/// JetStream removes a consumer that has been unused for this long.
const UNUSED: Duration = Duration::from_secs(30);

/// How many batches may be on their way into the local log.
const UNDER_WAY: usize = 4096;

/// How often the position is noted.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// Why messages no longer come.
enum Stopped {
    /// The connection or a server failed: the node tries again.
    Failed(String),
    /// The node cannot go on.
    Ended(String),
    /// The log is closing.
    Closing,
}

fn failed(error: &dyn std::fmt::Display) -> Stopped {
    Stopped::Failed(error.to_string())
}

/// The position of `local` in the stream.
///
/// # Errors
/// When the records of `local` are not from the stream.
pub(super) async fn position(
    local: &SledLog,
    jetstream: &Context,
    stream: &stream::Stream<stream::Info>,
) -> Result<Position, NatsError> {
    let dir = local.dir().to_owned();
    let failed = |error: &dyn std::fmt::Display| NatsError::Stream(error.to_string());
    let info = stream.cached_info();
    let name = info.config.name.clone();
    let foreign =
        |reason: String| NatsError::Foreign { dir: dir.clone(), stream: name.clone(), reason };
    let read = Position::of(local)?;
    let durable = *local.durable().borrow();
    let created = info.created.to_string();
    let here = match read {
        Some(here) => here,
        None if durable == Offset::ZERO => Position::first(info, Offset::ZERO),
        None => {
            return Err(foreign(
                "it never followed a stream; `logcabin cluster move-in` makes a stream of it"
                    .into(),
            ));
        }
    };
    if here.stream != info.config.name || here.created != created {
        return Err(foreign(format!(
            "it follows the stream `{}`, created {}; this one was created {created}",
            here.stream, here.created
        )));
    }
    if here.offset > durable {
        return Err(foreign(format!(
            "its position is record {}, but it ends at record {durable}",
            here.offset
        )));
    }
    let state = &info.state;
    let lost = lost_since((jetstream, &subject(&name), 0), state, here.sequence).await;
    if let Some(end) = lost.map_err(|error| failed(&error))? {
        return Err(foreign(format!(
            "it has message {}, but the stream ends with message {end}: the stream has lost \
             messages",
            here.sequence
        )));
    }
    if here.sequence >= state.first_sequence && here.sequence > 0 {
        match stream.get_raw_message(here.sequence).await {
            Ok(found) if hash(&found.payload) != here.hash => {
                return Err(foreign(format!(
                    "message {} differs from the one that it took: the stream has lost messages",
                    here.sequence
                )));
            }
            // It may have been removed, like all messages that every node has.
            Ok(_) => {}
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => {}
            Err(error) => return Err(failed(&error)),
        }
    }
    Ok(here)
}

fn hash(payload: &[u8]) -> String {
    blake3::hash(payload).to_hex().to_string()
}

/// Takes messages from the stream.
pub(super) struct StreamConsumer {
    local: Arc<SledLog>,
    shared: Arc<Shared>,
    position: Position,
    /// The last record when the log was opened. Messages up to it are in the log already.
    known: Offset,
}

impl StreamConsumer {
    pub(super) fn new(local: Arc<SledLog>, shared: Arc<Shared>, position: Position) -> Self {
        let known = *local.durable().borrow();
        Self { local, shared, position, known }
    }

    /// Starts to take messages.
    pub(super) fn start(self) -> Vec<JoinHandle<()>> {
        let (answers, queue) = mpsc::channel(UNDER_WAY);
        let settling = CallerReplies {
            shared: Arc::clone(&self.shared),
            position: self.position.clone(),
            dir: self.local.dir().to_owned(),
        };
        let settled = tokio::spawn(settling.run(queue));
        vec![tokio::spawn(self.run(answers)), settled]
    }

    async fn run(self, answers: mpsc::Sender<IncomingBatch>) {
        let Self { local, shared, position, known } = self;
        let mut messages = Messages {
            local,
            shared: Arc::clone(&shared),
            next: position.sequence + 1,
            recognised: position.offset,
            known,
            opened_at: shared.stream.cached_info().state.last_sequence,
            was_late: false,
            is_missing: false,
            answers,
        };
        let mut warned = false;
        loop {
            match messages.take_all(&mut warned).await {
                Stopped::Closing => return,
                Stopped::Ended(reason) => return shared.fail(reason),
                Stopped::Failed(reason) => {
                    if !warned {
                        warned = true;
                        tracing::warn!(%reason, "the stream cannot be followed; retrying");
                    }
                }
            }
            let mut stop = shared.stop.subscribe();
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }
}

/// The messages from one on.
struct Messages {
    local: Arc<SledLog>,
    shared: Arc<Shared>,
    /// The sequence of the next message.
    next: u64,
    /// The last record that was recognised as that of a message; up to `known`.
    recognised: Offset,
    known: Offset,
    /// The last message of the stream when the log was opened.
    opened_at: u64,
    /// A later message came instead of the next one.
    was_late: bool,
    /// It did so again with another consumer: the next message is not in the stream.
    is_missing: bool,
    answers: mpsc::Sender<IncomingBatch>,
}

impl Messages {
    /// Takes messages until something stops them.
    async fn take_all(&mut self, warned: &mut bool) -> Stopped {
        match self.consume(warned).await {
            Ok(()) => Stopped::Failed("the messages ended".to_owned()),
            Err(stopped) => stopped,
        }
    }

    /// Whether the log is shorter than the one that the stream began with.
    fn lacks_base(&self) -> bool {
        self.next == 1 && *self.local.durable().borrow() < self.shared.base
    }

    async fn consume(&mut self, warned: &mut bool) -> Result<(), Stopped> {
        let shared = Arc::clone(&self.shared);
        let state = self.state().await?;
        self.shared.knows(state.last_sequence);
        if state.first_sequence > self.next || self.lacks_base() || self.is_missing {
            self.copy(warned).await?;
            // The stream may have moved on meanwhile.
            return Ok(());
        }
        let consumer = shared
            .stream
            .create_consumer(pull::Config {
                deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: self.next },
                ack_policy: AckPolicy::None,
                replay_policy: ReplayPolicy::Instant,
                inactive_threshold: UNUSED,
                num_replicas: 1,
                memory_storage: true,
                ..pull::Config::default()
            })
            .await
            .map_err(|error| failed(&error))?;
        let messages = consumer
            .stream()
            .max_messages_per_batch(MESSAGES_AT_ONCE)
            .heartbeat(HEARTBEAT)
            .expires(HEARTBEAT * 20)
            .messages();
        let mut messages = messages.await.map_err(|error| failed(&error))?;
        let mut stop = shared.stop.subscribe();
        loop {
            let message = tokio::select! {
                message = messages.next() => message,
                _ = stop.wait_for(|stop| *stop) => return Err(Stopped::Closing),
            };
            let Some(message) = message else { return Ok(()) };
            let message = message.map_err(|error| failed(&error))?;
            if std::mem::take(warned) {
                tracing::info!("the stream is followed again");
            }
            self.take(&message, &mut stop).await?;
        }
    }

    /// The stream's state, unless the stream has lost messages that this node has taken.
    async fn state(&self) -> Result<stream::State, Stopped> {
        let state = self.shared.stream.get_info().await.map_err(|error| failed(&error))?.state;
        let (shared, taken) = (&self.shared, self.next - 1);
        let through = (&shared.jetstream, &*shared.subject, shared.node);
        let lost = lost_since(through, &state, taken).await;
        if let Some(end) = lost.map_err(|error| failed(&error))? {
            return Err(Stopped::Ended(format!(
                "this node has taken message {taken}, but the stream ends with message {end}: \
                 the stream has lost messages"
            )));
        }
        Ok(state)
    }

    async fn take(
        &mut self,
        message: &jetstream::Message,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), Stopped> {
        let info = message.info().map_err(|error| failed(&error))?;
        if info.stream_sequence < self.next {
            return Ok(());
        }
        if info.stream_sequence > self.next {
            // The next consumer begins with it, unless it has been removed.
            self.is_missing = std::mem::replace(&mut self.was_late, true);
            return Err(Stopped::Failed(format!("message {} did not come", self.next)));
        }
        self.was_late = false;
        self.shared.knows(info.stream_sequence + info.pending);
        let sequence = self.next;
        tokio::select! {
            () = self.shared.barrier.confirm(sequence) => {}
            _ = stop.wait_for(|stop| *stop) => return Err(Stopped::Closing),
        }
        let Message { node, number, batches } = Message::decode(&message.payload)
            .map_err(|error| Stopped::Ended(format!("message {sequence}: {error}")))?;
        let own = (node == self.shared.node).then_some(number);
        if batches.is_empty() {
            // A mark: see `barrier`.
            let ends = Some((sequence, message.payload.clone()));
            let taking = IncomingBatch { outcome: Outcome::Known(None), own: None, ends };
            self.answers.send(taking).await.map_err(|_| Stopped::Closing)?;
        }
        let last = batches.len().saturating_sub(1);
        for (index, proposed) in batches.into_iter().enumerate() {
            let outcome = self.append(proposed).await?;
            let taking = IncomingBatch {
                outcome,
                own: own.map(|first| first + index as u64),
                ends: (index == last).then(|| (sequence, message.payload.clone())),
            };
            if self.answers.send(taking).await.is_err() {
                return Err(Stopped::Closing);
            }
        }
        self.next += 1;
        if self.recognised < self.known && sequence >= self.opened_at {
            return Err(Stopped::Ended(format!(
                "the record {} of this node is not in the stream",
                self.recognised.next()
            )));
        }
        Ok(())
    }

    /// Begins to append a batch to the local log, unless it is there.
    async fn append(&mut self, proposed: Proposed) -> Result<Outcome, Stopped> {
        if self.recognised < self.known {
            return self.recognise(&proposed.batch).map(Outcome::Known);
        }
        if proposed.batch.records.iter().any(|record| record.kind == LogErase::KIND.name) {
            // Only durable records can be erased. For the same result on every node, these are
            // exactly those before the erasure in the stream.
            self.all_settled().await?;
        }
        let Proposed { batch, time_ms } = proposed;
        let reply = self.local.append_ordered(batch, time_ms).await;
        reply.map(Outcome::Appending).map_err(|_| Stopped::Closing)
    }

    /// Whether a batch matches the next records of the log, which can be ahead of its position
    /// after a crash.
    fn recognise(&mut self, batch: &Batch) -> Result<Option<Appended>, Stopped> {
        let first = self.recognised.next();
        for (at, new) in (first.get()..).zip(&batch.records) {
            let found = self.local.get(Offset::new(at));
            let found = found.map_err(|error| Stopped::Ended(error.to_string()))?;
            let is_it = |found: &Record| {
                let header = &found.header;
                header.stream == new.stream
                    && &*header.kind == new.kind
                    && header.origin == new.origin
                    && header.payload_hash == *blake3::hash(&new.payload).as_bytes()
            };
            if !found.as_ref().is_some_and(is_it) {
                // It was refused with a conflict. If the log is that of the stream, a later batch
                // matches.
                return Ok(None);
            }
        }
        let last = Offset::new(self.recognised.get() + batch.records.len() as u64);
        self.recognised = last;
        Ok(Some(Appended { first, last }))
    }

    /// Copies records from another node, up to its position in the stream.
    async fn copy(&mut self, warned: &mut bool) -> Result<(), Stopped> {
        self.all_settled().await?;
        let from = *self.local.durable().borrow();
        tracing::info!(after = from.get(), "copying records that the stream does not have");
        self.shared.lacks_records.send_replace(true);
        let position = self.copy_all(warned).await?;
        let records = position.offset.get() - from.get();
        tracing::info!(records, sequence = position.sequence, "the records are there");
        self.next = position.sequence + 1;
        self.recognised = position.offset;
        self.known = position.offset;
        (self.was_late, self.is_missing) = (false, false);
        let moved = IncomingBatch { outcome: Outcome::Moved(position), own: None, ends: None };
        self.answers.send(moved).await.map_err(|_| Stopped::Closing)
    }

    async fn copy_all(&self, warned: &mut bool) -> Result<Position, Stopped> {
        let mut stop = self.shared.stop.subscribe();
        loop {
            let after = *self.local.durable().borrow();
            let last = self.local.get(after).map_err(|error| Stopped::Ended(error.to_string()))?;
            let chain = last.as_ref().map(|record| &record.chain);
            let asked = tokio::select! {
                asked = peer::ask(&self.shared, after, chain) => asked,
                _ = stop.wait_for(|stop| *stop) => return Err(Stopped::Closing),
            };
            let reason = match asked {
                Ok(Answer::Records { position, frames }) => {
                    match self.local.copy(frames).await {
                        Ok(()) => {}
                        Err(AppendError::Closed) => return Err(Stopped::Closing),
                        Err(error) => {
                            return Err(Stopped::Ended(format!(
                                "the copy of another node: {error}"
                            )));
                        }
                    }
                    if *self.local.durable().borrow() == position.offset {
                        return Ok(position);
                    }
                    continue;
                }
                Ok(Answer::Differs) => {
                    return Err(Stopped::Ended(format!(
                        "record {after} of the other nodes differs: this log is not theirs"
                    )));
                }
                Ok(Answer::None) => "no node has more records".to_owned(),
                Err(reason) => reason,
            };
            if !std::mem::replace(warned, true) {
                tracing::warn!(
                    %reason,
                    "this node needs records that the stream does not have; it waits for another \
                     node"
                );
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                _ = stop.wait_for(|stop| *stop) => return Err(Stopped::Closing),
            }
        }
    }

    async fn all_settled(&self) -> Result<(), Stopped> {
        let (done, settled) = oneshot::channel();
        let mark = IncomingBatch { outcome: Outcome::Mark(done), own: None, ends: None };
        self.answers.send(mark).await.map_err(|_| Stopped::Closing)?;
        settled.await.map_err(|_| Stopped::Closing)
    }
}

/// A batch on its way into the local log.
struct IncomingBatch {
    outcome: Outcome,
    /// Its number, if this node proposed it.
    own: Option<u64>,
    /// The message that ends with it.
    ends: Option<(u64, Bytes)>,
}

enum Outcome {
    /// It was in the log already, or was refused before.
    Known(Option<Appended>),
    Appending(oneshot::Receiver<Result<Appended, AppendError>>),
    /// Everything before it has settled.
    Mark(oneshot::Sender<()>),
    /// Records were copied from another node, up to this position.
    Moved(Position),
}

/// Answers the waiting callers, in the order of the stream, and notes the position.
struct CallerReplies {
    shared: Arc<Shared>,
    position: Position,
    dir: PathBuf,
}

impl CallerReplies {
    async fn run(mut self, mut queue: mpsc::Receiver<IncomingBatch>) {
        let (mut noted, mut at) = (self.position.clone(), Instant::now());
        loop {
            match tokio::time::timeout(NOTE_EVERY, queue.recv()).await {
                Ok(Some(taking)) => {
                    if self.settle(taking).await.is_break() {
                        break;
                    }
                }
                Ok(None) => break,
                Err(_) => {}
            }
            if at.elapsed() >= NOTE_EVERY {
                self.note(&mut noted);
                at = Instant::now();
            }
        }
        self.note(&mut noted);
    }

    async fn settle(
        &mut self,
        IncomingBatch { outcome, own, ends }: IncomingBatch,
    ) -> ControlFlow<()> {
        let settled = match outcome {
            Outcome::Mark(done) => {
                let _ = done.send(());
                return ControlFlow::Continue(());
            }
            Outcome::Moved(position) => {
                let sequence = position.sequence;
                self.position = position;
                self.moved(sequence);
                return ControlFlow::Continue(());
            }
            Outcome::Known(appended) => appended.map(Ok),
            Outcome::Appending(reply) => Some(reply.await.unwrap_or(Err(AppendError::Closed))),
        };
        match &settled {
            Some(Ok(appended)) => self.position.offset = appended.last,
            // The same on every node: see the module's documentation.
            Some(Err(
                AppendError::Conflict { .. } | AppendError::TooLarge(_) | AppendError::Erase(_),
            ))
            | None => {}
            Some(Err(AppendError::Closed)) => return ControlFlow::Break(()),
            Some(Err(error)) => {
                self.shared.fail(format!("the local log failed: {error}"));
                return ControlFlow::Break(());
            }
        }
        if let (Some(number), Some(result)) = (own, settled) {
            self.shared.waiting.settle(number, result);
        }
        if let Some((sequence, payload)) = ends {
            self.position.sequence = sequence;
            self.position.hash = hash(&payload);
            self.moved(sequence);
        }
        ControlFlow::Continue(())
    }

    fn moved(&self, sequence: u64) {
        self.shared.position.lock().clone_from(&self.position);
        self.shared.taken.send_modify(|taken| taken.sequence = sequence);
        self.shared.lacks_records.send_if_modified(std::mem::take);
    }

    fn note(&self, noted: &mut Position) {
        if *noted == self.position {
            return;
        }
        match self.position.write(&self.dir) {
            Ok(()) => noted.clone_from(&self.position),
            // The next start takes some messages again, and recognises their records.
            Err(error) => tracing::warn!(%error, "the position in the stream cannot be noted"),
        }
    }
}
