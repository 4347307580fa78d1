//! Logcabin: a Matrix-compatible homeserver whose only truth is an append-only log.
//!
//! The folders, from what stands on everything to what knows nothing of the rest:
//!
//! ```text
//! cli      the command line
//! import   moving from other homeservers
//! server   starting, background tasks, stopping
//! edge     HTTP, and the endpoints
//! ops      administration, backups, exports, looks into the log
//! service  what takes several steps between endpoints and engine
//! search   the search index
//! outside  other services, and what is sent to them
//! snapshot projections on the disk
//! cluster  the other nodes of a cluster
//! media    uploaded files
//! engine   the one writer: commits, the live projections, the head
//! decide   the rules: what a proposal becomes
//! read     events as clients see them, rooms as of an offset, what is new, what notifies
//! state    projections of the log
//! log      the records, in memory and on the disk, and their archive
//! config   settings
//! record   what a record is and says
//! base     time, bounds, text, files, secrets
//! ```
//!
//! `docs/architecture.md` follows a write, a read and a start through them, and defines the words.

#![cfg_attr(all(feature = "nats", not(test)), warn(unused_crate_dependencies))]

pub use logcabin_cli as cli;
pub use logcabin_config as config;
pub use logcabin_decide as decide;
pub use logcabin_engine as engine;
pub use logcabin_log as log;
pub use logcabin_media as media;
pub use logcabin_record as record;
pub use logcabin_search as search;
pub use logcabin_server as server;
pub use logcabin_snapshot as snapshot;
pub use logcabin_state as state;

// The paths by which programs that embed the server know these.
pub use logcabin_base::{clock, glob, limits, rate, text, work};
pub use logcabin_cli::telemetry;
pub use logcabin_ops::{admin, backup, export, history, proof, restore, socket, source};
pub use logcabin_read::{events, notifications, policy_lists, sync, view};
pub use logcabin_record::address as threepid;
pub use logcabin_service::erasure;
pub use logcabin_snapshot::shutdown_digest;

// The allocator of the binary, `main.rs`. The library does not choose one.
use tikv_jemallocator as _;
