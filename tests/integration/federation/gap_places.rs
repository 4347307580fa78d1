//! Who reads history does not keep others from reading theirs.

use super::elsewhere::{Stage, stage, texts};
use crate::harness::{User, until};

const BACKFILL: &str = "/_matrix/federation/v1/backfill";

/// How many questions for gaps a user has under way, and one homeserver.
const OF_USER: usize = 2;
const OF_ORIGIN: usize = 4;

/// Joins rooms, and then reads in all of them at once.
async fn read_all(user: &User, rooms: &[Stage]) -> tokio::task::JoinSet<Vec<String>> {
    let mut ids = Vec::new();
    for room in rooms {
        ids.push(room.entered_by(user).await);
    }
    let mut reading = tokio::task::JoinSet::new();
    for room_id in ids {
        let user = user.clone();
        reading.spawn(async move { texts(&user, &room_id, "limit=10").await.0 });
    }
    reading
}

fn asked(stage: &Stage) -> usize {
    stage.peer.asked().iter().filter(|asked| asked.path.starts_with(BACKFILL)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_homeserver_that_does_not_answer_keeps_only_its_share_of_the_places() {
    let Some((authority, cabin, silent, ann)) = stage().await else { return };
    silent.peer.is_silent_on(&[BACKFILL]);
    // More gaps than there are places, of more users than share them.
    let mut reading = Vec::new();
    for number in 0..13 {
        let user = cabin.server.register(&format!("u{number}")).await;
        reading.push(read_all(&user, &[silent.another(), silent.another()]).await);
    }
    until("the silent homeserver has its share", async || asked(&silent) >= OF_ORIGIN).await;
    let honest = Stage::set(&authority).await;
    honest.say("old");
    let room_id = honest.entered_by(&ann).await;
    assert_eq!(texts(&ann, &room_id, "limit=10").await.0, ["old"]);
    assert_eq!(asked(&silent), OF_ORIGIN);
    for mut reading in reading {
        assert!(reading.try_join_next().is_none(), "ann did not wait for the others");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_keeps_only_their_share_of_the_places_and_reads_on_in_their_turn() {
    let Some((authority, cabin, honest, ann)) = stage().await else { return };
    honest.say("old");
    let mut silent = Vec::new();
    for _ in 0..OF_USER + 2 {
        let stage = Stage::set(&authority).await;
        stage.peer.is_silent_on(&[BACKFILL]);
        silent.push(stage);
    }
    let eve = cabin.server.register("eve").await;
    let mut reading = read_all(&eve, &silent).await;
    let all = || silent.iter().map(asked).sum::<usize>();
    until("eve has her share", async || all() >= OF_USER).await;
    let room_id = honest.entered_by(&ann).await;
    assert_eq!(texts(&ann, &room_id, "limit=10").await.0, ["old"]);
    assert_eq!(all(), OF_USER);
    assert!(reading.try_join_next().is_none(), "ann did not wait for eve");
    // All of eve's requests are answered, without what was not to be had.
    while let Some(read) = reading.join_next().await {
        assert_eq!(read.expect("a page"), [""; 0]);
    }
}
