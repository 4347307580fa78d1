//! The server that this one has taken over from: same name, same key, same users. There must never
//! be two servers with one key, so three things stand in the way: a note in the data directory, a
//! guard file beside the configuration of the other server, and a look at its addresses at each
//! start.
//!
//! A data directory for rehearsals has a mark, and is good for nothing else.

mod processes;
mod service;

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;
use tokio::time::timeout;

use logcabin_base::{bodies::BodyBudget, disk, limits};
use logcabin_config::Config;
use logcabin_log::store::has_log;
use logcabin_outside::{
    exits,
    outbound::{Outbound, Unanswered},
};

pub use self::service::LoginService;

/// The note in the data directory.
const NOTE: &str = "import.json";

/// The mark of a data directory for rehearsals.
const MARK: &str = "rehearsal.json";

/// Notes that something has left the server since it took over.
const DEPARTURE: &str = "import-left.json";

/// What the name of a configuration is followed by in that of the guard file beside it.
const GUARD: &str = ".moved-to-logcabin";

/// What tells Synapse from other servers in `/_matrix/client/versions`.
const SYNAPSE_FEATURE: &str = "io.element.e2ee_forced.public";

/// Why a data directory cannot be used in this way.
#[derive(Debug, Error)]
pub enum FormerError {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} is not what this program wrote: {source}", path.display())]
    Note { path: PathBuf, source: serde_json::Error },
    #[error(
        "the import into {} is not finished: stop the other server and run `logcabin import-synapse \
         finish`",
        .0.display()
    )]
    Unfinished(PathBuf),
    #[error(
        "the import into {} was undone: the other server is in use again; remove this directory, \
         and copy again",
        .0.display()
    )]
    Undone(PathBuf),
    #[error("{} is for {server_name}, or for other keys of it", data_dir.display())]
    Other { data_dir: PathBuf, server_name: String },
    #[error(
        "{} is for rehearsals: what was written there is known to nobody else. Start it with \
         `--rehearsal`",
        .0.display()
    )]
    Rehearsed(PathBuf),
    #[error(
        "{} is not for rehearsals, after which it could not be used: rehearse in a copy, with an \
         empty file `rehearsal.json` in it, or in what `logcabin import-synapse finish \
         --rehearsal` made",
        .0.display()
    )]
    NotForRehearsals(PathBuf),
    #[error(
        "{} is there, but the guard file {} is not: if the other server is back in use, this one \
         must not start; if not, run `logcabin import-synapse finish` again, or remove that \
         configuration",
        config.display(), guard.display()
    )]
    NoGuard { config: PathBuf, guard: PathBuf },
    #[error(
        "{} says that {} has taken over: two servers with one key must never run. If that directory \
         is gone for good, remove this file",
        guard.display(), other.display()
    )]
    TakenOver { guard: PathBuf, other: PathBuf },
    #[error(
        "{} of {server_name} answers at {address}{}: two servers with one key must never run; stop \
         it, and see to it that nothing starts it again",
        program, if *with_key { " with this server's key" } else { "" }
    )]
    Answers { program: &'static str, server_name: String, address: String, with_key: bool },
    #[error(
        "Synapse runs with {}, as process {}: two servers with one key must never run; stop it, with \
         all of its workers, and see to it that nothing starts it again",
        config.display(), Listed(processes)
    )]
    Runs { config: PathBuf, processes: Vec<u32> },
    #[error(
        "matrix-authentication-service answers at {0}: who logs in there from now on would be logged \
         out; stop it, and see to it that nothing starts it again"
    )]
    LogsIn(String),
    #[error(
        "Synapse was in use after `logcabin import-synapse finish`: its {} moved, and what it wrote \
         is not here. To keep that, undo (`finish --undo`) and copy again; to do without it, remove \
         `positions` from {}",
        streams.join(", "), note.display()
    )]
    UsedSince { streams: Vec<String>, note: PathBuf },
    #[error("whether the other server answers cannot be found out: {0}")]
    NoClient(String),
    #[error(
        "whether Synapse answers at {address}, where it listened, cannot be told: {why}. If it is \
         another program, remove the address from `here` in {}",
        note.display()
    )]
    Unknown { address: String, why: String, note: PathBuf },
}

/// Numbers as they are listed in a sentence.
struct Listed<'a>(&'a [u32]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, number) in self.0.iter().enumerate() {
            write!(f, "{}{number}", if at > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// How far the move has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The other server is in use.
    Copied,
    /// This server is in use; the import ended with this record.
    Finished(u64),
    /// The other server is in use again.
    Undone,
}

/// The other server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Former {
    /// What tells one import from another: its guard file has the same.
    #[serde(default)]
    pub id: String,
    /// Its configuration.
    pub config: PathBuf,
    pub server_name: String,
    /// Its keys, in unpadded base64 by their ids.
    pub keys: BTreeMap<String, String>,
    /// Where it listened on this machine: addresses without a path.
    pub here: Vec<String>,
    /// Where others reached it. By now that may be this server.
    pub public: Vec<String>,
    pub stage: Stage,
    /// The newest event that it had when `finish` began. If the log is complete, and there are
    /// newer ones, it was in use since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<i64>,
    /// Where all of its streams were then. They move whenever it is in use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub positions: BTreeMap<String, i64>,
}

/// The guard file.
#[derive(Debug, Serialize, Deserialize)]
struct Guard {
    note: String,
    #[serde(default)]
    id: String,
    server_name: String,
    data_dir: PathBuf,
}

impl Former {
    /// What is noted in a data directory; none if its server did not take over from another one.
    ///
    /// # Errors
    /// When there is a note that cannot be read.
    pub fn read(data_dir: &Path) -> Result<Option<Self>, FormerError> {
        read(&data_dir.join(NOTE))
    }

    /// Goes on with the import that is noted in the data directory, if there is one.
    ///
    /// # Errors
    /// When that one is of another server, or was undone, or another data directory has taken over.
    pub fn go_on(mut self, data_dir: &Path) -> Result<Self, FormerError> {
        if let Some(noted) = Self::read(data_dir)? {
            if noted.server_name != self.server_name || noted.keys != self.keys {
                let (data_dir, server_name) = (data_dir.to_owned(), noted.server_name);
                return Err(FormerError::Other { data_dir, server_name });
            }
            if noted.stage == Stage::Undone {
                return Err(FormerError::Undone(data_dir.to_owned()));
            }
            (self.id, self.stage, self.newest) = (noted.id, noted.stage, noted.newest);
            self.positions = noted.positions;
        }
        self.must_be_free_for(data_dir)?;
        Ok(self)
    }

    /// Notes it in the data directory.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn write(&self, data_dir: &Path) -> Result<(), FormerError> {
        let path = data_dir.join(NOTE);
        write(&path, self)
    }

    /// Which of its streams are elsewhere now than when it stopped. None of those that were not
    /// noted, as by earlier versions of this program.
    pub fn moved(&self, now: &BTreeMap<String, i64>) -> Vec<String> {
        let noted = self.positions.iter();
        let moved = noted.filter(|(stream, at)| now.get(*stream).is_some_and(|now| now != *at));
        moved.map(|(stream, _)| stream.clone()).collect()
    }

    /// The guard file beside its configuration.
    pub fn guard(&self) -> PathBuf {
        let mut name = self.config.clone().into_os_string();
        name.push(GUARD);
        name.into()
    }

    /// Refuses a second data directory for one key.
    ///
    /// # Errors
    /// When the guard file names another data directory, and this is not that one, moved.
    pub fn must_be_free_for(&self, data_dir: &Path) -> Result<(), FormerError> {
        self.is_guarded(data_dir).map(|_| ())
    }

    /// Whether the guard file names this data directory; not if there is none, or if it names where
    /// this one was before it was moved.
    fn is_guarded(&self, data_dir: &Path) -> Result<bool, FormerError> {
        let path = self.guard();
        let Some(Guard { id, data_dir: other, .. }) = read(&path)? else { return Ok(false) };
        if is_same(&other, data_dir) {
            return Ok(true);
        }
        let has_gone = other.join(NOTE).try_exists().is_ok_and(|is_there| !is_there);
        if has_gone && !id.is_empty() && id == self.id {
            return Ok(false);
        }
        Err(FormerError::TakenOver { guard: path, other })
    }

    /// Puts the guard file beside its configuration.
    ///
    /// # Errors
    /// When that is impossible, or there is one of another data directory.
    pub fn put_guard(&self, data_dir: &Path) -> Result<(), FormerError> {
        self.must_be_free_for(data_dir)?;
        let data_dir = absolute(data_dir);
        let note = "Logcabin has taken over this server with its key. Do not start Synapse with \
                    this configuration: two servers with one key destroy rooms and encryption. \
                    The way back is `logcabin import-synapse finish --undo`.";
        let (note, server_name) = (note.to_owned(), self.server_name.clone());
        let (path, id) = (self.guard(), self.id.clone());
        write(&path, &Guard { note, id, server_name, data_dir })?;
        // It holds no secret, and this may be root: the server must be able to read it.
        let readable = fs::set_permissions(&path, fs::Permissions::from_mode(0o644));
        readable.map_err(|source| FormerError::File { path, source })
    }

    /// Removes the guard file of this data directory.
    ///
    /// # Errors
    /// When that is impossible, or it is of another data directory.
    pub fn remove_guard(&self, data_dir: &Path) -> Result<(), FormerError> {
        self.must_be_free_for(data_dir)?;
        let path = self.guard();
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|source| FormerError::File { path, source }),
        }
    }

    /// Refuses to serve a data directory that has not taken over.
    ///
    /// # Errors
    /// When the import is not finished, was undone, or somebody removed the guard file.
    pub fn must_be_over(&self, data_dir: &Path) -> Result<(), FormerError> {
        match self.stage {
            Stage::Copied => return Err(FormerError::Unfinished(data_dir.to_owned())),
            Stage::Undone => return Err(FormerError::Undone(data_dir.to_owned())),
            Stage::Finished(_) => {}
        }
        // What this user may not see, or is on another machine, says nothing.
        if !self.config.exists() {
            return Ok(());
        }
        let is_guarded = match self.is_guarded(data_dir) {
            Err(FormerError::File { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                true
            }
            is_guarded => is_guarded?,
        };
        let guard = self.guard();
        if !guard.exists() {
            return Err(FormerError::NoGuard { config: self.config.clone(), guard });
        }
        if !is_guarded && let Err(error) = self.put_guard(data_dir) {
            // From now on, it should refuse a copy at the former place.
            tracing::warn!(%error, "the data directory was moved, and the guard file cannot say so");
        }
        Ok(())
    }

    /// The former server of a log without a note of it, such as that of a restored backup, or of a
    /// further node of a cluster: what the log itself knows.
    #[must_use]
    pub fn of_log(server_name: &str, keys: BTreeMap<String, String>, end: u64) -> Self {
        Self {
            id: String::new(),
            config: PathBuf::new(),
            server_name: server_name.to_owned(),
            keys,
            here: Vec::new(),
            public: ["", ":8448"].map(|port| format!("https://{server_name}{port}")).to_vec(),
            stage: Stage::Finished(end),
            newest: None,
            positions: BTreeMap::new(),
        }
    }

    /// Refuses to go on while it runs on this machine, in a container or not.
    fn must_not_run(&self) -> Result<(), FormerError> {
        let processes = processes::using(&self.config);
        if processes.is_empty() {
            return Ok(());
        }
        Err(FormerError::Runs { config: self.config.clone(), processes })
    }

    /// Refuses to go on while it runs here, or answers at any of its addresses.
    ///
    /// # Errors
    /// When it is recognised, or something answers where it listened and does not say what it is.
    pub async fn must_be_silent(
        &self,
        data_dir: &Path,
        outbound: &Outbound,
    ) -> Result<(), FormerError> {
        self.must_not_run()?;
        let here = self.here.iter().map(|address| (address, true));
        let all = here.chain(self.public.iter().map(|address| (address, false)));
        let looks = all.map(|(address, is_here)| async move {
            let answers = Box::pin(Answers::of(outbound, address, is_here)).await;
            if let (true, Some(why)) = (is_here, &answers.unclear) {
                let (address, why) = (address.clone(), why.clone());
                return Some(FormerError::Unknown { address, why, note: data_dir.join(NOTE) });
            }
            let with_key = self.recognise(&answers)?;
            Some(FormerError::Answers {
                program: "Synapse",
                server_name: self.server_name.clone(),
                address: address.clone(),
                with_key,
            })
        });
        let found = futures_util::future::join_all(looks).await;
        found.into_iter().flatten().next().map_or(Ok(()), Err)
    }

    /// The same for a program without a client, with the authorities that these settings trust.
    ///
    /// # Errors
    /// When it is recognised, or nobody can be asked.
    pub async fn must_be_silent_for(
        &self,
        data_dir: &Path,
        config: &Config,
    ) -> Result<(), FormerError> {
        let bodies = BodyBudget::new(config.body_shares());
        let outbound = Outbound::new(&config.outbound, &bodies);
        let outbound = outbound.map_err(|error| FormerError::NoClient(error.to_string()))?;
        self.must_be_silent(data_dir, &outbound).await
    }

    /// Whether these are answers of the former server: `Some(true)` if it shows its key.
    fn recognise(&self, answers: &Answers) -> Option<bool> {
        // This server says `Logcabin`, at whatever address and behind whatever proxy.
        let is_synapse = match answers.program.as_deref() {
            Some(program) => program == "Synapse",
            None => answers.has_feature,
        };
        if !is_synapse {
            return None;
        }
        match &answers.keys {
            Some((name, keys)) => {
                let is_known = |(id, key): (&String, &String)| self.keys.get(id) == Some(key);
                (*name == self.server_name && keys.iter().any(is_known)).then_some(true)
            }
            // One that shows no keys there: the configuration says whose listener that is.
            None => answers.is_here.then_some(false),
        }
    }
}

/// What is answered at an address.
#[derive(Debug, Default)]
struct Answers {
    is_here: bool,
    /// The program, as it calls itself to homeservers.
    program: Option<String>,
    /// Whether clients are told of a feature that only Synapse has.
    has_feature: bool,
    /// The server's name, and its keys by their ids.
    keys: Option<(String, BTreeMap<String, String>)>,
    /// Why it is unclear what answers there, if something does: nothing was understood of it.
    unclear: Option<String>,
}

impl Answers {
    async fn of(outbound: &Outbound, address: &str, is_here: bool) -> Self {
        // Each on its own: a busy server may answer one of them in time.
        let ask = async |path: &str| {
            let url = format!("{address}{path}");
            let answer = timeout(limits::FORMER_TIME, Box::pin(outbound.look(&url))).await;
            answer.unwrap_or_else(|_| Err(Unanswered::Unclear("no answer in time".to_owned())))
        };
        let (version, keys, features) = tokio::join!(
            Box::pin(ask("/_matrix/federation/v1/version")),
            Box::pin(ask("/_matrix/key/v2/server")),
            Box::pin(async {
                // Proxies may answer this one from memory, for hours.
                let path = "/_matrix/client/versions";
                if is_here { ask(path).await } else { Err(Unanswered::Silent) }
            }),
        );
        let unclear = match (&version, &keys, &features) {
            (
                Err(Unanswered::Unclear(why)),
                Err(Unanswered::Unclear(_)),
                Err(Unanswered::Unclear(_)),
            ) => Some(why.clone()),
            _ => None,
        };
        let (version, keys, features) = (version.ok(), keys.ok(), features.ok());
        let program = version.as_ref().and_then(|of| of["server"]["name"].as_str());
        Self {
            is_here,
            program: program.map(str::to_owned),
            // It is there whether or not it is on.
            has_feature: features
                .is_some_and(|of| of["unstable_features"].get(SYNAPSE_FEATURE).is_some()),
            keys: keys.as_ref().and_then(keys_of),
            unclear,
        }
    }
}

/// The name and the keys in a document of keys.
fn keys_of(document: &Value) -> Option<(String, BTreeMap<String, String>)> {
    let name = document["server_name"].as_str()?;
    let keys = document["verify_keys"].as_object()?.iter();
    let keys = keys.filter_map(|(id, key)| {
        let key = key["key"].as_str()?;
        Some((id.clone(), key.trim_end_matches('=').to_owned()))
    });
    Some((name.to_owned(), keys.collect()))
}

/// Refuses to serve what lacks something that the other server has written since it stopped. `now`
/// tells where its streams are, if it can be found out. What was noted counts until something has
/// left this server: from then on there is no way back.
///
/// # Errors
/// When it was in use.
pub fn must_be_unused(
    data_dir: &Path,
    now: impl FnOnce(&Former) -> Option<BTreeMap<String, i64>>,
) -> Result<(), FormerError> {
    let Some(former) = Former::read(data_dir)? else { return Ok(()) };
    let is_over = matches!(former.stage, Stage::Finished(_));
    if !is_over || former.positions.is_empty() || departure(data_dir)?.is_some() {
        return Ok(());
    }
    let streams = now(&former).map_or_else(Vec::new, |now| former.moved(&now));
    if streams.is_empty() {
        return Ok(());
    }
    Err(FormerError::UsedSince { streams, note: data_dir.join(NOTE) })
}

/// Refuses to serve a data directory that is for rehearsals.
///
/// # Errors
/// When it is.
pub fn must_not_be_rehearsed(data_dir: &Path) -> Result<(), FormerError> {
    match is_for_rehearsals(data_dir) {
        true => Err(FormerError::Rehearsed(data_dir.to_owned())),
        false => Ok(()),
    }
}

/// Refuses to use a data directory that is for rehearsals, or has not taken over.
///
/// # Errors
/// When it is one of these.
pub(crate) fn must_be_usable(data_dir: &Path) -> Result<(), FormerError> {
    must_not_be_rehearsed(data_dir)?;
    Former::read(data_dir)?.map_or(Ok(()), |former| former.must_be_over(data_dir))
}

/// Refuses to rehearse in a data directory that is not for that. A new one becomes one that is.
///
/// # Errors
/// When it has a log, and not the mark.
pub fn must_be_for_rehearsals(data_dir: &Path) -> Result<(), FormerError> {
    if is_for_rehearsals(data_dir) {
        return Ok(());
    }
    // An import that is not finished has no log yet.
    if has_log(data_dir) || Former::read(data_dir)?.is_some() {
        return Err(FormerError::NotForRehearsals(data_dir.to_owned()));
    }
    mark_for_rehearsals(data_dir)
}

/// Makes a data directory one for rehearsals, for ever.
///
/// # Errors
/// When the disk does not take it.
pub fn mark_for_rehearsals(data_dir: &Path) -> Result<(), FormerError> {
    let failed = |source| FormerError::File { path: data_dir.to_owned(), source };
    disk::make_private_dir(data_dir).map_err(failed)?;
    let path = data_dir.join(MARK);
    let note = serde_json::json!({ "note": "Only for `logcabin serve --rehearsal`, for ever." });
    write(&path, &note)
}

/// Whether a data directory is for rehearsals.
pub(crate) fn is_for_rehearsals(data_dir: &Path) -> bool {
    data_dir.join(MARK).exists()
}

/// Where the first departure is noted.
fn departure_file(data_dir: &Path) -> PathBuf {
    data_dir.join(DEPARTURE)
}

/// When something left the server for the first time since it took over, in milliseconds since the
/// Unix epoch, and what; none if nothing has.
///
/// # Errors
/// When there is a note that cannot be looked at.
pub fn departure(data_dir: &Path) -> Result<Option<(u64, String)>, FormerError> {
    let path = departure_file(data_dir);
    let text = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|source| FormerError::File { path, source })?,
    };
    // It counts even if the server was killed while it wrote it.
    let note: Value = serde_json::from_slice(&text).unwrap_or_default();
    let what = note["what"].as_str().unwrap_or("something");
    Ok(Some((note["time_ms"].as_u64().unwrap_or_default(), what.to_owned())))
}

/// Has the first departure noted, if the server of this data directory took over from another one.
///
/// # Errors
/// When there is a note that cannot be read.
pub fn note_departures(data_dir: &Path) -> Result<(), FormerError> {
    if Former::read(data_dir)?.is_some() {
        exits::note_departure_in(departure_file(data_dir));
    }
    Ok(())
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, FormerError> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|source| FormerError::File { path: path.to_owned(), source })?,
    };
    let parsed = serde_json::from_slice(&text);
    parsed.map(Some).map_err(|source| FormerError::Note { path: path.to_owned(), source })
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), FormerError> {
    let failed = |source| FormerError::Note { path: path.to_owned(), source };
    let text = serde_json::to_string_pretty(value).map_err(failed)? + "\n";
    let written = disk::write_whole(path, text.as_bytes());
    written.map_err(|source| FormerError::File { path: path.to_owned(), source })
}

fn absolute(path: &Path) -> PathBuf {
    fs::canonicalize(path).or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.into())
}

fn is_same(one: &Path, other: &Path) -> bool {
    absolute(one) == absolute(other)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn former(config: &Path) -> Former {
        Former {
            id: "one".to_owned(),
            config: config.to_owned(),
            server_name: "example.org".to_owned(),
            keys: [("ed25519:a_1".to_owned(), "abc".to_owned())].into(),
            here: Vec::new(),
            public: Vec::new(),
            stage: Stage::Copied,
            newest: None,
            positions: BTreeMap::new(),
        }
    }

    fn answers(program: Option<&str>, key: Option<(&str, &str)>) -> Answers {
        let keys = key.map(|(name, key)| {
            json!({ "server_name": name, "verify_keys": { "ed25519:a_1": { "key": key } } })
        });
        Answers {
            program: program.map(str::to_owned),
            keys: keys.as_ref().and_then(keys_of),
            ..Answers::default()
        }
    }

    #[test]
    fn the_former_server_is_recognised_and_no_other() {
        let former = former(Path::new("/none/homeserver.yaml"));
        let own = Some(("example.org", "abc="));
        assert_eq!(former.recognise(&answers(Some("Synapse"), own)), Some(true));
        for (program, key) in [
            // This server, which has the same key.
            (Some("Logcabin"), own),
            (Some("Dendrite"), own),
            // Nothing that is known, or nothing at all.
            (None, own),
            (None, None),
            // Another Synapse, which a proxy leads to.
            (Some("Synapse"), Some(("other.example", "abc"))),
            (Some("Synapse"), Some(("example.org", "xyz"))),
            // One that may be any.
            (Some("Synapse"), None),
        ] {
            assert_eq!(former.recognise(&answers(program, key)), None, "{program:?} {key:?}");
        }
        // At a listener of its own it need not show a key, nor answer homeservers.
        for here in [
            Answers { is_here: true, ..answers(Some("Synapse"), None) },
            Answers { is_here: true, has_feature: true, ..Answers::default() },
        ] {
            assert_eq!(former.recognise(&here), Some(false), "{here:?}");
        }
    }

    #[test]
    fn one_data_directory_takes_over() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("homeserver.yaml");
        fs::write(&config, "").unwrap();
        let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
        for data_dir in [&one, &two] {
            fs::create_dir(data_dir).unwrap();
        }
        let mut former = former(&config);
        assert!(matches!(former.must_be_over(&one), Err(FormerError::Unfinished(_))));
        former.stage = Stage::Finished(7);
        assert!(matches!(former.must_be_over(&one), Err(FormerError::NoGuard { .. })));
        former.put_guard(&one).unwrap();
        former.put_guard(&one).unwrap();
        former.must_be_over(&one).unwrap();
        // The server is another user than who made it.
        let mode = fs::metadata(former.guard()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        former.write(&one).unwrap();
        for refused in
            [former.put_guard(&two), former.must_be_over(&two), former.remove_guard(&two)]
        {
            assert!(matches!(refused, Err(FormerError::TakenOver { .. })), "{refused:?}");
        }
        assert_eq!(Former::read(&one).unwrap(), Some(former.clone()));
        assert_eq!(Former::read(&two).unwrap(), None);
        // A further command goes on with the same import, whatever it would have named a new one.
        let further = Former { id: "new".to_owned(), stage: Stage::Copied, ..former.clone() };
        assert_eq!(further.clone().go_on(&one).unwrap(), former);
        assert!(matches!(further.clone().go_on(&two), Err(FormerError::TakenOver { .. })));
        let other = Former { server_name: "other.example".to_owned(), ..further };
        assert!(matches!(other.go_on(&one), Err(FormerError::Other { .. })));
        // A data directory may be moved. From then on, a copy at its former place is another one.
        let moved = dir.path().join("moved");
        fs::rename(&one, &moved).unwrap();
        let other = Former { id: "two".to_owned(), ..former.clone() };
        assert!(matches!(other.must_be_over(&moved), Err(FormerError::TakenOver { .. })));
        assert_eq!(former.clone().go_on(&moved).unwrap(), former);
        former.must_be_over(&moved).unwrap();
        fs::create_dir(&one).unwrap();
        former.write(&one).unwrap();
        assert!(matches!(former.must_be_over(&one), Err(FormerError::TakenOver { .. })));
        fs::remove_dir_all(&one).unwrap();
        fs::rename(&moved, &one).unwrap();
        former.remove_guard(&one).unwrap();
        former.remove_guard(&one).unwrap();
        // On another machine, or once it has been removed, there is nothing to guard.
        fs::remove_file(&config).unwrap();
        former.must_be_over(&one).unwrap();
    }

    #[test]
    fn a_server_that_was_used_since_it_stopped_is_noticed_until_something_has_left() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("data");
        disk::make_private_dir(&data_dir).unwrap();
        let at = |to_device: i64| BTreeMap::from([("to_device".to_owned(), to_device)]);
        let look = |now: Option<i64>| must_be_unused(&data_dir, |_| now.map(at));
        look(Some(9)).unwrap();
        let mut former = former(&dir.path().join("homeserver.yaml"));
        (former.stage, former.positions) = (Stage::Finished(7), at(8));
        former.write(&data_dir).unwrap();
        look(Some(8)).unwrap();
        look(None).unwrap();
        assert!(matches!(look(Some(9)), Err(FormerError::UsedSince { .. })));
        write(&departure_file(&data_dir), &json!({ "time_ms": 5, "what": "a mail" })).unwrap();
        assert!(departure(&data_dir).unwrap().is_some());
        look(Some(9)).unwrap();
    }

    #[test]
    fn a_directory_for_rehearsals_is_for_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("data");
        must_not_be_rehearsed(&data_dir).unwrap();
        must_be_for_rehearsals(&data_dir).unwrap();
        must_be_for_rehearsals(&data_dir).unwrap();
        assert!(matches!(must_not_be_rehearsed(&data_dir), Err(FormerError::Rehearsed(_))));
        assert_eq!(departure(&data_dir).unwrap(), None);
        fs::write(departure_file(&data_dir), "{\"time_ms\":5,\"what\":\"a mail\"}").unwrap();
        assert_eq!(departure(&data_dir).unwrap(), Some((5, "a mail".to_owned())));
        fs::write(departure_file(&data_dir), "").unwrap();
        assert!(departure(&data_dir).unwrap().is_some());
    }
}
