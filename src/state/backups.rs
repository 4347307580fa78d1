//! The known backups of the log (`backup.made`).

use std::collections::BTreeMap;

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    command::{BackupMade, BackupMoment, FileHash},
};

/// All known backups.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Backups(
    /// By destination and moment.
    #[serde(with = "serializers::locked")]
    RwLock<BTreeMap<(String, BackupMoment), BackupEntry>>,
);

#[derive(Debug, Serialize, Deserialize)]
struct BackupEntry {
    /// The record that says that it was made.
    record: Offset,
    manifest: FileHash,
}

/// A backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// Its directory, as named when it was made.
    pub destination: String,
    /// The moment that it restores.
    #[serde(flatten)]
    pub moment: BackupMoment,
    /// blake3 of its manifest, in hex.
    pub manifest: FileHash,
    /// The `backup.made` record.
    pub record: Offset,
}

impl Backups {
    /// All of them, by destination and moment.
    pub fn all(&self) -> Vec<Backup> {
        self.holding(Offset::ZERO, Offset::MAX)
    }

    /// The backups that contain the payload of the record at `offset`, because they were started
    /// before the record `erased` took it. ([`Offset::MAX`] for a payload that is about to be
    /// erased.)
    pub fn holding(&self, offset: Offset, erased: Offset) -> Vec<Backup> {
        let all = self.0.read();
        let holding = all.iter().filter(|((_, moment), _)| {
            // An offset after the end of an undone epoch belongs to another record; it is listed
            // rather than missed.
            moment.offset >= offset && moment.offset < erased
        });
        holding
            .map(|((destination, moment), noted)| Backup {
                destination: destination.clone(),
                moment: *moment,
                manifest: noted.manifest,
                record: noted.record,
            })
            .collect()
    }

    pub(super) fn made(&self, offset: Offset, body: BackupMade) {
        let BackupMade { destination, moment, chain: _, manifest, removed } = body;
        let mut all = self.0.write();
        for gone in removed {
            all.remove(&(destination.clone(), gone));
        }
        // A backup that is known is named again by a record of what was removed; it was not made
        // again.
        let key = (destination, moment);
        if all.get(&key).is_none_or(|known| known.manifest != manifest) {
            all.insert(key, BackupEntry { record: offset, manifest });
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_record::Epoch;

    #[test]
    fn a_backup_contains_the_records_from_its_time_until_it_is_removed() {
        let copies = Backups::default();
        let moment = |offset| BackupMoment { epoch: Epoch(0), offset: Offset::new(offset) };
        let make = |record, at, removed: &[u64]| {
            let hash = FileHash([7; 32]);
            let removed = removed.iter().map(|offset| moment(*offset)).collect();
            let destination = "/backup".to_owned();
            let body = BackupMade {
                destination,
                moment: moment(at),
                chain: hash,
                manifest: hash,
                removed,
            };
            copies.made(Offset::new(record), body);
        };
        make(11, 10, &[]);
        make(21, 20, &[]);
        let holding = |offset, erased| {
            let held = copies.holding(Offset::new(offset), erased);
            held.iter().map(|copy| copy.moment.offset.get()).collect::<Vec<_>>()
        };
        assert_eq!(holding(5, Offset::MAX), [10, 20]);
        assert_eq!(holding(15, Offset::MAX), [20]);
        // The second was made after the erasure.
        assert_eq!(holding(5, Offset::new(15)), [10]);
        make(31, 30, &[10]);
        assert_eq!(holding(5, Offset::MAX), [20, 30]);
        // One that is only named does not become newer.
        make(41, 30, &[20]);
        assert_eq!(holding(5, Offset::MAX), [30]);
        assert_eq!(copies.all()[0].record, Offset::new(31));
    }
}
