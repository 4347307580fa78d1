//! Checks the keys that a device uploads against the specification (client-server API, "Device
//! keys" and "One-time and fallback keys").

use std::collections::BTreeMap;

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, DeviceId, OwnedOneTimeKeyId, UserId,
    serde::Base64,
    signatures::{PublicKeyMap, verify_json},
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::http::{ApiError, ErrorCode};
use logcabin_base::{json_error, limits};
use logcabin_state::keys::algorithm;

/// Signatures by user and key id.
type Signatures = BTreeMap<String, BTreeMap<String, String>>;

/// The length of Ed25519 and Curve25519 public keys.
const PUBLIC_KEY_BYTES: usize = 32;

/// Checks a device's identity keys: all members are present, they belong to this device, and the
/// device's own signature is valid if there is one (`docs/decisions/specification.md`).
///
/// # Errors
/// `M_BAD_JSON` for a missing or malformed member, `M_INVALID_PARAM` for keys of another device,
/// `M_INVALID_SIGNATURE`.
pub(super) fn check_identity(
    keys: &RawValue,
    user_id: &UserId,
    device_id: &DeviceId,
) -> Result<(), ApiError> {
    #[derive(Deserialize)]
    struct Identity {
        user_id: String,
        device_id: String,
        #[serde(rename = "algorithms")]
        _algorithms: Vec<String>,
        keys: BTreeMap<String, String>,
        signatures: Signatures,
    }
    bounded(keys)?;
    let bad = |error: &serde_json::Error| {
        ApiError::bad_json(format!("`device_keys`: {}", json_error::describe(error, b"")))
    };
    let whole: Value = serde_json::from_str(keys.get()).map_err(|error| bad(&error))?;
    // serde accepts a list as an object.
    if !whole.is_object() {
        return Err(ApiError::bad_json("`device_keys` is an object."));
    }
    let identity = Identity::deserialize(&whole).map_err(|error| bad(&error))?;
    if identity.user_id != user_id.as_str() || identity.device_id != device_id.as_str() {
        return Err(ApiError::invalid_param("These are not the keys of this device."));
    }
    for (key_id, public) in &identity.keys {
        let known = matches!(algorithm(key_id), "ed25519" | "curve25519");
        if known && !is_public_key(public) {
            return Err(ApiError::bad_json(format!("`{key_id}` is no key of its algorithm.")));
        }
    }
    let own = format!("ed25519:{device_id}");
    let Some(public) = identity.keys.get(&own) else {
        return Err(ApiError::bad_json(format!("`keys` has no `{own}`.")));
    };
    let of_user = identity.signatures.get(user_id.as_str());
    let has_signature = of_user.is_some_and(|signatures| signatures.contains_key(&own));
    if has_signature && !is_signed(&whole, user_id, &(own, public.clone())) {
        return Err(invalid_signature("The device's signature of its keys is not valid."));
    }
    Ok(())
}

/// Checks a device's one-time or fallback keys, and returns them by id. Signatures must be present;
/// the users of the keys verify them.
///
/// # Errors
/// `M_BAD_JSON` for a key that does not match its algorithm, `M_INVALID_PARAM` for an id that is
/// too long.
pub(super) fn check_one_time(
    keys: BTreeMap<OwnedOneTimeKeyId, Box<RawValue>>,
    user_id: &UserId,
    device_id: &DeviceId,
) -> Result<BTreeMap<String, Box<RawValue>>, ApiError> {
    let own = format!("ed25519:{device_id}");
    let check = |(key_id, key): (OwnedOneTimeKeyId, Box<RawValue>)| {
        bounded(&key)?;
        let key_id = key_id.to_string();
        if key_id.len() > limits::EVENT_FIELD_BYTES {
            return Err(ApiError::invalid_param("The id of a key is too long."));
        }
        if !is_one_time_key(algorithm(&key_id), &key, user_id, &own) {
            return Err(ApiError::bad_json(format!("`{key_id}` is no key of its algorithm.")));
        }
        Ok((key_id, key))
    };
    keys.into_iter().map(check).collect()
}

fn is_one_time_key(algorithm: &str, key: &RawValue, user_id: &UserId, own: &str) -> bool {
    #[derive(Deserialize)]
    struct KeyObject {
        key: String,
        signatures: Signatures,
        #[serde(default, rename = "fallback")]
        _fallback: bool,
    }
    let Ok(key) = serde_json::from_str::<Value>(key.get()) else { return false };
    if let Value::String(key) = &key {
        return match algorithm {
            "signed_curve25519" => false,
            "curve25519" => is_public_key(key),
            _ => true,
        };
    }
    let Ok(object) = KeyObject::deserialize(&key) else { return false };
    match algorithm {
        "signed_curve25519" => {
            let of_user = object.signatures.get(user_id.as_str());
            let is_signed = of_user.is_some_and(|signatures| signatures.contains_key(own));
            key.is_object() && is_signed && is_public_key(&object.key)
        }
        "curve25519" => false,
        _ => key.is_object(),
    }
}

fn is_public_key(text: &str) -> bool {
    Base64::<ruma::serde::base64::Standard>::parse(text)
        .is_ok_and(|key| key.as_bytes().len() == PUBLIC_KEY_BYTES)
}

pub(super) fn bounded(key: &RawValue) -> Result<(), ApiError> {
    if key.get().len() > limits::KEY_BYTES {
        return Err(ApiError::too_large("A key is larger than a key may be."));
    }
    Ok(())
}

pub(super) fn invalid_signature(text: &'static str) -> ApiError {
    ApiError::new(ErrorCode::InvalidSignature, text)
}

/// Whether `object` has a valid signature by `by` with this key.
pub(super) fn is_signed(object: &Value, by: &UserId, (key_id, public): &(String, String)) -> bool {
    let check = || -> Option<()> {
        let signature = object["signatures"][by.as_str()][key_id].as_str()?;
        let mut object = object.clone();
        object["signatures"] = json!({ by.as_str(): { key_id: signature } });
        let CanonicalJsonValue::Object(object) = CanonicalJsonValue::try_from(object).ok()? else {
            return None;
        };
        let object: CanonicalJsonObject = object;
        let public = Base64::parse(public).ok()?;
        let keys =
            PublicKeyMap::from([(by.to_string(), BTreeMap::from([(key_id.clone(), public)]))]);
        verify_json(&keys, &object).ok()
    };
    check().is_some()
}
