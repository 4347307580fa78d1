//! Who may read what the server keeps secret.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use super::{Finding, Level, Subject, unknown};
use logcabin_config::{FilePath, MediaDir};
use logcabin_log::store::log_dir;

/// A file or directory that should be private.
#[derive(Clone, Debug)]
struct PrivatePath {
    path: PathBuf,
    /// What it is.
    what: &'static str,
    /// The permission bits that nobody should have.
    forbidden: u32,
    /// The permissions that it has; none if it is not there, or why they cannot be read.
    mode: Result<Option<u32>, String>,
    is_dir: bool,
}

pub(super) fn findings(of: &Subject<'_>) -> Vec<Finding> {
    judge(&gather(of))
}

fn gather(of: &Subject<'_>) -> Vec<PrivatePath> {
    let data = &of.config.server.data_dir;
    let mut all = vec![
        look(data.clone(), "the data directory", 0o077),
        look(log_dir(data), "the log", 0o077),
        look(data.join("tokens.key"), "the key of tokens", 0o077),
        look(data.join("id_token.key"), "the key of ID tokens", 0o077),
    ];
    if let Some(archive) = of.config.archive_dir() {
        all.push(look(archive, "the archive", 0o077));
    }
    if let MediaDir::Path(media) = &of.config.media.dir {
        all.push(look(media.clone(), "the uploaded files", 0o007));
    }
    if let Some(FilePath(key)) = &of.config.federation.certificate_key {
        // Those who renew certificates may have a group for it.
        all.push(look(key.clone(), "the key of the certificate", 0o007));
    }
    all
}

fn look(path: PathBuf, what: &'static str, forbidden: u32) -> PrivatePath {
    let about = fs::metadata(&path);
    let is_dir = about.as_ref().is_ok_and(fs::Metadata::is_dir);
    let mode = match about {
        Ok(about) => Ok(Some(about.permissions().mode() & 0o777)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    };
    PrivatePath { path, what, forbidden, mode, is_dir }
}

fn judge(all: &[PrivatePath]) -> Vec<Finding> {
    let mut found: Vec<_> = all.iter().filter_map(one).collect();
    if found.is_empty() {
        let what = "Only the owner can read the data directory and the keys.";
        found.push(Finding::ok("permissions", what));
    }
    found
}

fn one(of: &PrivatePath) -> Option<Finding> {
    let shown = of.path.display();
    match &of.mode {
        Err(reason) => {
            let subject = format!("Who may read {shown} ({})", of.what);
            let mend = "Run logcabin doctor as the user of the server.";
            Some(unknown("permissions", &subject, reason, mend))
        }
        Ok(Some(mode)) if mode & of.forbidden != 0 => {
            let right = mode & !of.forbidden;
            Some(Finding::new(
                "permissions",
                Level::Error,
                format!("Other users may get at {shown} ({}): its mode is {mode:04o}.", of.what),
                match of.is_dir {
                    true => {
                        "In it are the server's private key, password hashes and every message."
                    }
                    false => "Whoever reads a key can act in the name of the server or its users.",
                },
                format!("chmod {right:03o} {}", quoted(&of.path)),
            ))
        }
        Ok(_) => None,
    }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    match text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(mode: Result<Option<u32>, String>, forbidden: u32, is_dir: bool) -> PrivatePath {
        let path = PathBuf::from("/srv/it's here/tokens.key");
        PrivatePath { path, what: "the key of tokens", forbidden, mode, is_dir }
    }

    #[test]
    fn whoever_else_may_read_a_secret_is_found() {
        for (mode, forbidden, right) in [
            (0o644, 0o077, Some("600")),
            (0o755, 0o077, Some("700")),
            (0o640, 0o077, Some("600")),
            (0o644, 0o007, Some("640")),
            (0o640, 0o007, None),
            (0o600, 0o077, None),
        ] {
            let found = judge(&[path(Ok(Some(mode)), forbidden, false)]);
            let expected = right.map_or(Level::Ok, |_| Level::Error);
            assert_eq!(found[0].level, expected, "{mode:o}: {found:?}");
            if let Some(right) = right {
                let mend = format!("chmod {right} '/srv/it'\\''s here/tokens.key'");
                assert_eq!(found[0].mend, mend);
            }
        }
    }

    #[test]
    fn what_is_not_there_is_well_and_what_cannot_be_seen_is_unknown() {
        assert_eq!(judge(&[path(Ok(None), 0o077, false)])[0].level, Level::Ok);
        let found = judge(&[path(Err("no permission".to_owned()), 0o077, false)]);
        assert_eq!(found[0].level, Level::Unknown);
    }
}
