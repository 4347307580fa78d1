//! Media: ids that are given out, and files that are uploaded.

use ruma::OwnedUserId;

use super::{Proposal, Refusal, Turn};
use crate::{
    limits,
    record::{
        Stream,
        command::{FileHash, MediaCreate, MediaUpload},
    },
    state::{State, media::Item},
};

/// Give out a media id, for a file to be uploaded to.
#[derive(Clone, Debug)]
pub struct CreateMedia {
    /// To whom.
    pub user_id: OwnedUserId,
    /// A new id.
    pub media_id: String,
    /// When it lapses if nothing was uploaded, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// How many of these a user may have that nothing was uploaded to.
    pub most: usize,
}

impl Proposal for CreateMedia {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::media(Some(&self.user_id))
    }

    fn decide(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let unused = turn.env.state.media.unused_of(&self.user_id, self.now_ms);
        if unused.len() >= self.most {
            let first = unused.first().copied().unwrap_or(self.expires_ms);
            return Err(Refusal::TooManyUnused { wait_ms: first.saturating_sub(self.now_ms) });
        }
        let Self { user_id, media_id, expires_ms, .. } = self.clone();
        turn.append(self.stream(), MediaCreate { media_id, user_id, expires_ms });
        Ok(())
    }
}

/// Put a file under a media id. The file is in the store, and durable.
#[derive(Clone, Debug)]
pub struct AddMedia {
    /// The id: a new one, or one that was given out before.
    pub media_id: String,
    /// Whether it was given out before.
    pub given_out: bool,
    /// Who uploads; `None` for what the server fetched by itself.
    pub user_id: Option<OwnedUserId>,
    /// Which file it is.
    pub hash: FileHash,
    /// Its length in bytes.
    pub size: u64,
    /// Its type.
    pub content_type: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// How many bytes the files of one user may have together, or those that the server fetches by itself.
    pub quota: u64,
}

impl AddMedia {
    /// Whether it may be. Also to be asked before the file has arrived, with the size that it will have at
    /// least.
    ///
    /// # Errors
    /// Why not; [`Refusal::CannotOverwriteMedia`] when there is a file already.
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
                let text = "This media id was given to somebody else.";
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
    Refusal::NotFound("This media id was not given out, or has lapsed.".to_owned())
}

impl Proposal for AddMedia {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::media(self.user_id.as_deref())
    }

    fn decide(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        self.check(&turn.env.state)?;
        let Self { media_id, user_id, hash, size, content_type, name, .. } = self.clone();
        let body = MediaUpload { media_id, user_id, hash, size, content_type, name };
        turn.append(self.stream(), body);
        Ok(())
    }
}
