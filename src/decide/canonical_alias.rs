//! The content of canonical alias events.

use ruma::{CanonicalJsonObject, CanonicalJsonValue};

use super::Refusal;

/// The aliases that a canonical alias event names.
pub(super) fn aliases(content: &CanonicalJsonObject) -> Result<Vec<String>, Refusal> {
    let bad = || Refusal::BadJson("Aliases are strings.".to_owned());
    let mut found = Vec::new();
    match content.get("alias") {
        None | Some(CanonicalJsonValue::Null) => {}
        Some(CanonicalJsonValue::String(alias)) if alias.is_empty() => {}
        Some(CanonicalJsonValue::String(alias)) => found.push(alias.clone()),
        Some(_) => return Err(bad()),
    }
    match content.get("alt_aliases") {
        None | Some(CanonicalJsonValue::Null) => {}
        Some(CanonicalJsonValue::Array(aliases)) => {
            for alias in aliases {
                found.push(alias.as_str().ok_or_else(bad)?.to_owned());
            }
        }
        Some(_) => return Err(bad()),
    }
    Ok(found)
}
