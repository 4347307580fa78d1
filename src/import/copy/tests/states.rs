//! States that the source stores otherwise than they came about.

use super::*;

/// Stores the state after the last event as what it adds to an earlier one, as programs do that
/// make Synapse's database smaller.
fn compress(maker: &mut Maker, from: usize) {
    let (last, from) = (maker.events.last().unwrap().clone(), &maker.events[from]);
    let changed = last.after.iter().filter(|(key, id)| from.after.get(*key) != Some(id));
    let entries = changed.map(|((event_type, state_key), event_id)| StateEntry {
        event_type: event_type.clone(),
        state_key: state_key.clone(),
        event_id: event_id.clone(),
    });
    let step = StateStep { from: Some(StateGroup(from.group)), entries: entries.collect() };
    let facts = maker.source.sections.get_mut(&Section::Events).unwrap();
    if let Some(Told { fact: Fact::Event(event), .. }) = facts.last_mut() {
        event.group_from = step.from;
    }
    maker.source.steps.insert(last.group, step);
}

#[test]
fn the_state_before_an_event_does_not_depend_on_how_the_one_after_it_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let mut maker = Maker::new();
    let (ann, bob) = (format!("@ann:{OWN}"), "@bob:b.example");
    let name = |name: &str| json!({ "name": name });
    let topic = |topic: &str| json!({ "topic": topic });
    let (names, topics) = (("m.room.name", Some("")), ("m.room.topic", Some("")));
    let first = maker.send(&ann, names, name("one"), &[1], Judged::Timeline);
    let other = maker.send(bob, topics, topic("x"), &[1], Judged::Timeline);
    maker.send(bob, names, name("two"), &[first], Judged::Timeline);
    compress(&mut maker, 0);
    // Where branches meet, only a plain step tells it.
    maker.send(&ann, names, name("three"), &[first, other], Judged::Timeline);
    let (mut source, events, current) = maker.ended();
    finish_in(dir.path(), &mut source).unwrap();
    assert_states(dir.path(), &events, &current);
}

#[test]
fn a_state_that_nothing_tells_is_noted_as_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let mut maker = Maker::new();
    let (ann, bob) = (format!("@ann:{OWN}"), "@bob:b.example");
    let name = |name: &str| json!({ "name": name });
    let names = ("m.room.name", Some(""));
    let first = maker.send(&ann, names, name("one"), &[1], Judged::Timeline);
    let other = maker.send(bob, names, name("two"), &[1], Judged::Timeline);
    maker.step((8, 0, 1, 1));
    let topic = json!({ "topic": "x" });
    let met = ("m.room.topic", Some(""));
    maker.send(&ann, met, topic, &[first, other], Judged::Timeline);
    compress(&mut maker, 0);
    let event_id = maker.events.last().unwrap().event_id.clone();
    let (mut source, ..) = maker.ended();
    let finished = finish_in(dir.path(), &mut source).unwrap();
    let report = fs::read_to_string(&finished.report).unwrap();
    let noted = format!("event {event_id}: the state before it is not known");
    assert!(report.contains(&noted), "{report}");
}
