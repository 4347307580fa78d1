//! Where what an operator asks for is done: with the engine of the running server or, while there is none,
//! with one that is opened for it.

use std::{path::Path, sync::Arc};

use ruma::{OwnedUserId, UserId};

use super::acts::{Act, Done, Filter, TokenSummary, UserDetails, UserDevice, UserSummary};
use crate::{
    api::{
        self,
        deactivate::Closed,
        identity::{self, IdentityServers},
    },
    checkpoint::Checkpoint,
    clock::{Clock, random_letters},
    config::{self, Config, IdentityServer},
    decide::{
        Refusal,
        account::{AccountLimit, Met, Register, RemoveDevices, SetPassword, Which},
        ephemeral::Gather,
        registration_token::{
            Change, CreateRegistrationToken, RemoveRegistrationToken, UpdateRegistrationToken,
        },
        status::{CreateAccount, Deactivate, SetStatus},
    },
    engine::{self, Engine, Rejected},
    log::{
        Log, ReadError,
        sled::{OpenError, SledLog, SledOptions, log_dir},
    },
    outbound::Outbound,
    passwords::{Passwords, policy},
    proof,
    record::{
        Offset, Origin,
        command::{AccountKind, Secret, TokenHash},
    },
    shutdown::Shutdown,
    snapshot,
    state::{Account, Membership, RegistrationToken, State},
};

/// Users in one answer.
const PAGE: usize = 1000;

/// The longest label of a registration token: a line.
const LABEL_BYTES: usize = 128;

/// Letters of a registration token that is made up: nobody guesses it, and it can be typed in.
const TOKEN_LETTERS: usize = 24;

/// The longest reason: a paragraph.
const REASON_BYTES: usize = 2048;

/// Does what an operator asks for.
pub(crate) struct Office {
    pub(crate) engine: Arc<Engine>,
    pub(crate) passwords: Arc<Passwords>,
    /// Which passwords may be set.
    pub(crate) policy: config::Passwords,
    /// The identity servers that are trusted, and what they are asked with; none if nothing outside can be
    /// asked.
    pub(crate) identity: Option<(Outbound, Vec<IdentityServer>)>,
    pub(crate) snapshots: Arc<snapshot::Keeper>,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ActError {
    /// There is no such user.
    #[error("there is no user `{0}` on this server")]
    NoUser(String),
    /// The user name is taken.
    #[error("the user name of {0} is taken")]
    Taken(OwnedUserId),
    /// No registration token has this id or is this.
    #[error(
        "there is no such registration token; `logcabin registration-token list` shows their ids"
    )]
    NoToken,
    /// The account is closed.
    #[error("the account of {0} is deactivated, which is for ever")]
    Deactivated(OwnedUserId),
    /// Something in the request cannot be.
    #[error("{0}")]
    Invalid(String),
    /// The log does not take it.
    #[error(transparent)]
    Rejected(Rejected),
    /// The log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// There is no log.
    #[error("there is no log in {0}: start the server once, which settles its name for ever")]
    NoLog(String),
    /// The log cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Something cannot be shown.
    #[error(transparent)]
    Proof(#[from] proof::ProofError),
    /// A snapshot cannot be made.
    #[error(transparent)]
    Snapshot(#[from] snapshot::SnapshotError),
    /// The log is none of a server that can be run.
    #[error(transparent)]
    Engine(#[from] engine::OpenError),
}

/// The name under which what the user `uid` of this machine does is recorded.
pub(crate) fn actor(uid: Option<u32>) -> String {
    let named = |uid: u32| {
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let name = users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
        });
        name.unwrap_or_else(|| format!("uid {uid}"))
    };
    uid.map_or_else(|| "unknown".to_owned(), named)
}

impl Office {
    /// Does it, in the name of `actor`, a user of this machine.
    pub(crate) async fn carry_out(&self, act: Act, actor: &str) -> Result<Done, ActError> {
        let origin = Origin::administrator(actor);
        match act {
            Act::ListUsers { after, filter } => Ok(self.list(after.as_deref(), filter)),
            Act::ShowUser { user } => self.show(&user),
            Act::CreateUser { user, password, display_name, admin } => {
                let user_id = self.new_user_id(&user)?;
                let display_name =
                    api::short_name(display_name).map_err(|error| invalid(&error))?;
                let password = match password {
                    Some(password) => Some(self.hash(&user_id, password).await?),
                    None => None,
                };
                let display_name = display_name.unwrap_or_else(|| user_id.localpart().to_owned());
                let register = Register {
                    user_id: user_id.clone(),
                    kind: AccountKind::User,
                    password,
                    display_name: Some(display_name),
                    login: None,
                    met: Met::default(),
                };
                let made = self.engine.propose(origin, CreateAccount { register, admin }).await;
                made.map_err(|error| of_user(error, &user_id))?.into_inner();
                Ok(Done::Created { user_id })
            }
            Act::ResetPassword { user, password, keep_devices } => {
                let user_id = self.user_id(&user)?;
                if self.engine.state().accounts.is_guest(&user_id) {
                    return Err(ActError::Invalid("A guest has no password.".to_owned()));
                }
                let password = self.hash(&user_id, password).await?;
                let log_out = (!keep_devices).then_some(Which::All);
                let proposal = SetPassword { user_id: user_id.clone(), password, log_out };
                let set = self.engine.propose(origin, proposal).await;
                set.map_err(|error| of_user(error, &user_id))?.into_inner();
                Ok(Done::Changed { user_id, changed: true })
            }
            Act::SetStatus { user, admin, locked, suspended, reason } => {
                let (user_id, reason) = (self.user_id(&user)?, checked(reason)?);
                let id = user_id.clone();
                let proposal = SetStatus { user_id, admin, locked, suspended, reason };
                let set = self.engine.propose(origin, proposal).await;
                let changed = set.map_err(|error| of_user(error, &id))?.into_inner();
                Ok(Done::Changed { user_id: id, changed })
            }
            Act::Deactivate { user, erase, reason } => {
                let (user_id, reason) = (self.user_id(&user)?, checked(reason)?);
                let still_bound = self.unbind(&origin, &user_id).await;
                let ts = self.engine.clock().now_ms();
                let closing = Deactivate { user_id: user_id.clone(), erase, reason, ts };
                let closed = api::deactivate::close(&self.engine, origin, closing).await;
                let Closed { changed, rooms } = closed.map_err(|error| of_user(error, &user_id))?;
                Ok(Done::Deactivated { user_id, changed, rooms, still_bound })
            }
            Act::LogOut { user, device } => {
                let user_id = self.user_id(&user)?;
                let which = match device {
                    Some(device) => {
                        self.must_have(&user_id, &device)?;
                        Which::These(vec![device])
                    }
                    None => Which::All,
                };
                let before = self.devices(&user_id);
                let proposal = RemoveDevices { user_id: user_id.clone(), which };
                let removed = self.engine.propose(origin, proposal).await;
                removed.map_err(|error| of_user(error, &user_id))?.into_inner();
                let left = self.devices(&user_id);
                let devices = before.into_iter().filter(|device| !left.contains(device)).collect();
                Ok(Done::LoggedOut { user_id, devices })
            }
            Act::WriteSnapshot => Ok(Done::Snapshot(self.snapshots.make().await?)),
            Act::CompareSnapshots => Ok(Done::Compared(self.snapshots.scrub().await?)),
            Act::Prove(asked) => {
                let proof = proof::make(&self.engine, origin, asked).await?;
                Ok(Done::Proof(Box::new(proof)))
            }
            Act::ListRegistrationTokens => {
                let tokens = self.engine.state().registration_tokens.all();
                let tokens = tokens.into_iter().map(|(hash, token)| self.token(&hash, token));
                Ok(Done::RegistrationTokens { tokens: tokens.collect() })
            }
            Act::CreateRegistrationToken { token, label, uses_allowed, expires_ms } => {
                let token = token.unwrap_or_else(|| random_letters(TOKEN_LETTERS).into());
                if !api::uiaa::stages::is_registration_token(token.expose()) {
                    let why = "A registration token has 1 to 64 of A-Za-z0-9._~-";
                    return Err(ActError::Invalid(why.to_owned()));
                }
                let hash = TokenHash::of(token.expose());
                let label = label_of(label)?;
                let proposal =
                    CreateRegistrationToken { token: hash, label, uses_allowed, expires_ms };
                let made = self.engine.propose(origin, proposal).await;
                made.map_err(of_token)?.into_inner();
                Ok(Done::RegistrationTokenCreated { token, summary: self.token_of(&hash)? })
            }
            Act::UpdateRegistrationToken { token, label, uses_allowed, expires_ms } => {
                let token = self.registration_token(&token)?;
                let label = match label {
                    Change::To(label) => label_of(Some(label))?.map_or(Change::Clear, Change::To),
                    other => other,
                };
                let proposal = UpdateRegistrationToken { token, label, uses_allowed, expires_ms };
                let updated = self.engine.propose(origin, proposal).await;
                let changed = updated.map_err(of_token)?.into_inner();
                Ok(Done::RegistrationTokenUpdated { changed, summary: self.token_of(&token)? })
            }
            Act::DeleteRegistrationToken { token } => {
                let token = self.registration_token(&token)?;
                let removed = self.engine.propose(origin, RemoveRegistrationToken { token }).await;
                removed.map_err(of_token)?.into_inner();
                Ok(Done::RegistrationTokenDeleted { id: token.start() })
            }
        }
    }

    /// Takes back what is published on identity servers. Gives what is left, in words.
    async fn unbind(&self, origin: &Origin, user_id: &UserId) -> Vec<String> {
        let left = match &self.identity {
            Some((outbound, trusted)) => {
                let servers = IdentityServers { engine: &self.engine, outbound, trusted };
                identity::unbind_all(servers, origin, user_id, None).await
            }
            None => self.engine.state().threepids.bound(user_id),
        };
        left.into_iter().map(|(threepid, server)| format!("{threepid} on {server}")).collect()
    }

    fn list(&self, after: Option<&UserId>, filter: Filter) -> Done {
        let all = self.engine.state().accounts.user_ids();
        let start = after.map_or(0, |after| all.partition_point(|user_id| **user_id <= *after));
        let mut users = Vec::new();
        let mut next = None;
        for user_id in all.into_iter().skip(start) {
            if users.len() == PAGE {
                next = users.last().map(|last: &UserSummary| last.user_id.clone());
                break;
            }
            let Some(account) = self.engine.state().accounts.get(&user_id) else { continue };
            let summary = summary(&account.read());
            let wanted = |asked: bool, is: bool| !asked || is;
            if wanted(filter.admin, summary.admin)
                && wanted(filter.locked, summary.locked)
                && wanted(filter.suspended, summary.suspended)
                && wanted(filter.deactivated, summary.deactivated)
                && wanted(filter.guest, summary.guest)
            {
                users.push(summary);
            }
        }
        Done::Users { users, next }
    }

    fn show(&self, user: &str) -> Result<Done, ActError> {
        let user_id = self.user_id(user)?;
        let account = self.engine.state().accounts.get(&user_id);
        let account = account.ok_or_else(|| ActError::NoUser(user.to_owned()))?;
        let (summary, registered, erased, has_password, devices) = {
            let account = account.read();
            let devices: Vec<_> = account
                .active_devices()
                .map(|(id, device)| (id.clone(), device.display_name.clone(), device.session))
                .collect();
            let has_password = account.password.latest().is_some_and(Option::is_some);
            let erased = account.standing.erased.is_some();
            (summary(&account), account.registered, erased, has_password, devices)
        };
        let mut logged_in = std::collections::BTreeMap::new();
        for (device_id, display_name, session) in devices {
            let device = UserDevice { display_name, since_ms: self.time_of(session)? };
            logged_in.insert(device_id, device);
        }
        let parts = self.engine.state().memberships.of(&user_id, Offset::MAX);
        Ok(Done::User(Box::new(UserDetails {
            summary,
            created_ms: self.time_of(registered)?,
            erased,
            has_password,
            logged_in,
            joined_rooms: parts.iter().filter(|part| part.membership == Membership::Join).count(),
        })))
    }

    fn time_of(&self, offset: Offset) -> Result<u64, ReadError> {
        let records = self.engine.log().read(offset, 1)?;
        Ok(records.first().map_or(0, |record| record.header.time_ms))
    }

    fn devices(&self, user_id: &UserId) -> Vec<ruma::OwnedDeviceId> {
        let account = self.engine.state().accounts.get(user_id);
        account.map_or_else(Vec::new, |account| {
            account.read().active_devices().map(|(device_id, _)| device_id.clone()).collect()
        })
    }

    fn must_have(&self, user_id: &UserId, device: &ruma::DeviceId) -> Result<(), ActError> {
        if self.devices(user_id).iter().any(|known| known == device) {
            return Ok(());
        }
        Err(ActError::Invalid(format!("{user_id} is not logged in on a device `{device}`")))
    }

    /// The user that `name` names.
    fn user_id(&self, name: &str) -> Result<OwnedUserId, ActError> {
        let server = &self.engine.env().server.name;
        let user_id = match UserId::parse(name) {
            Ok(user_id) => Some(user_id),
            Err(_) => UserId::parse_with_server_name(name, server).ok(),
        };
        let user_id = user_id.filter(|user_id| self.engine.state().accounts.contains(user_id));
        user_id.ok_or_else(|| ActError::NoUser(name.to_owned()))
    }

    /// The id of a user who is to be made.
    fn new_user_id(&self, name: &str) -> Result<OwnedUserId, ActError> {
        let server = &self.engine.env().server.name;
        let local = name.strip_prefix('@').and_then(|name| {
            name.split_once(':').filter(|(_, of)| of == server).map(|(local, _)| local)
        });
        api::new_user_id_of(server, local.unwrap_or(name)).map_err(|error| invalid(&error))
    }

    /// The registration token that `name` is, or is the id of.
    fn registration_token(&self, name: &Secret) -> Result<TokenHash, ActError> {
        let tokens = &self.engine.state().registration_tokens;
        let itself = TokenHash::of(name.expose());
        if tokens.get(&itself).is_some() {
            return Ok(itself);
        }
        let all = tokens.all().into_iter().map(|(hash, _)| hash);
        let mut named = all.filter(|hash| hash.start() == name.expose());
        match (named.next(), named.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => Err(ActError::NoToken),
            // One pair in four thousand million.
            (Some(_), Some(_)) => {
                let why = "Two registration tokens have this id: give the token itself.";
                Err(ActError::Invalid(why.to_owned()))
            }
        }
    }

    fn token_of(&self, hash: &TokenHash) -> Result<TokenSummary, ActError> {
        let token = self.engine.state().registration_tokens.get(hash).ok_or(ActError::NoToken)?;
        Ok(self.token(hash, token))
    }

    fn token(&self, hash: &TokenHash, token: RegistrationToken) -> TokenSummary {
        let good = token.is_good(self.engine.clock().now_ms());
        let RegistrationToken { label, uses_allowed, uses, expires_ms } = token;
        TokenSummary { id: hash.start(), label, uses_allowed, uses, expires_ms, good }
    }

    async fn hash(&self, user_id: &UserId, password: Secret) -> Result<Secret, ActError> {
        let fit = policy::check(&self.policy, user_id.localpart(), password.expose());
        fit.map_err(|error| invalid(&error.into()))?;
        let hash = self.passwords.hash(password.expose().to_owned()).await;
        hash.map_err(|error| invalid(&error.into()))
    }
}

fn summary(account: &Account) -> UserSummary {
    let name = account.profile_field("displayname").and_then(serde_json::Value::as_str);
    UserSummary {
        user_id: account.user_id.clone(),
        display_name: name.map(ToOwned::to_owned),
        guest: account.standing.guest,
        admin: account.standing.admin,
        locked: account.standing.locked,
        suspended: account.standing.suspended,
        deactivated: account.standing.deactivated.is_some(),
        devices: account.active_devices().count(),
    }
}

fn checked(reason: Option<String>) -> Result<Option<String>, ActError> {
    match reason {
        Some(reason) if reason.len() > REASON_BYTES => {
            Err(ActError::Invalid(format!("A reason has {REASON_BYTES} bytes at most.")))
        }
        reason => Ok(reason.filter(|reason| !reason.trim().is_empty())),
    }
}

fn label_of(label: Option<String>) -> Result<Option<String>, ActError> {
    match label {
        Some(label) if label.len() > LABEL_BYTES => {
            Err(ActError::Invalid(format!("A label has {LABEL_BYTES} bytes at most.")))
        }
        label => Ok(label.filter(|label| !label.trim().is_empty())),
    }
}

fn of_token(error: Rejected) -> ActError {
    match error {
        Rejected::Refused(Refusal::NotFound(_)) => ActError::NoToken,
        Rejected::Refused(Refusal::InvalidParam(why)) => ActError::Invalid(why),
        other => ActError::Rejected(other),
    }
}

/// The sentence that a client would be told.
fn invalid(error: &crate::http::ApiError) -> ActError {
    ActError::Invalid(error.message().to_owned())
}

fn of_user(error: Rejected, user_id: &UserId) -> ActError {
    match error {
        Rejected::Refused(Refusal::UserInUse) => ActError::Taken(user_id.to_owned()),
        Rejected::Refused(Refusal::UserDeactivated) => ActError::Deactivated(user_id.to_owned()),
        other => ActError::Rejected(other),
    }
}

/// Does it on the log in the data directory of `config`, which no server may be using: as the server would,
/// with the same lock and the same decisions.
///
/// # Errors
/// When the log cannot be opened, or it cannot be done.
pub(crate) async fn without_a_server(
    config: &Config,
    act: Act,
    actor: &str,
) -> Result<Done, ActError> {
    let data_dir = &config.server.data_dir;
    // Opening makes what is missing; a log that begins here would have a name that nobody chose.
    if !log_dir(data_dir).is_dir() {
        return Err(ActError::NoLog(data_dir.display().to_string()));
    }
    let mut options = SledOptions::new(data_dir);
    options.min_free_bytes = config.log.min_free_bytes;
    let log = Arc::new(SledLog::open(options)?);
    let done = on_log(config, Arc::clone(&log) as Arc<dyn Log>, act, actor).await;
    log.close();
    let (done, state) = done?;
    note_state(data_dir, &state);
    done
}

async fn on_log(
    config: &Config,
    log: Arc<dyn Log>,
    act: Act,
    actor: &str,
) -> Result<(Result<Done, ActError>, Arc<State>), ActError> {
    let snapshots = snapshot::directory(&config.server.data_dir);
    let (state, newest) = match act {
        // What is in question is not begun with.
        Act::CompareSnapshots => (engine::replay(&*log, |_, _| {})?.0, None),
        _ => snapshot::recall(&snapshots, &*log)?,
    };
    let name = state.server().map(|server| server.server_name.clone()).unwrap_or_default();
    let server_name = name
        .try_into()
        .map_err(|_| ActError::NoLog(config.server.data_dir.display().to_string()))?;
    let options = engine::Options {
        server_name,
        event_cache_bytes: 1024 * 1024,
        gather: Gather {
            window: std::time::Duration::ZERO,
            members: config.receipts.gather_members,
        },
        clock: Clock::system(),
        // Of those who administer the server, none is too many.
        accounts: AccountLimit::default(),
    };
    let engine = Arc::new(Engine::start(log, state, options).await?);
    let passwords = Arc::new(Passwords::new(config));
    let policy = config.passwords.clone();
    let identity = Outbound::new();
    if let Err(error) = &identity {
        tracing::warn!(%error, "no other service can be asked");
    }
    let identity =
        identity.ok().map(|outbound| (outbound, config.threepids.identity_servers.to_vec()));
    let snapshots = Arc::new(snapshot::Keeper::new(
        snapshots,
        Arc::clone(&engine),
        config.snapshot_policy(),
        newest,
        Shutdown::when(std::future::pending()),
    ));
    let office = Office { engine: Arc::clone(&engine), passwords, policy, identity, snapshots };
    let done = office.carry_out(act, actor).await;
    Ok((done, Arc::clone(&engine.env().state)))
}

/// Nothing depends on it: what could not be noted is missed by `logcabin verify` alone.
fn note_state(data_dir: &Path, state: &State) {
    if let Err(error) = Checkpoint::write(data_dir, state) {
        tracing::warn!(%error, "the state's digest could not be noted");
    }
}
