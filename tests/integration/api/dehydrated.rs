//! Dehydrated devices (MSC3814): a device that takes messages while none of the user's others is
//! there.

use serde_json::{Value, json};

use super::{server, user};
use crate::harness::{Answer, DeviceKeys, TestServer, User, curve25519, encode};

const PATH: &str = "/_matrix/client/unstable/org.matrix.msc3814.v1/dehydrated_device";

async fn ask(user: &User, method: &str, path: &str, body: Option<&Value>) -> Answer {
    user.http.request(method, &format!("{PATH}{path}"), Some(&user.access_token), body).await
}

fn described(user: &User, device_id: &str, key: &str) -> Value {
    let keys = if key == device_id {
        DeviceKeys::of(&user.user_id, device_id)
    } else {
        DeviceKeys::others_of(&user.user_id, device_id)
    };
    let mut identity = keys.identity();
    identity["dehydrated"] = true.into();
    identity.as_object_mut().expect("an object").remove("signatures");
    json!({
        "device_id": device_id,
        "initial_device_display_name": "Dehydrated",
        "device_data": { "algorithm": "org.matrix.msc3814.v2", "device_pickle": key, "nonce": "n" },
        "device_keys": keys.sign(&identity),
        "one_time_keys": keys.one_time(&["A"]),
        "fallback_keys": keys.fallback("F"),
    })
}

async fn dehydrate(user: &User, device_id: &str) {
    let body = described(user, device_id, device_id);
    let made = ask(user, "PUT", "", Some(&body)).await.ok();
    assert_eq!(made, json!({ "device_id": device_id }));
}

async fn send(from: &User, to: &User, device_id: &str, txn: &str) {
    let messages = json!({ "messages": { &to.user_id: { device_id: { "body": txn } } } });
    from.put(&format!("/sendToDevice/m.test/{txn}"), messages).await.ok();
}

async fn events(user: &User, device_id: &str, from: Option<&str>) -> Answer {
    let body = from.map_or_else(|| json!({}), |from| json!({ "next_batch": from }));
    ask(user, "POST", &format!("/{}/events", encode(device_id)), Some(&body)).await
}

fn bodies(answer: &Value) -> Vec<&str> {
    let events = answer["events"].as_array().expect("a list");
    events.iter().filter_map(|event| event["content"]["body"].as_str()).collect()
}

async fn claim(by: &User, of: &User, device_id: &str) -> Value {
    let body = json!({ "one_time_keys": { &of.user_id: { device_id: "signed_curve25519" } } });
    by.post("/keys/claim", body).await.ok()["one_time_keys"][&of.user_id][device_id].clone()
}

async fn queried(by: &User, of: &User) -> Value {
    let body = json!({ "device_keys": { &of.user_id: [] } });
    by.post("/keys/query", body).await.ok()["device_keys"][&of.user_id].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dehydrated_device_takes_messages_until_the_user_is_back_and_survives_a_restart() {
    let mut server = TestServer::start().await;
    let (mut ann, mut bob) = (server.register("ann").await, server.register("bob").await);
    ask(&ann, "GET", "", None).await.refused(404, "M_NOT_FOUND");
    ask(&ann, "DELETE", "", None).await.refused(404, "M_NOT_FOUND");
    dehydrate(&ann, "DRY").await;
    // To others it is a device as any.
    let device = queried(&bob, &ann).await["DRY"].clone();
    assert_eq!(device["keys"], DeviceKeys::of(&ann.user_id, "DRY").public(), "{device}");
    assert_eq!(
        (&device["dehydrated"], &device["unsigned"]["device_display_name"]),
        (&json!(true), &json!("Dehydrated"))
    );
    assert_eq!(claim(&bob, &ann, "DRY").await["signed_curve25519:A"]["key"], curve25519("A"));
    for n in 0..101 {
        send(&bob, &ann, "DRY", &format!("m{n}")).await;
    }
    server.restart().await;
    (ann.http, bob.http) = (server.http(), server.http());
    // The next key is the fallback key: the other one was handed out, once and for ever.
    assert_eq!(claim(&bob, &ann, "DRY").await["signed_curve25519:F"]["key"], curve25519("F"));
    let back = ann.another_device().await;
    let found = ask(&back, "GET", "", None).await.ok();
    let expected = described(&ann, "DRY", "DRY")["device_data"].clone();
    assert_eq!(found, json!({ "device_id": "DRY", "device_data": expected }));
    // Page by page, as often as it takes.
    for _ in 0..2 {
        let first = events(&back, "DRY", None).await.ok();
        assert_eq!((bodies(&first).len(), bodies(&first)[0]), (100, "m0"));
        let second = events(&back, "DRY", first["next_batch"].as_str()).await.ok();
        assert_eq!(bodies(&second), ["m100"]);
        let last = events(&back, "DRY", second["next_batch"].as_str()).await.ok();
        assert_eq!(bodies(&last), [""; 0]);
    }
    assert_eq!(ask(&back, "DELETE", "", None).await.ok(), json!({ "device_id": "DRY" }));
    assert_eq!(queried(&bob, &ann).await, json!({}));
    events(&back, "DRY", None).await.refused(403, "M_FORBIDDEN");
    ask(&back, "GET", "", None).await.refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn a_new_dehydrated_device_takes_the_place_of_the_one_before() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    dehydrate(&ann, "FIRST").await;
    send(&bob, &ann, "FIRST", "lost").await;
    dehydrate(&ann, "SECOND").await;
    let devices = queried(&bob, &ann).await;
    assert!(devices.get("FIRST").is_none() && devices.get("SECOND").is_some(), "{devices}");
    events(&ann, "FIRST", None).await.refused(403, "M_FORBIDDEN");
    send(&bob, &ann, "FIRST", "nowhere").await;
    send(&bob, &ann, "SECOND", "kept").await;
    assert_eq!(bodies(&events(&ann, "SECOND", None).await.ok()), ["kept"]);
    // One that is sent again is there once; its keys are not handed out a second time.
    let _ = claim(&bob, &ann, "SECOND").await;
    dehydrate(&ann, "SECOND").await;
    assert!(claim(&bob, &ann, "SECOND").await.get("signed_curve25519:F").is_some());
    assert_eq!(bodies(&events(&ann, "SECOND", None).await.ok()), ["kept"]);
    let other = described(&ann, "SECOND", "another key");
    ask(&ann, "PUT", "", Some(&other)).await.refused(400, "M_INVALID_PARAM");
    // Nobody else's: bob has none.
    events(&bob, "SECOND", None).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn what_is_no_dehydrated_device_is_refused() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let good = described(&ann, "DRY", "DRY");
    let changed = |name: &str, value: Value| {
        let mut body = good.clone();
        body[name] = value;
        body
    };
    for (body, errcode) in [
        (json!({}), "M_MISSING_PARAM"),
        (changed("device_data", json!("text")), "M_BAD_JSON"),
        (changed("device_keys", json!([])), "M_BAD_JSON"),
        (changed("device_keys", json!({})), "M_BAD_JSON"),
        (
            changed("device_keys", {
                let mut keys = good["device_keys"].clone();
                keys["algorithms"] = json!(["another"]);
                keys
            }),
            "M_INVALID_SIGNATURE",
        ),
        (changed("one_time_keys", json!({ "signed_curve25519:A": { "key": "A" } })), "M_BAD_JSON"),
        (changed("device_id", json!("OTHER")), "M_INVALID_PARAM"),
        (
            changed("device_keys", described(&bob, "DRY", "DRY")["device_keys"].clone()),
            "M_INVALID_PARAM",
        ),
        // A device that somebody is logged in on.
        (described(&ann, &ann.device_id, "DRY"), "M_INVALID_PARAM"),
    ] {
        ask(&ann, "PUT", "", Some(&body)).await.refused(400, errcode);
    }
    let large = changed("device_data", json!({ "device_pickle": "x".repeat(200_000) }));
    ask(&ann, "PUT", "", Some(&large)).await.refused(413, "M_TOO_LARGE");
    ask(&ann, "GET", "", None).await.refused(404, "M_NOT_FOUND");
    // Logging out everywhere takes it along.
    dehydrate(&ann, "DRY").await;
    ann.post("/logout/all", json!({})).await.ok();
    assert_eq!(queried(&bob, &ann).await, json!({}));
}
