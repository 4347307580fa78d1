//! Where two devices meet, of which one signs the other in: each leaves a short text for the other,
//! by turns, which replaces the one before (MSC4388, and its former version MSC4108). Nothing of it
//! is worth keeping over a restart: a meeting takes minutes, and people begin it anew.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::base::{clock::random_token, limits};

/// The meetings under way.
#[derive(Debug, Default)]
pub(crate) struct Meetings(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    meetings: HashMap<String, Meeting>,
    /// When each ends, and its id: the next to end first. All last as long.
    ends: VecDeque<(u64, String)>,
}

/// What is there at a meeting.
#[derive(Clone, Debug)]
pub(crate) struct Meeting {
    /// What was left there last.
    pub(crate) data: Bytes,
    /// Which writing it is, the first being 1.
    pub(crate) writing: u64,
    /// When that was, in milliseconds since the Unix epoch.
    pub(crate) written_ms: u64,
    /// When the meeting ends, likewise.
    pub(crate) ends_ms: u64,
    /// What came of the writings that have a transaction id.
    outcomes: HashMap<String, Result<u64, WriteError>>,
}

/// Why something was not left at a meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteError {
    /// There is no such meeting (any more).
    NoMeeting,
    /// Something was written that the writer has not seen.
    Unseen,
    /// More was written than two devices have to say to each other.
    TooOften,
}

impl Meetings {
    /// A new meeting: its id, and what is there. When there are too many, the one that ends first
    /// is over.
    pub(crate) fn begin(&self, data: Bytes, now_ms: u64) -> (String, Meeting) {
        let id = random_token();
        let lasts_ms = u64::try_from(limits::RENDEZVOUS.as_millis()).unwrap_or(u64::MAX);
        let ends_ms = now_ms.saturating_add(lasts_ms);
        let outcomes = HashMap::new();
        let meeting = Meeting { data, writing: 1, written_ms: now_ms, ends_ms, outcomes };
        let mut inner = self.0.lock();
        let is_over = |inner: &Inner| {
            inner.meetings.len() >= limits::RENDEZVOUS_SESSIONS
                || inner.ends.front().is_some_and(|(ends_ms, _)| *ends_ms <= now_ms)
        };
        // One that was ended by its people is in the queue until it would have ended.
        while is_over(&inner) || inner.ends.len() >= 2 * limits::RENDEZVOUS_SESSIONS {
            let Some((_, id)) = inner.ends.pop_front() else { break };
            inner.meetings.remove(&id);
        }
        inner.ends.push_back((ends_ms, id.clone()));
        inner.meetings.insert(id.clone(), meeting.clone());
        (id, meeting)
    }

    /// What is there.
    pub(crate) fn look(&self, id: &str, now_ms: u64) -> Option<Meeting> {
        let inner = self.0.lock();
        inner.meetings.get(id).filter(|meeting| now_ms < meeting.ends_ms).cloned()
    }

    /// Leaves something there, if the writer has `seen` what is there: the number of that writing.
    /// One transaction is carried out once, and has the same outcome each time.
    pub(crate) fn write(
        &self,
        id: &str,
        transaction: Option<&str>,
        seen: Option<u64>,
        data: Bytes,
        now_ms: u64,
    ) -> Result<Meeting, WriteError> {
        let mut inner = self.0.lock();
        let meeting = inner.meetings.get_mut(id).filter(|meeting| now_ms < meeting.ends_ms);
        let meeting = meeting.ok_or(WriteError::NoMeeting)?;
        if let Some(outcome) = transaction.and_then(|id| meeting.outcomes.get(id)) {
            return outcome.map(|writing| Meeting { writing, ..meeting.clone() });
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

    /// Ends a meeting. Returns whether there was one.
    pub(crate) fn end(&self, id: &str, now_ms: u64) -> bool {
        let ended = self.0.lock().meetings.remove(id);
        ended.is_some_and(|meeting| now_ms < meeting.ends_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: u64 = 1000;

    #[test]
    fn of_two_who_write_at_once_one_is_told_to_look_again() {
        let meetings = Meetings::default();
        let (id, begun) = meetings.begin("a".into(), 0);
        let write = |data: &'static str, seen| meetings.write(&id, None, seen, data.into(), SOON);
        assert_eq!(write("b", Some(begun.writing)).map(|now| now.writing), Ok(2));
        assert_eq!(write("c", Some(begun.writing)).map(|now| now.writing), Err(WriteError::Unseen));
        assert_eq!(meetings.look(&id, SOON).map(|now| now.data), Some("b".into()));
    }

    #[test]
    fn a_transaction_has_one_outcome() {
        let meetings = Meetings::default();
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
        let meetings = Meetings::default();
        let (first, begun) = meetings.begin("a".into(), 0);
        assert!(meetings.look(&first, begun.ends_ms - 1).is_some());
        assert!(meetings.look(&first, begun.ends_ms).is_none());
        for n in 0..limits::RENDEZVOUS_SESSIONS as u64 {
            let (id, _) = meetings.begin("b".into(), n);
            // Those that are ended early are forgotten, too.
            assert!(n % 2 == 0 || meetings.end(&id, n));
        }
        for _ in 0..3 * limits::RENDEZVOUS_SESSIONS {
            let (id, _) = meetings.begin("c".into(), SOON);
            assert!(meetings.end(&id, SOON));
        }
        let inner = meetings.0.lock();
        assert!(inner.meetings.len() <= limits::RENDEZVOUS_SESSIONS);
        assert!(inner.ends.len() <= 2 * limits::RENDEZVOUS_SESSIONS);
    }

    #[test]
    fn nobody_writes_without_end() {
        let meetings = Meetings::default();
        let (id, _) = meetings.begin("a".into(), 0);
        let write =
            |seen: u64| meetings.write(&id, Some(&seen.to_string()), Some(seen), "b".into(), SOON);
        let outcomes: Vec<_> = (1..=limits::RENDEZVOUS_WRITES).map(|n| write(n).is_ok()).collect();
        assert!(outcomes[..outcomes.len() - 1].iter().all(|written| *written));
        let after = write(limits::RENDEZVOUS_WRITES).map(|now| now.writing);
        assert_eq!(after, Err(WriteError::TooOften));
    }
}
