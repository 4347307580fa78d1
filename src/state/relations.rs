//! The relations between events of a room: the children of each parent, and the threads by newest
//! reply (client-server API, "Forming relationships between events").
//!
//! A relation is as in the child's content when it was sent. Redacted children stay here for
//! readers at earlier offsets; the room leaves them out for all others.

mod index;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use ruma::{OwnedUserId, UserId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use self::index::ChildQuery;
use self::index::{Children, Index, MANY};
use logcabin_base::{limits, work};
use logcabin_record::Offset;

/// The `rel_type` of a reply in a thread.
pub const THREAD: &str = "m.thread";
/// The `rel_type` of an edit.
pub const REPLACE: &str = "m.replace";
/// The `rel_type` of a reference.
pub const REFERENCE: &str = "m.reference";
/// The `rel_type` of a reaction.
pub const ANNOTATION: &str = "m.annotation";

/// The relation in an event's content.
#[derive(Clone, Debug, Deserialize)]
pub struct RelatesTo<'a> {
    /// The relation type, for example `m.thread`.
    #[serde(borrow)]
    pub rel_type: Cow<'a, str>,
    /// The parent.
    #[serde(borrow)]
    pub event_id: Cow<'a, str>,
    /// For an annotation: its key, as JSON.
    #[serde(borrow, default)]
    pub key: Option<&'a RawValue>,
}

impl<'a> RelatesTo<'a> {
    /// The relation in an event's content; `None` if there is none or it is invalid.
    pub fn of(content: &'a RawValue) -> Option<Self> {
        #[derive(Deserialize)]
        struct Content<'a> {
            #[serde(rename = "m.relates_to", borrow)]
            relates_to: RelatesTo<'a>,
        }
        // Stored events are canonical JSON, in which the name has only this form. Most events have
        // no relation, and are not parsed.
        if !content.get().contains("\"m.relates_to\"") {
            return None;
        }
        let content: Content<'_> = serde_json::from_str(content.get()).ok()?;
        let relates_to = content.relates_to;
        let fits = !relates_to.rel_type.is_empty()
            && relates_to.rel_type.len() <= limits::EVENT_FIELD_BYTES;
        fits.then_some(relates_to)
    }
}

/// An event that relates to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// The event.
    pub offset: Offset,
    /// Its timestamp by its server's clock, in milliseconds since the Unix epoch.
    pub ts: u64,
    /// The relation type.
    pub rel_type: Arc<str>,
    pub event_type: Arc<str>,
    pub sender: Arc<str>,
}

/// A relation that is about to be added to a room.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct NewRelation {
    /// Candidate offsets of the parent. The room uses the one that is its own.
    pub(super) parents: Vec<Offset>,
    pub(super) rel_type: String,
    pub(super) event_type: String,
    pub(super) sender: String,
    pub(super) ts: u64,
}

/// The relations of one room.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Relations {
    /// The children of each parent, oldest first.
    children: BTreeMap<Offset, Vec<Entry>>,
    /// The newest reply of each thread, redacted or not → the thread's root.
    threads: BTreeMap<Offset, Offset>,
    words: InternedTexts,
    #[serde(skip)]
    index: Index,
}

/// Redacted event → the redaction.
type Redactions = BTreeMap<Offset, Offset>;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Entry {
    offset: Offset,
    ts: u64,
    rel_type: u32,
    event_type: u32,
    sender: u32,
}

/// Interned texts.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "Texts")]
struct InternedTexts {
    texts: Vec<Arc<str>>,
    #[serde(skip)]
    numbers: HashMap<Arc<str>, u32>,
}

/// The texts of [`InternedTexts`] in order, from which their numbers follow.
#[derive(Deserialize)]
struct Texts(Vec<Arc<str>>);

impl From<Texts> for InternedTexts {
    fn from(Texts(texts): Texts) -> Self {
        let numbers =
            texts.iter().zip(0..).map(|(text, number)| (Arc::clone(text), number)).collect();
        Self { texts, numbers }
    }
}

impl InternedTexts {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        // A room cannot have 2^32 of them: each takes an event.
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        let text: Arc<str> = text.into();
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }

    fn text(&self, number: u32) -> Arc<str> {
        self.texts.get(number as usize).map_or_else(|| "".into(), Arc::clone)
    }
}

impl Relations {
    /// Adds a relation; `redactions` are those of the room so far.
    pub(super) fn add(
        &mut self,
        offset: Offset,
        parent: Offset,
        new: &NewRelation,
        redactions: &Redactions,
    ) {
        let entry = Entry {
            offset,
            ts: new.ts,
            rel_type: self.words.number(&new.rel_type),
            event_type: self.words.number(&new.event_type),
            sender: self.words.number(&new.sender),
        };
        let children = self.children.entry(parent).or_default();
        if children.last().is_some_and(|last| last.offset > offset) {
            // Where others came in while its place was being found.
            let at = children.partition_point(|other| other.offset < offset);
            children.insert(at, entry);
            let of_type = |child: &&Entry| child.rel_type == entry.rel_type;
            let mut newest = children.iter().rev().filter(of_type).map(|child| child.offset);
            if new.rel_type == THREAD && newest.next() == Some(offset) {
                newest.next().map(|before| self.threads.remove(&before));
                self.threads.insert(offset, parent);
            }
            if self.index.has(parent) {
                self.index(redactions);
            }
            return;
        }
        if new.rel_type == THREAD {
            let before = if self.index.has(parent) {
                self.index.newest(parent, entry.rel_type)
            } else {
                let before = children.iter().rfind(|child| child.rel_type == entry.rel_type);
                before.map(|before| before.offset)
            };
            if let Some(before) = before {
                self.threads.remove(&before);
            }
            self.threads.insert(offset, parent);
        }
        children.push(entry);
        if self.index.has(parent) {
            let Entry { rel_type, sender, .. } = entry;
            self.index.add(parent, offset, rel_type, sender, redactions.get(&offset).copied());
        } else if children.len() >= MANY {
            index(&mut self.index, parent, children, redactions);
        }
    }

    /// Records that an event was redacted for the first time.
    pub(super) fn redact(&mut self, event: Offset, redaction: Offset) {
        self.index.redact(event, redaction);
    }

    /// Builds the index.
    pub(super) fn index(&mut self, redactions: &Redactions) {
        self.index = Index::default();
        for (parent, children) in &self.children {
            if children.len() >= MANY {
                index(&mut self.index, *parent, children, redactions);
            }
        }
    }

    /// Removes these events, as parents and as children; `redactions` are those of the remaining
    /// events.
    pub(super) fn forget(&mut self, gone: &BTreeSet<Offset>, redactions: &Redactions) {
        if self.children.is_empty() {
            return;
        }
        self.children.retain(|parent, children| {
            children.retain(|child| !gone.contains(&child.offset));
            !gone.contains(parent) && !children.is_empty()
        });
        let thread = self.words.numbers.get(THREAD).copied();
        let newest = |children: &Vec<Entry>| {
            let reply = children.iter().rfind(|child| Some(child.rel_type) == thread);
            reply.map(|reply| reply.offset)
        };
        let threads = self.children.iter().filter_map(|(root, of)| Some((newest(of)?, *root)));
        self.threads = threads.collect();
        self.index(redactions);
    }

    pub(super) fn has_children(&self, parent: Offset) -> bool {
        self.children.contains_key(&parent)
    }

    /// The children of `parent` up to and including `at`, redacted or not, oldest first.
    pub(super) fn children<'a>(
        &'a self,
        parent: Offset,
        at: Offset,
    ) -> impl DoubleEndedIterator<Item = Child> + use<'a> {
        let children = self.of(parent);
        let until = children.partition_point(|entry| entry.offset <= at);
        children[..until].iter().map(|entry| self.child(entry))
    }

    fn of(&self, parent: Offset) -> &[Entry] {
        self.children.get(&parent).map(Vec::as_slice).unwrap_or_default()
    }

    /// The children of `parent` by relation type, of one sender or of all, that were not redacted
    /// as of `at`.
    fn kin(
        &self,
        parent: Offset,
        rel_type: u32,
        sender: Option<u32>,
        at: Offset,
        redactions: &Redactions,
    ) -> Children<'_> {
        if self.index.has(parent) {
            return self.index.kin(parent, rel_type, sender, at);
        }
        work::looks(self.of(parent).len());
        let wanted = self.of(parent).iter().filter(|child| {
            child.rel_type == rel_type
                && sender.is_none_or(|sender| sender == child.sender)
                && redactions.get(&child.offset).is_none_or(|redaction| *redaction > at)
        });
        Children::few(wanted.map(|child| child.offset))
    }

    fn one(&self, parent: Offset, child: Offset) -> Option<Child> {
        let children = self.of(parent);
        let at = children.binary_search_by_key(&child, |entry| entry.offset).ok()?;
        Some(self.child(&children[at]))
    }

    /// The number of visible children of `parent` with this relation type. The cost does not depend
    /// on their number, except that a few are examined one by one.
    pub(super) fn count(
        &self,
        parent: Offset,
        rel_type: &str,
        sought: &ChildQuery<'_>,
        redactions: &Redactions,
    ) -> usize {
        let Some(rel_type) = self.words.numbers.get(rel_type).copied() else { return 0 };
        let all = self.kin(parent, rel_type, None, sought.at, redactions);
        if !self.index.has(parent) {
            let children = sought.back(&all).filter_map(|child| self.one(parent, child));
            return children.filter(|child| !sought.leaves_out(child)).count();
        }
        let without =
            sought.without.iter().filter_map(|user| self.words.numbers.get(user.as_str()));
        let left_out = without.map(|sender| {
            sought.count(&self.kin(parent, rel_type, Some(*sender), sought.at, redactions))
        });
        sought.count(&all).saturating_sub(left_out.sum())
    }

    /// Up to `limit` visible children of `parent` with this relation type, newest first.
    pub(super) fn newest(
        &self,
        parent: Offset,
        rel_type: &str,
        sought: &ChildQuery<'_>,
        limit: usize,
        redactions: &Redactions,
    ) -> Vec<Child> {
        let Some(rel_type) = self.words.numbers.get(rel_type).copied() else { return Vec::new() };
        let all = self.kin(parent, rel_type, None, sought.at, redactions);
        let mut found = Vec::new();
        let mut looked_at = 0;
        for child in sought.back(&all) {
            if found.len() == limit {
                return found;
            }
            // Ignored users may have sent nearly all of them.
            looked_at += 1;
            if looked_at > limit + limits::SCANNED_CHILDREN {
                return self.newest_by_sender(parent, rel_type, sought, limit, redactions);
            }
            found.extend(self.one(parent, child).filter(|child| !sought.leaves_out(child)));
        }
        found
    }

    fn newest_by_sender(
        &self,
        parent: Offset,
        rel_type: u32,
        sought: &ChildQuery<'_>,
        limit: usize,
        redactions: &Redactions,
    ) -> Vec<Child> {
        let mut found: Vec<Child> = Vec::new();
        for sender in self.index.senders(parent, rel_type) {
            work::look();
            let kin = self.kin(parent, rel_type, Some(sender), sought.at, redactions);
            let newest = sought.back(&kin).take(limit);
            let newest = newest.filter_map(|child| self.one(parent, child));
            found.extend(newest.take_while(|child| !sought.leaves_out(child)));
        }
        found.sort_unstable_by_key(|child| std::cmp::Reverse(child.offset));
        found.truncate(limit);
        found
    }

    /// Up to `limit` visible children of `parent` with this relation type by `sender`, newest
    /// first, even if `sought` ignores the sender.
    pub(super) fn newest_of(
        &self,
        parent: Offset,
        rel_type: &str,
        sender: &UserId,
        sought: &ChildQuery<'_>,
        limit: usize,
        redactions: &Redactions,
    ) -> Vec<Child> {
        let number = |text: &str| self.words.numbers.get(text).copied();
        let (Some(rel_type), Some(sender)) = (number(rel_type), number(sender.as_str())) else {
            return Vec::new();
        };
        let kin = self.kin(parent, rel_type, Some(sender), sought.at, redactions);
        let children = sought.back(&kin).take(limit);
        children.filter_map(|child| self.one(parent, child)).collect()
    }

    /// Up to `count` children of `parent` after `after`, up to and including `to`: with this
    /// relation type, or, without one, of any type and redacted or not. They are the oldest, oldest
    /// first, or, `backward`, the newest, newest first.
    #[expect(clippy::too_many_arguments, reason = "each says something else")]
    pub(super) fn page(
        &self,
        parent: Offset,
        rel_type: Option<&str>,
        at: Offset,
        (after, to): (Offset, Offset),
        backward: bool,
        count: usize,
        redactions: &Redactions,
    ) -> Vec<Offset> {
        let Some(rel_type) = rel_type else {
            let children = self.of(parent);
            let up_to = |offset| children.partition_point(|entry| entry.offset <= offset);
            let part = children.get(up_to(after)..up_to(to)).unwrap_or_default().iter();
            let part = part.map(|entry| entry.offset);
            return if backward {
                part.rev().take(count).collect()
            } else {
                part.take(count).collect()
            };
        };
        let Some(rel_type) = self.words.numbers.get(rel_type).copied() else { return Vec::new() };
        let kin = self.kin(parent, rel_type, None, at, redactions);
        if backward {
            kin.back(after, to).take(count).collect()
        } else {
            kin.forward(after, to).take(count).collect()
        }
    }

    /// Whether a child of `parent` that was not redacted as of `at` has one of these relation types
    /// and one of these senders, if given. A limited number of children is examined.
    pub(super) fn is_related(
        &self,
        parent: Offset,
        rel_types: Option<&HashSet<String>>,
        senders: Option<&HashSet<OwnedUserId>>,
        at: Offset,
        redactions: &Redactions,
    ) -> bool {
        let numbers = |texts: &mut dyn Iterator<Item = &str>| -> Vec<u32> {
            texts.filter_map(|text| self.words.numbers.get(text).copied()).collect()
        };
        let rel_types = rel_types.map(|of| numbers(&mut of.iter().map(String::as_str)));
        let senders = senders.map(|of| numbers(&mut of.iter().map(|user| user.as_str())));
        if !self.index.has(parent) {
            return self.of(parent).iter().any(|child| {
                work::look();
                child.offset <= at
                    && redactions.get(&child.offset).is_none_or(|redaction| *redaction > at)
                    && rel_types.as_ref().is_none_or(|of| of.contains(&child.rel_type))
                    && senders.as_ref().is_none_or(|of| of.contains(&child.sender))
            });
        }
        let any = |kin: Children<'_>| kin.count(Offset::ZERO, at) > 0;
        let by = |rel_type: u32| match &senders {
            None => any(self.kin(parent, rel_type, None, at, redactions)),
            Some(senders) => senders
                .iter()
                .any(|sender| any(self.kin(parent, rel_type, Some(*sender), at, redactions))),
        };
        match rel_types {
            Some(rel_types) => rel_types.into_iter().any(by),
            None => self.index.rel_types(parent).take(limits::SCANNED_RELATIONS).any(by),
        }
    }

    /// Up to `limit` threads whose newest reply, redacted or not, is before `before`: that reply
    /// and the root, newest first.
    pub(super) fn threads(&self, before: Offset, limit: usize) -> Vec<(Offset, Offset)> {
        work::looks(limit);
        let threads = self.threads.range(..before).rev().take(limit);
        threads.map(|(reply, root)| (*reply, *root)).collect()
    }

    fn child(&self, entry: &Entry) -> Child {
        work::look();
        Child {
            offset: entry.offset,
            ts: entry.ts,
            rel_type: self.words.text(entry.rel_type),
            event_type: self.words.text(entry.event_type),
            sender: self.words.text(entry.sender),
        }
    }

    /// Adds everything that has not been redacted to `digest`: after the content of a redacted
    /// event was erased, a replay does not find its relation.
    pub(super) fn digest(
        &self,
        digest: &mut super::digest::Digest,
        is_redacted: impl Fn(Offset) -> bool,
    ) {
        for (parent, children) in &self.children {
            for entry in children.iter().filter(|entry| !is_redacted(entry.offset)) {
                let child = self.child(entry);
                let words = [&*child.rel_type, &*child.event_type, &*child.sender];
                digest.add(&(parent, child.offset, child.ts, words));
            }
        }
    }
}

/// Adds the children of one parent to the index.
fn index(index: &mut Index, parent: Offset, children: &[Entry], redactions: &Redactions) {
    for Entry { offset, rel_type, sender, .. } in children {
        index.add(parent, *offset, *rel_type, *sender, redactions.get(offset).copied());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::btree_map::Entry;

    use proptest::prelude::*;

    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    #[test]
    fn invalid_relations_are_ignored() {
        let long =
            format!(r#"{{"m.relates_to":{{"rel_type":"{}","event_id":"$a"}}}}"#, "x".repeat(256));
        for content in [
            "{}",
            r#"{"body":"m.relates_to"}"#,
            r#"{"m.relates_to":null}"#,
            r#"{"m.relates_to":[]}"#,
            r#"{"m.relates_to":"$a"}"#,
            r#"{"m.relates_to":{"m.in_reply_to":{"event_id":"$a"}}}"#,
            r#"{"m.relates_to":{"rel_type":"m.thread"}}"#,
            r#"{"m.relates_to":{"rel_type":3,"event_id":"$a"}}"#,
            r#"{"m.relates_to":{"rel_type":"m.thread","event_id":{}}}"#,
            r#"{"m.relates_to":{"rel_type":"","event_id":"$a"}}"#,
            &long,
        ] {
            assert!(RelatesTo::of(&raw(content)).is_none(), "{content}");
        }
        let content = raw(r#"{"m.relates_to":{"event_id":"$a\n","key":{"b":1},"rel_type":"x\t"}}"#);
        let found = RelatesTo::of(&content).unwrap();
        assert_eq!((&*found.rel_type, &*found.event_id), ("x\t", "$a\n"));
        assert_eq!(found.key.map(RawValue::get), Some(r#"{"b":1}"#));
    }

    #[test]
    fn threads_are_sorted_by_their_newest_reply() {
        let mut relations = Relations::default();
        let mut add = |offset, parent, rel_type: &str| {
            let new = NewRelation {
                parents: Vec::new(),
                rel_type: rel_type.to_owned(),
                event_type: "m.room.message".to_owned(),
                sender: "@a:b".to_owned(),
                ts: offset,
            };
            relations.add(Offset::new(offset), Offset::new(parent), &new, &BTreeMap::new());
        };
        add(10, 1, THREAD);
        add(11, 2, THREAD);
        add(12, 1, ANNOTATION);
        add(13, 1, THREAD);
        let threads = |before, limit| -> Vec<(u64, u64)> {
            let found = relations.threads(Offset::new(before), limit).into_iter();
            found.map(|(reply, root)| (reply.get(), root.get())).collect()
        };
        assert_eq!(threads(99, 9), [(13, 1), (11, 2)]);
        assert_eq!(threads(99, 1), [(13, 1)]);
        assert_eq!(threads(13, 9), [(11, 2)]);
        let children = |at| -> Vec<u64> {
            let found = relations.children(Offset::new(1), Offset::new(at));
            found.map(|child| child.offset.get()).collect()
        };
        assert_eq!(children(99), [10, 12, 13]);
        assert_eq!(children(12), [10, 12]);

        relations.forget(&[2, 13].map(Offset::new).into(), &BTreeMap::new());
        let found = relations.threads(Offset::new(99), 9).into_iter();
        let threads: Vec<_> = found.map(|(reply, root)| (reply.get(), root.get())).collect();
        assert_eq!(threads, [(10, 1)]);
        assert!(!relations.has_children(Offset::new(2)));
        let found = relations.children(Offset::new(1), Offset::new(99));
        let left: Vec<_> = found.map(|child| child.offset.get()).collect();
        assert_eq!(left, [10, 12]);
    }

    const REL_TYPES: [&str; 3] = [THREAD, REPLACE, "x"];

    fn user(number: usize) -> OwnedUserId {
        format!("@{number}:x").try_into().unwrap()
    }

    /// A step in a room with one parent.
    #[derive(Clone, Debug)]
    enum Step {
        Child {
            rel_type: usize,
            sender: usize,
        },
        /// Redacts one of the existing children.
        Redact(usize),
        Forget(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..REL_TYPES.len(), 0..4_usize)
                .prop_map(|(rel_type, sender)| Step::Child { rel_type, sender }),
            2 => any::<usize>().prop_map(Step::Redact),
            1 => any::<usize>().prop_map(Step::Forget),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// A few children are examined one by one; for many, the index is used. Both must agree
        /// with examining each child.
        #[test]
        fn many_children_give_the_same_answers_as_few(
            steps in prop::collection::vec(step(), 1..4 * MANY),
            cuts in prop::collection::vec(0..400_u64, 4),
            at in 0..400_u64,
            without in prop::collection::btree_set(0..4_usize, 0..3),
            limit in 0..20_usize,
        ) {
            let parent = Offset::new(1);
            let (mut relations, mut redactions) = (Relations::default(), BTreeMap::new());
            let mut children: Vec<(Offset, usize, usize)> = Vec::new();
            let mut offset = 10;
            for step in steps {
                offset += 1;
                match step {
                    Step::Child { rel_type, sender } => {
                        let new = NewRelation {
                            parents: Vec::new(),
                            rel_type: REL_TYPES[rel_type].to_owned(),
                            event_type: "t".to_owned(),
                            sender: user(sender).into(),
                            ts: offset,
                        };
                        relations.add(Offset::new(offset), parent, &new, &redactions);
                        children.push((Offset::new(offset), rel_type, sender));
                    }
                    Step::Redact(which) if !children.is_empty() => {
                        let (child, ..) = children[which % children.len()];
                        if let Entry::Vacant(entry) = redactions.entry(child) {
                            entry.insert(Offset::new(offset));
                            relations.redact(child, Offset::new(offset));
                        }
                    }
                    Step::Forget(which) if !children.is_empty() => {
                        let (child, ..) = children.remove(which % children.len());
                        redactions.remove(&child);
                        relations.forget(&BTreeSet::from([child]), &redactions);
                    }
                    _ => {}
                }
            }
            // As read from a snapshot.
            let bytes = postcard::to_stdvec(&relations).unwrap();
            let mut read: Relations = postcard::from_bytes(&bytes).unwrap();
            read.index(&redactions);

            let mut cuts: Vec<Offset> = cuts.into_iter().map(Offset::new).collect();
            cuts.sort_unstable();
            let stretches: Vec<_> = cuts.chunks(2).map(|cut| (cut[0], cut[1])).collect();
            let without: BTreeSet<_> = without.into_iter().map(user).collect();
            let at = Offset::new(at);
            let sought = ChildQuery { stretches: &stretches, without: &without, at };
            let is_there = |child: Offset| redactions.get(&child).is_none_or(|by| *by > at);
            let seen = |(child, _, sender): &(Offset, usize, usize), left_out: bool| {
                stretches.iter().any(|(after, to)| after < child && child <= to)
                    && is_there(*child)
                    && !(left_out && without.contains(&user(*sender)))
            };
            for relations in [&relations, &read] {
                for (number, rel_type) in REL_TYPES.into_iter().enumerate() {
                    let of: Vec<_> = children.iter().filter(|(_, of, _)| *of == number).collect();
                    let expected: Vec<Offset> =
                        of.iter().rev().filter(|c| seen(c, true)).map(|(child, ..)| *child).collect();
                    let count = relations.count(parent, rel_type, &sought, &redactions);
                    prop_assert_eq!(count, expected.len());
                    let newest = relations.newest(parent, rel_type, &sought, limit, &redactions);
                    let newest: Vec<_> = newest.iter().map(|child| child.offset).collect();
                    prop_assert_eq!(&newest, &expected[..limit.min(expected.len())]);
                    if relations.index.has(parent) {
                        let number = relations.words.numbers.get(rel_type).copied().unwrap_or(99);
                        let by_sender =
                            relations.newest_by_sender(parent, number, &sought, limit, &redactions);
                        // A sender whose children were all redacted is not asked for.
                        prop_assert!(by_sender.iter().all(|child| expected.contains(&child.offset)));
                        if redactions.values().all(|by| *by <= at) {
                            let found: Vec<_> = by_sender.iter().map(|child| child.offset).collect();
                            prop_assert_eq!(found, newest);
                        }
                    }
                    for sender in 0..4 {
                        let expected: Vec<_> = of.iter().rev().filter(|c| c.2 == sender && seen(c, false))
                            .map(|(child, ..)| *child).take(limit).collect();
                        let found =
                            relations.newest_of(parent, rel_type, &user(sender), &sought, limit, &redactions);
                        let found: Vec<_> = found.iter().map(|child| child.offset).collect();
                        prop_assert_eq!(found, expected);
                    }
                    for (after, to) in &stretches {
                        let within: Vec<Offset> = of.iter().map(|(child, ..)| *child)
                            .filter(|c| after < c && c <= to && is_there(*c)).collect();
                        let page = |backward| {
                            let stretch = (*after, *to);
                            relations.page(parent, Some(rel_type), at, stretch, backward, limit, &redactions)
                        };
                        let expected: Vec<_> = within.iter().copied().take(limit).collect();
                        prop_assert_eq!(page(false), expected);
                        let expected: Vec<_> = within.iter().rev().copied().take(limit).collect();
                        prop_assert_eq!(page(true), expected);
                    }
                    let rel_types = HashSet::from([rel_type.to_owned()]);
                    for sender in 0..4 {
                        let senders = HashSet::from([user(sender)]);
                        let is = |rel: Option<&HashSet<String>>, of: Option<&HashSet<OwnedUserId>>| {
                            relations.is_related(parent, rel, of, at, &redactions)
                        };
                        let expected = |rel: bool, by: bool| children.iter().any(|(child, r, s)| {
                            *child <= at && is_there(*child) && (!rel || *r == number) && (!by || *s == sender)
                        });
                        prop_assert_eq!(is(Some(&rel_types), None), expected(true, false));
                        prop_assert_eq!(is(None, Some(&senders)), expected(false, true));
                        prop_assert_eq!(is(Some(&rel_types), Some(&senders)), expected(true, true));
                    }
                }
            }
        }
    }
}
