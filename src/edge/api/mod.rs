//! The endpoints: each handler turns a typed request into a proposal or a look, and the outcome
//! into a typed response. What the server serves is the list in [`endpoints`].

mod account_data;
mod address_invite;
mod admin;
pub(crate) mod appservice;
mod as_of;
mod bodies;
mod capabilities;
mod claim;
mod context;
mod create_room;
mod credentials;
pub(crate) mod deactivate;
mod dehydrated;
pub(crate) mod delayed;
mod device;
mod device_keys;
pub(crate) mod directory;
mod discovery;
mod error;
mod file;
pub(crate) mod filter;
pub(crate) mod guests;
pub(crate) mod key_backup;
mod keys;
mod login;
mod login_page;
mod login_token;
pub(crate) mod media;
mod membership;
mod moderation;
pub(crate) mod notices;
mod old_sync;
mod openid;
mod page;
mod password;
pub(crate) mod presence;
pub(crate) mod preview;
pub(crate) mod profile;
mod push;
mod pusher;
mod receipt;
mod registration;
mod relations;
mod rendezvous;
mod report;
mod retention;
mod rights;
mod room_state;
mod search;
mod send;
mod session;
pub(crate) mod shared_secret;
mod sliding;
mod space;
mod sso;
mod sync;
mod thirdparty;
mod threepid;
mod timeline;
mod timestamp;
mod to_device;
pub(crate) mod typing;
pub(crate) mod uiaa;
mod unsubscribe;
mod upgrade;
mod user_directory;
mod validation;
mod voip;
mod walks;

pub(crate) use sso::callback as sso_callback;
pub(crate) use unsubscribe::url as unsubscribe_url;
pub(crate) use validation::Deliveries;

use std::{cell::Cell, net::IpAddr, sync::Arc};

use futures_util::future::BoxFuture;
use http::Uri;
use ruma::{OwnedRoomId, OwnedUserId, RoomId, RoomOrAliasId, UserId};

use crate::{
    base::{background::at_length, long_work::LongWork, rate::household, signed::Signer},
    config::Config,
    decide::Proposal,
    edge::http::{
        ApiError, App, Caller, Class, Cx, Json, OpenTo, Session, Table, cheap, limited, unlimited,
    },
    engine::{Durable, Engine},
    ops::admin::office::Office,
    outside::{
        appservice::{Questions, Service, Services},
        messages::Messages,
        oidc::Providers,
        outbound::Outbound,
    },
    read::{
        events::Viewer,
        push::Unread,
        sync::{CameFrom, KnownMembers, sliding::Connections},
        view::{
            View,
            relations::ThreadsWalk,
            token::{Pos, Token},
        },
    },
    record::{Epoch, Offset, command::TokenHash},
    search::Search,
    service::{
        accounts::identity::IdentityServers, last_seen::LastSeen, passwords::Passwords,
        presence::Tracker, rendezvous::Meetings,
    },
    state::Room,
};

/// The program behind the endpoints.
pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) engine: Arc<Engine>,
    /// Where what administrators ask for is done.
    pub(crate) office: Arc<Office>,
    pub(crate) outbound: Outbound,
    pub(crate) messages: Arc<Messages>,
    pub(crate) deliveries: Deliveries,
    /// Providers of single sign-on.
    pub(crate) providers: Providers,
    /// Signs with a key that is not in the log: nobody who reads the log can make what it signs.
    pub(crate) signer: Signer,
    /// Signs with the server's private key, which is in the log: for what is to hold as long as the
    /// log does, and by which nobody gains who can read the log.
    pub(crate) lasting: Signer,
    pub(crate) passwords: Arc<Passwords>,
    pub(crate) notices: notices::Notices,
    pub(crate) services: Services,
    pub(crate) questions: Arc<Questions>,
    pub(crate) uiaa: uiaa::Sessions,
    pub(crate) nonces: shared_secret::Nonces,
    pub(crate) last_seen: Arc<LastSeen>,
    pub(crate) rendezvous: Meetings,
    pub(crate) former_rendezvous: Meetings,
    pub(crate) stages: uiaa::Stages,
    pub(crate) known_members: KnownMembers,
    /// The filters of syncs.
    pub(crate) filters: filter::Filters,
    pub(crate) search: Arc<Search>,
    pub(crate) catalogue: directory::Catalogue,
    pub(crate) connections: Connections,
    pub(crate) epoch: Epoch,
    pub(crate) media: media::Media,
    pub(crate) presence: Tracker,
    pub(crate) unread: Arc<Unread>,
    /// The long work of users, and of those without a login by their address.
    pub(crate) long_work: LongWork<Whose>,
    /// Where pages of lists of threads ended.
    pub(crate) thread_walks: walks::Walks<ThreadsWalk>,
    /// Where pages of spaces ended.
    pub(crate) space_walks: walks::Walks<space::Paused>,
}

/// Whose long work is done in turns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Whose {
    User(OwnedUserId),
    Address(IpAddr),
}

// Why some writes are not limited. The specification of this server ("Endpoints", "Summary") has
// none of them as rate-limited, and what they store is bounded in other ways.
const LOGIN_IS_LIMITED: &str = "a logout needs a login before it, which is limited";
const MESSAGES_ARE_LIMITED: &str = "it writes only when it sends a message, and messages are \
    limited by requester (`api::notices`) and by recipient (`decide::threepid`)";
const FEW_ADDRESSES: &str = "`limits::THREEPIDS` bounds how many addresses an account has, and \
    adding one is limited";
const FILTERS_HAVE_QUOTAS: &str = "filters are never deleted, so `quotas.filters` and \
    `quotas.filter_bytes` bound all that it ever writes";
const ONLY_READS: &str = "it only reads, although its method is POST";

/// Every endpoint there is, section by section of the client-server API.
pub(crate) fn endpoints(config: &Config) -> Table<Server> {
    let table = Table::new(&config.server.prefixes);
    // In words that are not of the Matrix API: a list of its own.
    admin::endpoints(table)
        // Discovery
        .on(discovery::versions, cheap().guests())
        .on(discovery::well_known, cheap())
        .on(discovery::support, cheap())
        .on(discovery::policy_server, cheap())
        .on(discovery::auth_metadata, cheap())
        .on(capabilities::get, limited(Class::Other))
        // Accounts and sessions
        .on(
            registration::register,
            limited(Class::Registration).objects(bodies::AUTH).amended(bodies::guest_registration),
        )
        .on(registration::available, limited(Class::Registration))
        .on(registration::token_validity, limited(Class::Registration))
        .on(uiaa::page, cheap())
        .on(uiaa::submit, limited(Class::Login))
        .on(login::login_types, limited(Class::Other))
        .on(
            login::login,
            limited(Class::Login).objects(bodies::LOGIN).checked(bodies::login_has_type),
        )
        .on(login_token::get_token, limited(Class::Login).suspended().objects(bodies::AUTH))
        .on(login_page::page, cheap())
        .on(sso::redirect, limited(Class::Other))
        .on(sso::come_back, limited(Class::Other))
        .on(sso::choose_account, limited(Class::Login))
        .on(sso::fallback, cheap())
        .on(sso::link, limited(Class::Login).suspended())
        .on(session::refresh, limited(Class::Refresh))
        .on(session::logout, unlimited(LOGIN_IS_LIMITED).guests().suspended().locked())
        .on(session::logout_all, unlimited(LOGIN_IS_LIMITED).guests().suspended().locked())
        .on(session::whoami, limited(Class::Other).guests())
        .on(password::change_password, limited(Class::Account).suspended().objects(bodies::AUTH))
        .on(
            validation::by_email_to_register,
            unlimited(MESSAGES_ARE_LIMITED).checked(bodies::secret_is_opaque),
        )
        .on(
            validation::by_msisdn_to_register,
            unlimited(MESSAGES_ARE_LIMITED).checked(bodies::secret_is_opaque),
        )
        .on(
            validation::by_email_for_password,
            unlimited(MESSAGES_ARE_LIMITED).checked(bodies::secret_is_opaque),
        )
        .on(
            validation::by_msisdn_for_password,
            unlimited(MESSAGES_ARE_LIMITED).checked(bodies::secret_is_opaque),
        )
        .on(
            validation::by_email_to_add,
            unlimited(MESSAGES_ARE_LIMITED).checked(bodies::secret_is_opaque),
        )
        .on(
            validation::by_msisdn_to_add,
            unlimited(MESSAGES_ARE_LIMITED).checked(bodies::secret_is_opaque),
        )
        .on(validation::page, cheap())
        .on(validation::submit, limited(Class::Account))
        .on(threepid::list, cheap())
        .on(threepid::old_bind, unlimited(FEW_ADDRESSES).suspended().objects(bodies::BIND))
        .on(
            threepid::add,
            limited(Class::Account)
                .suspended()
                .objects(bodies::AUTH)
                .checked(bodies::secret_is_opaque),
        )
        .on(threepid::bind, limited(Class::Account).suspended().checked(bodies::secret_is_opaque))
        .on(threepid::unbind, unlimited(FEW_ADDRESSES).suspended())
        .on(threepid::delete, unlimited(FEW_ADDRESSES).suspended())
        .on(deactivate::deactivate, limited(Class::Account).suspended().objects(bodies::AUTH))
        .on(shared_secret::nonce, limited(Class::Registration))
        .on(shared_secret::register, limited(Class::Registration))
        // Administration
        .on(moderation::is_locked, limited(Class::Admin))
        .on(moderation::lock, limited(Class::Admin))
        .on(moderation::is_suspended, limited(Class::Admin))
        .on(moderation::suspend, limited(Class::Admin))
        .on(moderation::whois, limited(Class::Admin))
        // Devices, profile, account data
        .on(device::list, cheap().guests())
        .on(device::get, cheap().guests())
        .on(device::rename, limited(Class::Account).guests().suspended())
        .on(device::delete, limited(Class::Account).suspended().objects(bodies::AUTH))
        .on(device::delete_many, limited(Class::Account).suspended().objects(bodies::AUTH))
        .on(dehydrated::put, limited(Class::Keys).suspended())
        .on(dehydrated::get, limited(Class::Keys))
        .on(dehydrated::delete, limited(Class::Keys).suspended())
        .on(dehydrated::events, limited(Class::Keys).suspended())
        .on(profile::get, cheap())
        .on(profile::get_field, cheap())
        .on(profile::set_field, limited(Class::Profile).guests().amended(bodies::field_of_profile))
        .on(profile::delete_field, limited(Class::Profile))
        .on(account_data::get_global, cheap())
        .on(account_data::set_global, limited(Class::Settings).suspended())
        .on(account_data::get_room, cheap())
        .on(account_data::set_room, limited(Class::Settings).suspended())
        .on(account_data::delete_global, limited(Class::Settings).suspended())
        .on(account_data::delete_of_room, limited(Class::Settings).suspended())
        .on(account_data::tags, cheap())
        .on(account_data::set_tag, limited(Class::Settings).suspended())
        .on(account_data::delete_tag, limited(Class::Settings).suspended())
        // Sync
        .on(filter::create, unlimited(FILTERS_HAVE_QUOTAS).suspended().objects(bodies::FILTER))
        .on(filter::get, cheap())
        .on(sync::sync, cheap().guests())
        .on(presence::set, limited(Class::Ephemeral))
        .on(presence::get, cheap())
        .on(sliding::sync, unlimited(ONLY_READS).suspended().objects(bodies::SLIDING_SYNC))
        // Rooms: making, joining, leaving
        .on(
            create_room::create_room,
            limited(Class::Rooms).objects(bodies::CREATE_ROOM).checked(bodies::room_version_is_one),
        )
        .on(upgrade::upgrade, limited(Class::Rooms).checked(bodies::room_version_is_one))
        .on(membership::join, limited(Class::Joins).guests().objects(bodies::SIGNED_JOIN))
        .on(
            membership::join_by_id_or_alias,
            limited(Class::Joins).guests().objects(bodies::SIGNED_JOIN),
        )
        .on(membership::knock, limited(Class::Joins))
        .on(membership::leave, limited(Class::Messages).guests().suspended())
        .on(membership::forget, limited(Class::Messages).suspended())
        .on(membership::invite, limited(Class::Invites))
        .on(address_invite::bound, limited(Class::Invites))
        .on(membership::kick, limited(Class::Messages))
        .on(membership::ban, limited(Class::Messages))
        .on(membership::unban, limited(Class::Messages))
        .on(membership::joined_rooms, cheap())
        .on(membership::joined_members, limited(Class::Reads))
        .on(membership::members, limited(Class::Reads).guests())
        // Rooms: sending
        .on(send::message, limited(Class::Messages).guests())
        .on(send::state, limited(Class::Messages).guests())
        .on(send::redact, limited(Class::Messages).suspended())
        .on(send::message_without_transaction, limited(Class::Messages).guests())
        .on(send::redact_without_transaction, limited(Class::Messages).suspended())
        .on(delayed::put, limited(Class::Messages))
        .on(delayed::list, limited(Class::Other))
        .on(delayed::get, limited(Class::Other))
        .on(delayed::act, limited(Class::Ephemeral))
        .on(delayed::act_by_path, limited(Class::Ephemeral))
        .on(receipt::receipt, limited(Class::Ephemeral).suspended())
        .on(receipt::read_markers, limited(Class::Ephemeral).suspended())
        .on(typing::typing, limited(Class::Ephemeral))
        // Rooms: reading
        .on(room_state::all, limited(Class::Reads).guests())
        .on(room_state::one, cheap().guests())
        .on(timeline::messages, limited(Class::Reads).guests())
        .on(timeline::event, cheap().guests())
        .on(context::context, cheap().guests())
        .on(relations::all, limited(Class::Reads))
        .on(relations::of_rel_type, limited(Class::Reads))
        .on(relations::of_rel_type_and_event_type, limited(Class::Reads))
        .on(relations::threads, limited(Class::Reads))
        .on(space::hierarchy, limited(Class::Search))
        .on(space::summary, limited(Class::Search).guests())
        .on(space::early_summary, limited(Class::Search).guests())
        .on(timestamp::timestamp_to_event, limited(Class::Search))
        .on(search::search, limited(Class::Search).suspended().objects(bodies::SEARCH))
        // Reports
        .on(report::event, limited(Class::Reports).suspended())
        .on(report::room, limited(Class::Reports).suspended())
        .on(report::user, limited(Class::Reports).suspended())
        // Directory
        .on(directory::create_alias, limited(Class::Directory))
        .on(directory::get_alias, cheap())
        .on(directory::delete_alias, limited(Class::Directory))
        .on(directory::room_aliases, limited(Class::Other))
        .on(directory::get_visibility, cheap())
        .on(directory::set_visibility, limited(Class::Directory))
        .on(directory::public_rooms, limited(Class::Search))
        .on(
            directory::public_rooms_filtered,
            limited(Class::Search).suspended().objects(bodies::PUBLIC_ROOMS),
        )
        // End-to-end encryption
        .on(keys::upload, limited(Class::Keys).guests().suspended().objects(bodies::DEVICE_KEYS))
        .on(keys::query, limited(Class::Keys).guests().suspended())
        .on(keys::claim, limited(Class::Keys).guests().suspended())
        .on(keys::changes, limited(Class::Keys))
        .on(
            keys::upload_cross_signing,
            limited(Class::Keys).suspended().objects(bodies::CROSS_SIGNING),
        )
        .on(keys::upload_signatures, limited(Class::Keys).suspended())
        // Backups of room keys
        .on(key_backup::create, limited(Class::KeyBackups).suspended())
        .on(key_backup::latest, limited(Class::Other))
        .on(key_backup::get, limited(Class::Other))
        .on(key_backup::update, limited(Class::KeyBackups).suspended())
        .on(key_backup::delete, limited(Class::KeyBackups).suspended())
        .on(key_backup::put, limited(Class::KeyBackups).suspended().objects(bodies::ROOM_KEYS))
        .on(
            key_backup::put_of_room,
            limited(Class::KeyBackups).suspended().objects(bodies::ROOM_KEYS_OF_ROOM),
        )
        .on(key_backup::put_of_session, limited(Class::KeyBackups).suspended())
        .on(key_backup::keys, limited(Class::Other))
        .on(key_backup::keys_of_room, limited(Class::Other))
        .on(key_backup::key_of_session, limited(Class::Other))
        .on(key_backup::remove, limited(Class::KeyBackups).suspended())
        .on(key_backup::remove_of_room, limited(Class::KeyBackups).suspended())
        .on(key_backup::remove_of_session, limited(Class::KeyBackups).suspended())
        .on(to_device::send, limited(Class::Ephemeral).guests().suspended())
        .on(user_directory::search, limited(Class::Search).suspended())
        .on(user_directory::mutual_rooms, limited(Class::Search))
        // Beside rooms: who one is, calls, signing in by QR code
        .on(openid::request_token, limited(Class::Ephemeral))
        .on(openid::userinfo, cheap())
        .on(voip::turn_server, limited(Class::Other))
        .on(voip::transports, limited(Class::Other))
        .on(retention::configuration, limited(Class::Other))
        .on(rendezvous::is_there, limited(Class::Other))
        .on(rendezvous::create, limited(Class::Ephemeral).suspended())
        .on(rendezvous::get, limited(Class::Other))
        .on(rendezvous::put, limited(Class::Ephemeral))
        .on(rendezvous::delete, limited(Class::Ephemeral))
        .on(rendezvous::former_create, limited(Class::Ephemeral))
        .on(rendezvous::former_get, limited(Class::Other))
        .on(rendezvous::former_put, limited(Class::Ephemeral))
        .on(rendezvous::former_delete, limited(Class::Ephemeral))
        // Application services
        .on(appservice::ping, limited(Class::Admin))
        .on(directory::set_network_visibility, limited(Class::Admin))
        .on(thirdparty::protocols, cheap())
        .on(thirdparty::protocol, cheap())
        .on(thirdparty::locations, cheap())
        .on(thirdparty::users, cheap())
        // Media
        .on(media::upload, limited(Class::Media))
        .on(media::create, limited(Class::Media))
        .on(media::upload_to, limited(Class::Media))
        .on(media::config, limited(Class::Media))
        .on(media::download, limited(Class::Media).guests())
        .on(media::download_as, limited(Class::Media).guests())
        .on(media::thumbnail, limited(Class::Media).guests())
        .on(preview::preview, limited(Class::Media))
        .on(media::old_config, limited(Class::Media))
        .on(media::old_download, limited(Class::Media))
        .on(media::old_download_as, limited(Class::Media))
        .on(media::old_thumbnail, limited(Class::Media))
        .on(preview::old_preview, limited(Class::Media))
        // Deprecated, and still called
        .on(old_sync::initial_sync, limited(Class::Reads))
        .on(old_sync::room_initial_sync, limited(Class::Reads).guests())
        .on(old_sync::events, cheap().guests())
        .on(old_sync::event, cheap())
        // Push
        .on(push::all, cheap())
        .on(push::global, cheap())
        .on(push::get, cheap())
        .on(push::put, limited(Class::Settings).suspended().objects(bodies::PUSH_RULE))
        .on(push::delete, limited(Class::Settings).suspended())
        .on(push::get_actions, cheap())
        .on(push::set_actions, limited(Class::Settings).suspended())
        .on(push::get_enabled, cheap())
        .on(push::set_enabled, limited(Class::Settings).suspended())
        .on(push::notifications, cheap())
        .on(pusher::list, cheap())
        .on(pusher::set, limited(Class::Settings).suspended().objects(bodies::PUSHER))
        .on(unsubscribe::page, cheap())
        .on(unsubscribe::submit, limited(Class::Account))
}

impl App for Server {
    fn authenticate<'a>(
        &'a self,
        token: &'a str,
        uri: &'a Uri,
    ) -> BoxFuture<'a, Result<Session, ApiError>> {
        Box::pin(session::authenticate(self, token, uri))
    }

    fn service(&self, token: &str) -> Option<Arc<Service>> {
        self.services.by_token(&TokenHash::of(token))
    }

    fn exempt(&self, session: &Session) -> bool {
        session::exempt(self, session)
    }

    fn seen(&self, session: &Session, client: IpAddr, agent: Option<&str>) {
        self.passwords.seen(&session.user_id, client);
        let now_ms = self.engine.clock().now_ms();
        let device = (&*session.user_id, &*session.device_id, session.session);
        self.last_seen.see(&self.engine.state(), device, client, agent, now_ms);
    }

    fn admit(&self, session: &Session, open_to: OpenTo) -> Result<(), ApiError> {
        rights::admit(self, session, open_to)
    }
}

/// What a position names was undone by a restore.
struct Undone(CameFrom);

impl Server {
    /// The room, for a caller who must be in it. A room that does not exist is refused as one that
    /// the caller may not see, so that nobody learns which rooms exist.
    fn room(&self, room_id: &RoomId) -> Result<Arc<Room>, ApiError> {
        self.engine.state().rooms.get(room_id).ok_or_else(not_in_it)
    }

    /// What identity servers are spoken to with.
    fn identity_servers(&self) -> IdentityServers<'_> {
        let trusted = &self.config.threepids.identity_servers;
        IdentityServers { engine: &self.engine, outbound: &self.outbound, trusted }
    }

    /// The room, where it is no secret whether it exists.
    fn known_room(&self, room_id: &RoomId) -> Result<Arc<Room>, ApiError> {
        let room = self.engine.state().rooms.get(room_id);
        room.ok_or_else(|| ApiError::not_found("There is no such room."))
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
        let position = self.position_or_undone(token)?;
        position.map_err(|_| ApiError::invalid_param("What this token names was lost."))
    }

    /// As [`Server::position`], for one who can do with a position that a restore has undone: what
    /// that names never came to be.
    fn position_or_undone(&self, token: &str) -> Result<Result<Offset, Undone>, ApiError> {
        let not_ours = || ApiError::invalid_param("This is not a token of this server.");
        // A `pos` of sliding sync is good wherever a token is.
        let pos = || token.parse::<Pos>().map(|pos| pos.token);
        self.place(token.parse().or_else(|_| pos()).map_err(|_| not_ours())?)
    }

    /// As [`Server::position_or_undone`], of a token that was read.
    fn place(&self, token: Token) -> Result<Result<Offset, Undone>, ApiError> {
        let not_ours = || ApiError::invalid_param("This is not a token of this server.");
        let offset = token.offset;
        if token.epoch == self.epoch {
            let given_out = offset <= self.engine.head().offset();
            return if given_out { Ok(Ok(offset)) } else { Err(not_ours()) };
        }
        let after = self.engine.state().epoch_end(token.epoch).ok_or_else(not_ours)?;
        Ok(if offset <= after { Ok(offset) } else { Err(Undone(CameFrom { token, after })) })
    }

    /// The token of a position.
    fn token(&self, offset: Offset) -> String {
        Token { epoch: self.epoch, offset }.to_string()
    }

    /// The look of `session` as of the head.
    fn view<'a>(&'a self, session: &'a Session) -> View<'a> {
        let state = self.engine.state().share();
        // Others may have taken the place of these projections, and gone on.
        let at = self.engine.head().offset().min(state.applied());
        View {
            state,
            events: self.engine.events(),
            viewer: Viewer {
                user_id: &session.user_id,
                device_id: &session.device_id,
                session: session.session,
                at,
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
    /// Does work that may take long (it grows with a room's members or a user's rooms), in the
    /// caller's turn and within its share: see [`LongWork`].
    async fn at_length<T>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let session = self.caller.session();
        let exempt = session.is_some_and(|session| session::exempt(&self.app, session));
        let done = self.app.long_work.run(&self.whose(), exempt, work).await;
        done.map_err(|busy| ApiError::limit_exceeded(busy.retry_after))?
    }

    /// Whose work this request is.
    fn whose(&self) -> Whose {
        match self.caller.session() {
            Some(session) => Whose::User(session.user_id.clone()),
            None => Whose::Address(household(self.client)),
        }
    }

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

/// Said of a room whose existence is not for the caller to know.
fn not_in_it() -> ApiError {
    ApiError::forbidden("You are not in this room.")
}

/// How large a response may be for the memory that it was made in to be kept for the next.
const KEPT_JSON_BYTES: usize = 256 * 1024;

/// A response that is serialised here.
fn json<T: serde::Serialize>(value: &T) -> Result<Json, ApiError> {
    thread_local! {
        // How long a response will be is not known. To copy it once takes less than to make room
        // for it again and again.
        static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    let mut room = ROOM.take();
    room.clear();
    serde_json::to_writer(&mut room, value).map_err(ApiError::internal)?;
    if room.len() > KEPT_JSON_BYTES {
        return Ok(room.into());
    }
    let json = bytes::Bytes::copy_from_slice(&room);
    ROOM.set(room);
    Ok(Json(json))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::edge::http::Class;

    /// The name of an endpoint in `docs/limits.md`: its path without what all paths of the
    /// client-server API begin with.
    fn short(path: &str) -> &str {
        match path.strip_prefix("/_matrix/client/").and_then(|path| path.split_once('/')) {
            Some(("unstable", rest)) => rest.split_once('/').map_or(rest, |(_, name)| name),
            Some((_, name)) => name,
            None => path,
        }
    }

    /// The name of the setting that a class has its rate from.
    fn setting(class: Option<Class>) -> String {
        let Some(class) = class else { return "none".to_owned() };
        let mut name = String::new();
        for c in format!("{class:?}").chars() {
            if c.is_ascii_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(c.to_ascii_lowercase());
        }
        name
    }

    /// What stands between backticks.
    fn quoted(text: &str) -> impl Iterator<Item = &str> {
        text.split('`').skip(1).step_by(2)
    }

    #[test]
    fn the_chapter_on_limits_names_every_endpoint_with_its_class_and_nothing_that_is_not_there() {
        let chapter = include_str!("../../../docs/limits.md");
        let (_, table) = chapter.split_once("| Endpoint |").expect("a table of endpoints");
        let mut documented = BTreeMap::new();
        for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [endpoints, class, bound, place] = cells[..] else { panic!("not a row: {row}") };
            assert!(!bound.is_empty() && quoted(place).count() > 0, "without a bound: {row}");
            for endpoint in quoted(endpoints) {
                let before = documented.insert(endpoint.to_owned(), class.to_owned());
                assert_eq!(before, None, "{endpoint} is there twice");
            }
        }
        let served = endpoints(&Config::default()).list();
        let served: BTreeMap<_, _> = served
            .iter()
            .map(|one| (format!("{} {}", one.method, short(one.known_as)), setting(one.class)))
            .collect();
        assert!(served.len() > 200, "{}", served.len());
        let difference = |of: &BTreeMap<_, _>, other: &BTreeMap<_, _>| -> BTreeSet<_> {
            let is_missing = |(name, class): &(&String, &String)| other.get(*name) != Some(*class);
            of.iter().filter(is_missing).map(|(name, class)| format!("{name}: {class}")).collect()
        };
        assert_eq!(difference(&served, &documented), BTreeSet::new(), "served otherwise");
        assert_eq!(difference(&documented, &served), BTreeSet::new(), "documented otherwise");

        let (limits, settings) =
            (include_str!("../../base/limits.rs"), include_str!("../../config/mod.rs"));
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        for name in quoted(chapter) {
            if name.starts_with("src/") {
                assert!(root.join(name).is_file(), "there is no {name}");
            } else if name.len() > 2 && name.chars().all(|c| c.is_ascii_uppercase() || c == '_') {
                let constant = format!("const {name}: ");
                assert!(name.starts_with("M_") || limits.contains(&constant), "no {name}");
            } else if let Some((section, setting)) = name.split_once('.')
                && section.chars().all(|c| c.is_ascii_lowercase() || c == '_')
                && !section.is_empty()
            {
                let setting = setting.split(' ').next().unwrap_or_default();
                assert!(settings.contains(&format!("    {section}: ")), "no section {name}");
                assert!(settings.contains(&format!("        {setting}: ")), "no setting {name}");
            }
        }
    }

    #[test]
    fn every_class_of_an_endpoint_has_a_rate_of_its_own_if_it_writes() {
        let served = endpoints(&Config::default()).list();
        let writes = served.iter().filter(|endpoint| endpoint.method != http::Method::GET);
        let other = writes.clone().filter(|write| !write.class.is_none_or(Class::has_rate));
        let other: Vec<_> = other.map(|write| (&write.method, write.known_as)).collect();
        assert!(other.is_empty(), "give these a class: {other:#?}");
        // Guards against a filter above that matches nothing.
        assert!(writes.filter(|endpoint| endpoint.class.is_some()).count() > 200);
    }
}
