//! Records of moderation that no proposal of a golden log makes.

use std::collections::BTreeMap;

use logcabin::record::{
    Command, NewRecord, Offset, Origin, Stream,
    command::{
        AdminUndo, EventsEnd, ReportReopen, RoomErase, RoomPurgeHistory, RoomPurgeHistoryFinish,
        UserRedact, UserRedactFinish,
    },
};
use ruma::{OwnedRoomId, OwnedUserId};

/// What a user sent is redacted, once to the end, and once not; a closed report is opened again.
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
    [Command::from(order("first")), finish.into(), order("second").into()]
        .into_iter()
        .chain([reopen.into(), undo.into()])
        .chain([purge("first").into(), removed.into(), purged.into(), purge("second").into()])
        .map(|command| NewRecord::new(Stream::server(), Origin::server(), &command))
        .collect()
}
