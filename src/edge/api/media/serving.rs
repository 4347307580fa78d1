//! Answers with files and with their thumbnails.

use std::{io, sync::Arc};

use bytes::Bytes;
use http::HeaderMap;
use ruma::{UInt, media::Method};
use tokio::task::spawn_blocking;
use tracing::warn;

use super::file::{self, About, Content};
use crate::{
    edge::{
        api::{Server, Whose},
        http::{ApiError, Reply},
    },
    media::{
        Download, DownloadError, Store,
        picture::{self, Format, PictureError, Thumbnail, Wish},
    },
    record::{Command, command::FileHash},
    state::media::Stored,
};

impl Server {
    async fn open(&self, stored: &Stored) -> Result<Content, ApiError> {
        let (hash, size) = (stored.hash, stored.size);
        self.fetch_if_missing(hash).await?;
        let store = Arc::clone(&self.media.store);
        let opening = spawn_blocking(move || {
            let download = Download::open(&store, hash, size)?;
            let small = download.read_small()?;
            Ok(small.map_or_else(|| Content::File(download), Content::Bytes))
        });
        opening.await.map_err(ApiError::internal)?.map_err(|error| self.lost(&hash, error))
    }

    /// The response for a file that cannot be read.
    fn lost(&self, hash: &FileHash, error: DownloadError) -> ApiError {
        if let DownloadError::Io(error) = error {
            return ApiError::internal(error);
        }
        // It may have been deleted since it was looked up.
        if !self.engine.state().media.names(hash) {
            return ApiError::not_found("There is no such file.");
        }
        self.media.store.report(hash, &error);
        ApiError::not_found("The file is damaged or lost.").with_cause(error)
    }

    /// Answers with a file.
    pub(super) async fn serve(
        &self,
        stored: Stored,
        name: Option<String>,
        public: bool,
        headers: &HeaderMap,
    ) -> Result<Reply, ApiError> {
        let content = self.open(&stored).await?;
        let said = match self.engine.events().command(stored.offset)? {
            Some(Command::MediaUpload(body)) => (body.content_type, body.name),
            _ => (None, None),
        };
        let name = name.filter(|name| !name.is_empty()).or(said.1);
        let tag = stored.hash.to_string();
        file::reply(content, About { content_type: said.0, name, tag, public }, headers)
    }

    /// Answers with a thumbnail.
    pub(super) async fn serve_thumbnail(
        &self,
        stored: Stored,
        wish: Wish,
        caller: &Whose,
        public: bool,
        headers: &HeaderMap,
    ) -> Result<Reply, ApiError> {
        let wish = wish.rounded();
        let (store, hash) = (Arc::clone(&self.media.store), stored.hash);
        let found = spawn_blocking(move || kept(&store, &hash, wish)).await;
        let (content, format) = match found.map_err(ApiError::internal)? {
            Some((bytes, format)) => (Content::Bytes(bytes), format),
            None => self.make_thumbnail(&stored, wish, caller).await?,
        };
        let about = About {
            content_type: Some(format.content_type().to_owned()),
            name: Some(format!("thumbnail.{}", format.extension())),
            tag: format!("{}-{}", stored.hash, wish.name()),
            public,
        };
        file::reply(content, about, headers)
    }

    async fn make_thumbnail(
        &self,
        stored: &Stored,
        mut wish: Wish,
        caller: &Whose,
    ) -> Result<(Content, Format), ApiError> {
        enum Found {
            Kept(Bytes, Format),
            Answer(Thumbnail),
            Lost(DownloadError),
        }
        let place = self.media.pictures.place(caller, false).await;
        let place = place.map_err(|busy| ApiError::limit_exceeded(busy.retry_after))?;
        let (store, hash, size) = (Arc::clone(&self.media.store), stored.hash, stored.size);
        self.fetch_if_missing(hash).await?;
        let making = move || {
            let path = store.path(&hash);
            if let Err(error) = Download::open(&store, hash, size).and_then(|file| file.verify()) {
                return Ok(Found::Lost(error));
            }
            // A still picture has one thumbnail of each size, animated or not.
            wish.animated = wish.animated && picture::moves(&path)?;
            if let Some((bytes, format)) = kept(&store, &hash, wish) {
                return Ok(Found::Kept(bytes, format));
            }
            let made = picture::thumbnails(&path, &[wish])?;
            let Some(thumbnail) = made.into_iter().next() else {
                return Err(PictureError::Broken("nothing came of it".to_owned()));
            };
            if let Thumbnail::Made(format, bytes) = &thumbnail {
                keep_thumbnail(&store, &hash, wish, *format, bytes);
            }
            Ok(Found::Answer(thumbnail))
        };
        match spawn_blocking(move || place.work(making)).await {
            Ok(Ok(Found::Kept(bytes, format))) => Ok((Content::Bytes(bytes), format)),
            Ok(Ok(Found::Lost(error))) => Err(self.lost(&hash, error)),
            Ok(Ok(Found::Answer(Thumbnail::Original(format)))) => {
                Ok((self.open(stored).await?, format))
            }
            Ok(Ok(Found::Answer(Thumbnail::Made(format, bytes)))) => {
                Ok((Content::Bytes(Bytes::from(bytes)), format))
            }
            Ok(Err(PictureError::Io(error))) => Err(ApiError::internal(error)),
            Ok(Err(PictureError::TooLarge)) => {
                Err(ApiError::too_large("The picture is too large for a thumbnail."))
            }
            Ok(Err(error)) => {
                let text = "There can be no thumbnail of this file.";
                Err(ApiError::bad_request(text).with_cause(error))
            }
            // A decoder panicked.
            Err(error) => {
                let text = "There can be no thumbnail of this file.";
                Err(ApiError::bad_request(text).with_cause(error))
            }
        }
    }
}

/// The stored thumbnail for this request.
pub(super) fn kept(store: &Store, hash: &FileHash, wish: Wish) -> Option<(Bytes, Format)> {
    Format::ALL.into_iter().find_map(|format| {
        let name = format!("{}.{}", wish.name(), format.extension());
        Some((store.read_thumbnail(hash, &name)?, format))
    })
}

pub(super) fn keep_thumbnail(
    store: &Store,
    hash: &FileHash,
    wish: Wish,
    format: Format,
    bytes: &[u8],
) {
    let name = format!("{}.{}", wish.name(), format.extension());
    if let Err(error) = store.keep_thumbnail(hash, &name, bytes)
        && error.kind() != io::ErrorKind::QuotaExceeded
    {
        // It is made again next time.
        warn!(%error, "a thumbnail could not be stored");
    }
}

pub(super) fn wish(
    width: UInt,
    height: UInt,
    method: Option<Method>,
    animated: Option<bool>,
) -> Result<Wish, ApiError> {
    let side = |side: UInt| {
        let side = u32::try_from(u64::from(side)).unwrap_or(u32::MAX);
        if side == 0 { Err(ApiError::invalid_param("A thumbnail has a size.")) } else { Ok(side) }
    };
    let method = match method {
        None | Some(Method::Scale) => picture::Method::Scale,
        Some(Method::Crop) => picture::Method::Crop,
        Some(_) => return Err(ApiError::invalid_param("`method` is `crop` or `scale`.")),
    };
    let (width, height) = (side(width)?, side(height)?);
    Ok(Wish { width, height, method, animated: animated.unwrap_or(false) })
}
