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
    sync::Arc,
    time::Duration,
};

use thiserror::Error;
use toml::de::{DeTable, DeValue};

pub mod value;

pub use value::{
    AdminContact, ArchiveDir, BaseUrl, DeniedPassword, EraseAfter, FilePath, Hidden,
    IdentityServer, JsonTemplate, Lifetime, List, Localpart, MailSecurity, MxcAddress,
    OpenRegistration, OwnRate, PathPrefix, PublicKey, PublicUrl, RedirectPrefix, Requirement,
    RoomVersion, SecretFile, SecretUrl, SharedSecret, TurnUri, Unauthenticated, UrlPattern,
    UserRate, WebUrl,
};
use value::{Given, Setting};

use crate::{
    base::rate::Rate,
    decide::{create_room::DEFAULT_ROOM_VERSION, quota, retention},
    media::network::Range,
    record::address::Pattern,
    snapshot,
};

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
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{place}: not valid TOML: {reason}")]
    Syntax {
        /// Where it is set.
        place: Place,
        /// What the parser says.
        reason: String,
    },
    /// There is no such key.
    #[error("{place}: there is no setting `{key}`; {known}")]
    Unknown {
        /// Where it is set.
        place: Place,
        /// The key as given.
        key: String,
        /// What there is instead.
        known: String,
    },
    /// The key cannot have this value.
    #[error("{place}: `{key}` cannot be {value}: allowed is {allowed}")]
    Bad {
        /// Where it is set.
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

impl ServerNotices {
    /// The user in whose name notices are sent on this server.
    #[must_use]
    pub fn sender(&self, server_name: &ruma::ServerName) -> Option<ruma::OwnedUserId> {
        let localpart = self.localpart.as_ref()?;
        ruma::UserId::parse_with_server_name(localpart.as_str(), server_name).ok()
    }

    /// Whether notices are sent in the name of this user, who is one of this server.
    #[must_use]
    pub fn is_sender(&self, user_id: &ruma::UserId) -> bool {
        self.localpart.as_ref().is_some_and(|own| own.as_str() == user_id.localpart())
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

    /// The address of the server that clients are told; none if the configuration does not say at
    /// which address a client on another machine reaches it.
    #[must_use]
    pub fn announced_url(&self) -> Option<String> {
        let Server { public_url, bind, trust_forwarded_for, .. } = &self.server;
        if *public_url == PublicUrl::Auto {
            let first = bind.first()?.ip();
            let only_local = bind.iter().all(|bind| bind.ip().is_loopback());
            // Behind a proxy, clients know the proxy's address alone.
            if *trust_forwarded_for || first.is_unspecified() || first.is_loopback() && !only_local
            {
                return None;
            }
        }
        Some(self.public_url())
    }

    /// How to reach whoever runs the server, as a URI.
    #[must_use]
    pub fn admin_contact(&self) -> String {
        // Whoever runs a domain reads the mail of its postmaster (RFC 2142).
        let postmaster = || format!("mailto:postmaster@{}", self.server.name.host());
        self.server.admin_contact.uri().unwrap_or_else(postmaster)
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
    pub fn sweep_policy(&self) -> retention::SweepPolicy {
        let redacted_after = match self.erasure.redacted_after_seconds {
            EraseAfter::Off => None,
            EraseAfter::Seconds(seconds) => Some(Duration::from_secs(seconds.into())),
        };
        let retention = &self.retention;
        let ms = |seconds: u64| seconds.saturating_mul(1000);
        let seconds = |after: &EraseAfter| match after {
            EraseAfter::Off => None,
            EraseAfter::Seconds(seconds) => Some(u64::from(*seconds)),
        };
        let retention = retention::Retention {
            default_ms: seconds(&retention.default_seconds).map(ms),
            rooms_say: retention.rooms_say,
            lowest_ms: ms(retention.lowest_seconds),
            highest_ms: seconds(&retention.highest_seconds).map(ms),
            rules: retention.rules.iter().cloned().collect(),
        };
        retention::SweepPolicy {
            redacted_after,
            retention: Arc::new(retention),
            media_after: seconds(&self.media.lifetime_seconds).map(Duration::from_secs),
            every: Duration::from_secs(self.erasure.sweep_seconds),
        }
    }

    /// The quotas, without exemptions.
    #[must_use]
    pub fn quotas(&self) -> quota::Quotas {
        let Quotas {
            account_data_types,
            account_data_bytes,
            filters,
            filter_bytes,
            devices,
            aliases,
            rooms,
            invites,
            invites_by_one,
            to_device,
            to_device_by_one,
            key_backups,
            room_keys,
            room_key_bytes,
            reports,
        } = self.quotas;
        quota::Quotas {
            account_data_types,
            account_data_bytes,
            filters,
            filter_bytes,
            devices,
            aliases,
            rooms,
            invites,
            invites_by_one,
            to_device,
            to_device_by_one,
            key_backups,
            room_keys,
            room_key_bytes,
            reports,
            exempt: quota::Exempt::default(),
        }
    }

    /// When snapshots are written and compared, and how many are kept.
    #[must_use]
    pub fn snapshot_policy(&self) -> snapshot::Policy {
        let Snapshots { every_records, keep, scrub_hours } = self.snapshots;
        let scrub_every = (scrub_hours > 0).then(|| Duration::from_secs(scrub_hours * 3600));
        snapshot::Policy { every: every_records, keep, scrub_every }
    }

    /// How many password hashes may be computed at once.
    #[must_use]
    pub fn concurrent_hashes(&self) -> usize {
        match self.passwords.concurrent {
            // One processor is left to everything else.
            0 => std::thread::available_parallelism().map_or(1, |all| all.get().max(2) - 1),
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
    /// Whether a value may be a secret, or hold one.
    secret: bool,
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
                secret: <$type as Setting>::SECRET,
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

/// An address to speak to: one that means "all of this machine's" can be listened on, not spoken
/// to.
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
        /// The addresses to listen on. Put a reverse proxy with TLS before any that others can
        /// reach.
        bind: Vec<SocketAddr> = vec![SocketAddr::from(([127, 0, 0, 1], 8008))];
        /// The name in every user id (@ann:NAME) and room id. It is written into the log at the
        /// first start and cannot be changed afterwards.
        name: ruma::OwnedServerName = ruma::owned_server_name!("localhost");
        /// The directory of the log and of all else that is kept.
        data_dir: PathBuf = PathBuf::from("./data");
        /// What the paths of the API begin with.
        prefixes: Vec<PathPrefix> = vec![PathPrefix::new("/_svc"), PathPrefix::new("/_matrix")];
        /// The address at which clients reach this server, told to them at
        /// /.well-known/matrix/client; "auto" is the first address of `bind`, by http. Where that
        /// is no address for clients on other machines (0.0.0.0, or a loopback address behind a
        /// proxy), clients are told nothing.
        public_url: PublicUrl = PublicUrl::Auto;
        /// Whether clients are told at /.well-known/matrix/client, and when they log in, how to
        /// reach this server. Without it the one is 404, and the other says nothing of it.
        discovery: bool = true;
        /// The identity server that is told to clients together with this server's address; "off"
        /// for none.
        identity_server: Option<BaseUrl> = None;
        /// How to reach whoever runs the server. It is told at /.well-known/matrix/support, and to
        /// those who meet a limit of the server; they are told of the domain's postmaster when it
        /// is "none".
        admin_contact: AdminContact = AdminContact::None;
        /// If this server's name is that of a policy server: its public ed25519 key, in unpadded
        /// base64. It is told at /.well-known/matrix/policy_server.
        policy_server_key: PublicKey = PublicKey::None;
        /// Believe the last address in the header X-Forwarded-For. Only behind a proxy that sets
        /// it: anyone else could then write any address there.
        trust_forwarded_for: bool = false;
    }

    /// Who may create an account.
    registration: Registration {
        /// Whether anyone may register; "auto" means only while every address of `server.bind` is a
        /// loopback address and neither `server.public_url` nor `server.trust_forwarded_for` says
        /// that there is a proxy in front, so that nobody opens a server to the world unawares.
        open: OpenRegistration = OpenRegistration::Auto;
        /// How many accounts there may be, those of guests and those that were deactivated with
        /// them; 0 means any number. Those who register at the very same moment may get past it
        /// together.
        max_accounts: usize = 0, in 0..=1_000_000_000;
        /// A secret by which tools make accounts, administrators' too, also while registration is
        /// closed (`register_new_matrix_user`, at /_synapse/admin/v1/register). Best given in the
        /// environment, and 16 characters long or longer: the server warns of a shorter one.
        shared_secret: Option<SharedSecret> = None;
        /// What a newcomer must do, one after the other: "dummy" (nothing), "token" (show a
        /// registration token), "captcha", "terms" (agree to the documents of `terms`), "email" and
        /// "msisdn" (show that a mail address or a phone number is theirs). "email|msisdn" leaves
        /// the choice, "email|dummy" does not insist.
        require: Vec<Requirement> = vec![Requirement::default()];
        /// Whether anyone may have a guest's account, which needs none of that.
        guests: bool = false;
        /// A TOML file with the documents to agree to, "off" for none: a table for each, named as
        /// you like, with its `version` and, for each language, `{ name = "…", url = "https://…"
        /// }`, as in `[privacy_policy]`, `version = "1.0"`, `en = { name = "Privacy", url =
        /// "https://…" }`.
        terms: Option<FilePath> = None;
    }

    /// The captcha of registration: reCAPTCHA (version 2, the box to tick), or a service that works
    /// alike.
    captcha: Captcha {
        /// The key that clients and the page of the captcha get; "off" for no captcha.
        public_key: Option<String> = None;
        /// A file that holds the secret key and nothing else; "off" for none.
        secret_key_file: Option<SecretFile> = None;
        /// Where answers are checked.
        verify_url: WebUrl = WebUrl::new("https://www.google.com/recaptcha/api/siteverify");
        /// The script of the captcha. It may fetch more from the same origin (and Google's from
        /// Google's others).
        script_url: WebUrl = WebUrl::new("https://www.google.com/recaptcha/api.js");
    }

    /// Logging in.
    login: Login {
        /// Whether users can log in with a password.
        password: bool = true;
        /// Whether a device that is logged in can get a token with which another one logs in.
        get_token: bool = true;
        /// Seconds for which such a token is good.
        get_token_seconds: u64 = 300, in 1..=3600;
    }

    /// Single sign-on: logging in by way of another service.
    sso: Sso {
        /// The providers, each described in a TOML file of its own (see docs/sso.md).
        providers: List<FilePath> = List::default();
        /// Where browsers are sent with a login without being asked. Of anything else a page names
        /// the host first, so that nobody gives their account away by following a link.
        redirects: List<RedirectPrefix> = List::default();
        /// Whether they can be sent anywhere else at all.
        other_redirects: bool = true;
        /// Seconds for which the token is good that a browser brings back.
        token_seconds: u64 = 120, in 1..=3600;
    }

    /// How often callers may use endpoints that write or are expensive to answer. Endpoints that
    /// the specification lists as not rate-limited are not.
    rate_limits: RateLimits {
        /// Whether there are limits at all.
        enabled: bool = true;
        /// Of everyone at one address who has no login, all their limited requests together. (Of
        /// IPv6, one address here is a /64.)
        address: Rate = Rate::per_second(5, 50);
        /// Of one user on all their devices, all limited requests together.
        user: Rate = Rate::per_second(50, 500);
        /// Of one device, all limited requests together.
        device: Rate = Rate::per_second(30, 300);
        /// Kilobytes of request bodies that one user, or one address without a login, may write.
        /// This bounds how fast one user can make the log grow. Uploaded files do not count (see
        /// `media.user_quota_bytes`).
        written_kilobytes: Rate = Rate::per_minute(15_360, 65_536);
        /// Users with a limit of their own, instead of all that are here, or "off" for none: bots,
        /// bridges.
        users: List<UserRate> = List::default();
        /// Logging in; like all that follow: of one user, or of one address without a login.
        login: Rate = Rate::per_second(1, 20);
        /// Exchanging refresh tokens.
        refresh: Rate = Rate::per_second(5, 100);
        /// Registering: an account takes two requests or more.
        registration: Rate = Rate::per_second(1, 30);
        /// Changing the password, adding addresses, deactivating the account, renaming and removing
        /// devices.
        account: Rate = Rate::per_second(1, 20);
        /// Making and upgrading rooms.
        rooms: Rate = Rate::per_second(1, 30);
        /// Joining rooms and knocking on them.
        joins: Rate = Rate::per_second(2, 50);
        /// Inviting.
        invites: Rate = Rate::per_second(2, 50);
        /// Sending messages and other events, which includes kicks, bans and leaves.
        messages: Rate = Rate::per_second(10, 100);
        /// Receipts, typing notices, presence, messages to devices.
        ephemeral: Rate = Rate::per_second(20, 300);
        /// Uploading, asking for and claiming keys of end-to-end encryption.
        keys: Rate = Rate::per_second(20, 200);
        /// Writing to room key backups. A client that starts a backup sends hundreds of requests.
        key_backups: Rate = Rate::per_second(20, 400);
        /// Changing a profile. Each change is sent to every room that the user is in.
        profile: Rate = Rate::per_minute(10, 30);
        /// Setting account data, tags, push rules and pushers. A login sets about twenty.
        settings: Rate = Rate::per_second(10, 300);
        /// Creating and removing aliases, and publishing rooms in the directory.
        directory: Rate = Rate::per_second(1, 50);
        /// Searching: messages, users, rooms, spaces.
        search: Rate = Rate::per_second(5, 50);
        /// Reading history, members and state of rooms.
        reads: Rate = Rate::per_second(20, 200);
        /// Uploading and downloading files.
        media: Rate = Rate::per_second(20, 200);
        /// How much of one processor one user's long reads may take in the long run, in percent:
        /// initial syncs, searches, long pages. After a pause they may take ten seconds at once.
        processor_percent: u32 = 25, in 1..=10_000;
        /// Reporting events, rooms and users.
        reports: Rate = Rate::per_minute(6, 20);
        /// Administration over HTTP.
        admin: Rate = Rate::per_second(10, 100);
        /// Mails and text messages that are sent at the request of one address. (How many are sent
        /// to one recipient is `threepids.messages_per_address`.)
        notices: Rate = Rate::per_minute(1, 5);
        /// Wrong passwords from one address, whomever they are tried for.
        wrong_passwords_of_address: Rate = Rate::per_minute(6, 20);
        /// Wrong passwords for one user, from addresses at which they have not been seen lately:
        /// guesses from elsewhere do not keep them from logging in where they are at home.
        wrong_passwords_for_user: Rate = Rate::per_minute(1, 30);
    }

    /// How much one user may store. Existing data above a quota stays readable; it can be deleted,
    /// or replaced with something smaller. Users of application services are exempt unless their
    /// registration sets `rate_limited`, and so are users whose rate is "off" in
    /// `rate_limits.users`. See also `media.user_quota_bytes` and `delayed_events.max_per_user`.
    quotas: Quotas {
        /// Account data entries, counting global ones and those of all rooms.
        account_data_types: usize = 10_000, in 1..=10_000_000;
        /// Bytes of account data, including type names and a small overhead for each entry.
        account_data_bytes: u64 = 16 * 1024 * 1024, in 131_072..=1_099_511_627_776;
        /// Filters. The API cannot delete filters; at the quota, clients can still send filters
        /// inline.
        filters: usize = 1000, in 1..=10_000_000;
        /// Bytes of filters.
        filter_bytes: u64 = 4 * 1024 * 1024, in 131_072..=1_099_511_627_776;
        /// Devices. At the quota, a login as a new device is refused until another one is logged
        /// out.
        devices: usize = 1000, in 1..=1_000_000;
        /// Room aliases that the user created.
        aliases: usize = 500, in 0..=10_000_000;
        /// Rooms that the user has joined or knocked on.
        rooms: usize = 20_000, in 1..=10_000_000;
        /// Pending invites to the user. Every initial sync contains all of them.
        invites: usize = 5000, in 1..=10_000_000;
        /// Pending invites to the user from the same sender.
        invites_by_one: usize = 500, in 1..=10_000_000;
        /// To-device messages waiting for one device. While a device has this many, new messages to
        /// it are dropped; the ones already waiting are kept.
        to_device: usize = 100_000, in 1..=10_000_000;
        /// To-device messages waiting for one device from the same sender.
        to_device_by_one: usize = 10_000, in 1..=10_000_000;
        /// Room key backups. Clients delete the old backup when they create a new one.
        key_backups: usize = 50, in 1..=10_000;
        /// Keys in all of the user's backups.
        room_keys: usize = 1_000_000, in 1..=100_000_000;
        /// Bytes of these keys.
        room_key_bytes: u64 = 2 * 1024 * 1024 * 1024, in 131_072..=1_099_511_627_776;
        /// Open reports made by the user.
        reports: usize = 1000, in 1..=10_000_000;
    }

    /// Bounds on connections and requests.
    http: Http {
        /// The largest JSON body, in bytes. An event may have 65,536; uploads of keys are the
        /// largest.
        max_body_bytes: usize = 2 * 1024 * 1024, in 65_536..=268_435_456;
        /// Seconds that a client may take to send the head of a request, and that an idle
        /// connection is kept.
        header_timeout_seconds: u64 = 60, in 1..=3600;
        /// Seconds that a client may take to send the body of a request, and one second more for
        /// each `min_body_bytes_per_second` bytes that have arrived.
        body_timeout_seconds: u64 = 20, in 1..=3600;
        /// The lowest rate at which the body of a request may arrive, in bytes per second, after
        /// the first `body_timeout_seconds`.
        min_body_bytes_per_second: u64 = 1024, in 1..=1_000_000_000;
        /// Seconds after which a response that the client does not read ends its connection. They
        /// count from the last bytes that the client took.
        response_timeout_seconds: u64 = 30, in 1..=3600;
        /// Connections open at once; more wait to be accepted. Every waiting sync over HTTP/1.1 is
        /// one.
        max_connections: usize = 20_000, in 1..=1_000_000;
        /// Connections open at once from one address (of IPv6: from one /64); further ones are
        /// closed. At most half of `max_connections` in any case. With
        /// `server.trust_forwarded_for`, connections are the proxy's, and this bounds the requests
        /// in progress for one client. Not applied without rate limits.
        max_connections_per_address: usize = 2_000, in 1..=1_000_000;
        /// How many bytes of responses that are not written yet one user may have in memory.
        /// Further requests are refused with 429 until the client has read.
        response_bytes_per_user: u64 = 32 * 1024 * 1024, in 1_048_576..=1_099_511_627_776;
        /// The same for everyone at one address (of IPv6: at one /64).
        response_bytes_per_address: u64 = 256 * 1024 * 1024, in 1_048_576..=1_099_511_627_776;
        /// Whether long responses are compressed (zstd, gzip) for clients that ask for it.
        compression: bool = true;
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
        /// Uploads and thumbnails end at twice as much.
        min_free_bytes: u64 = 256 * 1024 * 1024, in 0..=1_099_511_627_776;
    }

    /// Snapshots of what the log adds up to, from which a start goes on.
    snapshots: Snapshots {
        /// After how many records the next snapshot is written beside the running server. Another
        /// is written when it stops.
        every_records: u64 = 100_000, in 100..=1_000_000_000;
        /// How many are kept.
        keep: usize = 2, in 1..=100;
        /// Hours between two comparisons of the projections with a replay of the whole log, which
        /// takes half of a processor and as much memory again for a while; 0 compares never.
        scrub_hours: u64 = 168, in 0..=87_600;
    }

    /// Signed checkpoints of the log, on which proofs rest.
    proofs: Proofs {
        /// After how many records the next is made; 0: not for their number.
        every_records: u64 = 10_000, in 0..=1_000_000_000;
        /// Minutes after which the next is made, if anything was written meanwhile; 0: not for the
        /// time. Another is made when the server stops, unless both are 0.
        every_minutes: u64 = 60, in 0..=525_600;
    }

    /// What leaves the log.
    erasure: Erasure {
        /// Seconds after which the content of a redacted event is erased from the log and the
        /// archive; "off" keeps it. Nobody is shown it from the redaction on, whatever this says.
        redacted_after_seconds: EraseAfter = EraseAfter::Seconds(7 * 24 * 3600);
        /// Seconds between two sweeps. A sweep erases what is due, and receipts and typing notices
        /// that later ones have superseded; then the files that held it are written anew, which
        /// takes as much again of the disk for a while.
        sweep_seconds: u64 = 24 * 3600, in 1..=31_536_000;
        /// The files of the log are written anew for records alone that have done their work once
        /// these are this share of all records, in percent; a segment of the archive once they are
        /// of its records, or after a week. For texts that were erased they are after every sweep.
        compact_percent: u64 = 25, in 1..=100;
    }

    /// How long events live (MSC1763). State stays.
    retention: Retention {
        /// Seconds after which events of rooms that say nothing of it are erased, with the next
        /// sweep; "off" keeps them.
        default_seconds: EraseAfter = EraseAfter::Off;
        /// Whether rooms may ask for another time, by the state event `m.room.retention`.
        rooms_say: bool = true;
        /// The shortest time in seconds that a room can ask for; a shorter one is taken for this
        /// one.
        lowest_seconds: u64 = 24 * 3600, in 0..=4_000_000_000;
        /// The longest time in seconds that a room can ask for; "off" sets no bound.
        highest_seconds: EraseAfter = EraseAfter::Off;
        /// What goes before all that: the first of these that fits an event says how many seconds
        /// it lives, or "off". The words are a room's id, a type of event and the seconds; `*`
        /// stands for every room or type.
        rules: List<retention::Rule> = List::default();
    }

    /// Receipts and typing notices.
    receipts: Receipts {
        /// Milliseconds for which those of a large room are gathered, to be one record and to wake
        /// those who wait once; 0 gathers none.
        gather_ms: u64 = 100, in 0..=10_000;
        /// How many must have joined a room for it to be a large one.
        gather_members: u64 = 100, in 1..=1_000_000;
    }

    /// What passwords have to be like, and how they are kept.
    passwords: Passwords {
        /// Characters that a new password has at least.
        min_length: usize = 8, in 1..=128;
        /// Whether a new password has to have a letter, capital or small.
        require_letter: bool = false;
        /// Whether it has to have a small letter.
        require_lowercase: bool = false;
        /// Whether it has to have a capital letter.
        require_uppercase: bool = false;
        /// Whether it has to have a digit.
        require_digit: bool = false;
        /// Whether it has to have something that is neither letter nor digit.
        require_symbol: bool = false;
        /// Whether to refuse very common passwords, such as "password1".
        deny_common: bool = true;
        /// Further passwords to refuse, ignoring case. A user's own name is always refused.
        denied: List<DeniedPassword> = List::default();
        /// Rounds of PBKDF2-HMAC-SHA-512 for a new hash (OWASP advises 210,000). An old hash of
        /// fewer is made anew when its user next logs in.
        iterations: u32 = 210_000, in 1_000..=10_000_000;
        /// Hashes computed at once, at a low priority; 0 means one for each processor but one.
        concurrent: usize = 0, in 0..=1024;
    }

    /// E-mail that the server sends. Without a host it sends none, and offers nothing that needs
    /// it.
    email: Email {
        /// The mail server that takes it: a host name or an address; "off" for none.
        host: Option<String> = None;
        /// Its port; 0 means the usual one: 587 with STARTTLS, 465 with TLS, 25 without either.
        port: u32 = 0, in 0..=65_535;
        /// How the connection is secured. "none" is only allowed for a mail server on this machine,
        /// that is, when `host` is "localhost" or a loopback address: mails contain links that
        /// reset passwords.
        security: MailSecurity = MailSecurity::Starttls;
        /// A file with certificates (PEM) of authorities to be trusted besides the system's; "off"
        /// for none.
        certificates: Option<FilePath> = None;
        /// The name to log in with; "off" to send without a login.
        user: Option<String> = None;
        /// The password to log in with.
        password: Option<Hidden> = None;
        /// A file that holds the password instead, for example one that only the server may read.
        password_file: Option<SecretFile> = None;
        /// The sender, such as "Example <noreply@example.org>"; "off" means noreply at
        /// `server.name`.
        from: Option<String> = None;
        /// Seconds that handing over one mail may take, waiting for others before it included.
        timeout_seconds: u64 = 20, in 1..=300;
        /// Mails handed over at once.
        concurrent: usize = 8, in 1..=1000;
    }

    /// Text messages, by way of a gateway that takes them over HTTP. Without its address there are
    /// none, and nothing is offered that needs them.
    sms: Sms {
        /// The address to which each message is posted; "off" for none.
        url: Option<SecretUrl> = None;
        /// Headers of the request, such as "Authorization: Bearer ...".
        headers: List<Hidden> = List::default();
        /// The body, a JSON object. In its texts {number} is the phone number in digits, that of
        /// the country first and without a plus, {text} the message, and {server} `server.name`.
        template: JsonTemplate = JsonTemplate::usual();
        /// Seconds that handing over one message may take, waiting for others before it included.
        timeout_seconds: u64 = 20, in 1..=300;
        /// Messages handed over at once.
        concurrent: usize = 8, in 1..=1000;
    }

    /// E-mail addresses and phone numbers of accounts.
    threepids: Threepids {
        /// Which may be used. Of a medium without any pattern all may.
        allow: List<Pattern> = List::default();
        /// Which may not, even if `allow` has them.
        deny: List<Pattern> = List::default();
        /// Seconds within which a message must be answered, and what was confirmed by it be made
        /// use of.
        validation_seconds: u64 = 3600, in 60..=604_800;
        /// Messages that one address is sent within that time, whoever asks for them.
        messages_per_address: u64 = 10, in 1..=1_000_000;
        /// Whether someone without an account who asks to register with an address, or for a new
        /// password, is told if there is an account with that address. Otherwise the answer is
        /// always the same, and only the owner of the address learns more, by a message. (Who asks
        /// to add an address to an account is always told that it is in use, as the specification
        /// has it.)
        reveal: bool = false;
        /// The hosts to which a browser may be sent after a confirmation, with * for any part, such
        /// as "app.example.org" or "*.example.org"; those of `server.public_url` and this are all.
        next_link_hosts: List<String> = List::default();
        /// The identity servers on which users may publish their addresses.
        identity_servers: List<IdentityServer> = List::default();
    }

    /// Requests that the server makes to other services: identity servers, providers of single
    /// sign-on, application services, gateways.
    outbound: Outbound {
        /// Files with certificates in PEM of authorities that are trusted for them, besides those
        /// that the operating system trusts. The mail server has a setting of its own,
        /// `email.certificates`.
        certificates: List<FilePath> = List::default();
    }

    /// How long logins are good for.
    tokens: Tokens {
        /// Seconds for which the access token is good of a client that can refresh it.
        access_lifetime_seconds: u64 = 3600, in 1..=31_536_000;
        /// Seconds for which the access token is good of a client that cannot; it has to log in
        /// again.
        unrefreshable_lifetime_seconds: Lifetime = Lifetime::Never;
        /// Seconds for which a client that can refresh may stay away before it has to log in again.
        refresh_lifetime_seconds: Lifetime = Lifetime::Never;
        /// Seconds after which anyone has to log in again, however often they refreshed.
        session_lifetime_seconds: Lifetime = Lifetime::Never;
    }

    /// What users may do with their accounts. Clients are told, and it is held to.
    accounts: Accounts {
        /// Change their password.
        change_password: bool = true;
        /// Change their display name.
        set_displayname: bool = true;
        /// Change their avatar.
        set_avatar_url: bool = true;
        /// Change other fields of their profile.
        profile_fields: bool = true;
        /// Add and remove mail addresses and phone numbers.
        third_party_ids: bool = true;
        /// Whether a room that a user leaves is forgotten with that.
        forget_on_leave: bool = false;
    }

    /// Rooms.
    rooms: Rooms {
        /// The version of rooms that are created without naming one. Server notices and shut-down
        /// rooms keep "10".
        default_version: RoomVersion = RoomVersion(DEFAULT_ROOM_VERSION);
    }

    /// Application services: bridges and bots that are part of the server.
    appservices: Appservices {
        /// Their registration files, in YAML, as the bridges write them. They are read at start.
        files: List<FilePath> = List::default();
        /// Whether the server's token is also sent in the query of each request to them, as the
        /// specification had it before v1.4. It may end up in logs there.
        token_in_query: bool = false;
        /// Seconds that one of them may take to answer when it is handed events.
        delivery_timeout_seconds: u64 = 60, in 1..=3600;
    }

    /// The user directory.
    user_directory: UserDirectory {
        /// Whether it finds every user of this server. Otherwise users find those with whom they
        /// share a room and those who are in public rooms.
        all_users: bool = false;
    }

    /// Pushers: notifications for devices that sleep, by way of the gateways that their apps name,
    /// and mail about what was missed, for those who want it (and only with `email.host`).
    push: Push {
        /// Addresses of your own networks at which a gateway may be. All others that are not of the
        /// public internet are refused, by whatever name they go: users choose the gateway.
        allowed_networks: List<Range> = List::default();
        /// Whether a gateway may be reached by http, too. Anyone between it and this server can
        /// then read what is notified of.
        allow_http: bool = false;
        /// Seconds for which a notification is tried again while its gateway does not take it.
        give_up_seconds: u64 = 3600, in 1..=604_800;
        /// Seconds that a message is unread before there is a mail about it, which then tells of
        /// all that is unread.
        email_delay_seconds: u64 = 600, in 0..=604_800;
        /// Seconds at least between two mails to one user. Each mail after which they read nothing
        /// doubles this, until they do.
        email_interval_seconds: u64 = 600, in 1..=604_800;
        /// The most that it becomes, in seconds.
        email_max_interval_seconds: u64 = 86_400, in 1..=2_592_000;
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
        /// Whether there is any. Without it everyone counts as offline, and nobody is told
        /// otherwise.
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
        /// What is served by the old paths (/_matrix/media), to anyone who knows the address,
        /// without an access token: "none", "all", or what was uploaded before a moment. Clients
        /// that know Matrix 1.11 do not need them.
        unauthenticated: Unauthenticated = Unauthenticated::None;
        /// Seconds after which an uploaded file is removed that is not the picture of a user or a
        /// room by then; "off" keeps files.
        lifetime_seconds: EraseAfter = EraseAfter::Off;
        /// How many bytes of thumbnails are kept. The oldest are deleted, and made again when they
        /// are asked for.
        thumbnail_bytes: u64 = 1024 * 1024 * 1024, in 0..=1_125_899_906_842_624;
        /// Seconds after which a file is deleted that nothing names: one that was being uploaded
        /// when the server was killed, or of which the log lost the record in a restore.
        orphan_seconds: u64 = 24 * 3600, in 0..=31_536_000;
        /// Whether the server fetches pages of which clients want a preview. The users of a room
        /// then see what a link leads to, and the site sees this server's address, not theirs.
        url_previews: bool = true;
        /// Addresses of your own networks from which previews may be fetched. All others that are
        /// not of the public internet are refused, by whatever name they go.
        preview_allowed_ranges: List<Range> = List::default();
        /// Pages of which there are no previews.
        preview_denied_urls: List<UrlPattern> = List::default();
        /// The largest picture of a page that is fetched, in bytes; 0 fetches none.
        preview_image_bytes: u64 = 5 * 1024 * 1024, in 0..=268_435_456;
        /// How many bytes the pictures of all pages may have together. After that, previews have
        /// none.
        preview_store_bytes: u64 = 1024 * 1024 * 1024, in 0..=1_125_899_906_842_624;
        /// Seconds for which a preview is remembered.
        preview_cache_seconds: u64 = 3600, in 1..=31_536_000;
    }

    /// What those who run the server have to say to users, each in a room of their own (`logcabin
    /// notice`).
    server_notices: ServerNotices {
        /// The user who says it: what is before the colon of its id. Nobody else can have the name;
        /// if somebody has it already, notices are refused until another is configured. "off" for
        /// no notices.
        localpart: Option<Localpart> = Some(Localpart::new("notices"));
        /// What that user is called.
        display_name: String = "Server Notices".to_owned();
        /// That user's picture: the address of an uploaded file, or "off" for none.
        avatar_url: Option<MxcAddress> = None;
        /// The name of the rooms.
        room_name: String = "Server Notices".to_owned();
    }

    /// What is known of people's devices.
    devices: Devices {
        /// How often it is recorded at most, in seconds, when and from where a device was last in
        /// use: that much is still known after a restart. With 0 it never is, and known while the
        /// server runs.
        note_last_seen_seconds: u64 = 3600, in 0..=31_536_000;
    }

    /// The TURN server by which calls find their way through firewalls, if there is one.
    turn: Turn {
        /// Its addresses, such as "turn:turn.example.org:3478?transport=udp".
        uris: List<TurnUri> = List::default();
        /// The secret that it shares with this server (`static-auth-secret` of coturn). Best given
        /// in the environment.
        shared_secret: Option<SharedSecret> = None;
        /// For how many seconds a user may use it before they ask again.
        ttl_seconds: u64 = 86_400, in 60..=31_536_000;
    }

    /// Calls of many (MatrixRTC).
    rtc: Rtc {
        /// The addresses of LiveKit services by which calls are held.
        livekit_urls: List<WebUrl> = List::default();
    }

    /// Where two devices meet, one of which signs the other in by a QR code.
    rendezvous: Rendezvous {
        /// Whether there is such a place.
        enabled: bool = true;
        /// Whether those may begin a meeting, too, who are not logged in: a new device that shows
        /// the code. Others could leave short texts for each other that way. Without it, the
        /// endpoints of an earlier form (MSC4108), where nobody says who they are, are closed.
        for_anyone: bool = false;
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
