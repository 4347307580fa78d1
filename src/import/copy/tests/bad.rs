//! Sources with rows that cannot come along. Each is reported with table and key, by a check before
//! as by the copy, and everything else comes along.

use std::collections::BTreeSet;

use super::{
    super::*,
    payloads,
    property::{copy_to, finish_to},
    rows::Rows,
};
use crate::{check::check, synapse::Source};

/// What a check and an import of a good database with one more thing say: the rows that do not come
/// along as they are, sorted.
fn reported(spoil: impl FnOnce(&mut Rows)) -> Vec<String> {
    let mut rows = Rows::new(7);
    rows.go_on(20);
    spoil(&mut rows);
    let settings = rows.settings();
    let mut source = Source::open(&settings).unwrap_or_else(|error| panic!("{error}"));
    let report = check(&mut source, &settings.media_store_path).unwrap();
    let by_check: BTreeSet<String> =
        report.faults.iter().map(|bad| bad.origin.to_string()).collect();
    assert!(!by_check.is_empty(), "the check finds nothing");
    let dir = tempfile::tempdir().unwrap();
    // The rows are met twice, and reported as often.
    copy_to(&rows, dir.path());
    let finished = finish_to(&rows, dir.path());
    let list = fs::read_to_string(&finished.report).unwrap();
    let lines =
        list.lines().filter(|line| !line.starts_with("room ") && !line.starts_with("event "));
    let by_copy: BTreeSet<String> =
        lines.map(|line| line.split_once(": ").unwrap().0.to_owned()).collect();
    assert_eq!(by_check, by_copy, "{list}{:#?}", report.faults);
    for user in ["@ann:a.example", "@cid:a.example"] {
        let registered = payloads(dir.path(), "user.register");
        assert!(registered.iter().any(|of| of["user_id"] == user), "{user} is not there");
    }
    assert!(payloads(dir.path(), "room.event").len() > 3, "the rooms are not there");
    by_check.into_iter().collect()
}

/// The same, where SQL spoils the database. `ROOM` stands for the id of a room, `EVENT` for that of
/// a message in it, and `PLACE` for its place.
fn reported_after(sql: &str) -> Vec<String> {
    reported(|rows| {
        let (room, event, place): (String, String, i64) = rows
            .database
            .query_row(
                "SELECT room_id, event_id, stream_ordering FROM events
                 WHERE type = 'm.room.message' AND stream_ordering > 0 AND NOT outlier
                    AND rejection_reason IS NULL AND stream_ordering < 30 LIMIT 1",
                [],
                |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
            )
            .unwrap();
        let sql = sql.replace("ROOM", &room).replace("EVENT", &event);
        rows.database.execute_batch(&sql.replace("PLACE", &place.to_string())).unwrap();
    })
}

/// Asserts which rows are reported. Those that end with an asterisk may go on.
fn assert_reported(reported: &[String], expected: &[&str]) {
    for of in expected {
        let is_met = |row: &String| match of.strip_suffix('*') {
            Some(begin) => row.starts_with(begin),
            None => row == of,
        };
        assert!(reported.iter().any(is_met), "{of} is not among {reported:#?}");
    }
    assert_eq!(reported.len(), expected.len(), "{reported:#?}");
}

#[test]
fn corrupt_json() {
    let reported = reported_after(
        r#"INSERT INTO account_data VALUES ('@ann:a.example', 'm.half', 1, '{"a": '),
            ('@ann:a.example', 'm.list', 2, '[]');
        UPDATE e2e_device_keys_json SET key_json = 'x' WHERE user_id = '@bob:a.example';
        INSERT INTO room_tags VALUES ('@ann:a.example', 'ROOM', 'u.bad', '{');
        INSERT INTO push_rules VALUES
            (900, '@ann:a.example', 'global/override/bad', 5, 1, '[]', '[{]'),
            (902, '@ann:a.example', 'global/content/odd', 4, 3, '[]', '[]');
        INSERT INTO user_filters VALUES ('ann', 900, x'7b');
        INSERT INTO device_inbox VALUES
            ('@ann:a.example', 'DEVICE1', 900, '{"sender": "@ann:a.example"}');
        UPDATE event_json SET json = '{"type":' WHERE event_id = 'EVENT'"#,
    );
    let expected = [
        "account_data @ann:a.example / m.half",
        "account_data @ann:a.example / m.list",
        "device_inbox 900 / @ann:a.example / DEVICE1",
        "e2e_device_keys_json @bob:a.example / *",
        "events *",
        "push_rules @ann:a.example / global/content/odd",
        "push_rules @ann:a.example / global/override/bad",
        "room_tags @ann:a.example / *",
        "user_filters ann / 900",
    ];
    assert_reported(&reported, &expected);
}

#[test]
fn events_over_limits() {
    let reported = reported_after(
        "UPDATE event_json SET json = json_set(json, '$.content.body', hex(zeroblob(40000)))
         WHERE event_id = 'EVENT'",
    );
    assert_reported(&reported, &["events *"]);
}

#[test]
fn missing_tables() {
    let tables = [
        "rejections",
        "event_txn_id_device_id",
        "ex_outlier_stream",
        "current_state_delta_stream",
        "room_tags",
        "push_rules_enable",
        "destination_rooms",
        "stream_positions",
        "user_ips",
    ];
    let drop: String = tables.iter().map(|table| format!("DROP TABLE {table};")).collect();
    let reported = reported_after(&drop);
    for table in tables {
        assert!(reported.contains(&format!("{table} -")), "{table}: {reported:#?}");
    }
    assert_eq!(reported.len(), tables.len(), "{reported:#?}");
}

#[test]
fn wrong_encoding() {
    let reported = reported_after(
        "INSERT INTO account_data VALUES ('@ann:a.example', CAST(x'6dff' AS TEXT), 1, '{}'),
            ('@ann:a.example', 'm.x', 2, CAST(x'7b22ff227d' AS TEXT));
         UPDATE devices SET display_name = CAST(x'ff' AS TEXT) WHERE user_id = '@bob:a.example';
         UPDATE event_json SET json = CAST(x'ff' AS TEXT) WHERE event_id = 'EVENT'",
    );
    // What belongs to a device that cannot be read does not come along either.
    let begin = |table: &str| reported.iter().filter(|row| row.starts_with(table)).count();
    assert_eq!((begin("account_data "), begin("devices "), begin("events ")), (2, 1, 1));
    assert!(begin("access_tokens ") == 1 && begin("e2e_device_keys_json ") == 1, "{reported:#?}");
}

#[test]
fn users_whose_names_no_user_may_have() {
    let reported = reported_after(
        "INSERT INTO users (name) VALUES ('nobody'), ('@other:b.example');
         INSERT INTO devices (user_id, device_id) VALUES ('nobody', 'D');
         INSERT INTO access_tokens (id, user_id, device_id, token) VALUES (900, 'nobody', 'D', 't');
         INSERT INTO account_data VALUES ('nobody', 'm.x', 1, '{}');
         INSERT INTO push_rules VALUES (900, 'nobody', 'global/override/x', 5, 1, '[]', '[]');
         INSERT INTO presence_stream (stream_id, user_id, state) VALUES (1, '@gone:a.example', 'x')",
    );
    let expected = [
        "access_tokens 900",
        "account_data nobody / m.x",
        "devices nobody / D",
        "presence_stream @gone:a.example / 1",
        "push_rules nobody / global/override/x",
        "users @other:b.example",
        "users nobody",
    ];
    assert_reported(&reported, &expected);
}

#[test]
fn rooms_that_no_server_may_have() {
    let reported = reported_after(
        "INSERT INTO rooms VALUES ('!odd:a.example', 0, NULL, 'odd'), ('odd', 0, NULL, '10');
         UPDATE events SET room_id = '!odd:a.example' WHERE event_id = 'EVENT'",
    );
    assert_reported(&reported, &["events *", "rooms !odd:a.example", "rooms odd"]);
}

#[test]
fn foreign_keys_that_lead_nowhere() {
    let reported = reported_after(
        r#"INSERT INTO devices (user_id, device_id) VALUES ('@gone:a.example', 'D');
        INSERT INTO access_tokens (id, user_id, device_id, token) VALUES
            (900, '@ann:a.example', 'gone', 't'), (901, '@ann:a.example', NULL, 'u');
        INSERT INTO e2e_one_time_keys_json VALUES ('@ann:a.example', 'gone', 'a', 'k', 1, '{}');
        INSERT INTO e2e_room_keys_versions VALUES ('@gone:a.example', 1, 'a', '{}', 0, 1);
        INSERT INTO profiles (user_id, displayname) VALUES ('gone', 'Gone');
        INSERT INTO user_threepids VALUES ('@gone:a.example', 'email', 'gone@a.example', 1, 1);
        INSERT INTO room_aliases VALUES ('#gone:b.example', 'ROOM', NULL), ('gone', 'ROOM', NULL);
        INSERT INTO local_media_repository (media_id, media_length, created_ts) VALUES
            ('abcdefgh', 5, 1);
        INSERT INTO server_signature_keys VALUES
            ('c.example', 'ed25519:k', 'c.example', 1, NULL, 1);
        INSERT INTO dehydrated_devices VALUES ('@cid:a.example', 'gone', '{}');
        DELETE FROM event_json WHERE event_id = 'EVENT'"#,
    );
    let expected = [
        "access_tokens 900",
        "access_tokens 901",
        "dehydrated_devices @cid:a.example",
        "devices @gone:a.example / D",
        "e2e_one_time_keys_json @ann:a.example / gone / a / k",
        "e2e_room_keys_versions @gone:a.example / 1",
        "events *",
        "local_media_repository abcdefgh",
        "profiles gone",
        "room_aliases #gone:b.example",
        "room_aliases gone",
        "server_signature_keys c.example / ed25519:k",
        "user_threepids email / gone@a.example",
    ];
    assert_reported(&reported, &expected);
}

#[test]
fn entries_of_192_kib_and_more() {
    let large = format!(r#"{{"x":"{}"}}"#, "x".repeat(192 << 10));
    let reported = reported_after(&format!(
        "INSERT INTO account_data VALUES ('@ann:a.example', 'm.large', 1, '{large}');
         INSERT INTO room_tags VALUES ('@ann:a.example', 'ROOM', 'u.large', '{large}')"
    ));
    let expected = ["account_data @ann:a.example / m.large", "room_tags @ann:a.example / *"];
    assert_reported(&reported, &expected);
}

#[test]
fn nul_bytes() {
    let reported = reported_after(
        "INSERT INTO users (name) VALUES ('@nul' || char(0) || ':a.example');
         INSERT INTO devices (user_id, device_id) VALUES
            ('@nul' || char(0) || ':a.example', 'D'), ('@ann:a.example', 'a' || char(0));
         INSERT INTO account_data VALUES ('@ann:a.example', 'm.' || char(0), 1, '{\"a\":\"\\u0000\"}'),
            ('@ann:a.example', 'm.raw', 2, '{\"a\":\"' || char(0) || '\"}');
         INSERT INTO room_aliases VALUES ('#nul' || char(0) || ':a.example', 'ROOM', NULL)",
    );
    // A device and data of such a name are as good as others. In JSON, the byte must be escaped.
    let expected = [
        "account_data @ann:a.example / m.raw",
        r"devices @nul\0:a.example / D",
        r"room_aliases #nul\0:a.example",
        r"users @nul\0:a.example",
    ];
    assert_reported(&reported, &expected);
}

#[test]
fn duplicate_device_ids() {
    let reported = reported_after(
        "INSERT INTO devices (user_id, device_id, display_name) VALUES
            ('@ann:a.example', 'DEVICE1', 'Another')",
    );
    assert_eq!(reported, ["devices @ann:a.example / DEVICE1"]);
}
