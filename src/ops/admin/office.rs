//! Where what an operator asks for is done: with the engine of the running server or, while there
//! is none, with one that is opened for it.

use std::{path::PathBuf, sync::Arc};

use ruma::{OwnedUserId, UserId};

use super::{
    acts::{Act, Done, Filter, TokenSummary, UserDetails, UserDevice, UserSummary},
    notices::Notice,
    rooms::{self, Closing},
};
use crate::{
    base::{
        clock::{Clock, random_letters},
        shutdown::Shutdown,
    },
    config::{self, Config, IdentityServer},
    decide::{
        Refusal,
        account::{AccountLimit, Met, Register, RemoveDevices, SetPassword, Which},
        ephemeral::Gather,
        maintenance::NoteBackup,
        moderation::Because,
        registration_token::{
            Change, CreateRegistrationToken, RemoveRegistrationToken, UpdateRegistrationToken,
        },
        status::{CreateAccount, Deactivate, SetStatus},
    },
    engine::{self, Engine, Rejected},
    log::{
        Log, ReadError,
        store::{OpenError, SledLog, SledOptions, has_log},
    },
    ops::{
        export::{self, Belongings},
        proof,
    },
    outside::outbound::Outbound,
    record::{
        Offset, Origin,
        command::{AccountKind, Secret, TokenHash},
    },
    service::{
        accounts::{
            closing::{self, Closed},
            identity::{self, IdentityServers},
            names::{InvalidName, is_registration_token, new_user_id_of, short_name},
        },
        last_seen::LastSeen,
        passwords::{
            Passwords,
            policy::{self, Unfit},
        },
    },
    snapshot::{self, StartedFrom},
    state::{Account, Membership, RegistrationToken},
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
    /// The identity servers that are trusted, and what they are asked with; none if nothing outside
    /// can be asked.
    pub(crate) identity: Option<(Outbound, Vec<IdentityServer>)>,
    pub(crate) snapshots: Arc<snapshot::Keeper>,
    pub(crate) last_seen: Arc<LastSeen>,
    /// In whose name notices are sent, and how they look.
    pub(crate) notices: config::ServerNotices,
    /// The directory of the archive, if there is one.
    pub(crate) archive: Option<PathBuf>,
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
    /// There is no such room.
    #[error("there is no room `{0}` on this server")]
    NoRoom(String),
    /// There is no such file.
    #[error("there is no file `{0}` on this server")]
    NoMedia(String),
    /// There is no such report, or it was dealt with.
    #[error("there is no open report {0}")]
    NoReport(Offset),
    /// The password must not be set.
    #[error("{0}")]
    Unfit(Unfit),
    /// The account is closed.
    #[error("the account of {0} is deactivated, which cannot be undone")]
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
    #[error("there is no log in {0}: start the server once; its name cannot be changed afterwards")]
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
        self.perform(act, Origin::administrator(actor)).await
    }

    /// Does it in the name of whoever `origin` says, or says what it would come to.
    pub(crate) async fn perform(&self, act: Act, origin: Origin) -> Result<Done, ActError> {
        let (mut act, mut reason, mut dry) = (act, None, false);
        let act = loop {
            act = match act {
                Act::DryRun { of } => {
                    dry = true;
                    *of
                }
                Act::Because { reason: why, of } => {
                    reason = checked(Some(why))?;
                    *of
                }
                act => break act,
            }
        };
        if dry {
            return Ok(Done::WouldDo { effect: self.effect_at_length(&act).await? });
        }
        Box::pin(self.act(act, origin, reason)).await
    }

    async fn act(
        &self,
        act: Act,
        origin: Origin,
        because: Option<String>,
    ) -> Result<Done, ActError> {
        match act {
            Act::DryRun { .. } | Act::Because { .. } => {
                Err(ActError::Invalid("This says nothing of its own.".to_owned()))
            }
            Act::SetProfile { user, field, value } => {
                self.set_profile(&user, field, value, origin, because).await
            }
            Act::RenameDevice { user, device, display_name } => {
                self.rename_device(&user, device, display_name, origin, because).await
            }
            Act::LogInAs { user, expires_ms } => {
                self.log_in_as(&user, expires_ms, origin, because).await
            }
            Act::JoinRoom { user, room } => self.have_join(&room, &user, origin, because).await,
            Act::ListRooms { wanted } => rooms::listed(self, &wanted),
            Act::ShowRoom { room } => Ok(Done::Room(Box::new(self.room_details(&room)?))),
            Act::BlockRoom { room, blocked } => self.block(&room, blocked, origin, because).await,
            Act::ShutDownRoom { room, block, new_room, purge, wait } => {
                let closing = Closing { block, new_room, purge, wait };
                self.shut_down(&room, closing, origin, because).await
            }
            Act::MakeRoomAdmin { room, user } => {
                self.make_room_admin(&room, &user, origin, because).await
            }
            Act::SendNotice { user, event_type, state_key, content, transaction } => {
                let notice = Notice { event_type, state_key, content, transaction };
                self.send_notice(&user, notice, origin, because).await
            }
            Act::ListMedia { of } => self.list_media(&of),
            Act::DeleteMedia { of } => self.delete_media(&of, origin, because).await,
            Act::QuarantineMedia { of, quarantined } => {
                self.quarantine(of, quarantined, origin, because).await
            }
            Act::ProtectMedia { media, protected } => {
                self.protect(&media, protected, origin, because).await
            }
            Act::MediaStatistics => {
                Ok(Done::MediaStatistics { users: self.media_statistics(0..=u64::MAX) })
            }
            Act::ListReports => Ok(Done::Reports { reports: self.reports(|_| true)? }),
            Act::ShowReport { id } => Ok(Done::Report(Box::new(self.report(id)?))),
            Act::RemoveReport { id } => self.remove_report(id, origin, because).await,
            Act::ListUsers { after, filter } => Ok(self.list(after.as_deref(), filter)),
            Act::ShowUser { user } => Ok(Done::User(Box::new(self.user_details(&user)?))),
            Act::CreateUser { user, password, display_name, admin } => {
                let user_id = self.new_user_id(&user)?;
                let display_name = short_name(display_name).map_err(invalid)?;
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
                let of = CreateAccount { register, admin };
                let made = self.engine.propose(origin, Because { of, reason: because }).await;
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
                let of = SetPassword { user_id: user_id.clone(), password, log_out };
                let set = self.engine.propose(origin, Because { of, reason: because }).await;
                set.map_err(|error| of_user(error, &user_id))?.into_inner();
                Ok(Done::Changed { user_id, changed: true })
            }
            Act::SetStatus { user, admin, locked, suspended, reason } => {
                let (user_id, reason) = (self.user_id(&user)?, checked(reason)?.or(because));
                let id = user_id.clone();
                let proposal = SetStatus { user_id, admin, locked, suspended, reason };
                let set = self.engine.propose(origin, proposal).await;
                let changed = set.map_err(|error| of_user(error, &id))?.into_inner();
                Ok(Done::Changed { user_id: id, changed })
            }
            Act::Deactivate { user, erase, reason } => {
                let (user_id, reason) = (self.user_id(&user)?, checked(reason)?.or(because));
                let still_bound = self.unbind(&origin, &user_id).await;
                let ts = self.engine.clock().now_ms();
                let (messages, media) = (false, false);
                let user = user_id.clone();
                let end = Deactivate { user_id: user, erase, messages, media, reason, ts };
                let closed = closing::close(&self.engine, origin, end).await;
                let Closed { changed, rooms } = closed.map_err(|error| of_user(error, &user_id))?;
                Ok(Done::Deactivated { user_id, changed, rooms, still_bound })
            }
            Act::LogOut { user, devices } => {
                let user_id = self.user_id(&user)?;
                let which = match devices {
                    Some(devices) => {
                        for device in &devices {
                            self.must_have(&user_id, device)?;
                        }
                        Which::These(devices)
                    }
                    None => Which::All,
                };
                let before = self.devices(&user_id);
                let of = RemoveDevices { user_id: user_id.clone(), which };
                let removed = self.engine.propose(origin, Because { of, reason: because }).await;
                removed.map_err(|error| of_user(error, &user_id))?.into_inner();
                let left = self.devices(&user_id);
                let devices = before.into_iter().filter(|device| !left.contains(device)).collect();
                Ok(Done::LoggedOut { user_id, devices })
            }
            Act::PurgeRoom { room, force } => self.purge_room(origin, &room, force, because).await,
            Act::EraseUser { user, messages } => {
                self.erase_user(origin, &user, messages, because).await
            }
            Act::ListErasures { last } => self.receipts(last),
            Act::ShowErasure { because } => self.receipt(because),
            Act::ImportUser { src, user } => {
                let read = tokio::task::spawn_blocking(move || Belongings::read(&src)).await;
                let belongings = read.map_err(|error| ActError::Invalid(error.to_string()))?;
                let belongings =
                    belongings.map_err(|error| ActError::Invalid(error.to_string()))?;
                let user_id =
                    self.new_user_id(user.as_deref().unwrap_or_else(|| belongings.localpart()))?;
                let imported =
                    export::import_user(&self.engine, &origin, user_id.clone(), &belongings).await;
                Ok(Done::UserImported(imported.map_err(|error| of_user(error, &user_id))?))
            }
            Act::WriteSnapshot => Ok(Done::Snapshot(self.snapshots.make().await?)),
            Act::SnapshotStatus => Ok(Done::SnapshotStatus(self.snapshots.status())),
            Act::CompareSnapshots => Ok(Done::Compared(self.snapshots.scrub().await?)),
            Act::NoteBackup { made } => {
                let noted = self.engine.propose(origin, NoteBackup { made }).await;
                noted.map_err(ActError::Rejected)?.into_inner();
                Ok(Done::Noted)
            }
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
                if !is_registration_token(token.expose()) {
                    let why = "A registration token has 1 to 64 of A-Za-z0-9._~-";
                    return Err(ActError::Invalid(why.to_owned()));
                }
                let hash = TokenHash::of(token.expose());
                let label = label_of(label)?;
                let of = CreateRegistrationToken { token: hash, label, uses_allowed, expires_ms };
                let made = self.engine.propose(origin, Because { of, reason: because }).await;
                made.map_err(of_token)?.into_inner();
                Ok(Done::RegistrationTokenCreated { token, summary: self.token_of(&hash)? })
            }
            Act::UpdateRegistrationToken { token, label, uses_allowed, expires_ms } => {
                let token = self.registration_token(&token)?;
                let label = match label {
                    Change::To(label) => label_of(Some(label))?.map_or(Change::Clear, Change::To),
                    other => other,
                };
                let of = UpdateRegistrationToken { token, label, uses_allowed, expires_ms };
                let updated = self.engine.propose(origin, Because { of, reason: because }).await;
                let changed = updated.map_err(of_token)?.into_inner();
                Ok(Done::RegistrationTokenUpdated { changed, summary: self.token_of(&token)? })
            }
            Act::DeleteRegistrationToken { token } => {
                let token = self.registration_token(&token)?;
                let of = RemoveRegistrationToken { token };
                let removed = self.engine.propose(origin, Because { of, reason: because }).await;
                removed.map_err(of_token)?.into_inner();
                Ok(Done::RegistrationTokenDeleted { id: token.start() })
            }
        }
    }

    /// Takes back what is published on identity servers. Gives what is left, in words.
    pub(super) async fn unbind(&self, origin: &Origin, user_id: &UserId) -> Vec<String> {
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
            let summary = self.summary(&account.read());
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

    /// All that there is to say of a user.
    pub(crate) fn user_details(&self, user: &str) -> Result<UserDetails, ActError> {
        let user_id = self.user_id(user)?;
        let account = self.engine.state().accounts.get(&user_id);
        let account = account.ok_or_else(|| ActError::NoUser(user.to_owned()))?;
        let (summary, registered, has_password, logged_in) = {
            let account = account.read();
            let devices = account.active_devices();
            let logged_in = devices.map(|(id, device)| {
                let seen = self.last_seen.of(&self.engine.state(), &user_id, id, device);
                let device = UserDevice {
                    display_name: device.display_name.clone(),
                    since_ms: device.login_ms,
                    seen_ms: seen.as_ref().map(|seen| seen.seen_ms),
                    seen_ip: seen.as_ref().map(|seen| seen.address.to_string()),
                    seen_agent: seen.and_then(|seen| seen.agent),
                    dehydrated: device.tokens.is_none(),
                };
                (id.clone(), device)
            });
            let has_password = account.password.latest().is_some_and(Option::is_some);
            (self.summary(&account), account.registered, has_password, logged_in.collect())
        };
        let parts = self.engine.state().memberships.of(&user_id, Offset::MAX);
        Ok(UserDetails {
            summary,
            created_ms: self.time_of(registered)?,
            has_password,
            logged_in,
            joined_rooms: parts.iter().filter(|part| part.membership == Membership::Join).count(),
            threepids: self.threepids(&user_id),
            external_ids: self.external_ids(&user_id),
            media_count: self.engine.state().media.of_user(&user_id).len(),
            media_bytes: self.engine.state().media.bytes_of(Some(&user_id)),
        })
    }

    pub(super) fn devices(&self, user_id: &UserId) -> Vec<ruma::OwnedDeviceId> {
        let account = self.engine.state().accounts.get(user_id);
        account.map_or_else(Vec::new, |account| {
            account.read().active_devices().map(|(device_id, _)| device_id.clone()).collect()
        })
    }

    pub(super) fn must_have(
        &self,
        user_id: &UserId,
        device: &ruma::DeviceId,
    ) -> Result<(), ActError> {
        if self.devices(user_id).iter().any(|known| known == device) {
            return Ok(());
        }
        Err(ActError::Invalid(format!("{user_id} is not logged in on a device `{device}`")))
    }

    /// The user that `name` names.
    pub(crate) fn user_id(&self, name: &str) -> Result<OwnedUserId, ActError> {
        let server = &self.engine.env().server.name;
        let user_id = match UserId::parse(name) {
            Ok(user_id) => Some(user_id),
            Err(_) => UserId::parse_with_server_name(name, server).ok(),
        };
        let user_id = user_id.filter(|user_id| self.engine.state().accounts.contains(user_id));
        user_id.ok_or_else(|| ActError::NoUser(name.to_owned()))
    }

    /// The id of a user who is to be made.
    pub(super) fn new_user_id(&self, name: &str) -> Result<OwnedUserId, ActError> {
        let server = &self.engine.env().server.name;
        let local = name.strip_prefix('@').and_then(|name| {
            name.split_once(':').filter(|(_, of)| of == server).map(|(local, _)| local)
        });
        let user_id = new_user_id_of(server, local.unwrap_or(name)).map_err(invalid)?;
        if self.notices.is_sender(&user_id) { Err(ActError::Taken(user_id)) } else { Ok(user_id) }
    }

    /// The registration token that `name` is, or is the id of.
    pub(crate) fn registration_token(&self, name: &Secret) -> Result<TokenHash, ActError> {
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

    pub(crate) fn token_of(&self, hash: &TokenHash) -> Result<TokenSummary, ActError> {
        let token = self.engine.state().registration_tokens.get(hash).ok_or(ActError::NoToken)?;
        Ok(self.token(hash, token))
    }

    fn token(&self, hash: &TokenHash, token: RegistrationToken) -> TokenSummary {
        let good = token.is_good(self.engine.clock().now_ms());
        let RegistrationToken { label, uses_allowed, uses, expires_ms } = token;
        TokenSummary { id: hash.start(), label, uses_allowed, uses, expires_ms, good }
    }

    pub(super) fn summary(&self, account: &Account) -> UserSummary {
        let text = |field| {
            let value = account.profile_field(field).and_then(serde_json::Value::as_str);
            value.map(ToOwned::to_owned)
        };
        let (user_id, state) = (&account.user_id, self.engine.state());
        let seen = account.active_devices().filter_map(|(device_id, device)| {
            self.last_seen.of(&state, user_id, device_id, device).map(|seen| seen.seen_ms)
        });
        UserSummary {
            user_id: user_id.clone(),
            display_name: text("displayname"),
            avatar_url: text("avatar_url"),
            guest: account.standing.guest,
            admin: account.standing.admin,
            locked: account.standing.locked,
            suspended: account.standing.suspended,
            deactivated: account.standing.deactivated.is_some(),
            erased: account.standing.erased.is_some(),
            devices: account.active_devices().count(),
            last_seen_ms: seen.max(),
        }
    }

    async fn hash(&self, user_id: &UserId, password: Secret) -> Result<Secret, ActError> {
        let fit = policy::check(&self.policy, user_id.localpart(), password.expose());
        fit.map_err(ActError::Unfit)?;
        let hash = self.passwords.hash(password.expose().to_owned()).await;
        hash.map_err(|error| ActError::Invalid(error.to_string()))
    }
}

pub(super) fn checked(reason: Option<String>) -> Result<Option<String>, ActError> {
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

pub(super) fn invalid(error: InvalidName) -> ActError {
    ActError::Invalid(error.to_string())
}

pub(super) fn of_user(error: Rejected, user_id: &UserId) -> ActError {
    match error {
        Rejected::Refused(Refusal::UserInUse) => ActError::Taken(user_id.to_owned()),
        Rejected::Refused(Refusal::UserDeactivated) => ActError::Deactivated(user_id.to_owned()),
        other => ActError::Rejected(other),
    }
}

/// Does it on the log in the data directory of `config`, which no server may be using: as the
/// server would, with the same lock and the same decisions.
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
    if !has_log(data_dir) {
        return Err(ActError::NoLog(data_dir.display().to_string()));
    }
    let mut options = SledOptions::new(data_dir);
    options.min_free_bytes = config.log.min_free_bytes;
    options.archive = config.archive_dir();
    let log = Arc::new(SledLog::open(options)?);
    let done = on_log(config, Arc::clone(&log) as Arc<dyn Log>, act, actor).await;
    log.close();
    let (done, snapshots) = done?;
    snapshots.note_state(data_dir);
    done
}

async fn on_log(
    config: &Config,
    log: Arc<dyn Log>,
    act: Act,
    actor: &str,
) -> Result<(Result<Done, ActError>, Arc<snapshot::Keeper>), ActError> {
    let snapshots = snapshot::directory(&config.server.data_dir);
    let (state, begun) = match act {
        // What is in question is not begun with.
        Act::CompareSnapshots => (engine::replay(&*log, |_, _| {})?.0, StartedFrom::default()),
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
        quotas: Arc::default(),
    };
    let engine = Arc::new(Engine::start(log, state, options).await?);
    let passwords = Arc::new(Passwords::new(config));
    let policy = config.passwords.clone();
    let identity = Outbound::new(&config.outbound);
    if let Err(error) = &identity {
        tracing::warn!(%error, "requests to other services are not possible");
    }
    let identity =
        identity.ok().map(|outbound| (outbound, config.threepids.identity_servers.to_vec()));
    let snapshots = Arc::new(snapshot::Keeper::new(
        snapshots,
        Arc::clone(&engine),
        config.snapshot_policy(),
        begun,
        Shutdown::when(std::future::pending()),
    ));
    let office = Office {
        engine: Arc::clone(&engine),
        passwords,
        policy,
        identity,
        snapshots: Arc::clone(&snapshots),
        // Nobody is here to be seen: what was recorded is known.
        last_seen: Arc::new(LastSeen::new(0)),
        notices: config.server_notices.clone(),
        archive: config.archive_dir(),
    };
    let done = office.carry_out(act, actor).await;
    Ok((done, snapshots))
}
