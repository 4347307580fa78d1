//! The foundation of all other folders, without knowledge of them: time, limits, text, files,
//! secrets.

pub(crate) mod arrival;
pub(crate) mod background;
pub(crate) mod bodies;
pub(crate) mod canonical;
pub(crate) mod certificates;
pub mod clock;
pub(crate) mod disk;
pub mod glob;
pub(crate) mod json_error;
pub(crate) mod lifetime;
pub mod limits;
pub(crate) mod long_work;
pub(crate) mod metrics;
pub(crate) mod network;
pub(crate) mod places;
pub(crate) mod progress;
pub mod rate;
pub(crate) mod secret_text;
pub(crate) mod shutdown;
pub(crate) mod signed;
pub(crate) mod tag;
pub mod telemetry;
pub mod text;
pub(crate) mod timers;
pub(crate) mod token_key;
pub(crate) mod traces;
pub(crate) mod turns;
pub mod work;
