//! What a server shows of its log, and that a backup is the beginning of it, checked by a program
//! that has none of the server's code.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::{Value, json};

use crate::crash::assert_verifies;
use crate::harness::{TestServer, User, run_logcabin, until};

fn prove(data_dir: &Path, arguments: &[&str]) -> Result<Value, String> {
    let mut all = arguments.to_vec();
    let dir = data_dir.to_str().expect("a path in Unicode");
    all.extend(["--data-dir", dir]);
    let output = run_logcabin(all);
    match serde_json::from_slice(&output.stdout) {
        Ok(proof) if output.status.success() => Ok(proof),
        _ => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Has the program in `examples/` look at a proof.
pub(crate) fn verified(key: &str, proof: &Value) -> Result<String, String> {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("proof.json");
    fs::write(&file, proof.to_string()).expect("the proof can be written");
    // Beside this test's own directory, where cargo puts what it builds of `examples/`.
    let own = std::env::current_exe().expect("this program is a file");
    let built = own.parent().and_then(Path::parent).expect("it is in target/debug/deps");
    let program = built.join("examples/verify_proof");
    if !program.exists() {
        // It is built with all tests, and not when one is asked for by its name.
        let build = ["build", "--quiet", "--example", "verify_proof"];
        let status = Command::new(env!("CARGO")).args(build).status().expect("cargo runs");
        assert!(status.success(), "the verifier cannot be built");
    }
    let Output { status, stdout, stderr } =
        Command::new(program).arg(key).arg(file).output().expect("the verifier runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    if status.success() { Ok(text(stdout)) } else { Err(text(stderr)) }
}

async fn talk(server: &TestServer, user: &User, room_id: &str, name: &str) {
    let user = User { http: server.http(), ..user.clone() };
    for number in 0..10 {
        user.send_text(room_id, &format!("{name}{number}"), &format!("{name} {number}")).await;
    }
}

#[tokio::test]
async fn a_record_and_a_backup_are_proved_on_a_running_and_a_stopped_server() {
    let mut server = TestServer::start_with(&[("LOGCABIN_PROOFS_EVERY_RECORDS", "20")]).await;
    let data_dir = server.data_dir().to_owned();
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({ "preset": "public_chat" })).await;
    talk(&server, &ann, &room_id, "a").await;

    // Running: the newest record, for which a checkpoint is made at once.
    let proof = prove(&data_dir, &["prove", "12", "--payload"]).expect("a proof");
    let key = proof["public_key"].as_str().expect("a key").to_owned();
    let shown = verified(&key, &proof).expect("it holds");
    assert!(shown.contains("record 12,") && shown.contains("with this payload"), "{shown}");
    let other = "A".repeat(43);
    assert!(verified(&other, &proof).is_err(), "another key signed nothing");
    for (member, value) in [("offset", json!(13)), ("payload", json!("{}")), ("path", json!([]))] {
        let mut changed = proof.clone();
        changed[member] = value;
        let why = verified(&key, &changed).expect_err("it does not hold");
        assert!(why.starts_with("nothing is shown: "), "{why}");
    }
    let secret = prove(&data_dir, &["prove", "1", "--payload"]).expect_err("a private key");
    assert!(secret.contains("secret"), "{secret}");
    verified(&key, &prove(&data_dir, &["prove", "1"]).expect("without it")).expect("it holds");
    let beyond = prove(&data_dir, &["prove", "100000"]).expect_err("there is none");
    assert!(beyond.contains("there is no record 100000"), "{beyond}");

    // By itself the server makes some, too; and one when it stops.
    talk(&server, &ann, &room_id, "b").await;
    talk(&server, &ann, &room_id, "c").await;
    let checkpoints = || {
        let output = run_logcabin([
            "verify".as_ref(),
            "--archive".as_ref(),
            data_dir.join("archive").as_os_str(),
            "--json".as_ref(),
        ]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
        let checks = report["checks"].as_array().cloned().unwrap_or_default();
        let proofs = checks.into_iter().find(|check| check["name"] == "proofs");
        proofs.expect("the checkpoints are checked")
    };
    until("a checkpoint of more than 20 records is archived", async || {
        let detail = checkpoints()["detail"].as_str().map(str::to_owned).unwrap_or_default();
        let count = detail.split_once(" signed checkpoints").map(|(count, _)| count.parse());
        count.is_some_and(|count| count.is_ok_and(|count: u32| count > 1))
    })
    .await;
    // Alone, the last one needs no other.
    talk(&server, &ann, &room_id, "x").await;
    let before = checkpoints();
    server.stop();
    let after = checkpoints();
    assert_eq!(after["outcome"], "passed");
    assert_ne!(before, after, "none was made at the stop");
    assert_verifies(&data_dir);

    // A backup of now, and a log that goes on.
    let backup = tempfile::tempdir().expect("a directory");
    for entry in fs::read_dir(data_dir.join("archive")).expect("an archive").flatten() {
        fs::copy(entry.path(), backup.path().join(entry.file_name())).expect("a copy");
    }
    server.restart().await;
    talk(&server, &ann, &room_id, "d").await;
    let backup = backup.path().to_str().expect("a path in Unicode");
    let proof = prove(&data_dir, &["prove-consistency", backup]).expect("it is the beginning");
    let shown = verified(&key, &proof).expect("it holds");
    assert!(shown.contains("are the beginning of"), "{shown}");
    let mut changed = proof.clone();
    changed["first"] = proof["second"].clone();
    verified(&key, &changed).expect_err("it does not hold");

    // Killed and stopped: the same from the directory alone.
    server.kill9();
    let stopped = prove(&data_dir, &["prove", "12", "--payload"]).expect("a proof");
    verified(&key, &stopped).expect("it holds");
    let stopped = prove(&data_dir, &["prove-consistency", backup]).expect("it is the beginning");
    verified(&key, &stopped).expect("it holds");
    let none = prove(&data_dir, &["prove-consistency", "2"]).expect_err("none so early");
    assert!(none.contains("there is no checkpoint at or before record 2"), "{none}");
    assert_verifies(&data_dir);
    server.restart().await;
}
