//! Filters: uploaded once, and named in every sync.

use std::sync::Arc;

use ruma::{
    UserId,
    api::client::filter::{create_filter::v3 as create_filter, get_filter::v3 as get_filter},
};
use serde_json::value::RawValue;

use crate::{
    api::server::Server,
    http::{ApiError, Cx, Json, check_objects},
};
use logcabin_base::limits;
use logcabin_decide::account_data::CreateFilter;
use logcabin_engine::Engine;
use logcabin_read::{sync::v3::SyncFilter, view::filter::Filter};
use logcabin_record::Command;
use logcabin_service::filters::Filters;

fn parsed(filters: &Filters, text: &str) -> Result<Arc<SyncFilter>, ApiError> {
    if let Some(known) = filters.known(text) {
        return Ok(known);
    }
    check_objects(text.as_bytes(), crate::api::bodies::FILTER)
        .map_err(|error| ApiError::invalid_param(error.message().to_owned()))?;
    filters.parse(text).map_err(|error| ApiError::invalid_param(error.to_string()))
}

pub(super) async fn create(
    cx: Cx<Server>,
    request: create_filter::Request,
) -> Result<create_filter::Response, ApiError> {
    cx.must_be(&request.user_id)?;
    if cx.body.len() > limits::ACCOUNT_DATA_BYTES {
        return Err(ApiError::too_large("The filter is too large."));
    }
    let text = str::from_utf8(&cx.body).map_err(|_| ApiError::not_json("Not JSON."))?;
    Filter::parse(text).map_err(|error| ApiError::bad_json(error.to_string()))?;
    // Stored as sent: the client gets back exactly what it uploaded.
    let filter: Box<RawValue> =
        serde_json::from_slice(&cx.body).map_err(|_| ApiError::not_json("Not JSON."))?;
    let proposal = CreateFilter { user_id: request.user_id, filter };
    Ok(create_filter::Response::new(cx.propose(proposal).await?.into_inner()))
}

pub(super) async fn get(cx: Cx<Server>, request: get_filter::Request) -> Result<Json, ApiError> {
    cx.must_be(&request.user_id)?;
    let filter = stored(&cx.app.engine, &request.user_id, &request.filter_id)?;
    let filter = filter.ok_or_else(|| ApiError::not_found("You have no such filter."))?;
    Ok(String::from(Box::<str>::from(filter)).into())
}

fn stored(
    engine: &Engine,
    user_id: &UserId,
    filter_id: &str,
) -> Result<Option<Box<RawValue>>, ApiError> {
    let Some(account) = engine.state().accounts.get(user_id) else { return Ok(None) };
    let offset = account.read().filters.get(filter_id).copied();
    Ok(match offset.map(|offset| engine.events().command(offset)).transpose()?.flatten() {
        Some(Command::FilterCreate(body)) => Some(body.filter),
        _ => None,
    })
}

/// The filter of a `/sync` request: JSON if it begins with `{`, otherwise the id of an uploaded
/// filter of the caller.
pub(super) fn of_sync(cx: &Cx<Server>) -> Result<Arc<SyncFilter>, ApiError> {
    let filters = &cx.app.sync.filters;
    let Some(filter) = cx.query("filter")? else { return parsed(filters, "{}") };
    if filter.starts_with('{') {
        return parsed(filters, &filter);
    }
    let filter = stored(&cx.app.engine, &cx.caller.user_id, &filter)?;
    let filter = filter.ok_or_else(|| ApiError::invalid_param("You have no such filter."))?;
    // An earlier version may have accepted filters beyond the present limits.
    parsed(filters, filter.get())
}
