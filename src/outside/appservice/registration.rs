//! Registration files of bridges (application service API, "Registration").

use std::{
    fmt,
    io::Read as _,
    path::{Path, PathBuf},
};

use regex::{Regex, RegexBuilder};
use ruma::{ServerName, UserId};
use serde::Deserialize;
use serde_saphyr::Spanned;
use thiserror::Error;
use url::Url;

use super::{Namespace, Service};
use logcabin_base::{limits, secret_text::SecretText};
use logcabin_record::command::{Secret, TokenHash};

/// Why a registration file is not usable.
#[derive(Debug, Error)]
#[error("{}{}: {reason}", .file.display(), Line(*.line))]
pub struct RegistrationError {
    file: PathBuf,
    line: Option<u64>,
    reason: String,
}

impl RegistrationError {
    pub(super) fn new(file: &Path, line: Option<u64>, reason: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, reason: reason.into() }
    }
}

struct Line(Option<u64>);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |line| write!(f, ":{line}"))
    }
}

/// The members of a file that are read; bridges write more, which are ignored.
#[derive(Deserialize)]
struct File {
    id: Spanned<String>,
    url: Option<Spanned<String>>,
    as_token: Spanned<SecretText>,
    hs_token: Spanned<SecretText>,
    sender_localpart: Spanned<String>,
    #[serde(default)]
    namespaces: Option<Namespaces>,
    #[serde(default)]
    rate_limited: Option<bool>,
    #[serde(default)]
    protocols: Option<Vec<String>>,
    #[serde(default)]
    receive_ephemeral: Option<bool>,
    #[serde(default, rename = "de.sorunome.msc2409.push_ephemeral")]
    push_ephemeral: Option<bool>,
    #[serde(default, rename = "org.matrix.msc3202")]
    encryption: Option<bool>,
}

#[derive(Default, Deserialize)]
struct Namespaces {
    #[serde(default)]
    users: Option<Vec<NamespaceOfFile>>,
    #[serde(default)]
    aliases: Option<Vec<NamespaceOfFile>>,
    #[serde(default)]
    rooms: Option<Vec<NamespaceOfFile>>,
}

#[derive(Deserialize)]
struct NamespaceOfFile {
    regex: Spanned<String>,
    #[serde(default)]
    exclusive: bool,
}

/// Reads a registration file.
pub(super) fn read(path: &Path, server: &ServerName) -> Result<Service, RegistrationError> {
    let unreadable = |error: std::io::Error| RegistrationError::new(path, None, error.to_string());
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    file.take(limits::REGISTRATION_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > limits::REGISTRATION_BYTES {
        let reason = format!("it is larger than {} bytes", limits::REGISTRATION_BYTES);
        return Err(RegistrationError::new(path, None, reason));
    }
    parse(path, &text, server)
}

fn parse(path: &Path, text: &str, server: &ServerName) -> Result<Service, RegistrationError> {
    let file: File = serde_saphyr::from_str(text).map_err(|error| {
        let line = error.location().map(|location| location.line());
        // The first line describes the error; the others quote the file, which contains secrets.
        let reason = error.without_snippet().to_string();
        let reason = reason.lines().next().unwrap_or_default().to_owned();
        RegistrationError::new(path, line, reason)
    })?;
    fn bad<T>(path: &Path, at: &Spanned<T>, reason: &str) -> RegistrationError {
        RegistrationError::new(path, Some(at.referenced.line()), reason)
    }
    let wrong = |at: &Spanned<String>, reason: &str| bad(path, at, reason);
    let id = &file.id.value;
    if id.is_empty() || id.len() > limits::IDENTIFIER_BYTES || id.chars().any(char::is_control) {
        return Err(wrong(&file.id, "`id` has 1 to 255 bytes, without control characters"));
    }
    for (token, name) in [(&file.as_token, "as_token"), (&file.hs_token, "hs_token")] {
        let fits = |c: char| c.is_ascii_graphic();
        let value = token.value.expose();
        if value.is_empty() || !value.chars().all(fits) {
            return Err(bad(
                path,
                token,
                &format!("`{name}` consists of visible ASCII characters"),
            ));
        }
    }
    let localpart = &file.sender_localpart;
    let sender = UserId::parse_with_server_name(localpart.value.as_str(), server)
        .map_err(|_| wrong(localpart, "`sender_localpart` cannot be a user name"))?;
    let url = match &file.url {
        Some(url) if !url.value.is_empty() => Some(
            base_url(&url.value)
                .ok_or_else(|| wrong(url, "`url` is the address of a service, or null"))?,
        ),
        _ => None,
    };
    let compile = |of: Option<Vec<NamespaceOfFile>>| {
        let of = of.unwrap_or_default();
        if of.len() > limits::NAMESPACES {
            let reason = format!("it has more than {} namespaces of a kind", limits::NAMESPACES);
            return Err(RegistrationError::new(path, None, reason));
        }
        let compile = |of: NamespaceOfFile| {
            let regex = anchored(&of.regex.value).map_err(|reason| wrong(&of.regex, &reason))?;
            Ok(Namespace { regex, exclusive: of.exclusive })
        };
        of.into_iter().map(compile).collect::<Result<Vec<_>, _>>()
    };
    let namespaces = file.namespaces.unwrap_or_default();
    let encryption = file.encryption.unwrap_or(false);
    let ephemeral = file.receive_ephemeral.or(file.push_ephemeral).unwrap_or(false);
    Ok(Service {
        id: file.id.value,
        url,
        as_token: TokenHash::of(file.as_token.value.expose()),
        hs_token: Secret::from(file.hs_token.value.into_inner()),
        sender,
        users: compile(namespaces.users)?,
        aliases: compile(namespaces.aliases)?,
        rooms: compile(namespaces.rooms)?,
        rate_limited: file.rate_limited.unwrap_or(false),
        protocols: file.protocols.unwrap_or_default(),
        ephemeral,
        // For services that know only its first name.
        old_ephemeral_name: file.receive_ephemeral.is_none() && file.push_ephemeral.is_some(),
        encryption,
    })
}

fn base_url(text: &str) -> Option<Url> {
    let url: Url = text.parse().ok()?;
    let is_web = matches!(url.scheme(), "http" | "https");
    (is_web && url.has_host() && url.query().is_none() && url.fragment().is_none()).then_some(url)
}

/// The regular expression of a namespace. It is anchored at the start but not at the end, as the
/// authors of services have come to expect.
fn anchored(expression: &str) -> Result<Regex, String> {
    if expression.len() > limits::NAMESPACE_BYTES {
        return Err(format!("an expression has {} bytes at most", limits::NAMESPACE_BYTES));
    }
    RegexBuilder::new(&format!("^(?:{expression})"))
        .size_limit(limits::NAMESPACE_COMPILED_BYTES)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => "this expression is too large".to_owned(),
            error => {
                let reason = error.to_string();
                let reason = reason.lines().last().unwrap_or_default();
                format!("not a regular expression: {}", reason.trim_start_matches("error: "))
            }
        })
}

#[cfg(test)]
mod tests {
    use ruma::{server_name, user_id};

    use super::*;
    use logcabin_base::secret_text::testing::is_told;

    fn service(text: &str) -> Result<Service, String> {
        parse(Path::new("bridge.yaml"), text, server_name!("test")).map_err(|e| e.to_string())
    }

    /// As mautrix-python writes it.
    const BRIDGE: &str = "\
id: echo
as_token: as-secret
hs_token: hs-secret
namespaces:
    users:
    - exclusive: true
      regex: '@echo_.*:test'
    aliases: []
    rooms: null
url: http://localhost:29300/base/
sender_localpart: echobot
rate_limited: false
de.sorunome.msc2409.push_ephemeral: true
push_ephemeral: true
io.element.msc4190: true
org.matrix.msc3202: true
com.example.unknown: [1, {a: b}]
";

    #[test]
    fn a_file_as_bridges_write_it_is_read() {
        let service = service(BRIDGE).unwrap();
        assert_eq!(service.id, "echo");
        assert_eq!(service.sender, user_id!("@echobot:test"));
        assert!(service.ephemeral && service.old_ephemeral_name && service.encryption);
        assert!(service.owns_user(user_id!("@echo_1:test")));
        assert!(service.owns_user(user_id!("@echobot:test")));
        assert!(!service.owns_user(user_id!("@echo_1:elsewhere")));
        assert!(!service.owns_user(user_id!("@an_echo_1:test")));
        let shown = format!("{service:?}");
        assert!(!shown.contains("as-secret") && !shown.contains("hs-secret"), "{shown}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let refused = |from: &str, to: &str, said: &str| {
            let error = service(&BRIDGE.replace(from, to)).unwrap_err();
            assert!(error.starts_with("bridge.yaml:") && error.contains(said), "{error}");
        };
        refused("'@echo_.*:test'", "'@echo_(.*:test'", ":7: not a regular expression");
        refused("'@echo_.*:test'", "'@(a{1000}){1000}'", ":7: this expression is too large");
        refused("'@echo_.*:test'", "[1]", ":7");
        refused("http://localhost:29300/base/", "localhost", ":10: `url`");
        refused("echobot", "'a b:c'", ":11: `sender_localpart`");
        refused("id: echo", "id: ''", ":1: `id`");
        refused("id: echo\n", "", "id");
        refused("as-secret", "\"a\\tb\"", ":2: `as_token`");
        let error = service("id: [").unwrap_err();
        assert!(error.starts_with("bridge.yaml:"), "{error}");
    }

    #[test]
    fn no_token_is_in_an_error_whatever_is_wrong_with_it() {
        const SECRET: &str = "Zq9073514792xV";
        let digits: String = SECRET.chars().filter(char::is_ascii_digit).collect();
        let forms = [
            "S S: S",
            "[S]",
            "[S",
            "{S: S}",
            "{S",
            "*S",
            "&S",
            "&S *S",
            "!S",
            "!!int S",
            "!!binary S",
            "!S S",
            "'S",
            "\"S",
            "\"S\\q\"",
            "\"S\\xZZ\"",
            "'S' S",
            "@S",
            "`S",
            "%S",
            "|S\n S",
            ">S",
            "|\n S\nS: S",
            "S: S",
            "- S",
            "? S",
            "\tS",
            "S\tS: x",
            "S\n  S: S",
            "S\nS",
            "S\nas_token: S",
            "\"S\u{7}\"",
            "[S]: S",
            "D: D",
            "*D",
            "!!bool S",
            "!!float S",
            "!!null S",
            "<<: S",
            "{<<: S}",
            "S #\n S: S",
        ];
        let mut refused = 0;
        for form in forms {
            let form = form.replace('S', SECRET).replace('D', &digits);
            for (token, other) in [("as-secret", "hs-secret"), ("hs-secret", "as-secret")] {
                let text = BRIDGE.replace(token, &form).replace(other, SECRET);
                let Err(error) = service(&text) else { continue };
                assert!(!is_told(SECRET, &error), "{form}: {error}");
                assert!(error.starts_with("bridge.yaml"), "{form}: {error}");
                refused += 1;
            }
        }
        assert!(refused > forms.len(), "most of these are wrong: {refused}");
    }

    #[test]
    fn a_service_without_an_address_is_one_nevertheless() {
        for url in ["null", "''", "~"] {
            let service = service(&BRIDGE.replace("http://localhost:29300/base/", url)).unwrap();
            assert_eq!(service.url, None, "{url}");
        }
    }
}
