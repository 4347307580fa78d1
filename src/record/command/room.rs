//! Commands of rooms: events, and other data of rooms.

use ruma::{OwnedEventId, OwnedRoomAliasId, OwnedRoomId, OwnedUserId, RoomVersionId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    federation::Received,
    kind::{Content, Erased},
};
use crate::{Epoch, Holds, Offset};

/// Payload of `room.event`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomEvent {
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
    /// For an event of another homeserver: how it came here. (Not before version 3.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<Received>,
    /// The event in federation format, hashed, as canonical JSON. That of another homeserver has
    /// its signatures; this server's own has none, and in version 1 the server's.
    pub pdu: Box<RawValue>,
}

impl RoomEvent {
    /// An event with nothing else to record.
    pub const fn new(room_id: OwnedRoomId, event_id: OwnedEventId, pdu: Box<RawValue>) -> Self {
        Self {
            room_id,
            event_id,
            room_version: None,
            transaction: None,
            redacts: None,
            delay_id: None,
            received: None,
            pdu,
        }
    }
}

impl Content for RoomEvent {
    const ERASED: Erased = Erased::Event;

    fn holds(&self) -> Holds<'_> {
        Holds::Event(self)
    }
}

/// Payload of `room.erase`. It deletes the events from the room, together with their redactions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomErase {
    pub room_id: OwnedRoomId,
    /// The events, in ascending order; none is a state event.
    pub events: Vec<Offset>,
    /// Why they were deleted.
    #[serde(flatten)]
    pub why: EventsEnd,
}

impl Content for RoomErase {}

/// Why events are deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum EventsEnd {
    /// The lifetime of events of this type in this room is limited.
    Lifetime {
        event_type: String,
        /// The lifetime, in milliseconds from the record of an event.
        lifetime_ms: u64,
    },
    /// The sender was erased.
    Sender {
        user_id: OwnedUserId,
        /// The `user.deactivate`.
        because: Offset,
    },
    /// An administrator had the room's history purged. (Not in version 1.)
    Purge {
        /// The id of the purge.
        id: String,
    },
}

/// Payload of `room.purge_history`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomPurgeHistory {
    /// Its id, a new one.
    pub id: String,
    pub room_id: OwnedRoomId,
    /// The first record that stays.
    pub before: Offset,
    /// Whether what users of this homeserver sent stays.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_local: bool,
}

impl Content for RoomPurgeHistory {}

/// Payload of `room.purge_history_finish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomPurgeHistoryFinish {
    pub id: String,
    pub room_id: OwnedRoomId,
}

impl Content for RoomPurgeHistoryFinish {}

/// Payload of `room.redact_sender`: a kick or a ban says that what its user sent since they joined
/// is redacted (MSC4293), without an event for each. The first such record comes with the kick or
/// the ban and redacts nothing yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomRedactSender {
    pub room_id: OwnedRoomId,
    /// The kick or the ban.
    pub because: OwnedEventId,
    /// Who sent it, and has the power to redact.
    pub by: OwnedUserId,
    /// Who was kicked or banned.
    pub user_id: OwnedUserId,
    /// The record with which they joined.
    pub since: Offset,
    /// The events that are redacted with this record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Offset>,
    /// Whether nothing is left to be redacted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub complete: bool,
}

impl Content for RoomRedactSender {}

/// Payload of `room.purge`. Nobody is joined to the room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomPurge {
    pub room_id: OwnedRoomId,
    /// Records that are not events of the room but contain its data, which is to be erased, too:
    /// its aliases, reports about it and acts of administrators. Runs, each with its first and last
    /// offset, in ascending order. (Not in version 1.)
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<(Offset, Offset)>,
    /// Whether another one follows in the same batch: the last one deletes the room. (Not in
    /// version 1.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// The administrator's reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Content for RoomPurge {
    // The reason is all that should be known of the room afterwards.
}

/// A client's transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// The session: the offset of the `device.login` that opened it. Token refreshes keep the
    /// session, a logout ends it.
    pub session: Offset,
    /// The client's transaction id.
    pub id: String,
    /// The scope of the id: the endpoint and its path arguments.
    pub scope: String,
}

/// Payload of `room.forget`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomForget {
    pub user_id: OwnedUserId,
    pub room_id: OwnedRoomId,
}

impl Content for RoomForget {}

/// Payload of `room.undo`: the rooms that a user was in because of records that a restore undid.
/// The user's clients may know these rooms, and must be told that the user is not in them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomUndo {
    pub user_id: OwnedUserId,
    /// The epoch that the restore started. Clients with a position in it, or in a later one, were
    /// never told of the rooms.
    pub begun: Epoch,
    /// The rooms, which may no longer exist.
    pub rooms: Vec<UndoneRoom>,
}

impl Content for RoomUndo {}

/// A room that a user joined, was invited to or knocked on in an abandoned future.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoneRoom {
    pub room_id: OwnedRoomId,
    /// The epoch of the record that did it.
    pub epoch: Epoch,
    /// The offset of that record.
    pub offset: Offset,
}

/// Payload of `room.visibility`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomVisibility {
    pub room_id: OwnedRoomId,
    /// Whether the public directory lists it.
    pub public: bool,
}

impl Content for RoomVisibility {}

/// Payload of `room.network`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomNetwork {
    pub room_id: OwnedRoomId,
    /// The application service, by its id in the configuration.
    pub service: String,
    /// Its name of the network.
    pub network_id: String,
    /// Whether the directory lists the room in that network.
    pub listed: bool,
}

impl Content for RoomNetwork {}

/// Payload of `room.block`. The room need not exist here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomBlock {
    pub room_id: OwnedRoomId,
    /// Whether from now on nobody may join it, knock or be invited.
    pub blocked: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Content for RoomBlock {
    const ERASED: Erased = Erased::Members { emptied: &[], gone: &["reason"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Room(&self.room_id)
    }
}

/// Payload of `room.shutdown`. It removes the room from the public directory. Afterwards, one
/// record each moves the aliases and makes the members leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomShutdown {
    pub room_id: OwnedRoomId,
    pub id: String,
    /// The replacement, to which members and aliases move, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<Replacement>,
    /// Whether it is purged at the end. (Not in version 1.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub purge: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Content for RoomShutdown {
    const ERASED: Erased = Erased::Members { emptied: &[], gone: &["reason"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Room(&self.room_id)
    }
}

/// The replacement of a room that is shut down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    pub room_id: OwnedRoomId,
    pub creator: OwnedUserId,
    pub name: String,
    /// Its first message, which explains what happened.
    pub message: String,
}

/// Payload of `room.shutdown_finish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomShutdownFinish {
    pub room_id: OwnedRoomId,
    /// The shutdown.
    pub id: String,
    /// Users who could not be made to leave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<OwnedUserId>,
    /// The users who left a room that was purged; nothing else records them. (Not in version 1.)
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<OwnedUserId>,
}

impl Content for RoomShutdownFinish {}

/// Payload of `notice.room`. The room, created in the same batch, replaces an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeRoom {
    pub user_id: OwnedUserId,
    pub room_id: OwnedRoomId,
}

impl Content for NoticeRoom {}

/// Payload of `room.receipt`: receipts that moved at the same time in one room; in a large room,
/// those of many users.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomReceipt {
    pub room_id: OwnedRoomId,
    /// The receipts: at most one for each user, type and thread.
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
    pub user_id: OwnedUserId,
    /// `m.read` or `m.read.private`.
    pub receipt_type: String,
    pub event_id: OwnedEventId,
    /// The thread, as in the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub ts: u64,
}

/// Payload of `room.typing`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomTyping {
    pub room_id: OwnedRoomId,
    pub user_id: OwnedUserId,
    /// When it expires, in milliseconds since the Unix epoch; 0 ends it now.
    pub until_ms: u64,
    /// If the user was typing already: the record with which that started. Only the expiry moved,
    /// and nobody needs to be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Offset>,
}

impl Content for RoomTyping {
    const ERASED: Erased = Erased::All;
}

/// Payload of `report.create`. The subject is the event if there is one, otherwise the room or the
/// user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportCreate {
    /// The reporting user.
    pub reporter: OwnedUserId,
    /// The reported room, or the room of the reported event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_id: Option<OwnedRoomId>,
    /// The reported event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<OwnedEventId>,
    /// The reported user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<OwnedUserId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// From -100, most offensive, to 0, inoffensive.
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

/// Payload of `report.reopen`: the report is open again, as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportReopen {
    /// The record of the report.
    pub report: Offset,
    /// When it was made, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    pub reporter: OwnedUserId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room_id: Option<OwnedRoomId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<OwnedEventId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<OwnedUserId>,
}

impl Content for ReportReopen {}

/// Payload of `delayed.schedule`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DelayedSchedule {
    /// Its id, a secret: anyone who knows it can act on it.
    pub delay_id: String,
    /// The sender.
    pub user_id: OwnedUserId,
    pub room_id: OwnedRoomId,
    #[serde(rename = "type")]
    pub event_type: String,
    /// The event's state key, for a state event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_key: Option<String>,
    /// The event's content, as the client sent it: a JSON object.
    pub content: Box<RawValue>,
    /// The delay, in milliseconds.
    pub delay_ms: u64,
    /// When the delay began, in milliseconds since the Unix epoch.
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
    /// The delayed event.
    pub delay_id: String,
    /// When the delay began again, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}

impl Content for DelayedRestart {}

/// Payload of `delayed.finish`. When the event was sent, its `room.event` is in the same batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DelayedFinish {
    /// The delayed event.
    pub delay_id: String,
    #[serde(flatten)]
    pub outcome: DelayedOutcome,
    /// Whether a request caused that; otherwise the event was due, or could not be sent.
    pub by_action: bool,
    /// When, in milliseconds since the Unix epoch.
    pub ts: u64,
}

impl Content for DelayedFinish {}

/// What happened to a scheduled event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum DelayedOutcome {
    /// It was sent.
    Send { event_id: OwnedEventId },
    /// It was cancelled.
    Cancel,
    /// It could not be sent.
    Error {
        /// The `errcode` of the standard error.
        errcode: String,
        /// The message of the standard error.
        error: String,
    },
}

/// Payload of `alias.set`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AliasSet {
    pub alias: OwnedRoomAliasId,
    pub room_id: OwnedRoomId,
    pub creator: OwnedUserId,
}

impl Content for AliasSet {
    const ERASED: Erased = Erased::All;
}

/// Payload of `alias.remove`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AliasRemove {
    pub alias: OwnedRoomAliasId,
}

impl Content for AliasRemove {
    const ERASED: Erased = Erased::All;
}
