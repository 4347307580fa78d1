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
    /// None.
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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;
    use crate::{
        log::archive::ArchiveReader,
        record::{Offset, Remains, remains},
    };

    /// A log with every kind of command.
    #[test]
    fn whatever_holds_something_of_people_can_be_erased() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/0.1.0");
        let mut held = BTreeSet::new();
        for record in ArchiveReader::open(&golden).unwrap().records(Offset::new(1)) {
            let record = record.unwrap();
            let Some(command) = record.command().unwrap() else { continue };
            let kind = command.kind().name;
            if !matches!(command.holds(), Holds::Nothing) {
                assert_ne!(remains(kind), Remains::Everything, "{kind}");
                held.insert(kind);
            }
        }
        assert!(held.len() > 25 && held.contains("user.register"), "{held:?}");
    }
}
