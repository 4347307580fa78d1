//! The directory of room aliases.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use parking_lot::RwLock;
use ruma::{OwnedRoomAliasId, OwnedRoomId, OwnedUserId, RoomAliasId, RoomId, UserId};
use serde::{Deserialize, Serialize};

use super::{history::History, serializers};
use logcabin_record::{
    Offset,
    command::{AliasRemove, AliasSet},
};

/// The target of an alias.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    pub room_id: OwnedRoomId,
    /// The user who created the alias.
    pub creator: OwnedUserId,
}

/// All aliases with their history.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Aliases(#[serde(with = "serializers::locked")] RwLock<Inner>);

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "Stored")]
struct Inner {
    aliases: BTreeMap<OwnedRoomAliasId, History<Option<Target>>>,
    /// The aliases that point at a room, or once did.
    of_room: BTreeMap<OwnedRoomId, BTreeSet<OwnedRoomAliasId>>,
    #[serde(skip)]
    counts: Counts,
}

/// The part that snapshots contain. The counts are derived from it.
#[derive(Deserialize)]
struct Stored {
    aliases: BTreeMap<OwnedRoomAliasId, History<Option<Target>>>,
    of_room: BTreeMap<OwnedRoomId, BTreeSet<OwnedRoomAliasId>>,
}

/// The number of aliases that exist now.
#[derive(Debug, Default)]
struct Counts {
    by_creator: HashMap<OwnedUserId, usize>,
    by_room: HashMap<OwnedRoomId, usize>,
}

impl From<Stored> for Inner {
    fn from(Stored { aliases, of_room }: Stored) -> Self {
        let mut counts = Counts::default();
        for target in aliases.values().filter_map(|history| history.latest()?.as_ref()) {
            counts.add(target);
        }
        Self { aliases, of_room, counts }
    }
}

impl Counts {
    fn add(&mut self, target: &Target) {
        *self.by_creator.entry(target.creator.clone()).or_default() += 1;
        *self.by_room.entry(target.room_id.clone()).or_default() += 1;
    }

    fn take(&mut self, target: &Target) {
        take_one(&mut self.by_creator, &target.creator);
        take_one(&mut self.by_room, &target.room_id);
    }
}

fn take_one<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, of: &K) {
    if let Some(count) = counts.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(of);
        }
    }
}

impl Inner {
    /// Changes the history of an alias and keeps the counts in step.
    fn change(
        &mut self,
        alias: OwnedRoomAliasId,
        change: impl FnOnce(&mut History<Option<Target>>),
    ) {
        let history = self.aliases.entry(alias).or_default();
        let before = history.latest().cloned().flatten();
        change(history);
        let after = history.latest().and_then(Option::as_ref);
        if before.as_ref() != after {
            before.iter().for_each(|target| self.counts.take(target));
            after.iter().for_each(|target| self.counts.add(target));
        }
    }
}

impl Aliases {
    pub fn get(&self, alias: &RoomAliasId, at: Offset) -> Option<Target> {
        self.0.read().aliases.get(alias)?.at(at)?.1.clone()
    }

    /// When `alias` changed, up to and including `at`.
    pub fn changes(&self, alias: &RoomAliasId, at: Offset) -> Vec<Offset> {
        let inner = self.0.read();
        let history = inner.aliases.get(alias).into_iter();
        history.flat_map(|history| history.between(Offset::ZERO, at)).map(|(at, _)| at).collect()
    }

    /// The aliases that point at `room_id` as of `at`, in order.
    pub fn of_room(&self, room_id: &RoomId, at: Offset) -> Vec<OwnedRoomAliasId> {
        let Inner { aliases, of_room, .. } = &*self.0.read();
        let points_here = |alias: &&OwnedRoomAliasId| {
            let target = aliases.get(*alias).and_then(|history| history.at(at)?.1.as_ref());
            target.is_some_and(|target| target.room_id == *room_id)
        };
        of_room.get(room_id).into_iter().flatten().filter(points_here).cloned().collect()
    }

    /// The number of existing aliases created by `creator`.
    pub fn count_by(&self, creator: &UserId) -> usize {
        self.0.read().counts.by_creator.get(creator).copied().unwrap_or_default()
    }

    /// The number of aliases that point at `room_id`.
    pub fn count_of_room(&self, room_id: &RoomId) -> usize {
        self.0.read().counts.by_room.get(room_id).copied().unwrap_or_default()
    }

    /// Every alias as of `at` with its target, in order.
    pub fn all(&self, at: Offset) -> Vec<(OwnedRoomAliasId, Target)> {
        let aliases = &self.0.read().aliases;
        let pointing = |(alias, history): (&OwnedRoomAliasId, &History<Option<Target>>)| {
            Some((alias.clone(), history.at(at)?.1.clone()?))
        };
        aliases.iter().filter_map(pointing).collect()
    }

    pub(super) fn set(&self, offset: Offset, body: AliasSet) {
        let target = Target { room_id: body.room_id, creator: body.creator };
        let mut inner = self.0.write();
        inner.of_room.entry(target.room_id.clone()).or_default().insert(body.alias.clone());
        inner.change(body.alias, |history| history.push(offset, Some(target)));
    }

    pub(super) fn remove(&self, offset: Offset, body: AliasRemove) {
        self.0.write().change(body.alias, |history| history.push(offset, None));
    }

    /// The records of aliases that are erased with this room: all records of an alias that points
    /// at it or nowhere; for an alias that points elsewhere now, the records that pointed it here.
    pub fn records_of(&self, room_id: &RoomId) -> Vec<Offset> {
        let Inner { aliases, of_room, .. } = &*self.0.read();
        let histories = of_room.get(room_id).into_iter().flatten();
        let histories = histories.filter_map(|alias| aliases.get(alias));
        let points_here = |target: &Option<Target>| {
            target.as_ref().is_some_and(|target| target.room_id == *room_id)
        };
        let mut records = Vec::new();
        for history in histories {
            let elsewhere = history.changes().any(|(_, to)| to.is_some() && !points_here(to));
            let whole = history.latest().is_some_and(points_here) || !elsewhere;
            let gone = history.changes().filter(|(_, target)| whole || points_here(target));
            records.extend(gone.map(|(offset, _)| offset));
        }
        records
    }

    /// Removes the effects of these records, as if they had never existed.
    pub(super) fn forget(&self, room_id: &RoomId, is_one: impl Fn(Offset) -> bool) {
        let inner = &mut *self.0.write();
        for alias in inner.of_room.get(room_id).cloned().unwrap_or_default() {
            let Some(history) = inner.aliases.get(&alias) else { continue };
            let before: BTreeSet<_> = targets(history).collect();
            inner.change(alias.clone(), |history| history.retain(|offset| !is_one(offset)));
            let history = inner.aliases.get(&alias);
            let after: BTreeSet<_> = history.into_iter().flat_map(targets).collect();
            if history.is_none_or(|history| history.latest().is_none()) {
                inner.aliases.remove(&alias);
            }
            for room_id in before.difference(&after) {
                if let Some(aliases) = inner.of_room.get_mut(room_id) {
                    aliases.remove(&alias);
                    if aliases.is_empty() {
                        inner.of_room.remove(room_id);
                    }
                }
            }
        }
    }

    /// The room was purged: nothing points at it.
    pub(super) fn end_room(&self, offset: Offset, room_id: &RoomId) {
        let mut inner = self.0.write();
        for alias in inner.of_room.remove(room_id).unwrap_or_default() {
            let latest = inner.aliases.get(&alias).and_then(|history| history.latest()?.as_ref());
            if latest.is_some_and(|target| target.room_id == *room_id) {
                inner.change(alias, |history| history.push(offset, None));
            }
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&self.0.read().aliases);
    }
}

/// The rooms that an alias has pointed at.
fn targets(history: &History<Option<Target>>) -> impl Iterator<Item = OwnedRoomId> {
    history.changes().filter_map(|(_, target)| Some(target.as_ref()?.room_id.clone()))
}
