//! Keys for end-to-end encryption: of devices, for cross-signing, one-time and fallback keys
//! (client-server API, "End-to-End Encryption"). The keys themselves are in the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use dashmap::DashMap;
use parking_lot::RwLock;
use ruma::{DeviceId, OwnedDeviceId, OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::{index::hash, serializers};
use logcabin_base::planted::{self, Fault};
use logcabin_record::{
    Offset,
    command::{KeysClaim, KeysCrossSign, KeysSign, KeysUpload},
};

/// The keys of one user.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct UserKeys {
    /// Devices that have uploaded keys.
    pub devices: BTreeMap<OwnedDeviceId, DeviceKeys>,
    /// The record that holds the master key.
    pub master_key: Option<Offset>,
    /// The record that holds the self-signing key.
    pub self_signing_key: Option<Offset>,
    /// The record that holds the user-signing key.
    pub user_signing_key: Option<Offset>,
    /// By signer and target (a device id or a public key): the records with the signatures.
    pub signatures: BTreeMap<(OwnedUserId, String), Vec<Offset>>,
}

/// The keys of one device.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct DeviceKeys {
    /// The record that holds the identity keys.
    pub identity: Option<Offset>,
    /// The remaining one-time keys, by algorithm: the record and the id of each.
    pub one_time: BTreeMap<String, BTreeSet<(Offset, String)>>,
    /// The fallback keys, by algorithm.
    pub fallback: BTreeMap<String, Fallback>,
    /// Hashes of the ids of handed-out one-time keys: none of them is accepted again.
    claimed: BTreeSet<u64>,
    /// The last record that changed the number of remaining keys.
    pub counts_changed: Offset,
}

/// A fallback key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fallback {
    pub key_id: String,
    /// The record that holds it.
    pub record: Offset,
    /// Whether it was handed out.
    pub used: bool,
}

impl DeviceKeys {
    /// The number of remaining one-time keys by algorithm. `signed_curve25519` is always included,
    /// so that a client sees when it has none.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts: BTreeMap<_, _> =
            self.one_time.iter().map(|(alg, keys)| (alg.clone(), keys.len() as u64)).collect();
        counts.entry("signed_curve25519".to_owned()).or_default();
        counts
    }

    /// The algorithms with an unused fallback key.
    pub fn unused_fallback(&self) -> Vec<String> {
        let unused = self.fallback.iter().filter(|(_, fallback)| !fallback.used);
        unused.map(|(algorithm, _)| algorithm.clone()).collect()
    }

    /// The record of the one-time key with this id, if it remains.
    pub fn one_time_key(&self, key_id: &str) -> Option<Offset> {
        let keys = self.one_time.get(algorithm(key_id))?;
        keys.iter().find(|(_, id)| id == key_id).map(|(record, _)| *record)
    }

    /// Whether the one-time key of this id was handed out.
    pub fn was_claimed(&self, key_id: &str) -> bool {
        self.claimed.contains(&hash(&[key_id]))
    }
}

pub fn algorithm(key_id: &str) -> &str {
    key_id.split_once(':').map_or(key_id, |(algorithm, _)| algorithm)
}

/// The keys of all users of this server.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Keys {
    #[serde(with = "serializers::by_key")]
    users: DashMap<OwnedUserId, Arc<RwLock<UserKeys>>>,
    #[serde(with = "serializers::locked")]
    changes: RwLock<Vec<Change>>,
    /// For each user, the changes of devices that other homeservers are told of.
    #[serde(with = "serializers::locked")]
    told: RwLock<BTreeMap<OwnedUserId, Vec<Offset>>>,
}

/// A change of a user's devices or cross-signing keys.
#[derive(Debug, Serialize, Deserialize)]
struct Change {
    offset: Offset,
    of: OwnedUserId,
    /// For a signature by another user: that user. Only these two see it. `None` for changes that
    /// everyone sees.
    signed_by: Option<OwnedUserId>,
}

impl Keys {
    pub fn get(&self, user_id: &UserId) -> Option<Arc<RwLock<UserKeys>>> {
        self.users.get(user_id).map(|keys| Arc::clone(&keys))
    }

    /// Everyone with keys, each with the devices that have keys, in order.
    pub fn devices(&self) -> Vec<(OwnedUserId, Vec<OwnedDeviceId>)> {
        let of = |keys: &RwLock<UserKeys>| keys.read().devices.keys().cloned().collect();
        let mut users: Vec<_> =
            self.users.iter().map(|entry| (entry.key().clone(), of(entry.value()))).collect();
        users.sort_unstable();
        users
    }

    /// Calls `look` with a device's keys; `None` if it has none.
    pub fn of_device<T>(
        &self,
        user_id: &UserId,
        device_id: &DeviceId,
        look: impl FnOnce(&DeviceKeys) -> T,
    ) -> Option<T> {
        let keys = self.get(user_id)?;
        let keys = keys.read();
        keys.devices.get(device_id).map(look)
    }

    /// The users whose devices changed after `since`, up to and including `to`, as far as `user_id`
    /// may see it.
    pub fn changed_between(
        &self,
        user_id: &UserId,
        since: Offset,
        to: Offset,
    ) -> BTreeSet<OwnedUserId> {
        let changes = self.changes.read();
        let from = changes.partition_point(|change| change.offset <= since);
        let changed = changes[from..].iter().take_while(|change| change.offset <= to);
        let is_seen = |change: &&Change| {
            change.signed_by.as_ref().is_none_or(|by| *by == user_id || change.of == user_id)
        };
        changed.filter(is_seen).map(|change| change.of.clone()).collect()
    }

    /// The changes of a user's devices that other homeservers are told of: the last one before
    /// `at`, and whether there is one at `at`.
    pub fn told(&self, user_id: &UserId, at: Offset) -> (Option<Offset>, bool) {
        let told = self.told.read();
        let Some(changes) = told.get(user_id) else { return (None, false) };
        let before = changes.partition_point(|change| *change < at);
        let last = before.checked_sub(1).and_then(|last| changes.get(last)).copied();
        (last, changes.get(before) == Some(&at))
    }

    /// The users whose devices or keys changed after `since`, as other homeservers see them, each
    /// with the last such change. A user may be named more than once.
    pub fn changed_since(&self, since: Offset) -> Vec<(OwnedUserId, Offset)> {
        let changes = self.changes.read();
        let from = changes.partition_point(|change| change.offset <= since);
        let seen = changes[from..].iter().filter(|change| change.signed_by.is_none());
        seen.map(|change| (change.of.clone(), change.offset)).collect()
    }

    fn tell(&self, offset: Offset, user_id: &UserId) {
        self.told.write().entry(user_id.to_owned()).or_default().push(offset);
    }

    fn note(&self, offset: Offset, of: OwnedUserId, signed_by: Option<OwnedUserId>) {
        self.changes.write().push(Change { offset, of, signed_by });
    }

    /// Returns whether others must query the user's devices again.
    pub(super) fn upload(&self, offset: Offset, body: KeysUpload) -> bool {
        let renewed = body.device_keys.is_some();
        self.change(&body.user_id, |keys| {
            let device = keys.devices.entry(body.device_id).or_default();
            if renewed {
                device.identity = Some(offset);
            }
            for key_id in body.one_time_keys.into_keys() {
                let left = device.one_time.entry(algorithm(&key_id).to_owned()).or_default();
                left.insert((offset, key_id));
                device.counts_changed = offset;
            }
            for key_id in body.fallback_keys.into_keys() {
                let algorithm = algorithm(&key_id).to_owned();
                device.fallback.insert(algorithm, Fallback { key_id, record: offset, used: false });
                device.counts_changed = offset;
            }
        });
        if renewed {
            self.tell(offset, &body.user_id);
            self.note(offset, body.user_id, None);
        }
        renewed
    }

    pub(super) fn claim(&self, offset: Offset, body: &KeysClaim) {
        self.change(&body.user_id, |keys| {
            let Some(device) = keys.devices.get_mut(&body.device_id) else { return };
            device.counts_changed = offset;
            let algorithm = algorithm(&body.key_id);
            if body.fallback {
                let fallback = device.fallback.get_mut(algorithm);
                if let Some(fallback) = fallback.filter(|f| f.key_id == body.key_id) {
                    fallback.used = true;
                }
                return;
            }
            device.claimed.insert(hash(&[&body.key_id]));
            if planted::has(Fault::KeyGivenAgain) {
                return;
            }
            if let Some(left) = device.one_time.get_mut(algorithm) {
                left.retain(|(_, key_id)| *key_id != body.key_id);
                if left.is_empty() {
                    device.one_time.remove(algorithm);
                }
            }
        });
    }

    /// Returns the users with keys.
    pub(super) fn drop_all(&self, offset: Offset) -> Vec<OwnedUserId> {
        let users: Vec<_> = self.devices().into_iter().map(|(user_id, _)| user_id).collect();
        for user_id in &users {
            self.change(user_id, |keys| {
                for device in keys.devices.values_mut() {
                    let left = std::mem::take(&mut device.one_time);
                    let left = left.values().flatten().map(|(_, key_id)| hash(&[key_id]));
                    device.claimed.extend(left);
                    device.fallback.values_mut().for_each(|fallback| fallback.used = true);
                    device.counts_changed = offset;
                }
            });
            self.note(offset, user_id.clone(), None);
        }
        users
    }

    /// Returns whether the device has keys, so that others know it by its name.
    pub(super) fn rename_device(
        &self,
        offset: Offset,
        user_id: &UserId,
        device_id: &DeviceId,
    ) -> bool {
        let has_keys = self.of_device(user_id, device_id, |device| device.identity.is_some());
        let has_keys = has_keys.unwrap_or_default();
        if has_keys {
            self.note(offset, user_id.to_owned(), None);
        }
        has_keys
    }

    /// Returns whether others must query the user's keys again: a user-signing key is visible to
    /// its owner only.
    pub(super) fn cross_sign(&self, offset: Offset, body: KeysCrossSign) -> bool {
        let is_seen = body.master_key.is_some() || body.self_signing_key.is_some();
        self.change(&body.user_id, |keys| {
            let set = |is_new: bool, key: &mut Option<Offset>| {
                if is_new {
                    *key = Some(offset);
                }
            };
            set(body.master_key.is_some(), &mut keys.master_key);
            set(body.self_signing_key.is_some(), &mut keys.self_signing_key);
            set(body.user_signing_key.is_some(), &mut keys.user_signing_key);
        });
        if is_seen {
            self.note(offset, body.user_id, None);
        }
        is_seen
    }

    pub(super) fn sign(&self, offset: Offset, body: KeysSign) {
        let is_device =
            |name: &String| self.of_device(&body.user_id, name.as_str().into(), |_| ()).is_some();
        if body.by == body.user_id && body.signatures.keys().any(is_device) {
            self.tell(offset, &body.user_id);
        }
        self.change(&body.user_id, |keys| {
            for signed in body.signatures.into_keys() {
                keys.signatures.entry((body.by.clone(), signed)).or_default().push(offset);
            }
        });
        let signed_by = Some(body.by).filter(|by| *by != body.user_id);
        self.note(offset, body.user_id, signed_by);
    }

    /// Returns whether any of the devices had keys.
    pub(super) fn remove_devices(
        &self,
        offset: Offset,
        user_id: &UserId,
        devices: &[OwnedDeviceId],
    ) -> bool {
        let Some(keys) = self.get(user_id) else { return false };
        let mut keys = keys.write();
        let mut removed = false;
        for device_id in devices {
            removed |= keys.devices.remove(device_id).is_some();
            let signed = device_id.as_str();
            keys.signatures.retain(|(_, what), _| what != signed);
        }
        if removed {
            self.tell(offset, user_id);
            self.note(offset, user_id.to_owned(), None);
        }
        removed
    }

    /// Removes all keys of a deactivated user. Returns whether there were any.
    pub(super) fn forget(&self, offset: Offset, user_id: &UserId) -> bool {
        self.told.write().remove(user_id);
        if self.users.remove(user_id).is_none() {
            return false;
        }
        self.note(offset, user_id.to_owned(), None);
        true
    }

    /// Forgets the changes that erased records told of, since a replay cannot find them. Their
    /// users were deactivated, which is a later change of each.
    pub(super) fn forget_changes(&self, runs: impl Iterator<Item = (Offset, Offset)>) {
        let mut changes = self.changes.write();
        for (first, last) in runs {
            let from = changes.partition_point(|change| change.offset < first);
            let to = changes.partition_point(|change| change.offset <= last);
            changes.drain(from..to.max(from));
        }
    }

    /// Removes all signatures by an erased user.
    pub(super) fn forget_signer(&self, user_id: &UserId) {
        for keys in &self.users {
            keys.value().write().signatures.retain(|(by, _), _| by != user_id);
        }
    }

    fn change(&self, user_id: &UserId, change: impl FnOnce(&mut UserKeys)) {
        let keys = match self.get(user_id) {
            Some(keys) => keys,
            None => Arc::clone(&self.users.entry(user_id.to_owned()).or_default()),
        };
        change(&mut keys.write());
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        let mut users: Vec<_> =
            self.users.iter().map(|e| (e.key().clone(), Arc::clone(e.value()))).collect();
        users.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for (user_id, keys) in users {
            digest.add(&user_id);
            digest.add(&*keys.read());
        }
        digest.add(&*self.changes.read());
        digest.add(&*self.told.read());
    }
}

/// The formats of earlier versions in snapshots.
pub(super) mod former {
    use super::*;

    /// Version 2, without what other homeservers were told.
    #[derive(Deserialize)]
    pub(crate) struct V2 {
        #[serde(with = "serializers::by_key")]
        users: DashMap<OwnedUserId, Arc<RwLock<UserKeys>>>,
        #[serde(with = "serializers::locked")]
        changes: RwLock<Vec<Change>>,
    }

    impl From<V2> for Keys {
        fn from(V2 { users, changes }: V2) -> Self {
            Self { users, changes, told: RwLock::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use ruma::{device_id, user_id};
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn dropped_keys_are_gone_and_not_accepted_again_and_everyone_is_told() {
        let keys = Keys::default();
        let (ann, device) = (user_id!("@ann:test"), device_id!("D"));
        let key = || RawValue::from_string("{}".to_owned()).expect("JSON");
        let upload = |names: &[&str], fallback: &str| KeysUpload {
            user_id: ann.to_owned(),
            device_id: device.to_owned(),
            device_keys: None,
            one_time_keys: names.iter().map(|name| (format!("alg:{name}"), key())).collect(),
            fallback_keys: BTreeMap::from([(format!("alg:{fallback}"), key())]),
        };
        keys.upload(Offset::new(1), upload(&["a", "b"], "f"));
        let look = |what: fn(&DeviceKeys) -> bool| keys.of_device(ann, device, what) == Some(true);
        assert!(look(|device| device.one_time["alg"].len() == 2 && !device.fallback["alg"].used));
        assert_eq!(keys.drop_all(Offset::new(2)), [ann]);
        assert!(look(|device| device.one_time.is_empty() && device.unused_fallback().is_empty()));
        assert!(look(|device| device.was_claimed("alg:a") && device.was_claimed("alg:b")));
        assert!(look(|device| device.counts_changed == Offset::new(2)));
        let changed = keys.changed_between(user_id!("@bob:test"), Offset::new(1), Offset::new(2));
        assert_eq!(changed, BTreeSet::from([ann.to_owned()]));
        keys.upload(Offset::new(3), upload(&["c"], "g"));
        assert!(look(|device| device.one_time["alg"].len() == 1 && !device.fallback["alg"].used));
    }
}
