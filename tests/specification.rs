//! Which test shows which sentence of the specification: the tables in `tests/specification/`.
//!
//! Each row has a sentence and, in its last column, the tests that show it, by the name that `cargo
//! test` prints: `api::sync::name`, `properties::sync::name`, `read::view::filter::tests::name`.
//! This test checks that every row has a test and that every test named there exists. A row without
//! a test says `**missing**: why`, and is listed in [`MISSING`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The rows that have no test: document, beginning of the sentence, and why there is none.
const MISSING: [(&str, &str, &str); 0] = [];

/// A row of a table.
struct Row<'a> {
    line: usize,
    sentence: &'a str,
    tests: Vec<&'a str>,
    missing: bool,
}

#[test]
fn every_sentence_has_a_test_and_every_test_that_is_named_exists() {
    let known = known_tests();
    let documents = documents();
    assert!(!documents.is_empty(), "there is no table in tests/specification");
    let mut faults = Vec::new();
    let mut excused = BTreeSet::new();
    for (document, text) in &documents {
        let rows = rows(text);
        assert!(!rows.is_empty(), "{document} has no row");
        for row in rows {
            let mut fault = |what: &str| {
                faults.push(format!("{document}:{}: {what}: {}", row.line, row.sentence));
            };
            let excuse = MISSING.iter().position(|(of, sentence, why)| {
                of == document && row.sentence.starts_with(sentence) && !why.is_empty()
            });
            match excuse {
                Some(excuse) if row.missing => drop(excused.insert(excuse)),
                None if row.missing => fault("a test is missing, which MISSING does not excuse"),
                _ if row.tests.is_empty() => fault("no test"),
                _ => {}
            }
            for test in row.tests.iter().filter(|test| !known.contains(**test)) {
                fault(&format!("there is no test `{test}`"));
            }
        }
    }
    faults.extend(
        MISSING.iter().enumerate().filter(|(place, _)| !excused.contains(place)).map(
            |(_, (document, sentence, _))| format!("{document} misses no test for: {sentence}"),
        ),
    );
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// An endpoint of `endpoints.md`.
struct Endpoint {
    /// The method and the path, with no names of parameters.
    served_as: String,
    /// The version of the specification that brought it, its second number; 0 for `r0`, none for
    /// what is in no version yet.
    since: Option<u32>,
    missing: bool,
}

/// A path without the names of its parameters and without a slash at its end.
fn nameless(path: &str) -> String {
    let segments = path.trim_end_matches('/').split('/');
    let nameless = segments.map(|part| if part.starts_with('{') { "{}" } else { part });
    nameless.collect::<Vec<_>>().join("/")
}

fn endpoints(text: &str) -> Vec<Endpoint> {
    let endpoint = |row: Row<'_>| {
        let [method, path, section, since] = row.sentence.split(" | ").collect::<Vec<_>>()[..]
        else {
            panic!("endpoints.md:{}: not an endpoint: {}", row.line, row.sentence);
        };
        let since = match since {
            "–" => None,
            "r0" => Some(0),
            version => {
                let minor = version.strip_prefix("v1.").and_then(|minor| minor.parse().ok());
                Some(minor.unwrap_or_else(|| panic!("endpoints.md:{}: {version}", row.line)))
            }
        };
        let path = path.trim_matches('`');
        assert!(
            leads_to(section, method, path, since),
            "endpoints.md:{}: where is {method} {path}? {section}",
            row.line
        );
        let served_as = format!("{method} {}", nameless(path));
        Endpoint { served_as, since, missing: row.missing }
    };
    rows(text).into_iter().map(endpoint).collect()
}

/// Whether `section` is a link, with a text, to this endpoint in the specification, or, if it is in
/// no version yet, to its proposal.
fn leads_to(section: &str, method: &str, path: &str, since: Option<u32>) -> bool {
    let link = section.strip_prefix('[').and_then(|link| link.strip_suffix(')'));
    let Some((title, address)) = link.and_then(|link| link.split_once("](")) else { return false };
    if since.is_none() {
        let number = title.strip_prefix("MSC").and_then(|number| number.parse::<u32>().ok());
        let proposals = "https://github.com/matrix-org/matrix-spec-proposals/pull/";
        return number.is_some_and(|number| address == format!("{proposals}{number}"));
    }
    // As the specification makes anchors of headings.
    let of_anchor = |letter: &char| letter.is_ascii_alphanumeric() || "-_".contains(*letter);
    let anchor: String =
        format!("{method}{path}").to_ascii_lowercase().chars().filter(of_anchor).collect();
    let pages = ["client-server-api", "application-service-api"];
    let mut known =
        pages.iter().map(|page| format!("https://spec.matrix.org/v1.19/{page}/#{anchor}"));
    !title.is_empty() && known.any(|known| known == address)
}

/// What the program serves, as it says itself.
fn served() -> BTreeSet<String> {
    let program = Command::new(env!("CARGO_BIN_EXE_logcabin"))
        .args(["endpoints", "--server-name", "e2e.test"])
        .output()
        .expect("the program runs");
    let text = String::from_utf8(program.stdout).expect("text");
    let served = text.lines().filter_map(|line| {
        let (method, rest) = line.split_once(' ')?;
        Some(format!("{method} {}", nameless(rest.split(' ').next()?)))
    });
    served.collect()
}

#[test]
fn every_endpoint_of_the_client_server_api_is_served() {
    let documents = documents();
    let endpoints = endpoints(&documents["endpoints.md"]);
    let named: BTreeSet<_> =
        endpoints.iter().filter(|e| e.since.is_some()).map(|e| &e.served_as).collect();
    assert_eq!(named.len(), 164, "Matrix 1.19 has as many");
    let served = served();
    let mut faults = Vec::new();
    for Endpoint { served_as, missing, .. } in &endpoints {
        match (served.contains(served_as), missing) {
            (true, true) => faults.push(format!("{served_as} is served now: name its test")),
            (false, false) => faults.push(format!("{served_as} is not served")),
            _ => {}
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // What is not stable is in the table, too.
    let known: BTreeSet<_> = endpoints.iter().map(|endpoint| &endpoint.served_as).collect();
    let unstable = served.iter().filter(|name| name.contains(" /_matrix/client/unstable/"));
    let stable: BTreeSet<_> = known
        .iter()
        .filter_map(|name| name.rsplit_once("/v3/").or_else(|| name.rsplit_once("/v1/")))
        .collect();
    let unnamed: Vec<_> = unstable
        .filter(|name| !known.contains(name) && !name.contains("logcabin"))
        // An earlier form of a stable endpoint.
        .filter(|name| !stable.iter().any(|(_, end)| name.ends_with(&format!("/{end}"))))
        .collect();
    assert!(unnamed.is_empty(), "not in endpoints.md: {unnamed:#?}");
}

#[test]
fn the_listed_versions_are_those_with_all_endpoints_served() {
    let source = include_str!("../src/edge/api/about/discovery.rs");
    let list = source.split_once("const VERSIONS").expect("the list has this name").1;
    let list = list.split_once("];").expect("the list ends").0;
    let named: BTreeSet<u32> = list
        .split('"')
        .filter_map(|text| text.strip_prefix("v1."))
        .map(|minor| minor.parse().expect("a number"))
        .collect();
    let documents = documents();
    let (endpoints, served) = (endpoints(&documents["endpoints.md"]), served());
    let newest = endpoints.iter().filter_map(|endpoint| endpoint.since).max().unwrap_or_default();
    // Excused endpoints must be there before a release.
    let first_absent = endpoints
        .iter()
        .filter(|endpoint| !endpoint.missing && !served.contains(&endpoint.served_as))
        .filter_map(|endpoint| endpoint.since)
        .min();
    let end = first_absent.unwrap_or(newest + 1);
    assert_eq!(named, (1..end).collect::<BTreeSet<_>>());
}

/// Rows and tests are recognised: otherwise, nothing would ever be found wrong.
#[test]
fn rows_and_tests_are_read() {
    let table = "\
# Title

Some text that mentions `a::test`.

| Sentence | Tests |
|---|---|
| One `field` is there. | `a::one`, `a::two` |
| A `\\|` stands in it. | |
| Nothing shows it. | **missing**: nobody wrote it |
";
    let rows = rows(table);
    let seen: Vec<_> = rows.iter().map(|row| (row.line, &row.tests[..], row.missing)).collect();
    assert_eq!(seen, [(7, &["a::one", "a::two"][..], false), (8, &[], false), (9, &[], true)]);
    let source = "
#[test]
fn one() {}
#[tokio::test(flavor = \"multi_thread\")]
#[ignore]
async fn two() {}
fn not_a_test() {
    // #[test]
}
fn neither() {}
mod tests {
    #[test]
    /// Documented.
    fn three() {}
}
";
    assert_eq!(tests_in(source), ["one", "two", "three"]);
    let known = known_tests();
    for test in [
        "api::sync::full_state_shows_every_joined_room_at_once",
        "properties::a_filter_matches_as_specified",
        "properties::sync::every_sync_response_matches_the_log",
        "rooms::a_change_without_effect_adds_no_record",
        "read::view::filter::tests::stars_match_any_sequence",
        "config::tests::later_sources_win",
        "specification::rows_and_tests_are_read",
    ] {
        assert!(known.contains(test), "{test} is not found");
    }
}

/// The tables, by the names of their files.
fn documents() -> BTreeMap<String, String> {
    let mut files = Vec::new();
    collect(&root().join("tests/specification"), "md", &mut files);
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    files.iter().map(|path| (name(path), read(path))).collect()
}

/// The rows of all tables of a document but for their heads.
fn rows(text: &str) -> Vec<Row<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let is_rule = |line: Option<&&str>| line.is_some_and(|line| line.starts_with("|---"));
    let mut rows = Vec::new();
    for (place, line) in lines.iter().enumerate() {
        let is_head = is_rule(lines.get(place + 1));
        let Some(cells) = line.strip_prefix("| ").and_then(|line| line.strip_suffix('|')) else {
            continue;
        };
        if is_head {
            continue;
        }
        let Some((sentence, tests)) = cells.rsplit_once(" |") else {
            panic!("line {} is not a row: {line}", place + 1);
        };
        let tests = tests.trim();
        let missing = tests.starts_with("**missing**");
        let named = tests.split('`').skip(1).step_by(2).filter(|name| name.contains("::"));
        rows.push(Row {
            line: place + 1,
            sentence: sentence.trim(),
            tests: if missing { Vec::new() } else { named.collect() },
            missing,
        });
    }
    rows
}

/// The names of all tests, as `cargo test` prints them, those of `tests/` after the name of their
/// file. In the one binary of `tests/integration`, that name is left out, as `cargo test` does.
fn known_tests() -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    for (folder, unit) in [("src", true), ("tests", false)] {
        let mut files = Vec::new();
        collect(&root().join(folder), "rs", &mut files);
        for path in files {
            let relative =
                path.strip_prefix(root().join(folder)).unwrap_or(&path).with_extension("");
            let mut module: Vec<_> =
                relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            if matches!(module.last().map(String::as_str), Some("mod" | "main" | "lib")) {
                module.pop();
            }
            if module.first().is_some_and(|first| first == "integration") {
                module.remove(0);
            }
            // A file's unit tests are in a module `tests`, or the file is that module.
            if unit && module.last().is_some_and(|last| last != "tests") {
                module.push("tests".to_owned());
            }
            let names = tests_in(&read(&path));
            known.extend(names.into_iter().map(|name| format!("{}::{name}", module.join("::"))));
        }
    }
    known
}

/// The names of the functions that have a test attribute, in a `proptest!` block or not.
fn tests_in(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut attributed = false;
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            attributed = true;
        } else if attributed && !line.starts_with("#[") && !line.starts_with("//") {
            attributed = false;
            let function = line.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
            names.extend(function.map(|(name, _)| name.to_owned()));
        }
    }
    names
}

fn collect(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{} cannot be listed: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("the folder can be listed").path();
        // What the clients of others install is not ours.
        if path.is_dir() && path.file_name().is_some_and(|name| name != "e2e") {
            collect(&path, extension, files);
        } else if path.extension().is_some_and(|is| is == extension) {
            files.push(path);
        }
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("{} cannot be read: {error}", path.display()))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
