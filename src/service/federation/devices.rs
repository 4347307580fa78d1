//! Fetches and records devices and keys of users of other homeservers (server-server API,
//! "End-to-End Encryption" and "Device Management").

use std::collections::{BTreeMap, BTreeSet};

use ruma::{OwnedDeviceId, OwnedServerName, OwnedUserId, ServerName, UserId};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tracing::debug;

use super::{PduReceiver, memory::Fetch};
use logcabin_base::{canonical::is_readable, limits, text::encoded};
use logcabin_decide::federation::{DeviceListUpdate, NoteDevices};
use logcabin_engine::{self as engine, Engine};
use logcabin_log::ReadError;
use logcabin_outside::federation::{FederationRequest, Unreachable};
use logcabin_record::{
    Command, Offset, Origin,
    command::{DeviceList, PeerDevices},
};
use logcabin_state::{Membership, keys::algorithm};

/// The one-time keys to claim from a homeserver: an algorithm for each device.
pub type KeyClaims = BTreeMap<OwnedUserId, BTreeMap<OwnedDeviceId, String>>;

/// The one-time keys that a homeserver returned.
pub type ClaimedKeys = BTreeMap<OwnedUserId, BTreeMap<String, BTreeMap<String, Value>>>;

type Keys = BTreeMap<String, Box<RawValue>>;

/// An answer with keys of users.
#[derive(Deserialize)]
struct KeyQueryResponse {
    #[serde(default)]
    device_keys: BTreeMap<OwnedUserId, Keys>,
    #[serde(default)]
    master_keys: BTreeMap<OwnedUserId, Box<RawValue>>,
    #[serde(default)]
    self_signing_keys: BTreeMap<OwnedUserId, Box<RawValue>>,
}

/// An answer with a user's devices.
#[derive(Deserialize)]
struct Devices {
    user_id: OwnedUserId,
    stream_id: u64,
    #[serde(default)]
    devices: Vec<Device>,
    #[serde(default)]
    master_key: Option<Box<RawValue>>,
    #[serde(default)]
    self_signing_key: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Device {
    device_id: String,
    #[serde(default)]
    keys: Option<Box<RawValue>>,
}

/// Whether these can be the keys of a device. Clients verify its signature.
pub(super) fn is_device(keys: &RawValue, user_id: &UserId, device_id: &str) -> bool {
    #[derive(Deserialize)]
    struct Identity {
        user_id: String,
        device_id: String,
        #[serde(rename = "keys")]
        _keys: BTreeMap<String, String>,
    }
    let identity = serde_json::from_str::<Identity>(keys.get());
    keys.get().len() <= limits::KEY_BYTES
        && keys.get().starts_with('{')
        && is_readable(keys.get())
        && device_id.len() <= limits::IDENTIFIER_BYTES
        && identity.is_ok_and(|of| of.user_id == user_id.as_str() && of.device_id == device_id)
}

/// Whether this can be a user's key for this use. Clients verify its signatures.
pub(super) fn is_cross_signing(key: &RawValue, user_id: &UserId, usage: &str) -> bool {
    #[derive(Deserialize)]
    struct Key {
        user_id: String,
        usage: Vec<String>,
        keys: BTreeMap<String, String>,
    }
    let parsed = serde_json::from_str::<Key>(key.get());
    key.get().len() <= limits::KEY_BYTES
        && key.get().starts_with('{')
        && is_readable(key.get())
        && parsed.is_ok_and(|of| {
            of.user_id == user_id.as_str()
                && of.usage.iter().any(|of| of == usage)
                && of.keys.len() == 1
        })
}

/// The list of a user without entries that cannot be theirs.
fn checked(mut list: DeviceList, user_id: &UserId) -> DeviceList {
    list.devices.retain(|device_id, keys| is_device(keys, user_id, device_id));
    list.master_key = list.master_key.filter(|key| is_cross_signing(key, user_id, "master"));
    let self_signing = list.self_signing_key;
    list.self_signing_key =
        self_signing.filter(|key| is_cross_signing(key, user_id, "self_signing"));
    list
}

/// The known list of a user of another homeserver, and whether it may be stale.
pub fn known_devices(
    engine: &Engine,
    user_id: &UserId,
) -> Result<Option<(DeviceList, bool)>, ReadError> {
    let Some(known) = engine.state().device_lists.get(user_id) else { return Ok(None) };
    let Some(record) = known.record else { return Ok(None) };
    Ok(match engine.events().command(record)? {
        Some(Command::PeerDevices(PeerDevices { list: Some(list), .. })) => {
            Some((list, known.is_outdated))
        }
        _ => None,
    })
}

impl PduReceiver<'_> {
    /// Whether a user of another homeserver shares a room with users of this one.
    pub(super) fn shares_a_room(&self, user_id: &UserId) -> bool {
        let (state, own) = (self.engine.state(), &self.engine.env().server.name);
        let parts = state.memberships.of(user_id, Offset::MAX).into_iter();
        let mut joined = parts.filter(|part| part.membership == Membership::Join);
        joined.any(|part| state.rooms.get(&part.room_id).is_some_and(|of| of.has_server(own)))
    }

    /// Asks a homeserver for the devices and keys of its users, and records those of `kept`.
    pub async fn ask_devices(
        &self,
        server: &ServerName,
        users: &BTreeSet<OwnedUserId>,
        kept: &BTreeSet<OwnedUserId>,
        asker: &UserId,
        timeout: std::time::Duration,
    ) -> Result<BTreeMap<OwnedUserId, DeviceList>, Unreachable> {
        let fetch = self.federation.device_changes.fetch(kept);
        let as_of = self.engine.head().offset();
        let wanted: BTreeMap<_, [&str; 0]> = users.iter().map(|user_id| (user_id, [])).collect();
        let body = json!({ "device_keys": wanted });
        let path = "/_matrix/federation/v1/user/keys/query";
        let mut found: KeyQueryResponse =
            self.ask_keys(server, path, &body, asker, timeout).await?;
        let mut lists = BTreeMap::new();
        for user_id in users {
            let Some(devices) = found.device_keys.remove(user_id) else { continue };
            let list = DeviceList {
                stream_id: None,
                devices,
                master_key: found.master_keys.remove(user_id),
                self_signing_key: found.self_signing_keys.remove(user_id),
            };
            let list = checked(list, user_id);
            if list.bytes() <= limits::REMOTE_DEVICES_BYTES {
                lists.insert(user_id.clone(), list);
            }
        }
        let said = lists.iter().filter(|(user_id, _)| kept.contains(*user_id));
        let said = said.map(|(user_id, list)| DeviceListUpdate {
            user_id: user_id.clone(),
            changed: false,
            list: Some(list.clone()),
            as_of,
        });
        if let Err(error) = self.note_fetched(server, said.collect(), fetch).await {
            debug!(%server, %error, "the devices of a homeserver's users are not recorded");
        }
        Ok(lists)
    }

    async fn ask_keys<T: serde::de::DeserializeOwned>(
        &self,
        server: &ServerName,
        path: &str,
        body: &Value,
        asker: &UserId,
        timeout: std::time::Duration,
    ) -> Result<T, Unreachable> {
        let mut question = FederationRequest::post(path, body);
        question.timeout = timeout;
        question.max_bytes = limits::REMOTE_KEYS_BYTES;
        if self.federation.sender.is_failing(server) {
            question.timeout = timeout.min(limits::REMOTE_KEYS_FAILING);
        }
        let places = async {
            let of_asker = self.federation.key_askers.take(asker.to_owned()).await;
            (of_asker, self.federation.key_answers.acquire().await)
        };
        let places = tokio::time::timeout(question.timeout, places).await;
        let _places = places.map_err(|_| Unreachable::Late)?;
        let answer = self.federation.client.send(server, question).await?.json()?;
        self.federation.sender.is_back(server);
        Ok(answer)
    }

    /// Claims one-time keys of a homeserver's users.
    pub async fn claim_keys(
        &self,
        server: &ServerName,
        wanted: &KeyClaims,
        asker: &UserId,
        timeout: std::time::Duration,
    ) -> Result<ClaimedKeys, Unreachable> {
        #[derive(Deserialize)]
        struct ClaimResponse {
            #[serde(default)]
            one_time_keys: BTreeMap<OwnedUserId, BTreeMap<String, Keys>>,
        }
        let path = "/_matrix/federation/v1/user/keys/claim";
        let body = json!({ "one_time_keys": wanted });
        let claimed: ClaimResponse = self.ask_keys(server, path, &body, asker, timeout).await?;
        let mut handed_out = ClaimedKeys::new();
        for (user_id, devices) in claimed.one_time_keys {
            let Some(of_user) = wanted.get(&user_id) else { continue };
            for (device_id, keys) in devices {
                let Some(wanted) = of_user.get::<ruma::DeviceId>(device_id.as_str().into()) else {
                    continue;
                };
                let fits = |(id, key): &(String, Box<RawValue>)| {
                    algorithm(id) == wanted
                        && id.len() <= limits::EVENT_FIELD_BYTES
                        && key.get().len() <= limits::KEY_BYTES
                        && is_readable(key.get())
                };
                // One for each device.
                let Some((id, key)) = keys.into_iter().find(fits) else { continue };
                let key = serde_json::from_str(key.get()).unwrap_or_default();
                let of_user = handed_out.entry(user_id.clone()).or_default();
                of_user.insert(device_id, BTreeMap::from([(id, key)]));
            }
        }
        Ok(handed_out)
    }

    /// Records a homeserver's answer. Returns whether all of it was recorded.
    pub(super) async fn note_devices(
        &self,
        server: &ServerName,
        users: Vec<DeviceListUpdate>,
    ) -> Result<bool, engine::ProposeError> {
        let mut all = true;
        for users in users.chunks(limits::DEVICE_LISTS_AT_ONCE) {
            let noted = NoteDevices { server: server.to_owned(), users: users.to_vec() };
            let noted = self.engine.propose(Origin::server(), noted).await?;
            all &= self.charged(server, noted);
        }
        Ok(all)
    }

    /// Fetches the stale lists of a homeserver's users, until a fetch fails.
    pub async fn fetch_outdated(&self, server: &ServerName) {
        let mut seen = BTreeSet::new();
        loop {
            let outdated = self
                .engine
                .state()
                .device_lists
                .outdated(server, 20 * limits::DEVICE_LISTS_FETCHED);
            let next = outdated
                .into_iter()
                .find(|user_id| !seen.contains(user_id) && self.shares_a_room(user_id));
            // A list that never stops changing is fetched when somebody asks for it.
            if let Some(user_id) = &next
                && !self.federation.device_changes.admits(user_id)
            {
                seen.insert(user_id.clone());
                continue;
            }
            let Some(user_id) = next.filter(|_| seen.len() < limits::DEVICE_LISTS_FETCHED) else {
                return;
            };
            if let Err(error) = self.fetch_devices(server, &user_id).await {
                debug!(%user_id, %error, "the user's devices are fetched later");
                return;
            }
            seen.insert(user_id);
        }
    }

    async fn fetch_devices(
        &self,
        server: &ServerName,
        user_id: &OwnedUserId,
    ) -> Result<(), Unreachable> {
        let fetch = self.federation.device_changes.fetch([user_id]);
        let as_of = self.engine.head().offset();
        let path = format!("/_matrix/federation/v1/user/devices/{}", encoded(user_id.as_str()));
        let mut question = FederationRequest::get(path);
        question.max_bytes = limits::REMOTE_DEVICES_BYTES;
        let _place = self.federation.device_fetches.acquire().await;
        let found: Devices = self.federation.client.send(server, question).await?.json()?;
        if found.user_id != *user_id {
            return Err(Unreachable::Unexpected("devices of another user".to_owned()));
        }
        let devices = found.devices.into_iter();
        let list = DeviceList {
            stream_id: Some(found.stream_id),
            devices: devices.filter_map(|of| Some((of.device_id, of.keys?))).collect(),
            master_key: found.master_key,
            self_signing_key: found.self_signing_key,
        };
        let list = checked(list, user_id);
        let known = known_devices(self.engine, user_id).ok().flatten();
        let changed = known.is_none_or(|(known, _)| !known.is_same(&list));
        let said = DeviceListUpdate { user_id: user_id.clone(), changed, list: Some(list), as_of };
        let noted = self.note_fetched(server, vec![said], fetch).await;
        noted.map_err(|error| Unreachable::Unexpected(error.to_string()))
    }

    /// Records fetched lists. Those with unrecorded changes since the request become stale, so they
    /// are fetched again later.
    async fn note_fetched(
        &self,
        server: &ServerName,
        mut lists: Vec<DeviceListUpdate>,
        mut fetch: Fetch,
    ) -> Result<(), engine::ProposeError> {
        let mut outdated = || -> Vec<_> {
            let of = |user_id| DeviceListUpdate {
                user_id,
                changed: true,
                list: None,
                as_of: Offset::ZERO,
            };
            fetch.passed_over().into_iter().map(of).collect()
        };
        // Only news since the request makes a list stale, including unrecorded changes.
        let is_last = |said: &DeviceListUpdate| {
            let asked = lists.iter().find(|list| list.user_id == said.user_id);
            let known = self.engine.state().device_lists.get(&said.user_id);
            asked.is_some_and(|asked| known.is_none_or(|known| known.last <= asked.as_of))
        };
        let now_outdated: Vec<_> = outdated().into_iter().filter(is_last).collect();
        lists.extend(now_outdated);
        self.note_devices(server, lists).await?;
        // From here on, a change finds a list that is up to date.
        self.note_devices(server, outdated()).await?;
        Ok(())
    }
}

/// Users by their homeservers.
pub fn by_server<T>(
    users: impl IntoIterator<Item = (OwnedUserId, T)>,
) -> BTreeMap<OwnedServerName, BTreeMap<OwnedUserId, T>> {
    let mut servers: BTreeMap<OwnedServerName, BTreeMap<_, _>> = BTreeMap::new();
    for (user_id, of) in users {
        servers.entry(user_id.server_name().to_owned()).or_default().insert(user_id, of);
    }
    servers
}
