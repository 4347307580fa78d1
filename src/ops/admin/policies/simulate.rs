//! What rules would have refused, had they been applied: a walk through the log, which costs half
//! of a processor while it lasts.

use std::collections::HashMap;

use ruma::{ServerName, UserId, events::room::member::MembershipState};
use serde::{Deserialize, Serialize};

use crate::{
    admin::{
        act::{Act, Attribution},
        context::{ActContext, ActError},
    },
    history::moment::Moment,
};
use logcabin_base::{
    background::Pace,
    limits,
    progress::{self, Work},
    threads,
};
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_read::{
    events::StoredEvent,
    policy_lists::{Found, ProposedRule, RuleSet, Subject},
};
use logcabin_record::{Command, Offset, Record, command::PolicyArea};

/// How many records are read at a time.
const RECORDS: u64 = 1024;

/// Either a room or rules are given.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SimulatePolicies {
    /// The room with the rules, whether or not they are applied.
    #[serde(default)]
    pub room: Option<String>,
    /// Proposed rules.
    #[serde(default)]
    pub rules: Vec<ProposedRule>,
    /// The moment from which on the log is looked at: an offset, a time, or `-7d`.
    pub since: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Simulated {
    /// The first and the last record that were looked at.
    pub from: Offset,
    pub to: Offset,
    /// How much would have been refused, and what: most first, as far as it is named.
    pub refused: u64,
    pub matches: Vec<SimulatedMatch>,
    /// The places of proposed rules that cannot be understood, from 1 on.
    pub wrong: Vec<usize>,
}

/// What one rule would have refused of one user, room or homeserver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SimulatedMatch {
    pub area: PolicyArea,
    pub name: String,
    /// The record of the rule's event, or the place of a proposed rule.
    pub rule: Offset,
    pub times: u64,
    /// The first and the last record that it would have refused.
    pub first: Offset,
    pub last: Offset,
}

impl Act for SimulatePolicies {
    const NAME: &'static str = "simulate-policies";
    const DONE: &'static str = "policies-simulated";
    type Done = Simulated;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Simulated, ActError> {
        if self.rules.len() > limits::POLICY_PROPOSED {
            return Err(ActError::invalid("There are too many rules."));
        }
        let engine = &context.engine;
        let (set, wrong) = match &self.room {
            Some(room) => (RuleSet::of_room(engine.events(), &*context.room(room)?)?, Vec::new()),
            None => RuleSet::of(&self.rules),
        };
        let since = self.since.parse::<Moment>().map_err(ActError::invalid)?;
        let since = since.from_now(engine.clock().now_ms());
        let to = engine.state().applied();
        let is_ahead = match since {
            Moment::At(offset) => offset > to,
            Moment::Time(ms) | Moment::Ago(ms) => ms > engine.clock().now_ms(),
        };
        if is_ahead {
            return Err(ActError::Invalid(format!(
                "`{}` is after the end of the log.",
                self.since
            )));
        }
        let mut walk = Walk { set, own: engine.env().server.name.clone(), found: HashMap::new() };
        let (mut until, mut from) = (to.next(), to);
        let work = Work::about(progress::MODERATION, "simulated rules", 0, to.get());
        while until > Offset::new(1) {
            let engine = std::sync::Arc::clone(engine);
            let part = threads::spawn_blocking(move || {
                let mut pace = Pace::begin();
                let part = walk.part(&engine, until, since);
                pace.rest();
                part.map(|(first, is_end)| (walk, first, is_end))
            });
            let (back, first, is_end) = match part.await {
                Ok(part) => part?,
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            };
            walk = back;
            work.add(until.get() - first.get());
            (until, from) = (first, first);
            if is_end {
                break;
            }
        }
        let mut matches: Vec<_> = walk.found.into_values().collect();
        let refused = matches.iter().map(|found| found.times).sum();
        matches.sort_by(|a, b| b.times.cmp(&a.times).then_with(|| a.name.cmp(&b.name)));
        matches.truncate(limits::POLICY_KEPT);
        Ok(Simulated { from, to, refused, matches, wrong })
    }
}

/// Rules, and what they would have refused so far.
struct Walk {
    set: RuleSet,
    own: ruma::OwnedServerName,
    found: HashMap<(PolicyArea, String, Offset), SimulatedMatch>,
}

impl Walk {
    /// Looks at the records before `until`. Returns the first one, and whether those before it are
    /// from before the moment.
    fn part(
        &mut self,
        engine: &Engine,
        until: Offset,
        since: Moment,
    ) -> Result<(Offset, bool), ReadError> {
        let first = Offset::new(until.get().saturating_sub(RECORDS).max(1));
        let count = usize::try_from(until.get() - first.get()).unwrap_or(usize::MAX);
        let mut last = until;
        for record in engine.log().read(first, count)?.into_iter().rev() {
            let is_before = match since {
                Moment::At(offset) => record.offset() <= offset,
                Moment::Time(ms) | Moment::Ago(ms) => record.header.time_ms < ms,
            };
            if is_before {
                return Ok((last, true));
            }
            last = record.offset();
            self.look(&record);
        }
        Ok((first, false))
    }

    fn look(&mut self, record: &Record) {
        if record.header.origin.import().is_some() {
            return;
        }
        let offset = record.offset();
        match record.command() {
            Ok(Some(Command::UserRegister(body))) => {
                self.try_on(PolicyArea::Registration, Subject::of_user(&body.user_id), offset);
            }
            Ok(Some(Command::RoomEvent(body))) => {
                let received = body.received.as_ref().map(|received| received.from.clone());
                if let Some(from) = received {
                    self.try_on(PolicyArea::Federation, Subject::of_server(&from), offset);
                }
                if let Ok(event) = StoredEvent::new(offset, body) {
                    self.look_at_event(&event);
                }
            }
            Ok(Some(Command::RoomVisibility(body))) if body.public => {
                let subject = Subject::default().in_room(&body.room_id);
                self.try_on(PolicyArea::Directory, subject, offset);
            }
            _ => {}
        }
    }

    fn look_at_event(&mut self, event: &StoredEvent) {
        let Some((target, membership)) = event.membership() else { return };
        let is_own = |user_id: &UserId| *user_id.server_name() == *self.own;
        match membership {
            MembershipState::Invite if is_own(target) => {
                let subject = Subject::of_user(&event.sender).in_room(&event.room_id);
                self.try_on(PolicyArea::Invites, subject, event.offset);
            }
            MembershipState::Join | MembershipState::Knock if event.sender == *target => {
                let subject = Subject::of_user(target).in_room(&event.room_id);
                self.try_on(PolicyArea::Joins, subject, event.offset);
            }
            _ => {}
        }
    }

    fn try_on(&mut self, area: PolicyArea, subject: Subject<'_>, at: Offset) {
        let own: &ServerName = &self.own;
        let Some(Found { name, rule, .. }) = self.set.find(own, subject) else { return };
        let new =
            || SimulatedMatch { area, name: name.clone(), rule, times: 0, first: at, last: at };
        let found = self.found.entry((area, name.clone(), rule)).or_insert_with(new);
        // The walk goes from the end to the beginning.
        found.first = at;
        found.times += 1;
    }
}
