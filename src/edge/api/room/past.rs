//! The history of a room that has gaps. What is missing is fetched from other homeservers when
//! somebody gets there.

use std::time::Instant;

use ruma::api::{Direction, client::message::get_message_events::v3 as get_message_events};

use super::reading::{Messages, event_filter, page_size, readable_as_of};
use crate::{
    api::{answer::json, server::Server},
    http::{ApiError, Cx, Json},
};
use logcabin_base::limits;
use logcabin_read::{
    events::{EventForm, EventRef, StoredEvent},
    view::past::{HistoryRange, PastPage},
};
use logcabin_record::Offset;
use logcabin_state::{Room, rooms::gaps::TimelinePosition};

/// `GET /rooms/{roomId}/messages` of such a room.
pub(super) async fn messages(
    cx: &Cx<Server>,
    room: &Room,
    request: &get_message_events::Request,
) -> Result<Json, ApiError> {
    let filter = event_filter(cx)?;
    let limit = page_size(request.limit, &filter);
    let position = |token: &Option<String>| {
        token.as_deref().map(|token| cx.app.past_position(room, token)).transpose()
    };
    let (from, to) = (position(&request.from)?, position(&request.to)?);
    let backward = request.dir == Direction::Backward;
    let (start, to) = if backward {
        let newest = cx.view_as_of()?.at();
        (
            from.unwrap_or(TimelinePosition::After(newest)),
            to.unwrap_or(TimelinePosition::After(Offset::ZERO)),
        )
    } else {
        (
            from.unwrap_or(TimelinePosition::After(Offset::ZERO)),
            to.unwrap_or(TimelinePosition::After(Offset::MAX)),
        )
    };
    // An administrator who looks at an earlier moment sees the room as it was.
    let mut filling = Filling::new(cx, room, cx.moment()?.is_none());
    loop {
        let view = cx.view_as_of()?;
        let seen = readable_as_of(&view, room)?;
        let wanted = HistoryRange { from: start, to, backward, stops: filling.may_go_on };
        let page = cx.at_length(|| Ok(view.past(room, wanted, limit, &filter)?)).await?;
        if page.events.len() < limit && filling.fill(page.open).await {
            continue;
        }
        return cx
            .at_length(|| {
                let PastPage { events, next, last, .. } = page;
                let state = if filter.lazy_load_members {
                    view.members_of(room, &events, None, seen)?
                } else {
                    Vec::new()
                };
                // As in a room without gaps.
                let end = match (next, last) {
                    (Some(next), _) => Some(next),
                    (None, Some(last)) if !backward && request.to.is_none() => Some(last),
                    _ => None,
                };
                json(&Messages {
                    start: cx.app.history_token(start),
                    end: end.map(|place| cx.app.history_token(place)),
                    chunk: view.client_events(room, &events, &EventForm::FULL)?,
                    state: view.client_events(room, &state, &EventForm::STATE)?,
                })
            })
            .await;
    }
}

/// What is fetched for one request.
pub(super) struct Filling<'a> {
    cx: &'a Cx<Server>,
    room: &'a Room,
    /// Whether this homeserver can fetch anything.
    pub(super) may_go_on: bool,
    rounds: usize,
    until: Instant,
}

impl<'a> Filling<'a> {
    pub(super) fn new(cx: &'a Cx<Server>, room: &'a Room, is_now: bool) -> Self {
        let federates = cx.app.outside.federation.is_some();
        let may_go_on = is_now && federates && room.has_server(&cx.app.config.server.name);
        let until = Instant::now() + limits::GAP_TIMEOUT;
        Self { cx, room, may_go_on, rounds: 0, until }
    }

    /// Fetches more for a gap. False if nothing changed.
    pub(super) async fn fill(&mut self, gap: Option<Offset>) -> bool {
        let Some(gap) = gap.filter(|_| self.may_go_on && self.rounds < limits::GAP_ROUNDS) else {
            return false;
        };
        self.rounds += 1;
        let Some(known) = self.room.gap(gap) else { return false };
        if self.cx.may_ask().is_err() {
            return false;
        }
        let Ok(receiving) = self.cx.app.receiving() else { return false };
        let user_id = &self.cx.caller.user_id;
        match Box::pin(receiving.fill_gap(user_id, self.room, gap, &known, self.until)).await {
            Ok(changed) => changed,
            Err(error) => {
                tracing::warn!(room_id = %self.room.id, %gap, %error, "a gap cannot be filled");
                false
            }
        }
    }
}

/// The closest event to a time that is here and that the caller may see, or why they may see none.
pub(super) type Closest<'a> = dyn Fn() -> Result<Option<EventRef>, ApiError> + Sync + 'a;

/// If a gap may have an event that is closer to a time than what is here, has other homeservers
/// asked for the closest, and fetches the history up to it, as far as one request does.
pub(super) async fn fill_up_to(
    cx: &Cx<Server>,
    room: &Room,
    (ts, direction): (u64, Direction),
    closest: &Closest<'_>,
) -> Result<(), ApiError> {
    let closest = closest()?;
    let mut filling = Filling::new(cx, room, true);
    let Some(gap) = filling.gap_near(ts, direction, closest.as_deref())? else { return Ok(()) };
    if cx.may_ask().is_err() {
        return Ok(());
    }
    let receiving = cx.app.receiving()?;
    let wanted = Box::pin(receiving.closest_elsewhere(room, gap, ts, direction)).await;
    let Ok(Some(wanted)) = wanted else { return Ok(()) };
    let is_here = || {
        let view = cx.view();
        Ok::<_, ApiError>(view.events.find_shown(&view.state, &wanted)?.is_some())
    };
    while !is_here()? && filling.fill(Some(gap)).await {}
    Ok(())
}

impl Filling<'_> {
    /// A gap that may have an event that is closer to a time than what is here.
    fn gap_near(
        &self,
        ts: u64,
        direction: Direction,
        closest: Option<&StoredEvent>,
    ) -> Result<Option<Offset>, ApiError> {
        if !self.may_go_on {
            return Ok(None);
        }
        let view = self.cx.view();
        let closest = closest.map(|event| u64::from(event.origin_server_ts.get()));
        for gap in self.room.open_gaps(view.viewer.now_ms) {
            // What is missing is about as old as this, or older.
            let next = self.room.oldest_of_gap(gap);
            let Some(next) = view.events.get(next)? else { continue };
            let next = u64::from(next.origin_server_ts.get());
            let may_have = match direction {
                Direction::Forward => ts <= next,
                Direction::Backward => closest.is_none_or(|closest| closest <= next),
            };
            if may_have && closest != Some(ts) {
                return Ok(Some(gap));
            }
        }
        Ok(None)
    }
}
