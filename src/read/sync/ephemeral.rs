//! Ephemeral events of a room: receipts and typing.

use ruma::UserId;
use serde_json::{Map, Value, json, value::RawValue};

use crate::{events::to_raw, view::View};
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::Room;

/// The `m.receipt` events with the receipts that moved after `since` and that the user may see:
/// none of users whom they ignore. There is at most one, unless a user has both an unthreaded and a
/// threaded receipt for the same event: one event cannot express that, so a second one has the
/// threaded receipts.
pub fn receipts(
    view: &View<'_>,
    room: &Room,
    since: Offset,
) -> Result<Vec<Box<RawValue>>, ReadError> {
    let (mut first, mut second) = (Map::new(), Map::new());
    let mut ignored = None;
    for (key, receipt) in room.receipts_between(since, view.at()) {
        // In this order the unthreaded receipt comes before threaded ones.
        let (of, receipt_type, thread_id) = &*key;
        let of_user = of.as_str();
        if of != view.user_id() {
            let ignored = match &ignored {
                Some(ignored) => ignored,
                None => ignored.insert(view.ignored()?),
            };
            if receipt_type == "m.read.private" || ignored.contains(of) {
                continue;
            }
        }
        let mut data = json!({ "ts": receipt.ts });
        if let Some(thread_id) = thread_id {
            data["thread_id"] = thread_id.as_str().into();
        }
        let event_id = receipt.event_id.as_str();
        let taken = |content: &Map<String, Value>| {
            content.get(event_id).is_some_and(|of| !of[receipt_type.as_str()][of_user].is_null())
        };
        let content = if taken(&first) { &mut second } else { &mut first };
        let of_event = content.entry(event_id).or_insert_with(|| json!({}));
        // `of_event` and its values are objects created here.
        of_event[receipt_type.as_str()][of_user] = data;
    }
    Ok([first, second].into_iter().filter_map(|content| event("m.receipt", content)).collect())
}

/// The `m.typing` event, if the typing users changed after `since`, or, if `since` is `None`, if
/// anyone is typing. Users whom the user ignores are left out.
pub fn typing(
    view: &View<'_>,
    room: &Room,
    since: Option<Offset>,
) -> Result<Option<Box<RawValue>>, ReadError> {
    let (typing, changed) = room.typing();
    let news = match since {
        Some(since) => changed > since,
        None => !typing.is_empty(),
    };
    // Changes after this response's offset belong to the next one.
    if !news || changed > view.at() {
        return Ok(None);
    }
    let (now, ignored) = (view.viewer.now_ms, view.ignored()?);
    let ignored = ignored.users();
    if since.is_some_and(|since| !ignored.is_empty() && !room.typing_changed(since, ignored)) {
        return Ok(None);
    }
    let users: Vec<&UserId> = typing
        .iter()
        .filter(|(user, until)| *until > now && !ignored.contains(user))
        .map(|(user, _)| &**user)
        .collect();
    if since.is_none() && users.is_empty() {
        return Ok(None);
    }
    Ok(Some(to_raw(&json!({ "type": "m.typing", "content": { "user_ids": users } }))))
}

fn event(event_type: &str, content: Map<String, Value>) -> Option<Box<RawValue>> {
    (!content.is_empty()).then(|| to_raw(&json!({ "type": event_type, "content": content })))
}
