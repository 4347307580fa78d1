//! Limits on calls, and on the tokens by which other services learn who somebody is.

use std::time::Duration;

use crate::rate::Rate;

/// How long an OpenID token is valid. Its recipient uses it at once.
pub const OPENID_TOKEN: Duration = Duration::from_secs(3600);

/// How long LiveKit may take to make a room. A person waits for the call.
pub const LIVEKIT_TIME: Duration = Duration::from_secs(5);

/// The largest answer of LiveKit, which describes one room.
pub const LIVEKIT_ANSWER_BYTES: usize = 64 * 1024;

/// How long a token is valid with which this server asks LiveKit, in seconds: enough for clocks
/// that differ a little.
pub const LIVEKIT_API_TOKEN_SECONDS: u64 = 60;

/// How long LiveKit keeps a room that nobody has entered, and one that all have left, in seconds.
pub const LIVEKIT_ROOM_SECONDS: (u32, u32) = (300, 20);

/// How often one user may show an OpenID token to get into calls, from whatever addresses.
pub const CALL_TOKENS: Rate = Rate::per_second(1, 30);

/// The names in a request to get into a call, each.
pub const CALL_NAME_BYTES: usize = 255;

/// An OpenID token of any homeserver, with room for those that hold a statement.
pub const FOREIGN_TOKEN_BYTES: usize = 4096;

/// What a homeserver says of the user of a token: an id, and what may come with it.
pub const FOREIGN_USER_INFO_BYTES: usize = 16 * 1024;

/// The token of another homeserver's LiveKit server.
pub const CALL_TOKEN_ANSWER_BYTES: usize = 16 * 1024;
