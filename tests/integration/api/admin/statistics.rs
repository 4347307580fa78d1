//! How much users did since a time, and the largest rooms.

use serde_json::{Value, json};

use super::super::each;
use super::{admin, server, user};
use crate::harness::{TestServer, User, encode};

/// A time after everything that was recorded, and before everything that will be.
async fn now(user: &User, room_id: &str) -> u64 {
    let tick = || tokio::time::sleep(std::time::Duration::from_millis(5));
    tick().await;
    let event_id = user.send_text(room_id, &super::super::unique("now"), "now").await;
    let event = user.get_room(room_id, &format!("/event/{}", encode(&event_id))).await.ok();
    let ts = event["origin_server_ts"].as_u64().expect("a time");
    tick().await;
    ts + 1
}

async fn count(admin: &User, user_id: &str, what: &str, from_ts: u64) -> Value {
    let path = format!("/v1/users/{}/{what}?from_ts={from_ts}", encode(user_id));
    admin.administer("GET", &path, None).await.ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_invites_that_a_user_sent_since_a_time_are_counted() {
    let server = server().await;
    let (admin, ann) = (admin(&server).await, user(&server, "ann").await);
    let (bob, cas) = (user(&server, "bob").await, user(&server, "cas").await);
    let start = {
        let notes = ann.create_room(json!({})).await;
        now(&ann, &notes).await
    };
    let room_id = ann.create_room(json!({ "preset": "private_chat" })).await;
    ann.act(&room_id, "invite", Some(&bob)).await.ok();
    bob.join(&room_id).await.ok();
    let middle = now(&ann, &room_id).await;
    ann.act(&room_id, "invite", Some(&cas)).await.ok();
    // The second of two to one person counts, too.
    ann.act(&room_id, "kick", Some(&cas)).await.ok();
    ann.act(&room_id, "invite", Some(&cas)).await.ok();
    let end = now(&ann, &room_id).await;
    let invites = async |user_id: &str, from_ts: u64| {
        let counted = count(&admin, user_id, "sent_invite_count", from_ts).await;
        assert_eq!(counted.as_object().map(serde_json::Map::len), Some(1), "{counted}");
        counted["invite_count"].as_u64().expect("a number")
    };
    for (from_ts, expected) in [(0, 3), (start, 3), (middle, 2), (end, 0), (u64::MAX, 0)] {
        assert_eq!(invites(&ann.user_id, from_ts).await, expected, "since {from_ts}");
    }
    // Who was invited has sent none, nor has a user of another homeserver.
    assert_eq!(invites(&cas.user_id, 0).await, 0);
    assert_eq!(invites("@ann:elsewhere.test", 0).await, 0);

    // A redacted invite was one.
    let member = format!("/state/m.room.member/{}?format=event", encode(&cas.user_id));
    let event_id = ann.get_room(&room_id, &member).await.ok_string("event_id");
    let redact = format!("/rooms/{}/redact/{}/r", encode(&room_id), encode(&event_id));
    ann.request("PUT", &redact, Some(&json!({}))).await.ok();
    assert_eq!(invites(&ann.user_id, middle).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rooms_that_a_user_joined_since_a_time_are_counted() {
    let server = server().await;
    let (admin, ann) = (admin(&server).await, user(&server, "ann").await);
    let bob = user(&server, "bob").await;
    let mut rooms = Vec::new();
    for _ in 0..3 {
        rooms.push(ann.create_room(json!({ "preset": "public_chat" })).await);
    }
    bob.join(&rooms[0]).await.ok();
    bob.join(&rooms[1]).await.ok();
    let middle = now(&ann, &rooms[0]).await;
    bob.act(&rooms[1], "leave", None).await.ok();
    bob.join(&rooms[2]).await.ok();
    bob.act(&rooms[2], "leave", None).await.ok();
    // A new name is a join in the room's state, but nobody came in.
    let name = format!("/profile/{}/displayname", encode(&bob.user_id));
    bob.request("PUT", &name, Some(&json!({ "displayname": "Bobby" }))).await.ok();
    let later = now(&ann, &rooms[0]).await;
    // The room where they come back counts once.
    bob.join(&rooms[1]).await.ok();
    let end = now(&ann, &rooms[0]).await;
    for (from_ts, expected) in [(0, 3), (middle, 2), (later, 1), (end, 0), (u64::MAX, 0)] {
        let counted = count(&admin, &bob.user_id, "cumulative_joined_room_count", from_ts).await;
        let expected = json!({ "cumulative_joined_room_count": expected });
        assert_eq!(counted, expected, "since {from_ts}");
    }
    let none = count(&admin, "@bob:elsewhere.test", "cumulative_joined_room_count", 0).await;
    assert_eq!(none, json!({ "cumulative_joined_room_count": 0 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_needs_a_user_and_a_time() {
    let server = server().await;
    let admin = admin(&server).await;
    for what in ["sent_invite_count", "cumulative_joined_room_count"] {
        let get = async |user_id: &str, query: &str| {
            let path = format!("/v1/users/{}/{what}{query}", encode(user_id));
            admin.administer("GET", &path, None).await
        };
        get(&admin.user_id, "").await.refused(400, "M_MISSING_PARAM");
        get(&admin.user_id, "?from_ts=x").await.refused(400, "M_INVALID_PARAM");
        get(&admin.user_id, "?from_ts=-1").await.refused(400, "M_INVALID_PARAM");
        get("@nobody:e2e.test", "?from_ts=0").await.refused(404, "M_NOT_FOUND");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ten_largest_rooms_come_with_their_sizes() {
    let server = TestServer::start().await;
    let (admin, ann) = (admin(&server).await, server.register("ann").await);
    let mut rooms = Vec::new();
    for _ in 0..12 {
        rooms.push(ann.create_room(json!({})).await);
    }
    // Few large messages take more than many small ones.
    for number in 0..4 {
        ann.send_text(&rooms[7], &format!("l{number}"), &"x".repeat(30_000)).await;
    }
    for number in 0..30 {
        ann.send_text(&rooms[3], &format!("s{number}"), "short").await;
    }
    let path = "/v1/statistics/database/rooms";
    let listed = admin.administer("GET", path, None).await.ok();
    let ids = each(&listed["rooms"], "/room_id");
    assert_eq!((&ids[..2], ids.len()), (&[rooms[7].clone(), rooms[3].clone()][..], 10), "{listed}");
    let sizes = listed["rooms"].as_array().expect("a list").iter();
    let sizes: Vec<_> = sizes.map(|room| room["estimated_size"].as_u64().expect("bytes")).collect();
    assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
    assert!((120_000..150_000).contains(&sizes[0]), "{sizes:?}");
    assert!((10_000..60_000).contains(&sizes[1]), "{sizes:?}");
}
