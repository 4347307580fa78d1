//! Registration tokens. Only a hash of a token is stored. Lists show its first digits as an id, and
//! requests can name a token by this id or by itself.

use ruma::api::auth_scheme::AccessToken;
use serde::Deserialize;
use serde_json::{Value, json};

use super::parts::{ActParameters, AdminParts as _, nothing, nullable};
use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_base::clock::{Clock, random_letters};
use logcabin_decide::registration_token::Change;
use logcabin_ops::admin::tokens::{
    self, CreateRegistrationToken, DeleteRegistrationToken, TokenCreated, TokenSummary,
    UpdateRegistrationToken,
};

/// A token to create.
#[derive(Deserialize)]
pub(super) struct NewToken {
    token: Option<String>,
    length: Option<usize>,
    uses_allowed: Option<u64>,
    expiry_time: Option<u64>,
    label: Option<String>,
}

/// Changes to a token: null removes a limit.
#[derive(Deserialize)]
#[allow(clippy::option_option, reason = "missing, null, and a value")]
pub(super) struct TokenChange {
    #[serde(default, deserialize_with = "nullable")]
    uses_allowed: Option<Option<u64>>,
    #[serde(default, deserialize_with = "nullable")]
    expiry_time: Option<Option<u64>>,
    #[serde(default, deserialize_with = "nullable")]
    label: Option<Option<String>>,
}

/// The longest generated token.
const LENGTH: usize = 64;

fn words(token: &TokenSummary) -> Value {
    json!({
        "token": token.id,
        "label": token.label,
        "uses_allowed": token.uses_allowed,
        // A registration in progress does not reserve a token.
        "pending": 0,
        "completed": token.uses,
        "expiry_time": token.expires_ms,
    })
}

endpoint! {
    /// `GET …/registration_tokens`
    pub(super) struct List = GET "/_synapse/admin/v1/registration_tokens";
    for AccessToken;
    { valid: Option<bool> = flag }
}

pub(super) async fn list(cx: Cx<Server>, request: List) -> Result<Json, ApiError> {
    let valid = request.valid;
    let tokens = tokens::list(&cx.app.context);
    let wanted = tokens.iter().filter(|token| valid.is_none_or(|valid| valid == token.good));
    to_json(&json!({ "registration_tokens": wanted.map(words).collect::<Vec<_>>() }))
}

endpoint! {
    /// `GET …/registration_tokens/{token}`
    pub(super) struct Get = GET "/_synapse/admin/v1/registration_tokens/{token}";
    for AccessToken;
    { token: String = path }
}

pub(super) async fn get(cx: Cx<Server>, request: Get) -> Result<Json, ApiError> {
    let context = &cx.app.context;
    let hash = tokens::named(context, &request.token.into())?;
    to_json(&words(&tokens::summary_of(context, &hash)?))
}

fn in_the_future(clock: &Clock, expires_ms: Option<u64>) -> Result<(), ApiError> {
    if expires_ms.is_some_and(|ms| ms <= clock.now_ms()) {
        return Err(ApiError::invalid_param("`expiry_time` is over."));
    }
    Ok(())
}

endpoint! {
    /// `POST …/registration_tokens/new`
    pub(super) struct Create = POST "/_synapse/admin/v1/registration_tokens/new";
    for AccessToken;
    { body: NewToken = json, terms: ActParameters = terms }
}

pub(super) async fn create(cx: Cx<Server>, request: Create) -> Result<Json, ApiError> {
    let NewToken { token, length, uses_allowed, expiry_time: expires_ms, label } = request.body;
    if length.is_some_and(|length| !(1..=LENGTH).contains(&length)) {
        return Err(ApiError::invalid_param("`length` is from 1 to 64."));
    }
    let token = token.or_else(|| length.map(random_letters)).map(Into::into);
    in_the_future(cx.app.engine.clock(), expires_ms)?;
    let act = CreateRegistrationToken { token, label, uses_allowed, expires_ms };
    cx.act(act, request.terms, |TokenCreated { token, summary }| {
        let mut made = words(&summary);
        made["token"] = token.expose().into();
        made["id"] = summary.id.into();
        made
    })
    .await
}

endpoint! {
    /// `PUT …/registration_tokens/{token}`
    pub(super) struct Update = PUT "/_synapse/admin/v1/registration_tokens/{token}";
    for AccessToken;
    { token: String = path, body: TokenChange = json, terms: ActParameters = terms }
}

pub(super) async fn update(cx: Cx<Server>, request: Update) -> Result<Json, ApiError> {
    let TokenChange { uses_allowed, expiry_time: expires_ms, label } = request.body;
    in_the_future(cx.app.engine.clock(), expires_ms.flatten())?;
    let act = UpdateRegistrationToken {
        token: request.token.into(),
        label: change(label),
        uses_allowed: change(uses_allowed),
        expires_ms: change(expires_ms),
    };
    cx.act(act, request.terms, |updated| words(&updated.summary)).await
}

fn change<T>(given: Option<Option<T>>) -> Change<T> {
    match given {
        None => Change::Keep,
        Some(None) => Change::Clear,
        Some(Some(value)) => Change::To(value),
    }
}

endpoint! {
    /// `DELETE …/registration_tokens/{token}`
    pub(super) struct Delete = DELETE "/_synapse/admin/v1/registration_tokens/{token}";
    for AccessToken;
    { token: String = path, terms: ActParameters = terms }
}

pub(super) async fn delete(cx: Cx<Server>, request: Delete) -> Result<Json, ApiError> {
    let token = request.token.into();
    cx.act(DeleteRegistrationToken { token }, request.terms, nothing).await
}
