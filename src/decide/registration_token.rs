//! Registration tokens, as administrators set them.

use serde::{Deserialize, Serialize};

use super::{Commit, Proposal, Refusal};
use logcabin_record::{
    Stream,
    command::{RegistrationTokenRemove, RegistrationTokenSet, TokenHash},
};

/// Create a registration token.
#[derive(Clone, Debug)]
pub struct CreateRegistrationToken {
    pub token: TokenHash,
    pub label: Option<String>,
    /// How many accounts can be created with it in all; `None`: any number.
    pub uses_allowed: Option<u64>,
    /// When it expires, in milliseconds since the Unix epoch; `None`: never.
    pub expires_ms: Option<u64>,
}

impl Proposal for CreateRegistrationToken {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::registration_token(&self.token)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Self { token, label, uses_allowed, expires_ms } = self.clone();
        if commit.env.state.registration_tokens.get(&token).is_some() {
            let why = "There is this registration token already.";
            return Err(Refusal::InvalidParam(why.to_owned()));
        }
        let set = RegistrationTokenSet {
            registration_token: token,
            label,
            uses_allowed,
            expires_ms,
            used: None,
        };
        commit.append(self.stream(), set);
        Ok(())
    }
}

/// A change of an optional value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change<T> {
    /// Unchanged.
    #[default]
    Keep,
    /// Removed.
    Clear,
    /// Set to this.
    To(T),
}

impl<T> Change<T> {
    fn of(self, before: Option<T>) -> Option<T> {
        match self {
            Self::Keep => before,
            Self::Clear => None,
            Self::To(after) => Some(after),
        }
    }
}

/// Change the limits of a registration token. Its use count is kept.
#[derive(Clone, Debug)]
pub struct UpdateRegistrationToken {
    pub token: TokenHash,
    pub label: Change<String>,
    /// How many accounts can be created with it in all; `None`: any number.
    pub uses_allowed: Change<u64>,
    /// When it expires, in milliseconds since the Unix epoch; `None`: never.
    pub expires_ms: Change<u64>,
}

impl Proposal for UpdateRegistrationToken {
    /// Whether anything changed.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::registration_token(&self.token)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let before = commit.env.state.registration_tokens.get(&self.token).ok_or_else(no_token)?;
        let Self { token, label, uses_allowed, expires_ms } = self.clone();
        let was = (before.label, before.uses_allowed, before.expires_ms);
        let is = (label.of(was.0.clone()), uses_allowed.of(was.1), expires_ms.of(was.2));
        let changed = is != was;
        if changed {
            let (label, uses_allowed, expires_ms) = is;
            let set = RegistrationTokenSet {
                registration_token: token,
                label,
                uses_allowed,
                expires_ms,
                used: None,
            };
            commit.append(self.stream(), set);
        }
        Ok(changed)
    }
}

fn no_token() -> Refusal {
    Refusal::NotFound("There is no such registration token.".to_owned())
}

/// Remove a registration token.
#[derive(Clone, Debug)]
pub struct RemoveRegistrationToken {
    pub token: TokenHash,
}

impl Proposal for RemoveRegistrationToken {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::registration_token(&self.token)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        if commit.env.state.registration_tokens.get(&self.token).is_none() {
            return Err(no_token());
        }
        let removed = RegistrationTokenRemove { registration_token: self.token };
        commit.append(self.stream(), removed);
        Ok(())
    }
}
