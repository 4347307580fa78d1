//! Uploaded files in a JetStream object store.

use std::{fmt, io, path::Path};

use async_nats::jetstream::{
    object_store::{self, DeleteErrorKind, GetErrorKind, InfoErrorKind, ObjectStore},
    stream::StorageType,
};
use futures_util::{StreamExt as _, future::BoxFuture};
use tokio::fs::File;

use super::failed;
use logcabin_base::clock::Clock;
use logcabin_log::nats::{NatsError, NatsLog, patiently};
use logcabin_media::shared_store::{Contents, SharedStore};
use logcabin_record::command::FileHash;

/// The files of a cluster, each under its hash in hex.
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
        let deleted = log.jetstream().delete_object_store(bucket_name(log)).await;
        deleted.map_err(|error| failed(&error))
    }
}

fn bucket_name(log: &NatsLog) -> String {
    format!("{}-files", log.stream_name())
}

impl SharedStore for Files {
    fn put<'a>(&'a self, hash: &'a FileHash, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let mut file = File::open(path).await?;
            let name = hash.to_string();
            match self.bucket.info(&name).await {
                Ok(info) if !info.deleted && info.size as u64 == file.metadata().await?.len() => {
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) if error.kind() == InfoErrorKind::NotFound => {}
                Err(error) => return Err(io::Error::other(error)),
            }
            self.bucket.put(&*name, &mut file).await.map(|_| ()).map_err(io::Error::other)
        })
    }

    fn fetch<'a>(&'a self, hash: &'a FileHash) -> BoxFuture<'a, io::Result<Option<Contents>>> {
        Box::pin(async move {
            match self.bucket.get(hash.to_string()).await {
                Ok(object) => Ok(Some(Box::pin(object) as Contents)),
                Err(error) if error.kind() == GetErrorKind::NotFound => Ok(None),
                Err(error) => Err(io::Error::other(error)),
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
