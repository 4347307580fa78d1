//! A rehearsal of a move, while Synapse runs.

use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use super::super::with_synapse::both;
use super::{imported, settings, texts};
use crate::harness::{TestServer, User, encode, refused_start_on, until as until_so};

#[tokio::test(flavor = "multi_thread")]
async fn a_rehearsal_of_a_move_leaves_synapse_and_others_alone() {
    let Some((authority, other, synapse)) = both("rehearsal").await else { return };
    let (ann, sam) = (synapse.register("ann").await, other.server.register("sam").await);
    let room = ann.create_room(json!({ "preset": "public_chat" })).await;
    let path = format!("/join/{}?via={}", encode(&room), encode(&synapse.name));
    sam.request("POST", &path, Some(&json!({}))).await.ok();
    ann.send_text(&room, "1", "before").await;

    let directory = TempDir::new().expect("a temporary directory");
    let data_dir = directory.path().join("rehearsal");
    // Synapse runs all the time.
    imported("copy", &synapse, Some(&data_dir), &[]);
    imported("finish", &synapse, Some(&data_dir), &["--rehearsal"]);
    let guard = format!("{}.moved-to-logcabin", synapse.config().display());
    assert!(!Path::new(&guard).exists());
    let why = refused_start_on(&data_dir, &[], &[]);
    assert!(why.contains("is for rehearsals"), "{why}");

    let mut own = settings(&authority, &synapse);
    own.push(("LOGCABIN_OUTBOUND_REHEARSAL", "true".to_owned()));
    let own: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
    let server = TestServer::start_alone_with(&data_dir, &own).await;
    let rehearsing = User { http: server.http(), ..ann.clone() };
    assert!(texts(&rehearsing, &room).await.contains(&"before".to_owned()));
    rehearsing.send_text(&room, "2", "only in the rehearsal").await;
    // What is written on Synapse arrives as ever, and what was rehearsed never does.
    ann.send_text(&room, "3", "on Synapse").await;
    until_so("sam has what ann wrote", async || {
        texts(&sam, &room).await.iter().any(|text| text == "on Synapse")
    })
    .await;
    let told = texts(&sam, &room).await;
    assert!(!told.contains(&"only in the rehearsal".to_owned()), "{told:?}");
    drop(other.server);
}
