//! Accounts: users, their passwords, devices, tokens, profiles, account data and filters.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use dashmap::DashMap;
use parking_lot::RwLock;
use ruma::{DeviceId, OwnedDeviceId, OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{history::History, serializers};
use logcabin_record::{
    Offset,
    command::{
        AccountDataSet, AccountKind, DeviceConfirm, DeviceDehydrate, DeviceLogin, DeviceRefresh,
        DeviceRemove, DeviceRename, FilterCreate, LoginTokenUse, ProfileSet, Secret, SsoLink,
        TokenHash, Tokens, UserDeactivate, UserPassword, UserRegister, UserStatus, UserUpgrade,
    },
};

pub(super) mod former;

/// Types of account data that change as a user reads: only their present value is kept.
const PASSING: [&str; 3] = ["m.fully_read", "m.marked_unread", "com.famedly.marked_unread"];

/// One user's account.
#[derive(Debug, Serialize, Deserialize)]
pub struct Account {
    pub user_id: OwnedUserId,
    /// Full or guest account.
    pub kind: AccountKind,
    /// Offset of the registration.
    pub registered: Offset,
    /// What the account may do.
    pub standing: AccountStatus,
    /// Password hash in PHC format; `None` for accounts without a password. Rehashing the same
    /// password replaces the hash and is no change of the password.
    pub password: History<Option<Secret>>,
    /// Devices by id; a removed device is `None` from then on.
    pub devices: BTreeMap<OwnedDeviceId, History<Option<Device>>>,
    /// The number of active devices.
    #[serde(skip)]
    active: usize,
    /// Profile fields by name.
    pub profile: BTreeMap<String, ProfileField>,
    /// Account data by room (`None`: global) and type. The content is in the log, at the offset.
    pub account_data: BTreeMap<(Option<OwnedRoomId>, String), History<()>>,
    /// Filters by id. The filter is in the log, at the offset.
    pub filters: BTreeMap<String, Offset>,
    /// The user's links to single sign-on providers: the provider's id, and the provider's id of
    /// the person.
    pub links: BTreeSet<(String, String)>,
    /// Login tokens that were used.
    pub used_login_tokens: UsedLoginTokens,
    /// Offset of the last record that changed any of this.
    pub changed: Offset,
}

/// The used login tokens of a user that had not expired when the last one was used.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct UsedLoginTokens {
    /// The expiry and the nonce of each.
    used: BTreeSet<(u64, String)>,
    /// Tokens that expired by then are forgotten.
    forgotten_ms: u64,
}

impl UsedLoginTokens {
    /// Whether a token can still be used, according to its earlier uses.
    pub fn allow(&self, expires_ms: u64, nonce: &str) -> bool {
        expires_ms > self.forgotten_ms && !self.used.contains(&(expires_ms, nonce.to_owned()))
    }

    fn add(&mut self, time_ms: u64, expires_ms: u64, nonce: String) {
        self.forgotten_ms = self.forgotten_ms.max(time_ms);
        self.used.insert((expires_ms, nonce));
        self.used.retain(|(expires_ms, _)| *expires_ms > self.forgotten_ms);
    }
}

/// The status of an account, as decided by administrators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountStatus {
    /// It is a guest account.
    pub guest: bool,
    /// It is an administrator.
    pub admin: bool,
    /// It is locked: nobody may use it for now.
    pub locked: bool,
    /// It is suspended: it may read, and little else.
    pub suspended: bool,
    /// It was deactivated at this offset.
    pub deactivated: Option<Offset>,
    /// Its messages are hidden from users who had not seen them by this offset.
    pub erased: Option<Offset>,
    /// It waits for an administrator's approval since the `user.wait` at this offset.
    pub waiting: Option<Offset>,
    /// Nobody is told of what it does, and its user does not know.
    pub shadow_banned: bool,
}

/// A field of a profile.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ProfileField {
    /// Its present value; `None` once it was removed.
    #[serde(with = "serializers::json")]
    pub value: Option<serde_json::Value>,
    /// When it changed. Earlier values are in the log, at these offsets.
    pub changes: History<()>,
}

/// A device and the session it is logged in with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Device {
    /// The offset of the `device.login` that opened the session, or of the `device.dehydrate`.
    pub session: Offset,
    /// The time of that record.
    pub login_ms: u64,
    pub display_name: Option<String>,
    /// The valid tokens; `None` for a dehydrated device, which has no login.
    pub tokens: Option<IssuedTokens>,
    /// Refreshed tokens that have not been used yet.
    pub unconfirmed: Option<IssuedTokens>,
}

/// Tokens with the time of issue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IssuedTokens {
    #[serde(with = "every_field")]
    pub tokens: Tokens,
    /// The time of issue.
    pub issued_ms: u64,
}

/// Tokens with absent fields written out: the log's JSON leaves them out.
mod every_field {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        tokens: &Tokens,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        (tokens.access, tokens.expires_ms, tokens.refresh).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Tokens, D::Error> {
        let (access, expires_ms, refresh) = Deserialize::deserialize(deserializer)?;
        Ok(Tokens { access, expires_ms, refresh })
    }
}

impl Account {
    /// The device with this id, if it is logged in or dehydrated.
    pub fn device(&self, device_id: &DeviceId) -> Option<&Device> {
        self.devices.get(device_id)?.latest()?.as_ref()
    }

    /// The user's dehydrated device, which has no login.
    pub fn dehydrated_device(&self) -> Option<(&OwnedDeviceId, &Device)> {
        self.active_devices().find(|(_, device)| device.tokens.is_none())
    }

    /// The devices that are logged in, and the dehydrated one.
    pub fn active_devices(&self) -> impl Iterator<Item = (&OwnedDeviceId, &Device)> {
        self.devices.iter().filter_map(|(id, history)| Some((id, history.latest()?.as_ref()?)))
    }

    /// The number of active devices, including a dehydrated one.
    pub const fn device_count(&self) -> usize {
        self.active
    }

    pub fn profile_field(&self, field: &str) -> Option<&serde_json::Value> {
        self.profile.get(field)?.value.as_ref()
    }

    /// The offset of the account data of this type for `room` (`None`: global) as of `at`.
    pub fn account_data_at(
        &self,
        room: Option<&RoomId>,
        event_type: &str,
        at: Offset,
    ) -> Option<Offset> {
        let key = (room.map(ToOwned::to_owned), event_type.to_owned());
        self.account_data.get(&key)?.at(at).map(|(offset, ())| offset)
    }

    /// The types of account data of `room` (`None`: global) that changed after `since` up to `to`,
    /// each with the offset of its value as of `to`.
    pub fn account_data_between(
        &self,
        room: Option<&RoomId>,
        since: Offset,
        to: Offset,
    ) -> Vec<(&str, Offset)> {
        let first = (room.map(ToOwned::to_owned), String::new());
        self.account_data
            .range(first..)
            .take_while(|((of, _), _)| of.as_deref() == room)
            .filter_map(|((_, event_type), history)| {
                let (offset, ()) = history.at(to)?;
                (offset > since).then_some((event_type.as_str(), offset))
            })
            .collect()
    }
}

/// All accounts, and the owners of tokens.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "Users")]
pub struct Accounts {
    #[serde(with = "serializers::by_key")]
    users: DashMap<OwnedUserId, Arc<RwLock<Account>>>,
    #[serde(skip)]
    tokens: DashMap<TokenHash, TokenOwner>,
    /// By single sign-on provider and the provider's id of the person.
    #[serde(skip)]
    links: DashMap<(String, String), OwnedUserId>,
    /// The users whose messages are hidden, and since when. They are few, and looked up for every
    /// event that is shown.
    #[serde(skip)]
    erased: RwLock<HashMap<OwnedUserId, Offset>>,
    /// The users who wait for approval, in the order of their registration.
    #[serde(skip)]
    waiting: RwLock<BTreeMap<Offset, OwnedUserId>>,
}

/// All accounts; everything else is derived from them.
#[derive(Deserialize)]
struct Users(#[serde(with = "serializers::by_key")] DashMap<OwnedUserId, Arc<RwLock<Account>>>);

impl From<Users> for Accounts {
    fn from(Users(users): Users) -> Self {
        let accounts = Self { users, ..Self::default() };
        for user in &accounts.users {
            let (user_id, mut account) = (user.key(), user.value().write());
            account.active = account.active_devices().count();
            for (device_id, device) in account.active_devices() {
                for issued in [&device.tokens, &device.unconfirmed].into_iter().flatten() {
                    accounts.own_tokens(&issued.tokens, user_id, device_id);
                }
            }
            for link in &account.links {
                accounts.links.insert(link.clone(), user_id.clone());
            }
            if let Some(offset) = account.standing.erased {
                accounts.erased.write().insert(user_id.clone(), offset);
            }
            if let Some(offset) = account.standing.waiting {
                accounts.waiting.write().insert(offset, user_id.clone());
            }
        }
        accounts
    }
}

/// The owner of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenOwner {
    pub user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
}

/// What a device's access token or refresh token is valid for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenUse {
    pub owner: TokenOwner,
    pub session: Offset,
    /// When the access token expires.
    pub expires_ms: Option<u64>,
    /// When the session began.
    pub login_ms: u64,
    /// When the token was issued.
    pub issued_ms: u64,
    /// Whether this is the first use of refreshed tokens, which must be recorded.
    pub unconfirmed: bool,
}

impl Accounts {
    pub fn get(&self, user_id: &UserId) -> Option<Arc<RwLock<Account>>> {
        self.users.get(user_id).map(|account| Arc::clone(&account))
    }

    /// Whether there is an account of this id.
    pub fn contains(&self, user_id: &UserId) -> bool {
        self.users.contains_key(user_id)
    }

    /// The status of the account of `user_id`; `None` if there is no such account.
    pub fn standing(&self, user_id: &UserId) -> Option<AccountStatus> {
        let account = self.get(user_id)?;
        let standing = account.read().standing;
        Some(standing)
    }

    /// Whether the account with this id is deactivated.
    pub fn is_deactivated(&self, user_id: &UserId) -> bool {
        self.standing(user_id).is_some_and(|standing| standing.deactivated.is_some())
    }

    /// Whether it is a guest account.
    pub fn is_guest(&self, user_id: &UserId) -> bool {
        self.standing(user_id).is_some_and(|standing| standing.guest)
    }

    /// The offset since which messages of `user_id` are hidden from those who had not seen them;
    /// `None` if they are not.
    pub fn erased(&self, user_id: &UserId) -> Option<Offset> {
        let erased = self.erased.read();
        if erased.is_empty() { None } else { erased.get(user_id).copied() }
    }

    /// Those who wait for approval, the first first, each with the `user.wait`.
    pub fn waiting(&self) -> Vec<(Offset, OwnedUserId)> {
        self.waiting.read().iter().map(|(offset, user_id)| (*offset, user_id.clone())).collect()
    }

    /// How many wait for approval.
    pub fn waiting_count(&self) -> usize {
        self.waiting.read().len()
    }

    /// How many accounts there are.
    pub fn len(&self) -> usize {
        self.users.len()
    }

    /// Whether there is no account.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// All user ids, in order.
    pub fn user_ids(&self) -> Vec<OwnedUserId> {
        let mut ids: Vec<_> = self.users.iter().map(|entry| entry.key().clone()).collect();
        ids.sort_unstable();
        ids
    }

    /// The sessions of all devices that are logged in.
    pub fn sessions(&self) -> HashSet<Offset> {
        let mut sessions = HashSet::new();
        for user in &self.users {
            let account = user.value().read();
            sessions.extend(account.active_devices().map(|(_, device)| device.session));
        }
        sessions
    }

    /// Shows `look` each user with the record of the registration, in no order.
    pub fn each_registration(&self, mut look: impl FnMut(&UserId, Offset)) {
        for account in &self.users {
            look(account.key(), account.value().read().registered);
        }
    }

    /// The user who is linked with this person at this single sign-on provider.
    pub fn linked(&self, provider: &str, subject: &str) -> Option<OwnedUserId> {
        let key = (provider.to_owned(), subject.to_owned());
        self.links.get(&key).map(|user_id| user_id.clone())
    }

    /// What this access token is valid for; `None` if it is not valid.
    pub fn access_token(&self, token: &TokenHash) -> Option<TokenUse> {
        self.token_use(token, |tokens| tokens.access == *token)
    }

    /// What this refresh token is valid for; `None` if it is not valid.
    pub fn refresh_token(&self, token: &TokenHash) -> Option<TokenUse> {
        self.token_use(token, |tokens| tokens.refresh.as_ref() == Some(token))
    }

    /// The device's refreshed tokens that have not been used yet.
    pub fn unconfirmed(&self, user_id: &UserId, device_id: &DeviceId) -> Option<Tokens> {
        let account = self.get(user_id)?;
        let account = account.read();
        Some(account.device(device_id)?.unconfirmed.as_ref()?.tokens.clone())
    }

    fn token_use(&self, token: &TokenHash, is: impl Fn(&Tokens) -> bool) -> Option<TokenUse> {
        let owner = self.tokens.get(token)?.clone();
        let account = self.get(&owner.user_id)?;
        let account = account.read();
        let device = account.device(&owner.device_id)?;
        let current = device.tokens.as_ref().filter(|issued| is(&issued.tokens));
        let (issued, unconfirmed) = if let Some(issued) = current {
            (issued, false)
        } else {
            (device.unconfirmed.as_ref().filter(|issued| is(&issued.tokens))?, true)
        };
        let Device { session, login_ms, .. } = *device;
        let (expires_ms, issued_ms) = (issued.tokens.expires_ms, issued.issued_ms);
        drop(account);
        Some(TokenUse { owner, session, expires_ms, login_ms, issued_ms, unconfirmed })
    }

    pub(super) fn register(&self, offset: Offset, body: UserRegister) {
        let mut password = History::default();
        password.push(offset, body.password);
        let account = Account {
            user_id: body.user_id.clone(),
            kind: body.kind,
            registered: offset,
            standing: AccountStatus {
                guest: body.kind == AccountKind::Guest,
                ..AccountStatus::default()
            },
            password,
            devices: BTreeMap::new(),
            active: 0,
            profile: BTreeMap::new(),
            account_data: BTreeMap::new(),
            filters: BTreeMap::new(),
            links: BTreeSet::new(),
            used_login_tokens: UsedLoginTokens::default(),
            changed: offset,
        };
        self.users.insert(body.user_id, Arc::new(RwLock::new(account)));
    }

    pub(super) fn upgrade(&self, offset: Offset, body: UserUpgrade) {
        self.change(&body.user_id, offset, |account| {
            account.kind = AccountKind::User;
            account.standing.guest = false;
            account.password.push(offset, body.password);
        });
    }

    pub(super) fn set_password(&self, offset: Offset, body: UserPassword) {
        self.change(&body.user_id, offset, |account| match account.password.latest_mut() {
            Some(password) if body.renewed => *password = Some(body.password),
            _ => account.password.push(offset, Some(body.password)),
        });
    }

    pub(super) fn use_login_token(&self, offset: Offset, time_ms: u64, body: LoginTokenUse) {
        self.change(&body.user_id, offset, |account| {
            account.used_login_tokens.add(time_ms, body.expires_ms, body.nonce);
        });
    }

    pub(super) fn link(&self, offset: Offset, body: SsoLink) {
        let link = (body.provider, body.subject);
        self.change(&body.user_id, offset, |account| account.links.insert(link.clone()));
        self.links.insert(link, body.user_id);
    }

    pub(super) fn set_status(&self, offset: Offset, body: &UserStatus) {
        self.change(&body.user_id, offset, |account| {
            let standing = &mut account.standing;
            standing.admin = body.admin.unwrap_or(standing.admin);
            standing.locked = body.locked.unwrap_or(standing.locked);
            standing.suspended = body.suspended.unwrap_or(standing.suspended);
            standing.shadow_banned = body.shadow_banned.unwrap_or(standing.shadow_banned);
        });
        if body.approved == Some(true) {
            self.end_wait(offset, &body.user_id);
        }
    }

    pub(super) fn wait(&self, offset: Offset, user_id: &UserId) {
        self.change(user_id, offset, |account| account.standing.waiting = Some(offset));
        self.waiting.write().insert(offset, user_id.to_owned());
    }

    fn end_wait(&self, offset: Offset, user_id: &UserId) {
        let since = self.change(user_id, offset, |account| account.standing.waiting.take());
        if let Some(since) = since.flatten() {
            self.waiting.write().remove(&since);
        }
    }

    pub(super) fn deactivate(&self, offset: Offset, body: &UserDeactivate) {
        self.end_wait(offset, &body.user_id);
        let links = self.change(&body.user_id, offset, |account| {
            account.standing.deactivated.get_or_insert(offset);
            account.standing.admin = false;
            if account.password.latest().is_some_and(Option::is_some) {
                account.password.push(offset, None);
            }
            if body.erase {
                account.standing.erased.get_or_insert(offset);
                account.profile.clear();
                account.account_data.clear();
                account.filters.clear();
                account.devices.clear();
                account.active = 0;
                account.used_login_tokens = UsedLoginTokens::default();
                account.password = History::default();
                account.password.push(offset, None);
            }
            std::mem::take(&mut account.links)
        });
        for link in links.unwrap_or_default() {
            self.links.remove(&link);
        }
        if body.erase {
            self.erased.write().entry(body.user_id.clone()).or_insert(offset);
        }
    }

    /// The tokens count as issued at `time_ms`, when the record was appended: what is imported
    /// was in use at the source.
    pub(super) fn login(
        &self,
        offset: Offset,
        login_ms: u64,
        time_ms: u64,
        body: DeviceLogin,
    ) -> Option<Offset> {
        let DeviceLogin { user_id, device_id, display_name, tokens, sent: _ } = body;
        self.own_tokens(&tokens, &user_id, &device_id);
        let ended = self.change(&user_id, offset, |account| {
            let history = account.devices.entry(device_id).or_default();
            let before = history.latest().cloned().flatten();
            let display_name =
                before.as_ref().map_or(display_name, |device| device.display_name.clone());
            let device = Device {
                session: offset,
                login_ms,
                display_name,
                tokens: Some(IssuedTokens { tokens, issued_ms: time_ms }),
                unconfirmed: None,
            };
            history.push(offset, Some(device));
            account.active += usize::from(before.is_none());
            before
        });
        let ended = ended.flatten()?;
        self.disown_tokens(&ended);
        Some(ended.session)
    }

    pub(super) fn dehydrate(&self, offset: Offset, time_ms: u64, body: DeviceDehydrate) {
        let DeviceDehydrate { user_id, device_id, display_name, device_data: _ } = body;
        self.change(&user_id, offset, |account| {
            let device = Device {
                session: offset,
                login_ms: time_ms,
                display_name,
                tokens: None,
                unconfirmed: None,
            };
            let history = account.devices.entry(device_id).or_default();
            account.active += usize::from(history.latest().is_none_or(Option::is_none));
            history.push(offset, Some(device));
        });
    }

    pub(super) fn refresh(&self, offset: Offset, time_ms: u64, body: DeviceRefresh) {
        self.own_tokens(&body.tokens, &body.user_id, &body.device_id);
        let replaced = self.change(&body.user_id, offset, |account| {
            let device = account.devices.get_mut(&body.device_id)?.latest_mut()?.as_mut()?;
            let given = IssuedTokens { tokens: body.tokens.clone(), issued_ms: time_ms };
            device.unconfirmed.replace(given)
        });
        // The same tokens may get a new expiry.
        if let Some(replaced) = replaced.flatten()
            && !replaced.tokens.same_as(&body.tokens)
        {
            self.disown(&replaced.tokens);
        }
    }

    pub(super) fn confirm(&self, offset: Offset, body: &DeviceConfirm) {
        let replaced = self.change(&body.user_id, offset, |account| {
            let device = account.devices.get_mut(&body.device_id)?.latest_mut()?.as_mut()?;
            let confirmed = device.unconfirmed.take()?;
            device.tokens.replace(confirmed)
        });
        if let Some(replaced) = replaced.flatten() {
            self.disown(&replaced.tokens);
        }
    }

    /// Returns the sessions that ended.
    pub(super) fn remove_devices(&self, offset: Offset, body: &DeviceRemove) -> Vec<Offset> {
        let removed = self.change(&body.user_id, offset, |account| {
            let mut removed = Vec::new();
            for device_id in &body.devices {
                let Some(history) = account.devices.get_mut(device_id) else { continue };
                if let Some(Some(device)) = history.latest().cloned() {
                    history.push(offset, None);
                    account.active = account.active.saturating_sub(1);
                    removed.push(device);
                }
            }
            removed
        });
        let removed = removed.unwrap_or_default();
        for device in &removed {
            self.disown_tokens(device);
        }
        removed.into_iter().map(|device| device.session).collect()
    }

    pub(super) fn rename_device(&self, offset: Offset, body: DeviceRename) {
        self.change(&body.user_id, offset, |account| {
            let Some(history) = account.devices.get_mut(&body.device_id) else { return };
            if let Some(Some(mut device)) = history.latest().cloned() {
                device.display_name = body.display_name;
                history.push(offset, Some(device));
            }
        });
    }

    pub(super) fn set_profile(&self, offset: Offset, body: ProfileSet) {
        self.change(&body.user_id, offset, |account| {
            let field = account.profile.entry(body.field).or_default();
            field.value = body.value;
            field.changes.push(offset, ());
        });
    }

    /// Returns the superseded record, for a type without history.
    pub(super) fn set_account_data(&self, offset: Offset, body: AccountDataSet) -> Option<Offset> {
        let superseded = self.change(&body.user_id, offset, |account| {
            let has_past = !PASSING.contains(&&*body.event_type);
            let key = (body.room_id, body.event_type);
            let history = account.account_data.entry(key).or_default();
            if has_past {
                history.push(offset, ());
                return None;
            }
            history.replace(offset, ())
        });
        superseded.flatten()
    }

    /// Deletes all account data of a purged room, also of users who were never in it. Returns the
    /// records that contained it.
    pub(super) fn forget_room(&self, offset: Offset, room_id: &RoomId) -> Vec<Offset> {
        let mut records = Vec::new();
        for account in self.user_ids().iter().filter_map(|user_id| self.get(user_id)) {
            let mut account = account.write();
            // Whether they had any or not: that is unknown once the records are erased.
            account.changed = offset;
            let first = (Some(room_id.to_owned()), String::new());
            let of_room = account.account_data.range(first..);
            let of_room = of_room.take_while(|((of, _), _)| of.as_deref() == Some(room_id));
            let keys: Vec<_> = of_room.map(|(key, _)| key.clone()).collect();
            for key in keys {
                let history = account.account_data.remove(&key).unwrap_or_default();
                records.extend(history.changes().map(|(offset, ())| offset));
            }
        }
        records
    }

    pub(super) fn create_filter(&self, offset: Offset, body: FilterCreate) {
        self.change(&body.user_id, offset, |account| {
            account.filters.insert(body.filter_id, offset);
        });
    }

    fn change<T>(
        &self,
        user_id: &UserId,
        offset: Offset,
        change: impl FnOnce(&mut Account) -> T,
    ) -> Option<T> {
        let account = self.get(user_id)?;
        let mut account = account.write();
        account.changed = offset;
        Some(change(&mut account))
    }

    fn own_tokens(&self, tokens: &Tokens, user_id: &UserId, device_id: &DeviceId) {
        let owner = TokenOwner { user_id: user_id.to_owned(), device_id: device_id.to_owned() };
        if let Some(refresh) = tokens.refresh {
            self.tokens.insert(refresh, owner.clone());
        }
        self.tokens.insert(tokens.access, owner);
    }

    fn disown_tokens(&self, device: &Device) {
        for issued in [&device.tokens, &device.unconfirmed].into_iter().flatten() {
            self.disown(&issued.tokens);
        }
    }

    fn disown(&self, tokens: &Tokens) {
        self.tokens.remove(&tokens.access);
        if let Some(refresh) = &tokens.refresh {
            self.tokens.remove(refresh);
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        for user_id in self.user_ids() {
            if let Some(account) = self.get(&user_id) {
                digest.add(&*account.read());
            }
        }
        let mut tokens: Vec<_> = self.tokens.iter().map(|entry| *entry.key()).collect();
        tokens.sort_unstable();
        digest.add(&tokens);
        let links = self.links.iter().map(|link| (link.key().clone(), link.value().clone()));
        digest.add(&links.collect::<BTreeMap<_, _>>());
    }
}
