//! Requests of clients, on simulated connections.

use std::{net::IpAddr, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::time::timeout;
use turmoil::net::TcpStream;

/// The port of clients.
pub(crate) const PORT: u16 = 8008;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
}

impl Answer {
    /// A text in the body.
    pub(crate) fn text(&self, pointer: &str) -> Option<&str> {
        self.body.pointer(pointer).and_then(Value::as_str)
    }

    pub(crate) fn errcode(&self) -> &str {
        self.text("/errcode").unwrap_or_default()
    }
}

/// Where a client sends requests, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) server: IpAddr,
    pub(crate) token: Option<String>,
}

impl Client {
    /// The answer to a request; `None` if none came: the request may have arrived or not.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> Option<Answer> {
        timeout(patience, self.exchange(method, path, body)).await.ok()?.ok()
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, Box<dyn std::error::Error>> {
        let stream = TcpStream::connect((self.server, PORT)).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the sender.
        tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/_matrix/client/{path}"))
            .header(header::HOST, format!("{}:{PORT}", self.server))
            .header(header::CONNECTION, "close");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let (head, body) =
            sender.send_request(request.body(Full::new(Bytes::from(body)))?).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Answer {
            status: head.status,
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
        })
    }
}
