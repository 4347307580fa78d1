//! Account status: administrators, locked and suspended accounts, and deactivation.

use super::{
    Commit, Proposal, Refusal,
    account::{Register, no_account},
};
use logcabin_record::{
    Stream,
    command::{DeviceRemove, UserDeactivate, UserStatus},
};
use logcabin_state::AccountStatus;
use ruma::OwnedUserId;

/// Create an account on behalf of an administrator.
#[derive(Clone, Debug)]
pub struct CreateAccount {
    /// The account.
    pub register: Register,
    /// Whether it is an administrator's.
    pub admin: bool,
}

impl Proposal for CreateAccount {
    type Outcome = ();

    fn stream(&self) -> Stream {
        self.register.stream()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        self.register.decide(commit)?;
        if self.admin {
            let user_id = self.register.user_id.clone();
            let status = UserStatus { admin: Some(true), ..UserStatus::of(user_id) };
            commit.append(self.stream(), status);
        }
        Ok(())
    }
}

/// Change the status of an account.
#[derive(Clone, Debug)]
pub struct SetStatus {
    pub user_id: OwnedUserId,
    /// Whether they are an administrator; `None` leaves it unchanged, as below.
    pub admin: Option<bool>,
    /// Whether the account is locked.
    pub locked: Option<bool>,
    pub suspended: Option<bool>,
    pub shadow_banned: Option<bool>,
    pub reason: Option<String>,
}

/// Refuses a change after which an administrator would be shadow-banned: they would believe to
/// administer the server.
pub(super) fn must_fit(is: AccountStatus, set: &UserStatus) -> Result<(), Refusal> {
    let admin = set.admin.unwrap_or(is.admin);
    if admin && set.shadow_banned.unwrap_or(is.shadow_banned) {
        let why = "An administrator of the server cannot be shadow-banned.";
        return Err(Refusal::Forbidden(why.to_owned()));
    }
    if admin && set.admin.is_some() && is.waiting.is_some() {
        let why = "The account has to be approved before it can be an administrator's.";
        return Err(Refusal::Forbidden(why.to_owned()));
    }
    Ok(())
}

impl Proposal for SetStatus {
    /// Whether anything changed.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let standing = commit.env.state.accounts.standing(&self.user_id).ok_or_else(no_account)?;
        if standing.deactivated.is_some() {
            return Err(Refusal::UserDeactivated);
        }
        if self.admin == Some(true) && standing.guest {
            return Err(Refusal::Forbidden("A guest cannot be an administrator.".to_owned()));
        }
        let new = |wanted: Option<bool>, is: bool| wanted.filter(|wanted| *wanted != is);
        let status = UserStatus {
            admin: new(self.admin, standing.admin),
            locked: new(self.locked, standing.locked),
            suspended: new(self.suspended, standing.suspended),
            shadow_banned: new(self.shadow_banned, standing.shadow_banned),
            reason: self.reason.clone(),
            ..UserStatus::of(self.user_id.clone())
        };
        must_fit(standing, &status)?;
        let changes = [status.admin, status.locked, status.suspended, status.shadow_banned];
        let changes = changes.iter().any(Option::is_some);
        if changes {
            commit.append(self.stream(), status);
        }
        Ok(changes)
    }
}

/// Approve an account that waits for it.
#[derive(Clone, Debug)]
pub struct Approve {
    pub user_id: OwnedUserId,
    pub reason: Option<String>,
}

impl Proposal for Approve {
    /// Whether it waited.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let standing = commit.env.state.accounts.standing(&self.user_id).ok_or_else(no_account)?;
        if standing.deactivated.is_some() {
            return Err(Refusal::UserDeactivated);
        }
        if standing.waiting.is_some() {
            let status = UserStatus {
                approved: Some(true),
                reason: self.reason.clone(),
                ..UserStatus::of(self.user_id.clone())
            };
            commit.append(self.stream(), status);
        }
        Ok(standing.waiting.is_some())
    }
}

/// Close and erase an account that waits for approval. Its user may be in rooms, if they were a
/// guest: they leave them afterwards.
#[derive(Clone, Debug)]
pub struct Refuse {
    pub user_id: OwnedUserId,
    pub reason: Option<String>,
    /// The time, in milliseconds since the Unix epoch.
    pub ts: u64,
}

impl Proposal for Refuse {
    /// Whether it waited.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let standing = commit.env.state.accounts.standing(&self.user_id).ok_or_else(no_account)?;
        if standing.waiting.is_none() {
            return Ok(false);
        }
        let Self { user_id, reason, ts } = self.clone();
        let closing =
            Deactivate { user_id, erase: true, messages: false, media: false, reason, ts };
        closing.decide(commit)
    }
}

/// Deactivate an account permanently (client-server API, "Account deactivation"). It leaves its
/// rooms afterwards.
#[derive(Clone, Debug)]
pub struct Deactivate {
    pub user_id: OwnedUserId,
    /// Whether the user's messages are hidden from those who have not seen them, and the user's
    /// data is deleted.
    pub erase: bool,
    /// With `erase`: whether their messages are deleted, too.
    pub messages: bool,
    /// With `erase`: whether their files are deleted, too.
    pub media: bool,
    pub reason: Option<String>,
    /// The time, in milliseconds since the Unix epoch.
    pub ts: u64,
}

impl Proposal for Deactivate {
    /// Whether anything changed: a deactivated account can still be erased.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let account = commit.env.state.accounts.get(&self.user_id).ok_or_else(no_account)?;
        let (standing, devices) = {
            let account = account.read();
            let devices = account.active_devices().map(|(device_id, _)| device_id.clone());
            (account.standing, devices.collect::<Vec<_>>())
        };
        let more = self.erase && (self.messages || self.media);
        let is_erased = standing.erased.is_some() || !self.erase;
        if standing.deactivated.is_some() && is_erased && !more {
            return Ok(false);
        }
        let user_id = self.user_id.clone();
        if !devices.is_empty() {
            commit.append(self.stream(), DeviceRemove { user_id: user_id.clone(), devices });
        }
        commit.cancel_delayed_of(&user_id, self.ts);
        let Self { erase, messages, media, .. } = *self;
        let reason = self.reason.clone();
        commit.append(self.stream(), UserDeactivate { user_id, erase, messages, media, reason });
        Ok(true)
    }
}
