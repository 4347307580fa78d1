//! What handlers ask of a request and its caller.

use ruma::UserId;

use super::Server;
use crate::http::{ApiError, Caller, Cx};
use logcabin_base::rate::network_prefix;
use logcabin_decide::Proposal;
use logcabin_engine::Durable;
use logcabin_read::view::View;
use logcabin_service::requester::Requester;

impl<C: Caller> Cx<Server, C> {
    /// Does work that may take long (it grows with a room's members or a user's rooms), in the
    /// caller's turn and within its share: see [`LongWork`].
    pub(in crate::api) async fn at_length<T>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let session = self.caller.session();
        let exempt = session.is_some_and(|session| self.app.is_exempt(session));
        let turns = match self.caller.server() {
            Some(_) => &self.app.work_for_servers,
            None => &self.app.long_work,
        };
        let done = turns.run(&self.whose(), exempt, work).await;
        done.map_err(|busy| ApiError::limit_exceeded(busy.retry_after))?
    }

    /// Whom this request is counted against. Strangers among other homeservers are counted by their
    /// address: names are cheap.
    pub(in crate::api) fn whose(&self) -> Requester {
        let accounts =
            self.app.outside.federation.as_deref().map(|federation| &federation.accounts);
        match (self.caller.session(), self.caller.server(), accounts) {
            (Some(session), ..) => Requester::User(session.user_id.clone()),
            (None, Some(server), Some(accounts)) if !accounts.is_stranger(server) => {
                Requester::Server(server.clone())
            }
            _ => Requester::Address(network_prefix(self.client)),
        }
    }

    /// Proposes a change in the caller's name.
    pub(in crate::api) async fn propose<P: Proposal>(
        &self,
        proposal: P,
    ) -> Result<Durable<P::Outcome>, ApiError> {
        Ok(self.app.engine.propose(self.origin(), proposal).await?)
    }
}

impl Cx<Server> {
    /// The caller's look as of the head.
    pub(in crate::api) fn view(&self) -> View<'_> {
        self.app.view(&self.caller)
    }

    /// Only for the user's own data.
    pub(in crate::api) fn must_be(&self, user_id: &UserId) -> Result<(), ApiError> {
        if user_id == self.caller.user_id {
            Ok(())
        } else {
            Err(ApiError::forbidden("This belongs to another user."))
        }
    }
}
