//! The directory of room aliases.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use ruma::{OwnedRoomAliasId, OwnedRoomId, OwnedUserId, RoomAliasId, RoomId};
use serde::Serialize;

use super::history::History;
use crate::record::{
    Offset,
    command::{AliasRemove, AliasSet},
};

/// Where an alias points.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    /// The room.
    pub room_id: OwnedRoomId,
    /// Who made the alias.
    pub creator: OwnedUserId,
}

/// All aliases with their past.
#[derive(Debug, Default)]
pub struct Aliases(RwLock<BTreeMap<OwnedRoomAliasId, History<Option<Target>>>>);

impl Aliases {
    /// Where `alias` points as of `at`.
    #[must_use]
    pub fn get(&self, alias: &RoomAliasId, at: Offset) -> Option<Target> {
        self.0.read().get(alias)?.at(at)?.1.clone()
    }

    /// The aliases that point at `room_id` as of `at`, in order.
    #[must_use]
    pub fn of_room(&self, room_id: &RoomId, at: Offset) -> Vec<OwnedRoomAliasId> {
        let aliases = self.0.read();
        let points_here = |history: &History<Option<Target>>| matches!(history.at(at), Some((_, Some(target))) if target.room_id == *room_id);
        aliases
            .iter()
            .filter(|(_, history)| points_here(history))
            .map(|(alias, _)| alias.clone())
            .collect()
    }

    /// Every alias as of `at` with where it points, in order.
    #[must_use]
    pub fn all(&self, at: Offset) -> Vec<(OwnedRoomAliasId, Target)> {
        let aliases = self.0.read();
        let pointing = |(alias, history): (&OwnedRoomAliasId, &History<Option<Target>>)| {
            Some((alias.clone(), history.at(at)?.1.clone()?))
        };
        aliases.iter().filter_map(pointing).collect()
    }

    pub(super) fn set(&self, offset: Offset, body: AliasSet) {
        let target = Target { room_id: body.room_id, creator: body.creator };
        self.0.write().entry(body.alias).or_default().push(offset, Some(target));
    }

    pub(super) fn remove(&self, offset: Offset, body: AliasRemove) {
        self.0.write().entry(body.alias).or_default().push(offset, None);
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
