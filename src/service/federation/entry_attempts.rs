//! Attempts to enter rooms of other homeservers.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use ruma::{OwnedRoomId, OwnedUserId};
use tokio::{
    sync::watch,
    task::{JoinError, JoinHandle},
};

use super::MembershipChange;

/// What a user does in which room.
type Entry = (OwnedUserId, OwnedRoomId, MembershipChange);

/// The outcome of an attempt, once there is one.
type Outcome<E> = Option<Result<(), Arc<E>>>;

/// The attempts to enter rooms of others that are in progress. A client that did not wait for the
/// end of one, and asks again, waits for the same one.
pub struct EntryAttempts<E>(Arc<Mutex<HashMap<Entry, watch::Receiver<Outcome<E>>>>>);

impl<E> Default for EntryAttempts<E> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<E: Send + Sync + 'static> EntryAttempts<E> {
    /// The attempt that is in progress, or else the one that this begins. `lost` is the error of
    /// one that panicked.
    pub fn run(
        &self,
        entry: Entry,
        lost: fn(JoinError) -> E,
        begin: impl FnOnce(Entry) -> JoinHandle<Result<(), E>>,
    ) -> watch::Receiver<Outcome<E>> {
        let mut all = self.0.lock();
        if let Some(running) = all.get(&entry) {
            return running.clone();
        }
        let (tell, running) = watch::channel(None);
        all.insert(entry.clone(), running.clone());
        drop(all);
        let (all, attempt) = (Arc::clone(&self.0), begin(entry.clone()));
        tokio::spawn(async move {
            let outcome = attempt.await.map_err(lost).and_then(|outcome| outcome);
            all.lock().remove(&entry);
            tell.send_replace(Some(outcome.map_err(Arc::new)));
        });
        running
    }
}
