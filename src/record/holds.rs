//! The personal data in each kind of command: what users wrote, their names, addresses, keys and
//! pictures.
//!
//! Ids (of users, devices, rooms, events, files), times, and which of them belong together do not
//! count: the history could not do without them. Personal data is erased with the user or the room
//! (`service::erasure`); [`remains`] defines what is left.
//!
//! [`remains`]: super::remains

use ruma::{RoomId, UserId};

use super::{
    command::{RoomEvent, ToDeviceSend},
    threepid::Threepid,
};

/// Whose personal data a command contains.
#[derive(Debug)]
pub enum Holds<'c> {
    Nothing,
    /// This user's.
    Of(&'c UserId),
    OfBoth(&'c UserId, &'c UserId),
    /// An address, of the user who has or had it.
    Address(&'c Threepid),
    /// A message to devices, until it is delivered: it belongs to its sender and to the devices'
    /// users.
    Letter(&'c ToDeviceSend),
    /// Details of these files, which belong to the uploaders.
    Files(&'c [String]),
    /// The reason for the record before it in its batch, which belongs to the user whom that
    /// concerns.
    Reason,
    /// An event; its PDU names the sender.
    Event(&'c RoomEvent),
    /// What an administrator wrote about a room.
    Room(&'c RoomId),
    /// A user's report to the administrators, about another user or a room.
    Report {
        /// The reporter.
        by: &'c UserId,
        /// The reported user.
        of: Option<&'c UserId>,
        /// The reported room, or the room of the reported event.
        room_id: Option<&'c RoomId>,
    },
}
