//! Every bound in the server, each with its reason.

/// An event in federation format, as canonical JSON with its signatures (client-server API, "Size
/// limits").
pub const EVENT_BYTES: usize = 65_536;

/// `sender`, `room_id`, `state_key`, `type` and `event_id` of an event (same place).
pub const EVENT_FIELD_BYTES: usize = 255;

/// Proposals decided in one turn. A turn occupies a thread while it decides, at some 100
/// microseconds for each; beyond this the disk sync is shared well enough.
pub const TURN_PROPOSALS: usize = 64;

/// Transaction ids: the specification sets no bound; identifiers of 255 bytes are the longest
/// anywhere else.
pub const TRANSACTION_ID_BYTES: usize = 255;
