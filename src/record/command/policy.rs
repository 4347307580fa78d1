//! Commands about moderation policy lists: the rooms whose rules this server applies
//! (client-server API, "Moderation policy lists").

use ruma::{OwnedEventId, OwnedRoomId};
use serde::{Deserialize, Serialize};

use super::Content;
use crate::Offset;

/// What the rules of a policy list are applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyArea {
    /// Invites of users of this server: by whom, from which homeserver, to which room.
    Invites,
    /// Joins and knocks in rooms that ask for it.
    Joins,
    /// The names of new accounts.
    Registration,
    /// The room directory, and what aliases point at.
    Directory,
    /// Files of other homeservers.
    Media,
    /// All exchange with other homeservers.
    Federation,
}

impl PolicyArea {
    pub const ALL: [Self; 6] = [
        Self::Invites,
        Self::Joins,
        Self::Registration,
        Self::Directory,
        Self::Media,
        Self::Federation,
    ];

    /// Its name, as in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Invites => "invites",
            Self::Joins => "joins",
            Self::Registration => "registration",
            Self::Directory => "directory",
            Self::Media => "media",
            Self::Federation => "federation",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|area| area.name() == name)
    }
}

/// Payload of `policy.subscribe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySubscribe {
    /// The room with the rules.
    pub room_id: OwnedRoomId,
    /// What they are applied to.
    pub areas: Vec<PolicyArea>,
    /// Lists with a lower number come first.
    pub order: u32,
    /// Globs of users, homeservers and rooms to which no rule of this list is applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
    /// Whether `m.takedown` (MSC4204) is applied like `m.ban`. Otherwise it is only noted.
    #[serde(default)]
    pub takedowns: bool,
    /// How many local users and rooms its rules may hit before further ones wait for approval.
    pub hold_above: u64,
}

impl Content for PolicySubscribe {}

/// Payload of `policy.unsubscribe`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyUnsubscribe {
    pub room_id: OwnedRoomId,
}

impl Content for PolicyUnsubscribe {}

/// Payload of `policy.judge`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyJudge {
    pub room_id: OwnedRoomId,
    /// The last rule that was judged: the record with which it became state of the room, and that
    /// of its event. All that came later still wait.
    pub until: (Offset, Offset),
    /// Rules that hit users and rooms of this server, and are applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applied: Vec<JudgedRule>,
    /// Rules that would hit too many, and wait for approval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<JudgedRule>,
    /// The records of judged rules that are no longer state of the room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<Offset>,
}

/// A rule, and how many users and rooms of this server it hits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgedRule {
    /// The record of its event.
    pub record: Offset,
    pub event_id: OwnedEventId,
    pub hits: u64,
}

impl Content for PolicyJudge {}

/// Payload of `policy.approve`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyApprove {
    pub room_id: OwnedRoomId,
    /// The rules that no longer wait: state events of the room.
    pub rules: Vec<OwnedEventId>,
}

impl Content for PolicyApprove {}
