//! "Relations": an event with what it replies to, edits, reacts to or redacts, and with what does
//! that to it, as a drawing and as a list. Both are bounded, however many events there are.

use std::{collections::HashSet, sync::Arc};

use maud::{Markup, html};
use ruma::EventId;
use serde_json::Value;

use super::{
    axis::fixed,
    parts::{field, record, seconds, short, table, text, unanswered, user},
    visitor::{ConsoleLogin, Visitor, show},
};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_engine::Engine;
use logcabin_ops::history::{History, Source, query::EventRow};
use logcabin_read::events::EventStore;
use logcabin_record::Offset;
use logcabin_state::Room;

/// How many events are shown.
const EVENTS: usize = 60;

/// How many of them relate to the same event.
const CHILDREN: usize = 24;

/// How far back related events are searched.
const ANCESTORS: usize = 6;

/// Replies outside of threads are in no index. So many events after an event are looked at.
const LOOKED_AT: usize = 500;

/// The size of an event and of the space for it, in the drawing's own units.
const WIDTH: f64 = 200.0;
const HEIGHT: f64 = 38.0;
const COLUMN: f64 = 290.0;
const ROW: f64 = 50.0;

/// Characters of a line in an event.
const LINE: usize = 28;

endpoint! {
    pub(super) struct Relations = GET "/_logcabin/console/relations";
    for ConsoleLogin;
    { event: Option<String> = parameter }
}

pub(super) async fn page(cx: Cx<Server, Visitor>, request: Relations) -> Result<Reply, ApiError> {
    show(&cx, ("Relations", "log"), |app| view(&app.engine, &request.event)).await
}

fn view(engine: &Engine, asked: &Option<String>) -> Result<Markup, ApiError> {
    let wanted = asked.as_deref().map(str::trim).filter(|wanted| !wanted.is_empty());
    let graph = wanted.map(|wanted| look(engine, wanted)).transpose()?;
    Ok(html! {
        form.filters method="get" role="search" {
            (field("event", "Event", asked, "$id or the number of its record"))
            button type="submit" { "Look" }
        }
        @match &graph {
            Some(graph) => (graph.shown()),
            None => p { "Name an event to see what it is about, and what is about it." }
        }
    })
}

/// How an event relates to an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Reply,
    Thread,
    Edit,
    Reaction,
    Redaction,
    Other,
}

impl Relation {
    const ALL: [Self; 6] =
        [Self::Reply, Self::Thread, Self::Edit, Self::Reaction, Self::Redaction, Self::Other];

    /// What the later event does to the earlier one.
    const fn name(self) -> &'static str {
        match self {
            Self::Reply => "replies to",
            Self::Thread => "is in the thread of",
            Self::Edit => "edits",
            Self::Reaction => "reacts to",
            Self::Redaction => "redacts",
            Self::Other => "relates to",
        }
    }

    /// The number of its colour.
    const fn colour(self) -> usize {
        self as usize
    }
}

/// An event of the drawing.
struct Node {
    row: EventRow,
    /// How it relates to the one before it.
    relation: Option<(usize, Relation)>,
    column: u32,
    /// Whether more events relate to it than are shown.
    has_more: bool,
}

/// An event and what is related to it. Each event is after the one that it relates to.
struct Graph {
    nodes: Vec<Node>,
    /// The event that was asked for.
    focus: usize,
}

fn look(engine: &Engine, wanted: &str) -> Result<Graph, ApiError> {
    let unknown = || ApiError::not_found("There is no such event.");
    let state = engine.state().share();
    let events = engine.events();
    let event = match wanted.parse::<u64>() {
        Ok(offset) => events.get(Offset::new(offset))?,
        Err(_) => {
            let id = <&EventId>::try_from(wanted);
            let id = id.map_err(|_| ApiError::invalid_param("This is not an event id."))?;
            events.find(&state, id)?
        }
    };
    let event = event.ok_or_else(unknown)?;
    let room = state.rooms.get(&event.room_id).filter(|room| room.has_event(event.offset));
    let room = room.ok_or_else(unknown)?;
    let head = engine.head().offset();
    let source = Source::own(Arc::clone(engine.log()), head);
    let history = History::live(&source, state, head);
    let looking = RelationLookup { events, history: &history, room: &room };
    looking.graph(event.offset)
}

struct RelationLookup<'a> {
    events: &'a EventStore,
    history: &'a History<'a>,
    room: &'a Room,
}

impl RelationLookup<'_> {
    fn rows(&self, offsets: &[Offset]) -> Result<Vec<EventRow>, ApiError> {
        self.history.events(self.room, offsets).map_err(unanswered)
    }

    fn row(&self, offset: Offset) -> Result<EventRow, ApiError> {
        let mut rows = self.rows(&[offset])?;
        Ok(rows.pop().unwrap_or_default())
    }

    /// The event of this room with this id.
    fn find(&self, id: &str) -> Result<Option<Offset>, ApiError> {
        let Ok(id) = <&EventId>::try_from(id) else { return Ok(None) };
        let found = self.events.find(self.history.state(), id)?;
        Ok(found.filter(|event| event.room_id == self.room.id).map(|event| event.offset))
    }

    /// The event that another one is about.
    fn about(&self, row: &EventRow) -> Result<Option<(Offset, Relation)>, ApiError> {
        let redacts = match row.event_type == "m.room.redaction" {
            true => self.events.get(row.offset)?,
            false => None,
        };
        if let Some(id) = redacts.and_then(|event| event.redacts.clone()) {
            return Ok(self.find(id.as_str())?.map(|offset| (offset, Relation::Redaction)));
        }
        let Some((id, relation)) = row.content.as_ref().and_then(relation) else { return Ok(None) };
        // Nothing is about what came after it.
        let found = self.find(id)?.filter(|offset| *offset < row.offset);
        Ok(found.map(|offset| (offset, relation)))
    }

    fn graph(&self, focus: Offset) -> Result<Graph, ApiError> {
        let row = self.row(focus)?;
        let mut above = Vec::new();
        let mut about = self.about(&row)?;
        while let Some((offset, relation)) = about.filter(|_| above.len() < ANCESTORS) {
            let earlier = self.row(offset)?;
            about = self.about(&earlier)?;
            above.push((earlier, relation));
        }
        let mut graph = Graph { nodes: Vec::new(), focus: above.len() };
        // From the earliest on; each relation is that of the event after it.
        let mut relation = None;
        for (row, of_next) in above.into_iter().rev() {
            let column = graph.nodes.len() as u32;
            graph.nodes.push(Node { row, relation, column, has_more: false });
            relation = Some((graph.nodes.len() - 1, of_next));
        }
        let column = graph.nodes.len() as u32;
        graph.nodes.push(Node { row, relation, column, has_more: false });
        let mut known: HashSet<Offset> = graph.nodes.iter().map(|node| node.row.offset).collect();
        let mut next = graph.focus;
        while next < graph.nodes.len() {
            self.add_children(&mut graph, &mut known, next)?;
            next += 1;
        }
        Ok(graph)
    }

    /// Adds what is about an event, the oldest first.
    fn add_children(
        &self,
        graph: &mut Graph,
        known: &mut HashSet<Offset>,
        parent: usize,
    ) -> Result<(), ApiError> {
        let Some(node) = graph.nodes.get(parent) else { return Ok(()) };
        let (offset, column) = (node.row.offset, node.column + 1);
        let (redacted_by, id) = (node.row.redacted_by, node.row.event_id.clone());
        let at = self.history.end();
        let stretch = (Offset::ZERO, Offset::MAX);
        let mut children =
            self.room.page_of_children(offset, None, at, stretch, false, CHILDREN + 1);
        // With a ban that redacts, it is not the record of an event.
        let redacting = redacted_by.map(|of| self.events.redacting(self.history.state(), of));
        let redacted_by = redacting.transpose()?.flatten().map(|event| event.offset);
        children.extend(redacted_by);
        if parent == graph.focus {
            children.extend(self.replies(offset, &id)?);
        }
        children.sort_unstable();
        children.dedup();
        children.retain(|child| !known.contains(child));
        let left = EVENTS.saturating_sub(graph.nodes.len()).min(CHILDREN);
        let has_more = children.len() > left;
        children.truncate(left);
        for row in self.rows(&children)? {
            let relation = match row.content.as_ref().and_then(relation) {
                _ if redacted_by == Some(row.offset) => Relation::Redaction,
                Some((_, relation)) => relation,
                None => Relation::Other,
            };
            known.insert(row.offset);
            let relation = Some((parent, relation));
            graph.nodes.push(Node { row, relation, column, has_more: false });
        }
        if let Some(node) = graph.nodes.get_mut(parent) {
            node.has_more = has_more;
        }
        Ok(())
    }

    /// The replies to an event among those that came soon after it.
    fn replies(&self, to: Offset, id: &str) -> Result<Vec<Offset>, ApiError> {
        let mut found = Vec::new();
        for offset in self.room.events_forward(to, self.history.end(), LOOKED_AT) {
            let Some(event) = self.events.get(offset)? else { continue };
            // Most events do not name it, and are not read.
            if !event.content.get().contains(id)
                || self.room.redaction_of(offset, self.history.end()).is_some()
            {
                continue;
            }
            let content = event.content_as::<Value>().unwrap_or_default();
            if relation(&content) == Some((id, Relation::Reply)) {
                found.push(offset);
            }
        }
        Ok(found)
    }
}

/// The event that a content names, and how it relates to it.
fn relation(content: &Value) -> Option<(&str, Relation)> {
    let relates_to = content.get("m.relates_to")?;
    let text = |value: &'_ Value, name: &str| value.get(name).and_then(Value::as_str).is_some();
    if text(relates_to, "rel_type") && text(relates_to, "event_id") {
        let relation = match relates_to.get("rel_type")?.as_str()? {
            "m.thread" => Relation::Thread,
            "m.replace" => Relation::Edit,
            "m.annotation" => Relation::Reaction,
            _ => Relation::Other,
        };
        return Some((relates_to.get("event_id")?.as_str()?, relation));
    }
    let id = relates_to.get("m.in_reply_to")?.get("event_id")?.as_str()?;
    Some((id, Relation::Reply))
}

/// A text that fits into a line of the drawing.
fn line(text: &str) -> String {
    let shown = short(text);
    match shown.char_indices().nth(LINE) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

impl Graph {
    fn shown(&self) -> Markup {
        let Some(focus) = self.nodes.get(self.focus) else { return html! {} };
        let rows: Vec<_> = self
            .nodes
            .iter()
            .map(|node| {
                let relation = match node.relation {
                    Some((to, relation)) => {
                        let to = self.nodes.get(to).map(|node| node.row.offset);
                        html! { (relation.name()) " " (record(to.unwrap_or_default())) }
                    }
                    None => html! { "–" },
                };
                let more = html! {
                    (text(&node.row.text))
                    @if node.has_more { " " span.note { "(more events are about it)" } }
                };
                let link = html! {
                    a href={ "?event=" (node.row.offset) } {
                        "Relations" span.hidden { " of " (node.row.offset) }
                    }
                };
                vec![
                    record(node.row.offset),
                    html! { (seconds(&node.row.time)) },
                    user(&node.row.sender),
                    relation,
                    more,
                    link,
                ]
            })
            .collect();
        let columns = ["Record", "Time", "Who", "Relation", "What", "More"];
        html! {
            p.moment { "Record " (record(focus.row.offset)) ": " bdi { (short(&focus.row.text)) } }
            @if self.nodes.len() > 1 { (self.drawn()) } @else {
                p.note { "It is about no other event, and none is about it." }
            }
            h2 { "The same as a list" }
            (table(&columns, &rows, ""))
            p.note {
                "At most " (EVENTS) " events are shown, and " (CHILDREN) " about one of them. Replies \
                 outside of threads are looked for among the " (LOOKED_AT) " events after the one \
                 that was asked for."
            }
        }
    }

    /// The rows of the events: the first of those about an event is beside it.
    fn places(&self) -> Vec<f64> {
        let mut places = vec![0.0; self.nodes.len()];
        let mut next = 0.0;
        let mut left = vec![0];
        while let Some(at) = left.pop() {
            let parent = self.nodes.get(at).and_then(|node| node.relation).map(|(to, _)| to);
            let is_first = parent.is_some_and(|parent| {
                let first = self
                    .nodes
                    .iter()
                    .position(|node| node.relation.is_some_and(|(to, _)| to == parent));
                first == Some(at)
            });
            let beside = parent.filter(|_| is_first).and_then(|parent| places.get(parent)).copied();
            let place = beside.unwrap_or(next);
            if let Some(of) = places.get_mut(at) {
                *of = place;
            }
            next = f64::max(next, place + 1.0);
            let children = self.nodes.iter().enumerate().rev();
            let children =
                children.filter(|(_, node)| node.relation.is_some_and(|(to, _)| to == at));
            left.extend(children.map(|(child, _)| child));
        }
        places
    }

    fn drawn(&self) -> Markup {
        let places = self.places();
        let columns = self.nodes.iter().map(|node| node.column).max().unwrap_or(0);
        let rows = places.iter().copied().fold(0.0, f64::max);
        let width = f64::from(columns) * COLUMN + WIDTH + 4.0;
        let height = rows * ROW + HEIGHT + 4.0;
        let at = |number: usize| {
            let column = self.nodes.get(number).map_or(0, |node| node.column);
            let row = places.get(number).copied().unwrap_or_default();
            (f64::from(column) * COLUMN + 2.0, row * ROW + 2.0)
        };
        let path = |from: usize, to: usize| {
            let ((x, y), (end, below)) = (at(from), at(to));
            let (x, y, below) = (x + WIDTH, y + HEIGHT / 2.0, below + HEIGHT / 2.0);
            let bend = f64::midpoint(x, end);
            format!("M{x:.1} {y:.1}C{bend:.1} {y:.1} {bend:.1} {below:.1} {end:.1} {below:.1}")
        };
        let used: HashSet<usize> =
            self.nodes.iter().filter_map(|node| Some(node.relation?.1.colour())).collect();
        html! {
            figure.graph {
                figcaption {
                    span.title { "Relations" }
                    span {
                        @for relation in Relation::ALL {
                            @if used.contains(&relation.colour()) {
                                span.key { (super::bars::key(relation.colour())) " "
                                    (relation.name()) } " "
                            }
                        }
                    }
                }
                svg viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height)
                    role="group" aria-label="Relations" {
                    @for (number, node) in self.nodes.iter().enumerate() {
                        @if let Some((to, relation)) = node.relation {
                            path class={ "edge e" (relation.colour()) } d=(path(to, number)) {}
                        }
                    }
                    @for (number, node) in self.nodes.iter().enumerate() {
                        (self.event(number, node, at(number)))
                    }
                }
            }
        }
    }

    fn event(&self, number: usize, node: &Node, (x, y): (f64, f64)) -> Markup {
        let row = &node.row;
        let is_gone = row.redacted_by.is_some();
        let relation = node.relation.and_then(|(to, relation)| {
            Some(format!(", {} record {}", relation.name(), self.nodes.get(to)?.row.offset))
        });
        let label = format!(
            "Record {}, {}: {}{}",
            row.offset,
            short(&row.sender),
            short(&row.text),
            relation.unwrap_or_default()
        );
        let class = match (number == self.focus, is_gone) {
            (true, _) => "event focus",
            (false, true) => "event gone",
            (false, false) => "event",
        };
        html! {
            // Its name is its text, which can be seen; the title says the relation, too.
            a href={ "?event=" (row.offset) }
                aria-current=[(number == self.focus).then_some("true")] {
                title { (label) }
                rect class=(class) x=(fixed(x)) y=(fixed(y)) width=(WIDTH) height=(HEIGHT)
                    rx="4" {}
                text.who x=(fixed(x + 8.0)) y=(fixed(y + 15.0)) { (line(&row.sender)) }
                text.what x=(fixed(x + 8.0)) y=(fixed(y + 30.0)) { (line(&row.text)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn relations_are_read_from_whatever_a_content_says() {
        let of =
            |content: Value| relation(&content).map(|(id, relation)| (id.to_owned(), relation));
        let relates = |relates_to: Value| json!({ "m.relates_to": relates_to });
        for (rel_type, relation) in [
            ("m.thread", Relation::Thread),
            ("m.replace", Relation::Edit),
            ("m.annotation", Relation::Reaction),
            ("org.example", Relation::Other),
        ] {
            let content = relates(json!({
                "rel_type": rel_type, "event_id": "$a", "m.in_reply_to": { "event_id": "$b" },
            }));
            assert_eq!(of(content), Some(("$a".to_owned(), relation)));
        }
        let reply = relates(json!({ "m.in_reply_to": { "event_id": "$b" } }));
        assert_eq!(of(reply), Some(("$b".to_owned(), Relation::Reply)));
        for nothing in [json!(1), json!({}), relates(json!([])), relates(json!({ "rel_type": 1 }))]
        {
            assert_eq!(of(nothing), None);
        }
    }

    fn node(offset: u64, relation: Option<(usize, Relation)>, column: u32) -> Node {
        let row = EventRow {
            offset: Offset::new(offset),
            sender: "@<b>:test".to_owned(),
            text: format!("{}\u{202e}</svg>", "word ".repeat(20)),
            ..EventRow::default()
        };
        Node { row, relation, column, has_more: false }
    }

    #[test]
    fn every_event_has_a_place_of_its_own_and_its_text_does_no_harm() {
        let about = |to| Some((to, Relation::Reply));
        let nodes = vec![
            node(1, None, 0),
            node(2, about(0), 1),
            node(3, about(0), 1),
            node(4, about(1), 2),
            node(5, about(1), 2),
            node(6, about(2), 2),
        ];
        let graph = Graph { nodes, focus: 1 };
        assert_eq!(graph.places(), [0.0, 0.0, 2.0, 0.0, 1.0, 2.0]);
        let drawn = graph.shown().into_string();
        assert_eq!(drawn.matches("class=\"edge").count(), 5);
        assert!(!drawn.contains("<b>") && !drawn.contains('\u{202e}'), "{drawn}");
        assert_eq!(drawn.matches("</svg>").count(), 2, "{drawn}");
        assert!(line(&"ä".repeat(90)).ends_with("ä…"));
    }
}
