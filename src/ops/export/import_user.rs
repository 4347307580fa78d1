//! Creating an account from the export of a user: the parts that can live on another server.
//!
//! The account is created locked and without a password, so that nobody can use it before an
//! administrator hands it over. Rooms are not imported: their history belongs to them, and a member
//! can invite the user again.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File},
    os::unix::fs::DirBuilderExt as _,
    path::Path,
};

use ruma::{OwnedRoomId, OwnedUserId, UserId, push::Ruleset};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json, value::RawValue};

use super::{
    ExportScope, ImportError, Manifest, folder,
    import::{at, gone_or, read_manifest},
};
use logcabin_base::limits;
use logcabin_decide::{
    Refusal,
    account::{Register, SetProfile},
    account_data::SetAccountData,
    import::ImportAccount,
    key_backup::{PutKeys, SetBackup},
    media::AddMedia,
};
use logcabin_engine::{Engine, ProposeError};
use logcabin_media::store;
use logcabin_read::{events::to_raw, notifications::ruleset};
use logcabin_record::{
    Origin,
    command::{BackedUpKey, FileHash},
};

/// The account data that records the origin of an account, and whether the import was completed.
const EVENT_TYPE: &str = "io.logcabin.import";

/// Account data that refers to the exported user's identity: without that, a client would consider
/// it broken.
const OF_IDENTITY: &str = "m.cross_signing.";

/// Account data that leads to the keys of the user's backup, and is useless without one.
const OF_BACKUP: [&str; 2] = ["m.secret_storage.", "m.megolm_backup."];

/// What was imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedUser {
    /// The new user.
    pub user_id: OwnedUserId,
    pub exported: OwnedUserId,
    /// The number of profile fields.
    pub profile: u64,
    /// The number of account data items.
    pub account_data: u64,
    /// The number of uploaded files.
    pub files: u64,
    /// The number of room keys in the backup.
    #[serde(default)]
    pub room_keys: u64,
    /// What was left out, as text.
    pub left_out: Vec<String>,
}

/// What can be imported.
#[derive(Debug)]
pub(crate) struct ImportableData {
    manifest: Manifest,
    user_id: OwnedUserId,
    profile: Vec<Field>,
    account_data: Vec<Data>,
    rules: Vec<Rule>,
    files: Vec<Upload>,
    key_backups: Vec<KeyBackup>,
    room_keys: Vec<RoomKey>,
}

#[derive(Debug, Deserialize)]
struct KeyBackup {
    version: u64,
    current: bool,
    algorithm: String,
    auth_data: Box<RawValue>,
}

#[derive(Debug, Deserialize)]
struct RoomKey {
    version: u64,
    room_id: OwnedRoomId,
    session_id: String,
    first_message_index: u64,
    forwarded_count: u64,
    is_verified: bool,
    session_data: Box<RawValue>,
}

#[derive(Debug, Deserialize)]
struct Field {
    field: String,
    value: Value,
}

#[derive(Debug, Deserialize)]
struct Data {
    room_id: Option<String>,
    #[serde(rename = "type")]
    event_type: String,
    content: Box<RawValue>,
}

#[derive(Debug, Deserialize)]
struct Rule {
    kind: String,
    rule: Value,
}

#[derive(Debug, Deserialize)]
struct Upload {
    mxc: String,
    path: String,
    bytes: u64,
    own: bool,
    content_type: Option<String>,
    name: Option<String>,
}

impl Upload {
    fn hash(&self) -> Option<FileHash> {
        FileHash::from_hex(Path::new(&self.path).file_name()?.to_str()?)
    }
}

/// Copies the user's uploads into the store of the server of `data_dir`, which may be running. Must
/// be called before the records are written, because a record must not refer to a missing file.
/// Blocks.
pub fn place_files(src: &Path, data_dir: &Path) -> Result<(), ImportError> {
    let belongings = ImportableData::read(src)?;
    let root = store::directory(data_dir);
    for upload in belongings.uploads() {
        let Some(hash) = upload.hash() else { continue };
        let (from, to) = (src.join(&upload.path), store::place(&root, &hash));
        if store::verify(data_dir, &hash, upload.bytes).is_ok() {
            continue;
        }
        let parent = to.parent().unwrap_or(&root);
        let made = DirBuilder::new().mode(0o700).recursive(true).create(parent);
        made.map_err(at(parent))?;
        let partial = to.with_extension("importing");
        let mut file = File::open(&from).map_err(|error| gone_or(&from, error))?;
        let (_, found) = folder::copy(&mut file, &partial).map_err(at(&partial))?;
        if FileHash::from(found) != hash {
            fs::remove_file(&partial).map_err(at(&partial))?;
            let reason = "its content does not match its name".to_owned();
            return Err(ImportError::File { path: from, reason });
        }
        fs::rename(&partial, &to).map_err(at(&to))?;
        for directory in parent.ancestors().take(3) {
            File::open(directory).and_then(|file| file.sync_all()).map_err(at(directory))?;
        }
    }
    Ok(())
}

impl ImportableData {
    /// Reads the export in `src`, whose completeness is checked elsewhere. Blocks.
    pub(crate) fn read(src: &Path) -> Result<Self, ImportError> {
        let manifest = read_manifest(src)?;
        let user_id = manifest.user_id.clone().filter(|_| manifest.holds == ExportScope::User);
        let user_id = user_id.ok_or_else(|| ImportError::File {
            path: src.to_owned(),
            reason: "this is the export of a server; `logcabin import` takes it".to_owned(),
        })?;
        Ok(Self {
            user_id,
            profile: lines(src, "profile")?,
            account_data: lines(src, "account_data")?,
            rules: lines(src, "push_rules")?,
            files: lines(src, "media")?,
            key_backups: lines_if_there(src, &manifest, "key_backups")?,
            room_keys: lines_if_there(src, &manifest, "key_backup_keys")?,
            manifest,
        })
    }

    /// The localpart of the exported user.
    pub(crate) fn localpart(&self) -> &str {
        self.user_id.localpart()
    }

    /// The uploads that the export contains.
    fn uploads(&self) -> impl Iterator<Item = &Upload> {
        let is_there = |upload: &&Upload| {
            upload.own && self.manifest.files.iter().any(|entry| entry.path == upload.path)
        };
        self.files.iter().filter(is_there)
    }

    /// The current backup of room keys.
    fn key_backup(&self) -> Option<&KeyBackup> {
        self.key_backups.iter().find(|backup| backup.current)
    }

    /// The origin that the account's data records.
    fn origin(&self, finished: bool) -> Box<RawValue> {
        to_raw(&json!({
            "user_id": self.user_id,
            "exported_ms": self.manifest.exported_ms,
            "finished": finished,
        }))
    }

    fn rules(&self, user_id: &UserId) -> Option<Box<RawValue>> {
        let mut kinds = Map::new();
        for Rule { kind, rule } in &self.rules {
            let of_kind = kinds.entry(kind.clone()).or_insert_with(|| json!([]));
            of_kind.as_array_mut()?.push(rule.clone());
        }
        let rules: Ruleset = serde_json::from_value(Value::Object(kinds)).ok()?;
        Some(ruleset::kept(user_id, rules))
    }
}

/// A file that earlier versions did not write.
fn lines_if_there<T: DeserializeOwned>(
    src: &Path,
    manifest: &Manifest,
    name: &str,
) -> Result<Vec<T>, ImportError> {
    let file = format!("{name}.ndjson");
    let is_there = manifest.files.iter().any(|entry| entry.path == file);
    if is_there { lines(src, name) } else { Ok(Vec::new()) }
}

fn lines<T: DeserializeOwned>(src: &Path, name: &str) -> Result<Vec<T>, ImportError> {
    let path = src.join(format!("{name}.ndjson"));
    let text = fs::read_to_string(&path).map_err(|error| gone_or(&path, error))?;
    let read = |(line, number): (&str, u64)| {
        serde_json::from_str(line).map_err(|error| ImportError::Line {
            path: path.clone(),
            line: number,
            reason: error.to_string(),
        })
    };
    text.lines().zip(1..).map(read).collect()
}

/// Creates `user_id` from the export: locked, and without a password. An interrupted import of the
/// same export is completed.
///
/// # Errors
/// When the name is taken, or the log takes no writes.
pub(crate) async fn import_user(
    engine: &Engine,
    origin: &Origin,
    user_id: OwnedUserId,
    belongings: &ImportableData,
) -> Result<ImportedUser, ProposeError> {
    let mut done = ImportedUser {
        user_id: user_id.clone(),
        exported: belongings.user_id.clone(),
        profile: 0,
        account_data: 0,
        files: 0,
        room_keys: 0,
        left_out: Vec::new(),
    };
    let register = Register::user(user_id.clone());
    let account = ImportAccount {
        register,
        reason: format!("imported from the export of {}", belongings.user_id),
        event_type: EVENT_TYPE.to_owned(),
        content: belongings.origin(false),
    };
    match engine.propose(origin.clone(), account).await {
        Ok(made) => made.into_inner(),
        Err(ProposeError::Refused(Refusal::UserInUse))
            if is_begun(engine, &user_id, belongings) => {}
        Err(error) => return Err(error),
    }
    let mut addresses = Vec::new();
    for upload in belongings.uploads() {
        match add(engine, origin, &user_id, upload).await? {
            Some(address) => addresses.push((upload.mxc.clone(), address)),
            None => done.left_out.push(format!("{}: its id is invalid", upload.mxc)),
        }
    }
    done.files = addresses.len() as u64;
    let mut bytes = 0;
    for Field { field, value } in &belongings.profile {
        bytes += field.len() + value.to_string().len();
        if bytes > limits::PROFILE_BYTES {
            done.left_out.push(format!("the field `{field}` of the profile: it is too large"));
            continue;
        }
        // The avatar has a new address here.
        let value = match value.as_str() {
            Some(text) => {
                let known = addresses.iter().find(|(there, _)| there == text);
                known.map_or(text, |(_, here)| here).into()
            }
            None => value.clone(),
        };
        let (user_id, field) = (user_id.clone(), field.clone());
        let set = SetProfile { user_id, field, value: Some(value) };
        engine.propose(origin.clone(), set).await?.into_inner();
        done.profile += 1;
    }
    add_key_backup(engine, origin, belongings, &mut done).await?;
    let mut data: Vec<_> = Vec::new();
    for Data { room_id, event_type, content } in &belongings.account_data {
        let is_of_backup = OF_BACKUP.iter().any(|start| event_type.starts_with(start));
        let why = match room_id {
            Some(room_id) => format!("it belongs to the room {room_id}"),
            None if event_type.starts_with(OF_IDENTITY) => {
                "it belongs to keys that are not exported".to_owned()
            }
            None if is_of_backup && belongings.key_backup().is_none() => {
                "it belongs to a key backup that is missing".to_owned()
            }
            None if event_type == EVENT_TYPE => continue,
            None if content.get().len() > limits::ACCOUNT_DATA_BYTES => {
                "it is too large".to_owned()
            }
            None => {
                data.push((event_type.clone(), content.clone()));
                continue;
            }
        };
        done.left_out.push(format!("the account data `{event_type}`: {why}"));
    }
    match belongings.rules(&user_id) {
        Some(rules) => data.push((ruleset::EVENT_TYPE.to_owned(), rules)),
        None => done.left_out.push("the push rules: they cannot be read".to_owned()),
    }
    done.account_data = data.len() as u64;
    // Last, that the import is complete.
    data.push((EVENT_TYPE.to_owned(), belongings.origin(true)));
    for (event_type, content) in data {
        let user_id = user_id.clone();
        let set = SetAccountData { user_id, room_id: None, event_type, content };
        engine.propose(origin.clone(), set).await?.into_inner();
    }
    Ok(done)
}

/// Adds the current backup of room keys: only the user can decrypt it, and its encryption is
/// unchanged.
async fn add_key_backup(
    engine: &Engine,
    origin: &Origin,
    belongings: &ImportableData,
    done: &mut ImportedUser,
) -> Result<(), ProposeError> {
    let Some(backup) = belongings.key_backup() else { return Ok(()) };
    let user_id = &done.user_id;
    if backup.algorithm.len() > limits::IDENTIFIER_BYTES
        || backup.auth_data.get().len() > limits::KEY_BYTES
    {
        done.left_out.push("the backup of room keys: its auth data is too large".to_owned());
        return Ok(());
    }
    // An existing backup is from an interrupted import: nobody else has had the account.
    let begun =
        engine.state().key_backups.get(user_id).and_then(|backups| backups.read().current());
    let set = SetBackup {
        user_id: user_id.to_owned(),
        version: begun,
        algorithm: backup.algorithm.clone(),
        auth_data: backup.auth_data.clone(),
    };
    let version = engine.propose(origin.clone(), set).await?.into_inner();
    let of_backup = belongings.room_keys.iter().filter(|key| key.version == backup.version);
    let fits = |key: &&RoomKey| {
        key.session_id.len() <= limits::IDENTIFIER_BYTES
            && key.session_data.get().len() <= limits::KEY_BYTES
    };
    let (keys, too_large): (Vec<_>, Vec<_>) = of_backup.partition(fits);
    for some in keys.chunks(limits::IMPORTED_ROOM_KEYS) {
        let mut rooms: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for key in some {
            let backed_up = BackedUpKey {
                first_message_index: key.first_message_index,
                forwarded_count: key.forwarded_count,
                is_verified: key.is_verified,
                session_data: key.session_data.clone(),
            };
            let room = rooms.entry(key.room_id.clone()).or_default();
            room.insert(key.session_id.clone(), backed_up);
        }
        let put = PutKeys { user_id: user_id.to_owned(), version, rooms };
        engine.propose(origin.clone(), put).await?.into_inner();
    }
    done.room_keys = keys.len() as u64;
    let too_large = too_large.into_iter();
    let left_out =
        too_large.map(|key| format!("a key of the room {}: it is too large", key.room_id));
    done.left_out.extend(left_out);
    Ok(())
}

/// Whether an import of the same export into this account was interrupted.
fn is_begun(engine: &Engine, user_id: &UserId, belongings: &ImportableData) -> bool {
    let at = engine.head().offset();
    let said = engine.events().account_data(&engine.state(), user_id, None, EVENT_TYPE, at);
    let said = said.ok().flatten();
    let is_locked = engine.state().accounts.standing(user_id).is_some_and(|of| of.locked);
    is_locked && said.is_some_and(|said| said.get() == belongings.origin(false).get())
}

/// Gives an uploaded file an address on this server: the exported one, if it is free.
async fn add(
    engine: &Engine,
    origin: &Origin,
    user_id: &UserId,
    upload: &Upload,
) -> Result<Option<String>, ProposeError> {
    let old = upload.mxc.rsplit_once('/').map_or("", |(_, old)| old);
    let Some(hash) = upload.hash().filter(|_| !old.is_empty()) else { return Ok(None) };
    // The same address if the import is repeated.
    let other = blake3::hash(format!("{user_id} {}", upload.mxc).as_bytes()).to_hex();
    for media_id in [old, &other[..24]] {
        let proposal = AddMedia {
            media_id: media_id.to_owned(),
            given_out: false,
            user_id: Some(user_id.to_owned()),
            hash,
            size: upload.bytes,
            content_type: upload.content_type.clone(),
            name: upload.name.clone(),
            now_ms: engine.clock().now_ms(),
            // The administrator is the uploader.
            quota: u64::MAX,
        };
        match engine.propose(origin.clone(), proposal).await {
            Ok(added) => added.into_inner(),
            Err(ProposeError::Refused(Refusal::CannotOverwriteMedia)) => {}
            Err(ProposeError::Refused(Refusal::Forbidden(_) | Refusal::AgainstPolicy(_))) => {
                continue;
            }
            Err(error) => return Err(error),
        }
        return Ok(Some(format!("mxc://{}/{media_id}", engine.env().server.name)));
    }
    Ok(None)
}
