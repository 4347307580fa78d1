//! A server that has taken over from another one does not start while that one is in use, and notes
//! when something leaves it for the first time. The other one is a stand-in here; a real Synapse is
//! in `federation`.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Gateway, StandIn, TestServer, User, refused_start_on, run_logcabin, until};

/// The key of both.
const KEY: &str = "9+lAO+7VlDlnXmICO7i5RzCY8toemczEUJyC45PsHrY";

/// Somebody who answers other homeservers as this program, with this key.
async fn answering(program: &'static str, key: &'static str) -> StandIn {
    StandIn::start(move |asked| match asked.path.as_str() {
        "/_matrix/federation/v1/version" => {
            (200, json!({ "server": { "name": program, "version": "1.163.2" } }))
        }
        "/_matrix/key/v2/server" => (
            200,
            json!({
                "server_name": "e2e.test", "valid_until_ts": 1, "old_verify_keys": {},
                "verify_keys": { "ed25519:a_1": { "key": key } },
            }),
        ),
        _ => (404, json!({ "errcode": "M_UNRECOGNIZED" })),
    })
    .await
}

/// Notes in a data directory that it took over.
fn note(data_dir: &Path, config: &Path, public: &[String], stage: &Value) {
    let note = json!({
        "id": "one", "config": config, "server_name": "e2e.test", "keys": { "ed25519:a_1": KEY },
        "here": [], "public": public, "stage": stage,
    });
    std::fs::write(data_dir.join("import.json"), note.to_string()).expect("a file");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_start_beside_the_former_server_wherever_it_answers() {
    let directory = TempDir::new().expect("a temporary directory");
    let data_dir = directory.path().join("data");
    TestServer::start_alone_with(&data_dir, &[]).await.stop();
    let nowhere = directory.path().join("none/homeserver.yaml");
    let finished = json!({ "finished": 1 });

    let synapse = answering("Synapse", KEY).await;
    let at = |stand_in: &StandIn| vec![format!("http://{}", stand_in.address)];
    note(&data_dir, &nowhere, &at(&synapse), &finished);
    let why = refused_start_on(&data_dir, &[], &[]);
    assert!(why.contains("Synapse of e2e.test answers at"), "{why}");
    assert!(why.contains("with this server's key"), "{why}");
    // Whoever else is there is no reason: this server, another program, another key, nobody.
    for (program, key) in [("Logcabin", KEY), ("Dendrite", KEY), ("Synapse", "another")] {
        let other = answering(program, key).await;
        note(&data_dir, &nowhere, &at(&other), &finished);
        TestServer::start_alone_with(&data_dir, &[]).await.stop();
        assert!(!other.asked().is_empty(), "{program} was not asked");
    }
    note(&data_dir, &nowhere, &["http://127.0.0.1:1".to_owned()], &finished);
    TestServer::start_alone_with(&data_dir, &[]).await.stop();

    // Before the end, after an undo, and once somebody took the guard away.
    for (stage, said) in [(json!("copied"), "is not finished"), (json!("undone"), "was undone")] {
        note(&data_dir, &nowhere, &[], &stage);
        let why = refused_start_on(&data_dir, &[], &[]);
        assert!(why.contains(said), "{why}");
    }
    let config = directory.path().join("homeserver.yaml");
    std::fs::write(&config, "server_name: e2e.test\n").expect("a file");
    note(&data_dir, &config, &[], &finished);
    let why = refused_start_on(&data_dir, &[], &[]);
    assert!(why.contains("the guard file"), "{why}");
    let guard = directory.path().join("homeserver.yaml.moved-to-logcabin");
    let of = |data_dir: &Path, id: &str| {
        let name = "e2e.test";
        let guard_file = json!({ "note": "", "id": id, "server_name": name, "data_dir": data_dir });
        std::fs::write(&guard, guard_file.to_string()).expect("a file");
    };
    let other = directory.path().join("other");
    std::fs::create_dir(&other).expect("a directory");
    std::fs::copy(data_dir.join("import.json"), other.join("import.json")).expect("a file");
    let elsewhere = Path::new("/elsewhere");
    for (data_dir_of_guard, id) in [(&*other, "one"), (elsewhere, "another"), (elsewhere, "")] {
        of(data_dir_of_guard, id);
        let why = refused_start_on(&data_dir, &[], &[]);
        assert!(why.contains("has taken over"), "{why}");
    }
    // A directory of the same import that is not there any more was this one, before it was moved.
    of(elsewhere, "one");
    TestServer::start_alone_with(&data_dir, &[]).await.stop();
    let named = std::fs::read_to_string(&guard).expect("a file");
    assert!(named.contains(&data_dir.display().to_string()), "{named}");
    of(&data_dir, "one");
    TestServer::start_alone_with(&data_dir, &[]).await.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_back_ends_when_something_has_left() {
    let directory = TempDir::new().expect("a temporary directory");
    let data_dir = directory.path().join("data");
    let config = directory.path().join("homeserver.yaml");
    let gateway = Gateway::start().await;
    let settings =
        [("LOGCABIN_PUSH_ALLOW_HTTP", "true"), ("LOGCABIN_PUSH_ALLOWED_NETWORKS", "127.0.0.0/8")];
    let mut server = TestServer::start_alone_with(&data_dir, &settings).await;
    let (ann, bob) = (server.register("ann").await, server.register("bob").await);
    server.stop();
    note(&data_dir, &config, &[], &json!({ "finished": 1 }));
    server.restart().await;
    let again = |user: &User| User { http: server.http(), ..user.clone() };
    let (ann, bob) = (again(&ann), again(&bob));
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    bob.join(&room_id).await.ok();
    bob.send_text(&room_id, "1", "nobody outside is told").await;
    let left = data_dir.join("import-left.json");
    assert!(!left.exists(), "nothing has left");

    let undo = |more: &[&str]| {
        let (config, data_dir) = (config.display().to_string(), data_dir.display().to_string());
        let line = ["import-synapse", "finish", "--config", &config, "--data-dir", &data_dir];
        let output = run_logcabin(line.iter().chain(&["--undo"]).chain(more));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    server.stop();
    let (done, why) = undo(&[]);
    assert!(!done && why.contains("--yes"), "{why}");
    server.restart().await;
    gateway.serves(&ann, "key").await;
    let event = bob.send_text(&room_id, "2", "ann's phone is told").await;
    gateway.until_events("key", &[event]).await;
    until("it is noted", async || left.exists()).await;
    server.stop();
    let (done, why) = undo(&["--yes"]);
    assert!(!done && why.contains("no way back"), "{why}");
    // It is this server's that is in use.
    server.restart().await;
}
