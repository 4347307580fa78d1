//! OAuth 2.0: clients, what users allow them, tokens for it, and its end; and sign-ins at this
//! server's pages.

use ruma::{OwnedUserId, UserId};

use super::{
    Commit, Proposal, Refusal,
    account::{Login, may_have_a_session, no_account},
};
use logcabin_base::limits;
use logcabin_record::{
    Offset, Stream,
    command::{
        BrowserSignIn, BrowserSignOut, DeviceRemove, GrantEnd, KeysPermitReset, OauthClient,
        OauthClientRemove, OauthCode, OauthConfirm, OauthDeviceAnswer, OauthDeviceRequest,
        OauthEnd, OauthGrant, OauthKey, OauthRefresh, TokenHash, Tokens,
    },
};
use logcabin_state::oauth::Grant;

/// How many idle clients one record removes.
const CLIENTS_AT_ONCE: usize = 500;

fn no_client() -> Refusal {
    Refusal::NotFound("There is no such client.".to_owned())
}

/// Register a client.
#[derive(Clone, Debug)]
pub struct RegisterClient {
    pub client: OauthClient,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// How long a client may be without a grant, in milliseconds.
    pub idle_ms: u64,
}

impl Proposal for RegisterClient {
    /// Whether there was room for it.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::oauth_client(&self.client.client_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let oauth = &commit.env.state.oauth;
        if let Some(known) = oauth.client(&self.client.client_id) {
            // The same description, of which a hash is the id: it lasts long enough still, or is
            // in use.
            let lasts = known.idle_ms.saturating_add(self.idle_ms / 2) > self.now_ms;
            if lasts || oauth.is_in_use(&self.client.client_id) {
                return Ok(true);
            }
        } else if oauth.idle_count() >= limits::OAUTH_UNUSED_CLIENTS {
            return Ok(false);
        }
        commit.append(self.stream(), self.client.clone());
        Ok(true)
    }
}

/// Remove clients that have been without a grant for long.
#[derive(Clone, Debug)]
pub struct RemoveIdleClients {
    /// Since when, in milliseconds since the Unix epoch.
    pub until_ms: u64,
    /// How many may have no grant, for however long: of more than these, those go first that have
    /// had none for longest.
    pub most: usize,
}

impl Proposal for RemoveIdleClients {
    /// How many were removed.
    type Outcome = usize;

    fn stream(&self) -> Stream {
        Stream::oauth()
    }

    // No grant, which is decided on its user's stream, comes in between.
    fn is_exclusive(&self) -> bool {
        true
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<usize, Refusal> {
        let oauth = &commit.env.state.oauth;
        let over = oauth.idle_count().saturating_sub(self.most).min(CLIENTS_AT_ONCE);
        let mut clients = oauth.idle(self.until_ms, CLIENTS_AT_ONCE);
        if clients.len() < over {
            clients = oauth.idle(u64::MAX, over);
        }
        let count = clients.len();
        if count > 0 {
            commit.append(self.stream(), OauthClientRemove { clients });
        }
        Ok(count)
    }
}

/// Give a client a code, as the user allowed.
#[derive(Clone, Debug)]
pub struct IssueCode {
    pub code: OauthCode,
    /// Whether the client is one of the configuration, which need not be registered.
    pub configured: bool,
    /// The browser in which the user is signed in.
    pub browser: TokenHash,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

impl Proposal for IssueCode {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.code.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let user_id = &self.code.user_id;
        must_be_signed_in(commit, user_id, &self.browser, self.now_ms)?;
        let oauth = &commit.env.state.oauth;
        if !self.configured && oauth.client(&self.code.client_id).is_none() {
            return Err(no_client());
        }
        if oauth.codes_of(user_id, self.now_ms) >= limits::OAUTH_CODES {
            let why = "You have started too many logins: try again in a minute.";
            return Err(Refusal::OverQuota(why.to_owned()));
        }
        commit.append(self.stream(), self.code.clone());
        Ok(())
    }
}

/// Refuses a user who is no longer signed in with this browser.
fn must_be_signed_in(
    commit: &Commit<'_>,
    user_id: &UserId,
    browser: &TokenHash,
    now_ms: u64,
) -> Result<(), Refusal> {
    let state = &commit.env.state;
    may_have_a_session(state.accounts.standing(user_id).ok_or_else(no_account)?)?;
    let browser = state.oauth.browser(browser, now_ms);
    if browser.is_some_and(|browser| browser.user_id == user_id) {
        return Ok(());
    }
    Err(Refusal::Forbidden("You are no longer signed in.".to_owned()))
}

/// Begin a device authorization.
#[derive(Clone, Debug)]
pub struct RequestDevice {
    pub request: OauthDeviceRequest,
    /// Whether the client is one of the configuration.
    pub configured: bool,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

impl Proposal for RequestDevice {
    /// Whether the user's code is free: otherwise, there must be another one.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::oauth_device(&self.request.device_code)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let oauth = &commit.env.state.oauth;
        if !self.configured && oauth.client(&self.request.client_id).is_none() {
            return Err(no_client());
        }
        if oauth.request_for_user(&self.request.user_code, self.now_ms).is_some() {
            return Ok(false);
        }
        commit.append(self.stream(), self.request.clone());
        Ok(true)
    }
}

/// Allow or deny what a device authorization asks for.
#[derive(Clone, Debug)]
pub struct AnswerDevice {
    pub answer: OauthDeviceAnswer,
    /// The browser in which the user is signed in.
    pub browser: TokenHash,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

impl Proposal for AnswerDevice {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::oauth_device(&self.answer.device_code)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let user_id = &self.answer.user_id;
        commit.rests_on(Stream::user(user_id));
        must_be_signed_in(commit, user_id, &self.browser, self.now_ms)?;
        let request = commit.env.state.oauth.request(&self.answer.device_code);
        let waits = request
            .is_some_and(|request| request.expires_ms > self.now_ms && request.answer.is_none());
        if !waits {
            return Err(Refusal::NotFound("This code was used, or has expired.".to_owned()));
        }
        commit.append(self.stream(), self.answer.clone());
        Ok(())
    }
}

/// Exchange a code, of either kind, for tokens.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The login of the device, if there is one.
    pub login: Option<Login>,
    pub grant: OauthGrant,
    /// Whether the client is one of the configuration.
    pub configured: bool,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// The result of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchanged {
    /// The tokens are valid.
    Granted,
    /// The code was used before. What it was exchanged for has ended.
    Reused,
    /// There is no such code, or it has expired.
    Unknown,
}

impl Proposal for Exchange {
    type Outcome = Exchanged;

    fn stream(&self) -> Stream {
        Stream::user(&self.grant.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Exchanged, Refusal> {
        let OauthGrant { user_id, client_id, code, .. } = &self.grant;
        // A device authorization is answered and used on a stream of its own.
        commit.rests_on(Stream::oauth_device(code));
        // The client is not removed meanwhile, by another node.
        commit.rests_on(Stream::oauth());
        let oauth = &commit.env.state.oauth;
        if let Some(used) = oauth.grant_of_code(code) {
            end(commit, &used.user_id, vec![used.clone()], GrantEnd::CodeReused);
            return Ok(Exchanged::Reused);
        }
        let of_code = oauth.code(code, self.now_ms).is_some_and(|code| code.user_id == *user_id);
        let of_request = oauth.request(code).is_some_and(|request| {
            let allowed =
                request.answer.is_some_and(|answer| answer.allowed && answer.user_id == *user_id);
            allowed && request.expires_ms > self.now_ms
        });
        let known = self.configured || oauth.client(client_id).is_some();
        if !known || !of_code && !of_request {
            return Ok(Exchanged::Unknown);
        }
        match &self.login {
            Some(login) => login.decide(commit)?,
            None => {
                let standing = commit.env.state.accounts.standing(user_id);
                may_have_a_session(standing.ok_or_else(no_account)?)?;
                let mut grants = oauth.grants_of(user_id);
                grants.retain(|grant| grant.device_id.is_none());
                let over = (grants.len() + 1).saturating_sub(limits::OAUTH_GRANTS);
                grants.truncate(over);
                end(commit, user_id, grants, GrantEnd::LoggedOut);
            }
        }
        commit.append(self.stream(), self.grant.clone());
        Ok(Exchanged::Granted)
    }
}

/// Ends grants, with their devices.
fn end(commit: &mut Commit<'_>, user_id: &UserId, grants: Vec<Grant>, because: GrantEnd) {
    if grants.is_empty() {
        return;
    }
    let account = commit.env.state.accounts.get(user_id);
    let devices = grants.iter().filter_map(|grant| {
        let device_id = grant.device_id.as_ref()?;
        let account = account.as_ref()?.read();
        (account.device(device_id)?.session == grant.session).then(|| device_id.clone())
    });
    let devices: Vec<_> = devices.collect();
    let (user_id, stream) = (user_id.to_owned(), Stream::user(user_id));
    let grants = grants.into_iter().map(|grant| grant.grant_id).collect();
    commit.append(stream.clone(), OauthEnd { user_id: user_id.clone(), grants, because });
    if !devices.is_empty() {
        commit.append(stream, DeviceRemove { user_id, devices });
    }
}

/// Ends what a user has without a device, because they are logged out everywhere: grants, and
/// sign-ins of browsers.
pub(super) fn log_out(commit: &mut Commit<'_>, user_id: &UserId) {
    let oauth = &commit.env.state.oauth;
    let mut grants = oauth.grants_of(user_id);
    grants.retain(|grant| grant.device_id.is_none());
    let browsers: Vec<_> = oauth.browsers_of(user_id).into_iter().map(|(hash, _)| hash).collect();
    end(commit, user_id, grants, GrantEnd::LoggedOut);
    if !browsers.is_empty() {
        let user_id = user_id.to_owned();
        commit.append(Stream::user(&user_id), BrowserSignOut { user_id, browsers });
    }
}

/// End grants of a user, and log their devices out.
#[derive(Clone, Debug)]
pub struct EndGrants {
    pub user_id: OwnedUserId,
    /// The grants. Those of others, and those that have ended, are left out.
    pub grants: Vec<String>,
    /// The reason.
    pub because: GrantEnd,
}

impl Proposal for EndGrants {
    /// How many ended.
    type Outcome = usize;

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<usize, Refusal> {
        let mut grants = commit.env.state.oauth.grants_of(&self.user_id);
        grants.retain(|grant| self.grants.contains(&grant.grant_id));
        let count = grants.len();
        end(commit, &self.user_id, grants, self.because);
        Ok(count)
    }
}

/// Exchange the refresh token of a grant without a device for new tokens.
#[derive(Clone, Debug)]
pub struct RefreshGrant {
    pub user_id: OwnedUserId,
    pub grant_id: String,
    /// The refresh token that was presented.
    pub presented: TokenHash,
    /// The new tokens.
    pub tokens: Tokens,
    /// If the grant already has these tokens, their expiry is extended only if it is before this.
    pub good_enough_ms: Option<u64>,
}

impl Proposal for RefreshGrant {
    /// When the access token expires.
    type Outcome = Option<u64>;

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Option<u64>, Refusal> {
        let oauth = &commit.env.state.oauth;
        let token = oauth.refresh_token(&self.presented).ok_or(Refusal::UnknownToken)?;
        let standing = commit.env.state.accounts.standing(&self.user_id).unwrap_or_default();
        may_have_a_session(standing)?;
        let given = oauth.unconfirmed(&self.grant_id);
        if let Some(given) = given.filter(|given| given.same_as(&self.tokens))
            && given.expires_ms >= self.good_enough_ms
        {
            return Ok(given.expires_ms);
        }
        let grant_id = || self.grant_id.clone();
        if token.unconfirmed {
            // Presenting a new refresh token is a use of it: the tokens before it end.
            commit.append(self.stream(), OauthConfirm { grant_id: grant_id() });
        }
        let refresh = OauthRefresh { grant_id: grant_id(), tokens: self.tokens.clone() };
        commit.append(self.stream(), refresh);
        Ok(self.tokens.expires_ms)
    }
}

/// Record the first use of the refreshed tokens of a grant without a device.
#[derive(Clone, Debug)]
pub struct ConfirmGrant {
    pub user_id: OwnedUserId,
    pub grant_id: String,
    /// The access token that was used.
    pub used: TokenHash,
}

impl Proposal for ConfirmGrant {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let token = commit.env.state.oauth.access_token(&self.used);
        if token.ok_or(Refusal::UnknownToken)?.unconfirmed {
            commit.append(self.stream(), OauthConfirm { grant_id: self.grant_id.clone() });
        }
        Ok(())
    }
}

/// Tell clients of a key for ID tokens.
#[derive(Clone, Debug)]
pub struct AnnounceKey(pub OauthKey);

impl Proposal for AnnounceKey {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::oauth()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        commit.append(self.stream(), self.0.clone());
        Ok(())
    }
}

/// Sign a user in with a browser.
#[derive(Clone, Debug)]
pub struct SignIn {
    pub sign_in: BrowserSignIn,
    /// When the password was set that was verified. If it has been set since, the sign-in is
    /// refused.
    pub verified: Option<Offset>,
    /// The same browser's earlier sign-in, which ends.
    pub replaces: Option<TokenHash>,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

impl Proposal for SignIn {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.sign_in.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let user_id = &self.sign_in.user_id;
        let state = &commit.env.state;
        let account = state.accounts.get(user_id).ok_or_else(no_account)?;
        {
            let account = account.read();
            may_have_a_session(account.standing)?;
            if account.standing.guest {
                return Err(Refusal::Forbidden("Guests have no account to sign in to.".to_owned()));
            }
            if self.verified.is_some_and(|verified| verified != account.password.last_change()) {
                return Err(Refusal::Forbidden("Wrong user name or password.".to_owned()));
            }
        }
        let browsers = state.oauth.browsers_of(user_id).into_iter();
        let browsers = browsers.filter(|(_, browser)| browser.expires_ms > self.now_ms);
        let mut browsers: Vec<_> = browsers.map(|(hash, _)| hash).collect();
        let replaced = browsers.extract_if(.., |hash| Some(*hash) == self.replaces);
        let mut over: Vec<_> = replaced.collect();
        let most = limits::OAUTH_BROWSERS - 1;
        over.extend(browsers.drain(..browsers.len().saturating_sub(most)));
        if !over.is_empty() {
            let user_id = user_id.clone();
            commit.append(self.stream(), BrowserSignOut { user_id, browsers: over });
        }
        commit.append(self.stream(), self.sign_in.clone());
        Ok(())
    }
}

/// Sign a user out of browsers.
#[derive(Clone, Debug)]
pub struct SignOut {
    pub user_id: OwnedUserId,
    /// The browsers. Those of others are left out.
    pub browsers: Vec<TokenHash>,
}

impl Proposal for SignOut {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let own = commit.env.state.oauth.browsers_of(&self.user_id).into_iter();
        let own = own.map(|(hash, _)| hash).filter(|hash| self.browsers.contains(hash));
        let browsers: Vec<_> = own.collect();
        if !browsers.is_empty() {
            let user_id = self.user_id.clone();
            commit.append(self.stream(), BrowserSignOut { user_id, browsers });
        }
        Ok(())
    }
}

/// Allow the user's cross-signing keys to be replaced.
#[derive(Clone, Debug)]
pub struct PermitReset {
    pub user_id: OwnedUserId,
    /// Until when, in milliseconds since the Unix epoch.
    pub until_ms: u64,
}

impl Proposal for PermitReset {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let standing = commit.env.state.accounts.standing(&self.user_id).ok_or_else(no_account)?;
        may_have_a_session(standing)?;
        let Self { user_id, until_ms } = self.clone();
        commit.append(self.stream(), KeysPermitReset { user_id, until_ms });
        Ok(())
    }
}
