//! Third-party identifiers as people and clients write them: their canonical forms, and which of
//! them this server accepts (appendices, "3PID Types").

use std::str::FromStr;

use lettre::Address;
use phonenumber::country;
use thiserror::Error;

use crate::threepid::{Medium, Threepid};
use logcabin_base::{glob::Glob, limits};

/// Why a text is not a third-party identifier.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Invalid {
    #[error("This is not an e-mail address.")]
    Email,
    #[error("`country` is not two capital letters that stand for a country.")]
    Country,
    #[error("This is not a phone number.")]
    Phone,
    #[error("`medium` is neither `email` nor `msisdn`.")]
    Medium,
}

/// The e-mail address `written`. The part before the `@` is case-folded (Unicode's full case
/// folding: `ß` becomes `ss`); the part after it is a domain, in lower case and in ASCII.
/// Surrounding blanks are ignored. Addresses that need quotes are refused.
///
/// # Errors
/// When it is not an address, or has an IP address in place of a domain.
pub fn email(written: &str) -> Result<Threepid, Invalid> {
    let written = written.trim();
    if written.len() > limits::EMAIL_BYTES {
        return Err(Invalid::Email);
    }
    let address: Address = written.parse().map_err(|_| Invalid::Email)?;
    // With quotes, one mailbox has any number of spellings: it could belong to many users, and
    // receive as many messages.
    if address.user().starts_with('"') {
        return Err(Invalid::Email);
    }
    let user = caseless::default_case_fold_str(address.user());
    let domain = domain(address.domain()).ok_or(Invalid::Email)?;
    let address = format!("{user}@{domain}");
    // Folding and IDNA make some addresses longer.
    let fits = address.len() <= limits::EMAIL_BYTES && address.parse::<Address>().is_ok();
    fits.then_some(Threepid { medium: Medium::Email, address }).ok_or(Invalid::Email)
}

/// The domain in ASCII and lower case, by the rules for web addresses; `None` for an IP address.
fn domain(written: &str) -> Option<String> {
    let url = url::Url::parse(&format!("http://{written}/")).ok()?;
    let plain = url.username().is_empty() && url.port().is_none() && url.path() == "/";
    let host = url.host_str().filter(|_| plain)?;
    // A host that ends in a number is an IP address, or was meant to be one.
    let last = host.trim_end_matches('.').rsplit('.').next()?;
    let number = host.starts_with('[') || last.bytes().all(|byte| byte.is_ascii_digit());
    (!number).then(|| host.to_owned())
}

/// The phone number `written`, as it is dialled from `country`.
pub fn phone(country: &str, written: &str) -> Result<Threepid, Invalid> {
    let country = country::Id::from_str(country).map_err(|_| Invalid::Country)?;
    number(Some(country), written)
}

fn number(country: Option<country::Id>, written: &str) -> Result<Threepid, Invalid> {
    if written.len() > limits::PHONE_BYTES {
        return Err(Invalid::Phone);
    }
    let number = phonenumber::parse(country, written.trim()).map_err(|_| Invalid::Phone)?;
    if !number.is_valid() || number.extension().is_some() {
        return Err(Invalid::Phone);
    }
    let digits = number.format().mode(phonenumber::Mode::E164).to_string();
    let address: String = digits.chars().filter(char::is_ascii_digit).collect();
    Ok(Threepid { medium: Medium::Msisdn, address })
}

/// The identifier that a client gives in its canonical form, or nearly so.
pub fn parse(medium: &str, address: &str) -> Result<Threepid, Invalid> {
    match medium {
        "email" => email(address),
        // The canonical form lacks the `+` that international numbers begin with elsewhere.
        "msisdn" => number(None, &format!("+{}", address.trim().trim_start_matches('+'))),
        _ => Err(Invalid::Medium),
    }
}

/// Whether this is valid as a client's secret or as the id of a validation session (client-server
/// API, `client_secret`).
pub fn is_opaque_id(text: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b".=_-".contains(&byte);
    (1..=255).contains(&text.len()) && text.bytes().all(fine)
}

/// A set of identifiers: those of a medium that match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    medium: Medium,
    glob: String,
}

impl Pattern {
    pub fn matches(&self, threepid: &Threepid) -> bool {
        self.medium == threepid.medium
            && Glob::new(&self.glob).is_some_and(|glob| glob.is(&threepid.address))
    }
}

impl FromStr for Pattern {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (medium, glob) = text.split_once(':').ok_or(())?;
        let medium = match medium {
            "email" => Medium::Email,
            "msisdn" => Medium::Msisdn,
            _ => return Err(()),
        };
        let usable = !glob.is_empty() && Glob::new(glob).is_some();
        usable.then(|| Self { medium, glob: glob.to_owned() }).ok_or(())
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.medium.as_str(), self.glob)
    }
}

/// Whether this server accepts an identifier: it is not denied, and if any of its medium are
/// allowed by name, it is one of these.
pub fn is_allowed(threepid: &Threepid, allow: &[Pattern], deny: &[Pattern]) -> bool {
    let mut allow = allow.iter().filter(|pattern| pattern.medium == threepid.medium).peekable();
    let allowed = allow.peek().is_none() || allow.any(|pattern| pattern.matches(threepid));
    allowed && !deny.iter().any(|pattern| pattern.matches(threepid))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(result: Result<Threepid, Invalid>) -> Option<String> {
        result.ok().map(|threepid| threepid.address)
    }

    #[test]
    fn an_email_address_has_one_form() {
        for (written, canonical) in [
            ("ann@example.org", "ann@example.org"),
            (" Ann.B+Tag@Example.ORG\n", "ann.b+tag@example.org"),
            // The example of the specification.
            ("Strau\u{df}@Example.com", "strauss@example.com"),
            ("ann@b\u{fc}cher.example", "ann@xn--bcher-kva.example"),
            ("ann@B\u{dc}CHER.example", "ann@xn--bcher-kva.example"),
            // The Turkish dotless i, which is a different letter.
            ("m\u{131}ke@example.org", "m\u{131}ke@example.org"),
        ] {
            assert_eq!(address(email(written)).as_deref(), Some(canonical), "{written}");
        }
    }

    #[test]
    fn invalid_email_addresses_are_refused() {
        let long = format!("{}@example.org", "x".repeat(250));
        for written in [
            "",
            "ann",
            "@example.org",
            "ann@",
            "ann@example.org ann@example.org",
            "a b@example.org",
            "Ann <ann@example.org>",
            "ann@exa mple.org",
            "ann@127.0.0.1",
            "ann@[127.0.0.1]",
            "ann@[::1]",
            "ann@0x7f.1",
            "ann@example.org:25",
            "ann@example.org.",
            "\"ann\"@example.org",
            "\"a\\nn\"@example.org",
            "ann@example.org/x",
            "ann\r\n@example.org",
            "ann@example.org\r\nBcc: bob@example.org",
            &long,
        ] {
            assert_eq!(email(written), Err(Invalid::Email), "{written:?}");
        }
    }

    #[test]
    fn a_phone_number_is_read_as_dialled_from_its_country() {
        for (country, written, canonical) in [
            ("GB", "07400 123456", "447400123456"),
            ("DE", "+44 7400 123456", "447400123456"),
            ("US", "(201) 555-0123", "12015550123"),
            ("DE", "01512 3456789", "4915123456789"),
            ("FR", "06 12 34 56 78", "33612345678"),
        ] {
            assert_eq!(address(phone(country, written)).as_deref(), Some(canonical), "{written}");
            assert_eq!(address(parse("msisdn", canonical)).as_deref(), Some(canonical));
            assert_eq!(
                address(parse("msisdn", &format!("+{canonical}"))).as_deref(),
                Some(canonical)
            );
        }
        assert_eq!(phone("gb", "07400 123456"), Err(Invalid::Country));
        assert_eq!(phone("XX", "07400 123456"), Err(Invalid::Country));
        for written in ["", "12", "hello", "+", "0", "07400 123456 07400 123456 07400", "+999 123"]
        {
            assert_eq!(phone("GB", written), Err(Invalid::Phone), "{written:?}");
        }
        assert_eq!(parse("fax", "447400123456"), Err(Invalid::Medium));
    }

    #[test]
    fn secrets_and_ids_have_1_to_255_of_their_characters() {
        for good in ["a", "AZaz09.=_-", &"x".repeat(255)] {
            assert!(is_opaque_id(good), "{good}");
        }
        for bad in ["", "a b", "\u{e4}", "a/b", "a\n", &"x".repeat(256)] {
            assert!(!is_opaque_id(bad), "{bad}");
        }
    }

    #[test]
    fn what_is_denied_is_not_allowed() {
        let patterns = |texts: &[&str]| -> Vec<Pattern> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let ann = email("ann@example.org").unwrap();
        let phone = phone("GB", "07400 123456").unwrap();
        assert!(is_allowed(&ann, &[], &[]));
        assert!(is_allowed(&ann, &patterns(&["email:*@example.org"]), &[]));
        assert!(!is_allowed(&ann, &patterns(&["email:*@example.com"]), &[]));
        assert!(is_allowed(&ann, &patterns(&["msisdn:49*"]), &[]));
        assert!(!is_allowed(&phone, &patterns(&["msisdn:49*", "email:*"]), &[]));
        let deny = patterns(&["email:ann@*"]);
        assert!(!is_allowed(&ann, &patterns(&["email:*@example.org"]), &deny));
        assert!(is_allowed(&phone, &[], &deny));
        for bad in ["", "*", "fax:*", "email:"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn canonical_forms_are_stable(written in "\\PC{0,40}(@\\PC{0,40})?", from in "[A-Z]{2}") {
            if let Ok(found) = email(&written) {
                prop_assert_eq!(email(&found.address), Ok(found));
            }
            let _ = phone(&from, &written);
        }

        #[test]
        fn no_number_makes_the_parser_panic(written in "[+0-9();=a-z. \\-]{0,64}") {
            if let Ok(found) = phone("GB", &written) {
                prop_assert!(found.address.bytes().all(|byte| byte.is_ascii_digit()));
            }
            let _ = parse("msisdn", &written);
        }
    }
}
