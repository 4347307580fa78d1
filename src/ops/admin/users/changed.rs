//! The result of acts that change an account.

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};

/// An account was changed, unless it was so already.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Changed {
    pub(crate) user_id: OwnedUserId,
    pub(crate) changed: bool,
}
