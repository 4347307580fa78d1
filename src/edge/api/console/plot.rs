//! Values over a stretch of time, as lines or columns in an SVG that the server draws.
//!
//! The drawing can be read without a script: it has axes, a legend, and its values as a table. The
//! script of the console reads the same values from the drawing, and shows those of a moment to
//! whoever points at it or moves there with the arrow keys. It takes its colours from the page.

use maud::{Markup, html};

use super::{
    axis::{self, Unit, fixed},
    marks::{Mark, glyph, together},
    parts::{at_second, log_at, table},
};

/// The size of a plot, in its own units.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 150.0;

/// Where the area of the lines begins and ends.
const LEFT: f64 = 50.0;
const RIGHT: f64 = WIDTH - 6.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = HEIGHT - 24.0;

/// More points than these cannot be told apart.
const COLUMNS: u64 = 180;

/// The rows of the table.
const ROWS: u64 = 31;

/// A moment, and the value of each line there.
pub(super) type Point = (u64, Vec<Option<f64>>);

/// Lines over a stretch of time.
pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) unit: Unit,
    /// The names of the lines; of a single one, that is the title.
    pub(super) names: &'a [&'a str],
    /// The stretch, in milliseconds since the Unix epoch.
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
    /// In order; where there is no value, a line has a gap.
    pub(super) points: Vec<Point>,
    /// What happened meanwhile.
    pub(super) marks: &'a [Mark],
}

impl Plot<'_> {
    /// The plot with its title, the last and the highest values, also as text.
    pub(super) fn draw(&self) -> Markup {
        let points = self.thinned();
        let highest = highest(&points);
        let last: Vec<_> = (0..self.lines()).map(|line| self.shown(last(&points, line))).collect();
        let most = self.shown(highest);
        let values = axis::values(self.unit, highest.unwrap_or_default());
        let top = values.last().copied().unwrap_or(1.0);
        let now: Vec<_> = match self.names {
            [] => last.clone(),
            names => names.iter().zip(&last).map(|(name, last)| format!("{name} {last}")).collect(),
        };
        let label = format!("{}: {} now, {most} at most", self.title, now.join(", "));
        html! {
            figure.plot {
                figcaption {
                    span.title { (self.title) }
                    @if self.names.is_empty() { strong { (last.join("")) } } @else {
                        span.legend {
                            @for (line, (name, last)) in self.names.iter().zip(&last).enumerate() {
                                span { (key(line)) " " (name) " " strong { (last) } }
                            }
                        }
                    }
                }
                div.canvas role="group" aria-label=(label) data-unit=(self.unit.name())
                    data-names=(self.names.join("|")) data-from=(self.from_ms)
                    data-to=(self.to_ms) data-top=(top)
                    data-area={ (LEFT) " " (RIGHT) " " (TOP) " " (BOTTOM) }
                    data-points=(self.data(&points)) {
                    svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } aria-hidden="true" {
                        (axis::times((self.from_ms, self.to_ms), (LEFT, RIGHT), (TOP, BOTTOM)))
                        (axis::lines(self.unit, &values, (LEFT, RIGHT), (TOP, BOTTOM)))
                        @for line in 0..self.lines() { (self.line(&points, line, top)) }
                        @for mark in together(self.marks, self.from_ms, self.to_ms) {
                            (self.mark(&mark))
                        }
                    }
                }
                p.reading role="status" { (most) " at most" }
                a.here hidden href="/_logcabin/console/log" { "What happened here?" }
                details { summary { "Table" } (self.listed(&points)) }
            }
        }
    }

    fn lines(&self) -> usize {
        self.names.len().max(1)
    }

    fn shown(&self, value: Option<f64>) -> String {
        value.map_or_else(|| "–".to_owned(), |value| self.unit.show(value))
    }

    fn x(&self, at_ms: u64) -> f64 {
        let span = self.to_ms.saturating_sub(self.from_ms).max(1) as f64;
        let part = at_ms.saturating_sub(self.from_ms) as f64 / span;
        LEFT + (RIGHT - LEFT) * part.min(1.0)
    }

    /// The points, no more than one in each column: the highest values of those that were there.
    /// A gap stays one.
    fn thinned(&self) -> Vec<Point> {
        let span = self.to_ms.saturating_sub(self.from_ms).max(1);
        let column = |at_ms: u64| at_ms.saturating_sub(self.from_ms).saturating_mul(COLUMNS) / span;
        let mut thinned: Vec<Point> = Vec::new();
        let is_gap = |values: &[Option<f64>]| values.iter().all(Option::is_none);
        for (at_ms, values) in &self.points {
            match thinned.last_mut().filter(|(last, _)| column(*last) == column(*at_ms)) {
                Some((_, last)) if is_gap(last) && is_gap(values) => {}
                Some((last_ms, last)) if !is_gap(last) && !is_gap(values) => {
                    *last_ms = *at_ms;
                    raise(last, values);
                }
                _ => thinned.push((*at_ms, values.clone())),
            }
        }
        thinned
    }

    /// The values for the script: the seconds since the beginning and the values of each point.
    fn data(&self, points: &[Point]) -> String {
        let point = |(at_ms, values): &Point| {
            let values = values.iter().map(|value| value.map(digits).unwrap_or_default());
            let at = at_ms.saturating_sub(self.from_ms) / 1000;
            [at.to_string()].into_iter().chain(values).collect::<Vec<_>>().join(",")
        };
        points.iter().map(point).collect::<Vec<_>>().join(";")
    }

    fn line(&self, points: &[Point], line: usize, top: f64) -> Markup {
        let y = |value: f64| BOTTOM - (BOTTOM - TOP) * (value / top).clamp(0.0, 1.0);
        let value = |(_, values): &Point| values.get(line).copied().flatten();
        let stretches: Vec<Vec<(f64, f64)>> = points
            .split(|point| value(point).is_none())
            .map(|points| points.iter().filter_map(|of| Some((self.x(of.0), y(value(of)?)))))
            .map(Iterator::collect)
            .filter(|points: &Vec<_>| !points.is_empty())
            .collect();
        html! {
            @for points in &stretches {
                // Areas of several lines would hide each other.
                @if self.names.is_empty() { path.area d=(area(points)) {} }
                path class={ "line s" (line) } d=(path(points)) {}
            }
        }
    }

    fn mark(&self, mark: &Mark) -> Markup {
        let x = fixed(self.x(mark.at_ms));
        html! {
            a.mark href=(mark.leads_to) tabindex="-1" data-ms=(mark.at_ms) data-text=(mark.text) {
                title { (axis::day(mark.at_ms)) ", " (mark.text) }
                line x1=(x) x2=(x) y1=(TOP) y2=(BOTTOM) {}
                (glyph(mark.shape, &x, BOTTOM))
            }
        }
    }

    /// The highest values of each part of the time, the newest first.
    fn listed(&self, points: &[Point]) -> Markup {
        let step = axis::step_ms(self.to_ms.saturating_sub(self.from_ms), ROWS);
        let mut parts: Vec<Point> = Vec::new();
        for (at_ms, values) in points.iter().rev() {
            // The beginning of the part that a moment is in.
            let begun = axis::first_from(at_ms.saturating_add(1), step).saturating_sub(step);
            match parts.last_mut().filter(|(last, _)| *last == begun) {
                None => parts.push((begun, values.clone())),
                Some((_, last)) => raise(last, values),
            }
        }
        let rows: Vec<_> = parts
            .iter()
            .map(|(at_ms, values)| {
                let end = at_ms.saturating_add(step - 1).min(self.to_ms);
                let time = html! { a href=(log_at(end)) { (at_second(*at_ms)) } };
                let values = values.iter().map(|value| html! { (self.shown(*value)) });
                [time].into_iter().chain(values).collect()
            })
            .collect();
        let names = if self.names.is_empty() { &["At most"] } else { self.names };
        let columns: Vec<_> = ["From"].into_iter().chain(names.iter().copied()).collect();
        table(&columns, &rows, "There are no values yet.")
    }
}

/// The mark of a line, before its name.
fn key(line: usize) -> Markup {
    html! {
        svg.key.stroke viewBox="0 0 20 10" aria-hidden="true" {
            path class={ "line s" (line) } d="M0 5H20" {}
        }
    }
}

/// Each value becomes the higher one of two, if there are any.
fn raise(values: &mut [Option<f64>], others: &[Option<f64>]) {
    for (value, other) in values.iter_mut().zip(others) {
        *value = [*value, *other].into_iter().flatten().reduce(f64::max);
    }
}

fn highest(points: &[Point]) -> Option<f64> {
    points.iter().flat_map(|(_, values)| values).copied().flatten().reduce(f64::max)
}

fn last(points: &[Point], line: usize) -> Option<f64> {
    points.iter().rev().find_map(|(_, values)| values.get(line).copied().flatten())
}

/// A value to four digits.
fn digits(value: f64) -> String {
    let rounded: Option<f64> = format!("{value:.3e}").parse().ok();
    rounded.filter(|of| of.is_finite()).map(|of| of.to_string()).unwrap_or_default()
}

fn path(points: &[(f64, f64)]) -> String {
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
    format!("{}V{BOTTOM:.1}H{first:.1}Z", path(points).replace("h1", "") + &format!("H{last:.1}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::console::marks::Shape;

    fn plot<'a>(names: &'a [&'a str], points: Vec<Point>, marks: &'a [Mark]) -> Plot<'a> {
        let (title, unit) = ("Requests", Unit::Number);
        Plot { title, unit, names, from_ms: 0, to_ms: 3_600_000, points, marks }
    }

    #[test]
    fn a_plot_has_its_values_as_text_and_gaps_where_there_are_none() {
        let values = [Some(1.0), Some(3.0), None, Some(2.0)];
        let points = (0..).map(|n| n * 60_000).zip(values.map(|value| vec![value])).collect();
        let drawn = plot(&[], points, &[]).draw().into_string();
        assert!(drawn.contains("Requests: 2 now, 3 at most"), "{drawn}");
        assert_eq!(drawn.matches("class=\"line s0\"").count(), 2, "{drawn}");
        assert!(drawn.contains("data-points=\"0,1;60,3;120,;180,2\""), "{drawn}");
        assert!(drawn.contains("<td data-label=\"At most\">3</td>"), "{drawn}");
        assert!(!drawn.contains("style=") && !drawn.contains("NaN"), "{drawn}");
        let empty = plot(&[], Vec::new(), &[]).draw().into_string();
        assert!(empty.contains("– now") && !empty.contains("NaN"), "{empty}");
    }

    #[test]
    fn lines_are_told_apart_by_names_and_not_by_colours_alone() {
        let points = vec![(0, vec![Some(1.0), Some(9.0)]), (60_000, vec![Some(2.0), None])];
        let drawn = plot(&["half", "99 %"], points, &[]).draw().into_string();
        assert!(drawn.contains("Requests: half 2, 99 % 9 now, 9 at most"), "{drawn}");
        assert!(drawn.contains("line s0") && drawn.contains("line s1"), "{drawn}");
        assert!(!drawn.contains("area\""), "{drawn}");
        assert!(drawn.contains("<td data-label=\"99 %\">9</td>"), "{drawn}");
    }

    #[test]
    fn a_plot_is_small_however_many_points_there_are_and_a_short_gap_is_seen() {
        let point =
            |n: u64| (n * 100, vec![(n != 20_000).then_some(if n == 77 { 50.0 } else { 1.0 })]);
        let plot = plot(&[], (0..36_000).map(point).collect(), &[]);
        let points = plot.thinned();
        assert!(points.len() as u64 <= COLUMNS + 3, "{}", points.len());
        assert_eq!(highest(&points), Some(50.0), "a peak is kept");
        let drawn = plot.draw().into_string();
        assert_eq!(drawn.matches("class=\"line s0\"").count(), 2, "{drawn}");
        assert!(drawn.len() < 20_000, "{} bytes", drawn.len());
    }

    #[test]
    fn what_happened_is_marked_and_hostile_words_stay_words() {
        let mark = |at_ms| Mark {
            at_ms,
            shape: Shape::Act,
            text: "by \"><script>alert(1)</script>".to_owned(),
            leads_to: "/log?at=1&x=\"".to_owned(),
        };
        let marks: Vec<_> = (0..500).map(|number| mark(number * 7_200)).collect();
        let drawn = plot(&[], vec![(0, vec![Some(1.0)])], &marks).draw().into_string();
        let count = drawn.matches("class=\"mark\"").count();
        assert!((20..=45).contains(&count), "{count}");
        assert!(!drawn.contains("<script") && drawn.contains("&amp;x=&quot;"), "{drawn}");
    }

    #[test]
    fn values_for_the_script_have_four_digits() {
        for (value, expected) in
            [(0.0, "0"), (0.000_123_456, "0.0001235"), (12_345.6, "12350"), (f64::NAN, "")]
        {
            assert_eq!(digits(value), expected);
        }
    }
}
