//! `logcabin notice`: something to say to a user in the name of the server.

use std::process::ExitCode;

use super::act::ActOptions;
use crate::ops::admin::notices::{NoticeSent, SendNotice};

/// Send a server notice to a user
///
/// They are told in a room for that alone, which is made when there is something to say for the
/// first time. In whose name, is the setting `server_notices.localpart`.
#[derive(Debug, clap::Args)]
pub(super) struct Notice {
    /// The user
    #[arg(value_name = "USER")]
    user: String,

    /// What to say
    #[arg(value_name = "TEXT")]
    text: String,

    #[command(flatten)]
    options: ActOptions,
}

impl Notice {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        let Self { user, text, options } = self;
        let act = SendNotice {
            user,
            event_type: "m.room.message".to_owned(),
            state_key: None,
            content: serde_json::json!({ "msgtype": "m.text", "body": text }),
            transaction: None,
        };
        options.run(act, |NoticeSent { user_id, room_id, event_id }| {
            format!("Told {user_id} in {room_id} ({event_id}).\n")
        })
    }
}
