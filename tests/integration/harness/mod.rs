//! What the tests that drive a server share: the server process, an HTTP client that speaks JSON,
//! a user, and a seeded source of randomness.
#![allow(dead_code, reason = "a helper may wait for the test that will use it")]

mod bridge;
mod captcha;
pub(crate) mod files;
mod gateway;
mod http;
mod identity;
mod keys;
pub(crate) mod mail;
pub(crate) mod nodes;
pub(crate) mod offline;
mod ports;
mod random;
mod server;
pub(crate) mod stand_in;
pub(crate) mod tools;
pub(crate) mod tunnel;
mod user;

pub(crate) use bridge::{Bridge, Mood};
pub(crate) use captcha::Captcha;
pub(crate) use gateway::Gateway;
pub(crate) use http::{Answer, Http, RawAnswer, Unreachable, encode};
pub(crate) use identity::IdentityServer;
pub(crate) use keys::{DeviceKeys, curve25519};
pub(crate) use ports::free_address;
pub(crate) use random::Random;
pub(crate) use server::{
    TestServer, logcabin_command, program, refused_start, refused_start_on, restore, run_and_kill,
    run_logcabin, run_logcabin_with, without_settings,
};
pub(crate) use stand_in::{Asked, StandIn};
pub(crate) use user::{Direction, User};

use std::env;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard};

/// How long a test waits for what must come. No test is about this time; it only ends a run that
/// hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// Waits until this holds, which something outside of the test will bring about.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    until_ok(what, async || if holds().await { Ok(()) } else { Err("it does not hold") }).await;
}

/// Like [`until`], but returns what was found; the error says what was found instead.
pub(crate) async fn until_ok<T, E: std::fmt::Debug>(
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let instead = match look().await {
            Ok(found) => return found,
            Err(instead) => instead,
        };
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}, but {instead:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether the tests run in CI, where a tool that is missing is a failure and not a skip.
pub(crate) fn in_ci() -> bool {
    env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

/// Held by a test that loads the machine or measures time, so that two such tests do not disturb
/// each other.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

/// Says visibly that a test did nothing for want of a tool, or fails in CI.
///
/// The message is written to the terminal's handle, which the test runner does not capture as it
/// does `eprintln!`.
pub(crate) fn skip(test: &str, reason: &str) {
    let message = format!("SKIPPED: {test}: {reason} (install with .ci/run)");
    assert!(!in_ci(), "{message}: in CI this is a failure");
    let _ = writeln!(std::io::stderr(), "\n{message}");
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
