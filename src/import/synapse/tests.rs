//! Small databases as Synapse has them, with what real ones have gone through.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use rusqlite::{Connection, params};
use tempfile::TempDir;

use super::{Settings, Source};
use crate::{
    ImportError,
    check::check,
    facts::{
        Bad, Cursor, Event, Fact, Judged, Section, Slice, Source as _, SourceError, StateGroup,
    },
};
use logcabin_base::{clock::Clock, limits};

mod others;
const TABLES: &str = include_str!("tests/tables.sql");

/// A Synapse of one user, in a directory of its own.
pub(super) struct Synapse {
    directory: TempDir,
    database: Connection,
}

impl Synapse {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            fs::write(directory.path().join(name), text).expect("a file");
        };
        write(
            "homeserver.yaml",
            "server_name: a.example\nsigning_key_path: signing.key\nmedia_store_path: media\n\
             database: {name: sqlite3, args: {database: homeserver.db}}\n",
        );
        write("signing.key", "ed25519 a_1 YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE\n");
        let database =
            Connection::open(directory.path().join("homeserver.db")).expect("a database");
        database.execute_batch(TABLES).expect("tables");
        let synapse = Self { directory, database };
        synapse.run("INSERT INTO users (name, creation_ts) VALUES ('@u:a.example', 12)");
        synapse
    }

    pub(super) fn run(&self, sql: &str) {
        self.database.execute_batch(sql).expect("SQL");
    }

    /// A message, or a state event of a key.
    pub(super) fn event(&self, at: i64, id: &str, key: Option<&str>, marks: &str, outlier: bool) {
        let state = key.map(|key| format!(r#","state_key":"{key}""#)).unwrap_or_default();
        let json = format!(
            r#"{{"type":"m.x","room_id":"!r:a.example","sender":"@u:a.example","content":{{}}{state}}}"#
        );
        let sql =
            "INSERT INTO events (stream_ordering, topological_ordering, event_id, type, room_id,
            outlier, depth, origin_server_ts, received_ts, sender, state_key)
            VALUES (?, 1, ?, 'm.x', '!r:a.example', ?, 1, 5, 6, '@u:a.example', ?)";
        self.database.execute(sql, params![at, id, outlier, key]).expect("a row");
        let sql = "INSERT INTO event_json VALUES (?, '!r:a.example', ?, ?, 3)";
        self.database.execute(sql, params![id, marks, json]).expect("a row");
    }

    fn settings(&self) -> Settings {
        Settings::read(&self.directory.path().join("homeserver.yaml")).expect("settings")
    }

    fn open(&self) -> Result<Source, ImportError> {
        Source::open(&self.settings())
    }

    pub(super) fn source(&self) -> Source {
        self.open().unwrap_or_else(|error| panic!("it opens: {error}"))
    }
}

/// All of a section, and how many slices it took.
pub(super) fn all(source: &mut Source, section: Section) -> (Vec<Fact>, Vec<Bad>, usize) {
    let (mut facts, mut bad, mut slices) = (Vec::new(), Vec::new(), 0);
    let mut cursor = Cursor::START;
    loop {
        let slice = source.read(section, &cursor).expect("a slice");
        facts.extend(slice.facts.into_iter().map(|told| told.fact));
        bad.extend(slice.bad);
        slices += 1;
        match slice.next {
            Some(next) => cursor = next,
            None => return (facts, bad, slices),
        }
    }
}

pub(super) fn event(fact: &Fact) -> &Event {
    match fact {
        Fact::Event(event) => event,
        other => panic!("an event, not {other:?}"),
    }
}

fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(directory).expect("a directory").map(|entry| {
        let path = entry.expect("an entry").path();
        (path.display().to_string(), fs::read(path).expect("a file"))
    });
    files.collect()
}

#[test]
fn every_section_of_an_empty_synapse_can_be_read() {
    let synapse = Synapse::new();
    let mut source = synapse.source();
    for section in Section::ALL {
        let (facts, bad, _) = all(&mut source, section);
        let expected = usize::from(matches!(section, Section::Server | Section::Accounts));
        assert_eq!((facts.len(), bad), (expected, Vec::new()), "{section:?}");
        assert_eq!(source.count(section).expect("a count"), expected as u64, "{section:?}");
    }
}

#[test]
fn rows_of_some_rooms_are_read_without_the_others() {
    let synapse = Synapse::new();
    for room in ["!a:a.example", "!b:a.example", "!c:a.example"] {
        synapse.run(&format!("INSERT INTO rooms (room_id, room_version) VALUES ('{room}', '10')"));
    }
    let mut source = synapse.source();
    let mut of = |owners: &[&str], after: &Cursor| {
        let owners: Vec<String> = owners.iter().map(|owner| (*owner).to_owned()).collect();
        let slice = source.read_of(Section::Rooms, &owners, after).expect("a slice");
        let rooms = slice.facts.into_iter().map(|told| match told.fact {
            Fact::Room(room) => room.room_id,
            other => panic!("a room, not {other:?}"),
        });
        (rooms.collect::<Vec<_>>(), slice.next)
    };
    let some = ["!c:a.example", "!a:a.example", "!none:a.example"];
    assert_eq!(of(&some, &Cursor::START).0, ["!a:a.example", "!c:a.example"]);
    let after = Cursor(r#"[0,[{"text":"!a:a.example"}]]"#.to_owned());
    assert_eq!(of(&some, &after).0, ["!c:a.example"]);
    assert!(of(&[], &Cursor::START).0.is_empty());
}

#[test]
fn nothing_is_written_to_the_source() {
    let Synapse { directory, database } = Synapse::new();
    database.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE x (y)").expect("SQL");
    database.close().expect("closed");
    let before = files(directory.path());
    let settings = Settings::read(&directory.path().join("homeserver.yaml")).expect("settings");
    let mut source = Source::open(&settings).unwrap_or_else(|error| panic!("{error}"));
    for section in Section::ALL {
        all(&mut source, section);
    }
    drop(source);
    assert_eq!(before, files(directory.path()));
}

#[test]
fn what_a_running_synapse_has_just_written_is_read() {
    let synapse = Synapse::new();
    let mut source = synapse.source();
    assert_eq!(all(&mut source, Section::Accounts).0.len(), 1);
    synapse.run("PRAGMA journal_mode = WAL; INSERT INTO users (name) VALUES ('@v:a.example')");
    assert_eq!(all(&mut source, Section::Accounts).0.len(), 2);
}

#[test]
fn other_databases_are_refused_with_a_reason() {
    let refused = |synapse: &Synapse| match synapse.open() {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it opens"),
    };
    let synapse = Synapse::new();
    synapse.run("UPDATE schema_version SET version = 87");
    assert!(refused(&synapse).contains("Synapse 1.120"));
    synapse.run("UPDATE schema_version SET version = 95");
    assert!(refused(&synapse).contains("newer Logcabin"));
    synapse.run("DROP TABLE schema_version");
    assert!(refused(&synapse).contains("no database of Synapse"));
    fs::write(synapse.directory.path().join("homeserver.db"), "text".repeat(1000)).expect("a file");
    assert!(refused(&synapse).contains("not a database"));
    fs::remove_file(synapse.directory.path().join("homeserver.db")).expect("removed");
    assert!(refused(&synapse).contains("homeserver.db"));
}

#[test]
fn old_tables_lack_what_came_later_and_are_read() {
    let synapse = Synapse::new();
    synapse.run(
        "UPDATE schema_version SET version = 88;
         DROP TABLE user_reports; DROP TABLE thread_subscriptions; DROP TABLE delayed_events;
         ALTER TABLE profiles DROP COLUMN fields;
         ALTER TABLE local_media_repository DROP COLUMN sha256;
         INSERT INTO profiles (user_id, displayname) VALUES ('u', 'U');
         INSERT INTO local_media_repository (media_id) VALUES ('abcdef')",
    );
    let mut source = synapse.source();
    for section in Section::ALL {
        let (_, bad, _) = all(&mut source, section);
        assert_eq!(bad, Vec::new(), "{section:?}");
    }
    let (facts, ..) = all(&mut source, Section::Profiles);
    let Fact::Profile(profile) = &facts[0] else { panic!("a profile") };
    assert_eq!((profile.user_id.as_str(), profile.value.as_str()), ("@u:a.example", Some("U")));
    assert_eq!(all(&mut source, Section::Media).0.len(), 1);
    // The same in a database of today is damage, and the rest comes along.
    synapse.run(
        "UPDATE schema_version SET version = 94;
         DROP TABLE room_tags; DROP TABLE push_rules_enable",
    );
    let mut source = synapse.source();
    for (section, table) in [
        (Section::Profiles, "profiles"),
        (Section::Tags, "room_tags"),
        (Section::PushRules, "push_rules_enable"),
        (Section::DelayedEvents, "delayed_events"),
    ] {
        let (facts, bad, _) = all(&mut source, section);
        assert!(facts.is_empty(), "{section:?}");
        assert_eq!((bad.len(), bad[0].origin.table), (1, table), "{bad:?}");
    }
    assert_eq!(all(&mut source, Section::Accounts).0.len(), 1);
}

#[test]
fn bad_rows_are_told_with_table_and_key_and_the_rest_comes_along() {
    let synapse = Synapse::new();
    synapse.run(
        "INSERT INTO account_data VALUES ('@u:a.example', 'm.good', 1, '{\"a\": 1}'),
            ('@u:a.example', 'm.half', 2, '{\"a\": '), ('@u:a.example', 'm.list', 3, '[]'),
            ('@u:a.example', CAST(x'6dff' AS TEXT), 4, '{}');
         INSERT INTO room_account_data VALUES ('@u:a.example', '!r:a.example', 'm.tag', 5, '{}');
         INSERT INTO users (name) VALUES (NULL);
         INSERT INTO user_filters VALUES ('u', 0, x'7b7d'), ('u', 1, x'ff'), ('u', 'two', '{}')",
    );
    let mut source = synapse.source();
    let (facts, bad, _) = all(&mut source, Section::AccountData);
    let types = facts.iter().map(|fact| match fact {
        Fact::AccountData(data) => data.event_type.as_str(),
        other => panic!("{other:?}"),
    });
    assert_eq!(types.collect::<Vec<_>>(), ["m.good", "m.tag"]);
    let shown = bad.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(shown.len(), 3, "{shown:?}");
    assert!(shown[0].starts_with("account_data @u:a.example / m.half: the column `content`"));
    assert!(shown[1].contains("m.list") && shown[1].contains("no JSON object"), "{}", shown[1]);
    assert!(shown[2].contains("`account_data_type` is not UTF-8"), "{}", shown[2]);
    let (facts, bad, _) = all(&mut source, Section::Accounts);
    assert_eq!((facts.len(), bad.len()), (1, 1), "a user without a name");
    let (facts, bad, _) = all(&mut source, Section::Filters);
    assert_eq!((facts.len(), bad.len()), (1, 2), "{bad:?}");
}

#[test]
fn secrets_are_in_no_report() {
    let synapse = Synapse::new();
    synapse.run(
        "INSERT INTO registration_tokens VALUES ('secret', 'many', 0, 0, NULL);
         INSERT INTO delayed_events VALUES
            ('secret', 'u', NULL, 1, 2, '!r:a.example', 'm.x', NULL, NULL, '{', 0);
         INSERT INTO access_tokens (id, user_id, token) VALUES (7, '@u:a.example', 'secret')",
    );
    let mut source = synapse.source();
    for section in [Section::RegistrationTokens, Section::DelayedEvents] {
        let (_, bad, _) = all(&mut source, section);
        assert_eq!(bad.len(), 1);
        assert!(!bad[0].to_string().contains("secret"), "{}", bad[0]);
    }
    let slice = source.read(Section::AccessTokens, &Cursor::START).expect("a slice");
    assert_eq!(slice.facts[0].origin.to_string(), "access_tokens 7");
    assert!(!format!("{slice:?}").contains("secret"));
    // Nor in a cursor, which is stored.
    let rows = limits::SOURCE_SLICE_ROWS + 1;
    synapse.run(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
         INSERT INTO registration_tokens SELECT 'secret' || i, NULL, 0, 0, NULL FROM n"
    ));
    let slice = source.read(Section::RegistrationTokens, &Cursor::START).expect("a slice");
    assert!(slice.next.is_some_and(|next| !next.0.contains("secret")));
    let (facts, bad, slices) = all(&mut source, Section::RegistrationTokens);
    assert_eq!((facts.len(), bad.len(), slices), (rows, 1, 2));
}

#[test]
fn a_large_table_comes_in_slices_and_each_row_once() {
    let synapse = Synapse::new();
    let rows = limits::SOURCE_SLICE_ROWS * 2 + 1;
    synapse.run(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
         INSERT INTO device_inbox SELECT '@u:a.example', 'D' || (i % 7), i / 7, '{{}}' FROM n"
    ));
    let mut source = synapse.source();
    let (facts, bad, slices) = all(&mut source, Section::ToDevice);
    assert_eq!((facts.len(), bad.len(), slices), (rows, 0, 3));
    let places = facts.iter().map(|fact| match fact {
        Fact::ToDevice(message) => (message.stream, message.device_id.clone()),
        other => panic!("{other:?}"),
    });
    let places = places.collect::<Vec<_>>();
    assert!(places.is_sorted_by(|one, next| one < next), "in order, and none twice");
    // The same place gives the same rows again, whoever asks.
    let first = source.read(Section::ToDevice, &Cursor::START).expect("a slice");
    let next = first.next.expect("more");
    let count = |slice: Slice| slice.facts.len();
    let again = synapse.source().read(Section::ToDevice, &next).map(count).expect("a slice");
    assert_eq!(again, limits::SOURCE_SLICE_ROWS);
    let wrong = source.read(Section::ToDevice, &Cursor("x".to_owned()));
    assert!(matches!(wrong, Err(SourceError::Cursor { .. })));
}

#[test]
fn large_rows_make_short_slices() {
    let synapse = Synapse::new();
    for stream in 0..5 {
        let half = "x".repeat(limits::SOURCE_SLICE_BYTES / 2);
        let sql = "INSERT INTO account_data VALUES ('@u:a.example', ?, ?, ?)";
        let content = format!(r#"{{"x":"{half}"}}"#);
        synapse
            .database
            .execute(sql, params![format!("t{stream}"), stream, content])
            .expect("a row");
    }
    let (facts, bad, slices) = all(&mut synapse.source(), Section::AccountData);
    assert_eq!((facts.len(), bad.len()), (5, 0));
    assert_eq!(slices, 4, "two rows each, and the table of rooms");
}

#[test]
fn events_come_in_their_order_with_what_became_of_them() {
    let synapse = Synapse::new();
    synapse.event(1, "$one", Some(""), "{}", false);
    synapse.event(2, "$outlier", None, "{\"outlier\": true}", true);
    synapse.event(3, "$soft", None, "{\"soft_failed\": true}", false);
    synapse.event(4, "$rejected", None, "{}", false);
    synapse.event(5, "$invite", None, "{\"out_of_band_membership\": true}", true);
    synapse.event(6, "$marks", None, "{", false);
    synapse.event(-1, "$past", None, "{}", false);
    synapse.event(-2, "$earlier", None, "{}", false);
    synapse.run(
        "INSERT INTO rejections VALUES ('$rejected', 'auth_error', '');
         INSERT INTO rooms VALUES ('!r:a.example', 0, '@u:a.example', '10');
         INSERT INTO event_to_state_groups VALUES ('$one', 11);
         INSERT INTO state_group_edges VALUES (11, 10);
         INSERT INTO current_state_delta_stream VALUES
            (1, '!r:a.example', 'm.x', 'b', NULL, '$x'),
            (1, '!r:a.example', 'm.x', 'a', '$one', NULL),
            (3, '!r:a.example', 'm.y', '', '$soft', NULL)",
    );
    let mut source = synapse.source();
    source.stopped();
    assert_eq!(source.head().expect("a place"), 6);
    let (facts, bad, _) = all(&mut source, Section::Events);
    let shown = facts.iter().map(|fact| match fact {
        Fact::Event(event) => event.event_id.clone(),
        Fact::StateDelta(delta) => format!("{}{}", delta.event_type, delta.state_key),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        shown.collect::<Vec<_>>(),
        ["m.xa", "m.xb", "$one", "$outlier", "m.y", "$soft", "$rejected", "$invite", "$marks"]
    );
    let events = facts.iter().filter(|fact| matches!(fact, Fact::Event(_))).map(event);
    let events = events.collect::<Vec<_>>();
    let judged = events.iter().map(|event| event.judged.clone());
    assert_eq!(
        judged.collect::<Vec<_>>(),
        [
            Judged::Timeline,
            Judged::Outlier { out_of_band: false },
            Judged::SoftFailed,
            Judged::Rejected { reason: "auth_error".to_owned(), outlier: false },
            Judged::Outlier { out_of_band: true },
            Judged::Timeline,
        ]
    );
    let first = events[0];
    assert_eq!((first.group, first.group_from), (Some(StateGroup(11)), Some(StateGroup(10))));
    assert_eq!(first.room_version.as_deref(), Some("10"));
    assert!(first.parts().is_ok());
    assert_eq!(bad.len(), 1, "marks that cannot be read");
    assert_eq!(bad[0].origin.to_string(), "event_json 6");
    let (facts, bad, _) = all(&mut source, Section::Backfilled);
    let past = facts.iter().map(|fact| event(fact).event_id.as_str()).collect::<Vec<_>>();
    assert_eq!((past, bad.len()), (vec!["$past", "$earlier"], 0));
}

#[test]
fn what_is_written_late_comes_when_synapse_has_stopped() {
    let synapse = Synapse::new();
    let now_ms = Clock::system().now_ms();
    let recent = || synapse.run(&format!("UPDATE events SET received_ts = {now_ms}"));
    for (place, id) in [(1, "$one"), (4, "$four"), (-1, "$past"), (-5, "$before")] {
        synapse.event(place, id, None, "{}", false);
    }
    recent();
    let mut source = synapse.source();
    let long = limits::SOURCE_HOLE_PATIENCE + Duration::from_secs(1);
    let met = Instant::now().checked_sub(long).expect("the machine has been up for a minute");
    let sections = [Section::Events, Section::Outliers, Section::Backfilled];
    let passed = sections.map(|section| {
        // The reader has waited for what is missing.
        source.places.holes.insert(1, met);
        source.places.holes_below.insert(1, met);
        let slice = source.read(section, &Cursor::START).expect("a slice");
        (slice.facts.len(), slice.end)
    });
    assert_eq!(passed.each_ref().map(|(facts, _)| *facts), [2, 0, 2]);
    synapse.event(3, "$late", None, "{}", false);
    synapse.event(-2, "$late past", None, "{}", false);
    synapse.event(-4, "$late outlier", None, "{}", true);
    synapse.run(
        "INSERT INTO current_state_delta_stream
            VALUES (2, '!r:a.example', 'm.x', '', '$late', NULL)",
    );
    recent();
    synapse.event(5, "$five", None, "{}", false);
    let tail = |source: &mut Source| {
        let read = sections.iter().zip(&passed).flat_map(|(section, (_, end))| {
            let slice = source.read(*section, end).expect("a slice");
            slice.facts.into_iter().map(|told| match told.fact {
                Fact::Event(event) => event.event_id,
                Fact::StateDelta(delta) => format!("state {}", delta.stream),
                other => panic!("{other:?}"),
            })
        });
        read.collect::<Vec<_>>()
    };
    assert_eq!(tail(&mut source), ["$five"]);
    source.stopped();
    let late = ["state 2", "$late", "$five", "$late outlier", "$late past"];
    assert_eq!(tail(&mut source), late);
}

#[test]
fn the_newest_events_of_a_room_are_told_newest_first() {
    let synapse = Synapse::new();
    for place in 1..10 {
        let marks = if place % 4 == 0 { r#"{"soft_failed": true}"# } else { "{}" };
        synapse.event(place, &format!("${place}"), None, marks, place == 6);
    }
    synapse.event(-1, "$past", None, "{}", false);
    synapse.run(
        "UPDATE events SET room_id = '!other:a.example' WHERE stream_ordering = 9;
         INSERT INTO rejections VALUES ('$3', 'auth_error', '');
         INSERT INTO ex_outlier_stream VALUES (20, '$1', 5), (-2, '$2', 5)",
    );
    let mut source = synapse.source();
    let all = ["$1", "$7", "$5"];
    for most in 1..5 {
        let newest = source.newest("!r:a.example", most).expect("events");
        assert_eq!(newest, all[..most.min(all.len())]);
    }
}

#[test]
fn an_outlier_that_found_its_place_comes_twice() {
    let synapse = Synapse::new();
    synapse.event(1, "$late", None, "{\"outlier\": true}", false);
    synapse.event(2, "$between", None, "{}", false);
    synapse.run(
        "INSERT INTO ex_outlier_stream VALUES (3, '$late', 5);
         INSERT INTO event_to_state_groups VALUES ('$late', 5)",
    );
    synapse.event(4, "$after", None, "{}", false);
    let mut source = synapse.source();
    source.stopped();
    let (facts, ..) = all(&mut source, Section::Events);
    let events = facts.iter().map(event).map(|event| {
        (event.event_id.as_str(), event.stream, event.first_stream, event.group, &event.judged)
    });
    let outlier = Judged::Outlier { out_of_band: false };
    assert_eq!(
        events.collect::<Vec<_>>(),
        [
            ("$late", 1, None, None, &outlier),
            ("$between", 2, None, None, &Judged::Timeline),
            ("$late", 3, Some(1), Some(StateGroup(5)), &Judged::Timeline),
            ("$after", 4, None, None, &Judged::Timeline),
        ]
    );
    // Whoever read before it found its place goes on, and gets it.
    let tail = source.read(Section::Events, &Cursor("2".to_owned())).expect("a slice");
    assert_eq!(event(&tail.facts[0].fact).event_id, "$late");
    assert_eq!(tail.end, Cursor("4".to_owned()));
}

#[test]
fn an_old_event_that_just_found_its_place_hides_no_event_that_is_being_written() {
    let synapse = Synapse::new();
    synapse.event(1, "$old", None, "{\"outlier\": true}", false);
    synapse.event(2, "$before", None, "{}", false);
    synapse.run(&format!(
        "UPDATE events SET received_ts = {} WHERE stream_ordering = 2;
         INSERT INTO ex_outlier_stream VALUES (4, '$old', 5)",
        Clock::system().now_ms()
    ));
    let mut source = synapse.source();
    let read = |source: &mut Source, after: &Cursor| {
        let slice = source.read(Section::Events, after).expect("a slice");
        let ids = slice.facts.iter().map(|told| event(&told.fact).event_id.clone());
        (ids.collect::<Vec<_>>(), slice.end)
    };
    let (ids, end) = read(&mut source, &Cursor::START);
    assert_eq!((ids, &*end.0), (vec!["$old".to_owned(), "$before".to_owned()], "2"));
    // Another process is not asked.
    synapse.run(
        "INSERT INTO stream_positions VALUES ('events', 'former', 4), ('events', 'master', 2),
            ('backfill', 'master', -9)",
    );
    assert!(read(&mut source, &end).0.is_empty());
    // It took longer.
    synapse.event(3, "$slow", None, "{}", false);
    assert_eq!(read(&mut source, &end).0, ["$slow", "$old"]);
}

#[test]
fn a_place_at_which_writing_failed_holds_nobody_up() {
    let synapse = Synapse::new();
    for (place, id) in [(1, "$one"), (3, "$three")] {
        synapse.event(place, id, None, "{}", false);
    }
    let now_ms = Clock::system().now_ms();
    synapse.run(&format!("UPDATE events SET received_ts = {now_ms}"));
    let mut source = synapse.source();
    let mut count = || source.read(Section::Events, &Cursor::START).expect("a slice").facts.len();
    assert_eq!(count(), 1, "what is at 2 may come yet");
    synapse.run("INSERT INTO stream_positions VALUES ('events', 'master', 3)");
    assert_eq!(count(), 2);
}

#[test]
fn what_came_from_the_past_is_told_room_by_room_and_its_outliers_first() {
    let synapse = Synapse::new();
    // A room that was entered from outside: its state first, then its history in two batches.
    synapse.event(-1, "$create", Some(""), "{}", false);
    synapse.event(-2, "$other", None, "{}", true);
    for (place, id, depth) in [(-4, "$old", 5), (-5, "$new", 6), (-6, "$first", 2)] {
        synapse.event(place, id, None, "{}", false);
        let sql = "UPDATE events SET topological_ordering = ? WHERE event_id = ?";
        synapse.database.execute(sql, params![depth, id]).expect("a row");
    }
    synapse.run("INSERT INTO ex_outlier_stream VALUES (-3, '$create', 5)");
    let mut source = synapse.source();
    source.stopped();
    let told = |facts: &[Fact]| {
        let events = facts.iter().map(event);
        events.map(|event| (event.event_id.clone(), event.stream)).collect::<Vec<_>>()
    };
    let named = |events: &[(&str, i64)]| {
        events.iter().map(|(id, place)| ((*id).to_owned(), *place)).collect::<Vec<_>>()
    };
    let (facts, ..) = all(&mut source, Section::Outliers);
    assert_eq!(told(&facts), named(&[("$create", -1), ("$other", -2)]));
    let outlier = Judged::Outlier { out_of_band: false };
    assert!(facts.iter().all(|fact| event(fact).judged == outlier));
    let slice = source.read(Section::Backfilled, &Cursor::START).expect("a slice");
    let facts = slice.facts.into_iter().map(|told| told.fact).collect::<Vec<_>>();
    let history = [("$new", -5), ("$old", -4), ("$first", -6), ("$create", -3)];
    assert_eq!(told(&facts), named(&history));
    assert_eq!(event(&facts[3]).first_stream, Some(-1));
    assert_eq!(slice.next, None);
    // What is fetched after that is all that the next reading gives.
    synapse.event(-7, "$more", None, "{}", false);
    let mut source = synapse.source();
    source.stopped();
    let tail = source.read(Section::Backfilled, &slice.end).expect("a slice");
    assert_eq!(tail.facts.len(), 1);
    assert_eq!(event(&tail.facts[0].fact).event_id, "$more");
}

#[test]
fn a_long_past_comes_in_slices_and_goes_on_after_any_of_them() {
    let synapse = Synapse::new();
    let rows = limits::SOURCE_SLICE_ROWS + 10;
    let text = r#"{"type":"m.x","room_id":"!r:a.example","sender":"@u:a.example","content":{}}"#;
    synapse.run(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
         INSERT INTO events (stream_ordering, topological_ordering, event_id, type, room_id,
            outlier, sender)
            SELECT -i, i, '$' || i, 'm.x', '!r:a.example', 0, '@u:a.example' FROM n;
         INSERT INTO event_json SELECT event_id, room_id, '{{}}', '{text}', 3 FROM events"
    ));
    let mut source = synapse.source();
    source.stopped();
    let (facts, bad, slices) = all(&mut source, Section::Backfilled);
    assert_eq!((facts.len(), bad.len(), slices), (rows, 0, 2));
    let places = facts.iter().map(|fact| event(fact).stream).collect::<Vec<_>>();
    assert!(places.is_sorted(), "the newest has the lowest place here");
    let first = source.read(Section::Backfilled, &Cursor::START).expect("a slice");
    let next = first.next.expect("more");
    let mut other = synapse.source();
    other.stopped();
    let rest = other.read(Section::Backfilled, &next).expect("a slice");
    assert_eq!(rest.facts.len() + first.facts.len(), rows, "by another reader, too");
}

#[test]
fn events_without_text_or_place_in_a_room_are_told_as_bad() {
    let synapse = Synapse::new();
    synapse.event(1, "$one", None, "{}", false);
    synapse.event(2, "$bare", None, "{}", false);
    synapse.event(3, "$three", None, "{}", false);
    synapse.run("DELETE FROM event_json WHERE event_id = '$bare'");
    let mut source = synapse.source();
    source.stopped();
    let (facts, bad, _) = all(&mut source, Section::Events);
    assert_eq!(facts.len(), 2);
    assert_eq!(bad[0].to_string(), "events 2: it has no row in `event_json`");
    let asked = source.events(&["$three".to_owned(), "$none".to_owned()]).expect("events");
    assert_eq!(asked.facts.len(), 1);
}

#[test]
fn keys_of_a_server_that_a_notary_told_of_come_with_the_newest_document() {
    let synapse = Synapse::new();
    synapse.run(
        r#"INSERT INTO server_signature_keys
            VALUES ('b.example', 'ed25519:1', 'notary.example', 5, x'00', 9);
         INSERT INTO server_keys_json VALUES
            ('b.example', 'ed25519:1', 'b.example', 3, 8, '{"from": "b.example"}'),
            ('b.example', 'ed25519:1', 'notary.example', 5, 9, '{"from": "notary"}')"#,
    );
    synapse.run("UPDATE server_signature_keys SET verify_key = zeroblob(32)");
    let (facts, bad, _) = all(&mut synapse.source(), Section::PeerKeys);
    assert_eq!((facts.len(), bad), (1, Vec::new()));
    let Fact::PeerKey(key) = &facts[0] else { panic!("a key") };
    let document = key.document.as_ref().map(|document| document.get());
    assert_eq!(document, Some(r#"{"from": "notary"}"#));
}

#[test]
fn a_state_is_put_together_from_its_steps() {
    let synapse = Synapse::new();
    synapse.run(
        "INSERT INTO state_groups VALUES (1, '!r', '$a'), (2, '!r', '$b'), (3, '!r', '$c');
         INSERT INTO state_group_edges VALUES (2, 1), (3, 9), (4, 5), (5, 4);
         INSERT INTO state_groups_state VALUES (1, '!r', 't', 'x', '$old'),
            (1, '!r', 't', 'y', '$y'),
            (2, '!r', 't', 'x', '$new')",
    );
    let mut source = synapse.source();
    let state = source.state(StateGroup(2)).expect("a state");
    let state = state.iter().map(|entry| (entry.state_key.as_str(), entry.event_id.as_str()));
    assert_eq!(state.collect::<Vec<_>>(), [("x", "$new"), ("y", "$y")]);
    let step = source.state_step(StateGroup(2)).expect("a step");
    assert_eq!((step.from, step.entries.len()), (Some(StateGroup(1)), 1));
    for lost in [3, 4, 7] {
        let absent = source.state(StateGroup(lost));
        assert!(matches!(absent, Err(SourceError::Absent { .. })), "{lost}");
    }
}

#[test]
fn only_updates_that_change_what_is_read_are_waited_for() {
    let synapse = Synapse::new();
    let mut source = synapse.source();
    let update = |name: &str| {
        synapse.run(&format!(
            "INSERT INTO background_updates (update_name, progress_json) VALUES ('{name}', '{{}}')"
        ));
    };
    update("receipts_graph_unique_index");
    assert_eq!(source.unready().expect("names"), Vec::<String>::new());
    update("events_populate_state_key_rejections");
    assert_eq!(source.unready().expect("names"), ["events_populate_state_key_rejections"]);
    assert_eq!(source.unfinished().expect("names").len(), 2);
}

#[test]
fn application_services_that_never_failed_have_a_position_too() {
    let synapse = Synapse::new();
    let directory = synapse.directory.path();
    let settings = "server_name: a.example\nsigning_key_path: signing.key\n\
                    database: {name: sqlite3, args: {database: homeserver.db}}\n\
                    app_service_config_files: [irc.yaml, mail.yaml, gone.yaml]\n";
    for (name, text) in
        [("homeserver.yaml", settings), ("irc.yaml", "id: irc\n"), ("mail.yaml", "id: mail\n")]
    {
        fs::write(directory.join(name), text).expect("a file");
    }
    synapse.run(
        "INSERT INTO application_services_state VALUES ('mail', 'down');
         INSERT INTO appservice_stream_position VALUES (7)",
    );
    let (facts, bad, _) = all(&mut synapse.source(), Section::AppServices);
    let services = facts.iter().map(|fact| match fact {
        Fact::AppService(service) => (service.id.as_str(), service.told_up_to),
        other => panic!("{other:?}"),
    });
    assert_eq!(services.collect::<Vec<_>>(), [("mail", Some(7)), ("irc", Some(7))]);
    assert_eq!(bad.len(), 1, "{bad:?}");
}

#[test]
fn which_rooms_are_partial_is_told_with_the_events() {
    let synapse = Synapse::new();
    let mut source = synapse.source();
    let mut partial =
        || source.read(Section::Events, &Cursor::START).expect("a slice").partial.expect("rooms");
    assert!(partial().is_empty());
    synapse.run("INSERT INTO partial_state_rooms VALUES ('!r:a.example')");
    assert_eq!(partial(), ["!r:a.example"]);
}

#[test]
fn what_is_left_of_a_table_is_counted() {
    let synapse = Synapse::new();
    synapse.run(
        "INSERT INTO users (name, is_guest) VALUES ('@1:a.example', 1), ('@2:a.example', 1);
         INSERT INTO users (name, is_guest, deactivated) VALUES ('@3:a.example', 1, 1);
         INSERT INTO users (name, user_type) VALUES ('@bot:a.example', 'bot');
         INSERT INTO users (name, appservice_id) VALUES ('@irc:a.example', 'irc');
         CREATE TABLE scheduled_tasks (id TEXT, status TEXT);
         INSERT INTO scheduled_tasks VALUES ('a', 'complete'), ('b', 'scheduled'), ('c', 'active')",
    );
    let left = synapse.source().left().expect("what is left");
    let counts = left.iter().map(|left| (left.table, left.rows));
    assert_eq!(
        counts.collect::<Vec<_>>(),
        [("scheduled_tasks", 2), ("users", 2), ("users", 1), ("users", 1)]
    );
    assert!(left[1].why.contains("guests are logged out"), "{left:?}");
}

#[test]
fn a_check_finds_what_cannot_come_along() {
    let synapse = Synapse::new();
    synapse.event(1, "$one", None, "{}", false);
    synapse.run(
        "INSERT INTO users (name) VALUES ('@w:b.example'), ('nobody');
         INSERT INTO devices (user_id, device_id) VALUES
            ('@u:a.example', 'D'), ('@u:a.example', 'D'), ('@lost:a.example', 'E');
         INSERT INTO access_tokens (id, user_id, device_id, token) VALUES
            (1, '@u:a.example', 'D', 's'), (2, '@u:a.example', 'gone', 't');
         INSERT INTO rooms VALUES ('!r:a.example', 0, NULL, '10'),
            ('!odd:a.example', 0, NULL, 'odd'),
            ('!partial:a.example', 0, NULL, '10');
         INSERT INTO partial_state_rooms VALUES ('!partial:a.example');
         INSERT INTO local_current_membership VALUES ('!r:a.example', '@u:a.example', '$m', 'join');
         INSERT INTO local_media_repository (media_id, media_length) VALUES ('abcdefgh', 5);
",
    );
    let report = check(&mut synapse.source(), &synapse.settings().media_store_path)
        .unwrap_or_else(|error| panic!("{error}"));
    let faults = report.faults.iter().map(ToString::to_string).collect::<Vec<_>>();
    for expected in [
        "users @w:b.example: it is about a user of another server",
        "users nobody: it names what cannot be an id",
        "devices @u:a.example / D: the user has another device",
        "devices @lost:a.example / E: its user has no account",
        "access_tokens 2: its device does not exist",
        "rooms !odd:a.example: the room has a version that is unknown here: `odd`",
        "rooms !partial:a.example: its room is only known in part",
        "rooms !r:a.example: the room has no m.room.create event",
        "events 1: it cannot be an event: its id",
        "local_media_repository abcdefgh: the file local_content/ab/cd/efgh is not there",
    ] {
        assert!(faults.iter().any(|fault| fault.starts_with(expected)), "{expected}: {faults:#?}");
    }
    assert_eq!(report.faults_in_all, 10, "{faults:#?}");
    assert_eq!(report.events.get("in the timeline"), Some(&1));
    let text = report.to_string();
    assert!(text.ends_with('\n') && text.contains("tables of version 94"), "{text}");
}

#[test]
fn the_rooms_that_have_changed_since_a_place_are_known() {
    let synapse = Synapse::new();
    synapse.run(
        "INSERT INTO current_state_delta_stream (stream_id, room_id, type, state_key) VALUES
            (5, '!old:a.example', 'm.x', ''), (6, '!new:a.example', 'm.x', ''),
            (7, '!new:a.example', 'm.x', '')",
    );
    let mut source = synapse.source();
    assert_eq!(source.changed_rooms(5).expect("rooms"), ["!new:a.example"]);
}

#[test]
fn a_token_says_when_it_was_used_last() {
    let synapse = Synapse::new();
    synapse.run(
        "INSERT INTO access_tokens (id, user_id, token) VALUES
            (7, '@u:a.example', 'used'), (8, '@u:a.example', 'unused');
         INSERT INTO user_ips (user_id, access_token, ip, user_agent, last_seen) VALUES
            ('@u:a.example', 'used', '::1', 'x', 20), ('@u:a.example', 'used', '::2', 'x', 30)",
    );
    let (facts, ..) = all(&mut synapse.source(), Section::AccessTokens);
    let seen = facts.iter().map(|fact| match fact {
        Fact::AccessToken(token) => token.seen_ms,
        other => panic!("{other:?}"),
    });
    assert_eq!(seen.collect::<Vec<_>>(), [Some(30), None]);
}
