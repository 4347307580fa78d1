//! To-device messages.

use std::collections::BTreeMap;

use ruma::{OwnedDeviceId, OwnedUserId};
use serde_json::value::RawValue;

use super::{Commit, Env, Proposal, Refusal, is_local};
use crate::{
    log::MAX_PAYLOAD_BYTES,
    record::{
        Command, Offset, Stream,
        command::{ToDeviceAck, ToDeviceSend, Transaction},
    },
};

/// Send messages to devices. A device whose inbox is full (see [`Quotas`]) is skipped, like one
/// that does not exist. If that leaves no device at all, the proposal is refused.
///
/// [`Quotas`]: super::quota::Quotas
#[derive(Debug)]
pub struct SendToDevice {
    /// The sender.
    pub sender: OwnedUserId,
    /// The type.
    pub event_type: String,
    /// The messages for each user's devices.
    pub messages: BTreeMap<OwnedUserId, Vec<Message>>,
    /// The client's transaction.
    pub transaction: Transaction,
}

/// A device with its message; `None` stands for all devices of the user.
pub type Message = (Option<OwnedDeviceId>, Box<RawValue>);

impl Proposal for SendToDevice {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.sender)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        if was_sent(commit, &self.transaction)? {
            return Ok(());
        }
        let mut records: Vec<ToDeviceSend> = Vec::new();
        let (mut size, mut full) = (0, false);
        for (user_id, messages) in &self.messages {
            // Those of other servers, and those who are not there, get nothing, as the
            // specification has it.
            if !is_local(&commit.env.server, user_id) {
                continue;
            }
            let Some(account) = commit.env.state.accounts.get(user_id) else { continue };
            let account = account.read();
            let devices: Vec<_> = account.active_devices().map(|(id, _)| id.clone()).collect();
            drop(account);
            for (device_id, content) in messages {
                let to = match device_id {
                    None => devices.as_slice(),
                    Some(device_id) => match devices.binary_search(device_id) {
                        Ok(index) => &devices[index..=index],
                        Err(_) => &[],
                    },
                };
                for device_id in to {
                    let Env { state, quotas, .. } = commit.env;
                    if !quotas.to_device(state, user_id, device_id, &self.sender) {
                        full = true;
                        continue;
                    }
                    let length = content.get().len() + device_id.as_str().len() + 8;
                    if size + length + user_id.as_str().len() > MOST || records.is_empty() {
                        records.push(self.record());
                        size = 0;
                    }
                    size += length;
                    if let Some(record) = records.last_mut() {
                        let of_user = record.messages.entry(user_id.clone()).or_insert_with(|| {
                            size += user_id.as_str().len() + 8;
                            BTreeMap::new()
                        });
                        of_user.insert(device_id.clone(), content.clone());
                    }
                }
            }
        }
        if full && records.is_empty() {
            let why = "The inboxes of these devices are full. Try again once they have synced.";
            return Err(Refusal::OverQuota(why.to_owned()));
        }
        // A transaction without recipients is still a transaction, but has nothing to remember.
        for record in records {
            commit.append(self.stream(), record);
        }
        Ok(())
    }
}

/// The largest message that fits into one record with its envelope.
const MOST: usize = MAX_PAYLOAD_BYTES - 8 * 1024;

impl SendToDevice {
    fn record(&self) -> ToDeviceSend {
        ToDeviceSend {
            sender: self.sender.clone(),
            event_type: self.event_type.clone(),
            messages: BTreeMap::new(),
            transaction: Some(self.transaction.clone()),
        }
    }
}

fn was_sent(commit: &Commit<'_>, transaction: &Transaction) -> Result<bool, Refusal> {
    let sent = commit.done_by(transaction, |command| match command {
        Command::ToDeviceSend(sent) if sent.transaction.as_ref() == Some(transaction) => Some(()),
        _ => None,
    })?;
    Ok(sent.is_some())
}

/// Record that a device has received its messages.
#[derive(Debug)]
pub struct Acknowledge {
    /// The user.
    pub user_id: OwnedUserId,
    /// The device.
    pub device_id: OwnedDeviceId,
    /// The last record that it has received.
    pub up_to: Offset,
}

impl Proposal for Acknowledge {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Self { user_id, device_id, up_to } = self;
        if commit.env.state.to_device.unacknowledged(user_id, device_id, *up_to) > 0 {
            commit.append(
                self.stream(),
                ToDeviceAck {
                    user_id: user_id.clone(),
                    device_id: device_id.clone(),
                    up_to: *up_to,
                },
            );
        }
        Ok(())
    }
}
