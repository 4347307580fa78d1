//! Audits whether syncs told a user what the log says they should have.
//!
//! The expected answer is computed from the records alone, slowly and by the text of the
//! specification ([`Ledger`]). It shares no code with the server's answers. [`Ledger::check`]
//! compares one answer with it: the rooms, the events, whether these result in the rooms' state,
//! account data and receipts.

mod answers;
mod ledger;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Value, json};

pub(super) use self::answers::Bodies;
use self::ledger::{Key, RoomLedger};
pub use self::{
    answers::{Audit, AuditOptions, WrongAnswer, audit},
    ledger::Ledger,
};
use logcabin_record::Offset;

/// The parameters of a `/sync` request that change its answer. Filters on types, senders and rooms
/// are not supported: answers to them cannot be checked here.
#[derive(Clone, Copy, Debug, Default)]
pub struct SyncParameters {
    /// The client's position.
    pub since: Option<Offset>,
    /// The position as of which the answer was given.
    pub to: Offset,
    pub full_state: bool,
    pub use_state_after: bool,
    /// The filter's `lazy_load_members`.
    pub lazy_load_members: bool,
    /// The filter's `include_leave`.
    pub include_leave: bool,
}

/// A disagreement between an answer and the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The room, if it concerns one.
    pub room: Option<String>,
    /// What disagrees.
    pub what: String,
}

/// A disagreement in one room's part.
type Faults = Vec<String>;

impl Ledger {
    /// Compares one answer with the expected one. It is right if there are no findings.
    pub fn check(&self, asked: &SyncParameters, answer: &Value) -> Vec<Finding> {
        let mut findings = Vec::new();
        let rooms = &answer["rooms"];
        for (section, membership) in
            [("join", "join"), ("invite", "invite"), ("knock", "knock"), ("leave", "leave")]
        {
            for (room_id, _) in rooms[section].as_object().into_iter().flatten() {
                let room = self.rooms.iter().find(|(id, _)| id.as_str() == room_id);
                let is = room.map(|(_, room)| room.membership(self.user_id.as_str(), asked.to).1);
                let is = match is {
                    Some("ban") => Some("leave"),
                    // A leave before an invite that is not sent is checked with the room.
                    Some("invite") if section == "leave" => Some("leave"),
                    is => is,
                };
                if is != Some(membership) {
                    let what = format!(
                        "the room is under `{section}`, but the user's membership is {is:?}"
                    );
                    findings.push(Finding { room: Some(room_id.clone()), what });
                }
            }
        }
        for (room_id, room) in &self.rooms {
            let check = RoomCheck { ledger: self, room_id: room_id.as_str(), room, asked };
            let faults = check.run(rooms);
            let found = faults.into_iter();
            findings.extend(found.map(|what| Finding { room: Some(room_id.to_string()), what }));
        }
        let since = asked.since.unwrap_or(Offset::ZERO);
        let faults = self.check_account_data(None, since, asked, &answer["account_data"]);
        findings.extend(faults.into_iter().map(|what| Finding { room: None, what }));
        findings
    }

    fn check_account_data(
        &self,
        room_id: Option<&str>,
        since: Offset,
        asked: &SyncParameters,
        answer: &Value,
    ) -> Faults {
        let of_room = self.account_data.iter().filter(|data| {
            data.room_id.as_ref().map(|id| id.as_str()) == room_id && data.offset <= asked.to
        });
        let mut expected = BTreeMap::new();
        for data in of_room {
            expected.insert(data.event_type.as_str(), data);
        }
        // A deletion, shown as an empty object, is news only to clients that had the data.
        let first = since == Offset::ZERO;
        expected.retain(|_, data| data.offset > since && !(first && data.content.is_null()));
        let deleted = json!({});
        let told: BTreeMap<&str, &Value> = events(answer)
            .filter_map(|event| Some((event["type"].as_str()?, &event["content"])))
            .collect();
        let mut faults = Faults::new();
        for (event_type, data) in &expected {
            match told.get(event_type) {
                None => faults.push(format!("account data `{event_type}` is missing")),
                // The server adds default rules to the push rules that were set.
                Some(_) if *event_type == "m.push_rules" => {}
                Some(content) if data.content.is_null() && **content == deleted => {}
                Some(content) if **content != data.content => {
                    faults.push(format!("account data `{event_type}` differs from what was set"));
                }
                Some(_) => {}
            }
        }
        for event_type in told.keys() {
            if !expected.contains_key(event_type) && *event_type != "m.push_rules" {
                faults.push(format!("account data `{event_type}` is not new"));
            }
        }
        faults
    }
}

/// One room's part of an answer, and the expected one.
struct RoomCheck<'a> {
    ledger: &'a Ledger,
    room_id: &'a str,
    room: &'a RoomLedger,
    asked: &'a SyncParameters,
}

impl RoomCheck<'_> {
    fn run(&self, rooms: &Value) -> Faults {
        let user_id = self.ledger.user_id.as_str();
        let (changed, membership) = self.room.membership(user_id, self.asked.to);
        let since = self.asked.since.unwrap_or(Offset::ZERO);
        let initial = self.asked.since.is_none();
        let part = |section: &str| rooms[section].get(self.room_id);
        match membership {
            "join" => self.joined(part("join")),
            "invite" => {
                let is_told = self.is_told_of_invite(changed);
                let invited = self.expect_part(part(membership), changed > since && is_told);
                let removed = self.room.departed(user_id, self.asked.to);
                let was_joined = !is_told && self.was_joined(since);
                let removed = removed.filter(|removed| {
                    was_joined && self.room.membership(user_id, *removed).1 != "invite"
                });
                let mut faults = Faults::from_iter(invited);
                faults.extend(self.expect_part(part("leave"), removed.is_some()));
                if let (Some(part), Some(removed)) = (part("leave"), removed) {
                    faults.extend(self.left(part, removed, false));
                }
                faults
            }
            "knock" => self.expect_part(part(membership), changed > since).into_iter().collect(),
            _ => {
                let forgotten = self.room.is_forgotten(user_id, self.asked.to);
                let wanted = !initial || (self.asked.include_leave && !forgotten);
                let expected = changed > since && wanted;
                let fault = self.expect_part(part("leave"), expected);
                match part("leave") {
                    Some(part) if fault.is_none() => self.left(part, changed, forgotten),
                    _ => fault.into_iter().collect(),
                }
            }
        }
    }

    fn is_told_of_invite(&self, invite: Offset) -> bool {
        let (ledger, to) = (self.ledger, self.asked.to);
        let event = self.room.events.iter().find(|event| event.offset == invite);
        event.is_none_or(|event| {
            ledger.takes_invites_by(&event.sender, to) && !ledger.ignores(&event.sender, to)
        })
    }

    fn expect_part(&self, part: Option<&Value>, expected: bool) -> Option<String> {
        match (part, expected) {
            (None, true) => Some("the room is missing".to_owned()),
            (Some(_), false) => Some("the room has nothing new".to_owned()),
            _ => None,
        }
    }

    fn was_joined(&self, at: Offset) -> bool {
        self.room.membership(self.ledger.user_id.as_str(), at).1 == "join"
    }

    fn joined(&self, part: Option<&Value>) -> Faults {
        let asked = self.asked;
        let since = asked.since.filter(|since| self.was_joined(*since));
        let from = since.unwrap_or(Offset::ZERO);
        let nothing = Value::Null;
        let answer = part.unwrap_or(&nothing);
        if part.is_none() && (since.is_none() || asked.full_state) {
            return vec!["the room is missing".to_owned()];
        }
        let mut faults = self.timeline(answer, from, asked.to, part.is_none());
        faults.extend(self.state(answer, since, asked.full_state, asked.to));
        faults.extend(self.ledger.check_account_data(
            Some(self.room_id),
            from,
            asked,
            &answer["account_data"],
        ));
        faults.extend(self.receipts(answer, from));
        for (name, membership) in
            [("m.joined_member_count", "join"), ("m.invited_member_count", "invite")]
        {
            let count = self.room.count(membership, asked.to);
            let before = since.map(|since| self.room.count(membership, since));
            match answer["summary"][name].as_u64() {
                Some(told) if told != count => {
                    faults.push(format!("`{name}` is {told} instead of {count}"));
                }
                None if before != Some(count) => faults.push(format!("`{name}` is missing")),
                _ => {}
            }
        }
        faults
    }

    fn left(&self, answer: &Value, at: Offset, forgotten: bool) -> Faults {
        let user_id = self.ledger.user_id.as_str();
        let since = self.asked.since.unwrap_or(Offset::ZERO);
        let departed = self.room.departed(user_id, at).filter(|departed| *departed > since);
        let Some(departed) = departed.filter(|_| !forgotten) else {
            let told: Vec<_> = ids(&answer["timeline"]).collect();
            let own = self.room.events.iter().find(|event| event.offset == at);
            let fits = own.is_some_and(|own| told == [own.event_id.as_str()]);
            return if fits {
                Faults::new()
            } else {
                vec!["only the leave should be included".into()]
            };
        };
        let since = self.asked.since.filter(|since| self.was_joined(*since));
        let mut faults = self.timeline(answer, since.unwrap_or(Offset::ZERO), at, false);
        // `full_state` applies only to rooms that the user is in.
        faults.extend(self.state(answer, since, false, departed));
        faults
    }

    /// The events: the newest visible ones, in order, without gaps.
    fn timeline(&self, answer: &Value, since: Offset, to: Offset, absent: bool) -> Faults {
        let user_id = self.ledger.user_id.as_str();
        let now = self.asked.to;
        let mut visible = self.room.visible(user_id, since, to, now);
        // Of ignored users, only state events are sent.
        visible.retain(|event| event.key.is_some() || !self.ledger.ignores(&event.sender, now));
        let timeline = &answer["timeline"];
        let told: Vec<_> = ids(timeline).collect();
        let mut faults = Faults::new();
        let newest: Vec<_> = visible.iter().rev().take(told.len()).rev().collect();
        if !newest.iter().map(|event| event.event_id.as_str()).eq(told.iter().copied()) {
            let strange = told.iter().find(|id| !visible.iter().any(|e| e.event_id == **id));
            faults.push(match strange {
                Some(id) => format!("event {id} should not be included"),
                None => "the timeline does not have the newest events in order".to_owned(),
            });
        }
        let limited = timeline["limited"] == true;
        if !limited && told.len() < visible.len() {
            let missing = visible.len() - told.len();
            let where_ = if absent { "the room is missing" } else { "the timeline is not limited" };
            faults.push(format!("{missing} events are missing and {where_}"));
        }
        // A client that had the room before has to drop the events that it has.
        let last = self.asked.since.unwrap_or(Offset::ZERO);
        let is_again = since == Offset::ZERO && self.room.departed(user_id, last).is_some();
        if is_again && !limited && !absent {
            faults.push("the timeline begins again and is not limited".to_owned());
        }
        if limited && timeline["prev_batch"].as_str().is_none() {
            faults.push("the timeline is limited but has no prev_batch".to_owned());
        }
        let redacted = events(timeline)
            .zip(&newest)
            .filter(|(_, event)| self.room.is_redacted(event, self.asked.to));
        for (told, event) in redacted {
            if told["unsigned"]["redacted_because"].is_null() {
                faults.push(format!("event {} is not redacted", event.event_id));
            }
        }
        faults
    }

    /// The client's state after applying the answer is the state as of `to`.
    fn state(&self, answer: &Value, since: Option<Offset>, full: bool, to: Offset) -> Faults {
        let asked = self.asked;
        let whole = since.is_none() || full;
        let mut client: BTreeMap<Key, &str> = BTreeMap::new();
        let before = since.filter(|_| !whole).map(|since| self.room.state(since));
        for (key, event) in before.iter().flatten() {
            client.insert(key.clone(), event.event_id.as_str());
        }
        let truth = self.room.state(to);
        let mut faults = Faults::new();
        let name = if asked.use_state_after { "state_after" } else { "state" };
        let mut told = BTreeSet::new();
        for event in events(&answer[name]) {
            let Some((key, id)) = state_event(event) else {
                faults.push(format!("`{name}` has an event that is not a state event"));
                continue;
            };
            if !told.insert(key.clone()) {
                faults.push(format!("`{name}` has {key:?} twice"));
            }
            client.insert(key, id);
        }
        if !asked.use_state_after {
            // A user who was banned after leaving sees the ban, but not the room.
            let seen =
                |id: &str| self.room.events.iter().any(|e| e.event_id == id && e.offset <= to);
            let later = events(&answer["timeline"]).filter_map(state_event);
            client.extend(later.filter(|(_, id)| seen(id)));
        }
        let lazy = |key: &Key| asked.lazy_load_members && key.0 == "m.room.member";
        for (key, event) in &truth {
            match client.get(key) {
                Some(id) if *id == event.event_id => {}
                None if lazy(key) => {}
                // A client that loads members lazily may have an old member event of a silent user.
                Some(_) if lazy(key) && !told.contains(key) && self.unchanged(key, since, to) => {}
                Some(id) => faults.push(format!("{key:?} is {id} instead of {}", event.event_id)),
                None => faults.push(format!("{key:?} is missing")),
            }
        }
        for key in client.keys().filter(|key| !truth.contains_key(*key)) {
            faults.push(format!("{key:?} is not part of the state"));
        }
        if asked.lazy_load_members && whole {
            let senders = events(&answer["timeline"]).filter_map(|event| event["sender"].as_str());
            for sender in senders {
                let key = ("m.room.member".to_owned(), sender.to_owned());
                if truth.contains_key(&key) && !client.contains_key(&key) {
                    faults.push(format!("the member event of sender {sender} is missing"));
                }
            }
        }
        faults
    }

    fn unchanged(&self, key: &Key, since: Option<Offset>, to: Offset) -> bool {
        let id = |at| self.room.state(at).get(key).map(|event| event.event_id.clone());
        since.is_some_and(|since| id(since) == id(to))
    }

    fn receipts(&self, answer: &Value, since: Offset) -> Faults {
        let mut expected = self.room.receipts(&self.ledger.user_id, since, self.asked.to);
        expected.retain(|(_, _, user, _)| !self.ledger.ignores(user, self.asked.to));
        let mut told = BTreeSet::new();
        let events = events(&answer["ephemeral"]);
        for event in events.filter(|event| event["type"] == "m.receipt") {
            for (event_id, kinds) in event["content"].as_object().into_iter().flatten() {
                for (kind, users) in kinds.as_object().into_iter().flatten() {
                    for (user, data) in users.as_object().into_iter().flatten() {
                        let thread = data["thread_id"].as_str().map(ToOwned::to_owned);
                        told.insert((event_id.clone(), kind.clone(), user.clone(), thread));
                    }
                }
            }
        }
        let missing = expected.difference(&told).map(|r| format!("the receipt {r:?} is missing"));
        let strange = told.difference(&expected).map(|r| format!("the receipt {r:?} is not new"));
        missing.chain(strange).collect()
    }
}

fn events(part: &Value) -> impl Iterator<Item = &Value> {
    part["events"].as_array().into_iter().flatten()
}

fn ids(part: &Value) -> impl Iterator<Item = &str> {
    events(part).map(|event| event["event_id"].as_str().unwrap_or_default())
}

fn state_event(event: &Value) -> Option<(Key, &str)> {
    let key = (event["type"].as_str()?.to_owned(), event["state_key"].as_str()?.to_owned());
    Some((key, event["event_id"].as_str()?))
}
