//! The sweep: in the background, redacted events lose their content once their time of grace is over,
//! and ephemeral records that later ones have superseded lose their payload.
//!
//! What is due is known from the log (`state::Erasures`), so that nothing is forgotten over a restart.
//! Each piece of a sweep is one `log.erase` record, which takes the payloads with it.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use super::Engine;
use crate::{
    log::{AppendError, Batch, ReadError, erase::MAX_ERASED},
    record::{
        Command, NewRecord, Offset, Origin, Payload, Stream,
        command::{LogErase, Reduced},
        reduced,
    },
    state::erasures::Redacted,
};

/// How many redactions are looked at for one piece: more than it takes, so that one that cannot be
/// carried out does not stand in the way of others.
const LOOKED_AT: usize = 10_000;

/// A piece ends once the pages it writes again hold this many bytes: the store writes its pages
/// whole, and one group is to stay far below one of its segments.
const PIECE_BYTES: u64 = 1024 * 1024;

/// About as many records as share a page of the default store.
const PAGE_RECORDS: u64 = 16;

/// What is erased, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepPolicy {
    /// How long the content of a redacted event stays in the log; `None`: for ever.
    pub redacted_after: Option<Duration>,
    /// The time between two sweeps.
    pub every: Duration,
}

/// What a sweep erased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Events that lost their content.
    pub reduced: u64,
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
    #[must_use]
    pub fn sweep_is_due(&self, policy: SweepPolicy) -> bool {
        let erasures = &self.state().erasures;
        let now_ms = self.clock().now_ms();
        if now_ms < erasures.last().1.saturating_add(millis(policy.every)) {
            return false;
        }
        let redacted = self.due(policy, now_ms);
        redacted.is_some_and(|until| !erasures.redacted(until, 1).is_empty())
            || erasures.superseded_count() > 0
    }

    /// Erases everything that is due by `policy`, of the records up to `archived`: an archive is to have
    /// a record whole before the log erases it, or it would lack a payload and not know why.
    ///
    /// # Errors
    /// When the log fails. What was erased until then is.
    pub async fn sweep(&self, policy: SweepPolicy, archived: Offset) -> Result<Swept, SweepError> {
        let until_ms = self.due(policy, self.clock().now_ms());
        let mut swept = Swept::default();
        loop {
            let piece = self.piece(until_ms, archived)?;
            if piece.count() == 0 {
                return Ok(swept);
            }
            swept.reduced += piece.reduced.len() as u64;
            swept.superseded += piece.count() - piece.reduced.len() as u64;
            let record = NewRecord::new(Stream::server(), Origin::server(), &Command::from(piece));
            self.log().append(Batch { expect: Vec::new(), records: vec![record] }).await?;
        }
    }

    /// The time up to which redactions are due.
    fn due(&self, policy: SweepPolicy, now_ms: u64) -> Option<u64> {
        policy.redacted_after.map(|after| now_ms.saturating_sub(millis(after)))
    }

    /// What one record is to erase next.
    fn piece(&self, until_ms: Option<u64>, archived: Offset) -> Result<LogErase, ReadError> {
        let mut room = Room { pages: HashSet::new(), bytes: 0, left: MAX_ERASED };
        let erasures = &self.state().erasures;
        let mut reduced = BTreeMap::new();
        for redacted in until_ms.map_or_else(Vec::new, |until| erasures.redacted(until, LOOKED_AT))
        {
            if redacted.event > archived {
                continue;
            }
            if !room.takes(self, redacted.event)? {
                break;
            }
            if let Some(one) = self.reduction(redacted)? {
                reduced.insert(one.offset, one);
            }
        }
        let mut superseded: Vec<(Offset, Offset)> = Vec::new();
        for offset in erasures.superseded(usize::try_from(MAX_ERASED).unwrap_or(usize::MAX)) {
            if offset > archived || !room.takes(self, offset)? {
                break;
            }
            match superseded.last_mut() {
                Some((_, last)) if last.next() == offset => *last = offset,
                _ => superseded.push((offset, offset)),
            }
        }
        Ok(LogErase { reduced: reduced.into_values().collect(), superseded })
    }

    /// What is left of the event at `event` when the record `because` takes its content; `None` if nothing more
    /// can be taken.
    pub(crate) fn reduced(
        &self,
        event: Offset,
        because: Offset,
    ) -> Result<Option<Reduced>, ReadError> {
        self.reduction(Redacted { event, because, time_ms: 0 })
    }

    fn reduction(&self, redacted: Redacted) -> Result<Option<Reduced>, ReadError> {
        let Redacted { event: offset, because, .. } = redacted;
        let Some(record) = self.log().get(offset)? else { return Ok(None) };
        let room_id = match record.command() {
            Ok(Some(Command::RoomEvent(body))) => body.room_id,
            Ok(Some(Command::DelayedSchedule(body))) => body.room_id,
            _ => return Ok(None),
        };
        let Some(room) = self.state().rooms.get(&room_id) else { return Ok(None) };
        let bytes = match &record.payload {
            Payload::Present(bytes) => bytes,
            Payload::Reduced(_) | Payload::Erased => return Ok(None),
        };
        match reduced(&record.header.kind, bytes, &room.version) {
            Ok(left) => Ok(Some(Reduced {
                offset,
                because,
                room_version: room.version.clone(),
                hash: *blake3::hash(&left).as_bytes(),
            })),
            Err(error) => {
                // Every event that this server wrote can be.
                tracing::error!(%offset, %error, "a redacted event cannot be erased");
                Ok(None)
            }
        }
    }
}

/// The room that one piece has.
struct Room {
    pages: HashSet<u64>,
    bytes: u64,
    left: u64,
}

impl Room {
    /// Makes room for a record, if there is any.
    fn takes(&mut self, engine: &Engine, offset: Offset) -> Result<bool, ReadError> {
        if self.left == 0 || self.bytes >= PIECE_BYTES {
            return Ok(false);
        }
        self.left -= 1;
        let page = offset.get() / PAGE_RECORDS;
        if self.pages.insert(page) {
            let first = Offset::new(page * PAGE_RECORDS);
            let neighbours = engine.log().read(first, PAGE_RECORDS as usize)?;
            let bytes = |payload: &Payload| payload.bytes().map_or(0, bytes::Bytes::len) as u64;
            self.bytes += neighbours.iter().map(|record| 512 + bytes(&record.payload)).sum::<u64>();
        }
        Ok(true)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
