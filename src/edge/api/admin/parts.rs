//! What the endpoints of administration have in common: parameters, how an act is carried out, and
//! what its refusals are told as.

use std::sync::Arc;

use http::StatusCode;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, ErrorCode, Json, Received, query_parameter, read_body},
};
use logcabin_ops::{
    admin::{
        act::{Act, Order, Outcome},
        context::ActError,
    },
    proof::ProofError,
};

/// The default number of items on a page.
const PAGE: usize = 100;

/// The most items on a page.
const LARGEST_PAGE: usize = 1000;

/// The common parameters of an act.
pub(super) struct ActParameters {
    /// The recorded reason.
    pub(super) reason: Option<String>,
    /// Whether to report the effect without changing anything.
    pub(super) dry_run: bool,
}

/// A page of a list.
pub(super) struct PageOf {
    pub(super) from: usize,
    pub(super) limit: usize,
}

/// The parts of requests that are common in administration, for [`endpoint!`].
pub(super) trait AdminParts {
    /// From `reason` in the query or the body, and `dry_run` in the query.
    fn terms(&mut self, name: &str) -> Result<ActParameters, ApiError>;
    /// From `from` and `limit` in the query.
    fn page(&mut self, name: &str) -> Result<PageOf, ApiError>;
    /// A boolean query parameter.
    fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError>;
    /// A number of the query.
    fn number(&mut self, name: &str) -> Result<Option<u64>, ApiError>;
    /// Whether a list is to be in reverse order; `None` if the query does not say.
    fn backwards(&mut self, name: &str) -> Result<Option<bool>, ApiError>;
}

impl AdminParts for Received<'_> {
    fn terms(&mut self, _: &str) -> Result<ActParameters, ApiError> {
        #[derive(Deserialize)]
        struct InBody {
            reason: Option<String>,
        }
        let reason = match query_parameter(self.uri, "reason")? {
            Some(reason) => Some(reason),
            None => read_body::<InBody>(self.body)?.reason,
        };
        Ok(ActParameters { reason, dry_run: self.flag("dry_run")?.unwrap_or(false) })
    }

    fn page(&mut self, _: &str) -> Result<PageOf, ApiError> {
        let index = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let limit = self.number("limit")?.map_or(PAGE, index);
        let from = self.number("from")?.map_or(0, index);
        Ok(PageOf { from, limit: limit.min(LARGEST_PAGE) })
    }

    fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        // Some tools in Python write booleans as Python does.
        match query_parameter(self.uri, name)?.map(|text| text.to_ascii_lowercase()).as_deref() {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(ApiError::invalid_param(format!("`{name}` is true or false."))),
        }
    }

    fn number(&mut self, name: &str) -> Result<Option<u64>, ApiError> {
        let number = query_parameter(self.uri, name)?.map(|text| text.parse());
        number.transpose().map_err(|_| ApiError::invalid_param(format!("`{name}` is a number.")))
    }

    fn backwards(&mut self, _: &str) -> Result<Option<bool>, ApiError> {
        match query_parameter(self.uri, "dir")?.as_deref() {
            None => Ok(None),
            Some("f") => Ok(Some(false)),
            Some("b") => Ok(Some(true)),
            Some(_) => Err(ApiError::invalid_param("`dir` is `f` or `b`.")),
        }
    }
}

/// A member of a body for which missing and null differ.
#[allow(clippy::unnecessary_wraps, reason = "serde's form of it")]
#[allow(clippy::option_option, reason = "missing, null, and a value")]
pub(super) fn nullable<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(deserializer).map(Some)
}

impl ActParameters {
    pub(super) fn order<A>(&self, act: A) -> Order<A> {
        Order { act, reason: self.reason.clone(), dry_run: self.dry_run }
    }
}

impl Cx<Server> {
    /// Runs `work` in its own task, so that it is completed even if the caller hangs up.
    pub(super) async fn complete<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ActError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        tokio::spawn(work).await.map_err(ApiError::internal)?.map_err(ApiError::from)
    }

    /// Carries out an act in the caller's name, and formats the response with `shape`; in a dry
    /// run, describes what would be done.
    pub(super) async fn act<A: Act>(
        &self,
        act: A,
        terms: ActParameters,
        shape: impl FnOnce(A::Done) -> Value,
    ) -> Result<Json, ApiError> {
        let (context, origin, order) =
            (Arc::clone(&self.app.context), self.origin(), terms.order(act));
        match self.complete(async move { order.carry_out(&context, origin).await }).await? {
            Outcome::WouldDo(effect) => to_json(&would_do(effect)),
            Outcome::Done(done) => to_json(&shape(done)),
        }
    }
}

/// What is told of a dry run.
pub(super) fn would_do(effect: Vec<String>) -> Value {
    json!({ "dry_run": true, "effect": effect })
}

/// For acts with an empty response.
pub(super) fn nothing<D>(_: D) -> Value {
    json!({})
}

/// A page of a complete list, and the start of the next one.
pub(super) fn page_of<T>(all: Vec<T>, PageOf { from, limit }: PageOf) -> (Vec<T>, Option<usize>) {
    let next = from.saturating_add(limit);
    let more = next < all.len();
    (all.into_iter().skip(from).take(limit).collect(), more.then_some(next))
}

impl From<ActError> for ApiError {
    fn from(error: ActError) -> Self {
        let text = error.to_string();
        match error {
            ActError::NoUser(_)
            | ActError::NoRoom(_)
            | ActError::NoMedia(_)
            | ActError::NoDestination(_)
            | ActError::NoReport(_)
            | ActError::NoCrossSigning(_)
            | ActError::NoToken => Self::not_found(text),
            ActError::Taken(_) => Self::new(ErrorCode::UserInUse, text),
            ActError::Deactivated(_) => {
                Self::new(ErrorCode::UserDeactivated, text).with_status(StatusCode::BAD_REQUEST)
            }
            ActError::Invalid(_) => Self::invalid_param(text),
            ActError::Unfit(error) => error.into(),
            ActError::Propose(error) => error.into(),
            ActError::Read(error) => error.into(),
            ActError::Proof(error) => match error {
                ProofError::NoRecord { .. } | ProofError::NoCheckpoint(_) => Self::not_found(text),
                ProofError::Propose(error) => error.into(),
                ProofError::Read(error) => error.into(),
                ProofError::Record { .. } | ProofError::NoServer => Self::internal(text),
                ProofError::Secret(_)
                | ProofError::Order { .. }
                | ProofError::Diverged { .. }
                | ProofError::Checkpoint(_) => Self::invalid_param(text),
            },
            other => Self::internal(other.to_string()),
        }
    }
}
