//! Erasures: sweeps erase what has expired or is owed to erased users; purges remove a whole room.

mod due;
pub mod purge;
mod sweep;

pub use due::SweepError;
pub(crate) use due::pictures;
pub use sweep::{Swept, sweep, sweep_is_due};

pub use crate::decide::retention::SweepPolicy;

#[cfg(test)]
mod tests;
