//! One user's push rules made ready to judge events, and the judgement (client-server API, "Push
//! rules").
//!
//! A judgement is a pure function of the rules, the event and its circumstances.
//!
//! A message is judged for everyone in its room, so it matters what one judgement looks at. The default
//! rules are written so that they are the same for everyone who has not changed them: one set of them for
//! all. And what they ask of the event alone is answered once for each event.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use ruma::{
    OwnedRoomId, OwnedUserId, RoomId, UserId,
    push::{
        Action, ConditionalPushRule, PatternedPushRule, PushCondition, RoomMemberCountIs, Ruleset,
    },
};
use serde_json::Value;

use super::{
    glob::{self, Extent, Glob},
    levels::Levels,
    ruleset,
    subject::{self, Subject},
};
use crate::{events::Derived, log::ReadError};

/// What an event's room and the user in it were when the event came. It is looked at as far as a rule
/// needs it.
pub trait Moment {
    /// The user.
    fn user_id(&self) -> &UserId;

    /// How many were joined.
    fn members(&self) -> u64;

    /// Whether the user's display name in the room stands in `text`.
    ///
    /// # Errors
    /// When the log cannot be read.
    fn is_named_in(&self, text: &glob::Text) -> Result<bool, ReadError>;

    /// Whether `sender` may send notifications of the kind `key`.
    ///
    /// # Errors
    /// When the log cannot be read.
    fn may_notify(&self, sender: &str, key: &str) -> Result<bool, ReadError>;
}

/// A moment that is known already.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    /// The user.
    pub user_id: &'a UserId,
    /// How many were joined.
    pub members: u64,
    /// The user's display name in the room, as a pattern.
    pub display_name: Option<&'a Glob>,
    /// The power levels.
    pub levels: &'a Levels,
}

impl Moment for Circumstances<'_> {
    fn user_id(&self) -> &UserId {
        self.user_id
    }

    fn members(&self) -> u64 {
        self.members
    }

    fn is_named_in(&self, text: &glob::Text) -> Result<bool, ReadError> {
        Ok(self.display_name.is_some_and(|name| name.matches(text, Extent::Words)))
    }

    fn may_notify(&self, sender: &str, key: &str) -> Result<bool, ReadError> {
        Ok(self.levels.may_notify(sender, key))
    }
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
    /// Those of its conditions that are among [`COMMON`], a bit for each.
    common: u64,
    /// Its other conditions.
    conditions: Vec<Condition>,
    outcome: Arc<Outcome>,
}

#[derive(Debug)]
enum Condition {
    OfEvent(OfEvent),
    /// Like [`OfEvent::Match`], for the user's own id.
    MatchUser(Vec<String>),
    /// Like [`OfEvent::BodyMatch`], for the local part of the user's own id.
    BodyNamesUser,
    /// Like [`OfEvent::Contains`], for the user's own id.
    ContainsUser(Vec<String>),
    DisplayName,
    Members(RoomMemberCountIs),
    SenderMayNotify(String),
}

/// A condition that asks nothing of anyone but the event.
#[derive(Debug, PartialEq)]
enum OfEvent {
    Match(Vec<String>, Glob),
    BodyMatch(Glob),
    Is(Vec<String>, Value),
    Contains(Vec<String>, Value),
    /// For the rules that `m.mentions` has replaced.
    NoMentions,
    /// Not known, or not possible.
    Never,
}

/// The rules that are there only for events that do not say themselves whom they mention.
pub(super) const WITHOUT_MENTIONS: [&str; 3] =
    [".m.rule.contains_display_name", ".m.rule.roomnotif", ".m.rule.contains_user_name"];

/// The conditions of default rules that are about the event alone, each with a bit of its own.
static COMMON: LazyLock<Vec<OfEvent>> = LazyLock::new(|| {
    let someone = someone();
    let rules = ruleset::defaults(someone);
    let conditional = rules.override_.iter().chain(&rules.underride);
    let conditions = conditional.flat_map(|rule| &rule.conditions);
    let mut common = vec![OfEvent::NoMentions];
    for condition in conditions {
        if let Condition::OfEvent(condition) = Condition::new(condition, someone)
            && !common.contains(&condition)
        {
            common.push(condition);
        }
    }
    common.truncate(64);
    common
});

/// Which of [`COMMON`] hold for an event.
pub(super) fn common(subject: &Subject) -> u64 {
    COMMON
        .iter()
        .enumerate()
        .fold(0, |bits, (bit, condition)| bits | (u64::from(condition.holds(subject)) << bit))
}

/// Whose rules stand for those of everyone: nobody has this id.
fn someone() -> &'static UserId {
    ruma::user_id!("@someone:rules.invalid")
}

/// The rules of all who have changed none.
static DEFAULTS: LazyLock<Arc<Rules>> = LazyLock::new(|| {
    let someone = someone();
    Arc::new(Rules::new(&ruleset::shown(someone, None), someone))
});

impl Rules {
    /// The rules of all who have changed none.
    #[must_use]
    pub fn defaults() -> Arc<Self> {
        Arc::clone(&DEFAULTS)
    }

    /// The rules of `user_id`'s ruleset.
    #[must_use]
    pub fn new(ruleset: &Ruleset, user_id: &UserId) -> Self {
        let conditional = |rules: &mut dyn Iterator<Item = &ConditionalPushRule>| {
            let enabled = rules.filter(|rule| rule.enabled);
            enabled.map(|rule| Rule::conditional(rule, user_id)).collect::<Vec<_>>()
        };
        let content = ruleset.content.iter().filter(|rule| rule.enabled);
        let mut new = Self {
            overriding: conditional(&mut ruleset.override_.iter()),
            content: content.map(|rule| Rule::patterned(rule, user_id)).collect(),
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
    ///
    /// # Errors
    /// Those of `moment`.
    pub fn judge(
        &self,
        subject: &Subject,
        sender: &UserId,
        room_id: &RoomId,
        moment: &impl Moment,
    ) -> Result<Option<&Arc<Outcome>>, ReadError> {
        for rule in self.overriding.iter().chain(&self.content) {
            if rule.matches(subject, moment)? {
                return Ok(Some(&rule.outcome));
            }
        }
        if let Some(outcome) = self.rooms.get(room_id).or_else(|| self.senders.get(sender)) {
            return Ok(Some(outcome));
        }
        for rule in &self.underride {
            if rule.matches(subject, moment)? {
                return Ok(Some(&rule.outcome));
            }
        }
        Ok(None)
    }
}

impl Derived for Rules {
    fn weight(&self) -> u64 {
        self.bytes
    }
}

impl Rule {
    fn conditional(rule: &ConditionalPushRule, user_id: &UserId) -> Self {
        let conditions = rule.conditions.iter().map(|condition| Condition::new(condition, user_id));
        Self::new(&rule.rule_id, conditions, &rule.actions)
    }

    fn patterned(rule: &PatternedPushRule, user_id: &UserId) -> Self {
        let pattern = if rule.pattern == user_id.localpart() && is_literal(&rule.pattern) {
            Condition::BodyNamesUser
        } else {
            Condition::OfEvent(Glob::new(&rule.pattern).map_or(OfEvent::Never, OfEvent::BodyMatch))
        };
        Self::new(&rule.rule_id, [pattern], &rule.actions)
    }

    fn new(
        rule_id: &str,
        conditions: impl IntoIterator<Item = Condition>,
        actions: &[Action],
    ) -> Self {
        let without_mentions =
            WITHOUT_MENTIONS.contains(&rule_id).then_some(Condition::OfEvent(OfEvent::NoMentions));
        let mut new =
            Self { common: 0, conditions: Vec::new(), outcome: Outcome::new(rule_id, actions) };
        for condition in without_mentions.into_iter().chain(conditions) {
            let common = match &condition {
                Condition::OfEvent(condition) => COMMON.iter().position(|one| one == condition),
                _ => None,
            };
            match common {
                Some(bit) => new.common |= 1 << bit,
                None => new.conditions.push(condition),
            }
        }
        new
    }

    fn matches(&self, subject: &Subject, moment: &impl Moment) -> Result<bool, ReadError> {
        if subject.common() & self.common != self.common {
            return Ok(false);
        }
        for condition in &self.conditions {
            if !condition.holds(subject, moment)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a pattern has no wildcards and is in lower case.
fn is_literal(pattern: &str) -> bool {
    !pattern.contains(['*', '?']) && !pattern.chars().any(char::is_uppercase)
}

impl Condition {
    fn new(condition: &PushCondition, user_id: &UserId) -> Self {
        let is_user = |text: &str| text == user_id && is_literal(text);
        #[allow(deprecated, reason = "users may have rules with it, and the server's own has it")]
        match condition {
            PushCondition::EventMatch(data)
                if data.key != "content.body" && is_user(&data.pattern) =>
            {
                Self::MatchUser(subject::path(&data.key))
            }
            PushCondition::EventMatch(data) => Self::OfEvent(match Glob::new(&data.pattern) {
                Some(glob) if data.key == "content.body" => OfEvent::BodyMatch(glob),
                Some(glob) => OfEvent::Match(subject::path(&data.key), glob),
                None => OfEvent::Never,
            }),
            PushCondition::EventPropertyIs(data) => {
                Self::OfEvent(OfEvent::Is(subject::path(&data.key), scalar(&data.value)))
            }
            PushCondition::EventPropertyContains(data) => {
                let (path, value) = (subject::path(&data.key), scalar(&data.value));
                match value.as_str() {
                    Some(text) if is_user(text) => Self::ContainsUser(path),
                    _ => Self::OfEvent(OfEvent::Contains(path, value)),
                }
            }
            PushCondition::ContainsDisplayName => Self::DisplayName,
            PushCondition::RoomMemberCount(data) => Self::Members(data.is),
            PushCondition::SenderNotificationPermission(data) => {
                Self::SenderMayNotify(data.key.to_string())
            }
            _ => Self::OfEvent(OfEvent::Never),
        }
    }

    fn holds(&self, subject: &Subject, moment: &impl Moment) -> Result<bool, ReadError> {
        let user = || moment.user_id().as_str();
        Ok(match self {
            Self::OfEvent(condition) => condition.holds(subject),
            Self::MatchUser(path) => {
                let text = subject.get(path).and_then(Value::as_str);
                text.is_some_and(|text| text.eq_ignore_ascii_case(user()))
            }
            Self::BodyNamesUser => {
                subject.body().is_some_and(|body| body.has(moment.user_id().localpart()))
            }
            Self::ContainsUser(path) => {
                let list = subject.get(path).and_then(Value::as_array);
                list.is_some_and(|list| list.iter().any(|one| one.as_str() == Some(user())))
            }
            Self::DisplayName => match subject.body() {
                Some(body) => moment.is_named_in(body)?,
                None => false,
            },
            Self::Members(is) => {
                use std::ops::RangeBounds as _;
                let members = moment.members().try_into();
                members.is_ok_and(|members: ruma::UInt| is.contains(&members))
            }
            Self::SenderMayNotify(key) => moment.may_notify(subject.sender(), key)?,
        })
    }
}

impl OfEvent {
    fn holds(&self, subject: &Subject) -> bool {
        match self {
            Self::Match(path, glob) => {
                let text = subject.get(path).and_then(Value::as_str);
                text.is_some_and(|text| glob.is(text))
            }
            Self::BodyMatch(glob) => {
                subject.body().is_some_and(|body| glob.matches(body, Extent::Words))
            }
            Self::Is(path, value) => subject.get(path) == Some(value),
            Self::Contains(path, value) => {
                let list = subject.get(path).and_then(Value::as_array);
                list.is_some_and(|list| list.contains(value))
            }
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
        let user_id = user_id!("@bob:test");
        let rules = Rules::new(set, user_id);
        let levels = Levels::default();
        let circumstances = Circumstances { user_id, members, display_name: None, levels: &levels };
        let ours = rules.judge(&Subject::new(&event(pdu)), ann, room_id, &circumstances);
        let sound = |actions: &[Action]| to_raw(actions).get().to_owned();
        let ours = ours.expect("all is known").map(|outcome| sound(&outcome.actions));
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
    fn the_default_rules_are_the_same_for_everyone() {
        for user_id in [user_id!("@ann:test"), user_id!("@a.b_c=d-e/f+1:example.org:8448")] {
            let rules = Rules::new(&ruleset::shown(user_id, None), user_id);
            assert_eq!(format!("{rules:?}"), format!("{:?}", Rules::defaults()));
        }
        assert!(COMMON.len() < 64, "there is a bit for each");
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
        let user_id = user_id!("@ab:test");
        let circumstances =
            Circumstances { user_id, members: 2, display_name: None, levels: &levels };
        let (ann, room_id) = (user_id!("@ann:test"), room_id!("!room:test"));
        let subject = Subject::new(&event(&pdu));
        let judge = |rules: &Rules| {
            let outcome = rules.judge(&subject, ann, room_id, &circumstances);
            outcome.expect("all is known").map(Arc::clone)
        };
        assert!(judge(&Rules::new(&set, user_id)).is_some());
        // `ab` is this user's name, but the event says itself whom it mentions.
        let outcome = judge(&Rules::defaults());
        assert!(outcome.is_some_and(|outcome| outcome.notify && !outcome.highlight));
    }
}
