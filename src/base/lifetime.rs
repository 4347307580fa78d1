//! A rule for the lifetime of events, as the configuration has it.

use std::{fmt, str::FromStr};

use ruma::OwnedRoomId;

/// The lifetime of certain events, written `ROOM TYPE SECONDS`, with `*` for every room or type,
/// and `off` for events that do not expire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The room; `None` for every room.
    pub room_id: Option<OwnedRoomId>,
    /// The type; `None` for every type.
    pub event_type: Option<Box<str>>,
    /// The lifetime in seconds; `None` for events that do not expire.
    pub seconds: Option<u64>,
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
