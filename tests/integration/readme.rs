//! What the README tells newcomers to type: it is run as it stands there.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::harness::{TestServer, run_logcabin, runs, skip, tools};

const README: &str = include_str!("../../README.md");

/// The blocks of code below this heading, in order.
fn blocks(heading: &str) -> Vec<String> {
    let (_, section) = README.split_once(&format!("\n## {heading}\n")).expect("the heading");
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut blocks = vec![String::new()];
    for line in section.lines() {
        let last = blocks.last_mut().expect("one at least");
        match line.strip_prefix("    ") {
            Some(code) => last.push_str(&format!("{code}\n")),
            // An empty line may be in the middle of a block.
            None if line.is_empty() => last.push('\n'),
            None => blocks.push(String::new()),
        }
    }
    blocks.retain(|block| !block.trim().is_empty());
    blocks
}

/// The one block with this text in it.
#[track_caller]
fn block_with(heading: &str, text: &str) -> String {
    let mut found = blocks(heading).into_iter().filter(|block| block.contains(text));
    match (found.next(), found.next()) {
        (Some(block), None) => block,
        _ => panic!("expected one block with {text:?} below {heading:?}"),
    }
}

async fn bash(script: String) -> Output {
    let run = move || Command::new("bash").args(["-c", &script]).output();
    tokio::task::spawn_blocking(run).await.expect("no panic").expect("bash can be started")
}

#[track_caller]
fn said(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

const TWO_MINUTES: &str = "Two minutes with it";
const TEXT: &str = "Come in, the fire is lit";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_two_minutes_of_the_readme_go_as_they_are_told() {
    if !runs("curl", &["--version"]) || !runs("bash", &["--version"]) {
        return skip("readme", "curl or bash is absent");
    }
    let mut server = TestServer::start().await;
    let begin =
        block_with(TWO_MINUTES, "register()").replace("http://127.0.0.1:8008", &server.base());
    let talk = block_with(TWO_MINUTES, "ROOM=");
    assert!(begin.contains(&server.base()), "{begin}");
    let remember = "\ndeclare -p HS ALICE BOB ROOM >&2\n";
    let output = bash(format!("set -euo pipefail\n{begin}\n{talk}\n{remember}")).await;
    let first = said(&output);
    assert!(first.contains(TEXT), "{first}");

    // Killed as it is told there, and the last two commands again.
    let lock = server.data_dir().join("lock");
    said(&bash(format!("kill -9 $(cat {})", lock.display())).await);
    server.restart().await;
    let remembered = String::from_utf8_lossy(&output.stderr).into_owned();
    let (_, last_two) = talk.split_once("curl -s -X PUT").expect("the message is sent");
    let again = bash(format!("set -euo pipefail\n{remembered}\ncurl -s -X PUT{last_two}")).await;
    let second = said(&again);
    let event_id = |text: &str| {
        let (_, rest) = text.split_once(r#"{"event_id":""#).expect("an event id");
        rest.split('"').next().map(str::to_owned).expect("an event id")
    };
    assert_eq!(event_id(&second), event_id(&first), "the same transaction, the same event");
    assert!(second.contains(TEXT), "{second}");

    // The client that is shown.
    let python = match tools::python("nio") {
        Ok(python) => python,
        Err(missing) => return skip("readme", &missing),
    };
    let program = block_with(TWO_MINUTES, "import asyncio");
    let program = program.replace("http://127.0.0.1:8008", &server.base());
    let mut client = Command::new(python)
        .args(["-u", "-c", &program])
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python can be started");
    let stdout = BufReader::new(client.stdout.take().expect("stdout is piped"));
    let reads = move || stdout.lines().map_while(Result::ok).find(|line| line.contains(TEXT));
    let reads = tokio::time::timeout(crate::harness::PATIENCE, tokio::task::spawn_blocking(reads));
    let told = reads.await;
    let _ = client.kill();
    let _ = client.wait();
    let told = told.expect("the client tells of the message in time").expect("no panic");
    assert_eq!(told.as_deref(), Some(&*format!("@alice:e2e.test: {TEXT}")));
}

#[test]
fn the_configuration_that_the_readme_shows_is_taken() {
    let directory = TempDir::new().expect("a temporary directory");
    let mut shown = blocks("Configuration");
    shown.retain(|block| block.trim().starts_with('['));
    assert!(shown.len() >= 2, "{shown:?}");
    for block in shown {
        let file = directory.path().join("logcabin.toml");
        std::fs::write(&file, &block).expect("a file can be written");
        let arguments = ["config".as_ref(), "--config".as_ref(), file.as_os_str()];
        said(&run_logcabin(arguments));
    }
}

#[test]
fn the_map_of_the_readme_has_every_part_of_the_source_once() {
    let (_, map) = README.split_once("| In `src/` | Holds |\n|---|---|\n").expect("the map");
    let rows = map.lines().take_while(|line| line.starts_with("| "));
    let names: Vec<&str> = rows
        .flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2))
        .collect();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for name in &names {
        let name = name.trim_end_matches('/');
        let is_there =
            [name.to_owned(), format!("{name}.rs")].iter().any(|it| src.join(it).exists());
        assert!(is_there, "there is no src/{name}");
        let same = names.iter().filter(|other| other.trim_end_matches('/') == name).count();
        assert_eq!(same, 1, "{name} is in the map {same} times");
    }
    for entry in std::fs::read_dir(&src).expect("src can be listed") {
        let entry = entry.expect("src can be listed");
        if entry.file_type().expect("a type").is_dir() {
            let name = entry.file_name().to_string_lossy().into_owned();
            assert!(names.contains(&&*format!("{name}/")), "src/{name} is not in the map");
        }
    }
}
