//! End-to-end encryption: keys, key backups, to-device messages.

pub(crate) mod dehydrated;
pub(crate) mod device_keys;
pub(crate) mod key_backup;
pub(crate) mod keys;
mod remote_keys;
pub(crate) mod to_device;

use super::{bodies, server::Server};
use crate::http::{Class, Table, limited};

const PRIVATE: &str = "only clients of the same user read a backup";

pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .on(dehydrated::put, limited(Class::Keys).suspended())
        .on(dehydrated::get, limited(Class::Keys))
        .on(dehydrated::delete, limited(Class::Keys).suspended())
        .on(dehydrated::events, limited(Class::Keys).suspended().body_optional())
        .on(keys::upload, limited(Class::Keys).guests().suspended().objects(bodies::DEVICE_KEYS))
        .on(keys::query, limited(Class::Keys).guests().suspended())
        .on(keys::claim, limited(Class::Keys).guests().suspended())
        .on(keys::changes, limited(Class::Keys))
        .on(
            keys::upload_cross_signing,
            limited(Class::Keys).suspended().objects(bodies::CROSS_SIGNING),
        )
        .on(keys::upload_signatures, limited(Class::Keys).suspended())
        .on(key_backup::create, limited(Class::KeyBackups).suspended().stays(PRIVATE))
        .on(key_backup::latest, limited(Class::Other))
        .on(key_backup::get, limited(Class::Other))
        .on(key_backup::update, limited(Class::KeyBackups).suspended().stays(PRIVATE))
        .on(key_backup::delete, limited(Class::KeyBackups).suspended())
        .on(
            key_backup::put,
            limited(Class::KeyBackups).suspended().objects(bodies::ROOM_KEYS).stays(PRIVATE),
        )
        .on(
            key_backup::put_of_room,
            limited(Class::KeyBackups)
                .suspended()
                .objects(bodies::ROOM_KEYS_OF_ROOM)
                .stays(PRIVATE),
        )
        .on(key_backup::put_of_session, limited(Class::KeyBackups).suspended().stays(PRIVATE))
        .on(key_backup::keys, limited(Class::Other))
        .on(key_backup::keys_of_room, limited(Class::Other))
        .on(key_backup::key_of_session, limited(Class::Other))
        .on(key_backup::remove, limited(Class::KeyBackups).suspended())
        .on(key_backup::remove_of_room, limited(Class::KeyBackups).suspended())
        .on(key_backup::remove_of_session, limited(Class::KeyBackups).suspended())
        .on(to_device::send, limited(Class::Ephemeral).guests().suspended())
}
