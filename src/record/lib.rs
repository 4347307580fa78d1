//! The contents of the log: one [`Record`] for each write, which carries one [`Command`].
//!
//! A record is a fixed header, the chain value that links it to every record before it, and a JSON
//! payload. The bytes are specified in `log_format.md`; only [`codec`] writes and reads them.
//! Everything here is plain data: no clock, no randomness, no input or output.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::{fmt, sync::Arc};

use bytes::Bytes;
use ruma::{RoomAliasId, RoomId, UserId};
use serde::{Deserialize, Serialize};

pub mod address;
pub mod client;
pub mod codec;
pub mod command;
pub mod division;
pub mod event_format;
mod holds;
mod imported;
pub mod lax_object;
pub mod mask;
pub mod merkle;
pub mod pusher;
mod reduce;
pub mod room_version;
pub mod scope;
pub mod server_keys;
pub mod signed_json;
pub mod threepid;

pub use command::{Class, Command, CommandError};
pub use holds::Holds;
pub use imported::ImportedFrom;
pub use reduce::{ReduceError, Remains, reduced, remains};

/// A position in the log, and the only clock that clients see.
///
/// The first record has offset 1. [`Offset::ZERO`] is the position before it: "nothing yet".
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Offset(u64);

impl Offset {
    /// Before the first record.
    pub const ZERO: Self = Self(0);
    /// After every record that can ever exist.
    pub const MAX: Self = Self(u64::MAX);

    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The offset right before this one; [`Offset::ZERO`] stays where it is.
    #[must_use]
    pub const fn prev(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A period of the log between two restores. A restore to an earlier moment starts the next epoch,
/// so that positions of the abandoned future differ from positions of the present.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(pub u32);

/// The stream of a record: the unit of decision.
///
/// Written as `<kind>/<id>`, for example `room/!r:example.org`, `user/alice` or
/// `alias/#a:example.org`; the server's own facts are in the stream `server`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stream(Arc<str>);

impl Stream {
    const ALL: &str = "*";

    /// All streams together, for the expectation that nothing at all was appended since a decision.
    /// Its last offset is that of the log. No record is in it.
    pub fn all() -> Self {
        Self(Self::ALL.into())
    }

    /// Whether it is [`Stream::all`].
    pub fn is_all(&self) -> bool {
        &*self.0 == Self::ALL
    }

    /// The server's own facts.
    pub fn server() -> Self {
        Self("server".into())
    }

    /// The stream of a room: its events and its entry in the directory.
    pub fn room(room_id: &RoomId) -> Self {
        Self(format!("room/{room_id}").into())
    }

    /// The stream of a room's receipts and typing notifications. It is separate, so that these
    /// never delay a message.
    pub fn ephemeral(room_id: &RoomId) -> Self {
        Self(format!("ephemeral/{room_id}").into())
    }

    /// The stream of a local user: account, devices, profile, account data.
    pub fn user(user_id: &UserId) -> Self {
        Self(format!("user/{}", user_id.localpart()).into())
    }

    /// The stream of a local user's presence. It is separate from the account, because it changes
    /// often and no other decision depends on it.
    pub fn presence(user_id: &UserId) -> Self {
        Self(format!("presence/{}", user_id.localpart()).into())
    }

    /// The stream of when devices were last used. It is separate from the accounts, because no
    /// decision depends on it.
    pub fn seen() -> Self {
        Self("seen".into())
    }

    /// The stream of the events that a local user has scheduled.
    pub fn delayed(user_id: &UserId) -> Self {
        Self(format!("delayed/{}", user_id.localpart()).into())
    }

    /// The stream of a registration token: its settings, and the decisions on registrations with
    /// it, so that concurrent registrations cannot exceed its uses. Tokens whose hashes start alike
    /// share one.
    pub fn registration_token(token: &command::TokenHash) -> Self {
        Self(format!("registration_token/{}", token.start()).into())
    }

    /// The stream of a local user's uploads, on which the user's total is decided. Without a user,
    /// the stream of files that the server fetches by itself.
    pub fn media(user_id: Option<&UserId>) -> Self {
        Self(format!("media/{}", user_id.map_or("", UserId::localpart)).into())
    }

    /// The stream of quarantined files, no matter who uploaded them.
    pub fn quarantine() -> Self {
        Self("quarantine".into())
    }

    /// The stream of closed reports.
    pub fn reports() -> Self {
        Self("reports".into())
    }

    /// The stream of a room alias, which many others share: see [`Stream::shared`].
    pub fn alias(alias: &RoomAliasId) -> Self {
        Self::shared("alias", &[alias.as_str()])
    }

    /// The stream of a third-party identifier: its validations, and its owner. Many others share
    /// it: see [`Stream::shared`].
    pub fn threepid(threepid: &threepid::Threepid) -> Self {
        Self::shared("threepid", &[threepid.medium.as_str(), &threepid.address])
    }

    /// The stream of a person at a provider of single sign-on, which many others share: see
    /// [`Stream::shared`].
    pub fn sso(provider: &str, subject: &str) -> Self {
        Self::shared(&format!("sso/{provider}"), &[subject])
    }

    /// The stream of an OAuth client, which many others share: see [`Stream::shared`].
    pub fn oauth_client(client_id: &str) -> Self {
        Self::shared("oauth_client", &[client_id])
    }

    /// The stream of a device authorization, which many others share: see [`Stream::shared`].
    pub fn oauth_device(device_code: &command::TokenHash) -> Self {
        Self(format!("oauth_device/{}", &device_code.start()[..2]).into())
    }

    /// The stream of the keys for ID tokens, and of what is removed from time to time.
    pub fn oauth() -> Self {
        Self("oauth".into())
    }

    /// The stream of a delivery's position, for example `appservice/irc`.
    pub fn delivery(to: &str) -> Self {
        Self(format!("delivery/{to}").into())
    }

    /// The stream of what is known of another homeserver: see [`Stream::shared`].
    pub fn peer(server_name: &ruma::ServerName) -> Self {
        Self::shared("peer", &[server_name.as_str()])
    }

    /// The stream of the pushers with this key of this app, which many others share: see
    /// [`Stream::shared`]. For mail, the key is the address.
    pub fn pusher(ids: &pusher::PusherIds) -> Self {
        Self::shared("pusher", &[&ids.app_id, &ids.pushkey])
    }

    /// One of the 256 streams of this `kind`, which `key` shares with many others. A header stays
    /// when its payload is erased, so no stream name may contain a personal name or address, or a
    /// hash from which it could be guessed.
    fn shared(kind: &str, key: &[&str]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in key {
            hasher.update(&(part.len() as u64).to_be_bytes());
            hasher.update(part.as_bytes());
        }
        Self(format!("{kind}/{}", &hasher.finalize().to_hex()[..2]).into())
    }

    /// The stream with this name, as read from a record.
    pub fn from_name(name: &str) -> Self {
        Self(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The room of a room's stream, or of the stream of its receipts and typing notifications.
    pub fn room_id(&self) -> Option<&RoomId> {
        let id = self.0.strip_prefix("room/").or_else(|| self.0.strip_prefix("ephemeral/"))?;
        <&RoomId>::try_from(id).ok()
    }

    /// The local part of the user whose stream this is: of the account, presence, uploads or
    /// delayed events.
    pub fn localpart(&self) -> Option<&str> {
        let (of, localpart) = self.0.split_once('/')?;
        matches!(of, "user" | "presence" | "media" | "delayed").then_some(localpart)
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who caused a record: the user and device that made the request, and the request's id in the
/// server's log output. All empty for what the server does by itself. For imported records see
/// [`ImportedFrom`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Fully qualified user id, `admin` for an operator on the server's machine, `import`, or
    /// empty.
    pub user: Box<str>,
    /// Device id, the operator's name on that machine, or empty.
    pub device: Box<str>,
    /// Request id, or empty.
    pub request: Box<str>,
}

impl Origin {
    pub fn server() -> Self {
        Self::default()
    }

    /// An operator: a user of the server's machine.
    pub fn administrator(name: &str) -> Self {
        Self { user: "admin".into(), device: name.into(), request: Box::default() }
    }
}

/// The encoding of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// UTF-8 JSON, one object. On disk: 1.
    Json,
}

/// The header of a record. Its encoded bytes are what the hash chain covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub offset: Offset,
    /// Milliseconds since the Unix epoch at which the server appended the record. Never decreases
    /// from one record to the next. For when the content of an imported record happened, see
    /// [`Record::happened_ms`].
    pub time_ms: u64,
    /// The epoch in which the record was written.
    pub epoch: Epoch,
    /// Whether the record must survive a restore to a moment before it.
    pub class: Class,
    /// Whether compaction may drop the payload once it is superseded (typing, presence, receipts).
    pub ephemeral: bool,
    /// How many records of the same atomic batch follow this one.
    pub batch_remaining: u32,
    pub stream: Stream,
    /// The command's kind, for example `room.event`.
    pub kind: Box<str>,
    /// The version of the command's payload.
    pub version: u16,
    pub origin: Origin,
    /// Name of the key under which the payload is sealed; empty for a payload in the clear.
    pub seal_key: Box<str>,
    /// Encoding of the payload (before sealing).
    pub encoding: Encoding,
    /// Length of the payload in bytes, even after it was erased.
    pub payload_len: u32,
    /// blake3 of the payload, even after it was erased.
    pub payload_hash: [u8; 32],
}

/// A value of the hash chain: `blake3(previous ‖ header)`.
pub type Chain = [u8; 32];

/// 32 bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*bytes).to_hex().to_string()
}

/// The chain value before the first record.
pub const CHAIN_START: Chain = [0; 32];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    Present(Bytes),
    /// A replacement for a payload whose content was erased; the header still has the length and
    /// hash of the original payload.
    Reduced(Bytes),
    /// The bytes were erased; the header still has their length and hash.
    Erased,
}

impl Payload {
    /// The bytes, complete or reduced, unless they were erased.
    pub const fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Present(bytes) | Self::Reduced(bytes) => Some(bytes),
            Self::Erased => None,
        }
    }
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What the chain covers.
    pub header: Header,
    pub chain: Chain,
    /// The command's JSON.
    pub payload: Payload,
}

impl Record {
    pub const fn offset(&self) -> Offset {
        self.header.offset
    }

    /// The command of this record; `None` if its payload was erased.
    pub fn command(&self) -> Result<Option<Command>, CommandError> {
        match self.payload.bytes() {
            Some(bytes) => Command::decode(&self.header.kind, self.header.version, bytes).map(Some),
            None => Ok(None),
        }
    }

    /// Whether the payload matches the hash in the header. True for reduced and erased payloads,
    /// which cannot be checked.
    pub fn holds_its_payload(&self) -> bool {
        match &self.payload {
            Payload::Present(bytes) => *blake3::hash(bytes).as_bytes() == self.header.payload_hash,
            Payload::Reduced(_) | Payload::Erased => true,
        }
    }
}

/// A record before the log gives it an offset, a time and a chain value.
#[derive(Clone, Debug)]
pub struct NewRecord {
    pub stream: Stream,
    pub kind: &'static str,
    pub version: u16,
    /// Whether it must survive a restore to a moment before it.
    pub class: Class,
    /// Whether compaction may drop the payload once it is superseded.
    pub ephemeral: bool,
    pub origin: Origin,
    /// The payload: one JSON object.
    pub payload: Bytes,
}

impl NewRecord {
    pub fn new(stream: Stream, origin: Origin, command: &Command) -> Self {
        let kind = command.kind();
        Self {
            stream,
            kind: kind.name,
            version: kind.version,
            class: kind.class,
            ephemeral: kind.ephemeral,
            origin,
            payload: command.encode(),
        }
    }
}

/// Offsets in ascending order as runs, each with its first and last offset.
pub fn runs(offsets: impl IntoIterator<Item = Offset>) -> Vec<(Offset, Offset)> {
    let mut runs: Vec<(Offset, Offset)> = Vec::new();
    for offset in offsets {
        match runs.last_mut() {
            Some((_, last)) if last.next() == offset => *last = offset,
            _ => runs.push((offset, offset)),
        }
    }
    runs
}
