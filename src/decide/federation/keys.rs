//! The signing keys of other homeservers, and this one's own.

use std::collections::BTreeMap;

use crate::{Commit, Proposal, Refusal};
use logcabin_base::limits;
use logcabin_record::{
    Stream,
    command::{OldKey, PeerKeys, ServerKey},
};
use logcabin_state::federation_keys::HomeserverKeys;

/// Record the signing keys that another homeserver publishes. Its document was verified. Its old
/// keys need not include those that it no longer publishes.
#[derive(Clone, Debug)]
pub struct LearnKeys(pub PeerKeys);

impl LearnKeys {
    /// Its old keys, including those that it no longer publishes.
    fn all_old(&self, before: Option<&HomeserverKeys>) -> BTreeMap<String, OldKey> {
        let Self(published) = self;
        let mut all = published.old.clone();
        let Some(before) = before else { return all };
        let replaced = before
            .keys
            .iter()
            .map(|(id, key)| (id, OldKey { key: key.clone(), expired_ms: before.valid_until_ms }));
        let former = before.old.iter().map(|(id, key)| (id, key.clone()));
        for (id, key) in replaced.chain(former) {
            if all.len() >= limits::PEER_OLD_KEYS {
                break;
            }
            if !published.keys.contains_key(id) {
                all.entry(id.clone()).or_insert(key);
            }
        }
        all
    }
}

/// Sign for other homeservers with this key.
#[derive(Clone, Debug)]
pub struct RotateKey(pub ServerKey);

impl Proposal for RotateKey {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::server()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let peers = &commit.env.state.federation_keys;
        if peers.retired_keys().len() >= limits::PEER_OLD_KEYS {
            return Err(Refusal::BadState(
                "The server had as many keys as others keep.".to_owned(),
            ));
        }
        commit.append(self.stream(), self.0.clone());
        Ok(())
    }
}

impl Proposal for LearnKeys {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::peer(&self.0.server_name)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let peers = &commit.env.state.federation_keys;
        let before = peers.get(&self.0.server_name);
        if before.is_none() && peers.len() >= limits::PEERS {
            return Err(Refusal::BadState(
                "The keys of too many homeservers are known.".to_owned(),
            ));
        }
        let learned = PeerKeys { old: self.all_old(before.as_ref()), ..self.0.clone() };
        let is_known = before.is_some_and(|before| {
            before.keys == learned.keys
                && before.old == learned.old
                && before.valid_until_ms >= learned.valid_until_ms
        });
        if !is_known {
            commit.append(self.stream(), learned);
        }
        Ok(())
    }
}
