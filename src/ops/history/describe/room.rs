//! Commands of rooms, in words.

use super::{ActorAndText, Context, Describe, because, joined, of_event};
use logcabin_read::events::StoredEvent;
use logcabin_record::{
    Record,
    command::{
        AliasRemove, AliasSet, DelayedFinish, DelayedOutcome, DelayedRestart, DelayedSchedule,
        EventsEnd, NoticeRoom, Receipt, ReportCreate, ReportRemove, ReportReopen, RoomBlock,
        RoomErase, RoomEvent, RoomForget, RoomNetwork, RoomPurge, RoomPurgeHistory,
        RoomPurgeHistoryFinish, RoomReceipt, RoomRedactSender, RoomShutdown, RoomShutdownFinish,
        RoomTyping, RoomUndo, RoomVisibility,
    },
};

impl Describe for RoomEvent {
    fn describe(self, record: &Record, who: String) -> ActorAndText {
        match StoredEvent::new(record.offset(), self) {
            Ok(event) => (event.sender.to_string(), of_event(&event, Context::default())),
            Err(error) => (who, format!("(not an event: {error})")),
        }
    }
}

impl Describe for RoomForget {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        (self.user_id.to_string(), "forgot the room".to_owned())
    }
}

impl Describe for RoomUndo {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let rooms = self.rooms.iter().map(|room| room.room_id.to_string()).collect();
        let text = format!("is not in {} any more: that was undone", joined(rooms));
        (self.user_id.to_string(), text)
    }
}

impl Describe for RoomVisibility {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let text = if self.public { "listed the room" } else { "took the room off the list" };
        (who, format!("{text} in the public directory"))
    }
}

impl Describe for RoomNetwork {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let text = if self.listed { "listed the room with" } else { "took the room off" };
        (self.service, format!("{text} those of {} in the public directory", self.network_id))
    }
}

impl Describe for RoomBlock {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let does = if self.blocked { "blocked" } else { "unblocked" };
        (who, format!("{does} the room {}{}", self.room_id, because(self.reason)))
    }
}

impl Describe for RoomShutdown {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let to = self.replacement.map(|new| format!(", in favour of {}", new.room_id));
        let to = to.unwrap_or_default();
        (who, format!("began to shut down {}{to}{}", self.room_id, because(self.reason)))
    }
}

impl Describe for RoomShutdownFinish {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let failed = match self.failed.len() {
            0 => String::new(),
            number => format!(", but {number} user(s) could not be made to leave"),
        };
        (who, format!("has shut down {}{failed}", self.room_id))
    }
}

impl Describe for NoticeRoom {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        (self.user_id.to_string(), format!("gets the server's notices in {}", self.room_id))
    }
}

impl Describe for RoomReceipt {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let what = |receipt: &Receipt| {
            let what = match receipt.receipt_type.as_str() {
                "m.read.private" => "read (privately) up to",
                "m.fully_read" => "put the read marker at",
                _ => "read up to",
            };
            format!("{what} {}", receipt.event_id)
        };
        match &*self.receipts {
            [receipt] => (receipt.user_id.to_string(), what(receipt)),
            receipts => {
                let each = |r: &Receipt| format!("{} {}", r.user_id, what(r));
                (who, joined(receipts.iter().map(each).collect()))
            }
        }
    }
}

impl Describe for RoomTyping {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let text = match (self.until_ms, self.since) {
            (0, _) => "stopped typing",
            (_, None) => "is typing",
            (_, Some(_)) => "is still typing",
        };
        (self.user_id.to_string(), text.to_owned())
    }
}

impl Describe for ReportCreate {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let what = match (&self.event_id, &self.room_id, &self.user_id) {
            (Some(event_id), Some(room_id), _) => format!("{event_id} in {room_id}"),
            (_, Some(room_id), _) => format!("the room {room_id}"),
            (_, _, Some(user_id)) => user_id.to_string(),
            _ => "nothing".to_owned(),
        };
        let score = self.score.map_or_else(String::new, |score| format!(" with {score}"));
        let reason = self.reason.map_or_else(String::new, |reason| format!(": {reason}"));
        (self.reporter.to_string(), format!("reported {what}{score}{reason}"))
    }
}

impl Describe for ReportRemove {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("closed the report {}", self.report))
    }
}

impl Describe for ReportReopen {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("opened the report {} again", self.report))
    }
}

impl Describe for DelayedSchedule {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let after = format!("{} ms", self.delay_ms);
        let text = format!("will send {} to {} after {after}", self.event_type, self.room_id);
        (self.user_id.to_string(), text)
    }
}

impl Describe for DelayedRestart {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, "restarted the delay of a scheduled event".to_owned())
    }
}

impl Describe for DelayedFinish {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let text = match self.outcome {
            DelayedOutcome::Send { event_id } => format!("sent {event_id}, as scheduled"),
            DelayedOutcome::Cancel => "cancelled a scheduled event".to_owned(),
            DelayedOutcome::Error { errcode, error } => {
                format!("did not send a scheduled event: {errcode}: {error}")
            }
        };
        (who, text)
    }
}

impl Describe for RoomErase {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let why = match self.why {
            EventsEnd::Lifetime { event_type, lifetime_ms } => {
                format!("of {event_type} that had lived for {} seconds", lifetime_ms / 1000)
            }
            EventsEnd::Sender { user_id, .. } => format!("of {user_id}, who was erased"),
            EventsEnd::Purge { .. } => "whose history is purged".to_owned(),
        };
        (who, format!("removed {} event(s) from the room {why}", self.events.len()))
    }
}

impl Describe for RoomPurge {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("purged {}{}", self.room_id, because(self.reason)))
    }
}

impl Describe for RoomPurgeHistory {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let but = if self.keep_local { ", but for what users of this server sent" } else { "" };
        let Self { room_id, before, .. } = self;
        (who, format!("began to purge the history of {room_id} before record {before}{but}"))
    }
}

impl Describe for RoomPurgeHistoryFinish {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("purged the history of {}", self.room_id))
    }
}

impl Describe for RoomRedactSender {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let Self { room_id, because, by, user_id, since: _, events, complete } = self;
        let what = format!("what {user_id} sent to {room_id} since they joined, as {because} says");
        let text = match events.len() {
            0 if !complete => format!("redacts {what}"),
            0 => format!("redacted {what}"),
            count => format!("redacted {count} event(s) of {what}"),
        };
        (by.to_string(), text)
    }
}

impl Describe for AliasSet {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        (self.creator.to_string(), format!("pointed {} at {}", self.alias, self.room_id))
    }
}

impl Describe for AliasRemove {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("removed {}", self.alias))
    }
}
