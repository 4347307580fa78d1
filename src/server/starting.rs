//! Answers requests while the server starts: it is alive, but not ready. A long log may take
//! minutes to replay; meanwhile, load balancers and people learn that the server is coming.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::{
    HeaderMap, HeaderValue, Uri,
    header::{CONNECTION, RETRY_AFTER},
};
use tokio::sync::oneshot;

use super::ServerError;
use logcabin_base::shutdown::Shutdown;
use logcabin_config::Config;
use logcabin_edge::{
    api::about::health::{self, Healthy},
    http::{ApiError, App, Edge, OpenTo, Reply, Session, Table, listen::Listener, serve},
};
use logcabin_service::health::HealthProblem;

/// When clients should come back, in seconds.
const RETRY_S: &str = "5";

/// The program while the server is being opened.
struct Starting;

/// Answers until it is [ended](Self::end).
pub(super) struct Answering {
    end: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl Answering {
    /// Begins to answer on these listeners.
    pub(super) fn begin(config: &Config, listeners: &[Arc<Listener>]) -> Result<Self, ServerError> {
        let (end, given) = oneshot::channel();
        let (closed, ended) = oneshot::channel();
        let shutdown = Shutdown::when(async {
            let _ = given.await;
        });
        let table = health::endpoints(Table::new(&[""; 0]));
        let edge = Edge::new(Arc::new(Starting), table, config, shutdown)?;
        let closed = |_| {
            let _ = closed.send(());
        };
        tokio::spawn(serve::run(listeners.to_vec(), Arc::new(edge), closed));
        Ok(Self { end, ended })
    }

    /// Returns once it accepts no more connections. Open ones end with their next answer.
    pub(super) async fn end(self) {
        let _ = self.end.send(());
        let _ = self.ended.await;
    }
}

/// Nothing that needs a login is served.
fn not_yet() -> ApiError {
    ApiError::unavailable("The server is starting.")
}

impl App for Starting {
    fn not_served(&self, _: &Uri, _: &HeaderMap, _: ApiError) -> Result<Reply, ApiError> {
        // A reply and not an error, because errors are logged.
        let reply = Reply::from(&not_yet())
            .with_header(RETRY_AFTER, HeaderValue::from_static(RETRY_S))
            // So that no client keeps this connection when the server itself answers.
            .with_header(CONNECTION, HeaderValue::from_static("close"));
        Ok(reply)
    }

    fn authenticate<'a>(
        &'a self,
        _: &'a str,
        _: &'a Uri,
    ) -> BoxFuture<'a, Result<Session, ApiError>> {
        Box::pin(std::future::ready(Err(not_yet())))
    }

    fn admit(&self, _: &Session, _: OpenTo) -> Result<(), ApiError> {
        Err(not_yet())
    }
}

impl Healthy for Starting {
    fn troubles(&self) -> BoxFuture<'_, Vec<HealthProblem>> {
        let trouble = HealthProblem { check: "projections", reason: "The server is starting." };
        Box::pin(std::future::ready(vec![trouble]))
    }

    fn warnings(&self) -> Vec<HealthProblem> {
        Vec::new()
    }
}
