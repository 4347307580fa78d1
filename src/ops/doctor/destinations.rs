//! The homeservers that cannot be told of events.

use super::{Finding, Level, Subject, failing, unknown};
use crate::{
    admin::federation::{DestinationRow, destinations},
    history::terminal::{duration, grouped},
};
use logcabin_base::limits;

const CHECK: &str = "destinations";

pub(super) fn findings(of: &Subject<'_>) -> Vec<Finding> {
    if !of.config.federation.enabled {
        return Vec::new();
    }
    let found = of.context.map_err(str::to_owned).and_then(|context| {
        destinations(context, 0, limits::DOCTOR_NAMED).map_err(|error| error.to_string())
    });
    vec![match found {
        Ok(found) => judge(&found.destinations, found.failing, found.total, of.now_ms),
        Err(reason) => {
            let mend = "logcabin federation status";
            unknown(CHECK, "Which homeservers cannot be reached", &failing(&reason), mend)
        }
    }]
}

/// `first` are some of all, with those that fail before others.
fn judge(first: &[DestinationRow], failed: usize, total: usize, now_ms: u64) -> Finding {
    if failed == 0 {
        let what = format!("All of {} other homeservers were reached.", grouped(total as u64));
        return Finding::ok(CHECK, what);
    }
    let named = first.iter().filter_map(|row| {
        let of = row.failing.as_ref()?;
        let since = duration(now_ms.saturating_sub(of.since_ms) / 1000);
        let more = if row.waiting.and_more { " or more" } else { "" };
        let (name, waiting) = (&row.server_name, grouped(row.waiting.events as u64));
        let error = failing(&of.error);
        Some(format!("{name} for {since} ({error}), with {waiting}{more} event(s) waiting"))
    });
    let named: Vec<_> = named.collect();
    let rest = failed.saturating_sub(named.len());
    let rest = if rest > 0 { format!("; and {rest} more") } else { String::new() };
    // Some homeservers are always gone. If most are, the reason is here.
    let is_here = total >= 4 && failed * 2 > total;
    let what = format!(
        "{failed} of {} other homeservers cannot be reached: {}{rest}.",
        grouped(total as u64),
        named.join("; ")
    );
    Finding::new(
        CHECK,
        if is_here { Level::Error } else { Level::Warning },
        what,
        match is_here {
            true => {
                "Most of them fail, so the reason is probably here: the network, DNS, the clock."
            }
            false => "Their users do not see what is written here until they can be reached.",
        },
        "logcabin federation status NAME; logcabin federation retry NAME",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::federation::WaitingEvents;
    use logcabin_record::{Offset, command::Failing};

    fn row(name: &str, error: Option<&str>) -> DestinationRow {
        DestinationRow {
            server_name: name.try_into().unwrap(),
            rooms: 1,
            up_to: Offset::ZERO,
            waiting: WaitingEvents { events: 3, ..WaitingEvents::default() },
            failing: error.map(|error| Failing {
                since_ms: 1_000,
                attempts: 2,
                again_ms: 9_000,
                error: error.to_owned(),
            }),
            set_aside: 0,
            is_denied: false,
        }
    }

    #[test]
    fn failing_homeservers_are_named_with_the_reason() {
        assert_eq!(judge(&[row("a.example", None)], 0, 1, 0).level, Level::Ok);
        let rows = [row("b.example", Some("DNS: \u{1b}[0m none")), row("a.example", None)];
        let found = judge(&rows, 2, 9, 61_000);
        assert_eq!(found.level, Level::Warning);
        for words in ["2 of 9", "b.example for 1 min (DNS: ·[0m none)", "3 event(s)", "1 more"] {
            assert!(found.what.contains(words), "{words}: {found:?}");
        }
        assert_eq!(judge(&rows, 5, 9, 61_000).level, Level::Error);
    }
}
