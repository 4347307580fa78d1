//! Selects records: those of a room, of a user, of some kinds.

use std::str::FromStr;

use ruma::{OwnedRoomId, OwnedUserId};
use serde::Deserialize;

use logcabin_record::{Command, Record, Stream, command::KINDS};

/// A selection of records. An empty one selects all.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Those of this room: its events, receipts and typing notifications, its entry in the
    /// directory.
    pub room: Option<OwnedRoomId>,
    /// Those that this user caused or that concern the user.
    pub user: Option<UserStreams>,
    /// Those of these kinds.
    pub kinds: Kinds,
}

/// A user, with the streams that are about nobody else.
#[derive(Clone, Debug)]
pub struct UserStreams {
    user_id: OwnedUserId,
    streams: [Stream; 3],
}

impl From<OwnedUserId> for UserStreams {
    fn from(user_id: OwnedUserId) -> Self {
        let streams =
            [Stream::user(&user_id), Stream::presence(&user_id), Stream::delayed(&user_id)];
        Self { user_id, streams }
    }
}

/// Kinds of records, as text: names of kinds and beginnings of names (`room.*`), with commas
/// between them. An empty text stands for all.
#[derive(Clone, Debug, Default)]
pub struct Kinds(Option<Vec<&'static str>>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no kind of records has the name `{0}`")]
pub struct NoSuchKind(pub String);

impl FromStr for Kinds {
    type Err = NoSuchKind;

    fn from_str(text: &str) -> Result<Self, NoSuchKind> {
        let mut chosen = Vec::new();
        for pattern in text.split(',').map(str::trim).filter(|pattern| !pattern.is_empty()) {
            let fits = |name: &str| match pattern.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == pattern,
            };
            let before = chosen.len();
            let fitting = KINDS.iter().map(|kind| kind.name).filter(|name| fits(name));
            chosen.extend(fitting);
            if chosen.len() == before {
                return Err(NoSuchKind(pattern.to_owned()));
            }
            // Without repetitions, there are at most as many as there are kinds.
            chosen.sort_unstable();
            chosen.dedup();
        }
        Ok(Self((!chosen.is_empty()).then_some(chosen)))
    }
}

impl Selection {
    /// Whether it chooses all records.
    pub const fn is_all(&self) -> bool {
        self.room.is_none() && self.user.is_none() && self.kinds.0.is_none()
    }

    /// Whether it chooses this record.
    pub fn has(&self, record: &Record) -> bool {
        let header = &record.header;
        self.kinds.0.as_ref().is_none_or(|kinds| kinds.binary_search(&&*header.kind).is_ok())
            && self.room.as_deref().is_none_or(|room| header.stream.room_id() == Some(room))
            && self.user.as_ref().is_none_or(|user| user.concerns(record))
    }
}

impl UserStreams {
    fn concerns(&self, record: &Record) -> bool {
        /// What an event says of users, whatever else is left of it.
        #[derive(Deserialize)]
        struct EventUsers<'a> {
            #[serde(borrow)]
            sender: std::borrow::Cow<'a, str>,
            #[serde(borrow)]
            state_key: Option<std::borrow::Cow<'a, str>>,
        }
        let (header, user) = (&record.header, self.user_id.as_str());
        if *header.origin.user == *user || self.streams.contains(&header.stream) {
            return true;
        }
        let Ok(Some(Command::RoomEvent(event))) = record.command() else { return false };
        serde_json::from_str::<EventUsers<'_>>(event.pdu.get())
            .is_ok_and(|of| of.sender == user || of.state_key.as_deref() == Some(user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_in_full_or_by_their_beginning() {
        let names = |text: &str| text.parse::<Kinds>().unwrap().0;
        assert_eq!(names(""), None);
        assert_eq!(names("room.event"), Some(vec!["room.event"]));
        let of_rooms = names("room.*, user.register,room.event").unwrap();
        assert!(of_rooms.contains(&"room.event") && of_rooms.contains(&"user.register"));
        assert!(of_rooms.is_sorted() && !of_rooms.contains(&"device.login"), "{of_rooms:?}");
        assert_eq!(names("*").unwrap().len(), KINDS.len());
        for wrong in ["room", "room.event*x", "nothing.*"] {
            assert_eq!(wrong.parse::<Kinds>().unwrap_err(), NoSuchKind(wrong.to_owned()));
        }
    }
}
