//! What clients reach: HTTP, and the endpoints.

pub(crate) mod api;
pub(crate) mod http;
