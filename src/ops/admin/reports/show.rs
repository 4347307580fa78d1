//! Show one report, with the event that it is about.

use serde::{Deserialize, Serialize};

use super::summary::{ReportSummary, summary};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_record::Offset;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShowReport {
    pub id: Offset,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportDetails {
    #[serde(flatten)]
    pub summary: ReportSummary,
    /// The event in federation format, as the log has it.
    pub event_json: Option<serde_json::Value>,
}

impl Act for ShowReport {
    const NAME: &'static str = "show-report";
    const DONE: &'static str = "report";
    type Done = Box<ReportDetails>;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Self::Done, ActError> {
        details(context, self.id).map(Box::new)
    }
}

/// The report of this number.
pub fn details(context: &ActContext, id: Offset) -> Result<ReportDetails, ActError> {
    let report = context.engine.state().reports.get(id).ok_or(ActError::NoReport(id))?;
    let event_id = report.event_id.clone();
    let summary = summary(context, id, report)?;
    let (state, events) = (context.engine.state(), context.engine.events());
    let event = event_id.map(|event_id| events.find(&state, &event_id)).transpose()?.flatten();
    let event_json = event.and_then(|event| serde_json::from_str(event.pdu.get()).ok());
    Ok(ReportDetails { summary, event_json })
}
