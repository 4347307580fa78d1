//! The kinds of command, their payloads, and the upcasting of older payloads.
//!
//! A command is a *fact*: every id, hash, signature and time in it was settled before it was
//! appended. The names in [`Kind`] are permanent: they are in every log ever written.
//!
//! A kind is one row of the list below: its name, family and version, whether it may be rewound and
//! what a restore does with it, and which values it is about. A file for related families has its
//! payload, with the personal data in it and what is left of it after an erasure ([`Content`]).
//! Each layer above implements a trait for each payload, which
//! [`each_command`](crate::each_command), [`by_restore`](crate::by_restore) or
//! [`if_about`](crate::if_about) calls: a kind without an implementation does not compile.

mod account;
mod device;
mod federation;
mod import;
mod keys;
pub(super) mod kind;
mod media;
mod oauth;
mod policy;
mod room;
mod server;
pub(super) mod values;

pub use self::{
    account::*,
    device::*,
    federation::*,
    import::*,
    keys::*,
    kind::{Class, Content, Erased, Family, Kind, Restore, Topic, topic},
    media::*,
    oauth::*,
    policy::*,
    room::*,
    server::*,
    values::*,
};

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Holds,
    pusher::{PusherAdvance, PusherMail, PusherRemove, PusherSet},
    threepid::{
        ThreepidAdd, ThreepidBind, ThreepidRemove, ThreepidUnbind, ValidationComplete,
        ValidationMiss, ValidationRequest, ValidationSent, ValidationUse,
    },
};

/// Why a payload could not be read as a command.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("command kind `{0}` is not known to this version of logcabin; a newer one wrote it")]
    UnknownKind(String),
    /// The kind is known but its version is newer.
    #[error(
        "command `{kind}` has version {found}, this version of logcabin reads up to {known}; a newer one wrote it"
    )]
    NewerVersion {
        kind: &'static str,
        /// Version in the record.
        found: u16,
        /// Newest version this server reads.
        known: u16,
    },
    /// The payload does not fit its kind and version.
    #[error("payload of `{kind}` does not fit: {source}")]
    Payload { kind: &'static str, source: serde_json::Error },
}

macro_rules! commands {
    ($d:tt $($(#[$doc:meta])* $variant:ident($payload:ty) = $name:literal of $family:ident version $version:literal $class:ident $restore:ident about [$($topic:ident),*] $(, $ephemeral:ident)? $(, from $upcast:path)?;)*) => {
        /// A write, recorded as a fact.
        #[derive(Clone, Debug)]
        pub enum Command {
            $($(#[$doc])* $variant($payload),)*
        }

        /// Every kind of command, in the order of `log_format.md`.
        pub const KINDS: &[Kind] = &[$(<$payload as Body>::KIND),*];

        $(impl Body for $payload {
            const KIND: Kind = Kind {
                name: $name,
                family: Family::$family,
                version: $version,
                class: Class::$class,
                restore: Restore::$restore,
                about: &[$(Topic::$topic),*],
                ephemeral: commands!(@ephemeral $($ephemeral)?),
                erased: commands!(@erased $payload $(, $ephemeral)?),
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
            /// The properties of this command's kind.
            pub const fn kind(&self) -> &'static Kind {
                match self { $(Self::$variant(_) => &<$payload as Body>::KIND,)* }
            }

            /// The payload: one JSON object.
            pub fn encode(&self) -> Bytes {
                match self { $(Self::$variant(body) => encode(body),)* }
            }

            /// Reads the payload of a record, and upcasts it if an older version wrote it.
            pub fn decode(kind: &str, version: u16, payload: &[u8]) -> Result<Self, CommandError> {
                match kind {
                    $($name => decode::<$payload>(version, payload).map(Self::$variant),)*
                    other => Err(CommandError::UnknownKind(other.to_owned())),
                }
            }

            /// The personal data in it.
            pub fn holds(&self) -> Holds<'_> {
                match self { $(Self::$variant(body) => Content::holds(body),)* }
            }
        }

        /// Evaluates the same expression with the payload of a command, whatever its kind.
        #[macro_export]
        macro_rules! each_command {
            ($d command:expr, $d body:ident => $d do:expr) => {
                match $d command {
                    $($crate::Command::$variant($d body) => $d do,)*
                }
            };
        }

        /// Evaluates, with the payload of a command, the expression for what a restore does with
        /// commands of its kind.
        #[macro_export]
        macro_rules! by_restore {
            (@Dropped $d dropped:expr, $d over:expr, $d with_user:expr, $d judged:expr) => { $d dropped };
            (@CarriedOver $d dropped:expr, $d over:expr, $d with_user:expr, $d judged:expr) => { $d over };
            (@CarriedOverWithUser $d dropped:expr, $d over:expr, $d with_user:expr, $d judged:expr) => { $d with_user };
            (@Judged $d dropped:expr, $d over:expr, $d with_user:expr, $d judged:expr) => { $d judged };
            ($d command:expr, $d body:ident => {
                Dropped => $d dropped:expr,
                CarriedOver => $d over:expr,
                CarriedOverWithUser => $d with_user:expr,
                Judged => $d judged:expr,
            }) => {
                match $d command {
                    $(
                        #[allow(unused_variables, reason = "not every expression needs the payload")]
                        $crate::Command::$variant($d body) => {
                            $crate::by_restore!(
                                @$restore $d dropped, $d over, $d with_user, $d judged
                            )
                        }
                    )*
                }
            };
        }

        /// Evaluates the expression with the payload of a command and the type of a topic, if the
        /// command is about that topic.
        #[macro_export]
        macro_rules! if_about {
            ($d command:expr, $d topic:expr, $d body:ident, $d marker:ident => $d do:expr) => {
                match ($d command, $d topic) {
                    $($((
                        $crate::Command::$variant($d body),
                        $crate::command::Topic::$topic,
                    ) => {
                        type $d marker = $crate::command::topic::$topic;
                        Some($d do)
                    })*)*
                    _ => None,
                }
            };
        }
    };
    (@erased $payload:ty, ephemeral) => { Erased::All };
    (@erased $payload:ty) => { <$payload as Content>::ERASED };
    (@ephemeral ephemeral) => { true };
    (@ephemeral) => { false };
}

commands! {
    $
    /// The server's name and signing key, created at its first start.
    // The first record is kept by a restore, and the new epoch is higher than any before it.
    ServerIdentity(ServerIdentity) = "server.identity" of Other version 1 MustNotRewind Dropped about [];
    /// The log was restored, completely or up to an earlier moment; this record starts a new epoch.
    ServerRestore(ServerRestore) = "server.restore" of Other version 2 MustNotRewind Dropped about [];
    /// A backup of the log and the uploaded files was made.
    BackupMade(BackupMade) = "backup.made" of Other version 1 MustNotRewind CarriedOver about [];
    /// Payloads of earlier records were erased or reduced.
    LogErase(LogErase) = "log.erase" of Other version 2 MustNotRewind Judged about [];
    /// The server signed the Merkle root of its log up to some record.
    // It covers records that a restore removes.
    LogCheckpoint(LogCheckpoint) = "log.checkpoint" of Other version 1 Rewindable Dropped about [];
    /// An account was created.
    UserRegister(UserRegister) = "user.register" of Account version 1 MustNotRewind Judged about [Account, Password];
    /// A guest's account became a full one.
    UserUpgrade(UserUpgrade) = "user.upgrade" of Account version 1 MustNotRewind CarriedOverWithUser about [Account, Password];
    /// A new account waits until an administrator approves it.
    UserWait(UserWait) = "user.wait" of Account version 1 MustNotRewind CarriedOverWithUser about [Account];
    /// A registration token was created, or its limits were changed.
    RegistrationTokenSet(RegistrationTokenSet) = "registration_token.set" of Other version 1 MustNotRewind CarriedOver about [];
    /// A registration token was removed.
    RegistrationTokenRemove(RegistrationTokenRemove) = "registration_token.remove" of Other version 1 MustNotRewind CarriedOver about [];
    /// A password was set or its hash renewed.
    UserPassword(UserPassword) = "user.password" of Account version 2 MustNotRewind CarriedOverWithUser about [Password];
    /// A login token was used; it is valid for one login.
    LoginTokenUse(LoginTokenUse) = "login_token.use" of Other version 1 MustNotRewind CarriedOverWithUser about [];
    /// An account was linked with an identity at a provider of single sign-on.
    SsoLink(SsoLink) = "sso.link" of Other version 1 MustNotRewind CarriedOverWithUser about [];
    /// An account became an administrator's, locked, suspended or shadow-banned, or ceased to be,
    /// or was approved.
    UserStatus(UserStatus) = "user.status" of Account version 2 MustNotRewind CarriedOverWithUser about [Account];
    /// An account was deactivated.
    // The rooms are left when the restored server starts.
    UserDeactivate(UserDeactivate) = "user.deactivate" of Account version 2 MustNotRewind CarriedOverWithUser about [Account, Password, Grants, Profile, AccountData];
    /// A deactivated user's data is to be erased from the log.
    // The data of the user is found again, because the deactivation is carried over.
    UserErase(UserErase) = "user.erase" of Account version 1 MustNotRewind Dropped about [Account, Password];
    /// Messages and joins that a user sent are to be redacted.
    // A restore repeats the redactions themselves.
    UserRedact(UserRedact) = "user.redact" of Room version 1 Rewindable Dropped about [];
    /// They were redacted.
    UserRedactFinish(UserRedactFinish) = "user.redact_finish" of Room version 1 Rewindable Dropped about [];
    /// A device logged in, with new tokens.
    DeviceLogin(DeviceLogin) = "device.login" of Device version 1 MustNotRewind CarriedOverWithUser about [Device, Grants];
    /// A session exchanged its refresh token for new tokens.
    DeviceRefresh(DeviceRefresh) = "device.refresh" of Device version 1 MustNotRewind CarriedOverWithUser about [Device, Grants];
    /// The tokens of a refresh were used for the first time, which revokes the ones before them.
    DeviceConfirm(DeviceConfirm) = "device.confirm" of Device version 1 MustNotRewind CarriedOverWithUser about [Device, Grants];
    /// Devices were removed and their tokens revoked.
    DeviceRemove(DeviceRemove) = "device.remove" of Device version 1 MustNotRewind CarriedOverWithUser about [Device, Keys, Grants];
    /// A device was renamed.
    DeviceRename(DeviceRename) = "device.rename" of Device version 1 Rewindable Judged about [Device];
    /// A user's dehydrated device was created.
    DeviceDehydrate(DeviceDehydrate) = "device.dehydrate" of Device version 1 MustNotRewind CarriedOverWithUser about [Device];
    /// A device was used.
    DeviceSeen(DeviceSeen) = "device.seen" of Device version 1 Rewindable Judged about [Device], ephemeral;
    /// An OAuth client was registered.
    OauthClient(OauthClient) = "oauth.client" of Device version 1 MustNotRewind CarriedOver about [Grants];
    /// OAuth clients without a grant were removed.
    OauthClientRemove(OauthClientRemove) = "oauth.client_remove" of Device version 1 MustNotRewind CarriedOver about [Grants];
    /// A user allowed a client what it asked for, and it was sent a code.
    OauthCode(OauthCode) = "oauth.code" of Device version 1 MustNotRewind CarriedOverWithUser about [Grants];
    /// A client without a browser asked to be allowed something.
    OauthDeviceRequest(OauthDeviceRequest) = "oauth.device_request" of Device version 1 MustNotRewind CarriedOver about [Grants];
    /// A user allowed or denied what such a client asked for.
    OauthDeviceAnswer(OauthDeviceAnswer) = "oauth.device_answer" of Device version 1 MustNotRewind CarriedOverWithUser about [Grants];
    /// A client exchanged a code for tokens.
    OauthGrant(OauthGrant) = "oauth.grant" of Device version 1 MustNotRewind CarriedOverWithUser about [Device, Grants];
    /// A grant without a device got new tokens.
    OauthRefresh(OauthRefresh) = "oauth.refresh" of Device version 1 MustNotRewind CarriedOver about [Grants];
    /// The new tokens of a grant without a device were used for the first time.
    OauthConfirm(OauthConfirm) = "oauth.confirm" of Device version 1 MustNotRewind CarriedOver about [Grants];
    /// Grants ended.
    OauthEnd(OauthEnd) = "oauth.end" of Device version 1 MustNotRewind CarriedOverWithUser about [Device, Grants];
    /// A key for ID tokens was created.
    OauthKey(OauthKey) = "oauth.key" of Device version 1 MustNotRewind CarriedOver about [];
    /// A user signed in at the server's pages.
    BrowserSignIn(BrowserSignIn) = "browser.sign_in" of Browser version 1 MustNotRewind CarriedOverWithUser about [];
    /// A user was signed out of browsers.
    BrowserSignOut(BrowserSignOut) = "browser.sign_out" of Browser version 1 MustNotRewind CarriedOverWithUser about [];
    /// A profile field was set or removed.
    ProfileSet(ProfileSet) = "profile.set" of Account version 1 Rewindable Judged about [Profile];
    /// Account data was set, global or for a room.
    AccountDataSet(AccountDataSet) = "account_data.set" of Account version 1 Rewindable Judged about [AccountData];
    /// A filter was stored.
    // Clients remember the ids of filters.
    FilterCreate(FilterCreate) = "filter.create" of Filter version 1 MustNotRewind CarriedOverWithUser about [];
    /// A device's encryption keys were uploaded.
    KeysUpload(KeysUpload) = "keys.upload" of Keys version 1 MustNotRewind CarriedOverWithUser about [Keys];
    /// One of a device's one-time or fallback keys was handed out.
    KeysClaim(KeysClaim) = "keys.claim" of Keys version 1 MustNotRewind CarriedOverWithUser about [Keys];
    /// All one-time keys were dropped: any of them may have been handed out.
    KeysDrop(KeysDrop) = "keys.drop" of Keys version 1 MustNotRewind CarriedOver about [];
    /// A user's cross-signing keys were set.
    KeysCrossSign(KeysCrossSign) = "keys.cross_sign" of Keys version 1 MustNotRewind CarriedOverWithUser about [Keys];
    /// A user allowed their cross-signing keys to be replaced.
    KeysPermitReset(KeysPermitReset) = "keys.permit_reset" of Keys version 1 MustNotRewind CarriedOverWithUser about [];
    /// Keys of a user were signed.
    KeysSign(KeysSign) = "keys.sign" of Keys version 1 MustNotRewind CarriedOverWithUser about [Keys];
    /// A backup of room keys was created, or its signatures changed.
    KeyBackupSet(KeyBackupSet) = "key_backup.set" of Keys version 1 MustNotRewind CarriedOverWithUser about [];
    /// A backup of room keys was deleted.
    KeyBackupDelete(KeyBackupDelete) = "key_backup.delete" of Keys version 1 MustNotRewind CarriedOverWithUser about [];
    /// Room keys were put into a backup.
    KeyBackupPut(KeyBackupPut) = "key_backup.put" of Keys version 1 MustNotRewind CarriedOverWithUser about [];
    /// Room keys were removed from a backup.
    KeyBackupRemove(KeyBackupRemove) = "key_backup.remove" of Keys version 1 MustNotRewind CarriedOverWithUser about [];
    /// Messages were sent to devices.
    ToDeviceSend(ToDeviceSend) = "to_device.send" of Keys version 2 MustNotRewind Judged about [];
    /// A device received the messages that were sent to it.
    ToDeviceAck(ToDeviceAck) = "to_device.ack" of Keys version 1 MustNotRewind Judged about [];
    /// An event was added to a room.
    RoomEvent(RoomEvent) = "room.event" of Event version 6 Rewindable Judged about [RoomState, Event];
    /// An event of another homeserver was refused a place in the timeline, or has none yet.
    RoomPdu(RoomPdu) = "room.pdu" of Room version 2 Rewindable Dropped about [Event];
    /// A user of this homeserver is about to join a room of others, which has this state.
    RoomState(RoomState) = "room.state" of Room version 3 Rewindable Dropped about [RoomState];
    /// A gap in the history of a room was filled, or given up.
    RoomGap(RoomGap) = "room.gap" of Room version 1 Rewindable Dropped about [];
    /// Events of a room were deleted, and their content is to be erased from the log.
    RoomErase(RoomErase) = "room.erase" of Room version 2 MustNotRewind Judged about [];
    /// A room was deleted, and the content of its events is to be erased from the log.
    RoomPurge(RoomPurge) = "room.purge" of Room version 2 MustNotRewind Judged about [];
    /// What was sent in a room before some record is to be removed, but for state.
    // A restore removes again what was removed.
    RoomPurgeHistory(RoomPurgeHistory) = "room.purge_history" of Room version 1 Rewindable Dropped about [];
    /// It was removed.
    RoomPurgeHistoryFinish(RoomPurgeHistoryFinish) = "room.purge_history_finish" of Room version 1 Rewindable Dropped about [];
    /// A kick or a ban redacts what its user sent.
    // What was redacted is redacted again.
    RoomRedactSender(RoomRedactSender) = "room.redact_sender" of Room version 1 Rewindable Judged about [];
    /// A user forgot a room.
    RoomForget(RoomForget) = "room.forget" of Room version 1 Rewindable Dropped about [];
    /// A restore undid how users came to be in rooms.
    // Clients from before an earlier restore are still told what it undid.
    RoomUndo(RoomUndo) = "room.undo" of Room version 1 MustNotRewind CarriedOver about [];
    /// A room was listed in or taken off the public directory.
    RoomVisibility(RoomVisibility) = "room.visibility" of Room version 1 Rewindable Dropped about [Directory];
    /// An application service listed a room of its network in the directory, or removed it.
    RoomNetwork(RoomNetwork) = "room.network" of Room version 1 Rewindable Dropped about [Directory];
    /// An administrator blocked or unblocked a room: nobody can join a blocked one.
    // A blocked room stays blocked.
    RoomBlock(RoomBlock) = "room.block" of Room version 1 MustNotRewind CarriedOver about [];
    /// A room began to be shut down: everyone leaves it.
    RoomShutdown(RoomShutdown) = "room.shutdown" of Room version 2 Rewindable Judged about [];
    /// A room was shut down.
    RoomShutdownFinish(RoomShutdownFinish) = "room.shutdown_finish" of Room version 2 Rewindable Dropped about [];
    /// The server began to apply the rules of a policy list, or applies them in another way.
    PolicySubscribe(PolicySubscribe) = "policy.subscribe" of Other version 1 MustNotRewind CarriedOver about [];
    /// The server applies the rules of a policy list no longer.
    PolicyUnsubscribe(PolicyUnsubscribe) = "policy.unsubscribe" of Other version 1 MustNotRewind CarriedOver about [];
    /// The server counted whom new rules of a policy list hit: some wait for approval.
    // After a restore, they are counted again.
    PolicyJudge(PolicyJudge) = "policy.judge" of Other version 1 Rewindable Dropped about [];
    /// Rules of a policy list that waited for somebody were approved.
    PolicyApprove(PolicyApprove) = "policy.approve" of Other version 1 MustNotRewind CarriedOver about [];
    /// A room became the one for a user's server notices.
    NoticeRoom(NoticeRoom) = "notice.room" of Other version 1 Rewindable Dropped about [];
    /// Read receipts in a room moved.
    RoomReceipt(RoomReceipt) = "room.receipt" of Receipt version 2 Rewindable Judged about [Receipt], ephemeral, from RoomReceipt::before;
    /// A user started or stopped typing in a room.
    RoomTyping(RoomTyping) = "room.typing" of Receipt version 1 Rewindable Dropped about [], ephemeral;
    /// A user reported an event, a room or a user to the administrators.
    ReportCreate(ReportCreate) = "report.create" of Other version 1 Rewindable Dropped about [];
    /// A report was closed.
    ReportRemove(ReportRemove) = "report.remove" of Other version 1 Rewindable Dropped about [];
    /// A closed report was opened again.
    ReportReopen(ReportReopen) = "report.reopen" of Other version 1 Rewindable Dropped about [];
    /// A user's visible presence changed.
    PresenceSet(PresenceSet) = "presence.set" of Presence version 1 Rewindable Dropped about [], ephemeral;
    /// An event was scheduled to be sent later.
    // What was scheduled after the moment of a restore is not sent.
    DelayedSchedule(DelayedSchedule) = "delayed.schedule" of Other version 1 Rewindable Dropped about [];
    /// The time of a scheduled event was reset.
    DelayedRestart(DelayedRestart) = "delayed.restart" of Other version 1 Rewindable Judged about [];
    /// A scheduled event was sent, cancelled, or could not be sent.
    DelayedFinish(DelayedFinish) = "delayed.finish" of Other version 1 Rewindable Judged about [];
    /// A media id was reserved for an upload.
    MediaCreate(MediaCreate) = "media.create" of Other version 1 Rewindable Dropped about [];
    /// A file was uploaded.
    // After a restore nothing refers to the file any more; unreferenced files are deleted in time.
    MediaUpload(MediaUpload) = "media.upload" of Other version 1 Rewindable Dropped about [];
    /// Files were quarantined, so that nobody can download them, or released.
    MediaQuarantine(MediaQuarantine) = "media.quarantine" of Other version 2 MustNotRewind CarriedOver about [];
    /// A media id was exempted from quarantine, or the exemption ended.
    MediaProtect(MediaProtect) = "media.protect" of Other version 1 MustNotRewind CarriedOver about [];
    /// Files were removed.
    MediaRemove(MediaRemove) = "media.remove" of Other version 2 MustNotRewind CarriedOver about [];
    /// An alias was pointed at a room.
    AliasSet(AliasSet) = "alias.set" of Alias version 1 Rewindable Dropped about [Alias];
    /// An alias was removed.
    AliasRemove(AliasRemove) = "alias.remove" of Alias version 1 Rewindable Dropped about [Alias];
    /// A validation of a third-party identifier was requested.
    ValidationRequest(ValidationRequest) = "validation.request" of Other version 1 MustNotRewind CarriedOver about [];
    /// The message of a validation was handed over for delivery.
    ValidationSent(ValidationSent) = "validation.sent" of Other version 1 MustNotRewind CarriedOver about [];
    /// Someone tried to complete a validation with the wrong token.
    ValidationMiss(ValidationMiss) = "validation.miss" of Other version 1 MustNotRewind CarriedOver about [];
    /// A third-party identifier was validated.
    ValidationComplete(ValidationComplete) = "validation.complete" of Other version 1 MustNotRewind CarriedOver about [];
    /// A validation was used; each is valid once.
    ValidationUse(ValidationUse) = "validation.use" of Other version 1 MustNotRewind CarriedOver about [];
    /// A third-party identifier was added to an account.
    ThreepidAdd(ThreepidAdd) = "threepid.add" of Address version 1 MustNotRewind CarriedOverWithUser about [Address];
    /// A third-party identifier was removed from an account.
    ThreepidRemove(ThreepidRemove) = "threepid.remove" of Address version 1 MustNotRewind CarriedOverWithUser about [Address];
    /// A third-party identifier was bound to a user on an identity server.
    ThreepidBind(ThreepidBind) = "threepid.bind" of Address version 1 MustNotRewind CarriedOverWithUser about [Address];
    /// A third-party identifier was unbound from a user on an identity server.
    ThreepidUnbind(ThreepidUnbind) = "threepid.unbind" of Address version 1 MustNotRewind CarriedOverWithUser about [Address];
    /// A delivery advanced.
    DeliveryAdvance(DeliveryAdvance) = "delivery.advance" of Other version 1 Rewindable Judged about [], ephemeral;
    /// A pusher was made or changed.
    PusherSet(PusherSet) = "pusher.set" of Other version 1 MustNotRewind CarriedOverWithUser about [Pusher];
    /// A pusher was removed.
    PusherRemove(PusherRemove) = "pusher.remove" of Other version 1 MustNotRewind CarriedOverWithUser about [Pusher];
    /// Pushers advanced.
    PusherAdvance(PusherAdvance) = "pusher.advance" of Other version 1 Rewindable Judged about [], ephemeral;
    /// A mail for a pusher was handed over.
    PusherMail(PusherMail) = "pusher.mail" of Other version 1 Rewindable Judged about [], ephemeral;
    /// The server got another key to sign with for other homeservers.
    // A key that was given up is not used again.
    ServerKey(ServerKey) = "server.key" of Other version 1 MustNotRewind CarriedOver about [];
    /// A key with which the server signed before it had this log.
    ServerOldKey(ServerOldKey) = "server.old_key" of Other version 1 MustNotRewind CarriedOver about [];
    /// Another homeserver's signing keys were fetched.
    // They are fetched again after a restore.
    PeerKeys(PeerKeys) = "peer.keys" of Other version 1 Rewindable Dropped about [], ephemeral;
    /// Deliveries to other homeservers advanced.
    PeerReached(PeerReached) = "peer.reached" of Other version 1 Rewindable Dropped about [], ephemeral;
    /// The devices of a user of another homeserver were learned, or changed.
    PeerDevices(PeerDevices) = "peer.devices" of Other version 1 Rewindable Dropped about [], ephemeral;
    /// An import of another server's database began.
    // What a restore keeps of an import is what it keeps of the records between these two.
    ImportBegin(ImportBegin) = "import.begin" of Other version 1 Rewindable Dropped about [];
    /// An import of another server's database was completed.
    ImportEnd(ImportEnd) = "import.end" of Other version 1 Rewindable Dropped about [];
    /// Why an administrator did what precedes it in the same batch.
    AdminReason(AdminReason) = "admin.reason" of Other version 1 Rewindable CarriedOver about [];
    /// What precedes it in the same batch undid an earlier record.
    // After a restore, the number of that record may be another one's.
    AdminUndo(AdminUndo) = "admin.undo" of Other version 1 Rewindable Dropped about [];
}

/// The payload of one kind of command.
pub trait Body: Serialize + DeserializeOwned {
    /// The properties of the kind.
    const KIND: Kind;

    /// Reads a payload that an older version wrote. Most kinds have no older version.
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

#[cfg(test)]
mod tests {
    use ruma::RoomVersionId;

    use super::*;
    use crate::Offset;

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
    fn a_status_of_version_1_is_read() {
        let stored = br#"{"user_id":"@ann:example.org","suspended":true}"#;
        let Ok(Command::UserStatus(read)) = Command::decode("user.status", 1, stored) else {
            panic!("it is not read")
        };
        assert_eq!((read.suspended, read.shadow_banned, read.approved), (Some(true), None, None));
    }

    #[test]
    fn a_state_before_an_event_is_read_as_earlier_versions_wrote_it() {
        let change = r#"{"type":"m.room.name","state_key":"","event":5}"#;
        let before = format!(r#"{{"at":7,"changes":[{change}]}}"#);
        let stored = format!(
            r#"{{"room_id":"!r:example.org","event_id":"$e","pdu":{{}},
                 "received":{{"from":"example.org","before":{before}}}}}"#
        );
        let Ok(Command::RoomEvent(read)) = Command::decode("room.event", 5, stored.as_bytes())
        else {
            panic!("it is not read")
        };
        let of_event = read.received.and_then(|received| received.before);
        let stored = format!(
            r#"{{"room_id":"!r:example.org","event_id":"$e","sender":"@ann:example.org",
                 "from":"example.org","outcome":"soft_failed","reason":"no","before":{before},
                 "pdu":{{}}}}"#
        );
        let Ok(Command::RoomPdu(read)) = Command::decode("room.pdu", 1, stored.as_bytes()) else {
            panic!("it is not read")
        };
        for read in [of_event.unwrap(), read.before.unwrap()] {
            assert_eq!((read.base, read.links), (StateBase::At(Offset::new(7)), 0));
            assert_eq!(read.changes[0].event, Some(Offset::new(5)));
        }
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
