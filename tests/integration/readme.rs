//! What the README and the chapters of `docs/` tell people to type: it is run as it stands there.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::harness::{TestServer, run_logcabin, runs, skip, tools};

const README: &str = include_str!("../../README.md");
const CONFIGURATION: &str = include_str!("../../docs/configuration.md");
const PUBLIC_SERVER: &str = include_str!("../../docs/public-server.md");
const PACKAGED: &str = include_str!("../../packaging/logcabin.toml");
const PERFORMANCE: &str = include_str!("../../docs/performance.md");

/// The blocks of code below this heading of the README, in order.
fn blocks(heading: &str) -> Vec<String> {
    let (_, section) = README.split_once(&format!("\n## {heading}\n")).expect("the heading");
    blocks_of(section.split("\n## ").next().unwrap_or_default())
}

/// The blocks of code of a text, in order.
fn blocks_of(section: &str) -> Vec<String> {
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
async fn the_commands_of_the_readme_work() {
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
fn the_example_configuration_is_accepted() {
    let directory = TempDir::new().expect("a temporary directory");
    let mut shown = blocks_of(CONFIGURATION);
    shown.extend(blocks_of(PUBLIC_SERVER));
    shown.retain(|block| block.trim().starts_with('['));
    assert!(shown.len() >= 3, "{shown:?}");
    shown.push(PACKAGED.to_owned());
    for block in shown {
        let file = directory.path().join("logcabin.toml");
        std::fs::write(&file, &block).expect("a file can be written");
        let arguments = ["config".as_ref(), "--config".as_ref(), file.as_os_str()];
        said(&run_logcabin(arguments));
    }
}

#[test]
fn the_readme_is_short() {
    assert!(README.len() <= 10 * 1024, "the README has {} bytes", README.len());
}

#[test]
fn the_way_to_a_public_server_is_short() {
    let lines = PUBLIC_SERVER.lines().count();
    assert!(lines < 80, "docs/public-server.md has {lines} lines");
}

#[test]
fn the_figures_of_the_readme_are_those_of_the_chapter() {
    let (_, table) = README.split_once("| CPU ms for each |").expect("the table");
    let rows: Vec<&str> = table.lines().skip(2).take_while(|row| row.starts_with('|')).collect();
    assert!(rows.len() >= 5, "{rows:?}");
    for row in rows {
        let row = row.trim_end_matches('|').trim_end();
        assert!(PERFORMANCE.contains(row), "docs/performance.md does not have {row:?}");
    }
}

#[test]
fn every_link_of_the_documentation_leads_to_something() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapters = std::fs::read_dir(root.join("docs")).expect("docs can be listed");
    let chapters = chapters.flatten().map(|entry| entry.path());
    let mut chapters: Vec<_> =
        chapters.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect();
    let index = std::fs::read_to_string(root.join("docs/README.md")).expect("the index");
    for chapter in &chapters {
        let name = chapter.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_listed = name == "README.md" || index.contains(&format!("({name})"));
        assert!(is_listed, "docs/README.md does not list {name}");
    }
    chapters.extend(["README.md", "CONTRIBUTING.md", "log_format.md"].map(|name| root.join(name)));
    for chapter in chapters {
        let text = std::fs::read_to_string(&chapter).expect("a chapter");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            if path.starts_with("http") {
                continue;
            }
            let target = match path {
                "" => chapter.clone(),
                path => chapter.parent().unwrap_or(root).join(path),
            };
            assert!(target.exists(), "{}: {link} leads nowhere", chapter.display());
            if !anchor.is_empty() && target.extension().is_some_and(|kind| kind == "md") {
                let text = std::fs::read_to_string(&target).expect("a chapter");
                let mut anchors = text.lines().filter(|line| line.starts_with('#')).map(|line| {
                    let words = line.trim_start_matches('#').trim().to_lowercase();
                    let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
                    kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>()
                });
                assert!(
                    anchors.any(|found| found == anchor),
                    "{}: {link} has no such heading",
                    chapter.display()
                );
            }
        }
    }
}
