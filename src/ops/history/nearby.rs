//! Explains a value from a bounded number of records. The projections know which records changed a
//! room's state, its entry in the directory, an alias, a read position, and a user's password,
//! devices, profile and account data. What they do not know is searched for in the records before
//! a moment.

use std::sync::Arc;

use ruma::{EventId, RoomAliasId, RoomId, ServerName, UserId, events::StateEventType};

use super::{
    History, HistoryError,
    step::Step,
    unread::unread,
    why::{Chain, Fact, Subject},
};
use logcabin_base::limits;
use logcabin_record::{Offset, Record};
use logcabin_state::Room;

/// How much is read for one answer.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Records about the value.
    pub steps: usize,
    /// Records that are examined when the projections do not know them.
    pub examined: usize,
}

/// Part of the history of a value.
#[derive(Clone, Debug)]
pub struct Nearby {
    /// The records, oldest first.
    pub steps: Vec<Step>,
    /// The last record of the part before this one, if there is one.
    pub left: Option<Offset>,
    /// Whether all records since `left` that changed the value are known. Otherwise the records
    /// after it were examined.
    pub is_known: bool,
}

/// The newest records up to the moment of `history` that made the value of `subject` what it is.
pub fn nearby(
    history: &History<'_>,
    subject: &Subject,
    bounds: Bounds,
) -> Result<Nearby, HistoryError> {
    if let Subject::Unread { room, user } = subject {
        return counted(history, room, user, bounds);
    }
    let mut chain = Chain::new(history, subject)?;
    let end = history.end();
    if let Some(mut offsets) = known(history, subject, &chain) {
        offsets.retain(|offset| *offset <= end);
        offsets.sort_unstable();
        offsets.dedup();
        let before = offsets.len().saturating_sub(bounds.steps);
        let left = before.checked_sub(1).and_then(|index| offsets.get(index).copied());
        offsets.drain(..before);
        if let Some(room) = disputed(history, subject, &chain) {
            // Events that state resolution did not let take effect are not among the changes.
            let from = offsets.first().map_or(Offset::ZERO, |first| first.prev());
            offsets.extend(room.events_backward(end, from, bounds.examined));
            offsets.sort_unstable();
            offsets.dedup();
        }
        history.source().fetch(&offsets, |record| chain.take(&record))?;
        let steps = chain.steps(history, limits::CONSOLE_EXPLAINED)?;
        return Ok(Nearby { steps, left, is_known: true });
    }
    let examined = u64::try_from(bounds.examined).unwrap_or(u64::MAX);
    let from = Offset::new(end.get().saturating_sub(examined)).next();
    let until_end = |record: &Result<Record, _>| {
        record.as_ref().map_or(true, |record: &Record| record.offset() <= end)
    };
    for record in history.source().records(from)?.take_while(until_end) {
        chain.take(&record?)?;
    }
    let left = Some(from.prev()).filter(|left| *left > Offset::ZERO);
    let steps = chain.steps(history, limits::CONSOLE_EXPLAINED)?;
    Ok(Nearby { steps, left, is_known: false })
}

/// Why a count of unread notifications is what it is: first the read position, because events after
/// it may count, then those that do.
fn counted(
    history: &History<'_>,
    room: &str,
    user: &str,
    bounds: Bounds,
) -> Result<Nearby, HistoryError> {
    let read = Subject::Read { room: room.to_owned(), user: user.to_owned() };
    let mut steps = nearby(history, &read, Bounds { steps: 1, ..bounds })?.steps;
    let (room, user_id) = (history.room(room)?, history.user_id(user)?);
    let of_count = unread(history, &room, &user_id, bounds.steps)?;
    let counted = of_count.iter().find(|step| step.after.is_some());
    // If the count was not zero before, an earlier part has the events of that time.
    let more = counted.filter(|step| step.before.as_ref().is_some_and(|count| *count != 0));
    let left = more.map(|step| step.offset.prev());
    steps.extend(of_count);
    steps.sort_by_key(|step| step.offset);
    Ok(Nearby { steps, left, is_known: true })
}

/// The room whose state the value is, if events of other homeservers may have tried to set it
/// without taking effect.
fn disputed(history: &History<'_>, subject: &Subject, chain: &Chain<'_>) -> Option<Arc<Room>> {
    if !matches!(subject, Subject::State { .. } | Subject::Power { .. }) {
        return None;
    }
    let state = history.state();
    let own = state.server()?;
    let own = <&ServerName>::try_from(own.server_name.as_str()).ok()?;
    let room = state.rooms.get(<&RoomId>::try_from(&*chain.place).ok()?)?;
    let knows_others = room.known_servers().iter().any(|server| **server != *own);
    knows_others.then_some(room)
}

/// The records that changed the value, as the projections know them.
fn known(history: &History<'_>, subject: &Subject, chain: &Chain<'_>) -> Option<Vec<Offset>> {
    let (state, at) = (history.state(), history.end());
    let room = || state.rooms.get(<&RoomId>::try_from(&*chain.place).ok()?);
    match subject {
        Subject::State { event_type, .. } => {
            let room = room()?;
            let event_type = StateEventType::from(event_type.as_str());
            let mut offsets = room.state_events_of(&event_type, &chain.user, at);
            let redactions: Vec<_> =
                offsets.iter().filter_map(|offset| room.redaction_of(*offset, at)).collect();
            offsets.extend(redactions);
            Some(offsets)
        }
        Subject::Power { .. } => {
            let room = room()?;
            let mut offsets = room.state_events_of(&StateEventType::RoomCreate, "", at);
            offsets.extend(room.state_events_of(&StateEventType::RoomPowerLevels, "", at));
            Some(offsets)
        }
        Subject::Directory { .. } => Some(room()?.public_changes(at)),
        Subject::Event(event_id) => {
            Some(state.events.candidates(<&EventId>::try_from(&**event_id).ok()?))
        }
        Subject::Alias(alias) => {
            Some(state.aliases.changes(<&RoomAliasId>::try_from(&**alias).ok()?, at))
        }
        Subject::User { fact, .. } => {
            let account = state.accounts.get(<&UserId>::try_from(&*chain.user).ok()?)?;
            let account = account.read();
            let mut offsets: Vec<Offset> = match fact {
                Fact::Password => account.password.changes().map(|(at, _)| at).collect(),
                Fact::Device(id) => {
                    let device = account.devices.iter().find(|(device, _)| *device == id);
                    device?.1.changes().map(|(at, _)| at).collect()
                }
                Fact::Profile(field) => {
                    account.profile.get(field)?.changes.changes().map(|(at, ())| at).collect()
                }
                Fact::Data(name) => {
                    let data = account.account_data.get(&(None, name.clone()))?;
                    data.changes().map(|(at, ())| at).collect()
                }
                _ => return None,
            };
            offsets.extend(account.standing.deactivated);
            Some(offsets)
        }
        Subject::Read { .. } => {
            let (user, room) = (<&UserId>::try_from(&*chain.user).ok()?, room()?);
            Some(state.reads.look(user, &room.id, |marks| marks.moves(at)))
        }
        Subject::Unread { .. } | Subject::Client(_) => None,
    }
}
