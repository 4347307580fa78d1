//! Files of settings of other servers.

use std::{fs::File, io::Read as _, path::Path};

use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

use crate::ImportError;
use logcabin_base::limits;

/// A file of settings, as text.
pub(crate) fn text(path: &Path) -> Result<String, ImportError> {
    let failed = |source| ImportError::File { what: "read", path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut text = String::new();
    let read = file.take(limits::SOURCE_SETTINGS_BYTES + 1).read_to_string(&mut text);
    let read = read.map_err(failed)?;
    if u64::try_from(read).is_ok_and(|read| read > limits::SOURCE_SETTINGS_BYTES) {
        let why = "it is too large for a file of settings".to_owned();
        return Err(ImportError::Settings { path: path.to_owned(), why });
    }
    Ok(text)
}

/// A file of settings in YAML, by the names of its sections.
pub(crate) fn sections(path: &Path) -> Result<serde_json::Map<String, Value>, ImportError> {
    let wrong = |why: String| ImportError::Settings { path: path.to_owned(), why };
    let text = text(path)?;
    // As Python reads it: of a name that is there twice, the last one counts.
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    match serde_saphyr::from_str_with_options(&text, options) {
        Ok(Value::Object(sections)) => Ok(sections),
        Ok(Value::Null) => Ok(serde_json::Map::new()),
        Ok(_) => Err(wrong("it has no settings with names".to_owned())),
        // The message may quote what is there, which may be a secret: only its place is told.
        Err(error) => Err(wrong(match error.location() {
            Some(place) => format!("it is no YAML, at line {}", place.line()),
            None => "it is no YAML".to_owned(),
        })),
    }
}
