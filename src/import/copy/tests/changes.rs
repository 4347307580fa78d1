//! What the source changed between the copy and the end.

use super::{
    resume::{OTHER, delete_other, of_other, room},
    *,
};
use crate::facts::Bad;

/// The kinds of all records about a room.
fn kinds_of_room(dir: &Path, room_id: &str) -> Vec<String> {
    let (_, records) = records(dir);
    let of_room = records.iter().filter(|record| {
        let payload = record.payload.bytes().and_then(|bytes| serde_json::from_slice(bytes).ok());
        payload.is_some_and(|payload: Value| payload["room_id"] == room_id)
    });
    of_room.map(|record| record.header.kind.to_string()).collect()
}

#[test]
fn a_room_that_was_deleted_after_the_copy_is_purged_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut maker = Maker::new();
    maker.source.tell(Section::Rooms, room(OTHER));
    maker.stream += 1;
    let event = of_other(Judged::Timeline, maker.stream);
    maker.source.tell(Section::Events, Fact::Event(Box::new(event)));
    let (mut source, events, current) = maker.ended();
    copy_in(dir.path(), &mut source).unwrap();
    delete_other(&mut source);
    let finished = finish_in(dir.path(), &mut source).unwrap();
    assert_eq!(kinds_of_room(dir.path(), OTHER), ["room.event", "room.purge"]);
    let left = finished.copied.left;
    assert!(left.iter().any(|left| left.table == "rooms" && left.count == 1), "{left:?}");
    let report = fs::read_to_string(&finished.report).unwrap();
    assert!(report.contains(OTHER), "{report}");
    assert_states(dir.path(), &events, &current);
}

#[test]
fn one_row_that_cannot_be_read_keeps_nothing_else_and_the_last_one_goes_too() {
    for (bad, expected) in [
        (Some("bob"), vec!["@ann:a.example"]),
        (None, vec!["@ann:a.example", "@bob:a.example"]),
        (Some("-"), vec![]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (mut source, ..) = made(&[]);
        for user_id in ["@ann:a.example", "@bob:a.example"] {
            source.tell(Section::Accounts, account(user_id));
            let (user_id, field) = (user_id.to_owned(), "displayname".to_owned());
            let profile = facts::Profile { user_id, field, value: json!("x") };
            source.tell(Section::Profiles, Fact::Profile(profile));
        }
        copy_in(dir.path(), &mut source).unwrap();
        source.sections.remove(&Section::Profiles);
        let bad = bad.map(|key| Bad {
            origin: Origin { table: "profiles", key: Key::Text(key.into()) },
            why: "it is damaged".to_owned(),
        });
        let is_unclear = expected.is_empty();
        source.bad = bad.map(|bad| (Section::Profiles, bad)).into_iter().collect();
        let finished = finish_in(dir.path(), &mut source).unwrap();
        let set = payloads(dir.path(), "profile.set");
        let gone = set.iter().filter(|payload| payload["value"].is_null());
        let gone: Vec<_> = gone.map(|payload| payload["user_id"].as_str().unwrap()).collect();
        assert_eq!(gone, expected);
        let report = fs::read_to_string(&finished.report).unwrap();
        assert_eq!(report.contains("has deleted since the copy"), is_unclear, "{report}");
    }
}

#[test]
fn what_is_gone_after_the_copy_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, ..) = made(&[]);
    let ann = format!("@ann:{OWN}");
    source.tell(Section::Accounts, account(&ann));
    for field in ["displayname", "avatar_url"] {
        let (user_id, field) = (ann.clone(), field.to_owned());
        let value = json!("x");
        source.tell(Section::Profiles, Fact::Profile(facts::Profile { user_id, field, value }));
    }
    copy_in(dir.path(), &mut source).unwrap();
    source.sections.get_mut(&Section::Profiles).unwrap().pop();
    finish_in(dir.path(), &mut source).unwrap();
    let set: Vec<_> = payloads(dir.path(), "profile.set")
        .iter()
        .map(|payload| (payload["field"].clone(), payload["value"].clone()))
        .collect();
    let (name, avatar) = (json!("displayname"), json!("avatar_url"));
    let x = json!("x");
    assert_eq!(set, [(name, x.clone()), (avatar.clone(), x), (avatar, Value::Null)]);
}

#[test]
fn only_backups_that_changed_are_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, ..) = made(&[]);
    let users = [format!("@ann:{OWN}"), format!("@bob:{OWN}")];
    let backup = |user_id: &str, etag| {
        Fact::KeyBackup(facts::KeyBackup {
            user_id: user_id.to_owned(),
            version: 1,
            algorithm: "m.megolm_backup.v1.curve25519-aes-sha2".to_owned(),
            auth_data: raw(&json!({})),
            deleted: false,
            etag: Some(etag),
        })
    };
    let key = |user_id: &str, session_id: &str| {
        Fact::BackedUpKey(facts::BackedUpKey {
            user_id: user_id.to_owned(),
            version: 1,
            room_id: ROOM.to_owned(),
            session_id: session_id.to_owned(),
            first_message_index: None,
            forwarded_count: None,
            is_verified: false,
            session_data: raw(&json!({})),
        })
    };
    for user_id in &users {
        source.tell(Section::Accounts, account(user_id));
        source.tell(Section::KeyBackups, backup(user_id, 1));
        source.tell(Section::BackedUpKeys, key(user_id, "one"));
    }
    copy_in(dir.path(), &mut source).unwrap();
    assert!(source.asked.is_empty(), "{:?}", source.asked);
    source.sections.get_mut(&Section::KeyBackups).unwrap().pop();
    source.tell(Section::KeyBackups, backup(&users[1], 2));
    source.tell(Section::BackedUpKeys, key(&users[1], "two"));
    finish_in(dir.path(), &mut source).unwrap();
    // The room is as the copy found it.
    assert_eq!(source.asked, [(Section::BackedUpKeys, vec![users[1].clone()])]);
    let put = payloads(dir.path(), "key_backup.put");
    let last = &put.last().unwrap()["rooms"][ROOM];
    assert!(last.get("two").is_some(), "{put:?}");
}

#[test]
fn a_room_whose_change_was_passed_by_is_compared_again() {
    let dir = tempfile::tempdir().unwrap();
    let steps: Vec<_> = (0..5).map(|number| (8, 0, number, number)).collect();
    let (mut source, events, _) = made(&steps);
    copy_in(dir.path(), &mut source).unwrap();
    // The copy has read further than where this stands.
    source.newest += 1;
    let holds = events[1].event_id.clone();
    let delta = StateDelta {
        stream: source.newest,
        room_id: ROOM.to_owned(),
        event_type: "m.room.topic".to_owned(),
        state_key: String::new(),
        event_id: Some(holds.clone()),
        previous: None,
    };
    let origin = Origin { table: "rows", key: Key::Number(0) };
    let told = Told { origin, fact: Fact::StateDelta(delta) };
    source.sections.get_mut(&Section::Events).unwrap().insert(0, told);
    let entry = CurrentState {
        room_id: ROOM.to_owned(),
        event_type: "m.room.topic".to_owned(),
        state_key: String::new(),
        event_id: holds,
        membership: None,
    };
    source.tell(Section::CurrentState, Fact::CurrentState(entry));
    let finished = finish_in(dir.path(), &mut source).unwrap();
    assert_eq!((finished.compared, finished.differing), (1, 1));
}
