//! User-interactive authentication (client-server API, "User-Interactive Authentication API"): what
//! clients are told of it, the checks of its stages, and a page for each.

mod failure;
mod fallback;
pub(crate) mod stages;

pub(in crate::api) use self::fallback::done;
pub(in crate::api) use self::fallback::{BROWSER, answer_field, what_to_do};
pub(crate) use self::{
    failure::Failure,
    fallback::{page, submit},
    stages::{authenticate, confirm_identity, providers_of, ways_to_prove, ways_to_recover},
};
