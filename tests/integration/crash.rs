//! The server is killed with SIGKILL at random moments while several users write into several
//! rooms; after each restart nothing acknowledged is missing, doubled or out of order.
//!
//! `LOGCABIN_CRASH_ROUNDS` sets the number of rounds (default 20), `LOGCABIN_CRASH_SEED` repeats a
//! run's choices.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{
    Random, TestServer, Unreachable, User, alone, encode, number_from_env, run_logcabin, until_ok,
};
use crate::load::{History, Load, Message, Writer};

const USERS: usize = 4;
const ROOMS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_or_duplicated_when_the_server_is_killed() {
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

/// What is scheduled is sent once or, when it was called off, not at all, whenever the server is
/// killed: while it is scheduled, while it is being sent, or before it is known to have been.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduled_events_are_sent_once_when_the_server_is_killed() {
    let _alone = alone().await;
    let rounds = number_from_env("LOGCABIN_CRASH_ROUNDS", 20);
    let mut random = Random::from_env("LOGCABIN_CRASH_SEED");
    let mut server =
        TestServer::start_with(&[("LOGCABIN_DELAYED_EVENTS_MAX_PER_USER", "10000")]).await;
    let mut users = Vec::new();
    for number in 0..USERS {
        let user = server.register(&format!("user{number}")).await;
        let room_id = user.create_room(json!({})).await;
        users.push((user, room_id));
    }
    // By the text: whether it was called off before it was sent; `None` while that is not known.
    let mut fates: HashMap<String, Option<bool>> = HashMap::new();
    for round in 1..=rounds {
        let after = Duration::from_millis(random.between(20, 600));
        let until = Instant::now() + after;
        let writers = users.iter().enumerate().map(|(number, (user, room_id))| {
            let mut random = random.split();
            let (user, room_id) = (user.clone(), room_id.clone());
            tokio::spawn(async move {
                let mut fates = Vec::new();
                for count in 0.. {
                    let text = format!("{round}-{number}-{count}");
                    let delay_ms = random.between(1, 500);
                    let act = random.between(0, 3);
                    let Ok(delay_id) = schedule(&user, &room_id, &text, delay_ms).await else {
                        fates.push((text, None));
                        break;
                    };
                    let action = match act {
                        0 => "cancel",
                        1 => "send",
                        _ => "restart",
                    };
                    // `None`: whether it was done is not known, for the server is gone.
                    let done = act_on(&user, &delay_id, action).await;
                    let fate = match (action, done) {
                        ("cancel", Some(done)) => Some(done),
                        ("cancel", None) => None,
                        _ => Some(false),
                    };
                    fates.push((text, fate));
                    if done.is_none() {
                        break;
                    }
                }
                fates
            })
        });
        let writers: Vec<_> = writers.collect();
        tokio::time::sleep_until(until.into()).await;
        server.kill9();
        for writer in writers {
            fates.extend(writer.await.expect("a writer does not panic"));
        }
        server.restart().await;
        println!("round {round}: killed after {after:?}, {} scheduled so far", fates.len());
    }
    let mut called_off = 0;
    for (number, (user, room_id)) in users.iter().enumerate() {
        // What was not acknowledged is scheduled again under the same transaction id.
        let unknown = fates.iter().filter(|(text, fate)| {
            fate.is_none() && text.split('-').nth(1) == Some(&number.to_string())
        });
        for (text, _) in unknown {
            schedule(user, room_id, text, 1).await.expect("the server runs");
        }
        wait_until_nothing_is_scheduled(user).await;
        let history = History::read(user, room_id).await;
        history.assert_no_repeat(room_id);
        let there: HashSet<&str> = history.messages.iter().map(|m| m.body.as_str()).collect();
        assert_eq!(there.len(), history.messages.len(), "no text is there twice");
        for (text, fate) in &fates {
            if text.split('-').nth(1) != Some(&number.to_string()) {
                continue;
            }
            let sent = there.contains(text.as_str());
            // Whether the others were called off in time is not known.
            if let Some(cancelled) = fate {
                called_off += usize::from(*cancelled);
                assert_eq!(sent, !cancelled, "{text}");
            }
        }
    }
    assert!(fates.len() > called_off && called_off > 0, "{called_off} of {}", fates.len());
    server.stop();
    assert_verifies(server.data_dir());
}

const DELAYED: &str = "/_matrix/client/unstable/org.matrix.msc4140";

/// Schedules a text under a transaction id of its own; gives the delay's id.
async fn schedule(
    user: &User,
    room_id: &str,
    text: &str,
    delay_ms: u64,
) -> Result<String, Unreachable> {
    let path = format!("{DELAYED}/rooms/{}/delayed_event/m.room.message/{text}", encode(room_id));
    let content = json!({ "msgtype": "m.text", "body": text });
    let body = json!({ "delay": delay_ms, "content": content });
    let answer = user.http.try_request("PUT", &path, Some(&user.access_token), Some(&body)).await?;
    Ok(answer.ok_string("delay_id"))
}

/// Acts on a delayed event: whether it was done, or was too late; `None` if the server is gone.
async fn act_on(user: &User, delay_id: &str, action: &str) -> Option<bool> {
    let path = format!("{DELAYED}/delayed_events/{delay_id}/{action}");
    let answer = user.http.try_request("POST", &path, None, Some(&json!({}))).await.ok()?;
    assert!([200, 409].contains(&answer.status), "{answer}");
    Some(answer.status == 200)
}

async fn wait_until_nothing_is_scheduled(user: &User) {
    let path = format!("{DELAYED}/delayed_events?status=scheduled&since_ts=0");
    until_ok("nothing is scheduled", async || {
        let answer = user.http.request("GET", &path, Some(&user.access_token), None).await.ok();
        if answer["delayed_events"] == json!([]) { Ok(()) } else { Err(answer) }
    })
    .await;
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
