//! Which part of the reports' inbox somebody looks at, and how to get there.

use maud::{Markup, html};

use crate::{api::console::parts::query, http::ApiError};
use logcabin_ops::admin::reports::{InboxQuery, ReportKind};
use logcabin_record::Offset;

pub(super) const REPORTS: &str = "/_logcabin/console/reports";

/// Which part of the inbox somebody looks at.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub(super) of: Option<String>,
    pub(super) order: Option<String>,
}

impl Place {
    pub(super) fn inbox(&self) -> InboxQuery {
        let kind = match self.of.as_deref() {
            Some("messages") => Some(ReportKind::Message),
            Some("users") => Some(ReportKind::User),
            Some("rooms") => Some(ReportKind::Room),
            _ => None,
        };
        InboxQuery { kind, oldest_first: self.order.as_deref() == Some("oldest") }
    }

    /// The address of the inbox, with a query that can be continued.
    pub(super) fn address(&self) -> String {
        format!("{REPORTS}?{}", query(&[("of", &self.of), ("order", &self.order)]))
    }

    /// The same for a form.
    pub(super) fn hidden(&self) -> Markup {
        html! {
            @for (name, value) in [("of", &self.of), ("order", &self.order)] {
                @if let Some(value) = value { input type="hidden" name=(name) value=(value); }
            }
        }
    }
}

/// The report of this number.
pub(super) fn number(id: &str) -> Result<Offset, ApiError> {
    id.parse().map(Offset::new).map_err(|_| ApiError::not_found("There is no such report."))
}

pub(super) fn tabs(is_decided: bool) -> Markup {
    let current = |is: bool| is.then_some("page");
    html! {
        nav.tabs aria-label="Reports" {
            a href=(REPORTS) aria-current=[current(!is_decided)] { "Open" }
            a href={ (REPORTS) "/decided" } aria-current=[current(is_decided)] { "Decided" }
        }
    }
}
