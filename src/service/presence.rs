//! Presence: from what devices do to what others see (client-server API, "Presence").
//!
//! What each device does is known here alone, in memory: which of them sync, and when each last did
//! something. A request changes that and goes on. What others are to see follows from it and from
//! time, and is handed out by [`Tracker::take_due`], to be recorded, only when it differs from what
//! they see, so that presence costs no record for each request. A restart forgets the devices:
//! those who were there are given the usual time to come back.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use parking_lot::Mutex;
use ruma::{DeviceId, OwnedDeviceId, OwnedUserId, UserId};
use tokio::sync::Notify;

use crate::{base::limits, config, record::command::PresenceState, state};

/// What there is to see of a user, as of a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// There, idle, or gone.
    pub(crate) presence: PresenceState,
    /// Whether the user did something just now.
    pub(crate) currently_active: bool,
    /// When the user last did something; 0: not known.
    pub(crate) last_active_ms: u64,
}

impl Seen {
    /// Whether others see a difference. While someone is active, how long ago the last thing was is
    /// not told (client-server API, "Last active ago").
    fn shows_as(&self, other: &Self) -> bool {
        (self.presence, self.currently_active) == (other.presence, other.currently_active)
    }
}

/// What every user's devices do.
#[derive(Debug)]
pub(crate) struct Tracker {
    /// After how long without doing anything a device is idle; `None` if there is no presence.
    times: Option<Times>,
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    idle_ms: u64,
    offline_ms: u64,
}

#[derive(Debug, Default)]
struct Inner {
    users: HashMap<OwnedUserId, User>,
    due: BTreeSet<(u64, OwnedUserId)>,
}

#[derive(Debug, Default)]
struct User {
    devices: BTreeMap<OwnedDeviceId, Device>,
    /// What was handed out last to be recorded, and when; `None` if it is not known to be.
    told: Option<Seen>,
    told_ms: u64,
    due_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Device {
    /// What the client said last.
    said: PresenceState,
    /// When the user last did something on it; 0: never.
    last_active_ms: u64,
    /// When it was last heard of.
    last_seen_ms: u64,
    /// How many syncs of it are under way.
    syncs: u32,
}

impl Device {
    fn presence(&self, now_ms: u64, times: Times) -> PresenceState {
        let gone = self.syncs == 0 && now_ms >= self.gone_ms(times);
        match self.said {
            _ if gone => PresenceState::Offline,
            PresenceState::Online if now_ms >= self.idle_ms(times) => PresenceState::Unavailable,
            said => said,
        }
    }

    fn is_active(&self, now_ms: u64, times: Times) -> bool {
        self.presence(now_ms, times) == PresenceState::Online && now_ms < self.quiet_ms()
    }

    const fn gone_ms(&self, times: Times) -> u64 {
        self.last_seen_ms.saturating_add(times.offline_ms)
    }

    const fn idle_ms(&self, times: Times) -> u64 {
        self.last_active_ms.saturating_add(times.idle_ms)
    }

    fn quiet_ms(&self) -> u64 {
        self.last_active_ms.saturating_add(millis(limits::CURRENTLY_ACTIVE))
    }
}

impl User {
    fn seen(&self, now_ms: u64, times: Times) -> Seen {
        let devices = || self.devices.values();
        Seen {
            presence: devices().map(|d| d.presence(now_ms, times)).max().unwrap_or_default(),
            currently_active: devices().any(|device| device.is_active(now_ms, times)),
            last_active_ms: devices().map(|device| device.last_active_ms).max().unwrap_or(0),
        }
    }

    /// When time alone may next change what there is to see.
    fn next_change_ms(&self, now_ms: u64, times: Times) -> Option<u64> {
        let of = |device: &Device| {
            let gone = (device.syncs == 0).then(|| device.gone_ms(times));
            let online = device.said == PresenceState::Online;
            let idle = online.then(|| device.idle_ms(times));
            let quiet = online.then(|| device.quiet_ms());
            [gone, idle, quiet].into_iter().flatten().filter(|at_ms| *at_ms > now_ms).min()
        };
        self.devices.values().filter_map(of).min()
    }
}

/// The device that stands for those which a restart made the server forget: no real one is named
/// so.
fn before_the_restart() -> OwnedDeviceId {
    "".into()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Tracker {
    /// A tracker by these settings, after a restart: those who are `around` have until the usual
    /// time has passed to come back.
    pub(crate) fn new(
        config: &config::Presence,
        around: impl IntoIterator<Item = (OwnedUserId, state::presence::Shown)>,
        now_ms: u64,
    ) -> Self {
        let times = config.enabled.then(|| Times {
            idle_ms: config.idle_seconds.saturating_mul(1000),
            offline_ms: config.offline_seconds.saturating_mul(1000),
        });
        let tracker = Self { times, inner: Mutex::default(), changed: Notify::new() };
        for (user_id, shown) in around {
            let device = Device {
                said: shown.presence,
                last_active_ms: shown.last_active_ms,
                last_seen_ms: now_ms,
                syncs: 0,
            };
            let told = Seen {
                presence: shown.presence,
                currently_active: shown.currently_active,
                last_active_ms: shown.last_active_ms,
            };
            tracker.change(&user_id, now_ms, |user, _| {
                user.told = Some(told);
                user.devices.insert(before_the_restart(), device);
            });
        }
        tracker
    }

    /// Whether there is presence at all.
    pub(crate) const fn is_enabled(&self) -> bool {
        self.times.is_some()
    }

    /// A device begins a sync and says what it is to be shown as. [`PresenceState::Offline`] means
    /// that the sync says nothing.
    pub(crate) fn sync_begins(
        &self,
        user_id: &UserId,
        device_id: &DeviceId,
        said: PresenceState,
        now_ms: u64,
    ) {
        if said == PresenceState::Offline {
            return;
        }
        self.change(user_id, now_ms, |user, times| {
            user.devices.remove(&before_the_restart());
            let device = user.devices.entry(device_id.to_owned()).or_default();
            // To come, or to say so, is to do something. To sync on is not: a client that is left
            // alone does that.
            let news =
                device.said != said || device.presence(now_ms, times) == PresenceState::Offline;
            if news && said == PresenceState::Online {
                device.last_active_ms = now_ms;
            }
            device.said = said;
            device.last_seen_ms = now_ms;
            device.syncs += 1;
        });
    }

    /// A sync that began with something other than [`PresenceState::Offline`] has ended.
    pub(crate) fn sync_ends(&self, user_id: &UserId, device_id: &DeviceId, now_ms: u64) {
        self.change(user_id, now_ms, |user, _| {
            if let Some(device) = user.devices.get_mut(device_id) {
                device.syncs = device.syncs.saturating_sub(1);
                device.last_seen_ms = now_ms;
            }
        });
    }

    /// The user did something on a device: sent, read, typed. Nothing comes of it on a device that
    /// is not to be seen.
    pub(crate) fn active(&self, user_id: &UserId, device_id: &DeviceId, now_ms: u64) {
        self.change(user_id, now_ms, |user, times| {
            let Some(device) = user.devices.get_mut(device_id) else { return };
            if device.presence(now_ms, times) != PresenceState::Offline {
                device.said = PresenceState::Online;
                device.last_active_ms = now_ms;
                device.last_seen_ms = now_ms;
            }
        });
    }

    /// The user sets the presence of a device; gives what there is to see then, which the caller
    /// records. [`Tracker::recheck`] is to be called afterwards.
    pub(crate) fn set(
        &self,
        user_id: &UserId,
        device_id: &DeviceId,
        said: PresenceState,
        now_ms: u64,
    ) -> Seen {
        let mut seen = Seen::default();
        self.change(user_id, now_ms, |user, times| {
            user.devices.remove(&before_the_restart());
            let device = user.devices.entry(device_id.to_owned()).or_default();
            device.said = said;
            device.last_active_ms = now_ms;
            device.last_seen_ms = now_ms;
            seen = user.seen(now_ms, times);
            user.told = Some(seen);
            user.told_ms = now_ms;
        });
        seen
    }

    /// What was handed out may not have been recorded, or something older after it: it is handed
    /// out again at `at_ms`.
    pub(crate) fn recheck(&self, user_id: &UserId, at_ms: u64) {
        if !self.is_enabled() {
            return;
        }
        let mut inner = self.inner.lock();
        let user = inner.users.entry(user_id.to_owned()).or_default();
        user.told = None;
        self.set_due(&mut inner, user_id, Some(at_ms));
    }

    /// When the user last did something, as far as it is known here; 0: not.
    pub(crate) fn last_active_ms(&self, user_id: &UserId) -> u64 {
        let inner = self.inner.lock();
        let devices = inner.users.get(user_id).map(|user| user.devices.values());
        devices.into_iter().flatten().map(|device| device.last_active_ms).max().unwrap_or(0)
    }

    /// When there may next be something to hand out.
    pub(crate) fn next_due_ms(&self) -> Option<u64> {
        self.inner.lock().due.first().map(|(due_ms, _)| *due_ms)
    }

    /// Is notified when [`Tracker::next_due_ms`] becomes earlier.
    pub(crate) const fn changed(&self) -> &Notify {
        &self.changed
    }

    /// What there is to see of up to `limit` users of whom it may have changed, to be recorded.
    pub(crate) fn take_due(&self, now_ms: u64, limit: usize) -> Vec<(OwnedUserId, Seen)> {
        let Some(times) = self.times else { return Vec::new() };
        let mut taken = Vec::new();
        let mut inner = self.inner.lock();
        while taken.len() < limit
            && let Some((_, user_id)) = inner.due.first().filter(|(due, _)| *due <= now_ms).cloned()
        {
            let Some(user) = inner.users.get_mut(&user_id) else {
                inner.due.pop_first();
                continue;
            };
            let seen = user.seen(now_ms, times);
            let news = user.told.is_none_or(|told| !told.shows_as(&seen));
            if news {
                user.told = Some(seen);
                user.told_ms = now_ms;
            }
            user.devices.retain(|_, device| {
                device.syncs > 0 || device.presence(now_ms, times) != PresenceState::Offline
            });
            let next = user.next_change_ms(now_ms, times);
            let is_gone = user.devices.is_empty();
            self.set_due(&mut inner, &user_id, next);
            if is_gone {
                inner.users.remove(&user_id);
            }
            if news {
                taken.push((user_id, seen));
            }
        }
        taken
    }

    fn change(&self, user_id: &UserId, now_ms: u64, change: impl FnOnce(&mut User, Times)) {
        let Some(times) = self.times else { return };
        let mut inner = self.inner.lock();
        let new = !inner.users.contains_key(user_id);
        let user = inner.users.entry(user_id.to_owned()).or_default();
        if new {
            user.told = Some(Seen::default());
        }
        change(user, times);
        let is_told = user.told.is_some_and(|told| told.shows_as(&user.seen(now_ms, times)));
        let due_ms = if is_told {
            user.next_change_ms(now_ms, times)
        } else {
            Some(now_ms.max(user.told_ms.saturating_add(millis(limits::PRESENCE_REST))))
        };
        if user.devices.is_empty() && is_told {
            self.set_due(&mut inner, user_id, None);
            inner.users.remove(user_id);
        } else {
            self.set_due(&mut inner, user_id, due_ms);
        }
    }

    fn set_due(&self, inner: &mut Inner, user_id: &UserId, due_ms: Option<u64>) {
        let Some(user) = inner.users.get_mut(user_id) else { return };
        if user.due_ms == due_ms {
            return;
        }
        let before = std::mem::replace(&mut user.due_ms, due_ms);
        if let Some(before) = before {
            inner.due.remove(&(before, user_id.to_owned()));
        }
        if let Some(due_ms) = due_ms {
            let first = inner.due.first().is_none_or(|(first, _)| due_ms < *first);
            inner.due.insert((due_ms, user_id.to_owned()));
            if first {
                self.changed.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PresenceState::{Offline, Online, Unavailable};

    const S: u64 = 1000;

    fn ann() -> OwnedUserId {
        "@ann:test".try_into().unwrap()
    }

    /// A tracker, and the time at which the test begins.
    fn tracker() -> (Tracker, u64) {
        (Tracker::new(&config::Presence::default(), [], 0), 1_700_000_000_000)
    }

    fn begins(tracker: &Tracker, device: &str, said: PresenceState, now_ms: u64) {
        tracker.sync_begins(&ann(), device.into(), said, now_ms);
    }

    fn ends(tracker: &Tracker, device: &str, now_ms: u64) {
        tracker.sync_ends(&ann(), device.into(), now_ms);
    }

    /// All that is handed out until `until_ms`: when, and what.
    fn told(tracker: &Tracker, until_ms: u64) -> Vec<(u64, PresenceState, bool)> {
        let mut told = Vec::new();
        while let Some(due_ms) = tracker.next_due_ms().filter(|due_ms| *due_ms <= until_ms) {
            let taken = tracker.take_due(due_ms, 10).into_iter();
            told.extend(taken.map(|(_, seen)| (due_ms, seen.presence, seen.currently_active)));
        }
        told
    }

    #[test]
    fn one_who_syncs_and_does_nothing_becomes_quiet_then_idle_and_in_the_end_is_gone() {
        let (tracker, t) = tracker();
        begins(&tracker, "A", Online, t);
        assert_eq!(told(&tracker, t), [(t, Online, true)]);
        // Another sync every 30 seconds makes no difference.
        for n in 1..=12 {
            ends(&tracker, "A", t + n * 30 * S);
            begins(&tracker, "A", Online, t + n * 30 * S);
            let expected: &[_] = match n {
                2 => &[(t + 60 * S, Online, false)],
                10 => &[(t + 300 * S, Unavailable, false)],
                _ => &[],
            };
            assert_eq!(told(&tracker, t + n * 30 * S), expected, "{n}");
        }
        ends(&tracker, "A", t + 400 * S);
        assert_eq!(told(&tracker, t + 429 * S), []);
        assert_eq!(told(&tracker, t + 430 * S), [(t + 430 * S, Offline, false)]);
        assert!(tracker.inner.lock().users.is_empty());
        assert_eq!(tracker.next_due_ms(), None);
    }

    #[test]
    fn a_sync_that_is_waited_for_keeps_one_there() {
        let (tracker, t) = tracker();
        begins(&tracker, "A", Unavailable, t);
        assert_eq!(told(&tracker, t + 3600 * S), [(t, Unavailable, false)]);
    }

    #[test]
    fn doing_things_costs_nothing_while_one_is_active() {
        let (tracker, t) = tracker();
        begins(&tracker, "A", Online, t);
        assert_eq!(told(&tracker, t).len(), 1);
        for n in 1..100 {
            tracker.active(&ann(), "A".into(), t + n * 10 * S);
            assert_eq!(told(&tracker, t + n * 10 * S), []);
        }
        assert_eq!(tracker.last_active_ms(&ann()), t + 990 * S);
        assert_eq!(told(&tracker, t + 1050 * S), [(t + 1050 * S, Online, false)]);
        tracker.active(&ann(), "A".into(), t + 1051 * S);
        assert_eq!(told(&tracker, t + 1052 * S), [(t + 1051 * S, Online, true)]);
    }

    #[test]
    fn the_busiest_device_is_what_others_see() {
        let (tracker, t) = tracker();
        begins(&tracker, "A", Unavailable, t);
        assert_eq!(told(&tracker, t), [(t, Unavailable, false)]);
        begins(&tracker, "B", Online, t + 2 * S);
        assert_eq!(told(&tracker, t + 2 * S), [(t + 2 * S, Online, true)]);
        ends(&tracker, "B", t + 3 * S);
        assert_eq!(told(&tracker, t + 40 * S), [(t + 33 * S, Unavailable, false)]);
        // Doing something on the idle one makes it busy.
        tracker.active(&ann(), "A".into(), t + 41 * S);
        assert_eq!(told(&tracker, t + 41 * S), [(t + 41 * S, Online, true)]);
    }

    #[test]
    fn a_sync_as_offline_says_nothing_and_neither_does_what_is_done_there() {
        let (tracker, t) = tracker();
        begins(&tracker, "A", Offline, t);
        tracker.active(&ann(), "A".into(), t);
        assert_eq!(told(&tracker, t + 10 * S), []);
        assert!(tracker.inner.lock().users.is_empty());
    }

    #[test]
    fn one_who_flips_is_told_of_once_a_second_at_most_unless_they_set_it() {
        let (tracker, t) = tracker();
        let mut count = 0;
        for n in 0..1000 {
            let said = if n % 2 == 0 { Online } else { Unavailable };
            begins(&tracker, "A", said, t + n * 10);
            ends(&tracker, "A", t + n * 10);
            count += told(&tracker, t + n * 10).len();
        }
        assert!((5..=11).contains(&count), "{count}");
        let seen = tracker.set(&ann(), "A".into(), Unavailable, t + 10 * S);
        assert_eq!(seen.presence, Unavailable);
        assert_eq!(tracker.set(&ann(), "A".into(), Offline, t + 10 * S).presence, Offline);
        // Handed out already: nothing more to record, unless something came in between.
        assert_eq!(told(&tracker, t + 20 * S), []);
        tracker.recheck(&ann(), t + 21 * S);
        assert_eq!(told(&tracker, t + 21 * S), [(t + 21 * S, Offline, false)]);
    }

    #[test]
    fn those_who_do_not_come_back_after_a_restart_are_gone() {
        let t = 1_700_000_000_000;
        let shown = |presence| state::presence::Shown {
            presence,
            currently_active: presence == Online,
            last_active_ms: t - 10 * S,
            ..Default::default()
        };
        let bob: OwnedUserId = "@bob:test".try_into().unwrap();
        let around = [(ann(), shown(Online)), (bob.clone(), shown(Unavailable))];
        let tracker = Tracker::new(&config::Presence::default(), around, t);
        begins(&tracker, "A", Online, t + S);
        assert_eq!(told(&tracker, t + 29 * S), []);
        assert_eq!(tracker.take_due(t + 30 * S, 10).len(), 1);
        assert!(!tracker.inner.lock().users.contains_key(&bob));
        let users: Vec<_> = tracker.inner.lock().users.keys().cloned().collect();
        assert_eq!(users, [ann()]);
    }

    #[test]
    fn without_presence_nothing_is_kept() {
        let config = config::Presence { enabled: false, ..Default::default() };
        let tracker = Tracker::new(&config, [(ann(), Default::default())], 0);
        begins(&tracker, "A", Online, 1);
        assert_eq!(tracker.set(&ann(), "A".into(), Online, 1), Seen::default());
        assert!(!tracker.is_enabled() && tracker.inner.lock().users.is_empty());
        assert_eq!(tracker.next_due_ms(), None);
    }
}
