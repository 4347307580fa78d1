//! From bytes to a typed request, with a separate error for each way in which that can fail.
//!
//! ruma decodes. Where it accepts what it should refuse, or refuses what it should accept, this is
//! handled here and nowhere else:
//!
//! - a JSON body must be one object, well formed to its last byte, of bounded depth (ruma reads
//!   arrays as objects, and raw event content of any depth, and stops at the end of raw content);
//! - nested objects must be objects, too ([`objects`]);
//! - an empty body is read as `{}`, since clients send none to endpoints such as join and logout;
//! - ruma-client-api 0.25.2 panics on some bodies: decoding stands behind a fence that turns a
//!   panic into `M_BAD_JSON`;
//! - parameters without a value, and habits of clients in bodies (see [`amended`]), are read as
//!   they are meant. Bodies are amended only once ruma has refused them: others pay nothing.
//!
//! Single endpoints need checks and amendments of their own, which their policy states
//! ([`Checks`]).

use std::{
    borrow::Cow,
    panic::{AssertUnwindSafe, catch_unwind},
};

use bytes::Bytes;
use http::{Request, Uri};
use percent_encoding::percent_decode_str;
use ruma::api::{
    IncomingRequest, IncomingRequestExt as _,
    error::{DeserializationError, FromHttpRequestError},
};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value, json};

use super::{
    ApiError,
    objects::{self, JsonPath},
};
use logcabin_base::{clock::millis, json_error::describe, limits};

/// A check of one endpoint's body that ruma does not make, or not without harm.
pub(crate) type Precheck = fn(&[u8]) -> Result<(), ApiError>;

/// A change to a body that ruma has refused, given the parameters of the path and the address.
pub(crate) type Amend = fn(&mut Map<String, Value>, &[&str], &Uri);

/// The checks and changes that the bodies of one endpoint need, besides those of all endpoints.
#[derive(Clone, Copy)]
pub(crate) struct Checks {
    pub(super) before: Option<Precheck>,
    pub(super) objects: &'static [JsonPath],
    pub(super) amend: Option<Amend>,
}

impl Checks {
    pub(super) const NONE: Self = Self { before: None, objects: &[], amend: None };
}

/// The segments of a path that stand for parameters, each decoded by itself, so that an encoded
/// slash stays within its segment.
pub(crate) fn path_args<'a>(
    segments: impl Iterator<Item = &'a str>,
) -> Result<Vec<Cow<'a, str>>, ApiError> {
    segments
        .map(|segment| {
            percent_decode_str(segment)
                .decode_utf8()
                .map_err(|_| ApiError::invalid_param("A part of the path is not UTF-8."))
        })
        .collect()
}

/// The first parameter of this name in the query, decoded; `None` if it is not there or empty.
pub(crate) fn query_parameter(uri: &Uri, name: &str) -> Result<Option<String>, ApiError> {
    for pair in uri.query().unwrap_or_default().split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if key != name && percent_decode_str(key).decode_utf8().is_ok_and(|key| key != name) {
            continue;
        }
        let value = value.replace('+', " ");
        let value = percent_decode_str(&value).decode_utf8().map_err(|_| {
            ApiError::invalid_param(format!("The parameter `{name}` is not UTF-8."))
        })?;
        return Ok(Some(value.into_owned()).filter(|value| !value.is_empty()));
    }
    Ok(None)
}

/// The query of a request that ruma has no type for. Parameters without a value count as not given.
pub fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, ApiError> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let given: Vec<_> = pairs.filter(|pair| !pair.ends_with('=')).collect();
    serde_html_form::from_str(&given.join("&")).map_err(|error| {
        let message = error.to_string();
        if message.contains("missing field") {
            ApiError::missing_param(message)
        } else {
            ApiError::invalid_param(message)
        }
    })
}

/// The body of a request that ruma has no type for, or one that lacks something.
pub fn body<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::bad_json(describe(&error, body)))
}

/// Like [`body`], but a missing field is `M_MISSING_PARAM`.
pub(crate) fn parameters<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| match describe(&error, body) {
        missing if missing.starts_with("missing field") => ApiError::missing_param(missing),
        other => ApiError::bad_json(other),
    })
}

/// The JSON body of a request, checked: one well-formed object that nests no deeper than `depth`.
/// A missing body is refused unless `may_be_missing`: it may have been lost on its way, and with it
/// what the request would replace.
pub(crate) fn json_body(
    body: Bytes,
    depth: usize,
    may_be_missing: bool,
) -> Result<Bytes, ApiError> {
    let Some(first) = body.iter().position(|byte| !byte.is_ascii_whitespace()) else {
        return match may_be_missing {
            true => Ok(Bytes::from_static(b"{}")),
            false => Err(ApiError::not_json("The body is missing. Send a JSON object: `{}`.")),
        };
    };
    if std::str::from_utf8(&body).is_err() {
        return Err(ApiError::not_json("The body is not UTF-8."));
    }
    if body[first] != b'{' {
        return Err(if is_json(&body) {
            ApiError::bad_json("The body must be a JSON object.")
        } else {
            ApiError::not_json("The body is not JSON.")
        });
    }
    match check_nesting(&body[first..], depth) {
        // Not every request type reads the body, so invalid JSON is refused before any sees it.
        Nesting::Fine if !is_json(&body) => Err(ApiError::not_json("The body is not JSON.")),
        Nesting::Fine => Ok(body),
        Nesting::TooDeep => Err(ApiError::bad_json("The body nests too deeply.")),
        Nesting::Unbalanced => Err(ApiError::not_json("The body is not one JSON object.")),
    }
}

/// Decodes a request whose JSON body has passed [`json_body`].
pub(crate) fn request<R: IncomingRequest>(
    request: Request<&[u8]>,
    args: &[Cow<'_, str>],
    checks: Checks,
) -> Result<R, ApiError> {
    let body = *request.body();
    if let Some(before) = checks.before {
        before(body)?;
    }
    let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    let request = without_empty_parameters(request);
    let uri = request.uri().clone();
    match fenced::<R>(request, &args)? {
        Ok(request) => objects::check(body, checks.objects).map(|()| request),
        Err(error) => {
            let amended = amended(&error, body, checks.amend, &args, &uri)
                .ok_or_else(|| decode_error(error, body))?;
            // No endpoint with a JSON body looks at headers.
            let mut again = Request::new(&amended[..]);
            *again.method_mut() = R::METHOD;
            *again.uri_mut() = uri;
            let request =
                fenced::<R>(again, &args)?.map_err(|error| decode_error(error, &amended))?;
            objects::check(&amended, checks.objects).map(|()| request)
        }
    }
}

/// Decodes, and turns a panic into a refusal.
fn fenced<R: IncomingRequest>(
    request: Request<&[u8]>,
    args: &[&str],
) -> Result<Result<R, FromHttpRequestError>, ApiError> {
    // Unwind safe: what decoding has built is dropped, and the inputs are only read.
    catch_unwind(AssertUnwindSafe(|| R::try_from_http_request(request, args))).map_err(|_| {
        ApiError::bad_json("The body cannot be read.")
            .with_cause("ruma panicked while decoding the request")
    })
}

/// Leaves out the parameters of the query that have a name but no value: clients write them for
/// what they do not set, and ruma cannot read them as a number, a filter or a server.
fn without_empty_parameters(mut request: Request<&[u8]>) -> Request<&[u8]> {
    let uri = request.uri();
    let Some(query) = uri.query().filter(|q| q.contains("=&") || q.ends_with('=')) else {
        return request;
    };
    let has_value = |pair: &&str| pair.split_once('=').is_none_or(|(_, value)| !value.is_empty());
    let given: Vec<&str> = query.split('&').filter(has_value).collect();
    if let Ok(shorter) = Uri::try_from(format!("{}?{}", uri.path(), given.join("&"))) {
        *request.uri_mut() = shorter;
    }
    request
}

fn is_of_body(error: &FromHttpRequestError) -> bool {
    matches!(error, FromHttpRequestError::Deserialization(DeserializationError::Json(_)))
}

/// The largest body that is amended: as a value, one takes very many times its size.
const AMENDED_BYTES: usize = 256 * 1024;

/// A refused body, changed so that ruma may accept it, if it has something that the specification
/// allows, or that clients send and other servers accept:
///
/// - `null` for a field that could be left out;
/// - an `auth` with nothing in it, which stands for none;
/// - a user named by `user` instead of `identifier` when proving a password;
/// - a captcha without its `response`, which is still to be solved;
/// - `typing` without the `timeout`, which is optional;
/// - a push rule without `conditions`, which are optional as well;
/// - whatever `amend` changes for this endpoint.
///
/// This does not depend on the type of the request, so it is compiled once.
fn amended(
    error: &FromHttpRequestError,
    body: &[u8],
    amend: Option<Amend>,
    args: &[&str],
    uri: &Uri,
) -> Option<Vec<u8>> {
    if !is_of_body(error) || body.len() > AMENDED_BYTES {
        return None;
    }
    let original: Map<String, Value> = serde_json::from_slice(body).ok()?;
    let mut amended = original.clone();
    if let Some(amend) = amend {
        amend(&mut amended, args, uri);
    }
    amended.retain(|name, value| {
        !(value.is_null() || name == "auth" && value.as_object().is_some_and(Map::is_empty))
    });
    if let Some(auth) = amended.get_mut("auth").and_then(Value::as_object_mut)
        && auth.get("type").is_some_and(|kind| kind == "m.login.password")
        && !auth.contains_key("identifier")
        && let Some(user) = auth.get("user").cloned()
    {
        auth.insert("identifier".to_owned(), json!({ "type": "m.id.user", "user": user }));
    }
    if let Some(auth) = amended.get_mut("auth").and_then(Value::as_object_mut)
        && auth.get("type").is_some_and(|kind| kind == "m.login.recaptcha")
    {
        auth.entry("response").or_insert_with(|| json!(""));
    }
    if amended.get("typing") == Some(&Value::Bool(true)) {
        let timeout = millis(limits::TYPING);
        amended.entry("timeout").or_insert_with(|| json!(timeout));
    }
    if amended.contains_key("actions") {
        amended.entry("conditions").or_insert_with(|| json!([]));
    }
    (amended != original).then(|| Value::Object(amended).to_string().into_bytes())
}

fn decode_error(error: FromHttpRequestError, body: &[u8]) -> ApiError {
    match error {
        FromHttpRequestError::Deserialization(DeserializationError::Json(error)) => {
            json_error(&error, body)
        }
        FromHttpRequestError::Deserialization(DeserializationError::Utf8(_)) => {
            ApiError::not_json("The body is not UTF-8.")
        }
        // Parts of the path come as this variant too.
        FromHttpRequestError::Deserialization(DeserializationError::Query(error)) => {
            let message = error.to_string();
            if message.contains("missing field") {
                ApiError::missing_param(message)
            } else {
                ApiError::invalid_param(message)
            }
        }
        FromHttpRequestError::Deserialization(DeserializationError::Header(error)) => {
            ApiError::missing_param(error.to_string())
        }
        FromHttpRequestError::Deserialization(error) => ApiError::invalid_param(error.to_string()),
        FromHttpRequestError::MethodMismatch { .. } => ApiError::no_such_method(),
        error => ApiError::bad_request("The request cannot be read.").with_cause(error.to_string()),
    }
}

/// The error for a body that cannot be decoded. The decoder's own category is not enough: it may
/// meet a value of the wrong type before the place where the JSON breaks, and some of ruma's
/// request types stop in the middle of an object that lacks what they look for.
pub fn json_error(error: &serde_json::Error, body: &[u8]) -> ApiError {
    if is_json(body) {
        // A missing field of the body is `M_BAD_JSON` in the specification's words.
        ApiError::bad_json(describe(error, body))
    } else {
        ApiError::not_json("The body is not JSON.")
    }
}

fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(body).is_ok()
}

#[derive(Debug, PartialEq, Eq)]
enum Nesting {
    Fine,
    TooDeep,
    Unbalanced,
}

/// Walks once through a text that begins with `{`. Checks that its brackets close exactly at its
/// end, and how deep they nest; the parser finds all other errors.
fn check_nesting(text: &[u8], most: usize) -> Nesting {
    let mut depth = 0_usize;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => loop {
                match bytes.next() {
                    Some(b'"') => break,
                    Some(b'\\') => {
                        bytes.next();
                    }
                    Some(_) => {}
                    None => return Nesting::Unbalanced,
                }
            },
            b'{' | b'[' => {
                depth += 1;
                if depth > most {
                    return Nesting::TooDeep;
                }
            }
            b'}' | b']' => {
                // Never below zero: the first byte opens, and at zero the walk ends.
                depth -= 1;
                if depth == 0 {
                    return if bytes.all(u8::is_ascii_whitespace) {
                        Nesting::Fine
                    } else {
                        Nesting::Unbalanced
                    };
                }
            }
            _ => {}
        }
    }
    Nesting::Unbalanced
}

/// Decodes a request with this body as an endpoint with this policy does, for tests; returns the
/// code of the refusal.
#[cfg(test)]
pub(crate) fn decode_as<R: IncomingRequest>(
    policy: super::Policy,
    args: &[&str],
    body: &'static [u8],
) -> Result<R, String> {
    let may_lack = policy.may_lack_body == Some(true);
    let body = json_body(Bytes::from_static(body), limits::JSON_DEPTH, may_lack);
    let decoded = body.and_then(|body| {
        let mut http = Request::new(&body[..]);
        *http.method_mut() = R::METHOD;
        let args: Vec<_> = args.iter().map(|arg| Cow::Borrowed(*arg)).collect();
        request::<R>(http, &args, policy.checks)
    });
    decoded.map_err(|error| error.code().as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use ruma::api::client::{
        account::register, membership::join_room_by_id, message::send_message_event,
        session::login, state::send_state_event, typing::create_typing_event,
        user_directory::search_users,
    };

    use super::*;

    fn json_of(body: Bytes) -> Result<Bytes, ApiError> {
        json_body(body, limits::JSON_DEPTH, false)
    }

    fn code(result: Result<impl Sized, ApiError>) -> &'static str {
        result.map_or_else(|error| error.code().as_str(), |_| "ok")
    }

    fn decode<R: IncomingRequest>(uri: &str, args: &[&str], body: &'static [u8]) -> &'static str {
        let body = Bytes::from_static(body);
        // The body of a GET is ignored.
        let body = if R::METHOD == http::Method::GET { Ok(body) } else { json_of(body) };
        let result = body.and_then(|body| {
            let http = Request::builder().method(R::METHOD).uri(uri).body(&body[..]).unwrap();
            let args: Vec<_> = args.iter().map(|arg| Cow::Borrowed(*arg)).collect();
            request::<R>(http, &args, Checks::NONE)
        });
        code(result)
    }

    #[test]
    fn bodies_that_are_not_objects_are_refused() {
        for (body, expected) in [
            (&b""[..], "M_NOT_JSON"),
            (b" \n", "M_NOT_JSON"),
            (b"{}", "ok"),
            (b" {} \r\n", "ok"),
            (b"[]", "M_BAD_JSON"),
            (b"[\"ann\"]", "M_BAD_JSON"),
            (b"5", "M_BAD_JSON"),
            (b"null", "M_BAD_JSON"),
            (b"\"text\"", "M_BAD_JSON"),
            (b"{", "M_NOT_JSON"),
            (b"{\"a\":\"", "M_NOT_JSON"),
            (b"{\"a\":\"\\", "M_NOT_JSON"),
            (b"{}{}", "M_NOT_JSON"),
            (b"{} x", "M_NOT_JSON"),
            (b"{'a':1}", "M_NOT_JSON"),
            (b"{\"a\":01}", "M_NOT_JSON"),
            (b"hello", "M_NOT_JSON"),
            (b"\xef\xbb\xbf{}", "M_NOT_JSON"),
            (b"{\"a\":\"\xff\"}", "M_NOT_JSON"),
            (b"[", "M_NOT_JSON"),
            (b"}", "M_NOT_JSON"),
        ] {
            let shown = String::from_utf8_lossy(body);
            assert_eq!(code(json_of(Bytes::from_static(body))), expected, "{shown}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |n: usize| {
            let levels = n - 1;
            Bytes::from(format!("{{\"a\":{}1{}}}", "[".repeat(levels), "]".repeat(levels)))
        };
        assert_eq!(code(json_of(nested(limits::JSON_DEPTH))), "ok");
        assert_eq!(code(json_of(nested(limits::JSON_DEPTH + 1))), "M_BAD_JSON");
        assert_eq!(code(json_of(nested(100_000))), "M_BAD_JSON");
        let braces_in_text = Bytes::from(format!("{{\"a\":\"{}\\\"\"}}", "{[".repeat(500)));
        assert_eq!(code(json_of(braces_in_text)), "ok");
    }

    #[test]
    fn a_panic_while_decoding_refuses_the_body() {
        assert_eq!(decode::<login::v3::Request>("/", &[], b"{}"), "M_BAD_JSON");
    }

    #[test]
    fn wrong_shape_is_told_from_broken_json() {
        type Search = search_users::v3::Request;
        assert_eq!(decode::<Search>("/", &[], br#"{"search_term":"a"}"#), "ok");
        assert_eq!(decode::<Search>("/", &[], br#"{"search_term":5}"#), "M_BAD_JSON");
        assert_eq!(decode::<Search>("/", &[], br"{}"), "M_BAD_JSON");
        assert_eq!(
            decode::<Search>("/", &[], br#"{"search_term":"a","search_term":"b"}"#),
            "M_BAD_JSON"
        );
        // The wrong kind comes first, the end of the JSON after it.
        assert_eq!(decode::<Search>("/", &[], br#"{"search_term":5,,}"#), "M_NOT_JSON");
        assert_eq!(decode::<Search>("/", &[], br#"{"search_term":"a",}"#), "M_NOT_JSON");
    }

    #[test]
    fn parameters_of_path_and_query_are_told_from_the_body() {
        type Join = join_room_by_id::v3::Request;
        assert_eq!(decode::<Join>("/", &["!r:example.org"], b"{}"), "ok");
        assert_eq!(decode::<Join>("/", &["!r:example.org"], b""), "M_NOT_JSON");
        assert_eq!(decode::<Join>("/", &["#r"], b"{}"), "M_INVALID_PARAM");
        type Register = register::v3::Request;
        assert_eq!(decode::<Register>("/?kind=guest", &[], b"{}"), "ok");
        type Available = ruma::api::client::account::get_username_availability::v3::Request;
        assert_eq!(decode::<Available>("/?username=a", &[], b""), "ok");
        assert_eq!(decode::<Available>("/", &[], b""), "M_MISSING_PARAM");
        type Messages = ruma::api::client::message::get_message_events::v3::Request;
        let room = &["!r:example.org"];
        assert_eq!(decode::<Messages>("/?dir=b", room, b""), "ok");
        assert_eq!(decode::<Messages>("/?dir=up", room, b""), "M_INVALID_PARAM");
        assert_eq!(decode::<Messages>("/?dir=b&limit=-1", room, b""), "M_INVALID_PARAM");
    }

    #[test]
    fn raw_event_content_is_checked_to_its_end() {
        type Send = send_message_event::v3::Request;
        let args = &["!r:example.org", "m.room.message", "t"];
        assert_eq!(decode::<Send>("/", args, br#"{"body":"x"}"#), "ok");
        assert_eq!(decode::<Send>("/", args, br#"{"body":"x"} {}"#), "M_NOT_JSON");
        assert_eq!(decode::<Send>("/", args, br#"{"body":}"#), "M_NOT_JSON");
        type State = send_state_event::v3::Request;
        let args = &["!r:example.org", "m.room.topic"];
        assert_eq!(decode::<State>("/", args, br#"{"topic":"x"}"#), "ok");
        assert_eq!(decode::<State>("/", args, br#"{"topic":"x"}x"#), "M_NOT_JSON");
    }

    #[test]
    fn path_segments_are_decoded_one_by_one() {
        let args = path_args(["%23a%3Ab", "x%2Fy", "%F0%9F%90%BB", "a+b"].into_iter()).unwrap();
        assert_eq!(args, ["#a:b", "x/y", "🐻", "a+b"]);
        assert_eq!(code(path_args(["%FF"].into_iter())), "M_INVALID_PARAM");
    }

    #[test]
    fn what_clients_send_and_ruma_refuses_is_read() {
        type Typing = create_typing_event::v3::Request;
        let args = &["!r:example.org", "@a:example.org"];
        assert_eq!(decode::<Typing>("/", args, br#"{"typing":true}"#), "ok");
        assert_eq!(decode::<Typing>("/", args, br#"{"typing":"yes"}"#), "M_BAD_JSON");
        type Register = register::v3::Request;
        for body in [
            &br#"{"username":"a","auth":{}}"#[..],
            br#"{"username":"a","auth":null,"inhibit_login":null,"refresh_token":null}"#,
        ] {
            assert_eq!(decode::<Register>("/", &[], body), "ok");
        }
        type Create = ruma::api::client::room::create_room::v3::Request;
        let body = br#"{"name":null,"invite":null,"visibility":null,"initial_state":null}"#;
        assert_eq!(decode::<Create>("/", &[], body), "ok");
        type Deactivate = ruma::api::client::account::deactivate::v3::Request;
        let body = br#"{"auth":{"type":"m.login.password","user":"a","password":"x"}}"#;
        assert_eq!(decode::<Deactivate>("/", &[], body), "ok");
        type Login = login::v3::Request;
        let body = br#"{"type":"m.login.password","user":"a","password":"b","refresh_token":null}"#;
        assert_eq!(decode::<Login>("/_matrix/client/v3/login", &[], body), "ok");
        // Null where something is needed is still an error.
        assert_eq!(
            decode::<search_users::v3::Request>("/", &[], br#"{"search_term":null}"#),
            "M_BAD_JSON"
        );
    }

    #[test]
    fn a_parameter_of_the_query_is_found_and_decoded() {
        let uri = Uri::from_static("/a?x=1&org.y%2Ez=a%20b+c&e=&f&bad=%FF&x=2");
        let find = |name| query_parameter(&uri, name).map_err(|error| error.code().as_str());
        assert_eq!(find("x"), Ok(Some("1".to_owned())));
        assert_eq!(find("org.y.z"), Ok(Some("a b c".to_owned())));
        assert_eq!(find("bad"), Err("M_INVALID_PARAM"));
        for name in ["e", "f", "none"] {
            assert_eq!(find(name), Ok(None), "{name}");
        }
    }

    #[test]
    fn empty_parameters_count_as_missing() {
        type Sync = ruma::api::client::sync::sync_events::v3::Request;
        for uri in ["/?timeout=", "/?since=&timeout=5&filter=", "/?full_state=&x", "/?", "/?&&"] {
            assert_eq!(decode::<Sync>(uri, &[], b""), "ok", "{uri}");
        }
        let request = Request::builder().uri("/a?b=&c=1&d=&e&f=YQ==").body(&b""[..]).unwrap();
        assert_eq!(without_empty_parameters(request).uri(), "/a?c=1&e&f=YQ==");
        assert_eq!(decode::<Sync>("/?timeout=soon", &[], b""), "M_INVALID_PARAM");
        type Available = ruma::api::client::account::get_username_availability::v3::Request;
        assert_eq!(decode::<Available>("/?username=", &[], b""), "M_MISSING_PARAM");
    }
}
