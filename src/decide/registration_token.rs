//! Registration tokens, as those who run the server set them.

use super::{Proposal, Refusal, Turn};
use crate::record::{
    Stream,
    command::{RegistrationTokenRemove, RegistrationTokenSet, TokenHash},
};

/// Make a registration token, or set what it is good for anew. How often it was used stays.
#[derive(Clone, Debug)]
pub struct SetRegistrationToken {
    /// The token.
    pub token: TokenHash,
    /// What it is called.
    pub label: Option<String>,
    /// How many accounts can be made with it in all; none: any number.
    pub uses_allowed: Option<u64>,
    /// When it expires, in milliseconds since the Unix epoch; none: never.
    pub expires_ms: Option<u64>,
}

impl Proposal for SetRegistrationToken {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::registration_token(&self.token)
    }

    fn decide(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let Self { token, label, uses_allowed, expires_ms } = self.clone();
        let stands = turn.env.state.registration_tokens.get(&token).is_some_and(|before| {
            (&before.label, before.uses_allowed, before.expires_ms)
                == (&label, uses_allowed, expires_ms)
        });
        if !stands {
            let set =
                RegistrationTokenSet { registration_token: token, label, uses_allowed, expires_ms };
            turn.append(self.stream(), set);
        }
        Ok(())
    }
}

/// Remove a registration token.
#[derive(Clone, Debug)]
pub struct RemoveRegistrationToken {
    /// The token.
    pub token: TokenHash,
}

impl Proposal for RemoveRegistrationToken {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::registration_token(&self.token)
    }

    fn decide(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        if turn.env.state.registration_tokens.get(&self.token).is_none() {
            return Err(Refusal::NotFound("There is no such registration token.".to_owned()));
        }
        let removed = RegistrationTokenRemove { registration_token: self.token };
        turn.append(self.stream(), removed);
        Ok(())
    }
}
