//! Changed account data in a sync (client-server API, "Client Config").

use parking_lot::RwLock;
use ruma::{OwnedRoomId, RoomId};
use serde::Serialize;
use serde_json::{json, value::RawValue};

use crate::{
    events::to_raw,
    notifications::ruleset,
    view::{View, filter::EventFilter},
};
use logcabin_base::planted::{self, Fault};
use logcabin_log::ReadError;
use logcabin_record::{Command, Offset};
use logcabin_state::Account;

/// Account data as an event.
#[derive(Serialize)]
struct AccountData<'a> {
    #[serde(rename = "type")]
    event_type: &'a str,
    content: &'a RawValue,
}

/// The user's global account data that changed after `since`; all of it if `initial`.
pub fn global(
    view: &View<'_>,
    account: &RwLock<Account>,
    since: Offset,
    filter: &EventFilter,
    initial: bool,
) -> Result<Vec<Box<RawValue>>, ReadError> {
    if planted::has(Fault::AccountDataNotShown) && !initial {
        return Ok(Vec::new());
    }
    let changed = changed(view, account, None, since);
    let has_push_rules = changed.iter().any(|(event_type, _)| event_type == ruleset::EVENT_TYPE);
    let mut events = events(view, changed, filter, initial)?;
    // Push rules that the user never changed are the defaults.
    if initial && !has_push_rules && filter.wants(ruleset::EVENT_TYPE, None) {
        let content = ruleset::shown_content(view.user_id(), None);
        events.push(to_raw(&AccountData { event_type: ruleset::EVENT_TYPE, content: &content }));
    }
    Ok(events)
}

/// The user's account data of a room that changed after `since`; all of it if `from_start`.
pub fn of_room(
    view: &View<'_>,
    account: &RwLock<Account>,
    room_id: &RoomId,
    since: Offset,
    filter: &EventFilter,
    from_start: bool,
) -> Result<Vec<Box<RawValue>>, ReadError> {
    if !filter.wants_room(room_id) {
        return Ok(Vec::new());
    }
    let changed = changed(view, account, Some(room_id), since);
    events(view, changed, filter, from_start)
}

/// The changed types, each with its record. They are collected at once, so that writes to the
/// account need not wait while the records are read.
fn changed(
    view: &View<'_>,
    account: &RwLock<Account>,
    room_id: Option<&RoomId>,
    since: Offset,
) -> Vec<(String, Offset)> {
    let account = account.read();
    let changed = account.account_data_between(room_id, since, view.at()).into_iter();
    changed.map(|(event_type, offset)| (event_type.to_owned(), offset)).collect()
}

/// The rooms whose account data changed after `since`, up to and including `to`.
pub fn rooms_changed(account: &Account, since: Offset, to: Offset) -> Vec<OwnedRoomId> {
    let changed = account.account_data.iter().filter_map(|((room, _), history)| {
        let room = room.as_ref()?;
        history.between(since, to).next().map(|_| room.clone())
    });
    changed.collect()
}

/// Whether account data was deleted (MSC3391): its newest record holds `null`.
pub fn is_deleted(content: &RawValue) -> bool {
    content.get() == "null"
}

fn events(
    view: &View<'_>,
    changed: Vec<(String, Offset)>,
    filter: &EventFilter,
    from_start: bool,
) -> Result<Vec<Box<RawValue>>, ReadError> {
    let none = to_raw(&json!({}));
    let mut events = Vec::new();
    for (event_type, offset) in changed {
        // It has no sender.
        if filter.wants(&event_type, None)
            && let Some(Command::AccountDataSet(mut body)) = view.events.command(offset)?
            // A deletion is reported, as an empty object, only to a client that may know the data.
            && !(from_start && is_deleted(&body.content))
        {
            if event_type == ruleset::EVENT_TYPE {
                body.content = ruleset::shown_content(view.user_id(), Some(&body.content));
            }
            let content = if is_deleted(&body.content) { &none } else { &*body.content };
            events.push(to_raw(&AccountData { event_type: &event_type, content }));
        }
    }
    Ok(events)
}
