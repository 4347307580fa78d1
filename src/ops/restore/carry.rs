//! What a restore to an earlier moment carries over from the records after that moment.
//!
//! [`Carrier::judge`] has the rule, as a match over every kind of command: whoever adds a kind
//! decides it there. There are three principles.
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

use std::collections::BTreeMap;

use ruma::{OwnedDeviceId, OwnedRoomId, OwnedUserId, UserId};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    record::{
        Command, Offset, Record,
        command::{
            AccountDataSet, DelayedOutcome, LogErase, Receipt, RoomEvent, RoomReceipt, ToDeviceAck,
            Transaction,
        },
    },
    state::State,
};

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
    /// An event from before the moment is redacted again.
    Redact(Redaction),
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
    /// Its record.
    pub(super) record: Offset,
    /// The room.
    pub(super) room_id: OwnedRoomId,
    /// The sender.
    pub(super) sender: OwnedUserId,
    /// The reason.
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
        use Command as C;
        let over = |command: C| Carry::Over(Box::new(command));
        let of = |user_id: &UserId, command: C| {
            if self.state.accounts.contains(user_id) { over(command) } else { Carry::Forget }
        };
        let forget = Carry::Forget;
        match command {
            // The first record is kept; the new epoch is higher than any before it.
            C::ServerIdentity(_) | C::ServerRestore(_) => forget,
            // It covers records that no longer exist.
            C::LogCheckpoint(_) => forget,
            C::BackupMade(_) => over(command),
            C::LogErase(body) => Carry::Erase(self.before(body)),

            // A key that was given up is not used again.
            C::ServerKey(_) => over(command),

            C::UserRegister(ref body) if self.state.accounts.contains(&body.user_id) => forget,
            C::UserRegister(_)
            | C::RegistrationTokenSet(_)
            | C::RegistrationTokenRemove(_) => over(command),
            C::UserUpgrade(ref body) => of(&body.user_id.clone(), command),
            C::UserPassword(ref body) => of(&body.user_id.clone(), command),
            C::LoginTokenUse(ref body) => of(&body.user_id.clone(), command),
            C::SsoLink(ref body) => of(&body.user_id.clone(), command),
            C::UserStatus(ref body) => of(&body.user_id.clone(), command),
            // The rooms are left when the server starts.
            C::UserDeactivate(ref body) => of(&body.user_id.clone(), command),

            C::DeviceLogin(ref body) => of(&body.user_id.clone(), command),
            C::DeviceRefresh(ref body) => of(&body.user_id.clone(), command),
            C::DeviceConfirm(ref body) => of(&body.user_id.clone(), command),
            C::DeviceRemove(ref body) => of(&body.user_id.clone(), command),
            C::DeviceDehydrate(ref body) => of(&body.user_id.clone(), command),
            C::OauthClient(_)
            | C::OauthClientRemove(_)
            | C::OauthDeviceRequest(_)
            | C::OauthRefresh(_)
            | C::OauthConfirm(_)
            | C::OauthKey(_) => over(command),
            C::OauthCode(ref body) => of(&body.user_id.clone(), command),
            C::OauthDeviceAnswer(ref body) => of(&body.user_id.clone(), command),
            C::OauthGrant(ref body) => of(&body.user_id.clone(), command),
            C::OauthEnd(ref body) => of(&body.user_id.clone(), command),
            C::BrowserSignIn(ref body) => of(&body.user_id.clone(), command),
            C::BrowserSignOut(ref body) => of(&body.user_id.clone(), command),
            C::DeviceRename(ref body) => {
                // An existing account gets its old name back; a new one has no other.
                let session = self.session(&body.user_id, &body.device_id);
                let is_newer = session.is_some_and(|session| session > self.cut);
                if is_newer { over(command) } else { forget }
            }
            C::DeviceSeen(ref body) => {
                let key = Key::Seen(body.user_id.clone(), body.device_id.clone());
                match self.session(&body.user_id, &body.device_id) {
                    Some(_) => Carry::Last(key, Box::new(command)),
                    None => forget,
                }
            }
            C::ProfileSet(ref body) => {
                // As with a device's name.
                let account = self.state.accounts.get(&body.user_id);
                let new = account.is_some_and(|account| account.read().registered > self.cut);
                if new { over(command) } else { forget }
            }
            C::AccountDataSet(ref body) if is_secret_storage(body) => {
                of(&body.user_id.clone(), command)
            }
            C::AccountDataSet(_) => forget,
            // Clients remember their ids.
            C::FilterCreate(ref body) => of(&body.user_id.clone(), command),

            C::KeysUpload(ref body) => of(&body.user_id.clone(), command),
            C::KeysClaim(ref body) => of(&body.user_id.clone(), command),
            C::KeysDrop(_) => over(command),
            C::KeysCrossSign(ref body) => of(&body.user_id.clone(), command),
            C::KeysPermitReset(ref body) => of(&body.user_id.clone(), command),
            C::KeysSign(ref body) => of(&body.user_id.clone(), command),
            C::KeyBackupSet(ref body) => of(&body.user_id.clone(), command),
            C::KeyBackupDelete(ref body) => of(&body.user_id.clone(), command),
            C::KeyBackupPut(ref body) => of(&body.user_id.clone(), command),
            C::KeyBackupRemove(ref body) => of(&body.user_id.clone(), command),
            C::ToDeviceSend(mut body) => {
                body.transaction = body.transaction.and_then(|of| self.transaction(of));
                over(C::ToDeviceSend(body))
            }
            C::ToDeviceAck(body) => {
                over(C::ToDeviceAck(ToDeviceAck { up_to: self.reached(body.up_to), ..body }))
            }

            C::RoomEvent(body) => self.redaction(record, &body).map_or(forget, Carry::Redact),
            C::RoomPdu(_)
            | C::RoomState(_)
            | C::RoomGap(_)
            | C::PeerReached(_)
            | C::PeerDevices(_) => forget,
            // Deleted events, rooms and data of users stay deleted. The data of a user is found
            // again, because the deactivation is carried over.
            C::RoomErase(mut body) => {
                body.events.retain(|event| *event <= self.cut);
                if body.events.is_empty() { forget } else { over(C::RoomErase(body)) }
            }
            C::RoomPurge(mut body) if self.state.rooms.get(&body.room_id).is_some() => {
                body.records.retain(|(first, _)| *first <= self.cut);
                for (_, last) in &mut body.records {
                    *last = (*last).min(self.cut);
                }
                over(C::RoomPurge(body))
            }
            C::RoomPurge(_) | C::UserErase(_) => forget,
            // Clients from before an earlier restore are still told what it undid.
            C::RoomUndo(_) => over(command),
            C::MediaRemove(_) | C::MediaQuarantine(_) | C::MediaProtect(_) => over(command),
            // A blocked room stays blocked, and everyone in a room that was shut down leaves again.
            C::RoomBlock(_) | C::AdminReason(_) => over(command),
            C::RoomShutdown(mut body) if self.state.rooms.get(&body.room_id).is_some() => {
                body.replacement = None;
                over(C::RoomShutdown(body))
            }
            C::RoomShutdown(_)
            | C::RoomShutdownFinish(_)
            | C::NoticeRoom(_)
            | C::ReportRemove(_)
            | C::RoomForget(_)
            | C::RoomVisibility(_)
            | C::RoomNetwork(_)
            | C::AliasSet(_)
            | C::AliasRemove(_)
            | C::ReportCreate(_)
            // The keys of other homeservers are fetched again.
            | C::PeerKeys(_)
            // Ephemeral events are dropped.
            | C::RoomTyping(_)
            | C::PresenceSet(_)
            // Nothing refers to the files any more; unreferenced files are deleted in time.
            | C::MediaCreate(_)
            | C::MediaUpload(_) => forget,
            C::RoomReceipt(mut body) => {
                let room_id = body.room_id.clone();
                let there = |receipt: &Receipt| {
                    self.state.event_in_room(&room_id, &receipt.event_id).is_some()
                };
                body.receipts.retain(there);
                Carry::Receipts(body)
            }

            // Events scheduled since then are dropped, and an event that was sent is sent again
            // when the server starts, but not a cancelled one.
            C::DelayedSchedule(_) => forget,
            C::DelayedRestart(ref body) if self.is_scheduled(&body.delay_id) => over(command),
            C::DelayedRestart(_) => forget,
            C::DelayedFinish(ref body) => match body.outcome {
                DelayedOutcome::Cancel | DelayedOutcome::Error { .. }
                    if self.is_scheduled(&body.delay_id) =>
                {
                    over(command)
                }
                _ => forget,
            },

            C::ValidationRequest(_)
            | C::ValidationSent(_)
            | C::ValidationMiss(_)
            | C::ValidationComplete(_)
            | C::ValidationUse(_) => over(command),
            C::ThreepidAdd(ref body) => of(&body.user_id.clone(), command),
            C::ThreepidRemove(ref body) => of(&body.user_id.clone(), command),
            C::ThreepidBind(ref body) => of(&body.user_id.clone(), command),
            C::ThreepidUnbind(ref body) => of(&body.user_id.clone(), command),

            C::DeliveryAdvance(mut body) => {
                body.done = body.done.min(self.cut);
                body.under_way = body.under_way.filter(|under_way| under_way.up_to <= self.cut);
                let key = Key::Delivery(body.to.clone());
                Carry::Last(key, Box::new(C::DeliveryAdvance(body)))
            }
            C::PusherSet(ref body) => of(&body.user_id.clone(), command),
            C::PusherRemove(ref body) => of(&body.user_id.clone(), command),
            C::PusherAdvance(mut body) => {
                body.done = body.done.min(self.cut);
                for (pusher, told) in &mut body.behind {
                    *pusher = self.reached(*pusher);
                    *told = (*told).min(self.cut);
                }
                body.behind.sort_unstable();
                Carry::Last(Key::Pushed, Box::new(C::PusherAdvance(body)))
            }
            C::PusherMail(mut body) => {
                body.pusher = self.reached(body.pusher);
                body.up_to = body.up_to.min(self.cut);
                Carry::Last(Key::Mail(body.pusher), Box::new(C::PusherMail(body)))
            }
        }
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
    fn redaction(&self, record: &Record, body: &RoomEvent) -> Option<Redaction> {
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
            record: record.offset(),
            room_id: body.room_id.clone(),
            sender: pdu.sender,
            reason: reason.and_then(|reason| Some(reason.as_str()?.to_owned())),
            target,
        })
    }
}

/// Whether account data is secret storage of devices (client-server API, "Secrets"): it belongs to
/// the keys, which are not undone.
fn is_secret_storage(body: &AccountDataSet) -> bool {
    #[derive(Deserialize)]
    struct Secret<'a> {
        #[serde(borrow)]
        #[expect(dead_code, reason = "that it is there is what matters")]
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
    use crate::{log::archive::ArchiveReader, record::Class};

    /// A restore to the moment before each record of a log with every kind of command.
    #[test]
    fn what_must_not_be_rewound_is_carried_over() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/0.1.0");
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
    fn what_devices_store_for_each_other_is_told_from_other_account_data() {
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
