//! Requests to push gateways (push gateway API, "POST /notify").

use ruma::{push::Action, serde::Raw};
use serde_json::{Map, Value, json};

use logcabin_read::{events::StoredEvent, notifications::Outcome};
use logcabin_state::Pusher;

/// The `format` in which a gateway learns only the id and room of an event.
pub const EVENT_ID_ONLY: &str = "event_id_only";

/// An event that notifies a user, with the circumstances when it came.
#[derive(Debug)]
pub(super) struct NotifiedEvent<'a> {
    pub(super) event: &'a StoredEvent,
    pub(super) outcome: &'a Outcome,
    /// The sender's display name in the room.
    pub(super) sender_name: Option<String>,
    pub(super) room_name: Option<String>,
    pub(super) room_alias: Option<String>,
    /// Whether it changes the user's own membership.
    pub(super) is_target: bool,
}

/// Whether the app counts for itself what is unread (MSC4076).
pub(super) fn is_without_counts(pusher: &Pusher) -> bool {
    let names = ["disable_badge_count", "org.matrix.msc4076.disable_badge_count"];
    names.iter().any(|name| pusher.body.data.get(*name) == Some(&Value::Bool(true)))
}

/// The body of the request: about an event, or only the count.
pub(super) fn body(pusher: &Pusher, about: Option<&NotifiedEvent<'_>>, unread: u64) -> Value {
    let mut data = pusher.body.data.clone();
    data.remove("url");
    let event_id_only = data.get("format").is_some_and(|format| format == EVENT_ID_ONLY);
    let tweaks = about.map(|about| tweaks(&about.outcome.actions)).unwrap_or_default();
    let mut device = json!({
        "app_id": pusher.body.ids.app_id,
        "pushkey": pusher.body.ids.pushkey,
        "pushkey_ts": pusher.set_ms / 1000,
        "data": data,
    });
    let mut counts = Map::new();
    // A count of zero is left out of a notification of an event.
    if unread > 0 || about.is_none() {
        counts.insert("unread".to_owned(), unread.into());
    }
    let mut notification = json!({ "prio": priority(about, &tweaks) });
    if !is_without_counts(pusher) {
        notification["counts"] = counts.into();
    }
    if let Some(about) = about {
        let event = about.event;
        notification["event_id"] = event.event_id.as_str().into();
        notification["room_id"] = event.room_id.as_str().into();
        if !event_id_only {
            device["tweaks"] = tweaks.into();
            notification["type"] = event.event_type.to_string().into();
            notification["sender"] = event.sender.as_str().into();
            notification["content"] =
                serde_json::from_str(event.content.get()).unwrap_or_else(|_| json!({}));
            for (name, value) in [
                ("sender_display_name", &about.sender_name),
                ("room_name", &about.room_name),
                ("room_alias", &about.room_alias),
            ] {
                if let Some(value) = value {
                    notification[name] = value.as_str().into();
                }
            }
            if about.is_target {
                notification["user_is_target"] = true.into();
            }
        }
    }
    notification["devices"] = json!([device]);
    json!({ "notification": notification })
}

/// High for notifications that are heard or seen, or may be once the device has decrypted the
/// event.
fn priority(about: Option<&NotifiedEvent<'_>>, tweaks: &Map<String, Value>) -> &'static str {
    let is_encrypted =
        about.is_some_and(|about| about.event.event_type.to_string() == "m.room.encrypted");
    let is_high = is_encrypted
        || tweaks.contains_key("sound")
        || tweaks.get("highlight").is_some_and(|highlight| highlight != &Value::Bool(false));
    if is_high { "high" } else { "low" }
}

/// The tweaks of a rule: of several with one name, the last.
fn tweaks(actions: &[Action]) -> Map<String, Value> {
    let tweak = |action: &Action| {
        let action: Value = Raw::new(action).ok()?.deserialize_as_unchecked().ok()?;
        let name = action.get("set_tweak")?.as_str()?.to_owned();
        // Without a value, `highlight` is true; other tweaks are ignored.
        let value = match action.get("value") {
            Some(value) => value.clone(),
            None => Value::Bool(true),
        };
        Some((name, value))
    };
    actions.iter().filter_map(tweak).collect()
}

#[cfg(test)]
mod tests {
    use ruma::UserId;

    use super::*;
    use logcabin_read::events::to_raw;
    use logcabin_record::{
        Offset,
        command::RoomEvent,
        pusher::{PusherIds, PusherKind, PusherSet},
    };

    fn pusher(data: Value) -> Pusher {
        let Value::Object(data) = data else { panic!("an object") };
        let body = PusherSet {
            user_id: UserId::parse("@ann:test").unwrap(),
            device_id: None,
            ids: PusherIds { app_id: "app".to_owned(), pushkey: "key".to_owned() },
            kind: PusherKind::Http,
            app_display_name: "App".to_owned(),
            device_display_name: "Phone".to_owned(),
            profile_tag: None,
            lang: "en".to_owned(),
            data,
            disabled: false,
        };
        Pusher { since: Offset::new(1), set_ms: 5_999, body, mailed: None }
    }

    fn event(event_type: &str) -> StoredEvent {
        let pdu = json!({
            "type": event_type, "sender": "@bob:test", "origin_server_ts": 1, "depth": 1,
            "content": { "body": "hello" },
        });
        let body = RoomEvent::new(
            ruma::room_id!("!room:test").to_owned(),
            "$event".try_into().unwrap(),
            to_raw(&pdu),
        );
        StoredEvent::new(Offset::new(1), body).unwrap()
    }

    fn told(pusher: &Pusher, event_type: &str, actions: Value, unread: u64) -> Value {
        let event = event(event_type);
        let actions: Vec<Action> = serde_json::from_value(actions).unwrap();
        let outcome = Outcome { rule_id: "rule".into(), actions, notify: true, highlight: false };
        let about = NotifiedEvent {
            event: &event,
            outcome: &outcome,
            sender_name: Some("Bob".to_owned()),
            room_name: Some("Room".to_owned()),
            room_alias: None,
            is_target: false,
        };
        body(pusher, Some(&about), unread)["notification"].clone()
    }

    #[test]
    fn a_notification_has_all_that_the_specification_names() {
        let pusher = pusher(json!({ "url": "https://push.test/x", "brand": "b" }));
        let actions = json!(["notify", { "set_tweak": "sound", "value": "ring" },
            { "set_tweak": "highlight" }]);
        let expected = json!({
            "event_id": "$event", "room_id": "!room:test", "type": "m.room.message",
            "sender": "@bob:test", "sender_display_name": "Bob", "room_name": "Room",
            "prio": "high", "content": { "body": "hello" }, "counts": { "unread": 2 },
            "devices": [{
                "app_id": "app", "pushkey": "key", "pushkey_ts": 5, "data": { "brand": "b" },
                "tweaks": { "sound": "ring", "highlight": true },
            }],
        });
        assert_eq!(told(&pusher, "m.room.message", actions, 2), expected);
    }

    #[test]
    fn of_an_event_by_its_id_only_nothing_else_is_told() {
        let pusher = pusher(json!({ "url": "https://push.test/x", "format": "event_id_only" }));
        let actions = json!(["notify", { "set_tweak": "sound", "value": "ring" }]);
        let expected = json!({
            "event_id": "$event", "room_id": "!room:test", "prio": "high", "counts": {},
            "devices": [{
                "app_id": "app", "pushkey": "key", "pushkey_ts": 5,
                "data": { "format": "event_id_only" },
            }],
        });
        assert_eq!(told(&pusher, "m.room.message", actions, 0), expected);
    }

    #[test]
    fn what_makes_no_noise_can_wait_unless_it_is_encrypted() {
        let pusher = pusher(json!({ "url": "https://push.test/x" }));
        let prio = |event_type: &str, actions: Value| {
            told(&pusher, event_type, actions, 1)["prio"].as_str().unwrap().to_owned()
        };
        let quiet = json!(["notify", { "set_tweak": "highlight", "value": false }]);
        assert_eq!(prio("m.room.message", quiet.clone()), "low");
        assert_eq!(prio("m.room.encrypted", quiet), "high");
        assert_eq!(prio("m.room.message", json!(["notify", { "set_tweak": "highlight" }])), "high");
    }

    #[test]
    fn an_app_that_counts_for_itself_gets_no_counts() {
        for name in ["disable_badge_count", "org.matrix.msc4076.disable_badge_count"] {
            let pusher = pusher(json!({ "url": "https://push.test/x", name: true }));
            let told = told(&pusher, "m.room.message", json!(["notify"]), 7);
            assert!(told.get("counts").is_none(), "{told}");
        }
        let pusher = pusher(json!({ "url": "https://push.test/x", "disable_badge_count": false }));
        let told = told(&pusher, "m.room.message", json!(["notify"]), 7);
        assert_eq!(told["counts"], json!({ "unread": 7 }));
    }

    #[test]
    fn a_count_alone_says_so_even_if_it_is_nothing() {
        let pusher = pusher(json!({ "url": "https://push.test/x" }));
        let expected = json!({ "notification": {
            "counts": { "unread": 0 }, "prio": "low",
            "devices": [{ "app_id": "app", "pushkey": "key", "pushkey_ts": 5, "data": {} }],
        }});
        assert_eq!(body(&pusher, None, 0), expected);
    }
}
