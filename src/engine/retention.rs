//! How long events live: what is configured, and what rooms wish (MSC1763).

use std::{fmt, str::FromStr};

use ruma::{OwnedRoomId, RoomId};

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
    /// What goes before all that: the first rule that fits an event.
    pub rules: Vec<Rule>,
}

/// How long certain events live, written `ROOM TYPE SECONDS`, with `*` for every room and every type, and
/// `off` for events that stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Of which room; `None` for every one.
    pub room_id: Option<OwnedRoomId>,
    /// Of which type; `None` for every one.
    pub event_type: Option<Box<str>>,
    /// How long, in seconds; `None` for ever.
    pub seconds: Option<u64>,
}

impl Retention {
    /// How long events of this type live, in milliseconds, in `room_id` (`None`: in a room of which no rule
    /// speaks by name) with the state event that asks for `own_ms`; `None`: for ever.
    #[must_use]
    pub fn lifetime_ms(
        &self,
        room_id: Option<&RoomId>,
        event_type: &str,
        own_ms: Option<u64>,
    ) -> Option<u64> {
        let fits = |rule: &&Rule| {
            rule.room_id.as_deref().is_none_or(|of| Some(of) == room_id)
                && rule.event_type.as_deref().is_none_or(|of| of == event_type)
        };
        if let Some(rule) = self.rules.iter().find(fits) {
            return rule.seconds.map(|seconds| seconds.saturating_mul(1000));
        }
        let within = |own: u64| own.min(self.highest_ms.unwrap_or(u64::MAX)).max(self.lowest_ms);
        own_ms.filter(|_| self.rooms_say).map(within).or(self.default_ms)
    }

    /// Whether a rule speaks of this room by name.
    #[must_use]
    pub fn names(&self, room_id: &RoomId) -> bool {
        self.rooms().any(|of| of == room_id)
    }

    /// The rooms of which rules speak by name.
    pub fn rooms(&self) -> impl Iterator<Item = &RoomId> {
        self.rules.iter().filter_map(|rule| rule.room_id.as_deref())
    }
}

impl FromStr for Rule {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let words: Vec<_> = text.split_whitespace().collect();
        let [room, event_type, seconds] = words[..] else { return Err(()) };
        let every = |word: &str| word == "*";
        let room_id = match room {
            room if every(room) => None,
            room => Some(OwnedRoomId::try_from(room).map_err(|_| ())?),
        };
        let event_type = (!every(event_type)).then(|| event_type.into());
        let seconds = match seconds {
            "off" => None,
            seconds => Some(seconds.replace('_', "").parse().map_err(|_| ())?),
        };
        Ok(Self { room_id, event_type, seconds })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let room = self.room_id.as_ref().map_or("*", |room_id| room_id.as_str());
        write!(f, "{room} {} ", self.event_type.as_deref().unwrap_or("*"))?;
        match self.seconds {
            Some(seconds) => write!(f, "{seconds}"),
            None => f.write_str("off"),
        }
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

    #[test]
    fn a_room_is_heard_within_bounds_and_one_that_says_nothing_has_the_default() {
        let plain = retention(&[]);
        let own = |own_ms| plain.lifetime_ms(None, "m.room.message", own_ms);
        assert_eq!([own(None), own(Some(5)), own(Some(50))], [Some(100), Some(10), Some(50)]);
        assert_eq!(own(Some(5000)), Some(1000));
        let deaf = Retention { rooms_say: false, ..plain.clone() };
        assert_eq!(deaf.lifetime_ms(None, "m.room.message", Some(5)), Some(100));
        let never = Retention { default_ms: None, ..plain };
        assert_eq!(never.lifetime_ms(None, "m.room.message", None), None);
    }

    #[test]
    fn the_first_rule_that_fits_goes_before_all_else() {
        let room = <&RoomId>::try_from("!r:x").unwrap();
        let with = retention(&["!r:x m.room.message off", "!r:x * 7", "* m.room.encrypted 3"]);
        let of = |room, kind| with.lifetime_ms(room, kind, Some(50));
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
