//! The numbers of JSON texts.

use std::borrow::Cow;

/// The largest integer of canonical JSON: 2^53 - 1.
const LARGEST: u64 = (1 << 53) - 1;

/// Whether canonical JSON allows this number, written like this.
pub fn is_strict(token: &str) -> bool {
    let digits = token.strip_prefix('-').unwrap_or(token);
    token != "-0"
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && digits.parse::<u64>().is_ok_and(|value| value <= LARGEST)
}

/// Whether other homeservers can hold this number, if it is finite: a signed integer of 64 bits, or
/// a number with a fraction or an exponent.
pub fn is_held(token: &str) -> bool {
    !is_integer(token) || token.parse::<i64>().is_ok()
}

fn is_integer(token: &str) -> bool {
    !token.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E'))
}

/// Digits of an integer that is certainly in the range of doubles.
const FINITE_DIGITS: usize = 300;

/// A number of a JSON text as Python writes it, which is how Synapse signs and hashes it; `None` if
/// it is beyond the range of doubles: many parsers then refuse the whole text. An integer keeps all
/// its digits. Anything else is a double in the shortest form that reads as the same.
pub fn normal(token: &str) -> Option<Cow<'_, str>> {
    if is_integer(token) {
        let is_finite = || token.parse().is_ok_and(|value: f64| value.is_finite());
        if token.len() > FINITE_DIGITS && !is_finite() {
            return None;
        }
        return Some(Cow::Borrowed(if token == "-0" { "0" } else { token }));
    }
    let value: f64 = token.parse().ok().filter(|value: &f64| value.is_finite())?;
    let written = float(value);
    Some(if written == token { Cow::Borrowed(token) } else { Cow::Owned(written) })
}

/// A double as Python's `repr` writes it.
fn float(value: f64) -> String {
    // Rust writes the same digits, as few as needed: `-1.25e-7`.
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}
