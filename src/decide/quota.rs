//! Quotas: how much one user may store on the server.
//!
//! The projections keep the counts, and every decision that adds to them checks the quota first.
//! Deleting is never refused, and neither is replacing something with something no larger. So a
//! user who is over a quota, because it was lowered or is new, can still read everything and get
//! back under it.
//!
//! Decisions about one user's own data are taken one at a time, so concurrent requests cannot
//! exceed a quota together. Invites and messages to devices come from other users, whose decisions
//! run in parallel: there, concurrent requests can exceed the quota by their number.

use std::{fmt, sync::Arc};

use ruma::{DeviceId, RoomId, ServerName, UserId};

use super::Refusal;
use logcabin_base::limits;
use logcabin_record::{Offset, command::AccountDataSet};
use logcabin_state::{State, usage};

/// The quotas. Settings in `[quotas]` document them.
#[derive(Clone, Debug)]
pub struct Quotas {
    /// Account data entries, global and of rooms.
    pub account_data_types: usize,
    /// Bytes of account data, see [`usage::data_bytes`].
    pub account_data_bytes: u64,
    pub filters: usize,
    pub filter_bytes: u64,
    pub devices: usize,
    /// Room aliases.
    pub aliases: usize,
    /// Rooms that the user has joined or knocked on.
    pub rooms: usize,
    /// Pending invites to the user.
    pub invites: usize,
    /// Pending invites to the user from one sender.
    pub invites_by_one: usize,
    /// Messages waiting for one device.
    pub to_device: usize,
    /// Messages waiting for one device from one sender.
    pub to_device_by_one: usize,
    /// Room key backups.
    pub key_backups: usize,
    /// Keys in all backups.
    pub room_keys: usize,
    /// Bytes of these keys.
    pub room_key_bytes: u64,
    /// Open reports made by the user.
    pub reports: usize,
    /// Users without quotas.
    pub exempt: Exempt,
}

impl Default for Quotas {
    /// No quotas.
    fn default() -> Self {
        Self {
            account_data_types: usize::MAX,
            account_data_bytes: u64::MAX,
            filters: usize::MAX,
            filter_bytes: u64::MAX,
            devices: usize::MAX,
            aliases: usize::MAX,
            rooms: usize::MAX,
            invites: usize::MAX,
            invites_by_one: usize::MAX,
            to_device: usize::MAX,
            to_device_by_one: usize::MAX,
            key_backups: usize::MAX,
            room_keys: usize::MAX,
            room_key_bytes: u64::MAX,
            reports: usize::MAX,
            exempt: Exempt::default(),
        }
    }
}

/// Pending invites of a user who is at the limit. If strangers sent some of them, the oldest is
/// dropped for a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InviteOverflow {
    /// Those by users of the same homeserver.
    OfOne,
    /// Those by users of all other homeservers.
    OfAll,
}

/// Users without quotas.
#[derive(Clone, Default)]
pub struct Exempt(Option<Arc<IsExempt>>);

type IsExempt = dyn Fn(&UserId) -> bool + Send + Sync;

impl Exempt {
    /// The users for whom `is_exempt` returns true.
    pub fn who(is_exempt: impl Fn(&UserId) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(is_exempt)))
    }

    /// Whether this user is one of them.
    pub fn has(&self, user_id: &UserId) -> bool {
        self.0.as_ref().is_some_and(|is_exempt| is_exempt(user_id))
    }
}

impl fmt::Debug for Exempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exempt")
    }
}

fn over(text: String) -> Refusal {
    Refusal::OverQuota(text)
}

impl Quotas {
    /// Checks a write of account data.
    pub(super) fn account_data(&self, state: &State, body: &AccountDataSet) -> Result<(), Refusal> {
        let (before, after) = (state.usage.data_before(body), usage::data_bytes(body));
        // This covers deletions, and types that do not count.
        if after <= before || self.exempt.has(&body.user_id) {
            return Ok(());
        }
        let kept = state.usage.account_data(&body.user_id);
        let (types, bytes) = (self.account_data_types, self.account_data_bytes);
        if before == 0 && kept.count >= types {
            let why = format!("You already have {types} account data entries, which is the limit.");
            return Err(over(why + " Delete some first."));
        }
        if kept.bytes.saturating_sub(before).saturating_add(after) > bytes {
            let why = format!("Your account data would exceed {bytes} bytes in total.");
            return Err(over(why + " Delete some first."));
        }
        Ok(())
    }

    /// Checks a new filter of this many bytes.
    pub(super) fn filter(
        &self,
        state: &State,
        user_id: &UserId,
        bytes: usize,
    ) -> Result<(), Refusal> {
        if self.exempt.has(user_id) {
            return Ok(());
        }
        let instead = "Reuse one of them, or send filters inline.";
        let count = state.accounts.get(user_id).map_or(0, |of| of.read().filters.len());
        if count >= self.filters {
            let why = format!("You already have {} filters, which is the limit.", self.filters);
            return Err(over(format!("{why} {instead}")));
        }
        if state.usage.filter_bytes(user_id).saturating_add(bytes as u64) > self.filter_bytes {
            let why = format!("Your filters would exceed {} bytes in total.", self.filter_bytes);
            return Err(over(format!("{why} {instead}")));
        }
        Ok(())
    }

    /// Checks a login as this device.
    pub(super) fn device(
        &self,
        state: &State,
        user_id: &UserId,
        device_id: &DeviceId,
    ) -> Result<(), Refusal> {
        let Some(account) = state.accounts.get(user_id) else { return Ok(()) };
        let account = account.read();
        let is_full = account.device_count() >= self.devices;
        if !is_full || account.device(device_id).is_some() || self.exempt.has(user_id) {
            return Ok(());
        }
        let why = format!("This account has {} devices, which is the limit.", self.devices);
        Err(over(why + " Log out of one first, or log in with the id of an existing device."))
    }

    /// Checks a new alias for a room.
    pub(super) fn alias(
        &self,
        state: &State,
        creator: &UserId,
        room_id: &RoomId,
    ) -> Result<(), Refusal> {
        if state.aliases.count_of_room(room_id) >= limits::ROOM_ALIASES {
            let most = limits::ROOM_ALIASES;
            return Err(over(format!("The room already has {most} aliases, which is the limit.")));
        }
        if state.aliases.count_by(creator) >= self.aliases && !self.exempt.has(creator) {
            let most = self.aliases;
            let why = format!("You have created {most} aliases, which is the limit.");
            return Err(over(why + " Remove some first."));
        }
        Ok(())
    }

    /// Checks a join, a knock or a new room.
    pub fn room(&self, state: &State, user_id: &UserId) -> Result<(), Refusal> {
        if state.memberships.count_present(user_id) < self.rooms || self.exempt.has(user_id) {
            return Ok(());
        }
        let why = format!("You are in {} rooms, which is the limit.", self.rooms);
        Err(over(why + " Leave some first."))
    }

    /// Checks a new invite of `user_id` at the homeserver `own`. Invites by its users and those of
    /// others are counted apart: others can make up any number of users.
    pub(super) fn invite(
        &self,
        state: &State,
        own: &ServerName,
        user_id: &UserId,
        inviter: &UserId,
    ) -> Result<(), Refusal> {
        let waiting = state.usage.invites(user_id);
        if self.exempt.has(user_id) {
            return Ok(());
        }
        let is_full = if inviter.server_name() == own {
            waiting >= self.invites && state.usage.invites_from(user_id, own) >= self.invites
        } else {
            self.crowd(state, own, user_id, inviter).is_some()
        };
        if is_full {
            let why = format!("{user_id} already has {waiting} pending invites");
            return Err(over(why + ", which is the limit."));
        }
        if waiting < self.invites_by_one {
            return Ok(());
        }
        let by_one = state.usage.invites_by(user_id, inviter);
        if by_one >= self.invites_by_one && !self.exempt.has(inviter) {
            let why = format!("{user_id} already has {by_one} pending invites from you");
            return Err(over(why + ", which is the limit."));
        }
        Ok(())
    }

    /// The pending invites that have used up the limit for one by a user of another homeserver.
    pub fn crowd(
        &self,
        state: &State,
        own: &ServerName,
        user_id: &UserId,
        inviter: &UserId,
    ) -> Option<InviteOverflow> {
        if self.exempt.has(user_id) {
            return None;
        }
        let server = inviter.server_name();
        let remote = || {
            let local = state.usage.invites_from(user_id, own);
            // One may have come in between the two.
            state.usage.invites(user_id).saturating_sub(local)
        };
        if state.memberships.share_a_room(user_id, inviter, Offset::MAX) {
            return (remote() >= self.invites).then_some(InviteOverflow::OfAll);
        }
        let (of_one, of_all) = limits::STRANGE_INVITES;
        if state.usage.invites_from(user_id, server) >= of_one.min(self.invites_by_one) {
            return Some(InviteOverflow::OfOne);
        }
        (remote() >= of_all.min(self.invites.div_ceil(2))).then_some(InviteOverflow::OfAll)
    }

    /// Whether a device's inbox accepts another message from `sender`. If it does not, the new
    /// message is dropped and the pending ones are kept, so that no sender can push out messages of
    /// others.
    pub(super) fn to_device(
        &self,
        state: &State,
        user_id: &UserId,
        device_id: &DeviceId,
        sender: &UserId,
    ) -> bool {
        let (all, by_sender) = state.to_device.count(user_id, device_id, sender.as_str());
        all < self.to_device && (by_sender < self.to_device_by_one || self.exempt.has(sender))
    }

    /// The same for a message of a user of another homeserver, who may share no room with
    /// `user_id`. What users of one homeserver have sent counts together, because it could make up
    /// any number of them. It could make up homeservers, too: strangers leave space for others.
    pub(super) fn to_device_from(
        &self,
        state: &State,
        user_id: &UserId,
        device_id: &DeviceId,
        sender: &UserId,
        is_strange: bool,
    ) -> bool {
        let server = sender.server_name().as_str();
        let (all, by_server) = state.to_device.count(user_id, device_id, server);
        let (most, most_by_one) = match is_strange {
            true => {
                (self.to_device.div_ceil(2), self.to_device_by_one.min(limits::STRANGE_LETTERS))
            }
            false => (self.to_device, self.to_device_by_one),
        };
        all < most && by_server < most_by_one
    }

    /// The same for a message to devices of another homeserver.
    pub(super) fn to_device_outside(
        &self,
        state: &State,
        server: &ServerName,
        sender: &UserId,
    ) -> bool {
        let (all, by_sender) = state.to_device.count_outside(server, sender);
        all < self.to_device && (by_sender < self.to_device_by_one || self.exempt.has(sender))
    }

    /// Checks a new backup of room keys.
    pub(super) fn key_backup(&self, state: &State, user_id: &UserId) -> Result<(), Refusal> {
        let count = state.key_backups.get(user_id).map_or(0, |backups| backups.read().len());
        if count < self.key_backups || self.exempt.has(user_id) {
            return Ok(());
        }
        let why = format!("You already have {count} room key backups, which is the limit.");
        Err(over(why + " Delete an old one first."))
    }

    /// Checks adding this many room keys and bytes to the backups of `user_id`.
    pub(super) fn room_keys(
        &self,
        state: &State,
        user_id: &UserId,
        more: usize,
        more_bytes: i64,
    ) -> Result<(), Refusal> {
        let kept = state.key_backups.get(user_id).map(|backups| backups.read().kept());
        let kept = kept.unwrap_or_default();
        let (count, bytes) = (self.room_keys, self.room_key_bytes);
        let too_many = more > 0 && kept.count.saturating_add(more) > count;
        let too_much = more_bytes > 0 && kept.bytes.saturating_add_signed(more_bytes) > bytes;
        if (!too_many && !too_much) || self.exempt.has(user_id) {
            return Ok(());
        }
        let most = if too_many { format!("{count} keys") } else { format!("{bytes} bytes") };
        let why = format!("Your room key backups would exceed {most} in total.");
        Err(over(why + " Delete an old backup first."))
    }

    /// Checks a new report.
    pub(super) fn report(&self, state: &State, reporter: &UserId) -> Result<(), Refusal> {
        let count = state.reports.count_by(reporter);
        if count < self.reports || self.exempt.has(reporter) {
            return Ok(());
        }
        Err(over(format!(
            "You have {count} open reports, which is the limit until some are resolved."
        )))
    }
}
