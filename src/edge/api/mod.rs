//! The endpoints: each handler turns a typed request into a proposal or a look, and the outcome
//! into a typed response. What the server serves is the list in [`endpoints`].

mod account_data;
mod address_invite;
mod admin;
pub(crate) mod appservice;
mod as_of;
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
use http::{Method, Uri};
use ruma::{OwnedRoomId, OwnedUserId, RoomId, RoomOrAliasId, UserId};

use self::page::refusal;
use crate::{
    base::{background::at_length, long_work::LongWork, rate::household, signed::Signer},
    config::Config,
    decide::Proposal,
    edge::http::{Access, ApiError, App, Caller, Cx, OpenTo, Session, Table},
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

const GET: Method = Method::GET;
const PUT: Method = Method::PUT;
const REQUIRED: Access = Access::Required;

/// Every endpoint there is, section by section of the client-server API.
pub(crate) fn endpoints(config: &Config) -> Table<Server> {
    let table = Table::new(&config.server.prefixes, rights::of);
    // In words that are not of the Matrix API: a list of its own.
    admin::endpoints(table)
        // Discovery
        .on(discovery::versions)
        .on_json(discovery::well_known)
        .on(discovery::support)
        .on_json(discovery::policy_server)
        .on(discovery::auth_metadata)
        .on_json(capabilities::get)
        // Accounts and sessions
        .on_json(registration::register)
        .on(registration::available)
        .on(registration::token_validity)
        .page(uiaa::PATHS, refusal, uiaa::page)
        .form(uiaa::PATHS, refusal, uiaa::submit)
        .on(login::login_types)
        .on(login::login)
        .on(login_token::get_token)
        .page(login_page::PATH, refusal, login_page::page)
        .page(sso::REDIRECT, refusal, sso::redirect)
        .page(sso::CALLBACK, refusal, sso::come_back)
        .raw_json(Method::POST, sso::ACCOUNT, Access::None, sso::choose_account)
        .page(sso::FALLBACK, refusal, sso::fallback)
        .raw_json(Method::POST, sso::LINK, REQUIRED, sso::link)
        .on(session::refresh)
        .on(session::logout)
        .on(session::logout_all)
        .on(session::whoami)
        .on(password::change_password)
        .on(validation::by_email_to_register)
        .on(validation::by_msisdn_to_register)
        .on(validation::by_email_for_password)
        .on(validation::by_msisdn_for_password)
        .on(validation::by_email_to_add)
        .on(validation::by_msisdn_to_add)
        .page(validation::SUBMIT, refusal, validation::page)
        .raw(Method::POST, validation::SUBMIT, Access::None, validation::submit)
        .on_json(threepid::list)
        .raw_json(Method::POST, threepid::OLD_BIND, REQUIRED, threepid::old_bind)
        .on(threepid::add)
        .on(threepid::bind)
        .on(threepid::unbind)
        .on(threepid::delete)
        .on(deactivate::deactivate)
        .raw_json(GET, shared_secret::PATH, Access::None, shared_secret::nonce)
        .raw_json(Method::POST, shared_secret::PATH, Access::None, shared_secret::register)
        // Administration
        .on(moderation::is_locked)
        .on(moderation::lock)
        .on(moderation::is_suspended)
        .on(moderation::suspend)
        .on(moderation::whois)
        // Devices, profile, account data
        .on(device::list)
        .on(device::get)
        .on(device::rename)
        .on(device::delete)
        .on(device::delete_many)
        .raw_json(PUT, dehydrated::PATH, REQUIRED, dehydrated::put)
        .raw_json(GET, dehydrated::PATH, REQUIRED, dehydrated::get)
        .raw_json(Method::DELETE, dehydrated::PATH, REQUIRED, dehydrated::delete)
        .raw_json(Method::POST, dehydrated::EVENTS, REQUIRED, dehydrated::events)
        .on_json_as_of(profile::get)
        .on_json_as_of(profile::get_field)
        .on(profile::set_field)
        .on(profile::delete_field)
        .on(account_data::get_global)
        .on(account_data::set_global)
        .on(account_data::get_room)
        .on(account_data::set_room)
        .raw_json(Method::DELETE, account_data::GLOBAL, Access::Required, account_data::delete)
        .raw_json(Method::DELETE, account_data::OF_ROOM, Access::Required, account_data::delete)
        .on_json(account_data::tags)
        .on(account_data::set_tag)
        .on(account_data::delete_tag)
        // Sync
        .on(filter::create)
        .on_json(filter::get)
        .on_json(sync::sync)
        .on(presence::set)
        .on_json(presence::get)
        .on_json(sliding::sync)
        // Rooms: making, joining, leaving
        .on(create_room::create_room)
        .on(upgrade::upgrade)
        .on(membership::join)
        .on(membership::join_by_id_or_alias)
        .on(membership::knock)
        .on(membership::leave)
        .on(membership::forget)
        .on(membership::invite)
        .raw_json(PUT, address_invite::BOUND, Access::None, address_invite::bound)
        .on(membership::kick)
        .on(membership::ban)
        .on(membership::unban)
        .on(membership::joined_rooms)
        .on(membership::joined_members)
        .on_json(membership::members)
        // Rooms: sending
        .on_json(send::message)
        .on_json(send::state)
        .on(send::redact)
        .raw_json(Method::POST, send::SEND, Access::Required, send::message_without_transaction)
        .raw_json(Method::POST, send::REDACT, Access::Required, send::redact_without_transaction)
        .raw_json(Method::PUT, delayed::SCHEDULE, Access::Required, delayed::put)
        .raw_json(Method::GET, delayed::LIST, Access::Required, delayed::list)
        .raw_json(Method::GET, delayed::ONE, Access::Required, delayed::get)
        .raw_json(Method::POST, delayed::ONE, Access::Optional, delayed::act)
        .raw_json(Method::POST, delayed::ACT, Access::Optional, delayed::act_by_path)
        .on(receipt::receipt)
        .on(receipt::read_markers)
        .on(typing::typing)
        // Rooms: reading
        .on_json(room_state::all)
        .on_json(room_state::one)
        .on_json(timeline::messages)
        .on_json(timeline::event)
        .on_json(context::context)
        .on_json(relations::all)
        .on_json(relations::of_rel_type)
        .on_json(relations::of_rel_type_and_event_type)
        .on_json(relations::threads)
        .on(space::hierarchy)
        .on(space::summary)
        .raw(
            Method::GET,
            "/_matrix/client/unstable/im.nheko.summary/summary/{room_id_or_alias}",
            Access::Optional,
            space::summary_before_v1_15,
        )
        .on(timestamp::timestamp_to_event)
        .on_json(search::search)
        // Reports
        .on(report::event)
        .on(report::room)
        .on(report::user)
        // Directory
        .on(directory::create_alias)
        .on_json_as_of(directory::get_alias)
        .on(directory::delete_alias)
        .on(directory::room_aliases)
        .on(directory::get_visibility)
        .on(directory::set_visibility)
        .on(directory::public_rooms)
        .on(directory::public_rooms_filtered)
        // End-to-end encryption
        .on_json(keys::upload)
        .on_json(keys::query)
        .on_json(keys::claim)
        .on(keys::changes)
        .on(keys::upload_cross_signing)
        .on_json(keys::upload_signatures)
        // Backups of room keys
        .on(key_backup::create)
        .on_json(key_backup::latest)
        .on_json(key_backup::get)
        .on(key_backup::update)
        .on(key_backup::delete)
        .on_json(key_backup::put)
        .on_json(key_backup::put_of_room)
        .on_json(key_backup::put_of_session)
        .on_download(key_backup::keys)
        .on_download(key_backup::keys_of_room)
        .on_json(key_backup::key_of_session)
        .on_json(key_backup::remove)
        .on_json(key_backup::remove_of_room)
        .on_json(key_backup::remove_of_session)
        .on(to_device::send)
        .on(user_directory::search)
        .raw_json(GET, user_directory::MUTUAL_ROOMS, REQUIRED, user_directory::mutual_rooms)
        // Beside rooms: who one is, calls, signing in by QR code
        .on(openid::request_token)
        .raw(GET, openid::USERINFO, Access::None, openid::userinfo)
        .on_json(voip::turn_server)
        .raw_json(GET, voip::TRANSPORTS, REQUIRED, voip::transports)
        .raw_json(GET, retention::CONFIGURATION, REQUIRED, retention::configuration)
        .raw_json(GET, rendezvous::ALL, Access::Optional, rendezvous::is_there)
        .raw_json(Method::POST, rendezvous::ALL, Access::Optional, rendezvous::create)
        .raw_json(GET, rendezvous::ONE, Access::None, rendezvous::get)
        .raw_json(PUT, [rendezvous::ONE, rendezvous::SEND], Access::None, rendezvous::put)
        .raw_json(Method::DELETE, rendezvous::ONE, Access::None, rendezvous::delete)
        .raw_text(Method::POST, rendezvous::FORMER_ALL, rendezvous::former_create)
        .raw_text(GET, rendezvous::FORMER_ONE, rendezvous::former_get)
        .raw_text(PUT, rendezvous::FORMER_ONE, rendezvous::former_put)
        .raw_text(Method::DELETE, rendezvous::FORMER_ONE, rendezvous::former_delete)
        // Application services
        .on(appservice::ping)
        .on(directory::set_network_visibility)
        .raw(GET, thirdparty::PROTOCOLS, REQUIRED, thirdparty::protocols)
        .raw(GET, thirdparty::PROTOCOL, REQUIRED, thirdparty::protocol)
        .raw(GET, thirdparty::LOCATIONS, REQUIRED, thirdparty::locations)
        .raw(GET, thirdparty::USERS, REQUIRED, thirdparty::users)
        // Media
        .on_upload(config.media.max_upload_bytes, media::upload)
        .on(media::create)
        .on_upload(config.media.max_upload_bytes, media::upload_to)
        .on(media::config)
        .on_download(media::download)
        .on_download(media::download_as)
        .on_download(media::thumbnail)
        .on_json(preview::preview)
        .on(media::old_config)
        .on_download(media::old_download)
        .on_download(media::old_download_as)
        .on_download(media::old_thumbnail)
        .on_json(preview::old_preview)
        // Deprecated, and still called
        .raw(GET, old_sync::INITIAL_SYNC, REQUIRED, old_sync::initial_sync)
        .raw(GET, old_sync::ROOM_INITIAL_SYNC, REQUIRED, old_sync::room_initial_sync)
        .raw(GET, old_sync::EVENTS, REQUIRED, old_sync::events)
        .raw(GET, old_sync::EVENT, REQUIRED, old_sync::event)
        // Push
        .on(push::all)
        .on(push::global)
        .on(push::get)
        .on(push::put)
        .on(push::delete)
        .on(push::get_actions)
        .on(push::set_actions)
        .on(push::get_enabled)
        .on(push::set_enabled)
        .on_json(push::notifications)
        .on_json(pusher::list)
        .raw_json(Method::POST, pusher::SET, REQUIRED, pusher::set)
        .page(unsubscribe::PATH, refusal, unsubscribe::page)
        .form(unsubscribe::PATH, refusal, unsubscribe::submit)
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

impl Cx<Server, Option<Session>> {
    /// The same for the session that a raw endpoint with [`Access::Required`] has.
    fn with_session(self) -> Result<Cx<Server>, ApiError> {
        let caller = self.caller.clone().ok_or_else(ApiError::missing_token)?;
        Ok(self.called_by(caller))
    }
}

/// The query of a request that ruma has no type for. Parameters without a value count as not given.
fn query<T: serde::de::DeserializeOwned>(uri: &Uri) -> Result<T, ApiError> {
    let pairs = uri.query().unwrap_or_default().split('&');
    let given: Vec<_> = pairs.filter(|pair| !pair.ends_with('=')).collect();
    serde_html_form::from_str(&given.join("&")).map_err(|error| {
        let message = error.to_string();
        if message.contains("missing field") {
            ApiError::missing_param(message)
        } else {
            ApiError::invalid_param(message)
        }
    })
}

/// Said of a room whose existence is not for the caller to know.
fn not_in_it() -> ApiError {
    ApiError::forbidden("You are not in this room.")
}

/// The body of a request that ruma has no type for, or one that lacks something.
fn body<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::bad_json(error.to_string()))
}

/// As [`body`], for proposals in which a missing field is a parameter that is missing.
fn parameters<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| match error.to_string() {
        missing if missing.starts_with("missing field") => ApiError::missing_param(missing),
        other => ApiError::bad_json(other),
    })
}

/// How large a response may be for the memory that it was made in to be kept for the next.
const KEPT_JSON_BYTES: usize = 256 * 1024;

/// A response that is serialised here.
fn json<T: serde::Serialize>(value: &T) -> Result<bytes::Bytes, ApiError> {
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
    Ok(json)
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
    fn every_write_has_a_class_with_its_own_rate_or_a_documented_exception() {
        let served = endpoints(&Config::default()).list();
        let writes = served.iter().filter(|endpoint| endpoint.method != GET);
        let faults = writes.clone().filter(|endpoint| {
            let is_decided = Class::is_decided(&endpoint.method, endpoint.known_as);
            !is_decided || !endpoint.class.is_none_or(Class::has_rate)
        });
        let faults: Vec<_> = faults.map(|e| (&e.method, e.known_as, e.class)).collect();
        assert!(faults.is_empty(), "give these a class in src/http/class.rs: {faults:#?}");
        // Guards against a filter above that matches nothing.
        assert!(writes.filter(|endpoint| endpoint.class.is_some()).count() > 200);
    }
}
