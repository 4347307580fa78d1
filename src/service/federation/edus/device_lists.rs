//! `m.device_list_update` and `m.signing_key_update`: devices and cross-signing keys of users of
//! other homeservers (server-server API, "Device Management").
//!
//! A change is applied to the known list if it directly follows that list. Otherwise the list
//! becomes stale, and is fetched.

use ruma::{OwnedUserId, ServerName};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{EduError, content};
use crate::federation::{
    PduReceiver,
    devices::{is_cross_signing, is_device, known_devices},
};
use logcabin_base::limits;
use logcabin_decide::federation::DeviceListUpdate;
use logcabin_record::command::DeviceList;
use logcabin_state::device_lists::KnownDevices;

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

/// The effect of an update on the known list.
enum Change {
    /// None: the list has the change already, because transactions are repeated.
    Known,
    /// The list now has the change.
    Made,
    /// It does not follow that list.
    Unclear,
}

impl PduReceiver<'_> {
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
            let is_known = match (&keys, list.devices.get(&device_id)) {
                (_, there) if deleted => there.is_none(),
                (Some(keys), there) => there.is_some_and(|there| there.get() == keys.get()),
                (None, _) => true,
            };
            if known.stream_id == Some(stream_id) && is_known {
                return Change::Known;
            }
            let follows = known.stream_id.is_some_and(|last| {
                prev_id.contains(&last) && prev_id.iter().all(|id| *id <= last) && stream_id >= last
            });
            if !follows {
                return Change::Unclear;
            }
            list.stream_id = Some(stream_id);
            match &keys {
                _ if deleted => drop(list.devices.remove(&device_id)),
                Some(keys) => drop(list.devices.insert(device_id.clone(), keys.clone())),
                // The device's name, which nobody is shown.
                None => {}
            }
            Change::Made
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
            let before = list.clone();
            list.master_key = master_key.clone().or_else(|| list.master_key.take());
            list.self_signing_key =
                self_signing_key.clone().or_else(|| list.self_signing_key.take());
            if list.is_same(&before) { Change::Known } else { Change::Made }
        })
        .await
    }

    /// Applies a change to the list of a user, if it follows that list.
    async fn change_devices(
        &self,
        origin: &ServerName,
        user_id: OwnedUserId,
        change: impl Fn(&KnownDevices, &mut DeviceList) -> Change,
    ) -> Result<(), EduError> {
        if user_id.server_name() != origin {
            return Err(EduError::NotTheirs);
        }
        if !self.shares_a_room(&user_id) {
            return Ok(());
        }
        let is_often = !self.federation.device_changes.admits(&user_id);
        if is_often {
            // Before the list is read: a list that is recorded in between then becomes stale.
            self.federation.device_changes.pass_over(&user_id);
        }
        let listed = self.engine.state().device_lists.get(&user_id);
        if is_often && listed.is_some_and(|of| of.is_outdated) {
            return Err(EduError::TooMany);
        }
        let outdated = DeviceListUpdate {
            user_id,
            changed: true,
            list: None,
            as_of: self.engine.head().offset(),
        };
        for _ in 0..limits::DEVICE_CHANGE_TRIES {
            let known = self.engine.state().device_lists.get(&outdated.user_id);
            let known = known.filter(|of| !of.is_outdated && !is_often);
            let Some(known) = known else { break };
            let listed = known_devices(self.engine, &outdated.user_id)?;
            let Some((mut list, false)) = listed else { break };
            // Each change is a record with the whole list.
            if list.bytes() > limits::DEVICE_LIST_CHANGED_BYTES {
                break;
            }
            match change(&known, &mut list) {
                Change::Known => return Ok(()),
                Change::Made => {}
                Change::Unclear => break,
            }
            let said = DeviceListUpdate { list: Some(list), as_of: known.last, ..outdated.clone() };
            if self.note_devices(origin, vec![said]).await? {
                return Ok(());
            }
            // Another change came in between. It may be the same one, at another node.
        }
        self.note_devices(origin, vec![outdated]).await?;
        Ok(())
    }
}
