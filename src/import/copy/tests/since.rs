//! What the source did between the copy and the end, and a first pass had taken otherwise.

use super::{
    resume::{OTHER, of_other, room},
    *,
};
use crate::compare::{Extent, Subject, compare};
use logcabin_ops::{
    history::{History, HistoryError, Moment},
    source::Source as LogSource,
};
use logcabin_record::command::TokenHash;

/// The state that a log adds up to, and its events.
fn opened(dir: &Path) -> (State, EventStore) {
    let (log, records) = records(dir);
    let state = State::default();
    for record in &records {
        state.apply(record).unwrap();
    }
    (state, EventStore::new(log as Arc<dyn Log>, 1 << 20))
}

#[test]
fn a_client_that_repeats_what_it_sent_before_the_copy_gets_the_same_event() {
    let dir = tempfile::tempdir().unwrap();
    let mut maker = Maker::new();
    let ann = format!("@ann:{OWN}");
    let (message, body) = ("m.room.message", json!({ "body": "x" }));
    let sent = maker.send(&ann, (message, None), body, &[1], Judged::Timeline);
    let event_id = maker.events[sent].event_id.clone();
    maker.source.tell(Section::Accounts, account(&ann));
    log_in(&mut maker.source, &ann, "D");
    let (mut source, ..) = maker.ended();
    for (device_id, id) in [("D", "one"), ("GONE", "two")] {
        let fact = facts::Transaction {
            event_id: event_id.clone(),
            room_id: ROOM.to_owned(),
            user_id: ann.clone(),
            device_id: device_id.to_owned(),
            transaction_id: id.to_owned(),
            time_ms: 5,
            event_type: Some(message.to_owned()),
            state_key: None,
            redacts: None,
        };
        source.tell(Section::Transactions, Fact::Transaction(fact));
    }
    copy_in(dir.path(), &mut source).unwrap();
    let finished = finish_in(dir.path(), &mut source).unwrap();
    assert_eq!(finished.copied.left, [], "a device that is gone repeats nothing");
    let (state, events) = opened(dir.path());
    let session = state.accounts.access_token(&TokenHash::of("token of D")).unwrap().session;
    let scope = format!("send/{ROOM}/{message}");
    let find = |id: &str| {
        let found = events.find_transaction(&state, session, &scope, id).unwrap();
        found.map(|event| event.event_id.to_string())
    };
    assert_eq!(find("one"), Some(event_id));
    assert_eq!((find("two"), find("other")), (None, None));
}

#[test]
fn what_a_user_agreed_to_since_the_copy_comes_along() {
    for (before, after, expected) in [
        (None, Some("2"), vec!["2"]),
        (Some("1"), Some("2"), vec!["2"]),
        (Some("1"), Some("1"), vec![]),
        (None, None, vec![]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (mut source, ..) = made(&[]);
        let agreed = |version: Option<&str>| {
            let Fact::Account(account) = account(&format!("@ann:{OWN}")) else { panic!() };
            let consent_version = version.map(str::to_owned);
            Fact::Account(facts::Account { consent_version, consent_ms: Some(77), ..account })
        };
        source.tell(Section::Accounts, agreed(before));
        copy_in(dir.path(), &mut source).unwrap();
        source.sections.remove(&Section::Accounts);
        source.tell(Section::Accounts, agreed(after));
        finish_in(dir.path(), &mut source).unwrap();
        let status = payloads(dir.path(), "user.status");
        let terms = status.iter().map(|of| of["terms"]["privacy_policy"].as_str().unwrap());
        assert_eq!(terms.collect::<Vec<_>>(), expected, "{before:?} {after:?}");
        assert!(status.iter().all(|of| of["original_ms"] == 77), "{status:?}");
    }
}

/// The numbers of the sessions in the backups of a user, by version.
fn backed_up(dir: &Path, user_id: &str) -> Vec<(u64, u64)> {
    let (state, _) = opened(dir);
    let user_id = <&ruma::UserId>::try_from(user_id).unwrap();
    let backups = state.key_backups.get(user_id).unwrap();
    let backups = backups.read();
    let of = |version| backups.get(version).map(|backup| (version, backup.count));
    (1..5).filter_map(of).collect()
}

#[test]
fn keys_and_backups_that_were_removed_after_the_copy_are_gone() {
    let ann = format!("@ann:{OWN}");
    let backup = |version, etag, deleted| {
        Fact::KeyBackup(facts::KeyBackup {
            user_id: ann.clone(),
            version,
            algorithm: "m.megolm_backup.v1.curve25519-aes-sha2".to_owned(),
            auth_data: raw(&json!({})),
            deleted,
            etag: Some(etag),
        })
    };
    let key = |version, session_id: &str| {
        Fact::BackedUpKey(facts::BackedUpKey {
            user_id: ann.clone(),
            version,
            room_id: ROOM.to_owned(),
            session_id: session_id.to_owned(),
            first_message_index: None,
            forwarded_count: None,
            is_verified: false,
            session_data: raw(&json!({})),
        })
    };
    for (is_bad, expected) in [(false, [(1, 1), (2, 2)]), (true, [(1, 1), (2, 3)])] {
        let dir = tempfile::tempdir().unwrap();
        let (mut source, ..) = made(&[]);
        source.tell(Section::Accounts, account(&ann));
        for version in 1..4 {
            source.tell(Section::KeyBackups, backup(version, 1, false));
        }
        for of in [key(1, "a"), key(2, "a"), key(2, "b"), key(3, "a")] {
            source.tell(Section::BackedUpKeys, of);
        }
        copy_in(dir.path(), &mut source).unwrap();
        for section in [Section::KeyBackups, Section::BackedUpKeys] {
            source.sections.remove(&section);
        }
        // One is as it was, one lost a key and got another one, and one is gone.
        for of in [backup(1, 1, false), backup(2, 3, false), backup(3, 1, true)] {
            source.tell(Section::KeyBackups, of);
        }
        for of in [key(1, "a"), key(2, "b"), key(2, "c")] {
            source.tell(Section::BackedUpKeys, of);
        }
        if is_bad {
            let key = Key::Text(format!("{ann} / 2 / {ROOM} / a").into());
            let origin = Origin { table: "e2e_room_keys", key };
            let bad = facts::Bad { origin, why: "it is damaged".to_owned() };
            source.bad.push((Section::BackedUpKeys, bad));
        }
        finish_in(dir.path(), &mut source).unwrap();
        assert_eq!(backed_up(dir.path(), &ann), expected);
    }
}

#[test]
fn a_room_that_was_deleted_and_joined_again_after_the_copy_is_as_it_is_now() {
    let dir = tempfile::tempdir().unwrap();
    let ann = format!("@ann:{OWN}");
    let mut maker = Maker::new();
    maker.source.tell(Section::Accounts, account(&ann));
    let data = |room_id: &str| {
        Fact::AccountData(facts::AccountData {
            user_id: format!("@ann:{OWN}"),
            room_id: Some(room_id.to_owned()),
            event_type: "m.x".to_owned(),
            content: raw(&json!({ "is": "kept" })),
        })
    };
    for _ in 0..3 {
        maker.step((8, 0, 1, 1));
    }
    maker.source.tell(Section::AccountData, data(ROOM));
    maker.source.tell(Section::Rooms, room(OTHER));
    let (mut source, before, _) = maker.ended();
    copy_in(dir.path(), &mut source).unwrap();
    // The source has the room's first events once more, at other places, and a later one.
    let mut again = Maker::new();
    again.stream = source.newest;
    let first = again.source.sections.remove(&Section::Events).unwrap();
    for mut told in first {
        match &mut told.fact {
            Fact::Event(event) => event.stream += again.stream,
            Fact::StateDelta(delta) => delta.stream += again.stream,
            _ => {}
        }
        again.source.tell(Section::Events, told.fact);
    }
    again.stream += 2;
    again.groups += 100;
    again.step((8, 0, 1, 1));
    again.source.tell(Section::Accounts, account(&ann));
    again.source.tell(Section::AccountData, data(ROOM));
    again.source.tell(Section::Rooms, room(OTHER));
    for told in again.source.sections.get_mut(&Section::Rooms).unwrap() {
        if let Fact::Room(room) = &mut told.fact
            && room.room_id == ROOM
        {
            room.began = Some(source.newest + 1);
        }
    }
    let (mut source, events, current) = again.ended();
    // Where the copy stopped reading, counted in facts.
    let read = Files::of(dir.path()).read_progress().unwrap().unwrap();
    let mut all = vec![of_other(Judged::Timeline, 1); grown(&read)];
    all.iter_mut().for_each(|event| event.stream = 0);
    let old = all.into_iter().map(|event| Told {
        origin: Origin { table: "rows", key: Key::Number(0) },
        fact: Fact::Event(Box::new(event)),
    });
    source.sections.get_mut(&Section::Events).unwrap().splice(..0, old);
    let finished = finish_in(dir.path(), &mut source).unwrap();
    assert_eq!(finished.differing_rooms, Vec::new());
    assert_states(dir.path(), &events, &current);
    let (state, store) = opened(dir.path());
    let of_before = <&ruma::EventId>::try_from(&*before[4].event_id).unwrap();
    assert!(store.find(&state, of_before).unwrap().is_none(), "it is deleted");
    let user_id = <&ruma::UserId>::try_from(&*ann).unwrap();
    let room_id = <&ruma::RoomId>::try_from(ROOM).unwrap();
    let kept = store.account_data(&state, user_id, Some(room_id), "m.x", Offset::MAX).unwrap();
    assert!(kept.is_some(), "what is told once more is there");
}

/// How many facts of the stream of events a copy has read.
fn grown(progress: &progress::Progress) -> usize {
    progress.grown[&Section::Events].0.parse().unwrap()
}

#[test]
fn the_log_of_a_rehearsal_says_so() {
    for is_rehearsed in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (mut source, ..) = made(&[]);
        let options = Options { rehearsal: is_rehearsed, ..options(dir.path()) };
        finish(&mut source, None, &options, &AtomicBool::new(false), &mut |_| ()).unwrap();
        let end = payloads(dir.path(), "import.end");
        assert_eq!(end[0]["rehearsal"] == true, is_rehearsed, "{end:?}");
    }
}

#[test]
fn history_says_that_what_was_before_an_import_was_imported_later() {
    let dir = tempfile::tempdir().unwrap();
    let (mut source, ..) = made(&[]);
    copy_in(dir.path(), &mut source).unwrap();
    finish_in(dir.path(), &mut source).unwrap();
    let log = LogSource::stopped(dir.path()).unwrap();
    let at = |moment| History::open(&log, Some(moment)).map(|history| history.end());
    let early = at(Moment::Time(1_600_000_000_001)).unwrap_err();
    assert!(matches!(early, HistoryError::Imported(_)), "{early}");
    assert!(early.to_string().contains("imported later, at 20"), "{early}");
    let end = log.end().unwrap();
    assert_eq!(at(Moment::Time(u64::MAX)).unwrap(), end);
    assert_eq!(at(Moment::At(Offset::new(3))).unwrap(), Offset::new(3));
}

#[test]
fn unread_counts_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let mut maker = Maker::new();
    maker.source.tell(Section::Accounts, account(&format!("@ann:{OWN}")));
    let body = json!({ "msgtype": "m.text", "body": "x" });
    let message = ("m.room.message", None);
    maker.send("@bob:b.example", message, body, &[1], Judged::Timeline);
    let (mut source, ..) = maker.ended();
    finish_in(dir.path(), &mut source).unwrap();
    // What is unread there and not here may have been written over. Otherwise it is a fault.
    for (notifications, same, faults) in [(1, 1, 0), (2, 0, 0), (0, 0, 1)] {
        source.unread = Some(facts::UnreadCount { notifications, highlights: 0 });
        let compared = compare(&mut source, None, dir.path(), Extent::default()).unwrap();
        let of_unread = compared.differences.iter().filter(|of| of.subject == Subject::Unread);
        let count = compared.same.get(&Subject::Unread).copied().unwrap_or_default();
        let found = (count, of_unread.filter(|of| of.because.is_none()).count());
        assert_eq!(found, (same, faults), "{compared:?}");
    }
}
