//! Validations in progress: someone claims an email address or a phone number, and is sent a token
//! there.
//!
//! An expired validation is forgotten with the next record about any validation whose time is after
//! its expiry. A `log.erase` that names its records forgets it, too. The records that requested a
//! forgotten validation, which contain the address, are superseded.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_base::limits;
use logcabin_record::{
    Offset,
    command::TokenHash,
    threepid::{
        Purpose, Threepid, ValidationComplete, ValidationMiss, ValidationRequest, ValidationSent,
        ValidationUse,
    },
};

/// A validation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validation {
    /// Its session id.
    pub sid: String,
    pub purpose: Purpose,
    pub threepid: Threepid,
    pub client_secret: TokenHash,
    /// The hash of what completes it; `None` if nothing does.
    pub token: Option<TokenHash>,
    /// The client's count of the messages that it requested.
    pub send_attempt: u64,
    /// Whether the last of them was handed over for delivery.
    pub sent: bool,
    /// How many messages were sent.
    pub messages: u64,
    /// How often a wrong token was submitted.
    pub misses: u64,
    /// When it was completed, in milliseconds since the Unix epoch.
    pub validated_ms: Option<u64>,
    /// When it expires, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
    /// The records that requested it, in order.
    pub records: Vec<Offset>,
}

impl Validation {
    /// Whether a token completes it; `token` is its hash together with the client's secret.
    pub fn is_completed_by(&self, token: &TokenHash) -> bool {
        self.misses < limits::VALIDATION_MISSES && self.token.as_ref() == Some(token)
    }
}

/// The stored hash of a token. Hashed alone, a short token could be found by trying all.
pub fn token_hash(client_secret: &str, token: &str) -> TokenHash {
    TokenHash::of(&format!("{client_secret}\n{token}"))
}

/// All validations.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Validations(#[serde(with = "serializers::locked")] RwLock<Inner>);

/// What distinguishes requests: the client's secret is part of it.
type Key = (Threepid, Purpose, TokenHash);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    validations: BTreeMap<String, Validation>,
    by_key: BTreeMap<Key, String>,
    by_end: BTreeSet<(u64, String)>,
}

impl Validations {
    /// The validation with this id, unless it has expired at `now_ms`.
    pub fn get(&self, sid: &str, now_ms: u64) -> Option<Validation> {
        let inner = self.0.read();
        inner.validations.get(sid).filter(|found| found.expires_ms > now_ms).cloned()
    }

    /// The validation that this client has requested before, unless it has expired at `now_ms`.
    pub fn find(
        &self,
        threepid: &Threepid,
        purpose: Purpose,
        client_secret: &TokenHash,
        now_ms: u64,
    ) -> Option<Validation> {
        let inner = self.0.read();
        let sid = inner.by_key.get(&(threepid.clone(), purpose, *client_secret))?;
        inner.validations.get(sid).filter(|found| found.expires_ms > now_ms).cloned()
    }

    /// How many messages an address has been or is being sent by the validations that have not
    /// expired at `now_ms`, and when the first of these expires.
    pub fn messages(&self, threepid: &Threepid, now_ms: u64) -> (u64, Option<u64>) {
        let inner = self.0.read();
        let first = (threepid.clone(), Purpose::Register, TokenHash([0; 32]));
        let (mut messages, mut first_end) = (0, None::<u64>);
        for (_, sid) in inner.by_key.range(first..).take_while(|((of, ..), _)| of == threepid) {
            let found = inner.validations.get(sid).filter(|found| found.expires_ms > now_ms);
            let Some(found) = found else { continue };
            messages += found.messages + u64::from(!found.sent);
            first_end = Some(first_end.map_or(found.expires_ms, |end| end.min(found.expires_ms)));
        }
        (messages, first_end)
    }

    /// The number of validations.
    pub fn len(&self) -> usize {
        self.0.read().validations.len()
    }

    /// Whether there are no validations.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Up to `limit` records of validations that have expired at `now_ms` and are not forgotten
    /// yet.
    pub fn ended(&self, now_ms: u64, limit: usize) -> Vec<Offset> {
        let inner = self.0.read();
        let ended = inner.by_end.iter().take_while(|(end_ms, _)| *end_ms <= now_ms);
        let ended = ended.filter_map(|(_, sid)| inner.validations.get(sid));
        ended.flat_map(|ended| ended.records.iter().copied()).take(limit).collect()
    }

    /// The records of the validations that `is_meant` selects, if they are not forgotten yet.
    pub fn records_of(&self, is_meant: impl Fn(&Validation) -> bool) -> Vec<Offset> {
        let inner = self.0.read();
        let meant = inner.validations.values().filter(|found| is_meant(found));
        meant.flat_map(|found| found.records.iter().copied()).collect()
    }

    /// Returns the superseded records, as do the following methods.
    pub(super) fn request(
        &self,
        offset: Offset,
        time_ms: u64,
        body: ValidationRequest,
    ) -> Vec<Offset> {
        let mut inner = self.0.write();
        let mut gone = inner.forget_ended(time_ms);
        let before = inner.remove(&body.sid);
        while inner.validations.len() >= limits::VALIDATIONS {
            let Some((_, first)) = inner.by_end.first().cloned() else { break };
            gone.extend(inner.remove(&first).into_iter().flat_map(|first| first.records));
        }
        let ValidationRequest { sid, purpose, threepid, client_secret, token, .. } = body;
        inner.by_key.insert((threepid.clone(), purpose, client_secret), sid.clone());
        inner.by_end.insert((body.expires_ms, sid.clone()));
        let validation = Validation {
            sid: sid.clone(),
            purpose,
            threepid,
            client_secret,
            token,
            send_attempt: body.send_attempt,
            sent: false,
            messages: before.as_ref().map_or(0, |before| before.messages),
            misses: before.as_ref().map_or(0, |before| before.misses),
            // Requesting another message does not lose a validation that was completed.
            validated_ms: before.as_ref().and_then(|before| before.validated_ms),
            expires_ms: body.expires_ms,
            records: before.into_iter().flat_map(|before| before.records).chain([offset]).collect(),
        };
        inner.validations.insert(sid, validation);
        gone
    }

    pub(super) fn sent(&self, time_ms: u64, body: &ValidationSent) -> Vec<Offset> {
        self.change(time_ms, &body.sid, |validation| {
            validation.messages += 1;
            validation.sent |= validation.send_attempt == body.send_attempt;
        })
    }

    pub(super) fn miss(&self, time_ms: u64, body: &ValidationMiss) -> Vec<Offset> {
        self.change(time_ms, &body.sid, |validation| validation.misses += 1)
    }

    pub(super) fn complete(&self, time_ms: u64, body: &ValidationComplete) -> Vec<Offset> {
        self.change(time_ms, &body.sid, |validation| {
            validation.validated_ms.get_or_insert(body.validated_ms);
        })
    }

    pub(super) fn used(&self, time_ms: u64, body: &ValidationUse) -> Vec<Offset> {
        let mut inner = self.0.write();
        let mut gone = inner.forget_ended(time_ms);
        gone.extend(inner.remove(&body.sid).into_iter().flat_map(|used| used.records));
        gone
    }

    /// Forgets the validations that these records requested. Returns all records that requested
    /// them.
    pub(super) fn forget(&self, is_one: impl Fn(Offset) -> bool) -> Vec<Offset> {
        let mut inner = self.0.write();
        let found = inner.validations.values();
        let found = found.filter(|found| found.records.iter().any(|record| is_one(*record)));
        let sids: Vec<_> = found.map(|found| found.sid.clone()).collect();
        let forgotten = sids.iter().filter_map(|sid| inner.remove(sid));
        forgotten.flat_map(|forgotten| forgotten.records).collect()
    }

    fn change(&self, time_ms: u64, sid: &str, change: impl FnOnce(&mut Validation)) -> Vec<Offset> {
        let mut inner = self.0.write();
        let gone = inner.forget_ended(time_ms);
        if let Some(validation) = inner.validations.get_mut(sid) {
            change(validation);
        }
        gone
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}

impl Inner {
    fn remove(&mut self, sid: &str) -> Option<Validation> {
        let removed = self.validations.remove(sid)?;
        self.by_end.remove(&(removed.expires_ms, removed.sid.clone()));
        let key = (removed.threepid.clone(), removed.purpose, removed.client_secret);
        if self.by_key.get(&key) == Some(&removed.sid) {
            self.by_key.remove(&key);
        }
        Some(removed)
    }

    fn forget_ended(&mut self, time_ms: u64) -> Vec<Offset> {
        let mut gone = Vec::new();
        while let Some((end_ms, sid)) = self.by_end.first().cloned() {
            if end_ms > time_ms {
                break;
            }
            gone.extend(self.remove(&sid).into_iter().flat_map(|ended| ended.records));
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_record::threepid::Medium;

    fn request(sid: &str, address: &str, send_attempt: u64, expires_ms: u64) -> ValidationRequest {
        ValidationRequest {
            sid: sid.to_owned(),
            purpose: Purpose::Add,
            threepid: Threepid { medium: Medium::Email, address: address.to_owned() },
            client_secret: TokenHash::of(sid),
            token: Some(token_hash(sid, "token")),
            send_attempt,
            expires_ms,
        }
    }

    #[test]
    fn expired_validations_are_forgotten_with_the_next_record() {
        let validations = Validations::default();
        validations.request(Offset::new(1), 0, request("a", "a@x.org", 1, 100));
        validations.request(Offset::new(1), 0, request("b", "a@x.org", 1, 200));
        assert!(validations.get("a", 99).is_some());
        assert!(validations.get("a", 100).is_none());
        assert_eq!(validations.len(), 2);
        assert_eq!(validations.ended(150, 9), [Offset::new(1)]);
        let gone = validations.miss(150, &ValidationMiss { sid: "b".to_owned() });
        assert_eq!(gone, [Offset::new(1)]);
        assert_eq!(validations.len(), 1);
        let inner = validations.0.read();
        assert_eq!((inner.by_key.len(), inner.by_end.len()), (1, 1));
    }

    #[test]
    fn another_message_keeps_what_was_validated_and_counts() {
        let validations = Validations::default();
        let sent = |send_attempt| ValidationSent { sid: "a".to_owned(), send_attempt };
        let threepid = request("a", "a@x.org", 1, 100).threepid;
        validations.request(Offset::new(1), 0, request("a", "a@x.org", 1, 100));
        assert_eq!(validations.messages(&threepid, 1), (1, Some(100)));
        validations.sent(1, &sent(1));
        assert_eq!(validations.messages(&threepid, 1), (1, Some(100)));
        let complete = ValidationComplete { sid: "a".to_owned(), validated_ms: 7 };
        validations.complete(2, &complete);
        validations.request(Offset::new(1), 3, request("a", "a@x.org", 2, 200));
        // That of the first message, late: the second is still to come.
        validations.sent(3, &sent(1));
        let found = validations.get("a", 150).unwrap();
        assert_eq!((found.validated_ms, found.sent, found.messages), (Some(7), false, 2));
        let used = ValidationUse { sid: "a".to_owned() };
        validations.used(4, &used);
        assert!(validations.is_empty() && validations.0.read().by_key.is_empty());
    }

    #[test]
    fn there_are_never_more_than_the_limit() {
        let validations = Validations::default();
        for number in 0..limits::VALIDATIONS as u64 + 2 {
            validations.request(
                Offset::new(1),
                0,
                request(&number.to_string(), "a@x.org", 1, 1000 + number),
            );
        }
        assert_eq!(validations.len(), limits::VALIDATIONS);
        assert!(validations.get("0", 1).is_none() && validations.get("2", 1).is_some());
    }

    #[test]
    fn too_many_wrong_tokens_invalidate_the_correct_one() {
        let validations = Validations::default();
        validations.request(Offset::new(1), 0, request("a", "a@x.org", 1, 100));
        let right = token_hash("a", "token");
        for _ in 0..limits::VALIDATION_MISSES {
            assert!(validations.get("a", 1).unwrap().is_completed_by(&right));
            validations.miss(1, &ValidationMiss { sid: "a".to_owned() });
        }
        assert!(!validations.get("a", 1).unwrap().is_completed_by(&right));
    }
}
