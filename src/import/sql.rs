//! Databases of other servers, and their tables as facts.

pub(crate) mod database;
pub(crate) mod plan;
pub(crate) mod postgresql;
pub(crate) mod schema;
pub(crate) mod sqlite;
pub(crate) mod uuid;
