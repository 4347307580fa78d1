//! Answers for people: lines, tables and blocks of text. Foreign text is cleaned before it reaches
//! a terminal, see [`clean`].

use std::fmt::Write as _;

use anstyle::Style;
use serde_json::Value;

use super::{
    audit::Audit,
    check::{Outcome, Report},
    diff::Diff,
    du::{NamedSize, RecordTotals, Usage},
    paragraphs::{differing, hanging, paragraph},
    query::{ErasureView, EventRow, RecordView, RoomRow, Stats, UserRow},
    rows::{AliasRow, DeviceRow, MediaRow, MemberRow, PusherRow, TokenRow},
    step::Step,
    terminal::{
        BLUE, BOLD, CYAN, ColumnLayout, DIM, GREEN, Layout, MAGENTA, PLAIN, RED, Table, YELLOW,
        bytes, clean, cut, grouped, pad, width, wrapped,
    },
};
use logcabin_record::{
    Offset,
    command::{Family, Kind},
};

const CLOCK: usize = 12;
const OFFSET: usize = 7;
const KIND: usize = 16;
const WHO: usize = 18;
const WHO_IN_ROOM: usize = 22;
const ROOM: usize = 12;
const BAR: usize = 24;

/// A colour for each family of kinds, so that a screen of records can be scanned quickly.
fn kind_style(kind: &str) -> Style {
    match Kind::named(kind).map_or(Family::Other, |kind| kind.family) {
        Family::Account | Family::Filter => GREEN,
        Family::Device | Family::Browser => CYAN,
        Family::Event => BLUE,
        Family::Room | Family::Receipt => DIM,
        Family::Alias => YELLOW,
        Family::Presence | Family::Address | Family::Keys | Family::Other => MAGENTA,
    }
}

/// Messages stand out from other records.
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

/// The date and the time of day of a time in the rows.
fn split(time: &str) -> (&str, &str) {
    let (day, clock) = time.split_once('T').unwrap_or((time, ""));
    (day, clock.trim_end_matches('Z'))
}

fn to_second(time: Option<&String>) -> String {
    let (day, clock) = time.map(|time| split(time)).unwrap_or_default();
    format!("{day} {}", clock.get(..8).unwrap_or_default())
}

/// A separator whenever the date changes.
fn day_line(day: &str, last: &mut String, look: &Layout) -> String {
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

/// The short form of an id: its part before the server's name.
fn short(id: &str) -> &str {
    id.split_once(':').map_or(id, |(local, _)| local)
}

pub(super) fn record_in_line(record: &RecordView, look: &Layout, last_day: &mut String) -> String {
    let (day, clock) = split(record.happened());
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

/// All details of one record.
pub(super) fn record_in_full(record: &RecordView, look: &Layout) -> String {
    let mut out = heading(look, &format!("record {}", record.offset), None);
    let flags = [
        (record.must_not_rewind, "survives a restore"),
        (record.ephemeral, "its payload may be erased once superseded"),
    ];
    let flags: Vec<_> = flags.iter().filter(|(set, _)| *set).map(|(_, text)| *text).collect();
    let batch = match record.batch_remaining {
        0 => "the last of its batch".to_owned(),
        more => format!("{more} more records of its batch follow"),
    };
    let origin = [&record.user, &record.device, &record.request];
    let origin: Vec<_> =
        origin.iter().filter(|part| !part.is_empty()).map(|part| part.as_str()).collect();
    let origin = if origin.is_empty() { "the server itself".to_owned() } else { origin.join("  ") };
    let rows = [
        ("says", format!("{} {}", record.who, record.text), BOLD),
        ("time", record.time.clone(), PLAIN),
        ("original", record.original.clone().unwrap_or_default(), PLAIN),
        ("kind", format!("{}, version {}", record.kind, record.version), kind_style(&record.kind)),
        ("stream", record.stream.clone(), PLAIN),
        ("origin", origin, PLAIN),
        ("trace", record.trace.clone().unwrap_or_default(), PLAIN),
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
fn json(value: &Value, look: &Layout, depth: usize, out: &mut String) {
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

/// The subject of an answer.
pub(super) fn heading(look: &Layout, what: &str, at: Option<Offset>) -> String {
    let at = at.map_or_else(String::new, |at| look.paint(DIM, &format!("  as of record {at}")));
    format!("{}{at}\n", look.paint(BOLD, &clean(what)))
}

/// The records that made a value what it is.
pub(super) fn why(steps: &[Step], look: &Layout) -> String {
    if steps.is_empty() {
        return look.paint(DIM, "No record has ever set this.") + "\n";
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
        paragraph(&indent, &clean(&step.text), PLAIN, look, &mut out);
        let shown = |value: &Option<Value>| match value {
            Some(value) => clean(&value.to_string()),
            None => "(nothing)".to_owned(),
        };
        let (before, after) = (shown(&step.before), shown(&step.after));
        let mut named = |name: &str, style: Style, text: &str| {
            let first = format!("{indent}{} ", look.paint(style, name));
            hanging(&first, indent.len() + width(name) + 1, text, PLAIN, look, &mut out);
        };
        if step.before == step.after {
            named("stays  ", DIM, &after);
        } else {
            let fits = |text: &String| width(text) <= look.left(OFFSET + 2 + 8);
            let (before, after) = match fits(&before) && fits(&after) {
                true => (before, after),
                false => differing(&before, &after),
            };
            named("before ", RED, &before);
            named("after  ", GREEN, &after);
        }
        if let Some(resolution) = &step.resolution {
            for line in resolution.lines() {
                paragraph(&indent, &clean(&line), DIM, look, &mut out);
            }
        }
    }
    out
}

pub(super) fn nothing_to_follow(look: &Layout) -> String {
    look.paint(DIM, "── the server is stopped: there is nothing to follow") + "\n"
}

pub(super) fn server_stopped(look: &Layout) -> String {
    look.paint(DIM, "── the server has stopped") + "\n"
}

pub(super) fn rooms(rooms: &[RoomRow], look: &Layout) -> String {
    if rooms.is_empty() {
        return look.paint(DIM, "There are no rooms yet.") + "\n";
    }
    let mut table = Table::new(&[
        ("ROOM", ColumnLayout::Left),
        ("ALIAS", ColumnLayout::Flexible),
        ("NAME", ColumnLayout::Flexible),
        ("V", ColumnLayout::Optional),
        ("JOINED", ColumnLayout::Right),
        ("EVENTS", ColumnLayout::Right),
        ("LAST EVENT", ColumnLayout::Optional),
        ("", ColumnLayout::Optional),
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
pub(super) fn event(event: &EventRow, look: &Layout, last_day: &mut String) -> String {
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

pub(super) fn state(events: &[EventRow], look: &Layout) -> String {
    if events.is_empty() {
        return look.paint(DIM, "The room has no state at that moment.") + "\n";
    }
    let mut table = Table::new(&[
        ("TYPE", ColumnLayout::Left),
        ("KEY", ColumnLayout::Flexible),
        ("RECORD", ColumnLayout::Right),
        ("SINCE", ColumnLayout::Optional),
        ("BY", ColumnLayout::Optional),
        ("CONTENT", ColumnLayout::Flexible),
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

/// How a moment was reached.
pub(super) fn way(look: &Layout, way: &str) -> String {
    look.paint(DIM, way) + "\n"
}

pub(super) fn diff(diff: &Diff, look: &Layout) -> String {
    let mut out = heading(look, diff.of.as_deref().unwrap_or("the server"), None);
    let time = |time: &Option<String>| {
        time.as_ref().map_or_else(String::new, |_| format!(" ({})", to_second(time.as_ref())))
    };
    let summary = format!(
        "records {}{} → {}{}: {}, {}",
        diff.from,
        time(&diff.from_time),
        diff.to,
        time(&diff.to_time),
        count(diff.records, "record"),
        count(diff.changes.len() as u64, "change"),
    );
    let _ = writeln!(out, "{}", look.paint(DIM, &summary));
    if !diff.changes.is_empty() {
        out.push('\n');
    }
    let shown = |value: &Option<Value>| match value {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "(nothing)".to_owned(),
    };
    for change in &diff.changes {
        let (sign, style) = match (&change.before, &change.after) {
            (None, _) => ("+", GREEN),
            (_, None) => ("−", RED),
            _ => ("~", YELLOW),
        };
        let what = look.paint(style, &format!("{sign} {}", clean(&change.what)));
        let (before, after) = (clean(&shown(&change.before)), clean(&shown(&change.after)));
        let used = width(&change.what) + 4;
        if used + width(&before) + width(&after) + 3 <= look.left(0) {
            let _ = writeln!(out, "{what}  {} → {after}", look.paint(DIM, &before));
        } else {
            let _ = writeln!(out, "{what}");
            let (before, after) = differing(&before, &after);
            paragraph("    ", &before, DIM, look, &mut out);
            paragraph("  → ", &after, PLAIN, look, &mut out);
        }
    }
    if !diff.kinds.is_empty() {
        out.push('\n');
        let mut kinds = diff.kinds.clone();
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.records));
        let mut table = Table::new(&[
            ("KIND", ColumnLayout::Flexible),
            ("RECORDS", ColumnLayout::Right),
            ("PAYLOADS", ColumnLayout::Right),
        ]);
        for kind in &kinds {
            let records = grouped(kind.records);
            table.row([(kind.kind.clone(), PLAIN), (records, PLAIN), (bytes(kind.bytes), DIM)]);
        }
        out.push_str(&table.render(look));
    }
    out
}

/// A table, or a replacement for an empty one.
pub(super) fn table<T, const N: usize>(
    rows: &[T],
    look: &Layout,
    columns: &[(&'static str, ColumnLayout)],
    none: &str,
    cells: impl Fn(&T) -> [(String, Style); N],
) -> String {
    if rows.is_empty() {
        return look.paint(DIM, none) + "\n";
    }
    let mut table = Table::new(columns);
    rows.iter().for_each(|row| table.row(cells(row)));
    table.render(look)
}

pub(super) fn members(members: &[MemberRow], look: &Layout) -> String {
    let columns = [
        ("USER", ColumnLayout::Flexible),
        ("NAME", ColumnLayout::Flexible),
        ("MEMBERSHIP", ColumnLayout::Left),
        ("BY", ColumnLayout::Optional),
        ("SINCE", ColumnLayout::Optional),
        ("RECORD", ColumnLayout::Right),
    ];
    table(members, look, &columns, "Nobody has ever been in the room.", |member| {
        let style = if member.membership == "join" { GREEN } else { PLAIN };
        [
            (member.user_id.clone(), BOLD),
            (member.display_name.clone().unwrap_or_default(), PLAIN),
            (member.membership.clone(), style),
            (short(&member.sender).to_owned(), DIM),
            (to_second(Some(&member.since)), DIM),
            (member.offset.to_string(), DIM),
        ]
    })
}

pub(super) fn devices(devices: &[DeviceRow], look: &Layout) -> String {
    let columns = [
        ("USER", ColumnLayout::Flexible),
        ("DEVICE", ColumnLayout::Flexible),
        ("NAME", ColumnLayout::Flexible),
        ("LOGGED IN", ColumnLayout::Left),
        ("SEEN", ColumnLayout::Optional),
        ("", ColumnLayout::Optional),
    ];
    table(devices, look, &columns, "No device is logged in.", |device| {
        [
            (device.user_id.clone(), BOLD),
            (device.device_id.clone(), CYAN),
            (device.display_name.clone().unwrap_or_default(), PLAIN),
            (to_second(Some(&device.since)), DIM),
            (device.seen.as_ref().map_or_else(String::new, |seen| to_second(Some(seen))), DIM),
            (if device.dehydrated { "dehydrated" } else { "" }.to_owned(), YELLOW),
        ]
    })
}

pub(super) fn aliases(aliases: &[AliasRow], look: &Layout) -> String {
    let columns = [
        ("ALIAS", ColumnLayout::Flexible),
        ("ROOM", ColumnLayout::Flexible),
        ("BY", ColumnLayout::Optional),
    ];
    table(aliases, look, &columns, "There are no aliases.", |alias| {
        [
            (alias.alias.clone(), BOLD),
            (alias.room_id.clone(), BLUE),
            (short(&alias.creator).to_owned(), DIM),
        ]
    })
}

pub(super) fn pushers(pushers: &[PusherRow], look: &Layout) -> String {
    let columns = [
        ("USER", ColumnLayout::Flexible),
        ("APP", ColumnLayout::Flexible),
        ("KIND", ColumnLayout::Left),
        ("DEVICE", ColumnLayout::Flexible),
        ("SET", ColumnLayout::Optional),
        ("RECORD", ColumnLayout::Right),
    ];
    table(pushers, look, &columns, "There are no pushers.", |pusher| {
        [
            (pusher.user_id.clone(), BOLD),
            (pusher.app_id.clone(), PLAIN),
            (pusher.kind.to_owned(), PLAIN),
            (pusher.device.clone(), CYAN),
            (to_second(Some(&pusher.set)), DIM),
            (pusher.offset.to_string(), DIM),
        ]
    })
}

pub(super) fn media(files: &[MediaRow], look: &Layout) -> String {
    let columns = [
        ("FILE", ColumnLayout::Flexible),
        ("BY", ColumnLayout::Flexible),
        ("SIZE", ColumnLayout::Right),
        ("UPLOADED", ColumnLayout::Optional),
        ("RECORD", ColumnLayout::Right),
    ];
    table(files, look, &columns, "Nothing was uploaded.", |file| {
        [
            (file.uri.clone(), BOLD),
            (file.user_id.clone().unwrap_or_default(), PLAIN),
            (bytes(file.size), PLAIN),
            (to_second(Some(&file.uploaded)), DIM),
            (file.offset.to_string(), DIM),
        ]
    })
}

pub(super) fn registration_tokens(tokens: &[TokenRow], look: &Layout) -> String {
    let columns = [
        ("TOKEN", ColumnLayout::Left),
        ("LABEL", ColumnLayout::Flexible),
        ("USES", ColumnLayout::Right),
        ("OF", ColumnLayout::Right),
        ("EXPIRES", ColumnLayout::Optional),
    ];
    table(tokens, look, &columns, "There are no registration tokens.", |token| {
        [
            (token.id.clone(), BOLD),
            (token.label.clone().unwrap_or_default(), PLAIN),
            (grouped(token.uses), PLAIN),
            (token.uses_allowed.map(grouped).unwrap_or_default(), PLAIN),
            (token.expires.as_ref().map_or_else(String::new, |t| to_second(Some(t))), DIM),
        ]
    })
}

pub(super) fn users(users: &[UserRow], look: &Layout) -> String {
    if users.is_empty() {
        return look.paint(DIM, "Nobody has registered yet.") + "\n";
    }
    let mut table = Table::new(&[
        ("USER", ColumnLayout::Flexible),
        ("NAME", ColumnLayout::Flexible),
        ("ROOMS", ColumnLayout::Right),
        ("DEVICES", ColumnLayout::Flexible),
        ("REGISTERED", ColumnLayout::Optional),
        ("CHANGED", ColumnLayout::Optional),
        ("", ColumnLayout::Left),
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

pub(super) fn stats(stats: &Stats, look: &Layout) -> String {
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
        ("KIND", ColumnLayout::Left),
        ("RECORDS", ColumnLayout::Right),
        ("PAYLOADS", ColumnLayout::Right),
        ("", ColumnLayout::Flexible),
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
            ("BUSIEST ROOMS", ColumnLayout::Left),
            ("NAME", ColumnLayout::Flexible),
            ("EVENTS", ColumnLayout::Right),
            ("JOINED", ColumnLayout::Right),
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

/// Storage use.
pub(super) fn usage(usage: &Usage, look: &Layout) -> String {
    let total = format!("{} in {}", bytes(usage.log.bytes), count(usage.log.records, "record"),);
    let mut out = heading(look, &total, None);
    let mut section = |text: String| {
        out.push('\n');
        out.push_str(&text);
    };
    let parts = |title: &'static str, parts: &[NamedSize]| {
        let columns = [(title, ColumnLayout::Left), ("BYTES", ColumnLayout::Right)];
        table(parts, look, &columns, "", |part| {
            [(part.name.clone(), BOLD), (bytes(part.bytes), PLAIN)]
        })
    };
    let shares = |title: &'static str, shares: &[RecordTotals]| {
        let columns = [
            (title, ColumnLayout::Flexible),
            ("RECORDS", ColumnLayout::Right),
            ("BYTES", ColumnLayout::Right),
            ("ERASED", ColumnLayout::Right),
        ];
        table(shares, look, &columns, "", |share| {
            let erased = if share.erased == 0 { String::new() } else { bytes(share.erased) };
            [
                (share.name.clone(), BOLD),
                (grouped(share.records), PLAIN),
                (bytes(share.bytes), PLAIN),
                (erased, DIM),
            ]
        })
    };
    if !usage.disk.is_empty() {
        section(parts("ON DISK", &usage.disk));
    }
    section(shares("KIND", &usage.kinds));
    if !usage.rooms.is_empty() {
        section(shares("ROOM", &usage.rooms));
    }
    let columns = [
        ("USER", ColumnLayout::Flexible),
        ("RECORDS", ColumnLayout::Right),
        ("BYTES", ColumnLayout::Right),
        ("FILES", ColumnLayout::Right),
        ("THEIR BYTES", ColumnLayout::Right),
    ];
    if !usage.users.is_empty() {
        section(table(&usage.users, look, &columns, "", |user| {
            [
                (user.share.name.clone(), BOLD),
                (grouped(user.share.records), PLAIN),
                (bytes(user.share.bytes), PLAIN),
                (grouped(user.files), PLAIN),
                (bytes(user.file_bytes), PLAIN),
            ]
        }));
    }
    section(parts("PROJECTION", &usage.projections));
    section(shares("DAY", &usage.days));
    out
}

/// A report for people.
pub fn report(report: &Report, look: &Layout) -> String {
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
        // Wrapped, not cut, so that faults can be read to the end.
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

pub(super) fn audit(audit: &Audit, look: &Layout) -> String {
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
        look.paint(GREEN, &format!("{answers}: all match the log."))
    } else {
        let wrong = audit.wrong.len();
        look.paint(RED, &format!("{answers}: {wrong} of them do not match the log."))
    };
    let _ = writeln!(out, "{verdict}");
    out
}
