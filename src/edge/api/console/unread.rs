//! What a user has not read, as of any moment: the counts of each room, and the way to the records
//! behind them.

use maud::{Markup, html};
use ruma::{UserId, events::StateEventType};

use super::{
    parts::{
        encoded, field, moment, query, record, room as room_link, table, time_of,
        user as user_link, why,
    },
    visitor::{ConsoleLogin, Visitor, show},
};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_engine::Engine;
use logcabin_ops::history::terminal::grouped;
use logcabin_read::notifications::Unread;
use logcabin_record::Offset;
use logcabin_state::{
    Membership, Room,
    reads::{Covers, Thread},
};

/// How many events are judged for one page, not counting those of its last room: some 100
/// milliseconds, if nothing is known of the counts yet.
const JUDGED: usize = 2 * limits::UNREAD_EVENTS;

endpoint! {
    pub(super) struct UnreadPage = GET "/_logcabin/console/users/{user}/unread";
    for ConsoleLogin;
    {
        user: String = path,
        at: Option<String> = parameter,
        after: Option<String> = parameter,
    }
}

pub(super) async fn page(cx: Cx<Server, Visitor>, request: UnreadPage) -> Result<Reply, ApiError> {
    show(&cx, ("Unread counts", "users"), |app| view(app, &request)).await
}

fn view(app: &Server, request: &UnreadPage) -> Result<Markup, ApiError> {
    let user_id = app.context.user_id(&request.user)?;
    let at = request.at.as_deref().map(|at| moment(&app.engine, at)).transpose()?;
    let at = at.unwrap_or_else(|| app.engine.head().offset());
    let time = time_of(&app.engine, at)?;
    let after = request.after.as_deref().unwrap_or_default();
    let mut memberships = app.engine.state().memberships.of(&user_id, at);
    memberships.retain(|of| of.membership == Membership::Join);
    let total = memberships.len();
    let start = memberships.partition_point(|of| of.room_id.as_str() <= after);
    let (mut rows, mut judged, mut last) = (Vec::new(), 0, None);
    for of in memberships.iter().skip(start) {
        if rows.len() >= limits::CONSOLE_ROWS || judged >= JUDGED {
            break;
        }
        last = Some(&of.room_id);
        if let Some(room) = app.engine.state().rooms.get(&of.room_id) {
            let new = app.sync.unread.distance(&app.engine.state(), &user_id, &room, at, 0);
            judged = new.saturating_add(judged);
            rows.push(row(&app.engine, &app.sync.unread, &user_id, &room, at)?);
        }
    }
    let left = last.filter(|last| memberships.last().is_some_and(|of| of.room_id > **last));
    let columns = ["Room", "Unread", "Highlighted", "In threads", "Read up to", "By record", "Why"];
    Ok(html! {
        form.filters method="get" role="search" {
            (field("at", "As of", &request.at, "record, time, or -10m"))
            button type="submit" { "Look" }
        }
        p.moment {
            (user_link(user_id.as_str())) ", as of record " (record(at)) ", " (time)
        }
        (table(&columns, &rows, "Nobody is joined to a room there."))
        p.pages {
            span { (grouped(total as u64)) " in all" }
            @if let Some(last) = left {
                a href={
                    "?" (query(&[("at", &Some(at.to_string()))])) "after="
                        (encoded(last.as_str()))
                } { "More rooms" }
            }
        }
        p.note {
            "Of a room's newest " (grouped(limits::UNREAD_EVENTS as u64)) " events those count "
            "that came after the user's receipts and messages and notify by the push rules of "
            "their own time."
        }
    })
}

fn row(
    engine: &Engine,
    unread: &Unread,
    user_id: &UserId,
    room: &Room,
    at: Offset,
) -> Result<Vec<Markup>, ApiError> {
    let (state, events) = (engine.state(), engine.events());
    let counts = unread.counts(&state, events, user_id, room, at)?;
    let (total, main) = (counts.total(), counts.main);
    let (read, moved) = state.reads.look(user_id, &room.id, |marks| {
        let threads = [Covers::All, Covers::Only(Thread::Main)];
        (threads.map(|of| marks.at(of, at)).into_iter().max(), marks.moved(Offset::ZERO, at))
    });
    let id = room.id.as_str();
    let name = events.state_text(room, &StateEventType::RoomName, "name", at)?;
    let link = |offset: Option<Offset>| match offset.filter(|offset| *offset > Offset::ZERO) {
        Some(offset) => record(offset),
        None => html! { span.note { "–" } },
    };
    Ok(vec![
        room_link(id, name.as_deref().unwrap_or(id)),
        html! { (grouped(total.notifications)) },
        html! { (grouped(total.highlights)) },
        html! { (grouped(total.notifications.saturating_sub(main.notifications))) },
        link(read),
        link(moved),
        why(&["room", id, "unread", user_id.as_str()], Some(at)),
    ])
}
