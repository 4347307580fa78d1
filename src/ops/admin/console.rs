//! Make a link that logs an administrator in to the console, once.

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};

use super::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_base::{clock::millis, limits};
use logcabin_record::command::Secret;
use logcabin_service::accounts::login_token::{self, Purpose};

/// The most administrators that an error names.
const NAMED: usize = 5;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MakeConsoleLink {
    /// None for the only administrator.
    pub user: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConsoleLink {
    pub user_id: OwnedUserId,
    /// The address of the server, if its console is on.
    pub server: Option<String>,
    /// The secret part of the link's address, which is not stored.
    pub secret: Secret,
    /// When it expires, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

impl Act for MakeConsoleLink {
    const NAME: &'static str = "make-console-link";
    const DONE: &'static str = "console-link";
    type Done = ConsoleLink;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<ConsoleLink, ActError> {
        let user_id = match &self.user {
            Some(user) => context.active(user)?,
            None => only_administrator(context)?,
        };
        let standing = context.engine.state().accounts.standing(&user_id).unwrap_or_default();
        if !standing.admin {
            let why = format!("{user_id} does not administer this server");
            return Err(ActError::Invalid(why));
        }
        let now_ms = context.engine.clock().now_ms();
        let expires_ms = now_ms.saturating_add(millis(limits::CONSOLE_LINK));
        let secret = login_token::make(&context.signer, Purpose::Console, &user_id, expires_ms);
        let secret = secret.map_err(ActError::invalid)?.into();
        Ok(ConsoleLink { user_id, server: context.console.clone(), secret, expires_ms })
    }
}

fn only_administrator(context: &ActContext) -> Result<OwnedUserId, ActError> {
    let accounts = &context.engine.state().accounts;
    let is_admin = |user_id: &OwnedUserId| {
        accounts.standing(user_id).is_some_and(|of| of.admin && of.deactivated.is_none())
    };
    let mut all: Vec<_> = accounts.user_ids().into_iter().filter(is_admin).take(NAMED).collect();
    match (all.pop(), all.len()) {
        (Some(only), 0) => Ok(only),
        (Some(last), _) => {
            let names: Vec<_> = all.iter().chain([&last]).map(ToString::to_string).collect();
            let why = format!("name one of the administrators: {}", names.join(", "));
            Err(ActError::Invalid(why))
        }
        (None, _) => {
            let why = "this server has no administrator; `logcabin user set-admin` makes one";
            Err(ActError::Invalid(why.to_owned()))
        }
    }
}
