//! Requests that another node of the cluster answers, since it has in memory what they refer to.

use std::net::IpAddr;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use serde::{Deserialize, Serialize};

use super::{ApiError, Reply, reply::Content};

/// A header of forwarded requests, which are not forwarded again.
pub(super) const FORWARDED: HeaderName = HeaderName::from_static("x-logcabin-forwarded");

/// A request as it goes from node to node: this as JSON on a line, then the body.
#[derive(Serialize, Deserialize)]
struct RequestLine {
    method: String,
    uri: String,
    client: IpAddr,
    headers: Vec<(String, String)>,
}

/// An answer as it goes back: this as JSON on a line, then the body.
#[derive(Serialize, Deserialize)]
struct AnswerLine {
    status: u16,
    headers: Vec<(String, String)>,
}

/// A request that another node received.
pub(crate) struct Received {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) client: IpAddr,
    pub(super) body: Bytes,
}

fn texts(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |(name, value): (&HeaderName, &HeaderValue)| {
        Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
    };
    headers.iter().filter_map(text).collect()
}

fn headers(texts: &[(String, String)]) -> HeaderMap {
    let header = |(name, value): &(String, String)| {
        Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
    };
    texts.iter().filter_map(header).collect()
}

fn with_line(line: &impl Serialize, body: &[u8]) -> Bytes {
    let mut bytes = BytesMut::from(&*serde_json::to_vec(line).unwrap_or_default());
    bytes.extend_from_slice(b"\n");
    bytes.extend_from_slice(body);
    bytes.freeze()
}

fn split(bytes: &Bytes) -> Option<(&[u8], Bytes)> {
    let end = memchr::memchr(b'\n', bytes)?;
    Some((&bytes[..end], bytes.slice(end + 1..)))
}

pub(super) fn request(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    client: IpAddr,
    body: &[u8],
) -> Bytes {
    let line = RequestLine {
        method: method.to_string(),
        uri: uri.to_string(),
        client,
        headers: texts(headers),
    };
    with_line(&line, body)
}

/// Reads a request; `None` if it is not one.
pub(super) fn received(bytes: &Bytes) -> Option<Received> {
    let (line, body) = split(bytes)?;
    let line: RequestLine = serde_json::from_slice(line).ok()?;
    let mut headers = headers(&line.headers);
    headers.insert(FORWARDED, HeaderValue::from_static("1"));
    Some(Received {
        method: line.method.parse().ok()?,
        uri: line.uri.parse().ok()?,
        headers,
        client: line.client,
        body,
    })
}

pub(super) async fn answer(reply: Reply) -> Bytes {
    let (status, headers, content) = reply.into_parts();
    let body = match content {
        Content::Bytes(bytes) => bytes,
        Content::Stream(mut pieces) => {
            let mut body = BytesMut::new();
            while let Some(Ok(piece)) = pieces.next().await {
                body.extend_from_slice(&piece);
            }
            body.freeze()
        }
    };
    with_line(&AnswerLine { status: status.as_u16(), headers: texts(&headers) }, &body)
}

/// The reply in the bytes of an answer.
pub(super) fn reply(bytes: &Bytes) -> Result<Reply, ApiError> {
    let damaged = || ApiError::internal("another node's answer is not understood");
    let (line, body) = split(bytes).ok_or_else(damaged)?;
    let AnswerLine { status, headers: texts } =
        serde_json::from_slice(line).map_err(|_| damaged())?;
    let status = StatusCode::from_u16(status).map_err(|_| damaged())?;
    Ok(Reply::from_parts(status, headers(&texts), Content::Bytes(body)))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn requests_and_answers_arrive_as_they_were_sent() {
        let mut sent = HeaderMap::new();
        sent.insert("authorization", HeaderValue::from_static("Bearer token"));
        let uri = "/_matrix/client/v3/sync?since=s0_1".parse().unwrap();
        let bytes = request(&Method::POST, &uri, &sent, CLIENT, b"{\n}");
        let read = received(&bytes).unwrap();
        assert_eq!((read.method, read.uri, &*read.body), (Method::POST, uri, &b"{\n}"[..]));
        assert_eq!(read.headers["authorization"], "Bearer token");
        assert!(read.headers.contains_key(FORWARDED));
        assert!(received(&Bytes::from_static(b"{}\n")).is_none());

        let reply_sent = Reply::json("{\"a\":1}").with_status(StatusCode::CONFLICT);
        let read = reply(&answer(reply_sent).await).unwrap();
        assert_eq!(read.status(), StatusCode::CONFLICT);
        let (_, headers, Content::Bytes(body)) = read.into_parts() else { panic!("no bytes") };
        assert_eq!(
            (&headers["content-type"], &*body),
            (&"application/json".parse().unwrap(), &b"{\"a\":1}"[..])
        );
        assert!(reply(&Bytes::from_static(b"no answer")).is_err());
    }
}
