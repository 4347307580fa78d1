//! What clients reach: HTTP, and the endpoints.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

pub mod api;
pub mod http;
