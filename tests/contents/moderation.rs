//! Records of moderation that no proposal of a golden log makes.

use std::collections::BTreeMap;

use logcabin::record::{
    Command, NewRecord, Offset, Origin, Stream,
    command::{
        AdminUndo, EventsEnd, JudgedRule, PolicyApprove, PolicyArea, PolicyJudge, PolicySubscribe,
        PolicyUnsubscribe, ReportReopen, RoomErase, RoomPurgeHistory, RoomPurgeHistoryFinish,
        RoomRedactSender, UserRedact, UserRedactFinish, UserStatus, UserWait,
    },
};
use ruma::{OwnedRoomId, OwnedUserId};

/// What a user sent is redacted, once to the end, and once not; a closed report is opened again;
/// policy lists are applied; an account waits and is approved.
pub(super) fn records() -> Vec<NewRecord> {
    let eve: OwnedUserId = "@eve:elsewhere.example".try_into().unwrap();
    let order = |id: &str| UserRedact {
        id: id.to_owned(),
        user_id: eve.clone(),
        rooms: vec!["!room:golden.example".try_into().unwrap()],
        limit: Some(10),
        after_ms: Some(1_760_000_000_000),
        before_ms: None,
        by: Some("@ann:golden.example".try_into().unwrap()),
        say: Some("spam".to_owned()),
    };
    let failed = BTreeMap::from([("$event".try_into().unwrap(), "refused".to_owned())]);
    let (id, user_id) = ("first".to_owned(), eve.clone());
    let finish = UserRedactFinish { id, user_id, redacted: 9, failures: 1, failed };
    let reopen = ReportReopen {
        report: Offset::new(7),
        time_ms: 1_760_000_000_000,
        reporter: "@ann:golden.example".try_into().unwrap(),
        room_id: Some("!room:golden.example".try_into().unwrap()),
        event_id: Some("$event".try_into().unwrap()),
        user_id: Some(eve.clone()),
    };
    let undo = AdminUndo { record: Offset::new(8) };
    let room_id: OwnedRoomId = "!room:golden.example".try_into().unwrap();
    let purge = |id: &str| RoomPurgeHistory {
        id: id.to_owned(),
        room_id: room_id.clone(),
        before: Offset::new(9),
        keep_local: id == "second",
    };
    let id = "first".to_owned();
    let why = EventsEnd::Purge { id: id.clone() };
    let removed = RoomErase { room_id: room_id.clone(), events: vec![Offset::new(8)], why };
    let purged = RoomPurgeHistoryFinish { id, room_id: room_id.clone() };
    let list: OwnedRoomId = "!list:elsewhere.example".try_into().unwrap();
    let subscribe = |room_id: &OwnedRoomId, order| PolicySubscribe {
        room_id: room_id.clone(),
        areas: PolicyArea::ALL[..order as usize].to_vec(),
        order,
        except: vec!["*:golden.example".to_owned()],
        takedowns: order == 2,
        hold_above: 10,
    };
    let rules = vec!["$rule".try_into().unwrap()];
    let approve = PolicyApprove { room_id: list.clone(), rules };
    let unsubscribe = PolicyUnsubscribe { room_id: room_id.clone() };
    let judged = |record, event: &str| JudgedRule {
        record: Offset::new(record),
        event_id: event.try_into().unwrap(),
        hits: record,
    };
    let judge = PolicyJudge {
        room_id: list.clone(),
        until: (Offset::new(9), Offset::new(8)),
        applied: vec![judged(2, "$applied")],
        held: vec![judged(3, "$rule"), judged(4, "$held")],
        gone: vec![Offset::new(7)],
    };
    let policies: [Command; 5] = [
        subscribe(&list, 2).into(),
        subscribe(&room_id, 6).into(),
        judge.into(),
        approve.into(),
        unsubscribe.into(),
    ];
    let ann: OwnedUserId = "@ann:golden.example".try_into().unwrap();
    let wait = UserWait {
        user_id: ann.clone(),
        answer: Some("a friend of Bob's".to_owned()),
        address: Some([203, 0, 113, 7].into()),
    };
    let approve = UserStatus {
        shadow_banned: Some(true),
        approved: Some(true),
        reason: Some("known to us".to_owned()),
        ..UserStatus::of(ann)
    };
    let redact = |because: &str, events: Vec<Offset>, complete| RoomRedactSender {
        room_id: room_id.clone(),
        because: because.try_into().unwrap(),
        by: "@ann:golden.example".try_into().unwrap(),
        user_id: eve.clone(),
        since: Offset::new(5),
        events,
        complete,
    };
    let redacts = [
        redact("$kick", Vec::new(), false),
        redact("$kick", vec![Offset::new(6)], false),
        redact("$kick", vec![Offset::new(5)], true),
        redact("$ban", Vec::new(), false),
    ];
    [Command::from(order("first")), finish.into(), order("second").into()]
        .into_iter()
        .chain([reopen.into(), undo.into()])
        .chain([purge("first").into(), removed.into(), purged.into(), purge("second").into()])
        .chain(policies)
        .chain([wait.into(), approve.into()])
        .chain(redacts.map(Command::from))
        .map(|command| NewRecord::new(Stream::server(), Origin::server(), &command))
        .collect()
}
