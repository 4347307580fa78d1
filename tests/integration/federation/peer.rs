//! A homeserver that signs properly and otherwise does what a test has it do.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ruma::api::federation::authentication::{XMatrix, XMatrixSigningInput};
use ruma::serde::{Base64, base64::Standard};
use ruma::signatures::{Ed25519KeyPair, KeyPair as _, sign_json};
use ruma::{CanonicalJsonObject, OwnedServerName};
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use super::authority::Authority;
use crate::harness::stand_in::{Reply, Service, reply, reply_json};
use crate::harness::{Answer, Asked};

/// A server's answer to a request, as a peer may shape it.
pub(super) type Answers = Arc<dyn Fn(&Asked) -> Option<Reply> + Send + Sync>;

/// What a peer answers, by the part of the path behind `/_matrix/federation/v1/`.
#[derive(Clone, Default)]
pub(super) struct Script(Arc<Mutex<BTreeMap<&'static str, String>>>);

impl Script {
    pub(super) fn set(&self, answers: impl IntoIterator<Item = (&'static str, Value)>) {
        let answers = answers.into_iter().map(|(of, answer)| (of, answer.to_string()));
        *self.0.lock().expect("no panic") = answers.collect();
    }

    /// Adds an answer, as it is written.
    pub(super) fn set_text(&self, of: &'static str, answer: String) {
        self.0.lock().expect("no panic").insert(of, answer);
    }

    /// A peer that answers what is set.
    pub(super) async fn start(&self, authority: &Authority) -> Peer {
        let script = self.clone();
        let answers = move |asked: &Asked| script.answer(asked);
        Peer::start_with(authority, Duration::from_secs(3600), Arc::new(answers)).await
    }

    /// What is set for this request, if anything.
    pub(super) fn answer(&self, asked: &Asked) -> Option<Reply> {
        let path = asked.path.strip_prefix("/_matrix/federation/v1/")?;
        let script = self.0.lock().expect("no panic");
        let answer = script.get(path.split('/').next()?)?;
        Some(reply(200, "application/json", answer.clone()))
    }
}

pub(super) struct Peer {
    pub(super) name: OwnedServerName,
    pub(super) keys: Ed25519KeyPair,
    asked: Arc<Mutex<Vec<Asked>>>,
    silent_on: watch::Sender<Vec<&'static str>>,
    service: Option<Service>,
    connector: tokio_rustls::TlsConnector,
}

impl Peer {
    /// A peer that publishes its keys.
    pub(super) async fn start(authority: &Authority) -> Self {
        Self::start_with(authority, Duration::from_secs(3600), Arc::new(|_| None)).await
    }

    /// A peer that takes all transactions.
    pub(super) async fn start_taking(authority: &Authority) -> Self {
        let takes = |asked: &Asked| {
            let is_transaction = asked.path.starts_with("/_matrix/federation/v1/send/");
            is_transaction.then(|| reply_json(200, &json!({ "pdus": {} })))
        };
        // Some tests take hours.
        Self::start_with(authority, Duration::from_secs(24 * 3600), Arc::new(takes)).await
    }

    /// A peer whose keys are valid for so long, and that answers otherwise first.
    pub(super) async fn start_with(
        authority: &Authority,
        valid_for: Duration,
        answers: Answers,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let name: OwnedServerName = format!("localhost:{port}").try_into().expect("a name");
        let keys = new_keys("peer");
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let document = json!(document(&name, &keys, valid_for));
        let remembered = Arc::clone(&asked);
        let silent_on = watch::Sender::new(Vec::<&str>::new());
        let held = silent_on.clone();
        let service =
            Service::on_tls(listener, authority.acceptor(&port.to_string()), move |asked| {
                let reply = answers(&asked).unwrap_or_else(|| match &*asked.path {
                    "/_matrix/key/v2/server" => reply_json(200, &document),
                    _ => reply_json(404, &json!({ "errcode": "M_UNRECOGNIZED" })),
                });
                let (mut held, path) = (held.subscribe(), asked.path.clone());
                remembered.lock().expect("no panic").push(asked);
                async move {
                    let is_free = |held: &Vec<&str>| !held.iter().any(|of| path.starts_with(of));
                    held.wait_for(is_free).await.expect("the peer");
                    reply
                }
            });
        let connector = authority.connector();
        Self { name, keys, asked, silent_on, service: Some(service), connector }
    }

    /// What it was asked so far.
    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no panic").clone()
    }

    /// Leaves requests whose paths begin with one of these without an answer, until it is silent on
    /// others. What it answers is what it had to say when it was asked.
    pub(super) fn is_silent_on(&self, paths: &[&'static str]) {
        self.silent_on.send_replace(paths.to_vec());
    }

    /// Answers no more.
    pub(super) async fn stop(&mut self) {
        if let Some(service) = self.service.take() {
            service.stop().await;
        }
    }

    /// The header of a request to `to`, signed by this peer, whatever numbers the body has.
    pub(super) fn header(&self, to: &str, method: &str, path: &str, body: &Value) -> String {
        // The members of a value are sorted.
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.header_of(to, method, path, &body)
    }

    /// The same for a body whose canonical form this is.
    pub(super) fn header_of(&self, to: &str, method: &str, path: &str, canonical: &str) -> String {
        let content = match canonical {
            "" => String::new(),
            canonical => format!(r#""content":{canonical},"#),
        };
        let name = &self.name;
        let signed = format!(
            r#"{{{content}"destination":"{to}","method":"{method}","origin":"{name}","uri":"{path}"}}"#
        );
        let (key, signature) = self.keys.sign(signed.as_bytes()).into_parts();
        let signature = Base64::<Standard, _>::new(signature).encode();
        format!(r#"X-Matrix origin="{name}",destination="{to}",key="{key}",sig="{signature}""#)
    }

    /// Sends a request to the server at `address`, properly signed for `to`.
    pub(super) async fn ask(&self, address: SocketAddr, to: &str, path: &str) -> Answer {
        let header = self.header(to, "GET", path, &Value::Null);
        self.send(address, "GET", path, Some(&header), &Value::Null).await
    }

    /// Sends a request with this header.
    pub(super) async fn send(
        &self,
        address: SocketAddr,
        method: &str,
        path: &str,
        header: Option<&str>,
        body: &Value,
    ) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send_text(address, method, path, header, body).await
    }

    /// Sends a request with this header and any text.
    pub(super) async fn send_text(
        &self,
        address: SocketAddr,
        method: &str,
        path: &str,
        header: Option<&str>,
        body: String,
    ) -> Answer {
        let (_, stream) = self.connect(address).await;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.expect("a connection");
        let connection = tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        if let Some(header) = header {
            request = request.header("authorization", header);
        }
        let request = request.body(Full::new(Bytes::from(body))).expect("a request");
        let response = sender.send_request(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        connection.abort();
        Answer::of(format!("{method} {path}"), parts, &bytes)
    }

    /// A connection to the server at `address` from an address of this machine.
    pub(super) async fn connect_from(
        &self,
        from: Ipv4Addr,
        address: SocketAddr,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let stream = socket.connect(address).await?;
        self.connector.connect(ServerName::try_from("localhost").expect("a name"), stream).await
    }

    /// A connection to the server at `address`, and the certificate that it shows.
    pub(super) async fn connect(
        &self,
        address: SocketAddr,
    ) -> (CertificateDer<'static>, tokio_rustls::client::TlsStream<TcpStream>) {
        let stream = TcpStream::connect(address).await.expect("a connection");
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = self.connector.connect(name, stream).await.expect("TLS");
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
        (shown.expect("a certificate"), stream)
    }
}

pub(super) fn new_keys(version: &str) -> Ed25519KeyPair {
    Ed25519KeyPair::from_der(&Ed25519KeyPair::generate(), version.to_owned()).expect("a key")
}

/// The signature of a request.
pub(super) fn sign(
    origin: &OwnedServerName,
    keys: &Ed25519KeyPair,
    to: &str,
    method: &str,
    path: &str,
    body: &Value,
) -> XMatrix {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder().method(method).uri(path).body(body).expect("a request");
    let to = OwnedServerName::try_from(to).expect("a name");
    let input = XMatrixSigningInput::new(origin.clone(), to, keys);
    XMatrix::sign_http_request(&request, input).expect("a signature")
}

/// What a server with this key publishes.
pub(super) fn document(
    name: &OwnedServerName,
    keys: &Ed25519KeyPair,
    valid_for: Duration,
) -> CanonicalJsonObject {
    let until = (SystemTime::now() + valid_for).duration_since(UNIX_EPOCH).expect("a time");
    let key = Base64::<Standard, _>::new(keys.public_key()).encode();
    let document = json!({
        "server_name": name,
        "verify_keys": { format!("ed25519:{}", keys.version()): { "key": key } },
        "old_verify_keys": {},
        "valid_until_ts": u64::try_from(until.as_millis()).expect("a time"),
    });
    let mut document = serde_json::from_value(document).expect("canonical JSON");
    sign_json(name.as_str(), keys, &mut document).expect("a signature");
    document
}
