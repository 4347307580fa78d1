//! What each step of the server's main paths takes, without HTTP: see `benches/README.md`.
//!
//! `cargo bench --bench paths` measures all, `cargo bench --bench paths -- sync` what has "sync" in
//! its name. `cargo test` runs each once, at its smallest size, to see that it works.

#[path = "../common/mod.rs"]
mod common;

mod append;
mod as_of;
mod decide;
mod filter;
mod json;
mod push;
mod replay;
mod sync;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};

/// The sizes to measure; when only testing, the first.
fn sizes(all: &[u64]) -> &[u64] {
    if common::is_measuring() { all } else { &all[..1] }
}

/// A size that only matters when something is measured.
fn size(measuring: u64, testing: u64) -> u64 {
    if common::is_measuring() { measuring } else { testing }
}

criterion_group! {
    name = paths;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3));
    targets =
        decide::benches, append::benches, replay::benches, as_of::benches, sync::benches,
        filter::benches, push::benches, json::benches
}
criterion_main!(paths);
