//! What the source changed and took back since the copy.
//!
//! Devices, tokens, one-time keys, messages to devices, pushers, aliases and the directory are read
//! by the last pass only, when the source has stopped, and that pass begins again if it is
//! interrupted. So what was taken back by then never was in the log. Of what is copied before,
//! [`Marks`] tell what need not be read again, and what is gone is removed here.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use super::{
    convert::{Made, own_user, peers, room, rooms},
    gather::Gather,
    index::Status,
    known::KnownRoom,
    prepare::Ready,
    progress::Pass,
    rules::NOT_IN_ITS_ROOM,
    sections::Sections,
    writer::Writer,
};
use crate::{
    ImportError,
    facts::{Bad, Cursor, Fact, Key, KeyBackup, Origin, Receipt, Room, Section},
};
use logcabin_base::limits;
use logcabin_record::{
    Offset, Stream,
    command::{MediaEnd, MediaRemove, ProfileSet, RoomPurge},
};

/// What the copy saw of the source. What has the same mark at the end is as it was copied.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marks {
    /// The number of changes of each backup of keys, by user and version. Seen before the keys.
    pub(super) backups: BTreeMap<(String, i64), i64>,
    /// A hash of what was told of the list of devices of each user of another server.
    pub(super) peers: BTreeMap<String, u64>,
    /// Rooms whose state was the source's, each with the last record that had changed it.
    pub(super) rooms: BTreeMap<String, Offset>,
    /// The source's position before they were compared.
    pub(super) compared_at: i64,
    /// Receipts for events that the log did not have yet: before its event, a receipt is nothing.
    pub(super) receipts: BTreeMap<ReceiptOf, WaitingReceipt>,
    /// Whether there were too many of them.
    pub(super) has_more_receipts: bool,
}

/// What has one receipt: the room, the user, the type and the thread.
pub(super) type ReceiptOf = (String, String, String, Option<String>);

/// A receipt that waits for its event.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WaitingReceipt {
    event_id: String,
    ts_ms: i64,
    stream: i64,
}

/// What a section has had, to find what the copy has and the source has no more.
#[derive(Debug, Default)]
pub(super) struct SeenRows {
    /// Rooms and uploads by their ids, or users with fields of their profiles.
    facts: HashSet<(Box<str>, Box<str>)>,
    /// The keys of rows that could not be read. What they are about is still there.
    bad: HashSet<Box<str>>,
    /// Why it is not known what is there, if it is not.
    unclear: Option<String>,
}

impl SeenRows {
    pub(super) fn add(&mut self, fact: &Fact) {
        let (id, field) = match fact {
            Fact::Room(room) => (&*room.room_id, ""),
            Fact::Media(media) => (&*media.media_id, ""),
            Fact::Profile(profile) if !profile.value.is_null() => {
                (&*profile.user_id, &*profile.field)
            }
            _ => return,
        };
        self.facts.insert((id.into(), field.into()));
    }

    /// Whether this is told for the first time in its section.
    fn is_first(&mut self, of: &str, what: &str) -> bool {
        self.facts.insert((of.into(), what.into()))
    }

    pub(super) fn add_bad(&mut self, bad: &Bad) {
        match &bad.origin.key {
            // It is about a whole table.
            Key::Text(key) if &**key == "-" => self.unclear = Some(bad.to_string()),
            Key::Text(key) => {
                self.bad.insert(key.clone());
            }
            // None of these tables has numbers as keys.
            Key::Number(_) => {}
        }
    }

    /// Whether a row that begins with this user's id could not be read, or nothing is known.
    pub(super) fn has_bad_of(&self, user_id: &str) -> bool {
        let is_of = |key: &str| {
            key.strip_prefix(user_id).is_some_and(|rest| rest.is_empty() || rest.starts_with(" /"))
        };
        self.unclear.is_some() || self.bad.iter().any(|key| is_of(key))
    }

    fn has(&self, id: &str, field: &str) -> bool {
        // Profiles have the part of the id before the server's name only.
        let localpart = id.strip_prefix('@').and_then(|id| id.split_once(':'));
        self.facts.contains(&(id.into(), field.into()))
            || self.bad.contains(id)
            || localpart.is_some_and(|(localpart, _)| self.bad.contains(localpart))
    }
}

/// A mark after one more fact.
pub(super) fn marked(mark: u64, fact: &blake3::Hash) -> u64 {
    let of_fact = fact.as_bytes()[..8].iter().fold(0, |mark, byte| (mark << 8) | u64::from(*byte));
    mark.rotate_left(1) ^ of_fact
}

impl Gather {
    /// Notes whether the keys of a backup are to be read.
    pub(super) fn mark_backup(&mut self, marks: &mut Marks, pass: Pass, backup: &KeyBackup) {
        if backup.deleted {
            // It has no keys.
            return;
        }
        let id = (backup.user_id.clone(), backup.version);
        match (pass, backup.etag) {
            (Pass::Copy, Some(etag)) => {
                marks.backups.insert(id, etag);
            }
            (Pass::Finish, etag) if etag.is_none() || marks.backups.get(&id) != etag.as_ref() => {
                self.changed_backups.add(backup);
            }
            _ => {}
        }
    }
}

impl Writer<'_> {
    /// Whether a room is as it was when its state was compared.
    fn is_compared(&self, room_id: &str) -> bool {
        let last = self.known.room(room_id).map(last_change);
        let waits = self.progress.waiting.by_room.contains_key(room_id);
        !waits && last.is_some() && self.marks.rooms.get(room_id).copied() == last
    }
}

/// Owners whose facts are asked for one by one, whatever their share is.
const FEW: usize = 1000;

/// These owners, if asking for their facts takes less than reading the whole section.
fn if_few(owners: Vec<String>, all: usize) -> Option<Vec<String>> {
    (owners.len() <= FEW.max(all / 4)).then_some(owners)
}

/// The last record that changed a room's state.
pub(super) fn last_change(room: &KnownRoom) -> Offset {
    room.last_change(Offset::MAX)
}

impl Sections<'_, '_> {
    /// Whose facts of a section are to be read; `None` for everybody's. What is read again and did
    /// not change makes no record.
    pub(super) fn owners(&mut self, section: Section) -> Result<Option<Vec<String>>, ImportError> {
        if self.writer.progress.pass != Pass::Finish {
            if section == Section::CurrentState {
                self.writer.marks.compared_at = self.writer.feeder.head()?;
            }
            return Ok(None);
        }
        Ok(match section {
            Section::BackedUpKeys => {
                let changed = self.gather.changed_backups.users();
                if_few(changed, self.writer.known.all.accounts.len())
            }
            Section::PeerDevices => {
                let known = &self.writer.marks.peers;
                let marks = self.gather.peer_marks.iter();
                let changed = marks.filter(|(user_id, mark)| known.get(*user_id) != Some(*mark));
                let changed = changed.map(|(user_id, _)| user_id.clone()).collect();
                if_few(changed, self.gather.peer_marks.len())
            }
            Section::CurrentState => {
                // What the source says, and not the log: a change may have been passed by.
                let changed = self.writer.feeder.changed_rooms(self.writer.marks.compared_at)?;
                let changed: HashSet<String> = changed.into_iter().collect();
                let is_done = |room_id: &String| {
                    self.writer.is_compared(room_id) && !changed.contains(room_id)
                };
                let all = self.gather.rooms.iter();
                let rooms: Vec<String> = all.filter(|room_id| !is_done(room_id)).cloned().collect();
                // The others were compared by the copy.
                let done = self.gather.rooms.len() - rooms.len();
                let rooms = if_few(rooms, self.gather.rooms.len());
                if rooms.is_some() {
                    self.gather.comparison.compared += done as u64;
                }
                rooms
            }
            _ => None,
        })
    }

    /// Whether a fact comes before its account, which was made while the copy was under way. The
    /// last pass takes both.
    pub(super) fn is_too_early(&self, fact: &Fact) -> bool {
        let user_id = match fact {
            Fact::Profile(fact) => Some(&fact.user_id),
            Fact::AccountData(fact) => Some(&fact.user_id),
            Fact::KeyBackup(fact) => Some(&fact.user_id),
            Fact::BackedUpKey(fact) => Some(&fact.user_id),
            Fact::Filter(fact) => Some(&fact.user_id),
            Fact::Media(fact) => fact.user_id.as_ref(),
            _ => None,
        };
        let is_unknown =
            |user_id: &String| !self.writer.known.all.accounts.contains(user_id.as_str());
        self.writer.progress.pass == Pass::Copy && user_id.is_some_and(is_unknown)
    }

    /// The receipts for events that are in the log. The others wait for the last pass.
    pub(super) fn known_receipts(&mut self, origin: &Origin, facts: Vec<Receipt>) -> Vec<Receipt> {
        let Writer { known, marks, progress, .. } = &mut *self.writer;
        let is_last = progress.pass == Pass::Finish;
        // They are of one room.
        if let Some(first) = facts.first() {
            known.look_at(&first.room_id);
        }
        let (there, waiting): (Vec<_>, Vec<_>) = facts.into_iter().partition(|fact| {
            let seen = known.seen(&fact.event_id);
            // Events from the past get their places in the last pass.
            seen.is_some_and(|seen| match seen.status {
                Status::Timeline => true,
                Status::Aside => is_last,
                Status::Outlier | Status::Rejected => false,
            })
        });
        for fact in waiting {
            if is_last {
                // One that has waited may be read once more.
                let of = [&*fact.room_id, &fact.user_id, &fact.receipt_type].join(" ");
                let what = [fact.thread_id.as_deref().unwrap_or("-"), &fact.event_id].join(" ");
                if self.gather.seen.is_first(&of, &what) {
                    progress.counts.leave(origin, NOT_IN_ITS_ROOM);
                }
                continue;
            }
            let Receipt { room_id, user_id, receipt_type, event_id, thread_id, ts_ms, stream } =
                fact;
            let of = (room_id, user_id, receipt_type, thread_id);
            if marks.receipts.len() < limits::IMPORT_WAITING_RECEIPTS {
                marks.receipts.insert(of, WaitingReceipt { event_id, ts_ms, stream });
            } else {
                marks.has_more_receipts = true;
            }
        }
        there
    }

    /// Writes the receipts that have waited, before those that may replace them.
    pub(super) fn write_waiting_receipts(&mut self) -> Result<(), ImportError> {
        let mut by_room: BTreeMap<String, Vec<Receipt>> = BTreeMap::new();
        for (of, waiting) in std::mem::take(&mut self.writer.marks.receipts) {
            let (room_id, user_id, receipt_type, thread_id) = of;
            let WaitingReceipt { event_id, ts_ms, stream } = waiting;
            let of_room = by_room.entry(room_id.clone()).or_default();
            of_room.push(Receipt {
                room_id,
                user_id,
                receipt_type,
                event_id,
                thread_id,
                ts_ms,
                stream,
            });
        }
        let origin = Origin { table: "receipts_linearized", key: Key::Text("-".into()) };
        for of_room in by_room.into_values() {
            // Each has at most four ids of 255 bytes.
            for some in of_room.chunks(limits::IMPORT_GROUP_BYTES / 1024) {
                let facts = self.known_receipts(&origin, some.to_vec());
                self.made_partly(&origin, rooms::receipts(facts))?;
            }
            self.writer.within()?;
        }
        Ok(())
    }

    /// Removes what the copy has written and the source has no more, at the end of a section.
    pub(super) fn remove_gone(&mut self, section: Section) -> Result<(), ImportError> {
        let seen = std::mem::take(&mut self.gather.seen);
        let has_such = matches!(section, Section::Rooms | Section::Media | Section::Profiles);
        if self.writer.progress.pass != Pass::Finish || !has_such {
            return Ok(());
        }
        if let Some(why) = &seen.unclear {
            let line = format!("what the source has deleted since the copy is still there: {why}");
            let Writer { list, progress, .. } = &mut *self.writer;
            return list.note(&mut progress.counts, &line);
        }
        let known = &self.writer.known.all;
        match section {
            Section::Rooms => {
                let gone = known.rooms.keys().filter(|room_id| !seen.has(room_id, ""));
                let gone: Vec<String> = gone.map(ToString::to_string).collect();
                for room_id in gone {
                    self.purge(&room_id)?;
                }
            }
            Section::Media => {
                let gone = known.media.iter().filter(|media_id| !seen.has(media_id, ""));
                let mut gone: Vec<String> = gone.map(ToString::to_string).collect();
                gone.sort_unstable();
                for media_ids in gone.chunks(limits::QUARANTINE_IDS) {
                    let body = MediaRemove { media_ids: media_ids.to_vec(), why: MediaEnd::Asked };
                    self.gone("local_media_repository", Made::one(Stream::quarantine(), body))?;
                }
            }
            Section::Profiles => {
                let gone = known.profiles.iter().filter(|(id, field)| !seen.has(id, field));
                let gone: Vec<_> = gone.cloned().collect();
                for (user_id, field) in gone {
                    let Ok(user_id) = own_user(&user_id, &self.writer.own) else { continue };
                    let stream = Stream::user(&user_id);
                    let body = ProfileSet { user_id, field: field.into(), value: None };
                    self.gone("profiles", Made::one(stream, body))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads what is known of the users of these devices. There are too many users to remember that
    /// of all.
    pub(super) fn read_peers(&mut self, devices: &[Ready]) -> Result<(), ImportError> {
        let mut users: Vec<String> = Vec::new();
        for ready in devices {
            if let Fact::PeerDevices(device) = &ready.told.fact
                && users.last() != Some(&device.user_id)
            {
                self.gather.peers.remove(&device.user_id);
                users.push(device.user_id.clone());
            }
        }
        for some in users.chunks(limits::SOURCE_OWNERS) {
            for section in [Section::PeerCrossSigningKeys, Section::PeerDeviceLists] {
                let mut cursor = Cursor::START;
                loop {
                    let slice = self.writer.feeder.slice_of(section, some, &cursor)?;
                    for ready in slice.facts {
                        self.know_peer(ready.told.fact);
                    }
                    match slice.next {
                        Some(next) => cursor = next,
                        None => break,
                    }
                }
            }
        }
        Ok(())
    }

    fn know_peer(&mut self, fact: Fact) {
        let peers = &mut self.gather.peers;
        match fact {
            Fact::PeerCrossSigningKey(fact) => {
                peers.entry(fact.user_id.clone()).or_default().set_key(fact);
            }
            Fact::PeerDeviceList(fact) => {
                peers.entry(fact.user_id.clone()).or_default().set_list(fact);
            }
            _ => {}
        }
    }

    /// Notes what was told of users of other servers; at the end, that lists are out of date which
    /// the source has given up, or has no devices for any more.
    pub(super) fn end_peers(&mut self) -> Result<(), ImportError> {
        let marks = std::mem::take(&mut self.gather.peer_marks);
        let with_devices = std::mem::take(&mut self.gather.with_devices);
        match self.writer.progress.pass {
            Pass::Copy => self.writer.marks.peers = marks,
            Pass::Finish => {
                let known = self.writer.marks.peers.iter();
                let gone = known.filter(|(user_id, mark)| {
                    let now = marks.get(*user_id);
                    now.is_none_or(|now| now != *mark && !with_devices.contains(user_id.as_str()))
                });
                let gone: Vec<String> = gone.map(|(user_id, _)| user_id.clone()).collect();
                for user_id in gone {
                    if let Ok(made) = peers::out_of_date(&user_id) {
                        self.gone("device_lists_remote_extremeties", made)?;
                    }
                }
            }
            Pass::Follow | Pass::Sealed => {}
        }
        Ok(())
    }

    /// Deletes a room if the source no longer has the events that were copied: it has deleted it,
    /// and has joined it again. It is copied once more.
    pub(super) fn purge_if_rejoined(&mut self, room: &Room) -> Result<(), ImportError> {
        let progress = &self.writer.progress;
        let is_new = room.began.is_none_or(|began| began > progress.newest);
        // Of others, there may be an invite, which has no place among the events.
        let was_in = |of: &KnownRoom| of.holder("m.room.create", "").is_some();
        let is_known = self.writer.known.room(&room.room_id).is_some_and(was_in);
        if progress.pass == Pass::Finish && is_new && is_known {
            self.purge(&room.room_id)?;
        }
        Ok(())
    }

    /// Deletes a room that the source has deleted since the copy.
    fn purge(&mut self, room_id: &str) -> Result<(), ImportError> {
        let Ok(room_id) = room(room_id) else { return Ok(()) };
        self.writer.progress.waiting.take(room_id.as_str(), i64::MAX);
        self.writer.marks.rooms.remove(room_id.as_str());
        let origin = Origin { table: "rooms", key: Key::Text(room_id.as_str().into()) };
        let reason = "the source has deleted the room since it was copied";
        self.writer.leave(&origin, reason, reason)?;
        let stream = Stream::room(&room_id);
        let body = RoomPurge { room_id, records: Vec::new(), more: false, reason: None };
        self.writer.put(&origin, None, &Made::one(stream, body).commands)?;
        self.writer.within()
    }

    pub(super) fn gone(&mut self, table: &'static str, made: Made) -> Result<(), ImportError> {
        let origin = Origin { table, key: Key::Text("-".into()) };
        self.writer.put(&origin, None, &made.commands)?;
        self.writer.within()
    }

    /// Whether a room cannot come along, because the source knows it in part only, or did when
    /// events of it were read. Rooms that are new are looked for.
    pub(super) fn is_partial(&mut self, room_id: &str) -> Result<bool, ImportError> {
        if !self.gather.rooms.contains(room_id) {
            let owners = [room_id.to_owned()];
            let slice = self.writer.feeder.slice_of(Section::Rooms, &owners, &Cursor::START)?;
            for ready in slice.facts {
                if let Fact::Room(room) = ready.told.fact {
                    self.know_room(room);
                }
            }
            self.gather.rooms.insert(room_id.to_owned());
        }
        Ok(self.gather.partial.contains(room_id))
    }

    pub(super) fn know_room(&mut self, room: Room) {
        let was_partial = self.writer.progress.partial.contains(&room.room_id);
        if room.partial || was_partial {
            self.gather.partial.insert(room.room_id.clone());
        }
        if let Some(creator) = room.creator {
            self.gather.creators.insert(room.room_id.clone(), creator);
        }
        self.gather.rooms.insert(room.room_id);
    }
}
