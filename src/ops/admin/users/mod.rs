//! Acts on users.

mod changed;
mod create;
mod deactivate;
mod elsewhere;
mod erase;
mod import;
mod list;
mod log_in_as;
mod log_out;
mod redact;
mod rename_device;
mod reset_password;
pub mod search;
mod set_profile;
mod set_status;
mod show;
mod summary;

pub use changed::Changed;
pub use create::{CreateUser, Created};
pub use deactivate::{Deactivate, Deactivated};
pub use elsewhere::rooms_elsewhere;
pub use erase::{EraseUser, UserErased};
pub use import::ImportUser;
pub use list::{Filter, ListUsers, Users};
pub use log_in_as::{LogInAs, LoggedInAs};
pub use log_out::{LogOut, LoggedOut};
pub use redact::{RedactUser, RedactionStatus, redaction_status};
pub use rename_device::RenameDevice;
pub use reset_password::ResetPassword;
pub use set_profile::SetProfile;
pub use set_status::SetStatus;
pub use show::{ExternalId, ShowUser, UserDetails, UserDevice, details};
pub use summary::UserSummary;
