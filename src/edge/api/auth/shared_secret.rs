//! Registration with a shared secret, compatible with existing tools
//! (`/_synapse/admin/v1/register`). The configured secret allows creating accounts, including
//! administrators, even while registration is closed.
//!
//! A client asks for a nonce, and proves with it that it knows the secret: HMAC-SHA1 over `nonce \0
//! username \0 password \0 admin|notadmin [\0 user_type]`, in hexadecimal.

use hmac::{Hmac, KeyInit as _, Mac as _};
use ruma::api::auth_scheme::NoAccessToken;
use serde::Deserialize;
use serde_json::json;
use sha1::Sha1;

use super::{
    credentials::{NewTokens, check_password},
    registration::free_user_id,
};
use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_config as config;
use logcabin_decide::{
    account::{self, Login},
    status::CreateAccount,
};
use logcabin_service::accounts::names::{device_id_or_new, short_name};

endpoint! {
    /// Asks for a nonce.
    pub(super) struct GetNonce = GET "/_synapse/admin/v1/register";
    for NoAccessToken;
    {}
}

endpoint! {
    /// Creates an account.
    pub(super) struct Register = POST "/_synapse/admin/v1/register";
    for NoAccessToken;
    { body: NewUser = json }
}

/// The user types of the tools. They only matter for the signature.
const USER_TYPES: [&str; 2] = ["bot", "support"];

/// The account to create.
#[derive(Deserialize)]
pub(super) struct NewUser {
    nonce: String,
    username: String,
    password: String,
    mac: String,
    #[serde(default)]
    admin: bool,
    #[serde(default)]
    displayname: Option<String>,
    #[serde(default)]
    user_type: Option<String>,
    #[serde(default)]
    inhibit_login: bool,
}

fn secret(registration: &config::Registration) -> Result<&str, ApiError> {
    let secret = registration.shared_secret.as_ref();
    secret.map(|secret| secret.0.expose()).ok_or_else(|| {
        ApiError::forbidden("This server has no shared secret for registration configured.")
    })
}

pub(super) async fn nonce(cx: Cx<Server, ()>, _: GetNonce) -> Result<Json, ApiError> {
    secret(&cx.app.config.registration)?;
    let nonce = cx.app.auth.nonces.make(cx.app.engine.clock().now_ms());
    to_json(&json!({ "nonce": nonce }))
}

pub(super) async fn register(
    cx: Cx<Server, ()>,
    Register { body: request }: Register,
) -> Result<Json, ApiError> {
    let secret = secret(&cx.app.config.registration)?;
    // Used up in any case: a guess at the secret costs a nonce.
    if !cx.app.auth.nonces.take(&request.nonce, cx.app.engine.clock().now_ms()) {
        return Err(ApiError::bad_request("The nonce is not known."));
    }
    if !is_signed(&request, secret) {
        return Err(ApiError::forbidden("The MAC does not fit."));
    }
    if request.user_type.as_deref().is_some_and(|kind| !USER_TYPES.contains(&kind)) {
        return Err(ApiError::invalid_param("There is no such `user_type`."));
    }
    let user_id = free_user_id(&cx.app, &request.username, None)?;
    check_password(&cx.app.config.passwords, user_id.localpart(), &request.password)?;
    let display_name = short_name(request.displayname.filter(|name| !name.is_empty()))?;
    let password = cx.app.auth.passwords.hash(request.password).await?;
    let device_id = device_id_or_new(None)?;
    let tokens = NewTokens::make(&cx.app, false);
    let login = (!request.inhibit_login).then(|| Login {
        user_id: user_id.clone(),
        device_id: device_id.clone(),
        display_name: None,
        tokens: tokens.hashes(),
        verified: None,
    });
    let register = account::Register {
        password: Some(password),
        display_name: Some(display_name.unwrap_or_else(|| user_id.localpart().to_owned())),
        login,
        ..account::Register::user(user_id.clone())
    };
    cx.propose(CreateAccount { register, admin: request.admin }).await?.into_inner();
    let mut made = json!({ "user_id": user_id, "home_server": user_id.server_name() });
    if !request.inhibit_login {
        made["access_token"] = tokens.told(&cx.app).access.into();
        made["device_id"] = device_id.as_str().into();
    }
    to_json(&made)
}

fn is_signed(request: &NewUser, secret: &str) -> bool {
    let Ok(mut mac) = Hmac::<Sha1>::new_from_slice(secret.as_bytes()) else { return false };
    let admin = if request.admin { "admin" } else { "notadmin" };
    let parts = [request.nonce.as_str(), &request.username, &request.password, admin];
    mac.update(parts.join("\0").as_bytes());
    if let Some(user_type) = &request.user_type {
        mac.update(b"\0");
        mac.update(user_type.as_bytes());
    }
    let digits = request.mac.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let given: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    // In constant time.
    given.is_some_and(|given| mac.verify_slice(&given).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(admin: bool, user_type: Option<&str>, mac: &str) -> NewUser {
        NewUser {
            nonce: "thisisanonce".to_owned(),
            username: "bob".to_owned(),
            password: "pass word".to_owned(),
            mac: mac.to_owned(),
            admin,
            displayname: None,
            user_type: user_type.map(ToOwned::to_owned),
            inhibit_login: false,
        }
    }

    #[test]
    fn only_the_secret_gives_the_right_mac() {
        // printf 'thisisanonce\0bob\0pass word\0admin' | openssl sha1 -hmac 'a shared secret'
        let admin = "6892645cbe4cae12cc32967fea9d0abd8754d544";
        let bot = "25e2d0dbae2c12ad79681d6118bb3979b658d669";
        assert!(is_signed(&request(true, None, admin), "a shared secret"));
        assert!(is_signed(&request(true, None, &admin.to_uppercase()), "a shared secret"));
        assert!(is_signed(&request(false, Some("bot"), bot), "a shared secret"));
        for (request, secret) in [
            (request(true, None, admin), "another secret"),
            (request(false, None, admin), "a shared secret"),
            (request(true, Some("bot"), admin), "a shared secret"),
            (request(true, None, ""), "a shared secret"),
            (request(true, None, "zz"), "a shared secret"),
            (request(true, None, &admin[..38]), "a shared secret"),
        ] {
            assert!(!is_signed(&request, secret));
        }
    }
}
