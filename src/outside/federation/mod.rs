//! Other homeservers: where they are ([`names`]), how to connect to them ([`connect`]), their
//! signing keys ([`keys`]), and signed requests to them.

mod answer;
pub(crate) mod connect;
mod files;
mod keys;
mod multipart;
mod names;
mod policy_server;
mod probe;
mod refused;
mod sender;
mod x_matrix;

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use ruma::{OwnedServerName, ServerName};
use thiserror::Error;
use tokio::time::{self, timeout, timeout_at};

pub use answer::{AnswerBody, AnswerCharge, FederationResponse};
pub use files::{NoFile, RemoteDownload};
pub use keys::{EventKeys, KeyError, KeyRing, Priority};
use names::Names;
pub use policy_server::PolicyServers;
pub use probe::{OwnCertificate, Vouched};
pub use refused::Refused;
pub use sender::Sender;
pub use x_matrix::XMatrix;

use crate::{
    exits::{self, Rehearsal},
    federation::connect::{Dialer, TlsConnection},
    proxy::Proxy,
};
use logcabin_base::{
    bodies::{self, ArrivalDeadline, Body, BodyBudget, Principal, Urgency},
    limits,
};
use logcabin_config as config;
use logcabin_record::server_keys::ServerKeys;

/// Why another homeserver gave no answer.
#[derive(Clone, Debug, Error)]
pub enum Unreachable {
    /// The configuration denies it.
    #[error("this homeserver does not federate with it")]
    Denied,
    /// It is this server.
    #[error("it is this homeserver")]
    Own,
    #[error("its name is not a host name")]
    Name,
    /// Its address is not found.
    #[error("DNS: {0}")]
    Dns(String),
    /// All its addresses are private.
    #[error("its address is not one of the public internet")]
    NotPublic,
    /// It accepts no connection.
    #[error("no connection: {0}")]
    Connection(String),
    /// It does not prove its identity.
    #[error("TLS: {0}")]
    Tls(String),
    /// It did not answer in time.
    #[error("no answer in time")]
    Late,
    /// The answer exceeds the limit.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// There is no memory for the answer.
    #[error(transparent)]
    Full(#[from] bodies::Full),
    /// It refused.
    #[error("it answered with status {0}")]
    Status(u16),
    /// The answer is not what was expected.
    #[error("the answer is not understood: {0}")]
    Unexpected(String),
}

/// A request to another homeserver.
#[derive(Clone, Debug)]
pub struct FederationRequest {
    pub(crate) method: Method,
    /// The path, with the query.
    pub(crate) path: String,
    /// The body, which is JSON.
    pub(crate) body: Option<Vec<u8>>,
    /// The limit on the whole exchange.
    pub timeout: Duration,
    /// The largest answer, in bytes.
    pub max_bytes: usize,
    /// Whether it is signed. Public endpoints need no signature.
    pub(crate) signed: bool,
    /// The memory that a byte of the answer counts for, including what is built from it.
    pub(crate) weight: u64,
    /// Who waits for the answer, if it is large.
    pub(crate) urgency: Urgency,
    /// Whether it waits while the answers of the homeserver exceed their rate.
    is_paced: bool,
}

impl FederationRequest {
    /// A request without a body.
    pub fn get(path: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            body: None,
            timeout: limits::FEDERATION_TIMEOUT,
            max_bytes: limits::OUTBOUND_ANSWER_BYTES,
            signed: true,
            weight: limits::BODY_WEIGHT,
            urgency: Urgency::Caused,
            is_paced: false,
        }
    }

    /// The same if only an event of the homeserver is the cause, and the answer may be large.
    #[must_use]
    pub const fn paced(mut self) -> Self {
        self.is_paced = true;
        self
    }

    /// The same if the answer may be as large as the state of a room. Its events are parts of it,
    /// or take their memory from it: see [`FederationResponse::take_apart`].
    #[must_use]
    pub fn of_state(mut self, urgency: Urgency) -> Self {
        self.max_bytes = limits::FEDERATION_STATE_BYTES;
        self.timeout = limits::FEDERATION_STATE_TIMEOUT;
        self.is_paced = urgency == Urgency::Caused;
        (self.weight, self.urgency) = (1, urgency);
        self
    }

    /// A request with a JSON body.
    pub fn post(path: impl Into<String>, body: &impl serde::Serialize) -> Self {
        let body = serde_json::to_vec(body).unwrap_or_default();
        Self { method: Method::POST, body: Some(body), ..Self::get(path) }
    }

    /// The same by `PUT`.
    pub fn put(path: impl Into<String>, body: &impl serde::Serialize) -> Self {
        Self { method: Method::PUT, ..Self::post(path, body) }
    }

    /// The same, unsigned.
    #[must_use]
    pub const fn unsigned(mut self) -> Self {
        self.signed = false;
        self
    }
}

/// Whether policy lists bar a homeserver.
type IsBarred = dyn Fn(&ServerName) -> bool + Send + Sync;

/// Requests to other homeservers.
pub struct FederationClient {
    /// Who is allowed, and who is denied.
    lists: ArcSwap<config::Federation>,
    is_barred: OnceLock<Box<IsBarred>>,
    own: Arc<ServerKeys>,
    names: Arc<Names>,
    /// Memory for answers on their way.
    bodies: Arc<BodyBudget>,
    client: Client<Connector, Full<Bytes>>,
}

impl FederationClient {
    pub fn new(
        config: &config::Federation,
        outbound: &config::Outbound,
        own: Arc<ServerKeys>,
        bodies: &Arc<BodyBudget>,
    ) -> Result<Self, String> {
        if outbound.rehearsal {
            return Err(Rehearsal.to_string());
        }
        let dialer = Dialer::new(config, Proxy::new(outbound)?)?;
        let names = Arc::new(Names::new(dialer, bodies));
        let (most, idle) = limits::FEDERATION_IDLE;
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(idle)
            .pool_max_idle_per_host(most)
            .http1_max_buf_size(limits::FEDERATION_BUFFER_BYTES)
            .build(Connector(Arc::clone(&names)));
        let lists = ArcSwap::from_pointee(config.clone());
        let is_barred = OnceLock::new();
        Ok(Self { lists, is_barred, own, names, bodies: Arc::clone(bodies), client })
    }

    /// The name of this homeserver.
    pub fn own_name(&self) -> &ServerName {
        &self.own.name
    }

    /// Whether the configuration and the policy lists allow `server`.
    pub fn permits(&self, server: &ServerName) -> bool {
        self.lists.load().permits(server)
            && !self.is_barred.get().is_some_and(|is_barred| is_barred(server))
    }

    /// Sets which homeservers policy lists bar. To be called once.
    pub fn bar(&self, is_barred: Box<IsBarred>) {
        // A second call has no effect.
        let _ = self.is_barred.set(is_barred);
    }

    /// Takes over whom another configuration allows and denies.
    pub fn set_lists(&self, config: &config::Federation) {
        self.lists.store(Arc::new(config.clone()));
    }

    /// Sends a request to another homeserver.
    ///
    /// # Errors
    /// When there is no answer in time, or it is too large.
    pub async fn send(
        &self,
        server: &ServerName,
        mut question: FederationRequest,
    ) -> Result<FederationResponse, Unreachable> {
        self.may_ask(server)?;
        if question.is_paced {
            let began = time::Instant::now();
            let waiting = self.bodies.answers_in_rate(server.as_str());
            let waited = timeout(question.timeout / 2, waiting).await;
            waited.map_err(|_| Unreachable::Late)?;
            question.timeout = question.timeout.saturating_sub(began.elapsed());
        }
        let limit = question.timeout;
        let asked = timeout(limit, Box::pin(self.exchange(server, question))).await;
        asked.unwrap_or(Err(Unreachable::Late))
    }

    /// Whether another homeserver accepts a connection, which is closed again.
    async fn reach(&self, server: &ServerName, time: Duration) -> Result<(), Unreachable> {
        self.may_ask(server)?;
        let connecting = Box::pin(async {
            let target = self.names.target(server).await?;
            self.names.dialer.connect(&target).await.map(drop)
        });
        timeout(time, connecting).await.unwrap_or(Err(Unreachable::Late))
    }

    /// Whether requests to a homeserver are allowed.
    fn may_ask(&self, server: &ServerName) -> Result<(), Unreachable> {
        if server == self.own.name {
            return Err(Unreachable::Own);
        }
        if !self.permits(server) {
            return Err(Unreachable::Denied);
        }
        Ok(())
    }

    async fn exchange(
        &self,
        server: &ServerName,
        question: FederationRequest,
    ) -> Result<FederationResponse, Unreachable> {
        let (max_bytes, until) = (question.max_bytes, time::Instant::now() + question.timeout);
        let account = self.account(server, &question);
        let (head, incoming) = self.begin(server, question).await?.into_parts();
        Ok(FederationResponse {
            status: head.status,
            body: whole(incoming, account, max_bytes, until).await?,
        })
    }

    /// The account that an answer is charged to.
    fn account(&self, server: &ServerName, question: &FederationRequest) -> ChargedTo<'_> {
        let asked = server.as_str().into();
        let (weight, urgency) = (question.weight, question.urgency.clone());
        ChargedTo { bodies: &self.bodies, asked, weight, urgency }
    }

    /// The account for what is kept of answers because of an event of this homeserver. Whoever
    /// keeps it must await [`Body::watch`].
    pub fn kept_for(&self, server: &ServerName) -> Body {
        let body = self.bodies.begin(Principal::Asked(server.as_str().into()), 1);
        body.arrived(true);
        body
    }

    /// Sends a request to another homeserver, if the configuration allows it. The answer has begun
    /// to arrive, and its size is not limited.
    async fn begin(
        &self,
        server: &ServerName,
        question: FederationRequest,
    ) -> Result<Response<Incoming>, Unreachable> {
        let FederationRequest { method, path, body, signed, .. } = question;
        if method != Method::GET {
            let noted = exits::leaves("a request to a homeserver");
            noted.map_err(|error| Unreachable::Connection(format!("not noted: {error}")))?;
        }
        let unexpected = |error: &dyn std::fmt::Display| Unreachable::Unexpected(error.to_string());
        let uri: Uri = format!("https://{server}{path}").parse().map_err(|_| Unreachable::Name)?;
        let host = self.names.host(server).await;
        let mut request = Request::new(body.unwrap_or_default());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        if signed {
            let (own, sign) = (&self.own.name, XMatrix::sign);
            let signed = self.own.with_current(|pair| sign(&request, own, server, pair));
            let header = signed.map_err(|error| unexpected(&error))?.header();
            let mut header = HeaderValue::from_str(&header).map_err(|error| unexpected(&error))?;
            header.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, header);
        }
        let agent = concat!("Logcabin/", env!("CARGO_PKG_VERSION"));
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        let host = HeaderValue::from_str(host.as_str()).map_err(|error| unexpected(&error))?;
        headers.insert(HOST, host);
        if !request.body().is_empty() {
            let json = HeaderValue::from_static("application/json");
            request.headers_mut().insert(CONTENT_TYPE, json);
        }
        let request = request.map(|body| Full::new(Bytes::from(body)));
        self.client.request(request).await.map_err(failed)
    }
}

/// The account that an answer is charged to.
struct ChargedTo<'a> {
    bodies: &'a Arc<BodyBudget>,
    asked: Box<str>,
    weight: u64,
    urgency: Urgency,
}

impl<'a> ChargedTo<'a> {
    /// That of a host, for a short answer.
    fn of_host(bodies: &'a Arc<BodyBudget>, host: &str) -> Self {
        let (weight, urgency) = (limits::BODY_WEIGHT, Urgency::Caused);
        Self { bodies, asked: host.into(), weight, urgency }
    }

    fn begin(self) -> Body {
        self.bodies.begin(Principal::Asked(self.asked), self.weight).urgent(self.urgency)
    }
}

/// Reads a whole body until then, if it is not larger than `max_bytes` and does not stop. It is on
/// the account as long as a part of it is kept.
async fn whole(
    mut incoming: Incoming,
    account: ChargedTo<'_>,
    max_bytes: usize,
    until: time::Instant,
) -> Result<AnswerBody, Unreachable> {
    // If the length is known, a body that is too large is refused unread.
    let expected = incoming.size_hint();
    if expected.lower() > max_bytes as u64 {
        return Err(Unreachable::TooLarge(max_bytes));
    }
    let expected = usize::try_from(expected.exact().unwrap_or(0)).unwrap_or(0);
    let mut held = account.begin();
    let (mut body, mut strides) = (Vec::new(), ArrivalDeadline::begin());
    let mut dropped = std::pin::pin!(held.watch());
    let mut hurried = false;
    loop {
        let hurries = held.has_to_hurry();
        if hurries && !hurried {
            strides.again(body.len());
        }
        hurried = hurries;
        let pace = if hurries { limits::LARGE_ANSWER_PACE } else { limits::ANSWER_PACE };
        let late = strides.deadline(body.len(), pace);
        let frame = tokio::select! {
            frame = timeout_at(late, incoming.frame()) => frame.map_err(|_| Unreachable::Late)?,
            () = &mut dropped => return Err(bodies::Full::Dropped.into()),
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| Unreachable::Connection(error.to_string()))?;
        let Ok(part) = frame.into_data() else { continue };
        let length = body.len() + part.len();
        if length > max_bytes {
            return Err(Unreachable::TooLarge(max_bytes));
        }
        if length > limits::SMALL_BODY_BYTES {
            let began = time::Instant::now();
            held.grow(length, until).await?;
            strides.pause(began.elapsed());
        }
        if length > body.capacity() {
            body.reserve_exact(bodies::room_for(length, expected) - body.len());
        }
        body.extend_from_slice(&part);
    }
    if body.len() <= limits::SMALL_BODY_BYTES {
        return Ok(AnswerBody::new(body, None));
    }
    held.arrived(false);
    Ok(AnswerBody::new(body, Some(held)))
}

/// Why a request failed: in [`Connector`], or in the exchange.
fn failed(error: hyper_util::client::legacy::Error) -> Unreachable {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    let mut last = String::new();
    while let Some(this) = cause {
        if let Some(unreachable) = this.downcast_ref::<Unreachable>() {
            return unreachable.clone();
        }
        last = this.to_string();
        cause = this.source();
    }
    Unreachable::Connection(last)
}

/// Connects to a homeserver by its name instead of a host.
#[derive(Clone)]
struct Connector(Arc<Names>);

impl tower_service::Service<Uri> for Connector {
    type Response = TlsConnection;
    type Error = Unreachable;
    type Future = Pin<Box<dyn Future<Output = Result<TlsConnection, Unreachable>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Unreachable>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let names = Arc::clone(&self.0);
        Box::pin(async move {
            let server = uri.authority().map(|authority| authority.as_str());
            let server = server.and_then(|name| OwnedServerName::try_from(name).ok());
            let target = names.target(&server.ok_or(Unreachable::Name)?).await?;
            names.dialer.connect(&target).await
        })
    }
}
