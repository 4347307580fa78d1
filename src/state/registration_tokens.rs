//! Registration tokens, which allow people to register.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::command::{RegistrationTokenSet, TokenHash};

/// A registration token. The token itself is not stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrationToken {
    /// Its label for administrators.
    pub label: Option<String>,
    /// How many accounts can be created with it; `None`: any number.
    pub uses_allowed: Option<u64>,
    /// How many were created.
    pub uses: u64,
    /// When it expires, in milliseconds since the Unix epoch; `None`: never.
    pub expires_ms: Option<u64>,
}

impl RegistrationToken {
    /// Whether another account can be created with it.
    pub fn is_good(&self, now_ms: u64) -> bool {
        self.uses_allowed.is_none_or(|allowed| self.uses < allowed)
            && self.expires_ms.is_none_or(|expires| now_ms < expires)
    }
}

/// All registration tokens.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct RegistrationTokens(
    #[serde(with = "serializers::locked")] RwLock<BTreeMap<TokenHash, RegistrationToken>>,
);

impl RegistrationTokens {
    /// The limits and uses of this token.
    pub fn get(&self, token: &TokenHash) -> Option<RegistrationToken> {
        self.0.read().get(token).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<(TokenHash, RegistrationToken)> {
        self.0.read().iter().map(|(hash, token)| (*hash, token.clone())).collect()
    }

    pub(super) fn set(&self, body: RegistrationTokenSet) {
        let RegistrationTokenSet { registration_token, label, uses_allowed, expires_ms, used } =
            body;
        let mut tokens = self.0.write();
        let before = tokens.get(&registration_token).map_or(0, |before| before.uses);
        let uses = used.unwrap_or(before);
        let token = RegistrationToken { label, uses_allowed, uses, expires_ms };
        tokens.insert(registration_token, token);
    }

    pub(super) fn remove(&self, token: &TokenHash) {
        self.0.write().remove(token);
    }

    pub(super) fn count_use(&self, token: Option<&TokenHash>) {
        let mut tokens = self.0.write();
        if let Some(token) = token.and_then(|token| tokens.get_mut(token)) {
            token.uses = token.uses.saturating_add(1);
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        let tokens = self.0.read();
        digest.add(&tokens.iter().collect::<Vec<_>>());
    }
}
