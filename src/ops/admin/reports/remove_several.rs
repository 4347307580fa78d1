//! Close several reports.

use std::collections::{BTreeMap, BTreeSet};

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};

use super::remove::{RemoveReport, ReportRemoved};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_record::Offset;

/// The most reports that one order names.
const REPORTS: usize = 1000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemoveReports {
    /// Their numbers.
    #[serde(default)]
    pub reports: Vec<String>,
    /// What each reporter is told once in a server notice.
    #[serde(default)]
    pub tell: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReportsRemoved {
    pub closed: Vec<Offset>,
    pub told: BTreeSet<OwnedUserId>,
    /// Those that could not be closed, each with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<Offset, String>,
}

impl Act for RemoveReports {
    const NAME: &'static str = "remove-reports";
    const DONE: &'static str = "reports-removed";
    type Done = ReportsRemoved;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Close reports",
        fields: &[
            Field::new("reports", "Reports, with spaces between them", Kind::Words),
            Field::new("tell", "What the reporters are told in a notice", Kind::TextIfAny),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(
        self,
        context: &ActContext,
        by: Attribution,
    ) -> Result<ReportsRemoved, ActError> {
        let mut done = ReportsRemoved::default();
        for remove in self.each(context)? {
            let id = remove.id;
            match remove.perform(context, by.clone()).await {
                Ok(ReportRemoved { id, told }) => {
                    done.closed.push(id);
                    done.told.extend(told);
                }
                Err(error) => drop(done.failed.insert(id, error.to_string())),
            }
        }
        Ok(done)
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let mut effect = Vec::new();
        for remove in self.each(context)? {
            effect.extend(remove.effect(context).await?);
        }
        Ok(effect)
    }
}

impl RemoveReports {
    /// What is done for each report: all have to be open, and every reporter is told once.
    fn each(&self, context: &ActContext) -> Result<Vec<RemoveReport>, ActError> {
        if self.reports.is_empty() || self.reports.len() > REPORTS {
            return Err(ActError::Invalid(format!("Name one to {REPORTS} reports.")));
        }
        let (mut ids, mut told, mut all) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        for number in &self.reports {
            let id = number.parse().map(Offset::new);
            let id = id.map_err(|_| ActError::Invalid(format!("{number} is no report.")))?;
            if !ids.insert(id) {
                continue;
            }
            let report = context.engine.state().reports.get(id).ok_or(ActError::NoReport(id))?;
            let tell = self.tell.clone().filter(|_| told.insert(report.reporter.clone()));
            let remove = RemoveReport { id, tell };
            // Before any of them is closed.
            remove.notice(context, &report.reporter)?;
            all.push(remove);
        }
        Ok(all)
    }
}
