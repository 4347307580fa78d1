//! Keeps the rules of policy lists up to date, and has new ones judged: see
//! `logcabin_read::policy_lists`.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use logcabin_base::{background, limits, shutdown::Shutdown, threads};
use logcabin_decide::policy_list::Judge;
use logcabin_engine::{Engine, ProposeError};
use logcabin_log::ReadError;
use logcabin_record::Origin;

/// Why rules are not up to date.
#[derive(Debug, thiserror::Error)]
pub enum PolicyListError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// Follows the log until the server stops.
pub async fn keep(engine: Arc<Engine>, shutdown: Shutdown) {
    let mut head = engine.head().follow();
    loop {
        let began = Instant::now();
        if let Err(error) = update(&engine).await {
            tracing::warn!(%error, "the rules of policy lists are not up to date");
        }
        // A list that changes all the time takes a tenth of a processor.
        let rest = limits::POLICY_GATHER.max(began.elapsed() * 9);
        let later = async {
            sleep(rest).await;
            head.changed().await
        };
        tokio::select! {
            changed = later => if changed.is_err() { return },
            () = shutdown.given() => return,
        }
    }
}

/// Brings the rules up to date, and judges those that were not judged.
pub async fn update(engine: &Arc<Engine>) -> Result<(), PolicyListError> {
    loop {
        let reader = Arc::clone(engine);
        let read = threads::spawn_blocking(move || {
            let (state, events) = (reader.state().share(), reader.events());
            let lists = events.policy_lists();
            lists.refresh(&state, events)?;
            lists.judge(&state, events)
        });
        let (judged, are_more) = match read.await {
            Ok(judged) => judged?,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        if judged.is_empty() {
            return Ok(());
        }
        for judged in judged {
            engine.propose(Origin::server(), Judge(judged)).await?.into_inner();
        }
        if !are_more {
            // What came meanwhile has its turn later.
            let (state, events) = (engine.state().share(), engine.events());
            return Ok(background::at_length(|| events.policy_lists().refresh(&state, events))?);
        }
    }
}
