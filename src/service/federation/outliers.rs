//! Many events at once: verifies their signatures on all processors, and records them in few
//! commits.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
};

use futures_util::{StreamExt as _, stream};
use ruma::{OwnedEventId, OwnedServerName, OwnedUserId, ServerName, signatures::PublicKeyMap};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;
use tracing::debug;

use super::{
    pdu::{Pdu, PduError, Signer},
    receive::{Receiving, Verified},
};
use crate::{
    base::{background, limits},
    decide::federation::{Judged, RecordOutliers},
    outside::federation::{EventKeys, KeyError},
    record::Origin,
    state::Room,
};

/// An event of a batch.
pub(super) struct Checked {
    pub(super) event_id: OwnedEventId,
    /// The event with valid signatures; `None` if it was known before.
    pub(super) event: Option<Verified>,
}

/// The fields that show which keys an event needs.
#[derive(Deserialize)]
struct Sketch<'a> {
    sender: OwnedUserId,
    origin_server_ts: u64,
    #[serde(default)]
    content: SketchContent,
    #[serde(default, borrow)]
    signatures: HashMap<Cow<'a, str>, HashMap<Cow<'a, str>, IgnoredAny>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SketchContent {
    join_authorised_via_users_server: Option<OwnedUserId>,
}

/// The needed keys of a homeserver, each with the latest time at which it signed.
type Needed = BTreeMap<String, u64>;

impl Receiving<'_> {
    /// Verifies events; leaves out those that are invalid or known.
    pub(super) async fn verify_all(&self, room: &Room, events: &[Box<RawValue>]) -> Vec<Verified> {
        let checked = self.check_all(room, events).await;
        checked.into_iter().filter_map(|checked| checked.event).collect()
    }

    /// Verifies events; leaves out those that are invalid.
    pub(super) async fn check_all(&self, room: &Room, events: &[Box<RawValue>]) -> Vec<Checked> {
        let keys = self.keys_of(events).await;
        let check = |events: &[Box<RawValue>]| -> Vec<_> {
            if events.len() < limits::VERIFIED_IN_PARALLEL {
                return events.iter().map(|raw| self.check(room, raw, &keys)).collect();
            }
            background::in_parallel(events, |raw| self.check(room, raw, &keys))
        };
        let mut checked = Vec::with_capacity(events.len());
        for part in events.chunks(limits::VERIFIED_AT_ONCE) {
            let _turn = match part.len() {
                ..limits::VERIFIED_IN_PARALLEL => None,
                _ => Some(self.federation.verifying.lock().await),
            };
            checked.extend(background::at_length(|| check(part)));
        }
        let valid = checked.into_iter().filter_map(|checked| {
            checked
                .inspect_err(|error| debug!(%error, room_id = %room.id, "an event is not used"))
                .ok()
        });
        valid.collect()
    }

    fn check(
        &self,
        room: &Room,
        raw: &RawValue,
        keys: &HashMap<OwnedServerName, EventKeys>,
    ) -> Result<Checked, PduError> {
        let pdu = Pdu::of_room(room, raw)?;
        let (room_id, event_id) = (pdu.room_id.clone(), pdu.event_id.clone());
        if self.knows(room, &event_id)? {
            return Ok(Checked { event_id, event: None });
        }
        let mut valid = PublicKeyMap::new();
        for Signer { server, key_ids, ts_ms } in pdu.signers(&room.rules)? {
            let of = keys.get(&server).map(|keys| keys.valid(&key_ids, ts_ms));
            let of = of.filter(|of| !of.is_empty());
            let of = of.ok_or_else(|| KeyError::NoKey(server.clone(), key_ids.join(", ")))?;
            valid.insert(server.to_string(), of);
        }
        let pdu = pdu.verified_by(&valid, &room.rules)?;
        let event = Verified::new(room_id, event_id.clone(), pdu)?;
        Ok(Checked { event_id, event: Some(event) })
    }

    /// The keys of the homeservers whose signatures events need, fetched if they are not known.
    async fn keys_of(&self, events: &[Box<RawValue>]) -> HashMap<OwnedServerName, EventKeys> {
        let needed = background::at_length(|| needed(events));
        let ring = &self.federation.keys;
        let mut keys = HashMap::new();
        let mut lacking = Vec::new();
        for (server, needed) in needed {
            let known = ring.known_for_events(&server);
            let lacks = |id: &String, ts_ms| !known.has_any(std::slice::from_ref(id), ts_ms);
            let unknown: Needed =
                needed.into_iter().filter(|(id, ts_ms)| lacks(id, *ts_ms)).collect();
            if !unknown.is_empty() {
                lacking.push((server.clone(), unknown));
            }
            keys.insert(server, known);
        }
        let fetched = stream::iter(lacking).map(|(server, needed)| async move {
            let latest = needed.values().copied().max().unwrap_or(0);
            let ids: Vec<_> = needed.into_keys().collect();
            let fetched = ring.for_events(&server, &ids, latest).await;
            (server, fetched)
        });
        let fetched = fetched.buffer_unordered(limits::PEER_KEYS_FETCHES);
        let until = tokio::time::sleep(limits::EVENT_KEYS_TIME);
        let fetched: Vec<_> = fetched.take_until(until).collect().await;
        for (server, fetched) in fetched {
            match fetched {
                Ok(fetched) => drop(keys.insert(server, fetched)),
                Err(error) => debug!(%error, "events of a homeserver are not used"),
            }
        }
        keys
    }

    /// Records events as authorities for others, each after its own authorities. Leaves out those
    /// that cannot be judged.
    pub(super) async fn record_outliers(
        &self,
        origin: &ServerName,
        events: Vec<Verified>,
    ) -> Result<(), PduError> {
        for part in parts(in_order(events)) {
            let Some(first) = part.first() else { continue };
            let record = RecordOutliers {
                room_id: first.room_id.clone(),
                from: origin.to_owned(),
                events: part.into_iter().map(|event| (event.event_id, event.pdu)).collect(),
                keeps_rejected: true,
            };
            let ids: Vec<_> = record.events.iter().map(|(event_id, _)| event_id.clone()).collect();
            let judged = self.engine.propose(Origin::server(), record).await?.into_inner();
            for (event_id, judged) in ids.iter().zip(judged) {
                if let Judged::Rejected(reason) = judged {
                    debug!(%origin, %event_id, reason, "an event is not accepted");
                }
            }
        }
        Ok(())
    }
}

/// The signing keys of events' required signatures, by homeserver.
fn needed(events: &[Box<RawValue>]) -> BTreeMap<OwnedServerName, Needed> {
    let mut needed = BTreeMap::<OwnedServerName, Needed>::new();
    for raw in events {
        if Pdu::is_too_large(raw) {
            continue;
        }
        let Ok(sketch) = serde_json::from_str::<Sketch<'_>>(raw.get()) else { continue };
        let authoriser = &sketch.content.join_authorised_via_users_server;
        for user_id in authoriser.iter().chain([&sketch.sender]) {
            let server = user_id.server_name();
            let Some(signatures) = sketch.signatures.get(server.as_str()) else { continue };
            let needed = needed.entry(server.to_owned()).or_default();
            for id in signatures.keys().filter(|id| id.starts_with("ed25519:")) {
                if let Some(latest) = needed.get_mut(&**id) {
                    *latest = sketch.origin_server_ts.max(*latest);
                } else if needed.len() < limits::PEER_OLD_KEYS {
                    needed.insert(id.to_string(), sketch.origin_server_ts);
                }
            }
        }
    }
    needed
}

/// The events, each once, and after those of them that authorise it. Events that authorise each
/// other in a circle are left out.
fn in_order(mut events: Vec<Verified>) -> Vec<Verified> {
    events.sort_by_key(|event| event.depth);
    let mut seen = HashSet::new();
    events.retain(|event| seen.insert(event.event_id.clone()));
    let index: HashMap<_, _> =
        events.iter().enumerate().map(|(at, event)| (event.event_id.clone(), at)).collect();
    let mut authorises = vec![Vec::new(); events.len()];
    let mut waits_for = vec![0_usize; events.len()];
    for (at, event) in events.iter().enumerate() {
        let authorities: BTreeSet<_> =
            event.auth_events.iter().filter_map(|auth| index.get(auth)).collect();
        waits_for[at] = authorities.len();
        for authority in authorities {
            authorises[*authority].push(at);
        }
    }
    let mut ready: VecDeque<_> = (0..events.len()).filter(|at| waits_for[*at] == 0).collect();
    let mut events: Vec<_> = events.into_iter().map(Some).collect();
    let mut ordered = Vec::with_capacity(events.len());
    while let Some(at) = ready.pop_front() {
        ordered.extend(events[at].take());
        for next in &authorises[at] {
            waits_for[*next] -= 1;
            if waits_for[*next] == 0 {
                ready.push_back(*next);
            }
        }
    }
    ordered
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
    fn each_event_comes_once_and_after_its_authorities_whatever_depth_it_claims() {
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
    fn the_keys_that_are_needed_are_those_of_senders_and_authorisers() {
        let event = |sender: &str, ts_ms: u64, content: serde_json::Value| {
            raw(&json!({
                "sender": sender, "origin_server_ts": ts_ms, "content": content,
                "signatures": {
                    "a.example": { "ed25519:1": "", "other:1": "" },
                    "b.example": { "ed25519:2": "" },
                    "policy.example": { "ed25519:policy_server": "" },
                },
            }))
        };
        let authorised = json!({ "join_authorised_via_users_server": "@ann:b.example" });
        let events = [
            event("@ann:a.example", 5, json!({})),
            event("@ann:a.example", 3, authorised),
            event("@ann:c.example", 9, json!({})),
            raw(&json!(["not an event"])),
        ];
        let is = |id: &str, ts_ms| Needed::from([(id.to_owned(), ts_ms)]);
        let all = [("a.example", is("ed25519:1", 5)), ("b.example", is("ed25519:2", 3))];
        let all = all.map(|(server, keys)| (server.try_into().unwrap(), keys));
        assert_eq!(needed(&events), BTreeMap::from(all));
    }
}
