//! Prove something about the log to others.

use serde::{Deserialize, Serialize};

use super::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use crate::proof;
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::merkle_tree::CheckpointRange;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Prove(pub proof::ProofRequest);

impl Act for Prove {
    const NAME: &'static str = "prove";
    const DONE: &'static str = "proof";
    type Done = Box<proof::Proof>;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Prove that a record is in the log",
        fields: &[
            Field::new("inclusion/offset", "Record", Kind::Number),
            Field::new("inclusion/payload", "With its payload", Kind::Flag),
        ],
        is_final: false,
        foretells: false,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Self::Done, ActError> {
        Ok(Box::new(proof::make(&context.engine, by.origin, self.0).await?))
    }
}

/// List the checkpoints that proofs rest on, newest first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListCheckpoints {
    /// Only those before this record.
    #[serde(default)]
    pub before: Option<Offset>,
    pub limit: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// The server's public key, which verifies them; none before the server has one.
    pub key: Option<Key>,
    pub checkpoints: Vec<CheckpointRow>,
    /// How many there are in all.
    pub total: usize,
    /// The last record of the log.
    pub end: Offset,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    pub key_id: String,
    /// In unpadded base64.
    pub public_key: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRow {
    pub record: Offset,
    /// The last record that it covers.
    pub upto: Offset,
    /// When it was signed, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// Who ordered it.
    pub who: String,
}

impl Act for ListCheckpoints {
    const NAME: &'static str = "list-checkpoints";
    const DONE: &'static str = "checkpoints";
    type Done = Checkpoints;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Checkpoints, ActError> {
        Ok(checkpoints(context, self.before.unwrap_or(Offset::MAX), self.limit)?)
    }
}

/// Up to `limit` of the newest checkpoints before a record.
pub fn checkpoints(
    context: &ActContext,
    before: Offset,
    limit: usize,
) -> Result<Checkpoints, ReadError> {
    let state = context.engine.state();
    let (found, total) = state.tree.checkpoints(before, limit);
    let row = |CheckpointRange { record, upto }| {
        let (time_ms, who) = (context.time_of(record)?, context.author_of(record)?);
        Ok(CheckpointRow { record, upto, time_ms, who })
    };
    let key = state.server().map(|server| Key {
        key_id: server.key_id.to_string(),
        public_key: server.public_key.clone(),
    });
    let checkpoints = found.into_iter().map(row).collect::<Result<_, ReadError>>()?;
    Ok(Checkpoints { key, checkpoints, total, end: state.applied() })
}
