//! What the samples say of the last hour, day, week or month.

use maud::{Markup, html};

use super::{
    axis::Unit,
    marks::{self, Mark},
    plot::{Plot, Point},
};
use crate::{api::server::Server, http::ApiError};
use logcabin_service::samples::{Range, Sample};

/// From two samples, the values between them; from one twice, those at it.
pub(super) type Values = fn(&Sample, &Sample) -> Vec<Option<f64>>;

/// A stretch of time that ends now.
pub(super) struct Recent {
    pub(super) range: Range,
    pub(super) samples: Vec<Sample>,
    pub(super) marks: Vec<Mark>,
    now_ms: u64,
}

/// The name of a range in addresses.
const fn name(range: Range) -> &'static str {
    match range {
        Range::Hour => "hour",
        Range::Day => "day",
        Range::Week => "week",
        Range::Month => "month",
    }
}

/// The range that an address asks for.
pub(super) fn range(given: Option<&str>, otherwise: Range) -> Result<Range, ApiError> {
    let Some(given) = given.filter(|given| !given.is_empty()) else { return Ok(otherwise) };
    let found = Range::ALL.into_iter().find(|range| name(*range) == given);
    found.ok_or_else(|| ApiError::invalid_param("A range is `hour`, `day`, `week` or `month`."))
}

impl Recent {
    pub(super) fn of(app: &Server, range: Range) -> Self {
        let now_ms = app.engine.clock().now_ms();
        let from_ms = now_ms.saturating_sub(range.length_ms());
        let marks = marks::between(app, from_ms, now_ms);
        Self { range, samples: app.samples.over(range), marks, now_ms }
    }

    /// "The last hour", and where the refreshed part comes from.
    pub(super) fn title(&self) -> String {
        format!("The last {}", name(self.range))
    }

    pub(super) fn query(&self) -> String {
        format!("?range={}", name(self.range))
    }

    /// Links to the other ranges of the same page.
    pub(super) fn links(&self) -> Markup {
        html! {
            nav.tools.ranges aria-label="Range" {
                @for range in Range::ALL {
                    a href={ "?range=" (name(range)) }
                        aria-current=[(range == self.range).then_some("true")] {
                        (name(range))
                    }
                }
            }
        }
    }

    pub(super) fn plot(&self, title: &str, unit: Unit, names: &[&str], of: Values) -> Markup {
        let from_ms = self.now_ms.saturating_sub(self.range.length_ms());
        let points = points(&self.samples, from_ms, self.range, of);
        Plot { title, unit, names, from_ms, to_ms: self.now_ms, points, marks: &self.marks }.draw()
    }
}

/// The values of a range. Where the server did not run, and where it was started, there is a gap.
fn points(samples: &[Sample], from_ms: u64, range: Range, of: Values) -> Vec<Point> {
    let longest = 4 * range.every_ms();
    // The first one has none before it, and says what is there at it.
    let pairs = samples.iter().take(1).chain(samples).zip(samples);
    let mut points = Vec::new();
    for (before, after) in pairs.filter(|(_, after)| after.at_ms >= from_ms) {
        let is_gap = after.at_ms.saturating_sub(before.at_ms) > longest;
        if !is_gap && after.begun_ms == before.begun_ms {
            points.push((after.at_ms, of(before, after)));
            continue;
        }
        let values = of(after, after);
        points.push((after.at_ms.saturating_sub(1), vec![None; values.len()]));
        points.push((after.at_ms, values));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: Values = |a, b| vec![(b.at_ms > a.at_ms).then_some(b.requests - a.requests)];
    const MEMORY: Values = |_, b| vec![Some(b.memory)];

    #[test]
    fn there_is_a_gap_where_the_server_was_started_and_where_it_was_down() {
        let sample = |at_ms, begun_ms, requests| Sample {
            at_ms,
            begun_ms,
            requests,
            memory: 1.0,
            ..Sample::default()
        };
        let samples = [
            sample(0, 0, 0.0),
            sample(10_000, 0, 50.0),
            // It was started again, and has counted more meanwhile.
            sample(20_000, 20_000, 60.0),
            sample(30_000, 20_000, 70.0),
            // The machine slept.
            sample(90_000, 20_000, 80.0),
        ];
        let of = |values| {
            let points = points(&samples, 5_000, Range::Hour, values);
            points.into_iter().map(|(at, values)| (at, values[0])).collect::<Vec<_>>()
        };
        let requests = [
            (10_000, Some(50.0)),
            (19_999, None),
            (20_000, None),
            (30_000, Some(10.0)),
            (89_999, None),
            (90_000, None),
        ];
        assert_eq!(of(REQUESTS), requests);
        let gaps = of(MEMORY).iter().filter(|(_, value)| value.is_none()).count();
        assert_eq!((gaps, of(MEMORY).len()), (2, 6));
        assert_eq!(points(&samples[..1], 0, Range::Hour, MEMORY), [(0, vec![Some(1.0)])]);
    }

    #[test]
    fn a_range_is_one_of_four() {
        assert_eq!(range(None, Range::Day).ok(), Some(Range::Day));
        assert_eq!(range(Some("month"), Range::Day).ok(), Some(Range::Month));
        assert!(range(Some("<b>"), Range::Day).is_err());
    }
}
