//! Accounts: registration, login, tokens, devices, profile.

use std::{collections::BTreeSet, net::IpAddr};

use ruma::{DeviceId, OwnedDeviceId, OwnedUserId, UserId};

use super::{Commit, Env, Proposal, Refusal, oauth, validated::Validated};
use logcabin_base::{
    limits,
    planted::{self, Fault},
};
use logcabin_record::{
    Command, Offset, Stream,
    command::{
        AccountKind, DeviceConfirm, DeviceLogin, DeviceRefresh, DeviceRemove, DeviceRename,
        LoginTokenUse, ProfileSet, Requirements, Secret, TokenHash, Tokens, UserPassword,
        UserRegister, UserUpgrade, UserWait,
    },
};
use logcabin_state::AccountStatus;
use logcabin_state::Accounts;

pub(super) fn no_account() -> Refusal {
    Refusal::NotFound("There is no such user here.".to_owned())
}

/// The limit on the number of accounts.
#[derive(Clone, Debug, Default)]
pub struct AccountLimit {
    /// The most accounts; `None` is unlimited.
    pub most: Option<usize>,
    /// The administrator's contact as a URI, for users who are refused.
    pub admin_contact: String,
}

impl AccountLimit {
    /// Refuses if the limit is reached.
    ///
    /// # Errors
    /// [`Refusal::TooManyAccounts`].
    pub fn check(&self, accounts: &Accounts) -> Result<(), Refusal> {
        if self.most.is_some_and(|most| accounts.len() >= most) {
            let admin_contact = self.admin_contact.clone();
            return Err(Refusal::TooManyAccounts { admin_contact });
        }
        Ok(())
    }

    /// Refuses if as many accounts as possible wait for approval.
    ///
    /// # Errors
    /// [`Refusal::TooManyWaiting`].
    pub fn check_waiting(&self, accounts: &Accounts) -> Result<(), Refusal> {
        if accounts.waiting_count() >= limits::WAITING_ACCOUNTS {
            let admin_contact = self.admin_contact.clone();
            return Err(Refusal::TooManyWaiting { admin_contact });
        }
        Ok(())
    }
}

/// Refuses new tokens for an account that is deactivated or locked, or waits for approval.
pub(super) fn may_have_a_session(standing: AccountStatus) -> Result<(), Refusal> {
    match standing {
        AccountStatus { deactivated: Some(_), .. } => Err(Refusal::UserDeactivated),
        AccountStatus { locked: true, .. } => Err(Refusal::UserLocked),
        AccountStatus { waiting: Some(_), .. } => Err(Refusal::AwaitsApproval),
        _ => Ok(()),
    }
}

/// Create an account and log in its first device.
#[derive(Clone, Debug)]
pub struct Register {
    /// The new user.
    pub user_id: OwnedUserId,
    /// Full or guest account.
    pub kind: AccountKind,
    pub password: Option<Secret>,
    /// The initial display name.
    pub display_name: Option<String>,
    /// The first device, unless the client wants none.
    pub login: Option<Login>,
    /// The requirements that the newcomer met.
    pub met: MetRequirements,
}

impl Register {
    /// A full account without a password or a device.
    pub fn user(user_id: OwnedUserId) -> Self {
        Self {
            user_id,
            kind: AccountKind::User,
            password: None,
            display_name: None,
            login: None,
            met: MetRequirements::default(),
        }
    }
}

/// Turn a guest's account into a full one.
#[derive(Clone, Debug)]
pub struct UpgradeGuest {
    /// The guest.
    pub user_id: OwnedUserId,
    pub password: Option<Secret>,
    /// The device that logs in, unless the client wants none.
    pub login: Option<Login>,
    /// The requirements that the newcomer met.
    pub met: MetRequirements,
}

/// The requirements that a newcomer met, and when.
#[derive(Clone, Debug, Default)]
pub struct MetRequirements {
    /// The recorded requirements.
    pub requirements: Requirements,
    /// The newcomer's validated addresses, which the account gets.
    pub threepids: Vec<Validated>,
    /// The time, to check the expiry of a registration token.
    pub now_ms: u64,
    /// An administrator has to approve the account before anybody can log in.
    pub wait: Option<Wait>,
}

/// What an administrator learns of a newcomer whose account they may approve.
#[derive(Clone, Debug, Default)]
pub struct Wait {
    /// What they answered to the operator's question.
    pub answer: Option<String>,
    /// From where they registered.
    pub address: Option<IpAddr>,
}

impl MetRequirements {
    /// Where a registration of `user_id` is decided: those with one token are decided one after the
    /// other, so that no two of them use it for the last time.
    fn stream(&self, user_id: &UserId) -> Stream {
        let token = self.requirements.registration_token.as_ref();
        token.map_or_else(|| Stream::user(user_id), Stream::registration_token)
    }

    /// A use of a token is on the stream of its user, and so does not show on the token's: another
    /// node could count on the same last use.
    fn is_exclusive(&self) -> bool {
        self.requirements.registration_token.is_some()
    }

    /// Adds the newcomer's initial data, after the record of the account.
    fn begin(
        &self,
        commit: &mut Commit<'_>,
        user_id: &OwnedUserId,
        display_name: Option<&str>,
        login: Option<&Login>,
    ) -> Result<(), Refusal> {
        for validated in &self.threepids {
            validated.claim(commit, user_id)?;
        }
        let stream = Stream::user(user_id);
        if let Some(name) = display_name {
            let (user_id, field) = (user_id.clone(), "displayname".to_owned());
            commit.append(stream.clone(), ProfileSet { user_id, field, value: Some(name.into()) });
        }
        match (&self.wait, login) {
            (Some(Wait { answer, address }), _) => {
                let (answer, address) = (answer.clone(), *address);
                commit.append(stream, UserWait { user_id: user_id.clone(), answer, address });
            }
            (None, Some(login)) => commit.append(stream, login.command()),
            (None, None) => {}
        }
        Ok(())
    }

    fn check(&self, commit: &Commit<'_>) -> Result<(), Refusal> {
        if self.wait.is_some() {
            commit.env.accounts.check_waiting(&commit.env.state.accounts)?;
        }
        let Some(token) = &self.requirements.registration_token else { return Ok(()) };
        let token = commit.env.state.registration_tokens.get(token);
        let good = token.is_some_and(|token| token.is_good(self.now_ms));
        if good { Ok(()) } else { Err(Refusal::RegistrationToken) }
    }
}

/// Log a device in.
#[derive(Clone, Debug)]
pub struct Login {
    pub user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
    /// Display name for a new device.
    pub display_name: Option<String>,
    /// The session's tokens.
    pub tokens: Tokens,
    /// When the password was set that the login was verified with. If it has been set since, it was
    /// changed during the verification, and the login is refused.
    pub verified: Option<Offset>,
}

impl Login {
    fn command(&self) -> DeviceLogin {
        DeviceLogin {
            user_id: self.user_id.clone(),
            device_id: self.device_id.clone(),
            display_name: self.display_name.clone(),
            tokens: self.tokens.clone(),
            sent: Vec::new(),
        }
    }
}

impl Proposal for Register {
    type Outcome = ();

    fn stream(&self) -> Stream {
        self.met.stream(&self.user_id)
    }

    fn is_exclusive(&self) -> bool {
        self.met.is_exclusive()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        // Before the name is looked up: others may take it with another token meanwhile.
        commit.rests_on(Stream::user(&self.user_id));
        if commit.env.state.accounts.contains(&self.user_id) {
            return Err(Refusal::UserInUse);
        }
        commit.env.accounts.check(&commit.env.state.accounts)?;
        self.met.check(commit)?;
        let Self { user_id, kind, password, display_name, login, met } = self;
        let register = UserRegister {
            user_id: user_id.clone(),
            kind: *kind,
            password: password.clone(),
            met: met.requirements.clone(),
        };
        commit.append(Stream::user(user_id), register);
        met.begin(commit, user_id, display_name.as_deref(), login.as_ref())
    }
}

impl Proposal for UpgradeGuest {
    type Outcome = ();

    fn stream(&self) -> Stream {
        self.met.stream(&self.user_id)
    }

    fn is_exclusive(&self) -> bool {
        self.met.is_exclusive()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        commit.rests_on(Stream::user(&self.user_id));
        let account = commit.env.state.accounts.get(&self.user_id).ok_or_else(no_account)?;
        {
            let account = account.read();
            may_have_a_session(account.standing)?;
            // Of two concurrent upgrades, the second is refused.
            if account.kind != AccountKind::Guest {
                return Err(Refusal::UserInUse);
            }
        }
        self.met.check(commit)?;
        let Self { user_id, password, login, met } = self;
        let upgrade = UserUpgrade {
            user_id: user_id.clone(),
            password: password.clone(),
            met: met.requirements.clone(),
        };
        commit.append(Stream::user(user_id), upgrade);
        met.begin(commit, user_id, None, login.as_ref())
    }
}

impl Proposal for Login {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let account = commit.env.state.accounts.get(&self.user_id).ok_or_else(no_account)?;
        let account = account.read();
        // Checked here, so that it covers every kind of login.
        may_have_a_session(account.standing)?;
        if self.verified.is_some_and(|verified| verified != account.password.last_change()) {
            return Err(Refusal::Forbidden("Wrong user name or password.".to_owned()));
        }
        drop(account);
        commit.env.quotas.device(&commit.env.state, &self.user_id, &self.device_id)?;
        if is_cross_signing_key(commit.env, &self.user_id, &self.device_id)? {
            return Err(Refusal::Forbidden(
                "One of your cross-signing keys has this name: a device cannot have it.".to_owned(),
            ));
        }
        commit.append(self.stream(), self.command());
        Ok(())
    }
}

/// Log a device in with a login token.
#[derive(Clone, Debug)]
pub struct LoginByToken {
    pub login: Login,
    /// Identifies the token.
    pub nonce: String,
    /// When it expires.
    pub expires_ms: u64,
}

impl Proposal for LoginByToken {
    type Outcome = ();

    fn stream(&self) -> Stream {
        self.login.stream()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Self { login, nonce, expires_ms } = self;
        let account = commit.env.state.accounts.get(&login.user_id).ok_or_else(no_account)?;
        if !account.read().used_login_tokens.allow(*expires_ms, nonce) {
            return Err(Refusal::Forbidden("This login token was used or has expired.".to_owned()));
        }
        commit.append(
            self.stream(),
            LoginTokenUse {
                user_id: login.user_id.clone(),
                nonce: nonce.clone(),
                expires_ms: *expires_ms,
            },
        );
        login.decide(commit)
    }
}

/// Whether a device with this id would have the name of one of the user's cross-signing keys, so
/// that a signature of one could be mistaken for a signature of the other.
pub(super) fn is_cross_signing_key(
    env: &Env,
    user_id: &UserId,
    device_id: &DeviceId,
) -> Result<bool, Refusal> {
    let Some(keys) = env.state.keys.get(user_id) else { return Ok(false) };
    let records: BTreeSet<Offset> = {
        let keys = keys.read();
        let records = [keys.master_key, keys.self_signing_key, keys.user_signing_key];
        records.into_iter().flatten().collect()
    };
    for record in records {
        let Some(Command::KeysCrossSign(body)) = env.events.command(record)? else { continue };
        if body.public_keys().any(|key| key == device_id.as_str()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Exchange a refresh token for new tokens.
#[derive(Clone, Debug)]
pub struct Refresh {
    pub user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
    /// The refresh token that was presented.
    pub presented: TokenHash,
    /// The new tokens.
    pub tokens: Tokens,
    /// If the session already has these tokens, their expiry is extended only if it is before this.
    pub good_enough_ms: Option<u64>,
}

impl Proposal for Refresh {
    /// When the access token expires.
    type Outcome = Option<u64>;

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Option<u64>, Refusal> {
        let accounts = &commit.env.state.accounts;
        let token = accounts.refresh_token(&self.presented);
        let token = token.ok_or(Refusal::UnknownToken)?;
        let standing = accounts.standing(&self.user_id).unwrap_or_default();
        may_have_a_session(standing)?;
        // The response was lost, or another process of the client refreshes, too.
        let given = accounts.unconfirmed(&self.user_id, &self.device_id);
        if let Some(given) = given.filter(|given| given.same_as(&self.tokens))
            && given.expires_ms >= self.good_enough_ms
        {
            return Ok(given.expires_ms);
        }
        if token.unconfirmed {
            // Presenting a new refresh token is a use of it: the tokens before it end.
            commit.append(
                self.stream(),
                DeviceConfirm { user_id: self.user_id.clone(), device_id: self.device_id.clone() },
            );
        }
        commit.append(
            self.stream(),
            DeviceRefresh {
                user_id: self.user_id.clone(),
                device_id: self.device_id.clone(),
                tokens: self.tokens.clone(),
            },
        );
        Ok(self.tokens.expires_ms)
    }
}

/// Record the first use of refreshed tokens.
#[derive(Clone, Debug)]
pub struct ConfirmTokens {
    pub user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
    /// The access token that was used.
    pub used: TokenHash,
}

impl Proposal for ConfirmTokens {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let token = commit.env.state.accounts.access_token(&self.used);
        if token.ok_or(Refusal::UnknownToken)?.unconfirmed {
            commit.append(
                self.stream(),
                DeviceConfirm { user_id: self.user_id.clone(), device_id: self.device_id.clone() },
            );
        }
        Ok(())
    }
}

/// Which devices to remove.
#[derive(Clone, Debug)]
pub enum DeviceSet {
    These(Vec<OwnedDeviceId>),
    /// All of the user's.
    All,
    /// All but this one.
    AllBut(OwnedDeviceId),
}

impl DeviceSet {
    /// Ends everything else that ends with these devices; if they are all, also logins without a
    /// device.
    fn also(&self, commit: &mut Commit<'_>, user_id: &UserId) {
        match self {
            Self::These(_) => {}
            Self::All | Self::AllBut(_) => oauth::log_out(commit, user_id),
        }
    }

    /// The devices of `user_id` that are selected and logged in.
    fn of(&self, commit: &Commit<'_>, user_id: &UserId) -> Result<Vec<OwnedDeviceId>, Refusal> {
        let account = commit.env.state.accounts.get(user_id).ok_or_else(no_account)?;
        let wanted = |device_id: &OwnedDeviceId| match self {
            Self::These(devices) => devices.contains(device_id),
            Self::All => true,
            Self::AllBut(kept) => kept != device_id,
        };
        let account = account.read();
        let devices = account.active_devices().map(|(device_id, _)| device_id.clone());
        Ok(devices.filter(wanted).collect())
    }
}

/// Remove devices and revoke their tokens.
#[derive(Clone, Debug)]
pub struct RemoveDevices {
    pub user_id: OwnedUserId,
    /// The devices.
    pub which: DeviceSet,
}

impl Proposal for RemoveDevices {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let devices = self.which.of(commit, &self.user_id)?;
        self.which.also(commit, &self.user_id);
        if !devices.is_empty() && !planted::has(Fault::LogoutForgotten) {
            commit.append(self.stream(), DeviceRemove { user_id: self.user_id.clone(), devices });
        }
        Ok(())
    }
}

/// Rename a device.
#[derive(Clone, Debug)]
pub struct RenameDevice {
    pub user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
    /// The new name; `None` leaves it unchanged.
    pub display_name: Option<String>,
}

impl Proposal for RenameDevice {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let account = commit.env.state.accounts.get(&self.user_id).ok_or_else(no_account)?;
        let device = account.read().device(&self.device_id).cloned();
        let device = device.ok_or_else(|| Refusal::NotFound("No such device.".to_owned()))?;
        if self.display_name.is_some() && device.display_name != self.display_name {
            commit.append(
                self.stream(),
                DeviceRename {
                    user_id: self.user_id.clone(),
                    device_id: self.device_id.clone(),
                    display_name: self.display_name.clone(),
                },
            );
        }
        Ok(())
    }
}

/// Set a password.
#[derive(Clone, Debug)]
pub struct SetPassword {
    pub user_id: OwnedUserId,
    pub password: Secret,
    /// The devices to log out.
    pub log_out: Option<DeviceSet>,
}

impl Proposal for SetPassword {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let devices = match &self.log_out {
            Some(which) => which.of(commit, &self.user_id)?,
            None => Vec::new(),
        };
        let standing = commit.env.state.accounts.standing(&self.user_id).ok_or_else(no_account)?;
        if standing.deactivated.is_some() {
            return Err(Refusal::UserDeactivated);
        }
        let (user_id, password) = (self.user_id.clone(), self.password.clone());
        commit.append(self.stream(), UserPassword { user_id, password, renewed: false });
        if let Some(which) = &self.log_out {
            which.also(commit, &self.user_id);
        }
        // With the devices go their keys, what waits for them, and the pushers that they set.
        if !devices.is_empty() {
            commit.append(self.stream(), DeviceRemove { user_id: self.user_id.clone(), devices });
        }
        Ok(())
    }
}

/// Store a password under a stronger hash.
#[derive(Clone, Debug)]
pub struct RenewPassword {
    pub user_id: OwnedUserId,
    /// The present hash. If it was replaced meanwhile, nothing is done.
    pub weaker: Secret,
    /// The new hash.
    pub stronger: Secret,
}

impl Proposal for RenewPassword {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let account = commit.env.state.accounts.get(&self.user_id).ok_or_else(no_account)?;
        let is_there = account.read().password.latest() == Some(&Some(self.weaker.clone()));
        if is_there {
            let (user_id, password) = (self.user_id.clone(), self.stronger.clone());
            commit.append(self.stream(), UserPassword { user_id, password, renewed: true });
        }
        Ok(())
    }
}

/// Set or remove a profile field.
#[derive(Clone, Debug)]
pub struct SetProfile {
    pub user_id: OwnedUserId,
    pub field: String,
    /// Its new value; `None` removes it.
    pub value: Option<serde_json::Value>,
}

impl Proposal for SetProfile {
    /// Whether anything changed.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let account = commit.env.state.accounts.get(&self.user_id).ok_or_else(no_account)?;
        if account.read().standing.deactivated.is_some() {
            return Err(Refusal::UserDeactivated);
        }
        let before = account.read().profile_field(&self.field).cloned();
        if before == self.value {
            return Ok(false);
        }
        commit.append(
            self.stream(),
            ProfileSet {
                user_id: self.user_id.clone(),
                field: self.field.clone(),
                value: self.value.clone(),
            },
        );
        Ok(true)
    }
}
