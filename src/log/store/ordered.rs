//! What a node of a cluster does with its local log: the order of batches, and their time, are
//! decided elsewhere.

use std::{path::Path, time::Instant};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{
    Message, SledLog,
    committer::{Request, Work},
};
use crate::{AppendError, Appended, Batch, check_size};
use logcabin_record::{
    codec::Frame,
    command::{Body as _, LogErase},
};

#[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "used by nodes of a cluster"))]
impl SledLog {
    /// Whether the log belongs to a node of a cluster. Then only that node writes to it, in the
    /// order that the [cluster](Self::append_ordered) has decided.
    pub fn is_of_cluster(&self) -> bool {
        self.is_of_cluster
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.log_dir
    }

    /// Why batches that were [ordered](Self::append_ordered) elsewhere wait for space, while they
    /// do.
    pub(crate) fn is_full(&self) -> Option<String> {
        self.shared.full.lock().clone()
    }

    /// Queues a batch whose place in the log and time were decided elsewhere. It is appended after
    /// those that were queued before it, or refused because of its content, never because of this
    /// machine: if the disk is full, it waits.
    pub(crate) async fn append_ordered(
        &self,
        batch: Batch,
        time_ms: u64,
    ) -> Result<oneshot::Receiver<Result<Appended, AppendError>>, AppendError> {
        let (reply, outcome) = oneshot::channel();
        if let Err(error) = check_size(&batch) {
            let _ = reply.send(Err(error));
            return Ok(outcome);
        }
        let request =
            Request { work: Work::Ordered(batch, time_ms), queued: Instant::now(), reply };
        let sent = self.queue.send(Message::Append(request)).await;
        sent.map(|()| outcome).map_err(|_| self.shared.gone())
    }

    /// Appends records of another copy of this log: whole batches, each record with its frame. They
    /// are refused unless they continue the chain. Nothing else may be appended meanwhile.
    ///
    /// # Errors
    /// [`AppendError::Foreign`], and when the log is closed or fails.
    pub async fn copy(&self, frames: Vec<(Frame, Bytes)>) -> Result<(), AppendError> {
        let mut piece = Vec::new();
        let mut is_whole = true;
        for (frame, bytes) in frames {
            // What it erases must be durable.
            let erases = &*frame.record.header.kind == LogErase::KIND.name;
            if erases && is_whole && !piece.is_empty() {
                self.copy_piece(std::mem::take(&mut piece)).await?;
            }
            is_whole = frame.record.header.batch_remaining == 0;
            piece.push((frame, bytes));
        }
        if piece.is_empty() { Ok(()) } else { self.copy_piece(piece).await }
    }

    async fn copy_piece(&self, piece: Vec<(Frame, Bytes)>) -> Result<(), AppendError> {
        let (reply, outcome) = oneshot::channel();
        let request = Request { work: Work::Copied(piece), queued: Instant::now(), reply };
        let sent = self.queue.send(Message::Append(request)).await;
        sent.map_err(|_| self.shared.gone())?;
        self.outcome(outcome).await.map(|_| ())
    }
}
