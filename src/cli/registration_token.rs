//! `logcabin registration-token`: the tokens with which users can register, on a running or stopped
//! server.

use std::{fmt::Write as _, process::ExitCode, str::FromStr};

use super::{act::Common, columns, password};
use logcabin_base::clock::Clock;
use logcabin_decide::registration_token::Change;
use logcabin_ops::{
    admin::tokens::{
        CreateRegistrationToken, DeleteRegistrationToken, ListRegistrationTokens, TokenCreated,
        TokenDeleted, TokenSummary, TokenUpdated, UpdateRegistrationToken,
    },
    history::{
        moment::{Moment, Time, duration_ms},
        terminal::clean,
    },
};
use logcabin_record::command::Secret;

/// Manage registration tokens
///
/// Registration requires one if the setting `registration.require` contains "token". A running
/// server applies changes at once, through the socket in its data directory; if none runs, they are
/// made in the data directory itself. Only a hash of a token is stored: the token is shown once,
/// when it is created. Afterwards, it is named by its id, which `list` shows.
#[derive(Debug, clap::Args)]
pub(super) struct RegistrationToken {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Create(Create),
    List(List),
    Update(Update),
    Delete(Delete),
}

/// Create a token and print it
#[derive(Debug, clap::Args)]
struct Create {
    /// Prompt for the token, or read it from standard input, instead of generating one
    #[arg(long)]
    given: bool,

    /// How many accounts it is valid for, or "unlimited"
    #[arg(long, value_name = "NUMBER", default_value = "unlimited")]
    uses: Uses,

    /// When it expires (2026-12-31, "2026-12-31 18:00" in UTC), after how long (90m, 12h, 7d, 2w),
    /// or "never"
    #[arg(long, value_name = "WHEN", default_value = "never")]
    expires: Expiry,

    /// A label, shown in lists and in the history
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    #[command(flatten)]
    common: Common,
}

/// List the tokens, with how often each was used
#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    common: Common,
}

/// Change a token; settings that are not given stay, as does the number of uses
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args(["uses", "expires", "label"])))]
struct Update {
    #[command(flatten)]
    which: Which,

    /// How many accounts it is valid for in all, or "unlimited"
    #[arg(long, value_name = "NUMBER")]
    uses: Option<Uses>,

    /// When it expires (2026-12-31, "2026-12-31 18:00" in UTC), after how long (90m, 12h, 7d, 2w),
    /// or "never"
    #[arg(long, value_name = "WHEN")]
    expires: Option<Expiry>,

    /// The label; empty for none
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    #[command(flatten)]
    common: Common,
}

/// Delete a token: nobody can register with it any more
#[derive(Debug, clap::Args)]
struct Delete {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Which {
    /// The id of the token, or `-` to prompt for the token itself or read it from standard input
    #[arg(value_name = "ID")]
    id: String,
}

impl Which {
    fn name(self) -> Result<Secret, Failure> {
        if self.id == "-" {
            Ok(password::secret("Registration token: ")?)
        } else {
            Ok(self.id.into())
        }
    }
}

/// How many accounts a token is valid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Uses(Option<u64>);

impl FromStr for Uses {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "unlimited" {
            return Ok(Self(None));
        }
        let uses = text.parse().ok().filter(|uses| *uses > 0);
        uses.map(|uses| Self(Some(uses))).ok_or("neither a positive number nor \"unlimited\"")
    }
}

/// When a token expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiry {
    Never,
    /// At this time, in milliseconds since the Unix epoch.
    At(u64),
    /// After this many milliseconds.
    In(u64),
}

impl FromStr for Expiry {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "never" {
            return Ok(Self::Never);
        }
        if let Some(ms) = duration_ms(text) {
            return Ok(Self::In(ms));
        }
        match text.parse() {
            Ok(Moment::Time(ms)) => Ok(Self::At(ms)),
            _ => Err("neither a time (2026-12-31, 2026-12-31T18:00:00Z), nor how long (90m, 12h, \
                      7d, 2w), nor \"never\""),
        }
    }
}

impl Expiry {
    fn at_ms(self) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::At(ms) => Some(ms),
            Self::In(ms) => Some(Clock::system().now_ms().saturating_add(ms)),
        }
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl RegistrationToken {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            Command::Create(create) => create.run(),
            Command::List(List { common }) => {
                common.run(ListRegistrationTokens {}, |all| list(&all.tokens))
            }
            Command::Update(update) => update.run(),
            Command::Delete(Delete { which, common }) => {
                let act = DeleteRegistrationToken { token: which.name()? };
                common.run(act, |TokenDeleted { id }| {
                    format!("Removed the registration token {id}.\n")
                })
            }
        }
    }
}

impl Create {
    fn run(self) -> Result<ExitCode, Failure> {
        let Self { given, uses, expires, label, common } = self;
        let expires_ms = expires.at_ms();
        if expires_ms.is_some_and(|ms| ms <= Clock::system().now_ms()) {
            return Err("this time is in the past: nobody could use the token".into());
        }
        let token = if given { Some(password::secret("Registration token: ")?) } else { None };
        let uses_allowed = uses.0;
        let act = CreateRegistrationToken { token, label, uses_allowed, expires_ms };
        common.run(act, |TokenCreated { token, summary }| {
            format!("{}\nThis token is shown only now. Its id is {}.\n", token.expose(), summary.id)
        })
    }
}

impl Update {
    fn run(self) -> Result<ExitCode, Failure> {
        let Self { which, uses, expires, label, common } = self;
        let act = UpdateRegistrationToken {
            token: which.name()?,
            label: label.map_or(Change::Keep, Change::To),
            uses_allowed: to(uses.map(|uses| uses.0)),
            expires_ms: to(expires.map(Expiry::at_ms)),
        };
        common.run(act, |TokenUpdated { changed, summary }| {
            let is = if *changed { "is now" } else { "was already" };
            let now = row(summary)[1..].join(", ");
            format!("The registration token {} {is}: {now}\n", summary.id)
        })
    }
}

fn to<T>(given: Option<Option<T>>) -> Change<T> {
    match given {
        None => Change::Keep,
        Some(None) => Change::Clear,
        Some(Some(value)) => Change::To(value),
    }
}

fn row(token: &TokenSummary) -> [String; 5] {
    let used = match token.uses_allowed {
        Some(allowed) => format!("{} of {allowed} used", token.uses),
        None => format!("{} used, unlimited", token.uses),
    };
    let expires = token.expires_ms.map_or_else(
        || "never expires".to_owned(),
        |ms| format!("until {} UTC", Time(ms).to_second()),
    );
    let good = if token.good { "valid" } else { "no longer valid" };
    let label = token.label.as_deref().map_or_else(|| "-".to_owned(), clean);
    [token.id.clone(), label, used, expires, good.to_owned()]
}

fn list(tokens: &[TokenSummary]) -> String {
    let mut text = columns(&tokens.iter().map(row).collect::<Vec<_>>());
    let _ = writeln!(text, "{} registration token(s)", tokens.len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_is_a_time_a_duration_or_never() {
        for (text, expected) in [
            ("never", Expiry::Never),
            ("90s", Expiry::In(90_000)),
            ("2w", Expiry::In(1_209_600_000)),
            ("2026-03-01T12:00:00Z", Expiry::At(1_772_366_400_000)),
            ("2026-03-01 12:00", Expiry::At(1_772_366_400_000)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["", "7", "-7d", "7y", "soon", "99999999999999999999d"] {
            assert!(text.parse::<Expiry>().is_err(), "{text}");
        }
    }

    #[test]
    fn uses_are_a_positive_number_or_unlimited() {
        assert_eq!("unlimited".parse(), Ok(Uses(None)));
        assert_eq!("3".parse(), Ok(Uses(Some(3))));
        for text in ["", "0", "-1", "many"] {
            assert!(text.parse::<Uses>().is_err(), "{text}");
        }
    }
}
