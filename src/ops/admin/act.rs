//! What an act of administration is, and how an order for one is carried out.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    context::{ActContext, ActError},
    form::Form,
};
use logcabin_decide::{Proposal, moderation::WithReason};
use logcabin_engine::ProposeError;
use logcabin_record::Origin;

/// The longest reason, in bytes: a paragraph.
const REASON_BYTES: usize = 2048;

/// Something that an operator can order. Its fields name users by their ids or by the part before
/// the colon, and rooms by their ids or aliases.
pub trait Act: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Its name on the admin socket.
    const NAME: &'static str;

    /// The name of its result in JSON output.
    const DONE: &'static str;

    /// Its result: an object in JSON.
    type Done: Serialize + DeserializeOwned + Send + 'static;

    /// Whether it must not rely on stored snapshots of the projections.
    const REPLAYS: bool = false;

    /// The form by which people order it; none if only programs do.
    const FORM: Option<&'static Form> = None;

    fn perform(
        self,
        context: &ActContext,
        by: Attribution,
    ) -> impl Future<Output = Result<Self::Done, ActError>> + Send;

    /// Describes what [`Act::perform`] would do, in sentences. Fails as it would, as far as that is
    /// known beforehand.
    fn effect(&self, _: &ActContext) -> impl Future<Output = Result<Vec<String>, ActError>> + Send {
        async { Err(ActError::Invalid("This changes nothing that is recorded.".to_owned())) }
    }
}

/// An act, the reason for it, and whether to only describe what it would do.
#[derive(Clone, Debug)]
pub struct Order<A> {
    pub act: A,
    pub reason: Option<String>,
    pub dry_run: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome<D> {
    Done(D),
    /// Nothing was done: the sentences describe what would have been.
    WouldDo(Vec<String>),
}

/// Who orders an act, and why.
#[derive(Clone, Debug)]
pub struct Attribution {
    pub(crate) origin: Origin,
    pub(crate) reason: Option<String>,
}

impl<A> From<A> for Order<A> {
    fn from(act: A) -> Self {
        Self { act, reason: None, dry_run: false }
    }
}

impl<A: Act> Order<A> {
    pub async fn carry_out(
        self,
        context: &ActContext,
        origin: Origin,
    ) -> Result<Outcome<A::Done>, ActError> {
        let Self { act, reason, dry_run } = self;
        let reason = checked(reason)?;
        if dry_run {
            return act.effect(context).await.map(Outcome::WouldDo);
        }
        // Some acts are large futures, and callers hold several.
        Box::pin(act.perform(context, Attribution { origin, reason })).await.map(Outcome::Done)
    }
}

fn checked(reason: Option<String>) -> Result<Option<String>, ActError> {
    match reason {
        Some(reason) if reason.len() > REASON_BYTES => {
            Err(ActError::Invalid(format!("A reason has at most {REASON_BYTES} bytes.")))
        }
        reason => Ok(reason.filter(|reason| !reason.trim().is_empty())),
    }
}

impl ActContext {
    /// Proposes, and records the reason with what changes.
    pub(super) async fn propose<P: Proposal>(
        &self,
        by: Attribution,
        of: P,
    ) -> Result<P::Outcome, ProposeError> {
        let Attribution { origin, reason } = by;
        Ok(self.engine.propose(origin, WithReason { of, reason }).await?.into_inner())
    }
}
