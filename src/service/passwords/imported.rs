//! Password hashes of other servers, in the forms in which these store them.
//!
//! They are as strong as those servers made them, and a check takes as long as that: whoever
//! guesses can tell an account that was imported and has not logged in since from others.

use std::{borrow::Cow, io};

use argon2::{Algorithm, Argon2, Params, Version};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};
use subtle::ConstantTimeEq as _;
use unicode_normalization::UnicodeNormalization as _;

use super::Denied;
use logcabin_base::limits;
use logcabin_config::SecretFile;
use logcabin_record::command::PasswordFlags;

/// How much of a password counts for bcrypt, in bytes.
const BCRYPT_BYTES: usize = 72;

/// The secrets that were added to passwords: one to each. A source may have used others over time,
/// and its hashes do not say which.
pub(super) struct Peppers(Vec<Vec<u8>>);

/// What comes before a secret in base64 in their file.
const IN_BASE64: &str = "base64:";

impl Peppers {
    pub(super) fn read(file: &SecretFile) -> io::Result<Self> {
        Self::parse(&file.read()?)
    }

    fn parse(text: &str) -> io::Result<Self> {
        let pepper = |line: &str| match line.strip_prefix(IN_BASE64) {
            None => Ok(line.as_bytes().to_vec()),
            Some(encoded) => STANDARD
                .decode(encoded.trim())
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        };
        text.lines().map(pepper).collect::<io::Result<_>>().map(Self)
    }
}

/// A password hash of another server.
pub(super) struct ImportedHash<'a> {
    flags: PasswordFlags,
    form: Form<'a>,
}

enum Form<'a> {
    /// `$2b$<cost>$<salt and hash>`.
    Bcrypt(&'a str),
    /// `$argon2id$v=19$m=<KiB>,t=<passes>,p=<lanes>$<salt>$<hash>`.
    Argon2 { version: Version, params: Params, salt: Vec<u8>, hash: Vec<u8> },
    /// `$pbkdf2-sha256$i=<iterations>,l=<length>$<salt>$<hash>`, or with SHA-512.
    Pbkdf2 { is_512: bool, iterations: u32, salt: Vec<u8>, hash: Vec<u8> },
}

impl<'a> ImportedHash<'a> {
    /// The hash in this stored form; `None` for hashes of this server, for unknown forms, and for
    /// hashes that demand too much.
    pub(super) fn parse(stored: &'a str) -> Option<Self> {
        let (flags, hash) = PasswordFlags::split(stored)?;
        let mut parts = hash.strip_prefix('$')?.split('$');
        let form = match parts.next()? {
            "2a" | "2b" | "2y" => {
                let cost: u32 = parts.next()?.parse().ok()?;
                if cost > limits::IMPORTED_BCRYPT_COST || !hash.is_ascii() {
                    return None;
                }
                return Some(Self { flags, form: Form::Bcrypt(hash) });
            }
            "argon2id" => {
                let version = parts.next()?.strip_prefix("v=")?.parse::<u32>().ok()?;
                let version = Version::try_from(version).ok()?;
                let costs = parts.next()?;
                let memory = number(costs, "m", limits::IMPORTED_ARGON2_KIB)?;
                let passes = number(costs, "t", limits::IMPORTED_ARGON2_PASSES)?;
                let lanes = number(costs, "p", limits::IMPORTED_ARGON2_LANES)?;
                if u64::from(memory) * u64::from(passes) > limits::IMPORTED_ARGON2_WORK_KIB {
                    return None;
                }
                let (salt, hash) = (bytes(parts.next()?)?, bytes(parts.next()?)?);
                let params = Params::new(memory, passes, lanes, Some(hash.len())).ok()?;
                Form::Argon2 { version, params, salt, hash }
            }
            name @ ("pbkdf2-sha256" | "pbkdf2-sha512") => {
                let most = limits::IMPORTED_PBKDF2_ITERATIONS;
                let iterations = number(parts.next()?, "i", most)?;
                let (salt, hash) = (bytes(parts.next()?)?, bytes(parts.next()?)?);
                let is_512 = name == "pbkdf2-sha512";
                // Each further block would take as long as the first.
                let digest_bytes = if is_512 { 64 } else { 32 };
                if hash.len() > digest_bytes {
                    return None;
                }
                Form::Pbkdf2 { is_512, iterations, salt, hash }
            }
            _ => return None,
        };
        parts.next().is_none().then_some(Self { flags, form })
    }

    /// Whether it is the hash of this password.
    ///
    /// # Errors
    /// When it needs a pepper, and there is none: then nobody's password can be checked.
    pub(super) fn is_of(&self, password: &str, peppers: Option<&Peppers>) -> Result<bool, Denied> {
        let text: Cow<'_, str> = match self.flags.nfkc {
            true => password.nfkc().collect(),
            false => password.into(),
        };
        Ok(match (self.flags.pepper, peppers) {
            (false, _) => self.is_with(&text, b""),
            (true, Some(Peppers(peppers))) => {
                peppers.iter().any(|pepper| self.is_with(&text, pepper))
            }
            (true, None) => return Err(Denied::NoPepper),
        })
    }

    /// Whether it is the hash of this text with this pepper.
    fn is_with(&self, text: &str, pepper: &[u8]) -> bool {
        let peppered = || [text.as_bytes(), pepper].concat();
        match &self.form {
            Form::Bcrypt(hash) => {
                let mut input = peppered();
                input.truncate(BCRYPT_BYTES);
                // What is not a hash is nobody's.
                bcrypt::verify(input, hash).unwrap_or(false)
            }
            Form::Argon2 { version, params, salt, hash } => {
                let (secret, params) = (pepper, params.clone());
                let argon2 = match secret {
                    [] => Ok(Argon2::new(Algorithm::Argon2id, *version, params)),
                    _ => Argon2::new_with_secret(secret, Algorithm::Argon2id, *version, params),
                };
                let mut found = vec![0; hash.len()];
                let done = argon2.and_then(|argon2| {
                    argon2.hash_password_into(text.as_bytes(), salt, &mut found)
                });
                done.is_ok() && bool::from(found.ct_eq(hash))
            }
            Form::Pbkdf2 { is_512, iterations, salt, hash } => {
                let (input, mut found) = (peppered(), vec![0; hash.len()]);
                match is_512 {
                    true => {
                        pbkdf2::pbkdf2_hmac::<sha2::Sha512>(&input, salt, *iterations, &mut found);
                    }
                    false => {
                        pbkdf2::pbkdf2_hmac::<sha2::Sha256>(&input, salt, *iterations, &mut found);
                    }
                }
                bool::from(found.ct_eq(hash))
            }
        }
    }
}

/// Whether a password can be checked with this hash of another server.
#[must_use]
pub fn is_usable(stored: &str) -> bool {
    ImportedHash::parse(stored).is_some()
}

/// The number with this name in `m=1,t=2`, from 1 to `most`.
fn number(list: &str, name: &str, most: u32) -> Option<u32> {
    let mut members = list.split(',').filter_map(|member| member.split_once('='));
    let (_, value) = members.find(|(found, _)| *found == name)?;
    value.parse().ok().filter(|value| (1..=most).contains(value))
}

/// A salt or a hash.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let bytes = STANDARD_NO_PAD.decode(text).ok()?;
    (1..=limits::IMPORTED_HASH_BYTES).contains(&bytes.len()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: &str = "correct horse";

    fn is_of(stored: &str, password: &str, pepper: Option<&str>) -> bool {
        let peppers = pepper.map(|text| Peppers::parse(text).unwrap());
        ImportedHash::parse(stored).unwrap().is_of(password, peppers.as_ref()) == Ok(true)
    }

    /// Made with Python's bcrypt and argon2, and with its `hashlib`.
    #[test]
    fn hashes_of_other_servers_are_checked_as_they_do() {
        const SALT: &str = "c29tZXNhbHRzb21lc2FsdA";
        let argon2 = |hash: &str| format!("$argon2id$v=19$m=64,t=2,p=1${SALT}${hash}");
        let pbkdf2 = |name: &str, hash: &str| format!("$pbkdf2-{name}$i=1000,l=32${SALT}${hash}");
        let plain = [
            "$2b$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e".to_owned(),
            "$2a$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e".to_owned(),
            "$2y$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e".to_owned(),
            argon2("uL2hQzJmxaz0Tfm2KK6uNjA0+UvbrHBEBwVmJYrNXCE"),
            pbkdf2("sha256", "f2yJk+Dph1FxQ+yhQ5KLmg1c5wfFtFU14dLQONYBoAE"),
            pbkdf2("sha512", "RbkohYpABhrVf6dAjV1mgswjeaDcEw/Z9Lqqoc7ZO6c"),
        ];
        for hash in plain {
            for flags in ["{}", "{nfkc}"] {
                let stored = format!("{flags}{hash}");
                assert!(is_of(&stored, RIGHT, None), "{stored}");
                assert!(is_of(&stored, RIGHT, Some("unused")), "{stored}");
                assert!(!is_of(&stored, "wrong horse", None), "{stored}");
            }
            assert!(!is_of(&format!("{{pepper}}{hash}"), RIGHT, Some("pfeffer")), "{hash}");
        }
        let peppered = [
            "$2b$04$abcdefghijklmnopqrstuupayQdzyITqVnkTh96tjMrRDj3X.Q5bC".to_owned(),
            argon2("uATliaLpaaYUwwfny9VPNjUvEka4GwwJcAVfZVa+fhU"),
            pbkdf2("sha256", "GZLFg8CLa/dowlTbsrhnrtQ7D4tg44UpptuMH0Yb7+s"),
            pbkdf2("sha512", "ytyLyPePpZd1UKPFJ6sYjr35KGWeIKa6LHcJ17zK6FU"),
        ];
        for hash in peppered {
            let stored = format!("{{nfkc,pepper}}{hash}");
            assert!(is_of(&stored, RIGHT, Some("pfeffer")), "{stored}");
            // One of several, and one that no line of text is.
            assert!(is_of(&stored, RIGHT, Some("salz\npfeffer")), "{stored}");
            assert!(is_of(&stored, RIGHT, Some("base64:cGZlZmZlcg==")), "{stored}");
            for pepper in [None, Some(""), Some("salz"), Some("base64:cGZlZmZlcgo=")] {
                assert!(!is_of(&stored, RIGHT, pepper), "{stored} {pepper:?}");
            }
        }
    }

    #[test]
    fn letters_that_look_alike_are_the_same_if_they_were_for_the_other_server() {
        let hash = "$2b$04$abcdefghijklmnopqrstuulsG1KjRweKkJbJ9opioi3hV27DBmbPu";
        let (as_is, folded) = ("\u{fb01}ne \u{2460} \u{212b}", "fine 1 \u{c5}");
        assert!(is_of(&format!("{{nfkc}}{hash}"), as_is, None));
        assert!(is_of(&format!("{{nfkc}}{hash}"), folded, None));
        assert!(!is_of(&format!("{{}}{hash}"), as_is, None));
        assert!(is_of(&format!("{{}}{hash}"), folded, None));
    }

    #[test]
    fn bytes_beyond_72_do_not_count_for_bcrypt() {
        // Of `x` 70 times and the pepper.
        let stored = "{nfkc,pepper}$2b$04$abcdefghijklmnopqrstuuGBPR0TkIFKD6B13xa6j7tTH5/iW07NS";
        let password = "x".repeat(70);
        for pepper in ["pfeffer", "pfanne", "pf"] {
            assert!(is_of(stored, &password, Some(pepper)), "{pepper}");
        }
        assert!(
            !is_of(stored, &password, Some("p")) && !is_of(stored, &"x".repeat(69), Some("pf"))
        );
        // `é` 40 times, of which 36 count.
        let stored = "{nfkc}$2b$04$bcdefghijklmnopqrstuvu3EmwBmGFE1BzcYVNfMivYzVORyO03yG";
        assert!(is_of(stored, &"é".repeat(40), None) && is_of(stored, &"é".repeat(36), None));
        assert!(!is_of(stored, &"é".repeat(35), None));
    }

    #[test]
    fn what_demands_too_much_or_is_no_hash_is_nobodys() {
        let salt = "c29tZXNhbHRzb21lc2FsdA$uL2hQzJmxaz0Tfm2KK6uNjA0+UvbrHBEBwVmJYrNXCE";
        let long = STANDARD_NO_PAD.encode([0; 65]);
        for bad in [
            "$2b$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e".to_owned(),
            "{nfkc}".to_owned(),
            "{nfkc}$".to_owned(),
            "{md5}$2b$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e".to_owned(),
            "{nfkc}$2b$31$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e".to_owned(),
            "{nfkc}$2x$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e".to_owned(),
            format!("{{}}$argon2i$v=19$m=64,t=2,p=1${salt}"),
            format!("{{}}$argon2id$v=18$m=64,t=2,p=1${salt}"),
            format!("{{}}$argon2id$v=19$m=4294967295,t=2,p=1${salt}"),
            format!("{{}}$argon2id$v=19$m=64,t=4294967295,p=1${salt}"),
            format!("{{}}$argon2id$v=19$m=262144,t=5,p=1${salt}"),
            format!("{{}}$argon2id$v=19$m=131072,t=9,p=1${salt}"),
            format!("{{}}$argon2id$v=19$m=512,t=2,p=33${salt}"),
            format!("{{}}$argon2id$v=19$m=64,t=2,p=0${salt}"),
            format!("{{}}$argon2id$v=19$m=64,t=2${salt}"),
            format!("{{}}$argon2id$v=19$m=64,t=2,p=1${salt}$more"),
            format!("{{}}$argon2id$v=19$m=64,t=2,p=1$c29tZXNhbHQ${long}"),
            format!("{{}}$pbkdf2-sha256$i=0${salt}"),
            format!("{{}}$pbkdf2-sha256$i=2000001${salt}"),
            format!("{{}}$pbkdf2-sha256$i=1000$c29tZXNhbHQ${}", STANDARD_NO_PAD.encode([0; 33])),
            format!("{{}}$pbkdf2-sha512$i=1000$c29tZXNhbHQ${long}"),
            format!("{{}}$pbkdf2-sha1$i=1000${salt}"),
        ] {
            assert!(ImportedHash::parse(&bad).is_none(), "{bad}");
        }
        for good in [
            format!("{{}}$argon2id$v=19$m=262144,t=4,p=32${salt}"),
            format!("{{}}$argon2id$v=19$m=19456,t=32,p=1${salt}"),
            format!("{{}}$pbkdf2-sha256$i=2000000${salt}"),
            format!("{{}}$pbkdf2-sha512$i=1000$c29tZXNhbHQ${}", STANDARD_NO_PAD.encode([0; 64])),
        ] {
            assert!(ImportedHash::parse(&good).is_some(), "{good}");
        }
        assert!(!is_of("{nfkc}$2b$04$short", RIGHT, None));
        assert!(Peppers::parse("a\nbase64:?").is_err());
    }
}
