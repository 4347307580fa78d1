//! Masks secrets before records are shown: neither the server's private key nor anything from which
//! a password or token could be guessed leaves the log through these tools.

use serde_json::Value;

use super::{Record, command::PasswordFlags};

/// Replaces a secret that is hidden entirely.
const HIDDEN: &str = "(hidden)";

/// The members that contain what users wrote. Nothing below them is a secret of the server,
/// whatever it is called.
const OPAQUE: [&str; 3] = ["pdu", "content", "filter"];

/// The payload of `record` with its secrets masked; `None` if it was erased or sealed.
pub fn payload(record: &Record) -> Option<Value> {
    let bytes = record.payload.bytes()?;
    if !record.header.seal_key.is_empty() {
        return None;
    }
    Some(match serde_json::from_slice(bytes) {
        Ok(mut value) => {
            mask(&mut value);
            value
        }
        // An unreadable payload cannot be masked.
        Err(_) => Value::String(format!("({} bytes that are not JSON)", bytes.len())),
    })
}

/// Masks by member name rather than by kind, so that kinds that are added later are covered.
fn mask(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                match name.as_str() {
                    name if OPAQUE.contains(&name) => {}
                    "password" => shorten(value, password),
                    "access" | "refresh" | "client_secret" | "registration_token" | "code"
                    | "device_code" | "user_code" | "browser" => {
                        shorten(value, |hash| hash_start(&hash));
                    }
                    "browsers" => {
                        for value in value.as_array_mut().into_iter().flatten() {
                            shorten(value, |hash| hash_start(&hash));
                        }
                    }
                    // The last two belong to a pusher: with them anyone can send to the device.
                    "private_key" | "secret" | "token" | "delay_id" | "pushkey" | "data" => {
                        shorten(value, |_| HIDDEN.to_owned())
                    }
                    _ => mask(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(mask),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn shorten(value: &mut Value, shorter: impl Fn(String) -> String) {
    if !value.is_null() {
        let whole = value.as_str().map(str::to_owned);
        *value = Value::String(whole.map_or_else(|| HIDDEN.to_owned(), shorter));
    }
}

/// The scheme and its cost, which show whether a hash is still strong enough. Before them, for a
/// hash of another server, what else a check needs, such as a pepper.
fn password(stored: String) -> String {
    let hash = PasswordFlags::split(&stored).map_or(&*stored, |(_, hash)| hash);
    let flags = stored.strip_suffix(hash).unwrap_or_default();
    let mut parts = hash.split('$').skip(1);
    let (Some(scheme), Some(cost), Some(third)) = (parts.next(), parts.next(), parts.next()) else {
        return HIDDEN.to_owned();
    };
    match (scheme, parts.next()) {
        // The second part is the version.
        ("argon2id", Some(_)) if third.starts_with("m=") => {
            format!("{flags}${scheme}${cost}${third}$…")
        }
        _ => format!("{flags}${scheme}${cost}$…"),
    }
}

/// Enough to tell tokens apart, and far too little to look one up.
fn hash_start(hash: &str) -> String {
    match hash.get(..8) {
        Some(start) if hash.len() >= 64 => format!("{start}…"),
        _ => HIDDEN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_masked_wherever_they_stand() {
        let mut value = json!({
            "password": "$pbkdf2-sha512$i=210000$c2FsdA$aGFzaA",
            "private_key": "MFECAQ",
            "nested": [{ "tokens": { "access": "ab".repeat(32), "refresh": "short", "expires_ms": 5 } }],
        });
        mask(&mut value);
        assert_eq!(
            value,
            json!({
                "password": "$pbkdf2-sha512$i=210000$…",
                "private_key": "(hidden)",
                "nested": [{ "tokens": { "access": "abababab…", "refresh": "(hidden)", "expires_ms": 5 } }],
            })
        );
        for (imported, shown) in [
            ("{nfkc}$2b$12$c2FsdA", "{nfkc}$2b$12$…"),
            ("{nfkc,pepper}$2b$12$c2FsdA", "{nfkc,pepper}$2b$12$…"),
            ("{secret}$2b$12$c2FsdA", "$2b$12$…"),
            ("{}$argon2id$v=19$m=64,t=2,p=1$c2FsdA$aGFzaA", "{}$argon2id$v=19$m=64,t=2,p=1$…"),
            ("{}$argon2id$c2FsdA$aGFzaA", "{}$argon2id$c2FsdA$…"),
        ] {
            let mut value = json!({ "password": imported });
            mask(&mut value);
            assert_eq!(value, json!({ "password": shown }));
        }
        let mut plain = json!({ "password": "no scheme" });
        mask(&mut plain);
        assert_eq!(plain, json!({ "password": "(hidden)" }));
    }

    #[test]
    fn what_users_wrote_is_left_alone() {
        let written = json!({ "pdu": { "content": { "password": "of the wifi" } } });
        let mut value = written.clone();
        mask(&mut value);
        assert_eq!(value, written);
    }
}
