//! Commands of uploaded files, in words.

use super::{ActorAndText, Describe, because};
use logcabin_record::{
    Record,
    command::{MediaCreate, MediaEnd, MediaProtect, MediaQuarantine, MediaRemove, MediaUpload},
};

impl Describe for MediaCreate {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        (self.user_id.to_string(), format!("was given the media id {}", self.media_id))
    }
}

impl Describe for MediaUpload {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let name = self.name.map_or_else(String::new, |name| format!(", \"{name}\""));
        let of = self.content_type.map_or_else(String::new, |kind| format!(" of {kind}"));
        let text = format!("{} ({} bytes{of}{name})", self.media_id, self.size);
        match self.user_id {
            Some(user_id) => (user_id.to_string(), format!("uploaded {text}")),
            None => (who, format!("had the server fetch {text}")),
        }
    }
}

impl Describe for MediaQuarantine {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let does = match self.quarantined {
            true => "put into quarantine",
            false => "took out of quarantine",
        };
        let remote = self.remote.into_iter().map(|address| address.to_string());
        let all: Vec<_> = self.media_ids.into_iter().chain(remote).collect();
        let what = match &*all {
            [one] => one.clone(),
            many => format!("{} files: {}", many.len(), many.join(", ")),
        };
        (who, format!("{does} {what}{}", because(self.reason)))
    }
}

impl Describe for MediaProtect {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let does = if self.protected { "exempted" } else { "no longer exempts" };
        (who, format!("{does} {} from quarantine", self.media_id))
    }
}

impl Describe for MediaRemove {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let why = match self.why {
            MediaEnd::Lifetime { lifetime_ms } => {
                format!("that had been kept for {} seconds", lifetime_ms / 1000)
            }
            MediaEnd::Owner { user_id, .. } => format!("of {user_id}, who was erased"),
            MediaEnd::Asked => "as an administrator ordered".to_owned(),
            MediaEnd::Room { room_id } => format!("that only {room_id} named"),
        };
        (who, format!("removed {} file(s) {why}", self.media_ids.len()))
    }
}
