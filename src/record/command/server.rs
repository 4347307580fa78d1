//! Commands of the server as a whole: its identity, restores, backups, erasures, checkpoints,
//! deliveries.

use ruma::RoomVersionId;
use serde::{Deserialize, Serialize};

use super::{
    Content, Erased,
    values::{FileHash, Secret},
};
use crate::record::{Epoch, Holds, Offset};

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
    /// What the log was rebuilt from: `archive`, `backup`, `export`, or `log` for another log or
    /// what this one was.
    pub source: String,
    /// The last record that was there. What came after it, if anything, is lost but for what the
    /// records after this one say anew.
    pub last: Offset,
    /// The last record that the source held, if it was not restored. (Not in version 1.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone: Option<Offset>,
}

impl Content for ServerRestore {}

/// Payload of `backup.made`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupMade {
    /// Where it is, as whoever made it named it.
    pub destination: String,
    /// Up to which moment it goes.
    #[serde(flatten)]
    pub moment: BackupMoment,
    /// The chain value of that record, in hex.
    pub chain: FileHash,
    /// blake3 of its manifest, in hex.
    pub manifest: FileHash,
    /// Backups that are not at this destination any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<BackupMoment>,
}

impl Content for BackupMade {}

/// Which backup of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BackupMoment {
    /// The epoch of its last record.
    pub epoch: Epoch,
    /// Its last record.
    pub offset: Offset,
}

/// Payload of `log.erase`. What it names is erased in one step with the appending of this record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogErase {
    /// The records of which a part stays, in ascending order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reduced: Vec<Reduced>,
    /// The records whose payload is erased since later records say all that they said: runs, each
    /// with its first and last offset, in ascending order. In version 1 all of them ephemeral.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub superseded: Vec<(Offset, Offset)>,
    /// The records whose payload is erased since a later record took back all that followed from
    /// them, in ascending order. (Not in version 1.)
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taken: Vec<Taken>,
}

impl Content for LogErase {}

/// A run of records that lost all of their content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The first of them.
    pub first: Offset,
    /// The last of them.
    pub last: Offset,
    /// The record for which they did: a `room.purge` or a `user.erase`.
    pub because: Offset,
}

/// A record that lost a part of its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reduced {
    /// The record: in version 1 of an event, or of the `delayed.schedule` that it was sent from.
    pub offset: Offset,
    /// The record for which it did: a redaction, or (not in version 1) a `room.erase`,
    /// `room.purge`, `user.erase` or `media.remove`; [`Offset::ZERO`] for what had done its work.
    pub because: Offset,
    /// For an event, the version of its room, whose rules say what is left. (In version 1 always.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room_version: Option<RoomVersionId>,
    /// blake3 of what is left.
    #[serde(with = "super::values::hex")]
    pub hash: [u8; 32],
}

impl LogErase {
    /// How many payloads it takes.
    #[must_use]
    pub fn count(&self) -> u64 {
        let run = |(first, last): (Offset, Offset)| (last.get() + 1).saturating_sub(first.get());
        self.reduced.len() as u64 + self.runs().map(run).sum::<u64>()
    }

    /// The runs of records of which nothing is left, each with its first and last offset.
    pub fn runs(&self) -> impl Iterator<Item = (Offset, Offset)> {
        let taken = self.taken.iter().map(|taken| (taken.first, taken.last));
        self.superseded.iter().copied().chain(taken)
    }

    /// It as two: what had only done its work, and what is erased for a reason.
    #[must_use]
    pub fn divided(self) -> (Self, Self) {
        let Self { reduced, superseded, taken } = self;
        let (done, because) = reduced.into_iter().partition(|of| of.because == Offset::ZERO);
        (
            Self { reduced: done, superseded, taken: Vec::new() },
            Self { reduced: because, superseded: Vec::new(), taken },
        )
    }

    /// Whether it takes nothing but what had done its work.
    #[must_use]
    pub fn is_of_superseded(&self) -> bool {
        self.taken.is_empty() && self.reduced.iter().all(|reduced| reduced.because == Offset::ZERO)
    }
}

/// Payload of `log.checkpoint`: what the log was, said and signed by its server. It says so by
/// itself, also where there is no log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCheckpoint {
    /// The server.
    pub server_name: String,
    /// The last record that is vouched for, and so how many there are.
    pub upto: Offset,
    /// The root of the Merkle tree over the headers of the records up to it.
    #[serde(with = "super::values::hex")]
    pub root: [u8; 32],
    /// The chain value of that record.
    #[serde(with = "super::values::hex")]
    pub chain: [u8; 32],
    /// When it was said.
    pub time_ms: u64,
    /// The key that signed it, `ed25519:<version>`.
    pub key_id: String,
    /// The signature of [`LogCheckpoint::statement`] in unpadded base64.
    pub signature: String,
}

impl Content for LogCheckpoint {}

impl LogCheckpoint {
    /// What is signed: lines of text, each with its end.
    #[must_use]
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
    /// Why.
    pub reason: String,
}

impl Content for AdminReason {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Reason
    }
}

/// Payload of `delivery.advance`. Each says everything: an earlier one of the same receiver is
/// superseded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryAdvance {
    /// Who is told, for example `appservice/irc`.
    pub to: String,
    /// Everything up to this record has arrived, or is nothing to the receiver.
    pub done: Offset,
    /// What is on its way, and is sent again under the same id until it has arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_way: Option<UnderWay>,
}

impl Content for DeliveryAdvance {
    const ERASED: Erased = Erased::All;
}

/// A delivery that is on its way: what there is to tell of the records after `done`, up to and with
/// `up_to`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnderWay {
    /// What the receiver knows it by.
    pub id: String,
    /// The last record that it is about.
    pub up_to: Offset,
}
