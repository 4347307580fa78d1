//! Apply the rules of a policy list, or apply them in another way.

use ruma::OwnedRoomId;
use serde::{Deserialize, Serialize};

use super::list::{PolicyList, shown};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_base::background::at_length;
use logcabin_decide::policy_list::Subscribe;
use logcabin_record::{
    Offset,
    command::{PolicyArea, PolicySubscribe},
};
use logcabin_service::policy_lists::{self, PolicyListError};
use logcabin_state::Subscription;

/// What rules are applied to unless the operator says so: not to all federation, which an error in
/// a list could end.
const AREAS: [PolicyArea; 5] = [
    PolicyArea::Invites,
    PolicyArea::Joins,
    PolicyArea::Registration,
    PolicyArea::Directory,
    PolicyArea::Media,
];

/// How many local users and rooms a list may hit before its rules wait for approval.
const HOLD_ABOVE: u64 = 10;

/// What is left out is as by default, also for a list that is applied already.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SubscribePolicyList {
    /// The room with the rules.
    pub room: String,
    /// What they are applied to: `invites`, `joins`, `registration`, `directory`, `media`,
    /// `federation`. By default all but the last.
    #[serde(default)]
    pub areas: Vec<String>,
    /// Lists with a lower number come first.
    #[serde(default)]
    pub order: Option<u32>,
    /// Globs of users, homeservers and rooms that no rule of the list is applied to.
    #[serde(default)]
    pub except: Vec<String>,
    /// Whether `m.takedown` is applied like `m.ban`.
    #[serde(default)]
    pub takedowns: bool,
    /// How many local users and rooms the rules may hit before further ones wait for approval.
    #[serde(default)]
    pub hold_above: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Subscribed {
    pub changed: bool,
    pub list: PolicyList,
}

impl SubscribePolicyList {
    fn payload(&self, context: &ActContext) -> Result<PolicySubscribe, ActError> {
        let area = |name: &String| {
            PolicyArea::named(name).ok_or_else(|| {
                let names = PolicyArea::ALL.map(PolicyArea::name).join(", ");
                ActError::Invalid(format!("`{name}` is none of: {names}."))
            })
        };
        let mut areas = self.areas.iter().map(area).collect::<Result<Vec<_>, _>>()?;
        if areas.is_empty() {
            areas = AREAS.to_vec();
        }
        areas.sort_unstable();
        areas.dedup();
        Ok(PolicySubscribe {
            room_id: context.room_id(&self.room)?,
            areas,
            order: self.order.unwrap_or(0),
            except: self.except.clone(),
            takedowns: self.takedowns,
            hold_above: self.hold_above.unwrap_or(HOLD_ABOVE),
        })
    }
}

impl Act for SubscribePolicyList {
    const NAME: &'static str = "subscribe-policy-list";
    const DONE: &'static str = "policy-list-subscribed";
    type Done = Subscribed;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Apply a policy list",
        fields: &[
            Field::new("room", "Room with the rules", Kind::Text),
            Field::new(
                "areas",
                "Apply to (invites joins registration directory media federation)",
                Kind::Words,
            ),
            Field::new("order", "Order (lower comes first)", Kind::NumberIfAny),
            Field::new("except", "Except these (patterns of ids and names)", Kind::Words),
            Field::new("takedowns", "Apply takedowns like bans", Kind::Flag),
            Field::new(
                "hold_above",
                "Users and rooms here that it may hit before rules wait for approval",
                Kind::NumberIfAny,
            ),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Subscribed, ActError> {
        let payload = self.payload(context)?;
        let room_id = payload.room_id.clone();
        let changed = context.propose(by, Subscribe(payload)).await.map_err(ActError::of_room)?;
        update(context).await?;
        let list = context.engine.state().policy_lists.get(&room_id);
        let list = list.map(|list| at_length(|| shown(context, &list))).transpose()?;
        let list = list.ok_or_else(|| ActError::invalid("it was given up meanwhile"))?;
        Ok(Subscribed { changed, list })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let payload = self.payload(context)?;
        let state = context.engine.state();
        let now = state.policy_lists.get(&payload.room_id);
        let areas: Vec<_> = payload.areas.iter().map(|area| area.name()).collect();
        let mut effect = Vec::new();
        let subscription = subscription(payload, now);
        let room_id = subscription.room_id.clone();
        let lists = context.engine.events().policy_lists();
        let (rules, waiting) =
            at_length(|| lists.preview(&state, context.engine.events(), subscription))?;
        effect.push(format!(
            "{} rule(s) about users, {} about rooms and {} about homeservers in {room_id} are \
             applied to {}",
            rules.users,
            rules.rooms,
            rules.servers,
            areas.join(", ")
        ));
        if waiting > 0 {
            effect.push(format!(
                "{waiting} of them wait until somebody approves them: they would hit too many \
                 users and rooms of this server"
            ));
        }
        let is_here = |room: std::sync::Arc<logcabin_state::Room>| {
            room.has_server(&context.engine.env().server.name)
        };
        if !state.rooms.get(&room_id).is_some_and(is_here) {
            effect.push(format!(
                "nobody of this server is in {room_id}: its rules come, and change, only once \
                 somebody has joined"
            ));
        }
        Ok(effect)
    }
}

/// The subscription that a record would make.
fn subscription(payload: PolicySubscribe, now: Option<Subscription>) -> Subscription {
    let PolicySubscribe { room_id, areas, order, except, takedowns, hold_above } = payload;
    let approved = now.map(|now| now.approved).unwrap_or_default();
    Subscription {
        room_id,
        offset: Offset::MAX,
        changed: Offset::MAX,
        areas: areas.into_iter().collect(),
        order,
        except,
        takedowns,
        hold_above,
        judged: Default::default(),
        applied: Default::default(),
        held: Default::default(),
        approved,
    }
}

/// Has the rules applied as they are recorded now.
pub(super) async fn update(context: &ActContext) -> Result<(), ActError> {
    policy_lists::update(&context.engine).await.map_err(|error| match error {
        PolicyListError::Read(error) => error.into(),
        PolicyListError::Propose(error) => error.into(),
    })
}

/// The list that an order names by its room.
pub(super) fn subscribed(context: &ActContext, room: &str) -> Result<OwnedRoomId, ActError> {
    let room_id = context.room_id(room)?;
    match context.engine.state().policy_lists.get(&room_id) {
        Some(_) => Ok(room_id),
        None => {
            Err(ActError::Invalid(format!("This server does not apply the rules of {room_id}.")))
        }
    }
}
