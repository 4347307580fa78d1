//! To-device messages for the syncing device.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::{events::to_raw, view::View};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_record::{Command, Offset};
use logcabin_state::State;

/// The offset as of which a sync is answered when the head is `head`. It is earlier if more
/// messages are pending than one response holds. The whole response is as of that offset, so that
/// one token covers all of it; the client syncs again at once.
pub fn cut(
    state: &State,
    (user_id, device_id): (&ruma::UserId, &ruma::DeviceId),
    since: Option<Offset>,
    head: Offset,
) -> Offset {
    let since = since.unwrap_or(Offset::ZERO);
    let limit = limits::TO_DEVICE_MESSAGES + 1;
    let waiting = state.to_device.waiting(user_id, device_id, since, head, limit);
    match waiting.get(limits::TO_DEVICE_MESSAGES) {
        Some(beyond) => beyond.prev(),
        None => head,
    }
}

/// The messages after `since` to the viewer's device.
pub fn messages(view: &View<'_>, since: Offset) -> Result<Vec<Box<RawValue>>, ReadError> {
    Ok(waiting(view, since)?.into_iter().map(|(_, message)| message).collect())
}

/// Like [`messages`], each with its record.
pub fn waiting(view: &View<'_>, since: Offset) -> Result<Vec<(Offset, Box<RawValue>)>, ReadError> {
    #[derive(Serialize)]
    struct Message<'a> {
        #[serde(rename = "type")]
        event_type: &'a str,
        sender: &'a ruma::UserId,
        content: &'a RawValue,
    }
    let (user_id, device_id) = (view.user_id(), view.viewer.device_id);
    let waiting = view.state.to_device.waiting(user_id, device_id, since, view.at(), usize::MAX);
    let mut messages = Vec::with_capacity(waiting.len());
    for offset in waiting {
        let Some(Command::ToDeviceSend(sent)) = view.events.command(offset)? else { continue };
        let content = sent.messages.get(user_id).and_then(|devices| devices.get(device_id));
        if let Some(content) = content {
            let message = Message { event_type: &sent.event_type, sender: &sent.sender, content };
            messages.push((offset, to_raw(&message)));
        }
    }
    Ok(messages)
}
