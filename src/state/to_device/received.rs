//! Which messages other homeservers have sent lately, so that each of them is taken once although
//! it may come again after a failure of either side.

use std::collections::{BTreeMap, VecDeque};

use ruma::{OwnedServerName, UserId};
use serde::{Deserialize, Serialize};

use crate::index::hash;
use logcabin_base::limits;
use logcabin_record::Offset;

/// The ids of the newest messages of each homeserver.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Received {
    servers: BTreeMap<OwnedServerName, Ids>,
    /// The homeservers by the last message of each.
    by_last: BTreeMap<Offset, OwnedServerName>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Ids {
    /// Hashes of sender and id, oldest first.
    newest: VecDeque<u64>,
    /// The record of the last message.
    last: Offset,
}

impl Received {
    pub(super) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    pub(super) fn has(&self, sender: &UserId, message_id: &str) -> bool {
        let ids = self.servers.get(sender.server_name());
        ids.is_some_and(|ids| ids.newest.contains(&hash(&[sender.as_str(), message_id])))
    }

    pub(super) fn note(&mut self, offset: Offset, sender: &UserId, message_id: &str) {
        let (servers, ids_each) = limits::RECEIVED_IDS;
        let id = hash(&[sender.as_str(), message_id]);
        let server = sender.server_name();
        let ids = self.servers.entry(server.to_owned()).or_default();
        // A message may be in several records.
        if ids.newest.back() != Some(&id) {
            ids.newest.push_back(id);
        }
        if ids.newest.len() > ids_each {
            ids.newest.pop_front();
        }
        self.by_last.remove(&std::mem::replace(&mut ids.last, offset));
        self.by_last.insert(offset, server.to_owned());
        if self.servers.len() > servers
            && let Some((_, longest_silent)) = self.by_last.pop_first()
        {
            self.servers.remove(&longest_silent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_ids_of_the_latest_homeservers_are_kept() {
        let mut received = Received::default();
        let user = |name: &str| UserId::parse(name).expect("a user");
        let (pia, sam) = (user("@pia:peer.test"), user("@sam:other.test"));
        let (servers, each) = limits::RECEIVED_IDS;
        received.note(Offset::new(1), &sam, "s");
        for number in 0..=each {
            received.note(Offset::new(2 + number as u64), &pia, &number.to_string());
        }
        assert!(!received.has(&pia, "0") && received.has(&pia, "1"));
        assert!(received.has(&pia, &each.to_string()) && !received.has(&sam, "1"));
        assert!(received.has(&sam, "s"));
        let after = 3 + each as u64;
        for number in 0..servers as u64 - 1 {
            received.note(Offset::new(after + number), &user(&format!("@a:s{number}")), "a");
        }
        assert!(!received.has(&sam, "s"), "the one that was silent longest");
        assert!(received.has(&pia, "1") && received.servers.len() == servers);
        assert_eq!(received.by_last.len(), servers);
    }
}
