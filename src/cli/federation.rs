//! `logcabin federation`: other homeservers.

use std::process::ExitCode;

use super::{
    act::{ActOptions, Common},
    columns,
};
use logcabin_base::clock::Clock;
use logcabin_ops::{
    admin::federation::{
        DestinationDetails, DestinationReset, DestinationRetried, DestinationRow, Destinations,
        KeyReplaced, ListDestinations, ListRefusedEvents, NewKey, RefusedEvents, ResetDestination,
        RetryDestination, ShowDestination, WaitingEvents,
    },
    history::{
        moment::Time,
        terminal::{clean, duration, grouped},
    },
};
use logcabin_record::command::{Failing, SetAsideItem};

/// Manage federation with other homeservers
#[derive(Debug, clap::Args)]
pub(super) struct Federation {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show the delivery positions of other homeservers, and which ones are unreachable
    ///
    /// Unreachable ones come first. An event waits for a homeserver that has a user in the room and
    /// has not received the event yet. What cannot be sent to a homeserver, or is refused by it
    /// although it takes other transactions, is set aside and delays nothing.
    Status {
        /// Show details of this homeserver: its keys, what is set aside, and the rooms that it
        /// shares with this one
        #[arg(value_name = "NAME")]
        server: Option<String>,

        /// List at most COUNT homeservers or rooms, up to 1000
        #[arg(long, value_name = "COUNT", default_value_t = 100)]
        limit: usize,

        #[command(flatten)]
        common: Common,
    },
    /// Show which events of other homeservers were rejected or soft-failed, and why
    Refused {
        /// List the newest COUNT events, up to 1000
        #[arg(long, value_name = "COUNT", default_value_t = 100)]
        limit: usize,

        #[command(flatten)]
        common: Common,
    },
    /// Retry an unreachable homeserver now instead of at its scheduled time
    Retry {
        /// The homeserver
        #[arg(value_name = "NAME")]
        server: String,

        #[command(flatten)]
        options: ActOptions,
    },
    /// Reset a homeserver: clear its failures, and drop everything that waits for it
    ///
    /// The homeserver receives only later events. Each event names those before it, so the
    /// homeserver asks for the missing ones if it can. Use this for a homeserver that fails at an
    /// event without refusing it, which blocks all later ones.
    Reset {
        /// The homeserver
        #[arg(value_name = "NAME")]
        server: String,

        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,

        #[command(flatten)]
        options: ActOptions,
    },
    /// Replace the key that signs requests and events
    ///
    /// The old key is published as expired: its signatures stay valid, but it cannot sign new
    /// events. Other homeservers fetch the new key when they first need it.
    NewKey {
        #[command(flatten)]
        options: ActOptions,
    },
}

impl Federation {
    pub(super) fn run(self) -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
        match self.command {
            Command::Status { server: None, limit, common } => {
                let now_ms = Clock::system().now_ms();
                common.run(ListDestinations { from: 0, limit }, |all| list(all, now_ms))
            }
            Command::Status { server: Some(server), limit, common } => {
                let now_ms = Clock::system().now_ms();
                common.run(ShowDestination { server, limit }, |all| one(all, now_ms))
            }
            Command::Refused { limit, common } => {
                common.run(ListRefusedEvents { from: 0, limit }, refused)
            }
            Command::Retry { server, options } => {
                options.run(RetryDestination { server }, |done| {
                    let DestinationRetried { server_name, was_failing } = done;
                    match was_failing {
                        true => format!("Retrying {server_name} now.\n"),
                        false => format!("{server_name} was reachable at the last attempt.\n"),
                    }
                })
            }
            Command::Reset { server, yes, options } => {
                let act = ResetDestination { server: server.clone() };
                options.run_if_meant(act, yes, &server, |done| {
                    let DestinationReset { server_name, events, and_more } = done;
                    let more = if *and_more { " or more" } else { "" };
                    let events = grouped(*events as u64);
                    format!("{server_name} is reset; {events}{more} event(s) were dropped.\n")
                })
            }
            Command::NewKey { options } => options.run(NewKey {}, |KeyReplaced { key_id }| {
                format!("The server signs with {key_id}.\n")
            }),
        }
    }
}

fn list(all: &Destinations, now_ms: u64) -> String {
    let Destinations { is_on, destinations, total, failing, end } = all;
    let off = if *is_on { "" } else { "Federation is off: nothing is delivered.\n" };
    if destinations.is_empty() {
        return format!("{off}No homeserver shares a room with this one.\n");
    }
    let heading =
        ["HOMESERVER", "ROOMS", "TOLD UP TO", "WAITING", "RECORDS", "TRIED", "NEXT", "LAST ERROR"];
    let row = |row: &DestinationRow| {
        let (tried, next) = match &row.failing {
            Some(failing) => (tries(failing, now_ms), next(failing, now_ms)),
            None => ("–".to_owned(), "–".to_owned()),
        };
        let denied = row.is_denied.then_some("denied by the configuration");
        let error = row.failing.as_ref().map(|failing| clean(&failing.error));
        [
            clean(row.server_name.as_str()),
            grouped(row.rooms as u64),
            grouped(row.up_to.get()),
            waiting(&row.waiting),
            grouped(row.waiting.records),
            tried,
            next,
            denied.map(str::to_owned).or(error).unwrap_or_default(),
        ]
    };
    let rows = std::iter::once(heading.map(str::to_owned)).chain(destinations.iter().map(row));
    let table = columns(&rows.collect::<Vec<_>>());
    let without = destinations.iter().filter(|row| row.set_aside > 0).count();
    let without = match without {
        0 => String::new(),
        _ => format!(
            "For {} of them, items are set aside: `federation status NAME` lists them.\n",
            grouped(without as u64)
        ),
    };
    let (total, failing, end) =
        (grouped(*total as u64), grouped(*failing as u64), grouped(end.get()));
    format!(
        "{off}{table}{total} in all, {failing} cannot be reached; the log ends at {end}.\n{without}"
    )
}

fn waiting(waiting: &WaitingEvents) -> String {
    let more = if waiting.and_more { "+" } else { "" };
    format!("{}{more}", grouped(waiting.events as u64))
}

/// The number of attempts, and the time since the first one.
fn tries(failing: &Failing, now_ms: u64) -> String {
    let since = now_ms.saturating_sub(failing.since_ms) / 1000;
    format!("{} in {}", failing.attempts, duration(since))
}

/// The time until the next attempt.
fn next(failing: &Failing, now_ms: u64) -> String {
    match failing.again_ms.saturating_sub(now_ms) / 1000 {
        0 => "now".to_owned(),
        left => format!("in {}", duration(left)),
    }
}

fn one(of: &DestinationDetails, now_ms: u64) -> String {
    let row = &of.destination;
    let mut facts = vec![
        ["Homeserver".to_owned(), clean(row.server_name.as_str())],
        ["Told up to record".to_owned(), grouped(row.up_to.get())],
        ["Events that wait for it".to_owned(), waiting(&row.waiting)],
    ];
    let mut fact = |name: &str, value: String| facts.push([name.to_owned(), value]);
    if let Some(since_ms) = row.waiting.since_ms {
        fact("Records since the first", grouped(row.waiting.records));
        fact("Waiting since", Time(since_ms).to_second() + "Z");
    }
    if row.is_denied {
        fact("Denied", "by the configuration: nothing is delivered".to_owned());
    }
    match &row.failing {
        Some(failing) => {
            fact("Unreachable since", Time(failing.since_ms).to_second() + "Z");
            fact("Tried", tries(failing, now_ms));
            fact("Tried again", next(failing, now_ms));
            fact("Last error", clean(&failing.error));
        }
        None if row.up_to.get() == 0 => fact("Reached", "never tried".to_owned()),
        None => fact("Reached", "yes".to_owned()),
    }
    if let (Some(keys), Some(until_ms)) = (of.keys, of.keys_valid_until_ms) {
        fact("Keys", format!("{} (record {keys})", clean(&of.key_ids.join(", "))));
        fact("Keys valid until", Time(until_ms).to_second() + "Z");
    }
    if row.set_aside > 0 {
        fact("Set aside", format!("{}, never sent to it", grouped(row.set_aside)));
    }
    fact("Shared rooms", grouped(row.rooms as u64));
    if let Some(used) = &of.used {
        fact("Used of its shares", used.to_string());
    }
    fact("State resolution", format!("{} ms lately", grouped(of.resolving_ms)));
    let mut text = columns(&facts);
    if !of.newest_aside.is_empty() {
        text += "\n";
        text += &columns(&aside(&of.newest_aside));
    }
    if !of.shared.is_empty() {
        let heading = ["ROOM", "ITS MEMBERS", "WAITING", "NAME"].map(str::to_owned);
        let rooms = of.shared.iter().map(|room| {
            let name = clean(room.name.as_deref().unwrap_or_default());
            let members = grouped(room.members as u64);
            [room.room_id.to_string(), members, waiting(&room.waiting), name]
        });
        text += "\n";
        text += &columns(&std::iter::once(heading).chain(rooms).collect::<Vec<_>>());
    }
    text
}

/// What was set aside, newest first.
fn aside(items: &[SetAsideItem]) -> Vec<[String; 4]> {
    let heading = ["SET ASIDE", "RECORD", "ITEM", "WHY"].map(str::to_owned);
    let row = |of: &SetAsideItem| {
        [
            Time(of.at_ms).to_second() + "Z",
            of.record.map_or_else(|| "–".to_owned(), |record| record.to_string()),
            clean(&of.item),
            clean(&of.why()),
        ]
    };
    std::iter::once(heading).chain(items.iter().rev().map(row)).collect()
}

fn refused(all: &RefusedEvents) -> String {
    if all.events.is_empty() {
        return "No event of another homeserver was rejected or soft-failed.\n".to_owned();
    }
    let heading =
        ["RECORD", "TIME", "FROM", "SENDER", "EVENT", "OUTCOME", "WHY"].map(str::to_owned);
    let rows = all.events.iter().map(|event| {
        let (outcome, why) = event.why();
        [
            event.record.to_string(),
            Time(event.time_ms).to_second(),
            clean(event.from.as_str()),
            clean(event.sender.as_str()),
            clean(event.event_id.as_str()),
            outcome.to_owned(),
            clean(why),
        ]
    });
    columns(&std::iter::once(heading).chain(rows).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_record::Offset;

    #[test]
    fn unreachable_destinations_are_listed_with_their_last_error() {
        let row = |name: &str, failing| DestinationRow {
            server_name: name.try_into().unwrap(),
            rooms: 2,
            up_to: Offset::new(1_000),
            waiting: WaitingEvents {
                events: 3,
                and_more: false,
                records: 77,
                since_ms: Some(1_000),
            },
            failing,
            set_aside: 0,
            is_denied: false,
        };
        let failing = Failing {
            since_ms: 1_000,
            attempts: 4,
            again_ms: 100_000,
            error: "TLS: \u{202e}no".to_owned(),
        };
        let all = Destinations {
            is_on: true,
            destinations: vec![row("b.example", Some(failing)), row("a.example", None)],
            total: 2,
            failing: 1,
            end: Offset::new(1_234),
        };
        let shown = list(&all, 61_000);
        let lines: Vec<_> = shown.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "HOMESERVER  ROOMS  TOLD UP TO  WAITING  RECORDS  TRIED       NEXT     LAST ERROR",
                "b.example   2      1,000       3        77       4 in 1 min  in 39 s  TLS: ·no",
                "a.example   2      1,000       3        77       –           –",
                "2 in all, 1 cannot be reached; the log ends at 1,234.",
            ]
        );
    }
}
