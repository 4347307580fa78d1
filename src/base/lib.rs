//! The foundation of all other folders, without knowledge of them: time, limits, text, files,
//! secrets.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

pub mod arrival;
pub mod background;
pub mod bodies;
pub mod canonical;
pub mod certificates;
pub mod clock;
pub mod counted;
pub mod descriptors;
pub mod disk;
pub mod fair_queue;
pub mod glob;
pub mod json_error;
pub mod keyed_semaphore;
pub mod lifetime;
pub mod limits;
pub mod long_work;
pub mod metrics;
pub mod net;
pub mod network;
pub mod owner;
pub mod planted;
pub mod progress;
pub mod proxy_protocol;
pub mod rate;
pub mod secret_text;
pub mod shutdown;
pub mod signed;
pub mod tag;
pub mod text;
pub mod threads;
pub mod timers;
pub mod token_key;
pub mod traces;
pub mod work;
