//! Unread counts, as Synapse's answers to syncs have them.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{
    facts::{SourceError, UnreadCount},
    sql::{
        database::{Cell, Database},
        schema::Schema,
    },
};

const TABLES: [&str; 3] =
    ["event_push_actions", "event_push_summary", "event_push_summary_stream_ordering"];

/// The thread of what is in none.
const MAIN: &str = "main";

/// Up to where a user has read a room.
#[derive(Default)]
struct Read {
    everywhere: i64,
    threads: HashMap<String, i64>,
}

impl Read {
    fn up_to(&self, thread: &str) -> i64 {
        self.everywhere.max(self.threads.get(thread).copied().unwrap_or_default())
    }
}

fn text(cell: &Cell) -> Option<&str> {
    match cell {
        Cell::Text(text) => Some(text),
        _ => None,
    }
}

const fn number(cell: &Cell) -> Option<i64> {
    match cell {
        Cell::Int(number) => Some(*number),
        _ => None,
    }
}

/// The counts of a user in each joined room, threads included. Rooms without any are missing.
/// Synapse counts nothing for users of application services.
pub(super) fn of_user(
    database: &mut dyn Database,
    schema: &Schema,
    user_id: &str,
) -> Result<Option<BTreeMap<String, UnreadCount>>, SourceError> {
    if TABLES.iter().any(|table| !schema.has(table)) {
        return Ok(None);
    }
    let args = [Cell::Text(user_id.to_owned())];
    let of_service = "SELECT count(*) FROM users
        WHERE name = $1 AND appservice_id IS NOT NULL AND appservice_id <> ''";
    if database.number(of_service, &args)? != Some(0) {
        return Ok(None);
    }
    // Who has read nothing has read up to the own membership.
    let mut rooms: HashMap<String, Read> = HashMap::new();
    let joined = "SELECT l.room_id, e.stream_ordering FROM local_current_membership l
        LEFT JOIN events e ON e.event_id = l.event_id
        WHERE l.user_id = $1 AND l.membership = 'join'";
    let mut memberships = HashMap::new();
    for row in database.rows(joined, &args)? {
        if let [room_id, place] = &row[..]
            && let Some(room_id) = text(room_id)
        {
            memberships.insert(room_id.to_owned(), number(place).unwrap_or_default());
            rooms.insert(room_id.to_owned(), Read::default());
        }
    }
    let receipts = "SELECT r.room_id, r.thread_id, max(e.stream_ordering)
        FROM receipts_linearized r JOIN events e ON e.event_id = r.event_id
        WHERE r.user_id = $1 AND r.receipt_type IN ('m.read', 'm.read.private')
        GROUP BY r.room_id, r.thread_id";
    for row in database.rows(receipts, &args)? {
        let [room_id, thread, place] = &row[..] else { continue };
        let read = text(room_id).and_then(|room_id| rooms.get_mut(room_id));
        let (Some(read), Some(place)) = (read, number(place)) else { continue };
        match text(thread) {
            None => read.everywhere = place,
            Some(thread) => {
                read.threads.insert(thread.to_owned(), place);
            }
        }
    }
    for (room_id, read) in &mut rooms {
        if read.everywhere == 0 {
            read.everywhere = memberships.get(room_id).copied().unwrap_or_default();
        }
    }
    counted(database, &args, &rooms).map(Some)
}

fn counted(
    database: &mut dyn Database,
    args: &[Cell],
    rooms: &HashMap<String, Read>,
) -> Result<BTreeMap<String, UnreadCount>, SourceError> {
    let mut counts: BTreeMap<String, UnreadCount> = BTreeMap::new();
    let rotated = "SELECT stream_ordering FROM event_push_summary_stream_ordering";
    let rotated = database.number(rotated, &[])?.unwrap_or_default();
    let mut summarised = HashSet::new();
    // A summary of what was unread before a later receipt does not count.
    let summaries = "SELECT room_id, thread_id, notif_count, stream_ordering,
            last_receipt_stream_ordering FROM event_push_summary
        WHERE user_id = $1 AND (notif_count <> 0 OR COALESCE(unread_count, 0) <> 0)";
    for row in database.rows(summaries, args)? {
        let [room_id, thread, notifications, place, receipt] = &row[..] else { continue };
        let (Some(room_id), thread) = (text(room_id), text(thread).unwrap_or(MAIN)) else {
            continue;
        };
        let Some(read) = rooms.get(room_id).map(|read| read.up_to(thread)) else { continue };
        let counts_still = match number(receipt) {
            Some(receipt) => receipt == read,
            None => number(place).is_some_and(|place| place > read),
        };
        if counts_still {
            let count = counts.entry(room_id.to_owned()).or_default();
            count.notifications += number(notifications).unwrap_or_default();
            summarised.insert((room_id.to_owned(), thread.to_owned()));
        }
    }
    let actions = "SELECT room_id, thread_id, stream_ordering, notif, highlight
        FROM event_push_actions WHERE user_id = $1";
    for row in database.rows(actions, args)? {
        let [room_id, thread, place, notifies, highlights] = &row[..] else { continue };
        let (Some(room_id), Some(place)) = (text(room_id), number(place)) else { continue };
        let thread = text(thread).unwrap_or(MAIN);
        let Some(read) = rooms.get(room_id).map(|read| read.up_to(thread)) else { continue };
        let is_summarised = summarised.contains(&(room_id.to_owned(), thread.to_owned()));
        let from = if is_summarised { rotated } else { read };
        let is = |cell: &Cell| number(cell).is_some_and(|number| number != 0);
        let (notifies, highlights) = (is(notifies) && place > from, is(highlights) && place > read);
        if notifies || highlights {
            let count = counts.entry(room_id.to_owned()).or_default();
            count.notifications += i64::from(notifies);
            count.highlights += i64::from(highlights);
        }
    }
    Ok(counts)
}
