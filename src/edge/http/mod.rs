//! The edge: the only code that knows HTTP.
//!
//! ```text
//! accept loop, connections (serve, exchange) → one warp filter → Edge: OPTIONS? → route (table)
//!   → who calls (caller) → rate limit (throttle) → body → typed request (decode) → handler
//!   → Reply or ApiError → CORS, compression
//! ```
//!
//! The rest of the program is known here only through [`App`]. An endpoint is one `async fn` from a
//! [`Cx`] and a request type (see [`Endpoint`]) to an answer, and one line in a [`Table`], which
//! also states who may call it and how often, and whether what it takes may leave the server
//! ([`audience`]):
//!
//! ```ignore
//! async fn whoami(
//!     cx: Cx<Server>,
//!     _: whoami::v3::Request,
//! ) -> Result<whoami::v3::Response, ApiError> {
//!     let mut response = whoami::v3::Response::new(cx.caller.user_id.clone());
//!     response.device_id = Some(cx.caller.device_id.clone());
//!     Ok(response)
//! }
//!
//! Table::new(&config.server.prefixes).on(whoami, cheap().guests())
//! ```
//!
//! Promises: every response has CORS headers, a content type and a request id; a handler runs only
//! for a request that was authenticated as its type says and decoded whole; a panic in a handler
//! fails only that request. A client that hangs up drops the handler at its next await, so
//! whatever has an effect must not live in the handler's future.

mod access_log;
mod audience;
mod caller;
mod class;
mod compress;
mod decode;
mod edge;
pub mod endpoint;
mod error;
mod exchange;
mod forward;
mod gather;
mod incoming;
pub mod listen;
mod objects;
mod outgoing;
mod policy;
mod proxy_header;
mod refused_logins;
mod reply;
mod request_metrics;
mod screened;
pub mod serve;
mod shadow;
mod table;
#[cfg(test)]
mod tests;
mod throttle;
pub mod tls;
mod turn;

use std::{net::IpAddr, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use ruma::{OwnedServerName, ServerName};
use tokio::sync::Notify;

#[cfg(test)]
pub(crate) use self::decode::decode_as;

pub use self::{
    access_log::{AccessLog, AccessLogError},
    caller::{
        Access, Appservice, AsOf, Caller, CallerIdentity, Gate, Homeserver, OpenTo, Session,
        access_token,
    },
    class::Class,
    decode::{body as read_body, json_error, query as read_query},
    edge::Edge,
    endpoint::{AsOfRequest, Body, Download, Endpoint, Extended, Json, Received, Upload, endpoint},
    error::{ApiError, AuthRequired, ErrorCode, ErrorRenderer},
    incoming::Incoming,
    objects::{JsonPath, check as check_objects},
    policy::{Policy, cheap, limited, unlimited},
    reply::Reply,
    screened::{Admission, Screened},
    shadow::{Instead, Shadow, Shadowable},
    table::{Table, TableError},
};
pub(crate) use self::{
    decode::query_parameter,
    refused_logins::{LoginRefusal, refused_login},
};
use logcabin_base::{long_work::WorkPermit, shutdown::Shutdown};
use logcabin_outside::appservice::Service;
use logcabin_record::Origin;

/// What the edge needs of the program behind it.
pub trait App: Send + Sync + 'static {
    /// Waits until a request that begins now sees every write that was acknowledged before it,
    /// anywhere; `false` if that is not known. `None` if it does so anyway.
    fn catch_up(&self) -> Option<BoxFuture<'_, bool>> {
        None
    }

    /// The answer to a request that matches no endpoint.
    fn not_served(
        &self,
        uri: &::http::Uri,
        headers: &::http::HeaderMap,
        error: ApiError,
    ) -> Result<Reply, ApiError> {
        let _ = (uri, headers);
        Err(error)
    }

    /// The node that is to answer a request, if that is another one: it has in memory what the
    /// request refers to, or orders the writes of a busy room.
    fn elsewhere(&self, method: &::http::Method, uri: &::http::Uri, body: &[u8]) -> Option<u16> {
        let _ = (method, uri, body);
        None
    }

    /// Whether other nodes serve the same clients.
    fn is_in_cluster(&self) -> bool {
        false
    }

    /// Sends the other nodes a message that may get lost.
    fn tell(&self, message: Bytes) {
        let _ = message;
    }

    /// Handles such a message of another node.
    fn heard(&self, message: &[u8]) {
        let _ = message;
    }

    /// Has another node answer a request; `None` if it is gone.
    fn forward(&self, node: u16, request: Bytes) -> BoxFuture<'_, Option<Bytes>> {
        let _ = (node, request);
        Box::pin(std::future::ready(None))
    }

    /// The verdict of the operator's checks on a request, which is begun only after it. `None` if
    /// nothing is checked.
    fn screen(
        &self,
        asked: &Screened<'_>,
    ) -> Option<BoxFuture<'static, Result<Admission, ApiError>>> {
        let _ = asked;
        None
    }

    /// The session that an access token stands for.
    ///
    /// The error is what the client is told: [`ApiError::unknown_token`], or that its account is
    /// locked, or that the server cannot tell right now. In the query of `uri` an application
    /// service names for whom it acts. By default nobody logs in.
    fn authenticate<'a>(
        &'a self,
        token: &'a str,
        uri: &'a ::http::Uri,
    ) -> BoxFuture<'a, Result<Session, ApiError>> {
        let _ = (token, uri);
        Box::pin(std::future::ready(Err(ApiError::unknown_token(false))))
    }

    /// The homeserver that has signed a request from this address.
    fn verify<'a>(
        &'a self,
        request: &'a ::http::Request<&'a [u8]>,
        client: IpAddr,
    ) -> BoxFuture<'a, Result<OwnedServerName, ApiError>> {
        let _ = (request, client);
        let error = ApiError::forbidden("This server takes no requests of other homeservers.");
        Box::pin(std::future::ready(Err(error)))
    }

    /// Refuses a request that claims to be from a homeserver that may send none now, before its
    /// body is read.
    fn claimed(&self, headers: &::http::HeaderMap) -> Result<(), ApiError> {
        let _ = headers;
        Ok(())
    }

    /// Notes that a homeserver was answered with this many bytes.
    fn answered(&self, server: &ServerName, bytes: usize) {
        let _ = (server, bytes);
    }

    /// Whether this server has delivered anything to a homeserver before.
    fn knows(&self, server: &ServerName) -> bool {
        let _ = server;
        true
    }

    /// The application service that a token belongs to.
    fn service(&self, token: &str) -> Option<Arc<Service>> {
        let _ = token;
        None
    }

    /// Whether the requests of this session are exempt from rate limits.
    fn exempt(&self, session: &Session) -> bool {
        let _ = session;
        false
    }

    /// Waits for the caller's turn to do long work; `None` if turns are not taken.
    fn turn<'a>(
        &'a self,
        who: &'a CallerIdentity,
        client: IpAddr,
    ) -> BoxFuture<'a, Result<Option<WorkPermit>, ApiError>> {
        let _ = (who, client);
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Notes the address and the user agent of a request of this session.
    fn seen(&self, session: &Session, client: IpAddr, agent: Option<&str>) {
        let _ = (session, client, agent);
    }

    /// The session of the browser that requests a page; `None` without a login.
    fn visitor<'a>(
        &'a self,
        method: &'a ::http::Method,
        headers: &'a ::http::HeaderMap,
    ) -> BoxFuture<'a, Result<Option<Session>, ApiError>> {
        let _ = (method, headers);
        Box::pin(std::future::ready(Ok(None)))
    }

    /// A redirect to the login page.
    fn login_first(&self) -> Reply {
        Reply::see_other(::http::HeaderValue::from_static("/"))
    }

    /// Refuses callers to whom the endpoint is not open: guests, and those whose account is locked,
    /// suspended or closed.
    fn admit(&self, session: &Session, open_to: OpenTo) -> Result<(), ApiError> {
        let _ = (session, open_to);
        Err(ApiError::unknown_token(false))
    }

    /// What is done instead of a request of a user who is shadow-banned.
    fn instead(&self, request: &Shadowable<'_>) -> Option<Instead> {
        let _ = request;
        None
    }
}

/// What a handler is given besides the typed request: `A` is the program, `C` the caller, whose
/// type is decided by the endpoint's authentication scheme (see [`Gate`]).
pub struct Cx<A, C = Session> {
    pub app: Arc<A>,
    pub(crate) caller: C,
    /// The request's id in the log, also sent to the client as `X-Request-Id`.
    pub(crate) request_id: Arc<str>,
    /// The address the request came from.
    pub(crate) client: IpAddr,
    pub(crate) uri: ::http::Uri,
    /// Signals that the server is stopping: whatever waits should answer then.
    pub(crate) shutdown: Shutdown,
    /// Notified when another client needs the place of the connection: a request that waits for
    /// news is to be answered as if the wait was over. All HTTP/1 connections share one, and it is
    /// notified for one request at a time. An HTTP/2 connection has its own, for all its requests.
    pub(crate) hurry: Arc<Notify>,
    /// The body as it was sent, checked to be one JSON object if the endpoint takes JSON (and `{}`
    /// if there was none).
    pub(crate) body: Bytes,
}

impl<A, C> Cx<A, C> {
    /// The same with this caller, for handlers that determine it themselves.
    pub(crate) fn called_by<D>(self, caller: D) -> Cx<A, D> {
        let Self { app, caller: _, request_id, client, uri, shutdown, hurry, body } = self;
        Cx { app, caller, request_id, client, uri, shutdown, hurry, body }
    }

    /// Releases what the request was decoded from, which is a part of the connection's read buffer.
    /// For handlers that wait before they answer.
    pub(crate) fn forget_request(&mut self) {
        self.uri = ::http::Uri::default();
        self.body = Bytes::new();
    }

    /// A parameter of the query that ruma's request type lacks. One without a value counts as
    /// missing.
    pub fn query(&self, name: &str) -> Result<Option<String>, ApiError> {
        query_parameter(&self.uri, name)
    }
}

impl<A, C: Caller> Cx<A, C> {
    /// The origin of the records that this request causes.
    pub(crate) fn origin(&self) -> Origin {
        self.caller.origin(&self.request_id)
    }
}
