//! A test server as a cluster: with `LOGCABIN_TEST_NODES` of more than one, every [`TestServer`]
//! is that many nodes on a NATS server of its own, and each request goes to a random one: through a
//! proxy of the tests' own, or with `LOGCABIN_TEST_BALANCER=haproxy` through HAProxy. Each node has
//! a listener of its own for other homeservers, whose connections go to one node after another.
//!
//! [`TestServer`]: super::TestServer

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{free_address, logcabin_command, number_from_env, runs, skip};

/// How many nodes a test server has.
pub(crate) fn count() -> usize {
    usize::try_from(number_from_env(NODES, 1)).expect("a small number")
}

/// The number of nodes.
const NODES: &str = "LOGCABIN_TEST_NODES";

/// The balancer in front of them.
const BALANCER: &str = "LOGCABIN_TEST_BALANCER";

/// Ends a test that is about one server, and has nothing to show on a cluster: it says why.
macro_rules! one_server {
    ($reason:literal) => {
        if crate::harness::nodes::on_cluster($reason) {
            return;
        }
    };
}

pub(crate) use one_server;

/// Whether the tests run on a cluster. If so, says why this one is left out: see [`one_server`].
pub(crate) fn on_cluster(reason: &str) -> bool {
    let on_cluster = count() > 1;
    if on_cluster {
        println!("not on a cluster: {reason}");
    }
    on_cluster
}

/// The program `nats-server`; `LOGCABIN_NATS_SERVER` names another than that of `.ci/run`.
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

/// One or more NATS servers with JetStream that know each other. They listen on all interfaces, so
/// that nodes in other network namespaces reach them.
pub(crate) struct Nats {
    directory: TempDir,
    program: PathBuf,
    addresses: Vec<SocketAddr>,
    routes: Vec<SocketAddr>,
    monitors: Vec<SocketAddr>,
    processes: Vec<Option<Child>>,
}

impl Nats {
    /// Starts this many servers; `None`, after saying so, if the program is absent.
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
        let monitors: Vec<_> = (0..servers).map(|_| free_address()).collect();
        let processes = (0..servers).map(|_| None).collect();
        let mut nats = Self { directory, program, addresses, routes, monitors, processes };
        (0..servers).for_each(|number| nats.write_config(number, "always"));
        (0..servers).for_each(|number| nats.run(number));
        nats.until_listening();
        Some(nats)
    }

    /// Writes the configuration of a server, which syncs its files as `sync` says.
    pub(crate) fn write_config(&self, number: usize, sync: &str) {
        let store = self.store(number);
        let (port, monitor) = (self.addresses[number].port(), self.monitors[number]);
        let cluster = if self.addresses.len() == 1 {
            String::new()
        } else {
            let all = self.routes.iter().map(|route| format!("\"nats://{route}\""));
            format!(
                "cluster {{ name: \"test\", listen: \"{}\", routes: [{}], no_advertise: true }}\n",
                self.routes[number],
                all.collect::<Vec<_>>().join(", ")
            )
        };
        let text = format!(
            "server_name: \"n{number}\"\nlisten: \"0.0.0.0:{port}\"\nhttp: \"{monitor}\"\n\
             max_payload: 8MB\n\
             jetstream {{ store_dir: {store:?}, sync_interval: {sync}, max_file_store: 1TB }}\n\
             {cluster}"
        );
        fs::write(self.directory.path().join(format!("n{number}.conf")), text).expect("a file");
    }

    /// The addresses, as `--log` takes them.
    pub(crate) fn urls(&self) -> String {
        let urls: Vec<_> = self.addresses.iter().map(|one| format!("nats://{one}")).collect();
        urls.join(",")
    }

    /// The addresses as they are seen from where this machine has the address `host`.
    pub(crate) fn urls_at(&self, host: &str) -> String {
        let urls = self.addresses.iter().map(|one| format!("nats://{host}:{}", one.port()));
        urls.collect::<Vec<_>>().join(",")
    }

    /// The monitoring addresses of the servers, as the setting takes them.
    pub(crate) fn monitors(&self) -> String {
        let urls: Vec<_> = self.monitors.iter().map(|one| format!("http://{one}")).collect();
        urls.join(",")
    }

    /// The directory in which a server keeps its data.
    pub(crate) fn store(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("store-{number}"))
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

    /// Waits until all servers accept connections.
    pub(crate) fn until_listening(&self) {
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

/// Where other homeservers reach the nodes.
pub(crate) const FEDERATION_BIND: &str = "LOGCABIN_FEDERATION_BIND";

/// What a test server has as a cluster.
pub(super) struct Nodes {
    pub(super) nats: Nats,
    directory: TempDir,
    addresses: Vec<SocketAddr>,
    front: SocketAddr,
    balancer: Option<Child>,
    is_begun: AtomicBool,
    /// For other homeservers: where each node listens, and what is in front of them.
    for_servers: OnceLock<(Vec<SocketAddr>, Balancer)>,
}

/// How a node is started.
pub(super) struct NodePlan {
    pub(super) address: SocketAddr,
    pub(super) arguments: Vec<OsString>,
    /// Settings that differ from those of other nodes.
    pub(super) settings: Vec<(String, String)>,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if let Some(mut balancer) = self.balancer.take() {
            let _ = balancer.kill();
            let _ = balancer.wait();
        }
    }
}

impl Nodes {
    /// A NATS server, `count` nodes, and a proxy at `front`.
    pub(super) fn new(count: usize, front: SocketAddr) -> Self {
        let nats = Nats::start("a cluster", 1).expect("tests on a cluster need nats-server");
        let addresses: Vec<_> = (0..count).map(|_| free_address()).collect();
        let directory = TempDir::new().expect("a temporary directory");
        let balancer = match std::env::var(BALANCER).as_deref() {
            Ok("haproxy") => Some(haproxy(directory.path(), front, &addresses)),
            Ok(other) => panic!("{BALANCER}: there is no balancer `{other}`"),
            Err(_) => {
                let nodes = addresses.clone();
                // On a thread of its own: it serves tests whose runtime may be blocked.
                std::thread::spawn(move || {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build();
                    runtime.expect("a runtime").block_on(balance(front, nodes));
                });
                None
            }
        };
        let (is_begun, for_servers) = (AtomicBool::new(false), OnceLock::new());
        Self { nats, directory, addresses, front, balancer, is_begun, for_servers }
    }

    /// How each node is started; the first has its data in `data_dir`. `settings` are those of the
    /// server.
    pub(super) fn plans(&self, data_dir: &Path, settings: &[(String, String)]) -> Vec<NodePlan> {
        let bind = settings.iter().rev().find(|(name, _)| name == FEDERATION_BIND);
        let for_servers = bind.map(|(_, bind)| {
            let front = bind.parse().expect("an address");
            let (binds, _) = self.for_servers.get_or_init(|| {
                let binds: Vec<_> = self.addresses.iter().map(|_| free_address()).collect();
                (binds.clone(), Balancer::start(front, binds))
            });
            binds
        });
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
            let own = for_servers.map(|binds| binds[number].to_string());
            let settings = own.into_iter().map(|bind| (FEDERATION_BIND.to_owned(), bind)).collect();
            NodePlan { address: *address, arguments, settings }
        };
        self.addresses.iter().enumerate().map(node).collect()
    }

    /// Makes a cluster of the log that an earlier server left in `data_dir`, if there is one.
    pub(super) fn adopt(&self, data_dir: &Path, settings: &[(String, String)]) {
        let log = data_dir.join("log");
        if self.is_begun.swap(true, Ordering::Relaxed) || !log.join("tails").exists() {
            return;
        }
        // The cluster of that server is gone with it.
        let _ = fs::remove_file(log.join("cluster.json"));
        let moved = logcabin_command()
            .args(["cluster", "move-in", "--log", &self.nats.urls(), "--data-dir"])
            .arg(data_dir)
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .env_remove(NODES)
            .output();
        let moved = moved.expect("the program can be started");
        assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
    }

    /// The settings of all nodes.
    pub(super) fn settings(&self) -> Vec<(String, String)> {
        vec![
            ("LOGCABIN_LOG_REPLICAS".to_owned(), "1".to_owned()),
            ("LOGCABIN_SERVER_PUBLIC_URL".to_owned(), format!("http://{}", self.front)),
            // Others can reach that address, for all that the server knows.
            ("LOGCABIN_REGISTRATION_OPEN".to_owned(), "true".to_owned()),
        ]
    }
}

/// A balancer for the listeners for other homeservers: each connection goes to the next node, or
/// to the one after it if that takes none.
pub(crate) struct Balancer(watch::Sender<Vec<SocketAddr>>);

impl Balancer {
    /// Listens at `front`, until it is dropped.
    pub(crate) fn start(front: SocketAddr, nodes: Vec<SocketAddr>) -> Self {
        let (nodes, seen) = watch::channel(nodes);
        let listener = std::net::TcpListener::bind(front).expect("the address is free");
        listener.set_nonblocking(true).expect("a socket");
        // On a thread of its own: it serves tests whose runtime may be blocked.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(pass_connections_on(listener, seen));
        });
        Self(nodes)
    }

    /// From now on, connections go to these nodes. Those to other nodes end.
    pub(crate) fn use_only(&self, nodes: &[SocketAddr]) {
        self.0.send_replace(nodes.to_vec());
    }
}

async fn pass_connections_on(
    listener: std::net::TcpListener,
    mut nodes: watch::Receiver<Vec<SocketAddr>>,
) {
    let listener = TcpListener::from_std(listener).expect("a socket");
    let mut number = 0;
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            // It is dropped.
            changed = nodes.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        let Ok((mut stream, _)) = stream else { continue };
        let mut nodes = nodes.clone();
        number += 1;
        tokio::spawn(async move {
            let there = nodes.borrow_and_update().clone();
            for next in 0..there.len() {
                let node = there[(number + next) % there.len()];
                let Ok(mut to) = TcpStream::connect(node).await else { continue };
                tokio::select! {
                    _ = copy_bidirectional(&mut stream, &mut to) => {}
                    _ = nodes.wait_for(|nodes| !nodes.contains(&node)) => {}
                }
                return;
            }
        });
    }
}

/// Starts HAProxy, which sends each request to the next node.
fn haproxy(directory: &Path, front: SocketAddr, nodes: &[SocketAddr]) -> Child {
    let servers = nodes.iter().enumerate();
    let servers = servers.map(|(number, node)| format!(" server node-{number} {node}\n"));
    let config = format!(
        "defaults\n mode http\n timeout connect 5s\n timeout client 120s\n timeout server 120s\n \
         option redispatch\n retries 3\nlisten nodes\n bind {front}\n balance roundrobin\n \
         http-response set-header x-test-node %s\n{}",
        servers.collect::<String>()
    );
    let path = directory.join("haproxy.cfg");
    fs::write(&path, config).expect("a file");
    // Debian installs it where only root looks.
    let program = ["haproxy", "/usr/sbin/haproxy"].into_iter().find(|one| runs(one, &["-v"]));
    Command::new(program.expect("HAProxy is installed"))
        .arg("-db")
        .arg("-f")
        .arg(path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("HAProxy can be started")
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
) -> std::io::Result<Response<Body>> {
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
        // As if the node itself had been asked: the connection ends.
        Err(_) => return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
    })
}
