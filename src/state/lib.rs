//! Projections: what the log adds up to.
//!
//! [`State::apply`] is the only code that changes anything here. It is a pure function of the
//! records: no clock, no randomness, no input or output, so that the same log gives the same state
//! on every machine, which [`State::digest`] proves. Projections hold offsets and small facts; the
//! bodies of events are read from the log.
//!
//! Readers name the offset *as of* which they read and are not disturbed by records that are
//! applied meanwhile: they do not see anything newer than their offset.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::RwLock;
use ruma::{EventId, RoomId, UserId};

use logcabin_record::{Epoch, Offset, command::ServerIdentity};

pub mod accounts;
pub mod aliases;
mod apply;
pub mod backups;
pub mod closures;
pub mod delayed;
pub mod deliveries;
pub mod destinations;
pub mod device_lists;
mod digest;
pub mod erasures;
pub mod federation_keys;
mod few;
mod history;
pub mod history_purges;
pub mod imports;
pub mod index;
pub mod key_backups;
pub mod keys;
pub mod lifetimes;
pub mod media;
pub mod memberships;
pub mod merkle_tree;
pub mod names;
pub mod notices;
pub mod oauth;
pub mod policy_lists;
pub mod presence;
pub mod pushers;
pub mod reads;
pub mod redactions;
pub mod registration_tokens;
pub mod relations;
mod remote_media;
pub mod reports;
pub mod rooms;
pub mod sections;
pub mod sender_redactions;
mod serializers;
pub mod sightings;
pub mod threepids;
pub mod to_device;
pub mod undone;
pub mod usage;
pub mod validations;

pub use accounts::{Account, AccountStatus, Accounts, Device, TokenUse};
pub use aliases::Aliases;
pub use apply::{ApplyError, Effect};
pub use backups::{Backup, Backups};
pub use closures::{Closures, Shutdown};
pub use delayed::{Delayed, DelayedEvent};
pub use deliveries::Deliveries;
pub use destinations::Destinations;
pub use device_lists::DeviceLists;
pub use erasures::Erasures;
pub use federation_keys::FederationKeys;
pub use history::History;
pub use history_purges::{HistoryPurge, HistoryPurges};
pub use imports::Imports;
pub use key_backups::KeyBackups;
pub use keys::Keys;
pub use lifetimes::RETENTION;
pub use lifetimes::lifetime;
pub use media::Media;
pub use memberships::{Memberships, RoomMembership};
pub use merkle_tree::MerkleTree;
pub use names::Names;
pub use notices::Notices;
pub use oauth::Oauth;
pub use policy_lists::{HeldRule, PolicyLists, Subscription};
pub use presence::Presence;
pub use pushers::{Mailed, Pusher, Pushers};
pub use reads::Reads;
pub use redactions::{Redacted, Redactions, UserRedaction};
pub use registration_tokens::{RegistrationToken, RegistrationTokens};
pub use relations::{Child, ChildQuery, RelatesTo};
pub use remote_media::RemoteMedia;
pub use reports::Reports;
pub use rooms::{Membership, Room, Rooms};
pub use sections::{SECTIONS, Section};
pub use sender_redactions::{SenderRedaction, SenderRedactions};
pub use sightings::Sightings;
pub use threepids::Threepids;
pub use to_device::ToDevice;
pub use undone::UndoneMemberships;
pub use usage::Usage;
pub use validations::Validations;

/// All projections.
#[derive(Debug, Default)]
pub struct State {
    applied: AtomicU64,
    /// How many times rebuilt projections have replaced the live ones.
    generation: AtomicU64,
    server: RwLock<Option<Arc<ServerIdentity>>>,
    /// Each epoch with the offset of its first record.
    epochs: RwLock<History<Epoch>>,
    pub accounts: Accounts,
    /// OAuth clients, what they were granted, and browsers.
    pub oauth: Oauth,
    pub registration_tokens: RegistrationTokens,
    /// Under which names users are found.
    pub names: Names,
    pub rooms: Rooms,
    /// Blocked rooms, and those that are being shut down.
    pub closures: Closures,
    /// Redactions of what users sent.
    pub redactions: Redactions,
    /// Kicks and bans that redact what their users sent.
    pub sender_redactions: SenderRedactions,
    /// Purges of the history of rooms.
    pub history_purges: HistoryPurges,
    /// The moderation policy lists whose rules are applied.
    pub policy_lists: PolicyLists,
    /// Where users get the server's notices.
    pub notices: Notices,
    /// The reports that nobody has dealt with yet.
    pub reports: Reports,
    /// The rooms of each user.
    pub memberships: Memberships,
    /// The memberships that restores undid.
    pub undone: UndoneMemberships,
    /// How much each user stores, where no other projection counts it.
    pub usage: Usage,
    /// Keys for end-to-end encryption.
    pub keys: Keys,
    /// Backups of room keys.
    pub key_backups: KeyBackups,
    /// Messages to devices.
    pub to_device: ToDevice,
    /// When each device was last in use.
    pub seen: Sightings,
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
    /// The delivery positions of outside receivers.
    pub deliveries: Deliveries,
    /// Other homeservers.
    pub federation_keys: FederationKeys,
    /// The delivery positions of other homeservers.
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
    pub backups: Backups,
    /// What was imported from other servers' databases.
    pub imports: Imports,
    /// Where each event is.
    pub events: index::EventIndex,
    /// What each transaction sent.
    pub transactions: index::Transactions,
    /// The last offset of each stream.
    pub streams: index::Streams,
    /// The Merkle tree over the records.
    pub tree: MerkleTree,
}

impl State {
    /// The offset of the last record that was applied.
    pub fn applied(&self) -> Offset {
        Offset::new(self.applied.load(Ordering::Acquire))
    }

    /// How many times rebuilt projections have replaced the live ones; caches key on it. It is not
    /// derived from the log.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Notes that these replace `before`.
    pub fn follow_generation(&self, before: &Self) {
        self.generation.store(before.generation() + 1, Ordering::Relaxed);
    }

    /// The server's identity, once it is recorded.
    pub fn server(&self) -> Option<Arc<ServerIdentity>> {
        self.server.read().clone()
    }

    /// The epoch of the newest record.
    pub fn epoch(&self) -> Epoch {
        self.epochs.read().latest().copied().unwrap_or_default()
    }

    /// The last offset of an epoch that has ended, which a position of that epoch must not be
    /// beyond to be one of this history: of an epoch that was undone as a whole, the last before
    /// the one that followed. `None` for one that has not ended, or never was.
    pub fn epoch_end(&self, epoch: Epoch) -> Option<Offset> {
        let epochs = self.epochs.read();
        let next = epochs.changes().find(|(_, begun)| **begun > epoch);
        next.map(|(offset, _)| offset.prev())
    }

    /// A hash of all projections as they stand. Equal digests at equal offsets mean equal state.
    ///
    /// To be called while nothing is being applied.
    pub fn digest(&self) -> blake3::Hash {
        let mut digest = digest::Digest::default();
        for section in SECTIONS {
            section.add_to(self, &mut digest);
        }
        digest.finish()
    }

    /// Whether it is a user of this homeserver.
    fn is_own(&self, user_id: &UserId) -> bool {
        self.server().is_some_and(|own| user_id.server_name().as_str() == own.server_name)
    }

    /// Where this event of this room is, found without a look into the log.
    pub fn event_in_room(&self, room_id: &RoomId, event_id: &EventId) -> Option<Offset> {
        let room = self.rooms.get(room_id)?;
        self.events.candidates(event_id).into_iter().find(|offset| room.has_event(*offset))
    }
}
