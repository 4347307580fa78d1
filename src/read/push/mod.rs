//! Push rules: which events notify a user, and how many of them are unread (client-server API,
//! "Push notifications", "Receiving notifications").
//!
//! Nothing of this is written when an event is sent. [`Judge`] answers for one event under the
//! rules of its moment, and [`Unread`] counts, for the one who asks, what came since they read.

mod judge;
mod levels;
mod rules;
pub mod ruleset;
mod subject;
pub(crate) mod unread;

pub use crate::base::glob::{Extent, Glob, PART_CHARS, Steps, Text};
pub use judge::{Ignored, Judge, ignored};
pub use levels::Levels;
pub use rules::{Circumstances, Judgement, Moment, Outcome, Rules};
pub use subject::Subject;
pub use unread::{Count, Counts, CountsError, Unread, UnreadEvent};
