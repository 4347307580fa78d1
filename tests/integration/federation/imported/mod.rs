//! A Synapse becomes a Logcabin: its clients go on with the stores and tokens that they have, and
//! so do its bridges and the rooms that it shares with others.

mod clients;
mod killed;
mod neighbours;
mod rehearsal;
mod stores;

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use super::Authority;
use super::synapse::Synapse;
use crate::harness::nodes::FEDERATION_BIND;
use crate::harness::{Direction, User, run_logcabin};

/// Runs `logcabin import-synapse`.
fn import(what: &str, synapse: &Synapse, data_dir: Option<&Path>, more: &[&str]) -> Output {
    let config = synapse.config().display().to_string();
    let mut line = vec!["import-synapse", what, "--config", &config];
    let data_dir = data_dir.map(|path| path.display().to_string());
    if let Some(data_dir) = &data_dir {
        line.extend(["--data-dir", data_dir]);
    }
    line.extend(more);
    run_logcabin(line)
}

/// The same, which must work; what it printed.
#[track_caller]
fn imported(what: &str, synapse: &Synapse, data_dir: Option<&Path>, more: &[&str]) -> String {
    let output = import(what, synapse, data_dir, more);
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{what}: {said}{printed}");
    printed
}

/// The same, which must be refused; why.
#[track_caller]
fn refused(what: &str, synapse: &Synapse, data_dir: &Path, more: &[&str]) -> String {
    let output = import(what, synapse, Some(data_dir), more);
    assert!(!output.status.success(), "{what} was not refused");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Takes over from a Synapse that has stopped; both give the same answers.
#[track_caller]
fn finished_without_a_difference(synapse: &Synapse, data_dir: &Path) {
    imported("finish", synapse, Some(data_dir), &[]);
    let compared = imported("compare", synapse, Some(data_dir), &["--json"]);
    let compared: Value = serde_json::from_str(&compared).expect("JSON");
    assert_eq!(compared["faults"], 0, "{compared:#}");
}

/// The settings of the server that takes over.
fn settings(authority: &Authority, synapse: &Synapse) -> Vec<(&'static str, String)> {
    let (key, certificate) = authority.certify("taken-over");
    let path = |path: std::path::PathBuf| path.display().to_string();
    vec![
        ("LOGCABIN_SERVER_NAME", synapse.name.clone()),
        ("LOGCABIN_FEDERATION_ENABLED", "true".to_owned()),
        (FEDERATION_BIND, synapse.address.to_string()),
        ("LOGCABIN_FEDERATION_CERTIFICATE", path(certificate)),
        ("LOGCABIN_FEDERATION_CERTIFICATE_KEY", path(key)),
        ("LOGCABIN_FEDERATION_CA", path(authority.certificate())),
        ("LOGCABIN_OUTBOUND_CERTIFICATES", path(authority.certificate())),
        ("LOGCABIN_FEDERATION_ALLOWED_NETWORKS", "127.0.0.0/8,::1".to_owned()),
    ]
}

/// What a sync from the start says of a room: unread messages, and the room's account data.
async fn seen(user: &User, room_id: &str) -> (Value, Value) {
    let synced = user.request("GET", "/sync", None).await.ok();
    let room = &synced["rooms"]["join"][room_id];
    let mut data = room["account_data"]["events"].as_array().cloned().unwrap_or_default();
    data.sort_by_key(|event| event["type"].to_string());
    (room["unread_notifications"].clone(), data.into())
}

/// The version of a user's key backup, and how many keys are in it.
async fn backup(user: &User) -> (Value, Value) {
    let about = user.request("GET", "/room_keys/version", None).await.ok();
    (about["version"].clone(), about["count"].clone())
}

/// The texts of the last messages of a room, oldest first.
async fn texts(user: &User, room_id: &str) -> Vec<String> {
    let page = user.messages(room_id, None, None, Direction::Back, 100).await;
    let events = page["chunk"].as_array().cloned().unwrap_or_default();
    let texts = events.iter().filter_map(|event| event["content"]["body"].as_str());
    let mut texts: Vec<String> = texts.map(str::to_owned).collect();
    texts.reverse();
    texts
}
