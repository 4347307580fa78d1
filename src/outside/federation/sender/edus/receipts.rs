//! `m.receipt` (server-server API, "Receipts").

use std::collections::BTreeMap;

use ruma::{ServerName, UserId};
use serde_json::json;

use super::{Edu, edu};
use logcabin_record::{
    Offset,
    command::{Receipt, RoomReceipt},
};
use logcabin_state::Room;

/// Whether other homeservers get a receipt: not private ones, nor their own.
pub(super) fn concerns_others(receipt: &Receipt, own: &ServerName) -> bool {
    is_told(&receipt.user_id, &receipt.receipt_type, own)
}

fn is_told(user_id: &UserId, receipt_type: &str, own: &ServerName) -> bool {
    receipt_type == "m.read" && user_id.server_name() == own
}

/// The records after `since` with receipts of a room that others may have missed, and that no later
/// receipt has replaced.
pub(super) fn missed(room: &Room, own: &ServerName, since: Offset) -> Vec<Offset> {
    let moved = room.receipts_between(since, Offset::MAX).into_iter();
    let own = moved.filter(|(key, _)| {
        let (user_id, receipt_type, _) = &**key;
        is_told(user_id, receipt_type, own)
    });
    own.map(|(_, receipt)| receipt.offset).collect()
}

/// The EDUs for the receipts of a room. An EDU has at most one receipt of each user.
pub(super) fn edus(body: RoomReceipt, own: &ServerName) -> Vec<Edu> {
    let RoomReceipt { room_id, receipts } = body;
    let mut edus: Vec<BTreeMap<_, _>> = Vec::new();
    for receipt in receipts.into_iter().filter(|receipt| concerns_others(receipt, own)) {
        let mut data = json!({ "ts": receipt.ts });
        if let Some(thread_id) = receipt.thread_id {
            data["thread_id"] = json!(thread_id);
        }
        let of_user = json!({ "data": data, "event_ids": [receipt.event_id] });
        let free = edus.iter_mut().find(|users| !users.contains_key(&receipt.user_id));
        match free {
            Some(users) => drop(users.insert(receipt.user_id, of_user)),
            None => edus.push(BTreeMap::from([(receipt.user_id, of_user)])),
        }
    }
    let content = |users| json!({ &*room_id: { "m.read": users } });
    edus.into_iter().map(|users| edu("m.receipt", &content(users))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_user_with_two_threads_is_in_two_edus_and_what_is_private_is_in_none() {
        let receipt = |user: &str, receipt_type: &str, thread: Option<&str>| Receipt {
            user_id: format!("@{user}").try_into().unwrap(),
            receipt_type: receipt_type.to_owned(),
            event_id: "$e".try_into().unwrap(),
            thread_id: thread.map(ToOwned::to_owned),
            ts: 7,
        };
        let body = RoomReceipt {
            room_id: "!r:own".try_into().unwrap(),
            receipts: vec![
                receipt("ann:own", "m.read", None),
                receipt("ann:own", "m.read", Some("main")),
                receipt("bob:own", "m.read", None),
                receipt("bob:own", "m.read.private", None),
                receipt("pia:other", "m.read", None),
            ],
        };
        let edus = edus(body, "own".try_into().unwrap());
        let edus: Vec<Value> =
            edus.iter().map(|edu| serde_json::from_str(edu.get()).unwrap()).collect();
        let users = |edu: &Value| edu["content"]["!r:own"]["m.read"].clone();
        let read = json!({ "data": { "ts": 7 }, "event_ids": ["$e"] });
        let in_main = json!({ "data": { "ts": 7, "thread_id": "main" }, "event_ids": ["$e"] });
        assert_eq!(edus.len(), 2, "{edus:?}");
        assert_eq!(users(&edus[0]), json!({ "@ann:own": read, "@bob:own": read }));
        assert_eq!(users(&edus[1]), json!({ "@ann:own": in_main }));
    }
}
