//! `logcabin notice`: server notices.

use std::process::ExitCode;

use super::act::ActOptions;
use logcabin_ops::admin::notices::{NoticeSent, SendNotice};

/// Send a server notice to a user
///
/// A user's notices go to one room, which the first of them creates. The setting
/// `server_notices.localpart` names the sender.
#[derive(Debug, clap::Args)]
pub(super) struct Notice {
    /// The user
    #[arg(value_name = "USER")]
    user: String,

    /// The message
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
            format!("Sent to {user_id} in {room_id} ({event_id}).\n")
        })
    }
}
