//! Why a value is what it is: the records that changed it, in order.

mod account;
mod device;
mod grants;
mod room;

use std::{fmt, str::FromStr};

use ruma::UserId;
use serde_json::{Value, json};

use self::grants::{GrantOwner, Grants};
use super::{
    History, HistoryError, describe,
    moment::{Moment, Time},
    resolution::explain_steps,
    step::Step,
    unread::unread,
};
use crate::source::Source;
use logcabin_record::{
    Command, Offset, Record,
    command::{KINDS, RoomEvent, Topic},
    if_about, mask,
};

/// The value in question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A room's state of one type and state key.
    State {
        /// Id, alias, name, or a prefix of an id or alias.
        room: String,
        event_type: String,
        state_key: String,
    },
    /// A user's power level in a room.
    Power {
        room: String,
        /// The user id, or its part before the colon.
        user: String,
    },
    /// Whether a room is in the directory.
    Directory { room: String },
    /// A user's read position in a room.
    Read { room: String, user: String },
    /// The number of unread notifications of a user in a room.
    Unread { room: String, user: String },
    /// What became of an event, by its id.
    Event(String),
    /// The target of an alias.
    Alias(String),
    /// An OAuth client, and what users granted it.
    Client(String),
    /// A property of an account.
    User {
        /// The user id, or its part before the colon.
        user: String,
        /// The property.
        fact: Fact,
    },
}

/// A property of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Its existence and status.
    Account,
    Password,
    /// The device with this id.
    Device(String),
    /// The profile field with this name.
    Profile(String),
    /// The global account data with this type.
    Data(String),
    /// What they granted OAuth clients.
    Grants,
    /// The pushers of this app.
    Pusher(String),
    /// This e-mail address or phone number.
    Address(String),
    /// The keys of this device; none for the cross-signing keys.
    Keys(Option<String>),
}

impl Fact {
    /// Which of the user's devices, fields, types, apps or addresses it is about.
    fn name(&self) -> Option<&str> {
        match self {
            Self::Account | Self::Password | Self::Grants => None,
            Self::Device(name)
            | Self::Profile(name)
            | Self::Data(name)
            | Self::Pusher(name)
            | Self::Address(name) => Some(name),
            Self::Keys(device) => device.as_deref(),
        }
    }
}

/// The possible subjects, as typed on the command line.
pub const FORMS: &str = "\
room ROOM TYPE [STATE_KEY]     a room's state (`name` is short for `m.room.name`)
room ROOM member USER          a membership
room ROOM power USER           a power level
room ROOM read USER            a read position
room ROOM unread USER          unread notifications: each that counts, and by which rule
room ROOM directory            whether the room is in the directory
event EVENT_ID                 whether an event was accepted, and what state resolution made of it
alias ALIAS                    the target of an alias
client ID                      an OAuth client: who granted it what, and what became of that
user USER account|password     an account and what it may do; its password
user USER device ID            a device, and the OAuth client that got it
user USER grants               what they granted OAuth clients, and what became of it
user USER profile FIELD        a field of a profile
user USER data TYPE            account data
user USER pusher APP           the pushers of an app
user USER address ADDRESS      an e-mail address or a phone number
user USER keys [DEVICE]        the keys of a device, or those for cross-signing";

/// Words that name no subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotASubject;

impl fmt::Display for NotASubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the question must be one of:\n{FORMS}")
    }
}

impl std::error::Error for NotASubject {}

impl Subject {
    /// The subject that these words name: see [`FORMS`].
    pub fn of_words(words: &[impl AsRef<str>]) -> Result<Self, NotASubject> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let own = |word: &str| word.to_owned();
        Ok(match *words.as_slice() {
            ["room", room, "member", user] => Self::State {
                room: own(room),
                event_type: "m.room.member".to_owned(),
                state_key: own(user),
            },
            ["room", room, "power", user] => Self::Power { room: own(room), user: own(user) },
            ["room", room, "read", user] => Self::Read { room: own(room), user: own(user) },
            ["room", room, "unread", user] => Self::Unread { room: own(room), user: own(user) },
            ["room", room, "directory"] => Self::Directory { room: own(room) },
            ["room", room, event_type] => Self::state(room, event_type, ""),
            ["room", room, event_type, state_key] => Self::state(room, event_type, state_key),
            ["event", event_id] => Self::Event(own(event_id)),
            ["alias", alias] => Self::Alias(own(alias)),
            ["client", client_id] => Self::Client(own(client_id)),
            ["user", user, ref fact @ ..] => {
                let fact = match *fact {
                    ["account"] => Fact::Account,
                    ["password"] => Fact::Password,
                    ["device", id] => Fact::Device(own(id)),
                    ["grants"] => Fact::Grants,
                    ["profile", field] => Fact::Profile(own(field)),
                    ["data", event_type] => Fact::Data(own(event_type)),
                    ["pusher", app] => Fact::Pusher(own(app)),
                    ["address", address] => Fact::Address(own(address)),
                    ["keys"] => Fact::Keys(None),
                    ["keys", device] => Fact::Keys(Some(own(device))),
                    _ => return Err(NotASubject),
                };
                Self::User { user: own(user), fact }
            }
            _ => return Err(NotASubject),
        })
    }

    /// The topic of the commands that concern it; `None` if it is not a single value.
    const fn topic(&self) -> Option<Topic> {
        Some(match self {
            Self::State { .. } | Self::Power { .. } => Topic::RoomState,
            Self::Directory { .. } => Topic::Directory,
            Self::Read { .. } => Topic::Receipt,
            Self::Unread { .. } => return None,
            Self::Event(_) => Topic::Event,
            Self::Alias(_) => Topic::Alias,
            Self::Client(_) => Topic::Grants,
            Self::User { fact, .. } => match fact {
                Fact::Account => Topic::Account,
                Fact::Password => Topic::Password,
                Fact::Device(_) => Topic::Device,
                Fact::Profile(_) => Topic::Profile,
                Fact::Data(_) => Topic::AccountData,
                Fact::Grants => Topic::Grants,
                Fact::Pusher(_) => Topic::Pusher,
                Fact::Address(_) => Topic::Address,
                Fact::Keys(_) => Topic::Keys,
            },
        })
    }

    fn state(room: &str, event_type: &str, state_key: &str) -> Self {
        let event_type = if event_type.contains('.') {
            event_type.to_owned()
        } else {
            format!("m.room.{event_type}")
        };
        Self::State { room: room.to_owned(), event_type, state_key: state_key.to_owned() }
    }
}

impl FromStr for Subject {
    type Err = NotASubject;

    fn from_str(text: &str) -> Result<Self, NotASubject> {
        Self::of_words(&text.split_whitespace().collect::<Vec<_>>())
    }
}

/// The records that made the value of `subject` what it is as of `at` (or now), oldest first.
pub fn why(
    source: &Source,
    subject: &Subject,
    at: Option<Moment>,
) -> Result<Vec<Step>, HistoryError> {
    let history = History::open(source, at)?;
    let end = history.end();
    if let Subject::Unread { room, user } = subject {
        // First the read position: events after it may count.
        let read = Subject::Read { room: room.clone(), user: user.clone() };
        let mut steps = why(source, &read, Some(Moment::At(end)))?;
        steps.drain(..steps.len().saturating_sub(1));
        let (room, user_id) = (history.room(room)?, history.user_id(user)?);
        steps.extend(unread(&history, &room, &user_id, usize::MAX)?);
        return Ok(steps);
    }
    let mut chain = Chain::new(&history, subject)?;
    for record in source.records(Offset::new(1))? {
        let record = record?;
        if record.offset() > end {
            break;
        }
        chain.take(&record)?;
    }
    chain.steps(&history, usize::MAX)
}

/// A command that can change a value of this topic ([`Topic`]).
trait Affects<T> {
    /// What it does to the value that the chain is about; `None` if it is about another one.
    /// `shown` is its payload without secrets.
    fn change(&self, chain: &mut Chain<'_>, shown: &Value) -> Answer;
}

type Answer = Result<Option<Change>, HistoryError>;

/// The effect of a record on a value.
#[derive(Debug)]
enum Change {
    Becomes(Value),
    Ends,
    /// It is about the value, but does not change it.
    Stays,
}

/// The type of the event that sets power levels.
const POWER_LEVELS: &str = "m.room.power_levels";

/// The subject with all names resolved.
pub(super) struct Chain<'a> {
    source: &'a Source,
    subject: &'a Subject,
    topic: Option<Topic>,
    /// The kinds of the commands that may concern it.
    kinds: Vec<&'static str>,
    /// The room, alias, event or client of the subject.
    pub(super) place: String,
    pub(super) user: String,
    value: Option<Value>,
    /// The event that currently sets the value.
    event_id: Option<String>,
    grants: Grants,
    pub(super) steps: Vec<Step>,
}

impl<'a> Chain<'a> {
    pub(super) fn new(history: &History<'a>, subject: &'a Subject) -> Result<Self, HistoryError> {
        let room = |name: &str| history.room(name).map(|room| room.id.to_string());
        let (place, user) = match subject {
            Subject::State { room: name, event_type, state_key } => {
                let is_member = event_type == "m.room.member";
                let user = if is_member { user_id(history, state_key)? } else { state_key.clone() };
                (room(name)?, user)
            }
            Subject::Power { room: name, user }
            | Subject::Read { room: name, user }
            | Subject::Unread { room: name, user } => (room(name)?, user_id(history, user)?),
            Subject::Directory { room: name } => (room(name)?, String::new()),
            Subject::Event(name) | Subject::Alias(name) | Subject::Client(name) => {
                (name.clone(), String::new())
            }
            Subject::User { user, .. } => (String::new(), user_id(history, user)?),
        };
        let topic = subject.topic();
        let kinds = KINDS.iter().filter(|kind| topic.is_some_and(|of| kind.about.contains(&of)));
        Ok(Self {
            source: history.source(),
            subject,
            topic,
            kinds: kinds.map(|kind| kind.name).collect(),
            place,
            user,
            value: None,
            event_id: None,
            grants: Grants::default(),
            steps: Vec::new(),
        })
    }

    /// The records about the value. State resolution is explained in the newest `most` of those
    /// in which it decided.
    pub(super) fn steps(
        mut self,
        history: &History<'_>,
        most: usize,
    ) -> Result<Vec<Step>, HistoryError> {
        let key = match self.subject {
            Subject::State { event_type, .. } => Some((event_type.as_str(), self.user.as_str())),
            Subject::Power { .. } => Some((POWER_LEVELS, "")),
            _ => None,
        };
        explain_steps(history, &mut self.steps, key, most)?;
        Ok(self.steps)
    }

    pub(super) fn take(&mut self, record: &Record) -> Result<(), HistoryError> {
        let kind = &*record.header.kind;
        let Some(topic) = self.topic.filter(|_| self.kinds.contains(&kind)) else {
            return Ok(());
        };
        // Nothing is known about the subject of a completely erased payload.
        let (Some(shown), Some(command)) = (mask::payload(record), record.command()?) else {
            return Ok(());
        };
        let change = if_about!(&command, topic, body, Of => {
            Affects::<Of>::change(body, self, &shown)?
        });
        let Some(change) = change.flatten() else { return Ok(()) };
        let disputed = self.disputed(&command);
        let after = match change {
            Change::Becomes(value) => Some(value),
            Change::Ends => None,
            Change::Stays => self.value.clone(),
        };
        let is_power = matches!(self.subject, Subject::Power { .. });
        if is_power && after == self.value && disputed.is_none() {
            return Ok(());
        }
        let words = describe::of_record(record);
        let origin = &record.header.origin;
        let before = std::mem::replace(&mut self.value, after.clone());
        self.steps.push(Step {
            offset: record.offset(),
            time: Time(record.happened_ms()).to_string(),
            kind: kind.to_owned(),
            who: words.who,
            text: words.text,
            user: origin.user.to_string(),
            device: origin.device.to_string(),
            request: origin.request.to_string(),
            before,
            after,
            resolution: None,
            disputed,
        });
        Ok(())
    }

    /// The room, if its branches had different events for the value when this record was written.
    fn disputed(&self, command: &Command) -> Option<String> {
        match command {
            Command::RoomEvent(event) => self.disputed_by(event),
            _ => None,
        }
    }

    fn disputed_by(&self, event: &RoomEvent) -> Option<String> {
        let key = match self.subject {
            Subject::State { event_type, .. } => Some((event_type.as_str(), self.user.as_str())),
            Subject::Power { .. } => Some((POWER_LEVELS, "")),
            Subject::Event(_) => None,
            _ => return None,
        };
        let resolved = event.received.as_ref()?.resolved.as_ref()?;
        let mut conflicts = resolved.conflicts.iter();
        let is_disputed = conflicts.any(|conflict| {
            key.is_none_or(|key| key == (&*conflict.event_type, &*conflict.state_key))
        });
        is_disputed.then(|| event.room_id.to_string())
    }

    /// Whether the subject is a fact about this user.
    fn is_of(&self, user_id: &UserId) -> bool {
        *user_id == *self.user
    }

    /// Which device, field, type, app or address the fact is about.
    fn name(&self) -> Option<&str> {
        match self.subject {
            Subject::User { fact, .. } => fact.name(),
            _ => None,
        }
    }

    fn is_named(&self, name: &str) -> bool {
        self.name() == Some(name)
    }

    /// The value so far, for one that changes in parts.
    fn so_far(&self) -> Value {
        self.value.clone().unwrap_or_else(|| json!({}))
    }

    fn grants(&mut self) -> (&mut Grants, GrantOwner<'_>) {
        let whose = match self.subject {
            Subject::Client(_) => GrantOwner::Client(&self.place),
            _ => GrantOwner::User(&self.user),
        };
        (&mut self.grants, whose)
    }
}

/// The user whose id or localpart is `name`.
fn user_id(history: &History<'_>, name: &str) -> Result<String, HistoryError> {
    history.user_id(name).map(|user_id| user_id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_parsed_from_words() {
        let state = |event_type: &str, state_key: &str| Subject::State {
            room: "Cabin".to_owned(),
            event_type: event_type.to_owned(),
            state_key: state_key.to_owned(),
        };
        for (words, subject) in [
            ("room Cabin name", state("m.room.name", "")),
            ("room Cabin org.example.thing key", state("org.example.thing", "key")),
            ("room Cabin member ann", state("m.room.member", "ann")),
            ("room Cabin directory", Subject::Directory { room: "Cabin".to_owned() }),
            ("alias #a:b", Subject::Alias("#a:b".to_owned())),
            ("user ann keys", Subject::User { user: "ann".to_owned(), fact: Fact::Keys(None) }),
        ] {
            assert_eq!(words.parse(), Ok(subject), "{words}");
        }
        for words in ["", "room", "room Cabin", "user ann", "user ann device", "alias", "why"] {
            assert_eq!(words.parse::<Subject>(), Err(NotASubject), "{words}");
        }
    }
}
