//! An event of the source as the log will have it: read, checked and hashed apart from all others,
//! so that it can be done beside the writing.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ruma::{
    CanonicalJsonValue, OwnedEventId, OwnedRoomId, OwnedUserId, RoomVersionId, ServerName,
    events::TimelineEventType, room_version_rules::RoomVersionRules,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::index::Member;
use crate::facts::{BESIDE, Event, Fact, Told};
use logcabin_base::{
    canonical::{Numbers, canonical},
    limits,
};
use logcabin_read::events::StoredEvent;
use logcabin_record::{
    Offset,
    command::{RoomEvent, SaidLifetime},
    event_format::has_chosen_ids,
    lax_object::LaxObject,
};
use logcabin_state::RETENTION;

/// A fact, with what was computed of it alone.
pub(super) struct Ready {
    pub(super) told: Told,
    /// blake3 of the fact and of where it was found.
    pub(super) hash: blake3::Hash,
    /// Of an event: the event, or why it cannot be one.
    pub(super) event: Option<Result<Box<ReadyEvent>, String>>,
}

impl Ready {
    pub(super) fn new(mut told: Told, own: &ServerName) -> Self {
        // A fact is made of texts, numbers and JSON: it always serialises.
        let hash = blake3::hash(&serde_json::to_vec(&told).unwrap_or_default());
        let event = match &mut told.fact {
            Fact::Event(event) => {
                let ready = ReadyEvent::new(event, own).map(Box::new);
                // Nobody reads its text any more, and slices wait in memory.
                event.json = String::new();
                Some(ready)
            }
            _ => None,
        };
        Self { told, hash, event }
    }
}

/// An event that can be in the log.
#[derive(Debug)]
pub(super) struct ReadyEvent {
    pub(super) room_id: OwnedRoomId,
    pub(super) event_id: OwnedEventId,
    pub(super) sender: OwnedUserId,
    pub(super) version: RoomVersionId,
    pub(super) rules: RoomVersionRules,
    /// The event in federation format, with all signatures.
    pub(super) pdu: Box<RawValue>,
    /// Of an event of this server: the same without this server's signature, which it can make at
    /// any time.
    pub(super) unsigned: Option<Box<RawValue>>,
    pub(super) stripped: Vec<Box<RawValue>>,
    pub(super) facts: EventFacts,
}

/// What decides about the place of an event in its room.
#[derive(Clone, Debug)]
pub(super) struct EventFacts {
    pub(super) event_type: String,
    pub(super) state_key: Option<String>,
    pub(super) depth: u64,
    pub(super) ts: u64,
    pub(super) prev_events: Vec<OwnedEventId>,
    /// The event that it would redact.
    pub(super) redacts: Option<OwnedEventId>,
    pub(super) member: Option<Member>,
    /// Of an event about it: who may see the room's history.
    pub(super) visibility: Option<String>,
    /// Of an event about it: how long events live.
    pub(super) lifetime: Option<SaidLifetime>,
}

#[derive(Deserialize)]
struct MemberContent {
    membership: String,
}

#[derive(Deserialize)]
struct VisibilityContent {
    history_visibility: String,
}

impl EventFacts {
    /// The error is a sentence without its full stop.
    pub(super) fn of(event: &StoredEvent) -> Result<Self, String> {
        let event_type = event.event_type.to_string();
        let state_key = event.state_key.as_deref().map(str::to_owned);
        let is_state = |name: &str| state_key.is_some() && event_type == name;
        let member = if is_state("m.room.member") {
            let content = event.content_as::<MemberContent>();
            let content = content.map_err(|_| "it sets no membership".to_owned())?;
            Member::named(&content.membership)
        } else {
            None
        };
        let visibility = is_state("m.room.history_visibility").then(|| {
            let content = event.content_as::<VisibilityContent>().ok();
            content.map_or_else(String::new, |content| content.history_visibility)
        });
        let is_lifetime =
            state_key.as_deref() == Some("") && RETENTION.iter().any(|name| *name == event_type);
        let lifetime = is_lifetime.then(|| logcabin_state::lifetime(&event.content)).flatten();
        let lifetime = lifetime.map(|of| SaidLifetime { max_ms: of.max_ms, min_ms: of.min_ms });
        let is_redaction = event.event_type == TimelineEventType::RoomRedaction;
        Ok(Self {
            redacts: event.redacts.clone().filter(|_| is_redaction),
            depth: event.depth,
            ts: event.origin_server_ts.get().into(),
            prev_events: event.prev_events.clone(),
            event_type,
            state_key,
            member,
            visibility,
            lifetime,
        })
    }

    /// The key that it sets, if it is a state event.
    pub(super) fn key(&self) -> Option<(&str, &str)> {
        Some((&self.event_type, self.state_key.as_deref()?))
    }
}

impl ReadyEvent {
    /// The error is a sentence without its full stop.
    pub(super) fn new(event: &Event, own: &ServerName) -> Result<Self, String> {
        let version = event.room_version.as_deref().ok_or("nothing says its room's version")?;
        let version = RoomVersionId::try_from(version).map_err(|error| error.to_string())?;
        let rules = version.rules();
        let rules =
            rules.ok_or_else(|| format!("this server has no rooms of version {version}"))?;
        let texts = match Texts::of_plain(event, &rules, own) {
            Some(texts) => texts,
            None => Texts::new(event, &rules, own)?,
        };
        let Texts { event_id, pdu, unsigned, stripped } = texts;
        if event_id.as_str() != event.event_id {
            return Err("its id is not the one that its content gives it".to_owned());
        }
        let id = |text: &str| format!("`{}` is no id", text.escape_debug());
        let room_id = OwnedRoomId::try_from(&*event.room_id).map_err(|_| id(&event.room_id))?;
        let sender = OwnedUserId::try_from(&*event.sender).map_err(|_| id(&event.sender))?;
        if pdu.get().len() > limits::EVENT_BYTES {
            return Err(format!("it has {} bytes; events have up to 65536", pdu.get().len()));
        }
        // Whatever the server will read of it must be readable.
        let body = RoomEvent::new(room_id.clone(), event_id.clone(), pdu.clone());
        let stored = StoredEvent::new(Offset::ZERO, body)
            .map_err(|error| format!("it is not an event: {error}"))?;
        let facts = EventFacts::of(&stored)?;
        Ok(Self { room_id, event_id, sender, version, rules, pdu, unsigned, stripped, facts })
    }
}

/// The texts of an event.
#[derive(Debug)]
struct Texts {
    event_id: OwnedEventId,
    /// As in [`ReadyEvent`].
    pdu: Box<RawValue>,
    unsigned: Option<Box<RawValue>>,
    stripped: Vec<Box<RawValue>>,
}

/// Types of events of which a redaction leaves some of the content.
const PARTLY_KEPT: [&str; 7] = [
    "m.room.aliases",
    "m.room.create",
    "m.room.history_visibility",
    "m.room.join_rules",
    "m.room.member",
    "m.room.power_levels",
    "m.room.redaction",
];

/// Members that a redaction leaves, and an event's id covers, in all room versions.
const KEPT: [&str; 10] = [
    "auth_events",
    "content",
    "depth",
    "hashes",
    "origin_server_ts",
    "prev_events",
    "room_id",
    "sender",
    "state_key",
    "type",
];

impl Texts {
    /// The error is a sentence without its full stop.
    fn new(event: &Event, rules: &RoomVersionRules, own: &ServerName) -> Result<Self, String> {
        let parts = event.parts()?;
        let mut object = LaxObject::parse(&parts.pdu).map_err(|error| error.to_string())?;
        if !has_chosen_ids(rules) {
            // Synapse has written it into some events, beside what is hashed.
            object.remove("event_id");
        }
        let event_id = object.event_id(rules).map_err(|error| error.to_string())?;
        let pdu = object.to_raw().map_err(|error| error.to_string())?;
        let is_own = event.sender.split_once(':').is_some_and(|(_, server)| server == own.as_str());
        let unsigned = is_own
            .then(|| without_signature(object, own).to_raw())
            .transpose()
            .map_err(|error| error.to_string())?;
        let stripped = parts.stripped.as_deref().map(RawValue::get).unwrap_or("[]");
        let stripped = serde_json::from_str(stripped).unwrap_or_default();
        Ok(Self { event_id, pdu, unsigned, stripped })
    }

    /// The same for most events, in a third of the time: those whose content is not in their ids,
    /// and that have nothing unusual in them. `None` if there is anything to look at. If it makes
    /// no mistake, the id is the one that the source knows, which is looked at here.
    fn of_plain(event: &Event, rules: &RoomVersionRules, own: &ServerName) -> Option<Self> {
        if event.format < 3 || PARTLY_KEPT.contains(&&*event.event_type) {
            return None;
        }
        let opening = |byte: &u8| matches!(byte, b'{' | b'[');
        if event.json.bytes().filter(opening).count() > limits::ITEM_DEPTH {
            return None;
        }
        let mut members: BTreeMap<String, &RawValue> = serde_json::from_str(&event.json).ok()?;
        if let Some(unsigned) = members.get("unsigned")
            && unsigned.get().contains("_room_state")
        {
            return None;
        }
        for member in BESIDE.iter().chain(&["event_id"]) {
            members.remove(*member);
        }
        for (member, known) in [
            ("room_id", Some(&event.room_id)),
            ("sender", Some(&event.sender)),
            ("type", Some(&event.event_type)),
            ("state_key", event.state_key.as_ref()),
        ] {
            let said = members.get(member).map(|text| serde_json::from_str::<String>(text.get()));
            if said.transpose().ok()?.as_ref() != known {
                return None;
            }
        }
        let (mut pdu, mut unsigned, mut covered) = (Object::new(), Object::new(), Object::new());
        for (name, value) in &members {
            if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'))
            {
                return None;
            }
            let value = canonical(value.get(), Numbers::Strict).ok()?;
            pdu.push(name, &value);
            match &**name {
                "signatures" => {
                    let mut left: BTreeMap<String, &RawValue> =
                        serde_json::from_str(&value).ok()?;
                    left.remove(own.as_str());
                    if !left.is_empty() {
                        unsigned.push(name, &serde_json::to_string(&left).ok()?);
                    }
                }
                _ => unsigned.push(name, &value),
            }
            match &**name {
                "content" if value.starts_with('{') => covered.push(name, "{}"),
                "content" => return None,
                "origin" | "membership" | "prev_state"
                    if rules.redaction.keep_origin_membership_prev_state =>
                {
                    covered.push(name, &value);
                }
                _ if KEPT.contains(&&**name) => covered.push(name, &value),
                _ => {}
            }
        }
        let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(covered.end()));
        let event_id = OwnedEventId::try_from(format!("${hash}")).ok()?;
        if event_id.as_str() != event.event_id {
            return None;
        }
        let is_own = event.sender.split_once(':').is_some_and(|(_, server)| server == own.as_str());
        let raw = |text: String| RawValue::from_string(text).ok();
        Some(Self {
            event_id,
            pdu: raw(pdu.end())?,
            unsigned: if is_own { Some(raw(unsigned.end())?) } else { None },
            stripped: Vec::new(),
        })
    }
}

/// The text of an object whose members come in their order.
struct Object(String);

impl Object {
    fn new() -> Self {
        Self(String::with_capacity(1024))
    }

    /// Adds a member whose name needs no escapes.
    fn push(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        for part in ["\"", name, "\":", value] {
            self.0.push_str(part);
        }
    }

    fn end(mut self) -> String {
        if self.0.is_empty() {
            self.0.push('{');
        }
        self.0.push('}');
        self.0
    }
}

/// An event of this server is stored without its signature, which covers only what is in the event
/// and can be made at any time.
fn without_signature(mut object: LaxObject, own: &ServerName) -> LaxObject {
    if let Some(CanonicalJsonValue::Object(signatures)) = object.get_mut("signatures") {
        signatures.remove(own.as_str());
        if signatures.is_empty() {
            object.remove("signatures");
        }
    }
    object
}

#[cfg(test)]
pub(super) mod tests {
    use ruma::{RoomVersionId, server_name};
    use serde_json::{Value, json};

    use super::*;
    use crate::facts::{Judged, Metadata};

    /// An event as Synapse would have stored it, with the id that its content gives it.
    pub(in crate::copy) fn event(
        version: &RoomVersionId,
        mut json: Value,
        judged: Judged,
        stream: i64,
    ) -> Event {
        let rules = version.rules().unwrap();
        let mut object = LaxObject::parse(&json.to_string()).unwrap();
        object.add_content_hash().unwrap();
        let event_id = object.event_id(&rules).unwrap();
        json["hashes"] = serde_json::to_value(object.get("hashes").unwrap()).unwrap();
        json["unsigned"] = json!({ "age_ts": 5 });
        Event {
            event_id: event_id.to_string(),
            room_id: json["room_id"].as_str().unwrap().to_owned(),
            sender: json["sender"].as_str().unwrap().to_owned(),
            event_type: json["type"].as_str().unwrap().to_owned(),
            state_key: json["state_key"].as_str().map(str::to_owned),
            stream,
            first_stream: None,
            depth: json["depth"].as_i64().unwrap(),
            origin_ms: 1,
            received_ms: Some(1_600_000_000_000 + stream),
            judged,
            group: None,
            group_from: None,
            room_version: Some(version.to_string()),
            format: 3,
            transaction_id: None,
            device_id: None,
            metadata: Metadata::default(),
            json: json.to_string(),
        }
    }

    fn message() -> Value {
        json!({
            "room_id": "!r:a.example", "sender": "@u:a.example", "type": "m.room.message",
            "content": { "body": "hi" }, "depth": 3, "origin_server_ts": 7,
            "prev_events": ["$u1Xb0o2yE6gwmPF1DFN7xw2Pc-8pmlwd2oe8MYqnOWI"], "auth_events": [],
            "signatures": {
                "a.example": { "ed25519:k": "s" }, "policy.example": { "ed25519:p": "t" },
            },
        })
    }

    #[test]
    fn an_event_of_this_server_loses_only_its_own_signature() {
        let event = event(&RoomVersionId::V10, message(), Judged::Timeline, 5);
        let ready = ReadyEvent::new(&event, server_name!("a.example")).unwrap();
        let unsigned: Value = serde_json::from_str(ready.unsigned.as_ref().unwrap().get()).unwrap();
        assert_eq!(unsigned["signatures"], json!({ "policy.example": { "ed25519:p": "t" } }));
        assert!(unsigned.get("unsigned").is_none());
        assert!(ready.pdu.get().contains(r#""a.example":{"ed25519:k":"s"}"#));
        assert_eq!(ready.event_id.as_str(), event.event_id);
        assert_eq!((ready.facts.depth, ready.facts.ts), (3, 7));
        let elsewhere = ReadyEvent::new(&event, server_name!("b.example")).unwrap();
        assert!(elsewhere.unsigned.is_none());
    }

    #[test]
    fn what_no_server_could_read_is_refused_with_a_reason() {
        let version = RoomVersionId::V10;
        let why = |event: &Event| {
            ReadyEvent::new(event, server_name!("a.example")).expect_err("a bad event")
        };
        let mut altered = event(&version, message(), Judged::Timeline, 5);
        altered.json = altered.json.replace("\"depth\":3", "\"depth\":4");
        assert!(why(&altered).contains("its id"), "{}", why(&altered));
        let mut unknown = event(&version, message(), Judged::Timeline, 5);
        unknown.room_version = Some("org.example.unheard".to_owned());
        assert!(why(&unknown).contains("version"), "{}", why(&unknown));
        unknown.room_version = None;
        assert!(why(&unknown).contains("version"), "{}", why(&unknown));
        let mut member = message();
        (member["type"], member["state_key"]) = (json!("m.room.member"), json!("@u:a.example"));
        let member = event(&version, member, Judged::Timeline, 5);
        assert!(why(&member).contains("membership"), "{}", why(&member));
        let mut deep = message();
        deep["depth"] = json!(-1);
        let deep = event(&version, deep, Judged::Timeline, 5);
        assert!(why(&deep).contains("not an event"), "{}", why(&deep));
    }

    #[test]
    fn rooms_whose_events_have_chosen_ids_keep_them() {
        let mut json = message();
        json["event_id"] = json!("$1:a.example");
        json["prev_events"] = json!([["$0:a.example", { "sha256": "x" }]]);
        let event = event(&RoomVersionId::V1, json, Judged::Timeline, 5);
        let ready = ReadyEvent::new(&event, server_name!("b.example")).unwrap();
        assert_eq!(ready.event_id, "$1:a.example");
        assert_eq!(ready.facts.prev_events, ["$0:a.example"]);
        assert!(ready.pdu.get().contains(r#""event_id":"$1:a.example""#));
    }

    /// Whether an event takes the short way, and both ways lead to the same.
    fn is_plain(event: &Event, own: &ServerName) -> bool {
        let version = RoomVersionId::try_from(event.room_version.as_deref().unwrap()).unwrap();
        let rules = version.rules().unwrap();
        let Some(plain) = Texts::of_plain(event, &rules, own) else { return false };
        let long = Texts::new(event, &rules, own).unwrap();
        assert_eq!(plain.event_id, long.event_id);
        assert_eq!(plain.pdu.get(), long.pdu.get());
        let text = |texts: &Texts| texts.unsigned.as_ref().map(|text| text.get().to_owned());
        assert_eq!(text(&plain), text(&long));
        assert!(long.stripped.is_empty());
        true
    }

    #[test]
    fn the_short_way_leads_where_the_long_one_does() {
        let own = server_name!("a.example");
        let contents = [
            json!({}),
            json!({ "z": 1, "a": { "y": [1, { "d": 0, "c": -5 }], "\u{1f98a}": "\u{7f}" } }),
            json!({ "body": "tab\t, quote\", \\, line\n, \u{1} \u{e9} \u{1f98a}" }),
            json!({ "signatures": { "a.example": { "ed25519:k": "s" } } }),
        ];
        for version in
            [RoomVersionId::V4, RoomVersionId::V6, RoomVersionId::V10, RoomVersionId::V12]
        {
            for (number, content) in contents.iter().enumerate() {
                for servers in
                    [&["a.example"][..], &["policy.example", "a.example"], &["b.example"]]
                {
                    let mut json = message();
                    json["content"] = content.clone();
                    json["signatures"] = json!({});
                    for server in servers {
                        json["signatures"][server] = json!({ "ed25519:k": "s" });
                    }
                    json["origin"] = json!("a.example");
                    json["org.example.more"] = json!([{ "b": 1, "a": 2 }]);
                    if number == 1 {
                        (json["type"], json["state_key"]) =
                            (json!("m.room.topic"), json!("\u{e9}"));
                    }
                    let event = event(&version, json, Judged::Timeline, 5);
                    assert!(is_plain(&event, own), "{version}: {}", event.json);
                    assert!(is_plain(&event, server_name!("b.example")), "{version}");
                }
            }
        }
    }

    #[test]
    fn of_members_of_one_name_both_ways_take_the_last() {
        let own = server_name!("a.example");
        let mut event = event(&RoomVersionId::V10, message(), Judged::Timeline, 5);
        for (member, twice) in [
            ("\"content\":{", "\"content\":{\"body\":0,\"x\":{\"y\":1,\"y\":[2]},"),
            ("\"type\":", "\"type\":\"m.other\",\"type\":"),
            ("\"depth\":", "\"depth\":99,\"depth\":"),
        ] {
            let before = event.json.len();
            event.json = event.json.replacen(member, twice, 1);
            assert!(event.json.len() > before && is_plain(&event, own), "{}", event.json);
        }
    }

    #[test]
    fn what_is_unusual_takes_the_long_way() {
        let own = server_name!("a.example");
        let mut member = message();
        (member["type"], member["state_key"]) = (json!("m.room.member"), json!("@u:a.example"));
        member["content"] = json!({ "membership": "join" });
        let odd = |name: &str, value: Value| {
            let mut json = message();
            json[name] = value;
            json
        };
        for json in [member, odd("content", json!({ "n": 1.5 })), odd("a b", json!(1))] {
            let event = event(&RoomVersionId::V4, json, Judged::Timeline, 5);
            assert!(!is_plain(&event, own), "{}", event.json);
            assert!(ReadyEvent::new(&event, own).is_ok());
        }
        let mut altered = event(&RoomVersionId::V10, message(), Judged::Timeline, 5);
        altered.json = altered.json.replace("\"depth\":3", "\"depth\":4");
        assert!(!is_plain(&altered, own));
    }
}
