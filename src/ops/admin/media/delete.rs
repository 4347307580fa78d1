//! Delete files, which cannot be undone.

use serde::{Deserialize, Serialize};

use super::select::{MediaOf, ids};
use crate::{
    base::{background, limits},
    decide::media::RemoveMedia,
    ops::admin::{
        act::{Act, Attribution},
        form::{Field, Form, Kind},
        office::{ActError, Office},
    },
    state::media::Item,
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeleteMedia {
    pub(crate) of: MediaOf,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MediaDeleted {
    pub(crate) media_ids: Vec<String>,
}

impl Act for DeleteMedia {
    const NAME: &'static str = "delete-media";
    const DONE: &'static str = "media-deleted";
    type Done = MediaDeleted;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Delete files",
        fields: &[Field::new("of", "File, user or room", Kind::Media)],
        is_final: true,
        foretells: true,
    });

    async fn perform(self, office: &Office, by: Attribution) -> Result<MediaDeleted, ActError> {
        let mut gone = Vec::new();
        let ids = background::at_length(|| ids(office, &self.of))?.0;
        for some in ids.chunks(limits::QUARANTINE_IDS) {
            let remove = RemoveMedia { media_ids: some.to_vec() };
            gone.extend(office.propose(by.clone(), remove).await?);
        }
        Ok(MediaDeleted { media_ids: gone })
    }

    async fn effect(&self, office: &Office) -> Result<Vec<String>, ActError> {
        let ids = background::at_length(|| ids(office, &self.of))?.0;
        let media = &office.engine.state().media;
        let size = |id: &String| match media.get(id) {
            Some(Item::Stored(stored)) => stored.size,
            _ => 0,
        };
        let bytes: u64 = ids.iter().map(size).sum();
        let count = ids.len();
        Ok(vec![format!("{count} file(s) of {bytes} bytes are deleted, which cannot be undone")])
    }
}
