//! Where a body must have an object.
//!
//! serde also reads a struct from an array of its members, at any depth. The schemas of the
//! specification allow only objects, so an endpoint's policy lists the places at which its bodies
//! have a struct, and they are checked once the body is decoded.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::ApiError;

/// The path to a struct from the top of a body. `*` stands for every member of an object and for
/// every element of an array.
pub type JsonPath = &'static [&'static str];

/// Checks that there is no array at any of `places`.
///
/// # Errors
/// `M_BAD_JSON`. Text that is not JSON at all is found elsewhere.
pub fn check(body: &[u8], places: &[JsonPath]) -> Result<(), ApiError> {
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
    rest: Vec<JsonPath>,
}

impl Walk<'_> {
    /// The places that lie within the member `name`.
    fn within(&self, name: &str) -> Vec<JsonPath> {
        let inside = |place: &JsonPath| match place.split_first() {
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

    const PLACES: &[JsonPath] = &[
        &["auth"],
        &["auth", "identifier"],
        &["initial_state", "*"],
        &["rooms", "*"],
        &["rooms", "*", "sessions", "*"],
    ];

    fn is_fine(body: &str) -> bool {
        check(body.as_bytes(), PLACES).is_ok()
    }

    #[test]
    fn an_array_in_the_place_of_an_object_is_refused_at_any_depth() {
        for body in [
            r#"{"auth":["m.login.dummy"]}"#,
            r#"{"auth":{"identifier":["m.id.user","a"]}}"#,
            r#"{"initial_state":[{},["m.room.topic",{}]]}"#,
            r#"{"rooms":{"!a":{"sessions":{"s":[1]}}}}"#,
        ] {
            assert!(!is_fine(body), "{body}");
        }
    }

    #[test]
    fn arrays_are_allowed_where_the_schema_has_them() {
        for body in [
            r#"{"auth":{"x":[1]},"identifier":[]}"#,
            r#"{"invite":["@a:b"],"initial_state":[{"a":[]}]}"#,
            // For the decoder to find.
            r#"{"auth":{[}"#,
        ] {
            assert!(is_fine(body), "{body}");
        }
        assert!(check(br#"{"auth":[]}"#, &[]).is_ok());
    }
}
