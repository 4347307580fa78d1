//! The key for tokens that the server derives or signs, in a file beside the log.
//!
//! It is not in the log, so that access to the log, an archive or a backup does not allow anyone to
//! forge tokens. Losing it costs little: pending browser logins start over, and a client that
//! repeats a refresh gets different tokens.

use std::{fs, io, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use tracing::warn;

use crate::{clock::random_bytes, disk, signed::Signer};

/// The file's name in the data directory.
const FILE: &str = "tokens.key";

/// How many bytes the key has.
const KEY_BYTES: usize = 32;

/// The signer with the key in `data_dir`, which is created if it is missing.
pub fn signer(data_dir: &Path) -> Signer {
    Signer::new(&key(data_dir))
}

/// Replaces the key in `data_dir` with that of a cluster.
pub fn adopt(data_dir: &Path, key: &str) -> io::Result<()> {
    if !is_key(key) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the cluster's key is not a key"));
    }
    disk::write_whole(&data_dir.join(FILE), format!("{key}\n").as_bytes())
}

/// The key in `data_dir`, which is created if it is missing.
pub fn key(data_dir: &Path) -> String {
    let path = data_dir.join(FILE);
    match fs::read_to_string(&path) {
        Ok(text) if is_key(text.trim_end()) => text.trim_end().to_owned(),
        Ok(_) => {
            warn!(path = %path.display(), "tokens.key is damaged; creating a new key");
            new_key(&path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => new_key(&path),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            warn!(path = %path.display(), "tokens.key is damaged; creating a new key");
            new_key(&path)
        }
        Err(error) => {
            warn!(path = %path.display(), %error, "tokens.key cannot be read; using a temporary key until the next start");
            random_key()
        }
    }
}

fn is_key(text: &str) -> bool {
    STANDARD_NO_PAD.decode(text).is_ok_and(|key| key.len() == KEY_BYTES)
}

fn random_key() -> String {
    STANDARD_NO_PAD.encode(random_bytes::<KEY_BYTES>())
}

fn new_key(path: &Path) -> String {
    let key = random_key();
    if let Err(error) = disk::write_whole(path, format!("{key}\n").as_bytes()) {
        // A full disk, for example: the server can run without the file.
        warn!(path = %path.display(), %error, "tokens.key cannot be written; the key will change at the next start");
    }
    key
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mac(dir: &Path) -> String {
        signer(dir).mac("tests", "text")
    }

    #[test]
    fn a_key_is_created_once_and_readable_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let first = mac(dir.path());
        assert_eq!(mac(dir.path()), first);
        let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(mac(other.path()), first);
    }

    #[test]
    fn the_key_of_a_cluster_replaces_the_one_that_was_there() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert_ne!(mac(one.path()), mac(other.path()));
        adopt(one.path(), &key(other.path())).unwrap();
        assert_eq!(mac(one.path()), mac(other.path()));
        assert!(adopt(one.path(), "no key").is_err());
        assert_eq!(mac(one.path()), mac(other.path()));
    }

    #[test]
    fn a_damaged_key_is_replaced_and_an_unwritable_directory_is_tolerated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for damaged in [&b""[..], b"short", b"\xff\xfe"] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(mac(dir.path()), mac(dir.path()));
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_ne!(mac(dir.path()), mac(dir.path()));
    }
}
