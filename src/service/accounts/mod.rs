//! Operations on accounts that take more than one proposal, or a request to another service.
//! Endpoints and administration share them.

pub mod closing;
pub mod identity;
pub mod login_token;
pub mod names;
pub mod profile;
pub mod token;
