//! Push rules, unread counts, the list of notifications, and ignored users.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::{anonymous, each, event_ids, next_batch, server, texts, user};
use crate::harness::{Answer, TestServer, User, encode};

const RULES: &str = "/pushrules/global";

/// A room of the first two, in which the others are, too.
async fn room_of(users: &[&User]) -> String {
    let room_id = users[0].create_room(json!({ "preset": "public_chat" })).await;
    for other in &users[1..] {
        other.join(&room_id).await.ok();
    }
    room_id
}

async fn send(user: &User, room_id: &str, event_type: &str, content: Value) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let txn_id = format!("push-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    user.send(room_id, event_type, &txn_id, &content).await.ok_string("event_id")
}

async fn say(user: &User, room_id: &str, body: &str) -> String {
    send(user, room_id, "m.room.message", json!({ "msgtype": "m.text", "body": body })).await
}

async fn say_in_thread(user: &User, room_id: &str, root: &str, body: &str) -> String {
    let relation = json!({ "rel_type": "m.thread", "event_id": root });
    let content = json!({ "msgtype": "m.text", "body": body, "m.relates_to": relation });
    send(user, room_id, "m.room.message", content).await
}

async fn receipt(user: &User, room_id: &str, kind: &str, event_id: &str, body: Value) -> Answer {
    let path = format!("/rooms/{}/receipt/{kind}/{}", encode(room_id), encode(event_id));
    user.post(&path, body).await
}

async fn redact(user: &User, room_id: &str, event_id: &str) {
    let path = format!("/rooms/{}/redact/{}/{event_id}", encode(room_id), encode(event_id));
    user.put(&path, json!({})).await.ok();
}

async fn ignore(user: &User, users: &[&User]) {
    let list: serde_json::Map<_, _> =
        users.iter().map(|user| (user.user_id.clone(), json!({}))).collect();
    let path = format!("/user/{}/account_data/m.ignored_user_list", encode(&user.user_id));
    user.put(&path, json!({ "ignored_users": list })).await.ok();
}

/// The unread (notifications, highlights) of a room in a sync.
#[track_caller]
fn counts(sync: &Value, room_id: &str) -> (u64, u64) {
    let counts = &sync["rooms"]["join"][room_id]["unread_notifications"];
    let count = |name: &str| match counts[name].as_u64() {
        Some(count) => count,
        None => panic!("expected `{name}` of {room_id} in {sync}"),
    };
    (count("notification_count"), count("highlight_count"))
}

async fn unread(user: &User, room_id: &str) -> (u64, u64) {
    counts(&user.sync(None, 0, None).await, room_id)
}

/// The unread notifications outside of threads, and of each thread.
async fn unread_by_thread(user: &User, room_id: &str) -> (u64, Value) {
    let filter = r#"{"room":{"timeline":{"unread_thread_notifications":true}}}"#;
    let sync = user.sync(None, 0, Some(filter)).await;
    let threads = &sync["rooms"]["join"][room_id]["unread_thread_notifications"];
    (counts(&sync, room_id).0, threads.clone())
}

fn in_thread(root: &str, notifications: u64, highlights: u64) -> Value {
    json!({ root: { "notification_count": notifications, "highlight_count": highlights } })
}

fn rule_ids(rules: &Value, kind: &str) -> Vec<String> {
    let ids = each(&rules["global"][kind], "/rule_id").into_iter();
    ids.filter(|id| !id.starts_with('.')).collect()
}

// ---- Push rules ----

#[tokio::test]
async fn the_default_rules_are_there_with_and_without_a_slash() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let all = ann.get("/pushrules/").await.ok();
    assert_eq!(ann.get("/pushrules").await.ok(), all);
    for path in ["/pushrules/global/", "/pushrules/global"] {
        assert_eq!(ann.get(path).await.ok(), all["global"]);
    }
    let content = format!("/user/{}/account_data/m.push_rules", encode(&ann.user_id));
    assert_eq!(ann.get(&content).await.ok(), all);
    for rule in [
        "override/.m.rule.is_user_mention",
        "override/.m.rule.contains_display_name",
        "override/.m.rule.roomnotif",
        "content/.m.rule.contains_user_name",
        "underride/.m.rule.message",
    ] {
        let found = ann.get(&format!("{RULES}/{rule}")).await.ok();
        assert_eq!((&found["default"], &found["enabled"]), (&json!(true), &json!(true)), "{rule}");
    }
    let http = server.http();
    anonymous(&http, "GET", "/pushrules/", None).await.refused(401, "M_MISSING_TOKEN");
}

#[tokio::test]
async fn rules_of_each_kind_are_made_read_changed_and_removed() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let since = ann.here().await;
    let conditions = json!([{ "kind": "event_match", "key": "type", "pattern": "m.x" }]);
    let actions = json!(["notify", { "set_tweak": "sound", "value": "bell" }]);
    for (path, body) in [
        ("override/one", json!({ "conditions": conditions, "actions": actions })),
        ("underride/one", json!({ "conditions": conditions, "actions": actions })),
        ("content/one", json!({ "pattern": "cake*lie", "actions": actions })),
        ("room/!a:e2e.test", json!({ "actions": actions })),
        ("sender/@spam:e2e.test", json!({ "actions": actions })),
    ] {
        let rule = format!("{RULES}/{path}");
        ann.get(&rule).await.refused(404, "M_NOT_FOUND");
        ann.put(&rule, body.clone()).await.ok();
        let mut expected = body;
        expected["rule_id"] = json!(path.split_once('/').map(|(_, id)| id));
        expected["default"] = json!(false);
        expected["enabled"] = json!(true);
        assert_eq!(ann.get(&rule).await.ok(), expected);
        let enabled = format!("{rule}/enabled");
        assert_eq!(ann.get(&enabled).await.ok(), json!({ "enabled": true }));
        ann.put(&enabled, json!({ "enabled": false })).await.ok();
        assert_eq!(ann.get(&enabled).await.ok(), json!({ "enabled": false }));
        let own = format!("{rule}/actions");
        assert_eq!(ann.get(&own).await.ok(), json!({ "actions": actions }));
        ann.put(&own, json!({ "actions": [] })).await.ok();
        assert_eq!(ann.get(&own).await.ok(), json!({ "actions": [] }));
    }
    // The other devices learn it as account data, with the default rules.
    let news = ann.news(&since).await;
    let events = news["account_data"]["events"].as_array().cloned().unwrap_or_default();
    let rules = events.iter().find(|event| event["type"] == "m.push_rules");
    assert_eq!(rules.map(|event| &event["content"]), Some(&ann.get("/pushrules/").await.ok()));
    for rule in ["override/one", "underride/one", "content/one", "room/!a:e2e.test"] {
        let rule = format!("{RULES}/{rule}");
        ann.request("DELETE", &rule, None).await.ok();
        ann.request("DELETE", &rule, None).await.refused(404, "M_NOT_FOUND");
        ann.get(&format!("{rule}/actions")).await.refused(404, "M_NOT_FOUND");
    }
    let rules = ann.get("/pushrules/").await.ok();
    assert_eq!(rule_ids(&rules, "override"), Vec::<String>::new());
    assert_eq!(rule_ids(&rules, "sender"), ["@spam:e2e.test"]);
}

#[tokio::test]
async fn default_rules_can_be_changed_but_not_removed() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let rule = format!("{RULES}/override/.m.rule.suppress_notices");
    ann.put(&format!("{rule}/enabled"), json!({ "enabled": false })).await.ok();
    ann.put(&format!("{rule}/actions"), json!({ "actions": ["notify", "dont_notify"] })).await.ok();
    let changed = ann.get(&rule).await.ok();
    let expected = (&json!(false), &json!(["notify"]), &json!(true));
    assert_eq!((&changed["enabled"], &changed["actions"], &changed["default"]), expected);
    ann.request("DELETE", &rule, None).await.refused(400, "M_INVALID_PARAM");
    let body = json!({ "conditions": [], "actions": [] });
    ann.put(&rule, body).await.refused(400, "M_INVALID_PARAM");
}

const ENCRYPTED: &str = ".org.matrix.msc4028.encrypted_event";

#[tokio::test]
async fn whoever_wants_it_is_notified_of_encrypted_events_where_only_mentions_count() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    let rule = format!("{RULES}/room/{}", encode(&room_id));
    bob.put(&rule, json!({ "actions": [] })).await.ok();
    let secret = json!({ "algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "x" });
    let unread = async |txn_id: &str| {
        ann.send(&room_id, "m.room.encrypted", txn_id, &secret).await.ok();
        let sync = bob.sync(None, 0, None).await;
        let counts = &sync["rooms"]["join"][&room_id]["unread_notifications"];
        counts["notification_count"].as_u64().expect("a count")
    };
    assert_eq!(unread("1").await, 0);
    let enabled = format!("{RULES}/override/{ENCRYPTED}/enabled");
    assert_eq!(bob.get(&enabled).await.ok()["enabled"], false);
    bob.put(&enabled, json!({ "enabled": true })).await.ok();
    assert_eq!(unread("2").await, 1);
    // A muted room stays so.
    let condition = json!({ "kind": "event_match", "key": "room_id", "pattern": room_id });
    let muted = json!({ "actions": [], "conditions": [condition] });
    bob.put(&format!("{RULES}/override/{}", encode(&room_id)), muted).await.ok();
    assert_eq!(unread("3").await, 1);
}

#[tokio::test]
async fn rules_stand_in_the_order_that_before_and_after_say() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for path in ["a", "b", "c?after=b", "d?before=a", "b?after=d"] {
        // Conditions are optional.
        ann.put(&format!("{RULES}/override/{path}"), json!({ "actions": [] })).await.ok();
    }
    let rules = ann.get("/pushrules/").await.ok();
    assert_eq!(rule_ids(&rules, "override"), ["c", "d", "b", "a"]);
    // All of them stand between the master rule and the other default rules.
    let ids = each(&rules["global"]["override"], "/rule_id");
    assert_eq!((&*ids[0], &*ids[5]), (".m.rule.master", ENCRYPTED));
    assert_eq!(ids[6], ".m.rule.suppress_notices");
    for path in ["e?after=x", "e?before=x", "e?before=.m.rule.master", "a?after=a"] {
        let put = ann.put(&format!("{RULES}/override/{path}"), json!({ "actions": [] })).await;
        put.refused(400, "M_INVALID_PARAM");
    }
    assert_eq!(ann.get("/pushrules/").await.ok(), rules);
}

#[tokio::test]
async fn bad_rules_are_refused() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let good = json!({ "actions": ["notify"], "conditions": [] });
    for (path, body, errcode) in [
        ("override/.own", good.clone(), "M_INVALID_PARAM"),
        ("override/a%2Fb", good.clone(), "M_INVALID_PARAM"),
        ("override/a%5Cb", good.clone(), "M_INVALID_PARAM"),
        (&*format!("override/{}", "x".repeat(256)), good.clone(), "M_INVALID_PARAM"),
        ("room/none", good.clone(), "M_INVALID_PARAM"),
        ("sender/none", good.clone(), "M_INVALID_PARAM"),
        ("other/x", good, "M_INVALID_PARAM"),
        ("override/x", json!({ "conditions": [] }), "M_BAD_JSON"),
        ("override/x", json!({ "actions": [5] }), "M_BAD_JSON"),
        ("override/x", json!({ "actions": ["dance"] }), "M_INVALID_PARAM"),
        ("override/x", json!({ "actions": [{ "dance": true }] }), "M_INVALID_PARAM"),
        (
            "override/x",
            json!({ "actions": [{ "set_tweak": "highlight", "value": 1 }] }),
            "M_BAD_JSON",
        ),
        ("override/x", json!({ "actions": [], "conditions": [{}] }), "M_BAD_JSON"),
        (
            "override/x",
            json!({ "actions": [], "conditions": [{ "kind": "event_match", "key": "type" }] }),
            "M_BAD_JSON",
        ),
        (
            "override/x",
            json!({ "actions": [], "conditions": [{ "kind": "room_member_count", "is": "few" }] }),
            "M_BAD_JSON",
        ),
        ("content/x", json!({ "actions": [] }), "M_BAD_JSON"),
        ("content/x", json!({ "actions": [], "pattern": "?".repeat(129) }), "M_INVALID_PARAM"),
    ] {
        ann.put(&format!("{RULES}/{path}"), body).await.refused(400, errcode);
    }
    for path in ["override/none/enabled", "other/none/enabled", "content/none/actions"] {
        let body = json!({ "enabled": true, "actions": [] });
        ann.put(&format!("{RULES}/{path}"), body).await.refused(404, "M_NOT_FOUND");
    }
    ann.get("/pushrules/device/").await.refused(404, "M_UNRECOGNIZED");
    // A condition that is not known is kept, and never holds.
    let unknown = json!([{ "kind": "org.example.moon", "phase": 3 }]);
    let body = json!({ "conditions": unknown, "actions": ["notify"] });
    ann.put(&format!("{RULES}/override/moon"), body).await.ok();
    assert_eq!(ann.get(&format!("{RULES}/override/moon")).await.ok()["conditions"], unknown);
}

#[tokio::test]
async fn rules_are_bounded_in_size() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let put = async |name: &str, body| ann.put(&format!("{RULES}/{name}"), body).await;
    let long = |bytes| {
        let condition = json!({ "kind": "org.example.moon", "phase": "x".repeat(bytes) });
        json!({ "conditions": [condition], "actions": [] })
    };
    put("override/0", long(50_000)).await.ok();
    put("override/1", long(40_000)).await.ok();
    put("override/2", long(10_000)).await.refused(413, "M_TOO_LARGE");
    // Fewer bytes in place of more are always taken.
    put("override/1", long(10)).await.ok();

    let pattern = |stars: usize| json!({ "pattern": "x*".repeat(stars), "actions": [] });
    put("content/stars", pattern(256)).await.ok();
    put("content/stars", pattern(257)).await.refused(400, "M_INVALID_PARAM");

    let conditions = |count: usize| {
        let condition = json!({ "kind": "event_match", "key": "type", "pattern": "x" });
        json!({ "conditions": vec![condition; count], "actions": [] })
    };
    put("underride/many", conditions(33)).await.refused(400, "M_INVALID_PARAM");
    // Two of the conditions that all rules may have together are taken, and the pattern.
    for rule in 0..15 {
        put(&format!("underride/{rule}"), conditions(32)).await.ok();
    }
    put("underride/last", conditions(18)).await.refused(413, "M_TOO_LARGE");
    put("underride/last", conditions(17)).await.ok();
    put("content/word", pattern(1)).await.refused(413, "M_TOO_LARGE");
    ann.request("DELETE", &format!("{RULES}/underride/0"), None).await.ok();
    put("content/word", pattern(1)).await.ok();
}

#[tokio::test]
async fn concurrent_changes_are_all_kept() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    let put = |number: usize| {
        let ann = ann.clone();
        tokio::spawn(async move {
            let body = json!({ "pattern": "x", "actions": [] });
            ann.put(&format!("{RULES}/content/{number}"), body).await.ok();
        })
    };
    let puts: Vec<_> = (0..12).map(put).collect();
    for put in puts {
        put.await.expect("the request does not panic");
    }
    assert_eq!(rule_ids(&ann.get("/pushrules/").await.ok(), "content").len(), 12);
}

// ---- Which events notify ----

#[tokio::test]
async fn messages_notify_and_mentions_highlight() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cas = user(&server, "cas").await;
    let room_id = room_of(&[&ann, &bob, &cas]).await;
    let name = format!("/profile/{}/displayname", encode(&bob.user_id));
    bob.put(&name, json!({ "displayname": "Robert *" })).await.ok();
    let since = bob.here().await;
    let localpart = bob.localpart();
    let message = |body: &str, mentions: Option<Value>| {
        let mut content = json!({ "msgtype": "m.text", "body": body });
        if let Some(mentions) = mentions {
            content["m.mentions"] = mentions;
        }
        content
    };
    let mut expected = (0, 0);
    for (content, notifies, highlights) in [
        (message("hello", None), 1, 0),
        (message(&format!("hello {localpart}!"), None), 1, 1),
        (message("hello ROBERT *, too", None), 1, 1),
        (message("hello Roberta", None), 1, 0),
        // Who says whom they mention, mentions nobody else.
        (message(&format!("hello {localpart}"), Some(json!({}))), 1, 0),
        (message("you", Some(json!({ "user_ids": [bob.user_id] }))), 1, 1),
        (message("her", Some(json!({ "user_ids": [cas.user_id] }))), 1, 0),
        (message("all", Some(json!({ "room": true }))), 1, 1),
        (message("@room: all", None), 1, 1),
        (json!({ "msgtype": "m.notice", "body": localpart }), 0, 0),
    ] {
        send(&ann, &room_id, "m.room.message", content.clone()).await;
        expected = (expected.0 + notifies, expected.1 + highlights);
        let sync = bob.news(&since).await;
        assert_eq!(counts(&sync, &room_id), expected, "after {content}");
    }
    // Who may not notify the room, does not; nor do reactions, edits, and one's own messages.
    send(&cas, &room_id, "m.room.message", message("@room", Some(json!({ "room": true })))).await;
    let event_id = send(&cas, &room_id, "m.room.message", message("@room", None)).await;
    let edit = json!({
        "msgtype": "m.text", "body": "* x", "m.new_content": { "msgtype": "m.text", "body": "x" },
        "m.relates_to": { "rel_type": "m.replace", "event_id": event_id },
    });
    send(&cas, &room_id, "m.room.message", edit).await;
    let reaction = json!({ "rel_type": "m.annotation", "event_id": event_id, "key": "+" });
    send(&ann, &room_id, "m.reaction", json!({ "m.relates_to": reaction })).await;
    assert_eq!(unread(&bob, &room_id).await, (expected.0 + 2, expected.1));
    ann.set_state(
        &room_id,
        "m.room.tombstone",
        "",
        &json!({ "body": "", "replacement_room": "!x:y" }),
    )
    .await
    .ok();
    assert_eq!(unread(&bob, &room_id).await, (expected.0 + 3, expected.1 + 1));
    assert_eq!(unread(&cas, &room_id).await.0, 1, "one's own message reads what was before it");
}

#[tokio::test]
async fn a_room_is_notified_by_those_with_the_level_for_it_which_is_50() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of(&[&ann, &bob]).await;
    for (notifications, level, highlights) in [
        (Value::Null, 49, 0),
        (Value::Null, 50, 1),
        (json!({ "room": 20 }), 19, 0),
        (json!({ "room": 20 }), 20, 1),
    ] {
        let mut levels = json!({ "users": {
            ann.user_id.as_str(): 100, bob.user_id.as_str(): level,
        }});
        if !notifications.is_null() {
            levels["notifications"] = notifications.clone();
        }
        ann.set_state(&room_id, "m.room.power_levels", "", &levels).await.ok();
        // One's own message reads what was before it.
        say(&ann, &room_id, "so far").await;
        assert_eq!(unread(&ann, &room_id).await, (0, 0));
        say(&bob, &room_id, "@room").await;
        assert_eq!(unread(&ann, &room_id).await, (1, highlights), "{notifications} with {level}");
    }
}

#[tokio::test]
async fn creators_of_a_version_12_room_may_notify_it() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let options = json!({ "preset": "public_chat", "room_version": "12" });
    let room_id = ann.create_room(options).await;
    bob.join(&room_id).await.ok();
    say(&ann, &room_id, "@room").await;
    assert_eq!(unread(&bob, &room_id).await, (1, 1));
    say(&bob, &room_id, "@room").await;
    assert_eq!(unread(&ann, &room_id).await, (1, 0));
}

#[tokio::test]
async fn an_event_is_judged_by_the_rules_and_the_name_of_its_moment() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of(&[&ann, &bob]).await;
    say(&ann, &room_id, "before").await;
    let mute = format!("{RULES}/room/{}", encode(&room_id));
    bob.put(&mute, json!({ "actions": [] })).await.ok();
    say(&ann, &room_id, "muted").await;
    assert_eq!(unread(&bob, &room_id).await, (1, 0));
    bob.request("DELETE", &mute, None).await.ok();
    say(&ann, &room_id, "about a cake").await;
    assert_eq!(unread(&bob, &room_id).await, (2, 0));
    let cake = json!({ "pattern": "cake", "actions": ["notify", { "set_tweak": "highlight" }] });
    bob.put(&format!("{RULES}/content/cake"), cake).await.ok();
    say(&ann, &room_id, "Zoe").await;
    let name = format!("/profile/{}/displayname", encode(&bob.user_id));
    bob.put(&name, json!({ "displayname": "Zoe" })).await.ok();
    assert_eq!(unread(&bob, &room_id).await, (3, 0));
    say(&ann, &room_id, "the cake").await;
    say(&ann, &room_id, "and Zoe").await;
    assert_eq!(unread(&bob, &room_id).await, (5, 2));
}

// ---- Counts ----

#[tokio::test]
async fn receipts_of_either_kind_take_from_the_counts_on_every_device() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of(&[&ann, &bob]).await;
    let other = bob.another_device().await;
    let mut events = Vec::new();
    for number in 0..4 {
        events.push(say(&ann, &room_id, &number.to_string()).await);
    }
    let since = other.here().await;
    assert_eq!(unread(&bob, &room_id).await, (4, 0));
    receipt(&bob, &room_id, "m.read", &events[1], json!({})).await.ok();
    let sync = other.news(&since).await;
    assert_eq!(counts(&sync, &room_id), (2, 0));
    // A private one behind it changes nothing; one ahead of it does, also where a filter leaves
    // receipts out, and it wakes the other device.
    receipt(&bob, &room_id, "m.read.private", &events[0], json!({})).await.ok();
    let sync = other.news(&next_batch(&sync)).await;
    assert_eq!(counts(&sync, &room_id), (2, 0));
    let filter = r#"{"room":{"ephemeral":{"types":[]}}}"#;
    let since = next_batch(&sync);
    let waiting = tokio::spawn({
        let (other, since) = (other.clone(), since.clone());
        async move { other.sync(Some(&since), 20_000, Some(filter)).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    receipt(&bob, &room_id, "m.read.private", &events[2], json!({})).await.ok();
    let sync = waiting.await.expect("a waiting sync does not panic");
    assert_eq!(counts(&sync, &room_id), (1, 0));
    assert_eq!(sync["rooms"]["join"][&room_id]["timeline"]["events"], json!([]));
    // The receipt of someone else is nothing to them.
    receipt(&ann, &room_id, "m.read", &events[3], json!({})).await.ok();
    let sync = other.sync(Some(&next_batch(&sync)), 0, Some(filter)).await;
    assert_eq!(sync["rooms"]["join"], json!({}));
    assert_eq!(unread(&other, &room_id).await, (1, 0));
}

#[tokio::test]
async fn redacted_messages_do_not_count() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of(&[&ann, &bob]).await;
    let event_id = say(&ann, &room_id, "@room, oops").await;
    say(&ann, &room_id, "well").await;
    let since = next_batch(&bob.sync(None, 0, None).await);
    assert_eq!(unread(&bob, &room_id).await, (2, 1));
    redact(&ann, &room_id, &event_id).await;
    assert_eq!(counts(&bob.news(&since).await, &room_id), (1, 0));
    assert_eq!(unread(&bob, &room_id).await, (1, 0));
}

#[tokio::test]
async fn a_room_counts_from_when_one_joined_it() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of(&[&ann]).await;
    say(&ann, &room_id, "early").await;
    bob.join(&room_id).await.ok();
    assert_eq!(unread(&bob, &room_id).await, (0, 0));
    say(&ann, &room_id, "one").await;
    // A new name in the room is not a way of reading it.
    let name = format!("/profile/{}/displayname", encode(&bob.user_id));
    bob.put(&name, json!({ "displayname": "Bob" })).await.ok();
    say(&ann, &room_id, "two").await;
    assert_eq!(unread(&bob, &room_id).await, (2, 0));
    bob.act(&room_id, "leave", None).await.ok();
    say(&ann, &room_id, "away").await;
    bob.join(&room_id).await.ok();
    assert_eq!(unread(&bob, &room_id).await, (0, 0));
    say(&ann, &room_id, "three").await;
    assert_eq!(unread(&bob, &room_id).await, (1, 0));
}

#[tokio::test]
async fn threads_are_counted_and_read_by_themselves() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of(&[&ann, &bob]).await;
    let name = bob.user_id.clone();
    let root = say(&ann, &room_id, "root").await;
    let first = say_in_thread(&ann, &room_id, &root, "one").await;
    say_in_thread(&ann, &room_id, &root, &name[1..name.find(':').unwrap_or(1)]).await;
    let last = say(&ann, &room_id, "main").await;
    // Related to a message of the thread, and so in the thread, as long as it notifies.
    let rule = json!({ "conditions": [{ "kind": "event_match", "key": "type", "pattern": "m.reaction" }], "actions": ["notify"] });
    bob.put(&format!("{RULES}/override/reactions"), rule).await.ok();
    let relation = json!({ "rel_type": "m.annotation", "event_id": first, "key": "+" });
    let reaction = send(&ann, &room_id, "m.reaction", json!({ "m.relates_to": relation })).await;
    assert_eq!(unread(&bob, &room_id).await, (5, 1));
    assert_eq!(unread_by_thread(&bob, &room_id).await, (2, in_thread(&root, 3, 1)));
    // The main receipt reads nothing of the thread, and that of the thread nothing else.
    receipt(&bob, &room_id, "m.read", &last, json!({ "thread_id": "main" })).await.ok();
    assert_eq!(unread_by_thread(&bob, &room_id).await, (0, in_thread(&root, 3, 1)));
    receipt(&bob, &room_id, "m.read.private", &first, json!({ "thread_id": root })).await.ok();
    assert_eq!(unread_by_thread(&bob, &room_id).await, (0, in_thread(&root, 2, 1)));
    let later = say(&ann, &room_id, "later").await;
    receipt(&bob, &room_id, "m.read", &reaction, json!({ "thread_id": root })).await.ok();
    assert_eq!(unread_by_thread(&bob, &room_id).await, (1, Value::Null));
    // One without a thread reads all.
    say_in_thread(&ann, &room_id, &root, "more").await;
    let end = say_in_thread(&ann, &room_id, &later, "another thread").await;
    let (main, threads) = unread_by_thread(&bob, &room_id).await;
    assert_eq!((main, threads.as_object().map(serde_json::Map::len)), (1, Some(2)));
    receipt(&bob, &room_id, "m.read", &end, json!({})).await.ok();
    assert_eq!(unread_by_thread(&bob, &room_id).await, (0, Value::Null));
    // One's own message reads the conversation that it is in.
    say(&ann, &room_id, "main").await;
    say_in_thread(&ann, &room_id, &root, "thread").await;
    say_in_thread(&bob, &room_id, &root, "answer").await;
    assert_eq!(unread_by_thread(&bob, &room_id).await, (1, Value::Null));
}

#[tokio::test]
async fn counts_and_rules_are_the_same_after_a_restart() {
    let mut server = TestServer::start().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of(&[&ann, &bob]).await;
    let cake = json!({ "pattern": "cake", "actions": ["notify", { "set_tweak": "highlight" }] });
    bob.put(&format!("{RULES}/content/cake"), cake).await.ok();
    let root = say(&ann, &room_id, "root").await;
    let read = say(&ann, &room_id, "read").await;
    let gone = say(&ann, &room_id, "cake, redacted").await;
    say_in_thread(&ann, &room_id, &root, "cake").await;
    say(&ann, &room_id, "more").await;
    receipt(&bob, &room_id, "m.read.private", &read, json!({})).await.ok();
    redact(&ann, &room_id, &gone).await;
    let before = (unread_by_thread(&bob, &room_id).await, bob.get("/pushrules/").await.ok());
    assert_eq!(before.0, (1, in_thread(&root, 1, 1)));
    let list = bob.get("/notifications").await.ok();
    server.restart().await;
    let after = (unread_by_thread(&bob, &room_id).await, bob.get("/pushrules/").await.ok());
    assert_eq!(after, before);
    let ids = |list: &Value| each(&list["notifications"], "/event/event_id");
    assert_eq!(ids(&bob.get("/notifications").await.ok()), ids(&list));
}

// ---- Notifications ----

#[tokio::test]
async fn what_notified_is_listed_newest_first_in_pages() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let (one, two) = (room_of(&[&ann, &bob]).await, room_of(&[&ann, &bob]).await);
    let mut events = Vec::new();
    for number in 0..6 {
        let room_id = if number % 2 == 0 { &one } else { &two };
        events.push(say(&ann, room_id, &format!("@room {number}")).await);
        say(&bob, room_id, "not listed").await;
    }
    let plain = say(&ann, &one, "plain").await;
    let gone = say(&ann, &one, "gone").await;
    redact(&ann, &one, &gone).await;
    let invite = ann.create_room(json!({ "invite": [bob.user_id] })).await;
    let since = bob.here().await;
    let list = bob.get("/notifications").await.ok();
    assert_eq!(list["next_token"], Value::Null, "{list}");
    let list = list["notifications"].as_array().cloned().unwrap_or_default();
    assert_eq!(
        (&list[0]["room_id"], &list[0]["event"]["type"]),
        (&json!(invite), &json!("m.room.member"))
    );
    let newest = &list[1];
    assert_eq!(newest["event"]["event_id"], json!(plain));
    assert_eq!(newest["actions"][0], "notify");
    assert_eq!(newest["read"], false);
    assert_eq!(newest["room_id"], json!(one));
    assert_eq!(newest["ts"], newest["event"]["origin_server_ts"]);
    assert_eq!(newest["event"].get("room_id"), None);
    // The others came before messages of bob's own, which read them.
    assert!(list[2..].iter().all(|one| one["read"] == true));
    receipt(&bob, &one, "m.read", &plain, json!({})).await.ok();
    // In pages, and only those that are highlighted.
    let mut found = Vec::new();
    let mut from = String::new();
    loop {
        let path = format!("/notifications?limit=2&only=highlight{from}");
        let page = bob.get(&path).await.ok();
        found.extend(each(&page["notifications"], "/event/event_id"));
        let Some(token) = page["next_token"].as_str() else { break };
        from = format!("&from={}", encode(token));
    }
    events.reverse();
    assert_eq!(found, events);
    assert_eq!(bob.get("/notifications?limit=2").await.ok()["notifications"][1]["read"], true);
    // A token of any kind is a position.
    let all = bob.get(&format!("/notifications?from={since}")).await.ok();
    assert_eq!(all["notifications"].as_array().map(Vec::len), Some(list.len()));
    bob.get("/notifications?from=nonsense").await.refused(400, "M_INVALID_PARAM");
    // What came to a room after one left it is not listed.
    bob.act(&two, "leave", None).await.ok();
    say(&ann, &two, "@room without you").await;
    let all = bob.get("/notifications").await.ok();
    assert_eq!(all["notifications"].as_array().map(Vec::len), Some(list.len()));
}

// ---- Ignored users ----

#[tokio::test]
async fn messages_of_ignored_users_are_left_out_and_state_is_not() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let cas = user(&server, "cas").await;
    let room_id = room_of(&[&ann, &bob, &cas]).await;
    let early = say(&ann, &room_id, "early").await;
    say(&ann, &room_id, "@room early").await;
    assert_eq!(unread(&bob, &room_id).await, (2, 1));
    ignore(&bob, &[&ann, &bob]).await;
    let since = bob.here().await;
    let hidden = say(&ann, &room_id, "@room hidden").await;
    say(&cas, &room_id, "shown").await;
    say(&bob, &room_id, "own").await;
    ann.set_state(&room_id, "m.room.name", "", &json!({ "name": "Cabin" })).await.ok();
    let sync = bob.news(&since).await;
    let timeline = &sync["rooms"]["join"][&room_id]["timeline"]["events"];
    assert_eq!(texts(timeline), ["shown", "own"]);
    assert!(each(timeline, "/type").contains(&"m.room.name".to_owned()), "{timeline}");
    assert_eq!(
        texts(&bob.get_room(&room_id, "/messages?dir=b").await.ok()["chunk"]),
        ["own", "shown"]
    );
    let event = format!("/event/{}", encode(&hidden));
    bob.get_room(&room_id, &event).await.refused(404, "M_NOT_FOUND");
    // It is to the one who ignores alone, and only as long as they do.
    assert_eq!(cas.get_room(&room_id, &event).await.ok()["event_id"], json!(hidden));
    let since = next_batch(&sync);
    ignore(&bob, &[]).await;
    say(&ann, &room_id, "again").await;
    let sync = bob.news(&since).await;
    assert_eq!(texts(&sync["rooms"]["join"][&room_id]["timeline"]["events"]), ["again"]);
    let all = bob.sync(None, 0, None).await;
    let all = &all["rooms"]["join"][&room_id]["timeline"]["events"];
    assert!(event_ids(all).contains(&early) && event_ids(all).contains(&hidden));
}

#[tokio::test]
async fn messages_of_ignored_users_do_not_notify() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    let room_id = room_of(&[&ann, &bob]).await;
    say(&ann, &room_id, "before").await;
    ignore(&bob, &[&ann]).await;
    say(&ann, &room_id, "@room hidden").await;
    assert_eq!(unread(&bob, &room_id).await, (1, 0));
    ignore(&bob, &[]).await;
    say(&ann, &room_id, "after").await;
    assert_eq!(unread(&bob, &room_id).await, (2, 0));
}

#[tokio::test]
async fn invites_by_ignored_users_are_not_shown() {
    let server = server().await;
    let (ann, bob) = (user(&server, "ann").await, user(&server, "bob").await);
    ignore(&bob, &[&ann]).await;
    let since = bob.here().await;
    let room_id = ann.create_room(json!({ "invite": [bob.user_id] })).await;
    for sync in [bob.news(&since).await, bob.sync(None, 0, None).await] {
        assert_eq!(sync["rooms"]["invite"], json!({}));
    }
    assert_eq!(bob.get("/notifications").await.ok()["notifications"], json!([]));
    ignore(&bob, &[]).await;
    assert!(bob.sync(None, 0, None).await["rooms"]["invite"][&room_id].is_object());
}
