//! `m.presence` (server-server API, "Presence").

use std::collections::BTreeMap;

use ruma::{OwnedUserId, ServerName, UInt};
use serde::Deserialize;
use serde_json::value::RawValue;
use tracing::debug;

use super::{EduError, content, read};
use crate::federation::PduReceiver;
use logcabin_base::{clock::millis, limits};
use logcabin_decide::presence::{ReceivePresence, is_seen_here};
use logcabin_engine as engine;
use logcabin_record::command::{PresenceSet, PresenceState};

#[derive(Deserialize)]
struct Content {
    /// Each is read by itself.
    push: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Update {
    user_id: OwnedUserId,
    presence: String,
    #[serde(default)]
    status_msg: Option<String>,
    #[serde(default)]
    last_active_ago: Option<UInt>,
    #[serde(default)]
    currently_active: bool,
}

impl PduReceiver<'_> {
    /// Handles all presence of a transaction of `origin`: only the newest of each user counts.
    ///
    /// # Errors
    /// When nothing can be recorded now: the homeserver is to retry.
    pub async fn take_presences<'e>(
        &self,
        origin: &ServerName,
        edus: impl Iterator<Item = &'e RawValue>,
    ) -> Result<(), engine::ProposeError> {
        if !self.federation.has_presence {
            return Ok(());
        }
        let mut newest = BTreeMap::new();
        for raw in edus {
            let pushed = read(raw).and_then(|edu| content::<Content>(edu.content));
            let pushed = pushed.map(|Content { push }| push).unwrap_or_else(|error| {
                debug!(%origin, %error, "presence is dropped");
                Vec::new()
            });
            for update in pushed {
                match content::<Update>(&update) {
                    Ok(of) => drop(newest.insert(of.user_id.clone(), of)),
                    Err(error) => debug!(%origin, %error, "a user's presence is dropped"),
                }
            }
        }
        let mut received = Vec::new();
        for update in newest.into_values().take(limits::PRESENCE_UPDATES) {
            match self.presence(origin, update) {
                Ok(said) => received.extend(said),
                Err(EduError::TooMany) => break,
                Err(error) => debug!(%origin, %error, "a user's presence is dropped"),
            }
        }
        match self.propose_all(received).await {
            Err(EduError::NotRecorded(error)) if error.is_for_now() => Err(error),
            _ => Ok(()),
        }
    }

    fn presence(
        &self,
        origin: &ServerName,
        update: Update,
    ) -> Result<Option<ReceivePresence>, EduError> {
        let Update { user_id, presence, status_msg, last_active_ago, currently_active } = update;
        if user_id.server_name() != origin {
            return Err(EduError::NotTheirs);
        }
        let presence = match &*presence {
            "online" => PresenceState::Online,
            "unavailable" => PresenceState::Unavailable,
            "offline" => PresenceState::Offline,
            // No client here knows that state.
            _ => return Ok(None),
        };
        let fits = |text: &String| (1..=limits::STATUS_MSG_BYTES).contains(&text.len());
        let state = self.engine.state();
        if !is_seen_here(&state, &self.engine.env().server.name, &user_id) {
            return Err(EduError::NotHere);
        }
        let now_ms = self.engine.clock().now_ms();
        let said = PresenceSet {
            user_id,
            presence,
            status_msg: status_msg.filter(fits),
            currently_active: currently_active && presence == PresenceState::Online,
            last_active_ms: last_active_ago.map_or(0, |ago| now_ms.saturating_sub(ago.into())),
        };
        let before = state.presence.get(&said.user_id).unwrap_or_default();
        let shows = before.shows_as(&said);
        // Repeated presence is recorded now and then, so that it does not expire.
        let again = shows && presence != PresenceState::Offline && {
            let record = self.engine.log().read(before.offset, 1)?.into_iter().next();
            let heard_ms = record.map_or(0, |record| record.header.time_ms);
            now_ms.saturating_sub(heard_ms) >= millis(limits::REMOTE_PRESENCE.0)
        };
        if shows && !again {
            return Ok(None);
        }
        self.admit_edu(&said.user_id)?;
        Ok(Some(ReceivePresence { said, again }))
    }
}
