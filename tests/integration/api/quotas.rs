//! What one user may write: how fast, and how much of it is kept.

use serde_json::json;

use super::user;
use crate::harness::{Answer, TestServer, User, encode};

/// A server with the limits on requests that it has unless it is configured otherwise.
async fn limited(settings: &[(&str, &str)]) -> TestServer {
    TestServer::start_with(&[&[("LOGCABIN_RATE_LIMITS_ENABLED", "true")], settings].concat()).await
}

fn data_path(user: &User, event_type: &str) -> String {
    format!("/user/{}/account_data/{}", encode(&user.user_id), encode(event_type))
}

/// The ways in which a user may write without end: each gives the answer to its request of this number.
const ENDLESS: [&str; 10] = [
    "account data",
    "account data of a room",
    "tags",
    "filters",
    "aliases",
    "devices",
    "bans",
    "push rules",
    "profile",
    "room list",
];

async fn write(ann: &User, bob: &User, room_id: &str, what: &str, number: usize) -> Answer {
    let (user_id, room) = (encode(&ann.user_id), encode(room_id));
    let (method, path, body) = match what {
        "account data" => ("PUT", data_path(ann, "org.example"), json!({ "n": number })),
        "account data of a room" => {
            let path = format!("/user/{user_id}/rooms/{room}/account_data/org.example");
            ("PUT", path, json!({ "n": number }))
        }
        "tags" => {
            let path = format!("/user/{user_id}/rooms/{room}/tags/u.tag");
            ("PUT", path, json!({ "order": 1.0 / (number + 1) as f64 }))
        }
        "filters" => {
            let body = json!({ "room": { "timeline": { "limit": number } } });
            ("POST", format!("/user/{user_id}/filter"), body)
        }
        "aliases" => {
            let alias = encode(&format!("#{}-{number}:e2e.test", ann.localpart()));
            ("PUT", format!("/directory/room/{alias}"), json!({ "room_id": room_id }))
        }
        "devices" => {
            let path = format!("/devices/{}", encode(&ann.device_id));
            ("PUT", path, json!({ "display_name": number.to_string() }))
        }
        "bans" => {
            let action = if number % 2 == 0 { "ban" } else { "unban" };
            let body = json!({ "user_id": bob.user_id, "reason": "x".repeat(20_000) });
            ("POST", format!("/rooms/{room}/{action}"), body)
        }
        "push rules" => {
            let path = "/pushrules/global/override/.m.rule.master/enabled".to_owned();
            ("PUT", path, json!({ "enabled": number % 2 == 0 }))
        }
        "profile" => {
            let path = format!("/profile/{user_id}/displayname");
            ("PUT", path, json!({ "displayname": number.to_string() }))
        }
        "room list" => {
            let visibility = if number % 2 == 0 { "public" } else { "private" };
            let path = format!("/directory/list/room/{room}");
            ("PUT", path, json!({ "visibility": visibility }))
        }
        _ => panic!("no such write: {what}"),
    };
    ann.request(method, &path, Some(&body)).await
}

#[tokio::test]
async fn whoever_only_writes_meets_a_limit_whatever_they_write() {
    let server = limited(&[
        // What is tested is the limit of each class, not how often one may register.
        ("LOGCABIN_RATE_LIMITS_ADDRESS", "1000/s burst 1000"),
        ("LOGCABIN_RATE_LIMITS_REGISTRATION", "1000/s burst 1000"),
        ("LOGCABIN_RATE_LIMITS_DEVICE", "1000/s burst 100000"),
        ("LOGCABIN_RATE_LIMITS_USER", "1000/s burst 100000"),
    ])
    .await;
    let bob = user(&server, "bob").await;
    for what in ENDLESS {
        let ann = user(&server, "ann").await;
        let room_id = ann.create_room(json!({})).await;
        let mut number = 0;
        let refused = loop {
            let answer = write(&ann, &bob, &room_id, what, number).await;
            if answer.status != 200 {
                break answer;
            }
            number += 1;
            // The largest burst, and what comes back in ten minutes of such requests.
            assert!(number < 10_000, "{what}: {number} writes without a limit");
        };
        refused.refused(429, "M_LIMIT_EXCEEDED");
        assert!(number >= 20, "{what}: only {number} writes, which a client may well make");
        // Reading goes on.
        ann.get("/account/whoami").await.ok();
    }
}

#[tokio::test]
async fn how_much_a_user_writes_is_limited_however_few_requests_it_takes() {
    let server = limited(&[("LOGCABIN_RATE_LIMITS_WRITTEN_KILOBYTES", "1/h burst 500")]).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let large = json!({ "text": "x".repeat(100_000) });
    let set = |user: &User, number: usize| {
        let (user, large) = (user.clone(), large.clone());
        async move { user.put(&data_path(&user, &format!("org.example.{number}")), large).await }
    };
    for number in 0..5 {
        set(&ann, number).await.ok();
    }
    set(&ann, 5).await.refused(429, "M_LIMIT_EXCEEDED");
    // What is short is still taken, and others are not concerned.
    ann.put(&data_path(&ann, "org.example.short"), json!({})).await.ok();
    set(&bob, 0).await.ok();
    // However it is written: a reason of a ban is as good as a message.
    let room_id = bob.create_room(json!({})).await;
    let body = json!({ "user_id": ann.user_id, "reason": "x".repeat(20_000) });
    let mut taken = 0;
    for number in 0..30 {
        let action = if number % 2 == 0 { "ban" } else { "unban" };
        let answer = bob.post(&format!("/rooms/{}/{action}", encode(&room_id)), body.clone()).await;
        taken += usize::from(answer.status == 200);
    }
    assert!((10..25).contains(&taken), "{taken} of 30");
}
