//! The room versions that this server knows.

use ruma::RoomVersionId;

/// The default version of new rooms.
pub const DEFAULT_ROOM_VERSION: RoomVersionId = RoomVersionId::V10;

/// The supported room versions, all stable.
pub const ROOM_VERSIONS: [RoomVersionId; 12] = [
    RoomVersionId::V1,
    RoomVersionId::V2,
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

/// Whether a room version is old: the ids of its events prove nothing about their content. Rooms of
/// such versions are kept, and ought to be upgraded.
pub const fn is_old(version: &RoomVersionId) -> bool {
    matches!(version, RoomVersionId::V1 | RoomVersionId::V2)
}

/// Whether a room version may be the default of new rooms.
pub fn is_for_new_rooms(version: &RoomVersionId) -> bool {
    ROOM_VERSIONS.contains(version) && !is_old(version)
}
