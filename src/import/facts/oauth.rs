//! Facts about OAuth 2.0: clients, and what users granted them.

use serde::Serialize;

use super::Secret;

/// An OAuth client.
#[derive(Clone, Debug, Serialize)]
pub struct OauthClient {
    pub client_id: String,
    /// Without it, the client proves nothing.
    pub secret: Option<Secret>,
    /// Its metadata by the names of RFC 7591, as far as the source has them.
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// What a user granted a client, which goes on. Its tokens name it.
#[derive(Clone, Debug, Serialize)]
pub struct OauthGrant {
    pub grant_id: String,
    pub user_id: String,
    pub client_id: String,
    /// The scope's tokens, with a space between them.
    pub scope: String,
    /// What a person calls the session.
    pub name: Option<String>,
    pub granted_ms: i64,
}
