//! How much one user may keep on the server.
//!
//! The projections count what there is, and each decision that would add to it asks here first. What takes the place
//! of something as large, and what deletes, is never refused: a user who is over a bound (because it was lowered,
//! or did not exist before) keeps what there is, reads it, and gets below the bound by deleting.
//!
//! Decisions of one user are taken one after the other, so that they do not get past a bound together. Where others
//! add to what a user has (invites, messages to devices), those who do so at the same moment may exceed it by
//! as many.

use std::{fmt, sync::Arc};

use ruma::{DeviceId, RoomId, UserId};

use super::Refusal;
use crate::{
    limits,
    record::command::AccountDataSet,
    state::{State, usage},
};

/// How much one user may keep.
#[derive(Clone, Debug)]
pub struct Quotas {
    /// Types of account data: global ones, and those of each room.
    pub account_data_types: usize,
    /// Bytes of account data, the names and some overhead included.
    pub account_data_bytes: u64,
    /// Filters.
    pub filters: usize,
    /// Bytes of filters.
    pub filter_bytes: u64,
    /// Devices.
    pub devices: usize,
    /// Room aliases.
    pub aliases: usize,
    /// Rooms that the user is in, or asks to be let in.
    pub rooms: usize,
    /// Invites that the user has neither accepted nor rejected.
    pub invites: usize,
    /// As many of them may be by one user.
    pub invites_by_one: usize,
    /// Messages that wait for a device.
    pub to_device: usize,
    /// As many of them may be by one user.
    pub to_device_by_one: usize,
    /// Backups of room keys.
    pub key_backups: usize,
    /// Keys in all of them.
    pub room_keys: usize,
    /// Bytes of these keys.
    pub room_key_bytes: u64,
    /// Reports that nobody has dealt with.
    pub reports: usize,
    /// Who is held to none of this.
    pub exempt: Exempt,
}

impl Default for Quotas {
    /// No bounds.
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

/// Users who are held to no quota.
#[derive(Clone, Default)]
pub struct Exempt(Option<Arc<IsExempt>>);

type IsExempt = dyn Fn(&UserId) -> bool + Send + Sync;

impl Exempt {
    /// Those of whom `is_exempt` says so.
    #[must_use]
    pub fn who(is_exempt: impl Fn(&UserId) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(is_exempt)))
    }

    fn has(&self, user_id: &UserId) -> bool {
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
    /// Whether `user_id` may have account data set.
    pub(super) fn account_data(&self, state: &State, body: &AccountDataSet) -> Result<(), Refusal> {
        let (before, after) = (state.usage.data_before(body), usage::data_bytes(body));
        // What deletes, and what is not counted, always works.
        if after <= before || self.exempt.has(&body.user_id) {
            return Ok(());
        }
        let kept = state.usage.account_data(&body.user_id);
        let (types, bytes) = (self.account_data_types, self.account_data_bytes);
        if before == 0 && kept.count >= types {
            let why =
                format!("You keep {types} types of account data, the most that one user may.");
            return Err(over(why + " Delete some first."));
        }
        if kept.bytes.saturating_sub(before).saturating_add(after) > bytes {
            let why = format!("Your account data would have more than {bytes} bytes together.");
            return Err(over(why + " Delete some first."));
        }
        Ok(())
    }

    /// Whether `user_id` may have one filter more, of so many bytes.
    pub(super) fn filter(
        &self,
        state: &State,
        user_id: &UserId,
        bytes: usize,
    ) -> Result<(), Refusal> {
        if self.exempt.has(user_id) {
            return Ok(());
        }
        let instead = "Use one of them, or put the filter itself into the request.";
        let count = state.accounts.get(user_id).map_or(0, |of| of.read().filters.len());
        if count >= self.filters {
            let why = format!("You have {} filters, the most that one user may.", self.filters);
            return Err(over(format!("{why} {instead}")));
        }
        if state.usage.filter_bytes(user_id).saturating_add(bytes as u64) > self.filter_bytes {
            let why = format!("Your filters would have more than {} bytes.", self.filter_bytes);
            return Err(over(format!("{why} {instead}")));
        }
        Ok(())
    }

    /// Whether a device of this id may log in.
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
        let why = format!("This account has {} devices, the most that it may.", self.devices);
        Err(over(why + " Log some of them out first, or log in as one of them."))
    }

    /// Whether `creator` may make one alias more for `room_id`.
    pub(super) fn alias(
        &self,
        state: &State,
        creator: &UserId,
        room_id: &RoomId,
    ) -> Result<(), Refusal> {
        if state.aliases.count_of_room(room_id) >= limits::ROOM_ALIASES {
            let most = limits::ROOM_ALIASES;
            return Err(over(format!("The room has {most} aliases, the most that one may.")));
        }
        if state.aliases.count_by(creator) >= self.aliases && !self.exempt.has(creator) {
            let most = self.aliases;
            let why =
                format!("You have made {most} aliases that exist, the most that one user may.");
            return Err(over(why + " Remove some first."));
        }
        Ok(())
    }

    /// Whether `user_id` may come to be in one room more.
    pub(super) fn room(&self, state: &State, user_id: &UserId) -> Result<(), Refusal> {
        if state.memberships.count_present(user_id) < self.rooms || self.exempt.has(user_id) {
            return Ok(());
        }
        let why = format!("You are in {} rooms, the most that one user may be in.", self.rooms);
        Err(over(why + " Leave some first."))
    }

    /// Whether `inviter` may invite `user_id`, who is not invited to that room.
    pub(super) fn invite(
        &self,
        state: &State,
        user_id: &UserId,
        inviter: &UserId,
    ) -> Result<(), Refusal> {
        let waiting = state.usage.invites(user_id);
        if waiting < self.invites.min(self.invites_by_one) || self.exempt.has(user_id) {
            return Ok(());
        }
        if waiting >= self.invites {
            let why = format!("{user_id} has {waiting} unanswered invites");
            return Err(over(why + ", the most that one user may have."));
        }
        let by_one = state.usage.invites_by(user_id, inviter);
        if by_one >= self.invites_by_one && !self.exempt.has(inviter) {
            let why = format!("{user_id} has not answered {by_one} invites of yours");
            return Err(over(why + ", the most that one user may have of another."));
        }
        Ok(())
    }

    /// Whether one message more of `sender` may wait for a device. If not, it gets none: what waits for it is not
    /// dropped for what comes later, so that nobody can push out what others have sent.
    pub(super) fn to_device(
        &self,
        state: &State,
        user_id: &UserId,
        device_id: &DeviceId,
        sender: &UserId,
    ) -> bool {
        let (all, by_sender) = state.to_device.count(user_id, device_id, sender);
        all < self.to_device && (by_sender < self.to_device_by_one || self.exempt.has(sender))
    }

    /// Whether `user_id` may begin one backup of room keys more.
    pub(super) fn key_backup(&self, state: &State, user_id: &UserId) -> Result<(), Refusal> {
        let count = state.backups.get(user_id).map_or(0, |backups| backups.read().len());
        if count < self.key_backups || self.exempt.has(user_id) {
            return Ok(());
        }
        let why = format!("You have {count} backups of room keys, the most that one user may.");
        Err(over(why + " Delete an old one first."))
    }

    /// Whether so many keys more, and so many bytes more of keys, may be in the backups of `user_id`.
    pub(super) fn room_keys(
        &self,
        state: &State,
        user_id: &UserId,
        more: usize,
        more_bytes: i64,
    ) -> Result<(), Refusal> {
        let kept = state.backups.get(user_id).map(|backups| backups.read().kept());
        let kept = kept.unwrap_or_default();
        let (count, bytes) = (self.room_keys, self.room_key_bytes);
        let too_many = more > 0 && kept.count.saturating_add(more) > count;
        let too_much = more_bytes > 0 && kept.bytes.saturating_add_signed(more_bytes) > bytes;
        if (!too_many && !too_much) || self.exempt.has(user_id) {
            return Ok(());
        }
        let most = if too_many { format!("{count} keys") } else { format!("{bytes} bytes") };
        let why = format!("Your backups of room keys would hold more than {most}.");
        Err(over(why + " Delete an old backup first."))
    }

    /// Whether `reporter` may make one report more.
    pub(super) fn report(&self, state: &State, reporter: &UserId) -> Result<(), Refusal> {
        let count = state.reports.count_by(reporter);
        if count < self.reports || self.exempt.has(reporter) {
            return Ok(());
        }
        Err(over(format!("Nobody has looked at {count} of your reports yet: wait until some are.")))
    }
}

#[cfg(test)]
mod tests;
