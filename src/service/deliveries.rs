//! Messages under way that validate an address.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use logcabin_record::{
    command::TokenHash,
    threepid::{Purpose, Threepid},
};

/// The messages that are being sent, so that two concurrent requests send only one.
#[derive(Debug, Default)]
pub struct Deliveries(Mutex<HashMap<Key, Weak<Lock>>>);

type Key = (Threepid, Purpose, TokenHash);
type Lock = tokio::sync::Mutex<()>;

impl Deliveries {
    /// The lock of the message for this validation.
    pub fn lock(&self, key: Key) -> Arc<Lock> {
        let mut locks = self.0.lock();
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(&key).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(Lock::default());
        locks.insert(key, Arc::downgrade(&lock));
        lock
    }
}
