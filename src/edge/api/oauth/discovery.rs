//! What clients learn of the authorization server: RFC 8414, OpenID Connect Discovery, and the
//! additions of Matrix (client-server API, "Server metadata discovery").

use http::{HeaderValue, header::CACHE_CONTROL};
use ruma::api::auth_scheme::NoAccessToken;
use serde_json::{Value, json};

use super::availability::must_be_offered;
use crate::{
    api::{
        addresses::{account_url, issuer},
        answer::json as to_json,
        server::Server,
    },
    http::{ApiError, Cx, Json, Reply, endpoint},
};
use logcabin_config as config;
use logcabin_record::{client::GrantType, scope};

endpoint! {
    /// What clients of Matrix ask for.
    pub(super) struct AuthMetadata = GET
        "/_matrix/client/unstable/org.matrix.msc2965/auth_metadata"
        "/_matrix/client/v1/auth_metadata";
    for NoAccessToken;
    {}
}

endpoint! {
    /// What clients of 2024 ask for, which then look for the rest by the issuer.
    pub(super) struct AuthIssuer = GET
        "/_matrix/client/unstable/org.matrix.msc2965/auth_issuer";
    for NoAccessToken;
    {}
}

endpoint! {
    /// The metadata for generic OAuth clients, at both standard paths: below the issuer, and beside
    /// it. Element Web of 2024 takes the issuer for a folder.
    pub(super) struct OpenidConfiguration = GET
        "/.well-known/oauth-authorization-server/_matrix/oauth2"
        "/.well-known/openid-configuration/_matrix/oauth2"
        "/_matrix/.well-known/openid-configuration"
        "/_matrix/oauth2/.well-known/oauth-authorization-server"
        "/_matrix/oauth2/.well-known/openid-configuration";
    for NoAccessToken;
    {}
}

/// What the page of the account can be opened for, also under earlier names.
pub(super) const ACTIONS: [&str; 9] = [
    "org.matrix.profile",
    "org.matrix.devices_list",
    "org.matrix.device_view",
    "org.matrix.device_delete",
    "org.matrix.cross_signing_reset",
    "org.matrix.account_deactivate",
    "org.matrix.sessions_list",
    "org.matrix.session_view",
    "org.matrix.session_end",
];

pub(super) async fn auth_metadata(cx: Cx<Server, ()>, _: AuthMetadata) -> Result<Reply, ApiError> {
    told(&cx.app)
}

pub(super) async fn openid_configuration(
    cx: Cx<Server, ()>,
    _: OpenidConfiguration,
) -> Result<Reply, ApiError> {
    told(&cx.app)
}

pub(super) async fn auth_issuer(cx: Cx<Server, ()>, _: AuthIssuer) -> Result<Json, ApiError> {
    must_be_offered(&cx.app)?;
    to_json(&json!({ "issuer": issuer(&cx.app.config.server) }))
}

fn told(app: &Server) -> Result<Reply, ApiError> {
    must_be_offered(app)?;
    let metadata = metadata(&app.config.oauth, &app.config.server);
    let caching = HeaderValue::from_static("public, max-age=600");
    Ok(Reply::json(metadata.to_string()).with_header(CACHE_CONTROL, caching))
}

fn metadata(oauth: &config::Oauth, server: &config::Server) -> Value {
    let issuer = issuer(server);
    let at = |name: &str| format!("{issuer}/{name}");
    let mut metadata = json!({
        "issuer": issuer,
        "authorization_endpoint": at("authorize"),
        "token_endpoint": at("token"),
        "revocation_endpoint": at("revoke"),
        "device_authorization_endpoint": at("device"),
        "userinfo_endpoint": at("userinfo"),
        "jwks_uri": at("keys.json"),
        "account_management_uri": account_url(server),
        "account_management_actions_supported": ACTIONS,
        "authorization_response_iss_parameter_supported": true,
        "claims_supported": [
            "iss", "sub", "aud", "exp", "iat", "auth_time", "nonce", "at_hash",
            "preferred_username", "name", "email", "email_verified",
        ],
        "claims_parameter_supported": false,
        "code_challenge_methods_supported": ["S256"],
        "grant_types_supported": GrantType::ALL,
        "id_token_signing_alg_values_supported": ["RS256"],
        "prompt_values_supported": ["none", "login", "consent", "select_account", "create"],
        "request_parameter_supported": false,
        "request_uri_parameter_supported": false,
        "response_modes_supported": ["query", "fragment"],
        "response_types_supported": ["code"],
        "scopes_supported": scope::SUPPORTED,
        "subject_types_supported": ["public"],
        "token_endpoint_auth_methods_supported": AUTH_METHODS,
        "revocation_endpoint_auth_methods_supported": AUTH_METHODS,
    });
    if oauth.registration {
        metadata["registration_endpoint"] = at("register").into();
    }
    metadata
}

const AUTH_METHODS: [&str; 3] = ["none", "client_secret_basic", "client_secret_post"];
