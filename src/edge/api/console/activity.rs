//! "Activity": at which hours people write, and how long it takes until others know.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::{
    axis::{Unit, fixed},
    bars::{Column, columns},
    now::{NEWS, PERCENTILES},
    parts::table,
    recent::{Recent, range},
    visitor::{ConsoleLogin, Visitor, show},
};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::metrics::LATENCY;
use logcabin_ops::history::terminal::grouped;
use logcabin_service::{
    samples::{Range, Sample},
    tally::HOURS,
};

const WEEKDAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Hours of a week.
const WEEK: usize = 7 * 24;

/// The weekday of the first of January 1970, from Monday on.
const THURSDAY: u64 = 3;

/// One hour in the drawing of a week, in its own units.
const CELL: f64 = 22.0;
const CELL_WIDTH: f64 = 36.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 16.0;

endpoint! {
    pub(super) struct Activity = GET "/_logcabin/console/activity";
    for ConsoleLogin;
    { range: Option<String> = parameter }
}

pub(super) async fn page(cx: Cx<Server, Visitor>, request: Activity) -> Result<Reply, ApiError> {
    let range = range(request.range.as_deref(), Range::Day)?;
    show(&cx, ("Activity", "activity"), |app| Ok(body(app, range))).await
}

fn body(app: &Server, range: Range) -> Markup {
    let now_ms = app.engine.clock().now_ms();
    let week = app.tally.look(|counts| WeeklyPattern::of(&counts.hours, now_ms / 3_600_000));
    let column = |name: String, value: f64| Column { name, value, leads_to: None };
    let hours: Vec<_> =
        (0..24).map(|hour| column(format!("{hour:02}:00"), week.of_hour(hour))).collect();
    let days: Vec<_> = WEEKDAYS
        .iter()
        .enumerate()
        .map(|(day, name)| column(name.chars().take(3).collect(), week.of_day(day)))
        .collect();
    html! {
        p.moment {
            (grouped(week.all)) " events in rooms, in " (format!("{:.1}", week.weeks)) " weeks"
        }
        (week.drawn())
        details { summary { "The same as a table" } (week.listed()) }
        div.plots.two {
            (columns("Events in an hour of the day", Unit::Number, &hours, 6))
            (columns("Events on a day of the week", Unit::Number, &days, 7))
        }
        p.note { "Means of the last eight weeks, or since the first event. These hours are in UTC." }
        (delays(&Recent::of(app, range)))
    }
}

/// The mean number of events in each hour of a week.
#[derive(Debug)]
struct WeeklyPattern {
    hours: [f64; WEEK],
    all: u64,
    weeks: f64,
}

impl WeeklyPattern {
    /// From the events of each hour since 1970, up to now.
    fn of(counted: &BTreeMap<u64, u64>, now: u64) -> Self {
        let from = now.saturating_sub(HOURS - 1);
        let first = counted.range(from..=now).next().map_or(now, |(hour, _)| *hour);
        let mut sums = [(0_u64, 0_u64); WEEK];
        for hour in first..=now {
            let place = usize::try_from((hour + THURSDAY * 24) % WEEK as u64).unwrap_or_default();
            if let Some((events, hours)) = sums.get_mut(place) {
                *events += counted.get(&hour).copied().unwrap_or_default();
                *hours += 1;
            }
        }
        let all = sums.iter().map(|(events, _)| events).sum();
        let hours = sums.map(|(events, hours)| events as f64 / hours.max(1) as f64);
        Self { hours, all, weeks: (now - first + 1) as f64 / WEEK as f64 }
    }

    fn at(&self, day: usize, hour: usize) -> f64 {
        self.hours.get(day * 24 + hour).copied().unwrap_or_default()
    }

    fn of_hour(&self, hour: usize) -> f64 {
        (0..7).map(|day| self.at(day, hour)).sum::<f64>() / 7.0
    }

    fn of_day(&self, day: usize) -> f64 {
        (0..24).map(|hour| self.at(day, hour)).sum()
    }

    /// The week as a table, with a row for each hour.
    fn listed(&self) -> Markup {
        let rows: Vec<_> = (0..24)
            .map(|hour| {
                let days = (0..7).map(|day| html! { (Unit::Number.show(self.at(day, hour))) });
                let hour = html! { (format!("{hour:02}:00")) };
                [hour].into_iter().chain(days).collect()
            })
            .collect();
        let columns: Vec<_> = ["Hour"].into_iter().chain(WEEKDAYS).collect();
        table(&columns, &rows, "")
    }

    /// The week, a row for each day and a column for each hour.
    fn drawn(&self) -> Markup {
        let most = self.hours.iter().copied().fold(0.0, f64::max);
        let busiest = self.hours.iter().position(|events| *events == most && most > 0.0);
        let name = |place: usize| {
            format!("{} {:02}:00", WEEKDAYS.get(place / 24).unwrap_or(&""), place % 24)
        };
        let label = match busiest {
            Some(place) => format!(
                "Events in the hours of a week: {} at most, {}",
                Unit::Number.show(most),
                name(place)
            ),
            None => "Events in the hours of a week: none".to_owned(),
        };
        let strength = |events: f64| if most > 0.0 { (events / most).sqrt() } else { 0.0 };
        let (width, height) = (LEFT + 24.0 * CELL_WIDTH, TOP + 7.0 * CELL);
        html! {
            figure.long tabindex="0" {
                figcaption {
                    span.title { "Events in the hours of a week" }
                    strong { (Unit::Number.show(most)) " at most" }
                }
                svg viewBox={ "0 0 " (width) " " (height) } role="img" aria-label=(label) {
                    @for hour in (0..24_u32).step_by(3) {
                        text.tick x=(LEFT + f64::from(hour) * CELL_WIDTH) y=(TOP - 5.0) {
                            (format!("{hour:02}:00"))
                        }
                    }
                    @for (day, title) in (0_u32..).zip(WEEKDAYS) {
                        text.tick x="0" y=(TOP + f64::from(day) * CELL + 15.0) { (title) }
                    }
                    @for (place, events) in (0_u32..).zip(self.hours) {
                        rect.heat x=(LEFT + f64::from(place % 24) * CELL_WIDTH + 1.0)
                            y=(TOP + f64::from(place / 24) * CELL + 1.0)
                            width=(CELL_WIDTH - 2.0) height=(CELL - 2.0)
                            fill-opacity=(fixed(strength(events))) {
                            title {
                                (name(place as usize)) ": " (Unit::Number.show(events))
                            }
                        }
                    }
                }
            }
        }
    }
}

/// How long it takes from a record to the answers of the syncs that wait for it.
fn delays(recent: &Recent) -> Markup {
    html! {
        div.over {
            h2 { "Until a waiting client knows: " (recent.title().to_lowercase()) }
            (recent.links())
        }
        div.plots.two {
            (recent.plot("Delay of the answers", Unit::Seconds, PERCENTILES, NEWS))
            (spread(&recent.samples))
        }
        p.note {
            "From the moment at which a record can be read until a sync that waited for it is \
             answered. A column has the answers that took no longer than what is below it."
        }
    }
}

/// How many answers took how long, over all samples.
fn spread(samples: &[Sample]) -> Markup {
    let mut sums = [0.0; LATENCY.len()];
    for (before, after) in samples.iter().zip(samples.iter().skip(1)) {
        let within = after.news_within.iter().zip(before.news_within);
        let within: Vec<_> = within.map(|(after, before)| after - before).collect();
        // The server was started again.
        if after.begun_ms != before.begun_ms || within.iter().any(|count| *count < 0.0) {
            continue;
        }
        let mut below = 0.0;
        for (sum, within) in sums.iter_mut().zip(within) {
            *sum += within - below;
            below = within;
        }
    }
    let all: Vec<_> = LATENCY
        .iter()
        .zip(sums)
        .map(|(bound, value)| Column { name: Unit::Seconds.show(*bound), value, leads_to: None })
        .collect();
    columns("Answers by delay", Unit::Count, &all, 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_those_of_a_week_that_begins_on_monday() {
        // 2026-03-02, a Monday, 09:00.
        let monday = 1_772_442_000 / 3600;
        let counted = BTreeMap::from([(monday - 168, 10), (monday, 30), (monday + 25, 7)]);
        let week = WeeklyPattern::of(&counted, monday + 26);
        assert_eq!((week.at(0, 9), week.at(1, 10), week.all), (20.0, 3.5, 47));
        assert_eq!((week.of_day(0), week.of_hour(9)), (20.0, 20.0 / 7.0));
        let drawn = week.drawn().into_string();
        assert!(drawn.contains("20 at most, Monday 09:00"), "{drawn}");
        let listed = week.listed().into_string();
        assert!(listed.contains("<td data-label=\"Tuesday\">3.5</td>"), "{listed}");
        // What is older than eight weeks does not count, and an empty log can be drawn.
        let later = WeeklyPattern::of(&counted, monday + HOURS + 26);
        assert_eq!(later.all, 0);
        let empty = WeeklyPattern::of(&BTreeMap::new(), monday).drawn().into_string();
        assert!(!empty.contains("NaN"), "{empty}");
    }

    #[test]
    fn answers_are_counted_by_their_delay_and_not_across_a_start() {
        let sample = |begun_ms, of: [f64; 3]| {
            let mut news_within = [of[2]; LATENCY.len() + 1];
            (news_within[0], news_within[1]) = (of[0], of[1]);
            Sample { begun_ms, news_within, ..Sample::default() }
        };
        let samples = [
            sample(0, [5.0, 5.0, 5.0]),
            sample(0, [65.0, 104.0, 105.0]),
            sample(1, [900.0, 900.0, 900.0]),
        ];
        let drawn = spread(&samples).into_string();
        for shown in ["100 µs: 60<", "250 µs: 39<", "500 µs: 1<", "1 ms: 0<"] {
            assert!(drawn.contains(shown), "no {shown} in {drawn}");
        }
        assert!(!spread(&[]).into_string().contains("NaN"));
    }
}
