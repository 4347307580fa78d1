//! What homeserver.yaml says, as far as an import needs it.

use std::path::{Path, PathBuf};

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use ed25519_dalek::SigningKey;
use serde_json::Value;

use crate::{
    ImportError,
    facts::{SeedBytes, ServerKey},
    proposal::milliseconds,
    sql::access::{Access, Parameters},
    yaml,
};

/// Synapse writes base64 without padding, and reads both.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What homeserver.yaml says. It holds secrets: it is never shown as a whole.
pub struct Settings {
    /// The file.
    pub path: PathBuf,
    /// All of it, with the files of `conf.d` beside it, which take the place of its sections.
    pub yaml: Value,
    pub server_name: String,
    pub signing_key_path: PathBuf,
    pub media_store_path: PathBuf,
    /// The registrations of application services.
    pub app_service_config_files: Vec<PathBuf>,
    /// Whether passwords are hashed with a pepper after them.
    pub peppered: bool,
    pub(super) database: DatabaseSettings,
}

/// Where the database is.
pub(super) enum DatabaseSettings {
    Sqlite(PathBuf),
    Postgresql(Box<Access>),
}

impl Settings {
    /// Reads homeserver.yaml, and the files `conf.d/*.yaml` beside it as Debian's package has them.
    pub fn read(path: &Path) -> Result<Self, ImportError> {
        let wrong = |why: String| ImportError::Settings { path: path.to_owned(), why };
        let mut yaml = yaml::sections(path)?;
        for file in beside(path)? {
            yaml.extend(yaml::sections(&file)?);
        }
        let text = |name: &str| yaml.get(name).and_then(Value::as_str);
        let server_name = text("server_name")
            .ok_or_else(|| wrong("it has no `server_name`".to_owned()))?
            .to_owned();
        let found = |name: &str| find(path, name);
        let signing_key_path = match text("signing_key_path") {
            Some(name) => found(name),
            None => found(&format!("{server_name}.signing.key")),
        };
        let media_store_path = found(text("media_store_path").unwrap_or("media_store"));
        let services = yaml.get("app_service_config_files").and_then(Value::as_array);
        let services = services.into_iter().flatten().filter_map(Value::as_str).map(found);
        let services = services.collect();
        let pepper = yaml.get("password_config").and_then(|config| config.get("pepper"));
        let peppered = pepper.and_then(Value::as_str).is_some_and(|pepper| !pepper.is_empty());
        let database = database(path, &yaml).map_err(wrong)?;
        Ok(Self {
            path: path.to_owned(),
            server_name,
            signing_key_path,
            media_store_path,
            app_service_config_files: services,
            peppered,
            database,
            yaml: Value::Object(yaml),
        })
    }

    /// The names of the processes that write events.
    pub(super) fn event_writers(&self) -> Vec<String> {
        let named = match &self.yaml["stream_writers"]["events"] {
            Value::String(name) => vec![name.clone()],
            Value::Array(names) => {
                names.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
            }
            _ => Vec::new(),
        };
        // Without workers, there is one process, and this is its name.
        if named.is_empty() { vec!["master".to_owned()] } else { named }
    }

    /// How long a session lasts, however it is used; `None` if it does not end.
    pub(super) fn session_lifetime_ms(&self) -> Option<i64> {
        let lifetime = milliseconds(self.yaml.get("session_lifetime")?)?;
        i64::try_from(lifetime).ok()
    }

    /// The keys by which the server signs: the first one of the file is in use.
    pub(super) fn server_keys(&self) -> Result<Vec<ServerKey>, ImportError> {
        let (path, text) = match self.yaml.get("signing_key").and_then(Value::as_str) {
            Some(text) => (&self.path, text.to_owned()),
            None => (&self.signing_key_path, yaml::text(&self.signing_key_path)?),
        };
        let wrong = |why: String| ImportError::Settings { path: path.clone(), why };
        let mut keys = signing_keys(&text).map_err(wrong)?;
        if keys.is_empty() {
            return Err(wrong("it holds no signing key".to_owned()));
        }
        let old = self.yaml.get("old_signing_keys").and_then(Value::as_object);
        for (key_id, key) in old.into_iter().flatten() {
            keys.push(old_key(key_id, key).map_err(|why| ImportError::Settings {
                path: self.path.clone(),
                why: format!("old_signing_keys, {key_id}: {why}"),
            })?);
        }
        Ok(keys)
    }
}

/// `conf.d/*.yaml` beside a file, in the order of their names.
fn beside(path: &Path) -> Result<Vec<PathBuf>, ImportError> {
    let directory = path.parent().unwrap_or_else(|| Path::new("")).join("conf.d");
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let failed = |source| ImportError::File { what: "read", path: directory.clone(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&directory).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        if file.extension().is_some_and(|extension| extension == "yaml") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// A file that the settings name. A relative name counts from the directory that Synapse runs in,
/// which nothing tells: mostly that of the settings.
fn find(settings: &Path, name: &str) -> PathBuf {
    let beside = settings.parent().unwrap_or_else(|| Path::new("")).join(name);
    let debian = Path::new("/var/lib/matrix-synapse").join(name);
    if !beside.exists() && debian.exists() { debian } else { beside }
}

fn signing_keys(text: &str) -> Result<Vec<ServerKey>, String> {
    let mut keys = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let (Some("ed25519"), Some(version), Some(seed), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err("a line is not `ed25519 VERSION KEY`".to_owned());
        };
        let seed = bytes(seed).ok_or("a key is not 32 bytes in base64")?;
        let key_id = format!("ed25519:{version}");
        keys.push(if keys.is_empty() {
            ServerKey { key_id, seed: Some(SeedBytes(seed)), public: None, expired_ms: None }
        } else {
            let public = SigningKey::from_bytes(&seed).verifying_key().to_bytes();
            ServerKey { key_id, seed: None, public: Some(public), expired_ms: None }
        });
    }
    Ok(keys)
}

fn old_key(key_id: &str, key: &Value) -> Result<ServerKey, String> {
    let public = key.get("key").and_then(Value::as_str).and_then(bytes);
    let public = public.ok_or("`key` is not 32 bytes in base64")?;
    let expired = key.get("expired_ts").and_then(Value::as_i64);
    let expired = expired.ok_or("`expired_ts` is no time")?;
    Ok(ServerKey {
        key_id: key_id.to_owned(),
        seed: None,
        public: Some(public),
        expired_ms: Some(expired),
    })
}

fn bytes(text: &str) -> Option<[u8; 32]> {
    BASE64.decode(text).ok()?.try_into().ok()
}

/// Where the database is. The error is a sentence without its full stop.
fn database(
    path: &Path,
    yaml: &serde_json::Map<String, Value>,
) -> Result<DatabaseSettings, String> {
    if yaml.get("databases").is_some_and(|databases| !databases.is_null()) {
        return Err("Synapse keeps its tables in several `databases`, which cannot be read".into());
    }
    let database = yaml.get("database").filter(|database| !database.is_null());
    // Synapse passes it by beside PostgreSQL.
    if let Some(file) = yaml.get("database_path").and_then(Value::as_str)
        && database.is_none_or(|database| database["name"] == "sqlite3")
    {
        return Ok(DatabaseSettings::Sqlite(find(path, file)));
    }
    let database = database.ok_or("it has no `database`")?;
    let args = database.get("args");
    let args = args.and_then(Value::as_object).ok_or("`database` has no `args`")?;
    match database.get("name").and_then(Value::as_str) {
        Some("sqlite3") => {
            let file = args.get("database").and_then(Value::as_str);
            let file = file.ok_or("`database.args` names no `database`")?;
            Ok(DatabaseSettings::Sqlite(find(path, file)))
        }
        Some("psycopg2") => postgresql(path, args),
        _ => Err("`database.name` is neither `sqlite3` nor `psycopg2`".to_owned()),
    }
}

/// The arguments of psycopg2, which are those of libpq, and take the place of its `dsn`.
fn postgresql(
    path: &Path,
    args: &serde_json::Map<String, Value>,
) -> Result<DatabaseSettings, String> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let mut parameters = match args.get("dsn").and_then(Value::as_str) {
        Some(dsn) => {
            Parameters::parse(dsn).ok_or_else(|| "`database.args.dsn` cannot be read".to_owned())?
        }
        None => Parameters::default(),
    };
    for (name, value) in args {
        // An older name of it.
        let name = if name == "database" { "dbname" } else { name };
        if let Some(value) = text(value).filter(|value| !value.is_empty()) {
            parameters.set(name, value);
        }
    }
    let access = parameters.of_libpq(|name| find(path, name));
    let access = access.map_err(|why| format!("`database.args`: {why}"))?;
    Ok(DatabaseSettings::Postgresql(Box::new(access)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{DatabaseSettings, Settings};
    use crate::sql::tls::{Mode, Pem};

    /// A key that signs nothing, 32 bytes of it.
    const KEY: &str = "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE";

    fn settings(files: &[(&str, &str)]) -> (tempfile::TempDir, Result<Settings, String>) {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, text).expect("a file");
        }
        let read = Settings::read(&directory.path().join("homeserver.yaml"));
        (directory, read.map_err(|error| error.to_string()))
    }

    #[test]
    fn settings_are_those_of_homeserver_yaml_and_of_conf_d() {
        let (directory, settings) = settings(&[
            (
                "homeserver.yaml",
                "database: {name: sqlite3, args: {database: homeserver.db}}\n\
                 password_config: {pepper: salt}\nsigning_key_path: a.key\n\
                 old_signing_keys: {\"ed25519:old\": {key: YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE, expired_ts: 12}}\n",
            ),
            ("conf.d/server_name.yaml", "server_name: example.org\n"),
            ("a.key", &format!("ed25519 a_1 {KEY}\ned25519 a_2 {KEY}=\n")),
        ]);
        let settings = settings.expect("settings");
        assert_eq!(settings.server_name, "example.org");
        assert!(settings.peppered);
        let DatabaseSettings::Sqlite(file) = &settings.database else { panic!("not SQLite") };
        assert_eq!(*file, directory.path().join("homeserver.db"));
        let keys = settings.server_keys().expect("keys");
        let ids = keys.iter().map(|key| (key.key_id.as_str(), key.seed.is_some(), key.expired_ms));
        assert_eq!(
            ids.collect::<Vec<_>>(),
            [
                ("ed25519:a_1", true, None),
                ("ed25519:a_2", false, None),
                ("ed25519:old", false, Some(12))
            ]
        );
    }

    #[test]
    fn events_are_written_by_the_processes_that_are_named() {
        let writers = |text: &str| {
            let text = format!("server_name: a\ndatabase_path: a.db\n{text}");
            settings(&[("homeserver.yaml", &text)]).1.expect("settings").event_writers()
        };
        assert_eq!(writers(""), ["master"]);
        assert_eq!(writers("stream_writers: {typing: t}\n"), ["master"]);
        assert_eq!(writers("stream_writers: {events: one}\n"), ["one"]);
        assert_eq!(writers("stream_writers: {events: [one, two]}\n"), ["one", "two"]);
    }

    #[test]
    fn a_path_beside_postgresql_is_passed_by_and_the_last_of_two_names_counts() {
        let kind = |text: &str| {
            let text = format!("server_name: other\nserver_name: a\n{text}");
            let (_directory, settings) = settings(&[("homeserver.yaml", &text)]);
            let settings = settings.expect("settings");
            assert_eq!(settings.server_name, "a");
            matches!(settings.database, DatabaseSettings::Postgresql(_))
        };
        let postgresql = "database: {name: psycopg2, args: {dbname: synapse}}\n";
        assert!(kind(&format!("{postgresql}database_path: homeserver.db\n")));
        assert!(!kind("database_path: homeserver.db\n"));
        assert!(!kind("database: {name: sqlite3}\ndatabase_path: homeserver.db\n"));
    }

    #[test]
    fn what_is_wrong_is_told_without_secrets() {
        let (_directory, refused) = settings(&[("homeserver.yaml", "server_name: a\n")]);
        let why = refused.err().expect("a refusal");
        assert!(why.contains("`database`"), "{why}");
        let (_directory, refused) = settings(&[("homeserver.yaml", "a: [secret\nb: {")]);
        let why = refused.err().expect("a refusal");
        assert!(why.contains("no YAML") && !why.contains("secret"), "{why}");
        let (_directory, refused) = settings(&[(
            "homeserver.yaml",
            "server_name: a\ndatabase: {name: psycopg2, args: {sslmode: maybe, password: secret}}\n",
        )]);
        let why = refused.err().expect("a refusal");
        assert!(why.contains("`maybe`") && !why.contains("secret"), "{why}");
    }

    #[test]
    fn a_database_is_where_its_arguments_say_before_its_connection_string() {
        let text = "server_name: a\ndatabase: {name: psycopg2, args: {\
            dsn: 'host=db user=me sslmode=disable', port: 5433, database: synapse,\
            sslmode: verify-full, sslrootcert: ca.pem, cp_min: 5}}\n";
        let (directory, settings) = settings(&[("homeserver.yaml", text), ("ca.pem", "")]);
        let settings = settings.expect("settings");
        let DatabaseSettings::Postgresql(access) = settings.database else {
            panic!("not PostgreSQL")
        };
        assert_eq!(access.place, "PostgreSQL, database synapse at db");
        assert_eq!(
            (access.config.get_ports(), access.config.get_user()),
            (&[5433][..], Some("me"))
        );
        assert_eq!(access.tls.mode, Mode::VerifyFull);
        let Some(Pem::File(root)) = access.tls.root else { panic!("no authorities") };
        assert_eq!(root, directory.path().join("ca.pem"));
    }
}
