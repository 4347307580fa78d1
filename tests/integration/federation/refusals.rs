//! What clients are told when another homeserver refuses, or cannot be reached.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::hostile::Hostile;
use super::peer::{Answers, Peer};
use super::{Federated, authority};
use crate::harness::stand_in::reply_json;
use crate::harness::{Answer, User, encode};

/// What the peer says of a room or a user with this name, and what the client is told.
const REFUSALS: [(&str, u16, &str, u16, &str); 11] = [
    ("incompatible", 400, "M_INCOMPATIBLE_ROOM_VERSION", 400, "M_INCOMPATIBLE_ROOM_VERSION"),
    ("forbidden", 403, "M_FORBIDDEN", 403, "M_FORBIDDEN"),
    ("unknown", 404, "M_NOT_FOUND", 404, "M_NOT_FOUND"),
    ("unable", 400, "M_UNABLE_TO_AUTHORISE_JOIN", 400, "M_UNABLE_TO_GRANT_JOIN"),
    ("often", 429, "M_LIMIT_EXCEEDED", 429, "M_LIMIT_EXCEEDED"),
    ("odd", 400, "M_BAD_STATE", 400, "M_BAD_STATE"),
    ("own", 400, "ORG.EXAMPLE.NO", 400, "M_UNKNOWN"),
    ("teapot", 418, "M_UNKNOWN", 400, "M_UNKNOWN"),
    // What is no fault of the client's, and what would end its session.
    ("parameter", 400, "M_MISSING_PARAM", 502, "M_CONNECTION_FAILED"),
    ("session", 401, "M_UNKNOWN_TOKEN", 403, "M_FORBIDDEN"),
    ("fault", 500, "M_UNKNOWN", 502, "M_CONNECTION_FAILED"),
];

/// A peer that refuses as [`REFUSALS`] says, that has a room of a version of its own, and whose
/// users can be invited.
async fn refusing(authority: &super::Authority) -> Peer {
    let answers: Answers = Arc::new(|asked| {
        let is_entry = ["make_join", "make_knock"].iter().any(|of| asked.path.contains(of));
        let is_invite = asked.path.contains("/v2/invite/");
        if !is_entry && !is_invite && !asked.path.contains("publicRooms") {
            return None;
        }
        let content = &asked.body["event"]["content"];
        let subject = match content["reason"].as_str() {
            Some(reason) => format!("{reason}."),
            None => {
                asked.path.replace("%2E", ".") + asked.body["since"].as_str().unwrap_or_default()
            }
        };
        let refusal = REFUSALS.iter().find(|(name, ..)| subject.contains(&format!("{name}.")));
        if let Some((_, status, errcode, ..)) = refusal {
            let body = json!({
                "errcode": errcode, "error": "so it is", "room_version": "99", "retry_after_ms": 7,
            });
            return Some(reply_json(*status, &body));
        }
        Some(match is_invite {
            true => {
                let mut event = asked.body["event"].clone();
                if event["content"]["reason"] == "altered" {
                    event["content"]["reason"] = json!("what ann never said");
                }
                reply_json(200, &json!({ "event": event }))
            }
            false => {
                let event = json!({ "auth_events": [], "prev_events": [], "depth": 5 });
                reply_json(200, &json!({ "room_version": "99", "event": event }))
            }
        })
    });
    Peer::start_with(authority, Duration::from_secs(3600), answers).await
}

async fn invite(ann: &User, room_id: &str, target: &str, reason: &str) -> Answer {
    let path = format!("/rooms/{}/invite", encode(room_id));
    ann.request("POST", &path, Some(&json!({ "user_id": target, "reason": reason }))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_passed_through_if_the_client_can_use_it() {
    let Some(authority) = authority("hostile peers") else { return };
    let unlimited = [("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &unlimited).await;
    let peer = refusing(&authority).await;
    let ann = cabin.server.register("ann").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let sam = format!("@sam:{}", peer.name);
    for (name, _, _, status, errcode) in REFUSALS {
        for act in ["join", "knock"] {
            let path =
                format!("/{act}/{}?via={}", encode(&format!("!{name}.:{}", peer.name)), peer.name);
            let answer = ann.request("POST", &path, Some(&json!({}))).await;
            let body = answer.refused(status, errcode);
            if errcode == "M_INCOMPATIBLE_ROOM_VERSION" {
                assert_eq!(body["room_version"], "99", "{body}");
            }
            if status == 429 {
                assert_eq!(body["retry_after_ms"], 7, "{body}");
            }
        }
        let errcode = match errcode {
            "M_INCOMPATIBLE_ROOM_VERSION" => "M_UNSUPPORTED_ROOM_VERSION",
            other => other,
        };
        invite(&ann, &room_id, &sam, name).await.refused(status, errcode);
    }
    // The reason is not part of the invite's id.
    invite(&ann, &room_id, &sam, "altered").await.refused(502, "M_CONNECTION_FAILED");
    let path = format!("/rooms/{}/state/m.room.member/{}", encode(&room_id), encode(&sam));
    ann.request("GET", &path, None).await.refused(404, "M_NOT_FOUND");
    invite(&ann, &room_id, &sam, "unaltered").await.ok();
    // Of two homeservers, the one that knows the room is believed.
    let path = format!("/join/{}?via={}", encode("!forbidden.:localhost:1"), peer.name);
    ann.request("POST", &path, Some(&json!({}))).await.refused(403, "M_FORBIDDEN");
    // A room of a version that only the template tells of.
    let path = format!("/join/{}", encode(&format!("!new:{}", peer.name)));
    let refused = ann.request("POST", &path, Some(&json!({}))).await;
    let body = refused.refused(400, "M_INCOMPATIBLE_ROOM_VERSION");
    assert_eq!(body["room_version"], "99", "{body}");
    // A parameter that the client chose.
    let path = format!("/publicRooms?server={}&since=odd.", peer.name);
    ann.request("GET", &path, None).await.refused(400, "M_BAD_STATE");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invite_to_a_room_of_a_version_that_is_not_supported_says_which() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start(&authority).await;
    let peer = Peer::start(&authority).await;
    let ann = cabin.server.register("ann").await;
    let hostile = Hostile::new(&peer, &cabin, "!none");
    let room_id = format!("!room:{}", peer.name);
    let (event_id, event) = hostile.signed(json!({
        "type": "m.room.member", "room_id": room_id, "sender": hostile.user("pia"),
        "state_key": ann.user_id, "content": { "membership": "invite" }, "depth": 5,
        "auth_events": [], "prev_events": [], "origin_server_ts": 1,
    }));
    let path = format!("/_matrix/federation/v2/invite/{}/{}", encode(&room_id), encode(&event_id));
    let body = json!({ "room_version": "99", "event": event, "invite_room_state": [] });
    let refused = hostile.ask("PUT", &path, &body).await;
    let said = refused.refused(400, "M_INCOMPATIBLE_ROOM_VERSION");
    assert_eq!(said["room_version"], "99", "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_another_homeserver_is_invited_by_a_state_event_too() {
    let Some(authority) = authority("hostile peers") else { return };
    let cabin = Federated::start(&authority).await;
    let peer = refusing(&authority).await;
    let ann = cabin.server.register("ann").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let set = async |target: &str, content: &Value| {
        let (room, target) = (encode(&room_id), encode(target));
        let path = format!("/rooms/{room}/state/m.room.member/{target}");
        ann.request("PUT", &path, Some(content)).await
    };
    let sam = format!("@sam:{}", peer.name);
    let content = json!({ "membership": "invite", "reason": "to talk", "org.example": "more" });
    let event_id = set(&sam, &content).await.ok()["event_id"].clone();
    let path =
        format!("/rooms/{}/state/m.room.member/{}?format=event", encode(&room_id), encode(&sam));
    let member = ann.request("GET", &path, None).await.ok();
    assert_eq!((&member["event_id"], &member["content"]), (&event_id, &content), "{member}");
    // One that cannot be reached, either way: it is the invited user's server that is named.
    let lost = "@sam:localhost:1";
    for refused in [
        set(lost, &json!({ "membership": "invite" })).await,
        invite(&ann, &room_id, lost, "to talk").await,
    ] {
        let said = refused.refused(502, "M_CONNECTION_FAILED");
        assert_eq!(said["error"], "The invited user's server is unreachable.", "{said}");
    }
}
