//! Commands of accounts, in words.

use std::collections::BTreeMap;

use super::{ActorAndText, Describe, because, plain};
use crate::history::moment::Time;
use logcabin_record::{
    Record,
    command::{
        AccountDataSet, AccountKind, FilterCreate, LoginTokenUse, PresenceSet, PresenceState,
        ProfileSet, RegistrationTokenRemove, RegistrationTokenSet, Requirements, SsoLink,
        UserDeactivate, UserErase, UserPassword, UserRedact, UserRedactFinish, UserRegister,
        UserStatus, UserUpgrade, UserWait,
    },
};

impl Describe for UserRegister {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let with = if self.password.is_some() { "" } else { " without a password" };
        let guest = if self.kind == AccountKind::Guest { " as a guest" } else { "" };
        let met = requirements(&self.met);
        (self.user_id.to_string(), format!("registered{guest}{with}{met}"))
    }
}

impl Describe for UserUpgrade {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let met = requirements(&self.met);
        (self.user_id.to_string(), format!("is no longer a guest{met}"))
    }
}

impl Describe for UserWait {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let from = self.address.map_or_else(String::new, |address| format!(" from {address}"));
        let answer = self.answer.map_or_else(String::new, |answer| format!(": {answer}"));
        (self.user_id.to_string(), format!("waits for approval, registered{from}{answer}"))
    }
}

impl Describe for RegistrationTokenSet {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let hash = self.registration_token.start();
        let label = self.label.map_or_else(String::new, |label| format!(" ({label})"));
        let uses = match self.uses_allowed {
            Some(uses) => format!("for {uses} account(s)"),
            None => "for any number of accounts".to_owned(),
        };
        let until = self.expires_ms.map_or_else(String::new, |ms| format!(", until {}", Time(ms)));
        let used = self.used.map_or_else(String::new, |used| format!(", used {used} time(s)"));
        (who, format!("set the registration token {hash}…{label} {uses}{until}{used}"))
    }
}

impl Describe for RegistrationTokenRemove {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let hash = self.registration_token.start();
        (who, format!("removed the registration token {hash}…"))
    }
}

impl Describe for LoginTokenUse {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        (self.user_id.to_string(), "used a login token".to_owned())
    }
}

impl Describe for SsoLink {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let text = format!("is linked with {} at {}", self.subject, self.provider);
        (self.user_id.to_string(), text)
    }
}

impl Describe for UserPassword {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let text = if self.renewed {
            "has a stronger hash of the same password"
        } else {
            "has a new password"
        };
        (self.user_id.to_string(), text.to_owned())
    }
}

impl Describe for UserStatus {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        (who, of_status(self))
    }
}

impl Describe for UserDeactivate {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let erased = match (self.erase, self.messages) {
            (false, _) => "",
            (true, false) => " and erased what they sent",
            (true, true) => " and erased what they sent for everybody",
        };
        (who, format!("deactivated {}{erased}{}", self.user_id, because(self.reason)))
    }
}

impl Describe for UserErase {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let records: u64 =
            self.records.iter().map(|(a, b)| (b.get() + 1).saturating_sub(a.get())).sum();
        let text = format!(
            "is erasing what is kept of {}, {records} record(s), for record {}",
            self.user_id, self.because
        );
        (who, text)
    }
}

impl Describe for UserRedact {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let limit = self.limit.map(|limit| format!(", the latest {limit} in each room"));
        let rooms = match &self.rooms[..] {
            [] => String::new(),
            [room_id] => format!(" in {room_id}"),
            rooms => format!(" in {} rooms", rooms.len()),
        };
        let text = format!(
            "began to redact what {} sent{rooms}{}{}",
            self.user_id,
            limit.unwrap_or_default(),
            because(self.say)
        );
        (who, text)
    }
}

impl Describe for UserRedactFinish {
    fn describe(self, _: &Record, who: String) -> ActorAndText {
        let failed = match self.failures {
            0 => String::new(),
            number => format!(", but could not redact {number}"),
        };
        (who, format!("has redacted {} event(s) of {}{failed}", self.redacted, self.user_id))
    }
}

impl Describe for ProfileSet {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let text = match &self.value {
            Some(value) => format!("set {} to {}", self.field, plain(value)),
            None => format!("removed {}", self.field),
        };
        (self.user_id.to_string(), text)
    }
}

impl Describe for AccountDataSet {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        (self.user_id.to_string(), format!("set account data {}", self.event_type))
    }
}

impl Describe for FilterCreate {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        (self.user_id.to_string(), format!("stored the filter {}", self.filter_id))
    }
}

impl Describe for PresenceSet {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let idle = if self.currently_active { "" } else { ", not active just now" };
        let idle = if self.presence == PresenceState::Online { idle } else { "" };
        let status = self.status_msg.map_or_else(String::new, |text| format!(" ({text})"));
        (self.user_id.to_string(), format!("is {}{idle}{status}", self.presence.as_str()))
    }
}

fn of_status(body: UserStatus) -> String {
    let UserStatus { user_id, admin, locked, suspended, shadow_banned, approved, reason, terms } =
        body;
    let words = [
        admin.map(|admin| match admin {
            true => format!("made {user_id} an administrator"),
            false => format!("removed {user_id} as an administrator"),
        }),
        locked.map(|locked| format!("{} {user_id}", if locked { "locked" } else { "unlocked" })),
        suspended.map(|suspended| {
            format!("{} {user_id}", if suspended { "suspended" } else { "unsuspended" })
        }),
        shadow_banned.map(|banned| match banned {
            true => format!("shadow-banned {user_id}"),
            false => format!("lifted the shadow ban of {user_id}"),
        }),
        approved.filter(|approved| *approved).map(|_| format!("approved {user_id}")),
        (!terms.is_empty()).then(|| format!("noted that {user_id} agreed to {}", versions(&terms))),
    ];
    let words: Vec<_> = words.into_iter().flatten().collect();
    words.join(", ") + &because(reason)
}

fn requirements(met: &Requirements) -> String {
    let mut text = String::new();
    if let Some(token) = &met.registration_token {
        text.push_str(&format!(", with the registration token {}…", token.start()));
    }
    if !met.terms.is_empty() {
        text.push_str(&format!(", agreed to {}", versions(&met.terms)));
    }
    text
}

fn versions(terms: &BTreeMap<String, String>) -> String {
    let terms: Vec<_> = terms.iter().map(|(name, version)| format!("{name} {version}")).collect();
    terms.join(", ")
}
