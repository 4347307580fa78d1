//! Event format 1, of room versions 1 and 2: the server that makes an event chooses its id, and an
//! event names others with their hashes (room version 1, "Event IDs" and "Event format").
//!
//! Nobody verifies these hashes, so they prove nothing. The id of an event says nothing about its
//! content, so two different events may have the same id.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, EventId, OwnedEventId, ServerName,
    room_version_rules::RoomVersionRules,
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::lax_object::{LaxError, LaxObject};
use logcabin_base::limits;

/// The members that name other events.
const NAMING: [&str; 2] = ["prev_events", "auth_events"];

/// An event as format 1 names it: its id, and its hashes.
#[derive(Deserialize)]
pub struct Pair<T>(pub T, IgnoredAny);

/// Whether events of a room have format 1.
pub const fn has_chosen_ids(rules: &RoomVersionRules) -> bool {
    rules.event_format.require_event_id
}

/// The ids of the events that a member of an event names, in either format.
pub fn named<'a>(event: &'a CanonicalJsonObject, member: &str) -> impl Iterator<Item = &'a str> {
    let names = event.get(member).and_then(CanonicalJsonValue::as_array);
    names.into_iter().flatten().filter_map(|name| match name {
        CanonicalJsonValue::Array(pair) => pair.first()?.as_str(),
        name => name.as_str(),
    })
}

/// A list of events as the format of a room names them, each with its reference hash, if that is
/// known.
pub fn references<'a>(
    events: impl IntoIterator<Item = (&'a EventId, Option<String>)>,
    rules: &RoomVersionRules,
) -> CanonicalJsonValue {
    let with_hash = has_chosen_ids(rules);
    let events = events.into_iter().map(|(event_id, hash)| {
        let event_id = CanonicalJsonValue::String(event_id.to_string());
        if !with_hash {
            return event_id;
        }
        let hash = hash.map(|hash| ("sha256".to_owned(), CanonicalJsonValue::String(hash)));
        let hashes = CanonicalJsonValue::Object(hash.into_iter().collect());
        CanonicalJsonValue::Array(vec![event_id, hashes])
    });
    CanonicalJsonValue::Array(events.collect())
}

/// Whether two events with the same id are different. They can be only in rooms of versions 1 and
/// 2.
pub fn differ(one: &RawValue, other: &RawValue, rules: &RoomVersionRules) -> bool {
    let hash = |event: &RawValue| LaxObject::parse(event.get()).ok()?.reference_hash(rules).ok();
    has_chosen_ids(rules) && hash(one) != hash(other)
}

/// The id that the maker of an event chose. It ends in a server's name, unlike those of later
/// formats: so an event of a room of version 1 or 2 is never taken for one of another room.
pub(super) fn chosen_id(event: &CanonicalJsonObject) -> Result<OwnedEventId, LaxError> {
    let id = event.get("event_id").and_then(CanonicalJsonValue::as_str);
    let id = id.ok_or_else(|| LaxError::of("it has no id"))?;
    if id.len() > limits::EVENT_FIELD_BYTES {
        return Err(LaxError::of("its id is too long"));
    }
    let id = OwnedEventId::try_from(id).map_err(LaxError::of)?;
    if id.server_name().is_none() {
        return Err(LaxError::of("its id names no server"));
    }
    Ok(id)
}

/// Checks the id of an event, and how it names others.
pub(super) fn check(event: &CanonicalJsonObject) -> Result<(), LaxError> {
    let own = chosen_id(event)?;
    for member in NAMING {
        let names = event.get(member).and_then(CanonicalJsonValue::as_array);
        for name in names.into_iter().flatten() {
            let Some([CanonicalJsonValue::String(id), CanonicalJsonValue::Object(_)]) =
                name.as_array()
            else {
                return Err(LaxError::of(format_args!("its {member} are no pairs with hashes")));
            };
            if id.len() > limits::EVENT_FIELD_BYTES || <&EventId>::try_from(id.as_str()).is_err() {
                return Err(LaxError::of(format_args!("its {member} have an id that is none")));
            }
            if id == own.as_str() {
                return Err(LaxError::of(format_args!("it names itself in its {member}")));
            }
        }
    }
    Ok(())
}

impl LaxObject {
    /// Gives it an id of this server, if the format of its room needs one. The id is derived from
    /// its content, so that no random value has to be drawn; others do not rely on that.
    pub fn choose_id(&mut self, server: &ServerName, rules: &RoomVersionRules) {
        if has_chosen_ids(rules) {
            self.remove("event_id");
            let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(self.to_text()));
            let id = CanonicalJsonValue::String(format!("${hash}:{server}"));
            self.insert("event_id".to_owned(), id);
        }
    }
}

#[cfg(test)]
mod tests {
    use ruma::{RoomVersionId, server_name};
    use serde_json::json;

    use super::*;

    fn event(id: &serde_json::Value, prev: &serde_json::Value) -> LaxObject {
        let event = json!({
            "type": "m.room.message", "room_id": "!r:a.example", "sender": "@u:a.example",
            "content": {}, "depth": 3, "origin_server_ts": 5, "event_id": id,
            "prev_events": prev, "auth_events": [["$c:a.example", { "sha256": "x" }]],
        });
        LaxObject::parse(&event.to_string()).unwrap()
    }

    #[test]
    fn an_id_is_what_its_maker_chose_within_limits() {
        let (rules, prev) = (RoomVersionId::V1.rules().unwrap(), json!([]));
        for id in ["$a:a.example", "$ä b:a.example:8448", "$:a.example"] {
            let event = event(&json!(id), &prev);
            assert_eq!(event.event_id(&rules).unwrap().as_str(), id);
            assert!(event.check_format(&rules).is_ok(), "{id}");
        }
        let long = |length: usize| format!("${}:a.example", "x".repeat(length - 11));
        assert!(event(&json!(long(255)), &prev).check_format(&rules).is_ok());
        let hash = "$u1Xb0o2yE6gwmPF1DFN7xw2Pc-8pmlwd2oe8MYqnOWI";
        for id in [json!(long(256)), json!("a:a.example"), json!(hash), json!("$a:"), json!(7)] {
            assert!(event(&id, &prev).event_id(&rules).is_err(), "{id}");
            assert!(event(&id, &prev).check_format(&rules).is_err(), "{id}");
        }
    }

    #[test]
    fn others_are_named_in_pairs_with_hashes() {
        let rules = RoomVersionId::V2.rules().unwrap();
        let id = json!("$a:a.example");
        let fine = event(&id, &json!([["$b:b.example", {}], ["$d:b.example", { "md5": 1 }]]));
        assert!(fine.check_format(&rules).is_ok());
        let ids: Vec<_> = named(&fine, "prev_events").collect();
        assert_eq!(ids, ["$b:b.example", "$d:b.example"]);
        for name in [
            json!("$b:b.example"),
            json!(["$b:b.example"]),
            json!(["$b:b.example", "x"]),
            json!(["$b:b.example", {}, {}]),
            json!(["b:b.example", {}]),
            json!(["$a:a.example", {}]),
            json!([[], {}]),
        ] {
            assert!(event(&id, &json!([name])).check_format(&rules).is_err(), "{name}");
        }
        let b = ruma::event_id!("$b:b.example");
        let written = references([(b, Some("x".to_owned())), (b, None)], &rules);
        let expected = json!([["$b:b.example", { "sha256": "x" }], ["$b:b.example", {}]]);
        assert_eq!(written.to_string(), expected.to_string());
        let rules = RoomVersionId::V3.rules().unwrap();
        let written = references([(b, Some("x".to_owned()))], &rules);
        assert_eq!(written.to_string(), r#"["$b:b.example"]"#);
    }

    #[test]
    fn different_events_get_different_ids_in_rooms_with_chosen_ids_only() {
        let server = server_name!("a.example");
        let rules = RoomVersionId::V1.rules().unwrap();
        let chosen = |prev: serde_json::Value| {
            let mut event = event(&json!("$other:b.example"), &prev);
            event.choose_id(server, &rules);
            event.event_id(&rules).unwrap()
        };
        let (one, other) = (chosen(json!([])), chosen(json!([["$b:b.example", {}]])));
        assert_ne!(one, other);
        assert_eq!(one, chosen(json!([])));
        assert_eq!(one.server_name(), Some(server));
        let mut later = LaxObject::parse(r#"{"type":"t"}"#).unwrap();
        later.choose_id(server, &RoomVersionId::V3.rules().unwrap());
        assert!(!later.contains_key("event_id"));
    }
}
