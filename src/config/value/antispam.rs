//! What the antispam hook and the built-in checks look at.

use toml::Value;

use super::{RawSetting, Setting, words};

macro_rules! hook_points {
    ($($(#[$doc:meta])* $point:ident = $name:literal;)+) => {
        /// What somebody is about to do, when the antispam hook is asked.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum HookPoint {
            $($(#[$doc])* $point,)+
        }

        impl HookPoint {
            pub const ALL: &'static [Self] = &[$(Self::$point),+];

            /// Its name, in the configuration and in questions.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)+
                }
            }
        }

        impl Setting for HookPoint {
            const ALLOWED: &'static str = concat!("one of", $(" \"", $name, "\"",)+);
            const LISTED: &'static str =
                concat!("a list, which may be empty, of", $(" \"", $name, "\"",)+);

            fn read(given: &RawSetting<'_>) -> Option<Self> {
                let text = given.text()?;
                Self::ALL.iter().copied().find(|point| point.name() == text)
            }

            fn to_toml(&self) -> Value {
                Value::String(self.name().to_owned())
            }
        }
    };
}

hook_points! {
    Registration = "registration";
    Login = "login";
    CreateRoom = "create_room";
    Invite = "invite";
    /// Joins and knocks.
    Join = "join";
    /// Messages, and state that is sent by itself.
    Message = "message";
    Upload = "upload";
    Profile = "profile";
    /// E-mail addresses and phone numbers.
    Address = "address";
}

/// What becomes of what the hook cannot be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookFailure {
    /// It is allowed.
    Open,
    /// It is refused.
    Closed,
}

words!(HookFailure, "\"open\" or \"closed\"", Open = "open", Closed = "closed");

/// What becomes of a message that a built-in check is against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// It is sent, and noted.
    Mark,
    Refuse,
}

words!(CheckOutcome, "\"mark\" or \"refuse\"", Mark = "mark", Refuse = "refuse");
