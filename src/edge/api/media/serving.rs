//! Answers with files and with their thumbnails.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use ruma::{UInt, media::Method};

use super::file::{self, Content, FileMetadata};
use crate::{
    api::server::Server,
    http::{ApiError, ErrorCode, Reply},
};
use logcabin_base::{limits, threads};
use logcabin_engine::Engine;
use logcabin_media::{
    Download, DownloadError, FileLocation, Store,
    picture::{self, Format, PictureError, Thumbnail, ThumbnailSpec},
};
use logcabin_record::{Command, command::FileHash};
use logcabin_service::{
    media::{Media, ServedFile, keep_thumbnail, kept},
    requester::Requester,
};

/// What it takes to answer with files.
pub(in crate::api) struct Serving<'a> {
    engine: &'a Engine,
    media: &'a Media,
}

impl<'a> Serving<'a> {
    pub(in crate::api) fn of(app: &'a Server) -> Self {
        Self { engine: &app.engine, media: &app.media }
    }

    /// Where a file is, which this node has.
    async fn place_of(&self, found: &ServedFile) -> Result<FileLocation, ApiError> {
        match found {
            ServedFile::Own(stored) => {
                let (hash, size) = (stored.hash, stored.size);
                self.media.fetch_if_missing(hash).await?;
                Ok(FileLocation { store: Arc::clone(&self.media.store), name: hash, hash, size })
            }
            ServedFile::Copy(place, _) => Ok(place.clone()),
        }
    }

    async fn open(&self, found: &ServedFile) -> Result<Content, ApiError> {
        let place = self.place_of(found).await?;
        let opening = threads::spawn_blocking(move || {
            let download = Download::open(&place)?;
            let small = download.read_small();
            if let Err(error) = &small {
                download.report(error);
            }
            Ok(small?.map_or_else(|| Content::File(download), Content::Bytes))
        });
        opening.await.map_err(ApiError::internal)?.map_err(|error| self.lost(found, error))
    }

    /// The response for a file that cannot be read.
    fn lost(&self, found: &ServedFile, error: DownloadError) -> ApiError {
        match error {
            DownloadError::Io(error) => return ApiError::internal(error),
            DownloadError::Busy => return ApiError::limit_exceeded(limits::ACCEPT_RETRY),
            DownloadError::Missing | DownloadError::Damaged(_) => {}
        }
        match found {
            ServedFile::Copy(..) => {
                let text = "The copy of the file was lost; try again.";
                ApiError::new(ErrorCode::ConnectionFailed, text).with_cause(error)
            }
            // It may have been deleted since it was looked up.
            ServedFile::Own(stored) if !self.engine.state().media.names(&stored.hash) => {
                ApiError::not_found("There is no such file.")
            }
            ServedFile::Own(stored) => {
                self.media.store.report(&stored.hash, &error);
                ApiError::not_found("The file is damaged or lost.").with_cause(error)
            }
        }
    }

    /// Answers with a file.
    pub(super) async fn serve(
        &self,
        found: ServedFile,
        name: Option<String>,
        public: bool,
        headers: &HeaderMap,
    ) -> Result<Reply, ApiError> {
        let content = self.open(&found).await?;
        let tag = found.hash().to_string();
        let said = match found {
            ServedFile::Own(stored) => match self.engine.events().command(stored.offset)? {
                Some(Command::MediaUpload(body)) => (body.content_type, body.name),
                _ => (None, None),
            },
            ServedFile::Copy(_, file) => (file.content_type, file.name),
        };
        let name = name.filter(|name| !name.is_empty()).or(said.1);
        file::reply(content, FileMetadata { content_type: said.0, name, tag, public }, headers)
    }

    /// Answers with a thumbnail.
    pub(super) async fn serve_thumbnail(
        &self,
        found: ServedFile,
        wish: ThumbnailSpec,
        caller: &Requester,
        public: bool,
        headers: &HeaderMap,
    ) -> Result<Reply, ApiError> {
        let wish = wish.rounded();
        let (store, name) = self.stored_as(&found);
        let ready = threads::spawn_blocking(move || kept(&store, &name, wish)).await;
        let (content, format) = match ready.map_err(ApiError::internal)? {
            Some((bytes, format)) => (Content::Bytes(bytes), format),
            None => self.make_thumbnail(&found, wish, caller, false).await?,
        };
        let about = FileMetadata {
            content_type: Some(format.content_type().to_owned()),
            name: Some(format!("thumbnail.{}", format.extension())),
            tag: format!("{}-{}", found.hash(), wish.name()),
            public,
        };
        file::reply(content, about, headers)
    }

    /// A thumbnail whose bytes this server has encoded, also of a picture that is small already.
    pub(in crate::api) async fn draw(
        &self,
        found: &ServedFile,
        wish: ThumbnailSpec,
        caller: &Requester,
    ) -> Result<(Bytes, Format), ApiError> {
        let (store, name) = self.stored_as(found);
        let ready = threads::spawn_blocking(move || kept(&store, &name, wish)).await;
        if let Some(ready) = ready.map_err(ApiError::internal)? {
            return Ok(ready);
        }
        match self.make_thumbnail(found, wish, caller, true).await? {
            (Content::Bytes(bytes), format) => Ok((bytes, format)),
            (Content::File(_), _) => Err(no_thumbnail()),
        }
    }

    /// Under which name a file is in which store, where its thumbnails are, too.
    fn stored_as(&self, found: &ServedFile) -> (Arc<Store>, FileHash) {
        match found {
            ServedFile::Own(stored) => (Arc::clone(&self.media.store), stored.hash),
            ServedFile::Copy(place, _) => (Arc::clone(&place.store), place.name),
        }
    }

    /// With `redraws`, a picture that is small enough is encoded again.
    async fn make_thumbnail(
        &self,
        found: &ServedFile,
        mut wish: ThumbnailSpec,
        caller: &Requester,
        redraws: bool,
    ) -> Result<(Content, Format), ApiError> {
        enum ThumbnailResult {
            Kept(Bytes, Format),
            Answer(Thumbnail),
            Lost(DownloadError),
        }
        let turn = self.media.pictures.place(caller, false).await;
        let turn = turn.map_err(|busy| ApiError::limit_exceeded(busy.retry_after))?;
        let place = self.place_of(found).await?;
        let making = move || {
            let (store, name) = (&place.store, place.name);
            let path = store.path(&name);
            let verify = |file: Download| file.verify().inspect_err(|error| file.report(error));
            if let Err(error) = Download::open(&place).and_then(verify) {
                return Ok(ThumbnailResult::Lost(error));
            }
            // A still picture has one thumbnail of each size, animated or not.
            wish.animated = wish.animated && picture::moves(&path)?;
            if let Some((bytes, format)) = kept(store, &name, wish) {
                return Ok(ThumbnailResult::Kept(bytes, format));
            }
            let made = picture::thumbnails(&path, &[wish])?;
            let Some(thumbnail) = made.into_iter().next() else {
                return Err(PictureError::Broken("nothing came of it".to_owned()));
            };
            Ok(ThumbnailResult::Answer(match thumbnail {
                Thumbnail::Original(_) if redraws => {
                    let (format, bytes) = picture::redrawn(&path)?;
                    Thumbnail::Made(format, bytes)
                }
                Thumbnail::Made(format, bytes) => {
                    keep_thumbnail(store, &name, wish, format, &bytes);
                    Thumbnail::Made(format, bytes)
                }
                original @ Thumbnail::Original(_) => original,
            }))
        };
        match threads::spawn_blocking(move || turn.work(making)).await {
            Ok(Ok(ThumbnailResult::Kept(bytes, format))) => Ok((Content::Bytes(bytes), format)),
            Ok(Ok(ThumbnailResult::Lost(error))) => Err(self.lost(found, error)),
            Ok(Ok(ThumbnailResult::Answer(Thumbnail::Original(format)))) => {
                Ok((self.open(found).await?, format))
            }
            Ok(Ok(ThumbnailResult::Answer(Thumbnail::Made(format, bytes)))) => {
                Ok((Content::Bytes(Bytes::from(bytes)), format))
            }
            Ok(Err(PictureError::Io(error))) => Err(ApiError::internal(error)),
            Ok(Err(PictureError::TooLarge)) => {
                Err(ApiError::too_large("The picture is too large for a thumbnail."))
            }
            Ok(Err(error)) => Err(no_thumbnail().with_cause(error)),
            // A decoder panicked.
            Err(error) => Err(no_thumbnail().with_cause(error)),
        }
    }
}

fn no_thumbnail() -> ApiError {
    ApiError::bad_request("There can be no thumbnail of this file.")
}

pub(super) fn wish(
    width: UInt,
    height: UInt,
    method: Option<Method>,
    animated: Option<bool>,
) -> Result<ThumbnailSpec, ApiError> {
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
    Ok(ThumbnailSpec { width, height, method, animated: animated.unwrap_or(false) })
}
