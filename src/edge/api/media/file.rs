//! A file as a response: conditional and range requests (RFC 9110, "Conditional Requests" and
//! "Range Requests"), and headers that keep browsers from executing it.

use std::{io, ops::Range, sync::Arc};

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{
        ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE,
        CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, IF_RANGE, RANGE,
        X_CONTENT_TYPE_OPTIONS,
    },
};
use ruma::http_headers::{ContentDisposition, ContentDispositionType};

use crate::http::{ApiError, Reply};
use logcabin_base::{limits, threads};
use logcabin_media::{Download, DownloadError};

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// What a browser may do with media, as the specification recommends (client-server API, "Content
/// repository").
const SECURITY_POLICY: &str = "sandbox; default-src 'none'; script-src 'none'; \
    plugin-types application/pdf; style-src 'unsafe-inline'; object-src 'self';";

const OCTETS: &str = "application/octet-stream";

/// Types that a browser may display inline (client-server API, "Serving inline content").
const INLINE: [&str; 26] = [
    "text/css",
    "text/plain",
    "text/csv",
    "application/json",
    "application/ld+json",
    "image/jpeg",
    "image/gif",
    "image/png",
    "image/apng",
    "image/webp",
    "image/avif",
    "video/mp4",
    "video/webm",
    "video/ogg",
    "video/quicktime",
    "audio/mp4",
    "audio/webm",
    "audio/aac",
    "audio/mpeg",
    "audio/ogg",
    "audio/wave",
    "audio/wav",
    "audio/x-wav",
    "audio/x-pn-wav",
    "audio/flac",
    "audio/x-flac",
];

/// The bytes of a file.
pub(super) enum Content {
    File(Download),
    /// In memory.
    Bytes(Bytes),
}

impl Content {
    fn length(&self) -> u64 {
        match self {
            Self::File(download) => download.length(),
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

/// The metadata of a file.
pub(super) struct FileMetadata {
    /// Its type, as given by the uploader.
    pub(super) content_type: Option<String>,
    pub(super) name: Option<String>,
    /// Its entity tag, without quotes: equal if and only if the bytes are.
    pub(super) tag: String,
    /// Whether everyone who knows its address may get it.
    pub(super) public: bool,
}

/// The requested part of a file.
#[derive(Debug, PartialEq, Eq)]
enum RequestedPart {
    Whole,
    Range(Range<u64>),
    /// A range outside of the file.
    Outside,
    /// Nothing, because the client has it already.
    Unchanged,
}

/// The response to a request with these headers.
pub(super) fn reply(
    content: Content,
    about: FileMetadata,
    request: &HeaderMap,
) -> Result<Reply, ApiError> {
    let length = content.length();
    let tag = format!("\"{}\"", about.tag);
    let (content_type, disposition) = typed(about.content_type, about.name);
    let reply = match part(request, &tag, length) {
        RequestedPart::Unchanged => {
            Reply::bytes(OCTETS, Bytes::new()).with_status(StatusCode::NOT_MODIFIED)
        }
        RequestedPart::Outside => {
            return Err(ApiError::bad_request("The file does not have this range.")
                .with_status(StatusCode::RANGE_NOT_SATISFIABLE)
                .with_header(ACCEPT_RANGES, HeaderValue::from_static("bytes"))
                .with_header(CONTENT_RANGE, header(format!("bytes */{length}"))?));
        }
        RequestedPart::Whole => body(content, 0..length).with_header(CONTENT_TYPE, content_type),
        RequestedPart::Range(range) => {
            let shown = format!("bytes {}-{}/{length}", range.start, range.end.saturating_sub(1));
            body(content, range)
                .with_status(StatusCode::PARTIAL_CONTENT)
                .with_header(CONTENT_RANGE, header(shown)?)
                .with_header(CONTENT_TYPE, content_type)
        }
    };
    // The content of an address never changes.
    let cache = match about.public {
        true => "public, max-age=31536000, immutable",
        false => "private, max-age=31536000, immutable",
    };
    Ok(reply
        .with_header(CONTENT_DISPOSITION, disposition)
        .with_header(ETAG, header(tag)?)
        .with_header(CACHE_CONTROL, HeaderValue::from_static(cache))
        .with_header(ACCEPT_RANGES, HeaderValue::from_static("bytes"))
        .with_header(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
        .with_header(CONTENT_SECURITY_POLICY, HeaderValue::from_static(SECURITY_POLICY))
        .with_header(RESOURCE_POLICY, HeaderValue::from_static("cross-origin")))
}

fn header(text: String) -> Result<HeaderValue, ApiError> {
    HeaderValue::try_from(text).map_err(ApiError::internal)
}

/// The content type and disposition headers.
fn typed(content_type: Option<String>, name: Option<String>) -> (HeaderValue, HeaderValue) {
    let content_type = content_type.unwrap_or_else(|| OCTETS.to_owned());
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let inline = INLINE.contains(&&*essence);
    let kind =
        if inline { ContentDispositionType::Inline } else { ContentDispositionType::Attachment };
    let name = name.map(|name| name.replace(char::is_control, ""));
    let disposition = ContentDisposition::new(kind).with_filename(name.filter(|n| !n.is_empty()));
    // A type that is invalid in a header is not displayed inline either.
    let content_type = HeaderValue::try_from(content_type);
    let attachment = HeaderValue::from_static("attachment");
    (
        content_type.unwrap_or_else(|_| HeaderValue::from_static(OCTETS)),
        HeaderValue::try_from(disposition.to_string()).unwrap_or(attachment),
    )
}

fn part(request: &HeaderMap, tag: &str, length: u64) -> RequestedPart {
    let text = |name| request.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let weak = |known: &str| known.trim().trim_start_matches("W/") == tag;
    if let Some(known) = text(IF_NONE_MATCH)
        && (known.trim() == "*" || known.split(',').any(weak))
    {
        return RequestedPart::Unchanged;
    }
    let Some(range) = text(RANGE) else { return RequestedPart::Whole };
    // A range of another version of the file is useless. (Dates are not used.)
    if request.contains_key(IF_RANGE) && text(IF_RANGE).is_none_or(|known| known.trim() != tag) {
        return RequestedPart::Whole;
    }
    one_range(range, length)
}

/// The requested range. A malformed range, and several at once, are answered with the whole file,
/// which is allowed.
fn one_range(range: &str, length: u64) -> RequestedPart {
    let parsed = || {
        let (unit, range) = range.split_once('=')?;
        let (first, last) = range.trim().split_once('-')?;
        let number = |digits: &str| {
            let fine = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            fine.then(|| digits.parse().unwrap_or(u64::MAX))
        };
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return None;
        }
        match (first.trim(), last.trim()) {
            ("", suffix) => {
                let suffix = number(suffix)?;
                Some((length.saturating_sub(suffix), if suffix == 0 { 0 } else { length }))
            }
            (first, "") => Some((number(first)?, length)),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then(|| (first, last.saturating_add(1).min(length)))
            }
        }
    };
    match parsed() {
        Some((start, end)) if start < length && start < end => RequestedPart::Range(start..end),
        Some(_) => RequestedPart::Outside,
        None => RequestedPart::Whole,
    }
}

fn body(content: Content, range: Range<u64>) -> Reply {
    let length = range.end - range.start;
    let reply = match content {
        Content::Bytes(bytes) => {
            let index = |at| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
            Reply::bytes(OCTETS, bytes.slice(index(range.start)..index(range.end)))
        }
        Content::File(download) => Reply::stream(OCTETS, pieces(download, range)),
    };
    reply.with_header(CONTENT_LENGTH, length.into())
}

/// The pieces of a part of a file. The last piece of a whole file is sent only if the file is the
/// one that was uploaded; otherwise the response breaks off. A range cannot be checked.
fn pieces(
    download: Download,
    range: Range<u64>,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let is_whole = range == (0..download.length());
    let download = Arc::new(download);
    stream::try_unfold((range, is_whole.then(blake3::Hasher::new)), move |(range, hasher)| {
        let download = Arc::clone(&download);
        async move {
            if range.is_empty() {
                return Ok(None);
            }
            let end = range.end.min(range.start + limits::MEDIA_PIECE_BYTES as u64);
            let piece = threads::spawn_blocking(move || {
                let piece = download.read(&(range.start..end));
                let checked = piece.and_then(|piece| {
                    let mut hasher = hasher;
                    if let Some(hasher) = &mut hasher {
                        hasher.update(&piece);
                        if end == range.end {
                            download.check(hasher)?;
                        }
                    }
                    Ok((piece, (end..range.end, hasher)))
                });
                checked.inspect_err(|error: &DownloadError| download.report(error))
            });
            piece.await.map_err(io::Error::other)?.map(Some).map_err(io::Error::other)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_specified() {
        let range = |text| one_range(text, 100);
        assert_eq!(range("bytes=0-9"), RequestedPart::Range(0..10));
        assert_eq!(range("bytes=90-"), RequestedPart::Range(90..100));
        assert_eq!(range("bytes=-10"), RequestedPart::Range(90..100));
        assert_eq!(range("bytes=-1000"), RequestedPart::Range(0..100));
        assert_eq!(range("Bytes = 50-1000"), RequestedPart::Range(50..100));
        assert_eq!(range("bytes=0-99999999999999999999999"), RequestedPart::Range(0..100));
        for outside in ["bytes=100-", "bytes=100-200", "bytes=-0", "bytes=99999999999999999999999-"]
        {
            assert_eq!(range(outside), RequestedPart::Outside, "{outside}");
        }
        for whole in [
            "bytes=9-0",
            "bytes=0-1,3-4",
            "bytes=",
            "bytes=-",
            "bytes=a-b",
            "lines=0-1",
            "0-1",
            "bytes=+1-2",
        ] {
            assert_eq!(range(whole), RequestedPart::Whole, "{whole}");
        }
        assert_eq!(one_range("bytes=0-", 0), RequestedPart::Outside);
    }

    #[test]
    fn conditions_come_before_ranges() {
        let asked = |headers: &[(&'static str, &'static str)]| {
            let mut request = HeaderMap::new();
            for (name, value) in headers {
                request.insert(*name, HeaderValue::from_static(value));
            }
            part(&request, "\"tag\"", 10)
        };
        assert_eq!(asked(&[]), RequestedPart::Whole);
        assert_eq!(
            asked(&[("if-none-match", "\"tag\""), ("range", "bytes=0-1")]),
            RequestedPart::Unchanged
        );
        assert_eq!(asked(&[("if-none-match", "\"a\", W/\"tag\"")]), RequestedPart::Unchanged);
        assert_eq!(asked(&[("if-none-match", "*")]), RequestedPart::Unchanged);
        assert_eq!(asked(&[("if-none-match", "\"other\"")]), RequestedPart::Whole);
        assert_eq!(
            asked(&[("range", "bytes=0-1"), ("if-range", "\"tag\"")]),
            RequestedPart::Range(0..2)
        );
        for other in ["\"other\"", "W/\"tag\"", "Sat, 01 Jan 2000 00:00:00 GMT"] {
            assert_eq!(
                asked(&[("range", "bytes=0-1"), ("if-range", other)]),
                RequestedPart::Whole,
                "{other}"
            );
        }
    }

    #[test]
    fn only_harmless_types_are_displayed_inline() {
        let shown = |content_type: &str, name: Option<&str>| {
            let (kind, disposition) = typed(Some(content_type.to_owned()), name.map(str::to_owned));
            (kind.to_str().unwrap().to_owned(), disposition.to_str().unwrap().to_owned())
        };
        let disposition = |content_type, name| shown(content_type, name).1;
        assert_eq!(disposition("image/png", None), "inline");
        assert_eq!(
            disposition("Text/Plain; charset=utf-8", Some("a.txt")),
            "inline; filename=a.txt"
        );
        for harmful in
            ["text/html", "image/svg+xml", "application/xhtml+xml", "text/javascript", "", "x"]
        {
            assert_eq!(disposition(harmful, None), "attachment", "{harmful}");
        }
        assert_eq!(
            disposition("image/png", Some("a \"b\".png")),
            "inline; filename=\"a \\\"b\\\".png\""
        );
        assert_eq!(
            disposition("image/png", Some("Grüße €.png")),
            "inline; filename*=utf-8''Gr%C3%BC%C3%9Fe%20%E2%82%AC.png"
        );
        assert_eq!(disposition("image/png", Some("a\r\nb: c")), "inline; filename=\"ab: c\"");
        assert_eq!(shown("image/png\r\nx: y", None), (OCTETS.to_owned(), "attachment".to_owned()));
    }
}
