//! What each kind of command holds of people: words, names, addresses, keys and pictures that are
//! theirs.
//!
//! Ids (of users, devices, rooms, events, files), times, and which of them had to do with which are
//! not meant: a history that lacked them would not be one. What is meant goes when the user is
//! erased or the room is purged (`service::erasure`); [`remains`] says what is left of it.
//!
//! [`remains`]: super::remains

use ruma::{RoomId, UserId};

use super::{
    command::{RoomEvent, ToDeviceSend},
    threepid::Threepid,
};

/// What a command holds of people.
#[derive(Debug)]
pub enum Holds<'c> {
    /// Nothing that is to go with anybody.
    Nothing,
    /// Something of this user.
    Of(&'c UserId),
    /// Something of both these users.
    OfBoth(&'c UserId, &'c UserId),
    /// An address: of the user who has or had it.
    Address(&'c Threepid),
    /// What is told devices, until it has been: it is its sender's, and theirs whose the devices
    /// are.
    Letter(&'c ToDeviceSend),
    /// What was said of these files: of whoever uploaded them.
    Files(&'c [String]),
    /// Why what stands before it in its batch was done: of whom that was done to.
    Reason,
    /// An event: the PDU says whose it is.
    Event(&'c RoomEvent),
    /// What was said of a room by those who run the server.
    Room(&'c RoomId),
    /// What one user told those who run the server: of another, or of a room.
    Report {
        /// Who.
        by: &'c UserId,
        /// Of whom.
        of: Option<&'c UserId>,
        /// Of which room, or of an event in which room.
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

    /// Of a log with every kind of command.
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
