//! Copies of other homeservers' files at other nodes of the cluster. Each node keeps its own
//! copies; if a homeserver no longer returns a file, the other nodes are asked for theirs.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use ruma::OwnedMxcUri;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::Media;
use logcabin_base::{limits, threads};
use logcabin_cluster::Cluster;
use logcabin_media::{
    Download,
    remote::{RemoteFile, RemoteFiles},
};
use logcabin_outside::federation::{RemoteDownload, Unreachable};
use logcabin_record::command::FileHash;

/// The prefix of such a request. A forwarded request begins with a brace.
const COPY: &[u8] = b"copy ";

/// The timeout for a piece from another node.
const ANSWER: Duration = Duration::from_secs(5);

/// A request to another node for a part of a copy, with its metadata.
#[derive(Serialize, Deserialize)]
struct CopyRequest {
    address: OwnedMxcUri,
    from: u64,
}

impl CopyRequest {
    fn question(&self) -> Bytes {
        let mut question = COPY.to_vec();
        question.extend(serde_json::to_vec(self).unwrap_or_default());
        question.into()
    }
}

/// Asks a node for a part of a copy; `None` if it has none.
async fn piece(
    cluster: &dyn Cluster,
    node: u16,
    address: &OwnedMxcUri,
    from: u64,
) -> Option<(RemoteFile, Bytes)> {
    let question = CopyRequest { address: address.clone(), from }.question();
    let answer = timeout(ANSWER, cluster.forward(node, question)).await.ok()??;
    let end = memchr::memchr(b'\n', &answer)?;
    let known = serde_json::from_slice::<RemoteFile>(&answer[..end]).ok()?;
    (known.address == *address).then(|| (known, answer.slice(end + 1..)))
}

impl Media {
    /// The copy that another node has, if one does, and its hash.
    pub(super) async fn copy_of_another_node(
        &self,
        address: &OwnedMxcUri,
    ) -> Option<(RemoteDownload, FileHash)> {
        let cluster = self.cluster.as_ref()?;
        for node in cluster.there().into_iter().filter(|node| *node != cluster.tag()) {
            let Some((known, first)) = piece(&**cluster, node, address, 0).await else { continue };
            let (cluster, address) = (Arc::clone(cluster), address.clone());
            let (hash, size, begun) = (known.hash, known.size, first.len() as u64);
            let rest = stream::unfold(begun, move |from| {
                let (cluster, address) = (Arc::clone(&cluster), address.clone());
                async move {
                    if from >= size {
                        return None;
                    }
                    let next = piece(&*cluster, node, &address, from).await;
                    let next = next.filter(|(of, piece)| of.hash == hash && !piece.is_empty());
                    // After a failure, stop.
                    Some(match next {
                        Some((_, piece)) => (Ok(piece.clone()), from + piece.len() as u64),
                        None => (Err(Unreachable::Late), size),
                    })
                }
            });
            let pieces = stream::iter([Ok(first)]).chain(rest).boxed();
            let RemoteFile { content_type, name, .. } = known;
            return Some((RemoteDownload::of_node(content_type, name, size, pieces), hash));
        }
        None
    }

    /// Answers another node's request for a part of a copy; `None` if it is a different request.
    pub async fn answer_node(&self, question: &Bytes) -> Option<Bytes> {
        let wanted = question.strip_prefix(COPY)?;
        let Ok(wanted) = serde_json::from_slice::<CopyRequest>(wanted) else {
            return Some(Bytes::new());
        };
        let files = Arc::clone(&self.remote.files);
        let reading = threads::spawn_blocking(move || read(&files, &wanted));
        Some(reading.await.ok().flatten().unwrap_or_default())
    }
}

fn read(files: &Arc<RemoteFiles>, wanted: &CopyRequest) -> Option<Bytes> {
    let known = files.look(&wanted.address)?;
    let range = part(known.size, wanted.from);
    let piece = Download::open(&files.place(&known)).ok()?.read(&range).ok()?;
    let mut answer = BytesMut::from(&*serde_json::to_vec(&known).ok()?);
    answer.extend_from_slice(b"\n");
    answer.extend_from_slice(&piece);
    Some(answer.freeze())
}

/// The part of a file of this size that one answer holds.
fn part(size: u64, from: u64) -> Range<u64> {
    let from = from.min(size);
    from..size.min(from.saturating_add(limits::MEDIA_PIECE_BYTES as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_answered_in_parts_that_follow_each_other() {
        let most = limits::MEDIA_PIECE_BYTES as u64;
        let size = 2 * most + 1;
        let (mut from, mut parts) = (0, Vec::new());
        while from < size {
            let part = part(size, from);
            from = part.end;
            parts.push(part);
        }
        assert_eq!(parts, [0..most, most..2 * most, 2 * most..size]);
        assert_eq!(part(size, u64::MAX), size..size);
    }
}
