//! Rules of all kinds, by whom they name.

use std::sync::Arc;

use ruma::events::StateEventType;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::{EntityKind, Subject, index::Index, rule::Rule};
use crate::events::{EventStore, as_shown};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::Room;

/// Rules to look names up in.
#[derive(Debug, Default)]
pub struct RuleSet {
    users: Index,
    rooms: Index,
    servers: Index,
}

/// A rule as people propose it: the type and the content of an event of a policy list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProposedRule {
    #[serde(rename = "type", default)]
    pub event_type: String,
    #[serde(default)]
    pub content: Option<Box<RawValue>>,
}

/// A name that a rule of a set matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub name: String,
    /// The record of the rule's event; for a proposed rule, its place among these, from 1 on.
    pub rule: Offset,
}

impl RuleSet {
    /// The rules of a room, whether or not they are applied.
    pub fn of_room(events: &EventStore, room: &Room) -> Result<Self, ReadError> {
        let mut set = Self::default();
        for event_type in EntityKind::event_types() {
            let Some(kind) = EntityKind::of(&event_type) else { continue };
            for (_, offset) in room.state_of_type(&event_type, Offset::MAX) {
                let event = events.get(offset)?.map(|event| as_shown(room, event, Offset::MAX));
                if let Some(rule) = event.and_then(|event| Rule::of(kind, &event, offset)) {
                    set.add(&Arc::new(rule));
                }
            }
        }
        Ok(set)
    }

    /// Proposed rules. Returns the places of those that cannot be understood, from 1 on, too.
    pub fn of(proposed: &[ProposedRule]) -> (Self, Vec<usize>) {
        let (mut set, mut wrong) = (Self::default(), Vec::new());
        for (place, proposed) in (1..).zip(proposed) {
            let kind = EntityKind::of(&StateEventType::from(&*proposed.event_type));
            let content = proposed.content.as_ref();
            let content: Option<Value> =
                content.and_then(|content| serde_json::from_str(content.get()).ok());
            let at = Offset::new(place as u64);
            let rule =
                kind.zip(content).and_then(|(kind, content)| Rule::new(kind, &content, at, at));
            if !rule.is_some_and(|rule| set.add(&Arc::new(rule))) {
                wrong.push(place);
            }
        }
        (set, wrong)
    }

    /// The first rule that matches the subject.
    pub fn find(&self, own: &ruma::ServerName, subject: Subject<'_>) -> Option<Found> {
        subject.names(own).into_iter().find_map(|(kind, name)| {
            let rule = self.matching(kind, name).into_iter().next()?;
            Some(Found { name: name.to_owned(), rule: rule.offset })
        })
    }

    /// Adds a rule. Returns whether it can be used.
    pub(super) fn add(&mut self, rule: &Arc<Rule>) -> bool {
        self.index_mut(rule.kind).add(rule)
    }

    pub(super) fn remove(&mut self, rule: &Rule) {
        self.index_mut(rule.kind).remove(rule);
    }

    /// The rules that match a name, as many as are looked at.
    pub(super) fn matching(&self, kind: EntityKind, name: &str) -> Vec<&Arc<Rule>> {
        let mut matching = Vec::new();
        self.index(kind).each_matching(name, |rule| {
            matching.push(rule);
            matching.len() < limits::POLICY_MATCHES
        });
        matching
    }

    /// All rules that match a name.
    pub(super) fn all_matching(&self, kind: EntityKind, name: &str) -> Vec<&Arc<Rule>> {
        let mut matching = Vec::new();
        self.index(kind).each_matching(name, |rule| {
            matching.push(rule);
            true
        });
        matching
    }

    const fn index(&self, kind: EntityKind) -> &Index {
        match kind {
            EntityKind::User => &self.users,
            EntityKind::Room => &self.rooms,
            EntityKind::Server => &self.servers,
        }
    }

    fn index_mut(&mut self, kind: EntityKind) -> &mut Index {
        match kind {
            EntityKind::User => &mut self.users,
            EntityKind::Room => &mut self.rooms,
            EntityKind::Server => &mut self.servers,
        }
    }
}
