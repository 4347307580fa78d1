//! Commands of third-party identifiers and their validation, in words.

use super::{ActorAndText, Describe};
use logcabin_record::{
    Record,
    threepid::{
        Purpose, ThreepidAdd, ThreepidBind, ThreepidRemove, ThreepidUnbind, ValidationComplete,
        ValidationMiss, ValidationRequest, ValidationSent, ValidationUse,
    },
};

impl Describe for ValidationRequest {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let what_for = match self.purpose {
            Purpose::Register => "to register with it",
            Purpose::Account => "to prove that an account is theirs",
            Purpose::Add => "to add it to an account",
        };
        let vain = if self.token.is_some() { "" } else { ", in vain" };
        let text = format!("asked for a message to {} {what_for}{vain}", self.threepid);
        (who, format!("{text} (validation {}, attempt {})", self.sid, self.send_attempt))
    }
}

impl Describe for ValidationSent {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("sent the message of validation {}", self.sid))
    }
}

impl Describe for ValidationMiss {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("tried a wrong token for validation {}", self.sid))
    }
}

impl Describe for ValidationComplete {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("completed validation {}", self.sid))
    }
}

impl Describe for ValidationUse {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, format!("made use of validation {}", self.sid))
    }
}

impl Describe for ThreepidAdd {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        (self.user_id.to_string(), format!("added {}", self.threepid))
    }
}

impl Describe for ThreepidRemove {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        (self.user_id.to_string(), format!("removed {}", self.threepid))
    }
}

impl Describe for ThreepidBind {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let text = format!("bound {} to themselves on {}", self.threepid, self.id_server);
        (self.user_id.to_string(), text)
    }
}

impl Describe for ThreepidUnbind {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let text = format!("unbound {} from themselves on {}", self.threepid, self.id_server);
        (self.user_id.to_string(), text)
    }
}
