//! Whether the clock agrees with those of other homeservers.

use std::collections::BTreeMap;

use ruma::OwnedServerName;

use super::{Finding, Level, unknown};
use logcabin_base::{clock::millis, limits};

const CHECK: &str = "clock";

/// `ahead` says how far the clock of each of some other homeservers is ahead of the one here, in
/// milliseconds.
pub(super) fn judge(ahead: &BTreeMap<OwnedServerName, i64>) -> Finding {
    let mend = "timedatectl set-ntp true, or another time service such as chrony";
    let mut all: Vec<i64> = ahead.values().copied().collect();
    all.sort_unstable();
    // Of an even number the one that speaks for this clock: others may be wrong, too.
    let middle = match all.len() {
        0 => {
            let reason = "no other homeserver told its time";
            return unknown(CHECK, "Whether the clock is right", reason, mend);
        }
        odd if odd % 2 == 1 => all.get(odd / 2),
        even => {
            all.get(even / 2 - 1..=even / 2).and_then(|two| two.iter().min_by_key(|of| of.abs()))
        }
    };
    let off = middle.copied().unwrap_or_default();
    let direction = if off < 0 { "fast" } else { "slow" };
    let seconds = off.unsigned_abs() / 1000;
    let of = format!("by the time of {} other homeserver(s)", all.len());
    let [warn, err] = limits::DOCTOR_CLOCK_OFF.map(millis);
    let level = match off.unsigned_abs() {
        off if off > err => Level::Error,
        off if off > warn => Level::Warning,
        _ => return Finding::ok(CHECK, format!("The clock is right, {of}.")),
    };
    let why = "Messages have wrong times, tokens expire early or late, and keys seem expired.";
    Finding::new(CHECK, level, format!("The clock is {seconds} s {direction}, {of}."), why, mend)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ahead: &[i64]) -> Finding {
        let name =
            |number: usize| -> OwnedServerName { format!("{number}.example").try_into().unwrap() };
        judge(&ahead.iter().enumerate().map(|(number, of)| (name(number), *of)).collect())
    }

    #[test]
    fn a_clock_that_is_off_is_found_whatever_one_homeserver_says() {
        for (ahead, level) in [
            (&[][..], Level::Unknown),
            (&[900], Level::Ok),
            (&[15_000], Level::Warning),
            (&[-400_000], Level::Error),
            (&[0, 100, 9_000_000], Level::Ok),
            (&[0, 9_000_000], Level::Ok),
            (&[400_000, 401_000, 0], Level::Error),
        ] {
            assert_eq!(judged(ahead).level, level, "{ahead:?}");
        }
        assert!(judged(&[15_000]).what.contains("15 s slow"));
        assert!(judged(&[-15_000]).what.contains("15 s fast"));
    }
}
