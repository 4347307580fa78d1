//! Conventions of the transport: prefixes, CORS, errors, tokens, encodings.

use serde_json::{Value, json};

use super::{server, user};
use crate::harness::{Http, RawAnswer, TestServer, User, encode, until};

#[track_caller]
fn assert_cors(answer: &RawAnswer) {
    assert_eq!(answer.header("access-control-allow-origin"), "*", "{answer:?}");
    assert_eq!(
        answer.header("access-control-allow-methods"),
        "GET, POST, PUT, DELETE, OPTIONS",
        "{answer:?}"
    );
    assert_eq!(
        answer.header("access-control-allow-headers"),
        "X-Requested-With, Content-Type, Authorization",
        "{answer:?}"
    );
    assert_eq!(answer.header("content-type"), "application/json", "{answer:?}");
}

#[tokio::test]
async fn both_prefixes_serve_the_same_endpoints() {
    let server = server().await;
    let http = server.http();
    let ann = user(&server, "ann").await;
    for prefix in ["/_svc", "/_matrix"] {
        let path = format!("{prefix}/client/v3/account/whoami");
        let answer = http.request("GET", &path, Some(&ann.access_token), None).await;
        assert_eq!(answer.ok()["user_id"], ann.user_id.as_str());
        let path = format!("{prefix}/client/versions");
        let versions = http.request("GET", &path, None, None).await.ok();
        assert!(versions["versions"].as_array().is_some_and(|v| v.contains(&json!("v1.1"))));
    }
    for path in ["/.well-known/svc/client", "/.well-known/matrix/client"] {
        let answer = http.request("GET", path, None, None).await.ok();
        assert_eq!(answer["m.homeserver"]["base_url"], server.base());
    }
}

#[tokio::test]
async fn every_answer_carries_cors_headers_and_a_content_type() {
    let server = server().await;
    let http = server.http();
    for (method, path, status) in [
        ("GET", "/_matrix/client/versions", 200),
        ("GET", "/_matrix/client/v3/sync", 401),
        ("GET", "/_matrix/client/v3/nothing", 404),
        ("GET", "/nothing", 404),
        ("PATCH", "/_matrix/client/v3/sync", 405),
        ("POST", "/_matrix/client/v3/login", 400),
        ("OPTIONS", "/_matrix/client/v3/sync", 200),
        ("OPTIONS", "/nothing", 200),
    ] {
        let answer = http.raw(method, path, &[], "").await;
        assert_eq!(answer.parts.status, status, "{method} {path}");
        assert_cors(&answer);
    }
}

#[tokio::test]
async fn options_runs_no_logic() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let bearer = format!("Bearer {}", ann.access_token);
    let headers = [("authorization", bearer.as_str())];
    for path in ["/_matrix/client/v3/logout", "/_matrix/client/v3/createRoom"] {
        let answer = ann.http.raw("OPTIONS", path, &headers, "{}").await;
        assert_eq!(answer.parts.status, 200);
    }
    ann.get("/account/whoami").await.ok();
    assert_eq!(ann.get("/joined_rooms").await.ok(), json!({ "joined_rooms": [] }));
}

#[tokio::test]
async fn an_unknown_path_is_404_and_a_wrong_method_405() {
    let server = server().await;
    let http = server.http();
    let ann = user(&server, "ann").await;
    for path in
        ["/", "/_matrix/client/v3/nothing", "/_matrix/client/v1/sync", "/_other/client/v3/sync"]
    {
        http.raw("GET", path, &[], "").await.json().refused(404, "M_UNRECOGNIZED");
    }
    for (method, path) in [
        ("DELETE", "/_matrix/client/v3/sync"),
        ("POST", "/_matrix/client/v3/account/whoami"),
        ("GET", "/_matrix/client/v3/createRoom"),
    ] {
        http.raw(method, path, &[], "").await.json().refused(405, "M_UNRECOGNIZED");
    }
    // A wrong method is told also to one who is logged in.
    ann.request("DELETE", "/joined_rooms", None).await.refused(405, "M_UNRECOGNIZED");
}

#[tokio::test]
async fn a_body_that_got_lost_destroys_nothing() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let bearer = format!("Bearer {}", ann.access_token);
    let headers = [("authorization", bearer.as_str())];
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let client = "/_matrix/client/v3";
    let (room, user_id) = (format!("{client}/rooms/{}", encode(&room_id)), encode(&ann.user_id));
    let direct = json!({ "@bob:e2e.test": [room_id] });
    let data = format!("/user/{user_id}/account_data/m.direct");
    ann.request("PUT", &data, Some(&direct)).await.ok();
    let levels = format!("/rooms/{}/state/m.room.power_levels/", encode(&room_id));
    let before = ann.get(&levels).await.ok();
    for (method, path) in [
        ("PUT", format!("{room}/state/m.room.power_levels/")),
        ("PUT", format!("{client}{data}")),
        ("PUT", format!("{client}/user/{user_id}/account_data/m.secret_storage.default_key")),
        ("PUT", format!("{client}/user/{user_id}/rooms/{}/tags/m.favourite", encode(&room_id))),
        ("PUT", format!("{client}/directory/list/room/{}", encode(&room_id))),
        ("PUT", format!("{room}/send/m.room.message/lost")),
        ("POST", format!("{client}/createRoom")),
        ("POST", format!("{client}/user/{user_id}/filter")),
    ] {
        for body in ["", " \n"] {
            ann.http.raw(method, &path, &headers, body).await.json().refused(400, "M_NOT_JSON");
        }
    }
    assert_eq!(ann.get(&data).await.ok(), direct);
    assert_eq!(ann.get(&levels).await.ok(), before);
    // Where nothing can be lost, no body is an empty one.
    for (method, path) in [
        ("POST", format!("{client}/join/{}", encode(&room_id))),
        ("POST", format!("{room}/leave")),
        ("POST", format!("{room}/forget")),
        ("POST", format!("{client}/user/{user_id}/openid/request_token")),
        ("POST", "/_matrix/media/v1/create".to_owned()),
        ("POST", format!("{client}/publicRooms")),
        ("POST", format!("{client}/logout")),
    ] {
        ann.http.raw(method, &path, &headers, "").await.json().ok();
    }
}

#[tokio::test]
async fn bad_bodies_and_parameters_are_told_apart() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let bearer = format!("Bearer {}", ann.access_token);
    let headers = [("authorization", bearer.as_str())];
    let room_id = ann.create_room(json!({})).await;
    let room = format!("/_matrix/client/v3/rooms/{}", encode(&room_id));
    let create = "/_matrix/client/v3/createRoom";
    let login = "/_matrix/client/v3/login";
    let send = format!("{room}/send/m.room.message/t1");
    for (method, path, body, errcode) in [
        ("POST", create, "not json", "M_NOT_JSON"),
        ("POST", create, "{", "M_NOT_JSON"),
        ("POST", create, "{}{}", "M_NOT_JSON"),
        ("POST", create, "{\"name\": 'x'}", "M_NOT_JSON"),
        ("POST", create, "[]", "M_BAD_JSON"),
        ("POST", create, "\"text\"", "M_BAD_JSON"),
        ("POST", create, r#"{"name": 7}"#, "M_BAD_JSON"),
        ("POST", create, r#"{"invite": "x"}"#, "M_BAD_JSON"),
        ("POST", login, "{}", "M_BAD_JSON"),
        ("POST", login, r#"{"type": 3}"#, "M_BAD_JSON"),
        ("PUT", &send, "[1]", "M_BAD_JSON"),
        ("PUT", &send, "nothing", "M_NOT_JSON"),
        ("PUT", &send, r#"{"body": 1.5}"#, "M_BAD_JSON"),
        ("PUT", &send, r#"{"body": 9007199254740993}"#, "M_BAD_JSON"),
    ] {
        ann.http.raw(method, path, &headers, body).await.json().refused(400, errcode);
    }
    for (path, errcode) in [
        (format!("{room}/messages"), "M_MISSING_PARAM"),
        (format!("{room}/messages?dir=x"), "M_INVALID_PARAM"),
        (format!("{room}/messages?dir=b&limit=many"), "M_INVALID_PARAM"),
        (format!("{room}/messages?dir=b&from=garbage"), "M_INVALID_PARAM"),
        ("/_matrix/client/v3/sync?timeout=soon".to_owned(), "M_INVALID_PARAM"),
        ("/_matrix/client/v3/register/available".to_owned(), "M_MISSING_PARAM"),
        ("/_matrix/client/v3/rooms/nonsense/joined_members".to_owned(), "M_INVALID_PARAM"),
    ] {
        ann.http.raw("GET", &path, &headers, "").await.json().refused(400, errcode);
    }
}

#[tokio::test]
async fn a_token_is_taken_from_the_header_or_the_query() {
    let server = server().await;
    let http = server.http();
    let ann = user(&server, "ann").await;
    let path = "/_matrix/client/v3/account/whoami";
    http.request("GET", path, None, None).await.refused(401, "M_MISSING_TOKEN");
    http.request("GET", path, Some("wrong"), None).await.refused(401, "M_UNKNOWN_TOKEN");
    let in_query = format!("{path}?access_token={}", ann.access_token);
    assert_eq!(http.request("GET", &in_query, None, None).await.ok()["user_id"], ann.user_id);
    let wrong = format!("{path}?access_token=wrong");
    http.request("GET", &wrong, None, None).await.refused(401, "M_UNKNOWN_TOKEN");
    // A token is looked at before the body and the parameters are.
    http.raw("POST", "/_matrix/client/v3/createRoom", &[], "not json")
        .await
        .json()
        .refused(401, "M_MISSING_TOKEN");
}

#[tokio::test]
async fn parts_of_a_path_are_percent_decoded_each_by_itself() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let key = "a/b c?#%\u{e4}";
    let content = json!({ "here": true });
    ann.set_state(&room_id, "org.example/type", key, &content).await.ok();
    assert_eq!(ann.state(&room_id, "org.example/type", key).await.ok(), content);
    // Unencoded colons, exclamation marks and at signs are fine too.
    let path = format!("/rooms/{room_id}/state/m.room.member/{}", ann.user_id);
    assert_eq!(ann.get(&path).await.ok()["membership"], "join");
    ann.get("/rooms/%FF/state").await.refused(400, "M_INVALID_PARAM");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_with_413() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let bearer = format!("Bearer {}", ann.access_token);
    let body = format!("{{\"name\":\"{}\"}}", "x".repeat(3 * 1024 * 1024));
    let headers = [("authorization", bearer.as_str())];
    let answer = ann.http.raw("POST", "/_matrix/client/v3/createRoom", &headers, body).await;
    assert_cors(&answer);
    answer.json().refused(413, "M_TOO_LARGE");
}

#[tokio::test]
async fn http_2_is_spoken_by_prior_knowledge() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let http2 = Http::http2(&server.base());
    let answer = http2.raw("GET", "/_matrix/client/versions", &[], "").await;
    assert_eq!(answer.parts.version, http::Version::HTTP_2);
    assert_cors(&answer);
    let path = "/_matrix/client/v3/createRoom";
    http2.request("POST", path, Some(&ann.access_token), Some(&json!({}))).await.ok();
}

#[tokio::test]
async fn deeply_nested_content_is_refused() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let bearer = format!("Bearer {}", ann.access_token);
    let path = format!("/_matrix/client/v3/rooms/{}/send/m.deep/t", encode(&room_id));
    let body = format!("{}{}", "{\"a\":".repeat(200), "1".to_owned() + &"}".repeat(200));
    let answer = ann.http.raw("PUT", &path, &[("authorization", &bearer)], body).await;
    answer.json().refused(400, "M_BAD_JSON");
}

#[tokio::test]
async fn capabilities_name_the_room_versions_that_there_are() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let capabilities = ann.get("/capabilities").await.ok();
    let versions = &capabilities["capabilities"]["m.room_versions"];
    assert_eq!(versions["default"], "10");
    for version in 1..=12 {
        assert_eq!(versions["available"][version.to_string()], "stable");
    }
    assert_eq!(versions["available"].as_object().map(serde_json::Map::len), Some(12));
    assert_ne!(capabilities["capabilities"]["m.change_password"]["enabled"], false);
}

/// Filters, sync and context: how each is asked for, with a body where it takes one.
async fn reading(ann: &User) -> [(&'static str, String, Option<Value>); 4] {
    let room_id = ann.create_room(json!({})).await;
    let event_id = ann.send_text(&room_id, "1", "x").await;
    let filters = format!("/user/{}/filter", encode(&ann.user_id));
    let filter_id = ann.post(&filters, json!({})).await.ok_string("filter_id");
    [
        ("GET", format!("{filters}/{filter_id}"), None),
        ("POST", filters, Some(json!({}))),
        ("GET", "/sync".to_owned(), None),
        ("GET", format!("/rooms/{}/context/{}", encode(&room_id), encode(&event_id)), None),
    ]
}

#[tokio::test]
async fn filters_sync_and_context_need_a_token_under_both_prefixes_and_options_does_not() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let asked = reading(&ann).await;
    for prefix in ["/_svc", "/_matrix"] {
        for (method, path, body) in &asked {
            let path = format!("{prefix}/client/v3{path}");
            let ask = |token: Option<String>| {
                let (http, path) = (&ann.http, &path);
                async move { http.request(method, path, token.as_deref(), body.as_ref()).await }
            };
            ask(None).await.refused(401, "M_MISSING_TOKEN");
            ask(Some("wrong".to_owned())).await.refused(401, "M_UNKNOWN_TOKEN");
            ask(Some(ann.access_token.clone())).await.ok();
            let answer = ann.http.raw("OPTIONS", &path, &[], "").await;
            assert_eq!(answer.parts.status, 200, "{path}");
            assert_cors(&answer);
        }
        let path = format!("{prefix}/client/v3/user/{}/filter", encode(&ann.user_id));
        let bearer = format!("Bearer {}", ann.access_token);
        for (body, errcode) in [
            ("nonsense", "M_NOT_JSON"),
            ("[]", "M_BAD_JSON"),
            (r#"{"event_fields":{}}"#, "M_BAD_JSON"),
        ] {
            let answer = ann.http.raw("POST", &path, &[("authorization", &bearer)], body).await;
            answer.json().refused(400, errcode);
        }
    }
}

#[tokio::test]
async fn filters_sync_and_context_are_not_limited_in_rate() {
    let server = TestServer::start_with(&[
        ("LOGCABIN_RATE_LIMITS_ENABLED", "true"),
        ("LOGCABIN_RATE_LIMITS_DEVICE", "1/h burst 60"),
        ("LOGCABIN_RATE_LIMITS_JOINS", "1000/s burst 1000"),
    ])
    .await;
    let ann = user(&server, "ann").await;
    let asked = reading(&ann).await;
    let room_id = ann.create_room(json!({})).await;
    let join = || async { ann.join(&room_id).await };
    while join().await.status == 200 {}
    for (method, path, body) in &asked {
        for _ in 0..20 {
            ann.request(method, path, body.as_ref()).await.ok();
        }
    }
    while join().await.status == 200 {}
    join().await.refused(429, "M_LIMIT_EXCEEDED");
}

#[tokio::test]
async fn all_json_is_utf_8() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let bearer = format!("Bearer {}", ann.access_token);
    let headers = [("authorization", bearer.as_str())];
    let create = "/_matrix/client/v3/createRoom";
    let name = "h\u{e4}uschen \u{1f43b} \u{202e}";
    let body = json!({ "name": name }).to_string();
    let utf_16: Vec<u8> = body.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let latin_1 = b"{\"name\":\"h\xe4uschen\"}".to_vec();
    let marked = [b"\xef\xbb\xbf".as_slice(), body.as_bytes()].concat();
    for other in [utf_16, latin_1, marked] {
        ann.http.raw("POST", create, &headers, other).await.json().refused(400, "M_NOT_JSON");
    }
    let answer = ann.http.raw("POST", create, &headers, body).await.json();
    let room_id = answer.ok_string("room_id");
    let path = format!("/_matrix/client/v3/rooms/{}/state/m.room.name", encode(&room_id));
    let answer = ann.http.raw("GET", &path, &headers, "").await;
    let text = std::str::from_utf8(&answer.bytes).expect("an answer is UTF-8");
    assert!(text.contains(name), "{text}");
    // Another encoding is not announced either.
    assert_eq!(answer.header("content-type"), "application/json");
}

#[tokio::test]
async fn a_body_needs_no_content_type() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let bearer = format!("Bearer {}", ann.access_token);
    let authorization = ("authorization", bearer.as_str());
    for kind in [
        None,
        Some("application/json"),
        Some("application/json; charset=utf-8"),
        Some("text/plain"),
        Some("application/x-www-form-urlencoded"),
    ] {
        let mut headers = vec![authorization];
        headers.extend(kind.map(|kind| ("content-type", kind)));
        let body = json!({ "name": "named" }).to_string();
        let answer = ann.http.raw("POST", "/_matrix/client/v3/createRoom", &headers, body).await;
        let room_id = answer.json().ok_string("room_id");
        assert_eq!(ann.state(&room_id, "m.room.name", "").await.ok()["name"], "named", "{kind:?}");
    }
}

#[tokio::test]
async fn a_token_is_not_in_the_servers_own_log() {
    let server = TestServer::start_with(&[("LOGCABIN_LOG", "trace")]).await;
    let ann = user(&server, "ann").await;
    let path = "/_matrix/client/v3/account/whoami";
    for secret in [ann.access_token.as_str(), "one-that-is-wrong"] {
        let in_query = format!("{path}?access_token={secret}");
        ann.http.request("GET", &in_query, None, None).await;
        ann.http.request("GET", path, Some(secret), None).await;
    }
    ann.http.raw("GET", "/nothing?access_token=one-that-is-wrong", &[], "").await;
    // The log has been written by the time a request that came later is in it.
    let answer = ann.http.raw("GET", "/_matrix/client/versions", &[], "").await;
    let last = answer.header("x-request-id").to_owned();
    until("the log tells of requests", async || server.output().contains(&last)).await;
    let printed = server.output();
    assert!(!printed.contains(&ann.access_token), "the log holds a token");
    assert!(!printed.contains("one-that-is-wrong"), "the log holds what was given as a token");
    assert!(!printed.contains(super::PASSWORD), "the log holds a password");
}

#[tokio::test]
async fn capabilities_have_names_of_the_interface_or_of_someones_own() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let answer = ann.get("/capabilities").await.ok();
    let names = answer["capabilities"].as_object().into_iter().flatten().map(|(name, _)| name);
    let names: Vec<_> = names.collect();
    assert!(names.iter().any(|name| *name == "m.room_versions"), "{answer}");
    // Those of the interface, up to version 1.19; none of them is of a feature that is not in it,
    // or of the size of media.
    let known = [
        "m.room_versions",
        "m.change_password",
        "m.set_displayname",
        "m.set_avatar_url",
        "m.profile_fields",
        "m.3pid_changes",
        "m.get_login_token",
        "m.account_moderation",
        "m.forget_forced_upon_leave",
    ];
    for name in names {
        let own = name.contains('.') && !name.starts_with("m.") && !name.contains("unstable");
        assert!(known.contains(&name.as_str()) || own, "{name}");
    }
}
