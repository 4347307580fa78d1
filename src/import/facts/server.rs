//! Facts about the server itself, and about others.

use serde::Serialize;

use super::{Json, Secret};

/// A key by which the server signs, or did once.
#[derive(Clone, Debug, Serialize)]
pub struct ServerKey {
    /// With the algorithm: `ed25519:a_1`.
    pub key_id: String,
    /// 32 bytes. Of the key that the server signs by now.
    pub seed: Option<SeedBytes>,
    /// 32 bytes, of an old key.
    pub public: Option<[u8; 32]>,
    /// Since when it is an old one.
    pub expired_ms: Option<i64>,
}

/// The private half of a key.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct SeedBytes(pub [u8; 32]);

impl std::fmt::Debug for SeedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Allows so many people to register.
#[derive(Clone, Debug, Serialize)]
pub struct RegistrationToken {
    pub token: Secret,
    /// Without it, without end.
    pub uses_allowed: Option<i64>,
    /// Registrations that have begun with it and are not done.
    pub pending: i64,
    pub completed: i64,
    pub expires_ms: Option<i64>,
}

/// A key by which another server signs.
#[derive(Clone, Debug, Serialize)]
pub struct PeerKey {
    pub server_name: String,
    pub key_id: String,
    /// Whom it was asked from; the server itself, or one that vouches for it.
    pub from_server: String,
    pub added_ms: Option<i64>,
    pub valid_until_ms: Option<i64>,
    /// The document as that server signed it, if it is still there.
    pub document: Option<Json>,
    /// 32 bytes, if the document is not there.
    pub public: Option<[u8; 32]>,
}

/// How another server is reached.
#[derive(Clone, Debug, Serialize)]
pub struct Destination {
    pub server_name: String,
    /// Everything up to this place in [`Section::Events`](super::Section::Events) has been sent.
    pub sent_up_to: Option<i64>,
    /// The newest place of an event that it is to have.
    pub newest: Option<i64>,
    /// Since when it does not answer.
    pub failing_since_ms: Option<i64>,
    /// When it was tried last.
    pub tried_ms: Option<i64>,
    /// How long to wait after that.
    pub wait_ms: Option<i64>,
}

/// The newest event of a room that another server is to have.
#[derive(Clone, Debug, Serialize)]
pub struct DestinationRoom {
    pub server_name: String,
    pub room_id: String,
    /// Its place in [`Section::Events`](super::Section::Events).
    pub newest: i64,
}

/// A change of the devices or keys of a user of this server, of which some other server has not
/// been told.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceChange {
    pub user_id: String,
    pub device_id: String,
}

/// An application service, and how far it has been told.
#[derive(Clone, Debug, Serialize)]
pub struct AppService {
    /// The id in its registration.
    pub id: String,
    /// `up` or `down`.
    pub state: Option<String>,
    /// Every service has been told of events up to this place, apart from those in transactions
    /// that it has not taken.
    pub told_up_to: Option<i64>,
}

/// A transaction that an application service has not taken.
#[derive(Clone, Debug, Serialize)]
pub struct AppServiceTransaction {
    /// The id in the registration of the service.
    pub id: String,
    pub number: i64,
    pub event_ids: Vec<String>,
}
