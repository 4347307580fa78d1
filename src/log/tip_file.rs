//! The tip file: how far the log has come, noted outside of sled.
//!
//! sled takes damage in its newest part for the end of an interrupted write and silently drops what
//! follows. This file, `log/tip`, names the last durable record of at most a second ago, so that a
//! log that comes back shorter or different is noticed.
//!
//! 80 bytes: magic, offset (`u64`, big-endian), chain value, blake3 of these 48 bytes. The file is
//! overwritten in place. A write that a crash interrupts leaves a hash that does not match, and the
//! file is ignored until the next write.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use logcabin_record::{Chain, Offset};

const MAGIC: &[u8; 8] = b"LCTIP\r\n\x01";
const NOTE_BYTES: usize = 8 + 8 + 32;
const FILE_BYTES: usize = NOTE_BYTES + 32;

/// A record that was durable: its offset, and its chain value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DurableTip {
    pub(super) offset: Offset,
    pub(super) chain: Chain,
}

/// The path of the tip file.
pub(super) fn path(log_dir: &Path) -> PathBuf {
    log_dir.join("tip")
}

/// The open tip file.
pub(super) struct TipFile(File);

impl TipFile {
    pub(super) fn open(log_dir: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.open(path(log_dir)).map(Self)
    }

    pub(super) fn write(&self, noted: DurableTip) -> io::Result<()> {
        let mut bytes = [0; FILE_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&noted.offset.get().to_be_bytes());
        bytes[16..NOTE_BYTES].copy_from_slice(&noted.chain);
        let hash = blake3::hash(&bytes[..NOTE_BYTES]);
        bytes[NOTE_BYTES..].copy_from_slice(hash.as_bytes());
        self.0.write_all_at(&bytes, 0)?;
        self.0.sync_data()
    }
}

/// The noted record; `None` if there is no file, or its hash does not match.
pub(super) fn read(log_dir: &Path) -> io::Result<Option<DurableTip>> {
    let bytes = match std::fs::read(path(log_dir)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let noted = parse(&bytes);
    if noted.is_none() && !bytes.is_empty() {
        tracing::warn!(
            "the file that notes the log's progress is incomplete; the last durable offset is unknown"
        );
    }
    Ok(noted)
}

fn parse(bytes: &[u8]) -> Option<DurableTip> {
    let bytes: &[u8; FILE_BYTES] = bytes.try_into().ok()?;
    let (note, hash) = bytes.split_at(NOTE_BYTES);
    if !note.starts_with(MAGIC) || blake3::hash(note).as_bytes() != hash {
        return None;
    }
    let offset = Offset::new(u64::from_be_bytes(note[8..16].try_into().ok()?));
    Some(DurableTip { offset, chain: note[16..].try_into().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_back_and_half_a_note_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        let file = TipFile::open(dir.path()).unwrap();
        let first = DurableTip { offset: Offset::new(7), chain: [1; 32] };
        file.write(first).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(first));
        let second = DurableTip { offset: Offset::new(900), chain: [2; 32] };
        file.write(second).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(second));
        let mut bytes = std::fs::read(path(dir.path())).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_eq!(parse(&bytes), None, "byte {at}");
            bytes[at] ^= 1;
        }
    }
}
