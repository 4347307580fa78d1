//! What `logcabin doctor` may cost, and from when on it warns.

use std::time::Duration;

/// How long one check may wait for the network.
pub const DOCTOR_TIME: Duration = Duration::from_secs(10);

/// How long the console shows the findings of one examination before another one may begin.
pub const DOCTOR_AGAIN: Duration = Duration::from_secs(60);

/// Other homeservers whose clocks are compared with that of this one.
pub const DOCTOR_CLOCKS: usize = 3;

/// Failing homeservers and push gateways that a finding names.
pub const DOCTOR_NAMED: usize = 5;

/// The longest text of others in a finding, in characters.
pub const DOCTOR_TEXT: usize = 300;

/// The largest document that is fetched for a check, in bytes.
pub const DOCTOR_DOCUMENT_BYTES: usize = 64 * 1024;

/// How far the clock may be off: above the first, tokens and keys expire visibly early or late;
/// above the second, other homeservers refuse keys and show messages at wrong times.
pub const DOCTOR_CLOCK_OFF: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(300)];

/// With fewer file descriptors than this, parts of the server may fail, however few connections
/// there are.
pub const FEW_DESCRIPTORS: u64 = 512;

/// Below this, a certificate should have been renewed: those of ACME authorities are renewed 30
/// days before they expire.
pub const CERTIFICATE_SOON: Duration = Duration::from_secs(14 * 86_400);

/// A backup that is older than this is an old one.
pub const BACKUP_OLD: Duration = Duration::from_secs(7 * 86_400);

/// If the disk is full earlier than in so many days, there is not much time to act.
pub const DISK_DAYS: [f64; 2] = [30.0, 7.0];

/// The most push gateways whose failures are remembered.
pub const FAILING_GATEWAYS: usize = 100;
