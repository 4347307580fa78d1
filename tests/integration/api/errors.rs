//! Every code that the server refuses anything with, each brought about by a request.
//!
//! The codes are read from where they are defined, so that none is left out: one that no request
//! brings about yet is named here with the reason.

use std::{collections::BTreeSet, path::Path};

use serde_json::{Value, json};

use super::{PASSWORD, anonymous, encryption::Key, server, unique, user};
use crate::harness::{Answer, TestServer, User, encode};

/// The codes that a request brings about ([`provoke`]): the status, and the fields beside `errcode`
/// and `error`.
const SHOWN: [(&str, u16, &[&str]); 29] = [
    ("M_BAD_ALIAS", 400, &[]),
    ("M_BAD_JSON", 400, &[]),
    ("M_BAD_STATE", 403, &[]),
    ("M_DUPLICATE_ANNOTATION", 400, &[]),
    ("M_FORBIDDEN", 403, &[]),
    ("M_GUEST_ACCESS_FORBIDDEN", 403, &[]),
    ("M_INVALID_PARAM", 400, &[]),
    ("M_INVALID_ROOM_STATE", 400, &[]),
    ("M_INVALID_SIGNATURE", 400, &[]),
    ("M_INVALID_USERNAME", 400, &[]),
    ("M_INVITE_BLOCKED", 403, &[]),
    ("M_LIMIT_EXCEEDED", 429, &["retry_after_ms"]),
    ("M_MISSING_PARAM", 400, &[]),
    ("M_MISSING_TOKEN", 401, &[]),
    ("M_NOT_FOUND", 404, &[]),
    ("M_NOT_JSON", 400, &[]),
    ("M_RESOURCE_LIMIT_EXCEEDED", 403, &["admin_contact"]),
    ("M_ROOM_IN_USE", 400, &[]),
    ("M_THREEPID_MEDIUM_NOT_SUPPORTED", 400, &[]),
    ("M_TOO_LARGE", 413, &[]),
    ("M_UNABLE_TO_AUTHORISE_JOIN", 400, &[]),
    ("M_UNABLE_TO_GRANT_JOIN", 400, &[]),
    ("M_UNKNOWN", 400, &[]),
    ("M_UNKNOWN_POS", 400, &[]),
    ("M_UNKNOWN_TOKEN", 401, &["soft_logout"]),
    ("M_UNRECOGNIZED", 404, &[]),
    ("M_UNSUPPORTED_ROOM_VERSION", 400, &[]),
    ("M_USER_IN_USE", 400, &[]),
    ("M_WEAK_PASSWORD", 400, &[]),
];

/// The codes that nothing can bring about, with what would have to be there first.
const NOT_YET: [(&str, &str); 1] =
    [("M_INCOMPATIBLE_ROOM_VERSION", "every room is of this server, and so of a version it knows")];

/// The codes that need more than a server to be brought about (a mail server, a bridge, an
/// administrator): the file and the test beside this one that show each.
const ELSEWHERE: [(&str, &str, &str); 24] = [
    ("M_CANNOT_OVERWRITE_MEDIA", "media", "a_file_may_be_uploaded_after_its_address_is_known"),
    ("M_NOT_YET_UPLOADED", "media", "a_file_may_be_uploaded_after_its_address_is_known"),
    ("M_WRONG_ROOM_KEYS_VERSION", "key_backup", "keys_go_into_the_newest_backup_alone"),
    (
        "M_UNAUTHORIZED",
        "registration",
        "a_registration_token_lets_in_as_many_as_it_is_for_also_over_a_restart",
    ),
    (
        "M_CANNOT_LEAVE_SERVER_NOTICE_ROOM",
        "admin/notices",
        "a_notice_is_told_in_a_room_of_its_own_whose_invite_cannot_be_rejected",
    ),
    ("M_BAD_STATUS", "appservice", "a_ping_goes_there_and_back_and_says_what_is_wrong"),
    ("M_CAPTCHA_INVALID", "registration", "a_captcha_is_checked_by_its_service"),
    ("M_CAPTCHA_NEEDED", "registration", "a_captcha_is_checked_by_its_service"),
    (
        "M_CONCURRENT_WRITE",
        "rendezvous",
        "devices_that_speak_the_former_version_meet_by_the_headers_of_http",
    ),
    ("M_CONNECTION_FAILED", "appservice", "a_ping_goes_there_and_back_and_says_what_is_wrong"),
    ("M_CONNECTION_TIMEOUT", "appservice", "a_ping_goes_there_and_back_and_says_what_is_wrong"),
    ("M_EXCLUSIVE", "appservice", "names_in_an_exclusive_namespace_are_for_their_service_alone"),
    ("M_KEY_TOO_LARGE", "profile_account_data", "a_profile_has_fields_of_any_name_and_its_limits"),
    (
        "M_PROFILE_TOO_LARGE",
        "profile_account_data",
        "a_profile_has_fields_of_any_name_and_its_limits",
    ),
    (
        "M_SERVER_NOT_TRUSTED",
        "threepids",
        "addresses_are_published_on_trusted_identity_servers_and_taken_back_from_them",
    ),
    (
        "M_THREEPID_AUTH_FAILED",
        "threepids",
        "an_address_is_added_once_its_link_was_confirmed_and_survives_a_restart_at_any_step",
    ),
    ("M_THREEPID_DENIED", "threepids", "what_is_denied_cannot_be_used"),
    ("M_THREEPID_IN_USE", "threepids", "of_accounts_that_race_for_an_address_exactly_one_gets_it"),
    (
        "M_THREEPID_NOT_FOUND",
        "threepids",
        "only_the_owner_of_an_address_learns_whether_it_has_an_account",
    ),
    (
        "M_UNKNOWN_DEVICE",
        "appservice",
        "a_service_names_the_device_and_makes_and_removes_it_without_a_password",
    ),
    ("M_URL_NOT_SET", "appservice", "a_ping_goes_there_and_back_and_says_what_is_wrong"),
    ("M_USER_DEACTIVATED", "deactivate", "an_account_is_closed_without_a_session_by_its_password"),
    (
        "M_USER_LOCKED",
        "status",
        "a_locked_user_can_do_nothing_but_log_out_and_keeps_their_sessions",
    ),
    (
        "M_USER_SUSPENDED",
        "status",
        "a_suspended_user_reads_leaves_and_redacts_their_own_and_does_nothing_that_others_see",
    ),
];

/// The codes in the tables of part 1.
const SPECIFIED: [&str; 32] = [
    "M_FORBIDDEN",
    "M_UNKNOWN_TOKEN",
    "M_MISSING_TOKEN",
    "M_BAD_JSON",
    "M_NOT_JSON",
    "M_NOT_FOUND",
    "M_LIMIT_EXCEEDED",
    "M_UNKNOWN",
    "M_UNRECOGNIZED",
    "M_UNAUTHORIZED",
    "M_USER_DEACTIVATED",
    "M_USER_IN_USE",
    "M_INVALID_USERNAME",
    "M_ROOM_IN_USE",
    "M_INVALID_ROOM_STATE",
    "M_THREEPID_IN_USE",
    "M_THREEPID_NOT_FOUND",
    "M_THREEPID_AUTH_FAILED",
    "M_THREEPID_DENIED",
    "M_SERVER_NOT_TRUSTED",
    "M_UNSUPPORTED_ROOM_VERSION",
    "M_INCOMPATIBLE_ROOM_VERSION",
    "M_BAD_STATE",
    "M_GUEST_ACCESS_FORBIDDEN",
    "M_CAPTCHA_NEEDED",
    "M_CAPTCHA_INVALID",
    "M_MISSING_PARAM",
    "M_INVALID_PARAM",
    "M_TOO_LARGE",
    "M_EXCLUSIVE",
    "M_RESOURCE_LIMIT_EXCEEDED",
    "M_CANNOT_LEAVE_SERVER_NOTICE_ROOM",
];

/// The codes that the server knows, from its one table of them.
fn defined() -> BTreeSet<&'static str> {
    let source = include_str!("../../../src/edge/http/error.rs");
    let begin = source.find("const fn describe").expect("the table of codes has this name");
    let table = &source[begin..];
    let table = &table[..table.find("/// Adds the fields").expect("what follows has this name")];
    table.split('"').filter(|text| text.starts_with("M_")).collect()
}

#[test]
fn every_code_is_shown_or_it_is_said_why_not() {
    let defined = defined();
    let shown = SHOWN.iter().map(|(code, ..)| *code);
    let elsewhere = ELSEWHERE.iter().map(|(code, ..)| *code);
    let not_yet = NOT_YET.iter().map(|(code, _)| *code);
    let named: Vec<_> = shown.chain(elsewhere).chain(not_yet).collect();
    let distinct: BTreeSet<_> = named.iter().copied().collect();
    assert_eq!(distinct.len(), named.len(), "a code is named twice");
    let unnamed: Vec<_> = defined.difference(&distinct).collect();
    assert!(unnamed.is_empty(), "nothing shows {unnamed:?}");
    let unknown: Vec<_> = distinct.difference(&defined).collect();
    assert!(unknown.is_empty(), "the server does not know {unknown:?}");
    let missing: Vec<_> = SPECIFIED.iter().filter(|code| !defined.contains(**code)).collect();
    assert!(missing.is_empty(), "the specification has {missing:?}");
}

#[test]
fn what_is_shown_elsewhere_is_shown_there() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/api");
    let mut faults = Vec::new();
    for (code, file, test) in ELSEWHERE {
        let source = std::fs::read_to_string(folder.join(file).with_extension("rs"));
        let source = source.unwrap_or_default();
        let Some((_, body)) = source.split_once(&format!("async fn {test}() {{")) else {
            faults.push(format!("{code}: there is no {file}::{test}"));
            continue;
        };
        let body = body.split_once("\n}\n").map_or(body, |(body, _)| body);
        if !body.contains(&format!("\"{code}\"")) {
            faults.push(format!("{code} is not in {file}::{test}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

struct World {
    server: std::sync::Arc<TestServer>,
    ann: User,
    bob: User,
    room_id: String,
}

impl World {
    async fn begin() -> Self {
        let server = server().await;
        let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
        let room_id = ann.create_room(json!({ "room_version": "8" })).await;
        Self { server, ann, bob, room_id }
    }

    async fn set_state(&self, event_type: &str, content: Value) -> Answer {
        self.ann.set_state(&self.room_id, event_type, "", &content).await
    }

    async fn anonymous(&self, method: &str, path: &str, body: Value) -> Answer {
        anonymous(&self.server.http(), method, path, Some(&body)).await
    }

    async fn register(&self, name: &str, password: &str) -> Answer {
        let auth = json!({ "type": "m.login.dummy" });
        let body = json!({ "username": name, "password": password, "auth": auth });
        self.anonymous("POST", "/register", body).await
    }

    async fn raw(&self, path: &str, body: String) -> Answer {
        let bearer = format!("Bearer {}", self.ann.access_token);
        let path = format!("/_matrix/client/v3{path}");
        let headers = [("authorization", bearer.as_str())];
        self.ann.http.raw("POST", &path, &headers, body).await.json()
    }

    /// Lets the members of `club` into the room.
    async fn restrict_to(&self, club: &str) {
        let allow = json!([{ "type": "m.room_membership", "room_id": club }]);
        let rules = json!({ "join_rule": "restricted", "allow": allow });
        self.set_state("m.room.join_rules", rules).await.ok();
    }
}

/// An answer with this code.
async fn provoke(world: &World, code: &str) -> Answer {
    let World { server, ann, bob, room_id } = world;
    match code {
        "M_BAD_ALIAS" => {
            world.set_state("m.room.canonical_alias", json!({ "alias": "#no:e2e.test" })).await
        }
        "M_BAD_JSON" => ann.post("/createRoom", json!({ "name": 7 })).await,
        "M_BAD_STATE" => ann.act(room_id, "unban", Some(bob)).await,
        "M_DUPLICATE_ANNOTATION" => {
            let event_id = ann.send_text(room_id, &unique("t"), "x").await;
            let relation = json!({ "rel_type": "m.annotation", "event_id": event_id, "key": "+" });
            let content = json!({ "m.relates_to": relation });
            ann.send(room_id, "m.reaction", &unique("t"), &content).await.ok();
            ann.send(room_id, "m.reaction", &unique("t"), &content).await
        }
        "M_FORBIDDEN" => bob.join(room_id).await,
        "M_GUEST_ACCESS_FORBIDDEN" => {
            world.anonymous("POST", "/register?kind=guest", json!({})).await
        }
        "M_INVALID_PARAM" => ann.get("/sync?timeout=soon").await,
        "M_INVALID_ROOM_STATE" => {
            let state = json!([{ "type": "m.room.create", "content": {} }]);
            ann.post("/createRoom", json!({ "initial_state": state })).await
        }
        "M_INVALID_SIGNATURE" => {
            let (master, own) = (Key::new(""), Key::new(""));
            let body = json!({
                "master_key": master.cross_signing(ann, "master"),
                "self_signing_key": own.cross_signing(ann, "self_signing"),
            });
            ann.post("/keys/device_signing/upload", body).await
        }
        "M_INVALID_USERNAME" => world.register("not a name", PASSWORD).await,
        "M_INVITE_BLOCKED" => {
            let path = "account_data/m.invite_permission_config";
            let path = format!("/user/{}/{path}", encode(&bob.user_id));
            bob.put(&path, json!({ "default_action": "block" })).await.ok();
            let answer = ann.act(room_id, "invite", Some(bob)).await;
            bob.put(&path, json!({})).await.ok();
            answer
        }
        "M_LIMIT_EXCEEDED" => {
            let limited = ("LOGCABIN_RATE_LIMITS_ENABLED", "true");
            let server = TestServer::start_with(&[limited]).await;
            // Nobody makes as many at once.
            let http = server.http();
            let ask = || async { anonymous(&http, "GET", "/login", None).await };
            let answers = futures_util::future::join_all((0..500).map(|_| ask())).await;
            let refused = answers.into_iter().find(|answer| answer.status != 200);
            refused.expect("a limit that is met")
        }
        "M_MISSING_PARAM" => ann.get("/register/available").await,
        "M_MISSING_TOKEN" => world.anonymous("POST", "/createRoom", json!({})).await,
        "M_NOT_FOUND" => ann.get("/devices/NONE").await,
        "M_NOT_JSON" => world.raw("/createRoom", "{".to_owned()).await,
        "M_RESOURCE_LIMIT_EXCEEDED" => {
            let most = ("LOGCABIN_REGISTRATION_MAX_ACCOUNTS", "1");
            let server = TestServer::start_with(&[most]).await;
            user(&server, "ann").await;
            let body = json!({ "username": "bob", "password": PASSWORD });
            anonymous(&server.http(), "POST", "/register", Some(&body)).await
        }
        "M_ROOM_IN_USE" => {
            let body = json!({ "room_alias_name": unique("taken") });
            ann.post("/createRoom", body.clone()).await.ok();
            ann.post("/createRoom", body).await
        }
        "M_THREEPID_MEDIUM_NOT_SUPPORTED" => {
            let invite = json!({
                "id_server": "id.test", "id_access_token": "x", "medium": "pigeon",
                "address": "a@b.test",
            });
            ann.post(&format!("/rooms/{}/invite", encode(room_id)), invite).await
        }
        "M_TOO_LARGE" => {
            let name = "x".repeat(3 * 1024 * 1024);
            world.raw("/createRoom", json!({ "name": name }).to_string()).await
        }
        "M_UNABLE_TO_AUTHORISE_JOIN" => {
            world.restrict_to("!unknown:elsewhere.test").await;
            bob.join(room_id).await
        }
        "M_UNABLE_TO_GRANT_JOIN" => {
            let club = ann.create_room(json!({ "preset": "public_chat" })).await;
            bob.join(&club).await.ok();
            let rules = json!([{
                "type": "m.room.join_rules",
                "content": { "join_rule": "restricted",
                             "allow": [{ "type": "m.room_membership", "room_id": club }] },
            }]);
            let options = json!({
                "room_version": "8", "initial_state": rules,
                "power_level_content_override": { "invite": 100 },
            });
            let room_id = ann.create_room(options).await;
            // The condition is met, and nobody is left who may let anyone in.
            ann.act(&room_id, "leave", None).await.ok();
            bob.join(&room_id).await
        }
        "M_UNKNOWN" => world.anonymous("POST", "/login", json!({ "type": "org.example" })).await,
        "M_UNKNOWN_POS" => {
            let path = "/_matrix/client/unstable/org.matrix.simplified_msc3575/sync?pos=none";
            let token = Some(ann.access_token.as_str());
            ann.http.request("POST", path, token, Some(&json!({}))).await
        }
        "M_UNKNOWN_TOKEN" => {
            let other = ann.another_device().await;
            other.post("/logout", json!({})).await.ok();
            other.get("/account/whoami").await
        }
        "M_UNRECOGNIZED" => ann.get("/nothing").await,
        "M_UNSUPPORTED_ROOM_VERSION" => {
            ann.post("/createRoom", json!({ "room_version": "org.example" })).await
        }
        "M_USER_IN_USE" => {
            let taken = ann.localpart();
            world.register(taken, PASSWORD).await
        }
        "M_WEAK_PASSWORD" => {
            let path = "/register";
            let body = json!({
                "username": unique("weak"), "password": "", "auth": { "type": "m.login.dummy" },
            });
            anonymous(&server.http(), "POST", path, Some(&body)).await
        }
        _ => panic!("no request is known that brings about {code}"),
    }
}

#[tokio::test]
async fn each_code_is_what_a_request_is_refused_with() {
    let world = World::begin().await;
    for (code, status, fields) in SHOWN {
        let body = provoke(&world, code).await.refused(status, code);
        let is_sentence = |text: &str| text.ends_with('.') || text.contains(' ');
        assert!(body["error"].as_str().is_some_and(is_sentence), "{code}: {body}");
        for field in fields {
            let is_right = match *field {
                "retry_after_ms" => body[field].as_u64().is_some_and(|wait| wait > 0),
                "soft_logout" => body[field].is_boolean(),
                _ => body[field].is_string(),
            };
            assert!(is_right, "{code} without {field}: {body}");
        }
        let known = ["errcode", "error"].iter().chain(fields);
        assert_eq!(body.as_object().map(serde_json::Map::len), Some(known.count()), "{body}");
    }
}

#[tokio::test]
async fn an_unknown_error_is_told_apart_by_its_status() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let login = json!({ "type": "org.example.magic" });
    anonymous(&ann.http, "POST", "/login", Some(&login)).await.refused(400, "M_UNKNOWN");
    // An alias that is there already: no code is made for that, the status says it.
    let room_id = ann.create_room(json!({})).await;
    let alias = format!("/directory/room/{}", encode(&format!("#{}:e2e.test", unique("alias"))));
    ann.put(&alias, json!({ "room_id": room_id })).await.ok();
    ann.put(&alias, json!({ "room_id": room_id })).await.refused(409, "M_UNKNOWN");
}

#[tokio::test]
async fn a_server_that_is_full_takes_no_accounts_and_all_else() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let settings = [
        ("LOGCABIN_REGISTRATION_MAX_ACCOUNTS", "2"),
        ("LOGCABIN_SERVER_ADMIN_CONTACT", "mailto:help@example.org"),
    ];
    let server = TestServer::start_on_with(directory.path(), &settings).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let full = |server: &TestServer, auth: Option<Value>| {
        let http = server.http();
        let mut body = json!({ "username": "cas", "password": PASSWORD });
        body.as_object_mut().into_iter().for_each(|body| {
            body.extend(auth.clone().map(|auth| ("auth".to_owned(), auth)));
        });
        async move {
            let answer = anonymous(&http, "POST", "/register", Some(&body)).await;
            let body = answer.refused(403, "M_RESOURCE_LIMIT_EXCEEDED");
            assert_eq!(body["admin_contact"], "mailto:help@example.org");
        }
    };
    // Before the client is asked to authenticate, and afterwards.
    full(&server, None).await;
    full(&server, Some(json!({ "type": "m.login.dummy" }))).await;
    // What only reads, and what those who are there do, is as before.
    let path = "/register/available?username=cas";
    assert_eq!(anonymous(&ann.http, "GET", path, None).await.ok()["available"], true);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    ann.another_device().await;
    drop(server);
    let server = TestServer::start_on_with(directory.path(), &settings).await;
    full(&server, Some(json!({ "type": "m.login.dummy" }))).await;
    drop(server);
    // It is the configuration that says how many there may be.
    let server = TestServer::start_on_with(directory.path(), &[]).await;
    user(&server, "cas").await;
}
