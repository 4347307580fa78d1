//! Requests to application services (application service API, "Homeserver -> Application Service
//! API").

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    Method, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use ruma::{RoomAliasId, UserId};
use serde::Deserialize;
use tokio::{
    sync::{Notify, Semaphore},
    time::sleep,
};
use url::Url;

use super::{Service, Services};
use crate::{
    exits,
    outbound::{Outbound, OutboundError, OutboundRequest, OutboundResponse},
};
use logcabin_base::limits;

/// A request to a service.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub method: Method,
    /// The segments of the path after `/_matrix/app/v1`, unencoded.
    pub path: &'a [&'a str],
    /// The query, unencoded.
    pub query: &'a [(String, String)],
    /// A JSON body, or none.
    pub body: Bytes,
    /// The limit on the whole exchange.
    pub timeout: Duration,
}

impl<'a> Request<'a> {
    /// A query on which a client waits.
    pub fn get(path: &'a [&'a str]) -> Self {
        let timeout = limits::OUTBOUND_TIMEOUT;
        Self { method: Method::GET, path, query: &[], body: Bytes::new(), timeout }
    }
}

/// The result of querying a service for a user or alias, which the service creates if it should
/// exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryResult {
    /// It answered: if it wanted to create something, it has.
    Answered,
    /// There was no answer.
    NoAnswer,
}

/// Sends requests to the services.
#[derive(Debug)]
pub struct QueryClient {
    outbound: Outbound,
    token_in_query: bool,
    /// The state for each service: a limit on concurrent queries, and what wakes its delivery.
    places: HashMap<String, (Semaphore, Arc<Notify>)>,
}

impl QueryClient {
    pub fn new(outbound: Outbound, services: &Services, token_in_query: bool) -> Self {
        let place = || (Semaphore::new(limits::APPSERVICE_QUESTIONS), Arc::default());
        let places = services.iter().map(|service| (service.id.clone(), place())).collect();
        Self { outbound, token_in_query, places }
    }

    /// Notified when the service has shown that it is up.
    pub fn is_back(&self, service: &Service) -> Arc<Notify> {
        self.places.get(&service.id).map(|(_, back)| Arc::clone(back)).unwrap_or_default()
    }

    /// Queries the service for this user.
    pub async fn user(&self, service: &Service, user_id: &UserId) -> QueryResult {
        self.ask_for(service, &["users", user_id.as_str()]).await
    }

    /// Queries the service for this alias.
    pub async fn alias(&self, service: &Service, alias: &RoomAliasId) -> QueryResult {
        self.ask_for(service, &["rooms", alias.as_str()]).await
    }

    async fn ask_for(&self, service: &Service, path: &[&str]) -> QueryResult {
        if service.url.is_none() {
            return QueryResult::Answered;
        }
        // It makes rooms and users because of it.
        if let Err(error) = exits::leaves("a query of an application service") {
            tracing::warn!(%error, "a query of an application service cannot be noted");
            return QueryResult::NoAnswer;
        }
        let (tries, pause) = limits::APPSERVICE_TRIES;
        let asking = async {
            for attempt in 0..tries {
                if attempt > 0 {
                    sleep(pause).await;
                }
                match self.question(service, Request::get(path)).await {
                    Ok(answer) if !answer.status.is_server_error() => return QueryResult::Answered,
                    Ok(answer) => {
                        tracing::debug!(service = service.id, status = %answer.status, "the service did not confirm");
                    }
                    Err(error) => {
                        tracing::debug!(service = service.id, %error, "the service could not be queried")
                    }
                }
            }
            QueryResult::NoAnswer
        };
        tokio::time::timeout(limits::OUTBOUND_TIMEOUT, asking)
            .await
            .unwrap_or(QueryResult::NoAnswer)
    }

    /// Sends a query on which a client waits. The number of concurrent queries to a service is
    /// limited, so that one that does not answer does not keep everybody waiting.
    pub async fn question(
        &self,
        service: &Service,
        request: Request<'_>,
    ) -> Result<OutboundResponse, OutboundError> {
        let _place = match self.places.get(&service.id) {
            // The semaphores are never closed.
            Some((places, _)) => places.acquire().await.ok(),
            None => None,
        };
        self.ask(service, request).await
    }

    /// Sends a request, and repeats it with the path of older versions if the service does not know
    /// the current one.
    ///
    /// # Errors
    /// When there is no answer; in particular when the service has no address.
    pub(crate) async fn ask(
        &self,
        service: &Service,
        request: Request<'_>,
    ) -> Result<OutboundResponse, OutboundError> {
        let Some(base) = &service.url else { return Err(OutboundError::Nowhere) };
        let answer = self.ask_at(service, base, &["_matrix", "app", "v1"], &request).await?;
        if !is_no_path(&answer) {
            return Ok(answer);
        }
        let before: &[&str] = match request.path.first() {
            Some(&("transactions" | "users" | "rooms")) => &[],
            Some(&"thirdparty") => &["_matrix", "app", "unstable"],
            _ => return Ok(answer),
        };
        self.ask_at(service, base, before, &request).await
    }

    async fn ask_at(
        &self,
        service: &Service,
        base: &Url,
        prefix: &[&str],
        request: &Request<'_>,
    ) -> Result<OutboundResponse, OutboundError> {
        let mut url = base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(prefix).extend(request.path);
        }
        let token = service.hs_token.expose();
        if self.token_in_query || !request.query.is_empty() {
            let mut query = url.query_pairs_mut();
            query.extend_pairs(request.query);
            if self.token_in_query {
                query.append_pair("access_token", token);
            }
        }
        let mut ask = OutboundRequest::new(request.method.clone(), url)
            .header(AUTHORIZATION, &format!("Bearer {token}"));
        ask.timeout = request.timeout;
        if !request.body.is_empty() {
            ask.body = request.body.clone();
            ask = ask.header(CONTENT_TYPE, "application/json");
        }
        self.outbound.send(ask).await
    }
}

/// Whether an answer means that the path is unknown, rather than that what it names does not exist.
fn is_no_path(answer: &OutboundResponse) -> bool {
    #[derive(Deserialize)]
    struct Standard {
        errcode: String,
    }
    let (not_found, not_allowed) = (StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED);
    [not_found, not_allowed, StatusCode::NOT_IMPLEMENTED].contains(&answer.status)
        && answer.json::<Standard>().map_or(true, |error| error.errcode == "M_UNRECOGNIZED")
}
