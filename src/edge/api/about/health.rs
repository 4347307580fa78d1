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

    /// What an administrator should look at, although the program does its work.
    fn warnings(&self) -> Vec<HealthProblem>;
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<HealthProblem>,
}

/// The endpoints. In a cluster, they do not wait until the node has caught up: whether it has is
/// the answer.
pub fn endpoints<A: Healthy>(table: Table<A>) -> Table<A> {
    table.on(live::<A>, cheap().at_once()).on(ready::<A>, cheap().at_once())
}

async fn live<A: Healthy>(_: Cx<A, ()>, _: Live) -> Result<Reply, ApiError> {
    let (reasons, warnings) = (Vec::new(), Vec::new());
    reply(StatusCode::OK, &Answer { status: "live", reasons, warnings })
}

async fn ready<A: Healthy>(cx: Cx<A, ()>, _: Ready) -> Result<Reply, ApiError> {
    let reasons = cx.app.troubles().await;
    let warnings = cx.app.warnings();
    let (code, status) = match reasons.is_empty() {
        true => (StatusCode::OK, "ready"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "unready"),
    };
    reply(code, &Answer { status, reasons, warnings })
}

fn reply(status: StatusCode, answer: &Answer) -> Result<Reply, ApiError> {
    let json = serde_json::to_vec(answer).map_err(ApiError::internal)?;
    let reply = Reply::json(json).with_status(status);
    Ok(reply.with_header(CACHE_CONTROL, HeaderValue::from_static("no-store")))
}
