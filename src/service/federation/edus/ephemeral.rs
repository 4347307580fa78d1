//! Typing, receipts and presence: which homeserver may send them, and how often.

use std::sync::Arc;

use futures_util::future::join_all;
use ruma::{RoomId, ServerName, UserId};

use super::EduError;
use crate::federation::PduReceiver;
use logcabin_decide::Proposal;
use logcabin_read::servers::admits;
use logcabin_record::{Offset, Origin};
use logcabin_state::Room;

impl PduReceiver<'_> {
    /// The room for which a homeserver sends something about its user.
    pub(super) fn room_of(
        &self,
        origin: &ServerName,
        room_id: &RoomId,
        user_id: &UserId,
    ) -> Result<Arc<Room>, EduError> {
        if user_id.server_name() != origin {
            return Err(EduError::NotTheirs);
        }
        let room = self.engine.state().rooms.get(room_id);
        let is_seen = |room: &Arc<Room>| {
            room.is_joined(user_id, Offset::MAX) && room.has_server(&self.engine.env().server.name)
        };
        let room = room.filter(is_seen);
        let room = room.ok_or(EduError::NotHere)?;
        if !admits(self.engine.events(), &room, origin)? {
            return Err(EduError::NotTheirs);
        }
        Ok(room)
    }

    /// Counts an EDU about a user of another homeserver against its rates.
    pub(super) fn admit_edu(&self, user_id: &UserId) -> Result<(), EduError> {
        let federation = self.federation;
        let is_neighbour = federation.accounts.is_neighbour(user_id.server_name());
        let is_admitted = federation.ephemeral_rates.admits(user_id, is_neighbour);
        is_admitted.then_some(()).ok_or(EduError::TooMany)
    }

    /// Proposes all of these at once, so that those of one room are one record. Those that are
    /// refused are dropped.
    pub(super) async fn propose_all<P>(&self, proposals: Vec<P>) -> Result<(), EduError>
    where
        P: Proposal<Outcome = ()>,
    {
        let all = proposals.into_iter().map(|of| self.engine.propose(Origin::server(), of));
        for proposed in join_all(all).await {
            match proposed {
                Ok(done) => done.into_inner(),
                Err(error) if error.is_for_now() => return Err(error.into()),
                Err(_) => {}
            }
        }
        Ok(())
    }
}
