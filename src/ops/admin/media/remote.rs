//! Files of other homeservers: the copies of them here, and their quarantine.

use std::{
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use ruma::{MxcUri, OwnedMxcUri};
use serde::{Deserialize, Serialize};

use super::list::MediaSummary;
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_base::background;
use logcabin_media::remote::{RemoteFile, RemoteFiles};
use logcabin_record::command::FileHash;

/// Delete copies of files of other homeservers. They are fetched again when somebody asks for them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PurgeRemoteMedia {
    /// Only those that were last used before this, in milliseconds since the Unix epoch.
    pub before_ms: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemoteMediaPurged {
    /// How many copies were deleted.
    pub deleted: u64,
}

impl Act for PurgeRemoteMedia {
    const NAME: &'static str = "purge-remote-media";
    const DONE: &'static str = "purged";
    type Done = RemoteMediaPurged;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Delete copies of files of other homeservers",
        fields: &[Field::new(
            "before_ms",
            "Last used before (milliseconds since the Unix epoch)",
            Kind::Number,
        )],
        is_final: false,
        foretells: false,
    });

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Self::Done, ActError> {
        let files = copies(context)?;
        let before = UNIX_EPOCH.checked_add(Duration::from_millis(self.before_ms));
        let before = before.ok_or_else(|| ActError::invalid("This is not a time."))?;
        let deleted = background::at_length(|| files.purge(before)).map_err(ActError::invalid)?;
        Ok(RemoteMediaPurged { deleted })
    }
}

/// The copies, which only a running server has at hand.
fn copies(context: &ActContext) -> Result<&Arc<RemoteFiles>, ActError> {
    context.remote_files.as_ref().ok_or_else(|| {
        ActError::invalid("The server is not running; `media/remote` can be deleted as a whole.")
    })
}

/// What is known of the copy of a file.
fn copy(context: &ActContext, address: &MxcUri) -> Option<RemoteFile> {
    background::at_length(|| context.remote_files.as_ref()?.look(address))
}

/// The addresses, each with the hash of the file if there is a copy.
pub(super) fn with_hashes(
    context: &ActContext,
    addresses: &[OwnedMxcUri],
) -> Vec<(OwnedMxcUri, Option<FileHash>)> {
    let hash = |address| copy(context, address).map(|copy| copy.hash);
    addresses.iter().map(|address| (address.clone(), hash(address))).collect()
}

/// Deletes the copies of these files. Returns the addresses of those that existed.
pub(super) fn forget(
    context: &ActContext,
    addresses: Vec<OwnedMxcUri>,
) -> Result<Vec<OwnedMxcUri>, ActError> {
    if addresses.is_empty() {
        return Ok(addresses);
    }
    let files = copies(context)?;
    let mut deleted = Vec::new();
    for address in addresses {
        let forgetting = background::at_length(|| files.forget(&address));
        if forgetting.map_err(ActError::invalid)? {
            deleted.push(address);
        }
    }
    Ok(deleted)
}

/// The copy of a file; `None` if there is none.
pub(super) fn summary(
    context: &ActContext,
    address: &OwnedMxcUri,
) -> Result<Option<MediaSummary>, ActError> {
    let Some(copy) = copy(context, address) else { return Ok(None) };
    let state = context.engine.state();
    let quarantined = state.remote_media.quarantined(address);
    let quarantined = quarantined.or_else(|| state.media.quarantined_by(&copy.hash));
    Ok(Some(MediaSummary {
        media_id: address.media_id().unwrap_or_default().to_owned(),
        user_id: None,
        created_ts: copy.fetched_ms,
        media_length: copy.size,
        media_type: copy.content_type,
        upload_name: copy.name,
        quarantined_by: quarantined.map(|offset| context.author_of(offset)).transpose()?,
        safe_from_quarantine: false,
        blake3: copy.hash.to_string(),
        address: Some(address.clone()),
    }))
}
