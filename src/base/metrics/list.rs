//! Every metric: its name, its help text, and its labels.

use prometheus::{HistogramVec, IntCounterVec, IntGaugeVec, Registry};

use super::{
    Counter, Each, Histogram, IntCounter, IntGauge, Label, counter, counters, gauge, gauges,
    histogram, histograms, label, process, seconds,
};

/// From a tenth of a millisecond to ten seconds, and a long poll.
pub const LATENCY: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];

/// For what takes microseconds when all is well.
pub const STAGE: &[f64] = &[
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.5, 2.5,
];

const WORK: &[f64] = &[0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0, 7200.0];

const COUNTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

label! {
    /// A stage of a write, in the order of the stages.
    WriteStage {
        /// A proposal waits for the commit before it on the same stream.
        Turn = "turn",
        /// A commit is decided.
        Decide = "decide",
        /// A batch waits for its group.
        Group = "group",
        /// A group is made durable.
        Sync = "sync",
        /// A group is applied to the projections and published.
        Apply = "apply",
        /// The waiting syncs are woken.
        Wake = "wake",
    }
}

label! {
    /// A stage of a sync.
    SyncStage {
        /// It waits for something new.
        Wait = "wait",
        /// The answer is read from the projections.
        Read = "read",
        /// The answer is written as JSON.
        Write = "write",
    }
}

label! {
    CacheName {
        Events = "events",
        /// What is derived from records, such as push rules.
        Derived = "derived",
        /// The newest records.
        Records = "records",
        /// Pieces of the databases of new records.
        Groups = "groups",
        /// Pieces of the volumes of old records.
        Blocks = "blocks",
        Unread = "unread",
        /// Filters of syncs.
        Filters = "filters",
    }
}

label! {
    /// Long work in the background.
    Background {
        /// Writing a snapshot.
        Snapshot = "snapshot",
        /// Comparing the projections with a replay of the log, which verifies the log.
        Scrub = "scrub",
        /// Erasing what is due.
        Sweep = "sweep",
        /// Removing erased content from the disk.
        Compaction = "compaction",
        /// Moving old records into volumes.
        Sealing = "sealing",
        /// Committing the search index.
        Index = "index",
    }
}

label! {
    /// What takes disk space.
    Disk {
        Log = "log",
        /// Its archive.
        Archive = "archive",
        /// Uploaded files.
        Media = "media",
        Thumbnails = "thumbnails",
        /// The search index.
        Search = "search",
        Snapshots = "snapshots",
    }
}

label! {
    /// What became of an event that another homeserver sent.
    PduOutcome {
        /// It is in the timeline.
        Accepted = "accepted",
        /// It was known before.
        Known = "known",
        /// The room's current state does not allow it.
        SoftFailed = "soft_failed",
        /// It was not allowed where it was sent.
        Rejected = "rejected",
        /// It is not an event, or not of the form that its room's version wants.
        Form = "form",
        /// A signature is missing or wrong, or its key is not known.
        Signature = "signature",
        /// The room is not one of this homeserver's, or not one of the sender's.
        Room = "room",
        /// The room's access control list does not admit the sender.
        AccessControl = "access_control",
        /// Events that it rests on cannot be fetched.
        Missing = "missing",
        /// This homeserver could not take it.
        Failed = "failed",
    }
}

label! {
    /// What became of something that was tried.
    Tried {
        /// It succeeded.
        Done = "done",
        /// It failed.
        Failed = "failed",
    }
}

label! {
    /// Why something is never sent to a homeserver.
    Withheld {
        /// This homeserver cannot send it.
        Unsendable = "unsendable",
        /// The homeserver refuses it.
        Refused = "refused",
    }
}

label! {
    Transfer {
        Requests = "requests",
        /// Of answers to this homeserver.
        Answers = "answers",
    }
}

label! {
    /// Whether another homeserver can be reached.
    Reachable {
        /// It could be when it was last tried.
        Yes = "yes",
        /// It could not be.
        No = "no",
    }
}

label! {
    /// Why a login was refused.
    LoginRefusal {
        /// The password was wrong, or there is no such user.
        Password = "password",
        /// The login token was not valid, or was used before.
        Token = "token",
        /// The link to the console was not valid, or was used before.
        Link = "link",
        /// A provider of single sign-on refused the user, or this server refused its answer.
        Sso = "sso",
        /// A code or a client of OAuth 2.0 was not valid.
        Oauth = "oauth",
        /// It was no application service, or the user is not one of its own.
        Appservice = "appservice",
        /// The account is locked or deactivated.
        Account = "account",
        /// The user does not administer the server, which the console asks for.
        Administrator = "administrator",
        /// There were too many attempts.
        Rate = "rate",
    }
}

/// No labels. Such a metric exists from when it is first set.
pub const NONE: &[&str] = &[];

/// Generates [`Metrics`] from one list.
macro_rules! metrics {
    ($($field:ident: $Type:ty = $name:literal $help:literal $make:expr;)+) => {
        /// The metrics of the process.
        #[derive(Debug)]
        pub struct Metrics {
            pub(super) registry: Registry,
            $(
                #[doc = $help]
                pub $field: $Type,
            )+
        }

        impl Metrics {
            pub(super) fn new() -> Self {
                let registry = Registry::new();
                process::register(&registry);
                $(
                    let make: fn(&Registry, &'static str, &'static str) -> $Type = $make;
                    let $field = make(&registry, $name, $help);
                )+
                Self { registry, $($field),+ }
            }
        }

        #[cfg(test)]
        pub(super) const NAMES: &[&str] = &[$($name),+];
    };
}

/// A histogram for each value of a label.
fn histogram_by<L: Label>(
    registry: &Registry,
    name: &str,
    help: &str,
    label: &str,
    buckets: &[f64],
) -> Each<L, Histogram> {
    let all = histograms(registry, name, help, &[label], buckets);
    Each::of(|value| all.with_label_values(&[value]))
}

/// A counter for each value of a label.
fn counter_by<L: Label>(
    registry: &Registry,
    name: &str,
    help: &str,
    label: &str,
) -> Each<L, IntCounter> {
    let all = counters(registry, name, help, &[label]);
    Each::of(|value| all.with_label_values(&[value]))
}

/// A gauge for each value of a label.
fn gauge_by<L: Label>(
    registry: &Registry,
    name: &str,
    help: &str,
    label: &str,
) -> Each<L, IntGauge> {
    let all = gauges(registry, name, help, &[label]);
    Each::of(|value| all.with_label_values(&[value]))
}

metrics! {
    build_info: IntGaugeVec = "logcabin_build_info"
        "The version that runs; always 1"
        |r, n, h| gauges(r, n, h, &["version"]);

    http_requests: IntCounterVec = "logcabin_http_requests_total"
        "Answered requests"
        |r, n, h| counters(r, n, h, &["method", "endpoint", "status"]);
    http_duration: HistogramVec = "logcabin_http_request_duration_seconds"
        "Time from the head of a request to its answer, long polls included"
        |r, n, h| histograms(r, n, h, &["method", "endpoint"], LATENCY);
    http_connections: IntGauge = "logcabin_http_connections"
        "Open connections"
        gauge;
    certificate_expiry: IntGaugeVec = "logcabin_certificate_expiry_timestamp_seconds"
        "When the certificate of a listener expires; 0 if it has none yet"
        |r, n, h| gauges(r, n, h, &["listener"]);
    acme_orders: Each<Tried, IntCounter> = "logcabin_acme_orders_total"
        "Attempts to get a certificate from the authority"
        |r, n, h| counter_by(r, n, h, "outcome");
    body_bytes: Each<Transfer, IntGauge> = "logcabin_body_memory_bytes"
        "Memory that is reserved for bodies in progress, of what http.body_memory_bytes allows"
        |r, n, h| gauge_by(r, n, h, "bodies");
    bodies_dropped: IntCounter = "logcabin_bodies_dropped_total"
        "Bodies in progress that had to make room for others"
        counter;
    http_rate_limited: IntCounterVec = "logcabin_http_rate_limited_total"
        "Requests that were refused because of a rate limit"
        |r, n, h| counters(r, n, h, &["class"]);

    write_stage: Each<WriteStage, Histogram> = "logcabin_write_stage_duration_seconds"
        "Time that writes spent in each stage"
        |r, n, h| histogram_by(r, n, h, "stage", STAGE);
    write_conflicts: IntCounter = "logcabin_write_conflicts_total"
        "Commits that were decided again because another writer came first"
        counter;
    log_group: Histogram = "logcabin_log_group_records"
        "Records that became durable together"
        |r, n, h| histogram(r, n, h, COUNTS);
    log_records: IntCounterVec = "logcabin_log_records_total"
        "Records that were appended"
        |r, n, h| counters(r, n, h, &["kind"]);
    log_payload: IntCounter = "logcabin_log_payload_bytes_total"
        "Bytes of the payloads that were appended"
        counter;
    log_offset: IntGauge = "logcabin_log_offset"
        "The last durable and applied record"
        gauge;
    log_refusing: IntGauge = "logcabin_log_refuses_writes"
        "Whether the log takes no writes: the disk is nearly full, or a write failed"
        gauge;
    archive_lag: IntGauge = "logcabin_archive_lag_records"
        "Records that the archive lacks"
        gauge;
    archive_failing: IntGauge = "logcabin_archive_failing"
        "Whether the archive cannot be written, or vanished in the last ten minutes"
        gauge;

    sync_stage: Each<SyncStage, Histogram> = "logcabin_sync_stage_duration_seconds"
        "Time that syncs spent in each stage"
        |r, n, h| histogram_by(r, n, h, "stage", LATENCY);
    sync_delay: Histogram = "logcabin_sync_delivery_delay_seconds"
        "Time from the publication of a record until a waiting sync answers with it"
        |r, n, h| histogram(r, n, h, LATENCY);
    sync_waiting: IntGauge = "logcabin_sync_waiting_users"
        "Users with a waiting sync"
        gauge;

    cache_hits: Each<CacheName, IntCounter> = "logcabin_cache_hits_total"
        "Look-ups that a cache could answer"
        |r, n, h| counter_by(r, n, h, "cache");
    cache_misses: Each<CacheName, IntCounter> = "logcabin_cache_misses_total"
        "Look-ups that a cache could not answer"
        |r, n, h| counter_by(r, n, h, "cache");

    delivery_attempts: IntCounterVec = "logcabin_delivery_attempts_total"
        "Attempts to deliver to an application service, a push gateway or the mail server"
        |r, n, h| counters(r, n, h, &["destination", "outcome"]);
    delivery_set_aside: IntCounterVec = "logcabin_delivery_set_aside_total"
        "Records that a destination is never told of, because they cannot be sent or it refuses them"
        |r, n, h| counters(r, n, h, &["destination"]);
    delivery_position: IntGaugeVec = "logcabin_delivery_position"
        "The last record that a destination has been told of, or that is not for it"
        |r, n, h| gauges(r, n, h, &["destination"]);
    delivery_lag: IntGaugeVec = "logcabin_delivery_lag_records"
        "Records that a destination has not been told of yet"
        |r, n, h| gauges(r, n, h, &["destination"]);
    delivery_age: IntGaugeVec = "logcabin_delivery_lag_seconds"
        "Age of the oldest thing that a destination has not been told of yet"
        |r, n, h| gauges(r, n, h, &["destination"]);
    delivery_waiting: IntGaugeVec = "logcabin_delivery_waiting"
        "Notifications and mails that wait to be sent"
        |r, n, h| gauges(r, n, h, &["destination"]);

    federation_transactions_sent: Each<Tried, IntCounter> =
        "logcabin_federation_transactions_sent_total"
        "Transactions that were sent to other homeservers, and whether they took them"
        |r, n, h| counter_by(r, n, h, "outcome");
    federation_pdus_sent: IntCounter = "logcabin_federation_pdus_sent_total"
        "Events in the transactions that other homeservers took"
        counter;
    federation_edus_sent: IntCounter = "logcabin_federation_edus_sent_total"
        "Ephemeral messages in the transactions that other homeservers took"
        counter;
    federation_set_aside: Each<Withheld, IntCounter> = "logcabin_federation_set_aside_total"
        "Events and ephemeral messages that are never sent to a homeserver, and why"
        |r, n, h| counter_by(r, n, h, "why");
    federation_transactions: IntCounter = "logcabin_federation_transactions_received_total"
        "Transactions of other homeservers"
        counter;
    federation_pdus: Each<PduOutcome, IntCounter> = "logcabin_federation_pdus_received_total"
        "Events in the transactions of other homeservers, and what became of them"
        |r, n, h| counter_by(r, n, h, "outcome");
    federation_edus: IntCounter = "logcabin_federation_edus_received_total"
        "Ephemeral messages in the transactions of other homeservers"
        counter;
    federation_refused: IntCounterVec = "logcabin_federation_over_share_total"
        "Requests of other homeservers that were refused because these were over their share, by \
         what of"
        |r, n, h| counters(r, n, h, &["kind"]);
    federation_dropped: IntCounterVec = "logcabin_federation_dropped_total"
        "What was dropped of what strangers at other homeservers left for users of this one"
        |r, n, h| counters(r, n, h, &["kind"]);
    hook_questions: IntCounterVec = "logcabin_hook_questions_total"
        "Questions to the antispam hook, and what became of them: allowed, marked, refused, shadowed, \
         failed"
        |r, n, h| counters(r, n, h, &["hook", "outcome"]);
    policy_matches: IntCounterVec = "logcabin_policy_matches_total"
        "What rules of policy lists and of the configuration matched, by what they are applied to: \
         refused, or only noted"
        |r, n, h| counters(r, n, h, &["area", "outcome"]);
    federation_destinations: Each<Reachable, IntGauge> = "logcabin_federation_destinations"
        "Homeservers that were told of events, and whether they could be reached last"
        |r, n, h| gauge_by(r, n, h, "reachable");
    federation_resolutions: Each<Tried, IntCounter> =
        "logcabin_federation_state_resolutions_total"
        "How often the state of branches of a room was resolved"
        |r, n, h| counter_by(r, n, h, "outcome");
    federation_preparation: Counter = "logcabin_federation_state_preparation_seconds_total"
        "Processor time for which the state of branches of rooms was resolved outside of the rooms' turns"
        seconds;
    federation_preparing: IntGauge = "logcabin_federation_state_preparations_waiting"
        "Events of other homeservers that wait until the state of branches of a room is resolved"
        gauge;

    work: Each<Background, Histogram> = "logcabin_background_duration_seconds"
        "Time that background work took"
        |r, n, h| histogram_by(r, n, h, "work", WORK);
    work_failures: Each<Background, IntCounter> = "logcabin_background_failures_total"
        "Background work that failed and is repeated later"
        |r, n, h| counter_by(r, n, h, "work");
    search_lag: IntGauge = "logcabin_search_lag_records"
        "Records that the search index lacks"
        gauge;
    snapshot_offset: IntGauge = "logcabin_snapshot_offset"
        "The last record in the newest snapshot"
        gauge;

    verified_offset: IntGauge = "logcabin_verified_offset"
        "The record up to which the last scrub found the log and the projections intact"
        gauge;
    verified_time: IntGauge = "logcabin_verified_timestamp_seconds"
        "When the last scrub ended; 0 if there was none"
        gauge;
    log_damaged: IntGauge = "logcabin_log_damaged"
        "Whether the last scrub found that the log is not intact or cannot be read"
        gauge;
    projection_faults: IntGauge = "logcabin_projection_faults"
        "Projections that differed from the log in the last scrub"
        gauge;

    disk_used: Each<Disk, IntGauge> = "logcabin_disk_used_bytes"
        "Disk space that each part of the data takes"
        |r, n, h| gauge_by(r, n, h, "part");
    disk_free: IntGauge = "logcabin_disk_free_bytes"
        "Free space on the disk of the log"
        gauge;

    logins_refused: Each<LoginRefusal, IntCounter> = "logcabin_logins_refused_total"
        "Refused logins"
        |r, n, h| counter_by(r, n, h, "reason");
    open_reports: IntGauge = "logcabin_open_reports"
        "Reports of users that nobody has closed"
        gauge;
    backup_completed_time: IntGauge = "logcabin_backup_completed_timestamp_seconds"
        "When the last backup was completed; 0 if none is known"
        gauge;
    backup_verified_time: IntGauge = "logcabin_backup_verified_timestamp_seconds"
        "When all backups in the directory of the last one were last found intact; 0 if that is not known"
        gauge;

    users: IntGauge = "logcabin_users"
        "Accounts, including guests and deactivated ones"
        gauge;
    rooms: IntGauge = "logcabin_rooms"
        "Rooms"
        gauge;

    cluster_connected: IntGaugeVec = "logcabin_cluster_connected"
        "Whether this node reaches the log of its cluster"
        |r, n, h| gauges(r, n, h, NONE);
    cluster_nodes: IntGaugeVec = "logcabin_cluster_nodes"
        "Nodes that are there, as this node sees it"
        |r, n, h| gauges(r, n, h, NONE);
    cluster_lag: IntGaugeVec = "logcabin_cluster_lag_messages"
        "Messages of the cluster's log that this node has not taken yet, as far as it knows"
        |r, n, h| gauges(r, n, h, NONE);
    cluster_replica_lag: IntGaugeVec = "logcabin_cluster_replica_lag_messages"
        "Messages that the slowest replica of the cluster's log lacks"
        |r, n, h| gauges(r, n, h, NONE);

    runtime_workers: IntGauge = "logcabin_runtime_workers"
        "Threads that answer requests"
        gauge;
    runtime_tasks: IntGauge = "logcabin_runtime_tasks"
        "Tasks of the runtime that have not ended"
        gauge;
    runtime_queue: IntGauge = "logcabin_runtime_queue_tasks"
        "Tasks in the shared queue of the runtime that are ready to run"
        gauge;
    runtime_busy: Counter = "logcabin_runtime_busy_seconds_total"
        "Time in which the threads of the runtime had something to do"
        seconds;
}
