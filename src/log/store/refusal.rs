//! Why the log takes no writes right now.

use std::{path::Path, sync::atomic::Ordering};

use super::{Shared, SledLog};
use crate::AppendError;
use logcabin_base::disk;

impl SledLog {
    /// The error that an append would get now because of the log or its disk.
    #[must_use]
    pub fn refusal(&self) -> Option<AppendError> {
        if self.shared.closing.load(Ordering::SeqCst) {
            return Some(self.shared.gone());
        }
        if let Some(reason) = self.is_full() {
            return Some(AppendError::Full(reason));
        }
        let layers = self.current();
        if layers.are_aside() {
            let reason = "the newest records are read from a copy, because the disk was full";
            return Some(AppendError::Full(reason.to_owned()));
        }
        let room = match layers.tail() {
            Ok(tail) => self.shared.room_at(&tail.dir).err(),
            Err(error) => Some(AppendError::Full(error.to_string())),
        };
        self.shared.failure.borrow().clone().map(AppendError::Failed).or(room)
    }
}

impl Shared {
    /// How many bytes are free on the disk of `dir`.
    ///
    /// # Errors
    /// When there are fewer than are kept in reserve.
    pub(super) fn room_at(&self, dir: &Path) -> Result<u64, AppendError> {
        let reserve = self.min_free_bytes.load(Ordering::Relaxed);
        let free = disk::free_bytes(dir)
            .map_err(|error| AppendError::Full(format!("free space is unknown: {error}")))?;
        if free < reserve {
            return Err(AppendError::Full(format!(
                "{free} bytes are free on the disk of {}, {reserve} are kept in reserve",
                dir.display()
            )));
        }
        Ok(free)
    }
}
