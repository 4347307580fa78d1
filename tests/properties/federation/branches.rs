//! Long branches, and many of them: what they cost, and that the outcome is that of
//! `ruma-state-res`.

use std::sync::{Arc, mpsc};

use logcabin::{
    decide::federation::ReceiveOutcome,
    history::resolution::explain::state_by_reference,
    log::Log,
    record::{Command, Offset, Origin},
    work,
};
use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId, RoomVersionId, events::StateEventType};
use serde_json::{Value, json};

use super::{Homeserver, Sent, begin, object, received, sealed};

/// The state at each event on this server is the one that `ruma-state-res` computes.
pub(super) fn every_state_equals_the_reference(server: &Homeserver, room_id: &OwnedRoomId) {
    let (state, events) = (server.engine.state(), server.engine.events());
    let room = state.rooms.get(room_id).unwrap();
    for offset in server.timeline(room_id) {
        let event = events.get(offset).unwrap().unwrap();
        if event.received.is_none() {
            continue;
        }
        let mut own = std::collections::BTreeMap::new();
        for (event_type, state_key, offset) in room.state_map(offset) {
            let held = events.get(offset).unwrap().unwrap();
            own.insert((event_type, String::from(state_key)), held.event_id.clone());
        }
        let reference = state_by_reference(&state, events, &room, &event).unwrap();
        assert_eq!(own, reference.into_iter().collect(), "{}", event.event_id);
    }
}

/// A room in which one homeserver hears the events of others, one by one.
pub(super) struct Room {
    pub(super) servers: Vec<Homeserver>,
    pub(super) room_id: OwnedRoomId,
    /// The auth events of all others: the first event, the power levels, the join rules.
    pub(super) basis: Vec<OwnedEventId>,
    /// How many bytes were sent.
    sent: usize,
}

/// The end of a branch.
#[derive(Clone)]
pub(super) struct Tip {
    pub(super) event: OwnedEventId,
    pub(super) depth: u64,
}

impl Room {
    pub(super) async fn begin() -> Self {
        let (servers, room_id) = begin(&RoomVersionId::V10).await;
        let mut room = Self { servers, room_id, basis: Vec::new(), sent: 0 };
        room.basis = [
            StateEventType::RoomCreate,
            StateEventType::RoomPowerLevels,
            StateEventType::RoomJoinRules,
        ]
        .map(|event_type| room.holder(&event_type, ""))
        .to_vec();
        room
    }

    pub(super) fn holder(&self, event_type: &StateEventType, state_key: &str) -> OwnedEventId {
        let server = &self.servers[0];
        let room = server.engine.state().rooms.get(&self.room_id).unwrap();
        let offset = room.state_event(event_type, state_key, Offset::MAX).unwrap();
        server.engine.events().get(offset).unwrap().unwrap().event_id.clone()
    }

    pub(super) fn tip(&self) -> Tip {
        let room = self.servers[0].engine.state().rooms.get(&self.room_id).unwrap();
        let tip = room.tip().unwrap();
        Tip { event: tip.event_id, depth: tip.depth }
    }

    /// An event after others.
    pub(super) fn event(
        &self,
        after: &[&Tip],
        sender: &OwnedUserId,
        event_type: &str,
        state_key: Option<&str>,
        content: Value,
        auth: &[&OwnedEventId],
    ) -> (Sent, Tip) {
        let depth = after.iter().map(|tip| tip.depth).max().unwrap() + 1;
        let mut event = json!({
            "type": event_type, "room_id": self.room_id, "sender": sender, "content": content,
            "origin_server_ts": 1_770_000_000_000_u64 + depth, "depth": depth,
            "prev_events": after.iter().map(|tip| &tip.event).collect::<Vec<_>>(),
            "auth_events": auth,
            // As large as real ones.
            "signatures": { "elsewhere.test": { "ed25519:a": "s".repeat(86) } },
        });
        if let Some(state_key) = state_key {
            event["state_key"] = json!(state_key);
        }
        let sent = sealed(object(event), &RoomVersionId::V10);
        let tip = Tip { event: sent.0.clone(), depth };
        (sent, tip)
    }

    pub(super) async fn hear(&mut self, sent: Sent) -> ReceiveOutcome {
        self.sent += sent.1.get().len();
        self.servers[0].hear(&self.room_id, sent).await
    }

    /// The join of an unknown user.
    pub(super) fn join(&self, after: &Tip, name: &str) -> (Sent, Tip) {
        let user: OwnedUserId = format!("@{name}:elsewhere.test").try_into().unwrap();
        let auth: Vec<_> = self.basis.iter().collect();
        let content = json!({ "membership": "join" });
        self.event(&[after], &user, "m.room.member", Some(user.as_str()), content, &auth)
    }

    /// A message of somebody who has joined.
    pub(super) fn message(&self, after: &[&Tip], name: &str, joined: &OwnedEventId) -> (Sent, Tip) {
        let user: OwnedUserId = format!("@{name}:elsewhere.test").try_into().unwrap();
        let auth = [&self.basis[0], &self.basis[1], joined];
        let content = json!({ "msgtype": "m.text", "body": "x" });
        self.event(after, &user, "m.room.message", None, content, &auth)
    }

    /// A message that differs from others at its place.
    pub(super) fn unlike(
        &self,
        after: &Tip,
        name: &str,
        joined: &OwnedEventId,
        number: usize,
    ) -> (Sent, Tip) {
        let user: OwnedUserId = format!("@{name}:elsewhere.test").try_into().unwrap();
        let auth = [&self.basis[0], &self.basis[1], joined];
        let content = json!({ "msgtype": "m.text", "body": number.to_string() });
        self.event(&[after], &user, "m.room.message", None, content, &auth)
    }

    /// A change of the power levels by the user of another homeserver, based on the last one.
    fn levels(&self, after: &Tip, last: &OwnedEventId, by: usize, number: usize) -> (Sent, Tip) {
        let user = self.servers[by].user.clone();
        let member = self.holder(&StateEventType::RoomMember, user.as_str());
        let users = self.servers.iter().map(|server| (server.user.to_string(), json!(100)));
        let users: serde_json::Map<_, _> = users.collect();
        let auth = [&self.basis[0], last, &member];
        let content = json!({ "users": users, "events": { "m.some": number % 100 } });
        self.event(&[after], &user, "m.room.power_levels", Some(""), content, &auth)
    }

    /// Two branches, each of `many` changes of the power levels.
    async fn fork_of_levels(&mut self, many: usize) -> [Tip; 2] {
        let start = self.tip();
        let mut tips = [start.clone(), start];
        let mut last = [self.basis[1].clone(), self.basis[1].clone()];
        for number in 0..many {
            for branch in 0..2 {
                let (sent, tip) =
                    self.levels(&tips[branch], &last[branch], branch + 1, 2 * number + branch);
                last[branch] = tip.event.clone();
                tips[branch] = tip;
                assert_eq!(self.hear(sent).await, ReceiveOutcome::Accepted);
            }
        }
        tips
    }

    /// The payload bytes of all records.
    pub(super) fn logged(&self) -> usize {
        let records = self.servers[0].log.read(Offset::new(1), usize::MAX).unwrap();
        records.iter().map(|record| record.header.payload_len as usize).sum()
    }
}

pub(super) fn on_one_thread<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

#[test]
fn the_cost_of_a_message_does_not_grow_with_its_branch() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut room = runtime.block_on(Room::begin());
    let tips = runtime.block_on(room.fork_of_levels(60));
    let user = room.servers[1].user.clone();
    let member = room.holder(&StateEventType::RoomMember, user.as_str());
    let mut tip = tips[0].clone();
    for number in 0..10 {
        let auth = [&room.basis[0], &room.basis[1], &member];
        let content = json!({ "body": number });
        let (sent, next) = room.event(&[&tip], &user, "m.room.message", None, content, &auth);
        tip = next;
        let (taken, looks) = work::counted(|| runtime.block_on(room.hear(sent)));
        assert_eq!(taken, ReceiveOutcome::Accepted);
        assert!(looks < 60, "{number}: {looks} for a message");
    }
}

/// The cost of another change of the power levels, on two branches of `many` each.
fn cost_of_levels(many: usize) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut room = runtime.block_on(Room::begin());
    let tips = runtime.block_on(room.fork_of_levels(many));
    let last = tips[0].event.clone();
    let (sent, _) = room.levels(&tips[0], &last, 1, 2 * many);
    let (taken, looks) = work::counted(|| runtime.block_on(room.hear(sent)));
    assert_eq!(taken, ReceiveOutcome::Accepted);
    the_current_state_equals_the_reference(&room.servers[0], &room.room_id);
    looks
}

/// Like [`every_state_equals_the_reference`], for the last event.
pub(super) fn the_current_state_equals_the_reference(server: &Homeserver, room_id: &OwnedRoomId) {
    let (state, events) = (server.engine.state(), server.engine.events());
    let room = state.rooms.get(room_id).unwrap();
    let last = *server.timeline(room_id).last().unwrap();
    let event = events.get(last).unwrap().unwrap();
    let reference = state_by_reference(&state, events, &room, &event).unwrap();
    let reference = reference
        .into_iter()
        .map(|((event_type, state_key), event_id)| ((event_type.to_string(), state_key), event_id));
    assert_eq!(server.state(room_id), reference.collect());
}

#[test]
fn the_cost_of_resolution_is_linear_in_the_difference_of_the_branches() {
    let (short, long) = (cost_of_levels(100), cost_of_levels(200));
    assert!(long < 2 * short + 100, "{short} for 200 events, {long} for 400");
    assert!(long < 10 * 400, "{long} for 400 events");
}

#[test]
fn a_long_resolution_does_not_hold_up_the_room() {
    on_one_thread(async {
        let mut room = Room::begin().await;
        let tips = room.fork_of_levels(150).await;
        let last = tips[1].event.clone();
        let (sent, _) = room.levels(&tips[1], &last, 2, 1000);
        let receive = received(&room.room_id, sent);
        let server = &room.servers[0];
        let propose = || async {
            let taken = server.engine.propose(Origin::server(), receive.clone()).await;
            taken.unwrap().into_inner()
        };
        assert_eq!(propose().await, ReceiveOutcome::Unprepared);
        let before = server.log.read(Offset::new(1), usize::MAX).unwrap().len();
        let env = server.engine.env().clone();
        let (began, begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let prepared = std::thread::spawn({
            let receive = receive.clone();
            move || {
                receive.prepare(&env, &|| {
                    let _ = began.send(());
                    // Until the other end is dropped.
                    let _ = released.recv();
                    true
                });
            }
        });
        begun.recv().unwrap();
        // The resolution is in progress, and nobody waits for it, neither here nor elsewhere.
        assert!(server.send(&room.room_id, "m.room.message", None, json!({ "body": "x" })).await);
        let after = server.log.read(Offset::new(1), usize::MAX).unwrap().len();
        assert_eq!(after, before + 1);
        drop(release);
        prepared.join().unwrap();
        assert_eq!(propose().await, ReceiveOutcome::Accepted);
    });
}

#[test]
fn branches_take_little_more_disk_space_than_their_events() {
    on_one_thread(async {
        let mut room = Room::begin().await;
        let (start, before) = (room.tip(), room.logged());
        let mut branches = Vec::new();
        for branch in 0..5 {
            let name = format!("user{branch}x0");
            let (sent, tip) = room.join(&start, &name);
            assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
            branches.push((name, tip.event.clone(), tip));
        }
        for number in 1..60 {
            for (branch, (.., tip)) in branches.iter_mut().enumerate() {
                let (sent, next) = room.join(tip, &format!("user{branch}x{number}"));
                assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
                *tip = next;
            }
        }
        for _ in 0..20 {
            for (name, joined, tip) in &mut branches {
                let (sent, next) = room.message(&[tip], name, joined);
                assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
                *tip = next;
            }
        }
        // Two of them are merged again and again, each time differently.
        for _ in 0..20 {
            let (name, joined, _) = branches[0].clone();
            let tips = [&branches[0].2.clone(), &branches[1].2.clone()];
            let (sent, next) = room.message(&tips, &name, &joined);
            assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
            branches[0].2 = next;
            let (name, joined, tip) = &branches[1];
            let (sent, next) = room.message(&[tip], name, joined);
            assert_eq!(room.hear(sent).await, ReceiveOutcome::Accepted);
            branches[1].2 = next;
        }
        let logged = room.logged() - before;
        assert!(logged < 4 * room.sent, "{logged} bytes of {} sent", room.sent);
        the_current_state_equals_the_reference(&room.servers[0], &room.room_id);
        // Some states are recorded as differences.
        let log: &Arc<dyn Log> = &room.servers[0].log;
        let linked = log.read(Offset::new(1), usize::MAX).unwrap().into_iter().any(|record| {
            matches!(record.command(), Ok(Some(Command::RoomEvent(event)))
                if event.received.as_ref().and_then(|of| of.before.as_ref())
                    .is_some_and(|before| before.links > 10))
        });
        assert!(linked, "no state is recorded by what it differs in from the last one");
    });
}
