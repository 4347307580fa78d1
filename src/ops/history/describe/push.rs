//! Commands of pushers, in words.

use super::{ActorAndText, Describe};
use logcabin_record::{
    Record,
    pusher::{PusherAdvance, PusherEnd, PusherKind, PusherMail, PusherRemove, PusherSet},
};

impl Describe for PusherSet {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let Self { user_id, ids, kind, app_display_name, device_display_name, .. } = self;
        let app_id = ids.app_id;
        let text = match kind {
            PusherKind::Http => format!(
                "has notifications sent to {app_display_name} ({app_id}) on {device_display_name}"
            ),
            PusherKind::Email => "has mail sent about what they miss".to_owned(),
        };
        (user_id.to_string(), text)
    }
}

impl Describe for PusherRemove {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let because = match self.because {
            PusherEnd::Asked => "",
            PusherEnd::Moved => ": the device is another user's now",
            PusherEnd::Rejected => ": the push gateway does not know the device any more",
        };
        let text = format!("no longer has notifications sent to {}{because}", self.ids.app_id);
        (self.user_id.to_string(), text)
    }
}

impl Describe for PusherAdvance {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let behind = match self.behind.len() {
            0 => String::new(),
            number => format!(", but for {number} pusher(s) that are behind"),
        };
        let text = format!("has sent all notifications up to record {}{behind}", self.done);
        (who, text)
    }
}

impl Describe for PusherMail {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let again = match self.in_a_row {
            0 | 1 => String::new(),
            number => format!(", mail number {number} since they last read anything"),
        };
        let text = format!("was sent a mail about what they missed up to record {}", self.up_to);
        (self.user_id.to_string(), text + &again)
    }
}
