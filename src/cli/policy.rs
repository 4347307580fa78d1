//! `logcabin policy`: the moderation policy lists that this server applies.

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use super::act::{ActOptions, Common};
use logcabin_ops::{
    admin::policies::{
        ApprovePolicyRules, KeptAwayList, ListKeptAway, ListPolicyLists, PolicyList,
        PolicyListsShown, RulesApproved, SimulatePolicies, Simulated, SubscribePolicyList,
        Subscribed, TestPolicy, Tested, UnsubscribePolicyList, Unsubscribed,
    },
    history::{moment::Time, terminal::clean},
};
use logcabin_read::policy_lists::ProposedRule;

/// Apply moderation policy lists, and see what they do
///
/// A policy list is a room with `m.policy.rule.user`, `.room` and `.server` events, such as
/// Draupnir and Mjolnir write.
#[derive(Debug, clap::Args)]
pub(super) struct Policy {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(List),
    Subscribe(Subscribe),
    Unsubscribe(Unsubscribe),
    Approve(Approve),
    Test(Test),
    KeptAway(KeptAway),
    Simulate(Simulate),
}

/// List the policy lists that the server applies
#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    common: Common,
}

/// Apply the rules of a policy list, or apply them in another way
///
/// What is left out is as by default, also for a list that is applied already. A user of this
/// server has to be in the room.
#[derive(Debug, clap::Args)]
struct Subscribe {
    /// The room with the rules, by its id or an alias
    #[arg(value_name = "ROOM")]
    room: String,

    /// Apply the rules to these [default: all but federation]
    #[arg(long, value_name = "AREA", value_delimiter = ',', value_parser = [
        "invites", "joins", "registration", "directory", "media", "federation"
    ])]
    to: Vec<String>,

    /// Look this list up before those with a higher number
    #[arg(long, value_name = "NUMBER")]
    order: Option<u32>,

    /// Apply no rule of the list to users, rooms and homeservers that match; may be repeated
    #[arg(long, value_name = "PATTERN")]
    except: Vec<String>,

    /// Apply `m.takedown` like `m.ban`, instead of only noting it
    #[arg(long)]
    takedowns: bool,

    /// Have rules wait for approval once they would hit more users and rooms of this server
    /// [default: 10]
    #[arg(long, value_name = "NUMBER")]
    hold_above: Option<u64>,

    #[command(flatten)]
    options: ActOptions,
}

/// Stop applying the rules of a policy list
#[derive(Debug, clap::Args)]
struct Unsubscribe {
    /// The room with the rules
    #[arg(value_name = "ROOM")]
    room: String,

    #[command(flatten)]
    options: ActOptions,
}

/// Approve rules that wait because they hit many users or rooms of this server
#[derive(Debug, clap::Args)]
struct Approve {
    /// The room with the rules
    #[arg(value_name = "ROOM")]
    room: String,

    /// The rule in this event; may be repeated
    #[arg(long, value_name = "EVENT", required = true)]
    rule: Vec<String>,

    #[command(flatten)]
    options: ActOptions,
}

/// Show which rules match a user, a room, an alias or a homeserver
#[derive(Debug, clap::Args)]
struct Test {
    /// An id, an alias, or the name of a homeserver
    #[arg(value_name = "ENTITY")]
    entity: String,

    #[command(flatten)]
    common: Common,
}

/// Show what rules kept away since the server started
#[derive(Debug, clap::Args)]
struct KeptAway {
    #[command(flatten)]
    common: Common,
}

/// Show what rules would have refused, had they been applied
///
/// Goes through the log from a moment on, and changes nothing. The rules are those of a room, which
/// need not be applied, or of a file: a JSON array of `{"type": "m.policy.rule.user", "content":
/// {"entity": "@spam*:*", "recommendation": "m.ban"}}`.
#[derive(Debug, clap::Args)]
#[group(id = "rules", required = true, args = ["room", "file"])]
struct Simulate {
    /// The rules of this room
    #[arg(long, value_name = "ROOM")]
    room: Option<String>,

    /// The rules in this file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// From this moment on: an offset, a time, or a time before now, such as -7d
    #[arg(long, value_name = "MOMENT", default_value = "-7d", allow_hyphen_values = true)]
    since: String,

    #[command(flatten)]
    common: Common,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Policy {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            Command::List(List { common }) => common.run(ListPolicyLists {}, list),
            Command::Subscribe(subscribe) => subscribe.run(),
            Command::Unsubscribe(Unsubscribe { room, options }) => {
                options.run(UnsubscribePolicyList { room }, |Unsubscribed { room_id }| {
                    format!("The rules in {room_id} are no longer applied.\n")
                })
            }
            Command::Approve(Approve { room, rule, options }) => {
                let act = ApprovePolicyRules { room, rules: rule };
                options.run(act, |RulesApproved { room_id, rules }| {
                    format!("Approved {} rule(s) in {room_id}.\n", rules.len())
                })
            }
            Command::Test(Test { entity, common }) => common.run(TestPolicy { entity }, tested),
            Command::KeptAway(KeptAway { common }) => common.run(ListKeptAway {}, kept_away),
            Command::Simulate(simulate) => simulate.run(),
        }
    }
}

impl Subscribe {
    fn run(self) -> Result<ExitCode, Failure> {
        let Self { room, to: areas, order, except, takedowns, hold_above, options } = self;
        let act = SubscribePolicyList { room, areas, order, except, takedowns, hold_above };
        options.run(act, |Subscribed { changed, list }| {
            let first = if *changed { "Subscribed:" } else { "It was so already:" };
            format!("{first}\n{}", described(list))
        })
    }
}

impl Simulate {
    fn run(self) -> Result<ExitCode, Failure> {
        let Self { room, file, since, common } = self;
        let rules: Vec<ProposedRule> = match file {
            Some(path) => {
                let unusable =
                    |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
                let text = std::fs::read_to_string(&path).map_err(|error| unusable(&error))?;
                serde_json::from_str(&text).map_err(|error| unusable(&error))?
            }
            None => Vec::new(),
        };
        common.run(SimulatePolicies { room, rules, since }, simulated)
    }
}

fn list(PolicyListsShown { lists }: &PolicyListsShown) -> String {
    let mut text: String = lists.iter().map(described).collect();
    let _ = writeln!(text, "{} policy list(s)", lists.len());
    text
}

fn described(list: &PolicyList) -> String {
    let areas: Vec<_> = list.areas.iter().map(|area| area.name()).collect();
    let name = list.name.as_deref().unwrap_or("no name");
    let mut text = format!("{}  {}\n", list.room_id, clean(name));
    let PolicyList { users, rooms, servers, unusable, .. } = list;
    let _ = writeln!(text, "  {users} user(s), {rooms} room(s), {servers} homeserver(s)");
    let _ = writeln!(text, "  applied to {}, order {}", areas.join(", "), list.order);
    if !list.is_joined {
        text += "  nobody of this server is in the room: its rules stay as they are here\n";
    }
    if *unusable > 0 {
        let _ = writeln!(text, "  {unusable} rule(s) cannot be used");
    }
    if list.new > 0 {
        let _ = writeln!(text, "  {} new rule(s) are not looked at yet", list.new);
    }
    if !list.except.is_empty() {
        let _ = writeln!(text, "  except {}", clean(&list.except.join(", ")));
    }
    if list.waiting > 0 {
        let _ = writeln!(text, "  {} rule(s) wait for approval:", list.waiting);
    }
    for rule in &list.waiting_rules {
        let entity = rule.entity.as_deref().unwrap_or_default();
        let _ = writeln!(text, "    {}  {} (hits {})", rule.event_id, clean(entity), rule.hits);
    }
    text
}

fn tested(Tested { entity, matches }: &Tested) -> String {
    let mut text = String::new();
    for found in matches {
        let rule = found.rule.as_deref().unwrap_or("a hash");
        let areas: Vec<_> = found.areas.iter().map(|area| area.name()).collect();
        let _ = writeln!(
            text,
            "{} by `{}` ({}) in {}, record {}, for {}{}",
            found.outcome,
            clean(rule),
            clean(&found.recommendation),
            found.list,
            found.record,
            areas.join(", "),
            found.reason.as_deref().map(|why| format!(": {}", clean(why))).unwrap_or_default(),
        );
    }
    if matches.is_empty() {
        let _ = writeln!(text, "No rule matches {}.", clean(entity));
    }
    text
}

fn kept_away(KeptAwayList { kept_away }: &KeptAwayList) -> String {
    let mut text = String::new();
    for kept in kept_away {
        let at = kept.last_ts.map(|ms| Time(ms).to_string()).unwrap_or_default();
        let what = if kept.refused { "refused" } else { "noted" };
        let by = match (&kept.list, kept.rule, &kept.setting) {
            (Some(list), Some(rule), _) => format!("record {rule} of {list}"),
            (.., Some(setting)) => format!("setting `{setting}`"),
            _ => String::new(),
        };
        let (area, name, times) = (&kept.area, clean(&kept.name), kept.times);
        let _ = writeln!(text, "{at}  {area}: {what} {name}, {times} time(s), by {by}");
    }
    if kept_away.is_empty() {
        text += "Nothing was kept away since the server started.\n";
    }
    text
}

fn simulated(Simulated { from, to, refused, matches, wrong }: &Simulated) -> String {
    let mut text = format!("Records {from} to {to}: {refused} would have been refused.\n");
    for found in matches {
        let (area, name, times) = (found.area.name(), clean(&found.name), found.times);
        let (rule, first, last) = (found.rule, found.first, found.last);
        let _ = writeln!(
            text,
            "  {area}: {name}, {times} time(s), records {first} to {last}, by rule {rule}"
        );
    }
    if !wrong.is_empty() {
        let places: Vec<_> = wrong.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "These rules cannot be understood: {}", places.join(", "));
    }
    text
}
