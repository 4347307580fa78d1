//! Records that tests of logs append.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fmt;

use bytes::Bytes;
use logcabin_record::{
    Class, Command, NewRecord, Offset, Origin, Record, Stream,
    command::{LogErase, Reduced, RoomTyping},
    reduced,
};
use ruma::RoomVersionId;
use tokio::sync::watch;

use super::{Appending, Batch, Follower, Log, ReadError, StreamHeads};

/// A log in front of another: what it does not do itself, the other one does.
pub trait Wrapper: Send + Sync + fmt::Debug + 'static {
    fn inner(&self) -> &dyn Log;

    fn append(&self, batch: Batch) -> Appending<'_> {
        self.inner().append(batch)
    }

    fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError> {
        self.inner().get(offset)
    }

    fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, ReadError> {
        self.inner().read(from, limit)
    }

    fn durable(&self) -> watch::Receiver<Offset> {
        self.inner().durable()
    }
}

impl<T: Wrapper> Log for T {
    fn append(&self, batch: Batch) -> Appending<'_> {
        Wrapper::append(self, batch)
    }

    fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError> {
        Wrapper::get(self, offset)
    }

    fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, ReadError> {
        Wrapper::read(self, from, limit)
    }

    fn durable(&self) -> watch::Receiver<Offset> {
        Wrapper::durable(self)
    }

    fn start(&self, heads: StreamHeads, follower: Follower) {
        self.inner().start(heads, follower);
    }

    fn close(&self) {
        self.inner().close();
    }
}

pub fn stream(name: &str) -> Stream {
    Stream::from_name(name)
}

pub fn record(name: &str, payload: impl Into<Bytes>) -> NewRecord {
    NewRecord {
        stream: stream(name),
        kind: "room.forget",
        version: 1,
        class: Class::Rewindable,
        ephemeral: false,
        origin: Origin::server(),
        payload: payload.into(),
    }
}

/// A payload that fits `room.forget`.
pub fn payload(number: u64) -> Bytes {
    Bytes::from(format!(r#"{{"user_id":"@u{number}:example.org","room_id":"!r:example.org"}}"#))
}

/// A record that may be superseded.
pub fn passing(payload: impl Into<Bytes>) -> NewRecord {
    NewRecord { ephemeral: true, ..record("ephemeral/!r:example.org", payload) }
}

/// That a user types.
pub fn typing() -> NewRecord {
    let typing = RoomTyping {
        room_id: "!a:test".try_into().unwrap(),
        user_id: "@ann:test".try_into().unwrap(),
        until_ms: 1,
        since: None,
    };
    let stream = Stream::ephemeral(&typing.room_id);
    NewRecord::new(stream, Origin::server(), &Command::from(typing))
}

/// An event with `text` in its content.
pub fn event(text: &str) -> NewRecord {
    let pdu = format!(
        r#"{{"auth_events":[],"content":{{"body":"{text}"}},"depth":1,"hashes":{{}},"origin_server_ts":1,"prev_events":[],"room_id":"!r:example.org","sender":"@ann:example.org","signatures":{{}},"type":"m.room.message"}}"#
    );
    let payload = format!(r#"{{"room_id":"!r:example.org","event_id":"$e","pdu":{pdu}}}"#);
    NewRecord { kind: "room.event", ..record("room/!r:example.org", payload) }
}

/// The record that erases `superseded` and reduces the events at `events`.
pub fn erasure(log: &dyn Log, events: &[u64], superseded: &[(u64, u64)]) -> NewRecord {
    let reduction = |offset: &u64| {
        let record = log.get(Offset::new(*offset)).unwrap().unwrap();
        let left =
            reduced("room.event", record.payload.bytes().unwrap(), Some(&RoomVersionId::V10))
                .unwrap();
        Reduced {
            offset: Offset::new(*offset),
            because: Offset::new(*offset),
            room_version: Some(RoomVersionId::V10),
            hash: *blake3::hash(&left).as_bytes(),
        }
    };
    let runs = superseded.iter().map(|(first, last)| (Offset::new(*first), Offset::new(*last)));
    let erase = LogErase {
        reduced: events.iter().map(reduction).collect(),
        superseded: runs.collect(),
        taken: Vec::new(),
    };
    NewRecord::new(Stream::server(), Origin::server(), &Command::from(erase))
}

pub fn one(record: NewRecord) -> Batch {
    Batch { expect: Vec::new(), records: vec![record] }
}

/// `count` records without expectations.
pub fn batch(name: &str, count: u64) -> Batch {
    let records = (0..count).map(|number| record(name, payload(number))).collect();
    Batch { expect: Vec::new(), records }
}

pub(crate) fn heads(log: &dyn Log) -> StreamHeads {
    let records = log.read(Offset::new(1), usize::MAX).unwrap();
    records.into_iter().map(|r| (r.header.stream.clone(), r.offset())).collect()
}

pub fn start(log: &dyn Log) {
    log.start(heads(log), Box::new(|_| ()));
}
