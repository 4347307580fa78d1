//! What long orders of administrators have in common: each is recorded, continues after a restart
//! of the server, and is worked on once.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use logcabin_base::limits;
use logcabin_decide::Proposal;
use logcabin_engine::{Engine, ProposeError};
use logcabin_log::{AppendError, ReadError};
use logcabin_record::Origin;

/// The orders that this process works on.
static UNDER_WAY: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Why an order did not come to its end. It continues at the next start.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The log was closed, or the end could not be recorded.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// Proposes until the log takes it. Returns why it did not, if that would not change.
///
/// # Errors
/// When the log was closed.
pub(crate) async fn recorded<P: Proposal + Clone>(
    engine: &Engine,
    origin: &Origin,
    proposal: P,
) -> Result<Result<P::Outcome, ProposeError>, ProposeError> {
    let [pauses @ .., last] = limits::REDACTION_PAUSES;
    let mut pauses = pauses.into_iter();
    loop {
        match engine.propose(origin.clone(), proposal.clone()).await {
            Ok(recorded) => return Ok(Ok(recorded.into_inner())),
            Err(error @ ProposeError::Log(AppendError::Closed)) => return Err(error),
            Err(error) if error.is_for_now() => {
                tokio::time::sleep(pauses.next().unwrap_or(last)).await;
            }
            Err(error) => return Ok(Err(error)),
        }
    }
}

/// Work on an order, until this is dropped.
pub(crate) struct Running(String);

impl Running {
    /// `None` if this process works on it already.
    pub(crate) fn begin(id: &str) -> Option<Self> {
        UNDER_WAY.lock().insert(id.to_owned()).then(|| Self(id.to_owned()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        UNDER_WAY.lock().remove(&self.0);
    }
}
