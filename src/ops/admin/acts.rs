//! What an operator can have done, and what came of it: the one list that the command line and the
//! socket share.

use std::{collections::BTreeMap, path::PathBuf};

use ruma::{OwnedDeviceId, OwnedEventId, OwnedMxcUri, OwnedRoomAliasId, OwnedRoomId, OwnedUserId};
use serde::{Deserialize, Serialize};

use super::erasure::{Receipt, ReceiptRow, RoomPurged, UserErased};
use crate::{
    decide::registration_token::Change,
    ops::{export::ImportedUser, proof},
    record::{
        Offset,
        command::{BackupMade, Secret, Transaction},
    },
    snapshot,
};

/// Something to be done. Users are named by their whole id or by what is before its colon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "kebab-case")]
pub enum Act {
    /// Say what an act would come to, and do nothing.
    DryRun {
        /// Which.
        of: Box<Self>,
    },
    /// Do something, and record why.
    Because {
        /// Why.
        reason: String,
        /// What.
        of: Box<Self>,
    },
    /// A page of the users, by their ids.
    ListUsers {
        /// Begin after this one.
        after: Option<OwnedUserId>,
        /// Which of them.
        filter: Filter,
    },
    /// One user.
    ShowUser {
        /// Who.
        user: String,
    },
    /// Make an account.
    CreateUser {
        /// Its name.
        user: String,
        /// Its password; none for one that nobody logs in to by password.
        password: Option<Secret>,
        /// The display name; none for the user name.
        display_name: Option<String>,
        /// Whether it is an administrator's.
        admin: bool,
    },
    /// Set a new password.
    ResetPassword {
        /// Whose.
        user: String,
        /// The password.
        password: Secret,
        /// Whether their devices stay logged in.
        keep_devices: bool,
    },
    /// Make a user an administrator, lock, suspend, or the contrary.
    SetStatus {
        /// Whom.
        user: String,
        /// Whether they administer the server; none leaves it as it is, and so below.
        admin: Option<bool>,
        /// Whether the account is locked.
        locked: Option<bool>,
        /// Whether it is suspended.
        suspended: Option<bool>,
        /// Why.
        reason: Option<String>,
    },
    /// Close an account for ever.
    Deactivate {
        /// Whose.
        user: String,
        /// Whether what they sent is kept from those who have not seen it.
        erase: bool,
        /// Why.
        reason: Option<String>,
    },
    /// Log a user's devices out.
    LogOut {
        /// Whose.
        user: String,
        /// Which devices; none for all.
        devices: Option<Vec<OwnedDeviceId>>,
    },
    /// Set or remove a field of a user's profile.
    SetProfile {
        /// Whose.
        user: String,
        /// `displayname` or `avatar_url`.
        field: String,
        /// Its value; none removes it.
        value: Option<String>,
    },
    /// Rename a user's device.
    RenameDevice {
        /// Whose.
        user: String,
        /// Which.
        device: OwnedDeviceId,
        /// What it is to be called.
        display_name: String,
    },
    /// Log in on a new device of a user.
    LogInAs {
        /// Whose.
        user: String,
        /// When that ends, in milliseconds since the Unix epoch; none for never.
        expires_ms: Option<u64>,
    },
    /// Have a user join a room, by an invite of somebody in it if need be.
    JoinRoom {
        /// Who.
        user: String,
        /// The room's id or alias.
        room: String,
    },
    /// A page of the rooms.
    ListRooms {
        /// Which, and in which order.
        #[serde(flatten)]
        wanted: RoomsWanted,
    },
    /// One room.
    ShowRoom {
        /// Its id or alias.
        room: String,
    },
    /// Close a room to all who are not in it, or open it again.
    BlockRoom {
        /// Its id, which need not exist here, or an alias.
        room: String,
        /// Whether it is closed.
        blocked: bool,
    },
    /// Have everyone leave a room.
    ShutDownRoom {
        /// Its id or alias.
        room: String,
        /// Whether nobody may get into it from now on.
        block: bool,
        /// The room to which its members and aliases move, if there is to be one.
        new_room: Option<NewRoom>,
        /// Whether it is purged at the end.
        #[serde(default)]
        purge: bool,
        /// Whether the answer is to wait for the end.
        wait: bool,
    },
    /// Put somebody in charge of a room.
    MakeRoomAdmin {
        /// Its id or alias.
        room: String,
        /// Whom.
        user: String,
    },
    /// Tell a user something in the name of the server.
    SendNotice {
        /// Whom.
        user: String,
        /// The type of the event.
        event_type: String,
        /// Its state key, for a state event.
        state_key: Option<String>,
        /// Its content.
        content: serde_json::Value,
        /// What tells it from others, so that it is not said again.
        transaction: Option<Transaction>,
    },
    /// What was uploaded.
    ListMedia {
        /// What.
        of: MediaOf,
    },
    /// Put files into quarantine, where nobody can download them, or take them out of it.
    QuarantineMedia {
        /// Which.
        of: MediaOf,
        /// Whether they are in quarantine.
        quarantined: bool,
    },
    /// Remove uploaded files for ever.
    DeleteMedia {
        /// Which.
        of: MediaOf,
    },
    /// Exempt a file from quarantine, or end that.
    ProtectMedia {
        /// Its id, or its address.
        media: String,
        /// Whether it is exempt.
        protected: bool,
    },
    /// How much each user has uploaded.
    MediaStatistics,
    /// The reports that nobody has dealt with.
    ListReports,
    /// One of them, with what it is about.
    ShowReport {
        /// The number of its record.
        id: Offset,
    },
    /// Take a report that was dealt with off the list.
    RemoveReport {
        /// The number of its record.
        id: Offset,
    },
    /// All registration tokens.
    ListRegistrationTokens,
    /// Make a registration token.
    CreateRegistrationToken {
        /// The token; none for one that is made up.
        token: Option<Secret>,
        /// What it is called.
        label: Option<String>,
        /// How many accounts can be made with it; none for any number.
        uses_allowed: Option<u64>,
        /// When it expires, in milliseconds since the Unix epoch; none for never.
        expires_ms: Option<u64>,
    },
    /// Set anew what a registration token is good for.
    UpdateRegistrationToken {
        /// Which: its id, or the token itself.
        token: Secret,
        /// What it is called.
        #[serde(default)]
        label: Change<String>,
        /// How many accounts can be made with it in all.
        #[serde(default)]
        uses_allowed: Change<u64>,
        /// When it expires, in milliseconds since the Unix epoch.
        #[serde(default)]
        expires_ms: Change<u64>,
    },
    /// Remove a registration token.
    DeleteRegistrationToken {
        /// Which: its id, or the token itself.
        token: Secret,
    },
    /// Take a room out of the server.
    PurgeRoom {
        /// Its id, or an alias.
        room: String,
        /// Whether those who are joined are made to leave.
        force: bool,
    },
    /// Close an account for ever, and erase what is kept of the user.
    EraseUser {
        /// Whose.
        user: String,
        /// Whether what they sent goes, too.
        messages: bool,
    },
    /// What had records erased.
    ListErasures {
        /// At most so much of it.
        last: usize,
    },
    /// What was erased for one record.
    ShowErasure {
        /// The record.
        because: Offset,
    },
    /// Make an account of the export of a user, whose files are in the store already.
    ImportUser {
        /// The directory of the export.
        src: PathBuf,
        /// Its name; none for the one that it had.
        user: Option<String>,
    },
    /// Write a snapshot of the projections.
    WriteSnapshot,
    /// Compare the projections with a replay of the whole log.
    CompareSnapshots,
    /// Say up to where the projections are known to be what the log adds up to.
    SnapshotStatus,
    /// Note in the log that a backup was made.
    NoteBackup {
        /// Which.
        made: BackupMade,
    },
    /// Show something of the log to others.
    Prove(proof::Asked),
}

/// Which rooms, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoomsWanted {
    /// What their name, the local part of their alias or their id has in it.
    pub search: Option<String>,
    /// Whether the public directory lists them.
    pub public: Option<bool>,
    /// Whether nobody is in them.
    pub empty: Option<bool>,
    /// By what they are ordered.
    pub order: RoomOrder,
    /// The other way round.
    pub reverse: bool,
    /// How many are passed over.
    pub from: usize,
    /// How many are shown; none for as many as there can be.
    pub limit: Option<usize>,
}

/// By what rooms are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum RoomOrder {
    /// By name; those without one come last.
    #[default]
    #[serde(alias = "alphabetical")]
    Name,
    /// By main alias; those without one come last.
    CanonicalAlias,
    /// By the number of members, the largest first.
    #[serde(alias = "size")]
    JoinedMembers,
    /// By the number of members of this server, the largest first.
    JoinedLocalMembers,
    /// By version, the newest first.
    Version,
    /// By who made them.
    Creator,
    /// By how they are encrypted; those that are not come last.
    Encryption,
    /// Those first that users of other servers could join.
    Federatable,
    /// Those first that the public directory lists.
    Public,
    /// By who may join.
    JoinRules,
    /// By whether guests may.
    GuestAccess,
    /// By who sees what was said before.
    HistoryVisibility,
    /// By how much state they have, the largest first.
    StateEvents,
}

/// The room to which the members of one move that is shut down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewRoom {
    /// Who makes it.
    pub user: String,
    /// What it is called.
    pub name: String,
    /// What it says.
    pub message: String,
}

/// Which files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MediaOf {
    /// The one with this id or address.
    Id(String),
    /// All that a user uploaded.
    User(String),
    /// All of this server that the events of a room name, as far as they are not encrypted.
    Room(String),
    /// Those with these ids.
    Ids(Vec<String>),
    /// All that were uploaded before a time.
    Before {
        /// When, in milliseconds since the Unix epoch.
        before_ms: u64,
        /// Only those that have more bytes.
        larger_than: u64,
        /// Whether the pictures of users and rooms are among them.
        pictures: bool,
    },
}

/// Which users: those for whom all of it is so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Filter {
    /// Administrators.
    pub admin: bool,
    /// Whose account is locked.
    pub locked: bool,
    /// Whose account is suspended.
    pub suspended: bool,
    /// Whose account is closed.
    pub deactivated: bool,
    /// Guests.
    pub guest: bool,
}

/// What was done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "done", rename_all = "kebab-case")]
pub enum Done {
    /// Nothing was done; this is what it would have come to.
    WouldDo {
        /// In sentences.
        effect: Vec<String>,
    },
    /// A device of a user was logged in on.
    LoggedInAs {
        /// Whose.
        user_id: OwnedUserId,
        /// Which.
        device_id: OwnedDeviceId,
        /// Its access token, which is not kept.
        access_token: Secret,
    },
    /// A user is in a room.
    Joined {
        /// Who.
        user_id: OwnedUserId,
        /// The room.
        room_id: OwnedRoomId,
    },
    /// Some rooms.
    Rooms {
        /// The rooms.
        rooms: Vec<RoomSummary>,
        /// How many there are of those that were asked for.
        total: usize,
    },
    /// All that there is to say of one room.
    Room(Box<RoomDetails>),
    /// A room was blocked, or is open.
    Blocked {
        /// The room.
        room_id: OwnedRoomId,
        /// Which of the two.
        blocked: bool,
        /// Whether it was not so already.
        changed: bool,
    },
    /// A room was shut down, or is being shut down.
    ShutDown(ShutdownStatus),
    /// Somebody was put in charge of a room.
    Empowered {
        /// The room.
        room_id: OwnedRoomId,
        /// Who.
        user_id: OwnedUserId,
        /// Whose power was shared; none if they had as much already.
        by: Option<OwnedUserId>,
        /// Whether they were invited.
        invited: bool,
    },
    /// A user was told something.
    NoticeSent {
        /// Whom.
        user_id: OwnedUserId,
        /// The room of the notices.
        room_id: OwnedRoomId,
        /// The event.
        event_id: OwnedEventId,
    },
    /// Some files.
    Media {
        /// The files.
        media: Vec<MediaSummary>,
        /// Files of other servers that the events name, too.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        remote: Vec<OwnedMxcUri>,
    },
    /// Files went into quarantine, or came out of it.
    Quarantined {
        /// The ids for which it was not so already.
        media_ids: Vec<String>,
        /// Which of the two.
        quarantined: bool,
    },
    /// Files were removed.
    MediaDeleted {
        /// Their ids.
        media_ids: Vec<String>,
    },
    /// A file is exempt from quarantine, or not.
    Protected {
        /// Its id.
        media_id: String,
        /// Which of the two.
        protected: bool,
        /// Whether it was not so already.
        changed: bool,
    },
    /// How much each user has uploaded.
    MediaStatistics {
        /// By user, those with the most bytes first.
        users: Vec<MediaUsage>,
    },
    /// Reports.
    Reports {
        /// The reports, the newest first.
        reports: Vec<ReportSummary>,
    },
    /// One report.
    Report(Box<ReportDetails>),
    /// A report was taken off the list.
    ReportRemoved {
        /// The number of its record.
        id: Offset,
    },
    /// Some users; there are more after `next`, if that is there.
    Users {
        /// The users, by their ids.
        users: Vec<UserSummary>,
        /// The last one that was looked at.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<OwnedUserId>,
    },
    /// All that there is to say of one user.
    User(Box<UserDetails>),
    /// An account was made.
    Created {
        /// Its user.
        user_id: OwnedUserId,
    },
    /// Something of an account was changed, or was so already.
    Changed {
        /// Whose.
        user_id: OwnedUserId,
        /// Whether it was not so already.
        changed: bool,
    },
    /// An account was closed.
    Deactivated {
        /// Whose.
        user_id: OwnedUserId,
        /// Whether it was open until now, or is erased only now.
        changed: bool,
        /// How many rooms were left and invites rejected.
        rooms: usize,
        /// Which addresses are still bound to the user on which identity server, in words.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        still_bound: Vec<String>,
    },
    /// Devices were logged out.
    LoggedOut {
        /// Whose.
        user_id: OwnedUserId,
        /// Which.
        devices: Vec<OwnedDeviceId>,
    },
    /// All registration tokens, in the order of their ids.
    RegistrationTokens {
        /// The tokens.
        tokens: Vec<TokenSummary>,
    },
    /// A registration token was made.
    RegistrationTokenCreated {
        /// The token itself, which is not kept.
        token: Secret,
        /// What is kept.
        #[serde(flatten)]
        summary: TokenSummary,
    },
    /// A registration token was set anew, or was so already.
    RegistrationTokenUpdated {
        /// Whether it was not so already.
        changed: bool,
        /// How it is now.
        #[serde(flatten)]
        summary: TokenSummary,
    },
    /// A registration token was removed.
    RegistrationTokenDeleted {
        /// Which.
        id: String,
    },
    /// A room was purged, or that was asked about.
    RoomPurged(RoomPurged),
    /// A user was erased, or that was asked about.
    UserErased(UserErased),
    /// What had records erased, the newest first.
    Receipts {
        /// Each with how many.
        rows: Vec<ReceiptRow>,
    },
    /// What was erased for one record.
    Receipt(Box<Receipt>),
    /// An account was made of an export.
    UserImported(ImportedUser),
    /// A snapshot was written.
    Snapshot(snapshot::Header),
    /// The projections were compared.
    Compared(snapshot::Status),
    /// What is known of the projections.
    SnapshotStatus(snapshot::Status),
    /// It was noted.
    Noted,
    /// What shows it.
    Proof(Box<proof::Proof>),
}

/// A registration token, of which only a hash is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSummary {
    /// What it is named by: the first digits of its hash.
    pub id: String,
    /// What it is called.
    pub label: Option<String>,
    /// How many accounts can be made with it in all; none: any number.
    pub uses_allowed: Option<u64>,
    /// How many were made.
    pub uses: u64,
    /// When it expires, in milliseconds since the Unix epoch; none: never.
    pub expires_ms: Option<u64>,
    /// Whether one more account can be made with it.
    pub good: bool,
}

/// One user in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserSummary {
    /// The user.
    pub user_id: OwnedUserId,
    /// The display name.
    pub display_name: Option<String>,
    /// A guest.
    pub guest: bool,
    /// An administrator.
    pub admin: bool,
    /// The account is locked.
    pub locked: bool,
    /// The account is suspended.
    pub suspended: bool,
    /// The account is closed.
    pub deactivated: bool,
    /// How many devices are logged in.
    pub devices: usize,
    /// The picture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avatar_url: Option<String>,
    /// Whether what they sent is kept from those who had not seen it.
    #[serde(default)]
    pub erased: bool,
    /// When a device of theirs was last in use, in milliseconds since the Unix epoch, as far as is
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_ms: Option<u64>,
}

/// All that there is to say of one user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserDetails {
    /// As in a list.
    #[serde(flatten)]
    pub summary: UserSummary,
    /// When the account was made, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Whether one can log in by password.
    pub has_password: bool,
    /// The devices that are logged in, by their ids.
    pub logged_in: BTreeMap<OwnedDeviceId, UserDevice>,
    /// How many rooms they are in.
    pub joined_rooms: usize,
    /// Their e-mail addresses and phone numbers.
    #[serde(default)]
    pub threepids: Vec<UserThreepid>,
    /// Who they are at providers of single sign-on.
    #[serde(default)]
    pub external_ids: Vec<ExternalId>,
    /// How many files they have uploaded.
    #[serde(default)]
    pub media_count: usize,
    /// How long these are together, in bytes.
    #[serde(default)]
    pub media_bytes: u64,
}

/// An e-mail address or phone number of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserThreepid {
    /// `email` or `msisdn`.
    pub medium: String,
    /// The address or number.
    pub address: String,
    /// When it was added, in milliseconds since the Unix epoch.
    pub added_at: u64,
    /// When it was shown to be theirs, in milliseconds since the Unix epoch.
    pub validated_at: u64,
}

/// Who a user is at a provider of single sign-on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalId {
    /// The provider's id in the configuration.
    pub auth_provider: String,
    /// What it calls them.
    pub external_id: String,
}

/// A device that is logged in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserDevice {
    /// Its name.
    pub display_name: Option<String>,
    /// When it logged in, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// When it was last in use, in milliseconds since the Unix epoch, as far as is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_ms: Option<u64>,
    /// From which address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_ip: Option<String>,
    /// What the client called itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_agent: Option<String>,
    /// Whether nobody is logged in on it: it takes messages while the user has no other.
    #[serde(default)]
    pub dehydrated: bool,
}

/// One room in a list, in the words of the tools that speak `/_synapse/admin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomSummary {
    /// The room.
    pub room_id: OwnedRoomId,
    /// Its name.
    pub name: Option<String>,
    /// Its main alias.
    pub canonical_alias: Option<String>,
    /// How many users are in it.
    pub joined_members: u64,
    /// How many of these are of this server: all, as long as it does not federate.
    pub joined_local_members: u64,
    /// Its version.
    pub version: String,
    /// Who made it.
    pub creator: Option<String>,
    /// By which algorithm messages are encrypted, if they are.
    pub encryption: Option<String>,
    /// Whether users of other servers could join.
    pub federatable: bool,
    /// Whether the public directory lists it.
    pub public: bool,
    /// Who may join.
    pub join_rules: Option<String>,
    /// Whether guests may.
    pub guest_access: Option<String>,
    /// Who sees what was said before.
    pub history_visibility: Option<String>,
    /// How many state events it has.
    pub state_events: usize,
    /// Its type, for example `m.space`.
    pub room_type: Option<String>,
    /// How many events it has in all.
    pub events: usize,
    /// Whether nobody may get into it.
    pub blocked: bool,
}

/// All that there is to say of one room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomDetails {
    /// As in a list.
    #[serde(flatten)]
    pub summary: RoomSummary,
    /// Its topic.
    pub topic: Option<String>,
    /// Its picture.
    pub avatar: Option<String>,
    /// How many devices those in it are logged in on.
    pub joined_local_devices: usize,
    /// Whether all who were in it have forgotten it.
    pub forgotten: bool,
    /// How many are invited.
    pub invited_members: u64,
    /// The aliases that point at it.
    pub aliases: Vec<OwnedRoomAliasId>,
    /// Its shutdowns.
    pub shutdowns: Vec<ShutdownStatus>,
}

/// How far the shutdown of a room has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownStatus {
    /// What it is known by.
    pub id: String,
    /// The room.
    pub room_id: OwnedRoomId,
    /// Whether it has come to its end.
    pub complete: bool,
    /// Whether the room was purged; none if it was not to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purged: Option<bool>,
    /// Who was in the room, or invited, when it began, and is not any more.
    pub kicked_users: Vec<OwnedUserId>,
    /// Who could not be made to leave.
    pub failed_to_kick_users: Vec<OwnedUserId>,
    /// The aliases that pointed at the room when it began and do not any more.
    pub local_aliases: Vec<OwnedRoomAliasId>,
    /// The room to which members and aliases move.
    pub new_room_id: Option<OwnedRoomId>,
}

/// One file in a list, in the words of the tools that speak `/_synapse/admin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaSummary {
    /// Its id.
    pub media_id: String,
    /// Who uploaded it; none for what the server fetched by itself.
    pub user_id: Option<OwnedUserId>,
    /// When, in milliseconds since the Unix epoch.
    pub created_ts: u64,
    /// Its length in bytes.
    pub media_length: u64,
    /// Its type, as the uploader says.
    pub media_type: Option<String>,
    /// Its name, as the uploader says.
    pub upload_name: Option<String>,
    /// Who put it into quarantine, if nobody can download it.
    pub quarantined_by: Option<String>,
    /// Whether it is exempt from quarantine.
    pub safe_from_quarantine: bool,
    /// blake3 of it, in hexadecimal: its name among the files of the server.
    pub blake3: String,
}

/// How much a user has uploaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaUsage {
    /// The user.
    pub user_id: OwnedUserId,
    /// The display name.
    pub displayname: Option<String>,
    /// How many files.
    pub media_count: usize,
    /// How long they are together, in bytes.
    pub media_length: u64,
}

/// One report in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportSummary {
    /// The number of its record.
    pub id: Offset,
    /// When it was made, in milliseconds since the Unix epoch.
    pub received_ts: u64,
    /// Who reports.
    pub user_id: OwnedUserId,
    /// The room that is reported, or the room of the event.
    pub room_id: Option<OwnedRoomId>,
    /// The event that is reported.
    pub event_id: Option<OwnedEventId>,
    /// The user who is reported, if it is one.
    pub target_user_id: Option<OwnedUserId>,
    /// Why.
    pub reason: Option<String>,
    /// How bad it is: from -100, the worst, to 0.
    pub score: Option<i8>,
    /// Who sent the event.
    pub sender: Option<OwnedUserId>,
    /// The name of the room.
    pub name: Option<String>,
    /// The main alias of the room.
    pub canonical_alias: Option<String>,
}

/// One report, with what it is about.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportDetails {
    /// As in a list.
    #[serde(flatten)]
    pub summary: ReportSummary,
    /// The event in federation format, as it is in the log.
    pub event_json: Option<serde_json::Value>,
}
