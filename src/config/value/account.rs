//! Who gets an account and how, and how much its user may ask for.

use ruma::OwnedUserId;
use toml::Value;

use super::{RawSetting, Setting, words};
use logcabin_base::rate::Rate;

/// Whether anyone may create an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenRegistration {
    /// Only while the server listens on loopback addresses alone.
    Auto,
    Yes,
    No,
}

impl Setting for OpenRegistration {
    const ALLOWED: &'static str = "\"auto\", true or false";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        match given.text() {
            Some("auto") => Some(Self::Auto),
            _ => bool::read(given).map(|open| if open { Self::Yes } else { Self::No }),
        }
    }

    fn to_toml(&self) -> Value {
        match self {
            Self::Auto => Value::String("auto".to_owned()),
            Self::Yes => Value::Boolean(true),
            Self::No => Value::Boolean(false),
        }
    }
}

/// Who may invite users with whom they share no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrangersInvite {
    Allow,
    /// Only users of this server may.
    Local,
    Refuse,
}

words!(
    StrangersInvite,
    "\"allow\", \"local\" or \"refuse\"",
    Allow = "allow",
    Local = "local",
    Refuse = "refuse"
);

/// What is before the colon of a user id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Localpart(Box<str>);

impl Localpart {
    /// This one, which is to be such.
    pub(crate) fn new(localpart: &str) -> Self {
        Self(localpart.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Setting for Localpart {
    const ALLOWED: &'static str = "a user name, of a-z, 0-9 and the characters . _ = - / +";
    const OPTIONAL: &'static str =
        "\"off\" or a user name, of a-z, 0-9 and the characters . _ = - / +";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let valid =
            |c: char| matches!(c, 'a'..='z' | '0'..='9' | '.' | '_' | '=' | '-' | '/' | '+');
        let text = given.text()?;
        (!text.is_empty() && text.len() <= 128 && text.chars().all(valid)).then(|| Self::new(text))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// A user whose requests have a limit of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRate {
    pub user_id: OwnedUserId,
    /// The limit of all their limited requests together.
    pub rate: OwnRate,
}

/// The limit of one user's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnRate {
    /// None.
    Unlimited,
    /// This one, instead of any other.
    Rate(Rate),
}

impl std::str::FromStr for UserRate {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (user_id, rate) = text.trim().split_once(' ').ok_or(())?;
        let rate = match rate.trim() {
            "off" => OwnRate::Unlimited,
            rate => OwnRate::Rate(rate.parse()?),
        };
        Ok(Self { user_id: OwnedUserId::try_from(user_id).map_err(|_| ())?, rate })
    }
}

impl Setting for UserRate {
    const ALLOWED: &'static str = "a list of users, each with a rate or \"off\", such as \
                                   \"@bot:example.org 100/s burst 1000\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        given.text()?.parse().ok()
    }

    fn to_toml(&self) -> Value {
        Value::String(match self.rate {
            OwnRate::Unlimited => format!("{} off", self.user_id),
            OwnRate::Rate(rate) => format!("{} {rate}", self.user_id),
        })
    }
}

/// A password that nobody may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedPassword(pub Box<str>);

impl Setting for DeniedPassword {
    const ALLOWED: &'static str = "a list of passwords";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        given.text().filter(|text| !text.is_empty()).map(|text| Self(text.into()))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

impl Setting for Rate {
    const ALLOWED: &'static str = "a number in a second (s), minute (m) or hour (h), and one at \
                                    once, such as \"10/s burst 100\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        given.text()?.parse().ok()
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

/// What a newcomer must do: one of these, as they choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement(pub Vec<RegistrationStage>);

impl Default for Requirement {
    fn default() -> Self {
        Self(vec![RegistrationStage::Dummy])
    }
}

/// One thing that a newcomer may have to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationStage {
    /// Nothing.
    Dummy,
    /// Show a registration token.
    Token,
    /// Pass the captcha.
    Captcha,
    /// Agree to documents.
    Terms,
    /// Show that a mail address is theirs.
    Email,
    /// Show that a phone number is theirs.
    Msisdn,
}

impl RegistrationStage {
    const ALL: [Self; 6] =
        [Self::Dummy, Self::Token, Self::Captcha, Self::Terms, Self::Email, Self::Msisdn];

    /// What it is called in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dummy => "dummy",
            Self::Token => "token",
            Self::Captcha => "captcha",
            Self::Terms => "terms",
            Self::Email => "email",
            Self::Msisdn => "msisdn",
        }
    }
}

impl Setting for Requirement {
    const ALLOWED: &'static str = "a list of \"dummy\", \"token\", \"captcha\", \"terms\", \"email\" \
                                   and \"msisdn\", with | between those of which one is enough";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let stage = |name: &str| {
            RegistrationStage::ALL.into_iter().find(|stage| stage.as_str() == name.trim())
        };
        given.text()?.split('|').map(stage).collect::<Option<_>>().map(Self)
    }

    fn to_toml(&self) -> Value {
        let names: Vec<_> = self.0.iter().map(|stage| stage.as_str()).collect();
        Value::String(names.join("|"))
    }
}
