//! Commands of the server as a whole: its identity, restores, backups, erasures, checkpoints,
//! deliveries.

use ruma::RoomVersionId;
use serde::{Deserialize, Serialize};

use super::{
    Content, Erased,
    federation::SetAside,
    values::{FileHash, Secret},
};
use crate::{Epoch, Holds, Offset};

/// Payload of `server.identity`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerIdentity {
    /// The server's name: the part of user ids after the colon.
    pub server_name: String,
    /// Id of the signing key, `ed25519:<version>`.
    pub key_id: String,
    /// The private key: PKCS#8 DER in unpadded base64.
    pub private_key: Secret,
    /// The public key in unpadded base64.
    pub public_key: String,
}

impl Content for ServerIdentity {}

/// Payload of `server.restore`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerRestore {
    /// What the log was restored from: `archive`, `backup`, `export`, or `log` for another log or
    /// its own former one.
    pub source: String,
    /// The last restored record. Later records are lost, except for what the records after this one
    /// repeat.
    pub last: Offset,
    /// The last record of the source, if it was not restored. (Not in version 1.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone: Option<Offset>,
}

impl Content for ServerRestore {}

/// Payload of `backup.made`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupMade {
    /// Its destination, as the operator named it.
    pub destination: String,
    /// The last record in it.
    #[serde(flatten)]
    pub moment: BackupMoment,
    /// The chain value of that record, in hex.
    pub chain: FileHash,
    /// blake3 of its manifest, in hex.
    pub manifest: FileHash,
    /// Earlier backups that were removed from this destination.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<BackupMoment>,
}

impl Content for BackupMade {}

/// Identifies a backup at its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BackupMoment {
    /// The epoch of its last record.
    pub epoch: Epoch,
    /// Its last record.
    pub offset: Offset,
}

/// Payload of `log.erase`. The payloads that it lists are erased in the same step that appends it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogErase {
    /// The records whose payloads were reduced, in ascending order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reduced: Vec<Reduced>,
    /// The records whose payloads were erased because later records superseded them: runs, each
    /// with its first and last offset, in ascending order. In version 1 all of them are ephemeral.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub superseded: Vec<(Offset, Offset)>,
    /// The records whose payloads were erased because a later record undid all their consequences,
    /// in ascending order. (Not in version 1.)
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taken: Vec<ErasedRun>,
}

impl Content for LogErase {}

/// A run of records whose payloads were erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErasedRun {
    pub first: Offset,
    pub last: Offset,
    /// The cause: a `room.purge` or a `user.erase`.
    pub because: Offset,
}

/// A record whose payload was reduced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reduced {
    /// The record: in version 1 an event, or the `delayed.schedule` that it was sent from.
    pub offset: Offset,
    /// The cause: a redaction, or (not in version 1) a `room.erase`, `room.purge`, `user.erase` or
    /// `media.remove`; [`Offset::ZERO`] for superseded payloads.
    pub because: Offset,
    /// For an event, the version of its room, which defines the redaction. (In version 1 always.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room_version: Option<RoomVersionId>,
    /// blake3 of the reduced payload.
    #[serde(with = "super::values::hex")]
    pub hash: [u8; 32],
}

impl LogErase {
    /// How many payloads it erases.
    pub fn count(&self) -> u64 {
        let run = |(first, last): (Offset, Offset)| (last.get() + 1).saturating_sub(first.get());
        self.reduced.len() as u64 + self.runs().map(run).sum::<u64>()
    }

    /// The runs of records whose payloads were erased, each with its first and last offset.
    pub fn runs(&self) -> impl Iterator<Item = (Offset, Offset)> {
        let taken = self.taken.iter().map(|taken| (taken.first, taken.last));
        self.superseded.iter().copied().chain(taken)
    }

    /// Splits it into superseded payloads and payloads that were erased for a cause.
    #[must_use]
    pub fn divided(self) -> (Self, Self) {
        let Self { reduced, superseded, taken } = self;
        let (done, because) = reduced.into_iter().partition(|of| of.because == Offset::ZERO);
        (
            Self { reduced: done, superseded, taken: Vec::new() },
            Self { reduced: because, superseded: Vec::new(), taken },
        )
    }

    /// Whether it erases only superseded payloads.
    pub fn is_of_superseded(&self) -> bool {
        self.taken.is_empty() && self.reduced.iter().all(|reduced| reduced.because == Offset::ZERO)
    }
}

/// Payload of `log.checkpoint`: a statement about the log, signed by its server. It can be verified
/// without the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCheckpoint {
    pub server_name: String,
    /// The last record that it covers, and so their number.
    pub upto: Offset,
    /// The root of the Merkle tree over the headers of these records.
    #[serde(with = "super::values::hex")]
    pub root: [u8; 32],
    /// The chain value of that record.
    #[serde(with = "super::values::hex")]
    pub chain: [u8; 32],
    /// When it was signed, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The key that signed it, `ed25519:<version>`.
    pub key_id: String,
    /// The signature of [`LogCheckpoint::statement`] in unpadded base64.
    pub signature: String,
}

impl Content for LogCheckpoint {}

impl LogCheckpoint {
    /// The signed text: lines, each with a line feed.
    pub fn statement(&self) -> String {
        let hex = |hash: [u8; 32]| blake3::Hash::from_bytes(hash).to_hex();
        let Self { server_name, upto, time_ms, key_id, .. } = self;
        let (root, chain) = (hex(self.root), hex(self.chain));
        format!(
            "logcabin checkpoint 1\n{server_name}\n{key_id}\nrecords {upto}\nroot {root}\nchain {chain}\ntime {time_ms}\n"
        )
    }
}

/// Payload of `admin.reason`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminReason {
    pub reason: String,
}

impl Content for AdminReason {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Reason
    }
}

/// Payload of `admin.undo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminUndo {
    /// The record that was undone.
    pub record: Offset,
}

impl Content for AdminUndo {}

/// Payload of `delivery.advance`. It supersedes earlier ones of the same receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryAdvance {
    /// The receiver, for example `appservice/irc`.
    pub to: String,
    /// Everything up to this record has arrived, or does not concern the receiver.
    pub done: Offset,
    /// The delivery in progress, which is repeated under the same id until it has arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_way: Option<UnderWay>,
    /// What will never be delivered.
    #[serde(default, skip_serializing_if = "SetAside::is_empty")]
    pub set_aside: SetAside,
}

impl Content for DeliveryAdvance {
    const ERASED: Erased = Erased::All;
}

/// A delivery in progress: what the records after `done`, up to and including `up_to`, contain for
/// the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnderWay {
    /// Its id for the receiver.
    pub id: String,
    /// The last record in it.
    pub up_to: Offset,
}
