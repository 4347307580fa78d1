//! Reads the metrics that can be read at any time, whenever somebody asks for them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use prometheus::{IntGaugeVec, core::Collector as _};
use tokio::{runtime::Handle, sync::watch, time::timeout};

use logcabin_base::{
    background::at_length,
    disk,
    metrics::{Disk, IntGauge, NONE, Reachable, metrics},
};
use logcabin_cluster::Cluster;
use logcabin_config::{Config, MediaDir};
use logcabin_engine::Engine;
use logcabin_log::{AppendError, LocalLog, archive::archive_dir, store::log_dir};
use logcabin_media as media;
use logcabin_outside::pushers::{self, Pushers};
use logcabin_record::Offset;
use logcabin_search::Search;
use logcabin_snapshot::{self as snapshot, Keeper};

/// How often the files in the data directory are looked at. There may be many.
const FILES_EVERY: Duration = Duration::from_secs(120);

/// How long the other nodes of a cluster may take to answer.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(2);

/// What is read.
pub struct Observer {
    pub engine: Arc<Engine>,
    /// The log on this machine.
    pub log: Arc<dyn LocalLog>,
    pub search: Arc<Search>,
    pub snapshots: Arc<Keeper>,
    pub pushers: Arc<Pushers>,
    pub cluster: Option<Arc<dyn Cluster>>,
    /// How far the archive is, and why it cannot be written if it cannot.
    pub archive: Option<Archive>,
    pub directories: Directories,
    /// When the last backup was completed, and when all beside it were last verified, in
    /// milliseconds since the Unix epoch; 0 if that is not known.
    pub backup_times: Box<dyn Fn() -> (u64, u64) + Send + Sync>,
    /// When the files were last looked at, and what the runtime had done by the last look.
    pub last: Mutex<LastObservation>,
}

/// The archive.
pub struct Archive {
    pub archived: watch::Receiver<Offset>,
    pub failure: watch::Receiver<Option<String>>,
}

/// Where the data is.
#[derive(Clone, Debug)]
pub struct Directories {
    pub data: PathBuf,
    pub archive: Option<PathBuf>,
    pub media: PathBuf,
}

impl Directories {
    /// Where a configuration has them.
    pub fn configured(config: &Config) -> Self {
        let data = config.server.data_dir.clone();
        let media = match &config.media.dir {
            MediaDir::Auto => media::store::directory(&data),
            MediaDir::Path(path) => path.clone(),
        };
        Self { data, archive: config.archive_dir(), media }
    }

    /// Where they are in a data directory by default.
    pub fn of(data_dir: &Path) -> Self {
        Self {
            data: data_dir.to_owned(),
            archive: Some(archive_dir(data_dir)),
            media: media::store::directory(data_dir),
        }
    }

    /// How much each part takes on disk, in bytes. What is missing takes nothing.
    pub fn sizes(&self) -> [(Disk, u64); 6] {
        let Self { data, archive, media } = self;
        let thumbnails = disk::tree_bytes(&media.join("thumbnails"));
        [
            (Disk::Log, disk::tree_bytes(&log_dir(data))),
            (Disk::Archive, archive.as_deref().map_or(0, disk::tree_bytes)),
            (Disk::Media, disk::tree_bytes(media).saturating_sub(thumbnails)),
            (Disk::Thumbnails, thumbnails),
            (Disk::Search, disk::tree_bytes(&data.join("search"))),
            (Disk::Snapshots, disk::tree_bytes(&snapshot::directory(data))),
        ]
    }
}

/// What was found at the last look.
#[derive(Default)]
pub struct LastObservation {
    files: Option<Instant>,
    busy: Duration,
}

impl Observer {
    /// Reads everything.
    pub async fn look(&self) {
        let metrics = metrics();
        metrics.build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let head = self.engine.head().offset();
        set(&metrics.log_offset, head.get());
        set(&metrics.search_lag, lag(head, self.search.complete()));
        set(&metrics.sync_waiting, self.engine.head().waiting_users() as u64);
        let state = self.engine.state().share();
        set(&metrics.users, state.accounts.len() as u64);
        set(&metrics.rooms, state.rooms.len() as u64);
        set(&metrics.open_reports, state.reports.len() as u64);
        let (destinations, failing) = state.destinations.counts();
        let reachable = &metrics.federation_destinations;
        set(reachable.of_value(Reachable::Yes), (destinations - failing) as u64);
        set(reachable.of_value(Reachable::No), failing as u64);
        drop(state);
        at_length(|| {
            self.look_at_disk(head);
            let (completed_ms, verified_ms) = (self.backup_times)();
            set(&metrics.backup_completed_time, completed_ms / 1000);
            set(&metrics.backup_verified_time, verified_ms / 1000);
            self.look_at_deliveries(head);
        });
        self.look_at_snapshots();
        self.look_at_runtime();
        self.look_at_cluster().await;
    }

    fn look_at_disk(&self, head: Offset) {
        let metrics = metrics();
        let refuses = self.log.refusal().is_some_and(|why| !matches!(why, AppendError::Closed));
        metrics.log_refusing.set(refuses.into());
        if let Some(archive) = &self.archive {
            let archived = *archive.archived.borrow();
            set(&metrics.archive_lag, lag(head, archived));
            metrics.archive_failing.set(archive.failure.borrow().is_some().into());
        }
        if let Ok(free) = disk::free_bytes(&log_dir(&self.directories.data)) {
            set(&metrics.disk_free, free);
        }
        {
            let mut last = self.last.lock();
            if last.files.is_some_and(|looked| looked.elapsed() < FILES_EVERY) {
                return;
            }
            last.files = Some(Instant::now());
        }
        for (part, bytes) in self.directories.sizes() {
            set(metrics.disk_used.of_value(part), bytes);
        }
    }

    fn look_at_deliveries(&self, head: Offset) {
        let metrics = metrics();
        let positions = &metrics.delivery_position;
        // Nothing is reported about deliveries that another process makes.
        metrics.delivery_lag.reset();
        metrics.delivery_age.reset();
        metrics.delivery_waiting.reset();
        match self.pushers.backlog() {
            Some(backlog) => {
                let waiting = |name| metrics.delivery_waiting.with_label_values(&[name]);
                set(&positions.with_label_values(&[pushers::PUSHERS]), backlog.told.get());
                set(&waiting(pushers::PUSHERS), backlog.notifications as u64);
                if let Some((mails, late_ms)) = backlog.mails {
                    set(&waiting(pushers::MAIL), mails as u64);
                    let age = metrics.delivery_age.with_label_values(&[pushers::MAIL]);
                    set(&age, late_ms / 1000);
                }
            }
            None => {
                // It may have no position yet.
                let _ = positions.remove_label_values(&[pushers::PUSHERS]);
            }
        }
        for family in positions.collect() {
            for position in family.get_metric() {
                let Some(name) = position.get_label().first().map(|label| label.value()) else {
                    continue;
                };
                // The position was set from an offset.
                let told = Offset::new(position.get_gauge().get_value() as u64);
                let lag = lag(head, told);
                set(&metrics.delivery_lag.with_label_values(&[name]), lag);
                let age = if lag == 0 { 0 } else { self.age_of(told.next()) };
                set(&metrics.delivery_age.with_label_values(&[name]), age);
            }
        }
    }

    /// How many seconds ago a record was appended.
    fn age_of(&self, offset: Offset) -> u64 {
        let Ok(Some(record)) = self.engine.log().get(offset) else { return 0 };
        self.engine.clock().now_ms().saturating_sub(record.header.time_ms) / 1000
    }

    fn look_at_snapshots(&self) {
        let (metrics, status) = (metrics(), self.snapshots.status());
        set(&metrics.snapshot_offset, status.snapshot.get());
        set(&metrics.verified_offset, status.verified_through.get());
        set(&metrics.verified_time, status.verified_ms / 1000);
        let faults = status.fault.map_or(0, |fault| fault.projections.len());
        set(&metrics.projection_faults, faults as u64);
    }

    fn look_at_runtime(&self) {
        let (metrics, runtime) = (metrics(), Handle::current().metrics());
        let workers = runtime.num_workers();
        set(&metrics.runtime_workers, workers as u64);
        set(&metrics.runtime_tasks, runtime.num_alive_tasks() as u64);
        set(&metrics.runtime_queue, runtime.global_queue_depth() as u64);
        let busy = (0..workers).map(|worker| runtime.worker_total_busy_duration(worker)).sum();
        let before = std::mem::replace(&mut self.last.lock().busy, busy);
        metrics.runtime_busy.inc_by(busy.saturating_sub(before).as_secs_f64());
    }

    async fn look_at_cluster(&self) {
        let Some(cluster) = &self.cluster else { return };
        let metrics = metrics();
        let alone = |gauge: &IntGaugeVec| gauge.with_label_values(NONE);
        set(&alone(&metrics.cluster_lag), cluster.lag());
        let status = timeout(CLUSTER_TIMEOUT, cluster.status()).await;
        alone(&metrics.cluster_connected).set(matches!(status, Ok(Ok(_))).into());
        let Ok(Ok(status)) = status else {
            // What it was at last is what is known.
            return;
        };
        set(&alone(&metrics.cluster_nodes), status.nodes.len() as u64);
        let slowest = status.stream.replicas.iter().map(|replica| replica.lag).max();
        set(&alone(&metrics.cluster_replica_lag), slowest.unwrap_or_default());
    }
}

fn lag(head: Offset, at: Offset) -> u64 {
    head.get().saturating_sub(at.get())
}

fn set(gauge: &IntGauge, value: u64) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}
