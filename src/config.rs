//! The configuration: one struct for each concern, read once at start and passed down.
//!
//! Sources, later ones winning: the defaults, a TOML file, environment variables
//! (`LOGCABIN_<SECTION>_<KEY>`), command-line flags. A key that does not exist or a value that
//! cannot be is refused with the key, the place it came from, and what is allowed.
//!
//! Everything about a setting (its key, documentation, type, default, bounds, environment variable)
//! is said once, in the list at the end of this file; the structs, the parser and the text that
//! `logcabin config` prints are made from that list. How values are read is in [`value`].

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
    path::PathBuf,
    time::Duration,
};

use thiserror::Error;
use toml::de::{DeTable, DeValue};

pub mod value;

pub use value::{
    ArchiveDir, EraseAfter, List, OpenRegistration, PathPrefix, PublicUrl, Unauthenticated,
    UrlPattern,
};
use value::{Given, Setting};

use crate::{engine::SweepPolicy, media::network::Range};

/// What comes before the name of each environment variable.
const ENV_PREFIX: &str = "LOGCABIN_";
/// Variables with the prefix that are not settings: the file to read, and what to log.
const ENV_OTHER: [&str; 3] = ["LOGCABIN_CONFIG", "LOGCABIN_LOG", "LOGCABIN_LOG_FORMAT"];

/// Where a setting's value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of the configuration file.
    File(PathBuf, usize),
    /// An environment variable.
    Env(String),
    /// A flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{place}: not valid TOML: {reason}")]
    Syntax {
        /// Where.
        place: Place,
        /// What the parser says.
        reason: String,
    },
    /// There is no such key.
    #[error("{place}: there is no setting `{key}`; {known}")]
    Unknown {
        /// Where.
        place: Place,
        /// The key as given.
        key: String,
        /// What there is instead.
        known: String,
    },
    /// The key cannot have this value.
    #[error("{place}: `{key}` cannot be {value}: allowed is {allowed}")]
    Bad {
        /// Where.
        place: Place,
        /// The key.
        key: String,
        /// The value as given.
        value: String,
        /// What is allowed.
        allowed: String,
    },
}

/// A value given on the command line: the key, the flag, and the text.
#[derive(Clone, Debug)]
pub struct Override {
    /// The key, for example `server.bind`.
    pub key: &'static str,
    /// The flag, for the message if the value is refused.
    pub flag: &'static str,
    /// The value, written as in an environment variable.
    pub text: String,
}

/// A configuration with the knowledge of where its values came from.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The values.
    pub config: Config,
    places: BTreeMap<(&'static str, &'static str), Place>,
}

impl Effective {
    /// Puts the configuration together from its sources.
    ///
    /// # Errors
    /// When a source has a key that does not exist or a value that is not allowed.
    pub fn load(
        file: Option<(PathBuf, String)>,
        env: impl IntoIterator<Item = (String, String)>,
        flags: &[Override],
    ) -> Result<Self, ConfigError> {
        let mut effective = Self { config: Config::default(), places: BTreeMap::new() };
        if let Some((path, text)) = file {
            effective.read_file(&path, &text)?;
        }
        for (name, text) in env {
            effective.read_env(name, &text)?;
        }
        for flag in flags {
            let (section, name) = flag.key.split_once('.').unwrap_or_default();
            let place = Place::Flag(flag.flag);
            effective.set(section, name, &Given::Text(&flag.text), place)?;
        }
        Ok(effective)
    }

    fn read_file(&mut self, path: &std::path::Path, text: &str) -> Result<(), ConfigError> {
        let at = |offset: usize| {
            let line = text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
            Place::File(path.to_owned(), line)
        };
        let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            place: at(error.span().map_or(0, |span| span.start)),
            reason: error.message().to_owned(),
        })?;
        for (section, content) in table.get_ref() {
            let place = at(section.span().start);
            let DeValue::Table(content) = content.get_ref() else {
                let key = section.get_ref().to_string();
                return Err(ConfigError::Unknown { place, key, known: known_sections() });
            };
            if !SECTIONS.iter().any(|(known, _)| *known == section.get_ref().as_ref()) {
                let key = format!("[{}]", section.get_ref());
                return Err(ConfigError::Unknown { place, key, known: known_sections() });
            }
            for (name, value) in content {
                let given = Given::Toml(value.get_ref());
                self.set(section.get_ref(), name.get_ref(), &given, at(name.span().start))?;
            }
        }
        Ok(())
    }

    fn read_env(&mut self, name: String, text: &str) -> Result<(), ConfigError> {
        if !name.starts_with(ENV_PREFIX) || ENV_OTHER.contains(&name.as_str()) {
            return Ok(());
        }
        let Some(setting) = SETTINGS.iter().find(|setting| setting.env() == name) else {
            let known =
                "`logcabin config` prints all settings; the variable of `server.bind`, for \
                         example, is LOGCABIN_SERVER_BIND"
                    .to_owned();
            return Err(ConfigError::Unknown { place: Place::Env(name.clone()), key: name, known });
        };
        self.set(setting.section, setting.name, &Given::Text(text), Place::Env(name))
    }

    fn set(
        &mut self,
        section: &str,
        name: &str,
        given: &Given<'_>,
        place: Place,
    ) -> Result<(), ConfigError> {
        let setting =
            SETTINGS.iter().find(|setting| setting.section == section && setting.name == name);
        let Some(setting) = setting else {
            let key = format!("{section}.{name}");
            return Err(ConfigError::Unknown { place, key, known: known_names(section) });
        };
        if (setting.set)(&mut self.config, given).is_none() {
            return Err(ConfigError::Bad {
                place,
                key: format!("{section}.{name}"),
                value: given.to_string(),
                allowed: (setting.allowed)(),
            });
        }
        self.places.insert((setting.section, setting.name), place);
        Ok(())
    }

    /// The configuration as a TOML file with every key explained.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::from(
            "# The configuration of Logcabin, with every setting there is.\n\
             #\n\
             # Any of it can be left out. The environment wins over this file, and flags win over\n\
             # both; the variable of a key in a section is LOGCABIN_<SECTION>_<KEY>, in capitals,\n\
             # with commas between the values of a list.\n",
        );
        for (section, doc) in SECTIONS {
            text.push('\n');
            for line in *doc {
                let _ = writeln!(text, "#{line}");
            }
            let _ = writeln!(text, "[{section}]");
            self.write_section(section, &mut text);
        }
        text
    }

    fn write_section(&self, section: &str, text: &mut String) {
        for setting in SETTINGS.iter().filter(|setting| setting.section == section) {
            text.push('\n');
            for line in setting.doc {
                let _ = writeln!(text, "#{line}");
            }
            let _ = writeln!(text, "# Allowed: {}.", (setting.allowed)());
            if let Some(place) = self.places.get(&(setting.section, setting.name)) {
                let default = (setting.get)(&Config::default());
                let _ = writeln!(text, "# Default: {default}. This value is from: {place}.");
            }
            let _ = writeln!(text, "{} = {}", setting.name, (setting.get)(&self.config));
        }
    }
}

impl Config {
    /// Whether anyone may register, once "auto" is settled.
    #[must_use]
    pub fn registration_is_open(&self) -> bool {
        match self.registration.open {
            // A public address or a proxy in front means that others get in by way of loopback.
            OpenRegistration::Auto => {
                self.server.bind.iter().all(|bind| bind.ip().is_loopback())
                    && self.server.public_url == PublicUrl::Auto
                    && !self.server.trust_forwarded_for
            }
            OpenRegistration::Yes => true,
            OpenRegistration::No => false,
        }
    }

    /// The address at which clients reach the server, without a slash at its end.
    #[must_use]
    pub fn public_url(&self) -> String {
        match (&self.server.public_url, self.server.bind.first()) {
            (PublicUrl::Url(url), _) => url.to_string(),
            (PublicUrl::Auto, Some(bind)) => format!("http://{}", reachable(*bind)),
            (PublicUrl::Auto, None) => format!("http://{}", self.server.name),
        }
    }

    /// The first address that it listens on, as this machine can reach it.
    #[must_use]
    pub fn local_url(&self) -> String {
        let bind = self.server.bind.first();
        bind.map_or_else(String::new, |bind| format!("http://{}", reachable(*bind)))
    }

    /// The directory of the archive, unless there is to be none.
    #[must_use]
    pub fn archive_dir(&self) -> Option<PathBuf> {
        match &self.log.archive_dir {
            ArchiveDir::Auto => Some(self.server.data_dir.join("archive")),
            ArchiveDir::Off => None,
            ArchiveDir::Path(path) => Some(path.clone()),
        }
    }

    /// What is erased, and how often.
    #[must_use]
    pub fn sweep_policy(&self) -> SweepPolicy {
        let redacted_after = match self.erasure.redacted_after_seconds {
            EraseAfter::Off => None,
            EraseAfter::Seconds(seconds) => Some(Duration::from_secs(seconds.into())),
        };
        SweepPolicy { redacted_after, every: Duration::from_secs(self.erasure.sweep_seconds) }
    }

    /// How many password hashes may be computed at once.
    #[must_use]
    pub fn concurrent_hashes(&self) -> usize {
        match self.passwords.concurrent {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            number => number,
        }
    }
}

fn known_sections() -> String {
    let names: Vec<_> = SECTIONS.iter().map(|(section, _)| format!("[{section}]")).collect();
    format!("the sections are {}", names.join(", "))
}

fn known_names(section: &str) -> String {
    let names: Vec<_> = SETTINGS.iter().filter(|s| s.section == section).map(|s| s.name).collect();
    format!("in [{section}] there are {}", names.join(", "))
}

/// One entry of the list.
struct Entry {
    section: &'static str,
    name: &'static str,
    doc: &'static [&'static str],
    allowed: fn() -> String,
    get: fn(&Config) -> toml::Value,
    /// `None` when the value is not allowed.
    set: fn(&mut Config, &Given<'_>) -> Option<()>,
}

impl Entry {
    fn env(&self) -> String {
        format!("{ENV_PREFIX}{}_{}", self.section, self.name).to_ascii_uppercase()
    }
}

/// Makes the structs and [`SETTINGS`] from one list.
macro_rules! settings {
    ($(
        $(#[doc = $section_doc:literal])+
        $section:ident: $Section:ident {$(
            $(#[doc = $doc:literal])+
            $name:ident: $type:ty = $default:expr $(, in $range:expr)?;
        )+}
    )+) => {
        /// All settings.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Config {$(
            $(#[doc = $section_doc])+
            pub $section: $Section,
        )+}

        $(
            $(#[doc = $section_doc])+
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $Section {$(
                $(#[doc = $doc])+
                pub $name: $type,
            )+}

            impl Default for $Section {
                fn default() -> Self {
                    Self { $($name: $default,)+ }
                }
            }
        )+

        static SECTIONS: &[(&str, &[&str])] = &[$((stringify!($section), &[$($section_doc),+])),+];

        static SETTINGS: &[Entry] = &[$($(
            Entry {
                section: stringify!($section),
                name: stringify!($name),
                doc: &[$($doc),+],
                allowed: || {
                    let allowed = <$type as Setting>::ALLOWED;
                    $(
                        let range: RangeInclusive<$type> = $range;
                        let allowed =
                            format!("{allowed} from {} to {}", range.start(), range.end());
                    )?
                    allowed.to_owned()
                },
                get: |config| config.$section.$name.to_toml(),
                set: |config, given| {
                    let value = <$type as Setting>::read(given)?;
                    $(if !$range.contains(&value) { return None; })?
                    config.$section.$name = value;
                    Some(())
                },
            },
        )+)+];
    };
}

/// An address to speak to: one that means "all of this machine's" can be listened on, not spoken to.
fn reachable(bind: SocketAddr) -> SocketAddr {
    match bind.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, bind.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, bind.port()).into(),
        _ => bind,
    }
}

settings! {
    /// Where the server listens and what it is called.
    server: Server {
        /// The addresses to listen on. Put a reverse proxy with TLS before any that others can reach.
        bind: Vec<SocketAddr> = vec![SocketAddr::from(([127, 0, 0, 1], 8008))];
        /// The name in every user id (@ann:NAME) and room id. It is written into the log at the first
        /// start and cannot be changed afterwards.
        name: ruma::OwnedServerName = ruma::owned_server_name!("localhost");
        /// The directory of the log and of all else that is kept.
        data_dir: PathBuf = PathBuf::from("./data");
        /// What the paths of the API begin with.
        prefixes: Vec<PathPrefix> = vec![PathPrefix::new("/_svc"), PathPrefix::new("/_matrix")];
        /// The address at which clients reach this server, told to them at /.well-known/matrix/client;
        /// "auto" is the first address of `bind`, by http.
        public_url: PublicUrl = PublicUrl::Auto;
        /// Believe the last address in the header X-Forwarded-For. Only behind a proxy that sets it:
        /// anyone else could then write any address there.
        trust_forwarded_for: bool = false;
    }

    /// Who may create an account.
    registration: Registration {
        /// Whether anyone may register; "auto" means only while every address of `server.bind` is a
        /// loopback address and neither `server.public_url` nor `server.trust_forwarded_for` says that
        /// there is a proxy in front, so that nobody opens a server to the world unawares.
        open: OpenRegistration = OpenRegistration::Auto;
    }

    /// How often callers may use the endpoints that the specification marks as rate-limited.
    rate_limits: RateLimits {
        /// Whether there are limits at all.
        enabled: bool = true;
        /// Requests per second of one user, over time.
        user_per_second: u32 = 20, in 1..=1_000_000;
        /// Requests that one user may make at once, after a pause.
        user_burst: u32 = 200, in 1..=1_000_000;
        /// Requests per second from one address without a login, over time. (Of IPv6, one address here
        /// is a /64.) It bounds how fast passwords can be guessed.
        address_per_second: u32 = 5, in 1..=1_000_000;
        /// Requests that one address may make at once without a login, after a pause.
        address_burst: u32 = 50, in 1..=1_000_000;
    }

    /// Bounds on connections and requests.
    http: Http {
        /// The largest JSON body, in bytes. An event may have 65,536; uploads of keys are the largest.
        max_body_bytes: usize = 2 * 1024 * 1024, in 65_536..=268_435_456;
        /// Seconds that a client may take to send the head of a request, or between two pieces of its
        /// body, and that an idle connection is kept.
        header_timeout_seconds: u64 = 60, in 1..=3600;
        /// Connections open at once; more wait to be accepted. Every waiting sync over HTTP/1.1 is one.
        max_connections: usize = 20_000, in 1..=1_000_000;
        /// Seconds that requests in progress are given to finish when the server is stopped.
        shutdown_seconds: u64 = 10, in 0..=600;
    }

    /// The log.
    log: Log {
        /// The directory of the archive: plain files with every record, from which all data can be
        /// rebuilt should the database be damaged. Best on another disk. "auto" is the directory
        /// `archive` in the data directory.
        archive_dir: ArchiveDir = ArchiveDir::Auto;
        /// The size at which a file of the archive is closed and the next begun, in bytes.
        archive_segment_bytes: u64 = 64 * 1024 * 1024, in 65_536..=1_099_511_627_776;
        /// When less than this is free on the disk, in bytes, writes are refused while reads go on.
        min_free_bytes: u64 = 256 * 1024 * 1024, in 0..=1_099_511_627_776;
    }

    /// What leaves the log.
    erasure: Erasure {
        /// Seconds after which the content of a redacted event is erased from the log and the archive;
        /// "off" keeps it. Nobody is shown it from the redaction on, whatever this says.
        redacted_after_seconds: EraseAfter = EraseAfter::Seconds(7 * 24 * 3600);
        /// Seconds between two sweeps. A sweep erases what is due, and receipts and typing notices that
        /// later ones have superseded; then the files that held it are written anew, which takes as much
        /// again of the disk for a while.
        sweep_seconds: u64 = 24 * 3600, in 1..=31_536_000;
    }

    /// Receipts and typing notices.
    receipts: Receipts {
        /// Milliseconds for which those of a large room are gathered, to be one record and to wake those
        /// who wait once; 0 gathers none.
        gather_ms: u64 = 100, in 0..=10_000;
        /// How many must have joined a room for it to be a large one.
        gather_members: u64 = 100, in 1..=1_000_000;
    }

    /// How passwords are kept.
    passwords: Passwords {
        /// Rounds of PBKDF2-HMAC-SHA-512 for a new hash (OWASP advises 210,000). Old hashes keep the
        /// number they were made with.
        iterations: u32 = 210_000, in 1_000..=10_000_000;
        /// Hashes computed at once; 0 means one for each processor.
        concurrent: usize = 0, in 0..=1024;
    }

    /// Access tokens.
    tokens: Tokens {
        /// Seconds for which the access token is good of a client that can refresh it. Those of other
        /// clients do not expire.
        access_lifetime_seconds: u64 = 3600, in 10..=31_536_000;
    }

    /// The user directory.
    user_directory: UserDirectory {
        /// Whether it finds every user of this server. Otherwise users find those with whom they share a
        /// room and those who are in public rooms.
        all_users: bool = false;
    }

    /// Synchronisation.
    sync: Sync {
        /// The longest time a client may ask a sync to wait, in seconds; more is cut to this.
        max_timeout_seconds: u64 = 300, in 0..=3600;
        /// Events of each room in a sync whose filter does not say.
        timeline_limit: u32 = 10, in 1..=1000;
        /// The most events of each room that a filter can ask for; more is cut to this.
        max_timeline_limit: u32 = 1000, in 1..=10_000;
    }

    /// Presence: who is online.
    presence: Presence {
        /// Whether there is any. Without it everyone counts as offline, and nobody is told otherwise.
        enabled: bool = true;
        /// Seconds without doing anything after which a user who is connected counts as idle.
        idle_seconds: u64 = 300, in 1..=86_400;
        /// Seconds after the last sync has ended after which a device counts as gone.
        offline_seconds: u64 = 30, in 1..=3600;
    }

    /// Uploaded files, and previews of pages.
    media: Media {
        /// The largest file that can be uploaded, in bytes.
        max_upload_bytes: u64 = 100 * 1024 * 1024, in 1..=1_099_511_627_776;
        /// How many bytes the files of one user may have together.
        user_quota_bytes: u64 = 10 * 1024 * 1024 * 1024, in 0..=1_125_899_906_842_624;
        /// How many addresses one user may have been given for files that are still to be uploaded.
        unused_ids: usize = 20, in 0..=100_000;
        /// Seconds after which such an address lapses if nothing was uploaded to it.
        unused_seconds: u64 = 24 * 3600, in 1..=31_536_000;
        /// What is served by the old paths (/_matrix/media), to anyone who knows the address, without an
        /// access token: "none", "all", or what was uploaded before a moment. Clients that know Matrix 1.11
        /// do not need them.
        unauthenticated: Unauthenticated = Unauthenticated::None;
        /// How many bytes of thumbnails are kept. The oldest are deleted, and made again when they are asked
        /// for.
        thumbnail_bytes: u64 = 1024 * 1024 * 1024, in 0..=1_125_899_906_842_624;
        /// Seconds after which a file is deleted that nothing names: one that was being uploaded when the
        /// server was killed, or of which the log lost the record in a restore.
        orphan_seconds: u64 = 24 * 3600, in 0..=31_536_000;
        /// Whether the server fetches pages of which clients want a preview. The users of a room then see
        /// what a link leads to, and the site sees this server's address, not theirs.
        url_previews: bool = true;
        /// Addresses of your own networks from which previews may be fetched. All others that are not of the
        /// public internet are refused, by whatever name they go.
        preview_allowed_ranges: List<Range> = List::default();
        /// Pages of which there are no previews.
        preview_denied_urls: List<UrlPattern> = List::default();
        /// The largest picture of a page that is fetched, in bytes; 0 fetches none.
        preview_image_bytes: u64 = 5 * 1024 * 1024, in 0..=268_435_456;
        /// How many bytes the pictures of all pages may have together. After that, previews have none.
        preview_store_bytes: u64 = 1024 * 1024 * 1024, in 0..=1_125_899_906_842_624;
        /// Seconds for which a preview is remembered.
        preview_cache_seconds: u64 = 3600, in 1..=31_536_000;
    }

    /// Events that clients have sent later (MSC4140).
    delayed_events: DelayedEvents {
        /// The longest delay, in seconds; 0 allows none at all.
        max_delay_seconds: u64 = 86_400, in 0..=31_536_000;
        /// How many events one user may have scheduled at a time.
        max_per_user: usize = 100, in 0..=100_000;
    }
}

#[cfg(test)]
mod tests;
