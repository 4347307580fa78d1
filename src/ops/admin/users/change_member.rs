//! Kick, ban or unban a user of this homeserver or another: in the rooms that are named, or in all.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use ruma::{OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde::{Deserialize, Serialize};

use super::{reject_invites::end_invite, rooms_elsewhere};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
    rooms::SAY_BYTES,
};
use logcabin_base::{
    background::at_length,
    limits,
    progress::{self, Work},
};
use logcabin_decide::moderation::{self, MemberChange};
use logcabin_record::Offset;

/// The most rooms that one order names.
const ROOMS: usize = 1000;

/// How many of the rooms in which it could not be done are named.
const NAMED: usize = 100;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangeMember {
    pub user: String,
    pub change: ChangeOf,
    /// Only in these rooms. None means in all in which there is something to change; a user who is
    /// in no room can only be banned from rooms that are named.
    #[serde(default)]
    pub rooms: Vec<String>,
    /// A user of this server in whose name it is done where they may.
    #[serde(default)]
    pub by: Option<String>,
    /// The reason that the rooms are told.
    #[serde(default)]
    pub say: Option<String>,
    /// For a kick or a ban: whether what they sent since they joined is redacted.
    #[serde(default)]
    pub redact: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeOf {
    Kick,
    Ban,
    Unban,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberChanged {
    pub user_id: OwnedUserId,
    /// The rooms in which it was done, with the users in whose name.
    pub rooms: BTreeMap<OwnedRoomId, OwnedUserId>,
    /// The number of rooms in which it could not be done.
    pub failures: usize,
    /// Some of them, each with the reason.
    pub failed: BTreeMap<OwnedRoomId, String>,
}

impl From<ChangeOf> for MemberChange {
    fn from(change: ChangeOf) -> Self {
        match change {
            ChangeOf::Kick => Self::Kick,
            ChangeOf::Ban => Self::Ban,
            ChangeOf::Unban => Self::Unban,
        }
    }
}

impl Act for ChangeMember {
    const NAME: &'static str = "change-member";
    const DONE: &'static str = "member-changed";
    type Done = MemberChanged;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Kick, ban or unban",
        fields: &[
            Field::new("user", "User", Kind::Text),
            Field::new("change", "Change", Kind::OneOf(&["ban", "kick", "unban"])),
            Field::new("rooms", "Only in these rooms", Kind::Words),
            Field::new("say", "Reason that the rooms are told", Kind::TextIfAny),
            Field::new("redact", "Redact what they sent since they joined", Kind::Flag),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Self::Done, ActError> {
        let (user_id, rooms) = self.plan(context)?;
        let in_whose_name = self.by.as_ref().map(|by| context.active(by)).transpose()?;
        let mut changed = MemberChanged {
            user_id: user_id.clone(),
            rooms: BTreeMap::new(),
            failures: 0,
            failed: BTreeMap::new(),
        };
        let work = Work::about(progress::MODERATION, user_id.as_str(), 0, rooms.len() as u64);
        for some in rooms.chunks(limits::SHUTDOWN_AT_ONCE) {
            let changes = some.iter().map(|room_id| async {
                // Nobody but the invited user can act on an invite to a room of others.
                if self.change == ChangeOf::Kick
                    && end_invite_elsewhere(context, &by, room_id, &user_id).await?
                {
                    return Ok(Some(user_id.clone()));
                }
                let change = moderation::ChangeMember {
                    room_id: room_id.clone(),
                    user_id: user_id.clone(),
                    change: self.change.into(),
                    by: in_whose_name.clone(),
                    say: self.say.clone(),
                    redact_events: self.redact,
                    ts: context.engine.clock().timestamp(),
                };
                context.propose(by.clone(), change).await.map_err(ActError::from)
            });
            for (room_id, done) in some.iter().zip(join_all(changes).await) {
                match done {
                    Ok(Some(by)) => drop(changed.rooms.insert(room_id.clone(), by)),
                    Ok(None) => {}
                    Err(error) => {
                        changed.failures += 1;
                        if changed.failed.len() < NAMED {
                            changed.failed.insert(room_id.clone(), error.to_string());
                        }
                    }
                }
            }
            work.add(some.len() as u64);
        }
        Ok(changed)
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let (user_id, rooms) = self.plan(context)?;
        let what = match self.change {
            ChangeOf::Kick => "is kicked from",
            ChangeOf::Ban => "is banned from",
            ChangeOf::Unban => "is not banned any more from",
        };
        let mut said = match &rooms[..] {
            [] => return Ok(Vec::new()),
            [room_id] => {
                vec![format!("{user_id} {what} {room_id}, where a local member may do so")]
            }
            rooms => {
                let count = rooms.len();
                vec![format!("{user_id} {what} {count} rooms, where a local member may do so")]
            }
        };
        let is_in = |room_id: &OwnedRoomId| {
            let room = context.engine.state().rooms.get(room_id);
            room.is_some_and(|room| room.is_joined(&user_id, Offset::MAX))
        };
        if self.redact && rooms.iter().any(is_in) {
            said.push(format!(
                "what {user_id} sent there since they joined is redacted, where that member may \
                 redact, here and on homeservers that follow MSC4293; that cannot be undone"
            ));
        }
        Ok(said)
    }
}

/// Ends an invite to a room that this homeserver is not in. False if there is none.
async fn end_invite_elsewhere(
    context: &ActContext,
    by: &Attribution,
    room_id: &RoomId,
    user_id: &UserId,
) -> Result<bool, ActError> {
    let engine = &context.engine;
    let is_local = engine.state().accounts.contains(user_id);
    let room = engine.state().rooms.get(room_id).filter(|_| is_local);
    let is_elsewhere = room.is_some_and(|room| !room.has_server(&engine.env().server.name));
    if is_elsewhere { end_invite(context, by, room_id, user_id).await } else { Ok(false) }
}

impl ChangeMember {
    /// The user, and the rooms in which there is something to change.
    fn plan(&self, context: &ActContext) -> Result<(OwnedUserId, Vec<OwnedRoomId>), ActError> {
        if self.say.as_ref().is_some_and(|say| say.len() > SAY_BYTES) {
            let why = format!("What the rooms are told has at most {SAY_BYTES} bytes.");
            return Err(ActError::Invalid(why));
        }
        if self.redact && self.change == ChangeOf::Unban {
            let why = "An unban redacts nothing.";
            return Err(ActError::Invalid(why.to_owned()));
        }
        if self.rooms.len() > ROOMS {
            return Err(ActError::Invalid(format!("At most {ROOMS} rooms are named.")));
        }
        let user_id = context.user_anywhere(&self.user)?;
        if context.notices.is_sender(&user_id) {
            return Err(ActError::Invalid(format!("{user_id} sends the notices of the server.")));
        }
        let change = MemberChange::from(self.change);
        if self.rooms.is_empty() {
            let mut rooms = at_length(|| known_in(context, &user_id));
            rooms.retain(|(_, membership)| change.changes(Some(*membership)));
            // The server has to be able to tell them something.
            let notices = &context.engine.state().notices;
            rooms.retain(|(room_id, _)| !notices.is_room_of(&user_id, room_id));
            if self.change == ChangeOf::Ban {
                // Not those that they left long ago.
                rooms.retain(|(_, membership)| MemberChange::Kick.changes(Some(*membership)));
            }
            return Ok((user_id, rooms.into_iter().map(|(room_id, _)| room_id).collect()));
        }
        let mut rooms = Vec::with_capacity(self.rooms.len());
        for name in &self.rooms {
            let room = context.room(name)?;
            let membership = room.membership(&user_id, Offset::MAX).map(|(_, is)| is);
            if change.changes(membership) && !rooms.contains(&room.id) {
                rooms.push(room.id.clone());
            }
        }
        Ok((user_id, rooms))
    }
}

/// The rooms that know a user, with their membership in each.
fn known_in(
    context: &ActContext,
    user_id: &UserId,
) -> Vec<(OwnedRoomId, logcabin_state::Membership)> {
    let state = context.engine.state();
    if state.accounts.contains(user_id) {
        let rooms = state.memberships.of(user_id, Offset::MAX).into_iter();
        return rooms.map(|part| (part.room_id, part.membership)).collect();
    }
    let rooms = rooms_elsewhere(context, user_id).into_iter();
    rooms.map(|(room_id, membership, _)| (room_id, membership)).collect()
}
