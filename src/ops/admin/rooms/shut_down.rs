//! Make everyone leave a room.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::shutdown::{self, ShutdownStatus};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_base::clock::random_letters;
use logcabin_decide::moderation::BeginShutdown;
use logcabin_record::{Offset, command::Replacement};
use logcabin_service::erasure::purge::PurgeError;
use logcabin_state::{Membership, Room};

/// The longest name of a replacement, in bytes: a line.
const NAME_BYTES: usize = 255;

/// The longest message in a replacement, in bytes: a page.
const MESSAGE_BYTES: usize = 16 * 1024;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShutDownRoom {
    pub room: String,
    pub block: bool,
    pub new_room: Option<NewRoom>,
    /// Whether to purge the room at the end.
    #[serde(default)]
    pub purge: bool,
    /// Whether to answer only at the end.
    pub wait: bool,
}

/// The replacement, to which members and aliases move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewRoom {
    /// The creator.
    pub user: String,
    pub name: String,
    /// The first message in it.
    pub message: String,
}

impl Act for ShutDownRoom {
    const NAME: &'static str = "shut-down-room";
    const DONE: &'static str = "shut-down";
    type Done = ShutdownStatus;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Shut down a room",
        fields: &[
            Field::new("room", "Room", Kind::Text),
            Field::new("block", "Block it", Kind::Flag),
            Field::new("purge", "Purge it at the end", Kind::Flag),
            Field::new("wait", "Wait", Kind::Fixed("false")),
        ],
        is_final: true,
        foretells: true,
    });

    async fn perform(
        self,
        context: &ActContext,
        by: Attribution,
    ) -> Result<ShutdownStatus, ActError> {
        let Self { room, block, new_room, purge, wait } = self;
        let (room, replacement) = plan(context, &room, new_room)?;
        let (id, room_id) = (random_letters(16), room.id.clone());
        drop(room);
        let Attribution { origin, reason } = by;
        let begin = BeginShutdown {
            id: id.clone(),
            room_id: room_id.clone(),
            block,
            replacement,
            purge,
            reason,
        };
        let begun = context.engine.propose(origin.clone(), begin).await;
        begun.map_err(ActError::of_room)?.into_inner();
        let no_room = || ActError::NoRoom(room_id.to_string());
        let shutdown = context.engine.state().closures.shutdown(&id).ok_or_else(no_room)?;
        let engine = Arc::clone(&context.engine);
        let steps = tokio::spawn(async move {
            let gone = shutdown::go_on(&engine, &origin, shutdown).await;
            if let Err(error) = &gone {
                tracing::warn!(%error, "the shutdown of a room resumes at the next start");
            }
            gone
        });
        if wait {
            steps.await.map_err(ActError::invalid)?.map_err(|error| match error {
                PurgeError::Propose(error) => ActError::of_room(error),
                error => error.into(),
            })?;
        }
        shutdown::of_id(context, &id).ok_or_else(no_room)
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let (room, replacement) = plan(context, &self.room, self.new_room.clone())?;
        let counts = room.counts(Offset::MAX);
        let knocking = room.members(Membership::Knock, Offset::MAX).len();
        let aliases = context.engine.state().aliases.of_room(&room.id, Offset::MAX);
        let mut effect = vec![format!("{} member(s) leave {}", counts.joined, room.id)];
        let waiting = counts.invited + u64::try_from(knocking).unwrap_or(u64::MAX);
        if waiting > 0 {
            effect.push(format!("{waiting} invite(s) and knock(s) are withdrawn"));
        }
        for alias in aliases {
            effect.push(match &replacement {
                Some(_) => format!("{alias} points at the new room"),
                None => format!("{alias} is removed"),
            });
        }
        if room.is_public() {
            effect.push("the public directory no longer lists the room".to_owned());
        }
        if let Some(Replacement { creator, name, .. }) = replacement {
            effect.push(format!(
                "{creator} creates a new room, \"{name}\", which all who were in it join"
            ));
        }
        if self.block {
            effect.push("nobody can join, knock or be invited any more".to_owned());
        }
        if self.purge {
            effect.push("the room is purged, with all that was ever said in it".to_owned());
        }
        Ok(effect)
    }
}

/// Finds the room, and settles the details of its replacement.
fn plan(
    context: &ActContext,
    room: &str,
    new_room: Option<NewRoom>,
) -> Result<(Arc<Room>, Option<Replacement>), ActError> {
    let room = context.room(room)?;
    let Some(NewRoom { user, name, message }) = new_room else { return Ok((room, None)) };
    let creator = context.user_id(&user)?;
    if context.engine.state().accounts.is_deactivated(&creator) {
        return Err(ActError::Deactivated(creator));
    }
    if name.is_empty() || name.len() > NAME_BYTES || message.len() > MESSAGE_BYTES {
        let why = format!(
            "The name of a room has 1 to {NAME_BYTES} bytes, its message at most {MESSAGE_BYTES}."
        );
        return Err(ActError::Invalid(why));
    }
    let room_id = context.new_room_id()?;
    Ok((room, Some(Replacement { room_id, creator, name, message })))
}
