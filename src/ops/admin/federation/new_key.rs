//! Replace the key that signs requests and events for other homeservers.

use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_decide::federation::RotateKey;
use logcabin_record::server_keys;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewKey {}

/// The server signs with a new key.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeyReplaced {
    pub key_id: String,
}

impl Act for NewKey {
    const NAME: &'static str = "new-federation-key";
    const DONE: &'static str = "replaced";
    type Done = KeyReplaced;

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<KeyReplaced, ActError> {
        let key = server_keys::new_key().map_err(ActError::invalid)?;
        let key_id = key.key_id.clone();
        context.engine.propose(by.origin, RotateKey(key)).await?.into_inner();
        Ok(KeyReplaced { key_id })
    }
}
