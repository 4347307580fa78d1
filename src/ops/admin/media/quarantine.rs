//! Quarantine files, so that nobody can download them, or release them.

use ruma::OwnedMxcUri;
use serde::{Deserialize, Serialize};

use super::{
    remote,
    select::{MediaOf, ids},
};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_base::limits;
use logcabin_decide::media;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QuarantineMedia {
    pub of: MediaOf,
    pub quarantined: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Quarantined {
    /// The files for which that changed.
    pub media_ids: Vec<String>,
    /// Those of other homeservers for which that changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote: Vec<OwnedMxcUri>,
    pub quarantined: bool,
}

impl Act for QuarantineMedia {
    const NAME: &'static str = "quarantine-media";
    const DONE: &'static str = "quarantined";
    type Done = Quarantined;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Quarantine files, or release them",
        fields: &[
            Field::new("of", "Files, a user or a room", Kind::Media),
            Field::new("quarantined", "In quarantine", Kind::Flag),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Quarantined, ActError> {
        let Self { of, quarantined } = self;
        let Attribution { origin, reason } = by;
        let (mut changed, mut remote) = (Vec::new(), Vec::new());
        let (ids, others) = ids(context, &of)?;
        for some in ids.chunks(limits::QUARANTINE_IDS) {
            let (media_ids, reason) = (some.to_vec(), reason.clone());
            let quarantine = media::QuarantineMedia { media_ids, quarantined, reason };
            changed.extend(context.engine.propose(origin.clone(), quarantine).await?.into_inner());
        }
        for some in others.chunks(limits::QUARANTINE_IDS) {
            let (files, reason) = (remote::with_hashes(context, some), reason.clone());
            let quarantine = media::QuarantineRemote { files, quarantined, reason };
            remote.extend(context.engine.propose(origin.clone(), quarantine).await?.into_inner());
        }
        Ok(Quarantined { media_ids: changed, remote, quarantined })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let media = &context.engine.state().media;
        let (mut ids, others) = ids(context, &self.of)?;
        let files = remote::with_hashes(context, &others);
        let (quarantined, reason) = (self.quarantined, None);
        let of_others = media::QuarantineRemote { files, quarantined, reason };
        let of_others = of_others.changed(&context.engine.state()).len();
        ids.retain(|id| match self.quarantined {
            true => media.quarantined(id).is_none() && !media.is_protected(id),
            false => media.quarantined(id).is_some(),
        });
        let can = if self.quarantined {
            "cannot be downloaded any more"
        } else {
            "can be downloaded again"
        };
        Ok(vec![format!("{} file(s) {can}", ids.len() + of_others)])
    }
}
