//! The user directory and shared rooms.

use std::slice::from_ref;

use serde_json::{Value, json};

use super::{anonymous, each, server, unique, user};
use crate::harness::{TestServer, User, encode};

async fn search(user: &User, term: &str) -> Value {
    user.post("/user_directory/search", json!({ "search_term": term })).await.ok()
}

async fn found(user: &User, term: &str) -> Vec<String> {
    each(&search(user, term).await["results"], "/user_id")
}

async fn name(user: &User, name: &str) {
    let path = format!("/profile/{}/displayname", encode(&user.user_id));
    user.put(&path, json!({ "displayname": name })).await.ok();
}

#[tokio::test]
async fn users_find_those_with_whom_they_share_a_room_and_those_in_public_rooms() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let word = unique("Zebedee").replace('-', "");
    name(&bob, &format!("Bob {word}")).await;
    assert_eq!(found(&ann, &word).await, [""; 0]);
    assert_eq!(found(&bob, &word).await, from_ref(&bob.user_id), "everybody finds themselves");
    // A private room, of which an invite is not yet a part.
    let room_id = ann.create_room(json!({ "invite": [bob.user_id] })).await;
    assert_eq!(found(&ann, &word).await, [""; 0]);
    bob.join(&room_id).await.ok();
    let answer = search(&ann, &word).await;
    let expected = json!({
        "results": [{ "user_id": bob.user_id, "display_name": format!("Bob {word}") }],
        "limited": false,
    });
    assert_eq!(answer, expected);
    let cas = user(&server, "cas").await;
    assert_eq!(found(&cas, &word).await, [""; 0]);
    bob.act(&room_id, "leave", None).await.ok();
    assert_eq!(found(&ann, &word).await, [""; 0]);
    // One that anyone may join.
    let room_id = bob.create_room(json!({ "preset": "public_chat" })).await;
    assert_eq!(found(&cas, &word).await, from_ref(&bob.user_id));
    let closed = json!({ "join_rule": "invite" });
    bob.set_state(&room_id, "m.room.join_rules", "", &closed).await.ok();
    assert_eq!(found(&cas, &word).await, [""; 0]);
    // One that is listed.
    let path = format!("/directory/list/room/{}", encode(&room_id));
    bob.put(&path, json!({ "visibility": "public" })).await.ok();
    assert_eq!(found(&cas, &word).await, from_ref(&bob.user_id));
    anonymous(
        &server.http(),
        "POST",
        "/user_directory/search",
        Some(&json!({ "search_term": "x" })),
    )
    .await
    .refused(401, "M_MISSING_TOKEN");
    ann.post("/user_directory/search", json!({})).await.refused(400, "M_BAD_JSON");
}

#[tokio::test]
async fn users_are_found_by_id_name_and_beginnings_the_exact_ones_first() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let stem = unique("quill").replace('-', "");
    let mut users = Vec::new();
    for (local, display_name) in
        [("x", format!("Äpfel {stem}")), ("y", stem.clone()), ("z", format!("{stem}ing"))]
    {
        let one = user(&server, &format!("{stem}{local}")).await;
        one.create_room(json!({ "preset": "public_chat" })).await;
        name(&one, &display_name).await;
        users.push(one);
    }
    let by_stem = found(&ann, &stem.to_uppercase()).await;
    assert_eq!(by_stem[0], users[1].user_id);
    assert_eq!(by_stem.len(), 3);
    assert_eq!(found(&ann, &format!("APFEL {stem}")).await, [users[0].user_id.clone()]);
    assert_eq!(found(&ann, &users[2].user_id).await[0], users[2].user_id);
    assert_eq!(found(&ann, &format!("{stem}ing")).await, [users[2].user_id.clone()]);
    assert_eq!(found(&ann, "").await, [""; 0]);
    let body = json!({ "search_term": stem, "limit": 2 });
    let answer = ann.post("/user_directory/search", body).await.ok();
    assert_eq!(answer["results"].as_array().map(Vec::len), Some(2));
    assert_eq!(answer["limited"], true);
    // A name that was changed is found no more.
    name(&users[2], "someone else").await;
    assert_eq!(found(&ann, &format!("{stem}ing")).await, [""; 0]);
}

#[tokio::test]
async fn a_server_can_be_set_to_show_all_its_users_also_after_a_restart() {
    let settings = [("LOGCABIN_USER_DIRECTORY_ALL_USERS", "true")];
    let mut server = TestServer::start_with(&settings).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    name(&bob, "Barnaby").await;
    assert_eq!(found(&ann, "barn").await, from_ref(&bob.user_id));
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    assert_eq!(found(&ann, "barn").await, [bob.user_id]);
}

#[tokio::test]
async fn shared_rooms_are_those_that_both_are_in() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let http = server.http();
    let shared = async |query: String| {
        let path = format!("/_matrix/client/v1/mutual_rooms{query}");
        http.request("GET", &path, Some(&ann.access_token), None).await
    };
    let of = |user_id: &str| format!("?user_id={}", encode(user_id));
    let none = json!({ "joined": [], "count": 0 });
    assert_eq!(shared(of(&bob.user_id)).await.ok(), none);
    let mut rooms = Vec::new();
    for number in 0..103 {
        let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
        if number > 1 {
            bob.join(&room_id).await.ok();
            rooms.push(room_id);
        }
    }
    rooms.sort();
    let first = shared(of(&bob.user_id)).await.ok();
    assert_eq!((&first["count"], &first["joined"]), (&json!(101), &json!(rooms[..100])));
    let next = first["next_batch"].as_str().unwrap_or_default();
    let path = format!("{}&from={}", of(&bob.user_id), encode(next));
    let second = shared(path).await.ok();
    assert_eq!(second, json!({ "joined": [rooms[100]], "count": 101 }));
    bob.act(&rooms[0], "leave", None).await.ok();
    assert_eq!(shared(of(&bob.user_id)).await.ok()["count"], 100);
    assert_eq!(shared(of("@nobody:e2e.test")).await.ok(), none);
    shared(of("nonsense")).await.refused(400, "M_INVALID_PARAM");
    shared(of("@Ann Smith:e2e.test")).await.refused(400, "M_INVALID_PARAM");
    shared(format!("{}&from=x", of(&bob.user_id))).await.refused(400, "M_INVALID_PARAM");
    shared(String::new()).await.refused(400, "M_MISSING_PARAM");
    let unstable = "/_svc/client/unstable/uk.half-shot.msc2666/user/mutual_rooms";
    let path = format!("{unstable}{}", of(&bob.user_id));
    let answer = http.request("GET", &path, Some(&ann.access_token), None).await.ok();
    assert_eq!(answer["count"], 100);
    http.request("GET", &path, None, None).await.refused(401, "M_MISSING_TOKEN");
}
