//! Nodes on NATS servers, each of which can fail by itself.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::nodes::Nats;
use crate::harness::{
    Answer, Http, Random, Unreachable, User, free_address, program, run_logcabin, runs, until,
    until_ok, without_settings,
};

/// How long a client waits for an answer before it asks another node.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);

/// How a fleet differs from the ordinary one.
#[derive(Default)]
pub(crate) struct Plan {
    /// Whether each node is in a network of its own, from which NATS can be cut off.
    pub(crate) networks: bool,
    /// Whether the clock of the last node is an hour ahead.
    pub(crate) clocks_apart: bool,
    /// Whether there is one NATS server instead of three.
    pub(crate) one_nats: bool,
    /// The server's name, if it is of importance.
    pub(crate) server_name: Option<String>,
    /// More settings.
    pub(crate) settings: Vec<(String, String)>,
    /// Settings that differ from node to node: a name, and the value of each node.
    pub(crate) by_node: Vec<(String, Vec<String>)>,
}

/// The nodes and NATS servers.
pub(crate) struct Fleet {
    pub(crate) nats: Nats,
    pub(crate) nodes: Vec<Node>,
    _directory: TempDir,
}

/// A node.
pub(crate) struct Node {
    name: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) address: SocketAddr,
    network: Option<Network>,
    arguments: Vec<OsString>,
    settings: Vec<(String, String)>,
    wrapper: Vec<String>,
    child: Option<Child>,
}

impl Fleet {
    /// Starts three NATS servers and as many nodes; `None`, after saying so, without the programs.
    pub(crate) async fn start(test: &str, count: usize, plan: Plan) -> Option<Self> {
        let mut fleet = Self::plan(test, count, plan)?;
        for node in &mut fleet.nodes {
            node.run();
        }
        fleet.until_ready().await;
        Some(fleet)
    }

    /// The same without starting the nodes.
    pub(crate) fn plan(test: &str, count: usize, plan: Plan) -> Option<Self> {
        let nats = Nats::start(test, if plan.one_nats { 1 } else { 3 })?;
        let server_name = plan.server_name.as_deref().unwrap_or("e2e.test");
        let directory = TempDir::new().expect("a temporary directory");
        let nodes = (0..count).map(|number| {
            let network = plan.networks.then(|| Network::make(number));
            let bind = free_address();
            let address = match &network {
                None => bind,
                Some(network) => SocketAddr::new(network.inside, bind.port()),
            };
            let servers = match &network {
                None => nats.urls(),
                Some(network) => nats.urls_at(&network.to_nats),
            };
            let name = format!("node-{number}");
            let data_dir = directory.path().join(&name);
            let arguments: Vec<OsString> = vec![
                "serve".into(),
                "--server-name".into(),
                server_name.into(),
                "--data-dir".into(),
                data_dir.clone().into(),
                "--bind".into(),
                address.to_string().into(),
                "--log".into(),
                servers.into(),
            ];
            let mut settings: Vec<_> = [
                ("LOGCABIN_PASSWORDS_ITERATIONS", "1000"),
                ("LOGCABIN_RATE_LIMITS_ENABLED", "false"),
                ("LOGCABIN_REGISTRATION_OPEN", "true"),
                ("LOGCABIN_SERVER_PUBLIC_URL", "http://e2e.test"),
                ("LOGCABIN_LOG_NODE", &name),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
            if !plan.networks {
                settings.push(("LOGCABIN_LOG_MONITORS".to_owned(), nats.monitors()));
            }
            if plan.one_nats {
                settings.push(("LOGCABIN_LOG_REPLICAS".to_owned(), "1".to_owned()));
            }
            settings.extend(plan.settings.iter().cloned());
            let own = plan.by_node.iter().map(|(name, values)| (name, &values[number]));
            settings.extend(own.map(|(name, value)| (name.clone(), value.clone())));
            let mut wrapper = Vec::new();
            if let Some(network) = &network {
                wrapper.extend(["ip", "netns", "exec", &network.name].map(str::to_owned));
            }
            if plan.clocks_apart && number + 1 == count {
                settings.push(("FAKETIME_DONT_FAKE_MONOTONIC".to_owned(), "1".to_owned()));
                wrapper.extend(["faketime", "-f", "+1h"].map(str::to_owned));
            }
            Node { name, data_dir, address, network, arguments, settings, wrapper, child: None }
        });
        let nodes = nodes.collect();
        Some(Self { nats, nodes, _directory: directory })
    }

    /// Waits until every node answers.
    pub(crate) async fn until_ready(&self) {
        for node in &self.nodes {
            let http = node.http();
            until(&format!("{} answers", node.name), async || {
                let asked = http.try_request("GET", "/_matrix/client/versions", None, None);
                let asked = tokio::time::timeout(ANSWER_WITHIN, asked).await;
                asked.is_ok_and(|asked| asked.is_ok_and(|answer| answer.status == 200))
            })
            .await;
        }
    }

    /// A client that asks any node.
    pub(super) fn front(&self, random: Random) -> Front {
        Front { nodes: self.nodes.iter().map(Node::http).collect(), random }
    }

    /// What `logcabin cluster status` says on a node.
    pub(crate) fn status(&self, node: usize) -> Value {
        let arguments = ["cluster", "status", "--json", "--data-dir"].map(OsStr::new);
        let data_dir = self.nodes[node].data_dir.as_os_str();
        let output = run_logcabin(arguments.into_iter().chain([data_dir]));
        serde_json::from_slice::<Value>(&output.stdout)
            .unwrap_or_else(|_| json!({ "error": String::from_utf8_lossy(&output.stderr) }))
    }

    /// The NATS server that leads the stream, if there is one.
    pub(super) fn leader(&self) -> Option<usize> {
        let status = self.status(0);
        status["stream"]["leader"].as_str()?.strip_prefix('n')?.parse().ok()
    }

    /// Waits until the NATS servers agree, and all nodes have the same records; gives their number.
    pub(crate) async fn until_equal(&self) -> u64 {
        let mut offset = 0;
        until_ok("all nodes have the same records", async || {
            let status = self.status(0);
            let Some(nodes) = status["nodes"].as_array() else { return Err(status) };
            let Some(first) = nodes.first() else { return Err(status) };
            let equal = nodes.iter().all(|node| {
                (&node["offset"], &node["chain"]) == (&first["offset"], &first["chain"])
            });
            let last = &status["stream"]["last"];
            offset = first["offset"].as_u64().unwrap_or_default();
            let replicas = status["stream"]["replicas"].as_array().map_or(&[][..], Vec::as_slice);
            let agree = replicas.iter().all(|replica| replica["is_current"] == true);
            let lags = !agree || nodes.iter().any(|node| node["sequence"] != *last);
            if nodes.len() == self.nodes.len() && equal && !lags { Ok(()) } else { Err(status) }
        })
        .await;
        offset
    }
}

impl Node {
    /// Starts the process.
    pub(crate) fn run(&mut self) {
        let mut line = self.wrapper.iter().map(OsString::from).chain([program()]);
        let log = self.data_dir.with_extension("log");
        let log = fs::File::options().create(true).append(true).open(log).expect("a file");
        let mut command = Command::new(line.next().expect("at least the program"));
        let child = without_settings(&mut command)
            .args(line)
            .args(&self.arguments)
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.expect("the program can be started"));
    }

    /// What it has printed.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.data_dir.with_extension("log")).unwrap_or_default()
    }

    pub(crate) fn http(&self) -> Http {
        Http::new(&format!("http://{}", self.address))
    }

    /// The id of its process.
    pub(crate) fn process(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether its process runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Kills the process, if it runs.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = signal("KILL", child.id());
            let _ = child.wait();
        }
    }

    /// Ends the process and waits until it has ended; panics if it does not end well.
    pub(crate) fn stop(&mut self) {
        let mut child = self.child.take().expect("the node runs");
        assert!(signal("TERM", child.id()));
        let status = child.wait().expect("the node can be waited for");
        assert!(status.success(), "{} ended with {status}:\n{}", self.name, self.output());
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, name: &str) {
        let child = self.child.as_ref().expect("the node runs");
        assert!(signal(name, child.id()), "SIG{name} cannot be sent to {}", self.name);
    }

    /// Cuts this node off from NATS, or connects it again.
    pub(super) fn cut_off(&self, is_cut_off: bool) {
        let network = self.network.as_ref().expect("the node has a network of its own");
        network.cut_off(is_cut_off);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let output = self.output();
            let skipped = output.lines().count().saturating_sub(40);
            let last: Vec<_> = output.lines().skip(skipped).collect();
            println!("the last lines of {}:\n{}", self.name, last.join("\n"));
        }
    }
}

/// Sends a signal to a process, or to its children: a program under faketime is one.
pub(crate) fn signal(name: &str, process: u32) -> bool {
    let children = format!("/proc/{process}/task/{process}/children");
    let children = fs::read_to_string(children).unwrap_or_default();
    let send = |process: &str| {
        Command::new("kill")
            .args(["-s", name, process])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if children.trim().is_empty() {
        return send(&process.to_string());
    }
    children.split_whitespace().all(send)
}

/// A network namespace with two links to this machine: one for clients, and one to NATS.
struct Network {
    name: String,
    inside: std::net::IpAddr,
    to_nats: String,
    nats_link: String,
}

/// Whether network namespaces can be made here.
pub(super) fn has_networks() -> bool {
    let name = format!("lc{}t", std::process::id() % 10_000);
    let made = runs("ip", &["netns", "add", &name]);
    made && runs("ip", &["netns", "delete", &name])
}

impl Network {
    fn make(number: usize) -> Self {
        let process = std::process::id();
        let name = format!("lc{}n{number}", process % 10_000);
        let ip = |line: &str| {
            let arguments: Vec<_> = line.split(' ').collect();
            assert!(runs("ip", &arguments), "ip {line}");
        };
        let net = |link: usize| format!("10.{}.{}", 100 + process % 100, 10 * number + link);
        ip(&format!("netns add {name}"));
        ip(&format!("-n {name} link set lo up"));
        for (link, kind) in ["c", "n"].iter().enumerate() {
            let (host, inside) = (format!("{name}{kind}h"), format!("{name}{kind}i"));
            ip(&format!("link add {host} type veth peer name {inside} netns {name}"));
            ip(&format!("addr add {}.1/24 dev {host}", net(link)));
            ip(&format!("link set {host} up"));
            ip(&format!("-n {name} addr add {}.2/24 dev {inside}", net(link)));
            ip(&format!("-n {name} link set {inside} up"));
        }
        Self {
            inside: format!("{}.2", net(0)).parse().expect("an address"),
            to_nats: format!("{}.1", net(1)),
            nats_link: format!("{name}nh"),
            name,
        }
    }

    fn cut_off(&self, is_cut_off: bool) {
        let state = if is_cut_off { "down" } else { "up" };
        assert!(runs("ip", &["link", "set", &self.nats_link, state]));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        runs("ip", &["netns", "delete", &self.name]);
    }
}

/// A client whose every request goes to a random node, and to another one if that does not answer.
#[derive(Clone)]
pub(super) struct Front {
    nodes: Vec<Http>,
    random: Random,
}

impl Front {
    /// A client of these nodes.
    pub(super) fn of(nodes: Vec<Http>) -> Self {
        Self { nodes, random: Random::from_seed(1) }
    }

    /// The same with other choices.
    pub(super) fn clone_with(&self, random: Random) -> Self {
        Self { nodes: self.nodes.clone(), random }
    }

    /// Asks one random node. An `Err` means that nothing is known about the effect.
    pub(super) async fn ask_once(
        &mut self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Answer, Unreachable> {
        let node = self.random.between(0, self.nodes.len() as u64) as usize;
        let asked = self.nodes[node].try_request(method, path, token, body);
        match tokio::time::timeout(ANSWER_WITHIN, asked).await {
            Ok(asked) => asked,
            Err(_) => Err(Unreachable(format!("{method} {path}: no answer in time"))),
        }
    }

    /// Asks node after node until one answers with something other than a passing failure. Only for
    /// requests that may be repeated.
    pub(super) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
    ) -> Answer {
        let mut last = String::new();
        let deadline = std::time::Instant::now() + crate::harness::PATIENCE;
        while std::time::Instant::now() < deadline {
            match self.ask_once(method, path, token, body).await {
                Ok(answer) if !matches!(answer.status, 502 | 503) => return answer,
                Ok(answer) => last = answer.to_string(),
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{method} {path}: no node answered: {last}");
    }

    /// Registers a user at a random node.
    pub(super) async fn register(&mut self, name: &str) -> User {
        let node = self.random.between(0, self.nodes.len() as u64) as usize;
        User::register(&self.nodes[node], name, &format!("correct horse {name}")).await
    }
}
