//! Exempt a file from quarantine, or end the exemption.

use serde::{Deserialize, Serialize};

use super::select::media_id;
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
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

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Protected, ActError> {
        let Self { media, protected } = self;
        let media_id = media_id(context, &media)?;
        let protect = media::ProtectMedia { media_id: media_id.clone(), protected };
        let changed = context.propose(by, protect).await?;
        Ok(Protected { media_id, protected, changed })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let does = if self.protected { "is exempt" } else { "is not exempt" };
        Ok(vec![format!("{} {does} from quarantine", media_id(context, &self.media)?)])
    }
}
