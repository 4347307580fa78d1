//! "Time line": how many records were written when, of which kinds, and how large they are. A
//! stretch of time is divided at exact records, which binary searches find; the kinds and sizes
//! between two of them come from a bounded number of records, evenly spread.

use std::collections::HashMap;

use maud::{Markup, html};

use super::{
    axis::{self, Unit, fixed},
    parts::{at_second, table},
    visitor::{ConsoleLogin, Visitor, show},
};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_ops::history::{
    moment::{Time, last_until},
    terminal::{bytes, grouped},
};
use logcabin_record::{
    Offset,
    command::{Family, Kind},
};

/// The parts of a time line.
const PARTS: u64 = 48;

/// The shortest stretch of time.
const SHORTEST_MS: u64 = 60_000;

/// What the families of records are shown as: see [`group`].
const GROUPS: [&str; 5] = [
    "Events of rooms",
    "Receipts, typing, presence",
    "Keys and messages to devices",
    "Accounts and devices",
    "Everything else",
];

/// The size of a drawing, in its own units.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 180.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = WIDTH - 4.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = HEIGHT - 22.0;

endpoint! {
    pub(super) struct Timeline = GET "/_logcabin/console/timeline";
    for ConsoleLogin;
    {
        from: Option<String> = parameter,
        to: Option<String> = parameter,
    }
}

/// What was written in a part of the time.
#[derive(Clone, Debug, Default, PartialEq)]
struct Interval {
    from_ms: u64,
    to_ms: u64,
    /// The last record.
    last: Offset,
    records: u64,
    /// By group: how many records, and their bytes. Estimates, if there are many.
    groups: [(f64, f64); GROUPS.len()],
}

pub(super) async fn page(cx: Cx<Server, Visitor>, request: Timeline) -> Result<Reply, ApiError> {
    let ms = |text: &Option<String>| text.as_deref().map(str::parse::<u64>).transpose();
    let wrong = |_| ApiError::invalid_param("`from` and `to` are milliseconds since 1970.");
    let from = ms(&request.from).map_err(wrong)?;
    let to = ms(&request.to).map_err(wrong)?;
    show(&cx, ("Time line", "timeline"), |app| {
        let head = app.engine.head().offset();
        let log = app.engine.log();
        let first = log.get(Offset::new(1))?;
        let first_ms = first.map_or(0, |record| record.header.time_ms);
        let now_ms = app.engine.clock().now_ms().max(first_ms);
        let to = to.unwrap_or(now_ms).clamp(first_ms, now_ms).max(SHORTEST_MS);
        let from = from.unwrap_or(first_ms).clamp(first_ms.min(to), to);
        let from = from.min(to.saturating_sub(SHORTEST_MS));
        let parts = measure(head, from, to, |offset| {
            let record = log.get(offset)?;
            Ok(record.map(|record| {
                let header = record.header;
                (header.time_ms, group(&header.kind), u64::from(header.payload_len))
            }))
        })?;
        Ok(drawn(&parts, (first_ms, now_ms), (from, to)))
    })
    .await
}

/// The place among [`GROUPS`] of this kind of record.
fn group(kind: &str) -> usize {
    match Kind::named(kind).map_or(Family::Other, |kind| kind.family) {
        Family::Event => 0,
        Family::Receipt | Family::Presence => 1,
        Family::Keys => 2,
        Family::Account | Family::Device | Family::Address => 3,
        Family::Room | Family::Alias | Family::Filter | Family::Browser | Family::Other => 4,
    }
}

/// What a record says to a time line: when it was written, its group, and its size.
type RecordSize = (u64, usize, u64);

/// Divides a stretch of time.
fn measure(
    head: Offset,
    from_ms: u64,
    to_ms: u64,
    read: impl Fn(Offset) -> Result<Option<RecordSize>, ReadError>,
) -> Result<Vec<Interval>, ReadError> {
    // Searches for neighbouring times begin with the same records.
    let mut times: HashMap<Offset, Option<u64>> = HashMap::new();
    let mut last_at = |until_ms| -> Result<Offset, ReadError> {
        last_until(head, until_ms, |offset| match times.get(&offset) {
            Some(time_ms) => Ok::<_, ReadError>(*time_ms),
            None => {
                let time_ms = read(offset)?.map(|(time_ms, ..)| time_ms);
                times.insert(offset, time_ms);
                Ok(time_ms)
            }
        })
    };
    let span = to_ms.saturating_sub(from_ms);
    let edge = |number: u64| from_ms.saturating_add(span.saturating_mul(number) / PARTS);
    let mut parts = Vec::new();
    let mut before = last_at(from_ms.saturating_sub(1))?;
    for number in 0..PARTS {
        // The end belongs to the last part, and every other edge to the part that it begins.
        let end = if number + 1 == PARTS { to_ms } else { edge(number + 1).saturating_sub(1) };
        let last = last_at(end)?.max(before);
        let records = last.get() - before.get();
        let mut part = Interval {
            from_ms: edge(number),
            to_ms: edge(number + 1),
            last,
            records,
            ..Interval::default()
        };
        let samples = records.min(limits::CONSOLE_SAMPLES);
        for sample in 0..samples {
            let offset = Offset::new(before.get() + 1 + records * sample / samples);
            if let Some((_, group, size)) = read(offset)?
                && let Some((count, bytes)) = part.groups.get_mut(group)
            {
                let weight = records as f64 / samples as f64;
                *count += weight;
                *bytes += weight * size as f64;
            }
        }
        before = last;
        parts.push(part);
    }
    Ok(parts)
}

fn address(from: u64, to: u64) -> String {
    format!("?from={from}&to={to}")
}

fn drawn(parts: &[Interval], (first, now): (u64, u64), (from, to): (u64, u64)) -> Markup {
    let total = |of: fn(&(f64, f64)) -> f64, group: usize| -> f64 {
        parts.iter().filter_map(|part| part.groups.get(group)).map(of).sum()
    };
    let rows: Vec<_> = GROUPS
        .iter()
        .enumerate()
        .map(|(group, name)| {
            let (count, size) = (total(|of| of.0, group), total(|of| of.1, group));
            vec![
                html! { span.key { svg.key viewBox="0 0 10 10" aria-hidden="true" {
                    rect class={ "g" (group) } width="10" height="10" {}
                } " " (name) } },
                html! { (grouped(count.round() as u64)) },
                html! { (bytes(size.round() as u64)) },
            ]
        })
        .collect();
    let records: u64 = parts.iter().map(|part| part.records).sum();
    let is_exact = parts.iter().all(|part| part.records <= limits::CONSOLE_SAMPLES);
    let span = to - from;
    let wider = (from.saturating_sub(span).max(first), to.saturating_add(span).min(now));
    html! {
        p.moment { (at_second(from)) " to " (at_second(to)) ": " (grouped(records)) " records" }
        nav.tools aria-label="Other times" {
            a href="/_logcabin/console/timeline" { "The whole log" }
            a href=(address(now.saturating_sub(86_400_000), now)) { "The last day" }
            a href=(address(now.saturating_sub(3_600_000), now)) { "The last hour" }
            a href=(address(from.saturating_sub(span), from)) { "Earlier" }
            a href=(address(to, to.saturating_add(span))) { "Later" }
            a href=(address(wider.0, wider.1)) { "Wider" }
        }
        (chart("Records", Unit::Number, parts, (from, to), |of| of.0))
        (chart("Bytes", Unit::Bytes, parts, (from, to), |of| of.1))
        (table(&["Kind", "Records", "Bytes"], &rows, ""))
        p.note {
            "A bar leads to its part of the time, and in the end to the log. The numbers of records \
             are exact"
            @if !is_exact {
                "; kinds and bytes are estimated from " (limits::CONSOLE_SAMPLES)
                " records of each part"
            }
            "."
        }
    }
}

fn chart(
    title: &str,
    unit: Unit,
    parts: &[Interval],
    (from, to): (u64, u64),
    of: fn(&(f64, f64)) -> f64,
) -> Markup {
    let sum = |part: &Interval| part.groups.iter().map(of).sum::<f64>();
    let most = parts.iter().map(sum).fold(0.0, f64::max);
    let values = axis::values(unit, most);
    let scale = (BOTTOM - TOP) / values.last().copied().unwrap_or(1.0);
    let wide = (RIGHT - LEFT) / PARTS as f64;
    let second = |ms| Time(ms).to_second() + "Z";
    html! {
        figure.long {
            figcaption { span.title { (title) } strong { (unit.show(most)) " at most" } }
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="group" aria-label=(title) {
                (axis::times((from, to), (LEFT, RIGHT), (TOP, BOTTOM)))
                (axis::lines(unit, &values, (LEFT, RIGHT), (TOP, BOTTOM)))
                @for (number, part) in (0_u32..).zip(parts).filter(|(_, part)| part.records > 0) {
                    @let x = LEFT + f64::from(number) * wide;
                    @let label = format!(
                        "{} to {}: {}", second(part.from_ms), second(part.to_ms),
                        unit.show(sum(part)),
                    );
                    a href=(leads_to(part)) aria-label=(label) {
                        title { (label) }
                        rect.hit x=(fixed(x)) y=(TOP) width=(fixed(wide)) height=(BOTTOM - TOP) {}
                        @for (group, top, height) in stack(part, scale, of) {
                            rect class={ "g" (group) } x=(fixed(x + 1.0)) y=(fixed(top))
                                width=(fixed(wide - 2.0)) height=(fixed(height)) {}
                        }
                    }
                }
            }
        }
    }
}

/// A part leads to itself, until it is so short that its records can be read.
fn leads_to(part: &Interval) -> String {
    match part.to_ms - part.from_ms < SHORTEST_MS {
        true => format!("/_logcabin/console/log?at={}", part.last),
        false => address(part.from_ms, part.to_ms),
    }
}

/// The bars of a part, from the bottom: group, upper edge, and height.
fn stack(part: &Interval, scale: f64, of: fn(&(f64, f64)) -> f64) -> Vec<(usize, f64, f64)> {
    let mut top = BOTTOM;
    let mut bars = Vec::new();
    for (group, values) in part.groups.iter().enumerate() {
        let height = of(values) * scale;
        top -= height;
        if height > 0.0 {
            bars.push((group, top, height.max(0.5)));
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn every_record_is_in_one_part_and_few_are_read() {
        // A record in each second, with a pause; every fourth is a receipt.
        let time =
            |offset: u64| 1_000_000 + offset * 1_000 + if offset > 50_000 { 9_000_000 } else { 0 };
        let reads = Cell::new(0);
        let read = |offset: Offset| {
            reads.set(reads.get() + 1);
            let number = offset.get();
            Ok((number <= 100_000)
                .then(|| (time(number), usize::from(number.is_multiple_of(4)), 100)))
        };
        let head = Offset::new(100_000);
        let (from, to) = (time(1), time(100_000));
        let parts = measure(head, from, to, read).expect("it is read");
        assert_eq!(parts.iter().map(|part| part.records).sum::<u64>(), 100_000);
        assert!(parts.iter().any(|part| part.records == 0), "the pause is not seen");
        assert!(reads.get() < 48 * 50, "{} records were read", reads.get());
        let bytes: f64 = parts.iter().flat_map(|part| part.groups).map(|(_, bytes)| bytes).sum();
        assert!((bytes - 10_000_000.0).abs() < 1.0, "{bytes}");
        // A minute is exact.
        let parts = measure(head, time(1_000), time(1_060), read).expect("it is read");
        let count = |group: usize| parts.iter().map(|part| part.groups[group].0).sum::<f64>();
        assert_eq!((count(0), count(1)), (45.0, 16.0));
        assert_eq!(parts.iter().map(|part| part.records).sum::<u64>(), 61);
    }

    #[test]
    fn every_kind_has_a_group() {
        for (kind, place) in [
            ("room.event", 0),
            ("room.receipt", 1),
            ("key_backup.put", 2),
            ("oauth.grant", 3),
            ("room.block", 4),
            ("log.erase", 4),
            ("of.the_future", 4),
        ] {
            assert_eq!(group(kind), place, "{kind}");
        }
    }
}
