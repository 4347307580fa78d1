//! One record in the history of a value.

use serde::Serialize;
use serde_json::Value;

use super::resolution::Resolution;
use logcabin_record::Offset;

/// A record about the value.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    pub offset: Offset,
    /// When it happened: for an imported record, at its source.
    pub time: String,
    pub kind: String,
    /// Who did it.
    pub who: String,
    /// What happened, as text.
    pub text: String,
    /// The user who made the request, if any.
    pub user: String,
    /// The device the request came from, if any.
    pub device: String,
    /// The request's id, if any.
    pub request: String,
    /// The value before; none if there was none, or if it was erased.
    pub before: Option<Value>,
    /// The value afterwards. Secrets are masked.
    pub after: Option<Value>,
    /// What state resolution decided about it, where branches of a room's history met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolution: Option<Resolution>,
    /// The room in which branches met with different events for the value, if they did.
    #[serde(skip)]
    pub(super) disputed: Option<String>,
}
