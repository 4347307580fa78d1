//! What a record says, in words.

use ruma::{OwnedEventId, events::TimelineEventType};
use serde_json::Value;

use super::moment::Time;
use crate::{
    read::events::StoredEvent,
    record::{
        Command, Offset, Payload, Record,
        command::{
            AccountKind, DelayedOutcome, EventsEnd, LogErase, MediaEnd, PresenceState, Receipt,
            Requirements, UserStatus,
        },
        pusher::{PusherEnd, PusherKind, PusherSet},
        threepid::Purpose,
    },
    state::Membership,
};

/// One record for a reader: who did what, and in which room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// Who; `server` for what the server does by itself.
    pub who: String,
    /// The room it concerns, if it does.
    pub room: Option<String>,
    /// What.
    pub text: String,
}

/// What `record` says. One that cannot be read is described as such.
#[must_use]
pub fn of_record(record: &Record) -> Words {
    let origin = &record.header.origin.user;
    let who = match &**origin {
        "" => "server".to_owned(),
        "admin" => format!("admin ({})", record.header.origin.device),
        user => user.to_owned(),
    };
    let room = record.header.stream.room_id().map(ToString::to_string);
    let (who, text) = match record.command() {
        Ok(Some(command)) => {
            let (said, mut text) = of_command(record, command, who.clone());
            if origin.as_ref() == "admin" && said != who {
                // It is told of the one whom it concerns; another did it.
                text = format!("{text} (done by {who})");
            }
            let who = said;
            let erased = matches!(record.payload, Payload::Reduced(_));
            (who, if erased { text + " (its content was erased)" } else { text })
        }
        Ok(None) => (who, "(the payload was erased)".to_owned()),
        Err(error) => (who, format!("({error})")),
    };
    Words { who, room, text }
}

fn of_command(record: &Record, command: Command, who: String) -> (String, String) {
    let joined = |ids: Vec<String>| ids.join(", ");
    match command {
        Command::ServerIdentity(body) => {
            (who, format!("is {}, with the signing key {}", body.server_name, body.key_id))
        }
        Command::ServerRestore(body) => {
            let undone = body.undone.map_or_else(String::new, |undone| {
                format!(", which went on to record {undone}; what still counts of that follows")
            });
            (
                who,
                format!(
                    "was restored from its {}, up to record {}{undone}",
                    body.source, body.last
                ),
            )
        }
        Command::BackupMade(body) => {
            let removed = match body.removed.len() {
                0 => String::new(),
                count => format!("; {count} older ones were removed"),
            };
            let up_to = body.moment.offset;
            (who, format!("made a backup in {}, up to record {up_to}{removed}", body.destination))
        }
        Command::LogErase(body) => (who, of_erasure(&body)),
        Command::LogCheckpoint(body) => {
            let root = blake3::Hash::from_bytes(body.root).to_hex();
            (
                who,
                format!(
                    "vouches for the records up to {}, with the root {}…",
                    body.upto,
                    &root[..8]
                ),
            )
        }
        Command::UserRegister(body) => {
            let with = if body.password.is_some() { "" } else { " without a password" };
            let guest = if body.kind == AccountKind::Guest { " as a guest" } else { "" };
            let met = requirements(&body.met);
            (body.user_id.to_string(), format!("registered{guest}{with}{met}"))
        }
        Command::UserUpgrade(body) => {
            let met = requirements(&body.met);
            (body.user_id.to_string(), format!("is a guest no longer{met}"))
        }
        Command::RegistrationTokenSet(body) => {
            let hash = body.registration_token.start();
            let label = body.label.map_or_else(String::new, |label| format!(" ({label})"));
            let uses = match body.uses_allowed {
                Some(uses) => format!("for {uses} account(s)"),
                None => "for any number of accounts".to_owned(),
            };
            let until =
                body.expires_ms.map_or_else(String::new, |ms| format!(", until {}", Time(ms)));
            (who, format!("set the registration token {hash}…{label} {uses}{until}"))
        }
        Command::RegistrationTokenRemove(body) => {
            let hash = body.registration_token.start();
            (who, format!("removed the registration token {hash}…"))
        }
        Command::LoginTokenUse(body) => (body.user_id.to_string(), "used a login token".to_owned()),
        Command::SsoLink(body) => {
            let text = format!("is linked with {} at {}", body.subject, body.provider);
            (body.user_id.to_string(), text)
        }
        Command::UserPassword(body) => {
            let text = if body.renewed {
                "has a stronger hash of the same password"
            } else {
                "has a new password"
            };
            (body.user_id.to_string(), text.to_owned())
        }
        Command::UserStatus(body) => (who, of_status(body)),
        Command::UserDeactivate(body) => {
            let erased = match (body.erase, body.messages) {
                (false, _) => "",
                (true, false) => " and erased what they sent",
                (true, true) => " and erased what they sent for everybody",
            };
            (who, format!("deactivated {}{erased}{}", body.user_id, because(body.reason)))
        }
        Command::UserErase(body) => {
            let records: u64 =
                body.records.iter().map(|(a, b)| (b.get() + 1).saturating_sub(a.get())).sum();
            let text = format!(
                "is erasing what is kept of {}, {records} record(s), for record {}",
                body.user_id, body.because
            );
            (who, text)
        }
        Command::DeviceLogin(body) => {
            let name = body.display_name.map_or_else(String::new, |name| format!(" ({name})"));
            (body.user_id.to_string(), format!("logged in on {}{name}", body.device_id))
        }
        Command::DeviceRefresh(body) => {
            (body.user_id.to_string(), format!("got new tokens for {}", body.device_id))
        }
        Command::DeviceConfirm(body) => {
            (body.user_id.to_string(), format!("uses the new tokens of {}", body.device_id))
        }
        Command::DeviceRemove(body) => {
            let devices = joined(body.devices.iter().map(ToString::to_string).collect());
            (body.user_id.to_string(), format!("logged out {devices}"))
        }
        Command::DeviceRename(body) => {
            let name = body.display_name.unwrap_or_else(|| "nothing".to_owned());
            (body.user_id.to_string(), format!("named {} {name}", body.device_id))
        }
        Command::DeviceDehydrate(body) => {
            let name = body.display_name.map_or_else(String::new, |name| format!(" ({name})"));
            (body.user_id.to_string(), format!("dehydrated a device, {}{name}", body.device_id))
        }
        Command::DeviceSeen(body) => {
            let text = format!("was seen on {} from {}", body.device_id, body.sighting.address);
            (body.user_id.to_string(), text)
        }
        Command::ProfileSet(body) => {
            let text = match &body.value {
                Some(value) => format!("set {} to {}", body.field, plain(value)),
                None => format!("removed {}", body.field),
            };
            (body.user_id.to_string(), text)
        }
        Command::AccountDataSet(body) => {
            (body.user_id.to_string(), format!("set account data {}", body.event_type))
        }
        Command::FilterCreate(body) => {
            (body.user_id.to_string(), format!("stored the filter {}", body.filter_id))
        }
        Command::KeysUpload(body) => {
            let mut what = Vec::new();
            if body.device_keys.is_some() {
                what.push("identity keys".to_owned());
            }
            let counted = [(body.one_time_keys, "one-time"), (body.fallback_keys, "fallback")];
            for (keys, kind) in counted.into_iter().filter(|(keys, _)| !keys.is_empty()) {
                what.push(format!("{} {kind} key(s)", keys.len()));
            }
            (body.user_id.to_string(), format!("uploaded {} of {}", joined(what), body.device_id))
        }
        Command::KeysClaim(body) => {
            (who, format!("was given {} of {} {}", body.key_id, body.user_id, body.device_id))
        }
        Command::KeysDrop(_) => {
            let text = "dropped all one-time keys, any of which may have been handed out";
            (who, text.to_owned())
        }
        Command::KeysCrossSign(body) => {
            (body.user_id.to_string(), "set cross-signing keys".to_owned())
        }
        Command::KeysSign(body) => {
            let signed = joined(body.signatures.into_keys().collect());
            (body.by.to_string(), format!("signed {signed} of {}", body.user_id))
        }
        Command::KeyBackupSet(body) => {
            let text = format!("set key backup {}, {}", body.version, body.algorithm);
            (body.user_id.to_string(), text)
        }
        Command::KeyBackupDelete(body) => {
            (body.user_id.to_string(), format!("deleted key backup {}", body.version))
        }
        Command::KeyBackupPut(body) => {
            let keys: usize = body.rooms.values().map(std::collections::BTreeMap::len).sum();
            let text = format!("put {keys} room key(s) into key backup {}", body.version);
            (body.user_id.to_string(), text)
        }
        Command::KeyBackupRemove(body) => {
            let what = match (&body.room_id, &body.session_id) {
                (Some(room_id), Some(session_id)) => {
                    format!("the key of {session_id} in {room_id}")
                }
                (Some(room_id), None) => format!("the keys of {room_id}"),
                (None, _) => "all keys".to_owned(),
            };
            (body.user_id.to_string(), format!("took {what} out of key backup {}", body.version))
        }
        Command::ToDeviceSend(body) => {
            let devices: usize = body.messages.values().map(std::collections::BTreeMap::len).sum();
            let text = format!("sent {} to {devices} device(s)", body.event_type);
            (body.sender.to_string(), text)
        }
        Command::ToDeviceAck(body) => {
            let text = format!("has the messages to {} up to {}", body.device_id, body.up_to);
            (body.user_id.to_string(), text)
        }
        Command::RoomEvent(body) => match StoredEvent::new(record.offset(), body) {
            Ok(event) => (event.sender.to_string(), of_event(&event, Context::default())),
            Err(error) => (who, format!("(not an event: {error})")),
        },
        Command::RoomForget(body) => (body.user_id.to_string(), "forgot the room".to_owned()),
        Command::RoomUndo(body) => {
            let rooms = body.rooms.iter().map(|room| room.room_id.to_string()).collect();
            let text = format!("is not in {} any more: that was undone", joined(rooms));
            (body.user_id.to_string(), text)
        }
        Command::RoomVisibility(body) => {
            let text = if body.public { "listed the room" } else { "took the room off the list" };
            (who, format!("{text} in the public directory"))
        }
        Command::RoomNetwork(body) => {
            let text = if body.listed { "listed the room with" } else { "took the room off" };
            (body.service, format!("{text} those of {} in the public directory", body.network_id))
        }
        Command::RoomBlock(body) => {
            let does = if body.blocked { "blocked" } else { "unblocked" };
            (who, format!("{does} the room {}{}", body.room_id, because(body.reason)))
        }
        Command::RoomShutdown(body) => {
            let to = body.replacement.map(|new| format!(", in favour of {}", new.room_id));
            let to = to.unwrap_or_default();
            (who, format!("began to shut down {}{to}{}", body.room_id, because(body.reason)))
        }
        Command::RoomShutdownFinish(body) => {
            let failed = match body.failed.len() {
                0 => String::new(),
                number => format!(", but {number} user(s) could not be made to leave"),
            };
            (who, format!("has shut down {}{failed}", body.room_id))
        }
        Command::NoticeRoom(body) => {
            (body.user_id.to_string(), format!("gets the server's notices in {}", body.room_id))
        }
        Command::RoomReceipt(body) => {
            let what = |receipt: &Receipt| {
                let what = match receipt.receipt_type.as_str() {
                    "m.read.private" => "read (privately) up to",
                    "m.fully_read" => "put the read marker at",
                    _ => "read up to",
                };
                format!("{what} {}", receipt.event_id)
            };
            match &*body.receipts {
                [receipt] => (receipt.user_id.to_string(), what(receipt)),
                receipts => {
                    let each = |r: &Receipt| format!("{} {}", r.user_id, what(r));
                    (who, joined(receipts.iter().map(each).collect()))
                }
            }
        }
        Command::RoomTyping(body) => {
            let text = match (body.until_ms, body.since) {
                (0, _) => "stopped typing",
                (_, None) => "is typing",
                (_, Some(_)) => "is still typing",
            };
            (body.user_id.to_string(), text.to_owned())
        }
        Command::ReportCreate(body) => {
            let what = match (&body.event_id, &body.room_id, &body.user_id) {
                (Some(event_id), Some(room_id), _) => format!("{event_id} in {room_id}"),
                (_, Some(room_id), _) => format!("the room {room_id}"),
                (_, _, Some(user_id)) => user_id.to_string(),
                _ => "nothing".to_owned(),
            };
            let score = body.score.map_or_else(String::new, |score| format!(" with {score}"));
            let reason = body.reason.map_or_else(String::new, |reason| format!(": {reason}"));
            (body.reporter.to_string(), format!("reported {what}{score}{reason}"))
        }
        Command::ReportRemove(body) => (who, format!("dealt with the report {}", body.report)),
        Command::PresenceSet(body) => {
            let idle = if body.currently_active { "" } else { ", not active just now" };
            let idle = if body.presence == PresenceState::Online { idle } else { "" };
            let status = body.status_msg.map_or_else(String::new, |text| format!(" ({text})"));
            (body.user_id.to_string(), format!("is {}{idle}{status}", body.presence.as_str()))
        }
        Command::DelayedSchedule(body) => {
            let after = format!("{} ms", body.delay_ms);
            let text = format!("will send {} to {} after {after}", body.event_type, body.room_id);
            (body.user_id.to_string(), text)
        }
        Command::DelayedRestart(_) => (who, "put off a scheduled event".to_owned()),
        Command::DelayedFinish(body) => {
            let text = match body.outcome {
                DelayedOutcome::Send { event_id } => format!("sent {event_id}, as scheduled"),
                DelayedOutcome::Cancel => "cancelled a scheduled event".to_owned(),
                DelayedOutcome::Error { errcode, error } => {
                    format!("did not send a scheduled event: {errcode}: {error}")
                }
            };
            (who, text)
        }
        Command::MediaCreate(body) => {
            (body.user_id.to_string(), format!("was given the media id {}", body.media_id))
        }
        Command::MediaUpload(body) => {
            let name = body.name.map_or_else(String::new, |name| format!(", \"{name}\""));
            let of = body.content_type.map_or_else(String::new, |kind| format!(" of {kind}"));
            let text = format!("{} ({} bytes{of}{name})", body.media_id, body.size);
            match body.user_id {
                Some(user_id) => (user_id.to_string(), format!("uploaded {text}")),
                None => (who, format!("had the server fetch {text}")),
            }
        }
        Command::MediaQuarantine(body) => {
            let does = match body.quarantined {
                true => "put into quarantine",
                false => "took out of quarantine",
            };
            let what = match &*body.media_ids {
                [one] => one.clone(),
                many => format!("{} files: {}", many.len(), many.join(", ")),
            };
            (who, format!("{does} {what}{}", because(body.reason)))
        }
        Command::MediaProtect(body) => {
            let does = if body.protected { "exempted" } else { "no longer exempts" };
            (who, format!("{does} {} from quarantine", body.media_id))
        }
        Command::MediaRemove(body) => {
            let why = match body.why {
                MediaEnd::Lifetime { lifetime_ms } => {
                    format!("that had been kept for {} seconds", lifetime_ms / 1000)
                }
                MediaEnd::Owner { user_id, .. } => format!("of {user_id}, who was erased"),
                MediaEnd::Asked => "as those who run the server wanted".to_owned(),
                MediaEnd::Room { room_id } => format!("that only {room_id} named"),
            };
            (who, format!("removed {} file(s) {why}", body.media_ids.len()))
        }
        Command::RoomErase(body) => {
            let why = match body.why {
                EventsEnd::Lifetime { event_type, lifetime_ms } => {
                    format!("of {event_type} that had lived for {} seconds", lifetime_ms / 1000)
                }
                EventsEnd::Sender { user_id, .. } => format!("of {user_id}, who was erased"),
            };
            (who, format!("took {} event(s) out of the room {why}", body.events.len()))
        }
        Command::RoomPurge(body) => {
            (who, format!("purged {}{}", body.room_id, because(body.reason)))
        }
        Command::AliasSet(body) => {
            (body.creator.to_string(), format!("pointed {} at {}", body.alias, body.room_id))
        }
        Command::AliasRemove(body) => (who, format!("removed {}", body.alias)),
        Command::ValidationRequest(body) => {
            let what_for = match body.purpose {
                Purpose::Register => "to register with it",
                Purpose::Account => "to prove that an account is theirs",
                Purpose::Add => "to add it to an account",
            };
            let vain = if body.token.is_some() { "" } else { ", in vain" };
            let text = format!("asked for a message to {} {what_for}{vain}", body.threepid);
            (who, format!("{text} (validation {}, attempt {})", body.sid, body.send_attempt))
        }
        Command::ValidationSent(body) => {
            (who, format!("sent the message of validation {}", body.sid))
        }
        Command::ValidationMiss(body) => {
            (who, format!("tried a wrong token for validation {}", body.sid))
        }
        Command::ValidationComplete(body) => (who, format!("completed validation {}", body.sid)),
        Command::ValidationUse(body) => (who, format!("made use of validation {}", body.sid)),
        Command::ThreepidAdd(body) => {
            (body.user_id.to_string(), format!("added {}", body.threepid))
        }
        Command::ThreepidRemove(body) => {
            (body.user_id.to_string(), format!("removed {}", body.threepid))
        }
        Command::ThreepidBind(body) => {
            let text = format!("bound {} to themselves on {}", body.threepid, body.id_server);
            (body.user_id.to_string(), text)
        }
        Command::ThreepidUnbind(body) => {
            let text = format!("unbound {} from themselves on {}", body.threepid, body.id_server);
            (body.user_id.to_string(), text)
        }
        Command::DeliveryAdvance(body) => {
            let told = format!("has told {} of everything up to record {}", body.to, body.done);
            let text = match body.under_way {
                Some(on) => {
                    format!("{told}, and tells of record {} and before as {}", on.up_to, on.id)
                }
                None => told,
            };
            (who, text)
        }
        Command::PusherSet(body) => {
            let PusherSet { user_id, ids, kind, app_display_name, device_display_name, .. } = body;
            let app_id = ids.app_id;
            let text = match kind {
                PusherKind::Http => format!(
                    "has notifications sent to {app_display_name} ({app_id}) on {device_display_name}"
                ),
                PusherKind::Email => "has mail sent about what they miss".to_owned(),
            };
            (user_id.to_string(), text)
        }
        Command::PusherRemove(body) => {
            let because = match body.because {
                PusherEnd::Asked => "",
                PusherEnd::Moved => ": the device is another user's now",
                PusherEnd::Rejected => ": the push gateway does not know the device any more",
            };
            let text =
                format!("has no notifications sent to {} any more{because}", body.ids.app_id);
            (body.user_id.to_string(), text)
        }
        Command::PusherAdvance(body) => {
            let behind = match body.behind.len() {
                0 => String::new(),
                number => format!(", but for {number} pusher(s) that are behind"),
            };
            let text = format!("has sent all notifications up to record {}{behind}", body.done);
            (who, text)
        }
        Command::PusherMail(body) => {
            let again = match body.in_a_row {
                0 | 1 => String::new(),
                number => format!(", the {number}th mail in a row of which they read nothing"),
            };
            let text =
                format!("was sent a mail about what they missed up to record {}", body.up_to);
            (body.user_id.to_string(), text + &again)
        }
        Command::AdminReason(body) => (who, format!("did so because: {}", body.reason)),
    }
}

fn of_status(body: UserStatus) -> String {
    let UserStatus { user_id, admin, locked, suspended, reason } = body;
    let words = [
        admin.map(|admin| match admin {
            true => format!("made {user_id} an administrator"),
            false => format!("took administration from {user_id}"),
        }),
        locked.map(|locked| format!("{} {user_id}", if locked { "locked" } else { "unlocked" })),
        suspended.map(|suspended| {
            format!("{} {user_id}", if suspended { "suspended" } else { "unsuspended" })
        }),
    ];
    let words: Vec<_> = words.into_iter().flatten().collect();
    words.join(", ") + &because(reason)
}

fn because(reason: Option<String>) -> String {
    reason.map_or_else(String::new, |reason| format!(": {reason}"))
}

fn requirements(met: &Requirements) -> String {
    let mut text = String::new();
    if let Some(token) = &met.registration_token {
        text.push_str(&format!(", with the registration token {}…", token.start()));
    }
    if !met.terms.is_empty() {
        let terms: Vec<_> =
            met.terms.iter().map(|(name, version)| format!("{name} {version}")).collect();
        text.push_str(&format!(", agreed to {}", terms.join(", ")));
    }
    text
}

fn of_erasure(body: &LogErase) -> String {
    let reduced = body.reduced.iter().map(|reduced| match reduced.because {
        Offset::ZERO => {
            format!("erased the content of record {}, which had done its work", reduced.offset)
        }
        because => {
            format!("erased the content of record {}, redacted by record {because}", reduced.offset)
        }
    });
    let taken = body.taken.iter().map(|taken| {
        format!("erased records {} to {} for record {}", taken.first, taken.last, taken.because)
    });
    let superseded = body.superseded.iter().map(|(first, last)| match first == last {
        true => format!("erased record {first}, which is superseded"),
        false => format!("erased records {first} to {last}, which are superseded"),
    });
    reduced.chain(superseded).chain(taken).collect::<Vec<_>>().join("; ")
}

/// What is known of an event's surroundings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context {
    /// The membership that a member event changes.
    pub before: Option<Membership>,
    /// The record of the event that it is about: redacts, replaces, reacts to.
    pub about: Option<Offset>,
}

/// The event that `event` is about: redacts, replaces, reacts to.
#[must_use]
pub fn about(event: &StoredEvent) -> Option<OwnedEventId> {
    let content: Value = event.content_as().unwrap_or_default();
    let related = content.pointer("/m.relates_to/event_id").and_then(Value::as_str);
    event.redacts.clone().or_else(|| related?.try_into().ok())
}

/// What `event` says, its sender left out.
#[must_use]
pub fn of_event(event: &StoredEvent, context: Context) -> String {
    let about = |id: Option<&str>| match context.about {
        Some(offset) => format!("record {offset}"),
        None => id.unwrap_or("an event").to_owned(),
    };
    let content: Value = event.content_as().unwrap_or_default();
    let text = |key: &str| content.get(key).and_then(Value::as_str);
    match (&event.event_type, event.state_key.as_deref()) {
        (TimelineEventType::RoomMessage, None) => message(&content, about(None)),
        (TimelineEventType::RoomEncrypted, None) => "(an encrypted message)".to_owned(),
        (TimelineEventType::RoomMember, Some(target)) => {
            member(event, target, &content, context.before)
        }
        (TimelineEventType::RoomRedaction, None) => {
            let target = about(event.redacts.as_ref().map(|id| id.as_str()));
            format!("redacted {target}{}", reason(&content))
        }
        (TimelineEventType::Reaction, None) => {
            let key = content.pointer("/m.relates_to/key").and_then(Value::as_str);
            format!("reacted {} to {}", key.unwrap_or_default(), about(None))
        }
        (TimelineEventType::RoomCreate, Some(_)) => {
            let version = text("room_version").unwrap_or("1");
            format!("made the room, version {version}")
        }
        (TimelineEventType::RoomName, Some(_)) => set("the name", text("name")),
        (TimelineEventType::RoomTopic, Some(_)) => set("the topic", text("topic")),
        (TimelineEventType::RoomCanonicalAlias, Some(_)) => set("the main alias", text("alias")),
        (TimelineEventType::RoomAvatar, Some(_)) => set("the avatar", text("url")),
        (TimelineEventType::RoomJoinRules, Some(_)) => set("the join rule", text("join_rule")),
        (TimelineEventType::RoomGuestAccess, Some(_)) => set("guest access", text("guest_access")),
        (TimelineEventType::RoomHistoryVisibility, Some(_)) => {
            set("history visibility", text("history_visibility"))
        }
        (TimelineEventType::RoomPowerLevels, Some(_)) => "set the power levels".to_owned(),
        (TimelineEventType::RoomEncryption, Some(_)) => "turned encryption on".to_owned(),
        (TimelineEventType::RoomTombstone, Some(_)) => {
            set("the successor of the room", text("replacement_room"))
        }
        (other, Some("")) => format!("set {other} to {}", event.content.get()),
        (other, Some(key)) => format!("set {other} of {key} to {}", event.content.get()),
        (other, None) => format!("sent {other} {}", event.content.get()),
    }
}

fn set(what: &str, value: Option<&str>) -> String {
    match value {
        Some(value) if !value.is_empty() => format!("set {what} to {value}"),
        _ => format!("removed {what}"),
    }
}

fn message(content: &Value, about: String) -> String {
    let text = |from: &Value, key: &str| from.get(key).and_then(Value::as_str).map(str::to_owned);
    let relation = content.pointer("/m.relates_to/rel_type").and_then(Value::as_str);
    if relation == Some("m.replace") {
        let new = content.get("m.new_content").unwrap_or(content);
        return format!("(edits {about}) {}", text(new, "body").unwrap_or_default());
    }
    let body = text(content, "body").unwrap_or_default();
    match content.get("msgtype").and_then(Value::as_str) {
        Some("m.text") => body,
        Some("m.notice") => format!("(notice) {body}"),
        Some("m.emote") => format!("* {body}"),
        Some(kind @ ("m.image" | "m.file" | "m.audio" | "m.video" | "m.location")) => {
            format!("({}) {body}", kind.trim_start_matches("m."))
        }
        Some(other) => format!("({other}) {body}"),
        None => "(an empty message)".to_owned(),
    }
}

fn member(
    event: &StoredEvent,
    target: &str,
    content: &Value,
    before: Option<Membership>,
) -> String {
    let own = event.sender.as_str() == target;
    let now = content.get("membership").and_then(Value::as_str).unwrap_or_default();
    let does = match (now, before) {
        ("join", Some(Membership::Join)) => {
            let name = content.get("displayname").and_then(Value::as_str);
            return name.map_or_else(
                || "has no display name any more".to_owned(),
                |name| format!("is shown as {name}"),
            );
        }
        ("join", Some(Membership::Invite)) => "accepted the invitation".to_owned(),
        ("join", _) => "joined".to_owned(),
        ("invite", _) => format!("invited {target}"),
        ("knock", _) => "asked to be let in".to_owned(),
        ("ban", _) => format!("banned {target}"),
        ("leave", Some(Membership::Invite)) if own => "declined the invitation".to_owned(),
        ("leave", Some(Membership::Knock)) if own => "no longer asks to be let in".to_owned(),
        ("leave", _) if own => "left".to_owned(),
        ("leave", Some(Membership::Ban)) => format!("unbanned {target}"),
        ("leave", Some(Membership::Invite)) => format!("took back the invitation of {target}"),
        ("leave", Some(Membership::Knock)) => format!("did not let {target} in"),
        ("leave", Some(Membership::Join)) => format!("kicked {target}"),
        ("leave", _) => format!("removed {target}"),
        (other, _) => format!("set the membership of {target} to {other}"),
    };
    does + &reason(content)
}

fn reason(content: &Value) -> String {
    let given = content.get("reason").and_then(Value::as_str);
    given.map_or_else(String::new, |reason| format!(" (reason: {reason})"))
}

/// A string as it is, anything else as JSON.
pub(super) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
