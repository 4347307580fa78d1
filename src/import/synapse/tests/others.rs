//! What Synapse had begun when it stopped, what it does at its next start, and what it shows.

use std::collections::BTreeMap;

use super::{Synapse, all};
use crate::facts::{Fact, Section, Source as _, UnreadCount};

#[test]
fn a_user_whom_synapse_was_deactivating_is_deactivated() {
    let synapse = Synapse::new();
    synapse.run(
        "INSERT INTO users (name, password_hash) VALUES ('@back:a.example', '$2b$12$x');
         INSERT INTO users (name) VALUES ('@gone:a.example');
         INSERT INTO users_pending_deactivation VALUES ('@gone:a.example'), ('@back:a.example')",
    );
    let (facts, ..) = all(&mut synapse.source(), Section::Accounts);
    let deactivated = facts.into_iter().map(|fact| match fact {
        Fact::Account(account) => (account.user_id, account.deactivated),
        other => panic!("an account, not {other:?}"),
    });
    let of = |name: &str, is| (format!("@{name}:a.example"), is);
    // Who has a password again was let in since.
    let expected = BTreeMap::from([of("back", false), of("gone", true), of("u", false)]);
    assert_eq!(deactivated.collect::<BTreeMap<_, _>>(), expected);
}

#[test]
fn a_synapse_in_use_moves_whatever_it_does() {
    for sql in [
        "INSERT INTO device_inbox (user_id, device_id, stream_id, message_json)
         VALUES ('@u:a.example', 'D', 7, '{}')",
        "INSERT INTO account_data (user_id, account_data_type, stream_id, content)
         VALUES ('@u:a.example', 'm.x', 7, '{}')",
        "INSERT INTO receipts_linearized (stream_id, room_id, receipt_type, user_id, event_id, data)
         VALUES (7, '!r:a.example', 'm.read', '@u:a.example', '$e', '{}')",
        "INSERT INTO users (name) VALUES ('@v:a.example')",
        "DELETE FROM e2e_one_time_keys_json",
        "UPDATE stream_positions SET stream_id = 6 WHERE stream_name = 'caches'",
    ] {
        let synapse = Synapse::new();
        synapse.run(
            "INSERT INTO e2e_one_time_keys_json (user_id, device_id, algorithm, key_id, ts_added_ms,
                key_json) VALUES ('@u:a.example', 'D', 'x', 'A', 1, '{}');
             INSERT INTO stream_positions (stream_name, instance_name, stream_id)
             VALUES ('caches', 'master', 5)",
        );
        let mut source = synapse.source();
        let (head, before) = (source.head().expect("a place"), source.positions());
        let before = before.expect("positions");
        assert_eq!(source.positions().expect("positions"), before);
        synapse.run(sql);
        assert_ne!(source.positions().expect("positions"), before, "{sql}");
        assert_eq!(source.head().expect("a place"), head, "no event tells of it");
    }
}

#[test]
fn what_clients_called_their_events_is_told_with_what_they_asked_for() {
    let synapse = Synapse::new();
    synapse.event(1, "$message", None, "{}", false);
    synapse.event(2, "$redaction", None, "{}", false);
    synapse.run(
        "INSERT INTO redactions (event_id, redacts) VALUES ('$redaction', '$message');
         INSERT INTO event_txn_id_device_id (event_id, room_id, user_id, device_id, txn_id,
            inserted_ts) VALUES ('$message', '!r:a.example', '@u:a.example', 'D', 't1', 5),
            ('$redaction', '!r:a.example', '@u:a.example', 'D', 't2', 6)",
    );
    let (facts, ..) = all(&mut synapse.source(), Section::Transactions);
    let told = facts.into_iter().map(|fact| match fact {
        Fact::Transaction(fact) => (fact.transaction_id, fact.event_type, fact.redacts),
        other => panic!("a transaction, not {other:?}"),
    });
    let (of_type, target) = (Some("m.x".to_owned()), Some("$message".to_owned()));
    let expected = [("t1".to_owned(), of_type.clone(), None), ("t2".to_owned(), of_type, target)];
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

#[test]
fn unread_counts_are_those_that_synapse_shows() {
    let synapse = Synapse::new();
    assert!(synapse.source().unread("@u:a.example").expect("an answer").is_none());
    synapse.run(
        "CREATE TABLE event_push_actions (room_id TEXT, event_id TEXT, user_id TEXT,
            stream_ordering BIGINT, notif BIGINT, highlight BIGINT, unread BIGINT, thread_id TEXT);
         CREATE TABLE event_push_summary (user_id TEXT, room_id TEXT, notif_count BIGINT,
            unread_count BIGINT, stream_ordering BIGINT, last_receipt_stream_ordering BIGINT,
            thread_id TEXT);
         CREATE TABLE event_push_summary_stream_ordering (stream_ordering BIGINT);
         INSERT INTO event_push_summary_stream_ordering VALUES (20);
         INSERT INTO local_current_membership VALUES
            ('!r:a.example', '@u:a.example', '$1', 'join'),
            ('!s:a.example', '@u:a.example', '$1', 'join'),
            ('!left:a.example', '@u:a.example', '$1', 'leave')",
    );
    for place in [1, 10, 12] {
        synapse.event(place, &format!("${place}"), None, "{}", false);
    }
    let receipt = |number: i64, event: &str, thread: &str| {
        synapse.run(&format!(
            "INSERT INTO receipts_linearized (stream_id, room_id, receipt_type, user_id, event_id,
                thread_id, data) VALUES ({number}, '!r:a.example', 'm.read', '@u:a.example',
                '{event}', {thread}, '{{}}')"
        ));
    };
    receipt(1, "$10", "NULL");
    receipt(2, "$12", "'$t'");
    let action = |room: &str, thread: &str, place: i64, highlight: i64| {
        synapse.run(&format!(
            "INSERT INTO event_push_actions VALUES ('!{room}:a.example', '$x', '@u:a.example',
                {place}, 1, {highlight}, 1, '{thread}')"
        ));
    };
    // Three were summed up, one of which is still there, and one came since.
    synapse.run(
        "INSERT INTO event_push_summary VALUES
            ('@u:a.example', '!r:a.example', 3, 0, 20, 10, 'main'),
            ('@u:a.example', '!r:a.example', 9, 0, 11, 10, '$t')",
    );
    action("r", "main", 15, 1);
    action("r", "main", 21, 0);
    // In the thread, the summary is older than what was read there.
    action("r", "$t", 12, 0);
    action("r", "$t", 14, 0);
    action("s", "main", 5, 1);
    action("left", "main", 5, 1);
    let unread = synapse.source().unread("@u:a.example").expect("an answer").expect("counts");
    let of = |room: &str, notifications, highlights| {
        (format!("!{room}:a.example"), UnreadCount { notifications, highlights })
    };
    assert_eq!(unread, BTreeMap::from([of("r", 5, 1), of("s", 1, 1)]));
}
