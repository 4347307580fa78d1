//! Registration of clients (client-server API, "Client registration"; RFC 7591), and how they prove
//! who they are (RFC 6749, section 2.3).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use percent_encoding::percent_decode_str;
use ruma::api::auth_scheme::NoAccessToken;
use serde_json::{Map, Value, json};
use subtle::ConstantTimeEq as _;

use super::{
    availability::must_be_offered,
    parameters::Parameters,
    problem::{Failure, Problem, answer, refusal, replied},
};
use crate::{
    api::server::Server,
    http::{ApiError, Body, Cx, Reply, endpoint},
};
use logcabin_base::{clock::random_token, limits};
use logcabin_decide::oauth::RegisterClient;
use logcabin_engine::Engine;
use logcabin_record::{
    client::{AuthMethod, ClientMetadata, InvalidClient},
    command::{OauthClient, TokenHash},
};
use logcabin_service::oauth::{Client, Clients, register_client};

endpoint! {
    /// A client describes itself.
    pub(super) struct Register = POST "/_matrix/oauth2/register";
    for NoAccessToken;
    body Body::Short(limits::OAUTH_CLIENT_BYTES);
    refusal refusal;
    {}
}

pub(super) async fn register(cx: Cx<Server, ()>, _: Register) -> Result<Reply, ApiError> {
    replied(add(&cx).await)
}

async fn add(cx: &Cx<Server, ()>) -> Result<Reply, Failure> {
    let app = &*cx.app;
    must_be_offered(app)?;
    if !app.config.oauth.registration {
        return Err(ApiError::forbidden("Clients cannot register themselves here.").into());
    }
    let given: Map<String, Value> = serde_json::from_slice(&cx.body)
        .map_err(|_| Problem::new("invalid_client_metadata", "The body is not a JSON object."))?;
    let metadata = ClientMetadata::parse(&given).map_err(|invalid| match &invalid {
        InvalidClient::Redirect(_) => Problem::new("invalid_redirect_uri", invalid.to_string()),
        InvalidClient::Metadata(_) => Problem::new("invalid_client_metadata", invalid.to_string()),
    })?;
    let described = serde_json::to_value(&metadata).map_err(ApiError::internal)?;
    // A client registers before each login. Registrations with the same description are one client.
    let has_secret = metadata.token_endpoint_auth_method != AuthMethod::None;
    let secret = has_secret.then(random_token);
    let client_id = match secret {
        Some(_) => random_token()[..24].to_owned(),
        None => blake3::hash(described.to_string().as_bytes()).to_hex()[..32].to_owned(),
    };
    let client_secret = secret.as_deref().map(TokenHash::of);
    let now_ms = app.engine.clock().now_ms();
    let proposal = RegisterClient {
        client: OauthClient { client_id: client_id.clone(), client_secret, metadata },
        now_ms,
        idle_ms: app.config.oauth.unused_client_seconds.saturating_mul(1000),
    };
    let registered = register_client(&app.engine, cx.origin(), proposal).await;
    registered.map_err(ApiError::from)?;
    let mut told = described;
    told["client_id"] = json!(client_id);
    told["client_id_issued_at"] = json!(now_ms / 1000);
    if let Some(secret) = secret {
        told["client_secret"] = json!(secret);
        told["client_secret_expires_at"] = json!(0);
    }
    Ok(answer(&told).with_status(StatusCode::CREATED))
}

/// The client of a request to the token endpoint, which has proved who it is as far as it can.
pub(super) fn authenticated(
    engine: &Engine,
    clients: &Clients,
    headers: &HeaderMap,
    parameters: &Parameters,
) -> Result<Client, Problem> {
    let unknown =
        || Problem::new("invalid_client", "There is no such client, or it is not this one.");
    let (given_id, given_secret) = (parameters.get("client_id"), parameters.get("client_secret"));
    let basic = basic(headers)?;
    let (client_id, secret, method) = match (&basic, given_id, given_secret) {
        (Some(_), _, Some(_)) => {
            return Err(Problem::request("The client proves who it is in two ways."));
        }
        (Some((id, _)), Some(other), None) if id != other => {
            return Err(Problem::request("The client has two ids."));
        }
        (Some((id, secret)), _, None) => {
            (id.as_str(), Some(secret.as_str()), AuthMethod::ClientSecretBasic)
        }
        (None, Some(id), Some(secret)) => (id, Some(secret), AuthMethod::ClientSecretPost),
        (None, Some(id), None) => (id, None, AuthMethod::None),
        (None, None, _) => return Err(Problem::new("invalid_client", "`client_id` is missing.")),
    };
    let client = clients.get(engine, client_id).ok_or_else(unknown)?;
    if client.metadata.token_endpoint_auth_method != method {
        return Err(unknown());
    }
    let is_right = match (&client.secret, secret) {
        (Some(known), Some(given)) => bool::from(TokenHash::of(given).0.ct_eq(&known.0)),
        (None, None) => true,
        _ => false,
    };
    if is_right { Ok(client) } else { Err(unknown()) }
}

/// The id and the secret in the `Authorization` header. Both are encoded as in a form.
fn basic(headers: &HeaderMap) -> Result<Option<(String, String)>, Problem> {
    let Some(header) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let read = || {
        let (scheme, rest) = header.to_str().ok()?.split_once(' ')?;
        let bytes = scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(rest.trim()))?;
        let text = String::from_utf8(bytes.ok()?).ok()?;
        let (id, secret) = text.split_once(':')?;
        let decoded = |text: &str| {
            let text = text.replace('+', " ");
            percent_decode_str(&text).decode_utf8().ok().map(|text| text.into_owned())
        };
        Some((decoded(id)?, decoded(secret)?))
    };
    let wrong = || Problem::new("invalid_client", "The `Authorization` header cannot be read.");
    read().map(Some).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_and_secret_are_encoded_as_in_a_form() {
        let mut headers = HeaderMap::new();
        assert_eq!(basic(&headers), Ok(None));
        let value = format!("basic {}", STANDARD.encode("a%3Ab:c+d%2B"));
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        assert_eq!(basic(&headers), Ok(Some(("a:b".to_owned(), "c d+".to_owned()))));
        for wrong in ["Bearer x", "Basic", "Basic ??", "Basic eA==", "Basic /w=="] {
            headers.insert(AUTHORIZATION, wrong.parse().unwrap());
            assert!(basic(&headers).is_err(), "{wrong}");
        }
    }
}
