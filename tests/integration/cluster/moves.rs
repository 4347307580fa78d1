//! A server becomes a node and an embedded server again, nodes come and go, and what is erased
//! leaves all of them.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::fleet::{Fleet, Plan};
use crate::contents::files_with;
use crate::harness::{Http, Random, TestServer, User, encode, run_logcabin, until, until_ok};

fn logcabin<const N: usize>(arguments: [&str; N]) -> String {
    let output = run_logcabin(arguments);
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {shown}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused<const N: usize>(arguments: [&str; N]) -> String {
    let output = run_logcabin(arguments);
    assert!(!output.status.success(), "{arguments:?} is accepted");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in Unicode")
}

async fn upload(user: &User, content: &str) -> String {
    let token = format!("Bearer {}", user.access_token);
    let headers = [("authorization", &*token), ("content-type", "text/plain")];
    let path = "/_matrix/media/v3/upload";
    user.http.raw("POST", path, &headers, content.to_owned()).await.json().ok_string("content_uri")
}

async fn download(user: &User, mxc: &str) -> String {
    let token = format!("Bearer {}", user.access_token);
    let id = mxc.strip_prefix("mxc://").expect("an address");
    let path = format!("/_matrix/client/v1/media/download/{id}");
    let answer = user.http.raw("GET", &path, &[("authorization", &token)], "").await;
    String::from_utf8_lossy(&answer.bytes).into_owned()
}

fn at(user: &User, http: Http) -> User {
    User { http, ..user.clone() }
}

/// The texts of the messages in an incremental sync.
async fn news(user: &User, since: &str) -> (Vec<String>, String) {
    let body = user.sync(Some(since), 0, None).await;
    let mut texts = Vec::new();
    for room in body["rooms"]["join"].as_object().into_iter().flatten().map(|(_, room)| room) {
        let events = room["timeline"]["events"].as_array().cloned().unwrap_or_default();
        let text = |event: &Value| event["content"]["body"].as_str().map(str::to_owned);
        texts.extend(events.iter().filter_map(text));
    }
    (texts, body["next_batch"].as_str().expect("a token").to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_becomes_a_node_and_an_embedded_server_again_and_loses_nothing() {
    let test = "cluster: moves";
    let Some(mut fleet) = Fleet::plan(test, 3, Plan::default()) else { return };
    let servers = fleet.nats.urls();
    let data_dir = fleet.nodes[0].data_dir.clone();
    let dir = text(&data_dir);
    let mut server = TestServer::start_embedded_on(&data_dir).await;
    let ann = server.register("ann").await;
    let ben = server.register("ben").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    ben.join(&room_id).await.ok();
    ann.send_text(&room_id, "1", "embedded").await;
    let (_, since) = news(&ben, "s0_0").await;
    ann.send_text(&room_id, "2", "not seen yet").await;
    let file = upload(&ann, "a file").await;
    // A running server's directory is in use.
    let in_use = refused(["cluster", "move-in", "--log", &servers, "--data-dir", dir]);
    assert!(in_use.contains("is using the directory"), "{in_use}");
    server.stop();

    let nothing = TempDir::new().expect("a directory");
    refused(["cluster", "move-in", "--log", &servers, "--data-dir", text(nothing.path())]);
    let moved = logcabin(["cluster", "move-in", "--log", &servers, "--data-dir", dir]);
    assert!(moved.contains("1 uploaded files"), "{moved}");
    let again = refused(["cluster", "move-in", "--log", &servers, "--data-dir", dir]);
    assert!(again.contains("already that of a node"), "{again}");
    // It is no embedded log any more.
    let alone = refused(["serve", "--data-dir", dir, "--bind", "127.0.0.1:0"]);
    assert!(alone.contains("that of a node"), "{alone}");

    fleet.nodes.iter_mut().for_each(super::fleet::Node::run);
    fleet.until_ready().await;
    fleet.until_equal().await;
    for node in &fleet.nodes {
        let (ann, ben) = (at(&ann, node.http()), at(&ben, node.http()));
        let (texts, _) = news(&ben, &since).await;
        assert_eq!(texts, ["not seen yet"]);
        assert_eq!(download(&ann, &file).await, "a file");
    }
    let (_, since) = news(&at(&ben, fleet.nodes[1].http()), &since).await;
    // A transaction id is known to all.
    let id = at(&ann, fleet.nodes[1].http()).send_text(&room_id, "2", "not seen yet").await;
    let again = at(&ann, fleet.nodes[2].http()).send_text(&room_id, "2", "not seen yet").await;
    assert_eq!(id, again);
    at(&ann, fleet.nodes[2].http()).send_text(&room_id, "3", "from a node").await;
    let picture = upload(&at(&ann, fleet.nodes[2].http()), "another file").await;
    assert_eq!(download(&at(&ann, fleet.nodes[1].http()), &picture).await, "another file");

    let others = refused(["cluster", "move-out", "--log", &servers, "--data-dir", dir]);
    assert!(others.contains("is using the directory"), "{others}");
    fleet.nodes[0].stop();
    let others = refused(["cluster", "move-out", "--log", &servers, "--data-dir", dir]);
    assert!(others.contains("node-1, node-2"), "{others}");
    fleet.nodes[0].run();
    fleet.until_ready().await;
    fleet.nodes[2].stop();
    fleet.nodes[1].stop();
    until("the first node has gone on", async || {
        fleet.status(0)["nodes"].as_array().is_some_and(|nodes| nodes.len() == 1)
    })
    .await;
    fleet.nodes[0].stop();
    logcabin(["cluster", "move-out", "--log", &servers, "--data-dir", dir]);

    let server = TestServer::start_embedded_on(&data_dir).await;
    let (ann, ben) = (at(&ann, server.http()), at(&ben, server.http()));
    let (texts, since) = news(&ben, &since).await;
    assert_eq!(texts, ["from a node"]);
    assert_eq!(download(&ann, &picture).await, "another file");
    ann.send_text(&room_id, "4", "embedded again").await;
    assert_eq!(news(&ben, &since).await.0, ["embedded again"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_come_and_go_and_what_is_erased_leaves_all_of_them_and_the_stream() {
    const SECRET: &str = "the-heron-flies-at-dawn";
    let settings =
        [("LOGCABIN_ERASURE_REDACTED_AFTER_SECONDS", "0"), ("LOGCABIN_ERASURE_SWEEP_SECONDS", "1")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let plan = Plan { settings, ..Plan::default() };
    let Some(mut fleet) = Fleet::start("cluster: nodes", 3, plan).await else { return };
    let mut front = fleet.front(Random::from_seed(7));
    let ann = front.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let event_id = ann.send_text(&room_id, "1", SECRET).await;
    let other = at(&ann, fleet.nodes[1].http());
    other.send_text(&room_id, "2", "something else").await;
    fleet.until_equal().await;
    let dirs: Vec<_> = fleet.nodes[..2]
        .iter()
        .map(|node| node.data_dir.clone())
        // The servers' own logs (`$SYS/_js_`) drop what they no longer need some minutes later.
        .chain((0..3).map(|number| fleet.nats.store(number).join("jetstream/$G")))
        .collect();
    for dir in &dirs {
        until(&format!("it is in {} before", dir.display()), async || {
            !files_with(dir, SECRET).is_empty()
        })
        .await;
    }
    // This one misses the redaction.
    fleet.nodes[2].stop();
    let path =
        format!("/_matrix/client/v3/rooms/{}/redact/{}/3", encode(&room_id), encode(&event_id));
    let token = ann.access_token.clone();
    let http = fleet.nodes[0].http();
    http.request("PUT", &path, Some(&token), Some(&json!({}))).await.ok();
    for dir in &dirs {
        until_ok(&format!("what is erased is not in {}", dir.display()), async || {
            let found = files_with(dir, SECRET);
            if found.is_empty() { Ok(()) } else { Err(found) }
        })
        .await;
    }
    // The stream has nothing any more: the node copies from another one, and erases, too.
    fleet.nodes[2].run();
    fleet.until_ready().await;
    fleet.until_equal().await;
    let late = fleet.nodes[2].data_dir.clone();
    until_ok("what is erased is gone from the node that was away", async || {
        let found = files_with(&late, SECRET);
        if found.is_empty() { Ok(()) } else { Err(found) }
    })
    .await;

    // A new node, from nothing but the others; and one from the data of another.
    let servers = fleet.nats.urls();
    fleet.nodes[2].stop();
    for from in [None, Some(fleet.nodes[1].data_dir.clone())] {
        std::fs::remove_dir_all(&late).expect("a directory");
        let mut arguments = vec!["cluster", "join", "--log", &*servers, "--data-dir", text(&late)];
        if let Some(from) = &from {
            arguments.extend(["--from", text(from)]);
        }
        let joined = run_logcabin(&arguments);
        assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
        assert!(String::from_utf8_lossy(&joined.stdout).contains("The node has all"));
    }
    fleet.nodes[2].run();
    fleet.until_ready().await;
    fleet.until_equal().await;
    let ann = at(&ann, fleet.nodes[2].http());
    ann.send_text(&room_id, "4", "from the new node").await;
    let verified = {
        fleet.nodes[2].stop();
        run_logcabin(["verify".as_ref(), "--data-dir".as_ref(), late.as_os_str()])
    };
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_nats_that_does_not_sync_is_refused() {
    let Some(fleet) = Fleet::plan("cluster: durability", 1, Plan::default()) else { return };
    fleet.nats.write_config(0, "2m");
    let mut fleet = fleet;
    fleet.nats.kill(0);
    fleet.nats.run(0);
    fleet.nats.until_listening();
    fleet.nodes[0].run();
    until("the node ends", async || !fleet.nodes[0].is_running()).await;
    let output = fleet.nodes[0].output();
    assert!(output.contains("acknowledges messages before they are on disk"), "{output}");
}
