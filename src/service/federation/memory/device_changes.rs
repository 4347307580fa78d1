//! Device changes of users of other homeservers: their rate, and the changes that were not
//! recorded.

use std::{collections::HashMap, sync::Arc, time::Instant};

use parking_lot::Mutex;
use ruma::{OwnedUserId, UserId};

use logcabin_base::{limits, rate::Refundable};

/// The rate of device changes of users of other homeservers, and the device lists being fetched.
pub(crate) struct DeviceChanges {
    rate: Refundable<OwnedUserId>,
    /// The users whose devices are being fetched.
    fetches: Mutex<HashMap<OwnedUserId, Fetched>>,
}

#[derive(Default)]
struct Fetched {
    fetches: usize,
    /// The number of changes since then that were not recorded.
    passed_over: u64,
}

/// A fetch of users' devices, in progress until this is dropped.
pub(crate) struct Fetch {
    changes: Arc<DeviceChanges>,
    /// The users, each with the earlier number of unrecorded changes.
    users: Vec<(OwnedUserId, u64)>,
}

impl Default for DeviceChanges {
    fn default() -> Self {
        let rate = Refundable::new(limits::DEVICE_CHANGES);
        Self { rate, fetches: Mutex::default() }
    }
}

impl DeviceChanges {
    /// Counts a change; false if there are too many.
    pub(crate) fn admits(&self, user_id: &UserId) -> bool {
        self.rate.take(user_id.to_owned(), Instant::now()).is_ok()
    }

    /// Counts a change that may go unrecorded, because its list is stale. An answer in progress may
    /// lack it.
    pub(crate) fn pass_over(&self, user_id: &UserId) {
        if let Some(fetched) = self.fetches.lock().get_mut(user_id) {
            fetched.passed_over += 1;
        }
    }

    /// Marks the devices of these users as being fetched, until the result is dropped.
    pub(crate) fn fetch<'u>(
        self: &Arc<Self>,
        users: impl IntoIterator<Item = &'u OwnedUserId>,
    ) -> Fetch {
        let mut fetches = self.fetches.lock();
        let begun = users.into_iter().map(|user_id| {
            let fetched = fetches.entry(user_id.clone()).or_default();
            fetched.fetches += 1;
            (user_id.clone(), fetched.passed_over)
        });
        let users = begun.collect();
        drop(fetches);
        Fetch { changes: Arc::clone(self), users }
    }
}

impl Fetch {
    /// The users with unrecorded changes since the previous call.
    pub(crate) fn passed_over(&mut self) -> Vec<OwnedUserId> {
        let fetches = self.changes.fetches.lock();
        let mut of = Vec::new();
        for (user_id, before) in &mut self.users {
            let now = fetches.get(user_id).map_or(*before, |fetched| fetched.passed_over);
            if std::mem::replace(before, now) != now {
                of.push(user_id.clone());
            }
        }
        of
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        let mut fetches = self.changes.fetches.lock();
        for (user_id, _) in &self.users {
            if let Some(fetched) = fetches.get_mut(user_id) {
                fetched.fetches -= 1;
                if fetched.fetches == 0 {
                    fetches.remove(user_id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ruma::owned_user_id;

    use super::*;

    #[test]
    fn every_fetch_that_is_under_way_hears_of_a_change_that_was_passed_over() {
        let changes = Arc::new(DeviceChanges::default());
        let (pia, pat) = (owned_user_id!("@pia:peer"), owned_user_id!("@pat:peer"));
        changes.pass_over(&pia);
        let mut one = changes.fetch([&pia, &pat]);
        assert!(one.passed_over().is_empty(), "it was before the question");
        let mut other = changes.fetch([&pia]);
        changes.pass_over(&pia);
        assert_eq!(one.passed_over(), vec![pia.clone()]);
        assert!(one.passed_over().is_empty());
        assert_eq!(other.passed_over(), vec![pia.clone()]);
        drop(one);
        changes.pass_over(&pia);
        assert_eq!(other.passed_over(), [pia]);
        drop(other);
        assert!(changes.fetches.lock().is_empty());
    }
}
