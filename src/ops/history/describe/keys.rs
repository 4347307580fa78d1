//! Commands of end-to-end encryption, in words.

use super::{ActorAndText, Describe, joined};
use logcabin_record::{
    Record,
    command::{
        KeyBackupDelete, KeyBackupPut, KeyBackupRemove, KeyBackupSet, KeysClaim, KeysCrossSign,
        KeysDrop, KeysSign, KeysUpload,
    },
};

impl Describe for KeysUpload {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let mut what = Vec::new();
        if self.device_keys.is_some() {
            what.push("identity keys".to_owned());
        }
        let counted = [(self.one_time_keys, "one-time"), (self.fallback_keys, "fallback")];
        for (keys, kind) in counted.into_iter().filter(|(keys, _)| !keys.is_empty()) {
            what.push(format!("{} {kind} key(s)", keys.len()));
        }
        (self.user_id.to_string(), format!("uploaded {} of {}", joined(what), self.device_id))
    }
}

impl Describe for KeysClaim {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("was given {} of {} {}", self.key_id, self.user_id, self.device_id))
    }
}

impl Describe for KeysDrop {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let text = "dropped all one-time keys, any of which may have been handed out";
        (who, text.to_owned())
    }
}

impl Describe for KeysCrossSign {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        (self.user_id.to_string(), "set cross-signing keys".to_owned())
    }
}

impl Describe for KeysSign {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let signed = joined(self.signatures.into_keys().collect());
        (self.by.to_string(), format!("signed {signed} of {}", self.user_id))
    }
}

impl Describe for KeyBackupSet {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let text = format!("set key backup {}, {}", self.version, self.algorithm);
        (self.user_id.to_string(), text)
    }
}

impl Describe for KeyBackupDelete {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        (self.user_id.to_string(), format!("deleted key backup {}", self.version))
    }
}

impl Describe for KeyBackupPut {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let keys: usize = self.rooms.values().map(std::collections::BTreeMap::len).sum();
        let text = format!("put {keys} room key(s) into key backup {}", self.version);
        (self.user_id.to_string(), text)
    }
}

impl Describe for KeyBackupRemove {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let what = match (&self.room_id, &self.session_id) {
            (Some(room_id), Some(session_id)) => {
                format!("the key of {session_id} in {room_id}")
            }
            (Some(room_id), None) => format!("the keys of {room_id}"),
            (None, _) => "all keys".to_owned(),
        };
        (self.user_id.to_string(), format!("removed {what} from key backup {}", self.version))
    }
}
