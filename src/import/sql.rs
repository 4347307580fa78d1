//! Databases of other servers, and their tables as facts.

pub(crate) mod access;
pub(crate) mod database;
pub(crate) mod plan;
pub(crate) mod postgresql;
pub(crate) mod schema;
#[cfg(test)]
pub(crate) mod server;
pub(crate) mod sqlite;
#[cfg(test)]
mod tests;
pub(crate) mod tls;
pub(crate) mod uuid;
