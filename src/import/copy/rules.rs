//! What comes along only with something else: what is of an account, a device or an OAuth grant.
//! The check before a copy goes by the same rules.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, Hash, RandomState},
};

use ruma::{RoomId, RoomVersionId, ServerName, UserId};

use super::convert::{oauth, sessions};
use crate::facts::{Fact, OauthGrant, Room};

/// Why something does not come along, if that of which it is does not.
pub(super) const NO_ACCOUNT: &str = "its user has no account";
const NO_DEVICE: &str = "its device does not exist";
pub(super) const NO_CLIENT: &str = "its client does not come along";
const NO_GRANT: &str = "its session does not come along";
pub(super) const NO_DEVICE_NAMED: &str = "tokens without a device do not come along";

/// Other reasons for which rows do not come along.
pub(super) const NO_SUBSCRIPTIONS: &str = "this server has no subscriptions of threads";
pub(super) const NOT_IN_ITS_ROOM: &str = "the event is not in its room";
pub(super) const NO_KEYS_LEFT: &str =
    "its user has no device with keys left: other servers learn of that when there is one";
pub(super) const PARTIAL: &str = "its room is only known in part";
pub(super) const STILL_PARTIAL: &str =
    "the source has not been told of all its members; let it finish first";

/// The accounts, devices and grants that come along. Names are kept as numbers: a source has many.
#[derive(Debug, Default)]
pub(super) struct Owners {
    numbers: RandomState,
    accounts: HashSet<u64>,
    devices: HashSet<u64>,
    clients: HashSet<String>,
    /// Grants, with the device that each is of.
    grants: HashMap<String, Option<u64>>,
}

/// Of what a fact is.
enum Owner<'a> {
    Account(&'a str),
    Device(&'a str, &'a str),
    Grant(&'a str),
}

/// Of what a fact is that is not for everybody. What somebody did comes along without them: events,
/// receipts, reports and files.
fn owner(fact: &Fact) -> Option<Owner<'_>> {
    use Owner::{Account, Device, Grant};
    Some(match fact {
        Fact::AccessToken(fact) => match (&fact.grant_id, &fact.device_id) {
            (Some(grant_id), _) => Grant(grant_id),
            (None, Some(device_id)) => Device(&fact.user_id, device_id),
            (None, None) => return None,
        },
        Fact::RefreshToken(fact) => match (&fact.grant_id, &fact.device_id) {
            (Some(grant_id), _) => Grant(grant_id),
            (None, Some(device_id)) => Device(&fact.user_id, device_id),
            (None, None) => return None,
        },
        Fact::DeviceKeys(fact) => Device(&fact.user_id, &fact.device_id),
        Fact::OneTimeKey(fact) => Device(&fact.user_id, &fact.device_id),
        Fact::FallbackKey(fact) => Device(&fact.user_id, &fact.device_id),
        Fact::ToDevice(fact) => Device(&fact.user_id, &fact.device_id),
        Fact::Device(fact) => Account(&fact.user_id),
        Fact::DehydratedDevice(fact) => Account(&fact.user_id),
        Fact::OauthGrant(fact) => Account(&fact.user_id),
        Fact::Profile(fact) => Account(&fact.user_id),
        Fact::Threepid(fact) => Account(&fact.user_id),
        Fact::ThreepidBinding(fact) => Account(&fact.user_id),
        Fact::ExternalId(fact) => Account(&fact.user_id),
        Fact::CrossSigningKey(fact) => Account(&fact.user_id),
        Fact::KeySignature(fact) => Account(&fact.user_id),
        Fact::KeyBackup(fact) => Account(&fact.user_id),
        Fact::BackedUpKey(fact) => Account(&fact.user_id),
        Fact::PushRule(fact) => Account(&fact.user_id),
        Fact::PushRuleChange(fact) => Account(&fact.user_id),
        Fact::Pusher(fact) => Account(&fact.user_id),
        Fact::Filter(fact) => Account(&fact.user_id),
        Fact::Tag(fact) => Account(&fact.user_id),
        Fact::AccountData(fact) => Account(&fact.user_id),
        Fact::Presence(fact) => Account(&fact.user_id),
        Fact::DelayedEvent(fact) => Account(&fact.user_id),
        Fact::DeviceChange(fact) => Account(&fact.user_id),
        _ => return None,
    })
}

impl Owners {
    fn number(&self, name: impl Hash) -> u64 {
        self.numbers.hash_one(name)
    }

    /// Takes note of a fact. Returns why it does not come along, if that is because of what it is
    /// of.
    pub(super) fn note(&mut self, fact: &Fact, own: &ServerName) -> Option<&'static str> {
        match fact {
            Fact::Account(account) => {
                let user_id = UserId::parse(&*account.user_id).ok();
                if user_id.is_some_and(|user_id| user_id.server_name() == own) {
                    let number = self.number(&*account.user_id);
                    self.accounts.insert(number);
                }
                return None;
            }
            Fact::OauthClient(client) => {
                if oauth::client(client.clone()).is_ok() {
                    self.clients.insert(client.client_id.clone());
                }
                return None;
            }
            Fact::AccessToken(token) if token.grant_id.is_none() && token.device_id.is_none() => {
                return Some(NO_DEVICE_NAMED);
            }
            Fact::RefreshToken(token) if token.grant_id.is_none() && token.device_id.is_none() => {
                return Some(NO_DEVICE_NAMED);
            }
            _ => {}
        }
        let refused = match owner(fact)? {
            Owner::Account(user_id) => (!self.has_account(user_id)).then_some(NO_ACCOUNT),
            Owner::Device(user_id, device_id) => {
                let device = self.number((user_id, device_id));
                (!self.devices.contains(&device)).then_some(NO_DEVICE)
            }
            Owner::Grant(grant_id) => match self.grants.get(grant_id) {
                None => Some(NO_GRANT),
                Some(Some(device)) if !self.devices.contains(device) => Some(NO_DEVICE),
                Some(_) => None,
            },
        };
        if refused.is_some() {
            return refused;
        }
        match fact {
            Fact::Device(device) => {
                let number = self.number((&*device.user_id, &*device.device_id));
                let is_new = self.devices.insert(number);
                (!is_new).then_some("the user has another device of this id")
            }
            Fact::OauthGrant(grant) => self.note_grant(grant),
            _ => None,
        }
    }

    fn has_account(&self, user_id: &str) -> bool {
        self.accounts.contains(&self.number(user_id))
    }

    fn note_grant(&mut self, grant: &OauthGrant) -> Option<&'static str> {
        if !self.clients.contains(&grant.client_id) {
            return Some(NO_CLIENT);
        }
        // One whose scope cannot be granted is left with the reason, and its tokens with it.
        let scope = sessions::scope_of(grant).ok()?;
        let device = scope.device.map(|device_id| {
            let number = self.number((&*grant.user_id, device_id.as_str()));
            // A device that is named as the grant is, is made for it.
            if device_id.as_str() == grant.grant_id {
                self.devices.insert(number);
            }
            number
        });
        self.grants.insert(grant.grant_id.clone(), device);
        None
    }
}

/// Why no event of a room can come along. The first part is the same for many rooms.
pub(super) fn room_fault(room: &Room) -> Option<(&'static str, String)> {
    if let Err(error) = RoomId::parse(&*room.room_id) {
        return Some(("no room id", error.to_string()));
    }
    let Some(version) = room.version.as_deref() else {
        return Some(("the room's version is not known", "nothing says it".to_owned()));
    };
    let rules = RoomVersionId::try_from(version).ok().and_then(|version| version.rules());
    rules.is_none().then(|| {
        ("the room has a version that is unknown here", format!("`{}`", version.escape_debug()))
    })
}
