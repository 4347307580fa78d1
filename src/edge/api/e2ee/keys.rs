//! Keys for end-to-end encryption (client-server API, "Key management API").

use std::{collections::BTreeMap, time::Duration};

use ruma::{
    OneTimeKeyAlgorithm, OwnedDeviceId, OwnedOneTimeKeyId, OwnedUserId, UserId,
    api::{
        client::keys::{
            claim_keys::v3 as claim_keys, get_key_changes::v3 as get_key_changes,
            get_keys::v3 as get_keys, upload_keys::v3 as upload_keys,
            upload_signatures::v3 as upload_signatures,
            upload_signing_keys::v3 as upload_signing_keys,
        },
        federation::{
            device::get_devices::v1 as get_devices_for_server,
            keys::{claim_keys::v1 as claim_keys_for_server, get_keys::v1 as get_keys_for_server},
        },
    },
    serde::Raw,
};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

use super::device_keys::{bounded, check_identity, check_one_time, invalid_signature, is_signed};
use crate::{
    api::{
        answer::{can_leave, json},
        auth::{grants::confirm_reset, uiaa::confirm_identity},
        server::Server,
    },
    http::{ApiError, Caller, Cx, Homeserver, Json},
};
use logcabin_base::limits;
use logcabin_decide::keys::{ClaimKeys, SetCrossSigning, SignKeys, UploadKeys};
use logcabin_engine::Engine;
use logcabin_read::{
    events::to_raw,
    keyring::{Keyring, public_key},
    sync::device_lists::DeviceLists,
};
use logcabin_record::{Command, Offset};
use logcabin_service::federation::{ClaimedKeys, KeyClaims, known_devices};

/// How long a client has this server wait.
fn patience(asked: Option<Duration>) -> Duration {
    let (usual, most) = limits::REMOTE_KEYS_TIMEOUT;
    asked.unwrap_or(usual).min(most)
}

pub(super) async fn upload(
    cx: Cx<Server>,
    request: upload_keys::Request,
) -> Result<Json, ApiError> {
    let (user_id, device_id) = (cx.caller.user_id.clone(), cx.caller.device()?.clone());
    let device_keys = request.device_keys.map(Raw::into_json);
    if let Some(keys) = &device_keys {
        check_identity(keys, &user_id, &device_id)?;
    }
    let raw = |keys: BTreeMap<OwnedOneTimeKeyId, Raw<_>>| {
        keys.into_iter().map(|(id, key)| (id, key.into_json())).collect()
    };
    let one_time_keys = check_one_time(raw(request.one_time_keys), &user_id, &device_id)?;
    let fallback_keys = check_one_time(raw(request.fallback_keys), &user_id, &device_id)?;
    let proposal = UploadKeys { user_id, device_id, device_keys, one_time_keys, fallback_keys };
    let counts = cx.propose(proposal).await?.into_inner();
    json(&json!({ "one_time_key_counts": counts }))
}

#[derive(Default, Serialize)]
pub(super) struct QueriedKeys {
    /// The size of the keys of users of other homeservers.
    #[serde(skip)]
    pub(super) bytes: usize,
    pub(super) failures: BTreeMap<String, Value>,
    pub(super) device_keys: BTreeMap<OwnedUserId, BTreeMap<String, Value>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) master_keys: BTreeMap<OwnedUserId, Value>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) self_signing_keys: BTreeMap<OwnedUserId, Value>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    user_signing_keys: BTreeMap<OwnedUserId, Value>,
}

pub(super) async fn query(
    mut cx: Cx<Server>,
    request: get_keys::Request,
) -> Result<Json, ApiError> {
    if request.device_keys.len() > limits::KEY_QUERY {
        return Err(ApiError::invalid_param("There are too many users for one request."));
    }
    let viewer = Some(&*cx.caller.user_id);
    let own = &cx.app.config.server.name;
    let (local, remote): (BTreeMap<_, _>, BTreeMap<_, _>) =
        request.device_keys.into_iter().partition(|(user_id, _)| user_id.server_name() == own);
    if remote.is_empty() {
        return cx.at_length(|| json(&look_up(&cx.app.engine, local, viewer)?)).await;
    }
    let mut found = cx.at_length(|| look_up(&cx.app.engine, local, viewer)).await?;
    // Other homeservers may take their time.
    cx.forget_request();
    Box::pin(cx.add_remote_keys(remote, patience(request.timeout), &mut found)).await?;
    json(&found)
}

pub(in crate::api) async fn query_for_server(
    cx: Cx<Server, Homeserver>,
    request: get_keys_for_server::Request,
) -> Result<Json, ApiError> {
    if request.device_keys.len() > limits::KEY_QUERY {
        return Err(ApiError::invalid_param("There are too many users for one request."));
    }
    cx.at_length(|| {
        let found = look_up(&cx.app.engine, request.device_keys, None)?;
        json(&json!({
            "device_keys": found.device_keys,
            "master_keys": found.master_keys,
            "self_signing_keys": found.self_signing_keys,
        }))
    })
    .await
}

/// The devices of a user, for another homeserver.
pub(in crate::api) async fn devices_for_server(
    cx: Cx<Server, Homeserver>,
    request: get_devices_for_server::Request,
) -> Result<Json, ApiError> {
    let user_id = request.user_id;
    cx.at_length(|| {
        // Users who are told of later changes already have this one.
        let (last, _) = cx.app.engine.state().keys.told(&user_id, Offset::MAX);
        let stream_id = last.unwrap_or(Offset::ZERO);
        let asked = BTreeMap::from([(user_id.clone(), Vec::new())]);
        let mut found = look_up(&cx.app.engine, asked, None)?;
        let devices = found.device_keys.remove(&user_id);
        let devices = devices.ok_or_else(|| ApiError::not_found("There is no such user."))?;
        let devices = devices.into_iter();
        let devices: Vec<_> = devices
            .map(|(device_id, keys)| json!({ "device_id": device_id, "keys": keys }))
            .collect();
        let mut answer = json!({
            "user_id": user_id, "stream_id": stream_id.get(), "devices": devices,
        });
        for (name, key) in [
            ("master_key", found.master_keys.remove(&user_id)),
            ("self_signing_key", found.self_signing_keys.remove(&user_id)),
        ] {
            if let Some(key) = key {
                answer[name] = key;
            }
        }
        json(&answer)
    })
    .await
}

/// The keys of these devices (of all, where none is named) for a user, or for another homeserver,
/// which is told less.
fn look_up(
    engine: &Engine,
    wanted: BTreeMap<OwnedUserId, Vec<OwnedDeviceId>>,
    viewer: Option<&UserId>,
) -> Result<QueriedKeys, ApiError> {
    let mut found = QueriedKeys::default();
    for (user_id, devices) in wanted {
        if user_id.server_name() != engine.env().server.name {
            continue;
        }
        let Some(account) = engine.state().accounts.get(&user_id) else { continue };
        let keyring = Keyring::of(&engine.state(), engine.events(), &user_id)?;
        let mut of_user = BTreeMap::new();
        for (device_id, mut keys) in keyring.devices(engine.events())? {
            if !devices.is_empty() && !devices.iter().any(|id| id.as_str() == device_id) {
                continue;
            }
            keyring.add_signatures(engine.events(), viewer, &device_id, &mut keys)?;
            let name = account.read().device(device_id.as_str().into()).cloned();
            // Other homeservers need not know how people call their devices.
            let name = name.and_then(|device| device.display_name).filter(|_| viewer.is_some());
            keys["unsigned"] =
                name.map_or_else(|| json!({}), |name| json!({ "device_display_name": name }));
            if viewer.is_some() || can_leave(&keys) {
                of_user.insert(device_id, keys);
            }
        }
        found.device_keys.insert(user_id.clone(), of_user);
        for (key, of) in [
            (&keyring.master, &mut found.master_keys),
            (&keyring.self_signing, &mut found.self_signing_keys),
            (&keyring.user_signing, &mut found.user_signing_keys),
        ] {
            let Some(key) = key else { continue };
            let mut key = key.clone();
            if viewer.is_none()
                && let Some(key) = key.as_object_mut()
            {
                key.remove("unsigned");
            }
            if let Some((_, public)) = public_key(&key) {
                keyring.add_signatures(engine.events(), viewer, &public, &mut key)?;
            }
            if viewer.is_some() || can_leave(&key) {
                of.insert(user_id.clone(), key);
            }
        }
        // The users that somebody has verified are visible to them only.
        if viewer != Some(&*user_id) {
            found.user_signing_keys.remove(&user_id);
        }
    }
    Ok(found)
}

type Claims = BTreeMap<OwnedUserId, BTreeMap<OwnedDeviceId, OneTimeKeyAlgorithm>>;

/// The same with algorithms by their names.
fn named(claims: Claims) -> KeyClaims {
    let named = |devices: BTreeMap<OwnedDeviceId, OneTimeKeyAlgorithm>| {
        devices.into_iter().map(|(id, algorithm)| (id, algorithm.to_string())).collect()
    };
    claims.into_iter().map(|(user_id, devices)| (user_id, named(devices))).collect()
}

pub(super) async fn claim(
    mut cx: Cx<Server>,
    request: claim_keys::Request,
) -> Result<Json, ApiError> {
    // Other homeservers may take their time.
    cx.forget_request();
    let wanted = named(request.one_time_keys);
    few(&wanted)?;
    let own = &cx.app.config.server.name;
    let (local, remote): (KeyClaims, KeyClaims) =
        wanted.into_iter().partition(|(user_id, _)| user_id.server_name() == own);
    let mut handed_out = hand_out(&cx, local, false).await?;
    let mut failures = BTreeMap::new();
    if !remote.is_empty() {
        let timeout = patience(request.timeout);
        failures = Box::pin(cx.claim_remote_keys(remote, timeout, &mut handed_out)).await;
    }
    json(&json!({ "failures": failures, "one_time_keys": handed_out }))
}

pub(in crate::api) async fn claim_for_server(
    cx: Cx<Server, Homeserver>,
    request: claim_keys_for_server::Request,
) -> Result<Json, ApiError> {
    let mut wanted = named(request.one_time_keys);
    few(&wanted)?;
    wanted.retain(|user_id, _| user_id.server_name() == cx.app.config.server.name);
    json(&json!({ "one_time_keys": hand_out(&cx, wanted, true).await? }))
}

fn few(wanted: &KeyClaims) -> Result<(), ApiError> {
    match wanted.values().map(BTreeMap::len).sum::<usize>() > limits::KEY_QUERY {
        true => Err(ApiError::invalid_param("There are too many devices for one request.")),
        false => Ok(()),
    }
}

/// Hands out one key of each device of users of this server.
async fn hand_out<C: Caller>(
    cx: &Cx<Server, C>,
    all: KeyClaims,
    for_server: bool,
) -> Result<ClaimedKeys, ApiError> {
    let mut handed_out = ClaimedKeys::new();
    for (user_id, wanted) in all {
        let proposal = ClaimKeys { user_id: user_id.clone(), wanted: wanted.into_iter().collect() };
        let claimed = cx.propose(proposal).await?.into_inner();
        for claim in claimed {
            let upload = cx.app.engine.events().command(claim.record)?;
            let Some(Command::KeysUpload(mut upload)) = upload else { continue };
            let keys =
                if claim.fallback { &mut upload.fallback_keys } else { &mut upload.one_time_keys };
            let Some(key) = keys.remove(&claim.key_id) else { continue };
            if for_server && !can_leave(&key) {
                continue;
            }
            let key: Value = serde_json::from_str(key.get()).unwrap_or_default();
            let of_user = handed_out.entry(user_id.clone()).or_default();
            of_user.insert(claim.device_id.to_string(), BTreeMap::from([(claim.key_id, key)]));
        }
    }
    Ok(handed_out)
}

pub(super) async fn changes(
    cx: Cx<Server>,
    request: get_key_changes::Request,
) -> Result<get_key_changes::Response, ApiError> {
    let from = cx.app.position(&request.from).or_else(|refused| {
        // To a client of the server from which this one was imported, all devices may be new.
        cx.app.position_at_source(&request.from).map(|from| from.after).ok_or(refused)
    })?;
    let to = cx.app.position(&request.to)?;
    let mut view = cx.view();
    view.viewer.at = to.min(view.at());
    let rooms = view.state.memberships.of(view.user_id(), view.at());
    let lists = cx.at_length(|| Ok(DeviceLists::between(&view, from, &rooms))).await?;
    Ok(get_key_changes::Response::new(
        lists.changed.into_iter().collect(),
        lists.left.into_iter().collect(),
    ))
}

pub(super) async fn upload_cross_signing(
    cx: Cx<Server>,
    request: upload_signing_keys::Request,
) -> Result<upload_signing_keys::Response, ApiError> {
    let user_id = &cx.caller.user_id;
    let stored = Keyring::of(&cx.app.engine.state(), cx.app.engine.events(), user_id)?;
    let parse = |key: &Option<Raw<_>>, usage| -> Result<Option<Value>, ApiError> {
        let Some(key) = key else { return Ok(None) };
        let key: &RawValue = key.json();
        bounded(key)?;
        let key: Value = serde_json::from_str(key.get()).unwrap_or_default();
        let fits = key["user_id"] == user_id.as_str()
            && key["usage"].as_array().is_some_and(|usages| usages.contains(&json!(usage)));
        let public = public_key(&key).filter(|_| fits);
        if public.is_none() {
            return Err(ApiError::invalid_param(format!("This is not a key for {usage}.")));
        }
        Ok(Some(key))
    };
    let master = parse(&request.master_key, "master")?;
    let self_signing = parse(&request.self_signing_key, "self_signing")?;
    let user_signing = parse(&request.user_signing_key, "user_signing")?;
    let signer = master.as_ref().or(stored.master.as_ref());
    for key in [&self_signing, &user_signing].into_iter().flatten() {
        let signer = signer.and_then(public_key);
        let signer = signer.ok_or_else(|| ApiError::missing_param("There is no master key."))?;
        if !is_signed(key, user_id, &signer) {
            return Err(invalid_signature("A key is not signed by the master key."));
        }
    }
    let account = cx.app.engine.state().accounts.get(user_id);
    for key in [&master, &self_signing, &user_signing].into_iter().flatten() {
        let names_device = public_key(key).is_some_and(|(_, public)| {
            account.as_ref().is_some_and(|a| a.read().device(public.as_str().into()).is_some())
        });
        if names_device {
            return Err(ApiError::invalid_param("A key has the name of one of your devices."));
        }
    }
    let news = |new: &Option<Value>, old: &Option<Value>| {
        new.as_ref().is_some_and(|new| Some(unsigned(new)) != old.as_ref().map(unsigned))
    };
    let changed = news(&master, &stored.master)
        || news(&self_signing, &stored.self_signing)
        || news(&user_signing, &stored.user_signing);
    if !changed {
        return Ok(upload_signing_keys::Response::new());
    }
    // The first keys need no proof: nobody can have trusted earlier ones.
    if stored.master.is_some() && !confirm_reset(&cx.app.engine, &cx.app.config.server, &cx.caller)?
    {
        let auth = request.auth.as_ref();
        confirm_identity(&cx.app, &cx.caller, cx.client, "device_signing", &cx.body, auth).await?;
    }
    let raw = |key: Option<Value>| key.map(|key| to_raw(&key));
    let proposal = SetCrossSigning {
        user_id: user_id.clone(),
        master_key: raw(master),
        self_signing_key: raw(self_signing),
        user_signing_key: raw(user_signing),
        replaces: stored.master_record,
    };
    cx.propose(proposal).await?.into_inner();
    Ok(upload_signing_keys::Response::new())
}

pub(super) async fn upload_signatures(
    cx: Cx<Server>,
    request: upload_signatures::Request,
) -> Result<Json, ApiError> {
    let by = &cx.caller.user_id;
    let own = Keyring::of(&cx.app.engine.state(), cx.app.engine.events(), by)?;
    let mut failures: BTreeMap<OwnedUserId, BTreeMap<String, Value>> = BTreeMap::new();
    for (user_id, signed_keys) in request.signed_keys {
        let mut of = Keyring::of(&cx.app.engine.state(), cx.app.engine.events(), &user_id)?;
        if user_id.server_name() != cx.app.config.server.name {
            let known = known_devices(&cx.app.engine, &user_id)?;
            let master = known.and_then(|(list, _)| list.master_key);
            of.master = master.and_then(|key| serde_json::from_str(key.get()).ok());
        }
        let devices: BTreeMap<_, _> = of.devices(cx.app.engine.events())?.into_iter().collect();
        let mut accepted = BTreeMap::new();
        for (name, signed) in signed_keys.iter() {
            let signed: Value = serde_json::from_str(signed.get()).unwrap_or_default();
            // Users sign the master keys of others, and only their own devices.
            let known = match devices.get(name) {
                Some(device) if user_id == *by => Some(device),
                _ => of
                    .master
                    .as_ref()
                    .filter(|key| public_key(key).is_some_and(|(_, public)| public == *name)),
            };
            match check_signatures(&cx, &own, known, &signed) {
                Ok(signatures) => {
                    accepted.insert(name.to_owned(), signatures);
                }
                Err(error) => {
                    let failure =
                        json!({ "errcode": error.code().as_str(), "error": error.to_string() });
                    failures.entry(user_id.clone()).or_default().insert(name.to_owned(), failure);
                }
            }
        }
        accepted.retain(|name, signatures| {
            !of.has_signatures(cx.app.engine.events(), by, name, signatures)
        });
        let proposal = SignKeys { user_id, by: by.clone(), signatures: accepted };
        cx.propose(proposal).await?.into_inner();
    }
    json(&json!({ "failures": failures }))
}

/// The caller's signatures in `signed`, each verified with the key that made it.
fn check_signatures(
    cx: &Cx<Server>,
    own: &Keyring,
    known: Option<&Value>,
    signed: &Value,
) -> Result<BTreeMap<String, String>, ApiError> {
    let by = &cx.caller.user_id;
    let known = known.ok_or_else(|| ApiError::not_found("There is no such key to be signed."))?;
    if unsigned(known) != unsigned(signed) {
        return Err(invalid_signature("The signed key is not the one that is known."));
    }
    let mut accepted = BTreeMap::new();
    let signatures = signed["signatures"][by.as_str()].as_object();
    for (key_id, signature) in signatures.into_iter().flatten() {
        let Some(signature) = signature.as_str() else { continue };
        if known["signatures"][by.as_str()][key_id] == *signature {
            continue;
        }
        let public = own.public(cx.app.engine.events(), key_id)?;
        let public =
            public.ok_or_else(|| invalid_signature("The key that signed it is not known."))?;
        if !is_signed(signed, by, &(key_id.clone(), public)) {
            return Err(invalid_signature("A signature is not right."));
        }
        accepted.insert(key_id.clone(), signature.to_owned());
    }
    if accepted.is_empty() && signatures.is_none_or(serde_json::Map::is_empty) {
        return Err(invalid_signature("There is no signature of yours."));
    }
    Ok(accepted)
}

/// A key without the parts that others add to it.
fn unsigned(key: &Value) -> Value {
    let mut key = key.clone();
    if let Some(key) = key.as_object_mut() {
        key.remove("signatures");
        key.remove("unsigned");
    }
    key
}
