//! Reject invites that wait for users of this homeserver: those to one of them, from one user, or
//! from one homeserver.

use futures_util::future::join_all;
use ruma::{OwnedRoomId, OwnedServerName, OwnedUserId, RoomId, ServerName, UserId};
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_base::{
    background::at_length,
    limits,
    progress::{self, Work},
};
use logcabin_decide::moderation::RejectInvite;
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_service::accounts::closing;
use logcabin_state::Membership;

/// At least one of them is given; all that are given have to fit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RejectInvites {
    /// The user who is invited.
    #[serde(default)]
    pub to: Option<String>,
    /// The user who invites.
    #[serde(default)]
    pub from: Option<String>,
    /// The homeserver of the user who invites.
    #[serde(default)]
    pub from_server: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvitesRejected {
    pub rejected: usize,
    /// The number of those that could not be rejected.
    pub failures: usize,
}

/// Which invites are meant.
struct InviteQuery {
    to: Option<OwnedUserId>,
    from: Option<OwnedUserId>,
    from_server: Option<OwnedServerName>,
}

impl Act for RejectInvites {
    const NAME: &'static str = "reject-invites";
    const DONE: &'static str = "invites-rejected";
    type Done = InvitesRejected;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Reject invites",
        fields: &[
            Field::new("from", "From this user", Kind::TextIfAny),
            Field::new("from_server", "From users of this homeserver", Kind::TextIfAny),
            Field::new("to", "To this user", Kind::TextIfAny),
        ],
        is_final: true,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Self::Done, ActError> {
        let query = self.query(context)?;
        let found = at_length(|| query.find(context))?;
        let mut done = InvitesRejected { rejected: 0, failures: 0 };
        let work = Work::about(progress::MODERATION, "invites", 0, found.len() as u64);
        for some in found.chunks(limits::SHUTDOWN_AT_ONCE) {
            let rejections =
                some.iter().map(|(user_id, room_id)| end_invite(context, &by, room_id, user_id));
            for rejected in join_all(rejections).await {
                match rejected {
                    Ok(rejected) => done.rejected += usize::from(rejected),
                    Err(error) => {
                        tracing::info!(%error, "an invite could not be rejected");
                        done.failures += 1;
                    }
                }
            }
            work.add(some.len() as u64);
        }
        Ok(done)
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let query = self.query(context)?;
        let found = at_length(|| query.find(context))?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let mut users: Vec<_> = found.iter().map(|(user_id, _)| user_id).collect();
        users.dedup();
        Ok(vec![format!("{} invite(s) to {} user(s) are rejected", found.len(), users.len())])
    }
}

/// Rejects an invite. A homeserver whose room this one is not in is not told. False if it is none
/// any more.
pub(super) async fn end_invite(
    context: &ActContext,
    by: &Attribution,
    room_id: &RoomId,
    user_id: &UserId,
) -> Result<bool, ActError> {
    let engine = &context.engine;
    let elsewhere = closing::of_invite_elsewhere(engine, room_id, user_id);
    if let Some(leave) = elsewhere.map_err(ActError::invalid)? {
        let room = engine.state().rooms.get(room_id);
        let is = room.and_then(|room| room.membership(user_id, Offset::MAX)).map(|(_, is)| is);
        if is != Some(Membership::Invite) {
            return Ok(false);
        }
        context.propose(by.clone(), leave).await?;
        return Ok(true);
    }
    let reject = RejectInvite {
        room_id: room_id.to_owned(),
        user_id: user_id.to_owned(),
        ts: engine.clock().timestamp(),
    };
    Ok(context.propose(by.clone(), reject).await?)
}

impl RejectInvites {
    fn query(&self, context: &ActContext) -> Result<InviteQuery, ActError> {
        let Self { to, from, from_server } = self;
        if to.is_none() && from.is_none() && from_server.is_none() {
            return Err(ActError::invalid("Say to whom, from whom or from which homeserver."));
        }
        let server = from_server.as_ref().map(ServerName::parse).transpose();
        let from_server =
            server.map_err(|_| ActError::invalid("This is no name of a homeserver."))?;
        Ok(InviteQuery {
            to: to.as_ref().map(|name| context.user_id(name)).transpose()?,
            from: from.as_ref().map(|name| context.user_anywhere(name)).transpose()?,
            from_server,
        })
    }
}

impl InviteQuery {
    /// The invites, by the user who is invited and the room.
    fn find(&self, context: &ActContext) -> Result<Vec<(OwnedUserId, OwnedRoomId)>, ReadError> {
        let state = context.engine.state();
        let users = match &self.to {
            Some(user_id) => vec![user_id.clone()],
            None => state.accounts.user_ids(),
        };
        let mut found = Vec::new();
        for user_id in users {
            for part in state.memberships.of(&user_id, Offset::MAX) {
                if part.membership == Membership::Invite
                    && self.is_from(context.engine.events().get(part.offset)?.as_deref())
                {
                    found.push((user_id.clone(), part.room_id));
                }
            }
        }
        Ok(found)
    }

    fn is_from(&self, invite: Option<&logcabin_read::events::StoredEvent>) -> bool {
        let sender: Option<&UserId> = invite.map(|invite| &*invite.sender);
        let is_user = |from: &OwnedUserId| sender.is_some_and(|sender| sender == from);
        let is_of =
            |server: &OwnedServerName| sender.is_some_and(|sender| sender.server_name() == server);
        self.from.as_ref().is_none_or(is_user) && self.from_server.as_ref().is_none_or(is_of)
    }
}
