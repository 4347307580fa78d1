//! Keys of users of other homeservers, for users of this one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use ruma::{OwnedDeviceId, OwnedServerName, OwnedUserId, ServerName, UserId};
use serde_json::{Value, json};

use super::keys::QueriedKeys;
use crate::{
    api::server::Server,
    http::{ApiError, Cx},
};
use logcabin_base::limits;
use logcabin_outside::federation::Unreachable;
use logcabin_read::keyring::{Keyring, public_key};
use logcabin_record::{Offset, command::DeviceList};
use logcabin_service::federation::{ClaimedKeys, KeyClaims, by_server, known_devices};

/// The failure entry of a homeserver.
fn failure(error: &Unreachable) -> Value {
    let code = match error {
        Unreachable::Denied => "M_FORBIDDEN",
        _ => "M_UNAVAILABLE",
    };
    json!({ "errcode": code, "error": error.to_string() })
}

impl Cx<Server> {
    /// Adds the keys of users of other homeservers.
    ///
    /// Of those who share a room with the caller, they are kept and known to be current as long as
    /// their homeserver does not say otherwise; what is out of date is better than nothing if it
    /// cannot be reached.
    pub(super) async fn add_remote_keys(
        &self,
        wanted: BTreeMap<OwnedUserId, Vec<OwnedDeviceId>>,
        timeout: Duration,
        found: &mut QueriedKeys,
    ) -> Result<(), ApiError> {
        let (state, caller) = (self.app.engine.state(), &self.caller.user_id);
        let mut missing = Vec::new();
        for (user_id, devices) in wanted {
            let is_near = state.memberships.share_a_room(caller, &user_id, Offset::MAX);
            let known = known_devices(&self.app.engine, &user_id)?.filter(|_| is_near);
            match known {
                Some((list, false)) => self.add_list(&user_id, &devices, list, found)?,
                known => missing.push((user_id, (devices, is_near, known))),
            }
        }
        let servers = self.to_be_asked(by_server(missing), |(_, is_near, _)| *is_near, found);
        let Ok(receiving) = self.app.receiving() else { return Ok(()) };
        let query_rates = servers.into_iter().map(|(server, users)| {
            let receiving = &receiving;
            async move {
                let all: BTreeSet<_> = users.keys().cloned().collect();
                let near = users.iter().filter(|(_, (_, is_near, _))| *is_near);
                let kept = near.map(|(user_id, _)| user_id.clone()).collect();
                let lists = receiving.ask_devices(&server, &all, &kept, caller, timeout).await;
                (server, users, lists)
            }
        });
        let mut answers = stream::iter(query_rates).buffer_unordered(limits::REMOTE_KEYS_AT_ONCE);
        while let Some((server, users, lists)) = answers.next().await {
            if let Err(error) = &lists {
                found.failures.insert(server.to_string(), failure(error));
            }
            let mut lists = lists.ok();
            for (user_id, (devices, _, known)) in users {
                let list = match &mut lists {
                    Some(lists) => lists.remove(&user_id),
                    None => known.map(|(list, _)| list),
                };
                if let Some(list) = list {
                    self.add_list(&user_id, &devices, list, found)?;
                }
            }
        }
        Ok(())
    }

    /// The homeservers that are asked, and for whom. Those whose users the caller shares no room
    /// with are asked as rarely as for profiles.
    fn to_be_asked<T>(
        &self,
        servers: BTreeMap<OwnedServerName, BTreeMap<OwnedUserId, T>>,
        is_near: impl Fn(&T) -> bool,
        found: &mut QueriedKeys,
    ) -> Vec<(OwnedServerName, BTreeMap<OwnedUserId, T>)> {
        let mut asked = Vec::new();
        for (server, users) in servers {
            let is_known = users.values().any(&is_near);
            let why = if !self.is_remote(&server) {
                Some("This server does not federate.")
            } else if asked.len() >= limits::REMOTE_KEYS_SERVERS {
                Some("There are too many servers for one request.")
            } else if !is_known && self.may_ask().is_err() {
                Some("There are too many servers at once. Try again later.")
            } else {
                None
            };
            match why {
                Some(why) => self.add_failure(&server, why, found),
                None => asked.push((server, users)),
            }
        }
        asked
    }

    #[expect(clippy::unused_self, reason = "it is one of what is done for a request")]
    fn add_failure(&self, server: &ServerName, why: &str, found: &mut QueriedKeys) {
        found.failures.insert(server.to_string(), json!({ "errcode": "M_UNKNOWN", "error": why }));
    }

    fn add_list(
        &self,
        user_id: &UserId,
        devices: &[OwnedDeviceId],
        list: DeviceList,
        found: &mut QueriedKeys,
    ) -> Result<(), ApiError> {
        found.bytes += list.bytes();
        if found.bytes > limits::REMOTE_KEYS_ANSWERED {
            self.add_failure(user_id.server_name(), "This is too much for one request.", found);
            return Ok(());
        }
        let of_user = list.devices.into_iter().filter_map(|(device_id, keys)| {
            let is_wanted = devices.is_empty() || devices.iter().any(|id| id.as_str() == device_id);
            let keys: Value = serde_json::from_str(keys.get()).ok()?;
            is_wanted.then_some((device_id, keys))
        });
        found.device_keys.insert(user_id.to_owned(), of_user.collect());
        let engine = &self.app.engine;
        if let Some(master) = list.master_key
            && let Ok(mut master) = serde_json::from_str::<Value>(master.get())
        {
            let keyring = Keyring::of(&engine.state(), engine.events(), user_id)?;
            if let Some((_, public)) = public_key(&master) {
                let viewer = Some(&*self.caller.user_id);
                keyring.add_signatures(engine.events(), viewer, &public, &mut master)?;
            }
            found.master_keys.insert(user_id.to_owned(), master);
        }
        if let Some(key) = list.self_signing_key
            && let Ok(key) = serde_json::from_str(key.get())
        {
            found.self_signing_keys.insert(user_id.to_owned(), key);
        }
        Ok(())
    }

    /// Has other homeservers hand out one-time keys of their users.
    pub(super) async fn claim_remote_keys(
        &self,
        wanted: KeyClaims,
        timeout: Duration,
        handed_out: &mut ClaimedKeys,
    ) -> BTreeMap<String, Value> {
        let (state, caller) = (self.app.engine.state(), &self.caller.user_id);
        let mut found = QueriedKeys::default();
        let wanted = wanted.into_iter().map(|(user_id, devices)| {
            let is_near = state.memberships.share_a_room(caller, &user_id, Offset::MAX);
            (user_id, (devices, is_near))
        });
        let servers = self.to_be_asked(by_server(wanted), |(_, is_near)| *is_near, &mut found);
        let Ok(receiving) = self.app.receiving() else { return found.failures };
        let query_rates = servers.into_iter().map(|(server, users)| {
            let receiving = &receiving;
            async move {
                let users = users.into_iter().map(|(user_id, (devices, _))| (user_id, devices));
                let wanted: KeyClaims = users.collect();
                let claimed = receiving.claim_keys(&server, &wanted, caller, timeout).await;
                (server, claimed)
            }
        });
        let mut answers = stream::iter(query_rates).buffer_unordered(limits::REMOTE_KEYS_AT_ONCE);
        while let Some((server, claimed)) = answers.next().await {
            match claimed {
                Ok(claimed) => handed_out.extend(claimed),
                Err(error) => drop(found.failures.insert(server.to_string(), failure(&error))),
            }
        }
        found.failures
    }
}
