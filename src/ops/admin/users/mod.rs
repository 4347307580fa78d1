//! Acts on users.

mod approval;
mod change_member;
mod changed;
mod clean_up;
mod counts;
mod create;
mod create_device;
mod deactivate;
mod elsewhere;
mod erase;
mod import;
mod list;
mod log_in_as;
mod log_out;
mod permit_reset;
mod redact;
mod reject_invites;
mod rename_device;
mod reset_password;
pub mod search;
mod set_profile;
mod set_status;
mod show;
mod summary;

pub use approval::{
    ApproveUsers, Decided, ListWaiting, RefuseUsers, Waiting, WaitingUser, waiting,
};
pub use change_member::{ChangeMember, ChangeOf, MemberChanged};
pub use changed::Changed;
pub use clean_up::{AccountStep, CleanUp, CleanedUp};
pub use counts::{rooms_joined, sent_invites};
pub use create::{CreateUser, Created};
pub use create_device::CreateDevice;
pub use deactivate::{Deactivate, Deactivated};
pub use elsewhere::rooms_elsewhere;
pub use erase::{EraseUser, UserErased};
pub use import::ImportUser;
pub use list::{Filter, ListUsers, Users};
pub use log_in_as::{LogInAs, LoggedInAs};
pub use log_out::{LogOut, LoggedOut};
pub use permit_reset::{PermitReset, ResetPermitted};
pub use redact::{RedactUser, RedactionStatus, redaction_status};
pub use reject_invites::{InvitesRejected, RejectInvites};
pub use rename_device::RenameDevice;
pub use reset_password::ResetPassword;
pub use set_profile::SetProfile;
pub use set_status::SetStatus;
pub use show::{ExternalId, ShowUser, UserDetails, UserDevice, details};
pub use summary::UserSummary;
