//! One user's push rules made ready to judge events, and the judgement (client-server API, "Push
//! rules").
//!
//! A judgement is a pure function of the rules, the event and its circumstances.

use std::{collections::HashMap, sync::Arc};

use ruma::{
    OwnedRoomId, OwnedUserId, RoomId, UserId,
    push::{
        Action, ConditionalPushRule, PatternedPushRule, PushCondition, RoomMemberCountIs, Ruleset,
    },
};
use serde_json::Value;

use super::{
    glob::{Extent, Glob},
    levels::Levels,
    subject::{self, Subject},
};
use crate::events::Derived;

/// What an event's room and the user in it were when the event came.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    /// How many were joined.
    pub members: u64,
    /// The user's display name in the room, as a pattern.
    pub display_name: Option<&'a Glob>,
    /// The power levels.
    pub levels: &'a Levels,
}

/// What is to be done about an event.
#[derive(Debug)]
pub struct Outcome {
    /// The rule.
    pub rule_id: Box<str>,
    /// The actions, as the rule has them.
    pub actions: Vec<Action>,
    /// Whether the user is notified.
    pub notify: bool,
    /// Whether the event is highlighted.
    pub highlight: bool,
}

impl Outcome {
    fn new(rule_id: &str, actions: &[Action]) -> Arc<Self> {
        let notify = actions.iter().any(Action::should_notify);
        // Of several tweaks of one name, the last counts.
        let is_highlight = |action: &&Action| matches!(action, Action::SetTweak(tweak) if tweak.set_tweak() == "highlight");
        let highlight = actions.iter().rfind(is_highlight).is_some_and(Action::is_highlight);
        let rule_id = rule_id.into();
        Arc::new(Self {
            rule_id,
            actions: actions.to_vec(),
            notify,
            highlight: notify && highlight,
        })
    }
}

/// A user's rules. Those that are not enabled are left out.
#[derive(Debug, Default)]
pub struct Rules {
    overriding: Vec<Rule>,
    content: Vec<Rule>,
    rooms: HashMap<OwnedRoomId, Arc<Outcome>>,
    senders: HashMap<OwnedUserId, Arc<Outcome>>,
    underride: Vec<Rule>,
    bytes: u64,
}

#[derive(Debug)]
struct Rule {
    conditions: Vec<Condition>,
    outcome: Arc<Outcome>,
}

#[derive(Debug)]
enum Condition {
    Match(Vec<String>, Glob),
    BodyMatch(Glob),
    Is(Vec<String>, Value),
    Contains(Vec<String>, Value),
    DisplayName,
    Members(RoomMemberCountIs),
    SenderMayNotify(String),
    /// For the rules that `m.mentions` has replaced.
    NoMentions,
    /// Not known, or not possible.
    Never,
}

/// The rules that are there only for events that do not say themselves whom they mention.
pub(super) const WITHOUT_MENTIONS: [&str; 3] =
    [".m.rule.contains_display_name", ".m.rule.roomnotif", ".m.rule.contains_user_name"];

impl Rules {
    /// The rules of a ruleset.
    #[must_use]
    pub fn new(ruleset: &Ruleset) -> Self {
        let conditional = |rules: &mut dyn Iterator<Item = &ConditionalPushRule>| {
            rules.filter(|rule| rule.enabled).map(Rule::conditional).collect::<Vec<_>>()
        };
        let mut new = Self {
            overriding: conditional(&mut ruleset.override_.iter()),
            content: ruleset.content.iter().filter(|r| r.enabled).map(Rule::patterned).collect(),
            underride: conditional(&mut ruleset.underride.iter()),
            ..Self::default()
        };
        for rule in ruleset.room.iter().filter(|rule| rule.enabled) {
            let outcome = Outcome::new(rule.rule_id.as_str(), &rule.actions);
            new.rooms.insert(rule.rule_id.clone(), outcome);
        }
        for rule in ruleset.sender.iter().filter(|rule| rule.enabled) {
            let outcome = Outcome::new(rule.rule_id.as_str(), &rule.actions);
            new.senders.insert(rule.rule_id.clone(), outcome);
        }
        let rules = [&new.overriding, &new.content, &new.underride].map(Vec::len);
        let simple = new.rooms.len() + new.senders.len();
        new.bytes = 512 * (rules.iter().sum::<usize>() + simple) as u64;
        new
    }

    /// What is to be done about `subject`, which is not of the user themselves: the outcome of the
    /// first rule that matches, if one does.
    #[must_use]
    pub fn judge(
        &self,
        subject: &Subject,
        sender: &UserId,
        room_id: &RoomId,
        circumstances: Circumstances<'_>,
    ) -> Option<&Arc<Outcome>> {
        let first =
            |rules: &'_ [Rule]| rules.iter().position(|rule| rule.matches(subject, circumstances));
        if let Some(index) = first(&self.overriding) {
            return Some(&self.overriding[index].outcome);
        }
        if let Some(index) = first(&self.content) {
            return Some(&self.content[index].outcome);
        }
        if let Some(outcome) = self.rooms.get(room_id).or_else(|| self.senders.get(sender)) {
            return Some(outcome);
        }
        first(&self.underride).map(|index| &self.underride[index].outcome)
    }
}

impl Derived for Rules {
    fn weight(&self) -> u64 {
        self.bytes
    }
}

impl Rule {
    fn conditional(rule: &ConditionalPushRule) -> Self {
        Self::new(&rule.rule_id, rule.conditions.iter().map(Condition::new), &rule.actions)
    }

    fn patterned(rule: &PatternedPushRule) -> Self {
        let pattern = Glob::new(&rule.pattern).map_or(Condition::Never, Condition::BodyMatch);
        Self::new(&rule.rule_id, [pattern], &rule.actions)
    }

    fn new(
        rule_id: &str,
        conditions: impl IntoIterator<Item = Condition>,
        actions: &[Action],
    ) -> Self {
        let without_mentions = WITHOUT_MENTIONS.contains(&rule_id).then_some(Condition::NoMentions);
        Self {
            conditions: without_mentions.into_iter().chain(conditions).collect(),
            outcome: Outcome::new(rule_id, actions),
        }
    }

    fn matches(&self, subject: &Subject, circumstances: Circumstances<'_>) -> bool {
        self.conditions.iter().all(|condition| condition.holds(subject, circumstances))
    }
}

impl Condition {
    fn new(condition: &PushCondition) -> Self {
        #[allow(deprecated, reason = "users may have rules with it, and the server's own has it")]
        match condition {
            PushCondition::EventMatch(data) => match Glob::new(&data.pattern) {
                Some(glob) if data.key == "content.body" => Self::BodyMatch(glob),
                Some(glob) => Self::Match(subject::path(&data.key), glob),
                None => Self::Never,
            },
            PushCondition::EventPropertyIs(data) => {
                Self::Is(subject::path(&data.key), scalar(&data.value))
            }
            PushCondition::EventPropertyContains(data) => {
                Self::Contains(subject::path(&data.key), scalar(&data.value))
            }
            PushCondition::ContainsDisplayName => Self::DisplayName,
            PushCondition::RoomMemberCount(data) => Self::Members(data.is),
            PushCondition::SenderNotificationPermission(data) => {
                Self::SenderMayNotify(data.key.to_string())
            }
            _ => Self::Never,
        }
    }

    fn holds(&self, subject: &Subject, circumstances: Circumstances<'_>) -> bool {
        let in_body =
            |glob: &Glob| subject.body().is_some_and(|body| glob.matches(body, Extent::Words));
        match self {
            Self::Match(path, glob) => {
                let text = subject.get(path).and_then(Value::as_str);
                text.is_some_and(|text| glob.is(text))
            }
            Self::BodyMatch(glob) => in_body(glob),
            Self::Is(path, value) => subject.get(path) == Some(value),
            Self::Contains(path, value) => {
                let list = subject.get(path).and_then(Value::as_array);
                list.is_some_and(|list| list.contains(value))
            }
            Self::DisplayName => circumstances.display_name.is_some_and(in_body),
            Self::Members(is) => {
                use std::ops::RangeBounds as _;
                let members = circumstances.members.try_into();
                members.is_ok_and(|members: ruma::UInt| is.contains(&members))
            }
            Self::SenderMayNotify(key) => circumstances.levels.may_notify(subject.sender(), key),
            Self::NoMentions => !subject.has_mentions(),
            Self::Never => false,
        }
    }
}

fn scalar(value: &ruma::push::ScalarJsonValue) -> Value {
    // Strings, whole numbers, booleans and null: it serialises.
    serde_json::to_value(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use proptest::prelude::*;
    use ruma::{
        OwnedEventId, UInt,
        push::{FlattenedJson, PushConditionRoomCtx},
        room_id,
        serde::Raw,
        user_id,
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        events::{StoredEvent, to_raw},
        push::ruleset,
        record::{Offset, command::RoomEvent},
    };

    fn event(pdu: &Value) -> StoredEvent {
        let event_id: OwnedEventId = "$event".try_into().expect("an event id");
        let body = RoomEvent {
            room_id: room_id!("!room:test").to_owned(),
            event_id,
            room_version: None,
            transaction: None,
            redacts: None,
            delay_id: None,
            pdu: to_raw(pdu),
        };
        StoredEvent::new(Offset::new(1), body).expect("an event")
    }

    /// The index of the override rule that matches, by these rules and by ruma's.
    fn both(set: &Ruleset, pdu: &Value, members: u64) -> (Option<String>, Option<String>) {
        let (ann, room_id) = (user_id!("@ann:test"), room_id!("!room:test"));
        let rules = Rules::new(set);
        let levels = Levels::default();
        let circumstances = Circumstances { members, display_name: None, levels: &levels };
        let ours = rules.judge(&Subject::new(&event(pdu)), ann, room_id, circumstances);
        let sound = |actions: &[Action]| to_raw(actions).get().to_owned();
        let ours = ours.map(|outcome| sound(&outcome.actions));
        let raw: Raw<()> = Raw::from_json(to_raw(pdu));
        let flat = FlattenedJson::from_raw(&raw);
        let members = UInt::try_from(members).expect("a small number");
        let bob = user_id!("@bob:test").to_owned();
        let context =
            PushConditionRoomCtx::new(room_id.to_owned(), members, bob, "none of these".to_owned());
        let theirs =
            set.iter().find(|rule| rule.applies(&flat, &context).now_or_never() == Some(true));
        (ours, theirs.map(|rule| sound(rule.actions())))
    }

    fn scalar() -> impl Strategy<Value = Value> {
        prop_oneof![
            (0..3).prop_map(|number| json!(number)),
            any::<bool>().prop_map(|value| json!(value)),
            Just(Value::Null),
            "[ab]{0,2}".prop_map(|text| json!(text)),
        ]
    }

    fn key() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "type",
            "room_id",
            "sender",
            "state_key",
            "content.body",
            "content.n",
            r"content.a\.b",
            "content.a.b",
            "content.list",
        ])
    }

    /// Patterns without two wildcards in a row, of which ruma takes one for a character.
    const PATTERN: &str = "[abAB ]{0,2}[*?]?[abAB ]{1,2}[*?]?[abAB ]{0,1}";

    fn condition() -> impl Strategy<Value = Value> {
        prop_oneof![
            4 => (key(), PATTERN).prop_map(|(key, pattern)| {
                json!({ "kind": "event_match", "key": key, "pattern": pattern })
            }),
            2 => (key(), scalar()).prop_map(|(key, value)| {
                json!({ "kind": "event_property_is", "key": key, "value": value })
            }),
            2 => scalar().prop_map(|value| {
                json!({ "kind": "event_property_contains", "key": "content.list", "value": value })
            }),
            2 => ("(==|<|>|<=|>=)?", 0..4_u8).prop_map(|(is, count)| {
                json!({ "kind": "room_member_count", "is": format!("{is}{count}") })
            }),
            1 => Just(json!({ "kind": "something.else" })),
        ]
    }

    prop_compose! {
        fn rule(kind: &'static str)(
            conditions in prop::collection::vec(condition(), 0..3),
            pattern in PATTERN,
            enabled in any::<bool>(),
            name in 0..1000_u32,
        ) -> Value {
            let id = match kind {
                "sender" => ["@ann:test", "@x:test"][(name % 2) as usize].to_owned(),
                "room" => ["!room:test", "!x:test"][(name % 2) as usize].to_owned(),
                _ => name.to_string(),
            };
            let actions = json!([{ "set_tweak": "sound", "value": format!("{kind} {id}") }]);
            json!({
                "rule_id": id, "default": false, "enabled": enabled, "actions": actions,
                "conditions": conditions, "pattern": pattern,
            })
        }
    }

    fn rules(kind: &'static str) -> impl Strategy<Value = Vec<Value>> {
        prop::collection::vec(rule(kind), 0..3)
    }

    proptest! {
        #[test]
        fn rules_match_as_those_of_ruma_do(
            of in (rules("override"), rules("content"), rules("room"), rules("sender"), rules("underride")),
            event_type in "[ab]{1,3}",
            state_key in proptest::option::of("[ab]{0,2}"),
            body in "[abAB _.]{0,8}",
            n in scalar(),
            list in prop::collection::vec(scalar(), 0..3),
            members in 0..5_u64,
        ) {
            let set: Ruleset = serde_json::from_value(json!({
                "override": of.0, "content": of.1, "room": of.2, "sender": of.3, "underride": of.4,
            })).expect("a ruleset");
            let mut pdu = json!({
                "type": event_type, "sender": "@ann:test", "room_id": "!room:test", "depth": 1,
                "origin_server_ts": 1, "event_id": "$event",
                "content": { "body": body, "n": n, "list": list, "a.b": "a", "a": { "b": "b" } },
            });
            if let Some(state_key) = state_key {
                pdu["state_key"] = state_key.into();
            }
            let (ours, theirs) = both(&set, &pdu, members);
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn an_event_is_highlighted_only_if_it_notifies_and_the_last_tweak_says_so() {
        let outcome = |actions: Value| {
            let actions: Vec<Action> = serde_json::from_value(actions).expect("actions");
            let outcome = Outcome::new("rule", &actions);
            (outcome.notify, outcome.highlight)
        };
        let (on, off) = (
            json!({ "set_tweak": "highlight" }),
            json!({ "set_tweak": "highlight", "value": false }),
        );
        assert_eq!(outcome(json!([])), (false, false));
        assert_eq!(outcome(json!(["notify"])), (true, false));
        assert_eq!(outcome(json!([on])), (false, false));
        assert_eq!(outcome(json!(["notify", on])), (true, true));
        assert_eq!(outcome(json!(["notify", on, off])), (true, false));
    }

    #[test]
    fn no_event_and_no_rule_makes_judging_fail() {
        let set: Ruleset = serde_json::from_value(json!({ "content": [
            { "rule_id": "1", "default": false, "enabled": true, "actions": ["notify"], "pattern": "c" },
            { "rule_id": "2", "default": false, "enabled": true, "actions": ["notify"],
              "pattern": format!("a{}", "?".repeat(127)) },
        ] }))
        .expect("a ruleset");
        let pdu = json!({
            "type": "m.room.message", "sender": "@ann:test", "origin_server_ts": 1, "depth": 1,
            "content": { "body": "ab ".repeat(20_000), "m.mentions": null },
        });
        let levels = Levels::default();
        let circumstances = Circumstances { members: 2, display_name: None, levels: &levels };
        let (ann, room_id) = (user_id!("@ann:test"), room_id!("!room:test"));
        let subject = Subject::new(&event(&pdu));
        assert!(Rules::new(&set).judge(&subject, ann, room_id, circumstances).is_some());
        let defaults = Rules::new(&ruleset::defaults(user_id!("@ab:test")));
        // `ab` is this user's name, but the event says itself whom it mentions.
        let outcome = defaults.judge(&subject, ann, room_id, circumstances);
        assert!(outcome.is_some_and(|outcome| outcome.notify && !outcome.highlight));
    }
}
