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

/// What the record of an event has as its content.
fn content(dir: &Path, event_id: &str) -> Value {
    record_of(dir, event_id).1["pdu"]["content"].clone()
}

#[test]
fn a_redaction_that_comes_before_its_event_takes_effect_and_a_worthless_one_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut maker = Maker::new();
    let (bob, cy, dan) = ("@bob:b.example", "@cy:c.example", "@dan:d.example");
    // What comes later, to learn the ids.
    let mut later = Maker::new();
    let prev = maker.events[1].event_id.clone();
    let message = |maker: &mut Maker, stream| {
        tell(maker, (bob, "m.room.message", None), &prev, (Judged::Timeline, stream, false))
    };
    let (kept, own, moderated) =
        (message(&mut later, 20), message(&mut later, 21), message(&mut later, 22));
    for (stream, sender, target, recheck) in
        [(10, dan, &kept, true), (11, "@eve:b.example", &own, true), (12, cy, &moderated, false)]
    {
        let judged = (Judged::Timeline, stream, recheck);
        tell(&mut maker, (sender, REDACTION, Some(target)), &prev, judged);
    }
    for stream in 20..23 {
        message(&mut maker, stream);
    }
    let (mut source, ..) = maker.ended();
    finish_in(dir.path(), &mut source).unwrap();
    assert_eq!(content(dir.path(), &kept), json!({ "body": "message 20" }));
    for redacted in [own, moderated] {
        assert_eq!(content(dir.path(), &redacted), json!({}), "{redacted}");
    }
}

#[test]
fn what_a_ban_redacts_comes_along_redacted() {
    let dir = tempfile::tempdir().unwrap();
    let mut maker = Maker::new();
    let (bob, cy) = ("@bob:b.example", "@cy:c.example");
    let prev = maker.events[1].event_id.clone();
    let mut message = |sender, stream| {
        tell(&mut maker, (sender, "m.room.message", None), &prev, (Judged::Timeline, stream, false))
    };
    let (of_banned, of_other, after) = (message(bob, 10), message(cy, 11), message(bob, 13));
    let ban = facts::BanRedaction {
        room_id: ROOM.to_owned(),
        user_id: bob.to_owned(),
        // That of the ban, which was copied.
        event_id: of_other.clone(),
        until: Some(13),
    };
    maker.source.tell(Section::Rooms, Fact::BanRedaction(ban));
    let (mut source, ..) = maker.ended();
    copy_in(dir.path(), &mut source).unwrap();
    // The second one comes too late for what was copied, and says so.
    let ban = facts::BanRedaction {
        room_id: ROOM.to_owned(),
        user_id: cy.to_owned(),
        event_id: "$another".to_owned(),
        until: None,
    };
    source.tell(Section::Rooms, Fact::BanRedaction(ban));
    let finished = finish_in(dir.path(), &mut source).unwrap();
    assert_eq!(content(dir.path(), &of_banned), json!({}));
    assert_eq!(content(dir.path(), &of_other), json!({ "body": "message 11" }));
    assert_eq!(content(dir.path(), &after), json!({ "body": "message 13" }));
    let report = fs::read_to_string(&finished.report).unwrap();
    assert!(report.contains("bans @cy:c.example") && !report.contains("bans @bob"), "{report}");
}

#[test]
fn a_redaction_that_was_redacted_redacts_still_and_the_first_event_never_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut maker = Maker::new();
    let bob = "@bob:b.example";
    let body = json!({ "body": "x" });
    let at = maker.send(bob, ("m.room.message", None), body, &[1], Judged::Timeline);
    let (create, target) = (maker.events[0].event_id.clone(), maker.events[at].event_id.clone());
    // The source has removed what it redacts from the event, and knows it all the same.
    let redaction = tell(&mut maker, (bob, REDACTION, None), &target, (Judged::Timeline, 10, true));
    let of_first =
        tell(&mut maker, (bob, REDACTION, Some(&create)), &target, (Judged::Timeline, 11, false));
    let fact = facts::Redaction {
        event_id: redaction.clone(),
        redacts: target.clone(),
        carried_out: false,
        received_ms: None,
    };
    maker.source.tell(Section::Redactions, Fact::Redaction(fact));
    let (mut source, ..) = maker.ended();
    finish_in(dir.path(), &mut source).unwrap();
    let place = record_of(dir.path(), &target).0;
    assert_eq!(record_of(dir.path(), &redaction).1["redacts"], json!(place));
    assert!(record_of(dir.path(), &of_first).1.get("redacts").is_none());
}
