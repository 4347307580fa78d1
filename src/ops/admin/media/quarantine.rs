//! Quarantine files, so that nobody can download them, or release them.

use serde::{Deserialize, Serialize};

use super::select::{MediaOf, ids};
use crate::{
    base::limits,
    decide::media,
    ops::admin::{
        act::{Act, Attribution},
        form::{Field, Form, Kind},
        office::{ActError, Office},
    },
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct QuarantineMedia {
    pub(crate) of: MediaOf,
    pub(crate) quarantined: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Quarantined {
    /// The files for which that changed.
    pub(crate) media_ids: Vec<String>,
    pub(crate) quarantined: bool,
}

impl Act for QuarantineMedia {
    const NAME: &'static str = "quarantine-media";
    const DONE: &'static str = "quarantined";
    type Done = Quarantined;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Quarantine files, or release them",
        fields: &[
            Field::new("of", "File, user or room", Kind::Media),
            Field::new("quarantined", "In quarantine", Kind::Flag),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, office: &Office, by: Attribution) -> Result<Quarantined, ActError> {
        let Self { of, quarantined } = self;
        let Attribution { origin, reason } = by;
        let mut changed = Vec::new();
        for some in ids(office, &of)?.0.chunks(limits::QUARANTINE_IDS) {
            let (media_ids, reason) = (some.to_vec(), reason.clone());
            let quarantine = media::QuarantineMedia { media_ids, quarantined, reason };
            changed.extend(office.engine.propose(origin.clone(), quarantine).await?.into_inner());
        }
        Ok(Quarantined { media_ids: changed, quarantined })
    }

    async fn effect(&self, office: &Office) -> Result<Vec<String>, ActError> {
        let media = &office.engine.state().media;
        let mut ids = ids(office, &self.of)?.0;
        ids.retain(|id| match self.quarantined {
            true => media.quarantined(id).is_none() && !media.is_protected(id),
            false => media.quarantined(id).is_some(),
        });
        let can = if self.quarantined {
            "cannot be downloaded any more"
        } else {
            "can be downloaded again"
        };
        Ok(vec![format!("{} file(s) {can}", ids.len())])
    }
}
