//! Media: uploads, downloads and thumbnails (client-server API, "Content repository").

#![allow(
    deprecated,
    reason = "the paths that need no access token are served as far as configured"
)]

use std::{
    collections::{BTreeSet, HashMap},
    io,
    net::Ipv6Addr,
    sync::Arc,
    time::Duration,
};

use http::HeaderMap;
use parking_lot::Mutex;
use ruma::{
    MilliSecondsSinceUnixEpoch, OwnedMxcUri, OwnedUserId, ServerName, UInt, UserId,
    api::client::{
        authenticated_media::{
            get_content::v1 as get_content, get_content_as_filename::v1 as get_content_as,
            get_content_thumbnail::v1 as get_thumbnail, get_media_config::v1 as get_config,
        },
        media::{
            create_content::v3 as create_content, create_content_async::v3 as create_content_async,
            create_mxc_uri::v1 as create_mxc, get_content::v3 as old_get_content,
            get_content_as_filename::v3 as old_get_content_as,
            get_content_thumbnail::v3 as old_get_thumbnail, get_media_config::v3 as old_get_config,
        },
    },
    api::federation::authenticated_media::{
        get_content::v1 as get_content_for_server,
        get_content_thumbnail::v1 as get_thumbnail_for_server,
    },
};
use serde_json::json;
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    task::spawn_blocking,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use super::{
    preview::Previews,
    remote::Remote,
    serving::{Found, keep_thumbnail, kept, wish},
};
use crate::{
    base::{
        bodies::Bodies, clock::random_letters, limits, long_work::LongWork, shutdown::Shutdown,
    },
    config::Config,
    decide::media::{AddMedia, CreateMedia},
    edge::{
        api::{Server, Whose},
        http::{
            ApiError, Cx, Download as DownloadRequest, ErrorCode, Homeserver, Incoming, Json,
            Reply, Upload,
        },
    },
    engine::{Lagged, Rejected},
    media::{
        self, Held, Receiving, Store,
        depot::Depot,
        picture::{self, Thumbnail},
        remote::RemoteFiles,
    },
    outside::outbound::OutboundError,
    record::{Origin, command::FileHash},
    state::{
        Effect,
        media::{Item, Stored},
    },
};

/// How often unreferenced files and old thumbnails are looked for.
const SWEEP: Duration = Duration::from_secs(3600);

/// State shared by the media endpoints.
pub(crate) struct Media {
    pub(super) store: Arc<Store>,
    /// Files of other homeservers.
    pub(super) remote: Remote,
    /// Schedules the decoding of pictures by requester or uploader.
    pub(super) pictures: LongWork<Whose>,
    /// Notified after an upload that a download may be waiting for.
    uploaded: Notify,
    /// The number of each user's uploads in progress.
    under_way: Mutex<HashMap<OwnedUserId, usize>>,
    pub(super) previews: Previews,
    /// Where the nodes of a cluster find each other's files, unless they share a directory.
    pub(super) depot: Option<Arc<dyn Depot>>,
    /// Held while a file is fetched from there, by the first byte of its hash.
    pub(super) fetching: [AsyncMutex<()>; 16],
}

/// Why media cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MediaError {
    /// The directory of uploaded files cannot be used.
    #[error("uploaded files cannot be stored: {0}")]
    Store(#[from] io::Error),
    /// Previews cannot be created.
    #[error("other services cannot be reached: {0}")]
    Previews(#[from] OutboundError),
}

impl Media {
    /// Opens the files in the data directory of the configuration.
    pub(crate) fn open(
        config: &Config,
        bodies: &Arc<Bodies>,
        depot: Option<Arc<dyn Depot>>,
    ) -> Result<Self, MediaError> {
        let (store, remote) = media::open(config)?;
        let percent = config.rate_limits.processor_percent;
        let percent = config.rate_limits.enabled.then_some(percent);
        Ok(Self {
            store,
            remote: Remote::new(remote, config, bodies)?,
            pictures: LongWork::with_places(percent, limits::PICTURES_AT_ONCE),
            uploaded: Notify::new(),
            under_way: Mutex::default(),
            previews: Previews::new(&config.media, &config.outbound, bodies)?,
            depot,
            fetching: Default::default(),
        })
    }

    /// Copies of files of other homeservers.
    pub(crate) fn remote_files(&self) -> Arc<RemoteFiles> {
        Arc::clone(&self.remote.files)
    }

    fn begin_upload(&self, user_id: &UserId) -> Result<UnderWay<'_>, ApiError> {
        let mut under_way = self.under_way.lock();
        let count = under_way.entry(user_id.to_owned()).or_default();
        if *count >= limits::UPLOADS_AT_ONCE {
            return Err(ApiError::limit_exceeded(Duration::from_secs(1)));
        }
        *count += 1;
        Ok(UnderWay { media: self, user_id: user_id.to_owned() })
    }
}

/// Counts an upload in progress.
struct UnderWay<'a> {
    media: &'a Media,
    user_id: OwnedUserId,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut under_way = self.media.under_way.lock();
        if let Some(count) = under_way.get_mut(&self.user_id) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.user_id);
            }
        }
    }
}

pub(super) async fn upload(
    cx: Cx<Server>,
    Upload { request, file }: Upload<create_content::Request>,
) -> Result<Json, ApiError> {
    let media_id = random_letters(24);
    let address = cx.app.mxc(&media_id);
    let add = addition(&cx, media_id, request.content_type, request.filename);
    receive(&cx, file, add).await?;
    crate::edge::api::json(&json!({ "content_uri": address }))
}

pub(super) async fn create(
    cx: Cx<Server>,
    _: create_mxc::Request,
) -> Result<create_mxc::Response, ApiError> {
    let settings = &cx.app.config.media;
    let now_ms = cx.app.engine.clock().now_ms();
    let expires_ms = now_ms.saturating_add(settings.unused_seconds.saturating_mul(1000));
    let media_id = random_letters(24);
    let mut response = create_mxc::Response::new(cx.app.mxc(&media_id));
    response.unused_expires_at = UInt::try_from(expires_ms).ok().map(MilliSecondsSinceUnixEpoch);
    let user_id = cx.caller.user_id.clone();
    let most = settings.unused_ids;
    cx.propose(CreateMedia { user_id, media_id, expires_ms, now_ms, most }).await?.into_inner();
    Ok(response)
}

pub(super) async fn upload_to(
    cx: Cx<Server>,
    Upload { request, file }: Upload<create_content_async::Request>,
) -> Result<Json, ApiError> {
    let create_content_async::Request { server_name, media_id, content_type, filename, .. } =
        request;
    if !cx.app.is_own(&server_name) {
        file.drain().await;
        return Err(ApiError::not_found("This media id was not given out by this server."));
    }
    let mut add = addition(&cx, media_id, content_type, filename);
    add.given_out = true;
    receive(&cx, file, add).await?;
    Ok("{}".into())
}

fn addition(
    cx: &Cx<Server>,
    media_id: String,
    content_type: Option<String>,
    name: Option<String>,
) -> AddMedia {
    AddMedia {
        media_id,
        given_out: false,
        user_id: Some(cx.caller.user_id.clone()),
        // Set once the file is complete.
        hash: FileHash([0; 32]),
        size: 0,
        content_type: content_type.filter(|text| !text.is_empty()),
        name: name.filter(|text| !text.is_empty()),
        now_ms: cx.app.engine.clock().now_ms(),
        quota: cx.app.config.media.user_quota_bytes,
    }
}

/// Receives a file and puts it under its id.
async fn receive(cx: &Cx<Server>, mut incoming: Incoming, add: AddMedia) -> Result<(), ApiError> {
    let (receiving, mut add, _under_way) = match take_in(cx, &mut incoming, add).await {
        Ok(received) => received,
        Err(error) => {
            incoming.drain().await;
            return Err(error);
        }
    };
    // For a reserved id, the time of completion counts.
    add.now_ms = cx.app.engine.clock().now_ms();
    let (app, origin) = (Arc::clone(&cx.app), cx.origin());
    // In its own task: the upload counts even if the client hangs up now.
    let keeping = tokio::spawn(async move { app.keep(receiving, add, origin).await });
    keeping.await.map_err(ApiError::internal)?
}

async fn take_in<'a>(
    cx: &'a Cx<Server>,
    incoming: &mut Incoming,
    mut add: AddMedia,
) -> Result<(Receiving, AddMedia, UnderWay<'a>), ApiError> {
    let under_way = cx.app.media.begin_upload(&cx.caller.user_id)?;
    let declared = incoming.declared()?;
    add.size = declared.unwrap_or(0);
    add.check(&cx.app.engine.state())?;
    let mut receiving = cx.app.media.store.receive(declared).await.map_err(unwritten)?;
    while let Some(piece) = incoming.next().await? {
        receiving.write(piece).await.map_err(unwritten)?;
    }
    Ok((receiving, add, under_way))
}

fn unwritten(error: io::Error) -> ApiError {
    if error.kind() == io::ErrorKind::StorageFull {
        let text = "The server's disk is full: it takes no files until there is room.";
        return ApiError::unavailable(text).with_cause(error);
    }
    ApiError::internal(error)
}

impl Server {
    /// Makes a received file durable, and then the record that names it.
    pub(super) async fn keep(
        self: &Arc<Self>,
        receiving: Receiving,
        mut add: AddMedia,
        origin: Origin,
    ) -> Result<(), ApiError> {
        let held = receiving.finish().await.map_err(unwritten)?;
        if let Err(error) = self.share(&held.hash).await {
            self.discard(held).await;
            let text = "The servers of this cluster do not take the file; try again.";
            return Err(ApiError::unavailable(text).with_cause(error));
        }
        (add.hash, add.size) = (held.hash, held.size);
        // A file that the server fetched has no user.
        let nobody = Whose::Address(Ipv6Addr::UNSPECIFIED.into());
        let uploader = add.user_id.clone().map_or(nobody, Whose::User);
        let picture = add.content_type.as_ref().is_some_and(|kind| kind.starts_with("image/"));
        match self.engine.propose(origin, add).await {
            Ok(added) => added.into_inner(),
            Err(error) => {
                // Only a refusal shows that no record was written.
                if matches!(error, Rejected::Refused(_)) {
                    self.discard(held).await;
                }
                return Err(error.into());
            }
        }
        self.media.uploaded.notify_waiters();
        if picture {
            tokio::spawn(Arc::clone(self).make_usual_thumbnails(held, uploader));
        }
        Ok(())
    }

    async fn discard(self: &Arc<Self>, file: Held) {
        let app = Arc::clone(self);
        let discarding = spawn_blocking(move || {
            app.media.store.discard(file, |hash| app.engine.state().media.names(hash))
        });
        if let Ok(Err(error)) = discarding.await {
            warn!(%error, "a refused upload could not be deleted; retrying later");
        }
    }

    /// Makes the usual thumbnails before they are requested.
    async fn make_usual_thumbnails(self: Arc<Self>, file: Held, uploader: Whose) {
        // A user who uploads many at once waits; their thumbnails are made on request.
        let Ok(place) = self.media.pictures.place(&uploader, false).await else { return };
        let store = Arc::clone(&self.media.store);
        let making = move || {
            let missing: Vec<_> = picture::USUAL
                .into_iter()
                .filter(|wish| kept(&store, &file.hash, *wish).is_none())
                .collect();
            // If it is not a picture, a request for a thumbnail gets the reason.
            let made = picture::thumbnails(&store.path(&file.hash), &missing).unwrap_or_default();
            for (wish, thumbnail) in missing.into_iter().zip(made) {
                if let Thumbnail::Made(format, bytes) = thumbnail {
                    keep_thumbnail(&store, &file.hash, wish, format, &bytes);
                }
            }
        };
        let making = spawn_blocking(move || place.work(making));
        // A panic of a decoder has been logged.
        let _ = making.await;
    }

    fn is_own(&self, server_name: &ServerName) -> bool {
        *server_name == self.config.server.name
    }

    /// The address of a media id.
    pub(crate) fn mxc(&self, media_id: &str) -> OwnedMxcUri {
        format!("mxc://{}/{media_id}", self.config.server.name).into()
    }

    /// The file that somebody wants; waits for an upload in progress, or has it fetched.
    async fn find(
        self: &Arc<Self>,
        wanted: Wanted<'_>,
        caller: Whose,
        shutdown: &Shutdown,
    ) -> Result<Found, ApiError> {
        match self.is_own(wanted.server) {
            true => self.stored(wanted.media_id, wanted.wait, shutdown).await.map(Found::from),
            false => self.remote_file(wanted, caller, shutdown).await,
        }
    }

    /// The file under a media id; waits for an upload in progress.
    async fn stored(
        &self,
        media_id: &str,
        wait: Duration,
        shutdown: &Shutdown,
    ) -> Result<Stored, ApiError> {
        let until = Instant::now() + wait.min(limits::MEDIA_WAIT);
        loop {
            // Registered before the check, so that no upload is missed.
            let mut uploaded = std::pin::pin!(self.media.uploaded.notified());
            uploaded.as_mut().enable();
            match self.engine.state().media.get(media_id) {
                Some(Item::Stored(_))
                    if self.engine.state().media.quarantined(media_id).is_some() =>
                {
                    return Err(ApiError::not_found("There is no such file."));
                }
                Some(Item::Stored(stored)) => return Ok(stored),
                Some(Item::Unused { expires_ms, .. })
                    if expires_ms > self.engine.clock().now_ms() => {}
                _ => return Err(ApiError::not_found("There is no such file.")),
            }
            let not_yet = || {
                let text = "The file was not uploaded yet.";
                Err(ApiError::new(ErrorCode::NotYetUploaded, text))
            };
            tokio::select! {
                () = uploaded => {}
                () = sleep_until(until) => return not_yet(),
                () = shutdown.given() => return not_yet(),
            }
        }
    }

    /// The file that somebody wants, if it is served without an access token.
    async fn find_before_freeze(
        self: &Arc<Self>,
        wanted: Wanted<'_>,
        allow_remote: bool,
        caller: Whose,
        shutdown: &Shutdown,
    ) -> Result<Found, ApiError> {
        let serves = |time_ms| self.config.media.unauthenticated.serves(time_ms);
        let serves_now = serves(self.engine.clock().now_ms());
        let frozen = || ApiError::not_found("There is no such file for who is not logged in.");
        if !self.is_own(wanted.server) {
            // When its homeserver got it is not known: what counts is when this one did.
            return match (allow_remote, serves_now) {
                (false, _) => Err(ApiError::not_found("This is a file of another server.")),
                (true, true) => self.remote_file(wanted, caller, shutdown).await,
                (true, false) => {
                    let copy = self.remote_copy(&wanted).await?;
                    let copy = copy.filter(|copy| serves(copy.fetched_ms)).ok_or_else(frozen)?;
                    self.found_remote(&copy)
                }
            };
        }
        // Later uploads are not served without authentication, so there is no point in waiting.
        let wait = if serves_now { wanted.wait } else { Duration::ZERO };
        match self.stored(wanted.media_id, wait, shutdown).await {
            Ok(stored) if serves(stored.time_ms) => Ok(Found::from(stored)),
            Ok(_) => Err(frozen()),
            Err(error) if *error.code() == ErrorCode::NotYetUploaded && wait.is_zero() => {
                Err(frozen())
            }
            Err(error) => Err(error),
        }
    }
}

/// The file that somebody wants.
pub(super) struct Wanted<'a> {
    /// Whose it is.
    pub(super) server: &'a ServerName,
    /// Its id there.
    pub(super) media_id: &'a str,
    /// How long to wait for its upload.
    pub(super) wait: Duration,
}

pub(super) async fn config(
    cx: Cx<Server>,
    _: get_config::Request,
) -> Result<get_config::Response, ApiError> {
    Ok(get_config::Response::new(largest(&cx.app)))
}

pub(super) async fn old_config(
    cx: Cx<Server>,
    _: old_get_config::Request,
) -> Result<old_get_config::Response, ApiError> {
    Ok(old_get_config::Response::new(largest(&cx.app)))
}

fn largest(app: &Server) -> UInt {
    UInt::try_from(app.config.media.max_upload_bytes).unwrap_or(UInt::MAX)
}

pub(super) async fn download(
    cx: Cx<Server>,
    DownloadRequest { request, headers }: DownloadRequest<get_content::Request>,
) -> Result<Reply, ApiError> {
    let get_content::Request { server_name, media_id, timeout_ms, .. } = request;
    let wanted = Wanted { server: &server_name, media_id: &media_id, wait: timeout_ms };
    let found = cx.app.find(wanted, cx.whose(), &cx.shutdown).await?;
    cx.app.serve(found, None, false, &headers).await
}

pub(super) async fn download_as(
    cx: Cx<Server>,
    DownloadRequest { request, headers }: DownloadRequest<get_content_as::Request>,
) -> Result<Reply, ApiError> {
    let get_content_as::Request { server_name, media_id, filename, timeout_ms, .. } = request;
    let wanted = Wanted { server: &server_name, media_id: &media_id, wait: timeout_ms };
    let found = cx.app.find(wanted, cx.whose(), &cx.shutdown).await?;
    cx.app.serve(found, Some(filename), false, &headers).await
}

pub(super) async fn thumbnail(
    cx: Cx<Server>,
    DownloadRequest { request, headers }: DownloadRequest<get_thumbnail::Request>,
) -> Result<Reply, ApiError> {
    let wish = wish(request.width, request.height, request.method, request.animated)?;
    let get_thumbnail::Request { server_name, media_id, timeout_ms, .. } = request;
    let wanted = Wanted { server: &server_name, media_id: &media_id, wait: timeout_ms };
    let found = cx.app.find(wanted, cx.whose(), &cx.shutdown).await?;
    cx.app.serve_thumbnail(found, wish, &cx.whose(), false, &headers).await
}

pub(super) async fn old_download(
    cx: Cx<Server, ()>,
    DownloadRequest { request, headers }: DownloadRequest<old_get_content::Request>,
) -> Result<Reply, ApiError> {
    let old_get_content::Request { server_name, media_id, timeout_ms, allow_remote, .. } = request;
    let wanted = Wanted { server: &server_name, media_id: &media_id, wait: timeout_ms };
    let (app, caller) = (&cx.app, cx.whose());
    let found = app.find_before_freeze(wanted, allow_remote, caller, &cx.shutdown).await?;
    app.serve(found, None, true, &headers).await
}

pub(super) async fn old_download_as(
    cx: Cx<Server, ()>,
    DownloadRequest { request, headers }: DownloadRequest<old_get_content_as::Request>,
) -> Result<Reply, ApiError> {
    let old_get_content_as::Request { server_name, media_id, filename, timeout_ms, .. } = request;
    let wanted = Wanted { server: &server_name, media_id: &media_id, wait: timeout_ms };
    let (app, caller) = (&cx.app, cx.whose());
    let found = app.find_before_freeze(wanted, request.allow_remote, caller, &cx.shutdown).await?;
    app.serve(found, Some(filename), true, &headers).await
}

pub(super) async fn old_thumbnail(
    cx: Cx<Server, ()>,
    DownloadRequest { request, headers }: DownloadRequest<old_get_thumbnail::Request>,
) -> Result<Reply, ApiError> {
    let wish = wish(request.width, request.height, request.method, request.animated)?;
    let old_get_thumbnail::Request { server_name, media_id, timeout_ms, .. } = request;
    let wanted = Wanted { server: &server_name, media_id: &media_id, wait: timeout_ms };
    let (app, caller) = (&cx.app, cx.whose());
    let found = app.find_before_freeze(wanted, request.allow_remote, caller, &cx.shutdown).await?;
    app.serve_thumbnail(found, wish, &cx.whose(), true, &headers).await
}

/// What comes before a file for another homeserver: nothing is known of it yet.
const ABOUT_FILE: &str = "{}";

pub(in crate::edge::api) async fn download_for_server(
    cx: Cx<Server, Homeserver>,
    request: get_content_for_server::Request,
) -> Result<Reply, ApiError> {
    let stored = cx.app.stored(&request.media_id, request.timeout_ms, &cx.shutdown).await?;
    let file = cx.app.serve(stored.into(), None, false, &HeaderMap::new()).await?;
    Ok(file.after_json(ABOUT_FILE))
}

pub(in crate::edge::api) async fn thumbnail_for_server(
    cx: Cx<Server, Homeserver>,
    request: get_thumbnail_for_server::Request,
) -> Result<Reply, ApiError> {
    let wish = wish(request.width, request.height, request.method, request.animated)?;
    let stored = cx.app.stored(&request.media_id, request.timeout_ms, &cx.shutdown).await?;
    let (found, headers) = (stored.into(), HeaderMap::new());
    let file = cx.app.serve_thumbnail(found, wish, &cx.whose(), false, &headers).await?;
    Ok(file.after_json(ABOUT_FILE))
}

/// Deletes unreferenced files and old thumbnails, at the start and then regularly, until the server
/// stops.
pub(crate) async fn sweep(app: Arc<Server>, shutdown: Shutdown) {
    let mut work = app.engine.head().work();
    let unnamed = |effect: &Effect| match effect {
        Effect::Unnamed(hash) => Some(*hash),
        _ => None,
    };
    // The server may have ended between the record of a removal and the deletion.
    let left = app.engine.state().media.lately_unnamed();
    remove(&app, left.into_iter().collect()).await;
    loop {
        let sweeping = Arc::clone(&app);
        let swept = spawn_blocking(move || {
            let settings = &sweeping.config.media;
            let named = |hash: &FileHash| sweeping.engine.state().media.names(hash);
            let age = Duration::from_secs(settings.orphan_seconds);
            let swept = sweeping.media.store.sweep(named, age)?;
            sweeping.media.remote.files.sweep()?;
            Ok::<_, io::Error>(swept)
        });
        match swept.await {
            Ok(Ok(swept)) if swept.files + swept.thumbnails > 0 => {
                info!(
                    files = swept.files,
                    thumbnails = swept.thumbnails,
                    "deleted unreferenced files and old thumbnails"
                );
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => warn!(%error, "uploaded files could not be scanned"),
            Err(error) => warn!(%error, "scanning uploaded files panicked"),
        }
        let mut next = std::pin::pin!(tokio::time::sleep(SWEEP));
        loop {
            tokio::select! {
                () = &mut next => break,
                files = work.next(unnamed) => match files {
                    Ok(files) => remove(&app, files.into_iter().collect()).await,
                    // The scan finds them.
                    Err(Lagged) => break,
                },
                () = shutdown.given() => return,
            }
        }
    }
}

/// Deletes files without any id left. A later sweep finds those that it fails to delete.
async fn remove(app: &Arc<Server>, files: BTreeSet<FileHash>) {
    let app = Arc::clone(app);
    let removing = spawn_blocking(move || {
        for hash in files {
            let named = |hash: &FileHash| app.engine.state().media.names(hash);
            if let Err(error) = app.media.store.remove(&hash, named) {
                warn!(%error, "a removed file could not be deleted; retrying later");
            }
        }
    });
    // A panic has been logged.
    let _ = removing.await;
}
