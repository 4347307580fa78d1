//! The rules of one list, as the room that they are in has them.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use ruma::events::StateEventType;

use super::{EntityKind, rule::Rule, set::RuleSet};
use crate::events::{EventStore, as_shown};
use logcabin_base::{glob::Glob, limits};
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::{Room, State, Subscription};

/// The type and the state key of a rule's event.
type Key = (StateEventType, String);

/// A room at some moment: when it began to be known here, and its last change.
pub(super) type Moment = Option<(Offset, Offset)>;

/// The rules of a list.
#[derive(Debug)]
pub(super) struct ListRules {
    pub(super) subscription: Subscription,
    except: Vec<Glob>,
    /// The room as it was when the rules were read last.
    seen: Moment,
    rules: HashMap<Key, Arc<Rule>>,
    set: RuleSet,
    /// Rules that are too many, or too long, to be used. They are judged like others: which ones
    /// are used may be otherwise after the next start.
    unusable: HashMap<Key, Arc<Rule>>,
}

/// How many rules a list has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    pub users: usize,
    pub rooms: usize,
    pub servers: usize,
    /// Rules that cannot be used.
    pub unusable: usize,
}

/// What has changed in the room of a list.
pub(super) struct Changes {
    /// Whether all rules are in it.
    is_whole: bool,
    now: Moment,
    /// The rule at each key that changed, in the order of their events.
    rules: Vec<(Key, Option<Arc<Rule>>)>,
}

fn moment(room: Option<&Room>) -> Moment {
    room.map(|room| (room.first_event(), room.changed()))
}

impl Changes {
    /// Reads what has changed since `seen`.
    pub(super) fn since(
        seen: Moment,
        room: Option<&Room>,
        events: &EventStore,
    ) -> Result<Self, ReadError> {
        let now = moment(room);
        let Some(room) = room else {
            return Ok(Self { is_whole: true, now, rules: Vec::new() });
        };
        let since = match (seen, now) {
            (Some((before, seen)), Some((first, _))) if before == first => Some(seen),
            _ => None,
        };
        let keys: Vec<Key> = match since {
            // The last change may have been seen in part: records are applied meanwhile.
            Some(since) => room.changed_keys(since.prev(), Offset::MAX, usize::MAX),
            None => EntityKind::event_types()
                .flat_map(|of| {
                    let state = room.state_of_type(&of, Offset::MAX);
                    state.into_iter().map(move |(key, _)| (of.clone(), key))
                })
                .collect(),
        };
        let mut rules = Vec::new();
        for key in keys {
            let Some(kind) = EntityKind::of(&key.0) else { continue };
            let held = room.state_event_since(&key.0, &key.1);
            let rule = match held {
                Some((since, offset)) => events
                    .get(offset)?
                    .and_then(|event| Rule::of(kind, &as_shown(room, event, Offset::MAX), since)),
                None => None,
            };
            rules.push((key, rule.map(Arc::new)));
        }
        // So that which rules are too many does not depend on when they were read.
        rules.sort_by_key(|(_, rule)| rule.as_ref().map(|rule| rule.place()));
        Ok(Self { is_whole: since.is_none(), now, rules })
    }
}

impl ListRules {
    pub(super) fn new(subscription: Subscription) -> Self {
        let except = globs(&subscription.except);
        Self {
            subscription,
            except,
            seen: None,
            rules: HashMap::new(),
            set: RuleSet::default(),
            unusable: HashMap::new(),
        }
    }

    pub(super) const fn seen(&self) -> Moment {
        self.seen
    }

    /// Whether nothing has happened to the room and to the subscription since.
    pub(super) fn is_current(&self, state: &State) -> bool {
        let room_id = &self.subscription.room_id;
        state.policy_lists.changed(room_id) == Some(self.subscription.changed)
            && self.seen == moment(state.rooms.get(room_id).as_deref())
    }

    /// Takes over a changed subscription.
    pub(super) fn subscribe(&mut self, subscription: Subscription) {
        if subscription.except != self.subscription.except {
            self.except = globs(&subscription.except);
        }
        self.subscription = subscription;
    }

    /// Takes over what has changed in the room.
    pub(super) fn take(&mut self, changes: Changes) {
        let Changes { is_whole, now, rules } = changes;
        if is_whole {
            *self = Self::new(self.subscription.clone());
        }
        self.seen = now;
        for (key, rule) in rules {
            if let Some(before) = self.rules.remove(&key) {
                self.set.remove(&before);
            }
            self.unusable.remove(&key);
            let Some(rule) = rule else { continue };
            if self.rules.len() >= limits::POLICY_RULES || !self.set.add(&rule) {
                self.unusable.insert(key, rule);
            } else {
                self.rules.insert(key, rule);
            }
        }
    }

    /// The rules that nobody has judged yet, in the order in which that is done, and the records of
    /// judged ones that are no more.
    pub(super) fn unjudged(&self, room: Option<&Room>) -> (Vec<Arc<Rule>>, Vec<Offset>) {
        let Subscription { judged, applied, held, .. } = &self.subscription;
        let is_redacted = |rule: &Rule| {
            room.is_none_or(|room| room.redaction_of(rule.offset, Offset::MAX).is_some())
        };
        let all = || self.rules.values().chain(self.unusable.values());
        // What came while the rules were read may have been passed over.
        let seen = self.seen.map_or(Offset::ZERO, |(_, changed)| changed);
        let is_new = |rule: &&Arc<Rule>| rule.place() > *judged && rule.since <= seen;
        let mut new: Vec<_> =
            all().filter(is_new).filter(|rule| !is_redacted(rule)).cloned().collect();
        new.sort_by_key(|rule| rule.place());
        let mut gone = Vec::new();
        if !applied.is_empty() || !held.is_empty() {
            let present = all().filter(|rule| !is_redacted(rule));
            let present: HashSet<_> = present.map(|rule| rule.offset).collect();
            let judged = applied.keys().chain(held.keys());
            gone.extend(judged.filter(|offset| !present.contains(offset)));
        }
        (new, gone)
    }

    /// Whether a rule waits: it has not been judged, or not been approved.
    pub(super) fn waits(&self, rule: &Rule) -> bool {
        let Subscription { judged, held, .. } = &self.subscription;
        rule.place() > *judged || held.contains_key(&rule.offset)
    }

    /// Whether no rule of the list applies to any of these.
    pub(super) fn is_excepted<'n>(&self, mut names: impl Iterator<Item = &'n str>) -> bool {
        !self.except.is_empty() && names.any(|name| self.except.iter().any(|glob| glob.is(name)))
    }

    /// The rules that match a name.
    pub(super) fn matching(&self, kind: EntityKind, name: &str) -> Vec<&Arc<Rule>> {
        self.set.matching(kind, name)
    }

    pub(super) fn counts(&self) -> RuleCounts {
        let of = |kind| self.rules.values().filter(|rule| rule.kind == kind).count();
        RuleCounts {
            users: of(EntityKind::User),
            rooms: of(EntityKind::Room),
            servers: of(EntityKind::Server),
            unusable: self.unusable.len(),
        }
    }
}

fn globs(patterns: &[String]) -> Vec<Glob> {
    patterns.iter().filter_map(|pattern| Glob::new(pattern)).collect()
}
