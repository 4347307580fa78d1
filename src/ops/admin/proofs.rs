//! Prove something about the log to others.

use serde::{Deserialize, Serialize};

use super::{
    act::{Act, Attribution},
    office::{ActError, Office},
};
use crate::ops::proof;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Prove(pub(crate) proof::Asked);

impl Act for Prove {
    const NAME: &'static str = "prove";
    const DONE: &'static str = "proof";
    type Done = Box<proof::Proof>;

    async fn perform(self, office: &Office, by: Attribution) -> Result<Self::Done, ActError> {
        Ok(Box::new(proof::make(&office.engine, by.origin, self.0).await?))
    }
}
