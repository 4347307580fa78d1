//! Documents that the server signs as Matrix signs JSON (specification, appendix "Signing JSON"):
//! the manifests of backups and exports.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use ruma::{
    CanonicalJsonObject, CanonicalJsonValue,
    serde::{Base64, base64::Standard},
    signatures::{Ed25519KeyPair, PublicKeyMap, sign_json, verify_json},
};
use serde::Serialize;

use crate::command::ServerIdentity;

/// Why a document cannot be signed: the key is invalid, or the document is not canonical JSON.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SigningError(String);

/// The document as a JSON object, with the server's signature in `signatures` and no other.
pub fn sign<T: Serialize>(
    document: &T,
    identity: &ServerIdentity,
) -> Result<CanonicalJsonObject, SigningError> {
    let unusable = |what: &dyn std::fmt::Display| SigningError(what.to_string());
    let key = STANDARD_NO_PAD.decode(identity.private_key.expose());
    let key = key.map_err(|error| unusable(&error))?;
    let version = identity.key_id.strip_prefix("ed25519:").unwrap_or(&identity.key_id);
    let key = Ed25519KeyPair::from_der(&key, version.to_owned());
    let key = key.map_err(|error| unusable(&error))?;
    let mut object = object(document).ok_or_else(|| unusable(&"it is no canonical JSON"))?;
    object.remove("signatures");
    sign_json(&identity.server_name, &key, &mut object).map_err(|error| unusable(&error))?;
    Ok(object)
}

/// Whether `document` has the signature of this server with this key (in unpadded base64), and no
/// other.
pub fn is_signed<T: Serialize>(document: &T, server_name: &str, public_key: &str) -> bool {
    let (Some(object), Ok(key)) = (object(document), Base64::parse(public_key)) else {
        return false;
    };
    let Some(CanonicalJsonValue::Object(servers)) = object.get("signatures") else { return false };
    let (1, Some(CanonicalJsonValue::Object(signed))) = (servers.len(), servers.get(server_name))
    else {
        return false;
    };
    // Some bits of a signature's last letter are unused.
    let is_exact = |signature: &CanonicalJsonValue| {
        let text = signature.as_str().unwrap_or_default();
        Base64::<Standard>::parse(text).is_ok_and(|of| of.encode() == *text)
    };
    let keys = signed.keys().map(|id| (id.clone(), key.clone())).collect();
    let keys = PublicKeyMap::from([(server_name.to_owned(), keys)]);
    !signed.is_empty() && signed.values().all(is_exact) && verify_json(&keys, &object).is_ok()
}

fn object<T: Serialize>(document: &T) -> Option<CanonicalJsonObject> {
    match serde_json::to_value(document).ok()?.try_into().ok()? {
        CanonicalJsonValue::Object(object) => Some(object),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An identity with a new key.
    fn identity() -> ServerIdentity {
        let document = Ed25519KeyPair::generate();
        let pair = Ed25519KeyPair::from_der(&document, "a".to_owned()).unwrap();
        ServerIdentity {
            server_name: "test.example".to_owned(),
            key_id: "ed25519:a".to_owned(),
            private_key: STANDARD_NO_PAD.encode(&*document).into(),
            public_key: STANDARD_NO_PAD.encode(pair.public_key()),
        }
    }

    #[test]
    fn a_document_is_signed_by_the_server_whose_key_it_is_and_by_nobody_else() {
        let (ours, other) = (identity(), identity());
        let document = json!({ "a": 1, "signatures": { "someone.else": { "ed25519:b": "c" } } });
        let signed = sign(&document, &ours).unwrap();
        assert!(is_signed(&signed, "test.example", &ours.public_key));
        assert!(!is_signed(&signed, "test.example", &other.public_key));
        assert!(!is_signed(&signed, "other.example", &ours.public_key));
        assert!(!is_signed(&document, "test.example", &ours.public_key));
        let changed = |pointer: &str, value| {
            let mut changed = serde_json::to_value(&signed).unwrap();
            *changed.pointer_mut(pointer).unwrap() = value;
            is_signed(&changed, "test.example", &ours.public_key)
        };
        assert!(!changed("/a", json!(2)));
        assert!(!changed("/signatures", json!({})));
        assert!(!changed("/signatures/test.example", json!({})));
        assert!(!changed("/signatures/test.example/ed25519:a", json!("AAAA")));
    }
}
