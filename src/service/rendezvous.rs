//! Rendezvous sessions, with which one device signs another in: each leaves a short text for the
//! other, which replaces the text before it (MSC4388, and its former version MSC4108). They last
//! minutes, so they are kept in memory only.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use parking_lot::Mutex;

use logcabin_base::{
    clock::{millis, random_token},
    limits,
    tag::Tag,
};

/// The open sessions.
#[derive(Debug, Default)]
pub struct RendezvousSessions {
    inner: Mutex<Inner>,
    tag: Tag,
}

#[derive(Debug, Default)]
struct Inner {
    meetings: HashMap<String, RendezvousSession>,
    /// When each session expires, and its id, in order: all have the same lifetime.
    ends: VecDeque<(u64, String)>,
}

/// The content of a session.
#[derive(Clone, Debug)]
pub struct RendezvousSession {
    /// The last text.
    pub data: Bytes,
    /// The number of writes, from 1.
    pub writing: u64,
    /// When it was written, in milliseconds since the Unix epoch.
    pub written_ms: u64,
    /// When the session expires, in milliseconds since the Unix epoch.
    pub ends_ms: u64,
    /// The results of writes with a transaction id.
    outcomes: HashMap<String, Result<u64, WriteError>>,
}

/// Why a write failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The session does not exist, or has expired.
    NoMeeting,
    /// The writer has not seen the current text.
    Unseen,
    /// The session has reached its limit of writes.
    TooOften,
}

impl RendezvousSessions {
    /// No sessions yet; the ids of those to come have this mark.
    pub fn tagged(tag: Tag) -> Self {
        Self { inner: Mutex::default(), tag }
    }

    /// Opens a session. Returns its id and content. If there are too many, the oldest is closed.
    pub fn begin(&self, data: Bytes, now_ms: u64) -> (String, RendezvousSession) {
        let id = self.tag.mark(random_token());
        let lasts_ms = millis(limits::RENDEZVOUS);
        let ends_ms = now_ms.saturating_add(lasts_ms);
        let outcomes = HashMap::new();
        let meeting = RendezvousSession { data, writing: 1, written_ms: now_ms, ends_ms, outcomes };
        let mut inner = self.inner.lock();
        let is_over = |inner: &Inner| {
            inner.meetings.len() >= limits::RENDEZVOUS_SESSIONS
                || inner.ends.front().is_some_and(|(ends_ms, _)| *ends_ms <= now_ms)
        };
        // A session that was closed stays in the queue until its expiry.
        while is_over(&inner) || inner.ends.len() >= 2 * limits::RENDEZVOUS_SESSIONS {
            let Some((_, id)) = inner.ends.pop_front() else { break };
            inner.meetings.remove(&id);
        }
        inner.ends.push_back((ends_ms, id.clone()));
        inner.meetings.insert(id.clone(), meeting.clone());
        (id, meeting)
    }

    /// The content.
    pub fn look(&self, id: &str, now_ms: u64) -> Option<RendezvousSession> {
        let inner = self.inner.lock();
        inner.meetings.get(id).filter(|meeting| now_ms < meeting.ends_ms).cloned()
    }

    /// Writes to a session, if the writer has `seen` the current text: the number of that write. A
    /// transaction is carried out once, and has the same result each time.
    pub fn write(
        &self,
        id: &str,
        transaction: Option<&str>,
        seen: Option<u64>,
        data: Bytes,
        now_ms: u64,
    ) -> Result<RendezvousSession, WriteError> {
        let mut inner = self.inner.lock();
        let meeting = inner.meetings.get_mut(id).filter(|meeting| now_ms < meeting.ends_ms);
        let meeting = meeting.ok_or(WriteError::NoMeeting)?;
        if let Some(outcome) = transaction.and_then(|id| meeting.outcomes.get(id)) {
            return outcome.map(|writing| RendezvousSession { writing, ..meeting.clone() });
        }
        if meeting.writing >= limits::RENDEZVOUS_WRITES
            || meeting.outcomes.len() as u64 >= limits::RENDEZVOUS_WRITES
        {
            return Err(WriteError::TooOften);
        }
        let outcome = if seen == Some(meeting.writing) {
            meeting.writing += 1;
            (meeting.data, meeting.written_ms) = (data, now_ms);
            Ok(meeting.writing)
        } else {
            Err(WriteError::Unseen)
        };
        if let Some(id) = transaction {
            meeting.outcomes.insert(id.to_owned(), outcome);
        }
        outcome.map(|_| meeting.clone())
    }

    /// Closes a session. Returns whether there was one.
    pub fn end(&self, id: &str, now_ms: u64) -> bool {
        let ended = self.inner.lock().meetings.remove(id);
        ended.is_some_and(|meeting| now_ms < meeting.ends_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: u64 = 1000;

    #[test]
    fn of_two_who_write_at_once_one_is_told_to_look_again() {
        let meetings = RendezvousSessions::default();
        let (id, begun) = meetings.begin("a".into(), 0);
        let write = |data: &'static str, seen| meetings.write(&id, None, seen, data.into(), SOON);
        assert_eq!(write("b", Some(begun.writing)).map(|now| now.writing), Ok(2));
        assert_eq!(write("c", Some(begun.writing)).map(|now| now.writing), Err(WriteError::Unseen));
        assert_eq!(meetings.look(&id, SOON).map(|now| now.data), Some("b".into()));
    }

    #[test]
    fn a_transaction_has_one_outcome() {
        let meetings = RendezvousSessions::default();
        let (id, _) = meetings.begin("a".into(), 0);
        let write = |transaction, seen| {
            let written = meetings.write(&id, Some(transaction), Some(seen), "b".into(), SOON);
            written.map(|now| now.writing)
        };
        assert_eq!(write("one", 1), Ok(2));
        assert_eq!(write("two", 1), Err(WriteError::Unseen));
        assert_eq!(write("three", 2), Ok(3));
        assert_eq!(write("one", 1), Ok(2));
        assert_eq!(write("two", 3), Err(WriteError::Unseen));
        assert_eq!(meetings.look(&id, SOON).map(|now| now.writing), Some(3));
    }

    #[test]
    fn meetings_end_by_themselves_and_are_not_too_many() {
        let meetings = RendezvousSessions::default();
        let (first, begun) = meetings.begin("a".into(), 0);
        assert!(meetings.look(&first, begun.ends_ms - 1).is_some());
        assert!(meetings.look(&first, begun.ends_ms).is_none());
        for n in 0..limits::RENDEZVOUS_SESSIONS as u64 {
            let (id, _) = meetings.begin("b".into(), n);
            // Sessions that are closed early are forgotten, too.
            assert!(n % 2 == 0 || meetings.end(&id, n));
        }
        for _ in 0..3 * limits::RENDEZVOUS_SESSIONS {
            let (id, _) = meetings.begin("c".into(), SOON);
            assert!(meetings.end(&id, SOON));
        }
        let inner = meetings.inner.lock();
        assert!(inner.meetings.len() <= limits::RENDEZVOUS_SESSIONS);
        assert!(inner.ends.len() <= 2 * limits::RENDEZVOUS_SESSIONS);
    }

    #[test]
    fn nobody_writes_without_end() {
        let meetings = RendezvousSessions::default();
        let (id, _) = meetings.begin("a".into(), 0);
        let write =
            |seen: u64| meetings.write(&id, Some(&seen.to_string()), Some(seen), "b".into(), SOON);
        let outcomes: Vec<_> = (1..=limits::RENDEZVOUS_WRITES).map(|n| write(n).is_ok()).collect();
        assert!(outcomes[..outcomes.len() - 1].iter().all(|written| *written));
        let after = write(limits::RENDEZVOUS_WRITES).map(|now| now.writing);
        assert_eq!(after, Err(WriteError::TooOften));
    }
}
