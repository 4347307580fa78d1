//! What acts of administration work with, and how they find what an order names.

use std::{path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use ruma::{
    OwnedDeviceId, OwnedRoomId, OwnedUserId, RoomAliasId, RoomId, UserId, events::StateEventType,
};

use super::rooms::names::Names;
use crate::{doctor::Doctor, proof};
use logcabin_base::{clock::random_letters, signed::Signer};
use logcabin_cluster::Cluster;
use logcabin_config::{self as config, IdentityServer};
use logcabin_decide::{Refusal, is_local};
use logcabin_engine::{self as engine, Engine, ProposeError};
use logcabin_log::{ReadError, store::OpenError};
use logcabin_media::remote::RemoteFiles;
use logcabin_outside::{mail::Messages, outbound::Outbound};
use logcabin_record::{Command, Offset, Origin, Record, command::Secret};
use logcabin_service::{
    accounts::{
        identity::{self, IdentityServers},
        names::{InvalidName, new_user_id_of},
    },
    federation::Federation,
    last_seen::LastSeen,
    passwords::{
        Passwords,
        policy::{self, UnfitPassword},
    },
};
use logcabin_snapshot as snapshot;
use logcabin_state::Room;

/// What acts of administration work with.
pub struct ActContext {
    pub engine: Arc<Engine>,
    pub passwords: Arc<Passwords>,
    pub policy: config::Passwords,
    /// Signs what this server verifies later.
    pub signer: Signer,
    /// The trusted identity servers and the client for them; none if requests to other servers are
    /// not possible.
    pub identity: Option<(Outbound, Vec<IdentityServer>)>,
    pub snapshots: Arc<snapshot::Keeper>,
    pub last_seen: Arc<LastSeen>,
    /// The address of this server, if its console is on.
    pub console: Option<String>,
    pub room_names: Names,
    pub notices: config::ServerNotices,
    /// What sends mail; none if mail is not configured, or while no server runs.
    pub messages: Option<Arc<Messages>>,
    pub federation: ArcSwap<config::Federation>,
    /// The directory of the archive, if there is one.
    pub archive: Option<PathBuf>,
    /// Copies of files of other homeservers; none while no server runs.
    pub remote_files: Option<Arc<RemoteFiles>>,
    /// Other homeservers; none without federation, or while no server runs.
    pub others: Option<Arc<Federation>>,
    /// The other nodes, if there are any.
    pub cluster: Option<Arc<dyn Cluster>>,
    pub doctor: Doctor,
}

/// Why an act was not done.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    #[error("there is no user `{0}` on this server")]
    NoUser(String),
    #[error("the user name of {0} is taken")]
    Taken(OwnedUserId),
    #[error(
        "there is no such registration token; `logcabin registration-token list` shows their ids"
    )]
    NoToken,
    #[error("there is no room `{0}` on this server")]
    NoRoom(String),
    #[error("this server shares no room with a homeserver `{0}`, and never did")]
    NoDestination(String),
    #[error("there is no file `{0}` on this server")]
    NoMedia(String),
    #[error("there is no open report {0}")]
    NoReport(Offset),
    #[error("{0} has no cross-signing keys")]
    NoCrossSigning(OwnedUserId),
    #[error("{0}")]
    Unfit(UnfitPassword),
    #[error("the account of {0} is deactivated, which cannot be undone")]
    Deactivated(OwnedUserId),
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Propose(#[from] ProposeError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("there is no log in {0}: start the server once; its name cannot be changed afterwards")]
    NoLog(String),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Proof(#[from] proof::ProofError),
    #[error(transparent)]
    Snapshot(#[from] snapshot::SnapshotError),
    #[error(transparent)]
    Engine(#[from] engine::OpenError),
}

impl From<InvalidName> for ActError {
    fn from(error: InvalidName) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl ActError {
    pub(super) fn invalid(why: impl ToString) -> Self {
        Self::Invalid(why.to_string())
    }

    /// Names the account that a refusal is about.
    pub(super) fn of_user(user_id: &UserId) -> impl FnOnce(ProposeError) -> Self {
        move |error| match error {
            ProposeError::Refused(Refusal::UserInUse) => Self::Taken(user_id.to_owned()),
            ProposeError::Refused(Refusal::UserDeactivated) => {
                Self::Deactivated(user_id.to_owned())
            }
            // In the words for clients, the administrator would be locked.
            ProposeError::Refused(Refusal::UserLocked) => {
                Self::Invalid(format!("{user_id} is locked."))
            }
            other => Self::Propose(other),
        }
    }

    /// Gives the reason for which a room does not allow something.
    pub(super) fn of_room(error: ProposeError) -> Self {
        match error {
            ProposeError::Refused(Refusal::InvalidParam(why) | Refusal::Forbidden(why)) => {
                Self::Invalid(why)
            }
            ProposeError::Refused(
                error @ (Refusal::UnableToGrantJoin | Refusal::AgainstPolicy(_)),
            ) => Self::invalid(error),
            other => Self::Propose(other),
        }
    }
}

impl ActContext {
    /// The account that an order names by its id or its local part.
    pub fn user_id(&self, name: &str) -> Result<OwnedUserId, ActError> {
        let server = &self.engine.env().server.name;
        let user_id = match UserId::parse(name) {
            Ok(user_id) => Some(user_id),
            Err(_) => UserId::parse_with_server_name(name, server).ok(),
        };
        let user_id = user_id.filter(|user_id| self.engine.state().accounts.contains(user_id));
        user_id.ok_or_else(|| ActError::NoUser(name.to_owned()))
    }

    /// As [`ActContext::user_id`], or the user of another homeserver with this id.
    pub(super) fn user_anywhere(&self, name: &str) -> Result<OwnedUserId, ActError> {
        let elsewhere = UserId::parse(name).ok();
        let elsewhere = elsewhere.filter(|user_id| !is_local(&self.engine.env().server, user_id));
        elsewhere.map_or_else(|| self.user_id(name), Ok)
    }

    /// As [`ActContext::user_id`], if the account is not deactivated.
    pub(super) fn active(&self, name: &str) -> Result<OwnedUserId, ActError> {
        let user_id = self.user_id(name)?;
        match self.engine.state().accounts.is_deactivated(&user_id) {
            true => Err(ActError::Deactivated(user_id)),
            false => Ok(user_id),
        }
    }

    /// The id of an account that does not exist yet.
    pub(super) fn new_user_id(&self, name: &str) -> Result<OwnedUserId, ActError> {
        let server = &self.engine.env().server.name;
        let local = name.strip_prefix('@').and_then(|name| {
            name.split_once(':').filter(|(_, of)| of == server).map(|(local, _)| local)
        });
        let user_id = new_user_id_of(server, local.unwrap_or(name))?;
        if self.notices.is_sender(&user_id) { Err(ActError::Taken(user_id)) } else { Ok(user_id) }
    }

    /// The devices that a user is logged in on.
    pub(super) fn devices(&self, user_id: &UserId) -> Vec<OwnedDeviceId> {
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

    /// Checks a password against the policy, and hashes it.
    pub(super) async fn hash(
        &self,
        user_id: &UserId,
        password: Secret,
    ) -> Result<Secret, ActError> {
        let fit = policy::check(&self.policy, user_id.localpart(), password.expose());
        fit.map_err(ActError::Unfit)?;
        let hash = self.passwords.hash(password.expose().to_owned()).await;
        hash.map_err(ActError::invalid)
    }

    /// Unbinds a user's addresses from identity servers. Returns those that remain bound, as text.
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

    /// The room that an order names by its id or an alias.
    pub fn room(&self, name: &str) -> Result<Arc<Room>, ActError> {
        let room_id = self.room_id(name)?;
        let room = self.engine.state().rooms.get(&room_id);
        room.ok_or_else(|| ActError::NoRoom(name.to_owned()))
    }

    /// As [`ActContext::room`], but an id may be that of an unknown room.
    pub(super) fn room_id(&self, name: &str) -> Result<OwnedRoomId, ActError> {
        let no_room = || ActError::NoRoom(name.to_owned());
        if let Ok(alias) = <&RoomAliasId>::try_from(name) {
            let target = self.engine.state().aliases.get(alias, Offset::MAX);
            return target.map(|target| target.room_id).ok_or_else(no_room);
        }
        if let Ok(room_id) = RoomId::parse(name) {
            return Ok(room_id);
        }
        let why = format!("`{name}` is neither the id of a room nor an alias.");
        Err(ActError::Invalid(why))
    }

    pub(super) fn new_room_id(&self) -> Result<OwnedRoomId, ActError> {
        let server = &self.engine.env().server.name;
        let id = RoomId::parse(format!("!{}:{server}", random_letters(18)));
        id.map_err(ActError::invalid)
    }

    /// A text in the content of one of a room's state events.
    pub(super) fn state_text(
        &self,
        room: &Room,
        kind: StateEventType,
        field: &str,
    ) -> Result<Option<String>, ReadError> {
        self.engine.events().state_text(room, &kind, field, Offset::MAX)
    }

    /// Who caused a record, as text.
    pub(super) fn author_of(&self, offset: Offset) -> Result<String, ReadError> {
        let records = self.engine.log().read(offset, 1)?;
        let origin = records.into_iter().next().map(|record| record.header.origin);
        if let Some(import) = origin.as_ref().and_then(Origin::import) {
            return Ok(import.source.title().to_owned());
        }
        Ok(match origin {
            Some(origin) if &*origin.user == "admin" => format!("admin ({})", origin.device),
            Some(origin) if !origin.user.is_empty() => origin.user.into(),
            _ => "server".to_owned(),
        })
    }

    /// When what a record says happened, in milliseconds since the Unix epoch.
    pub fn time_of(&self, offset: Offset) -> Result<u64, ReadError> {
        let records = self.engine.log().read(offset, 1)?;
        Ok(records.first().map_or(0, |record| record.happened_ms()))
    }

    /// The reason that was recorded with a record of an act.
    pub fn reason_for(&self, offset: Offset) -> Result<Option<String>, ReadError> {
        let records = self.engine.log().read(offset, 2)?;
        let is_batch = records.first().is_some_and(|first| first.header.batch_remaining > 0);
        Ok(match records.get(1).filter(|_| is_batch).map(Record::command) {
            Some(Ok(Some(Command::AdminReason(body)))) => Some(body.reason),
            _ => None,
        })
    }
}
