//! Moments in the history of a log: an offset, or a time.

use std::{fmt, str::FromStr};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use logcabin_record::Offset;

/// A moment as given on a command line.
///
/// An offset (`1234`), a time (`2026-03-01T14:00:00+01:00`, or `2026-03-01 14:00`, `2026-03-01
/// 14:00:30`, `2026-03-01` in UTC), or a time before now (`-90s`, `-10m`, `-3h`, `-2d`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Right after this record.
    At(Offset),
    /// At this time, in milliseconds since the Unix epoch.
    Time(u64),
    /// This many milliseconds before now.
    Ago(u64),
}

/// A text that is not a moment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is neither an offset (1234) nor a time (2026-03-01T14:00:00Z, 2026-03-01 14:00[:30] in UTC, or -10m for ten minutes ago)"
)]
pub struct NoMoment(String);

impl FromStr for Moment {
    type Err = NoMoment;

    fn from_str(text: &str) -> Result<Self, NoMoment> {
        let no_moment = || NoMoment(text.to_owned());
        let text = text.trim();
        if let Ok(offset) = text.parse() {
            return Ok(Self::At(Offset::new(offset)));
        }
        if let Some(ago) = text.strip_prefix('-') {
            return duration_ms(ago).map(Self::Ago).ok_or_else(no_moment);
        }
        let parsed = OffsetDateTime::parse(text, &Rfc3339)
            .or_else(|_| OffsetDateTime::parse(&in_full(text), &Rfc3339))
            .map_err(|_| no_moment())?;
        let millis = parsed.unix_timestamp_nanos().div_euclid(1_000_000);
        u64::try_from(millis).map(Self::Time).map_err(|_| no_moment())
    }
}

/// The length of `90s`, `10m`, `3h`, `2d` or `1w` in milliseconds.
pub fn duration_ms(text: &str) -> Option<u64> {
    let unit = text.chars().last()?;
    let count: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let unit_ms = match unit {
        's' => 1_000,
        'm' => 60 * 1_000,
        'h' => 3_600 * 1_000,
        'd' => 86_400 * 1_000,
        'w' => 7 * 86_400 * 1_000,
        _ => return None,
    };
    count.checked_mul(unit_ms)
}

/// `YYYY-MM-DD[ HH:MM[:SS]]`, in UTC, as RFC 3339.
fn in_full(text: &str) -> String {
    let (date, time) = text.split_once([' ', 'T']).unwrap_or((text, "00:00"));
    let seconds = if time.matches(':').count() == 1 { ":00" } else { "" };
    format!("{date}T{time}{seconds}Z")
}

impl Moment {
    /// The moment with times before now resolved relative to `now_ms`.
    #[must_use]
    pub const fn from_now(self, now_ms: u64) -> Self {
        match self {
            Self::Ago(ms) => Self::Time(now_ms.saturating_sub(ms)),
            other => other,
        }
    }
}

/// The last record up to `end` written at or before `until_ms`; [`Offset::ZERO`] if there is none.
/// `time_of` returns the time of a record. Times never decrease along a log.
pub fn last_until<E>(
    end: Offset,
    until_ms: u64,
    mut time_of: impl FnMut(Offset) -> Result<Option<u64>, E>,
) -> Result<Offset, E> {
    let (mut low, mut high) = (0, end.get());
    while low < high {
        let middle = high - (high - low) / 2;
        if time_of(Offset::new(middle))?.is_some_and(|time_ms| time_ms <= until_ms) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Ok(Offset::new(low))
}

/// A time in milliseconds since the Unix epoch, displayed in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub u64);

impl Time {
    fn parts(self) -> Option<(String, String)> {
        let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000_000).ok()?;
        let date = format!("{:04}-{:02}-{:02}", at.year(), u8::from(at.month()), at.day());
        let (hour, minute, second, milli) = at.time().as_hms_milli();
        Some((date, format!("{hour:02}:{minute:02}:{second:02}.{milli:03}")))
    }

    /// The day: `2026-03-01`.
    pub fn date(self) -> String {
        self.parts().map_or_else(|| "far future".to_owned(), |(date, _)| date)
    }

    /// The time of day to the millisecond: `14:00:00.123`.
    pub fn clock(self) -> String {
        self.parts().map_or_else(String::new, |(_, clock)| clock)
    }

    /// Day and time of day to the second: `2026-03-01 14:00:00`.
    pub fn to_second(self) -> String {
        let clock = self.clock();
        format!("{} {}", self.date(), clock.get(..8).unwrap_or_default())
    }
}

/// RFC 3339 with milliseconds.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            Some((date, clock)) => write!(f, "{date}T{clock}Z"),
            None => write!(f, "{} ms", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: u64 = 1_772_366_400_000; // 2026-03-01T12:00:00Z

    #[test]
    fn moments_are_read_in_every_form() {
        for (text, moment) in [
            ("0", Moment::At(Offset::ZERO)),
            ("1234", Moment::At(Offset::new(1234))),
            ("2026-03-01T12:00:00Z", Moment::Time(NOON)),
            ("2026-03-01T13:00:00.5+01:00", Moment::Time(NOON + 500)),
            ("2026-03-01 12:00", Moment::Time(NOON)),
            ("2026-03-01 12:00:07", Moment::Time(NOON + 7_000)),
            ("2026-03-01T12:00", Moment::Time(NOON)),
            ("2026-03-01", Moment::Time(NOON - 12 * 3_600_000)),
            ("-10m", Moment::Ago(600_000)),
            ("-2d", Moment::Ago(172_800_000)),
        ] {
            assert_eq!(text.parse(), Ok(moment), "{text}");
        }
        for text in
            ["", "-", "-5", "-5y", "yesterday", "2026-13-01", "2026-03-01 25:00", "1969-01-01"]
        {
            assert!(text.parse::<Moment>().is_err(), "{text}");
        }
        assert_eq!(Moment::Ago(5).from_now(7), Moment::Time(2));
    }

    #[test]
    fn the_last_record_up_to_a_time_is_found_among_equal_ones() {
        let times = [10, 10, 20, 20, 20, 50];
        for (until, last) in [(9, 0), (10, 2), (19, 2), (20, 5), (49, 5), (50, 6), (99, 6)] {
            let time_of = |offset: Offset| Ok::<_, ()>(Some(times[offset.get() as usize - 1]));
            assert_eq!(
                last_until(Offset::new(6), until, time_of),
                Ok(Offset::new(last)),
                "{until}"
            );
        }
        assert_eq!(last_until(Offset::ZERO, 5, |_| Ok::<_, ()>(None)), Ok(Offset::ZERO));
    }

    #[test]
    fn times_are_written_in_utc() {
        assert_eq!(Time(NOON + 42).to_string(), "2026-03-01T12:00:00.042Z");
        assert_eq!(Time(NOON).to_second(), "2026-03-01 12:00:00");
        assert_eq!(Time(NOON + 42).to_string().parse(), Ok(Moment::Time(NOON + 42)));
        assert!(!Time(u64::MAX).to_string().is_empty());
    }
}
