//! A room's part of a response (MSC4186, "`RoomResult`").

use std::{collections::HashSet, sync::Arc};

use ruma::{
    OwnedUserId, UserId,
    events::{StateEventType, TimelineEventType},
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    client_rooms::ClientRoom,
    connection::{Form, SentRoom, SentUpTo},
    list::stays,
    rules::Rule,
};
use crate::{
    events::{ClientEvent, EventForm, EventRef, as_shown},
    notifications,
    sync::{summary::Summary, timeline::TimelineSlice},
    view::{ByteBudget, PageLimit, View, filter::EventFilter},
};
use logcabin_log::ReadError;
use logcabin_record::{Epoch, Offset};
use logcabin_state::{Room, RoomMembership, rooms::is_activity};

/// A room, reduced to what is new.
#[derive(Debug, Default, Serialize)]
pub(super) struct RoomResult {
    #[serde(skip_serializing_if = "is_false")]
    initial: bool,
    /// `Some(None)` if the name was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    avatar: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heroes: Option<Vec<Hero>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_dm: Option<bool>,
    /// The stripped state of an invited or knocked room.
    #[serde(skip_serializing_if = "Option::is_none")]
    invite_state: Option<Vec<Box<RawValue>>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    required_state: Vec<ClientEvent>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    timeline: Vec<ClientEvent>,
    /// Whether the timeline has events that are older than those sent before.
    #[serde(skip_serializing_if = "is_false")]
    unstable_expanded_timeline: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    prev_batch: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    limited: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    num_live: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    joined_count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    invited_count: Option<u64>,
    #[serde(flatten)]
    unread: Option<Unread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bump_stamp: Option<u64>,
}

impl RoomResult {
    /// Whether events are missing between those that the client has and those that it is sent.
    pub(super) const fn has_gap(&self) -> bool {
        self.initial || self.limited
    }

    /// A room about which the client only learns that the user is not in it.
    pub(super) fn gone(leave: ClientEvent, because: Offset) -> Self {
        Self {
            initial: true,
            required_state: vec![leave],
            bump_stamp: Some(because.get()),
            ..Self::default()
        }
    }
}

#[derive(Debug, Serialize)]
struct Hero {
    user_id: OwnedUserId,
    #[serde(skip_serializing_if = "Option::is_none")]
    displayname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    avatar_url: Option<String>,
}

/// The unread counts of a room.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Unread {
    notification_count: u64,
    highlight_count: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// One room, for one connection.
pub(super) struct RoomSync<'a> {
    pub(super) view: View<'a>,
    pub(super) room: &'a Room,
    pub(super) part: &'a RoomMembership,
    /// The connection's position; [`Offset::ZERO`] for a new one.
    pub(super) since: Offset,
    pub(super) epoch: Epoch,
    pub(super) has: Option<&'a ClientRoom>,
    pub(super) is_dm: bool,
    pub(super) unread: &'a notifications::Unread,
    pub(super) budget: &'a ByteBudget,
}

/// The result for a room.
#[derive(Debug)]
pub(super) struct Outcome {
    /// What to send.
    pub(super) result: Option<RoomResult>,
    /// What the client has then; `None` for a room that is no longer among the user's.
    pub(super) sent: Option<SentRoom>,
    /// The member events that are sent because a timeline needs them.
    pub(super) members: Vec<Offset>,
    /// Whether `members` replace those that the client had.
    pub(super) all_members: bool,
}

impl Outcome {
    const fn new(result: RoomResult, sent: SentRoom) -> Self {
        Self { result: Some(result), sent: Some(sent), members: Vec::new(), all_members: true }
    }
}

impl RoomSync<'_> {
    /// The room of a joined user, as `rule` requests it.
    pub(super) fn joined(&self, rule: &Rule) -> Result<Outcome, ReadError> {
        let (room, at) = (self.room, self.view.at());
        let has = self.has.filter(|has| has.sent.form == Form::Joined);
        let since = has.and_then(|has| has.sent.events.offset(self.since));
        let Some((has, since)) = has.zip(since) else { return self.joined_first(rule) };
        let mut result = RoomResult::default();
        let mut sent = has.sent.clone();
        sent.events = SentUpTo::Current;
        sent.timeline_limit = rule.timeline_limit;

        let mut timeline = self.stretch(since, at, rule.timeline_limit)?;
        let mut timeline_start =
            if timeline.limited { timeline.start } else { sent.timeline_start };
        let mut for_members = Vec::new();
        let is_longer = rule.timeline_limit > has.sent.timeline_limit;
        let is_lazy_now = rule.state.lazy_members && !has.sent.state.lazy_members;
        if is_longer || is_lazy_now {
            let longest = self.stretch(Offset::ZERO, at, rule.timeline_limit)?;
            // Events that were sent when their members were not requested need them now.
            for_members.clone_from(&longest.events);
            let first = longest.events.first().map_or(Offset::MAX, |event| event.offset);
            if is_longer && first < timeline_start {
                timeline_start = longest.start;
                result.unstable_expanded_timeline = true;
                timeline = longest;
            }
        }
        for_members.extend(timeline.events.iter().cloned());
        sent.timeline_start = timeline_start;

        let delta = self.view.events.get_all(&room.state_delta(since, at))?;
        let members_changed =
            delta.iter().any(|event| event.event_type == TimelineEventType::RoomMember);
        let all_members = rule.state.lazy_members && !timeline.limited;
        let wanted = |event: &EventRef| {
            let is_member = event.event_type == TimelineEventType::RoomMember;
            (all_members && is_member) || wants(rule, event)
        };
        let mut state: Vec<EventRef> = delta.into_iter().filter(wanted).collect();
        if sent.state != rule.state {
            if !sent.state.covers(&rule.state) {
                let more = self.view.events.get_all(&rule.state.of(room, at))?;
                state.extend(more.into_iter().filter(|event| !wants_state(&sent.state, event)));
            }
            sent.state = Arc::clone(&rule.state);
        }
        // Clients discard their members at a gap.
        let known = (!timeline.limited).then_some(&has.members);
        let members = self.members(rule, &for_members, known)?;
        let told = members.iter().map(|event| event.offset).collect();
        state.extend(members);

        let changed = |event_type: StateEventType| {
            room.state_event(&event_type, "", at).is_some_and(|offset| offset > since)
        };
        if changed(StateEventType::RoomName) {
            result.name = Some(self.text(StateEventType::RoomName, "name")?);
        }
        if changed(StateEventType::RoomAvatar) {
            result.avatar = Some(self.text(StateEventType::RoomAvatar, "url")?);
        }
        if members_changed || Summary::changed(&self.view, room, since) {
            self.summarise(&mut result)?;
        }
        if has.sent.is_dm != self.is_dm {
            result.is_dm = Some(self.is_dm);
            sent.is_dm = self.is_dm;
        }
        let bump_stamp = self.bump_stamp()?;
        if bump_stamp > since {
            result.bump_stamp = Some(bump_stamp.get());
        }
        let is_news = !timeline.events.is_empty()
            || timeline.limited
            || !state.is_empty()
            || result.name.is_some()
            || result.avatar.is_some()
            || result.joined_count.is_some()
            || result.is_dm.is_some()
            || result.bump_stamp.is_some()
            // The user's own receipt may change only the counts.
            || self.unread_changed()?;
        let all_members = timeline.limited;
        if is_news {
            self.show(&mut result, &timeline, state)?;
            result.unread = Some(self.unread(at)?);
        }
        let result = is_news.then_some(result);
        Ok(Outcome { result, sent: Some(sent), members: told, all_members })
    }

    /// The room of a joined user, if the connection has nothing of it.
    fn joined_first(&self, rule: &Rule) -> Result<Outcome, ReadError> {
        let (room, at) = (self.room, self.view.at());
        let timeline = self.stretch(Offset::ZERO, at, rule.timeline_limit)?;
        let mut state = self.view.events.get_all(&rule.state.of(room, at))?;
        let members = self.members(rule, &timeline.events, None)?;
        let told = members.iter().map(|event| event.offset).collect();
        state.extend(members);
        let mut result = RoomResult {
            initial: true,
            name: self.text(StateEventType::RoomName, "name")?.map(Some),
            avatar: self.text(StateEventType::RoomAvatar, "url")?.map(Some),
            is_dm: self.is_dm.then_some(true),
            bump_stamp: Some(self.bump_stamp()?.get()),
            unread: Some(self.unread(at)?),
            ..RoomResult::default()
        };
        self.summarise(&mut result)?;
        self.show(&mut result, &timeline, state)?;
        let sent = SentRoom {
            events: SentUpTo::Current,
            state: Arc::clone(&rule.state),
            timeline_limit: rule.timeline_limit,
            timeline_start: timeline.start,
            is_dm: self.is_dm,
            ..self.blank(Form::Joined)
        };
        Ok(Outcome { members: told, ..Outcome::new(result, sent) })
    }

    /// The room of an invited or knocking user; `None` if the connection has it.
    pub(super) fn stripped(&self) -> Result<Option<Outcome>, ReadError> {
        let form = Form::Stripped(self.part.offset);
        if self.has.is_some_and(|has| has.sent.form == form && has.sent.is_dm == self.is_dm) {
            return Ok(None);
        }
        let result = RoomResult {
            initial: true,
            is_dm: self.is_dm.then_some(true),
            invite_state: Some(self.view.stripped_state(&self.room.id)?),
            bump_stamp: Some(self.part.offset.get()),
            ..RoomResult::default()
        };
        let sent = SentRoom { is_dm: self.is_dm, ..self.blank(form) };
        Ok(Some(Outcome::new(result, sent)))
    }

    /// The room of a user who is no longer in it, as of their leave: for a connection that has it,
    /// and for one that requests it with `rule`.
    pub(super) fn ended(&self, rule: Option<&Rule>) -> Result<Option<Outcome>, ReadError> {
        if rule.is_none() && self.has.is_none() {
            return Ok(None);
        }
        let at = self.part.offset;
        let form = Form::Ended(at);
        let stays = stays(&self.view, self.part, self.room)?;
        if self.has.is_some_and(|has| has.sent.form == form) || (self.has.is_none() && !stays) {
            return Ok(None);
        }
        let rule = match (rule, self.has) {
            (Some(rule), _) => rule.clone(),
            (None, Some(has)) => {
                Rule { state: Arc::clone(&has.sent.state), timeline_limit: has.sent.timeline_limit }
            }
            (None, None) => return Ok(None),
        };
        let had = self.has.filter(|has| has.sent.form == Form::Joined);
        let since = had.and_then(|has| has.sent.events.offset(self.since));
        let mut result = RoomResult {
            initial: since.is_none(),
            bump_stamp: Some(at.get()),
            ..RoomResult::default()
        };
        // A user who was never joined, or has forgotten the room, only learns what became of their
        // invite, ban or knock.
        let departed = self.room.departed(self.view.user_id(), at);
        let departed = departed.filter(|departed| {
            !self.part.forgotten && (stays || since.is_some_and(|since| *departed > since))
        });
        let (timeline, mut state) = match departed {
            None => (TimelineSlice::only(&self.view, at)?, Vec::new()),
            Some(departed) => {
                let since = since.unwrap_or(Offset::ZERO);
                let timeline = self.stretch(since, at, rule.timeline_limit)?;
                let offsets = if result.initial {
                    rule.state.of(self.room, departed)
                } else {
                    self.room.state_delta(since, departed)
                };
                let mut state = self.view.events.get_all(&offsets)?;
                state.retain(|event| wants(&rule, event));
                state.extend(self.members_as_of(&rule, &timeline.events, departed)?);
                (timeline, state)
            }
        };
        // The event that tells the client that the user is no longer in the room.
        let me = Some(self.view.user_id().as_str());
        state.retain(|event| {
            event.event_type != TimelineEventType::RoomMember || event.state_key.as_deref() != me
        });
        state.extend(self.view.events.get(at)?);
        self.show(&mut result, &timeline, state)?;
        let outcome = Outcome::new(result, self.blank(form));
        Ok(Some(if stays { outcome } else { Outcome { sent: None, ..outcome } }))
    }

    fn blank(&self, form: Form) -> SentRoom {
        SentRoom {
            form,
            events: SentUpTo::Current,
            receipts: SentUpTo::Nothing,
            typing: SentUpTo::Nothing,
            account_data: SentUpTo::Nothing,
            state: Arc::default(),
            timeline_limit: 0,
            timeline_start: Offset::MAX,
            is_dm: false,
        }
    }

    fn stretch(
        &self,
        since: Offset,
        at: Offset,
        events: usize,
    ) -> Result<TimelineSlice, ReadError> {
        let limit = PageLimit { events, budget: Some(self.budget) };
        TimelineSlice::newest(&self.view, self.room, since, at, limit, &EventFilter::default())
    }

    /// The member events that a viewer of `events` needs, without those that they have.
    fn members(
        &self,
        rule: &Rule,
        events: &[EventRef],
        known: Option<&HashSet<Offset>>,
    ) -> Result<Vec<EventRef>, ReadError> {
        let mut members = self.members_as_of(rule, events, self.view.at())?;
        members.retain(|event| known.is_none_or(|known| !known.contains(&event.offset)));
        Ok(members)
    }

    /// The member events as of `at` of the senders of `events` and of the users that these are
    /// about.
    fn members_as_of(
        &self,
        rule: &Rule,
        events: &[EventRef],
        at: Offset,
    ) -> Result<Vec<EventRef>, ReadError> {
        if !rule.state.lazy_members {
            return Ok(Vec::new());
        }
        let mut users: HashSet<&str> = HashSet::new();
        for event in events {
            users.insert(event.sender.as_str());
            if event.event_type == TimelineEventType::RoomMember {
                users.extend(event.state_key.as_deref());
            }
        }
        let member = |user: &str| self.room.state_event(&StateEventType::RoomMember, user, at);
        let mut offsets: Vec<_> = users.into_iter().filter_map(member).collect();
        offsets.sort_unstable();
        self.view.events.get_all(&offsets)
    }

    fn summarise(&self, result: &mut RoomResult) -> Result<(), ReadError> {
        let summary = Summary::of(&self.view, self.room)?;
        result.joined_count = Some(summary.joined);
        result.invited_count = Some(summary.invited);
        let heroes = summary.heroes.unwrap_or_default().into_iter();
        let heroes = heroes.map(|user_id| self.hero(user_id)).collect::<Result<Vec<_>, _>>()?;
        result.heroes = (!heroes.is_empty()).then_some(heroes);
        Ok(())
    }

    fn hero(&self, user_id: OwnedUserId) -> Result<Hero, ReadError> {
        #[derive(Default, serde::Deserialize)]
        struct Profile {
            #[serde(default)]
            displayname: serde_json::Value,
            #[serde(default)]
            avatar_url: serde_json::Value,
        }
        let at = self.view.at();
        let member = self.member_event(&user_id)?.map(|event| as_shown(self.room, event, at));
        let profile: Profile = member.and_then(|event| event.content_as().ok()).unwrap_or_default();
        let text = |value: serde_json::Value| value.as_str().map(ToOwned::to_owned);
        let (displayname, avatar_url) = (text(profile.displayname), text(profile.avatar_url));
        Ok(Hero { user_id, displayname, avatar_url })
    }

    fn member_event(&self, user_id: &UserId) -> Result<Option<EventRef>, ReadError> {
        let member = StateEventType::RoomMember;
        match self.room.state_event(&member, user_id.as_str(), self.view.at()) {
            Some(offset) => self.view.events.get(offset),
            None => Ok(None),
        }
    }

    fn text(&self, event_type: StateEventType, field: &str) -> Result<Option<String>, ReadError> {
        self.view.events.state_text(self.room, &event_type, field, self.view.at())
    }

    /// The offset of the room's last activity.
    fn bump_stamp(&self) -> Result<Offset, ReadError> {
        let at = self.view.at();
        let last = self.room.last_activity();
        if last <= at {
            return Ok(last);
        }
        // There was activity right after this offset; the previous one is not far.
        let mut from = at;
        loop {
            let offsets = self.room.events_backward(from, Offset::ZERO, 64);
            let Some(oldest) = offsets.last().copied() else { return Ok(self.room.created) };
            for event in self.view.events.get_all(&offsets)? {
                if is_activity(&event.event_type.to_string()) {
                    return Ok(event.offset);
                }
            }
            from = oldest.prev();
        }
    }

    /// The unread counts of the room, including threads.
    fn unread(&self, at: Offset) -> Result<Unread, ReadError> {
        let View { state, events, .. } = &self.view;
        let counts = self.unread.counts(state, events, self.view.user_id(), self.room, at)?;
        let total = counts.total();
        Ok(Unread { notification_count: total.notifications, highlight_count: total.highlights })
    }

    /// Whether they may differ from those as of `since`.
    fn unread_changed(&self) -> Result<bool, ReadError> {
        let View { state, events, .. } = &self.view;
        let judge =
            notifications::Judge { state, events, user_id: self.view.user_id(), room: self.room };
        self.unread.changed(judge, self.since, self.view.at())
    }

    fn show(
        &self,
        result: &mut RoomResult,
        timeline: &TimelineSlice,
        mut state: Vec<EventRef>,
    ) -> Result<(), ReadError> {
        state.sort_unstable_by_key(|event| event.offset);
        state.dedup_by_key(|event| event.offset);
        result.required_state = self.view.client_events(self.room, &state, &EventForm::SYNC)?;
        let events = &timeline.events;
        result.timeline =
            self.view.client_events(self.room, events, &EventForm::SYNC.bundled(true))?;
        result.limited = timeline.limited;
        if timeline.limited || !events.is_empty() {
            result.prev_batch = Some(timeline.prev_batch(self.room, self.epoch));
            let live = events.iter().filter(|event| event.offset > self.since).count();
            result.num_live = Some(if self.since == Offset::ZERO { 0 } else { live });
        }
        Ok(())
    }
}

fn wants(rule: &Rule, event: &EventRef) -> bool {
    wants_state(&rule.state, event)
}

fn wants_state(state: &super::rules::RequiredState, event: &EventRef) -> bool {
    let event_type = event.event_type.to_string().into();
    event.state_key.as_deref().is_some_and(|key| state.wants(&event_type, key))
}
