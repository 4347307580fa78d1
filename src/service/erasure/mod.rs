//! What is taken away for ever: by a sweep, what is due by the rules of retention or owed to users
//! who were erased; by a purge, a room with everything in it.

mod due;
pub mod purge;
mod sweep;

pub use due::SweepError;
pub(crate) use due::pictures;
pub use sweep::{Swept, sweep, sweep_is_due};

pub use crate::decide::retention::SweepPolicy;

#[cfg(test)]
mod tests;
