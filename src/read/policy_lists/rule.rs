//! One rule of a policy list, as the state event of a room says it.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use ruma::events::StateEventType;
use serde::Deserialize;
use serde_json::Value;

use crate::events::{EventRef, StoredEvent};
use logcabin_base::{glob::lowercase, limits};
use logcabin_record::Offset;

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EntityKind {
    User,
    Room,
    Server,
}

impl EntityKind {
    /// The kind of rule that events of this type are, under the specification's name or an older
    /// one that lists still use.
    pub fn of(event_type: &StateEventType) -> Option<Self> {
        let event_type = event_type.to_string();
        let kind = ["m.policy.rule.", "m.room.rule.", "org.matrix.mjolnir.rule."]
            .into_iter()
            .find_map(|prefix| event_type.strip_prefix(prefix))?;
        Some(match kind {
            "user" => Self::User,
            "room" => Self::Room,
            "server" => Self::Server,
            _ => return None,
        })
    }

    /// The types of the events that have rules of any kind.
    pub(super) fn event_types() -> impl Iterator<Item = StateEventType> {
        ["m.policy.rule.", "m.room.rule.", "org.matrix.mjolnir.rule."].into_iter().flat_map(
            |prefix| {
                ["user", "room", "server"]
                    .map(|kind| StateEventType::from(format!("{prefix}{kind}")))
            },
        )
    }
}

/// Whom a rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entity {
    /// A name, in lower case.
    Name(Box<str>),
    /// A pattern with `*` or `?`, in lower case.
    Glob(Box<str>),
    /// The SHA-256 of a name (MSC4205).
    Hash([u8; 32]),
}

/// A rule that is understood.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) kind: EntityKind,
    pub(super) entity: Entity,
    /// `m.takedown` (MSC4204), which is stronger than `m.ban`.
    pub(super) is_takedown: bool,
    /// The state event.
    pub(super) offset: Offset,
    /// The record since which that is state of the room.
    pub(super) since: Offset,
}

impl Rule {
    /// The rule in an event of this kind. `None` for one that bans nobody, as after its removal,
    /// and for one that cannot be understood.
    pub(super) fn of(kind: EntityKind, event: &StoredEvent, since: Offset) -> Option<Self> {
        Self::new(kind, &event.content_as().ok()?, event.offset, since)
    }

    /// The rule with this content.
    pub(super) fn new(
        kind: EntityKind,
        content: &Value,
        offset: Offset,
        since: Offset,
    ) -> Option<Self> {
        let is_takedown = match content["recommendation"].as_str()? {
            "m.ban" | "org.matrix.mjolnir.ban" => false,
            "m.takedown" | "org.matrix.msc4204.takedown" => true,
            _ => return None,
        };
        let name = content["entity"].as_str().filter(|name| !name.is_empty());
        let entity = match name {
            Some(name) if name.len() > limits::POLICY_ENTITY_BYTES => return None,
            Some(name) => {
                let name = lowercase(name).into_boxed_str();
                if name.contains(['*', '?']) { Entity::Glob(name) } else { Entity::Name(name) }
            }
            None => {
                let mut hashes = ["hashes", "org.matrix.msc4205.hashes"].into_iter();
                Entity::Hash(hashes.find_map(|of| hash(&content[of]["sha256"]))?)
            }
        };
        Some(Self { kind, entity, is_takedown, offset, since })
    }

    /// Its place in the order in which rules are judged.
    pub(super) const fn place(&self) -> (Offset, Offset) {
        (self.since, self.offset)
    }
}

/// A hash in base64, with or without padding, in either alphabet.
fn hash(text: &Value) -> Option<[u8; 32]> {
    let text = text.as_str()?.trim_end_matches('=').replace('-', "+").replace('_', "/");
    STANDARD_NO_PAD.decode(text).ok()?.try_into().ok()
}

/// What the event of a rule says about whom it names, and why, for people to read.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct RuleText {
    #[serde(default)]
    pub entity: Option<String>,
    #[serde(default)]
    pub recommendation: String,
    #[serde(default)]
    pub reason: Option<String>,
}

impl RuleText {
    pub fn of(event: &EventRef) -> Self {
        event.content_as().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entity(content: &Value) -> Option<Entity> {
        let at = Offset::new(1);
        Rule::new(EntityKind::User, content, at, at).map(|rule| rule.entity)
    }

    #[test]
    fn rules_are_read_in_every_form_that_lists_have() {
        let ban = |content: Value| {
            let mut content = content;
            content["recommendation"] = json!("m.ban");
            entity(&content)
        };
        assert_eq!(ban(json!({ "entity": "@Eve:x" })), Some(Entity::Name("@eve:x".into())));
        assert_eq!(ban(json!({ "entity": "@e?e:*" })), Some(Entity::Glob("@e?e:*".into())));
        let hash = [251_u8; 32];
        let plain = STANDARD_NO_PAD.encode(hash);
        for text in [plain.clone(), format!("{plain}="), plain.replace('+', "-").replace('/', "_")]
        {
            for name in ["hashes", "org.matrix.msc4205.hashes"] {
                let content = json!({ name: { "sha256": text } });
                assert_eq!(ban(content), Some(Entity::Hash(hash)), "{text}");
            }
        }
        // Whoever is named wins, whatever else is there.
        let both = json!({ "entity": "@eve:x", "hashes": 3, "reason": [] });
        assert_eq!(ban(both), Some(Entity::Name("@eve:x".into())));
        for wrong in [
            json!({}),
            json!({ "entity": "" }),
            json!({ "entity": 3 }),
            json!({ "entity": "x".repeat(limits::POLICY_ENTITY_BYTES + 1) }),
            json!({ "hashes": { "sha256": "AAAA" } }),
            json!({ "hashes": { "md5": plain } }),
        ] {
            assert_eq!(ban(wrong.clone()), None, "{wrong}");
        }
        for no_ban in
            [json!({ "entity": "@eve:x" }), json!({ "entity": "@eve:x", "recommendation": "m.x" })]
        {
            assert_eq!(entity(&no_ban), None);
        }
        assert_eq!(entity(&json!([])), None);
    }
}
