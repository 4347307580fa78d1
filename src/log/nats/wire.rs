//! The messages of the stream.
//!
//! A message is what one node proposed at once: batches, each with the time at which it was
//! proposed. It begins with one line of JSON, which describes the batches; the payloads follow, one
//! after the other, in the order of their records:
//!
//! ```text
//! {"v":1,"node":"9f2c…","number":7,"batches":[{"time_ms":…,"expect":[["room/!r:a",41]],
//!  "records":[{"stream":"room/!r:a","kind":"room.event","version":2,…,"bytes":812}]}]}⏎
//! {"event_id":…}
//! ```

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::Batch;
use logcabin_record::{Class, NewRecord, Offset, Origin, Stream, command::Kind};

/// The version of the format. A node refuses to follow a stream that has a newer one.
const VERSION: u32 = 1;

/// What one node proposed at once.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// The node's process: a random number that each start draws.
    pub(super) node: u64,
    /// The number of the first batch. Each process counts its batches from 0.
    pub(super) number: u64,
    /// The batches, in order.
    pub(super) batches: Vec<Proposed>,
}

/// A batch, and when it was proposed.
#[derive(Clone, Debug)]
pub(super) struct Proposed {
    /// Milliseconds since the Unix epoch, by the clock of the node that proposed it.
    pub(super) time_ms: u64,
    pub(super) batch: Batch,
}

/// Why a message cannot be followed. No node of this version can.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    /// It is from a newer version.
    #[error("it is of version {0} of the format; this server knows {VERSION}: upgrade it")]
    Version(u32),
    /// It has a kind of record that this version does not know.
    #[error("it has a record of the kind `{0}`, which this server does not know: upgrade it")]
    Kind(String),
    /// It is not a message of a node.
    #[error("it is damaged: {0}")]
    Damaged(String),
}

#[derive(Serialize, Deserialize)]
struct MessageHead {
    v: u32,
    node: String,
    number: u64,
    batches: Vec<HeadBatch>,
}

#[derive(Serialize, Deserialize)]
struct HeadBatch {
    time_ms: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    expect: Vec<(Stream, Offset)>,
    records: Vec<HeadRecord>,
}

#[derive(Serialize, Deserialize)]
struct HeadRecord {
    stream: Stream,
    kind: String,
    version: u16,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    rewinds: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    ephemeral: bool,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    user: Box<str>,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    device: Box<str>,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    request: Box<str>,
    bytes: usize,
}

impl Message {
    /// The bytes of the message.
    pub(super) fn encode(&self) -> Result<Bytes, serde_json::Error> {
        let head = MessageHead {
            v: VERSION,
            node: format!("{:016x}", self.node),
            number: self.number,
            batches: self.batches.iter().map(HeadBatch::of).collect(),
        };
        let mut bytes = serde_json::to_vec(&head)?;
        bytes.push(b'\n');
        let mut bytes = BytesMut::from(&bytes[..]);
        for record in self.batches.iter().flat_map(|proposed| &proposed.batch.records) {
            bytes.extend_from_slice(&record.payload);
        }
        Ok(bytes.freeze())
    }

    /// Reads a message. The payloads share its memory.
    pub(super) fn decode(bytes: &Bytes) -> Result<Self, WireError> {
        let damaged = |what: &dyn std::fmt::Display| WireError::Damaged(what.to_string());
        let end = memchr::memchr(b'\n', bytes).ok_or_else(|| damaged(&"it has no head"))?;
        let version = |head: &[u8]| {
            #[derive(Deserialize)]
            struct Versioned {
                v: u32,
            }
            serde_json::from_slice(head).map(|Versioned { v }| v)
        };
        match version(&bytes[..end]).map_err(|error| damaged(&error))? {
            VERSION => {}
            newer => return Err(WireError::Version(newer)),
        }
        let head: MessageHead =
            serde_json::from_slice(&bytes[..end]).map_err(|error| damaged(&error))?;
        let node = u64::from_str_radix(&head.node, 16).map_err(|error| damaged(&error))?;
        let mut payloads = bytes.slice(end + 1..);
        let mut batches = Vec::with_capacity(head.batches.len());
        for HeadBatch { time_ms, expect, records } in head.batches {
            let records: Result<Vec<_>, _> =
                records.into_iter().map(|record| record.with_payload(&mut payloads)).collect();
            batches.push(Proposed { time_ms, batch: Batch { expect, records: records? } });
        }
        if !payloads.is_empty() {
            return Err(damaged(&"payloads are left over"));
        }
        Ok(Self { node, number: head.number, batches })
    }
}

/// About how many bytes a batch takes in a message.
pub(super) fn bytes_of(batch: &Batch) -> usize {
    let expect = batch.expect.iter().map(|(stream, _)| stream.as_str().len() + 32);
    let records = batch.records.iter().map(|record| {
        let origin = &record.origin;
        let names = record.stream.as_str().len() + origin.user.len() + origin.device.len();
        record.payload.len() + names + origin.request.len() + 160
    });
    expect.sum::<usize>() + records.sum::<usize>() + 64
}

impl HeadBatch {
    fn of(proposed: &Proposed) -> Self {
        Self {
            time_ms: proposed.time_ms,
            expect: proposed.batch.expect.clone(),
            records: proposed.batch.records.iter().map(HeadRecord::of).collect(),
        }
    }
}

impl HeadRecord {
    fn of(record: &NewRecord) -> Self {
        Self {
            stream: record.stream.clone(),
            kind: record.kind.to_owned(),
            version: record.version,
            rewinds: record.class == Class::Rewindable,
            ephemeral: record.ephemeral,
            user: record.origin.user.clone(),
            device: record.origin.device.clone(),
            request: record.origin.request.clone(),
            bytes: record.payload.len(),
        }
    }

    /// The record, whose payload is taken from the front of `payloads`.
    fn with_payload(self, payloads: &mut Bytes) -> Result<NewRecord, WireError> {
        if self.bytes > payloads.len() {
            return Err(WireError::Damaged("a payload is missing".to_owned()));
        }
        let Some(kind) = Kind::named(&self.kind) else { return Err(WireError::Kind(self.kind)) };
        Ok(NewRecord {
            stream: self.stream,
            kind: kind.name,
            version: self.version,
            class: if self.rewinds { Class::Rewindable } else { Class::MustNotRewind },
            ephemeral: self.ephemeral,
            origin: Origin { user: self.user, device: self.device, request: self.request },
            payload: payloads.split_to(self.bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        let record = |kind: &'static str, class, payload: &'static [u8]| NewRecord {
            stream: Stream::server(),
            kind,
            version: 1,
            class,
            ephemeral: class == Class::Rewindable,
            origin: Origin::administrator("ann"),
            payload: Bytes::from_static(payload),
        };
        let batch = Batch {
            expect: vec![(Stream::server(), Offset::new(4))],
            records: vec![
                record("log.erase", Class::MustNotRewind, b"{\"a\":\n1}"),
                record("room.event", Class::Rewindable, b"{}"),
            ],
        };
        let batches = vec![
            Proposed { time_ms: 7, batch: batch.clone() },
            Proposed { time_ms: 9, batch: Batch { expect: vec![], ..batch } },
        ];
        Message { node: u64::MAX, number: 3, batches }
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let message = message();
        let bytes = message.encode().unwrap();
        let read = Message::decode(&bytes).unwrap();
        assert_eq!(format!("{read:?}"), format!("{message:?}"));
        let estimated: usize = message.batches.iter().map(|p| bytes_of(&p.batch)).sum();
        assert!(bytes.len() <= estimated + 100, "{} bytes, estimated {estimated}", bytes.len());
    }

    #[test]
    fn only_messages_are_accepted() {
        let bytes = message().encode().unwrap();
        let whole = std::str::from_utf8(&bytes).unwrap();
        for wrong in [
            String::new(),
            "{}".to_owned(),
            whole[..whole.len() - 1].to_owned(),
            format!("{whole} "),
            whole.replacen("{\"v\":1", "{\"v\":2", 1),
            whole.replacen("room.event", "room.other", 1),
        ] {
            assert!(Message::decode(&Bytes::from(wrong.clone())).is_err(), "{wrong}");
        }
    }
}
