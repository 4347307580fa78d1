//! A server of several nodes, each with a listener for other homeservers behind a balancer.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::Value;

use super::hostile::Hostile;
use super::peer::Peer;
use super::{Authority, federating, name_at};
use crate::administration::{command, done, done_json};
use crate::cluster::fleet::{Fleet, Plan};
use crate::harness::nodes::{Balancer, FEDERATION_BIND};
use crate::harness::{User, free_address, run_logcabin, until_ok};

pub(super) struct Several {
    pub(super) fleet: Fleet,
    /// The name of the server.
    pub(super) name: String,
    /// Where each node listens for other homeservers.
    pub(super) binds: Vec<SocketAddr>,
    /// What is in front of them.
    pub(super) balancer: Balancer,
}

impl Several {
    /// Starts two nodes; `None`, after saying so, without NATS.
    pub(super) async fn start(test: &str, authority: &Authority) -> Option<Self> {
        Self::start_with(test, authority, &[]).await
    }

    /// The same with more settings.
    pub(super) async fn start_with(
        test: &str,
        authority: &Authority,
        more: &[(&'static str, &str)],
    ) -> Option<Self> {
        let front = free_address();
        let binds: Vec<_> = (0..2).map(|_| free_address()).collect();
        let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let settings = federating(authority, front).into_iter().chain(more);
        let plan = Plan {
            one_nats: true,
            server_name: Some(name_at(front)),
            settings: settings.map(|(name, value)| (name.to_owned(), value)).collect(),
            by_node: vec![(
                FEDERATION_BIND.to_owned(),
                binds.iter().map(SocketAddr::to_string).collect(),
            )],
            ..Plan::default()
        };
        let fleet = Fleet::start(test, binds.len(), plan).await?;
        let balancer = Balancer::start(front, binds.clone());
        Some(Self { fleet, name: name_at(front), binds, balancer })
    }

    /// A homeserver that sends to a node what concerns a room.
    pub(super) fn peer<'a>(&self, peer: &'a Peer, node: usize, room_id: &str) -> Hostile<'a> {
        Hostile::at(peer, &self.name, self.binds[node], room_id)
    }

    pub(super) async fn register(&self, node: usize, name: &str) -> User {
        User::register(&self.fleet.nodes[node].http(), name, "a password that is long enough").await
    }

    /// The same user at another node.
    pub(super) fn at(&self, node: usize, user: &User) -> User {
        User { http: self.fleet.nodes[node].http(), ..user.clone() }
    }

    /// The node that tells other homeservers, once one of these does.
    pub(super) async fn teller(&self, among: &[usize]) -> usize {
        until_ok("a node tells other homeservers", async || {
            let status = self.fleet.status(among[0]);
            let mut work = status["work"].as_array().into_iter().flatten();
            let node = work.find(|work| work["name"] == "federation").map(|work| &work["node"]);
            let number = node.and_then(|node| node.as_str()?.strip_prefix("node-")?.parse().ok());
            number.filter(|node| among.contains(node)).ok_or(status)
        })
        .await
    }

    /// What `logcabin federation` says at a node.
    pub(super) fn federation(&self, node: usize, arguments: &str) -> Value {
        let data_dir = &self.fleet.nodes[node].data_dir;
        done_json(command("federation", data_dir, &format!("{arguments} --json"), ""))
    }

    /// The records of these kinds in the log of a node.
    pub(super) fn records(&self, node: usize, kinds: &str) -> Vec<Value> {
        let data_dir = self.fleet.nodes[node].data_dir.display().to_string();
        let line = ["history", "tail", &data_dir, "--no-follow", "-n", "100000", "--kind", kinds];
        let said = done(run_logcabin(line.into_iter().chain(["--json"])));
        said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Stops all, and compares what the nodes have: the same records, and the same state by them.
    pub(super) async fn ends_with_the_same_state(mut self) {
        self.fleet.until_equal().await;
        // A node that stops writes a last record. Without NATS, all end with the same one.
        self.fleet.nats.kill(0);
        let mut digests = BTreeSet::new();
        for node in &mut self.fleet.nodes {
            node.kill();
            let of = ["--data-dir".as_ref(), node.data_dir.as_os_str()];
            done(run_logcabin(["verify".as_ref()].into_iter().chain(of)));
            let said = done(run_logcabin(["replay".as_ref()].into_iter().chain(of)));
            let digest = said.lines().find(|line| line.starts_with("Digest")).map(str::to_owned);
            digests.insert(digest.unwrap_or_else(|| panic!("no digest in {said}")));
        }
        assert_eq!(digests.len(), 1, "the state differs: {digests:?}");
    }
}
