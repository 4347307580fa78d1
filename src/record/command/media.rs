//! Commands of uploaded files.

use ruma::{OwnedMxcUri, OwnedRoomId, OwnedUserId};
use serde::{Deserialize, Serialize};

use super::{
    kind::{Content, Erased},
    values::FileHash,
};
use crate::{Holds, Offset};

/// Payload of `media.create`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MediaCreate {
    /// The id: what follows the server's name in `mxc://`.
    pub media_id: String,
    /// Who may upload to it.
    pub user_id: OwnedUserId,
    /// When the id expires if nothing is uploaded, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

impl Content for MediaCreate {}

/// Payload of `media.upload`. The bytes are durable in the media store before this is appended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaUpload {
    /// The id: what follows the server's name in `mxc://`.
    pub media_id: String,
    /// Who uploaded it; none for what the server fetched by itself, for a preview of a page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<OwnedUserId>,
    /// blake3 of the file, which is its name in the store.
    pub hash: FileHash,
    /// Its length in bytes.
    pub size: u64,
    /// Its type, as the uploader says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Its name, as the uploader says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Content for MediaUpload {
    // It is erased with the file: see `media.remove`.
    const ERASED: Erased =
        Erased::Members { emptied: &[], gone: &["name", "content_type"], required: None };
}

/// Payload of `media.quarantine`. The quarantine applies to the files, under all their present and
/// later ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaQuarantine {
    /// The ids of the files.
    pub media_ids: Vec<String>,
    /// The addresses of files of other homeservers. (Not in version 1.)
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote: Vec<OwnedMxcUri>,
    /// blake3 of those that this server had a copy of. (Not in version 1.)
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hashes: Vec<FileHash>,
    /// Whether they are in quarantine from now on.
    pub quarantined: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Content for MediaQuarantine {
    const ERASED: Erased = Erased::Members { emptied: &[], gone: &["reason"], required: None };

    fn holds(&self) -> Holds<'_> {
        Holds::Files(&self.media_ids)
    }
}

/// Payload of `media.protect`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaProtect {
    pub media_id: String,
    /// Whether the file can be downloaded under this id even while it is quarantined.
    pub protected: bool,
}

impl Content for MediaProtect {}

/// Payload of `media.remove`. Files without any id left are then deleted from the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaRemove {
    pub media_ids: Vec<String>,
    #[serde(flatten)]
    pub why: MediaEnd,
}

impl Content for MediaRemove {}

/// Why files are removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum MediaEnd {
    /// The lifetime of files is limited.
    Lifetime {
        /// The lifetime, in milliseconds from the upload.
        lifetime_ms: u64,
    },
    /// The uploader was erased.
    Owner {
        user_id: OwnedUserId,
        /// The `user.deactivate`.
        because: Offset,
    },
    /// Administrators removed them. (Not in version 1.)
    Asked,
    /// Only a room that was purged referred to them.
    Room { room_id: OwnedRoomId },
}
