//! What users keep for themselves.

use ruma::{
    OwnedUserId, ServerName,
    push::{
        Action, NewConditionalPushRule, NewPatternedPushRule, NewPushRule, NewSimplePushRule,
        PushCondition, RuleKind,
    },
};
use serde_json::{Map, Value, json, value::RawValue};

use super::{Made, ms, own_user, room};
use crate::{
    copy::writer::Left,
    facts::{self, PushRule, PushRuleChange},
};
use logcabin_base::limits;
use logcabin_read::{events::to_raw, notifications::ruleset};
use logcabin_record::{
    Stream,
    command::{AccountDataSet, DelayedSchedule, FilterCreate, PresenceSet, PresenceState},
    pusher::{PusherIds, PusherKind, PusherSet},
};

fn account_data_of(
    user_id: OwnedUserId,
    room_id: Option<&str>,
    event_type: String,
    content: Box<RawValue>,
) -> Result<Made, Left> {
    let room_id = room_id.map(room).transpose()?;
    if content.get().len() > limits::IMPORT_ACCOUNT_DATA_BYTES {
        let why = format!("it has {} bytes", content.get().len());
        return Err(("it is larger than account data may be", why));
    }
    let stream = Stream::user(&user_id);
    Ok(Made::one(stream, AccountDataSet { user_id, room_id, event_type, content }))
}

pub(in crate::copy) fn account_data(
    fact: facts::AccountData,
    own: &ServerName,
) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    if fact.event_type == ruleset::EVENT_TYPE || fact.event_type == "m.tag" {
        let why = format!("`{}` is told in other rows", fact.event_type);
        return Err(("the server itself keeps data of this type", why));
    }
    account_data_of(user_id, fact.room_id.as_deref(), fact.event_type, fact.content)
}

/// The tags of one room of a user.
pub(in crate::copy) fn tags(tags: Vec<facts::Tag>, own: &ServerName) -> Result<Made, Left> {
    let Some(first) = tags.first() else { return Ok(Made::default()) };
    let (user_id, room_id) = (own_user(&first.user_id, own)?, first.room_id.clone());
    let tags: Map<String, Value> = tags
        .into_iter()
        .map(|tag| {
            let content = serde_json::from_str::<Map<String, Value>>(tag.content.get());
            (tag.tag, Value::Object(content.unwrap_or_default()))
        })
        .collect();
    let content = to_raw(&json!({ "tags": tags }));
    account_data_of(user_id, Some(&room_id), "m.tag".to_owned(), content)
}

/// The push rules of one user: rules of their own, and what they changed of the default ones.
pub(in crate::copy) fn push_rules(
    user_id: &str,
    mut rules: Vec<PushRule>,
    changes: &[PushRuleChange],
    own: &ServerName,
) -> Result<(Made, Vec<Left>), Left> {
    let user_id = own_user(user_id, own)?;
    let (mut all, mut left) = (ruleset::shown(&user_id, None), Vec::new());
    let odd = |rule_id: &str, why: &dyn std::fmt::Display| -> Left {
        ("it is no push rule", format!("the rule `{rule_id}`: {why}"))
    };
    // Each new rule comes before the others of its kind.
    rules.sort_by_key(|rule| rule.priority);
    for rule in &rules {
        let kind = RuleKind::from(&*rule.kind);
        let actions: Vec<Action> = match serde_json::from_str(rule.actions.get()) {
            Ok(actions) => actions,
            Err(error) => {
                left.push(odd(&rule.rule_id, &error));
                continue;
            }
        };
        let done = if rule.rule_id.starts_with('.') {
            all.set_actions(kind.clone(), &rule.rule_id, actions).map_err(|error| error.to_string())
        } else {
            new_rule(rule, actions)
                .and_then(|rule| all.insert(rule, None, None).map_err(|error| error.to_string()))
        };
        let done = done.and_then(|()| {
            let is_on = rule.enabled;
            all.set_enabled(kind, &rule.rule_id, is_on).map_err(|error| error.to_string())
        });
        if let Err(why) = done {
            left.push(odd(&rule.rule_id, &why));
        }
    }
    for change in changes {
        let kind = RuleKind::from(&*change.kind);
        // Rules that this server does not have are as if they were off.
        if let Err(why) = all.set_enabled(kind, &change.rule_id, change.enabled) {
            left.push(odd(&change.rule_id, &why));
        }
    }
    let content = ruleset::kept(&user_id, all);
    let stream = Stream::user(&user_id);
    let (event_type, room_id) = (ruleset::EVENT_TYPE.to_owned(), None);
    Ok((Made::one(stream, AccountDataSet { user_id, room_id, event_type, content }), left))
}

fn new_rule(rule: &PushRule, actions: Vec<Action>) -> Result<NewPushRule, String> {
    let id = rule.rule_id.clone();
    let conditions = || -> Result<Vec<PushCondition>, String> {
        serde_json::from_str(rule.conditions.get()).map_err(|error| error.to_string())
    };
    Ok(match &*rule.kind {
        "override" => {
            NewPushRule::Override(NewConditionalPushRule::new(id, conditions()?, actions))
        }
        "underride" => {
            NewPushRule::Underride(NewConditionalPushRule::new(id, conditions()?, actions))
        }
        "content" => {
            // Synapse keeps the pattern as the only condition.
            let conditions: Value =
                serde_json::from_str(rule.conditions.get()).map_err(|error| error.to_string())?;
            let pattern = conditions[0]["pattern"].as_str().ok_or("it has no pattern")?;
            NewPushRule::Content(NewPatternedPushRule::new(id, pattern.to_owned(), actions))
        }
        "room" => {
            let room_id = room(&id).map_err(|(_, why)| why)?;
            NewPushRule::Room(NewSimplePushRule::new(room_id, actions))
        }
        "sender" => {
            let sender = super::user(&id).map_err(|(_, why)| why)?;
            NewPushRule::Sender(NewSimplePushRule::new(sender, actions))
        }
        other => return Err(format!("`{other}` is no kind of rules")),
    })
}

pub(in crate::copy) fn pusher(fact: facts::Pusher, own: &ServerName) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    let kind = match &*fact.kind {
        "http" => PusherKind::Http,
        "email" => PusherKind::Email,
        other => return Err(("it is of an unknown kind", format!("`{other}` is no kind"))),
    };
    let data = fact.data.as_deref().map(RawValue::get).unwrap_or("{}");
    let data: Map<String, Value> = serde_json::from_str(data)
        .map_err(|error| ("its data are no object", format!("its data are none: {error}")))?;
    let is_mail = kind == PusherKind::Email;
    let body = PusherSet {
        user_id,
        device_id: fact.device_id.filter(|_| !is_mail).map(Into::into),
        ids: PusherIds { app_id: fact.app_id, pushkey: fact.pushkey },
        kind,
        app_display_name: fact.app_display_name,
        device_display_name: fact.device_display_name,
        profile_tag: fact.profile_tag,
        lang: fact.lang.unwrap_or_default(),
        data,
        disabled: !fact.enabled,
    };
    Ok(Made::one(Stream::pusher(&body.ids), body).at(Some(fact.created_ms)))
}

pub(in crate::copy) fn filter(fact: facts::Filter, own: &ServerName) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    let (stream, filter_id) = (Stream::user(&user_id), fact.filter_id.to_string());
    Ok(Made::one(stream, FilterCreate { user_id, filter_id, filter: fact.filter }))
}

pub(in crate::copy) fn presence(fact: facts::Presence, own: &ServerName) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    let presence = match &*fact.state {
        "online" => PresenceState::Online,
        "unavailable" | "busy" => PresenceState::Unavailable,
        _ => PresenceState::Offline,
    };
    let stream = Stream::presence(&user_id);
    let body = PresenceSet {
        user_id,
        presence,
        status_msg: fact.status,
        currently_active: fact.currently_active,
        last_active_ms: ms(fact.active_ms),
    };
    Ok(Made::one(stream, body))
}

pub(in crate::copy) fn delayed(fact: facts::DelayedEvent, own: &ServerName) -> Result<Made, Left> {
    let (user_id, room_id) = (own_user(&fact.user_id, own)?, room(&fact.room_id)?);
    if fact.is_processed {
        return Err(("it is being sent", "it is being sent".to_owned()));
    }
    let stream = Stream::delayed(&user_id);
    let body = DelayedSchedule {
        delay_id: fact.delay_id,
        user_id,
        room_id,
        event_type: fact.event_type,
        state_key: fact.state_key,
        content: fact.content,
        delay_ms: ms(fact.delay_ms),
        since_ms: ms(fact.send_ms).saturating_sub(ms(fact.delay_ms)),
        transaction: None,
    };
    Ok(Made::one(stream, body))
}

#[cfg(test)]
mod tests {
    use ruma::server_name;

    use super::*;
    use logcabin_record::Command;

    fn raw(value: &Value) -> Box<RawValue> {
        to_raw(value)
    }

    fn rule(kind: &str, rule_id: &str, priority: i64, conditions: &Value) -> PushRule {
        PushRule {
            user_id: "@ann:a.example".to_owned(),
            kind: kind.to_owned(),
            rule_id: rule_id.to_owned(),
            priority,
            conditions: raw(conditions),
            actions: raw(&json!(["notify"])),
            enabled: rule_id != "off",
        }
    }

    #[test]
    fn push_rules_keep_their_order_and_what_was_changed_of_default_rules() {
        let own = server_name!("a.example");
        let change = PushRuleChange {
            user_id: "@ann:a.example".to_owned(),
            kind: "override".to_owned(),
            rule_id: ".m.rule.master".to_owned(),
            enabled: true,
        };
        let rules = vec![
            rule("override", "low", 1, &json!([])),
            rule("override", "high", 2, &json!([])),
            rule("override", "off", 0, &json!([])),
            rule("content", "cake", 1, &json!([{ "kind": "event_match", "pattern": "cake" }])),
            rule("room", "!r:a.example", 1, &json!([])),
            rule("room", "no room", 1, &json!([])),
        ];
        let (made, left) = push_rules("@ann:a.example", rules, &[change], own).unwrap();
        assert_eq!(left.len(), 1, "{left:?}");
        let Command::AccountDataSet(body) = &made.commands[0].1 else { panic!("no data") };
        let user_id = <&ruma::UserId>::try_from("@ann:a.example").unwrap();
        let all = ruleset::shown(user_id, Some(&body.content));
        let own: Vec<_> = all
            .iter()
            .filter(|rule| !rule.is_server_default())
            .map(|rule| (rule.rule_id().to_owned(), rule.enabled()))
            .collect();
        let named = |id: &str, is_on| (id.to_owned(), is_on);
        assert_eq!(own[..3], [named("high", true), named("low", true), named("off", false)]);
        assert!(own.contains(&named("cake", true)) && own.contains(&named("!r:a.example", true)));
        assert!(all.get(RuleKind::Override, ".m.rule.master").unwrap().enabled());
    }
}
