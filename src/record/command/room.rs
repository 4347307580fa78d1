//! Commands of rooms: events, and what is kept of rooms beside them.

use ruma::{OwnedEventId, OwnedRoomAliasId, OwnedRoomId, OwnedUserId, RoomVersionId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::kind::{Content, Erased};
use crate::record::{Epoch, Holds, Offset};

/// Payload of `room.event`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomEvent {
    /// The room.
    pub room_id: OwnedRoomId,
    /// The event's id: the reference hash of `pdu`.
    pub event_id: OwnedEventId,
    /// The room's version; only with its `m.room.create` event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_version: Option<RoomVersionId>,
    /// The transaction that sent it, for events sent with a transaction id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<Transaction>,
    /// For a redaction that takes effect: the offset of the event that it redacts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redacts: Option<Offset>,
    /// For an event that was scheduled: the id of its delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_id: Option<String>,
    /// The event in federation format: hashed, signed, canonical JSON.
    pub pdu: Box<RawValue>,
}

impl Content for RoomEvent {
    const ERASED: Erased = Erased::Event;

    fn holds(&self) -> Holds<'_> {
        Holds::Event(self)
    }
}

/// Payload of `room.erase`. From it on the events are not in the room any more; redactions of them
/// go with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomErase {
    /// The room.
    pub room_id: OwnedRoomId,
    /// The events, in ascending order: none of them state.
    pub events: Vec<Offset>,
    /// Why they are gone.
    #[serde(flatten)]
    pub why: EventsEnd,
}

impl Content for RoomErase {}

/// Why events are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum EventsEnd {
    /// Events of this type live so long in this room.
    Lifetime {
        /// The type.
        event_type: String,
        /// Milliseconds from the record of an event on.
        lifetime_ms: u64,
    },
    /// The one who sent them was erased.
    Sender {
        /// Who.
        user_id: OwnedUserId,
        /// The `user.deactivate`.
        because: Offset,
    },
}

/// Payload of `room.purge`. Nobody is joined to the room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomPurge {
    /// The room.
    pub room_id: OwnedRoomId,
    /// Records that are no events of it and hold something of it, which is to leave the log, too:
    /// its aliases, and what was said of it to and by those who run the server. Runs, each with its
    /// first and last offset, in ascending order. (Not in version 1.)
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<(Offset, Offset)>,
    /// Whether another one follows in the same batch: the room goes with the last. (Not in version
    /// 1.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// Why, in the words of whoever did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Content for RoomPurge {
    // Why a room went is what is to be known of it later.
}

/// A client's transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// The session it belongs to: the offset of the `device.login` that opened it. Survives token
    /// refreshes, ends with a logout.
    pub session: Offset,
    /// The client's transaction id.
    pub id: String,
    /// What the id was used for: the endpoint and its path arguments.
    pub scope: String,
}

/// Payload of `room.forget`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomForget {
    /// The user who forgot it.
    pub user_id: OwnedUserId,
    /// The room.
    pub room_id: OwnedRoomId,
}

impl Content for RoomForget {}

/// Payload of `room.undo`: in which rooms a user was, by records that a restore undid, and is not.
/// Their clients may have been told that they are, and are to be told that they are not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomUndo {
    /// The user.
    pub user_id: OwnedUserId,
    /// The epoch that the restore began: whoever has a position of it, or of a later one, was never
    /// told.
    pub begun: Epoch,
    /// The rooms, which need not be there any more.
    pub rooms: Vec<UndoneRoom>,
}

impl Content for RoomUndo {}

/// A room that a user joined, or was invited to or knocked on, in a future that was undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoneRoom {
    /// The room.
    pub room_id: OwnedRoomId,
    /// The epoch of the record with which that came to be.
    pub epoch: Epoch,
    /// Where that record was.
    pub offset: Offset,
}

/// Payload of `room.visibility`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomVisibility {
    /// The room.
    pub room_id: OwnedRoomId,
    /// Whether the public directory lists it.
    pub public: bool,
}

impl Content for RoomVisibility {}

/// Payload of `room.network`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomNetwork {
    /// The room.
    pub room_id: OwnedRoomId,
    /// The application service, by its id in the configuration.
    pub service: String,
    /// Its name of the network.
    pub network_id: String,
    /// Whether the directory lists the room with those of the network.
    pub listed: bool,
}

impl Content for RoomNetwork {}

/// Payload of `room.block`. The room need not exist here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomBlock {
    /// The room.
    pub room_id: OwnedRoomId,
    /// Whether nobody may join it, knock or be invited from now on.
    pub blocked: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Content for RoomBlock {
    const ERASED: Erased = Erased::Members { emptied: &[], gone: &["reason"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Room(&self.room_id)
    }
}

/// Payload of `room.shutdown`. With it, the room leaves the public directory. Its aliases are moved
/// and its members leave after that, each by a record of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomShutdown {
    /// The room.
    pub room_id: OwnedRoomId,
    /// What this shutdown is known by.
    pub id: String,
    /// The room to which members and aliases move, if there is to be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<Replacement>,
    /// Whether it is purged at the end. (Not in version 1.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub purge: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Content for RoomShutdown {
    const ERASED: Erased = Erased::Members { emptied: &[], gone: &["reason"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Room(&self.room_id)
    }
}

/// A room in the place of one that is shut down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// The id that it gets.
    pub room_id: OwnedRoomId,
    /// Who makes it.
    pub creator: OwnedUserId,
    /// Its name.
    pub name: String,
    /// Its first message, which says what happened.
    pub message: String,
}

/// Payload of `room.shutdown_finish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomShutdownFinish {
    /// The room.
    pub room_id: OwnedRoomId,
    /// Which shutdown.
    pub id: String,
    /// Who could not be made to leave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<OwnedUserId>,
    /// Of a room that was purged, who left, which is not known otherwise. (Not in version 1.)
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<OwnedUserId>,
}

impl Content for RoomShutdownFinish {}

/// Payload of `notice.room`. The room made in the same batch takes the place of one before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeRoom {
    /// Who is told.
    pub user_id: OwnedUserId,
    /// The room.
    pub room_id: OwnedRoomId,
}

impl Content for NoticeRoom {}

/// Payload of `room.receipt`: what moved at one time in one room, which in a large one may be the
/// receipts of many users.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomReceipt {
    /// The room.
    pub room_id: OwnedRoomId,
    /// The receipts: no two of one user, type and thread.
    pub receipts: Vec<Receipt>,
}

impl Content for RoomReceipt {
    const ERASED: Erased = Erased::All;
}

impl RoomReceipt {
    /// Version 1 held one receipt, beside the room.
    pub(super) fn before(_: u16, payload: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Before {
            room_id: OwnedRoomId,
            #[serde(flatten)]
            receipt: Receipt,
        }
        let Before { room_id, receipt } = serde_json::from_slice(payload)?;
        Ok(Self { room_id, receipts: vec![receipt] })
    }
}

/// A receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The user.
    pub user_id: OwnedUserId,
    /// `m.read` or `m.read.private`.
    pub receipt_type: String,
    /// The event it points at.
    pub event_id: OwnedEventId,
    /// The thread it belongs to, as in the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub ts: u64,
}

/// Payload of `room.typing`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomTyping {
    /// The room.
    pub room_id: OwnedRoomId,
    /// The user.
    pub user_id: OwnedUserId,
    /// When it ends by itself, in milliseconds since the Unix epoch; 0 ends it now.
    pub until_ms: u64,
    /// For one who was typing already: the record with which that began. Only the end has moved,
    /// and nobody else has anything new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Offset>,
}

impl Content for RoomTyping {
    const ERASED: Erased = Erased::All;
}

/// Payload of `report.create`. What is reported is the event if there is one, otherwise the room or
/// the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportCreate {
    /// Who reports.
    pub reporter: OwnedUserId,
    /// The room that is reported, or the room of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_id: Option<OwnedRoomId>,
    /// The event that is reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<OwnedEventId>,
    /// The user who is reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<OwnedUserId>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How bad it is: from -100, the worst, to 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<i8>,
}

impl Content for ReportCreate {
    const ERASED: Erased = Erased::Members { emptied: &[], gone: &["reason"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Report {
            by: &self.reporter,
            of: self.user_id.as_deref(),
            room_id: self.room_id.as_deref(),
        }
    }
}

/// Payload of `report.remove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportRemove {
    /// The record of the report.
    pub report: Offset,
}

impl Content for ReportRemove {}

/// Payload of `delayed.schedule`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DelayedSchedule {
    /// The id given out for it: a secret, as whoever knows it may act on it.
    pub delay_id: String,
    /// Who sends it.
    pub user_id: OwnedUserId,
    /// The room.
    pub room_id: OwnedRoomId,
    /// The event's type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The event's state key, for a state event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_key: Option<String>,
    /// The event's content, as the client sent it: a JSON object.
    pub content: Box<RawValue>,
    /// How long it waits, in milliseconds.
    pub delay_ms: u64,
    /// Since when, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// The transaction that scheduled it, if the endpoint has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<Transaction>,
}

impl Content for DelayedSchedule {
    const ERASED: Erased =
        Erased::Members { emptied: &["content"], gone: &[], required: Some("content") };

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// Payload of `delayed.restart`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DelayedRestart {
    /// Which.
    pub delay_id: String,
    /// Since when it waits now, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}

impl Content for DelayedRestart {}

/// Payload of `delayed.finish`. When the event was sent, its `room.event` is in the same batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DelayedFinish {
    /// Which.
    pub delay_id: String,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: DelayedOutcome,
    /// Whether someone asked for it; otherwise its time had come, or something stood in its way.
    pub by_action: bool,
    /// When, in milliseconds since the Unix epoch.
    pub ts: u64,
}

impl Content for DelayedFinish {}

/// What became of a scheduled event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum DelayedOutcome {
    /// It was sent.
    Send {
        /// The event's id.
        event_id: OwnedEventId,
    },
    /// It was called off.
    Cancel,
    /// It could not be sent.
    Error {
        /// The code of the standard error.
        errcode: String,
        /// The sentence of the standard error.
        error: String,
    },
}

/// Payload of `alias.set`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AliasSet {
    /// The alias.
    pub alias: OwnedRoomAliasId,
    /// The room it points at.
    pub room_id: OwnedRoomId,
    /// Who made it.
    pub creator: OwnedUserId,
}

impl Content for AliasSet {
    const ERASED: Erased = Erased::All;
}

/// Payload of `alias.remove`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AliasRemove {
    /// The alias.
    pub alias: OwnedRoomAliasId,
}

impl Content for AliasRemove {
    const ERASED: Erased = Erased::All;
}
