//! Previews of pages on the web (client-server API, "Content repository", `preview_url`).
//!
//! The server fetches addresses that users name. They must be on the public internet, as must each
//! redirect, and time and size are limited (see [`Outbound::public_only`]).

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{
    Method,
    header::{ACCEPT, CONTENT_TYPE, LOCATION},
};
use quick_cache::{Weighter, sync::Cache};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tracing::debug;
use url::Url;

use super::{FileError, Media};
use logcabin_base::{bodies::BodyBudget, limits, threads};
use logcabin_config as config;
use logcabin_decide::{Refusal, media::AddMedia};
use logcabin_engine::ProposeError;
use logcabin_media::{page::Page, picture};
use logcabin_outside::outbound::{Outbound, OutboundError, OutboundRequest, OutboundResponse};
use logcabin_record::{Origin, command::FileHash};

/// How long a failed preview is cached.
const FAILURE_MS: u64 = 60_000;

/// Creates previews.
pub(crate) struct Previews {
    outbound: Outbound,
    at_once: Semaphore,
    /// By address. Concurrent requests for the same address share one fetch.
    made: Cache<String, CachedPreview, Weight>,
}

/// The result for an address.
#[derive(Clone)]
struct CachedPreview {
    preview: Result<Bytes, Failure>,
    until_ms: u64,
}

#[derive(Clone)]
struct Weight;

impl Weighter<String, CachedPreview> for Weight {
    fn weight(&self, url: &String, made: &CachedPreview) -> u64 {
        (url.len() + made.preview.as_ref().map_or(0, Bytes::len) + 128) as u64
    }
}

/// Why there is no preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It must not be fetched.
    Address,
    /// It is not to be asked.
    Refused,
    /// Its server does not respond, or with an error.
    Upstream,
}

impl Previews {
    /// Creates previews with these settings.
    pub(super) fn new(
        settings: &config::Media,
        outbound: &config::Outbound,
        bodies: &Arc<BodyBudget>,
    ) -> Result<Self, OutboundError> {
        let allowed = &settings.preview_allowed_ranges.0;
        Ok(Self {
            outbound: Outbound::public_only(outbound, bodies, allowed)?,
            at_once: Semaphore::new(limits::PREVIEWS_AT_ONCE),
            made: Cache::with_weighter(1024, limits::PREVIEW_CACHE_BYTES, Weight),
        })
    }
}

/// A web address, reduced to what is sent to its server.
fn address(text: &str) -> Option<Url> {
    let mut url = (text.len() <= limits::PREVIEW_URL_BYTES).then(|| Url::parse(text).ok())??;
    web(&url).then_some(())?;
    // Credentials are nobody else's business.
    url.set_username("").ok()?;
    url.set_password(None).ok()?;
    url.set_fragment(None);
    Some(url)
}

fn web(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https") && url.host_str().is_some_and(|host| !host.is_empty())
}

impl Media {
    /// The preview of an address, as JSON.
    pub async fn preview(self: &Arc<Self>, url: &str, origin: Origin) -> Result<Bytes, Failure> {
        let url = address(url).ok_or(Failure::Address)?;
        let now_ms = self.engine.clock().now_ms();
        let made = &self.previews.made;
        made.remove_if(url.as_str(), |made| made.until_ms <= now_ms);
        let making = async {
            let preview = self.make_preview(url.clone(), origin).await;
            let kept_ms = match preview {
                Ok(_) => self.settings.preview_cache_seconds.saturating_mul(1000),
                Err(_) => FAILURE_MS,
            };
            Ok::<_, Failure>(CachedPreview { preview, until_ms: now_ms.saturating_add(kept_ms) })
        };
        made.get_or_insert_async(url.as_str(), making).await?.preview
    }

    async fn make_preview(self: &Arc<Self>, url: Url, origin: Origin) -> Result<Bytes, Failure> {
        let _permit = self.previews.at_once.acquire().await.map_err(|_| Failure::Upstream)?;
        let accepted = "text/html,application/xhtml+xml,image/*;q=0.5,*/*;q=0.1";
        let most = limits::PREVIEW_PAGE_BYTES.max(self.largest_picture().saturating_add(1));
        let (url, answer) = self.ask_page(url, accepted, most).await?;
        let content_type = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().trim().to_ascii_lowercase();
        let mut data = Map::new();
        if content_type.starts_with("text/html")
            || content_type.starts_with("application/xhtml+xml")
        {
            let most = answer.body.len().min(limits::PREVIEW_PAGE_BYTES);
            let body = answer.body.slice(..most);
            let reading = move || Page::read(&body, &content_type);
            let page = threads::spawn_blocking(reading).await.map_err(|_| Failure::Upstream)?;
            for (name, value) in &page.properties {
                data.insert(name.clone(), json!(value));
            }
            let base = page.base.as_deref().and_then(|base| url.join(base).ok());
            let base = base.as_ref().unwrap_or(&url);
            let image = page.image.as_deref().and_then(|image| base.join(image).ok());
            if let Some(image) = image.filter(web)
                && self.largest_picture() > 0
                && let Ok((_, image)) =
                    self.ask_page(image, "image/*", self.largest_picture().saturating_add(1)).await
            {
                self.add_picture(&mut data, image.body, origin).await;
            }
        } else if content_type.starts_with("image/") {
            self.add_picture(&mut data, answer.body, origin).await;
        }
        let data = serde_json::to_vec(&Value::Object(data)).map_err(|_| Failure::Upstream)?;
        Ok(data.into())
    }

    fn largest_picture(&self) -> usize {
        usize::try_from(self.settings.preview_image_bytes).unwrap_or(usize::MAX)
    }

    /// Fetches an address and its redirects; of a long response, the beginning.
    async fn ask_page(
        &self,
        mut url: Url,
        accepted: &str,
        max_bytes: usize,
    ) -> Result<(Url, OutboundResponse), Failure> {
        for _ in 0..=limits::PREVIEW_REDIRECTS {
            let denied = &self.settings.preview_denied_urls.0;
            let host = url.host_str().unwrap_or_default();
            if denied.iter().any(|pattern| pattern.matches(host, url.path())) {
                return Err(Failure::Refused);
            }
            let mut ask = OutboundRequest::new(Method::GET, url.clone()).header(ACCEPT, accepted);
            (ask.max_bytes, ask.cut) = (max_bytes, true);
            let answer = self.previews.outbound.send(ask).await.map_err(|error| {
                debug!(%error, "no preview");
                match error {
                    OutboundError::NotPublic(_) => Failure::Refused,
                    _ => Failure::Upstream,
                }
            })?;
            if answer.status.is_success() {
                return Ok((url, answer));
            }
            let location = answer.headers.get(LOCATION).filter(|_| answer.status.is_redirection());
            let location = location.and_then(|location| location.to_str().ok());
            let next = location.and_then(|location| url.join(location).ok()).filter(web);
            url = next.ok_or(Failure::Upstream)?;
        }
        Err(Failure::Upstream)
    }

    /// Adds a picture to a preview, if it can be fetched and stored, and is not too large.
    async fn add_picture(
        self: &Arc<Self>,
        data: &mut Map<String, Value>,
        bytes: Bytes,
        origin: Origin,
    ) {
        if bytes.len() > self.largest_picture() {
            return;
        }
        let reading = bytes.clone();
        let about = threads::spawn_blocking(move || picture::about(&reading)).await;
        let Ok(Ok(picture::PictureInfo { format, size: (width, height) })) = about else { return };
        let content_type = format.content_type();
        let size = bytes.len();
        match self.keep_picture(bytes, content_type, origin).await {
            Ok(media_id) => {
                data.insert("og:image".to_owned(), json!(self.mxc(&media_id)));
                data.insert("og:image:type".to_owned(), json!(content_type));
                data.insert("og:image:width".to_owned(), json!(width));
                data.insert("og:image:height".to_owned(), json!(height));
                data.insert("matrix:image:size".to_owned(), json!(size));
            }
            Err(error) => debug!(%error, "the picture of a preview is not kept"),
        }
    }

    /// Stores a picture under an id derived from its hash, so that the same picture is recorded
    /// once.
    async fn keep_picture(
        self: &Arc<Self>,
        bytes: Bytes,
        content_type: &str,
        origin: Origin,
    ) -> Result<String, FileError> {
        let hash = FileHash::from(blake3::hash(&bytes));
        let media_id = URL_SAFE_NO_PAD.encode(hash.0);
        if self.engine.state().media.get(&media_id).is_some() {
            return Ok(media_id);
        }
        let size = bytes.len() as u64;
        let add = AddMedia {
            media_id: media_id.clone(),
            given_out: false,
            user_id: None,
            hash,
            size,
            content_type: Some(content_type.to_owned()),
            name: None,
            now_ms: self.engine.clock().now_ms(),
            quota: self.settings.preview_store_bytes,
        };
        add.check(&self.engine.state()).map_err(ProposeError::from)?;
        let mut receiving = self.store.receive(Some(size)).await.map_err(FileError::Unwritten)?;
        receiving.write(bytes).await.map_err(FileError::Unwritten)?;
        let media = Arc::clone(self);
        // In its own task, because the client may hang up.
        let keeping = tokio::spawn(async move { media.keep(receiving, add, origin).await });
        match keeping.await.map_err(FileError::lost)? {
            // A concurrent request has stored it.
            Ok(())
            | Err(FileError::Propose(ProposeError::Refused(Refusal::CannotOverwriteMedia))) => {
                Ok(media_id)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_web_addresses_are_previewed_and_passwords_are_removed() {
        let read = |text| address(text).map(String::from);
        let whole = read("https://ann:secret@Example.org:8443/a?b#c");
        assert_eq!(whole.as_deref(), Some("https://example.org:8443/a?b"));
        for other in [
            "",
            "example.org",
            "ftp://example.org",
            "file:///etc/passwd",
            "data:text/html,x",
            "https://",
            "mailto:a@b",
        ] {
            assert_eq!(read(other), None, "{other}");
        }
        assert_eq!(read(&format!("https://example.org/{}", "x".repeat(10_000))), None);
    }
}
