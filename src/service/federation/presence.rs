//! Expires the presence of users of other homeservers, which repeat it while it lasts.

use std::{collections::HashMap, sync::Arc};

use ruma::OwnedUserId;
use tokio::time::{MissedTickBehavior, interval};
use tracing::debug;

use logcabin_base::{clock::millis, limits, shutdown::Shutdown};
use logcabin_decide::{is_local, presence::ExpirePresence};
use logcabin_engine::Engine;
use logcabin_record::{Offset, Origin};

/// The users of other homeservers who are not offline, each with the record of their presence and
/// the time when it was first seen here. A restart restarts the timeout of each.
#[derive(Default)]
struct PresenceTimeouts(HashMap<OwnedUserId, (Offset, u64)>);

impl PresenceTimeouts {
    /// Of these users, those whose presence was not repeated in time.
    fn silent(&mut self, around: Vec<(OwnedUserId, Offset)>, now_ms: u64) -> Vec<ExpirePresence> {
        let before = std::mem::take(&mut self.0);
        let mut silent = Vec::new();
        for (user_id, heard) in around {
            let known = before.get(&user_id).filter(|(offset, _)| *offset == heard);
            let since_ms = known.map_or(now_ms, |(_, since_ms)| *since_ms);
            if now_ms.saturating_sub(since_ms) >= millis(limits::REMOTE_PRESENCE.1) {
                silent.push(ExpirePresence { user_id: user_id.clone(), heard });
            }
            self.0.insert(user_id, (heard, since_ms));
        }
        silent
    }
}

/// Expires the presence of users whose homeservers stopped repeating it, until the server stops.
pub async fn expire(engine: Arc<Engine>, shutdown: Shutdown) {
    let mut heard = PresenceTimeouts::default();
    let mut tick = interval(limits::PRESENCE_LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = shutdown.given() => return,
        }
        let presence = &engine.state().presence;
        let around = presence.around().into_iter();
        let around = around.filter(|user_id| !is_local(&engine.env().server, user_id));
        let around = around.filter_map(|user_id| {
            let offset = presence.get(&user_id)?.offset;
            Some((user_id, offset))
        });
        for silent in heard.silent(around.collect(), engine.clock().now_ms()) {
            match engine.propose(Origin::server(), silent).await {
                Ok(ended) => ended.into_inner(),
                Err(error) => debug!(%error, "presence was not ended"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presence_ends_when_nothing_is_heard_for_long_and_not_before() {
        let pia: OwnedUserId = "@pia:peer.example".try_into().unwrap();
        let mut heard = PresenceTimeouts::default();
        let mut silent = |offset, minute: u64| {
            let around = vec![(pia.clone(), Offset::new(offset))];
            let silent = heard.silent(around, minute * 60_000);
            silent.into_iter().map(|of| of.heard.get()).collect::<Vec<_>>()
        };
        assert!(silent(5, 0).is_empty());
        assert!(silent(5, 39).is_empty());
        // It was repeated.
        assert!(silent(9, 41).is_empty());
        assert!(silent(9, 80).is_empty());
        assert_eq!(silent(9, 81), [9]);
        assert!(silent(10, 82).is_empty());
        // Users who went offline are dropped.
        assert!(heard.silent(Vec::new(), 90 * 60_000).is_empty());
        assert!(heard.0.is_empty());
    }
}
