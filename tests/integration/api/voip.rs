//! What calls need: a TURN server, and services by which calls of many are held.

use serde_json::json;

use super::{server, user};
use crate::harness::TestServer;

const TRANSPORTS: [&str; 2] = [
    "/_matrix/client/unstable/org.matrix.msc4143/rtc/transports",
    "/_matrix/client/v1/rtc/transports",
];

#[tokio::test]
async fn without_a_turn_server_and_transports_clients_are_told_of_none() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    assert_eq!(ann.get("/voip/turnServer").await.ok(), json!({}));
    for path in TRANSPORTS {
        let told = ann.http.request("GET", path, Some(&ann.access_token), None).await.ok();
        assert_eq!(told, json!({ "transports": [], "rtc_transports": [] }));
    }
    let versions = ann.http.request("GET", "/_matrix/client/versions", None, None).await.ok();
    assert_eq!(versions["unstable_features"]["org.matrix.msc4143"], false);
}

#[tokio::test]
async fn clients_are_told_of_the_servers_that_are_configured_with_a_password_of_their_own() {
    let server = TestServer::start_with(&[
        ("LOGCABIN_TURN_URIS", "turn:turn.example.org?transport=udp,turns:turn.example.org:443"),
        ("LOGCABIN_TURN_SHARED_SECRET", "a secret of the two"),
        ("LOGCABIN_TURN_TTL_SECONDS", "600"),
        ("LOGCABIN_RTC_SERVICE_URLS", "https://calls.example.org/livekit"),
        ("LOGCABIN_REGISTRATION_OPEN", "true"),
    ])
    .await;
    let ann = user(&server, "ann").await;
    let told = ann.get("/voip/turnServer").await.ok();
    let uris = json!(["turn:turn.example.org?transport=udp", "turns:turn.example.org:443"]);
    assert_eq!((&told["uris"], &told["ttl"]), (&uris, &json!(600)), "{told}");
    let (expires, name) =
        told["username"].as_str().and_then(|n| n.split_once(':')).expect("a name");
    assert_eq!(name, ann.user_id);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.expect("a clock that is set").as_secs();
    let left = expires.parse::<u64>().expect("a time") - now;
    assert!((500..=600).contains(&left), "{told}");
    // What it is made of is shown where it is made: 20 bytes in base64.
    assert_eq!(told["password"].as_str().map(str::len), Some(28), "{told}");
    let transports = json!([
        { "type": "livekit", "livekit_service_url": "https://calls.example.org/livekit" },
    ]);
    for path in TRANSPORTS {
        let told = ann.http.request("GET", path, Some(&ann.access_token), None).await.ok();
        assert_eq!(told, json!({ "transports": transports, "rtc_transports": transports }));
    }
    let http = server.http();
    let document = http.request("GET", "/.well-known/matrix/client", None, None).await.ok();
    assert_eq!(document["org.matrix.msc4143.rtc_foci"], transports, "{document}");
    let versions = http.request("GET", "/_matrix/client/versions", None, None).await.ok();
    assert_eq!(versions["unstable_features"]["org.matrix.msc4143"], true);
}
