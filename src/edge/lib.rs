//! What clients reach: HTTP, and the endpoints.

pub mod api;
pub mod http;
