//! `simulate`: whole servers, with their clients, disks and network, on one thread and in a time of
//! their own. A seed decides everything, so that a failure happens again with the same seed.

mod acts;
mod dice;
mod homeserver;
mod hostile;
mod http;
mod ledger;
mod mutants;
mod odd;
mod os;
mod promises;
mod story;
mod user;
mod world;

use std::{
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

use clap::Parser as _;
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt as _},
    util::SubscriberInitExt as _,
};

use logcabin_base::planted::Fault;
use story::Story;
use world::{Outcome, Plan};

/// Run worlds of homeservers with all that can go wrong, and check what must hold in them
#[derive(Debug, clap::Parser)]
struct Arguments {
    /// The seed of the first world
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// How many worlds to run, with one seed after the other
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    worlds: u64,

    /// How many homeservers a world has
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    homeservers: usize,

    /// How many users each homeserver has
    #[arg(long, value_name = "NUMBER", default_value_t = 4)]
    users: usize,

    /// How much each user does
    #[arg(long, value_name = "NUMBER", default_value_t = 30)]
    actions: usize,

    /// Plant a fault in the servers, which the worlds then must find; or `all`, each in a world
    /// that is known to find it
    #[arg(long, value_name = "NUMBER|all")]
    mutate: Option<String>,

    /// Let nothing go wrong
    #[arg(long)]
    calm: bool,

    /// Have one more homeserver, which is odd and hostile
    #[arg(long)]
    hostile: bool,

    /// Write what the disks hold at the end into this directory, a file for each homeserver
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,

    /// Compare what each server knew when it stopped with a replay of its log
    #[arg(long)]
    replays: bool,

    /// Leave out these faults, by their numbers
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    without: Vec<usize>,

    /// Look for a smaller world that is broken, too
    #[arg(long)]
    minimise: bool,

    /// Print all that happens
    #[arg(long)]
    story: bool,

    /// Print what the servers log, at this level
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

/// Takes all that is logged, and does nothing with it.
struct Everything;

impl<S: tracing::Subscriber> Layer<S> for Everything {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target().starts_with("logcabin") && *metadata.level() <= tracing::Level::DEBUG
    }
}

/// How many lines of the story of a broken world are printed.
const LAST: usize = 40;

/// What is known of a world that has ended.
struct Report {
    broken: Option<String>,
    last: Vec<String>,
    trace: String,
    outcome: Option<Outcome>,
}

/// Runs the world of a plan.
fn run(plan: &Plan, tells: bool, dump: Option<PathBuf>) -> Report {
    let plan = plan.clone();
    // A thread of its own, so that a panic in it is told.
    let world = std::thread::spawn(move || {
        let story = if tells { Story::default().told() } else { Story::default() };
        let ended = world::run(plan, &story, dump.as_deref()).map_err(|error| error.to_string());
        let broken = story.is_broken().or_else(|| ended.as_ref().err().cloned());
        Report { broken, last: story.last(LAST), trace: story.hash(), outcome: ended.ok() }
    });
    world.join().unwrap_or_else(|_| Report {
        broken: Some("a part of it panicked".to_owned()),
        last: Vec::new(),
        trace: String::new(),
        outcome: None,
    })
}

/// The world of a plan in a process of its own. What is made once for a process, such as keys of
/// hash tables, would be that of the first world otherwise, and the seed would not decide all.
fn alone(plan: &Plan) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments_of(plan).split(' '));
    Ok(command)
}

/// The smallest plan that is found whose world is still broken, step by step from this one.
fn minimised(mut plan: Plan, faults: usize) -> Plan {
    let is_broken = |plan: &Plan| {
        let ended = alone(plan).and_then(|mut world| world.stdout(Stdio::null()).status());
        ended.is_ok_and(|status| !status.success())
    };
    let mut calm = plan.clone();
    calm.has_faults = false;
    if plan.has_faults && is_broken(&calm) {
        plan = calm;
    }
    while plan.actions > 1 {
        let fewer = Plan { actions: plan.actions / 2, ..plan.clone() };
        if !is_broken(&fewer) {
            break;
        }
        plan = fewer;
    }
    let faults = if plan.has_faults { faults } else { 0 };
    for fault in 1..=faults {
        let mut without = plan.clone();
        without.without.insert(fault);
        if is_broken(&without) {
            plan = without;
        }
    }
    plan
}

/// The arguments that give this plan.
fn arguments_of(plan: &Plan) -> String {
    let Plan {
        seed,
        homeservers,
        users,
        actions,
        has_faults,
        is_hostile,
        replays,
        without,
        planted,
    } = plan;
    let mut text =
        format!("--seed {seed} --homeservers {homeservers} --users {users} --actions {actions}");
    if !has_faults {
        text.push_str(" --calm");
    }
    if *is_hostile {
        text.push_str(" --hostile");
    }
    if *replays {
        text.push_str(" --replays");
    }
    if !without.is_empty() {
        let numbers: Vec<_> = without.iter().map(usize::to_string).collect();
        text.push_str(&format!(" --without {}", numbers.join(",")));
    }
    if let Some(planted) = planted {
        text.push_str(&format!(" --mutate {}", *planted as u32));
    }
    text
}

/// The page with the table of faults.
const PAGE: &str = include_str!("../../docs/simulation.md");

/// The first claim that a world breaks.
fn broken(plan: &Plan) -> Option<String> {
    let ended = alone(plan).and_then(|mut world| world.output());
    let output = ended.map(|ended| ended.stdout).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    let broken = output.lines().find_map(|line| line.split_once(": BROKEN "));
    broken.map(|(_, broken)| broken.to_owned())
}

/// Runs worlds until one breaks the claim by which the fault is to be found, and holds without it.
fn find(mutant: &mutants::Mutant) -> Option<(u64, String)> {
    mutants::SEEDS.into_iter().find_map(|seed| {
        let plan = mutant.plan(seed);
        let found = broken(&plan).filter(|found| found.starts_with(mutant.claim))?;
        let holds = broken(&Plan { planted: None, ..plan }).is_none();
        holds.then_some((seed, found))
    })
}

/// Looks for each of the faults on purpose.
fn find_all() -> ExitCode {
    let mut lacking = 0;
    for mutant in mutants::ALL {
        let number = mutant.fault as u32;
        let end = mutant.row_end();
        let is_told = PAGE
            .lines()
            .any(|line| line.starts_with(&format!("| {number} |")) && line.ends_with(&end));
        let found = find(&mutant);
        lacking += usize::from(found.is_none()) + usize::from(!is_told);
        let how = match &found {
            Some((seed, found)) => format!("found with seed {seed}: {found}"),
            None => "NOT FOUND".to_owned(),
        };
        println!("{number} {:?}: {how}", mutant.fault);
        if !is_told {
            println!("{number}: its row in the table is another");
        }
    }
    if lacking == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one world after the other, to the first that is broken.
fn run_all(arguments: &Arguments, plan_of: impl Fn(u64) -> Plan) -> ExitCode {
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.worlds) {
        let ended = alone(&plan_of(seed)).and_then(|mut world| {
            world.args(arguments.minimise.then_some("--minimise"));
            world.args(arguments.story.then_some("--story"));
            world.args(arguments.log.iter().flat_map(|filter| ["--log", filter]));
            if let Some(dir) = &arguments.dump {
                world.arg("--dump").arg(dir);
            }
            world.status()
        });
        if !ended.is_ok_and(|status| status.success()) {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let planted = arguments.mutate.as_ref().filter(|number| *number != "all").map(|number| {
        let fault = Fault::ALL.into_iter().find(|fault| (*fault as u32).to_string() == *number);
        fault.ok_or(number)
    });
    let planted = match planted.transpose() {
        Ok(planted) => planted,
        Err(number) => {
            let known = Fault::ALL.map(|fault| format!("{} {fault:?}", fault as u32)).join(", ");
            eprintln!("no fault has the number {number}; there are {known}");
            return ExitCode::from(2);
        }
    };
    // Spans exist with and without `--log`: a request with one has an id, which is random.
    let (level, shown) = match &arguments.log {
        Some(filter) => (filter.as_str(), true),
        None => ("", false),
    };
    let shown = shown.then(|| {
        let filter = tracing_subscriber::EnvFilter::new(level);
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_filter(filter)
    });
    tracing_subscriber::registry().with(Everything).with(shown).init();
    if arguments.mutate.as_deref() == Some("all") {
        return find_all();
    }
    let plan_of = |seed| Plan {
        seed,
        homeservers: arguments.homeservers,
        users: arguments.users,
        actions: arguments.actions,
        has_faults: !arguments.calm,
        is_hostile: arguments.hostile,
        replays: arguments.replays,
        without: arguments.without.iter().copied().collect(),
        planted,
    };
    if arguments.worlds > 1 {
        return run_all(&arguments, plan_of);
    }
    let plan = plan_of(arguments.seed);
    let seed = plan.seed;
    let before = os::processor_time();
    let Report { broken, last, trace, outcome } =
        run(&plan, arguments.story, arguments.dump.clone());
    let took = os::processor_time().saturating_sub(before).as_secs_f64();
    if let Some(broken) = broken {
        for line in last.iter().filter(|_| !arguments.story) {
            println!("{line}");
        }
        println!("seed {seed}: BROKEN {broken} (trace {trace})");
        let plan = match outcome.filter(|_| arguments.minimise) {
            Some(outcome) => minimised(plan, outcome.faults),
            None => plan,
        };
        println!("again: simulate --story {}", arguments_of(&plan));
        return ExitCode::FAILURE;
    }
    if let Some(Outcome { requests, lasted, faults }) = outcome {
        println!(
            "seed {seed}: {requests} requests and {faults} faults in {} simulated seconds, \
                 {took:.1} s of CPU, {:.0} requests for each (trace {trace})",
            lasted.as_secs(),
            requests as f64 / took,
        );
    }
    ExitCode::SUCCESS
}
