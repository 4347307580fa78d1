//! Third-party identifiers: their validation, ownership and publication.
//!
//! A decision on who owns an identifier depends on the identifier's stream, so that only one of two
//! concurrent claims succeeds.

use ruma::OwnedUserId;

pub use super::validated::Validated;

use super::{
    Commit, Proposal, Refusal,
    account::{SetPassword, no_account},
};
use logcabin_base::limits;
use logcabin_record::{
    Stream,
    command::TokenHash,
    threepid::{
        Purpose, Threepid, ThreepidBind, ThreepidRemove, ThreepidUnbind, ValidationComplete,
        ValidationMiss, ValidationRequest, ValidationSent,
    },
};
use logcabin_state::{State, validations::Validation};

/// Request the validation of an identifier.
#[derive(Clone, Debug)]
pub struct RequestValidation {
    /// The session id to use, unless an unexpired validation with the same identifier, purpose and
    /// client secret exists.
    pub sid: String,
    pub purpose: Purpose,
    pub threepid: Threepid,
    pub client_secret: TokenHash,
    /// The hash of the token that completes it, with the client's secret; `None` if nothing can
    /// complete it.
    pub token: Option<TokenHash>,
    /// The client's `send_attempt`: a higher one asks for another message.
    pub send_attempt: u64,
    /// When it expires, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// How many messages the unexpired validations of one address may cause in all.
    pub most_messages: u64,
}

/// The result of a validation request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// The id of the validation.
    pub sid: String,
    /// Whether the message is to be sent now.
    pub send: bool,
}

impl RequestValidation {
    /// Whether it asks for a message that has not been sent yet, as of `state`. The limit on
    /// messages may still refuse it.
    pub fn sends(&self, state: &State) -> bool {
        !self.found(state).is_some_and(|found| self.is_repeated_by(&found))
    }

    fn found(&self, state: &State) -> Option<Validation> {
        let client_secret = &self.client_secret;
        state.validations.find(&self.threepid, self.purpose, client_secret, self.now_ms)
    }

    /// An attempt counts only after its message has been sent; until then it can be repeated.
    fn is_repeated_by(&self, found: &Validation) -> bool {
        let is_sent = found.send_attempt == self.send_attempt && found.sent;
        is_sent || found.send_attempt > self.send_attempt
    }
}

impl Proposal for RequestValidation {
    type Outcome = Requested;

    fn stream(&self) -> Stream {
        Stream::threepid(&self.threepid)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Requested, Refusal> {
        let validations = &commit.env.state.validations;
        let (threepid, now_ms) = (&self.threepid, self.now_ms);
        let found = self.found(&commit.env.state);
        if let Some(found) = found.as_ref().filter(|found| self.is_repeated_by(found)) {
            return Ok(Requested { sid: found.sid.clone(), send: false });
        }
        let (messages, first_expiry_ms) = validations.messages(threepid, now_ms);
        if messages >= self.most_messages {
            let wait_ms = first_expiry_ms.unwrap_or(now_ms).saturating_sub(now_ms);
            return Err(Refusal::TooManyMessages { wait_ms });
        }
        let sid = found.map_or_else(|| self.sid.clone(), |found| found.sid);
        commit.append(
            self.stream(),
            ValidationRequest {
                sid: sid.clone(),
                purpose: self.purpose,
                threepid: threepid.clone(),
                client_secret: self.client_secret,
                token: self.token,
                send_attempt: self.send_attempt,
                expires_ms: self.expires_ms,
            },
        );
        Ok(Requested { sid, send: true })
    }
}

/// Record that the message of a validation was handed over for delivery.
#[derive(Clone, Debug)]
pub struct NoteSent {
    /// What is being validated.
    pub threepid: Threepid,
    /// The validation.
    pub sid: String,
    /// The client's `send_attempt`.
    pub send_attempt: u64,
}

impl Proposal for NoteSent {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::threepid(&self.threepid)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let (sid, send_attempt) = (self.sid.clone(), self.send_attempt);
        commit.append(self.stream(), ValidationSent { sid, send_attempt });
        Ok(())
    }
}

/// Submit the token that was sent.
#[derive(Clone, Debug)]
pub struct CompleteValidation {
    /// What is being validated.
    pub threepid: Threepid,
    /// The validation.
    pub sid: String,
    pub client_secret: TokenHash,
    pub token: TokenHash,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

impl Proposal for CompleteValidation {
    /// Whether the token is correct.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::threepid(&self.threepid)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let (sid, validated_ms) = (self.sid.clone(), self.now_ms);
        let found = commit.env.state.validations.get(&sid, self.now_ms);
        let Some(found) = found.filter(|found| found.client_secret == self.client_secret) else {
            return Ok(false);
        };
        let is_correct = found.is_completed_by(&self.token);
        if is_correct && found.validated_ms.is_none() {
            commit.append(self.stream(), ValidationComplete { sid, validated_ms });
        } else if !is_correct && found.misses < limits::VALIDATION_MISSES {
            commit.append(self.stream(), ValidationMiss { sid });
        }
        Ok(is_correct)
    }
}

/// Use up a validation that proved identity in user-interactive authentication.
#[derive(Clone, Debug)]
pub struct SpendValidation(pub Validated);

impl Proposal for SpendValidation {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::threepid(&self.0.threepid)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        self.0.spend(commit).map(drop)
    }
}

/// Reset a password, with proof that the user owns an identifier of the account.
#[derive(Clone, Debug)]
pub struct ResetPassword {
    /// The new password.
    pub set: SetPassword,
    pub proof: Validated,
}

impl Proposal for ResetPassword {
    type Outcome = ();

    fn stream(&self) -> Stream {
        self.set.stream()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        self.proof.spend(commit)?;
        let owner = commit.env.state.threepids.owner(&self.proof.threepid);
        if owner.as_ref() != Some(&self.set.user_id) {
            return Err(Refusal::ThreepidAuthFailed);
        }
        self.set.decide(commit)
    }
}

/// Add an identifier to an account.
#[derive(Clone, Debug)]
pub struct AddThreepid {
    pub user_id: OwnedUserId,
    /// The proof that the user controls the identifier.
    pub validated: Validated,
}

impl Proposal for AddThreepid {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let standing = commit.env.state.accounts.standing(&self.user_id).ok_or_else(no_account)?;
        if standing.deactivated.is_some() {
            return Err(Refusal::UserDeactivated);
        }
        self.validated.claim(commit, &self.user_id)
    }
}

/// Remove an identifier from an account.
#[derive(Clone, Debug)]
pub struct RemoveThreepid {
    pub user_id: OwnedUserId,
    pub threepid: Threepid,
}

impl Proposal for RemoveThreepid {
    /// Whether the account had it.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let (user_id, threepid) = (self.user_id.clone(), self.threepid.clone());
        let stream = Stream::threepid(&threepid);
        commit.rests_on(stream.clone());
        if commit.env.state.threepids.owner(&threepid).as_ref() != Some(&user_id) {
            return Ok(false);
        }
        commit.append(stream, ThreepidRemove { user_id, threepid });
        Ok(true)
    }
}

/// Refuses another binding of a user who has these, if they are as many as there may be.
pub fn may_bind(bound: &[(Threepid, String)]) -> Result<(), Refusal> {
    if bound.len() >= limits::THREEPIDS {
        let limit = limits::THREEPIDS;
        let reason = format!("A user has {limit} addresses on identity servers at most.");
        return Err(Refusal::Forbidden(reason));
    }
    Ok(())
}

/// Record that an identifier was bound to a user on an identity server.
#[derive(Clone, Debug)]
pub struct NoteBound {
    pub user_id: OwnedUserId,
    pub threepid: Threepid,
    /// The identity server.
    pub id_server: String,
}

impl Proposal for NoteBound {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Self { user_id, threepid, id_server } = self.clone();
        let bound = commit.env.state.threepids.bound(&user_id);
        if !bound.contains(&(threepid.clone(), id_server.clone())) {
            may_bind(&bound)?;
            commit.append(self.stream(), ThreepidBind { user_id, threepid, id_server });
        }
        Ok(())
    }
}

/// Record that an identifier was unbound from a user on an identity server.
#[derive(Clone, Debug)]
pub struct NoteUnbound {
    pub user_id: OwnedUserId,
    pub threepid: Threepid,
    /// The identity server.
    pub id_server: String,
}

impl Proposal for NoteUnbound {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Self { user_id, threepid, id_server } = self.clone();
        let bound = commit.env.state.threepids.bound(&user_id);
        if bound.contains(&(threepid.clone(), id_server.clone())) {
            commit.append(self.stream(), ThreepidUnbind { user_id, threepid, id_server });
        }
        Ok(())
    }
}
