//! A configuration that is being made, and what of the other one was used for it.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{
    ProposedFile,
    reasons::{mas_why_left, needless, why_left},
};

/// The sections, in the order of `logcabin config`.
const SECTIONS: [&str; 29] = [
    "server",
    "tls",
    "registration",
    "captcha",
    "login",
    "oauth",
    "sso",
    "rate_limits",
    "http",
    "log",
    "metrics",
    "erasure",
    "retention",
    "passwords",
    "email",
    "threepids",
    "outbound",
    "federation",
    "tokens",
    "accounts",
    "rooms",
    "appservices",
    "user_directory",
    "push",
    "presence",
    "media",
    "server_notices",
    "turn",
    "rtc",
];

/// Which configuration is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    Synapse,
    Mas,
}

impl From {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Synapse => "homeserver.yaml",
            Self::Mas => "mas.yaml",
        }
    }

    fn why_left(self, path: &str) -> &'static str {
        match self {
            Self::Synapse => why_left(path),
            Self::Mas => mas_why_left(path),
        }
    }
}

pub(super) struct Draft<'a> {
    from: From,
    yaml: Option<&'a Map<String, Value>>,
    /// Where the files are put that the configuration names.
    folder: &'a Path,
    used: BTreeSet<String>,
    /// Section, key, value, comment.
    lines: Vec<(&'static str, &'static str, String, String)>,
    /// What has no equivalent although its setting was used, and why.
    left: Vec<(String, String)>,
    /// What was said of the configurations before this one.
    said: String,
    files: Vec<ProposedFile>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(yaml: &'a Value, folder: &'a Path) -> Self {
        let (lines, left, files) = (Vec::new(), Vec::new(), Vec::new());
        let (from, said, used) = (From::Synapse, String::new(), BTreeSet::new());
        Self { from, yaml: yaml.as_object(), folder, used, lines, left, said, files }
    }

    /// Goes on with another configuration. What it sets takes the place of what was set before.
    pub(super) fn turn_to(&mut self, from: From, yaml: &'a Value) {
        self.say_what_is_left();
        (self.from, self.yaml, self.used) = (from, yaml.as_object(), BTreeSet::new());
    }

    /// A setting of homeserver.yaml, such as `email.smtp_host`, which thereby is used. `None` if it
    /// is absent or null.
    pub(super) fn get(&mut self, path: &str) -> Option<&'a Value> {
        let mut names = path.split('.');
        let mut value = self.yaml?.get(names.next()?)?;
        for name in names {
            value = value.get(name)?;
        }
        self.used.insert(path.to_owned());
        (!value.is_null()).then_some(value)
    }

    /// Whether there is a group of settings, none of which is used thereby.
    pub(super) fn has(&self, group: &str) -> bool {
        self.yaml.and_then(|yaml| yaml.get(group)).is_some_and(Value::is_object)
    }

    /// Whether a setting is there and null, which may mean something.
    pub(super) fn is_null(&self, name: &str) -> bool {
        self.yaml.and_then(|yaml| yaml.get(name)).is_some_and(Value::is_null)
    }

    pub(super) fn text(&mut self, path: &str) -> Option<&'a str> {
        self.get(path)?.as_str().filter(|text| !text.is_empty())
    }

    pub(super) fn flag(&mut self, path: &str) -> Option<bool> {
        self.get(path)?.as_bool()
    }

    /// The texts of a list.
    pub(super) fn texts(&mut self, path: &str) -> Vec<String> {
        let list = self.get(path).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        list.iter().filter_map(|item| Some(item.as_str()?.to_owned())).collect()
    }

    /// A time in seconds. Synapse counts in milliseconds, or has a unit behind the number.
    pub(super) fn seconds(&mut self, path: &str) -> Option<u64> {
        seconds(self.get(path)?)
    }

    /// A size in bytes.
    pub(super) fn bytes(&mut self, path: &str) -> Option<u64> {
        bytes(self.get(path)?)
    }

    /// Proposes a setting, with where it is from.
    pub(super) fn set(
        &mut self,
        section: &'static str,
        key: &'static str,
        value: &Value,
        from: &str,
    ) {
        let comment = match from {
            "" => String::new(),
            from if self.from == From::Synapse => format!("From `{from}`."),
            from => format!("From `{from}` of {}.", self.from.name()),
        };
        self.set_as(section, key, value, comment);
    }

    /// Proposes a setting, with a comment of its own. Of two for one key, the later one counts.
    pub(super) fn set_as(
        &mut self,
        section: &'static str,
        key: &'static str,
        value: &Value,
        comment: String,
    ) {
        self.lines.retain(|(of, name, ..)| (*of, *name) != (section, key));
        self.lines.push((section, key, toml(value), comment));
    }

    /// The same if homeserver.yaml has it, with the value as it is.
    pub(super) fn copy(&mut self, path: &str, section: &'static str, key: &'static str) {
        if let Some(value) = self.get(path).filter(|value| !value.is_object()) {
            self.set(section, key, value, path);
        }
    }

    /// The same for a time.
    pub(super) fn copy_seconds(&mut self, path: &str, section: &'static str, key: &'static str) {
        if let Some(seconds) = self.seconds(path) {
            self.set(section, key, &seconds.into(), path);
        }
    }

    /// Says of a setting that it does not come along, and what that means.
    pub(super) fn leave(&mut self, path: &str, why: &str) {
        self.used.insert(path.to_owned());
        self.left.push((path.to_owned(), why.to_owned()));
    }

    /// Puts a text of homeserver.yaml into a file of its own, and returns the path.
    pub(super) fn file(&mut self, name: &str, text: String) -> PathBuf {
        let path = self.folder.join(name);
        self.files.push(ProposedFile { path: path.clone(), text });
        path
    }

    /// The configuration, and the files that it names.
    pub(super) fn finish(mut self) -> (String, Vec<ProposedFile>) {
        let mut text = String::from(
            "# Made from homeserver.yaml by `logcabin import-synapse`. Read it before you use it.\n\
             # `logcabin config` explains every setting. It holds secrets.\n",
        );
        for section in SECTIONS {
            let lines: Vec<_> = self.lines.iter().filter(|(of, ..)| *of == section).collect();
            if lines.is_empty() {
                continue;
            }
            let _ = writeln!(text, "\n[{section}]");
            for (_, key, value, comment) in lines {
                if !comment.is_empty() {
                    let _ = writeln!(text, "# {}", one_line(comment));
                }
                let _ = writeln!(text, "{key} = {value}");
            }
        }
        self.say_what_is_left();
        text.push_str(&self.said);
        (text, self.files)
    }

    fn say_what_is_left(&mut self) {
        let unused = self.unused();
        let is_needless = |path: &String| needless(self.from).contains(&path.as_str());
        let (needless, unused): (Vec<_>, Vec<_>) = unused.into_iter().partition(is_needless);
        let mut left = std::mem::take(&mut self.left);
        left.extend(unused.into_iter().map(|path| {
            let why = self.from.why_left(&path).to_owned();
            (path, why)
        }));
        let (text, name) = (&mut self.said, self.from.name());
        if !left.is_empty() {
            let _ = writeln!(text, "\n# What {name} says, and what has no equivalent here:\n#");
            for (path, why) in &left {
                let _ = writeln!(text, "# {}: {}", one_line(path), one_line(why));
            }
        }
        if !needless.is_empty() {
            let of = match self.from {
                From::Synapse => String::new(),
                From::Mas => format!(" of {name}"),
            };
            let _ = writeln!(text, "\n# Not needed{of} here, or read by the import itself:\n#");
            for path in &needless {
                let _ = writeln!(text, "# {}", one_line(path));
            }
        }
    }

    /// What was not used: settings, and those of a group of which others were.
    fn unused(&self) -> Vec<String> {
        let mut unused = Vec::new();
        for (name, value) in self.yaml.into_iter().flatten() {
            if self.used.contains(name) || value.is_null() {
                continue;
            }
            let inside = format!("{name}.");
            match value.as_object() {
                Some(group) if self.used.iter().any(|path| path.starts_with(&inside)) => {
                    let paths = group.keys().map(|key| format!("{inside}{key}"));
                    unused.extend(paths.filter(|path| {
                        let within = format!("{path}.");
                        !self.used.iter().any(|used| used == path || used.starts_with(&within))
                    }));
                }
                _ => unused.push(name.clone()),
            }
        }
        unused
    }
}

/// A value in TOML. Of what homeserver.yaml can hold, and settings can be, JSON is written alike.
fn toml(value: &Value) -> String {
    // The only character that JSON leaves as it is and TOML does not.
    value.to_string().replace('\u{7f}', "\\u007f")
}

/// What stands in a comment must not end it.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A time as Synapse reads it. One that is not whole seconds is not made shorter.
fn seconds(value: &Value) -> Option<u64> {
    Some(milliseconds(value)?.div_ceil(1_000))
}

/// A time as Synapse reads it, in milliseconds.
pub(crate) fn milliseconds(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => {
            let text = text.trim();
            let (number, unit) = match text.char_indices().last() {
                Some((at, 's')) => (&text[..at], 1_000),
                Some((at, 'm')) => (&text[..at], 60_000),
                Some((at, 'h')) => (&text[..at], 3_600_000),
                Some((at, 'd')) => (&text[..at], 86_400_000),
                Some((at, 'w')) => (&text[..at], 7 * 86_400_000),
                Some((at, 'y')) => (&text[..at], 365 * 86_400_000),
                _ => (text, 1),
            };
            number.trim().parse::<u64>().ok()?.checked_mul(unit)
        }
        other => other.as_u64(),
    }
}

/// A size as Synapse reads it.
fn bytes(value: &Value) -> Option<u64> {
    let Value::String(text) = value else { return value.as_u64() };
    let text = text.trim();
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'K')) => (&text[..at], 1 << 10),
        Some((at, 'M')) => (&text[..at], 1 << 20),
        Some((at, 'G')) => (&text[..at], 1 << 30),
        Some((at, 'T')) => (&text[..at], 1 << 40),
        _ => (text, 1),
    };
    number.trim().parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_and_sizes_are_read_as_synapse_reads_them() {
        for (value, expected) in [
            (json!("5m"), Some(300)),
            (json!("1y"), Some(31_536_000)),
            (json!(1500), Some(2)),
            (json!("2000"), Some(2)),
            (json!("x"), None),
            (json!(-1), None),
            (json!("99999999999999999999d"), None),
        ] {
            assert_eq!(seconds(&value), expected, "{value}");
        }
        for (value, expected) in [
            (json!("50M"), Some(50 << 20)),
            (json!("10K"), Some(10 << 10)),
            (json!(7), Some(7)),
            (json!("M"), None),
        ] {
            assert_eq!(bytes(&value), expected, "{value}");
        }
    }
}
