//! Changes of a user's push rules.

use ruma::{
    OwnedUserId,
    push::{
        Action, AnyPushRuleRef, InsertPushRuleError, NewPushRule, PushCondition,
        RemovePushRuleError, RuleKind, Ruleset,
    },
};

use super::{Commit, Env, Proposal, Refusal, account::no_account};
use logcabin_base::limits;
use logcabin_read::notifications::{Glob, PART_CHARS, ruleset};
use logcabin_record::{Offset, Stream, command::AccountDataSet};

/// Change a user's push rules. Read, changed and written in one commit, so that of two changes at
/// the same time none is lost.
#[derive(Clone, Debug)]
pub struct ChangePushRules {
    pub user_id: OwnedUserId,
    pub change: RuleChange,
}

/// One change of push rules.
#[derive(Clone, Debug)]
pub enum RuleChange {
    /// Add a rule, or change the one of this kind and id.
    Put {
        rule: NewPushRule,
        /// Place it right before this rule.
        before: Option<String>,
        /// Place it right after this rule; `before` takes precedence.
        after: Option<String>,
    },
    Remove(RuleKind, String),
    /// Enable or disable a rule.
    Enable(RuleKind, String, bool),
    /// Give a rule other actions.
    SetActions(RuleKind, String, Vec<Action>),
}

impl Proposal for ChangePushRules {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Env { state, events, .. } = commit.env;
        if !state.accounts.contains(&self.user_id) {
            return Err(no_account());
        }
        let event_type = ruleset::EVENT_TYPE;
        let before = events.account_data(state, &self.user_id, None, event_type, Offset::MAX)?;
        let mut rules = ruleset::shown(&self.user_id, before.as_deref());
        change(&mut rules, self.change.clone())?;
        let content = ruleset::kept(&self.user_id, rules);
        // A user who exceeds a newer limit may still reduce the number.
        let bytes_before = before.as_ref().map_or(0, |before| before.get().len());
        if content.get().len() > limits::PUSH_RULES_BYTES.max(bytes_before) {
            return Err(too_many());
        }
        if before.is_some_and(|before| before.get() == content.get()) {
            return Ok(());
        }
        commit.append(
            self.stream(),
            AccountDataSet {
                user_id: self.user_id.clone(),
                room_id: None,
                event_type: ruleset::EVENT_TYPE.to_owned(),
                content,
            },
        );
        Ok(())
    }
}

fn change(rules: &mut Ruleset, change: RuleChange) -> Result<(), Refusal> {
    let no_rule = || Refusal::NotFound("There is no such push rule.".to_owned());
    match change {
        RuleChange::Put { mut rule, before, after } => {
            check(&mut rule)?;
            let (kind, rule_id) = (rule.kind(), rule.rule_id().to_owned());
            // ruma panics if the new rule itself is named.
            if [&before, &after].into_iter().flatten().any(|other| *other == rule_id) {
                let nowhere = "A rule cannot be placed next to itself.";
                return Err(Refusal::InvalidParam(nowhere.to_owned()));
            }
            let existing = rules.get(kind.clone(), &rule_id).map(AnyPushRuleRef::enabled);
            let moves = before.is_some() || after.is_some();
            if let Some(enabled) = existing.filter(|_| moves && !rule_id.starts_with('.')) {
                // Removed and added again: ruma computes positions as if a moving rule were new.
                rules.remove(kind.clone(), &rule_id).map_err(|_| no_rule())?;
                insert(rules, rule, before, after)?;
                return rules.set_enabled(kind, &rule_id, enabled).map_err(|_| no_rule());
            }
            let conditions_before = own_conditions(rules);
            insert(rules, rule, before, after)?;
            let own = rules.iter().filter(|rule| !rule.is_server_default()).count();
            if existing.is_none() && own > limits::PUSH_RULES {
                return Err(too_many());
            }
            if own_conditions(rules) > limits::PUSH_CONDITIONS.max(conditions_before) {
                return Err(Refusal::TooLarge(format!(
                    "Your push rules may have {} conditions and patterns in all.",
                    limits::PUSH_CONDITIONS
                )));
            }
            Ok(())
        }
        RuleChange::Remove(kind, rule_id) => {
            rules.remove(kind, rule_id).map_err(|error| match error {
                RemovePushRuleError::ServerDefault => {
                    Refusal::InvalidParam("A default rule cannot be removed.".to_owned())
                }
                _ => no_rule(),
            })
        }
        RuleChange::Enable(kind, rule_id, enabled) => {
            rules.set_enabled(kind, rule_id, enabled).map_err(|_| no_rule())
        }
        RuleChange::SetActions(kind, rule_id, mut actions) => {
            check_actions(&mut actions)?;
            rules.set_actions(kind, rule_id, actions).map_err(|_| no_rule())
        }
    }
}

fn too_many() -> Refusal {
    Refusal::TooLarge("There are too many push rules.".to_owned())
}

/// The number of conditions and patterns in the user's own rules.
fn own_conditions(rules: &Ruleset) -> usize {
    let conditional = rules.override_.iter().chain(&rules.underride);
    let own = conditional.filter(|rule| !rule.default);
    let patterns = rules.content.iter().filter(|rule| !rule.default).count();
    own.map(|rule| rule.conditions.len()).sum::<usize>() + patterns
}

fn insert(
    rules: &mut Ruleset,
    rule: NewPushRule,
    before: Option<String>,
    after: Option<String>,
) -> Result<(), Refusal> {
    rules.insert(rule, after.as_deref(), before.as_deref()).map_err(|error| {
        Refusal::InvalidParam(match error {
            InsertPushRuleError::ServerDefaultRuleId => {
                "Rule ids that begin with a dot are the server's own.".to_owned()
            }
            InsertPushRuleError::InvalidRuleId => {
                "A rule id has no slashes and no backslashes.".to_owned()
            }
            InsertPushRuleError::RelativeToServerDefaultRule => {
                "A rule cannot be placed next to a default rule.".to_owned()
            }
            InsertPushRuleError::UnknownRuleId => {
                "There is no rule of the id in `before` or `after`.".to_owned()
            }
            error => error.to_string(),
        })
    })
}

/// Refuses invalid parts of a rule.
fn check(rule: &mut NewPushRule) -> Result<(), Refusal> {
    let invalid = |what: String| Err(Refusal::InvalidParam(what));
    if rule.rule_id().is_empty() || rule.rule_id().len() > limits::IDENTIFIER_BYTES {
        return invalid(format!("A rule id has 1 to {} bytes.", limits::IDENTIFIER_BYTES));
    }
    let is_pattern = |pattern: &str| Glob::new(pattern).is_some();
    let (mut patterns, mut keys) = (Vec::new(), Vec::new());
    match rule {
        NewPushRule::Override(rule) | NewPushRule::Underride(rule) => {
            if rule.conditions.len() > limits::PUSH_RULE_CONDITIONS {
                let most = limits::PUSH_RULE_CONDITIONS;
                return invalid(format!("A rule has up to {most} conditions."));
            }
            for condition in &rule.conditions {
                match condition {
                    PushCondition::EventMatch(data) => {
                        patterns.push(data.pattern.as_str());
                        keys.push(data.key.as_str());
                    }
                    PushCondition::EventPropertyIs(data) => keys.push(data.key.as_str()),
                    PushCondition::EventPropertyContains(data) => keys.push(data.key.as_str()),
                    _ => {}
                }
            }
        }
        NewPushRule::Content(rule) => patterns.push(rule.pattern.as_str()),
        _ => {}
    }
    if patterns.iter().any(|pattern| pattern.len() > limits::PUSH_PATTERN_BYTES) {
        return invalid(format!("A pattern has up to {} bytes.", limits::PUSH_PATTERN_BYTES));
    }
    if keys.iter().any(|key| key.len() > limits::PUSH_KEY_BYTES) {
        return invalid(format!("A key has up to {} bytes.", limits::PUSH_KEY_BYTES));
    }
    if !patterns.iter().all(|pattern| is_pattern(pattern)) {
        let most = PART_CHARS;
        return invalid(format!("A pattern has up to {most} characters between two stars."));
    }
    match rule {
        NewPushRule::Override(rule) | NewPushRule::Underride(rule) => {
            check_actions(&mut rule.actions)
        }
        NewPushRule::Content(rule) => check_actions(&mut rule.actions),
        NewPushRule::Room(rule) => check_actions(&mut rule.actions),
        NewPushRule::Sender(rule) => check_actions(&mut rule.actions),
        _ => Ok(()),
    }
}

/// Refuses unknown actions, and removes obsolete ones (client-server API, "Historical Actions").
fn check_actions(actions: &mut Vec<Action>) -> Result<(), Refusal> {
    let name = |action: &Action| serde_json::to_value(action).ok();
    let historical =
        |action: &Action| name(action).is_some_and(|n| n == "dont_notify" || n == "coalesce");
    actions.retain(|action| !historical(action));
    match actions.iter().all(|action| matches!(action, Action::Notify | Action::SetTweak(_))) {
        true => Ok(()),
        false => Err(Refusal::InvalidParam("There is no such action.".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use ruma::user_id;
    use serde_json::json;

    use super::*;

    fn put(id: &str, before: Option<&str>, after: Option<&str>) -> RuleChange {
        let rule = serde_json::from_value(json!({ "rule_id": id, "pattern": id, "actions": [] }));
        RuleChange::Put {
            rule: NewPushRule::Content(rule.expect("a rule")),
            before: before.map(ToOwned::to_owned),
            after: after.map(ToOwned::to_owned),
        }
    }

    fn order(rules: &Ruleset) -> String {
        let ids = rules.content.iter().map(|rule| rule.rule_id.as_str());
        ids.filter(|id| !id.starts_with('.')).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rules_are_placed_as_before_and_after_say() {
        let mut rules = ruleset::defaults(user_id!("@ann:test"));
        for (id, before, after, expected) in [
            ("a", None, None, "a"),
            ("b", None, None, "b a"),
            ("c", None, Some("b"), "b c a"),
            ("d", Some("a"), None, "b c d a"),
            // An existing rule stays in its place…
            ("c", None, None, "b c d a"),
            // … or moves, also past others and to an end.
            ("b", Some("a"), None, "c d b a"),
            ("c", None, Some("a"), "d b a c"),
            ("c", Some("d"), None, "c d b a"),
            ("a", Some("b"), Some("c"), "c d a b"),
        ] {
            change(&mut rules, put(id, before, after)).expect(id);
            assert_eq!(order(&rules), expected, "{id} before {before:?} after {after:?}");
        }
        assert_eq!(rules.content.iter().next_back().map(|r| r.default), Some(true));
        for (before, after) in [
            (Some("c"), Some("b")),
            (Some("x"), None),
            (None, Some("x")),
            (Some(".m.rule.x"), None),
        ] {
            let refused = change(&mut rules.clone(), put("a", before, after));
            assert!(matches!(refused, Err(Refusal::InvalidParam(_))), "{before:?} {after:?}");
        }
    }

    #[test]
    fn a_rule_moved_among_rules_without_defaults_ends_up_last() {
        let mut rules = ruleset::defaults(user_id!("@ann:test"));
        let put = |id: &str, after: Option<&str>| RuleChange::Put {
            rule: NewPushRule::Sender(
                serde_json::from_value(json!({ "rule_id": id, "actions": [] })).expect("a rule"),
            ),
            before: None,
            after: after.map(ToOwned::to_owned),
        };
        for (id, after) in [("@a:x", None), ("@b:x", None), ("@b:x", Some("@a:x"))] {
            change(&mut rules, put(id, after)).expect(id);
        }
        let ids: Vec<_> = rules.sender.iter().map(|rule| rule.rule_id.as_str()).collect();
        assert_eq!(ids, ["@a:x", "@b:x"]);
    }

    /// A rule with `conditions` conditions, each with a pattern of `bytes` bytes.
    fn conditional(id: &str, conditions: usize, bytes: usize) -> RuleChange {
        let pattern = format!("*{}", "ab".repeat(bytes.saturating_sub(1) / 2));
        let condition = json!({ "kind": "event_match", "key": "content.body", "pattern": pattern });
        let rule = json!({
            "rule_id": id, "conditions": vec![condition; conditions], "actions": ["notify"],
        });
        let rule = serde_json::from_value(rule).expect("a rule");
        RuleChange::Put { rule: NewPushRule::Override(rule), before: None, after: None }
    }

    #[test]
    fn the_conditions_of_all_rules_together_are_bounded() {
        let mut rules = ruleset::defaults(user_id!("@ann:test"));
        let whole = limits::PUSH_CONDITIONS / limits::PUSH_RULE_CONDITIONS;
        for rule in 0..whole {
            let put = conditional(&rule.to_string(), limits::PUSH_RULE_CONDITIONS, 8);
            change(&mut rules, put).expect("within the bound");
        }
        let left = limits::PUSH_CONDITIONS - whole * limits::PUSH_RULE_CONDITIONS;
        change(&mut rules, conditional("last", left, 8)).expect("exactly the bound");
        for more in [conditional("more", 1, 8), put("word", None, None)] {
            let refused = change(&mut rules.clone(), more);
            assert!(matches!(refused, Err(Refusal::TooLarge(_))), "{refused:?}");
        }
        // Changes that do not exceed it further still work: replacing a pattern, and removing some.
        change(&mut rules, conditional("last", left, 9)).expect("as many");
        change(&mut rules, conditional("0", 1, 8)).expect("fewer");
        change(&mut rules, put("word", None, None)).expect("there is room again");
    }

    #[test]
    fn patterns_and_keys_are_bounded_in_length() {
        let mut rules = ruleset::defaults(user_id!("@ann:test"));
        let stars = |count: usize| {
            let rule = json!({ "rule_id": "stars", "pattern": "*a".repeat(count), "actions": [] });
            let rule = serde_json::from_value(rule).expect("a rule");
            RuleChange::Put { rule: NewPushRule::Content(rule), before: None, after: None }
        };
        change(&mut rules, stars(limits::PUSH_PATTERN_BYTES / 2)).expect("within the bound");
        let long_key = json!({
            "rule_id": "key", "actions": [],
            "conditions": [{ "kind": "event_property_is", "key": "a.".repeat(300), "value": 1 }],
        });
        let long_key = NewPushRule::Underride(serde_json::from_value(long_key).expect("a rule"));
        let long_key = RuleChange::Put { rule: long_key, before: None, after: None };
        for bad in [stars(limits::PUSH_PATTERN_BYTES / 2 + 1), long_key] {
            let refused = change(&mut rules, bad);
            assert!(matches!(refused, Err(Refusal::InvalidParam(_))), "{refused:?}");
        }
    }

    #[test]
    fn a_rule_that_is_changed_or_moved_stays_disabled() {
        let mut rules = ruleset::defaults(user_id!("@ann:test"));
        for step in [
            put("a", None, None),
            put("b", None, None),
            RuleChange::Enable(RuleKind::Content, "a".to_owned(), false),
            put("a", Some("b"), None),
            put("a", None, None),
        ] {
            change(&mut rules, step).expect("a good change");
        }
        let rule = rules.get(RuleKind::Content, "a");
        assert_eq!(rule.map(AnyPushRuleRef::enabled), Some(false));
    }
}
