//! Evaluates push rules for an event, with the rules, display name and power levels at that time.

use std::{collections::BTreeSet, sync::Arc};

use ruma::{OwnedUserId, UserId, events::StateEventType};
use serde::{Deserialize, de::IgnoredAny};
use tracing::warn;

use super::{
    EventContext, Extent, Glob, Judgement, Levels, Outcome, Rules, Steps, Subject, Text, ruleset,
};
use crate::events::{Derived, EventRef, EventStore, StoredEvent};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_record::{Command, Offset};
use logcabin_state::{RelatesTo, Room, State, reads::Thread, relations::THREAD};

/// How many relations are followed to find an event's thread (client-server API, "Receiving
/// notifications").
const HOPS: usize = 3;

/// Evaluates events of one room for one user.
#[derive(Clone, Copy, Debug)]
pub struct Judge<'a> {
    pub state: &'a State,
    pub events: &'a EventStore,
    pub user_id: &'a UserId,
    pub room: &'a Room,
}

impl Judge<'_> {
    /// The outcome for `event`: `None` if no rule matches, or if the user or somebody they ignored
    /// sent it.
    pub fn outcome(&self, event: &EventRef) -> Result<Option<Arc<Outcome>>, ReadError> {
        let at = event.offset;
        if event.sender == self.user_id {
            return Ok(None);
        }
        let Some(account) = self.state.accounts.get(self.user_id) else { return Ok(None) };
        let (ignored, rules) = {
            let account = account.read();
            let data = |event_type| account.account_data_at(None, event_type, at);
            (data(IGNORED), data(ruleset::EVENT_TYPE))
        };
        if let Some(list) = ignored
            && ignored_by(self.events, self.user_id, list)?.contains(&event.sender)
        {
            return Ok(None);
        }
        let rules = self.rules(rules)?;
        let subject = self.events.derived(at, || Ok(Subject::new(event)))?;
        let moment = EventAt { judge: *self, at };
        let judgement = rules.judge(&subject, &event.sender, &self.room.id, &moment)?;
        if let Judgement::Exhausted { first: true } = judgement {
            warn!(
                user_id = %self.user_id,
                event_id = %event.event_id,
                steps = limits::PUSH_STEPS,
                "an event exceeded the budget of a user's push rules and matches none of them; further events are not reported"
            );
        }
        Ok(judgement.outcome().map(Arc::clone))
    }

    /// The conversation that `event` belongs to (client-server API, "Threaded read receipts").
    pub fn thread(&self, event: &EventRef) -> Result<Thread, ReadError> {
        let mut current = Arc::clone(event);
        for _ in 0..=HOPS {
            let Some(relation) = RelatesTo::of(&current.content) else { return Ok(Thread::Main) };
            let target = <&ruma::EventId>::try_from(&*relation.event_id).ok();
            let target = target.and_then(|id| self.state.event_in_room(&self.room.id, id));
            // An event that relates to a missing or later event is in no thread.
            let Some(target) = target.filter(|target| *target < current.offset) else {
                return Ok(Thread::Main);
            };
            if relation.rel_type == THREAD {
                return Ok(Thread::Root(target));
            }
            match self.events.get(target)? {
                Some(event) => current = event,
                None => return Ok(Thread::Main),
            }
        }
        Ok(Thread::Main)
    }

    /// The user's rules, whose changes are in the record at `kept`.
    fn rules(&self, kept: Option<Offset>) -> Result<Arc<Rules>, ReadError> {
        let Some(kept) = kept else { return Ok(Rules::defaults()) };
        self.events.derived(kept, || {
            let content = match self.events.command(kept)? {
                Some(Command::AccountDataSet(body)) => Some(body.content),
                _ => None,
            };
            let ruleset = ruleset::shown(self.user_id, content.as_deref());
            Ok(Rules::new(&ruleset, self.user_id))
        })
    }

    /// The user's display name in the room as of `at`.
    fn name(&self, at: Offset) -> Result<Option<Arc<Name>>, ReadError> {
        let member = StateEventType::RoomMember;
        let Some(offset) = self.room.state_event(&member, self.user_id.as_str(), at) else {
            return Ok(None);
        };
        let name = || Ok(Name::of(self.events.get(offset)?.as_deref()));
        self.events.derived(offset, name).map(Some)
    }

    fn levels(&self, at: Offset) -> Result<Arc<Levels>, ReadError> {
        let levels = self.room.state_event(&StateEventType::RoomPowerLevels, "", at);
        let first = || self.room.first_event();
        self.events.derived(levels.unwrap_or_else(first), || {
            let create = self.events.get(first())?;
            let levels = levels.map(|levels| self.events.get(levels)).transpose()?.flatten();
            Ok(Levels::new(&self.room.rules.authorization, create, levels))
        })
    }
}

/// The circumstances of an event, read from the projections.
struct EventAt<'a> {
    judge: Judge<'a>,
    at: Offset,
}

impl EventContext for EventAt<'_> {
    fn user_id(&self) -> &UserId {
        self.judge.user_id
    }

    fn members(&self) -> u64 {
        self.judge.room.counts(self.at).joined
    }

    fn is_named_in(&self, text: &Text, steps: &mut Steps) -> Result<bool, ReadError> {
        let name = self.judge.name(self.at)?;
        let name = name.as_ref().and_then(|name| name.0.as_ref());
        Ok(name.is_some_and(|name| name.matches(text, Extent::Words, steps)))
    }

    fn may_notify(&self, sender: &str, key: &str) -> Result<bool, ReadError> {
        Ok(self.judge.levels(self.at)?.may_notify(sender, key))
    }
}

/// A display name as a pattern; empty if there is none.
struct Name(Option<Glob>);

impl Name {
    fn of(member: Option<&StoredEvent>) -> Self {
        #[derive(Deserialize)]
        struct Content {
            displayname: Option<String>,
        }
        let content = member.and_then(|member| member.content_as::<Content>().ok());
        let name = content.and_then(|content| content.displayname);
        Self(name.filter(|name| !name.is_empty()).and_then(|name| Glob::literal(&name)))
    }
}

impl Derived for Name {
    fn weight(&self) -> u64 {
        1024
    }
}

/// The users whom a user ignores (client-server API, "Ignoring Users").
#[derive(Debug, Default)]
pub struct Ignored(BTreeSet<OwnedUserId>);

impl Ignored {
    pub const fn users(&self) -> &BTreeSet<OwnedUserId> {
        &self.0
    }

    /// Whether messages of `user_id` are hidden from the user.
    pub fn contains(&self, user_id: &UserId) -> bool {
        self.0.contains(user_id)
    }
}

impl Derived for Ignored {
    fn weight(&self) -> u64 {
        64 * (1 + self.0.len()) as u64
    }
}

/// The type of the account data with the ignored users.
const IGNORED: &str = "m.ignored_user_list";

/// The users whom `user_id` ignores as of `at`. Users cannot ignore themselves.
pub fn ignored(
    state: &State,
    events: &EventStore,
    user_id: &UserId,
    at: Offset,
) -> Result<Arc<Ignored>, ReadError> {
    let account = state.accounts.get(user_id);
    let list = account.and_then(|account| account.read().account_data_at(None, IGNORED, at));
    list.map_or_else(|| Ok(Arc::default()), |list| ignored_by(events, user_id, list))
}

/// The users whom `user_id` ignores, according to the record at `list`.
fn ignored_by(
    events: &EventStore,
    user_id: &UserId,
    list: Offset,
) -> Result<Arc<Ignored>, ReadError> {
    #[derive(Deserialize)]
    struct Content {
        ignored_users: std::collections::BTreeMap<OwnedUserId, IgnoredAny>,
    }
    events.derived(list, || {
        let Some(Command::AccountDataSet(body)) = events.command(list)? else {
            return Ok(Ignored::default());
        };
        let content: Option<Content> = serde_json::from_str(body.content.get()).ok();
        let mut users: BTreeSet<_> =
            content.map(|content| content.ignored_users.into_keys().collect()).unwrap_or_default();
        users.remove(user_id);
        Ok(Ignored(users))
    })
}
