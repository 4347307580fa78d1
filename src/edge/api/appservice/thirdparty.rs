//! Third-party networks: application services describe the networks that they bridge to
//! (client-server API, "Third-party Networks").

use std::collections::BTreeMap;

use futures_util::future::join_all;
use ruma::api::auth_scheme::AccessToken;
use serde_json::{Map, Value};

use crate::{
    api::{
        answer::json,
        server::{Outside, Server},
    },
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_outside::appservice::{QueryClient, Request, Service};

/// The id by which clients know a network of an application service.
fn instance_id(service: &str, network_id: &str) -> String {
    format!("{service}|{network_id}")
}

endpoint! {
    /// All networks.
    pub(super) struct Protocols = GET
        "/_matrix/client/r0/thirdparty/protocols"
        "/_matrix/client/v3/thirdparty/protocols";
    for AccessToken;
    {}
}

endpoint! {
    /// One network.
    pub(super) struct Protocol = GET
        "/_matrix/client/r0/thirdparty/protocol/{protocol}"
        "/_matrix/client/v3/thirdparty/protocol/{protocol}";
    for AccessToken;
    { protocol: String = path }
}

endpoint! {
    /// Places on one network, or on any.
    pub(super) struct Locations = GET
        "/_matrix/client/r0/thirdparty/location"
        "/_matrix/client/v3/thirdparty/location"
        "/_matrix/client/r0/thirdparty/location/{protocol}"
        "/_matrix/client/v3/thirdparty/location/{protocol}";
    for AccessToken;
    { protocol: Option<String> = path_if_any, query: Vec<(String, String)> = query }
}

endpoint! {
    /// Users of one network, or of any.
    pub(super) struct Users = GET
        "/_matrix/client/r0/thirdparty/user"
        "/_matrix/client/v3/thirdparty/user"
        "/_matrix/client/r0/thirdparty/user/{protocol}"
        "/_matrix/client/v3/thirdparty/user/{protocol}";
    for AccessToken;
    { protocol: Option<String> = path_if_any, query: Vec<(String, String)> = query }
}

pub(super) async fn protocols(cx: Cx<Server>, _: Protocols) -> Result<Json, ApiError> {
    let known = cx.app.outside.services.iter().flat_map(|service| service.protocols.iter());
    let mut names: Vec<&String> = known.collect();
    names.sort_unstable();
    names.dedup();
    let described = join_all(names.iter().map(|name| described(&cx.app.outside, name))).await;
    let found: BTreeMap<&String, Map<String, Value>> = names
        .into_iter()
        .zip(described)
        .filter_map(|(name, described)| Some((name, described?)))
        .collect();
    json(&found)
}

pub(super) async fn protocol(cx: Cx<Server>, request: Protocol) -> Result<Json, ApiError> {
    let found = described(&cx.app.outside, &request.protocol).await;
    let found = found.ok_or_else(|| ApiError::not_found("There is no such network here."))?;
    json(&found)
}

pub(super) async fn locations(cx: Cx<Server>, request: Locations) -> Result<Json, ApiError> {
    looked_up(&cx.app.outside, "location", request.protocol.as_deref(), request.query).await
}

pub(super) async fn users(cx: Cx<Server>, request: Users) -> Result<Json, ApiError> {
    looked_up(&cx.app.outside, "user", request.protocol.as_deref(), request.query).await
}

/// The description of a network: that of the first service, with the instances of all services.
async fn described(outside: &Outside, name: &str) -> Option<Map<String, Value>> {
    let bridged: Vec<_> =
        outside.services.iter().filter(|service| is_bridge_to(service, name)).collect();
    let path = ["thirdparty", "protocol", name];
    let asked = bridged
        .iter()
        .map(|service| ask(&outside.appservice_queries, service, Request::get(&path)));
    let answers = join_all(asked).await.into_iter().zip(bridged);
    let mut found = answers.filter_map(|(answer, service)| match answer {
        Some(Value::Object(described)) => Some(with_instance_ids(described, &service.id)),
        _ => None,
    });
    let mut first = found.next()?;
    let more = found.filter_map(|described| described.get("instances")?.as_array().cloned());
    let more: Vec<Value> = more.flatten().collect();
    if let Some(Value::Array(instances)) = first.get_mut("instances") {
        instances.extend(more);
    }
    Some(first)
}

/// Adds the ids under which rooms of each instance are listed. Services only name the network.
fn with_instance_ids(mut described: Map<String, Value>, service: &str) -> Map<String, Value> {
    let instances = described.get_mut("instances").and_then(Value::as_array_mut);
    for instance in instances.into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(network_id) = instance.get("network_id").and_then(Value::as_str) {
            let id = instance_id(service, network_id);
            instance.insert("instance_id".to_owned(), id.into());
        }
    }
    described
}

/// The results of all services for the network in the path, or for any network.
async fn looked_up(
    outside: &Outside,
    what: &str,
    network: Option<&str>,
    query: Vec<(String, String)>,
) -> Result<Json, ApiError> {
    // Parameters for this server are not forwarded.
    const OURS: [&str; 4] =
        ["access_token", "user_id", "device_id", "org.matrix.msc3202.device_id"];
    let query: Vec<_> =
        query.into_iter().filter(|(name, _)| !OURS.contains(&name.as_str())).collect();
    let mut path = vec!["thirdparty", what];
    path.extend(network);
    let asked = outside.services.iter().filter(|service| match network {
        Some(network) => is_bridge_to(service, network),
        None => !service.protocols.is_empty(),
    });
    let ask = |service| {
        ask(&outside.appservice_queries, service, Request { query: &query, ..Request::get(&path) })
    };
    let found = join_all(asked.map(|service| ask(service))).await.into_iter();
    let found = found.filter_map(|answer| match answer {
        Some(Value::Array(found)) => Some(found),
        _ => None,
    });
    let found: Vec<Value> = found.flatten().collect();
    if found.is_empty() {
        return Err(ApiError::not_found("There is no match."));
    }
    json(&found)
}

fn is_bridge_to(service: &Service, network: &str) -> bool {
    service.protocols.iter().any(|of| of == network)
}

/// The answer of a service, if there is one.
async fn ask(
    appservice_queries: &QueryClient,
    service: &Service,
    request: Request<'_>,
) -> Option<Value> {
    match appservice_queries.question(service, request).await {
        Ok(answer) if answer.status.is_success() => answer.json().ok(),
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(service = service.id, %error, "asked in vain");
            None
        }
    }
}
