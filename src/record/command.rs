//! The kinds of command, their payloads, and the reading of payloads written by older versions.
//!
//! A command is a *fact*: every id, hash, signature and time in it was settled before it was
//! appended. The names in [`Kind`] are permanent: they are in every log ever written.

use std::{collections::BTreeMap, net::IpAddr};

use bytes::Bytes;
use ruma::{
    OwnedDeviceId, OwnedEventId, OwnedRoomAliasId, OwnedRoomId, OwnedUserId, RoomVersionId,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use super::{
    Epoch, Offset,
    pusher::{PusherAdvance, PusherMail, PusherRemove, PusherSet},
    threepid::{
        ThreepidAdd, ThreepidBind, ThreepidRemove, ThreepidUnbind, ValidationComplete,
        ValidationMiss, ValidationRequest, ValidationSent, ValidationUse,
    },
};

/// Whether a command may be undone by restoring the log to an earlier moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A restore to an earlier moment forgets it.
    Rewindable,
    /// A restore carries it over: a token that was revoked stays revoked, a key that was handed
    /// out stays handed out.
    MustNotRewind,
}

/// What is fixed about a kind of command.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// The name in the record's header. Permanent.
    pub name: &'static str,
    /// The payload version that this server writes. It reads all versions up to this one.
    pub version: u16,
    /// Whether a restore may forget it.
    pub class: Class,
    /// Whether compaction may drop superseded payloads.
    pub ephemeral: bool,
}

/// Why a payload could not be read as a command.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The kind is not known.
    #[error("command kind `{0}` is not known to this version of logcabin; a newer one wrote it")]
    UnknownKind(String),
    /// The kind is known but its version is newer.
    #[error(
        "command `{kind}` has version {found}, this version of logcabin reads up to {known}; a newer one wrote it"
    )]
    NewerVersion {
        /// The kind.
        kind: &'static str,
        /// Version in the record.
        found: u16,
        /// Newest version this server reads.
        known: u16,
    },
    /// The payload is not what its kind and version say.
    #[error("payload of `{kind}` does not fit: {source}")]
    Payload {
        /// The kind.
        kind: &'static str,
        /// What does not fit.
        source: serde_json::Error,
    },
}

macro_rules! commands {
    ($($(#[$doc:meta])* $variant:ident($payload:ty) = $name:literal version $version:literal $class:ident $(, $ephemeral:ident)? $(, from $upcast:path)?;)*) => {
        /// A write, as a fact.
        #[derive(Clone, Debug)]
        pub enum Command {
            $($(#[$doc])* $variant($payload),)*
        }

        /// Every kind of command, in the order of `log_format.md`.
        pub const KINDS: &[Kind] = &[$(<$payload as Body>::KIND),*];

        $(impl Body for $payload {
            const KIND: Kind = Kind {
                name: $name,
                version: $version,
                class: Class::$class,
                ephemeral: commands!(@ephemeral $($ephemeral)?),
            };

            $(fn upcast(version: u16, payload: &[u8]) -> Result<Self, serde_json::Error> {
                $upcast(version, payload)
            })?
        }

        impl From<$payload> for Command {
            fn from(body: $payload) -> Self {
                Self::$variant(body)
            }
        })*

        impl Command {
            /// What is fixed about this command's kind.
            #[must_use]
            pub const fn kind(&self) -> &'static Kind {
                match self { $(Self::$variant(_) => &<$payload as Body>::KIND,)* }
            }

            /// The payload: one JSON object.
            #[must_use]
            pub fn encode(&self) -> Bytes {
                match self { $(Self::$variant(body) => encode(body),)* }
            }

            /// Reads the payload of a record, upcasting it when an older version wrote it.
            ///
            /// # Errors
            /// When the kind or version is not known or the payload does not fit.
            pub fn decode(kind: &str, version: u16, payload: &[u8]) -> Result<Self, CommandError> {
                match kind {
                    $($name => decode::<$payload>(version, payload).map(Self::$variant),)*
                    other => Err(CommandError::UnknownKind(other.to_owned())),
                }
            }
        }
    };
    (@ephemeral ephemeral) => { true };
    (@ephemeral) => { false };
}

commands! {
    /// The server's name and signing key, made at its first start.
    ServerIdentity(ServerIdentity) = "server.identity" version 1 MustNotRewind;
    /// The log was rebuilt, up to an earlier moment or all of it; a new epoch begins with this
    /// record.
    ServerRestore(ServerRestore) = "server.restore" version 2 MustNotRewind;
    /// A backup of the log and the uploaded files was made.
    BackupMade(BackupMade) = "backup.made" version 1 MustNotRewind;
    /// Payloads of earlier records were erased or reduced.
    LogErase(LogErase) = "log.erase" version 2 MustNotRewind;
    /// The server vouches for its log up to some record.
    LogCheckpoint(LogCheckpoint) = "log.checkpoint" version 1 Rewindable;
    /// An account was made.
    UserRegister(UserRegister) = "user.register" version 1 MustNotRewind;
    /// A guest's account became a full one.
    UserUpgrade(UserUpgrade) = "user.upgrade" version 1 MustNotRewind;
    /// A registration token was made, or its limits were changed.
    RegistrationTokenSet(RegistrationTokenSet) = "registration_token.set" version 1 MustNotRewind;
    /// A registration token was removed.
    RegistrationTokenRemove(RegistrationTokenRemove) = "registration_token.remove" version 1 MustNotRewind;
    /// A password was set or its hash renewed.
    UserPassword(UserPassword) = "user.password" version 2 MustNotRewind;
    /// A login token was used: it is good for one login.
    LoginTokenUse(LoginTokenUse) = "login_token.use" version 1 MustNotRewind;
    /// An account was linked with a person whom a provider of single sign-on knows.
    SsoLink(SsoLink) = "sso.link" version 1 MustNotRewind;
    /// An account became, or ceased to be, an administrator's, locked or suspended.
    UserStatus(UserStatus) = "user.status" version 1 MustNotRewind;
    /// An account was closed for ever.
    UserDeactivate(UserDeactivate) = "user.deactivate" version 2 MustNotRewind;
    /// What was kept of a user whose account was closed is to leave the log.
    UserErase(UserErase) = "user.erase" version 1 MustNotRewind;
    /// A device logged in, with new tokens.
    DeviceLogin(DeviceLogin) = "device.login" version 1 MustNotRewind;
    /// A session was given new tokens in exchange for its refresh token.
    DeviceRefresh(DeviceRefresh) = "device.refresh" version 1 MustNotRewind;
    /// The tokens of a refresh were used for the first time, which revokes the ones before them.
    DeviceConfirm(DeviceConfirm) = "device.confirm" version 1 MustNotRewind;
    /// Devices were removed and their tokens revoked.
    DeviceRemove(DeviceRemove) = "device.remove" version 1 MustNotRewind;
    /// A device was renamed.
    DeviceRename(DeviceRename) = "device.rename" version 1 Rewindable;
    /// A user's dehydrated device was made.
    DeviceDehydrate(DeviceDehydrate) = "device.dehydrate" version 1 MustNotRewind;
    /// A device was in use.
    DeviceSeen(DeviceSeen) = "device.seen" version 1 Rewindable, ephemeral;
    /// A profile field was set or removed.
    ProfileSet(ProfileSet) = "profile.set" version 1 Rewindable;
    /// Account data was set, global or for a room.
    AccountDataSet(AccountDataSet) = "account_data.set" version 1 Rewindable;
    /// A filter was stored.
    FilterCreate(FilterCreate) = "filter.create" version 1 MustNotRewind;
    /// A device's encryption keys were uploaded.
    KeysUpload(KeysUpload) = "keys.upload" version 1 MustNotRewind;
    /// One of a device's one-time or fallback keys was handed out.
    KeysClaim(KeysClaim) = "keys.claim" version 1 MustNotRewind;
    /// All one-time keys were dropped: any of them may have been handed out.
    KeysDrop(KeysDrop) = "keys.drop" version 1 MustNotRewind;
    /// A user's cross-signing keys were set.
    KeysCrossSign(KeysCrossSign) = "keys.cross_sign" version 1 MustNotRewind;
    /// Keys of a user were signed.
    KeysSign(KeysSign) = "keys.sign" version 1 MustNotRewind;
    /// A backup of room keys was begun, or what vouches for it changed.
    KeyBackupSet(KeyBackupSet) = "key_backup.set" version 1 MustNotRewind;
    /// A backup of room keys was deleted.
    KeyBackupDelete(KeyBackupDelete) = "key_backup.delete" version 1 MustNotRewind;
    /// Room keys were put into a backup.
    KeyBackupPut(KeyBackupPut) = "key_backup.put" version 1 MustNotRewind;
    /// Room keys were taken out of a backup.
    KeyBackupRemove(KeyBackupRemove) = "key_backup.remove" version 1 MustNotRewind;
    /// Messages were sent to devices.
    ToDeviceSend(ToDeviceSend) = "to_device.send" version 1 MustNotRewind;
    /// A device has got the messages that were sent to it.
    ToDeviceAck(ToDeviceAck) = "to_device.ack" version 1 MustNotRewind;
    /// An event was added to a room.
    RoomEvent(RoomEvent) = "room.event" version 1 Rewindable;
    /// Events of a room are gone, and their content is to leave the log.
    RoomErase(RoomErase) = "room.erase" version 1 MustNotRewind;
    /// A room is gone, and the content of its events is to leave the log.
    RoomPurge(RoomPurge) = "room.purge" version 2 MustNotRewind;
    /// A user forgot a room.
    RoomForget(RoomForget) = "room.forget" version 1 Rewindable;
    /// A restore undid how a user came to be in rooms.
    RoomUndo(RoomUndo) = "room.undo" version 1 MustNotRewind;
    /// A room was listed in or taken off the public directory.
    RoomVisibility(RoomVisibility) = "room.visibility" version 1 Rewindable;
    /// An application service listed a room of its network in the directory, or took it off.
    RoomNetwork(RoomNetwork) = "room.network" version 1 Rewindable;
    /// A room was closed to whoever is not in it, or opened again, by those who run the server.
    RoomBlock(RoomBlock) = "room.block" version 1 MustNotRewind;
    /// A room began to be shut down: everyone leaves it.
    RoomShutdown(RoomShutdown) = "room.shutdown" version 2 Rewindable;
    /// A room was shut down.
    RoomShutdownFinish(RoomShutdownFinish) = "room.shutdown_finish" version 2 Rewindable;
    /// A room became the one in which a user is told what those who run the server have to say.
    NoticeRoom(NoticeRoom) = "notice.room" version 1 Rewindable;
    /// Receipts in a room moved.
    RoomReceipt(RoomReceipt) = "room.receipt" version 2 Rewindable, ephemeral, from RoomReceipt::before;
    /// A user started or stopped typing in a room.
    RoomTyping(RoomTyping) = "room.typing" version 1 Rewindable, ephemeral;
    /// A user reported an event, a room or a user to those who run the server.
    ReportCreate(ReportCreate) = "report.create" version 1 Rewindable;
    /// A report was dealt with, and is not listed any more.
    ReportRemove(ReportRemove) = "report.remove" version 1 Rewindable;
    /// What others see of a user's presence changed.
    PresenceSet(PresenceSet) = "presence.set" version 1 Rewindable, ephemeral;
    /// An event was scheduled to be sent later.
    DelayedSchedule(DelayedSchedule) = "delayed.schedule" version 1 Rewindable;
    /// The time of a scheduled event began anew.
    DelayedRestart(DelayedRestart) = "delayed.restart" version 1 Rewindable;
    /// A scheduled event was sent, cancelled, or could not be sent.
    DelayedFinish(DelayedFinish) = "delayed.finish" version 1 Rewindable;
    /// A media id was given out, for a file to be uploaded to.
    MediaCreate(MediaCreate) = "media.create" version 1 Rewindable;
    /// A file was uploaded.
    MediaUpload(MediaUpload) = "media.upload" version 1 Rewindable;
    /// Files were put into quarantine, where nobody can download them, or taken out of it.
    MediaQuarantine(MediaQuarantine) = "media.quarantine" version 1 MustNotRewind;
    /// A media id was exempted from quarantine, or not any more.
    MediaProtect(MediaProtect) = "media.protect" version 1 MustNotRewind;
    /// Files were removed.
    MediaRemove(MediaRemove) = "media.remove" version 2 MustNotRewind;
    /// An alias was pointed at a room.
    AliasSet(AliasSet) = "alias.set" version 1 Rewindable;
    /// An alias was removed.
    AliasRemove(AliasRemove) = "alias.remove" version 1 Rewindable;
    /// Someone asked for a third-party identifier to be validated.
    ValidationRequest(ValidationRequest) = "validation.request" version 1 MustNotRewind;
    /// The message of a validation was handed over for delivery.
    ValidationSent(ValidationSent) = "validation.sent" version 1 MustNotRewind;
    /// Someone tried to complete a validation with the wrong token.
    ValidationMiss(ValidationMiss) = "validation.miss" version 1 MustNotRewind;
    /// A third-party identifier was validated.
    ValidationComplete(ValidationComplete) = "validation.complete" version 1 MustNotRewind;
    /// What was validated was made use of; a validation serves once.
    ValidationUse(ValidationUse) = "validation.use" version 1 MustNotRewind;
    /// A third-party identifier was added to an account.
    ThreepidAdd(ThreepidAdd) = "threepid.add" version 1 MustNotRewind;
    /// A third-party identifier was removed from an account.
    ThreepidRemove(ThreepidRemove) = "threepid.remove" version 1 MustNotRewind;
    /// A third-party identifier was bound to a user on an identity server.
    ThreepidBind(ThreepidBind) = "threepid.bind" version 1 MustNotRewind;
    /// A third-party identifier was unbound from a user on an identity server.
    ThreepidUnbind(ThreepidUnbind) = "threepid.unbind" version 1 MustNotRewind;
    /// How far someone outside has been told what is in the log.
    DeliveryAdvance(DeliveryAdvance) = "delivery.advance" version 1 Rewindable, ephemeral;
    /// A pusher was made or changed.
    PusherSet(PusherSet) = "pusher.set" version 1 MustNotRewind;
    /// A pusher was removed.
    PusherRemove(PusherRemove) = "pusher.remove" version 1 MustNotRewind;
    /// How far pushers have told what is in the log.
    PusherAdvance(PusherAdvance) = "pusher.advance" version 1 Rewindable, ephemeral;
    /// A mail was handed over for a pusher.
    PusherMail(PusherMail) = "pusher.mail" version 1 Rewindable, ephemeral;
    /// Why those who run the server did what stands before it in the same batch.
    AdminReason(AdminReason) = "admin.reason" version 1 Rewindable;
}

/// The payload of one kind of command.
pub trait Body: Serialize + DeserializeOwned {
    /// What is fixed about the kind.
    const KIND: Kind;

    /// Reads a payload that an older version wrote. Of most kinds there is none yet.
    ///
    /// # Errors
    /// When the payload does not fit that version.
    fn upcast(version: u16, payload: &[u8]) -> Result<Self, serde_json::Error> {
        let _ = version;
        serde_json::from_slice(payload)
    }
}

fn encode<T: Serialize>(body: &T) -> Bytes {
    // Payload types hold strings, numbers and JSON that was parsed before: they always serialise.
    serde_json::to_vec(body).map(Bytes::from).expect("command payloads serialise")
}

fn decode<T: Body>(version: u16, payload: &[u8]) -> Result<T, CommandError> {
    let kind = T::KIND;
    let fits = |source| CommandError::Payload { kind: kind.name, source };
    if version == kind.version {
        serde_json::from_slice(payload).map_err(fits)
    } else if version < kind.version {
        T::upcast(version, payload).map_err(fits)
    } else {
        Err(CommandError::NewerVersion { kind: kind.name, found: version, known: kind.version })
    }
}

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
    #[serde(with = "hex")]
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
    #[serde(with = "hex")]
    pub root: [u8; 32],
    /// The chain value of that record.
    #[serde(with = "hex")]
    pub chain: [u8; 32],
    /// When it was said.
    pub time_ms: u64,
    /// The key that signed it, `ed25519:<version>`.
    pub key_id: String,
    /// The signature of [`LogCheckpoint::statement`] in unpadded base64.
    pub signature: String,
}

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

/// What kind of account it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccountKind {
    /// A full account.
    User,
    /// A guest account.
    Guest,
}

/// Payload of `user.register`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserRegister {
    /// The new user.
    pub user_id: OwnedUserId,
    /// Full or guest account.
    pub kind: AccountKind,
    /// Password hash in PHC form (`$pbkdf2-sha512$i=…$salt$hash`); none for accounts without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// What the user met to be let in.
    #[serde(flatten)]
    pub met: Requirements,
}

/// Payload of `user.upgrade`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserUpgrade {
    /// The user, a guest until now.
    pub user_id: OwnedUserId,
    /// Password hash in PHC form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// What the user met to be let in.
    #[serde(flatten)]
    pub met: Requirements,
}

/// Of what a new user met, that which is to be remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirements {
    /// The registration token that was used, which counts as one use of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration_token: Option<TokenHash>,
    /// The documents that were agreed to: each one's name and version.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub terms: BTreeMap<String, String>,
}

/// Payload of `registration_token.set`. How often it was used stays as it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegistrationTokenSet {
    /// The token.
    pub registration_token: TokenHash,
    /// What it is called among those who run the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// How many accounts can be made with it; none: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses_allowed: Option<u64>,
    /// When it expires, in milliseconds since the Unix epoch; none: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// Payload of `registration_token.remove`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegistrationTokenRemove {
    /// The token.
    pub registration_token: TokenHash,
}

/// Payload of `user.password`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserPassword {
    /// The user.
    pub user_id: OwnedUserId,
    /// Password hash in PHC form.
    pub password: Secret,
    /// Whether it is the same password as before under a stronger hash. (Not in version 1.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renewed: bool,
}

/// Payload of `login_token.use`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoginTokenUse {
    /// The user whom the token logs in.
    pub user_id: OwnedUserId,
    /// What tells the token from others: in itself it opens nothing.
    pub nonce: String,
    /// When the token expires, in milliseconds since the Unix epoch. From then on, that it was used
    /// need not be known.
    pub expires_ms: u64,
}

/// Payload of `sso.link`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SsoLink {
    /// The user.
    pub user_id: OwnedUserId,
    /// The provider's id in the configuration.
    pub provider: String,
    /// How the provider names the person. Never another person's at this provider.
    pub subject: String,
}

/// Payload of `user.status`. What is absent stays as it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserStatus {
    /// The user.
    pub user_id: OwnedUserId,
    /// Whether they administer the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<bool>,
    /// Whether their account is locked (client-server API, "Account locking").
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked: Option<bool>,
    /// Whether their account is suspended (client-server API, "Account suspension").
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
    /// Why, in the words of whoever did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Payload of `user.deactivate`. The password ends with it; the devices were removed before, in the
/// same batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UserDeactivate {
    /// The user.
    pub user_id: OwnedUserId,
    /// Whether what they sent is kept from those who have not seen it, and what is kept of them is
    /// gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub erase: bool,
    /// With `erase`: whether what they sent is gone for everybody. (Not in version 1.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub messages: bool,
    /// With `erase`: whether the files that they uploaded are removed. (Not in version 1.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub media: bool,
    /// Why, in the words of whoever did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Payload of `user.erase`. It follows a `user.deactivate` with `erase`, and there may be several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserErase {
    /// The user.
    pub user_id: OwnedUserId,
    /// The `user.deactivate`.
    pub because: Offset,
    /// The records that held something of the user: runs, each with its first and last offset, in
    /// ascending order.
    pub records: Vec<(Offset, Offset)>,
    /// Whether another one follows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// Payload of `device.login`. The session it opens is named by this record's offset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceLogin {
    /// The user.
    pub user_id: OwnedUserId,
    /// The device; a device of this id that exists already loses its tokens.
    pub device_id: OwnedDeviceId,
    /// Display name for a new device; ignored for one that exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The session's first tokens.
    pub tokens: Tokens,
}

/// The tokens of a session, as hashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// The access token.
    pub access: TokenHash,
    /// When the access token expires, in milliseconds since the Unix epoch; none: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// The refresh token, for clients that support it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh: Option<TokenHash>,
}

impl Tokens {
    /// Whether these are the same tokens, whenever they end.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        self.access == other.access && self.refresh == other.refresh
    }
}

/// Payload of `device.refresh`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceRefresh {
    /// The user.
    pub user_id: OwnedUserId,
    /// The device.
    pub device_id: OwnedDeviceId,
    /// The new tokens. Those before them stay valid until one of these is used.
    pub tokens: Tokens,
}

/// Payload of `device.confirm`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceConfirm {
    /// The user.
    pub user_id: OwnedUserId,
    /// The device.
    pub device_id: OwnedDeviceId,
}

/// Payload of `device.remove`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceRemove {
    /// The user.
    pub user_id: OwnedUserId,
    /// The devices that were removed.
    pub devices: Vec<OwnedDeviceId>,
}

/// Payload of `device.rename`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceRename {
    /// The user.
    pub user_id: OwnedUserId,
    /// The device.
    pub device_id: OwnedDeviceId,
    /// The new display name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
}

/// Payload of `device.dehydrate`. Its keys are in a `keys.upload` of the same batch; an earlier
/// dehydrated device of the user was removed before, in the same batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceDehydrate {
    /// The user.
    pub user_id: OwnedUserId,
    /// The device, which nobody is logged in on: it takes messages until one of the user's devices
    /// comes for them.
    pub device_id: OwnedDeviceId,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Its private keys, encrypted for the user.
    pub device_data: Box<RawValue>,
}

/// Payload of `device.seen`. An earlier one of the same device is superseded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSeen {
    /// The user.
    pub user_id: OwnedUserId,
    /// The device.
    pub device_id: OwnedDeviceId,
    /// When and from where.
    #[serde(flatten)]
    pub sighting: Sighting,
}

/// A use of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// When, in milliseconds since the Unix epoch.
    pub seen_ms: u64,
    /// From where.
    pub address: IpAddr,
    /// What the client calls itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

/// Payload of `profile.set`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProfileSet {
    /// The user.
    pub user_id: OwnedUserId,
    /// The field, for example `displayname`.
    pub field: String,
    /// The new value; none removes the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<serde_json::Value>,
}

/// Payload of `account_data.set`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AccountDataSet {
    /// The user.
    pub user_id: OwnedUserId,
    /// The room, for account data of a room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_id: Option<OwnedRoomId>,
    /// The event type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The content: a JSON object, or `null` for what was deleted.
    pub content: Box<RawValue>,
}

/// Payload of `filter.create`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FilterCreate {
    /// The user.
    pub user_id: OwnedUserId,
    /// The id given out for it.
    pub filter_id: String,
    /// The filter as the client sent it.
    pub filter: Box<RawValue>,
}

/// Payload of `keys.upload`. What is absent stays as it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeysUpload {
    /// The user.
    pub user_id: OwnedUserId,
    /// The device.
    pub device_id: OwnedDeviceId,
    /// The device's identity keys, as it signed them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_keys: Option<Box<RawValue>>,
    /// One-time keys that are new, by key id (`<algorithm>:<name>`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub one_time_keys: BTreeMap<String, Box<RawValue>>,
    /// Fallback keys, by key id; each takes the place of the one of its algorithm.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fallback_keys: BTreeMap<String, Box<RawValue>>,
}

/// Payload of `keys.claim`. Who claimed it is the record's origin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeysClaim {
    /// Whose key it is.
    pub user_id: OwnedUserId,
    /// The device.
    pub device_id: OwnedDeviceId,
    /// The key's id.
    pub key_id: String,
    /// Whether it is a fallback key, which is handed out again and again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fallback: bool,
}

/// Payload of `keys.drop`. It says nothing more: no one-time key of any device that was uploaded
/// before is handed out again, every fallback key counts as handed out, and everyone's devices are
/// to be looked at anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysDrop {}

/// Payload of `keys.cross_sign`. What is absent stays as it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeysCrossSign {
    /// The user.
    pub user_id: OwnedUserId,
    /// The master key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master_key: Option<Box<RawValue>>,
    /// The key that signs the user's own devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_signing_key: Option<Box<RawValue>>,
    /// The key that signs other users' master keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_signing_key: Option<Box<RawValue>>,
}

impl KeysCrossSign {
    /// The public keys in it, in unpadded base64.
    pub fn public_keys(&self) -> impl Iterator<Item = String> {
        #[derive(Deserialize)]
        struct Key {
            keys: BTreeMap<String, String>,
        }
        let keys = [&self.master_key, &self.self_signing_key, &self.user_signing_key];
        let keys = keys.into_iter().flatten();
        keys.filter_map(|key| serde_json::from_str::<Key>(key.get()).ok())
            .flat_map(|key| key.keys.into_values())
    }
}

/// Payload of `keys.sign`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeysSign {
    /// Whose keys were signed.
    pub user_id: OwnedUserId,
    /// Who signed them.
    pub by: OwnedUserId,
    /// By device id or public key: the signatures, each by the id of the key that made it.
    pub signatures: BTreeMap<String, BTreeMap<String, String>>,
}

/// Payload of `key_backup.set`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyBackupSet {
    /// The user.
    pub user_id: OwnedUserId,
    /// The backup's version: a user's backups are numbered from 1.
    pub version: u64,
    /// The algorithm that its keys are encrypted with.
    pub algorithm: String,
    /// What belongs to the algorithm: for example a public key with signatures.
    pub auth_data: Box<RawValue>,
}

/// Payload of `key_backup.delete`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyBackupDelete {
    /// The user.
    pub user_id: OwnedUserId,
    /// The backup's version.
    pub version: u64,
}

/// Payload of `key_backup.put`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyBackupPut {
    /// The user.
    pub user_id: OwnedUserId,
    /// The backup's version.
    pub version: u64,
    /// By room and session, the keys: each takes the place of the one that was there.
    pub rooms: BTreeMap<OwnedRoomId, BTreeMap<String, BackedUpKey>>,
}

/// The key of one session in a backup.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackedUpKey {
    /// The first message that it decrypts.
    pub first_message_index: u64,
    /// How often it was forwarded.
    pub forwarded_count: u64,
    /// Whether the device that put it there trusts where it came from.
    pub is_verified: bool,
    /// The key, encrypted.
    pub session_data: Box<RawValue>,
}

/// Payload of `key_backup.remove`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyBackupRemove {
    /// The user.
    pub user_id: OwnedUserId,
    /// The backup's version.
    pub version: u64,
    /// The room whose keys are removed; none: of all rooms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_id: Option<OwnedRoomId>,
    /// The session whose key is removed; none: of all sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

/// Payload of `to_device.send`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToDeviceSend {
    /// Who sent it.
    pub sender: OwnedUserId,
    /// The type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The content for each device of each user.
    pub messages: BTreeMap<OwnedUserId, BTreeMap<OwnedDeviceId, Box<RawValue>>>,
    /// The transaction that sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<Transaction>,
}

/// Payload of `to_device.ack`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToDeviceAck {
    /// The user.
    pub user_id: OwnedUserId,
    /// The device.
    pub device_id: OwnedDeviceId,
    /// The last record whose message the device has.
    pub up_to: Offset,
}

/// Payload of `room.event`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomEvent {
    /// The room.
    pub room_id: OwnedRoomId,
    /// The event's id: the reference hash of `pdu`.
    pub event_id: OwnedEventId,
    /// The room's version; only with its `m.room.create` event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_version: Option<RoomVersionId>,
    /// The transaction that sent it, for events sent with a transaction id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<Transaction>,
    /// For a redaction that takes effect: the offset of the event that it redacts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redacts: Option<Offset>,
    /// For an event that was scheduled: the id of its delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_id: Option<String>,
    /// The event in federation format: hashed, signed, canonical JSON.
    pub pdu: Box<RawValue>,
}

/// Payload of `room.erase`. From it on the events are not in the room any more; redactions of them
/// go with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomErase {
    /// The room.
    pub room_id: OwnedRoomId,
    /// The events, in ascending order: none of them state.
    pub events: Vec<Offset>,
    /// Why they are gone.
    #[serde(flatten)]
    pub why: EventsEnd,
}

/// Why events are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum EventsEnd {
    /// Events of this type live so long in this room.
    Lifetime {
        /// The type.
        event_type: String,
        /// Milliseconds from the record of an event on.
        lifetime_ms: u64,
    },
    /// The one who sent them was erased.
    Sender {
        /// Who.
        user_id: OwnedUserId,
        /// The `user.deactivate`.
        because: Offset,
    },
}

/// Payload of `room.purge`. Nobody is joined to the room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomPurge {
    /// The room.
    pub room_id: OwnedRoomId,
    /// Records that are no events of it and hold something of it, which is to leave the log, too:
    /// its aliases, and what was said of it to and by those who run the server. Runs, each with its
    /// first and last offset, in ascending order. (Not in version 1.)
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<(Offset, Offset)>,
    /// Whether another one follows in the same batch: the room goes with the last. (Not in version
    /// 1.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// Why, in the words of whoever did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A client's transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// The session it belongs to: the offset of the `device.login` that opened it. Survives token
    /// refreshes, ends with a logout.
    pub session: Offset,
    /// The client's transaction id.
    pub id: String,
    /// What the id was used for: the endpoint and its path arguments.
    pub scope: String,
}

/// Payload of `room.forget`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomForget {
    /// The user who forgot it.
    pub user_id: OwnedUserId,
    /// The room.
    pub room_id: OwnedRoomId,
}

/// Payload of `room.undo`: in which rooms a user was, by records that a restore undid, and is not.
/// Their clients may have been told that they are, and are to be told that they are not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomUndo {
    /// The user.
    pub user_id: OwnedUserId,
    /// The epoch that the restore began: whoever has a position of it, or of a later one, was never
    /// told.
    pub begun: Epoch,
    /// The rooms, which need not be there any more.
    pub rooms: Vec<UndoneRoom>,
}

/// A room that a user joined, or was invited to or knocked on, in a future that was undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoneRoom {
    /// The room.
    pub room_id: OwnedRoomId,
    /// The epoch of the record with which that came to be.
    pub epoch: Epoch,
    /// Where that record was.
    pub offset: Offset,
}

/// Payload of `room.visibility`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomVisibility {
    /// The room.
    pub room_id: OwnedRoomId,
    /// Whether the public directory lists it.
    pub public: bool,
}

/// Payload of `room.network`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomNetwork {
    /// The room.
    pub room_id: OwnedRoomId,
    /// The application service, by its id in the configuration.
    pub service: String,
    /// Its name of the network.
    pub network_id: String,
    /// Whether the directory lists the room with those of the network.
    pub listed: bool,
}

/// Payload of `room.block`. The room need not exist here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomBlock {
    /// The room.
    pub room_id: OwnedRoomId,
    /// Whether nobody may join it, knock or be invited from now on.
    pub blocked: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Payload of `room.shutdown`. With it, the room leaves the public directory. Its aliases are moved
/// and its members leave after that, each by a record of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomShutdown {
    /// The room.
    pub room_id: OwnedRoomId,
    /// What this shutdown is known by.
    pub id: String,
    /// The room to which members and aliases move, if there is to be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<Replacement>,
    /// Whether it is purged at the end. (Not in version 1.)
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub purge: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A room in the place of one that is shut down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replacement {
    /// The id that it gets.
    pub room_id: OwnedRoomId,
    /// Who makes it.
    pub creator: OwnedUserId,
    /// Its name.
    pub name: String,
    /// Its first message, which says what happened.
    pub message: String,
}

/// Payload of `room.shutdown_finish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomShutdownFinish {
    /// The room.
    pub room_id: OwnedRoomId,
    /// Which shutdown.
    pub id: String,
    /// Who could not be made to leave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<OwnedUserId>,
    /// Of a room that was purged, who left, which is not known otherwise. (Not in version 1.)
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<OwnedUserId>,
}

/// Payload of `notice.room`. The room made in the same batch takes the place of one before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoticeRoom {
    /// Who is told.
    pub user_id: OwnedUserId,
    /// The room.
    pub room_id: OwnedRoomId,
}

/// Payload of `room.receipt`: what moved at one time in one room, which in a large one may be the
/// receipts of many users.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomReceipt {
    /// The room.
    pub room_id: OwnedRoomId,
    /// The receipts: no two of one user, type and thread.
    pub receipts: Vec<Receipt>,
}

impl RoomReceipt {
    /// Version 1 held one receipt, beside the room.
    fn before(_: u16, payload: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Before {
            room_id: OwnedRoomId,
            #[serde(flatten)]
            receipt: Receipt,
        }
        let Before { room_id, receipt } = serde_json::from_slice(payload)?;
        Ok(Self { room_id, receipts: vec![receipt] })
    }
}

/// A receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The user.
    pub user_id: OwnedUserId,
    /// `m.read` or `m.read.private`.
    pub receipt_type: String,
    /// The event it points at.
    pub event_id: OwnedEventId,
    /// The thread it belongs to, as in the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub ts: u64,
}

/// Payload of `room.typing`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomTyping {
    /// The room.
    pub room_id: OwnedRoomId,
    /// The user.
    pub user_id: OwnedUserId,
    /// When it ends by itself, in milliseconds since the Unix epoch; 0 ends it now.
    pub until_ms: u64,
    /// For one who was typing already: the record with which that began. Only the end has moved,
    /// and nobody else has anything new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Offset>,
}

/// Payload of `report.create`. What is reported is the event if there is one, otherwise the room or
/// the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportCreate {
    /// Who reports.
    pub reporter: OwnedUserId,
    /// The room that is reported, or the room of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_id: Option<OwnedRoomId>,
    /// The event that is reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<OwnedEventId>,
    /// The user who is reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<OwnedUserId>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How bad it is: from -100, the worst, to 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<i8>,
}

/// Payload of `report.remove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportRemove {
    /// The record of the report.
    pub report: Offset,
}

/// What others see of a user: there, there but idle, or gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PresenceState {
    /// Not connected, or not to be seen.
    #[default]
    Offline,
    /// Connected, but idle.
    Unavailable,
    /// Connected.
    Online,
}

impl PresenceState {
    /// The word in the presence event's content.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Offline => "offline",
            Self::Unavailable => "unavailable",
            Self::Online => "online",
        }
    }
}

/// Payload of `presence.set`. Each says everything: an earlier one of the same user is superseded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresenceSet {
    /// The user.
    pub user_id: OwnedUserId,
    /// Of the user's devices the one that is there most.
    pub presence: PresenceState,
    /// The user's own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_msg: Option<String>,
    /// Whether the user did something within the last minute.
    pub currently_active: bool,
    /// When the user last did something, in milliseconds since the Unix epoch; 0: not known.
    pub last_active_ms: u64,
}

/// Payload of `delayed.schedule`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DelayedSchedule {
    /// The id given out for it: a secret, as whoever knows it may act on it.
    pub delay_id: String,
    /// Who sends it.
    pub user_id: OwnedUserId,
    /// The room.
    pub room_id: OwnedRoomId,
    /// The event's type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The event's state key, for a state event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_key: Option<String>,
    /// The event's content, as the client sent it: a JSON object.
    pub content: Box<RawValue>,
    /// How long it waits, in milliseconds.
    pub delay_ms: u64,
    /// Since when, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// The transaction that scheduled it, if the endpoint has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<Transaction>,
}

/// Payload of `delayed.restart`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DelayedRestart {
    /// Which.
    pub delay_id: String,
    /// Since when it waits now, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}

/// Payload of `delayed.finish`. When the event was sent, its `room.event` is in the same batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DelayedFinish {
    /// Which.
    pub delay_id: String,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: DelayedOutcome,
    /// Whether someone asked for it; otherwise its time had come, or something stood in its way.
    pub by_action: bool,
    /// When, in milliseconds since the Unix epoch.
    pub ts: u64,
}

/// What became of a scheduled event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum DelayedOutcome {
    /// It was sent.
    Send {
        /// The event's id.
        event_id: OwnedEventId,
    },
    /// It was called off.
    Cancel,
    /// It could not be sent.
    Error {
        /// The code of the standard error.
        errcode: String,
        /// The sentence of the standard error.
        error: String,
    },
}

/// Payload of `media.create`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MediaCreate {
    /// The id: what follows the server's name in `mxc://`.
    pub media_id: String,
    /// Who may upload to it.
    pub user_id: OwnedUserId,
    /// When the id lapses if nothing was uploaded, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

/// Payload of `media.upload`. The bytes are durable in the media store before this is appended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaUpload {
    /// The id: what follows the server's name in `mxc://`.
    pub media_id: String,
    /// Who uploaded it; none for what the server fetched by itself, for a preview of a page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<OwnedUserId>,
    /// blake3 of the file, which is its name in the store.
    pub hash: FileHash,
    /// Its length in bytes.
    pub size: u64,
    /// Its type, as the uploader says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Its name, as the uploader says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Payload of `media.quarantine`. It is the files that are in quarantine: under whatever id they
/// are, and are put later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaQuarantine {
    /// The ids under which the files are.
    pub media_ids: Vec<String>,
    /// Whether they are in quarantine from now on.
    pub quarantined: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Payload of `media.protect`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaProtect {
    /// The id.
    pub media_id: String,
    /// Whether what is under it can be downloaded even when the file is in quarantine.
    pub protected: bool,
}

/// Payload of `admin.reason`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminReason {
    /// Why.
    pub reason: String,
}

/// Payload of `media.remove`. A file that no id names any more leaves the store after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaRemove {
    /// The ids.
    pub media_ids: Vec<String>,
    /// Why.
    #[serde(flatten)]
    pub why: MediaEnd,
}

/// Why files are removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum MediaEnd {
    /// Files are kept so long.
    Lifetime {
        /// Milliseconds from the upload on.
        lifetime_ms: u64,
    },
    /// Whoever uploaded them was erased.
    Owner {
        /// Who.
        user_id: OwnedUserId,
        /// The `user.deactivate`.
        because: Offset,
    },
    /// Those who run the server wanted them gone. (Not in version 1.)
    Asked,
    /// Nothing but a room that was purged named them.
    Room {
        /// Which.
        room_id: OwnedRoomId,
    },
}

/// Payload of `alias.set`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AliasSet {
    /// The alias.
    pub alias: OwnedRoomAliasId,
    /// The room it points at.
    pub room_id: OwnedRoomId,
    /// Who made it.
    pub creator: OwnedUserId,
}

/// Payload of `alias.remove`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AliasRemove {
    /// The alias.
    pub alias: OwnedRoomAliasId,
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

/// A delivery that is on its way: what there is to tell of the records after `done`, up to and with
/// `up_to`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnderWay {
    /// What the receiver knows it by.
    pub id: String,
    /// The last record that it is about.
    pub up_to: Offset,
}

/// 32 bytes as 64 lower-case hexadecimal digits.
mod hex {
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(hash: &[u8; 32], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&blake3::Hash::from_bytes(*hash).to_hex())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 32], D::Error> {
        let hex = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        let hash = blake3::Hash::from_hex(hex.as_bytes()).map_err(serde::de::Error::custom)?;
        Ok(*hash.as_bytes())
    }
}

/// Text that is in the log because it must be, and nowhere else: it does not show when what holds
/// it is printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for Secret {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// blake3 of a file, written as hex: its name in the media store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHash(pub [u8; 32]);

impl FileHash {
    /// The hash with these 64 hexadecimal digits, in lower case.
    #[must_use]
    pub fn from_hex(hex: &str) -> Option<Self> {
        let hash = blake3::Hash::from_hex(hex).ok().map(|hash| Self(*hash.as_bytes()));
        hash.filter(|hash| hash.to_string() == hex)
    }
}

impl From<blake3::Hash> for FileHash {
    fn from(hash: blake3::Hash) -> Self {
        Self(*hash.as_bytes())
    }
}

impl std::fmt::Display for FileHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl std::fmt::Debug for FileHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for FileHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        hex::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for FileHash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        hex::deserialize(deserializer).map(Self)
    }
}

/// SHA-256 of a secret token, written as hex. The token itself is never stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// The hash of `token`.
    #[must_use]
    pub fn of(token: &str) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(token.as_bytes()).into())
    }

    /// Its first eight digits: enough to tell tokens apart, far too little to look one up by.
    #[must_use]
    pub fn start(&self) -> String {
        self.0.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl std::fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl Serialize for TokenHash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl<'de> Deserialize<'de> for TokenHash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hex = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let hash = blake3::Hash::from_hex(hex.as_bytes()).map_err(serde::de::Error::custom)?;
        Ok(Self(*hash.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_erasure_and_a_deactivation_of_version_1_are_read() {
        let hash = "ab".repeat(32);
        let stored = format!(
            r#"{{"reduced":[{{"offset":7,"because":9,"room_version":"10","hash":"{hash}"}}],"superseded":[[2,4]]}}"#
        );
        let Ok(Command::LogErase(read)) = Command::decode("log.erase", 1, stored.as_bytes()) else {
            panic!("it is not read")
        };
        assert_eq!(read.reduced[0].room_version, Some(RoomVersionId::V10));
        assert_eq!(read.count(), 4);
        let stored = br#"{"user_id":"@ann:example.org","erase":true}"#;
        let Ok(Command::UserDeactivate(read)) = Command::decode("user.deactivate", 1, stored)
        else {
            panic!("it is not read")
        };
        assert_eq!((read.erase, read.messages, read.media), (true, false, false));
    }

    #[test]
    fn a_receipt_of_version_1_is_read() {
        let stored = br#"{"room_id":"!r:example.org","user_id":"@ann:example.org","receipt_type":"m.read","event_id":"$e","thread_id":"main","ts":7}"#;
        let Ok(Command::RoomReceipt(read)) = Command::decode("room.receipt", 1, stored) else {
            panic!("it is not read")
        };
        let receipt = Receipt {
            user_id: "@ann:example.org".try_into().unwrap(),
            receipt_type: "m.read".to_owned(),
            event_id: "$e".try_into().unwrap(),
            thread_id: Some("main".to_owned()),
            ts: 7,
        };
        assert_eq!((read.room_id.as_str(), read.receipts), ("!r:example.org", vec![receipt]));
    }
}
