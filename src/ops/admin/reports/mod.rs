//! Acts on what users have reported.

mod decided;
mod inbox;
mod list;
mod remove;
mod remove_several;
mod show;
mod summary;

pub use decided::{
    DecidedReport, EarlierReport, ReportDecision, decided_page, decision_on, earlier,
};
pub use inbox::{InboxQuery, ReportGroup, ReportKind, inbox, next_line, of_same_line};
pub use list::{ListReports, Reports, about, about_room, involving, list};
pub use remove::{RemoveReport, ReportRemoved};
pub use remove_several::{RemoveReports, ReportsRemoved};
pub use show::{ReportDetails, ShowReport, details};
pub use summary::ReportSummary;
