//! Operations on accounts that take more than one proposal, or a request to another service.
//! Endpoints and administration share them.

pub(crate) mod closing;
pub(crate) mod identity;
pub(crate) mod login_token;
pub(crate) mod names;
pub(crate) mod profile;
pub(crate) mod token;
