//! Logcabin: a Matrix-compatible homeserver whose only truth is an append-only log.
//!
//! The modules stand in the order of a write, then of a read:
//!
//! ```text
//! write: http → api → decide ┐
//!                            ├ engine → log → state (apply) → the waiting sync
//! read:  http → api → view, sync ← state (as of an offset) ← events (bodies from the log)
//! look:  history ← log, archive, or a running server (admin)
//! start: snapshot, and what the log has after it → state
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | record | one entry of the log: header, chain value, payload |
//! | command | what a record says happened: a fact with every detail settled |
//! | offset | a record's place in the log; the only clock that clients see |
//! | stream | the records that one kind of decision rests on: a room, a user, an alias |
//! | proposal | what a request asks for, before it is decided |
//! | turn | the proposals of one stream that are decided and appended together |
//! | projection | what the records add up to; disposable |
//! | head | the last offset that is durable, applied and published |

mod accounts;
pub mod admin;
mod api;
mod appservice;
mod background;
pub mod backup;
pub mod checkpoint;
pub mod cli;
pub mod clock;
pub mod config;
pub mod decide;
mod delivery;
mod disk;
pub mod engine;
pub mod events;
pub mod export;
pub mod history;
mod http;
mod last_seen;
pub mod limits;
pub mod log;
mod long_work;
pub mod media;
mod messages;
mod oidc;
mod outbound;
mod passwords;
mod presence;
pub mod proof;
pub mod push;
mod pushers;
pub mod rate;
pub mod record;
mod rendezvous;
pub mod restore;
pub mod search;
mod secret_text;
pub mod server;
mod shutdown;
mod signed;
mod signed_json;
pub mod snapshot;
pub mod socket;
pub mod source;
pub mod state;
pub mod sync;
pub mod telemetry;
pub mod text;
pub mod threepid;
mod timers;
mod token_key;
pub mod view;
pub mod work;
