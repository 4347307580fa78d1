//! Aliases and the list of public rooms.

use serde_json::json;

use super::{anonymous, each, server, unique, user};
use crate::harness::{TestServer, encode};

#[tokio::test]
async fn an_alias_is_made_resolved_listed_and_removed() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let alias = format!("#{}:e2e.test", unique("alias"));
    let path = format!("/directory/room/{}", encode(&alias));
    let to_room = json!({ "room_id": room_id });
    anonymous(&server.http(), "GET", &path, None).await.refused(404, "M_NOT_FOUND");
    // Only those in the room name it.
    bob.put(&path, to_room.clone()).await.refused(403, "M_FORBIDDEN");
    ann.put(&path, to_room.clone()).await.ok();
    let found = anonymous(&server.http(), "GET", &path, None).await.ok();
    assert_eq!(found, json!({ "room_id": room_id, "servers": ["e2e.test"] }));
    assert_eq!(ann.put(&path, to_room.clone()).await.status, 409);
    let aliases = ann.get_room(&room_id, "/aliases").await.ok();
    assert_eq!(aliases, json!({ "aliases": [alias] }));
    bob.get_room(&room_id, "/aliases").await.refused(403, "M_FORBIDDEN");
    let admin = super::status::admin(&server).await;
    let aliases = admin.get_room(&room_id, "/aliases").await.ok();
    assert_eq!(aliases, json!({ "aliases": [alias] }));
    bob.join(&room_id).await.ok();
    bob.request("DELETE", &path, None).await.refused(403, "M_FORBIDDEN");
    ann.request("DELETE", &path, None).await.ok();
    ann.get(&path).await.refused(404, "M_NOT_FOUND");
    ann.request("DELETE", &path, None).await.refused(404, "M_NOT_FOUND");
    // Its maker may remove it, and those with power in the room.
    bob.put(&path, to_room.clone()).await.ok();
    bob.request("DELETE", &path, None).await.ok();
    bob.put(&path, to_room).await.ok();
    ann.request("DELETE", &path, None).await.ok();
}

#[tokio::test]
async fn an_alias_of_another_server_or_no_alias_is_refused() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    for alias in ["#x:elsewhere.test", "nonsense", "#no-server", "#:e2e.test"] {
        let path = format!("/directory/room/{}", encode(alias));
        let answer = ann.put(&path, json!({ "room_id": room_id })).await;
        answer.refused(400, "M_INVALID_PARAM");
    }
    let path = format!("/directory/room/{}", encode(&format!("#{}:e2e.test", unique("x"))));
    ann.put(&path, json!({ "room_id": "!none:e2e.test" })).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn visibility_in_the_directory_is_changed_by_those_with_power() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let path = format!("/directory/list/room/{}", encode(&room_id));
    let public = json!({ "visibility": "public" });
    bob.put(&path, public.clone()).await.refused(403, "M_FORBIDDEN");
    ann.put(&path, public.clone()).await.ok();
    assert_eq!(anonymous(&server.http(), "GET", &path, None).await.ok(), public);
    ann.put(&path, json!({ "visibility": "private" })).await.ok();
    assert_eq!(ann.get(&path).await.ok()["visibility"], "private");
    ann.get("/directory/list/room/!none:e2e.test").await.refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn public_rooms_are_paged_searched_and_described() {
    // Of its own: the list is of the whole server.
    let server = TestServer::start().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let public = |name: &str| json!({ "visibility": "public", "name": name });
    let busy = ann
        .create_room(json!({
            "visibility": "public", "name": "Busy", "topic": "of trains",
            "room_alias_name": "busy",
        }))
        .await;
    bob.join(&busy).await.ok();
    let mut others = vec![
        ann.create_room(public("one")).await,
        ann.create_room(public("two")).await,
        ann.create_room(json!({
            "visibility": "public", "creation_content": { "type": "m.space" },
        }))
        .await,
    ];
    ann.create_room(json!({ "name": "hidden" })).await;
    let http = server.http();
    let first = anonymous(&http, "GET", "/publicRooms?limit=3", None).await.ok();
    assert_eq!(first["total_room_count_estimate"], 4);
    let room = &first["chunk"][0];
    assert_eq!(room["room_id"], busy.as_str());
    assert_eq!((&room["name"], &room["topic"]), (&json!("Busy"), &json!("of trains")));
    assert_eq!(room["num_joined_members"], 2);
    assert_eq!(room["canonical_alias"], "#busy:e2e.test");
    assert_eq!(room["world_readable"], false);
    // Not said means public.
    assert!(room.get("join_rule").is_none_or(|rule| rule == "public"), "{room}");
    let since = first["next_batch"].as_str().unwrap_or_default();
    let path = format!("/publicRooms?limit=3&since={since}");
    let second = anonymous(&http, "GET", &path, None).await.ok();
    assert!(second.get("next_batch").is_none(), "{second}");
    let mut seen = [each(&first["chunk"], "/room_id"), each(&second["chunk"], "/room_id")].concat();
    seen.sort();
    others.push(busy.clone());
    others.sort();
    assert_eq!(seen, others);

    let search = |body: serde_json::Value| {
        let ann = ann.clone();
        async move { each(&ann.post("/publicRooms", body).await.ok()["chunk"], "/room_id") }
    };
    let term = |term: &str| json!({ "filter": { "generic_search_term": term } });
    assert_eq!(search(term("TRAIN")).await, std::slice::from_ref(&busy));
    assert_eq!(search(term("nothing like it")).await, [""; 0]);
    assert_eq!(search(json!({ "filter": { "room_types": ["m.space"] } })).await.len(), 1);
    assert_eq!(search(json!({ "filter": { "room_types": [null] } })).await.len(), 3);
    assert_eq!(search(json!({})).await.len(), 4);
}

#[tokio::test]
async fn an_alias_that_is_removed_names_its_room_no_more() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let alias = |name: &str| format!("#{}:e2e.test", unique(name));
    let (main, also, of_bob) = (alias("main"), alias("also"), alias("of-bob"));
    let path = |alias: &str| format!("/directory/room/{}", encode(alias));
    for (user, alias) in [(&ann, &main), (&ann, &also), (&bob, &of_bob)] {
        user.put(&path(alias), json!({ "room_id": room_id })).await.ok();
    }
    let kind = "m.room.canonical_alias";
    let content = json!({ "alias": main, "alt_aliases": [also, of_bob], "org.example.x": 1 });
    ann.set_state(&room_id, kind, "", &content).await.ok();
    // Its maker may remove it, though not change the room.
    bob.request("DELETE", &path(&of_bob), None).await.ok();
    assert_eq!(ann.state(&room_id, kind, "").await.ok(), content);
    ann.request("DELETE", &path(&also), None).await.ok();
    assert_eq!(
        ann.state(&room_id, kind, "").await.ok(),
        json!({ "alias": main, "alt_aliases": [of_bob], "org.example.x": 1 })
    );
    let since = ann.here().await;
    ann.request("DELETE", &path(&main), None).await.ok();
    assert_eq!(
        ann.state(&room_id, kind, "").await.ok(),
        json!({ "alt_aliases": [of_bob], "org.example.x": 1 })
    );
    let news = ann.news(&since).await;
    let timeline = &news["rooms"]["join"][&room_id]["timeline"]["events"];
    assert_eq!(each(timeline, "/type"), [kind]);
    // What names the room still may stay, though it is gone; nothing new that is not there comes
    // in.
    let content = json!({ "alt_aliases": [of_bob] });
    ann.set_state(&room_id, kind, "", &content).await.ok();
    let content = json!({ "alias": main, "alt_aliases": [of_bob] });
    ann.set_state(&room_id, kind, "", &content).await.refused(400, "M_BAD_ALIAS");
    for content in
        [json!({ "alias": 3 }), json!({ "alt_aliases": "x" }), json!({ "alt_aliases": [3] })]
    {
        ann.set_state(&room_id, kind, "", &content).await.refused(400, "M_BAD_JSON");
    }
    ann.set_state(&room_id, kind, "", &json!({ "alias": null })).await.ok();
}

#[tokio::test]
async fn the_list_is_paged_both_ways_and_follows_what_changes() {
    let server = TestServer::start().await;
    let ann = user(&server, "ann").await;
    let mut rooms = Vec::new();
    for number in 0..5 {
        let options = json!({ "visibility": "public", "name": format!("room {number}") });
        rooms.push(ann.create_room(options).await);
    }
    let http = server.http();
    let page = async |query: &str| {
        let path = format!("/publicRooms?limit=2{query}");
        anonymous(&http, "GET", &path, None).await.ok()
    };
    let ids = |page: &serde_json::Value| each(&page["chunk"], "/room_id");
    let token = |page: &serde_json::Value, name: &str| {
        format!("&since={}", encode(page[name].as_str().unwrap_or_default()))
    };
    let first = page("").await;
    assert_eq!(ids(&first), rooms[..2]);
    assert!(first.get("prev_batch").is_none(), "{first}");
    let second = page(&token(&first, "next_batch")).await;
    assert_eq!(ids(&second), rooms[2..4]);
    let third = page(&token(&second, "next_batch")).await;
    assert_eq!(ids(&third), rooms[4..]);
    assert!(third.get("next_batch").is_none(), "{third}");
    let back = page(&token(&third, "prev_batch")).await;
    assert_eq!(ids(&back), rooms[2..4]);
    let back = page(&token(&back, "prev_batch")).await;
    assert_eq!(ids(&back), rooms[..2]);
    assert!(back.get("prev_batch").is_none(), "{back}");
    // A page goes on where the last one ended, though a room before it is gone.
    let path = format!("/directory/list/room/{}", encode(&rooms[0]));
    ann.put(&path, json!({ "visibility": "private" })).await.ok();
    assert_eq!(ids(&page(&token(&first, "next_batch")).await), rooms[2..4]);
    for bad in ["&since=5", "&since=a5", "&since=x1_1", "&since=%E2%82%AC"] {
        anonymous(&http, "GET", &format!("/publicRooms?limit=2{bad}"), None)
            .await
            .refused(400, "M_INVALID_PARAM");
    }
    let foreign = anonymous(&http, "GET", "/publicRooms?server=elsewhere.test", None).await;
    foreign.refused(403, "M_FORBIDDEN");

    // A room that everybody left is listed no more.
    ann.act(&rooms[1], "leave", None).await.ok();
    assert!(!ids(&page("0").await).contains(&rooms[1]));

    // What is described follows the room: name, redaction of it, members.
    let bob = user(&server, "bob").await;
    let renamed = json!({ "name": "Überraum" });
    let name = ann.set_state(&rooms[4], "m.room.name", "", &renamed).await.ok_string("event_id");
    let search = async |body: serde_json::Value| ann.post("/publicRooms", body).await.ok();
    let term = |term: &str| json!({ "filter": { "generic_search_term": term } });
    assert_eq!(ids(&search(term("uber")).await), rooms[4..]);
    assert_eq!(ids(&search(term(&rooms[3])).await), rooms[3..4]);
    let path = format!("/rooms/{}/redact/{}/1", encode(&rooms[4]), encode(&name));
    ann.put(&path, json!({})).await.ok();
    assert_eq!(ids(&search(term("uber")).await), [""; 0]);
    let open = json!({ "join_rule": "public" });
    ann.set_state(&rooms[4], "m.room.join_rules", "", &open).await.ok();
    bob.join(&rooms[4]).await.ok();
    let first = page("").await;
    assert_eq!(first["chunk"][0]["room_id"], rooms[4].as_str());
    assert_eq!(first["chunk"][0]["num_joined_members"], 2);
    // Networks that are bridged to: there are none.
    let bridged = search(json!({ "third_party_instance_id": "irc" })).await;
    assert_eq!((&bridged["chunk"], &bridged["total_room_count_estimate"]), (&json!([]), &json!(0)));
    assert_eq!(ids(&search(json!({ "include_all_networks": true })).await).len(), 3);
}
