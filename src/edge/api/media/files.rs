//! Media: uploads, downloads and thumbnails (client-server API, "Content repository").

#![allow(
    deprecated,
    reason = "the paths that need no access token are served as far as configured"
)]

use std::{sync::Arc, time::Duration};

use http::HeaderMap;
use ruma::{
    MilliSecondsSinceUnixEpoch, UInt,
    api::client::{
        authenticated_media::{
            get_content::v1 as get_content, get_content_as_filename::v1 as get_content_as,
            get_content_thumbnail::v1 as get_thumbnail, get_media_config::v1 as get_config,
        },
        media::{
            create_content::v3 as create_content, create_content_async::v3 as create_content_async,
            create_mxc_uri::v1 as create_mxc, get_content::v3 as old_get_content,
            get_content_as_filename::v3 as old_get_content_as,
            get_content_thumbnail::v3 as old_get_thumbnail, get_media_config::v3 as old_get_config,
        },
    },
    api::federation::authenticated_media::{
        get_content::v1 as get_content_for_server,
        get_content_thumbnail::v1 as get_thumbnail_for_server,
    },
};
use serde_json::json;

use super::serving::{Serving, wish};
use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, Download as DownloadRequest, Homeserver, Incoming, Json, Reply, Upload},
};
use logcabin_base::clock::random_letters;
use logcabin_config as config;
use logcabin_decide::media::{AddMedia, CreateMedia};
use logcabin_media::IncomingFile;
use logcabin_record::command::FileHash;
use logcabin_service::media::{FileError, FileRequest, UploadGuard};

pub(super) async fn upload(
    cx: Cx<Server>,
    Upload { request, file }: Upload<create_content::Request>,
) -> Result<Json, ApiError> {
    let media_id = random_letters(24);
    let address = cx.app.media.mxc(&media_id);
    let add = addition(&cx, media_id, request.content_type, request.filename);
    receive(&cx, file, add).await?;
    to_json(&json!({ "content_uri": address }))
}

pub(super) async fn create(
    cx: Cx<Server>,
    _: create_mxc::Request,
) -> Result<create_mxc::Response, ApiError> {
    let settings = &cx.app.config.media;
    let now_ms = cx.app.engine.clock().now_ms();
    let expires_ms = now_ms.saturating_add(settings.unused_seconds.saturating_mul(1000));
    let media_id = random_letters(24);
    let mut response = create_mxc::Response::new(cx.app.media.mxc(&media_id));
    response.unused_expires_at = UInt::try_from(expires_ms).ok().map(MilliSecondsSinceUnixEpoch);
    let user_id = cx.caller.user_id.clone();
    let most = settings.unused_ids;
    cx.propose(CreateMedia { user_id, media_id, expires_ms, now_ms, most }).await?.into_inner();
    Ok(response)
}

pub(super) async fn upload_to(
    cx: Cx<Server>,
    Upload { request, file }: Upload<create_content_async::Request>,
) -> Result<Json, ApiError> {
    let create_content_async::Request { server_name, media_id, content_type, filename, .. } =
        request;
    if !cx.app.media.is_own(&server_name) {
        file.drain().await;
        return Err(ApiError::not_found("This media id was not issued by this server."));
    }
    let mut add = addition(&cx, media_id, content_type, filename);
    add.given_out = true;
    receive(&cx, file, add).await?;
    Ok("{}".into())
}

fn addition(
    cx: &Cx<Server>,
    media_id: String,
    content_type: Option<String>,
    name: Option<String>,
) -> AddMedia {
    AddMedia {
        media_id,
        given_out: false,
        user_id: Some(cx.caller.user_id.clone()),
        // Set once the file is complete.
        hash: FileHash([0; 32]),
        size: 0,
        content_type: content_type.filter(|text| !text.is_empty()),
        name: name.filter(|text| !text.is_empty()),
        now_ms: cx.app.engine.clock().now_ms(),
        quota: cx.app.config.media.user_quota_bytes,
    }
}

/// Receives a file and puts it under its id.
async fn receive(cx: &Cx<Server>, mut incoming: Incoming, add: AddMedia) -> Result<(), ApiError> {
    let (receiving, mut add, _under_way) = match take_in(cx, &mut incoming, add).await {
        Ok(received) => received,
        Err(error) => {
            incoming.drain().await;
            return Err(error);
        }
    };
    // For a reserved id, the time of completion counts.
    add.now_ms = cx.app.engine.clock().now_ms();
    let (media, origin) = (Arc::clone(&cx.app.media), cx.origin());
    // In its own task: the upload counts even if the client hangs up now.
    let keeping = tokio::spawn(async move { media.keep(receiving, add, origin).await });
    Ok(keeping.await.map_err(ApiError::internal)??)
}

async fn take_in<'a>(
    cx: &'a Cx<Server>,
    incoming: &mut Incoming,
    mut add: AddMedia,
) -> Result<(IncomingFile, AddMedia, UploadGuard<'a>), ApiError> {
    let under_way = cx.app.media.begin_upload(&cx.caller.user_id);
    let under_way = under_way.ok_or_else(|| ApiError::limit_exceeded(Duration::from_secs(1)))?;
    let declared = incoming.declared()?;
    add.size = declared.unwrap_or(0);
    add.check(&cx.app.engine.state())?;
    let mut receiving = cx.app.media.store.receive(declared).await.map_err(FileError::Unwritten)?;
    while let Some(piece) = incoming.next().await? {
        receiving.write(piece).await.map_err(FileError::Unwritten)?;
    }
    Ok((receiving, add, under_way))
}

pub(super) async fn config(
    cx: Cx<Server>,
    _: get_config::Request,
) -> Result<get_config::Response, ApiError> {
    Ok(get_config::Response::new(largest(&cx.app.config.media)))
}

pub(super) async fn old_config(
    cx: Cx<Server>,
    _: old_get_config::Request,
) -> Result<old_get_config::Response, ApiError> {
    Ok(old_get_config::Response::new(largest(&cx.app.config.media)))
}

fn largest(media: &config::Media) -> UInt {
    UInt::try_from(media.max_upload_bytes).unwrap_or(UInt::MAX)
}

pub(super) async fn download(
    cx: Cx<Server>,
    DownloadRequest { request, headers }: DownloadRequest<get_content::Request>,
) -> Result<Reply, ApiError> {
    let get_content::Request { server_name, media_id, timeout_ms, .. } = request;
    let wanted = FileRequest { server: &server_name, media_id: &media_id, wait: timeout_ms };
    let found = cx.app.media.find(wanted, cx.whose(), &cx.shutdown).await?;
    Serving::of(&cx.app).serve(found, None, false, &headers).await
}

pub(super) async fn download_as(
    cx: Cx<Server>,
    DownloadRequest { request, headers }: DownloadRequest<get_content_as::Request>,
) -> Result<Reply, ApiError> {
    let get_content_as::Request { server_name, media_id, filename, timeout_ms, .. } = request;
    let wanted = FileRequest { server: &server_name, media_id: &media_id, wait: timeout_ms };
    let found = cx.app.media.find(wanted, cx.whose(), &cx.shutdown).await?;
    Serving::of(&cx.app).serve(found, Some(filename), false, &headers).await
}

pub(super) async fn thumbnail(
    cx: Cx<Server>,
    DownloadRequest { request, headers }: DownloadRequest<get_thumbnail::Request>,
) -> Result<Reply, ApiError> {
    let wish = wish(request.width, request.height, request.method, request.animated)?;
    let get_thumbnail::Request { server_name, media_id, timeout_ms, .. } = request;
    let wanted = FileRequest { server: &server_name, media_id: &media_id, wait: timeout_ms };
    let found = cx.app.media.find(wanted, cx.whose(), &cx.shutdown).await?;
    Serving::of(&cx.app).serve_thumbnail(found, wish, &cx.whose(), false, &headers).await
}

pub(super) async fn old_download(
    cx: Cx<Server, ()>,
    DownloadRequest { request, headers }: DownloadRequest<old_get_content::Request>,
) -> Result<Reply, ApiError> {
    let old_get_content::Request { server_name, media_id, timeout_ms, allow_remote, .. } = request;
    let wanted = FileRequest { server: &server_name, media_id: &media_id, wait: timeout_ms };
    let (app, caller) = (&cx.app, cx.whose());
    let found = app.media.find_before_freeze(wanted, allow_remote, caller, &cx.shutdown).await?;
    Serving::of(app).serve(found, None, true, &headers).await
}

pub(super) async fn old_download_as(
    cx: Cx<Server, ()>,
    DownloadRequest { request, headers }: DownloadRequest<old_get_content_as::Request>,
) -> Result<Reply, ApiError> {
    let old_get_content_as::Request { server_name, media_id, filename, timeout_ms, .. } = request;
    let wanted = FileRequest { server: &server_name, media_id: &media_id, wait: timeout_ms };
    let (app, caller) = (&cx.app, cx.whose());
    let found =
        app.media.find_before_freeze(wanted, request.allow_remote, caller, &cx.shutdown).await?;
    Serving::of(app).serve(found, Some(filename), true, &headers).await
}

pub(super) async fn old_thumbnail(
    cx: Cx<Server, ()>,
    DownloadRequest { request, headers }: DownloadRequest<old_get_thumbnail::Request>,
) -> Result<Reply, ApiError> {
    let wish = wish(request.width, request.height, request.method, request.animated)?;
    let old_get_thumbnail::Request { server_name, media_id, timeout_ms, .. } = request;
    let wanted = FileRequest { server: &server_name, media_id: &media_id, wait: timeout_ms };
    let (app, caller) = (&cx.app, cx.whose());
    let found =
        app.media.find_before_freeze(wanted, request.allow_remote, caller, &cx.shutdown).await?;
    Serving::of(app).serve_thumbnail(found, wish, &cx.whose(), true, &headers).await
}

/// The part before a file for another homeserver: its metadata, which is empty for now.
const ABOUT_FILE: &str = "{}";

pub(in crate::api) async fn download_for_server(
    cx: Cx<Server, Homeserver>,
    request: get_content_for_server::Request,
) -> Result<Reply, ApiError> {
    let stored = cx.app.media.stored(&request.media_id, request.timeout_ms, &cx.shutdown).await?;
    let file = Serving::of(&cx.app).serve(stored.into(), None, false, &HeaderMap::new()).await?;
    Ok(file.after_json(ABOUT_FILE))
}

pub(in crate::api) async fn thumbnail_for_server(
    cx: Cx<Server, Homeserver>,
    request: get_thumbnail_for_server::Request,
) -> Result<Reply, ApiError> {
    let wish = wish(request.width, request.height, request.method, request.animated)?;
    let stored = cx.app.media.stored(&request.media_id, request.timeout_ms, &cx.shutdown).await?;
    let (found, headers) = (stored.into(), HeaderMap::new());
    let file =
        Serving::of(&cx.app).serve_thumbnail(found, wish, &cx.whose(), false, &headers).await?;
    Ok(file.after_json(ABOUT_FILE))
}
