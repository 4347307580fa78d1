//! Users, devices, memberships, aliases, pushers, files and tokens as of a moment, from the
//! projections and the records that they refer to.

use std::collections::BTreeMap;

use ruma::{OwnedDeviceId, OwnedRoomAliasId, OwnedUserId, UserId, events::StateEventType};
use serde::Serialize;
use serde_json::Value;

use super::{History, HistoryError, moment::Time, query::EventRow};
use logcabin_record::{Command, Offset, pusher::PusherKind};
use logcabin_state::{Account, Device, Room};

/// A user's membership of a room.
#[derive(Clone, Debug, Serialize)]
pub struct MemberRow {
    pub user_id: String,
    /// `join`, `invite`, `knock`, `leave` or `ban`.
    pub membership: String,
    /// The display name in the room.
    pub display_name: Option<String>,
    /// Who set it.
    pub sender: String,
    /// The record that set it.
    pub offset: Offset,
    /// When it was set.
    pub since: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct DeviceRow {
    pub user_id: String,
    pub device_id: String,
    pub display_name: Option<String>,
    /// The record of its login.
    pub session: Offset,
    /// When it logged in.
    pub since: String,
    /// When it was last used, as far as is known.
    pub seen: Option<String>,
    /// Whether nobody is logged in on it: it holds keys until its owner returns.
    pub dehydrated: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct AliasRow {
    pub alias: String,
    pub room_id: String,
    pub creator: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct PusherRow {
    pub user_id: String,
    pub app_id: String,
    /// `http` or `email`.
    pub kind: &'static str,
    /// The name of the app, for people.
    pub app: String,
    /// The name of the device, for people.
    pub device: String,
    /// The device that set it.
    pub device_id: Option<String>,
    /// The record that first set it.
    pub offset: Offset,
    /// When it was last set.
    pub set: String,
}

/// An uploaded file.
#[derive(Clone, Debug, Serialize)]
pub struct MediaRow {
    /// Its address.
    pub uri: String,
    /// The uploader; none for what the server fetched by itself.
    pub user_id: Option<String>,
    /// Its length in bytes.
    pub size: u64,
    /// blake3 of it, in hex.
    pub hash: String,
    /// The record of the upload.
    pub offset: Offset,
    /// When it was uploaded.
    pub uploaded: String,
}

/// A registration token, of which only a hash is stored.
#[derive(Clone, Debug, Serialize)]
pub struct TokenRow {
    /// The first digits of its hash.
    pub id: String,
    pub label: Option<String>,
    /// How many accounts can be created with it in all; none for any number.
    pub uses_allowed: Option<u64>,
    /// How many were created.
    pub uses: u64,
    /// When it expires.
    pub expires: Option<String>,
}

/// All details of an account.
#[derive(Clone, Debug, Serialize)]
pub struct UserView {
    pub user_id: String,
    /// `user` or `guest`.
    pub kind: Value,
    pub admin: bool,
    pub locked: bool,
    pub suspended: bool,
    pub shadow_banned: bool,
    /// The record since which it waits for approval.
    pub waiting: Option<Offset>,
    /// The record that deactivated the account.
    pub deactivated: Option<Offset>,
    /// The record of the registration.
    pub registered: Offset,
    /// The record that set the password, if there is one.
    pub password: Option<Offset>,
    pub profile: BTreeMap<String, Value>,
    pub devices: Vec<DeviceRow>,
    /// The user's memberships.
    pub rooms: BTreeMap<String, &'static str>,
    /// E-mail addresses and phone numbers.
    pub addresses: Vec<String>,
    pub pushers: Vec<PusherRow>,
    /// The record of each piece of global account data.
    pub account_data: BTreeMap<String, Offset>,
}

impl History<'_> {
    /// Finds a user by id, or by the part before the colon.
    pub fn user_id(&self, name: &str) -> Result<OwnedUserId, HistoryError> {
        if let Ok(user_id) = OwnedUserId::try_from(name)
            && self.state().accounts.contains(&user_id)
        {
            return Ok(user_id);
        }
        let accounts = self.state().accounts.user_ids().into_iter();
        let mut found = accounts.filter(|id| id.as_str() == name || id.localpart() == name);
        match found.next() {
            Some(user_id) => Ok(user_id),
            // Rooms may have members from other servers, who have no account here.
            None => match OwnedUserId::try_from(name) {
                Ok(user_id) => Ok(user_id),
                Err(_) => Err(HistoryError::NoUser(name.to_owned())),
            },
        }
    }

    /// Events of `room`, in the order of `offsets`.
    pub fn events(&self, room: &Room, offsets: &[Offset]) -> Result<Vec<EventRow>, HistoryError> {
        let mut loaded = self.load(offsets)?;
        let row = |offset: &Offset| Some(self.event_row(room, *offset, loaded.remove(offset)?));
        Ok(offsets.iter().filter_map(row).collect())
    }

    /// The present and former members of `room`, by user id.
    pub fn members(&self, room: &Room) -> Result<Vec<MemberRow>, HistoryError> {
        let members = room.state_of_type(&StateEventType::RoomMember, self.end());
        let offsets: Vec<_> = members.iter().map(|(_, offset)| *offset).collect();
        let mut rows = Vec::with_capacity(members.len());
        let loaded = self.load(&offsets)?;
        for (user_id, offset) in members {
            let Some(loaded) = loaded.get(&offset) else { continue };
            let content: Value = loaded
                .event
                .as_ref()
                .map_or(Value::Null, |event| event.content_as().unwrap_or_default());
            let text = |name: &str| content[name].as_str().map(str::to_owned);
            rows.push(MemberRow {
                user_id,
                membership: text("membership").unwrap_or_default(),
                display_name: text("displayname"),
                sender: loaded.event.as_ref().map(|e| e.sender.to_string()).unwrap_or_default(),
                offset,
                since: loaded.time.to_string(),
            });
        }
        rows.sort_by(|a, b| a.user_id.cmp(&b.user_id));
        Ok(rows)
    }

    /// The devices of `user_id`, or of all users.
    pub fn devices(&self, user_id: Option<&UserId>) -> Vec<DeviceRow> {
        let all = match user_id {
            Some(user_id) => vec![user_id.to_owned()],
            None => self.state().accounts.user_ids(),
        };
        let accounts = all.iter().filter_map(|user_id| self.state().accounts.get(user_id));
        accounts.flat_map(|account| self.devices_of(&account.read())).collect()
    }

    fn devices_of(&self, account: &Account) -> Vec<DeviceRow> {
        let user_id = &account.user_id;
        let row = |(device_id, device): (&OwnedDeviceId, &Device)| DeviceRow {
            user_id: user_id.to_string(),
            device_id: device_id.to_string(),
            display_name: device.display_name.clone(),
            session: device.session,
            since: Time(device.login_ms).to_string(),
            seen: self
                .state()
                .seen
                .get(user_id, device_id)
                .map(|seen| Time(seen.seen_ms).to_string()),
            dehydrated: device.tokens.is_none(),
        };
        let devices = account.devices.iter();
        let there = devices.filter_map(|(id, of)| Some((id, of.at(self.end())?.1.as_ref()?)));
        there.map(row).collect()
    }

    /// The aliases of `room`, or of all rooms.
    pub fn aliases(&self, room: Option<&Room>) -> Vec<AliasRow> {
        let all = self.state().aliases.all(self.end()).into_iter();
        all.filter(|(_, target)| room.is_none_or(|room| room.id == target.room_id))
            .map(|(alias, target)| AliasRow {
                alias: alias.to_string(),
                room_id: target.room_id.to_string(),
                creator: target.creator.to_string(),
            })
            .collect()
    }

    /// The aliases of `room`, at a cost proportional to these.
    pub(super) fn aliases_of(&self, room: &Room) -> Vec<AliasRow> {
        let aliases = &self.state().aliases;
        let of_room = aliases.of_room(&room.id, self.end()).into_iter();
        let row = |alias: OwnedRoomAliasId| {
            let target = aliases.get(&alias, self.end())?;
            Some(AliasRow {
                alias: alias.to_string(),
                room_id: target.room_id.to_string(),
                creator: target.creator.to_string(),
            })
        };
        of_room.filter_map(row).collect()
    }

    /// The pushers of `user_id`, or of all users.
    pub fn pushers(&self, user_id: Option<&UserId>) -> Vec<PusherRow> {
        let pushers = &self.state().pushers;
        let all = user_id.map_or_else(|| pushers.all(), |user_id| pushers.of_user(user_id));
        let row = |pusher: std::sync::Arc<logcabin_state::Pusher>| PusherRow {
            user_id: pusher.body.user_id.to_string(),
            app_id: pusher.body.ids.app_id.clone(),
            kind: match pusher.body.kind {
                PusherKind::Http => "http",
                PusherKind::Email => "email",
            },
            app: pusher.body.app_display_name.clone(),
            device: pusher.body.device_display_name.clone(),
            device_id: pusher.body.device_id.as_ref().map(ToString::to_string),
            offset: pusher.since,
            set: Time(pusher.set_ms).to_string(),
        };
        all.into_iter().map(row).collect()
    }

    /// The uploads of `user_id`, or of all users.
    pub fn media(&self, user_id: Option<&UserId>) -> Vec<MediaRow> {
        let server = self.state().server().map(|server| server.server_name.clone());
        let server = server.unwrap_or_default();
        let all = self.state().media.all().into_iter();
        all.filter(|(_, file)| user_id.is_none_or(|id| file.user_id.as_deref() == Some(id)))
            .map(|(media_id, file)| MediaRow {
                uri: format!("mxc://{server}/{media_id}"),
                user_id: file.user_id.map(|user_id| user_id.to_string()),
                size: file.size,
                hash: file.hash.to_string(),
                offset: file.offset,
                uploaded: Time(file.time_ms).to_string(),
            })
            .collect()
    }

    pub fn registration_tokens(&self) -> Vec<TokenRow> {
        let all = self.state().registration_tokens.all().into_iter();
        all.map(|(hash, token)| TokenRow {
            id: hash.start(),
            label: token.label,
            uses_allowed: token.uses_allowed,
            uses: token.uses,
            expires: token.expires_ms.map(|ms| Time(ms).to_string()),
        })
        .collect()
    }

    /// The profile. What a field was before its last change is in the log.
    fn profile_of(&self, account: &Account) -> Result<BTreeMap<String, Value>, HistoryError> {
        let (mut profile, mut earlier) = (BTreeMap::new(), BTreeMap::new());
        for (name, field) in &account.profile {
            match field.changes.at(self.end()) {
                Some((at, ())) if at < field.changes.last_change() => {
                    earlier.insert(at, name);
                }
                Some(_) => profile.extend(field.value.clone().map(|value| (name.clone(), value))),
                None => {}
            }
        }
        let offsets: Vec<_> = earlier.keys().copied().collect();
        self.source().fetch(&offsets, |record| {
            let value = match record.command() {
                Ok(Some(Command::ProfileSet(body))) => body.value,
                _ => None,
            };
            if let (Some(name), Some(value)) = (earlier.get(&record.offset()), value) {
                profile.insert((*name).clone(), value);
            }
            Ok::<_, HistoryError>(())
        })?;
        Ok(profile)
    }

    /// All details of the account of `user_id`.
    pub fn user(&self, user_id: &UserId) -> Result<UserView, HistoryError> {
        let account = self.state().accounts.get(user_id);
        let account = account.ok_or_else(|| HistoryError::NoUser(user_id.to_string()))?;
        let account = account.read();
        let at = self.end();
        if account.registered > at {
            return Err(HistoryError::NotYet { name: user_id.to_string(), at });
        }
        let account_data = account.account_data.iter();
        Ok(UserView {
            user_id: user_id.to_string(),
            kind: serde_json::to_value(account.kind).unwrap_or_default(),
            admin: account.standing.admin,
            locked: account.standing.locked,
            suspended: account.standing.suspended,
            shadow_banned: account.standing.shadow_banned,
            waiting: account.standing.waiting,
            deactivated: account.standing.deactivated,
            registered: account.registered,
            password: account
                .password
                .at(at)
                .and_then(|(offset, hash)| hash.as_ref().map(|_| offset)),
            profile: self.profile_of(&account)?,
            devices: self.devices_of(&account),
            rooms: self
                .state()
                .memberships
                .of(user_id, self.end())
                .into_iter()
                .map(|part| (part.room_id.to_string(), part.membership.as_str()))
                .collect(),
            addresses: self
                .state()
                .threepids
                .of_user(user_id)
                .into_iter()
                .map(|(threepid, _)| threepid.to_string())
                .collect(),
            pushers: self.pushers(Some(user_id)),
            account_data: account_data
                .filter(|((room, _), _)| room.is_none())
                .filter_map(|((_, name), set)| Some((name.clone(), set.at(at)?.0)))
                .collect(),
        })
    }
}
