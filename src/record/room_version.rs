//! The room versions that this server knows.

use ruma::RoomVersionId;

/// The default version of new rooms.
pub const DEFAULT_ROOM_VERSION: RoomVersionId = RoomVersionId::V10;

/// The supported room versions, all stable.
pub const ROOM_VERSIONS: [RoomVersionId; 10] = [
    RoomVersionId::V3,
    RoomVersionId::V4,
    RoomVersionId::V5,
    RoomVersionId::V6,
    RoomVersionId::V7,
    RoomVersionId::V8,
    RoomVersionId::V9,
    RoomVersionId::V10,
    RoomVersionId::V11,
    RoomVersionId::V12,
];
