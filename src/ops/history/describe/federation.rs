//! Commands about other homeservers, in words.

use super::{ActorAndText, Context, Describe, of_event};
use crate::history::moment::Time;
use logcabin_read::events::StoredEvent;
use logcabin_record::{
    Record,
    command::{
        Outcome, PeerDevices, PeerKeys, PeerReached, RoomGap, RoomPdu, RoomState, ServerKey,
        ServerOldKey,
    },
};

impl Describe for ServerKey {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("signs with {} for other homeservers", self.key_id))
    }
}

impl Describe for ServerOldKey {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("signed with {} until {}", self.key_id, Time(self.expired_ms).to_second()))
    }
}

impl Describe for PeerKeys {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let ids: Vec<_> = self.keys.keys().map(String::as_str).collect();
        (who, format!("learned that {} signs with {}", self.server_name, ids.join(", ")))
    }
}

impl Describe for PeerReached {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let told = self.servers.iter().map(|of| {
            let mut text = format!("{} up to {}", of.server_name, of.up_to);
            if !of.set_aside.is_empty() {
                text += &format!(" without {} item(s)", of.set_aside.count);
            }
            if let Some(failing) = &of.failing {
                text += &format!(", which fails: {}", failing.error);
            }
            text
        });
        (who, format!("told {}", told.collect::<Vec<_>>().join(", ")))
    }
}

impl Describe for PeerDevices {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let Self { user_id, list, .. } = self;
        let text = match list {
            Some(list) => format!("learned of {} device(s) of {user_id}", list.devices.len()),
            None => format!("learned that the devices of {user_id} changed"),
        };
        (who, text)
    }
}

impl Describe for RoomState {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let Self { from, changes, unverified, .. } = self;
        let but = match unverified.map_or(0, |joins| joins.len()) {
            0 => String::new(),
            count => format!("; the joins of {count} user(s) could not be verified"),
        };
        (who, format!("got {} events of the room's state from {from}{but}", changes.len()))
    }
}

impl Describe for RoomGap {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let Self { gap, from, events, missing, given_up_until_ms, .. } = self;
        let from = from.map(|from| format!(" from {from}")).unwrap_or_default();
        let then = match (given_up_until_ms, missing.len()) {
            (Some(_), _) => ", and gave it up for a day",
            (None, 0) => ", which closes it",
            (None, _) => "",
        };
        (who, format!("got {} events{from} for the gap before {gap}{then}", events.len()))
    }
}

impl Describe for RoomPdu {
    fn describe(self, record: &Record, who: String) -> ActorAndText {
        let from = self.from.clone();
        let what = match &self.outcome {
            Outcome::Outlier => "as an outlier".to_owned(),
            Outcome::SoftFailed { reason } => format!("soft-failed: {reason}"),
            Outcome::Rejected { reason } => format!("rejected: {reason}"),
        };
        match StoredEvent::of_pdu(record.offset(), self) {
            Ok(event) => {
                let text = of_event(&event, Context::default());
                (event.sender.to_string(), format!("{text} (from {from}, {what})"))
            }
            Err(error) => (who, format!("(not an event: {error})")),
        }
    }
}
