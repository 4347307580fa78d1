//! Events of other homeservers (server-server API, "Checks performed on receipt of a PDU"). Their
//! form, signatures and hashes are checked before.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use ruma::{
    EventId, OwnedEventId, OwnedRoomId, OwnedServerName, OwnedUserId, RoomId, UserId,
    events::{StateEventType, TimelineEventType},
    room_version_rules::AuthorizationRules,
    state_res::{
        check_state_dependent_auth_rules, check_state_independent_auth_rules,
        events::RoomPowerLevelsIntField,
    },
};
use serde_json::value::RawValue;

use super::{
    division::{fit, record_before, record_changes},
    noted::StateBeforeRecorder,
    resolve::{Joined, NoState, States, after_each, changes, say_lifetimes},
};
use crate::{Commit, Env, Powers, Proposal, Refusal, not_in_it, redaction::RedactedStay};
use logcabin_base::{
    limits,
    planted::{self, Fault},
};
use logcabin_log::ReadError;
use logcabin_read::{
    branches::{Branches, Effort, PENDING, StateView},
    events::{EventRef, StoredEvent},
};
use logcabin_record::{
    Offset, Stream,
    command::{
        Extremity, Outcome, Received, Resolved, RoomEvent, RoomPdu, StateBase, StateBefore,
        StateChange,
    },
    division::{bare, bytes},
};
use logcabin_state::{
    Room,
    rooms::{Tip, graph::OffTimeline},
};

/// Why an event is rejected whose id another one has. It is not recorded: what is known of that id
/// is the other one.
pub(super) const TAKEN: &str = "another event has its id";

/// Add an event of another homeserver to a room.
#[derive(Clone, Debug)]
pub struct ReceivePdu {
    pub room_id: OwnedRoomId,
    pub event_id: OwnedEventId,
    /// The homeserver that sent it.
    pub from: OwnedServerName,
    /// The event, with valid signatures, and redacted if its content does not match its hash.
    pub pdu: Box<RawValue>,
    /// Whether it is only needed as an auth event for others.
    pub as_outlier: bool,
    /// Whether the state before it is the recorded one, which another homeserver told
    /// ([`PlaceOutlier`](super::PlaceOutlier)): its past cannot be had, or rests on what a third
    /// one told.
    pub is_placed: bool,
    /// Whether this homeserver sends it to the others in the room.
    pub relayed: bool,
    /// Why the room's policy server does not recommend it, if it does not.
    pub not_recommended: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiveOutcome {
    /// It is in the timeline.
    Accepted,
    /// It was known before.
    Known,
    /// It is kept as an auth event for others.
    Outlier,
    /// The current state does not allow it.
    SoftFailed(String),
    /// It is not allowed at its place in the room.
    Rejected(String),
    /// It cannot be judged without these events, and nothing was recorded.
    Missing {
        /// The missing ones that it names as auth events.
        auth: Vec<OwnedEventId>,
        /// The missing ones that it names as predecessors.
        prev: Vec<OwnedEventId>,
    },
    /// Computing the state before it exceeds this homeserver's limits, and nothing was recorded:
    /// another homeserver may supply that state.
    Unresolved,
    /// It is allowed by its auth events and by the current state, but not by the state before it,
    /// which rests on what another homeserver told. Nothing was recorded: its sender's homeserver
    /// may supply that state.
    Disputed,
    /// Judging it takes longer than the room's other events may wait, and nothing was recorded:
    /// [`ReceivePdu::prepare`] it, and propose it again.
    Unprepared,
}

impl Proposal for ReceivePdu {
    type Outcome = ReceiveOutcome;

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn is_from_elsewhere(&self) -> bool {
        true
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<ReceiveOutcome, Refusal> {
        self.decide_with(commit, Effort::Short)
    }
}

/// The same, however long it takes: all other events of the room wait.
#[derive(Clone, Debug)]
pub struct ReceivePduAtLength(pub ReceivePdu);

impl Proposal for ReceivePduAtLength {
    type Outcome = ReceiveOutcome;

    fn stream(&self) -> Stream {
        self.0.stream()
    }

    fn is_from_elsewhere(&self) -> bool {
        true
    }

    fn is_long(&self) -> bool {
        true
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<ReceiveOutcome, Refusal> {
        self.0.decide_with(commit, Effort::Long(&|| true))
    }
}

impl ReceivePdu {
    /// Computes what the decision on the event needs, while other events of the room go ahead, so
    /// that the decision itself is quick. `pause` is called about every millisecond, and may block
    /// for a while. When it returns `false`, the work ends there.
    pub fn prepare(&self, env: &Env, pause: &dyn Fn() -> bool) {
        let Some(room) = env.state.rooms.get(&self.room_id) else { return };
        let Ok(event) = StoredEvent::new(PENDING, self.body(None, None)) else { return };
        let event = Arc::new(event);
        let branches = Branches::new(&env.state, &env.events, &room);
        let branches = branches.with_pending(Arc::clone(&event)).with_effort(Effort::Long(pause));
        // Its outcome is decided on the room as it is then.
        let receipt = IncomingPdu::new(&room, &branches, &event).placed_as_recorded(self.is_placed);
        let _ = receipt.judge(self.as_outlier);
    }

    fn decide_with(
        &self,
        commit: &mut Commit<'_>,
        effort: Effort<'_>,
    ) -> Result<ReceiveOutcome, Refusal> {
        let env = commit.env;
        let room = env.state.rooms.get(&self.room_id).ok_or_else(not_in_it)?;
        let of = (&*self.room_id, &room.rules);
        if env.events.is_taken(&env.state, of, &self.event_id, &self.pdu)? {
            return Ok(ReceiveOutcome::Rejected(TAKEN.to_owned()));
        }
        if let Some(known) = env.events.find_known(&env.state, &room, &self.event_id)?
            && (self.as_outlier || room.aside(known.offset) != Some(OffTimeline::Outlier))
        {
            return Ok(ReceiveOutcome::Known);
        }
        let event = StoredEvent::new(PENDING, self.body(None, None))
            .map_err(|error| Refusal::BadJson(error.to_string()))?;
        let event = Arc::new(event);
        let branches = Branches::new(&env.state, &env.events, &room);
        let branches = branches.with_pending(Arc::clone(&event)).with_effort(effort);
        if room.is_gapped() && env.events.find_shown(&env.state, &self.event_id)?.is_some() {
            return Ok(ReceiveOutcome::Known);
        }
        let receipt = IncomingPdu::new(&room, &branches, &event).placed_as_recorded(self.is_placed);
        let verdict = match receipt.judge(self.as_outlier) {
            Err(NoState::Changed(_)) => return Ok(ReceiveOutcome::Unprepared),
            Ok(verdict) => self.recommended(verdict),
            Err(NoState::Missing(prev)) => {
                return Ok(ReceiveOutcome::Missing { auth: Vec::new(), prev });
            }
            Err(NoState::Unprepared(_)) => return Ok(ReceiveOutcome::Unprepared),
            Err(NoState::Refused(refusal)) => return Err(refusal),
            Err(NoState::TooMuch(_) | NoState::TooLarge(_)) => {
                return Ok(ReceiveOutcome::Unresolved);
            }
            Err(NoState::Disputed) => return Ok(ReceiveOutcome::Disputed),
            // It is not known whether it is allowed, so it is never part of a state.
            Err(error @ NoState::Failed(_)) => {
                let outcome = Outcome::Rejected { reason: error.to_string() };
                Verdict::Aside { outcome, before: None }
            }
        };
        let stream = self.stream();
        Ok(match verdict {
            Verdict::NeedsAuthEvents(auth) => ReceiveOutcome::Missing { auth, prev: Vec::new() },
            Verdict::Aside { outcome, before } => {
                let received = match &outcome {
                    Outcome::Outlier => ReceiveOutcome::Outlier,
                    Outcome::SoftFailed { reason } => ReceiveOutcome::SoftFailed(reason.clone()),
                    Outcome::Rejected { reason } => ReceiveOutcome::Rejected(reason.clone()),
                };
                let before = self.record_before(commit, &room, &event, before);
                commit.append(stream, self.aside(&event, outcome, before));
                received
            }
            Verdict::Accepted { extremities, beside, before, mut resolved, redacts, missing } => {
                let mut before = self.record_before(commit, &room, &event, before);
                if let Some(resolved) = &mut resolved
                    && bytes(&resolved.changes) > limits::EVENT_STATE_BYTES
                {
                    // Its own record changes the room's state.
                    let current = StateBase::At(room.last_state_change(Offset::MAX));
                    before.get_or_insert_with(|| StateBefore::same_as(current));
                    let changes = std::mem::take(&mut resolved.changes);
                    record_changes(commit, (&self.room_id, &self.from), changes, usize::MAX);
                }
                let takes_effect = resolved.as_ref().is_none_or(|of| of.takes_effect);
                let redacted = match takes_effect {
                    true => RedactedStay::ended_by(commit.env, &room, &event)?,
                    false => None,
                };
                let received = Received {
                    relayed: self.relayed,
                    extremities,
                    beside,
                    missing,
                    before,
                    resolved,
                    ..Received::new(self.from.clone())
                };
                commit.append(stream, self.body(Some(received), redacts));
                if let Some(stay) = redacted {
                    commit.redact_stay(stay, self.event_id.clone());
                }
                ReceiveOutcome::Accepted
            }
        })
    }

    /// Soft-fails an otherwise accepted event, if the room's policy server does not recommend it.
    fn recommended(&self, verdict: Verdict) -> Verdict {
        match (verdict, &self.not_recommended) {
            (Verdict::Accepted { before, .. }, Some(reason)) => {
                let outcome = Outcome::SoftFailed { reason: reason.clone() };
                Verdict::Aside { outcome, before }
            }
            (verdict, _) => verdict,
        }
    }

    /// Its record, if it has no place in the timeline.
    fn aside(&self, event: &EventRef, outcome: Outcome, before: Option<StateBefore>) -> RoomPdu {
        RoomPdu {
            room_id: self.room_id.clone(),
            event_id: self.event_id.clone(),
            sender: event.sender.clone(),
            from: self.from.clone(),
            room_version: None,
            outcome,
            before,
            pdu: self.pdu.clone(),
        }
    }

    fn record_before(
        &self,
        commit: &mut Commit<'_>,
        room: &Room,
        event: &EventRef,
        before: Option<StateBefore>,
    ) -> Option<StateBefore> {
        let outlier = |before| RoomPdu {
            pdu: bare(&self.pdu, &room.rules),
            ..self.aside(event, Outcome::Outlier, Some(before))
        };
        before.map(|before| record_before(commit, outlier, before))
    }

    fn body(&self, received: Option<Received>, redacts: Option<Offset>) -> RoomEvent {
        body(&self.room_id, &self.event_id, self.pdu.clone(), received, redacts)
    }
}

/// The payload of an event of another homeserver.
pub(super) fn body(
    room_id: &RoomId,
    event_id: &EventId,
    pdu: Box<RawValue>,
    received: Option<Received>,
    redacts: Option<Offset>,
) -> RoomEvent {
    let event = RoomEvent::new(room_id.to_owned(), event_id.to_owned(), pdu);
    RoomEvent { redacts, received, ..event }
}

/// Whether a redaction may redact an event because both are of one homeserver (room version 3,
/// "Handling redactions"). In versions 1 and 2, that is the one in the ids (room version 1,
/// "Authorisation rules", 11).
pub(super) fn are_of_one_server(
    redaction: &StoredEvent,
    target: &StoredEvent,
    rules: &AuthorizationRules,
) -> bool {
    if rules.special_case_room_redaction {
        return redaction.event_id.server_name() == target.event_id.server_name();
    }
    redaction.sender.server_name() == target.sender.server_name()
}

pub(super) enum Verdict {
    NeedsAuthEvents(Vec<OwnedEventId>),
    Aside {
        outcome: Outcome,
        before: Option<StateBefore>,
    },
    Accepted {
        extremities: Vec<Extremity>,
        beside: bool,
        before: Option<StateBefore>,
        resolved: Option<Resolved>,
        redacts: Option<Offset>,
        missing: Vec<OwnedEventId>,
    },
}

pub(super) struct IncomingPdu<'a, 'b> {
    pub(super) room: &'a Room,
    pub(super) branches: &'a Branches<'b>,
    pub(super) event: &'a EventRef,
    /// Whether the state before it is the recorded one.
    is_placed: bool,
    /// The hashes of the states after the room's forward extremities, if all are known.
    now: OnceCell<Option<Vec<u128>>>,
}

impl<'a, 'b> IncomingPdu<'a, 'b> {
    pub(super) const fn new(
        room: &'a Room,
        branches: &'a Branches<'b>,
        event: &'a EventRef,
    ) -> Self {
        Self { room, branches, event, is_placed: false, now: OnceCell::new() }
    }

    /// The same by the state before the event that was recorded when it was an outlier, if one was.
    const fn placed_as_recorded(mut self, is_placed: bool) -> Self {
        self.is_placed = is_placed;
        self
    }

    pub(super) fn judge(&self, as_outlier: bool) -> Result<Verdict, NoState> {
        let event = self.event;
        let mut auth_events = Vec::new();
        let mut missing = Vec::new();
        for event_id in &event.auth_events {
            match self.branches.find(event_id)? {
                Some(auth_event) => auth_events.push(auth_event),
                None => missing.push(event_id.clone()),
            }
        }
        if !missing.is_empty() {
            return Ok(Verdict::NeedsAuthEvents(missing));
        }
        if self.room.rules.authorization.room_create_event_id_as_room_id {
            // The room's id implies it.
            let create = format!("${}", self.room.id.strip_sigil());
            if let Ok(create) = <&EventId>::try_from(&*create) {
                auth_events.extend(self.branches.find(create)?);
            }
        }
        let rejected =
            |reason: String| Verdict::Aside { outcome: Outcome::Rejected { reason }, before: None };
        let by_auth_events = self.allowed_by(|event_type, state_key| {
            Ok(auth_events
                .iter()
                .find(|event| {
                    event.event_type.to_string() == event_type.to_string()
                        && event.state_key.as_deref() == Some(state_key)
                })
                .cloned())
        })?;
        let by_auth_events = self.is_well_formed()?.and(by_auth_events);
        if as_outlier {
            return Ok(match by_auth_events {
                Ok(()) => Verdict::Aside { outcome: Outcome::Outlier, before: None },
                Err(reason) => rejected(reason),
            });
        }
        if event.prev_events.is_empty() {
            return Ok(rejected("it comes after no event".to_owned()));
        }
        let before = self.with_claimed(self.before()?, &auth_events)?;
        let noted = self.noted(&before)?;
        let current = self.branches.current();
        let is_authorised = by_auth_events.is_ok();
        if let Err(reason) = by_auth_events.and(self.allowed_in(&before)?) {
            if is_authorised
                && !self.is_placed
                && self.rests_on_told()?
                && self.allowed_now(&current, &auth_events)?.is_ok()
            {
                return Err(NoState::Disputed);
            }
            let outcome = Outcome::Rejected { reason };
            return Ok(Verdict::Aside { outcome, before: noted });
        }
        if let Err(reason) = self.allowed_now(&current, &auth_events)?
            && !planted::has(Fault::SoftFailSkipped)
        {
            let outcome = Outcome::SoftFailed { reason };
            return Ok(Verdict::Aside { outcome, before: noted });
        }
        let redacts = match self.redacts(&before)? {
            Ok(redacts) => redacts,
            Err(reason) => {
                let outcome = Outcome::SoftFailed { reason };
                return Ok(Verdict::Aside { outcome, before: noted });
            }
        };
        let (tips, resolved, beside) = self.placed(&before, &current)?;
        let named = |Tip { event_id, depth }| Extremity { event_id, depth };
        Ok(Verdict::Accepted {
            redacts,
            extremities: tips.into_iter().map(named).collect(),
            beside,
            before: noted,
            resolved,
            missing: self.missing()?,
        })
    }

    fn allowed_now(
        &self,
        current: &StateView,
        auth_events: &[EventRef],
    ) -> Result<Result<(), String>, NoState> {
        Ok(self.allowed_in(&self.with_claimed(current.clone(), auth_events)?)?)
    }

    /// A state, with those joins among the auth events that could not be verified when this
    /// homeserver entered the room. They were part of the state then, and are verified now.
    fn with_claimed(
        &self,
        mut state: StateView,
        auth_events: &[EventRef],
    ) -> Result<StateView, NoState> {
        let member = StateEventType::RoomMember;
        for auth_event in auth_events {
            let user_id = auth_event.state_key.as_deref().and_then(|key| UserId::parse(key).ok());
            let claimed = user_id.as_deref().and_then(|user_id| self.room.claimed_join(user_id));
            if let Some(user_id) = user_id
                && claimed.as_ref() == Some(&auth_event.event_id)
                && self.branches.holder(&state, &member, user_id.as_str())?.is_none()
            {
                state = self.branches.with(state, auth_event)?;
            }
        }
        Ok(state)
    }

    /// The predecessors that the room's history lacks. The extremities are in its timeline.
    fn missing(&self) -> Result<Vec<OwnedEventId>, ReadError> {
        let mut missing = Vec::new();
        let now = self.room.extremities();
        for event_id in &self.event.prev_events {
            if now.iter().any(|tip| tip.event_id == *event_id) {
                continue;
            }
            let is_lacking = match self.branches.find(event_id)? {
                Some(event) => self.branches.is_out_of_sight(&event)?,
                None => true,
            };
            if is_lacking {
                missing.push(event_id.clone());
            }
        }
        Ok(missing)
    }

    /// Whether the state before the event may rest on what another homeserver told: not far before
    /// it, there is an event whose past was not known when it was recorded, or is not known now.
    fn rests_on_told(&self) -> Result<bool, ReadError> {
        let mut next: VecDeque<OwnedEventId> = self.event.prev_events.iter().cloned().collect();
        let mut seen = BTreeSet::new();
        while let Some(event_id) = next.pop_front() {
            if seen.len() >= limits::TOLD_VISITED || !seen.insert(event_id.clone()) {
                continue;
            }
            let Some(event) = self.branches.find(&event_id)? else { return Ok(true) };
            let is_told = matches!(event.aside.as_deref(), Some((Outcome::Outlier, Some(_))));
            if is_told || event.received.as_ref().is_some_and(|it| !it.missing.is_empty()) {
                return Ok(true);
            }
            next.extend(event.prev_events.iter().cloned());
        }
        Ok(false)
    }

    /// The state before the event.
    fn before(&self) -> Result<StateView, NoState> {
        let event = self.event;
        if self.is_placed
            && let Some(recorded) = self.branches.recorded_before(&event.event_id)?
        {
            return Ok(recorded);
        }
        let now = self.room.extremities();
        let is_after_all = now.len() == event.prev_events.len()
            && now.iter().all(|tip| event.prev_events.contains(&tip.event_id));
        if is_after_all {
            return Ok(self.branches.current());
        }
        let ids = event.prev_events.iter().map(|event_id| &**event_id);
        Ok(self.join(after_each(self.branches, ids)?)?.view)
    }

    /// What state resolution makes of several states. If they are those after the forward
    /// extremities, that is the current state.
    fn join(&self, views: Vec<StateView>) -> Result<Joined, NoState> {
        if let [StateView::AsOf(_)] = &*views {
            let only = views.into_iter().next();
            return Ok(Joined::plain(only.unwrap_or_else(|| self.current())));
        }
        if planted::has(Fault::OwnStateWins) {
            return Ok(Joined::plain(self.current()));
        }
        let states = States::new(self.branches, views)?;
        if self.now()?.is_some_and(|now| *now == states.hashes()) {
            return Ok(Joined::plain(self.current()));
        }
        states.resolve(self.branches)
    }

    fn now(&self) -> Result<Option<&[u128]>, NoState> {
        if let Some(now) = self.now.get() {
            return Ok(now.as_deref());
        }
        let tips = self.room.extremities();
        let now = match after_each(self.branches, tips.iter().map(|tip| &*tip.event_id)) {
            Ok(views) if !views.is_empty() => Some(States::new(self.branches, views)?.hashes()),
            Ok(_) | Err(NoState::Missing(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(self.now.get_or_init(|| now).as_deref())
    }

    fn current(&self) -> StateView {
        self.branches.current()
    }

    fn noted(&self, before: &StateView) -> Result<Option<StateBefore>, NoState> {
        let noted =
            StateBeforeRecorder { branches: self.branches, event: self.event }.noted(before)?;
        if let Some(noted) = &noted {
            fit(&noted.changes, limits::STATE_BEFORE_BYTES)?;
        }
        Ok(noted)
    }

    fn is_well_formed(&self) -> Result<Result<(), String>, ReadError> {
        let failed = std::cell::RefCell::new(None);
        let by_id = |event_id: &EventId| {
            self.branches.find(event_id).unwrap_or_else(|error| {
                *failed.borrow_mut() = Some(error);
                None
            })
        };
        let rules = &self.room.rules.authorization;
        let allowed = check_state_independent_auth_rules(rules, self.event, by_id);
        failed.into_inner().map_or(Ok(allowed), Err)
    }

    fn allowed_by(
        &self,
        find: impl Fn(&StateEventType, &str) -> Result<Option<EventRef>, ReadError>,
    ) -> Result<Result<(), String>, ReadError> {
        let failed = std::cell::RefCell::new(None);
        let by_key = |event_type: &StateEventType, state_key: &str| {
            find(event_type, state_key).unwrap_or_else(|error| {
                *failed.borrow_mut() = Some(error);
                None
            })
        };
        let rules = &self.room.rules.authorization;
        let allowed = check_state_dependent_auth_rules(rules, self.event, by_key);
        failed.into_inner().map_or(Ok(allowed), Err)
    }

    pub(super) fn allowed_in(&self, view: &StateView) -> Result<Result<(), String>, ReadError> {
        self.allowed_by(|event_type, state_key| self.branches.holder(view, event_type, state_key))
    }

    /// The forward extremities once the event is in the room (besides the event, if it is one),
    /// what it does to the current state, and whether it is none.
    ///
    /// The number of extremities is limited, but anybody may make any number of branches. At the
    /// limit, an event that begins another branch does not become an extremity. It is shown, and it
    /// counts once a later event that is an extremity follows it. Only an extremity of a homeserver
    /// that has several, or of a sender with less power in the room, is replaced. So branches that
    /// leave out what the room has agreed on cannot undo it, and branches that were made first
    /// cannot keep a moderator from being heard.
    fn placed(
        &self,
        before: &StateView,
        current: &StateView,
    ) -> Result<(Vec<Tip>, Option<Resolved>, bool), NoState> {
        if planted::has(Fault::StaleExtremity) {
            return Ok((self.room.extremities(), None, false));
        }
        for others in self.others()? {
            match self.resolved(before, current, &others) {
                Err(NoState::TooLarge(_) | NoState::TooMuch(_)) => {}
                resolved => return Ok((others, resolved?, false)),
            }
        }
        let nothing = || Resolved { takes_effect: false, changes: vec![], conflicts: vec![] };
        Ok((self.room.extremities(), self.event.state_key.is_some().then(nothing), true))
    }

    /// What the other extremities may be if the event is one: the first that works counts.
    fn others(&self) -> Result<Vec<Vec<Tip>>, NoState> {
        let preceding = self.preceding()?;
        let mut others = Vec::new();
        for tip in self.room.extremities() {
            let is_left = match preceding.get(&tip.event_id) {
                None => true,
                Some(None) => false,
                // What was judged without it does not follow it.
                Some(Some(by)) => {
                    self.branches.find(&tip.event_id)?.is_none_or(|tip| tip.offset > *by)
                }
            };
            if is_left {
                others.push(tip);
            }
        }
        others.sort_by_key(|tip| std::cmp::Reverse(tip.depth));
        if others.len() < self.room.extremities().len() {
            return Ok(vec![others]);
        }
        let Some(giving_way) = self.giving_way(&others)? else { return Ok(vec![others]) };
        let without = |place: &usize| {
            let tips = others.iter().enumerate().filter(|(other, _)| other != place);
            tips.map(|(_, tip)| tip.clone()).collect()
        };
        Ok(giving_way.iter().map(without).collect())
    }

    /// The positions of the extremities of which one is replaced by the event, which begins a
    /// branch, the least deep first; `None` if none needs to be.
    ///
    /// A homeserver's events follow those that it sent before. One that has tips already gets more
    /// only where the past is missing. It may have sent several at the same time: the next one that
    /// follows them brings them in. Every event of this server names all tips, and other
    /// homeservers refuse it until they have fetched all of them.
    fn giving_way(&self, tips: &[Tip]) -> Result<Option<Vec<usize>>, NoState> {
        let mut senders = Vec::with_capacity(tips.len());
        for tip in tips {
            senders.push(self.branches.find(&tip.event_id)?.map(|event| event.sender.clone()));
        }
        let server = |of: &Option<OwnedUserId>| of.as_ref().map(|of| of.server_name().to_owned());
        let servers: Vec<_> = senders.iter().map(server).collect();
        let count = |server| servers.iter().filter(|other| *other == server).count();
        let own = Some(self.event.sender.server_name().to_owned());
        let most = servers.iter().map(count).max().unwrap_or(0);
        let of = if count(&own) >= limits::EXTREMITIES_OF_ONE {
            if self.missing()?.is_empty() { None } else { own }
        } else if tips.len() < limits::EXTREMITIES {
            return Ok(None);
        } else if most > 1 {
            servers.iter().find(|server| count(server) == most).cloned().flatten()
        } else {
            return Ok(Some(self.weaker(&senders)?));
        };
        let places = (0..tips.len()).rev();
        Ok(Some(places.filter(|place| of.is_some() && servers[*place] == of).collect()))
    }

    /// The positions of the extremities whose senders have the least power in the room, the last
    /// one first, if the sender of the event has more. A sender who is not in the room has less
    /// power than any member.
    fn weaker(&self, senders: &[Option<OwnedUserId>]) -> Result<Vec<usize>, NoState> {
        let current = self.current();
        let find = |event_type| self.branches.holder(&current, &event_type, "");
        let (create, levels) =
            (find(StateEventType::RoomCreate)?, find(StateEventType::RoomPowerLevels)?);
        let powers = Powers::new(&self.room.rules.authorization, create, levels);
        let weight = |user_id: &UserId| {
            let is_in = self.room.is_joined(user_id, Offset::MAX);
            (is_in, powers.level(user_id).filter(|_| is_in))
        };
        let weights: Vec<_> = senders.iter().map(|of| of.as_deref().map(weight)).collect();
        let least = weights.iter().min().copied().flatten();
        if least >= Some(weight(&self.event.sender)) {
            return Ok(Vec::new());
        }
        Ok((0..senders.len()).rev().filter(|place| weights[*place] == least).collect())
    }

    /// The predecessors, and those before them on the way back through soft-failed ones, each with
    /// the record of the soft-failed event that names it. An event that follows soft-failed ones
    /// also follows what they follow, which may still be extremities, because a soft-failed event
    /// leaves them as they are. A rejected event leads nowhere: its past may not have been judged.
    fn preceding(&self) -> Result<BTreeMap<OwnedEventId, Option<Offset>>, ReadError> {
        let direct = self.event.prev_events.iter().cloned();
        let mut preceding: BTreeMap<_, _> = direct.map(|event_id| (event_id, None)).collect();
        let mut open: Vec<_> = preceding.keys().cloned().collect();
        for _ in 0..limits::SOFT_FAILED_BEFORE {
            let Some(event_id) = open.pop() else { break };
            let Some(event) = self.branches.find(&event_id)? else { continue };
            if !matches!(event.aside.as_deref(), Some((Outcome::SoftFailed { .. }, _))) {
                continue;
            }
            for before in &event.prev_events {
                if !preceding.contains_key(before) {
                    preceding.insert(before.clone(), Some(event.offset));
                    open.push(before.clone());
                }
            }
        }
        Ok(preceding)
    }

    /// The effect of the event on the current state.
    fn resolved(
        &self,
        before: &StateView,
        current: &StateView,
        others: &[Tip],
    ) -> Result<Option<Resolved>, NoState> {
        if others.is_empty() && before == current {
            return Ok(None);
        }
        let after = self.branches.with(before.clone(), self.event)?;
        let new = if others.is_empty() {
            Joined::plain(after)
        } else {
            let ids = others.iter().map(|tip| &*tip.event_id);
            let mut views = after_each(self.branches, ids)?;
            views.push(after);
            self.join(views)?
        };
        let mut changes = changes(self.branches, current, &new.view)?;
        fit(&changes, limits::RESOLVED_BYTES)?;
        let own = self.event.key();
        let own = own.iter().map(|(event_type, state_key)| (event_type.clone(), &**state_key));
        let keys = own.chain(changes.iter().map(|change| {
            (StateEventType::from(change.event_type.as_str()), change.state_key.as_str())
        }));
        let conflicts = new.conflicts(self.branches, keys)?;
        let is_own = |change: &StateChange| change.event == Some(PENDING);
        let takes_effect = self.event.state_key.is_none() || changes.iter().any(is_own);
        changes.retain(|change| !is_own(change));
        say_lifetimes(self.branches, &mut changes)?;
        if takes_effect && changes.is_empty() && conflicts.is_empty() {
            return Ok(None);
        }
        Ok(Some(Resolved { takes_effect, changes, conflicts }))
    }

    /// The event that this one redacts, if it is a redaction that takes effect; or why it never
    /// will, so that clients must not see it (room version 3 and later, "Handling redactions").
    fn redacts(&self, before: &StateView) -> Result<Result<Option<Offset>, String>, NoState> {
        let event = self.event;
        if event.event_type != TimelineEventType::RoomRedaction
            || planted::has(Fault::RedactionOfOthersIgnored)
        {
            return Ok(Ok(None));
        }
        let Some(target_id) = &event.redacts else { return Ok(Ok(None)) };
        let Some(target) = self.branches.find_shown(target_id)? else {
            if self.branches.is_in_another_room(target_id)? {
                return Ok(Err("it redacts an event of another room".to_owned()));
            }
            // The event may be in a part of the history that was not fetched yet.
            return Ok(Ok(None));
        };
        if are_of_one_server(event, &target, &self.room.rules.authorization) {
            return Ok(Ok(Some(target.offset)));
        }
        let find = |event_type| self.branches.holder(before, &event_type, "");
        let (create, levels) =
            (find(StateEventType::RoomCreate)?, find(StateEventType::RoomPowerLevels)?);
        let powers = Powers::new(&self.room.rules.authorization, create, levels);
        if powers.has_level(&event.sender, RoomPowerLevelsIntField::Redact) {
            return Ok(Ok(Some(target.offset)));
        }
        Ok(Err("its sender may not redact the event that it redacts".to_owned()))
    }
}
