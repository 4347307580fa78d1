//! A test server as a cluster: with `LOGCABIN_TEST_NODES` of more than one, every [`TestServer`]
//! is that many nodes on a NATS server of its own, and each request goes to a random one.
//!
//! [`TestServer`]: super::TestServer

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::{free_address, number_from_env, runs, skip};

/// How many nodes a test server has.
pub(crate) fn count() -> usize {
    usize::try_from(number_from_env("LOGCABIN_TEST_NODES", 1)).expect("a small number")
}

/// The program `nats-server`; `LOGCABIN_NATS_SERVER` names another than that of `.ci/run`.
///
/// # Errors
/// What is missing.
pub(crate) fn nats_program() -> Result<PathBuf, String> {
    let program = match std::env::var_os("LOGCABIN_NATS_SERVER") {
        Some(program) => program.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("target/e2e/venv/bin/nats-server"),
    };
    if runs(&program.to_string_lossy(), &["--version"]) {
        Ok(program)
    } else {
        Err(format!("{} is absent", program.display()))
    }
}

/// One or more NATS servers with JetStream that know each other.
pub(crate) struct Nats {
    directory: TempDir,
    program: PathBuf,
    addresses: Vec<SocketAddr>,
    processes: Vec<Option<Child>>,
}

impl Nats {
    /// Starts so many servers; `None`, after saying so, if the program is absent.
    pub(crate) fn start(test: &str, servers: usize) -> Option<Self> {
        let program = match nats_program() {
            Ok(program) => program,
            Err(missing) => {
                skip(test, &missing);
                return None;
            }
        };
        let directory = TempDir::new().expect("a temporary directory");
        let addresses: Vec<_> = (0..servers).map(|_| free_address()).collect();
        let routes: Vec<_> = (0..servers).map(|_| free_address()).collect();
        let all: Vec<_> = routes.iter().map(|route| format!("\"nats://{route}\"")).collect();
        for (number, (address, route)) in addresses.iter().zip(&routes).enumerate() {
            let store = directory.path().join(format!("store-{number}"));
            let cluster = if servers == 1 {
                String::new()
            } else {
                format!(
                    "cluster {{ name: \"test\", listen: \"{route}\", routes: [{}] }}\n",
                    all.join(", ")
                )
            };
            let text = format!(
                "server_name: \"n{number}\"\nlisten: \"{address}\"\nmax_payload: 8MB\n\
                 jetstream {{ store_dir: {store:?}, sync_interval: always }}\n{cluster}"
            );
            fs::write(directory.path().join(format!("n{number}.conf")), text).expect("a file");
        }
        let processes = (0..servers).map(|_| None).collect();
        let mut nats = Self { directory, program, addresses, processes };
        (0..servers).for_each(|number| nats.run(number));
        nats.wait();
        Some(nats)
    }

    /// The addresses, as `--log` takes them.
    pub(crate) fn urls(&self) -> String {
        let urls: Vec<_> = self.addresses.iter().map(|one| format!("nats://{one}")).collect();
        urls.join(",")
    }

    /// The number of servers.
    pub(crate) fn len(&self) -> usize {
        self.processes.len()
    }

    /// Starts a server that does not run.
    pub(crate) fn run(&mut self, number: usize) {
        let child = Command::new(&self.program)
            .arg("--config")
            .arg(self.directory.path().join(format!("n{number}.conf")))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.processes[number] = Some(child.expect("nats-server can be started"));
    }

    fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        for address in &self.addresses {
            while std::net::TcpStream::connect(address).is_err() {
                assert!(Instant::now() < deadline, "nats-server does not listen at {address}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// The process of a server that runs.
    pub(crate) fn process(&self, number: usize) -> Option<u32> {
        self.processes[number].as_ref().map(Child::id)
    }

    /// Kills a server with SIGKILL.
    pub(crate) fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.processes[number].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        (0..self.processes.len()).for_each(|number| self.kill(number));
    }
}

/// What a test server has as a cluster.
pub(super) struct Nodes {
    pub(super) nats: Nats,
    directory: TempDir,
    addresses: Vec<SocketAddr>,
    front: SocketAddr,
}

impl Nodes {
    /// A NATS server, so many nodes, and a proxy at `front`.
    pub(super) fn new(count: usize, front: SocketAddr) -> Self {
        let nats = Nats::start("a cluster", 1).expect("tests on a cluster need nats-server");
        let addresses: Vec<_> = (0..count).map(|_| free_address()).collect();
        let directory = TempDir::new().expect("a temporary directory");
        let nodes = addresses.clone();
        // On a thread of its own: it serves tests whose runtime may be blocked.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(balance(front, nodes));
        });
        Self { nats, directory, addresses, front }
    }

    /// The arguments of each node, whose first has its data in `data_dir`.
    pub(super) fn arguments(&self, data_dir: &Path) -> Vec<(SocketAddr, Vec<OsString>)> {
        let node = |(number, address): (usize, &SocketAddr)| {
            let data_dir = match number {
                0 => data_dir.to_owned(),
                _ => self.directory.path().join(format!("node-{number}")),
            };
            let arguments: Vec<OsString> = vec![
                "--data-dir".into(),
                data_dir.into(),
                "--bind".into(),
                address.to_string().into(),
                "--log".into(),
                self.nats.urls().into(),
            ];
            (*address, arguments)
        };
        self.addresses.iter().enumerate().map(node).collect()
    }

    /// The settings of all nodes.
    pub(super) fn settings(&self) -> Vec<(String, String)> {
        let media = self.directory.path().join("media").display().to_string();
        vec![
            ("LOGCABIN_LOG_REPLICAS".to_owned(), "1".to_owned()),
            ("LOGCABIN_MEDIA_DIR".to_owned(), media),
            ("LOGCABIN_SERVER_PUBLIC_URL".to_owned(), format!("http://{}", self.front)),
            // Others can reach that address, for all that the server knows.
            ("LOGCABIN_REGISTRATION_OPEN".to_owned(), "true".to_owned()),
        ]
    }
}

type Body = BoxBody<Bytes, hyper::Error>;

/// Sends each request that arrives at `front` to a random node.
pub(crate) async fn balance(front: SocketAddr, nodes: Vec<SocketAddr>) {
    let listener = TcpListener::bind(front).await.expect("the address is free");
    let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (client, nodes) = (client.clone(), nodes.clone());
        tokio::spawn(async move {
            let service = service_fn(|request| pass_on(request, client.clone(), nodes.clone()));
            let builder = auto::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn pass_on(
    request: Request<Incoming>,
    client: Client<HttpConnector, Body>,
    nodes: Vec<SocketAddr>,
) -> Result<Response<Body>, hyper::Error> {
    let random = getrandom::u32().expect("the system gives random bytes") as usize;
    let node = nodes[random % nodes.len()];
    let (mut parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    parts.uri = format!("http://{node}{path}").parse::<Uri>().expect("an address");
    parts.version = http::Version::HTTP_11;
    let request = Request::from_parts(parts, body.boxed());
    Ok(match client.request(request).await {
        Ok(response) => {
            let (mut parts, body) = response.into_parts();
            parts.headers.insert("x-test-node", node.port().into());
            Response::from_parts(parts, body.boxed())
        }
        Err(error) => {
            let body = Full::new(Bytes::from(error.to_string()));
            let mut response = Response::new(body.map_err(|never| match never {}).boxed());
            *response.status_mut() = http::StatusCode::BAD_GATEWAY;
            response
        }
    })
}
