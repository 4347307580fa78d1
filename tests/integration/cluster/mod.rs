//! Several nodes that share one log, on NATS servers that nobody here wrote.

mod faults;
mod fleet;
mod moves;
