//! The result of acts that change an account.

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};

/// An account was changed, unless it was so already.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Changed {
    pub user_id: OwnedUserId,
    pub changed: bool,
}
