//! Undo what an earlier record did, by the opposite change. Refused if a later record has changed
//! the same thing: then that one is to be undone first.

use ruma::{
    CanonicalJsonObject, MilliSecondsSinceUnixEpoch, OwnedRoomAliasId,
    events::{StateEventType, TimelineEventType},
    state_res::events::RoomPowerLevelsIntField,
};

use super::{
    Commit, Membership, Proposal, Refusal,
    membership::{Change, ChangeMembership},
    moderation::in_the_name_of,
    send::SendEvent,
    status::must_fit,
};
use logcabin_read::events::{EventRef, as_shown};
use logcabin_record::{
    Command, Offset, Stream,
    command::{
        AdminReason, AdminUndo, AliasRemove, AliasSet, MediaProtect, MediaQuarantine, ProfileSet,
        ReportRemove, ReportReopen, RoomBlock, RoomEvent, RoomVisibility, UserStatus,
    },
};
use logcabin_state::media::Item;

/// Undo what a record did.
#[derive(Clone, Debug)]
pub struct Undo {
    pub record: Offset,
    /// The command in that record.
    pub command: Command,
    pub reason: Option<String>,
    /// The time, by the server's clock.
    pub ts: MilliSecondsSinceUnixEpoch,
}

impl Proposal for Undo {
    /// What is so now, in a sentence.
    type Outcome = String;

    fn stream(&self) -> Stream {
        match &self.command {
            Command::UserStatus(body) => Stream::user(&body.user_id),
            Command::ProfileSet(body) => Stream::user(&body.user_id),
            Command::RoomBlock(body) => Stream::room(&body.room_id),
            Command::RoomVisibility(body) => Stream::room(&body.room_id),
            Command::RoomEvent(body) => Stream::room(&body.room_id),
            Command::AliasSet(body) => Stream::alias(&body.alias),
            Command::AliasRemove(body) => Stream::alias(&body.alias),
            Command::MediaQuarantine(_) | Command::MediaProtect(_) => Stream::quarantine(),
            Command::ReportRemove(_) => Stream::reports(),
            _ => Stream::server(),
        }
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<String, Refusal> {
        let before = commit.len();
        let done = match &self.command {
            Command::UserStatus(body) => self.status(commit, body),
            Command::ProfileSet(body) => self.profile(commit, body),
            Command::RoomBlock(body) => self.block(commit, body),
            Command::RoomVisibility(body) => self.visibility(commit, body),
            Command::RoomEvent(body) => self.event(commit, body),
            Command::AliasSet(AliasSet { alias, .. })
            | Command::AliasRemove(AliasRemove { alias }) => self.alias(commit, alias),
            Command::MediaQuarantine(body) => self.quarantine(commit, body),
            Command::MediaProtect(body) => self.protect(commit, body),
            Command::ReportRemove(body) => self.report(commit, body),
            Command::AdminReason(_) | Command::AdminUndo(_) => refuse(
                "This record only explains those before it: name the one that changed something.",
            ),
            other => refuse(format!(
                "What a record of the kind `{}` did cannot be undone.",
                other.kind().name
            )),
        }?;
        if commit.len() == before {
            return refuse("The opposite change would change nothing.");
        }
        if let Some(reason) = &self.reason {
            commit.append(self.stream(), AdminReason { reason: reason.clone() });
        }
        commit.append(self.stream(), AdminUndo { record: self.record });
        Ok(done)
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::InvalidParam(why.into()))
}

/// The refusal for what a later record has changed.
fn changed_by<T>(record: Option<Offset>) -> Result<T, Refusal> {
    match record {
        Some(record) => refuse(format!("Record {record} has changed this since.")),
        None => refuse("This has changed since."),
    }
}

impl Undo {
    /// Refuses unless the last of these changes is that of the record.
    fn must_be_last(&self, changes: &[Offset]) -> Result<(), Refusal> {
        match changes.last() {
            Some(last) if *last == self.record => Ok(()),
            last => changed_by(last.copied()),
        }
    }

    fn status(&self, commit: &mut Commit<'_>, body: &UserStatus) -> Result<String, Refusal> {
        let user_id = &body.user_id;
        let is = commit.env.state.accounts.standing(user_id);
        let is = is.ok_or_else(|| Refusal::NotFound("There is no such account.".to_owned()))?;
        if is.deactivated.is_some() {
            return Err(Refusal::UserDeactivated);
        }
        let settings = [
            ("an administrator", body.admin, is.admin),
            ("locked", body.locked, is.locked),
            ("suspended", body.suspended, is.suspended),
            ("shadow-banned", body.shadow_banned, is.shadow_banned),
        ];
        if settings.iter().any(|(_, set, is)| set.is_some_and(|set| set != *is)) {
            return changed_by(None);
        }
        if body.admin == Some(false) && is.guest {
            return Err(Refusal::Forbidden("A guest cannot be an administrator.".to_owned()));
        }
        let undone = settings.iter().filter_map(|(what, set, _)| {
            let not = if (*set)? { "not " } else { "" };
            Some(format!("{user_id} is {not}{what}"))
        });
        let said = undone.collect::<Vec<_>>().join(", ");
        if said.is_empty() {
            return refuse("The record changed nothing that can be undone.");
        }
        let opposite = UserStatus {
            admin: body.admin.map(|set| !set),
            locked: body.locked.map(|set| !set),
            suspended: body.suspended.map(|set| !set),
            shadow_banned: body.shadow_banned.map(|set| !set),
            ..UserStatus::of(user_id.clone())
        };
        must_fit(is, &opposite)?;
        commit.append(self.stream(), opposite);
        Ok(said)
    }

    fn profile(&self, commit: &mut Commit<'_>, body: &ProfileSet) -> Result<String, Refusal> {
        let (env, ProfileSet { user_id, field, .. }) = (commit.env, body);
        if env.state.accounts.is_deactivated(user_id) {
            return Err(Refusal::UserDeactivated);
        }
        let account = env.state.accounts.get(user_id);
        let account =
            account.ok_or_else(|| Refusal::NotFound("There is no such account.".to_owned()))?;
        let (last, before) = {
            let account = account.read();
            let changes = account.profile.get(field).map(|field| &field.changes);
            let before = changes.and_then(|changes| changes.at(self.record.prev()));
            (changes.map(|changes| changes.last_change()), before.map(|(before, ())| before))
        };
        if last != Some(self.record) {
            return changed_by(last);
        }
        let value = match before {
            None => None,
            Some(before) => match env.events.command(before)? {
                Some(Command::ProfileSet(before)) => before.value,
                _ => return refuse("What the field held before is erased."),
            },
        };
        let said = match &value {
            Some(value) => format!("the {field} of {user_id} is {value} again"),
            None => format!("{user_id} has no {field}, as before"),
        };
        let (user_id, field) = (user_id.clone(), field.clone());
        commit.append(self.stream(), ProfileSet { user_id, field, value });
        Ok(said)
    }

    fn block(&self, commit: &mut Commit<'_>, body: &RoomBlock) -> Result<String, Refusal> {
        let by = commit.env.state.closures.blocked(&body.room_id);
        // The record that blocked a room is known, but not the one that unblocked it.
        if by.is_some() != body.blocked || by.is_some_and(|by| by != self.record) {
            return changed_by(by);
        }
        let (room_id, blocked) = (body.room_id.clone(), !body.blocked);
        let not = if blocked { "" } else { "not " };
        let said = format!("{room_id} is {not}blocked");
        commit.append(self.stream(), RoomBlock { room_id, blocked, reason: None });
        Ok(said)
    }

    fn visibility(
        &self,
        commit: &mut Commit<'_>,
        body: &RoomVisibility,
    ) -> Result<String, Refusal> {
        let Some(room) = commit.env.state.rooms.get(&body.room_id) else { return no_room() };
        if commit.env.state.closures.is_closing(&body.room_id) {
            return refuse("The room is being shut down.");
        }
        self.must_be_last(&room.public_changes(Offset::MAX))?;
        let public = room.was_public(self.record.prev());
        if public == body.public {
            return refuse("The record did not change whether the directory lists the room.");
        }
        let room_id = body.room_id.clone();
        let not = if public { "" } else { "not " };
        let said = format!("{room_id} is {not}in the public directory");
        commit.append(self.stream(), RoomVisibility { room_id, public });
        Ok(said)
    }

    fn alias(&self, commit: &mut Commit<'_>, alias: &OwnedRoomAliasId) -> Result<String, Refusal> {
        let env = commit.env;
        let state = &env.state;
        self.must_be_last(&state.aliases.changes(alias, Offset::MAX))?;
        let before = state.aliases.get(alias, self.record.prev());
        let now = state.aliases.get(alias, Offset::MAX);
        if before == now {
            return refuse("The record did not change where the alias points.");
        }
        let alias = alias.clone();
        let Some(target) = before else {
            let said = format!("there is no {alias}, as before");
            commit.append(self.stream(), AliasRemove { alias });
            return Ok(said);
        };
        let (room_id, creator) = (target.room_id, target.creator);
        // It may be purged or shut down at the same time.
        commit.rests_on(Stream::room(&room_id));
        if state.rooms.get(&room_id).is_none() {
            return no_room();
        }
        if state.closures.is_closing(&room_id) {
            return refuse("The room is being shut down.");
        }
        env.quotas.alias(state, &creator, &room_id)?;
        let said = format!("{alias} points at {room_id} again");
        commit.append(self.stream(), AliasSet { alias, room_id, creator });
        Ok(said)
    }

    fn quarantine(
        &self,
        commit: &mut Commit<'_>,
        body: &MediaQuarantine,
    ) -> Result<String, Refusal> {
        let (media, others) = (&commit.env.state.media, &commit.env.state.remote_media);
        // Of files in quarantine, the record that put them there is known.
        let stands = |by: Option<Offset>| match body.quarantined {
            true => by == Some(self.record),
            false => by.is_none(),
        };
        let mut undone =
            MediaQuarantine { quarantined: !body.quarantined, reason: None, ..body.clone() };
        undone.media_ids.retain(|media_id| {
            matches!(media.get(media_id), Some(Item::Stored(_)))
                // Exempt files are not quarantined with the others.
                && !(undone.quarantined && media.is_protected(media_id))
                && stands(media.quarantined(media_id))
        });
        undone.remote.retain(|address| stands(others.quarantined(address)));
        undone.hashes.retain(|hash| stands(media.quarantined_by(hash)));
        let files = undone.media_ids.len() + undone.remote.len().max(undone.hashes.len());
        if files == 0 {
            return changed_by(None);
        }
        let not = if undone.quarantined { "" } else { "not " };
        let said = format!("{files} file(s) are {not}in quarantine");
        commit.append(self.stream(), undone);
        Ok(said)
    }

    fn protect(&self, commit: &mut Commit<'_>, body: &MediaProtect) -> Result<String, Refusal> {
        if commit.env.state.media.is_protected(&body.media_id) != body.protected {
            return changed_by(None);
        }
        let (media_id, protected) = (body.media_id.clone(), !body.protected);
        let not = if protected { "" } else { "not " };
        let said = format!("the file {media_id} is {not}exempt from quarantine");
        commit.append(self.stream(), MediaProtect { media_id, protected });
        Ok(said)
    }

    fn report(&self, commit: &mut Commit<'_>, body: &ReportRemove) -> Result<String, Refusal> {
        let (env, report) = (commit.env, body.report);
        if env.state.reports.get(report).is_some() {
            return refuse("The report is open.");
        }
        let Some(Command::ReportCreate(made)) = env.events.command(report)? else {
            return refuse("The report is not in the log any more.");
        };
        let again = ReportReopen {
            report,
            time_ms: env.events.time_of(report)?.unwrap_or_default(),
            reporter: made.reporter,
            room_id: made.room_id,
            event_id: made.event_id,
            user_id: made.user_id,
        };
        commit.append(self.stream(), again);
        Ok(format!("the report {report} is open again"))
    }

    fn event(&self, commit: &mut Commit<'_>, body: &RoomEvent) -> Result<String, Refusal> {
        let env = commit.env;
        let Some(room) = env.state.rooms.get(&body.room_id) else { return no_room() };
        let Some(event) = env.events.get(self.record)? else {
            return refuse("The event is not in the log any more.");
        };
        let Some(key) = event.state_key.clone() else {
            return refuse("A message cannot be undone, but it can be redacted.");
        };
        let kind = StateEventType::from(event.event_type.to_string());
        let holder = room.state_event(&kind, &key, Offset::MAX);
        if holder != Some(self.record) {
            return changed_by(holder);
        }
        if kind == StateEventType::RoomMember {
            return self.member(commit, &event);
        }
        if matches!(
            kind,
            StateEventType::RoomCreate
                | StateEventType::RoomEncryption
                | StateEventType::RoomTombstone
        ) {
            return refuse(format!("The {kind} of a room cannot be undone."));
        }
        let before = room.state_before(&kind, &key, self.record);
        let content = match before {
            Some(before) => {
                let event =
                    env.events.get(before)?.map(|event| as_shown(&room, event, Offset::MAX));
                event.and_then(|event| event.content_as::<CanonicalJsonObject>().ok())
            }
            None if may_be_empty(&kind) => Some(CanonicalJsonObject::new()),
            None => {
                return refuse(format!("There was no {kind} before, and it cannot be removed."));
            }
        };
        let Some(content) = content else {
            return refuse("What was there before is not in the log any more.");
        };
        let (room_id, event_type) = (&body.room_id, &event.event_type);
        let field = RoomPowerLevelsIntField::StateDefault;
        let by = in_the_name_of(commit, room_id, &[&event.sender], field, |sender| SendEvent {
            room_id: room_id.clone(),
            sender: sender.to_owned(),
            event_type: event_type.clone(),
            state_key: Some(key.to_string()),
            content: content.clone().into(),
            redacts: None,
            transaction: None,
            ts: self.ts,
        })?;
        let of = if key.is_empty() { String::new() } else { format!(" of {key}") };
        let careful = match kind {
            StateEventType::RoomPowerLevels => "; nobody may be left who can give power back",
            _ => "",
        };
        Ok(format!("the {kind}{of} in {room_id} is as before, in the name of {by}{careful}"))
    }

    fn member(&self, commit: &mut Commit<'_>, event: &EventRef) -> Result<String, Refusal> {
        let (room_id, target) = (&event.room_id, event.state_key.as_deref().unwrap_or_default());
        let Ok(target) = ruma::UserId::parse(target) else {
            return refuse("The event names no user.");
        };
        let env = commit.env;
        let membership = commit.room(room_id)?.membership(env, &target)?;
        let (change, field, said) = match membership {
            Some(Membership::Ban) => {
                (Change::Unban, RoomPowerLevelsIntField::Ban, "is not banned from")
            }
            Some(Membership::Invite) => {
                (Change::Kick, RoomPowerLevelsIntField::Kick, "is not invited to")
            }
            _ => return refuse("Of memberships, only a ban and an invite can be undone."),
        };
        let by = in_the_name_of(commit, room_id, &[&event.sender], field, |sender| {
            ChangeMembership::new(
                room_id.clone(),
                sender.to_owned(),
                target.clone(),
                change,
                self.ts,
            )
        })?;
        Ok(format!("{target} {said} {room_id}, in the name of {by}"))
    }
}

fn no_room<T>() -> Result<T, Refusal> {
    Err(Refusal::NotFound("The room is not on this server any more.".to_owned()))
}

/// Whether a room without this state, and one in which it is empty, are the same.
fn may_be_empty(kind: &StateEventType) -> bool {
    matches!(
        TimelineEventType::from(kind.to_string()),
        TimelineEventType::RoomName
            | TimelineEventType::RoomTopic
            | TimelineEventType::RoomAvatar
            | TimelineEventType::RoomPinnedEvents
            | TimelineEventType::RoomCanonicalAlias
            | TimelineEventType::SpaceChild
            | TimelineEventType::SpaceParent
    )
}
