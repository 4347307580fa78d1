//! Devices apart from logins: dehydrated devices, and last use.

use std::collections::{BTreeMap, BTreeSet};

use ruma::{OwnedDeviceId, OwnedUserId};
use serde_json::value::RawValue;

use super::{
    Commit, Proposal, Refusal,
    account::{is_cross_signing_key, no_account},
    keys::{same, stored},
};
use logcabin_base::limits;
use logcabin_record::{
    Command, Offset, Stream,
    command::{DeviceDehydrate, DeviceRemove, DeviceSeen, KeysUpload, Sighting},
};
use logcabin_state::keys::algorithm;

/// Create a dehydrated device (MSC3814), which replaces the user's previous one.
#[derive(Debug)]
pub struct Dehydrate {
    pub user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
    pub display_name: Option<String>,
    /// Its private keys, encrypted.
    pub device_data: Box<RawValue>,
    /// Its identity keys.
    pub device_keys: Box<RawValue>,
    /// One-time keys by id.
    pub one_time_keys: BTreeMap<String, Box<RawValue>>,
    /// Fallback keys by id.
    pub fallback_keys: BTreeMap<String, Box<RawValue>>,
}

impl Proposal for Dehydrate {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Self { user_id, device_id, .. } = self.refuse_too_many_keys()?;
        let account = commit.env.state.accounts.get(user_id).ok_or_else(no_account)?;
        let (is_taken, former) = {
            let account = account.read();
            let former = account.dehydrated_device();
            let former = former.map(|(id, device)| (id.clone(), device.session));
            (account.device(device_id).is_some(), former)
        };
        match former {
            // Repeating the request has no effect. With other keys it would be another device under
            // this id, whose keys may have been handed out.
            Some((former, session)) if former == *device_id => {
                return if self.is_stored(commit, session)? { Ok(()) } else { Err(taken()) };
            }
            _ if is_taken => return Err(taken()),
            _ => {}
        }
        if is_cross_signing_key(commit.env, user_id, device_id)? {
            return Err(Refusal::InvalidParam(
                "One of your cross-signing keys has this name: a device cannot have it.".to_owned(),
            ));
        }
        if former.is_none() {
            commit.env.quotas.device(&commit.env.state, user_id, device_id)?;
        }
        if let Some((former, _)) = former {
            let devices = vec![former];
            commit.append(self.stream(), DeviceRemove { user_id: user_id.clone(), devices });
        }
        commit.append(
            self.stream(),
            DeviceDehydrate {
                user_id: user_id.clone(),
                device_id: device_id.clone(),
                display_name: self.display_name.clone(),
                device_data: self.device_data.clone(),
            },
        );
        commit.append(
            self.stream(),
            KeysUpload {
                user_id: user_id.clone(),
                device_id: device_id.clone(),
                device_keys: Some(self.device_keys.clone()),
                one_time_keys: self.one_time_keys.clone(),
                fallback_keys: self.fallback_keys.clone(),
            },
        );
        Ok(())
    }
}

fn taken() -> Refusal {
    Refusal::InvalidParam("You have another device of this id already.".to_owned())
}

impl Dehydrate {
    fn refuse_too_many_keys(&self) -> Result<&Self, Refusal> {
        let of: BTreeSet<_> = self.fallback_keys.keys().map(|key_id| algorithm(key_id)).collect();
        if self.one_time_keys.len() > limits::ONE_TIME_KEYS || of.len() > limits::FALLBACK_KEYS {
            return Err(Refusal::InvalidParam("There are too many keys.".to_owned()));
        }
        Ok(self)
    }

    /// Whether this is the device that was made by the record at `session`.
    fn is_stored(&self, commit: &Commit<'_>, session: Offset) -> Result<bool, Refusal> {
        let made = match commit.env.events.command(session)? {
            Some(Command::DeviceDehydrate(made)) => same(&made.device_data, &self.device_data),
            _ => false,
        };
        let keys = commit.env.state.keys.of_device(&self.user_id, &self.device_id, |k| k.identity);
        let Some(identity) = keys.flatten() else { return Ok(false) };
        let keys = stored(commit, identity)?.and_then(|upload| upload.device_keys);
        Ok(made && keys.is_some_and(|keys| same(&keys, &self.device_keys)))
    }
}

/// Record the last use of devices.
#[derive(Debug)]
pub struct NoteSeen(pub Vec<(OwnedUserId, OwnedDeviceId, Sighting)>);

impl Proposal for NoteSeen {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::seen()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        for (user_id, device_id, sighting) in &self.0 {
            let account = commit.env.state.accounts.get(user_id);
            if account.is_some_and(|account| account.read().device(device_id).is_some()) {
                let (user_id, device_id) = (user_id.clone(), device_id.clone());
                let seen = DeviceSeen { user_id, device_id, sighting: sighting.clone() };
                commit.append(self.stream(), seen);
            }
        }
        Ok(())
    }
}
