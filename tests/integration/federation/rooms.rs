//! Rooms with users of this server and of others.

use serde_json::json;

use super::hostile::Hostile;
use super::peer::Peer;
use super::synapse::Synapse;
use super::view::{
    fresh_sync, join, say, state, texts, until_member, until_same_state, until_says,
};
use super::with_synapse::both;
use super::{Federated, authority};
use crate::harness::{User, encode, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_synapse_takes_part_in_a_room_of_this_server() {
    let Some((_authority, cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    for version in ["1", "2", "6", "7", "8", "9", "10", "11", "12"] {
        takes_part(&cabin.name, &synapse, &ann, &bob, version).await;
    }
}

async fn takes_part(cabin: &str, _synapse: &Synapse, ann: &User, bob: &User, version: &str) {
    let alias = format!("lobby{version}");
    let options = json!({
        "preset": "public_chat", "room_alias_name": alias, "room_version": version,
        "name": "Lobby",
    });
    let room_id = ann.create_room(options).await;
    say(ann, &room_id, "anybody?").await;
    join(bob, &format!("#{alias}:{cabin}")).await;
    until_member(ann, &room_id, bob, "join").await;
    until_same_state(&room_id, ann, bob).await;
    say(ann, &room_id, "hello bob").await;
    until_says(bob, &room_id, ann, "hello bob").await;
    say(bob, &room_id, "hello ann").await;
    until_says(ann, &room_id, bob, "hello ann").await;
    // State of each, and at once.
    let set = |user: &User, topic: &str| {
        let path = format!("/rooms/{}/state/m.room.topic/", encode(&room_id));
        let (user, body) = (user.clone(), json!({ "topic": topic }));
        async move { user.request("PUT", &path, Some(&body)).await }
    };
    set(ann, "by ann").await.ok();
    until("bob sees the topic", async || {
        state(bob, &room_id, "m.room.topic", "").await["topic"] == "by ann"
    })
    .await;
    set(bob, "by bob").await.refused(403, "M_FORBIDDEN");
    let path = format!("/rooms/{}/state/m.room.power_levels/", encode(&room_id));
    let mut levels = ann.request("GET", &path, None).await.ok();
    levels["users"][&bob.user_id] = json!(100);
    ann.request("PUT", &path, Some(&levels)).await.ok();
    until("bob has power", async || {
        let levels = state(bob, &room_id, "m.room.power_levels", "").await;
        levels["users"][&bob.user_id] == 100
    })
    .await;
    tokio::join!(set(ann, "first"), set(bob, "second"));
    // Whatever comes next joins the branches.
    for (one, other, body) in [(ann, bob, "one"), (bob, ann, "two"), (ann, bob, "three")] {
        say(one, &room_id, body).await;
        until_says(other, &room_id, one, body).await;
    }
    until_same_state(&room_id, ann, bob).await;
    // A redaction, of one's own and of another's.
    let event_id = say(bob, &room_id, "oops").await;
    until_says(ann, &room_id, bob, "oops").await;
    let path = format!("/rooms/{}/redact/{}/r{version}", encode(&room_id), encode(&event_id));
    bob.request("PUT", &path, Some(&json!({}))).await.ok();
    until("ann does not see the redacted text", async || {
        !texts(ann, &room_id).await.iter().any(|(_, body)| body == "oops")
    })
    .await;
    // Leaving, coming back, and a ban.
    let path = format!("/rooms/{}/leave", encode(&room_id));
    bob.request("POST", &path, Some(&json!({}))).await.ok();
    until_member(ann, &room_id, bob, "leave").await;
    say(ann, &room_id, "without bob").await;
    join(bob, &format!("#{alias}:{cabin}")).await;
    until_member(ann, &room_id, bob, "join").await;
    until_same_state(&room_id, ann, bob).await;
    let path = format!("/rooms/{}/ban", encode(&room_id));
    // A creator outranks everybody; bob has as much power as others can have.
    let mut levels = state(ann, &room_id, "m.room.power_levels", "").await;
    levels["users"][&bob.user_id] = json!(0);
    let own = format!("/rooms/{}/state/m.room.power_levels/", encode(&room_id));
    let by = if version == "12" { ann } else { bob };
    by.request("PUT", &own, Some(&levels)).await.ok();
    until("bob has no power", async || {
        let levels = state(ann, &room_id, "m.room.power_levels", "").await;
        levels["users"][&bob.user_id] != 100
    })
    .await;
    ann.request("POST", &path, Some(&json!({ "user_id": bob.user_id }))).await.ok();
    until("bob is out", async || {
        state(bob, &room_id, "m.room.member", &bob.user_id).await["membership"] != "join"
    })
    .await;
    let path = format!("/join/{}", encode(&format!("#{alias}:{cabin}")));
    bob.request("POST", &path, Some(&json!({}))).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_this_server_takes_part_in_a_room_of_synapse() {
    let Some((_authority, mut cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    let cid = cabin.server.register("cid").await;
    for version in ["1", "2", "6", "7", "8", "9", "10", "11", "12"] {
        let options = json!({
            "preset": "public_chat", "room_alias_name": format!("hall{version}"),
            "room_version": version, "name": "Hall",
        });
        let room_id = bob.create_room(options).await;
        say(&bob, &room_id, "before").await;
        join(&ann, &format!("#hall{version}:{}", synapse.name)).await;
        until_member(&bob, &room_id, &ann, "join").await;
        until_same_state(&room_id, &ann, &bob).await;
        for (one, other, body) in [(&ann, &bob, "one"), (&bob, &ann, "two"), (&ann, &bob, "three")]
        {
            say(one, &room_id, body).await;
            until_says(other, &room_id, one, body).await;
        }
        // Another user joins without asking anybody.
        cid.join(&room_id).await.ok();
        until_member(&bob, &room_id, &cid, "join").await;
        say(&bob, &room_id, "hello cid").await;
        until_says(&cid, &room_id, &bob, "hello cid").await;
        // Everybody here leaves; the room changes; one comes back.
        for user in [&ann, &cid] {
            user.act(&room_id, "leave", None).await.ok();
            until_member(&bob, &room_id, user, "leave").await;
        }
        bob.set_state(&room_id, "m.room.topic", "", &json!({ "topic": "meanwhile" })).await.ok();
        say(&bob, &room_id, "nobody?").await;
        join(&ann, &format!("#hall{version}:{}", synapse.name)).await;
        until_same_state(&room_id, &ann, &bob).await;
        assert_eq!(state(&ann, &room_id, "m.room.topic", "").await["topic"], "meanwhile");
        say(&ann, &room_id, "back").await;
        until_says(&bob, &room_id, &ann, "back").await;
    }
    // All of it is in the log.
    cabin.server.restart().await;
    let rooms = ann.request("GET", "/joined_rooms", None).await.ok();
    assert_eq!(rooms["joined_rooms"].as_array().map(Vec::len), Some(9));
    for room_id in rooms["joined_rooms"].as_array().into_iter().flatten() {
        let room_id = room_id.as_str().expect("an id");
        until_same_state(room_id, &ann, &bob).await;
        say(&bob, room_id, "after a restart").await;
        until_says(&ann, room_id, &bob, "after a restart").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invites_go_both_ways_and_can_be_rejected() {
    let Some((_authority, cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    let both_ways = [(&ann, &bob), (&bob, &ann)];
    let versions = ["1", "2", "10"].into_iter();
    for (version, (inviter, invitee)) in versions.flat_map(|of| both_ways.map(|both| (of, both))) {
        let options = json!({ "preset": "private_chat", "name": "Nook", "room_version": version });
        let room_id = inviter.create_room(options).await;
        let invited = async |membership: &str| {
            let since = fresh_sync(invitee).await;
            since["rooms"][membership][&room_id].clone()
        };
        for accepts in [false, true] {
            inviter.act(&room_id, "invite", Some(invitee)).await.ok();
            until("the invite is there", async || {
                invited("invite").await["invite_state"]["events"].is_array()
            })
            .await;
            let events = invited("invite").await["invite_state"]["events"].clone();
            let name = events.as_array().into_iter().flatten();
            let name = name.clone().find(|event| event["type"] == "m.room.name");
            assert_eq!(name.map(|event| &event["content"]["name"]), Some(&json!("Nook")));
            if accepts {
                invitee.join(&room_id).await.ok();
                until_member(inviter, &room_id, invitee, "join").await;
                say(inviter, &room_id, "welcome").await;
                until_says(invitee, &room_id, inviter, "welcome").await;
                until_same_state(&room_id, inviter, invitee).await;
            } else {
                invitee.act(&room_id, "leave", None).await.ok();
                until_member(inviter, &room_id, invitee, "leave").await;
                until("the invite is gone", async || invited("invite").await.is_null()).await;
            }
        }
    }
    let nobody = format!("@nobody:{}", cabin.name);
    let room_id = bob.create_room(json!({})).await;
    let body = json!({ "user_id": nobody });
    let path = format!("/rooms/{}/invite", encode(&room_id));
    let refused = bob.request("POST", &path, Some(&body)).await;
    assert!(refused.status >= 400, "{:?}", refused.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn users_knock_on_rooms_of_the_other_server() {
    let Some((_authority, cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    for (host, guest) in [(&ann, &bob), (&bob, &ann)] {
        let rule = json!({
            "type": "m.room.join_rules", "state_key": "", "content": { "join_rule": "knock" },
        });
        let options =
            json!({ "room_version": "10", "preset": "private_chat", "initial_state": [rule] });
        let room_id = host.create_room(options).await;
        let via = host.user_id.split_once(':').expect("a user id").1;
        let path = format!("/knock/{}?via={1}&server_name={1}", encode(&room_id), encode(via));
        guest.request("POST", &path, Some(&json!({ "reason": "please" }))).await.ok();
        until_member(host, &room_id, guest, "knock").await;
        host.act(&room_id, "invite", Some(guest)).await.ok();
        until("the invite is there", async || {
            let since = fresh_sync(guest).await;
            since["rooms"]["invite"][&room_id]["invite_state"]["events"].is_array()
        })
        .await;
        guest.join(&room_id).await.ok();
        until_member(host, &room_id, guest, "join").await;
        say(host, &room_id, "come in").await;
        until_says(guest, &room_id, host, "come in").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn homeservers_that_join_at_the_same_time_are_told_of_each_other() {
    let Some(authority) = authority("joins at the same time") else { return };
    let cabin = Federated::start(&authority).await;
    let (first, second) =
        (Peer::start_taking(&authority).await, Peer::start_taking(&authority).await);
    let ann = cabin.server.register("ann").await;
    for visibility in ["shared", "joined"] {
        let room_id = ann
            .create_room(json!({
                "preset": "public_chat", "room_version": "10",
                "initial_state": [{
                    "type": "m.room.history_visibility", "state_key": "",
                    "content": { "history_visibility": visibility },
                }],
            }))
            .await;
        let of_first = Hostile::new(&first, &cabin, &room_id);
        let of_second = Hostile::new(&second, &cabin, &room_id);
        // Each is told the room as it was before the other's join.
        let (join, other) = (of_first.make_join("pia").await, of_second.make_join("pia").await);
        of_first.send_join(&join).await;
        let said = format!("between the two, {visibility}");
        ann.send_text(&room_id, "1", &said).await;
        of_second.send_join(&other).await;
        let last = format!("after all, {visibility}");
        ann.send_text(&room_id, "2", &last).await;
        let has = |peer: &Peer, text: &str| {
            let transactions = peer.asked().into_iter().map(|asked| asked.bytes);
            let mut texts = transactions.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            texts.any(|it| it.contains(&room_id) && it.contains(text))
        };
        let (of_first, of_second) = (of_first.user("pia"), of_second.user("pia"));
        until("both are told of each other", async || {
            has(&second, &of_first) && has(&second, &last) && has(&first, &of_second)
        })
        .await;
        // Nobody there may see what was said before they joined, where that is the rule.
        assert_eq!(has(&second, &said), visibility == "shared", "{said}");
    }
}
