//! What this server has to know of the one that it takes over from.

use std::{collections::BTreeMap, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use ed25519_dalek::SigningKey;
use serde_json::Value;

use logcabin_base::clock::random_bytes;
use logcabin_ops::former::{Former, Stage};
use logcabin_record::hex;

use crate::{
    ImportError,
    facts::{Cursor, Fact, Section, Source},
    proposal::{Addresses, addresses},
};

/// The server of a source and of a configuration, as it is noted while it is in use.
///
/// # Errors
/// When the source cannot be read, or has no key to sign with.
pub fn former_server(
    config: &Path,
    yaml: &Value,
    source: &mut dyn Source,
) -> Result<Former, ImportError> {
    let about = source.about()?;
    let mut keys = BTreeMap::new();
    let mut after = Cursor::START;
    loop {
        let slice = source.read(Section::Server, &after)?;
        for told in slice.facts {
            if let Fact::ServerKey(key) = told.fact
                && let Some(seed) = &key.seed
            {
                let public = SigningKey::from_bytes(&seed.0).verifying_key();
                keys.insert(key.key_id, STANDARD_NO_PAD.encode(public.as_bytes()));
            }
        }
        match slice.next {
            Some(next) => after = next,
            None => break,
        }
    }
    if keys.is_empty() {
        let why = format!("{} has no key to sign with: is `signing_key_path` right?", about.place);
        return Err(ImportError::Refused(why));
    }
    // It is compared with where the guard file is, wherever this is run from.
    let config = std::fs::canonicalize(config).map_err(|source| ImportError::File {
        what: "find",
        path: config.to_owned(),
        source,
    })?;
    let Addresses { here, public } = addresses(yaml);
    let (server_name, stage, newest) = (about.server_name, Stage::Copied, None);
    let positions = BTreeMap::new();
    let id = hex(&random_bytes::<32>());
    Ok(Former { id, config, server_name, keys, here, public, stage, newest, positions })
}
