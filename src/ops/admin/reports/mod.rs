//! Acts on what users have reported.

mod list;
mod remove;
mod show;
mod summary;

pub(crate) use list::{ListReports, Reports, list, page};
pub(crate) use remove::{RemoveReport, ReportRemoved};
pub(crate) use show::{ReportDetails, ShowReport, details};
pub(crate) use summary::ReportSummary;
