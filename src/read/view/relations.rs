//! Pages of related events: the children of an event, and the threads of a room.

use std::collections::{BTreeSet, BinaryHeap};

use ruma::EventId;

use super::{Page, View, filter::EventFilter, form::RoomFormatter, shown_bytes};
use crate::events::{ClientEvent, EventForm, EventRef};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::{RelatesTo, Room};

/// The requested related events.
#[derive(Clone, Copy, Debug, Default)]
pub struct RelationQuery<'a> {
    /// The relation type.
    pub rel_type: Option<&'a str>,
    pub event_type: Option<&'a str>,
    /// The depth of relations: 1 for the event's own children.
    pub depth: usize,
}

/// The range of a page: `Backward` goes from an offset (inclusive) back to another (exclusive),
/// `Forward` from one (exclusive) to another (inclusive).
#[derive(Clone, Copy, Debug)]
pub enum PageRange {
    Backward { from: Offset, after: Offset },
    Forward { after: Offset, to: Offset },
}

/// Some of a room's threads, by newest reply first.
#[derive(Debug, Default)]
pub struct Threads {
    pub roots: Vec<EventRef>,
    /// The beginning of the next page; `None` if this is the last.
    pub next: Option<Offset>,
    /// The state for the next page.
    pub walk: ThreadsWalk,
}

/// The requested threads.
#[derive(Clone, Copy, Debug)]
pub struct ThreadQuery {
    /// As of this offset.
    pub as_of: Offset,
    /// With a newest reply before this one.
    pub before: Offset,
    /// Only threads in which the user participates.
    pub participated: bool,
}

/// The position of a walk through a room's threads.
#[derive(Clone, Debug)]
pub struct ThreadsWalk {
    /// Threads with a newest reply from here on have been examined.
    position: Offset,
    /// Of these, the threads that are sorted further back, each with its newest reply and its root.
    waiting: BinaryHeap<(Offset, Offset)>,
}

impl Default for ThreadsWalk {
    fn default() -> Self {
        Self { position: Offset::MAX, waiting: BinaryHeap::new() }
    }
}

impl ThreadsWalk {
    /// Its approximate size in memory, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.waiting.capacity() * size_of::<(Offset, Offset)>() + 64) as u64
    }
}

impl View<'_> {
    /// Up to `limit` events that relate to the one at `parent`, without those of users whom the
    /// viewer ignores.
    pub fn relations(
        &self,
        room: &Room,
        parent: Offset,
        wanted: RelationQuery<'_>,
        stretch: PageRange,
        limit: usize,
    ) -> Result<Page, ReadError> {
        let mut filter = EventFilter::without_senders(self.ignored()?.users().iter().cloned());
        if let Some(event_type) = wanted.event_type {
            filter = filter.of_type(event_type);
        }
        if wanted.depth == 1 {
            let next = |(after, to), backward, count| {
                let (rel_type, at) = (wanted.rel_type, self.at());
                room.page_of_children(parent, rel_type, at, (after, to), backward, count)
            };
            let is_there = |event: &EventRef| {
                Ok(wanted.rel_type.is_some()
                    || room.redaction_of(event.offset, self.at()).is_none())
            };
            return self.stretch(room, stretch, limit, &filter, next, is_there);
        }
        if let Some(found) = self.related(room, parent, wanted) {
            let found: Vec<Offset> = found.into_iter().collect();
            let next = |(after, to), backward, count| {
                let up_to = |offset: Offset| found.partition_point(|event| *event <= offset);
                let part = found.get(up_to(after)..up_to(to)).unwrap_or_default().iter().copied();
                if backward { part.rev().take(count).collect() } else { part.take(count).collect() }
            };
            return self.stretch(room, stretch, limit, &filter, next, |_| Ok(true));
        }
        let next = |(after, to), backward, count| {
            if backward {
                room.events_backward(to, after, count)
            } else {
                room.events_forward(after, to, count)
            }
        };
        let is_related = |event: &EventRef| self.descends(room, event, parent, wanted);
        self.stretch(room, stretch, limit, &filter, next, is_related)
    }

    /// A page of a range, where `next` returns up to a number of elements after one offset, up to
    /// and including another, from its end if `backward`.
    fn stretch(
        &self,
        room: &Room,
        stretch: PageRange,
        limit: usize,
        filter: &EventFilter,
        next: impl Fn((Offset, Offset), bool, usize) -> Vec<Offset>,
        wanted: impl Fn(&EventRef) -> Result<bool, ReadError>,
    ) -> Result<Page, ReadError> {
        match stretch {
            PageRange::Backward { from, after } => {
                let next = |position, count| next((after, position), true, count);
                let from = from.min(self.at());
                self.page(room, from, limit.into(), filter, next, Offset::prev, wanted)
            }
            PageRange::Forward { after, to } => {
                let to = to.min(self.at());
                let next = |position, count| next((position, to), false, count);
                self.page(room, after, limit.into(), filter, next, |offset| offset, wanted)
            }
        }
    }

    /// The events that relate to the one at `parent`, directly or indirectly; `None` if there are
    /// too many.
    fn related(
        &self,
        room: &Room,
        parent: Offset,
        wanted: RelationQuery<'_>,
    ) -> Option<BTreeSet<Offset>> {
        let mut found = BTreeSet::new();
        let mut parents = vec![parent];
        let mut left = limits::RELATED_EVENTS;
        for _ in 0..wanted.depth {
            let mut children = Vec::new();
            for parent in parents.drain(..).filter(|parent| room.has_children(*parent)) {
                for child in room.children(parent, self.at(), left + 1) {
                    left = left.checked_sub(1)?;
                    children.push(child.offset);
                    // Events of another type may have matching children.
                    if wanted.rel_type.is_none_or(|rel_type| *child.rel_type == *rel_type) {
                        found.insert(child.offset);
                    }
                }
            }
            parents = children;
        }
        Some(found)
    }

    /// Whether `event` relates to the one at `parent`, directly or indirectly.
    fn descends(
        &self,
        room: &Room,
        event: &EventRef,
        parent: Offset,
        wanted: RelationQuery<'_>,
    ) -> Result<bool, ReadError> {
        let mut event = EventRef::clone(event);
        for depth in 0..wanted.depth {
            if room.redaction_of(event.offset, self.at()).is_some() {
                return Ok(false);
            }
            let Some(relation) = RelatesTo::of(&event.content) else { return Ok(false) };
            if depth == 0 && wanted.rel_type.is_some_and(|rel_type| relation.rel_type != rel_type) {
                return Ok(false);
            }
            let Ok(of) = <&EventId>::try_from(&*relation.event_id) else { return Ok(false) };
            let of = self.events.find(&self.state, of)?;
            let of = of.filter(|of| of.room_id == room.id && of.offset < event.offset);
            let Some(of) = of else { return Ok(false) };
            if of.offset == parent {
                return Ok(true);
            }
            event = of;
        }
        Ok(false)
    }

    /// Up to `limit` of the threads that the room had as of `as_of` whose newest reply then was
    /// before `before`; with `participated`, only those in which the user participates. Replies
    /// after `as_of` move no thread, so pages as of one offset have no gaps. Redactions apply as of
    /// the view, whatever `as_of` a client names: a thread whose newest reply is redacted between
    /// two pages moves back, and may be on both.
    ///
    /// `walk` is where the previous page ended. Without it, earlier threads are examined again, if
    /// there are not too many. A page has fewer than `limit` threads if many had to be examined, or
    /// if they are large.
    pub fn threads(
        &self,
        room: &Room,
        wanted: ThreadQuery,
        limit: usize,
        walk: Option<&ThreadsWalk>,
    ) -> Result<Threads, ReadError> {
        let ThreadQuery { as_of, before, participated } = wanted;
        let sight = RoomFormatter::new(self, room);
        let stretches: Vec<_> =
            sight.stretches()?.iter().map(|(after, to)| (*after, *to.min(&as_of))).collect();
        let sought = sight.sought(&stretches)?;
        let me = self.user_id();
        let mut threads = Threads::default();
        // A thread's newest reply may not count (it is newer than `as_of`, redacted, or hidden from
        // the user). The thread is then sorted further back. So a thread is returned once all
        // threads that could be sorted before it have been examined.
        let mut walk = walk.cloned().unwrap_or_default();
        let (mut looks, mut passed, mut bytes) = (0, 0, 0);
        loop {
            let chunk = room.threads(walk.position, limit);
            let exhausted = chunk.len() < limit;
            for (newest, root) in chunk {
                walk.position = newest;
                if newest < before {
                    looks += 1
                } else {
                    passed += 1
                }
                if let Some(newest) = sight.newest_reply(root, None, &sought)? {
                    walk.waiting.push((newest.offset, root));
                }
            }
            while let Some(&(newest, offset)) = walk.waiting.peek()
                && (newest >= walk.position || exhausted)
            {
                if newest < before
                    && let Some(root) = self.events.get(offset)?
                    // An event that relates to another one is not the root of a thread.
                    && RelatesTo::of(&root.content).is_none()
                    && sight.visibility().admits(self, &root)?
                    && (!participated
                        || root.sender == me
                        || sight.newest_reply(offset, Some(me), &sought)?.is_some())
                {
                    if threads.roots.len() == limit || bytes >= limits::PAGE_BYTES {
                        threads.walk = walk;
                        return Ok(threads);
                    }
                    // The newest reply is bundled with it.
                    let reply = self.events.get(newest)?;
                    bytes += shown_bytes(&root) + reply.map_or(0, |reply| shown_bytes(&reply));
                    threads.roots.push(root);
                    threads.next = Some(newest);
                }
                walk.waiting.pop();
            }
            if exhausted {
                threads.next = None;
                return Ok(threads);
            }
            if looks >= limits::THREADS_LOOKED_AT {
                threads.next = Some(walk.position);
                threads.walk = walk;
                return Ok(threads);
            }
            if passed >= limits::THREADS_PASSED && walk.position > before {
                // They have been returned, except those that are sorted further back.
                walk.position = before;
            }
        }
    }

    /// The roots of threads in the client format; without content if the viewer ignores the sender.
    pub fn thread_roots(
        &self,
        room: &Room,
        roots: &[EventRef],
        form: &EventForm,
    ) -> Result<Vec<ClientEvent>, ReadError> {
        let sight = RoomFormatter::new(self, room);
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
