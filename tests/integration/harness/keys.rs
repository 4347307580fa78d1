//! Keys for end-to-end encryption, as a device uploads them: real ones, signed by the device.

use ruma::{
    CanonicalJsonObject,
    serde::Base64,
    signatures::{Ed25519KeyPair, sign_json},
};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::User;

/// An Ed25519 key pair as PKCS #8 has it, up to the seed (RFC 8410).
const PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The keys of one device, which follow from its user and its id.
pub(crate) struct DeviceKeys {
    user_id: String,
    device_id: String,
    pair: Ed25519KeyPair,
}

impl DeviceKeys {
    pub(crate) fn of(user_id: &str, device_id: &str) -> Self {
        Self::from_seed(user_id, device_id, &format!("{user_id} {device_id}"))
    }

    /// Other keys under the same name.
    pub(crate) fn others_of(user_id: &str, device_id: &str) -> Self {
        Self::from_seed(user_id, device_id, &format!("{user_id} {device_id} another"))
    }

    fn from_seed(user_id: &str, device_id: &str, seed: &str) -> Self {
        let der = [&PKCS8[..], &Sha256::digest(seed)[..]].concat();
        let pair = Ed25519KeyPair::from_der(&der, device_id.to_owned()).expect("a key");
        Self { user_id: user_id.to_owned(), device_id: device_id.to_owned(), pair }
    }

    /// The id of the key that signs.
    pub(crate) fn id(&self) -> String {
        format!("ed25519:{}", self.device_id)
    }

    /// The public keys of the device.
    pub(crate) fn public(&self) -> Value {
        let signing: Base64 = Base64::new(self.pair.public_key().to_vec());
        let curve = format!("curve25519:{}", self.device_id);
        json!({ self.id(): signing.encode(), curve: curve25519(&signing.encode()) })
    }

    /// Its identity keys, signed.
    pub(crate) fn identity(&self) -> Value {
        self.sign(&json!({
            "user_id": self.user_id,
            "device_id": self.device_id,
            "algorithms": ["m.olm.v1.curve25519-aes-sha2", "m.megolm.v1.aes-sha2"],
            "keys": self.public(),
        }))
    }

    /// One-time keys of these names, signed.
    pub(crate) fn one_time<S: AsRef<str>>(&self, names: &[S]) -> Value {
        let key = |name: &S| {
            let key = self.sign(&json!({ "key": curve25519(name.as_ref()) }));
            (format!("signed_curve25519:{}", name.as_ref()), key)
        };
        names.iter().map(key).collect::<Map<_, _>>().into()
    }

    /// A fallback key, signed.
    pub(crate) fn fallback(&self, name: &str) -> Value {
        let key = self.sign(&json!({ "key": curve25519(name), "fallback": true }));
        json!({ format!("signed_curve25519:{name}"): key })
    }

    /// `object` with this device's signature.
    pub(crate) fn sign(&self, object: &Value) -> Value {
        let mut object: CanonicalJsonObject =
            serde_json::from_value(object.clone()).expect("canonical JSON");
        sign_json(&self.user_id, &self.pair, &mut object).expect("it can be signed");
        serde_json::to_value(&object).expect("JSON")
    }
}

/// A public key that belongs to `name`.
pub(crate) fn curve25519(name: &str) -> String {
    let key: Base64 = Base64::new(Sha256::digest(name).to_vec());
    key.encode()
}

impl User {
    /// The keys of the user's device.
    pub(crate) fn keys(&self) -> DeviceKeys {
        DeviceKeys::of(&self.user_id, &self.device_id)
    }

    /// Uploads the identity keys of the user's device.
    pub(crate) async fn upload_identity(&self) {
        let body = json!({ "device_keys": self.keys().identity() });
        self.request("POST", "/keys/upload", Some(&body)).await.ok();
    }
}
