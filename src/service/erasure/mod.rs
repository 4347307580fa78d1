//! Erasures: sweeps erase what has expired or is owed to erased users; purges remove a whole room,
//! or its history.

mod due;
pub mod history;
pub mod purge;
mod sweep;

pub use due::SweepError;
pub use due::{last_until, pictures};
pub use sweep::{Swept, sweep, sweep_is_due};

pub use logcabin_decide::retention::SweepPolicy;

#[cfg(test)]
mod tests;
