//! Policy servers of rooms (server-server API, "Policy Servers").

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, OwnedServerName,
    events::{StateEventType, TimelineEventType},
    room_version_rules::RedactionRules,
    serde::Base64,
};
use serde::Deserialize;

use super::events::{Derived, EventStore, StoredEvent, as_shown};
use logcabin_log::ReadError;
use logcabin_record::{Offset, lax_object::LaxObject};
use logcabin_state::Room;

/// The type of the state event that names a room's policy server, with an empty key.
const POLICY: &str = "m.room.policy";

/// The id of the key with which a policy server signs events.
pub(crate) const POLICY_KEY: &str = "ed25519:policy_server";

/// The policy server of a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyServer {
    pub via: OwnedServerName,
    /// Its key, in base64.
    key: Base64,
}

#[derive(Deserialize)]
struct Content {
    via: OwnedServerName,
    public_keys: Keys,
}

#[derive(Deserialize)]
struct Keys {
    ed25519: String,
}

impl Derived for Option<PolicyServer> {
    fn weight(&self) -> u64 {
        512
    }
}

/// The policy server that the room uses now: a valid event names it, and a user of it is joined.
pub fn policy_server(events: &EventStore, room: &Room) -> Result<Option<PolicyServer>, ReadError> {
    let standing = room.state_event(&StateEventType::from(POLICY), "", Offset::MAX);
    let Some(offset) = standing else { return Ok(None) };
    let named = events.derived(offset, || {
        let event = events.get(offset)?;
        let event = event.map(|event| as_shown(room, event, Offset::MAX));
        let content = event.and_then(|event| event.content_as::<Content>().ok());
        Ok::<_, ReadError>(content.and_then(|content| {
            let key = Base64::parse(&content.public_keys.ed25519).ok()?;
            Some(PolicyServer { via: content.via, key })
        }))
    })?;
    Ok((*named).clone().filter(|policy| room.has_server(&policy.via)))
}

/// Whether policy servers judge this event. They do not judge the one that names them.
pub fn needs_policy_signature(event: &StoredEvent) -> bool {
    event.event_type != TimelineEventType::from(POLICY) || event.state_key.as_deref() != Some("")
}

/// Like [`needs_policy_signature`], for an event as JSON.
pub fn object_needs_policy_signature(event: &CanonicalJsonObject) -> bool {
    let text = |name: &str| event.get(name).and_then(CanonicalJsonValue::as_str);
    text("type") != Some(POLICY) || text("state_key") != Some("")
}

impl PolicyServer {
    /// The signature of this policy server in `signatures`.
    pub fn signature(&self, signatures: &CanonicalJsonValue) -> Option<String> {
        let of = signatures.as_object()?.get(self.via.as_str())?.as_object()?;
        of.get(POLICY_KEY)?.as_str().map(ToOwned::to_owned)
    }

    /// Whether an event has a valid signature of this policy server.
    pub fn has_signed(&self, event: &LaxObject, rules: &RedactionRules) -> bool {
        event.is_signed_with(self.via.as_str(), POLICY_KEY, &self.key, rules)
    }

    /// Adds a signature of this policy server to an event, beside those that it has.
    pub fn add(&self, event: &mut CanonicalJsonObject, signature: String) {
        let none = || CanonicalJsonValue::Object(CanonicalJsonObject::new());
        let CanonicalJsonValue::Object(all) =
            event.entry("signatures".to_owned()).or_insert_with(none)
        else {
            return;
        };
        if let CanonicalJsonValue::Object(of) = all.entry(self.via.to_string()).or_insert_with(none)
        {
            of.insert(POLICY_KEY.to_owned(), CanonicalJsonValue::String(signature));
        }
    }
}
