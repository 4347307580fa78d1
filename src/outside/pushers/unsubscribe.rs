//! The link in mail about missed messages that ends such mail without a login.
//!
//! The token in it is a signed statement that names the user and the address: there is no table of
//! links. It never expires, like the mail that contains it, and also applies to a pusher that is
//! set again later.

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};

use logcabin_base::signed::Signer;
use logcabin_record::pusher::PusherIds;
use logcabin_state::{Pusher, State};

const PURPOSE: &str = "end of mail about what was missed";

#[derive(Serialize, Deserialize)]
struct Statement {
    #[serde(rename = "u")]
    user_id: OwnedUserId,
    /// A hash, so that the address is not in the logs of servers that forward the link.
    #[serde(rename = "p")]
    pusher: String,
}

/// What a link ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsubscription {
    pub user_id: OwnedUserId,
    /// The pusher; `None` if it no longer exists.
    pub ids: Option<PusherIds>,
}

fn of(ids: &PusherIds) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [&ids.app_id, &ids.pushkey] {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    // As in the links that were sent before.
    format!("pusher/{}", &hasher.finalize().to_hex()[..32])
}

/// The token of a link.
pub(super) fn token(signer: &Signer, pusher: &Pusher) -> Result<String, serde_json::Error> {
    let statement =
        Statement { user_id: pusher.body.user_id.clone(), pusher: of(&pusher.body.ids) };
    signer.sign(PURPOSE, &statement, u64::MAX)
}

/// What a token ends; `None` if this server has not made it.
pub fn unsubscription(signer: &Signer, state: &State, token: &str) -> Option<Unsubscription> {
    let (Statement { user_id, pusher }, _) = signer.open(PURPOSE, token, 0)?;
    let own = state.pushers.of_user(&user_id);
    let found = own.iter().find(|own| own.is_mail() && of(&own.body.ids) == pusher);
    Some(Unsubscription { ids: found.map(|own| own.body.ids.clone()), user_id })
}
