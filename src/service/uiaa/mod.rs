//! User-interactive authentication (client-server API, "User-Interactive Authentication API").
//!
//! One mechanism for every endpoint that asks for it. An endpoint makes an [`Offer`]: flows, each a
//! list of stages in order. A client opens a session with its first attempt and completes stage
//! after stage, in attempts at the same request or on a fallback page of the stage. [`Proof`] is
//! what a stage proves. The proofs are kept in the session and handed to the endpoint, once, when a
//! flow is complete.
//!
//! Sessions are in memory, limited in number and time: a client whose session is gone must start
//! over.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    net::IpAddr,
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use ruma::{
    OwnedUserId,
    api::client::uiaa::{AuthData, AuthType},
};
use serde_json::{Map, Value};
use tokio::sync::Mutex as AsyncMutex;

use logcabin_base::{clock::random_token, rate::network_prefix, tag::Tag};
use logcabin_decide::threepid::Validated;

mod captcha;
mod stages;
mod terms;
#[cfg(test)]
mod tests;

pub use self::{
    captcha::CaptchaError,
    stages::{Proof, QUESTION, Stages, answered},
};

/// The most sessions. Beyond this, the caller with the most sessions loses their oldest.
const SESSIONS: usize = 10_000;
/// The most sessions of one user, or of one address without a login: a school behind one address
/// may register a class.
const SESSIONS_OF_ONE: usize = 256;
/// How long a session lasts, in milliseconds: enough for a delayed mail.
const LIFETIME_MS: u64 = 60 * 60 * 1000;

/// Why a stage was not completed. It may be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("This is not asked for here.")]
    NotAskedFor,
    #[error("Other stages come before this one.")]
    OthersFirst,
    #[error("This cannot be done here.")]
    NotPossible,
    #[error("This session is over or is another request's.")]
    NoSession,
    #[error("This session has already been used.")]
    Served,
    #[error("Wrong user name or password.")]
    Password,
    #[error("This registration token is not valid.")]
    RegistrationToken,
    #[error("This address has not been confirmed yet.")]
    Unconfirmed,
    #[error("This is not an address of the account.")]
    OtherAddress,
    #[error("This is not the user who is to confirm something.")]
    OtherUser,
    #[error("The captcha is to be solved.")]
    NoCaptcha,
    #[error("The captcha was not solved.")]
    WrongCaptcha,
    #[error("The question is to be answered, in at most 4096 bytes.")]
    NoAnswer,
}

/// Why a stage was not completed.
#[derive(Debug)]
pub enum Failure<E> {
    /// The client may try again.
    Retry(Denied),
    /// The request fails.
    Final(E),
}

impl<E> From<E> for Failure<E> {
    fn from(error: E) -> Self {
        Self::Final(error)
    }
}

/// There is no such session.
#[derive(Debug, thiserror::Error)]
#[error("There is no such session, or it is over.")]
pub struct NoSuchSession;

/// What a client must still do before its request is carried out.
#[derive(Debug)]
pub struct Remaining {
    pub flows: Vec<Vec<AuthType>>,
    pub completed: Vec<AuthType>,
    /// The parameters of the stages, for the client.
    pub params: Map<String, Value>,
    /// The id of the session.
    pub session: String,
    /// Why the last attempt failed, if it did.
    pub denied: Option<Denied>,
}

/// Why a request is not carried out now.
#[derive(Debug)]
pub enum Unfinished<E> {
    Remaining(Remaining),
    Failed(E),
}

impl<E> From<Remaining> for Unfinished<E> {
    fn from(remaining: Remaining) -> Self {
        Self::Remaining(remaining)
    }
}

/// The ways to authenticate a request, and their parameters for clients.
#[derive(Debug, Default)]
pub struct Offer {
    /// Distinguishable: none is a prefix of another.
    flows: Vec<Vec<AuthType>>,
    params: Map<String, Value>,
}

impl Offer {
    /// An offer of these flows, with `params` by stage. A flow that is a prefix of another one gets
    /// the dummy stage at its end, by which a client says that it wants no further stages.
    pub fn new(flows: Vec<Vec<AuthType>>, params: Map<String, Value>) -> Self {
        Self { flows: told_apart(flows), params }
    }

    /// Whether there is no flow at all.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Whether any flow has this stage.
    pub(crate) fn has(&self, stage: &AuthType) -> bool {
        self.flows.iter().any(|flow| flow.contains(stage))
    }

    /// Whether `stage` is the next one of a flow that begins with `completed`.
    fn is_next(&self, completed: &[Completed], stage: &AuthType) -> bool {
        let follows = |flow: &Vec<AuthType>| {
            flow.get(completed.len()) == Some(stage) && begins(flow, completed)
        };
        self.flows.iter().any(follows)
    }

    fn is_complete(&self, completed: &[Completed]) -> bool {
        self.flows.iter().any(|flow| flow.len() == completed.len() && begins(flow, completed))
    }
}

fn begins(flow: &[AuthType], completed: &[Completed]) -> bool {
    completed.len() <= flow.len()
        && completed.iter().zip(flow).all(|(done, stage)| done.0 == *stage)
}

fn told_apart(flows: Vec<Vec<AuthType>>) -> Vec<Vec<AuthType>> {
    let mut apart: Vec<Vec<AuthType>> = Vec::new();
    for flow in flows {
        if !apart.contains(&flow) {
            apart.push(flow);
        }
    }
    let goes_on = |flow: &Vec<AuthType>, all: &[Vec<AuthType>]| {
        all.iter().any(|other| other.len() > flow.len() && other.starts_with(flow))
    };
    while let Some(at) = apart.iter().position(|flow| goes_on(flow, &apart)) {
        let mut short = apart.remove(at);
        if short.contains(&AuthType::Dummy) {
            // A stage is completed once. A continuation of this flow would never be asked for.
            apart.retain(|other| !other.starts_with(&short));
        } else {
            short.push(AuthType::Dummy);
        }
        if !apart.contains(&short) {
            apart.insert(at.min(apart.len()), short);
        }
    }
    apart
}

/// A completed stage, and its proof.
type Completed = (AuthType, Proof);

/// The owner of a session.
#[derive(Clone, Debug)]
pub struct RequestFacts {
    /// The user who makes the request, if known.
    pub user_id: Option<OwnedUserId>,
    /// Whether the request creates an account: an address that is validated for it then belongs to
    /// no account.
    pub registers: bool,
    /// The client's address.
    pub client: IpAddr,
}

/// A caller with at most [`SESSIONS_OF_ONE`] sessions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Owner {
    User(OwnedUserId),
    Household(IpAddr),
}

impl RequestFacts {
    fn owner(&self) -> Owner {
        match &self.user_id {
            Some(user_id) => Owner::User(user_id.clone()),
            None => Owner::Household(network_prefix(self.client)),
        }
    }
}

/// The requests that a session is valid for.
#[derive(Clone)]
pub enum Binding<'a> {
    /// The request with this body, by this user.
    Body(&'a Bytes),
    /// Any request to the endpoint: the session remembers the parameters of the latest attempt, so
    /// that the next one need not repeat them.
    Endpoint(Parameters),
}

/// Parameters of a request that a session remembers. They may include a password.
#[derive(Clone, Default)]
pub struct Parameters(pub Map<String, Value>);

impl fmt::Debug for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// An attempt at a request.
pub struct Attempt<'a> {
    /// The endpoint, by a name that includes its method and path parameters.
    pub endpoint: &'a str,
    /// The requests that its session is valid for.
    pub binding: Binding<'a>,
    pub auth: Option<&'a AuthData>,
    /// The offer for a new session; a session in progress keeps its own.
    pub offer: Arc<Offer>,
    /// Who makes it.
    pub facts: RequestFacts,
}

impl Attempt<'_> {
    fn purpose(&self) -> blake3::Hash {
        let (user, body) = match self.binding {
            Binding::Body(body) => (self.facts.user_id.as_ref(), without_auth(body)),
            Binding::Endpoint(_) => (None, Value::Null),
        };
        let user = user.map_or("", |user_id| user_id.as_str());
        let mut hasher = blake3::Hasher::new();
        for part in [self.endpoint, user, &body.to_string()] {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(part.as_bytes());
        }
        hasher.finalize()
    }

    fn parameters(&self) -> Parameters {
        match &self.binding {
            Binding::Body(_) => Parameters::default(),
            Binding::Endpoint(parameters) => parameters.clone(),
        }
    }
}

/// A body without `auth`, which differs between attempts, in a form that ignores the order of keys.
fn without_auth(body: &[u8]) -> Value {
    let mut body: Value = serde_json::from_slice(body).unwrap_or_default();
    if let Some(body) = body.as_object_mut() {
        body.remove("auth");
    }
    body
}

/// The sessions in progress.
#[derive(Debug, Default)]
pub struct Sessions {
    inner: Mutex<Inner>,
    tag: Tag,
}

#[derive(Debug, Default)]
struct Inner {
    sessions: HashMap<String, StoredSession>,
    /// Oldest first, by sequence number.
    order: BTreeMap<u64, String>,
    owners: HashMap<Owner, BTreeSet<u64>>,
    next: u64,
}

#[derive(Debug)]
struct StoredSession {
    number: u64,
    session: Arc<Session>,
}

/// A session.
#[derive(Debug)]
pub struct Session {
    id: String,
    purpose: blake3::Hash,
    offer: Arc<Offer>,
    facts: RequestFacts,
    begun_ms: u64,
    /// Held while a stage is being checked, so that concurrent attempts run one after the other.
    progress: AsyncMutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    completed: Vec<Completed>,
    /// The parameters of the latest attempt, if the session remembers them.
    parameters: Parameters,
    /// An attempt at a stage that is completed elsewhere, for example by a link in a mail, and was
    /// not completed yet. It is repeated when the client comes back with only the session.
    waiting: Option<AuthData>,
    /// A flow was completed and the request allowed, which happens once.
    over: bool,
}

/// The status of a stage in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageStatus {
    /// It is the next stage of a flow.
    Next,
    Completed,
    /// Other stages come first.
    Later,
    /// No flow has it.
    NotOffered,
}

/// An authenticated request: a flow is complete, with these proofs.
#[derive(Debug)]
pub struct Authenticated {
    session: Arc<Session>,
    completed: Vec<Completed>,
    parameters: Parameters,
}

impl Authenticated {
    /// The proofs of the stages, in order.
    pub fn proofs(&self) -> impl Iterator<Item = &Proof> {
        self.completed.iter().map(|(_, proof)| proof)
    }

    /// The user whose identity was proved, for requests without an access token.
    pub fn user_id(&self) -> Option<&OwnedUserId> {
        self.proofs().find_map(|proof| match proof {
            Proof::User(user_id) => Some(user_id),
            _ => None,
        })
    }

    pub fn address(&self) -> Option<&Validated> {
        self.proofs().find_map(|proof| match proof {
            Proof::Threepid(validated) => Some(validated),
            _ => None,
        })
    }
}

impl Session {
    fn new(attempt: &Attempt<'_>, now_ms: u64, tag: Tag) -> Arc<Self> {
        Arc::new(Self {
            id: tag.mark(random_token()),
            purpose: attempt.purpose(),
            offer: Arc::clone(&attempt.offer),
            facts: attempt.facts.clone(),
            begun_ms: now_ms,
            progress: AsyncMutex::new(Progress {
                parameters: attempt.parameters(),
                ..Progress::default()
            }),
        })
    }

    fn is_fresh(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.begun_ms) <= LIFETIME_MS
    }

    /// The owner.
    pub const fn facts(&self) -> &RequestFacts {
        &self.facts
    }

    /// The status of this stage.
    pub async fn standing(&self, stage: &AuthType) -> StageStatus {
        let completed = &self.progress.lock().await.completed;
        if completed.iter().any(|(done, _)| done == stage) {
            StageStatus::Completed
        } else if self.offer.is_next(completed, stage) {
            StageStatus::Next
        } else if self.offer.has(stage) {
            StageStatus::Later
        } else {
            StageStatus::NotOffered
        }
    }

    /// The stages that can come next on the way to this stage: itself, if it is next. None if it is
    /// completed or the client has chosen another flow.
    pub async fn before(&self, stage: &AuthType) -> Vec<AuthType> {
        let completed = &self.progress.lock().await.completed;
        let ahead = |flow: &&Vec<AuthType>| {
            begins(flow, completed) && flow[completed.len()..].contains(stage)
        };
        let mut next: Vec<AuthType> = Vec::new();
        for flow in self.offer.flows.iter().filter(ahead) {
            let first = &flow[completed.len()];
            if !next.contains(first) {
                next.push(first.clone());
            }
        }
        next
    }

    /// The stages that can come next: none if a flow is complete.
    pub async fn next_stages(&self) -> Vec<AuthType> {
        let completed = &self.progress.lock().await.completed;
        let mut next: Vec<AuthType> = Vec::new();
        for flow in self.offer.flows.iter().filter(|flow| begins(flow, completed)) {
            if let Some(stage) = flow.get(completed.len())
                && !next.contains(stage)
            {
                next.push(stage.clone());
            }
        }
        next
    }

    /// Whether this stage remains to be completed.
    pub async fn is_ahead(&self, stage: &AuthType) -> bool {
        !self.before(stage).await.is_empty()
    }

    /// Completes a stage if it is the next one and the check succeeds. A completed stage stays so,
    /// and is not checked again.
    async fn advance<E>(
        &self,
        progress: &mut Progress,
        stage: &AuthType,
        check: impl Future<Output = Result<Proof, Failure<E>>>,
    ) -> Result<(), Failure<E>> {
        if progress.completed.iter().any(|(done, _)| done == stage) {
            return Ok(());
        }
        if !self.offer.has(stage) {
            return Err(Failure::Retry(Denied::NotAskedFor));
        }
        if !self.offer.is_next(&progress.completed, stage) {
            return Err(Failure::Retry(Denied::OthersFirst));
        }
        let proof = check.await?;
        progress.completed.push((stage.clone(), proof));
        Ok(())
    }
}

/// The stage of an attempt, with its normalized type.
fn stage_of(auth: &AuthData) -> Option<AuthType> {
    auth.auth_type().map(|stage| AuthType::from(stage.as_str()))
}

impl Sessions {
    /// No sessions yet; the ids of those to come have this mark.
    pub fn tagged(tag: Tag) -> Self {
        Self { inner: Mutex::default(), tag }
    }

    /// Begins a session for a page that goes through its stages with a person; returns its id.
    pub fn begin(&self, attempt: &Attempt<'_>, now_ms: u64) -> String {
        let session = Session::new(attempt, now_ms, self.tag);
        self.inner.lock().keep(&session);
        session.id.clone()
    }

    /// Handles one attempt at a request. Ok means that a flow is complete and the request may be
    /// carried out, once. `check` checks the stage in `auth`, if it is due.
    ///
    /// # Errors
    /// The remaining stages, with the reason of a failure; or the error of `check`.
    pub async fn attempt<E>(
        &self,
        attempt: Attempt<'_>,
        now_ms: u64,
        check: impl Future<Output = Result<Proof, Failure<E>>>,
    ) -> Result<Authenticated, Unfinished<E>> {
        let begin_again = |denied| self.ask(&Session::new(&attempt, now_ms, self.tag), &[], denied);
        let Some(auth) = attempt.auth else {
            return Err(begin_again(None).into());
        };
        let session = match auth.session() {
            None => Session::new(&attempt, now_ms, self.tag),
            Some(id) => {
                let found = self.open(id, now_ms);
                let found = found.filter(|session| session.purpose == attempt.purpose());
                found.ok_or_else(|| begin_again(Some(Denied::NoSession)))?
            }
        };
        let mut progress = session.progress.lock().await;
        if progress.over {
            return Err(begin_again(Some(Denied::Served)).into());
        }
        progress.parameters = attempt.parameters();
        if let Some(stage) = stage_of(auth)
            && let Err(failure) = session.advance(&mut progress, &stage, check).await
        {
            return Err(match failure {
                Failure::Final(error) => Unfinished::Failed(error),
                Failure::Retry(denied) => {
                    if let Some(waiting) = stages::kept_for_repeat(auth) {
                        progress.waiting = Some(waiting);
                    }
                    self.ask(&session, &progress.completed, Some(denied)).into()
                }
            });
        }
        if !session.offer.is_complete(&progress.completed) {
            return Err(self.ask(&session, &progress.completed, None).into());
        }
        let Progress { completed, parameters, .. } =
            std::mem::replace(&mut *progress, Progress { over: true, ..Progress::default() });
        drop(progress);
        self.inner.lock().remove(&session.id);
        Ok(Authenticated { session, completed, parameters })
    }

    /// The session with this id, unless it is over.
    pub fn open(&self, id: &str, now_ms: u64) -> Option<Arc<Session>> {
        let inner = self.inner.lock();
        let session = &inner.sessions.get(id)?.session;
        session.is_fresh(now_ms).then(|| Arc::clone(session))
    }

    /// The parameters that the session with this id remembers: none if it is over.
    pub async fn parameters(&self, id: &str, now_ms: u64) -> Parameters {
        match self.open(id, now_ms) {
            Some(session) => session.progress.lock().await.parameters.clone(),
            None => Parameters::default(),
        }
    }

    /// The attempt that this session waits to repeat, and its owner: it is repeated for them,
    /// whoever comes with the id.
    pub async fn waiting(&self, id: &str, now_ms: u64) -> Option<(RequestFacts, AuthData)> {
        let session = self.open(id, now_ms)?;
        let waiting = session.progress.lock().await.waiting.clone()?;
        Some((session.facts.clone(), waiting))
    }

    /// Completes a stage outside of an attempt at the request: on a page, by a link in a mail, or
    /// after single sign-on. The client's next attempt finds it completed.
    ///
    /// # Errors
    /// When there is no such session, the stage is not due, or `check` fails.
    pub async fn complete<E: From<NoSuchSession>>(
        &self,
        id: &str,
        stage: &AuthType,
        now_ms: u64,
        check: impl Future<Output = Result<Proof, Failure<E>>>,
    ) -> Result<(), Failure<E>> {
        let gone = || Failure::Final(E::from(NoSuchSession));
        let session = self.open(id, now_ms).ok_or_else(gone)?;
        let mut progress = session.progress.lock().await;
        if progress.over {
            return Err(gone());
        }
        session.advance(&mut progress, stage, check).await
    }

    /// Reverts a stage of an allowed request, and the later ones: its proof turned out to be no
    /// longer valid.
    pub fn take_back(
        &self,
        authenticated: Authenticated,
        stage: &AuthType,
        denied: Denied,
    ) -> Remaining {
        let Authenticated { session, mut completed, parameters } = authenticated;
        if let Some(at) = completed.iter().position(|(done, _)| done == stage) {
            completed.truncate(at);
        }
        let again = Arc::new(Session {
            id: session.id.clone(),
            purpose: session.purpose,
            offer: Arc::clone(&session.offer),
            facts: session.facts.clone(),
            begun_ms: session.begun_ms,
            progress: AsyncMutex::new(Progress {
                completed: completed.clone(),
                parameters,
                ..Progress::default()
            }),
        });
        self.ask(&again, &completed, Some(denied))
    }

    /// What remains to be done. It keeps the session open.
    fn ask(
        &self,
        session: &Arc<Session>,
        completed: &[Completed],
        denied: Option<Denied>,
    ) -> Remaining {
        self.inner.lock().keep(session);
        Remaining {
            flows: session.offer.flows.clone(),
            completed: completed.iter().map(|(stage, _)| stage.clone()).collect(),
            params: session.offer.params.clone(),
            session: session.id.clone(),
            denied,
        }
    }
}

impl Inner {
    fn keep(&mut self, session: &Arc<Session>) {
        if self.sessions.contains_key(&session.id) {
            return;
        }
        // They are in the order of their creation.
        while let Some((_, oldest)) = self.order.first_key_value()
            && let Some(kept) = self.sessions.get(oldest)
            && !kept.session.is_fresh(session.begun_ms)
        {
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
        let owner = session.facts.owner();
        if self.owners.get(&owner).is_some_and(|own| own.len() >= SESSIONS_OF_ONE) {
            self.remove_oldest_of(&owner);
        } else if self.sessions.len() >= SESSIONS {
            let most = self.owners.iter().max_by_key(|(_, own)| own.len());
            if let Some(most) = most.map(|(owner, _)| owner.clone()) {
                self.remove_oldest_of(&most);
            }
        }
        let number = self.next;
        self.next += 1;
        self.owners.entry(owner).or_default().insert(number);
        self.order.insert(number, session.id.clone());
        let kept = StoredSession { number, session: Arc::clone(session) };
        self.sessions.insert(session.id.clone(), kept);
    }

    fn remove_oldest_of(&mut self, owner: &Owner) {
        let oldest = self.owners.get(owner).and_then(BTreeSet::first);
        if let Some(id) = oldest.and_then(|number| self.order.get(number)).cloned() {
            self.remove(&id);
        }
    }

    fn remove(&mut self, id: &str) {
        let Some(StoredSession { number, session }) = self.sessions.remove(id) else { return };
        self.order.remove(&number);
        let owner = session.facts.owner();
        if let Some(own) = self.owners.get_mut(&owner) {
            own.remove(&number);
            if own.is_empty() {
                self.owners.remove(&owner);
            }
        }
    }
}
