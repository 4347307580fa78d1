//! Importing an account from the export of a user.

use serde_json::value::RawValue;

use super::{Commit, Proposal, Refusal, account::Register};
use logcabin_record::{
    Stream,
    command::{AccountDataSet, UserStatus},
};

/// Create a locked account, atomically with the account data that says where it came from.
#[derive(Clone, Debug)]
pub struct ImportAccount {
    /// The account.
    pub register: Register,
    /// Why it is locked.
    pub reason: String,
    /// The type of that account data.
    pub event_type: String,
    pub content: Box<RawValue>,
}

impl Proposal for ImportAccount {
    type Outcome = ();

    fn stream(&self) -> Stream {
        self.register.stream()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        self.register.decide(commit)?;
        let user_id = &self.register.user_id;
        let locked = UserStatus {
            locked: Some(true),
            reason: Some(self.reason.clone()),
            ..UserStatus::of(user_id.clone())
        };
        let origin = AccountDataSet {
            user_id: user_id.clone(),
            room_id: None,
            event_type: self.event_type.clone(),
            content: self.content.clone(),
        };
        commit.append(Stream::user(user_id), locked);
        commit.append(Stream::user(user_id), origin);
        Ok(())
    }
}
