//! What a user missed: unread events that notify, and what a mail says about them.

use std::{cmp::Reverse, sync::Arc};

use ruma::{
    UserId,
    events::{StateEventType, TimelineEventType},
};
use serde_json::Value;
use time::OffsetDateTime;

use super::state_text;
use crate::mail::{DigestMessage, InviteDigest, MessageText, RoomDigest, RoomTitle, cut};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_read::{
    events::{EventRef, EventStore},
    invites::is_shown,
    notifications::{Judge, Unread, UnreadEvent},
};
use logcabin_record::Offset;
use logcabin_state::{Membership, Room, State};

/// A user, and a range of the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct MissedSince<'a> {
    pub(super) state: &'a State,
    pub(super) events: &'a EventStore,
    pub(super) unread: &'a Unread,
    pub(super) user_id: &'a UserId,
    /// Only events after this.
    pub(super) after: Offset,
    /// As of this.
    pub(super) at: Offset,
}

/// What a user missed, the newest rooms and invitations first.
#[derive(Debug, Default)]
pub(super) struct Missed {
    /// The unread events of each room, oldest first. No room is without any.
    rooms: Vec<(Arc<Room>, Vec<UnreadEvent>)>,
    /// Pending invitations.
    invites: Vec<(Arc<Room>, EventRef)>,
}

impl Missed {
    /// The oldest of them.
    pub(super) fn first(&self) -> Option<Offset> {
        let rooms = self.rooms.iter().filter_map(|(_, events)| Some(events.first()?.offset));
        rooms.chain(self.invites.iter().map(|(_, invite)| invite.offset)).min()
    }

    pub(super) fn messages(&self) -> usize {
        self.rooms.iter().map(|(_, events)| events.len()).sum()
    }

    pub(super) fn more_rooms(&self) -> usize {
        self.rooms.len().saturating_sub(limits::MAIL_ROOMS)
    }

    pub(super) fn more_invites(&self) -> usize {
        self.invites.len().saturating_sub(limits::MAIL_ROOMS)
    }
}

impl MissedSince<'_> {
    /// A place to look at: the first event after `after` in any room of the user. No event is read
    /// for this.
    pub(super) fn candidate(&self) -> Option<Offset> {
        let parts = self.state.memberships.of(self.user_id, self.at).into_iter();
        let first = parts.filter_map(|part| match part.membership {
            Membership::Join => {
                let room = self.state.rooms.get(&part.room_id)?;
                room.events_forward(self.after, self.at, 1).first().copied()
            }
            Membership::Invite => Some(part.offset).filter(|offset| *offset > self.after),
            _ => None,
        });
        first.min()
    }

    /// Everything that was missed.
    pub(super) fn missed(&self) -> Result<Missed, ReadError> {
        let Self { state, events, user_id, .. } = *self;
        let mut missed = Missed::default();
        for part in state.memberships.of(user_id, self.at) {
            let Some(room) = state.rooms.get(&part.room_id) else { continue };
            let judge = Judge { state, events, user_id, room: &room };
            match part.membership {
                Membership::Join => {
                    // Most rooms have nothing new, and this is enough to know.
                    if room.events_forward(self.after, self.at, 1).is_empty() {
                        continue;
                    }
                    let unread = self.unread.events(judge, self.after, self.at)?;
                    if !unread.is_empty() {
                        missed.rooms.push((room, unread));
                    }
                }
                Membership::Invite if part.offset > self.after => {
                    let Some(invite) = events.get(part.offset)? else { continue };
                    let notifies = judge.outcome(&invite)?.is_some_and(|outcome| outcome.notify);
                    if notifies && is_shown(events, state, user_id, &invite)? {
                        missed.invites.push((room, invite));
                    }
                }
                _ => {}
            }
        }
        let newest = |events: &Vec<UnreadEvent>| events.last().map(|event| event.offset);
        missed.rooms.sort_by_key(|(_, events)| Reverse(newest(events)));
        missed.invites.sort_by_key(|(_, invite)| Reverse(invite.offset));
        Ok(missed)
    }

    /// The rooms of a mail.
    pub(super) fn rooms(&self, missed: &Missed) -> Result<Vec<RoomDigest>, ReadError> {
        let rooms = missed.rooms.iter().take(limits::MAIL_ROOMS);
        rooms
            .map(|(room, events)| {
                let shown = &events[events.len().saturating_sub(limits::MAIL_MESSAGES)..];
                let mut lines: Vec<DigestMessage> = Vec::with_capacity(shown.len());
                for event in shown {
                    let Some(line) = self.line(room, event)? else { continue };
                    match (lines.last_mut(), &line.said) {
                        // Of several encrypted events in a row, only the number is known.
                        (
                            Some(DigestMessage {
                                sender,
                                said: MessageText::Encrypted(before),
                                highlight,
                                ..
                            }),
                            MessageText::Encrypted(number),
                        ) if *sender == line.sender && *highlight == line.highlight => {
                            *before += number;
                        }
                        _ => lines.push(line),
                    }
                }
                Ok(RoomDigest { place: self.place(room)?, messages: events.len(), lines })
            })
            .collect()
    }

    /// The invitations of a mail.
    pub(super) fn invites(&self, missed: &Missed) -> Result<Vec<InviteDigest>, ReadError> {
        let invites = missed.invites.iter().take(limits::MAIL_ROOMS);
        invites
            .map(|(room, invite)| {
                let name = self.name(room, &invite.sender, invite.offset)?;
                let name = name.unwrap_or_else(|| cut(invite.sender.as_str(), usize::MAX));
                Ok(InviteDigest { name, room: self.given_name(room)? })
            })
            .collect()
    }

    fn line(&self, room: &Room, unread: &UnreadEvent) -> Result<Option<DigestMessage>, ReadError> {
        let Some(event) = self.events.get(unread.offset)? else { return Ok(None) };
        if self.events.is_over(room, &event) {
            return Ok(None);
        }
        let ms = u64::from(event.origin_server_ts.get());
        Ok(Some(DigestMessage {
            name: self.name(room, &event.sender, event.offset)?,
            sender: event.sender.clone(),
            when: when(ms),
            said: said(&event.event_type, &event.content_as().unwrap_or_default()),
            highlight: unread.highlight,
        }))
    }

    /// The display name of the sender at the time of the event.
    fn name(&self, room: &Room, user: &UserId, at: Offset) -> Result<Option<String>, ReadError> {
        let member = StateEventType::RoomMember;
        let name = state_text(self.events, room, at, &member, user.as_str(), "displayname")?;
        let name = name.map(|name| cut(&name, limits::MAIL_NAME_CHARS));
        Ok(name.filter(|name| !name.is_empty()))
    }

    fn given_name(&self, room: &Room) -> Result<Option<String>, ReadError> {
        for (event_type, field) in
            [(StateEventType::RoomName, "name"), (StateEventType::RoomCanonicalAlias, "alias")]
        {
            if let Some(name) = state_text(self.events, room, self.at, &event_type, "", field)? {
                let name = cut(&name, limits::MAIL_NAME_CHARS);
                if !name.is_empty() {
                    return Ok(Some(name));
                }
            }
        }
        Ok(None)
    }

    /// The name of the room as clients calculate it (client-server API, "Calculating the display
    /// name for a room").
    fn place(&self, room: &Room) -> Result<RoomTitle, ReadError> {
        if let Some(name) = self.given_name(room)? {
            return Ok(RoomTitle::Room(name));
        }
        let members = |membership| room.members(membership, self.at);
        let mut others: Vec<_> =
            members(Membership::Join).into_iter().chain(members(Membership::Invite)).collect();
        others.retain(|(user_id, _)| user_id != self.user_id);
        others.sort_unstable_by_key(|(_, offset)| *offset);
        let mut names = Vec::new();
        for (user_id, _) in others.iter().take(3) {
            let name = self.name(room, user_id, self.at)?;
            names.push(name.unwrap_or_else(|| user_id.to_string()));
        }
        Ok(match (&names[..], others.len()) {
            ([], _) => RoomTitle::Nowhere,
            ([name], _) => RoomTitle::Person(name.clone()),
            ([one, two], _) => RoomTitle::People(format!("{one} and {two}")),
            ([one, two, three, ..], 3) => RoomTitle::People(format!("{one}, {two} and {three}")),
            ([one, two, ..], all) => {
                RoomTitle::People(format!("{one}, {two} and {} others", all - 2))
            }
        })
    }
}

/// `3 May, 14:05 UTC`.
fn when(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    let Ok(at) = OffsetDateTime::from_unix_timestamp(seconds) else { return String::new() };
    format!("{} {}, {:02}:{:02} UTC", at.day(), at.month(), at.hour(), at.minute())
}

fn said(event_type: &TimelineEventType, content: &Value) -> MessageText {
    let did = |what: &str| MessageText::Did(what.to_owned());
    let body = || {
        let body = content.get("body").and_then(Value::as_str).unwrap_or_default();
        let reply = content.pointer("/m.relates_to/m.in_reply_to").is_some();
        cut(if reply { without_quote(body) } else { body }, limits::MAIL_TEXT_CHARS)
    };
    let named = |what: &str| match body() {
        name if name.is_empty() => did(what),
        name => MessageText::Did(format!("{what}: {name}")),
    };
    match event_type.to_string().as_str() {
        "m.room.encrypted" => MessageText::Encrypted(1),
        "m.room.message" => match content.get("msgtype").and_then(Value::as_str) {
            Some("m.image") => named("sent a picture"),
            Some("m.video") => named("sent a video"),
            Some("m.audio") => named("sent a recording"),
            Some("m.file") => named("sent a file"),
            Some("m.location") => named("sent a place"),
            Some("m.emote") => MessageText::Did(body()),
            _ => match body() {
                body if body.is_empty() => did("sent a message"),
                body => MessageText::Text(body),
            },
        },
        "m.sticker" => named("sent a sticker"),
        "m.call.invite" | "m.call.notify" | "m.rtc.notification" => did("calls"),
        "m.poll.start" | "org.matrix.msc3381.poll.start" => did("asks for your vote"),
        "m.room.member" => did("changed who is here"),
        "m.room.tombstone" => did("moved the room to another one"),
        "m.reaction" => did("reacted to a message"),
        _ => did("sent something that is not a text"),
    }
}

/// The fallback text of a reply, with which older clients quote its target.
fn without_quote(body: &str) -> &str {
    if !body.starts_with("> ") {
        return body;
    }
    let mut rest = body;
    while rest.starts_with('>') {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
    }
    rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_of_event_is_said_in_words() {
        let text = |text: &str| MessageText::Text(text.to_owned());
        let did = |text: &str| MessageText::Did(text.to_owned());
        let reply = json!({ "m.in_reply_to": { "event_id": "$e" } });
        let long = "x".repeat(limits::MAIL_TEXT_CHARS + 1);
        for (event_type, content, expected) in [
            ("m.room.message", json!({ "msgtype": "m.text", "body": "a\nb" }), text("a b")),
            ("m.room.message", json!({ "msgtype": "m.notice", "body": "a" }), text("a")),
            ("m.room.message", json!({ "msgtype": "x", "body": &long }), {
                text(&format!("{}…", &long[1..]))
            }),
            ("m.room.message", json!({ "msgtype": "m.emote", "body": "waves" }), did("waves")),
            ("m.room.message", json!({ "msgtype": "m.image", "body": "cat.png" }), {
                did("sent a picture: cat.png")
            }),
            ("m.room.message", json!({ "msgtype": "m.file", "body": 1 }), did("sent a file")),
            ("m.room.message", json!({}), did("sent a message")),
            ("m.room.message", json!({ "body": "> <@a:b> c\n> d\n\ne", "m.relates_to": reply }), {
                text("e")
            }),
            ("m.room.message", json!({ "body": "> d\ne" }), text("> d e")),
            ("m.room.encrypted", json!({ "body": "x" }), MessageText::Encrypted(1)),
            ("m.sticker", json!({ "body": "hi" }), did("sent a sticker: hi")),
            ("org.example.other", json!({ "body": "x" }), {
                did("sent something that is not a text")
            }),
        ] {
            assert_eq!(said(&event_type.into(), &content), expected, "{event_type} {content}");
        }
    }

    #[test]
    fn a_moment_is_said_in_words() {
        assert_eq!(when(1_777_816_923_000), "3 May, 14:02 UTC");
        assert_eq!(when(u64::MAX), "");
    }
}
