//! The export of one user: the user's data, and what the user may see.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use ruma::{DeviceId, OwnedUserId, UserId, events::StateEventType};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

use super::{ExportError, ExportScope, Manifest, bodies::Bodies, folder::Folder, hex};
use crate::source::Source;
use logcabin_base::{clock::Clock, limits};
use logcabin_engine as engine;
use logcabin_log::{Log, ReadError};
use logcabin_media::store;
use logcabin_read::{
    events::{ClientEvent, EventForm, EventRef, EventStore, Viewer},
    notifications::ruleset,
    sync::to_device,
    view::{View, filter::EventFilter, key_backup::room_keys, past::HistoryRange},
};
use logcabin_record::{Command, Offset, command::BackedUpKey, pusher::PusherKind};
use logcabin_snapshot as snapshot;
use logcabin_state::{Account, Room, RoomMembership, media::Item, rooms::gaps::TimelinePosition};

/// How many bytes of parsed events are kept meanwhile.
const EVENT_CACHE_BYTES: u64 = 64 << 20;

/// The session of no device and of no event.
const NO_SESSION: Offset = Offset::ZERO;

/// Exports `user`, named by id or localpart, from the server in `data_dir`, running or stopped, to
/// `dest`: the user's data, without credentials, and what the user may see. The directory must be
/// empty or missing. Blocks.
pub fn export_user(data_dir: &Path, user: &str, dest: &Path) -> Result<Manifest, ExportError> {
    let log = Arc::new(Bodies::of(Source::data_dir(data_dir)?)?);
    let running = log.is_served();
    let (mut state, begun) = snapshot::recall(&snapshot::directory(data_dir), &*log)?;
    if !begun.provisional.is_empty() {
        // A state that another version computed may lack something.
        (state, _) = engine::replay(&*log, |_, _| {})?;
    }
    let state = Arc::new(state);
    let identity = state.server().ok_or(ExportError::Empty)?;
    let user_id = named(user, &identity.server_name).filter(|id| state.accounts.contains(id));
    let user_id = user_id.ok_or_else(|| ExportError::NoUser(user.to_owned()))?;
    let last = log.get(state.applied())?.ok_or_else(|| ReadError::Missing(state.applied()))?;

    let events = EventStore::new(Arc::clone(&log) as Arc<dyn Log>, EVENT_CACHE_BYTES);
    let now_ms = Clock::system().now_ms();
    let viewer = Viewer {
        user_id: &user_id,
        device_id: <&DeviceId>::from(""),
        session: NO_SESSION,
        at: state.applied(),
        now_ms,
    };
    let mut portrait = UserExport {
        view: View { state: Arc::clone(&state), events: &events, viewer },
        server_name: &identity.server_name,
        folder: Folder::begin(dest)?,
        media: BTreeSet::new(),
    };
    portrait.account()?;
    portrait.devices()?;
    portrait.key_backups()?;
    portrait.messages()?;
    portrait.settings()?;
    portrait.scheduled()?;
    portrait.rooms()?;
    portrait.files(data_dir)?;

    let mut manifest = Manifest::of(ExportScope::User, &state, hex(&last.chain))?;
    manifest.exported_ms = now_ms;
    manifest.running = running;
    manifest.user_id = Some(user_id.clone());
    portrait.folder.finish(manifest, &identity)
}

fn named(user: &str, server_name: &str) -> Option<OwnedUserId> {
    if user.starts_with('@') {
        return UserId::parse(user).ok();
    }
    UserId::parse(format!("@{user}:{server_name}")).ok()
}

/// The export of one user in progress.
struct UserExport<'a> {
    view: View<'a>,
    server_name: &'a str,
    folder: Folder,
    /// The user's uploads.
    media: BTreeSet<String>,
}

#[derive(Serialize)]
struct DeviceLine<'a> {
    device_id: &'a DeviceId,
    #[serde(skip_serializing_if = "Option::is_none")]
    display_name: Option<&'a str>,
    logged_in_ms: u64,
    dehydrated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seen_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seen_address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seen_agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct AccountDataLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    room_id: Option<&'a str>,
    #[serde(rename = "type")]
    event_type: &'a str,
    content: Box<RawValue>,
}

#[derive(Serialize)]
struct MembershipLine<'a> {
    room_id: &'a str,
    membership: &'a str,
    time_ms: u64,
    event: ClientEvent,
}

impl UserExport<'_> {
    fn with_account<T>(&self, look: impl FnOnce(&Account) -> T) -> Result<T, ExportError> {
        let account = self.view.state.accounts.get(self.view.user_id());
        let account =
            account.ok_or_else(|| ExportError::NoUser(self.view.user_id().to_string()))?;
        let looked = look(&account.read());
        Ok(looked)
    }

    /// `account.ndjson`, `profile.ndjson`, `threepids.ndjson`.
    fn account(&mut self) -> Result<(), ExportError> {
        let View { state, events, .. } = self.view.clone();
        let user_id = self.view.user_id();
        let (registered, mut line, profile) = self.with_account(|account| {
            let links = account.links.iter();
            let links = links
                .map(|(provider, subject)| json!({ "provider": provider, "subject": subject }))
                .collect::<Vec<_>>();
            let standing = account.standing;
            let has_password = account.password.latest().is_some_and(Option::is_some);
            let line = json!({
                "user_id": user_id,
                "kind": account.kind,
                "admin": standing.admin,
                "locked": standing.locked,
                "suspended": standing.suspended,
                "deactivated": standing.deactivated.is_some(),
                "erased": standing.erased.is_some(),
                "has_password": has_password,
                "single_sign_on": links,
            });
            let profile = account.profile.iter();
            let profile: Vec<_> = profile
                .filter_map(|(name, field)| Some((name.clone(), field.value.clone()?)))
                .collect();
            (account.registered, line, profile)
        })?;
        line["created_ms"] = events.time_of(registered)?.into();
        if let Some(Command::UserRegister(body)) = events.command(registered)? {
            let met = serde_json::to_value(&body.met).unwrap_or_default();
            line["terms"] = met.get("terms").cloned().unwrap_or_else(|| json!({}));
        }
        self.section("account", [line])?;
        for (_, value) in &profile {
            note_media(&mut self.media, self.server_name, &value.to_string());
        }
        let profile = profile.into_iter();
        let profile = profile.map(|(field, value)| json!({ "field": field, "value": value }));
        self.section("profile", profile)?;
        let bound = state.threepids.bound(user_id);
        let threepids = state.threepids.of_user(user_id).into_iter().map(|(threepid, owned)| {
            let on = bound.iter().filter(|(of, _)| *of == threepid);
            json!({
                "medium": threepid.medium,
                "address": threepid.address,
                "validated_ms": owned.validated_ms,
                "added_ms": owned.added_ms,
                "published_on": on.map(|(_, server)| server).collect::<Vec<_>>(),
            })
        });
        let threepids: Vec<_> = threepids.collect();
        self.section("threepids", threepids)
    }

    /// `devices.ndjson`, `cross_signing.ndjson`, `pushers.ndjson`.
    fn devices(&mut self) -> Result<(), ExportError> {
        let View { state, events, .. } = self.view.clone();
        let user_id = self.view.user_id();
        let devices = self.with_account(|account| {
            let devices = account.active_devices();
            devices.map(|(id, device)| (id.clone(), device.clone())).collect::<Vec<_>>()
        })?;
        let keys = state.keys.get(user_id);
        let mut lines = self.folder.lines("devices.ndjson")?;
        for (device_id, device) in &devices {
            let identity = keys.as_ref().and_then(|keys| {
                keys.read().devices.get(device_id).and_then(|device| device.identity)
            });
            let keys = match identity.map(|offset| events.command(offset)).transpose()?.flatten() {
                Some(Command::KeysUpload(body)) => body.device_keys,
                _ => None,
            };
            let seen = state.seen.get(user_id, device_id);
            let last_seen_agent = seen.as_ref().and_then(|seen| seen.agent.clone());
            lines.value(&DeviceLine {
                device_id,
                display_name: device.display_name.as_deref(),
                logged_in_ms: device.login_ms,
                dehydrated: device.tokens.is_none(),
                last_seen_ms: seen.as_ref().map(|seen| seen.seen_ms),
                last_seen_address: seen.as_ref().map(|seen| seen.address.to_string()),
                last_seen_agent,
                keys,
            })?;
        }
        self.folder.add(lines)?;
        self.cross_signing()?;
        let pushers = state.pushers.of_user(user_id).into_iter().map(|pusher| {
            let body = &pusher.body;
            let mut line = json!({
                "app_id": body.ids.app_id,
                "kind": body.kind,
                "app_display_name": body.app_display_name,
                "device_display_name": body.device_display_name,
                "lang": body.lang,
                "set_ms": pusher.set_ms,
            });
            if let Some(device_id) = &body.device_id {
                line["device_id"] = json!(device_id);
            }
            if let Some(profile_tag) = &body.profile_tag {
                line["profile_tag"] = json!(profile_tag);
            }
            // For mail, this is the address. Other keys let anyone send to the device.
            if body.kind == PusherKind::Email {
                line["pushkey"] = json!(body.ids.pushkey);
            }
            line
        });
        let pushers: Vec<_> = pushers.collect();
        self.section("pushers", pushers)
    }

    fn cross_signing(&mut self) -> Result<(), ExportError> {
        let View { state, events, .. } = self.view.clone();
        let keys = state.keys.get(self.view.user_id());
        let mut lines = self.folder.lines("cross_signing.ndjson")?;
        if let Some(keys) = keys {
            let (master, own, others) = {
                let keys = keys.read();
                (keys.master_key, keys.self_signing_key, keys.user_signing_key)
            };
            for (usage, offset) in
                [("master", master), ("self_signing", own), ("user_signing", others)]
            {
                let Some(offset) = offset else { continue };
                let Some(Command::KeysCrossSign(body)) = events.command(offset)? else { continue };
                let key = match usage {
                    "master" => body.master_key,
                    "self_signing" => body.self_signing_key,
                    _ => body.user_signing_key,
                };
                #[derive(Serialize)]
                struct Line<'a> {
                    usage: &'a str,
                    key: Option<Box<RawValue>>,
                }
                lines.value(&Line { usage, key })?;
            }
        }
        self.folder.add(lines)
    }

    /// `key_backups.ndjson`, `key_backup_keys.ndjson`: only the user can decrypt the keys.
    fn key_backups(&mut self) -> Result<(), ExportError> {
        let View { state, events, .. } = self.view.clone();
        let user_id = self.view.user_id();
        let of_user = state.key_backups.get(user_id).map(|backups| {
            let backups = backups.read();
            let current = backups.current();
            let all = backups.all().map(|(version, backup)| {
                (version, backup.set, backup.algorithm.clone(), Some(version) == current)
            });
            all.collect::<Vec<_>>()
        });
        let of_user = of_user.unwrap_or_default();
        let mut lines = self.folder.lines("key_backups.ndjson")?;
        for (version, set, algorithm, current) in &of_user {
            #[derive(Serialize)]
            struct Line<'a> {
                version: u64,
                current: bool,
                algorithm: &'a str,
                auth_data: Box<RawValue>,
            }
            let Some(Command::KeyBackupSet(body)) = events.command(*set)? else { continue };
            let (version, current, auth_data) = (*version, *current, body.auth_data);
            lines.value(&Line { version, current, algorithm, auth_data })?;
        }
        self.folder.add(lines)?;
        let mut lines = self.folder.lines("key_backup_keys.ndjson")?;
        for (version, ..) in of_user {
            let keys = room_keys(&state, events, user_id, version, (None, None))?;
            for (room_id, sessions) in keys.unwrap_or_default() {
                for (session_id, key) in sessions {
                    #[derive(Serialize)]
                    struct Line<'a> {
                        version: u64,
                        room_id: &'a str,
                        session_id: &'a str,
                        #[serde(flatten)]
                        key: BackedUpKey,
                    }
                    let (room_id, session_id) = (room_id.as_str(), &*session_id);
                    lines.value(&Line { version, room_id, session_id, key })?;
                }
            }
        }
        self.folder.add(lines)
    }

    /// `to_device.ndjson`: messages that wait for the user's devices.
    fn messages(&mut self) -> Result<(), ExportError> {
        #[derive(Serialize)]
        struct Line<'a> {
            device_id: &'a DeviceId,
            sent_ms: Option<u64>,
            message: Box<RawValue>,
        }
        let devices = self.with_account(|account| {
            account.active_devices().map(|(id, _)| id.clone()).collect::<Vec<_>>()
        })?;
        let mut lines = self.folder.lines("to_device.ndjson")?;
        for device_id in &devices {
            let viewer = Viewer { device_id, ..self.view.viewer };
            let view = View { viewer, ..self.view.clone() };
            for (offset, message) in to_device::waiting(&view, Offset::ZERO)? {
                let sent_ms = self.view.events.time_of(offset)?;
                lines.value(&Line { device_id, sent_ms, message })?;
            }
        }
        self.folder.add(lines)
    }

    /// `scheduled.ndjson`: events that are scheduled, and recent results. Their ids are left out,
    /// because anyone who knows an id can act on the event.
    fn scheduled(&mut self) -> Result<(), ExportError> {
        #[derive(Serialize)]
        struct Line<'a> {
            room_id: &'a str,
            #[serde(rename = "type")]
            event_type: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            state_key: Option<&'a str>,
            content: Box<RawValue>,
            delay_ms: u64,
            since_ms: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            finished: Option<Value>,
        }
        let View { state, events, .. } = self.view.clone();
        let mut lines = self.folder.lines("scheduled.ndjson")?;
        for event in state.delayed.of(self.view.user_id()) {
            // Without its content, it was erased.
            let Some(Command::DelayedSchedule(body)) = events.command(event.offset)? else {
                continue;
            };
            let finished = event.finished.as_ref().map(|finished| {
                let mut said =
                    serde_json::to_value(&finished.outcome).unwrap_or_else(|_| json!({}));
                said["time_ms"] = finished.ts.into();
                said
            });
            lines.value(&Line {
                room_id: event.room_id.as_str(),
                event_type: &event.event_type,
                state_key: event.state_key.as_deref(),
                content: body.content,
                delay_ms: event.delay_ms,
                since_ms: event.since_ms,
                finished,
            })?;
        }
        self.folder.add(lines)
    }

    /// `account_data.ndjson`, `push_rules.ndjson`, `filters.ndjson`.
    fn settings(&mut self) -> Result<(), ExportError> {
        let events = self.view.events;
        let user_id = self.view.user_id();
        let (account_data, filters) = self.with_account(|account| {
            let data = account.account_data.iter();
            let data: Vec<_> = data
                .filter_map(|(key, history)| Some((key.clone(), history.at(self.view.at())?.0)))
                .collect();
            (data, account.filters.clone())
        })?;
        let mut rules = None;
        let mut lines = self.folder.lines("account_data.ndjson")?;
        for ((room_id, event_type), offset) in &account_data {
            let Some(Command::AccountDataSet(body)) = events.command(*offset)? else { continue };
            if room_id.is_none() && event_type == ruleset::EVENT_TYPE {
                rules = Some(body.content);
                continue;
            }
            // Deleted data.
            if body.content.get() == "null" {
                continue;
            }
            let room_id = room_id.as_ref().map(|room_id| room_id.as_str());
            lines.value(&AccountDataLine { room_id, event_type, content: body.content })?;
        }
        self.folder.add(lines)?;
        let shown = ruleset::shown(user_id, rules.as_deref());
        let shown = serde_json::to_value(&shown).unwrap_or_default();
        let mut rules = Vec::new();
        for kind in ["override", "content", "room", "sender", "underride"] {
            for rule in shown[kind].as_array().into_iter().flatten() {
                rules.push(json!({ "kind": kind, "rule": rule }));
            }
        }
        self.section("push_rules", rules)?;
        let mut lines = self.folder.lines("filters.ndjson")?;
        for (id, offset) in filters {
            let Some(Command::FilterCreate(body)) = events.command(offset)? else { continue };
            lines.value(&json!({ "filter_id": id, "filter": body.filter }))?;
        }
        self.folder.add(lines)
    }

    /// `memberships.ndjson`, `receipts.ndjson`, `rooms.ndjson`, and a file of events for each room.
    fn rooms(&mut self) -> Result<(), ExportError> {
        let state = Arc::clone(&self.view.state);
        let rooms = state.memberships.of(self.view.user_id(), self.view.at());
        let mut memberships = self.folder.lines("memberships.ndjson")?;
        let mut receipts = self.folder.lines("receipts.ndjson")?;
        let mut list = self.folder.lines("rooms.ndjson")?;
        let mut number = 0;
        for part in &rooms {
            let Some(room) = state.rooms.get(&part.room_id) else { continue };
            for (offset, membership) in room.membership_changes(self.view.user_id(), self.view.at())
            {
                let Some(event) = self.view.events.get(offset)? else { continue };
                memberships.value(&MembershipLine {
                    room_id: part.room_id.as_str(),
                    membership: membership.as_str(),
                    time_ms: event.origin_server_ts.get().into(),
                    event: self.view.client_event(&room, &event, &EventForm::STATE)?,
                })?;
            }
            for (key, entry) in room.receipts_between(Offset::ZERO, self.view.at()) {
                let (user_id, receipt_type, thread_id) = &*key;
                if user_id == self.view.user_id() {
                    let mut line = json!({
                        "room_id": part.room_id,
                        "type": receipt_type,
                        "event_id": entry.event_id,
                        "time_ms": entry.ts,
                    });
                    if let Some(thread_id) = thread_id {
                        line["thread_id"] = json!(thread_id);
                    }
                    receipts.value(&line)?;
                }
            }
            // As an endpoint would: an unreadable room yields nothing.
            let Some(seen) = self.view.state_as_of(&room)? else { continue };
            number += 1;
            let name = format!("rooms/{number:06}.ndjson");
            let events = self.timeline(&room, &name)?;
            list.value(&self.room_line(part, &room, seen, &name, events)?)?;
        }
        self.folder.add(memberships)?;
        self.folder.add(receipts)?;
        self.folder.add(list)
    }

    fn room_line(
        &self,
        part: &RoomMembership,
        room: &Room,
        seen: Offset,
        file: &str,
        events: u64,
    ) -> Result<Value, ExportError> {
        let text = |event_type: StateEventType, key: &str| -> Result<Value, ExportError> {
            let Some(offset) = room.state_event(&event_type, "", seen) else {
                return Ok(Value::Null);
            };
            let Some(event) = self.view.events.get(offset)? else { return Ok(Value::Null) };
            let event = self.view.client_event(room, &event, &EventForm::STATE)?;
            let event: Value = serde_json::from_str(event.get()).unwrap_or_default();
            Ok(event["content"][key].clone())
        };
        Ok(json!({
            "room_id": room.id,
            "file": file,
            "events": events,
            "version": room.version,
            "membership": part.membership.as_str(),
            "name": text(StateEventType::RoomName, "name")?,
            "topic": text(StateEventType::RoomTopic, "topic")?,
            "alias": text(StateEventType::RoomCanonicalAlias, "alias")?,
            "encryption": text(StateEventType::RoomEncryption, "algorithm")?,
        }))
    }

    /// Writes the events of a room that the user may see, oldest first, in the format of
    /// `/messages`. Returns their number.
    fn timeline(&mut self, room: &Room, name: &str) -> Result<u64, ExportError> {
        let page_size = usize::try_from(limits::PAGE_EVENTS).unwrap_or(usize::MAX);
        let mut lines = self.folder.lines(name)?;
        let (mut from, mut count, all) =
            (TimelinePosition::After(Offset::ZERO), 0, EventFilter::default());
        let to = TimelinePosition::After(self.view.at());
        loop {
            // Events that were fetched for gaps are included.
            let wanted = HistoryRange { from, to, backward: false, stops: false };
            let page = self.view.past(room, wanted, page_size, &all)?;
            count += page.events.len() as u64;
            for event in self.forms(room, &page.events)? {
                note_media(&mut self.media, self.server_name, event.get());
                lines.value(&event)?;
            }
            match page.next {
                Some(next) => from = next,
                None => break,
            }
        }
        self.folder.add(lines)?;
        Ok(count)
    }

    fn forms(&self, room: &Room, events: &[EventRef]) -> Result<Vec<ClientEvent>, ExportError> {
        Ok(self.view.client_events(room, events, &EventForm::FULL)?)
    }

    /// `media.ndjson`, and the files.
    fn files(&mut self, data_dir: &Path) -> Result<(), ExportError> {
        let View { state, events, .. } = self.view.clone();
        let all = state.media.all().into_iter();
        let own = all.filter(|(_, stored)| stored.user_id.as_deref() == Some(self.view.user_id()));
        self.media.extend(own.map(|(media_id, _)| media_id.into()));
        let mut lines = self.folder.lines("media.ndjson")?;
        let mut files = BTreeSet::new();
        for media_id in &self.media {
            let Some(Item::Stored(stored)) = state.media.get(media_id) else { continue };
            let mut line = json!({
                "mxc": format!("mxc://{}/{media_id}", self.server_name),
                "path": store::place(Path::new("media"), &stored.hash),
                "bytes": stored.size,
                "own": stored.user_id.as_deref() == Some(self.view.user_id()),
                "uploaded_ms": stored.time_ms,
            });
            if let Some(Command::MediaUpload(body)) = events.command(stored.offset)? {
                if let Some(content_type) = body.content_type {
                    line["content_type"] = content_type.into();
                }
                if let Some(name) = body.name {
                    line["name"] = name.into();
                }
            }
            lines.value(&line)?;
            files.insert((stored.hash, stored.size));
        }
        self.folder.add(lines)?;
        for (hash, size) in files {
            self.folder.copy_media(data_dir, &hash, size)?;
        }
        Ok(())
    }

    /// A file with these lines.
    fn section(
        &mut self,
        name: &str,
        values: impl IntoIterator<Item = Value>,
    ) -> Result<(), ExportError> {
        let mut lines = self.folder.lines(&format!("{name}.ndjson"))?;
        for value in values {
            lines.value(&value)?;
        }
        self.folder.add(lines)
    }
}

/// Collects the ids of this server's files in `text`.
fn note_media(media: &mut BTreeSet<String>, server_name: &str, text: &str) {
    let prefix = format!("mxc://{server_name}/");
    for (at, _) in text.match_indices(&prefix) {
        let rest = &text[at + prefix.len()..];
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        if end > 0 {
            media.insert(rest[..end].to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_wherever_they_are_named() {
        let text = r#"{"url":"mxc://x.org/abc-D_1","info":{"thumbnail_url":"mxc://x.org/t"},
            "other":"mxc://y.org/no","none":"mxc://x.org/","body":"look: mxc://x.org/words, yes"}"#;
        let mut media = BTreeSet::new();
        note_media(&mut media, "x.org", text);
        assert_eq!(media.into_iter().collect::<Vec<_>>(), ["abc-D_1", "t", "words"]);
    }

    #[test]
    fn a_user_is_named_by_id_or_localpart() {
        let ann = Some("@ann:x.org".try_into().unwrap());
        assert_eq!(named("ann", "x.org"), ann);
        assert_eq!(named("@ann:x.org", "y.org"), ann);
        assert_eq!(named("@ann", "x.org"), None);
    }
}
