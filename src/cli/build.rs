//! Tells the program its version, the commit that it was built from and its features.

use std::{env, path::Path, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=LOGCABIN_COMMIT");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let given = env::var("LOGCABIN_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(of_repository).unwrap_or_else(|| "unknown".to_owned());
    // Twelve digits tell all commits apart.
    let commit: String = commit.chars().take(12).collect();
    let features = features();
    // Without the prefix of settings: `cargo test` sets it for the tests, too.
    println!("cargo:rustc-env=LONG_VERSION={version} (commit {commit}; features: {features})");
}

/// The commit of the repository that this file is in; nothing in an unpacked archive.
fn of_repository() -> Option<String> {
    let reference = git(&["symbolic-ref", "--quiet", "HEAD"]);
    watch("HEAD");
    // A branch is in a file of its own or among the packed ones.
    if !reference.is_some_and(|reference| watch(&reference)) {
        watch("refs/heads");
        watch("packed-refs");
    }
    git(&["rev-parse", "HEAD"])
}

/// Has this script run again when this file of the repository changes, if it is there: cargo runs
/// it at each build for one that is missing.
fn watch(name: &str) -> bool {
    let path = git(&["rev-parse", "--git-path", name]);
    // Git prints it relative to its directory, which is that of this package.
    let path = path.filter(|path| Path::new(path).exists());
    if let Some(path) = &path {
        println!("cargo:rerun-if-changed={path}");
    }
    path.is_some()
}

/// What git prints; nothing if it fails or is not installed.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// The features that were not left out.
fn features() -> String {
    let given = env::vars().filter_map(|(name, _)| {
        let name = name.strip_prefix("CARGO_FEATURE_")?.to_lowercase();
        (name != "default").then_some(name)
    });
    let mut names: Vec<_> = given.collect();
    names.sort();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
