//! Send a user a server notice: in the room of the user's notices, which is created if necessary,
//! and to which the user is invited again after leaving it.

use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId, events::TimelineEventType};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::{
    account::{Register, SetProfile},
    canonical,
    notice::{InviteAgain, OpenNoticeRoom},
    send::SendEvent,
};
use logcabin_read::events::to_raw;
use logcabin_record::{Origin, command::Transaction};
use logcabin_service::accounts::profile;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SendNotice {
    pub user: String,
    pub event_type: String,
    pub state_key: Option<String>,
    pub content: Value,
    /// A repetition with the same transaction is not sent again.
    pub transaction: Option<Transaction>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NoticeSent {
    pub user_id: OwnedUserId,
    pub room_id: OwnedRoomId,
    pub event_id: OwnedEventId,
}

impl Act for SendNotice {
    const NAME: &'static str = "send-notice";
    const DONE: &'static str = "notice-sent";
    type Done = NoticeSent;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Send a notice",
        fields: &[
            Field::new("user", "User", Kind::Text),
            Field::new("content/body", "Text", Kind::Text),
            Field::new("content/msgtype", "", Kind::Fixed("\"m.text\"")),
            Field::new("event_type", "", Kind::Fixed("\"m.room.message\"")),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<NoticeSent, ActError> {
        let Self { user, event_type, state_key, content, transaction } = self;
        let Attribution { origin, reason } = by;
        let user_id = context.active(&user)?;
        let event_type = TimelineEventType::from(event_type);
        if matches!(event_type, TimelineEventType::RoomRedaction | TimelineEventType::RoomMember) {
            let why = "A notice is neither a redaction nor a membership.";
            return Err(ActError::Invalid(why.to_owned()));
        }
        let content = canonical(&to_raw(&content)).map_err(ActError::invalid)?;
        let sender = notice_sender(context).await?;
        if user_id == sender {
            let why = "The sender of the server's notices cannot get one.";
            return Err(ActError::Invalid(why.to_owned()));
        }
        let ts = context.engine.clock().timestamp();
        let open = OpenNoticeRoom {
            user_id: user_id.clone(),
            sender: sender.clone(),
            room_id: context.new_room_id()?,
            name: context.notices.room_name.clone(),
            ts,
        };
        let room_id = context.engine.propose(origin.clone(), open).await;
        let room_id = room_id?.into_inner();
        let again = InviteAgain {
            room_id: room_id.clone(),
            user_id: user_id.clone(),
            sender: sender.clone(),
            ts,
        };
        let invited = context.engine.propose(origin.clone(), again).await;
        invited?.into_inner();
        let send = SendEvent {
            room_id: room_id.clone(),
            sender,
            event_type,
            state_key,
            content: content.into(),
            redacts: None,
            transaction,
            ts,
        };
        // Every act sends a notice, but few open a room, so the reason is recorded with the notice.
        let event_id = context.propose(Attribution { origin, reason }, send).await?;
        Ok(NoticeSent { user_id, room_id, event_id })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        if context.notices.sender(&context.engine.env().server.name).is_none() {
            return Err(notices_are_off());
        }
        Ok(vec![format!("{} gets a notice", context.active(&self.user)?)])
    }
}

/// The user in whose name notices are sent, with the profile that is configured.
async fn notice_sender(context: &ActContext) -> Result<OwnedUserId, ActError> {
    let settings = &context.notices;
    let sender = settings.sender(&context.engine.env().server.name);
    let sender = sender.ok_or_else(notices_are_off)?;
    let origin = Origin::server();
    match context.engine.state().accounts.get(&sender) {
        Some(account) => {
            let account = account.read();
            let in_use = account.password.latest().is_some_and(Option::is_some)
                || account.active_devices().next().is_some()
                || account.standing.deactivated.is_some();
            if in_use {
                let why = format!(
                    "{sender} is somebody's account: name another user for the notices in \
                     `server_notices.localpart`."
                );
                return Err(ActError::Invalid(why));
            }
        }
        None => {
            let register = Register {
                display_name: Some(settings.display_name.clone()),
                ..Register::user(sender.clone())
            };
            let made = context.engine.propose(origin.clone(), register).await;
            made?.into_inner();
        }
    }
    let avatar = settings.avatar_url.as_ref().map(|address| Value::from(address.0.as_str()));
    let name = Some(Value::from(settings.display_name.as_str()));
    let mut changed = false;
    for (field, value) in [("displayname", name), ("avatar_url", avatar)] {
        let (user_id, field) = (sender.clone(), field.to_owned());
        let set = context.engine.propose(origin.clone(), SetProfile { user_id, field, value });
        changed |= set.await?.into_inner();
    }
    if changed {
        profile::spread(&context.engine, &origin, &sender).await;
    }
    Ok(sender)
}

fn notices_are_off() -> ActError {
    ActError::invalid("Server notices are off: `server_notices.localpart` names nobody.")
}
