//! Bounds how many may do something at a time for each key.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places by key. A key that nobody holds a place of takes no memory.
pub struct KeyedSemaphore<K: Hash + Eq> {
    each: usize,
    keys: Mutex<HashMap<K, Arc<Semaphore>>>,
}

/// A place, until it is dropped.
pub struct KeyedPermit<K: Hash + Eq> {
    places: Arc<KeyedSemaphore<K>>,
    key: K,
    permit: Option<OwnedSemaphorePermit>,
}

impl<K: Hash + Eq + Clone> KeyedSemaphore<K> {
    pub fn new(each: usize) -> Self {
        Self { each, keys: Mutex::default() }
    }

    /// Waits for a place, first come, first served.
    pub async fn take(self: &Arc<Self>, key: K) -> KeyedPermit<K> {
        let of_key = {
            let mut keys = self.keys.lock();
            let of_key = keys.entry(key.clone());
            Arc::clone(of_key.or_insert_with(|| Arc::new(Semaphore::new(self.each))))
        };
        // If the wait is given up, this forgets the key.
        let mut place = KeyedPermit { places: Arc::clone(self), key, permit: None };
        // It is never closed.
        place.permit = of_key.acquire_owned().await.ok();
        place
    }
}

impl<K: Hash + Eq> Drop for KeyedPermit<K> {
    fn drop(&mut self) {
        self.permit = None;
        let mut keys = self.places.keys.lock();
        // Each place held and each wait has a reference, too.
        if keys.get(&self.key).is_some_and(|of_key| Arc::strong_count(of_key) == 1) {
            keys.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn each_key_has_its_places_and_is_forgotten_with_the_last() {
        let places = Arc::new(KeyedSemaphore::new(2));
        let held = [places.take("a").await, places.take("a").await];
        assert!(places.take("a").now_or_never().is_none());
        let other = places.take("b").now_or_never();
        assert!(other.is_some());
        drop(other);
        assert_eq!(places.keys.lock().len(), 1);
        let mut waiting = Box::pin(places.take("a"));
        assert!((&mut waiting).now_or_never().is_none());
        drop(held);
        let place = waiting.await;
        assert_eq!(places.keys.lock().len(), 1);
        // A cancelled wait leaves nothing behind, even if a place was free by then.
        let other = places.take("a").await;
        let mut waiting = Box::pin(places.take("a"));
        assert!((&mut waiting).now_or_never().is_none());
        drop((place, other));
        drop(waiting);
        assert!(places.keys.lock().is_empty());
    }
}
