//! Calls with users of other homeservers: they are let into those of rooms that they are in, by
//! OpenID tokens and by way of their homeserver.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::authority::Authority;
use super::hostile::Hostile;
use super::peer::Peer;
use super::{Federated, authority};
use crate::calls::{Livekit, ask, claims, hash, of_device, openid};
use crate::harness::stand_in::reply_json;
use crate::harness::{Answer, Asked, User};

const FOR_SERVERS: &str = "/_matrix/federation/unstable/io.element.msc4195/rtc/livekit/get_token";
const FOR_USERS: &str = "/_matrix/client/unstable/io.element.msc4195/rtc/livekit/get_token";
const USER_INFO: &str = "/_matrix/federation/v1/openid/userinfo?access_token=";

/// A peer that knows whose a token is: the token is the user id. It lets into its own calls those
/// who ask for the slot "open", and fails for that called "broken".
async fn knowing_peer(authority: &Authority) -> Peer {
    let answers = |asked: &Asked| {
        if let Some(token) = asked.path.strip_prefix(USER_INFO) {
            let user = token.replace("%40", "@").replace("%3A", ":");
            let is_one = user.starts_with('@');
            return Some(match is_one {
                true => reply_json(200, &json!({ "sub": user })),
                false => reply_json(401, &json!({ "errcode": "M_UNKNOWN_TOKEN", "error": "no" })),
            });
        }
        (asked.path == FOR_SERVERS).then(|| match asked.body["slot_id"].as_str() {
            Some("open") => reply_json(200, &json!({ "jwt": "of the peer" })),
            Some("broken") => reply_json(500, &json!({})),
            _ => reply_json(403, &json!({ "errcode": "M_FORBIDDEN", "error": "no" })),
        })
    };
    Peer::start_with(authority, Duration::from_secs(3600), Arc::new(answers)).await
}

/// How often a peer was asked for something.
fn asked_for(peer: &Peer, path: &str) -> usize {
    peer.asked().iter().filter(|asked| asked.path.starts_with(path)).count()
}

fn token(server: &Peer, user: &str) -> Value {
    json!({ "access_token": user, "matrix_server_name": server.name })
}

fn slot(url: &str, room_id: &str, slot_id: &str) -> Value {
    json!({ "url": url, "room_id": room_id, "slot_id": slot_id, "member_id": "xyz" })
}

struct Stage {
    livekit: Livekit,
    cabin: Federated,
    peer: Peer,
    ann: User,
    room_id: String,
    pia: String,
}

impl Stage {
    /// A user of the peer, pia, is in ann's room.
    async fn set(authority: &Authority, more: &[(&str, &str)]) -> Self {
        let livekit = Livekit::start().await;
        let settings = livekit.settings();
        let mut all: Vec<_> = settings.iter().map(|(name, value)| (*name, &**value)).collect();
        all.extend(more);
        let cabin = Federated::start_with(authority, &all).await;
        let peer = knowing_peer(authority).await;
        let ann = cabin.server.register("ann").await;
        let options = json!({ "preset": "public_chat", "room_version": "10" });
        let room_id = ann.create_room(options).await;
        let pia = {
            let mut of_peer = Hostile::new(&peer, &cabin, &room_id);
            of_peer.join().await;
            of_peer.user("pia")
        };
        Self { livekit, cabin, peer, ann, room_id, pia }
    }

    async fn asks(&self, body: &Value) -> Answer {
        let (to, address) = (&self.cabin.name, self.cabin.address);
        let header = self.peer.header(to, "POST", FOR_SERVERS, body);
        self.peer.send(address, "POST", FOR_SERVERS, Some(&header), body).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_another_homeserver_joins_calls_by_an_openid_token() {
    let Some(authority) = authority("calls") else { return };
    let stage = Stage::set(&authority, &[]).await;
    let Stage { livekit, cabin, peer, ann, room_id, pia } = &stage;
    let server = &cabin.server;
    let of_pia = of_device(&token(peer, pia), room_id);
    let answer = ask(server, "/sfu/get", &of_pia).await.ok();
    let claims = claims(&answer);
    assert_eq!(claims["sub"], json!(format!("{pia}:PHONE")), "{claims}");
    // She meets others where the first of them is.
    assert_eq!(claims["video"]["canPublish"], true, "{claims}");
    assert_eq!(claims["video"]["room"], hash(&[room_id, "m.call#ROOM"]), "{claims}");
    assert_eq!(livekit.made(), [""; 0], "she does not begin calls");
    let of_ann = of_device(&openid(ann).await, room_id);
    ask(server, "/sfu/get", &of_ann).await.ok();
    assert_eq!(livekit.made().len(), 1);

    // Tokens that are not valid, or of which the homeserver says that they are somebody else's.
    for user in ["nonsense", &ann.user_id] {
        let wrong = of_device(&token(peer, user), room_id);
        ask(server, "/sfu/get", &wrong).await.refused(401, "M_UNAUTHORIZED");
    }
    // Somebody of that homeserver who is not in the room.
    let pit = format!("@pit:{}", peer.name);
    let outside = of_device(&token(peer, &pit), room_id);
    ask(server, "/sfu/get", &outside).await.refused(403, "M_FORBIDDEN");
    // A homeserver that is not in the room is not asked, and neither is one for a room that there
    // is not.
    let stranger = knowing_peer(&authority).await;
    let other = format!("@pia:{}", stranger.name);
    let strange = of_device(&token(&stranger, &other), room_id);
    ask(server, "/sfu/get", &strange).await.refused(401, "M_UNAUTHORIZED");
    assert!(stranger.asked().is_empty(), "{:?}", stranger.asked());
    let before = asked_for(peer, USER_INFO);
    let nowhere = of_device(&token(peer, pia), "!nowhere:localhost");
    ask(server, "/sfu/get", &nowhere).await.refused(401, "M_UNAUTHORIZED");
    assert_eq!(asked_for(peer, USER_INFO), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn users_of_homeservers_that_are_named_begin_calls_too() {
    let Some(authority) = authority("calls") else { return };
    let stage = Stage::set(&authority, &[("LOGCABIN_RTC_MAY_BEGIN", "localhost")]).await;
    let Stage { livekit, cabin, peer, room_id, pia, .. } = &stage;
    let of_pia = of_device(&token(peer, pia), room_id);
    ask(&cabin.server, "/sfu/get", &of_pia).await.ok();
    assert_eq!(livekit.made(), [hash(&[room_id, "m.call#ROOM"])]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_gets_tokens_for_its_users_who_are_in_the_room() {
    let Some(authority) = authority("calls") else { return };
    let stage = Stage::set(&authority, &[]).await;
    let Stage { livekit, cabin, peer, ann, room_id, pia } = &stage;
    let with = |user: &str, mut body: Value| {
        body["user_id"] = json!(user);
        body
    };
    let right = with(pia, slot(&livekit.url(), room_id, "s"));
    let claims = claims(&stage.asks(&right).await.ok());
    assert_eq!(claims["sub"], hash(&[pia, "xyz"]), "{claims}");
    assert_eq!(claims["video"]["canPublish"], false, "{claims}");
    assert_eq!(claims["video"]["canSubscribe"], true, "{claims}");
    assert_eq!(livekit.made(), [hash(&[room_id, "s"])]);

    stage.asks(&with(&ann.user_id, right.clone())).await.refused(403, "M_FORBIDDEN");
    let pit = format!("@pit:{}", peer.name);
    stage.asks(&with(&pit, right.clone())).await.refused(403, "M_FORBIDDEN");
    let nowhere = with(pia, slot(&livekit.url(), "!nowhere:localhost", "s"));
    stage.asks(&nowhere).await.refused(403, "M_FORBIDDEN");
    let elsewhere = with(pia, slot("wss://other.example", room_id, "s"));
    stage.asks(&elsewhere).await.refused(400, "M_INVALID_PARAM");
    let unsigned = peer.send(cabin.address, "POST", FOR_SERVERS, None, &right).await;
    unsigned.refused(401, "M_UNAUTHORIZED");
    assert_eq!(livekit.made().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_gets_the_tokens_of_another_homeserver_by_way_of_this_one() {
    let Some(authority) = authority("calls") else { return };
    let stage = Stage::set(&authority, &[]).await;
    let Stage { cabin, peer, ann, room_id, .. } = &stage;
    let asks = async |user: &User, server: &Peer, slot_id: &str| {
        let mut body = slot("wss://livekit.peer.example", room_id, slot_id);
        body["server_name"] = json!(server.name);
        user.http.request("POST", FOR_USERS, Some(&user.access_token), Some(&body)).await
    };
    assert_eq!(asks(ann, peer, "open").await.ok(), json!({ "jwt": "of the peer" }));
    let asked = peer.asked().into_iter().find(|asked| asked.path == FOR_SERVERS);
    let mut expected = slot("wss://livekit.peer.example", room_id, "open");
    expected["user_id"] = json!(ann.user_id);
    assert_eq!(asked.expect("a question").body, expected);
    asks(ann, peer, "closed").await.refused(403, "M_FORBIDDEN");
    asks(ann, peer, "broken").await.refused(502, "M_UNKNOWN");

    // Nobody is asked for who is not in the room, and no homeserver that is not.
    let (bob, before) = (cabin.server.register("bob").await, asked_for(peer, FOR_SERVERS));
    asks(&bob, peer, "open").await.refused(403, "M_FORBIDDEN");
    let stranger = knowing_peer(&authority).await;
    asks(ann, &stranger, "open").await.refused(403, "M_FORBIDDEN");
    assert_eq!((asked_for(peer, FOR_SERVERS), stranger.asked().len()), (before, 0));
}
