//! Acts that end in nothing being left: rooms are purged, users erased; and the receipts of all
//! that was erased, whoever asked for it.
//!
//! A receipt is put together from the log: the record for which something was erased (a redaction,
//! a `room.erase`, `room.purge`, `user.erase` or `media.remove`), and the `log.erase` records that
//! carried it out.

use std::collections::{BTreeMap, BTreeSet};

use ruma::{OwnedRoomId, OwnedUserId, RoomId};
use serde::{Deserialize, Serialize};

use super::{
    acts::Done,
    office::{ActError, Office, of_user},
};
use crate::{
    decide::status::Deactivate,
    log::{ReadError, archive},
    ops::history::words,
    record::{
        Command, Offset, Origin, Record,
        command::{BackupMoment, LogErase, MediaRemove},
    },
    service::{
        accounts::closing,
        erasure::purge::{self, Purge, PurgeError},
    },
    state::{Copy, Membership},
};

/// How many records are counted by their kinds, at most, for one receipt.
const COUNTED: u64 = 1_000_000;

/// What a purge took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomPurged {
    /// The room.
    pub room_id: OwnedRoomId,
    /// How many events it had.
    pub events: u64,
    /// How many bytes their payloads were.
    pub bytes: u64,
    /// How many users had to leave.
    pub left: u64,
    /// The aliases that pointed at it.
    pub aliases: Vec<String>,
    /// How many files nothing but the room named.
    pub files: u64,
    /// How many bytes those were.
    pub file_bytes: u64,
}

/// What the erasure of a user took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserErased {
    /// The user.
    pub user_id: OwnedUserId,
    /// Whether what they sent goes, too.
    pub messages: bool,
    /// How many rooms they have or had to do with.
    pub rooms: u64,
    /// How many devices were logged in.
    pub devices: u64,
    /// How many files they uploaded.
    pub files: u64,
    /// How many bytes those were.
    pub file_bytes: u64,
    /// Which addresses are still bound to the user on which identity server, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub still_bound: Vec<String>,
}

/// What was erased for one record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// That record; a `log.erase` for all that it took, whatever for.
    pub because: Offset,
    /// When it was appended, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// Who did it.
    pub who: String,
    /// What they did, in words, with their reason.
    pub what: String,
    /// How many records lost content, by kind. Of one that takes very many, only the first are
    /// counted so.
    pub kinds: BTreeMap<String, u64>,
    /// Which records: runs, each with its first and last offset.
    pub records: Vec<(Offset, Offset)>,
    /// How many records are still to lose content.
    pub waiting: u64,
    /// How many addresses of files went.
    pub files: u64,
    /// The `log.erase` records that carried it out.
    pub carried_out: Vec<Offset>,
    /// Whether all that was carried out has left the files of the log: these were written anew
    /// since.
    pub off_the_log: bool,
    /// Whether it has left the archive; none without one.
    pub off_the_archive: Option<bool>,
    /// The backups that were made before and hold what was erased.
    pub backups: Vec<String>,
}

/// Something that had records erased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptRow {
    /// The record for which they were; [`Offset::ZERO`] for what had only done its work.
    pub because: Offset,
    /// When it was appended, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// Who did it.
    pub who: String,
    /// What they did, in words.
    pub what: String,
    /// How many records lost content.
    pub records: u64,
}

impl Office {
    pub(super) async fn purge_room(
        &self,
        origin: Origin,
        room: &str,
        force: bool,
        reason: Option<String>,
    ) -> Result<Done, ActError> {
        let room = self.room(room)?;
        let (room_id, joined) =
            (room.id.clone(), room.members(Membership::Join, Offset::MAX).len());
        drop(room);
        if joined > 0 && !force {
            let why = format!(
                "{joined} user(s) are joined to {room_id}: with --force they are made to leave first"
            );
            return Err(ActError::Invalid(why));
        }
        self.empty(&origin, &room_id).await;
        let purge = purge::purge(&self.engine, origin, &room_id, reason).await.map_err(of_purge)?;
        Ok(Done::RoomPurged(RoomPurged {
            room_id,
            events: purge.events,
            bytes: purge.bytes,
            left: joined as u64,
            aliases: purge.aliases,
            files: purge.media_ids.len() as u64,
            file_bytes: purge.media_bytes,
        }))
    }

    /// What a purge would come to. Looks through the whole log.
    pub(super) async fn effect_of_purge(&self, room: &str) -> Result<Vec<String>, ActError> {
        let room_id = self.room(room)?.id.clone();
        let looked = purge::look(&self.engine, &room_id).await.map_err(of_purge)?;
        let Purge { events, bytes, joined, aliases, media_ids, media_bytes, .. } = looked;
        let mut effect = Vec::new();
        if joined > 0 {
            effect.push(format!("{joined} user(s) leave {room_id}, with --force"));
        }
        effect.push(format!("{room_id} is purged, with {events} event(s) of {bytes} bytes"));
        if !aliases.is_empty() {
            effect.push(format!("its aliases go: {}", aliases.join(", ")));
        }
        let files = media_ids.len();
        effect.push(format!("{files} file(s) go that nothing else names, of {media_bytes} bytes"));
        Ok(effect)
    }

    /// Has everybody leave a room.
    async fn empty(&self, origin: &Origin, room_id: &RoomId) {
        let Some(room) = self.engine.state().rooms.get(room_id) else { return };
        for membership in [Membership::Invite, Membership::Knock, Membership::Join] {
            for (user_id, _) in room.members(membership, Offset::MAX) {
                closing::leave(&self.engine, origin, room_id.to_owned(), &user_id).await;
            }
        }
    }

    pub(super) async fn erase_user(
        &self,
        origin: Origin,
        user: &str,
        messages: bool,
        reason: Option<String>,
    ) -> Result<Done, ActError> {
        let mut erased = self.belongings(user, messages)?;
        let user_id = erased.user_id.clone();
        erased.still_bound = self.unbind(&origin, &user_id).await;
        let ts = self.engine.clock().now_ms();
        let (erase, media) = (true, true);
        let end = Deactivate { user_id: user_id.clone(), erase, messages, media, reason, ts };
        let closed = closing::close(&self.engine, origin, end).await;
        closed.map_err(|error| of_user(error, &user_id))?;
        Ok(Done::UserErased(erased))
    }

    /// What an erasure would come to.
    pub(super) fn effect_of_erasure(
        &self,
        user: &str,
        messages: bool,
    ) -> Result<Vec<String>, ActError> {
        let UserErased { user_id, rooms, devices, files, file_bytes, .. } =
            self.belongings(user, messages)?;
        let mut effect = vec![
            format!(
                "the account {user_id} is closed and the user's data erased, which cannot be undone"
            ),
            format!("{devices} device(s) are logged out"),
            format!(
                "their name goes in {rooms} room(s), those among them are left that they are in"
            ),
            format!("{files} file(s) are removed, of {file_bytes} bytes"),
        ];
        if messages {
            effect.push("all that they sent is gone for everybody".to_owned());
        }
        Ok(effect)
    }

    /// What there is of a user.
    fn belongings(&self, user: &str, messages: bool) -> Result<UserErased, ActError> {
        let user_id = self.user_id(user)?;
        let state = self.engine.state();
        let files = state.media.of_user(&user_id);
        let devices = state.accounts.get(&user_id);
        let devices = devices.map_or(0, |account| account.read().active_devices().count());
        Ok(UserErased {
            messages,
            rooms: state.memberships.count(&user_id) as u64,
            devices: devices as u64,
            files: files.len() as u64,
            file_bytes: files.iter().map(|(_, stored)| stored.size).sum(),
            still_bound: Vec::new(),
            user_id,
        })
    }

    /// What had records erased, the newest first: up to `last` of it.
    pub(super) fn receipts(&self, last: usize) -> Result<Done, ActError> {
        let mut counts: BTreeMap<Offset, u64> = BTreeMap::new();
        for (_, erase) in self.erasures()? {
            for (because, first, last) in takings(&erase) {
                let records = last.get().saturating_sub(first.get()) + 1;
                *counts.entry(because).or_default() += records;
            }
        }
        for (_, because) in self.engine.state().erasures.condemned(usize::MAX) {
            counts.entry(because).or_default();
        }
        let mut rows = Vec::new();
        for (because, records) in counts.into_iter().rev().take(last) {
            let (who, what, time_ms) = match self.engine.log().get(because)? {
                Some(record) => self.in_words(&record),
                None => ("server".to_owned(), "erased what had done its work".to_owned(), 0),
            };
            rows.push(ReceiptRow { because, time_ms, who, what, records });
        }
        Ok(Done::Receipts { rows })
    }

    /// The receipt of what was erased for the record at `because`, or by it.
    pub(super) fn receipt(&self, because: Offset) -> Result<Done, ActError> {
        let no_record = || ActError::Invalid(format!("there is no record {because}"));
        let record = self.engine.log().get(because)?.ok_or_else(no_record)?;
        let mut taken = BTreeSet::new();
        let mut carried_out = Vec::new();
        for (offset, erase) in self.erasures()? {
            let of_it = takings(&erase);
            let of_it: Vec<_> =
                of_it.filter(|(of, ..)| offset == because || *of == because).collect();
            if !of_it.is_empty() {
                carried_out.push(offset);
            }
            taken.extend(of_it.into_iter().map(|(_, first, last)| (first, last)));
        }
        let waiting = self.engine.state().erasures.condemned_for(because);
        if taken.is_empty() && waiting == 0 {
            let why = format!("nothing was erased for record {because}, or by it");
            return Err(ActError::Invalid(why));
        }
        let records = joined(taken);
        let (who, what, time_ms) = self.in_words(&record);
        let files = match record.command() {
            Ok(Some(Command::MediaRemove(MediaRemove { media_ids, .. }))) => media_ids.len() as u64,
            _ => 0,
        };
        let end = carried_out.last().copied().unwrap_or_default();
        Ok(Done::Receipt(Box::new(Receipt {
            because,
            time_ms,
            who,
            what,
            kinds: self.kinds(&records)?,
            backups: self.backups_with(&records, end),
            records,
            waiting,
            files,
            off_the_log: self.engine.log().off_disk()? >= end,
            off_the_archive: self
                .archive
                .as_deref()
                .map(|dir| archive::has_erased(dir, end, carried_out.contains(&because))),
            carried_out,
        })))
    }

    /// The backups that were made before the record at `end` took the last of it, and hold some of
    /// it.
    fn backups_with(&self, records: &[(Offset, Offset)], end: Offset) -> Vec<String> {
        let Some((first, _)) = records.first() else { return Vec::new() };
        let held = self.engine.state().copies.holding(*first, end);
        let named = |copy: Copy| {
            let BackupMoment { epoch, offset } = copy.moment;
            format!("{}, up to record {offset} of epoch {}", copy.destination, epoch.0)
        };
        held.into_iter().map(named).collect()
    }

    /// Every `log.erase`.
    fn erasures(&self) -> Result<Vec<(Offset, LogErase)>, ReadError> {
        let mut all = Vec::new();
        for offset in self.engine.state().erasures.since(Offset::ZERO) {
            if let Some(Command::LogErase(erase)) = self.engine.events().command(offset)? {
                all.push((offset, erase));
            }
        }
        Ok(all)
    }

    fn kinds(&self, records: &[(Offset, Offset)]) -> Result<BTreeMap<String, u64>, ReadError> {
        let mut kinds = BTreeMap::new();
        let all = records.iter().flat_map(|(first, last)| first.get()..=last.get());
        for offset in all.take(usize::try_from(COUNTED).unwrap_or(usize::MAX)) {
            if let Some(record) = self.engine.log().get(Offset::new(offset))? {
                *kinds.entry(record.header.kind.to_string()).or_default() += 1;
            }
        }
        Ok(kinds)
    }

    fn in_words(&self, record: &Record) -> (String, String, u64) {
        let words = words::of_record(record);
        (words.who, words.text, record.header.time_ms)
    }
}

/// What an erasure took: for which record, and a run of records.
fn takings(erase: &LogErase) -> impl Iterator<Item = (Offset, Offset, Offset)> {
    let reduced = erase.reduced.iter().map(|of| (of.because, of.offset, of.offset));
    let superseded = erase.superseded.iter().map(|(first, last)| (Offset::ZERO, *first, *last));
    let taken = erase.taken.iter().map(|of| (of.because, of.first, of.last));
    reduced.chain(superseded).chain(taken)
}

/// Runs in ascending order, those that touch as one.
fn joined(runs: BTreeSet<(Offset, Offset)>) -> Vec<(Offset, Offset)> {
    let mut joined: Vec<(Offset, Offset)> = Vec::new();
    for (first, last) in runs {
        match joined.last_mut() {
            Some((_, end)) if first <= end.next() => *end = last.max(*end),
            _ => joined.push((first, last)),
        }
    }
    joined
}

pub(super) fn of_purge(error: PurgeError) -> ActError {
    match error {
        PurgeError::NoRoom(_) => ActError::Invalid(error.to_string()),
        PurgeError::Read(error) => ActError::Read(error),
        PurgeError::Rejected(error) => ActError::Rejected(error),
    }
}
