//! A hash of all projections that does not depend on the order of hash maps or threads.

use serde::Serialize;

/// Collects projections into one blake3 hash.
#[derive(Debug, Default)]
pub(super) struct Digest(blake3::Hasher);

impl Digest {
    /// Adds one value. It must serialize canonically: ordered maps, no hash maps.
    pub(super) fn add<T: Serialize + ?Sized>(&mut self, value: &T) {
        // Our own types, all of known length, into a hasher that accepts every byte.
        postcard::to_io(value, &mut self.0).expect("projections serialise");
    }

    pub(super) fn finish(&self) -> blake3::Hash {
        self.0.finalize()
    }
}
