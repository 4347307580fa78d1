//! Removes the messages that every node has from the stream; one node at a time does this.
//!
//! The newest of them are kept, so that a node that was away for a moment continues without asking
//! another one. When content is erased from the log, all of them are overwritten and removed, once
//! every node has carried out the erasure.

use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use tokio::time::{Duration, sleep};
use tracing::{debug, info, warn};

use super::Nodes;
use crate::Cluster as _;
use logcabin_log::Log as _;
use logcabin_record::{
    Offset,
    command::{Body as _, LogErase},
};

const WORK: &str = "stream";

const EVERY: Duration = Duration::from_secs(5);

/// The number of messages that are kept although every node has them.
const KEPT: u64 = 10_000;

/// Messages are removed once there are this many more than [`KEPT`].
const SLACK: u64 = 1_000;

/// The most messages that are overwritten at once.
const AT_ONCE: usize = 16;

/// The most records that are read at once in search of erasures.
const RECORDS: usize = 1024;

/// Keeps the stream short until the server stops.
pub(super) async fn run(nodes: Arc<Nodes>) {
    let mut lease = Arc::clone(&nodes).lease(WORK);
    loop {
        tokio::select! {
            () = lease.held() => {}
            () = nodes.shutdown.given() => return,
        }
        tokio::select! {
            biased;
            () = lease.lost() => {}
            () = nodes.shutdown.given() => return,
            () = keep(&nodes) => {}
        }
    }
}

async fn keep(nodes: &Nodes) {
    // The node that did this before may not have overwritten all that was erased.
    let mut erasing = Some(*nodes.log.durable().borrow());
    let mut looked = *nodes.log.durable().borrow();
    loop {
        sleep(EVERY).await;
        match erasure_after(nodes, &mut looked) {
            Ok(found) => erasing = found.or(erasing),
            Err(error) => warn!(%error, "the log cannot be searched for erasures"),
        }
        let (sequence, offset) = nodes.everyone_has();
        let Ok(info) = nodes.log.stream_info().await else { continue };
        let first = info.state.first_sequence;
        if erasing.is_some_and(|erased| erased <= offset) {
            if overwrite(nodes, first, sequence).await {
                erasing = None;
            }
        } else if first + KEPT + SLACK <= sequence {
            remove(nodes, sequence - KEPT).await;
        }
    }
}

/// The last erasure after `looked`, which becomes the end of the log.
fn erasure_after(nodes: &Nodes, looked: &mut Offset) -> Result<Option<Offset>, String> {
    let mut found = None;
    loop {
        let records = nodes.log.read(looked.next(), RECORDS).map_err(|error| error.to_string())?;
        let Some(last) = records.last() else { return Ok(found) };
        *looked = last.offset();
        let erasure = |kind: &str| kind == LogErase::KIND.name;
        let erasures = records.iter().filter(|record| erasure(&record.header.kind));
        found = erasures.map(|record| record.offset()).last().or(found);
    }
}

/// Overwrites the messages from `first` to `last`, and removes them. Returns whether all of them
/// are gone.
async fn overwrite(nodes: &Nodes, first: u64, last: u64) -> bool {
    let overwritten = stream::iter(first..=last)
        .map(|sequence| nodes.log.overwrite(sequence))
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    if let Some(error) = overwritten.into_iter().find_map(Result::err) {
        debug!(%error, "erased content could not be removed from the stream; retrying");
        return false;
    }
    if first <= last {
        info!(messages = last + 1 - first, "overwrote the messages of erased content");
    }
    remove(nodes, last).await
}

/// Removes the messages up to `last`.
async fn remove(nodes: &Nodes, last: u64) -> bool {
    match nodes.log.remove_up_to(last).await {
        Ok(()) => true,
        Err(error) => {
            debug!(%error, "old messages could not be removed from the stream; retrying");
            false
        }
    }
}
