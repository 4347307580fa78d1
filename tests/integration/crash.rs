//! The server is killed with SIGKILL at random moments while several users write into several
//! rooms; after each restart nothing acknowledged is missing, doubled or out of order.
//!
//! `LOGCABIN_CRASH_ROUNDS` sets the number of rounds (default 20), `LOGCABIN_CRASH_SEED` repeats a
//! run's choices.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use crate::harness::{Random, TestServer, alone, number_from_env, run_logcabin};
use crate::load::{History, Load, Message, Writer};

const USERS: usize = 4;
const ROOMS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_or_doubled_when_the_server_is_killed() {
    let _alone = alone().await;
    let rounds = number_from_env("LOGCABIN_CRASH_ROUNDS", 20);
    let mut random = Random::from_env("LOGCABIN_CRASH_SEED");
    let mut server = TestServer::start().await;
    let mut load = Load::prepare(&server, USERS, ROOMS).await;
    let mut histories: HashMap<String, History> = HashMap::new();

    for round in 1..=rounds {
        let after = Duration::from_millis(random.between(20, 600));
        load.run_until_killed(&mut server, &mut random, after).await;
        // Every other round, so that the server too meets what a crash leaves, untouched.
        if round % 2 == 0 {
            assert_verifies(server.data_dir());
        }
        server.restart().await;

        read_news(&load, &mut histories).await;
        for writer in &load.writers {
            assert_acknowledged_are_there(writer, &histories[&writer.room_id], round);
        }

        // What was not acknowledged is sent again under the same transaction id: whether it had
        // reached the log or not, it is there once afterwards.
        for writer in &mut load.writers {
            if let Err(error) = writer.send_next().await {
                panic!("round {round}: no answer after the restart: {error}");
            }
        }
        read_news(&load, &mut histories).await;
        for writer in &load.writers {
            let there = event_ids(&histories[&writer.room_id].of(writer));
            assert!(
                there == writer.acknowledged,
                "round {round}: {}: the history has {there:?}, acknowledged were {:?}",
                writer.label,
                writer.acknowledged
            );
        }

        // The watchers go on from the token they had before the crash.
        for (number, watcher) in load.watchers.iter_mut().enumerate() {
            watcher.catch_up().await;
            for (room_id, history) in &histories {
                let seen = watcher.seen.get(room_id).map_or(&[][..], Vec::as_slice);
                assert_same(seen, &history.messages, &format!("round {round}: watcher {number}"));
            }
        }
        let total: usize = load.writers.iter().map(|writer| writer.acknowledged.len()).sum();
        println!("round {round}: killed after {after:?}, {total} messages acknowledged so far");
    }

    server.stop();
    assert_verifies(server.data_dir());
    server.restart().await;
    for (room_id, history) in &histories {
        let whole = History::read(&load.users[0], room_id).await;
        assert_same(
            &whole.messages,
            &history.messages,
            "at the end, read from one end to the other",
        );
    }
}

/// Reads what is new in each room and checks that nothing is there twice.
async fn read_news(load: &Load, histories: &mut HashMap<String, History>) {
    for (number, room_id) in load.rooms.iter().enumerate() {
        let reader = &load.users[(number + 1) % load.users.len()];
        let history = histories.entry(room_id.clone()).or_default();
        history.extend(reader, room_id).await;
        history.assert_no_repeat(room_id);
    }
}

/// Every acknowledged message is there, in the writer's order; beyond them there may be the one
/// that was under way when the server was killed.
fn assert_acknowledged_are_there(writer: &Writer, history: &History, round: u64) {
    let there = history.of(writer);
    let label = &writer.label;
    let acknowledged = writer.acknowledged.len();
    for (number, event_id) in writer.acknowledged.iter().enumerate() {
        let found = there.get(number);
        assert!(
            found.is_some_and(|message| message.event_id == *event_id),
            "round {round}: {label}: number {number} was acknowledged as {event_id}, \
             the history has {found:?} in its place"
        );
    }
    assert!(
        there.len() <= acknowledged + 1,
        "round {round}: {label}: {acknowledged} acknowledged, one under way, {} in the history",
        there.len()
    );
    if let Some(last) = there.get(acknowledged) {
        assert_eq!(last.body, writer.text(acknowledged), "round {round}: {label}");
    }
}

fn event_ids(messages: &[&Message]) -> Vec<String> {
    messages.iter().map(|message| message.event_id.clone()).collect()
}

/// Compares two lists of messages and names the first difference.
#[track_caller]
fn assert_same(left: &[Message], right: &[Message], claim: &str) {
    let differ = left.iter().zip(right).position(|(left, right)| left != right);
    let at = differ.unwrap_or_else(|| left.len().min(right.len()));
    assert!(
        differ.is_none() && left.len() == right.len(),
        "{claim}: {} and {} messages, and they differ at {at}: {:?} and {:?}",
        left.len(),
        right.len(),
        left.get(at),
        right.get(at)
    );
}

/// `logcabin verify` finds the data directory sound.
pub(crate) fn assert_verifies(data_dir: &Path) {
    let output = run_logcabin(["verify".as_ref(), "--data-dir".as_ref(), data_dir.as_os_str()]);
    assert!(
        output.status.success(),
        "`logcabin verify` ended with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
