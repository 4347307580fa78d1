//! The program behind the endpoints: what all of them share.

pub(in crate::api) mod caller;
pub(crate) mod node_message;
pub(in crate::api) mod positions;

use std::{net::IpAddr, sync::Arc};

use arc_swap::ArcSwap;
use ruma::{OwnedRoomId, OwnedUserId, RoomId, RoomOrAliasId};
use tokio::sync::Semaphore;

use super::answer::not_in_it;
use crate::http::{ApiError, Session};
use logcabin_base::{long_work::LongWork, rate::Refundable, signed::Signer};
use logcabin_cluster::Cluster;
use logcabin_config::{self as config, Config};
use logcabin_engine::Engine;
use logcabin_ops::admin::context::ActContext;
use logcabin_outside::{
    appservice::{QueryClient, Services},
    livekit::Livekit,
    mail::Messages,
    oidc::Providers,
    outbound::Outbound,
};
use logcabin_read::{
    events::Viewer,
    notifications::Unread,
    sync::{KnownMembers, sliding::Connections},
    view::{View, relations::ThreadsWalk},
};
use logcabin_record::{Epoch, Offset};
use logcabin_search::Search;
use logcabin_service::{
    accounts::identity::IdentityServers,
    deliveries::Deliveries,
    federation::{Federation, entry_attempts::EntryAttempts, query_rates::QueryRates},
    filters::Filters,
    health::Health,
    last_seen::LastSeen,
    media::Media,
    nonces::Nonces,
    notices::Notices,
    oauth::{Clients, IdTokens, Polls},
    passwords::Passwords,
    presence::Tracker,
    public_rooms::Catalogue,
    remote_names::RemoteNames,
    rendezvous::RendezvousSessions,
    requester::Requester,
    samples::Samples,
    screening::Screening,
    spaces,
    tally::Tally,
    typing::Typing,
    uiaa,
    walks::Walks,
};
use logcabin_state::Room;

/// The program behind the endpoints.
pub struct Server {
    pub config: Config,
    /// Who may register, as it was configured last.
    pub registration: ArcSwap<config::Registration>,
    pub engine: Arc<Engine>,
    pub epoch: Epoch,
    /// The other nodes, if there are any.
    pub cluster: Option<Arc<dyn Cluster>>,
    /// Whether it can do its work.
    pub health: Health,
    /// Where what administrators ask for is done.
    pub context: Arc<ActContext>,
    pub auth: Authentication,
    pub signing: Signing,
    pub oauth: Oauth,
    pub sync: Synchronisation,
    pub listing: Listing,
    pub outside: Outside,
    pub media: Arc<Media>,
    pub presence: Arc<Tracker>,
    pub typing: Arc<Typing>,
    /// What the metrics were, for the console.
    pub samples: Arc<Samples>,
    /// What the log consists of, for the console.
    pub tally: Arc<Tally>,
    pub last_seen: Arc<LastSeen>,
    /// The operator's checks of what users do.
    pub screening: Arc<Screening>,
    /// How often users may be sent messages.
    pub notices: Notices,
    /// The long work of users, and of those without a login by their address.
    pub long_work: LongWork<Requester>,
    /// That of other homeservers.
    pub work_for_servers: LongWork<Requester>,
}

/// What it takes to find out who somebody is.
pub struct Authentication {
    pub passwords: Arc<Passwords>,
    /// Sessions of user-interactive authentication.
    pub uiaa: uiaa::Sessions,
    /// What their stages ask.
    pub stages: uiaa::Stages,
    /// Nonces of registrations by the shared secret.
    pub nonces: Nonces,
    /// Messages under way that validate an address.
    pub deliveries: Deliveries,
    /// Where devices meet that sign each other in.
    pub rendezvous: RendezvousSessions,
    pub former_rendezvous: RendezvousSessions,
}

/// What OAuth 2.0 needs besides the log.
pub struct Oauth {
    /// The clients of the configuration.
    pub clients: Clients,
    pub id_tokens: IdTokens,
    pub polls: Polls,
}

/// What the server signs with.
pub struct Signing {
    /// Signs with a key that is not in the log: a reader of the log cannot forge these signatures.
    pub signer: Signer,
    /// Signs with the server's private key, which is in the log: for signatures that stay valid as
    /// long as the log does, and that are of no use to a reader of the log.
    pub lasting: Signer,
}

/// What syncs share.
pub struct Synchronisation {
    pub filters: Filters,
    pub known_members: KnownMembers,
    /// Connections of sliding sync.
    pub connections: Connections,
    /// Unread counts.
    pub unread: Arc<Unread>,
    /// Room for readers of the feed of changes.
    pub changes: Arc<Semaphore>,
}

/// What is searched, and where pages of lists ended.
pub struct Listing {
    pub search: Arc<Search>,
    /// The directory of public rooms.
    pub catalogue: Catalogue,
    /// Users of other homeservers.
    pub remote_names: RemoteNames,
    pub thread_walks: Walks<ThreadsWalk>,
    pub space_walks: Walks<spaces::Paused>,
    /// Rooms that this server is not in.
    pub descriptions: spaces::Descriptions,
}

/// Other services.
pub struct Outside {
    pub outbound: Outbound,
    pub messages: Arc<Messages>,
    /// Providers of single sign-on.
    pub providers: Providers,
    /// Application services, and what they are asked.
    pub services: Services,
    pub appservice_queries: Arc<QueryClient>,
    /// Other homeservers, where federation is on.
    pub federation: Option<Arc<Federation>>,
    /// Wrong signatures by address: each may trigger a fetch of keys.
    pub wrong_signatures: Refundable<IpAddr>,
    /// How often clients have them asked.
    pub query_rates: QueryRates,
    /// Rooms of theirs that users are entering.
    pub entry_attempts: EntryAttempts<ApiError>,
    /// The server for calls, if this one lets users into them.
    pub livekit: Option<Livekit>,
    /// How often users show OpenID tokens to get into calls.
    pub call_tokens: Refundable<OwnedUserId>,
}

impl Server {
    /// Whether anyone may register.
    pub(in crate::api) fn is_registration_open(&self) -> bool {
        self.registration.load().is_open(&self.config.server)
    }

    /// Whether accounts that people register for themselves wait for approval.
    pub(in crate::api) fn approves(&self) -> bool {
        self.registration.load().approval
    }

    /// The room, for a caller who must be in it. A room that does not exist is refused as one that
    /// the caller may not see, so that nobody learns which rooms exist.
    pub(in crate::api) fn room(&self, room_id: &RoomId) -> Result<Arc<Room>, ApiError> {
        self.engine.state().rooms.get(room_id).ok_or_else(not_in_it)
    }

    /// What identity servers are spoken to with.
    pub(in crate::api) fn identity_servers(&self) -> IdentityServers<'_> {
        let trusted = &self.config.threepids.identity_servers;
        IdentityServers { engine: &self.engine, outbound: &self.outside.outbound, trusted }
    }

    /// The room, where it is no secret whether it exists.
    pub(in crate::api) fn known_room(&self, room_id: &RoomId) -> Result<Arc<Room>, ApiError> {
        let room = self.engine.state().rooms.get(room_id);
        room.ok_or_else(|| ApiError::not_found("There is no such room."))
    }

    /// The room that an id or an alias names.
    pub(in crate::api) fn resolve(&self, room: &RoomOrAliasId) -> Result<OwnedRoomId, ApiError> {
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

    /// The look of `session` as of the head.
    pub(in crate::api) fn view<'a>(&'a self, session: &'a Session) -> View<'a> {
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
    pub(in crate::api) fn now(&self) -> ruma::MilliSecondsSinceUnixEpoch {
        self.engine.clock().timestamp()
    }

    /// Whether a session is exempt from rate limits: that of an administrator, or of an application
    /// service unless its registration says otherwise.
    pub(crate) fn is_exempt(&self, session: &Session) -> bool {
        match &session.service {
            Some(_) => session.is_exempt(),
            None => {
                self.engine.state().accounts.standing(&session.user_id).is_some_and(|s| s.admin)
            }
        }
    }
}
