//! `logcabin setup`: asks what a new server needs to know, and makes it.

use std::{
    fs,
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::password::new_password;
use file::{Answers, Newcomers, Tls};
use logcabin_config::{Effective, Override};
use logcabin_ops::{
    admin::{
        act::{Order, Outcome},
        actor,
        console::MakeConsoleLink,
        offline,
    },
    setup::{self, NewServer},
};
use logcabin_record::command::Secret;

mod file;

/// Make a new server: its configuration file and the first administrator
///
/// Asks for what it needs to know and explains each choice. Every question can also be answered by
/// a flag; without a terminal, all of them must be. Nothing is written before all answers are
/// valid, and nothing that exists is overwritten. Run it as root for a server that the system
/// starts: the files then belong to the owner of the data directory, or to the user `logcabin`.
#[derive(Debug, clap::Args)]
pub(super) struct Setup {
    /// Write the configuration here [default: /etc/logcabin/logcabin.toml for root, else
    /// ./logcabin.toml]
    #[arg(long, value_name = "FILE", env = "LOGCABIN_CONFIG")]
    config: Option<PathBuf>,

    /// The data directory [default: /var/lib/logcabin for root, else ./data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// The name in user and room ids; it can never be changed
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,

    /// The address at which clients reach the server, with https
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,

    /// Where users and other administrators reach you: a mail address, or "none"
    #[arg(long, value_name = "MAIL")]
    contact: Option<String>,

    /// Who can create an account
    #[arg(long, value_enum, value_name = "MODE")]
    registration: Option<Newcomers>,

    /// With `--registration captcha`: the site key of the captcha
    #[arg(long, value_name = "KEY")]
    captcha_site_key: Option<String>,

    /// With `--registration captcha`: the file with the secret key of the captcha
    #[arg(long, value_name = "FILE")]
    captcha_secret_file: Option<PathBuf>,

    /// Where the certificate for HTTPS is from
    #[arg(long, value_enum, value_name = "MODE")]
    tls: Option<Tls>,

    /// With `--tls files`: the certificate and those of its authorities (PEM)
    #[arg(long, value_name = "FILE")]
    tls_certificate: Option<PathBuf>,

    /// With `--tls files`: the private key of the certificate (PEM)
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Whether users can be in rooms with those of other homeservers
    #[arg(long, value_enum, value_name = "on|off")]
    federation: Option<Switch>,

    /// The user name of the first administrator
    #[arg(long, value_name = "NAME")]
    admin: Option<String>,

    /// A file with the administrator's password and nothing else
    #[arg(long, value_name = "FILE")]
    admin_password_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The longest text that a question takes as an answer, in bytes.
const ANSWER_BYTES: usize = 1024;

impl Setup {
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let is_root = rustix::process::geteuid().is_root();
        let at = |given: &Option<PathBuf>, of_root: &str, else_here: &str| {
            let default = if is_root { of_root } else { else_here };
            let path = given.clone().unwrap_or_else(|| default.into());
            std::path::absolute(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let file = at(&self.config, "/etc/logcabin/logcabin.toml", "logcabin.toml")?;
        let data_dir = at(&self.data_dir, "/var/lib/logcabin", "data")?;
        // Before anybody answers in vain.
        setup::must_be_new(&file, &data_dir)?;
        let answers = self.answers(data_dir)?;
        let text = answers.to_toml();
        let config = Effective::load(Some((file.clone(), text.clone())), [], &[])?.config;
        let admin = self.admin_name()?;
        let password = self.password(&admin)?;
        let new = NewServer { file, text, config, admin, password };
        let actor = actor::name(Some(rustix::process::getuid().as_raw()));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let user_id = setup::make(&runtime, &new, &actor)?;
        let link = console_link(&runtime, &new, &actor);
        super::print(&made(&new, user_id.as_str(), &answers, &link))?;
        Ok(ExitCode::SUCCESS)
    }

    fn answers(&self, data_dir: PathBuf) -> Result<Answers, Failure> {
        let name = ask(
            &self.server_name,
            "--server-name",
            "The server's name, which is in every user id, as in @ann:example.org. It can NEVER be \
             changed after the first start: take a domain that you will keep.",
            None,
            server_name,
        )?;
        let url = ask(
            &self.public_url,
            "--public-url",
            "The address at which clients reach the server. Its host may differ from the name.",
            Some(&format!("https://{}", host(&name))),
            public_url,
        )?;
        let contact = ask(
            &self.contact,
            "--contact",
            "Your mail address, which is shown to users and to other administrators who need help; \
             \"none\" for none.",
            None,
            contact,
        )?;
        let newcomers = choose(
            self.registration,
            "--registration",
            "Who can create an account: \"closed\" is nobody but administrators, \"token\" is who \
             has a token that you made, \"captcha\" is anyone who solves a captcha.",
            Newcomers::Closed,
        )?;
        let captcha = match newcomers {
            Newcomers::Captcha => Some(self.captcha()?),
            Newcomers::Closed | Newcomers::Token => None,
        };
        let tls = choose(
            self.tls,
            "--tls",
            "Where the certificate for HTTPS is from: \"acme\" fetches one by itself (Let's \
             Encrypt; ports 80 and 443 must be reachable), \"files\" reads yours, \"proxy\" leaves \
             HTTPS to a reverse proxy on this machine.",
            Tls::Acme,
        )?;
        if tls == Tls::Acme && contact == "none" {
            return Err("`--tls acme` needs a mail address as `--contact`: the authority for \
                        certificates writes there when something is wrong"
                .into());
        }
        let files = match tls {
            Tls::Files => Some(self.certificate()?),
            Tls::Acme | Tls::Proxy => None,
        };
        let federates = choose(
            self.federation,
            "--federation",
            "Whether users can be in rooms with users of other homeservers (\"on\"), or the server \
             is for itself (\"off\").",
            Switch::On,
        )?;
        let federation = federates == Switch::On;
        Ok(Answers { name, url, contact, newcomers, captcha, tls, files, federation, data_dir })
    }

    fn captcha(&self) -> Result<(String, PathBuf), Failure> {
        let key = ask(
            &self.captcha_site_key,
            "--captcha-site-key",
            "The site key that the captcha's service (reCAPTCHA, or a compatible one) gave you.",
            None,
            plain,
        )?;
        let secret = ask_file(
            &self.captcha_secret_file,
            "--captcha-secret-file",
            "The path of a file with its secret key and nothing else, which the server can read.",
        )?;
        Ok((key, secret))
    }

    fn certificate(&self) -> Result<(PathBuf, PathBuf), Failure> {
        let certificate = ask_file(
            &self.tls_certificate,
            "--tls-certificate",
            "The path of the certificate, with those of the authorities behind it (PEM).",
        )?;
        let key = ask_file(
            &self.tls_key,
            "--tls-key",
            "The path of the certificate's private key (PEM), which the server can read.",
        )?;
        Ok((certificate, key))
    }

    fn admin_name(&self) -> Result<String, Failure> {
        ask(
            &self.admin,
            "--admin",
            "The user name of the first administrator, such as ann for @ann:example.org.",
            Some("admin"),
            |name| {
                let valid = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '.' | '_' | '-');
                match !name.is_empty() && name.len() <= 128 && name.chars().all(valid) {
                    true => Ok(()),
                    false => Err("a user name consists of a-z, 0-9, \".\", \"_\" and \"-\"".into()),
                }
            },
        )
    }

    fn password(&self, admin: &str) -> Result<Secret, Failure> {
        if let Some(path) = &self.admin_password_file {
            let text = fs::read_to_string(path)
                .map_err(|error| format!("--admin-password-file {}: {error}", path.display()))?;
            let line = text.lines().next().unwrap_or_default();
            return match line.is_empty() {
                true => {
                    Err(format!("--admin-password-file {}: it is empty", path.display()).into())
                }
                false => Ok(line.into()),
            };
        }
        if !io::stdin().is_terminal() {
            return Err(missing("--admin-password-file").into());
        }
        Ok(new_password(admin)?)
    }
}

/// The answer to a question: from the flag or, on a terminal, from the user, who is asked until it
/// is valid. `check` says what is wrong with an answer.
fn ask(
    given: &Option<String>,
    flag: &str,
    question: &str,
    default: Option<&str>,
    check: impl Fn(&str) -> Result<(), String>,
) -> Result<String, Failure> {
    let fine = |answer: &str| {
        plain(answer)?;
        check(answer)
    };
    if let Some(given) = given {
        let given = given.trim();
        fine(given).map_err(|why| format!("{flag} {given:?}: {why}"))?;
        return Ok(given.to_owned());
    }
    if !io::stdin().is_terminal() {
        return Err(missing(flag).into());
    }
    eprintln!("\n{question}");
    loop {
        match default {
            Some(default) => eprint!("[{default}]: "),
            None => eprint!(": "),
        }
        io::stderr().flush()?;
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line)? == 0 {
            return Err("interrupted: nothing was made".into());
        }
        let answer = match (line.trim(), default) {
            ("", Some(default)) => default,
            (answer, _) => answer,
        };
        match fine(answer) {
            Ok(()) => return Ok(answer.to_owned()),
            Err(why) => eprintln!("That is not possible: {why}."),
        }
    }
}

/// As [`ask`], for a choice.
fn choose<T: clap::ValueEnum + Copy>(
    given: Option<T>,
    flag: &str,
    question: &str,
    default: T,
) -> Result<T, Failure> {
    if let Some(given) = given {
        return Ok(given);
    }
    let name = |one: &T| one.to_possible_value().map(|value| value.get_name().to_owned());
    let names: Vec<_> = T::value_variants().iter().filter_map(name).collect();
    let default = name(&default);
    let answer = ask(&None, flag, question, default.as_deref(), |answer| {
        match T::from_str(answer, false) {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("the choices are {}", names.join(", "))),
        }
    })?;
    T::from_str(&answer, false).map_err(Into::into)
}

/// As [`ask`], for a file that exists.
fn ask_file(given: &Option<PathBuf>, flag: &str, question: &str) -> Result<PathBuf, Failure> {
    let given = given.as_ref().map(|path| path.display().to_string());
    let answer = ask(&given, flag, question, None, |answer| match Path::new(answer).is_file() {
        true => Ok(()),
        false => Err("there is no such file".to_owned()),
    })?;
    Ok(std::path::absolute(answer)?)
}

fn missing(flag: &str) -> String {
    format!("`{flag}` is missing, and without a terminal nobody can be asked for it")
}

fn plain(answer: &str) -> Result<(), String> {
    match answer {
        "" => Err("an answer is needed".to_owned()),
        long if long.len() > ANSWER_BYTES => Err("it is too long".to_owned()),
        odd if odd.chars().any(char::is_control) => Err("it has control characters".to_owned()),
        _ => Ok(()),
    }
}

/// What the configuration says about a value of a setting.
fn setting(key: &'static str, text: &str) -> Result<(), String> {
    let given = Override { key, flag: "", text: text.to_owned() };
    let wrong = |error: logcabin_config::ConfigError| match error {
        logcabin_config::ConfigError::Bad { allowed, .. } => format!("allowed is {allowed}"),
        other => other.to_string(),
    };
    Effective::load(None, [], &[given]).map(drop).map_err(wrong)
}

fn server_name(name: &str) -> Result<(), String> {
    setting("server.name", name)?;
    if name.chars().any(|c| c.is_ascii_uppercase()) {
        return Err("a name has no capital letters".to_owned());
    }
    Ok(())
}

fn public_url(url: &str) -> Result<(), String> {
    setting("server.public_url", url)?;
    match url.starts_with("https://") {
        true => Ok(()),
        false => Err("clients need an address that begins with https://".to_owned()),
    }
}

fn contact(mail: &str) -> Result<(), String> {
    match mail {
        "none" => Ok(()),
        mail => setting("server.admin_contact", &format!("mailto:{mail}")).map_err(|_| {
            "a mail address such as ann@example.org is needed, or \"none\"".to_owned()
        }),
    }
}

/// The name without a port.
fn host(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => name,
    }
}

/// A link to the console, or why there is none.
fn console_link(
    runtime: &tokio::runtime::Runtime,
    new: &NewServer,
    actor: &str,
) -> Result<String, String> {
    let order = Order::from(MakeConsoleLink { user: Some(new.admin.clone()) });
    match offline::carry_out(runtime, &new.config, &order, actor) {
        Ok(Outcome::Done(link)) => {
            let (server, secret) = (new.config.server.url(), link.secret.expose().to_owned());
            Ok(format!("{server}/_logcabin/console/login?link={secret}"))
        }
        Ok(Outcome::WouldDo(_)) => Err("it was only described".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// What was made, and what comes next.
fn made(
    new: &NewServer,
    user_id: &str,
    answers: &Answers,
    link: &Result<String, String>,
) -> String {
    let file = new.file.display();
    let mut text = format!(
        "Made the configuration {file}, and the administrator {user_id} in {}.\n\n\
         Start the server:\n    logcabin serve --config {file}\n",
        new.config.server.data_dir.display(),
    );
    if new.file == Path::new("/etc/logcabin/logcabin.toml")
        && Path::new("/run/systemd/system").exists()
    {
        text += "or, as a service of the system:\n    systemctl enable --now logcabin\n";
    }
    match link {
        Ok(link) => {
            text += &format!(
                "\nThe console, within ten minutes and once (`logcabin console --config {file}` \
                 makes another link):\n    {link}\n"
            );
        }
        Err(why) => {
            text += &format!(
                "\nA link to the console: logcabin console --config {file}   (not made now: {why})\n"
            );
        }
    }
    if answers.newcomers == Newcomers::Token {
        text += &format!(
            "\nA token with which somebody can create an account:\n    \
             logcabin registration-token create --config {file}\n"
        );
    }
    if answers.tls == Tls::Proxy {
        text += &format!("\n{}\n", file::PROXY_NOTE);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_checked() {
        for good in ["example.org", "example.org:8448", "[2001:db8::1]"] {
            server_name(good).unwrap();
        }
        for bad in ["", "exa mple.org", "example.org/path", "Example.org", "@ann:example.org"] {
            assert!(server_name(bad).is_err(), "{bad}");
        }
        public_url("https://matrix.example.org").unwrap();
        for bad in ["http://matrix.example.org", "matrix.example.org", "https://", "auto"] {
            assert!(public_url(bad).is_err(), "{bad}");
        }
        contact("ann@example.org").unwrap();
        contact("none").unwrap();
        for bad in ["ann", "@example.org", "ann@", "ann @example.org"] {
            assert!(contact(bad).is_err(), "{bad}");
        }
        assert_eq!(
            (host("a.example:80"), host("[::1]"), host("[::1]:1")),
            ("a.example", "[::1]", "[::1]")
        );
    }
}
