//! How long events live: by the configuration, and by the rooms' own settings (MSC1763).

use std::{sync::Arc, time::Duration};

use ruma::RoomId;

use logcabin_base::clock::{Clock, millis};
pub use logcabin_base::lifetime::Rule;
use logcabin_read::events::{Lifetimes, StoredEvent};
use logcabin_state::{Room, lifetimes::RoomRetention};

/// How long events live.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Of rooms that say nothing, in milliseconds; `None`: for ever.
    pub default_ms: Option<u64>,
    /// Whether rooms are asked.
    pub rooms_say: bool,
    /// The shortest life that a room can ask for, in milliseconds.
    pub lowest_ms: u64,
    /// The longest, in milliseconds, if there is one.
    pub highest_ms: Option<u64>,
    /// Exceptions to all of these: the first rule that matches an event applies.
    pub rules: Vec<Rule>,
}

impl Retention {
    /// How long events of this type live, in milliseconds, in `room_id` (`None`: in a room of which
    /// no rule speaks by name) with the state event that asks for `own`; `None`: for ever.
    ///
    /// A room's own lifetime takes precedence over everything that applies to all rooms; only a
    /// rule that names the room takes precedence over it.
    pub fn lifetime_ms(
        &self,
        room_id: Option<&RoomId>,
        event_type: &str,
        own: RoomRetention,
    ) -> Option<u64> {
        let fits = |rule: &&Rule| {
            rule.room_id.as_deref().is_none_or(|of| Some(of) == room_id)
                && rule.event_type.as_deref().is_none_or(|of| of == event_type)
        };
        let own = if self.rooms_say { own } else { RoomRetention::default() };
        let rule = self.rules.iter().find(fits);
        let lifetime_ms = match rule {
            Some(rule) => rule.seconds.map(|seconds| seconds.saturating_mul(1000)),
            None => {
                let highest_ms = self.highest_ms.unwrap_or(u64::MAX);
                let within = |own_ms: u64| own_ms.min(highest_ms).max(self.lowest_ms);
                own.max_ms.map(within).or(self.default_ms)
            }
        };
        let is_named = rule.is_some_and(|rule| rule.room_id.is_some());
        let at_least = own.min_ms.filter(|_| !is_named).unwrap_or(0);
        lifetime_ms.map(|lifetime_ms| lifetime_ms.max(at_least))
    }

    /// How long an event lives that is no state, in milliseconds; `None`: for ever.
    fn of_event(&self, room: &Room, event: &StoredEvent) -> Option<u64> {
        // This is nearly always the case.
        if !self.any_ends(room) {
            return None;
        }
        self.lifetime_ms(Some(&room.id), &event.event_type.to_string(), room.lifetime())
    }

    fn any_ends(&self, room: &Room) -> bool {
        !self.rules.is_empty() || self.default_ms.is_some() || room.lifetime().max_ms.is_some()
    }

    /// The shortest life of an event of this room, in milliseconds; `None` if none ends.
    fn shortest_ms(&self, room: &Room) -> Option<u64> {
        if !self.any_ends(room) {
            return None;
        }
        // Types that no rule names live as one that nobody sends.
        let named = self.rules.iter().filter_map(|rule| rule.event_type.as_deref());
        let of = |event_type| self.lifetime_ms(Some(&room.id), event_type, room.lifetime());
        named.chain([""]).filter_map(of).min()
    }

    /// Whether a rule speaks of this room by name.
    pub fn names(&self, room_id: &RoomId) -> bool {
        self.rooms().any(|of| of == room_id)
    }

    /// The rooms of which rules speak by name.
    pub fn rooms(&self) -> impl Iterator<Item = &RoomId> {
        self.rules.iter().filter_map(|rule| rule.room_id.as_deref())
    }
}

/// What is erased, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepPolicy {
    /// How long the content of a redacted event stays in the log; `None`: for ever.
    pub redacted_after: Option<Duration>,
    /// How long events live.
    pub retention: Arc<Retention>,
    /// How long an uploaded file is kept that is nobody's picture and no room's; `None`: for ever.
    pub media_after: Option<Duration>,
    /// The time between two sweeps.
    pub every: Duration,
}

impl SweepPolicy {
    /// Erases at once whatever was redacted or superseded, and keeps all else.
    pub fn at_once() -> Self {
        Self {
            redacted_after: Some(Duration::ZERO),
            retention: Arc::default(),
            media_after: None,
            every: Duration::ZERO,
        }
    }

    /// The time up to which redactions are due.
    pub fn redacted_until(&self, now_ms: u64) -> Option<u64> {
        self.redacted_after.map(|after| now_ms.saturating_sub(millis(after)))
    }

    /// The time up to which files are due.
    pub fn media_until(&self, now_ms: u64) -> Option<u64> {
        self.media_after.map(|after| now_ms.saturating_sub(millis(after)))
    }
}

/// How long events live, by the clock.
pub struct RetentionClock {
    pub retention: Arc<Retention>,
    pub clock: Clock,
}

impl Lifetimes for RetentionClock {
    fn is_over(&self, room: &Room, event: &StoredEvent) -> bool {
        let Some(lifetime_ms) = self.retention.of_event(room, event) else { return false };
        event.lives_since_ms().saturating_add(lifetime_ms) <= self.clock.now_ms()
    }

    fn youngest_over_ms(&self, room: &Room) -> Option<u64> {
        let shortest_ms = self.retention.shortest_ms(room)?;
        Some(self.clock.now_ms().saturating_sub(shortest_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retention(rules: &[&str]) -> Retention {
        Retention {
            default_ms: Some(100),
            rooms_say: true,
            lowest_ms: 10,
            highest_ms: Some(1000),
            rules: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
        }
    }

    fn asks(max_ms: Option<u64>, min_ms: Option<u64>) -> RoomRetention {
        RoomRetention { max_ms, min_ms }
    }

    #[test]
    fn a_room_is_heard_within_bounds_and_one_that_says_nothing_has_the_default() {
        let plain = retention(&[]);
        let own = |max_ms| plain.lifetime_ms(None, "m.room.message", asks(max_ms, None));
        assert_eq!([own(None), own(Some(5)), own(Some(50))], [Some(100), Some(10), Some(50)]);
        assert_eq!(own(Some(5000)), Some(1000));
        let deaf = Retention { rooms_say: false, ..plain.clone() };
        assert_eq!(deaf.lifetime_ms(None, "m.room.message", asks(Some(5), Some(7000))), Some(100));
        let never = Retention { default_ms: None, ..plain };
        assert_eq!(never.lifetime_ms(None, "m.room.message", asks(None, Some(5))), None);
    }

    #[test]
    fn what_a_room_wants_kept_is_kept_unless_a_rule_names_the_room() {
        let room = <&RoomId>::try_from("!r:x").unwrap();
        let with = retention(&["!r:x * 7", "* m.room.encrypted 3"]);
        let of = |room, kind, min_ms| with.lifetime_ms(room, kind, asks(Some(50), Some(min_ms)));
        assert_eq!(of(None, "m.room.message", 70), Some(70));
        assert_eq!(of(None, "m.room.message", 20), Some(50));
        // More than the longest that can be asked for, more than a rule for all, and than the
        // default.
        assert_eq!(of(None, "m.room.message", 9000), Some(9000));
        assert_eq!(of(None, "m.room.encrypted", 9000), Some(9000));
        assert_eq!(with.lifetime_ms(None, "m.room.message", asks(None, Some(300))), Some(300));
        assert_eq!(of(Some(room), "m.room.message", 9000), Some(7000));
    }

    #[test]
    fn the_first_rule_that_fits_goes_before_all_else() {
        let room = <&RoomId>::try_from("!r:x").unwrap();
        let with = retention(&["!r:x m.room.message off", "!r:x * 7", "* m.room.encrypted 3"]);
        let of = |room, kind| with.lifetime_ms(room, kind, asks(Some(50), None));
        assert_eq!(of(Some(room), "m.room.message"), None);
        assert_eq!(of(Some(room), "m.room.encrypted"), Some(7000));
        assert_eq!(of(None, "m.room.encrypted"), Some(3000));
        assert_eq!(of(None, "m.room.message"), Some(50));
        assert!(with.names(room) && !with.names(<&RoomId>::try_from("!q:x").unwrap()));
    }

    #[test]
    fn a_rule_is_three_words() {
        for rule in ["* * off", "!r:x m.room.message 60", "* m.room.encrypted 0"] {
            assert_eq!(rule.parse::<Rule>().unwrap().to_string(), rule);
        }
        for bad in ["", "*", "* *", "* * x", "* * -1", "r:x * 5", "* * 5 6"] {
            assert!(bad.parse::<Rule>().is_err(), "{bad}");
        }
    }
}
