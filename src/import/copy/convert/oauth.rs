//! OAuth clients.

use serde_json::{Map, Value, json};

use super::Made;
use crate::{copy::writer::Left, facts};
use logcabin_record::{
    Stream,
    client::{AuthMethod, ClientMetadata, GrantType, InvalidClient},
    command::{OauthClient, TokenHash},
};

/// What is shown of a client, and may be left out.
const SHOWN: [&str; 3] = ["logo_uri", "policy_uri", "tos_uri"];

/// The record of a client, and why it is not all that it was.
pub(in crate::copy) fn client(fact: facts::OauthClient) -> Result<(Made, Vec<Left>), Left> {
    let facts::OauthClient { client_id, secret, metadata } = fact;
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !(1..=100).contains(&client_id.len()) || !client_id.bytes().all(valid) {
        return Err(("it has an id that cannot be one here", format!("`{client_id}`")));
    }
    let mut left = Vec::new();
    let metadata = match of(metadata.clone()) {
        Ok(metadata) => metadata,
        Err(invalid) => {
            let why = invalid.to_string();
            let kept =
                going_on(&metadata).map_err(|_| ("it cannot be a client here", why.clone()))?;
            left.push(("it can go on with the sessions that it has, and must register again", why));
            kept
        }
    };
    let secret = match metadata.token_endpoint_auth_method {
        AuthMethod::None => None,
        AuthMethod::ClientSecretBasic | AuthMethod::ClientSecretPost => {
            Some(secret.ok_or_else(|| {
                ("its secret is not known", "it has no secret that can be read".to_owned())
            })?)
        }
    };
    let client_secret = secret.map(|secret| TokenHash::of(secret.expose()));
    let stream = Stream::oauth_client(&client_id);
    Ok((Made::one(stream, OauthClient { client_id, client_secret, metadata }), left))
}

/// The metadata of a client that may do here what it could do there.
fn of(mut metadata: Map<String, Value>) -> Result<ClientMetadata, InvalidClient> {
    ClientMetadata::parse(&metadata).or_else(|_| {
        metadata.retain(|name, _| !SHOWN.contains(&name.as_str()));
        ClientMetadata::parse(&metadata)
    })
}

/// The metadata of one that can only refresh what it was granted before.
fn going_on(metadata: &Map<String, Value>) -> Result<ClientMetadata, InvalidClient> {
    let kept = ["application_type", "client_name", "token_endpoint_auth_method"];
    let mut given: Map<String, Value> = metadata
        .iter()
        .filter(|(name, _)| kept.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    // Of these, nothing is kept.
    given.insert("client_uri".to_owned(), json!("https://client.invalid/"));
    given.insert("grant_types".to_owned(), json!([GrantType::DeviceCode]));
    let parsed = ClientMetadata::parse(&given).or_else(|_| {
        given.remove("client_name");
        given.remove("application_type");
        ClientMetadata::parse(&given)
    })?;
    let uri = metadata.get("client_uri").and_then(Value::as_str).unwrap_or_default();
    let client_uri = uri.to_owned();
    Ok(ClientMetadata { client_uri, grant_types: vec![GrantType::RefreshToken], ..parsed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_record::Command;

    fn made(metadata: Value, secret: Option<&str>) -> Result<(OauthClient, usize), Left> {
        let Value::Object(metadata) = metadata else { panic!("no object") };
        let secret = secret.map(|text| facts::Secret(text.to_owned()));
        let fact = facts::OauthClient { client_id: "01ABC".to_owned(), secret, metadata };
        client(fact).map(|(made, left)| match made.commands.into_iter().next() {
            Some((_, Command::OauthClient(body))) => (body, left.len()),
            other => panic!("no client: {other:?}"),
        })
    }

    #[test]
    fn a_client_stays_what_it_was_as_far_as_that_is_possible_here() {
        let whole = json!({
            "client_uri": "https://app.example/", "client_name": "App",
            "redirect_uris": ["https://app.example/cb"], "token_endpoint_auth_method": "none",
            "grant_types": ["authorization_code", "refresh_token"],
            "logo_uri": "https://elsewhere.example/logo.png",
        });
        let (client, left) = made(whole.clone(), Some("unused")).unwrap();
        assert_eq!((left, client.client_secret), (0, None));
        assert_eq!(client.metadata.redirect_uris, ["https://app.example/cb"]);
        assert!(!client.metadata.shown.contains_key("logo_uri"));
        // One without a page of its own cannot be shown to a user who is to allow it something.
        let mut part = whole;
        part["client_uri"] = Value::Null;
        let (client, left) = made(part, None).unwrap();
        assert_eq!((left, client.metadata.grant_types), (1, vec![GrantType::RefreshToken]));
        assert!(client.metadata.redirect_uris.is_empty());
        assert_eq!(client.metadata.shown["client_name"], "App");
    }

    #[test]
    fn a_client_proves_who_it_is_as_before_or_is_left() {
        let by = |method: &str, secret| {
            let metadata = json!({
                "client_uri": "https://app.example/", "redirect_uris": ["https://app.example/cb"],
                "token_endpoint_auth_method": method,
            });
            made(metadata, secret)
        };
        let (client, _) = by("client_secret_post", Some("text")).unwrap();
        assert_eq!(client.client_secret, Some(TokenHash::of("text")));
        assert!(by("client_secret_post", None).is_err());
        assert!(by("private_key_jwt", None).is_err());
    }
}
