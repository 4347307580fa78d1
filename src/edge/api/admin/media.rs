//! Uploaded files.

use ruma::api::auth_scheme::AccessToken;
use serde_json::{Value, json};

use super::parts::{ActParameters, AdminParts as _, PageOf, nothing, page_of};
use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, Json, Received, endpoint},
};
use logcabin_base::background::at_length;
use logcabin_ops::admin::media::{
    self, DeleteMedia, MediaDeleted, MediaOf, MediaSummary, ProtectMedia, PurgeRemoteMedia,
    QuarantineMedia, Quarantined, RemoteMediaPurged,
};

/// A lower timestamp is in seconds instead of milliseconds: the beginning of 1990.
const EARLIEST_MS: u64 = 631_152_000_000;

fn file(server_name: &str, media_id: &str) -> MediaOf {
    MediaOf::Id(format!("mxc://{server_name}/{media_id}"))
}

fn files(cx: &Cx<Server>, of: &MediaOf) -> Result<(Vec<MediaSummary>, Vec<String>), ApiError> {
    let media::Media { media, remote } = at_length(|| media::list(&cx.app.context, of))?;
    Ok((media, remote.into_iter().map(|address| address.to_string()).collect()))
}

fn words(file: &MediaSummary) -> Value {
    json!({
        "media_id": file.media_id,
        "created_ts": file.created_ts,
        "last_access_ts": null,
        "media_length": file.media_length,
        "media_type": file.media_type,
        "upload_name": file.upload_name,
        "quarantined_by": file.quarantined_by,
        "safe_from_quarantine": file.safe_from_quarantine,
    })
}

endpoint! {
    /// `GET …/media/{server_name}/{media_id}`
    pub(super) struct Get = GET "/_synapse/admin/v1/media/{server_name}/{media_id}";
    for AccessToken;
    { server_name: String = path, media_id: String = path }
}

pub(super) async fn get(cx: Cx<Server>, request: Get) -> Result<Json, ApiError> {
    let (files, _) = files(&cx, &file(&request.server_name, &request.media_id))?;
    let file = files.first().ok_or_else(|| ApiError::not_found("There is no such file."))?;
    let mut info = words(file);
    info["media_origin"] = request.server_name.into();
    info["user_id"] = json!(file.user_id);
    info["blake3"] = file.blake3.as_str().into();
    to_json(&json!({ "media_info": info }))
}

endpoint! {
    /// `GET …/room/{room_id}/media`
    pub(super) struct OfRoom = GET "/_synapse/admin/v1/room/{room_id}/media";
    for AccessToken;
    { room: String = path }
}

pub(super) async fn of_room(cx: Cx<Server>, request: OfRoom) -> Result<Json, ApiError> {
    let (files, remote) = files(&cx, &MediaOf::Room(request.room))?;
    let local: Vec<_> = files.iter().map(|file| cx.app.media.mxc(&file.media_id)).collect();
    to_json(&json!({ "local": local, "remote": remote }))
}

/// The requested page of a user's files, and its order.
pub(super) struct FilesOfUser {
    user: String,
    page: PageOf,
    order: Option<String>,
    backwards: Option<bool>,
}

trait FileParts {
    fn files(&mut self, name: &str) -> Result<FilesOfUser, ApiError>;
}

impl FileParts for Received<'_> {
    fn files(&mut self, _: &str) -> Result<FilesOfUser, ApiError> {
        Ok(FilesOfUser {
            user: self.path("user_id")?,
            page: self.page("page")?,
            order: self.parameter("order_by")?,
            backwards: self.backwards("dir")?,
        })
    }
}

/// A page of a user's uploads, their total number, and the start of the next page. The default
/// order is newest first.
fn page_of_user(
    cx: &Cx<Server>,
    of: FilesOfUser,
) -> Result<(Vec<MediaSummary>, usize, Option<usize>), ApiError> {
    let FilesOfUser { user, page, order, backwards } = of;
    let (mut files, _) = files(cx, &MediaOf::User(user))?;
    // They are sorted by id already, and a stable sort keeps that order among equals.
    match order.as_deref() {
        Some("media_id" | "last_access_ts") => {}
        Some("upload_name") => files.sort_by_key(|file| file.upload_name.clone()),
        None | Some("created_ts") => files.sort_by_key(|file| file.created_ts),
        Some("media_length") => files.sort_by_key(|file| file.media_length),
        Some("media_type") => files.sort_by_key(|file| file.media_type.clone()),
        Some("quarantined_by") => files.sort_by_key(|file| file.quarantined_by.clone()),
        Some("safe_from_quarantine") => files.sort_by_key(|file| file.safe_from_quarantine),
        Some(_) => return Err(ApiError::invalid_param("There is no such order of files.")),
    }
    if backwards.unwrap_or_else(|| order.is_none()) {
        files.reverse();
    }
    let total = files.len();
    let (files, next) = page_of(files, page);
    Ok((files, total, next))
}

endpoint! {
    /// `GET …/users/{user_id}/media`
    pub(super) struct OfUser = GET "/_synapse/admin/v1/users/{user_id}/media";
    for AccessToken;
    { files: FilesOfUser = files }
}

pub(super) async fn of_user(cx: Cx<Server>, request: OfUser) -> Result<Json, ApiError> {
    let (files, total, next) = page_of_user(&cx, request.files)?;
    let mut answer =
        json!({ "media": files.iter().map(words).collect::<Vec<_>>(), "total": total });
    if let Some(next) = next {
        answer["next_token"] = next.into();
    }
    to_json(&answer)
}

endpoint! {
    /// `POST …/media/quarantine/{server_name}/{media_id}`
    pub(super) struct Quarantine = POST
        "/_synapse/admin/v1/media/quarantine/{server_name}/{media_id}";
    for AccessToken;
    { server_name: String = path, media_id: String = path, terms: ActParameters = terms }
}

pub(super) async fn quarantine(cx: Cx<Server>, request: Quarantine) -> Result<Json, ApiError> {
    let of = file(&request.server_name, &request.media_id);
    cx.act(QuarantineMedia { of, quarantined: true }, request.terms, nothing).await
}

endpoint! {
    /// `POST …/media/unquarantine/{server_name}/{media_id}`
    pub(super) struct Unquarantine = POST
        "/_synapse/admin/v1/media/unquarantine/{server_name}/{media_id}";
    for AccessToken;
    { server_name: String = path, media_id: String = path, terms: ActParameters = terms }
}

pub(super) async fn unquarantine(cx: Cx<Server>, request: Unquarantine) -> Result<Json, ApiError> {
    let of = file(&request.server_name, &request.media_id);
    cx.act(QuarantineMedia { of, quarantined: false }, request.terms, nothing).await
}

endpoint! {
    /// `POST …/room/{room_id}/media/quarantine`
    pub(super) struct QuarantineRoom = POST
        "/_synapse/admin/v1/quarantine_media/{room_id}"
        "/_synapse/admin/v1/room/{room_id}/media/quarantine";
    for AccessToken;
    { room: String = path, terms: ActParameters = terms }
}

pub(super) async fn quarantine_room(
    cx: Cx<Server>,
    request: QuarantineRoom,
) -> Result<Json, ApiError> {
    let of = MediaOf::Room(request.room);
    cx.act(QuarantineMedia { of, quarantined: true }, request.terms, counted).await
}

endpoint! {
    /// `POST …/user/{user_id}/media/quarantine`
    pub(super) struct QuarantineUser = POST "/_synapse/admin/v1/user/{user_id}/media/quarantine";
    for AccessToken;
    { user: String = path, terms: ActParameters = terms }
}

pub(super) async fn quarantine_user(
    cx: Cx<Server>,
    request: QuarantineUser,
) -> Result<Json, ApiError> {
    let of = MediaOf::User(request.user);
    cx.act(QuarantineMedia { of, quarantined: true }, request.terms, counted).await
}

fn counted(Quarantined { media_ids, remote, .. }: Quarantined) -> Value {
    json!({ "num_quarantined": media_ids.len() + remote.len() })
}

fn deleted(MediaDeleted { media_ids, remote }: MediaDeleted) -> Value {
    let remote = remote.iter().filter_map(|address| address.media_id().ok());
    let deleted: Vec<_> = media_ids.iter().map(String::as_str).chain(remote).collect();
    json!({ "total": deleted.len(), "deleted_media": deleted })
}

endpoint! {
    /// `DELETE …/media/{server_name}/{media_id}`
    pub(super) struct Delete = DELETE "/_synapse/admin/v1/media/{server_name}/{media_id}";
    for AccessToken;
    { server_name: String = path, media_id: String = path, terms: ActParameters = terms }
}

pub(super) async fn delete(cx: Cx<Server>, request: Delete) -> Result<Json, ApiError> {
    let of = file(&request.server_name, &request.media_id);
    cx.act(DeleteMedia { of }, request.terms, deleted).await
}

endpoint! {
    /// `POST …/media/{server_name}/delete`
    pub(super) struct DeleteOld = POST
        "/_synapse/admin/v1/media/delete"
        "/_synapse/admin/v1/media/{server_name}/delete";
    for AccessToken;
    {
        server_name: Option<String> = path_if_any,
        before_ts: Option<u64> = number,
        size_gt: Option<u64> = number,
        keep_profiles: Option<String> = parameter,
        terms: ActParameters = terms,
    }
}

/// The moment before which files are deleted.
fn in_milliseconds(before_ts: Option<u64>) -> Result<u64, ApiError> {
    let before_ms = before_ts.ok_or_else(|| ApiError::missing_param("`before_ts` is missing."))?;
    if before_ms < EARLIEST_MS {
        let why = "`before_ts` is before there was any file: it counts milliseconds.";
        return Err(ApiError::invalid_param(why));
    }
    Ok(before_ms)
}

/// Deletes files that were uploaded before a time. The time of the last access is not recorded.
pub(super) async fn delete_old(cx: Cx<Server>, request: DeleteOld) -> Result<Json, ApiError> {
    // One of the two paths names a server.
    if request.server_name.is_some_and(|name| *name != *cx.app.config.server.name) {
        return Err(ApiError::invalid_param("Only files of this server can be deleted."));
    }
    let before_ms = in_milliseconds(request.before_ts)?;
    let larger_than = request.size_gt.unwrap_or(0);
    let pictures = match request.keep_profiles.as_deref() {
        None | Some("true") => false,
        Some("false") => true,
        Some(_) => {
            return Err(ApiError::invalid_param("`keep_profiles` is `true` or `false`."));
        }
    };
    let of = MediaOf::Before { before_ms, larger_than, pictures };
    cx.act(DeleteMedia { of }, request.terms, deleted).await
}

endpoint! {
    /// `POST …/purge_media_cache`
    pub(super) struct PurgeCache = POST "/_synapse/admin/v1/purge_media_cache";
    for AccessToken;
    { before_ts: Option<u64> = number, terms: ActParameters = terms }
}

/// Deletes copies of files of other homeservers that were last used before a time.
pub(super) async fn purge_cache(cx: Cx<Server>, request: PurgeCache) -> Result<Json, ApiError> {
    let before_ms = in_milliseconds(request.before_ts)?;
    let deleted = |RemoteMediaPurged { deleted }| json!({ "deleted": deleted });
    cx.act(PurgeRemoteMedia { before_ms }, request.terms, deleted).await
}

endpoint! {
    /// `DELETE …/users/{user_id}/media`
    pub(super) struct DeleteOfUser = DELETE "/_synapse/admin/v1/users/{user_id}/media";
    for AccessToken;
    { files: FilesOfUser = files, terms: ActParameters = terms }
}

/// Deletes a page of a user's uploads.
pub(super) async fn delete_of_user(
    cx: Cx<Server>,
    request: DeleteOfUser,
) -> Result<Json, ApiError> {
    let (files, ..) = page_of_user(&cx, request.files)?;
    let state = cx.app.engine.state().share();
    // One may have been deleted meanwhile.
    let ids = files.into_iter().map(|file| file.media_id);
    let of = MediaOf::Ids(ids.filter(|id| state.media.get(id).is_some()).collect());
    cx.act(DeleteMedia { of }, request.terms, deleted).await
}

endpoint! {
    /// `POST …/media/protect/{media_id}`
    pub(super) struct Protect = POST "/_synapse/admin/v1/media/protect/{media_id}";
    for AccessToken;
    { media_id: String = path, terms: ActParameters = terms }
}

pub(super) async fn protect(cx: Cx<Server>, request: Protect) -> Result<Json, ApiError> {
    let media = request.media_id;
    cx.act(ProtectMedia { media, protected: true }, request.terms, nothing).await
}

endpoint! {
    /// `POST …/media/unprotect/{media_id}`
    pub(super) struct Unprotect = POST "/_synapse/admin/v1/media/unprotect/{media_id}";
    for AccessToken;
    { media_id: String = path, terms: ActParameters = terms }
}

pub(super) async fn unprotect(cx: Cx<Server>, request: Unprotect) -> Result<Json, ApiError> {
    let media = request.media_id;
    cx.act(ProtectMedia { media, protected: false }, request.terms, nothing).await
}

endpoint! {
    /// `GET …/statistics/users/media`
    pub(super) struct Statistics = GET "/_synapse/admin/v1/statistics/users/media";
    for AccessToken;
    {
        page: PageOf = page,
        from_ts: Option<u64> = number,
        until_ts: Option<u64> = number,
        search_term: Option<String> = parameter,
        order_by: Option<String> = parameter,
        dir: Option<bool> = backwards,
    }
}

/// How much each user has uploaded, optionally within a period.
pub(super) async fn statistics(cx: Cx<Server>, request: Statistics) -> Result<Json, ApiError> {
    let (since, until) = (request.from_ts, request.until_ts);
    let when = since.unwrap_or(0)..=until.unwrap_or(u64::MAX);
    if when.is_empty() {
        return Err(ApiError::invalid_param("`from_ts` is before `until_ts`."));
    }
    let mut users = at_length(|| media::statistics(&cx.app.context, when));
    if let Some(search) = request.search_term {
        let part = logcabin_base::text::fold(&search);
        let has = |text: &str| logcabin_base::text::fold(text).contains(&part);
        users
            .retain(|of| has(of.user_id.localpart()) || of.displayname.as_deref().is_some_and(has));
    }
    match request.order_by.as_deref() {
        None | Some("user_id") => users.sort_by(|a, b| a.user_id.cmp(&b.user_id)),
        Some("displayname") => users.sort_by(|a, b| a.displayname.cmp(&b.displayname)),
        Some("media_count") => users.sort_by_key(|of| of.media_count),
        Some("media_length") => users.sort_by_key(|of| of.media_length),
        Some(_) => return Err(ApiError::invalid_param("There is no such order of users.")),
    }
    if request.dir.unwrap_or(false) {
        users.reverse();
    }
    let total = users.len();
    let (users, next) = page_of(users, request.page);
    let mut answer = json!({ "users": users, "total": total });
    if let Some(next) = next {
        answer["next_token"] = next.into();
    }
    to_json(&answer)
}
