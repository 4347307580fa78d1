//! Three homeservers, between which the network is cut for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::synapse::{self, Synapse};
use super::view::{join, say, state, until_member, until_says, whole_state};
use super::{Federated, authority};
use crate::harness::{User, encode, free_address, skip, until, until_ok};

/// The network between homeservers of this machine. Each is reached at a gate of its own, which
/// tells by the process that connects whether the two are on the same side.
#[derive(Clone)]
struct Network {
    /// Who is cut off from the others.
    apart: watch::Sender<BTreeSet<usize>>,
    processes: Arc<Mutex<BTreeMap<u32, usize>>>,
}

impl Network {
    fn new() -> Self {
        Self { apart: watch::Sender::default(), processes: Arc::default() }
    }

    /// Opens the gate of a server.
    async fn gate(&self, of: usize, at: SocketAddr, server: SocketAddr) {
        let listener = TcpListener::bind(at).await.expect("the address is free");
        let this = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, from)) = listener.accept().await {
                let this = this.clone();
                tokio::spawn(async move { this.pass(stream, (from, at), of, server).await });
            }
        });
    }

    async fn pass(
        &self,
        mut stream: TcpStream,
        (from, at): (SocketAddr, SocketAddr),
        of: usize,
        server: SocketAddr,
    ) {
        let Some(by) = self.owner(from, at) else { return };
        let mut apart = self.apart.subscribe();
        let is_cut = |apart: &BTreeSet<usize>| apart.contains(&by) != apart.contains(&of);
        if is_cut(&apart.borrow_and_update()) {
            return;
        }
        let Ok(mut to) = TcpStream::connect(server).await else { return };
        tokio::select! {
            _ = copy_bidirectional(&mut stream, &mut to) => {}
            _ = apart.wait_for(|apart| is_cut(apart)) => {}
        }
    }

    /// Whose connection this is.
    fn owner(&self, from: SocketAddr, at: SocketAddr) -> Option<usize> {
        let address = |address: SocketAddr| format!("0100007F:{:04X}", address.port());
        let (from, at) = (address(from), address(at));
        let table = fs::read_to_string("/proc/net/tcp").ok()?;
        let mut rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row.get(1) == Some(&&*from) && row.get(2) == Some(&&*at))?;
        let socket = format!("socket:[{}]", row.get(9)?);
        let processes = self.processes.lock().expect("no panic").clone();
        processes.into_iter().find_map(|(process, server)| {
            let files = fs::read_dir(format!("/proc/{process}/fd")).ok()?;
            let mut files = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
            files.any(|file| file.to_string_lossy() == socket).then_some(server)
        })
    }

    /// Cuts these servers off from the others; none ends that.
    fn cut(&self, apart: &[usize]) {
        self.apart.send_replace(apart.iter().copied().collect());
    }
}

struct Three {
    network: Network,
    cabin: Federated,
    _synapses: [Synapse; 2],
    /// Ann of this server, and bob and cat of Synapses of their own.
    users: [User; 3],
}

async fn three(test: &str) -> Option<Three> {
    let authority = authority(test)?;
    let python = synapse::python().map_err(|missing| skip(test, &missing)).ok()?;
    if !cfg!(target_os = "linux") {
        skip(test, "whose connection is whose is known on Linux only");
        return None;
    }
    let network = Network::new();
    let inner = free_address();
    let bind = inner.to_string();
    let unlimited =
        [("LOGCABIN_FEDERATION_BIND", &*bind), ("LOGCABIN_RATE_LIMITS_ENABLED", "false")];
    let cabin = Federated::start_with(&authority, &unlimited).await;
    network.gate(0, cabin.address, inner).await;
    let mut synapses = Vec::new();
    for number in [1, 2] {
        let (outer, inner) = (free_address(), free_address());
        let name = format!("localhost:{}", outer.port());
        synapses.push(Synapse::start_as(&python, &authority, name, inner).await);
        network.gate(number, outer, inner).await;
    }
    let synapses: [Synapse; 2] = synapses.try_into().ok()?;
    let processes = [cabin.server.process(), synapses[0].process(), synapses[1].process()];
    let processes = processes.into_iter().enumerate();
    let processes = processes.filter_map(|(server, process)| Some((process?, server))).collect();
    *network.processes.lock().expect("no panic") = processes;
    let ann = cabin.server.register("ann").await;
    let users = [ann, synapses[0].register("bob").await, synapses[1].register("cat").await];
    Some(Three { network, cabin, _synapses: synapses, users })
}

/// What all see, once it is the same.
async fn until_all_see_the_same(room_id: &str, users: &[User; 3]) -> Vec<String> {
    until_ok("all see the same state", async || {
        let mut states = Vec::new();
        for user in users {
            states.push(whole_state(user, room_id).await);
        }
        let same = states.iter().all(|state| *state == states[0]);
        if same { Ok(states.swap_remove(0)) } else { Err(differences(&states)) }
    })
    .await
}

/// What is not in all of them.
fn differences(states: &[Vec<String>]) -> Vec<Vec<String>> {
    let is_common = |event: &String| states.iter().all(|state| state.contains(event));
    let differs =
        |state: &Vec<String>| state.iter().filter(|event| !is_common(event)).cloned().collect();
    states.iter().map(differs).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_homeservers_agree_after_the_network_was_cut() {
    crate::harness::nodes::one_server!("it tells connections apart by the process");
    let Some(three) = three("a cut network").await else { return };
    let (network, users) = (&three.network, &three.users);
    for version in ["1", "2", "6", "10", "12"] {
        // Each is alone once.
        for alone in [0, 1, 2] {
            cut_and_healed(network, &three.cabin.name, users, version, alone).await;
        }
    }
}

async fn cut_and_healed(
    network: &Network,
    cabin: &str,
    users: &[User; 3],
    version: &str,
    alone: usize,
) {
    let [ann, bob, cat] = users;
    let alias = format!("split{version}{alone}");
    let options = json!({
        "preset": "public_chat", "room_alias_name": alias, "room_version": version,
        "power_level_content_override": { "users_default": 0, "events": { "m.room.topic": 0 } },
    });
    let room_id = ann.create_room(options).await;
    for user in [bob, cat] {
        join(user, &format!("#{alias}:{cabin}")).await;
        until_member(ann, &room_id, user, "join").await;
    }
    until_member(bob, &room_id, cat, "join").await;
    let set_power = async |by: &User, of: &User, power: u64| {
        let mut levels = state(by, &room_id, "m.room.power_levels", "").await;
        levels["users"][&of.user_id] = json!(power);
        by.set_state(&room_id, "m.room.power_levels", "", &levels).await
    };
    set_power(ann, bob, 90).await.ok();
    set_power(ann, cat, 80).await.ok();
    let power = async |by: &User, of: &User| {
        state(by, &room_id, "m.room.power_levels", "").await["users"][&of.user_id].clone()
    };
    for user in users {
        until("all know who may do what", async || power(user, cat).await == 80).await;
    }
    until_all_see_the_same(&room_id, users).await;

    network.cut(&[alone]);
    // Each does what the others do, too, and some of it takes power from others.
    for (number, user) in users.iter().enumerate() {
        let topic = json!({ "topic": format!("by {}", user.user_id) });
        user.set_state(&room_id, "m.room.topic", "", &topic).await.ok();
        let name = json!({ "name": format!("number {number}") });
        user.set_state(&room_id, "m.room.name", "", &name).await.ok();
        say(user, &room_id, &format!("does anybody hear {number}?")).await;
        let target =
            json!({ "user_id": format!("@spam:elsewhere{number}.example"), "reason": "x" });
        let path = format!("/rooms/{}/ban", encode(&room_id));
        user.request("POST", &path, Some(&target)).await.ok();
        user.set_state(&room_id, "org.example.seat", "one", &json!({ "by": number })).await.ok();
    }
    let lowered = set_power(bob, cat, 10).await;
    let raised = set_power(ann, bob, 50).await;
    assert!(raised.status == 200 && lowered.status == 200, "{raised:?} {lowered:?}");
    let name = json!({ "name": "the last word of cat" });
    let named = cat.set_state(&room_id, "m.room.name", "", &name).await;
    assert!(matches!(named.status, 200 | 403), "{named:?}");
    let seen = whole_state(&users[alone], &room_id).await;
    let elsewhere = whole_state(&users[(alone + 1) % 3], &room_id).await;
    assert_ne!(seen, elsewhere, "the network was not cut");

    network.cut(&[]);
    // What is said from now on joins the branches, whoever says it.
    for round in 0..3 {
        for (number, user) in users.iter().enumerate() {
            let body = format!("{version} {alone} {round} {number}");
            say(user, &room_id, &body).await;
            until_says(&users[(number + 1) % 3], &room_id, user, &body).await;
            until_says(&users[(number + 2) % 3], &room_id, user, &body).await;
        }
    }
    let agreed = until_all_see_the_same(&room_id, users).await;
    assert!(agreed.len() > 10, "{agreed:?}");
}
