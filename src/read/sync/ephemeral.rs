//! Ephemeral events of a room: receipts and typing.

use serde_json::{Map, Value, json, value::RawValue};

use crate::{events::to_raw, view::View};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::Room;

/// Which receipts of others a client is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OthersReceipts {
    /// All that moved: the client has those before.
    All,
    /// The last [`limits::RECEIPTS_OF_OTHERS`] that moved: the client begins with the room, or
    /// missed a part of its timeline. Receipts only add to what a client knows, and each says that
    /// a user has read up to there; without one, a face is missing beside an event. The user's own
    /// are complete, since clients count what is unread by them.
    Newest,
}

impl OthersReceipts {
    /// Those for a client that has nothing of the room, or not all of its timeline.
    pub const fn of(has_gap: bool) -> Self {
        if has_gap { Self::Newest } else { Self::All }
    }
}

/// The `m.receipt` events with the receipts that moved after `since` and that the user may see:
/// none of users whom they ignore. There is at most one, unless a user has both an unthreaded and a
/// threaded receipt for the same event: one event cannot express that, so a second one has the
/// threaded receipts.
pub fn receipts(
    view: &View<'_>,
    room: &Room,
    since: Offset,
    others: OthersReceipts,
) -> Result<Vec<Box<RawValue>>, ReadError> {
    let (mut first, mut second) = (Map::new(), Map::new());
    let mut ignored = None;
    let (user_id, at) = (view.user_id(), view.at());
    let mut moved = match others {
        OthersReceipts::All => room.receipts_between(since, at),
        OthersReceipts::Newest => {
            let bounds = (limits::RECEIPTS_OF_OTHERS, limits::RECEIPTS_LOOKED_AT);
            let mut moved = room.last_receipts(since, at, bounds, |(of, receipt_type, _)| {
                of != user_id && receipt_type != "m.read.private"
            });
            moved.extend(room.receipts_of(user_id, since, at));
            moved
        }
    };
    // In this order the unthreaded receipt comes before threaded ones.
    moved.sort_unstable_by(|(key, _), (other, _)| key.cmp(other));
    for (key, receipt) in moved {
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

/// The `m.typing` event with [`limits::TYPISTS`] users at most, if the typing users changed after
/// `since`, or, if `since` is `None`, if anyone is typing. Users whom the user ignores are left
/// out.
pub fn typing(
    view: &View<'_>,
    room: &Room,
    since: Option<Offset>,
) -> Result<Option<Box<RawValue>>, ReadError> {
    if room.typing_moved() <= since.unwrap_or(Offset::ZERO) {
        return Ok(None);
    }
    let (now, ignored) = (view.viewer.now_ms, view.ignored()?);
    let ignored = ignored.users();
    if since.is_some_and(|since| !ignored.is_empty() && !room.typing_changed(since, ignored)) {
        return Ok(None);
    }
    let (users, changed) = room.typists(now, limits::TYPISTS, ignored);
    // Changes after this response's offset belong to the next one.
    if changed > view.at() || (since.is_none() && users.is_empty()) {
        return Ok(None);
    }
    Ok(Some(to_raw(&json!({ "type": "m.typing", "content": { "user_ids": users } }))))
}

fn event(event_type: &str, content: Map<String, Value>) -> Option<Box<RawValue>> {
    (!content.is_empty()).then(|| to_raw(&json!({ "type": event_type, "content": content })))
}
