//! What those who administer the server read as of earlier moments, with `?at=`.

use serde_json::{Value, json};

use super::{each, event_ids, next_batch, server, texts, user};
use crate::administration::{done, user_command};
use crate::harness::{User, encode};

/// The offset in a token.
async fn now(user: &User) -> String {
    let token = next_batch(&user.sync(None, 0, None).await);
    token.split_once('_').map(|(_, offset)| offset.to_owned()).expect("an offset")
}

fn milliseconds() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("it is after 1970").as_millis()
}

#[tokio::test]
async fn an_administrator_reads_rooms_as_they_were() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    done(user_command(server.data_dir(), &format!("set-admin {}", ann.user_id), ""));
    let options = json!({ "preset": "public_chat", "name": "Before", "room_alias_name": super::unique("asof") });
    let room_id = ann.create_room(options).await;
    let first = ann.send_text(&room_id, "1", "first").await;
    let then = now(&ann).await;
    // So that a time tells the two apart.
    let time = milliseconds();
    while milliseconds() <= time + 2 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "After" })).await.ok();
    bob.join(&room_id).await.ok();
    let second = bob.send_text(&room_id, "2", "second").await;

    for at in [then, encode(&time_in_words(time))] {
        let read = async |path: &str| {
            let sign = if path.contains('?') { '&' } else { '?' };
            ann.get_room(&room_id, &format!("{path}{sign}at={at}")).await
        };
        assert_eq!(read("/state/m.room.name").await.ok()["name"], "Before", "at {at}");
        let state = read("/state").await.ok();
        assert!(each(&state, "/content/name").contains(&"Before".to_owned()), "{state}");
        let members = read("/members").await.ok();
        assert_eq!(each(&members["chunk"], "/state_key"), std::slice::from_ref(&ann.user_id));
        let joined = read("/joined_members").await.ok();
        assert_eq!(joined["joined"].as_object().map(serde_json::Map::len), Some(1));
        let messages = read("/messages?dir=b&limit=100").await.ok();
        assert_eq!(texts(&messages["chunk"]), ["first"]);
        read(&format!("/event/{}", encode(&first))).await.ok();
        read(&format!("/event/{}", encode(&second))).await.refused(404, "M_NOT_FOUND");
        let context = read(&format!("/context/{}", encode(&first))).await.ok();
        assert_eq!(event_ids(&context["events_after"]), Vec::<String>::new());
        read("/aliases").await.ok();
        let path = format!("/_matrix/client/v1/rooms/{}/hierarchy?at={at}", encode(&room_id));
        let answer = ann.http.request("GET", &path, Some(&ann.access_token), None).await;
        assert_eq!(answer.ok()["rooms"][0]["num_joined_members"], 1);
    }
    // Before there was a room, nobody was in it.
    ann.get_room(&room_id, "/state?at=1").await.refused(403, "M_FORBIDDEN");
    ann.get_room(&room_id, "/state?at=yesterday").await.refused(400, "M_INVALID_PARAM");
    // Beyond the end is now, and without the parameter nothing is another.
    for path in ["/state/m.room.name?at=99999999", "/state/m.room.name"] {
        assert_eq!(ann.get_room(&room_id, path).await.ok()["name"], "After");
    }
}

#[tokio::test]
async fn an_administrator_reads_profiles_and_aliases_as_they_were_and_anybody_as_they_are() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    done(user_command(server.data_dir(), &format!("set-admin {}", ann.user_id), ""));
    let path = format!("/profile/{}", encode(&bob.user_id));
    let name = format!("{path}/displayname");
    let set = async |name: Option<&str>| match name {
        Some(text) => {
            let body = json!({ "displayname": text });
            bob.request("PUT", &format!("{path}/displayname"), Some(&body)).await.ok();
        }
        None => {
            bob.request("DELETE", &format!("{path}/displayname"), None).await.ok();
        }
    };
    let alias =
        format!("#{}:{}", super::unique("asof"), bob.user_id.split_once(':').expect("an id").1);
    let (first, second) = (bob.create_room(json!({})).await, bob.create_room(json!({})).await);
    let directory = format!("/directory/room/{}", encode(&alias));
    let point = async |room_id: &str| {
        bob.request("PUT", &directory, Some(&json!({ "room_id": room_id }))).await.ok();
    };
    let before = now(&bob).await;
    set(Some("Early")).await;
    point(&first).await;
    let early = now(&bob).await;
    set(None).await;
    bob.request("DELETE", &directory, None).await.ok();
    let gone = now(&bob).await;
    set(Some("Late")).await;
    point(&second).await;

    let read =
        async |path: &str, at: &str| ann.request("GET", &format!("{path}?at={at}"), None).await;
    assert_eq!(read(&path, &early).await.ok()["displayname"], "Early");
    assert_eq!(read(&name, &early).await.ok()["displayname"], "Early");
    assert_eq!(read(&directory, &early).await.ok()["room_id"], json!(first));
    read(&name, &gone).await.refused(404, "M_NOT_FOUND");
    assert!(read(&path, &gone).await.ok().get("displayname").is_none());
    for at in [&before, &gone] {
        read(&directory, at).await.refused(404, "M_NOT_FOUND");
    }
    read(&path, "1").await.refused(404, "M_NOT_FOUND");
    read(&path, "yesterday").await.refused(400, "M_INVALID_PARAM");
    // As they are, for anybody; without the parameter a token is not even looked at.
    for token in [None, Some("nonsense"), Some(ann.access_token.as_str())] {
        let get = async |path: &str| {
            let path = format!("/_matrix/client/v3{path}");
            ann.http.request("GET", &path, token, None).await
        };
        assert_eq!(get(&name).await.ok()["displayname"], "Late");
        assert_eq!(get(&directory).await.ok()["room_id"], json!(second));
        assert_eq!(get(&directory).await.ok()["servers"].as_array().map(Vec::len), Some(1));
    }
    for path in [&path, &name, &directory] {
        bob.request("GET", &format!("{path}?at={early}"), None).await.refused(403, "M_FORBIDDEN");
        let path = format!("/_matrix/client/v3{path}?at={early}");
        ann.http.request("GET", &path, None, None).await.refused(401, "M_MISSING_TOKEN");
        let nonsense = ann.http.request("GET", &path, Some("nonsense"), None).await;
        nonsense.refused(401, "M_UNKNOWN_TOKEN");
    }
}

#[tokio::test]
async fn earlier_moments_are_for_administrators_alone() {
    let server = server().await;
    let bob = user(&server, "bob").await;
    let room_id = bob.create_room(json!({ "preset": "public_chat" })).await;
    let event = bob.send_text(&room_id, "1", "first").await;
    let at = now(&bob).await;
    let context = format!("/context/{}", encode(&event));
    for path in
        ["/state", "/state/m.room.create", "/members", "/joined_members", "/aliases", &context]
    {
        bob.get_room(&room_id, &format!("{path}?at={at}")).await.refused(403, "M_FORBIDDEN");
    }
    bob.get_room(&room_id, &format!("/messages?dir=b&at={at}")).await.refused(403, "M_FORBIDDEN");
    // The token that `/members` takes from everybody.
    let token = next_batch(&bob.sync(None, 0, None).await);
    let members: Value = bob.get_room(&room_id, &format!("/members?at={token}")).await.ok();
    assert_eq!(each(&members["chunk"], "/state_key"), std::slice::from_ref(&bob.user_id));
}

/// A time in milliseconds as RFC 3339 has it.
fn time_in_words(ms: u128) -> String {
    logcabin::history::moment::Time(u64::try_from(ms).expect("a time")).to_string()
}
