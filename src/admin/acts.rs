//! What an operator can have done, and what came of it: the one list that the command line and the socket
//! share.

use std::collections::BTreeMap;

use ruma::{OwnedDeviceId, OwnedUserId};
use serde::{Deserialize, Serialize};

use crate::{decide::registration_token::Change, proof, record::command::Secret, snapshot};

/// Something to be done. Users are named by their whole id or by what is before its colon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "kebab-case")]
pub enum Act {
    /// A page of the users, by their ids.
    ListUsers {
        /// Begin after this one.
        after: Option<OwnedUserId>,
        /// Which of them.
        filter: Filter,
    },
    /// One user.
    ShowUser {
        /// Who.
        user: String,
    },
    /// Make an account.
    CreateUser {
        /// Its name.
        user: String,
        /// Its password; none for one that nobody logs in to by password.
        password: Option<Secret>,
        /// The display name; none for the user name.
        display_name: Option<String>,
        /// Whether it is an administrator's.
        admin: bool,
    },
    /// Set a new password.
    ResetPassword {
        /// Whose.
        user: String,
        /// The password.
        password: Secret,
        /// Whether their devices stay logged in.
        keep_devices: bool,
    },
    /// Make a user an administrator, lock, suspend, or the contrary.
    SetStatus {
        /// Whom.
        user: String,
        /// Whether they administer the server; none leaves it as it is, and so below.
        admin: Option<bool>,
        /// Whether the account is locked.
        locked: Option<bool>,
        /// Whether it is suspended.
        suspended: Option<bool>,
        /// Why.
        reason: Option<String>,
    },
    /// Close an account for ever.
    Deactivate {
        /// Whose.
        user: String,
        /// Whether what they sent is kept from those who have not seen it.
        erase: bool,
        /// Why.
        reason: Option<String>,
    },
    /// Log a user's devices out.
    LogOut {
        /// Whose.
        user: String,
        /// Which device; none for all.
        device: Option<OwnedDeviceId>,
    },
    /// All registration tokens.
    ListRegistrationTokens,
    /// Make a registration token.
    CreateRegistrationToken {
        /// The token; none for one that is made up.
        token: Option<Secret>,
        /// What it is called.
        label: Option<String>,
        /// How many accounts can be made with it; none for any number.
        uses_allowed: Option<u64>,
        /// When it expires, in milliseconds since the Unix epoch; none for never.
        expires_ms: Option<u64>,
    },
    /// Set anew what a registration token is good for.
    UpdateRegistrationToken {
        /// Which: its id, or the token itself.
        token: Secret,
        /// What it is called.
        #[serde(default)]
        label: Change<String>,
        /// How many accounts can be made with it in all.
        #[serde(default)]
        uses_allowed: Change<u64>,
        /// When it expires, in milliseconds since the Unix epoch.
        #[serde(default)]
        expires_ms: Change<u64>,
    },
    /// Remove a registration token.
    DeleteRegistrationToken {
        /// Which: its id, or the token itself.
        token: Secret,
    },
    /// Write a snapshot of the projections.
    WriteSnapshot,
    /// Compare the projections with a replay of the whole log.
    CompareSnapshots,
    /// Show something of the log to others.
    Prove(proof::Asked),
}

/// Which users: those for whom all of it is so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Filter {
    /// Administrators.
    pub admin: bool,
    /// Whose account is locked.
    pub locked: bool,
    /// Whose account is suspended.
    pub suspended: bool,
    /// Whose account is closed.
    pub deactivated: bool,
    /// Guests.
    pub guest: bool,
}

/// What was done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "done", rename_all = "kebab-case")]
pub enum Done {
    /// Some users; there are more after `next`, if that is there.
    Users {
        /// The users, by their ids.
        users: Vec<UserSummary>,
        /// The last one that was looked at.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<OwnedUserId>,
    },
    /// All that there is to say of one user.
    User(Box<UserDetails>),
    /// An account was made.
    Created {
        /// Its user.
        user_id: OwnedUserId,
    },
    /// Something of an account was changed, or was so already.
    Changed {
        /// Whose.
        user_id: OwnedUserId,
        /// Whether it was not so already.
        changed: bool,
    },
    /// An account was closed.
    Deactivated {
        /// Whose.
        user_id: OwnedUserId,
        /// Whether it was open until now, or is erased only now.
        changed: bool,
        /// How many rooms were left and invites rejected.
        rooms: usize,
        /// Which addresses are still bound to the user on which identity server, in words.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        still_bound: Vec<String>,
    },
    /// Devices were logged out.
    LoggedOut {
        /// Whose.
        user_id: OwnedUserId,
        /// Which.
        devices: Vec<OwnedDeviceId>,
    },
    /// All registration tokens, in the order of their ids.
    RegistrationTokens {
        /// The tokens.
        tokens: Vec<TokenSummary>,
    },
    /// A registration token was made.
    RegistrationTokenCreated {
        /// The token itself, which is not kept.
        token: Secret,
        /// What is kept.
        #[serde(flatten)]
        summary: TokenSummary,
    },
    /// A registration token was set anew, or was so already.
    RegistrationTokenUpdated {
        /// Whether it was not so already.
        changed: bool,
        /// How it is now.
        #[serde(flatten)]
        summary: TokenSummary,
    },
    /// A registration token was removed.
    RegistrationTokenDeleted {
        /// Which.
        id: String,
    },
    /// A snapshot was written.
    Snapshot(snapshot::Header),
    /// The projections were compared.
    Compared(snapshot::Status),
    /// What shows it.
    Proof(Box<proof::Proof>),
}

/// A registration token, of which only a hash is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSummary {
    /// What it is named by: the first digits of its hash.
    pub id: String,
    /// What it is called.
    pub label: Option<String>,
    /// How many accounts can be made with it in all; none: any number.
    pub uses_allowed: Option<u64>,
    /// How many were made.
    pub uses: u64,
    /// When it expires, in milliseconds since the Unix epoch; none: never.
    pub expires_ms: Option<u64>,
    /// Whether one more account can be made with it.
    pub good: bool,
}

/// One user in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserSummary {
    /// The user.
    pub user_id: OwnedUserId,
    /// The display name.
    pub display_name: Option<String>,
    /// A guest.
    pub guest: bool,
    /// An administrator.
    pub admin: bool,
    /// The account is locked.
    pub locked: bool,
    /// The account is suspended.
    pub suspended: bool,
    /// The account is closed.
    pub deactivated: bool,
    /// How many devices are logged in.
    pub devices: usize,
}

/// All that there is to say of one user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserDetails {
    /// As in a list.
    #[serde(flatten)]
    pub summary: UserSummary,
    /// When the account was made, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Whether what they sent is kept from those who had not seen it.
    pub erased: bool,
    /// Whether one can log in by password.
    pub has_password: bool,
    /// The devices that are logged in, by their ids.
    pub logged_in: BTreeMap<OwnedDeviceId, UserDevice>,
    /// How many rooms they are in.
    pub joined_rooms: usize,
}

/// A device that is logged in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserDevice {
    /// Its name.
    pub display_name: Option<String>,
    /// When it logged in, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}
