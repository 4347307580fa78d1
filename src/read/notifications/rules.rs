//! One user's push rules prepared for evaluation, and the evaluation (client-server API, "Push
//! rules").
//!
//! The outcome is a pure function of the rules, the event and its circumstances.
//!
//! A message is evaluated for everyone in its room, so a single evaluation must be cheap. All users
//! who have not changed the default rules share one set of them. And conditions on the event alone
//! are evaluated once for each event.

use std::{
    cell::OnceCell,
    collections::HashMap,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
};

use ruma::{
    OwnedRoomId, OwnedUserId, RoomId, UserId,
    push::{
        Action, ConditionalPushRule, PatternedPushRule, PushCondition, RoomMemberCountIs, Ruleset,
    },
};
use serde_json::Value;

use super::{
    levels::Levels,
    ruleset,
    subject::{self, Subject},
};
use crate::events::Derived;
use logcabin_base::{
    glob::{self, Extent, Glob, Steps},
    limits,
};
use logcabin_log::ReadError;

/// The circumstances of an event: its room and the user in it at that time. They are looked up only
/// if a rule needs them.
pub trait EventContext {
    fn user_id(&self) -> &UserId;

    /// The number of joined members.
    fn members(&self) -> u64;

    /// Whether `text` contains the user's display name in the room.
    fn is_named_in(&self, text: &glob::Text, steps: &mut Steps) -> Result<bool, ReadError>;

    /// Whether `sender` may send notifications of the kind `key`.
    fn may_notify(&self, sender: &str, key: &str) -> Result<bool, ReadError>;
}

/// Circumstances that are already known.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    pub user_id: &'a UserId,
    /// The number of joined members.
    pub members: u64,
    /// The user's display name in the room, as a pattern.
    pub display_name: Option<&'a Glob>,
    pub levels: &'a Levels,
}

impl EventContext for Circumstances<'_> {
    fn user_id(&self) -> &UserId {
        self.user_id
    }

    fn members(&self) -> u64 {
        self.members
    }

    fn is_named_in(&self, text: &glob::Text, steps: &mut Steps) -> Result<bool, ReadError> {
        Ok(self.display_name.is_some_and(|name| name.matches(text, Extent::Words, steps)))
    }

    fn may_notify(&self, sender: &str, key: &str) -> Result<bool, ReadError> {
        Ok(self.levels.may_notify(sender, key))
    }
}

#[derive(Debug)]
pub struct Outcome {
    pub rule_id: Box<str>,
    pub actions: Vec<Action>,
    pub notify: bool,
    pub highlight: bool,
}

impl Outcome {
    fn new(rule_id: &str, actions: &[Action]) -> Arc<Self> {
        let notify = actions.iter().any(Action::should_notify);
        // If a tweak occurs more than once, the last one counts.
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

/// A user's enabled rules.
#[derive(Debug, Default)]
pub struct Rules {
    overriding: Vec<Rule>,
    content: Vec<Rule>,
    rooms: HashMap<OwnedRoomId, Arc<Outcome>>,
    senders: HashMap<OwnedUserId, Arc<Outcome>>,
    underride: Vec<Rule>,
    /// The distinct patterns of all these rules, with the property that each is matched with.
    patterns: Patterns,
    /// Whether an event has exceeded the budget of these rules.
    exhausted: AtomicBool,
    bytes: u64,
}

/// Patterns. Each is matched at most once for an event, however many conditions use it.
#[derive(Debug, Default)]
struct Patterns {
    patterns: Vec<Pattern>,
    /// The properties that patterns are matched with, besides `content.body`.
    paths: Vec<Vec<String>>,
}

#[derive(Debug)]
struct Pattern {
    of: MatchTarget,
    glob: Glob,
}

/// What a pattern is matched with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum MatchTarget {
    /// The words of `content.body`.
    Body,
    /// The whole value of the property with this index in [`Patterns::paths`].
    Property(usize),
}

#[derive(Debug)]
struct Rule {
    /// Its conditions among [`COMMON`], one bit each.
    common: u64,
    /// Its other conditions.
    conditions: Vec<Condition>,
    outcome: Arc<Outcome>,
}

#[derive(Debug)]
enum Condition {
    OfEvent(OfEvent),
    /// The pattern with this index in [`Patterns::patterns`] matches.
    Pattern(usize),
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

/// A condition on the event alone.
#[derive(Debug, PartialEq)]
enum OfEvent {
    Match(Vec<String>, Glob),
    BodyMatch(Glob),
    Is(Vec<String>, Value),
    Contains(Vec<String>, Value),
    /// For the rules that `m.mentions` replaced.
    NoMentions,
    /// Unknown or impossible.
    Never,
}

/// The conditions of default rules on the event alone, one bit each.
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

/// The conditions in [`COMMON`] that hold for an event.
fn common(subject: &Subject) -> u64 {
    static NONE: Patterns = Patterns { patterns: Vec::new(), paths: Vec::new() };
    let mut look = Evaluation::new(&NONE, subject, &Nobody);
    COMMON
        .iter()
        .enumerate()
        .fold(0, |bits, (bit, condition)| bits | (u64::from(condition.is_met(&mut look)) << bit))
}

/// The user whose rules stand for everyone's: nobody has this id.
fn someone() -> &'static UserId {
    ruma::user_id!("@someone:rules.invalid")
}

/// The rules of all users who have changed none.
static DEFAULTS: LazyLock<Arc<Rules>> = LazyLock::new(|| {
    let someone = someone();
    Arc::new(Rules::new(&ruleset::shown(someone, None), someone))
});

impl Rules {
    /// The rules of all users who have changed none.
    pub fn defaults() -> Arc<Self> {
        Arc::clone(&DEFAULTS)
    }

    pub fn new(ruleset: &Ruleset, user_id: &UserId) -> Self {
        let mut interned = Interner::default();
        let mut conditional = |rules: &mut dyn Iterator<Item = &ConditionalPushRule>| {
            let enabled = rules.filter(|rule| rule.enabled);
            enabled.map(|rule| Rule::conditional(rule, user_id, &mut interned)).collect::<Vec<_>>()
        };
        let overriding = conditional(&mut ruleset.override_.iter());
        let underride = conditional(&mut ruleset.underride.iter());
        let content = ruleset.content.iter().filter(|rule| rule.enabled);
        let content = content.map(|rule| Rule::patterned(rule, user_id, &mut interned)).collect();
        let patterns = interned.finish();
        let mut new = Self { overriding, content, underride, patterns, ..Self::default() };
        for rule in ruleset.room.iter().filter(|rule| rule.enabled) {
            let outcome = Outcome::new(rule.rule_id.as_str(), &rule.actions);
            new.rooms.insert(rule.rule_id.clone(), outcome);
        }
        for rule in ruleset.sender.iter().filter(|rule| rule.enabled) {
            let outcome = Outcome::new(rule.rule_id.as_str(), &rule.actions);
            new.senders.insert(rule.rule_id.clone(), outcome);
        }
        let rules = [&new.overriding, &new.content, &new.underride].map(Vec::len);
        let simple = new.rooms.len() + new.senders.len() + new.patterns.patterns.len();
        new.bytes = 512 * (rules.iter().sum::<usize>() + simple) as u64;
        new
    }

    /// Evaluates the rules for `subject`, which must not be the user's own event: the outcome of
    /// the first matching rule, if there is one. If the evaluation exceeds [`limits::PUSH_STEPS`],
    /// no rule matches.
    pub fn judge(
        &self,
        subject: &Subject,
        sender: &UserId,
        room_id: &RoomId,
        moment: &impl EventContext,
    ) -> Result<Judgement<'_>, ReadError> {
        let mut look = Evaluation::new(&self.patterns, subject, moment);
        let found = self.first_match(&mut look, sender, room_id);
        match found {
            Ok(outcome) => Ok(Judgement::Of(outcome)),
            Err(Stop::Exhausted) => {
                Ok(Judgement::Exhausted { first: !self.exhausted.swap(true, Ordering::Relaxed) })
            }
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn first_match<M: EventContext>(
        &self,
        look: &mut Evaluation<'_, M>,
        sender: &UserId,
        room_id: &RoomId,
    ) -> Result<Option<&Arc<Outcome>>, Stop> {
        for rule in self.overriding.iter().chain(&self.content) {
            if rule.matches(look)? {
                return Ok(Some(&rule.outcome));
            }
        }
        if let Some(outcome) = self.rooms.get(room_id).or_else(|| self.senders.get(sender)) {
            return Ok(Some(outcome));
        }
        for rule in &self.underride {
            if rule.matches(look)? {
                return Ok(Some(&rule.outcome));
            }
        }
        Ok(None)
    }
}

/// The result of an evaluation.
#[derive(Clone, Copy, Debug)]
pub enum Judgement<'a> {
    /// The outcome of the first matching rule, if there is one.
    Of(Option<&'a Arc<Outcome>>),
    /// The evaluation exceeded [`limits::PUSH_STEPS`], so no rule matches.
    Exhausted {
        /// Whether this is the first such event for these rules.
        first: bool,
    },
}

impl<'a> Judgement<'a> {
    pub const fn outcome(self) -> Option<&'a Arc<Outcome>> {
        match self {
            Self::Of(outcome) => outcome,
            Self::Exhausted { .. } => None,
        }
    }
}

/// Why an evaluation ended early.
enum Stop {
    /// It exceeded its budget.
    Exhausted,
    Failed(ReadError),
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        Self::Failed(error)
    }
}

/// Collects the patterns of a user's rules.
#[derive(Default)]
struct Interner {
    patterns: HashMap<(MatchTarget, Glob), usize>,
    paths: HashMap<Vec<String>, usize>,
}

impl Interner {
    /// The index of a pattern for a property, or for `content.body`.
    fn number(&mut self, path: Option<Vec<String>>, glob: Glob) -> usize {
        let of = path.map_or(MatchTarget::Body, |path| {
            let next = self.paths.len();
            MatchTarget::Property(*self.paths.entry(path).or_insert(next))
        });
        let next = self.patterns.len();
        *self.patterns.entry((of, glob)).or_insert(next)
    }

    fn finish(self) -> Patterns {
        let mut patterns: Vec<_> = self.patterns.into_iter().collect();
        patterns.sort_unstable_by_key(|(_, number)| *number);
        let mut paths: Vec<_> = self.paths.into_iter().collect();
        paths.sort_unstable_by_key(|(_, number)| *number);
        Patterns {
            patterns: patterns.into_iter().map(|((of, glob), _)| Pattern { of, glob }).collect(),
            paths: paths.into_iter().map(|(path, _)| path).collect(),
        }
    }
}

/// The evaluation of one event: its intermediate results and its cost.
struct Evaluation<'a, M> {
    patterns: &'a Patterns,
    subject: &'a Subject,
    moment: &'a M,
    steps: Steps,
    /// Whether each pattern matches, if known.
    matched: Vec<Option<bool>>,
    /// The texts of the properties that patterns are matched with, prepared.
    texts: Vec<OnceCell<glob::Text>>,
}

impl<'a, M: EventContext> Evaluation<'a, M> {
    fn new(patterns: &'a Patterns, subject: &'a Subject, moment: &'a M) -> Self {
        // The only patterns of default rules are those that are matched for everyone at once.
        Self {
            patterns,
            subject,
            moment,
            steps: Steps::default(),
            matched: vec![None; patterns.patterns.len()],
            texts: patterns.paths.iter().map(|_| OnceCell::new()).collect(),
        }
    }

    /// Stops if the budget is used up.
    const fn go_on(&self) -> Result<(), Stop> {
        if self.steps.count() > limits::PUSH_STEPS { Err(Stop::Exhausted) } else { Ok(()) }
    }

    fn get(&mut self, path: &[String]) -> Option<&'a Value> {
        self.steps.take(path.len() as u64);
        self.subject.get(path)
    }

    fn list(&mut self, path: &[String]) -> Option<&'a Vec<Value>> {
        let list = self.get(path).and_then(Value::as_array)?;
        self.steps.take(list.len() as u64);
        Some(list)
    }

    fn matches(&mut self, number: usize) -> bool {
        let patterns = self.patterns;
        let (Some(pattern), Some(known)) =
            (patterns.patterns.get(number), self.matched.get(number).copied())
        else {
            return false;
        };
        let matches = known.unwrap_or_else(|| match pattern.of {
            MatchTarget::Body => {
                let body = self.subject.body();
                body.is_some_and(|body| pattern.glob.matches(body, Extent::Words, &mut self.steps))
            }
            MatchTarget::Property(path) => {
                let text = patterns.paths.get(path).and_then(|path| self.get(path));
                let text = text.and_then(Value::as_str);
                text.zip(self.texts.get(path)).is_some_and(|(text, prepared)| {
                    pattern.glob.is_prepared(text, prepared, &mut self.steps)
                })
            }
        });
        self.matched[number] = Some(matches);
        matches
    }
}

impl Derived for Rules {
    fn weight(&self) -> u64 {
        self.bytes
    }
}

impl Rule {
    fn conditional(rule: &ConditionalPushRule, user_id: &UserId, interned: &mut Interner) -> Self {
        let conditions = rule.conditions.iter().map(|condition| Condition::new(condition, user_id));
        Self::new(&rule.rule_id, conditions, &rule.actions, interned)
    }

    fn patterned(rule: &PatternedPushRule, user_id: &UserId, interned: &mut Interner) -> Self {
        let pattern = if rule.pattern == user_id.localpart() && is_literal(&rule.pattern) {
            Condition::BodyNamesUser
        } else {
            Condition::OfEvent(Glob::new(&rule.pattern).map_or(OfEvent::Never, OfEvent::BodyMatch))
        };
        Self::new(&rule.rule_id, [pattern], &rule.actions, interned)
    }

    fn new(
        rule_id: &str,
        conditions: impl IntoIterator<Item = Condition>,
        actions: &[Action],
        interned: &mut Interner,
    ) -> Self {
        let without_mentions = ruleset::WITHOUT_MENTIONS
            .contains(&rule_id)
            .then_some(Condition::OfEvent(OfEvent::NoMentions));
        let mut new =
            Self { common: 0, conditions: Vec::new(), outcome: Outcome::new(rule_id, actions) };
        for condition in without_mentions.into_iter().chain(conditions) {
            let common = match &condition {
                Condition::OfEvent(condition) => COMMON.iter().position(|one| one == condition),
                _ => None,
            };
            match common {
                Some(bit) => new.common |= 1 << bit,
                None => new.conditions.push(condition.interned(interned)),
            }
        }
        new
    }

    fn matches<M: EventContext>(&self, look: &mut Evaluation<'_, M>) -> Result<bool, Stop> {
        if look.subject.common_or(common) & self.common != self.common {
            return Ok(false);
        }
        for condition in &self.conditions {
            look.steps.take(1);
            look.go_on()?;
            if !condition.holds(look)? {
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

    /// The same, with its pattern among the shared ones.
    fn interned(self, interned: &mut Interner) -> Self {
        match self {
            Self::OfEvent(OfEvent::Match(path, glob)) => {
                Self::Pattern(interned.number(Some(path), glob))
            }
            Self::OfEvent(OfEvent::BodyMatch(glob)) => Self::Pattern(interned.number(None, glob)),
            other => other,
        }
    }

    fn holds<M: EventContext>(&self, look: &mut Evaluation<'_, M>) -> Result<bool, ReadError> {
        let moment = look.moment;
        let user = || moment.user_id().as_str();
        Ok(match self {
            Self::OfEvent(condition) => condition.is_met(look),
            Self::Pattern(number) => look.matches(*number),
            Self::MatchUser(path) => {
                let text = look.get(path).and_then(Value::as_str);
                text.is_some_and(|text| text.eq_ignore_ascii_case(user()))
            }
            Self::BodyNamesUser => {
                let body = look.subject.body();
                body.is_some_and(|body| body.has(moment.user_id().localpart(), &mut look.steps))
            }
            Self::ContainsUser(path) => {
                let list = look.list(path);
                list.is_some_and(|list| list.iter().any(|one| one.as_str() == Some(user())))
            }
            Self::DisplayName => match look.subject.body() {
                Some(body) => moment.is_named_in(body, &mut look.steps)?,
                None => false,
            },
            Self::Members(is) => {
                use std::ops::RangeBounds as _;
                let members = moment.members().try_into();
                members.is_ok_and(|members: ruma::UInt| is.contains(&members))
            }
            Self::SenderMayNotify(key) => moment.may_notify(look.subject.sender(), key)?,
        })
    }
}

/// A condition on the event alone does not depend on the user.
struct Nobody;

impl EventContext for Nobody {
    fn user_id(&self) -> &UserId {
        someone()
    }

    fn members(&self) -> u64 {
        0
    }

    fn is_named_in(&self, _: &glob::Text, _: &mut Steps) -> Result<bool, ReadError> {
        Ok(false)
    }

    fn may_notify(&self, _: &str, _: &str) -> Result<bool, ReadError> {
        Ok(false)
    }
}

impl OfEvent {
    fn is_met<M: EventContext>(&self, look: &mut Evaluation<'_, M>) -> bool {
        match self {
            Self::Match(path, glob) => {
                let text = look.get(path).and_then(Value::as_str);
                text.is_some_and(|text| glob.is_prepared(text, &OnceCell::new(), &mut look.steps))
            }
            Self::BodyMatch(glob) => {
                let body = look.subject.body();
                body.is_some_and(|body| glob.matches(body, Extent::Words, &mut look.steps))
            }
            Self::Is(path, value) => look.get(path) == Some(value),
            Self::Contains(path, value) => look.list(path).is_some_and(|list| list.contains(value)),
            Self::NoMentions => !look.subject.has_mentions(),
            Self::Never => false,
        }
    }
}

fn scalar(value: &ruma::push::ScalarJsonValue) -> Value {
    // Strings, whole numbers, booleans and null always serialize.
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
        notifications::ruleset,
    };
    use logcabin_record::{Offset, command::RoomEvent};

    fn event(pdu: &Value) -> StoredEvent {
        let event_id: OwnedEventId = "$event".try_into().expect("an event id");
        let body = RoomEvent::new(room_id!("!room:test").to_owned(), event_id, to_raw(pdu));
        StoredEvent::new(Offset::new(1), body).expect("an event")
    }

    /// The index of the matching override rule, by this code and by ruma.
    fn both(set: &Ruleset, pdu: &Value, members: u64) -> (Option<String>, Option<String>) {
        let (ann, room_id) = (user_id!("@ann:test"), room_id!("!room:test"));
        let user_id = user_id!("@bob:test");
        let rules = Rules::new(set, user_id);
        let levels = Levels::default();
        let circumstances = Circumstances { user_id, members, display_name: None, levels: &levels };
        let ours = rules.judge(&Subject::new(&event(pdu)), ann, room_id, &circumstances);
        let sound = |actions: &[Action]| to_raw(actions).get().to_owned();
        let ours = ours.expect("all is known").outcome().map(|outcome| sound(&outcome.actions));
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

    /// Patterns without two adjacent wildcards: ruma mistakes one of them for a literal character.
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
        fn rules_match_as_in_ruma(
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

    /// The outcome of a message under `user_id`'s `overriding` rules, and the number of steps.
    fn judged(overriding: &[Value], body: &str) -> (Option<Arc<Outcome>>, bool, u64) {
        let set: Ruleset =
            serde_json::from_value(json!({ "override": overriding })).expect("a ruleset");
        let pdu = json!({
            "type": "m.room.message", "sender": "@ann:test", "origin_server_ts": 1, "depth": 1,
            "content": { "body": body, "m.mentions": {} },
        });
        let (user_id, levels) = (user_id!("@bob:test"), Levels::default());
        let moment = Circumstances { user_id, members: 2, display_name: None, levels: &levels };
        let (rules, subject) = (Rules::new(&set, user_id), Subject::new(&event(&pdu)));
        let room_id = room_id!("!room:test");
        let judge = || rules.judge(&subject, user_id!("@ann:test"), room_id, &moment);
        let judgement = judge().expect("all is known");
        let exhausted = matches!(judgement, Judgement::Exhausted { first: true });
        if exhausted {
            let again = judge().expect("all is known");
            assert!(matches!(again, Judgement::Exhausted { first: false }), "reported twice");
        }
        let outcome = judgement.outcome().map(Arc::clone);
        let mut look = Evaluation::new(&rules.patterns, &subject, &moment);
        let _ = rules.first_match(&mut look, user_id!("@ann:test"), room_id);
        (outcome, exhausted, look.steps.count())
    }

    fn patterned(rule_id: &str, key: &str, patterns: &[String]) -> Value {
        let condition = |pattern| json!({ "kind": "event_match", "key": key, "pattern": pattern });
        let conditions: Vec<_> = patterns.iter().map(condition).collect();
        json!({
            "rule_id": rule_id, "default": false, "enabled": true, "actions": ["notify"],
            "conditions": conditions,
        })
    }

    #[test]
    fn a_pattern_is_matched_once_however_many_rules_name_it() {
        let body = format!("{}b", "a".repeat(59_000));
        for key in ["content.body", "type"] {
            let pattern = ["*b".to_owned()];
            let (_, _, steps) = judged(&[patterned("0", key, &pattern)], &body);
            let with_all: Vec<_> = (0..60)
                .map(|rule| {
                    // The last condition fails, so every rule is evaluated completely.
                    let mut patterns = vec!["*b".to_owned(); 31];
                    patterns.push("x".to_owned());
                    patterned(&rule.to_string(), key, &patterns)
                })
                .collect();
            let (_, exhausted, many) = judged(&with_all, &body);
            assert!(!exhausted, "{key}");
            assert!(
                many <= steps + 60 * 32 + 10_000,
                "{key}: {steps} steps for one rule, {many} for 60"
            );
        }
    }

    #[test]
    fn an_evaluation_ends_when_its_budget_is_spent_and_nothing_matches() {
        let body = format!("{}b", "a".repeat(59_000));
        // Sixty different patterns that do not match, before a rule that always matches.
        let mut rules: Vec<_> = (0..60)
            .map(|rule| patterned(&rule.to_string(), "content.body", &[format!("*{rule}")]))
            .collect();
        rules.push(patterned("all", "type", &["*".to_owned()]));
        let (outcome, exhausted, steps) = judged(&rules, &body);
        assert!(outcome.is_none() && exhausted, "{steps} steps");
        assert!(steps <= limits::PUSH_STEPS + 2 * 60_000, "{steps} steps");
        // The same rules work for a message of usual length.
        let (outcome, exhausted, _) = judged(&rules, "the usual length, of some thirty words");
        assert!(!exhausted);
        assert_eq!(outcome.as_ref().map(|outcome| &*outcome.rule_id), Some("all"));
    }

    #[test]
    fn a_frequent_word_costs_steps() {
        let rules: Vec<_> = (0..300)
            .map(|rule| {
                patterned(&rule.to_string(), "content.body", &[format!("a{}", "a".repeat(rule))])
            })
            .collect();
        let (outcome, exhausted, steps) = judged(&rules, &"a".repeat(60_000));
        assert!(outcome.is_none() && exhausted, "{steps} steps");
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
            outcome.expect("all is known").outcome().map(Arc::clone)
        };
        assert!(judge(&Rules::new(&set, user_id)).is_some());
        // `ab` is this user's name, but the event has `m.mentions`.
        let outcome = judge(&Rules::defaults());
        assert!(outcome.is_some_and(|outcome| outcome.notify && !outcome.highlight));
    }
}
