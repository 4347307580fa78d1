//! Exempt a file from quarantine, or end the exemption.

use serde::{Deserialize, Serialize};

use super::select::media_id;
use crate::{
    decide::media,
    ops::admin::{
        act::{Act, Attribution},
        form::{Field, Form, Kind},
        office::{ActError, Office},
    },
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProtectMedia {
    /// The file's id or `mxc://` address.
    pub(crate) media: String,
    pub(crate) protected: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Protected {
    pub(crate) media_id: String,
    pub(crate) protected: bool,
    pub(crate) changed: bool,
}

impl Act for ProtectMedia {
    const NAME: &'static str = "protect-media";
    const DONE: &'static str = "protected";
    type Done = Protected;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Exempt a file from quarantine",
        fields: &[
            Field::new("media", "File", Kind::Text),
            Field::new("protected", "Exempt", Kind::Flag),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, office: &Office, by: Attribution) -> Result<Protected, ActError> {
        let Self { media, protected } = self;
        let media_id = media_id(office, &media)?;
        let protect = media::ProtectMedia { media_id: media_id.clone(), protected };
        let changed = office.propose(by, protect).await?;
        Ok(Protected { media_id, protected, changed })
    }

    async fn effect(&self, office: &Office) -> Result<Vec<String>, ActError> {
        let does = if self.protected { "is exempt" } else { "is not exempt" };
        Ok(vec![format!("{} {does} from quarantine", media_id(office, &self.media)?)])
    }
}
