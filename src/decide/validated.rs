//! The use of a validation: as proof, or to own the identifier.

use ruma::OwnedUserId;

use super::{Commit, Refusal};
use logcabin_base::limits;
use logcabin_record::{
    Stream,
    threepid::{Purpose, Threepid, ThreepidAdd, ValidationUse},
};

/// A validated identifier that is about to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validated {
    /// The validation.
    pub sid: String,
    pub purpose: Purpose,
    pub threepid: Threepid,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

impl Validated {
    /// Makes use of it. Gives when it was validated, in milliseconds since the Unix epoch.
    pub(super) fn spend(&self, commit: &mut Commit<'_>) -> Result<u64, Refusal> {
        commit.rests_on(Stream::threepid(&self.threepid));
        let found = commit
            .env
            .state
            .validations
            .get(&self.sid, self.now_ms)
            .filter(|found| found.threepid == self.threepid && found.purpose == self.purpose);
        let validated_ms =
            found.and_then(|found| found.validated_ms).ok_or(Refusal::ThreepidAuthFailed)?;
        commit.append(Stream::threepid(&self.threepid), ValidationUse { sid: self.sid.clone() });
        Ok(validated_ms)
    }

    pub(super) fn claim(
        &self,
        commit: &mut Commit<'_>,
        user_id: &OwnedUserId,
    ) -> Result<(), Refusal> {
        let validated_ms = self.spend(commit)?;
        match commit.env.state.threepids.owner(&self.threepid) {
            Some(owner) if owner == *user_id => return Ok(()),
            Some(_) => return Err(Refusal::ThreepidInUse),
            None => {}
        }
        if commit.env.state.threepids.of_user(user_id).len() >= limits::THREEPIDS {
            let limit = limits::THREEPIDS;
            return Err(Refusal::Forbidden(format!("An account has {limit} addresses at most.")));
        }
        commit.append(
            Stream::threepid(&self.threepid),
            ThreepidAdd {
                user_id: user_id.clone(),
                threepid: self.threepid.clone(),
                validated_ms,
                added_ms: self.now_ms,
            },
        );
        Ok(())
    }
}
