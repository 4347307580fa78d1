//! Acts on registration tokens. Only a hash of a token is stored.

mod create;
mod delete;
mod list;
mod named;
mod update;

pub use create::{CreateRegistrationToken, TokenCreated};
pub use delete::{DeleteRegistrationToken, TokenDeleted};
pub use list::{ListRegistrationTokens, list};
pub use named::{TokenSummary, named, summary_of};
pub use update::{TokenUpdated, UpdateRegistrationToken};
