//! Imports that go on after the source has deleted rows.

use super::*;

/// A room that is deleted from the source.
pub(super) const OTHER: &str = "!other:a.example";

pub(super) fn room(room_id: &str) -> Fact {
    Fact::Room(Room {
        room_id: room_id.to_owned(),
        version: Some("10".to_owned()),
        creator: None,
        partial: false,
        joined: true,
        began: Some(1),
    })
}

/// An event of the other room.
pub(super) fn of_other(judged: Judged, stream: i64) -> Event {
    let json = json!({
        "room_id": OTHER, "sender": "@cy:c.example", "type": "m.room.message", "depth": 1,
        "content": { "body": format!("message {stream}") }, "origin_server_ts": 5,
        "prev_events": [], "auth_events": [], "signatures": { "c.example": { "ed25519:k": "s" } },
    });
    stored(&RoomVersionId::V10, json, judged, stream)
}

/// Deletes the other room.
pub(super) fn delete_other(source: &mut Memory) {
    for facts in source.sections.values_mut() {
        facts.retain(|told| match &told.fact {
            Fact::Room(room) => room.room_id != OTHER,
            Fact::Event(event) => event.room_id != OTHER,
            _ => true,
        });
    }
}

#[test]
fn no_event_is_passed_by_if_earlier_ones_are_deleted_during_an_interruption() {
    let mut maker = Maker::new();
    maker.source.tell(Section::Rooms, room(OTHER));
    for _ in 0..60 {
        maker.stream += 1;
        let event = of_other(Judged::Outlier { out_of_band: false }, maker.stream);
        maker.source.tell(Section::Events, Fact::Event(Box::new(event)));
        maker.step((8, 0, 1, 1));
    }
    let (mut source, events, current) = maker.ended();
    source.slice = 100_000;
    // The section after the events cannot be read.
    let interrupted = (1..100).find_map(|calls| {
        source.calls = Some(calls);
        let dir = tempfile::tempdir().unwrap();
        copy_in(dir.path(), &mut source).unwrap_err();
        let progress = Files::of(dir.path()).read_progress().unwrap().unwrap();
        let is_within = Sections::of(Pass::Copy)[progress.section] == Section::Events
            && progress.handled.is_some();
        is_within.then_some(dir)
    });
    let dir = interrupted.expect("an import that goes on within the slice");
    source.calls = None;
    delete_other(&mut source);
    finish_in(dir.path(), &mut source).unwrap();
    assert_states(dir.path(), &events, &current);
}
