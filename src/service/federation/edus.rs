//! EDUs from other homeservers (server-server API, "EDUs"), one file for each kind.
//!
//! An EDU that is malformed or not allowed is dropped without an error.

mod device_lists;
mod ephemeral;
mod presence;
mod receipts;
mod to_device;
mod typing;

use ruma::ServerName;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tracing::{debug, warn};

use super::PduReceiver;
use logcabin_base::canonical::{NotCanonical, Numbers, check};
use logcabin_decide::Refusal;
use logcabin_engine as engine;
use logcabin_log::ReadError;

/// Why an EDU is dropped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EduError {
    /// It does not have the form of its type.
    #[error("its form is wrong: {0}")]
    Form(#[from] serde_json::Error),
    /// Clients or other homeservers could not read it.
    #[error(transparent)]
    NotJson(#[from] NotCanonical),
    /// Clients expect an object in it.
    #[error("its content is not an object")]
    NotObject,
    /// A text or a list in it is too long.
    #[error("it is too large")]
    TooLarge,
    /// It is about users of another homeserver than the one that sent it.
    #[error("its sender may not send it")]
    NotTheirs,
    /// Its user is not in the room, or the room is not known here.
    #[error("its user is not in a room of this server")]
    NotHere,
    /// The homeserver or its user is over a rate.
    #[error("it exceeds the rate limit")]
    TooMany,
    /// The known state cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It is refused, or cannot be recorded now.
    #[error(transparent)]
    NotRecorded(#[from] engine::ProposeError),
}

#[derive(Deserialize)]
struct Edu<'a> {
    edu_type: String,
    #[serde(borrow)]
    content: &'a RawValue,
}

/// An EDU that clients and other homeservers can read.
fn read(raw: &RawValue) -> Result<Edu<'_>, EduError> {
    check(raw.get(), Numbers::Held)?;
    Ok(serde_json::from_str(raw.get())?)
}

fn content<T: DeserializeOwned>(content: &RawValue) -> Result<T, EduError> {
    Ok(serde_json::from_str(content.get())?)
}

impl PduReceiver<'_> {
    /// Handles an EDU of a transaction of `origin`, except for presence: see
    /// [`take_presences`](Self::take_presences).
    ///
    /// # Errors
    /// When nothing can be recorded now: the homeserver is to retry.
    pub async fn take_edu(
        &self,
        origin: &ServerName,
        raw: &RawValue,
    ) -> Result<(), engine::ProposeError> {
        let edu: Edu<'_> = match read(raw) {
            Ok(edu) => edu,
            Err(error) => {
                debug!(%origin, %error, "an EDU is dropped");
                return Ok(());
            }
        };
        let taken = match &*edu.edu_type {
            "m.direct_to_device" => self.take_to_device(origin, edu.content).await,
            "m.receipt" => self.take_receipts(origin, edu.content).await,
            "m.typing" => self.take_typing(origin, edu.content).await,
            "m.device_list_update" => self.take_device_list(origin, edu.content).await,
            "m.signing_key_update" => self.take_signing_keys(origin, edu.content).await,
            _ => Ok(()),
        };
        let taken = taken.map_err(|error| match error {
            EduError::Read(error) => EduError::NotRecorded(Refusal::from(error).into()),
            error => error,
        });
        match taken {
            Err(EduError::NotRecorded(error)) if error.is_for_now() => return Err(error),
            // A warning, because users of this server miss something.
            Err(EduError::NotRecorded(error)) if error.is_about_size() => {
                warn!(%origin, edu_type = edu.edu_type, %error, "an EDU is dropped");
            }
            Err(error) => debug!(%origin, edu_type = edu.edu_type, %error, "an EDU is dropped"),
            Ok(()) => {}
        }
        Ok(())
    }
}
