//! Files of other homeservers for local users: fetched on the first request, and then served from a
//! copy (client-server API, "Content repository"; server-server API, "Content Repository").

use std::{
    collections::HashMap,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use quick_cache::sync::Cache;
use ruma::{MxcUri, OwnedMxcUri, OwnedServerName};
use tokio::{
    sync::{Semaphore, watch},
    time::timeout_at,
};
use tracing::{debug, error};

use super::{FileError, FileRequest, Media, ServedFile};
use crate::{federation::Federation, requester::Requester};
use logcabin_base::{
    arrival::Pace, bodies::BodyBudget, keyed_semaphore::KeyedSemaphore, limits, shutdown::Shutdown,
    threads,
};
use logcabin_config as config;
use logcabin_media::remote::{RemoteFile, RemoteFiles};
use logcabin_outside::{
    federation::{NoFile, RemoteDownload, Unreachable},
    outbound::{Outbound, OutboundError},
};
use logcabin_read::policy_lists::Subject;
use logcabin_record::command::{FileHash, PolicyArea};

/// Files of other homeservers.
pub struct Remote {
    /// The copies.
    pub(super) files: Arc<RemoteFiles>,
    /// For addresses that homeservers redirect to; `None` if federation is off.
    outbound: Option<Outbound>,
    /// The files that are being fetched, each with its first requester.
    under_way: Mutex<HashMap<OwnedMxcUri, (Requester, watch::Receiver<Progress>)>>,
    by_caller: Arc<KeyedSemaphore<Requester>>,
    by_origin: Arc<KeyedSemaphore<OwnedServerName>>,
    at_once: Semaphore,
    /// By address or name of a homeserver: the failure, and when a retry is allowed.
    failed: Cache<String, (Failure, Instant)>,
}

/// The progress of a file's fetch.
#[derive(Clone)]
enum Progress {
    /// Its homeserver was not asked, or has not answered.
    Asked,
    Arriving,
    /// The fetch has ended.
    Done(Result<Arc<RemoteFile>, Failure>),
}

/// Why a file was not fetched.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    NoFile(#[from] NoFile),
    #[error("too many files are being fetched")]
    Busy,
    /// The disk has no room for it.
    #[error("the disk is full")]
    Full,
    /// The disk failed.
    #[error("{0}")]
    Disk(Arc<io::Error>),
}

impl From<Unreachable> for Failure {
    fn from(error: Unreachable) -> Self {
        Self::NoFile(error.into())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull => Self::Full,
            // Other files being received take all the space.
            io::ErrorKind::QuotaExceeded => Self::Busy,
            _ => Self::Disk(Arc::new(error)),
        }
    }
}

impl Remote {
    /// # Errors
    /// When the client for other addresses cannot be made.
    pub(super) fn new(
        files: Arc<RemoteFiles>,
        federation: &config::Federation,
        outbound: &config::Outbound,
        bodies: &Arc<BodyBudget>,
    ) -> Result<Self, OutboundError> {
        let (is_on, allowed) = (federation.enabled, &federation.allowed_networks);
        let outbound = is_on.then(|| Outbound::public_only(outbound, bodies, allowed));
        let (of_origin, of_caller, at_once) = limits::REMOTE_FILES_AT_ONCE;
        Ok(Self {
            files,
            outbound: outbound.transpose()?,
            under_way: Mutex::default(),
            by_caller: Arc::new(KeyedSemaphore::new(of_caller)),
            by_origin: Arc::new(KeyedSemaphore::new(of_origin)),
            at_once: Semaphore::new(at_once),
            failed: Cache::new(if is_on { limits::REMOTE_FILES_FAILED } else { 1 }),
        })
    }

    /// The recent failure that forbids a retry now.
    fn lately_failed(&self, address: &MxcUri) -> Option<Failure> {
        let origin = address.server_name().ok()?.as_str();
        let now = Instant::now();
        let failed = [origin, address.as_str()].into_iter().filter_map(|of| self.failed.get(of));
        failed.into_iter().find(|(_, until)| *until > now).map(|(failure, _)| failure)
    }

    /// Remembers a failure for a while. If nothing has arrived, the homeserver may be down.
    fn remember(&self, address: &MxcUri, has_begun: bool, failure: &Failure) {
        let Failure::NoFile(why) = failure else { return };
        let (of_file, of_origin) = limits::REMOTE_FILE_FAILED;
        let of = match why {
            NoFile::NotYetUploaded | NoFile::LimitExceeded => return,
            NoFile::Unreachable(error) if !has_begun => match error {
                Unreachable::Status(_) | Unreachable::Unexpected(_) | Unreachable::Late => None,
                _ => address.server_name().ok(),
            },
            _ => None,
        };
        let (of, lasting) = match (of, why) {
            (Some(origin), _) => (origin.as_str(), of_origin),
            (None, NoFile::NotFound | NoFile::TooLarge) => (address.as_str(), of_file),
            (None, _) => (address.as_str(), of_origin),
        };
        self.failed.insert(of.to_owned(), (failure.clone(), Instant::now() + lasting));
    }
}

/// A file that is being fetched, until this is dropped.
struct FetchGuard<'a> {
    remote: &'a Remote,
    address: &'a OwnedMxcUri,
}

impl Drop for FetchGuard<'_> {
    fn drop(&mut self) {
        self.remote.under_way.lock().remove(self.address);
    }
}

/// A file to be fetched.
struct Fetch {
    address: OwnedMxcUri,
    origin: OwnedServerName,
    media_id: String,
    wait: Duration,
    caller: Requester,
}

impl Media {
    /// A file of another homeserver, fetched if there is no copy.
    pub(super) async fn remote_file(
        self: &Arc<Self>,
        wanted: FileRequest<'_>,
        caller: Requester,
        shutdown: &Shutdown,
    ) -> Result<ServedFile, FileError> {
        if let Some(file) = self.remote_copy(&wanted).await? {
            return self.found_remote(&file);
        }
        let wait = wanted.wait.min(limits::MEDIA_WAIT);
        let mut progress = self.fetch_remote(&wanted, wait, caller)?;
        let until = tokio::time::Instant::now() + wait + self.patience_with_others();
        loop {
            let now = progress.borrow_and_update().clone();
            let until = match now {
                Progress::Done(file) => return self.found_remote(&*file?),
                Progress::Arriving => None,
                Progress::Asked => Some(until),
            };
            let late = || FileError::from(Failure::from(Unreachable::Late));
            let changed = async {
                match until {
                    Some(until) => timeout_at(until, progress.changed()).await.map_err(|_| late()),
                    None => Ok(progress.changed().await),
                }
            };
            tokio::select! {
                // The task sends the result, unless it panicked.
                changed = changed => changed?.map_err(FileError::lost)?,
                () = shutdown.given() => return Err(late()),
            }
        }
    }

    /// The copy of a file of another homeserver, if there is one and it may be served.
    pub(crate) async fn remote_copy(
        self: &Arc<Self>,
        wanted: &FileRequest<'_>,
    ) -> Result<Option<RemoteFile>, FileError> {
        let address = self.remote_address(wanted)?;
        let files = Arc::clone(&self.remote.files);
        threads::spawn_blocking(move || files.get(&address)).await.map_err(FileError::lost)
    }

    /// A copy, unless it is in quarantine.
    pub(crate) fn found_remote(&self, file: &RemoteFile) -> Result<ServedFile, FileError> {
        if self.engine.state().media.quarantined_by(&file.hash).is_some() {
            return Err(FileError::NotFound);
        }
        Ok(ServedFile::Copy(self.remote.files.place(file), file.clone()))
    }

    /// The address of a file of another homeserver, if this one serves it.
    fn remote_address(&self, wanted: &FileRequest<'_>) -> Result<OwnedMxcUri, FileError> {
        let FileRequest { server, media_id, .. } = wanted;
        let Some(federation) = &self.federation else {
            return Err(FileError::NoRemoteFiles);
        };
        let address = OwnedMxcUri::from(format!("mxc://{server}/{media_id}"));
        let is_quarantined = self.engine.state().remote_media.quarantined(&address).is_some();
        if !federation.client.permits(server) || is_quarantined || !address.is_valid() {
            return Err(FileError::NotFound);
        }
        let subject = Subject::of_server(server);
        if self.engine.refused_by_policy(PolicyArea::Media, subject).is_some() {
            return Err(FileError::NotFound);
        }
        Ok(address)
    }

    const fn patience_with_others(&self) -> Duration {
        Duration::from_secs(self.settings.remote_wait_seconds)
    }

    /// Starts to fetch a file, unless a fetch is in progress or has failed recently.
    fn fetch_remote(
        self: &Arc<Self>,
        wanted: &FileRequest<'_>,
        wait: Duration,
        caller: Requester,
    ) -> Result<watch::Receiver<Progress>, FileError> {
        let address = self.remote_address(wanted)?;
        let remote = &self.remote;
        if let Some(failure) = remote.lately_failed(&address) {
            return Err(failure.into());
        }
        let mut under_way = remote.under_way.lock();
        if let Some((_, progress)) = under_way.get(&address) {
            return Ok(progress.clone());
        }
        let (of_caller, of_all) = limits::REMOTE_FILES_WANTED;
        let own = under_way.values().filter(|(of, _)| *of == caller).count();
        if own >= of_caller || under_way.len() >= of_all {
            return Err(Failure::Busy.into());
        }
        let (tell, progress) = watch::channel(Progress::Asked);
        under_way.insert(address.clone(), (caller.clone(), progress.clone()));
        drop(under_way);
        let (origin, media_id) = (wanted.server.to_owned(), wanted.media_id.to_owned());
        let fetch = Fetch { address, origin, media_id, wait, caller };
        let media = Arc::clone(self);
        // In its own task: others may wait for it when the client disconnects.
        tokio::spawn(async move { media.carry_out(fetch, &tell).await });
        Ok(progress)
    }

    async fn carry_out(&self, fetch: Fetch, tell: &watch::Sender<Progress>) {
        let remote = &self.remote;
        let under_way = FetchGuard { remote, address: &fetch.address };
        let fetched = self.receive_remote(&fetch, tell).await;
        if let Err(failure) = &fetched {
            match failure {
                Failure::Disk(error) => error!(%error, "a file cannot be stored"),
                failure => debug!(address = %fetch.address, %failure, "a file is not available"),
            }
            let has_begun = matches!(*tell.borrow(), Progress::Arriving);
            remote.remember(&fetch.address, has_begun, failure);
        }
        // A later request finds the copy, or fetches the file again.
        drop(under_way);
        tell.send_replace(Progress::Done(fetched.map(Arc::new)));
    }

    async fn receive_remote(
        &self,
        fetch: &Fetch,
        tell: &watch::Sender<Progress>,
    ) -> Result<RemoteFile, Failure> {
        let Fetch { address, origin, media_id, wait, caller } = fetch;
        let remote = &self.remote;
        let denied = || Failure::from(Unreachable::Denied);
        let Federation { client, .. } = self.federation.as_deref().ok_or_else(denied)?;
        let outbound = remote.outbound.as_ref().ok_or_else(denied)?;
        let until = tokio::time::Instant::now() + *wait + self.patience_with_others();
        let places = async {
            (
                // The origin first: a request that waits for a slow origin holds no other slot.
                remote.by_origin.take(origin.clone()).await,
                remote.by_caller.take(caller.clone()).await,
                remote.at_once.acquire().await,
            )
        };
        let _places = timeout_at(until, places).await.map_err(|_| Failure::Busy)?;
        let asking = client.file(outbound, origin, media_id, *wait);
        let asked = timeout_at(until, Box::pin(asking)).await;
        let failure = match asked.unwrap_or_else(|_| Err(Unreachable::Late.into())) {
            Ok(file) => {
                tell.send_replace(Progress::Arriving);
                return self.take_in_remote(address, file, None).await;
            }
            Err(failure) => failure,
        };
        match self.copy_of_another_node(address).await {
            Some((copy, hash)) => {
                tell.send_replace(Progress::Arriving);
                self.take_in_remote(address, copy, Some(hash)).await
            }
            None => Err(failure.into()),
        }
    }

    async fn take_in_remote(
        &self,
        address: &OwnedMxcUri,
        mut file: RemoteDownload,
        hash: Option<FileHash>,
    ) -> Result<RemoteFile, Failure> {
        let settings = &self.settings;
        let most = settings.remote_file_bytes.min(settings.remote_cache_bytes);
        // The body may have headers around it.
        let around = limits::REMOTE_FILE_HEAD_BYTES as u64;
        if file.length.is_some_and(|length| length.saturating_sub(around) > most) {
            return Err(NoFile::TooLarge.into());
        }
        let pace =
            Pace { grace: self.patience_with_others(), bytes_per_second: limits::REMOTE_FILE_PACE };
        let mut arriving = self.remote.files.receive(None).await?;
        let (mut size, mut waited) = (0, Duration::ZERO);
        loop {
            let began = Instant::now();
            // Disk time does not count as the homeserver's time.
            let left = pace.allows(size).saturating_sub(waited);
            let next = tokio::time::timeout(left, file.next()).await;
            waited += began.elapsed();
            let Some(piece) = next.map_err(|_| Unreachable::Late)?? else { break };
            size += piece.len() as u64;
            if size > most {
                return Err(NoFile::TooLarge.into());
            }
            arriving.write(piece).await?;
        }
        let copy = RemoteFile {
            address: address.clone(),
            // The hash and size are known when it is complete.
            hash: FileHash([0; 32]),
            size: 0,
            content_type: file.content_type,
            name: file.name,
            fetched_ms: self.engine.clock().now_ms(),
        };
        Ok(arriving.finish(copy, hash).await?)
    }
}
