//! Moderation policy lists: rooms whose rules this server applies (client-server API, "Moderation
//! policy lists").
//!
//! The rules are state of the rooms, and the subscriptions a projection. What is here can be made
//! from both at any time: the rules, so indexed that a name is looked up in the longest list
//! without a walk. A task brings it up to date (`service::policy_lists`); decisions only look up.
//!
//! The owners of a list are strangers. So no rule touches this server, its administrators and its
//! application services, and a list that would hit more users and rooms of this server than its
//! subscription allows has its further rules wait until somebody approves them. Which rules wait is
//! recorded (`policy.judge`), so that it is the same on every node and after every start.

mod census;
mod index;
mod kept_away;
mod list;
mod rule;
mod set;

use std::{
    cell::OnceCell,
    collections::HashSet,
    sync::{Arc, OnceLock},
};

use parking_lot::{Mutex, RwLock};
use ruma::{OwnedRoomId, OwnedServerName, RoomId, ServerName, UserId};

use crate::events::EventStore;
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_record::{
    Offset,
    command::{JudgedRule, PolicyArea, PolicyJudge},
};
use logcabin_state::{HeldRule, State, Subscription};

pub use kept_away::{Kept, KeptAway, KeptBy};
pub use list::RuleCounts;
use list::{Changes, ListRules, Moment};
use rule::Rule;
pub use rule::{EntityKind, RuleText};
pub use set::{Found, ProposedRule, RuleSet};

type IsSpared = dyn Fn(&UserId) -> bool + Send + Sync;

/// The rules of all lists.
#[derive(Default)]
pub struct PolicyLists {
    /// In the order in which they are looked up.
    lists: RwLock<Vec<ListRules>>,
    /// Held by whoever brings the rules up to date.
    refreshing: Mutex<()>,
    spared: OnceLock<Box<IsSpared>>,
    pub kept_away: KeptAway,
}

/// Something that rules may be about.
#[derive(Clone, Copy, Debug, Default)]
pub struct Subject<'a> {
    /// The user who does it, who belongs to a homeserver.
    pub user: Option<&'a UserId>,
    pub server: Option<&'a ServerName>,
    pub room: Option<&'a RoomId>,
    /// An alias of the room.
    pub alias: Option<&'a str>,
    /// Somebody else whom it concerns: rules about them do not apply, but if they are spared, none
    /// does.
    pub by: Option<&'a UserId>,
}

impl<'a> Subject<'a> {
    pub const fn of_user(user: &'a UserId) -> Self {
        Self { user: Some(user), server: None, room: None, alias: None, by: None }
    }

    pub const fn of_server(server: &'a ServerName) -> Self {
        Self { user: None, server: Some(server), room: None, alias: None, by: None }
    }

    pub const fn in_room(self, room: &'a RoomId) -> Self {
        Self { room: Some(room), ..self }
    }

    /// The names to look up, each under its kind. This server has none.
    fn names(&self, own: &ServerName) -> Vec<(EntityKind, &'a str)> {
        let mut names = Vec::with_capacity(6);
        let servers = [self.user.map(UserId::server_name), self.server];
        names.extend(self.user.map(|user| (EntityKind::User, user.as_str())));
        for server in servers.into_iter().flatten().filter(|server| *server != own) {
            names.extend(server_names(server).map(|name| (EntityKind::Server, name)));
        }
        names.extend(self.room.map(|room| (EntityKind::Room, room.as_str())));
        names.extend(self.alias.map(|alias| (EntityKind::Room, alias)));
        names
    }
}

/// The subject as whoever looks at the rules names it.
impl<'a> TryFrom<&'a str> for Subject<'a> {
    type Error = ruma::IdParseError;

    fn try_from(text: &'a str) -> Result<Self, Self::Error> {
        Ok(match text.chars().next() {
            Some('@') => Self::of_user(text.try_into()?),
            Some('!') => Self::default().in_room(text.try_into()?),
            Some('#') => Self { alias: Some(text), ..Self::default() },
            _ => Self::of_server(text.try_into()?),
        })
    }
}

/// The names under which a homeserver is looked up: with its port, and without.
fn server_names(server: &ServerName) -> impl Iterator<Item = &str> {
    let host = Some(server.host()).filter(|host| *host != server.as_str());
    std::iter::once(server.as_str()).chain(host)
}

fn own_name(state: &State) -> Option<OwnedServerName> {
    state.server().and_then(|server| server.server_name.as_str().try_into().ok())
}

/// A rule that matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The room of the list.
    pub list: OwnedRoomId,
    /// The record of the rule's event.
    pub rule: Offset,
    /// The name that it matches.
    pub name: String,
    pub outcome: MatchOutcome,
}

/// What comes of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchOutcome {
    Applied,
    /// `m.takedown` is only noted.
    Noted,
    /// The rule waits for approval.
    Waits,
    /// The subscription excepts the name, or the user is spared.
    Excepted,
}

/// What is to be recorded of new rules of a list.
#[derive(Debug)]
pub struct Judged {
    pub body: PolicyJudge,
    /// The last record about the list that was known.
    pub of: Offset,
}

impl std::fmt::Debug for PolicyLists {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyLists").finish_non_exhaustive()
    }
}

impl PolicyLists {
    /// Sets to whom no rule applies besides administrators. To be called once.
    pub fn spare(&self, is_spared: Box<IsSpared>) {
        // A second call has no effect.
        let _ = self.spared.set(is_spared);
    }

    /// Whether no rule applies to this user: an administrator, for example.
    pub fn is_spared(&self, state: &State, user_id: &UserId) -> bool {
        state.accounts.standing(user_id).is_some_and(|standing| standing.admin)
            || self.spared.get().is_some_and(|is_spared| is_spared(user_id))
    }

    /// The rule by which the subject is refused in this area, which is noted.
    pub fn refuses(&self, state: &State, area: PolicyArea, subject: Subject<'_>) -> Option<Match> {
        let found = self.find(state, area, subject)?;
        let is_refused = found.outcome == MatchOutcome::Applied;
        let by = KeptBy::List(found.list.clone(), found.rule);
        self.kept_away.note(area.name(), &found.name, &by, is_refused, state.applied());
        is_refused.then_some(found)
    }

    /// The first rule that applies to the subject in this area; if there is none, the first that is
    /// only noted.
    pub fn find(&self, state: &State, area: PolicyArea, subject: Subject<'_>) -> Option<Match> {
        if state.policy_lists.is_empty() {
            return None;
        }
        let mut first = None;
        self.each_match(state, Some(area), subject, |found| {
            match found.outcome {
                MatchOutcome::Applied => {
                    first = Some(found);
                    return false;
                }
                MatchOutcome::Noted if first.is_none() => first = Some(found),
                _ => {}
            }
            true
        });
        first
    }

    /// Every rule that matches the subject, whatever it is applied to.
    pub fn all_matches(&self, state: &State, subject: Subject<'_>) -> Vec<Match> {
        let mut matches = Vec::new();
        self.each_match(state, None, subject, |found| {
            matches.push(found);
            true
        });
        matches
    }

    /// Calls `take` with each match, until it returns false.
    fn each_match(
        &self,
        state: &State,
        area: Option<PolicyArea>,
        subject: Subject<'_>,
        mut take: impl FnMut(Match) -> bool,
    ) {
        let Some(own) = own_name(state) else { return };
        let names = subject.names(&own);
        let any_spared = || {
            let users = [subject.user, subject.by].into_iter().flatten();
            users.into_iter().any(|user_id| self.is_spared(state, user_id))
        };
        let is_spared = OnceCell::new();
        for list in &*self.lists.read() {
            let Subscription { room_id, areas, takedowns, .. } = &list.subscription;
            if area.is_some_and(|area| !areas.contains(&area)) {
                continue;
            }
            let Some(room) = state.rooms.get(room_id) else { continue };
            let is_excepted = OnceCell::new();
            for (kind, name) in &names {
                for rule in list.matching(*kind, name) {
                    if room.redaction_of(rule.offset, Offset::MAX).is_some() {
                        continue;
                    }
                    let is_excepted = *is_excepted.get_or_init(|| {
                        *is_spared.get_or_init(any_spared)
                            || list.is_excepted(names.iter().map(|(_, name)| *name))
                    });
                    let outcome = match () {
                        () if is_excepted => MatchOutcome::Excepted,
                        () if list.waits(rule) => MatchOutcome::Waits,
                        () if rule.is_takedown && !takedowns => MatchOutcome::Noted,
                        () => MatchOutcome::Applied,
                    };
                    let (list, rule) = (room_id.clone(), rule.offset);
                    if !take(Match { list, rule, name: (*name).to_owned(), outcome }) {
                        return;
                    }
                }
            }
        }
    }

    /// Brings the rules up to date with the subscriptions and the rooms. Until then, they are
    /// applied as they were. Blocks: a long list takes seconds.
    pub fn refresh(&self, state: &State, events: &EventStore) -> Result<(), ReadError> {
        let _refreshing = self.refreshing.lock();
        let rooms = state.policy_lists.in_order();
        for room_id in &rooms {
            let known = self.seen(room_id, state);
            if known.is_some_and(|(_, is_current)| is_current) {
                continue;
            }
            let Some(subscription) = state.policy_lists.get(room_id) else { continue };
            // Read without keeping others waiting.
            let room = state.rooms.get(room_id);
            let seen = known.and_then(|(seen, _)| seen);
            let changes = Changes::since(seen, room.as_deref(), events)?;
            let mut lists = self.lists.write();
            let at = lists.iter().position(|list| list.subscription.room_id == *room_id);
            let at = at.unwrap_or_else(|| {
                lists.push(ListRules::new(subscription.clone()));
                lists.len() - 1
            });
            if let Some(list) = lists.get_mut(at) {
                list.subscribe(subscription);
                list.take(changes);
            }
        }
        let place = |list: &ListRules| {
            rooms.iter().position(|room_id| *room_id == list.subscription.room_id)
        };
        let is_sorted = {
            let lists = self.lists.read();
            lists.len() == rooms.len() && lists.iter().is_sorted_by_key(place)
        };
        if !is_sorted {
            let mut lists = self.lists.write();
            lists.retain(|list| place(list).is_some());
            lists.sort_by_key(place);
        }
        Ok(())
    }

    /// When a list was read last, and whether it is as it was then.
    fn seen(&self, room_id: &RoomId, state: &State) -> Option<(Moment, bool)> {
        let lists = self.lists.read();
        let list = lists.iter().find(|list| list.subscription.room_id == *room_id)?;
        Some((list.seen(), list.is_current(state)))
    }

    /// Judges the next rules of each list that were not judged yet: whether they wait. Blocks: it
    /// looks at all users and rooms. [`PolicyLists::refresh`] comes first.
    /// The second value says whether there are more.
    pub fn judge(
        &self,
        state: &State,
        events: &EventStore,
    ) -> Result<(Vec<Judged>, bool), ReadError> {
        let unjudged: Vec<_> = {
            let of = |list: &ListRules| {
                let room = state.rooms.get(&list.subscription.room_id);
                let (rules, gone) = list.unjudged(room.as_deref());
                let is_any = rules.len() + gone.len() > 0;
                is_any.then(|| (list.subscription.clone(), (rules, gone)))
            };
            self.lists.read().iter().filter_map(of).collect()
        };
        let are_more = unjudged.iter().any(|(_, (rules, _))| rules.len() > limits::POLICY_JUDGED);
        let mut all = Vec::new();
        for (subscription, (rules, gone)) in unjudged {
            let judged = self.judged(state, events, &subscription, &rules, gone)?;
            all.extend(judged.map(|body| Judged { body, of: subscription.changed }));
        }
        Ok((all, are_more))
    }

    fn judged(
        &self,
        state: &State,
        events: &EventStore,
        subscription: &Subscription,
        rules: &[Arc<Rule>],
        gone: Vec<Offset>,
    ) -> Result<Option<PolicyJudge>, ReadError> {
        let Some(own) = own_name(state) else { return Ok(None) };
        let Subscription { room_id, judged, applied, held, approved, hold_above, .. } =
            subscription;
        let rules = &rules[..rules.len().min(limits::POLICY_JUDGED)];
        let hits = match rules.is_empty() {
            true => Default::default(),
            false => {
                let list = ListRules::new(subscription.clone());
                let is_spared = |user_id: &UserId| self.is_spared(state, user_id);
                let is_excepted = |name: &str| list.is_excepted(std::iter::once(name));
                census::hits(state, &own, rules, &is_spared, &is_excepted)
            }
        };
        // A rule that is state again is judged again.
        let again: HashSet<_> = rules.iter().map(|rule| rule.offset).collect();
        let is_kept = |record: &&Offset| !gone.contains(record) && !again.contains(record);
        let kept = applied.iter().filter(|(record, _)| is_kept(record));
        let mut sum: u64 = kept.map(|(_, hits)| hits).sum();
        let mut waiting = held.keys().filter(is_kept).count();
        let mut body = PolicyJudge {
            room_id: room_id.clone(),
            until: *judged,
            applied: Vec::new(),
            held: Vec::new(),
            gone: gone.clone(),
        };
        for rule in rules {
            if waiting >= limits::POLICY_HELD {
                break;
            }
            body.until = rule.place();
            let hits = hits.get(&rule.offset).copied().unwrap_or(0);
            if hits == 0 {
                continue;
            }
            let Some(event) = events.get(rule.offset)? else { continue };
            let rule = JudgedRule { record: rule.offset, event_id: event.event_id.clone(), hits };
            if approved.contains(&rule.event_id) {
                continue;
            }
            // A rule that took effect keeps it.
            let is_applied = applied.get(&rule.record).is_some_and(|before| hits <= *before);
            match sum.checked_add(hits).filter(|sum| is_applied || sum <= hold_above) {
                Some(more) => {
                    sum = more;
                    body.applied.push(rule);
                }
                None => {
                    waiting += 1;
                    body.held.push(rule);
                }
            }
        }
        Ok((body.until != *judged || !gone.is_empty()).then_some(body))
    }

    /// How many rules a subscription would have, and how many of them would wait.
    pub fn preview(
        &self,
        state: &State,
        events: &EventStore,
        subscription: Subscription,
    ) -> Result<(RuleCounts, usize), ReadError> {
        let room = state.rooms.get(&subscription.room_id);
        let mut list = ListRules::new(subscription);
        list.take(Changes::since(None, room.as_deref(), events)?);
        loop {
            let (rules, gone) = list.unjudged(room.as_deref());
            let judged = self.judged(state, events, &list.subscription, &rules, gone)?;
            let Some(judged) = judged else {
                return Ok((list.counts(), list.subscription.held.len() + rules.len()));
            };
            let of = &mut list.subscription;
            of.judged = judged.until;
            for record in judged.gone {
                of.applied.remove(&record);
                of.held.remove(&record);
            }
            of.applied.extend(judged.applied.iter().map(|rule| (rule.record, rule.hits)));
            of.held.extend(judged.held.into_iter().map(|rule| {
                let JudgedRule { record, event_id, hits } = rule;
                (record, HeldRule { event_id, hits })
            }));
        }
    }

    /// How many rules the list in this room has, and how many of them were not judged yet.
    pub fn counts(&self, state: &State, room_id: &RoomId) -> (RuleCounts, usize) {
        let room = state.rooms.get(room_id);
        let lists = self.lists.read();
        let list = lists.iter().find(|list| list.subscription.room_id == *room_id);
        list.map(|list| (list.counts(), list.unjudged(room.as_deref()).0.len())).unwrap_or_default()
    }
}
