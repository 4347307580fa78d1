//! What belongs to one user, and reports.

use crate::{
    facts::{
        AccountData, DelayedEvent, Fact, Filter, Presence, PushRule, PushRuleChange, Pusher,
        Receipt, Report, Tag, ThreadSubscription, Transaction,
    },
    sql::{database::Fault, plan::Plan},
    synapse::context::Context,
};

pub(super) const ACCOUNT_DATA: &[Plan<Context>] = &[
    Plan {
        from: "account_data a",
        only: "",
        keys: 2,
        columns: &["a.user_id", "a.account_data_type", "a.content"],
        shown: 2,
        tell: |row, _, facts| {
            facts.push(Fact::AccountData(AccountData {
                user_id: row.text("user_id")?,
                room_id: None,
                event_type: row.text("account_data_type")?,
                content: row.object("content")?,
            }));
            Ok(())
        },
    },
    Plan {
        from: "room_account_data a",
        only: "",
        keys: 3,
        columns: &["a.user_id", "a.room_id", "a.account_data_type", "a.content"],
        shown: 3,
        tell: |row, _, facts| {
            facts.push(Fact::AccountData(AccountData {
                user_id: row.text("user_id")?,
                room_id: Some(row.text("room_id")?),
                event_type: row.text("account_data_type")?,
                content: row.object("content")?,
            }));
            Ok(())
        },
    },
];

pub(super) const TAGS: &[Plan<Context>] = &[Plan {
    from: "room_tags t",
    only: "",
    keys: 3,
    columns: &["t.user_id", "t.room_id", "t.tag", "t.content"],
    shown: 3,
    tell: |row, _, facts| {
        facts.push(Fact::Tag(Tag {
            user_id: row.text("user_id")?,
            room_id: row.text("room_id")?,
            tag: row.text("tag")?,
            content: row.object("content")?,
        }));
        Ok(())
    },
}];

pub(super) const PUSH_RULES: &[Plan<Context>] = &[Plan {
    from: "push_rules r LEFT JOIN push_rules_enable e
        ON e.user_name = r.user_name AND e.rule_id = r.rule_id",
    only: "",
    keys: 2,
    columns: &[
        "r.user_name",
        "r.rule_id",
        "r.priority_class",
        "r.priority",
        "r.conditions",
        "r.actions",
        "e.enabled",
    ],
    shown: 2,
    tell: |row, _, facts| {
        let (kind, rule_id) = rule(&row.text("rule_id")?)?;
        facts.push(Fact::PushRule(PushRule {
            user_id: row.text("user_name")?,
            kind,
            rule_id,
            priority: row.int("priority")?,
            conditions: row.json("conditions")?,
            actions: row.json("actions")?,
            enabled: row.int_or_none("enabled")? != Some(0),
        }));
        Ok(())
    },
}];

/// Only of default rules: that of another is told with the rule.
pub(super) const PUSH_RULE_CHANGES: &[Plan<Context>] = &[Plan {
    from: "push_rules_enable e",
    only: "",
    keys: 2,
    columns: &["e.user_name", "e.rule_id", "e.enabled"],
    shown: 2,
    tell: |row, _, facts| {
        let (kind, rule_id) = rule(&row.text("rule_id")?)?;
        if rule_id.starts_with('.') {
            facts.push(Fact::PushRuleChange(PushRuleChange {
                user_id: row.text("user_name")?,
                kind,
                rule_id,
                enabled: row.int_or_none("enabled")? != Some(0),
            }));
        }
        Ok(())
    },
}];

/// Kind and id of a rule from the name that Synapse gives it: `global/override/.m.rule.master`.
fn rule(name: &str) -> Result<(String, String), Fault> {
    let mut parts = name.splitn(3, '/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("global"), Some(kind), Some(rule_id)) if !rule_id.is_empty() => {
            Ok((kind.to_owned(), rule_id.to_owned()))
        }
        _ => Err("the column `rule_id` names no rule of all devices".to_owned()),
    }
}

pub(super) const PUSHERS: &[Plan<Context>] = &[Plan {
    from: "pushers p LEFT JOIN access_tokens t ON t.id = p.access_token",
    only: "",
    keys: 1,
    columns: &[
        "p.id",
        "p.user_name",
        "COALESCE(p.device_id, t.device_id) AS device_id",
        "p.kind",
        "p.app_id",
        "p.pushkey",
        "p.app_display_name",
        "p.device_display_name",
        "p.profile_tag",
        "p.lang",
        "p.data",
        "p.enabled",
        "p.ts",
        "p.last_stream_ordering",
        "p.last_success",
        "p.failing_since",
    ],
    shown: 1,
    tell: |row, _, facts| {
        facts.push(Fact::Pusher(Pusher {
            user_id: row.text("user_name")?,
            device_id: row.text_or_none("device_id")?,
            kind: row.text("kind")?,
            app_id: row.text("app_id")?,
            pushkey: row.text("pushkey")?,
            app_display_name: row.text("app_display_name")?,
            device_display_name: row.text("device_display_name")?,
            profile_tag: row.text_or_none("profile_tag")?.filter(|tag| !tag.is_empty()),
            lang: row.text_or_none("lang")?,
            data: row.json_or_none("data")?,
            enabled: row.int_or_none("enabled")? != Some(0),
            created_ms: row.int("ts")?,
            told_up_to: row.int_or_none("last_stream_ordering")?,
            succeeded_ms: row.int_or_none("last_success")?,
            failing_since_ms: row.int_or_none("failing_since")?,
        }));
        Ok(())
    },
}];

pub(super) const RECEIPTS: &[Plan<Context>] = &[Plan {
    from: "receipts_linearized r",
    only: "",
    keys: 4,
    columns: &[
        "r.stream_id",
        "r.room_id",
        "r.user_id",
        "r.receipt_type",
        "r.event_id",
        "r.thread_id",
        "r.data",
    ],
    shown: 4,
    tell: |row, _, facts| {
        #[derive(serde::Deserialize)]
        struct Data {
            #[serde(default)]
            ts: Option<f64>,
        }
        let data = row.object("data")?;
        let data: Data = serde_json::from_str(data.get())
            .map_err(|_| "the column `data` has no time".to_owned())?;
        let ts_ms = data.ts.unwrap_or_default() as i64;
        facts.push(Fact::Receipt(Receipt {
            room_id: row.text("room_id")?,
            user_id: row.text("user_id")?,
            receipt_type: row.text("receipt_type")?,
            event_id: row.text("event_id")?,
            thread_id: row.text_or_none("thread_id")?,
            ts_ms,
            stream: row.int("stream_id")?,
        }));
        Ok(())
    },
}];

pub(super) const FILTERS: &[Plan<Context>] = &[Plan {
    from: "user_filters f",
    only: "",
    keys: 2,
    columns: &["f.user_id", "f.filter_id", "f.filter_json"],
    shown: 2,
    tell: |row, context, facts| {
        facts.push(Fact::Filter(Filter {
            user_id: context.user_id(&row.text("user_id")?),
            filter_id: row.int("filter_id")?,
            filter: row.object("filter_json")?,
        }));
        Ok(())
    },
}];

pub(super) const THREAD_SUBSCRIPTIONS: &[Plan<Context>] = &[Plan {
    from: "thread_subscriptions s",
    only: "",
    keys: 1,
    columns: &[
        "s.stream_id",
        "s.room_id",
        "s.event_id",
        "s.user_id",
        "s.subscribed",
        "s.automatic",
    ],
    shown: 1,
    tell: |row, _, facts| {
        facts.push(Fact::ThreadSubscription(ThreadSubscription {
            room_id: row.text("room_id")?,
            user_id: row.text("user_id")?,
            thread_id: row.text("event_id")?,
            subscribed: row.flag("subscribed")?,
            automatic: row.flag("automatic")?,
        }));
        Ok(())
    },
}];

pub(super) const PRESENCE: &[Plan<Context>] = &[Plan {
    from: "presence_stream p",
    only: "",
    keys: 2,
    columns: &[
        "p.user_id",
        "p.stream_id",
        "p.state",
        "p.last_active_ts",
        "p.status_msg",
        "p.currently_active",
    ],
    shown: 2,
    tell: |row, context, facts| {
        let user_id = row.text("user_id")?;
        if context.is_local(&user_id) {
            facts.push(Fact::Presence(Presence {
                user_id,
                state: row.text("state")?,
                status: row.text_or_none("status_msg")?,
                active_ms: row.int_or_none("last_active_ts")?.unwrap_or_default(),
                currently_active: row.flag("currently_active")?,
            }));
        }
        Ok(())
    },
}];

pub(super) const TRANSACTIONS: &[Plan<Context>] = &[Plan {
    from: "event_txn_id_device_id t LEFT JOIN events e ON e.event_id = t.event_id
        LEFT JOIN redactions d ON d.event_id = t.event_id",
    only: "",
    keys: 1,
    columns: &[
        "t.event_id",
        "t.room_id",
        "t.user_id",
        "t.device_id",
        "t.txn_id",
        "t.inserted_ts",
        "e.type",
        "e.state_key",
        "d.redacts",
    ],
    shown: 1,
    tell: |row, _, facts| {
        facts.push(Fact::Transaction(Transaction {
            event_id: row.text("event_id")?,
            room_id: row.text("room_id")?,
            user_id: row.text("user_id")?,
            device_id: row.text("device_id")?,
            transaction_id: row.text("txn_id")?,
            time_ms: row.int("inserted_ts")?,
            event_type: row.text_or_none("type")?,
            state_key: row.text_or_none("state_key")?,
            redacts: row.text_or_none("redacts")?,
        }));
        Ok(())
    },
}];

/// The id of a delayed event is a secret: whoever knows it may send the event.
pub(super) const DELAYED_EVENTS: &[Plan<Context>] = &[Plan {
    from: "delayed_events d",
    only: "",
    keys: 2,
    columns: &[
        "d.user_localpart",
        "d.delay_id",
        "d.device_id",
        "d.delay",
        "d.send_ts",
        "d.room_id",
        "d.event_type",
        "d.state_key",
        "d.origin_server_ts",
        "d.content",
        "d.is_processed",
    ],
    shown: 1,
    tell: |row, context, facts| {
        facts.push(Fact::DelayedEvent(DelayedEvent {
            delay_id: row.text("delay_id")?,
            user_id: context.user_id(&row.text("user_localpart")?),
            device_id: row.text_or_none("device_id")?,
            delay_ms: row.int("delay")?,
            send_ms: row.int("send_ts")?,
            room_id: row.text("room_id")?,
            event_type: row.text("event_type")?,
            state_key: row.text_or_none("state_key")?,
            origin_ms: row.int_or_none("origin_server_ts")?,
            content: row.object("content")?,
            is_processed: row.flag("is_processed")?,
        }));
        Ok(())
    },
}];

pub(super) const REPORTS: &[Plan<Context>] = &[
    Plan {
        from: "event_reports r",
        only: "",
        keys: 1,
        columns: &[
            "r.id",
            "r.received_ts",
            "r.room_id",
            "r.event_id",
            "r.user_id",
            "r.reason",
            "r.content",
        ],
        shown: 1,
        tell: |row, _, facts| {
            let content = row.json_or_none("content")?;
            let content: Option<serde_json::Value> =
                content.and_then(|content| serde_json::from_str(content.get()).ok());
            let content = content.unwrap_or_default();
            let reason = row.text_or_none("reason")?;
            facts.push(Fact::Report(Report {
                reporter: row.text("user_id")?,
                received_ms: row.int("received_ts")?,
                room_id: Some(row.text("room_id")?),
                event_id: Some(row.text("event_id")?),
                user_id: None,
                reason: reason.or_else(|| content["reason"].as_str().map(str::to_owned)),
                score: content["score"].as_i64(),
            }));
            Ok(())
        },
    },
    Plan {
        from: "room_reports r",
        only: "",
        keys: 1,
        columns: &["r.id", "r.received_ts", "r.room_id", "r.user_id", "r.reason"],
        shown: 1,
        tell: |row, _, facts| {
            facts.push(Fact::Report(Report {
                reporter: row.text("user_id")?,
                received_ms: row.int("received_ts")?,
                room_id: Some(row.text("room_id")?),
                event_id: None,
                user_id: None,
                reason: row.text_or_none("reason")?,
                score: None,
            }));
            Ok(())
        },
    },
    Plan {
        from: "user_reports r",
        only: "",
        keys: 1,
        columns: &["r.id", "r.received_ts", "r.target_user_id", "r.user_id", "r.reason"],
        shown: 1,
        tell: |row, _, facts| {
            facts.push(Fact::Report(Report {
                reporter: row.text("user_id")?,
                received_ms: row.int("received_ts")?,
                room_id: None,
                event_id: None,
                user_id: Some(row.text("target_user_id")?),
                reason: row.text_or_none("reason")?,
                score: None,
            }));
            Ok(())
        },
    },
];

#[cfg(test)]
mod tests {
    use super::rule;

    #[test]
    fn a_rule_is_named_by_its_kind_and_its_id() {
        let names = |name| rule(name).ok();
        let own = Some(("room".to_owned(), "!a/b:c".to_owned()));
        assert_eq!(names("global/room/!a/b:c"), own, "an id may have slashes");
        assert_eq!(names("device/content/x"), None, "rules of one device are gone");
        assert_eq!(names("global/content/"), None);
    }
}
