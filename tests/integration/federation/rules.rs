//! Who may be in rooms with users of this server and of Synapse: restricted rooms, bans, server
//! access control lists, upgrades, spaces.

use serde_json::{Value, json};

use super::synapse::{self, Synapse};
use super::view::{join, say, state, texts, until_member, until_same_state, until_says};
use super::with_synapse::both;
use super::{Federated, authority};
use crate::harness::{Answer, User, encode, free_address, skip, until};

fn server_of(user: &User) -> &str {
    user.user_id.split_once(':').expect("a user id").1
}

/// Joins a room through the homeserver of another user.
async fn join_by(user: &User, room_id: &str, via: &User) -> Answer {
    let via = encode(server_of(via));
    let path = format!("/join/{}?via={via}&server_name={via}", encode(room_id));
    user.request("POST", &path, Some(&json!({}))).await
}

fn restricted_to(space: &str) -> Value {
    json!({ "type": "m.room.join_rules", "state_key": "", "content": {
        "join_rule": "restricted",
        "allow": [{ "type": "m.room_membership", "room_id": space }],
    } })
}

#[tokio::test(flavor = "multi_thread")]
async fn restricted_rooms_admit_members_of_a_space_on_either_side() {
    let Some((_authority, cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    let (cid, dan) = (cabin.server.register("cid").await, synapse.register("dan").await);
    for version in ["8", "10", "12"] {
        for (host, guest, second) in [(&ann, &bob, &dan), (&bob, &ann, &cid)] {
            let space = json!({
                "preset": "public_chat", "room_version": version,
                "creation_content": { "type": "m.space" },
            });
            let space = host.create_room(space).await;
            // Only the host may let others in: a user of the guest's server cannot.
            let room = json!({
                "preset": "private_chat", "room_version": version,
                "initial_state": [restricted_to(&space)],
                "power_level_content_override": { "invite": 50 },
            });
            let room_id = host.create_room(room).await;
            join_by(guest, &room_id, host).await.refused(403, "M_FORBIDDEN");
            join_by(guest, &space, host).await.ok();
            join_by(guest, &room_id, host).await.ok();
            until_member(host, &room_id, guest, "join").await;
            let member = state(host, &room_id, "m.room.member", &guest.user_id).await;
            assert_eq!(member["join_authorised_via_users_server"], *host.user_id, "{member}");
            until_same_state(&room_id, host, guest).await;
            say(guest, &room_id, "hello").await;
            until_says(host, &room_id, guest, "hello").await;
            // Their server is in the room by now, and still has to ask.
            join_by(second, &room_id, host).await.refused(403, "M_FORBIDDEN");
            join_by(second, &space, host).await.ok();
            until_member(host, &space, second, "join").await;
            join_by(second, &room_id, host).await.ok();
            until_member(host, &room_id, second, "join").await;
            until_same_state(&room_id, host, second).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kicks_bans_and_their_ends_hold_on_both_sides() {
    let Some((_authority, cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    for (host, guest) in [(&ann, &bob), (&bob, &ann)] {
        let room_id = host.create_room(json!({ "preset": "public_chat" })).await;
        join_by(guest, &room_id, host).await.ok();
        until_member(host, &room_id, guest, "join").await;
        host.act(&room_id, "kick", Some(guest)).await.ok();
        until_member(guest, &room_id, guest, "leave").await;
        join_by(guest, &room_id, host).await.ok();
        until_member(host, &room_id, guest, "join").await;
        host.act(&room_id, "ban", Some(guest)).await.ok();
        // Synapse does not say which state it is that those who are banned do not see.
        until("the guest is out", async || {
            state(guest, &room_id, "m.room.member", &guest.user_id).await["membership"] != "join"
        })
        .await;
        join_by(guest, &room_id, host).await.refused(403, "M_FORBIDDEN");
        let refused = guest.try_send_text(&room_id, "banned", "am I here?").await;
        refused.expect("an answer").refused(403, "M_FORBIDDEN");
        host.act(&room_id, "unban", Some(guest)).await.ok();
        join_by(guest, &room_id, host).await.ok();
        until_member(host, &room_id, guest, "join").await;
        say(guest, &room_id, "back").await;
        until_says(host, &room_id, guest, "back").await;
        until_same_state(&room_id, host, guest).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_room_shuts_out_a_homeserver_by_its_access_control_list() {
    let Some(authority) = authority("Synapse") else { return };
    let python = match synapse::python() {
        Ok(python) => python,
        Err(missing) => return skip("Synapse", &missing),
    };
    // Ports do not count in the list, so the two need names that differ otherwise.
    let address = free_address();
    let synapse = Synapse::start_as(&python, &authority, address.to_string(), address).await;
    let cabin = Federated::start(&authority).await;
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    for (host, guest, denied) in [(&ann, &bob, "127.0.0.*"), (&bob, &ann, "localhost")] {
        let room_id = host.create_room(json!({ "preset": "public_chat" })).await;
        join_by(guest, &room_id, host).await.ok();
        until_member(host, &room_id, guest, "join").await;
        say(guest, &room_id, "before").await;
        until_says(host, &room_id, guest, "before").await;
        let list = |deny: Value| json!({ "allow": ["*"], "deny": deny, "allow_ip_literals": true });
        host.set_state(&room_id, "m.room.server_acl", "", &list(json!([denied]))).await.ok();
        until("the guest's server knows", async || {
            state(guest, &room_id, "m.room.server_acl", "").await["deny"][0] == *denied
        })
        .await;
        // What the guest says stays on the guest's server, and nobody of it gets in again.
        let said = guest.try_send_text(&room_id, "unheard", "unheard").await.expect("an answer");
        assert!(said.status == 200 || said.status == 403, "{:?}", said.body);
        guest.act(&room_id, "leave", None).await.ok();
        join_by(guest, &room_id, host).await.refused(403, "M_FORBIDDEN");
        // A message of another room shows that the transaction has arrived.
        let other = host.create_room(json!({ "preset": "public_chat" })).await;
        join_by(guest, &other, host).await.ok();
        say(guest, &other, "heard").await;
        until_says(host, &other, guest, "heard").await;
        assert!(!texts(host, &room_id).await.iter().any(|(_, body)| body == "unheard"));
        let member = state(host, &room_id, "m.room.member", &guest.user_id).await;
        assert_eq!(member["membership"], "join", "{member}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_room_is_followed_from_the_other_side() {
    let Some((_authority, cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    for (host, guest) in [(&ann, &bob), (&bob, &ann)] {
        for (from, to) in [("9", "11"), ("11", "12")] {
            let options = json!({ "preset": "public_chat", "room_version": from, "name": "Attic" });
            let old = host.create_room(options).await;
            join_by(guest, &old, host).await.ok();
            until_member(host, &old, guest, "join").await;
            let path = format!("/rooms/{}/upgrade", encode(&old));
            let body = json!({ "new_version": to });
            let new = host.request("POST", &path, Some(&body)).await;
            let new = new.ok_string("replacement_room");
            until("the guest sees where the room has gone", async || {
                state(guest, &old, "m.room.tombstone", "").await["replacement_room"] == *new
            })
            .await;
            join_by(guest, &new, host).await.ok();
            until_same_state(&new, host, guest).await;
            let create = state(guest, &new, "m.room.create", "").await;
            assert_eq!(create["predecessor"]["room_id"], *old, "{create}");
            assert_eq!(state(guest, &new, "m.room.name", "").await["name"], "Attic");
            say(guest, &new, "moved").await;
            until_says(host, &new, guest, "moved").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spaces_show_rooms_of_both_sides() {
    let Some((_authority, cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    for (host, guest) in [(&ann, &bob), (&bob, &ann)] {
        let named = |name: &str| json!({ "preset": "public_chat", "name": name });
        let hall = host.create_room(named("Hall")).await;
        let shed = guest.create_room(named("Shed")).await;
        let secret = host.create_room(json!({ "preset": "private_chat", "name": "Secret" })).await;
        let mut space = named("House");
        space["creation_content"] = json!({ "type": "m.space" });
        let space = host.create_room(space).await;
        for (room_id, of) in [(&hall, host), (&shed, guest), (&secret, host)] {
            let child = json!({ "via": [server_of(of)] });
            host.set_state(&space, "m.space.child", room_id, &child).await.ok();
        }
        let names = async |user: &User| {
            let path = format!("/_matrix/client/v1/rooms/{}/hierarchy", encode(&space));
            let token = Some(&*user.access_token);
            let answer = user.http.request("GET", &path, token, None).await;
            let rooms = answer.body["rooms"].as_array().cloned().unwrap_or_default();
            let name = |room: &Value| room["name"].as_str().unwrap_or_default().to_owned();
            let mut names: Vec<_> = rooms.iter().map(name).collect();
            names.sort();
            names
        };
        join_by(guest, &space, host).await.ok();
        until_same_state(&space, host, guest).await;
        // The guest's server is in the space, and asks for the rooms that it does not know.
        until("the guest sees the rooms", async || names(guest).await == ["Hall", "House", "Shed"])
            .await;
        until("the host sees the rooms", async || {
            names(host).await == ["Hall", "House", "Secret", "Shed"]
        })
        .await;
        let alias = format!("#hall:{}", server_of(host));
        let path = format!("/directory/room/{}", encode(&alias));
        host.request("PUT", &path, Some(&json!({ "room_id": hall }))).await.ok();
        join(guest, &alias).await;
        until_same_state(&hall, host, guest).await;
    }
}
