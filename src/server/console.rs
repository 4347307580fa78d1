//! What goes on behind the console: it follows the server and its log, so that no page has to.

use std::sync::Arc;

use super::tasks::Tasks;
use crate::{base::shutdown::Shutdown, edge::api, service::observe::Observer};

/// Starts what the console's pages rest on.
pub(super) fn begin(
    app: &Arc<api::Server>,
    observer: Arc<Observer>,
    shutdown: &Shutdown,
    tasks: &mut Tasks,
) {
    let (samples, stop) = (Arc::clone(&app.samples), shutdown.clone());
    tasks.keep("samples for the console", move || {
        Arc::clone(&samples).collect(Arc::clone(&observer), stop.clone())
    });
    let (tally, engine) = (Arc::clone(&app.tally), Arc::clone(&app.engine));
    let stop = shutdown.clone();
    let totals = tasks.keep("totals for the console", move || {
        Arc::clone(&tally).follow(Arc::clone(&engine), stop.clone())
    });
    // It keeps them on disk.
    tasks.wait_for("totals for the console", totals);
}
