//! A body of two parts, the second of which is a file or its address (server-server API, "Content
//! Repository"; RFC 2046, "Multipart Media Type"). It is read as it arrives.

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream::BoxStream};
use http::{HeaderMap, HeaderName, HeaderValue, header::CONTENT_TYPE};
use memchr::memmem;

use super::Unreachable;
use logcabin_base::limits;

/// The bytes of the body, as they arrive.
pub(crate) type Pieces = BoxStream<'static, Result<Bytes, Unreachable>>;

/// The longest boundary. RFC 2046 allows 70 characters.
const BOUNDARY_BYTES: usize = 200;

/// The boundary between the parts of an answer with these headers.
pub(super) fn boundary(headers: &HeaderMap) -> Option<String> {
    let content_type = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let (essence, parameters) = content_type.split_once(';')?;
    if !essence.trim().eq_ignore_ascii_case("multipart/mixed") {
        return None;
    }
    let boundary = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
    })?;
    ((1..=BOUNDARY_BYTES).contains(&boundary.len())).then(|| boundary.to_owned())
}

/// The second part of a body.
pub(super) struct SecondPart {
    pieces: Pieces,
    buffer: BytesMut,
    /// The delimiter between parts, with the line break before it.
    delimiter: Vec<u8>,
    is_over: bool,
}

impl SecondPart {
    /// Reads up to the content of the second part. Returns it with its headers.
    ///
    /// # Errors
    /// When there is no such part, or too much precedes it.
    pub(super) async fn find(
        pieces: Pieces,
        boundary: &str,
    ) -> Result<(HeaderMap, Self), Unreachable> {
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        // The first delimiter may be at the very beginning, without a line break before it.
        let mut part = Self { pieces, buffer: b"\r\n"[..].into(), delimiter, is_over: false };
        let mut left = limits::REMOTE_FILE_HEAD_BYTES;
        for _ in 0..2 {
            let delimiter = part.delimiter.clone();
            part.skip(&delimiter, &mut left).await?;
        }
        // The rest of the line of the delimiter: `--` if there is no second part.
        let rest = part.skip(b"\r\n", &mut left).await?;
        if !rest.iter().all(|byte| matches!(byte, b' ' | b'\t')) {
            return Err(unexpected("it has no second part"));
        }
        let mut headers = HeaderMap::new();
        loop {
            let line = part.skip(b"\r\n", &mut left).await?;
            if line.is_empty() {
                return Ok((headers, part));
            }
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let name = HeaderName::from_bytes(line[..colon].trim_ascii());
            let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
            if let (Ok(name), Ok(value)) = (name, value) {
                headers.insert(name, value);
            }
        }
    }

    /// The next piece of its content; `None` at the end.
    ///
    /// # Errors
    /// When the body ends before the part does.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Unreachable> {
        while !self.is_over {
            if let Some(end) = memmem::find(&self.buffer, &self.delimiter) {
                self.is_over = true;
                self.buffer.truncate(end);
                break;
            }
            // The end may be the start of a delimiter.
            let sure = (self.buffer.len() + 1).saturating_sub(self.delimiter.len());
            if sure > 0 {
                return Ok(Some(self.buffer.split_to(sure).freeze()));
            }
            self.more().await?;
        }
        Ok((!self.buffer.is_empty()).then(|| self.buffer.split().freeze()))
    }

    /// Everything up to `end`, which is removed.
    async fn skip(&mut self, end: &[u8], left: &mut usize) -> Result<BytesMut, Unreachable> {
        loop {
            let found = memmem::find(&self.buffer, end);
            let bytes = found.map_or(self.buffer.len(), |at| at + end.len());
            if bytes > *left {
                return Err(unexpected("too much is before the file"));
            }
            if let Some(at) = found {
                *left -= bytes;
                let mut skipped = self.buffer.split_to(bytes);
                skipped.truncate(at);
                return Ok(skipped);
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<(), Unreachable> {
        let piece = self.pieces.next().await.ok_or_else(|| unexpected("it ends early"))?;
        self.buffer.extend_from_slice(&piece?);
        Ok(())
    }
}

fn unexpected(why: &str) -> Unreachable {
    Unreachable::Unexpected(why.to_owned())
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn read(body: &str, size: usize) -> Result<(HeaderMap, Vec<u8>), Unreachable> {
        let pieces: Vec<_> =
            body.as_bytes().chunks(size).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let (headers, mut part) =
            SecondPart::find(Box::pin(stream::iter(pieces)), "b0undary").await?;
        let mut content = Vec::new();
        while let Some(piece) = part.next().await? {
            assert!(!piece.is_empty());
            content.extend_from_slice(&piece);
        }
        assert!(part.next().await.unwrap().is_none());
        Ok((headers, content))
    }

    #[tokio::test]
    async fn the_second_part_is_found_however_the_body_is_cut() {
        let content = "file\r\n--b0undar\r\n\r\n--\r\n--b0";
        let whole = format!(
            "before\r\n--b0undary  \r\nContent-Type: application/json\r\n\r\n{{}}\r\n--b0undary\r\n\
             Content-Type: text/plain\r\ncontent-disposition:attachment\r\nnothing\r\n\r\n{content}\
             \r\n--b0undary--\r\nafter"
        );
        for body in [&*whole, &whole["before\r\n".len()..], &whole[..whole.len() - 9]] {
            for size in 1..body.len() {
                let (headers, found) = read(body, size).await.unwrap();
                assert_eq!(headers[CONTENT_TYPE], "text/plain");
                assert_eq!(headers["content-disposition"], "attachment");
                assert_eq!(String::from_utf8_lossy(&found), content, "{size}");
            }
        }
        let bare = "--b0undary\r\n\r\n\r\n--b0undary\r\n\r\n\r\n--b0undary--";
        assert_eq!(read(bare, 7).await.unwrap(), (HeaderMap::new(), Vec::new()));
    }

    #[tokio::test]
    async fn a_body_that_is_not_whole_is_refused() {
        let whole = "--b0undary\r\n\r\n{}\r\n--b0undary\r\nA: b\r\n\r\nfile\r\n--b0undary";
        for end in 0..whole.len() {
            assert!(read(&whole[..end], 9).await.is_err(), "{end}");
        }
        for wrong in [
            "--b0undary\r\n\r\n{}\r\n--b0undary--\r\n\r\nfile\r\n--b0undary",
            "--b0undary--\r\n\r\n{}\r\n--other\r\n\r\nfile\r\n--other",
        ] {
            assert!(read(wrong, 9).await.is_err(), "{wrong}");
        }
        let long = format!("--b0undary\r\n\r\n{}", "x".repeat(limits::REMOTE_FILE_HEAD_BYTES));
        let error = read(&long, 1000).await.unwrap_err();
        assert!(error.to_string().contains("too much"), "{error}");
    }

    #[test]
    fn boundaries_are_read_as_they_are_written() {
        let of = |content_type: &str| {
            let value = HeaderValue::from_str(content_type).unwrap();
            boundary(&HeaderMap::from_iter([(CONTENT_TYPE, value)]))
        };
        assert_eq!(of("multipart/mixed; boundary=abc").as_deref(), Some("abc"));
        assert_eq!(of("Multipart/Mixed;a=b; BOUNDARY=\"a c\"").as_deref(), Some("a c"));
        let long = format!("multipart/mixed; boundary={}", "x".repeat(BOUNDARY_BYTES + 1));
        for none in
            ["multipart/mixed", "text/plain; boundary=a", "multipart/mixed; boundary=", &long]
        {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(boundary(&HeaderMap::new()), None);
    }
}
