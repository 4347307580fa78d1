//! The policy lists that this server applies.

use ruma::{OwnedEventId, OwnedRoomId};
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_base::{background::at_length, limits};
use logcabin_log::ReadError;
use logcabin_read::policy_lists::RuleText;
use logcabin_record::{Offset, command::PolicyArea};
use logcabin_state::{HeldRule, Subscription};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListPolicyLists {}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyListsShown {
    /// In the order in which they are looked up.
    pub lists: Vec<PolicyList>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyList {
    pub room_id: OwnedRoomId,
    pub name: Option<String>,
    /// Whether a user of this server is in the room: otherwise nothing of it comes here.
    pub is_joined: bool,
    pub areas: Vec<PolicyArea>,
    pub order: u32,
    pub except: Vec<String>,
    pub takedowns: bool,
    pub hold_above: u64,
    /// The record that made the subscription, or changed it last.
    pub record: Offset,
    /// How many rules it has about users, rooms and homeservers, and that cannot be used.
    pub users: usize,
    pub rooms: usize,
    pub servers: usize,
    pub unusable: usize,
    /// How many rules have not been looked at yet. They are not applied.
    pub new: usize,
    /// How many rules wait for approval, and the first of them.
    pub waiting: usize,
    pub waiting_rules: Vec<WaitingRule>,
}

/// A rule that waits for approval.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WaitingRule {
    pub event_id: OwnedEventId,
    pub record: Offset,
    pub entity: Option<String>,
    pub recommendation: String,
    pub reason: Option<String>,
    /// How many users and rooms of this server it would hit.
    pub hits: u64,
}

impl Act for ListPolicyLists {
    const NAME: &'static str = "list-policy-lists";
    const DONE: &'static str = "policy-lists";
    type Done = PolicyListsShown;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Self::Done, ActError> {
        Ok(PolicyListsShown { lists: lists(context)? })
    }
}

/// The lists, in the order in which they are looked up.
pub fn lists(context: &ActContext) -> Result<Vec<PolicyList>, ReadError> {
    at_length(|| {
        let state = context.engine.state();
        context.engine.events().policy_lists().refresh(&state, context.engine.events())?;
        let rooms = state.policy_lists.in_order();
        let lists = rooms.iter().filter_map(|room_id| state.policy_lists.get(room_id));
        lists.map(|list| shown(context, &list)).collect()
    })
}

pub(super) fn shown(
    context: &ActContext,
    subscription: &Subscription,
) -> Result<PolicyList, ReadError> {
    let (state, events) = (context.engine.state(), context.engine.events());
    let Subscription { room_id, offset, areas, order, except, takedowns, hold_above, held, .. } =
        subscription.clone();
    let (rules, new) = events.policy_lists().counts(&state, &room_id);
    let room = state.rooms.get(&room_id);
    let own = &context.engine.env().server.name;
    let first = held.iter().take(limits::CONSOLE_ROWS);
    Ok(PolicyList {
        name: room.as_ref().map_or(Ok(None), |room| {
            let event_type = ruma::events::StateEventType::RoomName;
            events.state_text(room, &event_type, "name", Offset::MAX)
        })?,
        is_joined: room.is_some_and(|room| room.has_server(own)),
        room_id,
        areas: areas.into_iter().collect(),
        order,
        except,
        takedowns,
        hold_above,
        record: offset,
        users: rules.users,
        rooms: rules.rooms,
        servers: rules.servers,
        unusable: rules.unusable,
        new,
        waiting: held.len(),
        waiting_rules: first
            .map(|(record, held)| waiting_rule(context, *record, held))
            .collect::<Result<_, _>>()?,
    })
}

pub(super) fn waiting_rule(
    context: &ActContext,
    record: Offset,
    held: &HeldRule,
) -> Result<WaitingRule, ReadError> {
    let event = context.engine.events().get(record)?;
    let text = event.map(|event| RuleText::of(&event)).unwrap_or_default();
    Ok(WaitingRule {
        event_id: held.event_id.clone(),
        record,
        entity: text.entity,
        recommendation: text.recommendation,
        reason: text.reason,
        hits: held.hits,
    })
}
