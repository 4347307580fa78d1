//! The endpoints: each handler turns a typed request into a proposal or a look, and the outcome into
//! a typed response. What the server serves is the list in [`endpoints`].

mod account_data;
mod context;
mod create_room;
mod credentials;
mod device;
mod directory;
mod discovery;
mod error;
mod filter;
mod membership;
mod profile;
mod push;
mod receipt;
mod registration;
mod room_state;
mod send;
mod session;
mod sliding;
mod sync;
mod timeline;
pub(crate) mod typing;
pub(crate) mod uiaa;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use ruma::{OwnedRoomId, RoomId, RoomOrAliasId, UserId};

use crate::{
    config::Config,
    decide::Proposal,
    engine::{Durable, Engine},
    events::Viewer,
    http::{ApiError, App, Caller, Cx, Session, Table},
    passwords::Passwords,
    record::{Epoch, Offset},
    state::Room,
    sync::{KnownMembers, sliding::Connections},
    view::{
        View,
        token::{Pos, Token},
    },
};

/// The program behind the endpoints.
pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) engine: Arc<Engine>,
    pub(crate) passwords: Passwords,
    pub(crate) uiaa: uiaa::Sessions,
    pub(crate) known_members: KnownMembers,
    pub(crate) connections: Connections,
    pub(crate) epoch: Epoch,
}

/// Every endpoint there is, section by section of the client-server API.
pub(crate) fn endpoints(config: &Config) -> Table<Server> {
    Table::new(&config.server.prefixes)
        // Discovery
        .on(discovery::versions)
        .on(discovery::well_known)
        .on(discovery::capabilities)
        // Accounts and sessions
        .on_json(registration::register)
        .on(registration::available)
        .on(session::login_types)
        .on(session::login)
        .on(session::refresh)
        .on(session::logout)
        .on(session::logout_all)
        .on(session::whoami)
        .on(session::change_password)
        .on(device::list)
        .on(device::get)
        .on(device::rename)
        .on(device::delete)
        .on(device::delete_many)
        .on_json(profile::get)
        .on_json(profile::get_field)
        .on(profile::set_field)
        .on(profile::delete_field)
        .on(account_data::get_global)
        .on(account_data::set_global)
        .on(account_data::get_room)
        .on(account_data::set_room)
        // Sync
        .on(filter::create)
        .on_json(filter::get)
        .on_json(sync::sync)
        .on_json(sliding::sync)
        // Rooms: making, joining, leaving
        .on(create_room::create_room)
        .on(membership::join)
        .on(membership::join_by_id_or_alias)
        .on(membership::knock)
        .on(membership::leave)
        .on(membership::forget)
        .on(membership::invite)
        .on(membership::kick)
        .on(membership::ban)
        .on(membership::unban)
        .on(membership::joined_rooms)
        .on(membership::joined_members)
        .on_json(membership::members)
        // Rooms: sending
        .on(send::message)
        .on(send::state)
        .on(send::redact)
        .on(receipt::receipt)
        .on(receipt::read_markers)
        .on(typing::typing)
        // Rooms: reading
        .on_json(room_state::all)
        .on_json(room_state::one)
        .on_json(timeline::messages)
        .on_json(timeline::event)
        .on_json(context::context)
        // Directory
        .on(directory::create_alias)
        .on(directory::get_alias)
        .on(directory::delete_alias)
        .on(directory::room_aliases)
        .on(directory::get_visibility)
        .on(directory::set_visibility)
        .on(directory::public_rooms)
        .on(directory::public_rooms_filtered)
        // Push
        .on(push::rules)
}

impl App for Server {
    fn authenticate<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Session, ApiError>> {
        Box::pin(session::authenticate(self, token))
    }
}

impl Server {
    /// The room, if there is one.
    fn room(&self, room_id: &RoomId) -> Result<Arc<Room>, ApiError> {
        self.engine
            .state()
            .rooms
            .get(room_id)
            .ok_or_else(|| ApiError::not_found("There is no such room."))
    }

    /// The room that an id or an alias names.
    fn resolve(&self, room: &RoomOrAliasId) -> Result<OwnedRoomId, ApiError> {
        match <&RoomId>::try_from(room) {
            Ok(room_id) => Ok(room_id.to_owned()),
            Err(alias) => self
                .engine
                .state()
                .aliases
                .get(alias, Offset::MAX)
                .map(|target| target.room_id)
                .ok_or_else(|| ApiError::not_found("There is no such alias.")),
        }
    }

    /// The position that a token names, if it is of this server's history.
    fn position(&self, token: &str) -> Result<Offset, ApiError> {
        let position = self.position_or_abandoned(token)?;
        position.ok_or_else(|| ApiError::invalid_param("What this token names was lost."))
    }

    /// As [`Server::position`]; `None` for a position after which the history was restored to an
    /// earlier moment: what it names never came to be.
    fn position_or_abandoned(&self, token: &str) -> Result<Option<Offset>, ApiError> {
        let not_ours = || ApiError::invalid_param("This is not a token of this server.");
        // A `pos` of sliding sync is good wherever a token is.
        let pos = || token.parse::<Pos>().map(|pos| pos.token);
        let token: Token = token.parse().or_else(|_| pos()).map_err(|_| not_ours())?;
        let offset = token.offset;
        if token.epoch == self.epoch {
            let given_out = offset <= self.engine.head().offset();
            return if given_out { Ok(Some(offset)) } else { Err(not_ours()) };
        }
        let end = self.engine.state().epoch_end(token.epoch).ok_or_else(not_ours)?;
        Ok((offset <= end).then_some(offset))
    }

    /// The token of a position.
    fn token(&self, offset: Offset) -> String {
        Token { epoch: self.epoch, offset }.to_string()
    }

    /// The look of `session` as of the head.
    fn view<'a>(&'a self, session: &'a Session) -> View<'a> {
        View {
            state: self.engine.state(),
            events: self.engine.events(),
            viewer: Viewer {
                user_id: &session.user_id,
                device_id: &session.device_id,
                session: session.session,
                at: self.engine.head().offset(),
                now_ms: self.engine.clock().now_ms(),
            },
        }
    }

    /// The time, as events have it.
    fn now(&self) -> ruma::MilliSecondsSinceUnixEpoch {
        let ms = ruma::UInt::try_from(self.engine.clock().now_ms()).unwrap_or(ruma::UInt::MAX);
        ruma::MilliSecondsSinceUnixEpoch(ms)
    }
}

impl<C: Caller> Cx<Server, C> {
    /// Proposes a change in the caller's name.
    async fn propose<P: Proposal>(&self, proposal: P) -> Result<Durable<P::Outcome>, ApiError> {
        Ok(self.app.engine.propose(self.origin(), proposal).await?)
    }
}

impl Cx<Server> {
    /// The caller's look as of the head.
    fn view(&self) -> View<'_> {
        self.app.view(&self.caller)
    }

    /// Only for the user's own data.
    fn must_be(&self, user_id: &UserId) -> Result<(), ApiError> {
        if user_id == self.caller.user_id {
            Ok(())
        } else {
            Err(ApiError::forbidden("This belongs to another user."))
        }
    }
}

/// Runs work that may take long (it grows with a room's members or a user's rooms) so that the thread's
/// other tasks go on elsewhere meanwhile.
fn at_length<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    if Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

/// A response that is serialised here.
fn json<T: serde::Serialize>(value: &T) -> Result<bytes::Bytes, ApiError> {
    serde_json::to_vec(value).map(Into::into).map_err(ApiError::internal)
}
