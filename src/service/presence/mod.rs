//! Presence: from the activity of devices to what other users see (client-server API, "Presence").
//!
//! The activity of each device is known only here, in memory: which devices sync, and when each was
//! last active. A request updates that and goes on. What others see follows from it and from time.
//! [`Tracker::take_due`] returns it, to be recorded, only if it differs from what others see now,
//! so presence costs no record for each request. A restart forgets the devices: users who were
//! online get the usual time to come back.

pub mod writer;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use parking_lot::Mutex;
use ruma::{DeviceId, OwnedDeviceId, OwnedUserId, UserId};
use tokio::sync::Notify;

use logcabin_base::{clock::millis, limits};
use logcabin_config as config;
use logcabin_record::command::PresenceState;
use logcabin_state as state;

/// A user's visible presence at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VisiblePresence {
    pub(crate) presence: PresenceState,
    /// Whether the user is active now.
    pub(crate) currently_active: bool,
    /// When the user was last active; 0 if unknown.
    pub(crate) last_active_ms: u64,
}

impl VisiblePresence {
    /// Whether others see a difference. While a user is active, the time of the last activity is
    /// not shown (client-server API, "Last active ago").
    fn shows_as(&self, other: &Self) -> bool {
        (self.presence, self.currently_active) == (other.presence, other.currently_active)
    }
}

/// The activity of every user's devices.
#[derive(Debug)]
pub struct Tracker {
    /// After how much inactivity a device is idle; `None` if presence is off.
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
    /// What was last returned to be recorded, and when; `None` if it may not have been recorded.
    told: Option<VisiblePresence>,
    told_ms: u64,
    due_ms: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Device {
    /// What the client set last.
    said: PresenceState,
    /// When the user was last active on it; 0 for never.
    last_active_ms: u64,
    /// When it last sent a request.
    last_seen_ms: u64,
    /// How many syncs of it are open on each node, by the node's mark; 0 is a server that is alone.
    syncs: Vec<(u16, u32)>,
}

impl Device {
    fn presence(&self, now_ms: u64, times: Times) -> PresenceState {
        let gone = self.syncs.is_empty() && now_ms >= self.gone_ms(times);
        match self.said {
            _ if gone => PresenceState::Offline,
            PresenceState::Online if now_ms >= self.idle_ms(times) => PresenceState::Unavailable,
            said => said,
        }
    }

    fn is_active(&self, now_ms: u64, times: Times) -> bool {
        self.presence(now_ms, times) == PresenceState::Online && now_ms < self.quiet_ms()
    }

    fn begin_on(&mut self, node: u16) {
        match self.syncs.iter_mut().find(|(on, _)| *on == node) {
            Some((_, count)) => *count += 1,
            None => self.syncs.push((node, 1)),
        }
    }

    fn end_on(&mut self, node: u16) {
        if let Some((_, count)) = self.syncs.iter_mut().find(|(on, _)| *on == node) {
            *count -= 1;
        }
        self.syncs.retain(|(_, count)| *count > 0);
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
    fn seen(&self, now_ms: u64, times: Times) -> VisiblePresence {
        let devices = || self.devices.values();
        VisiblePresence {
            presence: devices().map(|d| d.presence(now_ms, times)).max().unwrap_or_default(),
            currently_active: devices().any(|device| device.is_active(now_ms, times)),
            last_active_ms: devices().map(|device| device.last_active_ms).max().unwrap_or(0),
        }
    }

    /// When time alone may next change the visible presence.
    fn next_change_ms(&self, now_ms: u64, times: Times) -> Option<u64> {
        let of = |device: &Device| {
            let gone = device.syncs.is_empty().then(|| device.gone_ms(times));
            let online = device.said == PresenceState::Online;
            let idle = online.then(|| device.idle_ms(times));
            let quiet = online.then(|| device.quiet_ms());
            [gone, idle, quiet].into_iter().flatten().filter(|at_ms| *at_ms > now_ms).min()
        };
        self.devices.values().filter_map(of).min()
    }
}

/// A device that stands for those that a restart forgot: no real device has this id.
fn before_the_restart() -> OwnedDeviceId {
    "".into()
}

impl Tracker {
    /// A tracker with these settings, after a restart: users in `around` have the usual time to
    /// come back.
    pub fn new(
        config: &config::Presence,
        around: impl IntoIterator<Item = (OwnedUserId, state::presence::UserPresence)>,
        now_ms: u64,
    ) -> Self {
        let times = config.enabled.then(|| Times {
            idle_ms: config.idle_seconds.saturating_mul(1000),
            offline_ms: config.offline_seconds.saturating_mul(1000),
        });
        let tracker = Self { times, inner: Mutex::default(), changed: Notify::new() };
        tracker.expect(around, now_ms);
        tracker
    }

    /// Gives these users the usual time to come back, unless they are here.
    fn expect(
        &self,
        around: impl IntoIterator<Item = (OwnedUserId, state::presence::UserPresence)>,
        now_ms: u64,
    ) {
        for (user_id, shown) in around {
            let device = Device {
                said: shown.presence,
                last_active_ms: shown.last_active_ms,
                last_seen_ms: now_ms,
                syncs: Vec::new(),
            };
            let told = VisiblePresence {
                presence: shown.presence,
                currently_active: shown.currently_active,
                last_active_ms: shown.last_active_ms,
            };
            self.change(&user_id, now_ms, |user, _| {
                if user.devices.is_empty() {
                    user.told = Some(told);
                    user.devices.insert(before_the_restart(), device);
                }
            });
        }
    }

    /// The nodes of the cluster have changed: forgets the syncs on nodes that are not `there`, and
    /// the users who are not this node's; and expects those of `around` who now are.
    pub(crate) fn nodes_changed(
        &self,
        there: &[u16],
        is_own: impl Fn(&UserId) -> bool,
        around: impl IntoIterator<Item = (OwnedUserId, state::presence::UserPresence)>,
        now_ms: u64,
    ) {
        let known: Vec<_> = self.inner.lock().users.keys().cloned().collect();
        for user_id in known {
            let is_own = is_own(&user_id);
            self.change(&user_id, now_ms, |user, _| {
                if is_own {
                    for device in user.devices.values_mut() {
                        device.syncs.retain(|(node, _)| there.contains(node));
                    }
                } else {
                    // Another node says what others see.
                    user.devices.clear();
                    user.told = Some(VisiblePresence::default());
                }
            });
        }
        self.expect(around.into_iter().filter(|(user_id, _)| is_own(user_id)), now_ms);
    }

    /// Whether presence is on.
    pub const fn is_enabled(&self) -> bool {
        self.times.is_some()
    }

    /// A device begins a sync on a node with this presence. [`PresenceState::Offline`] means that
    /// the sync sets nothing.
    pub fn sync_begins(
        &self,
        user_id: &UserId,
        device_id: &DeviceId,
        node: u16,
        said: PresenceState,
        now_ms: u64,
    ) {
        if said == PresenceState::Offline {
            return;
        }
        self.change(user_id, now_ms, |user, times| {
            user.devices.remove(&before_the_restart());
            let device = user.devices.entry(device_id.to_owned()).or_default();
            // Coming online counts as activity; continuing to sync does not, because clients do
            // that unattended.
            let news =
                device.said != said || device.presence(now_ms, times) == PresenceState::Offline;
            if news && said == PresenceState::Online {
                device.last_active_ms = now_ms;
            }
            device.said = said;
            device.last_seen_ms = now_ms;
            device.begin_on(node);
        });
    }

    /// A sync that set something other than [`PresenceState::Offline`] has ended.
    pub fn sync_ends(&self, user_id: &UserId, device_id: &DeviceId, node: u16, now_ms: u64) {
        self.change(user_id, now_ms, |user, _| {
            if let Some(device) = user.devices.get_mut(device_id) {
                device.end_on(node);
                device.last_seen_ms = now_ms;
            }
        });
    }

    /// The user was active on a device: sent, read, typed. Has no effect on a device that is set
    /// offline.
    pub fn active(&self, user_id: &UserId, device_id: &DeviceId, now_ms: u64) {
        self.change(user_id, now_ms, |user, times| {
            let Some(device) = user.devices.get_mut(device_id) else { return };
            if device.presence(now_ms, times) != PresenceState::Offline {
                device.said = PresenceState::Online;
                device.last_active_ms = now_ms;
                device.last_seen_ms = now_ms;
            }
        });
    }

    /// The user sets the presence of a device. Returns the visible presence, which the caller
    /// records. [`Tracker::recheck`] is to be called afterwards.
    pub fn set(
        &self,
        user_id: &UserId,
        device_id: &DeviceId,
        said: PresenceState,
        now_ms: u64,
    ) -> VisiblePresence {
        let mut seen = VisiblePresence::default();
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

    /// What was returned may not have been recorded, or an older state after it: it is returned
    /// again at `at_ms`.
    pub fn recheck(&self, user_id: &UserId, at_ms: u64) {
        if !self.is_enabled() {
            return;
        }
        let mut inner = self.inner.lock();
        let user = inner.users.entry(user_id.to_owned()).or_default();
        user.told = None;
        self.set_due(&mut inner, user_id, Some(at_ms));
    }

    /// When the user was last active, as far as it is known here; 0 for never.
    pub fn last_active_ms(&self, user_id: &UserId) -> u64 {
        let inner = self.inner.lock();
        let devices = inner.users.get(user_id).map(|user| user.devices.values());
        devices.into_iter().flatten().map(|device| device.last_active_ms).max().unwrap_or(0)
    }

    /// When there may next be something to record.
    pub(crate) fn next_due_ms(&self) -> Option<u64> {
        self.inner.lock().due.first().map(|(due_ms, _)| *due_ms)
    }

    /// Notified when [`Tracker::next_due_ms`] becomes earlier.
    pub(crate) const fn changed(&self) -> &Notify {
        &self.changed
    }

    /// The visible presence of up to `limit` users for whom it may have changed, to be recorded.
    pub(crate) fn take_due(
        &self,
        now_ms: u64,
        limit: usize,
    ) -> Vec<(OwnedUserId, VisiblePresence)> {
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
                !device.syncs.is_empty() || device.presence(now_ms, times) != PresenceState::Offline
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
            user.told = Some(VisiblePresence::default());
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
        tracker.sync_begins(&ann(), device.into(), 0, said, now_ms);
    }

    fn ends(tracker: &Tracker, device: &str, now_ms: u64) {
        tracker.sync_ends(&ann(), device.into(), 0, now_ms);
    }

    /// Everything that is returned until `until_ms`, with the time.
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
    fn when_a_node_goes_its_syncs_end_and_its_users_get_the_time_to_come_back() {
        let (tracker, t) = tracker();
        tracker.sync_begins(&ann(), "A".into(), 7, Online, t);
        tracker.sync_begins(&ann(), "A".into(), 8, Online, t);
        assert_eq!(told(&tracker, t), [(t, Online, true)]);
        tracker.nodes_changed(&[8], |_| true, [], t + S);
        tracker.sync_ends(&ann(), "A".into(), 7, t + S);
        assert_eq!(told(&tracker, t + 59 * S), [], "it syncs on the other node");
        tracker.sync_ends(&ann(), "A".into(), 8, t + 59 * S);
        // Another node takes the user over, and says what others see.
        tracker.nodes_changed(&[8], |_| false, [], t + 60 * S);
        assert_eq!(tracker.next_due_ms(), None);
        let shown = state::presence::UserPresence {
            presence: Online,
            currently_active: true,
            last_active_ms: t,
            ..state::presence::UserPresence::default()
        };
        let (other, _) = self::tracker();
        other.nodes_changed(&[8], |_| true, [(ann(), shown)], t + 60 * S);
        assert_eq!(told(&other, t + 89 * S), [(t + 60 * S, Online, false)]);
        assert_eq!(told(&other, t + 90 * S), [(t + 90 * S, Offline, false)]);
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
        // Activity on the idle device makes it busy.
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
        // Returned already: nothing more to record, unless something came in between.
        assert_eq!(told(&tracker, t + 20 * S), []);
        tracker.recheck(&ann(), t + 21 * S);
        assert_eq!(told(&tracker, t + 21 * S), [(t + 21 * S, Offline, false)]);
    }

    #[test]
    fn those_who_do_not_come_back_after_a_restart_are_gone() {
        let t = 1_700_000_000_000;
        let shown = |presence| state::presence::UserPresence {
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
        assert_eq!(tracker.set(&ann(), "A".into(), Online, 1), VisiblePresence::default());
        assert!(!tracker.is_enabled() && tracker.inner.lock().users.is_empty());
        assert_eq!(tracker.next_due_ms(), None);
    }
}
