//! The configuration: one struct for each concern, read once at start and passed down.
//!
//! Sources, in ascending order of precedence: the defaults, a TOML file, environment variables
//! (`LOGCABIN_<SECTION>_<KEY>`), command-line flags. An unknown key or an invalid value is refused;
//! the error names the key, the source, and the allowed values.
//!
//! Everything about a setting (its key, documentation, type, default, bounds, environment variable)
//! is declared once, in [`list`]. [`value`] parses the values.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

use thiserror::Error;
use toml::de::{DeTable, DeValue};

use logcabin_base::{bodies::Shares, limits};

mod cluster;
mod descriptors;
mod entry;
mod federation;
mod list;
mod monitor;
pub mod value;

pub use cluster::{MediaDir, NatsServer, NodeName, StreamName};
pub use federation::ServerPattern;
pub use list::*;
use list::{SECTIONS, SETTINGS};
pub use monitor::{AccessFormat, AccessLogTo, ListenAddress};
use value::RawSetting;
pub use value::{
    AcmeChallenge, AdminContact, ArchiveDir, BaseUrl, Bind, CheckOutcome, DeniedPassword,
    EraseAfter, FilePath, Hidden, HookFailure, HookPoint, HostName, IdentityServer, JsonTemplate,
    Lifetime, List, Localpart, MailSecurity, MxcAddress, NoProxy, OpenRegistration, OwnRate,
    PathPrefix, ProxyUrl, PublicKey, PublicUrl, RedirectPrefix, Requirement, RoomVersion,
    SecretFile, SecretUrl, SharedSecret, SocketUrl, StrangersInvite, TurnUri, Unauthenticated,
    UrlPattern, UserRate, WebUrl,
};

/// The prefix of the environment variables.
const ENV_PREFIX: &str = "LOGCABIN_";
/// Variables with the prefix that are not settings: the file to read, and the log filter.
const ENV_OTHER: [&str; 3] = ["LOGCABIN_CONFIG", "LOGCABIN_LOG", "LOGCABIN_LOG_FORMAT"];

/// The source of a setting's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingSource {
    /// A line of the configuration file.
    File(PathBuf, usize),
    /// An environment variable.
    Env(String),
    /// A flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// Why a configuration is not usable.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {path}: {source}")]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// The file is not TOML.
    #[error("{place}: not valid TOML: {reason}")]
    Syntax {
        /// Where it is set.
        place: SettingSource,
        /// The parser's message.
        reason: String,
    },
    /// The key does not exist.
    #[error("{place}: there is no setting `{key}`; {known}")]
    Unknown {
        /// Where it is set.
        place: SettingSource,
        /// The given key.
        key: String,
        /// The existing keys.
        known: String,
    },
    /// The value is not allowed.
    #[error("{place}: `{key}` cannot be {value}: allowed is {allowed}")]
    Bad {
        /// Where it is set.
        place: SettingSource,
        key: String,
        /// The given value.
        value: String,
        /// The allowed values.
        allowed: String,
    },
}

/// A value from the command line.
#[derive(Clone, Debug)]
pub struct Override {
    /// The key, for example `server.bind`.
    pub key: &'static str,
    /// The flag, for error messages.
    pub flag: &'static str,
    /// The value, in the syntax of environment variables.
    pub text: String,
}

/// A configuration, with the sources of its values.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The values.
    pub config: Config,
    places: BTreeMap<(&'static str, &'static str), SettingSource>,
}

impl Effective {
    /// Merges the sources.
    ///
    /// # Errors
    /// When a source has an unknown key or an invalid value.
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
            let place = SettingSource::Flag(flag.flag);
            effective.set(section, name, &RawSetting::Text(&flag.text), place)?;
        }
        Ok(effective)
    }

    /// Whether any source gives the setting `[section] name`, even if it gives the default.
    pub fn is_set(&self, section: &str, name: &str) -> bool {
        self.places.contains_key(&(section, name))
    }

    fn read_file(&mut self, path: &std::path::Path, text: &str) -> Result<(), ConfigError> {
        let at = |offset: usize| {
            let line = text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
            SettingSource::File(path.to_owned(), line)
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
                let given = RawSetting::Toml(value.get_ref());
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
            return Err(ConfigError::Unknown {
                place: SettingSource::Env(name.clone()),
                key: name,
                known,
            });
        };
        self.set(setting.section, setting.name, &RawSetting::Text(text), SettingSource::Env(name))
    }

    fn set(
        &mut self,
        section: &str,
        name: &str,
        given: &RawSetting<'_>,
        place: SettingSource,
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
                value: if setting.secret {
                    "what is given there".to_owned()
                } else {
                    given.to_string()
                },
                allowed: (setting.allowed)(),
            });
        }
        self.places.insert((setting.section, setting.name), place);
        Ok(())
    }

    /// Where a setting's value is from; `None` for a default.
    pub fn source(&self, section: &str, name: &str) -> Option<&SettingSource> {
        let is_meant = |(key, _): &(&(&str, &str), _)| **key == (section, name);
        self.places.iter().find(is_meant).map(|(_, source)| source)
    }

    /// The configuration as a TOML file that explains every key.
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

impl ServerNotices {
    /// The user who sends notices on this server.
    pub fn sender(&self, server_name: &ruma::ServerName) -> Option<ruma::OwnedUserId> {
        let localpart = self.localpart.as_ref()?;
        ruma::UserId::parse_with_server_name(localpart.as_str(), server_name).ok()
    }

    /// Whether this user of the server sends notices.
    pub fn is_sender(&self, user_id: &ruma::UserId) -> bool {
        self.localpart.as_ref().is_some_and(|own| own.as_str() == user_id.localpart())
    }
}

impl Server {
    /// The address at which clients reach the server, without a trailing slash.
    pub fn url(&self) -> String {
        match (&self.public_url, self.bind.first()) {
            (PublicUrl::Url(url), _) => url.to_string(),
            (PublicUrl::Auto, Some(Bind::Tcp(bind))) => format!("http://{}", reachable(*bind)),
            (PublicUrl::Auto, _) => format!("http://{}", self.name),
        }
    }

    /// The address that clients are told; none if the configuration names no address that works on
    /// other machines.
    pub fn announced_url(&self) -> Option<String> {
        let Self { public_url, bind, .. } = self;
        if *public_url == PublicUrl::Auto {
            let first = bind.first()?.address()?.ip();
            let only_local = bind.iter().all(Bind::is_loopback);
            // Behind a proxy, clients know only the proxy's address.
            let is_here = first.is_loopback() && !only_local;
            if self.is_proxied() || first.is_unspecified() || is_here {
                return None;
            }
        }
        Some(self.url())
    }

    /// Whether a proxy tells this server whom it forwards for.
    pub const fn is_proxied(&self) -> bool {
        self.trust_forwarded_for || self.proxy_protocol
    }

    /// How to contact the administrators, as a URI.
    pub fn contact_uri(&self) -> String {
        // The administrators of a domain read the mail of its postmaster (RFC 2142).
        let postmaster = || format!("mailto:postmaster@{}", self.name.host());
        self.admin_contact.uri().unwrap_or_else(postmaster)
    }

    /// The first listening address, as this machine can reach it; if there are only Unix sockets,
    /// that at which clients do.
    pub fn local_url(&self) -> String {
        self.local_address().map_or_else(|| self.url(), |address| format!("http://{address}"))
    }

    /// The first listening address without TLS, as this machine can reach it; none if there are
    /// only Unix sockets.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.bind.iter().find_map(Bind::address).map(reachable)
    }
}

impl Registration {
    /// Whether anyone may register, with "auto" resolved.
    pub fn is_open(&self, server: &Server) -> bool {
        match self.open {
            // A public address or a proxy in front means that others can reach the loopback
            // address.
            OpenRegistration::Auto => {
                server.bind.iter().all(Bind::is_loopback)
                    && server.public_url == PublicUrl::Auto
                    && !server.is_proxied()
            }
            OpenRegistration::Yes => true,
            OpenRegistration::No => false,
        }
    }
}

impl Log {
    /// The name of this node, in a cluster.
    pub fn node_name(&self, server: &Server) -> String {
        match &self.node {
            NodeName::Name(name) => name.clone(),
            NodeName::Auto => {
                let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
                let port = server.bind.iter().find_map(Bind::address).map_or(0, |bind| bind.port());
                format!("{machine}-{port}")
            }
        }
    }
}

impl Passwords {
    /// How many password hashes may be computed at once.
    pub fn concurrent_hashes(&self) -> usize {
        match self.concurrent {
            // One processor stays free.
            0 => std::thread::available_parallelism().map_or(1, |all| all.get().max(2) - 1),
            number => number,
        }
    }
}

/// Settings that contradict each other.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Contradiction(&'static str);

/// The settings that a running server takes over when it reads its configuration again.
const RELOADED: [&str; 11] = [
    "server.log_filter",
    "registration.open",
    "registration.guests",
    "registration.approval",
    "tls.certificate",
    "tls.certificate_key",
    "federation.certificate",
    "federation.certificate_key",
    "federation.allow",
    "federation.deny",
    "rate_limits.*",
];

/// Those of the sections above that are used elsewhere, too, where they stay as they were.
const KEPT: [&str; 6] = [
    "rate_limits.enabled",
    "rate_limits.users",
    "rate_limits.processor_percent",
    "rate_limits.notices",
    "rate_limits.wrong_passwords_of_address",
    "rate_limits.wrong_passwords_for_user",
];

/// A setting with another value than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its name, such as `server.bind`.
    pub name: String,
    /// Whether a running server takes it over.
    pub takes_effect: bool,
}

impl Config {
    /// Whether the server speaks HTTPS to clients itself.
    pub const fn has_tls(&self) -> bool {
        self.acme.enabled || self.tls.certificate.is_some()
    }

    /// The first address with HTTPS for clients, as this machine can reach it; none without HTTPS
    /// of the server's own.
    pub fn https_address(&self) -> Option<SocketAddr> {
        let bind = self.tls.bind.first().filter(|_| self.has_tls())?;
        Some(reachable(*bind))
    }

    /// The names by which clients come to HTTPS of the server's own: that of the public address,
    /// and all for which an authority is asked.
    pub fn https_names(&self) -> Vec<String> {
        let url = self.server.url().parse::<url::Url>().ok();
        let host = url.as_ref().and_then(url::Url::host_str).unwrap_or_default();
        // An IPv6 address stands in brackets.
        let host = host.trim_matches(['[', ']']).to_owned();
        let mut names = vec![host];
        if self.acme.enabled {
            names.extend(self.acme_domains());
        }
        names.dedup();
        names
    }

    /// The names that the certificate of an authority is for.
    pub fn acme_domains(&self) -> Vec<String> {
        if self.acme.domains.is_empty() {
            return vec![self.server.name.host().to_ascii_lowercase()];
        }
        self.acme.domains.iter().map(|name| name.as_str().to_owned()).collect()
    }

    /// The same with the public address that follows from HTTPS of the server's own.
    #[must_use]
    pub fn settled(mut self) -> Self {
        if self.has_tls() && self.server.public_url == PublicUrl::Auto {
            let domains = self.acme_domains();
            let first = domains.first().filter(|_| self.acme.enabled);
            let host = first.map_or_else(|| self.server.name.host(), String::as_str);
            let url = match self.tls.bind.first().map_or(443, SocketAddr::port) {
                443 => format!("https://{host}"),
                port => format!("https://{host}:{port}"),
            };
            let read = <PublicUrl as value::Setting>::read(&RawSetting::Text(&url));
            self.server.public_url = read.unwrap_or(PublicUrl::Auto);
        }
        if self.outbound.rehearsal { self.for_rehearsal() } else { self }
    }

    /// What a rehearsal changes: nobody outside is served, and what is set for the live server's
    /// data is left alone. That nothing is sent is seen to where it would be.
    #[must_use]
    pub fn for_rehearsal(mut self) -> Self {
        self.outbound.rehearsal = true;
        // With it, others could read keys, and would send what the live server is then not sent.
        self.federation.enabled = false;
        // An authority would be asked. A certificate in files serves a rehearsal as well.
        self.acme.enabled = false;
        if !self.has_tls() {
            self.tls.redirect_bind = List::default();
        }
        // It is told to clients when they log in, who would go on at the live server.
        self.server.public_url = PublicUrl::Auto;
        self.metrics.endpoint = None;
        self.traces.endpoint = None;
        // The live server has it.
        self.metrics.bind = None;
        if let ArchiveDir::Path(_) = self.log.archive_dir {
            self.log.archive_dir = ArchiveDir::Auto;
        }
        self.media.dir = MediaDir::Auto;
        // It would have the rehearsal's requests among the live ones.
        self.http.access_log_to = AccessLogTo::Stderr;
        self
    }

    /// # Errors
    /// When settings contradict each other; the text says what to do.
    pub fn check(&self) -> Result<(), Contradiction> {
        let (tls, federation, outbound) = (&self.tls, &self.federation, &self.outbound);
        let is_named = self.server.name.as_str() != "localhost" || !self.acme.domains.is_empty();
        let holds = [
            (
                tls.certificate.is_some() == tls.certificate_key.is_some(),
                "`tls.certificate` needs `tls.certificate_key`, and the other way around",
            ),
            (
                federation.certificate.is_some() == federation.certificate_key.is_some(),
                "`federation.certificate` needs `federation.certificate_key`, and the other way \
                 around",
            ),
            (
                !self.acme.enabled || tls.certificate.is_none(),
                "`acme.enabled` gets a certificate, and `tls.certificate` names one: remove one of \
                 the two",
            ),
            (
                self.acme.eab_key_id.is_some() == self.acme.eab_key_file.is_some(),
                "`acme.eab_key_id` needs `acme.eab_key_file`, and the other way around",
            ),
            (
                !self.acme.enabled || is_named,
                "no authority certifies `localhost`: set `acme.domains`, or `server.name`",
            ),
            (
                !self.acme.enabled
                    || self.acme.challenge != AcmeChallenge::Http01
                    || !tls.redirect_bind.is_empty(),
                "`acme.challenge` \"http-01\" is answered at `tls.redirect_bind`: set it, such as \
                 to [\"0.0.0.0:80\"], or use \"tls-alpn-01\"",
            ),
            (
                tls.redirect_bind.is_empty() || self.has_tls(),
                "`tls.redirect_bind` redirects to HTTPS, and there is none: set `acme.enabled`, or \
                 `tls.certificate` and `tls.certificate_key`",
            ),
            (
                !federation.enabled
                    || !federation.bind.is_empty()
                    || federation.at_client_addresses,
                "other homeservers reach this one nowhere: set `federation.bind`, or \
                 `federation.at_client_addresses`",
            ),
            (
                !self.http.proxy_protocol_from.is_empty() || !self.expects_proxies_at_an_address(),
                "`proxy_protocol` expects a PROXY header, and no proxy is trusted to send one: name \
                 its address in `http.proxy_protocol_from`",
            ),
            (
                outbound.proxy.is_some()
                    || outbound.proxy_user.is_none() && !outbound.proxy_resolves_names,
                "`outbound.proxy_user` and `outbound.proxy_resolves_names` are about a proxy, and \
                 there is none: set `outbound.proxy`",
            ),
            (
                outbound.proxy_user.is_some()
                    || outbound.proxy_password.is_none() && outbound.proxy_password_file.is_none(),
                "the password for the proxy needs a user name: set `outbound.proxy_user`",
            ),
            (
                outbound.proxy_user.as_ref().is_none_or(|user| !user.contains(':')),
                "the user name for the proxy cannot contain a colon (RFC 7617): change \
                 `outbound.proxy_user`",
            ),
            (
                !outbound.rehearsal || self.log.servers.is_empty(),
                "a rehearsal is of one server alone: leave out `log.servers`, and rehearse on a \
                 copy that `logcabin cluster move-out` or a backup made",
            ),
            (
                self.rtc.livekit_url.is_some() == self.rtc.livekit_keys_file.is_some(),
                "`rtc.livekit_url` needs `rtc.livekit_keys_file`, and the other way around",
            ),
            (
                self.rtc.livekit_url.is_none() || self.server.announced_url().is_some(),
                "`rtc.livekit_url` needs `server.public_url`: clients are told where they are let \
                 into calls",
            ),
        ];
        match holds.into_iter().find(|(holds, _)| !holds) {
            Some((_, text)) => Err(Contradiction(text)),
            None => Ok(()),
        }
    }

    /// Whether connections to an address, not to a Unix socket, begin with a PROXY header.
    fn expects_proxies_at_an_address(&self) -> bool {
        let has_address = |binds: &[Bind]| binds.iter().any(|bind| bind.address().is_some());
        let (server, federation) = (&self.server, &self.federation);
        server.proxy_protocol && has_address(&server.bind)
            || self.tls.proxy_protocol && self.has_tls()
            || federation.proxy_protocol && federation.enabled && has_address(&federation.bind)
    }

    /// The settings whose values differ in `new`.
    pub fn changes(&self, new: &Self) -> Vec<Change> {
        let differs = SETTINGS.iter().filter(|setting| !(setting.same)(self, new));
        let change = |setting: &entry::Entry| {
            let name = format!("{}.{}", setting.section, setting.name);
            let every = format!("{}.*", setting.section);
            let is_reloaded = RELOADED.iter().any(|known| *known == name || *known == every);
            let takes_effect = is_reloaded && !KEPT.contains(&name.as_str());
            Change { name, takes_effect }
        };
        differs.map(change).collect()
    }

    /// The largest body of a request that is read as a whole.
    pub fn largest_body(&self) -> usize {
        let of_servers = if self.federation.enabled { limits::TRANSACTION_BYTES } else { 0 };
        self.http.max_body_bytes.max(of_servers)
    }

    /// How the memory for bodies on their way is shared.
    pub fn body_shares(&self) -> Shares {
        Shares::new(self.http.body_memory_bytes, self.largest_body())
    }

    /// The directory of the archive, unless there is none.
    pub fn archive_dir(&self) -> Option<PathBuf> {
        match &self.log.archive_dir {
            ArchiveDir::Auto => Some(self.server.data_dir.join("archive")),
            ArchiveDir::Off => None,
            ArchiveDir::Path(path) => Some(path.clone()),
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

/// An address for connecting: a wildcard address can only be listened on.
fn reachable(bind: SocketAddr) -> SocketAddr {
    match bind.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, bind.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, bind.port()).into(),
        _ => bind,
    }
}

#[cfg(test)]
mod tests;
