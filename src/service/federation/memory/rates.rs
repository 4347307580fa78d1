//! Rates of actions of users of other homeservers that are not bounded by homeserver alone.

use std::time::{Duration, Instant};

use ruma::{OwnedRoomId, OwnedServerName, OwnedUserId, RoomId, ServerName, UserId};

use logcabin_base::{limits, rate::Refundable};

/// The rates of typing, receipts and presence: by homeserver, by user, and in all.
pub(crate) struct EphemeralRates {
    origins: Refundable<OwnedServerName>,
    users: Refundable<OwnedUserId>,
    /// Of homeservers that have shared rooms with this one for long, and of all others.
    all: Refundable<bool>,
}

impl Default for EphemeralRates {
    fn default() -> Self {
        let (of_origin, of_user) = limits::REMOTE_EPHEMERAL;
        Self {
            origins: Refundable::new(of_origin),
            users: Refundable::new(of_user),
            all: Refundable::new(limits::REMOTE_EPHEMERAL_IN_ALL),
        }
    }
}

impl EphemeralRates {
    /// Counts an EDU about a user of another homeserver, which may be a neighbour; false if it is
    /// over a rate.
    pub(crate) fn admits(&self, user_id: &UserId, is_neighbour: bool) -> bool {
        let now = Instant::now();
        // The homeserver first: if it is over its rate, its users are not counted, and it takes
        // nothing from others.
        self.origins.take(user_id.server_name().to_owned(), now).is_ok()
            && self.users.take(user_id.to_owned(), now).is_ok()
            && self.all.take(is_neighbour, now).is_ok()
    }
}

/// The rates of knocks on each room: by homeserver, and of all others.
pub(crate) struct Knocks {
    origins: Refundable<(OwnedRoomId, OwnedServerName)>,
    rooms: Refundable<OwnedRoomId>,
}

impl Default for Knocks {
    fn default() -> Self {
        let (of_origin, of_room) = limits::ROOM_KNOCK_RATES;
        Self { origins: Refundable::new(of_origin), rooms: Refundable::new(of_room) }
    }
}

impl Knocks {
    /// Counts a knock.
    ///
    /// # Errors
    /// How long to wait for the next.
    pub(crate) fn take(&self, room_id: &RoomId, server: &ServerName) -> Result<(), Duration> {
        let now = Instant::now();
        self.origins.take((room_id.to_owned(), server.to_owned()), now)?;
        self.rooms.take(room_id.to_owned(), now)
    }
}
