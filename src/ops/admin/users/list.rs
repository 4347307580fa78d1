//! List the accounts, in pages by user id.

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};

use super::summary::{UserSummary, summary};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};

/// The most users in one answer.
const PAGE: usize = 1000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListUsers {
    /// The last user of the previous page.
    pub after: Option<OwnedUserId>,
    pub filter: Filter,
}

/// Lets the users through to whom all set fields apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Filter {
    pub admin: bool,
    pub locked: bool,
    pub suspended: bool,
    pub shadow_banned: bool,
    pub deactivated: bool,
    pub guest: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Users {
    pub users: Vec<UserSummary>,
    /// `after` of the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<OwnedUserId>,
}

impl Act for ListUsers {
    const NAME: &'static str = "list-users";
    const DONE: &'static str = "users";
    type Done = Users;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Users, ActError> {
        let Self { after, filter } = self;
        let all = context.engine.state().accounts.user_ids();
        let start = after.map_or(0, |after| all.partition_point(|user_id| **user_id <= *after));
        let mut users = Vec::new();
        let mut next = None;
        for user_id in all.into_iter().skip(start) {
            if users.len() == PAGE {
                next = users.last().map(|last: &UserSummary| last.user_id.clone());
                break;
            }
            let Some(account) = context.engine.state().accounts.get(&user_id) else { continue };
            let summary = summary(context, &account.read());
            if filter.lets_through(&summary) {
                users.push(summary);
            }
        }
        Ok(Users { users, next })
    }
}

impl Filter {
    fn lets_through(&self, user: &UserSummary) -> bool {
        let fits = |asked: bool, is: bool| !asked || is;
        fits(self.admin, user.admin)
            && fits(self.locked, user.locked)
            && fits(self.suspended, user.suspended)
            && fits(self.shadow_banned, user.shadow_banned)
            && fits(self.deactivated, user.deactivated)
            && fits(self.guest, user.guest)
    }
}
