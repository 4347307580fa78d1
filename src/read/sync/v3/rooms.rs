//! One room's part of a sync.

use std::collections::{BTreeMap, HashSet};

use parking_lot::RwLock;
use ruma::{OwnedEventId, OwnedUserId, RoomId, events::TimelineEventType};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Events, Request, RoomFilters};
use crate::{
    events::{ClientEvent, EventRef},
    notifications::{Count, Counts, Judge, Unread},
    sync::{
        account_data,
        ephemeral::{self, OthersReceipts},
        gone, lazy,
        summary::Summary,
        timeline::TimelineSlice,
    },
    view::{ByteBudget, PageLimit, View, token::Token},
};
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::{Account, Room, RoomMembership};

#[derive(Debug, Serialize)]
pub(super) struct JoinedRoom {
    summary: RoomSummary,
    #[serde(flatten)]
    state: State,
    timeline: Timeline,
    ephemeral: Events,
    account_data: Events,
    unread_notifications: UnreadCount,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    unread_thread_notifications: BTreeMap<OwnedEventId, UnreadCount>,
}

#[derive(Debug, Serialize)]
struct UnreadCount {
    highlight_count: u64,
    notification_count: u64,
}

impl From<Count> for UnreadCount {
    fn from(count: Count) -> Self {
        Self { highlight_count: count.highlights, notification_count: count.notifications }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct LeftRoom {
    #[serde(flatten)]
    state: State,
    timeline: Timeline,
    account_data: Events,
}

impl LeftRoom {
    /// A room about which the client only learns that the user is not in it, because of the record
    /// at `because`.
    pub(super) fn without_room(
        view: &View<'_>,
        request: &Request,
        room_id: &RoomId,
        because: Offset,
    ) -> Result<Self, ReadError> {
        let leave = gone::leave(view, room_id, because)?;
        let prev_batch = Token { epoch: request.epoch, offset: because }.to_string();
        // With the state after the timeline, the timeline's own state events are not left out.
        let state = if request.use_state_after {
            State::After(Events { events: vec![leave.clone()] })
        } else {
            State::Before(Events::default())
        };
        Ok(Self {
            state,
            timeline: Timeline { events: vec![leave], limited: false, prev_batch },
            account_data: Events::default(),
        })
    }
}

#[derive(Debug, Serialize)]
pub(super) struct InvitedRoom {
    invite_state: Events,
}

#[derive(Debug, Serialize)]
pub(super) struct KnockedRoom {
    knock_state: Events,
}

/// Changes of state, up to the beginning or the end of the timeline, as requested.
#[derive(Debug, Serialize)]
enum State {
    #[serde(rename = "state")]
    Before(Events<ClientEvent>),
    #[serde(rename = "state_after")]
    After(Events<ClientEvent>),
}

#[derive(Debug, Serialize)]
struct Timeline {
    events: Vec<ClientEvent>,
    limited: bool,
    prev_batch: String,
}

#[derive(Debug, Default, Serialize)]
struct RoomSummary {
    #[serde(rename = "m.heroes", skip_serializing_if = "Option::is_none")]
    heroes: Option<Vec<OwnedUserId>>,
    #[serde(rename = "m.joined_member_count", skip_serializing_if = "Option::is_none")]
    joined: Option<u64>,
    #[serde(rename = "m.invited_member_count", skip_serializing_if = "Option::is_none")]
    invited: Option<u64>,
}

impl From<Summary> for RoomSummary {
    fn from(summary: Summary) -> Self {
        Self {
            heroes: summary.heroes,
            joined: Some(summary.joined),
            invited: Some(summary.invited),
        }
    }
}

/// One room in a sync.
pub(super) struct RoomSync<'a> {
    pub(super) view: View<'a>,
    pub(super) room: &'a Room,
    pub(super) request: &'a Request,
    pub(super) since: Offset,
    pub(super) filter: &'a RoomFilters,
    pub(super) account: Option<&'a RwLock<Account>>,
    pub(super) unread: &'a Unread,
    pub(super) budget: &'a ByteBudget,
}

impl RoomSync<'_> {
    /// The room of a joined user; `None` if there is nothing new.
    pub(super) fn joined(
        &self,
        device: Option<&mut lazy::SentMembers>,
    ) -> Result<Option<JoinedRoom>, ReadError> {
        let (since, at) = (self.since, self.view.at());
        let first = self.is_first();
        let timeline = self.timeline(if first { Offset::ZERO } else { since }, at)?;
        let whole = first || self.request.full_state;
        let state = self.state(&timeline, whole, at, device)?;
        let data_since = if first { Offset::ZERO } else { since };
        let ephemeral = self.ephemeral(first, first || timeline.limited)?;
        let account_data = self.account_data(data_since, first)?;
        let resummed = whole || Summary::changed(&self.view, self.room, since);
        let quiet = timeline.events.is_empty()
            && state.is_empty()
            && ephemeral.is_empty()
            && account_data.is_empty();
        let quiet = quiet && !resummed;
        // The user's own receipt, or an event that the filter leaves out, may change only the
        // counts.
        if quiet && !self.unread_changed()? {
            return Ok(None);
        }
        let mut unread = self.unread(at)?;
        let mut by_thread = BTreeMap::new();
        if self.filter.unread_by_thread {
            for (root, count) in std::mem::take(&mut unread.threads) {
                if let Some(root) = self.view.events.get(root)? {
                    by_thread.insert(root.event_id.clone(), count.into());
                }
            }
        }
        let summary = if resummed {
            Summary::of(&self.view, self.room)?.into()
        } else {
            RoomSummary::default()
        };
        Ok(Some(JoinedRoom {
            summary,
            state: self.client_state(&state)?,
            timeline: self.client_timeline(&timeline)?,
            ephemeral: Events { events: ephemeral },
            account_data: Events { events: account_data },
            unread_notifications: unread.total().into(),
            unread_thread_notifications: by_thread,
        }))
    }

    /// The room of a user who is no longer in it, as of their leave.
    pub(super) fn left(
        &self,
        part: &RoomMembership,
        device: Option<&mut lazy::SentMembers>,
    ) -> Result<LeftRoom, ReadError> {
        // For a user who has left and forgotten it, other devices only learn of the leave.
        if part.forgotten {
            return self.only_leaving(part.offset);
        }
        let at = part.offset;
        // A user who was never joined learns what became of their invite, ban or knock.
        let departed = self.room.departed(self.view.user_id(), at);
        let Some(departed) = departed.filter(|departed| *departed > self.since) else {
            return self.only_leaving(at);
        };
        let first = self.is_first();
        let since = if first { Offset::ZERO } else { self.since };
        let timeline = self.timeline(since, at)?;
        // A ban, for example, may be long after the leave: the state is as of the leave.
        let state = self.state(&timeline, first, departed, device)?;
        Ok(LeftRoom {
            state: self.client_state(&state)?,
            timeline: self.client_timeline(&timeline)?,
            account_data: Events { events: self.account_data(since, first)? },
        })
    }

    fn unread(&self, at: Offset) -> Result<Counts, ReadError> {
        let View { state, events, .. } = &self.view;
        self.unread.counts(state, events, self.view.user_id(), self.room, at)
    }

    /// Whether the counts may differ from those as of `since`.
    fn unread_changed(&self) -> Result<bool, ReadError> {
        let View { state, events, .. } = &self.view;
        let judge = Judge { state, events, user_id: self.view.user_id(), room: self.room };
        self.unread.changed(judge, self.since, self.view.at())
    }

    /// The room of an invited user.
    pub(super) fn invited(&self) -> Result<InvitedRoom, ReadError> {
        let events = self.view.stripped_state(&self.room.id)?;
        Ok(InvitedRoom { invite_state: Events { events } })
    }

    /// The room of a knocking user.
    pub(super) fn knocked(&self) -> Result<KnockedRoom, ReadError> {
        let events = self.view.stripped_state(&self.room.id)?;
        Ok(KnockedRoom { knock_state: Events { events } })
    }

    fn only_leaving(&self, at: Offset) -> Result<LeftRoom, ReadError> {
        let timeline = TimelineSlice::only(&self.view, at)?;
        Ok(LeftRoom {
            state: self.client_state(&[])?,
            timeline: self.client_timeline(&timeline)?,
            account_data: Events::default(),
        })
    }

    /// Whether the client has nothing of the room, or only its state from before the user came
    /// (back).
    fn is_first(&self) -> bool {
        self.request.since.is_none() || !self.was_joined()
    }

    pub(super) fn was_joined(&self) -> bool {
        self.room.is_joined(self.view.user_id(), self.since)
    }

    /// Whether the client may have the newest events of the room already: from before the user
    /// left and came back, or from before a restore.
    fn is_again(&self) -> bool {
        let was_there = || self.room.departed(self.view.user_id(), self.since).is_some();
        self.is_first() && (self.request.came_from.is_some() || was_there())
    }

    fn timeline(&self, since: Offset, at: Offset) -> Result<TimelineSlice, ReadError> {
        let limit = PageLimit { events: self.filter.timeline_limit, budget: Some(self.budget) };
        let mut timeline =
            TimelineSlice::newest(&self.view, self.room, since, at, limit, &self.filter.timeline)?;
        // Even if the timeline is complete: a client that still has some of these events would
        // otherwise append them a second time.
        timeline.limited |= self.is_again();
        Ok(timeline)
    }

    /// The state that brings the client, together with the timeline, to the state as of `at`; or,
    /// if requested, without the timeline.
    fn state(
        &self,
        timeline: &TimelineSlice,
        whole: bool,
        at: Offset,
        device: Option<&mut lazy::SentMembers>,
    ) -> Result<Vec<EventRef>, ReadError> {
        if !self.filter.state.wants_room(&self.room.id) {
            return Ok(Vec::new());
        }
        let shown: HashSet<Offset> = timeline.events.iter().map(|event| event.offset).collect();
        let lazy = self.filter.state.lazy_load_members;
        let to = if self.request.use_state_after { at } else { timeline.before().min(at) };
        let mut offsets = if whole && lazy {
            self.room.state_without_members(to)
        } else if whole {
            self.room.full_state(to)
        } else {
            self.room.state_delta(self.since, to)
        };
        if !self.request.use_state_after {
            // Otherwise changes that the timeline's filter left out would never reach the client.
            let from = if whole { Offset::ZERO } else { self.since };
            let within = self.room.state_delta(to.max(from), at);
            offsets.extend(within.into_iter().filter(|offset| !shown.contains(offset)));
        }
        let mut state = self.view.events.get_all(&offsets)?;
        if lazy {
            let own = whole.then(|| self.view.user_id());
            let mut members = self.view.members_of(self.room, &timeline.events, own, to)?;
            if let Some(device) = device {
                let position = self.view.at();
                if !whole && !self.filter.state.include_redundant_members {
                    members.retain(|member| !device.has(self.room.created, member.offset));
                }
                if self.is_first() {
                    device.begin(self.room.created, position);
                }
                let told = state.iter().chain(&members).chain(&timeline.events);
                for event in told.filter(|event| event.event_type == TimelineEventType::RoomMember)
                {
                    device.note(event.offset, position);
                }
            }
            state.extend(members);
        }
        let repeats =
            |event: &EventRef| !self.request.use_state_after && shown.contains(&event.offset);
        let (filter, at) = (&self.filter.state, self.view.at());
        state.retain(|event| filter.matches(self.room, event, at) && !repeats(event));
        state.sort_unstable_by_key(|event| event.offset);
        // The newest event of each key.
        let mut seen = HashSet::new();
        let mut newest: Vec<_> = state
            .into_iter()
            .rev()
            .filter(|event| seen.insert((event.event_type.clone(), event.state_key.clone())))
            .collect();
        newest.reverse();
        Ok(newest)
    }

    fn account_data(&self, since: Offset, first: bool) -> Result<Vec<Box<RawValue>>, ReadError> {
        let Some(account) = self.account else { return Ok(Vec::new()) };
        let filter = &self.filter.account_data;
        account_data::of_room(&self.view, account, &self.room.id, since, filter, first)
    }

    /// `has_gap` says whether the client has not all of the room's timeline.
    fn ephemeral(&self, first: bool, has_gap: bool) -> Result<Vec<Box<RawValue>>, ReadError> {
        let filter = &self.filter.ephemeral;
        if !filter.wants_room(&self.room.id) {
            return Ok(Vec::new());
        }
        let since = (!first).then_some(self.since);
        let mut events = Vec::new();
        if filter.wants_type("m.receipt") {
            let since = since.unwrap_or(Offset::ZERO);
            let others = OthersReceipts::of(has_gap);
            events.extend(ephemeral::receipts(&self.view, self.room, since, others)?);
        }
        if filter.wants_type("m.typing") {
            events.extend(ephemeral::typing(&self.view, self.room, since)?);
        }
        Ok(events)
    }

    fn client_state(&self, state: &[EventRef]) -> Result<State, ReadError> {
        let events = self.view.client_events(self.room, state, &self.filter.form)?;
        let wrap = if self.request.use_state_after { State::After } else { State::Before };
        Ok(wrap(Events { events }))
    }

    fn client_timeline(&self, timeline: &TimelineSlice) -> Result<Timeline, ReadError> {
        // If nothing was left out, the client has seen the events that relate to these.
        let form = self.filter.form.bundled(timeline.limited);
        Ok(Timeline {
            events: self.view.client_events(self.room, &timeline.events, &form)?,
            limited: timeline.limited,
            prev_batch: timeline.prev_batch(self.room, self.request.epoch),
        })
    }
}
