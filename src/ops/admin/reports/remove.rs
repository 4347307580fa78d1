//! Close a report, and tell the reporter what was decided if that is wanted.

use ruma::{OwnedUserId, UserId};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
    notices::SendNotice,
};
use logcabin_decide::report;
use logcabin_record::Offset;

/// The longest text that a reporter is told, in bytes: a page.
const TELL_BYTES: usize = 4096;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemoveReport {
    pub id: Offset,
    /// What the reporter is told in a server notice.
    #[serde(default)]
    pub tell: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportRemoved {
    pub id: Offset,
    /// The reporter, if they were told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<OwnedUserId>,
}

impl Act for RemoveReport {
    const NAME: &'static str = "remove-report";
    const DONE: &'static str = "report-removed";
    type Done = ReportRemoved;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Close a report",
        fields: &[
            Field::new("id", "Report", Kind::Number),
            Field::new("tell", "What the reporter is told in a notice", Kind::TextIfAny),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(
        self,
        context: &ActContext,
        by: Attribution,
    ) -> Result<ReportRemoved, ActError> {
        let (id, reporter) = self.open(context)?;
        let notice = self.notice(context, &reporter)?;
        let remove = report::RemoveReport { report: id };
        context.propose(by.clone(), remove).await?;
        let Some(notice) = notice else { return Ok(ReportRemoved { id, told: None }) };
        notice.perform(context, by).await?;
        Ok(ReportRemoved { id, told: Some(reporter) })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let (id, reporter) = self.open(context)?;
        let mut effect = vec![format!("the report {id} is taken off the list")];
        if self.notice(context, &reporter)?.is_some() {
            effect.push(format!("{reporter} is told so by a notice"));
        }
        Ok(effect)
    }
}

impl RemoveReport {
    /// The report, if it is open, and who made it.
    fn open(&self, context: &ActContext) -> Result<(Offset, OwnedUserId), ActError> {
        let report = context.engine.state().reports.get(self.id);
        let report = report.ok_or(ActError::NoReport(self.id))?;
        Ok((self.id, report.reporter))
    }

    /// The notice to the reporter, if there is to be one.
    pub(super) fn notice(
        &self,
        context: &ActContext,
        reporter: &UserId,
    ) -> Result<Option<SendNotice>, ActError> {
        let Some(body) = self.tell.as_ref().filter(|body| !body.trim().is_empty()) else {
            return Ok(None);
        };
        if body.len() > TELL_BYTES {
            let why = format!("What the reporter is told has at most {TELL_BYTES} bytes.");
            return Err(ActError::Invalid(why));
        }
        // Before the report is closed.
        if context.active(reporter.as_str()).is_err() {
            return Err(ActError::Invalid(format!(
                "{reporter} cannot be told, because the account is closed: close the report without that."
            )));
        }
        if context.notices.sender(&context.engine.env().server.name).is_none() {
            return Err(ActError::invalid(
                "The reporter cannot be told: `server_notices.localpart` names nobody.",
            ));
        }
        Ok(Some(SendNotice {
            user: reporter.to_string(),
            event_type: "m.room.message".to_owned(),
            state_key: None,
            content: json!({ "msgtype": "m.text", "body": body }),
            transaction: None,
        }))
    }
}
