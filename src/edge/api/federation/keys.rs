//! Signing keys: this server's own, and others for which it is a notary (server-server API,
//! "Retrieving server keys").

use futures_util::{StreamExt as _, stream};
use ruma::{
    CanonicalJsonObject, OwnedServerName, ServerName,
    api::{
        auth_scheme::NoAccessToken,
        federation::discovery::{
            get_remote_server_keys::v2 as get_remote_server_keys,
            get_remote_server_keys_batch::v2 as get_remote_server_keys_batch,
            get_server_keys::v2 as get_server_keys,
        },
    },
    serde::{Base64, base64::Standard},
    signatures::sign_json,
};
use serde_json::json;
use tracing::debug;

use crate::{
    api::{
        answer::json as to_json,
        server::{Outside, Server},
    },
    http::{ApiError, Cx, ErrorCode, Json, endpoint},
};
use logcabin_base::{clock::millis, limits};
use logcabin_engine::Engine;
use logcabin_service::federation::Federation;

endpoint! {
    /// This server's keys, as homeservers ask that are older than v1.7 of the specification. The
    /// answer has all keys, whichever one is named.
    pub(super) struct OwnKey = GET "/_matrix/key/v2/server/{key_id}";
    for NoAccessToken;
    {}
}

endpoint! {
    /// The same of another homeserver.
    pub(super) struct KeyOfOne = GET "/_matrix/key/v2/query/{server_name}/{key_id}";
    for NoAccessToken;
    { server_name: OwnedServerName = path, minimum_valid_until_ts: Option<String> = parameter }
}

pub(super) async fn own(cx: Cx<Server, ()>, _: get_server_keys::Request) -> Result<Json, ApiError> {
    to_json(&own_document(&cx.app.engine)?)
}

pub(super) async fn own_key(cx: Cx<Server, ()>, _: OwnKey) -> Result<Json, ApiError> {
    to_json(&own_document(&cx.app.engine)?)
}

pub(super) async fn key_of_one(cx: Cx<Server, ()>, request: KeyOfOne) -> Result<Json, ApiError> {
    let until_ms = match request.minimum_valid_until_ts {
        Some(until_ms) => until_ms.parse().map_err(|_| {
            ApiError::invalid_param("`minimum_valid_until_ts` is not a number of milliseconds.")
        })?,
        None => cx.app.engine.clock().now_ms(),
    };
    answer(&cx.app.engine, &cx.app.outside, vec![(request.server_name, until_ms)]).await
}

pub(super) async fn query_one(
    cx: Cx<Server, ()>,
    request: get_remote_server_keys::Request,
) -> Result<Json, ApiError> {
    let until_ms = request.minimum_valid_until_ts.get().into();
    answer(&cx.app.engine, &cx.app.outside, vec![(request.server_name, until_ms)]).await
}

pub(super) async fn query(
    cx: Cx<Server, ()>,
    request: get_remote_server_keys_batch::Request,
) -> Result<Json, ApiError> {
    if request.server_keys.len() > limits::NOTARY_SERVERS {
        return Err(ApiError::new(ErrorCode::TooLarge, "The request names too many servers."));
    }
    let now_ms = cx.app.engine.clock().now_ms();
    let wanted = request.server_keys.into_iter().map(|(server, keys)| {
        let until = keys.into_values().filter_map(|key| key.minimum_valid_until_ts).max();
        (server, until.map_or(now_ms, |until| until.get().into()))
    });
    answer(&cx.app.engine, &cx.app.outside, wanted.collect()).await
}

/// The known keys of these servers, also signed by this server. Unreachable servers are left out.
async fn answer(
    engine: &Engine,
    outside: &Outside,
    wanted: Vec<(OwnedServerName, u64)>,
) -> Result<Json, ApiError> {
    let federation = outside.federation.as_deref();
    let documents =
        stream::iter(wanted)
            .map(|(server, until_ms)| async move {
                document(engine, federation, &server, until_ms).await
            })
            .buffered(limits::PEER_KEYS_FETCHES / 2)
            .filter_map(std::future::ready);
    let collecting = documents.collect::<Vec<_>>();
    let documents = tokio::time::timeout(limits::FEDERATION_TIMEOUT, Box::pin(collecting)).await;
    let late = |_| ApiError::new(ErrorCode::ConnectionTimeout, "The other servers take too long.");
    to_json(&json!({ "server_keys": documents.map_err(late)? }))
}

async fn document(
    engine: &Engine,
    federation: Option<&Federation>,
    server: &ServerName,
    until_ms: u64,
) -> Option<CanonicalJsonObject> {
    if *server == engine.env().server.name {
        return own_document(engine).ok();
    }
    let federation = federation?;
    // A request for keys that are valid for years must not cause a fetch each time.
    let soon_ms = engine.clock().now_ms().saturating_add(millis(limits::OWN_KEYS_LIFETIME));
    match federation.keys.document(server, until_ms.min(soon_ms)).await {
        Ok(mut document) => {
            let signing = &engine.env().server;
            signing
                .with_current(|pair| sign_json(signing.name.as_str(), pair, &mut document))
                .ok()?;
            Some(document)
        }
        Err(error) => {
            debug!(%server, %error, "the keys of a homeserver are not known");
            None
        }
    }
}

/// This server's own keys, as it publishes them.
fn own_document(engine: &Engine) -> Result<CanonicalJsonObject, ApiError> {
    let signing = &engine.env().server;
    let until_ms = engine.clock().now_ms().saturating_add(millis(limits::OWN_KEYS_LIFETIME));
    let retired = engine.state().federation_keys.retired_keys().into_iter();
    let retired: serde_json::Map<_, _> = retired
        .map(|(id, old)| (id, json!({ "key": old.key, "expired_ts": old.expired_ms })))
        .collect();
    signing.with_current(|pair| {
        let key = Base64::<Standard, _>::new(pair.public_key());
        let id = format!("ed25519:{}", pair.version());
        let document = json!({
            "server_name": signing.name,
            "verify_keys": { id: { "key": key.encode() } },
            "old_verify_keys": retired,
            "valid_until_ts": until_ms,
        });
        let mut document = serde_json::from_value(document).map_err(ApiError::internal)?;
        sign_json(signing.name.as_str(), pair, &mut document).map_err(ApiError::internal)?;
        Ok(document)
    })
}
