//! The form, hashes and signatures of an event from another homeserver (server-server API, "Checks
//! performed on receipt of a PDU", 1 to 3).

use std::collections::BTreeMap;

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, OwnedEventId, OwnedRoomId, OwnedServerName,
    RoomVersionId, ServerName, UserId,
    room_version_rules::RoomVersionRules,
    signatures::{PublicKeyMap, required_server_signatures_to_verify_event},
};
use serde_json::value::RawValue;
use thiserror::Error;

use logcabin_base::limits;
use logcabin_outside::federation::{KeyError, KeyRing};
use logcabin_record::{
    event_format::has_chosen_ids,
    lax_object::{LaxError, LaxObject},
};
use logcabin_state::Room;

/// Why an event is dropped without a record.
#[derive(Debug, Error)]
pub enum PduError {
    #[error("it is not an event: {0}")]
    Form(String),
    /// It belongs to a room that this homeserver is not in.
    #[error("this homeserver is not in the room")]
    NoRoom,
    /// The homeserver that sent it has never been in the room.
    #[error("the homeserver is not in the room")]
    NotInRoom,
    /// This homeserver does not support the version of its room.
    #[error("the room has version {0}")]
    Version(RoomVersionId),
    #[error("another event has its id")]
    Taken,
    /// Its id differs from the one in the request.
    #[error("its id is not that of the request")]
    OtherEvent,
    #[error("the room's access control list denies the homeserver")]
    AccessControl,
    /// A signature is missing or wrong, or its key is not known.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// There is no more time to fetch keys for this transaction.
    #[error("the keys for the events before it took too long to fetch")]
    Late,
    /// A signature is missing or wrong.
    #[error("its signatures are not valid: {0}")]
    Signatures(String),
    /// Its content does not match its hash, and another homeserver than its sender's sent it.
    #[error("its content does not match its hash, and its sender's homeserver did not send it")]
    Altered,
    /// Events that it depends on cannot be fetched.
    #[error("events that it depends on are missing")]
    Missing,
    /// This homeserver cannot record it now.
    #[error("{0}")]
    NotRecorded(#[from] logcabin_engine::ProposeError),
}

impl PduError {
    /// Whether others did not answer what this homeserver has to know first of an event that
    /// `origin` sent. They may later.
    pub(super) fn is_for_want_of_answers(&self, origin: &ServerName) -> bool {
        match self {
            Self::Missing | Self::Late => true,
            // Any homeserver can name others whose keys cannot be had.
            Self::Key(KeyError::Unreachable(server, _) | KeyError::NotAgain(server)) => {
                server == origin
            }
            _ => false,
        }
    }
}

impl From<LaxError> for PduError {
    fn from(error: LaxError) -> Self {
        Self::Form(error.to_string())
    }
}

/// A homeserver that has signed an event.
pub(super) struct Signer {
    pub(super) server: OwnedServerName,
    /// The keys that it signed with.
    pub(super) key_ids: Vec<String>,
    /// When, in milliseconds since the Unix epoch.
    pub(super) ts_ms: u64,
}

/// An event of a valid form that has not been verified.
#[derive(Clone, Debug)]
pub struct Pdu {
    pub(crate) room_id: OwnedRoomId,
    pub event_id: OwnedEventId,
    pub object: LaxObject,
}

impl Pdu {
    /// The room that an event names.
    pub fn room_of(object: &CanonicalJsonObject) -> Result<OwnedRoomId, PduError> {
        let room_id = object.get("room_id").and_then(CanonicalJsonValue::as_str);
        room_id
            .and_then(|room_id| OwnedRoomId::try_from(room_id).ok())
            .ok_or_else(|| PduError::Form("it names no room".to_owned()))
    }

    /// Whether this exceeds the size of any event, however it is serialized: escapes take up to
    /// three times the bytes of what they stand for, and there may be members that are not part of
    /// the event.
    pub(crate) fn is_too_large(raw: &RawValue) -> bool {
        raw.get().len() > 4 * limits::EVENT_BYTES
    }

    /// The JSON object that was sent, without what of it others could not read.
    pub fn object(raw: &RawValue) -> Result<LaxObject, PduError> {
        if Self::is_too_large(raw) {
            return Err(PduError::Form("it is too large".to_owned()));
        }
        Ok(LaxObject::parse_event(raw.get())?)
    }

    /// Parses an event of a room.
    pub(crate) fn of_room(room: &Room, raw: &RawValue) -> Result<Self, PduError> {
        Self::in_room(room, Self::object(raw)?)
    }

    /// An event of a room. Every event of a room's history goes through this: there must be a state
    /// before an event, by which it and its successors are judged.
    pub fn in_room(room: &Room, object: LaxObject) -> Result<Self, PduError> {
        // Only the first event of a room may lack a room id.
        if Self::room_of(&object).is_ok_and(|room_id| room_id != room.id) {
            return Err(PduError::OtherEvent);
        }
        let kind = object.get("type").and_then(CanonicalJsonValue::as_str);
        let prev_events = object.get("prev_events").and_then(CanonicalJsonValue::as_array);
        if kind != Some("m.room.create") && prev_events.is_none_or(|prev| prev.is_empty()) {
            return Err(PduError::Form("it comes after no event".to_owned()));
        }
        Self::new(room.id.clone(), object, &room.rules)
    }

    /// Parses an event of a room with these rules.
    pub(crate) fn new(
        room_id: OwnedRoomId,
        mut object: LaxObject,
        rules: &RoomVersionRules,
    ) -> Result<Self, PduError> {
        // Members that others add to an event on its way are not part of it.
        object.remove("unsigned");
        if !has_chosen_ids(rules) {
            object.remove("event_id");
        }
        if object.has_odd_numbers() {
            object.check_format(rules)?;
            object = object.without_unreadable()?;
        }
        object.check_format(rules)?;
        if object.get("content").is_none_or(|content| content.as_object().is_none()) {
            return Err(PduError::Form("its content is not an object".to_owned()));
        }
        let event_id = object.event_id(rules)?;
        Ok(Self { room_id, event_id, object })
    }

    /// It as JSON text.
    pub(super) fn to_raw(&self) -> Result<Box<RawValue>, PduError> {
        self.object.to_raw().map_err(|error| PduError::Form(error.to_string()))
    }

    pub(super) fn sender(&self) -> Option<&UserId> {
        let sender = self.object.get("sender").and_then(CanonicalJsonValue::as_str)?;
        sender.try_into().ok()
    }

    /// Its sender, if it says that they themselves are in the room.
    pub(super) fn own_join(&self) -> Option<&UserId> {
        let text = |name| self.object.get(name).and_then(CanonicalJsonValue::as_str);
        let content = self.object.get("content").and_then(CanonicalJsonValue::as_object)?;
        let membership = content.get("membership").and_then(CanonicalJsonValue::as_str);
        let is_own = text("type") == Some("m.room.member") && text("state_key") == text("sender");
        if is_own && membership == Some("join") { self.sender() } else { None }
    }

    /// Its sender, if it is no state event.
    pub(super) fn message_sender(&self) -> Option<&UserId> {
        if self.object.contains_key("state_key") { None } else { self.sender() }
    }

    /// Whether `origin` may send it as it is: its content matches its hash, or `origin` is its
    /// sender's own homeserver.
    pub(super) fn is_whole_from(&self, origin: &ServerName) -> bool {
        self.sender().is_some_and(|sender| sender.server_name() == origin)
            || self.object.has_own_content()
    }

    fn ts_ms(&self) -> Option<u64> {
        let ts = self.object.get("origin_server_ts").and_then(CanonicalJsonValue::as_integer)?;
        u64::try_from(i64::from(ts)).ok()
    }

    /// The keys with which homeserver `server` has signed it.
    fn key_ids(&self, server: &OwnedServerName) -> Vec<String> {
        let signatures = self.object.get("signatures").and_then(CanonicalJsonValue::as_object);
        let of = signatures
            .and_then(|signatures| signatures.get(server.as_str()))
            .and_then(CanonicalJsonValue::as_object);
        let ids = of.into_iter().flat_map(BTreeMap::keys);
        ids.filter(|id| id.starts_with("ed25519:")).take(limits::PEER_OLD_KEYS).cloned().collect()
    }

    /// The homeservers whose signatures it needs.
    pub(super) fn signers(&self, rules: &RoomVersionRules) -> Result<Vec<Signer>, PduError> {
        let ts_ms = self.ts_ms().ok_or_else(|| PduError::Form("it has no time".to_owned()))?;
        let servers = required_server_signatures_to_verify_event(&self.object, &rules.signatures);
        let signer = |server: OwnedServerName| match self.key_ids(&server) {
            ids if ids.is_empty() => {
                Err(PduError::Signatures(format!("there is none of {server}")))
            }
            key_ids => Ok(Signer { server, key_ids, ts_ms }),
        };
        let servers = servers.map_err(|error| PduError::Signatures(error.to_string()))?;
        servers.into_iter().map(signer).collect()
    }

    /// Verifies the signatures. Returns the event as it is recorded: redacted if its content does
    /// not match its hash. Unknown keys are fetched.
    pub(crate) async fn verified(
        self,
        ring: &KeyRing,
        rules: &RoomVersionRules,
    ) -> Result<Box<RawValue>, PduError> {
        let keys = self.keys(ring, rules).await?;
        self.verified_by(&keys, rules)
    }

    /// The keys of the homeservers whose signatures it needs. Unknown ones are fetched.
    pub(super) async fn keys(
        &self,
        ring: &KeyRing,
        rules: &RoomVersionRules,
    ) -> Result<PublicKeyMap, PduError> {
        let mut keys = PublicKeyMap::new();
        for Signer { server, key_ids, ts_ms } in self.signers(rules)? {
            let of = ring.for_event(&server, &key_ids, ts_ms).await?;
            keys.insert(server.to_string(), of);
        }
        Ok(keys)
    }

    /// Like [`Self::verified`], with the keys of the homeservers whose signatures it needs.
    pub(super) fn verified_by(
        self,
        keys: &PublicKeyMap,
        rules: &RoomVersionRules,
    ) -> Result<Box<RawValue>, PduError> {
        let wrong = |error: &dyn std::fmt::Display| PduError::Signatures(error.to_string());
        let mut object = self.object;
        if !object.verify(keys, rules).map_err(|error| wrong(&error))? {
            object = object.redacted(&rules.redaction).map_err(|error| wrong(&error))?;
        }
        object.to_raw().map_err(|error| PduError::Form(error.to_string()))
    }
}
