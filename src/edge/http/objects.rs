//! Where a body must have an object.
//!
//! serde reads a struct from an array of its members as gladly as from an object, at any depth. The
//! specification's schemas know objects alone, so the places at which a body has a struct are
//! listed here and checked once the body was decoded.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::ApiError;

/// The way to a struct from the top of a body. `*` stands for every member of an object and for
/// every element of an array.
pub(crate) type Place = &'static [&'static str];

/// The structs of a filter (client-server API, "Filtering").
pub(crate) const FILTER: &[Place] = &[
    &["account_data"],
    &["presence"],
    &["room"],
    &["room", "account_data"],
    &["room", "ephemeral"],
    &["room", "state"],
    &["room", "timeline"],
];

const AUTH: &[Place] = &[&["auth"], &["auth", "identifier"], &["auth", "threepid_creds"]];

const SIGNED_JOIN: &[Place] = &[&["third_party_signed"]];

/// The endpoints whose bodies have structs below the top: the end of each one's path, and where
/// they are.
const ENDPOINTS: &[(&str, &[Place])] = &[
    ("/account/3pid", &[&["three_pid_creds"]]),
    ("/account/3pid/add", AUTH),
    ("/account/deactivate", AUTH),
    ("/account/password", AUTH),
    ("/createRoom", &[&["creation_content"], &["initial_state", "*"], &["invite_3pid", "*"]]),
    ("/delete_devices", AUTH),
    ("/devices/{device_id}", AUTH),
    (
        "/keys/device_signing/upload",
        &[
            &["auth"],
            &["auth", "identifier"],
            &["auth", "threepid_creds"],
            &["master_key"],
            &["self_signing_key"],
            &["user_signing_key"],
        ],
    ),
    ("/keys/upload", &[&["device_keys"], &["fallback_keys", "*"], &["one_time_keys", "*"]]),
    ("/login", &[&["identifier"]]),
    ("/login/get_token", AUTH),
    ("/publicRooms", &[&["filter"]]),
    ("/pushers/set", &[&["data"]]),
    ("/pushrules/global/{kind}/{rule_id}", &[&["conditions", "*"]]),
    ("/register", AUTH),
    ("/room_keys/keys", &[&["rooms", "*"], &["rooms", "*", "sessions", "*"]]),
    ("/room_keys/keys/{room_id}", &[&["sessions", "*"]]),
    ("/rooms/{room_id}/join", SIGNED_JOIN),
    ("/join/{room_id_or_alias}", SIGNED_JOIN),
    (
        "/search",
        &[
            &["search_categories"],
            &["search_categories", "room_events"],
            &["search_categories", "room_events", "event_context"],
            &["search_categories", "room_events", "filter"],
            &["search_categories", "room_events", "groupings"],
            &["search_categories", "room_events", "groupings", "group_by", "*"],
        ],
    ),
    (
        "/simplified_msc3575/sync",
        &[
            &["extensions"],
            &["extensions", "*"],
            &["lists", "*"],
            &["lists", "*", "filters"],
            &["room_subscriptions", "*"],
        ],
    ),
    ("/user/{user_id}/filter", FILTER),
    ("/_synapse/admin/v2/users/{user_id}", &[&["external_ids", "*"], &["threepids", "*"]]),
];

/// Where the bodies of this endpoint have structs, by the path that it is registered with.
pub(crate) fn of(path: &str) -> &'static [Place] {
    // The longest end: one endpoint's may be the end of another's.
    let ends = ENDPOINTS.iter().filter(|(end, _)| path.ends_with(end));
    ends.max_by_key(|(end, _)| end.len()).map_or(&[], |(_, places)| *places)
}

/// Checks that there is no array at any of `places`.
///
/// # Errors
/// `M_BAD_JSON`. What is no JSON at all is for others to find.
pub(crate) fn check(body: &[u8], places: &[Place]) -> Result<(), ApiError> {
    if places.is_empty() || !body.contains(&b'[') {
        return Ok(());
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let walk = Walk { name: "", rest: places.to_vec() };
    match walk.deserialize(&mut json) {
        Err(error) if error.is_data() => Err(ApiError::bad_json(error.to_string())),
        _ => Ok(()),
    }
}

/// A walk to the places that are still ahead, from the member `name` on.
struct Walk<'a> {
    name: &'a str,
    rest: Vec<Place>,
}

impl Walk<'_> {
    /// The places that lie within the member `name`.
    fn within(&self, name: &str) -> Vec<Place> {
        let inside = |place: &Place| match place.split_first() {
            Some((first, rest)) if *first == name || *first == "*" => Some(rest),
            _ => None,
        };
        self.rest.iter().filter_map(inside).collect()
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.rest.is_empty() {
            return deserializer.deserialize_ignored_any(IgnoredAny).map(drop);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            map.next_value_seed(Walk { name: &name, rest: self.within(&name) })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        if self.rest.iter().any(|place| place.is_empty()) {
            return Err(A::Error::custom(format!("`{}` must be an object", self.name)));
        }
        let rest = self.within("*");
        while seq.next_element_seed(Walk { name: self.name, rest: rest.clone() })?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_fine(path: &str, body: &str) -> bool {
        check(body.as_bytes(), of(path)).is_ok()
    }

    #[test]
    fn an_array_in_the_place_of_an_object_is_refused_at_any_depth() {
        for (path, body) in [
            ("/_matrix/client/v3/register", r#"{"auth":["m.login.dummy"]}"#),
            ("/_matrix/client/v3/register", r#"{"auth":{"identifier":["m.id.user","a"]}}"#),
            ("/_matrix/client/v3/user/{user_id}/filter", r#"{"room":[]}"#),
            ("/_matrix/client/v3/user/{user_id}/filter", r#"{"room":{"timeline":[5]}}"#),
            ("/_matrix/client/v3/createRoom", r#"{"initial_state":[{},["m.room.topic",{}]]}"#),
            ("/_matrix/client/v3/room_keys/keys", r#"{"rooms":{"!a":{"sessions":{"s":[1]}}}}"#),
            ("/_matrix/client/v3/search", r#"{"search_categories":{"room_events":["a"]}}"#),
        ] {
            assert!(!is_fine(path, body), "{path} {body}");
        }
    }

    #[test]
    fn arrays_stand_where_the_schema_has_them() {
        for (path, body) in [
            ("/_matrix/client/v3/register", r#"{"auth":{"x":[1]},"identifier":[]}"#),
            ("/_matrix/client/v3/user/{user_id}/filter", r#"{"room":{"rooms":["!a"]},"x":[[]]}"#),
            ("/_matrix/client/v3/createRoom", r#"{"invite":["@a:b"],"initial_state":[{"a":[]}]}"#),
            ("/_matrix/client/v3/join/{room_id_or_alias}", r#"{"reason":["auth"]}"#),
            ("/_matrix/client/v3/elsewhere", r#"{"auth":[]}"#),
            // For the decoder to find.
            ("/_matrix/client/v3/register", r#"{"auth":{[}"#),
        ] {
            assert!(is_fine(path, body), "{path} {body}");
        }
    }
}
