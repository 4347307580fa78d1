//! To-device messages.

use std::collections::BTreeMap;

use ruma::{DeviceId, OwnedDeviceId, OwnedUserId, ServerName, UserId};
use serde_json::value::RawValue;

use super::{Commit, Env, Proposal, Refusal, is_local};
use logcabin_base::{
    limits,
    planted::{self, Fault},
};
use logcabin_log::{MAX_BATCH_BYTES, MAX_PAYLOAD_BYTES};
use logcabin_record::{
    Command, Offset, Stream,
    command::{ForeignToDevice, ToDeviceAck, ToDeviceSend, Transaction},
};

/// Send messages to devices. A device whose inbox is full (see [`Quotas`]) is skipped, like one
/// that does not exist. If that leaves no device at all, the proposal is refused. It is also
/// refused if the messages, with a copy for each device, do not fit into one commit: all devices
/// get theirs, or none.
///
/// [`Quotas`]: super::quota::Quotas
#[derive(Debug)]
pub struct SendToDevice {
    pub sender: OwnedUserId,
    pub event_type: String,
    /// The messages for each user's devices.
    pub messages: BTreeMap<OwnedUserId, Vec<Message>>,
    /// The start of the ids under which users of other homeservers get theirs; none if they get
    /// nothing.
    pub outside: Option<String>,
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
        let Env { state, quotas, .. } = commit.env;
        let mut letters = ToDeviceRecords::new(ToDeviceSend {
            sender: self.sender.clone(),
            event_type: self.event_type.clone(),
            messages: BTreeMap::new(),
            outside: None,
            received_as: None,
            transaction: Some(self.transaction.clone()),
        });
        for (user_id, messages) in &self.messages {
            if is_local(&commit.env.server, user_id) {
                let fits =
                    |device: &DeviceId| quotas.to_device(state, user_id, device, &self.sender);
                letters.add_local(commit.env, user_id, messages, fits);
            } else if let Some(message_id) = &self.outside {
                let fits =
                    |server: &ServerName| quotas.to_device_outside(state, server, &self.sender);
                letters.add_outside(commit.env, user_id, messages, message_id, fits);
            }
        }
        letters.fit()?;
        if letters.full > 0 && letters.records.is_empty() {
            let why = "The inboxes of these devices are full. Try again once they have synced.";
            return Err(Refusal::OverQuota(why.to_owned()));
        }
        // A transaction without recipients is still a transaction, but has nothing to remember.
        for record in letters.records {
            commit.append(self.stream(), record);
        }
        Ok(())
    }
}

/// Take messages that another homeserver sends to devices of this one, all or none. What this
/// server has taken already is not taken again.
#[derive(Debug)]
pub struct ReceiveToDevice {
    /// The sender, a user of the homeserver that sent it.
    pub sender: OwnedUserId,
    /// The id under which it was sent.
    pub message_id: String,
    pub event_type: String,
    /// The messages for each user's devices.
    pub messages: BTreeMap<OwnedUserId, Vec<Message>>,
}

impl Proposal for ReceiveToDevice {
    /// How many messages are dropped because too many wait for their devices.
    type Outcome = u64;

    fn stream(&self) -> Stream {
        Stream::peer(self.sender.server_name())
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<u64, Refusal> {
        let Env { state, quotas, .. } = commit.env;
        if state.to_device.was_received(&self.sender, &self.message_id)
            && !planted::has(Fault::MessageTakenAgain)
        {
            return Ok(0);
        }
        let sender = &self.sender;
        let mut letters = ToDeviceRecords::new(ToDeviceSend {
            sender: self.sender.clone(),
            event_type: self.event_type.clone(),
            messages: BTreeMap::new(),
            outside: None,
            received_as: Some(self.message_id.clone()),
            transaction: None,
        });
        for (user_id, messages) in &self.messages {
            if is_local(&commit.env.server, user_id) {
                let is_strange = !state.memberships.share_a_room(user_id, sender, Offset::MAX);
                let fits = |device: &DeviceId| {
                    quotas.to_device_from(state, user_id, device, sender, is_strange)
                };
                letters.add_local(commit.env, user_id, messages, fits);
            }
        }
        letters.fit()?;
        for record in letters.records {
            commit.append(self.stream(), record);
        }
        Ok(letters.full)
    }
}

/// The largest message that fits into one record with its envelope.
const MOST: usize = MAX_PAYLOAD_BYTES - 8 * 1024;

/// The most that fits into one commit, with the envelopes.
const MOST_IN_ALL: usize = MAX_BATCH_BYTES - 512 * 1024;

/// Messages, packed into as few records as hold them.
struct ToDeviceRecords {
    /// A record without messages.
    empty: ToDeviceSend,
    records: Vec<ToDeviceSend>,
    /// The size of the last record.
    size: usize,
    /// The size of all records. Once it is too large, nothing is added.
    total: usize,
    /// How many do not get theirs because too many wait already.
    full: u64,
}

impl ToDeviceRecords {
    const fn new(empty: ToDeviceSend) -> Self {
        Self { empty, records: Vec::new(), size: 0, total: 0, full: 0 }
    }

    /// Whether all of it can be recorded: one message may be for very many devices.
    fn fit(&self) -> Result<(), Refusal> {
        if self.total <= MOST_IN_ALL {
            return Ok(());
        }
        let why = "These messages are too large for this many devices at once. None was delivered.";
        Err(Refusal::TooLarge(why.to_owned()))
    }

    /// Those who are not there get nothing, as the specification has it.
    fn add_local(
        &mut self,
        env: &Env,
        user_id: &UserId,
        messages: &[Message],
        fits: impl Fn(&DeviceId) -> bool,
    ) {
        let Some(account) = env.state.accounts.get(user_id) else { return };
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
                if self.total > MOST_IN_ALL {
                    return;
                }
                if !fits(device_id) {
                    self.full += 1;
                    continue;
                }
                let place = self.place(user_id, device_id.as_str(), content);
                let of_user = self.records[place].messages.entry(user_id.to_owned()).or_default();
                of_user.insert(device_id.clone(), content.clone());
            }
        }
    }

    /// They may be in no room that this server knows, and need not exist. There is a limit on the
    /// homeservers to which this one ever writes.
    fn add_outside(
        &mut self,
        env: &Env,
        user_id: &UserId,
        messages: &[Message],
        message_id: &str,
        fits: impl Fn(&ServerName) -> bool,
    ) {
        let (server, destinations) = (user_id.server_name(), &env.state.destinations);
        let is_one_too_many = destinations.get(server).is_none()
            && destinations.count() >= limits::PEERS
            && env.state.memberships.count(user_id) == 0;
        if is_one_too_many || !fits(server) {
            self.full += messages.len() as u64;
            return;
        }
        for (device_id, content) in messages {
            if self.total > MOST_IN_ALL {
                return;
            }
            let device_id = device_id.as_ref().map_or("*", |device_id| device_id.as_str());
            let place = self.place(user_id, device_id, content);
            let letter = self.records[place].outside.get_or_insert_with(|| ForeignToDevice {
                // Each record is another message.
                message_id: format!("{message_id}.{place}"),
                messages: BTreeMap::new(),
            });
            let of_user = letter.messages.entry(user_id.to_owned()).or_default();
            of_user.insert(device_id.to_owned(), content.clone());
        }
    }

    /// The index of a record with room for a message.
    fn place(&mut self, user_id: &UserId, device_id: &str, content: &RawValue) -> usize {
        let length = content.get().len() + device_id.len() + 8;
        let is_new_user = self.records.last().is_none_or(|record| {
            let outside = record.outside.as_ref();
            !record.messages.contains_key(user_id)
                && outside.is_none_or(|letter| !letter.messages.contains_key(user_id))
        });
        let of_user = user_id.as_str().len() + 8;
        if self.size + length + of_user > MOST || self.records.is_empty() {
            self.records.push(self.empty.clone());
            self.size = of_user;
            self.total += of_user;
        } else if is_new_user {
            self.size += of_user;
            self.total += of_user;
        }
        self.size += length;
        self.total += length;
        self.records.len() - 1
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
    pub user_id: OwnedUserId,
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
