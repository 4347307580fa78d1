//! What was measured, as JSON lines, tables and plots, and in `docs/performance.md`.

use std::{fmt::Write as _, fs, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    Failure,
    target::{Spent, Target},
};

/// The least that a request can cost: the baseline of the others.
pub(crate) const NOTHING: &str = "PUT that does nothing";

/// What is measured of one kind of operation: one JSON line. Times are those of the client.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Which server, with its version.
    pub(crate) label: String,
    pub(crate) operation: String,
    operations: usize,
    /// How long all of them took.
    seconds: f64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// The server's CPU time for each.
    pub(crate) cpu_ms: f64,
    /// The CPU time of the client beside it, for each.
    client_cpu_ms: f64,
    /// The mean size of an answer's body, where it is the same kind of answer each time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer_bytes: Option<f64>,
    /// The server's memory afterwards.
    memory_mib: f64,
    /// The memory of each waiting client, with the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waiting_kib: Option<f64>,
    /// How much of a core all waiting clients take while nothing comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waiting_percent: Option<f64>,
    pub(crate) note: String,
}

impl Row {
    /// Of times in milliseconds, in any order.
    pub(crate) fn new(target: &Target, operation: &str, mut times: Vec<f64>, spent: Spent) -> Self {
        times.sort_by(f64::total_cmp);
        let quantile = |of: f64| {
            let last = times.len().saturating_sub(1) as f64;
            times.get((last * of).round() as usize).copied().unwrap_or_default()
        };
        let each = |milliseconds: f64| milliseconds / times.len().max(1) as f64;
        Self {
            label: target.label.clone(),
            operation: operation.to_owned(),
            operations: times.len(),
            seconds: spent.seconds,
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            max_ms: quantile(1.0),
            cpu_ms: each(spent.cpu_ms),
            client_cpu_ms: each(spent.client_cpu_ms),
            answer_bytes: None,
            memory_mib: target.memory() / 1024.0 / 1024.0,
            waiting_kib: None,
            waiting_percent: None,
            note: String::new(),
        }
    }

    /// With the bytes of all answers.
    pub(crate) fn with_bytes(self, bytes: usize) -> Self {
        let answer_bytes = Some(bytes as f64 / self.operations.max(1) as f64);
        Self { answer_bytes, ..self }
    }

    pub(crate) fn with_note(self, note: &str) -> Self {
        Self { note: note.to_owned(), ..self }
    }

    pub(crate) fn with_waiting(self, bytes: f64, percent: f64) -> Self {
        Self { waiting_kib: Some(bytes / 1024.0), waiting_percent: Some(percent), ..self }
    }

    fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }
}

/// One operation at growing sizes of one thing.
#[derive(Serialize)]
pub(crate) struct Growth {
    pub(crate) what: String,
    pub(crate) operation: String,
    /// Whether what is answered grows with it.
    pub(crate) may_grow: bool,
    pub(crate) rows: Vec<(usize, Row)>,
}

/// One JSON line for each.
pub(crate) fn lines<T: Serialize>(rows: &[T]) -> Result<String, Failure> {
    let lines: Result<Vec<String>, _> = rows.iter().map(serde_json::to_string).collect();
    Ok(lines?.join("\n") + "\n")
}

/// The rows of a file of JSON lines.
pub(crate) fn read(file: &Path) -> Result<Vec<Row>, Failure> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// One server: each operation beside the least that a request can cost.
pub(crate) fn table(rows: &[Row]) -> String {
    let floor = rows.iter().find(|row| row.operation == NOTHING);
    let mut text = String::from(
        "| operation | per second | p50 ms | p99 ms | CPU ms each | × nothing | client's CPU | how |\n\
         |---|--:|--:|--:|--:|--:|--:|---|\n",
    );
    for row in rows {
        let times = floor.map(|floor| times(row.cpu_ms / floor.cpu_ms)).unwrap_or_default();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {times} | {} | {} |",
            row.operation,
            short(row.rate()),
            short(row.p50_ms),
            short(row.p99_ms),
            short(row.cpu_ms),
            short(row.client_cpu_ms),
            row.note
        );
    }
    let find = |operation: &str| rows.iter().find(|row| row.operation == operation);
    if let Some(send) = find("send a message")
        && let Some((nothing, before)) = find(NOTHING).zip(find("PUT of what was sent before"))
    {
        let _ = writeln!(
            text,
            "\nSends reach {:.0} % of the throughput of a PUT that does nothing, and {:.0} % of that of one \
             that is routed, authenticated, decoded and found to have been answered before.",
            100.0 * send.rate() / nothing.rate(),
            100.0 * send.rate() / before.rate()
        );
    }
    text
}

/// Sizes of answers beside what they cost.
pub(crate) fn compression_table(rows: &[Row]) -> String {
    let mut text =
        String::from("| answer | bytes | CPU ms each | p50 ms | p99 ms |\n|---|--:|--:|--:|--:|\n");
    for row in rows {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            row.operation,
            short(row.answer_bytes.unwrap_or_default()),
            short(row.cpu_ms),
            short(row.p50_ms),
            short(row.p99_ms)
        );
    }
    text
}

/// A column of what is compared: its name, and the value of a row.
type Column = (&'static str, fn(&Row) -> Option<f64>);

/// Several servers, each with its rows: the first is the baseline.
pub(crate) fn comparison(servers: &[Vec<Row>]) -> String {
    let label = |rows: &Vec<Row>| rows.first().map(|row| row.label.clone()).unwrap_or_default();
    let Some((ours, others)) = servers.split_first() else { return String::new() };
    let head = |text: &mut String, first: &str| {
        let _ = write!(text, "| {first} | {} |", label(ours));
        for other in others {
            let _ = write!(text, " {} | × |", label(other));
        }
        let _ = writeln!(text, "\n|---|--:|{}", "--:|--:|".repeat(others.len()));
    };
    let line = |text: &mut String, name: &str, values: &[Option<f64>]| {
        let Some(Some(ours)) = values.first() else { return };
        let _ = write!(text, "| {name} | {} |", short(*ours));
        for other in &values[1..] {
            let _ = match other {
                Some(other) => write!(text, " {} | {} |", short(*other), times(other / ours)),
                None => write!(text, " – | – |"),
            };
        }
        text.push('\n');
    };
    let find =
        |rows: &[Row], operation: &str| rows.iter().find(|row| row.operation == operation).cloned();
    let mut text = String::new();
    let columns: [Column; 3] = [
        ("CPU ms for each", |row| Some(row.cpu_ms)),
        ("ms until it is done, p50", |row| Some(row.p50_ms)),
        ("p99", |row| Some(row.p99_ms)),
    ];
    for (name, value) in columns {
        head(&mut text, name);
        for row in ours {
            let values: Vec<_> = servers
                .iter()
                .map(|rows| find(rows, &row.operation).as_ref().and_then(value))
                .collect();
            line(&mut text, &row.operation, &values);
        }
        text.push('\n');
    }
    head(&mut text, "memory");
    let last = |rows: &Vec<Row>| rows.last().map(|row| row.memory_mib);
    let waits = |of: fn(&Row) -> Option<f64>| {
        servers.iter().map(|rows| rows.iter().find_map(of)).collect::<Vec<_>>()
    };
    line(&mut text, "after all of it, MiB", &servers.iter().map(last).collect::<Vec<_>>());
    line(&mut text, "of one who waits, KiB", &waits(|row| row.waiting_kib));
    line(&mut text, "CPU of all who wait, % of a core", &waits(|row| row.waiting_percent));
    text
}

/// What each operation costs at each size, and by what factor the last costs more than the first.
pub(crate) fn growth_table(all: &[Growth]) -> String {
    let mut text = String::from(
        "| what grows | operation | sizes | CPU ms each | factor | |\n|---|---|---|---|--:|---|\n",
    );
    let joined = |values: Vec<String>| values.join(" / ");
    for growth in all {
        let costs: Vec<f64> = growth.rows.iter().map(|(_, row)| row.cpu_ms).collect();
        let factor = costs.last().zip(costs.first()).map_or(0.0, |(last, first)| last / first);
        let sizes: Vec<f64> = growth.rows.iter().map(|(size, _)| *size as f64).collect();
        let size = sizes.last().zip(sizes.first()).map_or(0.0, |(last, first)| last / first);
        let verdict = match (growth.may_grow, factor) {
            (true, factor) if factor > 1.3 * size => "**faster than its answer**",
            (true, _) => "as its answer",
            (false, factor) if factor > 1.5 => "**grows**",
            (false, _) => "flat",
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {verdict} |",
            growth.what,
            growth.operation,
            joined(sizes.iter().map(|size| short(*size)).collect()),
            joined(costs.iter().map(|cost| short(*cost)).collect()),
            times(factor)
        );
        let waiting: Vec<_> = growth.rows.iter().filter_map(|(_, row)| row.waiting_kib).collect();
        if !waiting.is_empty() {
            let idle = growth.rows.iter().filter_map(|(_, row)| row.waiting_percent);
            let _ = writeln!(
                text,
                "| {} | memory of each, KiB | | {} | | |\n| {} | idle, % of a core | | {} | | |",
                growth.what,
                joined(waiting.into_iter().map(short).collect()),
                growth.what,
                joined(idle.map(short).collect())
            );
        }
    }
    text
}

/// Three significant digits, whatever the size.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        whole if whole.fract() == 0.0 => 0,
        value => usize::try_from(2 - value.log10().floor() as i32).unwrap_or(0).min(4),
    };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if fraction.is_empty() { grouped } else { format!("{grouped}.{fraction}") }
}

fn times(factor: f64) -> String {
    format!("{}×", short(factor))
}

/// A bar in each group: what it stands for, and its colour.
const COLOURS: [&str; 4] = ["#4c78a8", "#f58518", "#e45756", "#72b7b2"];

/// The three times of one server.
pub(crate) fn plot(rows: &[Row]) -> String {
    let names = ["server's CPU for each", "p50", "p99"].map(str::to_owned);
    let values = |row: &Row| vec![Some(row.cpu_ms), Some(row.p50_ms), Some(row.p99_ms)];
    let groups: Vec<_> = rows.iter().map(|row| (row.operation.clone(), values(row))).collect();
    bars("Logcabin under load, ms", &names, &groups)
}

/// The CPU time of several servers.
pub(crate) fn comparison_plot(servers: &[Vec<Row>]) -> String {
    let names: Vec<_> =
        servers.iter().filter_map(|rows| Some(rows.first()?.label.clone())).collect();
    let value = |rows: &Vec<Row>, operation: &str| {
        rows.iter().find(|row| row.operation == operation).map(|row| row.cpu_ms)
    };
    let ours = servers.first().map(Vec::as_slice).unwrap_or_default();
    let groups: Vec<_> = ours
        .iter()
        .map(|row| {
            let values = servers.iter().map(|rows| value(rows, &row.operation)).collect();
            (row.operation.clone(), values)
        })
        .collect();
    bars("CPU time for each operation, ms", &names, &groups)
}

/// Groups of bars on a logarithmic scale, of milliseconds.
fn bars(title: &str, names: &[String], groups: &[(String, Vec<Option<f64>>)]) -> String {
    const LEFT: f64 = 220.0;
    const WIDE: f64 = 460.0;
    const BAR: f64 = 12.0;
    const TOP: f64 = 62.0;
    let all = || groups.iter().flat_map(|(_, values)| values).flatten().filter(|ms| **ms > 0.0);
    let low = all().copied().fold(1.0, f64::min).log10().floor() as i32;
    let high = (all().copied().fold(1.0, f64::max).log10().ceil() as i32).max(low + 1);
    let x = |ms: f64| {
        let share = (ms.log10() - f64::from(low)) / f64::from(high - low);
        LEFT + WIDE * share.clamp(0.0, 1.0)
    };
    let step = BAR * names.len() as f64 + 14.0;
    let bottom = TOP + step * groups.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 {:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"20\" font-size=\"14\">{}</text>\n",
        bottom + 30.0,
        escaped(title)
    );
    let mut at = 12.0;
    for (name, colour) in names.iter().zip(COLOURS) {
        let _ = writeln!(
            svg,
            "<rect x=\"{at:.0}\" y=\"34\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"44\">{}</text>",
            at + 17.0,
            escaped(name)
        );
        // No letter of this size is wider.
        at += 45.0 + 7.5 * name.chars().count() as f64;
    }
    for ms in (low..=high).map(|power| 10_f64.powi(power)) {
        let at = x(ms);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {:.0}V{bottom:.0}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#555\">{ms}</text>",
            TOP - 6.0,
            bottom + 18.0
        );
    }
    for (index, (name, values)) in groups.iter().enumerate() {
        let top = TOP + step * index as f64;
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            top + (step - 14.0) / 2.0 + 4.0,
            escaped(name)
        );
        for (bar, (value, colour)) in values.iter().zip(COLOURS).enumerate() {
            let Some(ms) = *value else { continue };
            let (y, end) = (top + BAR * bar as f64, x(ms));
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.0}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"10\" fill=\"#333\">{}</text>",
                (end - LEFT).max(1.0),
                BAR - 2.0,
                end + 4.0,
                y + 9.0,
                short(ms)
            );
        }
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// Puts a table between its two marks in a text, in place of what was there.
pub(crate) fn replace(text: &str, block: &str, table: &str) -> Result<String, Failure> {
    let (begin, end) = (format!("<!-- {block}: -->\n"), format!("<!-- :{block} -->"));
    let parts = text.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(&end)?;
        Some(format!("{before}{begin}\n{}\n\n{end}{after}", table.trim()))
    });
    Ok(parts.ok_or_else(|| format!("docs/performance.md has no {} … {end}", begin.trim()))?)
}
