//! Administration over HTTP, in the form that existing tools speak it: one file for each section,
//! and what holds for all of it.

mod approval;
mod media;
mod moderation;
mod notices;
pub(crate) mod policies;
mod redactions;
mod reports;
mod rooms;
mod shadow_bans;
mod statistics;
mod tokens;
mod users;

use logcabin::{
    record::Offset,
    socket::{Client, socket_path},
};
use serde_json::{Value, json};

use super::{server, status::admin, user};
use crate::harness::{Answer, TestServer, User, encode, nodes, run_logcabin};

impl User {
    /// A request to a path under `/_synapse/admin`.
    pub(crate) async fn administer(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        let path = format!("/_synapse/admin{path}");
        self.http.request(method, &path, Some(&self.access_token), body.as_ref()).await
    }
}

/// The last record.
fn end(server: &TestServer) -> Offset {
    let mut client = Client::connect(&socket_path(server.data_dir())).expect("the admin socket");
    client.end().expect("an end")
}

/// The kinds of the records after one that a user's requests wrote. Other tests write as well.
fn written_by(user: &User, server: &TestServer, after: Offset) -> Vec<Box<str>> {
    let mut client = Client::connect(&socket_path(server.data_dir())).expect("the admin socket");
    let records = client.records(after.next(), Offset::MAX).expect("records");
    let headers = records.map(|record| record.expect("a record").header);
    headers.filter(|header| *header.origin.user == *user.user_id).map(|of| of.kind).collect()
}

/// Has an act say what it would come to: it does so, and writes nothing.
async fn dry_run(
    server: &TestServer,
    admin: &User,
    method: &str,
    path: &str,
    body: Value,
) -> Vec<String> {
    let before = end(server);
    let path = format!("{path}?dry_run=true");
    let said = admin.administer(method, &path, Some(body)).await.ok();
    assert_eq!(said["dry_run"], true, "{said}");
    // The first node of a cluster may take what came before a moment later.
    if nodes::count() == 1 {
        let written = written_by(admin, server, before);
        assert!(written.is_empty(), "{method} {path} has written {written:?}");
    }
    let effect = said["effect"].as_array().expect("an effect").iter();
    effect.map(|line| line.as_str().expect("a sentence").to_owned()).collect()
}

/// The endpoints of administration that want to know who asks, by method and path.
fn endpoints() -> Vec<(String, String)> {
    let output = run_logcabin(["endpoints"]);
    let text = String::from_utf8(output.stdout).expect("a text");
    let lines = text.lines().filter(|line| line.contains(" /_synapse/admin/"));
    lines
        .filter_map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(words.last(), Some(&"limited"), "{line}");
            (words[2] == "required").then(|| (words[0].to_owned(), words[1].to_owned()))
        })
        .collect()
}

#[tokio::test]
async fn only_administrators_may_call_any_of_it() {
    let server = server().await;
    let (bob, http) = (user(&server, "bob").await, server.http());
    let endpoints = endpoints();
    assert!(endpoints.len() > 75, "{endpoints:?}");
    for (method, path) in endpoints {
        let body = (method != "GET").then(|| json!({ "block": true, "user_id": "@a:e2e.test" }));
        let path = path.replace(['{', '}'], "");
        let answer = http.request(&method, &path, None, body.as_ref()).await;
        answer.refused(401, "M_MISSING_TOKEN");
        let path = path.strip_prefix("/_synapse/admin").expect("a path of administration");
        bob.administer(&method, path, body).await.refused(403, "M_FORBIDDEN");
    }
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_the_code_for_it() {
    let server = server().await;
    let (admin, bob) = (admin(&server).await, user(&server, "bob").await);
    let room_id = encode(&bob.create_room(json!({})).await);
    let bob_id = encode(&bob.user_id);
    let of_room = |path: &str| format!("/v1/rooms/{room_id}{path}");
    for (method, path, body, status, code) in [
        ("GET", "/v2/users?order_by=hair".to_owned(), None, 400, "M_INVALID_PARAM"),
        ("GET", "/v2/users?limit=-1".to_owned(), None, 400, "M_INVALID_PARAM"),
        ("GET", "/v2/users?from=x".to_owned(), None, 400, "M_INVALID_PARAM"),
        ("GET", "/v2/users?dir=x".to_owned(), None, 400, "M_INVALID_PARAM"),
        ("GET", "/v2/users?guests=maybe".to_owned(), None, 400, "M_INVALID_PARAM"),
        ("GET", "/v2/users/@nobody:e2e.test".to_owned(), None, 404, "M_NOT_FOUND"),
        ("PUT", "/v2/users/nobody".to_owned(), Some(json!({})), 400, "M_INVALID_PARAM"),
        ("PUT", "/v2/users/@a:b.test".to_owned(), Some(json!({})), 400, "M_INVALID_PARAM"),
        ("PUT", "/v2/users/@A!:e2e.test".to_owned(), Some(json!({})), 400, "M_INVALID_PARAM"),
        ("PUT", format!("/v2/users/{bob_id}"), Some(json!({ "admin": 7 })), 400, "M_BAD_JSON"),
        ("POST", format!("/v1/reset_password/{bob_id}"), Some(json!({})), 400, "M_MISSING_PARAM"),
        (
            "POST",
            format!("/v1/reset_password/{bob_id}"),
            Some(json!({ "new_password": "x" })),
            400,
            "M_WEAK_PASSWORD",
        ),
        ("GET", "/v1/rooms?order_by=hair".to_owned(), None, 400, "M_INVALID_PARAM"),
        ("GET", "/v1/rooms/!none:e2e.test".to_owned(), None, 404, "M_NOT_FOUND"),
        ("GET", "/v1/rooms/nonsense".to_owned(), None, 400, "M_INVALID_PARAM"),
        ("PUT", of_room("/block"), Some(json!({})), 400, "M_MISSING_PARAM"),
        ("PUT", of_room("/block"), Some(json!({ "block": "yes" })), 400, "M_BAD_JSON"),
        ("DELETE", of_room(""), Some(json!({ "purge": "yes" })), 400, "M_BAD_JSON"),
        ("DELETE", "/v1/media/e2e.test/none".to_owned(), None, 404, "M_NOT_FOUND"),
        ("DELETE", "/v1/media/elsewhere.test/x".to_owned(), None, 404, "M_NOT_FOUND"),
        ("DELETE", "/v1/users/@none:elsewhere.test/media".to_owned(), None, 404, "M_NOT_FOUND"),
        ("POST", "/v1/media/delete".to_owned(), Some(json!({})), 400, "M_MISSING_PARAM"),
        ("POST", "/v1/media/delete?before_ts=5".to_owned(), None, 400, "M_INVALID_PARAM"),
        (
            "POST",
            "/v1/media/delete?before_ts=1795000000000&keep_profiles=maybe".to_owned(),
            None,
            400,
            "M_INVALID_PARAM",
        ),
        ("DELETE", "/v1/rooms/!none:e2e.test".to_owned(), Some(json!({})), 404, "M_NOT_FOUND"),
        (
            "DELETE",
            of_room(""),
            Some(json!({ "new_room_user_id": "@nobody:e2e.test" })),
            404,
            "M_NOT_FOUND",
        ),
        ("GET", "/v2/rooms/delete_status/none".to_owned(), None, 404, "M_NOT_FOUND"),
        ("GET", format!("/v2/rooms/{room_id}/delete_status"), None, 404, "M_NOT_FOUND"),
        ("POST", "/v1/send_server_notice".to_owned(), Some(json!({})), 400, "M_MISSING_PARAM"),
        ("GET", "/v1/media/e2e.test/none".to_owned(), None, 404, "M_NOT_FOUND"),
        ("POST", "/v1/media/protect/none".to_owned(), Some(json!({})), 404, "M_NOT_FOUND"),
        (
            "POST",
            "/v1/media/quarantine/e2e.test/none".to_owned(),
            Some(json!({})),
            404,
            "M_NOT_FOUND",
        ),
        ("GET", "/v1/event_reports/none".to_owned(), None, 400, "M_INVALID_PARAM"),
        ("GET", "/v1/event_reports/999999999".to_owned(), None, 404, "M_NOT_FOUND"),
        ("DELETE", "/v1/event_reports/999999999".to_owned(), None, 404, "M_NOT_FOUND"),
        ("GET", "/v1/registration_tokens/none".to_owned(), None, 404, "M_NOT_FOUND"),
        (
            "POST",
            "/v1/registration_tokens/new".to_owned(),
            Some(json!({ "token": "not a token" })),
            400,
            "M_INVALID_PARAM",
        ),
        (
            "PUT",
            "/v1/users/@nobody:e2e.test/admin".to_owned(),
            Some(json!({ "admin": true })),
            404,
            "M_NOT_FOUND",
        ),
        (
            "PUT",
            format!("/v1/users/{}/admin", encode(&admin.user_id)),
            Some(json!({ "admin": false })),
            400,
            "M_INVALID_PARAM",
        ),
        (
            "POST",
            format!("/v1/users/{}/login", encode(&admin.user_id)),
            Some(json!({})),
            400,
            "M_INVALID_PARAM",
        ),
    ] {
        let answer = admin.administer(method, &path, body).await;
        let shown = answer.to_string();
        assert!(answer.body["error"].is_string(), "{shown}");
        answer.refused(status, code);
    }
}

/// As `docs/administration.md` says.
#[tokio::test]
async fn endpoints_that_make_no_sense_here_are_not_served() {
    let server = server().await;
    let admin = admin(&server).await;
    let (user, room) = (encode(&admin.user_id), "!none:e2e.test");
    for (method, path, status) in [
        ("POST", "/v1/account_validity/validity".to_owned(), 404),
        ("GET", "/v1/background_updates/status".to_owned(), 404),
        ("DELETE", format!("/v1/rooms/{room}/forward_extremities"), 405),
        ("GET", format!("/v1/users/{user}/override_ratelimit"), 404),
        ("GET", format!("/v1/search_users/{user}?term=a"), 404),
        ("GET", "/v1/media/quarantine_changes".to_owned(), 404),
    ] {
        let body = (method != "GET").then(|| json!({}));
        admin.administer(method, &path, body).await.refused(status, "M_UNRECOGNIZED");
    }
}
