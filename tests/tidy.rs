//! Rules for the sources: packages depend only on those below them, some of them know no HTTP, no
//! clock or no I/O, files of endpoints do not use each other, and the length of files and the width
//! of lines are limited. What `docs/architecture.md` names is there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The folders of `src/`, each a package, from the top down. A package may use those below it and
/// none above it.
const FOLDERS: [(&str, &str); 20] = [
    ("simulate", "whole servers on one thread, with all that goes wrong; only asked for by name"),
    ("cli", "the command line: it starts everything and is used by nothing"),
    ("import", "moves from other homeservers: what reads them, and what makes records of it"),
    ("server", "starts the parts of a server, runs its background tasks and stops it"),
    ("edge", "HTTP and the endpoints: the only place that knows status codes and `errcode`s"),
    ("ops", "tools of those who run a server, which also work without a running one"),
    ("service", "what takes several steps, or memory of its own, between endpoints and engine"),
    ("search", "the search index, which follows the log"),
    ("outside", "other services, and what the server sends them"),
    ("snapshot", "projections on disk"),
    ("cluster", "the other nodes: leases, forwarded requests, comparison of the logs"),
    ("media", "uploaded files and pictures"),
    (
        "engine",
        "the one writer: has proposals decided, appended and applied, and publishes the head",
    ),
    ("decide", "the rules: what a proposal becomes, or why it is refused"),
    ("read", "events as clients see them, rooms as of an offset, what is new, what notifies"),
    ("state", "projections of the log"),
    ("log", "the records, in memory and on disk, and their archive"),
    ("config", "the settings, with their documentation"),
    ("record", "commands, their versions and bytes"),
    ("base", "time, limits, text, files and secrets"),
];

/// The sections of `src/edge/api/`, from the top down. A section may use those below it and none
/// above it. `mod.rs` lists the endpoints of all of them.
const SECTIONS: [&str; 27] = [
    "app",
    "console",
    "admin",
    "federation",
    "sso",
    "push",
    "rtc",
    "about",
    "sync",
    "media",
    "e2ee",
    "room",
    "oauth",
    "account",
    "auth",
    "appservice",
    "browser",
    // What sections have in common.
    "outgoing",
    "shadow",
    "affinity",
    "bodies",
    "screening",
    "server",
    "addresses",
    "answer",
    "error",
    "mod",
];

/// The most lines of a file. Longer files have a bound of their own, which may only fall.
const FILE_LINES: usize = 800;
const LONG_FILES: [(&str, usize); 9] = [
    ("src/edge/http/tests/mod.rs", 970),
    ("src/read/notifications/rules.rs", 930),
    ("tests/history.rs", 1014),
    ("tests/integration/api/sliding.rs", 871),
    ("tests/integration/api/sync.rs", 828),
    ("tests/integration/api/threepids.rs", 1510),
    ("tests/integration/erasure.rs", 841),
    ("tests/integration/export.rs", 894),
    ("tests/properties/main.rs", 1414),
];

/// The width to which rustfmt formats code, in characters.
const LINE_WIDTH: usize = 100;

fn sources(under: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(under)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() && !matches!(name.as_str(), "node_modules" | "target" | "golden") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn relative(path: &Path) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// The code of a file without comments, texts, and tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The packages that a manifest depends on, not only for tests.
fn used_packages(manifest: &str) -> impl Iterator<Item = &str> {
    let dependencies = manifest.split("[dependencies]\n").nth(1).unwrap_or_default();
    let dependencies = dependencies.split("\n[").next().unwrap_or_default();
    let names = dependencies.lines().filter_map(|line| line.strip_prefix("logcabin-"));
    names.filter_map(|line| line.split(['.', ' ']).next())
}

/// The packages in the manifest of a folder that are not below it.
fn against_the_order(folder: &str, manifest: &str) -> Vec<String> {
    let place = |name: &str| FOLDERS.iter().position(|(folder, _)| *folder == name);
    let above = |other: &&str| place(other) <= place(folder);
    let wrong = used_packages(manifest).filter(above);
    wrong.map(|other| format!("`{folder}` may not use `{other}`")).collect()
}

#[test]
fn packages_use_only_those_below_them() {
    let mut wrong = Vec::new();
    for (folder, _) in FOLDERS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder);
        let manifest = fs::read_to_string(path.join("Cargo.toml")).expect("a manifest");
        assert!(manifest.contains(&format!("name = \"logcabin-{folder}\"")), "{folder}");
        wrong.extend(against_the_order(folder, &manifest));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let planted = |name| format!("[dependencies]\nlogcabin-{name}.workspace = true\n[lints]");
    assert!(against_the_order("state", &planted("record")).is_empty());
    assert_eq!(against_the_order("state", &planted("engine")).len(), 1);
    assert_eq!(against_the_order("state", &planted("state")).len(), 1);
}

/// The words of some sources, those of their tests too.
fn words(paths: &[PathBuf]) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut words = BTreeSet::new();
    for path in paths {
        let text = fs::read_to_string(path).expect("a file");
        let code = text.lines().filter_map(|line| line.split("//").next());
        words.extend(code.flat_map(|line| line.split(|c| !is_word(c))).map(str::to_owned));
    }
    words
}

/// The public functions of a package's code.
fn public_functions(code: &str) -> impl Iterator<Item = &str> {
    let public = code.lines().filter_map(|line| line.trim_start().strip_prefix("pub "));
    public.filter_map(|line| {
        let mut words =
            line.split_whitespace().skip_while(|word| ["const", "async"].contains(word));
        (words.next() == Some("fn")).then(|| words.next()?.split(['(', '<']).next()).flatten()
    })
}

/// The compiler reports an unused function within a package, but not a public one that no other
/// package calls.
#[test]
fn a_public_function_is_called_by_another_package() {
    let mut users = vec![words(
        &["tests", "benches", "examples"].into_iter().flat_map(sources).collect::<Vec<_>>(),
    )];
    users.extend(FOLDERS.map(|(folder, _)| words(&sources(&format!("src/{folder}")))));
    users.push(words(&["src/lib.rs", "src/main.rs"].map(PathBuf::from)));
    let mut found = Vec::new();
    for (folder, _) in FOLDERS {
        for (file, code) in codes(&[folder]) {
            let unused = public_functions(&code)
                .filter(|name| users.iter().filter(|words| words.contains(*name)).count() < 2);
            found.extend(unused.map(|name| format!("{file}: {name}")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    let code = "    pub const fn a(&self) {}\n    pub(crate) fn b() {}\n    pub async fn c<T>() {}";
    assert_eq!(public_functions(code).collect::<Vec<_>>(), ["a", "c"]);
}

/// Adds the paths of a tree of `use`, each in full.
fn paths(before: &str, tree: &str, found: &mut Vec<String>) {
    let Some((head, rest)) = tree.split_once('{') else {
        found.push(format!("{before}{}", tree.trim()));
        return;
    };
    let (before, mut depth, mut begins) = (format!("{before}{}", head.trim()), 0, 0);
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                paths(&before, &inner[begins..at], found);
                begins = at + 1;
            }
            _ => {}
        }
    }
    if !inner[begins..].trim().is_empty() {
        paths(&before, &inner[begins..], found);
    }
}

/// The module of a file below `src/edge/api/`, but for those of tests, which may use anything.
fn module_of(file: &str) -> Option<Vec<&str>> {
    let inside = file.strip_prefix("src/edge/api/").filter(|_| !file.ends_with("tests.rs"))?;
    let names = inside.trim_end_matches(".rs").split('/');
    Some(names.filter(|name| *name != "mod").collect())
}

/// The trees of `use` in a code, and the code without them.
fn split_uses(code: &str) -> (Vec<String>, String) {
    let (mut trees, mut rest) = (Vec::new(), String::new());
    let mut is_open = false;
    for line in code.lines() {
        let begins = line.trim_start();
        let begins = match begins.strip_prefix("pub") {
            Some(after) if after.starts_with('(') => after.split_once(')').map_or("", |of| of.1),
            Some(after) => after,
            None => begins,
        };
        if let Some(tree) = begins.trim_start().strip_prefix("use ") {
            trees.push(tree.to_owned());
            is_open = true;
        } else if is_open {
            trees.last_mut().expect("it is open").push_str(line.trim());
        } else {
            rest.push_str(line);
            rest.push('\n');
        }
        is_open &= !line.contains(';');
    }
    for tree in &mut trees {
        tree.truncate(tree.find(';').unwrap_or(tree.len()));
    }
    (trees, rest)
}

/// The paths below `crate::api` that a module uses, each in full.
fn used_paths(module: &[&str], code: &str) -> Vec<Vec<String>> {
    let (trees, rest) = split_uses(code);
    let mut found = Vec::new();
    for tree in &trees {
        paths("", tree, &mut found);
    }
    // Where something is visible is no use: `pub(in crate::api)`.
    let rest = rest.replace("(in ", "(in:");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = rest.split(|c| !is_word(c)).filter(|word| word.contains("::"));
    found.extend(words.map(str::to_owned));
    let is_child = |name: &str| rest.contains(&format!("mod {name};"));
    let full = |path: &String| {
        let parts: Vec<&str> = path.split("::").map(str::trim).collect();
        let supers = parts.iter().take_while(|part| **part == "super").count();
        let full = match &parts[..] {
            ["crate", "api", rest @ ..] => rest.to_vec(),
            ["self", rest @ ..] => [module, rest].concat(),
            [child, ..] if is_child(child) => [module, &parts].concat(),
            _ if supers > 0 && supers <= module.len() => {
                [&module[..module.len() - supers], &parts[supers..]].concat()
            }
            _ => return None,
        };
        Some(full.into_iter().map(str::to_owned).collect())
    };
    found.iter().filter_map(full).collect()
}

/// The arrows between sections of endpoints that run against their order.
fn against_the_sections<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let place = |section: &str| SECTIONS.iter().position(|known| *known == section);
    let mut wrong = Vec::new();
    for (file, text) in files {
        let Some(module) = module_of(file) else { continue };
        let Some(own) = module.first() else { continue };
        let Some(own_place) = place(own) else {
            wrong.push(format!("{file}: `{own}` has no place in the order"));
            continue;
        };
        for path in used_paths(&module, &code(text)) {
            let used = path.first().map_or("mod", String::as_str);
            match place(used) {
                Some(other) if other >= own_place => {}
                Some(_) => wrong.push(format!("{file}: `{own}` may not use `{used}`")),
                None => wrong.push(format!("{file}: `{}` is in no section", path.join("::"))),
            }
        }
    }
    wrong.sort();
    wrong.dedup();
    wrong
}

/// The files of endpoints that use each other, by way of others or not: each circle once.
fn circles<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let files: Vec<_> = files.into_iter().collect();
    let modules: BTreeMap<Vec<&str>, &str> =
        files.iter().filter_map(|(file, _)| Some((module_of(file)?, *file))).collect();
    let file_of = |path: &[String]| {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        (0..=path.len()).rev().find_map(|length| modules.get(&path[..length]).copied())
    };
    let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (file, text) in &files {
        let Some(module) = module_of(file) else { continue };
        let paths = used_paths(&module, &code(text));
        let others = paths.iter().filter_map(|path| file_of(path)).filter(|other| other != file);
        arrows.insert(file, others.collect());
    }
    let mut found = BTreeSet::new();
    for start in arrows.keys() {
        // The shortest ways from it.
        let mut ways = vec![vec![*start]];
        let mut seen = BTreeSet::new();
        while !ways.is_empty() {
            let mut longer = Vec::new();
            for way in &ways {
                let next = arrows.get(way.last().expect("a file")).into_iter().flatten();
                for file in next {
                    if file == start && way.iter().min() == Some(start) {
                        found.insert(way.join(" uses "));
                    } else if seen.insert(*file) {
                        longer.push([way, &[*file][..]].concat());
                    }
                }
            }
            ways = longer;
        }
    }
    found.into_iter().collect()
}

#[test]
fn no_file_of_endpoints_uses_one_that_uses_it() {
    let files: Vec<(String, String)> = sources("src/edge/api")
        .iter()
        .map(|path| (relative(path), fs::read_to_string(path).expect("a file")))
        .collect();
    let found = circles(files.iter().map(|(file, text)| (&**file, &**text)));
    assert!(found.is_empty(), "circles:\n{}", found.join("\n"));
    let planted = |second, third| {
        let first = "mod b;\nuse crate::api::a::b::{c, d::e};\npub(in crate::api) fn f() {}";
        circles([
            ("src/edge/api/a/mod.rs", first),
            ("src/edge/api/a/b.rs", second),
            ("src/edge/api/x.rs", third),
        ])
    };
    assert!(planted("use super::super::x::y;", "use http::api;").is_empty());
    for (second, third) in [
        ("use super::g;", ""),
        ("fn h() { super::g() }", ""),
        ("use crate::api::{\n    x::{Y, Z},\n};", "use super::a;"),
        ("fn h(of: &crate::api::x::Y) {}", "use super::a::b::Z;"),
    ] {
        assert_eq!(planted(second, third).len(), 1, "{second} {third}");
    }
}

#[test]
fn sections_of_endpoints_use_only_those_below_them() {
    let files: Vec<(String, String)> = sources("src/edge/api")
        .iter()
        .map(|path| (relative(path), fs::read_to_string(path).expect("a file")))
        .collect();
    let wrong = against_the_sections(files.iter().map(|(file, text)| (&**file, &**text)));
    assert!(wrong.is_empty(), "{} wrong arrows:\n{}", wrong.len(), wrong.join("\n"));
    for section in SECTIONS {
        let is_it = |(file, _): &(String, String)| {
            let inside = file.trim_start_matches("src/edge/api/");
            inside.split(['/', '.']).next() == Some(section)
        };
        assert!(files.iter().any(is_it), "there is no section `{section}`");
    }
}

#[test]
fn a_wrong_arrow_between_sections_is_found() {
    let planted = |text| against_the_sections([("src/edge/api/auth/uiaa/stages.rs", text)]);
    for right in [
        "use super::failure::Failure;",
        "use super::super::claim::Claim;",
        "use crate::{\n    api::{browser::page::Page, server::Server},\n    http,\n};",
        "// use crate::api::console;\n",
        "fn f() -> crate::api::answer::Json {}",
    ] {
        assert!(planted(right).is_empty(), "{right}");
    }
    for wrong in [
        "use super::super::super::oauth;",
        "use crate::{\n    api::{console, server::Server},\n    http,\n};",
        "use crate::api::{browser::{cookies, page::Page}, oauth::sign_in::arrived};",
        "fn f() { crate::api::sso::login() }",
        "use crate::api::Server;",
    ] {
        assert_eq!(planted(wrong).len(), 1, "{wrong}");
    }
    assert_eq!(against_the_sections([("src/edge/api/loose.rs", "")]).len(), 1);
}

/// The files that make a batch of records, but for the log, which takes it, and the engine, whose
/// decisions it comes from.
fn other_writers<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<&'a str> {
    let may = |file: &str| {
        ["src/log/", "src/engine/", "src/decide/lib.rs"].iter().any(|own| file.starts_with(own))
            || file.ends_with("tests.rs")
            || file.contains("/tests/")
    };
    let others = files.into_iter().filter(|(file, _)| !may(file));
    others.filter(|(_, text)| mentions(&code(text), "Batch {")).map(|(file, _)| file).collect()
}

#[test]
fn nobody_but_the_engine_appends_records() {
    let files: Vec<(String, String)> = sources("src")
        .iter()
        .map(|path| (relative(path), fs::read_to_string(path).expect("a file")))
        .collect();
    let others = other_writers(files.iter().map(|(file, text)| (&**file, &**text)));
    assert!(others.is_empty(), "{others:?} append to the log past the engine");
    let planted = [("src/ops/x.rs", "log.append(Batch { expect, records })")];
    assert_eq!(other_writers(planted), ["src/ops/x.rs"]);
}

#[test]
fn every_listed_folder_exists_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found: Vec<String> = fs::read_dir(root)
        .expect("src")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    found.sort();
    let mut wanted: Vec<String> = FOLDERS.iter().map(|(folder, _)| (*folder).to_owned()).collect();
    // Unit tests with random input keep the cases beside their package that once failed.
    wanted.extend(["lib.rs", "main.rs", "proptest-regressions"].map(str::to_owned));
    wanted.sort();
    assert_eq!(found, wanted);
}

#[test]
fn files_are_not_too_long() {
    let bounds: BTreeMap<&str, usize> = LONG_FILES.into_iter().collect();
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for path in ["src", "tests", "benches", "examples"].into_iter().flat_map(sources) {
        let file = relative(&path);
        let lines = fs::read_to_string(&path).expect("a file").lines().count();
        let bound = bounds.get(file.as_str()).copied();
        if lines > bound.unwrap_or(FILE_LINES) {
            faults.push(format!("{file} has {lines} lines"));
        }
        if let Some(bound) = bound {
            seen.insert(file.clone());
            // A file that has become shorter stays so.
            if lines + 50 < bound {
                faults.push(format!("{file} has {lines} lines; lower its bound from {bound}"));
            }
        }
    }
    for file in bounds.keys().filter(|file| !seen.contains(**file)) {
        faults.push(format!("{file} has a bound and is not there"));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The lines of a file that rustfmt formats, and comments. What stands in a macro is left out, as
/// rustfmt leaves it as it is, and so are texts, as a message is found by its words.
fn formatted(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_macro: Option<String> = None;
    text.lines().enumerate().filter(move |(_, line)| {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        if let Some(end) = &in_macro {
            if line.starts_with(end.as_str()) {
                in_macro = None;
            }
            return false;
        }
        let opens =
            ["proptest! {", "prop_oneof![", "macro_rules! ", "request_token! {", "endpoint! {"];
        if opens.iter().any(|open| code.starts_with(open)) {
            let close = if code.starts_with("prop_oneof") { "]" } else { "}" };
            in_macro = Some(format!("{indent}{close}"));
            return false;
        }
        let is_comment = code.starts_with("//");
        let is_table = is_comment && code.contains('|');
        let is_text = !is_comment && (code.contains('"') || code.ends_with('\\'));
        !is_table && !is_text && !code.contains("https://")
    })
}

#[test]
fn lines_are_not_wider_than_rustfmt_makes_them() {
    let mut faults = Vec::new();
    for path in ["src", "tests", "benches", "examples"].into_iter().flat_map(sources) {
        let text = fs::read_to_string(&path).expect("a file");
        for (number, line) in formatted(&text) {
            if line.chars().count() > LINE_WIDTH {
                faults.push(format!("{}:{}", relative(&path), number + 1));
            }
        }
    }
    assert!(faults.is_empty(), "{} lines:\n{}", faults.len(), faults.join("\n"));
}

/// The sources in these folders, each with its code.
fn codes(folders: &[&str]) -> Vec<(String, String)> {
    let paths = folders.iter().flat_map(|folder| sources(&format!("src/{folder}")));
    let paths = paths.filter(|path| {
        let name = relative(path);
        // Tests may use whatever makes them short.
        !name.ends_with("tests.rs") && !name.contains("/tests/")
    });
    paths.map(|path| (relative(&path), code(&fs::read_to_string(path).expect("a file")))).collect()
}

/// Whether a path, a name or the beginning of one is in the code, not as a part of another name.
fn mentions(code: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let ends_open = name.ends_with(['_', ':']);
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        !before.ends_with(is_word) && (ends_open || !after.starts_with(is_word))
    })
}

/// The files whose code has one of these names, except for those in `may`. Also those in `may` that
/// have none, so that no exception outlives its reason.
fn with_names(files: &[(String, String)], names: &[&str], may: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (file, code) in files {
        let found = names.iter().find(|name| mentions(code, name));
        match (found, may.contains(&&**file)) {
            (Some(name), false) => wrong.push(format!("{file}: `{name}`")),
            (None, true) => wrong.push(format!("{file}: it needs no exception")),
            _ => {}
        }
    }
    let is_there = |may: &&&str| files.iter().any(|(file, _)| file == *may);
    wrong.extend(may.iter().filter(|may| !is_there(may)).map(|may| format!("{may}: not there")));
    wrong
}

/// A file of this name with this code.
fn planted(file: &str, text: &str) -> Vec<(String, String)> {
    vec![(file.to_owned(), code(text))]
}

/// The folders below `edge`, but for `outside`, whose work is requests to other services.
const WITHOUT_HTTP: [&str; 14] = [
    "ops", "service", "search", "snapshot", "cluster", "media", "engine", "decide", "read",
    "state", "log", "config", "record", "base",
];

const HTTP: [&str; 6] =
    ["http::", "http_body_util::", "hyper::", "hyper_util::", "warp::", "StatusCode"];

/// Files that assemble requests for `outside` to send, or read the answers.
const CLIENTS: [&str; 4] = [
    "src/service/accounts/identity.rs",
    "src/service/media/preview.rs",
    "src/service/screening/hook.rs",
    "src/service/uiaa/captcha.rs",
];

#[test]
fn nothing_below_the_edge_knows_http() {
    let wrong = with_names(&codes(&WITHOUT_HTTP), &HTTP, &CLIENTS);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let below = FOLDERS.iter().map(|(folder, _)| *folder).skip_while(|folder| *folder != "edge");
    let below: Vec<_> = below.skip(1).filter(|folder| *folder != "outside").collect();
    assert_eq!(below, WITHOUT_HTTP);
    for wrong in ["use http::StatusCode;", "fn f() -> warp::Reply {}", "use hyper::{Body};"] {
        assert_eq!(with_names(&planted("src/ops/x.rs", wrong), &HTTP, &[]).len(), 1, "{wrong}");
    }
    for right in
        ["fn http() {}", "// http::Request", "use logcabin_outside::outbound::OutboundRequest;"]
    {
        assert!(with_names(&planted("src/ops/x.rs", right), &HTTP, &[]).is_empty(), "{right}");
    }
}

/// What tells the time or draws random values.
const CHANCE: [&str; 14] = [
    "SystemTime",
    "Instant",
    "UtcDateTime",
    "OffsetDateTime::now",
    "Clock",
    "now_ms()",
    "getrandom",
    "rand::",
    "random_",
    "RandomState",
    "KeyPair::generate",
    "tokio::time",
    "DeviceId::new()",
    "TransactionId::new()",
];

/// The files of these folders that have time or randomness: a new signing key, which is made before
/// it is recorded; the hiding of expired events from readers, ahead of their deletion; and the
/// hashes by which trees in memory are compared.
const BY_CHANCE: [&str; 3] =
    ["src/decide/retention.rs", "src/read/branches/tree.rs", "src/record/server_keys.rs"];

#[test]
fn time_and_randomness_come_from_outside() {
    let files = codes(&["decide", "read", "state", "record"]);
    let wrong = with_names(&files, &CHANCE, &BY_CHANCE);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for wrong in ["let at = Instant::now();", "use logcabin_base::clock::random_letters;"] {
        assert_eq!(with_names(&planted("src/state/x.rs", wrong), &CHANCE, &[]).len(), 1, "{wrong}");
    }
    let unneeded = with_names(&planted("src/state/x.rs", ""), &CHANCE, &["src/state/x.rs"]);
    assert_eq!(unneeded.len(), 1);
}

/// What leads out of a simulation.
const REAL: [&str; 3] =
    ["tokio::task::spawn_blocking", "tokio::net::TcpStream", "task::{spawn_blocking"];

/// The file that has these: a seam.
const BY_REAL: [&str; 1] = ["src/base/threads.rs"];

#[test]
fn threads_and_tcp_are_those_of_the_seams() {
    let folders = FOLDERS.map(|(folder, _)| folder);
    let wrong = with_names(&codes(&folders), &REAL, &BY_REAL);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for wrong in ["tokio::task::spawn_blocking(work)", "use tokio::net::TcpStream;"] {
        assert_eq!(with_names(&planted("src/edge/x.rs", wrong), &REAL, &[]).len(), 1, "{wrong}");
    }
}

const IO: [&str; 7] =
    ["std::fs", "std::io::stdin", "std::process", "std::env", "File::", "TcpStream", "tokio::"];

#[test]
fn records_rules_and_projections_do_no_io() {
    let wrong = with_names(&codes(&["decide", "state", "record"]), &IO, &[]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for wrong in ["std::fs::read(path)", "use tokio::spawn;", "File::open(path)"] {
        assert_eq!(with_names(&planted("src/state/x.rs", wrong), &IO, &[]).len(), 1, "{wrong}");
    }
}

/// Paths that climb two modules: from there on, a path from `crate` is easier to read and to move.
const CLIMBS: [&str; 2] = ["super::super::", "super::{super"];

#[test]
fn no_path_climbs_more_than_one_module() {
    let folders: Vec<_> = FOLDERS.iter().map(|(folder, _)| *folder).collect();
    let wrong = with_names(&codes(&folders), &CLIMBS, &[]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let planted = planted("src/edge/x.rs", "fn f() { super::super::parts::record(1) }");
    assert_eq!(with_names(&planted, &CLIMBS, &[]).len(), 1);
}

/// Parts of names that the code does not use, each with the word of `docs/architecture.md`, or of
/// the field, that it uses instead.
const BANNED: [(&str, &str); 11] = [
    ("auth_graph", "auth chain"),
    ("blacklist", "block"),
    ("lsn", "offset"),
    ("remote_homeserver", "homeserver"),
    ("savepoint", "snapshot"),
    ("seqno", "offset"),
    ("sequence_number", "offset"),
    ("slave", "node"),
    ("soft_reject", "soft fail"),
    ("write_ahead", "log"),
    ("whitelist", "allow"),
];

/// The banned words in the names of a code.
fn banned(code: &str) -> Vec<(&'static str, &'static str)> {
    let (mut snake, mut before) = (String::new(), ' ');
    for c in code.chars() {
        // `SoftReject` is `soft_reject`.
        if c.is_ascii_uppercase() && before.is_ascii_lowercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
        before = c;
    }
    let is_word = |c: char| c.is_ascii_alphanumeric();
    let is_there = |word: &str| {
        snake.match_indices(word).any(|(at, _)| {
            !snake[..at].ends_with(is_word)
                && !snake[at + word.len()..].trim_start_matches('s').starts_with(is_word)
        })
    };
    BANNED.into_iter().filter(|(word, _)| is_there(word)).collect()
}

#[test]
fn one_thing_has_one_name() {
    let folders: Vec<_> = FOLDERS.iter().map(|(folder, _)| *folder).collect();
    let mut wrong = Vec::new();
    for (file, code) in codes(&folders) {
        // There, settings of another program are read by the names they have.
        if file.starts_with("src/import/proposal/") {
            continue;
        }
        for (word, instead) in banned(&code) {
            wrong.push(format!("{file}: `{word}`; say `{instead}`"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for wrong in
        ["let savepoints = 1;", "struct SoftReject;", "fn next_lsn() {}", "const SEQNO: u8"]
    {
        assert_eq!(banned(wrong).len(), 1, "{wrong}");
    }
    assert!(banned("let another_slavery = pulsn;").is_empty());
}

/// Whether a code declares a function or a type of this name, or says what a type implements.
fn declares(code: &str, name: &str) -> bool {
    let kinds = ["fn", "struct", "enum", "trait", "type"];
    kinds.iter().any(|kind| mentions(code, &format!("{kind} {name}")))
        || (name.starts_with(|c: char| c.is_ascii_uppercase())
            && code.lines().any(|line| {
                let line = line.trim_start();
                line.starts_with("impl") && mentions(line, name)
            }))
}

/// What a text names that does not exist. A name follows the file that it is in.
fn not_there(text: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_name = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c))
    };
    for part in text.split("\n\n").flat_map(|part| part.split("|\n")) {
        let mut file = None;
        // What stands between backticks.
        for word in part.split('`').skip(1).step_by(2) {
            if word.starts_with("src/") || (word.starts_with("tests/") && word.ends_with(".rs")) {
                file = read(word).map(|code| (word, code));
                if file.is_none() {
                    wrong.push(format!("{word} is not there"));
                }
            } else if let Some((file, code)) = file.as_ref().filter(|_| is_name(word)) {
                let missing = word.split("::").find(|name| !declares(code, name));
                wrong.extend(missing.map(|name| format!("{file} does not have `{name}`")));
            }
        }
    }
    wrong
}

#[test]
fn what_the_chapter_on_architecture_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapter = fs::read_to_string(root.join("docs/architecture.md")).expect("the chapter");
    let read = |file: &str| fs::read_to_string(root.join(file)).ok();
    let wrong = not_there(&chapter, read);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(chapter.matches("`src/").count() > 80, "the steps name their files");
    let read = |file: &str| {
        let code = "pub struct Engine {}\nimpl Engine {\n    async fn propose<P>() {}\n}";
        (file == "src/x.rs").then(|| code.to_owned())
    };
    for right in ["`src/x.rs` `Engine::propose`", "`src/x.rs`", "| `since` | `src/x.rs` `Engine` |"]
    {
        assert!(not_there(right, read).is_empty(), "{right}");
    }
    for wrong in ["`src/y.rs`", "`src/x.rs` `Engine::prop`", "| a | `src/x.rs` `Engines` |\n"] {
        assert_eq!(not_there(wrong, read).len(), 1, "{wrong}");
    }
}
