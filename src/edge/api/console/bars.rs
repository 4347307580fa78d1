//! Bars: as parts of a whole, beside the rows of a table, and over a stretch of time or kinds.

use maud::{Markup, html};

use super::axis::{self, Unit, fixed};

/// The size of a drawing of columns, in its own units.
const WIDTH: f64 = 360.0;
const WIDE: f64 = 960.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 50.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = HEIGHT - 20.0;

/// So many columns have room in a drawing that is not wide.
const FEW: usize = 30;

/// The colours that the page has for parts of a whole.
const COLOURS: usize = 6;

/// The mark of a colour, before a name.
pub(super) fn key(number: usize) -> Markup {
    html! {
        svg.key viewBox="0 0 10 10" aria-hidden="true" {
            rect class={ "g" (number % COLOURS) } width="10" height="10" {}
        }
    }
}

/// A bar as long as a share, for a row of a table that has the value as text.
pub(super) fn share(value: u64, most: u64) -> Markup {
    let long = if most == 0 { 0.0 } else { 100.0 * value as f64 / most as f64 };
    html! {
        svg.share viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" {
            rect.g0 width=(format!("{long:.1}")) height="8" {}
        }
    }
}

/// One bar, divided among parts.
pub(super) fn whole(label: &str, parts: &[u64]) -> Markup {
    let all = parts.iter().sum::<u64>().max(1) as f64;
    let mut from = 0.0;
    let parts: Vec<_> = parts
        .iter()
        .enumerate()
        .map(|(number, part)| {
            let (x, long) = (from, 100.0 * *part as f64 / all);
            from += long;
            (number % COLOURS, format!("{x:.2}"), format!("{long:.2}"))
        })
        .collect();
    html! {
        svg.whole viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label=(label) {
            @for (colour, x, long) in &parts {
                rect class={ "g" (colour) } x=(x) width=(long) height="6" {}
            }
        }
    }
}

/// A column: what it stands for, its value, and where it leads.
pub(super) struct Column {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) leads_to: Option<String>,
}

/// Columns beside each other, with their values as text. So many names are written below them.
pub(super) fn columns(title: &str, unit: Unit, columns: &[Column], named: usize) -> Markup {
    let most = columns.iter().map(|column| column.value).fold(0.0, f64::max);
    let values = axis::values(unit, most);
    let scale = (BOTTOM - TOP) / values.last().copied().unwrap_or(1.0);
    let width = if columns.len() > FEW { WIDE } else { WIDTH };
    let wide = (width - LEFT) / columns.len().max(1) as f64;
    let each = columns.len().div_ceil(named.max(1)).max(1);
    let has_links = columns.iter().any(|column| column.leads_to.is_some());
    let role = if has_links { "group" } else { "img" };
    let label = format!("{title}: {} at most", unit.show(most));
    let drawn = |number: usize, column: &Column| {
        let x = LEFT + number as f64 * wide;
        let height = (column.value * scale).max(if column.value > 0.0 { 0.5 } else { 0.0 });
        html! {
            title { (column.name) ": " (unit.show(column.value)) }
            rect.hit x=(fixed(x)) y=(TOP) width=(fixed(wide)) height=(BOTTOM - TOP) {}
            rect.g0 x=(fixed(x + wide * 0.08)) y=(fixed(BOTTOM - height))
                width=(fixed(wide * 0.84)) height=(fixed(height)) {}
        }
    };
    html! {
        figure {
            figcaption { span.title { (title) } strong { (unit.show(most)) " at most" } }
            svg viewBox={ "0 0 " (width) " " (HEIGHT) } role=(role) aria-label=(label) {
                (axis::lines(unit, &values, (LEFT, width), (TOP, BOTTOM)))
                @for (number, column) in columns.iter().enumerate() {
                    @match &column.leads_to {
                        Some(to) => {
                            a href=(to)
                                aria-label={ (column.name) ": " (unit.show(column.value)) } {
                                (drawn(number, column))
                            }
                        }
                        None => g { (drawn(number, column)) }
                    }
                    @if number % each == 0 {
                        text.tick x=(fixed(LEFT + number as f64 * wide + wide * 0.08))
                            y=(HEIGHT - 6.0) { (column.name) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_and_shares_are_drawn_even_if_there_is_nothing() {
        let column =
            |value| Column { name: "day".to_owned(), value, leads_to: Some("?x=1&y".to_owned()) };
        let drawn = columns("Records", Unit::Number, &[column(2.0), column(4.0)], 2).into_string();
        assert!(drawn.contains("Records: 4 at most") && drawn.contains("day: 2"), "{drawn}");
        assert!(drawn.contains("?x=1&amp;y"), "{drawn}");
        for drawn in [
            columns("Records", Unit::Number, &[], 4),
            columns("Records", Unit::Number, &[column(0.0)], 4),
            share(0, 0),
            whole("All", &[0, 0]),
        ] {
            assert!(!drawn.into_string().contains("NaN"));
        }
        assert!(share(1, 4).into_string().contains("25.0"));
    }
}
