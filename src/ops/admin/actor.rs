//! The name under which acts are recorded.

use nix::unistd::{Uid, User};

/// The name of a user of this machine.
pub fn name(uid: Option<u32>) -> String {
    uid.map_or_else(
        || "unknown".to_owned(),
        |uid| match User::from_uid(Uid::from_raw(uid)) {
            Ok(Some(user)) => user.name,
            _ => format!("uid {uid}"),
        },
    )
}
