//! An account from the export of a user: what can live on another server.
//!
//! The account is made locked and without a password, so that nobody has it before somebody says
//! whose it is. Rooms stay files: their history belongs to them, and whoever is in one of them can
//! invite.

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
    Holds, ImportError, Manifest, folder,
    import::{at, gone_or, read_manifest},
};
use crate::{
    base::limits,
    decide::{
        Refusal,
        account::{Met, Register, SetAccountData, SetProfile},
        import::ImportAccount,
        key_backup::{PutKeys, SetBackup},
        media::AddMedia,
    },
    engine::{Engine, Rejected},
    media::store,
    read::{events::to_raw, push::ruleset},
    record::{
        Origin,
        command::{AccountKind, BackedUpKey, FileHash},
    },
};

/// The account data that says where an account came from, and whether all of it did.
const EVENT_TYPE: &str = "io.logcabin.import";

/// Account data whose other half is the identity of the user that was exported: without it, a
/// client would take it for broken.
const OF_IDENTITY: &str = "m.cross_signing.";

/// Account data that leads from what the user has noted to the keys of their backup, and to nothing
/// without one.
const OF_BACKUP: [&str; 2] = ["m.secret_storage.", "m.megolm_backup."];

/// What was taken over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedUser {
    /// The user that was made.
    pub user_id: OwnedUserId,
    /// The user that was exported.
    pub exported: OwnedUserId,
    /// How many fields of the profile.
    pub profile: u64,
    /// How many pieces of account data.
    pub account_data: u64,
    /// How many uploaded files.
    pub files: u64,
    /// How many keys of encrypted rooms, in the backup of them.
    #[serde(default)]
    pub room_keys: u64,
    /// What of these was left out, in words.
    pub left_out: Vec<String>,
}

/// What can be taken over.
#[derive(Debug)]
pub(crate) struct Belongings {
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

/// Puts the files that the user uploaded where the server of `data_dir` finds them, running or not.
/// To be done before the rest is taken over: a record never names a file that is not there. Blocks.
///
/// # Errors
/// When the export is not whole, or a disk fails.
pub fn place_files(src: &Path, data_dir: &Path) -> Result<(), ImportError> {
    let belongings = Belongings::read(src)?;
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
            let reason = "it is not the file that its name says".to_owned();
            return Err(ImportError::File { path: from, reason });
        }
        fs::rename(&partial, &to).map_err(at(&to))?;
        for directory in parent.ancestors().take(3) {
            File::open(directory).and_then(|file| file.sync_all()).map_err(at(directory))?;
        }
    }
    Ok(())
}

impl Belongings {
    /// Reads the export in `src`. That it is whole is checked elsewhere. Blocks.
    pub(crate) fn read(src: &Path) -> Result<Self, ImportError> {
        let manifest = read_manifest(src)?;
        let user_id = manifest.user_id.clone().filter(|_| manifest.holds == Holds::User);
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

    /// What the user was called before the colon.
    pub(crate) fn localpart(&self) -> &str {
        self.user_id.localpart()
    }

    /// The files that the user uploaded and that are there.
    fn uploads(&self) -> impl Iterator<Item = &Upload> {
        let is_there = |upload: &&Upload| {
            upload.own && self.manifest.files.iter().any(|entry| entry.path == upload.path)
        };
        self.files.iter().filter(is_there)
    }

    /// The backup of room keys that was in use.
    fn key_backup(&self) -> Option<&KeyBackup> {
        self.key_backups.iter().find(|backup| backup.current)
    }

    /// What the account's data says of where it came from.
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

/// Of a file that earlier versions did not write.
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

/// Makes `user_id` of what was exported: locked, and without a password. One that an interrupted
/// import of the same export has left is completed.
///
/// # Errors
/// When the name is taken, or the log takes no writes.
pub(crate) async fn import_user(
    engine: &Engine,
    origin: &Origin,
    user_id: OwnedUserId,
    belongings: &Belongings,
) -> Result<ImportedUser, Rejected> {
    let mut done = ImportedUser {
        user_id: user_id.clone(),
        exported: belongings.user_id.clone(),
        profile: 0,
        account_data: 0,
        files: 0,
        room_keys: 0,
        left_out: Vec::new(),
    };
    let register = Register {
        user_id: user_id.clone(),
        kind: AccountKind::User,
        password: None,
        display_name: None,
        login: None,
        met: Met::default(),
    };
    let account = ImportAccount {
        register,
        reason: format!("imported from the export of {}", belongings.user_id),
        event_type: EVENT_TYPE.to_owned(),
        content: belongings.origin(false),
    };
    match engine.propose(origin.clone(), account).await {
        Ok(made) => made.into_inner(),
        Err(Rejected::Refused(Refusal::UserInUse)) if is_begun(engine, &user_id, belongings) => {}
        Err(error) => return Err(error),
    }
    let mut addresses = Vec::new();
    for upload in belongings.uploads() {
        match add(engine, origin, &user_id, upload).await? {
            Some(address) => addresses.push((upload.mxc.clone(), address)),
            None => done.left_out.push(format!("{}: its id is not one", upload.mxc)),
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
        // A picture has another address here.
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
            Some(room_id) => format!("it is of the room {room_id}"),
            None if event_type.starts_with(OF_IDENTITY) => {
                "it is of keys that are not exported".to_owned()
            }
            None if is_of_backup && belongings.key_backup().is_none() => {
                "it is of a backup of keys that is not there".to_owned()
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
    // Last, that this was all.
    data.push((EVENT_TYPE.to_owned(), belongings.origin(true)));
    for (event_type, content) in data {
        let user_id = user_id.clone();
        let set = SetAccountData { user_id, room_id: None, event_type, content };
        engine.propose(origin.clone(), set).await?.into_inner();
    }
    Ok(done)
}

/// Gives the account the backup of room keys that was in use: what it is encrypted with is the
/// user's alone, and has not changed.
async fn add_key_backup(
    engine: &Engine,
    origin: &Origin,
    belongings: &Belongings,
    done: &mut ImportedUser,
) -> Result<(), Rejected> {
    let Some(backup) = belongings.key_backup() else { return Ok(()) };
    let user_id = &done.user_id;
    if backup.algorithm.len() > limits::IDENTIFIER_BYTES
        || backup.auth_data.get().len() > limits::KEY_BYTES
    {
        done.left_out.push("the backup of room keys: what vouches for it is too large".to_owned());
        return Ok(());
    }
    // One there is already is that of an import that was interrupted: nobody else has had the
    // account.
    let begun = engine.state().backups.get(user_id).and_then(|backups| backups.read().current());
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

/// Whether an import of the same export was begun with this account and not finished.
fn is_begun(engine: &Engine, user_id: &UserId, belongings: &Belongings) -> bool {
    let at = engine.head().offset();
    let said = engine.events().account_data(&engine.state(), user_id, None, EVENT_TYPE, at);
    let said = said.ok().flatten();
    let is_locked = engine.state().accounts.standing(user_id).is_some_and(|of| of.locked);
    is_locked && said.is_some_and(|said| said.get() == belongings.origin(false).get())
}

/// Gives an uploaded file an address on this server: that which it had, as far as that is free.
async fn add(
    engine: &Engine,
    origin: &Origin,
    user_id: &UserId,
    upload: &Upload,
) -> Result<Option<String>, Rejected> {
    let old = upload.mxc.rsplit_once('/').map_or("", |(_, old)| old);
    let Some(hash) = upload.hash().filter(|_| !old.is_empty()) else { return Ok(None) };
    // The same again, if it is done again.
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
            // Who administers the server takes it.
            quota: u64::MAX,
        };
        match engine.propose(origin.clone(), proposal).await {
            Ok(added) => added.into_inner(),
            Err(Rejected::Refused(Refusal::CannotOverwriteMedia)) => {}
            Err(Rejected::Refused(Refusal::Forbidden(_))) => continue,
            Err(error) => return Err(error),
        }
        return Ok(Some(format!("mxc://{}/{media_id}", engine.env().server.name)));
    }
    Ok(None)
}
