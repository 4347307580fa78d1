//! Searches files for text, in the clear or compressed: what an erasure must leave nowhere.

use std::{
    fs, io,
    io::Read as _,
    path::{Path, PathBuf},
};

use memchr::memmem;

/// The first bytes of a zstd frame.
const ZSTD: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// The files below `dir` that contain `text`. Files may come and go meanwhile.
pub(crate) fn files_with(dir: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if contains(&path, text).is_ok_and(|found| found) {
            found.push(path);
        }
    }
    found
}

/// Whether the file contains `text`.
pub(crate) fn contains(path: &Path, text: &str) -> io::Result<bool> {
    Ok(holds(&fs::read(path)?, text))
}

fn holds(bytes: &[u8], text: &str) -> bool {
    memmem::find(bytes, text.as_bytes()).is_some()
        || memmem::find_iter(bytes, &ZSTD).any(|at| {
            let mut unpacked = Vec::new();
            if let Ok(frame) = zstd::stream::read::Decoder::with_buffer(&bytes[at..]) {
                // The end of an old frame may be overwritten; its beginning counts.
                let _ = frame.single_frame().read_to_end(&mut unpacked);
            }
            memmem::find(&unpacked, text.as_bytes()).is_some()
        })
}
