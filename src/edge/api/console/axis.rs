//! What is beside and below a drawing: values and times at round places.

use maud::{Markup, html};

use logcabin_ops::history::{moment::Time, terminal::grouped};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// The days from a Monday to the first of January 1970.
const THURSDAY: u64 = 3;

/// The distances between times that an axis can have.
const STEPS_MS: [u64; 12] = [
    MINUTE_MS,
    5 * MINUTE_MS,
    15 * MINUTE_MS,
    HOUR_MS,
    4 * HOUR_MS,
    DAY_MS,
    2 * DAY_MS,
    7 * DAY_MS,
    28 * DAY_MS,
    56 * DAY_MS,
    364 * DAY_MS,
    3640 * DAY_MS,
];

/// The most lines above the lowest one.
const LINES: f64 = 4.0;

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// How values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Of what there is no half.
    Count,
    Number,
    Seconds,
    Bytes,
    Percent,
}

impl Unit {
    /// A value for people. The script of the console does the same.
    pub(super) fn show(self, value: f64) -> String {
        match self {
            Self::Count | Self::Number if value >= 1e6 => format!("{} M", short(value / 1e6)),
            Self::Count | Self::Number if value >= 1e3 => grouped(value.round() as u64),
            Self::Count | Self::Number => short(value),
            Self::Percent => format!("{} %", short(value)),
            Self::Seconds if value == 0.0 => "0 s".to_owned(),
            Self::Seconds if value < 1e-3 => format!("{} µs", short(value * 1e6)),
            Self::Seconds if value < 1.0 => format!("{} ms", short(value * 1e3)),
            Self::Seconds => format!("{} s", short(value)),
            Self::Bytes if value >= 1e9 => format!("{} GB", short(value / 1e9)),
            Self::Bytes if value >= 1e6 => format!("{} MB", short(value / 1e6)),
            Self::Bytes if value >= 1e3 => format!("{} kB", short(value / 1e3)),
            Self::Bytes => format!("{} B", short(value)),
        }
    }

    /// What the script of the console calls it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Count | Self::Number => "number",
            Self::Seconds => "seconds",
            Self::Bytes => "bytes",
            Self::Percent => "percent",
        }
    }

    /// The smallest distance between two lines.
    const fn least(self) -> f64 {
        match self {
            Self::Count => 1.0,
            Self::Bytes => 1e3,
            Self::Number | Self::Seconds | Self::Percent => 0.0,
        }
    }
}

/// Two or three digits, without zeros that say nothing.
fn short(value: f64) -> String {
    let text = match value {
        value if value >= 100.0 => return format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 0.1 => format!("{value:.2}"),
        value if value >= 0.01 => format!("{value:.3}"),
        value => format!("{value:.4}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The values beside a drawing, from zero to the first round one that nothing exceeds.
pub(super) fn values(unit: Unit, highest: f64) -> Vec<f64> {
    let highest = if highest.is_finite() { highest } else { 0.0 };
    let step = round_up(highest / LINES).max(unit.least());
    let step = if step > 0.0 { step } else { 1.0 };
    // What was computed may be a hair above what is round.
    let lines = (highest / step - 1e-9).ceil().clamp(1.0, LINES + 1.0);
    (0..=lines as u32).map(|line| f64::from(line) * step).collect()
}

/// The least of 1, 2, 5, 10, 20, 50 and so on that is not below a value.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 0.0;
    }
    let digit = 10_f64.powf(value.log10().floor());
    let rounds = [1.0, 2.0, 5.0].map(|round| round * digit);
    rounds.into_iter().find(|round| *round >= value * (1.0 - 1e-9)).unwrap_or(10.0 * digit)
}

/// The distance between round times of which there are no more than `most` in a stretch.
pub(super) fn step_ms(span_ms: u64, most: u64) -> u64 {
    let fits = |step: &u64| span_ms / step <= most;
    STEPS_MS.into_iter().find(fits).unwrap_or(u64::MAX)
}

/// The first time from `from_ms` on, in UTC, that is round for this distance.
pub(super) fn first_from(from_ms: u64, step_ms: u64) -> u64 {
    // Weeks begin on Monday.
    let shift = if step_ms >= 7 * DAY_MS { THURSDAY * DAY_MS } else { 0 };
    let steps = from_ms.saturating_add(shift).div_ceil(step_ms.max(1));
    steps.saturating_mul(step_ms).saturating_sub(shift)
}

/// The times below a drawing with `from_ms` at `left` and `to_ms` at `right`, and their lines up
/// to `top`. The script puts those of the reader's zone in their place.
pub(super) fn times(
    (from_ms, to_ms): (u64, u64),
    (left, right): (f64, f64),
    (top, bottom): (f64, f64),
) -> Markup {
    let span = to_ms.saturating_sub(from_ms);
    let step = step_ms(span, 7);
    let first = first_from(from_ms, step);
    let x =
        |at: u64| left + (right - left) * at.saturating_sub(from_ms) as f64 / span.max(1) as f64;
    let ticks = (0..8).map(|number| first.saturating_add(step.saturating_mul(number)));
    html! {
        g.when data-from=(from_ms) data-to=(to_ms) data-step=(step)
            data-area={ (left) " " (right) " " (top) " " (bottom) } {
            @for at in ticks.filter(|at| *at <= to_ms) {
                line.grid x1=(fixed(x(at))) x2=(fixed(x(at))) y1=(top) y2=(bottom) {}
                text.tick.middle x=(fixed(x(at).clamp(left + 12.0, right - 14.0)))
                    y=(bottom + 14.0) { (label(at, step)) }
            }
        }
    }
}

/// The values beside a drawing, from `left` to `right`, and their lines.
pub(super) fn lines(
    unit: Unit,
    values: &[f64],
    (left, right): (f64, f64),
    (top, bottom): (f64, f64),
) -> Markup {
    let highest = values.last().copied().unwrap_or(1.0);
    html! {
        @for value in values {
            @let y = bottom - (bottom - top) * value / highest;
            line.grid x1=(left) x2=(right) y1=(fixed(y)) y2=(fixed(y)) {}
            text.tick.end x=(left - 5.0) y=(fixed(y + 3.5)) { (unit.show(*value)) }
        }
    }
}

/// A time of an axis with such a distance: the time of day, or the day.
fn label(at_ms: u64, step_ms: u64) -> String {
    if step_ms < DAY_MS && !at_ms.is_multiple_of(DAY_MS) {
        let minutes = at_ms / MINUTE_MS % (24 * 60);
        return format!("{:02}:{:02}", minutes / 60, minutes % 60);
    }
    day(at_ms)
}

/// A day without its year: `1 Mar`.
pub(super) fn day(at_ms: u64) -> String {
    let date = Time(at_ms).date();
    let mut parts = date.split('-').skip(1).filter_map(|part| part.parse::<usize>().ok());
    let month = parts.next().and_then(|month| MONTHS.get(month.checked_sub(1)?));
    match (month, parts.next()) {
        (Some(month), Some(day)) => format!("{day} {month}"),
        _ => date,
    }
}

/// A place in a drawing.
pub(super) fn fixed(place: f64) -> String {
    format!("{place:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-03-03, a Tuesday, 14:07:30.
    const NOW: u64 = 1_772_546_850_000;

    #[test]
    fn values_are_short() {
        for (unit, value, shown) in [
            (Unit::Number, 0.0, "0"),
            (Unit::Number, 1.234, "1.23"),
            (Unit::Number, 0.0125, "0.013"),
            (Unit::Number, 0.004, "0.004"),
            (Unit::Number, 12_345.0, "12,345"),
            (Unit::Count, 1_234_567.0, "1.23 M"),
            (Unit::Seconds, 0.000_25, "250 µs"),
            (Unit::Seconds, 0.0213, "21.3 ms"),
            (Unit::Seconds, 2.5, "2.5 s"),
            (Unit::Bytes, 38_000_000.0, "38 MB"),
            (Unit::Bytes, 1_250_000_000.0, "1.25 GB"),
            (Unit::Percent, 12.5, "12.5 %"),
        ] {
            assert_eq!(unit.show(value), shown);
        }
    }

    #[test]
    fn lines_are_at_round_values_and_nothing_is_above_them() {
        for (unit, highest, shown) in [
            (Unit::Number, 0.0, "0 1"),
            (Unit::Number, 7.3, "0 2 4 6 8"),
            (Unit::Number, 8.0, "0 2 4 6 8"),
            (Unit::Number, 0.3, "0 0.1 0.2 0.3"),
            (Unit::Number, 4_100.0, "0 2,000 4,000 6,000"),
            (Unit::Count, 1.0, "0 1"),
            (Unit::Count, 0.0, "0 1"),
            (Unit::Bytes, 0.0, "0 B 1 kB"),
            (Unit::Seconds, 0.033, "0 s 10 ms 20 ms 30 ms 40 ms"),
            (Unit::Percent, 100.0, "0 % 50 % 100 %"),
        ] {
            let values = values(unit, highest);
            let all: Vec<_> = values.iter().map(|value| unit.show(*value)).collect();
            assert_eq!(all.join(" "), shown, "{highest}");
            assert!(values.last().is_some_and(|last| *last >= highest));
        }
        for wild in [f64::NAN, f64::INFINITY, f64::MAX, 1e-300] {
            assert!(values(Unit::Number, wild).len() <= 6, "{wild}");
        }
    }

    #[test]
    fn times_are_round_and_days_begin_at_midnight_and_weeks_on_monday() {
        let hour = 3_600_000;
        for (span, expected) in [
            (hour, "13:15 13:30 13:45 14:00"),
            (24 * hour, "16:00 20:00 3 Mar 04:00 08:00 12:00"),
            (7 * 24 * hour, "25 Feb 26 Feb 27 Feb 28 Feb 1 Mar 2 Mar 3 Mar"),
            (31 * 24 * hour, "2 Feb 9 Feb 16 Feb 23 Feb 2 Mar"),
            (10_000, ""),
            (0, ""),
        ] {
            let drawn = times((NOW - span, NOW), (0.0, 100.0), (0.0, 50.0)).into_string();
            let shown: Vec<_> = drawn
                .split("<text")
                .skip(1)
                .filter_map(|text| text.split('>').nth(1)?.split('<').next())
                .collect();
            assert_eq!(shown.join(" "), expected, "{span}");
            assert!(!drawn.contains("NaN"), "{drawn}");
        }
        for (from, to) in [(0, u64::MAX), (u64::MAX, u64::MAX), (NOW, 0)] {
            let drawn = times((from, to), (0.0, 100.0), (0.0, 50.0)).into_string();
            assert!(drawn.matches("<text").count() <= 8, "{drawn}");
        }
    }
}
