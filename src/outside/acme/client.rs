//! How the authority is asked: by the client for other services, with its settings.

use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use http::Request;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use reqwest::Client;

use logcabin_base::limits;

pub(super) struct Asking(pub(super) Client);

type Asked = Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>>;

impl HttpClient for Asking {
    fn request(&self, request: Request<BodyWrapper<Bytes>>) -> Asked {
        let client = self.0.clone();
        Box::pin(async move { ask(&client, request).await })
    }
}

async fn ask(
    client: &Client,
    request: Request<BodyWrapper<Bytes>>,
) -> Result<BytesResponse, Error> {
    let (parts, body) = request.into_parts();
    let body = whole(body).await?;
    let request = client.request(parts.method, parts.uri.to_string());
    let sent = request.headers(parts.headers).body(body).send().await;
    let mut response = sent.map_err(failed)?;
    let mut head = http::Response::new(());
    *head.status_mut() = response.status();
    *head.headers_mut() = std::mem::take(response.headers_mut());
    let mut body = BytesMut::new();
    while let Some(part) = response.chunk().await.map_err(failed)? {
        if body.len() + part.len() > limits::ACME_ANSWER_BYTES {
            return Err(Error::Str("an answer of the authority that is not too large"));
        }
        body.extend_from_slice(&part);
    }
    let (parts, ()) = head.into_parts();
    Ok(BytesResponse { parts, body: Box::new(body.freeze()) })
}

async fn whole(body: BodyWrapper<Bytes>) -> Result<Bytes, Error> {
    use http_body_util::BodyExt as _;
    match body.collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(never) => match never {},
    }
}

/// The cause is what helps: a name that is not known, a certificate that is not trusted.
fn failed(error: reqwest::Error) -> Error {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    Error::Other(text.into())
}
