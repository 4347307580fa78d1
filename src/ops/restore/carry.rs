//! What a restore to an earlier moment carries over from the records after that moment.
//!
//! Each kind of command says what a restore does with it, in its row of `record::command`
//! ([`Restore`]). Where the content of a command decides, the rules are here ([`CarryOver`]). There
//! are three principles.
//!
//! - **What others hold cannot be undone.** A one-time key that was handed out, a token, a
//!   password, a device that was logged out, a closed account: the records of these are carried
//!   over, in their order. So are messages to devices, and their acknowledgements, because they
//!   contain the keys of encrypted rooms. Accounts and devices that were created after the moment
//!   are carried over, because otherwise somebody else could take their names.
//! - **What was erased stays erased,** and what was redacted is redacted again.
//! - **Everything else is dropped,** which is the purpose of a restore: rooms and their messages,
//!   names, aliases, settings. The positions of pushes and transactions are kept, so that nobody is
//!   notified twice; receipts are kept if their event exists.
//!
//! The transaction id of a dropped event is dropped, too: a client that retries wants the event to
//! be sent. Those of messages to devices are kept.
//!
//! [`Restore`]: logcabin_record::command::Restore

use std::collections::BTreeMap;

use ruma::{OwnedDeviceId, OwnedRoomId, OwnedUserId, UserId};
use serde::Deserialize;
use serde_json::value::RawValue;

use logcabin_record::{
    Command, Offset, Record, by_restore,
    command::{
        AccountDataSet, DelayedFinish, DelayedOutcome, DelayedRestart, DeliveryAdvance,
        DeviceRename, DeviceSeen, LogErase, ProfileSet, RoomErase, RoomEvent, RoomPurge,
        RoomReceipt, RoomRedactSender, RoomShutdown, ToDeviceAck, ToDeviceSend, Transaction,
        UserRegister,
    },
    pusher::{PusherAdvance, PusherMail},
};
use logcabin_state::State;

/// What happens to a record after the moment.
#[derive(Debug)]
pub(super) enum Carry {
    /// It is dropped.
    Forget,
    /// It is carried over.
    Over(Box<Command>),
    /// It is carried over unless a later one replaces it: only the last with this key counts.
    Last(Key, Box<Command>),
    /// Only the last of each receipt is carried over.
    Receipts(RoomReceipt),
    /// Events from before the moment are redacted again.
    Redact(Vec<Redaction>),
    /// Payloads from before the moment are erased.
    Erase(LogErase),
}

/// The key by which records replace each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// The last use of a device.
    Seen(OwnedUserId, OwnedDeviceId),
    /// A user's receipt of a type in a thread of a room.
    Receipt(OwnedRoomId, OwnedUserId, String, Option<String>),
    /// The position of a delivery.
    Delivery(String),
    /// The position of pushers.
    Pushed,
    /// The last mail of a pusher.
    Mail(Offset),
}

/// A redaction to repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redaction {
    pub(super) record: Offset,
    pub(super) room_id: OwnedRoomId,
    pub(super) sender: OwnedUserId,
    pub(super) reason: Option<String>,
    /// The record of the redacted event.
    pub(super) target: Offset,
}

/// Judges the records after a moment, in order.
pub(super) struct Carrier<'a> {
    /// The state: up to the moment, and with what was carried over since.
    state: &'a State,
    cut: Offset,
    /// The new offsets of records that were carried over.
    moved: BTreeMap<Offset, Offset>,
}

impl<'a> Carrier<'a> {
    pub(super) const fn new(state: &'a State, cut: Offset) -> Self {
        Self { state, cut, moved: BTreeMap::new() }
    }

    /// Notes the new offset of a record.
    pub(super) fn moved(&mut self, from: Offset, to: Offset) {
        self.moved.insert(from, to);
    }

    /// What happens to `record`, which contains `command`.
    pub(super) fn judge(&self, record: &Record, command: Command) -> Carry {
        by_restore!(command, body => {
            Dropped => Carry::Forget,
            CarriedOver => over(body),
            CarriedOverWithUser => {
                if self.state.accounts.contains(&body.user_id) { over(body) } else { Carry::Forget }
            },
            Judged => body.judge(self, record.offset()),
        })
    }

    /// The new offset of the last kept record up to `offset`.
    fn reached(&self, offset: Offset) -> Offset {
        if offset <= self.cut {
            return offset;
        }
        self.moved.range(..=offset).next_back().map_or(self.cut, |(_, now)| *now)
    }

    /// The transaction, if its session exists.
    fn transaction(&self, transaction: Transaction) -> Option<Transaction> {
        if transaction.session <= self.cut {
            return Some(transaction);
        }
        let session = *self.moved.get(&transaction.session)?;
        Some(Transaction { session, ..transaction })
    }

    fn session(&self, user_id: &UserId, device_id: &OwnedDeviceId) -> Option<Offset> {
        let account = self.state.accounts.get(user_id)?;
        account.read().device(device_id).map(|device| device.session)
    }

    fn is_scheduled(&self, delay_id: &str) -> bool {
        self.state.delayed.get(delay_id).is_some_and(|event| event.finished.is_none())
    }

    /// The runs of records that are from before the moment.
    fn before(&self, body: LogErase) -> LogErase {
        let LogErase { mut reduced, superseded, mut taken } = body;
        reduced.retain(|reduced| reduced.offset <= self.cut);
        taken.retain(|taken| taken.first <= self.cut);
        for run in &mut taken {
            run.last = run.last.min(self.cut);
        }
        let superseded = superseded.into_iter().filter(|(first, _)| *first <= self.cut);
        LogErase {
            taken,
            reduced,
            superseded: superseded.map(|(first, last)| (first, last.min(self.cut))).collect(),
        }
    }

    /// The redaction in an event, if the redacted event exists.
    fn redaction(&self, record: Offset, body: &RoomEvent) -> Option<Redaction> {
        #[derive(Deserialize)]
        struct Pdu<'a> {
            sender: OwnedUserId,
            #[serde(borrow)]
            content: &'a RawValue,
        }
        #[derive(Deserialize)]
        struct Content {
            #[serde(default)]
            reason: Option<serde_json::Value>,
        }
        let target = body.redacts.filter(|target| *target <= self.cut)?;
        let pdu: Pdu<'_> = serde_json::from_str(body.pdu.get()).ok()?;
        let content: Option<Content> = serde_json::from_str(pdu.content.get()).ok();
        let reason = content.and_then(|content| content.reason);
        Some(Redaction {
            record,
            room_id: body.room_id.clone(),
            sender: pdu.sender,
            reason: reason.and_then(|reason| Some(reason.as_str()?.to_owned())),
            target,
        })
    }
}

fn over(command: impl Into<Command>) -> Carry {
    Carry::Over(Box::new(command.into()))
}

fn last(key: Key, command: impl Into<Command>) -> Carry {
    Carry::Last(key, Box::new(command.into()))
}

/// A command whose content decides.
trait CarryOver {
    /// What happens to it; `record` is its offset.
    fn judge(self, carrier: &Carrier<'_>, record: Offset) -> Carry;
}

impl CarryOver for LogErase {
    fn judge(self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        Carry::Erase(carrier.before(self))
    }
}

impl CarryOver for UserRegister {
    fn judge(self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        if carrier.state.accounts.contains(&self.user_id) { Carry::Forget } else { over(self) }
    }
}

impl CarryOver for DeviceRename {
    fn judge(self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        // An existing device gets its old name back; a new one has no other.
        let session = carrier.session(&self.user_id, &self.device_id);
        let is_newer = session.is_some_and(|session| session > carrier.cut);
        if is_newer { over(self) } else { Carry::Forget }
    }
}

impl CarryOver for DeviceSeen {
    fn judge(self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        match carrier.session(&self.user_id, &self.device_id) {
            Some(_) => last(Key::Seen(self.user_id.clone(), self.device_id.clone()), self),
            None => Carry::Forget,
        }
    }
}

impl CarryOver for ProfileSet {
    fn judge(self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        // As with a device's name.
        let account = carrier.state.accounts.get(&self.user_id);
        let new = account.is_some_and(|account| account.read().registered > carrier.cut);
        if new { over(self) } else { Carry::Forget }
    }
}

impl CarryOver for AccountDataSet {
    fn judge(self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        let has_user = || carrier.state.accounts.contains(&self.user_id);
        if is_secret_storage(&self) && has_user() { over(self) } else { Carry::Forget }
    }
}

impl CarryOver for ToDeviceSend {
    fn judge(mut self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        self.transaction = self.transaction.and_then(|of| carrier.transaction(of));
        over(self)
    }
}

impl CarryOver for ToDeviceAck {
    fn judge(self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        over(Self { up_to: carrier.reached(self.up_to), ..self })
    }
}

impl CarryOver for RoomEvent {
    fn judge(self, carrier: &Carrier<'_>, record: Offset) -> Carry {
        carrier.redaction(record, &self).map_or(Carry::Forget, |of| Carry::Redact(vec![of]))
    }
}

// Deleted events and rooms stay deleted.

impl CarryOver for RoomErase {
    fn judge(mut self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        self.events.retain(|event| *event <= carrier.cut);
        if self.events.is_empty() { Carry::Forget } else { over(self) }
    }
}

impl CarryOver for RoomRedactSender {
    fn judge(self, carrier: &Carrier<'_>, record: Offset) -> Carry {
        let targets = self.events.iter().filter(|event| **event <= carrier.cut);
        let redactions = targets.map(|target| Redaction {
            record,
            room_id: self.room_id.clone(),
            sender: self.by.clone(),
            reason: None,
            target: *target,
        });
        Carry::Redact(redactions.collect())
    }
}

impl CarryOver for RoomPurge {
    fn judge(mut self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        if carrier.state.rooms.get(&self.room_id).is_none() {
            return Carry::Forget;
        }
        self.records.retain(|(first, _)| *first <= carrier.cut);
        for (_, last) in &mut self.records {
            *last = (*last).min(carrier.cut);
        }
        over(self)
    }
}

impl CarryOver for RoomShutdown {
    fn judge(mut self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        // Everyone leaves again.
        if carrier.state.rooms.get(&self.room_id).is_none() {
            return Carry::Forget;
        }
        self.replacement = None;
        over(self)
    }
}

impl CarryOver for RoomReceipt {
    fn judge(mut self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        let Self { room_id, receipts } = &mut self;
        receipts
            .retain(|receipt| carrier.state.event_in_room(room_id, &receipt.event_id).is_some());
        Carry::Receipts(self)
    }
}

// An event that was sent is sent again when the server starts, but not a cancelled one.

impl CarryOver for DelayedRestart {
    fn judge(self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        if carrier.is_scheduled(&self.delay_id) { over(self) } else { Carry::Forget }
    }
}

impl CarryOver for DelayedFinish {
    fn judge(self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        match self.outcome {
            DelayedOutcome::Cancel | DelayedOutcome::Error { .. }
                if carrier.is_scheduled(&self.delay_id) =>
            {
                over(self)
            }
            _ => Carry::Forget,
        }
    }
}

impl CarryOver for DeliveryAdvance {
    fn judge(mut self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        self.done = self.done.min(carrier.cut);
        self.under_way = self.under_way.filter(|under_way| under_way.up_to <= carrier.cut);
        last(Key::Delivery(self.to.clone()), self)
    }
}

impl CarryOver for PusherAdvance {
    fn judge(mut self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        self.done = self.done.min(carrier.cut);
        for (pusher, told) in &mut self.behind {
            *pusher = carrier.reached(*pusher);
            *told = (*told).min(carrier.cut);
        }
        self.behind.sort_unstable();
        last(Key::Pushed, self)
    }
}

impl CarryOver for PusherMail {
    fn judge(mut self, carrier: &Carrier<'_>, _: Offset) -> Carry {
        self.pusher = carrier.reached(self.pusher);
        self.up_to = self.up_to.min(carrier.cut);
        last(Key::Mail(self.pusher), self)
    }
}

/// Whether account data is secret storage of devices (client-server API, "Secrets"): it belongs to
/// the keys, which are not undone.
fn is_secret_storage(body: &AccountDataSet) -> bool {
    #[derive(Deserialize)]
    struct Secret<'a> {
        #[serde(borrow)]
        #[expect(dead_code, reason = "only its presence matters")]
        encrypted: &'a RawValue,
    }
    let event_type = body.event_type.as_str();
    body.room_id.is_none()
        && (event_type.starts_with("m.secret_storage.")
            || event_type.starts_with("m.cross_signing.")
            || event_type.starts_with("m.megolm_backup.")
            || event_type == "m.dehydrated_device"
            || serde_json::from_str::<Secret<'_>>(body.content.get()).is_ok())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;
    use logcabin_log::archive::ArchiveReader;
    use logcabin_record::Class;

    /// A restore to the moment before each record of a log with every kind of command.
    #[test]
    fn what_must_not_be_rewound_is_carried_over() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/0.1.0");
        let state = State::default();
        let mut rewound = BTreeSet::new();
        for record in ArchiveReader::open(&golden).unwrap().records(Offset::new(1)) {
            let record = record.unwrap();
            let kind = record.header.kind.to_string();
            let carrier = Carrier::new(&state, record.offset().prev());
            if let Some(command) = record.command().unwrap() {
                let must_not = command.kind().class == Class::MustNotRewind;
                let said = carrier.judge(&record, command);
                match said {
                    Carry::Forget if must_not => {
                        // The data of erased users is searched for again.
                        let repeated = ["server.identity", "server.restore", "user.erase"];
                        assert!(repeated.contains(&kind.as_str()), "{kind} is forgotten");
                    }
                    Carry::Forget => {}
                    _ if must_not => {}
                    _ => {
                        rewound.insert(kind);
                    }
                }
            }
            let _ = state.apply(&record).unwrap();
        }
        // Of the others exactly these, as the module says.
        let some: BTreeSet<_> = [
            "account_data.set",
            "admin.reason",
            "delayed.finish",
            "delayed.restart",
            "delivery.advance",
            "device.rename",
            "device.seen",
            "profile.set",
            "pusher.advance",
            "pusher.mail",
            "room.event",
            "room.receipt",
            "room.shutdown",
        ]
        .map(ToOwned::to_owned)
        .into();
        assert!(rewound.is_subset(&some), "{rewound:?}");
        assert!(rewound.contains("room.receipt") && rewound.contains("room.event"), "{rewound:?}");
    }

    #[test]
    fn secret_storage_is_distinguished_from_other_account_data() {
        let is_secret = |room: bool, event_type: &str, content: &str| {
            is_secret_storage(&AccountDataSet {
                user_id: "@ann:test".try_into().unwrap(),
                room_id: room.then(|| "!r:test".try_into().unwrap()),
                event_type: event_type.to_owned(),
                content: RawValue::from_string(content.to_owned()).unwrap(),
            })
        };
        assert!(is_secret(false, "m.secret_storage.default_key", "{\"key\":\"a\"}"));
        assert!(is_secret(false, "m.cross_signing.master", "null"));
        assert!(is_secret(false, "org.example.secret", "{\"encrypted\":{\"a\":{}}}"));
        assert!(!is_secret(false, "m.direct", "{}"));
        assert!(!is_secret(false, "m.tag", "null"));
        assert!(!is_secret(true, "org.example.secret", "{\"encrypted\":{}}"));
    }
}
