//! Acts on users.

mod changed;
mod create;
mod deactivate;
mod erase;
mod import;
mod list;
mod log_in_as;
mod log_out;
mod rename_device;
mod reset_password;
pub(crate) mod search;
mod set_profile;
mod set_status;
mod show;
mod summary;

pub(crate) use changed::Changed;
pub(crate) use create::{CreateUser, Created};
pub(crate) use deactivate::{Deactivate, Deactivated};
pub(crate) use erase::{EraseUser, UserErased};
pub(crate) use import::ImportUser;
pub(crate) use list::{Filter, ListUsers, Users};
pub(crate) use log_in_as::{LogInAs, LoggedInAs};
pub(crate) use log_out::{LogOut, LoggedOut};
pub(crate) use rename_device::RenameDevice;
pub(crate) use reset_password::ResetPassword;
pub(crate) use set_profile::SetProfile;
pub(crate) use set_status::SetStatus;
pub(crate) use show::{ExternalId, ShowUser, UserDetails, UserDevice, details};
pub(crate) use summary::UserSummary;
