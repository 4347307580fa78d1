//! Accounts, where it takes more than one proposal or a question to somebody outside: what
//! endpoints and those who administer the server have in common.

pub(crate) mod closing;
pub(crate) mod identity;
pub(crate) mod names;
pub(crate) mod profile;
pub(crate) mod token;
