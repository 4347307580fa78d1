//! OAuth 2.0: clients, what users granted them, requests under way, and the browsers in which users
//! are signed in at this server's pages.
//!
//! Codes and requests that have expired are forgotten with the next record about any of this whose
//! time is after their expiry, and with the next `log.erase`. The records of removed clients and of
//! forgotten device requests are superseded. A `log.erase` that names the record of a device
//! request forgets it, too.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use parking_lot::RwLock;
use ruma::{OwnedDeviceId, OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::{accounts::IssuedTokens, serializers};
use logcabin_base::limits;
use logcabin_record::{
    Offset,
    client::ClientMetadata,
    command::{
        BrowserSignIn, OauthClient, OauthCode, OauthDeviceAnswer, OauthDeviceRequest, OauthGrant,
        OauthKey, OauthRefresh, SignedInBy, TokenHash, Tokens,
    },
    scope::Scope,
};

/// A client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// The hash of its secret, if it has one.
    pub secret: Option<TokenHash>,
    #[serde(with = "serializers::json")]
    pub metadata: ClientMetadata,
    /// The record with these.
    pub record: Offset,
    /// When it was registered, or when its last grant ended, in milliseconds since the Unix epoch.
    pub idle_ms: u64,
}

/// An authorization code that was not used yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code {
    pub user_id: OwnedUserId,
    pub client_id: String,
    /// What it was allowed.
    pub scope: String,
    /// The address to which the code was sent.
    pub redirect_uri: String,
    /// The challenge that its verifier must meet.
    pub code_challenge: String,
    /// The client's nonce.
    pub nonce: Option<String>,
    /// When the user last proved who they are, in milliseconds since the Unix epoch.
    pub auth_ms: u64,
    /// When it expires, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

/// A device authorization.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRequest {
    /// The hash of the code that the client asks with.
    pub device_code: TokenHash,
    /// The hash of the code that the user types.
    pub user_code: TokenHash,
    pub client_id: String,
    /// What it asks for.
    pub scope: String,
    /// When it expires, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
    /// The user's answer.
    pub answer: Option<Answer>,
    /// The record of the request.
    pub record: Offset,
}

/// A user's answer to a device authorization.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub user_id: OwnedUserId,
    /// Whether they allowed it.
    pub allowed: bool,
    /// When the user last proved who they are, in milliseconds since the Unix epoch.
    pub auth_ms: u64,
}

/// What a user granted a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grant {
    pub grant_id: String,
    pub user_id: OwnedUserId,
    pub client_id: String,
    /// What the client may do.
    pub scope: String,
    /// The device that it logged in.
    pub device_id: Option<OwnedDeviceId>,
    /// The session of that device; without a device, the record of the grant.
    pub session: Offset,
    /// When it was granted, in milliseconds since the Unix epoch.
    pub granted_ms: u64,
    /// When the user had proved who they are, in milliseconds since the Unix epoch.
    pub auth_ms: u64,
    /// The hash of the code that was exchanged for it.
    pub code: TokenHash,
    /// The challenge of that code, if it had one.
    pub code_challenge: Option<String>,
    /// The valid tokens, if there is no device.
    tokens: Option<IssuedTokens>,
    /// Refreshed tokens that have not been used yet, if there is no device.
    unconfirmed: Option<IssuedTokens>,
}

impl Grant {
    /// What the client may do.
    pub fn scope(&self) -> Scope {
        Scope::recorded(&self.scope)
    }
}

/// What a token of a grant without a device is valid for.
#[derive(Clone, Debug)]
pub struct GrantUse {
    pub grant: Grant,
    /// When the access token expires.
    pub expires_ms: Option<u64>,
    /// When the token was issued.
    pub issued_ms: u64,
    /// Whether this is the first use of refreshed tokens, which must be recorded.
    pub unconfirmed: bool,
}

/// A key for ID tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Its id.
    pub kid: String,
    /// The modulus of the RSA key, in URL-safe base64.
    pub n: String,
    /// Its exponent.
    pub e: String,
    /// Until when clients are told of it, in milliseconds since the Unix epoch.
    pub until_ms: u64,
}

/// A browser in which a user is signed in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Browser {
    pub user_id: OwnedUserId,
    /// How they proved who they are.
    pub by: SignedInBy,
    /// When, in milliseconds since the Unix epoch.
    pub auth_ms: u64,
    /// When they have to do so again, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
    /// From where.
    pub address: Option<IpAddr>,
    /// What the browser calls itself.
    pub agent: Option<String>,
}

/// All of it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Oauth(#[serde(with = "serializers::locked")] RwLock<Inner>);

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "Written")]
struct Inner {
    pub clients: BTreeMap<String, Client>,
    codes: BTreeMap<TokenHash, Code>,
    requests: BTreeMap<TokenHash, DeviceRequest>,
    grants: BTreeMap<String, Grant>,
    keys: Vec<Key>,
    browsers: BTreeMap<TokenHash, Browser>,
    /// Until when users allow their cross-signing keys to be replaced.
    resets: BTreeMap<OwnedUserId, u64>,
    #[serde(skip)]
    index: Index,
}

/// What can be derived from the rest.
#[derive(Debug, Default)]
struct Index {
    /// Clients without a grant, by the time since which they have none.
    idle: BTreeSet<(u64, String)>,
    /// How many grants each client has.
    in_use: BTreeMap<String, usize>,
    /// Codes and requests by their expiry.
    ends: BTreeSet<(u64, TokenHash)>,
    by_user_code: BTreeMap<TokenHash, TokenHash>,
    by_code: BTreeMap<TokenHash, String>,
    by_session: BTreeMap<Offset, String>,
    by_token: BTreeMap<TokenHash, String>,
    by_user: BTreeMap<OwnedUserId, BTreeSet<String>>,
    browsers: BTreeMap<OwnedUserId, BTreeSet<TokenHash>>,
}

#[derive(Deserialize)]
struct Written {
    clients: BTreeMap<String, Client>,
    codes: BTreeMap<TokenHash, Code>,
    requests: BTreeMap<TokenHash, DeviceRequest>,
    grants: BTreeMap<String, Grant>,
    keys: Vec<Key>,
    browsers: BTreeMap<TokenHash, Browser>,
    resets: BTreeMap<OwnedUserId, u64>,
}

impl From<Written> for Inner {
    fn from(written: Written) -> Self {
        let Written { clients, codes, requests, grants, keys, browsers, resets } = written;
        let mut index = Index::default();
        for grant in grants.values() {
            index.add_grant(grant);
        }
        for (client_id, client) in &clients {
            if !index.in_use.contains_key(client_id) {
                index.idle.insert((client.idle_ms, client_id.clone()));
            }
        }
        index.ends.extend(codes.iter().map(|(hash, code)| (code.expires_ms, *hash)));
        index.ends.extend(requests.iter().map(|(hash, request)| (request.expires_ms, *hash)));
        index.by_user_code.extend(requests.iter().map(|(hash, of)| (of.user_code, *hash)));
        for (hash, browser) in &browsers {
            index.browsers.entry(browser.user_id.clone()).or_default().insert(*hash);
        }
        Self { clients, codes, requests, grants, keys, browsers, resets, index }
    }
}

impl Index {
    fn add_grant(&mut self, grant: &Grant) {
        let id = &grant.grant_id;
        *self.in_use.entry(grant.client_id.clone()).or_default() += 1;
        self.by_code.insert(grant.code, id.clone());
        self.by_session.insert(grant.session, id.clone());
        self.by_user.entry(grant.user_id.clone()).or_default().insert(id.clone());
        for issued in [&grant.tokens, &grant.unconfirmed].into_iter().flatten() {
            self.add_tokens(&issued.tokens, id);
        }
    }

    fn add_tokens(&mut self, tokens: &Tokens, grant_id: &str) {
        for token in [Some(tokens.access), tokens.refresh].into_iter().flatten() {
            self.by_token.insert(token, grant_id.to_owned());
        }
    }

    fn remove_tokens(&mut self, tokens: &Tokens) {
        for token in [Some(tokens.access), tokens.refresh].into_iter().flatten() {
            self.by_token.remove(&token);
        }
    }
}

impl Oauth {
    /// The client with this id.
    pub fn client(&self, client_id: &str) -> Option<Client> {
        self.0.read().clients.get(client_id).cloned()
    }

    /// Whether anything was granted to this client.
    pub fn is_in_use(&self, client_id: &str) -> bool {
        self.0.read().index.in_use.contains_key(client_id)
    }

    #[cfg(test)]
    fn client_count(&self) -> usize {
        self.0.read().clients.len()
    }

    /// How many clients have no grant.
    pub fn idle_count(&self) -> usize {
        self.0.read().index.idle.len()
    }

    /// Up to `limit` clients that have had no grant since `until_ms` or earlier, the longest idle
    /// first.
    pub fn idle(&self, until_ms: u64, limit: usize) -> Vec<String> {
        let inner = self.0.read();
        let idle = inner.index.idle.iter().take_while(|(since_ms, _)| *since_ms <= until_ms);
        idle.take(limit).map(|(_, client_id)| client_id.clone()).collect()
    }

    /// The code with this hash, unless it has expired at `now_ms` or was used.
    pub fn code(&self, code: &TokenHash, now_ms: u64) -> Option<Code> {
        let inner = self.0.read();
        inner.codes.get(code).filter(|code| code.expires_ms > now_ms).cloned()
    }

    /// How many codes of this user were not used yet and have not expired at `now_ms`.
    pub fn codes_of(&self, user_id: &UserId, now_ms: u64) -> usize {
        let inner = self.0.read();
        let valid = |code: &&Code| code.user_id == user_id && code.expires_ms > now_ms;
        inner.codes.values().filter(valid).count()
    }

    /// The device authorization with this code of the client's. It may have expired.
    pub fn request(&self, device_code: &TokenHash) -> Option<DeviceRequest> {
        self.0.read().requests.get(device_code).cloned()
    }

    /// The device authorization with this code of the user's, unless it has expired at `now_ms`.
    pub fn request_for_user(&self, user_code: &TokenHash, now_ms: u64) -> Option<DeviceRequest> {
        let inner = self.0.read();
        let request = inner.requests.get(inner.index.by_user_code.get(user_code)?);
        request.filter(|request| request.expires_ms > now_ms).cloned()
    }

    /// The grant with this id.
    pub fn grant(&self, grant_id: &str) -> Option<Grant> {
        self.0.read().grants.get(grant_id).cloned()
    }

    /// The grant of a session; `None` for one that did not begin by OAuth.
    pub fn grant_of_session(&self, session: Offset) -> Option<Grant> {
        let inner = self.0.read();
        inner.grants.get(inner.index.by_session.get(&session)?).cloned()
    }

    /// The grant that this code was exchanged for.
    pub fn grant_of_code(&self, code: &TokenHash) -> Option<Grant> {
        let inner = self.0.read();
        inner.grants.get(inner.index.by_code.get(code)?).cloned()
    }

    /// The grants of a user, the oldest first.
    pub fn grants_of(&self, user_id: &UserId) -> Vec<Grant> {
        let inner = self.0.read();
        let ids = inner.index.by_user.get(user_id).into_iter().flatten();
        let mut grants: Vec<_> = ids.filter_map(|id| inner.grants.get(id).cloned()).collect();
        grants.sort_unstable_by_key(|grant| grant.session);
        grants
    }

    /// What this access token of a grant without a device is valid for.
    pub fn access_token(&self, token: &TokenHash) -> Option<GrantUse> {
        self.token_use(token, |tokens| tokens.access == *token)
    }

    /// What this refresh token of a grant without a device is valid for.
    pub fn refresh_token(&self, token: &TokenHash) -> Option<GrantUse> {
        self.token_use(token, |tokens| tokens.refresh.as_ref() == Some(token))
    }

    fn token_use(&self, token: &TokenHash, is: impl Fn(&Tokens) -> bool) -> Option<GrantUse> {
        let inner = self.0.read();
        let grant = inner.grants.get(inner.index.by_token.get(token)?)?;
        let current = grant.tokens.as_ref().filter(|issued| is(&issued.tokens));
        let (issued, unconfirmed) = match current {
            Some(issued) => (issued, false),
            None => (grant.unconfirmed.as_ref().filter(|issued| is(&issued.tokens))?, true),
        };
        let (expires_ms, issued_ms) = (issued.tokens.expires_ms, issued.issued_ms);
        Some(GrantUse { grant: grant.clone(), expires_ms, issued_ms, unconfirmed })
    }

    /// The refreshed tokens of a grant without a device that have not been used yet.
    pub fn unconfirmed(&self, grant_id: &str) -> Option<Tokens> {
        let inner = self.0.read();
        Some(inner.grants.get(grant_id)?.unconfirmed.as_ref()?.tokens.clone())
    }

    /// The keys for ID tokens of which clients are told at `now_ms`, the newest last.
    pub fn keys(&self, now_ms: u64) -> Vec<Key> {
        self.0.read().keys.iter().filter(|key| key.until_ms > now_ms).cloned().collect()
    }

    /// The browser with this hash of its cookie, unless its sign-in has expired at `now_ms`.
    pub fn browser(&self, browser: &TokenHash, now_ms: u64) -> Option<Browser> {
        let inner = self.0.read();
        inner.browsers.get(browser).filter(|browser| browser.expires_ms > now_ms).cloned()
    }

    /// The browsers in which a user signed in, the oldest first. Some may have expired.
    pub fn browsers_of(&self, user_id: &UserId) -> Vec<(TokenHash, Browser)> {
        let inner = self.0.read();
        let hashes = inner.index.browsers.get(user_id).into_iter().flatten();
        let browsers = hashes.filter_map(|hash| Some((*hash, inner.browsers.get(hash)?.clone())));
        let mut browsers: Vec<_> = browsers.collect();
        browsers.sort_unstable_by_key(|(hash, browser)| (browser.auth_ms, *hash));
        browsers
    }

    /// Whether the user allows their cross-signing keys to be replaced at `now_ms`.
    pub fn may_reset(&self, user_id: &UserId, now_ms: u64) -> bool {
        self.0.read().resets.get(user_id).is_some_and(|until_ms| *until_ms > now_ms)
    }

    /// Returns the superseded records, as do most of the following methods.
    pub(super) fn register(&self, offset: Offset, time_ms: u64, body: OauthClient) -> Vec<Offset> {
        let inner = &mut *self.0.write();
        let mut gone = inner.forget_ended(time_ms);
        let OauthClient { client_id, client_secret: secret, metadata } = body;
        let client = Client { secret, metadata, record: offset, idle_ms: time_ms };
        if let Some(before) = inner.clients.insert(client_id.clone(), client) {
            gone.push(before.record);
            inner.index.idle.remove(&(before.idle_ms, client_id.clone()));
        }
        if !inner.index.in_use.contains_key(&client_id) {
            inner.index.idle.insert((time_ms, client_id));
        }
        gone
    }

    pub(super) fn remove_clients(&self, time_ms: u64, clients: &[String]) -> Vec<Offset> {
        let inner = &mut *self.0.write();
        let mut gone = inner.forget_ended(time_ms);
        for client_id in clients {
            // It was granted something while its removal was decided.
            if inner.index.in_use.contains_key(client_id) {
                continue;
            }
            if let Some(client) = inner.clients.remove(client_id) {
                gone.push(client.record);
                inner.index.idle.remove(&(client.idle_ms, client_id.clone()));
            }
        }
        gone
    }

    pub(super) fn add_code(&self, time_ms: u64, body: OauthCode) -> Vec<Offset> {
        let inner = &mut *self.0.write();
        let gone = inner.forget_ended(time_ms);
        let OauthCode { user_id, client_id, scope, code: hash, redirect_uri, .. } = body;
        let OauthCode { code_challenge, nonce, auth_ms, expires_ms, .. } = body;
        inner.index.ends.insert((expires_ms, hash));
        let code = Code {
            user_id,
            client_id,
            scope,
            redirect_uri,
            code_challenge,
            nonce,
            auth_ms,
            expires_ms,
        };
        inner.codes.insert(hash, code);
        gone
    }

    pub(super) fn ask(
        &self,
        offset: Offset,
        time_ms: u64,
        body: OauthDeviceRequest,
    ) -> Vec<Offset> {
        let inner = &mut *self.0.write();
        let mut gone = inner.forget_ended(time_ms);
        gone.extend(inner.remove_request(&body.device_code));
        while inner.requests.len() >= limits::OAUTH_DEVICE_REQUESTS {
            let first = inner.index.ends.iter().find(|(_, of)| inner.requests.contains_key(of));
            let Some((_, first)) = first.copied() else { break };
            gone.extend(inner.remove_request(&first));
        }
        let OauthDeviceRequest { device_code, user_code, client_id, scope, expires_ms } = body;
        inner.index.ends.insert((expires_ms, device_code));
        inner.index.by_user_code.insert(user_code, device_code);
        let (answer, record) = (None, offset);
        let request =
            DeviceRequest { device_code, user_code, client_id, scope, expires_ms, answer, record };
        inner.requests.insert(device_code, request);
        gone
    }

    pub(super) fn answer(&self, time_ms: u64, body: OauthDeviceAnswer) -> Vec<Offset> {
        let inner = &mut *self.0.write();
        let OauthDeviceAnswer { user_id, device_code, allowed, auth_ms } = body;
        if let Some(request) = inner.requests.get_mut(&device_code) {
            request.answer = Some(Answer { user_id, allowed, auth_ms });
        }
        inner.forget_ended(time_ms)
    }

    /// `session` is that of the device, or the record of a grant without one.
    pub(super) fn give(
        &self,
        session: Offset,
        granted_ms: u64,
        time_ms: u64,
        body: OauthGrant,
    ) -> Vec<Offset> {
        let inner = &mut *self.0.write();
        let mut gone: Vec<_> = inner.remove_request(&body.code).into_iter().collect();
        let code = inner.remove_code(&body.code);
        gone.extend(inner.forget_ended(time_ms));
        inner.end(&body.grant_id, time_ms);
        let OauthGrant { grant_id, user_id, client_id, scope, device_id, tokens, .. } = body;
        let grant = Grant {
            grant_id: grant_id.clone(),
            user_id,
            client_id,
            scope,
            device_id,
            session,
            granted_ms,
            auth_ms: body.auth_ms,
            code: body.code,
            code_challenge: code.map(|code| code.code_challenge),
            tokens: tokens.map(|tokens| IssuedTokens { tokens, issued_ms: time_ms }),
            unconfirmed: None,
        };
        inner.index.add_grant(&grant);
        if let Some(client) = inner.clients.get(&grant.client_id) {
            inner.index.idle.remove(&(client.idle_ms, grant.client_id.clone()));
        }
        inner.grants.insert(grant_id, grant);
        gone
    }

    pub(super) fn refresh(&self, time_ms: u64, body: OauthRefresh) -> Vec<Offset> {
        let inner = &mut *self.0.write();
        let gone = inner.forget_ended(time_ms);
        let OauthRefresh { grant_id, tokens } = body;
        let Some(grant) = inner.grants.get_mut(&grant_id) else { return gone };
        let given = IssuedTokens { tokens: tokens.clone(), issued_ms: time_ms };
        // The same tokens may get a new expiry.
        if let Some(replaced) = grant.unconfirmed.replace(given) {
            inner.index.remove_tokens(&replaced.tokens);
        }
        inner.index.add_tokens(&tokens, &grant_id);
        gone
    }

    pub(super) fn confirm(&self, time_ms: u64, grant_id: &str) -> Vec<Offset> {
        let inner = &mut *self.0.write();
        let gone = inner.forget_ended(time_ms);
        let Some(grant) = inner.grants.get_mut(grant_id) else { return gone };
        if let Some(confirmed) = grant.unconfirmed.take()
            && let Some(replaced) = grant.tokens.replace(confirmed)
        {
            inner.index.remove_tokens(&replaced.tokens);
        }
        gone
    }

    pub(super) fn end(&self, time_ms: u64, grants: &[String]) -> Vec<Offset> {
        let inner = &mut *self.0.write();
        for grant_id in grants {
            inner.end(grant_id, time_ms);
        }
        inner.forget_ended(time_ms)
    }

    /// A session ended, and with it its grant, if it has one.
    pub(super) fn end_session(&self, time_ms: u64, session: Offset) {
        let inner = &mut *self.0.write();
        if let Some(grant_id) = inner.index.by_session.get(&session).cloned() {
            inner.end(&grant_id, time_ms);
        }
    }

    pub(super) fn add_key(&self, time_ms: u64, body: OauthKey) -> Vec<Offset> {
        let inner = &mut *self.0.write();
        let OauthKey { kid, n, e, until_ms } = body;
        inner.keys.retain(|key| key.until_ms > time_ms && key.kid != kid);
        inner.keys.push(Key { kid, n, e, until_ms });
        inner.forget_ended(time_ms)
    }

    pub(super) fn sign_in(&self, time_ms: u64, body: BrowserSignIn) {
        let inner = &mut *self.0.write();
        let BrowserSignIn { user_id, browser: hash, by, expires_ms, address, agent } = body;
        let of_user = inner.index.browsers.entry(user_id.clone()).or_default();
        of_user.retain(|hash| {
            let is_over = |browser: &Browser| browser.expires_ms <= time_ms;
            let over = inner.browsers.get(hash).is_none_or(is_over);
            if over {
                inner.browsers.remove(hash);
            }
            !over
        });
        of_user.insert(hash);
        let browser = Browser { user_id, by, auth_ms: time_ms, expires_ms, address, agent };
        inner.browsers.insert(hash, browser);
    }

    pub(super) fn sign_out(&self, user_id: &UserId, browsers: &[TokenHash]) {
        let inner = &mut *self.0.write();
        let Some(of_user) = inner.index.browsers.get_mut(user_id) else { return };
        for hash in browsers {
            if of_user.remove(hash) {
                inner.browsers.remove(hash);
            }
        }
        if of_user.is_empty() {
            inner.index.browsers.remove(user_id);
        }
    }

    /// The user is signed out of all browsers.
    pub(super) fn sign_out_everywhere(&self, user_id: &UserId) {
        let inner = &mut *self.0.write();
        for hash in inner.index.browsers.remove(user_id).unwrap_or_default() {
            inner.browsers.remove(&hash);
        }
    }

    /// Nothing is left of what a user granted, and of their requests. (Grants with a device end
    /// with that.)
    pub(super) fn forget_user(&self, time_ms: u64, user_id: &UserId) -> Vec<Offset> {
        self.sign_out_everywhere(user_id);
        let inner = &mut *self.0.write();
        for grant_id in inner.index.by_user.get(user_id).cloned().unwrap_or_default() {
            inner.end(&grant_id, time_ms);
        }
        inner.resets.remove(user_id);
        let Inner { codes, index, .. } = inner;
        codes.retain(|hash, code| {
            let stays = code.user_id != user_id;
            if !stays {
                index.ends.remove(&(code.expires_ms, *hash));
            }
            stays
        });
        let is_theirs = |request: &&DeviceRequest| {
            request.answer.as_ref().is_some_and(|answer| answer.user_id == user_id)
        };
        let requests = inner.requests.values().filter(is_theirs);
        let requests: Vec<_> = requests.map(|request| request.device_code).collect();
        requests.iter().filter_map(|request| inner.remove_request(request)).collect()
    }

    pub(super) fn permit_reset(&self, user_id: OwnedUserId, until_ms: u64) {
        self.0.write().resets.insert(user_id, until_ms);
    }

    pub(super) fn use_reset(&self, user_id: &UserId) {
        self.0.write().resets.remove(user_id);
    }

    /// Forgets what has expired at `time_ms`, and the requests in these records.
    pub(super) fn forget(&self, time_ms: u64, is_one: impl Fn(Offset) -> bool) -> Vec<Offset> {
        let inner = &mut *self.0.write();
        let named = inner.requests.values().filter(|request| is_one(request.record));
        let named: Vec<_> = named.map(|request| request.device_code).collect();
        let mut gone: Vec<_> =
            named.iter().filter_map(|request| inner.remove_request(request)).collect();
        gone.extend(inner.forget_ended(time_ms));
        gone
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}

impl Inner {
    fn remove_code(&mut self, code: &TokenHash) -> Option<Code> {
        let removed = self.codes.remove(code)?;
        self.index.ends.remove(&(removed.expires_ms, *code));
        Some(removed)
    }

    /// Returns the record of the request.
    fn remove_request(&mut self, device_code: &TokenHash) -> Option<Offset> {
        let removed = self.requests.remove(device_code)?;
        self.index.ends.remove(&(removed.expires_ms, *device_code));
        if self.index.by_user_code.get(&removed.user_code) == Some(device_code) {
            self.index.by_user_code.remove(&removed.user_code);
        }
        Some(removed.record)
    }

    fn end(&mut self, grant_id: &str, time_ms: u64) {
        let Some(grant) = self.grants.remove(grant_id) else { return };
        let index = &mut self.index;
        index.by_code.remove(&grant.code);
        if index.by_session.get(&grant.session).is_some_and(|of| of == grant_id) {
            index.by_session.remove(&grant.session);
        }
        for issued in [&grant.tokens, &grant.unconfirmed].into_iter().flatten() {
            index.remove_tokens(&issued.tokens);
        }
        if let Some(of_user) = index.by_user.get_mut(&grant.user_id) {
            of_user.remove(grant_id);
            if of_user.is_empty() {
                index.by_user.remove(&grant.user_id);
            }
        }
        let left = index.in_use.get_mut(&grant.client_id).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            index.in_use.remove(&grant.client_id);
            if let Some(client) = self.clients.get_mut(&grant.client_id) {
                client.idle_ms = time_ms;
                index.idle.insert((time_ms, grant.client_id));
            }
        }
    }

    /// Returns the records of the requests that are forgotten.
    fn forget_ended(&mut self, time_ms: u64) -> Vec<Offset> {
        let mut gone = Vec::new();
        while let Some((end_ms, hash)) = self.index.ends.first().copied() {
            if end_ms > time_ms {
                break;
            }
            self.remove_code(&hash);
            gone.extend(self.remove_request(&hash));
            self.index.ends.remove(&(end_ms, hash));
        }
        gone
    }
}

#[cfg(test)]
mod tests;
