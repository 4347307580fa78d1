//! Many events at once: verifies their signatures on all processors, and records them in few
//! commits.

use std::{
    borrow::{Borrow, Cow},
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque, hash_map::RandomState},
    hash::BuildHasher as _,
};

use futures_util::{StreamExt as _, stream};
use ruma::{
    EventId, OwnedEventId, OwnedServerName, OwnedUserId, ServerName,
    room_version_rules::RoomVersionRules, signatures::PublicKeyMap,
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;
use tracing::debug;

use super::{
    pdu::{Pdu, PduError, Signer},
    receive::{PduReceiver, Verified, read},
};
use logcabin_base::{background, limits};
use logcabin_decide::federation::{OutlierOutcome, RecordOutliers};
use logcabin_outside::federation::{AnswerCharge, EventKeys, KeyError, Priority, Unreachable};
use logcabin_record::{Origin, event_format::has_chosen_ids};
use logcabin_state::Room;

/// What an event id takes in memory.
pub(super) const ID_BYTES: usize = 64;

/// An event of a batch.
pub(super) enum CheckedEvent {
    Known(OwnedEventId),
    /// It has valid signatures.
    Valid(Verified),
    /// The join of a user whose homeserver has given no keys.
    Unverified(OwnedUserId, OwnedEventId),
}

/// What an event is to lack, so that it is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lacking {
    /// It is not known.
    Record,
    /// It is not known, or as an outlier whose place in the room is not.
    Place,
}

/// The parts of an event that say whose keys are needed. It is as lenient as the verification.
#[derive(Deserialize)]
struct KeyRequirements<'a> {
    #[serde(borrow, rename = "type")]
    event_type: Cow<'a, str>,
    #[serde(borrow)]
    sender: Cow<'a, str>,
    #[serde(default, borrow)]
    state_key: Option<Cow<'a, str>>,
    origin_server_ts: u64,
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
    /// In rooms of versions 1 and 2, the id that was chosen for it.
    #[serde(default, borrow)]
    event_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    signatures: HashMap<Cow<'a, str>, &'a RawValue>,
}

impl KeyRequirements<'_> {
    /// The homeservers whose signatures it needs: the sender's, that of the user who authorised a
    /// restricted join, and, in room versions where servers choose the ids, that of the id.
    fn signers(&self, with_id: bool) -> Vec<OwnedServerName> {
        #[derive(Deserialize)]
        struct Content {
            join_authorised_via_users_server: OwnedUserId,
        }
        let content = self.content.filter(|_| self.event_type == "m.room.member");
        let content = content.and_then(|raw| serde_json::from_str::<Content>(raw.get()).ok());
        let authoriser = content.map(|content| content.join_authorised_via_users_server);
        let sender = OwnedUserId::try_from(&*self.sender).ok();
        let users = authoriser.iter().chain(&sender);
        let id = self.event_id.as_ref().filter(|_| with_id);
        let id = id.and_then(|id| <&EventId>::try_from(&**id).ok()?.server_name());
        users.map(|user_id| user_id.server_name()).chain(id).map(ToOwned::to_owned).collect()
    }

    /// The keys with which a homeserver has signed it.
    fn key_ids(&self, server: &ServerName) -> Vec<String> {
        let raw = self.signatures.get(server.as_str());
        let keys = raw.and_then(|raw| {
            serde_json::from_str::<HashMap<Cow<'_, str>, IgnoredAny>>(raw.get()).ok()
        });
        let ids = keys.into_iter().flat_map(HashMap::into_keys);
        ids.filter(|id| id.starts_with("ed25519:")).map(Cow::into_owned).collect()
    }

    /// Whether other events may depend on it: it is more than a user's own membership.
    fn has_weight(&self) -> bool {
        self.event_type != "m.room.member" || self.state_key.as_deref() != Some(&*self.sender)
    }
}

/// The keys that are needed of a homeserver.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needed {
    /// By id, each with the latest time at which it is said to have signed.
    keys: BTreeMap<String, u64>,
    /// Whether an event with weight needs one.
    has_weight: bool,
}

impl PduReceiver<'_> {
    /// Verifies events. Leaves out all but those that are valid and unknown.
    pub(super) async fn verify_all(
        &self,
        room: &Room,
        events: &[impl Borrow<RawValue> + Sync],
    ) -> Result<Vec<Verified>, PduError> {
        self.verify_lacking(room, events, Lacking::Record).await
    }

    /// Verifies events. Leaves out all but those that are valid and lack something.
    pub(super) async fn verify_lacking(
        &self,
        room: &Room,
        events: &[impl Borrow<RawValue> + Sync],
        lacking: Lacking,
    ) -> Result<Vec<Verified>, PduError> {
        let checked = self.check_all(room, events, lacking).await?;
        let valid = checked.into_iter().filter_map(|checked| match checked {
            CheckedEvent::Valid(event) => Some(event),
            CheckedEvent::Known(_) | CheckedEvent::Unverified(..) => None,
        });
        Ok(valid.collect())
    }

    /// Verifies events. Leaves out those that are invalid.
    ///
    /// # Errors
    /// When validity cannot be determined: the log cannot be read, or there is no time to fetch the
    /// keys for events on which others may depend.
    pub(super) async fn check_all<R: Borrow<RawValue> + Sync>(
        &self,
        room: &Room,
        events: &[R],
        lacking: Lacking,
    ) -> Result<Vec<CheckedEvent>, PduError> {
        let keys = self.keys_of(events, &room.rules).await?;
        let mut valid = Vec::with_capacity(events.len());
        let mut rest = events;
        while let Some((part, after)) = rest.split_at_checked(verified_at_once(rest))
            && !part.is_empty()
        {
            valid.extend(self.check_part(room, part, &keys, lacking).await?);
            rest = after;
        }
        Ok(valid)
    }

    async fn check_part<R: Borrow<RawValue> + Sync>(
        &self,
        room: &Room,
        part: &[R],
        keys: &HashMap<OwnedServerName, EventKeys>,
        lacking: Lacking,
    ) -> Result<Vec<CheckedEvent>, PduError> {
        let is_large = part.len() >= limits::VERIFIED_IN_PARALLEL;
        let turn = match is_large {
            true => Some(self.federation.verifying.lock().await),
            false => None,
        };
        let checked = background::at_length(|| match is_large {
            true => {
                background::in_parallel(part, |raw| self.check(room, raw.borrow(), keys, lacking))
            }
            false => part.iter().map(|raw| self.check(room, raw.borrow(), keys, lacking)).collect(),
        });
        drop(turn);
        let mut valid = Vec::with_capacity(part.len());
        for checked in checked {
            match checked {
                Ok(checked) => valid.push(checked),
                Err(error @ PduError::NotRecorded(_)) => return Err(error),
                Err(error) => {
                    debug!(%error, room_id = %room.id, "an event is not used");
                }
            }
        }
        Ok(valid)
    }

    fn check(
        &self,
        room: &Room,
        raw: &RawValue,
        keys: &HashMap<OwnedServerName, EventKeys>,
        lacking: Lacking,
    ) -> Result<CheckedEvent, PduError> {
        let pdu = Pdu::of_room(room, raw)?;
        if has_chosen_ids(&room.rules) {
            let (state, events) = (self.engine.state(), self.engine.events());
            let (of, text) = ((&*room.id, &room.rules), pdu.to_raw()?);
            if events.is_taken(&state, of, &pdu.event_id, &text).map_err(read)? {
                return Err(PduError::Taken);
            }
        }
        let is_known = match lacking {
            Lacking::Record => self.knows(room, &pdu.event_id)?,
            Lacking::Place => self.has_place(room, &pdu.event_id)?,
        };
        if is_known {
            return Ok(CheckedEvent::Known(pdu.event_id));
        }
        let mut valid = PublicKeyMap::new();
        for Signer { server, key_ids, ts_ms } in pdu.signers(&room.rules)? {
            let of = keys.get(&server).map(|keys| keys.valid(&key_ids, ts_ms));
            match of.filter(|of| !of.is_empty()) {
                Some(of) => drop(valid.insert(server.to_string(), of)),
                None => {
                    let has_keys = keys.get(&server).is_some_and(|keys| !keys.is_empty());
                    let own = pdu.own_join().filter(|user| user.server_name() == server);
                    return match own.filter(|_| !has_keys).map(ToOwned::to_owned) {
                        Some(user_id) => Ok(CheckedEvent::Unverified(user_id, pdu.event_id)),
                        None => Err(KeyError::NoKey(server, key_ids.join(", ")).into()),
                    };
                }
            }
        }
        Ok(CheckedEvent::Valid(self.verify_by(room, pdu, &valid)?))
    }

    /// Verifies very many events, and records each part of them as outliers once it is verified, so
    /// that few of them are in memory twice, and not at all once they are recorded. Events whose
    /// auth events are not known yet are added to `waiting`. Calls `found` for each event, and
    /// gives back what `charge` has for those that are done with, but for their ids.
    ///
    /// # Errors
    /// As [`Self::check_all`].
    pub(super) async fn take_in(
        &self,
        origin: &ServerName,
        room: &Room,
        events: Vec<Box<RawValue>>,
        charge: &mut AnswerCharge,
        waiting: &mut Vec<Verified>,
        mut found: impl FnMut(&CheckedEvent),
    ) -> Result<(), PduError> {
        let keys = self.keys_of(&events, &room.rules).await?;
        let mut events = events.into_iter();
        while !events.as_slice().is_empty() {
            let count = verified_at_once(events.as_slice());
            let part: Vec<_> = events.by_ref().take(count).collect();
            let mut valid = Vec::with_capacity(part.len());
            for checked in self.check_part(room, &part, &keys, Lacking::Record).await? {
                found(&checked);
                if let CheckedEvent::Valid(event) = checked {
                    valid.push(event);
                }
            }
            let bytes: usize = part.iter().map(|event| event.get().len()).sum();
            let ids = part.len() * ID_BYTES;
            drop(part);
            let knows = |id: &str| EventId::parse(id).map_or(Ok(false), |id| self.knows(room, &id));
            let (known, others) = background::at_length(|| {
                divided(valid, knows).map(|(known, others)| (parts(known), others))
            })?;
            let waits: usize = others.iter().map(|event| event.pdu.get().len()).sum();
            waiting.extend(others);
            self.record_parts(origin, room, known, true).await?;
            charge.give_back(bytes.saturating_sub(waits + ids));
        }
        Ok(())
    }

    /// The keys of those whose signatures events need, fetched if they are not known.
    async fn keys_of(
        &self,
        events: &[impl Borrow<RawValue>],
        rules: &RoomVersionRules,
    ) -> Result<HashMap<OwnedServerName, EventKeys>, PduError> {
        let until = tokio::time::sleep(limits::EVENT_KEYS_TIME);
        let needed = background::at_length(|| needed(events, has_chosen_ids(rules)));
        let ring = &self.federation.keys;
        let mut keys = HashMap::new();
        let (mut lacking, random) = (Vec::new(), RandomState::new());
        for (server, Needed { keys: mut of, has_weight }) in needed {
            let known = ring.known_for_events(&server);
            of.retain(|id, ts_ms| !known.has_any(std::slice::from_ref(id), *ts_ms));
            if !of.is_empty() {
                // In random order, so that a homeserver cannot be asked first because of its name.
                lacking.push((!has_weight, random.hash_one(&server), server.clone(), of));
            }
            keys.insert(server, known);
        }
        // Even one request to each would take too long.
        if ring.has_notaries() && lacking.len() > limits::PEER_KEYS_IN_BULK.0 {
            let wanted = lacking.iter().map(|(.., server, of)| (server.clone(), of.clone()));
            keys.extend(Box::pin(ring.vouched_in_bulk(wanted.collect())).await);
            lacking.retain_mut(|(.., server, of)| {
                if let Some(known) = keys.get(server) {
                    of.retain(|id, ts_ms| !known.has_any(std::slice::from_ref(id), *ts_ms));
                }
                !of.is_empty()
            });
        }
        lacking.sort_unstable_by_key(|(no_weight, random, ..)| (*no_weight, *random));
        let mut unasked: BTreeSet<_> = lacking
            .iter()
            .filter(|(no_weight, ..)| !no_weight)
            .map(|(.., server, _)| server.clone())
            .collect();
        let fetched = stream::iter(lacking).map(|(.., server, of)| async move {
            let latest = of.values().copied().max().unwrap_or(0);
            let ids: Vec<_> = of.into_keys().collect();
            let fetched = ring.for_events(&server, &ids, latest, Priority::InBulk).await;
            (server, fetched)
        });
        let fetched = fetched.buffer_unordered(limits::PEER_KEYS_IN_BULK.0);
        let fetched: Vec<_> = fetched.take_until(until).collect().await;
        for (server, fetched) in fetched {
            unasked.remove(&server);
            match fetched {
                Ok(fetched) => drop(keys.insert(server, fetched)),
                Err(error) => debug!(%error, "events of a homeserver are not used"),
            }
        }
        match unasked.pop_first() {
            Some(server) => Err(KeyError::Unreachable(server, Unreachable::Late).into()),
            None => Ok(keys),
        }
    }

    /// Records events as outliers, each after its auth events. Leaves out those that cannot be
    /// judged.
    pub(super) async fn record_outliers(
        &self,
        origin: &ServerName,
        room: &Room,
        events: Vec<Verified>,
        keeps_rejected: bool,
    ) -> Result<(), PduError> {
        let parts = background::at_length(|| parts(in_order(events)));
        self.record_parts(origin, room, parts, keeps_rejected).await
    }

    async fn record_parts(
        &self,
        origin: &ServerName,
        room: &Room,
        parts: Vec<Vec<Verified>>,
        keeps_rejected: bool,
    ) -> Result<(), PduError> {
        for part in parts {
            self.record_part(origin, room, &part, keeps_rejected).await?;
        }
        Ok(())
    }

    /// Records events in one commit. Returns the outcome of each.
    pub(super) async fn record_part(
        &self,
        origin: &ServerName,
        room: &Room,
        part: &[Verified],
        keeps_rejected: bool,
    ) -> Result<Vec<OutlierOutcome>, PduError> {
        let record = RecordOutliers {
            room_id: room.id.clone(),
            from: origin.to_owned(),
            events: part.iter().map(|event| (event.event_id.clone(), event.pdu.clone())).collect(),
            keeps_rejected,
        };
        let judged = self.engine.propose(Origin::server(), record).await?.into_inner();
        for (event, judged) in part.iter().zip(&judged) {
            if let OutlierOutcome::Rejected(reason) = judged {
                debug!(%origin, event_id = %event.event_id, reason, "an event is not allowed");
            }
        }
        Ok(judged)
    }
}

/// How many of these events are verified next. While they are, there is a copy of each.
fn verified_at_once<R: Borrow<RawValue>>(events: &[R]) -> usize {
    let (most, (of_commit, bytes_of_commit)) = (limits::VERIFIED_AT_ONCE, limits::OUTLIERS_AT_ONCE);
    let most_bytes = most / of_commit * bytes_of_commit;
    let mut bytes = 0;
    let fits = |event: &&R| {
        bytes += (*event).borrow().get().len();
        bytes <= most_bytes
    };
    let count = events.iter().take(most).take_while(fits).count();
    count.max(1).min(events.len())
}

/// The signing keys of events' required signatures, by homeserver.
fn needed(events: &[impl Borrow<RawValue>], with_id: bool) -> BTreeMap<OwnedServerName, Needed> {
    let mut needed = BTreeMap::<OwnedServerName, Needed>::new();
    for raw in events {
        let raw = raw.borrow();
        if Pdu::is_too_large(raw) {
            continue;
        }
        let canonical;
        let sketch = if let Ok(sketch) = serde_json::from_str::<KeyRequirements<'_>>(raw.get()) {
            sketch
        } else {
            // It may have a key twice, of which the last one counts.
            canonical = Pdu::object(raw).ok().and_then(|of| of.to_raw().ok()).unwrap_or_default();
            let Ok(sketch) = serde_json::from_str(canonical.get()) else { continue };
            sketch
        };
        for server in sketch.signers(with_id) {
            let ids = sketch.key_ids(&server);
            let needed = needed.entry(server).or_default();
            needed.has_weight |= sketch.has_weight();
            for id in ids {
                if let Some(latest) = needed.keys.get_mut(&id) {
                    *latest = sketch.origin_server_ts.max(*latest);
                } else if needed.keys.len() < limits::PEER_OLD_KEYS {
                    needed.keys.insert(id, sketch.origin_server_ts);
                }
            }
        }
    }
    needed
}

/// Divides events into those whose auth events are all known or among these, each after them, and
/// the others.
fn divided(
    events: Vec<Verified>,
    mut knows: impl FnMut(&str) -> Result<bool, PduError>,
) -> Result<(Vec<Verified>, Vec<Verified>), PduError> {
    let events = in_order(events);
    let (mut looked, mut resting) = (HashMap::new(), HashSet::new());
    for event in &events {
        let mut rests = true;
        for auth_event in event.auth_events() {
            if resting.contains(&*auth_event) {
                continue;
            }
            // Most name the same few.
            rests &= match looked.get(&*auth_event) {
                Some(is_known) => *is_known,
                None => {
                    let is_known = knows(&auth_event)?;
                    looked.insert(auth_event.into_owned(), is_known);
                    is_known
                }
            };
        }
        if rests {
            resting.insert(event.event_id.to_string());
        }
    }
    Ok(events.into_iter().partition(|event| resting.contains(event.event_id.as_str())))
}

/// The events, each once, and after those of them that authorise it. Events that authorise each
/// other in a circle are left out.
fn in_order(mut events: Vec<Verified>) -> Vec<Verified> {
    events.sort_by_key(|event| event.depth);
    let order = order(&events);
    let mut events: Vec<_> = events.into_iter().map(Some).collect();
    order.into_iter().filter_map(|at| events[at].take()).collect()
}

/// The places of the events in the order of [`in_order`].
fn order(events: &[Verified]) -> Vec<usize> {
    let mut index: HashMap<&str, usize> = HashMap::with_capacity(events.len());
    let mut ready = VecDeque::new();
    let mut authorises = vec![Vec::new(); events.len()];
    let mut waits_for = vec![0_u32; events.len()];
    for (at, event) in events.iter().enumerate() {
        index.entry(event.event_id.as_str()).or_insert(at);
    }
    for (at, event) in events.iter().enumerate() {
        if index.get(event.event_id.as_str()) != Some(&at) {
            continue;
        }
        let auth_events = event.auth_events();
        let auth_events: BTreeSet<_> =
            auth_events.iter().filter_map(|auth| index.get(&**auth)).collect();
        for auth_event in auth_events {
            waits_for[at] += 1;
            authorises[*auth_event].push(at);
        }
        if waits_for[at] == 0 {
            ready.push_back(at);
        }
    }
    let mut order = Vec::with_capacity(events.len());
    while let Some(at) = ready.pop_front() {
        order.push(at);
        for next in &authorises[at] {
            waits_for[*next] -= 1;
            if waits_for[*next] == 0 {
                ready.push_back(*next);
            }
        }
    }
    order
}

/// Splits events into parts, each of which is one commit.
pub(super) fn parts(events: Vec<Verified>) -> Vec<Vec<Verified>> {
    let (most, most_bytes) = limits::OUTLIERS_AT_ONCE;
    let mut parts: Vec<Vec<Verified>> = Vec::new();
    let mut bytes = 0;
    for event in events {
        bytes += event.pdu.get().len();
        match parts.last_mut() {
            Some(part) if bytes <= most_bytes && part.len() < most => part.push(event),
            _ => {
                bytes = event.pdu.get().len();
                parts.push(vec![event]);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn raw(value: &serde_json::Value) -> Box<RawValue> {
        serde_json::value::to_raw_value(value).unwrap()
    }

    fn event(id: &str, depth: u64, auth: &[&str]) -> Verified {
        let auth: Vec<_> = auth.iter().map(|auth| format!("${auth}")).collect();
        let pdu = raw(&json!({ "depth": depth, "auth_events": auth }));
        let room_id = "!room:peer.example".try_into().unwrap();
        Verified::new(room_id, format!("${id}").try_into().unwrap(), pdu).unwrap()
    }

    fn ordered(events: Vec<Verified>) -> Vec<String> {
        in_order(events).into_iter().map(|event| event.event_id.to_string()).collect()
    }

    #[test]
    fn each_event_comes_once_and_after_its_auth_events_whatever_depth_it_claims() {
        let events = vec![
            event("powers", 1, &["create", "creator"]),
            event("member", 2, &["powers", "create", "not_sent"]),
            event("create", 9, &[]),
            event("creator", 3, &["create"]),
            event("member", 2, &["powers", "create", "not_sent"]),
        ];
        assert_eq!(ordered(events), ["$create", "$creator", "$powers", "$member"]);
    }

    #[test]
    fn events_that_authorise_each_other_in_a_circle_are_left_out() {
        let events = vec![
            event("create", 1, &[]),
            event("chicken", 2, &["egg"]),
            event("egg", 3, &["chicken"]),
            event("chick", 4, &["egg", "create"]),
            event("self", 5, &["self"]),
        ];
        assert_eq!(ordered(events), ["$create"]);
    }

    #[test]
    fn events_wait_for_auth_events_that_are_neither_known_nor_among_them() {
        let events = vec![
            event("member", 3, &["levels", "create"]),
            event("levels", 2, &["create"]),
            event("later", 4, &["absent", "create"]),
            event("on_later", 5, &["later"]),
        ];
        let mut asked = Vec::new();
        let divided = divided(events, |id| {
            asked.push(id.to_owned());
            Ok(id == "$create")
        });
        let ids = |events: Vec<Verified>| -> Vec<_> {
            events.into_iter().map(|event| event.event_id.to_string()).collect()
        };
        let (resting, waiting) = divided.unwrap();
        assert_eq!(ids(resting), ["$levels", "$member"]);
        assert_eq!(ids(waiting), ["$later", "$on_later"]);
        assert_eq!(asked, ["$create", "$absent", "$later"], "each is looked for once");
    }

    #[test]
    fn parts_are_bounded_in_events_and_bytes() {
        let (most, most_bytes) = limits::OUTLIERS_AT_ONCE;
        let many = (0..=most).map(|number| event(&number.to_string(), 1, &[])).collect();
        let sizes: Vec<_> = parts(many).iter().map(Vec::len).collect();
        assert_eq!(sizes, [most, 1]);
        let large = |_| {
            let pdu = raw(&json!({ "depth": 1, "text": "x".repeat(most_bytes / 2) }));
            let room_id = "!room:peer.example".try_into().unwrap();
            Verified::new(room_id, "$large".try_into().unwrap(), pdu).unwrap()
        };
        let sizes: Vec<_> = parts((0..3).map(large).collect()).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1, 1, 1]);
    }

    #[test]
    fn few_events_are_verified_at_once_if_they_are_large() {
        let of_size = |count: usize, size: usize| {
            let events: Vec<_> = (0..count).map(|_| raw(&json!("x".repeat(size)))).collect();
            verified_at_once(&events)
        };
        assert_eq!(of_size(0, 1), 0);
        assert_eq!(of_size(limits::VERIFIED_AT_ONCE + 1, 1), limits::VERIFIED_AT_ONCE);
        assert_eq!(of_size(70, 60_000), 34);
        assert_eq!(of_size(2, 3 << 20), 1, "one always fits");
    }

    #[test]
    fn the_keys_that_are_needed_are_those_of_senders_and_authorisers() {
        let event = |event_type: &str, state_key: &str, ts_ms: u64, authoriser: &str| {
            raw(&json!({
                "type": event_type, "sender": "@ann:a.example", "state_key": state_key,
                "origin_server_ts": ts_ms,
                "content": { "join_authorised_via_users_server": authoriser },
                "signatures": {
                    "a.example": { "ed25519:1": "", "other:1": "" },
                    "b.example": { "ed25519:2": "" },
                    "policy.example": { "ed25519:policy_server": "" },
                    "odd.example": null,
                },
            }))
        };
        let (member, ann, bob) = ("m.room.member", "@ann:a.example", "@bob:b.example");
        let is = |id: &str, ts_ms, has_weight| Needed {
            keys: BTreeMap::from([(id.to_owned(), ts_ms)]),
            has_weight,
        };
        let of = |events: &[Box<RawValue>]| -> Vec<_> {
            needed(events, false).into_iter().map(|(server, is)| (server.to_string(), is)).collect()
        };
        let a = |ts_ms, has_weight| ("a.example".to_owned(), is("ed25519:1", ts_ms, has_weight));
        let b = |ts_ms, has_weight| ("b.example".to_owned(), is("ed25519:2", ts_ms, has_weight));
        assert_eq!(of(&[event(member, ann, 5, bob)]), [a(5, false), b(5, false)]);
        // A ban, or any other state.
        assert_eq!(of(&[event(member, bob, 5, "nobody")]), [a(5, true)]);
        assert_eq!(of(&[event("m.room.name", "", 5, bob)]), [a(5, true)]);
        let late = event("m.room.topic", "", 10, ann);
        let twice = late.get().replacen('{', "{\"sender\":7,", 1);
        let twice = RawValue::from_string(twice).unwrap();
        let all = [
            event(member, ann, 3, bob),
            raw(&json!(["not an event"])),
            twice,
            event("m.room.topic", "", 9, ann),
        ];
        assert_eq!(of(&all), [a(10, true), b(3, false)]);
    }
}
