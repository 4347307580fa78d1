//! The background tasks of the console, which follow the server and its log, so that no page has
//! to.

use std::{sync::Arc, time::Duration};

use tracing::warn;

use super::tasks::Tasks;
use logcabin_base::{shutdown::Shutdown, threads};
use logcabin_edge::api;
use logcabin_ops::admin::context::ActContext;
use logcabin_service::observe::Observer;

/// How often the names that no page has asked for yet are read.
const NAMES_EVERY: Duration = Duration::from_secs(600);

pub(super) fn begin(
    app: &Arc<api::Server>,
    observer: Arc<Observer>,
    shutdown: &Shutdown,
    tasks: &mut Tasks,
) {
    let (samples, stop) = (Arc::clone(&app.samples), shutdown.clone());
    let sampling = tasks.keep("samples for the console", move || {
        Arc::clone(&samples).collect(Arc::clone(&observer), stop.clone())
    });
    // This task stores the samples on disk, and the next one the totals.
    tasks.wait_for("samples for the console", sampling);
    let (tally, engine) = (Arc::clone(&app.tally), Arc::clone(&app.engine));
    let stop = shutdown.clone();
    let totals = tasks.keep("totals for the console", move || {
        Arc::clone(&tally).follow(Arc::clone(&engine), stop.clone())
    });
    tasks.wait_for("totals for the console", totals);
    let (context, stop) = (Arc::clone(&app.context), shutdown.clone());
    tasks.keep("names of rooms", move || learn_names(Arc::clone(&context), stop.clone()));
}

/// Reads the names of rooms, again and again, until the server stops.
async fn learn_names(context: Arc<ActContext>, shutdown: Shutdown) {
    while !shutdown.is_given() {
        let (learning, stopping) = (Arc::clone(&context), shutdown.clone());
        let learned = threads::spawn_blocking(move || {
            learning.room_names.learn(&learning.engine, || !stopping.is_given())
        });
        match learned.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "the names of rooms could not be read"),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
        tokio::select! {
            () = tokio::time::sleep(NAMES_EVERY) => {}
            () = shutdown.given() => return,
        }
    }
}
