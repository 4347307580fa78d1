//! Where an interrupted import goes on in a slice.
//!
//! The source may have been in use since: it may have deleted rows, as when a room is purged. So
//! the place in a slice is told by the fact before it, and not by how many facts were before it.

use serde::{Deserialize, Serialize};

use super::prepare::Ready;
use crate::facts::{Cursor, Fact, Section};
use logcabin_record::command::FileHash;

/// The last fact of a slice that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Handled {
    /// In a section that grows: the source's place, and how many of its facts were handled.
    Place { stream: i64, facts: usize },
    /// In another section: the hash of the fact.
    Fact(FileHash),
}

/// The next fact of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// The section, by its number in the pass.
    pub(super) section: usize,
    /// Where the slice begins.
    pub(super) cursor: &'a Cursor,
    /// The fact before it in the slice, unless it is the first one.
    pub(super) handled: Option<Handled>,
}

impl<'a> Place<'a> {
    pub(super) const fn start(section: usize, cursor: &'a Cursor) -> Self {
        Self { section, cursor, handled: None }
    }
}

const fn stream(fact: &Fact) -> Option<i64> {
    match fact {
        Fact::Event(event) => Some(event.stream),
        Fact::StateDelta(delta) => Some(delta.stream),
        _ => None,
    }
}

impl Handled {
    /// After one more fact of the slice.
    pub(super) fn after(before: Option<Self>, section: Section, ready: &Ready) -> Self {
        let place = stream(&ready.told.fact).filter(|_| section.grows());
        let Some(stream) = place else { return Self::Fact(ready.hash.into()) };
        let facts = match before {
            Some(Self::Place { stream: before, facts }) if before == stream => facts + 1,
            _ => 1,
        };
        Self::Place { stream, facts }
    }
}

/// How many facts of a slice were handled already. `None` if the last one of them is gone, and the
/// section must be read from its start again: what was written is not repeated.
pub(super) fn handled_of(
    facts: &[Ready],
    section: Section,
    handled: Option<Handled>,
) -> Option<usize> {
    let (place, count) = match handled {
        None => return Some(0),
        Some(Handled::Fact(hash)) => {
            let at = facts.iter().position(|ready| FileHash::from(ready.hash) == hash);
            return at.map(|at| at + 1);
        }
        Some(Handled::Place { stream, facts }) => (stream, facts),
    };
    let at_place = |ready: &Ready| stream(&ready.told.fact) == Some(place);
    if let Some(first) = facts.iter().position(at_place) {
        // The facts of a place come and go together: they are of one room.
        let there = facts.iter().skip(first).take_while(|ready| at_place(ready)).count();
        return Some(first + there.min(count));
    }
    if section != Section::Events {
        // Places are in no order there. An event that comes again is recognised.
        return Some(0);
    }
    let is_later = |ready: &Ready| stream(&ready.told.fact).is_some_and(|stream| stream > place);
    Some(facts.iter().position(is_later).unwrap_or(facts.len()))
}
