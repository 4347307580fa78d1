//! Certificates in files, and how long they hold.

use std::path::Path;

use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, pem::PemObject as _};

/// The certificates in a PEM file.
///
/// # Errors
/// When it cannot be read, or holds none; the text names the file.
pub fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unusable = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unusable(&error))?;
    if found.is_empty() {
        return Err(unusable(&"it holds no certificate"));
    }
    Ok(found)
}

/// From when to when a certificate holds, in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub from_s: i64,
    pub until_s: i64,
}

/// How long a certificate holds; `None` if it is none (RFC 5280, section 4.1).
pub fn validity(certificate: &CertificateDer<'_>) -> Option<Validity> {
    let times = inner(element(after_issuer(certificate)?)?)?;
    let from = element(times)?;
    let until = element(from.2)?;
    Some(Validity { from_s: seconds(from)?, until_s: seconds(until)? })
}

/// The last common name in the subject of a certificate; `None` if there is none.
pub fn common_name<'a>(certificate: &'a CertificateDer<'_>) -> Option<&'a str> {
    const SET: u8 = 0x31;
    const COMMON_NAME: &[u8] = &[0x55, 4, 3];
    let (_, _, subject) = element(after_issuer(certificate)?)?;
    let mut rest = inner(element(subject)?)?;
    let mut found = None;
    while !rest.is_empty() {
        let (tag, mut attributes, after) = element(rest)?;
        rest = after;
        while tag == SET && !attributes.is_empty() {
            let attribute = element(attributes)?;
            attributes = attribute.2;
            let (_, kind, value) = element(inner(attribute)?)?;
            if kind == COMMON_NAME {
                found = std::str::from_utf8(element(value)?.1).ok();
            }
        }
    }
    found
}

/// The public key of a certificate, with its algorithm.
pub fn public_key<'a>(certificate: &'a CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'a>> {
    let (_, _, subject) = element(after_issuer(certificate)?)?;
    let (_, _, key) = element(subject)?;
    let (_, _, after) = element(key)?;
    Some(SubjectPublicKeyInfoDer::from(key.get(..key.len() - after.len())?))
}

/// What follows the issuer: the times, the subject and its key.
fn after_issuer<'a>(certificate: &'a CertificateDer<'_>) -> Option<&'a [u8]> {
    const VERSION: u8 = 0xa0;
    let mut fields = inner(element(inner(element(certificate)?)?)?)?;
    if let (VERSION, _, rest) = element(fields)? {
        fields = rest;
    }
    // The serial number, the algorithm and the issuer.
    for _ in 0..3 {
        fields = element(fields)?.2;
    }
    Some(fields)
}

/// What is in a sequence.
fn inner((tag, content, _): Element<'_>) -> Option<&[u8]> {
    const SEQUENCE: u8 = 0x30;
    (tag == SEQUENCE).then_some(content)
}

/// The tag and the content of an element of DER, and what follows it.
type Element<'a> = (u8, &'a [u8], &'a [u8]);

fn element(input: &[u8]) -> Option<Element<'_>> {
    let (tag, rest) = input.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match usize::from(*first) {
        length @ 0..0x80 => (length, rest),
        long => {
            let (bytes, rest) = rest.split_at_checked(long & 0x7f)?;
            let fits = (1..=4).contains(&bytes.len());
            let length = bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            (fits.then_some(length)?, rest)
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// A time, in seconds since the Unix epoch.
fn seconds((tag, content, _): Element<'_>) -> Option<i64> {
    const UTC_TIME: u8 = 0x17;
    const GENERALIZED_TIME: u8 = 0x18;
    let digits = std::str::from_utf8(content).ok()?.strip_suffix('Z')?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = digits.split_at_checked(2)?;
            let year: i64 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = digits.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    if rest.len() != 10 {
        return None;
    }
    let part = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
    let (month, day) = (part(0)?, part(2)?);
    if !(1..=12).contains(&month) {
        return None;
    }
    // The year begins in March: then the day of leap years is its last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let days = days - 719_468;
    Some(days * 86_400 + part(4)? * 3600 + part(6)? * 60 + part(8)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_in_which_a_certificate_holds_is_read() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["example.org".to_owned()]).unwrap();
        // One in the short form, and one in the long one.
        params.not_before = rcgen::date_time_ymd(2024, 2, 29);
        params.not_after = rcgen::date_time_ymd(2109, 1, 16);
        let made = params.self_signed(&key).unwrap();
        let certificate = made.der();
        let expected = Validity { from_s: 1_709_164_800, until_s: 4_387_737_600 };
        assert_eq!(validity(certificate), Some(expected));
        for length in 0..certificate.len() {
            // Cut off anywhere, it is read as nothing, and never past its end.
            assert_eq!(validity(&CertificateDer::from(&certificate[..length])), None, "{length}");
        }
    }

    #[test]
    fn whom_a_certificate_is_for_is_read_with_the_key() {
        use rcgen::{DnType, PublicKeyData as _};
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Example");
        let nameless = params.self_signed(&key).unwrap();
        assert_eq!(common_name(nameless.der()), None);
        params.distinguished_name.push(DnType::CommonName, "db.example");
        let made = params.self_signed(&key).unwrap();
        let certificate = made.der();
        assert_eq!(common_name(certificate), Some("db.example"));
        let found = public_key(certificate).expect("a key");
        assert_eq!(found.as_ref(), key.subject_public_key_info());
        for length in 0..certificate.len() {
            let cut = CertificateDer::from(&certificate[..length]);
            assert_eq!((common_name(&cut), public_key(&cut)), (None, None), "{length}");
        }
    }

    #[test]
    fn times_are_read_in_both_forms() {
        let of = |tag, text: &str| seconds((tag, text.as_bytes(), &[]));
        assert_eq!(of(0x17, "700101000000Z"), Some(0));
        assert_eq!(of(0x17, "240229120000Z"), Some(1_709_208_000));
        assert_eq!(of(0x18, "20240229120000Z"), Some(1_709_208_000));
        for bad in ["", "Z", "2402291200Z", "240229120000", "24022912000xZ", "241329120000Z"] {
            assert_eq!(of(0x17, bad), None, "{bad}");
        }
        assert_eq!(of(0x04, "240229120000Z"), None);
    }
}
