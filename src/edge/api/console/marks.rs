//! What happened that can explain what a plot shows: starts of the server, upgrades, backups, and
//! what administrators did.
//!
//! Nobody looks for it in the log: the starts are beside the samples (`service::samples`), and the
//! acts were noted when the records were counted (`service::tally`). The last of both are kept.

use maud::{Markup, html};

use super::parts::{at_second, log_at, short};
use crate::api::server::Server;
use logcabin_ops::history::terminal::grouped;
use logcabin_service::{samples::Start, tally};

/// How many marks a plot has room for.
const PLACES: u64 = 40;

/// How many are listed below the plots.
const LISTED: usize = 12;

/// How many are named where several are at the same place.
const NAMED: usize = 3;

/// What a mark is drawn as: what matters more comes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shape {
    Act,
    Backup,
    Start,
    Upgrade,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// In milliseconds since the Unix epoch.
    pub(super) at_ms: u64,
    pub(super) shape: Shape,
    /// For people, cleaned.
    pub(super) text: String,
    /// The log at that moment.
    pub(super) leads_to: String,
}

/// What happened in a stretch of time, from the oldest on.
pub(super) fn between(app: &Server, from_ms: u64, to_ms: u64) -> Vec<Mark> {
    let mut marks = starts(&app.samples.starts());
    marks.extend(app.tally.look(|counts| counts.marks.iter().map(act).collect::<Vec<_>>()));
    marks.retain(|mark| (from_ms..=to_ms).contains(&mark.at_ms));
    marks.sort_by_key(|mark| mark.at_ms);
    marks
}

fn starts(starts: &[Start]) -> Vec<Mark> {
    let before = [None].into_iter().chain(starts.iter().map(Some));
    let mark = |(before, start): (Option<&Start>, &Start)| {
        let version = &start.version;
        let (shape, text) = match before.filter(|before| before.version != *version) {
            Some(before) => (Shape::Upgrade, format!("Version {version} after {}", before.version)),
            None => (Shape::Start, format!("Start of the server, version {version}")),
        };
        Mark { at_ms: start.at_ms, shape, text: short(&text), leads_to: log_at(start.at_ms) }
    };
    before.zip(starts).map(mark).collect()
}

fn act(of: &tally::Mark) -> Mark {
    let shape = if &*of.kind == "backup.made" { Shape::Backup } else { Shape::Act };
    let what = if shape == Shape::Backup { "Backup" } else { &of.kind };
    let more = match of.more {
        0 => String::new(),
        1 => " and one more record".to_owned(),
        more => format!(" and {} more records", grouped(more)),
    };
    Mark {
        at_ms: of.at_ms,
        shape,
        text: short(&format!("{what} by {}{more}", of.who)),
        leads_to: format!("/_logcabin/console/log?at={}", of.offset),
    }
}

/// The marks of a plot, with those as one that would cover each other.
pub(super) fn together(marks: &[Mark], from_ms: u64, to_ms: u64) -> Vec<Mark> {
    let span = to_ms.saturating_sub(from_ms).max(1);
    let place = |of: &Mark| of.at_ms.saturating_sub(from_ms).saturating_mul(PLACES) / span;
    let one = |those: &[Mark]| {
        let mut one = those.iter().max_by_key(|of| of.shape)?.clone();
        let mut texts: Vec<_> = those.iter().take(NAMED).map(|of| of.text.clone()).collect();
        if let Some(more) = those.len().checked_sub(NAMED).filter(|more| *more > 0) {
            texts.push(format!("{more} more"));
        }
        one.text = texts.join("; ");
        Some(one)
    };
    marks.chunk_by(|a, b| place(a) == place(b)).filter_map(one).collect()
}

/// The drawing of a mark.
pub(super) fn glyph(shape: Shape, x: &str, y: f64) -> Markup {
    let outline = match shape {
        Shape::Act => "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
        Shape::Backup => "m-3.5 -3.5h7v7h-7z",
        Shape::Start => "m0 -5l4.5 8h-9z",
        Shape::Upgrade => "m0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
    };
    html! { path.glyph d={ "M" (x) " " (y) (outline) } {} }
}

/// The newest marks as a list.
pub(super) fn listed(marks: &[Mark]) -> Markup {
    html! {
        h2 { "What happened" }
        @if marks.is_empty() {
            p.note { "No start, upgrade or backup, and no act of administration in this time." }
        } @else {
            ul.happened {
                @for mark in marks.iter().rev().take(LISTED) {
                    li {
                        svg.key viewBox="0 0 12 12" aria-hidden="true" { (glyph(mark.shape, "6", 6.0)) }
                        " " a href=(mark.leads_to) { (at_second(mark.at_ms)) }
                        " " bdi { (mark.text) }
                    }
                }
            }
            @if let Some(more) = marks.len().checked_sub(LISTED).filter(|more| *more > 0) {
                p.note { "And " (more) " before." }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_record::Offset;

    #[test]
    fn a_new_version_is_an_upgrade_and_other_starts_are_starts() {
        let start = |at_ms, version: &str| Start { at_ms, version: version.to_owned() };
        let marks = starts(&[start(1, "0.1.0"), start(2, "0.1.0"), start(3, "0.2.0")]);
        let shapes: Vec<_> = marks.iter().map(|mark| mark.shape).collect();
        assert_eq!(shapes, [Shape::Start, Shape::Start, Shape::Upgrade]);
        assert_eq!(marks[2].text, "Version 0.2.0 after 0.1.0");
        assert_eq!(marks[0].leads_to, log_at(1));
    }

    #[test]
    fn acts_name_who_did_them_and_lead_to_their_last_record() {
        let of = |kind: &str, who: &str, more| tally::Mark {
            at_ms: 5,
            offset: Offset::new(7),
            kind: kind.into(),
            who: who.into(),
            more,
        };
        let mark = act(&of("room.block", "@a\u{202e}b:test", 1));
        assert_eq!((mark.shape, &*mark.leads_to), (Shape::Act, "/_logcabin/console/log?at=7"));
        assert_eq!(mark.text, "room.block by @a·b:test and one more record");
        let mark = act(&of("backup.made", "root", 0));
        assert_eq!((mark.shape, &*mark.text), (Shape::Backup, "Backup by root"));
    }

    #[test]
    fn what_is_at_the_same_place_is_one_mark_with_the_shape_that_matters_most() {
        let mark = |at_ms, shape, text: &str| Mark {
            at_ms,
            shape,
            text: text.to_owned(),
            leads_to: text.to_owned(),
        };
        let marks = [
            mark(10, Shape::Act, "a"),
            mark(11, Shape::Start, "b"),
            mark(12, Shape::Act, "c"),
            mark(13, Shape::Act, "d"),
            mark(900, Shape::Backup, "e"),
        ];
        let found = together(&marks, 0, 1000);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].shape, &*found[0].text), (Shape::Start, "a; b; c; 1 more"));
        assert_eq!((&*found[0].leads_to, &*found[1].text), ("b", "e"));
        assert_eq!(together(&[], 0, 0), []);
    }
}
