//! What is sent to a homeserver, each checked before it is: an item that no homeserver could read
//! would block all that come after it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ruma::{RoomVersionId, ServerName};
use serde_json::value::RawValue;
use tracing::error;

use super::{Sender, edus::Edu, is_told};
use logcabin_base::{
    canonical::{self, Numbers},
    limits,
};
use logcabin_log::ReadError;
use logcabin_read::events::as_shown;
use logcabin_record::Offset;
use logcabin_state::State;

/// An event or an EDU.
pub(super) struct Item {
    /// The index of its record in the load; none for a transient EDU.
    pub(super) of: Option<usize>,
    pub(super) is_pdu: bool,
    pub(super) json: Box<RawValue>,
}

impl Item {
    /// What it is called: the type of an EDU, or `event`.
    pub(super) fn name(&self) -> String {
        name(self.is_pdu, &self.json)
    }

    fn bytes(&self) -> usize {
        self.json.get().len()
    }
}

fn name(is_pdu: bool, json: &RawValue) -> String {
    #[derive(serde::Deserialize)]
    struct EduHead {
        edu_type: String,
    }
    if is_pdu {
        return "event".to_owned();
    }
    let head = serde_json::from_str::<EduHead>(json.get());
    head.map_or_else(|_| "EDU".to_owned(), |head| head.edu_type)
}

/// An item that cannot be sent.
pub(super) struct Unsendable {
    /// The index of its record in the load; none for a transient EDU.
    pub(super) of: Option<usize>,
    pub(super) name: String,
    /// What is wrong with it.
    pub(super) reason: String,
}

/// What comes from some records, as many as a transaction takes.
#[derive(Default)]
pub(super) struct Load {
    pub(super) items: Vec<Item>,
    pub(super) unsendable: Vec<Unsendable>,
    /// How many items come from each record and those before it.
    pub(super) ends: Vec<usize>,
}

impl Load {
    /// The number of records that it has.
    pub(super) fn records(&self) -> usize {
        self.ends.len()
    }

    /// How many of its records are done with, if this many of its items are.
    pub(super) fn records_done(&self, items: usize) -> usize {
        self.ends.partition_point(|end| *end <= items)
    }

    /// How many items from this one on a transaction takes.
    pub(super) fn fits(&self, first: usize) -> usize {
        let mut size = Size::default();
        let left = &self.items[first.min(self.items.len())..];
        left.iter().take_while(|item| size.takes(item)).count()
    }

    /// Adds a checked item.
    fn add(&mut self, of: Option<usize>, is_pdu: bool, json: Box<RawValue>, numbers: Numbers) {
        match flaw(&json, numbers) {
            None => self.items.push(Item { of, is_pdu, json }),
            Some(reason) => {
                self.unsendable.push(Unsendable { of, name: name(is_pdu, &json), reason });
            }
        }
    }

    /// Adds the newest transient EDUs, as many as there is room for.
    pub(super) fn add_transient(&mut self, transient: Vec<Edu>) {
        let edus = self.items.iter().filter(|item| !item.is_pdu).count();
        let room = limits::TRANSACTION_EDUS.saturating_sub(edus);
        for edu in transient.into_iter().rev().take(room) {
            self.add(None, false, edu, Numbers::Strict);
        }
    }
}

/// What is wrong with an item, if it cannot be sent.
fn flaw(json: &RawValue, numbers: Numbers) -> Option<String> {
    let bytes = json.get().len();
    if bytes > limits::TRANSACTION_ITEM_BYTES {
        return Some(format!("it has {bytes} bytes and fits no transaction"));
    }
    canonical::check(json.get(), numbers).err().map(|error| error.to_string())
}

/// The numbers that events of a room may have.
pub(super) fn numbers(version: &RoomVersionId) -> Numbers {
    use RoomVersionId::{V1, V2, V3, V4, V5};
    match version {
        V1 | V2 | V3 | V4 | V5 => Numbers::Held,
        _ => Numbers::Strict,
    }
}

/// The size of a transaction.
#[derive(Clone, Copy, Default)]
struct Size {
    pdus: usize,
    edus: usize,
    edu_bytes: usize,
    bytes: usize,
}

impl Size {
    /// Adds an item. Returns whether they are still one transaction; a single item always is.
    fn takes(&mut self, item: &Item) -> bool {
        let is_first = self.pdus + self.edus == 0;
        self.bytes += item.bytes();
        match item.is_pdu {
            true => self.pdus += 1,
            false => {
                self.edus += 1;
                self.edu_bytes += item.bytes();
            }
        }
        is_first
            || (self.pdus <= limits::TRANSACTION_PDUS
                && self.edus <= limits::TRANSACTION_EDUS
                && self.edu_bytes <= limits::TRANSACTION_EDU_BYTES
                && self.bytes <= limits::TRANSACTION_ITEM_BYTES)
    }
}

impl Sender {
    /// The items of the first of these records, as many as a transaction takes, but at least those
    /// of one record.
    ///
    /// # Errors
    /// When the log cannot be read now.
    pub(super) fn load(
        &self,
        state: &State,
        server: &ServerName,
        offsets: &[Offset],
    ) -> Result<Load, ReadError> {
        let (mut load, mut size) = (Load::default(), Size::default());
        for (index, offset) in offsets.iter().enumerate() {
            let (items, unsendable) = (load.items.len(), load.unsendable.len());
            // A panic would repeat itself, and end all deliveries each time.
            let add =
                AssertUnwindSafe(|| self.add_record(&mut load, state, server, (index, *offset)));
            let wrong = match catch_unwind(add) {
                Ok(Ok(())) => None,
                // It may be readable later.
                Ok(Err(error @ ReadError::Storage(_))) => return Err(error),
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => {
                    error!(%server, record = %offset, "building an item panicked");
                    Some("building it panicked".to_owned())
                }
            };
            if let Some(reason) = wrong {
                load.items.truncate(items);
                load.unsendable.truncate(unsendable);
                let name = "record".to_owned();
                load.unsendable.push(Unsendable { of: Some(index), name, reason });
            }
            let mut fits = true;
            for item in &load.items[items..] {
                fits &= size.takes(item);
            }
            if !fits && index > 0 {
                load.items.truncate(items);
                load.unsendable.truncate(unsendable);
                break;
            }
            load.ends.push(load.items.len());
        }
        Ok(load)
    }

    /// Adds the items of a record.
    fn add_record(
        &self,
        load: &mut Load,
        state: &State,
        server: &ServerName,
        (index, offset): (usize, Offset),
    ) -> Result<(), ReadError> {
        let (events, of) = (self.engine.events(), Some(index));
        let mut edus = Vec::new();
        if let Some(event) = events.get(offset)? {
            if let Some(room) = state.rooms.get(&event.room_id) {
                edus = self.edus_of_join(state, server, &room, &event)?;
                if is_told(&event, server) {
                    let shown = as_shown(&room, event, Offset::MAX);
                    let pdu = events.in_federation_format(&room, &shown);
                    load.add(of, true, pdu, numbers(&room.version));
                }
            }
        } else if let Some(command) = events.command(offset)? {
            edus = self.edus(state, server, offset, command)?;
        }
        for edu in edus {
            load.add(of, false, edu, Numbers::Strict);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).expect("JSON")
    }

    #[test]
    fn what_no_homeserver_could_read_is_not_sent_and_the_others_are() {
        let mut load = Load::default();
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        let long = format!(r#""{}""#, "a".repeat(limits::TRANSACTION_ITEM_BYTES));
        let bad = ["1.5", "1e999", "9007199254740992", "-0", r#""\ud800""#, &deep, &long];
        let all = bad.into_iter().chain(["9007199254740991", r#""\ud83d\ude00""#]);
        for (index, content) in all.enumerate() {
            let edu = format!(r#"{{"edu_type":"m.test","content":{{"a":{content}}}}}"#);
            load.add(Some(index), false, raw(&edu), Numbers::Strict);
        }
        let sent: Vec<_> = load.items.iter().map(|item| item.of).collect();
        assert_eq!(sent, [Some(7), Some(8)]);
        assert_eq!(load.unsendable.len(), bad.len());
        assert!(load.unsendable.iter().all(|item| item.name == "m.test"));
    }

    #[test]
    fn floats_are_sent_in_rooms_whose_version_allows_them() {
        for (version, fine) in [
            (RoomVersionId::V3, true),
            (RoomVersionId::V5, true),
            (RoomVersionId::V6, false),
            (RoomVersionId::V12, false),
        ] {
            let mut load = Load::default();
            load.add(Some(0), true, raw(r#"{"content":{"a":1.5}}"#), numbers(&version));
            assert_eq!(load.items.len(), usize::from(fine), "{version}");
        }
    }

    #[test]
    fn items_of_one_record_that_are_too_many_for_one_transaction_are_in_several() {
        let mut load = Load::default();
        for _ in 0..limits::TRANSACTION_EDUS * 2 + 1 {
            load.add(Some(0), false, raw("{}"), Numbers::Strict);
        }
        load.ends.push(load.items.len());
        assert_eq!(load.fits(0), limits::TRANSACTION_EDUS);
        assert_eq!(load.fits(limits::TRANSACTION_EDUS * 2), 1);
        assert_eq!(load.records_done(limits::TRANSACTION_EDUS), 0);
        assert_eq!(load.records_done(limits::TRANSACTION_EDUS * 2 + 1), 1);
        let large = format!(r#"{{"a":"{}"}}"#, "a".repeat(limits::TRANSACTION_EDU_BYTES));
        let mut load = Load::default();
        load.add(Some(0), false, raw(&large), Numbers::Strict);
        load.add(Some(0), false, raw("{}"), Numbers::Strict);
        assert_eq!(load.fits(0), 1);
    }
}
