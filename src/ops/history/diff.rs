//! A summary of what happened between two moments: how many records of each kind were written, and
//! which facts changed.

use std::collections::{BTreeMap, BTreeSet};

use ruma::{OwnedUserId, UserId, events::StateEventType};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    History, HistoryError, Source,
    moment::{Moment, Time},
    query::KindRow,
};
use logcabin_record::{
    Offset, Record,
    command::{Body as _, RoomEvent},
};
use logcabin_state::Room;

/// The scope of a summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole server, in outline.
    Server,
    /// A room, by id, alias, name, or a prefix of an id or alias.
    Room(String),
    /// A user, by id or its part before the colon.
    User(String),
}

/// What happened between two moments.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// The room or user; none for the server.
    pub of: Option<String>,
    /// The last record before the period.
    pub from: Offset,
    pub from_time: Option<String>,
    /// The last record of the period.
    pub to: Offset,
    pub to_time: Option<String>,
    /// How many records of the period concern it.
    pub records: u64,
    /// Their number by kind, and for events by type.
    pub kinds: Vec<KindRow>,
    /// The changed facts, by name.
    pub changes: Vec<Change>,
}

/// A fact that changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The subject.
    pub what: String,
    /// The value before; none if there was none.
    pub before: Option<Value>,
    /// The value afterwards; none if it was removed.
    pub after: Option<Value>,
}

/// A fact before bodies of events are read: those are read only for facts that differ.
#[derive(Clone, Debug, PartialEq)]
enum FactValue {
    Is(Value),
    Event(Offset),
}

type Facts = BTreeMap<String, FactValue>;

/// Sums up what happened in `scope` between two moments, given in either order.
pub fn diff(source: &Source, scope: &Scope, a: Moment, b: Moment) -> Result<Diff, HistoryError> {
    let (a, b) = (super::query::offset_of(source, a)?, super::query::offset_of(source, b)?);
    let (from, to) = (a.min(b), a.max(b));
    let mut history = History::open(source, Some(Moment::At(from)))?;
    let named = |history: &History<'_>| -> Result<Option<String>, HistoryError> {
        Ok(match scope {
            Scope::Server => None,
            Scope::Room(name) => Some(history.room(name)?.id.to_string()),
            Scope::User(name) => Some(history.user_id(name)?.to_string()),
        })
    };
    let target = match named(&history) {
        // It may have been created between the two moments.
        Err(_) => named(&History::open(source, Some(Moment::At(to)))?)?,
        found => found?,
    };
    let target = target.as_deref();
    let before = history.facts(scope, target);
    let from_time = history.time_of(from)?;
    let (mut kinds, mut records) = (BTreeMap::<String, KindRow>::new(), 0);
    history.go_on(Some(Moment::At(to)), |record| {
        if concerns(record, scope, target) {
            let name = kind_of(record);
            let row = kinds.entry(name.clone()).or_default();
            row.kind = name;
            row.records += 1;
            row.bytes += u64::from(record.header.payload_len);
            records += 1;
        }
    })?;
    let after = history.facts(scope, target);
    Ok(Diff {
        of: target.map(str::to_owned),
        from,
        from_time,
        to,
        to_time: history.time_of(to)?,
        records,
        kinds: kinds.into_values().collect(),
        changes: history.changes(before, after)?,
    })
}

/// The facts of a room or a user that changed between two moments, from the live projections of a
/// server (see [`History::live`]); of a room's state, the `most` that changed last. The cost is
/// proportional to the changes.
pub fn changed(
    from: &History<'_>,
    to: &History<'_>,
    scope: &Scope,
    most: usize,
) -> Result<Vec<Change>, HistoryError> {
    let (mut before, mut after) = (Facts::new(), Facts::new());
    match scope {
        Scope::Room(name) => {
            let room = to.room_now(name)?;
            let keys = room.changed_keys(from.end(), to.end(), most);
            from.facts_of_room(&room, keys.iter().cloned(), &mut before);
            to.facts_of_room(&room, keys, &mut after);
        }
        Scope::User(name) => {
            let user_id = to.user_id(name)?;
            from.facts_of_user(&user_id, &mut before);
            to.facts_of_user(&user_id, &mut after);
        }
        Scope::Server => {}
    }
    to.changes(before, after)
}

fn concerns(record: &Record, scope: &Scope, target: Option<&str>) -> bool {
    let Some(target) = target else { return true };
    let header = &record.header;
    match scope {
        Scope::Server => true,
        Scope::Room(_) => header.stream.room_id().is_some_and(|room_id| room_id == target),
        Scope::User(_) => {
            let localpart = <&UserId>::try_from(target).map_or(target, UserId::localpart);
            header.stream.localpart() == Some(localpart) || *header.origin.user == *target
        }
    }
}

/// The kind of a record; for an event, also its type.
fn kind_of(record: &Record) -> String {
    #[derive(serde::Deserialize)]
    struct Event {
        pdu: Typed,
    }
    #[derive(serde::Deserialize)]
    struct Typed {
        #[serde(rename = "type")]
        event_type: String,
    }
    let kind = record.header.kind.to_string();
    if kind != RoomEvent::KIND.name {
        return kind;
    }
    let event = record.payload.bytes().and_then(|bytes| serde_json::from_slice(bytes).ok());
    event.map_or(kind, |event: Event| event.pdu.event_type)
}

impl History<'_> {
    fn time_of(&self, offset: Offset) -> Result<Option<String>, HistoryError> {
        if offset == Offset::ZERO {
            return Ok(None);
        }
        let mut time = None;
        self.source().fetch(&[offset], |record| {
            time = Some(Time(record.header.time_ms).to_string());
            Ok::<_, HistoryError>(())
        })?;
        Ok(time)
    }

    /// The facts of `scope`, whose subject is `target`, as of the end of the replay.
    fn facts(&self, scope: &Scope, target: Option<&str>) -> Facts {
        let mut facts = Facts::new();
        match (scope, target) {
            (Scope::Server, _) | (_, None) => self.facts_of_server(&mut facts),
            (Scope::Room(_), Some(room_id)) => {
                let room = <&ruma::RoomId>::try_from(room_id).ok();
                if let Some(room) = room.and_then(|room_id| self.state().rooms.get(room_id)) {
                    let all = room.state_changes(self.end());
                    let keys = all.into_iter().map(|(_, event_type, key)| (event_type, key));
                    self.facts_of_room(&room, keys, &mut facts);
                }
            }
            (Scope::User(_), Some(user_id)) => {
                if let Ok(user_id) = OwnedUserId::try_from(user_id) {
                    self.facts_of_user(&user_id, &mut facts);
                }
            }
        }
        facts
    }

    fn facts_of_server(&self, facts: &mut Facts) {
        let mut is = |what: String, value: Value| facts.insert(what, FactValue::Is(value));
        let state = self.state();
        for user_id in state.accounts.user_ids() {
            let Some(account) = state.accounts.get(&user_id) else { continue };
            let account = account.read();
            let standing = &account.standing;
            is(
                format!("user {user_id}"),
                json!({
                    "admin": standing.admin,
                    "locked": standing.locked,
                    "suspended": standing.suspended,
                    "shadow_banned": standing.shadow_banned,
                    "waiting": standing.waiting.is_some(),
                    "deactivated": standing.deactivated.is_some(),
                    "devices": account.active_devices().count(),
                }),
            );
        }
        for room in state.rooms.all() {
            let counts = room.counts(self.end());
            let facts = json!({ "joined": counts.joined, "public": room.is_public() });
            is(format!("room {}", room.id), facts);
        }
        for alias in self.aliases(None) {
            is(format!("alias {}", alias.alias), json!(alias.room_id));
        }
        for token in self.registration_tokens() {
            let label = token.label.as_deref().unwrap_or_default();
            is(
                format!("registration token {} {label}", token.id).trim_end().to_owned(),
                json!({ "uses": token.uses, "uses_allowed": token.uses_allowed }),
            );
        }
    }

    /// The facts of a room; of its state, those with these keys.
    fn facts_of_room(
        &self,
        room: &Room,
        keys: impl IntoIterator<Item = (StateEventType, String)>,
        facts: &mut Facts,
    ) {
        for (event_type, state_key) in keys {
            let Some(offset) = room.state_event(&event_type, &state_key, self.end()) else {
                continue;
            };
            let name = event_type.to_string();
            let short = name.strip_prefix("m.room.").unwrap_or(&name);
            match OwnedUserId::try_from(state_key.as_str()) {
                Ok(user_id) if short == "member" => {
                    let membership = room.membership(&user_id, self.end());
                    let membership = membership.map(|(_, membership)| membership.as_str());
                    facts.insert(format!("member {state_key}"), FactValue::Is(json!(membership)));
                }
                _ => {
                    let what = format!("{short} {state_key}").trim_end().to_owned();
                    facts.insert(what, FactValue::Event(offset));
                }
            }
        }
        let counts = room.counts(self.end());
        facts.insert("joined members".to_owned(), FactValue::Is(json!(counts.joined)));
        facts.insert(
            "in the directory".to_owned(),
            FactValue::Is(json!(room.was_public(self.end()))),
        );
        for alias in self.aliases_of(room) {
            facts.insert(format!("alias {}", alias.alias), FactValue::Is(json!(alias.creator)));
        }
    }

    fn facts_of_user(&self, user_id: &UserId, facts: &mut Facts) {
        let Ok(user) = self.user(user_id) else { return };
        let mut is = |what: String, value: Value| facts.insert(what, FactValue::Is(value));
        let set_with = |offset: Offset| json!(format!("set with record {offset}"));
        is("account".to_owned(), user.kind.clone());
        for (what, on) in [
            ("administrator", user.admin),
            ("locked", user.locked),
            ("suspended", user.suspended),
            ("shadow-banned", user.shadow_banned),
            ("waiting for approval", user.waiting.is_some()),
            ("deactivated", user.deactivated.is_some()),
        ] {
            is(what.to_owned(), json!(on));
        }
        if let Some(offset) = user.password {
            is("password".to_owned(), set_with(offset));
        }
        for (field, value) in user.profile {
            is(format!("profile {field}"), value);
        }
        for device in user.devices {
            let name = json!({ "display_name": device.display_name, "session": device.session });
            is(format!("device {}", device.device_id), name);
        }
        for (room_id, membership) in user.rooms {
            is(format!("room {room_id}"), json!(membership));
        }
        for address in user.addresses {
            is(format!("address {address}"), json!(true));
        }
        for pusher in user.pushers {
            is(format!("pusher {} {}", pusher.app_id, pusher.offset), json!(pusher.device));
        }
        for (name, offset) in user.account_data {
            is(format!("account data {name}"), set_with(offset));
        }
    }

    /// The facts that differ, with the bodies of their events.
    fn changes(&self, before: Facts, after: Facts) -> Result<Vec<Change>, HistoryError> {
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let differ: Vec<_> = names
            .into_iter()
            .map(|what| (what, before.get(what), after.get(what)))
            .filter(|(_, before, after)| before != after)
            .collect();
        let held = differ.iter().flat_map(|(_, before, after)| [*before, *after]);
        let offsets: Vec<_> = held
            .filter_map(|held| match held {
                Some(FactValue::Event(offset)) => Some(*offset),
                _ => None,
            })
            .collect();
        let loaded = self.load(&offsets)?;
        let value = |held: Option<&FactValue>| match held? {
            FactValue::Is(value) => Some(value.clone()),
            FactValue::Event(offset) => {
                let event = loaded.get(offset)?.event.as_ref();
                event.map_or_else(|| Some(json!("(erased)")), |event| event.content_as().ok())
            }
        };
        let mut changes = Vec::new();
        for (what, before, after) in differ {
            let (before, after) = (value(before), value(after));
            if what == "power_levels" {
                changes.extend(powers(before.as_ref(), after.as_ref()));
            } else if before != after {
                changes.push(Change { what: what.clone(), before, after });
            }
        }
        Ok(changes)
    }
}

/// Power levels, each by itself.
fn powers(before: Option<&Value>, after: Option<&Value>) -> Vec<Change> {
    let flat = |levels: Option<&Value>| {
        let mut flat = Map::new();
        for (name, level) in levels.and_then(Value::as_object).into_iter().flatten() {
            let what = match name.as_str() {
                "users" => "of",
                "events" => "to send",
                other => other,
            };
            match level {
                Value::Object(levels) => {
                    flat.extend(
                        levels.iter().map(|(of, level)| (format!("{what} {of}"), level.clone())),
                    );
                }
                level => drop(flat.insert(what.to_owned(), level.clone())),
            }
        }
        flat
    };
    let (before, after) = (flat(before), flat(after));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changes = names.into_iter().map(|name| Change {
        what: format!("power {name}"),
        before: before.get(name).cloned(),
        after: after.get(name).cloned(),
    });
    changes.filter(|change| change.before != change.after).collect()
}
