//! Answers for people: lines, tables and blocks of text. Everything that others wrote is cleaned
//! before it gets here on a terminal, see [`clean`].

use std::fmt::Write as _;

use anstyle::Style;
use serde_json::Value;

use super::{
    audit::Audit,
    check::{Outcome, Report},
    look::{
        BLUE, BOLD, CYAN, DIM, GREEN, Look, MAGENTA, PLAIN, RED, Set, Table, YELLOW, bytes, clean,
        cut, grouped, pad, width,
    },
    query::{Diff, ErasureView, EventRow, RecordView, RoomRow, Stats, UserRow},
    why::Step,
};
use crate::record::Offset;

const CLOCK: usize = 12;
const OFFSET: usize = 7;
const KIND: usize = 16;
const WHO: usize = 18;
const WHO_IN_ROOM: usize = 22;
const ROOM: usize = 12;
const BAR: usize = 24;

/// A colour for each family of kinds, so that a screen of records can be read at a glance.
fn kind_style(kind: &str) -> Style {
    match kind.split('.').next().unwrap_or_default() {
        "user" | "profile" | "account_data" | "filter" => GREEN,
        "device" => CYAN,
        "room" if kind != "room.event" => DIM,
        "room" => BLUE,
        "alias" => YELLOW,
        _ => MAGENTA,
    }
}

/// Messages stand out from what rooms, accounts and the server do.
fn text_style(record: &RecordView) -> Style {
    let member = |name: &str| record.payload.as_ref()?.pointer(&format!("/pdu/{name}"));
    match (&*record.kind, member("state_key").is_some(), member("type").and_then(Value::as_str)) {
        ("room.event", true, Some("m.room.member")) => YELLOW,
        ("room.event", true, _) => CYAN,
        ("room.event", false, Some("m.room.redaction")) => RED,
        ("room.event", false, Some("m.room.message" | "m.room.encrypted")) => PLAIN,
        _ => DIM,
    }
}

fn event_style(event: &EventRow) -> Style {
    match (&event.state_key, event.event_type.as_str()) {
        _ if event.redacted_by.is_some() => DIM,
        (Some(_), "m.room.member") => YELLOW,
        (Some(_), _) => CYAN,
        (None, "m.room.message" | "m.room.encrypted") => PLAIN,
        (None, "m.room.redaction") => RED,
        (None, _) => DIM,
    }
}

/// Day and time of day of a time as the rows have it.
fn split(time: &str) -> (&str, &str) {
    let (day, clock) = time.split_once('T').unwrap_or((time, ""));
    (day, clock.trim_end_matches('Z'))
}

fn to_second(time: Option<&String>) -> String {
    let (day, clock) = time.map(|time| split(time)).unwrap_or_default();
    format!("{day} {}", clock.get(..8).unwrap_or_default())
}

/// A line between days, whenever the day changes.
fn day_line(day: &str, last: &mut String, look: &Look) -> String {
    if day == last {
        return String::new();
    }
    day.clone_into(last);
    look.paint(DIM, &format!("── {day} {}", "─".repeat(look.left(14).min(46)))) + "\n"
}

/// `3 events`, `1 event`.
fn count(number: u64, what: &str) -> String {
    let (one, rest) =
        what.split_once(' ').map_or((what, String::new()), |(one, rest)| (one, format!(" {rest}")));
    format!("{} {one}{}{rest}", grouped(number), if number == 1 { "" } else { "s" })
}

/// What an id is known by: its part before the server's name.
fn short(id: &str) -> &str {
    id.split_once(':').map_or(id, |(local, _)| local)
}

/// One record on one line.
pub(super) fn record_in_line(record: &RecordView, look: &Look, last_day: &mut String) -> String {
    let (day, clock) = split(&record.time);
    let mut line = day_line(day, last_day, look);
    let room = record.room.as_deref().map(short).unwrap_or_default();
    let used = CLOCK + OFFSET + KIND + WHO + ROOM + 5;
    let cells = [
        (DIM, pad(clock, CLOCK)),
        (DIM, format!("{:>OFFSET$}", record.offset.get())),
        (kind_style(&record.kind), pad(&clean(&record.kind), KIND)),
        (BOLD, pad(&clean(short(&record.who)), WHO)),
        (DIM, pad(&clean(room), ROOM)),
        (text_style(record), cut(&clean(&record.text), look.left(used))),
    ];
    let cells: Vec<_> = cells.iter().map(|(style, text)| look.paint(*style, text)).collect();
    line.push_str(cells.join(" ").trim_end());
    line.push('\n');
    line
}

/// One record with all there is to know of it.
pub(super) fn record_in_full(record: &RecordView, look: &Look) -> String {
    let mut out = heading(look, &format!("record {}", record.offset), None);
    let flags = [
        (record.must_not_rewind, "survives a restore to an earlier moment"),
        (record.ephemeral, "compaction may drop its payload"),
    ];
    let flags: Vec<_> = flags.iter().filter(|(set, _)| *set).map(|(_, text)| *text).collect();
    let batch = match record.batch_remaining {
        0 => "the last of its batch".to_owned(),
        more => format!("{more} more of its batch follow"),
    };
    let origin = [&record.user, &record.device, &record.request];
    let origin: Vec<_> =
        origin.iter().filter(|part| !part.is_empty()).map(|part| part.as_str()).collect();
    let origin = if origin.is_empty() { "the server itself".to_owned() } else { origin.join("  ") };
    let rows = [
        ("says", format!("{} {}", record.who, record.text), BOLD),
        ("time", record.time.clone(), PLAIN),
        ("kind", format!("{}, version {}", record.kind, record.version), kind_style(&record.kind)),
        ("stream", record.stream.clone(), PLAIN),
        ("origin", origin, PLAIN),
        ("batch", format!("{batch}, epoch {}", record.epoch), PLAIN),
        ("flags", flags.join(", "), PLAIN),
        ("chain", record.chain.clone(), DIM),
        (
            "payload",
            format!("{} B, blake3 {}", grouped(record.payload_len.into()), record.payload_hash),
            DIM,
        ),
    ];
    for (name, text, style) in rows {
        if !text.is_empty() {
            let text = look.paint(style, &cut(&clean(&text), look.left(12)));
            let _ = writeln!(out, "  {}  {text}", look.paint(DIM, &format!("{name:8}")));
        }
    }
    out.push('\n');
    if let Some(erasure) = &record.erasure {
        let _ = writeln!(out, "  {}\n", look.paint(DIM, &clean(&erasure_in_words(erasure))));
    }
    match &record.payload {
        Some(payload) => json(payload, look, 1, &mut out),
        None => out.push_str(&look.paint(DIM, "  (the payload was erased or is sealed)")),
    }
    out.push('\n');
    out
}

fn erasure_in_words(erasure: &ErasureView) -> String {
    let ErasureView { record, time, because, who, how, redacted } = erasure;
    match (because, who, redacted) {
        (Some(because), Some(who), Some(at)) if how.is_some() => format!(
            "{who} {} in record {because} ({at}); its content was erased with record {record} ({time})",
            how.as_deref().unwrap_or_default()
        ),
        (Some(because), Some(who), Some(redacted)) => format!(
            "{who} redacted it in record {because} ({redacted}); its content was erased with record {record} ({time})"
        ),
        _ => format!(
            "later records superseded it; its payload was erased with record {record} ({time})"
        ),
    }
}

/// JSON, indented and coloured.
fn json(value: &Value, look: &Look, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(members) if !members.is_empty() => {
            out.push_str(if depth == 1 { "  {\n" } else { "{\n" });
            for (index, (name, value)) in members.iter().enumerate() {
                let name = look.paint(BLUE, &clean(&Value::from(name.as_str()).to_string()));
                let _ = write!(out, "{indent}  {name}: ");
                json(value, look, depth + 1, out);
                out.push_str(if index + 1 < members.len() { ",\n" } else { "\n" });
            }
            let _ = write!(out, "{indent}}}");
        }
        Value::Array(values) if !values.is_empty() => {
            out.push_str("[\n");
            for (index, value) in values.iter().enumerate() {
                let _ = write!(out, "{indent}  ");
                json(value, look, depth + 1, out);
                out.push_str(if index + 1 < values.len() { ",\n" } else { "\n" });
            }
            let _ = write!(out, "{indent}]");
        }
        Value::String(_) => out.push_str(&look.paint(GREEN, &clean(&value.to_string()))),
        Value::Number(_) | Value::Bool(_) | Value::Null => {
            out.push_str(&look.paint(YELLOW, &value.to_string()));
        }
        Value::Object(_) | Value::Array(_) => out.push_str(&value.to_string()),
    }
}

/// What an answer is about.
pub(super) fn heading(look: &Look, what: &str, at: Option<Offset>) -> String {
    let at = at.map_or_else(String::new, |at| look.paint(DIM, &format!("  as of record {at}")));
    format!("{}{at}\n", look.paint(BOLD, &clean(what)))
}

/// What made a value what it is.
pub(super) fn why(steps: &[Step], look: &Look) -> String {
    if steps.is_empty() {
        return look.paint(DIM, "Nothing has ever been said about that.") + "\n";
    }
    let mut out = String::new();
    for step in steps {
        let (day, clock) = split(&step.time);
        let from = [("from ", &step.device), ("request ", &step.request)];
        let from: String = from
            .iter()
            .filter(|(_, part)| !part.is_empty())
            .map(|(what, part)| format!("  {what}{}", clean(part)))
            .collect();
        let at = format!("{:>OFFSET$}  {day} {clock}  ", step.offset.get());
        let who = clean(&step.who);
        let _ = writeln!(
            out,
            "{}{}{}",
            look.paint(DIM, &at),
            look.paint(BOLD, &who),
            look.paint(DIM, &from)
        );
        let indent = " ".repeat(OFFSET + 2);
        let left = look.left(OFFSET + 2 + 8);
        let _ = writeln!(out, "{indent}{}", cut(&clean(&step.text), look.left(OFFSET + 2)));
        let shown = |value: &Option<Value>| match value {
            Some(value) => cut(&clean(&value.to_string()), left),
            None => "(nothing)".to_owned(),
        };
        if step.before == step.after {
            let _ = writeln!(out, "{indent}{} {}", look.paint(DIM, "stays  "), shown(&step.after));
        } else {
            let _ = writeln!(out, "{indent}{} {}", look.paint(RED, "before "), shown(&step.before));
            let _ =
                writeln!(out, "{indent}{} {}", look.paint(GREEN, "after  "), shown(&step.after));
        }
    }
    out
}

pub(super) fn nothing_to_follow(look: &Look) -> String {
    look.paint(DIM, "── the server is stopped: there is nothing to follow") + "\n"
}

pub(super) fn server_stopped(look: &Look) -> String {
    look.paint(DIM, "── the server has stopped") + "\n"
}

pub(super) fn rooms(rooms: &[RoomRow], look: &Look) -> String {
    if rooms.is_empty() {
        return look.paint(DIM, "There is no room yet.") + "\n";
    }
    let mut table = Table::new(&[
        ("ROOM", Set::Left),
        ("ALIAS", Set::Flexible),
        ("NAME", Set::Flexible),
        ("V", Set::Optional),
        ("JOINED", Set::Right),
        ("EVENTS", Set::Right),
        ("LAST EVENT", Set::Optional),
        ("", Set::Optional),
    ]);
    for room in rooms {
        let invited = if room.invited > 0 { format!("+{} ", room.invited) } else { String::new() };
        table.row([
            (cut(short(room.room_id.as_str()), 20), BLUE),
            (room.alias.clone().unwrap_or_default(), PLAIN),
            (room.name.clone().unwrap_or_default(), BOLD),
            (room.version.clone(), DIM),
            (format!("{invited}{}", room.joined), PLAIN),
            (grouped(room.events), PLAIN),
            (to_second(room.last_event.as_ref()), DIM),
            (if room.public { "public" } else { "" }.to_owned(), GREEN),
        ]);
    }
    table.render(look)
}

/// One event of a timeline.
pub(super) fn event(event: &EventRow, look: &Look, last_day: &mut String) -> String {
    let (day, clock) = split(&event.time);
    let mut line = day_line(day, last_day, look);
    let clock = clock.get(..8).unwrap_or(clock);
    let used = 8 + OFFSET + WHO_IN_ROOM + 3;
    let cells = [
        look.paint(DIM, clock),
        look.paint(DIM, &format!("{:>OFFSET$}", event.offset.get())),
        look.paint(BOLD, &pad(&clean(&event.sender), WHO_IN_ROOM)),
        look.paint(event_style(event), &cut(&clean(&event.text), look.left(used))),
    ];
    line.push_str(cells.join(" ").trim_end());
    line.push('\n');
    line
}

/// The content of a state event on one line.
fn content(event: &EventRow) -> String {
    match &event.content {
        Some(content) => content.to_string(),
        None => event.text.clone(),
    }
}

pub(super) fn state(events: &[EventRow], look: &Look) -> String {
    if events.is_empty() {
        return look.paint(DIM, "The room has no state at that moment.") + "\n";
    }
    let mut table = Table::new(&[
        ("TYPE", Set::Left),
        ("KEY", Set::Flexible),
        ("RECORD", Set::Right),
        ("SINCE", Set::Optional),
        ("BY", Set::Optional),
        ("CONTENT", Set::Flexible),
    ]);
    for event in events {
        table.row([
            (event.event_type.clone(), event_style(event)),
            (event.state_key.clone().unwrap_or_default(), BOLD),
            (event.offset.to_string(), DIM),
            (to_second(Some(&event.time)), DIM),
            (short(&event.sender).to_owned(), PLAIN),
            (content(event), PLAIN),
        ]);
    }
    table.render(look)
}

pub(super) fn diff(diff: &Diff, look: &Look) -> String {
    let mut out = heading(look, diff.room_id.as_str(), None);
    let (joined, later) = diff.joined;
    let summary = format!(
        "records {} → {}: {}, {}, {joined} → {later} joined",
        diff.from,
        diff.to,
        count(diff.events.len() as u64, "event"),
        count(diff.state.len() as u64, "change of state"),
    );
    out.push_str(&look.paint(DIM, &summary));
    out.push('\n');
    if !diff.state.is_empty() {
        let _ = write!(out, "\n{}\n", look.paint(DIM, "STATE"));
    }
    for change in &diff.state {
        let (sign, style) = if change.before.is_some() { ("~", YELLOW) } else { ("+", GREEN) };
        let key = match change.state_key.as_str() {
            "" => String::new(),
            key => format!(" of {}", clean(key)),
        };
        let title = format!("{sign} {}{key}", clean(&change.event_type));
        let _ = writeln!(
            out,
            "{}  {}",
            look.paint(style, &title),
            look.paint(
                DIM,
                &format!("record {}, {}", change.after.offset, clean(&change.after.sender))
            )
        );
        if let Some(before) = &change.before {
            let text = cut(&clean(&content(before)), look.left(6));
            let _ = writeln!(out, "    {} {}", look.paint(RED, "−"), look.paint(RED, &text));
        }
        let text = cut(&clean(&content(&change.after)), look.left(6));
        let _ = writeln!(out, "    {} {}", look.paint(GREEN, "+"), look.paint(GREEN, &text));
    }
    if !diff.events.is_empty() {
        let _ = write!(out, "\n{}\n", look.paint(DIM, "EVENTS"));
    }
    let mut day = String::new();
    for row in &diff.events {
        out.push_str(&event(row, look, &mut day));
    }
    out
}

pub(super) fn users(users: &[UserRow], look: &Look) -> String {
    if users.is_empty() {
        return look.paint(DIM, "Nobody has registered yet.") + "\n";
    }
    let mut table = Table::new(&[
        ("USER", Set::Flexible),
        ("NAME", Set::Flexible),
        ("ROOMS", Set::Right),
        ("DEVICES", Set::Flexible),
        ("REGISTERED", Set::Optional),
        ("CHANGED", Set::Optional),
        ("", Set::Left),
    ]);
    for user in users {
        table.row([
            (user.user_id.clone(), BOLD),
            (user.display_name.clone().unwrap_or_default(), PLAIN),
            (user.rooms.to_string(), PLAIN),
            (user.devices.join(" "), CYAN),
            (to_second(user.registered.as_ref()), DIM),
            (to_second(user.changed.as_ref()), DIM),
            (if user.guest { "guest" } else { "" }.to_owned(), YELLOW),
        ]);
    }
    table.render(look)
}

pub(super) fn stats(stats: &Stats, look: &Look) -> String {
    let mut out = String::new();
    let counts = &stats.counts;
    let mut row = |name: &str, text: String| {
        let _ = writeln!(out, "{}  {text}", look.paint(DIM, &format!("{name:8}")));
    };
    let payloads = format!("in payloads of {}", bytes(stats.bytes));
    row(
        "Records",
        format!("{}  {}", look.paint(BOLD, &grouped(stats.records)), look.paint(DIM, &payloads)),
    );
    row("First", to_second(stats.first.as_ref()));
    row("Last", to_second(stats.last.as_ref()));
    let devices = format!("with {} logged in", count(counts.devices, "device"));
    row("Users", format!("{}  {}", grouped(counts.users), look.paint(DIM, &devices)));
    let events = format!(
        "with {}, {} known by alias",
        count(counts.events, "event"),
        grouped(counts.aliases)
    );
    row("Rooms", format!("{}  {}", grouped(counts.rooms), look.paint(DIM, &events)));
    out.push('\n');

    let mut kinds = stats.kinds.clone();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.records));
    let most = kinds.first().map_or(1, |kind| kind.records.max(1));
    let mut table = Table::new(&[
        ("KIND", Set::Left),
        ("RECORDS", Set::Right),
        ("PAYLOADS", Set::Right),
        ("", Set::Flexible),
    ]);
    for kind in &kinds {
        let style = kind_style(&kind.kind);
        let share = usize::try_from(kind.records * BAR as u64 / most).unwrap_or(BAR);
        table.row([
            (kind.kind.clone(), style),
            (grouped(kind.records), PLAIN),
            (bytes(kind.bytes), DIM),
            ("▇".repeat(share.max(1)), style),
        ]);
    }
    out.push_str(&table.render(look));
    if !stats.busiest.is_empty() {
        out.push('\n');
        let mut table = Table::new(&[
            ("BUSIEST ROOMS", Set::Left),
            ("NAME", Set::Flexible),
            ("EVENTS", Set::Right),
            ("JOINED", Set::Right),
        ]);
        for room in &stats.busiest {
            let name = room.name.as_ref().or(room.alias.as_ref());
            table.row([
                (cut(short(room.room_id.as_str()), 20), BLUE),
                (name.cloned().unwrap_or_default(), BOLD),
                (grouped(room.events), PLAIN),
                (room.joined.to_string(), PLAIN),
            ]);
        }
        out.push_str(&table.render(look));
    }
    out
}

/// A report for people.
#[must_use]
pub fn report(report: &Report, look: &Look) -> String {
    let mut out = heading(look, &report.place, None);
    for check in &report.checks {
        let (mark, style) = match check.outcome {
            Outcome::Passed => ("✓", GREEN),
            Outcome::Failed => ("✗", RED),
            Outcome::Skipped => ("–", DIM),
        };
        let detail = clean(&check.detail);
        let detail_style = if check.outcome == Outcome::Failed { RED } else { PLAIN };
        let _ = write!(out, "  {} {}  ", look.paint(style, mark), pad(check.name, 10));
        // Wrapped and not cut: what is wrong must be readable to its end.
        for (index, line) in wrapped(&detail, look.left(16)).iter().enumerate() {
            let indent = if index == 0 { 0 } else { 16 };
            let _ = writeln!(out, "{:indent$}{}", "", look.paint(detail_style, line));
        }
    }
    let verdict = match report.fault {
        Some(at) => look.paint(RED, &format!("Not intact: the first fault is at record {at}.")),
        None if report.intact => look.paint(GREEN, "Intact."),
        None => look.paint(RED, "Not intact."),
    };
    let _ = writeln!(out, "{verdict}");
    out
}

pub(super) fn audit(audit: &Audit, look: &Look) -> String {
    let mut out = heading(look, audit.user_id.as_str(), None);
    for wrong in &audit.wrong {
        let since =
            wrong.since.map_or_else(|| "the beginning".to_owned(), |at| format!("record {at}"));
        let _ = writeln!(out, "  From {since} to record {}:", wrong.to);
        for finding in &wrong.findings {
            let place = finding.room.as_deref().map(|room| format!("{room}: ")).unwrap_or_default();
            for (index, line) in wrapped(&clean(&format!("{place}{}", finding.what)), look.left(6))
                .iter()
                .enumerate()
            {
                let mark = if index == 0 { "✗" } else { " " };
                let _ = writeln!(out, "    {} {}", look.paint(RED, mark), line);
            }
        }
    }
    let answers = format!(
        "{} with {} {} audited",
        count(audit.answers, "answer"),
        count(audit.events, "event"),
        if audit.answers == 1 { "was" } else { "were" },
    );
    let verdict = if audit.wrong.is_empty() {
        look.paint(GREEN, &format!("{answers}: each is what the log says."))
    } else {
        let wrong = audit.wrong.len();
        look.paint(RED, &format!("{answers}: {wrong} of them not what the log says."))
    };
    let _ = writeln!(out, "{verdict}");
    out
}

/// `text` in lines of at most `columns`, broken at blanks where there are any.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && width(&line) + 1 + width(word) > columns {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}
