//! Push rules: which events notify a user, and how many of these are unread (client-server API,
//! "Push notifications", "Receiving notifications").
//!
//! Sending an event writes nothing for this. [`Judge`] evaluates one event under the rules at its
//! time, and [`Unread`] counts on demand what arrived since the user last read.

mod judge;
mod levels;
mod rules;
pub mod ruleset;
mod subject;
pub mod unread;

pub use judge::{Ignored, Judge, ignored};
pub use levels::Levels;
pub use logcabin_base::glob::{Extent, Glob, PART_CHARS, Steps, Text};
pub use rules::{Circumstances, EventContext, Judgement, Outcome, Rules};
pub use subject::Subject;
pub use unread::{Count, Counts, CountsError, Unread, UnreadEvent};
