//! The keys of a user of this homeserver as shown to clients, with the signatures added after their
//! upload.

use std::collections::{BTreeMap, BTreeSet};

use ruma::{OwnedUserId, UserId};
use serde_json::{Value, json, value::RawValue};

use crate::events::EventStore;
use logcabin_log::ReadError;
use logcabin_record::{Command, Offset, command::KeysCrossSign};
use logcabin_state::{
    State,
    keys::{UserKeys, algorithm},
};

#[derive(Debug, Default)]
pub struct Keyring {
    devices: Vec<(String, Offset)>,
    pub master_record: Option<Offset>,
    pub master: Option<Value>,
    pub self_signing: Option<Value>,
    pub user_signing: Option<Value>,
    signatures: BTreeMap<(OwnedUserId, String), Vec<Offset>>,
}

impl Keyring {
    pub fn of(state: &State, events: &EventStore, user_id: &UserId) -> Result<Self, ReadError> {
        let Some(keys) = state.keys.get(user_id) else { return Ok(Self::default()) };
        let keys = keys.read();
        let UserKeys { master_key, self_signing_key, user_signing_key, .. } = &*keys;
        let cross_signing =
            |record: &Option<Offset>, pick: fn(KeysCrossSign) -> Option<Box<RawValue>>| {
                let Some(record) = record else { return Ok(None) };
                let Some(Command::KeysCrossSign(body)) = events.command(*record)? else {
                    return Ok(None);
                };
                Ok::<_, ReadError>(pick(body).and_then(|key| serde_json::from_str(key.get()).ok()))
            };
        Ok(Self {
            devices: keys
                .devices
                .iter()
                .filter_map(|(id, device)| Some((id.to_string(), device.identity?)))
                .collect(),
            master_record: *master_key,
            master: cross_signing(master_key, |body| body.master_key)?,
            self_signing: cross_signing(self_signing_key, |body| body.self_signing_key)?,
            user_signing: cross_signing(user_signing_key, |body| body.user_signing_key)?,
            signatures: keys.signatures.clone(),
        })
    }

    /// The identity keys of each device.
    pub fn devices(&self, events: &EventStore) -> Result<Vec<(String, Value)>, ReadError> {
        let mut devices = Vec::with_capacity(self.devices.len());
        for (device_id, record) in &self.devices {
            if let Some(Command::KeysUpload(upload)) = events.command(*record)?
                && let Some(keys) = upload.device_keys
                && let Ok(keys) = serde_json::from_str(keys.get())
            {
                devices.push((device_id.clone(), keys));
            }
        }
        Ok(devices)
    }

    /// The public key with this id, among the user's cross-signing keys and devices.
    pub fn public(&self, events: &EventStore, key_id: &str) -> Result<Option<String>, ReadError> {
        let cross_signing = [&self.master, &self.self_signing, &self.user_signing];
        let mut keys = cross_signing.into_iter().flatten().filter_map(public_key);
        if let Some((_, public)) = keys.find(|(id, _)| id == key_id) {
            return Ok(Some(public));
        }
        let devices = self.devices(events)?;
        let of_device = devices.iter().find_map(|(_, keys)| keys["keys"][key_id].as_str());
        Ok(of_device.filter(|_| algorithm(key_id) == "ed25519").map(ToOwned::to_owned))
    }

    /// Adds the signatures that were made later and that the caller may see: the owner's and the
    /// caller's own.
    pub fn add_signatures(
        &self,
        events: &EventStore,
        viewer: Option<&UserId>,
        name: &str,
        key: &mut Value,
    ) -> Result<(), ReadError> {
        let owner = key["user_id"].as_str().unwrap_or_default().to_owned();
        let mut signers = BTreeSet::from_iter(viewer.map(ToOwned::to_owned));
        signers.extend(OwnedUserId::try_from(owner).ok());
        for signer in signers {
            for (key_id, signature) in self.signatures_by(events, &signer, name)? {
                add_signature(key, &signer, key_id, signature);
            }
        }
        Ok(())
    }

    fn signatures_by(
        &self,
        events: &EventStore,
        signer: &UserId,
        name: &str,
    ) -> Result<BTreeMap<String, String>, ReadError> {
        let mut signatures = BTreeMap::new();
        let records = self.signatures.get(&(signer.to_owned(), name.to_owned()));
        for record in records.into_iter().flatten() {
            if let Some(Command::KeysSign(mut body)) = events.command(*record)? {
                signatures.extend(body.signatures.remove(name).unwrap_or_default());
            }
        }
        Ok(signatures)
    }

    pub fn has_signatures(
        &self,
        events: &EventStore,
        by: &UserId,
        name: &str,
        signatures: &BTreeMap<String, String>,
    ) -> bool {
        let known = self.signatures_by(events, by, name).unwrap_or_default();
        signatures.iter().all(|(key_id, signature)| known.get(key_id) == Some(signature))
    }
}

/// The single public key in a cross-signing key: its id and the key itself.
pub fn public_key(key: &Value) -> Option<(String, String)> {
    let keys = key["keys"].as_object()?;
    let (id, public) = keys.iter().next().filter(|_| keys.len() == 1)?;
    Some((id.clone(), public.as_str()?.to_owned()))
}

/// Adds a signature to a key. The uploader of the key may have put anything in its place.
fn add_signature(key: &mut Value, signer: &UserId, key_id: String, signature: String) {
    fn entry<'a>(object: &'a mut Value, name: &str) -> &'a mut Value {
        if !object.is_object() {
            *object = json!({});
        }
        &mut object[name]
    }
    let of_signer = entry(entry(key, "signatures"), signer.as_str());
    *entry(of_signer, &key_id) = signature.into();
}
