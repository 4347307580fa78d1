//! Exempt a file from quarantine, or end the exemption.

use serde::{Deserialize, Serialize};

use super::select::media_id;
use crate::admin::{
    act::{Act, Attribution},
    form::{Field, Form, Kind},
    office::{ActError, Office},
};
use logcabin_decide::media;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProtectMedia {
    /// The file's id or `mxc://` address.
    pub media: String,
    pub protected: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Protected {
    pub media_id: String,
    pub protected: bool,
    pub changed: bool,
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
