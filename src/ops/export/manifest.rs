//! The manifest: the file that covers all others of an export.

use std::{
    collections::BTreeMap,
    io::{self, Read as _},
    path::{Component, Path},
};

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ExportError;
use logcabin_record::{Epoch, Offset, command::ServerIdentity, signed_json};
use logcabin_state::State;

/// The file's name.
pub(super) const FILE: &str = "manifest.json";

/// The layout that this version writes.
pub(super) const FORMAT: u32 = 1;

/// The scope of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportScope {
    /// A whole server.
    Server,
    User,
}

/// The manifest of an export. Times are in milliseconds since the Unix epoch, hashes in lower-case
/// hexadecimal, keys in unpadded base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The layout of the export: 1.
    pub logcabin_export: u32,
    pub holds: ExportScope,
    /// The version of logcabin that wrote it.
    pub version: String,
    /// When it was exported, in milliseconds since the Unix epoch.
    pub exported_ms: u64,
    /// Whether a server was running on the log meanwhile, and may have continued.
    pub running: bool,
    pub server_name: String,
    /// The id of the signing key.
    pub key_id: String,
    /// The public half of the signing key.
    pub public_key: String,
    /// The user, in the export of one user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<OwnedUserId>,
    /// The epoch of the last record.
    pub epoch: Epoch,
    /// The last record: the export is exact as of it.
    pub last: Offset,
    /// The chain value of that record.
    pub chain: String,
    /// The digest of the resulting state, in the export of a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_digest: Option<String>,
    /// Every other file of the export, in the order of writing.
    pub files: Vec<Entry>,
    /// Uploaded files that records refer to and that are missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Missing>,
    /// The server's signature (appendices of the Matrix specification, "Signing JSON").
    #[serde(default)]
    pub signatures: BTreeMap<String, BTreeMap<String, String>>,
}

/// A file of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its path in the export, with `/` as separator.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// blake3 of its bytes.
    pub blake3: String,
    /// The number of lines, if it consists of lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<u64>,
    /// The offset of the first of its records, if it holds records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Offset>,
}

/// An uploaded file that is not in the export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub path: String,
    /// Why it is missing.
    pub reason: String,
}

/// Why a directory has no valid manifest.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManifestError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is not the manifest of an export: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("the export has layout {0}, and this version of logcabin reads layout {FORMAT}")]
    Format(u64),
    #[error("its signature is not the server's: it was changed, or is incomplete")]
    Signature,
    #[error("`{0}` is not a path inside the export")]
    Path(String),
}

/// The largest manifest that is read: some million files.
const MANIFEST_BYTES: u64 = 512 * 1024 * 1024;

impl Manifest {
    /// The manifest of an export as of the last record of `state`, whose chain value is `chain`,
    /// still without files.
    pub(super) fn of(
        holds: ExportScope,
        state: &State,
        chain: String,
    ) -> Result<Self, ExportError> {
        let identity = state.server().ok_or(ExportError::Empty)?;
        Ok(Self {
            logcabin_export: FORMAT,
            holds,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            exported_ms: 0,
            running: false,
            server_name: identity.server_name.clone(),
            key_id: identity.key_id.clone(),
            public_key: identity.public_key.clone(),
            user_id: None,
            epoch: state.epoch(),
            last: state.applied(),
            chain,
            state_digest: None,
            files: Vec::new(),
            missing: Vec::new(),
            signatures: BTreeMap::new(),
        })
    }

    /// The manifest as JSON, signed with the server's key.
    pub(super) fn sign(&self, identity: &ServerIdentity) -> Result<Vec<u8>, ExportError> {
        let unusable = |error: &dyn std::fmt::Display| ExportError::Signing(error.to_string());
        let object = signed_json::sign(self, identity).map_err(|error| unusable(&error))?;
        let mut text = serde_json::to_vec_pretty(&object).map_err(|error| unusable(&error))?;
        text.push(b'\n');
        Ok(text)
    }

    /// Reads the manifest of the export in `dir`, and verifies its signature with the key in it.
    pub(super) fn read(dir: &Path) -> Result<Self, ManifestError> {
        let mut text = Vec::new();
        std::fs::File::open(dir.join(FILE))?.take(MANIFEST_BYTES).read_to_end(&mut text)?;
        let value: Value = serde_json::from_slice(&text)?;
        // Other layouts are unknown, so this is checked first.
        match value.get("logcabin_export").and_then(Value::as_u64) {
            Some(format) if format != u64::from(FORMAT) => {
                return Err(ManifestError::Format(format));
            }
            _ => {}
        }
        let manifest = Self::deserialize(&value)?;
        // Over the whole object, not only the known members.
        let Self { server_name, key_id, public_key, signatures, .. } = &manifest;
        let by_the_key = signatures.get(server_name).is_some_and(|by| by.keys().eq([key_id]));
        if !by_the_key || !signed_json::is_signed(&value, server_name, public_key) {
            return Err(ManifestError::Signature);
        }
        match manifest.files.iter().find(|entry| !is_inside(&entry.path)) {
            Some(entry) => Err(ManifestError::Path(entry.path.clone())),
            None => Ok(manifest),
        }
    }
}

/// Whether a path stays inside the directory that it is joined to.
fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    !path.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::manifest::tests::identity;

    fn manifest(identity: &ServerIdentity, path: &str) -> Manifest {
        let entry = Entry {
            path: path.to_owned(),
            bytes: 7,
            blake3: "ab".repeat(32),
            lines: Some(1),
            first: Some(Offset::new(1)),
        };
        Manifest {
            logcabin_export: FORMAT,
            holds: ExportScope::Server,
            version: "1".to_owned(),
            exported_ms: 5,
            running: false,
            server_name: identity.server_name.clone(),
            key_id: identity.key_id.clone(),
            public_key: identity.public_key.clone(),
            user_id: None,
            epoch: Epoch(0),
            last: Offset::new(3),
            chain: "00".repeat(32),
            state_digest: None,
            files: vec![entry],
            missing: Vec::new(),
            signatures: BTreeMap::new(),
        }
    }

    #[test]
    fn a_manifest_is_believed_only_as_it_was_signed() {
        let (dir, identity) = (tempfile::tempdir().unwrap(), identity());
        let manifest = manifest(&identity, "log/000001.ndjson");
        let text = manifest.sign(&identity).unwrap();
        let write = |text: &[u8]| std::fs::write(dir.path().join(FILE), text).unwrap();
        write(&text);
        let read = Manifest::read(dir.path()).unwrap();
        assert_eq!(Manifest { signatures: BTreeMap::new(), ..read }, manifest);
        for at in 0..text.len() {
            let mut changed = text.clone();
            // Another letter or digit, so that most changes keep it valid JSON.
            changed[at] ^= 1;
            write(&changed);
            let said = |text: &[u8]| serde_json::from_slice::<Value>(text).ok();
            let same = said(&changed) == said(&text);
            assert!(same || Manifest::read(dir.path()).is_err(), "byte {at}");
        }
        let other = String::from_utf8(text).unwrap().replace("export\": 1", "export\": 2");
        write(other.as_bytes());
        assert!(matches!(Manifest::read(dir.path()), Err(ManifestError::Format(2))));
    }

    #[test]
    fn no_file_is_read_outside_the_export() {
        let (dir, identity) = (tempfile::tempdir().unwrap(), identity());
        for path in ["../a", "/etc/passwd", "log/../../a", "", "."] {
            let text = manifest(&identity, path).sign(&identity).unwrap();
            std::fs::write(dir.path().join(FILE), text).unwrap();
            let error = Manifest::read(dir.path()).unwrap_err();
            assert!(matches!(error, ManifestError::Path(_)), "{path:?}: {error}");
        }
    }
}
