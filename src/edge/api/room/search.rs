//! Server-side search in the rooms that the caller is or was in.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ruma::{
    OwnedRoomId, OwnedUserId, RoomId, UInt, UserId,
    api::client::search::search_events::v3::{
        self as search_events, Criteria, EventContext, GroupingKey, OrderBy, SearchKeys,
    },
    events::StateEventType,
};
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};

use super::context::{Around, around};
use crate::{
    api::{answer::json, server::Server},
    http::{ApiError, Cx, Json},
};
use logcabin_base::{limits, text};
use logcabin_read::{
    events::{ClientEvent, EventForm, EventRef, as_shown},
    view::{ByteBudget, PageLimit, View, filter::EventFilter, shown_bytes},
};
use logcabin_record::Offset;
use logcabin_search::{Hit, HitPosition, Key, Order, Query, Search, SearchError, Text};
use logcabin_state::{Membership, Room};

/// The default number of results on a page.
const RESULTS_PER_PAGE: u64 = 10;

impl From<SearchError> for ApiError {
    fn from(error: SearchError) -> Self {
        match error {
            SearchError::Unreadable(_) => {
                Self::unavailable("The search index is being made.").with_cause(error)
            }
            SearchError::LeftOut => Self::left_out("This server does not search in messages."),
        }
    }
}

pub(super) async fn search(
    cx: Cx<Server>,
    request: search_events::Request,
) -> Result<Json, ApiError> {
    let Some(criteria) = request.search_categories.room_events else {
        return json(&json!({ "search_categories": {} }));
    };
    let head = cx.app.engine.head().offset();
    let complete = cx.app.listing.search.reach(head).await;
    cx.at_length(|| {
        let wanted = SearchRequest::new(&cx, criteria, request.next_batch.as_deref())?;
        let view = cx.view();
        let until = wanted.after.as_ref().map_or_else(|| complete.min(view.at()), |after| after.at);
        let found = wanted.look(&cx.app.listing.search, &view, until)?;
        json(
            &json!({ "search_categories": { "room_events": wanted.response(&cx, &view, found)? } }),
        )
    })
    .await
}

/// A search request.
struct SearchRequest {
    /// The terms that a text must contain.
    terms: Vec<String>,
    /// The words as typed.
    words: Vec<String>,
    keys: Vec<Key>,
    filter: EventFilter,
    order: Order,
    limit: usize,
    context: EventContext,
    include_state: bool,
    groups: Vec<GroupingKey>,
    after: Option<SearchCursor>,
}

/// The start of a page of results, as encoded in `next_batch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Token {
    /// The position as of which to search, as a token.
    at: String,
    /// The last hit that was examined.
    rank: u32,
    event: u64,
    /// The number of results, as of the first page.
    count: u64,
    /// The room or the sender, for the results of one group.
    #[serde(skip_serializing_if = "Option::is_none")]
    room: Option<OwnedRoomId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sender: Option<OwnedUserId>,
}

struct SearchCursor {
    at: Offset,
    place: HitPosition,
    count: u64,
    room: Option<OwnedRoomId>,
    sender: Option<OwnedUserId>,
}

impl Token {
    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(json!(self).to_string())
    }

    fn decode(text: &str) -> Option<Self> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }
}

/// The filter in the body: ruma's type lacks some fields.
fn filter(body: &[u8]) -> Result<EventFilter, ApiError> {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        search_categories: Categories<'a>,
    }
    #[derive(Deserialize)]
    struct Categories<'a> {
        #[serde(borrow)]
        room_events: Criteria<'a>,
    }
    #[derive(Deserialize)]
    struct Criteria<'a> {
        #[serde(borrow)]
        filter: Option<&'a RawValue>,
    }
    let body: Body<'_> = serde_json::from_slice(body).map_err(ApiError::internal)?;
    match body.search_categories.room_events.filter {
        Some(filter) => {
            EventFilter::parse(filter.get()).map_err(|error| ApiError::bad_json(error.to_string()))
        }
        None => Ok(EventFilter::default()),
    }
}

/// A result: an event, and the event with its newest text.
struct Match {
    hit: Hit,
    room: Arc<Room>,
    event: EventRef,
    version: EventRef,
}

/// The results of a search.
struct SearchResults {
    results: Vec<Match>,
    /// The total number, as far as it was determined.
    count: u64,
    /// The last position on this page, if there is more after it.
    more_after: Option<HitPosition>,
    at: Offset,
}

impl SearchRequest {
    fn new(
        cx: &Cx<Server>,
        criteria: Criteria,
        next_batch: Option<&str>,
    ) -> Result<Self, ApiError> {
        let invalid = ApiError::invalid_param;
        let keys = match criteria.keys {
            None => vec![Key::Body, Key::Name, Key::Topic],
            Some(keys) => keys
                .iter()
                .map(|key| match key {
                    SearchKeys::ContentBody => Ok(Key::Body),
                    SearchKeys::ContentName => Ok(Key::Name),
                    SearchKeys::ContentTopic => Ok(Key::Topic),
                    _ => {
                        Err(invalid("A key is `content.body`, `content.name` or `content.topic`."))
                    }
                })
                .collect::<Result<BTreeSet<_>, _>>()?
                .into_iter()
                .collect(),
        };
        let order = match criteria.order_by {
            None | Some(OrderBy::Rank) => Order::Rank,
            Some(OrderBy::Recent) => Order::Recent,
            Some(_) => return Err(invalid("`order_by` is `recent` or `rank`.")),
        };
        let groups: Vec<_> =
            criteria.groupings.group_by.into_iter().filter_map(|g| g.key).collect();
        if groups.iter().any(|key| !matches!(key, GroupingKey::RoomId | GroupingKey::Sender)) {
            return Err(invalid("A group's key is `room_id` or `sender`."));
        }
        let filter = filter(&cx.body)?;
        let limit = filter.limit.unwrap_or(RESULTS_PER_PAGE).min(limits::SEARCH_RESULTS);
        let words: Vec<_> =
            text::words(&criteria.search_term).into_iter().take(limits::SEARCH_WORDS).collect();
        let mut terms: Vec<_> = words.iter().flat_map(|word| text::sought(&word.folded)).collect();
        terms.sort_unstable();
        terms.dedup();
        let typed = |word: &text::Word| criteria.search_term.get(word.place.clone());
        Ok(Self {
            terms,
            words: words.iter().filter_map(typed).map(str::to_lowercase).collect(),
            keys,
            order,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            filter,
            context: criteria.event_context,
            include_state: criteria.include_state.unwrap_or(false),
            groups,
            after: next_batch.map(|token| SearchCursor::new(cx, token)).transpose()?,
        })
    }

    /// The results as of `until`: those of this page, and their number. The view judges each hit of
    /// the index: events that the caller may not see are neither shown nor counted.
    fn look(
        &self,
        search: &Search,
        view: &View<'_>,
        until: Offset,
    ) -> Result<SearchResults, ApiError> {
        let rooms = self.rooms(view);
        let created: HashSet<Offset> = rooms.keys().copied().collect();
        let query = Query {
            terms: &self.terms,
            keys: &self.keys,
            rooms: &created,
            order: self.order,
            after: self.after.as_ref().map(|after| after.place),
            until,
            most: limits::SEARCH_HITS,
            looks: limits::SEARCH_TEXTS,
        };
        let (hits, versions) = search.look(|snapshot| {
            let hits = snapshot.hits(&query)?;
            // Each event once: an edited event may have several hits.
            let mut versions: HashMap<Offset, Vec<Offset>> = HashMap::new();
            for event in hits.iter().map(|hit| hit.place.event) {
                if let Entry::Vacant(new) = versions.entry(event) {
                    new.insert(snapshot.versions(event)?);
                }
            }
            Ok((hits, versions))
        })?;
        let scanned_all = hits.len() < limits::SEARCH_HITS;
        let last_place = hits.last().map(|hit| hit.place);
        let mut bytes = 0;
        let mut found =
            SearchResults { results: Vec::new(), count: 0, more_after: None, at: until };
        for hit in hits {
            let versions = versions.get(&hit.place.event).map_or(&[][..], Vec::as_slice);
            let Some(result) = self.judge(view, &rooms, hit, versions, until)? else { continue };
            found.count += 1;
            if found.results.len() < self.limit && bytes < limits::PAGE_BYTES {
                bytes += shown_bytes(&result.event);
                found.results.push(result);
            } else if found.more_after.is_none() {
                found.more_after = found.results.last().map(|last| last.hit.place);
            }
        }
        if found.more_after.is_none() && !scanned_all {
            found.more_after = last_place;
        }
        if let Some(after) = &self.after {
            found.count = after.count;
        }
        Ok(found)
    }

    /// The rooms to search, by their `created`: those that the caller has been in.
    fn rooms(&self, view: &View<'_>) -> HashMap<Offset, Arc<Room>> {
        let only = self.after.as_ref().and_then(|after| after.room.as_ref());
        let of = view.state.memberships.of(view.user_id(), view.at()).into_iter();
        of.filter(|part| !part.forgotten && self.filter.wants_room(&part.room_id))
            .filter(|part| only.is_none_or(|only| *only == part.room_id))
            .filter_map(|part| view.state.rooms.get(&part.room_id))
            .filter(|room| {
                let memberships = room.membership_changes(view.user_id(), view.at());
                memberships.iter().any(|(_, membership)| *membership == Membership::Join)
            })
            .map(|room| (room.created, room))
            .collect()
    }

    /// The result for a hit; `None` if it is not one for this caller.
    fn judge(
        &self,
        view: &View<'_>,
        rooms: &HashMap<Offset, Arc<Room>>,
        hit: Hit,
        versions: &[Offset],
        until: Offset,
    ) -> Result<Option<Match>, ApiError> {
        let Some(event) = view.events.get(hit.place.event)? else { return Ok(None) };
        let Some(room) = rooms.get(&hit.room) else { return Ok(None) };
        let visible = |event: &EventRef| -> Result<bool, ApiError> {
            Ok(room.redaction_of(event.offset, view.at()).is_none()
                && view.may_see(room, event)?
                && !view.is_erased(room, event)?)
        };
        let of_group = self.after.as_ref().and_then(|after| after.sender.as_ref());
        if of_group.is_some_and(|sender| *sender != event.sender)
            || !self.filter.matches(room, &event, view.at())
            || !visible(&event)?
        {
            return Ok(None);
        }
        // The newest text that the caller may see counts.
        for version in versions.iter().rev().filter(|version| **version <= until) {
            let Some(version) = view.events.get(*version)? else { continue };
            if version.offset == event.offset || visible(&version)? {
                let is_newest = version.offset == hit.version;
                let room = Arc::clone(room);
                return Ok(is_newest.then_some(Match { hit, room, event, version }));
            }
        }
        Ok(None)
    }

    fn response(
        &self,
        cx: &Cx<Server>,
        view: &View<'_>,
        found: SearchResults,
    ) -> Result<RoomEvents<'_>, ApiError> {
        let form = &EventForm::FULL;
        let budget = ByteBudget::new(limits::ANSWER_BYTES);
        let mut results = Vec::with_capacity(found.results.len());
        for result in &found.results {
            results.push(SearchResult {
                rank: f64::from(result.hit.rank) / 1000.0,
                result: view.client_event(&result.room, &result.event, form)?,
                context: self.context(cx, view, result, &budget)?,
            });
        }
        let (mut state, mut left) = (BTreeMap::new(), limits::SEARCH_STATE);
        if self.include_state {
            for result in &found.results {
                if let Some(at) = view.state_as_of(&result.room)?
                    && !state.contains_key(&result.room.id)
                {
                    let mut offsets = result.room.full_state(at);
                    if offsets.len() > left {
                        offsets = result.room.state_without_members(at);
                        offsets.truncate(left);
                    }
                    left -= offsets.len();
                    let events = view.events.get_all(&offsets)?;
                    let events = view.client_events(&result.room, &events, &EventForm::STATE)?;
                    state.insert(result.room.id.clone(), events);
                }
            }
        }
        let of_group = |after: &SearchCursor| (after.room.clone(), after.sender.clone());
        let (room, sender) = self.after.as_ref().map(of_group).unwrap_or_default();
        let token = |place: HitPosition, room: Option<OwnedRoomId>, sender: Option<OwnedUserId>| {
            let at = cx.app.token(found.at);
            let (rank, event) = (place.rank, place.event.get());
            Token { at, rank, event, count: found.count, room, sender }.encode()
        };
        let more = found.more_after;
        Ok(RoomEvents {
            count: UInt::try_from(found.count).unwrap_or(UInt::MAX),
            highlights: self.highlights(&found.results),
            next_batch: more.map(|place| token(place, room.clone(), sender.clone())),
            groups: self.groups(&found.results, |last, group| {
                more.map(|_| match group {
                    Group::Room(id) => token(last, Some(id.to_owned()), sender.clone()),
                    Group::Sender(id) => token(last, room.clone(), Some(id.to_owned())),
                })
            }),
            state,
            results,
        })
    }

    /// The results of a page by room and by sender, as requested. Groups are in the order of their
    /// first results. `token` creates the token with which a group continues after a position.
    fn groups(
        &self,
        results: &[Match],
        token: impl Fn(HitPosition, Group<'_>) -> Option<String>,
    ) -> BTreeMap<&str, BTreeMap<String, ResultGroup>> {
        let mut groups = BTreeMap::new();
        for key in &self.groups {
            let mut by_value: BTreeMap<String, ResultGroup> = BTreeMap::new();
            for result in results {
                let group = match key {
                    GroupingKey::RoomId => Group::Room(&result.room.id),
                    _ => Group::Sender(&result.event.sender),
                };
                let order = by_value.len();
                let entry = by_value.entry(group.to_string()).or_insert_with(|| ResultGroup {
                    order,
                    results: Vec::new(),
                    next_batch: None,
                });
                entry.results.push(result.event.event_id.to_string());
                entry.next_batch = token(result.hit.place, group);
            }
            groups.insert(key.as_str(), by_value);
        }
        groups
    }

    /// The words to highlight: those that were typed, and their spellings in the results.
    fn highlights(&self, results: &[Match]) -> BTreeSet<String> {
        let mut highlights: BTreeSet<String> = self.words.iter().cloned().collect();
        let sought: HashSet<&String> = self.terms.iter().collect();
        for result in results {
            let Some(said) = Text::of(&result.version) else { continue };
            for word in text::words(&said.text) {
                if sought.contains(&word.folded)
                    && let Some(written) = said.text.get(word.place)
                {
                    highlights.insert(written.to_lowercase());
                }
            }
        }
        highlights
    }

    /// The visible events around a result, with their senders' profiles at that time.
    fn context(
        &self,
        cx: &Cx<Server>,
        view: &View<'_>,
        result: &Match,
        budget: &ByteBudget,
    ) -> Result<ResultContext, ApiError> {
        let at_most = |limit: UInt| {
            let events = u64::from(limit).min(limits::SEARCH_CONTEXT);
            // The client can request the context of a result separately.
            let events = if budget.left() == 0 { 0 } else { events };
            let events = usize::try_from(events).unwrap_or_default();
            PageLimit { events, budget: Some(budget) }
        };
        let (room, event, all) = (&result.room, &result.event, &EventFilter::default());
        let sides = (at_most(self.context.before_limit), at_most(self.context.after_limit));
        let Around { before, after, start, end } = around(view, room, event, sides, all)?;
        let mut profile_info = BTreeMap::new();
        if self.context.include_profile {
            for event in before.iter().chain([event]).chain(&after) {
                if !profile_info.contains_key(&event.sender) {
                    profile_info.insert(event.sender.clone(), profile(view, room, event)?);
                }
            }
        }
        Ok(ResultContext {
            start: cx.app.history_token(start),
            end: cx.app.history_token(end),
            events_before: view.client_events(room, &before, &EventForm::FULL)?,
            events_after: view.client_events(room, &after, &EventForm::FULL)?,
            profile_info,
        })
    }
}

impl SearchCursor {
    fn new(cx: &Cx<Server>, token: &str) -> Result<Self, ApiError> {
        let token = Token::decode(token)
            .ok_or_else(|| ApiError::invalid_param("`next_batch` is not of a search here."))?;
        let Token { at, rank, event, count, room, sender } = token;
        let place = HitPosition { rank, event: Offset::new(event) };
        Ok(Self { at: cx.app.position(&at)?, place, count, room, sender })
    }
}

/// The profile of an event's sender at the time of sending.
fn profile(view: &View<'_>, room: &Room, event: &EventRef) -> Result<Profile, ApiError> {
    let member = StateEventType::RoomMember;
    let at = room.slot(event.offset).map_or(event.offset, |slot| slot.gap.prev());
    let Some(offset) = room.state_event(&member, event.sender.as_str(), at) else {
        return Ok(Profile::default());
    };
    let member = view.events.get(offset)?.map(|member| as_shown(room, member, view.at()));
    Ok(member.and_then(|member| member.content_as().ok()).unwrap_or_default())
}

/// The criterion of a group.
#[derive(Clone, Copy)]
enum Group<'a> {
    Room(&'a RoomId),
    Sender(&'a UserId),
}

impl std::fmt::Display for Group<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Room(id) => id.fmt(f),
            Self::Sender(id) => id.fmt(f),
        }
    }
}

#[derive(Serialize)]
struct RoomEvents<'a> {
    count: UInt,
    highlights: BTreeSet<String>,
    results: Vec<SearchResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_batch: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    state: BTreeMap<OwnedRoomId, Vec<ClientEvent>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    groups: BTreeMap<&'a str, BTreeMap<String, ResultGroup>>,
}

#[derive(Serialize)]
struct SearchResult {
    rank: f64,
    result: ClientEvent,
    context: ResultContext,
}

#[derive(Serialize)]
struct ResultContext {
    start: String,
    end: String,
    events_before: Vec<ClientEvent>,
    events_after: Vec<ClientEvent>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    profile_info: BTreeMap<OwnedUserId, Profile>,
}

#[derive(Default, Serialize, Deserialize)]
struct Profile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    displayname: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    avatar_url: Option<String>,
}

#[derive(Serialize)]
struct ResultGroup {
    order: usize,
    results: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_batch: Option<String>,
}
