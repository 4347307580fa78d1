//! Which events of a room relate to which: for each parent its children, and the threads by their
//! newest reply (client-server API, "Forming relationships between events").
//!
//! A relation is what the child's content said when it was sent. A child that was redacted is still
//! here, for those who look as of an earlier offset; the room leaves it out for all others.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{limits, record::Offset};

/// The `rel_type` of a reply in a thread.
pub const THREAD: &str = "m.thread";
/// The `rel_type` of an edit.
pub const REPLACE: &str = "m.replace";
/// The `rel_type` of a reference.
pub const REFERENCE: &str = "m.reference";
/// The `rel_type` of a reaction.
pub const ANNOTATION: &str = "m.annotation";

/// What an event's content says it relates to.
#[derive(Clone, Debug, Deserialize)]
pub struct RelatesTo<'a> {
    /// How it relates, for example `m.thread`.
    #[serde(borrow)]
    pub rel_type: Cow<'a, str>,
    /// The parent.
    #[serde(borrow)]
    pub event_id: Cow<'a, str>,
    /// For an annotation: which, as JSON.
    #[serde(borrow, default)]
    pub key: Option<&'a RawValue>,
}

impl<'a> RelatesTo<'a> {
    /// The relation in an event's content; `None` if there is none, or nothing that is one.
    #[must_use]
    pub fn of(content: &'a RawValue) -> Option<Self> {
        #[derive(Deserialize)]
        struct Content<'a> {
            #[serde(rename = "m.relates_to", borrow)]
            relates_to: RelatesTo<'a>,
        }
        // Stored events are canonical JSON, in which the name has this one form. Most events relate to
        // nothing, and are not parsed.
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
    /// When it was sent by its server's clock, in milliseconds since the Unix epoch.
    pub ts: u64,
    /// How it relates.
    pub rel_type: Arc<str>,
    /// Its type.
    pub event_type: Arc<str>,
    /// Who sent it.
    pub sender: Arc<str>,
}

/// A relation on its way into a room.
#[derive(Clone, Debug)]
pub(super) struct NewRelation {
    /// Where the parent may be. The room takes the one that is its own.
    pub(super) parents: Vec<Offset>,
    pub(super) rel_type: String,
    pub(super) event_type: String,
    pub(super) sender: String,
    pub(super) ts: u64,
}

/// The relations of one room.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Relations {
    /// By parent, its children, oldest first.
    children: BTreeMap<Offset, Vec<Entry>>,
    /// The newest reply of each thread, redacted or not → the thread's root.
    threads: BTreeMap<Offset, Offset>,
    words: Words,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Entry {
    offset: Offset,
    ts: u64,
    rel_type: u32,
    event_type: u32,
    sender: u32,
}

/// Texts that recur, by number.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "Texts")]
struct Words {
    texts: Vec<Arc<str>>,
    #[serde(skip)]
    numbers: HashMap<Arc<str>, u32>,
}

/// [`Words`] in order, from which the numbers follow.
#[derive(Deserialize)]
struct Texts(Vec<Arc<str>>);

impl From<Texts> for Words {
    fn from(Texts(texts): Texts) -> Self {
        let numbers =
            texts.iter().zip(0..).map(|(text, number)| (Arc::clone(text), number)).collect();
        Self { texts, numbers }
    }
}

impl Words {
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
    pub(super) fn add(&mut self, offset: Offset, parent: Offset, new: &NewRelation) {
        let entry = Entry {
            offset,
            ts: new.ts,
            rel_type: self.words.number(&new.rel_type),
            event_type: self.words.number(&new.event_type),
            sender: self.words.number(&new.sender),
        };
        let children = self.children.entry(parent).or_default();
        if new.rel_type == THREAD {
            let before = children.iter().rfind(|child| child.rel_type == entry.rel_type);
            if let Some(before) = before {
                self.threads.remove(&before.offset);
            }
            self.threads.insert(offset, parent);
        }
        children.push(entry);
    }

    /// Forgets these events, as parents and as children.
    pub(super) fn forget(&mut self, gone: &BTreeSet<Offset>) {
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
    }

    pub(super) fn has_children(&self, parent: Offset) -> bool {
        self.children.contains_key(&parent)
    }

    /// The children of `parent` up to and with `at`, of this `rel_type` if one is given, oldest first.
    pub(super) fn children<'a>(
        &'a self,
        parent: Offset,
        rel_type: Option<&str>,
        at: Offset,
    ) -> impl Iterator<Item = Child> + use<'a> {
        let wanted = rel_type.map(|rel_type| self.words.numbers.get(rel_type).copied());
        let children = self.children.get(&parent).map(Vec::as_slice).unwrap_or_default();
        children
            .iter()
            .take_while(move |entry| entry.offset <= at)
            .filter(move |entry| wanted.is_none_or(|wanted| wanted == Some(entry.rel_type)))
            .map(|entry| self.child(entry))
    }

    /// Up to `limit` threads whose newest reply, redacted or not, is before `before`: that reply and
    /// the root, newest first.
    pub(super) fn threads(&self, before: Offset, limit: usize) -> Vec<(Offset, Offset)> {
        let threads = self.threads.range(..before).rev().take(limit);
        threads.map(|(reply, root)| (*reply, *root)).collect()
    }

    fn child(&self, entry: &Entry) -> Child {
        Child {
            offset: entry.offset,
            ts: entry.ts,
            rel_type: self.words.text(entry.rel_type),
            event_type: self.words.text(entry.event_type),
            sender: self.words.text(entry.sender),
        }
    }

    /// Adds to `digest` what has not been redacted: a replay after the content of a redacted event was
    /// erased does not find its relation any more.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    #[test]
    fn content_that_is_not_a_relation_is_none() {
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
    fn a_thread_stands_where_its_newest_reply_is() {
        let mut relations = Relations::default();
        let mut add = |offset, parent, rel_type: &str| {
            let new = NewRelation {
                parents: Vec::new(),
                rel_type: rel_type.to_owned(),
                event_type: "m.room.message".to_owned(),
                sender: "@a:b".to_owned(),
                ts: offset,
            };
            relations.add(Offset::new(offset), Offset::new(parent), &new);
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
        let children = |rel_type, at| -> Vec<u64> {
            let found = relations.children(Offset::new(1), rel_type, Offset::new(at));
            found.map(|child| child.offset.get()).collect()
        };
        assert_eq!(children(None, 99), [10, 12, 13]);
        assert_eq!(children(None, 12), [10, 12]);
        assert_eq!(children(Some(THREAD), 99), [10, 13]);
        assert_eq!(children(Some("never seen"), 99), [0; 0]);

        relations.forget(&[2, 13].map(Offset::new).into());
        let found = relations.threads(Offset::new(99), 9).into_iter();
        let threads: Vec<_> = found.map(|(reply, root)| (reply.get(), root.get())).collect();
        assert_eq!(threads, [(10, 1)]);
        assert!(!relations.has_children(Offset::new(2)));
        let found = relations.children(Offset::new(1), None, Offset::new(99));
        let left: Vec<_> = found.map(|child| child.offset.get()).collect();
        assert_eq!(left, [10, 12]);
    }
}
