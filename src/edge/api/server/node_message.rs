//! What the nodes of a cluster tell each other.

use std::{net::IpAddr, sync::Arc};

use bytes::Bytes;
use ruma::{DeviceId, OwnedDeviceId, OwnedServerName, OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::Server;
use logcabin_record::{
    Offset, Stream,
    command::{PresenceState, Sighting},
};
use logcabin_service::{federation::Amounts, passwords::Guess};

/// What nodes tell each other, so that limits hold for all of them together.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NodeMessage {
    /// A wrong password.
    Guess { name: String, client: IpAddr },
    /// A message that was sent to an address.
    Notice { client: IpAddr },
    /// The activity of a device, for the node that follows its user's presence.
    Presence { node: u16, user_id: OwnedUserId, device_id: OwnedDeviceId, activity: Activity },
    /// When and from where a device was used.
    Seen { session: Offset, sighting: Sighting },
    /// A homeserver can be reached again, for the node that tells it of events.
    Back { server: OwnedServerName },
    /// What another homeserver has had this one take.
    Spent { server: OwnedServerName, amounts: Amounts },
}

/// What a device does that others may see.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Activity {
    /// It begins a sync that sets this presence.
    Begins(PresenceState),
    /// Such a sync has ended.
    Ends,
    /// Its user has done something.
    Acts,
}

impl NodeMessage {
    /// The message for other nodes.
    fn message(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// No user has a longer name.
const TOLD_NAME_BYTES: usize = 255;

impl Server {
    /// Takes in what another node tells.
    pub(in crate::api) fn told(&self, message: &[u8]) {
        match serde_json::from_slice(message) {
            Ok(NodeMessage::Guess { name, client }) => {
                self.auth.passwords.wrong_elsewhere(Guess { name: &name, client });
            }
            Ok(NodeMessage::Notice { client }) => self.notices.counted_elsewhere(client),
            Ok(NodeMessage::Presence { node, user_id, device_id, activity }) => {
                self.follow_presence(node, &user_id, &device_id, activity);
            }
            Ok(NodeMessage::Seen { session, sighting }) => {
                self.last_seen.seen_elsewhere(session, sighting)
            }
            Ok(NodeMessage::Back { server }) => {
                if let Some(federation) = &self.outside.federation {
                    federation.sender.is_back_elsewhere(&server);
                }
            }
            Ok(NodeMessage::Spent { server, amounts }) => {
                if let Some(federation) = &self.outside.federation {
                    federation.accounts.note(&server, &amounts);
                }
            }
            Err(error) => tracing::debug!(%error, "another node told something unknown"),
        }
    }

    /// Tells the other nodes something, if there are any.
    pub(crate) fn tell_others(&self, told: &NodeMessage) {
        if let Some(cluster) = &self.cluster {
            cluster.tell(told.message());
        }
    }

    /// Notes what a device does, or tells the node that follows its user's presence.
    pub(crate) fn note_presence(&self, user_id: &UserId, device_id: &DeviceId, what: Activity) {
        let standing = self.engine.state().accounts.standing(user_id);
        let is_hidden = standing.is_some_and(|standing| standing.shadow_banned);
        if is_hidden && !matches!(what, Activity::Ends) {
            return;
        }
        let Some(cluster) = &self.cluster else {
            return self.follow_presence(0, user_id, device_id, what);
        };
        if !self.presence.is_enabled() {
            return;
        }
        let node = cluster.tag();
        let Some(to) = cluster.preferred(Stream::presence(user_id).as_str()) else {
            return self.follow_presence(node, user_id, device_id, what);
        };
        let (user_id, device_id) = (user_id.to_owned(), device_id.to_owned());
        let told = NodeMessage::Presence { node, user_id, device_id, activity: what };
        cluster.tell_one(to, told.message());
    }

    fn follow_presence(&self, node: u16, user_id: &UserId, device_id: &DeviceId, what: Activity) {
        let now_ms = self.engine.clock().now_ms();
        match what {
            Activity::Begins(said) => {
                self.presence.sync_begins(user_id, device_id, node, said, now_ms);
            }
            Activity::Ends => self.presence.sync_ends(user_id, device_id, node, now_ms),
            Activity::Acts => self.presence.active(user_id, device_id, now_ms),
        }
    }

    /// From now on, tells the other nodes of wrong passwords.
    pub fn tell_of_guesses(&self) {
        let Some(cluster) = self.cluster.clone() else { return };
        self.auth.passwords.on_wrong(move |Guess { name, client }| {
            if name.len() <= TOLD_NAME_BYTES {
                let told = NodeMessage::Guess { name: name.to_owned(), client };
                cluster.tell(told.message());
            }
        });
    }

    /// From now on, tells the other nodes which homeservers can be reached again, and what they had
    /// this node take.
    pub fn tell_of_homeservers(&self) {
        let (Some(cluster), Some(federation)) = (self.cluster.clone(), &self.outside.federation)
        else {
            return;
        };
        let others = Arc::clone(&cluster);
        federation.sender.tell_others_with(move |server| {
            cluster.tell(NodeMessage::Back { server: server.to_owned() }.message());
        });
        federation.accounts.tell_others_with(move |server, amounts| {
            let told = NodeMessage::Spent { server: server.to_owned(), amounts: amounts.to_vec() };
            others.tell(told.message());
        });
    }
}
