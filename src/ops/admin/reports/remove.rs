//! Remove a report from the list of open ones.

use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::report;
use logcabin_record::Offset;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemoveReport {
    pub id: Offset,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportRemoved {
    pub id: Offset,
}

impl Act for RemoveReport {
    const NAME: &'static str = "remove-report";
    const DONE: &'static str = "report-removed";
    type Done = ReportRemoved;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Close a report",
        fields: &[Field::new("id", "Report", Kind::Number)],
        is_final: false,
        foretells: true,
    });

    async fn perform(
        self,
        context: &ActContext,
        by: Attribution,
    ) -> Result<ReportRemoved, ActError> {
        let id = self.open(context)?;
        context.propose(by, report::RemoveReport { report: id }).await?;
        Ok(ReportRemoved { id })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        Ok(vec![format!("the report {} is taken off the list", self.open(context)?)])
    }
}

impl RemoveReport {
    fn open(&self, context: &ActContext) -> Result<Offset, ActError> {
        let report = context.engine.state().reports.get(self.id);
        report.map(|_| self.id).ok_or(ActError::NoReport(self.id))
    }
}
