//! How a PostgreSQL is reached: the parameters of libpq, which drivers of other makers know, too.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use percent_encoding::percent_decode_str;
use postgres::{Config, config::Host};

use super::tls::{Mode, Pem, TlsSettings};

/// How a database is reached. It holds secrets.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) config: Config,
    pub(crate) tls: TlsSettings,
    /// What a person calls it.
    pub(crate) place: String,
}

/// What is said of a connection, by the names of libpq. What is not said is in the environment.
#[derive(Default)]
pub(crate) struct Parameters(BTreeMap<String, String>);

impl Parameters {
    /// What a connection string says, in either of its forms; `None` if it has neither.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let schemes = ["postgresql://", "postgres://"];
        match schemes.iter().find_map(|scheme| text.strip_prefix(scheme)) {
            Some(rest) => of_uri(rest),
            None => of_words(text),
        }
    }

    /// Takes the place of what was said before.
    pub(crate) fn set(&mut self, name: &str, value: String) {
        self.0.insert(name.to_owned(), value);
    }

    /// Says it unless something was said.
    pub(crate) fn set_missing(&mut self, name: &str, value: Option<String>) {
        if let Some(value) = value {
            self.0.entry(name.to_owned()).or_insert(value);
        }
    }

    /// Takes a value away.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    fn get(&self, name: &str) -> Option<String> {
        let variable = || match name {
            "dbname" => "PGDATABASE".to_owned(),
            name => format!("PG{}", name.to_ascii_uppercase()),
        };
        let said = self.0.get(name).cloned().filter(|value| !value.is_empty());
        said.or_else(|| std::env::var(variable()).ok().filter(|value| !value.is_empty()))
    }

    /// As libpq takes them. `find` tells where a file of this name is. The error is a sentence
    /// without its full stop.
    pub(crate) fn of_libpq(&self, find: impl Fn(&str) -> PathBuf) -> Result<Access, String> {
        let (config, place) = self.config()?;
        let said_root = self.get("sslrootcert");
        let system = said_root.as_deref() == Some("system");
        let mode = match self.mode()? {
            None if system => Mode::VerifyFull,
            Some(mode) if system && mode != Mode::VerifyFull => {
                return Err("`sslrootcert` is `system`: `sslmode` must be `verify-full`".into());
            }
            mode => mode.unwrap_or_default(),
        };
        if self.get("sslcrl").or_else(|| self.get("sslcrldir")).is_some() {
            return Err("lists of revoked certificates are not read: leave out `sslcrl`".into());
        }
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".postgresql"));
        let file = |said: Option<String>, usual: &str| match said {
            Some(said) => Some(find(&said)),
            None => home.as_ref().map(|home| home.join(usual)).filter(|file| file.exists()),
        };
        let root = if system { None } else { file(said_root, "root.crt") };
        // Where nobody insists on them, they may be missing.
        let root = root.filter(|root| mode >= Mode::VerifyCa || root.exists());
        let tls = TlsSettings {
            mode,
            root: root.map(Pem::File),
            system,
            certificate: file(self.get("sslcert"), "postgresql.crt").map(Pem::File),
            key: file(self.get("sslkey"), "postgresql.key").map(Pem::File),
        };
        Ok(Access { config, tls, place })
    }

    /// As sqlx takes them, which has other rules: the authorities of the machine count as well, and
    /// none counts where the mode does not ask for them.
    pub(crate) fn of_sqlx(&self, find: impl Fn(&str) -> PathBuf) -> Result<Access, String> {
        let (config, place) = self.config()?;
        let mode = self.mode()?.unwrap_or_default();
        let verifies = mode >= Mode::VerifyCa;
        let file = |name: &str| self.get(name).map(|said| Pem::File(find(&said)));
        let tls = TlsSettings {
            mode,
            root: file("sslrootcert").filter(|_| verifies),
            system: verifies,
            certificate: file("sslcert"),
            key: file("sslkey"),
        };
        Ok(Access { config, tls, place })
    }

    fn mode(&self) -> Result<Option<Mode>, String> {
        let Some(name) = self.get("sslmode") else { return Ok(None) };
        let mode = Mode::named(&name);
        mode.map(Some).ok_or_else(|| format!("`{}` is no mode of TLS", name.escape_debug()))
    }

    /// Where the database is, and for whom it is opened.
    fn config(&self) -> Result<(Config, String), String> {
        let mut config = Config::new();
        let addresses = self.get("hostaddr");
        let hosts = self.get("host").or_else(|| addresses.clone());
        for host in hosts.as_deref().unwrap_or("/var/run/postgresql").split(',') {
            config.host(host.trim());
        }
        for address in addresses.iter().flat_map(|addresses| addresses.split(',')) {
            let address = address.trim().parse().map_err(|_| "`hostaddr` is no address")?;
            config.hostaddr(address);
        }
        for port in self.get("port").iter().flat_map(|ports| ports.split(',')) {
            let port = if port.trim().is_empty() { "5432" } else { port.trim() };
            config.port(port.parse().map_err(|_| "the port of its database is no port")?);
        }
        if let Some(user) = self.get("user") {
            config.user(&user);
        }
        if let Some(password) = self.get("password") {
            config.password(password);
        }
        let name = self.get("dbname");
        if let Some(name) = &name {
            config.dbname(name);
        }
        if let Some(options) = self.get("options") {
            config.options(&options);
        }
        config.connect_timeout(Duration::from_secs(10));
        config.application_name("logcabin import");
        let shown = |host: &Host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(_) => "its socket".to_owned(),
        };
        let hosts: Vec<String> = config.get_hosts().iter().map(shown).collect();
        let name = name.as_deref().unwrap_or("of the user");
        let place = format!("PostgreSQL, database {name} at {}", hosts.join(", "));
        Ok((config, place))
    }
}

/// `user:password@host:port,…/database?parameters`.
fn of_uri(rest: &str) -> Option<Parameters> {
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = place.split_once('/').unwrap_or((place, ""));
    let (person, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = person.split_once(':').unwrap_or((person, ""));
    let (hosts, ports): (Vec<_>, Vec<_>) = hosts.split(',').map(host_and_port).unzip();
    let hosts = hosts.join(",");
    let ports =
        if ports.iter().all(|port| port.is_empty()) { String::new() } else { ports.join(",") };
    let before = [
        ("user", user),
        ("password", password),
        ("host", &hosts),
        ("port", &ports),
        ("dbname", database),
    ];
    let query = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut found = Parameters::default();
    for (name, value) in before.into_iter().chain(query) {
        let value = percent_decode_str(value).decode_utf8().ok()?;
        match (name, &*value) {
            (_, "") => {}
            // As other drivers say it.
            ("ssl", "true") => found.set("sslmode", "require".to_owned()),
            _ => found.set(name, value.into_owned()),
        }
    }
    Some(found)
}

fn host_and_port(text: &str) -> (&str, &str) {
    match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((address, port)) => (address, port.strip_prefix(':').unwrap_or_default()),
        None => text.rsplit_once(':').unwrap_or((text, "")),
    }
}

/// `name=value name='other value'`, where a backslash makes the next letter one of the value.
fn of_words(text: &str) -> Option<Parameters> {
    let mut found = Parameters::default();
    let mut letters = text.chars().peekable();
    loop {
        while letters.next_if(|letter| letter.is_whitespace()).is_some() {}
        if letters.peek().is_none() {
            return Some(found);
        }
        let mut name = String::new();
        while let Some(letter) = letters.next_if(|of| !of.is_whitespace() && *of != '=') {
            name.push(letter);
        }
        while letters.next_if(|letter| letter.is_whitespace()).is_some() {}
        letters.next_if_eq(&'=')?;
        while letters.next_if(|letter| letter.is_whitespace()).is_some() {}
        let is_quoted = letters.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match letters.next() {
                Some('\'') if is_quoted => break,
                Some(letter) if !is_quoted && letter.is_whitespace() => break,
                Some('\\') => value.push(letters.next()?),
                Some(letter) => value.push(letter),
                None if is_quoted => return None,
                None => break,
            }
        }
        found.set(&name, value);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn here(name: &str) -> PathBuf {
        PathBuf::from(name)
    }

    fn access(text: &str) -> Access {
        let parameters = Parameters::parse(text).expect("parameters");
        parameters.of_libpq(here).unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    fn file(pem: Option<&Pem>) -> Option<&str> {
        match pem? {
            Pem::File(path) => path.to_str(),
            Pem::Text(_) => None,
        }
    }

    #[test]
    fn both_forms_of_a_connection_string_say_the_same() {
        for text in [
            r"host=db,::1 port=5433,  user = me password='a b\'c' dbname=of\ it sslmode=verify-ca
                options='-c a=b' sslrootcert=ca.pem sslcert=c sslkey=k",
            "postgresql://me:a%20b%27c@db:5433,[::1]/of%20it?sslmode=verify-ca&sslrootcert=ca.pem&\
             options=-c%20a%3Db&sslcert=c&sslkey=k",
        ] {
            let Access { config, tls, place } = access(text);
            assert_eq!(place, "PostgreSQL, database of it at db, ::1", "{text}");
            assert_eq!(config.get_ports(), [5433, 5432], "{text}");
            assert_eq!(config.get_user(), Some("me"), "{text}");
            assert_eq!(config.get_password(), Some(&b"a b'c"[..]), "{text}");
            assert_eq!(config.get_options(), Some("-c a=b"), "{text}");
            assert_eq!(tls.mode, Mode::VerifyCa, "{text}");
            assert_eq!(file(tls.root.as_ref()), Some("ca.pem"), "{text}");
            assert_eq!(file(tls.certificate.as_ref()), Some("c"), "{text}");
            assert_eq!(file(tls.key.as_ref()), Some("k"), "{text}");
        }
        for text in ["host", "host='db", "postgresql://%ff@db"] {
            assert!(Parameters::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn what_is_not_said_is_as_libpq_takes_it() {
        let Access { config, tls, .. } = access("");
        assert_eq!(config.get_hosts(), [Host::Unix("/var/run/postgresql".into())]);
        assert_eq!(tls.mode, Mode::Prefer);
        let Access { config, .. } = access("hostaddr=127.0.0.1");
        assert_eq!(config.get_hosts(), [Host::Tcp("127.0.0.1".to_owned())]);
        assert_eq!(config.get_hostaddrs(), [IpAddr::V4(Ipv4Addr::LOCALHOST)]);
        let Access { tls, .. } = access("sslrootcert=system");
        assert!(tls.system && tls.root.is_none() && tls.mode == Mode::VerifyFull);
        assert_eq!(access("postgres://db/?ssl=true").tls.mode, Mode::Require);
    }

    #[test]
    fn what_cannot_be_is_refused_without_secrets() {
        for (text, expected) in [
            ("port=x", "port"),
            ("hostaddr=x", "`hostaddr`"),
            ("sslmode=maybe", "`maybe`"),
            ("sslmode=require sslrootcert=system", "`verify-full`"),
            ("sslcrl=x", "`sslcrl`"),
        ] {
            let parameters = Parameters::parse(&format!("password=hidden {text}"));
            let refused = parameters.expect("parameters").of_libpq(here).err();
            let why = refused.expect("a refusal");
            assert!(why.contains(expected) && !why.contains("hidden"), "{why}");
        }
    }
}
