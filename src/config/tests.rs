use super::*;
use logcabin_base::secret_text::testing::{is_told, wrong_in_toml};

fn file(text: &str) -> Result<Effective, ConfigError> {
    Effective::load(Some(("logcabin.toml".into(), text.to_owned())), [], &[])
}

fn env(name: &str, value: &str) -> Result<Effective, ConfigError> {
    Effective::load(None, [(name.to_owned(), value.to_owned())], &[])
}

fn flag(key: &'static str, flag: &'static str, text: &str) -> Result<Effective, ConfigError> {
    Effective::load(None, [], &[Override { key, flag, text: text.to_owned() }])
}

#[test]
fn later_sources_win() {
    let text = "[server]\nname = \"file\"\nbind = [\"[::1]:1\"]\ndata_dir = \"file\"\n";
    let vars = [
        ("LOGCABIN_SERVER_BIND".to_owned(), "127.0.0.1:2, 127.0.0.1:3".to_owned()),
        ("LOGCABIN_SERVER_DATA_DIR".to_owned(), "env".to_owned()),
        ("LOGCABIN_CONFIG".to_owned(), "x".to_owned()),
        ("PATH".to_owned(), "y".to_owned()),
    ];
    let flags = [Override { key: "server.data_dir", flag: "--data-dir", text: "flag".to_owned() }];
    let effective =
        Effective::load(Some(("c.toml".into(), text.to_owned())), vars, &flags).unwrap();
    let server = &effective.config.server;
    assert_eq!(server.name, "file");
    assert_eq!(server.bind.len(), 2);
    assert_eq!(server.data_dir, PathBuf::from("flag"));
    assert_eq!(effective.config.http, Http::default());
}

#[test]
fn every_bad_value_is_refused_with_key_place_and_what_is_allowed() {
    for (section, name, value) in [
        ("server", "bind", "[]"),
        ("server", "bind", "8008"),
        ("server", "bind", "\"127.0.0.1:8008\""),
        ("server", "bind", "[\"localhost\"]"),
        ("server", "bind", "[\"127.0.0.1\"]"),
        ("server", "bind", "[\"127.0.0.1:99999\"]"),
        ("server", "bind", "[5]"),
        ("server", "name", "\"\""),
        ("server", "name", "\"a b\""),
        ("server", "name", "\"http://a\""),
        ("server", "name", "1"),
        ("server", "data_dir", "\"\""),
        ("server", "data_dir", "true"),
        ("server", "prefixes", "[]"),
        ("server", "prefixes", "[\"matrix\"]"),
        ("server", "prefixes", "[\"/matrix/\"]"),
        ("server", "prefixes", "[\"/\"]"),
        ("server", "prefixes", "[\"/{x}\"]"),
        ("server", "public_url", "\"example.org\""),
        ("server", "public_url", "\"ftp://example.org\""),
        ("server", "public_url", "\"\""),
        ("server", "discovery", "\"auto\""),
        ("server", "identity_server", "\"identity.example.org\""),
        ("server", "identity_server", "\"https://identity.example.org?x\""),
        ("server", "identity_server", "false"),
        ("server", "admin_contact", "\"admin@example.org\""),
        ("server", "admin_contact", "\"mailto:admin\""),
        ("server", "admin_contact", "\"mailto:a b@example.org\""),
        ("server", "admin_contact", "\"@admin\""),
        ("server", "admin_contact", "\"example.org\""),
        ("server", "trust_forwarded_for", "\"maybe\""),
        ("server", "trust_forwarded_for", "1"),
        ("registration", "open", "\"yes\""),
        ("registration", "open", "1"),
        ("registration", "max_accounts", "-1"),
        ("registration", "require", "[]"),
        ("registration", "require", "[\"magic\"]"),
        ("registration", "require", "[\"email|\"]"),
        ("registration", "guests", "\"maybe\""),
        ("captcha", "verify_url", "\"captcha.example.org\""),
        ("captcha", "script_url", "\"javascript:x\""),
        ("rate_limits", "enabled", "\"true\""),
        ("rate_limits", "user", "0"),
        ("rate_limits", "user", "\"5/s\""),
        ("rate_limits", "login", "\"0/s burst 5\""),
        ("rate_limits", "login", "\"5/d burst 5\""),
        ("rate_limits", "address", "\"5/s burst 10000000000\""),
        ("rate_limits", "users", "[\"@ann:example.org\"]"),
        ("rate_limits", "users", "[\"ann off\"]"),
        ("http", "max_body_bytes", "1"),
        ("http", "header_timeout_seconds", "0"),
        ("http", "max_connections", "0"),
        ("http", "shutdown_seconds", "601"),
        ("http", "access_log", "\"apache\""),
        ("http", "access_log_to", "false"),
        ("log", "archive_dir", "false"),
        ("log", "archive_dir", "\"\""),
        ("log", "archive_segment_bytes", "\"64M\""),
        ("log", "min_free_bytes", "-5"),
        ("passwords", "iterations", "999"),
        ("passwords", "concurrent", "5000"),
        ("passwords", "min_length", "0"),
        ("passwords", "denied", "[\"\"]"),
        ("tokens", "session_lifetime_seconds", "0"),
        ("tokens", "unrefreshable_lifetime_seconds", "\"off\""),
        ("accounts", "change_password", "\"no\""),
        ("tokens", "access_lifetime_seconds", "0"),
        ("server", "proxy_protocol", "\"v1\""),
        ("http", "proxy_protocol_from", "[\"localhost\"]"),
        ("outbound", "proxy", "\"https://proxy.example:3128\""),
        ("outbound", "proxy", "\"http://ann:secret@proxy.example:3128\""),
        ("outbound", "no_proxy", "[\"*.example.org\"]"),
        ("rtc", "livekit_url", "\"https://livekit.example\""),
        ("rtc", "livekit_url", "\"wss://key:secret@livekit.example\""),
        ("rtc", "livekit_url", "\"wss://\""),
        ("rtc", "token_seconds", "59"),
        ("sync", "max_timeout_seconds", "{}"),
        ("sync", "timeline_limit", "0"),
        ("sync", "max_timeline_limit", "1979-05-27"),
    ] {
        let error = file(&format!("# comment\n[{section}]\n{name} = {value}\n")).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, ConfigError::Bad { .. }), "{name} = {value}: {message}");
        assert!(message.starts_with("logcabin.toml:3: "), "{message}");
        assert!(message.contains(&format!("`{section}.{name}`")), "{message}");
        assert!(message.contains("allowed is "), "{message}");
    }
}

#[test]
fn every_setting_refuses_nonsense_from_the_environment() {
    for setting in SETTINGS {
        // An empty value is nonsense for all of them but lists that may be empty.
        let error = match env(&setting.env(), "") {
            Ok(read) => {
                assert_eq!((setting.get)(&read.config).to_string(), "[]", "{}", setting.env());
                continue;
            }
            Err(error) => error.to_string(),
        };
        assert!(error.starts_with("environment variable LOGCABIN_"), "{error}");
        assert!(error.contains(&format!("`{}.{}`", setting.section, setting.name)), "{error}");
    }
}

#[test]
fn unknown_keys_are_refused_with_what_there_is() {
    let error = file("[server]\nbnd = 1\n").unwrap_err().to_string();
    assert!(error.starts_with("logcabin.toml:2: there is no setting `server.bnd`"), "{error}");
    assert!(error.contains("bind, name, data_dir"), "{error}");
    let error = file("\n[severs]\n").unwrap_err().to_string();
    assert!(error.starts_with("logcabin.toml:2: "), "{error}");
    assert!(error.contains("[server], [tls], [acme], [registration]"), "{error}");
    assert!(file("bind = 1").unwrap_err().to_string().contains("`bind`"));
    let error = env("LOGCABIN_SERVER_BNID", "x").unwrap_err().to_string();
    assert!(error.contains("LOGCABIN_SERVER_BNID"), "{error}");
    let error = flag("server.bind", "--bind", "nowhere").unwrap_err().to_string();
    assert!(error.starts_with("flag --bind: `server.bind` cannot be \"nowhere\""), "{error}");
}

#[test]
fn a_file_that_is_not_toml_is_refused_with_the_line() {
    let error = file("[server]\nname = \n").unwrap_err();
    assert!(matches!(error, ConfigError::Syntax { .. }));
    assert!(error.to_string().starts_with("logcabin.toml:2: "), "{error}");
    assert!(file("[server]\nname = \"a\"\nname = \"b\"\n").is_err());
}

#[test]
fn what_is_printed_reads_back_as_the_same() {
    let printed = Effective::load(None, [], &[]).unwrap().to_toml();
    assert_eq!(file(&printed).unwrap().config, Config::default());
    assert!(!printed.contains("This value is from"));

    let changed = "[server]\nbind = [\"0.0.0.0:80\"]\npublic_url = \"https://m.example.org/\"\n\
                   [registration]\nopen = false\nrequire = [\"token\", \"email|dummy\"]\n\
                   terms = \"terms.toml\"\n[log]\narchive_dir = \"off\"\n\
                   [rate_limits]\nenabled = false\n[passwords]\niterations = 1_000\n";
    let effective = file(changed).unwrap();
    let printed = effective.to_toml();
    assert_eq!(file(&printed).unwrap().config, effective.config);
    assert!(printed.contains("This value is from: logcabin.toml:2."), "{printed}");
    assert_eq!(effective.config.server.url(), "https://m.example.org");
    for setting in SETTINGS {
        assert!(printed.contains(&format!("\n{} = ", setting.name)), "{}", setting.name);
    }
}

#[test]
fn defaults_are_within_their_own_bounds() {
    for setting in SETTINGS {
        let text = (setting.get)(&Config::default()).to_string();
        let value = DeValue::parse(&text).unwrap();
        let read = (setting.set)(&mut Config::default(), &RawSetting::Toml(value.get_ref()));
        assert!(read.is_some(), "{}.{}", setting.section, setting.name);
    }
}

#[test]
fn registration_is_open_by_itself_only_on_loopback() {
    let open = |text| {
        let Config { registration, server, .. } = file(text).unwrap().config;
        registration.is_open(&server)
    };
    assert!(open(""));
    assert!(open("[server]\nbind = [\"[::1]:1\", \"127.0.0.2:1\"]"));
    assert!(!open("[server]\nbind = [\"127.0.0.1:1\", \"192.168.0.1:1\"]"));
    assert!(!open("[server]\nbind = [\"0.0.0.0:1\"]"));
    assert!(open("[server]\nbind = [\"0.0.0.0:1\"]\n[registration]\nopen = true"));
    assert!(!open("[registration]\nopen = false"));
}

#[test]
fn whoever_runs_the_server_is_reached_as_configured_or_as_the_postmaster() {
    let contact = |text: &str| {
        let text = format!("[server]\nname = \"example.org:8448\"\n{text}");
        file(&text).unwrap().config.server.contact_uri()
    };
    assert_eq!(contact(""), "mailto:postmaster@example.org");
    for (given, told) in [
        ("none", "mailto:postmaster@example.org"),
        ("mailto:help+me@example.org", "mailto:help+me@example.org"),
        ("@admin:example.org", "matrix:u/admin:example.org"),
        ("https://example.org/help?lang=en", "https://example.org/help?lang=en"),
    ] {
        assert_eq!(contact(&format!("admin_contact = \"{given}\"")), told);
    }
}

/// Settings that are named as secrets are, and are none.
const NO_SECRETS: [&str; 15] = [
    "captcha.public_key",
    "login.password",
    "login.get_token",
    "login.get_token_seconds",
    "sso.token_seconds",
    "rtc.token_seconds",
    "appservices.token_in_query",
    "accounts.change_password",
    "server.policy_server_key",
    "rate_limits.key_backups",
    "quotas.key_backups",
    "quotas.room_key_bytes",
    "acme.eab_key_id",
    // Files, which the server watches.
    "federation.certificate_key",
    "tls.certificate_key",
];

#[test]
fn a_setting_that_is_named_as_a_secret_is_one() {
    let names: Vec<_> = SETTINGS.iter().map(|s| (format!("{}.{}", s.section, s.name), s)).collect();
    for (name, setting) in &names {
        let words = ["secret", "password", "key", "token", "credential"];
        let is_named_so = setting.name.split('_').any(|word| words.contains(&word));
        assert!(!is_named_so || setting.secret || NO_SECRETS.contains(&name.as_str()), "{name}");
    }
    let secret = names.iter().filter(|(_, setting)| setting.secret).map(|(name, _)| name.as_str());
    let expected = [
        "acme.eab_key_file",
        "registration.shared_secret",
        "captcha.secret_key_file",
        "antispam.hook_url",
        "antispam.hook_secret_file",
        "passwords.imported_pepper_file",
        "email.password",
        "email.password_file",
        "sms.url",
        "sms.headers",
        "sms.template",
        "outbound.proxy",
        "outbound.proxy_password",
        "outbound.proxy_password_file",
        "turn.shared_secret",
        "rtc.livekit_keys_file",
    ];
    assert_eq!(secret.collect::<Vec<_>>(), expected);
}

#[test]
fn no_secret_is_in_a_message_or_printed_whatever_is_wrong_with_it() {
    const SECRET: &str = "Zq9073514792xV";
    let long = SECRET.repeat(2);
    for setting in SETTINGS.iter().filter(|setting| setting.secret) {
        let key = format!("{}.{}", setting.section, setting.name);
        let mut refused = 0;
        let mut look = |given: &str, loaded: Result<Effective, ConfigError>| {
            let told = match loaded {
                Ok(effective) => format!("{}{effective:?}", effective.to_toml()),
                Err(error) => {
                    refused += 1;
                    format!("{error} {error:?}")
                }
            };
            assert!(!is_told(SECRET, &told), "{key} = {given}: {told}");
        };
        for secret in [SECRET, &long] {
            let address =
                format!("https://{secret}:{secret}@gw.example/{secret}?key={secret}#{secret}");
            let right = [secret.to_owned(), format!("X-Key: {secret}"), address]
                .map(|text| format!("\"{text}\""))
                .into_iter()
                .chain([format!("'{{\"key\":\"{secret}\"}}'"), format!("[\"X: {secret}\"]")]);
            for given in wrong_in_toml(secret).into_iter().chain(right) {
                let text = format!("[{}]\n{} = {given}\n", setting.section, setting.name);
                look(&given, file(&text));
                // Not in its section, in one that there is not, and misspelt.
                look(&given, file(&format!("{} = {given}\n", setting.name)));
                look(&given, file(&format!("[sectoin]\n{} = {given}\n", setting.name)));
                look(&given, file(&text.replace(setting.name, "mispselt")));
            }
            let digits = "9073514792";
            for given in [
                secret.to_owned(),
                secret.chars().take(9).collect(),
                digits.to_owned(),
                format!("\"{secret}"),
                format!("{{\"key\":\"{secret}\""),
                format!("{{\"key\":\"{secret}\"}}"),
                format!("https://{secret}:{secret}@gw.example?key={secret}"),
                format!("https://[{secret}"),
                format!("X: {secret}, Y: {secret},"),
            ] {
                look(&given, env(&setting.env(), &given));
                let misspelt = format!("{}X", setting.env());
                look(&given, env(&misspelt, &given));
            }
        }
        assert!(refused > 100, "{key}: {refused}");
    }
}

#[test]
fn what_was_hidden_is_not_taken_for_what_it_hides() {
    let text = "[sms]\nurl = \"https://gw.example/send?key=1\"\ntemplate = '{\"key\":\"1\"}'\n\
                [turn]\nshared_secret = \"0123456789abcdef\"\n";
    let printed = file(text).unwrap().to_toml();
    for name in ["url", "template", "shared_secret"] {
        let line = printed
            .lines()
            .find(|line| line.starts_with(&format!("{name} = ")) && line.contains("hidden"));
        let section = if name == "shared_secret" { "turn" } else { "sms" };
        let line = line.unwrap_or_else(|| panic!("{name} is not hidden"));
        let error = file(&format!("[{section}]\n{line}\n")).unwrap_err();
        assert!(matches!(error, ConfigError::Bad { .. }), "{error}");
    }
    assert!(printed.contains("https://gw.example (hidden)"), "{printed}");
}

#[test]
fn clients_are_told_no_address_that_holds_on_this_machine_alone() {
    let told = |bind: &[&str], forwarded: bool, url: Option<&str>| {
        let url = url.unwrap_or("auto");
        let text = format!(
            "[server]\nbind = {bind:?}\ntrust_forwarded_for = {forwarded}\npublic_url = {url:?}\n"
        );
        file(&text).unwrap().config.server.announced_url()
    };
    let local = "127.0.0.1:8008";
    assert_eq!(told(&[local, "[::1]:8008"], false, None).as_deref(), Some("http://127.0.0.1:8008"));
    let lan = "192.168.1.5:8008";
    assert_eq!(told(&[lan, local], false, None).as_deref(), Some("http://192.168.1.5:8008"));
    for bind in [&["0.0.0.0:8008"][..], &["[::]:8008"], &[local, lan]] {
        assert_eq!(told(bind, false, None), None, "{bind:?}");
    }
    assert_eq!(told(&[local], true, None), None);
    let proxied = file("[server]\nproxy_protocol = true\n").unwrap().config;
    assert_eq!(proxied.server.announced_url(), None);
    assert!(!proxied.registration.is_open(&proxied.server));
    let url = "https://chat.example.org";
    for bind in [&["0.0.0.0:8008"][..], &[local]] {
        assert_eq!(told(bind, true, Some(url)).as_deref(), Some(url));
    }
}

#[test]
fn with_https_of_its_own_a_server_is_at_that_address_and_not_open_to_all() {
    let url = |text: &str| {
        let config = file(text).unwrap().config.settled();
        assert!(!config.registration.is_open(&config.server), "{text}");
        assert_eq!(config.check(), Ok(()), "{text}");
        config.server.announced_url().unwrap()
    };
    let acme =
        "[server]\nname = \"example.org\"\n[acme]\nenabled = true\nchallenge = \"tls-alpn-01\"\n";
    assert_eq!(url(acme), "https://example.org");
    let named = format!("{acme}domains = [\"Matrix.example.org\", \"example.org\"]\n");
    assert_eq!(url(&named), "https://matrix.example.org");
    let port = format!("{named}[tls]\nbind = [\"0.0.0.0:8443\"]\n");
    assert_eq!(url(&port), "https://matrix.example.org:8443");
    let files = "[server]\nname = \"example.org:8448\"\n[tls]\ncertificate = \"a\"\n\
                 certificate_key = \"b\"\nredirect_bind = [\"0.0.0.0:80\"]\n";
    assert_eq!(url(files), "https://example.org");
    let own = named.replace("[server]\n", "[server]\npublic_url = \"https://chat.example.org\"\n");
    assert_eq!(url(&own), "https://chat.example.org");
    let names = |text: &str| file(text).unwrap().config.settled().https_names();
    assert_eq!(names(acme), ["example.org"]);
    assert_eq!(names(&named), ["matrix.example.org", "example.org"]);
    assert_eq!(names(&own), ["chat.example.org", "matrix.example.org", "example.org"]);
    let address = "[tls]\ncertificate = \"a\"\n[server]\npublic_url = \"https://[::1]:8443\"\n";
    assert_eq!(names(address), ["::1"]);
    let at = |text: &str| file(text).unwrap().config.https_address().map(|at| at.to_string());
    assert_eq!(at(&port).as_deref(), Some("127.0.0.1:8443"));
    assert_eq!(at(""), None);
}

#[test]
fn settings_that_contradict_each_other_are_named() {
    for (text, named) in [
        ("[tls]\ncertificate = \"a\"", "tls.certificate_key"),
        ("[federation]\ncertificate_key = \"a\"", "federation.certificate"),
        ("[tls]\nredirect_bind = [\"0.0.0.0:80\"]", "acme.enabled"),
        ("[acme]\nenabled = true\nchallenge = \"tls-alpn-01\"", "acme.domains"),
        ("[acme]\nenabled = true\ndomains = [\"a.example\"]", "tls.redirect_bind"),
        ("[acme]\neab_key_id = \"kid-1\"", "`acme.eab_key_file`"),
        ("[acme]\neab_key_file = \"eab.key\"", "`acme.eab_key_id` needs"),
        ("[federation]\nenabled = true\nbind = []", "federation.at_client_addresses"),
        (
            "[server]\nproxy_protocol = true\n[http]\nproxy_protocol_from = []",
            "http.proxy_protocol_from",
        ),
        ("[outbound]\nproxy_user = \"ann\"", "outbound.proxy"),
        ("[outbound]\nproxy_resolves_names = true", "outbound.proxy"),
        (
            "[outbound]\nproxy = \"http://proxy\"\nproxy_password = \"secret\"",
            "outbound.proxy_user",
        ),
        ("[outbound]\nproxy = \"http://proxy\"\nproxy_user = \"a:b\"", "colon"),
        (
            "[acme]\nenabled = true\ndomains = [\"a.example\"]\nchallenge = \"tls-alpn-01\"\n\
             [tls]\ncertificate = \"a\"\ncertificate_key = \"b\"",
            "remove one",
        ),
        ("[rtc]\nlivekit_url = \"wss://l.example\"", "rtc.livekit_keys_file"),
        ("[rtc]\nlivekit_keys_file = \"keys\"", "rtc.livekit_url"),
        (
            "[server]\nbind = [\"0.0.0.0:8008\"]\n\
             [rtc]\nlivekit_url = \"wss://l.example\"\nlivekit_keys_file = \"keys\"",
            "server.public_url",
        ),
    ] {
        let error = file(text).unwrap().config.settled().check().unwrap_err().to_string();
        assert!(error.contains(named), "{text}: {error}");
    }
    assert_eq!(Config::default().check(), Ok(()));
}

#[test]
fn of_changed_settings_it_is_known_whether_they_take_effect() {
    let text = "[registration]\nopen = false\nshared_secret = \"0123456789abcdef\"\n\
                [rate_limits]\nenabled = false\n[server]\nlog_filter = \"debug\"\n";
    let mut new = file(text).unwrap().config;
    new.rate_limits.login = new.rate_limits.user;
    let changes = Config::default().changes(&new);
    let changes: Vec<_> =
        changes.iter().map(|change| (&*change.name, change.takes_effect)).collect();
    assert_eq!(
        changes,
        [
            ("server.log_filter", true),
            ("registration.open", true),
            // It is printed as hidden, and compared nevertheless.
            ("registration.shared_secret", false),
            ("rate_limits.enabled", false),
            ("rate_limits.login", true),
        ]
    );
    assert_eq!(new.changes(&new), []);
    // Each name is one of a setting.
    for name in RELOADED.iter().chain(&KEPT).filter(|name| !name.ends_with('*')) {
        let is = |setting: &entry::Entry| format!("{}.{}", setting.section, setting.name) == *name;
        assert!(SETTINGS.iter().any(is), "{name}");
    }
}

#[test]
fn a_rehearsal_closes_what_leads_outside_and_leaves_other_data_alone() {
    let text = "[outbound]\nrehearsal = true\n\
                [server]\npublic_url = \"https://a.example\"\n\
                [federation]\nenabled = true\nat_client_addresses = true\n\
                [acme]\nenabled = true\ndomains = [\"a.example\"]\n\
                [tls]\nredirect_bind = [\"0.0.0.0:80\"]\n\
                [metrics]\nbind = \"127.0.0.1:9000\"\nendpoint = \"http://127.0.0.1:4318\"\n\
                [traces]\nendpoint = \"http://127.0.0.1:4318\"\n\
                [log]\narchive_dir = \"/archive\"\n\
                [media]\ndir = \"/media\"\n";
    let config = file(text).unwrap().config.settled();
    config.check().unwrap();
    assert!(!config.federation.enabled && !config.has_tls());
    assert!(config.metrics.bind.is_none());
    assert!(config.metrics.endpoint.is_none() && config.traces.endpoint.is_none());
    assert_eq!(config.server.public_url, PublicUrl::Auto);
    assert_eq!(config.log.archive_dir, ArchiveDir::Auto);
    assert_eq!(config.media.dir, MediaDir::Auto);
    // A certificate in files serves a rehearsal, too.
    let files = "[outbound]\nrehearsal = true\n\
                 [tls]\ncertificate = \"/c\"\ncertificate_key = \"/k\"\n";
    assert!(file(files).unwrap().config.settled().has_tls());
    // A node of a cluster cannot rehearse.
    let node = "[outbound]\nrehearsal = true\n[log]\nservers = [\"nats://127.0.0.1:4222\"]\n";
    assert!(file(node).unwrap().config.settled().check().is_err());
    // Otherwise nothing changes.
    let live = text.replace("rehearsal = true", "rehearsal = false");
    let live = file(&live).unwrap().config.settled();
    assert!(live.federation.enabled && live.has_tls());
}
