//! The configuration file that `logcabin setup` writes.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

/// Who can create an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Newcomers {
    Closed,
    Token,
    Captcha,
}

/// Where the certificate for HTTPS is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Tls {
    Acme,
    Files,
    Proxy,
}

/// What a new server is asked for, all of it valid.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    pub(super) name: String,
    pub(super) url: String,
    /// A mail address, or "none".
    pub(super) contact: String,
    pub(super) newcomers: Newcomers,
    /// The site key, and the file with the secret key.
    pub(super) captcha: Option<(String, PathBuf)>,
    pub(super) tls: Tls,
    /// The certificate and its key.
    pub(super) files: Option<(PathBuf, PathBuf)>,
    pub(super) federation: bool,
    pub(super) data_dir: PathBuf,
}

/// What the proxy has to do.
pub(super) const PROXY_NOTE: &str = "The proxy must pass requests on to 127.0.0.1:8008 and, with \
     federation, those to port 8448 on to 127.0.0.1:8449; and it must set X-Forwarded-For.";

impl Answers {
    /// The file, with a comment for each setting.
    pub(super) fn to_toml(&self) -> String {
        let mut toml = Toml(
            "# Made by `logcabin setup`. `logcabin config` prints all other settings, explained.\n"
                .to_owned(),
        );
        toml.section("server");
        toml.set("It can never be changed after the first start.", "name", &self.name);
        toml.set("The address that clients are told.", "public_url", &self.url);
        let contact = match self.contact.as_str() {
            "none" => "none".to_owned(),
            mail => format!("mailto:{mail}"),
        };
        toml.set("Shown to users and to other administrators.", "admin_contact", &contact);
        toml.path("The log, uploaded files, and all else.", "data_dir", &self.data_dir);
        self.listen(&mut toml);
        self.registration(&mut toml);
        self.tls(&mut toml);
        self.federate(&mut toml);
        toml.section("console");
        toml.raw("Pages for administrators, at /_logcabin/console.", "enabled", "true");
        toml.0
    }

    fn listen(&self, toml: &mut Toml) {
        match self.tls {
            Tls::Proxy => {
                let of_proxy = "Only the proxy on this machine reaches it.";
                toml.raw(of_proxy, "bind", "[\"127.0.0.1:8008\"]");
                let why = "The proxy says where a request comes from.";
                toml.raw(why, "trust_forwarded_for", "true");
            }
            Tls::Acme | Tls::Files => {
                toml.raw("For this machine alone.", "bind", "[\"127.0.0.1:8008\"]");
            }
        }
    }

    fn registration(&self, toml: &mut Toml) {
        toml.section("registration");
        match self.newcomers {
            Newcomers::Closed => {
                let why = "Only administrators create accounts (`logcabin user create`).";
                toml.raw(why, "open", "false");
            }
            Newcomers::Token => {
                toml.raw("Whether anyone may try.", "open", "true");
                let why = "It takes a token (`logcabin registration-token create`).";
                toml.raw(why, "require", "[\"token\"]");
            }
            Newcomers::Captcha => {
                toml.raw("Whether anyone may try.", "open", "true");
                toml.raw("It takes a solved captcha.", "require", "[\"captcha\"]");
            }
        }
        if let Some((key, secret)) = &self.captcha {
            toml.section("captcha");
            toml.set("The site key, which browsers get.", "public_key", key);
            toml.path("A file with the secret key.", "secret_key_file", secret);
        }
    }

    /// All that is said of HTTPS.
    fn tls(&self, toml: &mut Toml) {
        match (self.tls, &self.files) {
            (Tls::Files, Some((certificate, key))) => {
                toml.section("tls");
                toml.path("Read again when it changes.", "certificate", certificate);
                toml.path("Its private key.", "certificate_key", key);
                self.https(toml);
            }
            (Tls::Acme, _) => {
                toml.section("tls");
                self.https(toml);
                toml.section("acme");
                toml.raw("Certificates are fetched and renewed.", "enabled", "true");
                let name = format!("[{}]", quoted(self.url_host()));
                toml.raw("The name in the certificate.", "domains", &name);
                let contact = format!("[{}]", quoted(&self.contact));
                toml.raw("Where the authority writes to.", "contact", &contact);
            }
            (Tls::Files | Tls::Proxy, _) => {}
        }
    }

    fn https(&self, toml: &mut Toml) {
        let port = self.host().rsplit_once(':').map_or("443", |(_, port)| port);
        let bind = format!("[\"0.0.0.0:{port}\"]");
        toml.raw("Where clients connect.", "bind", &bind);
        let why = "Leads clients to HTTPS, and shows the authority that the name is this server's.";
        toml.raw(why, "redirect_bind", "[\"0.0.0.0:80\"]");
    }

    /// The host of the address, with its port if it has one.
    fn host(&self) -> &str {
        self.url.trim_start_matches("https://").split('/').next().unwrap_or_default()
    }

    /// The host of the address without a port.
    fn url_host(&self) -> &str {
        let host = self.host();
        host.rsplit_once(':').map_or(host, |(name, _)| name)
    }

    fn federate(&self, toml: &mut Toml) {
        toml.section("federation");
        let why = "Whether users can be in rooms with those of other homeservers.";
        toml.raw(why, "enabled", if self.federation { "true" } else { "false" });
        if !self.federation {
            return;
        }
        match (self.tls, &self.files) {
            (Tls::Proxy, _) => {
                let why = "The proxy passes on what arrives at port 8448.";
                toml.raw(why, "bind", "[\"127.0.0.1:8449\"]");
            }
            (Tls::Files, Some((certificate, key))) => {
                toml.path("The certificate for the server's name.", "certificate", certificate);
                toml.path("Its private key.", "certificate_key", key);
            }
            (Tls::Acme | Tls::Files, _) => {}
        }
        // Port 443 is served for the host of the address; another name has to point there.
        let host = self.host();
        if host != self.name {
            let delegate = match host.contains(':') {
                true => host.to_owned(),
                false => format!("{host}:8448"),
            };
            let why =
                "Where others find this server, told at https://NAME/.well-known/matrix/server.";
            toml.set(why, "delegate", &delegate);
        }
    }
}

/// A file that is being written.
struct Toml(String);

impl Toml {
    fn section(&mut self, name: &str) {
        let _ = writeln!(self.0, "\n[{name}]");
    }

    fn raw(&mut self, comment: &str, key: &str, value: &str) {
        let _ = writeln!(self.0, "# {comment}\n{key} = {value}");
    }

    fn set(&mut self, comment: &str, key: &str, text: &str) {
        self.raw(comment, key, &quoted(text));
    }

    fn path(&mut self, comment: &str, key: &str, path: &Path) {
        self.set(comment, key, &path.display().to_string());
    }
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\U{:08X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_config::Effective;

    fn answers() -> Answers {
        Answers {
            name: "example.org".to_owned(),
            url: "https://matrix.example.org".to_owned(),
            contact: "ann@example.org".to_owned(),
            newcomers: Newcomers::Token,
            captcha: None,
            tls: Tls::Proxy,
            files: None,
            federation: true,
            data_dir: "/srv/a \"b\"\\c".into(),
        }
    }

    #[test]
    fn the_file_can_be_read_and_says_what_was_answered() {
        let text = answers().to_toml();
        let config = Effective::load(Some(("x.toml".into(), text)), [], &[]).unwrap().config;
        assert_eq!(config.server.name, "example.org");
        assert_eq!(config.server.url(), "https://matrix.example.org");
        assert_eq!(config.server.data_dir, Path::new("/srv/a \"b\"\\c"));
        assert_eq!(config.server.contact_uri(), "mailto:ann@example.org");
        assert!(config.server.trust_forwarded_for && config.console.enabled);
        assert!(config.registration.is_open(&config.server) && config.federation.enabled);
        let delegate = config.federation.delegate.unwrap();
        assert_eq!(delegate, "matrix.example.org:8448");
    }

    #[test]
    fn each_kind_of_https_is_one_that_the_server_takes() {
        let files = Some(("/certificate".into(), "/key".into()));
        for (tls, files) in [(Tls::Acme, None), (Tls::Files, files), (Tls::Proxy, None)] {
            let text = Answers { tls, files, ..answers() }.to_toml();
            let config = Effective::load(Some(("x.toml".into(), text)), [], &[]).unwrap().config;
            config.check().unwrap();
            assert_eq!(config.has_tls(), tls != Tls::Proxy);
        }
    }

    #[test]
    fn every_setting_has_a_comment() {
        for tls in [Tls::Acme, Tls::Files, Tls::Proxy] {
            for newcomers in [Newcomers::Closed, Newcomers::Token, Newcomers::Captcha] {
                let captcha = Some(("key".to_owned(), "/secret".into()));
                let files = Some(("/certificate".into(), "/key".into()));
                let text = Answers { tls, newcomers, captcha, files, ..answers() }.to_toml();
                let lines: Vec<_> = text.lines().collect();
                for pair in lines.windows(2) {
                    assert!(!pair[1].contains(" = ") || pair[0].starts_with("# "), "{}", pair[1]);
                }
            }
        }
    }
}
