//! A hash of all projections, in an order that does not depend on hash maps or threads.

use serde::Serialize;

/// Collects projections into one blake3 hash.
#[derive(Debug, Default)]
pub(super) struct Digest(blake3::Hasher);

impl Digest {
    /// Adds one value. Its serialisation must be canonical: ordered maps, no hash maps.
    pub(super) fn add<T: Serialize + ?Sized>(&mut self, value: &T) {
        // Our own types, all of known length, into a hasher that takes every byte.
        postcard::to_io(value, &mut self.0).expect("projections serialise");
    }

    pub(super) fn finish(&self) -> blake3::Hash {
        self.0.finalize()
    }
}
