//! Policy lists, the antispam hook, and the checks of messages.

use std::time::Duration;

/// Rules of one policy list: some 40 MB. Further ones are counted, and not applied.
pub const POLICY_RULES: usize = 200_000;

/// Rules of one policy list whose patterns begin and end with a wildcard: each is compared with
/// every name that is looked up.
pub const POLICY_SCANNED: usize = 200;

/// The name or pattern in a rule of a policy list, in bytes. Ids have 255.
pub const POLICY_ENTITY_BYTES: usize = 512;

/// Policy lists that are applied. Each is looked up for every name.
pub const POLICY_LISTS: usize = 100;

/// Globs of names that a policy list is not applied to.
pub const POLICY_EXCEPT: usize = 1000;

/// Rules of a policy list that are judged at a time: whom they hit here is counted.
pub const POLICY_JUDGED: usize = 2000;

/// Rules of a policy list that wait for approval. While there are that many, no further ones are
/// judged, so that they wait as well.
pub const POLICY_HELD: usize = 1000;

/// The largest number of users and rooms that a list may hit without approval.
pub const POLICY_HITS: u64 = 1000;

/// Patterns of a policy list that begin, or end, with the same text before their wildcards, and how
/// long that text is at least. Others count as those that begin and end with a wildcard.
pub const POLICY_ANCHORED: (usize, usize) = (32, 4);

/// Rules that are looked at for one name.
pub const POLICY_MATCHES: usize = 64;

/// How long new rules of policy lists are gathered before they are judged.
pub const POLICY_GATHER: Duration = Duration::from_millis(200);

/// Rules of a policy list that one record approves.
pub const POLICY_APPROVED: usize = 500;

/// Rules that are proposed for a simulation.
pub const POLICY_PROPOSED: usize = 10_000;

/// What was kept away by rules: how many different things are remembered.
pub const POLICY_KEPT: usize = 1000;

/// Questions that one request asks the antispam hook.
pub const HOOK_BATCH: usize = 64;

/// Requests to the antispam hook at the same time.
pub const HOOK_AT_ONCE: usize = 4;

/// Questions that wait for the antispam hook. Further ones count as failed.
pub const HOOK_WAITING: usize = 1024;

/// After how many failures in a row the antispam hook is left alone, and for how long.
pub const HOOK_FAILURES: u32 = 5;
pub const HOOK_REST: Duration = Duration::from_secs(10);

/// The message of a refusal by the antispam hook, in characters.
pub const HOOK_MESSAGE: usize = 500;

/// The shortest secret of the antispam hook, in bytes.
pub const HOOK_SECRET_BYTES: usize = 16;

/// What is asked of the antispam hook: the largest content, in bytes. A larger one is left out.
pub const HOOK_CONTENT_BYTES: usize = 128 * 1024;

/// Texts, and users with links, that the checks of messages remember: some 20 MB.
pub const SCREENED: usize = 50_000;

/// Rooms that are remembered of one text.
pub const SCREENED_ROOMS: usize = 10_001;

/// Patterns in each list of a user's rules for invites. Each is compared with every inviter.
pub const INVITE_RULES: usize = 500;

/// Inviters for whom it is remembered what a user's rules say.
pub const INVITERS: usize = 500;
