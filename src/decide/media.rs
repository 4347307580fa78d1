//! Media: reserved ids, and uploaded files.

use ruma::{OwnedMxcUri, OwnedUserId};

use super::{Commit, Proposal, Refusal};
use logcabin_base::limits;
use logcabin_record::{
    Stream,
    command::{
        FileHash, MediaCreate, MediaEnd, MediaProtect, MediaQuarantine, MediaRemove, MediaUpload,
    },
};
use logcabin_state::{State, media::Item};

/// Reserve a media id for a later upload.
#[derive(Clone, Debug)]
pub struct CreateMedia {
    pub user_id: OwnedUserId,
    /// A new id.
    pub media_id: String,
    /// When it expires if nothing is uploaded, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// How many unused reserved ids a user may have.
    pub most: usize,
}

impl Proposal for CreateMedia {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::media(Some(&self.user_id))
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let unused = commit.env.state.media.unused_of(&self.user_id, self.now_ms);
        if unused.len() >= self.most {
            let first = unused.first().copied().unwrap_or(self.expires_ms);
            return Err(Refusal::TooManyUnused { wait_ms: first.saturating_sub(self.now_ms) });
        }
        let Self { user_id, media_id, expires_ms, .. } = self.clone();
        commit.append(self.stream(), MediaCreate { media_id, user_id, expires_ms });
        Ok(())
    }
}

/// Put a file under a media id. The file is in the store and durable.
#[derive(Clone, Debug)]
pub struct AddMedia {
    /// The id: a new or a reserved one.
    pub media_id: String,
    /// Whether it was reserved before.
    pub given_out: bool,
    /// The uploader; `None` for a file that the server fetched.
    pub user_id: Option<OwnedUserId>,
    pub hash: FileHash,
    /// Its length in bytes.
    pub size: u64,
    pub content_type: Option<String>,
    pub name: Option<String>,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// How many bytes the files of one user, or those that the server fetched, may have together.
    pub quota: u64,
}

impl AddMedia {
    /// Checks the upload. Can also be called before the file has arrived, with its minimum size.
    ///
    /// # Errors
    /// The reason; [`Refusal::CannotOverwriteMedia`] if there is a file already.
    pub fn check(&self, state: &State) -> Result<(), Refusal> {
        let too_long = |text: &Option<String>| {
            text.as_ref().is_some_and(|text| text.len() > limits::MEDIA_NAME_BYTES)
        };
        if too_long(&self.name) || too_long(&self.content_type) {
            let text = "The name or the type of the file is too long.";
            return Err(Refusal::InvalidParam(text.to_owned()));
        }
        match (state.media.get(&self.media_id), self.given_out) {
            (None, false) => {}
            (None, true) => return Err(not_given_out()),
            (Some(Item::Stored(stored)), _) if stored.user_id == self.user_id => {
                return Err(Refusal::CannotOverwriteMedia);
            }
            (Some(Item::Unused { user_id, expires_ms }), true)
                if self.user_id.as_ref() == Some(&user_id) =>
            {
                if expires_ms <= self.now_ms {
                    return Err(not_given_out());
                }
            }
            (Some(_), _) => {
                let text = "This media id was issued to another user.";
                return Err(Refusal::Forbidden(text.to_owned()));
            }
        }
        let bytes = state.media.bytes_of(self.user_id.as_deref());
        if bytes.saturating_add(self.size) > self.quota {
            let text = format!("Your files may have {} bytes together.", self.quota);
            return Err(Refusal::Forbidden(text));
        }
        Ok(())
    }
}

fn not_given_out() -> Refusal {
    Refusal::NotFound("This media id was never issued, or has expired.".to_owned())
}

impl Proposal for AddMedia {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::media(self.user_id.as_deref())
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        self.check(&commit.env.state)?;
        let Self { media_id, user_id, hash, size, content_type, name, .. } = self.clone();
        let body = MediaUpload { media_id, user_id, hash, size, content_type, name };
        commit.append(self.stream(), body);
        Ok(())
    }
}

/// Quarantine files, or end that. Ids without a file, and files that are in that state already, are
/// skipped.
#[derive(Clone, Debug)]
pub struct QuarantineMedia {
    /// Ids of the files, at most [`limits::QUARANTINE_IDS`].
    pub media_ids: Vec<String>,
    /// Whether downloads are refused from now on.
    pub quarantined: bool,
    pub reason: Option<String>,
}

impl Proposal for QuarantineMedia {
    /// The ids whose files changed.
    type Outcome = Vec<String>;

    fn stream(&self) -> Stream {
        Stream::quarantine()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Vec<String>, Refusal> {
        let media = &commit.env.state.media;
        let mut changed = self.media_ids.clone();
        // Protected files are not quarantined with the others.
        changed.retain(|id| matches!(media.get(id), Some(Item::Stored(_))));
        changed.retain(|id| match self.quarantined {
            true => media.quarantined(id).is_none() && !media.is_protected(id),
            false => media.quarantined(id).is_some(),
        });
        if !changed.is_empty() {
            let (media_ids, quarantined) = (changed.clone(), self.quarantined);
            let (reason, rest) = (self.reason.clone(), MediaQuarantine::default());
            let body = MediaQuarantine { media_ids, quarantined, reason, ..rest };
            commit.append(self.stream(), body);
        }
        Ok(changed)
    }
}

/// Quarantine files of other homeservers, or end that.
#[derive(Clone, Debug)]
pub struct QuarantineRemote {
    /// The addresses of the files, at most [`limits::QUARANTINE_IDS`], and the hashes of those of
    /// which there are copies.
    pub files: Vec<(OwnedMxcUri, Option<FileHash>)>,
    /// Whether downloads are refused from now on.
    pub quarantined: bool,
    pub reason: Option<String>,
}

impl QuarantineRemote {
    /// The files for which it changes something.
    pub fn changed(&self, state: &State) -> Vec<(OwnedMxcUri, Option<FileHash>)> {
        let mut changed = self.files.clone();
        changed.retain(|(address, hash)| {
            let of_hash = hash.map(|hash| state.media.quarantined_by(&hash).is_some());
            let of_address = state.remote_media.quarantined(address).is_some();
            [Some(of_address), of_hash].into_iter().flatten().any(|is| is != self.quarantined)
        });
        changed
    }
}

impl Proposal for QuarantineRemote {
    /// The addresses for which something changed.
    type Outcome = Vec<OwnedMxcUri>;

    fn stream(&self) -> Stream {
        Stream::quarantine()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Vec<OwnedMxcUri>, Refusal> {
        let changed = self.changed(&commit.env.state);
        let (remote, hashes): (Vec<_>, Vec<_>) = changed.into_iter().unzip();
        if !remote.is_empty() {
            let body = MediaQuarantine {
                media_ids: Vec::new(),
                remote: remote.clone(),
                hashes: hashes.into_iter().flatten().collect(),
                quarantined: self.quarantined,
                reason: self.reason.clone(),
            };
            commit.append(self.stream(), body);
        }
        Ok(remote)
    }
}

/// Delete files permanently.
#[derive(Clone, Debug)]
pub struct RemoveMedia {
    /// Their ids: at most [`limits::QUARANTINE_IDS`].
    pub media_ids: Vec<String>,
}

impl Proposal for RemoveMedia {
    /// The ids of those that existed.
    type Outcome = Vec<String>;

    fn stream(&self) -> Stream {
        Stream::quarantine()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Vec<String>, Refusal> {
        let media = &commit.env.state.media;
        let mut media_ids = self.media_ids.clone();
        media_ids.retain(|id| matches!(media.get(id), Some(Item::Stored(_))));
        if !media_ids.is_empty() {
            let remove = MediaRemove { media_ids: media_ids.clone(), why: MediaEnd::Asked };
            commit.append(self.stream(), remove);
        }
        Ok(media_ids)
    }
}

/// Exempt a media id from quarantine, or end that.
#[derive(Clone, Debug)]
pub struct ProtectMedia {
    pub media_id: String,
    /// Whether it is exempt from now on.
    pub protected: bool,
}

impl Proposal for ProtectMedia {
    /// Whether that changed.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::quarantine()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let media = &commit.env.state.media;
        if !matches!(media.get(&self.media_id), Some(Item::Stored(_))) {
            return Err(Refusal::NotFound("There is no such file.".to_owned()));
        }
        let changed = media.is_protected(&self.media_id) != self.protected;
        if changed {
            let Self { media_id, protected } = self.clone();
            commit.append(self.stream(), MediaProtect { media_id, protected });
        }
        Ok(changed)
    }
}
