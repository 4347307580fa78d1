//! Several nodes on one stream.

use std::path::Path;

use tempfile::TempDir;

use super::{testing::NatsServer, *};
use crate::{
    samples::{batch, payload, record, start, stream},
    store::SledOptions,
};

fn local(dir: &Path) -> Arc<SledLog> {
    let options = SledOptions { clock: Clock::manual(1_000), ..SledOptions::new(dir) };
    Arc::new(SledLog::open(options).unwrap())
}

async fn node(server: &NatsServer, dir: &Path) -> NatsLog {
    let log = NatsLog::open(local(dir), server.options("test")).await.unwrap();
    start(&log);
    log
}

fn records(log: &NatsLog) -> Vec<Record> {
    log.read(Offset::new(1), usize::MAX).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_have_the_same_records() {
    let Some(server) = NatsServer::start("all_nodes_have_the_same_records") else { return };
    let dirs = [(); 3].map(|()| TempDir::new().unwrap());
    let mut nodes = Vec::new();
    for dir in &dirs {
        nodes.push(Arc::new(node(&server, dir.path()).await));
    }
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..12_u64 {
        let log = Arc::clone(&nodes[writer as usize % 3]);
        writers.spawn(async move {
            let (mut at, mut won) = (Offset::ZERO, 0);
            while won < 20 {
                let expect = vec![(stream("room/hot"), at)];
                let records = vec![record("room/hot", payload(writer))];
                match log.append(Batch { expect, records }).await {
                    Ok(appended) => {
                        won += 1;
                        at = appended.last;
                    }
                    Err(AppendError::Conflict { actual, .. }) => {
                        assert!(log.get(actual).unwrap().is_some());
                        at = actual;
                    }
                    Err(other) => panic!("{other}"),
                }
                log.append(batch(&format!("room/{writer}"), 2)).await.unwrap();
            }
        });
    }
    while let Some(result) = writers.join_next().await {
        result.unwrap();
    }
    for node in &nodes {
        node.caught_up().await.unwrap();
    }
    let all = records(&nodes[0]);
    assert!(all.len() >= 12 * 20 * 3);
    let hot = all.iter().filter(|record| record.header.stream == stream("room/hot")).count();
    assert_eq!(hot, 12 * 20);
    for node in &nodes[1..] {
        assert_eq!(records(node), all);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away_catches_up() {
    let Some(server) = NatsServer::start("a_node_that_was_away_catches_up") else { return };
    let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (first, second) = (node(&server, one.path()).await, node(&server, two.path()).await);
    first.append(batch("a", 3)).await.unwrap();
    second.caught_up().await.unwrap();
    tokio::task::block_in_place(|| second.close());
    drop(second);
    first.append(batch("a", 3)).await.unwrap();
    let second = node(&server, two.path()).await;
    second.caught_up().await.unwrap();
    assert_eq!(records(&first), records(&second));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_are_newer_than_the_noted_position_are_recognised() {
    let Some(server) = NatsServer::start("records_that_are_newer") else { return };
    let dir = TempDir::new().unwrap();
    let log = node(&server, dir.path()).await;
    let noted = Position { stream: "test".to_owned(), ..Position::default() };
    let created = log.shared.stream.cached_info().created.to_string();
    for number in 0..5 {
        log.append(batch("a", 2)).await.unwrap();
        let stale = Batch {
            expect: vec![(stream("a"), Offset::new(1))],
            records: vec![record("a", payload(number))],
        };
        log.append(stale).await.unwrap_err();
    }
    let all = records(&log);
    tokio::task::block_in_place(|| log.close());
    drop(log);
    // As after a crash: the position was noted before the records.
    let log_dir = local(dir.path()).dir().to_owned();
    Position { created, ..noted }.write(&log_dir).unwrap();
    let log = node(&server, dir.path()).await;
    log.caught_up().await.unwrap();
    assert_eq!(records(&log), all);
    assert_eq!(log.append(batch("a", 1)).await.unwrap().first, Offset::new(11));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_with_other_records_is_not_followed() {
    let Some(server) = NatsServer::start("a_log_with_other_records") else { return };
    let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let first = node(&server, one.path()).await;
    first.append(batch("a", 3)).await.unwrap();
    let other = local(two.path());
    start(&*other);
    other.append(batch("b", 1)).await.unwrap();
    let refused = NatsLog::open(Arc::clone(&other), server.options("test")).await.unwrap_err();
    assert!(matches!(refused, NatsError::Foreign { .. }), "{refused}");

    // It claims to be at the beginning of the stream, and is not.
    let created = first.shared.stream.cached_info().created.to_string();
    let position = Position { stream: "test".to_owned(), created, ..Position::default() };
    position.write(other.dir()).unwrap();
    other.close();
    drop(other);
    let second = node(&server, two.path()).await;
    let mut failure = second.failure();
    let reason = failure.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    assert!(reason.contains("record 1 of this node is not in the stream"), "{reason}");
    assert!(matches!(second.append(batch("a", 1)).await, Err(AppendError::Failed(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_writes_are_refused_and_reads_go_on() {
    let Some(mut server) = NatsServer::start("without_a_server_writes_are_refused") else { return };
    let dir = TempDir::new().unwrap();
    let log = node(&server, dir.path()).await;
    log.append(batch("a", 2)).await.unwrap();
    server.kill();
    let refused = log.append(batch("a", 1)).await.unwrap_err();
    assert!(matches!(refused, AppendError::Unavailable(_)), "{refused}");
    assert_eq!(records(&log).len(), 2);
    server.restart();
    // A proposal that was given up may still have come to the stream, but does so once.
    let last = log.append(batch("b", 1)).await.unwrap().last.get();
    assert!(last == 3 || last == 4, "{last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_without_space_for_the_stream_are_told_what_to_set() {
    let Some(server) = NatsServer::start("servers_without_space_for_the_stream") else { return };
    let dir = TempDir::new().unwrap();
    let options = NatsOptions { max_bytes: 8 << 30, ..server.options("test") };
    let refused = NatsLog::open(local(dir.path()), options).await.unwrap_err().to_string();
    assert!(refused.contains("may take up 8589934592 bytes on each server"), "{refused}");
    assert!(refused.contains("`max_file_store`"), "{refused}");
}

/// What remains of the log of `from` is the same on `to`.
fn assert_same(from: &NatsLog, to: &NatsLog) {
    assert_eq!(records(from), records(to));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_copies_what_the_stream_no_longer_has_from_another_node() {
    let Some(server) = NatsServer::start("a_node_copies_what_the_stream") else { return };
    let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let first = node(&server, one.path()).await;
    for _ in 0..50 {
        first.append(batch("a", 3)).await.unwrap();
    }
    let taken = first.taken().borrow().sequence;
    // One message in the middle, then all of them.
    first.overwrite(7).await.unwrap();
    first.overwrite(7).await.unwrap();
    let second = node(&server, two.path()).await;
    second.caught_up().await.unwrap();
    assert_same(&first, &second);
    tokio::task::block_in_place(|| second.close());
    drop(second);

    first.append(batch("a", 2)).await.unwrap();
    first.remove_up_to(taken + 1).await.unwrap();
    first.append(batch("b", 2)).await.unwrap();
    let second = node(&server, two.path()).await;
    second.caught_up().await.unwrap();
    assert_same(&first, &second);
    // Both go on.
    second.append(batch("a", 1)).await.unwrap();
    first.caught_up().await.unwrap();
    assert_same(&first, &second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_needs_records_answers_no_node_not_even_itself() {
    let Some(server) = NatsServer::start("a_node_that_needs_records") else { return };
    let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let first = node(&server, one.path()).await;
    first.append(batch("a", 3)).await.unwrap();
    let taken = first.taken().borrow().sequence;
    first.append(batch("a", 3)).await.unwrap();
    first.remove_up_to(taken).await.unwrap();
    tokio::task::block_in_place(|| first.close());
    drop(first);
    let second = node(&server, two.path()).await;
    let ask = || peer::ask(&second.shared, Offset::ZERO, None);
    let mut lacks = second.shared.lacks_records.subscribe();
    lacks.wait_for(|lacks| *lacks).await.unwrap();
    // A server knows of a subscription that ends once it has answered what came after it.
    second.shared.jetstream.client().flush().await.unwrap();
    assert!(ask().await.is_err(), "it answers itself");
    let first = node(&server, one.path()).await;
    second.caught_up().await.unwrap();
    assert_same(&first, &second);
    assert!(matches!(ask().await, Ok(peer::Answer::Records { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_begins_with_the_log_that_it_was_made_of() {
    let Some(server) = NatsServer::start("a_stream_begins_with_the_log") else { return };
    let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let embedded = local(one.path());
    start(&*embedded);
    embedded.append(batch("a", 5)).await.unwrap();
    embedded.close();
    drop(embedded);
    let founding = NatsLog::found(local(one.path()), server.options("test")).await;
    // Interrupted and repeated.
    drop(founding.unwrap());
    drop(NatsLog::found(local(one.path()), server.options("test")).await.unwrap());
    let first = NatsLog::open(local(one.path()), server.options("test")).await.unwrap();
    let heads = [(stream("a"), Offset::new(5))].into_iter().collect();
    first.start(heads, Box::new(|_| ()));
    let second = node(&server, two.path()).await;
    second.caught_up().await.unwrap();
    assert_eq!(records(&second).len(), 5);
    second.append(batch("b", 2)).await.unwrap();
    first.caught_up().await.unwrap();
    assert_same(&first, &second);
    let again = NatsLog::found(local(TempDir::new().unwrap().path()), server.options("test"));
    assert!(matches!(again.await, Err(NatsError::Unfit(_))));
    tokio::task::block_in_place(|| first.close());
    first.dissolve().await.unwrap();
    drop(first);
    assert!(!local(one.path()).is_of_cluster());
}
