//! A copy of which nothing is written: it says what a copy would leave, and why.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ruma::{OwnedServerName, events::StateEventType};

use super::{
    convert::{accounts, keys, oauth, peers, personal, rooms, sessions},
    gather::{Gathered, Group},
    media,
    prepare::ReadyEvent,
    rules::{self, Owners, room_fault},
    sections,
    writer::Left,
};
use crate::facts::{
    self, Bad, Event, Fact, Judged, Key, Media, Origin, PushRule, PushRuleChange, Section, Told,
};
use logcabin_base::clock::Clock;
use logcabin_record::Offset;

/// Makes of facts what a copy makes of them.
pub(crate) struct Trial {
    own: OwnedServerName,
    now_ms: u64,
    owners: Owners,
    group: Option<Gathered>,
    sessions: sessions::Sessions,
    session_origins: BTreeMap<(String, String), Origin>,
    grants: sessions::Grants,
    clients: BTreeSet<String>,
    rules: BTreeMap<String, (Origin, Vec<PushRule>, Vec<PushRuleChange>)>,
    creators: HashMap<String, String>,
    /// Rooms whose events come along, and those that have their first event.
    rooms: HashSet<String>,
    created: HashSet<String>,
    /// Rooms whose events do not come along: one of them says so for all.
    left: HashSet<String>,
    /// Rooms that a user of this server is in, and whose first event must be there.
    joined: Vec<String>,
    /// Users with keys of a device.
    keyed: HashSet<String>,
    /// Hashes of the ids of events that may have receipts.
    events: HashSet<u64>,
    /// Reasons that were given once for very many rows.
    given: HashSet<&'static str>,
    bad: Vec<Bad>,
}

/// The sections in the order in which they are tried, the last one's first.
pub(crate) fn sections() -> Vec<Section> {
    let others = Section::ALL.into_iter().filter(|section| !sections::ALL.contains(section));
    sections::ALL.iter().copied().chain(others).collect()
}

/// A reason as a sentence without its full stop.
fn sentence((reason, why): Left) -> String {
    let why = why.trim_end_matches('.');
    if why.is_empty() || why == reason { reason.to_owned() } else { format!("{reason}: {why}") }
}

fn hash(id: &str) -> u64 {
    let hash = blake3::hash(id.as_bytes());
    hash.as_bytes()[..8].iter().fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

impl Trial {
    pub(crate) fn new(own: OwnedServerName) -> Self {
        Self {
            own,
            now_ms: Clock::system().now_ms(),
            owners: Owners::default(),
            group: None,
            sessions: BTreeMap::new(),
            session_origins: BTreeMap::new(),
            grants: BTreeMap::new(),
            clients: BTreeSet::new(),
            rules: BTreeMap::new(),
            creators: HashMap::new(),
            rooms: HashSet::new(),
            created: HashSet::new(),
            left: HashSet::new(),
            joined: Vec::new(),
            keyed: HashSet::new(),
            events: HashSet::new(),
            given: HashSet::new(),
            bad: Vec::new(),
        }
    }

    /// What was left since this was asked for. A reason is empty if it was given for another row.
    pub(crate) fn take_left(&mut self) -> Vec<Bad> {
        std::mem::take(&mut self.bad)
    }

    fn leave(&mut self, origin: &Origin, why: String) {
        self.bad.push(Bad { origin: origin.clone(), why });
    }

    /// Leaves one of very many rows for the same reason.
    fn leave_one_of_many(&mut self, origin: &Origin, reason: &'static str) {
        let why = if self.given.insert(reason) { reason.to_owned() } else { String::new() };
        self.leave(origin, why);
    }

    fn made<T>(&mut self, origin: &Origin, made: Result<T, Left>) {
        if let Err(left) = made {
            self.leave(origin, sentence(left));
        }
    }

    fn made_partly<T>(&mut self, origin: &Origin, made: Result<(T, Vec<Left>), Left>) {
        match made {
            Ok((_, left)) => left.into_iter().for_each(|left| self.leave(origin, sentence(left))),
            Err(left) => self.leave(origin, sentence(left)),
        }
    }

    /// Tries a fact. `has_file` says whether the file of a medium is there.
    pub(crate) fn fact(&mut self, told: Told, has_file: impl Fn(&str) -> bool) {
        let Told { origin, fact } = told;
        if let Some(reason) = self.owners.note(&fact, &self.own) {
            self.leave(&origin, reason.to_owned());
            return;
        }
        let fact = match &mut self.group {
            Some(group) if group.takes(&fact) => {
                group.add(fact);
                return;
            }
            _ => fact,
        };
        self.flush();
        match Gathered::begin(&origin, fact) {
            Ok(group) => self.group = Some(group),
            Err(fact) => self.single(&origin, *fact, has_file),
        }
    }

    fn single(&mut self, origin: &Origin, fact: Fact, has_file: impl Fn(&str) -> bool) {
        let own = self.own.clone();
        match fact {
            Fact::Event(fact) => self.event(origin, &fact),
            Fact::Room(fact) => self.room(origin, fact),
            Fact::Media(fact) => self.media(origin, &fact, has_file),
            Fact::RemoteMedia(fact) if fact.quarantined_by.is_none() => {
                self.leave_one_of_many(origin, media::FETCHED_AGAIN);
            }
            Fact::Account(fact) => {
                self.made(origin, accounts::account(&fact, &own, accounts::Part::Whole))
            }
            Fact::Profile(fact) => self.made(origin, accounts::profile(fact, &own)),
            Fact::Threepid(fact) => self.made(origin, accounts::threepid_add(&fact, &own)),
            Fact::ThreepidBinding(fact) => self.made(origin, accounts::threepid_bind(fact, &own)),
            Fact::ExternalId(fact) => self.made(origin, accounts::external_id(fact, &own)),
            Fact::OauthClient(fact) => {
                let client_id = fact.client_id.clone();
                let made = oauth::client(fact);
                if made.is_ok() {
                    self.clients.insert(client_id);
                }
                self.made_partly(origin, made);
            }
            Fact::OauthGrant(fact) => {
                let granted = self.granted(origin, &fact.grant_id);
                (granted.origin, granted.grant) = (origin.clone(), Some(fact));
            }
            Fact::DehydratedDevice(fact) => {
                self.session(origin, (fact.user_id, fact.device_id)).dehydrated = Some(fact.data);
            }
            Fact::Device(fact) => {
                let id = (fact.user_id.clone(), fact.device_id.clone());
                self.session(origin, id).device = Some(fact);
            }
            Fact::AccessToken(fact) => match (fact.grant_id.clone(), fact.device_id.clone()) {
                (Some(grant_id), _) => self.granted(origin, &grant_id).access.push(fact),
                (None, device_id) => {
                    let id = (fact.user_id.clone(), device_id.unwrap_or_default());
                    self.session(origin, id).access.push(fact);
                }
            },
            Fact::RefreshToken(fact) => match (fact.grant_id.clone(), fact.device_id.clone()) {
                (Some(grant_id), _) => self.granted(origin, &grant_id).refresh.push(fact),
                (None, device_id) => {
                    let id = (fact.user_id.clone(), device_id.unwrap_or_default());
                    self.session(origin, id).refresh.push(fact);
                }
            },
            Fact::DeviceKeys(fact) => {
                self.keyed.insert(fact.user_id.clone());
                self.made(origin, keys::device_keys(fact, &own));
            }
            Fact::DeviceChange(fact) if self.keyed.contains(&fact.user_id) => {}
            Fact::DeviceChange(_) => self.leave_one_of_many(origin, rules::NO_KEYS_LEFT),
            Fact::FallbackKey(fact) => self.made(origin, keys::fallback_key(fact, &own)),
            Fact::CrossSigningKey(fact) => self.made(origin, keys::cross_signing_key(fact, &own)),
            Fact::KeySignature(fact) => self.made(origin, keys::signature(fact, &own)),
            Fact::KeyBackup(fact) => self.made(origin, keys::backup(fact, &own)),
            Fact::ToDevice(fact) => self.made(origin, keys::to_device(&fact, &own)),
            Fact::ToPeerDevice(fact) => self.made(origin, keys::to_peer_device(&fact, &own)),
            Fact::Membership(fact) if fact.forgotten => {
                self.made(origin, rooms::forgotten(&fact, &own));
            }
            Fact::Alias(fact) => {
                let creator = self.creators.get(&fact.room_id).map(String::as_str);
                let made = rooms::alias(&fact, creator, &own);
                self.made(origin, made);
            }
            Fact::Published(fact) => self.made(origin, rooms::published(fact)),
            Fact::RoomBlock(fact) => self.made(origin, rooms::block(&fact)),
            Fact::AccountData(fact) => self.made(origin, personal::account_data(fact, &own)),
            Fact::PushRule(fact) => {
                let rules = self.rules.entry(fact.user_id.clone());
                rules.or_insert_with(|| (origin.clone(), vec![], vec![])).1.push(fact);
            }
            Fact::PushRuleChange(fact) => {
                let rules = self.rules.entry(fact.user_id.clone());
                rules.or_insert_with(|| (origin.clone(), vec![], vec![])).2.push(fact);
            }
            Fact::Pusher(fact) => self.made(origin, personal::pusher(fact, &own)),
            Fact::Filter(fact) => self.made(origin, personal::filter(fact, &own)),
            Fact::Presence(fact) => self.made(origin, personal::presence(fact, &own)),
            Fact::DelayedEvent(fact) => self.made(origin, personal::delayed(fact, &own)),
            Fact::Report(fact) => self.made(origin, rooms::report(fact, &own)),
            Fact::Destination(fact) => self.made(origin, peers::reached(&fact, Offset::ZERO)),
            Fact::ThreadSubscription(_) => {
                self.leave_one_of_many(origin, rules::NO_SUBSCRIPTIONS);
            }
            // Nothing can be wrong with these, or they are parts of others.
            _ => {}
        }
    }

    fn room(&mut self, origin: &Origin, fact: facts::Room) {
        if fact.partial {
            let why = format!("{}: {}", rules::PARTIAL, rules::STILL_PARTIAL);
            self.leave(origin, why);
            return;
        }
        if let Some(left) = room_fault(&fact) {
            self.leave(origin, sentence(left));
            return;
        }
        if let Some(creator) = fact.creator {
            self.creators.insert(fact.room_id.clone(), creator);
        }
        if fact.joined {
            self.joined.push(fact.room_id.clone());
        }
        self.rooms.insert(fact.room_id);
    }

    fn event(&mut self, origin: &Origin, fact: &Event) {
        let is_rejected = matches!(fact.judged, Judged::Rejected { .. });
        if fact.event_type == StateEventType::RoomCreate.to_string() && !is_rejected {
            self.created.insert(fact.room_id.clone());
        }
        if !self.rooms.contains(&fact.room_id) {
            let why = match self.left.insert(fact.room_id.clone()) {
                true => "its room does not come along, nor do the room's other events".to_owned(),
                false => String::new(),
            };
            self.leave(origin, why);
            return;
        }
        match ReadyEvent::new(fact, &self.own) {
            Err(why) => self.leave(origin, format!("it cannot be an event: {why}")),
            // Only what has a place in its room can have been read.
            Ok(_) => match fact.judged {
                Judged::Timeline | Judged::Backfilled | Judged::SoftFailed => {
                    self.events.insert(hash(&fact.event_id));
                }
                Judged::Outlier { .. } | Judged::Rejected { .. } => {}
            },
        }
    }

    fn media(&mut self, origin: &Origin, fact: &Media, has_file: impl Fn(&str) -> bool) {
        match media::awaits(fact, &self.own, self.now_ms) {
            Err(left) => self.leave(origin, sentence(left)),
            Ok(None) if !has_file(&fact.path) => {
                self.leave(origin, format!("the file {} is not there", fact.path.escape_debug()));
            }
            Ok(_) => {}
        }
    }

    fn granted(&mut self, origin: &Origin, grant_id: &str) -> &mut sessions::Granted {
        let grants = self.grants.entry(grant_id.to_owned());
        grants.or_insert_with(|| sessions::Granted::new(origin.clone()))
    }

    fn session(&mut self, origin: &Origin, id: (String, String)) -> &mut sessions::Session {
        self.session_origins.entry(id.clone()).or_insert_with(|| origin.clone());
        self.sessions.entry(id).or_default()
    }

    fn flush(&mut self) {
        let Some(Gathered { origin, group, .. }) = self.group.take() else { return };
        let own = self.own.clone();
        match group {
            Group::OneTimeKeys(facts) => self.made(&origin, keys::one_time_keys(facts, &own)),
            Group::BackedUpKeys(facts) => self.made(&origin, keys::backed_up_keys(facts, &own)),
            Group::PeerKeys(facts) => self.made(&origin, peers::peer_keys(facts)),
            Group::Tags(facts) => self.made(&origin, personal::tags(facts, &own)),
            Group::Receipts(facts) => {
                let (there, elsewhere): (Vec<_>, Vec<_>) =
                    facts.into_iter().partition(|fact| self.events.contains(&hash(&fact.event_id)));
                for _ in elsewhere {
                    self.leave_one_of_many(&origin, rules::NOT_IN_ITS_ROOM);
                }
                self.made_partly(&origin, rooms::receipts(there));
            }
            Group::PeerDevices(facts) => {
                let user_id = facts.first().map(|fact| fact.user_id.clone()).unwrap_or_default();
                self.made(&origin, peers::peer_devices(&user_id, facts, <_>::default()));
            }
        }
    }

    /// Tries what was gathered in a section, and in those before it.
    pub(crate) fn end(&mut self, section: Section) {
        self.flush();
        let own = self.own.clone();
        match section {
            Section::RefreshTokens => {
                let mut origins = std::mem::take(&mut self.session_origins);
                let mut all = std::mem::take(&mut self.sessions);
                let grants = std::mem::take(&mut self.grants);
                let (lone, left) = sessions::assign(grants, &self.clients, &mut all, &mut origins);
                for (origin, left) in left {
                    self.leave(&origin, sentence(left));
                }
                let now = (&[][..], self.now_ms);
                for (id, session) in all {
                    let Some(origin) = origins.get(&id) else { continue };
                    let made = sessions::session((&id.0, &id.1), session, &own, now);
                    self.made_partly(origin, made);
                }
                for granted in lone {
                    let origin = granted.0.origin.clone();
                    self.made(&origin, sessions::lone_grant(granted, &own, &[]));
                }
            }
            Section::PushRuleChanges => {
                for (user_id, (origin, rules, changes)) in std::mem::take(&mut self.rules) {
                    let made = personal::push_rules(&user_id, rules, &changes, &own);
                    self.made_partly(&origin, made);
                }
            }
            _ => {}
        }
    }

    /// Rooms that come along and that nobody can use.
    pub(crate) fn useless_rooms(&self) -> Vec<Bad> {
        let without = self.joined.iter().filter(|room_id| !self.created.contains(*room_id));
        let bad = without.map(|room_id| Bad {
            origin: Origin { table: "rooms", key: Key::Text(room_id.as_str().into()) },
            why: "the room has no m.room.create event: it comes along, and cannot be used"
                .to_owned(),
        });
        bad.collect()
    }
}
