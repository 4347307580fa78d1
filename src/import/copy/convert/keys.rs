//! Keys for end-to-end encryption, their backups, and messages to devices.

use std::collections::BTreeMap;

use ruma::{OwnedDeviceId, OwnedUserId, ServerName};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Made, ms, number, own_user, room, server, user};
use crate::{
    copy::writer::Left,
    facts::{self, KeyUse},
};
use logcabin_record::{
    Command, Stream,
    command::{
        BackedUpKey, ForeignToDevice, KeyBackupDelete, KeyBackupPut, KeyBackupSet, KeysClaim,
        KeysCrossSign, KeysPermitReset, KeysSign, KeysUpload, ToDeviceSend,
    },
};

fn upload(user_id: OwnedUserId, device_id: &str) -> KeysUpload {
    KeysUpload {
        user_id,
        device_id: OwnedDeviceId::from(device_id),
        device_keys: None,
        one_time_keys: BTreeMap::new(),
        fallback_keys: BTreeMap::new(),
    }
}

pub(in crate::copy) fn device_keys(
    fact: facts::DeviceKeys,
    own: &ServerName,
) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    let body =
        KeysUpload { device_keys: Some(fact.keys), ..upload(user_id.clone(), &fact.device_id) };
    Ok(Made::one(Stream::user(&user_id), body).at(fact.uploaded_ms))
}

/// One-time keys of one device.
pub(in crate::copy) fn one_time_keys(
    keys: Vec<facts::OneTimeKey>,
    own: &ServerName,
) -> Result<Made, Left> {
    let Some(first) = keys.first() else { return Ok(Made::default()) };
    let user_id = own_user(&first.user_id, own)?;
    let at = keys.iter().filter_map(|key| key.uploaded_ms).max();
    let mut body = upload(user_id.clone(), &first.device_id);
    body.one_time_keys.extend(keys.into_iter().map(|key| (key.key_id, key.key)));
    Ok(Made::one(Stream::user(&user_id), body).at(at))
}

pub(in crate::copy) fn fallback_key(
    fact: facts::FallbackKey,
    own: &ServerName,
) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    let stream = Stream::user(&user_id);
    let mut body = upload(user_id.clone(), &fact.device_id);
    body.fallback_keys.insert(fact.key_id.clone(), fact.key);
    let device_id = body.device_id.clone();
    let mut made = Made::one(stream.clone(), body);
    if fact.used {
        made.add(stream, KeysClaim { user_id, device_id, key_id: fact.key_id, fallback: true });
    }
    Ok(made)
}

pub(in crate::copy) fn cross_signing_key(
    fact: facts::CrossSigningKey,
    own: &ServerName,
) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    let stream = Stream::user(&user_id);
    let mut body = KeysCrossSign {
        user_id: user_id.clone(),
        master_key: None,
        self_signing_key: None,
        user_signing_key: None,
    };
    *match fact.key_use {
        KeyUse::Master => &mut body.master_key,
        KeyUse::SelfSigning => &mut body.self_signing_key,
        KeyUse::UserSigning => &mut body.user_signing_key,
    } = Some(fact.key);
    let mut made = Made::one(stream.clone(), body);
    if let Some(until_ms) = fact.replaceable_until_ms {
        made.add(stream, KeysPermitReset { user_id, until_ms: ms(until_ms) });
    }
    Ok(made)
}

pub(in crate::copy) fn signature(
    fact: facts::KeySignature,
    own: &ServerName,
) -> Result<Made, Left> {
    let by = own_user(&fact.user_id, own)?;
    let user_id = user(&fact.target_user_id)?;
    let of = BTreeMap::from([(fact.key_id, fact.signature)]);
    let signatures = BTreeMap::from([(fact.target_device_id, of)]);
    let stream = Stream::user(&by);
    Ok(Made::one(stream, KeysSign { user_id, by, signatures }))
}

pub(in crate::copy) fn backup(fact: facts::KeyBackup, own: &ServerName) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    let (stream, version) = (Stream::user(&user_id), number(fact.version));
    if version == 0 {
        return Err(("its number is none", format!("{} is no version", fact.version)));
    }
    let body = KeyBackupSet {
        user_id: user_id.clone(),
        version,
        algorithm: fact.algorithm,
        auth_data: fact.auth_data,
    };
    let mut made = Made::one(stream.clone(), body);
    if fact.deleted {
        // Its number stays taken.
        made.add(stream, KeyBackupDelete { user_id, version });
    }
    Ok(made)
}

/// A record of which other servers are told as of a change of a user's devices, and that changes
/// none: a device is signed, with no signature. They then fetch the list of all.
pub(in crate::copy) fn device_change(
    fact: &facts::DeviceChange,
    device_id: String,
    own: &ServerName,
) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    let signatures = BTreeMap::from([(device_id, BTreeMap::new())]);
    let stream = Stream::user(&user_id);
    Ok(Made::one(stream, KeysSign { by: user_id.clone(), user_id, signatures }))
}

/// Keys of one room in one backup.
pub(in crate::copy) fn backed_up_keys(
    keys: Vec<facts::BackedUpKey>,
    own: &ServerName,
) -> Result<Made, Left> {
    let Some(first) = keys.first() else { return Ok(Made::default()) };
    let (user_id, room_id) = (own_user(&first.user_id, own)?, room(&first.room_id)?);
    let version = number(first.version);
    let sessions = keys.into_iter().map(|key| {
        let kept = BackedUpKey {
            first_message_index: number(key.first_message_index.unwrap_or_default()),
            forwarded_count: number(key.forwarded_count.unwrap_or_default()),
            is_verified: key.is_verified,
            session_data: key.session_data,
        };
        (key.session_id, kept)
    });
    let rooms = BTreeMap::from([(room_id, sessions.collect())]);
    let stream = Stream::user(&user_id);
    Ok(Made::one(stream, KeyBackupPut { user_id, version, rooms }))
}

#[derive(Deserialize)]
struct Message {
    sender: OwnedUserId,
    #[serde(rename = "type")]
    event_type: String,
    content: Box<RawValue>,
}

pub(in crate::copy) fn to_device(fact: &facts::ToDevice, own: &ServerName) -> Result<Made, Left> {
    let user_id = own_user(&fact.user_id, own)?;
    let message: Message = serde_json::from_str(fact.message.get())
        .map_err(|error| ("it is no message", format!("it is no message: {error}")))?;
    let stream = match message.sender.server_name() == own {
        true => Stream::user(&message.sender),
        false => Stream::peer(message.sender.server_name()),
    };
    let devices = BTreeMap::from([(OwnedDeviceId::from(&*fact.device_id), message.content)]);
    let body = ToDeviceSend {
        sender: message.sender,
        event_type: message.event_type,
        messages: BTreeMap::from([(user_id, devices)]),
        outside: None,
        received_as: None,
        transaction: None,
    };
    Ok(Made::one(stream, body))
}

#[derive(Deserialize)]
struct Letter {
    sender: OwnedUserId,
    #[serde(rename = "type")]
    event_type: String,
    message_id: String,
    messages: BTreeMap<OwnedUserId, BTreeMap<String, Box<RawValue>>>,
}

pub(in crate::copy) fn to_peer_device(
    fact: &facts::ToPeerDevice,
    own: &ServerName,
) -> Result<Made, Left> {
    let to = server(&fact.server_name)?;
    let letter: Letter = serde_json::from_str(fact.messages.get())
        .map_err(|error| ("it is no message", format!("it is no message: {error}")))?;
    let Letter { sender, event_type, message_id, mut messages } = letter;
    let sender = own_user(sender.as_str(), own)?;
    // Each server is told in a row of its own.
    messages.retain(|user_id, _| *user_id.server_name() == *to);
    let stream = Stream::user(&sender);
    let body = ToDeviceSend {
        sender,
        event_type,
        messages: BTreeMap::new(),
        outside: Some(ForeignToDevice { message_id, messages }),
        received_as: None,
        transaction: None,
    };
    Ok(Made { original_ms: None, commands: vec![(stream, Command::from(body))] })
}
