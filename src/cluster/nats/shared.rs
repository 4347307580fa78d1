//! What the nodes share: values by name, in a key-value bucket on disk.

use std::time::Duration;

use async_nats::jetstream::{
    kv::{self, Store},
    stream::StorageType,
};
use bytes::Bytes;
use tokio::time::timeout;

use super::{Nodes, bucket, bucket_now, failed};
use logcabin_log::nats::{NatsError, NatsLog, patiently};

/// How long reading or writing a value may take.
const ANSWER: Duration = Duration::from_secs(5);

pub(super) fn bucket_name(log: &NatsLog) -> String {
    format!("{}-shared", log.stream_name())
}

fn config(log: &NatsLog) -> kv::Config {
    kv::Config {
        bucket: bucket_name(log),
        description: "What the nodes of a Logcabin cluster share.".to_owned(),
        storage: StorageType::File,
        num_replicas: log.replicas(),
        history: 1,
        ..kv::Config::default()
    }
}

impl Nodes {
    /// The value that all nodes use under `name`: that of the first node to propose one.
    pub async fn share(&self, name: &str, mine: &str) -> Result<String, NatsError> {
        let bucket = bucket(&self.log, config(&self.log)).await?;
        patiently(async || {
            match bucket.create(name, mine.to_owned().into()).await {
                Ok(_) => return Ok(mine.to_owned()),
                Err(error) if error.kind() == kv::CreateErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&error)),
            }
            let found = bucket.get(name).await.map_err(|error| failed(&error))?;
            let found = found.and_then(|found| String::from_utf8(found.to_vec()).ok());
            found.ok_or_else(|| failed(&format!("the shared value `{name}` cannot be read")))
        })
        .await
    }

    /// The value under `name`, if there is one.
    pub(super) async fn shared_value(&self, name: &str) -> Result<Option<Bytes>, String> {
        let found = async {
            let bucket = self.shared_bucket().await?;
            bucket.get(name).await.map_err(|error| failed(&error))
        };
        in_time(found).await
    }

    /// Replaces the value under `name`.
    pub(super) async fn put_shared_value(&self, name: &str, value: Bytes) -> Result<(), String> {
        let put = async {
            let bucket = self.shared_bucket().await?;
            bucket.put(name, value).await.map(drop).map_err(|error| failed(&error))
        };
        in_time(put).await
    }

    async fn shared_bucket(&self) -> Result<Store, NatsError> {
        bucket_now(&self.log, &config(&self.log)).await
    }
}

async fn in_time<T>(answer: impl Future<Output = Result<T, NatsError>>) -> Result<T, String> {
    match timeout(ANSWER, answer).await {
        Ok(answered) => answered.map_err(|error| error.to_string()),
        Err(_) => Err("the NATS servers do not answer".to_owned()),
    }
}
