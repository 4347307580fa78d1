//! What is to be done about an event, as its moment has it: the rules, the name and the power
//! levels of then.

use std::{collections::BTreeSet, sync::Arc};

use ruma::{OwnedUserId, UserId, events::StateEventType};
use serde::{Deserialize, de::IgnoredAny};
use tracing::warn;

use super::{
    Extent, Glob, Judgement, Levels, Moment, Outcome, Rules, Steps, Subject, Text, ruleset,
};
use crate::{
    base::limits,
    log::ReadError,
    read::events::{Derived, EventRef, EventStore, StoredEvent},
    record::{Command, Offset},
    state::{RelatesTo, Room, State, reads::Thread, relations::THREAD},
};

/// How many relations are followed to find the thread of an event (client-server API, "Receiving
/// notifications").
const HOPS: usize = 3;

/// Judges events of one room for one user.
#[derive(Clone, Copy, Debug)]
pub struct Judge<'a> {
    /// The projections.
    pub state: &'a State,
    /// The bodies.
    pub events: &'a EventStore,
    /// The user.
    pub user_id: &'a UserId,
    /// The room.
    pub room: &'a Room,
}

impl Judge<'_> {
    /// What is to be done about `event`: nothing if no rule matches, or if it is the user's own or
    /// of one whom they ignored.
    ///
    /// # Errors
    /// When the log cannot be read.
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
        let moment = At { judge: *self, at };
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
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn thread(&self, event: &EventRef) -> Result<Thread, ReadError> {
        let mut current = Arc::clone(event);
        for _ in 0..=HOPS {
            let Some(relation) = RelatesTo::of(&current.content) else { return Ok(Thread::Main) };
            let target = <&ruma::EventId>::try_from(&*relation.event_id).ok();
            let target = target.and_then(|id| self.state.event_in_room(&self.room.id, id));
            // What relates to an event that is not there, or not yet, is in no thread.
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

    /// The user's rules, of which the record at `kept` holds what they have changed.
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
        self.events.derived(levels.unwrap_or(self.room.created), || {
            let create = self.events.get(self.room.created)?;
            let levels = levels.map(|levels| self.events.get(levels)).transpose()?.flatten();
            Ok(Levels::new(&self.room.rules.authorization, create, levels))
        })
    }
}

/// The moment of an event, as the projections have it.
struct At<'a> {
    judge: Judge<'a>,
    at: Offset,
}

impl Moment for At<'_> {
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

/// A display name as a pattern; none if there is none.
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

/// Whom a user ignores (client-server API, "Ignoring Users").
#[derive(Debug, Default)]
pub struct Ignored(BTreeSet<OwnedUserId>);

impl Ignored {
    /// The users.
    #[must_use]
    pub const fn users(&self) -> &BTreeSet<OwnedUserId> {
        &self.0
    }

    /// Whether what `user_id` sends is kept from the user.
    #[must_use]
    pub fn contains(&self, user_id: &UserId) -> bool {
        self.0.contains(user_id)
    }
}

impl Derived for Ignored {
    fn weight(&self) -> u64 {
        64 * (1 + self.0.len()) as u64
    }
}

/// The type of the account data that says whom a user ignores.
const IGNORED: &str = "m.ignored_user_list";

/// Whom `user_id` ignores as of `at`. Nobody can ignore themselves.
///
/// # Errors
/// When the log cannot be read.
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

/// Whom `user_id` ignores, as the record at `list` has it.
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
