//! Redact what a user of this homeserver or another sent: messages and joins.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId};
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
    rooms::SAY_BYTES,
};
use logcabin_base::clock::random_letters;
use logcabin_decide::redaction::BeginRedaction;
use logcabin_record::{Offset, command::UserRedact};
use logcabin_service::{
    orders::OrderError,
    redactions,
    sent::{SentKind, SentQuery, SentSearch},
};
use logcabin_state::UserRedaction;

/// The most rooms that one order names.
const ROOMS: usize = 1000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RedactUser {
    pub user: String,
    /// Only in these rooms; none means in all.
    #[serde(default)]
    pub rooms: Vec<String>,
    /// Only this many of the latest events in each room.
    #[serde(default)]
    pub limit: Option<u64>,
    /// Only what was sent between these times, in milliseconds since the Unix epoch.
    #[serde(default)]
    pub after_ms: Option<u64>,
    #[serde(default)]
    pub before_ms: Option<u64>,
    /// A user of this server in whose name it is done where they may; the default is the sender.
    #[serde(default)]
    pub by: Option<String>,
    /// The reason that the rooms are told.
    #[serde(default)]
    pub say: Option<String>,
    /// Whether to answer only at the end.
    pub wait: bool,
}

/// How far such a redaction has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedactionStatus {
    pub id: String,
    pub user_id: OwnedUserId,
    pub complete: bool,
    /// The number of redacted events, at the end.
    pub redacted: u64,
    /// The number of events that could not be redacted, at the end.
    pub failures: u64,
    /// Some of them, each with the reason.
    pub failed: BTreeMap<OwnedEventId, String>,
}

impl Act for RedactUser {
    const NAME: &'static str = "redact-user";
    const DONE: &'static str = "user-redacted";
    type Done = RedactionStatus;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Redact what a user sent",
        fields: &[
            Field::new("user", "User", Kind::Text),
            Field::new("rooms", "Only in these rooms", Kind::Words),
            Field::new(
                "limit",
                "Only so many of the latest events in each room",
                Kind::NumberIfAny,
            ),
            Field::new("say", "Reason that the rooms are told", Kind::TextIfAny),
            Field::new("wait", "Wait", Kind::Fixed("false")),
        ],
        is_final: true,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Self::Done, ActError> {
        let wait = self.wait;
        let order = self.order(context)?;
        let (id, user_id) = (order.id.clone(), order.user_id.clone());
        context.propose(by, BeginRedaction(order)).await.map_err(ActError::of_room)?;
        let gone = || ActError::Invalid(format!("What {user_id} sent is not redacted any more."));
        let redaction = context.engine.state().redactions.get(&id).ok_or_else(gone)?;
        let engine = Arc::clone(&context.engine);
        let work = tokio::spawn(async move {
            let done = redactions::go_on(&engine, redaction).await;
            if let Err(error) = &done {
                tracing::warn!(%error, "the redaction of what a user sent resumes at the next start");
            }
            done
        });
        if wait {
            work.await.map_err(ActError::invalid)?.map_err(|error| match error {
                OrderError::Propose(error) => ActError::Propose(error),
                OrderError::Read(error) => ActError::Read(error),
            })?;
        }
        redaction_status(context, &id).ok_or_else(gone)
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let order = self.order(context)?;
        let UserRedact { user_id, rooms, limit, after_ms, before_ms, .. } = order;
        let engine = &context.engine;
        let until = engine.state().applied().next();
        let (of, rooms) = (user_id.clone(), rooms.into_iter().collect());
        let kind = SentKind::Said;
        let query = SentQuery { user_id: of, kind, rooms, limit, after_ms, before_ms };
        let mut search = SentSearch::new(query, until);
        let (mut events, mut rooms) = (0, BTreeSet::new());
        while let Some((rest, sent)) = search.next(engine).await? {
            search = rest;
            let state = engine.state();
            for event in sent {
                let room = state.rooms.get(&event.room_id);
                if room.is_some_and(|room| room.redaction_of(event.offset, Offset::MAX).is_none()) {
                    events += 1;
                    rooms.insert(event.room_id);
                }
            }
        }
        if events == 0 {
            return Ok(Vec::new());
        }
        Ok(vec![format!(
            "the content of {events} event(s) that {user_id} sent in {} room(s) is removed, in \
             their name or that of a user of this server who may, here and on the homeservers that \
             follow",
            rooms.len()
        )])
    }
}

impl RedactUser {
    /// The order as it is recorded.
    fn order(&self, context: &ActContext) -> Result<UserRedact, ActError> {
        let Self { user, rooms, limit, after_ms, before_ms, by, say, wait: _ } = self;
        if say.as_ref().is_some_and(|say| say.len() > SAY_BYTES) {
            let why = format!("What the rooms are told has at most {SAY_BYTES} bytes.");
            return Err(ActError::Invalid(why));
        }
        if rooms.len() > ROOMS {
            return Err(ActError::Invalid(format!("At most {ROOMS} rooms are named.")));
        }
        if *limit == Some(0) {
            return Err(ActError::invalid("The limit is greater than 0."));
        }
        let rooms: BTreeSet<OwnedRoomId> = rooms
            .iter()
            .map(|room| Ok(context.room(room)?.id.clone()))
            .collect::<Result<_, ActError>>()?;
        Ok(UserRedact {
            id: random_letters(16),
            user_id: context.user_anywhere(user)?,
            rooms: rooms.into_iter().collect(),
            limit: *limit,
            after_ms: *after_ms,
            before_ms: *before_ms,
            by: by.as_ref().map(|by| context.active(by)).transpose()?,
            say: say.clone(),
        })
    }
}

/// How far the redaction of this id has come, if it is known.
pub fn redaction_status(context: &ActContext, id: &str) -> Option<RedactionStatus> {
    let redaction = context.engine.state().redactions.get(id)?;
    let UserRedaction { id, user_id, ended, .. } = redaction;
    let complete = ended.is_some();
    let done = ended.map(|done| (done.redacted, done.failures, done.failed));
    let (redacted, failures, failed) = done.unwrap_or_default();
    Some(RedactionStatus { id, user_id, complete, redacted, failures, failed })
}
