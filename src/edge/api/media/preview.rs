//! URL previews (client-server API, "Content repository", `preview_url`).

#![allow(deprecated, reason = "the old path is served as well")]

use http::StatusCode;
use ruma::api::client::{
    authenticated_media::get_media_preview::v1 as get_preview,
    media::get_media_preview::v3 as old_get_preview,
};

use crate::{
    api::server::Server,
    http::{ApiError, Caller as _, Cx, ErrorCode, Json},
};
use logcabin_service::media::preview::Failure;

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Address => Self::invalid_param("This is not an address on the web."),
            Failure::Refused => Self::forbidden("There are no previews of this address."),
            Failure::Upstream => Self::new(ErrorCode::Unknown, "The page cannot be fetched.")
                .with_status(StatusCode::BAD_GATEWAY),
        }
    }
}

pub(super) async fn preview(
    cx: Cx<Server>,
    request: get_preview::Request,
) -> Result<Json, ApiError> {
    of(&cx, &request.url).await
}

pub(super) async fn old_preview(
    cx: Cx<Server>,
    request: old_get_preview::Request,
) -> Result<Json, ApiError> {
    of(&cx, &request.url).await
}

async fn of(cx: &Cx<Server>, url: &str) -> Result<Json, ApiError> {
    if !cx.app.config.media.url_previews {
        return Err(ApiError::no_such_endpoint());
    }
    Ok(Json(cx.app.media.preview(url, cx.caller.origin(&cx.request_id)).await?))
}
