//! Undo what an earlier record did.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_base::{background::Pace, threads};
use logcabin_decide::{Commit, Proposal as _, Refusal, undo};
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_record::{Command, Offset, Origin, command::ProfileSet};
use logcabin_service::accounts::profile;

/// How many records are read at a time.
const RECORDS: u64 = 1024;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Undo {
    /// The number of the record.
    pub record: Offset,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undone {
    pub record: Offset,
    /// What is so now, in a sentence.
    pub now: String,
}

impl Act for Undo {
    const NAME: &'static str = "undo";
    const DONE: &'static str = "undone";
    type Done = Undone;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Undo",
        fields: &[Field::new("record", "Record", Kind::Number)],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Undone, ActError> {
        let Attribution { origin, reason } = by;
        let undo = self.proposal(context, reason).await?;
        let user_id = match &undo.command {
            Command::ProfileSet(ProfileSet { user_id, .. }) => Some(user_id.clone()),
            _ => None,
        };
        let undone = context.engine.propose(origin.clone(), undo).await;
        let now = undone.map_err(ActError::of_room)?.into_inner();
        if let Some(user_id) = user_id {
            profile::spread(&context.engine, &origin, &user_id).await;
        }
        Ok(Undone { record: self.record, now })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let undo = self.proposal(context, None).await?;
        let env = context.engine.env();
        let mut commit = Commit::new(&env, &undo.stream());
        match commit.take(&undo, &Origin::server()) {
            Ok(now) => Ok(vec![now]),
            // The policy server of a room is only asked about what is sent.
            Err(Refusal::SignatureMissing) => Ok(vec![
                "the state of the room is as before, if its policy server agrees".to_owned(),
            ]),
            Err(refusal) => Err(ActError::of_room(refusal.into())),
        }
    }
}

impl Undo {
    async fn proposal(
        &self,
        context: &ActContext,
        reason: Option<String>,
    ) -> Result<undo::Undo, ActError> {
        let (record, engine) = (self.record, &context.engine);
        let is_there = record > Offset::ZERO && record <= engine.head().offset();
        let found = if is_there { engine.log().get(record)? } else { None };
        let none = || ActError::Invalid(format!("There is no record {record}."));
        let found = found.ok_or_else(none)?;
        if found.header.origin.import().is_some() {
            // It says what was so at the source, not what changed.
            return Err(ActError::invalid("An imported record cannot be undone."));
        }
        let erased = || ActError::Invalid(format!("The content of record {record} is erased."));
        let command = engine.events().command(record)?.ok_or_else(erased)?;
        if let Some(later) = later(Arc::clone(engine), record, &command).await? {
            return Err(ActError::Invalid(format!("Record {later} has changed this since.")));
        }
        let ts = engine.clock().timestamp();
        Ok(undo::Undo { record, command, reason, ts })
    }
}

/// The last record after this one that changed the same thing, for commands of which the state does
/// not tell: it knows how an account stands, for example, but not since when.
async fn later(
    engine: Arc<Engine>,
    record: Offset,
    command: &Command,
) -> Result<Option<Offset>, ReadError> {
    let is_known = !matches!(
        command,
        Command::UserStatus(_)
            | Command::RoomBlock(_)
            | Command::MediaQuarantine(_)
            | Command::MediaProtect(_)
            | Command::ReportRemove(_)
    );
    if is_known {
        return Ok(None);
    }
    let (command, kind) = (command.clone(), command.kind().name);
    let searching = threads::spawn_blocking(move || {
        let mut until = engine.head().offset();
        while until > record {
            // Reading the log must not slow others down.
            let mut pace = Pace::begin();
            let from = Offset::new(until.get().saturating_sub(RECORDS).max(record.get()) + 1);
            let count = usize::try_from(until.get() + 1 - from.get()).unwrap_or(usize::MAX);
            for other in engine.log().read(from, count)?.iter().rev() {
                if *other.header.kind == *kind
                    && let Ok(Some(later)) = other.command()
                    && is_about_the_same(&command, &later)
                {
                    return Ok(Some(other.offset()));
                }
            }
            until = from.prev();
            pace.rest();
        }
        Ok(None)
    });
    match searching.await {
        Ok(found) => found,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// Whether two commands of one kind change the same thing.
fn is_about_the_same(one: &Command, other: &Command) -> bool {
    match (one, other) {
        (Command::UserStatus(one), Command::UserStatus(other)) => {
            let both = |of: Option<bool>, other: Option<bool>| of.is_some() && other.is_some();
            one.user_id == other.user_id
                && (both(one.admin, other.admin)
                    || both(one.locked, other.locked)
                    || both(one.suspended, other.suspended)
                    || both(one.shadow_banned, other.shadow_banned))
        }
        (Command::RoomBlock(one), Command::RoomBlock(other)) => one.room_id == other.room_id,
        (Command::MediaQuarantine(one), Command::MediaQuarantine(other)) => {
            one.media_ids.iter().any(|id| other.media_ids.contains(id))
                || one.remote.iter().any(|address| other.remote.contains(address))
        }
        (Command::MediaProtect(one), Command::MediaProtect(other)) => {
            one.media_id == other.media_id
        }
        (Command::ReportRemove(one), Command::ReportRemove(other)) => one.report == other.report,
        _ => false,
    }
}
