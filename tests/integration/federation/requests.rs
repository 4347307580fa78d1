//! Requests of other homeservers: whose they are, and what they may cost.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use ruma::api::federation::authentication::XMatrix;
use serde_json::{Value, json};

use super::authority::read;
use super::peer::{Peer, document, new_keys, sign};
use super::{Federated, authority};
use crate::harness::{encode, run_logcabin, until};

const UNAUTHORIZED: (u16, &str) = (401, "M_UNAUTHORIZED");

/// What `ann` of a server is asked for.
fn profile(name: &str) -> String {
    let ann = format!("@ann:{name}");
    format!("/_matrix/federation/v1/query/profile?user_id={}", encode(&ann))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_taken_if_its_origin_has_signed_it_for_this_server() {
    let Some(authority) = authority("signed requests") else { return };
    let cabin = Federated::start(&authority).await;
    let ann = cabin.server.register("ann").await;
    let peer = Peer::start(&authority).await;
    let (address, name, path) = (cabin.address, &*cabin.name, profile(&cabin.name));
    assert_eq!(peer.ask(address, name, &path).await.ok()["displayname"], "ann");
    let name_path = format!("/profile/{}/displayname", encode(&ann.user_id));
    ann.request("PUT", &name_path, Some(&json!({ "displayname": "Ann" }))).await.ok();
    assert_eq!(peer.ask(address, name, &path).await.ok()["displayname"], "Ann");
    // The keys were fetched once.
    assert_eq!(peer.asked().len(), 1, "{:?}", peer.asked());

    let null = Value::Null;
    let (status, code) = UNAUTHORIZED;
    let send = async |header: Option<String>| {
        peer.send(address, "GET", &path, header.as_deref(), &null).await.refused(status, code);
    };
    send(None).await;
    send(Some("Bearer abc".to_owned())).await;
    send(Some("X-Matrix origin=localhost".to_owned())).await;
    // For another server, another path, another method, with a body.
    send(Some(peer.header("localhost:1", "GET", &path, &null))).await;
    send(Some(peer.header(name, "GET", &profile("other.example"), &null))).await;
    send(Some(peer.header(name, "POST", &path, &null))).await;
    send(Some(peer.header(name, "GET", &path, &json!({})))).await;
    // With another key under the same id, and with one under an id that the peer does not have.
    let forged = sign(&peer.name, &new_keys("peer"), name, "GET", &path, &null);
    send(Some(forged.to_string())).await;
    let unknown = sign(&peer.name, &new_keys("other"), name, "GET", &path, &null);
    send(Some(unknown.to_string())).await;
    // In the name of this server.
    let own = cabin.name.clone().try_into().unwrap();
    send(Some(sign(&own, &peer.keys, name, "GET", &path, &null).to_string())).await;
    // Older servers do not say for whom a request is.
    let mut old = sign(&peer.name, &peer.keys, name, "GET", &path, &null);
    old.destination = None;
    peer.send(address, "GET", &path, Some(&old.to_string()), &null).await.ok();
    // A signed body.
    let (rooms, body) = ("/_matrix/federation/v1/publicRooms", json!({ "limit": 1 }));
    let header = peer.header(name, "POST", rooms, &body);
    peer.send(address, "POST", rooms, Some(&header), &body).await.ok();
    let other = json!({ "limit": 2 });
    peer.send(address, "POST", rooms, Some(&header), &other).await.refused(status, code);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_homeserver_is_refused_and_not_asked() {
    let Some(authority) = authority("denied homeservers") else { return };
    let settings = [("LOGCABIN_FEDERATION_DENY", "localhost")];
    let cabin = Federated::start_with(&authority, &settings).await;
    let ann = cabin.server.register("ann").await;
    let peer = Peer::start(&authority).await;
    let path = profile(&cabin.name);
    peer.ask(cabin.address, &cabin.name, &path).await.refused(403, "M_FORBIDDEN");
    let remote = format!("/profile/{}", encode(&format!("@bob:{}", peer.name)));
    ann.request("GET", &remote, None).await.refused(403, "M_FORBIDDEN");
    assert!(peer.asked().is_empty(), "{:?}", peer.asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_in_a_private_network_is_not_reached() {
    let Some(authority) = authority("private networks") else { return };
    let settings = [("LOGCABIN_FEDERATION_ALLOWED_NETWORKS", "none")];
    let cabin = Federated::start_with(&authority, &settings).await;
    let ann = cabin.server.register("ann").await;
    let peer = Peer::start(&authority).await;
    let (status, code) = UNAUTHORIZED;
    peer.ask(cabin.address, &cabin.name, &profile(&cabin.name)).await.refused(status, code);
    let port = peer.name.port().expect("a port");
    for host in ["localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"] {
        let remote = format!("/profile/{}", encode(&format!("@bob:{host}:{port}")));
        ann.request("GET", &remote, None).await.refused(502, "M_CONNECTION_FAILED");
    }
    assert!(peer.asked().is_empty(), "{:?}", peer.asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_count_while_they_are_valid_and_outlive_a_restart() {
    let Some(authority) = authority("the validity of keys") else { return };
    let mut cabin = Federated::start(&authority).await;
    cabin.server.register("ann").await;
    let path = profile(&cabin.name);
    let nothing = Arc::new(|_: &_| None);
    let (status, code) = UNAUTHORIZED;
    let expired = Peer::start_with(&authority, Duration::ZERO, nothing).await;
    expired.ask(cabin.address, &cabin.name, &path).await.refused(status, code);
    let mut peer = Peer::start(&authority).await;
    peer.ask(cabin.address, &cabin.name, &path).await.ok();
    peer.stop().await;
    cabin.server.restart().await;
    peer.ask(cabin.address, &cabin.name, &path).await.ok();
    cabin.server.kill9();
    cabin.server.restart().await;
    peer.ask(cabin.address, &cabin.name, &path).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_expire_soon_are_fetched_again_before_they_do() {
    let Some(authority) = authority("the renewal of keys") else { return };
    let mut cabin = Federated::start(&authority).await;
    cabin.server.register("ann").await;
    let path = profile(&cabin.name);
    let nothing = || Arc::new(|_: &_| None);
    let soon = Peer::start_with(&authority, Duration::from_secs(1800), nothing()).await;
    let later = Peer::start_with(&authority, Duration::from_secs(2 * 3600), nothing()).await;
    let fetches = |peer: &Peer| peer.asked().iter().filter(|of| of.path.contains("/key/")).count();
    for peer in [&soon, &later] {
        peer.ask(cabin.address, &cabin.name, &path).await.ok();
        assert_eq!(fetches(peer), 1);
    }
    // Too soon for another fetch.
    soon.ask(cabin.address, &cabin.name, &path).await.ok();
    cabin.server.restart().await;
    // No request waits for it.
    for peer in [&later, &soon] {
        peer.is_silent_on(&["/_matrix/key/"]);
        for _ in 0..3 {
            peer.ask(cabin.address, &cabin.name, &path).await.ok();
        }
    }
    until("the renewal", async || fetches(&soon) == 2).await;
    assert_eq!(fetches(&later), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_homeserver_answers_is_bounded_and_checked() {
    let Some(authority) = authority("answers of homeservers") else { return };
    let cabin = Federated::start(&authority).await;
    let ann = cabin.server.register("ann").await;
    let path = profile(&cabin.name);
    let (status, code) = UNAUTHORIZED;
    let before = cabin.server.peak_memory();
    let huge = Bytes::from(vec![b' '; 100 * 1024 * 1024]);
    let large = Arc::new(move |_: &_| Some(Some(Response::new(Full::new(huge.clone())))));
    let peer = Peer::start_with(&authority, Duration::from_secs(3600), large).await;
    peer.ask(cabin.address, &cabin.name, &path).await.refused(status, code);
    let remote = format!("/profile/{}", encode(&format!("@bob:{}", peer.name)));
    ann.request("GET", &remote, None).await.refused(502, "M_CONNECTION_FAILED");
    let grown = cabin.server.peak_memory() - before;
    assert!(grown < 50 * 1024 * 1024, "an answer of 100 MiB took {grown} bytes of memory");

    // Redirects of federation requests lead nowhere.
    let inner = Peer::start(&authority).await;
    let target = format!("https://{}/_matrix/key/v2/server", inner.name);
    let redirect = Arc::new(move |_: &_| {
        let response = Response::builder().status(302).header("location", &target);
        Some(Some(response.body(Full::default()).unwrap()))
    });
    let peer = Peer::start_with(&authority, Duration::from_secs(3600), redirect).await;
    peer.ask(cabin.address, &cabin.name, &path).await.refused(status, code);
    assert!(inner.asked().is_empty(), "{:?}", inner.asked());

    // Keys that another one has signed.
    let theirs = new_keys("peer");
    let name = inner.name.clone();
    let wrong = Arc::new(move |_: &_| {
        let document = json!(document(&name, &theirs, Duration::from_secs(3600)));
        Some(Some(Response::new(Full::new(document.to_string().into()))))
    });
    let peer = Peer::start_with(&authority, Duration::from_secs(3600), wrong).await;
    peer.ask(cabin.address, &cabin.name, &path).await.refused(status, code);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_and_homeservers_are_served_apart() {
    let Some(authority) = authority("listeners") else { return };
    let delegate = ("LOGCABIN_FEDERATION_DELEGATE", "matrix.example:443");
    let cabin = Federated::start_with(&authority, &[delegate]).await;
    let peer = Peer::start(&authority).await;
    let unrecognized = (404, "M_UNRECOGNIZED");
    let (status, code) = unrecognized;
    let null = Value::Null;
    for path in ["/_matrix/client/versions", "/_matrix/client/v3/login", "/_svc/key/v2/server"] {
        peer.send(cabin.address, "GET", path, None, &null).await.refused(status, code);
    }
    let http = cabin.server.http();
    for path in ["/_matrix/federation/v1/version", "/_matrix/key/v2/server", &profile(&cabin.name)]
    {
        http.request("GET", path, None, None).await.refused(status, code);
    }
    let version = "/_matrix/federation/v1/version";
    let version = peer.send(cabin.address, "GET", version, None, &null).await.ok();
    assert_eq!(version["server"]["name"], "Logcabin");
    let delegation = http.request("GET", "/.well-known/matrix/server", None, None).await.ok();
    assert_eq!(delegation, json!({ "m.server": "matrix.example:443" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_read_again_when_its_file_changes() {
    crate::harness::nodes::one_server!("each node looks at the files by itself");
    let Some(authority) = authority("certificates") else { return };
    let cabin = Federated::start(&authority).await;
    let peer = Peer::start(&authority).await;
    let name = format!("cabin{}", cabin.address.port());
    let (first, _) = peer.connect(cabin.address).await;
    let (key, certificate) = authority.certify(&name);
    let second = read(&certificate);
    assert_ne!(first, second);
    until("the new certificate is shown", async || peer.connect(cabin.address).await.0 == second)
        .await;
    // One that cannot be used does not take its place.
    std::fs::write(&key, "no key").expect("a file");
    until("it is said that it cannot be used", async || {
        peer.connect(cabin.address).await;
        cabin.server.output().contains("the changed certificate cannot be used")
    })
    .await;
    assert_eq!(peer.connect(cabin.address).await.0, second);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notary_vouches_for_keys_of_homeservers_that_are_gone() {
    let Some(authority) = authority("notaries") else { return };
    let notary = Federated::start(&authority).await;
    let settings = [("LOGCABIN_FEDERATION_NOTARIES", &*notary.name)];
    let cabin = Federated::start_with(&authority, &settings).await;
    cabin.server.register("ann").await;
    let mut peer = Peer::start(&authority).await;
    let query = format!("/_matrix/key/v2/query/{}", peer.name);
    let known = peer.send(notary.address, "GET", &query, None, &Value::Null).await.ok();
    let signatures = known["server_keys"][0]["signatures"].as_object().cloned();
    let signers: Vec<_> = signatures.expect("signatures").into_iter().map(|(of, _)| of).collect();
    assert!(signers.contains(&notary.name) && signers.contains(&peer.name.to_string()));
    peer.stop().await;
    peer.ask(cabin.address, &cabin.name, &profile(&cabin.name)).await.ok();
    // Of one that nobody knows, nothing is said.
    let query = "/_matrix/key/v2/query/localhost:1";
    let known = peer.send(notary.address, "GET", query, None, &Value::Null).await.ok();
    assert_eq!(known["server_keys"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_key_is_published_as_expired_and_signs_no_more() {
    let Some(authority) = authority("replaced keys") else { return };
    let mut cabin = Federated::start(&authority).await;
    let ann = cabin.server.register("ann").await;
    let peer = Peer::start(&authority).await;
    let remote = format!("/profile/{}", encode(&format!("@bob:{}", peer.name)));
    let keys = async |address| {
        let path = "/_matrix/key/v2/server";
        let published = peer.send(address, "GET", path, None, &Value::Null).await.ok();
        let ids = |which: &str| -> Vec<String> {
            published[which].as_object().expect("keys").keys().cloned().collect()
        };
        (ids("verify_keys"), ids("old_verify_keys"))
    };
    let signed_with = async |ann: &crate::harness::User| {
        ann.request("GET", &remote, None).await.refused(404, "M_NOT_FOUND");
        let asked = peer.asked();
        let header = asked.last().expect("a request").headers["authorization"].clone();
        XMatrix::parse(header.to_str().unwrap()).unwrap().key.to_string()
    };
    let (first, old) = keys(cabin.address).await;
    assert!(old.is_empty(), "{old:?}");
    assert_eq!(signed_with(&ann).await, first[0]);
    let data_dir = cabin.server.data_dir().display().to_string();
    let line = ["federation", "new-key", "--data-dir", &data_dir];
    let done = run_logcabin(line);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let (second, old) = keys(cabin.address).await;
    assert!(first != second && old == first, "{first:?} {second:?} {old:?}");
    assert_eq!(signed_with(&ann).await, second[0]);
    cabin.server.kill9();
    cabin.server.restart().await;
    assert_eq!(keys(cabin.address).await, (second.clone(), first));
    assert_eq!(signed_with(&ann).await, second[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_gets_only_the_devices_and_keys_that_concern_it() {
    let Some(authority) = authority("keys of users") else { return };
    let cabin = Federated::start(&authority).await;
    let (ann, name) = (cabin.server.register("ann").await, &*cabin.name);
    let peer = Peer::start(&authority).await;
    let device = format!("/devices/{}", encode(&ann.device_id));
    ann.request("PUT", &device, Some(&json!({ "display_name": "Ann's phone" }))).await.ok();
    ann.upload_identity().await;
    let path = format!("/_matrix/federation/v1/user/devices/{}", encode(&ann.user_id));
    let devices = peer.ask(cabin.address, name, &path).await.ok();
    assert!(devices["stream_id"].is_u64(), "{devices}");
    let devices = devices["devices"].as_array().expect("devices").clone();
    assert_eq!(devices.len(), 1, "{devices:?}");
    assert_eq!(devices[0]["device_id"], ann.device_id);
    assert_eq!(devices[0]["keys"]["keys"], ann.keys().public());
    assert!(!json!(devices).to_string().contains("phone"), "{devices:?}");
    let ask = async |path: &str, body: Value| {
        let path = format!("/_matrix/federation/v1/user/{path}");
        let header = peer.header(name, "POST", &path, &body);
        peer.send(cabin.address, "POST", &path, Some(&header), &body).await
    };
    let elsewhere = format!("@bob:{}", peer.name);
    let body = json!({ "device_keys": { &*ann.user_id: [], &*elsewhere: [] } });
    let found = ask("keys/query", body).await.ok();
    assert_eq!(found["device_keys"].as_object().map(|all| all.len()), Some(1), "{found}");
    let body = json!({ "one_time_keys": { &*elsewhere: { "A": "signed_curve25519" } } });
    assert_eq!(ask("keys/claim", body).await.ok()["one_time_keys"], json!({}));
    let devices: serde_json::Map<_, _> =
        (0..=10_000).map(|id| (id.to_string(), json!("signed_curve25519"))).collect();
    let body = json!({ "one_time_keys": { &*ann.user_id: devices } });
    ask("keys/claim", body).await.refused(400, "M_INVALID_PARAM");
    let path = format!("/_matrix/federation/v1/user/devices/{}", encode(&format!("@no:{name}")));
    peer.ask(cabin.address, name, &path).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_sees_the_rooms_of_a_space_that_its_users_could_join() {
    let Some(authority) = authority("spaces") else { return };
    let cabin = Federated::start(&authority).await;
    let (ann, name) = (cabin.server.register("ann").await, &*cabin.name);
    let peer = Peer::start(&authority).await;
    let open = json!({ "preset": "public_chat", "name": "Open" });
    let (open, closed) = (ann.create_room(open).await, ann.create_room(json!({})).await);
    let space = json!({ "preset": "public_chat", "creation_content": { "type": "m.space" } });
    let space = ann.create_room(space).await;
    for child in [&open, &closed] {
        let path = format!("/rooms/{}/state/m.space.child/{}", encode(&space), encode(child));
        ann.request("PUT", &path, Some(&json!({ "via": [name] }))).await.ok();
    }
    let hierarchy = |room: &str| format!("/_matrix/federation/v1/hierarchy/{}", encode(room));
    let found = peer.ask(cabin.address, name, &hierarchy(&space)).await.ok();
    assert_eq!(found["room"]["room_id"], *space);
    assert_eq!(found["room"]["children_state"].as_array().map(Vec::len), Some(2), "{found}");
    assert_eq!(found["children"].as_array().map(Vec::len), Some(1), "{found}");
    assert_eq!(found["children"][0]["name"], "Open");
    assert_eq!(found["inaccessible_children"], json!([closed]));
    for hidden in [&*closed, "!none:localhost"] {
        let refused = peer.ask(cabin.address, name, &hierarchy(hidden)).await;
        refused.refused(404, "M_NOT_FOUND");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_homeserver_has_a_rate_of_its_own_and_wrong_signatures_are_few() {
    let Some(authority) = authority("rates") else { return };
    let settings = [
        ("LOGCABIN_RATE_LIMITS_ENABLED", "true"),
        ("LOGCABIN_RATE_LIMITS_FEDERATION", "1/h burst 3"),
    ];
    let cabin = Federated::start_with(&authority, &settings).await;
    cabin.server.register("ann").await;
    let (address, name, path) = (cabin.address, &*cabin.name, profile(&cabin.name));
    let (one, other) = (Peer::start(&authority).await, Peer::start(&authority).await);
    for _ in 0..3 {
        one.ask(address, name, &path).await.ok();
    }
    one.ask(address, name, &path).await.refused(429, "M_LIMIT_EXCEEDED");
    other.ask(address, name, &path).await.ok();
    crate::harness::nodes::one_server!("each node counts wrong signatures by itself");
    // Somebody takes the name of another homeserver, again and again.
    let forged = sign(&other.name, &new_keys("peer"), name, "GET", &path, &Value::Null);
    let forged = forged.to_string();
    let mut refused = 0;
    for _ in 0..100 {
        let answer = other.send(address, "GET", &path, Some(&forged), &Value::Null).await;
        assert!(matches!(answer.status, 401 | 429), "{answer}");
        refused += usize::from(answer.status == 429);
    }
    assert!(refused >= 40, "{refused} of 100 wrong signatures were not looked at");
}
