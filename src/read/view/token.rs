//! Positions in the log as opaque tokens for clients.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use logcabin_record::{Epoch, Offset};
use logcabin_state::rooms::gaps::TimelinePosition;

/// A position in the log, after this offset. `since`, `next_batch`, `prev_batch`, `from`, `to`,
/// `start` and `end` all have this form: `s<epoch>_<offset>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The epoch of the offset.
    pub epoch: Epoch,
    pub offset: Offset,
}

impl Token {
    /// The epoch of positions that clients had at the server from which this one was imported. It
    /// is never written to a log: their offsets are the numbers that the source gave its events.
    pub const AT_SOURCE: Epoch = Epoch(u32::MAX);

    /// The position that a token of Synapse names among its events (see [`SourcePlace`]).
    pub fn of_synapse(text: &str) -> Option<Self> {
        // What was fetched from the past comes in no sync.
        let number = u64::try_from(SourcePlace::of_synapse(text)?.number).unwrap_or(0);
        Some(Self { epoch: Self::AT_SOURCE, offset: Offset::new(number) })
    }
}

/// A position among the events of the server from which this one was imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePlace {
    /// The depth in the room; only in positions in a room's history.
    pub depth: Option<u64>,
    /// The number of the last event before it. Events that were fetched from the past have numbers
    /// below zero.
    pub number: i64,
}

impl SourcePlace {
    /// The position that a token of Synapse names: a `since` or `next_batch` (`s123_…`), the `pos`
    /// of sliding sync (`5/s123_…`), or a position in a room's history (`t<depth>-<number>_…`, such
    /// as `t7-123_…` and `t7--123_…`).
    pub fn of_synapse(text: &str) -> Option<Self> {
        // Of sliding sync: the position in the connection, and the token.
        let token = match text.split_once('/') {
            Some((connection, token)) if is_number(connection) => token,
            Some(_) => return None,
            None => text,
        };
        let mut parts = token.split('_');
        let place = event_place(parts.next()?)?;
        let (count, are_parts) =
            parts.fold((0, true), |(count, all), part| (count + 1, all && is_part(part)));
        // Tokens of this server have three parts at most.
        let is_whole = are_parts && SYNAPSE_PARTS.contains(&count);
        is_whole.then_some(place)
    }
}

/// How many streams a token of Synapse has besides that of events: in 2019, and with a reserve for
/// those that are still to come.
const SYNAPSE_PARTS: RangeInclusive<usize> = 6..=24;

fn is_number(text: &str) -> bool {
    (1..=20).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The position in a stream that one process writes, or several: `12`, `m12~3.14`; a negative one
/// is before the first.
fn is_part(text: &str) -> bool {
    let (first, others) = text.split_once('~').unwrap_or((text, ""));
    let first = first.strip_prefix('m').unwrap_or(first);
    is_number(first.strip_prefix('-').unwrap_or(first)) && others.bytes().all(is_of_writers)
}

const fn is_of_writers(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'.' | b'~')
}

/// A position among Synapse's events: `s12`, `t3-12` (with the depth), or `m12~3.14` with several
/// processes that write.
fn event_place(text: &str) -> Option<SourcePlace> {
    let (depth, number) = match text.split_at_checked(1)? {
        ("s", number) => (None, number),
        ("t", rest) => {
            let (depth, number) = rest.split_once('-')?;
            if !is_number(depth) {
                return None;
            }
            (Some(depth.parse().ok()?), number)
        }
        ("m", rest) => {
            let (number, writers) = rest.split_once('~').unwrap_or((rest, ""));
            if !writers.bytes().all(is_of_writers) {
                return None;
            }
            (None, number)
        }
        _ => return None,
    };
    if !is_number(number.strip_prefix('-').unwrap_or(number)) {
        return None;
    }
    Some(SourcePlace { depth, number: number.parse().ok()? })
}

/// Text that is not a token of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a token that this server has given out")]
pub struct BadToken;

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}_{}", self.epoch.0, self.offset)
    }
}

impl FromStr for Token {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let (epoch, offset) =
            text.strip_prefix('s').and_then(|rest| rest.split_once('_')).ok_or(BadToken)?;
        let token = Self {
            epoch: Epoch(epoch.parse().map_err(|_| BadToken)?),
            offset: Offset::new(offset.parse().map_err(|_| BadToken)?),
        };
        // Each position has exactly one form: `+5` and `05` parse as numbers but were never given
        // out.
        if token.to_string() == text { Ok(token) } else { Err(BadToken) }
    }
}

/// A position in the history of a room, which may have gaps: `s<epoch>_<offset>` like every token,
/// or, in the gap before the event at `gap`, `s<epoch>_<gap>~<number>` (see
/// [`TimelinePosition::Within`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryToken {
    /// The epoch of the offset.
    pub epoch: Epoch,
    pub place: TimelinePosition,
}

impl fmt::Display for HistoryToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = |offset| Token { epoch: self.epoch, offset };
        match self.place {
            TimelinePosition::After(offset) => token(offset).fmt(f),
            TimelinePosition::Within { gap, passed } => write!(f, "{}~{passed}", token(gap)),
        }
    }
}

impl FromStr for HistoryToken {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let Some((gap, passed)) = text.split_once('~') else {
            let Token { epoch, offset } = text.parse()?;
            return Ok(Self { epoch, place: TimelinePosition::After(offset) });
        };
        let Token { epoch, offset: gap } = gap.parse()?;
        let passed = passed.parse().map_err(|_| BadToken)?;
        let token = Self { epoch, place: TimelinePosition::Within { gap, passed } };
        if token.to_string() == text { Ok(token) } else { Err(BadToken) }
    }
}

/// A position in the list of a room's threads, as of a position in the log: before the thread whose
/// newest reply then was at an offset. It has the form `<token>.<offset>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadsToken<'a> {
    /// The token of the position in the log.
    pub as_of: &'a str,
    pub before: Offset,
}

impl fmt::Display for ThreadsToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.as_of, self.before)
    }
}

impl<'a> TryFrom<&'a str> for ThreadsToken<'a> {
    type Error = BadToken;

    fn try_from(text: &'a str) -> Result<Self, BadToken> {
        let (as_of, before) = text.split_once('.').ok_or(BadToken)?;
        let token = Self { as_of, before: Offset::new(before.parse().map_err(|_| BadToken)?) };
        if token.to_string() == text { Ok(token) } else { Err(BadToken) }
    }
}

/// A position of a sliding sync connection: `s<epoch>_<offset>_<connection>_<ticket>`. The ticket
/// identifies the response, because there can be several at one offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pos {
    pub token: Token,
    /// The number of the connection, which none that replaces it has.
    pub connection: u64,
    pub ticket: u64,
}

impl fmt::Display for Pos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{:x}_{:x}", self.token, self.connection, self.ticket)
    }
}

impl FromStr for Pos {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let number = |text| u64::from_str_radix(text, 16).map_err(|_| BadToken);
        let (token, ticket) = text.rsplit_once('_').ok_or(BadToken)?;
        let (token, connection) = token.rsplit_once('_').ok_or(BadToken)?;
        let (connection, ticket) = (number(connection)?, number(ticket)?);
        let pos = Self { token: token.parse()?, connection, ticket };
        if pos.to_string() == text { Ok(pos) } else { Err(BadToken) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip_and_nothing_else_parses() {
        let token = Token { epoch: Epoch(2), offset: Offset::new(77) };
        assert_eq!(token.to_string().parse(), Ok(token));
        for bad in [
            "",
            "s",
            "77",
            "s0",
            "s0_",
            "s_7",
            "s0_-1",
            "s0_+1",
            "s0_07",
            "s0_7x",
            "t0_7",
            "s99999999999_1",
            "s0_99999999999999999999",
        ] {
            assert_eq!(bad.parse::<Token>(), Err(BadToken), "{bad}");
        }
    }

    #[test]
    fn tokens_of_synapse_are_told_from_those_of_this_server() {
        let at = |number| Some(Token { epoch: Token::AT_SOURCE, offset: Offset::new(number) });
        for (text, number) in [
            (
                "s2633508_17_338_6732159_1082514_541479_274711_265584_1_379_4242_4141_4343_4444",
                2_633_508,
            ),
            ("s12_4_0_1_1_1_1_4_1", 12),
            ("s12_4_0_1_1_1_1", 12),
            ("t426-2633508_4_0_1_1_1_1_4_1_1", 2_633_508),
            ("m56~2.58~3.59_4_0_m1~1.3_1_1_1_m4~2.7_1_1_1_1", 56),
            ("5/s2633508_17_338_6732159_1082514_541479_274711_265584_1_379", 2_633_508),
            ("s12_-1_0_1_1_1_1_4_1", 12),
            ("t426--15_4_0_1_1_1_1_4_1_1", 0),
            ("s-15_4_0_1_1_1_1_4_1_1", 0),
        ] {
            assert_eq!(Token::of_synapse(text), at(number), "{text}");
            assert!(text.parse::<Token>().is_err() && text.parse::<Pos>().is_err(), "{text}");
        }
        for other in [
            "",
            "s12",
            "s12_4",
            "s12_4_feed",
            "s12_4_0_1_1_1",
            "s12_4_0_1_1_1_1_4_",
            "s12_4_0_1_1_1_1_4_x",
            "s_4_0_1_1_1_1_4_1",
            "é12_4_0_1_1_1_1_4_1",
            "x/s12_4_0_1_1_1_1_4_1",
            "t12_4_0_1_1_1_1_4_1",
            "t-12_4_0_1_1_1_1_4_1",
            "t3---12_4_0_1_1_1_1_4_1",
            "s99999999999999999999999_4_0_1_1_1_1_4_1",
        ] {
            assert_eq!(Token::of_synapse(other), None, "{other}");
        }
        let many = format!("s12{}", "_1".repeat(25));
        assert_eq!(Token::of_synapse(&many), None);
        for (text, depth, number) in [
            ("s12_4_0_1_1_1_1_4_1", None, 12),
            ("t426-12_4_0_1_1_1_1_4_1", Some(426), 12),
            ("t426--15_4_0_1_1_1_1_4_1", Some(426), -15),
        ] {
            let place = SourcePlace { depth, number };
            assert_eq!(SourcePlace::of_synapse(text), Some(place), "{text}");
        }
    }

    #[test]
    fn tokens_of_gaps_round_trip_and_nothing_else_parses() {
        let (epoch, gap) = (Epoch(2), Offset::new(77));
        let places = [
            (TimelinePosition::After(gap), "s2_77"),
            (TimelinePosition::Within { gap, passed: 5 }, "s2_77~5"),
        ];
        for (place, text) in places {
            let token = HistoryToken { epoch, place };
            assert_eq!(token.to_string(), text);
            assert_eq!(text.parse(), Ok(token));
        }
        for bad in ["", "s2_77~", "s2_77~05", "s2_77~-1", "s2_77~+1", "s2_77~1~1", "~1", "s2_~1"] {
            assert_eq!(bad.parse::<HistoryToken>(), Err(BadToken), "{bad}");
        }
        assert_eq!("s2_77~5".parse::<Token>(), Err(BadToken));
        assert_eq!("s2_77~5".parse::<Pos>(), Err(BadToken));
    }

    #[test]
    fn tokens_of_threads_round_trip_and_nothing_else_parses() {
        let token = ThreadsToken { as_of: "s0_9", before: Offset::new(7) };
        assert_eq!(ThreadsToken::try_from(&*token.to_string()), Ok(token));
        for bad in ["", "s0_9", "s0_9.", "s0_9.x", "s0_9.07", "s0_9.+7", "s0_9.7.7"] {
            assert_eq!(ThreadsToken::try_from(bad), Err(BadToken), "{bad}");
        }
    }

    #[test]
    fn a_pos_is_a_token_with_a_ticket() {
        let token = Token { epoch: Epoch(2), offset: Offset::new(77) };
        let pos = Pos { token, connection: 0xbed, ticket: 0xfeed };
        assert_eq!(pos.to_string(), "s2_77_bed_feed");
        assert_eq!(pos.to_string().parse(), Ok(pos));
        for bad in ["s2_77", "s2_77_", "s2_77_1", "s2_77_1_g", "s2_77_1_0feed", "s2_77_1_FEED"]
            .into_iter()
            .chain(["s2_77_1_+1", "s2_77__1", "2_77_1_1"])
        {
            assert_eq!(bad.parse::<Pos>(), Err(BadToken), "{bad}");
        }
        assert_eq!("s2_77_bed_feed".parse::<Token>(), Err(BadToken));
    }
}
