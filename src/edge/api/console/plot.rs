//! Plots, as SVG that the server draws. They take their colours from the page.

use maud::{Markup, html};

use logcabin_ops::history::moment::Time;

/// The size of a plot, in its own units.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 130.0;

/// Where the area of the lines begins and ends.
const LEFT: f64 = 6.0;
const RIGHT: f64 = WIDTH - 6.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = HEIGHT - 20.0;

/// How values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Number,
    Seconds,
    Bytes,
    Percent,
}

impl Unit {
    /// A value for people.
    pub(super) fn show(self, value: f64) -> String {
        let short = |value: f64| match value {
            value if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
            value if value >= 10.0 => format!("{value:.1}"),
            value => format!("{value:.2}"),
        };
        match self {
            Self::Number if value >= 1e6 => format!("{} M", short(value / 1e6)),
            Self::Number if value >= 1e4 => format!("{} k", short(value / 1e3)),
            Self::Number => short(value),
            Self::Percent => format!("{} %", short(value)),
            Self::Seconds if value == 0.0 => "0 s".to_owned(),
            Self::Seconds if value < 1e-3 => format!("{} µs", short(value * 1e6)),
            Self::Seconds if value < 1.0 => format!("{} ms", short(value * 1e3)),
            Self::Seconds => format!("{} s", short(value)),
            Self::Bytes if value >= 1e9 => format!("{} GB", short(value / 1e9)),
            Self::Bytes if value >= 1e6 => format!("{} MB", short(value / 1e6)),
            Self::Bytes => format!("{} kB", short(value / 1e3)),
        }
    }
}

/// One line over a stretch of time.
pub(super) struct Plot {
    pub(super) title: &'static str,
    pub(super) unit: Unit,
    /// The stretch, in milliseconds since the Unix epoch.
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
    /// Moments with values, in order; where there is no value, the line has a gap.
    pub(super) points: Vec<(u64, Option<f64>)>,
}

impl Plot {
    /// The plot with its title, the last and the highest value, also as text.
    pub(super) fn draw(&self) -> Markup {
        let values = || self.points.iter().filter_map(|(_, value)| *value);
        let highest = values().fold(0.0, f64::max);
        let (now, most) = match values().next_back() {
            Some(last) => (self.unit.show(last), self.unit.show(highest)),
            None => ("–".to_owned(), "–".to_owned()),
        };
        let top = if highest > 0.0 { highest } else { 1.0 };
        let span = (self.to_ms.saturating_sub(self.from_ms)).max(1) as f64;
        let x = |at_ms: u64| {
            LEFT + (RIGHT - LEFT) * (at_ms.saturating_sub(self.from_ms) as f64 / span).min(1.0)
        };
        let y = |value: f64| BOTTOM - (BOTTOM - TOP) * (value / top).clamp(0.0, 1.0);
        let stretches: Vec<Vec<(f64, f64)>> = self
            .points
            .split(|(_, value)| value.is_none())
            .map(|points| points.iter().filter_map(|(at, value)| Some((x(*at), y((*value)?)))))
            .map(Iterator::collect)
            .filter(|points: &Vec<_>| !points.is_empty())
            .collect();
        let label = format!("{}: {now} now, {most} at most", self.title);
        html! {
            figure {
                figcaption {
                    span.title { (self.title) }
                    " " strong { (now) }
                }
                svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(label) {
                    line.grid x1=(LEFT) x2=(RIGHT) y1=(TOP) y2=(TOP) {}
                    line.grid x1=(LEFT) x2=(RIGHT) y1=(BOTTOM) y2=(BOTTOM) {}
                    @for points in &stretches {
                        path.area d=(area(points)) {}
                        path.line d=(line(points)) {}
                    }
                    text.tick x=(LEFT) y=(TOP - 4.0) { (most) }
                    text.tick x=(LEFT) y=(HEIGHT - 6.0) { (self.when(self.from_ms)) }
                    text.tick.end x=(RIGHT) y=(HEIGHT - 6.0) { (self.when(self.to_ms)) }
                }
            }
        }
    }
}

impl Plot {
    /// A moment at an end of the plot: the time of day, or the day if there are many.
    fn when(&self, at_ms: u64) -> String {
        match self.to_ms.saturating_sub(self.from_ms) > 2 * 86_400_000 {
            true => Time(at_ms).date(),
            false => clock(at_ms),
        }
    }
}

fn line(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (number, (x, y)) in points.iter().enumerate() {
        path.push_str(&format!("{}{x:.1} {y:.1}", if number == 0 { "M" } else { "L" }));
    }
    // A single point would not be seen.
    if points.len() == 1 {
        path.push_str("h1");
    }
    path
}

fn area(points: &[(f64, f64)]) -> String {
    let (Some((first, _)), Some((last, _))) = (points.first(), points.last()) else {
        return String::new();
    };
    format!("{}V{BOTTOM:.1}H{first:.1}Z", line(points).replace("h1", "") + &format!("H{last:.1}"))
}

/// The time of day, in UTC.
fn clock(at_ms: u64) -> String {
    let minutes = at_ms / 60_000 % (24 * 60);
    format!("{:02}:{:02}", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_its_values_as_text_and_gaps_where_there_are_none() {
        let points = vec![(0, Some(1.0)), (1000, Some(3.0)), (2000, None), (3000, Some(2.0))];
        let (title, unit) = ("Requests", Unit::Number);
        let plot = Plot { title, unit, from_ms: 0, to_ms: 3000, points };
        let drawn = plot.draw().into_string();
        assert!(drawn.contains("Requests: 2 now, 3 at most"), "{drawn}");
        assert_eq!(drawn.matches("class=\"line\"").count(), 2, "{drawn}");
        assert!(!drawn.contains("style=") && !drawn.contains("NaN"), "{drawn}");
        let empty = Plot { points: Vec::new(), ..plot }.draw().into_string();
        assert!(empty.contains("– now") && !empty.contains("NaN"), "{empty}");
    }

    #[test]
    fn values_are_short() {
        for (unit, value, shown) in [
            (Unit::Number, 0.0, "0"),
            (Unit::Number, 1.234, "1.23"),
            (Unit::Number, 123_456.0, "123 k"),
            (Unit::Seconds, 0.000_25, "250 µs"),
            (Unit::Seconds, 0.0213, "21.3 ms"),
            (Unit::Seconds, 2.5, "2.50 s"),
            (Unit::Bytes, 38_000_000.0, "38 MB"),
            (Unit::Bytes, 1_250_000_000.0, "1.25 GB"),
            (Unit::Percent, 12.5, "12.5 %"),
        ] {
            assert_eq!(unit.show(value), shown);
        }
    }
}
