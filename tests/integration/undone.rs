//! Clients with positions in a future that a restore undid.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::backup::{replayed, restore};
use crate::crash::assert_verifies;
use crate::harness::{Answer, TestServer, User, encode, offline::history};

/// A user's memberships as sync tells of them: of what was left, by the member event that says so.
fn left(sync: &Value, user: &User) -> BTreeSet<String> {
    let rooms = sync["rooms"]["leave"].as_object().into_iter().flatten();
    let says = |room: &Value| {
        let events = room["timeline"]["events"].as_array().into_iter().flatten();
        let mut members = events.filter(|event| event["state_key"] == json!(user.user_id));
        members.any(|event| event["content"]["membership"] == "leave")
    };
    rooms.filter(|(_, room)| says(room)).map(|(room_id, _)| room_id.clone()).collect()
}

const SLIDING: &str = "/_matrix/client/unstable/org.matrix.simplified_msc3575/sync";

/// A request of sliding sync for the first rooms.
async fn slide(user: &User, pos: Option<&str>, to_device: Option<&str>) -> Answer {
    let mut body = json!({
        "lists": { "all": { "ranges": [[0, 20]], "timeline_limit": 1, "required_state": [] } },
        "extensions": { "to_device": { "enabled": true } },
    });
    if let Some(since) = to_device {
        body["extensions"]["to_device"]["since"] = json!(since);
    }
    let path = pos.map_or_else(|| SLIDING.to_owned(), |pos| format!("{SLIDING}?pos={pos}"));
    user.http.request("POST", &path, Some(&user.access_token), Some(&body)).await
}

/// The rooms of which sliding sync says that the user is not in them.
fn slid_out(answer: &Value, user: &User) -> BTreeSet<String> {
    let rooms = answer["rooms"].as_object().into_iter().flatten();
    let says = |room: &Value| {
        let events = room["required_state"].as_array().into_iter().flatten();
        let mut members = events.filter(|event| event["state_key"] == json!(user.user_id));
        members.any(|event| event["content"]["membership"] == "leave")
    };
    rooms.filter(|(_, room)| says(room)).map(|(room_id, _)| room_id.clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_from_an_undone_future_are_told_to_leave_the_rooms_that_they_joined_there() {
    let mut server = TestServer::start().await;
    let data_dir = server.data_dir().to_owned();
    let (mut ann, mut bob) = (server.register("ann").await, server.register("bob").await);
    let stays = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&stays).await.ok();
    let joined_later = bob.create_room(json!({ "preset": "public_chat" })).await;
    let left_since = ann.create_room(json!({})).await;
    let token = |sync: &Value| sync["next_batch"].as_str().expect("a token").to_owned();
    let known = token(&ann.sync(None, 0, None).await);
    server.stop();
    let (cut, _) = replayed(&data_dir);
    server.restart().await;
    (ann.http, bob.http) = (server.http(), server.http());
    // The future that is undone, and where clients are in it.
    let before_any = token(&ann.sync(Some(&known), 0, None).await);
    bob.send_text(&stays, "on", "on").await;
    let early = token(&ann.sync(Some(&before_any), 0, None).await);
    let lost = ann.create_room(json!({})).await;
    ann.join(&joined_later).await.ok();
    let invited = bob.create_room(json!({ "invite": [&ann.user_id] })).await;
    let late = token(&ann.sync(Some(&early), 0, None).await);
    let slid = slide(&ann, None, None).await.ok();
    let pos = slid["pos"].as_str().expect("a position").to_owned();
    let to_device = slid["extensions"]["to_device"]["next_batch"].as_str().expect("one").to_owned();
    server.stop();
    let to = cut.to_string();
    restore(&data_dir, &["--in-place".as_ref(), "--to".as_ref(), to.as_ref()]);
    assert_verifies(&data_dir);
    server.restart().await;
    (ann.http, bob.http) = (server.http(), server.http());
    // What is left in the new life is told as well: the client would not know otherwise.
    let path = format!("/rooms/{}/leave", encode(&left_since));
    ann.request("POST", &path, Some(&json!({}))).await.ok();

    let set = |rooms: &[&String]| rooms.iter().map(|room| (*room).clone()).collect::<BTreeSet<_>>();
    let gone = set(&[&lost, &joined_later, &invited]);
    let all = set(&[&lost, &joined_later, &invited, &left_since]);
    let full = ann.sync(Some(&late), 0, None).await;
    assert_eq!(left(&full, &ann), all, "{full}");
    assert_eq!(full["rooms"]["join"].as_object().map(|rooms| rooms.len()), Some(1), "{full}");
    // The same question has the same answer; those who go on from there are told nothing again.
    let again = ann.sync(Some(&late), 0, None).await;
    assert_eq!(left(&again, &ann), all, "{again}");
    assert_eq!(again["rooms"]["leave"][&lost], full["rooms"]["leave"][&lost]);
    let on = ann.sync(Some(&token(&full)), 0, None).await;
    assert_eq!(left(&on, &ann), BTreeSet::new(), "{on}");
    // Those who had not been told of the rooms hear of what was left alone, and those who begin
    // nothing at all.
    let full = ann.sync(Some(&early), 0, None).await;
    assert_eq!(left(&full, &ann), set(&[&left_since]), "{full}");
    assert_eq!(left(&ann.sync(Some(&known), 0, None).await, &ann), set(&[&left_since]));
    assert_eq!(left(&ann.sync(None, 0, None).await, &ann), BTreeSet::new());
    // With a filter that leaves a room out, and where the state after the timeline is asked for.
    let filter = json!({ "room": { "not_rooms": [&lost] } }).to_string();
    let path = format!("/sync?since={late}&filter={}&use_state_after=true", encode(&filter));
    let full = ann.request("GET", &path, None).await.ok();
    let without = set(&[&joined_later, &invited, &left_since]);
    assert_eq!(left(&full, &ann), without, "{full}");
    let after = &full["rooms"]["leave"][&invited]["state_after"]["events"][0];
    assert_eq!(after["content"]["membership"], "leave", "{full}");

    // Sliding sync: the position is refused, and who starts over right after it is told, until they
    // come back.
    let refused = slide(&ann, Some(&pos), None).await;
    refused.refused(400, "M_UNKNOWN_POS");
    for _ in 0..2 {
        let fresh = slide(&ann, None, None).await.ok();
        assert_eq!(slid_out(&fresh, &ann), all, "{fresh}");
    }
    let fresh = slide(&ann, None, None).await.ok();
    let pos = fresh["pos"].as_str().expect("a position").to_owned();
    slide(&ann, Some(&pos), None).await.ok();
    let fresh = slide(&ann, None, None).await.ok();
    assert_eq!(slid_out(&fresh, &ann), BTreeSet::new(), "{fresh}");
    // The position of the messages to the device says as much, also after a restart.
    server.restart().await;
    (ann.http, bob.http) = (server.http(), server.http());
    let fresh = slide(&ann, None, Some(&to_device)).await.ok();
    assert_eq!(slid_out(&fresh, &ann), all, "{fresh}");
    // One who is in a room again is not told to leave it.
    ann.join(&joined_later).await.ok();
    let full = ann.sync(Some(&late), 0, None).await;
    assert_eq!(left(&full, &ann), set(&[&lost, &invited, &left_since]), "{full}");
    assert!(full["rooms"]["join"][&joined_later].is_object(), "{full}");

    // A later restore, before all of that, knows it still.
    server.stop();
    let to = (cut - 1).to_string();
    restore(&data_dir, &["--in-place".as_ref(), "--to".as_ref(), to.as_ref()]);
    assert_verifies(&data_dir);
    server.restart().await;
    ann.http = server.http();
    let full = ann.sync(Some(&late), 0, None).await;
    assert!(left(&full, &ann).is_superset(&gone), "{full}");
    server.stop();
    let said = history(&data_dir);
    assert!(said.contains("any more: that was undone"), "{said}");
}
