//! Delayed events (MSC4140).

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{event_ids, server, texts, user};
use crate::harness::{Answer, Direction, TestServer, User, encode, until_ok};

const PREFIX: &str = "/_matrix/client/unstable/org.matrix.msc4140";
/// Longer than any test.
const HOUR_MS: u64 = 3_600_000;

impl User {
    /// A request under the proposal's prefix, with or without this user's token.
    async fn delayed(&self, method: &str, path: &str, body: Option<&Value>, token: bool) -> Answer {
        let token = token.then_some(self.access_token.as_str());
        self.http.request(method, &format!("{PREFIX}{path}"), token, body).await
    }

    /// Schedules a text through the endpoint of its own.
    async fn schedule(&self, room_id: &str, txn_id: &str, delay_ms: u64, text: &str) -> String {
        let path = format!("/rooms/{}/delayed_event/m.room.message/{txn_id}", encode(room_id));
        let content = json!({ "msgtype": "m.text", "body": text });
        let body = json!({ "delay": delay_ms, "content": content });
        self.delayed("PUT", &path, Some(&body), true).await.ok_string("delay_id")
    }

    /// Schedules a state event by a delay in the query.
    async fn schedule_state(
        &self,
        room_id: &str,
        path: &str,
        delay_ms: u64,
        body: Value,
    ) -> Answer {
        let path =
            format!("/rooms/{}/state/{path}?org.matrix.msc4140.delay={delay_ms}", encode(room_id));
        self.put(&path, body).await
    }

    /// Acts as a service that knows the id alone.
    async fn act_on(&self, delay_id: &str, action: &str) -> Answer {
        let path = format!("/delayed_events/{}/{action}", encode(delay_id));
        self.delayed("POST", &path, Some(&json!({})), false).await
    }

    async fn delayed_event(&self, delay_id: &str) -> Value {
        let path = format!("/delayed_events/{}", encode(delay_id));
        self.delayed("GET", &path, None, true).await.ok()
    }

    /// The ids on a list, and the tokens of what is before and after.
    async fn list(&self, query: &str) -> (Vec<String>, Value) {
        let list = self.delayed("GET", &format!("/delayed_events{query}"), None, true).await.ok();
        (super::each(&list["delayed_events"], "/delay_id"), list)
    }

    /// Waits until a delayed event is finished; gives it.
    async fn wait_until_finished(&self, delay_id: &str) -> Value {
        until_ok("the delayed event is finished", async || {
            let event = self.delayed_event(delay_id).await;
            if event["origin_server_ts"].is_u64() { Ok(event) } else { Err(event) }
        })
        .await
    }

    async fn all_texts(&self, room_id: &str) -> Vec<String> {
        let messages = self.messages(room_id, None, None, Direction::Forward, 1000).await;
        texts(&messages["chunk"])
    }
}

#[tokio::test]
async fn the_server_says_that_it_has_delayed_events() {
    let server = server().await;
    let answer = server.http().request("GET", "/_matrix/client/versions", None, None).await.ok();
    assert_eq!(answer["unstable_features"]["org.matrix.msc4140"], true, "{answer}");
}

#[tokio::test]
async fn a_message_is_sent_when_its_time_has_come_and_not_before() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let (of_ann, of_bob) = (ann.here().await, bob.here().await);
    // The form with the delay in the query.
    let path =
        format!("/rooms/{}/send/m.room.message/1?org.matrix.msc4140.delay=1200", encode(&room_id));
    let began = Instant::now();
    let content = json!({ "msgtype": "m.text", "body": "later" });
    let delay_id = ann.put(&path, content.clone()).await.ok_string("delay_id");
    let event = ann.delayed_event(&delay_id).await;
    let since = event["running_since"].as_u64().unwrap_or_default();
    let expected = json!({
        "delay_id": delay_id, "room_id": room_id, "type": "m.room.message", "delay": 1200,
        "running_since": since, "content": content,
    });
    assert_eq!(event, expected);
    bob.delayed("GET", &format!("/delayed_events/{delay_id}"), None, true)
        .await
        .refused(404, "M_NOT_FOUND");
    let sync = bob.sync(Some(&of_bob), 30_000, None).await;
    assert!(began.elapsed() >= Duration::from_millis(1200));
    let timeline = &sync["rooms"]["join"][&room_id]["timeline"]["events"];
    assert_eq!(texts(timeline), ["later"], "{sync}");
    let sent = &timeline[0];
    assert!(sent["origin_server_ts"].as_u64().is_some_and(|ts| ts >= since + 1200), "{sent}");
    assert_eq!(sent["sender"], json!(ann.user_id));
    let unsigned = |event: &Value| event["unsigned"]["org.matrix.msc4140.delay_id"].clone();
    assert_eq!(unsigned(sent), Value::Null);
    let own = ann.news(&of_ann).await["rooms"]["join"][&room_id]["timeline"]["events"].clone();
    assert_eq!(unsigned(&own[0]), json!(delay_id));
    let event = ann.delayed_event(&delay_id).await;
    assert_eq!(event["event_id"], sent["event_id"]);
    assert!(event["origin_server_ts"].as_u64().is_some_and(|ts| ts >= since + 1200), "{event}");
    assert_eq!(event.get("error"), None);
}

#[tokio::test]
async fn a_transaction_schedules_once() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let first = ann.schedule(&room_id, "1", HOUR_MS, "x").await;
    assert_eq!(ann.schedule(&room_id, "1", HOUR_MS, "x").await, first);
    assert_ne!(ann.schedule(&room_id, "2", HOUR_MS, "x").await, first);
    let path = format!("/rooms/{}/send/t/1?org.matrix.msc4140.delay={HOUR_MS}", encode(&room_id));
    let by_query = ann.put(&path, json!({})).await.ok_string("delay_id");
    assert_eq!(ann.put(&path, json!({})).await.ok_string("delay_id"), by_query);
    // Without the delay the same transaction id sends at once.
    ann.send(&room_id, "t", "1", &json!({})).await.ok_string("event_id");
    let other = ann.another_device().await;
    assert_ne!(other.schedule(&room_id, "1", HOUR_MS, "x").await, first);
    assert_eq!(ann.list("").await.0.len(), 4);
    ann.act_on(&first, "cancel").await.ok();
    assert_eq!(ann.schedule(&room_id, "1", HOUR_MS, "x").await, first);
}

#[tokio::test]
async fn a_state_event_is_set_put_off_sent_at_once_and_called_off() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let topic = async |delay_ms, text: &str| {
        let body = json!({ "topic": text });
        ann.schedule_state(&room_id, "m.room.topic", delay_ms, body).await.ok_string("delay_id")
    };
    let (one, two) = (topic(HOUR_MS, "one").await, topic(HOUR_MS, "two").await);
    let event = ann.delayed_event(&one).await;
    assert_eq!((&event["state_key"], &event["type"]), (&json!(""), &json!("m.room.topic")));
    let since = event["running_since"].as_u64();
    tokio::time::sleep(Duration::from_millis(5)).await;
    ann.act_on(&one, "restart").await.ok();
    assert!(ann.delayed_event(&one).await["running_since"].as_u64() > since);
    assert_eq!(ann.act_on(&one, "send").await.ok(), json!({}));
    assert_eq!(ann.state(&room_id, "m.room.topic", "").await.ok()["topic"], "one");
    let event = ann.delayed_event(&one).await;
    assert!(event["event_id"].is_string(), "{event}");
    ann.act_on(&two, "cancel").await.ok();
    let event = ann.delayed_event(&two).await;
    assert!(event["origin_server_ts"].is_u64() && event.get("error").is_none(), "{event}");
    // Asked again, what was done is fine, and the opposite is not.
    for (delay_id, action, status) in [
        (&one, "send", 200),
        (&one, "cancel", 409),
        (&one, "restart", 409),
        (&two, "cancel", 200),
        (&two, "send", 409),
        (&two, "restart", 409),
    ] {
        let answer = ann.act_on(delay_id, action).await;
        assert_eq!(answer.status, status, "{action}: {answer}");
        assert!(status == 200 || answer.body["errcode"] == "M_UNKNOWN", "{answer}");
    }
    assert_eq!(ann.all_texts(&room_id).await, Vec::<String>::new());
    // One that is put off again and again is not sent meanwhile.
    let beat = topic(1500, "three").await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        let last = Instant::now();
        ann.act_on(&beat, "restart").await.ok();
        let topic = ann.state(&room_id, "m.room.topic", "").await.ok()["topic"].clone();
        assert!(topic == "one" || last.elapsed() > Duration::from_millis(1400));
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    ann.wait_until_finished(&beat).await;
    assert_eq!(ann.state(&room_id, "m.room.topic", "").await.ok()["topic"], "three");
}

#[tokio::test]
async fn an_action_may_be_in_the_body_and_has_to_be_one() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let delay_id = ann.schedule(&room_id, "1", HOUR_MS, "x").await;
    let path = format!("/delayed_events/{delay_id}");
    let act = async |body: Value, token| ann.delayed("POST", &path, Some(&body), token).await;
    act(json!({}), true).await.refused(400, "M_MISSING_PARAM");
    act(json!({ "action": "dance" }), true).await.refused(400, "M_INVALID_PARAM");
    act(json!({ "action": 1 }), true).await.refused(400, "M_BAD_JSON");
    act(json!({ "action": "restart" }), true).await.ok();
    act(json!({ "action": "send" }), false).await.ok();
    assert_eq!(ann.all_texts(&room_id).await, ["x"]);
    ann.act_on(&delay_id, "dance").await.refused(404, "M_UNRECOGNIZED");
    ann.act_on("none", "send").await.refused(404, "M_NOT_FOUND");
    let none = json!({ "action": "cancel" });
    ann.delayed("POST", "/delayed_events/none", Some(&none), true)
        .await
        .refused(404, "M_NOT_FOUND");
    ann.delayed("GET", &path, None, false).await.refused(401, "M_MISSING_TOKEN");
    ann.delayed("GET", "/delayed_events", None, false).await.refused(401, "M_MISSING_TOKEN");
}

#[tokio::test]
async fn what_cannot_be_scheduled_is_refused() {
    let settings = [
        ("LOGCABIN_DELAYED_EVENTS_MAX_DELAY_SECONDS", "100"),
        ("LOGCABIN_DELAYED_EVENTS_MAX_PER_USER", "2"),
    ];
    let server = TestServer::start_with(&settings).await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    let room = format!("/rooms/{}", encode(&room_id));
    let new = async |room: &str, body: Value| {
        ann.delayed("PUT", &format!("{room}/delayed_event/m.t/1"), Some(&body), true).await
    };
    let by_query = async |path: &str, delay: &str, body: Value| {
        ann.put(&format!("{room}/{path}?org.matrix.msc4140.delay={delay}"), body).await
    };
    new(&room, json!({ "delay": 0, "content": {} })).await.refused(400, "M_INVALID_PARAM");
    for body in [
        json!({ "content": {} }),
        json!({ "delay": 5 }),
        json!({ "delay": -5, "content": {} }),
        json!({ "delay": "5", "content": {} }),
        json!({ "delay": 5, "content": [] }),
        json!({ "delay": 5, "content": { "a": 0.5 } }),
        json!({ "delay": 5, "content": {}, "state_key": 1 }),
    ] {
        new(&room, body).await.refused(400, "M_BAD_JSON");
    }
    for delay in ["0", "-1", "soon", "1.5"] {
        by_query("send/m.t/1", delay, json!({})).await.refused(400, "M_INVALID_PARAM");
    }
    let large = json!({ "a": "x".repeat(70_000) });
    by_query("send/m.t/1", "5", large).await.refused(413, "M_TOO_LARGE");
    let long = "x".repeat(256);
    by_query(&format!("state/m.t/{long}"), "5", json!({})).await.refused(413, "M_TOO_LARGE");
    by_query("send/m.room.redaction/1", "5", json!({})).await.refused(400, "M_MISSING_PARAM");
    new("/rooms/!none:e2e.test", json!({ "delay": 5, "content": {} }))
        .await
        .refused(403, "M_FORBIDDEN");
    new("/rooms/none", json!({ "delay": 5, "content": {} })).await.refused(400, "M_INVALID_PARAM");

    // The longest delay, in the form of either endpoint.
    let refused = new(&room, json!({ "delay": 100_001, "content": {} })).await;
    let body = refused.refused(400, "ORG.MATRIX.MSC4140_MAX_DELAY_EXCEEDED");
    assert_eq!(body["org.matrix.msc4140.max_delay"], 100_000, "{body}");
    let body = by_query("send/m.t/1", "100001", json!({})).await.refused(400, "M_UNKNOWN");
    assert_eq!(body["org.matrix.msc4140.errcode"], "M_MAX_DELAY_EXCEEDED", "{body}");
    assert_eq!(body["org.matrix.msc4140.max_delay"], 100_000, "{body}");

    // As many as one may have, in whatever room.
    let first = ann.schedule(&room_id, "a", 100_000, "x").await;
    let other = ann.create_room(json!({})).await;
    ann.schedule(&other, "b", 50_000, "x").await;
    let body = by_query("send/m.t/1", "5", json!({})).await.refused(429, "M_LIMIT_EXCEEDED");
    assert_eq!(body["org.matrix.msc4140.errcode"], "M_MAX_DELAYED_EVENTS_EXCEEDED", "{body}");
    let wait = body["retry_after_ms"].as_u64().unwrap_or_default();
    assert!((1..=50_000).contains(&wait), "{body}");
    assert_eq!(ann.schedule(&room_id, "a", 100_000, "x").await, first, "it is there already");
    bob.schedule(&room_id, "c", 100_000, "x").await;
    ann.act_on(&first, "cancel").await.ok();
    ann.schedule(&room_id, "d", 100_000, "x").await;
}

#[tokio::test]
async fn whether_one_may_send_is_judged_when_it_is_sent() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    // Not in the room when it is scheduled.
    let early = bob.schedule(&room_id, "1", 1000, "early").await;
    let refused = bob.act_on(&early, "send").await;
    refused.refused(403, "M_FORBIDDEN");
    assert_eq!(bob.delayed_event(&early).await.get("origin_server_ts"), None, "still scheduled");
    let lost = bob.schedule(&room_id, "2", 1, "lost").await;
    let event = bob.wait_until_finished(&lost).await;
    assert_eq!(event["error"]["errcode"], "M_FORBIDDEN", "{event}");
    assert!(event["error"]["error"].is_string() && event.get("event_id").is_none(), "{event}");
    bob.join(&room_id).await.ok();
    let event = bob.wait_until_finished(&early).await;
    // In time, or too late on a slow machine: then it says so.
    let sent = event["event_id"].is_string();
    let expected: &[&str] = if sent { &["early"] } else { &[] };
    assert_eq!(ann.all_texts(&room_id).await, expected);
    let topic = json!({ "topic": "bob's" });
    let delayed = bob.schedule_state(&room_id, "m.room.topic", 1, topic).await;
    let event = bob.wait_until_finished(&delayed.ok_string("delay_id")).await;
    assert_eq!(event["error"]["errcode"], "M_FORBIDDEN", "{event}");
    // An error counts as called off.
    assert_eq!(bob.act_on(&lost, "cancel").await.status, 200);
    assert_eq!(bob.act_on(&lost, "send").await.status, 409);
}

#[tokio::test]
async fn a_redaction_and_a_membership_can_be_scheduled() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let event_id = ann.send_text(&room_id, "1", "burn after reading").await;
    let path = format!("/rooms/{}/delayed_event/m.room.redaction/2", encode(&room_id));
    let body = json!({ "delay": 1, "content": { "redacts": event_id } });
    let delay_id = ann.delayed("PUT", &path, Some(&body), true).await.ok_string("delay_id");
    let event = ann.wait_until_finished(&delay_id).await;
    assert!(event["event_id"].is_string(), "{event}");
    assert_eq!(ann.all_texts(&room_id).await, Vec::<String>::new());
    let path = format!("m.room.member/{}", encode(&bob.user_id));
    let leave = json!({ "membership": "leave" });
    let delayed = bob.schedule_state(&room_id, &path, 1, leave).await;
    bob.wait_until_finished(&delayed.ok_string("delay_id")).await;
    let joined = ann.get_room(&room_id, "/joined_members").await.ok();
    assert_eq!(joined["joined"].as_object().map(serde_json::Map::len), Some(1), "{joined}");
}

#[tokio::test]
async fn a_state_that_another_sets_meanwhile_is_left_as_they_set_it() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let power = json!({ "users": { ann.user_id.as_str(): 100, bob.user_id.as_str(): 100 } });
    let options = json!({ "preset": "public_chat", "power_level_content_override": power });
    let room_id = ann.create_room(options).await;
    bob.join(&room_id).await.ok();
    let schedule = async |key: &str| {
        let answer = ann.schedule_state(&room_id, key, HOUR_MS, json!({ "by": "ann" })).await;
        answer.ok_string("delay_id")
    };
    let (hit, other, message) = (
        schedule("t/a").await,
        schedule("t/b").await,
        ann.schedule(&room_id, "1", HOUR_MS, "x").await,
    );
    // One's own change of it is one's own affair.
    ann.set_state(&room_id, "t", "a", &json!({ "by": "ann herself" })).await.ok();
    assert_eq!(ann.delayed_event(&hit).await.get("origin_server_ts"), None);
    bob.set_state(&room_id, "t", "a", &json!({ "by": "bob" })).await.ok();
    let event = ann.delayed_event(&hit).await;
    assert_eq!(event["error"]["org.matrix.msc4140.errcode"], "M_CANCELLED_BY_STATE_UPDATE");
    assert_eq!(event["error"]["errcode"], "M_UNKNOWN");
    for delay_id in [&other, &message] {
        assert_eq!(ann.delayed_event(delay_id).await.get("origin_server_ts"), None);
    }
    assert_eq!(ann.act_on(&hit, "send").await.status, 409);
    assert_eq!(ann.state(&room_id, "t", "a").await.ok(), json!({ "by": "bob" }));
}

#[tokio::test]
async fn the_list_is_ordered_filtered_and_paged() {
    let settings = [("LOGCABIN_DELAYED_EVENTS_MAX_PER_USER", "300")];
    let server = TestServer::start_with(&settings).await;
    let ann = user(&server, "ann").await;
    let (room_id, other) = (ann.create_room(json!({})).await, ann.create_room(json!({})).await);
    let slow = ann.schedule(&room_id, "slow", 3 * HOUR_MS, "x").await;
    let fast = ann.schedule(&room_id, "fast", HOUR_MS, "x").await;
    let there = ann.schedule(&other, "there", 2 * HOUR_MS, "x").await;
    let sent = ann.schedule(&room_id, "sent", 1, "x").await;
    ann.wait_until_finished(&sent).await;
    let cancelled = ann.schedule_state(&room_id, "t", HOUR_MS, json!({})).await;
    let cancelled = cancelled.ok_string("delay_id");
    ann.act_on(&cancelled, "cancel").await.ok();
    let all = [&sent, &fast, &cancelled, &there, &slow].map(String::as_str);
    let here = encode(&room_id);
    for (query, expected) in [
        // What is scheduled, from now on.
        ("", &[all[1], all[3], all[4]][..]),
        ("?status=scheduled", &[all[1], all[3], all[4]]),
        ("?since_ts=0", &[all[1], all[3], all[4]]),
        ("?since_ts=0&dir=f&order_by=send_ts", &[all[1], all[3], all[4]]),
        ("?since_ts=end", &[]),
        ("?since_ts=end&dir=b", &[all[4], all[3], all[1]]),
        ("?since_ts=end&dir=b&status=finalised", &[all[2], all[0]]),
        ("?dir=b", &[]),
        ("?dir=b&status=finalised", &[all[0]]),
        ("?since_ts=0&order_by=running_since", &[all[4], all[1], all[3]]),
        ("?since_ts=0&status=finalised&order_by=origin_server_ts", &[all[0], all[2]]),
        ("?since_ts=0&status=finalised", &[all[0], all[2]]),
        // What is scheduled has neither outcome nor reason.
        ("?since_ts=0&outcome=send", &[all[0]]),
        ("?since_ts=0&outcome=cancel", &[all[2]]),
        ("?since_ts=0&outcome=error", &[]),
        ("?since_ts=0&reason=action", &[all[2]]),
        ("?since_ts=0&reason=delay", &[all[0]]),
        ("?since_ts=0&status=scheduled&outcome=send", &[]),
        ("?since_ts=0&type=t", &[]),
        ("?since_ts=0&status=finalised&type=t", &[all[2]]),
        (&format!("?since_ts=0&room_id={here}"), &[all[1], all[4]]),
    ] {
        assert_eq!(ann.list(query).await.0, expected, "{query}");
    }
    for query in [
        "?status=lost",
        "?dir=x",
        "?order_by=x",
        "?since_ts=x",
        "?outcome=x",
        "?reason=x",
        "?room_id=x",
        "?from=x",
    ] {
        let answer = ann.delayed("GET", &format!("/delayed_events{query}"), None, true).await;
        answer.refused(400, "M_INVALID_PARAM");
    }
    for number in 0..120 {
        ann.schedule(&other, &number.to_string(), HOUR_MS, "x").await;
    }
    for (dir, token, since) in [("f", "next_batch", "0"), ("b", "prev_batch", "end")] {
        let query = format!("?dir={dir}&since_ts={since}");
        let (mut seen, list) = ann.list(&query).await;
        assert_eq!(seen.len(), 100);
        let from = encode(list[token].as_str().unwrap_or_default());
        let (rest, list) = ann.list(&format!("?dir={dir}&from={from}")).await;
        assert_eq!((list.get("next_batch"), list.get("prev_batch")), (None, None));
        seen.extend(rest);
        assert_eq!(seen.len(), 123);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 123, "each once");
    }
}

#[tokio::test]
async fn what_became_due_while_the_server_was_down_is_sent_in_order_at_its_start() {
    let mut server = TestServer::start().await;
    let ann = user(&server, "ann").await;
    let room_id = ann.create_room(json!({})).await;
    let mut ids = Vec::new();
    // Due in another order than scheduled.
    for (number, delay_ms) in [(3, 900), (1, 300), (2, 600), (4, 1200)] {
        ids.push(ann.schedule(&room_id, &number.to_string(), delay_ms, &number.to_string()).await);
    }
    let kept = ann.schedule(&room_id, "kept", HOUR_MS, "kept").await;
    let off = ann.schedule(&room_id, "off", 1200, "off").await;
    ann.act_on(&off, "cancel").await.ok();
    server.kill9();
    tokio::time::sleep(Duration::from_millis(1300)).await;
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    for delay_id in &ids {
        assert!(ann.wait_until_finished(delay_id).await["event_id"].is_string());
    }
    assert_eq!(ann.all_texts(&room_id).await, ["1", "2", "3", "4"]);
    assert_eq!(ann.list("?status=scheduled").await.0, [kept.as_str()]);
    assert_eq!(ann.schedule(&room_id, "1", 300, "1").await, ids[1], "the same transaction still");
    // What it became is remembered as well.
    server.restart().await;
    let ann = User { http: server.http(), ..ann };
    assert_eq!(ann.all_texts(&room_id).await, ["1", "2", "3", "4"]);
    let messages = ann.messages(&room_id, None, None, Direction::Forward, 1000).await;
    let sent = event_ids(&messages["chunk"]);
    for delay_id in &ids {
        let event = ann.delayed_event(delay_id).await;
        assert!(event["event_id"].as_str().is_some_and(|id| sent.iter().any(|s| s == id)));
    }
    assert_eq!(ann.act_on(&off, "send").await.status, 409);
    ann.act_on(&kept, "send").await.ok();
    assert_eq!(ann.all_texts(&room_id).await.len(), 5);
}
