//! Projections: what the log adds up to.
//!
//! [`State::apply`] is the only code that changes anything here. It is a pure function of the
//! records: no clock, no randomness, no input or output, so that the same log gives the same state
//! on every machine, which [`State::digest`] proves. Projections hold offsets and small facts; the
//! bodies of events are read from the log.
//!
//! Readers name the offset *as of* which they read and are not disturbed by records that are
//! applied meanwhile: what is newer than their offset is not there for them.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;
use ruma::{
    EventId, OwnedUserId, RoomId, UserId,
    events::{StateEventType, room::member::MembershipState},
};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::base::limits;
use crate::record::{
    Command, CommandError, Epoch, Offset, Record,
    command::{FileHash, Receipt, RoomEvent, RoomPurge, RoomState, ServerIdentity, UserDeactivate},
};
use reads::{Covers, Thread};

pub mod accounts;
pub mod aliases;
mod apply;
pub mod backups;
pub mod closures;
pub mod copies;
pub mod delayed;
pub mod deliveries;
pub mod destinations;
pub mod device_lists;
mod digest;
pub mod erasures;
mod history;
pub mod index;
mod kept;
pub mod keys;
pub mod lifetimes;
pub mod media;
pub mod memberships;
pub mod names;
pub mod notices;
pub mod oauth;
pub mod peers;
pub mod presence;
pub mod pushers;
pub mod reads;
pub mod registration_tokens;
pub mod relations;
mod remote_media;
pub mod reports;
pub mod rooms;
pub mod sections;
pub mod seen;
pub mod threepids;
pub mod to_device;
pub mod tree;
pub mod undone;
pub mod usage;
pub mod validations;

pub use accounts::{Account, Accounts, Device, Standing, TokenUse};
pub use aliases::Aliases;
pub use backups::Backups;
pub use closures::{Closures, Shutdown};
pub use copies::{Copies, Copy};
pub use delayed::{Delayed, DelayedEvent};
pub use deliveries::Deliveries;
pub use destinations::Destinations;
pub use device_lists::DeviceLists;
pub use erasures::Erasures;
pub use history::History;
pub use keys::Keys;
pub use media::Media;
pub use memberships::{Memberships, RoomMembership};
pub use names::Names;
pub use notices::Notices;
pub use oauth::Oauth;
pub use peers::Peers;
pub use presence::Presence;
pub use pushers::{Mailed, Pusher, Pushers};
pub use reads::Reads;
pub use registration_tokens::{RegistrationToken, RegistrationTokens};
pub use relations::{Child, RelatesTo, Sought};
pub use remote_media::RemoteMedia;
pub use reports::Reports;
pub use rooms::{Membership, Room, Rooms};
pub use sections::{SECTIONS, Section};
pub use seen::Seen;
pub use threepids::Threepids;
pub use to_device::ToDevice;
pub use tree::Tree;
pub use undone::Undone;
pub use usage::Usage;
pub use validations::Validations;

/// Why a record could not be applied. Nothing of it was.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The record does not follow the last one.
    #[error("record {found} cannot follow record {applied}")]
    Order {
        /// The last record that was applied.
        applied: Offset,
        /// The record that was to be applied.
        found: Offset,
    },
    /// The record's command cannot be read.
    #[error("record {offset}: {source}")]
    Command {
        /// The record.
        offset: Offset,
        /// The cause.
        source: CommandError,
    },
    /// The room version is not known.
    #[error("record {offset}: room version `{version}` is not known to this version of logcabin")]
    RoomVersion {
        /// The record.
        offset: Offset,
        /// The version.
        version: String,
    },
}

/// Whom a record concerns: data for the world outside, which live is acted upon and in a replay is
/// dropped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Everyone in the room has something new.
    WakeRoom(ruma::OwnedRoomId),
    /// The user has something new.
    WakeUser(OwnedUserId),
    /// The user's presence is new to whoever is in a room with them.
    WakePresence(OwnedUserId),
    /// What is to be sent later, or when, changed.
    Delayed,
    /// Whether guests may be in the room changed.
    GuestAccess(ruma::OwnedRoomId),
    /// No media id names the file any more.
    Unnamed(FileHash),
}

impl Effect {
    /// Whether it wakes long-polls.
    #[must_use]
    pub const fn wakes(&self) -> bool {
        matches!(self, Self::WakeRoom(_) | Self::WakeUser(_) | Self::WakePresence(_))
    }
}

/// All projections.
#[derive(Debug, Default)]
pub struct State {
    applied: AtomicU64,
    /// How often others took the place of such projections in a server.
    generation: AtomicU64,
    server: RwLock<Option<Arc<ServerIdentity>>>,
    /// Each epoch with the offset of its first record.
    epochs: RwLock<History<Epoch>>,
    /// Accounts.
    pub accounts: Accounts,
    /// OAuth clients, what they were granted, and browsers.
    pub oauth: Oauth,
    /// Registration tokens.
    pub registration_tokens: RegistrationTokens,
    /// Under which names users are found.
    pub names: Names,
    /// Rooms.
    pub rooms: Rooms,
    /// Blocked rooms, and those that are being shut down.
    pub closures: Closures,
    /// Where users get the server's notices.
    pub notices: Notices,
    /// The reports that nobody has dealt with yet.
    pub reports: Reports,
    /// The rooms of each user.
    pub memberships: Memberships,
    /// The rooms that restores took away from users.
    pub undone: Undone,
    /// How much each user stores, where no other projection counts it.
    pub usage: Usage,
    /// Keys for end-to-end encryption.
    pub keys: Keys,
    /// Backups of room keys.
    pub backups: Backups,
    /// Messages to devices.
    pub to_device: ToDevice,
    /// When each device was last in use.
    pub seen: Seen,
    /// How far each user has read each room.
    pub reads: Reads,
    /// Room aliases.
    pub aliases: Aliases,
    /// E-mail addresses and phone numbers of accounts.
    pub threepids: Threepids,
    /// Which of them are being validated.
    pub validations: Validations,
    /// What others see of each user's presence.
    pub presence: Presence,
    /// Events that are to be sent later.
    pub delayed: Delayed,
    /// How far those outside have been told.
    pub deliveries: Deliveries,
    /// Other homeservers.
    pub peers: Peers,
    /// How far they have been told of what concerns them.
    pub destinations: Destinations,
    /// The devices of their users.
    pub device_lists: DeviceLists,
    /// What was uploaded.
    pub media: Media,
    /// Files of other homeservers that are in quarantine.
    pub remote_media: RemoteMedia,
    /// To which gateways notifications go.
    pub pushers: Pushers,
    /// What is to be erased from the log, and what was.
    pub erasures: Erasures,
    /// Which backups there are.
    pub copies: Copies,
    /// Where each event is.
    pub events: index::EventIndex,
    /// What each transaction sent.
    pub transactions: index::Transactions,
    /// The last offset of each stream.
    pub streams: index::Streams,
    /// The Merkle tree over the records.
    pub tree: Tree,
}

impl State {
    /// The offset of the last record that was applied.
    #[must_use]
    pub fn applied(&self) -> Offset {
        Offset::new(self.applied.load(Ordering::Acquire))
    }

    /// How often projections in service made way for others, these being the last: what is kept of
    /// what was worked out of them goes by it. It is no part of what the log adds up to.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Notes that these take the place of `before`.
    pub(crate) fn succeed(&self, before: &Self) {
        self.generation.store(before.generation() + 1, Ordering::Relaxed);
    }

    /// The server's identity, once it is recorded.
    #[must_use]
    pub fn server(&self) -> Option<Arc<ServerIdentity>> {
        self.server.read().clone()
    }

    /// The epoch of the newest record.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epochs.read().latest().copied().unwrap_or_default()
    }

    /// The last offset of an epoch that has ended, which a position of that epoch must not be
    /// beyond to be one of this history: of an epoch that was undone as a whole, the last before
    /// the one that followed. `None` for one that has not ended, or never was.
    #[must_use]
    pub fn epoch_end(&self, epoch: Epoch) -> Option<Offset> {
        let epochs = self.epochs.read();
        let next = epochs.changes().find(|(_, begun)| **begun > epoch);
        next.map(|(offset, _)| offset.prev())
    }

    /// A hash of all projections as they stand. Equal digests at equal offsets mean equal state.
    ///
    /// To be called while nothing is being applied.
    #[must_use]
    pub fn digest(&self) -> blake3::Hash {
        let mut digest = digest::Digest::default();
        for section in SECTIONS {
            section.add_to(self, &mut digest);
        }
        digest.finish()
    }

    /// Applies the next record. To be called by one thread at a time.
    ///
    /// # Errors
    /// When the record is not the next one or its command is not known; nothing has changed then.
    pub fn apply(&self, record: &Record) -> Result<Vec<Effect>, ApplyError> {
        let command = record
            .command()
            .map_err(|source| ApplyError::Command { offset: record.offset(), source })?;
        self.apply_as(record, command)
    }

    /// As [`State::apply`], with the record's command decoded; `None` if it was erased.
    pub(crate) fn apply_as(
        &self,
        record: &Record,
        command: Option<Command>,
    ) -> Result<Vec<Effect>, ApplyError> {
        let offset = record.offset();
        let applied = self.applied();
        if offset != applied.next() {
            return Err(ApplyError::Order { applied, found: offset });
        }
        let effects = match command {
            Some(command) => self.apply_command(offset, record.header.time_ms, command)?,
            None => Vec::new(),
        };
        self.streams.record(offset, &record.header.stream);
        self.tree.add(record);
        let mut epochs = self.epochs.write();
        if epochs.latest() != Some(&record.header.epoch) {
            epochs.push(offset, record.header.epoch);
        }
        drop(epochs);
        self.applied.store(offset.get(), Ordering::Release);
        Ok(effects)
    }

    /// What is kept of a user is gone, as if it had never been; the records that held it are found
    /// later.
    fn forget_user(&self, offset: Offset, body: &UserDeactivate) {
        self.threepids.forget(&body.user_id);
        self.usage.forget(&body.user_id);
        self.backups.forget(&body.user_id);
        self.keys.forget_signer(&body.user_id);
        self.erasures.supersede(self.presence.forget(&body.user_id));
        let owed = erasures::Owed { because: offset, messages: body.messages, media: body.media };
        self.erasures.owe(body.user_id.clone(), owed);
    }

    fn purge(&self, offset: Offset, body: RoomPurge) -> Vec<Effect> {
        let room_id = body.room_id;
        let named = erasures::named(&body.records, offset);
        self.aliases.forget(&room_id, |record| named.contains(&record));
        self.erasures.condemn(offset, named);
        if body.more {
            return Vec::new();
        }
        let Some(room) = self.rooms.purge(&room_id) else { return Vec::new() };
        self.memberships.end_room(offset, &room_id, &room.members);
        self.usage.end_room(&room_id);
        self.aliases.end_room(offset, &room_id);
        self.reads.forget_room(&room_id);
        self.erasures.supersede(room.ephemeral);
        let mut records = self.accounts.forget_room(offset, &room_id);
        records.extend(self.delayed.of_room(&room_id));
        records.extend(room.events.iter().filter_map(|event| self.delayed.sent_as(*event)));
        records.extend(room.events);
        self.erasures.condemn(offset, records);
        let purged =
            erasures::Purged { because: offset, version: room.version, created: room.created };
        self.erasures.purge(room_id, purged);
        room.members.into_iter().map(Effect::WakeUser).collect()
    }

    /// Whom a change of the user's devices concerns: those who share a room with them, and
    /// themselves.
    fn device_list(&self, user_id: &UserId) -> Vec<Effect> {
        let mut effects = vec![Effect::WakeUser(user_id.to_owned())];
        let rooms = self.memberships.of(user_id, Offset::MAX).into_iter();
        let joined = rooms.filter(|room| room.membership == Membership::Join);
        effects.extend(joined.map(|room| Effect::WakeRoom(room.room_id)));
        effects
    }

    /// A receipt for an event or in a thread that the room does not have says nothing.
    fn apply_read(&self, offset: Offset, room_id: &RoomId, receipt: &Receipt) {
        let thread = match receipt.thread_id.as_deref() {
            None => Some(Covers::All),
            Some("main") => Some(Covers::Only(Thread::Main)),
            Some(root) => <&EventId>::try_from(root)
                .ok()
                .and_then(|root| self.event_in_room(room_id, root))
                .map(|root| Covers::Only(Thread::Root(root))),
        };
        if let Some(covers) = thread
            && let Some(up_to) = self.event_in_room(room_id, &receipt.event_id)
        {
            // What others have read counts for nobody here.
            let server = self.server();
            if server.is_some_and(|own| receipt.user_id.server_name() != &*own.server_name) {
                return;
            }
            self.pushers.note_read(&receipt.user_id);
            let (user_id, room_id) = (receipt.user_id.clone(), room_id.to_owned());
            self.reads.advance(offset, user_id, room_id, covers, up_to);
        }
    }

    /// Where this event of this room is, found without a look into the log.
    #[must_use]
    pub fn event_in_room(&self, room_id: &RoomId, event_id: &EventId) -> Option<Offset> {
        let room = self.rooms.get(room_id)?;
        self.events.candidates(event_id).into_iter().find(|offset| room.has_event(*offset))
    }

    fn apply_event(
        &self,
        offset: Offset,
        time_ms: u64,
        body: RoomEvent,
    ) -> Result<Vec<Effect>, ApplyError> {
        let unreadable = |source| ApplyError::Command {
            offset,
            source: CommandError::Payload { kind: "room.event", source },
        };
        let pdu: PduFacts<'_> = serde_json::from_str(body.pdu.get()).map_err(unreadable)?;
        let state_key: Option<(StateEventType, Box<str>)> = pdu
            .state_key
            .map(|key| (StateEventType::from(pdu.event_type.as_ref()), key.as_ref().into()));
        // What one says oneself reads the conversation, as `push::Unread` has it.
        if state_key.is_none()
            && let Ok(sender) = <&UserId>::try_from(pdu.sender.as_ref())
        {
            self.pushers.note_read(sender);
        }
        let membership = match &state_key {
            Some((StateEventType::RoomMember, user_id)) => {
                let content: MemberFacts =
                    serde_json::from_str(pdu.content.get()).map_err(unreadable)?;
                let membership = Membership::from_ruma(&content.membership);
                OwnedUserId::try_from(user_id.as_ref()).ok().zip(membership)
            }
            _ => None,
        };
        if let Some(version) = body.room_version {
            let name = version.to_string();
            if !self.rooms.create(offset, body.room_id.clone(), version) {
                return Err(ApplyError::RoomVersion { offset, version: name });
            }
        }
        let mut effects = vec![Effect::WakeRoom(body.room_id.clone())];
        let (mut others, mut changes, mut takes_effect) = (Vec::new(), Vec::new(), true);
        let (is_foreign, mut missing) = (body.received.is_some(), Vec::new());
        let mut beside = false;
        if let Some(received) = body.received {
            (missing, beside) = (received.missing, received.beside);
            others.extend(received.extremities.into_iter().map(rooms::Tip::from));
            if let Some(resolved) = received.resolved {
                takes_effect = resolved.takes_effect;
                changes.extend(resolved.changes.into_iter().map(rooms::graph::Change::of));
            }
        }
        let own = membership.as_ref().filter(|_| takes_effect).into_iter();
        let more = changes.iter().filter_map(|change| change.membership.as_ref());
        for (user_id, membership) in own.chain(more) {
            if is_foreign && *membership == Membership::Join {
                self.suspect_devices(user_id, &body.room_id);
            }
            self.memberships.set(offset, user_id, &body.room_id, *membership);
            self.usage.set_membership(offset, user_id, &body.room_id, *membership, &pdu.sender);
            // Those who are in the room are woken with it; one who leaves is not in it any more.
            effects.push(Effect::WakeUser(user_id.clone()));
        }
        let guest_access = &StateEventType::RoomGuestAccess;
        if matches!(&state_key, Some((kind, key)) if kind == guest_access && key.is_empty())
            || body.redacts.is_some_and(|redacted| {
                let room = self.rooms.get(&body.room_id);
                let access = room.and_then(|room| room.state_event(guest_access, "", offset));
                access == Some(redacted)
            })
        {
            effects.push(Effect::GuestAccess(body.room_id.clone()));
        }
        self.transactions.note(offset, body.transaction.as_ref());
        if let Some(delay_id) = &body.delay_id {
            self.delayed.send(offset, delay_id);
        }
        self.events.insert(offset, &body.event_id);
        let lifetime = match &state_key {
            Some((kind, key)) if key.is_empty() => {
                let kind = kind.to_string();
                let name = RETENTION.iter().position(|name| *name == kind);
                name.map(|name| (name, lifetime(pdu.content)))
            }
            _ => None,
        };
        let relation = self.relation(&pdu.event_type, pdu.content, &body.pdu);
        let relates_to_unknown = relation
            .as_ref()
            .filter(|relation| relation.parents.is_empty())
            .and_then(|_| RelatesTo::of(pdu.content)?.event_id.parse().ok());
        let facts = rooms::EventFacts {
            event_id: body.event_id,
            event_type: (*pdu.event_type).into(),
            lifetime,
            depth: pdu.depth,
            horizon: if is_foreign {
                time_ms.saturating_add(limits::EVENT_AHEAD_MS)
            } else {
                u64::MAX
            },
            takes_effect,
            changes,
            others,
            beside,
            ts: pdu.origin_server_ts,
            state_key,
            membership,
            redacts: body.redacts,
            relation,
            activity: rooms::is_activity(&pdu.event_type),
            missing,
            relates_to_unknown,
            redacts_unknown: (is_foreign && body.redacts.is_none())
                .then(|| redacts(&pdu.event_type, pdu.content, &body.pdu))
                .flatten(),
        };
        if let Some(event) = self.rooms.add_event(offset, &body.room_id, facts) {
            // What scheduled the event has the same content.
            for event in [Some(event), self.delayed.sent_as(event)].into_iter().flatten() {
                self.erasures.redact(erasures::Redacted { event, because: offset, time_ms });
            }
        }
        Ok(effects)
    }

    /// Somebody is about to join a room: whose changes of devices may have been missed, because
    /// they shared no room with users of this server.
    fn suspect_devices(&self, user_id: &UserId, room_id: &RoomId) {
        if self.device_lists.is_empty() {
            return;
        }
        let before = self.memberships.in_room(user_id, room_id, Offset::MAX);
        if before.is_some_and(|before| before.membership == Membership::Join) {
            return;
        }
        self.device_lists.suspect(user_id);
        if !self.is_own(user_id) {
            return;
        }
        let Some(room) = self.rooms.get(room_id) else { return };
        let (mut others, mut is_first) = (Vec::new(), true);
        room.each_joined_now(|user_id| match self.is_own(user_id) {
            true => is_first = false,
            false => others.push(user_id.clone()),
        });
        if is_first {
            others.iter().for_each(|user_id| self.device_lists.suspect(user_id));
        }
    }

    /// Whether it is a user of this homeserver.
    fn is_own(&self, user_id: &UserId) -> bool {
        self.server().is_some_and(|own| user_id.server_name().as_str() == own.server_name)
    }

    /// A room gets the state that it has elsewhere, or that another branch of it has.
    fn enter_room(&self, offset: Offset, body: RoomState) -> Vec<Effect> {
        let changes: Vec<_> = body.changes.into_iter().map(rooms::graph::Change::of).collect();
        let mut effects = vec![Effect::WakeRoom(body.room_id.clone())];
        let members = changes.iter().filter_map(|change| change.membership.as_ref());
        for (user_id, membership) in members {
            if *membership == Membership::Join {
                self.device_lists.suspect(user_id);
            }
            if self.is_own(user_id) {
                effects.push(Effect::WakeUser(user_id.clone()));
            }
            self.memberships.set(offset, user_id, &body.room_id, *membership);
            let sender = user_id.as_str();
            self.usage.set_membership(offset, user_id, &body.room_id, *membership, sender);
        }
        self.rooms.reassign(offset, &body.room_id, changes);
        if let Some(joins) = body.unverified {
            self.rooms.claim(offset, &body.room_id, body.from, joins);
        }
        effects
    }

    /// What is to be known of an event of another homeserver once its place is; nothing more of
    /// state.
    fn waiting(&self, pdu: &RawValue) -> Option<rooms::gaps::Waiting> {
        let facts: PduFacts<'_> = serde_json::from_str(pdu.get()).ok()?;
        if facts.state_key.is_some() {
            return None;
        }
        let relation = self.relation(&facts.event_type, facts.content, pdu);
        let to = RelatesTo::of(facts.content).and_then(|to| to.event_id.parse().ok());
        Some(rooms::gaps::Waiting {
            event_type: (*facts.event_type).into(),
            relation: to.zip(relation),
            redacts: redacts(&facts.event_type, facts.content, pdu),
        })
    }

    /// What the event relates to, if to anything.
    fn relation(
        &self,
        event_type: &str,
        content: &RawValue,
        pdu: &RawValue,
    ) -> Option<relations::NewRelation> {
        let relates_to = RelatesTo::of(content)?;
        let parent = <&EventId>::try_from(&*relates_to.event_id).ok()?;
        let facts: RelationFacts<'_> = serde_json::from_str(pdu.get()).ok()?;
        Some(relations::NewRelation {
            parents: self.events.candidates(parent),
            rel_type: relates_to.rel_type.into_owned(),
            event_type: event_type.to_owned(),
            sender: facts.sender.into_owned(),
            ts: facts.origin_server_ts,
        })
    }
}

/// The state events that say how long events live in a room (MSC1763): the first wins.
pub const RETENTION: [&str; 2] = ["m.room.retention", "org.matrix.msc1763.retention"];

/// How long events live as the content of such a state event says; `None` if it does not, or says
/// what is no time.
pub(crate) fn lifetime(content: &RawValue) -> Option<lifetimes::Own> {
    #[derive(Deserialize)]
    struct Retention {
        #[serde(default)]
        max_lifetime: Option<u64>,
        #[serde(default)]
        min_lifetime: Option<u64>,
    }
    let retention: Retention = serde_json::from_str(content.get()).ok()?;
    let times = |ms: Option<u64>| ms.filter(|ms| *ms > 0);
    let (max_ms, min_ms) = (times(retention.max_lifetime), times(retention.min_lifetime));
    (max_ms.is_some() || min_ms.is_some()).then_some(lifetimes::Own { max_ms, min_ms })
}

/// The event that a redaction names, wherever the room version has it.
fn redacts(event_type: &str, content: &RawValue, pdu: &RawValue) -> Option<ruma::OwnedEventId> {
    #[derive(Deserialize)]
    struct Redacts {
        redacts: ruma::OwnedEventId,
    }
    if event_type != "m.room.redaction" {
        return None;
    }
    let of = |json: &RawValue| serde_json::from_str::<Redacts>(json.get()).ok();
    of(pdu).or_else(|| of(content)).map(|of| of.redacts)
}

/// What is kept of an event that relates to another.
#[derive(Deserialize)]
struct RelationFacts<'a> {
    #[serde(borrow)]
    sender: Cow<'a, str>,
    origin_server_ts: u64,
}

/// What a room keeps of an event.
#[derive(Deserialize)]
struct PduFacts<'a> {
    #[serde(rename = "type", borrow)]
    event_type: Cow<'a, str>,
    #[serde(borrow, default)]
    sender: Cow<'a, str>,
    #[serde(borrow, default)]
    state_key: Option<Cow<'a, str>>,
    depth: u64,
    #[serde(default)]
    origin_server_ts: u64,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Deserialize)]
struct MemberFacts {
    membership: MembershipState,
}
