//! Records visible presence as it changes, and follows the nodes of a cluster.

use std::sync::Arc;

use futures_util::future::join_all;
use ruma::{OwnedUserId, UserId};

use super::{Tracker, VisiblePresence};
use logcabin_base::{limits, shutdown::Shutdown, timers::Timed};
use logcabin_cluster::Cluster;
use logcabin_decide::{is_local, presence::SetPresence};
use logcabin_engine::Engine;
use logcabin_record::{Origin, Stream};
use logcabin_state::presence::UserPresence;

/// What records this presence; of `status_msg`, the outer `None` leaves it as it is.
pub fn proposal(
    user_id: OwnedUserId,
    seen: VisiblePresence,
    status_msg: Option<Option<String>>,
) -> SetPresence {
    let VisiblePresence { presence, currently_active, last_active_ms } = seen;
    SetPresence { user_id, presence, currently_active, last_active_ms, status_msg }
}

/// The users of this server who are not offline, as others see them.
pub fn around(engine: &Engine) -> Vec<(OwnedUserId, UserPresence)> {
    let presence = &engine.state().presence;
    let around = presence.around().into_iter();
    let around = around.filter(|user_id| is_local(&engine.env().server, user_id));
    around.filter_map(|user| Some((user.clone(), presence.get(&user)?))).collect()
}

/// Follows the presence of other users as nodes come and go, until the server stops.
pub async fn follow_nodes(
    tracker: Arc<Tracker>,
    engine: Arc<Engine>,
    cluster: Arc<dyn Cluster>,
    shutdown: Shutdown,
) {
    let mut changes = cluster.changes();
    loop {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = shutdown.given() => return,
        }
        let is_own =
            |user_id: &UserId| cluster.preferred(Stream::presence(user_id).as_str()).is_none();
        let around = around(&engine);
        let now_ms = engine.clock().now_ms();
        tracker.nodes_changed(&cluster.there(), is_own, around, now_ms);
    }
}

/// Records visible presence whenever it has changed. No request waits for it.
pub struct Writer {
    pub tracker: Arc<Tracker>,
    pub engine: Arc<Engine>,
}

impl Timed for Writer {
    fn next_ms(&self) -> Option<u64> {
        self.tracker.next_due_ms()
    }

    async fn changed(&mut self) {
        self.tracker.changed().notified().await;
    }

    async fn fire(&self, now_ms: u64) {
        let record = async |(user_id, seen): (OwnedUserId, VisiblePresence)| {
            let proposal = proposal(user_id.clone(), seen, None);
            match self.engine.propose(Origin::server(), proposal).await {
                Ok(recorded) => recorded.into_inner(),
                Err(error) => {
                    tracing::debug!(%error, "presence was not recorded");
                    let wait_ms = u64::try_from(limits::TIMER_RETRY.as_millis()).unwrap_or(5000);
                    self.tracker.recheck(&user_id, now_ms.saturating_add(wait_ms));
                }
            }
        };
        join_all(self.tracker.take_due(now_ms, limits::PRESENCE_BATCH).into_iter().map(record))
            .await;
    }
}
