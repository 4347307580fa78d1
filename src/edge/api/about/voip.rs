//! Services for calls: a TURN server (client-server API, "Voice over IP"), and services for group
//! calls (MSC4143).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use ruma::api::{
    auth_scheme::AccessToken, client::voip::get_turn_server_info::v3 as get_turn_server_info,
};
use serde_json::{Value, json};
use sha1::Sha1;

use crate::{
    api::{addresses, answer::json as to_json, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_config::Config;

endpoint! {
    /// The path that clients use, and the proposed one.
    pub(super) struct Transports = GET
        "/_matrix/client/unstable/org.matrix.msc4143/rtc/transports"
        "/_matrix/client/v1/rtc/transports";
    for AccessToken;
    {}
}

/// The TURN server with a temporary password; an empty object if there is none, as clients expect.
pub(super) async fn turn_server(
    cx: Cx<Server>,
    _: get_turn_server_info::Request,
) -> Result<Json, ApiError> {
    let turn = &cx.app.config.turn;
    let Some(secret) = turn.shared_secret.as_ref().filter(|_| !turn.uris.is_empty()) else {
        return to_json(&json!({}));
    };
    let expires = cx.app.engine.clock().now_ms() / 1000 + turn.ttl_seconds;
    let username = format!("{expires}:{}", cx.caller.user_id);
    to_json(&json!({
        "password": password(secret.0.expose(), &username)?,
        "username": username,
        "uris": turn.uris.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "ttl": turn.ttl_seconds,
    }))
}

/// The password that a TURN server with the shared secret expects for this name
/// (draft-uberti-behave-turn-rest).
fn password(secret: &str, username: &str) -> Result<String, ApiError> {
    let mac = Hmac::<Sha1>::new_from_slice(secret.as_bytes()).map_err(ApiError::internal)?;
    Ok(STANDARD.encode(mac.chain_update(username).finalize().into_bytes()))
}

/// The transports, under the proposal's present name and the one that clients of today read.
pub(super) async fn transports(cx: Cx<Server>, _: Transports) -> Result<Json, ApiError> {
    let transports = livekit(&cx.app.config);
    to_json(&json!({ "transports": transports, "rtc_transports": transports }))
}

/// The LiveKit servers in the format for clients: this server's own first.
pub(super) fn livekit(config: &Config) -> Vec<Value> {
    let own = config.rtc.livekit_url.as_ref().map(|url| {
        let service = addresses::call_service(&config.server);
        json!({ "type": "livekit", "url": url.to_string(), "livekit_service_url": service })
    });
    let services = config.rtc.service_urls.iter().map(ToString::to_string);
    let services = services.map(|url| json!({ "type": "livekit", "livekit_service_url": url }));
    own.into_iter().chain(services).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_what_a_turn_server_computes_itself() {
        // printf '1433895918:@ann:example.org' | openssl dgst -sha1 -hmac 'a secret of the two'
        // -binary | base64
        let password = password("a secret of the two", "1433895918:@ann:example.org").unwrap();
        assert_eq!(password, "WxTIHNiIDPm69sdzmO1riy2HYyU=");
    }
}
