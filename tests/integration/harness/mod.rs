//! What the tests that drive a server share: the server process, an HTTP client that speaks JSON,
//! a user, and a seeded source of randomness.

mod http;
mod random;
mod server;
mod user;

pub(crate) use http::{Answer, Http, Unreachable};
pub(crate) use random::Random;
pub(crate) use server::{TestServer, run_logcabin};
pub(crate) use user::{Direction, User};

use std::env;
use std::process::Command;

/// Whether the tests run in CI, where a tool that is missing is a failure and not a skip.
pub(crate) fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

/// Says visibly that a test did nothing for want of a tool, or fails in CI.
///
/// The message goes to the terminal itself where there is one, since the test runner swallows what
/// a passing test prints.
pub(crate) fn skip(test: &str, reason: &str) {
    let message = format!("SKIPPED: {test}: {reason} (install with .ci/run)");
    assert!(!in_ci(), "{message}: in CI this is a failure");
    use std::io::Write as _;
    let mut stderr = std::io::stderr();
    // Written to the handle, not with `eprintln!`: the handle is not captured by the test runner.
    let _ = writeln!(stderr, "\n{message}");
}

/// Whether `program` with `arguments` runs and ends well here.
pub(crate) fn runs(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// A number from the environment, or the default.
pub(crate) fn number_from_env(name: &str, default: u64) -> u64 {
    match env::var(name) {
        Ok(value) => {
            value.parse().unwrap_or_else(|_| panic!("{name}={value}: expected a whole number"))
        }
        Err(_) => default,
    }
}
