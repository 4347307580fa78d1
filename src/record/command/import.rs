//! Commands of an import from another server's database, and the marks of what was imported.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::{
    Content,
    values::{FileHash, Secret},
};

/// The program whose database was imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImportSource {
    Synapse,
}

impl ImportSource {
    /// All of them.
    pub const ALL: [Self; 1] = [Self::Synapse];

    /// Its name in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Synapse => "synapse",
        }
    }

    /// Its name for people.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Synapse => "Synapse",
        }
    }

    /// The one with this name in records.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.as_str() == name)
    }
}

/// Payload of `import.begin`. It precedes everything that is imported.
// Projections keep parts of these payloads in a format without names: no member may be left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportBegin {
    pub source: ImportSource,
    /// The version of the source's program; empty if it is not known.
    pub version: String,
    /// The version of its database's schema.
    pub schema: u32,
    /// The kind of its database: `sqlite` or `postgresql`.
    pub database: String,
    /// The version of the program that imported it.
    pub tool: String,
    /// When the import began, in milliseconds since the Unix epoch.
    pub begun_ms: u64,
}

impl Content for ImportBegin {}

/// Payload of `import.end`. It follows everything that was imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportEnd {
    pub source: ImportSource,
    /// blake3 of what was read, in hex.
    pub digest: FileHash,
    /// The last position that was read in each of the source's streams, by the stream's name.
    pub positions: BTreeMap<String, i64>,
    /// How many rows were read of each table.
    pub read: BTreeMap<String, u64>,
    /// What was not imported.
    pub left: Vec<LeftOut>,
    /// In how many rooms the state is not the one that the source says.
    pub differing_rooms: u64,
    /// Whether the log is only for rehearsals: the source is still in use.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rehearsal: bool,
}

impl Content for ImportEnd {}

/// Rows that were not imported for the same reason. It names nobody: this stays for ever.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    pub table: String,
    pub reason: String,
    /// How many there are.
    pub count: u64,
}

/// How a password was prepared before it was hashed. Hashes of other servers begin with it, in
/// braces: `{nfkc,pepper}$2b$12$…`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PasswordFlags {
    /// In Unicode's normalization form KC.
    pub nfkc: bool,
    /// With a secret that the log does not have.
    pub pepper: bool,
}

impl PasswordFlags {
    /// The flags and the hash itself of a stored hash of another server; `None` for a hash of this
    /// server's own, and for what has an unknown flag.
    pub fn split(stored: &str) -> Option<(Self, &str)> {
        let (names, hash) = stored.strip_prefix('{')?.split_once('}')?;
        let mut flags = Self::default();
        for name in names.split(',').filter(|_| !names.is_empty()) {
            match name {
                "nfkc" => flags.nfkc = true,
                "pepper" => flags.pepper = true,
                _ => return None,
            }
        }
        Some((flags, hash))
    }
}

impl fmt::Display for PasswordFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(self.nfkc, "nfkc"), (self.pepper, "pepper")];
        let set: Vec<_> = names.iter().filter(|(is_set, _)| *is_set).map(|of| of.1).collect();
        write!(f, "{{{}}}", set.join(","))
    }
}

/// A password hash of another server, in the form that is stored.
pub fn imported_password(flags: PasswordFlags, hash: &str) -> Secret {
    format!("{flags}{hash}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_passwords_round_trip_and_nothing_else_is_read() {
        let flags = |nfkc, pepper| PasswordFlags { nfkc, pepper };
        for (flags, text) in [
            (flags(false, false), "{}$2b$12$x"),
            (flags(true, false), "{nfkc}$2b$12$x"),
            (flags(false, true), "{pepper}$2b$12$x"),
            (flags(true, true), "{nfkc,pepper}$2b$12$x"),
        ] {
            assert_eq!(imported_password(flags, "$2b$12$x").expose(), text);
            assert_eq!(PasswordFlags::split(text), Some((flags, "$2b$12$x")));
        }
        for bad in ["", "$2b$12$x", "{nfkc$2b$12$x", "{nfkd}$2b$12$x", "{nfkc,}$2b$12$x"] {
            assert_eq!(PasswordFlags::split(bad), None, "{bad}");
        }
    }

    #[test]
    fn sources_are_found_by_their_names() {
        for source in ImportSource::ALL {
            assert_eq!(ImportSource::named(source.as_str()), Some(source));
            let json = serde_json::to_string(&source).unwrap();
            assert_eq!(json, format!("\"{}\"", source.as_str()));
        }
        assert_eq!(ImportSource::named("Synapse"), None);
    }
}
