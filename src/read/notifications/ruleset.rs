//! A user's push rules as stored and as shown (client-server API, "Predefined rules").
//!
//! Only the user's changes are stored, as account data of type `m.push_rules`: their own rules, and
//! default rules whose state they have changed. Clients see these changes applied to the server's
//! current default rules. A new or changed default rule therefore reaches every user who has not
//! changed it.

use ruma::{
    RoomId, UserId,
    push::{
        Action, ConditionalPushRule, ConditionalPushRuleInit, PatternedPushRule,
        PatternedPushRuleInit, PushCondition, Ruleset,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use crate::events::to_raw;
use logcabin_base::limits;

/// The rules for events without `m.mentions`.
pub(super) const WITHOUT_MENTIONS: [&str; 3] =
    [".m.rule.contains_display_name", ".m.rule.roomnotif", ".m.rule.contains_user_name"];

/// The rule that pushes all encrypted events.
const ENCRYPTED: &str = ".org.matrix.msc4028.encrypted_event";

/// The type of the account data that holds push rules.
pub const EVENT_TYPE: &str = "m.push_rules";

/// Content of `m.push_rules`.
#[derive(Serialize, Deserialize)]
struct Content {
    global: Ruleset,
}

/// The server's default rules for `user_id`.
pub fn defaults(user_id: &UserId) -> Ruleset {
    let mut rules = Ruleset::server_default(user_id);
    let highlight = |with_sound: bool| -> Vec<Action> {
        let mut actions = vec![json!("notify")];
        if with_sound {
            actions.push(json!({ "set_tweak": "sound", "value": "default" }));
        }
        actions.push(json!({ "set_tweak": "highlight" }));
        serde_json::from_value(actions.into()).unwrap_or_default()
    };
    let conditional = |rule_id: &str, conditions: Value, actions| {
        let conditions: Vec<PushCondition> = serde_json::from_value(conditions).unwrap_or_default();
        let rule_id = rule_id.to_owned();
        let init =
            ConditionalPushRuleInit { actions, default: true, enabled: true, rule_id, conditions };
        ConditionalPushRule::from(init)
    };
    let after = |rules: &Ruleset, rule_id: &str| {
        rules.override_.get_index_of(rule_id).map_or(rules.override_.len(), |index| index + 1)
    };
    // Clients that decrypt what is pushed turn this on (MSC4028).
    let place = after(&rules, ".m.rule.master");
    let conditions =
        json!([{ "kind": "event_match", "key": "type", "pattern": "m.room.encrypted" }]);
    let mut encrypted = conditional(ENCRYPTED, conditions, vec![Action::Notify]);
    encrypted.enabled = false;
    rules.override_.shift_insert(place, encrypted);
    // ruma lacks the rules that `m.mentions` replaced, but many clients still do not send it.
    let [display_name, roomnotif, user_name] = WITHOUT_MENTIONS;
    let place = after(&rules, ".m.rule.is_user_mention");
    let conditions = json!([{ "kind": "contains_display_name" }]);
    rules.override_.shift_insert(place, conditional(display_name, conditions, highlight(true)));
    let place = after(&rules, ".m.rule.is_room_mention");
    let conditions = json!([
        { "kind": "event_match", "key": "content.body", "pattern": "@room" },
        { "kind": "sender_notification_permission", "key": "room" },
    ]);
    rules.override_.shift_insert(place, conditional(roomnotif, conditions, highlight(false)));
    rules.content.insert(PatternedPushRule::from(PatternedPushRuleInit {
        actions: highlight(true),
        default: true,
        enabled: true,
        rule_id: user_name.to_owned(),
        pattern: user_id.localpart().to_owned(),
    }));
    rules
}

/// The rules of `user_id`, whose stored changes are `kept`.
pub fn shown(user_id: &UserId, kept: Option<&RawValue>) -> Ruleset {
    let kept = kept.and_then(|kept| serde_json::from_str::<Content>(kept.get()).ok());
    match kept {
        Some(Content { mut global }) => {
            global.update_with_server_default(defaults(user_id));
            global
        }
        None => defaults(user_id),
    }
}

/// The content of the account data as shown to clients.
pub fn shown_content(user_id: &UserId, kept: Option<&RawValue>) -> Box<RawValue> {
    to_raw(&Content { global: shown(user_id, kept) })
}

/// The rules of a user for a room that replaces `old`: those in `kept`, with a copy for `new` of
/// each rule that names `old`. `None` if that changes nothing or exceeds the limits.
pub fn carried(kept: &RawValue, old: &RoomId, new: &RoomId) -> Option<Box<RawValue>> {
    let mut content: Value = serde_json::from_str(kept.get()).ok()?;
    let mut changed = false;
    for (kind, rules) in content.get_mut("global")?.as_object_mut()? {
        let Some(rules) = rules.as_array_mut() else { continue };
        let copies: Vec<_> = rules
            .iter()
            .enumerate()
            .filter_map(|(index, rule)| Some((index + 1, renamed(kind, rule, old, new)?)))
            .filter(|(_, copy)| rules.iter().all(|rule| rule["rule_id"] != copy["rule_id"]))
            .collect();
        changed |= !copies.is_empty();
        // From the last one on, so that earlier positions do not change.
        for (place, copy) in copies.into_iter().rev() {
            rules.insert(place, copy);
        }
    }
    let carried = to_raw(&content);
    (changed && carried.get().len() <= limits::PUSH_RULES_BYTES).then_some(carried)
}

/// A copy for `new` of a rule that names `old`.
fn renamed(kind: &str, rule: &Value, old: &RoomId, new: &RoomId) -> Option<Value> {
    let rule_id = rule["rule_id"].as_str()?;
    let mut copy = rule.clone();
    let mut names = kind == "room" && rule_id == old;
    for condition in copy["conditions"].as_array_mut().into_iter().flatten() {
        if condition["kind"] == "event_match"
            && condition["key"] == "room_id"
            && condition["pattern"] == old.as_str()
        {
            condition["pattern"] = new.as_str().into();
            names = true;
        }
    }
    let named_after = rule_id.replace(old.as_str(), new.as_str());
    let rule_id = if named_after == rule_id { format!("{rule_id} {new}") } else { named_after };
    copy["rule_id"] = rule_id.into();
    names.then_some(copy)
}

/// The changes to store for `rules`, in the format of [`shown`]'s `kept`.
pub fn kept(user_id: &UserId, mut rules: Ruleset) -> Box<RawValue> {
    let defaults = defaults(user_id);
    macro_rules! keep_changes {
        ($($kind:ident),+) => {
            $(rules.$kind.retain(|rule| {
                let default = defaults.$kind.get(rule);
                default.is_none_or(|default| {
                    rule.enabled != default.enabled || !same(&rule.actions, &default.actions)
                })
            });)+
        };
    }
    keep_changes!(override_, content, room, sender, underride);
    to_raw(&Content { global: rules })
}

fn same(one: &[Action], other: &[Action]) -> bool {
    to_raw(one).get() == to_raw(other).get()
}

#[cfg(test)]
mod tests {
    use ruma::{push::RuleKind, user_id};
    use serde_json::Value;

    use super::*;

    fn ann() -> &'static UserId {
        user_id!("@ann:test")
    }

    fn ids(rules: &Ruleset) -> Vec<String> {
        rules.override_.iter().map(|rule| rule.rule_id.clone()).collect()
    }

    fn content(kept: &RawValue) -> Value {
        serde_json::from_str(kept.get()).expect("what is kept is JSON")
    }

    #[test]
    fn the_default_rules_stand_in_the_order_of_the_specification() {
        let expected = [
            ".m.rule.master",
            ENCRYPTED,
            ".m.rule.suppress_notices",
            ".m.rule.invite_for_me",
            ".m.rule.member_event",
            ".m.rule.is_user_mention",
            ".m.rule.contains_display_name",
            ".m.rule.is_room_mention",
            ".m.rule.roomnotif",
            ".m.rule.tombstone",
            ".m.rule.reaction",
            ".m.rule.room.server_acl",
            ".m.rule.suppress_edits",
        ];
        assert_eq!(ids(&defaults(ann())), expected);
        let name = serde_json::to_value(&defaults(ann()).content).expect("rules serialise");
        let actions = json!(["notify", { "set_tweak": "sound", "value": "default" }, { "set_tweak": "highlight" }]);
        assert_eq!(name[0]["pattern"], "ann");
        assert_eq!(name[0]["actions"], actions);
    }

    #[test]
    fn unchanged_rules_are_not_stored() {
        assert_eq!(content(&kept(ann(), shown(ann(), None))), json!({ "global": {} }));
    }

    #[test]
    fn a_users_changes_survive_a_change_of_the_defaults() {
        let mut rules = shown(ann(), None);
        rules
            .set_enabled(RuleKind::Override, ".m.rule.master", true)
            .expect("a rule that is there");
        rules.set_actions(RuleKind::Underride, ".m.rule.message", vec![]).expect("as well");
        let own: ruma::push::NewConditionalPushRule = serde_json::from_value(
            json!({ "rule_id": "own", "conditions": [], "actions": ["notify"] }),
        )
        .expect("a rule");
        rules.insert(ruma::push::NewPushRule::Override(own), None, None).expect("a good rule");
        let kept = kept(ann(), rules);
        let stored = content(&kept);
        assert_eq!(stored["global"]["override"].as_array().map(Vec::len), Some(2), "{stored}");
        assert_eq!(stored["global"]["underride"].as_array().map(Vec::len), Some(1), "{stored}");
        // Stored by an older version, which had another default rule and lacked most present ones.
        let mut older = stored;
        let gone = json!({ "rule_id": ".m.rule.gone", "default": true, "enabled": false, "conditions": [], "actions": [] });
        older["global"]["override"].as_array_mut().expect("a list").push(gone);
        let shown = shown(ann(), Some(&to_raw(&older)));
        let mut expected = ids(&defaults(ann()));
        expected.insert(1, "own".to_owned());
        assert_eq!(ids(&shown), expected);
        assert!(shown.get(RuleKind::Override, ".m.rule.master").is_some_and(|rule| rule.enabled()));
        let message = shown.get(RuleKind::Underride, ".m.rule.message");
        assert!(message.is_some_and(|rule| rule.actions().is_empty()));
    }

    #[test]
    fn unreadable_rules_count_as_the_defaults() {
        let rules = shown(ann(), Some(&to_raw(&json!({ "global": 5 }))));
        assert_eq!(ids(&rules), ids(&defaults(ann())));
    }
}
