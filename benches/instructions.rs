//! The regression guard: how many instructions each of the server's main paths takes for one
//! operation, beside the figures in `benches/instructions.toml`. It fails when one takes more than
//! these and a margin.
//!
//! ```text
//! cargo test --bench instructions -- --compare    # what .ci/run does
//! cargo test --bench instructions -- --bless      # compares, and stores what was counted
//! cargo bench --bench instructions                # counts in an optimised build, and no more
//! ```
//!
//! Instructions are counted by callgrind (`apt-get install valgrind`), the same on a busy machine
//! as on a quiet one. They differ between runs only in what is random: keys, signatures, and the
//! hashes of maps.
//!
//! The figures are those of the build that `cargo test` has made already, in which no package of
//! ours is optimised. It takes several times the instructions of an optimised one, in the same
//! places: work that is repeated for each room, member or event shows in both. What only an
//! optimised build could lose does not show: `paths` is for that.
//!
//! When it fails: if the change was meant to cost that, bless in the same commit, which says why.
//! If not, find out where the instructions went, by the name of the path and that of this program
//! in `target/debug/deps`:
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*counted_path*' PROGRAM --counted 'send: decide'
//! callgrind_annotate --inclusive=yes callgrind.out.*
//! ```

mod common;

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs,
    hint::black_box,
    path::Path,
    process::{Command, ExitCode},
};

use logcabin::{
    notifications::Judge,
    policy_lists::{ProposedRule, RuleSet, Subject},
    state::State,
    view::filter::EventFilter,
};

use ruma::{UserId, server_name, user_id as literal_user_id};
use serde_json::{json, value::to_raw_value};

use common::{Server, page, read_send, sync_since, text, user_id};

type Failure = Box<dyn std::error::Error>;

/// How far above the stored figure, in percent of it, is no regression.
const MARGIN: u64 = 10;

const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.toml");

/// A path: its name, how many operations are counted, and what does that many.
type Counted = (&'static str, u64, fn(u64));

const PATHS: [Counted; 14] = [
    ("read a request to send", 50, read_a_send),
    ("send: decide, append, apply", 50, send),
    ("apply a message", 200, apply),
    ("sync, nothing new, 20 rooms", 50, sync_of_nothing),
    ("sync, one message, 20 rooms", 50, sync_of_one_message),
    ("initial sync, 20 rooms of 10", 5, initial_sync),
    ("write an initial sync, 20 rooms of 10", 5, write_initial_sync),
    ("page of 100 events", 5, page_of_events),
    ("push rules, new event, one member", 50, judge_new),
    ("push rules, the same event, next member", 50, judge_next),
    ("filter, one event", 200, filter),
    ("policy rules, one user, no rule", 200, |operations| look_up_user(operations, 0)),
    ("policy rules, one user, 10 rules", 200, |operations| look_up_user(operations, 10)),
    ("policy rules, one user, 1,000 rules", 200, |operations| look_up_user(operations, 1000)),
];

/// Everything that is counted happens in here: callgrind is told its name.
#[inline(never)]
fn counted_path(operation: &mut dyn FnMut()) {
    operation();
    black_box(());
}

/// Ends a path, and has its count written: callgrind is told this name, too.
#[inline(never)]
fn end_of_path(name: &str) {
    black_box(name);
}

fn main() -> Result<ExitCode, Failure> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let is = |name: &str| arguments.iter().any(|argument| argument == name);
    if !["--compare", "--bless", "--bench"].into_iter().any(is) {
        // Under callgrind; or by `cargo test` alone, to see that the paths work.
        let wanted = arguments.iter().find(|argument| !argument.starts_with("--"));
        for (name, operations, go) in PATHS {
            if wanted.is_none_or(|wanted| name.contains(wanted.as_str())) {
                go(if is("--counted") { operations } else { 1 });
                end_of_path(name);
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        let message = "SKIPPED: instructions: valgrind is missing (install with .ci/run)";
        if env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false")) {
            return Err(message.into());
        }
        eprintln!("{message}");
        return Ok(ExitCode::SUCCESS);
    }
    let counted = count()?;
    if !cfg!(debug_assertions) {
        for (name, instructions) in counted {
            println!("| {name} | {instructions} |");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let holds = compare(&counted, &stored()?);
    if is("--bless") {
        store(&counted)?;
        println!("\nstored in {FIGURES}");
        return Ok(ExitCode::SUCCESS);
    }
    if !holds {
        println!("\nMore than {MARGIN} % above: benches/instructions.rs says what to do.");
    }
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs all paths under callgrind. Returns the instructions of each for one operation.
fn count() -> Result<Vec<(&'static str, u64)>, Failure> {
    let directory = tempfile::tempdir()?;
    let out = directory.path().join("out");
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*counted_path*"])
        .arg("--dump-before=*end_of_path*")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(env::current_exe()?)
        .arg("--counted")
        .output()?;
    if !run.status.success() {
        return Err(String::from_utf8_lossy(&run.stderr).into());
    }
    let path = |(index, (name, operations, _)): (usize, &Counted)| {
        let instructions = instructions(&out.with_extension((index + 1).to_string()))?;
        Ok((*name, instructions / operations))
    };
    PATHS.iter().enumerate().map(path).collect()
}

/// The total in a file of callgrind.
fn instructions(path: &Path) -> Result<u64, Failure> {
    let out = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let total = out.lines().find_map(|line| line.strip_prefix("totals: "));
    let total: u64 = total.ok_or("callgrind has written no total")?.trim().parse()?;
    if total == 0 { Err("callgrind has counted nothing".into()) } else { Ok(total) }
}

fn stored() -> Result<BTreeMap<String, u64>, Failure> {
    Ok(toml::from_str(&fs::read_to_string(FIGURES)?)?)
}

/// Prints what was counted beside what is stored. Returns whether all is within the margin.
fn compare(counted: &[(&'static str, u64)], stored: &BTreeMap<String, u64>) -> bool {
    let mut all_hold = true;
    println!("| instructions for | stored | counted | difference |");
    println!("|---|---|---|---|");
    for (name, now) in counted {
        let Some(before) = stored.get(*name) else {
            println!("| {name} | – | {now} | not stored yet: bless |");
            all_hold = false;
            continue;
        };
        let difference = (*now as f64 / *before as f64 - 1.0) * 100.0;
        let holds = *now <= before + before * MARGIN / 100;
        let verdict = match (holds, now + now * MARGIN / 100 < *before) {
            (false, _) => "  ABOVE THE MARGIN",
            (true, true) => "  less: bless it, so that it stays so",
            (true, false) => "",
        };
        println!("| {name} | {before} | {now} | {difference:+.1} %{verdict} |");
        all_hold &= holds;
    }
    all_hold
}

fn store(counted: &[(&'static str, u64)]) -> Result<(), Failure> {
    let kept = fs::read_to_string(FIGURES)?;
    let head = kept.lines().take_while(|line| line.starts_with('#'));
    let mut file = head.fold(String::new(), |file, line| file + line + "\n");
    file.push('\n');
    for (name, instructions) in counted {
        writeln!(file, "{name:?} = {instructions}")?;
    }
    Ok(fs::write(FIGURES, file)?)
}

fn read_a_send(operations: u64) {
    let body = text(1).to_string();
    let mut read = || drop(black_box(read_send(black_box(body.as_bytes()))));
    read();
    for _ in 0..operations {
        counted_path(&mut read);
    }
}

fn send(operations: u64) {
    let server = Server::with_rooms(1, 10);
    for _ in 0..operations {
        let mut message = Some(server.next_message(0));
        counted_path(&mut || message.take().into_iter().for_each(|message| server.send(message)));
    }
}

fn apply(operations: u64) {
    let (records, before) = Server::log_of_messages(operations);
    let state = State::default();
    let (beginning, messages) = records.split_at(before);
    for record in beginning {
        drop(state.apply(record).expect("a record is applied"));
    }
    for record in messages {
        counted_path(&mut || drop(black_box(state.apply(record).expect("a record is applied"))));
    }
}

thread_local! {
    /// Made once, because making it takes longer than counting.
    static TWENTY_ROOMS: Server = Server::with_rooms(20, 10);
}

fn sync_of_nothing(operations: u64) {
    TWENTY_ROOMS.with(|server| {
        let (person, request) = (server.person(1), sync_since(Some(server.head())));
        let mut sync = || assert!(server.sync(&person, &request).is_empty(), "nothing is new");
        sync();
        for _ in 0..operations {
            counted_path(&mut sync);
        }
    });
}

fn sync_of_one_message(operations: u64) {
    TWENTY_ROOMS.with(|server| {
        let person = server.person(1);
        let mut since = server.head();
        // What is computed once for each room is cached.
        drop(server.sync(&person, &sync_since(None)));
        for number in 0..operations {
            let request = sync_since(Some(since));
            since = server.say(number % 20);
            counted_path(&mut || assert!(!server.sync(&person, &request).is_empty(), "one is"));
        }
    });
}

fn initial_sync(operations: u64) {
    TWENTY_ROOMS.with(|server| {
        let (person, request) = (server.person(1), sync_since(None));
        let mut sync = || drop(black_box(server.sync(&person, &request)));
        sync();
        for _ in 0..operations {
            counted_path(&mut sync);
        }
    });
}

fn write_initial_sync(operations: u64) {
    TWENTY_ROOMS.with(|server| {
        let response = server.sync(&server.person(1), &sync_since(None));
        let mut write = || drop(black_box(serde_json::to_vec(&response).expect("JSON")));
        for _ in 0..operations {
            counted_path(&mut write);
        }
    });
}

fn page_of_events(operations: u64) {
    let server = Server::with_rooms(1, 10);
    for _ in 0..100 {
        server.say(0);
    }
    let person = server.person(1);
    let mut write = || drop(black_box(page(&server, &person, 100)));
    write();
    for _ in 0..operations {
        counted_path(&mut write);
    }
}

fn judge_new(operations: u64) {
    judge(operations, 0);
}

fn judge_next(operations: u64) {
    judge(operations, 1);
}

/// Judges new messages for one member after `others` others.
fn judge(operations: u64, others: u64) {
    let server = Server::with_rooms(1, 10);
    let (room, events, state) = (server.room(0), server.engine.events(), server.engine.state());
    for number in 0..=operations {
        let event = events.get(server.say(0)).expect("the log is read").expect("a message");
        let judge = |user_id: &UserId| {
            let judge = Judge { state: &state, events, user_id, room: &room };
            drop(black_box(judge.outcome(&event).expect("the log is read")));
        };
        (0..others).for_each(|other| judge(&user_id(2 + other)));
        let member = user_id(1);
        // The first one prepares the member's rules, which are cached.
        if number == 0 {
            judge(&member);
        } else {
            counted_path(&mut || judge(&member));
        }
    }
}

fn filter(operations: u64) {
    let server = Server::with_rooms(1, 10);
    let filter = r#"{ "types": ["m.room.message", "m.room.name", "org.example.*"],
                      "not_senders": ["@user7:test"] }"#;
    let filter = EventFilter::parse(filter).expect("a filter");
    let (room, at) = (server.room(0), server.head());
    let event = server.engine.events().get(at).expect("the log is read").expect("a message");
    for _ in 0..operations {
        counted_path(&mut || assert!(filter.matches(&room, &event, at), "it is wanted"));
    }
}

/// Looks a user up who is in no rule: all rules are in the way.
fn look_up_user(operations: u64, rules: u64) {
    let rule = |number: u64| {
        let entity = match number % 3 {
            0 => format!("@spam{number}:evil{number}.example"),
            1 => format!("@spam{number}*:*"),
            _ => format!("*:evil{number}.example"),
        };
        let content = json!({ "entity": entity, "recommendation": "m.ban", "reason": "spam" });
        ProposedRule {
            event_type: "m.policy.rule.user".to_owned(),
            content: Some(to_raw_value(&content).expect("JSON")),
        }
    };
    let (set, wrong) = RuleSet::of(&(0..rules).map(rule).collect::<Vec<_>>());
    assert!(wrong.is_empty(), "all rules can be understood");
    let (own, user) = (server_name!("test"), literal_user_id!("@ann:elsewhere.example"));
    let mut find = || assert!(set.find(own, black_box(Subject::of_user(user))).is_none(), "free");
    find();
    for _ in 0..operations {
        counted_path(&mut find);
    }
}
