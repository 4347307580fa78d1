//! How the state before an event is recorded: as what it differs in from the nearest state that is
//! recorded already.
//!
//! With many branches, the state before each of their events may differ from the room's in many
//! keys. It differs from the state before the previous event of its branch in at most one.

use super::resolve::{NoState, differences};
use logcabin_base::limits;
use logcabin_read::{
    branches::{Branches, StateTree, StateView},
    events::{EventRef, StoredEvent},
};
use logcabin_record::{
    Offset,
    command::{StateBase, StateBefore},
};

pub(super) struct StateBeforeRecorder<'a, 'b> {
    pub(super) branches: &'a Branches<'b>,
    pub(super) event: &'a EventRef,
}

/// A recorded state from which another one may be described.
struct Base {
    base: StateBase,
    /// How many links there are from the described state to one of the room.
    links: u64,
    view: StateView,
}

impl StateBeforeRecorder<'_, '_> {
    /// The recorded form of the state before the event: none, if it is the current one.
    pub(super) fn noted(&self, before: &StateView) -> Result<Option<StateBefore>, NoState> {
        let current = self.branches.current();
        if self.branches.is_same(before, &current)? {
            return Ok(None);
        }
        let tree = match before {
            StateView::AsOf(at) => {
                return Ok(Some(StateBefore::same_as(StateBase::At(*at))));
            }
            StateView::Own(tree) => tree,
        };
        let base = self.nearest(tree, current)?;
        let changes = differences(self.branches, &base.view, before)?;
        let id = self.event.event_id.clone();
        self.branches.memo().described.put(tree.hash(), id, limits::RESOLUTION_STATES);
        Ok(Some(StateBefore { base: base.base, changes, links: base.links }))
    }

    /// The base from which the state differs least.
    fn nearest(&self, tree: &StateTree, current: StateView) -> Result<Base, NoState> {
        let at = match &current {
            StateView::AsOf(at) => *at,
            StateView::Own(_) => Offset::ZERO,
        };
        let room = Base { base: StateBase::At(at), links: 0, view: current };
        let (mut best, mut least) = (None, usize::MAX);
        for base in self.bases(tree)? {
            let differences = self.distance(&base.view, tree)?;
            if differences < least {
                (best, least) = (Some(base), differences);
            }
            if differences == 0 {
                break;
            }
        }
        let Some(best) = best else { return Ok(room) };
        let most = limits::STATE_LINKS as u64;
        if least > 0 || best.links > most {
            let from_room = self.distance(&room.view, tree)?;
            if from_room <= least || best.links > most.max(from_room as u64) {
                return Ok(room);
            }
        }
        Ok(best)
    }

    fn distance(&self, view: &StateView, tree: &StateTree) -> Result<usize, NoState> {
        let mut differences = 0;
        let looked = self.branches.tree(view)?.differences(tree, |_, _, _| differences += 1);
        self.branches.work(looked / 8)?;
        Ok(differences)
    }

    fn bases(&self, tree: &StateTree) -> Result<Vec<Base>, NoState> {
        let mut bases = Vec::new();
        let known = self.branches.memo().described.get(&tree.hash()).cloned();
        let known = known.filter(|event_id| *event_id != self.event.event_id);
        if let Some(known) = known
            && let Some(known) = self.branches.find(&known)?
            && let Some(Some(_)) = self.branches.noted(&known)
            && let Some(view) = self.branches.before(&known)?
        {
            bases.push(self.before(&known, view));
        }
        for event_id in &self.event.prev_events {
            let Some(previous) = self.branches.find(event_id)? else { continue };
            let view = match self.branches.after(&previous)? {
                Some(StateView::AsOf(at)) => {
                    let (base, view) = (StateBase::At(at), StateView::AsOf(at));
                    bases.push(Base { base, links: 0, view });
                    continue;
                }
                Some(view) => view,
                None => continue,
            };
            let is_state =
                previous.state_key.is_some() && !ruma::state_res::Event::rejected(&*previous);
            bases.push(if is_state {
                let links = self.links(&previous) + 1;
                Base { base: StateBase::After(previous.offset), links, view }
            } else {
                self.before(&previous, view)
            });
        }
        Ok(bases)
    }

    /// The state before an event. If that is recorded as the same as another one, it is that one: a
    /// message may expire, and nothing should depend on it unnecessarily.
    fn before(&self, event: &StoredEvent, view: StateView) -> Base {
        match self.branches.noted(event) {
            Some(Some(StateBefore { base, changes, links }))
                if changes.is_empty() && !matches!(base, StateBase::Part(_)) =>
            {
                Base { base: *base, links: *links, view }
            }
            _ => Base { base: StateBase::Before(event.offset), links: self.links(event) + 1, view },
        }
    }

    fn links(&self, event: &StoredEvent) -> u64 {
        self.branches.noted(event).flatten().map_or(0, |noted| noted.links)
    }
}
