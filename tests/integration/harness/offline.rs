//! Changes to the log of a server that is not running.

use std::path::Path;
use std::sync::Arc;

use logcabin::clock::Clock;
use logcabin::decide::Proposal;
use logcabin::engine::{Engine, Options};
use logcabin::log::Log;
use logcabin::log::store::{SledLog, SledOptions};
use logcabin::record::{Offset, Origin};
use logcabin::{history::describe, record::mask};

/// Has `proposals` decided on the log in `data_dir`, which is created if there is none.
pub(crate) async fn decide<P: Proposal>(
    data_dir: &Path,
    proposals: impl IntoIterator<Item = P>,
) -> Vec<P::Outcome> {
    decide_as("e2e.test", data_dir, proposals).await
}

/// Like [`decide`], for the server of this name.
pub(crate) async fn decide_as<P: Proposal>(
    server_name: &str,
    data_dir: &Path,
    proposals: impl IntoIterator<Item = P>,
) -> Vec<P::Outcome> {
    let log = SledLog::open(SledOptions::new(data_dir)).expect("the log can be opened");
    let log: Arc<dyn Log> = Arc::new(log);
    let options = Options {
        server_name: server_name.try_into().expect("a server name"),
        accounts: logcabin::decide::account::AccountLimit::default(),
        ..Options::small(Clock::system())
    };
    let engine = Engine::open(Arc::clone(&log), options).await.expect("the log can be replayed");
    let mut outcomes = Vec::new();
    for proposal in proposals {
        let decided = engine.propose(Origin::server(), proposal).await;
        outcomes.push(decided.unwrap_or_else(|error| panic!("refused: {error}")).into_inner());
    }
    log.close();
    outcomes
}

/// What the history says of every record of the log in `data_dir`, with their payloads as it shows
/// them.
pub(crate) fn history(data_dir: &Path) -> String {
    let log = SledLog::open(SledOptions::new(data_dir)).expect("the log can be opened");
    let records = log.read(Offset::new(1), usize::MAX).expect("the log can be read");
    log.close();
    let mut lines = String::new();
    for record in records {
        let words = describe::of_record(&record);
        let payload = mask::payload(&record).unwrap_or_default();
        lines.push_str(&format!("{} {} {payload}\n", words.who, words.text));
    }
    lines
}
