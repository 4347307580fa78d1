//! Other homeservers: where they are ([`names`]), how to connect to them ([`connect`]), their
//! signing keys ([`keys`]), and signed requests to them.

mod connect;
mod device_changes;
mod files;
mod gaps;
mod keys;
mod multipart;
mod names;
mod policy;
mod sender;

use std::{
    collections::HashSet,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use parking_lot::Mutex;
use ruma::{
    OwnedServerName, OwnedUserId, ServerName, UserId,
    api::federation::authentication::{XMatrix, XMatrixSigningInput},
};
use thiserror::Error;
use tokio::{sync::Semaphore, time::timeout};

pub(crate) use device_changes::{DeviceChanges, Fetch};
pub(crate) use files::{NoFile, OnItsWay};
pub(crate) use gaps::{GapFilling, Memory};
pub(crate) use keys::{EventKeys, Haste, KeyError, KeyRing};
use names::Names;
pub(crate) use policy::PolicyServers;
pub(crate) use sender::Sender;

use crate::{
    base::{limits, rate::Refundable, turns::Turns},
    config::{self, Config},
    engine::{Engine, Voucher},
    outside::federation::connect::{Dialer, Line},
    record::server_keys::ServerKeys,
};

/// Why another homeserver gave no answer.
#[derive(Clone, Debug, Error)]
pub(crate) enum Unreachable {
    /// The configuration denies it.
    #[error("this homeserver does not federate with it")]
    Denied,
    /// It is this server.
    #[error("it is this homeserver")]
    Own,
    /// The name is not that of a host.
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
    /// It refused.
    #[error("it answered with status {0}")]
    Status(u16),
    /// The answer is not what was expected.
    #[error("the answer is not understood: {0}")]
    Unexpected(String),
}

/// A request to another homeserver.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// The method.
    pub(crate) method: Method,
    /// The path, with the query.
    pub(crate) path: String,
    /// The body, which is JSON.
    pub(crate) body: Option<Vec<u8>>,
    /// The limit on the whole exchange.
    pub(crate) timeout: Duration,
    /// The largest answer, in bytes.
    pub(crate) max_bytes: usize,
    /// Whether it is signed. Public endpoints need no signature.
    pub(crate) signed: bool,
}

impl Question {
    /// A request without a body.
    pub(crate) fn get(path: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            body: None,
            timeout: limits::FEDERATION_TIMEOUT,
            max_bytes: limits::OUTBOUND_ANSWER_BYTES,
            signed: true,
        }
    }

    /// A request with a JSON body.
    pub(crate) fn post(path: impl Into<String>, body: &impl serde::Serialize) -> Self {
        let body = serde_json::to_vec(body).unwrap_or_default();
        Self { method: Method::POST, body: Some(body), ..Self::get(path) }
    }

    /// The same by `PUT`.
    pub(crate) fn put(path: impl Into<String>, body: &impl serde::Serialize) -> Self {
        Self { method: Method::PUT, ..Self::post(path, body) }
    }

    /// The same, unsigned.
    #[must_use]
    pub(crate) const fn unsigned(mut self) -> Self {
        self.signed = false;
        self
    }
}

/// The answer of another homeserver, whatever its status.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The status.
    pub(crate) status: StatusCode,
    /// The whole body.
    pub(crate) body: Bytes,
}

impl Answer {
    /// The body as JSON, if the request succeeded.
    pub(crate) fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, Unreachable> {
        if !self.status.is_success() {
            return Err(Unreachable::Status(self.status.as_u16()));
        }
        serde_json::from_slice(&self.body)
            .map_err(|error| Unreachable::Unexpected(error.to_string()))
    }
}

/// Requests to other homeservers.
pub(crate) struct Peers {
    config: config::Federation,
    own: Arc<ServerKeys>,
    names: Arc<Names>,
    client: Client<Connector, Full<Bytes>>,
}

impl Peers {
    /// # Errors
    /// When certificates or the system's DNS configuration are not usable.
    pub(crate) fn new(config: &config::Federation, own: Arc<ServerKeys>) -> Result<Self, String> {
        let names = Arc::new(Names::new(Dialer::new(config)?));
        let (most, idle) = limits::FEDERATION_IDLE;
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(idle)
            .pool_max_idle_per_host(most)
            .http1_max_buf_size(limits::FEDERATION_BUFFER_BYTES)
            .build(Connector(Arc::clone(&names)));
        Ok(Self { config: config.clone(), own, names, client })
    }

    /// The name of this homeserver.
    pub(crate) fn own_name(&self) -> &ServerName {
        &self.own.name
    }

    /// Whether the configuration allows `server`.
    pub(crate) fn permits(&self, server: &ServerName) -> bool {
        self.config.permits(server)
    }

    /// Sends a request to another homeserver.
    ///
    /// # Errors
    /// When there is no answer in time, or it is too large.
    pub(crate) async fn ask(
        &self,
        server: &ServerName,
        question: Question,
    ) -> Result<Answer, Unreachable> {
        if server == self.own.name {
            return Err(Unreachable::Own);
        }
        if !self.permits(server) {
            return Err(Unreachable::Denied);
        }
        let limit = question.timeout;
        let asked = timeout(limit, Box::pin(self.exchange(server, question))).await;
        asked.unwrap_or(Err(Unreachable::Late))
    }

    async fn exchange(
        &self,
        server: &ServerName,
        question: Question,
    ) -> Result<Answer, Unreachable> {
        let max_bytes = question.max_bytes;
        let (head, incoming) = self.begin(server, question).await?.into_parts();
        Ok(Answer { status: head.status, body: whole(incoming, max_bytes).await? })
    }

    /// Sends a request to another homeserver, if the configuration allows it. The answer has begun
    /// to arrive, and its size is not limited.
    async fn begin(
        &self,
        server: &ServerName,
        question: Question,
    ) -> Result<Response<Incoming>, Unreachable> {
        let Question { method, path, body, signed, .. } = question;
        let unexpected = |error: &dyn std::fmt::Display| Unreachable::Unexpected(error.to_string());
        let uri: Uri = format!("https://{server}{path}").parse().map_err(|_| Unreachable::Name)?;
        let host = self.names.host(server).await;
        let mut request = Request::new(body.unwrap_or_default());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        if signed {
            let header = self.own.with_current(|pair| {
                let (own, server) = (self.own.name.clone(), server.to_owned());
                XMatrix::sign_http_request(&request, XMatrixSigningInput::new(own, server, pair))
            });
            let header = header.map_err(|error| unexpected(&error))?.to_string();
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

/// Reads a whole body, if it is not larger than `max_bytes`.
async fn whole(mut incoming: Incoming, max_bytes: usize) -> Result<Bytes, Unreachable> {
    // If the length is known, a body that is too large is refused unread. Any other gets its
    // memory at once.
    let expected = incoming.size_hint();
    if expected.lower() > max_bytes as u64 {
        return Err(Unreachable::TooLarge(max_bytes));
    }
    let expected = usize::try_from(expected.exact().unwrap_or(0)).unwrap_or(0);
    let mut body = BytesMut::with_capacity(expected.min(limits::FEDERATION_EXPECTED_BYTES));
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|error| Unreachable::Connection(error.to_string()))?;
        let Ok(part) = frame.into_data() else { continue };
        if body.len() + part.len() > max_bytes {
            return Err(Unreachable::TooLarge(max_bytes));
        }
        body.extend_from_slice(&part);
    }
    Ok(body.freeze())
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
    type Response = Line;
    type Error = Unreachable;
    type Future = Pin<Box<dyn Future<Output = Result<Line, Unreachable>> + Send>>;

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

/// Federation, if it is enabled.
pub(crate) struct Federation {
    /// Requests to other homeservers.
    pub(crate) peers: Arc<Peers>,
    /// Their keys.
    pub(crate) keys: KeyRing,
    /// Held while a large batch of events is verified.
    pub(crate) verifying: tokio::sync::Mutex<()>,
    /// Delivers events and EDUs to them.
    pub(crate) sender: Arc<Sender>,
    /// Gaps in rooms' histories that are being filled.
    pub(crate) gaps: GapFilling,
    /// Policy servers, which sign events of their rooms.
    pub(crate) policy: Arc<PolicyServers>,
    /// The homeservers whose users' devices are being fetched.
    pub(crate) fetching_devices: Mutex<HashSet<OwnedServerName>>,
    /// The rate at which their users' devices change.
    pub(crate) device_changes: Arc<DeviceChanges>,
    /// Slots for answers with keys, which are large.
    pub(crate) key_answers: Semaphore,
    /// The rates of their typing, receipts and presence.
    pub(crate) ephemeral_rates: EphemeralRates,
    /// Events that wait until a state is resolved, each in its turn.
    pub(crate) resolving: Arc<Turns>,
    /// Whether presence is on.
    pub(crate) has_presence: bool,
}

/// The rates of typing, receipts and presence, by homeserver and by user.
pub(crate) struct EphemeralRates {
    origins: Refundable<OwnedServerName>,
    users: Refundable<OwnedUserId>,
}

impl Default for EphemeralRates {
    fn default() -> Self {
        let (of_origin, of_user) = limits::REMOTE_EPHEMERAL;
        Self { origins: Refundable::new(of_origin), users: Refundable::new(of_user) }
    }
}

impl EphemeralRates {
    /// Counts an EDU about a user of another homeserver; false if it is over a rate.
    pub(crate) fn admits(&self, user_id: &UserId) -> bool {
        let now = Instant::now();
        // The homeserver first: if it is over its rate, its users are not counted.
        self.origins.take(user_id.server_name().to_owned(), now).is_ok()
            && self.users.take(user_id.to_owned(), now).is_ok()
    }
}

impl Federation {
    /// # Errors
    /// When certificates or the system's DNS configuration are not usable.
    pub(crate) fn new(config: &Config, engine: &Arc<Engine>) -> Result<Self, String> {
        let (config, has_presence) = (&config.federation, config.presence.enabled);
        let peers = Arc::new(Peers::new(config, Arc::clone(&engine.env().server))?);
        let keys = KeyRing::new(Arc::clone(&peers), Arc::clone(engine), &config.notaries);
        let sender = Arc::new(Sender::new(engine, &peers));
        let policy = Arc::new(PolicyServers::new(&peers));
        engine.ask(Arc::clone(&policy) as Arc<dyn Voucher>);
        Ok(Self {
            peers,
            keys,
            verifying: tokio::sync::Mutex::default(),
            sender,
            gaps: GapFilling::default(),
            policy,
            fetching_devices: Mutex::default(),
            device_changes: Arc::default(),
            key_answers: Semaphore::new(limits::REMOTE_KEYS_IN_ALL),
            ephemeral_rates: EphemeralRates::default(),
            resolving: Turns::on_half(),
            has_presence,
        })
    }
}
