//! The signing keys of other homeservers (server-server API, "Retrieving server keys"): fetched
//! from the homeservers themselves, or else from notaries, and recorded in the log.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, OwnedServerName, ServerName, ServerSigningKeyId,
    serde::{Base64, base64::Standard},
    signatures::{PublicKeyMap, verify_json},
};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use thiserror::Error;
use tokio::{
    sync::Semaphore,
    time::{sleep_until, timeout, timeout_at},
};
use tracing::{debug, warn};

use super::{FederationClient, FederationRequest, Unreachable, XMatrix, x_matrix::NotSigned};
use logcabin_base::{background, clock::millis, limits, rate::Limiter};
use logcabin_decide::federation::LearnKeys;
use logcabin_engine::Engine;
use logcabin_record::{
    Command, Origin,
    command::{OldKey, PeerKeys},
};
use logcabin_state::federation_keys::HomeserverKeys;

/// Why a signature is not accepted.
#[derive(Clone, Debug, Error)]
pub enum KeyError {
    #[error("the keys of {0} cannot be fetched: {1}")]
    Unreachable(OwnedServerName, Unreachable),
    /// They could not be fetched a moment ago, and it is too soon to retry.
    #[error("the keys of {0} could not be fetched")]
    NotAgain(OwnedServerName),
    /// The key does not belong to the homeserver, or was not valid at that time.
    #[error("{0} does not sign with the key {1}")]
    NoKey(OwnedServerName, String),
    #[error("the signature is wrong: {0}")]
    Wrong(#[from] NotSigned),
}

/// The signing keys of a homeserver, by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeySet {
    /// The current ones, in unpadded base64.
    keys: BTreeMap<String, String>,
    valid_until_ms: u64,
}

impl From<HomeserverKeys> for KeySet {
    fn from(HomeserverKeys { keys, valid_until_ms, .. }: HomeserverKeys) -> Self {
        Self { keys, valid_until_ms }
    }
}

impl From<&PeerKeys> for KeySet {
    fn from(PeerKeys { keys, valid_until_ms, .. }: &PeerKeys) -> Self {
        Self { keys: keys.clone(), valid_until_ms: *valid_until_ms }
    }
}

impl KeySet {
    /// The key to verify a request with now.
    fn for_request(&self, key_id: &str, now_ms: u64) -> Option<&str> {
        (self.valid_until_ms > now_ms).then(|| self.keys.get(key_id).map(String::as_str))?
    }
}

/// What keys are fetched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// One request or event.
    Urgent,
    /// The events of an answer. Requests for these do not delay urgent ones.
    InBulk,
    /// Later requests. Those known now are still valid.
    Ahead,
}

/// The keys with which a homeserver has signed events, each with the end of its validity, in
/// milliseconds since the Unix epoch.
#[derive(Clone, Debug, Default)]
pub struct EventKeys(Vec<(String, Base64, u64)>);

impl From<HomeserverKeys> for EventKeys {
    fn from(HomeserverKeys { keys, old, valid_until_ms, .. }: HomeserverKeys) -> Self {
        let mut all = Self::default();
        for (id, key) in keys {
            all.add(id, &key, valid_until_ms);
        }
        for (id, old) in old {
            all.add(id, &old.key, old.expired_ms);
        }
        all
    }
}

impl EventKeys {
    fn add(&mut self, id: String, key: &str, until_ms: u64) {
        if let Ok(key) = Base64::parse(key) {
            self.0.push((id, key, until_ms));
        }
    }

    /// Adds keys that were just fetched, and perhaps not recorded.
    fn extend(&mut self, learned: &PeerKeys) {
        for (id, key) in &learned.keys {
            self.add(id.clone(), key, learned.valid_until_ms);
        }
        for (id, old) in &learned.old {
            self.add(id.clone(), &old.key, old.expired_ms);
        }
    }

    /// Whether none is known.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of these keys was valid at `ts_ms`.
    pub fn has_any(&self, key_ids: &[String], ts_ms: u64) -> bool {
        self.0.iter().any(|(id, _, until_ms)| ts_ms <= *until_ms && key_ids.contains(id))
    }

    /// The subset of these keys that was valid at `ts_ms`.
    pub fn valid(&self, key_ids: &[String], ts_ms: u64) -> BTreeMap<String, Base64> {
        let valid =
            self.0.iter().filter(|(id, _, until_ms)| ts_ms <= *until_ms && key_ids.contains(id));
        valid.map(|(id, key, _)| (id.clone(), key.clone())).collect()
    }
}

/// When the keys of a homeserver were last fetched.
#[derive(Clone, Copy)]
struct Attempt {
    /// The earliest time of the next fetch.
    again: Instant,
    /// The length of that pause, after a failure.
    failed_for: Duration,
}

/// A place in the queue to fetch the keys of one homeserver. Dropping it leaves the queue, even
/// before its turn.
struct FetchTurn<'a> {
    ring: &'a KeyRing,
    server: &'a ServerName,
    own: Arc<tokio::sync::Mutex<()>>,
}

impl<'a> FetchTurn<'a> {
    fn of(ring: &'a KeyRing, server: &'a ServerName) -> Self {
        let own = Arc::clone(ring.turns.lock().entry(server.to_owned()).or_default());
        Self { ring, server, own }
    }
}

impl Drop for FetchTurn<'_> {
    fn drop(&mut self) {
        let mut turns = self.ring.turns.lock();
        // This one, and the one in the map.
        if Arc::strong_count(&self.own) <= 2 {
            turns.remove(self.server);
        }
    }
}

/// The keys of other homeservers.
pub struct KeyRing {
    client: Arc<FederationClient>,
    engine: Arc<Engine>,
    notaries: Vec<OwnedServerName>,
    attempts: Cache<OwnedServerName, Attempt>,
    /// One fetch at a time for each homeserver.
    turns: Mutex<HashMap<OwnedServerName, Arc<tokio::sync::Mutex<()>>>>,
    fetches: Semaphore,
    /// The same for homeservers of which no key is known.
    first_fetches: Semaphore,
    /// The same for those that failed to answer the last time, or were slow.
    later_fetches: Semaphore,
    /// The same for fetches ahead.
    ahead: Arc<Semaphore>,
    /// When the keys of homeservers were last fetched ahead.
    renewals: Cache<OwnedServerName, Instant>,
    /// Places for requests for the keys of many homeservers.
    in_bulk: Semaphore,
    /// Limits how many new homeservers are recorded.
    new: Limiter<()>,
    /// Places for large requests whose signatures are verified, of which each is copied.
    large: Semaphore,
}

impl KeyRing {
    pub fn new(
        client: Arc<FederationClient>,
        engine: Arc<Engine>,
        notaries: &[OwnedServerName],
    ) -> Self {
        Self {
            client,
            engine,
            notaries: notaries.to_vec(),
            attempts: Cache::new(limits::DELEGATIONS),
            turns: Mutex::default(),
            fetches: Semaphore::new(limits::PEER_KEYS_FETCHES),
            first_fetches: Semaphore::new(limits::PEER_KEYS_FETCHES),
            later_fetches: Semaphore::new(limits::PEER_KEYS_FETCHES),
            ahead: Arc::new(Semaphore::new(limits::PEER_KEYS_FETCHES)),
            renewals: Cache::new(limits::DELEGATIONS),
            in_bulk: Semaphore::new(limits::PEER_KEYS_IN_BULK.0),
            new: Limiter::new(limits::PEERS_NEW),
            large: Semaphore::new(background::half_of_processors()),
        }
    }

    /// Checks the signature of an incoming request.
    ///
    /// # Errors
    /// When the signature is wrong, or cannot be checked.
    pub async fn verify_request(
        self: &Arc<Self>,
        signed: &XMatrix,
        request: &http::Request<&[u8]>,
    ) -> Result<(), KeyError> {
        let (origin, key_id) = (&signed.origin, &*signed.key_id);
        let no_key = || KeyError::NoKey(origin.clone(), key_id.to_owned());
        let now_ms = self.engine.clock().now_ms();
        let known = self.engine.state().federation_keys.get(origin).map(KeySet::from);
        let known = match known {
            Some(known) if known.for_request(key_id, now_ms).is_some() => known,
            _ => {
                self.fetch(origin, Priority::Urgent, |known| {
                    known.for_request(key_id, now_ms).is_some()
                })
                .await?
            }
        };
        let key = known.for_request(key_id, now_ms).ok_or_else(no_key)?;
        let key = Base64::<Standard>::parse(key).map_err(|_| no_key())?;
        let verify = || signed.verify(request, self.client.own_name(), key.as_bytes());
        if request.body().len() > limits::VERIFIED_AT_ONCE_BYTES {
            // It is verified in any case: a body that waits for longer counts as idle.
            let _place = timeout(limits::LARGE_VERIFICATION_WAIT, self.large.acquire()).await;
            background::at_length(verify)?;
        } else {
            verify()?;
        }
        if known.valid_until_ms < now_ms.saturating_add(millis(limits::PEER_KEYS_AHEAD.0)) {
            self.renew(origin);
        }
        Ok(())
    }

    /// Begins to fetch keys that are still valid, so that a homeserver that sends requests
    /// regularly is independent of the places for urgent fetches.
    fn renew(self: &Arc<Self>, server: &ServerName) {
        let now = Instant::now();
        let (last, fetched) = (self.renewals.get(server), self.attempts.get(server));
        if last.is_some_and(|last| now.duration_since(last) < limits::PEER_KEYS_AHEAD.1)
            || fetched.is_some_and(|attempt| attempt.again > now)
        {
            return;
        }
        let Ok(place) = Arc::clone(&self.ahead).try_acquire_owned() else { return };
        self.renewals.insert(server.to_owned(), now);
        let (ring, server) = (Arc::clone(self), server.to_owned());
        tokio::spawn(async move {
            let _place = place;
            if let Err(error) = ring.fetch(&server, Priority::Ahead, |_| false).await {
                debug!(%server, %error, "keys of a homeserver are not renewed");
            }
        });
    }

    /// The known keys with which a homeserver, or this one, has signed events.
    pub fn known_for_events(&self, server: &ServerName) -> EventKeys {
        let env = self.engine.env();
        if server != env.server.name {
            return env.state.federation_keys.get(server).map(EventKeys::from).unwrap_or_default();
        }
        let mut keys = EventKeys::default();
        for (id, old) in env.state.federation_keys.retired_keys() {
            keys.add(id, &old.key, old.expired_ms);
        }
        env.server.with_current(|pair| {
            let id = format!("ed25519:{}", pair.version());
            keys.0.push((id, Base64::new(pair.public_key().to_vec()), u64::MAX));
        });
        keys
    }

    /// Those of `key_ids` with which a homeserver may have signed an event at `ts_ms`
    /// (server-server API, "Retrieving server keys"; room version 5, "Signing key validity
    /// period"). They are fetched if none is known.
    ///
    /// # Errors
    /// When they are unknown and cannot be fetched, or none was valid then.
    pub async fn for_event(
        &self,
        server: &ServerName,
        key_ids: &[String],
        ts_ms: u64,
    ) -> Result<BTreeMap<String, Base64>, KeyError> {
        let keys = self.for_events(server, key_ids, ts_ms, Priority::Urgent).await?;
        let valid = keys.valid(key_ids, ts_ms);
        if valid.is_empty() {
            return Err(KeyError::NoKey(server.to_owned(), key_ids.join(", ")));
        }
        Ok(valid)
    }

    /// All keys with which a homeserver has signed events. They are fetched, unless one of
    /// `key_ids` is known to have been valid at `ts_ms`; one that was need not be among them.
    ///
    /// # Errors
    /// When they are unknown and cannot be fetched.
    pub async fn for_events(
        &self,
        server: &ServerName,
        key_ids: &[String],
        ts_ms: u64,
        haste: Priority,
    ) -> Result<EventKeys, KeyError> {
        let known = self.known_for_events(server);
        if known.has_any(key_ids, ts_ms) || server == self.client.own_name() {
            return Ok(known);
        }
        let suffices = |known: &KeySet| {
            ts_ms <= known.valid_until_ms && key_ids.iter().any(|id| known.keys.contains_key(id))
        };
        let fetched = self.fetch(server, haste, suffices).await?;
        let mut keys = self.known_for_events(server);
        // They may not have been recorded.
        for (id, key) in fetched.keys {
            keys.add(id, &key, fetched.valid_until_ms);
        }
        Ok(keys)
    }

    /// The keys of a homeserver, fetched unless they are known and valid until `until_ms`. The
    /// result is the signed document, for homeservers that use this server as a notary.
    ///
    /// # Errors
    /// When they are unknown and cannot be fetched.
    pub async fn document(
        &self,
        server: &ServerName,
        until_ms: u64,
    ) -> Result<CanonicalJsonObject, KeyError> {
        let suffices = |known: &KeySet| known.valid_until_ms >= until_ms;
        let known = self.engine.state().federation_keys.get(server);
        let is_known = known.is_some();
        if !known.is_some_and(|peer| suffices(&peer.into())) {
            let fetched = self.fetch(server, Priority::Urgent, suffices).await;
            if let Err(error) = fetched
                && !is_known
            {
                return Err(error);
            }
        }
        let not_again = || KeyError::NotAgain(server.to_owned());
        let peer = self.engine.state().federation_keys.get(server).ok_or_else(not_again)?;
        let record = self.engine.log().get(peer.record).ok().flatten();
        match record.and_then(|record| record.command().ok().flatten()) {
            Some(Command::PeerKeys(body)) => {
                serde_json::from_str(body.document.get()).map_err(|_| not_again())
            }
            _ => Err(not_again()),
        }
    }

    /// Fetches the keys of a homeserver, unless another task has just fetched sufficient ones.
    async fn fetch(
        &self,
        server: &ServerName,
        haste: Priority,
        suffices: impl Fn(&KeySet) -> bool,
    ) -> Result<KeySet, KeyError> {
        if !self.client.permits(server) {
            return Err(KeyError::Unreachable(server.to_owned(), Unreachable::Denied));
        }
        // Before the turn: an urgent fetch does not wait for a place with others.
        let _place = match haste {
            Priority::Urgent | Priority::Ahead => None,
            Priority::InBulk => self.in_bulk.acquire().await.ok(),
        };
        let turn = FetchTurn::of(self, server);
        let _turn = turn.own.lock().await;
        self.fetch_in_turn(server, haste, suffices).await
    }

    async fn fetch_in_turn(
        &self,
        server: &ServerName,
        haste: Priority,
        suffices: impl Fn(&KeySet) -> bool,
    ) -> Result<KeySet, KeyError> {
        let known = self.engine.state().federation_keys.get(server).map(KeySet::from);
        if let Some(known) = known.clone().filter(&suffices) {
            return Ok(known);
        }
        let before = self.attempts.get(server);
        if before.is_some_and(|attempt| attempt.again > Instant::now()) {
            return known.ok_or_else(|| KeyError::NotAgain(server.to_owned()));
        }
        let has_failed = before.is_some_and(|attempt| !attempt.failed_for.is_zero());
        // Unknown names at which nobody answers may be arbitrarily many.
        let (places, limit) = match haste {
            Priority::Urgent if known.is_none() => {
                (Some(&self.first_fetches), limits::PEER_KEYS_TIME)
            }
            Priority::Urgent if has_failed => (Some(&self.later_fetches), limits::PEER_KEYS_TIME),
            Priority::Urgent => (Some(&self.fetches), limits::PEER_KEYS_TIME),
            Priority::InBulk => (None, limits::PEER_KEYS_IN_BULK.1),
            Priority::Ahead => (None, limits::PEER_KEYS_TIME),
        };
        let (fetched, took) = {
            let _place = match places {
                // It is never closed.
                Some(places) => places.acquire().await.ok(),
                None => None,
            };
            let began = Instant::now();
            let fetched = timeout(limit, self.published(server)).await;
            (fetched.unwrap_or(Err(Unreachable::Late)), began.elapsed())
        };
        let [after_success, first, longest] = limits::PEER_KEYS_AGAIN;
        // A slow homeserver takes a place from others each time.
        let is_slow = took > limits::PEER_KEYS_SLOW;
        let failed_for = match &fetched {
            Ok(_) if !is_slow => Duration::ZERO,
            _ => {
                let before = before.map_or(Duration::ZERO, |attempt| attempt.failed_for);
                (2 * before).clamp(first, longest)
            }
        };
        // A homeserver that is slow when fetched ahead is still asked when its keys are needed.
        if haste != Priority::Ahead {
            let again = Instant::now() + failed_for.max(after_success);
            self.attempts.insert(server.to_owned(), Attempt { again, failed_for });
        }
        match fetched {
            Ok(learned) => {
                let fresh = KeySet::from(&learned);
                self.record(learned, known.is_none()).await;
                Ok(fresh)
            }
            Err(error) => {
                debug!(%server, %error, "keys of a homeserver cannot be fetched");
                known.ok_or_else(|| KeyError::Unreachable(server.to_owned(), error))
            }
        }
    }

    async fn record(&self, learned: PeerKeys, is_new: bool) {
        if is_new && self.new.take(&()).is_err() {
            return;
        }
        let server = learned.server_name.clone();
        if let Err(error) = self.engine.propose(Origin::server(), LearnKeys(learned)).await {
            // They are fetched again when they are needed again.
            warn!(%server, %error, "keys of a homeserver are not recorded");
        }
    }

    /// The keys that a homeserver publishes, or that notaries attest.
    async fn published(&self, server: &ServerName) -> Result<PeerKeys, Unreachable> {
        let now_ms = self.engine.clock().now_ms();
        let error = match self.published_by_itself(server, now_ms).await {
            Ok(learned) => return Ok(learned),
            Err(error) => error,
        };
        for notary in &self.notaries {
            if notary == server || notary == self.client.own_name() {
                continue;
            }
            match Box::pin(self.vouched(notary, server, now_ms)).await {
                Ok(learned) => return Ok(learned),
                Err(error) => debug!(%notary, %server, %error, "a notary does not know its keys"),
            }
        }
        Err(error)
    }

    /// The keys that a homeserver publishes, from itself.
    async fn published_by_itself(
        &self,
        server: &ServerName,
        now_ms: u64,
    ) -> Result<PeerKeys, Unreachable> {
        let mut question = FederationRequest::get("/_matrix/key/v2/server").unsigned();
        question.max_bytes = limits::PEER_KEYS_BYTES;
        let object = self.client.send(server, question).await?.json()?;
        verified(server, object, now_ms).map_err(Unreachable::Unexpected)
    }

    /// Asks the notaries for the keys of many homeservers, a request for many of them at once, and
    /// records what they attest. Each homeserver comes with the keys with which it has signed, and
    /// the time until when. Returns the keys of those that a notary knows.
    ///
    /// A room may have users of thousands of homeservers that are gone: there is no time to wait
    /// for each of them.
    pub async fn vouched_in_bulk(
        &self,
        mut wanted: BTreeMap<OwnedServerName, BTreeMap<String, u64>>,
    ) -> HashMap<OwnedServerName, EventKeys> {
        let now_ms = self.engine.clock().now_ms();
        let until = tokio::time::Instant::now() + limits::NOTARY_TIME;
        wanted.retain(|server, _| self.client.permits(server));
        let mut all = HashMap::new();
        for notary in self.notaries.iter().filter(|notary| **notary != *self.client.own_name()) {
            let of_notary = timeout_at(until, Box::pin(self.of_notary(notary, now_ms))).await;
            let of_notary = &match of_notary.unwrap_or(Err(Unreachable::Late)) {
                Ok(of_notary) => of_notary,
                Err(error) => {
                    debug!(%notary, %error, "a notary cannot be asked");
                    continue;
                }
            };
            let servers: Vec<_> = wanted.clone().into_iter().collect();
            let parts: Vec<_> = servers.chunks(limits::NOTARY_SERVERS).map(<[_]>::to_vec).collect();
            let parts = stream::iter(parts).map(|part| async move {
                let asked = Box::pin(self.vouched_for_many(notary, of_notary, &part, now_ms));
                asked.await.unwrap_or_default()
            });
            let parts = parts.buffer_unordered(limits::NOTARY_REQUESTS);
            let parts = parts.take_until(sleep_until(until)).collect::<Vec<_>>().await;
            let learned: Vec<_> = parts.into_iter().flatten().collect();
            for of in &learned {
                let mut keys = self.known_for_events(&of.server_name);
                keys.extend(of);
                wanted.remove(&of.server_name);
                all.insert(of.server_name.clone(), keys);
            }
            let records = stream::iter(learned).map(|of| async move {
                let is_new = self.engine.state().federation_keys.get(&of.server_name).is_none();
                self.record(of, is_new).await;
            });
            records.buffer_unordered(limits::PEER_KEYS_FETCHES).collect::<Vec<()>>().await;
        }
        all
    }

    /// Whether anybody attests the keys of others.
    pub fn has_notaries(&self) -> bool {
        !self.notaries.is_empty()
    }

    /// What a notary attests of these homeservers.
    async fn vouched_for_many(
        &self,
        notary: &ServerName,
        of_notary: &KeySet,
        servers: &[(OwnedServerName, BTreeMap<String, u64>)],
        now_ms: u64,
    ) -> Result<Vec<PeerKeys>, Unreachable> {
        let of = |keys: &BTreeMap<String, u64>| -> serde_json::Map<_, _> {
            let until = |ts_ms| json!({ "minimum_valid_until_ts": ts_ms });
            keys.iter().map(|(id, ts_ms)| (id.clone(), until(*ts_ms))).collect()
        };
        let asked: serde_json::Map<_, _> =
            servers.iter().map(|(server, keys)| (server.to_string(), of(keys).into())).collect();
        let body = json!({ "server_keys": asked });
        let mut question = FederationRequest::post("/_matrix/key/v2/query", &body).unsigned();
        // Twice: a notary may give one document for each key.
        question.max_bytes = 2 * limits::NOTARY_SERVERS * limits::PEER_KEYS_BYTES;
        let answered: NotaryResponse = match self.client.send(notary, question).await {
            Ok(answer) => answer.json()?,
            Err(error) => {
                debug!(%notary, %error, "a notary does not answer");
                return Err(error);
            }
        };
        let mut learned = Vec::new();
        let most = 2 * limits::NOTARY_SERVERS;
        for object in answered.server_keys.into_iter().take(most) {
            let name = object.get("server_name").and_then(CanonicalJsonValue::as_str);
            let asked = servers.iter().find(|(server, _)| Some(server.as_str()) == name);
            let Some((server, _)) = asked else { continue };
            let vouched = has_signature(&object, notary, &of_notary.keys);
            match vouched.and_then(|()| verified(server, object, now_ms)) {
                Ok(of) => learned.push(of),
                Err(error) => debug!(%notary, %server, error, "a notary's answer is not used"),
            }
        }
        Ok(learned)
    }

    /// The keys of a notary, from itself.
    async fn of_notary(&self, notary: &ServerName, now_ms: u64) -> Result<KeySet, Unreachable> {
        let known = self.engine.state().federation_keys.get(notary).map(KeySet::from);
        match known.filter(|known| known.valid_until_ms > now_ms) {
            Some(known) => Ok(known),
            None => Ok(KeySet::from(&self.published_by_itself(notary, now_ms).await?)),
        }
    }

    /// The keys of a homeserver, from a notary.
    async fn vouched(
        &self,
        notary: &ServerName,
        server: &ServerName,
        now_ms: u64,
    ) -> Result<PeerKeys, Unreachable> {
        let of_notary = self.of_notary(notary, now_ms).await?;
        let body = json!({ "server_keys": { server: {} } });
        let question = FederationRequest::post("/_matrix/key/v2/query", &body).unsigned();
        let answered: NotaryResponse = self.client.send(notary, question).await?.json()?;
        let mut last = "it knows no such homeserver".to_owned();
        for object in answered.server_keys {
            let vouched = has_signature(&object, notary, &of_notary.keys);
            match vouched.and_then(|()| verified(server, object, now_ms)) {
                Ok(learned) => return Ok(learned),
                Err(error) => last = error,
            }
        }
        Err(Unreachable::Unexpected(last))
    }
}

/// The answer of a notary.
#[derive(Deserialize)]
struct NotaryResponse {
    server_keys: Vec<CanonicalJsonObject>,
}

/// The document in which a homeserver publishes its keys.
#[derive(Deserialize)]
struct Document {
    server_name: OwnedServerName,
    verify_keys: BTreeMap<String, Key>,
    #[serde(default)]
    old_verify_keys: BTreeMap<String, Old>,
    valid_until_ts: u64,
}

#[derive(Deserialize)]
struct Key {
    key: String,
}

#[derive(Deserialize)]
struct Old {
    key: String,
    expired_ts: u64,
}

/// Checks that `object` has a valid signature of `server` with one of these keys, and no invalid
/// one with any of them.
fn has_signature(
    object: &CanonicalJsonObject,
    server: &ServerName,
    keys: &BTreeMap<String, String>,
) -> Result<(), String> {
    let Some(CanonicalJsonValue::Object(all)) = object.get("signatures") else {
        return Err("it is not signed".to_owned());
    };
    // This check ignores signatures by others.
    let own = all.get(server.as_str()).cloned().ok_or("it is not signed by its homeserver")?;
    let own = CanonicalJsonObject::from([(server.to_string(), own)]);
    let mut object = object.clone();
    object.insert("signatures".to_owned(), own.into());
    let parsed = keys.iter().filter_map(|(id, key)| Some((id.clone(), Base64::parse(key).ok()?)));
    let keys = PublicKeyMap::from([(server.to_string(), parsed.collect())]);
    verify_json(&keys, &object).map_err(|error| error.to_string())
}

/// The contents of a document that `server` is said to have published, if it is signed with one of
/// the keys in it.
pub(super) fn verified(
    server: &ServerName,
    object: CanonicalJsonObject,
    now_ms: u64,
) -> Result<PeerKeys, String> {
    let text = serde_json::to_string(&object).map_err(|error| error.to_string())?;
    if text.len() > limits::PEER_KEYS_BYTES {
        return Err("it is too large".to_owned());
    }
    let document: Document = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    if document.server_name != *server {
        return Err("it belongs to another homeserver".to_owned());
    }
    let is_key = |id: &str, key: &str| {
        let is_ours = ServerSigningKeyId::parse(id).is_ok() && id.starts_with("ed25519:");
        is_ours && Base64::<Standard>::parse(key).is_ok_and(|key| key.as_bytes().len() == 32)
    };
    let keys = document.verify_keys.into_iter().map(|(id, Key { key })| (id, key));
    let keys: BTreeMap<_, _> = keys.filter(|(id, key)| is_key(id, key)).collect();
    let old = document
        .old_verify_keys
        .into_iter()
        .map(|(id, Old { key, expired_ts })| (id, OldKey { key, expired_ms: expired_ts }));
    let old: BTreeMap<_, _> = old.filter(|(id, old)| is_key(id, &old.key)).collect();
    if keys.is_empty() || keys.len().max(old.len()) > limits::PEER_OLD_KEYS {
        return Err("it has no keys, or too many".to_owned());
    }
    has_signature(&object, server, &keys)?;
    let longest = now_ms.saturating_add(millis(limits::PEER_KEYS_LIFETIME));
    Ok(PeerKeys {
        server_name: document.server_name,
        keys,
        old,
        valid_until_ms: document.valid_until_ts.min(longest),
        document: RawValue::from_string(text).map_err(|error| error.to_string())?,
    })
}

#[cfg(test)]
mod tests {
    use ruma::signatures::{Ed25519KeyPair, sign_json};

    use super::*;
    use logcabin_record::Offset;

    fn pair(version: &str) -> Ed25519KeyPair {
        Ed25519KeyPair::from_der(&Ed25519KeyPair::generate(), version.to_owned()).unwrap()
    }

    fn document(server: &str, pair: &Ed25519KeyPair, until: u64) -> CanonicalJsonObject {
        let key = Base64::<Standard>::new(pair.public_key().to_vec()).encode();
        let id = format!("ed25519:{}", pair.version());
        let document = json!({
            "server_name": server,
            "verify_keys": { id: { "key": key } },
            "old_verify_keys": { "ed25519:0ld": { "key": key, "expired_ts": 5 } },
            "valid_until_ts": until,
        });
        let mut object = serde_json::from_value(document).unwrap();
        sign_json(server, pair, &mut object).unwrap();
        object
    }

    fn server(name: &str) -> &ServerName {
        name.try_into().unwrap()
    }

    #[test]
    fn keys_are_learned_from_a_document_that_is_signed_with_one_of_them() {
        let pair = pair("a");
        let document = document("a.example", &pair, 1_000);
        let learned = verified(server("a.example"), document.clone(), 10).unwrap();
        assert_eq!(learned.keys.keys().collect::<Vec<_>>(), ["ed25519:a"]);
        assert_eq!(learned.old["ed25519:0ld"].expired_ms, 5);
        assert_eq!(learned.valid_until_ms, 1_000);
        // A notary has added its signature.
        let mut vouched = document;
        sign_json("notary.example", &self::pair("n"), &mut vouched).unwrap();
        verified(server("a.example"), vouched, 10).unwrap();
    }

    #[test]
    fn nothing_is_learned_from_a_document_that_somebody_else_made() {
        let pair = pair("a");
        let good = document("a.example", &pair, 1_000);
        assert!(verified(server("b.example"), good.clone(), 10).is_err());
        let mut unsigned = good.clone();
        unsigned.remove("signatures");
        assert!(verified(server("a.example"), unsigned, 10).is_err());
        let mut changed = good.clone();
        changed.insert("valid_until_ts".to_owned(), CanonicalJsonValue::Integer(2_000.into()));
        assert!(verified(server("a.example"), changed, 10).is_err());
        let mut by_another = good;
        by_another.remove("signatures");
        sign_json("a.example", &self::pair("b"), &mut by_another).unwrap();
        assert!(verified(server("a.example"), by_another, 10).is_err());
    }

    #[test]
    fn keys_are_believed_for_seven_days_at_most() {
        let pair = pair("a");
        let learned =
            verified(server("a.example"), document("a.example", &pair, u64::MAX / 4096), 7);
        assert_eq!(learned.unwrap().valid_until_ms, 7 + 7 * 86_400_000);
    }

    #[test]
    fn a_key_signs_requests_while_it_is_valid() {
        let known = KeySet::from(HomeserverKeys {
            record: Offset::new(1),
            keys: BTreeMap::from([("ed25519:a".to_owned(), "k".to_owned())]),
            old: BTreeMap::from([(
                "ed25519:b".to_owned(),
                OldKey { key: "o".to_owned(), expired_ms: 100 },
            )]),
            valid_until_ms: 50,
        });
        assert_eq!(known.for_request("ed25519:a", 49), Some("k"));
        assert_eq!(known.for_request("ed25519:a", 50), None);
        assert_eq!(known.for_request("ed25519:b", 49), None);
    }
}
