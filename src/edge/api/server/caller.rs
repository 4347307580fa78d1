//! What handlers ask of a request and its caller.

use std::net::IpAddr;

use ruma::{ServerName, UserId};

use super::Server;
use crate::http::{ApiError, Caller, Cx, Session};
use logcabin_base::{long_work::WorkPermit, rate::network_prefix};
use logcabin_decide::Proposal;
use logcabin_engine::Durable;
use logcabin_read::view::View;
use logcabin_service::requester::Requester;

impl Server {
    /// Whom a request is counted against. Strangers among other homeservers are counted by their
    /// address: names are cheap.
    fn requester(
        &self,
        session: Option<&Session>,
        server: Option<&ServerName>,
        client: IpAddr,
    ) -> Requester {
        let accounts = self.outside.federation.as_deref().map(|federation| &federation.accounts);
        match (session, server, accounts) {
            (Some(session), ..) => Requester::User(session.user_id.clone()),
            (None, Some(server), Some(accounts)) if !accounts.is_stranger(server) => {
                Requester::Server(server.to_owned())
            }
            _ => Requester::Address(network_prefix(client)),
        }
    }

    /// Waits for a caller's turn to do long work: see [`LongWork`].
    ///
    /// [`LongWork`]: logcabin_base::long_work::LongWork
    pub(in crate::api) async fn long_work_turn(
        &self,
        session: Option<&Session>,
        server: Option<&ServerName>,
        client: IpAddr,
    ) -> Result<WorkPermit, ApiError> {
        let exempt = session.is_some_and(|session| self.is_exempt(session));
        let turns = match server {
            Some(_) => &self.work_for_servers,
            None => &self.long_work,
        };
        let turn = turns.place(&self.requester(session, server, client), exempt).await;
        turn.map_err(|busy| ApiError::limit_exceeded(busy.retry_after))
    }
}

impl<C: Caller> Cx<Server, C> {
    /// Does work that may take long (it grows with a room's members or a user's rooms), in the
    /// caller's turn and within its share.
    pub(in crate::api) async fn at_length<T>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let (session, server) = (self.caller.session(), self.caller.server());
        let turn = self.app.long_work_turn(session, server.map(|server| &**server), self.client);
        turn.await?.at_length(work)
    }

    /// Whom this request is counted against.
    pub(in crate::api) fn whose(&self) -> Requester {
        let (session, server) = (self.caller.session(), self.caller.server());
        self.app.requester(session, server.map(|server| &**server), self.client)
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
