//! Background tasks: each has a name, is restarted if it panics, and ends with the server.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::task::JoinHandle;
use tracing::error;

use super::{
    open::{Components, Core},
    sweep::sweep,
};
use logcabin_base::{limits, shutdown::Shutdown, threads, timers};
use logcabin_cluster::Cluster;
use logcabin_config::Config;
use logcabin_edge::api;
use logcabin_engine::Engine;
use logcabin_log::archive::Archiver;
use logcabin_media::shared_store::SharedStore;
use logcabin_ops::{admin::rooms::shutdown as shutdowns, proof};
use logcabin_service::{
    accounts, appservices, delayed, erasure, federation, guests, last_seen, media, oauth, policies,
    policy_lists, presence, redactions, sender_redactions, typing::Typing,
};

/// The pause before a task is restarted after its first panic. Each further pause is twice as long,
/// up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);

const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The tasks of a server.
pub(super) struct Tasks {
    shutdown: Shutdown,
    cluster: Option<Arc<dyn Cluster>>,
    first_pause: Duration,
    /// The tasks that the server waits for when it stops, in this order.
    awaited: Vec<(&'static str, JoinHandle<()>)>,
}

impl Tasks {
    pub(super) const fn new(shutdown: Shutdown, cluster: Option<Arc<dyn Cluster>>) -> Self {
        Self { shutdown, cluster, first_pause: FIRST_PAUSE, awaited: Vec::new() }
    }

    /// Runs the future of `begin` until the server stops. If it panics, the panic is logged with
    /// the task's name, and the task is restarted after a pause.
    pub(super) fn keep<F>(
        &self,
        name: &'static str,
        begin: impl Fn() -> F + Send + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send,
    {
        let (shutdown, mut pause) = (self.shutdown.clone(), self.first_pause);
        tokio::spawn(async move {
            // Unwind safe: what the task shares with others is behind locks.
            while AssertUnwindSafe(begin()).catch_unwind().await.is_err() {
                error!(
                    task = name,
                    pause_s = pause.as_secs(),
                    "a background task panicked; it will be restarted"
                );
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = shutdown.given() => return,
                }
                pause = LONGEST_PAUSE.min(pause * 2);
            }
        })
    }

    /// As [`Tasks::keep`], for work that only one node of a cluster may do at a time: it runs while
    /// this node holds its lease.
    pub(super) fn keep_leased<F>(
        &self,
        name: &'static str,
        begin: impl Fn() -> F + Send + Sync + 'static,
    ) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send,
    {
        let Some(cluster) = &self.cluster else { return self.keep(name, begin) };
        let lease = Arc::clone(cluster).lease(name);
        let (begin, shutdown) = (Arc::new(begin), self.shutdown.clone());
        self.keep(name, move || {
            let (begin, mut lease) = (Arc::clone(&begin), lease.clone());
            let shutdown = shutdown.clone();
            async move {
                loop {
                    tokio::select! {
                        () = lease.held() => {}
                        () = shutdown.given() => return,
                    }
                    // It can be dropped at any point: what it has done is in the log.
                    tokio::select! {
                        biased;
                        () = lease.lost() => {}
                        () = begin() => return,
                    }
                }
            }
        })
    }

    /// Waits for `task` when the server stops, after those that were added before it.
    pub(super) fn wait_for(&mut self, name: &'static str, task: JoinHandle<()>) {
        self.awaited.push((name, task));
    }

    /// Returns once the tasks that are waited for have ended. The shutdown must have been
    /// signalled.
    pub(super) async fn end(self) {
        for (name, task) in self.awaited {
            if task.await.is_err() {
                error!(task = name, "a background task panicked while the server stopped");
            }
        }
    }
}

/// Starts the background tasks. Work that was interrupted when the server stopped continues.
pub(super) async fn begin(
    config: &Config,
    core: &Core,
    parts: Components,
    shared_store: Option<Arc<dyn SharedStore>>,
    tasks: &mut Tasks,
) {
    let Components { app, snapshots, pushers } = parts;
    let (engine, shutdown) = (&core.engine, tasks.shutdown.clone());
    match appservices::register_senders(engine, &app.outside.services).await {
        Ok(()) => {}
        // The disk may be full. The services get an error when they use them.
        Err(error) => {
            tracing::warn!(%error, "the application services' own users could not be created")
        }
    }
    let again = (Arc::clone(&app), shutdown.clone());
    let timeout = Duration::from_secs(config.appservices.delivery_timeout_seconds);
    let deliver = move || {
        let (app, shutdown) = again.clone();
        async move {
            let api::Outside { services, appservice_queries, .. } = &app.outside;
            appservices::deliver(&app.engine, services, appservice_queries, timeout, &shutdown)
                .await;
        }
    };
    // In a rehearsal, nothing would arrive, and that would be recorded.
    if !config.outbound.rehearsal {
        tasks.keep_leased("application services", deliver);
    }
    match tasks.cluster.clone() {
        None => resume(engine, &app.typing),
        Some(cluster) => {
            let again = (Arc::clone(&app), shutdown.clone());
            tasks.keep_leased("interrupted work", move || {
                let ((app, shutdown), cluster) = (again.clone(), Arc::clone(&cluster));
                resume_for_others(app, cluster, shutdown)
            });
        }
    }

    if let Some(others) = &app.outside.federation {
        let again = (Arc::clone(&others.sender), shutdown.clone());
        let sender = tasks.keep_leased("federation", move || {
            let (sender, shutdown) = again.clone();
            sender.run(shutdown)
        });
        tasks.wait_for("federation", sender);
        let again = (Arc::clone(engine), Arc::clone(others), Arc::clone(&app.typing));
        let until = shutdown.clone();
        tasks.keep("events of others", move || {
            let ((engine, others, typing), shutdown) = (again.clone(), until.clone());
            federation::retry_unplaced(engine, others, typing, shutdown)
        });
        if others.has_presence {
            let again = (Arc::clone(engine), shutdown.clone());
            tasks.keep_leased("presence of others", move || {
                let (engine, shutdown) = again.clone();
                federation::presence::expire(engine, shutdown)
            });
        }
    }
    // Notifications on their way to a gateway are recorded as sent.
    if !config.outbound.rehearsal {
        let pushers = tasks.keep_leased("pushers", move || Arc::clone(&pushers).run());
        tasks.wait_for("pushers", pushers);
    }
    if let Some(cluster) = tasks.cluster.clone() {
        let again = (Arc::clone(&app.presence), Arc::clone(engine), shutdown.clone());
        tasks.keep("presence of nodes", move || {
            let ((tracker, engine, shutdown), cluster) = (again.clone(), Arc::clone(&cluster));
            presence::writer::follow_nodes(tracker, engine, cluster, shutdown)
        });
    }
    let again = (Arc::clone(engine), Arc::clone(&app.last_seen), shutdown.clone());
    tasks.keep("last seen", move || {
        let (engine, last_seen, shutdown) = again.clone();
        last_seen::keep(last_seen, engine, shutdown)
    });
    let again = (Arc::clone(engine), shutdown.clone());
    tasks.keep("policy lists", move || {
        let (engine, shutdown) = again.clone();
        policy_lists::keep(engine, shutdown)
    });
    let again = (Arc::clone(engine), shutdown.clone());
    tasks.keep_leased("guests", move || {
        let (engine, shutdown) = again.clone();
        guests::keep_out(engine, shutdown)
    });
    let again = (Arc::clone(engine), shutdown.clone());
    tasks.keep_leased("redactions by bans", move || {
        let (engine, shutdown) = again.clone();
        sender_redactions::keep(engine, shutdown)
    });
    let again = (Arc::clone(engine), shutdown.clone());
    let unused = config.oauth.unused_client_seconds;
    tasks.keep_leased("OAuth clients", move || {
        let (engine, shutdown) = again.clone();
        oauth::remove_idle_clients(engine, unused, shutdown)
    });
    let again = (Arc::clone(&app.presence), Arc::clone(engine), shutdown.clone());
    tasks.keep("presence", move || {
        let (tracker, engine, shutdown) = again.clone();
        let clock = engine.clock().clone();
        timers::keep(presence::writer::Writer { tracker, engine }, clock, shutdown)
    });
    // Events that became due while no server ran are sent now.
    let again = (Arc::clone(engine), shutdown.clone());
    tasks.keep_leased("delayed events", move || {
        let (engine, shutdown) = again.clone();
        let clock = engine.clock().clone();
        timers::keep(delayed::Sender::new(engine, api::given_up), clock, shutdown)
    });
    let again = (Arc::clone(&app.media), shutdown.clone());
    let sweep_files = move || {
        let (files, shutdown) = again.clone();
        media::sweep(files, shutdown)
    };
    match shared_store {
        // One directory, or the only one.
        None => drop(tasks.keep_leased("files", sweep_files)),
        // Each node has copies of its own.
        Some(shared_store) => {
            tasks.keep("files", sweep_files);
            let again = (Arc::clone(&app.media), shutdown.clone());
            tasks.keep("files of other nodes", move || {
                let (files, shutdown) = again.clone();
                media::shared::fetch_all(files, shutdown)
            });
            let again = (Arc::clone(&app.media), shutdown.clone());
            tasks.keep_leased("files", move || {
                let ((files, shutdown), shared_store) = (again.clone(), Arc::clone(&shared_store));
                media::shared::sweep(files, shared_store, shutdown)
            });
        }
    }
    let again = (Arc::clone(engine), proof::Policy::of(&config.proofs), shutdown.clone());
    tasks.keep("proofs", move || {
        let (engine, policy, shutdown) = again.clone();
        proof::keep(engine, policy, shutdown)
    });
    // A running compaction is abandoned; the log is complete without it.
    let (engine, log) = (Arc::clone(engine), Arc::clone(&core.log.local));
    let archived = core.archiver.as_ref().map(Archiver::archived);
    let (policy, percent) = (policies::sweep_policy(config), config.erasure.compact_percent);
    let sweeper = tasks.keep("sweep", move || {
        let (engine, log, archived) = (Arc::clone(&engine), Arc::clone(&log), archived.clone());
        sweep(engine, log, archived, policy.clone(), percent, shutdown.clone())
    });
    tasks.wait_for("sweep", sweeper);
    let again = (Arc::clone(&app), tasks.shutdown.clone());
    let sweeper = tasks.keep("files of sliding sync", move || {
        let (app, shutdown) = again.clone();
        sweep_connections(app, shutdown)
    });
    tasks.wait_for("files of sliding sync", sweeper);
    let keeper = tasks.keep("snapshots", move || Arc::clone(&snapshots).run());
    tasks.wait_for("snapshots", keeper);
}

/// Removes files of sliding sync connections that are no longer needed, until the server stops.
async fn sweep_connections(app: Arc<api::Server>, shutdown: Shutdown) {
    while !shutdown.is_given() {
        let swept = Arc::clone(&app);
        let sweep = move || {
            let live = swept.engine.state().accounts.sessions();
            swept.sync.connections.sweep_files(swept.engine.clock().now_ms(), &live);
        };
        // A panic is logged, and the rest is removed the next time.
        let _ = threads::spawn_blocking(sweep).await;
        tokio::select! {
            () = tokio::time::sleep(limits::SLIDING_FILES_SWEPT) => {}
            () = shutdown.given() => {}
        }
    }
}

/// Continues what was interrupted when the server stopped.
fn resume(engine: &Arc<Engine>, typing: &Arc<Typing>) {
    typing.resume();
    accounts::profile::resume(engine);
    accounts::closing::resume(engine);
    shutdowns::resume(engine);
    redactions::resume(engine);
    erasure::history::resume(engine);
}

/// Continues the work of nodes that have left, until the server stops.
async fn resume_for_others(app: Arc<api::Server>, cluster: Arc<dyn Cluster>, shutdown: Shutdown) {
    let mut departures = cluster.departures();
    loop {
        departures.mark_unchanged();
        resume(&app.engine, &app.typing);
        tokio::select! {
            changed = departures.changed() => if changed.is_err() { return },
            () = shutdown.given() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_restarted_until_it_ends() {
        let begun = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&begun);
        let mut tasks = Tasks::new(Shutdown::when(std::future::pending()), None);
        tasks.first_pause = Duration::from_millis(1);
        let task = tasks.keep("test", move || {
            let nth = counter.fetch_add(1, Ordering::Relaxed);
            async move { assert!(nth == 2, "as a test") }
        });
        task.await.unwrap();
        assert_eq!(begun.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn a_task_that_panics_is_not_restarted_once_the_server_stops() {
        let tasks = Tasks::new(Shutdown::when(std::future::ready(())), None);
        let task = tasks.keep("test", || async { panic!("as a test") });
        tokio::time::timeout(Duration::from_secs(30), task).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_end_waits_for_the_awaited_tasks() {
        let (send, receive) = tokio::sync::oneshot::channel();
        let mut tasks = Tasks::new(Shutdown::when(std::future::ready(())), None);
        tasks.wait_for("test", tokio::spawn(async { receive.await.unwrap() }));
        let end = tokio::spawn(tasks.end());
        tokio::task::yield_now().await;
        assert!(!end.is_finished());
        send.send(()).unwrap();
        end.await.unwrap();
    }
}
