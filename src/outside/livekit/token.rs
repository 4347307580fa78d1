//! Tokens of LiveKit, which are JWTs (RFC 7519) signed with HMAC (RFC 7518, section 3.2), and the
//! names by which it knows rooms and people: hashes, so that it learns nothing of Matrix.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::Serialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// The least length of a secret, in characters, of which LiveKit does not complain.
const LONG_SECRET: usize = 32;

/// An API key of LiveKit with its secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ApiKey {
    key: String,
    secret: String,
}

/// What the bearer of a token may do.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Grants<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    room: Option<&'a str>,
    room_create: bool,
    room_join: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    room_list: Option<bool>,
    /// Whether they may send data messages is LiveKit's default: the same.
    can_publish: bool,
    can_subscribe: bool,
    can_update_own_metadata: bool,
    hidden: bool,
}

impl<'a> Grants<'a> {
    /// To be in a room. LiveKit's grant for making rooms is also one for deleting them, so nobody
    /// gets it.
    pub(super) fn to_join(room: &'a str, can_publish: bool) -> Self {
        Self {
            room: Some(room),
            room_join: true,
            can_publish,
            can_subscribe: true,
            ..Self::default()
        }
    }

    pub(super) fn to_create() -> Self {
        Self { room_create: true, ..Self::default() }
    }

    pub(super) fn to_list() -> Self {
        Self { room_list: Some(true), ..Self::default() }
    }
}

/// Why a token cannot be made.
pub(super) type Unsigned = Box<dyn std::error::Error + Send + Sync>;

#[derive(Serialize)]
struct Claims<'a> {
    iss: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub: Option<&'a str>,
    nbf: u64,
    exp: u64,
    video: &'a Grants<'a>,
}

impl ApiKey {
    /// The first key of a file: `key: secret`, as in LiveKit's own file of keys.
    pub(super) fn first_of(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::trim);
        let line = lines.find(|line| !line.is_empty() && !line.starts_with('#'))?;
        let (key, secret) = line.split_once(':')?;
        let unquoted = |text: &str| text.trim().trim_matches(['"', '\'']).to_owned();
        let (key, secret) = (unquoted(key), unquoted(secret));
        let is_usable = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
        (is_usable(&key) && is_usable(&secret)).then_some(Self { key, secret })
    }

    pub(super) fn has_long_secret(&self) -> bool {
        self.secret.chars().count() >= LONG_SECRET
    }

    /// A token that is valid from now on, for so many seconds.
    pub(super) fn sign(
        &self,
        identity: Option<&str>,
        grants: &Grants<'_>,
        now_ms: u64,
        seconds: u64,
    ) -> Result<String, Unsigned> {
        let nbf = now_ms / 1000;
        let exp = nbf.saturating_add(seconds);
        let claims = Claims { iss: &self.key, sub: identity, nbf, exp, video: grants };
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","typ":"JWT"}"#);
        let claims = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims)?);
        let signed = format!("{header}.{claims}");
        let mac = Hmac::<Sha256>::new_from_slice(self.secret.as_bytes())?.chain_update(&signed);
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())))
    }
}

/// LiveKit's name for a place for calls (`slot_id`) in a Matrix room. With a name in `apart`, that
/// user is alone there.
pub fn room_name(room_id: &str, slot_id: &str, apart: Option<&str>) -> String {
    match apart {
        None => hash(&[room_id, slot_id]),
        Some(user_id) => hash(&[room_id, slot_id, user_id]),
    }
}

/// LiveKit's identity for a participant, derived from these ids.
pub fn identity(parts: &[&str]) -> String {
    hash(parts)
}

/// A hash over a list as canonical JSON, which has no space, and nothing escaped that need not be.
fn hash(parts: &[&str]) -> String {
    STANDARD_NO_PAD.encode(Sha256::digest(json!(parts).to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn key() -> ApiKey {
        ApiKey::first_of("# ours\n\nAPIkey: the-secret-of-this-key\nold: gone\n").expect("a key")
    }

    #[test]
    fn names_are_the_hashes_that_other_programs_compute() {
        // MSC4195, "Hash derivation test vectors".
        assert_eq!(
            room_name("!roomid:example.com", "slot1234", None),
            "O8437W3+jmzMVjoIP3tNwbm+XxHQk2iKpOA7aqw3qSc"
        );
        assert_eq!(
            room_name("!roomid:example.com", "slot123", Some("random123")),
            "IMeDd+K3MIqJTI20EXBIrepKkhhORvf3q8fx3rlrhTk"
        );
        assert_eq!(
            identity(&["@alice:example.com", "memberABC"]),
            "M3VnsLXrkbxIDINXO64u8PZzFyD9ZYFiQULR2dshWYs"
        );
    }

    #[test]
    fn the_first_line_with_a_key_is_used() {
        assert!(key() == ApiKey { key: "APIkey".into(), secret: "the-secret-of-this-key".into() });
        assert!(ApiKey::first_of("\"a\" : 'b'") == ApiKey::first_of("a:b"));
        for wrong in ["", "# a: b", "a", "a:", ": b", "a: b c", "a:\n  b: c"] {
            assert!(ApiKey::first_of(wrong).is_none(), "{wrong}");
        }
        let long = format!("a: {}", "x".repeat(LONG_SECRET));
        assert!(ApiKey::first_of(&long).is_some_and(|key| key.has_long_secret()));
        assert!(!ApiKey::first_of(&long[..long.len() - 1]).expect("a key").has_long_secret());
    }

    #[test]
    fn a_token_says_who_where_and_until_when_and_is_signed() {
        let grants = Grants::to_join("a room", false);
        let token = key().sign(Some("ann"), &grants, 1_500_999, 60).expect("a token");
        let parts: Vec<_> = token.split('.').collect();
        let [header, claims, signature] = parts[..] else { panic!("{token}") };
        let read = |part: &str| -> Value {
            let bytes = URL_SAFE_NO_PAD.decode(part).expect("base64");
            serde_json::from_slice(&bytes).expect("JSON")
        };
        assert_eq!(read(header), json!({ "alg": "HS256", "typ": "JWT" }));
        assert_eq!(
            read(claims),
            json!({ "iss": "APIkey", "sub": "ann", "nbf": 1500, "exp": 1560, "video": {
                "room": "a room", "roomCreate": false, "roomJoin": true,
                "canPublish": false, "canSubscribe": true,
                "canUpdateOwnMetadata": false, "hidden": false,
            }})
        );
        let mac = Hmac::<Sha256>::new_from_slice(b"the-secret-of-this-key").expect("a key");
        let mac = mac.chain_update(format!("{header}.{claims}")).finalize().into_bytes();
        assert_eq!(signature, URL_SAFE_NO_PAD.encode(mac));
    }
}
