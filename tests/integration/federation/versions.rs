//! What others say of a room's version.

use serde_json::json;

use super::elsewhere::stage;
use super::hostile::{Hostile, now};
use super::peer::Peer;
use crate::harness::{User, encode};

#[tokio::test(flavor = "multi_thread")]
async fn a_false_room_version_keeps_nobody_out_of_a_room() {
    let Some((authority, mut cabin, stage, ann)) = stage().await else { return };
    let evil = Peer::start(&authority).await;
    let bob = cabin.server.register("bob").await;
    let room_id = stage.room().room_id.clone();
    let hostile = Hostile::new(&evil, &cabin, &room_id);
    let invite = async |version: &str, user: &User, depth: u64| {
        let (id, event) = hostile.signed(json!({
            "type": "m.room.member", "room_id": room_id, "sender": hostile.user("eve"),
            "state_key": user.user_id, "content": { "membership": "invite" }, "depth": depth,
            "auth_events": [], "prev_events": [], "origin_server_ts": now(),
        }));
        let path = format!("/_matrix/federation/v2/invite/{}/{}", encode(&room_id), encode(&id));
        let body = json!({ "room_version": version, "event": event, "invite_room_state": [] });
        hostile.ask("PUT", &path, &body).await
    };
    invite("9", &bob, 5).await.ok();
    invite("11", &bob, 6).await.ok();

    // Nor does it help to lie to somebody who joins: the first event names the version.
    let join = format!("/join/{}?via={}", encode(&room_id), stage.peer.name);
    for false_one in ["9", "11"] {
        stage.room().version = Some(false_one);
        let refused = ann.request("POST", &join, Some(&json!({}))).await;
        assert_ne!(refused.status, 200, "{refused}");
    }
    stage.room().version = None;
    stage.entered_by(&ann).await;
    let create = ann.state(&room_id, "m.room.create", "").await.ok();
    assert_eq!(create["room_version"], "10");
    stage.say("hello");

    // The version is settled, even if nobody here is in the room any more.
    ann.act(&room_id, "leave", None).await.ok();
    assert_ne!(invite("9", &bob, 7).await.status, 200);
    invite("10", &bob, 8).await.ok();
    drop(hostile);
    cabin.server.restart().await;
    let bob = User { http: cabin.server.http(), ..bob };
    stage.entered_by(&bob).await;
    let create = bob.state(&room_id, "m.room.create", "").await.ok();
    assert_eq!(create["room_version"], "10");
}
