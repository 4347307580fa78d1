//! What single endpoints need of their bodies, besides what ruma checks: where there must be
//! objects, checks before a body is decoded, and changes to bodies that ruma refuses. The policies
//! of the endpoints name these.

use std::borrow::Cow;

use http::Uri;
use ruma::RoomVersionId;
use serde_json::{Map, Value};

use crate::http::{ApiError, ErrorCode, JsonPath, json_error, query_parameter};
use logcabin_record::address::is_opaque_id;

/// The structs of a filter (client-server API, "Filtering").
pub(super) const FILTER: &[JsonPath] = &[
    &["account_data"],
    &["presence"],
    &["room"],
    &["room", "account_data"],
    &["room", "ephemeral"],
    &["room", "state"],
    &["room", "timeline"],
];

pub(super) const AUTH: &[JsonPath] =
    &[&["auth"], &["auth", "identifier"], &["auth", "threepid_creds"]];

pub(super) const SIGNED_JOIN: &[JsonPath] = &[&["third_party_signed"]];

pub(super) const BIND: &[JsonPath] = &[&["three_pid_creds"]];

pub(super) const CREATE_ROOM: &[JsonPath] =
    &[&["creation_content"], &["initial_state", "*"], &["invite_3pid", "*"]];

pub(super) const CROSS_SIGNING: &[JsonPath] = &[
    &["auth"],
    &["auth", "identifier"],
    &["auth", "threepid_creds"],
    &["master_key"],
    &["self_signing_key"],
    &["user_signing_key"],
];

pub(super) const DEVICE_KEYS: &[JsonPath] =
    &[&["device_keys"], &["fallback_keys", "*"], &["one_time_keys", "*"]];

pub(super) const LOGIN: &[JsonPath] = &[&["identifier"]];

pub(super) const PUBLIC_ROOMS: &[JsonPath] = &[&["filter"]];

pub(super) const PUSHER: &[JsonPath] = &[&["data"]];

pub(super) const PUSH_RULE: &[JsonPath] = &[&["conditions", "*"]];

pub(super) const ROOM_KEYS: &[JsonPath] = &[&["rooms", "*"], &["rooms", "*", "sessions", "*"]];

pub(super) const ROOM_KEYS_OF_ROOM: &[JsonPath] = &[&["sessions", "*"]];

pub(super) const SEARCH: &[JsonPath] = &[
    &["search_categories"],
    &["search_categories", "room_events"],
    &["search_categories", "room_events", "event_context"],
    &["search_categories", "room_events", "filter"],
    &["search_categories", "room_events", "groupings"],
    &["search_categories", "room_events", "groupings", "group_by", "*"],
];

pub(super) const SLIDING_SYNC: &[JsonPath] = &[
    &["extensions"],
    &["extensions", "*"],
    &["lists", "*"],
    &["lists", "*", "filters"],
    &["room_subscriptions", "*"],
];

pub(super) const ADMIN_USER: &[JsonPath] = &[&["external_ids", "*"], &["threepids", "*"]];

/// `client_secret` and `sid` have a grammar of their own. ruma accepts any letters in them, and
/// reports everything else as a wrong type.
pub(super) fn secret_is_opaque(body: &[u8]) -> Result<(), ApiError> {
    #[derive(serde::Deserialize)]
    struct Ids {
        client_secret: Option<String>,
        sid: Option<String>,
    }
    // The decoder reports values of another type.
    let Ok(Ids { client_secret, sid }) = serde_json::from_slice(body) else { return Ok(()) };
    for (name, id) in [("client_secret", client_secret), ("sid", sid)] {
        if id.is_some_and(|id| !is_opaque_id(&id)) {
            let rule = "has 1 to 255 characters of 0-9, a-z, A-Z and . = _ -";
            return Err(ApiError::invalid_param(format!("`{name}` {rule}")));
        }
    }
    Ok(())
}

/// A text that is not a room version is an unsupported version.
pub(super) fn room_version_is_one(body: &[u8]) -> Result<(), ApiError> {
    #[derive(serde::Deserialize)]
    struct Versions {
        room_version: Option<String>,
        new_version: Option<String>,
    }
    // The decoder reports values of another type.
    let Ok(Versions { room_version, new_version }) = serde_json::from_slice(body) else {
        return Ok(());
    };
    for version in [room_version, new_version].into_iter().flatten() {
        if RoomVersionId::try_from(&*version).is_err() {
            let why = "This is not a room version.";
            return Err(ApiError::new(ErrorCode::UnsupportedRoomVersion, why));
        }
    }
    Ok(())
}

/// A login without a `type` makes ruma-client-api 0.25.2 panic.
pub(super) fn login_has_type(body: &[u8]) -> Result<(), ApiError> {
    #[derive(serde::Deserialize)]
    struct Login<'a> {
        #[serde(rename = "type", borrow)]
        _kind: Cow<'a, str>,
    }
    match serde_json::from_slice::<Login<'_>>(body) {
        Ok(_) => Ok(()),
        Err(error) => Err(json_error(&error, body)),
    }
}

/// Keeps only the profile field in the path, because ruma reads only the first one.
pub(super) fn field_of_profile(body: &mut Map<String, Value>, args: &[&str], _: &Uri) {
    if let Some(field) = args.last() {
        body.retain(|name, _| name == field);
    }
}

/// Keeps only the field that a guest registration uses.
pub(super) fn guest_registration(body: &mut Map<String, Value>, _: &[&str], uri: &Uri) {
    if query_parameter(uri, "kind").is_ok_and(|kind| kind.as_deref() == Some("guest")) {
        body.retain(|name, _| name == "initial_device_display_name");
    }
}

#[cfg(test)]
mod tests {
    use ruma::api::{
        IncomingRequest,
        client::{profile::set_profile_field, session::login},
    };

    use super::*;
    use crate::http::{Policy, cheap, decode_as};

    fn decode<R: IncomingRequest>(policy: Policy, args: &[&str], body: &'static [u8]) -> String {
        decode_as::<R>(policy, args, body).map_or_else(|error| error, |_| "ok".to_owned())
    }

    #[test]
    fn login_without_type_is_refused_before_ruma_panics() {
        let decode =
            |body| decode::<login::v3::Request>(cheap().checked(login_has_type), &[], body);
        assert_eq!(decode(b""), "M_NOT_JSON");
        assert_eq!(decode(b"{}"), "M_BAD_JSON");
        assert_eq!(decode(b"{\"type\":5}"), "M_BAD_JSON");
        assert_eq!(decode(b"{\"type\":,}"), "M_NOT_JSON");
        assert_eq!(decode(br#"{"type":"m.login.password","user":"ann","password":"x"}"#), "ok");
    }

    #[test]
    fn of_a_profile_the_field_that_the_path_names_is_read_wherever_it_stands() {
        let args = &["@a:example.org", "displayname"];
        let policy = cheap().amended(field_of_profile);
        let decode = |body| decode::<set_profile_field::v3::Request>(policy, args, body);
        assert_eq!(decode(br#"{"displayname":"A"}"#), "ok");
        assert_eq!(decode(br#"{"avatar_url":"b","displayname":"A"}"#), "ok");
        assert_eq!(decode(br#"{"x":{"displayname":1},"displayname":"A"}"#), "ok");
        for body in [&br#"{}"#[..], br#"{"avatar_url":"b"}"#, br#"{"x":1,"displayname":5}"#] {
            assert_eq!(decode(body), "M_BAD_JSON");
        }
        assert_eq!(decode(br#"{"x":1,,}"#), "M_NOT_JSON");
    }
}
