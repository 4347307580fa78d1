//! `m.device_list_update` and `m.signing_key_update`: devices and cross-signing keys of users of
//! other homeservers (server-server API, "Device Management").
//!
//! A change is made in the list that is kept, if that is the one before the change. Otherwise the
//! list is out of date, and is fetched.

use ruma::{OwnedUserId, ServerName};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{EduError, content};
use crate::{
    base::limits,
    decide::federation::Said,
    record::command::DeviceList,
    service::federation::{
        Receiving,
        devices::{is_cross_signing, is_device, known_devices},
    },
    state::device_lists::List,
};

#[derive(Deserialize)]
struct Update {
    user_id: OwnedUserId,
    device_id: String,
    stream_id: u64,
    #[serde(default)]
    prev_id: Vec<u64>,
    #[serde(default)]
    deleted: bool,
    #[serde(default)]
    keys: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct SigningKeys {
    user_id: OwnedUserId,
    #[serde(default)]
    master_key: Option<Box<RawValue>>,
    #[serde(default)]
    self_signing_key: Option<Box<RawValue>>,
}

impl Receiving<'_> {
    pub(super) async fn take_device_list(
        &self,
        origin: &ServerName,
        raw: &RawValue,
    ) -> Result<(), EduError> {
        let update: Update = content(raw)?;
        let Update { user_id, device_id, stream_id, prev_id, deleted, keys } = update;
        if prev_id.len() > limits::TRANSACTION_EDUS || device_id.len() > limits::IDENTIFIER_BYTES {
            return Err(EduError::TooLarge);
        }
        if keys.as_ref().is_some_and(|keys| !is_device(keys, &user_id, &device_id)) {
            return Err(EduError::NotTheirs);
        }
        self.change_devices(origin, user_id, |known, list| {
            let follows = known.stream_id.is_some_and(|last| {
                prev_id.contains(&last) && prev_id.iter().all(|id| *id <= last) && stream_id >= last
            });
            if !follows {
                return false;
            }
            list.stream_id = Some(stream_id);
            match keys {
                _ if deleted => drop(list.devices.remove(&device_id)),
                Some(keys) => drop(list.devices.insert(device_id, keys)),
                // Its name, which nobody is shown.
                None => {}
            }
            true
        })
        .await
    }

    pub(super) async fn take_signing_keys(
        &self,
        origin: &ServerName,
        raw: &RawValue,
    ) -> Result<(), EduError> {
        let SigningKeys { user_id, master_key, self_signing_key } = content(raw)?;
        for (key, usage) in [(&master_key, "master"), (&self_signing_key, "self_signing")] {
            if key.as_ref().is_some_and(|key| !is_cross_signing(key, &user_id, usage)) {
                return Err(EduError::NotTheirs);
            }
        }
        self.change_devices(origin, user_id, |_, list| {
            list.master_key = master_key.or_else(|| list.master_key.take());
            list.self_signing_key = self_signing_key.or_else(|| list.self_signing_key.take());
            true
        })
        .await
    }

    /// Makes a change in the list of a user, if it is one of that list.
    async fn change_devices(
        &self,
        origin: &ServerName,
        user_id: OwnedUserId,
        change: impl FnOnce(&List, &mut DeviceList) -> bool,
    ) -> Result<(), EduError> {
        if user_id.server_name() != origin {
            return Err(EduError::NotTheirs);
        }
        if !self.shares_a_room(&user_id) {
            return Ok(());
        }
        let is_often = !self.federation.device_changes.admits(&user_id);
        if is_often {
            // Before the look at what is known: a list that is recorded in between is out of date.
            self.federation.device_changes.pass_over(&user_id);
        }
        let listed = self.engine.state().device_lists.get(&user_id);
        if is_often && listed.as_ref().is_some_and(|of| of.is_outdated) {
            return Err(EduError::TooMany);
        }
        let known = listed.filter(|of| !of.is_outdated && !is_often);
        let outdated =
            Said { user_id, changed: true, list: None, as_of: self.engine.head().offset() };
        let mut said = outdated.clone();
        if let Some(known) = known
            && let Some((mut list, false)) = known_devices(self.engine, &said.user_id)?
            // Each change is a record with the whole list.
            && list.bytes() <= limits::DEVICE_LIST_CHANGED_BYTES
            && change(&known, &mut list)
        {
            said = Said { list: Some(list), as_of: known.last, ..said };
        }
        // Another change came in between.
        if !self.note_devices(origin, vec![said]).await? {
            self.note_devices(origin, vec![outdated]).await?;
        }
        Ok(())
    }
}
