//! Certificates in files.

use std::path::Path;

use rustls::pki_types::{CertificateDer, pem::PemObject as _};

/// The certificates in a PEM file.
///
/// # Errors
/// When it cannot be read, or holds none; the text names the file.
pub fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unusable = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable(&error))?;
    if found.is_empty() {
        return Err(unusable(&"it holds no certificate"));
    }
    Ok(found)
}
