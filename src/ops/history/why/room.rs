//! Values of rooms: state, events, directory, receipts, aliases.

use serde_json::{Value, json};

use super::{Affects, Answer, Chain, Change, POWER_LEVELS, Subject};
use crate::history::{
    HistoryError,
    key_holder::{KeyHolder, held},
};
use logcabin_record::command::{
    AliasRemove, AliasSet, RoomEvent, RoomNetwork, RoomPdu, RoomReceipt, RoomState, RoomVisibility,
    topic,
};

impl Affects<topic::RoomState> for RoomEvent {
    fn change(&self, chain: &mut Chain<'_>, shown: &Value) -> Answer {
        if self.room_id != *chain.place {
            return Ok(None);
        }
        if matches!(chain.subject, Subject::State { .. })
            && let Some(change) = chain.redaction(&shown["pdu"])
        {
            return Ok(Some(change));
        }
        let is_disputed = chain.disputed_by(self).is_some();
        Ok(chain.state(shown)?.or_else(|| is_disputed.then_some(Change::Stays)))
    }
}

impl Affects<topic::RoomState> for RoomState {
    fn change(&self, chain: &mut Chain<'_>, shown: &Value) -> Answer {
        if self.room_id == *chain.place { chain.state(shown) } else { Ok(None) }
    }
}

impl Chain<'_> {
    /// What a record with this payload does to the state, or to a power level by it; `None` if it
    /// changes nothing.
    fn state(&mut self, shown: &Value) -> Answer {
        match self.subject {
            Subject::Power { .. } => self.power(shown),
            Subject::State { event_type, .. } => {
                Ok(match held(self.source, shown, event_type, &self.user)? {
                    KeyHolder::Same => None,
                    KeyHolder::Lost => Some(Change::Stays),
                    KeyHolder::Nobody => {
                        self.event_id = None;
                        Some(Change::Ends)
                    }
                    KeyHolder::By { event_id, content, .. } => {
                        self.event_id = Some(event_id);
                        Some(Change::Becomes(content))
                    }
                })
            }
            _ => Ok(None),
        }
    }

    fn power(&self, shown: &Value) -> Result<Option<Change>, HistoryError> {
        let create = match held(self.source, shown, "m.room.create", "")? {
            KeyHolder::By { sender, content, .. } => {
                // Before any event sets levels, the creator has all power.
                let creator = content["creator"].as_str().unwrap_or(&sender);
                Some(Change::Becomes(json!(if creator == self.user { 100 } else { 0 })))
            }
            _ => None,
        };
        Ok(match held(self.source, shown, POWER_LEVELS, "")? {
            KeyHolder::Same => create,
            KeyHolder::Lost | KeyHolder::Nobody => Some(Change::Stays),
            KeyHolder::By { content, .. } => {
                let level = content["users"].get(&self.user);
                let level = level.or_else(|| content.get("users_default"));
                Some(Change::Becomes(level.cloned().unwrap_or_else(|| json!(0))))
            }
        })
    }

    /// The effect of a redaction on the event that holds the value.
    fn redaction(&self, pdu: &Value) -> Option<Change> {
        if pdu["type"] != "m.room.redaction" {
            return None;
        }
        let mut targets = [&pdu["redacts"], &pdu["content"]["redacts"]].into_iter();
        let event_id = self.event_id.as_deref()?;
        let is_it = targets.any(|target| target.as_str() == Some(event_id));
        is_it.then(|| Change::Becomes(json!("(redacted)")))
    }
}

impl Affects<topic::Event> for RoomEvent {
    fn change(&self, chain: &mut Chain<'_>, shown: &Value) -> Answer {
        let accepted = || {
            let takes_effect = self.received.as_ref().and_then(|received| {
                received.resolved.as_ref().map(|resolved| resolved.takes_effect)
            });
            Change::Becomes(match shown["pdu"].get("state_key") {
                None => json!({ "outcome": "accepted" }),
                Some(_) => {
                    json!({ "outcome": "accepted", "takes_effect": takes_effect.unwrap_or(true) })
                }
            })
        };
        Ok((self.event_id == *chain.place).then(accepted))
    }
}

impl Affects<topic::Event> for RoomPdu {
    fn change(&self, chain: &mut Chain<'_>, shown: &Value) -> Answer {
        let outcome = || json!({ "outcome": shown["outcome"], "reason": shown["reason"] });
        Ok((self.event_id == *chain.place).then(|| Change::Becomes(outcome())))
    }
}

impl Affects<topic::Directory> for RoomVisibility {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok((self.room_id == *chain.place).then(|| Change::Becomes(json!(self.public))))
    }
}

impl Affects<topic::Directory> for RoomNetwork {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok((self.room_id == *chain.place).then_some(Change::Stays))
    }
}

impl Affects<topic::Receipt> for RoomReceipt {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let receipts = self.receipts.iter().filter(|_| self.room_id == *chain.place);
        let own = receipts.rev().find(|receipt| chain.is_of(&receipt.user_id));
        Ok(own.map(|receipt| Change::Becomes(json!(receipt))))
    }
}

impl Affects<topic::Alias> for AliasSet {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok((self.alias == *chain.place).then(|| Change::Becomes(json!(self.room_id))))
    }
}

impl Affects<topic::Alias> for AliasRemove {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok((self.alias == *chain.place).then_some(Change::Ends))
    }
}
