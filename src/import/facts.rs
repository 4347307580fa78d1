//! What a homeserver knows, told in words that no other server has: the seam between the readers of
//! sources and the writer of the log.
//!
//! A [`Source`] is read section by section, in the order of [`Section::ALL`], and each section in
//! slices of bounded size. A slice is what the source held at one moment, and may be read again:
//! the same cursor gives the same facts as long as the source has not changed. Facts are not judged
//! beyond what their types say. Names are text, because a source may hold names that today's
//! grammar refuses: whoever writes the log decides, and reports what it leaves by the [`Origin`] of
//! the fact.
//!
//! What a source holds and cannot be told as a fact is a [`Bad`] row. It never ends a slice.
//!
//! All times are milliseconds since the Unix epoch.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

mod event;
mod oauth;
mod personal;
mod room;
mod server;
mod user;

pub use self::{event::*, oauth::*, personal::*, room::*, server::*, user::*};

/// Where facts come from: a database that belongs to another server.
///
/// Nothing is ever written to it, and nothing is locked for longer than one slice takes to read.
pub trait Source: Send {
    /// What the source is. Asked once, before anything else.
    fn about(&mut self) -> Result<About, SourceError>;

    /// How many rows a section has, for progress and estimates. It may be an estimate itself.
    fn count(&mut self, section: Section) -> Result<u64, SourceError>;

    /// The next facts of a section, after those that led to the cursor. [`Cursor::START`] is the
    /// start of the section.
    ///
    /// A slice without `next` is the last one of its section for now. In a section that
    /// [grows](Section::grows), its `end` is where a later read goes on.
    fn read(&mut self, section: Section, after: &Cursor) -> Result<Slice, SourceError>;

    /// The same, of these users or rooms only: whichever of the two the section's facts are
    /// ordered by. At most [`SOURCE_OWNERS`](logcabin_base::limits::SOURCE_OWNERS) at once, and not
    /// of a section that [grows](Section::grows).
    fn read_of(
        &mut self,
        section: Section,
        owners: &[String],
        after: &Cursor,
    ) -> Result<Slice, SourceError>;

    /// The state that the source calls by this number, complete, in the order of type and key.
    ///
    /// It is expensive: only for events whose state before them no walk along the room gives.
    fn state(&mut self, group: StateGroup) -> Result<Vec<StateEntry>, SourceError>;

    /// What one state adds to the one that it was made from, without walking any further.
    fn state_step(&mut self, group: StateGroup) -> Result<StateStep, SourceError>;

    /// Events as the source has them now, whatever was read of them before: later rejections and
    /// redactions change them. Unknown ids are left out.
    fn events(&mut self, event_ids: &[String]) -> Result<Slice, SourceError>;

    /// The newest events of a room's timeline, the last one first, and no more than `most`.
    fn newest(&mut self, room_id: &str, most: usize) -> Result<Vec<String>, SourceError>;

    /// The newest position in [`Section::Events`], to tell how far behind a reader is.
    fn head(&mut self) -> Result<i64, SourceError>;

    /// What a user has not read in each joined room, if the source counts that for them. Rooms
    /// where nothing is unread are missing.
    fn unread(
        &mut self,
        _user_id: &str,
    ) -> Result<Option<BTreeMap<String, UnreadCount>>, SourceError> {
        Ok(None)
    }

    /// Where everything stands that the source's program writes, by names for people. Something of
    /// it moves whenever the program is in use.
    fn positions(&mut self) -> Result<BTreeMap<String, i64>, SourceError> {
        Ok(BTreeMap::from([("events".to_owned(), self.head()?)]))
    }

    /// The tables with something that somebody might miss, and that no section tells of.
    fn left(&mut self) -> Result<Vec<LeftTable>, SourceError> {
        Ok(Vec::new())
    }

    /// The names of work that the source's program has not done yet after an upgrade, and that
    /// changes what is read.
    fn unfinished(&mut self) -> Result<Vec<String>, SourceError> {
        Ok(Vec::new())
    }

    /// Those of them without which what is read is wrong: nothing is copied before they are done.
    fn unready(&mut self) -> Result<Vec<String>, SourceError> {
        Ok(Vec::new())
    }

    /// The rooms whose state has changed after this position in [`Section::Events`].
    fn changed_rooms(&mut self, after: i64) -> Result<Vec<String>, SourceError>;

    /// Says that the source's program has stopped: nothing is under way any more. Until then, a
    /// slice of [`Section::Events`] ends before a place that may still be filled.
    fn stopped(&mut self);
}

/// What a source says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The program, for example `Synapse`.
    pub program: String,
    /// Its version, empty if the source does not tell.
    pub version: String,
    /// The version of its tables.
    pub schema: u32,
    /// `sqlite` or `postgresql`.
    pub database: String,
    /// The name that ends its users' ids.
    pub server_name: String,
    /// What a person calls the place, without secrets: a file, or host and database.
    pub place: String,
}

/// A part of the source. Their order is that in which the log needs them: nothing refers to what
/// only a later section has, apart from what the section's own words say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// The server's own keys. [`Fact::ServerKey`]
    Server,
    /// [`Fact::RegistrationToken`]
    RegistrationTokens,
    /// [`Fact::Account`]
    Accounts,
    /// [`Fact::Profile`], of users of this server.
    Profiles,
    /// [`Fact::Threepid`]
    Threepids,
    /// [`Fact::ThreepidBinding`]
    ThreepidBindings,
    /// [`Fact::ExternalId`]
    ExternalIds,
    /// [`Fact::Transaction`]: what clients called the events that they sent, for a day.
    Transactions,
    /// [`Fact::OauthClient`]
    OauthClients,
    /// [`Fact::OauthGrant`]: those that have not ended. Their tokens follow.
    OauthGrants,
    /// [`Fact::Device`]. Their tokens follow.
    Devices,
    /// [`Fact::AccessToken`], which name the refresh token that came with them.
    AccessTokens,
    /// [`Fact::RefreshToken`]
    RefreshTokens,
    /// [`Fact::DeviceKeys`], of devices of this server's users.
    DeviceKeys,
    /// [`Fact::OneTimeKey`]
    OneTimeKeys,
    /// [`Fact::FallbackKey`]
    FallbackKeys,
    /// [`Fact::CrossSigningKey`], the newest of each use, of this server's users.
    CrossSigningKeys,
    /// [`Fact::KeySignature`]
    KeySignatures,
    /// [`Fact::DehydratedDevice`]
    DehydratedDevices,
    /// [`Fact::KeyBackup`], by user and version.
    KeyBackups,
    /// [`Fact::BackedUpKey`], by user, version, room and session.
    BackedUpKeys,
    /// [`Fact::PeerKey`]: keys by which other servers sign.
    PeerKeys,
    /// [`Fact::Room`]. It says the version, which events need. [`Fact::BanRedaction`]
    Rooms,
    /// [`Fact::Event`]: events that were fetched when others needed them, and had no place in their
    /// room then, each told as an outlier. Rooms that were entered from outside begin with them.
    Outliers,
    /// [`Fact::StateDelta`] and [`Fact::Event`], in the order of the source's one stream: the
    /// events that came as they happened, outliers among them. The deltas of a place come before
    /// its event, those of one room next to each other.
    ///
    /// An event that was an outlier and found its place later comes twice: at its first place, or
    /// in [`Section::Outliers`] if that is below zero, as an outlier, and at the later one as what
    /// it is now, with `first_stream`. So a reader that came by before and one that comes by now
    /// see the same.
    Events,
    /// [`Fact::Event`]: events that were fetched from the past and have a place in their room: room
    /// by room, and in each from the newest to the oldest, by depth and place.
    Backfilled,
    /// [`Fact::BackwardExtremity`]: where the source knows that more history exists elsewhere.
    BackwardExtremities,
    /// [`Fact::TimelineGap`]
    TimelineGaps,
    /// [`Fact::Redaction`]: which event each redaction is about, and whether it was carried out.
    Redactions,
    /// [`Fact::ForwardExtremity`], by room.
    ForwardExtremities,
    /// [`Fact::CurrentState`], by room, type and key: what the result is compared with.
    CurrentState,
    /// [`Fact::Membership`]: of users of this server, newest each, with `forgotten`.
    Memberships,
    /// [`Fact::Alias`]
    Aliases,
    /// [`Fact::Published`]: rooms in the directory.
    Directory,
    /// [`Fact::RoomBlock`]
    RoomBlocks,
    /// [`Fact::RoomRetention`]: what the source computed; compared, not written.
    RoomRetention,
    /// [`Fact::AccountData`], both global and of rooms.
    AccountData,
    /// [`Fact::Tag`], by user and room.
    Tags,
    /// [`Fact::PushRule`], by user, in no order of their own.
    PushRules,
    /// [`Fact::PushRuleChange`]: switches of default rules.
    PushRuleChanges,
    /// [`Fact::Pusher`]
    Pushers,
    /// [`Fact::Receipt`]
    Receipts,
    /// [`Fact::Filter`]
    Filters,
    /// [`Fact::ThreadSubscription`]
    ThreadSubscriptions,
    /// [`Fact::Presence`]
    Presence,
    /// [`Fact::DelayedEvent`]
    DelayedEvents,
    /// [`Fact::Report`]
    Reports,
    /// [`Fact::Media`]: files of this server's users.
    Media,
    /// [`Fact::RemoteMedia`]: copies of files of other servers.
    RemoteMedia,
    /// [`Fact::PeerDevices`]: what is known of the devices of users of other servers.
    PeerDevices,
    /// [`Fact::PeerCrossSigningKey`]: the same for their cross-signing keys.
    PeerCrossSigningKeys,
    /// [`Fact::PeerDeviceList`]: up to which change a list of devices is complete.
    PeerDeviceLists,
    /// [`Fact::Destination`]: how far other servers have been told, and since when they fail.
    Destinations,
    /// [`Fact::DestinationRoom`]
    DestinationRooms,
    /// [`Fact::DeviceChange`]: changes of devices that some server has not been told of.
    DeviceChanges,
    /// [`Fact::AppService`]: how far application services have been told.
    AppServices,
    /// [`Fact::AppServiceTransaction`]: what they were sent and did not take, by service and
    /// number.
    AppServiceTransactions,
    /// [`Fact::ToDevice`], in the order in which they were sent. Last, because a running source
    /// hands them out all the time.
    ToDevice,
    /// [`Fact::ToPeerDevice`]: those that wait for another server.
    ToPeerDevice,
}

impl Section {
    /// Every section, in the order of the log.
    pub const ALL: [Self; 59] = [
        Self::Server,
        Self::RegistrationTokens,
        Self::Accounts,
        Self::Profiles,
        Self::Threepids,
        Self::ThreepidBindings,
        Self::ExternalIds,
        Self::Transactions,
        Self::OauthClients,
        Self::OauthGrants,
        Self::Devices,
        Self::AccessTokens,
        Self::RefreshTokens,
        Self::DeviceKeys,
        Self::OneTimeKeys,
        Self::FallbackKeys,
        Self::CrossSigningKeys,
        Self::KeySignatures,
        Self::DehydratedDevices,
        Self::KeyBackups,
        Self::BackedUpKeys,
        Self::PeerKeys,
        Self::Rooms,
        Self::Outliers,
        Self::Events,
        Self::Backfilled,
        Self::BackwardExtremities,
        Self::TimelineGaps,
        Self::Redactions,
        Self::ForwardExtremities,
        Self::CurrentState,
        Self::Memberships,
        Self::Aliases,
        Self::Directory,
        Self::RoomBlocks,
        Self::RoomRetention,
        Self::AccountData,
        Self::Tags,
        Self::PushRules,
        Self::PushRuleChanges,
        Self::Pushers,
        Self::Receipts,
        Self::Filters,
        Self::ThreadSubscriptions,
        Self::Presence,
        Self::DelayedEvents,
        Self::Reports,
        Self::Media,
        Self::RemoteMedia,
        Self::PeerDevices,
        Self::PeerCrossSigningKeys,
        Self::PeerDeviceLists,
        Self::Destinations,
        Self::DestinationRooms,
        Self::DeviceChanges,
        Self::AppServices,
        Self::AppServiceTransactions,
        Self::ToDevice,
        Self::ToPeerDevice,
    ];

    /// Whether rows are only added to the section, after those that were read. The others may have
    /// changed anywhere, and are read from the start again when the source has stopped.
    pub(crate) const fn grows(self) -> bool {
        matches!(self, Self::Outliers | Self::Events | Self::Backfilled)
    }
}

/// A place in a section, between two facts. Its text is the reader's own, and may be stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(pub String);

impl Cursor {
    /// Before the first fact of a section.
    pub const START: Self = Self(String::new());

    pub(crate) fn is_start(&self) -> bool {
        self.0.is_empty()
    }
}

/// A few facts in a row, as the source held them at one moment.
#[derive(Debug, Default)]
pub struct Slice {
    pub facts: Vec<Told>,
    /// Rows that are no facts, in the order in which they were met.
    pub bad: Vec<Bad>,
    /// Where the next slice begins, if there are more facts.
    pub next: Option<Cursor>,
    /// After the last row of this slice, or the cursor that was given if there was none.
    pub end: Cursor,
    /// With events: the rooms that the source knew in part only at that moment, if it says so.
    pub partial: Option<Vec<String>>,
}

/// A fact, and where it was found.
#[derive(Clone, Debug, Serialize)]
pub struct Told {
    pub origin: Origin,
    pub fact: Fact,
}

/// A row of the source. It is shown to a person who can look there, so it never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Origin {
    pub table: &'static str,
    pub key: Key,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.key)
    }
}

/// What tells a row from the others of its table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub enum Key {
    Number(i64),
    /// The values of several columns are set apart by a space and a slash.
    Text(Box<str>),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            // A source may hold anything, and this is shown on a terminal.
            Self::Text(text) => write!(f, "{}", text.escape_debug()),
        }
    }
}

/// A row that does not come along, or not whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bad {
    pub origin: Origin,
    /// A sentence without its full stop: `the column "json" holds no JSON`.
    pub why: String,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.why)
    }
}

/// A table that does not come along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftTable {
    pub table: &'static str,
    pub rows: u64,
    /// A sentence without its full stop.
    pub why: &'static str,
}

/// Why a source cannot be read, or not any further.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The same call may succeed later: a lost connection, or a lock that another program holds.
    #[error("{place} does not answer: {why}")]
    Away { place: String, why: String },
    /// It is no source that this reader knows.
    #[error("{0}")]
    Refused(String),
    /// The database itself is damaged, or is not what it says it is.
    #[error("cannot read {what}: {why}")]
    Damaged { what: String, why: String },
    /// Only what was asked for is not there; everything else may be read.
    #[error("{what} leads nowhere")]
    Absent { what: String },
    /// A cursor that this reader did not make.
    #[error("what was kept of the section {section:?} is no place in it")]
    Cursor { section: Section },
}

/// A text that must not be shown. It is written down only by `serialize`, for a digest.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl Secret {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A JSON value as the source wrote it. It is valid JSON, and not more.
pub type Json = Box<RawValue>;

/// One thing that a source knows.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    ServerKey(ServerKey),
    RegistrationToken(RegistrationToken),
    Account(Account),
    Profile(Profile),
    Threepid(Threepid),
    ThreepidBinding(ThreepidBinding),
    ExternalId(ExternalId),
    OauthClient(OauthClient),
    OauthGrant(OauthGrant),
    Device(Device),
    AccessToken(AccessToken),
    RefreshToken(RefreshToken),
    DeviceKeys(DeviceKeys),
    OneTimeKey(OneTimeKey),
    FallbackKey(FallbackKey),
    CrossSigningKey(CrossSigningKey),
    KeySignature(KeySignature),
    DehydratedDevice(DehydratedDevice),
    KeyBackup(KeyBackup),
    BackedUpKey(BackedUpKey),
    PeerKey(PeerKey),
    Room(Room),
    BanRedaction(BanRedaction),
    Event(Box<Event>),
    StateDelta(StateDelta),
    BackwardExtremity(BackwardExtremity),
    TimelineGap(TimelineGap),
    Redaction(Redaction),
    ForwardExtremity(ForwardExtremity),
    CurrentState(CurrentState),
    Membership(Membership),
    Alias(Alias),
    Published(Published),
    RoomBlock(RoomBlock),
    RoomRetention(RoomRetention),
    AccountData(AccountData),
    Tag(Tag),
    PushRule(PushRule),
    PushRuleChange(PushRuleChange),
    Pusher(Pusher),
    Receipt(Receipt),
    Filter(Filter),
    ThreadSubscription(ThreadSubscription),
    Presence(Presence),
    Transaction(Transaction),
    DelayedEvent(DelayedEvent),
    Report(Report),
    Media(Media),
    RemoteMedia(RemoteMedia),
    /// A device of a user of another server.
    PeerDevices(DeviceKeys),
    PeerCrossSigningKey(CrossSigningKey),
    PeerDeviceList(PeerDeviceList),
    Destination(Destination),
    DestinationRoom(DestinationRoom),
    DeviceChange(DeviceChange),
    AppService(AppService),
    AppServiceTransaction(AppServiceTransaction),
    ToDevice(ToDevice),
    ToPeerDevice(ToPeerDevice),
}
