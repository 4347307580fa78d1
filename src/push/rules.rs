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
    /// The actions, as the rule has them.
    pub actions: Vec<Action>,
    /// Whether the user is notified.
    pub notify: bool,
    /// Whether the event is highlighted.
    pub highlight: bool,
}

impl Outcome {
    fn new(actions: &[Action]) -> Arc<Self> {
        let notify = actions.iter().any(Action::should_notify);
        // Of several tweaks of one name, the last counts.
        let is_highlight = |action: &&Action| matches!(action, Action::SetTweak(tweak) if tweak.set_tweak() == "highlight");
        let highlight = actions.iter().rfind(is_highlight).is_some_and(Action::is_highlight);
        Arc::new(Self { actions: actions.to_vec(), notify, highlight: notify && highlight })
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
            new.rooms.insert(rule.rule_id.clone(), Outcome::new(&rule.actions));
        }
        for rule in ruleset.sender.iter().filter(|rule| rule.enabled) {
            new.senders.insert(rule.rule_id.clone(), Outcome::new(&rule.actions));
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
            outcome: Outcome::new(actions),
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
