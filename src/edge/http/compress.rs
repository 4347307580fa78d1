//! Compression of responses: of text that is long enough, in the encoding that the client prefers.
//!
//! Short bodies are sent as they are: they would gain nothing. Tokens occur only in short answers,
//! so they never share a compressed body with text that somebody else may have chosen.

use std::{cmp::Reverse, io::Write as _};

use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, header::ACCEPT_ENCODING};

use logcabin_base::limits;

/// How a body can be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Encoding {
    /// RFC 8878. Preferred if a client accepts both: it is faster, and compresses better.
    Zstd,
    /// RFC 1952.
    Gzip,
}

impl Encoding {
    /// The encoding that the client prefers (RFC 9110, section 12.5.3), unless it prefers none.
    pub(super) fn asked(headers: &HeaderMap) -> Option<Self> {
        let (mut zstd, mut gzip, mut identity, mut other) = (None, None, None, None);
        for value in headers.get_all(ACCEPT_ENCODING) {
            // A header that is not text names no known encoding.
            for part in value.to_str().unwrap_or_default().split(',') {
                let (name, parameter) = part.split_once(';').unwrap_or((part, ""));
                let weight = weight(parameter);
                match name.trim().to_ascii_lowercase().as_str() {
                    "zstd" => zstd = Some(weight),
                    "gzip" | "x-gzip" => gzip = Some(weight),
                    "identity" => identity = Some(weight),
                    "*" => other = Some(weight),
                    _ => {}
                }
            }
        }
        let offers = [(Self::Zstd, zstd.or(other)), (Self::Gzip, gzip.or(other))];
        let offers = offers.into_iter().filter_map(|(encoding, weight)| Some((weight?, encoding)));
        let best = offers.filter(|(weight, _)| *weight > 0);
        let (weight, encoding) =
            best.min_by_key(|(weight, encoding)| (Reverse(*weight), *encoding))?;
        (weight >= identity.unwrap_or(0)).then_some(encoding)
    }

    pub(super) const fn name(self) -> HeaderValue {
        match self {
            Self::Zstd => HeaderValue::from_static("zstd"),
            Self::Gzip => HeaderValue::from_static("gzip"),
        }
    }

    /// The bytes, compressed at the fastest level; `None` if that makes them no shorter.
    pub(super) fn compress(self, bytes: &[u8]) -> Option<Vec<u8>> {
        let compressed = match self {
            Self::Zstd => zstd::bulk::compress(bytes, limits::COMPRESSION_LEVEL).ok()?,
            Self::Gzip => {
                let out = Vec::with_capacity(bytes.len() / 4);
                let level = Compression::new(limits::COMPRESSION_LEVEL.unsigned_abs());
                let mut encoder = GzEncoder::new(out, level);
                encoder.write_all(bytes).ok()?;
                encoder.finish().ok()?
            }
        };
        (compressed.len() < bytes.len()).then_some(compressed)
    }
}

/// The weight from `;q=`, in thousandths; the default if it is missing or invalid.
fn weight(parameter: &str) -> u16 {
    let value = parameter.trim().strip_prefix("q=").or_else(|| parameter.trim().strip_prefix("Q="));
    let Some((whole, fraction)) = value.map(|value| value.split_once('.').unwrap_or((value, "")))
    else {
        return 1000;
    };
    if whole.trim() != "0" {
        return 1000;
    }
    let digits = fraction.bytes().take(3).chain(std::iter::repeat(b'0'));
    digits.take(3).fold(0, |sum, digit| sum * 10 + u16::from(digit.saturating_sub(b'0').min(9)))
}

/// Whether bodies of this content type are worth compressing: text, but no uploaded files.
pub(super) fn is_text(content_type: &HeaderValue) -> bool {
    let name = content_type.to_str().unwrap_or_default();
    name.starts_with("application/json") || name.starts_with("text/html")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn asked(values: &[&'static str]) -> Option<Encoding> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(ACCEPT_ENCODING, HeaderValue::from_static(value));
        }
        Encoding::asked(&headers)
    }

    #[test]
    fn the_client_gets_its_preferred_encoding() {
        use Encoding::{Gzip, Zstd};
        for (values, wanted) in [
            (&[][..], None),
            (&[""], None),
            (&["gzip"], Some(Gzip)),
            (&["GZip, deflate, br"], Some(Gzip)),
            (&["gzip, deflate, br, zstd"], Some(Zstd)),
            (&["gzip", "zstd"], Some(Zstd)),
            (&["gzip;q=1.0, zstd;q=0.5"], Some(Gzip)),
            (&["gzip;q=0.5, zstd;q=0.501"], Some(Zstd)),
            (&["gzip; q=0"], None),
            (&["gzip;q=0.000"], None),
            (&["gzip;q=0, *"], Some(Zstd)),
            (&["*;q=0"], None),
            (&["*;q=0, gzip"], Some(Gzip)),
            (&["identity, gzip;q=0.5"], None),
            (&["identity;q=0.1, gzip;q=0.5"], Some(Gzip)),
            (&["br, deflate"], None),
            (&["gzip;q=nonsense"], Some(Gzip)),
            (&[";;;,,,q=", "gzip ;q=0.2"], Some(Gzip)),
        ] {
            assert_eq!(asked(values), wanted, "{values:?}");
        }
    }

    #[test]
    fn a_compressed_body_can_be_read_and_is_shorter() {
        let text = r#"{"type":"m.room.message","sender":"@ann:example.org"}"#.repeat(1000);
        let zstd = Encoding::Zstd.compress(text.as_bytes()).unwrap();
        assert_eq!(zstd::stream::decode_all(&*zstd).unwrap(), text.as_bytes());
        let gzip = Encoding::Gzip.compress(text.as_bytes()).unwrap();
        let mut read = String::new();
        flate2::read::GzDecoder::new(&*gzip).read_to_string(&mut read).unwrap();
        assert_eq!(read, text);
        assert!(zstd.len() < text.len() / 50 && gzip.len() < text.len() / 50);
        let noise: Vec<u8> =
            (0..5000_u32).flat_map(|n| *blake3::hash(&n.to_be_bytes()).as_bytes()).collect();
        for encoding in [Encoding::Zstd, Encoding::Gzip] {
            assert_eq!(encoding.compress(&noise), None);
        }
    }
}
