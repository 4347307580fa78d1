//! The store under the log is lost; the archive alone gives the data back but for its last moment.

use std::fs;
use std::time::Duration;

use tempfile::TempDir;

use crate::crash::assert_verifies;
use crate::harness::{Random, TestServer, restore};
use crate::load::{History, Load};

/// How far behind the archive may be, as promised.
const WINDOW: Duration = Duration::from_secs(1);

/// What a busy machine may add to it: the archiver's own turn, and the way of an answer back to the
/// writer that notes the time.
const SLACK: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_log_is_rebuilt_from_the_archive_except_its_last_moment() {
    let mut random = Random::from_env("LOGCABIN_ARCHIVE_SEED");
    let mut server = TestServer::start().await;
    let mut load = Load::prepare(&server, 3, 2).await;
    // Longer than the window, so that there is something to find and something to miss.
    let after = 2 * (WINDOW + SLACK) + Duration::from_millis(random.between(0, 1_000));
    let killed = load.run_until_killed(&mut server, &mut random, after).await;

    let archive = server.data_dir().join("archive");
    fs::remove_dir_all(server.data_dir().join("log")).expect("the log is there to be deleted");
    let new = TempDir::new().expect("a temporary directory");
    let data_dir = new.path().join("data");
    restore(&archive, &data_dir);
    assert_verifies(&data_dir);

    let mut restored = TestServer::start_on(&data_dir).await;
    let mut kept = 0;
    let mut missing = 0;
    for room_id in &load.rooms {
        let mut user = load.users[0].clone();
        user.http = restored.http();
        let history = History::read(&user, room_id).await;
        history.assert_no_repeat(room_id);

        // What a watcher saw before is the order of the room, so one is a prefix of the other.
        for watcher in &load.watchers {
            let seen = watcher.seen.get(room_id).map_or(&[][..], Vec::as_slice);
            for (at, (before, after)) in seen.iter().zip(&history.messages).enumerate() {
                assert_eq!(before, after, "{room_id}: message {at} before and after the restore");
            }
        }
        for writer in load.writers.iter().filter(|writer| writer.room_id == *room_id) {
            let there = history.of(writer);
            for (number, message) in there.iter().enumerate() {
                assert_eq!(message.body, writer.text(number), "{}: a gap or a swap", writer.label);
                if let Some(event_id) = writer.acknowledged.get(number) {
                    assert_eq!(&message.event_id, event_id, "{}", message.body);
                }
            }
            let kept_here = there.len().min(writer.acknowledged.len());
            for (number, acknowledged_at) in
                writer.acknowledged_at.iter().enumerate().skip(kept_here)
            {
                let age = killed.saturating_duration_since(*acknowledged_at);
                assert!(
                    age <= WINDOW + SLACK,
                    "{} {number} was acknowledged {age:?} before the end and is not in the archive",
                    writer.label
                );
            }
            kept += kept_here;
            missing += writer.acknowledged.len() - kept_here;
        }
    }
    println!("{kept} acknowledged messages restored, {missing} of the last moment missing");
    assert!(kept > 0, "the archive had none of the acknowledged messages");

    // The restored server is a server: it takes the next message of each writer.
    let mut user = load.users[0].clone();
    user.http = restored.http();
    user.send_text(&load.rooms[0], "after-the-restore", "still here").await;
    restored.stop();
    assert_verifies(&data_dir);
}
