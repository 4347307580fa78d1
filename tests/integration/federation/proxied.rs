//! Everything that leaves goes through the outbound proxy, and nothing that may not leave.

use serde_json::json;

use super::{Federated, authority};
use crate::api::threepids;
use crate::harness::mail::{MailServer, Security};
use crate::harness::stand_in::{Service, reply};
use crate::harness::tunnel::{LOGIN, Tunnel};
use crate::harness::{Direction, Gateway, TestServer, User, encode, until};

/// Settings as the harness takes them.
fn given<'a>(settings: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
    settings.iter().map(|(name, value)| (*name, &**value)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn homeservers_reach_each_other_and_their_files_through_a_proxy_that_demands_a_login() {
    let Some(authority) = authority("outbound proxy") else { return };
    let tunnel = Tunnel::start_with_login().await;
    let mut settings = tunnel.settings();
    settings.push(("LOGCABIN_OUTBOUND_PROXY_USER", LOGIN.0.to_owned()));
    settings.push(("LOGCABIN_OUTBOUND_PROXY_PASSWORD", LOGIN.1.to_owned()));
    let one = Federated::start_with(&authority, &given(&settings)).await;
    let two = Federated::start_with(&authority, &given(&settings)).await;
    let (ann, bob) = (one.server.register("ann").await, two.server.register("bob").await);

    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let path = format!("/join/{}?via={}", encode(&room_id), encode(&one.name));
    bob.request("POST", &path, Some(&json!({}))).await.ok();
    bob.send_text(&room_id, "t", "through the proxy").await;
    until("ann has the message", async || {
        let events = ann.messages(&room_id, None, None, Direction::Back, 10).await;
        let events = events["chunk"].as_array().cloned().unwrap_or_default();
        events.iter().any(|event| event["content"]["body"] == "through the proxy")
    })
    .await;
    let file = ann.upload("text/plain", "a file").await;
    assert_eq!(&*bob.download(&file).await.bytes, b"a file");
    assert!(tunnel.has_reached(one.address.port()) && tunnel.has_reached(two.address.port()));
    // Names are resolved by the server.
    let asked = tunnel.asked();
    let by_address = |target: &str| target.parse::<std::net::SocketAddr>().is_ok();
    assert!(asked.iter().all(|tried| by_address(&tried.target)), "{asked:?}");

    // Without the right password, there is no way.
    let (_, password) = settings.pop().expect("the password");
    settings.push(("LOGCABIN_OUTBOUND_PROXY_PASSWORD", format!("not {password}")));
    let locked = Federated::start_with(&authority, &given(&settings)).await;
    let sam = locked.server.register("sam").await;
    sam.download(&file).await.json().refused(502, "M_CONNECTION_FAILED");
    assert!(tunnel.asked().iter().any(|tried| tried.status == 407));
    assert!(!tunnel.has_reached(locked.address.port()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_resolves_names_is_asked_for_names_and_for_no_private_ones() {
    let Some(authority) = authority("outbound proxy") else { return };
    let tunnel = Tunnel::start().await;
    let mut settings = tunnel.settings();
    settings.push(("LOGCABIN_OUTBOUND_PROXY_RESOLVES_NAMES", "true".to_owned()));
    let cabin = Federated::start_with(&authority, &given(&settings)).await;
    let ann = cabin.server.register("ann").await;
    for private in ["localhost:1", "printer.local:1", "db.internal:1", "10.0.0.1:1"] {
        let media = format!("{private}/file");
        ann.download(&media).await.json().refused(502, "M_CONNECTION_FAILED");
    }
    assert_eq!(tunnel.asked(), [], "nothing private is asked for");
    let media = "nowhere.invalid.example:1/file";
    ann.download(media).await.json().refused(502, "M_CONNECTION_FAILED");
    let asked = tunnel.asked();
    assert!(
        asked.iter().any(|tried| tried.target == "nowhere.invalid.example:1"),
        "the proxy resolves it: {asked:?}"
    );
}

/// Two users of a server and their room; the second one has no pusher.
async fn two_in_a_room(server: &TestServer) -> (User, User, String) {
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    (ann, bob, room_id)
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_leave_through_the_proxy_unless_the_gateway_needs_none() {
    for is_spared in [false, true] {
        let (tunnel, gateway) = (Tunnel::start().await, Gateway::start().await);
        let mut settings = tunnel.settings();
        if is_spared {
            settings.push(("LOGCABIN_OUTBOUND_NO_PROXY", "127.0.0.0/8, example.org".to_owned()));
        }
        let server = Gateway::server(&given(&settings)).await;
        let (ann, bob, room_id) = two_in_a_room(&server).await;
        gateway.serves(&ann, "key").await;
        let event = bob.send_text(&room_id, "t", "hello").await;
        gateway.until_events("key", &[event]).await;
        let target = gateway.url();
        let target = target.trim_start_matches("http://").split('/').next().unwrap_or_default();
        let went_through = tunnel.asked().iter().any(|tried| tried.target == target);
        assert_eq!(went_through, !is_spared, "{target}: {:?}", tunnel.asked());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_user_has_the_proxy_lead_to_a_private_address() {
    let site = Service::start(|_| async { reply(200, "text/html", "<title>inner</title>") }).await;
    for resolves in ["false", "true"] {
        let tunnel = Tunnel::start().await;
        let mut settings = tunnel.settings();
        settings.push(("LOGCABIN_OUTBOUND_PROXY_RESOLVES_NAMES", resolves.to_owned()));
        let server = TestServer::start_with(&given(&settings)).await;
        let ann = server.register("ann").await;
        let port = site.address.port();
        for host in ["127.0.0.1", "localhost", "[::1]", "10.0.0.1", "2130706433"] {
            let url = encode(&format!("http://{host}:{port}/"));
            let path = format!("/_matrix/client/v1/media/preview_url?url={url}");
            let answer = ann.http.request("GET", &path, Some(&ann.access_token), None).await;
            assert_ne!(answer.status, 200, "{host}: {answer}");
        }
        assert_eq!(tunnel.asked(), [], "nothing private is asked for");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_leaves_through_the_proxy_with_every_kind_of_tls() {
    for security in [Security::None, Security::Starttls, Security::Tls] {
        let Some(mail) = MailServer::start_with("outbound proxy", security) else { return };
        let tunnel = Tunnel::start().await;
        let server = threepids::start(&mail.settings(), &given(&tunnel.settings())).await;
        let body = json!({ "client_secret": "s", "email": "ann@example.org", "send_attempt": 1 });
        let path = "/_matrix/client/v3/register/email/requestToken";
        server.http().request("POST", path, None, Some(&body)).await.ok();
        let arrived = mail.mail("ann@example.org", 0);
        assert_eq!(arrived["tls"] == true, security != Security::None, "{security:?}: {arrived}");
        assert!(tunnel.has_reached(mail.port()), "{security:?}: {:?}", tunnel.asked());
    }
}
