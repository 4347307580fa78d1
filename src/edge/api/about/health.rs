//! Health checks, for load balancers and service managers: without a login, and cheap.

use futures_util::future::BoxFuture;
use http::{HeaderValue, StatusCode, header::CACHE_CONTROL};
use ruma::api::auth_scheme::NoAccessToken;
use serde::Serialize;

use crate::http::{ApiError, App, Cx, Reply, Table, cheap, endpoint};
use logcabin_service::health::HealthProblem;

/// A program that knows how it is.
pub trait Healthy: App {
    /// Why it should get no requests now. Nothing, if it should.
    fn troubles(&self) -> BoxFuture<'_, Vec<HealthProblem>>;
}

endpoint! {
    /// Whether the process answers at all.
    pub(super) struct Live = GET "/health/live";
    for NoAccessToken;
    {}
}

endpoint! {
    /// Whether the server should get requests.
    pub(super) struct Ready = GET "/health/ready";
    for NoAccessToken;
    {}
}

#[derive(Serialize)]
struct Answer {
    status: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<HealthProblem>,
}

/// The endpoints. In a cluster, they do not wait until the node has caught up: whether it has is
/// the answer.
pub fn endpoints<A: Healthy>(table: Table<A>) -> Table<A> {
    table.on(live::<A>, cheap().at_once()).on(ready::<A>, cheap().at_once())
}

async fn live<A: Healthy>(_: Cx<A, ()>, _: Live) -> Result<Reply, ApiError> {
    reply(StatusCode::OK, &Answer { status: "live", reasons: Vec::new() })
}

async fn ready<A: Healthy>(cx: Cx<A, ()>, _: Ready) -> Result<Reply, ApiError> {
    let reasons = cx.app.troubles().await;
    match reasons.is_empty() {
        true => reply(StatusCode::OK, &Answer { status: "ready", reasons }),
        false => reply(StatusCode::SERVICE_UNAVAILABLE, &Answer { status: "unready", reasons }),
    }
}

fn reply(status: StatusCode, answer: &Answer) -> Result<Reply, ApiError> {
    let json = serde_json::to_vec(answer).map_err(ApiError::internal)?;
    let reply = Reply::json(json).with_status(status);
    Ok(reply.with_header(CACHE_CONTROL, HeaderValue::from_static("no-store")))
}
