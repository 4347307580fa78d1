//! The tests that drive the real `logcabin` program from outside, in one binary so that linking is
//! paid once.
//!
//! - `admin_tools`: the requests of tools for administrators that nobody here wrote.
//! - `administration`: what the command line does with the accounts of a server.
//! - `api`: what the endpoints do, section by section of the client-server API.
//! - `backup`: backups of a running server, and restores to any moment.
//! - `bridge`: a bridge on mautrix, an application service that nobody here wrote.
//! - `changes`: the feed of changes tells every record once.
//! - `clients`: two clients nobody here wrote, matrix-nio and matrix-js-sdk, talk to each other.
//! - `cluster`: several nodes share one log, and any of them may fail.
//! - `console`: the pages for administrators, also in Chromium.
//! - `console_pages`: its pages of people, rooms and media.
//! - `console_plots`: what the console draws agrees with what there is.
//! - `crash`: the server is killed at random moments and nothing acknowledged is missing after.
//! - `doctor`: what is wrong with a server is found, and nothing is called well that nobody looked
//!   at.
//! - `durability`: seen from the kernel, every acknowledged write was on disk before its answer.
//! - `erasure`: what was redacted leaves the disk.
//! - `export`: a server goes elsewhere and on; a user gets what is theirs.
//! - `console_upkeep`: its pages about what keeps the data, and about what takes long.
//! - `calls`: who is let into the calls of a room, by tokens that LiveKit takes.
//! - `federation`: Synapse, and homeservers that do what they must not.
//! - `health`: load balancers and service managers learn how the server is.
//! - `https`: HTTPS by the server itself and by proxies, Unix sockets, and what is taken over at
//!   SIGHUP.
//! - `imported`: users of a server whose database was imported go on as if nothing had happened.
//! - `heisenbridge`: a bridge to IRC that nobody here wrote.
//! - `matrix_commander`: an encrypting client for terminals that nobody here wrote.
//! - `maubot`: a bot that nobody here wrote the framework of.
//! - `moderation_bot`: a bot on matrix-bot-sdk moderates, as Draupnir does.
//! - `monitoring`: what those who watch a server are told, by Prometheus.
//! - `oauth`: clients log in by OAuth 2.0; and attacks on that.
//! - `pages`: the pages for browsers, in Chromium.
//! - `peers`: the comparison with other servers, as far as it goes without them.
//! - `proxies`: whose a connection is, by the header that a proxy writes before it.
//! - `prune`: old backups are removed, and never the last good one.
//! - `proofs`: what is shown of a log holds, also to a program that has none of the server's code.
//! - `operations`: a directory in use, a full disk, a restore.
//! - `readme`: what the README tells newcomers to type.
//! - `rehearsal`: a copy of a server is tried out, and nothing leaves it.
//! - `setup`: what `logcabin setup` makes and refuses.
//! - `traps`: mistakes of operators, and what must not come of them.
//! - `brute_force`: what others notice of somebody who tries passwords (a measurement).
//! - `snapshots`: starts from snapshots, whole and damaged ones.
//! - `sso`: people log in by another service and on the login page, in a browser.
//! - `synadm`: a tool for administrators that nobody here wrote administers the server.
//! - `taking_over`: a server that was a Synapse never runs beside it.
//! - `traces`: what an OpenTelemetry collector gets.
//! - `web`: two people talk in Element Web.
//! - `archive`: with the log deleted, a data directory is rebuilt from the archive alone.

mod admin_tools;
mod administration;
mod antispam;
mod api;
mod archive;
mod backup;
mod bridge;
mod brute_force;
mod calls;
mod changes;
mod clients;
mod cluster;
mod console;
mod console_pages;
mod console_plots;
mod console_reports;
mod console_upkeep;
#[path = "../contents/mod.rs"]
mod contents;
mod crash;
mod doctor;
mod durability;
mod encryption;
mod erasure;
mod export;
mod federation;
mod harness;
mod health;
mod heisenbridge;
mod https;
mod imported;
mod load;
mod matrix_commander;
mod maubot;
mod moderation_bot;
mod monitoring;
mod oauth;
mod old_rooms;
mod operations;
mod pages;
mod peers;
mod proofs;
mod proxies;
mod prune;
mod readme;
mod rehearsal;
mod setup;
mod snapshots;
mod sso;
mod synadm;
mod taking_over;
mod traces;
mod traps;
mod undone;
mod web;
