//! Delete files, which cannot be undone.

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
use logcabin_base::{background, limits};
use logcabin_decide::media::RemoveMedia;
use logcabin_state::media::Item;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeleteMedia {
    pub of: MediaOf,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MediaDeleted {
    pub media_ids: Vec<String>,
    /// The files of other homeservers of which a copy was deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote: Vec<OwnedMxcUri>,
}

impl Act for DeleteMedia {
    const NAME: &'static str = "delete-media";
    const DONE: &'static str = "media-deleted";
    type Done = MediaDeleted;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Delete files",
        fields: &[Field::new("of", "Files, a user or a room", Kind::Media)],
        is_final: true,
        foretells: true,
    });

    async fn perform(
        self,
        context: &ActContext,
        by: Attribution,
    ) -> Result<MediaDeleted, ActError> {
        let mut gone = Vec::new();
        let (ids, others) = background::at_length(|| ids(context, &self.of))?;
        let remote = remote::forget(context, others)?;
        if let MediaOf::Id(name) = &self.of
            && ids.is_empty()
            && remote.is_empty()
        {
            return Err(ActError::NoMedia(name.clone()));
        }
        for some in ids.chunks(limits::QUARANTINE_IDS) {
            let remove = RemoveMedia { media_ids: some.to_vec() };
            gone.extend(context.propose(by.clone(), remove).await?);
        }
        Ok(MediaDeleted { media_ids: gone, remote })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let (ids, others) = background::at_length(|| ids(context, &self.of))?;
        let media = &context.engine.state().media;
        let size = |id: &String| match media.get(id) {
            Some(Item::Stored(stored)) => stored.size,
            _ => 0,
        };
        let bytes: u64 = ids.iter().map(size).sum();
        let count = ids.len();
        let mut effect =
            vec![format!("{count} file(s) of {bytes} bytes are deleted, which cannot be undone")];
        if !others.is_empty() {
            effect.push(format!("copies of {} file(s) of other servers are deleted", others.len()));
        }
        Ok(effect)
    }
}
