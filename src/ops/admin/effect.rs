//! What an act would come to, said before it is done.

use super::{
    acts::Act,
    office::{ActError, Office},
};
use crate::{base::background, record::Offset, state::Membership};

impl Office {
    /// As [`Office::effect`], also of what the whole log has to be looked through for.
    pub(super) async fn effect_at_length(&self, act: &Act) -> Result<Vec<String>, ActError> {
        match act {
            Act::PurgeRoom { room, .. } => self.effect_of_purge(room).await,
            act => background::at_length(|| self.effect(act)),
        }
    }

    /// In sentences. What could not be done is refused here as it would be then, as far as that can
    /// be told beforehand.
    pub(super) fn effect(&self, act: &Act) -> Result<Vec<String>, ActError> {
        let one = |sentence: String| Ok(vec![sentence]);
        match act {
            Act::DryRun { of } | Act::Because { of, .. } => self.effect(of),
            Act::CreateUser { user, admin, .. } => {
                let user_id = self.new_user_id(user)?;
                if self.engine.state().accounts.contains(&user_id) {
                    return Err(ActError::Taken(user_id));
                }
                let what = if *admin { "administrator's account" } else { "account" };
                one(format!("the {what} {user_id} is made"))
            }
            Act::ResetPassword { user, keep_devices, .. } => {
                let user_id = self.active(user)?;
                let devices = if *keep_devices { 0 } else { self.devices(&user_id).len() };
                Ok(vec![
                    format!("{user_id} has a new password"),
                    format!("{devices} device(s) are logged out"),
                ])
            }
            Act::SetStatus { user, admin, locked, suspended, .. } => {
                let user_id = self.active(user)?;
                let is = self.engine.state().accounts.standing(&user_id).unwrap_or_default();
                let changes = [
                    ("an administrator", *admin, is.admin),
                    ("locked", *locked, is.locked),
                    ("suspended", *suspended, is.suspended),
                ];
                let sentence = |(what, wanted, is): (&str, Option<bool>, bool)| {
                    let wanted = wanted.filter(|wanted| *wanted != is)?;
                    let not = if wanted { "" } else { "not " };
                    Some(format!("{user_id} is {not}{what}"))
                };
                Ok(changes.into_iter().filter_map(sentence).collect())
            }
            Act::Deactivate { user, erase, .. } => self.effect_of_deactivation(user, *erase),
            Act::LogOut { user, devices } => {
                let user_id = self.user_id(user)?;
                let number = match devices {
                    None => self.devices(&user_id).len(),
                    Some(devices) => {
                        for device in devices {
                            self.must_have(&user_id, device)?;
                        }
                        devices.len()
                    }
                };
                one(format!("{number} device(s) of {user_id} are logged out"))
            }
            Act::SetProfile { user, field, .. } => {
                one(format!("the {field} of {} is set", self.user_id(user)?))
            }
            Act::RenameDevice { user, device, .. } => {
                let user_id = self.user_id(user)?;
                self.must_have(&user_id, device)?;
                one(format!("the device {device} of {user_id} is renamed"))
            }
            Act::LogInAs { user, .. } => {
                one(format!("an administrator is logged in as {}", self.active(user)?))
            }
            Act::JoinRoom { user, room } => {
                one(format!("{} joins {}", self.active(user)?, self.room(room)?.id))
            }
            Act::BlockRoom { room, blocked } => {
                let does = if *blocked { "can get into" } else { "is kept out of" };
                one(format!("nobody {does} {room} any more"))
            }
            Act::ShutDownRoom { room, block, new_room, purge, .. } => {
                let mut effect = self.effect_of_shutdown(room, *block, new_room.clone())?;
                if *purge {
                    effect.push("the room is purged, with all that was ever said in it".to_owned());
                }
                Ok(effect)
            }
            Act::MakeRoomAdmin { room, user } => {
                let (room, user_id) = (self.room(room)?, self.active(user)?);
                one(format!("{user_id} gets the greatest power that can be given in {}", room.id))
            }
            Act::SendNotice { user, .. } => one(format!("{} gets a notice", self.active(user)?)),
            Act::QuarantineMedia { of, quarantined } => self.effect_of_quarantine(of, *quarantined),
            Act::ProtectMedia { media, protected } => {
                let does = if *protected { "is exempt" } else { "is not exempt" };
                one(format!("{} {does} from quarantine", self.media_id(media)?))
            }
            Act::RemoveReport { id } => {
                self.report(*id)?;
                one(format!("the report {id} is taken off the list"))
            }
            Act::CreateRegistrationToken { .. } => one("a registration token is made".to_owned()),
            Act::UpdateRegistrationToken { token, .. } => {
                let id = self.registration_token(token)?.start();
                one(format!("the registration token {id} is changed"))
            }
            Act::DeleteRegistrationToken { token } => {
                let id = self.registration_token(token)?.start();
                one(format!("nobody can make an account with the registration token {id} any more"))
            }
            Act::ImportUser { user, .. } => {
                let name = user.as_deref().unwrap_or("the name that they had");
                one(format!("an account is made of the export, with {name}"))
            }
            // It takes its time: see above.
            Act::PurgeRoom { room, .. } => one(format!("{} is purged", self.room(room)?.id)),
            Act::EraseUser { user, messages } => self.effect_of_erasure(user, *messages),
            Act::DeleteMedia { of } => self.effect_of_deletion(of),
            Act::ListErasures { .. }
            | Act::ShowErasure { .. }
            | Act::ListUsers { .. }
            | Act::ShowUser { .. }
            | Act::ListRooms { .. }
            | Act::ShowRoom { .. }
            | Act::ListMedia { .. }
            | Act::MediaStatistics
            | Act::ListReports
            | Act::ShowReport { .. }
            | Act::ListRegistrationTokens
            | Act::NoteBackup { .. }
            | Act::Prove(_)
            | Act::WriteSnapshot
            | Act::CompareSnapshots
            | Act::SnapshotStatus => {
                Err(ActError::Invalid("This changes nothing that is recorded.".to_owned()))
            }
        }
    }

    fn effect_of_deactivation(&self, user: &str, erase: bool) -> Result<Vec<String>, ActError> {
        let user_id = self.user_id(user)?;
        let state = self.engine.state();
        let is = state.accounts.standing(&user_id).unwrap_or_default();
        let mut effect = Vec::new();
        if is.deactivated.is_none() {
            effect.push(format!("the account {user_id} is closed, which cannot be undone"));
            effect.push(format!("{} device(s) are logged out", self.devices(&user_id).len()));
            let parts = state.memberships.of(&user_id, Offset::MAX);
            let count =
                |membership| parts.iter().filter(|part| part.membership == membership).count();
            effect.push(format!("{} room(s) are left", count(Membership::Join)));
            let waiting = count(Membership::Invite) + count(Membership::Knock);
            effect.push(format!("{waiting} invite(s) and knock(s) are taken back"));
            let threepids = self.threepids(&user_id).len();
            effect.push(format!("{threepids} address(es) are removed"));
        }
        if erase && is.erased.is_none() {
            let what = "profile and account data are removed, and what they sent is kept from all who \
                        have not seen it";
            effect.push(what.to_owned());
        }
        Ok(effect)
    }
}
