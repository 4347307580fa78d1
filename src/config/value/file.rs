//! Paths of files and directories.

use std::path::PathBuf;

use toml::Value;

use super::{RawSetting, Setting};

impl Setting for PathBuf {
    const ALLOWED: &'static str = "the path of a file or directory";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        given.text().filter(|text| !text.is_empty()).map(Self::from)
    }

    fn to_toml(&self) -> Value {
        Value::String(self.display().to_string())
    }
}

/// The path of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(pub PathBuf);

impl Setting for FilePath {
    const ALLOWED: &'static str = "the path of a file";
    const LISTED: &'static str = "a list, which may be empty, of the paths of files";
    const OPTIONAL: &'static str = "\"off\" or the path of a file";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        PathBuf::read(given).map(Self)
    }

    fn to_toml(&self) -> Value {
        self.0.to_toml()
    }
}

/// Where the archive of the log is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveDir {
    /// The directory `archive` in the data directory.
    Auto,
    /// Nowhere: there is no archive.
    Off,
    /// Here.
    Path(PathBuf),
}

impl Setting for ArchiveDir {
    const ALLOWED: &'static str = "\"auto\", \"off\" or the path of a directory";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        match given.text()? {
            "" => None,
            "auto" => Some(Self::Auto),
            "off" => Some(Self::Off),
            path => Some(Self::Path(path.into())),
        }
    }

    fn to_toml(&self) -> Value {
        Value::String(match self {
            Self::Auto => "auto".to_owned(),
            Self::Off => "off".to_owned(),
            Self::Path(path) => path.display().to_string(),
        })
    }
}
