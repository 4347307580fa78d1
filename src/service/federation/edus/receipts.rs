//! `m.receipt` (server-server API, "Receipts").

use std::collections::BTreeMap;

use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId, ServerName, UInt};
use serde::Deserialize;
use serde_json::value::RawValue;
use tracing::debug;

use super::{EduError, content};
use crate::federation::PduReceiver;
use logcabin_base::limits;
use logcabin_decide::ephemeral::{SetReceipt, is_thread};

/// The receipts of a room, except private ones. Each is read by itself.
#[derive(Default, Deserialize)]
struct OfRoom {
    #[serde(default, rename = "m.read")]
    read: BTreeMap<String, Box<RawValue>>,
}

#[derive(Deserialize)]
struct OfUser {
    data: Data,
    event_ids: Vec<OwnedEventId>,
}

#[derive(Deserialize)]
struct Data {
    ts: UInt,
    #[serde(default)]
    thread_id: Option<String>,
}

impl PduReceiver<'_> {
    pub(super) async fn take_receipts(
        &self,
        origin: &ServerName,
        raw: &RawValue,
    ) -> Result<(), EduError> {
        let rooms: BTreeMap<String, Box<RawValue>> = content(raw)?;
        let mut receipts = Vec::new();
        for (room_id, of_room) in rooms {
            let (Ok(room_id), Ok(OfRoom { read })) =
                (OwnedRoomId::try_from(room_id), content(&of_room))
            else {
                continue;
            };
            for (user_id, of_user) in read {
                match self.receipt(origin, &room_id, &user_id, &of_user) {
                    Ok(receipt) => receipts.extend(receipt),
                    // Later ones would fail, too.
                    Err(EduError::TooMany) => break,
                    Err(error) => debug!(%origin, %room_id, %error, "a receipt is dropped"),
                }
            }
        }
        self.propose_all(receipts).await
    }

    fn receipt(
        &self,
        origin: &ServerName,
        room_id: &OwnedRoomId,
        user_id: &str,
        of_user: &RawValue,
    ) -> Result<Option<SetReceipt>, EduError> {
        let user_id = OwnedUserId::try_from(user_id).map_err(|_| EduError::NotTheirs)?;
        let OfUser { data, event_ids } = content(of_user)?;
        let room = self.room_of(origin, room_id, &user_id)?;
        if data.thread_id.as_deref().is_some_and(|id| !is_thread(id)) {
            return Err(EduError::TooLarge);
        }
        self.admit_edu(&user_id)?;
        let mut last = None;
        for event_id in event_ids.into_iter().take(limits::RECEIPT_EVENTS) {
            let found = self.engine.events().find(&self.engine.state(), &event_id)?;
            let found = found.filter(|event| event.room_id == room.id);
            last = last.max(found.map(|event| (event.offset, event_id)));
        }
        // Local users do not have the unknown events, so receipts for those are not needed.
        Ok(last.map(|(_, event_id)| SetReceipt {
            room_id: room_id.clone(),
            user_id,
            receipt_type: "m.read".to_owned(),
            event_id,
            thread_id: data.thread_id,
            ts: u64::from(data.ts).min(self.engine.clock().now_ms()),
        }))
    }
}
