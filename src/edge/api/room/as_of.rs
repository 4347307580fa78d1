//! Reading as of an earlier moment. Administrators may add `?at=OFFSET|TIME` to requests that read
//! rooms, profiles and aliases, and get what they would have seen then. [`Moment`] parses moments,
//! as on the command line.

use crate::{
    api::server::Server,
    http::{ApiError, Cx},
};
use logcabin_base::background::at_length;
use logcabin_log::ReadError;
use logcabin_ops::history::{Moment, moment::last_until};
use logcabin_read::{
    events::Viewer,
    view::{
        View,
        token::{HistoryToken, Pos, SourcePlace},
    },
};
use logcabin_record::Offset;

impl Cx<Server> {
    /// The caller's view as of the requested moment; by default, as of now.
    ///
    /// # Errors
    /// When the caller is not an administrator, or the moment is invalid.
    pub(super) fn view_as_of(&self) -> Result<View<'_>, ApiError> {
        let view = self.view();
        Ok(match self.moment()? {
            Some(at) => View { viewer: Viewer { at: at.min(view.at()), ..view.viewer }, ..view },
            None => view,
        })
    }

    /// The requested moment, if there is one.
    pub(crate) fn moment(&self) -> Result<Option<Offset>, ApiError> {
        let Some(at) = self.query("at")? else { return Ok(None) };
        // `GET /rooms/{roomId}/members` has a parameter of the same name that is a token.
        let is_token = at.parse::<HistoryToken>().is_ok()
            || at.parse::<Pos>().is_ok()
            || SourcePlace::of_synapse(&at).is_some();
        if is_token {
            return Ok(None);
        }
        let moment: Moment = at
            .parse()
            .map_err(|error| ApiError::invalid_param(format!("`at` is no moment: {error}.")))?;
        if !self.is_admin() {
            let why = "Only administrators of this server may look at earlier moments.";
            return Err(ApiError::forbidden(why));
        }
        let head = self.app.engine.head().offset();
        let until = match moment.from_now(self.app.engine.clock().now_ms()) {
            Moment::At(offset) => return Ok(Some(offset.min(head))),
            Moment::Time(ms) | Moment::Ago(ms) => ms,
        };
        let log = self.app.engine.log();
        at_length(|| {
            let found = last_until(head, until, |offset| {
                Ok::<_, ReadError>(log.get(offset)?.map(|record| record.header.time_ms))
            });
            // What was imported is older than its records.
            Ok(Some(found?.max(self.app.engine.state().imports.until(until)).min(head)))
        })
    }
}
