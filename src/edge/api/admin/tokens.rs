//! Registration tokens. Of a token no more than a hash is kept: lists name it by the first digits
//! of that, and it can be named so as well as by itself.

use serde_json::{Value, json};

use super::{Caller, Desk, nothing, reply};
use crate::{
    base::clock::random_letters,
    decide::registration_token::Change,
    edge::http::{ApiError, RawRequest, Reply},
    ops::admin::{Act, Done, TokenSummary},
};

pub(super) const ONE: &str = "/_synapse/admin/v1/registration_tokens/{token}";

/// The longest token that is made up.
const LENGTH: usize = 64;

fn words(token: &TokenSummary) -> Value {
    json!({
        "token": token.id,
        "label": token.label,
        "uses_allowed": token.uses_allowed,
        // Of registrations that have begun, none holds a token back.
        "pending": 0,
        "completed": token.uses,
        "expiry_time": token.expires_ms,
    })
}

pub(super) async fn list(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let valid = desk.flag("valid")?;
    let done = desk.cx.app.office.perform(Act::ListRegistrationTokens, desk.cx.origin()).await?;
    let Done::RegistrationTokens { tokens } = done else {
        return Err(ApiError::internal("not a list of tokens"));
    };
    let wanted = tokens.iter().filter(|token| valid.is_none_or(|valid| valid == token.good));
    reply(&json!({ "registration_tokens": wanted.map(words).collect::<Vec<_>>() }))
}

pub(super) async fn get(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let office = &desk.cx.app.office;
    let hash = office.registration_token(&desk.arg(0)?.into())?;
    reply(&words(&office.token_of(&hash)?))
}

fn in_the_future(desk: &Desk, expires_ms: Option<u64>) -> Result<(), ApiError> {
    if expires_ms.is_some_and(|ms| ms <= desk.cx.app.engine.clock().now_ms()) {
        return Err(ApiError::invalid_param("`expiry_time` is over."));
    }
    Ok(())
}

pub(super) async fn create(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let length: Option<usize> = desk.field("length")?;
    if length.is_some_and(|length| !(1..=LENGTH).contains(&length)) {
        return Err(ApiError::invalid_param("`length` is from 1 to 64."));
    }
    let token: Option<String> = desk.field("token")?;
    let token = token.or_else(|| length.map(random_letters)).map(Into::into);
    let (uses_allowed, expires_ms) = (desk.field("uses_allowed")?, desk.field("expiry_time")?);
    in_the_future(&desk, expires_ms)?;
    let label = desk.field("label")?;
    let act = Act::CreateRegistrationToken { token, label, uses_allowed, expires_ms };
    desk.act(act, |done| match done {
        Done::RegistrationTokenCreated { token, summary } => {
            let mut made = words(&summary);
            made["token"] = token.expose().into();
            made["id"] = summary.id.into();
            made
        }
        other => nothing(other),
    })
    .await
}

pub(super) async fn update(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (uses_allowed, expires_ms) =
        (desk.nullable("uses_allowed")?, desk.nullable("expiry_time")?);
    in_the_future(&desk, expires_ms.flatten())?;
    let act = Act::UpdateRegistrationToken {
        token: desk.arg(0)?.into(),
        label: change(desk.nullable("label")?),
        uses_allowed: change(uses_allowed),
        expires_ms: change(expires_ms),
    };
    desk.act(act, |done| match done {
        Done::RegistrationTokenUpdated { summary, .. } => words(&summary),
        other => nothing(other),
    })
    .await
}

fn change<T>(given: Option<Option<T>>) -> Change<T> {
    match given {
        None => Change::Keep,
        Some(None) => Change::Clear,
        Some(Some(value)) => Change::To(value),
    }
}

pub(super) async fn delete(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let token = desk.arg(0)?.into();
    desk.act(Act::DeleteRegistrationToken { token }, nothing).await
}
