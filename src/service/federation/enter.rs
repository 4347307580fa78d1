//! Users of this homeserver join rooms of other homeservers, knock, and reject invites
//! (server-server API, "Joining Rooms", "Knocking upon a room", "Leaving Rooms (Rejecting
//! Invites)").

use std::{borrow::Cow, collections::BTreeMap, ops::Range, sync::Arc};

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, EventId, OwnedEventId, OwnedServerName, RoomId,
    RoomVersionId, ServerName, UserId, events::room::member::MembershipState,
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;
use thiserror::Error;
use tracing::{debug, info};

use super::{
    fetch::as_many_as_state,
    outliers::CheckedEvent,
    pdu::{Pdu, PduError},
    receive::{PduReceiver, Verified},
};
use logcabin_base::{bodies::Urgency, canonical::is_readable, limits, text::encoded};
use logcabin_decide::{
    Env,
    federation::{BeginRoom, EnterRoom, Entered, RemoteMembership},
    member_content,
};
use logcabin_engine::{self as engine, Engine};
use logcabin_outside::federation::{
    AnswerCharge, FederationRequest, FederationResponse, Refused, Unreachable,
};
use logcabin_record::{
    Origin, event_format::references, lax_object::LaxObject, room_version::ROOM_VERSIONS,
};
use logcabin_state::Room;

/// Why a user cannot enter a room of other homeservers.
#[derive(Debug, Error)]
pub enum EnterError {
    #[error("no homeserver is known that is in the room")]
    Nowhere,
    /// A homeserver in the room refused.
    #[error("{server} refuses: {}", .refused.error)]
    Refused { server: OwnedServerName, refused: Refused },
    /// The room has a version that this homeserver does not support.
    #[error("{0} says that the room has version {1}")]
    Version(OwnedServerName, RoomVersionId),
    /// None of the homeservers was reachable.
    #[error("{0} cannot be asked: {1}")]
    Unreachable(OwnedServerName, #[source] Unreachable),
    /// A homeserver's answer is not valid.
    #[error("the answer of {0} is not right: {1}")]
    Wrong(OwnedServerName, String),
    /// This homeserver refuses.
    #[error(transparent)]
    NotRecorded(#[from] engine::ProposeError),
}

#[derive(Deserialize)]
struct Template {
    #[serde(default)]
    room_version: Option<RoomVersionId>,
    event: CanonicalJsonObject,
}

/// The events of a joined room, which are parts of the answer.
#[derive(Deserialize)]
struct Joined<'a> {
    #[serde(borrow, deserialize_with = "as_many_as_state")]
    state: Vec<&'a RawValue>,
    #[serde(borrow, deserialize_with = "as_many_as_state")]
    auth_chain: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    event: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Knocked {
    #[serde(default)]
    knock_room_state: Vec<Box<RawValue>>,
}

/// An event that this homeserver has signed.
pub(super) struct SignedEvent {
    version: RoomVersionId,
    pub(super) event_id: OwnedEventId,
    pub(super) object: LaxObject,
}

/// The membership change that a user makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MembershipChange {
    Join,
    Knock,
    /// Rejects an invite or withdraws a knock. If no homeserver in the room accepts that, it is
    /// recorded only here.
    Leave,
}

/// A request of a local user about a room that this homeserver is not in.
#[derive(Clone, Copy)]
pub struct EntryRequest<'a> {
    pub room_id: &'a RoomId,
    pub user_id: &'a UserId,
    pub reason: Option<&'a str>,
}

impl EnterError {
    /// How much it tells the user: the refusal of a homeserver more than another one's absence, and
    /// least that a homeserver is not in the room.
    fn weight(&self) -> u8 {
        match self {
            Self::Version(..) => 5,
            Self::Refused { refused, .. } if refused.errcode == "M_INCOMPATIBLE_ROOM_VERSION" => 5,
            Self::Refused { refused, .. } if (400..500).contains(&refused.status) => {
                if refused.status == 404 { 3 } else { 4 }
            }
            Self::Refused { .. } | Self::Wrong(..) => 2,
            Self::Unreachable(..) => 1,
            Self::Nowhere | Self::NotRecorded(_) => 0,
        }
    }
}

impl PduReceiver<'_> {
    /// Makes the change through one of these homeservers.
    pub async fn change_membership(
        &self,
        change: MembershipChange,
        wish: EntryRequest<'_>,
        via: &[OwnedServerName],
    ) -> Result<(), EnterError> {
        match self.by_one_of(change, wish, via).await {
            Err(error)
                if change == MembershipChange::Leave
                    && !matches!(error, EnterError::NotRecorded(_)) =>
            {
                info!(room_id = %wish.room_id, %error, "an invite is rejected locally only");
                self.leave_alone(wish).await
            }
            done => done,
        }
    }

    async fn by_one_of(
        &self,
        change: MembershipChange,
        wish: EntryRequest<'_>,
        via: &[OwnedServerName],
    ) -> Result<(), EnterError> {
        let mut worst = EnterError::Nowhere;
        let own = self.federation.client.own_name();
        for server in via.iter().filter(|server| *server != own).take(limits::REMOTE_SERVERS) {
            let done = match change {
                MembershipChange::Join => Box::pin(self.join_by(wish, server)).await,
                MembershipChange::Knock => Box::pin(self.knock_by(wish, server)).await,
                MembershipChange::Leave => Box::pin(self.leave_by(wish, server)).await,
            };
            match done {
                Ok(()) => return Ok(()),
                Err(error @ EnterError::NotRecorded(_)) => return Err(error),
                Err(error) => {
                    debug!(%server, %error, "a room cannot be entered through a homeserver");
                    if error.weight() > worst.weight() {
                        worst = error;
                    }
                }
            }
        }
        Err(worst)
    }

    async fn join_by(&self, wish: EntryRequest<'_>, server: &ServerName) -> Result<(), EnterError> {
        let EntryRequest { room_id, .. } = wish;
        let wrong =
            |why: &dyn std::fmt::Display| EnterError::Wrong(server.to_owned(), why.to_string());
        let signed = self.signed_template("join", wish, MembershipState::Join, server).await?;
        let rules = signed.version.rules().ok_or_else(|| wrong(&"the version of the room"))?;
        let own = self.federation.client.own_name();
        let is_in = self.room(room_id).is_ok_and(|room| room.has_server(own));
        let _entering = (!is_in).then(|| self.federation.entries.begin(room_id));
        let path = sent_to("send_join", room_id, &signed.event_id);
        let path = |version| match version {
            Version::First => path(version),
            Version::Second => format!("{}?omit_members={is_in}", path(version)),
        };
        let question = |version| {
            let question = FederationRequest::put(path(version), &signed.object);
            question.of_state(Urgency::Asked(wish.user_id.to_owned()))
        };
        let answer = self.answer_to_either(server, question).await?;
        let joined: Joined<'_> = answer.parts()?;
        // The join of a restricted room needs the signature of the authorising user's homeserver.
        let object = match joined.event {
            Some(raw) => Pdu::object(raw).map_err(|error| wrong(&error))?,
            None => signed.object,
        };
        let join = Pdu::new(room_id.to_owned(), object, &rules).map_err(|error| wrong(&error))?;
        // Its id does not depend on all of its content.
        if join.event_id != signed.event_id || !join.object.has_own_content() {
            return Err(wrong(&"it changed the join"));
        }
        if is_in {
            // The other homeserver was only needed for its signature.
            let room = self.room(room_id).map_err(|error| wrong(&error))?;
            let join = self.verify(&room, join).await.map_err(|error| wrong(&error))?;
            return self.join_as_another(server, &room, join).await;
        }
        let create = joined.state.iter().find(|raw| is_create(raw));
        let create = create.ok_or_else(|| wrong(&"the state has no first event"))?;
        let create = Pdu::object(create)
            .and_then(|object| Pdu::new(room_id.to_owned(), object, &rules))
            .map_err(|error| wrong(&error))?;
        self.begin(room_id, &signed.version, server, create).await?;
        let room = self.room(room_id).map_err(|error| wrong(&error))?;
        let places = [&joined.auth_chain, &joined.state].map(|events| answer.places(events));
        let ([chain, events], mut charge) = answer.take_apart(places);
        // Those whose authorities come later in the answer.
        let mut waiting = Vec::new();
        let chain = self.take_in(server, &room, chain, &mut charge, &mut waiting, |_| {}).await;
        chain.map_err(|error| wrong(&error))?;
        let mut state = Vec::with_capacity(events.len());
        let mut unverified = BTreeMap::new();
        let found = |checked: &CheckedEvent| match checked {
            CheckedEvent::Known(event_id) => state.push(event_id.clone()),
            CheckedEvent::Valid(event) => state.push(event.event_id.clone()),
            CheckedEvent::Unverified(user_id, event_id) => {
                unverified.insert(user_id.clone(), event_id.clone());
            }
        };
        let taken = self.take_in(server, &room, events, &mut charge, &mut waiting, found).await;
        taken.map_err(|error| wrong(&error))?;
        self.record_outliers(server, &room, waiting, true).await.map_err(|error| wrong(&error))?;
        drop(charge);
        let join = self.verify(&room, join).await.map_err(|error| wrong(&error))?;
        let enter = EnterRoom {
            room_id: room_id.to_owned(),
            event_id: join.event_id.clone(),
            from: server.to_owned(),
            pdu: join.pdu.clone(),
            state,
            unverified,
        };
        // Somebody else may enter the room with another state meanwhile, which undoes parts.
        let most = 4 + limits::FEDERATION_STATE_BYTES / limits::ENTERED_BYTES;
        let mut entered = Entered::Partly;
        for _ in 0..most {
            entered = self.engine.propose(Origin::server(), enter.clone()).await?.into_inner();
            if entered != Entered::Partly {
                break;
            }
        }
        match entered {
            Entered::Yes => return Ok(()),
            Entered::Partly => return Err(wrong(&"its state is too large")),
            Entered::No => {}
        }
        // Another request entered it meanwhile, perhaps through another node.
        self.join_as_another(server, &room, join).await
    }

    /// Records a join that `server` accepted, of a room that this homeserver is in.
    async fn join_as_another(
        &self,
        server: &ServerName,
        room: &Arc<Room>,
        join: Verified,
    ) -> Result<(), EnterError> {
        self.accept(server, room, join).await.map_err(|error| match error {
            PduError::NotRecorded(error) => error.into(),
            error => EnterError::Wrong(server.to_owned(), error.to_string()),
        })
    }

    async fn begin(
        &self,
        room_id: &RoomId,
        version: &RoomVersionId,
        server: &ServerName,
        create: Pdu,
    ) -> Result<(), EnterError> {
        let wrong = |why: String| EnterError::Wrong(server.to_owned(), why);
        let rules = version.rules().ok_or_else(|| wrong("the version of the room".to_owned()))?;
        let event_id = create.event_id.clone();
        let pdu = create.verified(&self.federation.keys, &rules).await;
        let begin = BeginRoom {
            room_id: room_id.to_owned(),
            version: version.clone(),
            event_id,
            from: server.to_owned(),
            pdu: pdu.map_err(|error| wrong(error.to_string()))?,
        };
        self.engine.propose(Origin::server(), begin).await?.into_inner();
        Ok(())
    }

    async fn knock_by(
        &self,
        wish: EntryRequest<'_>,
        server: &ServerName,
    ) -> Result<(), EnterError> {
        let signed = self.signed_template("knock", wish, MembershipState::Knock, server).await?;
        let path = format!(
            "/_matrix/federation/v1/send_knock/{}/{}",
            encoded(wish.room_id.as_str()),
            encoded(signed.event_id.as_str())
        );
        let question = FederationRequest::put(path, &signed.object);
        let knocked: Knocked = self.asked(server, question).await?;
        self.outside(wish, server, signed, knocked.knock_room_state).await
    }

    async fn leave_by(
        &self,
        wish: EntryRequest<'_>,
        server: &ServerName,
    ) -> Result<(), EnterError> {
        let signed = self.signed_template("leave", wish, MembershipState::Leave, server).await?;
        let path = sent_to("send_leave", wish.room_id, &signed.event_id);
        let question = |version| FederationRequest::put(path(version), &signed.object);
        let _: CanonicalJsonObject = self.answer_to_either(server, question).await?.parts()?;
        self.outside(wish, server, signed, Vec::new()).await
    }

    /// Records a leave that no other homeserver knows of.
    pub(super) async fn leave_alone(&self, wish: EntryRequest<'_>) -> Result<(), EnterError> {
        if let Some(leave) = leave_alone(self.engine, wish)? {
            self.engine.propose(Origin::server(), leave).await?.into_inner();
        }
        Ok(())
    }

    async fn outside(
        &self,
        wish: EntryRequest<'_>,
        server: &ServerName,
        signed: SignedEvent,
        stripped: Vec<Box<RawValue>>,
    ) -> Result<(), EnterError> {
        let membership = outside(wish, server, signed, stripped)?;
        self.engine.propose(Origin::server(), membership).await?.into_inner();
        Ok(())
    }

    /// Asks for the template of a membership event, and signs the event.
    async fn signed_template(
        &self,
        what: &str,
        wish: EntryRequest<'_>,
        membership: MembershipState,
        server: &ServerName,
    ) -> Result<SignedEvent, EnterError> {
        let EntryRequest { room_id, user_id, .. } = wish;
        let mut path = format!(
            "/_matrix/federation/v1/make_{what}/{}/{}",
            encoded(room_id.as_str()),
            encoded(user_id.as_str())
        );
        if membership != MembershipState::Leave {
            let versions = ROOM_VERSIONS.iter().map(|version| format!("ver={version}"));
            path = format!("{path}?{}", versions.collect::<Vec<_>>().join("&"));
        }
        let Template { room_version, event } =
            self.asked(server, FederationRequest::get(path)).await?;
        let version = room_version.unwrap_or(RoomVersionId::V1);
        let wrong = |why: String| EnterError::Wrong(server.to_owned(), why);
        if !ROOM_VERSIONS.contains(&version) {
            return Err(EnterError::Version(server.to_owned(), version));
        }
        sign(self.engine, wish, membership, &version, event).map_err(wrong)
    }

    pub(super) async fn asked<T: serde::de::DeserializeOwned>(
        &self,
        server: &ServerName,
        question: FederationRequest,
    ) -> Result<T, EnterError> {
        let unreachable = |error| EnterError::Unreachable(server.to_owned(), error);
        self.answer_to(server, question).await?.json().map_err(unreachable)
    }

    /// The same, to the first version of an endpoint if the homeserver does not know the second.
    pub(super) async fn answer_to_either(
        &self,
        server: &ServerName,
        question: impl Fn(Version) -> FederationRequest,
    ) -> Result<VersionedResponse, EnterError> {
        let (version, answer) = match self.answer_to(server, question(Version::Second)).await {
            Err(EnterError::Refused { refused, .. }) if refused.is_of_unknown_endpoint() => {
                (Version::First, self.answer_to(server, question(Version::First)).await?)
            }
            answer => (Version::Second, answer?),
        };
        Ok(VersionedResponse { server: server.to_owned(), version, answer })
    }

    /// The answer of a homeserver that does not refuse.
    async fn answer_to(
        &self,
        server: &ServerName,
        question: FederationRequest,
    ) -> Result<FederationResponse, EnterError> {
        let unreachable = |error| EnterError::Unreachable(server.to_owned(), error);
        let answer = self.federation.client.send(server, question).await.map_err(unreachable)?;
        match answer.refused() {
            Some(refused) => Err(EnterError::Refused { server: server.to_owned(), refused }),
            None => Ok(answer),
        }
    }
}

/// A leave that no other homeserver knows of, for a room that this homeserver is not in: it ends an
/// invite. `None` if nothing is known of the room.
pub(crate) fn leave_alone(
    engine: &Engine,
    wish: EntryRequest<'_>,
) -> Result<Option<RemoteMembership>, EnterError> {
    let env = engine.env();
    let own = env.server.name.clone();
    let Some(room) = env.state.rooms.get(wish.room_id) else { return Ok(None) };
    let wrong = |why: &dyn std::fmt::Display| EnterError::Wrong(own.clone(), why.to_string());
    let tips = room.extremities();
    let ids = || references(tips.iter().map(|tip| (&*tip.event_id, None)), &room.rules);
    let depth = tips.iter().map(|tip| tip.depth).max().unwrap_or(0).saturating_add(1);
    let depth = depth.min(limits::EVENT_DEPTH);
    let text = |text: &str| CanonicalJsonValue::String(text.to_owned());
    let object = CanonicalJsonObject::from([
        ("type".to_owned(), text("m.room.member")),
        ("room_id".to_owned(), text(wish.room_id.as_str())),
        ("prev_events".to_owned(), ids()),
        ("auth_events".to_owned(), ids()),
        (
            "depth".to_owned(),
            CanonicalJsonValue::Integer(depth.try_into().map_err(|error| wrong(&error))?),
        ),
    ]);
    let signed = sign(engine, wish, MembershipState::Leave, &room.version, object);
    let signed = signed.map_err(|why| wrong(&why))?;
    outside(wish, &own, signed, Vec::new()).map(Some)
}

/// The membership that `server` told of or accepted, as it is recorded.
fn outside(
    wish: EntryRequest<'_>,
    server: &ServerName,
    signed: SignedEvent,
    stripped: Vec<Box<RawValue>>,
) -> Result<RemoteMembership, EnterError> {
    let wrong =
        |error: &dyn std::fmt::Display| EnterError::Wrong(server.to_owned(), error.to_string());
    Ok(RemoteMembership {
        room_id: wish.room_id.to_owned(),
        version: signed.version,
        from: server.to_owned(),
        event_id: signed.event_id,
        pdu: signed.object.to_raw().map_err(|error| wrong(&error))?,
        stripped: bounded(stripped),
    })
}

/// Restricts a template to the user's own event.
fn sign(
    engine: &Engine,
    wish: EntryRequest<'_>,
    membership: MembershipState,
    version: &RoomVersionId,
    mut object: CanonicalJsonObject,
) -> Result<SignedEvent, String> {
    const KEPT: [&str; 4] = ["auth_events", "prev_events", "depth", "content"];
    const AUTHORISED_VIA: &str = "join_authorised_via_users_server";
    let EntryRequest { room_id, user_id, reason } = wish;
    let text = |text: &str| CanonicalJsonValue::String(text.to_owned());
    object.retain(|name, _| KEPT.contains(&name.as_str()));
    let authoriser = match object.remove("content") {
        Some(CanonicalJsonValue::Object(mut content)) => content.remove(AUTHORISED_VIA),
        _ => None,
    };
    let env = engine.env();
    let mut content = member_content(&env, user_id, membership.clone(), reason);
    if let Some(authoriser) = authoriser.filter(|_| membership == MembershipState::Join) {
        content.insert(AUTHORISED_VIA.to_owned(), authoriser);
    }
    let now = engine.clock().timestamp().get();
    object.extend([
        ("type".to_owned(), text("m.room.member")),
        ("room_id".to_owned(), text(room_id.as_str())),
        ("sender".to_owned(), text(user_id.as_str())),
        ("state_key".to_owned(), text(user_id.as_str())),
        ("content".to_owned(), CanonicalJsonValue::Object(content)),
        ("origin_server_ts".to_owned(), CanonicalJsonValue::Integer(now.into())),
    ]);
    seal(&env, version, object)
}

/// The version of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// The one that answers with a status and what the second one answers with.
    First,
    Second,
}

/// The answer of an endpoint that has two versions.
pub(super) struct VersionedResponse {
    server: OwnedServerName,
    version: Version,
    answer: FederationResponse,
}

impl VersionedResponse {
    pub(super) fn parts<'a, T: Deserialize<'a>>(&'a self) -> Result<T, EnterError> {
        let parts = match self.version {
            Version::First => self.answer.parts::<(IgnoredAny, T)>().map(|(_, answer)| answer),
            Version::Second => self.answer.parts(),
        };
        parts.map_err(|error| EnterError::Unreachable(self.server.clone(), error))
    }

    fn places(&self, parts: &[&RawValue]) -> Vec<Range<usize>> {
        self.answer.places(parts)
    }

    /// See [`FederationResponse::take_apart`].
    fn take_apart<const LISTS: usize>(
        self,
        places: [Vec<Range<usize>>; LISTS],
    ) -> ([Vec<Box<RawValue>>; LISTS], AnswerCharge) {
        self.answer.take_apart(places)
    }
}

/// The path by which an event is sent to such an endpoint.
pub(super) fn sent_to(
    what: &str,
    room_id: &RoomId,
    event_id: &EventId,
) -> impl Fn(Version) -> String + use<> {
    let rest = format!("{what}/{}/{}", encoded(room_id.as_str()), encoded(event_id.as_str()));
    move |version| match version {
        Version::First => format!("/_matrix/federation/v1/{rest}"),
        Version::Second => format!("/_matrix/federation/v2/{rest}"),
    }
}

/// Hashes and signs an event.
pub(super) fn seal(
    env: &Env,
    version: &RoomVersionId,
    object: CanonicalJsonObject,
) -> Result<SignedEvent, String> {
    let rules = version.rules().ok_or("the version of the room")?;
    let mut object = LaxObject::from(object);
    object.choose_id(&env.server.name, &rules);
    object.add_content_hash().map_err(|error| error.to_string())?;
    let event_id = object.event_id(&rules).map_err(|error| error.to_string())?;
    env.server.sign_event(&mut object, &rules.redaction).map_err(|error| error.to_string())?;
    Ok(SignedEvent { version: version.clone(), event_id, object })
}

fn is_create(event: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Key<'a> {
        #[serde(rename = "type", borrow)]
        event_type: Cow<'a, str>,
        #[serde(borrow)]
        state_key: Cow<'a, str>,
    }
    let key = serde_json::from_str(event.get());
    key.is_ok_and(|Key { event_type, state_key }| {
        event_type == "m.room.create" && state_key.is_empty()
    })
}

/// The part of stripped state that is kept, in the format for clients.
pub(crate) fn bounded(stripped: Vec<Box<RawValue>>) -> Vec<Box<RawValue>> {
    #[derive(Deserialize, serde::Serialize)]
    struct Stripped {
        #[serde(rename = "type")]
        event_type: String,
        state_key: String,
        sender: ruma::OwnedUserId,
        content: Box<RawValue>,
    }
    let mut left = limits::EVENT_BYTES;
    let mut kept = Vec::new();
    for raw in stripped.into_iter().take(limits::STRIPPED_EVENTS) {
        let Ok(event) = serde_json::from_str::<Stripped>(raw.get()) else { continue };
        let Ok(raw) = serde_json::value::to_raw_value(&event) else { continue };
        if !is_readable(raw.get()) || !event.content.get().starts_with('{') {
            continue;
        }
        if let Some(rest) = left.checked_sub(raw.get().len()) {
            left = rest;
            kept.push(raw);
        }
    }
    kept
}
