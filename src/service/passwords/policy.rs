//! The rules for new passwords.

use logcabin_base::limits;
use logcabin_config as config;

/// The most common passwords of at least the minimum length.
const GUESSED_FIRST: [&str; 24] = [
    "00000000",
    "11111111",
    "12341234",
    "12345678",
    "123123123",
    "123456789",
    "1234567890",
    "87654321",
    "987654321",
    "abcd1234",
    "asdfghjkl",
    "baseball",
    "changeme",
    "football",
    "iloveyou",
    "passw0rd",
    "password",
    "password1",
    "password123",
    "princess",
    "q1w2e3r4",
    "qwertyui",
    "qwertyuiop",
    "sunshine",
];

/// Why a password is not accepted.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum UnfitPassword {
    /// It is too easy to guess; the text says why.
    #[error("{0}")]
    Weak(String),
    /// It is too long to be hashed.
    #[error("This password is too long.")]
    TooLong,
}

/// Whether the user with this localpart may use `password`.
pub fn check(
    config: &config::Passwords,
    localpart: &str,
    password: &str,
) -> Result<(), UnfitPassword> {
    if password.len() > limits::PASSWORD_BYTES {
        return Err(UnfitPassword::TooLong);
    }
    let weak = |why: &str| Err(UnfitPassword::Weak(why.to_owned()));
    if password.chars().count() < config.min_length {
        return weak(&format!("A password has {} characters at least.", config.min_length));
    }
    let has = |is: fn(char) -> bool| password.chars().any(is);
    for (required, is, what) in [
        (config.require_letter, char::is_alphabetic as fn(char) -> bool, "a letter"),
        (config.require_lowercase, char::is_lowercase, "a small letter"),
        (config.require_uppercase, char::is_uppercase, "a capital letter"),
        (config.require_digit, char::is_numeric, "a digit"),
        (config.require_symbol, |c| !c.is_alphanumeric(), "something beside letters and digits"),
    ] {
        if required && !has(is) {
            return weak(&format!("A password has to have {what}."));
        }
    }
    let folded = password.to_lowercase();
    if !localpart.is_empty() && folded == localpart.to_lowercase() {
        return weak("A password cannot be the user's own name.");
    }
    let mut denied = config.denied.iter().map(|denied| denied.0.to_lowercase());
    let is_common = config.deny_common && GUESSED_FIRST.contains(&&*folded);
    if is_common || denied.any(|denied| denied == folded) {
        return weak("This password is among those that are guessed first.");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_config::{DeniedPassword, Passwords};

    #[test]
    fn by_default_a_password_is_long_enough_and_not_obvious() {
        let config = Passwords::default();
        let weak = |password| {
            matches!(check(&config, "hannah.smith", password), Err(UnfitPassword::Weak(_)))
        };
        assert!(weak("") && weak("1234567") && weak("PassWord") && weak("Hannah.Smith"));
        assert!(!weak("correct horse") && !weak("пароль и ключ"));
        let long = "x".repeat(limits::PASSWORD_BYTES + 1);
        assert_eq!(check(&config, "ann", &long), Err(UnfitPassword::TooLong));
    }

    #[test]
    fn the_list_of_common_passwords_can_be_turned_off() {
        let mut config = Passwords { deny_common: false, ..Passwords::default() };
        config.denied = vec![DeniedPassword("football".into())].into();
        let fits = |password| check(&config, "hannah.smith", password).is_ok();
        assert!(fits("password") && fits("Q1w2E3r4"));
        // All other rules still apply.
        assert!(!fits("Football") && !fits("hannah.smith") && !fits("passwor"));
    }

    type Change = fn(&mut Passwords);

    #[test]
    fn each_requirement_is_asked_for_when_it_is_set() {
        let fits = |change: Change, password: &str| {
            let mut config = Passwords::default();
            change(&mut config);
            check(&config, "ann", password).is_ok()
        };
        let cases: [(Change, &str, &str); 7] = [
            (|c| c.min_length = 12, "elevenchars", "twelve chars"),
            (|c| c.require_letter = true, "2837465928", "283746592a"),
            (|c| c.require_lowercase = true, "ABCDXYZWV", "ABCDXYZWv"),
            (|c| c.require_uppercase = true, "abcdxyzwv", "abcdxyzwV"),
            (|c| c.require_digit = true, "abcdxyzwv", "abcdxyzw1"),
            (|c| c.require_symbol = true, "abcdxyz12", "abcdxyz-1"),
            (
                |c| c.denied = vec![DeniedPassword("Company2026".into())].into(),
                "cOMPANY2026",
                "company2027",
            ),
        ];
        for (change, bad, good) in cases {
            assert!(!fits(change, bad), "{bad}");
            assert!(fits(change, good), "{good}");
            assert!(fits(|_| {}, bad), "{bad}");
        }
    }
}
