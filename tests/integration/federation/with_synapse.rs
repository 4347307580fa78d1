//! Logcabin and Synapse.

use serde_json::{Value, json};

use super::peer::Peer;
use super::synapse::{self, Synapse};
use super::{Authority, Federated, authority};
use crate::harness::{User, encode, skip, until};

pub(super) async fn both(test: &str) -> Option<(Authority, Federated, Synapse)> {
    let authority = authority(test)?;
    let python = synapse::python().map_err(|missing| skip(test, &missing)).ok()?;
    let synapse = Synapse::start(&python, &authority).await;
    let cabin = Federated::start(&authority).await;
    Some((authority, cabin, synapse))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_believes_the_others_keys_and_signatures() {
    let Some((authority, cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    for (user, name) in [(&ann, "Ann"), (&bob, "Bob")] {
        let path = format!("/profile/{}/displayname", encode(&user.user_id));
        user.request("PUT", &path, Some(&json!({ "displayname": name }))).await.ok();
    }
    // Each has the other asked, which takes a signature of the one, and the keys of the other.
    let path = format!("/profile/{}", encode(&ann.user_id));
    assert_eq!(bob.request("GET", &path, None).await.ok()["displayname"], "Ann");
    let path = format!("/profile/{}", encode(&bob.user_id));
    assert_eq!(ann.request("GET", &path, None).await.ok()["displayname"], "Bob");
    let nobody = format!("/profile/{}", encode(&format!("@nobody:{}", synapse.name)));
    ann.request("GET", &nobody, None).await.refused(404, "M_NOT_FOUND");
    let nobody = format!("/profile/{}", encode(&format!("@nobody:{}", cabin.name)));
    bob.request("GET", &nobody, None).await.refused(404, "M_NOT_FOUND");

    // As notaries for each other.
    let peer = Peer::start(&authority).await;
    for (notary, of) in [(cabin.address, &synapse.name), (synapse.address, &cabin.name)] {
        let body = json!({ "server_keys": { of: {} } });
        let known = peer.send(notary, "POST", "/_matrix/key/v2/query", None, &body).await.ok();
        let document = &known["server_keys"][0];
        assert_eq!(document["server_name"], **of);
        assert_eq!(document["signatures"].as_object().map(|all| all.len()), Some(2), "{document}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_finds_the_others_aliases_and_public_rooms() {
    let Some((_authority, cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    for (owner, own, name, asker) in
        [(&ann, &cabin.name, "Cabin", &bob), (&bob, &synapse.name, "Synapse", &ann)]
    {
        let options = json!({
            "preset": "public_chat", "visibility": "public", "name": name,
            "room_alias_name": "lobby",
        });
        let room_id = owner.create_room(options).await;
        let alias = format!("/directory/room/{}", encode(&format!("#lobby:{own}")));
        let found = asker.request("GET", &alias, None).await.ok();
        assert_eq!((&found["room_id"], &found["servers"]), (&json!(room_id), &json!([own])));
        let alias = format!("/directory/room/{}", encode(&format!("#none:{own}")));
        asker.request("GET", &alias, None).await.refused(404, "M_NOT_FOUND");

        let rooms = format!("/publicRooms?server={}", encode(own));
        let listed = asker.request("GET", &rooms, None).await.ok();
        assert_eq!(listed["chunk"][0]["room_id"], json!(room_id), "{listed}");
        assert_eq!(listed["chunk"][0]["name"], name);
        for (term, count) in [(name, 1), ("something else", 0)] {
            let filter = json!({ "filter": { "generic_search_term": term } });
            let listed = asker.request("POST", &rooms, Some(&filter)).await.ok();
            assert_eq!(listed["chunk"].as_array().map(Vec::len), Some(count), "{term}: {listed}");
        }
        let missing: Value = asker
            .request("GET", &format!("/publicRooms?server={}", encode("localhost:1")), None)
            .await
            .body;
        assert!(missing["errcode"].is_string(), "{missing}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_user_directory_finds_users_of_synapse_by_the_names_that_the_searcher_may_see() {
    let Some((_authority, mut cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    let eve = cabin.server.register("eve").await;
    let is_called = async |name: &str| {
        let path = format!("/profile/{}/displayname", encode(&bob.user_id));
        bob.request("PUT", &path, Some(&json!({ "displayname": name }))).await.ok();
    };
    let found = async |user: &User, term: &str| -> Vec<Value> {
        let body = json!({ "search_term": term });
        let found = user.request("POST", "/user_directory/search", Some(&body)).await.ok();
        let results = found["results"].as_array().expect("a list").iter();
        results.map(|user| user["display_name"].clone()).collect()
    };
    is_called("Robert Shoemaker").await;
    assert_eq!(found(&ann, "bob").await, Vec::<Value>::new());
    let options = json!({ "preset": "private_chat", "invite": [bob.user_id] });
    let room_id = ann.create_room(options).await;
    let path = format!("/join/{}?via={}", encode(&room_id), encode(&cabin.name));
    bob.request("POST", &path, Some(&json!({}))).await.ok();
    until("ann finds bob", async || found(&ann, "shoe").await == ["Robert Shoemaker"]).await;
    for term in ["bob", "robert sh", &bob.user_id] {
        assert_eq!(found(&ann, term).await, ["Robert Shoemaker"], "{term}");
        assert_eq!(found(&eve, term).await, Vec::<Value>::new(), "{term}");
    }
    // What they are called now, in the list of members too, also after a restart.
    is_called("Bob Baker").await;
    until("ann finds the new name", async || found(&ann, "baker").await == ["Bob Baker"]).await;
    assert_eq!(found(&ann, "shoe").await, Vec::<Value>::new());
    let members = format!("/rooms/{}/joined_members", encode(&room_id));
    let members = ann.request("GET", &members, None).await.ok();
    assert_eq!(members["joined"][&bob.user_id]["display_name"], "Bob Baker", "{members}");
    cabin.server.kill9();
    cabin.server.restart().await;
    let (ann, eve) =
        [&ann, &eve].map(|user| User { http: cabin.server.http(), ..user.clone() }).into();
    assert_eq!(found(&ann, "bob").await, ["Bob Baker"]);

    // A name that only a private room tells is found by those alone who are in it.
    let options = json!({ "preset": "public_chat", "visibility": "public" });
    let public = eve.create_room(options).await;
    let path = format!("/join/{}?via={}", encode(&public), encode(&cabin.name));
    bob.request("POST", &path, Some(&json!({}))).await.ok();
    until("eve finds bob", async || found(&eve, "bob").await == ["Bob Baker"]).await;
    let path = format!("/rooms/{}/state/m.room.member/{}", encode(&room_id), encode(&bob.user_id));
    let secret = json!({ "membership": "join", "displayname": "Agent Secret" });
    bob.request("PUT", &path, Some(&secret)).await.ok();
    until("ann finds the secret", async || found(&ann, "agent").await == ["Agent Secret"]).await;
    assert_eq!(found(&eve, "agent").await, Vec::<Value>::new());
    assert_eq!(found(&eve, "bob").await, ["Bob Baker"]);

    // Who has left is not found any more.
    for room in [&room_id, &public] {
        bob.act(room, "leave", None).await.ok();
    }
    until("nobody finds bob", async || {
        found(&ann, "bob").await.is_empty() && found(&eve, "bob").await.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_of_synapse_get_keys_and_files_of_this_server() {
    let Some((_authority, cabin, synapse)) = both("Synapse").await else { return };
    let (ann, bob) = (cabin.server.register("ann").await, synapse.register("bob").await);
    let own = ann.keys();
    let keys = json!({ "device_keys": own.identity(), "one_time_keys": own.one_time(&["A"]) });
    ann.request("POST", "/keys/upload", Some(&keys)).await.ok();
    let wanted = json!({ "device_keys": { &*ann.user_id: [] } });
    let found = bob.request("POST", "/keys/query", Some(&wanted)).await.ok();
    let found = &found["device_keys"][&ann.user_id][&ann.device_id];
    assert_eq!(found["keys"], own.public(), "{found}");
    let wanted =
        json!({ "one_time_keys": { &*ann.user_id: { &*ann.device_id: "signed_curve25519" } } });
    let claimed = bob.request("POST", "/keys/claim", Some(&wanted)).await.ok();
    let claimed = &claimed["one_time_keys"][&ann.user_id][&ann.device_id];
    assert_eq!(*claimed, own.one_time(&["A"]), "{claimed}");

    let token = format!("Bearer {}", ann.access_token);
    let headers = [("authorization", &*token), ("content-type", "image/png")];
    // One that is answered from memory, and one piece by piece.
    for (name, length) in [("small.png", 100), ("large.png", 3_000_000)] {
        let bytes: Vec<u8> = (0..length).map(|byte| (byte % 251) as u8).collect();
        let path = format!("/_matrix/media/v3/upload?filename={name}");
        let uploaded = ann.http.raw("POST", &path, &headers, bytes.clone()).await.json();
        let address = uploaded.ok_string("content_uri");
        let place = address.strip_prefix("mxc://").expect("an address");
        let path = format!("/_matrix/client/v1/media/download/{place}");
        let token = format!("Bearer {}", bob.access_token);
        let file = bob.http.raw("GET", &path, &[("authorization", &*token)], "").await;
        assert!(file.bytes == bytes, "{name}: {:?}", file.parts);
        assert_eq!(file.header("content-type"), "image/png");
        assert!(file.header("content-disposition").contains(name), "{:?}", file.parts);
    }
}
