//! Uploaded files in a JetStream object store.

use std::{fmt, io, path::Path};

use async_nats::jetstream::{
    object_store::{self, DeleteErrorKind, GetErrorKind, InfoErrorKind, ObjectStore},
    stream::StorageType,
};
use futures_util::{StreamExt as _, future::BoxFuture};
use tokio::{fs::File, io::AsyncSeekExt as _};

use super::failed;
use logcabin_base::clock::Clock;
use logcabin_log::nats::{NatsError, NatsLog, Patience, delete_stream, patiently};
use logcabin_media::shared_store::{Contents, SharedStore};
use logcabin_record::command::FileHash;

/// The files of a cluster, each under its hash in hex. For a moment after the bucket was created,
/// and while its servers elect a leader, nobody answers for it: putting and fetching wait for that.
pub struct Files {
    bucket: ObjectStore,
    clock: Clock,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").finish_non_exhaustive()
    }
}

impl Files {
    /// Opens the object store of the cluster of `log`, and creates it if it is missing.
    pub async fn open(log: &NatsLog, clock: Clock) -> Result<Self, NatsError> {
        let config = object_store::Config {
            bucket: bucket_name(log),
            description: Some("The uploaded files of a Logcabin cluster.".to_owned()),
            storage: StorageType::File,
            num_replicas: log.replicas(),
            ..object_store::Config::default()
        };
        let jetstream = log.jetstream();
        let bucket = patiently(async || {
            // Of nodes that start together, one creates it, and the others find it.
            if let Ok(found) = jetstream.get_object_store(&config.bucket).await {
                return Ok(found);
            }
            let created = jetstream.create_object_store(config.clone()).await;
            created.map_err(|error| failed(&error))
        })
        .await?;
        Ok(Self { bucket, clock })
    }

    /// Removes the object store of the cluster of `log`.
    pub async fn delete(log: &NatsLog) -> Result<(), NatsError> {
        delete_stream(log.jetstream(), &format!("OBJ_{}", bucket_name(log))).await
    }
}

impl Files {
    /// Puts a file unless it is there.
    async fn put_once(&self, name: &str, file: &mut File) -> Result<(), NatsError> {
        let unread = |error: io::Error| failed(&error);
        let length = file.metadata().await.map_err(unread)?.len();
        match self.bucket.info(name).await {
            Ok(info) if !info.deleted && info.size as u64 == length => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == InfoErrorKind::NotFound => {}
            Err(error) => return Err(failed(&error)),
        }
        file.rewind().await.map_err(unread)?;
        self.bucket.put(name, file).await.map(|_| ()).map_err(|error| failed(&error))
    }
}

fn bucket_name(log: &NatsLog) -> String {
    format!("{}-files", log.stream_name())
}

impl SharedStore for Files {
    fn put<'a>(&'a self, hash: &'a FileHash, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let mut file = File::open(path).await?;
            let mut patience = Patience::default();
            while let Err(error) = self.put_once(&hash.to_string(), &mut file).await {
                patience.wait(error).await.map_err(io::Error::other)?;
            }
            Ok(())
        })
    }

    fn fetch<'a>(&'a self, hash: &'a FileHash) -> BoxFuture<'a, io::Result<Option<Contents>>> {
        Box::pin(async move {
            let mut patience = Patience::default();
            loop {
                match self.bucket.get(hash.to_string()).await {
                    Ok(object) => return Ok(Some(Box::pin(object) as Contents)),
                    Err(error) if error.kind() == GetErrorKind::NotFound => return Ok(None),
                    Err(error) => patience.wait(failed(&error)).await.map_err(io::Error::other)?,
                }
            }
        })
    }

    fn remove<'a>(&'a self, hash: &'a FileHash) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            match self.bucket.delete(hash.to_string()).await {
                Ok(()) => Ok(()),
                Err(error) if error.kind() == DeleteErrorKind::NotFound => Ok(()),
                Err(error) => Err(io::Error::other(error)),
            }
        })
    }

    fn older(&self, age_seconds: u64) -> BoxFuture<'_, io::Result<Vec<FileHash>>> {
        Box::pin(async move {
            let now_s = i64::try_from(self.clock.now_ms() / 1000).unwrap_or(i64::MAX);
            let age_s = i64::try_from(age_seconds).unwrap_or(i64::MAX);
            let mut older = Vec::new();
            let mut objects = self.bucket.list().await.map_err(io::Error::other)?;
            while let Some(object) = objects.next().await {
                let object = object.map_err(io::Error::other)?;
                let put_s = object.modified.map_or(now_s, |time| time.unix_timestamp());
                if now_s.saturating_sub(put_s) >= age_s
                    && let Some(hash) = FileHash::from_hex(&object.name)
                {
                    older.push(hash);
                }
            }
            Ok(older)
        })
    }
}
