//! The program behind the endpoints, and what handlers ask of it.

use std::{net::IpAddr, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Uri};
use ruma::{
    DeviceId, OwnedDeviceId, OwnedRoomId, OwnedServerName, OwnedUserId, RoomId, RoomOrAliasId,
    ServerName, UserId,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::{
    about::health::Healthy,
    account::notices::Notices,
    affinity,
    auth::{rights, session, shared_secret::Nonces, uiaa, validation::Deliveries},
    federation::{Asking, Incoming},
    media::files::Media,
    not_in_it,
    room::{directory::Catalogue, elsewhere::Entering, space, walks::Walks},
    sync::filter::Filters,
};
use crate::{
    base::{long_work::LongWork, rate::household, signed::Signer},
    cluster::Cluster,
    config::Config,
    decide::Proposal,
    edge::http::{ApiError, App, Caller, Cx, OpenTo, Session},
    engine::{Durable, Engine},
    ops::admin::office::Office,
    outside::{
        appservice::{Questions, Service, Services},
        federation::{Amounts, Federation, Kind, Site},
        mail::Messages,
        oidc::Providers,
        outbound::Outbound,
    },
    read::{
        events::Viewer,
        notifications::Unread,
        sync::{CameFrom, KnownMembers, sliding::Connections},
        view::{
            View,
            relations::ThreadsWalk,
            token::{BadToken, HistoryToken, Pos, Token},
        },
    },
    record::{
        Epoch, Offset, Stream,
        command::{PresenceState, Sighting, TokenHash},
    },
    search::Search,
    service::{
        accounts::identity::IdentityServers,
        health::{Health, Trouble},
        last_seen::LastSeen,
        oauth::{Clients, IdTokens, Polls},
        passwords::{Guess, Passwords},
        presence::Tracker,
        remote_names::RemoteNames,
        rendezvous::Meetings,
        samples::Samples,
        tally::Tally,
    },
    state::{Room, rooms::gaps::Place},
};

/// The program behind the endpoints.
pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) engine: Arc<Engine>,
    pub(crate) epoch: Epoch,
    /// The other nodes, if there are any.
    pub(crate) cluster: Option<Arc<dyn Cluster>>,
    /// Whether it can do its work.
    pub(crate) health: Health,
    /// Where what administrators ask for is done.
    pub(crate) office: Arc<Office>,
    pub(crate) auth: Authentication,
    pub(crate) signing: Signing,
    pub(crate) oauth: Oauth,
    pub(crate) sync: Synchronisation,
    pub(crate) listing: Listing,
    pub(crate) outside: Outside,
    pub(crate) media: Media,
    pub(crate) presence: Tracker,
    /// What the metrics were, for the console.
    pub(crate) samples: Arc<Samples>,
    /// What the log consists of, for the console.
    pub(crate) tally: Arc<Tally>,
    pub(crate) last_seen: Arc<LastSeen>,
    /// How often users may be sent messages.
    pub(crate) notices: Notices,
    /// The long work of users, and of those without a login by their address.
    pub(crate) long_work: LongWork<Whose>,
    /// That of other homeservers.
    pub(crate) work_for_servers: LongWork<Whose>,
}

/// What it takes to find out who somebody is.
pub(crate) struct Authentication {
    pub(crate) passwords: Arc<Passwords>,
    /// Sessions of user-interactive authentication.
    pub(crate) uiaa: uiaa::Sessions,
    /// What their stages ask.
    pub(crate) stages: uiaa::Stages,
    /// Nonces of registrations by the shared secret.
    pub(crate) nonces: Nonces,
    /// Messages under way that validate an address.
    pub(crate) deliveries: Deliveries,
    /// Where devices meet that sign each other in.
    pub(crate) rendezvous: Meetings,
    pub(crate) former_rendezvous: Meetings,
}

/// What OAuth 2.0 needs besides the log.
pub(crate) struct Oauth {
    /// The clients of the configuration.
    pub(crate) clients: Clients,
    pub(crate) id_tokens: IdTokens,
    pub(crate) polls: Polls,
}

/// What the server signs with.
pub(crate) struct Signing {
    /// Signs with a key that is not in the log: nobody who reads the log can make what it signs.
    pub(crate) signer: Signer,
    /// Signs with the server's private key, which is in the log: for what is to hold as long as the
    /// log does, and by which nobody gains who can read the log.
    pub(crate) lasting: Signer,
}

/// What syncs share.
pub(crate) struct Synchronisation {
    pub(crate) filters: Filters,
    pub(crate) known_members: KnownMembers,
    /// Connections of sliding sync.
    pub(crate) connections: Connections,
    /// Unread counts.
    pub(crate) unread: Arc<Unread>,
    /// Room for readers of the feed of changes.
    pub(crate) changes: Arc<Semaphore>,
}

/// What is searched, and where pages of lists ended.
pub(crate) struct Listing {
    pub(crate) search: Arc<Search>,
    /// The directory of public rooms.
    pub(crate) catalogue: Catalogue,
    /// Users of other homeservers.
    pub(crate) remote_names: RemoteNames,
    pub(crate) thread_walks: Walks<ThreadsWalk>,
    pub(crate) space_walks: Walks<space::Paused>,
    /// Rooms that this server is not in.
    pub(crate) descriptions: space::elsewhere::Descriptions,
}

/// Other services.
pub(crate) struct Outside {
    pub(crate) outbound: Outbound,
    pub(crate) messages: Arc<Messages>,
    /// Providers of single sign-on.
    pub(crate) providers: Providers,
    /// Application services, and what they are asked.
    pub(crate) services: Services,
    pub(crate) questions: Arc<Questions>,
    /// Other homeservers, where federation is on.
    pub(crate) federation: Option<Arc<Federation>>,
    /// Those who send requests as homeservers.
    pub(crate) incoming: Incoming,
    /// How often clients have them asked.
    pub(crate) asking: Asking,
    /// Rooms of theirs that users are entering.
    pub(crate) entering: Entering,
}

/// Whose long work is done in turns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Whose {
    User(OwnedUserId),
    Address(IpAddr),
    Site(Site),
}

impl App for Server {
    fn elsewhere(&self, method: &Method, uri: &Uri, body: &[u8]) -> Option<u16> {
        let cluster = self.cluster.as_ref()?;
        if let Some(process) = affinity::process_of(uri, body) {
            return Some(process).filter(|process| *process != cluster.tag());
        }
        if let Some(name) = affinity::one_place(uri, body) {
            return cluster.preferred(&name);
        }
        // Two nodes that write into one room decide again and again. While they do, one of them
        // gets all its writes.
        let room = affinity::written_room(method, uri)?;
        let stream = Stream::room(&room);
        self.engine.is_contended(&stream).then(|| cluster.preferred(stream.as_str()))?
    }

    fn is_in_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    fn tell(&self, message: Bytes) {
        if let Some(cluster) = &self.cluster {
            cluster.tell(message);
        }
    }

    fn heard(&self, message: &[u8]) {
        match serde_json::from_slice(message) {
            Ok(Told::Guess { name, client }) => {
                self.auth.passwords.wrong_elsewhere(Guess { name: &name, client });
            }
            Ok(Told::Notice { client }) => self.notices.counted_elsewhere(client),
            Ok(Told::Presence { node, user_id, device_id, activity }) => {
                self.follow_presence(node, &user_id, &device_id, activity);
            }
            Ok(Told::Seen { session, sighting }) => {
                self.last_seen.seen_elsewhere(session, sighting)
            }
            Ok(Told::Back { server }) => {
                if let Some(federation) = &self.outside.federation {
                    federation.sender.is_back_elsewhere(&server);
                }
            }
            Ok(Told::Spent { server, amounts }) => {
                if let Some(federation) = &self.outside.federation {
                    federation.accounts.note(&server, &amounts);
                }
            }
            Err(error) => tracing::debug!(%error, "another node told something unknown"),
        }
    }

    fn forward(&self, node: u16, request: Bytes) -> BoxFuture<'_, Option<Bytes>> {
        match &self.cluster {
            Some(cluster) => cluster.forward(node, request),
            None => Box::pin(std::future::ready(None)),
        }
    }

    fn catch_up(&self) -> Option<BoxFuture<'_, bool>> {
        self.cluster.as_ref().map(|cluster| cluster.is_current())
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a str,
        uri: &'a Uri,
    ) -> BoxFuture<'a, Result<Session, ApiError>> {
        Box::pin(session::authenticate(self, token, uri))
    }

    fn verify<'a>(
        &'a self,
        request: &'a http::Request<&'a [u8]>,
        client: IpAddr,
    ) -> BoxFuture<'a, Result<OwnedServerName, ApiError>> {
        Box::pin(self.signed_by(request, client))
    }

    fn claimed(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        self.not_overdrawn(headers)
    }

    fn answered(&self, server: &ServerName, bytes: usize) {
        if let Some(federation) = &self.outside.federation {
            federation.accounts.charge_bytes(server, Kind::Answer, bytes as u64);
        }
    }

    fn knows(&self, server: &ServerName) -> bool {
        // It has been told of something.
        self.engine.state().destinations.get(server).is_some()
    }

    fn service(&self, token: &str) -> Option<Arc<Service>> {
        self.outside.services.by_token(&TokenHash::of(token))
    }

    fn exempt(&self, session: &Session) -> bool {
        session::exempt(self, session)
    }

    fn seen(&self, session: &Session, client: IpAddr, agent: Option<&str>) {
        self.auth.passwords.seen(&session.user_id, client);
        let now_ms = self.engine.clock().now_ms();
        let device = (&*session.user_id, &*session.device_id, session.session);
        self.last_seen.see(&self.engine.state(), device, client, agent, now_ms);
        if self.cluster.is_some()
            && let Some(sighting) = self.last_seen.to_tell(session.session, now_ms)
        {
            self.tell_others(&Told::Seen { session: session.session, sighting });
        }
    }

    fn admit(&self, session: &Session, open_to: OpenTo) -> Result<(), ApiError> {
        rights::admit(self, session, open_to)
    }
}

impl Healthy for Server {
    fn troubles(&self) -> BoxFuture<'_, Vec<Trouble>> {
        Box::pin(self.health.troubles())
    }
}

/// What a position names was undone by a restore.
pub(super) struct Undone(pub(super) CameFrom);

/// What nodes tell each other, so that limits hold for all of them together.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Told {
    /// A wrong password.
    Guess { name: String, client: IpAddr },
    /// A message that was sent to an address.
    Notice { client: IpAddr },
    /// What a device does, for the node that follows its user's presence.
    Presence { node: u16, user_id: OwnedUserId, device_id: OwnedDeviceId, activity: Activity },
    /// When and from where a device was used.
    Seen { session: Offset, sighting: Sighting },
    /// A homeserver can be reached again, for the node that tells it of events.
    Back { server: OwnedServerName },
    /// What another homeserver has had this one take.
    Spent { server: OwnedServerName, amounts: Amounts },
}

/// What a device does that others may see.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Activity {
    /// It begins a sync that sets this presence.
    Begins(PresenceState),
    /// Such a sync has ended.
    Ends,
    /// Its user has done something.
    Acts,
}

impl Told {
    /// The message for other nodes.
    fn message(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// No user has a longer name.
const TOLD_NAME_BYTES: usize = 255;

impl Server {
    /// Tells the other nodes something, if there are any.
    pub(crate) fn tell_others(&self, told: &Told) {
        if let Some(cluster) = &self.cluster {
            cluster.tell(told.message());
        }
    }

    /// Notes what a device does, or tells the node that follows its user's presence.
    pub(crate) fn note_presence(&self, user_id: &UserId, device_id: &DeviceId, what: Activity) {
        let Some(cluster) = &self.cluster else {
            return self.follow_presence(0, user_id, device_id, what);
        };
        if !self.presence.is_enabled() {
            return;
        }
        let node = cluster.tag();
        let Some(to) = cluster.preferred(Stream::presence(user_id).as_str()) else {
            return self.follow_presence(node, user_id, device_id, what);
        };
        let (user_id, device_id) = (user_id.to_owned(), device_id.to_owned());
        let told = Told::Presence { node, user_id, device_id, activity: what };
        cluster.tell_one(to, told.message());
    }

    fn follow_presence(&self, node: u16, user_id: &UserId, device_id: &DeviceId, what: Activity) {
        let now_ms = self.engine.clock().now_ms();
        match what {
            Activity::Begins(said) => {
                self.presence.sync_begins(user_id, device_id, node, said, now_ms);
            }
            Activity::Ends => self.presence.sync_ends(user_id, device_id, node, now_ms),
            Activity::Acts => self.presence.active(user_id, device_id, now_ms),
        }
    }

    /// From now on, tells the other nodes of wrong passwords.
    pub(crate) fn tell_of_guesses(&self) {
        let Some(cluster) = self.cluster.clone() else { return };
        self.auth.passwords.on_wrong(move |Guess { name, client }| {
            if name.len() <= TOLD_NAME_BYTES {
                let told = Told::Guess { name: name.to_owned(), client };
                cluster.tell(told.message());
            }
        });
    }

    /// From now on, tells the other nodes which homeservers can be reached again, and what they had
    /// this node take.
    pub(crate) fn tell_of_homeservers(&self) {
        let (Some(cluster), Some(federation)) = (self.cluster.clone(), &self.outside.federation)
        else {
            return;
        };
        let others = Arc::clone(&cluster);
        federation.sender.tell_others_with(move |server| {
            cluster.tell(Told::Back { server: server.to_owned() }.message());
        });
        federation.accounts.tell_others_with(move |server, amounts| {
            let told = Told::Spent { server: server.to_owned(), amounts: amounts.to_vec() };
            others.tell(told.message());
        });
    }

    /// The room, for a caller who must be in it. A room that does not exist is refused as one that
    /// the caller may not see, so that nobody learns which rooms exist.
    pub(super) fn room(&self, room_id: &RoomId) -> Result<Arc<Room>, ApiError> {
        self.engine.state().rooms.get(room_id).ok_or_else(not_in_it)
    }

    /// What identity servers are spoken to with.
    pub(super) fn identity_servers(&self) -> IdentityServers<'_> {
        let trusted = &self.config.threepids.identity_servers;
        IdentityServers { engine: &self.engine, outbound: &self.outside.outbound, trusted }
    }

    /// The room, where it is no secret whether it exists.
    pub(super) fn known_room(&self, room_id: &RoomId) -> Result<Arc<Room>, ApiError> {
        let room = self.engine.state().rooms.get(room_id);
        room.ok_or_else(|| ApiError::not_found("There is no such room."))
    }

    /// The room that an id or an alias names.
    pub(super) fn resolve(&self, room: &RoomOrAliasId) -> Result<OwnedRoomId, ApiError> {
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
    pub(super) fn position(&self, token: &str) -> Result<Offset, ApiError> {
        let position = self.position_or_undone(token)?;
        position.map_err(|_| ApiError::invalid_param("What this token names was lost."))
    }

    /// As [`Server::position`], for one who can do with a position that a restore has undone: what
    /// that names never came to be.
    pub(super) fn position_or_undone(
        &self,
        token: &str,
    ) -> Result<Result<Offset, Undone>, ApiError> {
        let not_ours = || ApiError::invalid_param("This is not a token of this server.");
        // A `pos` of sliding sync is good wherever a token is.
        let pos = || token.parse::<Pos>().map(|pos| pos.token);
        // And so is a position in a room's history.
        let past = || {
            let HistoryToken { epoch, place } = token.parse()?;
            Ok::<_, BadToken>(Token { epoch, offset: place.offset() })
        };
        let token = token.parse().or_else(|_| pos()).or_else(|_| past());
        self.place(token.map_err(|_| not_ours())?)
    }

    /// The position in a room's history that a token names.
    pub(super) fn past_position(&self, room: &Room, token: &str) -> Result<Place, ApiError> {
        let offset = self.position(token)?;
        let Ok(HistoryToken { epoch, place: Place::Within { gap, passed } }) = token.parse() else {
            return Ok(Place::After(offset));
        };
        // After a restore, others are found for a gap than had been before.
        let end = if epoch == self.epoch { None } else { self.engine.state().epoch_end(epoch) };
        let known = room.filled_as_of(gap, end.unwrap_or(Offset::MAX));
        if end.is_none() && passed > known {
            // Another node may have given it out.
            let error = ApiError::invalid_param("This is not a token of this server.");
            return Err(error.unless_behind());
        }
        Ok(Place::Within { gap, passed: passed.min(known) })
    }

    /// The token of a position in a room's history.
    pub(super) fn history_token(&self, place: Place) -> String {
        HistoryToken { epoch: self.epoch, place }.to_string()
    }

    /// As [`Server::position_or_undone`], of a token that was read.
    pub(super) fn place(&self, token: Token) -> Result<Result<Offset, Undone>, ApiError> {
        let not_ours = || ApiError::invalid_param("This is not a token of this server.");
        let offset = token.offset;
        if token.epoch == self.epoch {
            let given_out = offset <= self.engine.head().offset();
            // Another node may have given it out.
            return if given_out { Ok(Ok(offset)) } else { Err(not_ours().unless_behind()) };
        }
        let after = self.engine.state().epoch_end(token.epoch).ok_or_else(not_ours)?;
        Ok(if offset <= after { Ok(offset) } else { Err(Undone(CameFrom { token, after })) })
    }

    /// The token of a position.
    pub(super) fn token(&self, offset: Offset) -> String {
        Token { epoch: self.epoch, offset }.to_string()
    }

    /// The look of `session` as of the head.
    pub(super) fn view<'a>(&'a self, session: &'a Session) -> View<'a> {
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
    pub(super) fn now(&self) -> ruma::MilliSecondsSinceUnixEpoch {
        self.engine.clock().timestamp()
    }
}

impl<C: Caller> Cx<Server, C> {
    /// Does work that may take long (it grows with a room's members or a user's rooms), in the
    /// caller's turn and within its share: see [`LongWork`].
    pub(super) async fn at_length<T>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let session = self.caller.session();
        let exempt = session.is_some_and(|session| session::exempt(&self.app, session));
        let turns = match self.caller.server() {
            Some(_) => &self.app.work_for_servers,
            None => &self.app.long_work,
        };
        let done = turns.run(&self.whose(), exempt, work).await;
        done.map_err(|busy| ApiError::limit_exceeded(busy.retry_after))?
    }

    /// Whose work this request is. Names of homeservers are cheap: those of one site are one, and
    /// strangers are told by their address.
    pub(super) fn whose(&self) -> Whose {
        let accounts =
            self.app.outside.federation.as_deref().map(|federation| &federation.accounts);
        match (self.caller.session(), self.caller.server(), accounts) {
            (Some(session), ..) => Whose::User(session.user_id.clone()),
            (None, Some(server), Some(accounts)) if !accounts.is_stranger(server) => {
                Whose::Site(Site::of(server))
            }
            _ => Whose::Address(household(self.client)),
        }
    }

    /// Proposes a change in the caller's name.
    pub(super) async fn propose<P: Proposal>(
        &self,
        proposal: P,
    ) -> Result<Durable<P::Outcome>, ApiError> {
        Ok(self.app.engine.propose(self.origin(), proposal).await?)
    }
}

impl Cx<Server> {
    /// The caller's look as of the head.
    pub(super) fn view(&self) -> View<'_> {
        self.app.view(&self.caller)
    }

    /// Only for the user's own data.
    pub(super) fn must_be(&self, user_id: &UserId) -> Result<(), ApiError> {
        if user_id == self.caller.user_id {
            Ok(())
        } else {
            Err(ApiError::forbidden("This belongs to another user."))
        }
    }
}
