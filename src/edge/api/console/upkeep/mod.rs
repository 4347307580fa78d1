//! What keeps the data: backups, snapshots, proofs, erasures, and the nodes of a cluster. The pages
//! show what the commands of the same names show.

pub(super) mod backups;
pub(super) mod cluster;
pub(super) mod erasures;
pub(super) mod proofs;
pub(super) mod snapshots;
