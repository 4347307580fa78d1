//! List uploaded files.

use ruma::{OwnedMxcUri, OwnedUserId};
use serde::{Deserialize, Serialize};

use super::{
    remote,
    select::{MediaOf, ids},
};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_log::ReadError;
use logcabin_record::Command;
use logcabin_state::media::{Item, Stored};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListMedia {
    pub of: MediaOf,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Media {
    pub media: Vec<MediaSummary>,
    /// Files of other servers to which the events of a room refer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote: Vec<OwnedMxcUri>,
}

/// One file in a list, in the words of the tools that speak `/_synapse/admin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaSummary {
    pub media_id: String,
    /// Who uploaded it; none for what the server fetched by itself.
    pub user_id: Option<OwnedUserId>,
    /// When, in milliseconds since the Unix epoch.
    pub created_ts: u64,
    /// Its length in bytes.
    pub media_length: u64,
    /// The type that the uploader gave.
    pub media_type: Option<String>,
    /// The name that the uploader gave.
    pub upload_name: Option<String>,
    /// Who put it into quarantine, if nobody can download it.
    pub quarantined_by: Option<String>,
    /// Whether it is exempt from quarantine.
    pub safe_from_quarantine: bool,
    /// Its blake3 in hexadecimal, which is its name in the store.
    pub blake3: String,
    /// Its address, if it is the copy of a file of another homeserver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<OwnedMxcUri>,
}

impl Act for ListMedia {
    const NAME: &'static str = "list-media";
    const DONE: &'static str = "media";
    type Done = Media;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Media, ActError> {
        list(context, &self.of)
    }
}

pub fn list(context: &ActContext, of: &MediaOf) -> Result<Media, ActError> {
    let (ids, others) = ids(context, of)?;
    let state = context.engine.state();
    let mut media = Vec::with_capacity(ids.len());
    if let MediaOf::Id(name) = of
        && let [address] = &*others
    {
        let copy = remote::summary(context, address)?;
        media.push(copy.ok_or_else(|| ActError::NoMedia(name.clone()))?);
    }
    for id in ids {
        if let Some(Item::Stored(stored)) = state.media.get(&id) {
            media.push(summary(context, id, stored)?);
        }
    }
    Ok(Media { media, remote: others })
}

fn summary(
    context: &ActContext,
    media_id: String,
    stored: Stored,
) -> Result<MediaSummary, ReadError> {
    let (media_type, upload_name) = match context.engine.events().command(stored.offset)? {
        Some(Command::MediaUpload(body)) => (body.content_type, body.name),
        _ => (None, None),
    };
    let media = &context.engine.state().media;
    let quarantined = media.quarantined(&media_id);
    Ok(MediaSummary {
        safe_from_quarantine: media.is_protected(&media_id),
        quarantined_by: quarantined.map(|offset| context.author_of(offset)).transpose()?,
        media_id,
        user_id: stored.user_id,
        created_ts: stored.time_ms,
        media_length: stored.size,
        media_type,
        upload_name,
        blake3: stored.hash.to_string(),
        address: None,
    })
}
