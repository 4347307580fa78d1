//! The LiveKit server that calls go through: the tokens that let people in, and the requests by
//! which its rooms are made.

mod token;

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::{Method, StatusCode, header::AUTHORIZATION};
use serde::Serialize;
use serde_json::json;
use thiserror::Error;
use tracing::{info, warn};
use url::Url;

use crate::outbound::{Outbound, OutboundError, OutboundRequest};
use logcabin_base::limits;
use logcabin_config::{Rtc, SecretFile};

use token::{ApiKey, Grants, Unsigned};
pub use token::{identity, room_name};

/// Why LiveKit did not do what it was asked for.
#[derive(Debug, Error)]
pub enum LivekitError {
    #[error(transparent)]
    Unreached(#[from] OutboundError),
    #[error("it answered with status {0}")]
    Status(StatusCode),
    #[error("the token cannot be made: {0}")]
    Token(#[from] Unsigned),
}

/// The LiveKit server of the configuration.
pub struct Livekit {
    url: String,
    api: Url,
    keys_file: SecretFile,
    key: ArcSwap<ApiKey>,
    token_seconds: u64,
    outbound: Outbound,
}

impl Livekit {
    /// The LiveKit server, if one is configured.
    ///
    /// # Errors
    /// With what is wrong with the settings or the file of keys.
    pub fn new(config: &Rtc, outbound: &Outbound) -> Result<Option<Self>, String> {
        let (Some(url), Some(keys_file)) = (&config.livekit_url, &config.livekit_keys_file) else {
            return Ok(None);
        };
        let api = config.livekit_api_url.as_ref();
        Ok(Some(Self {
            api: api.map_or_else(|| url.for_requests(), |api| api.url())?,
            url: url.to_string(),
            key: ArcSwap::from_pointee(read(keys_file)?),
            keys_file: keys_file.clone(),
            token_seconds: config.token_seconds,
            outbound: outbound.clone(),
        }))
    }

    /// Where clients connect to it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the secret is as long as LiveKit wants it.
    pub fn has_long_secret(&self) -> bool {
        self.key.load().has_long_secret()
    }

    /// Reads the file of keys again. If it is not usable, the key stays.
    pub fn reload(&self) {
        match read(&self.keys_file) {
            Ok(key) if key == **self.key.load() => {}
            Ok(key) => {
                self.key.store(Arc::new(key));
                info!("another key of LiveKit is used from now on");
            }
            Err(error) => warn!(error, "the key of LiveKit stays"),
        }
    }

    /// A token that lets somebody into a room.
    ///
    /// # Errors
    /// When the token cannot be serialised.
    pub fn token(
        &self,
        room: &str,
        identity: &str,
        can_publish: bool,
        now_ms: u64,
    ) -> Result<String, LivekitError> {
        let grants = Grants::to_join(room, can_publish);
        Ok(self.key.load().sign(Some(identity), &grants, now_ms, self.token_seconds)?)
    }

    /// Makes a room, unless it exists.
    ///
    /// # Errors
    /// When LiveKit does not do it.
    pub async fn create_room(&self, name: &str, now_ms: u64) -> Result<(), LivekitError> {
        let (empty, departure) = limits::LIVEKIT_ROOM_SECONDS;
        let room = json!({ "name": name, "empty_timeout": empty, "departure_timeout": departure });
        self.ask("CreateRoom", &room, &Grants::to_create(), now_ms).await
    }

    /// Asks for a room that does not exist, which changes nothing.
    ///
    /// # Errors
    /// When LiveKit does not answer, or does not take the key.
    pub async fn check(&self, now_ms: u64) -> Result<(), LivekitError> {
        let nobody = json!({ "names": ["-"] });
        self.ask("ListRooms", &nobody, &Grants::to_list(), now_ms).await
    }

    /// Calls a method of LiveKit's RoomService.
    async fn ask(
        &self,
        method: &str,
        body: &impl Serialize,
        grants: &Grants<'_>,
        now_ms: u64,
    ) -> Result<(), LivekitError> {
        let mut url = self.api.clone();
        let path = url.path().trim_end_matches('/');
        url.set_path(&format!("{path}/twirp/livekit.RoomService/{method}"));
        let token =
            self.key.load().sign(None, grants, now_ms, limits::LIVEKIT_API_TOKEN_SECONDS)?;
        let request = OutboundRequest::new(Method::POST, url).json(body);
        let mut request = request.header(AUTHORIZATION, &format!("Bearer {token}"));
        (request.timeout, request.max_bytes) = (limits::LIVEKIT_TIME, limits::LIVEKIT_ANSWER_BYTES);
        let answer = self.outbound.send(request).await?;
        match answer.status.is_success() {
            true => Ok(()),
            false => Err(LivekitError::Status(answer.status)),
        }
    }
}

fn read(file: &SecretFile) -> Result<ApiKey, String> {
    let text = file.read().map_err(|error| format!("`rtc.livekit_keys_file`: {error}"))?;
    let wrong = "`rtc.livekit_keys_file`: its first line is not of the form `key: secret`";
    ApiKey::first_of(&text).ok_or_else(|| wrong.to_owned())
}
