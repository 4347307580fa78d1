//! Accounts: users, their passwords, devices, tokens, profiles, account data and filters.

use std::{collections::BTreeMap, sync::Arc};

use dashmap::DashMap;
use parking_lot::RwLock;
use ruma::{DeviceId, OwnedDeviceId, OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde::{Serialize, Serializer};

use super::history::History;
use crate::record::{
    Offset,
    command::{
        AccountDataSet, AccountKind, DeviceConfirm, DeviceLogin, DeviceRefresh, DeviceRemove,
        DeviceRename, FilterCreate, ProfileSet, Secret, TokenHash, Tokens, UserPassword,
        UserRegister, UserUpgrade,
    },
};

/// One user's account.
#[derive(Debug, Serialize)]
pub struct Account {
    /// The user.
    pub user_id: OwnedUserId,
    /// Full or guest account.
    pub kind: AccountKind,
    /// Offset of the registration.
    pub registered: Offset,
    /// Password hash in PHC form; none for accounts without a password.
    pub password: History<Option<Secret>>,
    /// Devices by id; a removed device is `None` from then on.
    pub devices: BTreeMap<OwnedDeviceId, History<Option<Device>>>,
    /// Profile fields by name.
    pub profile: BTreeMap<String, ProfileField>,
    /// Account data by room (none: global) and type. The content is in the log, at the offset.
    pub account_data: BTreeMap<(Option<OwnedRoomId>, String), History<()>>,
    /// Filters by id. The filter is in the log, at the offset.
    pub filters: BTreeMap<String, Offset>,
    /// Offset of the last record that changed any of this.
    pub changed: Offset,
}

/// A field of a profile.
#[derive(Debug, Default, Serialize)]
pub struct ProfileField {
    /// Its value now; none once it was removed.
    pub value: Option<serde_json::Value>,
    /// When it changed. Earlier values are in the log, at these offsets.
    pub changes: History<()>,
}

/// A device and the session it is logged in with.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// The offset of the `device.login` that opened the session.
    pub session: Offset,
    /// Display name.
    pub display_name: Option<String>,
    /// The tokens in force.
    #[serde(serialize_with = "every_field")]
    pub tokens: Tokens,
    /// Tokens of a refresh that have not been used yet.
    #[serde(serialize_with = "every_field_if_any")]
    pub unconfirmed: Option<Tokens>,
}

/// Tokens with the fields that are absent named, too: in a log's JSON those are left out.
fn every_field<S: Serializer>(tokens: &Tokens, serializer: S) -> Result<S::Ok, S::Error> {
    (tokens.access, tokens.expires_ms, tokens.refresh).serialize(serializer)
}

fn every_field_if_any<S: Serializer>(
    tokens: &Option<Tokens>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    tokens.as_ref().map(|t| (t.access, t.expires_ms, t.refresh)).serialize(serializer)
}

impl Account {
    /// The device of this id, while it is logged in.
    #[must_use]
    pub fn device(&self, device_id: &DeviceId) -> Option<&Device> {
        self.devices.get(device_id)?.latest()?.as_ref()
    }

    /// The devices that are logged in.
    pub fn active_devices(&self) -> impl Iterator<Item = (&OwnedDeviceId, &Device)> {
        self.devices.iter().filter_map(|(id, history)| Some((id, history.latest()?.as_ref()?)))
    }

    /// The value of a profile field.
    #[must_use]
    pub fn profile_field(&self, field: &str) -> Option<&serde_json::Value> {
        self.profile.get(field)?.value.as_ref()
    }

    /// The offset of the account data of this type of `room` (none: global) as of `at`.
    #[must_use]
    pub fn account_data_at(
        &self,
        room: Option<&RoomId>,
        event_type: &str,
        at: Offset,
    ) -> Option<Offset> {
        let key = (room.map(ToOwned::to_owned), event_type.to_owned());
        self.account_data.get(&key)?.at(at).map(|(offset, ())| offset)
    }

    /// The types of account data of `room` (none: global) that changed after `since` up to `to`,
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

/// All accounts, and which token belongs to whom.
#[derive(Debug, Default)]
pub struct Accounts {
    users: DashMap<OwnedUserId, Arc<RwLock<Account>>>,
    tokens: DashMap<TokenHash, TokenOwner>,
}

/// Whose a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenOwner {
    /// The user.
    pub user_id: OwnedUserId,
    /// The device.
    pub device_id: OwnedDeviceId,
}

/// What a device's access token or refresh token is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenUse {
    /// Whose it is.
    pub owner: TokenOwner,
    /// The session.
    pub session: Offset,
    /// When the access token expires.
    pub expires_ms: Option<u64>,
    /// Whether this is the first use of the tokens of a refresh, which is to be recorded.
    pub unconfirmed: bool,
}

impl Accounts {
    /// The account of `user_id`.
    #[must_use]
    pub fn get(&self, user_id: &UserId) -> Option<Arc<RwLock<Account>>> {
        self.users.get(user_id).map(|account| Arc::clone(&account))
    }

    /// Whether there is an account of this id.
    #[must_use]
    pub fn contains(&self, user_id: &UserId) -> bool {
        self.users.contains_key(user_id)
    }

    /// How many accounts there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.users.len()
    }

    /// Whether there is no account.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// All user ids, in order.
    #[must_use]
    pub fn user_ids(&self) -> Vec<OwnedUserId> {
        let mut ids: Vec<_> = self.users.iter().map(|entry| entry.key().clone()).collect();
        ids.sort_unstable();
        ids
    }

    /// What this access token is good for; `None` for one that is not in force.
    #[must_use]
    pub fn access_token(&self, token: &TokenHash) -> Option<TokenUse> {
        self.token_use(token, |tokens| tokens.access == *token)
    }

    /// What this refresh token is good for; `None` for one that is not in force.
    #[must_use]
    pub fn refresh_token(&self, token: &TokenHash) -> Option<TokenUse> {
        self.token_use(token, |tokens| tokens.refresh.as_ref() == Some(token))
    }

    fn token_use(&self, token: &TokenHash, is: impl Fn(&Tokens) -> bool) -> Option<TokenUse> {
        let owner = self.tokens.get(token)?.clone();
        let account = self.get(&owner.user_id)?;
        let account = account.read();
        let device = account.device(&owner.device_id)?;
        let (tokens, unconfirmed) = if is(&device.tokens) {
            (&device.tokens, false)
        } else {
            (device.unconfirmed.as_ref().filter(|tokens| is(tokens))?, true)
        };
        let (session, expires_ms) = (device.session, tokens.expires_ms);
        drop(account);
        Some(TokenUse { owner, session, expires_ms, unconfirmed })
    }

    pub(super) fn register(&self, offset: Offset, body: UserRegister) {
        let mut password = History::default();
        password.push(offset, body.password);
        let account = Account {
            user_id: body.user_id.clone(),
            kind: body.kind,
            registered: offset,
            password,
            devices: BTreeMap::new(),
            profile: BTreeMap::new(),
            account_data: BTreeMap::new(),
            filters: BTreeMap::new(),
            changed: offset,
        };
        self.users.insert(body.user_id, Arc::new(RwLock::new(account)));
    }

    pub(super) fn upgrade(&self, offset: Offset, body: UserUpgrade) {
        self.change(&body.user_id, offset, |account| {
            account.kind = AccountKind::User;
            account.password.push(offset, body.password);
        });
    }

    pub(super) fn set_password(&self, offset: Offset, body: UserPassword) {
        self.change(&body.user_id, offset, |account| {
            account.password.push(offset, Some(body.password));
        });
    }

    pub(super) fn login(&self, offset: Offset, body: DeviceLogin) -> Option<Offset> {
        let DeviceLogin { user_id, device_id, display_name, tokens } = body;
        self.own_tokens(&tokens, &user_id, &device_id);
        let ended = self.change(&user_id, offset, |account| {
            let history = account.devices.entry(device_id).or_default();
            let before = history.latest().cloned().flatten();
            let display_name =
                before.as_ref().map_or(display_name, |device| device.display_name.clone());
            let device = Device { session: offset, display_name, tokens, unconfirmed: None };
            history.push(offset, Some(device));
            before
        });
        let ended = ended.flatten()?;
        self.disown_tokens(&ended);
        Some(ended.session)
    }

    pub(super) fn refresh(&self, offset: Offset, body: DeviceRefresh) {
        self.own_tokens(&body.tokens, &body.user_id, &body.device_id);
        let replaced = self.change(&body.user_id, offset, |account| {
            let device = account.devices.get_mut(&body.device_id)?.latest_mut()?.as_mut()?;
            device.unconfirmed.replace(body.tokens)
        });
        if let Some(replaced) = replaced.flatten() {
            self.disown(&replaced);
        }
    }

    pub(super) fn confirm(&self, offset: Offset, body: &DeviceConfirm) {
        let replaced = self.change(&body.user_id, offset, |account| {
            let device = account.devices.get_mut(&body.device_id)?.latest_mut()?.as_mut()?;
            let confirmed = device.unconfirmed.take()?;
            Some(std::mem::replace(&mut device.tokens, confirmed))
        });
        if let Some(replaced) = replaced.flatten() {
            self.disown(&replaced);
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

    pub(super) fn set_account_data(&self, offset: Offset, body: AccountDataSet) {
        self.change(&body.user_id, offset, |account| {
            let key = (body.room_id, body.event_type);
            account.account_data.entry(key).or_default().push(offset, ());
        });
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
        self.disown(&device.tokens);
        if let Some(tokens) = &device.unconfirmed {
            self.disown(tokens);
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
    }
}
