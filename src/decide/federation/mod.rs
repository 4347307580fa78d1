//! Data from other homeservers: their keys, and events of rooms.

mod address;
mod destination;
mod devices;
mod division;
mod enter;
mod fill;
mod keys;
mod noted;
mod outliers;
mod outside;
mod reached;
mod receive;
mod resolution;
pub mod resolution_v1;
mod resolve;
mod template;

pub use address::address_invite;
pub use destination::{ResetDestination, RetryDestination};
pub use devices::{DeviceListUpdate, NoteDevices};
pub use enter::{BeginRoom, EnterRoom, Entered, PlaceOutlier};
pub use fill::FillGap;
pub use keys::{LearnKeys, RotateKey};
pub use outliers::{OutlierOutcome, RecordOutliers};
pub use outside::RemoteMembership;
pub use reached::NoteReached;
pub use receive::{ReceiveOutcome, ReceivePdu, ReceivePduAtLength};
pub use template::{TemplateError, invitation, may_authorise, may_enter, template};
