//! Rows that become one record together, or one only with others.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{
    backups::ChangedBackups,
    changes::SeenRows,
    compare::Comparison,
    convert::{
        peers::PeerUser,
        sessions::{Grants, Sent, Sessions},
    },
    gaps::Missing,
    rules::Owners,
};
use crate::facts::{self, Cursor, Fact, Origin};
use logcabin_base::limits;
use logcabin_record::Offset;

/// Rows in a row that belong together.
#[derive(Debug)]
pub(super) enum Group {
    OneTimeKeys(Vec<facts::OneTimeKey>),
    BackedUpKeys(Vec<facts::BackedUpKey>),
    PeerKeys(Vec<facts::PeerKey>),
    PeerDevices(Vec<facts::DeviceKeys>),
    Tags(Vec<facts::Tag>),
    Receipts(Vec<facts::Receipt>),
}

/// The group of rows that is being gathered.
#[derive(Debug)]
pub(super) struct Gathered {
    /// The first of its rows.
    pub(super) origin: Origin,
    pub(super) group: Group,
    /// About how large its record will be.
    bytes: usize,
}

impl Gathered {
    /// A group that begins with a fact; the fact, if it is none of a group.
    pub(super) fn begin(origin: &Origin, fact: Fact) -> Result<Self, Box<Fact>> {
        let bytes = size(&fact);
        let group = match fact {
            Fact::OneTimeKey(fact) => Group::OneTimeKeys(vec![fact]),
            Fact::BackedUpKey(fact) => Group::BackedUpKeys(vec![fact]),
            Fact::PeerKey(fact) => Group::PeerKeys(vec![fact]),
            Fact::PeerDevices(fact) => Group::PeerDevices(vec![fact]),
            Fact::Tag(fact) => Group::Tags(vec![fact]),
            Fact::Receipt(fact) => Group::Receipts(vec![fact]),
            other => return Err(Box::new(other)),
        };
        Ok(Self { origin: origin.clone(), group, bytes })
    }

    /// Whether a fact belongs to the group, and fits.
    pub(super) fn takes(&self, fact: &Fact) -> bool {
        let fits = self.bytes + size(fact) <= limits::IMPORT_GROUP_BYTES;
        match (&self.group, fact) {
            (Group::OneTimeKeys(keys), Fact::OneTimeKey(key)) => keys.last().is_some_and(|last| {
                fits && (&last.user_id, &last.device_id) == (&key.user_id, &key.device_id)
            }),
            (Group::BackedUpKeys(keys), Fact::BackedUpKey(key)) => {
                keys.last().is_some_and(|last| {
                    fits && (&last.user_id, last.version, &last.room_id)
                        == (&key.user_id, key.version, &key.room_id)
                })
            }
            // All of these are one record, however many there are.
            (Group::PeerKeys(keys), Fact::PeerKey(key)) => {
                keys.last().is_some_and(|last| last.server_name == key.server_name)
            }
            (Group::PeerDevices(devices), Fact::PeerDevices(device)) => {
                devices.last().is_some_and(|last| last.user_id == device.user_id)
            }
            (Group::Tags(tags), Fact::Tag(tag)) => tags
                .last()
                .is_some_and(|last| (&last.user_id, &last.room_id) == (&tag.user_id, &tag.room_id)),
            (Group::Receipts(receipts), Fact::Receipt(receipt)) => {
                receipts.last().is_some_and(|last| fits && last.room_id == receipt.room_id)
            }
            _ => false,
        }
    }

    /// Adds a fact that it [takes](Self::takes).
    pub(super) fn add(&mut self, fact: Fact) {
        self.bytes += size(&fact);
        match (&mut self.group, fact) {
            (Group::OneTimeKeys(keys), Fact::OneTimeKey(key)) => keys.push(key),
            (Group::BackedUpKeys(keys), Fact::BackedUpKey(key)) => keys.push(key),
            (Group::PeerKeys(keys), Fact::PeerKey(key)) => keys.push(key),
            (Group::PeerDevices(devices), Fact::PeerDevices(device)) => devices.push(device),
            (Group::Tags(tags), Fact::Tag(tag)) => tags.push(tag),
            (Group::Receipts(receipts), Fact::Receipt(receipt)) => receipts.push(receipt),
            _ => {}
        }
    }
}

/// About how many bytes a row takes in a record.
fn size(fact: &Fact) -> usize {
    match fact {
        Fact::OneTimeKey(key) => key.key_id.len() + key.key.get().len() + 16,
        Fact::BackedUpKey(key) => key.session_id.len() + key.session_data.get().len() + 128,
        Fact::Receipt(receipt) => {
            let ids = receipt.user_id.len() + receipt.event_id.len();
            ids + receipt.thread_id.as_ref().map_or(0, String::len) + 128
        }
        _ => 0,
    }
}

/// What is remembered from one row to a later one.
#[derive(Debug, Default)]
pub(super) struct Gather {
    pub(super) group: Option<Gathered>,
    /// What comes along, of which other things are.
    pub(super) owners: Owners,
    pub(super) sessions: Sessions,
    /// What clients have sent.
    pub(super) sent: Sent,
    /// Where each part of a session was found.
    pub(super) session_origins: BTreeMap<(String, String), Origin>,
    /// What was granted to clients, and which clients there are.
    pub(super) grants: Grants,
    pub(super) clients: BTreeSet<String>,
    pub(super) rules: BTreeMap<String, (Origin, Vec<facts::PushRule>, Vec<facts::PushRuleChange>)>,
    /// What is known of the users of the slice of devices that is being read.
    pub(super) peers: BTreeMap<String, PeerUser>,
    /// Users of other servers whose devices were read.
    pub(super) with_devices: HashSet<Box<str>>,
    /// A mark of what was told of each of them: see [`Marks`](super::changes::Marks).
    pub(super) peer_marks: BTreeMap<String, u64>,
    /// Backups of keys that have changed since they were copied.
    pub(super) changed_backups: ChangedBackups,
    /// What a section has had so far, where what is gone must be found, or told once.
    pub(super) seen: SeenRows,
    /// Where the slice of receipts before this one began.
    pub(super) receipts_from: Option<Cursor>,
    pub(super) missing: Missing,
    pub(super) destinations: Vec<(Origin, facts::Destination)>,
    pub(super) services: Vec<(Origin, facts::AppService)>,
    /// A device with keys of each user who has one.
    pub(super) keyed: HashMap<Box<str>, Box<str>>,
    /// Users of whose devices other servers are told again.
    pub(super) changed: HashSet<Box<str>>,
    /// The first event that each application service has not taken.
    pub(super) untaken: BTreeMap<String, Offset>,
    pub(super) comparison: Comparison,
    /// The rooms of the source.
    pub(super) rooms: BTreeSet<String>,
    /// Who made each room, as far as the source says.
    pub(super) creators: HashMap<String, String>,
    /// Rooms of which the source does not know everything yet.
    pub(super) partial: HashSet<String>,
}

impl Gather {
    /// Whether nothing is remembered that would be lost if the import were interrupted here. What
    /// is known of rooms and of users of other servers is read again, and so is what was not marked
    /// or compared.
    pub(super) fn is_clean(&self) -> bool {
        self.group.is_none()
            && self.sessions.is_empty()
            && self.sent.is_empty()
            && self.grants.is_empty()
            && self.rules.is_empty()
            && self.missing.is_empty()
            && self.destinations.is_empty()
            && self.services.is_empty()
    }
}
