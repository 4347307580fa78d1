//! How the authority is asked: by the client for other services, with its settings.

use std::pin::Pin;

use bytes::Bytes;
use http::Request;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};

use crate::outbound::{Outbound, OutboundRequest};
use logcabin_base::limits;

pub(super) struct Asking(pub(super) Outbound);

type Asked = Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>>;

impl HttpClient for Asking {
    fn request(&self, request: Request<BodyWrapper<Bytes>>) -> Asked {
        let client = self.0.clone();
        Box::pin(async move { ask(&client, request).await })
    }
}

async fn ask(
    client: &Outbound,
    request: Request<BodyWrapper<Bytes>>,
) -> Result<BytesResponse, Error> {
    let (parts, body) = request.into_parts();
    let url = parts.uri.to_string().parse();
    let url = url.map_err(|_| Error::Str("the authority's URLs to be URLs"))?;
    let answer = client
        .send(OutboundRequest {
            headers: parts.headers,
            body: whole(body).await?,
            timeout: limits::ACME_TIMEOUT,
            max_bytes: limits::ACME_ANSWER_BYTES,
            ..OutboundRequest::new(parts.method, url)
        })
        .await
        .map_err(|error| Error::Other(Box::new(error)))?;
    let mut head = http::Response::new(());
    *head.status_mut() = answer.status;
    *head.headers_mut() = answer.headers;
    let (parts, ()) = head.into_parts();
    Ok(BytesResponse { parts, body: Box::new(answer.body) })
}

async fn whole(body: BodyWrapper<Bytes>) -> Result<Bytes, Error> {
    use http_body_util::BodyExt as _;
    match body.collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(never) => match never {},
    }
}
