//! What an operator asks for about rooms.

use std::{cmp::Ordering, sync::Arc};

use ruma::{OwnedRoomId, OwnedUserId, RoomAliasId, RoomId, events::StateEventType};
use serde_json::Value;

use super::{
    acts::{Done, NewRoom, RoomDetails, RoomOrder, RoomSummary, RoomsWanted, ShutdownStatus},
    erasure::of_purge,
    office::{ActError, Office},
    shutdown,
};
use crate::{
    base::{background, clock::random_letters, text},
    decide::moderation::{Because, BeginShutdown, BlockRoom, Empowered, HaveJoin, MakeRoomAdmin},
    log::ReadError,
    read::events::as_shown,
    record::{Offset, Origin, command::Replacement},
    service::erasure::purge::PurgeError,
    state::{Membership, Room},
};

/// Rooms in one answer.
const PAGE: usize = 1000;

/// The longest name of the room in the place of one that is shut down: a line.
const NAME_BYTES: usize = 255;

/// What that room says at most: a page.
const MESSAGE_BYTES: usize = 16 * 1024;

/// What a room is found by among others.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// The greatest first.
    Number(std::cmp::Reverse<u64>),
    /// Those without come last.
    Text(bool, String),
}

/// What a shutdown is to come to.
pub(super) struct Closing {
    /// Whether nobody may get into the room from now on.
    pub(super) block: bool,
    /// The room to which its members and aliases move, if there is to be one.
    pub(super) new_room: Option<NewRoom>,
    /// Whether the room is purged at the end.
    pub(super) purge: bool,
    /// Whether the answer is to wait for the end.
    pub(super) wait: bool,
}

impl Office {
    /// The room that an id or an alias names.
    pub(crate) fn room(&self, name: &str) -> Result<Arc<Room>, ActError> {
        let room_id = self.room_id(name)?;
        let room = self.engine.state().rooms.get(&room_id);
        room.ok_or_else(|| ActError::NoRoom(name.to_owned()))
    }

    /// The id of a room that need not exist, or of the one that an alias names.
    fn room_id(&self, name: &str) -> Result<OwnedRoomId, ActError> {
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

    /// The rooms that are wanted, in order, and how many there are.
    pub(crate) fn rooms(
        &self,
        wanted: &RoomsWanted,
    ) -> Result<(Vec<RoomSummary>, usize), ActError> {
        let search = wanted.search.as_deref().map(text::fold);
        let mut found = Vec::new();
        for room in self.engine.state().rooms.all() {
            let is = |asked: Option<bool>, is: bool| asked.is_none_or(|asked| asked == is);
            let empty = room.counts(Offset::MAX).joined == 0;
            if !is(wanted.public, room.is_public()) || !is(wanted.empty, empty) {
                continue;
            }
            if let Some(search) = &search
                && !self.mentions(&room, search)?
            {
                continue;
            }
            found.push((self.key(&room, wanted.order)?, room));
        }
        found.sort_by(|(a, one), (b, other)| match a.cmp(b) {
            Ordering::Equal => one.id.cmp(&other.id),
            order => order,
        });
        if wanted.reverse {
            found.reverse();
        }
        let total = found.len();
        let limit = wanted.limit.unwrap_or(PAGE).min(PAGE);
        let page = found.into_iter().skip(wanted.from).take(limit);
        let page = page.map(|(_, room)| self.summary_of(&room)).collect::<Result<_, _>>()?;
        Ok((page, total))
    }

    fn mentions(&self, room: &Room, search: &str) -> Result<bool, ReadError> {
        let alias = self.state_text(room, StateEventType::RoomCanonicalAlias, "alias")?;
        let alias = alias.and_then(|alias| alias.split(':').next().map(ToOwned::to_owned));
        let name = self.state_text(room, StateEventType::RoomName, "name")?;
        let texts = [name, alias, Some(room.id.to_string())];
        Ok(texts.into_iter().flatten().any(|of| text::fold(&of).contains(search)))
    }

    fn key(&self, room: &Room, order: RoomOrder) -> Result<Key, ReadError> {
        use StateEventType as Kind;
        let number = |number: u64| Ok(Key::Number(std::cmp::Reverse(number)));
        let count = |count: usize| number(u64::try_from(count).unwrap_or(u64::MAX));
        let named = |text: Option<String>| {
            Key::Text(text.is_none(), text.as_deref().map(text::fold).unwrap_or_default())
        };
        let (kind, field) = match order {
            RoomOrder::JoinedMembers | RoomOrder::JoinedLocalMembers => {
                return number(room.counts(Offset::MAX).joined);
            }
            RoomOrder::Version => return number(room.version.as_str().parse().unwrap_or(0)),
            RoomOrder::Public => return number(room.is_public().into()),
            RoomOrder::StateEvents => return count(room.full_state(Offset::MAX).len()),
            RoomOrder::Federatable => {
                let create = self.state_content(room, Kind::RoomCreate)?;
                return number((create["m.federate"] != Value::Bool(false)).into());
            }
            RoomOrder::Creator => return Ok(named(self.creator(room)?)),
            RoomOrder::Name => (Kind::RoomName, "name"),
            RoomOrder::CanonicalAlias => (Kind::RoomCanonicalAlias, "alias"),
            RoomOrder::Encryption => (Kind::RoomEncryption, "algorithm"),
            RoomOrder::JoinRules => (Kind::RoomJoinRules, "join_rule"),
            RoomOrder::GuestAccess => (Kind::RoomGuestAccess, "guest_access"),
            RoomOrder::HistoryVisibility => (Kind::RoomHistoryVisibility, "history_visibility"),
        };
        Ok(named(self.state_text(room, kind, field)?))
    }

    fn state_text(
        &self,
        room: &Room,
        kind: StateEventType,
        field: &str,
    ) -> Result<Option<String>, ReadError> {
        self.engine.events().state_text(room, &kind, field, Offset::MAX)
    }

    fn state_content(&self, room: &Room, kind: StateEventType) -> Result<Value, ReadError> {
        let Some(offset) = room.state_event(&kind, "", Offset::MAX) else { return Ok(Value::Null) };
        let event = self.engine.events().get(offset)?;
        let event = event.map(|event| as_shown(room, event, Offset::MAX));
        Ok(event.and_then(|event| event.content_as().ok()).unwrap_or_default())
    }

    fn creator(&self, room: &Room) -> Result<Option<String>, ReadError> {
        let create = room.state_event(&StateEventType::RoomCreate, "", Offset::MAX);
        let event = create.map(|offset| self.engine.events().get(offset)).transpose()?.flatten();
        Ok(event.map(|event| event.sender.to_string()))
    }

    fn summary_of(&self, room: &Room) -> Result<RoomSummary, ActError> {
        use StateEventType as Kind;
        let create = self.state_content(room, Kind::RoomCreate)?;
        let joined = room.counts(Offset::MAX).joined;
        Ok(RoomSummary {
            room_id: room.id.clone(),
            name: self.state_text(room, Kind::RoomName, "name")?,
            canonical_alias: self.state_text(room, Kind::RoomCanonicalAlias, "alias")?,
            joined_members: joined,
            joined_local_members: joined,
            version: room.version.to_string(),
            creator: self.creator(room)?,
            encryption: self.state_text(room, Kind::RoomEncryption, "algorithm")?,
            federatable: create["m.federate"] != Value::Bool(false),
            public: room.is_public(),
            join_rules: self.state_text(room, Kind::RoomJoinRules, "join_rule")?,
            guest_access: self.state_text(room, Kind::RoomGuestAccess, "guest_access")?,
            history_visibility: self.state_text(
                room,
                Kind::RoomHistoryVisibility,
                "history_visibility",
            )?,
            state_events: room.full_state(Offset::MAX).len(),
            room_type: create["type"].as_str().map(ToOwned::to_owned),
            events: room.event_count(Offset::MAX),
            blocked: self.engine.state().closures.blocked(&room.id).is_some(),
        })
    }

    /// All that there is to say of a room.
    pub(crate) fn room_details(&self, name: &str) -> Result<RoomDetails, ActError> {
        let (room, state) = (self.room(name)?, self.engine.state());
        let mut joined_local_devices = 0;
        let mut members = Vec::new();
        room.each_joined_now(|user_id| members.push(user_id.clone()));
        for user_id in &members {
            joined_local_devices += self.devices(user_id).len();
        }
        let was_in = |membership| room.members(membership, Offset::MAX).into_iter();
        let mut left = was_in(Membership::Leave).chain(was_in(Membership::Ban));
        let forgotten = members.is_empty()
            && left.all(|(user_id, _)| {
                let part = state.memberships.part(&user_id, &room.id);
                part.is_none_or(|part| part.forgotten.latest() == Some(&true))
            });
        let shutdowns = state.closures.of_room(&room.id).into_iter();
        Ok(RoomDetails {
            summary: self.summary_of(&room)?,
            topic: self.state_text(&room, StateEventType::RoomTopic, "topic")?,
            avatar: self.state_text(&room, StateEventType::RoomAvatar, "url")?,
            joined_local_devices,
            forgotten,
            invited_members: room.counts(Offset::MAX).invited,
            aliases: state.aliases.of_room(&room.id, Offset::MAX),
            shutdowns: shutdowns.map(|shutdown| shutdown::status(&state, shutdown)).collect(),
        })
    }

    /// The shutdown of this id.
    pub(crate) fn shutdown(&self, id: &str) -> Option<ShutdownStatus> {
        let state = self.engine.state();
        state.closures.shutdown(id).map(|shutdown| shutdown::status(&state, shutdown))
    }

    /// The shutdowns of a room, which need not exist.
    pub(crate) fn shutdowns(&self, room_id: &RoomId) -> Vec<ShutdownStatus> {
        let state = self.engine.state();
        let shutdowns = state.closures.of_room(room_id).into_iter();
        shutdowns.map(|shutdown| shutdown::status(&state, shutdown)).collect()
    }

    /// Whether a room is blocked, and then by whom.
    pub(crate) fn block_status(&self, room: &str) -> Result<(bool, Option<String>), ActError> {
        let blocked = self.engine.state().closures.blocked(&self.room_id(room)?);
        Ok((blocked.is_some(), blocked.map(|offset| self.by(offset)).transpose()?))
    }

    /// Who caused a record, in words.
    pub(super) fn by(&self, offset: Offset) -> Result<String, ReadError> {
        let records = self.engine.log().read(offset, 1)?;
        let origin = records.into_iter().next().map(|record| record.header.origin);
        Ok(match origin {
            Some(origin) if &*origin.user == "admin" => format!("admin ({})", origin.device),
            Some(origin) if !origin.user.is_empty() => origin.user.into(),
            _ => "server".to_owned(),
        })
    }

    pub(super) async fn block(
        &self,
        room: &str,
        blocked: bool,
        origin: Origin,
        reason: Option<String>,
    ) -> Result<Done, ActError> {
        let room_id = self.room_id(room)?;
        let proposal = BlockRoom { room_id: room_id.clone(), blocked, reason };
        let changed = self.engine.propose(origin, proposal).await;
        let changed = changed.map_err(ActError::Rejected)?.into_inner();
        Ok(Done::Blocked { room_id, blocked, changed })
    }

    /// Checks what a shutdown is to come to, and settles what is open: the room and the one in its
    /// place.
    pub(super) fn shutdown_plan(
        &self,
        room: &str,
        new_room: Option<NewRoom>,
    ) -> Result<(Arc<Room>, Option<Replacement>), ActError> {
        let room = self.room(room)?;
        let Some(NewRoom { user, name, message }) = new_room else { return Ok((room, None)) };
        let creator = self.user_id(&user)?;
        if self.engine.state().accounts.is_deactivated(&creator) {
            return Err(ActError::Deactivated(creator));
        }
        if name.is_empty() || name.len() > NAME_BYTES || message.len() > MESSAGE_BYTES {
            let why = format!(
                "The name of a room has 1 to {NAME_BYTES} bytes, its message {MESSAGE_BYTES} at most."
            );
            return Err(ActError::Invalid(why));
        }
        let room_id = self.new_room_id()?;
        Ok((room, Some(Replacement { room_id, creator, name, message })))
    }

    pub(super) fn new_room_id(&self) -> Result<OwnedRoomId, ActError> {
        let server = &self.engine.env().server.name;
        let id = RoomId::parse(format!("!{}:{server}", random_letters(18)));
        id.map_err(|error| ActError::Invalid(error.to_string()))
    }

    pub(super) async fn shut_down(
        &self,
        room: &str,
        closing: Closing,
        origin: Origin,
        reason: Option<String>,
    ) -> Result<Done, ActError> {
        let Closing { block, new_room, purge, wait } = closing;
        let (room, replacement) = self.shutdown_plan(room, new_room)?;
        let (id, room_id) = (random_letters(16), room.id.clone());
        let begin = BeginShutdown { id: id.clone(), room_id, block, replacement, purge, reason };
        let begun = self.engine.propose(origin.clone(), begin).await;
        begun.map_err(refused)?.into_inner();
        let shutdown = self.engine.state().closures.shutdown(&id);
        let Some(shutdown) = shutdown else { return Err(ActError::NoRoom(room.id.to_string())) };
        let engine = Arc::clone(&self.engine);
        let going = {
            let shutdown = shutdown.clone();
            tokio::spawn(async move {
                let gone = shutdown::go_on(&engine, &origin, shutdown).await;
                if let Err(error) = &gone {
                    tracing::warn!(%error, "the shutdown of a room resumes at the next start");
                }
                gone
            })
        };
        if wait {
            let gone = going.await;
            let gone = gone.map_err(|error| ActError::Invalid(error.to_string()))?;
            gone.map_err(|error| match error {
                PurgeError::Rejected(error) => refused(error),
                error => of_purge(error),
            })?;
        }
        let status = self.shutdown(&id);
        let status = status.ok_or_else(|| ActError::NoRoom(room.id.to_string()))?;
        Ok(Done::ShutDown(status))
    }

    pub(super) async fn make_room_admin(
        &self,
        room: &str,
        user: &str,
        origin: Origin,
        reason: Option<String>,
    ) -> Result<Done, ActError> {
        let (room, user_id) = (self.room(room)?, self.active(user)?);
        let (room_id, ts) = (room.id.clone(), shutdown::now(&self.engine));
        let of = MakeRoomAdmin { room_id: room_id.clone(), user_id: user_id.clone(), ts };
        let made = self.engine.propose(origin, Because { of, reason }).await;
        let Empowered { by, invited } = made.map_err(refused)?.into_inner();
        Ok(Done::Empowered { room_id, user_id, by, invited })
    }

    pub(super) async fn have_join(
        &self,
        room: &str,
        user: &str,
        origin: Origin,
        reason: Option<String>,
    ) -> Result<Done, ActError> {
        let (room, user_id) = (self.room(room)?, self.active(user)?);
        let (room_id, ts) = (room.id.clone(), shutdown::now(&self.engine));
        let of = HaveJoin { room_id: room_id.clone(), user_id: user_id.clone(), ts };
        let joined = self.engine.propose(origin, Because { of, reason }).await;
        joined.map_err(refused)?.into_inner();
        Ok(Done::Joined { user_id, room_id })
    }

    /// The user that `name` names, whose account is not closed.
    pub(super) fn active(&self, name: &str) -> Result<OwnedUserId, ActError> {
        let user_id = self.user_id(name)?;
        match self.engine.state().accounts.is_deactivated(&user_id) {
            true => Err(ActError::Deactivated(user_id)),
            false => Ok(user_id),
        }
    }

    /// What a shutdown would come to.
    pub(super) fn effect_of_shutdown(
        &self,
        room: &str,
        block: bool,
        new_room: Option<NewRoom>,
    ) -> Result<Vec<String>, ActError> {
        let (room, replacement) = self.shutdown_plan(room, new_room)?;
        let counts = room.counts(Offset::MAX);
        let knocking = room.members(Membership::Knock, Offset::MAX).len();
        let aliases = self.engine.state().aliases.of_room(&room.id, Offset::MAX);
        let mut effect = vec![format!("{} member(s) leave {}", counts.joined, room.id)];
        let waiting = counts.invited + u64::try_from(knocking).unwrap_or(u64::MAX);
        if waiting > 0 {
            effect.push(format!("{waiting} invite(s) and knock(s) are taken back"));
        }
        for alias in aliases {
            effect.push(match &replacement {
                Some(_) => format!("{alias} points at the new room"),
                None => format!("{alias} is removed"),
            });
        }
        if room.is_public() {
            effect.push("the public directory does not list the room any more".to_owned());
        }
        if let Some(Replacement { creator, name, .. }) = replacement {
            effect.push(format!(
                "{creator} makes a new room, \"{name}\", which all who were in it join"
            ));
        }
        if block {
            effect.push("nobody can join, knock or be invited any more".to_owned());
        }
        Ok(effect)
    }
}

/// What a refusal of the room is to an operator: a sentence that says why.
fn refused(error: crate::engine::Rejected) -> ActError {
    use crate::{decide::Refusal, engine::Rejected};
    match error {
        Rejected::Refused(Refusal::InvalidParam(why) | Refusal::Forbidden(why)) => {
            ActError::Invalid(why)
        }
        Rejected::Refused(error @ Refusal::UnableToGrantJoin) => {
            ActError::Invalid(error.to_string())
        }
        other => ActError::Rejected(other),
    }
}

/// Work that grows with the number of rooms.
pub(super) fn listed(office: &Office, wanted: &RoomsWanted) -> Result<Done, ActError> {
    let (rooms, total) = background::at_length(|| office.rooms(wanted))?;
    Ok(Done::Rooms { rooms, total })
}
