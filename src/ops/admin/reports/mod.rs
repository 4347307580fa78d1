//! Acts on what users have reported.

mod list;
mod remove;
mod remove_several;
mod show;
mod summary;

pub use list::{ListReports, Reports, about, list, page, related};
pub use remove::{RemoveReport, ReportRemoved};
pub use remove_several::{RemoveReports, ReportsRemoved};
pub use show::{ReportDetails, ShowReport, details};
pub use summary::ReportSummary;
