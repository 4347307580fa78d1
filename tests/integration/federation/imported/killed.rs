//! An import that is killed at any of its steps, and run again, makes the same bytes.
//!
//! The steps are its system calls that change what is on the disk: strace counts those of a whole
//! run, and then kills another run right before one of them. The clock is that of libfaketime. It
//! stands still, and goes on between the runs as soon as the import has noted its own time.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::authority;
use super::super::synapse::{self, Synapse};
use super::import;
use crate::harness::{User, encode, logcabin_command, runs, skip, tools, without_settings};

/// What changes the disk, besides writing to files that have no name yet.
const CALLS: [&str; 12] = [
    "?rename",
    "renameat",
    "renameat2",
    "?link",
    "linkat",
    "?unlink",
    "unlinkat",
    "?rmdir",
    "?mkdir",
    "fsync",
    "fdatasync",
    "ftruncate",
];

/// At how many steps each phase is killed.
const MOMENTS: usize = 6;

/// Account data for more than one volume of the log, which is what an import goes on from.
const GROW: &str = "import json, sqlite3
db = sqlite3.connect('synapse.db')
last, = db.execute('SELECT max(stream_id) FROM account_data').fetchone()
content = json.dumps({'long': 'x' * 180000})
rows = [('USER', f'large.{n}', last + n, content) for n in range(1, 500)]
db.executemany('INSERT INTO account_data (user_id, account_data_type, stream_id, content) '
               'VALUES (?, ?, ?, ?)', rows)
db.commit()";

/// A step: a system call, and the how manyth it is in its thread.
type Step = (String, usize);

/// What runs the imports of one source.
struct Importer<'a> {
    synapse: &'a Synapse,
    directory: &'a Path,
    preload: PathBuf,
}

/// The times of the runs.
const COPIED: u64 = 1;
const COPIED_AGAIN: u64 = 3;
const FINISHED: u64 = 6;

/// Where the data directory of a complete copy is kept.
const COMPLETE: &str = "complete";

impl Importer<'_> {
    fn data_dir(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// One run of `import-synapse` at this hour, under strace if there are arguments for it.
    fn run(&self, what: &str, hour: u64, strace: &[&str]) -> Output {
        let program = logcabin_command();
        let time = format!("FAKETIME=2033-05-01 {hour:02}:00:00");
        let mut preload = OsString::from("LD_PRELOAD=");
        preload.push(&self.preload);
        let mut command = match strace {
            [] => Command::new("env"),
            strace => {
                let mut command = Command::new("strace");
                command.args(["-f", "-qq", "-y"]).args(strace).arg("env");
                command
            }
        };
        without_settings(&mut command)
            .arg(preload)
            .args([&*time, "FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1"])
            .arg(program.get_program())
            .args(["import-synapse", what, "--config"])
            .arg(self.synapse.config())
            .arg("--data-dir")
            .arg(self.data_dir());
        command.output().expect("it runs")
    }

    /// A run to the end.
    #[track_caller]
    fn done(&self, what: &str, hour: u64) {
        let output = self.run(what, hour, &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{what}: {said}");
    }

    /// A run to the end, and its steps.
    #[track_caller]
    fn steps(&self, what: &str, hour: u64) -> Vec<Step> {
        let trace = self.directory.join("trace");
        let calls = format!("trace={}", CALLS.join(","));
        let output = self.run(what, hour, &["-e", &calls, "-o", &trace.display().to_string()]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{what}: {said}");
        let places = [self.directory, &self.synapse.config()].map(|it| it.display().to_string());
        let mut counts: HashMap<(String, String), usize> = HashMap::new();
        let mut steps = Vec::new();
        for line in fs::read_to_string(trace).expect("a trace").lines() {
            let mut words = line.split_whitespace();
            let (Some(process), Some(rest)) = (words.next(), words.next()) else { continue };
            // A call that strace writes as two lines is counted at its begin.
            let Some((call, _)) = rest.split_once('(') else { continue };
            let count = counts.entry((process.to_owned(), call.to_owned())).or_default();
            *count += 1;
            // libfaketime has files of its own.
            if places.iter().any(|place| line.contains(place)) {
                steps.push((call.to_owned(), *count));
            }
        }
        assert!(steps.len() >= MOMENTS, "{what}: {steps:?}");
        steps
    }

    /// A run that is killed right before a step.
    #[track_caller]
    fn killed(&self, what: &str, hour: u64, (call, count): &Step) {
        let [trace, inject] =
            [format!("trace={call}"), format!("inject={call}:signal=KILL:when={count}")];
        let traced = self.directory.join("trace");
        let to = traced.display().to_string();
        let output = self.run(what, hour, &["-e", &trace, "-e", &inject, "-o", &to]);
        for line in fs::read_to_string(traced).expect("a trace").lines() {
            tools::forget_faketime(line.split_whitespace().next().unwrap_or_default());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        // strace ends as what it traces did.
        let signal = output.status.signal();
        assert_eq!(signal, Some(9), "{what} was not killed at {call} {count}: {said}");
    }

    /// Goes through a copy once to its end, and then kills it at some of its steps, each time from
    /// where it began. Gives how many of these went on with records of before.
    fn copies(&self, phase: &str, begin: Option<&Path>, hour: u64) -> usize {
        self.begin_with(begin);
        let steps = self.steps("copy", hour);
        let complete = self.keep(COMPLETE);
        self.done("finish", FINISHED);
        let expected = self.made();
        let mut resumed = 0;
        for moment in moments(&steps) {
            self.begin_with(begin);
            self.killed("copy", hour, &moment);
            let progress = self.progress();
            println!("{phase}: killed at {moment:?}, {} are durable", progress["offset"]);
            resumed += usize::from(progress["offset"].as_u64() > Some(0));
            // The time of the first copy is settled at its begin, and that of later ones is not.
            let is_settled = begin.is_none() && progress["pass"] == "copy";
            self.done("copy", if is_settled { hour + 1 } else { hour });
            self.done("finish", FINISHED);
            assert_eq!(self.made(), expected, "{phase}: killed at {moment:?}");
        }
        self.begin_with(Some(&complete));
        resumed
    }

    /// The same for `finish`, after what is there.
    fn finishes(&self, phase: &str) {
        let complete = self.directory.join(COMPLETE);
        let steps = self.steps("finish", FINISHED);
        let expected = self.made();
        for moment in moments(&steps) {
            println!("finish after {phase}: killed at {moment:?}");
            self.begin_with(Some(&complete));
            self.killed("finish", FINISHED, &moment);
            let pass = &self.progress()["pass"];
            let hour = FINISHED + u64::from(pass == "finish" || pass == "sealed");
            let output = self.run("finish", hour, &[]);
            let said = String::from_utf8_lossy(&output.stderr);
            // It may have been killed when only what it no longer needs was left to be removed.
            assert!(output.status.success() || said.contains("is finished"), "{said}");
            assert!(!self.data_dir().join("importing").exists(), "killed at {moment:?}");
            assert_eq!(self.made(), expected, "finish, killed at {moment:?}");
        }
    }

    /// What the import has noted about itself.
    fn progress(&self) -> Value {
        let noted = fs::read(self.data_dir().join("importing/progress.json"));
        noted.map_or(Value::Null, |noted| serde_json::from_slice(&noted).expect("JSON"))
    }

    /// Everything that an import made and that stays, by its path. Of files that are linked to
    /// Synapse's, too.
    fn made(&self) -> BTreeMap<PathBuf, blake3::Hash> {
        let mut made = BTreeMap::new();
        for name in ["log", "media", "import-report.txt"] {
            collect(&self.data_dir(), Path::new(name), &mut made);
        }
        assert!(made.keys().any(|path| path.starts_with("log")), "{made:?}");
        assert!(made.keys().any(|path| path.starts_with("media")), "{made:?}");
        made
    }

    /// Puts a data directory there as it once was, or none.
    fn begin_with(&self, was: Option<&Path>) {
        let guard = format!("{}.moved-to-logcabin", self.synapse.config().display());
        let _ = fs::remove_file(guard);
        let _ = fs::remove_dir_all(self.data_dir());
        if let Some(was) = was {
            copied(was, &self.data_dir());
        }
    }

    /// Keeps the data directory as it is.
    fn keep(&self, name: &str) -> PathBuf {
        let kept = self.directory.join(name);
        let _ = fs::remove_dir_all(&kept);
        copied(&self.data_dir(), &kept);
        kept
    }
}

/// Copies a directory as it is, with links as links.
#[track_caller]
fn copied(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(status.is_ok_and(|status| status.success()), "{} cannot be copied", from.display());
}

fn collect(root: &Path, name: &Path, made: &mut BTreeMap<PathBuf, blake3::Hash>) {
    let path = root.join(name);
    if path.is_dir() {
        for entry in fs::read_dir(&path).expect("a directory") {
            collect(root, &name.join(entry.expect("an entry").file_name()), made);
        }
    } else if let Ok(bytes) = fs::read(&path) {
        made.insert(name.to_owned(), blake3::hash(&bytes));
    }
}

/// Some of the steps: the first, the last, and others evenly between.
fn moments(steps: &[Step]) -> Vec<Step> {
    let last = steps.len() - 1;
    (0..MOMENTS).map(|number| steps[number * last / (MOMENTS - 1)].clone()).collect()
}

/// Some of all that an import takes.
async fn populate(synapse: &Synapse) -> (User, String) {
    let (ann, bob) = (synapse.register("ann").await, synapse.register("bob").await);
    let room = ann.create_room(json!({ "preset": "public_chat", "name": "Killed" })).await;
    bob.join(&room).await.ok();
    let mut last = String::new();
    for number in 0..20 {
        let writer = if number % 2 == 0 { &ann } else { &bob };
        last = writer.send_text(&room, &format!("t{number}"), "a message").await;
    }
    let path = format!("/rooms/{}/redact/{}/r", encode(&room), encode(&last));
    bob.request("PUT", &path, Some(&json!({}))).await.ok();
    let path = format!("/rooms/{}/receipt/m.read/{}", encode(&room), encode(&last));
    ann.request("POST", &path, Some(&json!({}))).await.ok();
    for user in [&ann, &bob] {
        let keys = user.keys();
        let keys = json!({
            "device_keys": keys.identity(), "one_time_keys": keys.one_time(&["A", "B"]),
        });
        user.request("POST", "/keys/upload", Some(&keys)).await.ok();
        let path = format!("/user/{}/account_data/test", encode(&user.user_id));
        user.request("PUT", &path, Some(&json!({ "some": "data" }))).await.ok();
        for number in 0..3 {
            user.upload("text/plain", format!("file {number} of {}", user.user_id)).await;
        }
    }
    let messages = json!({ "messages": { &*bob.user_id: { "*": { "a": "message" } } } });
    ann.request("PUT", "/sendToDevice/m.test/1", Some(&messages)).await.ok();
    (ann, room)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_that_is_killed_at_any_step_ends_with_the_same_bytes() {
    let test = "import that is killed";
    let Some(authority) = authority(test) else { return };
    let python = match synapse::python() {
        Ok(python) => python,
        Err(missing) => return skip(test, &missing),
    };
    if !runs("strace", &["-f", "-o", "/dev/null", "true"]) {
        return skip(test, "strace is absent or may not trace here");
    }
    let Some(preload) = tools::faketime() else { return skip(test, "faketime is absent") };
    let mut synapse = Synapse::start(&python, &authority).await;
    let (ann, room) = populate(&synapse).await;
    let directory = TempDir::new().expect("a temporary directory");
    let early = directory.path().join("data");
    assert!(import("copy", &synapse, Some(&early), &[]).status.success());
    fs::rename(&early, directory.path().join("early")).expect("it can be moved");
    for number in 0..5 {
        ann.send_text(&room, &format!("late{number}"), "after the copy").await;
    }
    ann.upload("text/plain", "a file after the copy").await;
    synapse.kill();
    let importer = Importer { synapse: &synapse, directory: directory.path(), preload };
    let early = directory.path().join("early");

    let phase = "the first copy";
    importer.copies(phase, None, COPIED);
    importer.finishes(phase);
    let phase = "a second copy";
    importer.copies(phase, Some(&early), COPIED_AGAIN);
    importer.finishes(phase);
    synapse.script(&GROW.replace("USER", &ann.user_id));
    let resumed = importer.copies("a copy of several volumes", None, COPIED);
    assert!(resumed > 1, "no copy went on where it was");
}
