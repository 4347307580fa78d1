//! Deactivate an account, which cannot be undone.

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::status;
use logcabin_record::Offset;
use logcabin_service::accounts::closing::{self, Closed};
use logcabin_state::Membership;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Deactivate {
    pub user: String,
    /// Whether to hide the user's messages from users who join later.
    pub erase: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Deactivated {
    pub user_id: OwnedUserId,
    /// False if it was deactivated (and erased) already.
    pub changed: bool,
    /// How many rooms were left and invites rejected.
    pub rooms: usize,
    /// Addresses that identity servers still publish, as text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub still_bound: Vec<String>,
}

impl Act for Deactivate {
    const NAME: &'static str = "deactivate";
    const DONE: &'static str = "deactivated";
    type Done = Deactivated;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Deactivate an account",
        fields: &[
            Field::new("user", "User", Kind::Text),
            Field::new("erase", "Hide their messages from users who join later", Kind::Flag),
        ],
        is_final: true,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Deactivated, ActError> {
        let user_id = context.user_id(&self.user)?;
        let Attribution { origin, reason } = by;
        let still_bound = context.unbind(&origin, &user_id).await;
        let end = status::Deactivate {
            user_id: user_id.clone(),
            erase: self.erase,
            messages: false,
            media: false,
            reason,
            ts: context.engine.clock().now_ms(),
        };
        let closed = closing::close(&context.engine, origin, end).await;
        let Closed { changed, rooms } = closed.map_err(ActError::of_user(&user_id))?;
        Ok(Deactivated { user_id, changed, rooms, still_bound })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let user_id = context.user_id(&self.user)?;
        let state = context.engine.state();
        let is = state.accounts.standing(&user_id).unwrap_or_default();
        let mut effect = Vec::new();
        if is.deactivated.is_none() {
            effect.push(format!("the account {user_id} is closed, which cannot be undone"));
            effect.push(format!("{} device(s) are logged out", context.devices(&user_id).len()));
            let parts = state.memberships.of(&user_id, Offset::MAX);
            let count =
                |membership| parts.iter().filter(|part| part.membership == membership).count();
            effect.push(format!("{} room(s) are left", count(Membership::Join)));
            let waiting = count(Membership::Invite) + count(Membership::Knock);
            effect.push(format!("{waiting} invite(s) and knock(s) are withdrawn"));
            let threepids = state.threepids.of_user(&user_id).len();
            effect.push(format!("{threepids} address(es) are removed"));
        }
        if self.erase && is.erased.is_none() {
            let what = "profile and account data are removed, and their messages are hidden from \
                        all who have not seen them";
            effect.push(what.to_owned());
        }
        Ok(effect)
    }
}
