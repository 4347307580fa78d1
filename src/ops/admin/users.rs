//! What an operator asks for about users, beyond what [`office`](super::office) has.

use ruma::{OwnedDeviceId, OwnedUserId};
use serde_json::Value;

use super::{
    acts::{Done, ExternalId, UserSummary, UserThreepid},
    office::{ActError, Office, invalid, of_user},
};
use crate::{
    base::{limits, text},
    decide::{
        account::{Login, RenameDevice, SetProfile},
        moderation::Because,
    },
    log::ReadError,
    record::{Offset, Origin, command::Tokens},
    service::accounts::{
        names::{new_device_id, short_name},
        profile,
        token::{self, Kind},
    },
};

/// What a device is called on which an administrator is logged in for a user.
const DEVICE_NAME: &str = "Administrator";

/// Which users, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsersWanted {
    /// What their id has in it.
    pub(crate) id: Option<String>,
    /// What the local part of their id, or their display name, has in it.
    pub(crate) name: Option<String>,
    /// Whether they are guests.
    pub(crate) guests: Option<bool>,
    /// Whether they administer the server.
    pub(crate) admins: Option<bool>,
    /// Whether their account is closed.
    pub(crate) deactivated: Option<bool>,
    /// Whether it is locked.
    pub(crate) locked: Option<bool>,
    /// By what they are ordered.
    pub(crate) order: UserOrder,
    /// The other way round.
    pub(crate) reverse: bool,
    /// How many are passed over.
    pub(crate) from: usize,
    /// How many are shown.
    pub(crate) limit: usize,
}

/// By what users are ordered; of equals, by their ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UserOrder {
    #[default]
    Name,
    DisplayName,
    AvatarUrl,
    IsGuest,
    Admin,
    Deactivated,
    Locked,
    CreationTs,
    LastSeenTs,
    /// By something that all have alike.
    Nothing,
}

/// A user, with the record of the registration.
pub(crate) struct Listed {
    pub(crate) user: UserSummary,
    pub(crate) registered: Offset,
}

impl Office {
    /// The users who are wanted, in order, and how many there are.
    pub(crate) fn users(&self, wanted: &UsersWanted) -> (Vec<Listed>, usize) {
        let accounts = &self.engine.state().accounts;
        let mut found = Vec::new();
        let (id, name) =
            (wanted.id.as_deref().map(text::fold), wanted.name.as_deref().map(text::fold));
        for user_id in accounts.user_ids() {
            let Some(account) = accounts.get(&user_id) else { continue };
            let (user, registered) = {
                let account = account.read();
                (self.summary(&account), account.registered)
            };
            let is = |asked: Option<bool>, is: bool| asked.is_none_or(|asked| asked == is);
            let has = |text: &str, part: &str| text::fold(text).contains(part);
            let by_id = id.as_ref().is_none_or(|part| has(user_id.as_str(), part));
            let display_name = user.display_name.as_deref().unwrap_or_default();
            let by_name = name
                .as_ref()
                .is_none_or(|part| has(user_id.localpart(), part) || has(display_name, part));
            let by_standing = is(wanted.guests, user.guest)
                && is(wanted.admins, user.admin)
                && is(wanted.deactivated, user.deactivated)
                && is(wanted.locked, user.locked);
            if by_standing && by_id && by_name {
                found.push(Listed { user, registered });
            }
        }
        let key = |listed: &Listed| {
            let Listed { user, registered } = listed;
            let (text, number) = match wanted.order {
                UserOrder::Name | UserOrder::Nothing => (None, 0),
                UserOrder::DisplayName => (user.display_name.as_deref().map(text::fold), 0),
                UserOrder::AvatarUrl => (user.avatar_url.clone(), 0),
                UserOrder::IsGuest => (None, user.guest.into()),
                UserOrder::Admin => (None, user.admin.into()),
                UserOrder::Deactivated => (None, user.deactivated.into()),
                UserOrder::Locked => (None, user.locked.into()),
                UserOrder::CreationTs => (None, registered.get()),
                UserOrder::LastSeenTs => (None, user.last_seen_ms.unwrap_or_default()),
            };
            (text, number)
        };
        // They come by their ids, and stay so where they are equal.
        found.sort_by_cached_key(key);
        if wanted.reverse {
            found.reverse();
        }
        let total = found.len();
        let page = found.into_iter().skip(wanted.from).take(wanted.limit);
        (page.collect(), total)
    }

    /// When a record was written, in milliseconds since the Unix epoch.
    pub(crate) fn time_of(&self, offset: Offset) -> Result<u64, ReadError> {
        let records = self.engine.log().read(offset, 1)?;
        Ok(records.first().map_or(0, |record| record.header.time_ms))
    }

    pub(super) fn threepids(&self, user_id: &ruma::UserId) -> Vec<UserThreepid> {
        let own = self.engine.state().threepids.of_user(user_id).into_iter();
        let shown = own.map(|(threepid, owned)| UserThreepid {
            medium: threepid.medium.as_str().to_owned(),
            address: threepid.address,
            added_at: owned.added_ms,
            validated_at: owned.validated_ms,
        });
        shown.collect()
    }

    pub(super) fn external_ids(&self, user_id: &ruma::UserId) -> Vec<ExternalId> {
        let account = self.engine.state().accounts.get(user_id);
        account.map_or_else(Vec::new, |account| {
            let account = account.read();
            let links = account.links.iter().cloned();
            links
                .map(|(auth_provider, external_id)| ExternalId { auth_provider, external_id })
                .collect()
        })
    }

    pub(super) async fn set_profile(
        &self,
        user: &str,
        field: String,
        value: Option<String>,
        origin: Origin,
        reason: Option<String>,
    ) -> Result<Done, ActError> {
        let user_id = self.user_id(user)?;
        let longest = match field.as_str() {
            "displayname" => limits::DISPLAY_NAME_BYTES,
            "avatar_url" => limits::AVATAR_URL_BYTES,
            _ => return Err(ActError::Invalid(format!("There is no field `{field}` to be set."))),
        };
        let value = value.filter(|value| !value.is_empty());
        if value.as_ref().is_some_and(|value| value.len() > longest) {
            return Err(ActError::Invalid(format!("This field has {longest} bytes at most.")));
        }
        let value = value.map(Value::from);
        let of = SetProfile { user_id: user_id.clone(), field, value };
        let set = self.engine.propose(origin.clone(), Because { of, reason }).await;
        let changed = set.map_err(|error| of_user(error, &user_id))?.into_inner();
        if changed {
            profile::spread(&self.engine, &origin, &user_id).await;
        }
        Ok(Done::Changed { user_id, changed })
    }

    pub(super) async fn rename_device(
        &self,
        user: &str,
        device: OwnedDeviceId,
        display_name: String,
        origin: Origin,
        reason: Option<String>,
    ) -> Result<Done, ActError> {
        let user_id = self.user_id(user)?;
        self.must_have(&user_id, &device)?;
        let display_name = short_name(Some(display_name)).map_err(invalid)?;
        let of = RenameDevice { user_id: user_id.clone(), device_id: device, display_name };
        let renamed = self.engine.propose(origin, Because { of, reason }).await;
        renamed.map_err(|error| of_user(error, &user_id))?.into_inner();
        Ok(Done::Changed { user_id, changed: true })
    }

    pub(super) async fn log_in_as(
        &self,
        user: &str,
        expires_ms: Option<u64>,
        origin: Origin,
        reason: Option<String>,
    ) -> Result<Done, ActError> {
        let user_id: OwnedUserId = self.active(user)?;
        if expires_ms.is_some_and(|ms| ms <= self.engine.clock().now_ms()) {
            return Err(ActError::Invalid("This time is over.".to_owned()));
        }
        let device_id = new_device_id();
        let access = Kind::Access.random();
        let tokens = Tokens { access: token::hash(&access), expires_ms, refresh: None };
        let of = Login {
            user_id: user_id.clone(),
            device_id: device_id.clone(),
            display_name: Some(DEVICE_NAME.to_owned()),
            tokens,
            verified: None,
        };
        let logged_in = self.engine.propose(origin, Because { of, reason }).await;
        logged_in.map_err(|error| of_user(error, &user_id))?.into_inner();
        Ok(Done::LoggedInAs { user_id, device_id, access_token: access.into() })
    }
}
