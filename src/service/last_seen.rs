//! When and from where each device was last used.
//!
//! Every request is noted in memory, at the cost of a look-up. At most once an hour for each device
//! (`devices.note_last_seen_seconds`), the uses of many devices are recorded together, so that
//! users can see which of their sessions are in use even after a restart.

use std::{net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use quick_cache::sync::Cache;
use ruma::{DeviceId, OwnedDeviceId, OwnedUserId, UserId};
use tracing::warn;

use logcabin_base::{limits, shutdown::Shutdown};
use logcabin_decide::device::NoteSeen;
use logcabin_engine::{Engine, ProposeError};
use logcabin_record::{Offset, Origin, command::Sighting};
use logcabin_state::{Device, State};

/// When and from where each device was last used.
#[derive(Debug)]
pub struct LastSeen {
    /// By the session of the device.
    devices: Cache<Offset, Arc<Mutex<Entry>>>,
    /// Sessions whose last use is to be recorded.
    due: Mutex<Vec<DueSighting>>,
    /// The pause between two records of a device; none if nothing is recorded.
    every_ms: Option<u64>,
}

/// How often other nodes are told of a device in use.
const TOLD_EVERY_MS: u64 = 60_000;

#[derive(Debug)]
struct Entry {
    sighting: Sighting,
    noted_ms: u64,
    told_ms: u64,
}

#[derive(Debug)]
struct DueSighting {
    session: Offset,
    user_id: OwnedUserId,
    device_id: OwnedDeviceId,
}

impl LastSeen {
    /// Empty; uses are recorded after so many seconds, or not at all with 0.
    pub fn new(every_seconds: u64) -> Self {
        Self {
            devices: Cache::new(limits::SEEN_DEVICES),
            due: Mutex::default(),
            every_ms: Some(every_seconds * 1000).filter(|every| *every > 0),
        }
    }

    /// Notes a request of a device: its user, its id, and its session.
    pub fn see(
        &self,
        state: &State,
        device: (&UserId, &DeviceId, Offset),
        address: IpAddr,
        agent: Option<&str>,
        now_ms: u64,
    ) {
        let (user_id, device_id, session) = device;
        // An application service that acts as a user without a device.
        if device_id.as_str().is_empty() {
            return;
        }
        let entry = self.devices.get(&session).unwrap_or_else(|| {
            let sighting = Sighting { seen_ms: now_ms, address, agent: None };
            let noted = state.seen.get(user_id, device_id);
            let noted_ms = noted.map_or(0, |noted| noted.seen_ms);
            let entry = Arc::new(Mutex::new(Entry { sighting, noted_ms, told_ms: 0 }));
            self.devices.insert(session, Arc::clone(&entry));
            entry
        });
        let mut entry = entry.lock();
        let Entry { sighting, noted_ms, .. } = &mut *entry;
        sighting.seen_ms = sighting.seen_ms.max(now_ms);
        sighting.address = address;
        let agent = agent.map(|agent| cut(agent, limits::AGENT_BYTES));
        if sighting.agent.as_deref() != agent {
            sighting.agent = agent.map(ToOwned::to_owned);
        }
        if self.every_ms.is_some_and(|every| now_ms >= noted_ms.saturating_add(every)) {
            *noted_ms = now_ms;
            drop(entry);
            let (user_id, device_id) = (user_id.to_owned(), device_id.to_owned());
            self.due.lock().push(DueSighting { session, user_id, device_id });
        }
    }

    /// The last use of the device with this session, to be told to other nodes: at most once a
    /// minute.
    pub fn to_tell(&self, session: Offset, now_ms: u64) -> Option<Sighting> {
        let entry = self.devices.get(&session)?;
        let mut entry = entry.lock();
        let is_due = now_ms.saturating_sub(entry.told_ms) >= TOLD_EVERY_MS;
        is_due.then(|| {
            entry.told_ms = now_ms;
            entry.sighting.clone()
        })
    }

    /// Notes what another node has told of the device with this session.
    pub fn seen_elsewhere(&self, session: Offset, told: Sighting) {
        match self.devices.get(&session) {
            Some(entry) => {
                let mut entry = entry.lock();
                entry.noted_ms = entry.noted_ms.max(told.seen_ms);
                if told.seen_ms > entry.sighting.seen_ms {
                    entry.sighting = told;
                }
            }
            None => {
                let entry = Entry { noted_ms: told.seen_ms, told_ms: told.seen_ms, sighting: told };
                self.devices.insert(session, Arc::new(Mutex::new(entry)));
            }
        }
    }

    /// When and from where this device was last used, as far as is known.
    pub fn of(
        &self,
        state: &State,
        user_id: &UserId,
        device_id: &DeviceId,
        device: &Device,
    ) -> Option<Sighting> {
        let entry = self.devices.get(&device.session);
        let sighting = entry.map(|entry| entry.lock().sighting.clone());
        sighting.or_else(|| state.seen.get(user_id, device_id))
    }

    /// The uses that are later than what is recorded of the device.
    fn unrecorded(&self, state: &State) -> Vec<(OwnedUserId, OwnedDeviceId, Sighting)> {
        // Looking through all accounts is as fast as it is rare.
        if self.every_ms.is_none() || self.devices.is_empty() {
            return Vec::new();
        }
        let mut unrecorded = Vec::new();
        for user_id in state.accounts.user_ids() {
            let Some(account) = state.accounts.get(&user_id) else { continue };
            for (device_id, device) in account.read().active_devices() {
                let Some(entry) = self.devices.get(&device.session) else { continue };
                let sighting = entry.lock().sighting.clone();
                let recorded = state.seen.get(&user_id, device_id).map(|seen| seen.seen_ms);
                if recorded.is_none_or(|recorded| recorded < sighting.seen_ms) {
                    unrecorded.push((user_id.clone(), device_id.to_owned(), sighting));
                }
            }
        }
        unrecorded
    }

    /// What is to be recorded now.
    fn take_due(&self) -> Vec<(OwnedUserId, OwnedDeviceId, Sighting)> {
        let due = std::mem::take(&mut *self.due.lock());
        let sighted = |DueSighting { session, user_id, device_id }| {
            let entry = self.devices.get(&session)?;
            let sighting = entry.lock().sighting.clone();
            Some((user_id, device_id, sighting))
        };
        due.into_iter().filter_map(sighted).collect()
    }
}

/// Records every use that has no record yet. To be called when no more requests are answered and
/// the log still takes records: after a restart, what is known is what was recorded.
pub async fn note_all(seen: &LastSeen, engine: &Engine) {
    let unrecorded = seen.unrecorded(&engine.state());
    let noting = async {
        for some in unrecorded.chunks(limits::SEEN_BATCH) {
            engine.propose(Origin::server(), NoteSeen(some.to_vec())).await?.into_inner();
        }
        Ok::<_, ProposeError>(())
    };
    match tokio::time::timeout(limits::SEEN_LAST, noting).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(%error, "the last use of devices could not be recorded"),
        Err(_) => warn!("recording the last use of devices took too long"),
    }
}

/// The first `most` bytes of a text, or less, so that no character is cut.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Records the uses that are due, every minute, until the server shuts down.
pub async fn keep(seen: Arc<LastSeen>, engine: Arc<Engine>, shutdown: Shutdown) {
    let Some(every_ms) = seen.every_ms else { return };
    let tick = limits::SEEN_TICK.min(Duration::from_millis(every_ms));
    loop {
        tokio::select! {
            () = tokio::time::sleep(tick) => {}
            () = shutdown.given() => return,
        }
        for some in seen.take_due().chunks(limits::SEEN_BATCH) {
            match engine.propose(Origin::server(), NoteSeen(some.to_vec())).await {
                Ok(noted) => noted.into_inner(),
                // The disk may be full. It is recorded the next time.
                Err(error) => warn!(%error, "the last use of devices could not be recorded"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ruma::{device_id, user_id};

    use super::*;

    fn phone() -> (&'static UserId, &'static DeviceId, Offset) {
        (user_id!("@ann:test"), device_id!("PHONE"), Offset::new(1))
    }

    #[test]
    fn a_device_in_constant_use_is_recorded_once_in_each_period() {
        let (seen, state) = (LastSeen::new(10), State::default());
        let home = IpAddr::from([10, 0, 0, 1]);
        let mut recorded = Vec::new();
        for second in 0..35 {
            seen.see(&state, phone(), home, Some("client"), 1_000_000 + second * 1000);
            let due = seen.take_due();
            recorded.extend(due.into_iter().map(|(_, _, sighting)| sighting.seen_ms));
        }
        assert_eq!(recorded, [1_000_000, 1_010_000, 1_020_000, 1_030_000]);
    }

    #[test]
    fn what_is_unrecorded_is_of_existing_devices() {
        let seen = LastSeen::new(3600);
        assert!(seen.unrecorded(&State::default()).is_empty());
        let home = IpAddr::from([10, 0, 0, 1]);
        seen.see(&State::default(), phone(), home, None, 1_000_000);
        // There is no such account any more.
        assert!(seen.unrecorded(&State::default()).is_empty());
    }

    #[test]
    fn without_a_period_nothing_is_recorded() {
        let (seen, state) = (LastSeen::new(0), State::default());
        seen.see(&state, phone(), IpAddr::from([10, 0, 0, 1]), None, 1_000_000);
        assert!(seen.take_due().is_empty());
    }

    #[test]
    fn what_a_client_calls_itself_is_cut_between_characters() {
        let (seen, state) = (LastSeen::new(1), State::default());
        let agent = "ä".repeat(limits::AGENT_BYTES);
        seen.see(&state, phone(), IpAddr::from([10, 0, 0, 1]), Some(&agent), 1_000_000);
        let (_, _, sighting) = seen.take_due().remove(0);
        assert_eq!(sighting.agent.map(|agent| agent.len()), Some(limits::AGENT_BYTES));
    }
}
