//! Changes of a room's state without an event after them.

use super::*;

#[test]
fn a_change_after_the_last_event_is_written_and_one_without_its_event_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let mut maker = Maker::new();
    let ann = format!("@ann:{OWN}");
    let name = |name: &str| json!({ "name": name });
    let key = ("m.room.name".to_owned(), String::new());
    let first = maker.send(&ann, (&*key.0, Some("")), name("one"), &[1], Judged::Timeline);
    let second = maker.send(&ann, (&*key.0, Some("")), name("two"), &[first], Judged::Timeline);
    let holds = maker.events[first].event_id.clone();
    maker.current.insert(key.clone(), holds.clone());
    maker.stream += 1;
    for (event_type, event_id) in [(&*key.0, &*holds), ("m.room.topic", "$nowhere")] {
        let delta = StateDelta {
            stream: maker.stream,
            room_id: ROOM.to_owned(),
            event_type: event_type.to_owned(),
            state_key: String::new(),
            event_id: Some(event_id.to_owned()),
            previous: Some(maker.events[second].event_id.clone()),
        };
        maker.source.tell(Section::Events, Fact::StateDelta(delta));
    }
    let (mut source, events, current) = maker.ended();
    let finished = finish_in(dir.path(), &mut source).unwrap();
    assert_eq!(finished.differing_rooms, Vec::new());
    let left: Vec<_> =
        finished.copied.left.iter().map(|left| (&*left.reason, left.count)).collect();
    assert_eq!(left, [("its event is not in the log", 1)]);
    assert_states(dir.path(), &events, &current);
}
