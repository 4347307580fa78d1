//! Room key backups (client-server API, "Server-side key backups").

use std::{collections::BTreeMap, future, io, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use ruma::{
    OwnedRoomId, OwnedUserId, RoomId,
    api::client::backup::{
        BackupAlgorithm, KeyBackupData, RoomKeyBackup, add_backup_keys::v3 as put_all,
        add_backup_keys_for_room::v3 as put_room, add_backup_keys_for_session::v3 as put_session,
        create_backup_version::v3 as create_version, delete_backup_keys::v3 as delete_all,
        delete_backup_keys_for_room::v3 as delete_room,
        delete_backup_keys_for_session::v3 as delete_session,
        delete_backup_version::v3 as delete_version, get_backup_info::v3 as get_version,
        get_backup_keys::v3 as get_all, get_backup_keys_for_room::v3 as get_room,
        get_backup_keys_for_session::v3 as get_session,
        get_latest_backup_info::v3 as get_latest_version,
        update_backup_version::v3 as update_version,
    },
    serde::Raw,
};
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};

use crate::{
    api::{answer::json, server::Server},
    http::{ApiError, Cx, Json, Reply, read_body},
};
use logcabin_base::limits;
use logcabin_decide::key_backup::{DeleteBackup, PutKeys, RemoveKeys, SetBackup};
use logcabin_log::ReadError;
use logcabin_read::view::key_backup::{RoomKeys, next_room_keys, room_keys};
use logcabin_record::{Command, Offset, command::BackedUpKey};
use logcabin_service::requester::Requester;

fn no_backup() -> ApiError {
    ApiError::not_found("There is no such backup.")
}

/// The number of a version. Clients treat versions as opaque.
fn number(version: &str) -> Result<u64, ApiError> {
    let number = version.parse::<u64>().map_err(|_| no_backup())?;
    if number.to_string() == version { Ok(number) } else { Err(no_backup()) }
}

/// The algorithm and authentication data of a backup, as a client sends it.
#[derive(Deserialize)]
struct BackupInfo {
    algorithm: String,
    auth_data: Box<RawValue>,
    version: Option<String>,
}

impl BackupInfo {
    fn read(algorithm: &Raw<BackupAlgorithm>) -> Result<Self, ApiError> {
        let given: Self = read_body(algorithm.json().get().as_bytes())?;
        // Its content is up to the user's clients, which sign it. Some write a string.
        if !given.auth_data.get().starts_with(['{', '"']) {
            return Err(ApiError::bad_json("`auth_data` is an object or a string."));
        }
        if given.auth_data.get().len() > limits::KEY_BYTES
            || given.algorithm.len() > limits::IDENTIFIER_BYTES
        {
            return Err(ApiError::too_large(
                "The authentication data of a backup cannot be this large.",
            ));
        }
        Ok(given)
    }
}

pub(super) async fn create(
    cx: Cx<Server>,
    request: create_version::Request,
) -> Result<create_version::Response, ApiError> {
    let BackupInfo { algorithm, auth_data, .. } = BackupInfo::read(&request.algorithm)?;
    let user_id = cx.caller.user_id.clone();
    let version = cx.propose(SetBackup { user_id, version: None, algorithm, auth_data }).await?;
    Ok(create_version::Response::new(version.into_inner().to_string()))
}

pub(super) async fn update(
    cx: Cx<Server>,
    request: update_version::Request,
) -> Result<update_version::Response, ApiError> {
    let version = number(&request.version)?;
    let BackupInfo { algorithm, auth_data, version: named } = BackupInfo::read(&request.algorithm)?;
    if named.is_some_and(|named| named != request.version) {
        return Err(ApiError::invalid_param("The body names another version than the path."));
    }
    let user_id = cx.caller.user_id.clone();
    let proposal = SetBackup { user_id, version: Some(version), algorithm, auth_data };
    cx.propose(proposal).await?.into_inner();
    Ok(update_version::Response::new())
}

pub(super) async fn delete(
    cx: Cx<Server>,
    request: delete_version::Request,
) -> Result<delete_version::Response, ApiError> {
    let (user_id, version) = (cx.caller.user_id.clone(), number(&request.version)?);
    cx.propose(DeleteBackup { user_id, version }).await?.into_inner();
    Ok(delete_version::Response::new())
}

pub(super) async fn get(cx: Cx<Server>, request: get_version::Request) -> Result<Json, ApiError> {
    info(&cx, number(&request.version)?)
}

pub(super) async fn latest(
    cx: Cx<Server>,
    _: get_latest_version::Request,
) -> Result<Json, ApiError> {
    let backups = cx.app.engine.state().key_backups.get(&cx.caller.user_id);
    let current = backups.and_then(|backups| backups.read().current());
    info(&cx, current.ok_or_else(no_backup)?)
}

fn info(cx: &Cx<Server>, version: u64) -> Result<Json, ApiError> {
    let (etag, count, set) = facts(cx, version)?;
    let Some(Command::KeyBackupSet(set)) = cx.app.engine.events().command(set)? else {
        return Err(ReadError::Missing(set).into());
    };
    json(&json!({
        "algorithm": set.algorithm,
        "auth_data": set.auth_data,
        "count": count,
        "etag": etag,
        "version": version.to_string(),
    }))
}

/// A backup's etag, its number of keys, and the record with its authentication data.
fn facts(cx: &Cx<Server>, version: u64) -> Result<(String, u64, Offset), ApiError> {
    let backups =
        cx.app.engine.state().key_backups.get(&cx.caller.user_id).ok_or_else(no_backup)?;
    let backups = backups.read();
    let backup = backups.get(version).ok_or_else(no_backup)?;
    Ok((backup.changed.to_string(), backup.count, backup.set))
}

type Sent = BTreeMap<OwnedRoomId, RoomKeyBackup>;

pub(super) async fn put(cx: Cx<Server>, request: put_all::Request) -> Result<Json, ApiError> {
    put_keys(cx, &request.version, request.rooms).await
}

pub(super) async fn put_of_room(
    cx: Cx<Server>,
    request: put_room::Request,
) -> Result<Json, ApiError> {
    let rooms = [(request.room_id, RoomKeyBackup::new(request.sessions))].into();
    put_keys(cx, &request.version, rooms).await
}

pub(super) async fn put_of_session(
    cx: Cx<Server>,
    request: put_session::Request,
) -> Result<Json, ApiError> {
    let sessions = [(request.session_id, request.session_data)].into();
    let rooms = [(request.room_id, RoomKeyBackup::new(sessions))].into();
    put_keys(cx, &request.version, rooms).await
}

async fn put_keys(cx: Cx<Server>, version: &str, sent: Sent) -> Result<Json, ApiError> {
    let version = number(version)?;
    let mut rooms: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for (room_id, room) in sent {
        let room_keys = rooms.entry(room_id).or_default();
        for (session_id, key) in room.sessions {
            if session_id.is_empty() || session_id.len() > limits::IDENTIFIER_BYTES {
                return Err(ApiError::invalid_param("The id of a session has 1 to 255 bytes."));
            }
            room_keys.insert(session_id, backed_up(&key)?);
        }
    }
    let user_id = cx.caller.user_id.clone();
    cx.propose(PutKeys { user_id, version, rooms }).await?.into_inner();
    changed(&cx, version)
}

fn backed_up(key: &Raw<KeyBackupData>) -> Result<BackedUpKey, ApiError> {
    // Other algorithms have a different form of `session_data`; the rest is the same.
    let key: BackedUpKey = read_body(key.json().get().as_bytes())?;
    if key.session_data.get().len() > limits::KEY_BYTES {
        return Err(ApiError::too_large("A key is larger than a key may be."));
    }
    if !key.session_data.get().starts_with('{') {
        return Err(ApiError::bad_json("The data of a session is an object."));
    }
    Ok(key)
}

/// The response to a change of a backup.
fn changed(cx: &Cx<Server>, version: u64) -> Result<Json, ApiError> {
    let (etag, count, _) = facts(cx, version)?;
    json(&json!({ "etag": etag, "count": count }))
}

pub(super) async fn remove(cx: Cx<Server>, request: delete_all::Request) -> Result<Json, ApiError> {
    remove_keys(cx, &request.version, None, None).await
}

pub(super) async fn remove_of_room(
    cx: Cx<Server>,
    request: delete_room::Request,
) -> Result<Json, ApiError> {
    remove_keys(cx, &request.version, Some(request.room_id), None).await
}

pub(super) async fn remove_of_session(
    cx: Cx<Server>,
    request: delete_session::Request,
) -> Result<Json, ApiError> {
    remove_keys(cx, &request.version, Some(request.room_id), Some(request.session_id)).await
}

async fn remove_keys(
    cx: Cx<Server>,
    version: &str,
    room_id: Option<OwnedRoomId>,
    session_id: Option<String>,
) -> Result<Json, ApiError> {
    let (user_id, version) = (cx.caller.user_id.clone(), number(version)?);
    cx.propose(RemoveKeys { user_id, version, room_id, session_id }).await?.into_inner();
    changed(&cx, version)
}

/// The keys of a room in the client format.
#[derive(Default, Serialize)]
struct Sessions {
    sessions: BTreeMap<String, BackedUpKey>,
}

pub(super) async fn keys(cx: Cx<Server>, request: get_all::Request) -> Result<Reply, ApiError> {
    if let Some(large) = Large::of(&cx, &request.version, None)? {
        return Ok(large.reply());
    }
    let answer = || {
        let rooms = read(&cx, &request.version, (None, None))?.into_iter();
        let rooms: BTreeMap<_, _> =
            rooms.map(|(room_id, sessions)| (room_id, Sessions { sessions })).collect();
        json(&json!({ "rooms": rooms }))
    };
    cx.at_length(answer).await.map(|json| Reply::json(json.0))
}

pub(super) async fn keys_of_room(
    cx: Cx<Server>,
    request: get_room::Request,
) -> Result<Reply, ApiError> {
    if let Some(large) = Large::of(&cx, &request.version, Some(&request.room_id))? {
        return Ok(large.reply());
    }
    let answer = || {
        let mut rooms = read(&cx, &request.version, (Some(&request.room_id), None))?;
        json(&Sessions { sessions: rooms.remove(&request.room_id).unwrap_or_default() })
    };
    cx.at_length(answer).await.map(|json| Reply::json(json.0))
}

/// The keys of a backup that is too large for memory: they are read while the client receives them.
struct Large {
    app: Arc<Server>,
    whose: Requester,
    exempt: bool,
    user_id: OwnedUserId,
    version: u64,
    /// The requested room, if only one.
    room_id: Option<OwnedRoomId>,
    /// The last key that was written.
    after: Option<(OwnedRoomId, String)>,
}

impl Large {
    /// `None` if the backup is small enough.
    fn of(
        cx: &Cx<Server>,
        version: &str,
        room_id: Option<&RoomId>,
    ) -> Result<Option<Self>, ApiError> {
        let (version, user_id) = (number(version)?, &cx.caller.user_id);
        let backups = cx.app.engine.state().key_backups.get(user_id).ok_or_else(no_backup)?;
        let bytes = backups.read().get(version).ok_or_else(no_backup)?.bytes;
        let is_large = bytes > limits::ANSWER_BYTES as u64;
        Ok(is_large.then(|| Self {
            app: Arc::clone(&cx.app),
            whose: cx.whose(),
            exempt: cx.app.is_exempt(&cx.caller),
            user_id: user_id.clone(),
            version,
            room_id: room_id.map(ToOwned::to_owned),
            after: None,
        }))
    }

    fn reply(self) -> Reply {
        let begin = if self.room_id.is_some() { "{\"sessions\":{" } else { "{\"rooms\":{" };
        let begin = stream::once(future::ready(Ok(Bytes::from_static(begin.as_bytes()))));
        let pieces = stream::try_unfold(Some(self), |large| async {
            let Some(large) = large else { return Ok(None) };
            // A task of its own, so that the response can be sent from any thread.
            let piece = tokio::spawn(large.next_in_turn());
            let (piece, large) =
                piece.await.map_err(io::Error::other)?.map_err(io::Error::other)?;
            Ok(Some((piece, large)))
        });
        Reply::stream("application/json", begin.chain(pieces))
    }

    /// The next piece, and the rest.
    async fn next_in_turn(mut self) -> Result<(Bytes, Option<Self>), ReadError> {
        loop {
            let app = Arc::clone(&self.app);
            let whose = self.whose.clone();
            match app.long_work.run(&whose, self.exempt, || self.next()).await {
                Ok(Ok((piece, is_last))) => return Ok((piece, (!is_last).then_some(self))),
                Ok(Err(error)) => return Err(error),
                Err(busy) => tokio::time::sleep(busy.retry_after).await,
            }
        }
    }

    fn next(&mut self) -> Result<(Bytes, bool), ReadError> {
        let engine = &self.app.engine;
        let (room_id, after) = (self.room_id.as_deref(), self.after.as_ref());
        let (state, events) = (engine.state(), engine.events());
        let keys = next_room_keys(&state, events, &self.user_id, self.version, room_id, after)?;
        // It was deleted meanwhile: the response breaks off.
        let gone = || ReadError::Storage("the backup was deleted".to_owned());
        let keys = keys.ok_or_else(gone)?;
        let mut text = String::new();
        if keys.is_empty() {
            // A single room is written without its name.
            let is_begun = self.room_id.is_none() && self.after.is_some();
            text.push_str(if is_begun { "}}}}" } else { "}}" });
            return Ok((text.into(), true));
        }
        for (room, session, key) in keys {
            let last = self.after.as_ref().map(|(room, _)| room);
            if self.room_id.is_none() && last != Some(&room) {
                text.push_str(if last.is_some() { "}}," } else { "" });
                push_json(&mut text, room.as_str());
                text.push_str(":{\"sessions\":{");
            } else if last.is_some() {
                text.push(',');
            }
            push_json(&mut text, &session);
            text.push(':');
            push_json(&mut text, &key);
            self.after = Some((room, session));
        }
        Ok((text.into(), false))
    }
}

fn push_json(text: &mut String, value: &(impl Serialize + ?Sized)) {
    // Strings and keys always serialize.
    text.push_str(&serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned()));
}

pub(super) async fn key_of_session(
    cx: Cx<Server>,
    request: get_session::Request,
) -> Result<Json, ApiError> {
    let get_session::Request { version, room_id, session_id, .. } = request;
    let mut rooms = read(&cx, &version, (Some(&room_id), Some(&session_id)))?;
    let key = rooms.remove(&room_id).and_then(|mut sessions| sessions.remove(&session_id));
    json(&key.ok_or_else(|| ApiError::not_found("The backup holds no key of this session."))?)
}

/// The keys of one room or of all rooms, and of one session or of all sessions.
fn read(
    cx: &Cx<Server>,
    version: &str,
    wanted: (Option<&RoomId>, Option<&str>),
) -> Result<RoomKeys, ApiError> {
    let (engine, user_id) = (&cx.app.engine, &cx.caller.user_id);
    let keys = room_keys(&engine.state(), engine.events(), user_id, number(version)?, wanted)?;
    keys.ok_or_else(no_backup)
}
