//! The steps of resolving a name.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use hickory_resolver::proto::{
    op::{Message, ResponseCode},
    rr::{Name, RData, Record, RecordType, rdata::SRV},
    serialize::binary::{BinDecodable as _, BinEncodable as _},
};
use http::{HeaderMap, Response};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::net::{TcpListener, UdpSocket};

use super::*;
use crate::proxy::{Proxy, tests::config_with};
use logcabin_base::bodies::Shares;
use logcabin_config::{Federation, FilePath, List};

/// A name server with these services. Hosts under `example` resolve to this machine.
async fn name_server(services: &'static [(&'static str, &'static str, u16)]) -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let Ok(asked) = Message::from_bytes(&buffer[..length]) else { continue };
            let query = asked.queries[0].clone();
            let name = query.name().to_utf8();
            let mut answer = Message::response(asked.id, asked.op_code);
            let mut add = |data| {
                answer.add_answer(Record::from_rdata(query.name().clone(), 60, data));
            };
            match query.query_type() {
                RecordType::SRV => {
                    for (service, target, port) in services {
                        if name == format!("{service}.") {
                            let target = Name::from_utf8(target).unwrap();
                            add(RData::SRV(SRV::new(1, 1, *port, target)));
                        }
                    }
                }
                RecordType::A if name.ends_with("example.") => {
                    add(RData::A(Ipv4Addr::LOCALHOST.into()));
                }
                _ => {}
            }
            if answer.answers.is_empty() {
                answer.metadata.response_code = ResponseCode::NXDomain;
            }
            answer.add_query(query);
            let _ = socket.send_to(&answer.to_bytes().unwrap(), from).await;
        }
    });
    address
}

async fn names(services: &'static [(&'static str, &'static str, u16)], allowed: &[&str]) -> Names {
    let config = Federation {
        nameservers: List(vec![name_server(services).await]),
        allowed_networks: List(allowed.iter().map(|range| range.parse().unwrap()).collect()),
        ..Federation::default()
    };
    let mut names =
        Names::new(Dialer::new(&config, None).unwrap(), &BodyBudget::new(Shares::new(0, 1 << 20)));
    // Nothing listens there.
    names.https = 1;
    names
}

/// The result for a name: the name for the certificate, and the addresses.
async fn target(names: &Names, server: &str) -> Result<(String, Vec<String>), Unreachable> {
    let target = names.target(server.try_into().unwrap()).await?;
    let addresses = target.ways.iter().map(ToString::to_string).collect();
    Ok((target.certificate.to_str().into_owned(), addresses))
}

fn expected(certificate: &str, address: &str) -> (String, Vec<String>) {
    (certificate.to_owned(), vec![address.to_owned()])
}

#[tokio::test]
async fn a_name_is_resolved_step_by_step() {
    let services = &[
        ("_matrix-fed._tcp.new.example", "host.example.", 81),
        ("_matrix._tcp.new.example", "wrong.example.", 82),
        ("_matrix._tcp.old.example", "host.example.", 83),
        ("_matrix-fed._tcp.port.example", "wrong.example.", 84),
        ("_matrix-fed._tcp.delegated.example", "host.example.", 85),
    ];
    let names = names(services, &["127.0.0.0/8"]).await;
    let delegate = |from: &str, to: &str| {
        let known = Delegation {
            to: Some(to.try_into().unwrap()),
            until: Instant::now() + Duration::from_secs(60),
            failed_for: Duration::ZERO,
        };
        names.delegations.insert(from.try_into().unwrap(), known);
    };
    delegate("a.example", "127.0.0.3");
    delegate("b.example", "127.0.0.3:9");
    delegate("c.example", "port.example:9");
    delegate("d.example", "delegated.example");
    delegate("e.example", "plain.example");
    for (server, certificate, address, host) in [
        // An address, with a port or without.
        ("127.0.0.2", "127.0.0.2", "127.0.0.2:8448", "127.0.0.2"),
        ("127.0.0.2:7", "127.0.0.2", "127.0.0.2:7", "127.0.0.2:7"),
        // A port.
        ("port.example:7", "port.example", "127.0.0.1:7", "port.example:7"),
        // A delegation.
        ("a.example", "127.0.0.3", "127.0.0.3:8448", "127.0.0.3"),
        ("b.example", "127.0.0.3", "127.0.0.3:9", "127.0.0.3:9"),
        ("c.example", "port.example", "127.0.0.1:9", "port.example:9"),
        ("d.example", "delegated.example", "127.0.0.1:85", "delegated.example"),
        ("e.example", "plain.example", "127.0.0.1:8448", "plain.example"),
        // Services, the newer name first.
        ("new.example", "new.example", "127.0.0.1:81", "new.example"),
        ("old.example", "old.example", "127.0.0.1:83", "old.example"),
        // Nothing but an address.
        ("plain.example", "plain.example", "127.0.0.1:8448", "plain.example"),
    ] {
        let found = target(&names, server).await.unwrap();
        assert_eq!(found, expected(certificate, address), "{server}");
        assert_eq!(names.host(server.try_into().unwrap()).await, host, "{server}");
    }
    assert!(matches!(target(&names, "nowhere.invalid").await, Err(Unreachable::Dns(_))));
}

#[tokio::test]
async fn a_proxy_that_resolves_names_is_asked_for_those_that_are_not_private() {
    let services = &[("_matrix-fed._tcp.service.example", "host.example.", 81)];
    let config = Federation {
        nameservers: List(vec![name_server(services).await]),
        allowed_networks: List(vec!["127.0.0.0/8".parse().unwrap()]),
        ..Federation::default()
    };
    // Nothing listens there.
    let outbound = config_with(&[
        ("PROXY", "http://127.0.0.1:1"),
        ("NO_PROXY", "inner.example"),
        ("PROXY_RESOLVES_NAMES", "true"),
    ]);
    let dialer = Dialer::new(&config, Proxy::new(&outbound).unwrap()).unwrap();
    let mut names = Names::new(dialer, &BodyBudget::new(Shares::new(0, 1 << 20)));
    names.https = 1;
    for (server, certificate, way) in [
        ("service.example", "service.example", "host.example:81"),
        ("plain.example", "plain.example", "plain.example:8448"),
        ("port.example:7", "port.example", "port.example:7"),
        // This one is resolved here.
        ("a.inner.example:7", "a.inner.example", "127.0.0.1:7"),
        ("127.0.0.2:7", "127.0.0.2", "127.0.0.2:7"),
    ] {
        let found = target(&names, server).await.unwrap();
        assert_eq!(found, expected(certificate, way), "{server}");
    }
    for private in ["localhost:7", "printer.local", "db.internal:7", "10.0.0.1:7"] {
        let refused = target(&names, private).await;
        assert!(matches!(refused, Err(Unreachable::NotPublic)), "{private}: {refused:?}");
    }
}

#[tokio::test]
async fn no_way_leads_into_a_private_network() {
    let services = &[("_matrix-fed._tcp.service.example", "host.example.", 81)];
    let names = names(services, &[]).await;
    let known = Delegation {
        to: Some("127.0.0.1:8008".try_into().unwrap()),
        until: Instant::now() + Duration::from_secs(60),
        failed_for: Duration::ZERO,
    };
    names.delegations.insert("delegated.example".try_into().unwrap(), known);
    for server in [
        "127.0.0.1",
        "10.0.0.1:443",
        "[::1]:7",
        "plain.example",
        "service.example",
        "delegated.example",
    ] {
        let found = target(&names, server).await;
        assert!(matches!(found, Err(Unreachable::NotPublic)), "{server}: {found:?}");
    }
}

#[test]
fn a_delegation_is_believed_for_as_long_as_it_says_within_bounds() {
    let of = |name: http::HeaderName, value: &str| {
        lifetime(&HeaderMap::from_iter([(name, value.parse().unwrap())])).as_secs()
    };
    let hour = 3600;
    assert_eq!(lifetime(&HeaderMap::new()).as_secs(), 24 * hour);
    assert_eq!(of(CACHE_CONTROL, "public, max-age=7200"), 2 * hour);
    assert_eq!(of(CACHE_CONTROL, "Max-Age=\"7200\""), 2 * hour);
    assert_eq!(of(CACHE_CONTROL, "max-age=1"), hour);
    assert_eq!(of(CACHE_CONTROL, "no-store"), hour);
    assert_eq!(of(CACHE_CONTROL, "max-age=99999999"), 48 * hour);
    assert_eq!(of(EXPIRES, "Thu, 01 Jan 1970 00:00:00 GMT"), hour);
    assert_eq!(of(EXPIRES, "0"), 24 * hour);
}

/// A certificate for these names, signed by an authority, in files; `None` without openssl.
fn certified(dir: &std::path::Path, names: &str) -> Option<[PathBuf; 3]> {
    let path = |name: &str| dir.join(name);
    let made = |certificate: &str, key: &str, more: &[&str]| {
        let mut openssl = std::process::Command::new("openssl");
        openssl.args(["req", "-x509", "-nodes", "-days", "3", "-subj", "/CN=test"]);
        openssl.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        openssl.arg("-out").arg(path(certificate)).arg("-keyout").arg(path(key));
        openssl.args(more).current_dir(dir).output().is_ok_and(|made| made.status.success())
    };
    let (ca, names) = ("basicConstraints=critical,CA:TRUE", format!("subjectAltName={names}"));
    let leaf = ["-addext", "basicConstraints=CA:FALSE", "-addext", &names, "-CA", "ca"];
    let leaf = [&leaf[..], &["-CAkey", "ca.key"]].concat();
    (made("ca", "ca.key", &["-addext", ca]) && made("cert", "key", &leaf))
        .then(|| [path("ca"), path("cert"), path("key")])
}

/// Serves `/.well-known/matrix/server` of all names, depending on `Host`.
async fn web([_, certificate, key]: &[PathBuf; 3]) -> u16 {
    let chain = CertificateDer::pem_file_iter(certificate).unwrap().collect::<Result<_, _>>();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.unwrap(), key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let service = service_fn(move |request: Request<hyper::body::Incoming>| async move {
                Ok::<_, std::convert::Infallible>(document(&request, port))
            });
            let http = hyper::server::conn::http1::Builder::new();
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    port
}

fn document(request: &Request<hyper::body::Incoming>, port: u16) -> Response<Full<Bytes>> {
    let host = request.headers()[HOST].to_str().unwrap().to_owned();
    let host = host.strip_suffix(&format!(":{port}")).unwrap();
    let there = |server: &str| (200, format!(r#"{{"m.server":"{server}"}}"#), None);
    let to = |location: String| (302, String::new(), Some(location));
    let (status, body, location) = match (host, request.uri().path()) {
        (_, "/there") => there("there.example:1"),
        ("good.example", _) => there("good.example:1"),
        ("moved.example", _) => to("/there".to_owned()),
        ("elsewhere.example", _) => to(format!("https://good.example:{port}/there")),
        ("loop.example", path) => to(path.to_owned()),
        ("plain.example", _) => to("http://good.example/there".to_owned()),
        ("inner.example", _) => to("https://10.0.0.1/there".to_owned()),
        ("large.example", _) => {
            (200, " ".repeat(100 << 20) + r#"{"m.server":"large.example:1"}"#, None)
        }
        ("json.example", _) => (200, "{}".to_owned(), None),
        ("name.example", _) => there("no name"),
        _ => (404, String::new(), None),
    };
    let mut response = Response::builder().status(status);
    if let Some(location) = location {
        response = response.header(LOCATION, location);
    }
    response.body(Full::new(body.into())).unwrap()
}

#[tokio::test]
async fn a_delegation_is_fetched_and_whatever_else_is_there_is_none() {
    let dir = tempfile::TempDir::new().unwrap();
    let all =
        ["good", "moved", "elsewhere", "loop", "plain", "inner", "large", "json", "name", "none"];
    let hosts: Vec<_> = all.iter().map(|name| format!("DNS:{name}.example")).collect();
    let Some(files) = certified(dir.path(), &hosts.join(",")) else {
        return eprintln!("SKIPPED: delegations: openssl is absent (install with .ci/run)");
    };
    let mut config = Federation {
        nameservers: List(vec![name_server(&[]).await]),
        allowed_networks: List(vec!["127.0.0.0/8".parse().unwrap()]),
        ca: Some(FilePath(files[0].clone())),
        ..Federation::default()
    };
    let mut names =
        Names::new(Dialer::new(&config, None).unwrap(), &BodyBudget::new(Shares::new(0, 1 << 20)));
    names.https = web(&files).await;
    let delegation = async |names: &Names, server: &str| {
        let to = names.delegation(server.try_into().unwrap()).await;
        to.map(|to| to.to_string())
    };
    for (server, expected) in [
        ("good.example", Some("good.example:1")),
        ("moved.example", Some("there.example:1")),
        ("elsewhere.example", Some("there.example:1")),
        ("loop.example", None),
        ("plain.example", None),
        ("inner.example", None),
        ("large.example", None),
        ("json.example", None),
        ("name.example", None),
        ("none.example", None),
        // The certificate is for other names.
        ("other.example", None),
    ] {
        assert_eq!(delegation(&names, server).await.as_deref(), expected, "{server}");
    }
    // Without the authority or the network, nothing is fetched.
    let https = names.https;
    config.ca = None;
    let mut strict =
        Names::new(Dialer::new(&config, None).unwrap(), &BodyBudget::new(Shares::new(0, 1 << 20)));
    strict.https = https;
    assert_eq!(delegation(&strict, "good.example").await, None);
    config.ca = Some(FilePath(files[0].clone()));
    config.allowed_networks = List(Vec::new());
    let mut strict =
        Names::new(Dialer::new(&config, None).unwrap(), &BodyBudget::new(Shares::new(0, 1 << 20)));
    strict.https = https;
    assert_eq!(delegation(&strict, "good.example").await, None);
}
