//! What each kind of command holds of people: words, names, addresses, keys and pictures that are
//! theirs.
//!
//! Ids (of users, devices, rooms, events, files), times, and which of them had to do with which are
//! not meant: a history that lacked them would not be one. What is meant goes when the user is
//! erased (`engine::due`) or the room is purged (`engine::purge`); [`remains`] says what is left of
//! it.
//!
//! [`remains`]: super::remains

use ruma::{RoomId, UserId};

use super::{
    Command,
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

impl Command {
    /// What it holds of people.
    #[must_use]
    pub fn holds(&self) -> Holds<'_> {
        match self {
            // Passwords and what was agreed to, names, pictures, settings.
            Self::UserRegister(body) => Holds::Of(&body.user_id),
            Self::UserUpgrade(body) => Holds::Of(&body.user_id),
            Self::UserPassword(body) => Holds::Of(&body.user_id),
            Self::SsoLink(body) => Holds::Of(&body.user_id),
            Self::ProfileSet(body) => Holds::Of(&body.user_id),
            Self::AccountDataSet(body) => Holds::Of(&body.user_id),
            Self::FilterCreate(body) => Holds::Of(&body.user_id),
            Self::PresenceSet(body) => Holds::Of(&body.user_id),
            // Why those who run the server did what they did.
            Self::UserStatus(body) => Holds::Of(&body.user_id),
            Self::UserDeactivate(body) => Holds::Of(&body.user_id),
            Self::AdminReason(_) => Holds::Reason,
            Self::MediaQuarantine(body) => Holds::Files(&body.media_ids),
            Self::RoomBlock(body) => Holds::Room(&body.room_id),
            Self::RoomShutdown(body) => Holds::Room(&body.room_id),
            // Names of devices, and where and on what they were in use.
            Self::DeviceLogin(body) => Holds::Of(&body.user_id),
            Self::DeviceRename(body) => Holds::Of(&body.user_id),
            Self::DeviceDehydrate(body) => Holds::Of(&body.user_id),
            Self::DeviceSeen(body) => Holds::Of(&body.user_id),
            // Keys, and what they vouch for.
            Self::KeysUpload(body) => Holds::Of(&body.user_id),
            Self::KeysCrossSign(body) => Holds::Of(&body.user_id),
            Self::KeysSign(body) => Holds::OfBoth(&body.user_id, &body.by),
            Self::KeyBackupSet(body) => Holds::Of(&body.user_id),
            Self::KeyBackupDelete(body) => Holds::Of(&body.user_id),
            Self::KeyBackupPut(body) => Holds::Of(&body.user_id),
            Self::KeyBackupRemove(body) => Holds::Of(&body.user_id),
            // What people say, and upload.
            Self::RoomEvent(body) => Holds::Event(body),
            Self::DelayedSchedule(body) => Holds::Of(&body.user_id),
            Self::ToDeviceSend(body) => Holds::Letter(body),
            Self::ReportCreate(body) => Holds::Report {
                by: &body.reporter,
                of: body.user_id.as_deref(),
                room_id: body.room_id.as_deref(),
            },
            // It goes with the file: see `media.remove`.
            Self::MediaUpload(_) => Holds::Nothing,
            // Addresses, and where people are told what they missed.
            Self::ValidationRequest(body) => Holds::Address(&body.threepid),
            Self::ThreepidAdd(body) => Holds::Of(&body.user_id),
            Self::ThreepidRemove(body) => Holds::Of(&body.user_id),
            Self::ThreepidBind(body) => Holds::Of(&body.user_id),
            Self::ThreepidUnbind(body) => Holds::Of(&body.user_id),
            Self::PusherSet(body) => Holds::Of(&body.user_id),
            Self::PusherRemove(body) => Holds::Of(&body.user_id),
            // The name of a room: it goes with the room.
            Self::AliasSet(_) | Self::AliasRemove(_) => Holds::Nothing,
            // Of the server, or of those who run it.
            Self::ServerIdentity(_)
            | Self::ServerRestore(_)
            | Self::BackupMade(_)
            | Self::LogErase(_)
            | Self::LogCheckpoint(_)
            | Self::RegistrationTokenSet(_)
            | Self::RegistrationTokenRemove(_)
            | Self::DeliveryAdvance(_)
            | Self::PusherAdvance(_)
            // Ids, times, hashes of what was drawn at random.
            | Self::UserErase(_)
            | Self::LoginTokenUse(_)
            | Self::DeviceRefresh(_)
            | Self::DeviceConfirm(_)
            | Self::DeviceRemove(_)
            | Self::KeysClaim(_)
            | Self::KeysDrop(_)
            | Self::ToDeviceAck(_)
            | Self::RoomErase(_)
            | Self::RoomForget(_)
            | Self::RoomUndo(_)
            | Self::RoomVisibility(_)
            | Self::RoomNetwork(_)
            | Self::RoomShutdownFinish(_)
            | Self::NoticeRoom(_)
            | Self::RoomReceipt(_)
            | Self::RoomTyping(_)
            | Self::ReportRemove(_)
            | Self::DelayedRestart(_)
            | Self::DelayedFinish(_)
            | Self::MediaCreate(_)
            | Self::MediaProtect(_)
            | Self::MediaRemove(_)
            | Self::ValidationSent(_)
            | Self::ValidationMiss(_)
            | Self::ValidationComplete(_)
            | Self::ValidationUse(_)
            | Self::PusherMail(_)
            // Why a room or a user went, which is what is to be known of it later.
            | Self::RoomPurge(_) => Holds::Nothing,
        }
    }
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
