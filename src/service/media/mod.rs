//! Uploaded files, copies of those of other homeservers, and previews of pages, with what is in
//! progress.

pub(crate) mod nodes;
pub mod preview;
pub mod remote;
pub mod shared;

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Display,
    io,
    net::Ipv6Addr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use ruma::{OwnedMxcUri, OwnedServerName, OwnedUserId, ServerName, UserId};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify},
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use self::{
    preview::Previews,
    remote::{Failure, Remote},
};
use crate::{federation::Federation, requester::Requester};
use logcabin_base::{bodies::BodyBudget, limits, long_work::LongWork, shutdown::Shutdown, threads};
use logcabin_cluster::Cluster;
use logcabin_config::{self as config, Config};
use logcabin_decide::media::AddMedia;
use logcabin_engine::{Engine, Lagged, ProposeError};
use logcabin_log::ReadError;
use logcabin_media::{
    self as media, FileLocation, IncomingFile, PinnedFile, Store,
    picture::{self, Format, Thumbnail, ThumbnailSpec},
    remote::{RemoteFile, RemoteFiles},
    shared_store::SharedStore,
};
use logcabin_outside::outbound::OutboundError;
use logcabin_record::{Origin, command::FileHash};
use logcabin_state::{
    Effect,
    media::{Item, Stored},
};

/// How often unreferenced files and old thumbnails are looked for.
const SWEEP: Duration = Duration::from_secs(3600);

/// The files of this server, and copies of those of others.
pub struct Media {
    settings: config::Media,
    /// The name of this homeserver.
    own: OwnedServerName,
    engine: Arc<Engine>,
    cluster: Option<Arc<dyn Cluster>>,
    federation: Option<Arc<Federation>>,
    pub store: Arc<Store>,
    /// Files of other homeservers.
    pub remote: Remote,
    /// Schedules the decoding of pictures by requester or uploader.
    pub pictures: LongWork<Requester>,
    /// Notified after an upload that a download may be waiting for.
    uploaded: Notify,
    /// The number of each user's uploads in progress.
    under_way: Mutex<HashMap<OwnedUserId, usize>>,
    previews: Previews,
    /// Where the nodes of a cluster find each other's files, unless they share a directory.
    shared_store: Option<Arc<dyn SharedStore>>,
    /// Held while a file is fetched from there, by the first byte of its hash.
    fetching: [AsyncMutex<()>; 16],
}

/// Why media cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    /// The directory of uploaded files cannot be used.
    #[error("uploaded files cannot be stored: {0}")]
    Store(#[from] io::Error),
    /// The first record cannot be read.
    #[error(transparent)]
    Log(#[from] ReadError),
    /// Previews cannot be created.
    #[error("other services cannot be reached: {0}")]
    Previews(#[from] OutboundError),
}

impl Media {
    /// Opens the files in the data directory of the configuration.
    pub fn open(
        config: &Config,
        bodies: &Arc<BodyBudget>,
        engine: &Arc<Engine>,
        federation: Option<Arc<Federation>>,
        cluster: Option<Arc<dyn Cluster>>,
        shared_store: Option<Arc<dyn SharedStore>>,
    ) -> Result<Arc<Self>, MediaError> {
        let log = logcabin_log::identity(&**engine.log())?;
        let named = |hash: &FileHash| engine.state().media.names(hash);
        let (store, remote) = media::open(config, log, &named)?;
        let percent = config.rate_limits.processor_percent;
        let percent = config.rate_limits.enabled.then_some(percent);
        Ok(Arc::new(Self {
            settings: config.media.clone(),
            own: config.server.name.clone(),
            engine: Arc::clone(engine),
            cluster,
            federation,
            store,
            remote: Remote::new(remote, &config.federation, &config.outbound, bodies)?,
            pictures: LongWork::with_places(percent, limits::PICTURES_AT_ONCE),
            uploaded: Notify::new(),
            under_way: Mutex::default(),
            previews: Previews::new(&config.media, &config.outbound, bodies)?,
            shared_store,
            fetching: Default::default(),
        }))
    }

    /// Copies of files of other homeservers.
    pub fn remote_files(&self) -> Arc<RemoteFiles> {
        Arc::clone(&self.remote.files)
    }

    /// Begins an upload, unless the user has too many in progress.
    pub fn begin_upload(&self, user_id: &UserId) -> Option<UploadGuard<'_>> {
        let mut under_way = self.under_way.lock();
        let count = under_way.entry(user_id.to_owned()).or_default();
        if *count >= limits::UPLOADS_AT_ONCE {
            return None;
        }
        *count += 1;
        Some(UploadGuard { media: self, user_id: user_id.to_owned() })
    }
}

/// Counts an upload in progress.
pub struct UploadGuard<'a> {
    media: &'a Media,
    user_id: OwnedUserId,
}

impl Drop for UploadGuard<'_> {
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

/// Why a file cannot be had or stored.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("There is no such file.")]
    NotFound,
    #[error("This is a file of another server.")]
    OfAnotherServer,
    #[error("There is no such file for users who are not logged in.")]
    NotPublic,
    #[error("This server has no files of other servers.")]
    NoRemoteFiles,
    #[error("The file has not been uploaded yet.")]
    NotYetUploaded,
    /// The disk is full, or fails.
    #[error("the file cannot be written: {0}")]
    Unwritten(#[source] io::Error),
    #[error("The servers of this cluster do not take the file; try again.")]
    NotShared(#[source] io::Error),
    #[error("The servers of this cluster do not have the file at hand; try again.")]
    NotAtHand(#[source] io::Error),
    #[error(transparent)]
    Remote(#[from] Failure),
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// The work on it panicked, or was ended.
    #[error("work on a file was lost: {0}")]
    Lost(String),
}

impl FileError {
    fn lost(error: impl Display) -> Self {
        Self::Lost(error.to_string())
    }
}

impl Media {
    /// Makes a received file durable, and then the record that names it.
    pub async fn keep(
        self: &Arc<Self>,
        receiving: IncomingFile,
        mut add: AddMedia,
        origin: Origin,
    ) -> Result<(), FileError> {
        let held = receiving.finish().await.map_err(FileError::Unwritten)?;
        if let Err(error) = self.share(&held.hash).await {
            self.discard(held).await;
            return Err(FileError::NotShared(error));
        }
        (add.hash, add.size) = (held.hash, held.size);
        // A file that the server fetched has no user.
        let nobody = Requester::Address(Ipv6Addr::UNSPECIFIED.into());
        let uploader = add.user_id.clone().map_or(nobody, Requester::User);
        let picture = add.content_type.as_ref().is_some_and(|kind| kind.starts_with("image/"));
        match self.engine.propose(origin, add).await {
            Ok(added) => added.into_inner(),
            Err(error) => {
                // Only a refusal shows that no record was written.
                if matches!(error, ProposeError::Refused(_)) {
                    self.discard(held).await;
                }
                return Err(error.into());
            }
        }
        self.uploaded.notify_waiters();
        if picture {
            tokio::spawn(Arc::clone(self).make_usual_thumbnails(held, uploader));
        }
        Ok(())
    }

    async fn discard(self: &Arc<Self>, file: PinnedFile) {
        let media = Arc::clone(self);
        let discarding = threads::spawn_blocking(move || {
            media.store.discard(file, |hash| media.engine.state().media.names(hash))
        });
        if let Ok(Err(error)) = discarding.await {
            warn!(%error, "a refused upload could not be deleted; retrying later");
        }
    }

    /// Makes the usual thumbnails before they are requested.
    async fn make_usual_thumbnails(self: Arc<Self>, file: PinnedFile, uploader: Requester) {
        // A user who uploads many at once waits; their thumbnails are made on request.
        let Ok(place) = self.pictures.place(&uploader, false).await else { return };
        let store = Arc::clone(&self.store);
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
        let making = threads::spawn_blocking(move || place.work(making));
        // A panic of a decoder has been logged.
        let _ = making.await;
    }

    /// Whether this server gives out media ids of this name.
    pub fn is_own(&self, server_name: &ServerName) -> bool {
        *server_name == self.own
    }

    /// The address of a media id.
    pub fn mxc(&self, media_id: &str) -> OwnedMxcUri {
        format!("mxc://{}/{media_id}", self.own).into()
    }

    /// The file that somebody wants; waits for an upload in progress, or has it fetched.
    pub async fn find(
        self: &Arc<Self>,
        wanted: FileRequest<'_>,
        caller: Requester,
        shutdown: &Shutdown,
    ) -> Result<ServedFile, FileError> {
        match self.is_own(wanted.server) {
            true => self.stored(wanted.media_id, wanted.wait, shutdown).await.map(ServedFile::from),
            false => self.remote_file(wanted, caller, shutdown).await,
        }
    }

    /// The file of this server, or the copy of a file of another one, that is here, for an
    /// administrator: also in quarantine. Nothing is fetched.
    pub async fn at_hand(
        &self,
        server: &ServerName,
        media_id: &str,
    ) -> Result<ServedFile, FileError> {
        if self.is_own(server) {
            return match self.engine.state().media.get(media_id) {
                Some(Item::Stored(stored)) => Ok(stored.into()),
                _ => Err(FileError::NotFound),
            };
        }
        let address = OwnedMxcUri::from(format!("mxc://{server}/{media_id}"));
        if !address.is_valid() {
            return Err(FileError::NotFound);
        }
        let files = self.remote_files();
        let looking = threads::spawn_blocking(move || {
            let file = files.look(&address)?;
            Some(ServedFile::Copy(files.place(&file), file))
        });
        looking.await.map_err(FileError::lost)?.ok_or(FileError::NotFound)
    }

    /// The file under a media id; waits for an upload in progress.
    pub async fn stored(
        &self,
        media_id: &str,
        wait: Duration,
        shutdown: &Shutdown,
    ) -> Result<Stored, FileError> {
        let until = Instant::now() + wait.min(limits::MEDIA_WAIT);
        loop {
            // Registered before the check, so that no upload is missed.
            let mut uploaded = std::pin::pin!(self.uploaded.notified());
            uploaded.as_mut().enable();
            match self.engine.state().media.get(media_id) {
                Some(Item::Stored(_))
                    if self.engine.state().media.quarantined(media_id).is_some() =>
                {
                    return Err(FileError::NotFound);
                }
                Some(Item::Stored(stored)) => return Ok(stored),
                Some(Item::Unused { expires_ms, .. })
                    if expires_ms > self.engine.clock().now_ms() => {}
                _ => return Err(FileError::NotFound),
            }
            tokio::select! {
                () = uploaded => {}
                () = sleep_until(until) => return Err(FileError::NotYetUploaded),
                () = shutdown.given() => return Err(FileError::NotYetUploaded),
            }
        }
    }

    /// The file that somebody wants, if it is served without an access token.
    pub async fn find_before_freeze(
        self: &Arc<Self>,
        wanted: FileRequest<'_>,
        allow_remote: bool,
        caller: Requester,
        shutdown: &Shutdown,
    ) -> Result<ServedFile, FileError> {
        let serves = |time_ms| self.settings.unauthenticated.serves(time_ms);
        let serves_now = serves(self.engine.clock().now_ms());
        if !self.is_own(wanted.server) {
            // When its homeserver got it is not known: what counts is when this one did.
            return match (allow_remote, serves_now) {
                (false, _) => Err(FileError::OfAnotherServer),
                (true, true) => self.remote_file(wanted, caller, shutdown).await,
                (true, false) => {
                    let copy = self.remote_copy(&wanted).await?;
                    let copy =
                        copy.filter(|copy| serves(copy.fetched_ms)).ok_or(FileError::NotPublic)?;
                    self.found_remote(&copy)
                }
            };
        }
        // Later uploads are not served without authentication, so there is no point in waiting.
        let wait = if serves_now { wanted.wait } else { Duration::ZERO };
        match self.stored(wanted.media_id, wait, shutdown).await {
            Ok(stored) if serves(stored.time_ms) => Ok(ServedFile::from(stored)),
            Ok(_) => Err(FileError::NotPublic),
            Err(FileError::NotYetUploaded) if wait.is_zero() => Err(FileError::NotPublic),
            Err(error) => Err(error),
        }
    }
}

/// The file that somebody wants.
pub struct FileRequest<'a> {
    /// The homeserver whose file it is.
    pub server: &'a ServerName,
    /// Its id there.
    pub media_id: &'a str,
    /// How long to wait for its upload.
    pub wait: Duration,
}

/// A file that is served.
pub enum ServedFile {
    /// One of this server.
    Own(Stored),
    /// The copy of one of another homeserver.
    Copy(FileLocation, RemoteFile),
}

impl From<Stored> for ServedFile {
    fn from(stored: Stored) -> Self {
        Self::Own(stored)
    }
}

impl ServedFile {
    pub const fn hash(&self) -> FileHash {
        match self {
            Self::Own(stored) => stored.hash,
            Self::Copy(place, _) => place.hash,
        }
    }
}

/// The stored thumbnail for this request.
pub fn kept(store: &Store, hash: &FileHash, wish: ThumbnailSpec) -> Option<(Bytes, Format)> {
    Format::ALL.into_iter().find_map(|format| {
        let name = format!("{}.{}", wish.name(), format.extension());
        Some((store.read_thumbnail(hash, &name)?, format))
    })
}

/// Stores a thumbnail for later requests.
pub fn keep_thumbnail(
    store: &Store,
    hash: &FileHash,
    wish: ThumbnailSpec,
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

/// Deletes unreferenced files and old thumbnails, at the start and then regularly, until the server
/// stops.
pub async fn sweep(media: Arc<Media>, shutdown: Shutdown) {
    let mut work = media.engine.head().work();
    let unnamed = |effect: &Effect| match effect {
        Effect::Unnamed(hash) => Some(*hash),
        _ => None,
    };
    // The server may have ended between the record of a removal and the deletion.
    let left = media.engine.state().media.lately_unnamed();
    remove(&media, left.into_iter().collect()).await;
    loop {
        let sweeping = Arc::clone(&media);
        let swept = threads::spawn_blocking(move || {
            let settings = &sweeping.settings;
            let named = |hash: &FileHash| sweeping.engine.state().media.names(hash);
            let age = Duration::from_secs(settings.orphan_seconds);
            let swept = sweeping.store.sweep(named, age)?;
            sweeping.remote.files.sweep()?;
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
                    Ok(files) => remove(&media, files.into_iter().collect()).await,
                    // The scan finds them.
                    Err(Lagged) => break,
                },
                () = shutdown.given() => return,
            }
        }
    }
}

/// Deletes files without any id left. A later sweep finds those that it fails to delete.
async fn remove(media: &Arc<Media>, files: BTreeSet<FileHash>) {
    let media = Arc::clone(media);
    let removing = threads::spawn_blocking(move || {
        for hash in files {
            let named = |hash: &FileHash| media.engine.state().media.names(hash);
            if let Err(error) = media.store.remove(&hash, named) {
                warn!(%error, "a removed file could not be deleted; retrying later");
            }
        }
    });
    // A panic has been logged.
    let _ = removing.await;
}
