//! What mas.yaml says, as far as an import needs it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::ids;
use crate::{
    ImportError,
    sql::{
        access::{Access, Parameters},
        tls::Pem,
    },
    yaml,
};

/// What mas.yaml says. It holds secrets: it is never shown as a whole.
pub struct Settings {
    /// The file.
    pub path: PathBuf,
    /// All of it.
    pub yaml: Value,
    /// What the service calls itself to clients.
    pub issuer: String,
    /// How passwords were hashed, by the version that the database names.
    pub(super) schemes: BTreeMap<i64, Scheme>,
    /// The ids of single sign-on, by those of the database.
    pub(super) providers: BTreeMap<String, String>,
    /// The key by which the secrets of clients are encrypted, if it can be read.
    pub(super) encryption: Option<[u8; 32]>,
    pub(super) database: Access,
}

/// One way of hashing passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scheme {
    pub(super) algorithm: Algorithm,
    pub(super) normalized: bool,
    pub(super) peppered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Bcrypt,
    Argon2id,
    Pbkdf2,
}

impl Settings {
    /// Reads mas.yaml.
    ///
    /// # Errors
    /// When it cannot be read, or is for another homeserver than `server_name`.
    pub fn read(path: &Path, server_name: &str) -> Result<Self, ImportError> {
        let wrong = |why: String| ImportError::Settings { path: path.to_owned(), why };
        let yaml = Value::Object(yaml::sections(path)?);
        let homeserver = yaml["matrix"]["homeserver"].as_str().unwrap_or("localhost:8008");
        if homeserver != server_name {
            let why = format!("it is for `{homeserver}`, and not for `{server_name}`");
            return Err(wrong(why));
        }
        let base = yaml["http"]["public_base"].as_str().unwrap_or_default();
        let issuer = yaml["http"]["issuer"].as_str().unwrap_or(base).to_owned();
        let providers = providers(&yaml).filter_map(|provider| {
            let id = provider["id"].as_str()?;
            Some((ids::from_ulid(id)?, provider_id(provider)?))
        });
        Ok(Self {
            issuer,
            schemes: schemes(&yaml["passwords"]).map_err(wrong)?,
            providers: providers.collect(),
            encryption: encryption(path, &yaml["secrets"]),
            database: database(path, &yaml["database"]).map_err(wrong)?,
            path: path.to_owned(),
            yaml,
        })
    }
}

/// The providers of identities.
pub(crate) fn providers(yaml: &Value) -> impl Iterator<Item = &Value> {
    yaml["upstream_oauth2"]["providers"].as_array().into_iter().flatten()
}

/// What a provider is called in single sign-on here: as Synapse called it, or by its own id.
pub(crate) fn provider_id(provider: &Value) -> Option<String> {
    let former = provider["synapse_idp_id"].as_str();
    let former = former.map(|id| id.strip_prefix("oidc-").unwrap_or(id));
    let is_name = |id: &&str| {
        !id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    match former.filter(is_name) {
        Some(id) => Some(id.to_owned()),
        None => provider["id"].as_str().map(str::to_ascii_lowercase),
    }
}

/// A file that the settings name, or the text beside it: `secret_file` and `secret`, for example.
/// None if there is neither, or the file cannot be read.
pub(crate) fn secret(settings: &Path, section: &Value, name: &str) -> Option<Vec<u8>> {
    if let Some(text) = section[name].as_str() {
        return Some(text.as_bytes().to_vec());
    }
    let file = section[format!("{name}_file")].as_str()?;
    std::fs::read(find(settings, file)).ok()
}

/// A relative name counts from the directory that the service runs in, which nothing tells: mostly
/// that of the settings.
pub(crate) fn find(settings: &Path, name: &str) -> PathBuf {
    settings.parent().unwrap_or_else(|| Path::new("")).join(name)
}

/// The error is a sentence without its full stop.
fn schemes(passwords: &Value) -> Result<BTreeMap<i64, Scheme>, String> {
    let Some(list) = passwords["schemes"].as_array() else {
        let scheme = Scheme { algorithm: Algorithm::Argon2id, normalized: false, peppered: false };
        return Ok(BTreeMap::from([(1, scheme)]));
    };
    let mut schemes = BTreeMap::new();
    for scheme in list {
        let version = scheme["version"].as_i64();
        let version = version.ok_or("one of `passwords.schemes` has no `version`")?;
        let algorithm = match scheme["algorithm"].as_str() {
            Some("bcrypt") => Algorithm::Bcrypt,
            Some("argon2id") => Algorithm::Argon2id,
            Some("pbkdf2") => Algorithm::Pbkdf2,
            _ => {
                return Err(format!(
                    "scheme {version} of passwords has no algorithm that is known"
                ));
            }
        };
        let normalized = scheme["unicode_normalization"].as_bool().unwrap_or(false);
        let is_set = |name: &str| scheme[name].as_str().is_some_and(|text| !text.is_empty());
        let peppered = is_set("secret") || is_set("secret_file");
        schemes.insert(version, Scheme { algorithm, normalized, peppered });
    }
    Ok(schemes)
}

/// The key, which is 32 bytes in hex.
fn encryption(path: &Path, secrets: &Value) -> Option<[u8; 32]> {
    let text = String::from_utf8(secret(path, secrets, "encryption")?).ok()?;
    let text = text.trim();
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
    bytes?.try_into().ok()
}

/// Where the database is. The error is a sentence without its full stop.
fn database(path: &Path, yaml: &Value) -> Result<Access, String> {
    let text = |name: &str| {
        let text = yaml[name].as_str().filter(|text| !text.is_empty());
        text.map(str::to_owned)
    };
    let mut parameters = match text("uri") {
        Some(uri) => {
            Parameters::parse(&uri).ok_or_else(|| "`database.uri` cannot be read".to_owned())?
        }
        None => Parameters::default(),
    };
    // sqlx has more than one name for these.
    for (name, others) in [
        ("sslmode", &["ssl-mode"][..]),
        ("sslrootcert", &["ssl-root-cert", "ssl-ca"]),
        ("sslcert", &["ssl-cert"]),
        ("sslkey", &["ssl-key"]),
    ] {
        for other in others {
            let value = parameters.take(other);
            parameters.set_missing(name, value);
        }
    }
    let password = secret(path, yaml, "password").and_then(|bytes| String::from_utf8(bytes).ok());
    parameters.set_missing("host", text("socket").or_else(|| text("host")));
    parameters.set_missing("port", yaml["port"].as_u64().map(|port| port.to_string()));
    parameters.set_missing("user", text("username"));
    parameters.set_missing("password", password.map(|text| text.trim().to_owned()));
    parameters.set_missing("dbname", text("database"));
    for (name, setting) in [
        ("sslmode", "ssl_mode"),
        ("sslrootcert", "ssl_ca_file"),
        ("sslcert", "ssl_certificate_file"),
        ("sslkey", "ssl_key_file"),
    ] {
        if let Some(value) = text(setting) {
            parameters.set(name, value);
        }
    }
    let access = parameters.of_sqlx(|name| find(path, name));
    let mut access = access.map_err(|why| format!("`database`: {why}"))?;
    let tls = &mut access.tls;
    if let Some(root) = text("ssl_ca").filter(|_| tls.system) {
        tls.root = Some(Pem::Text(root));
    }
    for (setting, pem) in [("ssl_certificate", &mut tls.certificate), ("ssl_key", &mut tls.key)] {
        if let Some(text) = text(setting) {
            *pem = Some(Pem::Text(text));
        }
    }
    Ok(access)
}

/// Where the service answers, with what.
impl Settings {
    /// Where it may be asked what it is: at its own listeners on this machine, and where others
    /// reach it. By now, another server may be there.
    pub fn addresses(&self) -> Vec<String> {
        let http = &self.yaml["http"];
        let mut found = Vec::new();
        for listener in http["listeners"].as_array().into_iter().flatten() {
            let resources = listener["resources"].as_array().into_iter().flatten();
            let mut names = resources.map(|resource| resource["name"].as_str().unwrap_or_default());
            if !names.any(|name| name == "discovery") {
                continue;
            }
            let scheme = if listener["tls"].is_object() { "https" } else { "http" };
            let prefix = listener["prefix"].as_str().unwrap_or_default().trim_end_matches('/');
            let binds = listener["binds"].as_array().into_iter().flatten().filter_map(bind);
            found.extend(binds.map(|bind| format!("{scheme}://{bind}{prefix}")));
        }
        // Without a list, it has this one.
        if http["listeners"].is_null() {
            found.push("http://127.0.0.1:8080".to_owned());
        }
        if let Some(base) = http["public_base"].as_str() {
            found.push(base.trim_end_matches('/').to_owned());
        }
        found.sort();
        found.dedup();
        found
    }
}

/// Host and port of a listener, as this machine reaches it.
fn bind(bind: &Value) -> Option<String> {
    let bind: &Map<String, Value> = bind.as_object()?;
    let (host, port) = match bind.get("address").and_then(Value::as_str) {
        Some(address) => address.rsplit_once(':')?,
        None => {
            let port = bind.get("port")?.as_u64()?;
            let host = bind.get("host").and_then(Value::as_str).unwrap_or("[::]");
            return Some(format!("{}:{port}", reached(host)));
        }
    };
    Some(format!("{}:{port}", reached(host)))
}

fn reached(host: &str) -> String {
    match host {
        // One of all addresses has those of IPv4, too.
        "" | "0.0.0.0" | "[::]" | "::" => "127.0.0.1".to_owned(),
        host if host.contains(':') && !host.starts_with('[') => format!("[{host}]"),
        host => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sql::tls::Mode;

    fn read(text: &str) -> (tempfile::TempDir, Result<Settings, String>) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("mas.yaml");
        std::fs::write(&path, text).expect("a file");
        std::fs::write(directory.path().join("pepper"), "with its line's end\n").expect("a file");
        let read = Settings::read(&path, "a.example").map_err(|error| error.to_string());
        (directory, read)
    }

    const HOMESERVER: &str = "matrix: {homeserver: a.example}\n";

    #[test]
    fn settings_are_those_of_mas_yaml() {
        let (_directory, settings) = read(&format!(
            "{HOMESERVER}\
             http: {{public_base: 'https://auth.a.example/', listeners: [\
               {{name: web, resources: [{{name: discovery}}, {{name: oauth}}],\
                 binds: [{{address: '[::]:8080'}}, {{host: localhost, port: 8082}}, {{socket: /run/s}}]}},\
               {{name: internal, resources: [{{name: health}}], binds: [{{port: 8081}}]}}]}}\n\
             database: {{uri: 'postgresql://mas:hidden@db.example:5433/auth?sslmode=prefer&sslrootcert=/x'}}\n\
             secrets: {{encryption: '{}'}}\n\
             passwords: {{schemes: [\
               {{version: 1, algorithm: bcrypt, unicode_normalization: true, secret_file: pepper}},\
               {{version: 2, algorithm: argon2id}}]}}\n\
             upstream_oauth2: {{providers: [\
               {{id: 01HENBZ12TMNVTTFB84J0T5MFA, synapse_idp_id: oidc-google}},\
               {{id: 01HENBZ12TMNVTTFB84J0T5MFB}}]}}\n",
            "0a".repeat(32)
        ));
        let settings = settings.expect("settings");
        assert_eq!(settings.issuer, "https://auth.a.example/");
        assert_eq!(
            settings.addresses(),
            ["http://127.0.0.1:8080", "http://localhost:8082", "https://auth.a.example"]
        );
        assert_eq!(settings.database.place, "PostgreSQL, database auth at db.example");
        assert_eq!(settings.encryption, Some([10; 32]));
        let scheme = |algorithm, normalized, peppered| Scheme { algorithm, normalized, peppered };
        let expected = [
            (1, scheme(Algorithm::Bcrypt, true, true)),
            (2, scheme(Algorithm::Argon2id, false, false)),
        ];
        assert_eq!(settings.schemes, expected.into());
        let names: Vec<_> = settings.providers.values().map(String::as_str).collect();
        assert_eq!(names, ["google", "01henbz12tmnvttfb84j0t5mfb"]);
        let scheme = &settings.yaml["passwords"]["schemes"][0];
        let pepper = secret(&settings.path, scheme, "secret");
        assert_eq!(pepper.as_deref(), Some(&b"with its line's end\n"[..]));
    }

    #[test]
    fn what_is_missing_is_as_the_service_takes_it() {
        let (_directory, settings) = read(HOMESERVER);
        let settings = settings.expect("settings");
        let argon2 = Scheme { algorithm: Algorithm::Argon2id, normalized: false, peppered: false };
        assert_eq!(settings.schemes, [(1, argon2)].into());
        assert_eq!(settings.addresses(), ["http://127.0.0.1:8080"]);
        assert_eq!(provider_id(&json!({ "synapse_idp_id": "oidc" })).as_deref(), Some("oidc"));
    }

    #[test]
    fn a_database_is_reached_as_the_service_reaches_it() {
        let access = |text: &str| {
            let (directory, settings) = read(&format!("{HOMESERVER}database: {{{text}}}\n"));
            (directory, settings.unwrap_or_else(|why| panic!("{text}: {why}")).database)
        };
        let (directory, Access { config, tls, .. }) = access(
            "host: db, port: 5433, username: me, database: auth, ssl_mode: verify-full, \
             ssl_ca_file: ca.pem, ssl_certificate: CERTIFICATE, ssl_key_file: key.pem",
        );
        assert_eq!((config.get_ports(), config.get_user()), (&[5433][..], Some("me")));
        assert!(tls.system && tls.mode == Mode::VerifyFull);
        let file = |pem: Option<Pem>, name: &str| {
            let expected = directory.path().join(name);
            matches!(pem, Some(Pem::File(path)) if path == expected)
        };
        assert!(file(tls.root, "ca.pem") && file(tls.key, "key.pem"));
        assert!(matches!(tls.certificate, Some(Pem::Text(text)) if text == "CERTIFICATE"));
        // What the settings say takes the place of what the address says.
        let (_directory, Access { tls, .. }) =
            access("uri: 'postgres://db/auth?ssl-mode=disable', ssl_mode: verify-ca, ssl_ca: CA");
        assert!(matches!(tls.root, Some(Pem::Text(text)) if text == "CA"));
        assert_eq!(tls.mode, Mode::VerifyCa);
        let (_directory, Access { tls, .. }) =
            access("uri: 'postgres://db/auth?ssl-mode=require&ssl-ca=x'");
        assert_eq!(tls.mode, Mode::Require);
        assert!(tls.root.is_none() && !tls.system, "any certificate will do");
    }

    #[test]
    fn what_cannot_be_is_refused_without_secrets() {
        for (text, expected) in [
            ("matrix: {homeserver: other.example}\n".to_owned(), "not for `a.example`"),
            (format!("{HOMESERVER}database: {{uri: 'hidden'}}\n"), "`database.uri`"),
            (format!("{HOMESERVER}database: {{password: hidden, ssl_mode: maybe}}\n"), "`maybe`"),
            (
                format!("{HOMESERVER}passwords: {{schemes: [{{version: 1, algorithm: md5}}]}}\n"),
                "scheme 1",
            ),
        ] {
            let (_directory, refused) = read(&text);
            let why = refused.err().expect("a refusal");
            assert!(why.contains(expected) && !why.contains("hidden"), "{why}");
        }
    }
}
