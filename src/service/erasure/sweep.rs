//! The sweep: in the background, events that have lived long enough, what is left of users who were
//! erased, and files that were kept long enough are found ([`super::due`]) and, as redacted events
//! once their time of grace is over, lose their content; records that later ones have superseded
//! lose their payload.
//!
//! What is due is known from the log (`state::Erasures`, `state::lifetimes`), so that nothing is
//! forgotten over a restart. Each piece of a sweep is one `log.erase` record, which takes the
//! payloads with it.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::{
    decide::retention::{SweepPolicy, millis},
    engine::Engine,
    log::{AppendError, Batch, ReadError, erase::MAX_ERASED},
    record::{
        Command, NewRecord, Offset, Origin, Payload, Record, Remains, Stream,
        command::{LogErase, Reduced, RoomEvent, Taken},
        reduced, remains, runs,
    },
};

/// How many redactions are looked at for one piece: more than it takes, so that one that cannot be
/// carried out does not stand in the way of others.
const LOOKED_AT: usize = 10_000;

/// A piece ends once the pages it writes again hold this many bytes: the store writes its pages
/// whole, and one group is to stay far below one of its segments.
const PIECE_BYTES: u64 = 1024 * 1024;

/// About as many records as share a page of the default store.
const PAGE_RECORDS: u64 = 16;

/// What a sweep erased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Events that were found to have lived long enough, or to be of a user who was erased.
    pub expired: u64,
    /// Files that were removed.
    pub files: u64,
    /// Records that lost their content.
    pub erased: u64,
    /// Superseded records that lost their payload.
    pub superseded: u64,
}

/// Why a sweep did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The log could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The log takes no writes.
    #[error(transparent)]
    Append(#[from] AppendError),
}

impl Engine {
    /// Whether a sweep by `policy` is due.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn sweep_is_due(&self, policy: &SweepPolicy) -> Result<bool, ReadError> {
        let erasures = &self.state().erasures;
        if erasures.is_urgent() {
            return Ok(true);
        }
        let now_ms = self.clock().now_ms();
        if now_ms < erasures.last().1.saturating_add(millis(policy.every)) {
            return Ok(false);
        }
        let redacted = policy.redacted_until(now_ms);
        Ok(redacted.is_some_and(|until| !erasures.redacted(until, 1).is_empty())
            || erasures.superseded_count() > 0
            || !self.state().validations.ended(now_ms, 1).is_empty()
            || self.anything_expired(policy)?)
    }

    /// Erases everything that is due by `policy`, of the records up to `archived`: an archive is to
    /// have a record whole before the log erases it, or it would lack a payload and not know why.
    ///
    /// # Errors
    /// When the log fails. What was erased until then is.
    pub async fn sweep(&self, policy: &SweepPolicy, archived: Offset) -> Result<Swept, SweepError> {
        let mut swept = Swept {
            expired: self.expire_events(policy).await? + self.erase_users().await?,
            files: self.expire_media(policy).await?,
            ..Swept::default()
        };
        let until_ms = policy.redacted_until(self.clock().now_ms());
        loop {
            let Piece { erase, superseded } = self.piece(until_ms, archived)?;
            if erase.count() == 0 {
                return Ok(swept);
            }
            swept.superseded += superseded;
            swept.erased += erase.count() - superseded;
            self.write(Stream::server(), erase).await?;
        }
    }

    /// Appends a fact of the server's own.
    pub(super) async fn write(
        &self,
        stream: Stream,
        command: impl Into<Command>,
    ) -> Result<(), AppendError> {
        let record = NewRecord::new(stream, Origin::server(), &command.into());
        self.log().append(Batch { expect: Vec::new(), records: vec![record] }).await?;
        Ok(())
    }

    /// What one record is to erase next.
    fn piece(&self, until_ms: Option<u64>, archived: Offset) -> Result<Piece, ReadError> {
        let mut room = Room::new(self);
        let erasures = &self.state().erasures;
        let mut parts = BTreeMap::new();
        let (mut taken, mut whole) = (BTreeMap::new(), BTreeSet::new());
        let redacted = until_ms.map_or_else(Vec::new, |until| erasures.redacted(until, LOOKED_AT));
        let redacted = redacted.into_iter().map(|redacted| (redacted.event, redacted.because));
        for (offset, because) in redacted.chain(erasures.condemned(LOOKED_AT)) {
            if offset > archived {
                continue;
            }
            let Some(record) = room.take(offset)? else { break };
            match remains(&record.header.kind) {
                Remains::Nothing => {
                    taken.insert(offset, because);
                }
                Remains::Part => {
                    let part = self.reduction(&record, because);
                    parts.extend(part.map(|part| (offset, part)));
                }
                // Whoever condemned it looked at its kind before.
                Remains::Everything => {}
            }
        }
        let mut superseded = 0;
        let most = usize::try_from(MAX_ERASED).unwrap_or(usize::MAX);
        // Nothing but the record is needed for these to be forgotten.
        let ended = self.state().validations.ended(self.clock().now_ms(), most);
        let done: BTreeSet<_> = erasures.superseded(most).into_iter().chain(ended).collect();
        for offset in done {
            if offset > archived {
                break;
            }
            if taken.contains_key(&offset) || parts.contains_key(&offset) {
                continue;
            }
            let Some(record) = room.take(offset)? else { break };
            if remains(&record.header.kind) != Remains::Part {
                superseded += u64::from(whole.insert(offset));
            } else if let Some(part) = self.reduction(&record, Offset::ZERO) {
                superseded += u64::from(parts.insert(offset, part).is_none());
            }
        }
        let mut taken_runs: Vec<Taken> = Vec::new();
        for (offset, because) in taken {
            match taken_runs.last_mut() {
                Some(run) if run.because == because && run.last.next() == offset => {
                    run.last = offset;
                }
                _ => taken_runs.push(Taken { first: offset, last: offset, because }),
            }
        }
        let reduced = parts.into_values().collect();
        let erase = LogErase { reduced, superseded: runs(whole), taken: taken_runs };
        Ok(Piece { erase, superseded })
    }

    /// What is left of the event at `event` when the record `because` takes its content; `None` if
    /// nothing more can be taken.
    pub(crate) fn reduced(
        &self,
        event: Offset,
        because: Offset,
    ) -> Result<Option<Reduced>, ReadError> {
        let Some(record) = self.log().get(event)? else { return Ok(None) };
        if !matches!(record.payload, Payload::Present(_)) {
            return Ok(None);
        }
        Ok(self.reduction(&record, because))
    }

    fn reduction(&self, record: &Record, because: Offset) -> Option<Reduced> {
        let offset = record.offset();
        let room_version = match record.command() {
            Ok(Some(Command::RoomEvent(RoomEvent { room_id, .. }))) => {
                let state = self.state();
                let version = state.rooms.get(&room_id).map(|room| room.version.clone());
                let purged = || state.erasures.purged(&room_id).map(|purged| purged.version);
                Some(version.or_else(purged)?)
            }
            _ => None,
        };
        let left = match &record.payload {
            Payload::Present(bytes) => reduced(&record.header.kind, bytes, room_version.as_ref()),
            Payload::Reduced(bytes) => Ok(bytes.clone()),
            Payload::Erased => return None,
        };
        match left {
            Ok(left) => {
                let hash = *blake3::hash(&left).as_bytes();
                Some(Reduced { offset, because, room_version, hash })
            }
            Err(error) => {
                // Every record that this server wrote can be.
                tracing::error!(%offset, %error, "a record cannot be erased");
                None
            }
        }
    }
}

/// A piece of a sweep.
struct Piece {
    erase: LogErase,
    /// How many of the records had only done their work.
    superseded: u64,
}

/// The room that one piece has.
struct Room<'e> {
    engine: &'e Engine,
    pages: HashSet<u64>,
    /// The records of the page that was read last.
    page: Vec<Record>,
    bytes: u64,
    left: u64,
}

impl<'e> Room<'e> {
    fn new(engine: &'e Engine) -> Self {
        Self { engine, pages: HashSet::new(), page: Vec::new(), bytes: 0, left: MAX_ERASED }
    }

    /// Makes room for a record, if there is any, and gives it.
    fn take(&mut self, offset: Offset) -> Result<Option<Record>, ReadError> {
        if self.left == 0 || self.bytes >= PIECE_BYTES {
            return Ok(None);
        }
        self.left -= 1;
        let page = offset.get() / PAGE_RECORDS;
        if self.pages.insert(page) {
            let first = Offset::new((page * PAGE_RECORDS).max(1));
            self.page = self.engine.log().read(first, PAGE_RECORDS as usize)?;
            let bytes = |payload: &Payload| payload.bytes().map_or(0, bytes::Bytes::len) as u64;
            self.bytes += self.page.iter().map(|record| 512 + bytes(&record.payload)).sum::<u64>();
        }
        if let Some(record) = self.page.iter().find(|record| record.offset() == offset) {
            return Ok(Some(record.clone()));
        }
        self.engine.log().get(offset)?.ok_or(ReadError::Missing(offset)).map(Some)
    }
}
