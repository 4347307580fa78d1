//! Nodes and NATS servers fail in every way while clients write and read through all nodes. No
//! acknowledged write is lost, repeated or reordered, all nodes have the same records, no client
//! reads less than it has seen, and nothing that may be given out once is given out twice.
//!
//! `LOGCABIN_CLUSTER_ROUNDS` sets the number of rounds (default 8), `LOGCABIN_CLUSTER_SEED` repeats
//! a run's choices.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fleet::{Fleet, Front, Plan, has_networks};
use crate::harness::{
    DeviceKeys, Random, User, alone, encode, number_from_env, run_logcabin, runs,
};

const WRITERS: usize = 4;
const ROOMS: usize = 2;

/// What fails in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// A node is killed with SIGKILL.
    KillNode,
    /// A node is stopped with SIGSTOP, and goes on later.
    PauseNode,
    /// A NATS server that does not lead is killed.
    KillNats,
    /// The NATS server that leads the stream is killed.
    KillLeader,
    /// All NATS servers are killed, so that there is no quorum.
    KillAllNats,
    /// The NATS server that leads is stopped with SIGSTOP, and goes on later.
    PauseLeader,
    /// A node does not reach NATS any more, but clients reach the node.
    Partition,
    /// The disk of a NATS server is full.
    FullDisk,
}

/// A client that writes numbered messages into a room, one after the other, and reads them back.
struct Writer {
    front: Front,
    user: User,
    room_id: String,
    label: String,
    acknowledged: Vec<String>,
    /// The longest time between two acknowledged writes since the fault.
    longest: Duration,
    random: Random,
}

impl Writer {
    fn text(&self, number: usize) -> String {
        format!("{} {number}", self.label)
    }

    /// Writes until it is told to stop, and then until the last message is acknowledged.
    async fn run(mut self, stop: Arc<AtomicBool>) -> Self {
        self.longest = Duration::ZERO;
        let mut since = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let number = self.acknowledged.len();
            let (room, txn) = (encode(&self.room_id), format!("{}-{number}", self.label));
            let path = format!("/_matrix/client/v3/rooms/{room}/send/m.room.message/{txn}");
            let body = json!({ "msgtype": "m.text", "body": self.text(number) });
            let token = self.user.access_token.clone();
            let sent = self.front.ask("PUT", &path, Some(&token), Some(&body)).await;
            let event_id = sent.ok_string("event_id");
            self.longest = self.longest.max(since.elapsed());
            since = Instant::now();
            self.acknowledged.push(event_id.clone());
            if self.random.between(0, 3) == 0 {
                self.read_back(&event_id).await;
            }
            // All of them together would take the processors from those who recover.
            tokio::time::sleep(Duration::from_millis(self.random.between(0, 40))).await;
        }
        self
    }

    /// Whichever node answers has the event, unless it says that it may lag behind.
    async fn read_back(&mut self, event_id: &str) {
        let (room, event) = (encode(&self.room_id), encode(event_id));
        let path = format!("/_matrix/client/v3/rooms/{room}/event/{event}");
        let token = self.user.access_token.clone();
        if let Ok(answer) = self.front.ask_once("GET", &path, Some(&token), None).await {
            let may_lag = answer.header("warning").starts_with("110");
            assert!(
                answer.status == 200 || may_lag || matches!(answer.status, 502 | 503),
                "{}: its own message is not there: {answer}",
                self.label
            );
        }
    }
}

/// A client that follows its rooms through all nodes.
struct Watcher {
    front: Front,
    user: User,
    since: String,
    seen: HashMap<String, Vec<(String, String)>>,
}

/// Small on purpose: a watcher that falls behind gets `limited` timelines.
const FILTER: &str = r#"{"room":{"timeline":{"limit":20}},"presence":{"not_types":["*"]}}"#;

fn messages(events: &Value) -> Vec<(String, String)> {
    let events = events.as_array().map(Vec::as_slice).unwrap_or_default();
    let message = |event: &Value| {
        let text = event["content"]["body"].as_str()?;
        Some((event["event_id"].as_str()?.to_owned(), text.to_owned()))
    };
    let all = events.iter().filter(|event| event["type"] == "m.room.message");
    all.filter_map(message).collect()
}

impl Watcher {
    async fn start(mut front: Front, user: User) -> Self {
        let path = format!("/_matrix/client/v3/sync?filter={}", encode(FILTER));
        let first = front.ask("GET", &path, Some(&user.access_token), None).await;
        let since = first.ok_string("next_batch");
        Self { front, user, since, seen: HashMap::new() }
    }

    /// One sync; tells whether there was news.
    async fn step(&mut self, timeout_ms: u64) -> bool {
        let path = format!(
            "/_matrix/client/v3/sync?since={}&timeout={timeout_ms}&filter={}",
            self.since,
            encode(FILTER)
        );
        let token = self.user.access_token.clone();
        let body = self.front.ask("GET", &path, Some(&token), None).await.ok();
        let mut any = false;
        let none = serde_json::Map::new();
        for (room_id, room) in body["rooms"]["join"].as_object().unwrap_or(&none) {
            let timeline = &room["timeline"];
            let mut news = Vec::new();
            if timeline["limited"] == true {
                let from = timeline["prev_batch"].as_str().expect("a prev_batch").to_owned();
                news = page_back(&mut self.front, &token, room_id, Some(from), &self.since).await;
            }
            news.extend(messages(&timeline["events"]));
            any |= !news.is_empty();
            self.seen.entry(room_id.clone()).or_default().extend(news);
        }
        self.since = body["next_batch"].as_str().expect("a next_batch").to_owned();
        any
    }

    async fn run(mut self, stop: Arc<AtomicBool>) -> Self {
        while !stop.load(Ordering::Relaxed) {
            self.step(1_000).await;
        }
        self
    }
}

/// The messages of a room from `from` (the end) back to `to` (the beginning), oldest first.
async fn page_back(
    front: &mut Front,
    token: &str,
    room_id: &str,
    mut from: Option<String>,
    to: &str,
) -> Vec<(String, String)> {
    let mut newest_first = Vec::new();
    loop {
        let mut path =
            format!("/_matrix/client/v3/rooms/{}/messages?dir=b&limit=100", encode(room_id));
        if let Some(from) = &from {
            path += &format!("&from={from}");
        }
        if !to.is_empty() {
            path += &format!("&to={to}");
        }
        let page = front.ask("GET", &path, Some(token), None).await.ok();
        newest_first.extend(messages(&page["chunk"]));
        match page["end"].as_str() {
            Some(end) if from.as_deref() != Some(end) => from = Some(end.to_owned()),
            _ => break,
        }
    }
    newest_first.reverse();
    newest_first
}

/// Registers one name at several nodes at once; at most one attempt succeeds.
async fn race_for_a_name(front: &Front, random: &mut Random, name: &str) {
    let attempts = (0..3).map(|_| {
        let mut front = front.clone_with(random.split());
        let body = json!({ "username": name, "password": "correct horse battery",
                           "auth": { "type": "m.login.dummy" } });
        tokio::spawn(async move {
            let path = "/_matrix/client/v3/register";
            front.ask_once("POST", path, None, Some(&body)).await.map(|answer| answer.status)
        })
    });
    let attempts: Vec<_> = attempts.collect();
    let mut successes = 0;
    for attempt in attempts {
        successes += u32::from(matches!(attempt.await.expect("no panic"), Ok(200)));
    }
    assert!(successes <= 1, "the name {name} was given {successes} times");
}

/// Claims the one-time keys of a device, several at once; each is given out once.
async fn claim_keys(front: &Front, random: &mut Random, owner: &User, claimed: &mut Vec<String>) {
    let claims = (0..4).map(|_| {
        let mut front = front.clone_with(random.split());
        let token = owner.access_token.clone();
        let devices = json!({ &owner.device_id: "signed_curve25519" });
        let body = json!({ "one_time_keys": { &owner.user_id: devices } });
        tokio::spawn(async move {
            let path = "/_matrix/client/v3/keys/claim";
            front.ask_once("POST", path, Some(&token), Some(&body)).await
        })
    });
    let claims: Vec<_> = claims.collect();
    for claim in claims {
        let Ok(answer) = claim.await.expect("no panic") else { continue };
        if answer.status != 200 {
            continue;
        }
        let keys = &answer.body["one_time_keys"][&owner.user_id][&owner.device_id];
        for key_id in keys.as_object().into_iter().flatten().map(|(key_id, _)| key_id) {
            assert!(!claimed.contains(key_id), "the key {key_id} was given out twice");
            claimed.push(key_id.clone());
        }
    }
}

/// A disk of its own for one NATS server, which can be full.
struct SmallDisk<'a>(&'a Path);

impl SmallDisk<'_> {
    fn filler(&self) -> std::path::PathBuf {
        self.0.join("filler")
    }

    fn fill(&self) {
        let filler = self.filler();
        let mut size = 1 << 26;
        // Until not a byte is free.
        while size > 0 {
            let more = fs::read(&filler).map_or(0, |bytes| bytes.len());
            if fs::write(&filler, vec![0; more + size]).is_err() {
                size /= 2;
            }
        }
    }

    fn empty(&self) {
        let _ = fs::remove_file(self.filler());
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        runs("umount", &["-l", &self.0.display().to_string()]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_of_a_node_or_a_nats_server_loses_repeats_or_reorders_a_write() {
    let _alone = alone().await;
    let rounds = number_from_env("LOGCABIN_CLUSTER_ROUNDS", 8);
    let mut random = Random::from_env("LOGCABIN_CLUSTER_SEED");
    let networks = has_networks();
    if !networks {
        println!("without partitions: network namespaces cannot be made (root and iproute2)");
    }
    let clocks_apart = runs("faketime", &["-f", "+1h", "true"]);
    if !clocks_apart {
        println!("without clocks that differ: faketime is absent");
    }
    let plan = Plan { networks, clocks_apart, ..Plan::default() };
    let Some(mut fleet) = Fleet::start("cluster: faults", 3, plan).await else { return };
    let mut front = fleet.front(random.split());

    let mut users = Vec::new();
    for number in 0..WRITERS {
        users.push(front.register(&format!("writer{number}")).await);
    }
    let mut rooms = Vec::new();
    for number in 0..ROOMS {
        let room_id = users[number].create_room(json!({ "preset": "public_chat" })).await;
        for user in &users {
            user.join(&room_id).await.ok();
        }
        rooms.push(room_id);
    }
    let mut writers = Vec::new();
    let mut watchers = Vec::new();
    for (of, user) in users.iter().enumerate() {
        for (number, room_id) in rooms.iter().enumerate() {
            writers.push(Writer {
                front: front.clone_with(random.split()),
                user: user.clone(),
                room_id: room_id.clone(),
                label: format!("user{of}room{number}"),
                acknowledged: Vec::new(),
                longest: Duration::ZERO,
                random: random.split(),
            });
        }
        watchers.push(Watcher::start(front.clone_with(random.split()), user.clone()).await);
    }
    let mut claimed = Vec::new();
    let mut pauses: BTreeMap<Fault, Vec<Duration>> = BTreeMap::new();

    for round in 1..=rounds {
        let mut faults = vec![
            Fault::KillNode,
            Fault::KillLeader,
            Fault::PauseNode,
            Fault::KillAllNats,
            Fault::KillNats,
            Fault::PauseLeader,
        ];
        if networks {
            faults.extend([Fault::Partition, Fault::FullDisk]);
        }
        // The first rounds go through all of them.
        let fault = match faults.get(round as usize - 1) {
            Some(fault) => *fault,
            None => faults[random.between(0, faults.len() as u64) as usize],
        };
        let owner = DeviceKeys::of(&users[0].user_id, &users[0].device_id);
        let names: Vec<_> = (0..8).map(|key| format!("round{round}key{key}")).collect();
        let upload = json!({ "one_time_keys": owner.one_time(&names) });
        let token = users[0].access_token.clone();
        let path = "/_matrix/client/v3/keys/upload";
        let uploaded = front.ask("POST", path, Some(&token), Some(&upload)).await;
        // Rounds in which nobody could claim any leave as many as a device may have.
        assert!(uploaded.status == 200 || uploaded.status == 400, "{uploaded}");

        let stop = Arc::new(AtomicBool::new(false));
        let writing: Vec<_> =
            writers.drain(..).map(|one| tokio::spawn(one.run(Arc::clone(&stop)))).collect();
        let watching: Vec<_> =
            watchers.drain(..).map(|one| tokio::spawn(one.run(Arc::clone(&stop)))).collect();
        tokio::time::sleep(Duration::from_millis(random.between(100, 800))).await;
        let name = format!("racer{round}");
        let mut moments = random.split();
        let race = race_for_a_name(&front, &mut random, &name);
        tokio::join!(race, fail(&mut fleet, fault, &mut moments));
        claim_keys(&front, &mut random, &users[0], &mut claimed).await;
        stop.store(true, Ordering::Relaxed);
        for writer in writing {
            writers.push(writer.await.expect("the writer did not fail"));
        }
        for watcher in watching {
            watchers.push(watcher.await.expect("the watcher did not fail"));
        }
        let longest = writers.iter().map(|writer| writer.longest).max().unwrap_or_default();
        pauses.entry(fault).or_default().push(longest);
        fleet.until_ready().await;
        let records = fleet.until_equal().await;

        check(&fleet, &mut writers, &mut watchers, &rooms, round).await;
        let total: usize = writers.iter().map(|writer| writer.acknowledged.len()).sum();
        println!(
            "round {round}: {fault:?}, longest pause {longest:?}, {total} messages, {records} records"
        );
    }
    for (fault, mut pauses) in pauses {
        pauses.sort_unstable();
        println!("{fault:?}: longest pauses of clients {pauses:?}");
    }
    // A node that stops writes a last record. Without NATS, all end with the same one.
    fleet.until_equal().await;
    (0..3).for_each(|number| fleet.nats.kill(number));
    let mut digests = BTreeSet::new();
    for node in &mut fleet.nodes {
        node.kill();
        let verified =
            run_logcabin(["verify".as_ref(), "--data-dir".as_ref(), node.data_dir.as_os_str()]);
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
        let replayed =
            run_logcabin(["replay".as_ref(), "--data-dir".as_ref(), node.data_dir.as_os_str()]);
        let text = String::from_utf8_lossy(&replayed.stdout).into_owned();
        let digest = text.lines().find(|line| line.starts_with("Digest")).map(str::to_owned);
        digests.insert(digest.unwrap_or_else(|| panic!("no digest in {text}")));
    }
    assert_eq!(digests.len(), 1, "the state differs: {digests:?}");
}

/// Has something fail for a while.
async fn fail(fleet: &mut Fleet, fault: Fault, random: &mut Random) {
    let some_node = random.between(0, 3) as usize;
    let pause = Duration::from_millis(random.between(500, 6_000));
    match fault {
        Fault::KillNode => {
            fleet.nodes[some_node].kill();
            tokio::time::sleep(pause).await;
            fleet.nodes[some_node].run();
        }
        Fault::PauseNode => {
            fleet.nodes[some_node].signal("STOP");
            tokio::time::sleep(pause).await;
            fleet.nodes[some_node].signal("CONT");
        }
        Fault::KillNats | Fault::KillLeader => {
            let leader = fleet.leader().unwrap_or_default();
            let which = if fault == Fault::KillLeader { leader } else { (leader + 1) % 3 };
            fleet.nats.kill(which);
            tokio::time::sleep(pause).await;
            fleet.nats.run(which);
        }
        Fault::KillAllNats => {
            (0..3).for_each(|number| fleet.nats.kill(number));
            without_quorum(fleet).await;
            (0..3).for_each(|number| fleet.nats.run(number));
        }
        Fault::PauseLeader => {
            let leader = fleet.leader().unwrap_or_default();
            let process = fleet.nats.process(leader).expect("it runs");
            super::fleet::signal("STOP", process);
            tokio::time::sleep(pause).await;
            super::fleet::signal("CONT", process);
        }
        Fault::Partition => {
            fleet.nodes[some_node].cut_off(true);
            tokio::time::sleep(pause).await;
            fleet.nodes[some_node].cut_off(false);
        }
        Fault::FullDisk => {
            let which = fleet.leader().unwrap_or_default();
            let store = fleet.nats.store(which);
            fleet.nats.kill(which);
            let at = store.display().to_string();
            let kept = store.with_extension("kept");
            // What it had is copied to a disk that has little more room than that.
            fs::rename(&store, &kept).expect("a directory");
            fs::create_dir(&store).expect("a directory");
            assert!(runs("mount", &["-t", "tmpfs", "-o", "size=256m", "tmpfs", &at]));
            let disk = SmallDisk(&store);
            assert!(runs("cp", &["-a", &format!("{}/.", kept.display()), &at]));
            fleet.nats.run(which);
            tokio::time::sleep(Duration::from_millis(random.between(500, 1_500))).await;
            disk.fill();
            tokio::time::sleep(pause).await;
            fleet.nats.kill(which);
            disk.empty();
            // Not over what was there: files that are gone must not come back.
            fs::remove_dir_all(&kept).expect("a directory");
            assert!(runs("cp", &["-a", &at, &kept.display().to_string()]));
            drop(disk);
            fs::remove_dir(&store).expect("a directory");
            fs::rename(&kept, &store).expect("a directory");
            fleet.nats.run(which);
        }
    }
}

/// Without NATS, every node refuses writes and serves reads.
async fn without_quorum(fleet: &Fleet) {
    for node in &fleet.nodes {
        let http = node.http();
        let read = http.try_request("GET", "/_matrix/client/versions", None, None);
        let read = tokio::time::timeout(Duration::from_secs(20), read).await;
        let read = read.expect("an answer in time").expect("an answer");
        assert_eq!(read.status, 200);
        let body = json!({ "username": "nobody", "password": "correct horse battery",
                           "auth": { "type": "m.login.dummy" } });
        let write = http.try_request("POST", "/_matrix/client/v3/register", None, Some(&body));
        let write = tokio::time::timeout(Duration::from_secs(40), write).await;
        let write = write.expect("an answer in time").expect("an answer");
        assert_eq!(write.status, 503, "{write}");
        assert_eq!(write.body["errcode"], "M_UNKNOWN", "{write}");
    }
}

/// Every acknowledged message is there once and in order, the same on all nodes, and every watcher
/// has seen each message once, in that order.
async fn check(
    fleet: &Fleet,
    writers: &mut [Writer],
    watchers: &mut [Watcher],
    rooms: &[String],
    round: u64,
) {
    for watcher in watchers.iter_mut() {
        while watcher.step(0).await {}
    }
    let token = writers[0].user.access_token.clone();
    for room_id in rooms {
        let mut histories = Vec::new();
        for node in &fleet.nodes {
            let mut front = Front::of(vec![node.http()]);
            histories.push(page_back(&mut front, &token, room_id, None, "").await);
        }
        for (number, history) in histories.iter().enumerate() {
            assert!(
                *history == histories[0],
                "round {round}: node {number} has another order of {room_id}"
            );
        }
        let history = &histories[0];
        for (number, watcher) in watchers.iter().enumerate() {
            let seen = watcher.seen.get(room_id).map_or(&[][..], Vec::as_slice);
            let shown = (seen.len(), history.len());
            assert!(seen == history, "round {round}: watcher {number} has seen {shown:?}");
        }
        for writer in writers.iter().filter(|writer| writer.room_id == *room_id) {
            let own: Vec<_> = history
                .iter()
                .filter(|(_, text)| text.starts_with(&format!("{} ", writer.label)))
                .map(|(event_id, _)| event_id.clone())
                .collect();
            assert!(
                own == writer.acknowledged,
                "round {round}: {}: {} in the history, {} acknowledged",
                writer.label,
                own.len(),
                writer.acknowledged.len()
            );
        }
    }
}
