//! Several nodes that share one log, on NATS servers that nobody here wrote.

mod console;
mod exclusive;
mod faults;
pub(crate) mod fleet;
mod moves;
