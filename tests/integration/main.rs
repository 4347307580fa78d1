//! The tests that drive the real `logcabin` program from outside, in one binary so that linking is
//! paid once.
//!
//! - `api`: what the endpoints do, section by section of the client-server API.
//! - `bridge`: a bridge on mautrix, an application service that nobody here wrote.
//! - `clients`: two clients nobody here wrote, matrix-nio and matrix-js-sdk, talk to each other.
//! - `crash`: the server is killed at random moments and nothing acknowledged is missing after.
//! - `durability`: seen from the kernel, every acknowledged write was on disk before its answer.
//! - `erasure`: what was redacted leaves the disk.
//! - `operations`: a directory in use, a full disk, a restore.
//! - `archive`: with the log deleted, a data directory is rebuilt from the archive alone.

mod api;
mod archive;
mod bridge;
mod clients;
mod crash;
mod durability;
mod erasure;
mod harness;
mod load;
mod operations;
