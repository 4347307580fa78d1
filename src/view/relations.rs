//! Pages of events that relate to others: the children of an event, and the threads of a room.

use std::collections::{BTreeSet, BinaryHeap};

use super::{Page, View, filter::EventFilter, form::Sight};
use crate::{
    events::{ClientEvent, EventForm, EventRef},
    log::ReadError,
    record::Offset,
    state::{RelatesTo, Room, relations::THREAD},
};

/// Which of the events that relate to an event are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// Those that relate in this way.
    pub rel_type: Option<&'a str>,
    /// Those of this type.
    pub event_type: Option<&'a str>,
    /// Over how many relations: 1 for the event's own children.
    pub depth: usize,
}

/// The beginning and end of a page: `Backward` goes from an offset (included) back to one that is not
/// included, `Forward` from after an offset up to and with another.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "said above")]
pub enum Stretch {
    Backward { from: Offset, after: Offset },
    Forward { after: Offset, to: Offset },
}

/// Some of a room's threads, the one with the newest reply first.
#[derive(Debug, Default)]
pub struct Threads {
    /// The roots.
    pub roots: Vec<EventRef>,
    /// Where the next page begins; `None` if this is the last.
    pub next: Option<Offset>,
}

impl View<'_> {
    /// Up to `limit` events that relate to the one at `parent`, without those of users whom the viewer
    /// ignores.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn relations(
        &self,
        room: &Room,
        parent: Offset,
        wanted: Wanted<'_>,
        stretch: Stretch,
        limit: usize,
    ) -> Result<Page, ReadError> {
        let found: Vec<Offset> = self.related(room, parent, wanted).into_iter().collect();
        let filter = EventFilter::without_senders(self.ignored()?.users().iter().cloned());
        let up_to = |offset: Offset| found.partition_point(|event| *event <= offset);
        match stretch {
            Stretch::Backward { from, after } => {
                let next = |position, count: usize| {
                    let events = found[..up_to(position)].iter().rev().copied();
                    events.take_while(|event| *event > after).take(count).collect()
                };
                self.page(room, from.min(self.at()), limit.into(), &filter, next, Offset::prev)
            }
            Stretch::Forward { after, to } => {
                let next = |position, count: usize| {
                    let events = found[up_to(position)..].iter().copied();
                    events.take_while(|event| *event <= to).take(count).collect()
                };
                self.page(room, after, limit.into(), &filter, next, |offset| offset)
            }
        }
    }

    /// The events that relate to the one at `parent`, directly or through others.
    fn related(&self, room: &Room, parent: Offset, wanted: Wanted<'_>) -> BTreeSet<Offset> {
        let mut found = BTreeSet::new();
        let mut parents = vec![parent];
        for _ in 0..wanted.depth {
            let mut children = Vec::new();
            for parent in parents.drain(..).filter(|parent| room.has_children(*parent)) {
                // Further on, what is not wanted may have children that are.
                let rel_type = wanted.rel_type.filter(|_| wanted.depth == 1);
                for child in room.children(parent, rel_type, self.at()) {
                    children.push(child.offset);
                    if wanted.rel_type.is_none_or(|rel_type| *child.rel_type == *rel_type)
                        && wanted.event_type.is_none_or(|is| *child.event_type == *is)
                    {
                        found.insert(child.offset);
                    }
                }
            }
            parents = children;
        }
        found
    }

    /// Up to `limit` of the threads that the room had as of `as_of` whose newest reply then was before
    /// `before`; with `participated`, those that the user takes part in. Replies that came after
    /// `as_of` move no thread, so that pages as of one offset have no gap. Redactions count as of the view,
    /// whichever `as_of` a client names: a thread whose newest reply is redacted between two pages moves back,
    /// and may be on both.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn threads(
        &self,
        room: &Room,
        as_of: Offset,
        before: Offset,
        limit: usize,
        participated: bool,
    ) -> Result<Threads, ReadError> {
        let sight = Sight::new(self, room);
        let me = self.user_id();
        let mut threads = Threads::default();
        // A thread's newest reply may not count (it is newer than `as_of`, redacted, or hidden from
        // the user), and then the thread stands further back. So a thread is taken once all that
        // could stand before it have been looked at.
        let mut waiting: BinaryHeap<(Offset, Offset, bool)> = BinaryHeap::new();
        let mut position = Offset::MAX;
        loop {
            let chunk = room.threads(position, limit);
            let exhausted = chunk.len() < limit;
            for (newest, root) in chunk {
                position = newest;
                let mut replies = room.children(root, Some(THREAD), self.at());
                replies.retain(|reply| reply.offset <= as_of);
                let replies = sight.counting(replies)?;
                if let Some(newest) = replies.last() {
                    let replied = replies.iter().any(|reply| *reply.sender == *me.as_str());
                    waiting.push((newest.offset, root, replied));
                }
            }
            while let Some(&(newest, root, replied)) = waiting.peek()
                && (newest >= position || exhausted)
            {
                waiting.pop();
                if newest >= before {
                    continue;
                }
                let Some(root) = self.events.get(root)? else { continue };
                if (participated && !replied && root.sender != me)
                    // What relates to another event itself is not the root of a thread.
                    || RelatesTo::of(&root.content).is_some()
                    || !sight.visibility().admits(self, &root)?
                {
                    continue;
                }
                if threads.roots.len() == limit {
                    return Ok(threads);
                }
                threads.roots.push(root);
                threads.next = Some(newest);
            }
            if exhausted {
                threads.next = None;
                return Ok(threads);
            }
        }
    }

    /// The roots of threads in the form that clients get: of a user whom the viewer ignores, without
    /// the content.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn thread_roots(
        &self,
        room: &Room,
        roots: &[EventRef],
        form: &EventForm,
    ) -> Result<Vec<ClientEvent>, ReadError> {
        let sight = Sight::new(self, room);
        let ignored = sight.ignored()?;
        let form = |root: &EventRef| {
            if ignored.contains(&root.sender) {
                sight.form_without_content(root, form)
            } else {
                sight.form(root, form)
            }
        };
        roots.iter().map(form).collect()
    }
}
