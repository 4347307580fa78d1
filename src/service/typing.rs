//! Timers that end typing, of users of this server and of others.

use std::{sync::Arc, time::Duration};

use logcabin_base::planted::{self, Fault};
use logcabin_decide::ephemeral::SetTyping;
use logcabin_engine::Engine;
use logcabin_record::Origin;

/// The longest time until a typing notification must be repeated.
pub const LONGEST: Duration = Duration::from_secs(120);

/// Restarts the timers that end typing after a restart of the server, for waiting syncs.
pub fn resume(engine: &Arc<Engine>) {
    for room in engine.state().rooms.all() {
        for (user_id, until_ms) in room.typing().0 {
            let lasts = until_ms.saturating_sub(engine.clock().now_ms());
            let typing =
                SetTyping { room_id: room.id.clone(), user_id, until_ms, only_if_until: None };
            end_after(Arc::clone(engine), Duration::from_millis(lasts).min(LONGEST), typing);
        }
    }
}

/// Ends a user's typing after a while, unless it was repeated or ended by then.
pub fn end_after(engine: Arc<Engine>, lasts: Duration, typing: SetTyping) {
    if planted::has(Fault::TypingNeverEnds) {
        return;
    }
    tokio::spawn(async move {
        tokio::time::sleep(lasts).await;
        let until = Some(typing.until_ms);
        let stop = SetTyping { until_ms: 0, only_if_until: until, ..typing };
        // A user who has left meanwhile has stopped typing already.
        match engine.propose(Origin::server(), stop).await {
            Ok(stopped) => stopped.into_inner(),
            Err(error) => tracing::debug!(%error, "typing was not ended"),
        }
    });
}
