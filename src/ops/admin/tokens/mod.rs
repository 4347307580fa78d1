//! Acts on registration tokens. Only a hash of a token is stored.

mod create;
mod delete;
mod list;
mod named;
mod update;

pub(crate) use create::{CreateRegistrationToken, TokenCreated};
pub(crate) use delete::{DeleteRegistrationToken, TokenDeleted};
pub(crate) use list::{ListRegistrationTokens, list};
pub(crate) use named::{TokenSummary, named, summary_of};
pub(crate) use update::{TokenUpdated, UpdateRegistrationToken};
