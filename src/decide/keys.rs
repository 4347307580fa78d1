//! Keys for end-to-end encryption: uploads, claims, cross-signing, signatures.

use std::collections::{BTreeMap, BTreeSet};

use ruma::{DeviceId, OwnedDeviceId, OwnedUserId, UserId};
use serde_json::{Value, value::RawValue};

use super::{Commit, Proposal, Refusal};
use logcabin_base::{
    limits,
    planted::{self, Fault},
};
use logcabin_record::{
    Command, Offset, Stream,
    command::{KeysClaim, KeysCrossSign, KeysSign, KeysUpload},
};
use logcabin_state::keys::{DeviceKeys, algorithm};

/// Upload keys of a device.
#[derive(Debug)]
pub struct UploadKeys {
    pub user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
    /// The identity keys.
    pub device_keys: Option<Box<RawValue>>,
    /// One-time keys by id.
    pub one_time_keys: BTreeMap<String, Box<RawValue>>,
    /// Fallback keys by id.
    pub fallback_keys: BTreeMap<String, Box<RawValue>>,
}

impl Proposal for UploadKeys {
    /// How many one-time keys of each algorithm the device has.
    type Outcome = BTreeMap<String, u64>;

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Self::Outcome, Refusal> {
        let env = commit.env;
        // A device that was removed meanwhile must not reappear to others.
        let account = env.state.accounts.get(&self.user_id);
        if account.is_none_or(|account| account.read().device(&self.device_id).is_none()) {
            return Err(Refusal::UnknownToken);
        }
        let keys = env.state.keys.get(&self.user_id);
        let keys = keys.as_ref().map(|keys| keys.read());
        let none = DeviceKeys::default();
        let device = keys.as_ref().and_then(|k| k.devices.get(&self.device_id)).unwrap_or(&none);
        let mut upload = KeysUpload {
            user_id: self.user_id.clone(),
            device_id: self.device_id.clone(),
            device_keys: None,
            one_time_keys: BTreeMap::new(),
            fallback_keys: BTreeMap::new(),
        };
        if let Some(new) = &self.device_keys {
            let known = device.identity.map(|offset| stored(commit, offset)).transpose()?.flatten();
            let known = known.and_then(|upload| upload.device_keys);
            if known.as_ref().is_some_and(|known| have_other_keys(known, new)) {
                return Err(Refusal::InvalidParam(
                    "This device has other identity keys already. With new ones, log in as a new device."
                        .to_owned(),
                ));
            }
            let is_signed =
                |keys: &RawValue| has_own_signature(keys, &self.user_id, &self.device_id);
            if known.as_ref().is_some_and(|known| is_signed(known)) && !is_signed(new) {
                return Err(Refusal::InvalidParam(
                    "This device has signed its keys before.".to_owned(),
                ));
            }
            if !known.is_some_and(|known| same(&known, new)) {
                upload.device_keys = Some(new.clone());
            }
        }
        for (key_id, key) in &self.one_time_keys {
            if let Some(offset) = device.one_time_key(key_id) {
                let known =
                    stored(commit, offset)?.and_then(|mut u| u.one_time_keys.remove(key_id));
                if !known.is_some_and(|known| same_key(&known, key)) {
                    return Err(Refusal::InvalidParam(format!(
                        "There is a different one-time key `{key_id}` already."
                    )));
                }
            } else if !device.was_claimed(key_id) {
                // A key that was handed out is never accepted again.
                upload.one_time_keys.insert(key_id.clone(), key.clone());
            }
        }
        let left: usize = device.one_time.values().map(BTreeSet::len).sum();
        if left + upload.one_time_keys.len() > limits::ONE_TIME_KEYS {
            return Err(Refusal::InvalidParam("There are too many one-time keys.".to_owned()));
        }
        for (key_id, key) in &self.fallback_keys {
            let known = device.fallback.get(algorithm(key_id)).filter(|f| f.key_id == *key_id);
            let known =
                known.map(|fallback| stored(commit, fallback.record)).transpose()?.flatten();
            let known = known.and_then(|mut upload| upload.fallback_keys.remove(key_id));
            if !known.is_some_and(|known| same(&known, key)) {
                upload.fallback_keys.insert(key_id.clone(), key.clone());
            }
        }
        let mut algorithms: BTreeSet<&str> = device.fallback.keys().map(String::as_str).collect();
        algorithms.extend(self.fallback_keys.keys().map(|key_id| algorithm(key_id)));
        if algorithms.len() > limits::FALLBACK_KEYS {
            return Err(Refusal::InvalidParam("There are too many fallback keys.".to_owned()));
        }
        let mut counts = device.counts();
        for key_id in upload.one_time_keys.keys() {
            *counts.entry(algorithm(key_id).to_owned()).or_default() += 1;
        }
        drop(keys);
        let is_empty = upload.device_keys.is_none()
            && upload.one_time_keys.is_empty()
            && upload.fallback_keys.is_empty();
        if !is_empty {
            commit.append(self.stream(), upload);
        }
        Ok(counts)
    }
}

pub(super) fn stored(commit: &Commit<'_>, offset: Offset) -> Result<Option<KeysUpload>, Refusal> {
    match commit.env.events.command(offset)? {
        Some(Command::KeysUpload(upload)) => Ok(Some(upload)),
        _ => Ok(None),
    }
}

/// Whether the signatures of a device's keys name one of its own.
fn has_own_signature(keys: &RawValue, user_id: &UserId, device_id: &DeviceId) -> bool {
    let keys: Value = serde_json::from_str(keys.get()).unwrap_or_default();
    keys["signatures"][user_id.as_str()].get(format!("ed25519:{device_id}")).is_some()
}

/// Whether two one-time keys are the same, whoever has signed them.
fn same_key(a: &RawValue, b: &RawValue) -> bool {
    let parsed = |raw: &RawValue| {
        let mut key = serde_json::from_str::<Value>(raw.get()).ok()?;
        if let Some(members) = key.as_object_mut() {
            members.remove("signatures");
        }
        Some(key)
    };
    a.get() == b.get() || parsed(a).is_some_and(|a| parsed(b) == Some(a))
}

/// Whether two texts are the same JSON.
pub(super) fn same(a: &RawValue, b: &RawValue) -> bool {
    let parsed = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).ok();
    a.get() == b.get() || parsed(a).is_some_and(|a| parsed(b) == Some(a))
}

/// Whether `new` has other public keys than `known`. Others may trust the known ones and have
/// sessions with them. Entries that earlier versions accepted without any public key can be
/// replaced.
fn have_other_keys(known: &RawValue, new: &RawValue) -> bool {
    let keys = |raw: &RawValue| {
        let parsed = serde_json::from_str::<Value>(raw.get()).unwrap_or_default();
        parsed["keys"].as_object().cloned().unwrap_or_default()
    };
    let known = keys(known);
    !known.is_empty() && known != keys(new)
}

/// Hand out keys of one user's devices, one key for each device.
#[derive(Debug)]
pub struct ClaimKeys {
    /// The owner of the keys.
    pub user_id: OwnedUserId,
    /// The devices, each with the requested algorithm.
    pub wanted: Vec<(OwnedDeviceId, String)>,
}

/// A key that was handed out.
#[derive(Clone, Debug)]
pub struct ClaimedKey {
    pub device_id: OwnedDeviceId,
    pub key_id: String,
    /// The record that holds it.
    pub record: Offset,
    /// Whether it is the fallback key.
    pub fallback: bool,
}

impl Proposal for ClaimKeys {
    type Outcome = Vec<ClaimedKey>;

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Self::Outcome, Refusal> {
        let Some(keys) = commit.env.state.keys.get(&self.user_id) else { return Ok(Vec::new()) };
        let keys = keys.read();
        let mut claimed = Vec::new();
        for (device_id, algorithm) in &self.wanted {
            let Some(device) = keys.devices.get(device_id) else { continue };
            // The oldest first: the client forgets its oldest keys first.
            let first = device.one_time.get(algorithm).and_then(|left| left.first());
            let (key_id, record, fallback, known_used) = match first {
                Some((record, key_id)) => (key_id.clone(), *record, false, false),
                None => match device.fallback.get(algorithm) {
                    Some(fallback) if !planted::has(Fault::FallbackKeyNotGiven) => {
                        (fallback.key_id.clone(), fallback.record, true, fallback.used)
                    }
                    _ => continue,
                },
            };
            if !known_used {
                commit.append(
                    self.stream(),
                    KeysClaim {
                        user_id: self.user_id.clone(),
                        device_id: device_id.clone(),
                        key_id: key_id.clone(),
                        fallback,
                    },
                );
            }
            claimed.push(ClaimedKey { device_id: device_id.clone(), key_id, record, fallback });
        }
        drop(keys);
        Ok(claimed)
    }
}

/// Set cross-signing keys. `None` leaves a key unchanged.
#[derive(Debug)]
pub struct SetCrossSigning {
    pub user_id: OwnedUserId,
    pub master_key: Option<Box<RawValue>>,
    pub self_signing_key: Option<Box<RawValue>>,
    pub user_signing_key: Option<Box<RawValue>>,
    /// The record of the master key for which the user's permission was checked.
    pub replaces: Option<Offset>,
}

impl Proposal for SetCrossSigning {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let now = commit.env.state.keys.get(&self.user_id).and_then(|keys| keys.read().master_key);
        if now != self.replaces {
            return Err(Refusal::BadState(
                "The cross-signing keys were changed meanwhile.".to_owned(),
            ));
        }
        let keys = KeysCrossSign {
            user_id: self.user_id.clone(),
            master_key: self.master_key.clone(),
            self_signing_key: self.self_signing_key.clone(),
            user_signing_key: self.user_signing_key.clone(),
        };
        // One may have logged in since the request was looked at.
        let account = commit.env.state.accounts.get(&self.user_id);
        let names_device = account.is_some_and(|account| {
            let account = account.read();
            keys.public_keys().any(|key| account.device(key.as_str().into()).is_some())
        });
        if names_device {
            return Err(Refusal::InvalidParam(
                "A key has the name of one of your devices.".to_owned(),
            ));
        }
        commit.append(self.stream(), keys);
        Ok(())
    }
}

/// Add signatures to one user's keys. They have been verified.
#[derive(Debug)]
pub struct SignKeys {
    /// The owner of the keys.
    pub user_id: OwnedUserId,
    /// The signer.
    pub by: OwnedUserId,
    /// The signatures, by device id or public key, and then by the id of the signing key.
    pub signatures: BTreeMap<String, BTreeMap<String, String>>,
}

impl Proposal for SignKeys {
    type Outcome = ();

    fn stream(&self) -> Stream {
        // The owner may be a user of another homeserver.
        let is_local = self.user_id.server_name() == self.by.server_name();
        Stream::user(if is_local { &self.user_id } else { &self.by })
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        if !self.signatures.is_empty() {
            let Self { user_id, by, signatures } = self;
            let keys = commit.env.state.keys.get(user_id);
            let is_full = keys.is_some_and(|keys| {
                let keys = keys.read();
                let count = |signed: &String| {
                    keys.signatures.get(&(by.clone(), signed.clone())).map_or(0, Vec::len)
                };
                signatures.keys().any(|signed| count(signed) >= limits::SIGNATURES)
            });
            if is_full {
                let most = limits::SIGNATURES;
                let why = format!("You can add at most {most} signatures to one key.");
                return Err(Refusal::OverQuota(why));
            }
            commit.append(
                self.stream(),
                KeysSign {
                    user_id: user_id.clone(),
                    by: by.clone(),
                    signatures: signatures.clone(),
                },
            );
        }
        Ok(())
    }
}
