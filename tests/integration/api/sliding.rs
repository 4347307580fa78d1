//! Simplified sliding sync (MSC4186).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{each, event_ids, next_batch, server, string, texts, user};
use crate::harness::{Answer, Direction, User, encode};

const PATH: &str = "/_matrix/client/unstable/org.matrix.simplified_msc3575/sync";

/// One connection: it remembers its `pos`.
pub(super) struct Slide {
    pub(super) user: User,
    pub(super) pos: Option<String>,
}

impl Slide {
    pub(super) fn new(user: &User) -> Self {
        Self { user: user.clone(), pos: None }
    }

    pub(super) async fn try_at(&self, pos: Option<&str>, timeout_ms: u64, body: &Value) -> Answer {
        let mut path = format!("{PATH}?timeout={timeout_ms}");
        if let Some(pos) = pos {
            path.push_str(&format!("&pos={pos}"));
        }
        let token = Some(self.user.access_token.as_str());
        self.user.http.request("POST", &path, token, Some(body)).await
    }

    /// What comes next, now.
    pub(super) async fn next(&mut self, body: &Value) -> Value {
        let answer = self.try_at(self.pos.as_deref(), 0, body).await.ok();
        self.pos = Some(string(&answer, "pos"));
        answer
    }

    /// What comes next, in a task of its own; it has begun to wait when this returns.
    async fn wait(&self, body: &Value) -> JoinHandle<(Answer, Duration)> {
        let this = Self { user: self.user.clone(), pos: self.pos.clone() };
        let body = body.clone();
        let began = Instant::now();
        let waiting = tokio::spawn(async move {
            let answer = this.try_at(this.pos.as_deref(), 20_000, &body).await;
            (answer, began.elapsed())
        });
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(!waiting.is_finished(), "it did not wait: {:?}", waiting.await);
        waiting
    }
}

async fn finished(waiting: JoinHandle<(Answer, Duration)>) -> Value {
    let (answer, took) = waiting.await.expect("a waiting request does not panic");
    assert!(took < Duration::from_secs(10), "it waited for {took:?}: {answer}");
    answer.ok()
}

/// A request with one list of this range and limit, and no state but the name.
pub(super) fn window(first: u64, last: u64, timeline_limit: u64) -> Value {
    json!({ "lists": { "all": {
        "ranges": [[first, last]],
        "timeline_limit": timeline_limit,
        "required_state": [["m.room.name", ""]],
    } } })
}

fn with(mut body: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    body.pointer_mut(parent).expect("it is there")[key] = value;
    body
}

pub(super) fn rooms(answer: &Value) -> Vec<String> {
    answer["rooms"].as_object().expect("rooms").keys().cloned().collect()
}

fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort();
    ids
}

pub(super) async fn public_room(ann: &User, name: &str) -> String {
    ann.create_room(json!({ "preset": "public_chat", "name": name })).await
}

async fn set_account_data(user: &User, room_id: Option<&str>, of_type: &str, content: Value) {
    let room = room_id.map(|room_id| format!("/rooms/{}", encode(room_id))).unwrap_or_default();
    let path = format!("/user/{}{room}/account_data/{of_type}", encode(&user.user_id));
    user.put(&path, content).await.ok();
}

#[tokio::test]
async fn a_window_shows_the_rooms_with_the_newest_events() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(public_room(&ann, &number.to_string()).await);
    }
    // What is said last is first, whatever it is.
    ann.send_text(&ids[1], "1", "up").await;
    ann.set_state(&ids[0], "m.room.topic", "", &json!({ "topic": "up" })).await.ok();
    let mut slide = Slide::new(&ann);
    let first = slide.next(&window(0, 1, 1)).await;
    assert_eq!(first["lists"], json!({ "all": { "count": 5 } }));
    assert_eq!(rooms(&first), sorted(vec![ids[0].clone(), ids[1].clone()]));
    assert_eq!(first["rooms"][&ids[0]]["initial"], true);
    assert_eq!(texts(&first["rooms"][&ids[1]]["timeline"]), ["up"]);
    // A larger window shows those that were not in it, as they are, and no other.
    let more = slide.next(&window(0, 3, 1)).await;
    assert_eq!(rooms(&more), sorted(vec![ids[3].clone(), ids[4].clone()]));
    // A room from outside comes in with its newest event, and pushes one out.
    ann.send_text(&ids[2], "1", "in").await;
    let moved = slide.next(&window(0, 3, 1)).await;
    assert_eq!(rooms(&moved), std::slice::from_ref(&ids[2]));
    assert_eq!(moved["rooms"][&ids[2]]["initial"], true);
    assert_eq!(moved["rooms"][&ids[2]]["num_live"], 1);
    // Two ranges, and one that begins further down: what is pushed into it was known already.
    let body = with(window(0, 0, 1), "/lists/all/ranges", json!([[0, 0], [4, 9]]));
    assert_eq!(rooms(&slide.next(&body).await), [""; 0]);
    assert_eq!(slide.next(&window(9, 99, 1)).await["lists"]["all"]["count"], 5);
}

#[tokio::test]
async fn a_room_is_whole_once_and_then_only_what_is_new() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann, "a room").await;
    bob.join(&room_id).await.ok();
    let body = window(0, 9, 2);
    let mut slide = Slide::new(&bob);
    let room = slide.next(&body).await["rooms"][&room_id].clone();
    assert_eq!(room["name"], "a room");
    assert_eq!((&room["joined_count"], &room["invited_count"]), (&json!(2), &json!(0)));
    assert_eq!(each(&room["required_state"], "/type"), ["m.room.name"]);
    assert_eq!(room["timeline"].as_array().map(Vec::len), Some(2));
    assert_eq!((&room["limited"], &room["num_live"]), (&json!(true), &json!(0)));
    assert_eq!((&room["notification_count"], &room["highlight_count"]), (&json!(0), &json!(0)));
    assert!(room["timeline"][0].get("room_id").is_none());
    let prev_batch = string(&room, "prev_batch");
    let before = bob.messages(&room_id, Some(&prev_batch), None, Direction::Back, 100).await;
    let all = bob.messages(&room_id, None, None, Direction::Back, 100).await;
    assert_eq!(event_ids(&before["chunk"]), event_ids(&all["chunk"])[2..]);

    assert_eq!(slide.next(&body).await["rooms"], json!({}));
    ann.send_text(&room_id, "1", "one").await;
    let room = slide.next(&body).await["rooms"][&room_id].clone();
    assert_eq!(texts(&room["timeline"]), ["one"]);
    for absent in ["initial", "name", "required_state", "limited", "joined_count", "avatar"] {
        assert!(room.get(absent).is_none(), "{absent} in {room}");
    }
    assert_eq!(room["num_live"], 1);
    let bumped = room["bump_stamp"].as_u64().expect("a number");
    // More than fit; and state is there though it is not in the timeline.
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "new" })).await.ok();
    ann.set_state(&room_id, "m.room.topic", "", &json!({ "topic": "not asked for" })).await.ok();
    for number in 2..5 {
        ann.send_text(&room_id, &number.to_string(), &number.to_string()).await;
    }
    let room = slide.next(&body).await["rooms"][&room_id].clone();
    assert_eq!(texts(&room["timeline"]), ["3", "4"]);
    assert_eq!((&room["limited"], &room["name"]), (&json!(true), &json!("new")));
    assert_eq!(each(&room["required_state"], "/content/name"), ["new"]);
    assert!(room["bump_stamp"].as_u64().expect("a number") > bumped);
    let prev_batch = string(&room, "prev_batch");
    let gap = bob.messages(&room_id, Some(&prev_batch), None, Direction::Back, 1).await;
    assert_eq!(texts(&gap["chunk"]), ["2"]);
    // A topic is no activity, and a name that is taken away is gone.
    ann.set_state(&room_id, "m.room.name", "", &json!({})).await.ok();
    let room = slide.next(&body).await["rooms"][&room_id].clone();
    assert!(room.get("bump_stamp").is_none() && room["name"].is_null(), "{room}");
    assert!(room.as_object().is_some_and(|room| room.contains_key("name")), "{room}");
    assert_eq!(each(&room["heroes"], "/user_id"), std::slice::from_ref(&ann.user_id));
}

#[tokio::test]
async fn a_lost_response_is_answered_again_and_older_positions_are_unknown() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = public_room(&ann, "x").await;
    let body = window(0, 9, 5);
    let mut slide = Slide::new(&ann);
    slide.next(&body).await;
    let first = slide.pos.clone();
    ann.send_text(&room_id, "1", "one").await;
    let timeless = |mut answer: Value| {
        for event in answer["rooms"][&room_id]["timeline"].as_array_mut().expect("a timeline") {
            event["unsigned"] = Value::Null;
        }
        answer["rooms"].clone()
    };
    let lost = slide.try_at(first.as_deref(), 0, &body).await.ok();
    let again = slide.try_at(first.as_deref(), 0, &body).await.ok();
    assert_eq!(texts(&lost["rooms"][&room_id]["timeline"]), ["one"]);
    assert_eq!(timeless(lost.clone()), timeless(again.clone()));
    // The one that arrived goes on; with it, the others are no more.
    ann.send_text(&room_id, "2", "two").await;
    let pos = string(&again, "pos");
    let next = slide.try_at(Some(&pos), 0, &body).await.ok();
    assert_eq!(texts(&next["rooms"][&room_id]["timeline"]), ["two"]);
    for old in [first.as_deref(), lost["pos"].as_str()] {
        slide.try_at(old, 0, &body).await.refused(400, "M_UNKNOWN_POS");
    }
    // What was asked for in between does not matter either.
    slide.try_at(Some(&pos), 0, &window(0, 0, 0)).await.ok();
    let next = slide.try_at(Some(&pos), 0, &body).await.ok();
    assert_eq!(texts(&next["rooms"][&room_id]["timeline"]), ["two"]);
    // Nothing that was never given out, and nothing of another device.
    let other = ann.another_device().await;
    for pos in ["garbage", "s0_1", "s0_1_1", "s9_1_1", &pos] {
        Slide::new(&other).try_at(Some(pos), 0, &body).await.refused(400, "M_UNKNOWN_POS");
    }
    // A `pos` is a token.
    let here = string(&next, "pos");
    ann.send_text(&room_id, "3", "three").await;
    let page = ann.messages(&room_id, Some(&here), None, Direction::Forward, 9).await;
    assert_eq!(texts(&page["chunk"]), ["three"]);
    ann.news(&here).await;
}

#[tokio::test]
async fn connections_of_other_names_know_nothing_of_each_other() {
    crate::harness::nodes::one_server!("a connection ends on its node alone");
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = public_room(&ann, "x").await;
    let bodies =
        ["a", "b"].map(|name| with(json!({ "x": window(0, 9, 1) }), "/x/conn_id", json!(name)));
    let mut slides = [Slide::new(&ann), Slide::new(&ann)];
    for (slide, body) in slides.iter_mut().zip(&bodies) {
        assert_eq!(rooms(&slide.next(&body["x"]).await), std::slice::from_ref(&room_id));
    }
    ann.send_text(&room_id, "1", "one").await;
    for (slide, body) in slides.iter_mut().zip(&bodies) {
        let answer = slide.next(&body["x"]).await;
        assert_eq!(texts(&answer["rooms"][&room_id]["timeline"]), ["one"]);
    }
    let pos = slides[0].pos.as_deref();
    slides[0].try_at(pos, 0, &bodies[1]["x"]).await.refused(400, "M_UNKNOWN_POS");
    // Without a `pos`, a connection starts over.
    let mut fresh = Slide::new(&ann);
    assert_eq!(fresh.next(&bodies[0]["x"]).await["rooms"][&room_id]["initial"], true);
    slides[0].try_at(pos, 0, &bodies[0]["x"]).await.refused(400, "M_UNKNOWN_POS");
    slides[1].next(&bodies[1]["x"]).await;
}

#[tokio::test]
async fn required_state_supports_wildcards_and_me() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = public_room(&ann, "x").await;
    bob.join(&room_id).await.ok();
    for key in ["a", "b"] {
        ann.set_state(&room_id, "org.example.x", key, &json!({ "k": key })).await.ok();
    }
    let asked = |pairs: Value| with(window(0, 9, 0), "/lists/all/required_state", pairs);
    let everything = ["m.room.create", "m.room.power_levels", "m.room.join_rules", "m.room.name"];
    for (pairs, expected) in [
        (json!([]), vec![]),
        (json!([["org.example.x", "a"]]), vec!["org.example.x a"]),
        (json!([["org.example.x", "*"]]), vec!["org.example.x a", "org.example.x b"]),
        (json!([["*", "b"]]), vec!["org.example.x b"]),
        (json!([["m.room.member", "$ME"]]), vec!["m.room.member @bob"]),
        (json!([["m.room.member", "*"]]), vec!["m.room.member @ann", "m.room.member @bob"]),
    ] {
        let answer = Slide::new(&bob).next(&asked(pairs.clone())).await;
        let state = &answer["rooms"][&room_id]["required_state"];
        let state = if state.is_null() { &json!([]) } else { state };
        let name = |key: &str| key.split('-').next().unwrap_or_default().to_owned();
        let keys = each(state, "/type").into_iter().zip(each(state, "/state_key"));
        let keys = sorted(keys.map(|(of_type, key)| format!("{of_type} {}", name(&key))).collect());
        assert_eq!(keys, expected, "{pairs}");
    }
    for (pairs, members) in [
        (json!([["*", "*"]]), 2),
        (json!([["*", "*"], ["m.room.member", "$LAZY"]]), 0),
        (json!([["*", "*"], ["m.room.member", "$LAZY"], ["m.room.member", "$ME"]]), 1),
    ] {
        let answer = Slide::new(&bob).next(&asked(pairs.clone())).await;
        let types = each(&answer["rooms"][&room_id]["required_state"], "/type");
        assert!(everything.iter().all(|of_type| types.contains(&(*of_type).to_owned())));
        let shown = types.iter().filter(|of_type| **of_type == "m.room.member").count();
        assert_eq!(shown, members, "{pairs}");
    }
}

#[tokio::test]
async fn lazily_loaded_members_are_those_whom_the_timeline_needs_each_once() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let (cas, dan) = (user(&server, "cas").await, user(&server, "dan").await);
    let room_id = public_room(&ann, "x").await;
    for user in [&bob, &cas, &dan] {
        user.join(&room_id).await.ok();
    }
    ann.send_text(&room_id, "0", "0").await;
    let body =
        with(window(0, 9, 1), "/lists/all/required_state", json!([["m.room.member", "$LAZY"]]));
    let mut slide = Slide::new(&bob);
    let state = |answer: &Value| {
        let state = answer["rooms"][&room_id]["required_state"].clone();
        if state.is_null() { Vec::new() } else { each(&state, "/state_key") }
    };
    assert_eq!(state(&slide.next(&body).await), std::slice::from_ref(&ann.user_id));
    ann.send_text(&room_id, "1", "1").await;
    assert_eq!(state(&slide.next(&body).await), [""; 0], "bob has ann");
    cas.send_text(&room_id, "1", "1").await;
    assert_eq!(state(&slide.next(&body).await), std::slice::from_ref(&cas.user_id));
    // Without a gap every change of a member is told, and so is whom a member event is about.
    ann.act(&room_id, "kick", Some(&dan)).await.ok();
    assert_eq!(state(&slide.next(&body).await), std::slice::from_ref(&dan.user_id));
    // With a gap, only those whom the timeline needs; even if they were told before.
    dan.join(&room_id).await.ok();
    cas.send_text(&room_id, "2", "2").await;
    assert_eq!(state(&slide.next(&body).await), std::slice::from_ref(&cas.user_id));
    // Those of a lost response are told again.
    dan.send_text(&room_id, "1", "1").await;
    let pos = slide.pos.clone();
    let lost = slide.try_at(pos.as_deref(), 0, &body).await.ok();
    assert_eq!(state(&lost), std::slice::from_ref(&dan.user_id));
    assert_eq!(state(&slide.next(&body).await), std::slice::from_ref(&dan.user_id));
}

#[tokio::test]
async fn more_timeline_and_more_state_are_sent_as_soon_as_they_are_asked_for() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = public_room(&ann, "x").await;
    for number in 1..=6 {
        ann.send_text(&room_id, &number.to_string(), &number.to_string()).await;
    }
    let mut slide = Slide::new(&ann);
    assert_eq!(texts(&slide.next(&window(0, 9, 1)).await["rooms"][&room_id]["timeline"]), ["6"]);
    ann.send_text(&room_id, "7", "7").await;
    slide.next(&window(0, 9, 1)).await;
    // 6 and 7 are there already.
    assert_eq!(slide.next(&window(0, 9, 2)).await["rooms"], json!({}));
    let subscribed = |limit: u64, state: Value| {
        let room = json!({ "timeline_limit": limit, "required_state": state });
        with(window(0, 9, 1), "/room_subscriptions", json!({ &room_id: room }))
    };
    let state = json!([["m.room.name", ""], ["m.room.join_rules", ""]]);
    let room = slide.next(&subscribed(4, state.clone())).await["rooms"][&room_id].clone();
    assert_eq!(texts(&room["timeline"]), ["4", "5", "6", "7"]);
    assert_eq!(room["unstable_expanded_timeline"], true);
    assert_eq!((&room["num_live"], room.get("initial")), (&json!(0), None));
    // Only what the list did not ask for.
    assert_eq!(each(&room["required_state"], "/type"), ["m.room.join_rules"]);
    // Less and the same again: nothing new.
    assert_eq!(slide.next(&window(0, 9, 1)).await["rooms"], json!({}));
    let room = slide.next(&subscribed(4, state.clone())).await["rooms"][&room_id].clone();
    assert!(room.get("timeline").is_none(), "{room}");
    // What changed while it was not asked for is not missed.
    slide.next(&window(0, 9, 1)).await;
    ann.set_state(&room_id, "m.room.join_rules", "", &json!({ "join_rule": "invite" })).await.ok();
    let room = slide.next(&window(0, 9, 1)).await["rooms"][&room_id].clone();
    assert!(room.get("required_state").is_none(), "{room}");
    let room = slide.next(&subscribed(4, state)).await["rooms"][&room_id].clone();
    assert_eq!(each(&room["required_state"], "/content/join_rule"), ["invite"]);
}

#[tokio::test]
async fn filters_choose_the_rooms_of_a_list() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let plain = public_room(&ann, "plain").await;
    let encrypted = public_room(&ann, "encrypted").await;
    let content = json!({ "algorithm": "m.megolm.v1.aes-sha2" });
    ann.set_state(&encrypted, "m.room.encryption", "", &content).await.ok();
    let space = ann.create_room(json!({ "creation_content": { "type": "m.space" } })).await;
    let child = json!({ "via": ["localhost"] });
    ann.set_state(&space, "m.space.child", &plain, &child).await.ok();
    let direct = public_room(&ann, "direct").await;
    set_account_data(&ann, None, "m.direct", json!({ &bob.user_id: [direct] })).await;
    let tags = json!({ "tags": { "m.favourite": {} } });
    set_account_data(&ann, Some(&plain), "m.tag", tags).await;
    let invited = bob.create_room(json!({ "invite": [ann.user_id] })).await;
    let all = [&plain, &encrypted, &space, &direct, &invited];
    let but = |left_out: &[&String]| -> Vec<String> {
        let kept = all.into_iter().filter(|room_id| !left_out.contains(room_id));
        sorted(kept.cloned().collect())
    };
    for (filters, expected) in [
        (json!({}), but(&[])),
        (json!({ "is_dm": true }), vec![direct.clone()]),
        (json!({ "is_dm": false }), but(&[&direct])),
        (json!({ "is_encrypted": true }), vec![encrypted.clone()]),
        (json!({ "is_encrypted": false }), but(&[&encrypted])),
        (json!({ "is_invite": true }), vec![invited.clone()]),
        (json!({ "is_invite": false }), but(&[&invited])),
        (json!({ "room_types": ["m.space"] }), vec![space.clone()]),
        (json!({ "room_types": [null] }), but(&[&space])),
        (json!({ "not_room_types": ["m.space"] }), but(&[&space])),
        (json!({ "room_types": ["m.space", null], "not_room_types": [null] }), vec![space.clone()]),
        (json!({ "spaces": [space] }), vec![plain.clone()]),
        (json!({ "spaces": ["!nowhere:localhost"] }), vec![]),
        (json!({ "tags": ["m.favourite", "x"] }), vec![plain.clone()]),
        (json!({ "not_tags": ["m.favourite"] }), but(&[&plain])),
        (json!({ "tags": ["m.favourite"], "not_tags": ["m.favourite"] }), vec![]),
        (json!({ "is_dm": true, "is_encrypted": true }), vec![]),
    ] {
        let body = with(window(0, 99, 0), "/lists/all/filters", filters.clone());
        let answer = Slide::new(&ann).next(&body).await;
        assert_eq!(rooms(&answer), expected, "{filters}");
        assert_eq!(answer["lists"]["all"]["count"], expected.len(), "{filters}");
    }
    // A list follows what its filter asks about.
    let filters = [
        json!({ "is_dm": true }),
        json!({ "is_encrypted": true }),
        json!({ "spaces": [space] }),
        json!({ "tags": ["x"] }),
        json!({ "is_invite": true }),
    ];
    let mut slides: Vec<_> = filters
        .into_iter()
        .map(|filters| (Slide::new(&ann), with(window(0, 99, 0), "/lists/all/filters", filters)))
        .enumerate()
        .map(|(n, (slide, body))| {
            (slide, with(json!({ "x": body }), "/x/conn_id", json!(n.to_string())))
        })
        .collect();
    for (slide, body) in &mut slides {
        slide.next(&body["x"]).await;
    }
    set_account_data(&ann, None, "m.direct", json!({ &bob.user_id: [plain] })).await;
    ann.set_state(&plain, "m.room.encryption", "", &content).await.ok();
    ann.set_state(&space, "m.space.child", &plain, &json!({})).await.ok();
    ann.set_state(&space, "m.space.child", &direct, &child).await.ok();
    set_account_data(&ann, Some(&direct), "m.tag", json!({ "tags": { "x": {} } })).await;
    ann.join(&invited).await.ok();
    let expected = [vec![&plain], vec![&plain], vec![&direct], vec![&direct], vec![]];
    let counts = [1, 2, 1, 1, 0];
    for ((slide, body), (expected, count)) in
        slides.iter_mut().zip(expected.into_iter().zip(counts))
    {
        let answer = slide.next(&body["x"]).await;
        assert!(rooms(&answer).iter().eq(expected), "{body}: {answer}");
        assert_eq!(answer["lists"]["all"]["count"], count, "{body}");
    }
}

#[tokio::test]
async fn a_direct_chat_is_named_so_and_told_when_that_changes() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let [one, two] = [public_room(&ann, "one").await, public_room(&ann, "two").await];
    set_account_data(&ann, None, "m.direct", json!({ &bob.user_id: [one] })).await;
    let mut slide = Slide::new(&ann);
    let answer = slide.next(&window(0, 9, 1)).await;
    assert_eq!(answer["rooms"][&one]["is_dm"], true);
    assert!(answer["rooms"][&two].get("is_dm").is_none());
    set_account_data(&ann, None, "m.direct", json!({ &bob.user_id: [two] })).await;
    let answer = slide.next(&window(0, 9, 1)).await;
    assert_eq!(answer["rooms"][&one]["is_dm"], false);
    assert_eq!(answer["rooms"][&two]["is_dm"], true);
}

#[tokio::test]
async fn a_subscribed_room_is_sent_wherever_it_is_in_the_lists_if_it_may_be_seen() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let old = public_room(&ann, "old").await;
    public_room(&ann, "new").await;
    let foreign = bob.create_room(json!({})).await;
    let room = json!({ "timeline_limit": 1, "required_state": [] });
    let subscriptions = json!({ &old: room, &foreign: room, "!nowhere:localhost": room });
    let body = json!({ "room_subscriptions": subscriptions });
    let mut slide = Slide::new(&ann);
    assert_eq!(rooms(&slide.next(&body).await), std::slice::from_ref(&old));
    ann.send_text(&old, "1", "one").await;
    let answer = slide.next(&body).await;
    assert_eq!(texts(&answer["rooms"][&old]["timeline"]), ["one"]);
    // One that may be seen later comes then.
    bob.act(&foreign, "invite", Some(&ann)).await.ok();
    let answer = slide.next(&body).await;
    assert!(answer["rooms"][&foreign]["invite_state"].is_array(), "{answer}");
    ann.join(&foreign).await.ok();
    let answer = slide.next(&body).await;
    assert_eq!(answer["rooms"][&foreign]["initial"], true);
    assert!(answer["rooms"][&foreign].get("invite_state").is_none());
    // Unsubscribed, it goes on without.
    ann.send_text(&old, "2", "two").await;
    assert_eq!(rooms(&slide.next(&json!({})).await), [""; 0]);
    ann.send_text(&old, "3", "three").await;
    let answer = slide.next(&body).await;
    assert_eq!(texts(&answer["rooms"][&old]["timeline"]), ["three"]);
    assert_eq!(answer["rooms"][&old]["limited"], true);
}

#[tokio::test]
async fn an_invite_is_stripped_and_its_end_is_told_once() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let body = with(window(0, 9, 5), "/lists/all/required_state", json!([]));
    let mut slide = Slide::new(&bob);
    slide.next(&body).await;
    let room_id = ann.create_room(json!({ "name": "secret", "preset": "private_chat" })).await;
    ann.send_text(&room_id, "1", "hidden").await;
    ann.act(&room_id, "invite", Some(&bob)).await.ok();
    ann.send_text(&room_id, "2", "hidden").await;
    let room = slide.next(&body).await["rooms"][&room_id].clone();
    assert!(each(&room["invite_state"], "/type").contains(&"m.room.name".to_owned()));
    for absent in ["timeline", "required_state", "joined_count", "heroes"] {
        assert!(room.get(absent).is_none(), "{absent} in {room}");
    }
    ann.send_text(&room_id, "3", "hidden").await;
    assert_eq!(slide.next(&body).await["rooms"], json!({}));
    // It is rejected on another device.
    bob.act(&room_id, "leave", None).await.ok();
    let answer = slide.next(&body).await;
    let room = &answer["rooms"][&room_id];
    assert_eq!(each(&room["required_state"], "/content/membership"), ["leave"]);
    assert_eq!(each(&room["timeline"], "/content/membership"), ["leave"]);
    assert_eq!(answer["lists"]["all"]["count"], 0);
    assert_eq!(slide.next(&body).await["rooms"], json!({}));
    // Nobody else is told of it, and a new invite is one.
    assert_eq!(Slide::new(&bob.another_device().await).next(&body).await["rooms"], json!({}));
    ann.act(&room_id, "invite", Some(&bob)).await.ok();
    let room = slide.next(&body).await["rooms"][&room_id].clone();
    assert!(room["invite_state"].is_array() && room["initial"] == true, "{room}");
    bob.join(&room_id).await.ok();
    let room = slide.next(&body).await["rooms"][&room_id].clone();
    assert_eq!((&room["initial"], room.get("invite_state")), (&json!(true), None));
}

#[tokio::test]
async fn an_invite_by_an_ignored_user_is_not_told() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let path = |event_type| format!("/user/{}/account_data/{event_type}", encode(&bob.user_id));
    let ignore = async |list: Value| {
        bob.put(&path("m.ignored_user_list"), json!({ "ignored_users": list })).await.ok();
    };
    ignore(json!({ &ann.user_id: {} })).await;
    let room_id = ann.create_room(json!({ "invite": [bob.user_id] })).await;
    let body = with(
        window(0, 9, 1),
        "/room_subscriptions",
        json!({ &room_id: { "timeline_limit": 1, "required_state": [] } }),
    );
    let mut slide = Slide::new(&bob);
    let answer = slide.next(&body).await;
    assert_eq!((&answer["lists"]["all"]["count"], rooms(&answer).len()), (&json!(0), 0));
    let another = ann.create_room(json!({ "invite": [bob.user_id] })).await;
    assert_eq!(rooms(&slide.next(&body).await).len(), 0);
    // Once they take such invites, they learn of those that are there.
    ignore(json!({})).await;
    let answer = slide.next(&body).await;
    assert_eq!(sorted(rooms(&answer)), sorted(vec![room_id, another]));
    bob.put(&path("m.invite_permission_config"), json!({ "default_action": "block" })).await.ok();
    let answer = slide.next(&body).await;
    assert_eq!((&answer["lists"]["all"]["count"], rooms(&answer).len()), (&json!(0), 0));
}

#[tokio::test]
async fn a_knock_is_stripped_like_an_invite() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let rule = json!({ "type": "m.room.join_rules", "content": { "join_rule": "knock" } });
    let room_id = ann.create_room(json!({ "initial_state": [rule] })).await;
    bob.post(&format!("/knock/{}", encode(&room_id)), json!({})).await.ok();
    let room = Slide::new(&bob).next(&window(0, 9, 5)).await["rooms"][&room_id].clone();
    assert_eq!(
        each(&room["invite_state"], "/content/membership").last().map(String::as_str),
        Some("knock")
    );
    assert!(room.get("timeline").is_none());
}

#[tokio::test]
async fn the_end_of_a_room_is_sent_once_with_everything_up_to_it() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    for action in ["leave", "kick", "ban"] {
        let room_id = public_room(&ann, action).await;
        bob.join(&room_id).await.ok();
        let body = with(window(0, 0, 5), "/conn_id", json!(action));
        let mut slide = Slide::new(&bob);
        assert_eq!(rooms(&slide.next(&body).await), std::slice::from_ref(&room_id));
        // It is told even if the room has gone out of the window meanwhile.
        let other = public_room(&bob, "other").await;
        slide.next(&body).await;
        ann.send_text(&room_id, "1", "before").await;
        match action {
            "leave" => bob.act(&room_id, "leave", None).await.ok(),
            _ => ann.act(&room_id, action, Some(&bob)).await.ok(),
        };
        ann.send_text(&room_id, "2", "after").await;
        bob.send_text(&other, "1", "to the top").await;
        let answer = slide.next(&body).await;
        let room = &answer["rooms"][&room_id];
        let membership = if action == "ban" { "ban" } else { "leave" };
        assert_eq!(each(&room["required_state"], "/content/membership"), [membership], "{action}");
        assert_eq!(texts(&room["timeline"]), ["before"], "{action}");
        ann.send_text(&room_id, "3", "after").await;
        assert_eq!(slide.next(&body).await["rooms"], json!({}), "{action}");
        // A room that one was thrown out of stays in the list until it is forgotten.
        let stays = action != "leave";
        let fresh = || Slide::new(&bob);
        let all = with(window(0, 99, 9), "/conn_id", json!("fresh"));
        let mut first = fresh();
        let answer = first.next(&all).await;
        assert_eq!(rooms(&answer).contains(&room_id), stays, "{action}");
        if stays {
            let room = &answer["rooms"][&room_id];
            assert!(!texts(&room["timeline"]).contains(&"after".to_owned()), "{room}");
            assert_eq!(each(&room["required_state"], "/type"), ["m.room.name", "m.room.member"]);
        }
        bob.act(&room_id, "forget", None).await.ok();
        assert_eq!(first.next(&all).await["rooms"], json!({}), "{action}");
        assert!(!rooms(&fresh().next(&all).await).contains(&room_id), "{action}");
        if action == "kick" {
            bob.join(&room_id).await.ok();
            assert_eq!(slide.next(&body).await["rooms"][&room_id]["initial"], true);
        }
        bob.act(&other, "leave", None).await.ok();
        bob.act(&room_id, "leave", None).await;
    }
}

#[tokio::test]
async fn what_was_said_out_of_the_window_is_there_when_the_room_is_back_in_it() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let [one, two] = [public_room(&ann, "one").await, public_room(&ann, "two").await];
    let body = window(0, 0, 10);
    let mut slide = Slide::new(&ann);
    assert_eq!(rooms(&slide.next(&body).await), std::slice::from_ref(&two));
    ann.send_text(&one, "1", "1").await;
    slide.next(&body).await;
    // Both change, and only one of them is in the window afterwards.
    ann.send_text(&two, "1", "not yet").await;
    ann.set_state(&two, "m.room.name", "", &json!({ "name": "changed" })).await.ok();
    ann.send_text(&one, "2", "2").await;
    let answer = slide.next(&body).await;
    assert_eq!(rooms(&answer), std::slice::from_ref(&one));
    assert_eq!(slide.next(&body).await["rooms"], json!({}));
    ann.send_text(&two, "2", "now").await;
    let room = slide.next(&body).await["rooms"][&two].clone();
    assert_eq!(texts(&room["timeline"]), ["not yet", "now"]);
    assert_eq!(each(&room["required_state"], "/content/name"), ["changed"]);
    assert!(room.get("initial").is_none() && room.get("limited").is_none(), "{room}");
    assert_eq!(room["name"], "changed");
}

#[tokio::test]
async fn a_waiting_request_is_answered_by_what_is_in_its_windows_alone() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let old = public_room(&ann, "old").await;
    let room_id = public_room(&ann, "new").await;
    for room_id in [&old, &room_id] {
        bob.join(room_id).await.ok();
    }
    // Not the room at the top, which is where a message brings its room.
    let mut body = window(0, 0, 1);
    body["lists"]["all"]["filters"] = json!({ "is_encrypted": false });
    ann.set_state(&old, "m.room.encryption", "", &json!({ "algorithm": "x" })).await.ok();
    let mut slide = Slide::new(&bob);
    assert_eq!(rooms(&slide.next(&body).await), std::slice::from_ref(&room_id));
    let waiting = slide.wait(&body).await;
    ann.send_text(&old, "1", "elsewhere").await;
    set_account_data(&bob, None, "org.example.x", json!({ "x": 1 })).await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    ann.send_text(&room_id, "1", "here").await;
    let answer = finished(waiting).await;
    assert_eq!(texts(&answer["rooms"][&room_id]["timeline"]), ["here"]);
    slide.pos = Some(string(&answer, "pos"));
    // A request that times out gives a position from which to go on.
    let began = Instant::now();
    let answer = slide.try_at(slide.pos.as_deref(), 300, &body).await.ok();
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(answer["rooms"], json!({}));
    slide.pos = Some(string(&answer, "pos"));
    // It is answered at once where there is something to be sent that was asked for now.
    let began = Instant::now();
    let answer = slide.try_at(slide.pos.as_deref(), 20_000, &window(0, 9, 1)).await.ok();
    assert_eq!(rooms(&answer), [old]);
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn account_data_is_sent_where_its_extension_is_asked_for() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let [one, two] = [public_room(&ann, "one").await, public_room(&ann, "two").await];
    set_account_data(&ann, None, "org.example.x", json!({ "n": 1 })).await;
    for room_id in [&one, &two] {
        set_account_data(&ann, Some(room_id), "org.example.r", json!({ "n": 1 })).await;
    }
    let mut body = window(0, 9, 0);
    body["room_subscriptions"] = json!({ &one: { "timeline_limit": 0, "required_state": [] } });
    let mut slide = Slide::new(&ann);
    let answer = slide.next(&body).await;
    assert_eq!(answer["extensions"], json!({}), "it was not asked for");
    // Enabled later, it begins with what there is; rooms are those of the lists and subscriptions
    // named.
    body["extensions"] =
        json!({ "account_data": { "enabled": true, "lists": [], "rooms": ["*"] } });
    let data = slide.next(&body).await["extensions"]["account_data"].clone();
    assert_eq!(sorted(each(&data["global"], "/type")), ["m.push_rules", "org.example.x"]);
    assert_eq!(rooms(&data), std::slice::from_ref(&one));
    let waiting = slide.wait(&body).await;
    set_account_data(&ann, Some(&two), "org.example.r", json!({ "n": 2 })).await;
    set_account_data(&ann, Some(&one), "org.example.r", json!({ "n": 3 })).await;
    let answer = finished(waiting).await;
    slide.pos = Some(string(&answer, "pos"));
    let data = &answer["extensions"]["account_data"];
    assert_eq!(each(&data["global"], "/type"), [""; 0]);
    assert_eq!(data["rooms"][&one][0]["content"]["n"], 3);
    // For all lists: the other room comes with all that it has.
    body["extensions"]["account_data"] = json!({ "enabled": true });
    let data = slide.next(&body).await["extensions"]["account_data"].clone();
    assert_eq!(rooms(&data), std::slice::from_ref(&two));
    assert_eq!(data["rooms"][&two][0]["content"]["n"], 2);
    // What changes while it is off is there when it is on again.
    body["extensions"] = json!({});
    set_account_data(&ann, None, "org.example.x", json!({ "n": 2 })).await;
    set_account_data(&ann, Some(&two), "org.example.r", json!({ "n": 4 })).await;
    assert_eq!(slide.next(&body).await["extensions"], json!({}));
    body["extensions"]["account_data"] = json!({ "enabled": true });
    let data = slide.next(&body).await["extensions"]["account_data"].clone();
    assert_eq!(each(&data["global"], "/type"), ["org.example.x"]);
    assert_eq!(rooms(&data), std::slice::from_ref(&two));
    assert_eq!(data["rooms"][&two][0]["content"]["n"], 4);
}

#[tokio::test]
async fn receipts_and_typing_are_sent_where_their_extensions_are_asked_for() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let [one, two] = [public_room(&ann, "one").await, public_room(&ann, "two").await];
    let mut events = Vec::new();
    for room_id in [&one, &two] {
        bob.join(room_id).await.ok();
        events.push(ann.send_text(room_id, "1", "x").await);
    }
    let read = async |user: &User, of: usize, kind: &str| {
        let room_id = [&one, &two][of];
        let path = format!("/rooms/{}/receipt/{kind}/{}", encode(room_id), encode(&events[of]));
        user.post(&path, json!({})).await.ok();
    };
    let typing = async |room_id: &str, typing: bool| {
        let path = format!("/rooms/{}/typing/{}", encode(room_id), encode(&ann.user_id));
        ann.put(&path, json!({ "typing": typing, "timeout": 20_000 })).await.ok();
    };
    read(&ann, 0, "m.read").await;
    let mut body = window(0, 9, 0);
    body["lists"]["two"] = json!({ "ranges": [[0, 0]], "timeline_limit": 0 });
    body["extensions"] = json!({
        "receipts": { "enabled": true },
        "typing": { "enabled": true, "lists": ["two"] },
    });
    let mut slide = Slide::new(&bob);
    let answer = slide.next(&body).await;
    let receipts = &answer["extensions"]["receipts"]["rooms"];
    let receipt = &receipts[&one]["content"][&events[0]]["m.read"][&ann.user_id];
    assert!(receipt["ts"].is_u64(), "{receipts}");
    assert_eq!(answer["extensions"]["typing"]["rooms"], json!({}));
    // Another's private receipt is not shown, one's own is; and the room is not in `rooms` for it.
    let waiting = slide.wait(&body).await;
    read(&ann, 1, "m.read.private").await;
    read(&bob, 1, "m.read.private").await;
    let answer = finished(waiting).await;
    slide.pos = Some(string(&answer, "pos"));
    let receipts = &answer["extensions"]["receipts"]["rooms"][&two];
    assert_eq!(receipts["type"], "m.receipt");
    let readers = receipts["content"][&events[1]]["m.read.private"].as_object().expect("readers");
    assert_eq!(readers.keys().collect::<Vec<_>>(), [&bob.user_id]);
    // The room itself has only fewer unread messages.
    assert_eq!(answer["rooms"][&two]["notification_count"], 0);
    assert!(answer["rooms"][&two].get("timeline").is_none(), "{answer}");
    // Typing in the room that is in the list named, and not in the other.
    typing(&one, true).await;
    let answer = slide.next(&body).await;
    assert_eq!(answer["extensions"]["typing"]["rooms"], json!({}));
    let waiting = slide.wait(&body).await;
    typing(&two, true).await;
    let answer = finished(waiting).await;
    slide.pos = Some(string(&answer, "pos"));
    let event = &answer["extensions"]["typing"]["rooms"][&two];
    assert_eq!(event["content"]["user_ids"], json!([ann.user_id]));
    typing(&two, false).await;
    let answer = slide.next(&body).await;
    let event = &answer["extensions"]["typing"]["rooms"][&two];
    assert_eq!(event["content"]["user_ids"], json!([]));
}

#[tokio::test]
async fn messages_to_the_device_and_keys_are_answered_as_none() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let body = json!({ "txn_id": "t1", "extensions": {
        "to_device": { "enabled": true }, "e2ee": { "enabled": true },
    } });
    let answer = Slide::new(&ann).next(&body).await;
    assert_eq!(answer["txn_id"], "t1");
    assert_eq!(answer["extensions"]["to_device"]["events"], json!([]));
    string(&answer["extensions"]["to_device"], "next_batch");
    assert_eq!(answer["extensions"]["e2ee"]["device_one_time_keys_count"], json!({}));
}

#[tokio::test]
async fn history_that_may_not_be_seen_is_not_in_a_timeline() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let visibility = json!({ "type": "m.room.history_visibility", "content": { "history_visibility": "joined" } });
    let options = json!({ "preset": "public_chat", "initial_state": [visibility] });
    let room_id = ann.create_room(options).await;
    ann.send_text(&room_id, "1", "before").await;
    bob.join(&room_id).await.ok();
    ann.send_text(&room_id, "2", "after").await;
    let room = Slide::new(&bob).next(&window(0, 9, 50)).await["rooms"][&room_id].clone();
    assert_eq!(texts(&room["timeline"]), ["after"]);
}

#[tokio::test]
async fn what_means_nothing_or_is_too_much_is_refused() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let slide = Slide::new(&ann);
    let room = json!({ "timeline_limit": 1, "required_state": [] });
    let lists: Value =
        (0..101).map(|n| (n.to_string(), window(0, 0, 1)["lists"]["all"].clone())).collect();
    let many: Value = (0..1001).map(|n| (format!("!{n}:localhost"), room.clone())).collect();
    let pairs: Value = (0..201).map(|n| json!(["x", n.to_string()])).collect();
    for (body, code) in [
        (window(3, 2, 1), "M_INVALID_PARAM"),
        (json!({ "lists": lists }), "M_INVALID_PARAM"),
        (json!({ "room_subscriptions": many }), "M_INVALID_PARAM"),
        (with(window(0, 1, 1), "/lists/all/required_state", pairs), "M_INVALID_PARAM"),
        (json!({ "conn_id": "x".repeat(256) }), "M_INVALID_PARAM"),
        (json!({ "lists": { "all": { "ranges": [[0, -1]], "timeline_limit": 1 } } }), "M_BAD_JSON"),
        (json!({ "lists": { "all": { "ranges": [[0, 1]] } } }), "M_BAD_JSON"),
        (json!({ "lists": [] }), "M_BAD_JSON"),
        (json!({ "room_subscriptions": { "not a room": room } }), "M_BAD_JSON"),
    ] {
        slide.try_at(None, 0, &body).await.refused(400, code);
    }
    let answer = ann.http.request("POST", PATH, None, Some(&json!({}))).await;
    answer.refused(401, "M_MISSING_TOKEN");
    slide.next_of_empty().await;
}

impl Slide {
    /// An empty request is a request.
    async fn next_of_empty(&self) {
        let answer = self.try_at(None, 0, &json!({})).await.ok();
        assert_eq!((&answer["lists"], &answer["rooms"]), (&json!({}), &json!({})));
    }
}

#[tokio::test]
async fn clients_find_it_and_both_prefixes_serve_it() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let versions = ann.http.request("GET", "/_matrix/client/versions", None, None).await.ok();
    assert_eq!(versions["unstable_features"]["org.matrix.simplified_msc3575"], true);
    let path = PATH.replace("/_matrix/", "/_svc/");
    let token = Some(ann.access_token.as_str());
    let answer = ann.http.request("POST", &path, token, Some(&json!({}))).await.ok();
    // The kinds of sync share their positions.
    ann.news(&string(&answer, "pos")).await;
    let since = next_batch(&ann.sync(None, 0, None).await);
    Slide::new(&ann).try_at(Some(&since), 0, &json!({})).await.refused(400, "M_UNKNOWN_POS");
}
