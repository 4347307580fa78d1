//! Facts about what belongs to one user, reports, and files.

use serde::Serialize;

use super::Json;

/// Data of a user, global or of a room.
#[derive(Clone, Debug, Serialize)]
pub struct AccountData {
    pub user_id: String,
    pub room_id: Option<String>,
    pub event_type: String,
    /// An object, as the client sent it.
    pub content: Json,
}

/// A tag of a room.
#[derive(Clone, Debug, Serialize)]
pub struct Tag {
    pub user_id: String,
    pub room_id: String,
    pub tag: String,
    pub content: Json,
}

/// A push rule that a user made, or a default one whose actions a user changed.
#[derive(Clone, Debug, Serialize)]
pub struct PushRule {
    pub user_id: String,
    /// `override`, `content`, `room`, `sender` or `underride`.
    pub kind: String,
    /// As clients name it, for example `.m.rule.master` for a default rule.
    pub rule_id: String,
    /// Rules of a kind are in the descending order of these.
    pub priority: i64,
    pub conditions: Json,
    pub actions: Json,
    pub enabled: bool,
}

/// A default push rule that a user switched on or off.
#[derive(Clone, Debug, Serialize)]
pub struct PushRuleChange {
    pub user_id: String,
    pub kind: String,
    pub rule_id: String,
    pub enabled: bool,
}

/// Where a user wants to be notified.
#[derive(Clone, Debug, Serialize)]
pub struct Pusher {
    pub user_id: String,
    /// The device that set it.
    pub device_id: Option<String>,
    /// `http` or `email`.
    pub kind: String,
    pub app_id: String,
    pub pushkey: String,
    pub app_display_name: String,
    pub device_display_name: String,
    pub profile_tag: Option<String>,
    pub lang: Option<String>,
    pub data: Option<Json>,
    pub enabled: bool,
    pub created_ms: i64,
    /// It has been told of events up to this place in [`Section::Events`](super::Section::Events).
    pub told_up_to: Option<i64>,
    pub succeeded_ms: Option<i64>,
    pub failing_since_ms: Option<i64>,
}

/// Up to where a user has read.
#[derive(Clone, Debug, Serialize)]
pub struct Receipt {
    pub room_id: String,
    pub user_id: String,
    /// `m.read` or `m.read.private`.
    pub receipt_type: String,
    pub event_id: String,
    pub thread_id: Option<String>,
    /// Its time, 0 if there is none.
    pub ts_ms: i64,
    /// Its place among all of them.
    pub stream: i64,
}

/// How many events of a room notify a user, and were not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnreadCount {
    pub notifications: i64,
    /// How many of them are highlighted.
    pub highlights: i64,
}

/// A filter for syncs.
#[derive(Clone, Debug, Serialize)]
pub struct Filter {
    pub user_id: String,
    pub filter_id: i64,
    pub filter: Json,
}

/// Whether a user follows a thread.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadSubscription {
    pub room_id: String,
    pub user_id: String,
    pub thread_id: String,
    pub subscribed: bool,
    pub automatic: bool,
}

/// Whether a user was there.
#[derive(Clone, Debug, Serialize)]
pub struct Presence {
    pub user_id: String,
    pub state: String,
    pub status: Option<String>,
    pub active_ms: i64,
    pub currently_active: bool,
}

/// What a client called an event that it sent.
#[derive(Clone, Debug, Serialize)]
pub struct Transaction {
    pub event_id: String,
    pub room_id: String,
    pub user_id: String,
    pub device_id: String,
    pub transaction_id: String,
    pub time_ms: i64,
    /// The type of the event, if the source has it.
    pub event_type: Option<String>,
    /// Of a state event, which has no transaction for clients.
    pub state_key: Option<String>,
    /// Of a redaction: the event that it redacts.
    pub redacts: Option<String>,
}

/// An event that is to be sent later.
#[derive(Clone, Debug, Serialize)]
pub struct DelayedEvent {
    pub delay_id: String,
    pub user_id: String,
    pub device_id: Option<String>,
    pub delay_ms: i64,
    pub send_ms: i64,
    pub room_id: String,
    pub event_type: String,
    pub state_key: Option<String>,
    pub origin_ms: Option<i64>,
    pub content: Json,
    /// Whether it is just being sent.
    pub is_processed: bool,
}

/// Something that a user reported: an event, a room or a user.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub reporter: String,
    pub received_ms: i64,
    pub room_id: Option<String>,
    pub event_id: Option<String>,
    pub user_id: Option<String>,
    pub reason: Option<String>,
    /// From -100, the worst, to 0.
    pub score: Option<i64>,
}

/// A file of a user of this server.
#[derive(Clone, Debug, Serialize)]
pub struct Media {
    pub media_id: String,
    /// Without it, the server fetched it for a preview of a page.
    pub user_id: Option<String>,
    pub created_ms: i64,
    pub content_type: Option<String>,
    pub name: Option<String>,
    /// Without it nothing has been uploaded yet: an id that was handed out.
    pub size: Option<i64>,
    pub used_ms: Option<i64>,
    /// Who quarantined it.
    pub quarantined_by: Option<String>,
    /// Whether quarantines pass it by.
    pub protected: bool,
    /// Whether it may be had without a login.
    pub authenticated: bool,
    /// SHA-256 of the file in lower-case hexadecimal, if the source knows it.
    pub sha256: Option<String>,
    /// Where the file is, below the source's directory of media.
    pub path: String,
}

/// A copy of a file of another server.
#[derive(Clone, Debug, Serialize)]
pub struct RemoteMedia {
    pub server_name: String,
    pub media_id: String,
    pub created_ms: i64,
    pub content_type: Option<String>,
    pub name: Option<String>,
    pub size: Option<i64>,
    pub used_ms: Option<i64>,
    pub quarantined_by: Option<String>,
    pub authenticated: bool,
    pub sha256: Option<String>,
    /// Where the copy is, below the source's directory of media.
    pub path: String,
}
