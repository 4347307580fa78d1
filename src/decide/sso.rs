//! Accounts of people at providers of single sign-on.

use ruma::OwnedUserId;

use super::{
    Commit, Proposal, Refusal,
    account::{Register, no_account},
};
use logcabin_record::{
    Stream,
    command::SsoLink,
    threepid::{Threepid, ThreepidAdd},
};

/// Link an account with a person at a single sign-on provider.
#[derive(Clone, Debug)]
pub struct LinkSso {
    pub user_id: OwnedUserId,
    /// The provider's id.
    pub provider: String,
    /// The provider's id of the person.
    pub subject: String,
}

impl Proposal for LinkSso {
    /// The user that the person is linked with: if there was a link already, that one.
    type Outcome = OwnedUserId;

    // What one person asks for is decided on one stream, whoever they want to be.
    fn stream(&self) -> Stream {
        Stream::sso(&self.provider, &self.subject)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<OwnedUserId, Refusal> {
        let accounts = &commit.env.state.accounts;
        if let Some(user_id) = accounts.linked(&self.provider, &self.subject) {
            return Ok(user_id);
        }
        commit.rests_on(Stream::user(&self.user_id));
        let standing = accounts.standing(&self.user_id).ok_or_else(no_account)?;
        if standing.deactivated.is_some() {
            return Err(Refusal::UserDeactivated);
        }
        self.append(commit);
        Ok(self.user_id.clone())
    }
}

impl LinkSso {
    fn append(&self, commit: &mut Commit<'_>) {
        let Self { user_id, provider, subject } = self.clone();
        commit.append(self.stream(), SsoLink { user_id, provider, subject });
    }
}

/// Create an account for a person at a single sign-on provider.
#[derive(Clone, Debug)]
pub struct RegisterLinked {
    /// The account.
    pub register: Register,
    /// The provider's id.
    pub provider: String,
    /// The provider's id of the person.
    pub subject: String,
    /// The person's address, verified by the provider. The account gets it if it is free.
    pub address: Option<VerifiedAddress>,
}

/// An address that another service has verified.
#[derive(Clone, Debug)]
pub struct VerifiedAddress {
    /// The address.
    pub threepid: Threepid,
    /// When the service said so, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

impl Proposal for RegisterLinked {
    /// The user that the person is linked with: if there was a link already, that one.
    type Outcome = OwnedUserId;

    fn stream(&self) -> Stream {
        Stream::sso(&self.provider, &self.subject)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<OwnedUserId, Refusal> {
        let accounts = &commit.env.state.accounts;
        if let Some(user_id) = accounts.linked(&self.provider, &self.subject) {
            return Ok(user_id);
        }
        commit.rests_on(self.register.stream());
        self.register.decide(commit)?;
        let user_id = self.register.user_id.clone();
        let (provider, subject) = (self.provider.clone(), self.subject.clone());
        LinkSso { user_id: user_id.clone(), provider, subject }.append(commit);
        if let Some(VerifiedAddress { threepid, now_ms }) = self.address.clone() {
            let stream = Stream::threepid(&threepid);
            commit.rests_on(stream.clone());
            if commit.env.state.threepids.owner(&threepid).is_none() {
                let user_id = user_id.clone();
                let (validated_ms, added_ms) = (now_ms, now_ms);
                commit.append(stream, ThreepidAdd { user_id, threepid, validated_ms, added_ms });
            }
        }
        Ok(user_id)
    }
}
