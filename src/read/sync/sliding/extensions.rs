//! Extensions: the parts of a response other than rooms (MSC3884, MSC3885, MSC3959, MSC3960,
//! MSC3961).

use std::collections::BTreeMap;

use parking_lot::RwLock;
use ruma::{OwnedRoomId, api::client::sync::sync_events::v5::request as asked};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    connection::{SentRoom, SentUpTo},
    list::ChangedRoom,
    rules::{Matched, Rules},
};
use crate::{
    sync::{
        account_data,
        device_lists::DeviceLists,
        ephemeral::{self, OthersReceipts},
        key_counts::KeyCounts,
        to_device,
    },
    view::{View, filter::EventFilter, token::Token},
};
use logcabin_log::ReadError;
use logcabin_record::{Epoch, Offset};
use logcabin_state::{Account, Room};

/// The extensions of a response.
#[derive(Debug, Default, Serialize)]
pub(super) struct Extensions {
    #[serde(skip_serializing_if = "Option::is_none")]
    to_device: Option<ToDevice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    e2ee: Option<E2ee>,
    #[serde(skip_serializing_if = "Option::is_none")]
    account_data: Option<AccountData>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipts: Option<Rooms>,
    #[serde(skip_serializing_if = "Option::is_none")]
    typing: Option<Rooms>,
}

#[derive(Debug, Serialize)]
struct ToDevice {
    next_batch: String,
    events: Vec<Box<RawValue>>,
}

#[derive(Debug, Default, Serialize)]
struct E2ee {
    #[serde(skip_serializing_if = "DeviceLists::is_empty")]
    device_lists: DeviceLists,
    #[serde(flatten)]
    key_counts: KeyCounts,
}

#[derive(Debug, Default, Serialize)]
struct AccountData {
    global: Vec<Box<RawValue>>,
    rooms: BTreeMap<OwnedRoomId, Vec<Box<RawValue>>>,
}

#[derive(Debug, Default, Serialize)]
struct Rooms {
    pub rooms: BTreeMap<OwnedRoomId, Box<RawValue>>,
}

/// The inputs of the extensions.
pub(super) struct Source<'a> {
    pub(super) view: View<'a>,
    pub(super) rules: &'a Rules,
    pub(super) account: Option<&'a RwLock<Account>>,
    /// The connection's position.
    pub(super) since: Offset,
    pub(super) epoch: Epoch,
}

impl Extensions {
    /// The requested extensions, without rooms yet.
    pub(super) fn new(source: &Source<'_>, touched: &[ChangedRoom]) -> Result<Self, ReadError> {
        let rules = source.rules;
        let of_device = |asked: &asked::ToDevice| to_device(source, asked.since.as_deref());
        Ok(Self {
            to_device: rules.to_device.as_ref().map(of_device).transpose()?,
            e2ee: rules.e2ee.then(|| e2ee(source, touched)),
            account_data: rules.account_data.is_some().then(AccountData::default),
            receipts: rules.receipts.is_some().then(Rooms::default),
            typing: rules.typing.is_some().then(Rooms::default),
        })
    }

    /// Whether there is nothing new in them.
    pub(super) fn is_empty(&self) -> bool {
        let to_device = self.to_device.as_ref().is_none_or(|it| it.events.is_empty());
        let e2ee = self
            .e2ee
            .as_ref()
            .is_none_or(|it| it.device_lists.is_empty() && !it.key_counts.changed);
        let account_data =
            self.account_data.as_ref().is_none_or(|it| it.global.is_empty() && it.rooms.is_empty());
        let none = |of: &Option<Rooms>| of.as_ref().is_none_or(|of| of.rooms.is_empty());
        to_device && e2ee && account_data && none(&self.receipts) && none(&self.typing)
    }

    /// Adds the global account data after `since`, if requested; returns the client's new position
    /// in it.
    pub(super) fn add_global(
        &mut self,
        source: &Source<'_>,
        since: Offset,
    ) -> Result<Offset, ReadError> {
        let view = &source.view;
        let Some((to, account)) = self.account_data.as_mut().zip(source.account) else {
            return Ok(since);
        };
        let first = since == Offset::ZERO;
        if first || account.read().changed > since {
            let all = EventFilter::default();
            to.global = account_data::global(view, account, since, &all, first)?;
        }
        Ok(view.at())
    }

    /// Adds the news of a joined room. `sent` is what the connection has of it, and is updated.
    /// `has_gap` says whether the client has not all of its timeline.
    pub(super) fn add_room(
        &mut self,
        source: &Source<'_>,
        room: &Room,
        matched: Matched,
        has_gap: bool,
        sent: &mut SentRoom,
    ) -> Result<(), ReadError> {
        let Source { ref view, rules, account, since, .. } = *source;
        let includes = |scope: &super::rules::Scope| scope.includes(&room.id, matched);
        if rules.account_data.as_ref().is_some_and(includes) {
            let from = sent.account_data.offset(since).unwrap_or(Offset::ZERO);
            if let Some((to, account)) = self.account_data.as_mut().zip(account) {
                let (all, first) = (EventFilter::default(), from == Offset::ZERO);
                let events = account_data::of_room(view, account, &room.id, from, &all, first)?;
                if !events.is_empty() {
                    to.rooms.insert(room.id.clone(), events);
                }
            }
            sent.account_data = SentUpTo::Current;
        } else {
            sent.account_data = sent.account_data.behind(since);
        }
        if rules.receipts.as_ref().is_some_and(includes) {
            let from = sent.receipts.offset(since);
            let others = OthersReceipts::of(has_gap || from.is_none());
            let from = from.unwrap_or(Offset::ZERO);
            // Only one event fits here. A threaded receipt that is left out is for an event that
            // the user has also read unthreaded.
            let event = ephemeral::receipts(view, room, from, others)?.into_iter().next();
            if let Some((to, event)) = self.receipts.as_mut().zip(event) {
                to.rooms.insert(room.id.clone(), event);
            }
            sent.receipts = SentUpTo::Current;
        } else {
            sent.receipts = sent.receipts.behind(since);
        }
        if rules.typing.as_ref().is_some_and(includes) {
            let event = ephemeral::typing(view, room, sent.typing.offset(since))?;
            if let Some((to, event)) = self.typing.as_mut().zip(event) {
                to.rooms.insert(room.id.clone(), event);
            }
            sent.typing = SentUpTo::Current;
        } else {
            sent.typing = sent.typing.behind(since);
        }
        Ok(())
    }
}

/// To-device messages (MSC3885): those after the position that the client names, which is
/// independent of `pos`.
fn to_device(source: &Source<'_>, since: Option<&str>) -> Result<ToDevice, ReadError> {
    let mut view = source.view.clone();
    // A client without a position of this history gets all pending messages.
    let since = since.and_then(|since| since.parse::<Token>().ok());
    let since = since.filter(|since| since.epoch == source.epoch).map(|since| since.offset);
    let device = (view.user_id(), view.viewer.device_id);
    view.viewer.at = to_device::cut(&view.state, device, since, view.at());
    let next_batch = Token { epoch: source.epoch, offset: view.at() };
    let events = to_device::messages(&view, since.unwrap_or(Offset::ZERO))?;
    Ok(ToDevice { next_batch: next_batch.to_string(), events })
}

/// Device keys (MSC3884).
fn e2ee(source: &Source<'_>, touched: &[ChangedRoom]) -> E2ee {
    let (view, since) = (&source.view, source.since);
    let mut e2ee = E2ee { key_counts: KeyCounts::of(view, since), ..E2ee::default() };
    if since != Offset::ZERO {
        let rooms: Vec<_> = touched.iter().map(|touched| touched.part.clone()).collect();
        e2ee.device_lists = DeviceLists::between(view, since, &rooms);
    }
    e2ee
}
