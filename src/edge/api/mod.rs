//! The endpoints: each handler turns a typed request into a proposal or a look, and the outcome
//! into a typed response. What the server serves is the list in [`endpoints`].

pub(crate) mod about;
pub(crate) mod account;
mod admin;
pub(crate) mod appservice;
pub(crate) mod auth;
mod bodies;
pub(crate) mod browser;
pub(crate) mod e2ee;
mod error;
pub(crate) mod media;
pub(crate) mod push;
pub(crate) mod room;
pub(crate) mod sync;

pub(crate) use auth::{sso::callback as sso_callback, uiaa, validation::Deliveries};
pub(crate) use push::unsubscribe::url as unsubscribe_url;

use std::{cell::Cell, net::IpAddr, sync::Arc};

use futures_util::future::BoxFuture;
use http::Uri;
use ruma::{OwnedRoomId, OwnedUserId, RoomId, RoomOrAliasId, UserId};

use crate::{
    base::{background::at_length, long_work::LongWork, rate::household, signed::Signer},
    config::Config,
    decide::Proposal,
    edge::http::{ApiError, App, Caller, Cx, Json, OpenTo, Session, Table},
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
    pub(crate) notices: account::notices::Notices,
    pub(crate) services: Services,
    pub(crate) questions: Arc<Questions>,
    pub(crate) uiaa: uiaa::Sessions,
    pub(crate) nonces: auth::shared_secret::Nonces,
    pub(crate) last_seen: Arc<LastSeen>,
    pub(crate) rendezvous: Meetings,
    pub(crate) former_rendezvous: Meetings,
    pub(crate) stages: uiaa::Stages,
    pub(crate) known_members: KnownMembers,
    /// The filters of syncs.
    pub(crate) filters: sync::filter::Filters,
    pub(crate) search: Arc<Search>,
    pub(crate) catalogue: room::directory::Catalogue,
    pub(crate) connections: Connections,
    pub(crate) epoch: Epoch,
    pub(crate) media: media::files::Media,
    pub(crate) presence: Tracker,
    pub(crate) unread: Arc<Unread>,
    /// The long work of users, and of those without a login by their address.
    pub(crate) long_work: LongWork<Whose>,
    /// Where pages of lists of threads ended.
    pub(crate) thread_walks: room::walks::Walks<ThreadsWalk>,
    /// Where pages of spaces ended.
    pub(crate) space_walks: room::walks::Walks<room::space::Paused>,
}

/// Whose long work is done in turns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Whose {
    User(OwnedUserId),
    Address(IpAddr),
}

/// Every endpoint there is, section by section of the client-server API.
pub(crate) fn endpoints(config: &Config) -> Table<Server> {
    let table = Table::new(&config.server.prefixes);
    let sections = [
        admin::endpoints,
        about::endpoints,
        auth::endpoints,
        account::endpoints,
        sync::endpoints,
        room::endpoints,
        e2ee::endpoints,
        appservice::endpoints,
        media::endpoints,
        push::endpoints,
        browser::endpoints,
    ];
    sections.into_iter().fold(table, |table, section| section(table))
}

impl App for Server {
    fn authenticate<'a>(
        &'a self,
        token: &'a str,
        uri: &'a Uri,
    ) -> BoxFuture<'a, Result<Session, ApiError>> {
        Box::pin(auth::session::authenticate(self, token, uri))
    }

    fn service(&self, token: &str) -> Option<Arc<Service>> {
        self.services.by_token(&TokenHash::of(token))
    }

    fn exempt(&self, session: &Session) -> bool {
        auth::session::exempt(self, session)
    }

    fn seen(&self, session: &Session, client: IpAddr, agent: Option<&str>) {
        self.passwords.seen(&session.user_id, client);
        let now_ms = self.engine.clock().now_ms();
        let device = (&*session.user_id, &*session.device_id, session.session);
        self.last_seen.see(&self.engine.state(), device, client, agent, now_ms);
    }

    fn admit(&self, session: &Session, open_to: OpenTo) -> Result<(), ApiError> {
        auth::rights::admit(self, session, open_to)
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
        let exempt = session.is_some_and(|session| auth::session::exempt(&self.app, session));
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
