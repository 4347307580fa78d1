//! What OAuth 2.0 needs besides the log: the clients of the configuration, the key of ID tokens,
//! and how often codes are asked about.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use rsa::{
    BigUint, Pkcs1v15Sign, RsaPrivateKey,
    pkcs1::{DecodeRsaPrivateKey as _, EncodeRsaPrivateKey as _},
    rand_core::OsRng,
    sha2::{Digest as _, Sha256},
    traits::PublicKeyParts as _,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thiserror::Error;
use tokio::sync::Mutex as AsyncMutex;

use logcabin_base::{
    background::at_length,
    clock::{millis, random_letters, random_token},
    disk, limits,
    secret_text::SecretText,
    shutdown::Shutdown,
    threads,
};
use logcabin_config::{self as config, Config};
use logcabin_decide::oauth::{AnnounceKey, RegisterClient, RemoveIdleClients};
use logcabin_engine::{Engine, ProposeError};
use logcabin_record::{
    Origin,
    client::{ApplicationType, AuthMethod, ClientMetadata, GrantType},
    command::{OauthKey, TokenHash},
};

/// A client, from the configuration or from the log.
#[derive(Clone, Debug)]
pub struct Client {
    pub id: String,
    /// The hash of its secret, if it has one.
    pub secret: Option<TokenHash>,
    pub metadata: ClientMetadata,
    /// Whether it is from the configuration.
    pub configured: bool,
}

/// The configured clients by id.
#[derive(Clone, Debug, Default)]
pub struct Clients(Arc<BTreeMap<String, Client>>);

/// The id of the console as a client.
pub const CONSOLE: &str = "logcabin-console";

/// The path to which the console's codes are sent.
pub const CONSOLE_CALLBACK: &str = "/_logcabin/console/callback";

/// A client's file is not usable.
#[derive(Debug, Error)]
#[error("the OAuth client in {path} cannot be used: {reason}")]
pub struct ClientError {
    path: PathBuf,
    reason: String,
}

/// The contents of a client's file: its id, its secret, and metadata as in a registration.
#[derive(Deserialize)]
struct ClientFile {
    client_id: String,
    client_secret: Option<SecretText>,
    client_secret_file: Option<SecretText>,
    #[serde(flatten)]
    metadata: BTreeMap<String, toml::Value>,
}

impl Clients {
    /// The clients of this configuration, and the console if it is enabled.
    ///
    /// # Errors
    /// When a file cannot be read or does not describe a client: which one, and why.
    pub fn load(config: &Config) -> Result<Self, ClientError> {
        let mut clients = BTreeMap::new();
        if config.console.enabled {
            clients.insert(CONSOLE.to_owned(), console(&config.server));
        }
        for file in config.oauth.clients.iter() {
            let client =
                load(&file.0).map_err(|reason| ClientError { path: file.0.clone(), reason })?;
            if let Some(twice) = clients.insert(client.id.clone(), client) {
                let reason = format!("another one has its `client_id`, {}", twice.id);
                return Err(ClientError { path: file.0.clone(), reason });
            }
        }
        Ok(Self(Arc::new(clients)))
    }

    /// The client with this id, configured or registered.
    pub fn get(&self, engine: &Engine, client_id: &str) -> Option<Client> {
        if let Some(client) = self.0.get(client_id) {
            return Some(client.clone());
        }
        let client = engine.state().oauth.client(client_id)?;
        let (secret, metadata) = (client.secret, client.metadata);
        Some(Client { id: client_id.to_owned(), secret, metadata, configured: false })
    }
}

fn console(server: &config::Server) -> Client {
    let url = server.url();
    let name = format!("Console of {}", server.name);
    let metadata = ClientMetadata {
        application_type: ApplicationType::Web,
        client_uri: format!("{url}/"),
        grant_types: vec![GrantType::AuthorizationCode],
        redirect_uris: vec![format!("{url}{CONSOLE_CALLBACK}")],
        response_types: vec!["code".to_owned()],
        token_endpoint_auth_method: AuthMethod::ClientSecretBasic,
        shown: BTreeMap::from([("client_name".to_owned(), name)]),
    };
    // Nobody knows it: the console is a part of this process, which needs none.
    let secret = Some(TokenHash::of(&random_token()));
    Client { id: CONSOLE.to_owned(), secret, metadata, configured: true }
}

fn load(path: &Path) -> Result<Client, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let file: ClientFile = toml::from_str(&text).map_err(|error| error.message().to_owned())?;
    let ClientFile { client_id, client_secret, client_secret_file, metadata } = file;
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !(1..=100).contains(&client_id.len()) || !client_id.bytes().all(valid) {
        return Err("`client_id` has 1 to 100 of a-z, A-Z, 0-9, `.`, `_` and `-`".to_owned());
    }
    let secret = match (client_secret, client_secret_file) {
        (Some(_), Some(_)) => {
            return Err("`client_secret` and `client_secret_file` exclude each other".to_owned());
        }
        (Some(secret), None) => Some(secret.into_inner()),
        (None, Some(file)) => {
            let file = path.with_file_name(file.expose());
            let text = fs::read_to_string(file)
                .map_err(|error| format!("`client_secret_file` cannot be read: {error}"))?;
            Some(text.trim_end().to_owned())
        }
        (None, None) => None,
    };
    if secret.as_ref().is_some_and(|secret| secret.len() < 16) {
        return Err("its secret has fewer than 16 characters".to_owned());
    }
    let mut given = Map::new();
    for (name, value) in metadata {
        if !KNOWN.contains(&name.split('#').next().unwrap_or_default()) {
            return Err(format!("there is no `{}`", name.escape_debug()));
        }
        given.insert(name, serde_json::to_value(value).unwrap_or_default());
    }
    if secret.is_none() && !given.contains_key("token_endpoint_auth_method") {
        given.insert("token_endpoint_auth_method".to_owned(), json!("none"));
    }
    let metadata = ClientMetadata::parse(&given).map_err(|error| error.to_string())?;
    if secret.is_none() != (metadata.token_endpoint_auth_method == AuthMethod::None) {
        return Err("its `token_endpoint_auth_method` does not fit its secret".to_owned());
    }
    let secret = secret.map(|secret| TokenHash::of(&secret));
    Ok(Client { id: client_id, secret, metadata, configured: true })
}

/// The members of a client's file that are metadata.
const KNOWN: [&str; 10] = [
    "application_type",
    "client_name",
    "client_uri",
    "grant_types",
    "logo_uri",
    "policy_uri",
    "redirect_uris",
    "response_types",
    "token_endpoint_auth_method",
    "tos_uri",
];

/// The file of the key in the data directory.
const FILE: &str = "id_token.key";
/// The size of the key, in bits.
const BITS: usize = 2048;

/// Signs ID tokens (OpenID Connect Core, section 2).
///
/// The private key is in a file beside the log, as the key for login tokens is: whoever reads the
/// log, an archive or a backup can sign nothing. The log has the public part of each key, so that
/// all nodes of a cluster tell clients of all keys, and of former ones while they may be needed.
pub struct IdTokens {
    path: PathBuf,
    lasts_ms: u64,
    key: AsyncMutex<Option<Key>>,
}

struct Key {
    kid: String,
    made_ms: u64,
    until_ms: u64,
    private: Arc<RsaPrivateKey>,
}

/// The contents of the file.
#[derive(Serialize, Deserialize)]
struct KeyFile {
    kid: String,
    made_ms: u64,
    until_ms: u64,
    pem: String,
}

/// Why an ID token cannot be signed.
#[derive(Debug, Error)]
pub enum IdTokenError {
    /// There is no key.
    #[error("the key for ID tokens cannot be made: {0}")]
    Key(String),
    /// The key could not be recorded.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

impl IdTokens {
    /// With the key in `data_dir`, which is created when it is needed.
    pub fn new(data_dir: &Path, oauth: &config::Oauth) -> Self {
        let path = data_dir.join(FILE);
        let lasts_ms = oauth.rotation_seconds.saturating_mul(1000);
        Self { path, lasts_ms, key: AsyncMutex::default() }
    }

    /// A JSON Web Token with these claims.
    pub async fn sign(&self, engine: &Engine, claims: &Value) -> Result<String, IdTokenError> {
        let (kid, private) = self.current(engine).await?;
        let header = json!({ "alg": "RS256", "typ": "JWT", "kid": kid });
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&header), encode(claims));
        let digest = Sha256::digest(signed.as_bytes());
        // Blinded by random numbers: how long it takes says nothing of the key.
        let sign = || private.sign_with_rng(&mut OsRng, Pkcs1v15Sign::new::<Sha256>(), &digest);
        let signature = at_length(sign);
        let signature = signature.map_err(|error| IdTokenError::Key(error.to_string()))?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// The public keys, as a JSON Web Key Set.
    pub async fn public(&self, engine: &Engine) -> Result<Value, IdTokenError> {
        // Some clients ask once and remember: the key must be there before it is used.
        self.current(engine).await?;
        let keys = engine.state().oauth.keys(engine.clock().now_ms());
        let keys = keys.iter().rev().map(|key| {
            let (kid, n, e) = (&key.kid, &key.n, &key.e);
            json!({ "kty": "RSA", "use": "sig", "alg": "RS256", "kid": kid, "n": n, "e": e })
        });
        Ok(json!({ "keys": keys.collect::<Vec<_>>() }))
    }

    /// The key to sign with, which clients have been told of.
    async fn current(&self, engine: &Engine) -> Result<(String, Arc<RsaPrivateKey>), IdTokenError> {
        let now_ms = engine.clock().now_ms();
        let mut kept = self.key.lock().await;
        let lasts = |key: &Key| now_ms < key.made_ms.saturating_add(self.lasts_ms);
        if !kept.as_ref().is_some_and(lasts) {
            let found = self.read().filter(lasts);
            *kept = match found {
                Some(key) => Some(key),
                None => Some(self.make(now_ms).await?),
            };
        }
        let Some(key) = &*kept else { return Err(IdTokenError::Key("it is lost".to_owned())) };
        let told = engine.state().oauth.keys(now_ms).iter().any(|told| told.kid == key.kid);
        if !told {
            let part = |number: &BigUint| URL_SAFE_NO_PAD.encode(number.to_bytes_be());
            let announced = OauthKey {
                kid: key.kid.clone(),
                n: part(key.private.n()),
                e: part(key.private.e()),
                until_ms: key.until_ms.max(now_ms.saturating_add(1)),
            };
            engine.propose(Origin::server(), AnnounceKey(announced)).await?.into_inner();
        }
        Ok((key.kid.clone(), Arc::clone(&key.private)))
    }

    fn read(&self) -> Option<Key> {
        let text = fs::read_to_string(&self.path).ok()?;
        let KeyFile { kid, made_ms, until_ms, pem } = serde_json::from_str(&text).ok()?;
        let private = RsaPrivateKey::from_pkcs1_pem(&pem).ok()?;
        Some(Key { kid, made_ms, until_ms, private: Arc::new(private) })
    }

    /// A new key, in the place of the one before, in the file.
    async fn make(&self, now_ms: u64) -> Result<Key, IdTokenError> {
        let failed = |error: &dyn std::fmt::Display| IdTokenError::Key(error.to_string());
        let made = threads::spawn_blocking(|| {
            let key = RsaPrivateKey::new(&mut OsRng, BITS).map_err(|error| error.to_string())?;
            let pem = key.to_pkcs1_pem(rsa::pkcs1::LineEnding::LF);
            let pem = pem.map_err(|error| error.to_string())?.to_string();
            Ok::<_, String>((key, pem))
        });
        let made = made.await.map_err(|error| failed(&error))?;
        let (private, pem) = made.map_err(|error| failed(&error))?;
        let kid = random_letters(12);
        // What was signed last with it can be checked until then, also by those who ask rarely.
        let until_ms = now_ms.saturating_add(self.lasts_ms.saturating_mul(2));
        let file = KeyFile { kid: kid.clone(), made_ms: now_ms, until_ms, pem };
        let text = serde_json::to_string(&file).map_err(|error| failed(&error))?;
        if let Err(error) = disk::write_whole(&self.path, text.as_bytes()) {
            // A full disk, for example. The next start makes another one.
            let path = self.path.display();
            tracing::warn!(%path, %error, "the key for ID tokens cannot be written");
        }
        Ok(Key { kid, made_ms: now_ms, until_ms, private: Arc::new(private) })
    }
}

/// When the outcome of each device authorization was last asked about, on this node.
#[derive(Debug, Default)]
pub struct Polls {
    last: Mutex<BTreeMap<TokenHash, u64>>,
}

impl Polls {
    /// Whether it is too soon to ask about this code again.
    pub fn is_too_soon(&self, device_code: &TokenHash, now_ms: u64) -> bool {
        let interval_ms = millis(limits::OAUTH_INTERVAL);
        let mut last = self.last.lock();
        if last.len() >= limits::OAUTH_DEVICE_REQUESTS {
            last.retain(|_, asked_ms| now_ms < asked_ms.saturating_add(interval_ms));
        }
        // Clients count from when they got the last answer, with clocks of their own.
        let soon = |asked_ms: u64| now_ms < asked_ms.saturating_add(interval_ms / 2);
        last.insert(*device_code, now_ms).is_some_and(soon)
    }

    /// Nobody asks about this code any more.
    pub fn forget(&self, device_code: &TokenHash) {
        self.last.lock().remove(device_code);
    }
}

/// How many clients without a grant are removed when there are too many: the next ones that
/// register find room, without a decision that all others wait for.
const ROOM: usize = limits::OAUTH_UNUSED_CLIENTS / 100;

/// Registers a client. If too many have no grant, the longest idle ones make room for it.
pub async fn register_client(
    engine: &Engine,
    origin: Origin,
    client: RegisterClient,
) -> Result<(), ProposeError> {
    // Others may take the room that was made, but no more than that of them at a time.
    while !engine.propose(origin.clone(), client.clone()).await?.into_inner() {
        let most = limits::OAUTH_UNUSED_CLIENTS - ROOM;
        let make_room = RemoveIdleClients { until_ms: 0, most };
        let removed = engine.propose(origin.clone(), make_room).await?.into_inner();
        tracing::info!(removed, "removed OAuth clients without a grant to make room for others");
    }
    Ok(())
}

/// How often clients are looked for that have had no grant for long.
const REMOVE_EVERY: Duration = Duration::from_secs(600);

/// Removes registered clients that nobody has granted anything for so many seconds, until the
/// server stops.
pub async fn remove_idle_clients(engine: Arc<Engine>, seconds: u64, shutdown: Shutdown) {
    loop {
        if let Err(error) = remove_idle(&engine, seconds).await {
            tracing::warn!(%error, "idle OAuth clients could not be removed; retrying later");
        }
        tokio::select! {
            () = tokio::time::sleep(REMOVE_EVERY) => {}
            () = shutdown.given() => return,
        }
    }
}

async fn remove_idle(engine: &Engine, seconds: u64) -> Result<(), ProposeError> {
    let now_ms = engine.clock().now_ms();
    let Some(until_ms) = now_ms.checked_sub(seconds.saturating_mul(1000)) else { return Ok(()) };
    let mut removed = 0;
    // The decision holds up all others, so it is only asked for when there is something to do.
    while !engine.state().oauth.idle(until_ms, 1).is_empty() {
        let proposal = RemoveIdleClients { until_ms, most: usize::MAX };
        removed += engine.propose(Origin::server(), proposal).await?.into_inner();
    }
    if removed > 0 {
        tracing::info!(removed, "removed OAuth clients that nobody has granted anything");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_base::{
        clock::Clock,
        secret_text::testing::{is_told, wrong_in_toml},
    };
    use logcabin_engine::Options;
    use logcabin_log::memory::MemoryLog;
    use logcabin_record::command::OauthClient;

    const LEAST: &str = "client_id = \"x\"\nclient_uri = \"https://x.example/\"\n\
                         redirect_uris = [\"https://x.example/callback\"]\n";

    fn client(text: &str) -> Result<Client, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        load(file.path())
    }

    #[test]
    fn a_client_of_the_configuration_is_described_as_in_a_registration() {
        let plain = client(LEAST).unwrap();
        assert_eq!(plain.metadata.token_endpoint_auth_method, AuthMethod::None);
        let secret = client(&format!("{LEAST}client_secret = \"0123456789abcdef\"\n")).unwrap();
        assert_eq!(secret.secret, Some(TokenHash::of("0123456789abcdef")));
        let named = client(&format!("{LEAST}\"client_name#de\" = \"Ding\"\n")).unwrap();
        assert_eq!(named.metadata.in_language("client_name", &["de"]), Some("Ding"));
        for wrong in [
            LEAST.replace("client_uri", "client_url"),
            LEAST.replace("\"x\"", "\"a b\""),
            LEAST.replace("https://x.example/callback", "https://y.example/"),
            format!("{LEAST}client_secret = \"short\"\n"),
            format!("{LEAST}client_secret_file = \"not there\"\n"),
            format!("{LEAST}token_endpoint_auth_method = \"client_secret_post\"\n"),
            format!("{LEAST}client_secret = \"0123456789abcdef\"\nclient_secret_file = \"x\"\n"),
        ] {
            assert!(client(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_secret_is_in_an_error_whatever_is_wrong_with_it() {
        const SECRET: &str = "Zq9073514792xV";
        for wrong in wrong_in_toml(SECRET).into_iter().chain([format!("\"{SECRET}\"")]) {
            let Err(error) = client(&format!("{LEAST}client_secret = {wrong}\n")) else { continue };
            assert!(!is_told(SECRET, &error), "{wrong}: {error}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_key_is_replaced_in_time_and_the_one_before_is_still_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.server.data_dir = dir.path().to_owned();
        config.oauth.rotation_seconds = 100;
        let clock = Clock::manual(1_000_000);
        let log = Arc::new(MemoryLog::new(clock.clone()));
        let engine = Engine::open(log, Options::small(clock.clone())).await.unwrap();
        let kids = |set: &Value| -> Vec<String> {
            let keys = set["keys"].as_array().unwrap().iter();
            keys.map(|key| key["kid"].as_str().unwrap().to_owned()).collect()
        };
        let first = kids(
            &IdTokens::new(&config.server.data_dir, &config.oauth).public(&engine).await.unwrap(),
        );
        // After a restart it is the same.
        let tokens = IdTokens::new(&config.server.data_dir, &config.oauth);
        assert_eq!(kids(&tokens.public(&engine).await.unwrap()), first);
        clock.advance(100_000);
        let both = kids(&tokens.public(&engine).await.unwrap());
        assert_eq!((both.len(), &both[1]), (2, &first[0]));
        let signed = tokens.sign(&engine, &json!({ "sub": "ann" })).await.unwrap();
        let header = signed.split('.').next().unwrap();
        let header: Value =
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).unwrap()).unwrap();
        assert_eq!(header["kid"], both[0]);
        let told = tokens.public(&engine).await.unwrap();
        let number = |name: &str| {
            let text = told["keys"][0][name].as_str().unwrap();
            BigUint::from_bytes_be(&URL_SAFE_NO_PAD.decode(text).unwrap())
        };
        let public = rsa::RsaPublicKey::new(number("n"), number("e")).unwrap();
        let (said, signature) = signed.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let digest = Sha256::digest(said.as_bytes());
        public.verify(Pkcs1v15Sign::new::<Sha256>(), &digest, &signature).unwrap();
        clock.advance(100_000);
        let next = kids(&tokens.public(&engine).await.unwrap());
        assert_eq!(next.len(), 2);
        assert!(!next.contains(&first[0]));
    }

    #[tokio::test]
    async fn clients_without_a_grant_are_removed_after_their_time() {
        let clock = Clock::manual(1_000_000_000);
        let log = Arc::new(MemoryLog::new(clock.clone()));
        let engine = Engine::open(log, Options::small(clock.clone())).await.unwrap();
        let register = async |client_id: &str| {
            let client = OauthClient {
                client_id: client_id.to_owned(),
                client_secret: None,
                metadata: client(LEAST).unwrap().metadata,
            };
            let now_ms = clock.now_ms();
            let proposal = RegisterClient { client, now_ms, idle_ms: 3_600_000 };
            register_client(&engine, Origin::server(), proposal).await.unwrap();
        };
        register("early").await;
        clock.advance(1_800_000);
        register("late").await;
        clock.advance(1_900_000);
        remove_idle(&engine, 3600).await.unwrap();
        let state = engine.state();
        assert!(state.oauth.client("early").is_none());
        assert!(state.oauth.client("late").is_some());
        clock.advance(1_900_000);
        // A registration of the same metadata makes it last.
        register("late").await;
        remove_idle(&engine, 3600).await.unwrap();
        assert!(engine.state().oauth.client("late").is_some());
    }

    #[tokio::test]
    async fn a_client_that_finds_too_many_without_a_grant_takes_the_place_of_the_longest_idle() {
        let clock = Clock::manual(1_000_000_000);
        let log = Arc::new(MemoryLog::new(clock.clone()));
        let engine = Arc::new(Engine::open(log, Options::small(clock.clone())).await.unwrap());
        let metadata = client(LEAST).unwrap().metadata;
        let register = |name: String| {
            let (client_secret, metadata) = (None, metadata.clone());
            let client = OauthClient { client_id: name, client_secret, metadata };
            let (engine, now_ms) = (Arc::clone(&engine), clock.now_ms());
            let proposal = RegisterClient { client, now_ms, idle_ms: 3_600_000 };
            tokio::spawn(async move { register_client(&engine, Origin::server(), proposal).await })
        };
        register("first".to_owned()).await.unwrap().unwrap();
        clock.advance(1000);
        let others = (1..limits::OAUTH_UNUSED_CLIENTS).map(|n| register(n.to_string()));
        for registered in futures_util::future::join_all(others).await {
            registered.unwrap().unwrap();
        }
        assert_eq!(engine.state().oauth.idle_count(), limits::OAUTH_UNUSED_CLIENTS);
        assert!(engine.state().oauth.client("first").is_some());
        clock.advance(1000);
        // They find that there is no room at the same time.
        for registered in ["late", "later"].map(|name| register(name.to_owned())) {
            registered.await.unwrap().unwrap();
        }
        let state = engine.state();
        assert_eq!(state.oauth.idle_count(), limits::OAUTH_UNUSED_CLIENTS - ROOM + 2);
        assert!(state.oauth.client("first").is_none());
        assert!(["late", "later"].iter().all(|name| state.oauth.client(name).is_some()));
    }
}
