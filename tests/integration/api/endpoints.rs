//! What holds for every endpoint that the server serves, whichever it is: CORS, OPTIONS, tokens,
//! bodies, methods, and that errors are the standard error object. The list is the program's own
//! (`logcabin endpoints`), so that no endpoint is left out.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{PASSWORD, server, user};
use crate::harness::{Bridge, Http, RawAnswer, TestServer, User, encode, run_logcabin};

/// One line of `logcabin endpoints`.
#[derive(Debug)]
struct Endpoint {
    method: String,
    path: String,
    access: String,
    is_limited: bool,
}

/// Whether it is of the API: the others are pages for people, with forms and redirects.
fn answers_json(endpoint: &Endpoint) -> bool {
    let pages =
        ["/fallback/web", "/static/client/", "/submit_token", "/validate", "/sso/", "/unsubscribe"];
    // Of its former version the texts are plain.
    let is_plain = endpoint.path.contains("/org.matrix.msc4108/rendezvous");
    endpoint.path.contains("/client")
        && !is_plain
        && !pages.iter().any(|page| endpoint.path.contains(page))
}

fn endpoints() -> Vec<Endpoint> {
    let output = run_logcabin(["endpoints", "--server-name", "e2e.test"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let list: Vec<_> = text
        .lines()
        .map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [method, path, access, limited] => Endpoint {
                method: method.to_owned(),
                path: path.to_owned(),
                access: access.to_owned(),
                is_limited: limited == "limited",
            },
            _ => panic!("not an endpoint: {line}"),
        })
        .collect();
    assert!(list.len() > 300, "only {} endpoints:\n{text}", list.len());
    list
}

/// The path of an endpoint with every parameter in it filled in.
fn filled(path: &str, user: &User, room_id: &str) -> String {
    let value = |name: &str| match name {
        "room_id" | "room_id_or_alias" => room_id.to_owned(),
        "user_id" => user.user_id.clone(),
        "device_id" => user.device_id.clone(),
        "event_id" => "$event".to_owned(),
        "room_alias" => "#walk:e2e.test".to_owned(),
        "event_type" => "org.example.walk".to_owned(),
        "field" => "displayname".to_owned(),
        "kind" => "room".to_owned(),
        "rule_id" => room_id.to_owned(),
        "receipt_type" => "m.read".to_owned(),
        "tag" => "u.walk".to_owned(),
        _ => "walk".to_owned(),
    };
    let segments = path.split('/').map(|segment| {
        let name = segment.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
        name.map_or_else(|| segment.to_owned(), |name| encode(&value(name)))
    });
    segments.collect::<Vec<_>>().join("/")
}

/// A body that has an effect on many an endpoint.
fn effective_body(user: &User, room_id: &str) -> String {
    json!({
        "name": "walked", "displayname": "walked", "display_name": "walked", "topic": "walked",
        "username": "walked", "password": PASSWORD, "new_password": "another long password",
        "auth": {
            "type": "m.login.password", "password": PASSWORD,
            "identifier": { "type": "m.id.user", "user": user.user_id },
        },
        "type": "m.login.password", "user": user.user_id, "devices": [user.device_id],
        "user_id": user.user_id, "room_id": room_id, "reason": "walked", "new_version": "11",
        "msgtype": "m.text", "body": "walked", "typing": true, "timeout": 30_000,
        "presence": "online", "actions": ["notify"], "enabled": true, "visibility": "public",
        "messages": { user.user_id.as_str(): { "*": {} } }, "delay": 1, "content": {},
    })
    .to_string()
}

/// What all that is said must have: the headers for browsers, JSON, and a code and a sentence if it
/// is an error.
#[track_caller]
fn assert_conventions(answer: &RawAnswer) {
    for (name, value) in [
        ("access-control-allow-origin", "*"),
        ("access-control-allow-methods", "GET, POST, PUT, DELETE, OPTIONS"),
        ("access-control-allow-headers", "X-Requested-With, Content-Type, Authorization"),
        ("content-type", "application/json"),
    ] {
        // A rendezvous allows two headers more to preflight requests.
        let said = answer.header(name);
        assert!(said == value || said == format!("{value}, If-Match, If-None-Match"), "{answer:?}");
    }
    let body: Value = serde_json::from_slice(&answer.bytes)
        .unwrap_or_else(|error| panic!("not JSON in UTF-8 ({error}): {answer:?}"));
    let is_success = answer.parts.status.is_success();
    // What is to be done to authenticate is an object of its own.
    if !is_success && body.get("flows").is_none() {
        let errcode = body["errcode"].as_str().unwrap_or_default();
        let (space, name) = errcode.split_once('_').unwrap_or_default();
        let capital = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let namespaced = space == "M" || space.contains('.');
        assert!(namespaced && !name.is_empty() && name.chars().all(capital), "{answer:?}");
        assert!(body["error"].as_str().is_some_and(|text| !text.is_empty()), "{answer:?}");
    }
}

/// Asks, expects the conventions to be kept, and gives the status with the code.
async fn ask(
    http: &Http,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: &str,
) -> (u16, String) {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<_> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
    let answer = http.raw(method, path, &headers, body.to_owned()).await;
    assert_conventions(&answer);
    let status = answer.parts.status.as_u16();
    let body = answer.json().body;
    // The state of a room is a list, in every version of the API.
    let is_list = method == "GET" && status == 200 && path.ends_with("/state");
    assert!(if is_list { body.is_array() } else { body.is_object() }, "{method} {path}: {body}");
    (status, body["errcode"].as_str().unwrap_or_default().to_owned())
}

/// A server on which nothing happens by itself, with a user and a room there.
async fn quiet() -> (TestServer, User, String) {
    quiet_with(&[]).await
}

async fn quiet_with(settings: &[(&str, &str)]) -> (TestServer, User, String) {
    let quiet =
        [("LOGCABIN_PRESENCE_ENABLED", "false"), ("LOGCABIN_DEVICES_NOTE_LAST_SEEN_SECONDS", "0")];
    let server = TestServer::start_with(&[&quiet, settings].concat()).await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    (server, ann, room_id)
}

#[tokio::test]
async fn options_on_any_endpoint_runs_none_of_its_logic() {
    let (_server, ann, room_id) = quiet().await;
    let body = effective_body(&ann, &room_id);
    // A token is an offset of the log: it stays where it is as long as nothing is written.
    let before = ann.here().await;
    for endpoint in endpoints() {
        let path = filled(&endpoint.path, &ann, &room_id);
        let asked = ask(&ann.http, "OPTIONS", &path, Some(&ann.access_token), &body).await;
        assert_eq!(asked, (200, String::new()), "OPTIONS {path}");
    }
    assert_eq!(ann.here().await, before, "something was written");
    let send = format!("/_matrix/client/v3/rooms/{}/send/m.room.message/t", encode(&room_id));
    let (status, _) = ask(&ann.http, "PUT", &send, Some(&ann.access_token), &body).await;
    assert_eq!(status, 200);
    assert_ne!(ann.here().await, before, "what is written moves the token");
}

#[tokio::test]
async fn options_on_a_path_that_is_none_is_answered_too() {
    let server = server().await;
    for path in ["/", "/nothing", "/_matrix/client/v3/nothing", "/_svc/client/v9/sync", "/%FF"] {
        let asked = ask(&server.http(), "OPTIONS", path, None, "not json").await;
        assert_eq!(asked, (200, String::new()), "{path}");
    }
}

#[tokio::test]
async fn every_endpoint_that_needs_a_token_says_so_and_knows_a_wrong_one() {
    let (_server, ann, room_id) = quiet().await;
    let mut asked = 0;
    for endpoint in endpoints() {
        let path = filled(&endpoint.path, &ann, &room_id);
        let method = endpoint.method.as_str();
        let named = format!("{method} {path}");
        if endpoint.access == "required" {
            let missing = ask(&ann.http, method, &path, None, "{}").await;
            assert_eq!(missing, (401, "M_MISSING_TOKEN".to_owned()), "{named}");
            let in_query = format!("{path}?access_token=wrong");
            let wrong = ask(&ann.http, method, &in_query, None, "{}").await;
            assert_eq!(wrong, (401, "M_UNKNOWN_TOKEN".to_owned()), "{named}");
            asked += 1;
        }
        if endpoint.access == "appservice" {
            let missing = ask(&ann.http, method, &path, None, "{}").await;
            assert_eq!(missing, (401, "M_MISSING_TOKEN".to_owned()), "{named}");
            let of_client = ask(&ann.http, method, &path, Some(&ann.access_token), "{}").await;
            assert_eq!(of_client, (403, "M_FORBIDDEN".to_owned()), "{named}");
        }
        if matches!(endpoint.access.as_str(), "required" | "optional") {
            let wrong = ask(&ann.http, method, &path, Some("wrong"), "{}").await;
            assert_eq!(wrong, (401, "M_UNKNOWN_TOKEN".to_owned()), "{named}");
        }
    }
    assert!(asked > 200, "only {asked} endpoints need a token");
    assert_eq!(ann.get("/account/whoami").await.ok()["user_id"], ann.user_id.as_str());
}

#[tokio::test]
async fn every_endpoint_with_a_body_takes_one_json_object_and_nothing_else() {
    let service = Bridge::start("walk", "").await;
    let file = service.file().display().to_string();
    let (_server, ann, room_id) = quiet_with(&[("LOGCABIN_APPSERVICES_FILES", &file)]).await;
    let before = ann.here().await;
    let with_body = |endpoint: &Endpoint| answers_json(endpoint) && endpoint.method != "GET";
    for endpoint in endpoints().into_iter().filter(with_body) {
        let path = filled(&endpoint.path, &ann, &room_id);
        // What else is none is shown where bodies are decoded.
        for (body, errcode) in [("[]", "M_BAD_JSON"), ("{'a':1}", "M_NOT_JSON")] {
            // To one who is no application service, what is for those alone is refused before its
            // body is read.
            let of_service = endpoint.access == "appservice";
            let token = Some(if of_service { "as-walk" } else { &*ann.access_token });
            let refused = ask(&ann.http, &endpoint.method, &path, token, body).await;
            let expected = (400, errcode.to_owned());
            assert_eq!(refused, expected, "{} {path} with {body}", endpoint.method);
        }
    }
    assert_eq!(ann.here().await, before, "something was written");
}

#[tokio::test]
async fn every_path_is_405_to_methods_that_it_does_not_have() {
    let (_server, ann, room_id) = quiet().await;
    let mut methods: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for endpoint in endpoints() {
        let path = filled(&endpoint.path, &ann, &room_id);
        methods.entry(path).or_default().insert(endpoint.method);
    }
    for (path, known) in &methods {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH"] {
            if !known.contains(method) {
                let token = Some(ann.access_token.as_str());
                let refused = ask(&ann.http, method, path, token, "{}").await;
                assert_eq!(refused, (405, "M_UNRECOGNIZED".to_owned()), "{method} {path}");
            }
        }
    }
}

#[tokio::test]
async fn no_answer_to_anything_breaks_the_conventions() {
    let (server, ann, room_id) = quiet().await;
    for endpoint in endpoints() {
        let path = filled(&endpoint.path, &ann, &room_id);
        // Those that wait for news do not wait for long.
        let timely = if path.ends_with("/events") { "?timeout=0" } else { "" };
        let (method, path) = (&*endpoint.method, format!("{path}{timely}"));
        // A logout ends the session: it is another one than that with which the others are asked.
        let is_logout = endpoint.path.contains("/logout");
        let asks = if is_logout { user(&server, "out").await } else { ann.clone() };
        if answers_json(&endpoint) {
            let token = Some(asks.access_token.as_str());
            let (status, errcode) = ask(&ann.http, method, &path, token, "{}").await;
            assert!(status < 500, "{method} {path}: {status} {errcode}");
        } else {
            let answer = ann.http.raw(method, &path, &[], "").await;
            assert!(answer.parts.status.as_u16() < 500, "{method} {path}: {answer:?}");
            assert_eq!(answer.header("access-control-allow-origin"), "*", "{method} {path}");
        }
    }
    ann.get("/account/whoami").await.ok();
}

/// The summary of endpoints of part 1: method, path after the prefix, whether a token is needed,
/// and whether the rate is limited.
const SUMMARY: [(&str, &str, bool, bool); 25] = [
    ("GET", "/client/versions", false, false),
    ("GET", "/client/v1/register/m.login.registration_token/validity", false, true),
    ("GET", "/client/v3/login", false, true),
    ("POST", "/client/v3/login", false, true),
    ("POST", "/client/v3/refresh", false, true),
    ("POST", "/client/v3/logout", true, false),
    ("POST", "/client/v3/logout/all", true, false),
    ("POST", "/client/v3/account/deactivate", true, true),
    ("POST", "/client/v3/account/password", true, true),
    ("POST", "/client/v3/account/password/email/requestToken", false, false),
    ("POST", "/client/v3/account/password/msisdn/requestToken", false, false),
    ("POST", "/client/v3/register", false, true),
    ("GET", "/client/v3/register/available", false, true),
    ("POST", "/client/v3/register/email/requestToken", false, false),
    ("POST", "/client/v3/register/msisdn/requestToken", false, false),
    ("GET", "/client/v3/account/3pid", true, false),
    ("POST", "/client/v3/account/3pid", true, false),
    ("POST", "/client/v3/account/3pid/add", true, true),
    ("POST", "/client/v3/account/3pid/bind", true, true),
    ("POST", "/client/v3/account/3pid/delete", true, false),
    ("POST", "/client/v3/account/3pid/email/requestToken", false, false),
    ("POST", "/client/v3/account/3pid/msisdn/requestToken", false, false),
    ("POST", "/client/v3/account/3pid/unbind", true, false),
    ("GET", "/client/v3/account/whoami", true, true),
    ("GET", "/client/v3/capabilities", true, true),
];

#[test]
fn the_endpoints_of_accounts_are_those_of_the_summary_under_both_prefixes() {
    let served = endpoints();
    let mut faults = Vec::new();
    let all = ["/_svc", "/_matrix"].into_iter().flat_map(|prefix| {
        SUMMARY.iter().map(move |(method, path, token, limited)| {
            (*method, format!("{prefix}{path}"), *token, *limited)
        })
    });
    let well_known =
        ["svc", "matrix"].map(|name| ("GET", format!("/.well-known/{name}/client"), false, false));
    for (method, path, token, is_limited) in all.chain(well_known) {
        let Some(found) = served.iter().find(|e| e.method == method && e.path == path) else {
            faults.push(format!("{method} {path} is not served"));
            continue;
        };
        // A token is looked at where it is not needed, and there are ways to call without one where
        // the summary has it needed: to prove by other means who one is. That of an application
        // service may come with a login or a registration.
        let fits: &[&str] = if token {
            &["required", "optional"]
        } else {
            &["none", "optional", "appservice-optional"]
        };
        if !fits.contains(&found.access.as_str()) || found.is_limited != is_limited {
            faults.push(format!("{found:?}: token {token}, limited {is_limited}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
