//! Uploaded files.

use serde_json::{Value, json};

use super::{Caller, Desk, nothing, page_of, reply};
use crate::{
    edge::{
        api::at_length,
        http::{ApiError, RawRequest, Reply},
    },
    ops::admin::{Act, Done, MediaOf, MediaSummary},
};

pub(super) const QUARANTINE: &str = "/_synapse/admin/v1/media/quarantine/{server_name}/{media_id}";
pub(super) const UNQUARANTINE: &str =
    "/_synapse/admin/v1/media/unquarantine/{server_name}/{media_id}";
pub(super) const QUARANTINE_ROOM: [&str; 2] = [
    "/_synapse/admin/v1/quarantine_media/{room_id}",
    "/_synapse/admin/v1/room/{room_id}/media/quarantine",
];
pub(super) const QUARANTINE_USER: &str = "/_synapse/admin/v1/user/{user_id}/media/quarantine";

pub(super) const DELETE_OLD: [&str; 2] =
    ["/_synapse/admin/v1/media/delete", "/_synapse/admin/v1/media/{server_name}/delete"];
pub(super) const OF_USER: &str = "/_synapse/admin/v1/users/{user_id}/media";
pub(super) const ONE: &str = "/_synapse/admin/v1/media/{server_name}/{media_id}";

/// A time before this is one in seconds, taken for one in milliseconds: the first of 1990.
const EARLIEST_MS: u64 = 631_152_000_000;

fn address(desk: &Desk) -> Result<String, ApiError> {
    Ok(format!("mxc://{}/{}", desk.arg(0)?, desk.arg(1)?))
}

fn files(desk: &Desk, of: &MediaOf) -> Result<(Vec<MediaSummary>, Vec<String>), ApiError> {
    match at_length(|| desk.cx.app.office.list_media(of))? {
        Done::Media { media, remote } => {
            Ok((media, remote.into_iter().map(|address| address.to_string()).collect()))
        }
        _ => Err(ApiError::internal("not a list of files")),
    }
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

pub(super) async fn get(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (files, _) = files(&desk, &MediaOf::Id(address(&desk)?))?;
    let file = files.first().ok_or_else(|| ApiError::not_found("There is no such file."))?;
    let mut info = words(file);
    info["media_origin"] = desk.arg(0)?.into();
    info["user_id"] = json!(file.user_id);
    info["blake3"] = file.blake3.as_str().into();
    reply(&json!({ "media_info": info }))
}

pub(super) async fn of_room(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (files, remote) = files(&desk, &MediaOf::Room(desk.arg(0)?.to_owned()))?;
    let local: Vec<_> = files.iter().map(|file| desk.cx.app.mxc(&file.media_id)).collect();
    reply(&json!({ "local": local, "remote": remote }))
}

/// A page of what a user uploaded, how much that is in all, and where the next page begins: unless
/// it is said otherwise, the newest first.
fn page_of_user(desk: &Desk) -> Result<(Vec<MediaSummary>, usize, Option<usize>), ApiError> {
    let (from, limit) = desk.page()?;
    let (mut files, _) = files(desk, &MediaOf::User(desk.arg(0)?.to_owned()))?;
    let order = desk.cx.query("order_by")?;
    // They come by their ids, and stay so where they are equal.
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
    if desk.backwards()?.unwrap_or_else(|| order.is_none()) {
        files.reverse();
    }
    let total = files.len();
    let (files, next) = page_of(files, from, limit);
    Ok((files, total, next))
}

pub(super) async fn of_user(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (files, total, next) = page_of_user(&desk)?;
    let mut answer =
        json!({ "media": files.iter().map(words).collect::<Vec<_>>(), "total": total });
    if let Some(next) = next {
        answer["next_token"] = next.into();
    }
    reply(&answer)
}

pub(super) async fn quarantine(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let of = MediaOf::Id(address(&desk)?);
    desk.act(Act::QuarantineMedia { of, quarantined: true }, nothing).await
}

pub(super) async fn unquarantine(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let of = MediaOf::Id(address(&desk)?);
    desk.act(Act::QuarantineMedia { of, quarantined: false }, nothing).await
}

pub(super) async fn quarantine_room(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let of = MediaOf::Room(desk.arg(0)?.to_owned());
    desk.act(Act::QuarantineMedia { of, quarantined: true }, counted).await
}

pub(super) async fn quarantine_user(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let of = MediaOf::User(desk.arg(0)?.to_owned());
    desk.act(Act::QuarantineMedia { of, quarantined: true }, counted).await
}

fn counted(done: Done) -> Value {
    match done {
        Done::Quarantined { media_ids, .. } => json!({ "num_quarantined": media_ids.len() }),
        other => nothing(other),
    }
}

fn deleted(done: Done) -> Value {
    match done {
        Done::MediaDeleted { media_ids } => {
            json!({ "total": media_ids.len(), "deleted_media": media_ids })
        }
        other => nothing(other),
    }
}

pub(super) async fn delete(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let of = MediaOf::Id(address(&desk)?);
    desk.act(Act::DeleteMedia { of }, deleted).await
}

/// Removes what was uploaded before a time: here it is not known when a file was last looked at.
pub(super) async fn delete_old(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    // One of the two paths names a server.
    if desk.arg(0).is_ok_and(|name| *name != *desk.cx.app.config.server.name) {
        return Err(ApiError::invalid_param("Only files of this server can be deleted."));
    }
    let before_ms = desk
        .number("before_ts")?
        .ok_or_else(|| ApiError::missing_param("`before_ts` is missing."))?;
    if before_ms < EARLIEST_MS {
        let why = "`before_ts` is before there was any file: it counts milliseconds.";
        return Err(ApiError::invalid_param(why));
    }
    let larger_than = desk.number("size_gt")?.unwrap_or(0);
    let pictures = match desk.cx.query("keep_profiles")?.as_deref() {
        None | Some("true") => false,
        Some("false") => true,
        Some(_) => {
            return Err(ApiError::invalid_param("`keep_profiles` is `true` or `false`."));
        }
    };
    let of = MediaOf::Before { before_ms, larger_than, pictures };
    desk.act(Act::DeleteMedia { of }, deleted).await
}

/// Removes a page of what a user uploaded.
pub(super) async fn delete_of_user(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (files, ..) = page_of_user(&desk)?;
    let state = desk.cx.app.engine.state().share();
    // One may have gone meanwhile.
    let ids = files.into_iter().map(|file| file.media_id);
    let of = MediaOf::Ids(ids.filter(|id| state.media.get(id).is_some()).collect());
    desk.act(Act::DeleteMedia { of }, deleted).await
}

pub(super) async fn protect(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let media = desk.arg(0)?.to_owned();
    desk.act(Act::ProtectMedia { media, protected: true }, nothing).await
}

pub(super) async fn unprotect(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let media = desk.arg(0)?.to_owned();
    desk.act(Act::ProtectMedia { media, protected: false }, nothing).await
}

/// How much each user has uploaded: within a time, if one is given.
pub(super) async fn statistics(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (from, limit) = desk.page()?;
    let (since, until) = (desk.number("from_ts")?, desk.number("until_ts")?);
    let when = since.unwrap_or(0)..=until.unwrap_or(u64::MAX);
    if when.is_empty() {
        return Err(ApiError::invalid_param("`from_ts` is before `until_ts`."));
    }
    let mut users = at_length(|| desk.cx.app.office.media_statistics(when));
    if let Some(search) = desk.cx.query("search_term")? {
        let part = crate::base::text::fold(&search);
        let has = |text: &str| crate::base::text::fold(text).contains(&part);
        users
            .retain(|of| has(of.user_id.localpart()) || of.displayname.as_deref().is_some_and(has));
    }
    match desk.cx.query("order_by")?.as_deref() {
        None | Some("user_id") => users.sort_by(|a, b| a.user_id.cmp(&b.user_id)),
        Some("displayname") => users.sort_by(|a, b| a.displayname.cmp(&b.displayname)),
        Some("media_count") => users.sort_by_key(|of| of.media_count),
        Some("media_length") => users.sort_by_key(|of| of.media_length),
        Some(_) => return Err(ApiError::invalid_param("There is no such order of users.")),
    }
    if desk.backwards()?.unwrap_or(false) {
        users.reverse();
    }
    let total = users.len();
    let (users, next) = page_of(users, from, limit);
    let mut answer = json!({ "users": users, "total": total });
    if let Some(next) = next {
        answer["next_token"] = next.into();
    }
    reply(&answer)
}
