//! Old backups are removed, and never the newest that is intact.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{TestServer, run_logcabin};

fn run(line: &[&str]) -> Output {
    let line: Vec<&std::ffi::OsStr> = line.iter().map(AsRef::as_ref).collect();
    run_logcabin(&line)
}

#[track_caller]
fn json_of(line: &[&str]) -> Value {
    let output = run(line);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line:?}: {complaint}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The offsets in a list of moments.
fn offsets(moments: &Value) -> Vec<u64> {
    let moments = moments.as_array().into_iter().flatten();
    moments.filter_map(|moment| moment["offset"].as_u64()).collect()
}

/// The last segment of the backup that ends at this record. Later backups have it, if they did not
/// merge it; earlier ones do not.
fn last_segment(dest: &Path, offset: u64) -> PathBuf {
    let manifests = fs::read_dir(dest.join("manifests")).expect("a directory");
    let manifests = manifests.map(|entry| fs::read(entry.expect("an entry").path()));
    let manifests =
        manifests.map(|bytes| serde_json::from_slice::<Value>(&bytes.expect("a manifest")));
    let ours = manifests
        .map(|manifest| manifest.expect("JSON"))
        .find(|manifest| manifest["offset"].as_u64() == Some(offset))
        .expect("the backup has a manifest");
    let segments = ours["segments"].as_array().expect("segments");
    let file = segments.last().and_then(|last| last["file"].as_str()).expect("a segment");
    dest.join("segments").join(file)
}

fn damage(file: &Path) {
    let mut bytes = fs::read(file).expect("the segment can be read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, bytes).expect("the segment can be written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_backups_go_but_never_the_newest_that_is_intact() {
    let server = TestServer::start().await;
    let ann = server.register("ann").await;
    let room_id = ann.create_room(json!({})).await;
    let place = TempDir::new().expect("a temporary directory");
    let dest = place.path().join("backup");
    let (to, data) = (dest.to_string_lossy(), server.data_dir().to_string_lossy().into_owned());
    let mut made = Vec::new();
    for number in 0..4 {
        ann.send_text(&room_id, &format!("text-{number}"), "a text").await;
        let taken = json_of(&["backup", &to, "--data-dir", &data, "--json"]);
        made.push(taken["offset"].as_u64().expect("an offset"));
    }
    let prune = ["prune-backups", &to, "--data-dir", &data, "--json"];
    let rule = |rule: [&'static str; 2]| [&prune[..], &rule[..]].concat();

    let newest = || json_of(&["backups", "--data-dir", &data, "--json"])["backups"][0].clone();
    let before = newest();
    assert!(before["noted_ms"].is_u64(), "{before}");

    // Nothing is older than a day.
    let pruned = json_of(&rule(["--max-age-days", "1"]));
    assert_eq!((offsets(&pruned["removed"]), offsets(&pruned["kept"])), (vec![], made.clone()));
    let pruned = json_of(&rule(["--keep", "3"]));
    assert_eq!(offsets(&pruned["removed"]), made[..1], "{pruned}");
    assert_eq!(newest(), before, "nothing was backed up meanwhile");
    let known = json_of(&["backups", "--data-dir", &data, "--json"]).to_string();
    for (number, offset) in made.iter().enumerate() {
        let is_known = known.contains(&format!("\"offset\":{offset}"));
        assert_eq!(is_known, number > 0, "{offset}: {known}");
    }

    // The newest is damaged, so the one before it stays too.
    damage(&last_segment(&dest, made[3]));
    let pruned = json_of(&rule(["--keep", "1"]));
    assert_eq!(offsets(&pruned["removed"]), made[1..2], "{pruned}");
    assert_eq!(offsets(&pruned["kept"]), made[2..], "{pruned}");
    let checked = run(&["verify-backup", &to, "--offset", &made[2].to_string()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));

    // Without any that is intact, none is removed.
    damage(&last_segment(&dest, made[2]));
    let refused = run(&rule(["--keep", "1"]));
    let complaint = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && complaint.contains("verify-backup"), "{complaint}");
    assert_eq!(fs::read_dir(dest.join("manifests")).expect("a directory").count(), 2);

    // Without a rule there is nothing to do.
    assert!(!run(&prune).status.success());
}
