//! Files of other homeservers (server-server API, "Content Repository").

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{
    HeaderMap, Method, StatusCode,
    header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, LOCATION},
};
use http_body_util::BodyDataStream;
use hyper::body::Incoming;
use ruma::{ServerName, http_headers::ContentDisposition};
use serde::Deserialize;
use thiserror::Error;
use tokio::time;
use url::Url;

use super::{
    ChargedTo, FederationClient, FederationRequest, Unreachable,
    multipart::{Pieces, SecondPart, boundary},
    whole,
};
use crate::outbound::{Outbound, OutboundError, OutboundRequest};
use logcabin_base::{limits, text::encoded};

/// Why a file of another homeserver is not available.
#[derive(Clone, Debug, Error)]
pub enum NoFile {
    #[error("it does not have the file")]
    NotFound,
    /// Nobody has uploaded it yet.
    #[error("the file has not been uploaded yet")]
    NotYetUploaded,
    /// It is too large for the homeserver, or for this server.
    #[error("the file is too large")]
    TooLarge,
    /// It was asked too often.
    #[error("it limits the rate of requests")]
    LimitExceeded,
    /// There is no usable answer.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
}

/// A file that has begun to arrive.
pub struct RemoteDownload {
    /// Its type, according to the homeserver.
    pub content_type: Option<String>,
    /// Its name, according to the homeserver.
    pub name: Option<String>,
    /// Its approximate size in bytes, according to the homeserver. It may be wrong.
    pub length: Option<u64>,
    content: Content,
}

enum Content {
    Whole(Pieces),
    Part(SecondPart),
}

/// The body of a homeserver's refusal.
#[derive(Default, Deserialize)]
struct ErrorBody {
    #[serde(default)]
    errcode: String,
}

impl RemoteDownload {
    fn new(headers: &HeaderMap, length: Option<u64>, content: Content) -> Self {
        let disposition = headers.get(CONTENT_DISPOSITION);
        let disposition =
            disposition.and_then(|said| ContentDisposition::try_from(said.as_bytes()).ok());
        let content_type = headers.get(CONTENT_TYPE).and_then(|said| said.to_str().ok());
        let fits = |text: &String| (1..=limits::MEDIA_NAME_BYTES).contains(&text.len());
        Self {
            content_type: content_type.map(ToOwned::to_owned).filter(fits),
            name: disposition.and_then(|disposition| disposition.filename).filter(fits),
            length,
            content,
        }
    }

    /// A file that another node of this server's cluster has a copy of.
    pub fn of_node(
        content_type: Option<String>,
        name: Option<String>,
        length: u64,
        pieces: Pieces,
    ) -> Self {
        Self { content_type, name, length: Some(length), content: Content::Whole(pieces) }
    }

    /// The next piece of it; `None` at the end.
    ///
    /// # Errors
    /// When it ends early.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Unreachable> {
        match &mut self.content {
            Content::Whole(pieces) => pieces.next().await.transpose(),
            Content::Part(part) => part.next().await,
        }
    }
}

impl FederationClient {
    /// Asks `server` for a file of its own, and lets it wait for the upload for this long. The
    /// caller limits the time and the size. `outbound` follows a redirect to the file.
    pub async fn file(
        &self,
        outbound: &Outbound,
        server: &ServerName,
        media_id: &str,
        wait: Duration,
    ) -> Result<RemoteDownload, NoFile> {
        if *server == *self.own_name() || !self.permits(server) {
            return Err(Unreachable::Denied.into());
        }
        let (media_id, wait) = (encoded(media_id), wait.as_millis());
        let path = format!("/_matrix/federation/v1/media/download/{media_id}?timeout_ms={wait}");
        let (head, body) = self.begin(server, FederationRequest::get(path)).await?.into_parts();
        if head.status.is_success() {
            let boundary = boundary(&head.headers);
            let boundary =
                boundary.ok_or_else(|| Unreachable::Unexpected("it has no parts".to_owned()))?;
            let (headers, part) = SecondPart::find(pieces(body), &boundary).await?;
            if let Some(location) = headers.get(LOCATION) {
                let location = location.to_str().unwrap_or_default();
                return elsewhere(outbound, location).await;
            }
            return Ok(RemoteDownload::new(&headers, length(&head.headers), Content::Part(part)));
        }
        match self.refusal(server, head.status, body).await {
            // Its version lacks this endpoint.
            (_, errcode) if errcode == "M_UNRECOGNIZED" => {}
            (status, errcode) => return Err(refused(status, &errcode)),
        }
        let path = format!(
            "/_matrix/media/v3/download/{}/{media_id}?allow_remote=false&timeout_ms={wait}",
            encoded(server.as_str())
        );
        let (head, body) =
            self.begin(server, FederationRequest::get(path).unsigned()).await?.into_parts();
        if head.status.is_success() {
            let (headers, content) = (&head.headers, Content::Whole(pieces(body)));
            return Ok(RemoteDownload::new(headers, length(headers), content));
        }
        if head.status.is_redirection() {
            let location = head.headers.get(LOCATION).and_then(|location| location.to_str().ok());
            return elsewhere(outbound, location.unwrap_or_default()).await;
        }
        let (status, errcode) = self.refusal(server, head.status, body).await;
        Err(refused(status, &errcode))
    }

    /// The failure for a refusal, with its error code if there is one.
    async fn refusal(
        &self,
        server: &ServerName,
        status: StatusCode,
        body: Incoming,
    ) -> (StatusCode, String) {
        let account = ChargedTo::of_host(&self.bodies, server.as_str());
        let until = time::Instant::now() + limits::FEDERATION_TIMEOUT;
        let body = whole(body, account, limits::REMOTE_FILE_ERROR_BYTES, until).await;
        let refusal = serde_json::from_slice::<ErrorBody>(&body.unwrap_or_default());
        (status, refusal.unwrap_or_default().errcode)
    }
}

/// The file at an address that a homeserver redirects to.
async fn elsewhere(outbound: &Outbound, location: &str) -> Result<RemoteDownload, NoFile> {
    let unexpected = || Unreachable::Unexpected("it names no HTTPS address".to_owned());
    let mut url = Url::parse(location).map_err(|_| unexpected())?;
    for _ in 0..=limits::REMOTE_FILE_REDIRECTS {
        if url.scheme() != "https" {
            return Err(unexpected().into());
        }
        let response = outbound.begin(OutboundRequest::new(Method::GET, url.clone())).await?;
        let (status, headers) = (response.status(), response.headers());
        if status.is_success() {
            let (headers, length) = (headers.clone(), length(headers));
            let pieces = pieces(response.into_body());
            return Ok(RemoteDownload::new(&headers, length, Content::Whole(pieces)));
        }
        let location = headers.get(LOCATION).filter(|_| status.is_redirection());
        let next = location.and_then(|location| url.join(location.to_str().ok()?).ok());
        let Some(next) = next else { return Err(refused(status, "")) };
        url = next;
    }
    Err(Unreachable::Unexpected("it has too many redirects".to_owned()).into())
}

impl From<OutboundError> for NoFile {
    fn from(error: OutboundError) -> Self {
        Self::Unreachable(match error {
            OutboundError::NotPublic(_) => Unreachable::NotPublic,
            error => Unreachable::Connection(error.to_string()),
        })
    }
}

fn pieces(body: Incoming) -> Pieces {
    let pieces = BodyDataStream::new(body);
    Box::pin(pieces.map(|piece| piece.map_err(|error| Unreachable::Connection(error.to_string()))))
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn refused(status: StatusCode, errcode: &str) -> NoFile {
    match (status.as_u16(), errcode) {
        (_, "M_NOT_YET_UPLOADED") => NoFile::NotYetUploaded,
        (_, "M_TOO_LARGE") | (413, _) => NoFile::TooLarge,
        (404 | 410, _) => NoFile::NotFound,
        (429, _) => NoFile::LimitExceeded,
        (status, _) => Unreachable::Status(status).into(),
    }
}
