//! Invitations of addresses that belong to users of other homeservers.

use ruma::CanonicalJsonObject;
use ruma::signatures::sign_json;
use serde_json::{Value, json};

use super::peer::{Peer, new_keys};
use super::{Federated, authority};
use crate::harness::{IdentityServer, User, encode, until};

async fn member(user: &User, room_id: &str, of: &User) -> Value {
    let path = format!("/rooms/{}/state/m.room.member/{}", encode(room_id), encode(&of.user_id));
    user.request("GET", &path, None).await.body
}

async fn until_invited(by: &User, room_id: &str, user: &User) {
    until(&format!("{} is invited", user.user_id), async || {
        let sync = user.sync(None, 0, None).await;
        !sync["rooms"]["invite"][room_id].is_null()
    })
    .await;
    until(&format!("{} sees that", by.user_id), async || {
        member(by, room_id, user).await["membership"] == "invite"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invitation_of_an_address_becomes_one_of_a_user_of_another_homeserver() {
    let Some(authority) = authority("addresses of users of others") else { return };
    let Some(id) = IdentityServer::start("addresses of users of others").await else { return };
    let certificate = id.certificate().display().to_string();
    let settings = [
        ("LOGCABIN_THREEPIDS_IDENTITY_SERVERS", "localhost:*"),
        ("LOGCABIN_OUTBOUND_CERTIFICATES", &*certificate),
    ];
    let here = Federated::start_with(&authority, &settings).await;
    let mut there = Federated::start_with(&authority, &settings).await;
    id.serves(there.server.base());
    let ann = here.server.register("ann").await;
    let (bob, cas) = (there.server.register("bob").await, there.server.register("cas").await);
    let dan = there.server.register("dan").await;
    let room_id = ann.create_room(json!({ "name": "Cabin", "room_version": "11" })).await;
    let path = format!("/rooms/{}/invite", encode(&room_id));
    let invite = async |address: &str| {
        ann.request("POST", &path, Some(&id.invite_body(address))).await.ok();
    };

    // The homeserver of the address's owner is not in the room: it has this one invite him.
    invite("bob@example.org").await;
    id.bind(&bob, "bob@example.org").await;
    until_invited(&ann, &room_id, &bob).await;
    let third_party = member(&ann, &room_id, &bob).await["third_party_invite"].clone();
    assert_eq!(third_party["display_name"], "a...@e...", "{third_party}");
    assert_eq!(third_party["signed"]["mxid"], json!(bob.user_id), "{third_party}");
    // Told again, nothing changes, before he has come and after that.
    id.bind(&bob, "bob@example.org").await;
    bob.join(&room_id).await.ok();
    id.bind(&bob, "bob@example.org").await;
    assert_eq!(member(&ann, &room_id, &bob).await["membership"], "join");

    // It is in the room: it makes the invite of what the identity server has signed.
    invite("cas@example.org").await;
    let kept = id.invites();
    let token = kept.last().expect("an invitation")["token"].as_str().expect("text").to_owned();
    let of_token = format!("/rooms/{}/state/m.room.third_party_invite/{token}", encode(&room_id));
    until("bob's homeserver knows of the invitation", async || {
        bob.request("GET", &of_token, None).await.status == 200
    })
    .await;
    id.bind(&cas, "cas@example.org").await;
    until_invited(&ann, &room_id, &cas).await;
    there.server.kill9();
    there.server.restart().await;
    until_invited(&ann, &room_id, &cas).await;
    cas.join(&room_id).await.ok();
    until("ann sees that", async || member(&ann, &room_id, &cas).await["membership"] == "join")
        .await;

    // The address has an owner already.
    id.bind(&dan, "dan@example.org").await;
    invite("dan@example.org").await;
    until_invited(&ann, &room_id, &dan).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invitation_of_an_address_is_not_taken_by_others() {
    let Some(authority) = authority("stolen invitations") else { return };
    let Some(id) = IdentityServer::start("stolen invitations").await else { return };
    let certificate = id.certificate().display().to_string();
    let settings = [
        ("LOGCABIN_THREEPIDS_IDENTITY_SERVERS", "localhost:*"),
        ("LOGCABIN_OUTBOUND_CERTIFICATES", &*certificate),
    ];
    let cabin = Federated::start_with(&authority, &settings).await;
    let peer = Peer::start(&authority).await;
    let ann = cabin.server.register("ann").await;
    let room_id = ann.create_room(json!({ "room_version": "11" })).await;
    let path = format!("/rooms/{}/invite", encode(&room_id));
    ann.request("POST", &path, Some(&id.invite_body("eve@example.org"))).await.ok();
    let token = id.invites()[0]["token"].as_str().expect("text").to_owned();
    let eve = format!("@eve:{}", peer.name);
    let path = format!("/_matrix/federation/v1/exchange_third_party_invite/{}", encode(&room_id));
    let exchange = async |body: Value| {
        let header = peer.header(&cabin.name, "PUT", &path, &body);
        peer.send(cabin.address, "PUT", &path, Some(&header), &body).await
    };
    let event = |user_id: &str, signed: &Value| {
        json!({
            "type": "m.room.member", "room_id": room_id, "sender": ann.user_id,
            "state_key": user_id, "content": {
                "membership": "invite",
                "third_party_invite": { "display_name": "", "signed": signed },
            },
        })
    };
    let good = id.signed(&token, &eve);
    let forged = {
        let unsigned = json!({ "mxid": eve, "token": token });
        let mut signed: CanonicalJsonObject = serde_json::from_value(unsigned).expect("an object");
        sign_json("localhost", &new_keys("0"), &mut signed).expect("a signature");
        json!(signed)
    };
    let of_bob = id.signed(&token, &format!("@bob:{}", peer.name));
    let elsewhere = "@eve:elsewhere.example";
    let wrong_sender = {
        let mut event = event(&eve, &good);
        event["sender"] = json!(eve);
        event
    };
    let refused = [
        ("a forged signature", event(&eve, &forged)),
        ("one for another user", event(&eve, &of_bob)),
        ("one for an unknown invitation", event(&eve, &id.signed("token9", &eve))),
        ("a user of another homeserver", event(elsewhere, &id.signed(&token, elsewhere))),
        ("in the name of the peer's user", wrong_sender),
    ];
    for (what, body) in refused {
        let answer = exchange(body).await;
        assert_eq!(answer.status, 403, "{what}: {}", answer.body);
    }
    let mut join = event(&eve, &good);
    join["content"]["membership"] = json!("join");
    exchange(join).await.refused(400, "M_BAD_JSON");
    let path = format!("/rooms/{}/members", encode(&room_id));
    let members = ann.request("GET", &path, None).await.ok();
    assert_eq!(members["chunk"].as_array().map(Vec::len), Some(1), "{members}");
    // The good one leads to an invite, which the peer does not sign.
    assert_ne!(exchange(event(&eve, &good)).await.status, 200);
    let asked = peer.asked();
    assert!(asked.iter().any(|asked| asked.path.starts_with("/_matrix/federation/v2/invite/")));
    // An identity server's word about users whom there are not has nobody asked.
    let before = peer.asked().len();
    let bound = json!({
        "medium": "email", "address": "x@example.org", "mxid": format!("@nobody:{}", cabin.name),
        "invites": [{
            "medium": "email", "address": "x@example.org", "sender": eve,
            "mxid": format!("@nobody:{}", cabin.name), "room_id": format!("!x:{}", peer.name),
            "signed": id.signed("token9", &format!("@nobody:{}", cabin.name)),
        }],
    });
    let onbind = "/_matrix/federation/v1/3pid/onbind";
    peer.send(cabin.address, "PUT", onbind, None, &bound).await.ok();
    assert_eq!(peer.asked().len(), before);
}
