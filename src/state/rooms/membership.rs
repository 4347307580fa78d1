//! A user's relation to a room.

use ruma::events::room::member::MembershipState;
use serde::{Deserialize, Serialize};

/// A user's relation to a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Membership {
    /// Joined.
    Join,
    /// Invited.
    Invite,
    /// Knocked.
    Knock,
    /// Left, was kicked, or rejected an invite.
    Leave,
    /// Banned.
    Ban,
}

impl Membership {
    /// The membership in a member event's content; `None` for an unknown one.
    pub fn from_ruma(membership: &MembershipState) -> Option<Self> {
        Some(match membership {
            MembershipState::Join => Self::Join,
            MembershipState::Invite => Self::Invite,
            MembershipState::Knock => Self::Knock,
            MembershipState::Leave => Self::Leave,
            MembershipState::Ban => Self::Ban,
            _ => return None,
        })
    }

    /// The value in the member event's content.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Invite => "invite",
            Self::Knock => "knock",
            Self::Leave => "leave",
            Self::Ban => "ban",
        }
    }
}
