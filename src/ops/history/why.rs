//! Why a value is what it is: the records that changed it, in order.

use std::{fmt, str::FromStr};

use serde_json::{Value, json};

use super::{
    History, HistoryError,
    grants::{Grants, Whose},
    held::{Held, held},
    moment::{Moment, Time},
    resolution::explain_steps,
    step::Step,
    unread::unread,
    words,
};
use crate::{
    ops::source::Source,
    record::{Offset, Record, mask},
};

/// The value in question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A room's state of one type and state key.
    State {
        /// Id, alias, name, or a prefix of an id or alias.
        room: String,
        /// The type of its events.
        event_type: String,
        /// The state key.
        state_key: String,
    },
    /// A user's power level in a room.
    Power {
        /// The room.
        room: String,
        /// The user id, or its part before the colon.
        user: String,
    },
    /// Whether a room is in the directory.
    Directory {
        /// The room.
        room: String,
    },
    /// A user's read position in a room.
    Read {
        /// The room.
        room: String,
        /// The user.
        user: String,
    },
    /// The number of unread notifications of a user in a room.
    Unread {
        /// The room.
        room: String,
        /// The user.
        user: String,
    },
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
    /// The password.
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

/// The possible subjects, as typed on the command line.
pub const FORMS: &str = "\
room ROOM TYPE [STATE_KEY]     a room's state (`name` is short for `m.room.name`)
room ROOM member USER          a membership
room ROOM power USER           a power level
room ROOM read USER            how far somebody has read
room ROOM unread USER          unread notifications: each that counts, and by which rule
room ROOM directory            whether the room is in the directory
event EVENT_ID                 whether an event was accepted, and what state resolution made of it
alias ALIAS                    where an alias leads
client ID                      an OAuth client: who granted it what, and what became of that
user USER account|password     an account and what it may do; its password
user USER device ID            a device, and the OAuth client that got it
user USER grants               what they granted OAuth clients, and what became of it
user USER profile FIELD        a field of a profile
user USER data TYPE            account data
user USER pusher APP           where notifications go
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
    ///
    /// # Errors
    /// When they name none.
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

/// The records that made the value of `subject` what it is as of `at` (or now), the oldest first.
///
/// # Errors
/// When the source cannot be read, or there is no such room or user.
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

/// The effect of a record on a value.
#[derive(Debug)]
pub(super) enum Change {
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
    /// The room or alias of the subject.
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
        let (value, event_id, grants) = (None, None, Grants::default());
        let source = history.source();
        Ok(Self { source, subject, place, user, value, event_id, grants, steps: Vec::new() })
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
        if !self.may_concern(kind) {
            return Ok(());
        }
        // Nothing is known about the subject of a completely erased payload.
        let Some(payload) = mask::payload(record) else { return Ok(()) };
        let Some(change) = self.change(kind, &payload)? else { return Ok(()) };
        let disputed = self.disputed(&payload);
        let after = match change {
            Change::Becomes(value) => Some(value),
            Change::Ends => None,
            Change::Stays => self.value.clone(),
        };
        let is_power = matches!(self.subject, Subject::Power { .. });
        if is_power && after == self.value && disputed.is_none() {
            return Ok(());
        }
        let words = words::of_record(record);
        let origin = &record.header.origin;
        let before = std::mem::replace(&mut self.value, after.clone());
        self.steps.push(Step {
            offset: record.offset(),
            time: Time(record.header.time_ms).to_string(),
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
    fn disputed(&self, payload: &Value) -> Option<String> {
        let key = match self.subject {
            Subject::State { event_type, .. } => Some((event_type.as_str(), self.user.as_str())),
            Subject::Power { .. } => Some((POWER_LEVELS, "")),
            Subject::Event(_) => None,
            _ => return None,
        };
        let conflicts = payload["received"]["resolved"]["conflicts"].as_array()?;
        let is_about = |conflict: &Value| {
            key.is_none_or(|(of, key)| conflict["type"] == of && conflict["state_key"] == key)
        };
        let room_id = payload["room_id"].as_str()?;
        conflicts.iter().any(is_about).then(|| room_id.to_owned())
    }

    /// Whether records of this kind are relevant.
    fn may_concern(&self, kind: &str) -> bool {
        let family = kind.split('.').next().unwrap_or_default();
        match self.subject {
            Subject::State { .. } | Subject::Power { .. } => {
                matches!(kind, "room.event" | "room.state")
            }
            Subject::Event(_) => matches!(kind, "room.event" | "room.pdu"),
            Subject::Directory { .. } => matches!(kind, "room.visibility" | "room.network"),
            Subject::Read { .. } => kind == "room.receipt",
            Subject::Unread { .. } => false,
            Subject::Alias(_) => family == "alias",
            Subject::Client(_) => matches!(family, "oauth" | "device" | "user"),
            Subject::User { fact, .. } => match fact {
                Fact::Account | Fact::Password => family == "user",
                Fact::Device(_) => {
                    family == "device" || matches!(kind, "oauth.grant" | "oauth.end")
                }
                Fact::Grants => matches!(family, "oauth" | "device" | "user"),
                Fact::Profile(_) => matches!(kind, "profile.set" | "user.deactivate"),
                Fact::Data(_) => matches!(kind, "account_data.set" | "user.deactivate"),
                Fact::Pusher(_) => matches!(kind, "pusher.set" | "pusher.remove"),
                Fact::Address(_) => family == "threepid",
                Fact::Keys(_) => family == "keys" || kind == "device.remove",
            },
        }
    }

    /// The effect of a record with this payload on the value; `None` if it is about something else.
    fn change(&mut self, kind: &str, payload: &Value) -> Result<Option<Change>, HistoryError> {
        match self.subject {
            Subject::State { event_type, .. } => {
                if payload["room_id"] != *self.place {
                    return Ok(None);
                }
                if let Some(change) = self.redaction(&payload["pdu"]) {
                    return Ok(Some(change));
                }
                Ok(match held(self.source, payload, event_type, &self.user)? {
                    Held::Same => self.disputed(payload).map(|_| Change::Stays),
                    Held::Lost => Some(Change::Stays),
                    Held::Nobody => {
                        self.event_id = None;
                        Some(Change::Ends)
                    }
                    Held::By { event_id, content, .. } => {
                        self.event_id = Some(event_id);
                        Some(Change::Becomes(content))
                    }
                })
            }
            Subject::Power { .. } => {
                if payload["room_id"] != *self.place {
                    return Ok(None);
                }
                let create = match held(self.source, payload, "m.room.create", "")? {
                    Held::By { sender, content, .. } => {
                        // Before any event sets levels, the creator has all power.
                        let creator = content["creator"].as_str().unwrap_or(&sender);
                        Some(Change::Becomes(json!(if creator == self.user { 100 } else { 0 })))
                    }
                    _ => None,
                };
                Ok(match held(self.source, payload, POWER_LEVELS, "")? {
                    Held::Same if create.is_some() => create,
                    Held::Same => self.disputed(payload).map(|_| Change::Stays),
                    Held::Lost | Held::Nobody => Some(Change::Stays),
                    Held::By { content, .. } => {
                        let level = content["users"].get(&self.user);
                        let level = level.or_else(|| content.get("users_default"));
                        Some(Change::Becomes(level.cloned().unwrap_or_else(|| json!(0))))
                    }
                })
            }
            _ => Ok(self.change_of_another(kind, payload)),
        }
    }

    /// The effect of a redaction on the event that holds the value.
    fn redaction(&self, pdu: &Value) -> Option<Change> {
        if pdu["type"] != "m.room.redaction" {
            return None;
        }
        let mut targets = [&pdu["redacts"], &pdu["content"]["redacts"]].into_iter();
        let event_id = self.event_id.as_deref()?;
        let is_it = targets.any(|target| target.as_str() == Some(event_id));
        is_it.then(|| Change::Becomes(json!("(redacted)")))
    }

    /// The same for what is no state of a room.
    fn change_of_another(&mut self, kind: &str, payload: &Value) -> Option<Change> {
        match self.subject {
            Subject::State { .. } | Subject::Power { .. } => None,
            Subject::Event(event_id) => {
                (payload["event_id"] == **event_id).then_some(())?;
                Some(Change::Becomes(match kind {
                    "room.pdu" => json!({
                        "outcome": payload["outcome"], "reason": payload["reason"],
                    }),
                    _ => {
                        let takes_effect = &payload["received"]["resolved"]["takes_effect"];
                        match (payload["pdu"].get("state_key"), takes_effect.as_bool()) {
                            (None, _) => json!({ "outcome": "accepted" }),
                            (Some(_), holds) => json!({
                                "outcome": "accepted", "takes_effect": holds.unwrap_or(true),
                            }),
                        }
                    }
                }))
            }
            Subject::Directory { .. } => {
                (payload["room_id"] == *self.place).then_some(())?;
                Some(if kind == "room.visibility" {
                    Change::Becomes(payload["public"].clone())
                } else {
                    Change::Stays
                })
            }
            Subject::Read { .. } => {
                (payload["room_id"] == *self.place).then_some(())?;
                let mine = |receipt: &&Value| receipt["user_id"] == *self.user;
                let receipt = payload["receipts"].as_array()?.iter().rfind(mine)?;
                Some(Change::Becomes(receipt.clone()))
            }
            Subject::Unread { .. } => None,
            Subject::Alias(_) => {
                (payload["alias"] == *self.place).then_some(())?;
                Some(match kind {
                    "alias.set" => Change::Becomes(payload["room_id"].clone()),
                    _ => Change::Ends,
                })
            }
            Subject::Client(_) => self.grants.change(kind, payload, &Whose::Client(&self.place)),
            Subject::User { fact: Fact::Grants, .. } => {
                self.grants.change(kind, payload, &Whose::User(&self.user))
            }
            Subject::User { fact, .. } => {
                (payload["user_id"] == *self.user).then_some(())?;
                self.change_of(fact, kind, payload)
            }
        }
    }

    /// The effect of a record about the user on a property.
    fn change_of(&self, fact: &Fact, kind: &str, payload: &Value) -> Option<Change> {
        let erased = kind == "user.deactivate" && payload["erase"] == true;
        match fact {
            Fact::Account => Some(match kind {
                "user.password" => return None,
                "user.register" => Change::Becomes(json!({ "kind": payload["kind"] })),
                "user.upgrade" => Change::Becomes(json!({ "kind": "user" })),
                "user.status" => {
                    let mut account = self.value.clone().unwrap_or_else(|| json!({}));
                    for name in ["admin", "locked", "suspended"] {
                        if let Some(set) = payload.get(name) {
                            account[name] = set.clone();
                        }
                    }
                    Change::Becomes(account)
                }
                _ => Change::Ends,
            }),
            Fact::Password => match kind {
                "user.deactivate" => Some(Change::Ends),
                "user.status" => None,
                _ => Some(match payload.get("password") {
                    Some(hash) => Change::Becomes(hash.clone()),
                    None => Change::Ends,
                }),
            },
            Fact::Device(id) => {
                let here = |device: &Value| device == id.as_str();
                if kind == "device.remove" {
                    let gone = payload["devices"].as_array()?.iter().any(here);
                    return gone.then_some(Change::Ends);
                }
                if kind == "oauth.end" {
                    let of_device = self.value.as_ref()?["grant_id"].as_str()?;
                    let ends = payload["grants"].as_array()?.iter().any(|id| id == of_device);
                    return ends.then_some(Change::Stays);
                }
                here(&payload["device_id"]).then_some(())?;
                Some(match kind {
                    "oauth.grant" => {
                        let mut device = self.value.clone().unwrap_or_else(|| json!({}));
                        for name in ["client_id", "grant_id", "scope"] {
                            device[name] = payload[name].clone();
                        }
                        Change::Becomes(device)
                    }
                    "device.rename" => {
                        let mut device = self.value.clone().unwrap_or_else(|| json!({}));
                        device["display_name"] = payload["display_name"].clone();
                        Change::Becomes(device)
                    }
                    "device.login" | "device.dehydrate" => {
                        // It keeps its name, but not its session.
                        let name = self.value.as_ref().map(|device| &device["display_name"]);
                        let name = name.unwrap_or_else(|| &payload["display_name"]);
                        Change::Becomes(json!({ "display_name": name }))
                    }
                    _ => Change::Stays,
                })
            }
            Fact::Grants => None,
            Fact::Profile(_) | Fact::Data(_) if erased => {
                self.value.is_some().then_some(Change::Ends)
            }
            Fact::Profile(field) => {
                (payload["field"] == **field).then(|| match payload.get("value") {
                    Some(value) => Change::Becomes(value.clone()),
                    None => Change::Ends,
                })
            }
            Fact::Data(event_type) => {
                let mine = payload["type"] == **event_type && payload.get("room_id").is_none();
                mine.then(|| match &payload["content"] {
                    Value::Null => Change::Ends,
                    content => Change::Becomes(content.clone()),
                })
            }
            Fact::Pusher(app) => (payload["app_id"] == **app).then(|| match kind {
                "pusher.set" => Change::Becomes(json!({
                    "kind": payload["kind"],
                    "device_display_name": payload["device_display_name"],
                    "device_id": payload["device_id"],
                })),
                _ => Change::Ends,
            }),
            Fact::Address(address) => {
                let of = payload.get("threepid").unwrap_or(payload);
                (of["address"] == **address).then(|| match kind {
                    "threepid.add" => Change::Becomes(of.clone()),
                    "threepid.remove" => Change::Ends,
                    _ => Change::Stays,
                })
            }
            Fact::Keys(device) => match (device, kind) {
                (None, "keys.cross_sign") => {
                    let names = ["master_key", "self_signing_key", "user_signing_key"];
                    let mut keys = self.value.clone().unwrap_or_else(|| json!({}));
                    for name in names {
                        if let Some(key) = payload.get(name) {
                            keys[name] = key["keys"].clone();
                        }
                    }
                    Some(Change::Becomes(keys))
                }
                (None, "keys.sign") => Some(Change::Stays),
                (Some(id), "keys.upload" | "keys.claim") => {
                    (payload["device_id"] == **id).then(|| match payload.get("device_keys") {
                        Some(keys) => Change::Becomes(keys["keys"].clone()),
                        None => Change::Stays,
                    })
                }
                (Some(id), "device.remove") => {
                    let gone =
                        payload["devices"].as_array()?.iter().any(|gone| gone == id.as_str());
                    gone.then_some(Change::Ends)
                }
                _ => None,
            },
        }
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
    fn what_is_asked_about_is_read_from_words() {
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
