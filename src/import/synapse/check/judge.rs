//! Facts that cannot become records, found before anything is written.

use std::{
    collections::HashSet,
    hash::{BuildHasher as _, RandomState},
    path::Path,
};

use ruma::{RoomAliasId, RoomId, RoomVersionId, UserId};

use crate::facts::{Bad, Event, Fact, Judged, Key, Origin, Told};
use logcabin_base::limits;

/// What is known of the facts so far. Names are kept as numbers: a source has many.
pub(super) struct Judge {
    server_name: String,
    numbers: RandomState,
    users: HashSet<u64>,
    devices: HashSet<u64>,
    /// Rooms of a version that is known.
    rooms: HashSet<u64>,
    created: HashSet<u64>,
    /// Rooms whose events do not come along: one of them says so for all.
    left: HashSet<u64>,
    /// Rooms that a user of this server is in, and whose first event must be there.
    joined: Vec<String>,
}

impl Judge {
    pub(super) fn new(server_name: String) -> Self {
        Self {
            server_name,
            numbers: RandomState::new(),
            users: HashSet::new(),
            devices: HashSet::new(),
            rooms: HashSet::new(),
            created: HashSet::new(),
            left: HashSet::new(),
            joined: Vec::new(),
        }
    }

    fn number(&self, name: impl std::hash::Hash) -> u64 {
        self.numbers.hash_one(name)
    }

    /// Why a fact does not come along as it is, as a sentence without its full stop. Empty if it
    /// was said of another one.
    pub(super) fn judge(&mut self, told: &Told, media: &Path) -> Option<String> {
        match &told.fact {
            Fact::Account(account) => {
                let fault = self.own_user(&account.user_id);
                if fault.is_none() {
                    let number = self.number(&account.user_id);
                    self.users.insert(number);
                }
                fault
            }
            Fact::Device(device) => {
                let number = self.number((&device.user_id, &device.device_id));
                let fault = self.account(&device.user_id);
                if fault.is_none() && !self.devices.insert(number) {
                    return Some("the user has another device of this id".to_owned());
                }
                fault
            }
            Fact::AccessToken(token) => match &token.device_id {
                None => Some("the token is of no device: an administrator acted by it".to_owned()),
                Some(device) => self.device(&token.user_id, device),
            },
            Fact::RefreshToken(token) => self.device(&token.user_id, &token.device_id),
            Fact::DeviceKeys(keys) => self.device(&keys.user_id, &keys.device_id),
            Fact::OneTimeKey(key) => self.device(&key.user_id, &key.device_id),
            Fact::FallbackKey(key) => self.device(&key.user_id, &key.device_id),
            Fact::ToDevice(message) => self.device(&message.user_id, &message.device_id),
            Fact::Profile(profile) => self.account(&profile.user_id),
            Fact::Threepid(threepid) => self.account(&threepid.user_id),
            Fact::ExternalId(id) => self.account(&id.user_id),
            Fact::CrossSigningKey(key) => self.account(&key.user_id),
            Fact::KeyBackup(backup) => self.account(&backup.user_id),
            Fact::BackedUpKey(key) => self.account(&key.user_id),
            Fact::PushRule(rule) => self.account(&rule.user_id),
            Fact::Pusher(pusher) => self.account(&pusher.user_id),
            Fact::Filter(filter) => self.account(&filter.user_id),
            Fact::Tag(tag) => self.account(&tag.user_id),
            Fact::AccountData(data) => {
                let bytes = data.content.get().len();
                if bytes > limits::IMPORT_ACCOUNT_DATA_BYTES {
                    return Some(format!(
                        "it has {bytes} bytes, and {} are allowed",
                        limits::IMPORT_ACCOUNT_DATA_BYTES
                    ));
                }
                self.account(&data.user_id)
            }
            Fact::Room(room) => {
                let fault = self.room(&room.room_id, room.version.as_deref(), room.partial);
                if fault.is_none() {
                    let number = self.number(&room.room_id);
                    self.rooms.insert(number);
                    if room.joined {
                        self.joined.push(room.room_id.clone());
                    }
                }
                fault
            }
            Fact::Event(event) => self.event(event),
            Fact::Alias(alias) => {
                let wrong = RoomAliasId::parse(alias.alias.as_str()).err();
                wrong.map(|error| format!("no alias: {error}"))
            }
            Fact::Media(file) => {
                // Nothing was uploaded to an id without a size.
                let absent = file.size.is_some() && !media.join(&file.path).is_file();
                absent.then(|| format!("the file {} is not there", file.path.escape_debug()))
            }
            Fact::ThreadSubscription(_) => Some("threads are followed by no user here".to_owned()),
            _ => None,
        }
    }

    fn own_user(&self, user_id: &str) -> Option<String> {
        match UserId::parse(user_id) {
            Err(error) => Some(format!("no user id: {error}")),
            Ok(user_id) if user_id.server_name().as_str() != self.server_name => {
                Some("it is no user of this server".to_owned())
            }
            Ok(_) => None,
        }
    }

    /// Something of a user, who must have an account.
    fn account(&self, user_id: &str) -> Option<String> {
        let known = self.users.contains(&self.number(user_id));
        (!known).then(|| "its user has no account".to_owned())
    }

    fn device(&self, user_id: &str, device_id: &str) -> Option<String> {
        let known = self.devices.contains(&self.number((user_id, device_id)));
        (!known).then(|| "its device does not exist".to_owned())
    }

    fn room(&self, room_id: &str, version: Option<&str>, partial: bool) -> Option<String> {
        if let Err(error) = RoomId::parse(room_id) {
            return Some(format!("no room id: {error}"));
        }
        if partial {
            return Some(
                "the room's members are not all known yet: let Synapse run until they are"
                    .to_owned(),
            );
        }
        let Some(version) = version else {
            return Some("the room's version is not known".to_owned());
        };
        let rules = RoomVersionId::try_from(version).ok().and_then(|version| version.rules());
        match rules {
            Some(_) => None,
            None => Some(format!("the room has the version {}", version.escape_debug())),
        }
    }

    fn event(&mut self, event: &Event) -> Option<String> {
        let room = self.number(&event.room_id);
        let rejected = matches!(event.judged, Judged::Rejected { .. });
        if event.event_type == "m.room.create" && !rejected {
            self.created.insert(room);
        }
        if !self.rooms.contains(&room) {
            let first = self.left.insert(room);
            return Some(if first {
                "its room does not come along, nor do the room's other events".to_owned()
            } else {
                String::new()
            });
        }
        match event.parts() {
            Err(why) => Some(why),
            Ok(parts) if parts.pdu.len() > limits::EVENT_BYTES => Some(format!(
                "it has {} bytes, and {} are allowed",
                parts.pdu.len(),
                limits::EVENT_BYTES
            )),
            Ok(_) => None,
        }
    }

    /// What can only be said when everything was read.
    pub(super) fn at_the_end(self) -> Vec<Bad> {
        let without = self.joined.iter().filter(|room| !self.created.contains(&self.number(room)));
        let bad = without.map(|room| Bad {
            origin: Origin { table: "rooms", key: Key::Text(room.as_str().into()) },
            why: "the room has no m.room.create event".to_owned(),
        });
        bad.collect()
    }
}
