//! `/sync`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{each, event_ids, next_batch, server, string, texts, user};
use crate::harness::{Answer, Direction, TestServer, User, encode};

async fn public_room(ann: &User) -> String {
    ann.create_room(json!({ "preset": "public_chat" })).await
}

fn rooms(sync: &Value, section: &str) -> Vec<String> {
    let rooms = sync["rooms"][section].as_object().expect("every section is there");
    rooms.keys().cloned().collect()
}

fn timeline(room: &Value) -> &Value {
    &room["timeline"]["events"]
}

fn state(room: &Value) -> &Value {
    &room["state"]["events"]
}

/// A sync that waits, in a task of its own; it has begun to wait when this returns.
async fn wait(user: &User, since: &str) -> JoinHandle<(Answer, Duration)> {
    let (user, since) = (user.clone(), since.to_owned());
    let began = Instant::now();
    let waiting = tokio::spawn(async move {
        let answer = user.try_sync(Some(&since), 20_000, None).await.expect("an answer");
        (answer, began.elapsed())
    });
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(!waiting.is_finished(), "it did not wait: {:?}", waiting.await);
    waiting
}

async fn finished(waiting: JoinHandle<(Answer, Duration)>) -> Answer {
    let (answer, took) = waiting.await.expect("a waiting sync does not panic");
    assert!(took < Duration::from_secs(10), "it waited for {took:?}: {answer}");
    answer
}

#[tokio::test]
async fn a_first_sync_shows_everything_and_the_next_one_nothing() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({ "name": "a room" })).await;
    let sync = ann.sync(None, 0, None).await;
    let room = &sync["rooms"]["join"][&room_id];
    let mut types = each(state(room), "/type");
    types.extend(each(timeline(room), "/type"));
    assert_eq!(types[0], "m.room.create");
    assert!(types.contains(&"m.room.name".to_owned()));
    assert_eq!(room["summary"]["m.joined_member_count"], 1);
    assert!(each(&sync["account_data"]["events"], "/type").contains(&"m.push_rules".to_owned()));
    for section in ["invite", "knock", "leave"] {
        assert_eq!(sync["rooms"][section], json!({}));
    }
    let next = ann.news(&next_batch(&sync)).await;
    assert_eq!(next["rooms"]["join"], json!({}));
    assert_eq!(next["account_data"]["events"], json!([]));
    // The same token again gives the same again.
    ann.send_text(&room_id, "1", "one").await;
    let first = ann.news(&next_batch(&sync)).await;
    let again = ann.news(&next_batch(&sync)).await;
    assert_eq!(texts(timeline(&first["rooms"]["join"][&room_id])), ["one"]);
    assert_eq!(texts(timeline(&again["rooms"]["join"][&room_id])), ["one"]);
}

#[tokio::test]
async fn a_limited_timeline_comes_with_the_state_of_the_gap_and_a_token_to_fill_it() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    let since = bob.here().await;
    ann.send_text(&room_id, "0", "0").await;
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "first" })).await.ok();
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "second" })).await.ok();
    for number in 1..=12 {
        ann.send_text(&room_id, &number.to_string(), &number.to_string()).await;
    }
    ann.set_state(&room_id, "m.room.topic", "", &json!({ "topic": "in the timeline" })).await.ok();
    let sync = bob.news(&since).await;
    let room = &sync["rooms"]["join"][&room_id];
    assert_eq!(room["timeline"]["limited"], true);
    assert_eq!(texts(timeline(room)), ["4", "5", "6", "7", "8", "9", "10", "11", "12"]);
    assert_eq!(timeline(room).as_array().map(Vec::len), Some(10));
    // Exactly what changed in the gap, each key once, before the timeline.
    assert_eq!(each(state(room), "/type"), ["m.room.name"]);
    assert_eq!(state(room)[0]["content"]["name"], "second");
    let prev_batch = string(&room["timeline"], "prev_batch");
    let gap = bob.messages(&room_id, Some(&since), Some(&prev_batch), Direction::Forward, 50).await;
    assert_eq!(texts(&gap["chunk"]), ["0", "1", "2", "3"]);
    let gap = bob.messages(&room_id, Some(&prev_batch), Some(&since), Direction::Back, 50).await;
    assert_eq!(texts(&gap["chunk"]), ["3", "2", "1", "0"]);
    // Not limited: all of it in the timeline, nothing in the state.
    let since = next_batch(&sync);
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "third" })).await.ok();
    let sync = bob.news(&since).await;
    let room = &sync["rooms"]["join"][&room_id];
    assert_eq!(room["timeline"]["limited"], false);
    assert_eq!(state(room), &json!([]));
    assert_eq!(each(timeline(room), "/content/name"), ["third"]);
}

#[tokio::test]
async fn state_that_changed_while_a_client_was_away_comes_once() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    let since = bob.here().await;
    ann.set_state(&room_id, "m.room.topic", "", &json!({ "topic": "one" })).await.ok();
    ann.set_state(&room_id, "m.room.topic", "", &json!({ "topic": "two" })).await.ok();
    ann.send_text(&room_id, "1", "last").await;
    let look = async |timeline: Value| {
        let filter = json!({ "room": { "timeline": timeline } }).to_string();
        let sync = bob.sync(Some(&since), 0, Some(&filter)).await;
        let room = sync["rooms"]["join"][&room_id].clone();
        let topics = |events: &Value| {
            let mut topics = each(events, "/content/topic");
            topics.retain(|topic| !topic.is_empty());
            topics
        };
        (
            topics(state(&room)),
            topics(&room["timeline"]["events"]),
            room["timeline"]["limited"] == true,
        )
    };
    let none = Vec::<String>::new;
    let (one, two) = ("one".to_owned(), "two".to_owned());
    // There is room for all of it: the timeline has every change, and the state none.
    assert_eq!(look(json!({})).await, (none(), vec![one, two.clone()], false));
    // A gap: the state says what it was at the beginning of the timeline.
    assert_eq!(look(json!({ "limit": 1 })).await, (vec![two.clone()], none(), true));
    // What the filter keeps out of the timeline would reach the client nowhere else.
    let messages = json!({ "types": ["m.room.message"] });
    assert_eq!(look(messages).await, (vec![two], none(), false));
}

#[tokio::test]
async fn a_timeline_is_limited_only_where_something_was_left_out() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann).await;
    let joined = json!({ "history_visibility": "joined" });
    ann.set_state(&room_id, "m.room.history_visibility", "", &joined).await.ok();
    for number in 0..20 {
        ann.send_text(&room_id, &number.to_string(), "before bob came").await;
    }
    bob.join(&room_id).await.ok();
    bob.send_text(&room_id, "0", "bob's").await;
    let newest = async |filter: Value| {
        let filter = json!({ "room": { "timeline": filter } }).to_string();
        let sync = bob.sync(None, 0, Some(&filter)).await;
        let room = sync["rooms"]["join"][&room_id].clone();
        (texts(timeline(&room)), room["timeline"]["limited"] == true)
    };
    // What was said before the join is not bob's to see, so that none of it is left out.
    let messages = json!({ "limit": 1, "types": ["m.room.message"] });
    assert_eq!(newest(messages.clone()).await, (vec!["bob's".to_owned()], false));
    assert_eq!(newest(json!({ "limit": 1 })).await, (vec!["bob's".to_owned()], true));
    ann.send_text(&room_id, "after", "ann's").await;
    assert_eq!(newest(messages).await, (vec!["ann's".to_owned()], true));
    let own = json!({ "limit": 1, "senders": [bob.user_id], "types": ["m.room.message"] });
    assert_eq!(newest(own).await, (vec!["bob's".to_owned()], false));
}

#[tokio::test]
async fn a_timeline_has_as_many_events_as_the_filter_says() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({ "name": "x" })).await;
    ann.send_text(&room_id, "1", "one").await;
    for limit in [0, 1, 3] {
        let filter = json!({ "room": { "timeline": { "limit": limit } } }).to_string();
        let sync = ann.sync(None, 0, Some(&filter)).await;
        let room = &sync["rooms"]["join"][&room_id];
        assert_eq!(timeline(room).as_array().map(Vec::len), Some(limit), "{room}");
        assert_eq!(room["timeline"]["limited"], true);
        // What is not in the timeline is in the state, and what is in it is not.
        let shown = [event_ids(state(room)), event_ids(timeline(room))].concat();
        let mut distinct = shown.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), shown.len(), "limit {limit}");
        let prev_batch = string(&room["timeline"], "prev_batch");
        let before = ann.messages(&room_id, Some(&prev_batch), None, Direction::Back, 100).await;
        let all = ann.messages(&room_id, None, None, Direction::Back, 100).await;
        let (before, all) = (event_ids(&before["chunk"]), event_ids(&all["chunk"]));
        assert_eq!(before, all[limit..]);
    }
}

#[tokio::test]
async fn full_state_shows_every_joined_room_at_once() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let (one, two) = (public_room(&ann).await, public_room(&ann).await);
    ann.send_text(&one, "1", "one").await;
    let since = ann.here().await;
    ann.send_text(&two, "1", "two").await;
    let path = format!("/sync?since={since}&full_state=true&timeout=20000");
    let began = Instant::now();
    let sync = ann.get(&path).await.ok();
    assert!(began.elapsed() < Duration::from_secs(5));
    let mut expected = vec![one.clone(), two.clone()];
    expected.sort();
    assert_eq!(rooms(&sync, "join"), expected);
    let (one, two) = (&sync["rooms"]["join"][&one], &sync["rooms"]["join"][&two]);
    assert_eq!((texts(timeline(one)), texts(timeline(two))), (vec![], vec!["two".to_owned()]));
    for room in [one, two] {
        assert!(each(state(room), "/type").contains(&"m.room.create".to_owned()), "{room}");
    }
}

#[tokio::test]
async fn a_waiting_sync_returns_early_only_for_events_that_concern_it() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let stranger = user(&server, "cas").await;
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    let waiting = wait(&bob, &bob.here().await).await;
    let stranger_waits = wait(&stranger, &stranger.here().await).await;
    ann.send_text(&room_id, "1", "hello").await;
    let sync = finished(waiting).await.ok();
    assert_eq!(texts(timeline(&sync["rooms"]["join"][&room_id])), ["hello"]);
    assert!(!stranger_waits.is_finished());
    // An invite wakes them.
    ann.act(&room_id, "invite", Some(&stranger)).await.ok();
    let sync = finished(stranger_waits).await.ok();
    assert_eq!(rooms(&sync, "invite"), [room_id]);
}

#[tokio::test]
async fn every_kind_of_news_ends_a_wait() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    let event_id = ann.send_text(&room_id, "1", "x").await;
    let room = format!("/rooms/{}", encode(&room_id));
    let me = format!("/user/{}", encode(&bob.user_id));
    for (who, method, path, body) in [
        (
            &ann,
            "PUT",
            format!("{room}/typing/{}", ann.user_id),
            json!({ "typing": true, "timeout": 9000 }),
        ),
        (&ann, "POST", format!("{room}/receipt/m.read/{event_id}"), json!({})),
        (&bob, "PUT", format!("{me}/account_data/org.example.x"), json!({ "x": 1 })),
        (
            &bob,
            "PUT",
            format!("{me}/rooms/{room_id}/account_data/org.example.x"),
            json!({ "x": 1 }),
        ),
        (&ann, "PUT", format!("{room}/state/m.room.name"), json!({ "name": "x" })),
        (&ann, "POST", format!("{room}/kick"), json!({ "user_id": bob.user_id })),
        (&bob, "POST", format!("{room}/join"), json!({})),
    ] {
        let waiting = wait(&bob, &next_batch(&bob.sync(None, 0, None).await)).await;
        who.request(method, &path, Some(&body)).await.ok();
        finished(waiting).await.ok();
    }
}

#[tokio::test]
async fn a_wait_without_news_ends_with_the_timeout_and_nothing() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let since = next_batch(&ann.sync(None, 0, None).await);
    let began = Instant::now();
    let sync = ann.sync(Some(&since), 300, None).await;
    assert!(began.elapsed() >= Duration::from_millis(300));
    for section in ["join", "invite", "knock", "leave"] {
        assert_eq!(sync["rooms"][section], json!({}));
    }
    assert_eq!(sync["account_data"]["events"], json!([]));
    ann.news(&next_batch(&sync)).await;
}

#[tokio::test]
async fn a_logout_ends_a_wait_with_401() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let other = ann.another_device().await;
    let since = ann.here().await;
    let waiting = wait(&other, &since).await;
    let own = wait(&ann, &since).await;
    other.post("/logout", json!({})).await.ok();
    finished(waiting).await.refused(401, "M_UNKNOWN_TOKEN");
    assert!(!own.is_finished());
    ann.post("/logout/all", json!({})).await.ok();
    finished(own).await.refused(401, "M_UNKNOWN_TOKEN");
}

#[tokio::test]
async fn a_wait_ends_well_when_the_server_stops_and_its_tokens_go_on_after() {
    let mut server = TestServer::start().await;
    let ann = user(&server, "ann").await;
    let room_id = public_room(&ann).await;
    let since = next_batch(&ann.sync(None, 0, None).await);
    let waiting = wait(&ann, &since).await;
    let server = tokio::task::spawn_blocking(move || {
        server.stop();
        server
    });
    let answer = finished(waiting).await.ok();
    let mut server = server.await.expect("the server stops");
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    ann.send_text(&room_id, "1", "after").await;
    for token in [since, next_batch(&answer)] {
        let sync = ann.news(&token).await;
        assert_eq!(texts(timeline(&sync["rooms"]["join"][&room_id])), ["after"]);
    }
}

#[tokio::test]
async fn tokens_that_were_never_given_out_are_refused() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for since in ["garbage", "s", "s0_99999999", "s1_1", "-1", "s0_1x", "s0_01"] {
        let answer = ann.try_sync(Some(since), 0, None).await.expect("an answer");
        answer.refused(400, "M_INVALID_PARAM");
    }
    // Some clients send an empty one for none.
    ann.get("/sync?since=&timeout=0").await.ok();
}

#[tokio::test]
async fn an_invited_room_shows_its_stripped_state_and_no_messages() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "name": "a room", "topic": "secret?" })).await;
    ann.send_text(&room_id, "1", "hidden").await;
    let since = bob.here().await;
    ann.act(&room_id, "invite", Some(&bob)).await.ok();
    for sync in [bob.news(&since).await, bob.sync(None, 0, None).await] {
        assert_eq!(rooms(&sync, "invite"), std::slice::from_ref(&room_id));
        assert_eq!(rooms(&sync, "join"), [""; 0]);
        let events = &sync["rooms"]["invite"][&room_id]["invite_state"]["events"];
        let types = each(events, "/type");
        for expected in ["m.room.create", "m.room.name", "m.room.join_rules", "m.room.member"] {
            assert!(types.contains(&expected.to_owned()), "{types:?}");
        }
        let keys = each(events, "/state_key");
        assert!(keys.contains(&bob.user_id) && keys.contains(&ann.user_id), "{keys:?}");
        for event in events.as_array().into_iter().flatten() {
            let mut fields: Vec<_> = event.as_object().into_iter().flatten().map(|f| f.0).collect();
            fields.sort();
            assert_eq!(fields, ["content", "sender", "state_key", "type"]);
        }
        assert!(!sync.to_string().contains("hidden"));
    }
    // Shown once.
    let since = next_batch(&bob.sync(None, 0, None).await);
    ann.send_text(&room_id, "2", "hidden").await;
    assert_eq!(rooms(&bob.news(&since).await, "invite"), [""; 0]);
}

#[tokio::test]
async fn a_newly_joined_room_comes_with_its_whole_state() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann).await;
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "x" })).await.ok();
    for number in 0..20 {
        ann.send_text(&room_id, &number.to_string(), &number.to_string()).await;
    }
    let since = next_batch(&bob.sync(None, 0, None).await);
    bob.join(&room_id).await.ok();
    let sync = bob.news(&since).await;
    let room = &sync["rooms"]["join"][&room_id];
    assert_eq!(room["timeline"]["limited"], true);
    let types = each(state(room), "/type");
    for expected in ["m.room.create", "m.room.name", "m.room.power_levels", "m.room.member"] {
        assert!(types.contains(&expected.to_owned()), "{types:?}");
    }
    let last = &timeline(room)[9];
    assert_eq!(last["state_key"], bob.user_id.as_str());
    assert_eq!(room["summary"]["m.joined_member_count"], 2);
    assert_eq!(room["summary"].get("m.heroes"), None, "it has a name: {room}");
    // Ann, who was there, gets the join alone.
    assert_eq!(rooms(&sync, "leave"), [""; 0]);
}

#[tokio::test]
async fn leaving_kick_ban_and_rejection_show_in_the_leave_section_once() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    for how in ["leave", "kick", "ban"] {
        let room_id = public_room(&ann).await;
        bob.join(&room_id).await.ok();
        let since = next_batch(&bob.sync(None, 0, None).await);
        ann.send_text(&room_id, "1", "before").await;
        match how {
            "leave" => bob.act(&room_id, how, None).await.ok(),
            _ => ann.act(&room_id, how, Some(&bob)).await.ok(),
        };
        ann.send_text(&room_id, "2", "after").await;
        ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "after" })).await.ok();
        let sync = bob.news(&since).await;
        assert_eq!(rooms(&sync, "join"), [""; 0]);
        let room = &sync["rooms"]["leave"][&room_id];
        assert_eq!(texts(timeline(room)), ["before"], "{how}: {sync}");
        let last = timeline(room).as_array().and_then(|events| events.last());
        let expected = if how == "ban" { "ban" } else { "leave" };
        assert_eq!(last.map(|event| &event["content"]["membership"]), Some(&json!(expected)));
        assert!(!state(room).to_string().contains("after"));
        let news = bob.news(&next_batch(&sync)).await;
        assert_eq!(rooms(&news, "leave"), [""; 0]);
    }
    let room_id = ann.create_room(json!({ "invite": [bob.user_id] })).await;
    let since = next_batch(&bob.sync(None, 0, None).await);
    bob.act(&room_id, "leave", None).await.ok();
    let sync = bob.news(&since).await;
    let room = &sync["rooms"]["leave"][&room_id];
    assert_eq!(each(timeline(room), "/content/membership"), ["leave"]);
    assert_eq!(rooms(&sync, "invite"), [""; 0]);
}

#[tokio::test]
async fn what_happens_between_leaving_and_a_ban_stays_hidden() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    let since = next_batch(&bob.sync(None, 0, None).await);
    bob.act(&room_id, "leave", None).await.ok();
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "hidden" })).await.ok();
    ann.send_text(&room_id, "1", "hidden").await;
    ann.act(&room_id, "ban", Some(&bob)).await.ok();
    let filter = r#"{"room":{"include_leave":true}}"#;
    for sync in [bob.news(&since).await, bob.sync(None, 0, Some(filter)).await] {
        let room = &sync["rooms"]["leave"][&room_id];
        assert!(!room.to_string().contains("hidden"), "{room}");
        let last = timeline(room).as_array().and_then(|events| events.last());
        assert_eq!(last.map(|event| &event["content"]["membership"]), Some(&json!("ban")));
    }
    bob.state(&room_id, "m.room.name", "").await.refused(404, "M_NOT_FOUND");
}

#[tokio::test]
async fn rooms_that_were_left_are_shown_to_those_who_ask() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    ann.send_text(&room_id, "1", "seen").await;
    bob.act(&room_id, "leave", None).await.ok();
    ann.send_text(&room_id, "2", "unseen").await;
    assert_eq!(rooms(&bob.sync(None, 0, None).await, "leave"), [""; 0]);
    let filter = r#"{"room":{"include_leave":true}}"#;
    let sync = bob.sync(None, 0, Some(filter)).await;
    let room = &sync["rooms"]["leave"][&room_id];
    assert_eq!(texts(timeline(room)), ["seen"]);
    let all = [each(state(room), "/type"), each(timeline(room), "/type")].concat();
    assert!(all.contains(&"m.room.create".to_owned()));
}

#[tokio::test]
async fn a_room_left_and_joined_again_between_two_syncs_is_still_whole() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    let since = next_batch(&bob.sync(None, 0, None).await);
    bob.act(&room_id, "leave", None).await.ok();
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "meanwhile" })).await.ok();
    for number in 0..12 {
        ann.send_text(&room_id, &number.to_string(), &number.to_string()).await;
    }
    bob.join(&room_id).await.ok();
    let sync = bob.news(&since).await;
    assert_eq!((rooms(&sync, "join"), rooms(&sync, "leave")), (vec![room_id.clone()], vec![]));
    let room = &sync["rooms"]["join"][&room_id];
    assert_eq!(room["timeline"]["limited"], true);
    assert!(each(state(room), "/content/name").contains(&"meanwhile".to_owned()), "{room}");
    // Joined and left again: it shows as left, with what was seen.
    let room_id = public_room(&ann).await;
    ann.send_text(&room_id, "1", "one").await;
    let since = next_batch(&bob.sync(None, 0, None).await);
    bob.join(&room_id).await.ok();
    bob.act(&room_id, "leave", None).await.ok();
    let sync = bob.news(&since).await;
    assert_eq!((rooms(&sync, "join"), rooms(&sync, "leave")), (vec![], vec![room_id.clone()]));
    let room = &sync["rooms"]["leave"][&room_id];
    assert_eq!(texts(timeline(room)), ["one"]);
}

#[tokio::test]
async fn a_knock_shows_until_it_is_answered() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann
        .create_room(json!({
            "name": "behind a door",
            "initial_state": [{ "type": "m.room.join_rules", "content": { "join_rule": "knock" } }],
        }))
        .await;
    let since = next_batch(&bob.sync(None, 0, None).await);
    bob.post(&format!("/knock/{}", encode(&room_id)), json!({})).await.ok();
    let sync = bob.news(&since).await;
    let events = &sync["rooms"]["knock"][&room_id]["knock_state"]["events"];
    assert!(each(events, "/content/name").contains(&"behind a door".to_owned()), "{sync}");
    assert!(each(events, "/content/membership").contains(&"knock".to_owned()), "{sync}");
    ann.act(&room_id, "invite", Some(&bob)).await.ok();
    let accepted = bob.news(&next_batch(&sync)).await;
    assert_eq!((rooms(&accepted, "knock"), rooms(&accepted, "invite")), (vec![], vec![room_id]));
}

#[tokio::test]
async fn members_are_loaded_lazily_for_those_who_speak_and_for_oneself() {
    let server = server().await;
    let (ann, bob, cas) =
        (user(&server, "ann").await, user(&server, "bob").await, user(&server, "cas").await);
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    cas.join(&room_id).await.ok();
    bob.send_text(&room_id, "1", "one").await;
    let filter =
        r#"{"room":{"state":{"lazy_load_members":true},"timeline":{"limit":1}}}"#.to_owned();
    let members = |room: &Value| {
        let mut keys = each(state(room), "/state_key");
        keys.retain(|key| key.starts_with('@'));
        keys.sort();
        keys
    };
    let sync = cas.sync(None, 0, Some(&filter)).await;
    let room = &sync["rooms"]["join"][&room_id];
    let mut expected = vec![bob.user_id.clone(), cas.user_id.clone()];
    expected.sort();
    assert_eq!(members(room), expected);
    // Of one who speaks for the first time, and not of others.
    let since = next_batch(&sync);
    ann.send_text(&room_id, "2", "two").await;
    let sync = cas.sync(Some(&since), 0, Some(&filter)).await;
    assert_eq!(members(&sync["rooms"]["join"][&room_id]), std::slice::from_ref(&ann.user_id));
    // Changes of membership in a gap are always there.
    let since = next_batch(&sync);
    bob.act(&room_id, "leave", None).await.ok();
    ann.send_text(&room_id, "3", "three").await;
    ann.send_text(&room_id, "4", "four").await;
    let sync = cas.sync(Some(&since), 0, Some(&filter)).await;
    assert!(members(&sync["rooms"]["join"][&room_id]).contains(&bob.user_id));
}

#[tokio::test]
async fn a_room_without_a_name_is_named_by_its_heroes() {
    let server = server().await;
    let (ann, bob, cas) =
        (user(&server, "ann").await, user(&server, "bob").await, user(&server, "cas").await);
    let room_id = ann.create_room(json!({ "invite": [bob.user_id, cas.user_id] })).await;
    bob.join(&room_id).await.ok();
    let sync = ann.sync(None, 0, None).await;
    let summary = &sync["rooms"]["join"][&room_id]["summary"];
    // In the order of their member events.
    assert_eq!(summary["m.heroes"], json!([cas.user_id, bob.user_id]));
    assert_eq!(summary["m.joined_member_count"], 2);
    assert_eq!(summary["m.invited_member_count"], 1);
}

#[tokio::test]
async fn two_devices_sync_each_for_itself() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let other = ann.another_device().await;
    let room_id = public_room(&ann).await;
    let (one, two) = (ann.here().await, other.here().await);
    ann.send_text(&room_id, "1", "hello").await;
    for (device, since) in [(&ann, one), (&other, two)] {
        let sync = device.news(&since).await;
        assert_eq!(texts(timeline(&sync["rooms"]["join"][&room_id])), ["hello"]);
    }
}

#[tokio::test]
async fn what_clients_add_to_a_sync_is_taken() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let since = ann.here().await;
    for path in [
        "/sync?set_presence=offline&timeout=0".to_owned(),
        "/sync?full_state=false&set_presence=online&filter=&since=&timeout=".to_owned(),
        format!("/sync?since={since}&full_state=true&set_presence=unavailable"),
        "/sync?org.example.unknown=1".to_owned(),
    ] {
        ann.get(&path).await.ok();
    }
}

#[tokio::test]
async fn a_message_of_ones_own_comes_back_to_a_waiting_sync() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = public_room(&ann).await;
    let waiting = wait(&ann, &next_batch(&ann.sync(None, 0, None).await)).await;
    let event_id = ann.send_text(&room_id, "mine", "hello").await;
    let sync = finished(waiting).await.ok();
    assert_eq!(event_ids(timeline(&sync["rooms"]["join"][&room_id])), [event_id]);
}

#[tokio::test]
async fn following_a_busy_room_by_sync_misses_and_repeats_nothing() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    let mut since = next_batch(&bob.sync(None, 0, None).await);
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (ann, room_id) = (ann.clone(), room_id.clone());
            tokio::spawn(async move {
                for number in 0..15 {
                    let name = format!("{writer}-{number}");
                    ann.send_text(&room_id, &name, &name).await;
                }
            })
        })
        .collect();
    let mut seen: Vec<String> = Vec::new();
    while seen.len() < 60 {
        let sync = bob.sync(Some(&since), 5_000, None).await;
        let room = &sync["rooms"]["join"][&room_id];
        assert!(!room.is_null(), "nothing came although {} were seen: {sync}", seen.len());
        if room["timeline"]["limited"] == true {
            let to = string(&room["timeline"], "prev_batch");
            let gap =
                bob.messages(&room_id, Some(&since), Some(&to), Direction::Forward, 100).await;
            seen.extend(texts(&gap["chunk"]));
        }
        seen.extend(texts(timeline(room)));
        since = next_batch(&sync);
    }
    for writer in writers {
        writer.await.expect("a writer does not panic");
    }
    let all = bob.messages(&room_id, None, None, Direction::Forward, 1000).await;
    assert_eq!(seen, texts(&all["chunk"]));
    assert_eq!(bob.news(&since).await["rooms"]["join"], json!({}));
}

#[tokio::test]
async fn a_ban_shows_to_one_who_was_invited_or_knocked() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "name": "hidden", "invite": [bob.user_id] })).await;
    let since = next_batch(&bob.sync(None, 0, None).await);
    ann.set_state(&room_id, "m.room.topic", "", &json!({ "topic": "hidden" })).await.ok();
    ann.act(&room_id, "ban", Some(&bob)).await.ok();
    let sync = bob.news(&since).await;
    assert_eq!((rooms(&sync, "invite"), rooms(&sync, "leave")), (vec![], vec![room_id.clone()]));
    assert!(!sync.to_string().contains("hidden"), "{sync}");
    bob.get_room(&room_id, "/state").await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn a_session_that_was_replaced_learns_so_when_its_wait_ends() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let since = ann.here().await;
    let waiting = {
        let ann = ann.clone();
        tokio::spawn(async move { ann.try_sync(Some(&since), 1_000, None).await })
    };
    tokio::time::sleep(Duration::from_millis(150)).await;
    let login = json!({
        "type": "m.login.password", "user": ann.user_id, "password": super::PASSWORD,
        "device_id": ann.device_id,
    });
    ann.http.request("POST", "/_matrix/client/v3/login", None, Some(&login)).await.ok();
    let answer = waiting.await.expect("a waiting sync does not panic").expect("an answer");
    answer.refused(401, "M_UNKNOWN_TOKEN");
}

#[tokio::test]
async fn a_new_password_ends_the_waits_of_other_devices() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let other = ann.another_device().await;
    let waiting = wait(&other, &other.here().await).await;
    let body = json!({
        "new_password": "another long password",
        "auth": {
            "type": "m.login.password", "password": super::PASSWORD,
            "identifier": { "type": "m.id.user", "user": ann.user_id },
        },
    });
    ann.post("/account/password", body).await.ok();
    finished(waiting).await.refused(401, "M_UNKNOWN_TOKEN");
}

/// The users whose member events are among a room's state.
fn members(room: &Value) -> Vec<String> {
    let events = state(room).as_array().into_iter().flatten();
    let members = events.filter(|event| event["type"] == "m.room.member");
    let mut keys: Vec<_> = members.map(|event| string(event, "state_key")).collect();
    keys.sort();
    keys
}

fn sorted(users: &[&User]) -> Vec<String> {
    let mut ids: Vec<_> = users.iter().map(|user| user.user_id.clone()).collect();
    ids.sort();
    ids
}

const LAZY: &str = r#"{"room":{"state":{"lazy_load_members":true},"timeline":{"limit":1}}}"#;

#[tokio::test]
async fn without_lazy_loading_the_state_has_every_member() {
    let server = server().await;
    let (ann, bob, cas) =
        (user(&server, "ann").await, user(&server, "bob").await, user(&server, "cas").await);
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    cas.join(&room_id).await.ok();
    ann.send_text(&room_id, "1", "one").await;
    let all = sorted(&[&ann, &bob, &cas]);
    for state in ["{}", r#"{"lazy_load_members":false}"#, r#"{"include_redundant_members":true}"#] {
        let filter = format!(r#"{{"room":{{"timeline":{{"limit":1}},"state":{state}}}}}"#);
        let sync = ann.sync(None, 0, Some(&filter)).await;
        assert_eq!(members(&sync["rooms"]["join"][&room_id]), all, "{state}");
    }
    // And lazily, fewer.
    let sync = bob.sync(None, 0, Some(LAZY)).await;
    assert_eq!(members(&sync["rooms"]["join"][&room_id]), sorted(&[&ann, &bob]));
}

#[tokio::test]
async fn ones_own_member_event_is_there_on_joining_and_with_full_state() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann).await;
    let since = bob.here().await;
    bob.join(&room_id).await.ok();
    ann.send_text(&room_id, "1", "one").await;
    let sync = bob.sync(Some(&since), 0, Some(LAZY)).await;
    let room = &sync["rooms"]["join"][&room_id];
    assert_eq!(texts(timeline(room)), ["one"], "the join is not in the timeline");
    assert_eq!(members(room), sorted(&[&ann, &bob]));
    // Bob has both, and nothing is new; full state says them again, and nobody else's.
    let since = next_batch(&sync);
    let path = format!("/sync?since={since}&full_state=true&filter={}", encode(LAZY));
    let sync = bob.get(&path).await.ok();
    let room = &sync["rooms"]["join"][&room_id];
    assert_eq!((timeline(room), members(room)), (&json!([]), sorted(&[&bob])));
    assert!(each(state(room), "/type").contains(&"m.room.create".to_owned()));
}

#[tokio::test]
async fn redundant_members_are_left_out_unless_they_are_asked_for() {
    crate::harness::nodes::one_server!("each node remembers which members it has sent");
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann).await;
    bob.join(&room_id).await.ok();
    let redundant = r#"{"room":{"state":{"lazy_load_members":true,
                        "include_redundant_members":true},"timeline":{"limit":1}}}"#;
    let mut since = next_batch(&bob.sync(None, 0, Some(LAZY)).await);
    for (txn, filter, expected) in [
        ("1", LAZY, vec![&ann]),
        ("2", LAZY, vec![]),
        ("3", redundant, vec![&ann]),
        ("4", redundant, vec![&ann]),
        ("5", LAZY, vec![]),
    ] {
        ann.send_text(&room_id, txn, txn).await;
        let sync = bob.sync(Some(&since), 0, Some(filter)).await;
        let room = &sync["rooms"]["join"][&room_id];
        assert_eq!(texts(timeline(room)), [txn]);
        assert_eq!(members(room), sorted(&expected), "text {txn}");
        since = next_batch(&sync);
    }
}

#[tokio::test]
async fn a_limited_sync_has_the_members_that_changed_in_the_gap_though_they_were_known() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let (cas, dan) = (user(&server, "cas").await, user(&server, "dan").await);
    let room_id = public_room(&ann).await;
    for user in [&bob, &cas] {
        user.join(&room_id).await.ok();
    }
    bob.send_text(&room_id, "0", "known").await;
    let since = next_batch(&ann.sync(None, 0, Some(LAZY)).await);
    // One whom the client knows has a new name, one leaves, one comes; and none of them is heard.
    let name = format!("/profile/{}/displayname", encode(&bob.user_id));
    bob.put(&name, json!({ "displayname": "Robert" })).await.ok();
    cas.act(&room_id, "leave", None).await.ok();
    dan.join(&room_id).await.ok();
    for txn in ["1", "2"] {
        ann.send_text(&room_id, txn, txn).await;
    }
    let sync = ann.sync(Some(&since), 0, Some(LAZY)).await;
    let room = &sync["rooms"]["join"][&room_id];
    assert_eq!(room["timeline"]["limited"], true);
    let gap = sorted(&[&bob, &cas, &dan]);
    let told = members(room);
    assert!(gap.iter().all(|user| told.contains(user)), "expected {gap:?} in {told:?}");
    assert!(each(state(room), "/content/displayname").contains(&"Robert".to_owned()), "{room}");
}

#[tokio::test]
async fn without_a_timeout_nothing_is_waited_for() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let since = next_batch(&ann.sync(None, 0, None).await);
    for query in [format!("since={since}"), format!("since={since}&timeout=0")] {
        let began = Instant::now();
        let sync = ann.get(&format!("/sync?set_presence=offline&{query}")).await.ok();
        assert!(began.elapsed() < Duration::from_secs(5), "{query}");
        assert_eq!(sync["rooms"]["join"], json!({}));
        assert!(sync["next_batch"].is_string());
    }
}
