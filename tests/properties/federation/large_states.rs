//! States that differ in more than the record of an event holds, and homeservers that make many
//! branches.

use std::sync::Arc;

use logcabin::{
    decide::federation::{PlaceOutlier, ReceiveOutcome, RecordOutliers},
    engine::{Engine, Options},
    log::Log,
    record::{
        Command, Offset, Origin,
        command::{Outcome, StateBase},
    },
};
use ruma::{OwnedEventId, OwnedUserId};
use serde_json::json;

use super::{
    Sent,
    branches::{Room, Tip, on_one_thread, the_current_state_equals_the_reference},
    received,
};

/// An event, and the end of the branch that it makes.
type Forked = (Sent, Tip);

/// Too many for one record, with names of the greatest length.
const MANY: usize = 360;

fn name(number: usize) -> String {
    format!("x{number:0>220}")
}

/// The join of a user, whom nobody knows.
fn join(room: &Room, after: &Tip, user: &OwnedUserId) -> Forked {
    let auth: Vec<_> = room.basis.iter().collect();
    let content = json!({ "membership": "join" });
    room.event(&[after], user, "m.room.member", Some(user.as_str()), content, &auth)
}

/// A branch of users of a homeserver who join.
async fn branch_of_joins(room: &mut Room, start: &Tip, server: &str, many: usize) -> Tip {
    let mut tip = start.clone();
    for number in 0..many {
        let user = format!("@{}:{server}", name(number)).try_into().unwrap();
        let (sent, next) = join(room, &tip, &user);
        assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
        tip = next;
    }
    tip
}

/// The log, read again, gives what the homeserver knows.
async fn is_read_again(room: &Room) {
    let server = &room.servers[0];
    let options = Options {
        server_name: server.name.clone(),
        ..Options::small(server.engine.clock().clone())
    };
    let again = Engine::open(Arc::clone(&server.log), options).await.unwrap();
    assert_eq!(again.state().digest(), server.engine.state().digest());
}

fn records(room: &Room) -> Vec<Command> {
    let log: &Arc<dyn Log> = &room.servers[0].log;
    let records = log.read(Offset::new(1), usize::MAX).unwrap();
    records.iter().filter_map(|record| record.command().ok().flatten()).collect()
}

#[test]
fn a_state_that_differs_in_more_than_a_record_holds_is_recorded_in_parts() {
    on_one_thread(async {
        let mut room = Room::begin().await;
        let (sent, start) = room.join(&room.tip(), "eve");
        let eve = start.event.clone();
        assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
        let mut tips = Vec::new();
        for branch in 0..3 {
            let server = format!("branch{branch}.test");
            tips.push(branch_of_joins(&mut room, &start, &server, MANY).await);
        }
        // Merging two of the three gives a state that the room never had.
        let (sent, met) = room.message(&[&tips[0], &tips[1]], "eve", &eve);
        assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
        let parts = records(&room).into_iter().filter_map(|command| match command {
            Command::RoomPdu(pdu) if pdu.event_id == met.event => {
                assert_eq!(pdu.outcome, Outcome::Outlier);
                pdu.before
            }
            Command::RoomEvent(event) if event.event_id == met.event => {
                event.received.unwrap().before
            }
            _ => None,
        });
        let parts: Vec<_> = parts.collect();
        assert!(parts.len() >= 3, "{} parts", parts.len());
        assert!(matches!(parts[parts.len() - 1].base, StateBase::Part(part) if part > 1));
        assert_eq!(parts.iter().map(|part| part.changes.len()).sum::<usize>(), MANY);
        the_current_state_equals_the_reference(&room.servers[0], &room.room_id);
        // Later events depend on it.
        let (sent, _) = room.message(&[&met], "eve", &eve);
        assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
        the_current_state_equals_the_reference(&room.servers[0], &room.room_id);
        is_read_again(&room).await;
    });
}

/// Users of other homeservers join. Returns each with the id of the join.
async fn joined(room: &mut Room, count: usize) -> Vec<(OwnedUserId, OwnedEventId)> {
    let mut users = Vec::new();
    for number in 0..count {
        let user: OwnedUserId = format!("@eve:name{number}.test").try_into().unwrap();
        let (sent, joined) = join(room, &room.tip(), &user);
        assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
        users.push((user, joined.event));
    }
    users
}

/// A message that differs from others at its place.
fn message(room: &Room, after: &Tip, of: &(OwnedUserId, OwnedEventId), number: usize) -> Forked {
    let auth = [&room.basis[0], &room.basis[1], &of.1];
    let content = json!({ "msgtype": "m.text", "body": number.to_string() });
    room.event(&[after], &of.0, "m.room.message", None, content, &auth)
}

#[test]
fn a_homeserver_that_makes_many_branches_displaces_only_its_own() {
    on_one_thread(async {
        let mut room = Room::begin().await;
        let bob = room.servers[1].user.clone();
        let others = joined(&mut room, 1).await;
        let (sent, start) = room.join(&room.tip(), "eve");
        let eve = start.event.clone();
        assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
        let of_joins = branch_of_joins(&mut room, &start, "elsewhere.test", MANY).await;
        let mut tips = vec![of_joins.event.clone()];
        // It claims a greater depth for the other ones.
        let deep = |depth: u64| Tip { event: start.event.clone(), depth };
        for number in 1..5 {
            let (sent, tip) = room.unlike(&deep(20_000), "eve", &eve, number);
            assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
            tips.push(tip.event);
        }
        let extremities = |room: &Room| room.servers[0].extremities(&room.room_id);
        assert_eq!(extremities(&room), tips.iter().cloned().collect());
        let (before, state) = (room.logged(), room.servers[0].state(&room.room_id));
        let (sent, _) = room.unlike(&deep(20_000), "eve", &eve, 5);
        assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
        assert!(room.logged() - before < 8192 && room.servers[0].state(&room.room_id) == state);
        assert_eq!(extremities(&room), tips.iter().cloned().collect());
        for number in 0..5 {
            let (sent, tip) = message(&room, &deep(10_000), &others[0], number);
            assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
            tips.push(tip.event);
        }
        assert_eq!(extremities(&room), tips.iter().cloned().collect());
        // Another homeserver is heard, and what it displaces is more than a record holds.
        let state = state.len();
        let member = room.holder(&"m.room.member".into(), bob.as_str());
        let (sent, heard) = message(&room, &start, &(bob, member), 0);
        assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
        let displaced = |of: &OwnedEventId| *of == of_joins.event;
        let left = tips.iter().filter(|of| !displaced(of)).cloned().chain([heard.event]);
        assert_eq!(extremities(&room), left.collect());
        assert_eq!(room.servers[0].state(&room.room_id).len(), state - MANY);
        the_current_state_equals_the_reference(&room.servers[0], &room.room_id);
        let parts = records(&room).into_iter().filter_map(|command| match command {
            Command::RoomState(part) => Some(part.changes.len()),
            _ => None,
        });
        let parts: Vec<_> = parts.collect();
        assert!(parts.len() > 1, "{parts:?}");
        assert_eq!(parts.iter().sum::<usize>(), MANY);
        is_read_again(&room).await;
    });
}

#[test]
fn a_state_without_a_create_event_is_not_recorded_and_a_small_one_takes_little_space() {
    on_one_thread(async {
        let mut room = Room::begin().await;
        let (sent, start) = room.join(&room.tip(), "eve");
        let eve = start.event.clone();
        assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
        branch_of_joins(&mut room, &start, "elsewhere.test", MANY).await;
        let (sent, outlier) = room.message(&[&start], "eve", &eve);
        let mut receive = received(&room.room_id, sent);
        receive.as_outlier = true;
        let server = &room.servers[0];
        let taken = server.engine.propose(Origin::server(), receive).await;
        assert_eq!(taken.unwrap().into_inner(), ReceiveOutcome::Outlier);
        let place = |state: &[OwnedEventId]| {
            let place = PlaceOutlier {
                room_id: room.room_id.clone(),
                event_id: outlier.event.clone(),
                from: "elsewhere.test".try_into().unwrap(),
                state: state.to_vec(),
            };
            server.engine.propose(Origin::server(), place)
        };
        let before = room.logged();
        assert!(place(&[]).await.is_err());
        assert!(place(&room.basis[1..]).await.is_err());
        assert_eq!(room.logged(), before);
        place(&room.basis).await.unwrap().into_inner();
        assert!(room.logged() - before < 4096);
        is_read_again(&room).await;
    });
}

#[test]
fn many_users_cannot_undo_state_by_branches_that_leave_it_out() {
    on_one_thread(async {
        let mut room = Room::begin().await;
        let names = joined(&mut room, 11).await;
        let start = Tip { depth: 10_000, ..room.tip() };
        let server = &room.servers[0];
        let content = json!({ "name": "what was agreed on" });
        assert!(server.send(&room.room_id, "m.room.name", Some(""), content).await);
        let (agreed, state) = (room.tip().event, server.state(&room.room_id));
        for name in &names {
            let (sent, _) = message(&room, &start, name, 0);
            assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
        }
        assert_eq!(room.servers[0].state(&room.room_id), state);
        let extremities = room.servers[0].extremities(&room.room_id);
        assert!(extremities.len() == 10 && extremities.contains(&agreed), "{extremities:?}");
        the_current_state_equals_the_reference(&room.servers[0], &room.room_id);
        // A moderator elsewhere, who knows none of them, is heard nevertheless.
        let bob = room.servers[1].user.clone();
        let member = room.holder(&"m.room.member".into(), bob.as_str());
        let auth = [&room.basis[0], &room.basis[1], &member];
        let ban = json!({ "membership": "ban" });
        let banned = &names[0].0;
        let kind = "m.room.member";
        let (sent, heard) = room.event(&[&start], &bob, kind, Some(banned.as_str()), ban, &auth);
        assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
        let extremities = room.servers[0].extremities(&room.room_id);
        assert!(extremities.len() == 10 && extremities.contains(&agreed), "{extremities:?}");
        assert!(extremities.contains(&heard.event), "{extremities:?}");
        assert_eq!(room.holder(&kind.into(), banned.as_str()), heard.event);
        the_current_state_equals_the_reference(&room.servers[0], &room.room_id);
        // An event of this server follows them all.
        let server = &room.servers[0];
        let content = json!({ "msgtype": "m.text", "body": "x" });
        assert!(server.send(&room.room_id, "m.room.message", None, content).await);
        assert_eq!(server.extremities(&room.room_id).len(), 1);
        is_read_again(&room).await;
    });
}

#[test]
fn a_state_that_is_too_much_to_record_is_taken_from_others_and_the_room_goes_on() {
    on_one_thread(async {
        let mut room = Room::begin().await;
        let (sent, start) = room.join(&room.tip(), "eve");
        let eve = start.event.clone();
        assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
        let place = async |room: &Room, tip: &Tip, sent: Sent, state: &[OwnedEventId]| {
            let mut receive = received(&room.room_id, sent);
            receive.as_outlier = true;
            let engine = &room.servers[0].engine;
            let taken = engine.propose(Origin::server(), receive).await.unwrap().into_inner();
            assert_eq!(taken, ReceiveOutcome::Outlier);
            let place = PlaceOutlier {
                room_id: room.room_id.clone(),
                event_id: tip.event.clone(),
                from: "elsewhere.test".try_into().unwrap(),
                state: state.to_vec(),
            };
            engine.propose(Origin::server(), place).await.unwrap().into_inner();
        };
        // Two branches, each with more users than one event may change.
        let basis: Vec<_> = room.basis.iter().chain([&eve]).cloned().collect();
        let (mut ends, mut all) = (Vec::new(), basis.clone());
        for branch in 0..2 {
            let mut state = basis.clone();
            let mut joins = Vec::new();
            for number in 0..12 * MANY {
                let user = format!("@{}:branch{branch}.test", name(number)).try_into().unwrap();
                let (sent, joined) = join(&room, &start, &user);
                state.push(joined.event);
                joins.push(sent);
            }
            for events in joins.chunks(500) {
                let record = RecordOutliers {
                    room_id: room.room_id.clone(),
                    from: "elsewhere.test".try_into().unwrap(),
                    events: events.to_vec(),
                    keeps_rejected: true,
                };
                let engine = &room.servers[0].engine;
                engine.propose(Origin::server(), record).await.unwrap().into_inner();
            }
            let (sent, end) = room.unlike(&start, "eve", &eve, branch);
            place(&room, &end, sent, &state).await;
            all.extend(state.split_off(basis.len()));
            ends.push(end);
        }
        let (sent, met) = room.message(&[&ends[0], &ends[1]], "eve", &eve);
        let before = room.logged();
        assert_eq!(room.hear(sent.clone()).await, ReceiveOutcome::Unresolved);
        assert_eq!(room.logged(), before);
        place(&room, &met, sent, &all).await;
        // It is more than one event may change: later events are shown, but change nothing.
        let (sent, _) = room.message(&[&met], "eve", &eve);
        let count = room.servers[0].state(&room.room_id).len();
        assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
        assert_eq!(room.servers[0].state(&room.room_id).len(), count);
        // One branch alone is not.
        let (sent, _) = room.message(&[&ends[0]], "eve", &eve);
        assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
        assert_eq!(room.servers[0].state(&room.room_id).len(), count + 12 * MANY);
        is_read_again(&room).await;
    });
}
