//! Findings and the status as people read them in a terminal.

use super::{Level, Report, ServerStatus};
use crate::history::{
    moment::Time,
    terminal::{BOLD, DIM, GREEN, Layout, RED, YELLOW, bytes, clean, duration, grouped, width},
};
use logcabin_record::Offset;

/// The narrowest column of texts.
const NARROWEST: usize = 24;

/// A report, the worst findings first, with why each matters and what mends it.
pub fn render(report: &Report, layout: &Layout) -> String {
    let widest = |texts: &mut dyn Iterator<Item = &str>| texts.map(width).max().unwrap_or(0);
    let levels = widest(&mut report.findings.iter().map(|finding| finding.level.name()));
    let checks = widest(&mut report.findings.iter().map(|finding| &*finding.check));
    let indent = levels + checks + 4;
    let mut out = String::new();
    for finding in &report.findings {
        let style = match finding.level {
            Level::Ok => GREEN,
            Level::Unknown => BOLD,
            Level::Warning => YELLOW,
            Level::Error => RED,
        };
        let name = format!("{:levels$}", finding.level.name());
        let head = format!("{}  {:checks$}  ", layout.paint(style, &name), finding.check);
        out += &paragraph(&head, indent, &finding.what, layout);
        for (label, text) in [("Why:  ", &finding.why), ("Mend: ", &finding.mend)] {
            if !text.is_empty() {
                let head = " ".repeat(indent) + &layout.paint(DIM, label);
                out += &paragraph(&head, indent + label.len(), text, layout);
            }
        }
    }
    let of = |level| grouped(report.count(level) as u64);
    out += &format!(
        "{} error(s), {} warning(s), {} unknown, {} ok\n",
        of(Level::Error),
        of(Level::Warning),
        of(Level::Unknown),
        of(Level::Ok)
    );
    out
}

/// `head`, which takes `indent` columns, and then `text`, wrapped if the terminal has a width.
fn paragraph(head: &str, indent: usize, text: &str, layout: &Layout) -> String {
    let room = layout.width.map_or(usize::MAX, |width| width.saturating_sub(indent));
    // On a terminal that is too narrow for columns, the text has lines of its own.
    let (head, indent, room) = match room < NARROWEST {
        false => (head.to_owned(), indent, room),
        true => (
            format!("{}\n  ", head.trim_end()),
            2,
            layout.width.map_or(usize::MAX, |width| width.saturating_sub(2).max(1)),
        ),
    };
    head + &wrapped(text, room).join(&format!("\n{}", " ".repeat(indent))) + "\n"
}

/// `text` in lines of at most `room` columns.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let used = lines.last().map_or(0, |line| width(line));
        if used > 0 && used.saturating_add(1 + width(word)) > room {
            lines.push(String::new());
        } else if used > 0 {
            lines.last_mut().into_iter().for_each(|line| line.push(' '));
        }
        // Only a word that is longer than a line is broken.
        for letter in word.chars() {
            let wide = width(letter.encode_utf8(&mut [0; 4]));
            if lines.last().is_some_and(|line| !line.is_empty() && width(line) + wide > room) {
                lines.push(String::new());
            }
            lines.last_mut().into_iter().for_each(|line| line.push(letter));
        }
    }
    lines
}

/// The status, a line for each fact.
pub fn render_status(of: &ServerStatus, now_ms: u64, layout: &Layout) -> String {
    let ago = |ms: u64| format!("{} ago", duration(now_ms.saturating_sub(ms) / 1000));
    let server = match (of.running, of.pid, of.since_ms) {
        (true, Some(pid), Some(since_ms)) => {
            let since = Time(since_ms).to_second();
            format!("running, process {pid}, since {since} ({})", ago(since_ms))
        }
        _ => "stopped".to_owned(),
    };
    let free = of.free_bytes.map_or_else(|| "not known".to_owned(), bytes);
    let backup = of.last_backup.as_ref().map_or_else(
        || "none".to_owned(),
        |last| {
            let records = of.end.get().saturating_sub(last.offset.get());
            let place = clean(&last.destination);
            format!("{}, in {place}; {} record(s) since", ago(last.made_ms), grouped(records))
        },
    );
    let reason = of.archive.reason.as_deref().map(clean);
    let archive = match (&*of.archive.state, of.archive.behind, reason) {
        ("written", Some(0), _) => "complete".to_owned(),
        ("written", Some(behind), _) => format!("{} record(s) behind", grouped(behind)),
        (state, _, Some(reason)) => format!("{}: {reason}", clean(state)),
        (state, ..) => clean(state),
    };
    let federation = match of.federation.is_on {
        false => "off".to_owned(),
        true => format!(
            "{} homeserver(s), {} failing, {}{} event(s) waiting",
            grouped(of.federation.destinations),
            grouped(of.federation.failing),
            grouped(of.federation.waiting),
            if of.federation.and_more { " or more" } else { "" },
        ),
    };
    let rows = [
        ("Server", server),
        ("Name", clean(&of.server_name)),
        ("Version", clean(&of.version)),
        ("Users", grouped(of.users)),
        ("Rooms", grouped(of.rooms)),
        ("Log", format!("{} records, {}", grouped(of.end.get()), bytes(of.log_bytes))),
        ("Free disk", free),
        ("Last backup", backup),
        ("Archive", archive),
        ("Federation", federation),
        ("Open reports", grouped(of.open_reports)),
        ("Projections", projections(of)),
    ];
    let widest = rows.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| {
        let head = layout.paint(DIM, &format!("{name:widest$}")) + "  ";
        paragraph(&head, widest + 2, value, layout)
    };
    rows.iter().map(line).collect()
}

fn projections(of: &ServerStatus) -> String {
    let mut text = match of.snapshot {
        Offset::ZERO => "no snapshot yet".to_owned(),
        offset => {
            let by = of.snapshot_version.as_deref().map(clean);
            let by = by.map(|version| format!(", by version {version}")).unwrap_or_default();
            format!("snapshot of record {}{by}", grouped(offset.get()))
        }
    };
    if of.verified_through != Offset::ZERO {
        text += &format!("; verified up to record {}", grouped(of.verified_through.get()));
    }
    if !of.rebuilding.is_empty() {
        text += &format!("; being rebuilt: {}", clean(&of.rebuilding.join(", ")));
    }
    if !of.faults.is_empty() {
        text += &format!("; DIFFERED FROM THE LOG: {}", clean(&of.faults.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Finding;

    fn report() -> Report {
        let findings = vec![
            Finding::ok("disk", "All is well."),
            Finding::new(
                "permissions",
                Level::Error,
                format!("Other users may read {}.", "x".repeat(90)),
                "They should not.",
                "chmod 600 /srv/tokens.key",
            ),
        ];
        Report::of(findings, 0, true)
    }

    #[test]
    fn a_report_fits_its_terminal_and_loses_nothing() {
        let words = |text: &str| text.split_whitespace().collect::<String>();
        let whole = render(&report(), &Layout::default());
        assert!(!whole.contains('\u{1b}'), "{whole}");
        assert!(whole.contains("chmod 600 /srv/tokens.key\n"), "{whole}");
        assert!(whole.starts_with("error  permissions  Other users"), "{whole}");
        assert!(whole.ends_with("1 error(s), 0 warning(s), 0 unknown, 1 ok\n"), "{whole}");
        for columns in [30, 40, 60, 80, 120] {
            let text = render(&report(), &Layout { colour: false, width: Some(columns) });
            let last = text.lines().count() - 1;
            // The totals may be wider than the narrowest terminal.
            let fits = |line: &str| width(line) <= columns;
            assert!(text.lines().take(last).all(fits), "{columns}: {text}");
            assert_eq!(words(&text), words(&whole), "{columns}");
        }
        let coloured = render(&report(), &Layout { colour: true, width: None });
        assert!(coloured.contains('\u{1b}'), "{coloured}");
    }

    #[test]
    fn words_are_wrapped_by_columns() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("日本語日本語 a", 6), ["日本語", "日本語", "a"]);
        assert_eq!(wrapped("", 5), [""]);
    }
}
