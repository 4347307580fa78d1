//! What those who run the server have to say to a user.

use ruma::{OwnedUserId, events::TimelineEventType};
use serde_json::Value;

use super::{
    acts::Done,
    office::{ActError, Office},
    shutdown::now,
};
use crate::{
    decide::{
        account::{Met, Register, SetProfile},
        canonical,
        moderation::Because,
        notice::{InviteAgain, OpenNoticeRoom},
        send::SendEvent,
    },
    read::events::to_raw,
    record::{
        Origin,
        command::{AccountKind, Transaction},
    },
    service::accounts::profile,
};

/// The content of a notice.
pub(super) struct Notice {
    pub(super) event_type: String,
    pub(super) state_key: Option<String>,
    pub(super) content: Value,
    pub(super) transaction: Option<Transaction>,
}

impl Office {
    /// Tells `user` something: in the room of their notices, which is made if there is none, and to
    /// which they are invited if they are not in it.
    pub(super) async fn send_notice(
        &self,
        user: &str,
        notice: Notice,
        origin: Origin,
        reason: Option<String>,
    ) -> Result<Done, ActError> {
        let Notice { event_type, state_key, content, transaction } = notice;
        let user_id = self.active(user)?;
        let event_type = TimelineEventType::from(event_type);
        if matches!(event_type, TimelineEventType::RoomRedaction | TimelineEventType::RoomMember) {
            let why = "A notice is neither a redaction nor a membership.";
            return Err(ActError::Invalid(why.to_owned()));
        }
        let content =
            canonical(&to_raw(&content)).map_err(|error| ActError::Invalid(error.to_string()))?;
        let sender = self.notice_sender().await?;
        if user_id == sender {
            let why = "The user of the server's notices needs none.";
            return Err(ActError::Invalid(why.to_owned()));
        }
        let ts = now(&self.engine);
        let open = OpenNoticeRoom {
            user_id: user_id.clone(),
            sender: sender.clone(),
            room_id: self.new_room_id()?,
            name: self.notices.room_name.clone(),
            ts,
        };
        let room_id = self.engine.propose(origin.clone(), open).await;
        let room_id = room_id.map_err(ActError::Rejected)?.into_inner();
        let again = InviteAgain {
            room_id: room_id.clone(),
            user_id: user_id.clone(),
            sender: sender.clone(),
            ts,
        };
        let invited = self.engine.propose(origin.clone(), again).await;
        invited.map_err(ActError::Rejected)?.into_inner();
        let send = SendEvent {
            room_id: room_id.clone(),
            sender,
            event_type,
            state_key,
            content,
            redacts: None,
            transaction,
            ts,
        };
        // Every act sends a notice, but few open a room, so the reason is recorded with the notice.
        let event_id = self.engine.propose(origin, Because { of: send, reason }).await;
        let event_id = event_id.map_err(ActError::Rejected)?.into_inner();
        Ok(Done::NoticeSent { user_id, room_id, event_id })
    }

    /// The user in whose name notices are sent, with the profile that is configured.
    async fn notice_sender(&self) -> Result<OwnedUserId, ActError> {
        let settings = &self.notices;
        let sender = settings.sender(&self.engine.env().server.name).ok_or_else(|| {
            let why = "Server notices are off: `server_notices.localpart` names nobody.";
            ActError::Invalid(why.to_owned())
        })?;
        let origin = Origin::server();
        match self.engine.state().accounts.get(&sender) {
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
                    user_id: sender.clone(),
                    kind: AccountKind::User,
                    password: None,
                    display_name: Some(settings.display_name.clone()),
                    login: None,
                    met: Met::default(),
                };
                let made = self.engine.propose(origin.clone(), register).await;
                made.map_err(ActError::Rejected)?.into_inner();
            }
        }
        let avatar = settings.avatar_url.as_ref().map(|address| Value::from(address.0.as_str()));
        let name = Some(Value::from(settings.display_name.as_str()));
        let mut changed = false;
        for (field, value) in [("displayname", name), ("avatar_url", avatar)] {
            let (user_id, field) = (sender.clone(), field.to_owned());
            let set = self.engine.propose(origin.clone(), SetProfile { user_id, field, value });
            changed |= set.await.map_err(ActError::Rejected)?.into_inner();
        }
        if changed {
            profile::spread(&self.engine, &origin, &sender).await;
        }
        Ok(sender)
    }
}
