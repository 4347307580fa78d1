//! What state resolution decided follows from what is recorded, and is explained by the rule that
//! decided.

use logcabin::{
    decide::federation::ReceiveOutcome,
    history::resolution::explain::{Dispute, Fate, Rule, explain},
};
use ruma::{MilliSecondsSinceUnixEpoch, OwnedRoomId, RoomVersionId, UInt, events::StateEventType};
use serde_json::{Value, json};

use super::{Homeserver, Sent, begin};

/// Explains all that state resolution decided in a room of this homeserver. Returns the last
/// dispute about each key.
pub(super) fn all(server: &Homeserver, room_id: &OwnedRoomId) -> Vec<Dispute> {
    let (state, events) = (server.engine.state(), server.engine.events());
    let room = state.rooms.get(room_id).unwrap();
    let mut newest: Vec<Dispute> = Vec::new();
    for offset in server.timeline(room_id) {
        let event = events.get(offset).unwrap().unwrap();
        let conflicts = event.received.as_ref().and_then(|of| of.resolved.as_ref());
        let conflicts = conflicts.map(|of| of.conflicts.clone()).unwrap_or_default();
        if event.received.is_none() {
            continue;
        }
        let last = explain(&state, events, &room, &event)
            .unwrap_or_else(|why| panic!("{}: {why}: {conflicts:?}", event.event_id));
        assert_eq!(last.len(), conflicts.len());
        for (dispute, conflict) in last.iter().zip(&conflicts) {
            assert_eq!(dispute.winner, conflict.winner);
            for id in &conflict.events {
                assert!(dispute.events.iter().any(|event| event.event_id == *id), "{dispute:?}");
            }
            for event in &dispute.events {
                let holds = dispute.winner.as_ref() == Some(&event.event_id);
                assert_eq!(event.fate == Fate::Holds, holds, "{dispute:?}");
                assert!(event.fate != Fate::Unknown, "{dispute:?}");
            }
        }
        for dispute in last {
            newest.retain(|of| {
                (&of.event_type, &of.state_key) != (&dispute.event_type, &dispute.state_key)
            });
            newest.push(dispute);
        }
    }
    newest
}

/// Three homeservers in a room, of which the first hears what the others do.
struct Fork {
    servers: Vec<Homeserver>,
    room_id: OwnedRoomId,
}

impl Fork {
    async fn begin() -> Self {
        let (servers, room_id) = begin(&RoomVersionId::V10).await;
        Self { servers, room_id }
    }

    /// What a homeserver does at this second, which the others do not hear of.
    async fn does(
        &mut self,
        by: usize,
        second: u32,
        event_type: &str,
        state_key: &str,
        content: Value,
    ) -> Vec<Sent> {
        let ts = MilliSecondsSinceUnixEpoch(UInt::from(1_770_000_000 + 1000 * second));
        let server = &mut self.servers[by];
        let sent = server.send_at(ts, &self.room_id, event_type, Some(state_key), content).await;
        assert!(sent, "{event_type} of {by}");
        server.news()
    }

    async fn hears(&self, number: usize, news: &[Sent]) {
        for sent in news {
            let taken = self.servers[number].hear(&self.room_id, sent.clone()).await;
            assert_eq!(taken, ReceiveOutcome::Accepted);
        }
    }

    /// The power levels, with a change.
    fn levels(&self, change: impl FnOnce(&mut Value)) -> Value {
        let server = &self.servers[1];
        let room = server.engine.state().rooms.get(&self.room_id).unwrap();
        let levels = &StateEventType::RoomPowerLevels;
        let levels = room.state_event(levels, "", logcabin::record::Offset::MAX).unwrap();
        let levels = server.engine.events().get(levels).unwrap().unwrap();
        let mut levels: Value = levels.content_as().unwrap();
        change(&mut levels);
        levels
    }

    /// The third user gives up power, and everybody knows. Returns who that is.
    async fn lower(&mut self, level: i64) -> String {
        let user = self.servers[2].user.to_string();
        let levels = self.levels(|levels| levels["users"][&user] = json!(level));
        let lowered = self.does(2, 1, LEVELS, "", levels).await;
        self.hears(0, &lowered).await;
        self.hears(1, &lowered).await;
        user
    }

    /// What state resolution made of a key when the first homeserver heard the last event: the
    /// second on which each event was sent, the number of its sender, and its fate.
    fn about(&self, event_type: &str, state_key: &str) -> Vec<(usize, Fate)> {
        let disputes = all(&self.servers[0], &self.room_id);
        let is_it = |of: &&Dispute| (&*of.event_type, &*of.state_key) == (event_type, state_key);
        let dispute = disputes.iter().find(is_it);
        let dispute = dispute.unwrap_or_else(|| panic!("{event_type}: {disputes:?}"));
        let number = |sender: &ruma::UserId| {
            self.servers.iter().position(|server| server.user == sender).unwrap()
        };
        let events = dispute.events.iter();
        events.map(|event| (number(&event.sender), event.fate.clone())).collect()
    }
}

fn named(name: &str) -> Value {
    json!({ "name": name })
}

const NAME: &str = "m.room.name";
const LEVELS: &str = "m.room.power_levels";
const RULES: &str = "m.room.join_rules";

#[tokio::test]
async fn the_later_event_holds_the_key() {
    let mut fork = Fork::begin().await;
    let of_one = fork.does(1, 20, NAME, "", named("one")).await;
    let of_two = fork.does(2, 10, NAME, "", named("two")).await;
    fork.hears(0, &of_one).await;
    fork.hears(0, &of_two).await;
    let expected = [(2, Fate::Replaced { by: Rule::Time }), (1, Fate::Holds)];
    assert_eq!(fork.about(NAME, ""), expected);
}

#[tokio::test]
async fn at_equal_times_the_event_with_the_greater_id_holds_the_key() {
    let mut fork = Fork::begin().await;
    let of_one = fork.does(1, 10, NAME, "", named("one")).await;
    let of_two = fork.does(2, 10, NAME, "", named("two")).await;
    fork.hears(0, &of_one).await;
    fork.hears(0, &of_two).await;
    let greater = if of_one[0].0 > of_two[0].0 { 1 } else { 2 };
    let expected = [(3 - greater, Fate::Replaced { by: Rule::EventId }), (greater, Fate::Holds)];
    assert_eq!(fork.about(NAME, ""), expected);
}

#[tokio::test]
async fn an_event_with_newer_power_levels_holds_the_key() {
    let mut fork = Fork::begin().await;
    let levels = fork.levels(|levels| levels["users"]["@x:b.test"] = json!(1));
    let mut of_one = fork.does(1, 10, LEVELS, "", levels).await;
    of_one.extend(fork.does(1, 11, NAME, "", named("one")).await);
    let of_two = fork.does(2, 20, NAME, "", named("two")).await;
    fork.hears(0, &of_two).await;
    fork.hears(0, &of_one).await;
    let by = Rule::Mainline { position: Some(0), other: Some(1) };
    assert_eq!(fork.about(NAME, ""), [(2, Fate::Replaced { by }), (1, Fate::Holds)]);
    // The earlier levels hold on the other branch. The new ones have them as an auth event.
    let expected = [(0, Fate::Replaced { by: Rule::RestsOnIt }), (1, Fate::Holds)];
    assert_eq!(fork.about(LEVELS, ""), expected);
}

#[tokio::test]
async fn among_power_events_those_of_the_more_powerful_sender_come_first() {
    let mut fork = Fork::begin().await;
    fork.lower(50).await;
    let of_one = fork.does(1, 20, RULES, "", json!({ "join_rule": "invite" })).await;
    let of_two = fork.does(2, 10, RULES, "", json!({ "join_rule": "knock" })).await;
    fork.hears(0, &of_one).await;
    fork.hears(0, &of_two).await;
    let by = Rule::SenderPower { power: "50".to_owned(), other: "100".to_owned() };
    assert_eq!(fork.about(RULES, ""), [(1, Fate::Replaced { by }), (2, Fate::Holds)]);
}

#[tokio::test]
async fn power_events_come_before_others() {
    let mut fork = Fork::begin().await;
    let two = fork.lower(50).await;
    let kick = fork.does(1, 20, "m.room.member", &two, json!({ "membership": "leave" })).await;
    let renamed = json!({ "membership": "join", "displayname": "two" });
    let renamed = fork.does(2, 10, "m.room.member", &two, renamed).await;
    fork.hears(0, &renamed).await;
    fork.hears(0, &kick).await;
    // A kicked user may come back to a public room, and did so before the kick.
    let expected = [(1, Fate::Replaced { by: Rule::PowerEventsFirst }), (2, Fate::Holds)];
    assert_eq!(fork.about("m.room.member", &two), expected);
}

#[tokio::test]
async fn an_event_that_is_not_allowed_when_its_turn_comes_does_not_hold_the_key() {
    let mut fork = Fork::begin().await;
    let two = fork.lower(50).await;
    let renamed = json!({ "membership": "join", "displayname": "two" });
    let mut of_two = fork.does(2, 10, "m.room.member", &two, renamed).await;
    of_two.extend(fork.does(2, 30, NAME, "", named("two")).await);
    let ban = fork.does(1, 20, "m.room.member", &two, json!({ "membership": "ban" })).await;
    fork.hears(0, &of_two).await;
    fork.hears(0, &ban).await;
    let about = fork.about("m.room.member", &two);
    assert_eq!(about[0], (1, Fate::Holds), "{about:?}");
    let refused = |of: &(usize, Fate)| of.0 == 2 && matches!(of.1, Fate::NotAllowed { .. });
    assert!(about.len() == 2 && refused(&about[1]), "{about:?}");
    let about = fork.about(NAME, "");
    assert!(about.len() == 1 && refused(&about[0]), "{about:?}");
}
