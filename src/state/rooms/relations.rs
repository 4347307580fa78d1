//! Which events of a room relate to others, and which are redacted.

use std::collections::HashSet;

use ruma::{OwnedUserId, UserId};

use super::{Inner, Room};
use crate::relations::{Child, ChildQuery};
use logcabin_record::Offset;

impl Room {
    /// The offset of the redaction of the event at `event`, if it was redacted as of `at`.
    pub fn redaction_of(&self, event: Offset, at: Offset) -> Option<Offset> {
        self.inner.read().redactions.get(&event).copied().filter(|redaction| *redaction <= at)
    }

    /// Whether any event relates to the one at `parent`, or once did.
    pub fn has_children(&self, parent: Offset) -> bool {
        self.inner.read().relations.has_children(parent)
    }

    /// Up to `most` events that relate to the one at `parent` as of `at`, newest first, without
    /// redacted ones.
    pub fn children(&self, parent: Offset, at: Offset, most: usize) -> Vec<Child> {
        let inner = self.inner.read();
        let children = inner.relations.children(parent, at).rev();
        children.filter(|child| !inner.is_redacted(child.offset, at)).take(most).collect()
    }

    /// The number of visible events that relate to the one at `parent` in this way.
    pub fn count_children(&self, parent: Offset, rel_type: &str, sought: &ChildQuery<'_>) -> usize {
        let inner = self.inner.read();
        inner.relations.count(parent, rel_type, sought, &inner.redactions)
    }

    /// Up to `limit` visible events that relate to the one at `parent` in this way, newest first.
    pub fn newest_children(
        &self,
        parent: Offset,
        rel_type: &str,
        sought: &ChildQuery<'_>,
        limit: usize,
    ) -> Vec<Child> {
        let inner = self.inner.read();
        inner.relations.newest(parent, rel_type, sought, limit, &inner.redactions)
    }

    /// Like [`Room::newest_children`], only those by `sender`.
    pub fn newest_children_of(
        &self,
        parent: Offset,
        rel_type: &str,
        sender: &UserId,
        sought: &ChildQuery<'_>,
        limit: usize,
    ) -> Vec<Child> {
        let inner = self.inner.read();
        inner.relations.newest_of(parent, rel_type, sender, sought, limit, &inner.redactions)
    }

    /// Up to `count` events that relate to the one at `parent` as of `at`, after one offset, up to
    /// and including another: with this relation type, or, without one, of any type and redacted or
    /// not. They are the oldest, oldest first, or, `backward`, the newest, newest first.
    pub fn page_of_children(
        &self,
        parent: Offset,
        rel_type: Option<&str>,
        at: Offset,
        stretch: (Offset, Offset),
        backward: bool,
        count: usize,
    ) -> Vec<Offset> {
        let inner = self.inner.read();
        let redactions = &inner.redactions;
        inner.relations.page(parent, rel_type, at, stretch, backward, count, redactions)
    }

    /// Whether an event relates to the one at `parent` as of `at` with one of these relation types
    /// and by one of these senders, if given.
    pub fn is_related(
        &self,
        parent: Offset,
        rel_types: Option<&HashSet<String>>,
        senders: Option<&HashSet<OwnedUserId>>,
        at: Offset,
    ) -> bool {
        let inner = self.inner.read();
        inner.relations.is_related(parent, rel_types, senders, at, &inner.redactions)
    }

    /// Up to `limit` threads whose newest reply is before `before`, newest first: that reply and
    /// the root. The reply may have been redacted since.
    pub fn threads(&self, before: Offset, limit: usize) -> Vec<(Offset, Offset)> {
        self.inner.read().relations.threads(before, limit)
    }

    /// The events that were redacted after `since` up to and including `to`, as (redaction, event),
    /// in the order of the redactions.
    pub fn redacted_between(&self, since: Offset, to: Offset) -> Vec<(Offset, Offset)> {
        let inner = self.inner.read();
        let from = inner.redaction_log.partition_point(|(redaction, _)| *redaction <= since);
        let redactions = inner.redaction_log[from..].iter().copied();
        redactions.take_while(|(redaction, _)| *redaction <= to).collect()
    }
}

impl Inner {
    pub(super) fn is_redacted(&self, event: Offset, at: Offset) -> bool {
        self.redactions.get(&event).is_some_and(|redaction| *redaction <= at)
    }
}
