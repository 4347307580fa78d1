//! Power levels: what each level is needed for, with its default and with any other.

use serde_json::{Value, json};

use super::{server, user};
use crate::harness::{Answer, TestServer, User, encode};

const LEVELS: &str = "m.room.power_levels";

/// What bob tries.
#[derive(Clone, Copy, Debug)]
enum Try {
    Message,
    Sticker,
    State,
    Topic,
    Invite,
    Kick,
    Ban,
    Unban,
    RedactOwn,
    RedactOthers,
}

/// Each with the key of its level, the event type in `events` if it has one there, and its default.
const TRIES: [(Try, &str, Option<&str>, i64); 10] = [
    (Try::Message, "events_default", None, 0),
    (Try::Sticker, "events_default", Some("m.sticker"), 0),
    (Try::State, "state_default", None, 50),
    (Try::Topic, "state_default", Some("m.room.topic"), 50),
    (Try::Invite, "invite", None, 0),
    (Try::Kick, "kick", None, 50),
    (Try::Ban, "ban", None, 50),
    (Try::Unban, "ban", None, 50),
    (Try::RedactOwn, "events_default", Some("m.room.redaction"), 0),
    (Try::RedactOthers, "redact", None, 50),
];

/// A room of ann's in which bob is, with people to moderate and events to redact.
struct Stage {
    ann: User,
    bob: User,
    cas: User,
    dan: User,
    room_id: String,
    of_ann: String,
    of_bob: String,
}

impl Stage {
    async fn new(server: &TestServer, version: &str) -> Self {
        let (ann, bob) = (user(server, "ann").await, user(server, "bob").await);
        let (cas, dan) = (user(server, "cas").await, user(server, "dan").await);
        let options = json!({ "preset": "public_chat", "room_version": version });
        let room_id = ann.create_room(options).await;
        bob.join(&room_id).await.ok();
        let of_ann = ann.send_text(&room_id, "a", "hello").await;
        let of_bob = bob.send_text(&room_id, "b", "hello").await;
        Self { ann, bob, cas, dan, room_id, of_ann, of_bob }
    }

    async fn redact(&self, event_id: &str) -> Answer {
        let path = format!(
            "/rooms/{}/redact/{}/{}",
            encode(&self.room_id),
            encode(event_id),
            super::unique("txn")
        );
        self.bob.put(&path, json!({})).await
    }

    /// Brings about what is tried; ann sets the stage before and after.
    async fn try_it(&self, what: Try) -> Answer {
        let (ann, bob, room) = (&self.ann, &self.bob, &self.room_id);
        let txn = super::unique("txn");
        match what {
            Try::Message => bob.send(room, "m.room.message", &txn, &json!({ "body": "x" })).await,
            Try::Sticker => bob.send(room, "m.sticker", &txn, &json!({ "body": "x" })).await,
            Try::State => bob.set_state(room, "org.example.x", "", &json!({ "x": txn })).await,
            Try::Topic => bob.set_state(room, "m.room.topic", "", &json!({ "topic": txn })).await,
            Try::Invite => {
                let answer = bob.act(room, "invite", Some(&self.cas)).await;
                self.cas.act(room, "leave", None).await;
                answer
            }
            Try::Kick => {
                self.dan.join(room).await.ok();
                bob.act(room, "kick", Some(&self.dan)).await
            }
            Try::Ban => {
                let answer = bob.act(room, "ban", Some(&self.dan)).await;
                ann.act(room, "unban", Some(&self.dan)).await;
                answer
            }
            Try::Unban => {
                ann.act(room, "ban", Some(&self.dan)).await.ok();
                let answer = bob.act(room, "unban", Some(&self.dan)).await;
                ann.act(room, "unban", Some(&self.dan)).await;
                answer
            }
            Try::RedactOwn => self.redact(&self.of_bob).await,
            Try::RedactOthers => self.redact(&self.of_ann).await,
        }
    }

    /// Sets levels that hold only what is given, and ann's and bob's own.
    async fn set(&self, levels: Value, bob: i64) {
        let mut levels = levels;
        let (ann, version) = (&self.ann.user_id, 100);
        levels["users"] = json!({ ann.as_str(): version, self.bob.user_id.as_str(): bob });
        self.ann.set_state(&self.room_id, LEVELS, "", &levels).await.ok();
    }
}

#[track_caller]
fn judge(answer: &Answer, allowed: bool, cell: &str) {
    if allowed {
        assert_eq!(answer.status, 200, "{cell}: {answer}");
    } else {
        assert_eq!(answer.status, 403, "{cell}: {answer}");
        assert_eq!(answer.body["errcode"], "M_FORBIDDEN", "{cell}");
    }
}

#[tokio::test]
async fn each_level_that_is_not_said_has_its_default() {
    let server = server().await;
    let stage = Stage::new(&server, "10").await;
    // Without `users_default`, one who is not named has 0: here bob is named, right around the
    // bounds.
    for (what, _, _, default) in TRIES {
        for (bob, allowed) in [(default - 1, false), (default, true)] {
            // Kicking is needed for unbanning, too, and both for reaching a target with less power.
            stage.set(json!({ "users_default": -5 }), bob).await;
            let answer = stage.try_it(what).await;
            judge(&answer, allowed, &format!("{what:?} with {bob}"));
        }
    }
}

#[tokio::test]
async fn each_level_that_is_said_is_enforced() {
    let server = server().await;
    for version in ["3", "6", "10", "11"] {
        let stage = Stage::new(&server, version).await;
        for (what, key, event_type, _) in TRIES {
            for (bob, allowed) in [(29, false), (30, true)] {
                let mut levels = json!({
                    "users_default": 0, "events_default": 0, "state_default": 0, "kick": 0,
                    "ban": 0, "invite": 0, "redact": 0,
                });
                match event_type {
                    // That of the type goes before the default, in either direction.
                    Some(event_type) => {
                        levels["events"] = json!({ event_type: 30 });
                        levels[key] = 90.into();
                    }
                    None => levels[key] = 30.into(),
                }
                if matches!(what, Try::RedactOwn) {
                    levels["redact"] = 90.into();
                }
                stage.set(levels, bob).await;
                let answer = stage.try_it(what).await;
                judge(&answer, allowed, &format!("version {version}, {what:?} with {bob}"));
            }
        }
    }
}

#[tokio::test]
async fn one_who_is_not_named_has_the_default_level() {
    let server = server().await;
    let stage = Stage::new(&server, "10").await;
    stage.dan.join(&stage.room_id).await.ok();
    for (default, allowed) in [(json!(null), false), (json!(19), false), (json!(20), true)] {
        let mut levels = json!({ "events": { "m.room.topic": 20 } });
        if !default.is_null() {
            levels["users_default"] = default;
        }
        stage.set(levels, 0).await;
        let topic = json!({ "topic": super::unique("topic") });
        let answer = stage.dan.set_state(&stage.room_id, "m.room.topic", "", &topic).await;
        judge(&answer, allowed, "dan");
    }
}

#[tokio::test]
async fn nobody_moderates_one_with_as_much_power() {
    let server = server().await;
    let stage = Stage::new(&server, "10").await;
    let (bob, cas, room_id) = (&stage.bob, &stage.cas, &stage.room_id);
    cas.join(room_id).await.ok();
    for (level, allowed) in [(60, false), (59, true)] {
        let levels = json!({ "users": {
            stage.ann.user_id.as_str(): 100, bob.user_id.as_str(): 60, cas.user_id.as_str(): level,
        }});
        stage.ann.set_state(room_id, LEVELS, "", &levels).await.ok();
        for action in ["kick", "ban"] {
            judge(&bob.act(room_id, action, Some(cas)).await, allowed, action);
            if allowed {
                stage.ann.act(room_id, "unban", Some(cas)).await;
                cas.join(room_id).await.ok();
            }
        }
    }
    // Oneself one may always demote, and then there is no way back.
    let own = json!({ "users": {
        stage.ann.user_id.as_str(): 100, bob.user_id.as_str(): 50, cas.user_id.as_str(): 59,
    }});
    let mut back = own.clone();
    back["users"][&bob.user_id] = 60.into();
    let events = json!({ LEVELS: 50 });
    let set = |levels: &Value| {
        let mut levels = levels.clone();
        levels["events"] = events.clone();
        levels
    };
    stage.ann.set_state(room_id, LEVELS, "", &set(&back)).await.ok();
    bob.set_state(room_id, LEVELS, "", &set(&own)).await.ok();
    bob.set_state(room_id, LEVELS, "", &set(&back)).await.refused(403, "M_FORBIDDEN");
}

#[tokio::test]
async fn levels_are_changed_up_to_ones_own_and_not_those_of_equals() {
    let server = server().await;
    let stage = Stage::new(&server, "10").await;
    let (ann, bob, cas) = (&stage.ann.user_id, &stage.bob.user_id, &stage.cas.user_id);
    let start = json!({
        "users": { ann.as_str(): 100, bob.as_str(): 50, cas.as_str(): 50, "@low:e2e.test": 10 },
        "events": { LEVELS: 50, "m.high": 70, "m.low": 20 },
        "notifications": { "room": 50, "high": 60 },
        "ban": 60, "kick": 40,
    });
    let change = |pointer: &str, value: Value| {
        let mut levels = start.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap_or_default();
        let parent = levels.pointer_mut(parent).and_then(Value::as_object_mut);
        let parent = parent.unwrap_or_else(|| panic!("there is no {pointer}"));
        if value.is_null() {
            parent.remove(key);
        } else {
            parent.insert(key.to_owned(), value);
        }
        levels
    };
    for (pointer, value, allowed) in [
        ("/kick", json!(50), true),
        ("/kick", json!(51), false),
        ("/kick", json!(null), true),
        ("/ban", json!(40), false),
        ("/ban", json!(null), false),
        ("/redact", json!(20), true),
        ("/redact", json!(51), false),
        ("/users_default", json!(50), true),
        ("/users_default", json!(51), false),
        ("/events/m.low", json!(50), true),
        ("/events/m.low", json!(51), false),
        ("/events/m.low", json!(null), true),
        ("/events/m.high", json!(50), false),
        ("/events/m.high", json!(null), false),
        ("/events/m.new", json!(51), false),
        ("/notifications/room", json!(30), true),
        ("/notifications/room", json!(51), false),
        ("/notifications/high", json!(30), false),
        ("/notifications/high", json!(null), false),
        ("/users/@low:e2e.test", json!(50), true),
        ("/users/@low:e2e.test", json!(51), false),
        ("/users/@low:e2e.test", json!(null), true),
        ("/users/@new:e2e.test", json!(50), true),
        ("/users/@new:e2e.test", json!(51), false),
        (&format!("/users/{cas}"), json!(40), false),
        (&format!("/users/{cas}"), json!(null), false),
        (&format!("/users/{ann}"), json!(50), false),
        (&format!("/users/{bob}"), json!(40), true),
        (&format!("/users/{bob}"), json!(60), false),
    ] {
        stage.ann.set_state(&stage.room_id, LEVELS, "", &start).await.ok();
        let levels = change(pointer, value.clone());
        let answer = stage.bob.set_state(&stage.room_id, LEVELS, "", &levels).await;
        judge(&answer, allowed, &format!("{pointer} to {value}"));
    }
}

#[tokio::test]
async fn levels_are_integers_and_before_version_10_texts_of_integers() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for (version, texts) in [("3", true), ("9", true), ("10", false), ("12", false)] {
        let room_id = ann.create_room(json!({ "room_version": version })).await;
        let start = ann.state(&room_id, LEVELS, "").await.ok();
        for (pointer, value, allowed) in [
            ("/ban", json!("60"), texts),
            ("/ban", json!(" +60 "), texts),
            ("/ban", json!("sixty"), false),
            ("/ban", json!([]), false),
            ("/ban", json!(-9_007_199_254_740_991_i64), true),
            ("/events/m.room.name", json!("60"), texts),
            ("/users/@x:e2e.test", json!("60"), texts),
            ("/users/nobody", json!(60), false),
            ("/notifications/room", json!("60"), texts),
            ("/events", json!([]), false),
            ("/users", json!(3), false),
        ] {
            let mut levels = start.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap_or_default();
            levels.pointer_mut(parent).expect("it is there")[key] = value.clone();
            let answer = ann.set_state(&room_id, LEVELS, "", &levels).await;
            judge(&answer, allowed, &format!("version {version}: {pointer} to {value}"));
        }
        let levels = json!({ "ban": 50.5 });
        let refused = ann.set_state(&room_id, LEVELS, "", &levels).await;
        // Only old versions have such numbers, and no power level is one of them.
        let is_old = matches!(version, "3" | "4" | "5");
        let (status, code) = if is_old { (403, "M_FORBIDDEN") } else { (400, "M_BAD_JSON") };
        refused.refused(status, code);
    }
}

#[tokio::test]
async fn the_level_of_a_new_rooms_end_is_above_its_state_default_where_creators_are_above_all() {
    let server = server().await;
    let ann = user(&server, "ann").await;
    for (version, override_, expected) in [
        ("11", json!({}), 100),
        ("12", json!({}), 150),
        ("12", json!({ "state_default": 200 }), 201),
        ("12", json!({ "events": {} }), 150),
        ("12", json!({ "events": { "m.room.tombstone": 180 } }), 180),
        ("12", json!({ "events": { "m.room.tombstone": 20 } }), 150),
    ] {
        let options = json!({ "room_version": version, "power_level_content_override": override_ });
        let room_id = ann.create_room(options).await;
        let levels = ann.state(&room_id, LEVELS, "").await.ok();
        assert_eq!(levels["events"]["m.room.tombstone"], expected, "{override_}");
    }
}
