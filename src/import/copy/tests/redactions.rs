//! Redactions that the source honours.

use super::*;

/// Tells an event of the room, and returns its id.
fn tell(
    maker: &mut Maker,
    (sender, event_type, redacts): (&str, &str, Option<&str>),
    prev: &str,
    (judged, stream, recheck): (Judged, i64, bool),
) -> String {
    let mut json = json!({
        "room_id": ROOM, "sender": sender, "type": event_type, "depth": 2,
        "content": { "body": format!("message {stream}") }, "origin_server_ts": 5,
        "prev_events": [prev], "auth_events": [], "signatures": { "x.example": { "k:k": "s" } },
    });
    if let Some(redacts) = redacts {
        json["redacts"] = json!(redacts);
    }
    let section = if judged == Judged::Backfilled { Section::Backfilled } else { Section::Events };
    let mut event = stored(&RoomVersionId::V10, json, judged, stream);
    event.metadata.recheck_redaction = recheck;
    let event_id = event.event_id.clone();
    maker.source.tell(section, Fact::Event(Box::new(event)));
    maker.source.newest = maker.source.newest.max(stream);
    event_id
}

const REDACTION: &str = "m.room.redaction";

/// The offset and payload of the record of an event.
fn record_of(dir: &Path, event_id: &str) -> (u64, Value) {
    let (_, records) = records(dir);
    let found = records.iter().find_map(|record| {
        let payload: Value = serde_json::from_slice(record.payload.bytes()?).ok()?;
        (payload["event_id"] == event_id).then(|| (record.offset().get(), payload))
    });
    found.expect("the event is in the log")
}

#[test]
fn a_moderators_redaction_of_an_event_from_the_past_takes_effect_beside_a_worthless_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut maker = Maker::new();
    let (bob, cy) = ("@bob:b.example", "@cy:c.example");
    let past = (Judged::Backfilled, -1, false);
    let missing = "$u1Xb0o2yE6gwmPF1DFN7xw2Pc-8pmlwd2oe8MYqnOWI";
    let target = tell(&mut maker, (bob, "m.room.message", None), missing, past);
    // It comes after an event that is not known when it comes.
    let next = tell(&mut maker, (bob, "m.x", None), &target, (Judged::Timeline, 10, false));
    let by_moderator =
        tell(&mut maker, (cy, REDACTION, Some(&target)), &next, (Judged::Timeline, 11, false));
    let worthless = ("@dan:d.example", REDACTION, Some(&*target));
    tell(&mut maker, worthless, &by_moderator, (Judged::Timeline, 12, true));
    let (mut source, ..) = maker.ended();
    finish_in(dir.path(), &mut source).unwrap();
    let gaps = payloads(dir.path(), "room.gap");
    let filled = &gaps[0]["events"][0];
    assert_eq!(filled["event_id"], json!(target));
    assert_eq!(filled["redacted_by"], json!(record_of(dir.path(), &by_moderator).0));
}

#[test]
fn a_redaction_from_the_past_takes_effect_on_an_event_in_the_timeline() {
    let dir = tempfile::tempdir().unwrap();
    let mut maker = Maker::new();
    let (bob, cy) = ("@bob:b.example", "@cy:c.example");
    let target = maker.events[1].event_id.clone();
    let past = (Judged::Backfilled, -1, false);
    let of_own = tell(&mut maker, (cy, REDACTION, Some(&target)), &target, past);
    tell(&mut maker, (bob, "m.x", None), &of_own, (Judged::Timeline, 10, false));
    let (mut source, ..) = maker.ended();
    finish_in(dir.path(), &mut source).unwrap();
    let gaps = payloads(dir.path(), "room.gap");
    assert_eq!(gaps[0]["events"][0]["redacts"], json!(record_of(dir.path(), &target).0));
}

#[test]
fn a_redaction_that_soft_failed_takes_effect_and_is_no_forward_extremity() {
    let dir = tempfile::tempdir().unwrap();
    let mut maker = Maker::new();
    let bob = "@bob:b.example";
    let body = json!({ "body": "x" });
    let at = maker.send(bob, ("m.room.message", None), body, &[1], Judged::Timeline);
    let target = maker.events[at].event_id.clone();
    maker.stream += 1;
    let judged = (Judged::SoftFailed, maker.stream, true);
    let redaction = tell(&mut maker, (bob, REDACTION, Some(&target)), &target, judged);
    maker.stream += 1;
    let judged = (Judged::SoftFailed, maker.stream, true);
    let of_another = ("@cy:c.example", REDACTION, Some(&*target));
    let other = tell(&mut maker, of_another, &target, judged);
    maker.step((8, 0, 1, 1));
    let (mut source, events, current) = maker.ended();
    let finished = finish_in(dir.path(), &mut source).unwrap();
    assert_eq!(finished.differing_rooms, Vec::new());
    let (place, _) = record_of(dir.path(), &target);
    assert_eq!(record_of(dir.path(), &redaction).1["redacts"], json!(place));
    let other = record_of(dir.path(), &other).1;
    assert!(other.get("redacts").is_none() && other["outcome"] == "soft_failed", "{other}");
    assert_states(dir.path(), &events, &current);
}
