//! What the log says about one user, in the plainest form: lists that are searched from end to end.
//! It shares no code with the projections, views and sync that it checks.

use std::collections::{BTreeMap, BTreeSet};

use ruma::{OwnedRoomId, OwnedUserId, UserId};
use serde_json::Value;

use logcabin_base::glob::Glob;
use logcabin_record::{Command, CommandError, Offset, Record};

/// A state event's type and state key.
pub(super) type Key = (String, String);

/// Everything that one user could ever see.
#[derive(Debug)]
pub struct Ledger {
    pub(super) user_id: OwnedUserId,
    pub(super) rooms: BTreeMap<OwnedRoomId, RoomLedger>,
    /// Every change of account data, global or of a room.
    pub(super) account_data: Vec<AccountData>,
    pub(super) end: Offset,
}

#[derive(Debug)]
pub(super) struct AccountData {
    pub(super) offset: Offset,
    pub(super) room_id: Option<OwnedRoomId>,
    pub(super) event_type: String,
    pub(super) content: Value,
}

#[derive(Debug, Default)]
pub(super) struct RoomLedger {
    pub(super) events: Vec<Entry>,
    pub(super) receipts: Vec<Receipt>,
    /// When the user forgot the room.
    forgets: Vec<Offset>,
    /// The events that kicks and bans redacted, each with the record.
    redacted: BTreeMap<Offset, Offset>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) offset: Offset,
    pub(super) event_id: String,
    pub(super) sender: String,
    pub(super) key: Option<Key>,
    content: Value,
    redacts: Option<Offset>,
}

#[derive(Debug)]
pub(super) struct Receipt {
    pub(super) offset: Offset,
    pub(super) user_id: OwnedUserId,
    pub(super) receipt_type: String,
    pub(super) thread_id: Option<String>,
    pub(super) event_id: String,
}

impl Ledger {
    pub fn new(user_id: &UserId) -> Self {
        Self {
            user_id: user_id.to_owned(),
            rooms: BTreeMap::new(),
            account_data: Vec::new(),
            end: Offset::ZERO,
        }
    }

    /// Adds the next record.
    pub fn take(&mut self, record: &Record) -> Result<(), CommandError> {
        let offset = record.offset();
        self.end = offset;
        match record.command()? {
            Some(Command::RoomEvent(body)) => {
                let pdu: Value = serde_json::from_str(body.pdu.get()).unwrap_or_default();
                let text = |name: &str| pdu[name].as_str().map(ToOwned::to_owned);
                let event_type = text("type").unwrap_or_default();
                let entry = Entry {
                    offset,
                    event_id: body.event_id.to_string(),
                    sender: text("sender").unwrap_or_default(),
                    key: text("state_key").map(|state_key| (event_type, state_key)),
                    content: pdu["content"].clone(),
                    redacts: body.redacts,
                };
                self.rooms.entry(body.room_id).or_default().events.push(entry);
            }
            Some(Command::RoomRedactSender(body)) => {
                let room = self.rooms.entry(body.room_id).or_default();
                for event in body.events {
                    room.redacted.entry(event).or_insert(offset);
                }
            }
            Some(Command::RoomReceipt(body)) => {
                let receipts = body.receipts.into_iter().map(|receipt| Receipt {
                    offset,
                    user_id: receipt.user_id,
                    receipt_type: receipt.receipt_type,
                    thread_id: receipt.thread_id,
                    event_id: receipt.event_id.to_string(),
                });
                self.rooms.entry(body.room_id).or_default().receipts.extend(receipts);
            }
            Some(Command::RoomForget(body)) if body.user_id == self.user_id => {
                self.rooms.entry(body.room_id).or_default().forgets.push(offset);
            }
            Some(Command::AccountDataSet(body)) if body.user_id == self.user_id => {
                self.account_data.push(AccountData {
                    offset,
                    room_id: body.room_id,
                    event_type: body.event_type,
                    content: serde_json::from_str(body.content.get()).unwrap_or_default(),
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// The content of the user's global account data of this type as of `at`.
    fn global_data(&self, event_type: &str, at: Offset) -> Option<&Value> {
        let newest = self.account_data.iter().rfind(|data| {
            data.room_id.is_none() && data.event_type == event_type && data.offset <= at
        });
        newest.map(|data| &data.content)
    }

    /// Whether the user ignores `other` as of `at` (client-server API, "Ignoring Users").
    pub(super) fn ignores(&self, other: &str, at: Offset) -> bool {
        let list = self.global_data("m.ignored_user_list", at);
        let is_listed = list.is_some_and(|list| list["ignored_users"].get(other).is_some());
        is_listed && other != self.user_id.as_str()
    }

    /// Whether the user takes invites by `inviter` as of `at` (client-server API, "Invite
    /// permission", and MSC4155).
    pub(super) fn takes_invites_by(&self, inviter: &str, at: Offset) -> bool {
        let server = inviter.split_once(':').map_or("", |(_, server)| server);
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        let types = ["m.invite_permission_config", "org.matrix.msc4155.invite_permission_config"];
        let configs: Vec<_> = types.iter().filter_map(|of| self.global_data(of, at)).collect();
        let names = |of: &str, names: &[&str], which: &str| {
            configs.iter().any(|config| {
                let patterns = config[format!("{which}_{of}")].as_array();
                let mut patterns = patterns.into_iter().flatten().filter_map(Value::as_str);
                patterns.any(|text| {
                    Glob::new(text).is_some_and(|glob| names.iter().any(|name| glob.is(name)))
                })
            })
        };
        // Rules about users come before those about homeservers.
        for (of, named) in [("users", &[inviter][..]), ("servers", &[server, host])] {
            for (which, takes) in [("allowed", true), ("ignored", false), ("blocked", false)] {
                if names(of, named, which) {
                    return takes;
                }
            }
        }
        !configs.iter().any(|config| config["default_action"] == "block")
    }

    /// Drops the rooms that do not concern the user.
    pub fn settle(&mut self) {
        let user_id = self.user_id.as_str();
        self.rooms.retain(|_, room| !room.memberships(user_id).is_empty());
    }
}

impl RoomLedger {
    /// The state as of `at`: for each key, its current event.
    pub(super) fn state(&self, at: Offset) -> BTreeMap<Key, &Entry> {
        let mut state = BTreeMap::new();
        for event in self.events.iter().filter(|event| event.offset <= at) {
            if let Some(key) = &event.key {
                state.insert(key.clone(), event);
            }
        }
        state
    }

    /// The memberships of a user, oldest first.
    fn memberships(&self, user_id: &str) -> Vec<(Offset, &str)> {
        let of_user = self.events.iter().filter(|event| {
            event.key.as_ref().is_some_and(|(t, key)| t == "m.room.member" && key == user_id)
        });
        of_user.filter_map(|e| Some((e.offset, e.content["membership"].as_str()?))).collect()
    }

    /// The membership of a user as of `at`, and since when; `leave` for a user who never had one.
    pub(super) fn membership(&self, user_id: &str, at: Offset) -> (Offset, &str) {
        let memberships = self.memberships(user_id);
        let last = memberships.into_iter().rfind(|(offset, _)| *offset <= at);
        last.unwrap_or((Offset::ZERO, "leave"))
    }

    /// How many users have this membership as of `at`.
    pub(super) fn count(&self, membership: &str, at: Offset) -> u64 {
        let state = self.state(at);
        let members = state.iter().filter(|((event_type, _), _)| event_type == "m.room.member");
        members.filter(|(_, event)| event.content["membership"] == membership).count() as u64
    }

    /// Whether the user has forgotten the room as of `at`.
    pub(super) fn is_forgotten(&self, user_id: &str, at: Offset) -> bool {
        let since = self.membership(user_id, at).0;
        self.forgets.iter().any(|forget| *forget <= at && *forget > since)
    }

    /// When the user's membership last changed from `join`, up to and including `at`.
    pub(super) fn departed(&self, user_id: &str, at: Offset) -> Option<Offset> {
        let mut departed = None;
        let mut before = "leave";
        for (offset, membership) in self.memberships(user_id) {
            if offset <= at && before == "join" && membership != "join" {
                departed = Some(offset);
            }
            before = membership;
        }
        departed
    }

    pub(super) fn is_redacted(&self, event: &Entry, at: Offset) -> bool {
        let by_sender = self.redacted.get(&event.offset).is_some_and(|record| *record <= at);
        by_sender
            || self.events.iter().any(|of| of.redacts == Some(event.offset) && of.offset <= at)
    }

    /// The events after `since`, up to and including `to`, that the user may see as of `now`, by
    /// the rules of the specification ("Room history visibility").
    pub(super) fn visible(
        &self,
        user_id: &str,
        since: Offset,
        to: Offset,
        now: Offset,
    ) -> Vec<&Entry> {
        let forgotten = self.is_forgotten(user_id, now);
        let memberships: Vec<_> = if forgotten {
            Vec::new()
        } else {
            let all = self.memberships(user_id).into_iter();
            all.filter(|(offset, _)| *offset <= now).collect()
        };
        let of = |at: Offset| {
            let last = memberships.iter().rfind(|(offset, _)| *offset <= at);
            last.map_or("leave", |(_, membership)| *membership)
        };
        // The user joined after the event: directly, or by a later member event.
        let joined_after = |at: Offset| {
            of(at) == "join" || memberships.iter().any(|(offset, m)| *offset > at && *m == "join")
        };
        let is_setting = |event: &&Entry| {
            let key = event.key.as_ref().map(|(t, k)| (t.as_str(), k.as_str()));
            key == Some(("m.room.history_visibility", ""))
        };
        let settings: Vec<_> = self.events.iter().filter(is_setting).collect();
        let setting = |at: Offset| {
            let event = settings.iter().rfind(|event| event.offset <= at);
            let named = event.and_then(|event| event.content["history_visibility"].as_str());
            match named {
                Some(name @ ("world_readable" | "invited" | "joined")) => name.to_owned(),
                _ => "shared".to_owned(),
            }
        };
        let may_see = |event: &Entry, setting: &str, membership: &str| {
            setting == "world_readable"
                || membership == "join"
                || (setting == "shared" && joined_after(event.offset))
                || (setting == "invited" && membership == "invite")
        };
        let in_range = self.events.iter().filter(|e| e.offset > since && e.offset <= to);
        in_range
            .filter(|event| {
                let (after, before) = (event.offset, event.offset.prev());
                let key = event.key.as_ref().map(|(t, k)| (t.as_str(), k.as_str()));
                match key {
                    // One's own membership, and a change of the setting, are visible if either the
                    // old or the new state allows it.
                    Some(("m.room.member", of_user)) if of_user == user_id => {
                        !memberships.is_empty()
                    }
                    Some(("m.room.history_visibility", "")) => {
                        may_see(event, &setting(before), of(after))
                            || may_see(event, &setting(after), of(after))
                    }
                    _ => may_see(event, &setting(after), of(after)),
                }
            })
            .collect()
    }

    /// The receipts that moved after `since`, up to and including `to`, and that the user may see:
    /// the newest for each user, type and thread.
    pub(super) fn receipts(
        &self,
        user_id: &UserId,
        since: Offset,
        to: Offset,
    ) -> BTreeSet<(String, String, String, Option<String>)> {
        let mut newest = BTreeMap::new();
        for receipt in self.receipts.iter().filter(|receipt| receipt.offset <= to) {
            let key = (&receipt.user_id, &receipt.receipt_type, &receipt.thread_id);
            newest.insert(key, receipt);
        }
        let known = newest.into_values().filter(|receipt| receipt.offset > since);
        known
            .filter(|receipt| {
                receipt.receipt_type != "m.read.private" || receipt.user_id == user_id
            })
            .map(|receipt| {
                let (user, kind) = (receipt.user_id.to_string(), receipt.receipt_type.clone());
                (receipt.event_id.clone(), kind, user, receipt.thread_id.clone())
            })
            .collect()
    }
}
