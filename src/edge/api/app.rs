//! What the machinery of endpoints asks of the program behind them.

use std::{net::IpAddr, sync::Arc};

use bytes::Bytes;
use futures_util::{TryFutureExt as _, future::BoxFuture};
use http::{HeaderMap, Method, Uri};
use ruma::{OwnedServerName, ServerName};

use super::{
    about::health::Healthy,
    affinity,
    auth::{rights, session},
    console::visitor,
    federation::signed::{not_overdrawn, signed_by},
    screening,
    server::{Server, node_message::NodeMessage},
    shadow,
};
use crate::http::{
    Admission, ApiError, App, CallerIdentity, Instead, OpenTo, Reply, Screened, Session, Shadowable,
};
use logcabin_base::long_work::WorkPermit;
use logcabin_outside::appservice::Service;
use logcabin_record::{Stream, command::TokenHash};
use logcabin_service::{federation::Kind, health::HealthProblem};

impl App for Server {
    fn elsewhere(&self, method: &Method, uri: &Uri, body: &[u8]) -> Option<u16> {
        let cluster = self.cluster.as_ref()?;
        if let Some(process) = affinity::process_of(uri, body) {
            return Some(process).filter(|process| *process != cluster.tag());
        }
        if let Some(name) = affinity::one_place(uri, body) {
            return cluster.preferred(&name);
        }
        // Two nodes that write into one room decide again and again. While they do, one of them
        // gets all its writes.
        let room = affinity::written_room(method, uri)?;
        let stream = Stream::room(&room);
        self.engine.is_contended(&stream).then(|| cluster.preferred(stream.as_str()))?
    }

    fn is_in_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    fn tell(&self, message: Bytes) {
        if let Some(cluster) = &self.cluster {
            cluster.tell(message);
        }
    }

    fn heard(&self, message: &[u8]) {
        self.told(message);
    }

    fn forward(&self, node: u16, request: Bytes) -> BoxFuture<'_, Option<Bytes>> {
        match &self.cluster {
            Some(cluster) => cluster.forward(node, request),
            None => Box::pin(std::future::ready(None)),
        }
    }

    fn catch_up(&self) -> Option<BoxFuture<'_, bool>> {
        self.cluster.as_ref().map(|cluster| cluster.is_current())
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a str,
        uri: &'a Uri,
    ) -> BoxFuture<'a, Result<Session, ApiError>> {
        Box::pin(session::authenticate(self, token, uri))
    }

    fn verify<'a>(
        &'a self,
        request: &'a http::Request<&'a [u8]>,
        client: IpAddr,
    ) -> BoxFuture<'a, Result<OwnedServerName, ApiError>> {
        Box::pin(signed_by(&self.outside, &self.config.rate_limits, request, client))
    }

    fn claimed(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        not_overdrawn(&self.outside, headers)
    }

    fn answered(&self, server: &ServerName, bytes: usize) {
        if let Some(federation) = &self.outside.federation {
            federation.accounts.charge_bytes(server, Kind::Answer, bytes as u64);
        }
    }

    fn knows(&self, server: &ServerName) -> bool {
        // It has been told of something.
        self.engine.state().destinations.get(server).is_some()
    }

    fn service(&self, token: &str) -> Option<Arc<Service>> {
        self.outside.services.by_token(&TokenHash::of(token))
    }

    fn exempt(&self, session: &Session) -> bool {
        self.is_exempt(session)
    }

    fn turn<'a>(
        &'a self,
        who: &'a CallerIdentity,
        client: IpAddr,
    ) -> BoxFuture<'a, Result<Option<WorkPermit>, ApiError>> {
        let turn = self.long_work_turn(who.session.as_ref(), who.server.as_deref(), client);
        Box::pin(turn.map_ok(Some))
    }

    fn seen(&self, session: &Session, client: IpAddr, agent: Option<&str>) {
        self.auth.passwords.seen(&session.user_id, client);
        let now_ms = self.engine.clock().now_ms();
        let device = (&*session.user_id, &*session.device_id, session.session);
        self.last_seen.see(&self.engine.state(), device, client, agent, now_ms);
        if self.cluster.is_some()
            && let Some(sighting) = self.last_seen.to_tell(session.session, now_ms)
        {
            self.tell_others(&NodeMessage::Seen { session: session.session, sighting });
        }
    }

    fn visitor<'a>(
        &'a self,
        method: &'a Method,
        headers: &'a HeaderMap,
    ) -> BoxFuture<'a, Result<Option<Session>, ApiError>> {
        Box::pin(visitor::logged_in(self, method, headers))
    }

    fn login_first(&self) -> Reply {
        visitor::login_first()
    }

    fn screen(
        &self,
        asked: &Screened<'_>,
    ) -> Option<BoxFuture<'static, Result<Admission, ApiError>>> {
        screening::screen(self, asked)
    }

    fn admit(&self, session: &Session, open_to: OpenTo) -> Result<(), ApiError> {
        rights::admit(&self.engine, session, open_to)
    }

    fn instead(&self, request: &Shadowable<'_>) -> Option<Instead> {
        shadow::instead(self, request)
    }
}

impl Healthy for Server {
    fn troubles(&self) -> BoxFuture<'_, Vec<HealthProblem>> {
        Box::pin(self.health.troubles())
    }

    fn warnings(&self) -> Vec<HealthProblem> {
        self.health.warnings()
    }
}
